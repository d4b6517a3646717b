"""Drawing sentences: one clause, two clauses, reported and controlled ones, questions, and subjects far from their verbs."""

from __future__ import annotations

from nmtkit.demo.grammar import FREQUENT, QUANTIFIED, Grammar
from nmtkit.demo.lexicon import Noun
from nmtkit.demo.phrases import NP, Clause

PAST_CONJUNCTIONS = ("because", "because", "although", "although", "while", "before", "when ", "when ", "until", "after", "as soon as")
PRESENT_CONJUNCTIONS = ("because", "because", "although", "when", "when", "if", "if", "while", "before")
FUTURE_CONJUNCTIONS = ("if", "when", "as soon as", "because", "before")


class Sentences(Grammar):
    """Draws whole sentences out of clauses."""

    def anaphor(self, subject: NP) -> NP | None:
        """The pronoun that takes up a subject, where there is one beyond doubt."""
        if subject.pronoun in {"I", "we", "he", "she", "they"}:
            return self.pronoun(subject.pronoun)
        if subject.name:
            return self.pronoun("she" if "female" in subject.name.tags else "he")
        if subject.agreement == 2 and (subject.parts or (subject.noun and "person" in subject.noun.classes)):
            return self.pronoun("they")
        return None

    def tense(self) -> str:
        """A tense for a main clause."""
        roll = self.draw.random()
        if roll < 0.72:
            return self.base
        if roll < 0.84:
            return "perf"
        return "fut" if self.base == "pres" else "past"

    def sentence(self) -> Clause:
        """A sentence of any kind."""
        roll = self.draw.random()
        if roll < 0.26:
            return self.simple()
        if roll < 0.49:
            return self.with_adjunct()
        if roll < 0.66:
            return self.reported()
        if roll < 0.74:
            return self.controlled()
        if roll < 0.86:
            return self.coordinated()
        return self.long_subject(self.draw.between(1, 3)) if roll < 0.96 else self.asked()

    def simple(self) -> Clause:
        """One main clause."""
        clause = self.any_clause(self.tense())
        if not clause.front and self.draw.chance(0.06):
            clause.lead = "but"
        return clause

    def with_adjunct(self) -> Clause:
        """A main clause and an adverbial clause, in either order."""
        draw, base = self.draw, self.base
        tense = "fut" if base == "pres" and draw.chance(0.25) else base
        conjunction = draw.pick({"past": PAST_CONJUNCTIONS, "pres": PRESENT_CONJUNCTIONS, "fut": FUTURE_CONJUNCTIONS}[tense])
        inner_tense = "plup" if conjunction == "after" else "pres" if tense == "fut" else base
        if conjunction in {"because", "although", "if", "when"}:
            inner = self.any_clause(inner_tense, level=1)
        else:  # "before she did not sleep" is grammatical and makes no sense
            inner = self.clause(inner_tense, level=1, plain=True)
            inner.adverb = inner.adverb if inner.adverb is None or inner.adverb.en not in FREQUENT else None
            if inner.tense == "prog" and conjunction != "while" and inner.verb.en.base != inner.verb.en.past[0]:
                inner.tense, inner.time = "pres", None  # "before she eats", not "before she is eating"
        same = self.anaphor(inner.subject)
        main = self.any_clause(tense, subject=same if draw.chance(0.5) else None)
        main.time, main.adjunct, main.front = None, (conjunction, inner), ""
        if draw.chance(0.45):
            main.front = "sub"
            inner.time = None
        elif same and main.subject.pronoun == same.pronoun and same.pronoun in {"he", "she", "they"}:
            main.subject, inner.subject = inner.subject, main.subject
        return main

    def reported(self) -> Clause:
        """Saying, knowing, asking: a main clause with a complement clause."""
        draw = self.draw
        verb = draw.pick([v for v in self.words.clause_verbs if "to" not in v.clauses])
        kind = draw.pick(verb.clauses)
        main = Clause(self.agent(1), verb, self.base)
        quantified = main.subject.noun is not None and main.subject.det in QUANTIFIED
        main.negated = (kind == "if" and verb.en.base == "know") or (not quantified and draw.chance(0.1))
        if quantified and main.negated:
            main.subject = self.named()
        inner_tense = draw.pick(("past", "past", "plup")) if self.base == "past" else draw.pick(("pres", "pres", "past", "perf", "fut"))
        inner = self.any_clause(inner_tense, level=1)
        main.content = ({"if": draw.pick(("if ", "whether"))}.get(kind, "that"), inner)
        return main

    def controlled(self) -> Clause:
        """Trying, promising, forgetting: a main clause with a zu-infinitive."""
        draw = self.draw
        verb = draw.pick([v for v in self.words.clause_verbs if "to" in v.clauses])
        main = Clause(self.agent(1), verb, draw.pick((self.base, self.base, "perf")))
        if main.subject.heavy:
            main.subject.modifiers = []
        inner = self.clause("pres", verb=draw.pick([v for v in self._agents if not v.stative]), subject=main.subject, level=2, plain=True)
        inner.tense, inner.adverb, inner.time = "pres", None, None
        main.content = ("to", inner)
        return main

    def coordinated(self, anaphoric: bool = False) -> Clause:
        """Two main clauses; `anaphoric`: the second one's subject takes up the first one's."""
        draw = self.draw
        tense = draw.pick((self.base, self.base, "perf"))
        first = self.any_clause(tense, level=1, subject=self.named() if anaphoric else None)
        first.time = None
        same = self.anaphor(first.subject)
        second = self.any_clause(tense, level=1, subject=same if anaphoric or draw.chance(0.6) else None)
        conjunction = draw.pick(("and", "and", "but"))
        if conjunction == "and" and not second.front and draw.chance(0.4):
            second.front = "then"
        first.second = (conjunction, second)
        return first

    def long_subject(self, levels: int, plain: bool = False) -> Clause:
        """A clause whose subject carries modifiers, so that its verb is far from its head."""
        draw = self.draw
        if draw.chance(0.5):
            noun: Noun = draw.pick(self.words.nouns_of(frozenset({"key", "text", "kin", "owner", "part", "plant", "surface"})))
        else:
            noun = draw.pick(self._describable)
        np = self.plain(noun.classes, plural=0.5)
        np.owner = None
        if levels:
            self.modify(np, levels)
        if levels > 1 and draw.chance(0.6):
            self.relate(np)
        assert np.noun is not None
        verbs = [verb for verb in self._by_subject[np.noun] if not plain or not any(c.role == "acc" for c in verb.complements)]
        if verbs and draw.chance(0.7):
            return self.clause(self.base, verb=draw.pick(verbs), subject=np, level=1, plain=plain)
        return self.description(self.base, subject=np, level=1)

    def about(self, noun: Noun) -> Clause:
        """A sentence that has a given noun as its subject."""
        np = self.plain(noun.classes, "definite", plural=0.0)
        np.noun, np.owner, np.adjectives = noun, None, []
        self.describe(np)
        verbs = self._by_subject[noun]
        return self.clause(self.tense(), verb=self.draw.pick(verbs), subject=np) if verbs else self.description(self.tense(), subject=np)

    def asked(self) -> Clause:
        """A question."""
        draw = self.draw
        clause = self.clause(self.base, level=1, plain=True, modals=False)
        clause.adverb, clause.front = None, ""
        clause.question = draw.pick(("yn", "why", "when", "where"))
        roles = {complement.role for complement in clause.verb.complements}
        if clause.question == "where" and (roles & {"loc", "dir", "on", "city"} or clause.verb.stative):
            clause.question = "yn"
        if clause.question == "where":
            clause.place = None
        if clause.question != "yn":
            clause.time = None
        return clause
