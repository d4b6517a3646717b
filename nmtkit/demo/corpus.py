"""Draw documents with sentences about "it", and write the splits as text files.

German says er, sie or es for "it" by the gender of the noun it stands for. The antecedent is the
only singular thing in its sentence. The sentence with "it" is drawn without regard to the
antecedent's gender, so only the previous sentence decides the pronoun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nmtkit.demo.clauses import FREQUENT
from nmtkit.demo.constituents import NP, Clause
from nmtkit.demo.languages import ENGLISH, GERMAN
from nmtkit.demo.lexicon import Word, entries, fitting
from nmtkit.demo.realise import leaves, text
from nmtkit.demo.sentences import Sentences
from nmtkit.files import writing


class Pair:
    """A sentence in both languages: its clause, both trees and both texts."""

    def __init__(self, clause: Clause) -> None:
        self.clause = clause
        self.en, self.de = ENGLISH.sentence(clause), GERMAN.sentence(clause)
        self.words = leaves(self.de)
        self.source, self.target = self.sides = text(leaves(self.en)), text(self.words)


class Writer(Sentences):
    """Draws documents, without the sentences that other splits hold.

    Args:
        held: English and German sentences that must not be drawn.
    """

    def __init__(self, seed: int, stream: int, held: set[str]) -> None:
        super().__init__(seed, stream)
        self.held = held
        self.genders: list[str] = []

    def pair(self, draw: Callable[..., Clause], *gender: str) -> Pair:
        """Return a pair of which neither sentence is in `held`.

        Raises: RuntimeError if 200 draws give no such pair.
        """
        for _ in range(200):
            pair = Pair(draw(*gender))
            if self.held.isdisjoint(pair.sides):
                return pair
        raise RuntimeError("the demo grammar has run out of sentences that no other split holds")

    def antecedent_and_it(self) -> list[Pair]:
        """Return a sentence that introduces a thing, and one about "it"; genders are balanced."""
        self.genders = self.genders or self.shuffled("mfn")
        gender = self.genders.pop()
        return [self.pair(self.antecedent, gender), self.pair(self.about_it, gender)]

    def document(self, length: int) -> list[Pair]:
        """Return a document of `length` sentences, one to three of which contain "it"."""
        self.open_document()
        wanted = min(length // 2, 1 + (length > 9) + self.chance(0.5))
        starts: list[int] = []
        while len(starts) < wanted:
            start = self.between(0, length - 2)
            if all(abs(start - other) > 1 for other in starts):
                starts.append(start)
        pairs: list[Pair] = []
        while len(pairs) < length:
            about_it = len(pairs) in starts
            pairs += self.antecedent_and_it() if about_it else [self.pair(self.sentence)]
        return pairs

    def documents(self, size: int) -> Iterator[list[Pair]]:
        """Yield documents of 6 to 12 sentences, `size` sentences in total.

        The last document may be shorter.
        """
        while size > 0:
            length = self.between(6, 12)
            if size <= 12:
                length = size
            elif size - length < 6:
                length = size - 6
            yield self.document(length)
            size -= length

    def someone(self, besides: Word | None = None) -> NP:
        """Return a person; the phrase has nothing that "it" could mean.

        Args:
            besides: the name of another person in the sentence, not to be repeated.
        """
        if self.chance(0.55):
            np = self.named()
            return self.someone(besides) if np.name is besides else np
        while True:
            np = self.plain("person", plural=0.25)
            if np.noun.gender != "n":  # German "es" could also mean a child or a girl
                return np

    def thing(self, gender: str, subject: NP) -> NP:
        """Return a noun phrase that "it" can refer to; the subject may be its owner."""
        noun = self.pick([noun for noun in fitting("nouns", "thing") if noun.gender == gender])
        determiner = self.choose("determiner introduced")
        np = NP(noun, det=subject.possessive if determiner == "my" else determiner)
        self.describe(np, 0.4)
        return np

    def antecedent(self, gender: str) -> Clause:
        """Return a sentence with one thing of a gender, and nothing else that "it" could mean."""
        verb = self.verb("verb that introduces")
        subject = self.someone()
        clause = Clause(subject, verb, self.base if self.chance(0.8) else "perf")
        for slot in verb.slots:
            if "thing" in slot.nouns:
                np = self.thing(gender, subject)
                clause.shifted = verb.shifts and self.chance(0.5)
            else:
                np = self.someone(subject.name)
            clause.filled.append((slot, np))
        self.settle_tense(clause)
        times = fitting("times", f"it-{clause.tense}")
        if times and self.chance(0.35):
            clause.time = self.pick(times)
            clause.front = "time" if self.chance(0.5) else ""
        return clause

    def about_it(self, gender: str) -> Clause:
        """Return a sentence in which "it" is the thing of the previous sentence."""
        return self.sentence(NP(pronoun="it", gender=gender), kind="sentence about it")

    def it_is(self, it: NP) -> Clause:
        """Return "It was very heavy" or similar, often with a second clause or a time."""
        clause = self.quality(it)
        if self.chance(0.45):
            conjunction, subject = self.choose("coordination of it"), self.named()
            second = self.clause(self.base, self.verb("verb beside it"), subject, level=2)
            clause.second = (conjunction, second)
        elif self.chance(0.5):
            times = fitting("times", "it-past" if self.base == "past" else "pres")
            clause.time, clause.front = self.pick(times), "time"
        return clause

    def quality(self, it: NP) -> Clause:
        """Return a clause with an adjective that describes "it"."""
        clause = Clause(it, self.verb("copula of it"), self.base)
        clause.adjective = self.pick(fitting("adjectives", "carried"))
        clause.degree = self.pick(entries("degrees")) if self.chance(0.6) else None
        clause.negated = self.chance(0.15)
        return clause

    def it_lies(self, it: NP) -> Clause:
        """Return a sentence that says where it lies, whose it is, or that it disappears."""
        verb = self.verb("verb about it")
        gone = verb.english_name == "disappear"
        clause = Clause(it, verb, "perf" if gone and self.chance(0.5) else self.base)
        clause.negated = not gone and self.chance(0.15)
        self.fill(clause, 1)
        if gone and self.chance(0.5):
            clause.dependent = (
                self.choose("reason"),
                self.clause(self.base, subject=self.someone(), level=2, plain=True),
            )
        frequent = verb.english_name != "belong to" and not clause.negated and self.chance(0.3)
        if frequent and clause.tense == self.base:
            clause.adverb = self.pick(FREQUENT)
        self.settle_tense(clause)
        return clause

    def it_undergoes(self, it: NP) -> Clause:
        """Return a sentence that says what somebody does with it."""
        clause = self.handling(it)
        roll = self.random()
        times = [] if clause.modal else fitting("times", clause.tense)
        if roll < 0.35:
            clause.dependent = (self.choose("reason"), self.quality(it))
        elif roll < 0.6 and times:
            clause.time = self.pick(times)
            clause.front = "time" if clause.negated or self.chance(0.5) else ""
        return clause

    def handling(self, it: NP) -> Clause:
        """Return a clause in which somebody uses "it": sells it, or puts it on a table."""
        verb = self.verb("verb done to it")
        clause = Clause(self.someone() if self.chance(0.7) else self.pronoun(), verb, self.base)
        roll = self.random()
        if roll < 0.2 and not verb.stative:
            clause.modal = self.choose("modal")
        elif roll < 0.35:
            clause.tense = "perf"
        elif roll < 0.45 and self.base == "pres":
            clause.tense = "fut"
        negatable = not clause.subject.quantified and clause.modal != "must"
        clause.negated = negatable and self.chance(0.15)
        self.fill(clause, 2, it)
        slot, _ = clause.filled[-1]
        if slot.role == "on":  # drawn again with "my": keeps the demo corpora the same
            clause.filled[-1] = slot, self.onto("my")
        self.settle_tense(clause)
        return clause


def write_split(folder: Path, name: str, documents: Iterable[list[Pair]]) -> Counter[str]:
    """Write one split's two texts and its document starts.

    Returns: how often each German lemma occurs.
    """
    lemmas: Counter[str] = Counter()
    english, german, starts = (writing(folder / f"{name}.{end}") for end in ("en", "de", "docs"))
    with english as en, german as de, starts as docs:
        line = 0
        for document in documents:
            docs.write(f"{line}\n")
            line += len(document)
            for pair in document:
                en.write(pair.source + "\n")
                de.write(pair.target + "\n")
                lemmas.update(getattr(word.lex, "lemma", "") for word in pair.words)
    return lemmas
