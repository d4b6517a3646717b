"""Documents and splits: the demo corpus as text files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from nmtkit.demo import speak_de, speak_en
from nmtkit.demo.draw import Draw
from nmtkit.demo.phrases import Clause
from nmtkit.demo.pronouns import Storyteller
from nmtkit.demo.tree import Leaf, Node, leaves, text
from nmtkit.files import writing


class Pair:
    """A sentence in both languages: the clause it was drawn as, both trees, both texts, and the gender of the antecedent of its "it" ("" if none)."""

    __slots__ = ("clause", "de", "de_leaves", "en", "en_leaves", "gender", "source", "target")

    def __init__(self, clause: Clause, gender: str = "") -> None:
        self.clause, self.gender = clause, gender
        self.en: Node = speak_en.sentence(clause)
        self.de: Node = speak_de.sentence(clause)
        self.en_leaves: list[Leaf] = leaves(self.en)
        self.de_leaves: list[Leaf] = leaves(self.de)
        self.source, self.target = text(self.en_leaves), text(self.de_leaves)


class Antecedents:
    """Deals genders for "it" so that each third of a split has one: shuffled rounds of m, f, n."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self._left: list[str] = []

    def next(self) -> str:
        """The next gender."""
        if not self._left:
            self._left = self.draw.shuffled("mfn")
        return self._left.pop()


class Writer:
    """Draws documents, sentence by sentence, avoiding what another split holds.

    Args:
        draw: the stream of choices. held: English and German sentences that must not be drawn.
    """

    def __init__(self, draw: Draw, held: set[str] | None = None) -> None:
        self.draw, self.held = draw, set() if held is None else held
        self.grammar = Storyteller(draw)
        self.genders = Antecedents(draw)

    def free(self, make: Callable[[], Clause], gender: str = "") -> Pair:
        """A pair that is not held; after 200 draws (never seen) the last is taken.

        Raises: RuntimeError if nothing else can be drawn.
        """
        for _ in range(200):
            pair = Pair(make(), gender)
            if pair.source not in self.held and pair.target not in self.held:
                return pair
        raise RuntimeError("the demo grammar has run out of sentences that no other split holds")

    def document(self, length: int) -> list[Pair]:
        """A document of `length` sentences, one to three of which say "it" of something in the sentence before."""
        draw, grammar = self.draw, self.grammar
        grammar.open_document()
        wanted = min(length // 2, 1 + (length > 9) + draw.chance(0.5))
        starts: list[int] = []
        while len(starts) < wanted:
            at = draw.between(0, length - 2)
            if all(abs(at - other) > 1 for other in starts):
                starts.append(at)
        pairs: list[Pair] = []
        while len(pairs) < length:
            if len(pairs) in starts:
                gender = self.genders.next()
                pairs.append(self.free(lambda gender=gender: grammar.antecedent(gender)))  # type: ignore[misc]
                pairs.append(self.free(lambda gender=gender: grammar.about_it(gender), gender))  # type: ignore[misc]
            else:
                pairs.append(self.free(grammar.sentence))
        return pairs

    def documents(self, size: int) -> Iterator[list[Pair]]:
        """Documents of 6 to 12 sentences, `size` sentences together (fewer than 6 make one short document)."""
        left = size
        while left > 0:
            length = self.draw.between(6, 12)
            if left <= 12:
                length = left
            elif left - length < 6:
                length = left - 6
            yield self.document(length)
            left -= length


def lemma_of(leaf: Leaf) -> str:
    """The German dictionary form of a word, "" for a function word without an entry."""
    return getattr(leaf.lex, "lemma", "")


def write_split(folder: Path, name: str, writer: Writer, size: int, counts: Counter[str]) -> set[str]:
    """Write one split's two texts and its document starts.

    Args:
        counts: how often each German lemma occurs; added to.
    Returns: every sentence written, both sides, if the split is small enough to be held out (that is: not for train).
    """
    seen: set[str] = set()
    with writing(folder / f"{name}.en") as en, writing(folder / f"{name}.de") as de, writing(folder / f"{name}.docs") as docs:
        line = 0
        for document in writer.documents(size):
            docs.write(f"{line}\n")
            line += len(document)
            for pair in document:
                en.write(pair.source + "\n")
                de.write(pair.target + "\n")
                counts.update(lemma for lemma in map(lemma_of, pair.de_leaves) if lemma)
                if name != "train":
                    seen.update((pair.source, pair.target))
    return seen
