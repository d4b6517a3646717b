"""Draw sentences: one or two clauses, reported clauses, questions, long subjects."""

from __future__ import annotations

from nmtkit.demo.clauses import AGENTIVE, DESCRIBABLE, FREQUENT, Clauses
from nmtkit.demo.constituents import NP, Clause
from nmtkit.demo.lexicon import Noun, entries, fitting

THIRD_PERSON = {"he", "she", "they"}
PLACES = {"loc", "dir", "on", "city"}
FAR = "key text kin owner part plant surface"  # noun classes that go with long modifiers


class Sentences(Clauses):
    """Draws the sentences of documents; persons and tense stay the same in a document."""

    def open_document(self) -> None:
        """Choose the persons and the tense of the next document."""
        names = self.shuffled(entries("names"))
        self.cast = names[: self.between(2, 4)]
        self.base = "past" if self.chance(0.6) else "pres"

    def sentence(self, *subject: NP, kind: str = "sentence") -> Clause:
        """Return a sentence of any of the lexicon's kinds; each kind is a method of this class."""
        clause: Clause = getattr(self, self.choose(kind))(*subject)
        return clause

    def simple(self) -> Clause:
        """Return one main clause."""
        clause = self.any_clause(self.choose(f"tense {self.base}"))
        if not clause.front and self.chance(0.06):
            clause.lead = "but"
        return clause

    def with_adjunct(self) -> Clause:
        """Return a main clause and an adverbial clause, in either order."""
        tense = "fut" if self.base == "pres" and self.chance(0.25) else self.base
        conjunction = self.choose(f"adjunct {tense}")
        inner = self.adverbial_clause(conjunction, "pres" if tense == "fut" else tense)
        pronoun = inner.subject.anaphor
        same = NP(pronoun=pronoun) if self.chance(0.5) and pronoun else None
        main = self.any_clause(tense, subject=same)
        main.time, main.dependent, main.front = None, (conjunction, inner), ""
        if self.chance(0.45):
            main.front = "sub"
            inner.time = None
        elif main.subject.pronoun == pronoun and pronoun in THIRD_PERSON:
            main.subject, inner.subject = inner.subject, main.subject
        return main

    def adverbial_clause(self, conjunction: str, tense: str) -> Clause:
        """Return a clause that suits a conjunction."""
        if conjunction in {"because", "although", "if", "when"}:
            return self.any_clause(tense, level=1)
        # "before she did not sleep" is grammatical but makes no sense
        inner = self.clause("plup" if conjunction == "after" else tense, level=1, plain=True)
        if inner.adverb in FREQUENT:
            inner.adverb = None
        if inner.tense == "prog" and conjunction != "while" and not inner.verb.en.past_is_base:
            inner.tense, inner.time = "pres", None  # "before she eats", not "before she is eating"
        return inner

    def reported(self) -> Clause:
        """Return a main clause with a complement clause ("she says that", "he asks whether")."""
        verb = self.pick(fitting("verbs", "that if"))
        kind = self.pick(sorted(verb.classes, reverse=True))
        main = Clause(self.agent(), verb, self.base)
        quantified = main.subject.quantified
        unknown = kind == "if" and verb.en.base == "know"
        main.negated = unknown or (not quantified and self.chance(0.1))
        if quantified and main.negated:
            main.subject = self.named()
        inner = self.any_clause(self.choose(f"reported {self.base}"), level=1)
        question = self.choose("if")
        main.dependent = (question if kind == "if" else "that", inner)
        return main

    def controlled(self) -> Clause:
        """Return a main clause with an infinitive ("she tries to", "er versucht, … zu")."""
        verb = self.pick(fitting("verbs", "to"))
        main = Clause(self.agent(), verb, self.choose(f"started {self.base}"))
        if main.subject.heavy:
            main.subject.modifiers = ()
        verb = self.pick([verb for verb in AGENTIVE if not verb.stative])
        inner = self.clause("pres", verb, main.subject, level=2, plain=True)
        inner.tense, inner.adverb, inner.time = "pres", None, None
        main.dependent = ("to", inner)
        return main

    def coordinated(self, anaphoric: bool = False) -> Clause:
        """Return two main clauses.

        Args:
            anaphoric: the second subject is a pronoun for the first subject.
        """
        tense = self.choose(f"started {self.base}")
        first = self.any_clause(tense, 1, self.named() if anaphoric else None)
        first.time = None
        pronoun = first.subject.anaphor
        same = NP(pronoun=pronoun) if (anaphoric or self.chance(0.6)) and pronoun else None
        second = self.any_clause(tense, 1, same)
        conjunction = self.choose("coordination")
        if conjunction == "and" and self.chance(0.4):
            second.front = "then"
        first.second = (conjunction, second)
        return first

    def long_subject(self, levels: int | None = None, plain: bool = False) -> Clause:
        """Return a clause whose subject has modifiers between its noun and the verb.

        Args:
            levels: depth of modifiers, by default 1 to 3.
            plain: no negation, no accusative.
        """
        levels = self.between(1, 3) if levels is None else levels
        noun = self.pick(fitting("nouns", FAR) if self.chance(0.5) else DESCRIBABLE)
        np = self.plain(noun.classes, plural=0.5)
        np.owner = None
        self.modify(np, levels)
        if levels > 1 and self.chance(0.6):
            self.relate(np)
        verbs = fitting("verbs", np.classes)
        if plain:
            verbs = [verb for verb in verbs if all(slot.role != "acc" for slot in verb.slots)]
        if verbs and self.chance(0.7):
            return self.clause(self.base, self.pick(verbs), np, 1, plain)
        return self.description(self.base, np, 1)

    def about(self, noun: Noun) -> Clause:
        """Return a sentence whose subject is a given noun."""
        np = self.plain(noun.classes, "definite", plural=0.0)
        np.noun, np.owner, np.adjectives = noun, None, []
        self.describe(np)
        verbs = fitting("verbs", noun.classes)
        tense = self.choose(f"tense {self.base}")
        return self.clause(tense, self.pick(verbs), np) if verbs else self.description(tense, np)

    def asked(self) -> Clause:
        """Return a question."""
        clause = self.clause(self.base, level=1, plain=True)
        clause.adverb = None
        clause.question = self.choose("question")
        if clause.question == "where":
            placed = clause.verb.stative or PLACES & {slot.role for slot in clause.verb.slots}
            clause.place, clause.question = (clause.place, "yn") if placed else (None, "where")
        if clause.question != "yn":
            clause.time = None
        return clause
