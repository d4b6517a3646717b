"""Drawing clauses: verb, complements, tense, negation, adverbials, relative clauses."""

from __future__ import annotations

from functools import cache
from typing import Any

from nmtkit.demo.constituents import NP, Clause, Nominals
from nmtkit.demo.lexicon import Slot, Verb, entries, fitting

SIMPLE = {"past", "pres"}

AGENTIVE: list[Verb] = fitting("verbs", "person")
VERBS = [verb for verb in entries("verbs") if verb not in fitting("verbs", "that if to")]
NAMED: dict[str, Verb] = {verb.english_name: verb for verb in VERBS + entries("copulas")}
DESCRIBABLE = [
    noun
    for noun in entries("nouns")
    if len(fitting("adjectives", noun.classes)) > 2 and "mass" not in noun.classes
]
PERSONAL = fitting("adjectives", "personal")
FREQUENT = fitting("adverbs", "frequent")


@cache
def object_gaps(classes: frozenset[str]) -> list[tuple[Verb, Slot]]:
    """Return the verbs with an object of some classes, each with the slot of that object."""
    return [
        (verb, slot)
        for verb in AGENTIVE
        for slot in verb.slots
        if slot.role in {"acc", "dat", "pp"} and slot.nouns & classes
    ]


class Clauses(Nominals):
    """Draws clauses. `base`: the tense of the document, past or pres; `negation`: the probability
    of negating a clause.
    """

    base, negation = "past", 0.14

    def verb(self, place: str) -> Verb:
        """Return one of the verbs that the lexicon lists for a place in the grammar."""
        return NAMED[self.choose(place)]

    def agent(self, level: int = 0) -> NP:
        """Return a person: a name, a name and another person, a pronoun, or a noun phrase."""
        kind = self.choose("agent")
        if kind == "name":
            return self.named()
        if kind == "couple":
            pair = [self.named(), self.plain("person", "definite", plural=0.1)]
            pair[1].det = "the"
            return NP(parts=pair)
        if kind == "pronoun":
            return self.pronoun()
        return self.filled_out(self.plain("person", plural=0.35), level)

    def filled_out(self, np: NP, level: int) -> NP:
        """Return the noun phrase; in a main clause it may get a modifier and a relative clause."""
        if level == 0 and self.chance(0.42):
            self.modify(np, 1)
        if level == 0 and self.chance(0.22):
            self.relate(np)
        return np

    def subject_for(self, verb: Verb | None, level: int) -> NP:
        """Return a subject that fits a verb, or a predicate adjective if there is no verb."""
        if verb is None:
            personal = self.chance(0.3)
        else:
            personal = verb.classes == {"person"}
            personal = personal or ("person" in verb.classes and self.chance(0.6))
        if personal:
            return self.agent(level)
        classes = (verb or self.pick(DESCRIBABLE)).classes
        return self.filled_out(self.plain(classes, plural=0.35), level)

    def relate(self, np: NP) -> None:
        """Put a relative clause at the end of a noun phrase, if it can take one."""
        if np.owner or np.det == "bare":
            return
        about_subject, classes = self.chance(0.5), np.classes
        verbs = [(verb, None) for verb in fitting("verbs", classes)]
        gaps = verbs if about_subject else object_gaps(classes)
        if not gaps:
            return
        verb, gap = self.pick(gaps)
        if about_subject:
            subject = NP(np.noun, np.plural)
        elif self.chance(0.5):
            subject = self.named()
        else:
            subject = NP(pronoun=self.choose("relative subject"))
        tense = self.base if self.chance(0.7) else "past"
        relative = self.clause(tense, verb, subject, level=2, plain=True, gap=gap)
        np.modifiers = [*np.modifiers, relative]

    def fill(self, clause: Clause, level: int, it: NP | None = None) -> None:
        """Fill the slots of a clause's verb; `it`: the direct object, if it is known already."""
        for slot in clause.verb.slots:
            # The relative pronoun stands for the gap, so an empty noun phrase fills it.
            known = NP() if slot is clause.gap else it if slot.role == "acc" else None
            clause.filled.append((slot, known or self.filler(slot, clause, level)))
        direct = clause.object
        if clause.verb.shifts and direct:
            short = not direct.modifiers
            clause.shifted = bool(direct.pronoun) or (short and self.chance(0.5))

    def onto(self, owner: str) -> NP:
        """Return a surface that something is put on or into."""
        np = self.plain("surface", "definite", owner, plural=0.05)
        english, german = np.noun.place
        return np.after({"in": "into"}.get(english, english), german, "a")

    def filler(self, slot: Slot, clause: Clause, level: int) -> NP:
        """Return the noun phrase that fills a slot."""
        owner = clause.subject.possessive
        if slot.role == "city":
            return self.city("to", "nach")
        if slot.role == "dir":
            return self.plain("place", "definite", owner, plural=0.05).after("to", "zu", "d")
        if slot.role == "loc":
            kind = "any" if not clause.negated and self.chance(0.4) else "definite"
            return self.plain(slot.nouns, kind, owner, plural=0.1).at_place()
        if slot.role == "on":
            return self.onto(owner)
        np = self.object(slot, clause, level)
        return np.after(slot.en, slot.de, slot.case) if slot.en or slot.de else np

    def object(self, slot: Slot, clause: Clause, level: int) -> NP:
        """Return a noun phrase that fills a slot with a case or a preposition."""
        owner, alone = clause.subject.possessive, len(clause.verb.slots) == 1
        if "person" in slot.nouns:
            pronominal = slot.role in {"acc", "to"} or (slot.role == "dat" and alone)
            if self.chance(0.14) and pronominal:
                speaker = ("I", "we")
                return self.pronoun(speaker if clause.subject.pronoun in speaker else ())
            if self.chance(0.15):
                np = self.named()
                same = clause.subject.name is np.name
                return self.plain("person", "definite", owner) if same else np
        negated = "negated" if slot.role == "acc" and alone else "definite"
        np = self.plain(slot.nouns, negated if clause.negated else "any", owner)
        return np if np.det == "any" else self.filled_out(np, level)

    def settle_tense(self, clause: Clause) -> None:
        """Make the English tense natural and unambiguous.

        "They read" is always past, because the present of such a verb becomes progressive.
        """
        verb = clause.verb
        if clause.modal:
            return
        if clause.tense == "pres":
            lasting = verb.stative or clause.adverb in FREQUENT
            progressive = verb.position or verb.en.past_is_base
            if progressive or (not lasting and self.chance(0.4)):
                clause.tense = "prog"
        elif clause.tense == "past" and verb.position and self.chance(0.7):
            clause.tense = "pastprog"

    def adverb_for(self, clause: Clause) -> Any:
        """Return an adverb of frequency or manner, if one reads well."""
        if clause.tense in SIMPLE and self.chance(0.5):
            return self.pick(FREQUENT)
        manners = fitting("adverbs", clause.tense)
        if clause.tense == "perf":
            return manners[0]
        lively = clause.subject.human and not clause.verb.stative and clause.tense in SIMPLE
        return self.pick(manners) if lively else None

    def adverbials(self, clause: Clause, level: int) -> None:
        """Draw adverb, place and time, where they read well."""
        if not clause.negated and not clause.modal and self.chance(0.2):
            clause.adverb = self.adverb_for(clause)
        roles = {slot.role for slot in clause.verb.slots}
        # A place after an English dative would be read as part of it, unlike in German.
        fixed = roles & {"loc", "dir", "on", "city", "dat", "to"} or clause.verb.stative
        movable = clause.subject.human and not clause.negated and not fixed
        if movable and level < 2 and not clause.heavy and self.chance(0.18):
            owner = clause.subject.possessive
            clause.place = self.plain("place", "definite", owner, plural=0.05).at_place()
        self.settle_tense(clause)
        if not clause.adverb and not (clause.modal and clause.tense == "pres"):
            self.date(clause, level)

    def date(self, clause: Clause, level: int) -> None:
        """Draw the time of a clause, in front if it could be misread at the end."""
        times = fitting("times", clause.tense)
        if times and self.chance(0.14 if level else 0.34):
            misread = clause.heavy or clause.negated
            front = level == 0 and (misread or self.chance(0.4))
            if front or not misread:
                clause.time, clause.front = self.pick(times), "time" if front else ""

    def clause(
        self,
        tense: str,
        verb: Verb | None = None,
        subject: NP | None = None,
        level: int = 0,
        plain: bool = False,
        gap: Slot | None = None,
    ) -> Clause:
        """Return a clause with a full verb.

        Args:
            level: 0 main clause, 1 subordinate clause, 2 clause inside a noun phrase; deeper
                clauses are shorter.
            plain: no negation, no modal.
            gap: the slot that a relative pronoun stands for.
        """
        verb = verb or self.pick(AGENTIVE if subject else VERBS)
        subject = subject or self.subject_for(verb, level)
        clause = Clause(subject, verb, tense, gap)
        if not plain:
            self.negate(clause, level)
        self.fill(clause, level)
        self.adverbials(clause, level)
        return clause

    def negate(self, clause: Clause, level: int) -> None:
        """Draw a negation, a modal verb, and "no" before the subject."""
        subject = clause.subject
        negatable = not subject.quantified
        clause.negated = negatable and self.chance(self.negation)
        capable = subject.human and not clause.verb.stative and clause.tense in SIMPLE
        if capable and self.chance(0.14):
            clause.modal = self.choose("modal")
            # "must not" forbids, but "muss nicht" does not.
            if clause.modal == "must" and clause.negated:
                clause.modal = "can"
        if negatable and level == 0 and not clause.negated and subject.noun and self.chance(0.03):
            subject.det, subject.owner, subject.numeral = "no", None, None

    def description(self, tense: str, subject: NP | None, level: int = 0) -> Clause:
        """Return a clause with a predicate adjective."""
        subject = subject or self.subject_for(None, level)
        adjectives = fitting("adjectives", subject.classes) if subject.noun else PERSONAL
        unused = [adjective for adjective in adjectives if adjective not in subject.adjectives]
        adjective = self.pick(unused or PERSONAL)
        clause = Clause(subject, self.verb("copula"), tense, adjective=adjective)
        clause.negated = not subject.quantified and self.chance(0.15)
        if adjective.comparative[0] and self.chance(0.15) and not clause.negated:
            clause.than = self.plain(subject.classes, "definite")
        elif self.chance(0.35):
            clause.degree = self.pick(entries("degrees"))
        often = clause.verb.en.base == "be" and not clause.negated and tense in SIMPLE
        if often and self.chance(0.1):
            clause.adverb = self.pick(FREQUENT)
        return clause

    def any_clause(self, tense: str, level: int = 0, subject: NP | None = None) -> Clause:
        """Return a clause with a full verb or with a predicate adjective."""
        if self.chance(0.15):
            return self.description(tense, subject, level)
        return self.clause(tense, subject=subject, level=level)
