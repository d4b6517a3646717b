"""Drawing clauses: which verb with which complements, tense, negation, adverbials, subordinate clauses."""

from __future__ import annotations

from nmtkit.demo.draw import Draw
from nmtkit.demo.lexicon import Adjective, Complement, Verb
from nmtkit.demo.nominals import PERSON, PLACE, SURFACE, Nominals
from nmtkit.demo.phrases import NP, PP, Clause, Predicate, Relative

PRONOUN_OF = {"female": "she", "male": "he"}
OWNER_OF = {"I": "my", "we": "our", "he": "his", "she": "her", "they": "their"}
INCOMPARABLE = {"ill", "secret", "empty", "red", "blue", "green", "yellow", "black", "white", "brown", "grey", "modern"}
POSITION = {"lie", "stand", "sit", "hang"}
ONCE = {"suddenly", "finally", "immediately", "quickly"}
FREQUENT = {"often", "always", "sometimes", "never", "usually", "rarely"}
GAPS = {"acc", "dat", "pp"}
QUANTIFIED = {"every", "all", "some", "many", "several", "no", ""}


class Grammar(Nominals):
    """Draws clauses in the tense of the document at hand (`base`: past or pres)."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.base, self.negation = "past", 0.14
        verbs = self.words.verbs
        self._agents = [v for v in verbs if "person" in v.subjects]
        self._by_subject = {noun: [v for v in verbs if v.subjects & noun.classes] for noun in self.words.nouns}
        self._by_object = {
            noun: [v for v in self._agents if any(c.role in GAPS and c.classes & noun.classes for c in v.complements)] for noun in self.words.nouns
        }
        self._describable = [n for n in self.words.nouns if len(self.words.adjectives_of(n)) > 2 and "mass" not in n.classes]
        self._persons = [a for a in self.words.adjectives if "person" in a.classes and a.en not in {"small", "strange", "famous", "funny"}]

    def named(self) -> NP:
        """One of the document's persons."""
        np = NP()
        np.name = self.draw.pick(self.cast)
        return np

    def pronoun(self, key: str) -> NP:
        """A personal pronoun."""
        np = NP()
        np.pronoun = key
        return np

    def owner_of(self, subject: NP) -> str:
        """The possessive that refers back to a subject."""
        if subject.pronoun:
            return OWNER_OF.get(subject.pronoun, "my")
        if subject.name:
            return "her" if "female" in subject.name.tags else "his"
        return "their" if subject.agreement == 2 else "my"

    def agent(self, levels: int = 1) -> NP:
        """A person as subject: somebody of the cast, two of them, a pronoun, or a noun phrase."""
        draw, roll = self.draw, self.draw.random()
        if roll < 0.36:
            return self.named()
        if roll < 0.42:
            np = NP()
            np.parts = [self.named(), self.plain(PERSON, "definite", plural=0.1)]
            np.parts[1].det = "the"
            return np
        if roll < 0.57:
            return self.pronoun(draw.pick(("I", "we", "he", "she", "they")))
        return self.filled_out(self.plain(PERSON, plural=0.35), levels)

    def filled_out(self, np: NP, levels: int) -> NP:
        """Modifiers for a noun phrase, more of them with more levels."""
        if levels and self.draw.chance(0.42):
            self.modify(np, levels)
        if levels and self.draw.chance(0.22):
            self.relate(np)
        return np

    def subject_for(self, verb: Verb, levels: int) -> NP:
        """A subject that a verb admits."""
        if "person" in verb.subjects and (len(verb.subjects) == 1 or self.draw.chance(0.6)):
            return self.agent(levels)
        return self.filled_out(self.plain(verb.subjects, plural=0.35), levels)

    def relate(self, np: NP) -> None:
        """Put a relative clause at the end of a noun phrase."""
        noun = np.noun
        if noun is None or np.owner or np.det == "" or np.heavy:
            return
        subject_gap = self.draw.chance(0.5)
        verbs = (self._by_subject if subject_gap else self._by_object)[noun]
        if not verbs:
            return
        verb = self.draw.pick(verbs)
        if subject_gap:
            stand_in = NP(noun, np.number)
            clause = self.clause(self.base if self.draw.chance(0.7) else "past", verb=verb, subject=stand_in, level=2, plain=True)
            np.modifiers.append(Relative(clause, "subject"))
            return
        gap = next(c.role for c in verb.complements if c.role in GAPS and c.classes & noun.classes)
        subject = self.named() if self.draw.chance(0.5) else self.pronoun(self.draw.pick(("I", "we", "she", "he", "they")))
        clause = self.clause(self.base if self.draw.chance(0.7) else "past", verb=verb, subject=subject, level=2, plain=True, gap=gap)
        np.modifiers.append(Relative(clause, gap))

    def fill(self, verb: Verb, clause: Clause, level: int, gap: str = "") -> None:
        """Draw what a verb needs."""
        owner = self.owner_of(clause.subject)
        for complement in verb.complements:
            if complement.role == gap:
                clause.filled.append((complement, NP()))
                continue
            clause.filled.append((complement, self.filler(complement, clause, owner, level)))
        movable = [filler for complement, filler in clause.filled if isinstance(filler, NP) and complement.role == "acc"]
        if verb.particle and not verb.fixed and movable:
            short = not movable[0].modifiers
            clause.shifted = bool(movable[0].pronoun) or (short and self.draw.chance(0.5))

    def filler(self, complement: Complement, clause: Clause, owner: str, level: int) -> NP | PP:
        """What fills one complement."""
        role, draw = complement.role, self.draw
        if role == "city":
            city = NP()
            city.name = draw.pick(self.words.cities)
            return PP("to", "nach", "d", city)
        if role == "dir":
            return PP("to", "zu", "d", self.plain(PLACE, "definite", owner, plural=0.05))
        if role == "loc":
            return self.local(self.plain(complement.classes, "any" if not clause.negated and draw.chance(0.4) else "definite", owner, plural=0.1))
        if role == "on":
            np = self.plain(SURFACE, "definite", owner, plural=0.05)
            assert np.noun is not None
            return PP({"in": "into"}.get(np.noun.loc[0], np.noun.loc[0]), np.noun.loc[1], "a", np)
        person = "person" in complement.classes
        if person and draw.chance(0.14) and role in {"acc", "dat", "to"} and not (role == "dat" and len(clause.verb.complements) > 1):
            mine = {"I": ("I", "we"), "we": ("I", "we")}.get(clause.subject.pronoun, ())
            return self.pronoun(draw.pick([key for key in ("I", "we", "he", "she", "they") if key not in mine]))
        if person and draw.chance(0.15):
            np = self.named()
            if clause.subject.name is np.name:
                np = self.plain(PERSON, "definite", owner)
        else:
            single = role == "acc" and len(clause.verb.complements) == 1
            kind = ("negated" if single else "definite") if clause.negated else "any"
            np = self.plain(complement.classes, kind, owner)
            if level < 2 and np.det != "not a":
                np = self.filled_out(np, 1 if level == 0 else 0)
        return PP(complement.en, complement.de, complement.case, np) if role == "pp" else np

    def settle_tense(self, clause: Clause) -> None:
        """Make the English tense natural, and never ambiguous: "they read" is past, "they are reading" present."""
        verb, draw = clause.verb, self.draw
        if clause.tense == "pres" and not clause.modal:
            same = verb.en.past[0] == verb.en.base
            frequent = clause.adverb is not None and clause.adverb.en in FREQUENT
            if verb.en.base in POSITION or same or (not verb.stative and not frequent and draw.chance(0.4)):
                clause.tense = "prog"
        elif clause.tense == "past" and verb.en.base in POSITION and not clause.modal and draw.chance(0.7):
            clause.tense = "pastprog"

    def adverbials(self, clause: Clause, level: int) -> None:
        """Adverb, place and time, where they read well."""
        draw, verb = self.draw, clause.verb
        agentive = clause.subject.noun is None or "person" in clause.subject.noun.classes
        if not clause.negated and not clause.modal and draw.chance(0.2):
            if clause.tense in {"pres", "past"} and draw.chance(0.5):
                clause.adverb = draw.pick(self.words.frequencies[:6])
            elif clause.tense == "perf":
                clause.adverb = self.words.frequencies[6]
            elif agentive and not verb.stative and clause.tense in {"past", "pres"}:
                once = clause.tense == "past"
                clause.adverb = draw.pick([m for m in self.words.manners if once or m.en not in ONCE])
        roles = {complement.role for complement in verb.complements}
        # beside a dative, a place would be read as part of it, and German has the dative elsewhere
        movable = not roles & {"loc", "dir", "on", "city", "dat", "to"} and agentive and not clause.negated and not verb.stative
        if movable and level < 2 and not any(self.heavy(filler) for _, filler in clause.filled) and draw.chance(0.18):
            clause.place = self.local(self.plain(PLACE, "definite", self.owner_of(clause.subject), plural=0.05))
        self.settle_tense(clause)
        key = {"pastprog": "past"}.get(clause.tense, clause.tense)
        options = self.words.times_of(key) if key != "perf" and not (clause.modal and key == "pres") else []
        if options and not clause.adverb and draw.chance(0.34 if level == 0 else 0.14):
            heavy = any(self.heavy(filler) for _, filler in clause.filled)
            if level == 0 and (heavy or clause.negated or draw.chance(0.4)):
                clause.time, clause.front = draw.pick(options), "time"
            elif not heavy and not clause.negated:
                clause.time = draw.pick(options)

    @staticmethod
    def heavy(filler: NP | PP) -> bool:
        """True if a complement holds a relative clause."""
        return filler.np.heavy if isinstance(filler, PP) else filler.heavy

    def clause(
        self,
        tense: str,
        verb: Verb | None = None,
        subject: NP | None = None,
        level: int = 0,
        plain: bool = False,
        gap: str = "",
        modals: bool = True,
    ) -> Clause:
        """A clause with a full verb.

        Args:
            level: 0 main clause, 1 subordinate clause, 2 clause inside a noun phrase; the deeper, the shorter.
            plain: no negation, no modal. gap: the complement a relative pronoun stands for.
        """
        draw = self.draw
        if verb is None:
            verb = draw.pick(self._agents if subject is not None else self.words.verbs)
        clause = Clause(subject or self.subject_for(verb, 1 if level == 0 else 0), verb, tense)
        quantified = clause.subject.det in QUANTIFIED and clause.subject.noun is not None
        human = clause.subject.noun is None or "person" in clause.subject.noun.classes
        clause.negated = not plain and not quantified and draw.chance(self.negation)
        if modals and not plain and human and not verb.stative and tense in {"past", "pres"} and draw.chance(0.14):
            clause.modal = draw.pick(("can", "must", "want"))
            if clause.modal == "must" and clause.negated:
                clause.modal = "can"
        if not plain and level == 0 and not clause.negated and quantified is False and clause.subject.noun and draw.chance(0.03):
            clause.subject.det, clause.subject.owner, clause.subject.numeral = "no", None, None
        self.fill(verb, clause, level, gap)
        self.adverbials(clause, level)
        return clause

    def description(self, tense: str, subject: NP | None = None, level: int = 0) -> Clause:
        """A clause with a predicate adjective."""
        draw = self.draw
        if subject is None:
            if draw.chance(0.3):
                subject = self.agent(1 - min(level, 1))
            else:
                noun = draw.pick(self._describable)
                subject = self.filled_out(self.plain(noun.classes, plural=0.35), 1 - min(level, 1))
        options: list[Adjective] = self.words.adjectives_of(subject.noun) if subject.noun else self._persons
        used = set(subject.adjectives)
        options = [adjective for adjective in options if adjective not in used] or self._persons
        adjective = draw.pick(options)
        clause = Clause(subject, self.words.copulas[draw.pick(("be", "be", "be", "be", "be", "look", "become", "stay"))], tense)
        quantified = subject.det in QUANTIFIED and subject.noun is not None
        clause.negated = not quantified and draw.chance(0.15)
        clause.predicate = Predicate(adjective)
        if adjective.en not in INCOMPARABLE and draw.chance(0.15) and not clause.negated:
            than = self.plain(subject.noun.classes, "definite") if subject.noun else self.plain(PERSON, "definite")
            clause.predicate.than = than
        elif draw.chance(0.35):
            clause.predicate.degree = draw.pick(self.words.degrees)
        if clause.verb.en.base == "be" and not clause.negated and tense in {"past", "pres"} and draw.chance(0.1):
            clause.adverb = draw.pick(self.words.frequencies[:6])
        return clause

    def any_clause(self, tense: str, level: int = 0, subject: NP | None = None) -> Clause:
        """A clause of either kind."""
        return self.description(tense, subject, level) if self.draw.chance(0.15) else self.clause(tense, subject=subject, level=level)
