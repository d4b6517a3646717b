"""Documents and splits: the demo corpus as text files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nmtkit.demo.constituents import Clause
from nmtkit.demo.english import ENGLISH
from nmtkit.demo.german import GERMAN
from nmtkit.demo.realise import CLOSING, Leaf, leaves, text
from nmtkit.demo.sentences import Sentences
from nmtkit.files import writing


class Pair:
    """A sentence in both languages: the clause it was drawn as, both trees, both texts.

    Args:
        clause: what is said.
        gender: that of the antecedent of its "it", "" if it has none.
    """

    def __init__(self, clause: Clause, gender: str = "") -> None:
        self.clause, self.gender = clause, gender
        self.en, self.de = ENGLISH.sentence(clause), GERMAN.sentence(clause)
        self.words = leaves(self.de)
        self.source, self.target = text(leaves(self.en)), text(self.words)

    def position(self, word: Leaf) -> int:
        """Return a word's position in the German sentence, punctuation not counted."""
        before = self.words[: self.words.index(word)]
        return sum(leaf.form.count(" ") + 1 for leaf in before if leaf.form not in CLOSING)


class Writer(Sentences):
    """Draws documents, sentence by sentence, avoiding what another split holds.

    Args:
        held: English and German sentences that must not be drawn.
    """

    def __init__(self, seed: int, stream: int = 0, held: set[str] | None = None) -> None:
        super().__init__(seed, stream)
        self.held = set() if held is None else held
        self.genders: list[str] = []

    def pair(self, draw: Callable[..., Clause], *gender: str) -> Pair:
        """Return a pair that is not held.

        Raises: RuntimeError if nothing else can be drawn.
        """
        for _ in range(200):
            pair = Pair(draw(*gender), *gender)
            if self.held.isdisjoint((pair.source, pair.target)):
                return pair
        raise RuntimeError("the demo grammar has run out of sentences that no other split holds")

    def hold(self, *pairs: Pair) -> None:
        """Keep pairs out of what is drawn later."""
        self.held.update(side for pair in pairs for side in (pair.source, pair.target))

    def antecedent_and_it(self) -> list[Pair]:
        """Return a sentence about a thing and one about "it", a third of them of each gender."""
        self.genders = self.genders or self.shuffled("mfn")
        gender = self.genders.pop()
        return [self.pair(self.antecedent, gender), self.pair(self.about_it, gender)]

    def document(self, length: int) -> list[Pair]:
        """Return a document of `length` sentences, one to three of which have an "it"."""
        self.open_document()
        wanted = min(length // 2, 1 + (length > 9) + self.chance(0.5))
        starts: list[int] = []
        while len(starts) < wanted:
            at = self.between(0, length - 2)
            if all(abs(at - other) > 1 for other in starts):
                starts.append(at)
        pairs: list[Pair] = []
        while len(pairs) < length:
            about_it = len(pairs) in starts
            pairs += self.antecedent_and_it() if about_it else [self.pair(self.sentence)]
        return pairs

    def documents(self, size: int) -> Iterator[list[Pair]]:
        """Yield documents of 6 to 12 sentences, `size` sentences together (the last may be shorter)."""
        while size > 0:
            length = self.between(6, 12)
            if size <= 12:
                length = size
            elif size - length < 6:
                length = size - 6
            yield self.document(length)
            size -= length


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
