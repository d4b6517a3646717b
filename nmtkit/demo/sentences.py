"""Drawing sentences: one clause, two clauses, reported ones, questions, and those about "it".

German says er, sie or es for "it" by the gender of the noun it stands for. The antecedent is the
only singular thing in its sentence. The sentence with "it" is drawn without looking at the
antecedent's gender, so only the sentence before decides the pronoun.
"""

from __future__ import annotations

from nmtkit.demo.clauses import Clauses
from nmtkit.demo.constituents import NP, Clause
from nmtkit.demo.lexicon import Noun, Verb, Word, entries, fitting
from nmtkit.demo.nominals import weighted

CONJUNCTIONS = {
    "past": weighted(
        "because 2, although 2, while, before, when! 2, until, after, as soon as",
    ),
    "pres": weighted("because 2, although, when 2, if 2, while, before"),
    "fut": weighted("if, when, as soon as, because, before"),
}
THIRD_PERSON = {"he", "she", "they"}
PLACES = {"loc", "dir", "on", "city"}
FAR = "key text kin owner part plant surface"
CARRYING = {
    *("sell", "find", "lose", "forget", "need", "steal", "choose", "keep", "describe", "look for"),
    *("look at", "bring along", "take along", "wrap up", "throw away"),
}
ANTECEDENT_VERBS = CARRYING | {"buy", "give", "show", "send", "lend", "bring"}
IT_VERBS = CARRYING | {"put back", "send back", "put", "give back"}
IT_CONJUNCTIONS = ("because", "because", "although", "although")
BRIEF_VERBS = {"laugh", "smile", "cry", "give up", "come back", "break down"}


class Sentences(Clauses):
    """Draws the sentences of documents, whose persons and tense stay."""

    def __init__(self, seed: int, stream: int = 0) -> None:
        super().__init__(seed, stream)
        self.carriers, self.handlers = self.called(ANTECEDENT_VERBS), self.called(IT_VERBS)
        self.brief = self.called(BRIEF_VERBS)
        self.gone, self.lie, self.belong = self.called({"disappear", "lie", "belong to"})
        self.things = {
            gender: [noun for noun in fitting("nouns", "thing") if noun.gender == gender]
            for gender in "mfn"
        }

    def called(self, names: set[str]) -> list[Verb]:
        """Return the verbs that have one of some English names."""
        return [verb for verb in self.verbs if verb.english_name in names]

    def open_document(self) -> None:
        """Choose persons and tense of the next document."""
        names = self.shuffled(entries("names"))
        self.cast = names[: self.between(2, 4)]
        self.base = "past" if self.chance(0.6) else "pres"

    def anaphor(self, subject: NP) -> NP | None:
        """Return the pronoun that takes up a subject, where there is one beyond doubt."""
        name = subject.name and ("she" if "female" in subject.name.classes else "he")
        persons = "they" if subject.agreement == 2 and subject.human else ""
        pronoun = subject.pronoun or name or persons
        return NP(pronoun=pronoun) if pronoun else None

    def tense(self) -> str:
        """Return a tense for a main clause."""
        roll = self.random()
        if roll < 0.72:
            return self.base
        if roll < 0.84:
            return "perf"
        return "fut" if self.base == "pres" else "past"

    def sentence(self) -> Clause:
        """Return a sentence of any kind."""
        kinds = (
            (0.26, self.simple),
            (0.49, self.with_adjunct),
            (0.66, self.reported),
            (0.74, self.controlled),
            (0.86, self.coordinated),
            (0.96, self.long_subject),
            (1, self.asked),
        )
        roll = self.random()
        return next(draw for limit, draw in kinds if roll < limit)()

    def simple(self) -> Clause:
        """Return one main clause."""
        clause = self.any_clause(self.tense())
        if not clause.front and self.chance(0.06):
            clause.lead = "but"
        return clause

    def with_adjunct(self) -> Clause:
        """Return a main clause and an adverbial clause, in either order."""
        tense = "fut" if self.base == "pres" and self.chance(0.25) else self.base
        conjunction = self.pick(CONJUNCTIONS[tense])
        inner = self.adverbial_clause(conjunction, "pres" if tense == "fut" else tense)
        same = self.anaphor(inner.subject)
        main = self.any_clause(tense, subject=same if self.chance(0.5) else None)
        main.time, main.adjunct, main.front = None, (conjunction, inner), ""
        if self.chance(0.45):
            main.front = "sub"
            inner.time = None
        elif same and main.subject.pronoun == same.pronoun and same.pronoun in THIRD_PERSON:
            main.subject, inner.subject = inner.subject, main.subject
        return main

    def adverbial_clause(self, conjunction: str, tense: str) -> Clause:
        """Return a clause that suits a conjunction."""
        if conjunction in {"because", "although", "if", "when"}:
            return self.any_clause(tense, level=1)
        # "before she did not sleep" is grammatical and makes no sense
        inner = self.clause("plup" if conjunction == "after" else tense, level=1, plain=True)
        if inner.adverb and "frequent" in inner.adverb.classes:
            inner.adverb = None
        unambiguous = inner.verb.en.base != inner.verb.en.finite[3]
        if inner.tense == "prog" and conjunction != "while" and unambiguous:
            inner.tense, inner.time = "pres", None  # "before she eats", not "before she is eating"
        return inner

    def reported(self) -> Clause:
        """Return saying, knowing, asking: a main clause with a complement clause."""
        verb = self.pick(fitting("verbs", "that if"))
        kind = self.pick(sorted(verb.classes, reverse=True))
        main = Clause(self.agent(), verb, self.base)
        quantified = main.subject.quantified
        unknown = kind == "if" and verb.en.base == "know"
        main.negated = unknown or (not quantified and self.chance(0.1))
        if quantified and main.negated:
            main.subject = self.named()
        past = self.base == "past"
        tenses = ("past", "past", "plup") if past else ("pres", "pres", "past", "perf", "fut")
        inner = self.any_clause(self.pick(tenses), level=1)
        question = self.pick(("if?", "whether"))
        main.content = (question if kind == "if" else "that", inner)
        return main

    def controlled(self) -> Clause:
        """Return trying, promising, forgetting: a main clause with a zu-infinitive."""
        verb = self.pick(fitting("verbs", "to"))
        main = Clause(self.agent(), verb, self.pick((self.base, self.base, "perf")))
        if main.subject.heavy:
            main.subject.modifiers = ()
        verb = self.pick([verb for verb in self.agents if not verb.stative])
        inner = self.clause("pres", verb, main.subject, level=2, plain=True)
        inner.tense, inner.adverb, inner.time = "pres", None, None
        main.content = ("to", inner)
        return main

    def coordinated(self, anaphoric: bool = False) -> Clause:
        """Return two main clauses.

        Args:
            anaphoric: True if the second clause's subject takes up the first one's.
        """
        tense = self.pick((self.base, self.base, "perf"))
        first = self.any_clause(tense, 1, self.named() if anaphoric else None)
        first.time = None
        same = self.anaphor(first.subject)
        second = self.any_clause(tense, 1, same if anaphoric or self.chance(0.6) else None)
        conjunction = self.pick(("and", "and", "but"))
        if conjunction == "and" and self.chance(0.4):
            second.front = "then"
        first.second = (conjunction, second)
        return first

    def long_subject(self, levels: int | None = None, plain: bool = False) -> Clause:
        """Return a clause whose subject carries modifiers, so that its verb is far from its head.

        Args:
            levels: depth of modifiers, by default 1 to 3. plain: no negation, no accusative.
        """
        levels = self.between(1, 3) if levels is None else levels
        noun = self.pick(fitting("nouns", FAR) if self.chance(0.5) else self.describable)
        np = self.plain(noun.classes, plural=0.5)
        np.owner = None
        self.modify(np, levels)
        if levels > 1 and self.chance(0.6):
            self.relate(np)
        verbs = fitting("verbs", np.noun.classes)
        if plain:
            verbs = [verb for verb in verbs if all(slot.role != "acc" for slot in verb.slots)]
        if verbs and self.chance(0.7):
            return self.clause(self.base, self.pick(verbs), np, 1, plain)
        return self.description(self.base, np, 1)

    def about(self, noun: Noun) -> Clause:
        """Return a sentence that has a noun as its subject."""
        np = self.plain(noun.classes, "definite", plural=0.0)
        np.noun, np.owner, np.adjectives = noun, None, []
        self.describe(np)
        verbs = fitting("verbs", noun.classes)
        tense = self.tense()
        return self.clause(tense, self.pick(verbs), np) if verbs else self.description(tense, np)

    def asked(self) -> Clause:
        """Return a question."""
        clause = self.clause(self.base, level=1, plain=True)
        clause.adverb = None
        clause.question = self.pick(("yn", "why", "when?", "where"))
        if clause.question == "where":
            placed = clause.verb.stative or PLACES & {slot.role for slot in clause.verb.slots}
            clause.place, clause.question = (clause.place, "yn") if placed else (None, "where")
        if clause.question != "yn":
            clause.time = None
        return clause

    def someone(self) -> NP:
        """Return a person without anything else in the phrase that "it" could mean."""
        if self.chance(0.55):
            return self.named()
        np = self.plain("person", plural=0.25)
        while np.noun.gender == "n":  # a child, a girl: German says es of them, too
            np = self.plain("person", plural=0.25)
        np.det = "the" if np.det in {"his", "her", "their"} else np.det
        return np

    def short_times(self, clause: Clause) -> list[Word]:
        """Return the time adverbials of a clause's tense that go with "it"."""
        return [time for time in self.times_of(clause) if "it" in time.classes]

    def antecedent(self, gender: str) -> Clause:
        """Return a sentence that brings in one thing of a gender, and nothing else for "it"."""
        verb = self.pick(self.carriers)
        clause = Clause(self.someone(), verb, self.base if self.chance(0.8) else "perf")
        subject = clause.subject
        for slot in verb.slots:
            if "thing" in slot.nouns:
                thing = self.pick(self.things[gender])
                determiners = ("the", "the", "a", "a", "this", self.owner_of(subject))
                np = NP(thing, det=self.pick(determiners))
                self.describe(np, 0.4)
                clause.shifted = verb.shifts and self.chance(0.5)
            else:
                np = self.someone()
                while np.name is not None and np.name is subject.name:
                    np = self.someone()
            clause.filled.append((slot, np))
        self.settle_tense(clause)
        times = self.short_times(clause)
        if times and self.chance(0.35):
            clause.time = self.pick(times)
            clause.front = "time" if self.chance(0.5) else ""
        return clause

    def about_it(self, gender: str) -> Clause:
        """Return a sentence about the thing of the sentence before."""
        roll = self.random()
        it = NP(pronoun="it", gender=gender)
        if roll < 0.28:
            return self.it_is(it)
        return self.it_lies(it) if roll < 0.50 else self.it_undergoes(it)

    def it_is(self, it: NP, level: int = 0) -> Clause:
        """Return "It was very heavy" and the like, as a main or a subordinate clause."""
        verb = self.copulas[self.pick(("be", "be", "be", "look"))]
        clause = Clause(it, verb, self.base)
        clause.adjective = self.pick(fitting("adjectives", "carried"))
        clause.degree = self.pick(entries("degrees")) if self.chance(0.6) else None
        clause.negated = self.chance(0.15)
        if level:
            return clause
        if self.chance(0.45):
            conjunction, subject = self.pick(("and", "but")), self.named()
            second = self.clause(self.base, self.pick(self.brief), subject, level=2)
            clause.second = (conjunction, second)
        elif self.chance(0.5):
            past = self.base == "past"
            times = self.short_times(clause) if past else self.times_of(clause)
            clause.time, clause.front = self.pick(times), "time"
        return clause

    def it_lies(self, it: NP) -> Clause:
        """Return where it lies, whose it is, that it is gone."""
        verb = self.pick((self.lie, self.lie, self.belong, self.gone))
        gone = verb is self.gone
        clause = Clause(it, verb, "perf" if gone and self.chance(0.5) else self.base)
        clause.negated = not gone and self.chance(0.15)
        self.fill(clause, 1)
        if gone and self.chance(0.5):
            conjunction = self.pick(IT_CONJUNCTIONS)
            reason = self.clause(self.base, subject=self.someone(), level=2, plain=True)
            clause.adjunct = (conjunction, reason)
        frequent = verb is not self.belong and not clause.negated and self.chance(0.3)
        if frequent and clause.tense == self.base:
            clause.adverb = self.pick(fitting("adverbs", "frequent"))
        self.settle_tense(clause)
        return clause

    def it_undergoes(self, it: NP) -> Clause:
        """Return what somebody does with it."""
        verb = self.pick(self.handlers)
        clause = Clause(self.someone() if self.chance(0.7) else self.pronoun(), verb, self.base)
        roll = self.random()
        if roll < 0.2 and not verb.stative:
            clause.modal = self.pick(("can", "must", "want"))
        elif roll < 0.35:
            clause.tense = "perf"
        elif roll < 0.45 and self.base == "pres":
            clause.tense = "fut"
        negatable = not clause.subject.quantified and clause.modal != "must"
        clause.negated = negatable and self.chance(0.15)
        for slot in verb.slots:
            owner = self.owner_of(clause.subject)
            filler = it if slot.role == "acc" else self.filler(slot, clause, owner, 2)
            # a surface is drawn again, as nobody's but "my": older corpora did, and theirs is ours
            filler = self.onto("my") if slot.role == "on" else filler
            clause.filled.append((slot, filler))
        clause.shifted = verb.shifts
        self.settle_tense(clause)
        roll = self.random()
        timed = clause.tense in {"past", "pres", "prog", "fut"} and not clause.modal
        if roll < 0.35:
            clause.adjunct = (self.pick(IT_CONJUNCTIONS), self.it_is(it, level=1))
        elif roll < 0.6 and timed:
            clause.time = self.pick(self.times_of(clause))
            clause.front = "time" if clause.negated or self.chance(0.5) else ""
        return clause
