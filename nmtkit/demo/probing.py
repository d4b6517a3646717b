"""Probing files in SentEval's format (Conneau et al. 2018): `tr|va|te <tab> label <tab> tokenised sentence`.

The labels come from the derivation, not from a parser. Two readings differ from SentEval's: commas are left out of top constituents,
and a coordination may be told by its pronoun or its "then", because the clauses of a grammar have no other order in time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nmtkit.demo import speak_en
from nmtkit.demo.draw import Draw
from nmtkit.demo.phrases import NP, PLURAL, Clause
from nmtkit.demo.pronouns import Storyteller
from nmtkit.demo.tree import CLOSING, Leaf, Node, depth, leaves, tokens
from nmtkit.files import writing

PARTS = ("tr", "va", "te")
LENGTHS = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 25), (26, 28))
DEPTHS = tuple(range(5, 11))
TOPS = (
    *("NP_VP_.", "NP_ADVP_VP_.", "ADVP_NP_VP_.", "PP_NP_VP_.", "NP_NP_VP_.", "SBAR_NP_VP_.", "CC_NP_VP_."),
    *("S_CC_S_.", "WHADVP_SQ_.", "VBD_NP_VP_.", "OTHER"),
)
BINARY = {
    "bigram_shift": ("I", "O"),
    "past_present": ("PAST", "PRES"),
    "subj_number": ("NN", "NNS"),
    "obj_number": ("NN", "NNS"),
    "odd_man_out": ("C", "O"),
    "coordination_inversion": ("I", "O"),
}


class Sentence:
    """A drawn sentence with its English tree and tokens."""

    __slots__ = ("clause", "leaves", "tokens", "tree")

    def __init__(self, clause: Clause) -> None:
        self.clause = clause
        self.tree = speak_en.sentence(clause)
        self.leaves = leaves(self.tree)
        self.tokens = tokens(self.leaves)


Example = tuple[str, list[str], int | None]  # label, tokens, lexical key that decides the partition (None: any)


def sentence_length(sentence: Sentence, draw: Draw) -> Example | None:
    """The bin of the number of tokens."""
    count = len(sentence.tokens)
    found = next((str(at) for at, (low, high) in enumerate(LENGTHS) if low <= count <= high), None)
    return (found, sentence.tokens, None) if found else None


def tree_depth(sentence: Sentence, draw: Draw) -> Example | None:
    """The depth of the tree, parts of speech included, the root not."""
    found = depth(sentence.tree) - 1
    return (str(found), sentence.tokens, None) if found in DEPTHS else None


def top_constituents(sentence: Sentence, draw: Draw) -> Example | None:
    """The constituents under the topmost clause."""
    top = sentence.tree.kids[0]
    assert isinstance(top, Node)
    names = [kid.tag if isinstance(kid, Leaf) else kid.label for kid in top.kids]
    label = "_".join("." if name == "." else name for name in names if name != ",")
    return (label if label in TOPS else "OTHER", sentence.tokens, None)


def bigram_shift(sentence: Sentence, draw: Draw) -> Example | None:
    """Two neighbours swapped, or not; never the first word or punctuation."""
    found = sentence.tokens
    places = [at for at in range(1, len(found) - 1) if found[at] not in CLOSING and found[at + 1] not in CLOSING and found[at] != found[at + 1]]
    if not places:
        return None
    if draw.chance(0.5):
        return "O", found, None
    at = draw.pick(places)
    return "I", [*found[:at], found[at + 1], found[at], *found[at + 2 :]], None


def past_present(sentence: Sentence, draw: Draw) -> Example | None:
    """The tense of the main verb, where it carries the ending itself; a verb belongs to one partition."""
    clause = sentence.clause
    simple = clause.tense in {"past", "pres"} and not (clause.modal or clause.negated or clause.question or clause.second)
    if not simple or clause.verb.en.base == clause.verb.en.past[0]:
        return None
    return ("PAST" if clause.tense == "past" else "PRES", sentence.tokens, clause.verb.index)


def subj_number(sentence: Sentence, draw: Draw) -> Example | None:
    """The number of the main clause's subject, a common noun; a noun belongs to one partition."""
    subject = sentence.clause.subject
    if subject.noun is None or sentence.clause.second:
        return None
    return ("NNS" if subject.number == PLURAL else "NN", sentence.tokens, subject.noun.index)


def direct_object(clause: Clause) -> NP | None:
    """The main clause's direct object, if it is a common noun."""
    found = next((filler for complement, filler in clause.filled if complement.role == "acc"), None)
    return found if isinstance(found, NP) and found.noun is not None else None


def obj_number(sentence: Sentence, draw: Draw) -> Example | None:
    """The number of the main clause's direct object; a noun belongs to one partition."""
    found = direct_object(sentence.clause)
    if found is None or found.noun is None or sentence.clause.second:
        return None
    return ("NNS" if found.number == PLURAL else "NN", sentence.tokens, found.noun.index)


class OddManOut:
    """The direct object replaced by a noun that the verb does not admit, or not."""

    def __init__(self, grammar: Storyteller) -> None:
        self.nouns = grammar.words.nouns

    def __call__(self, sentence: Sentence, draw: Draw) -> Example | None:
        """One example."""
        found = direct_object(sentence.clause)
        if found is None or not found.wanted or found.modifiers:
            return None
        if draw.chance(0.5):
            return "O", sentence.tokens, None
        right, odd = found.noun, draw.pick(self.nouns)
        if odd.classes & found.wanted or "mass" in odd.classes:
            return None
        found.noun = odd
        changed = tokens(leaves(speak_en.sentence(sentence.clause)))
        found.noun = right
        return "C", changed, None


def coordination_inversion(sentence: Sentence, draw: Draw) -> Example | None:
    """Two clauses in their order or swapped; only where the second takes up the first's subject by a pronoun."""
    first, second = sentence.clause, sentence.clause.second
    if second is None or first.subject.pronoun or second[1].subject.pronoun not in {"he", "she", "they"}:
        return None
    if draw.chance(0.5):
        return "O", sentence.tokens, None
    top = sentence.tree.kids[0]
    assert isinstance(top, Node)
    clauses = [kid for kid in top.kids if isinstance(kid, Node)]
    swapped = iter(reversed(clauses))
    return "I", tokens(leaves(Node("ROOT", [next(swapped) if isinstance(kid, Node) else kid for kid in top.kids]))), None


class WordContent:
    """Which one of some nouns the sentence holds."""

    def __init__(self, grammar: Storyteller, classes: int) -> None:
        adjectives = {adjective.en for adjective in grammar.words.adjectives}
        nouns = [noun for noun in grammar.words.nouns if len(noun.en[0]) >= 4 and "mass" not in noun.classes and noun.en[0] not in adjectives]
        self.nouns = nouns[:: max(1, len(nouns) // classes)][:classes]
        self.words = [noun.en[0] for noun in self.nouns]
        self._set = set(self.words)

    def __call__(self, sentence: Sentence, draw: Draw) -> Example | None:
        """One example."""
        found = [token for token in sentence.tokens if token in self._set]
        return (found[0], sentence.tokens, None) if len(found) == 1 else None


class Task:
    """One probing task that is being filled.

    Args:
        labels: its classes, each of which gets an equal share of every partition. sizes: examples of tr, va, te.
    """

    def __init__(self, make: Callable[[Sentence, Draw], Example | None], labels: tuple[str, ...], sizes: tuple[int, int, int]) -> None:
        self.make = make
        self.left = {
            (part, label): size // len(labels) + (at < size % len(labels))
            for part, size in zip(PARTS, sizes, strict=True)
            for at, label in enumerate(labels)
        }
        self.rows: dict[str, list[str]] = {part: [] for part in PARTS}
        self.missing = sum(self.left.values())
        self.seen: set[str] = set()

    def offer(self, sentence: Sentence, draw: Draw) -> None:
        """Take an example from a sentence if there is room for it; a sentence is used once."""
        original = " ".join(sentence.tokens)
        if original in self.seen:
            return
        example = self.make(sentence, draw)
        if example is None:
            return
        label, words, key = example
        part = PARTS[0]
        if key is None:
            roll = draw.random()
            order = PARTS if roll < 0.8 else ("va", "te", "tr") if roll < 0.9 else ("te", "va", "tr")
            part = next((name for name in order if self.left.get((name, label))), part)
        else:
            part = PARTS[max(0, key * 7 % 10 - 7)]
        if self.left.get((part, label)):
            self.left[part, label] -= 1
            self.missing -= 1
            self.seen.add(original)
            self.rows[part].append(f"{part}\t{label}\t{' '.join(words)}\n")


def draw_for(task: str, grammar: Storyteller, content: WordContent) -> Clause:
    """A sentence that suits a task: of any kind, or of a kind that documents have too seldom for it."""
    draw = grammar.draw
    if draw.chance(0.4):
        return grammar.sentence()
    if task == "word_content":
        return grammar.about(draw.pick(content.nouns))
    if task == "coordination_inversion":
        return grammar.coordinated(anaphoric=True)
    if task == "top_constituents":
        return grammar.asked() if draw.chance(0.5) else grammar.simple()
    if task not in {"tree_depth", "sentence_length"}:
        return grammar.simple()
    clause = grammar.with_adjunct() if draw.chance(0.5) else grammar.reported()
    if clause.adjunct and draw.chance(0.7):
        clause.adjunct = (clause.adjunct[0], grammar.long_subject(draw.between(2, 4)))
    elif clause.content and draw.chance(0.7):
        clause.content = (clause.content[0], grammar.long_subject(draw.between(2, 4)))
    return clause


def write_probing(folder: Path, draw: Draw, size: int) -> None:
    """Write every task's file.

    Args:
        folder: where `<task>.txt` go. size: the demo's training size; 20,000 gives 2,000, 300 and 300 examples, and up to five times that.
    """
    sizes = tuple(max(least, round(at_default * min(size, 100_000) / 20_000)) for least, at_default in ((60, 2000), (20, 300), (20, 300)))
    grammar = Storyteller(draw)
    content = WordContent(grammar, max(20, min(100, sizes[0] // 20)))
    kinds: dict[str, tuple[Callable[[Sentence, Draw], Example | None], tuple[str, ...]]] = {
        "sentence_length": (sentence_length, tuple(str(at) for at in range(len(LENGTHS)))),
        "word_content": (content, tuple(content.words)),
        "tree_depth": (tree_depth, tuple(map(str, DEPTHS))),
        "top_constituents": (top_constituents, TOPS),
    }
    makers: dict[str, Callable[[Sentence, Draw], Example | None]] = {
        "bigram_shift": bigram_shift,
        "past_present": past_present,
        "subj_number": subj_number,
        "obj_number": obj_number,
        "odd_man_out": OddManOut(grammar),
        "coordination_inversion": coordination_inversion,
    }
    for name, maker in makers.items():
        kinds[name] = (maker, BINARY[name])
    tasks = {name: Task(make, labels, (sizes[0], sizes[1], sizes[2])) for name, (make, labels) in kinds.items()}
    for _ in range(12 * sum(sizes)):
        waiting = [name for name, task in tasks.items() if task.missing]
        if not waiting:
            break
        grammar.open_document()
        sentence = Sentence(draw_for(draw.pick(waiting), grammar, content))
        for name in waiting:
            tasks[name].offer(sentence, draw)
    for name, task in tasks.items():
        with writing(folder / f"{name}.txt") as stream:
            for part in PARTS:
                stream.writelines(draw.shuffled(task.rows[part]))
