"""Probing files in SentEval's format: `tr|va|te <tab> label <tab> tokenised sentence`.

SentEval: Conneau et al. 2018. The labels come from the derivation, not from a parser. Two readings
differ from SentEval's: top constituents have no commas, and a coordination may be recognised by its
pronoun or its "then", because the clauses of a grammar have no other order in time.

A task is a function of a sentence and a stream of choices. It returns the label and the text, which
may be changed, or None if the sentence is no example.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nmtkit.demo.constituents import CLOSING, NP, PLURAL, Clause, Leaf, Node, leaves, spelled
from nmtkit.demo.lexicon import Noun, entries
from nmtkit.demo.realise import ENGLISH
from nmtkit.demo.sentences import THIRD_PERSON, Sentences
from nmtkit.files import writing

PARTS = ("tr", "va", "te")
BINS = (range(5, 9), range(9, 13), range(13, 17), range(17, 21), range(21, 26), range(26, 29))
LENGTHS = {length: str(at) for at, lengths in enumerate(BINS) for length in lengths}
DEPTHS = ("5", "6", "7", "8", "9", "10")
TOPS = (
    *("NP_VP_.", "NP_ADVP_VP_.", "ADVP_NP_VP_.", "PP_NP_VP_.", "NP_NP_VP_.", "SBAR_NP_VP_."),
    *("CC_NP_VP_.", "S_CC_S_.", "WHADVP_SQ_.", "VBD_NP_VP_.", "OTHER"),
)
Example = tuple[str, str] | None
Make = Callable[[Any, Sentences], Example]


class Sentence:
    """A drawn sentence with its English tree, text and tokens."""

    def __init__(self, clause: Clause) -> None:
        self.clause, self.tree = clause, ENGLISH.sentence(clause)
        self.text = spelled(leaves(self.tree))
        self.tokens = self.text.split(" ")

    @property
    def object(self) -> NP | None:
        """The main clause's direct object."""
        return next((np for slot, np in self.clause.filled if slot.role == "acc"), None)

    def labelled(self, label: str | None) -> Example:
        """Return an example with the sentence unchanged, None without a label."""
        return (label, self.text) if label else None


def sentence_length(sentence: Sentence, draw: Sentences) -> Example:
    """Return the bin of the number of tokens."""
    return sentence.labelled(LENGTHS.get(len(sentence.tokens)))


def tree_depth(sentence: Sentence, draw: Sentences) -> Example:
    """Return the depth of the tree, parts of speech included, the root not."""
    depth = str(sentence.tree.depth() - 1)
    return sentence.labelled(depth if depth in DEPTHS else None)


def top_constituents(sentence: Sentence, draw: Sentences) -> Example:
    """Return the constituents under the topmost clause."""
    kids = sentence.tree.kids[0].kids
    names = [kid.tag if isinstance(kid, Leaf) else kid.label for kid in kids]
    label = "_".join(name for name in names if name != ",")
    return sentence.labelled(label if label in TOPS else "OTHER")


def word_content(nouns: set[str]) -> Make:
    """Return the task of which one of some nouns a sentence holds."""

    def task(sentence: Sentence, draw: Sentences) -> Example:
        found = [token for token in sentence.tokens if token in nouns]
        return sentence.labelled(found[0] if len(found) == 1 else None)

    return task


def bigram_shift(sentence: Sentence, draw: Sentences) -> Example:
    """Return two neighbours swapped, or not; never the first word or punctuation."""
    words = sentence.tokens
    places = [
        at
        for at in range(1, len(words) - 2)
        if words[at] != words[at + 1] and CLOSING.isdisjoint(words[at : at + 2])
    ]
    if not places:
        return None
    if draw.chance(0.5):
        return sentence.labelled("O")
    at = draw.pick(places)
    return "I", " ".join([*words[:at], words[at + 1], words[at], *words[at + 2 :]])


def past_present(sentence: Sentence, draw: Sentences) -> Example:
    """Return the tense of the main verb, where it carries the ending itself."""
    clause, verb = sentence.clause, sentence.clause.verb.en
    compound = clause.modal or clause.negated or clause.question or clause.second
    if compound or verb.base == verb.finite[3]:
        return None
    return sentence.labelled({"past": "PAST", "pres": "PRES"}.get(clause.tense))


def number(np: NP | None, sentence: Sentence) -> Example:
    """Return the number of a common noun in a sentence of one main clause."""
    if np is None or np.noun is None or sentence.clause.second:
        return None
    return sentence.labelled("NNS" if np.number == PLURAL else "NN")


def subj_number(sentence: Sentence, draw: Sentences) -> Example:
    """Return the number of the main clause's subject."""
    return number(sentence.clause.subject, sentence)


def obj_number(sentence: Sentence, draw: Sentences) -> Example:
    """Return the number of the main clause's direct object."""
    return number(sentence.object, sentence)


def odd_man_out(sentence: Sentence, draw: Sentences) -> Example:
    """Return the direct object replaced by a noun that the verb does not admit, or not."""
    np = sentence.object
    if np is None or not np.wanted or np.modifiers:
        return None
    if draw.chance(0.5):
        return sentence.labelled("O")
    right, odd = np.noun, draw.pick(entries("nouns"))
    if odd.classes & np.wanted or "mass" in odd.classes:
        return None
    np.noun = odd
    changed = Sentence(sentence.clause).text
    np.noun = right
    return "C", changed


def coordination_inversion(sentence: Sentence, draw: Sentences) -> Example:
    """Return two clauses in order or swapped, where the second takes up the first's subject."""
    first, second = sentence.clause, sentence.clause.second
    if not second or first.subject.pronoun or second[1].subject.pronoun not in THIRD_PERSON:
        return None
    if draw.chance(0.5):
        return sentence.labelled("O")
    before, *between, after, stop = sentence.tree.kids[0].kids
    return "I", spelled(leaves(Node("ROOT", [after, *between, before, stop])))


class Task:
    """One probing task that is being filled.

    Args:
        key: the entry whose index decides the partition, None for any.
        labels: its classes, each of which gets an equal share of every partition.
        sizes: examples of tr, va, te.
    """

    def __init__(
        self,
        make: Make,
        labels: tuple[str, ...],
        sizes: list[int],
        key: Callable[[Sentence], Any] | None = None,
    ) -> None:
        self.make, self.key = make, key
        self.left = {
            (part, label): size // len(labels) + (at < size % len(labels))
            for part, size in zip(PARTS, sizes, strict=True)
            for at, label in enumerate(labels)
        }
        self.rows: dict[str, list[str]] = {part: [] for part in PARTS}
        self.missing = sum(self.left.values())
        self.seen: set[str] = set()

    def offer(self, sentence: Sentence, draw: Sentences) -> None:
        """Take an example from a sentence if there is room for it; a sentence is used once."""
        example = None if sentence.text in self.seen else self.make(sentence, draw)
        if example is None:
            return
        label, text = example
        if self.key:
            parts = PARTS[max(0, self.key(sentence).index * 7 % 10 - 7) :][:1]
        else:
            roll = draw.random()
            parts = (
                PARTS if roll < 0.8 else ("va", "te", "tr") if roll < 0.9 else ("te", "va", "tr")
            )
        for part in parts:
            if self.left.get((part, label)):
                self.left[part, label] -= 1
                self.missing -= 1
                self.seen.add(sentence.text)
                self.rows[part].append(f"{part}\t{label}\t{text}\n")
                return


def content_nouns(number: int) -> list[Noun]:
    """Return `number` countable nouns whose English form is no other word."""
    adjectives = {adjective.en for adjective in entries("adjectives")}
    nouns = [
        noun
        for noun in entries("nouns")
        if len(noun.en[0]) >= 4 and "mass" not in noun.classes and noun.en[0] not in adjectives
    ]
    return nouns[:: max(1, len(nouns) // number)][:number]


def draw_for(task: str, grammar: Sentences, content: list[Noun]) -> Clause:
    """Return a sentence of any kind, or of a kind that documents have too seldom for a task."""
    if grammar.chance(0.4):
        return grammar.sentence()
    if task == "word_content":
        return grammar.about(grammar.pick(content))
    if task == "coordination_inversion":
        return grammar.coordinated(anaphoric=True)
    if task == "top_constituents":
        return grammar.asked() if grammar.chance(0.5) else grammar.simple()
    if task not in {"tree_depth", "sentence_length"}:
        return grammar.simple()
    clause = grammar.with_adjunct() if grammar.chance(0.5) else grammar.reported()
    if grammar.chance(0.7):
        field = "adjunct" if clause.adjunct else "content"
        inner = grammar.long_subject(grammar.between(2, 4))
        setattr(clause, field, (getattr(clause, field)[0], inner))
    return clause


def write_probing(folder: Path, seed: int, size: int) -> None:
    """Write every task's file.

    Args:
        folder: where `<task>.txt` go.
        seed: the demo's seed.
        size: the demo's training size; 20,000 gives 2,000, 300 and 300 examples, and up to five
            times that.
    """
    scale = min(size, 100_000) / 20_000
    sizes = [max(60, round(2000 * scale)), *[max(20, round(300 * scale))] * 2]
    grammar = Sentences(seed, 5)
    content = content_nouns(max(20, min(100, sizes[0] // 20)))
    names = tuple(noun.en[0] for noun in content)
    kinds: dict[str, tuple[Make, tuple[str, ...]]] = {
        "sentence_length": (sentence_length, tuple("012345")),
        "word_content": (word_content(set(names)), names),
        "tree_depth": (tree_depth, DEPTHS),
        "top_constituents": (top_constituents, TOPS),
        "bigram_shift": (bigram_shift, ("I", "O")),
        "past_present": (past_present, ("PAST", "PRES")),
        "subj_number": (subj_number, ("NN", "NNS")),
        "obj_number": (obj_number, ("NN", "NNS")),
        "odd_man_out": (odd_man_out, ("C", "O")),
        "coordination_inversion": (coordination_inversion, ("I", "O")),
    }
    keys = {
        "past_present": lambda sentence: sentence.clause.verb,
        "subj_number": lambda sentence: sentence.clause.subject.noun,
        "obj_number": lambda sentence: sentence.object.noun,
    }
    tasks = {
        name: Task(make, labels, sizes, keys.get(name)) for name, (make, labels) in kinds.items()
    }
    for _ in range(12 * sum(sizes)):
        waiting = [name for name, task in tasks.items() if task.missing]
        if not waiting:
            break
        grammar.open_document()
        sentence = Sentence(draw_for(grammar.pick(waiting), grammar, content))
        for name in waiting:
            tasks[name].offer(sentence, grammar)
    for name, task in tasks.items():
        with writing(folder / f"{name}.txt") as stream:
            for part in PARTS:
                stream.writelines(grammar.shuffled(task.rows[part]))
