"""Drawing documents' sentences about "it": an antecedent sentence, then a sentence whose pronoun only the antecedent decides.

German says er, sie or es for "it" by the gender of the noun it stands for. The antecedent is the only singular thing in its
sentence; the sentence with "it" is drawn without looking at the antecedent's gender, so nothing in it gives the pronoun away.
"""

from __future__ import annotations

from nmtkit.demo.draw import Draw
from nmtkit.demo.grammar import FREQUENT
from nmtkit.demo.lexicon import Verb
from nmtkit.demo.nominals import PERSON, SURFACE
from nmtkit.demo.phrases import NP, PP, Clause, Predicate
from nmtkit.demo.sentences import Sentences

# adjectives and verbs that suit whatever can be carried about
IT_ADJECTIVES = {
    *("big", "small", "heavy", "light", "old", "new", "beautiful", "ugly"),
    *("expensive", "cheap", "dirty", "clean", "strange", "valuable", "practical"),
}
CARRYING = {
    *("sell", "find", "lose", "forget", "need", "steal", "choose", "keep", "describe", "look for"),
    *("look at", "bring along", "take along", "wrap up", "throw away"),
}
ANTECEDENT_VERBS = CARRYING | {"buy", "give", "show", "send", "lend", "bring"}
IT_VERBS = CARRYING | {"put back", "send back", "put", "give back"}
IT_CONJUNCTIONS = ("because", "because", "although", "although")
BRIEF_VERBS = {"laugh", "smile", "cry", "give up", "come back", "break down"}
TIMES = {
    *("yesterday", "last week", "last year", "two days ago", "a month ago"),
    *("every day", "every evening", "today", "tomorrow", "next week", "on Monday"),
}


class Storyteller(Sentences):
    """A grammar that keeps a document together: its persons, its tense, and what "it" stands for."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self._carriers = [v for v in self.words.verbs if v.english_name in ANTECEDENT_VERBS and any("thing" in c.classes for c in v.complements)]
        self._handlers = [v for v in self.words.verbs if v.english_name in IT_VERBS and any("thing" in c.classes for c in v.complements)]
        by_name = {v.english_name: v for v in self.words.verbs}
        self._lie, self._belong, self._disappear = (by_name[name] for name in ("lie", "belong to", "disappear"))
        self._brief = [v for v in self._agents if not v.complements and v.english_name in BRIEF_VERBS]
        self._fitting = [a for a in self.words.adjectives if a.en in IT_ADJECTIVES]

    def open_document(self) -> None:
        """Choose persons and tense of the next document."""
        names = self.draw.shuffled(self.words.names)
        self.cast = names[: self.draw.between(2, 4)]
        self.base = "past" if self.draw.chance(0.6) else "pres"

    def it(self, gender: str) -> NP:
        """The pronoun "it" for an antecedent of a gender."""
        np = NP()
        np.pronoun, np.gender = "it", gender
        return np

    def someone(self) -> NP:
        """A person without anything else in the phrase that "it" could mean."""
        draw = self.draw
        if draw.chance(0.55):
            return self.named()
        np = self.plain(PERSON, plural=0.25)
        while np.noun and np.noun.gender == "n":  # a child, a girl: German says es of them, too
            np = self.plain(PERSON, plural=0.25)
        np.det = "the" if np.det in {"his", "her", "their"} else np.det
        return np

    def antecedent(self, gender: str) -> Clause:
        """A sentence that brings in one thing of a gender, and nothing else that "it" could stand for."""
        draw = self.draw
        verb: Verb = draw.pick(self._carriers)
        clause = Clause(self.someone(), verb, self.base if draw.chance(0.8) else "perf")
        for complement in verb.complements:
            if "thing" in complement.classes:
                np = NP(draw.pick(self.words.things[gender]), 0, draw.pick(("the", "the", "a", "a", "this", self.owner_of(clause.subject))))
                self.describe(np, 0.4)
                clause.shifted = bool(verb.particle) and not verb.fixed and draw.chance(0.5)
            else:
                np = self.someone()
                while np.name is not None and np.name is clause.subject.name:
                    np = self.someone()
            clause.filled.append((complement, np))
        self.settle_tense(clause)
        times = [time for time in self.words.times_of(clause.tense) if time.en in TIMES] if clause.tense != "perf" else []
        if times and draw.chance(0.35):
            clause.time = draw.pick(times)
            clause.front = "time" if draw.chance(0.5) else ""
        return clause

    def about_it(self, gender: str) -> Clause:
        """A sentence about the thing of the sentence before."""
        roll = self.draw.random()
        if roll < 0.28:
            return self.it_is(gender)
        if roll < 0.50:
            return self.it_lies(gender)
        return self.it_undergoes(gender)

    def it_is(self, gender: str, level: int = 0) -> Clause:
        """ "It was very heavy" and the like, as a clause of its own or a subordinate one."""
        draw = self.draw
        clause = Clause(self.it(gender), self.words.copulas[draw.pick(("be", "be", "be", "look"))], self.base)
        clause.predicate = Predicate(draw.pick(self._fitting), draw.pick(self.words.degrees) if draw.chance(0.6) else None)
        clause.negated = draw.chance(0.15)
        if level == 0 and draw.chance(0.45):
            clause.second = (draw.pick(("and", "but")), self.clause(self.base, subject=self.named(), verb=draw.pick(self._brief), level=2))
        elif level == 0 and draw.chance(0.5):
            clause.time, clause.front = draw.pick([t for t in self.words.times_of(self.base) if t.en in TIMES or self.base == "pres"]), "time"
        return clause

    def it_lies(self, gender: str) -> Clause:
        """Where it lies, whose it is, that it is gone."""
        draw = self.draw
        verb = draw.pick((self._lie, self._lie, self._belong, self._disappear))
        clause = Clause(self.it(gender), verb, "perf" if verb is self._disappear and draw.chance(0.5) else self.base)
        clause.negated = verb is not self._disappear and draw.chance(0.15)
        self.fill(verb, clause, 1)
        if verb is self._disappear and draw.chance(0.5):
            clause.adjunct = (draw.pick(IT_CONJUNCTIONS), self.clause(self.base, subject=self.someone(), level=2, plain=True))
        if verb is not self._belong and not clause.negated and draw.chance(0.3) and clause.tense == self.base:
            clause.adverb = draw.pick([f for f in self.words.frequencies if f.en in FREQUENT])
        self.settle_tense(clause)
        return clause

    def it_undergoes(self, gender: str) -> Clause:
        """What somebody does with it."""
        draw = self.draw
        verb = draw.pick(self._handlers)
        clause = Clause(self.someone() if draw.chance(0.7) else self.pronoun(draw.pick(("I", "we", "he", "she", "they"))), verb, self.base)
        roll = draw.random()
        quantified = clause.subject.noun is not None and clause.subject.det not in {"the", "this", "a", "my", "our", "his", "her"}
        if roll < 0.2 and not verb.stative:
            clause.modal = draw.pick(("can", "must", "want"))
        elif roll < 0.35:
            clause.tense = "perf"
        elif roll < 0.45 and self.base == "pres":
            clause.tense = "fut"
        clause.negated = not quantified and clause.modal != "must" and draw.chance(0.15)
        for complement in verb.complements:
            filler: NP | PP = self.it(gender) if complement.role == "acc" else self.filler(complement, clause, self.owner_of(clause.subject), 2)
            if complement.role == "on":
                np = self.plain(SURFACE, "definite", "my", plural=0.05)
                assert np.noun is not None
                filler = PP({"in": "into"}.get(np.noun.loc[0], np.noun.loc[0]), np.noun.loc[1], "a", np)
            clause.filled.append((complement, filler))
        clause.shifted = bool(verb.particle) and not verb.fixed
        self.settle_tense(clause)
        roll = draw.random()
        if roll < 0.35:
            clause.adjunct = (draw.pick(IT_CONJUNCTIONS), self.it_is(gender, level=1))
        elif roll < 0.6 and clause.tense in {"past", "pres", "prog", "fut"} and not clause.modal:
            clause.time = draw.pick(self.words.times_of(clause.tense))
            clause.front = "time" if clause.negated or draw.chance(0.5) else ""
        return clause
