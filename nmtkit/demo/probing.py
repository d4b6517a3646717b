"""Probing files in SentEval's format: `tr|va|te <tab> label <tab> tokenised sentence`.

SentEval: Conneau et al. 2018. The labels come from the derivation, not from a parser. Two tasks
differ from SentEval's. Labels of top constituents have no commas. In a swapped coordination, only a
pronoun or "then" shows the right order, because drawn clauses have no other order in time.
"""

from __future__ import annotations

from bisect import bisect
from operator import attrgetter
from pathlib import Path

from nmtkit.demo.constituents import NP, Clause
from nmtkit.demo.languages import ENGLISH
from nmtkit.demo.lexicon import TABLES, Noun, entries, fitting
from nmtkit.demo.realise import CLOSING, Leaf, Node, leaves, spelled
from nmtkit.demo.sentences import THIRD_PERSON, Sentences
from nmtkit.files import writing

PARTS = ("tr", "va", "te")
LENGTHS = (5, 9, 13, 17, 21, 26, 29)  # where bins of the number of tokens begin; the last: the end
# task -> its labels; none for word_content, whose labels are words, chosen by the size
LABELS = {task: labels.split() for task, labels, _ in TABLES["probing"]}
# task -> the index of the word that decides the partition: no word is in two partitions
KEYS = {
    "past_present": attrgetter("clause.verb.index"),
    "subj_number": attrgetter("clause.subject.noun.index"),
    "obj_number": attrgetter("clause.object.noun.index"),
}
Example = str | tuple[str, str] | None


class Sentence:
    """A drawn English sentence. Each task is a method, named as SentEval names the task.

    A task returns the label, or None if the sentence is not an example. A task that changes the
    sentence returns the label and the new text.

    Args:
        draw: the stream of random choices.
        content: the words of the task word_content.
    """

    def __init__(self, clause: Clause, draw: Sentences, content: list[str]) -> None:
        self.clause, self.draw, self.content = clause, draw, content
        self.tree = ENGLISH.sentence(clause)
        self.text = spelled(leaves(self.tree))
        self.tokens = self.text.split(" ")

    def sentence_length(self) -> Example:
        """Return the bin of the number of tokens."""
        return str(bisect(LENGTHS, len(self.tokens)) - 1)

    def tree_depth(self) -> Example:
        """Return the depth of the tree; parts of speech count, the root does not."""
        return str(self.tree.depth() - 1)

    def top_constituents(self) -> Example:
        """Return the constituents under the topmost clause."""
        kids = self.tree.kids[0].kids
        names = [kid.tag if isinstance(kid, Leaf) else kid.label for kid in kids]
        label = "_".join(name for name in names if name != ",")
        return label if label in LABELS["top_constituents"] else "OTHER"

    def word_content(self) -> Example:
        """Return the word of `content` that the sentence has, if exactly one occurs."""
        targets = [token for token in self.tokens if token in self.content]
        return targets[0] if len(targets) == 1 else None

    def bigram_shift(self) -> Example:
        """Return the sentence unchanged (O), or with two neighbouring words swapped (I).

        The first word and punctuation are never swapped.
        """
        words = self.tokens
        places = [
            at
            for at in range(1, len(words) - 2)
            if words[at] != words[at + 1] and CLOSING.isdisjoint(words[at : at + 2])
        ]
        if not places or self.draw.chance(0.5):
            return "O" if places else None
        at = self.draw.pick(places)
        return "I", " ".join([*words[:at], words[at + 1], words[at], *words[at + 2 :]])

    def past_present(self) -> Example:
        """Return the tense of the main verb, if the form of the main verb shows the tense."""
        clause, verb = self.clause, self.clause.verb.en
        compound = clause.modal or clause.negated or clause.question or clause.second
        if compound or verb.past_is_base:
            return None
        return {"past": "PAST", "pres": "PRES"}.get(clause.tense)

    def number(self, np: NP | None) -> Example:
        """Return the number of a common noun, if the sentence has only one main clause."""
        if np is None or np.noun is None or self.clause.second:
            return None
        return "NNS" if np.plural else "NN"

    def subj_number(self) -> Example:
        """Return the number of the main clause's subject."""
        return self.number(self.clause.subject)

    def obj_number(self) -> Example:
        """Return the number of the main clause's direct object."""
        return self.number(self.clause.object)

    def odd_man_out(self) -> Example:
        """Return the sentence unchanged (O), or with a direct object that does not fit (C)."""
        np = self.clause.object
        if np is None or not np.wanted or np.modifiers:
            return None
        if self.draw.chance(0.5):
            return "O"
        original, odd = np.noun, self.draw.pick(entries("nouns"))
        if odd in fitting("nouns", np.wanted) or "mass" in odd.classes:
            return None
        np.noun = odd
        changed = spelled(leaves(ENGLISH.sentence(self.clause)))
        np.noun = original
        return "C", changed

    def coordination_inversion(self) -> Example:
        """Return two clauses, the second about the first's subject, in order (O) or swapped (I)."""
        first, second = self.clause.subject, self.clause.second
        if not second or first.pronoun or second[1].subject.pronoun not in THIRD_PERSON:
            return None
        if self.draw.chance(0.5):
            return "O"
        before, *between, after, stop = self.tree.kids[0].kids
        return "I", spelled(leaves(Node("ROOT", [after, *between, before, stop])))


class Task:
    """A probing task and the examples collected for it.

    Args:
        name: the name in SentEval.
        labels: the classes; each gets an equal share of every partition.
        sizes: number of examples in tr, va, te.
    """

    def __init__(self, name: str, labels: list[str], sizes: list[int]) -> None:
        self.name, self.key = name, KEYS.get(name)
        self.missing = {
            (part, label): size // len(labels) + (at < size % len(labels))
            for part, size in zip(PARTS, sizes, strict=True)
            for at, label in enumerate(labels)
        }
        self.rows: dict[str, list[str]] = {part: [] for part in PARTS}
        self.seen: set[str] = set()

    def offer(self, sentence: Sentence) -> None:
        """Add the example of a new sentence, if a partition still needs the example's label."""
        example = None if sentence.text in self.seen else getattr(sentence, self.name)()
        label, text = example if isinstance(example, tuple) else (example, sentence.text)
        if ("tr", label) not in self.missing:
            return
        if self.key:
            parts = [PARTS[max(0, self.key(sentence) * 7 % 10 - 7)]]
        else:
            parts = sentence.draw.choose("partition").split()
        for part in parts:
            if self.missing[part, label]:
                self.missing[part, label] -= 1
                self.seen.add(sentence.text)
                self.rows[part].append(f"{part}\t{label}\t{text}\n")
                break


def content_nouns(number: int) -> list[Noun]:
    """Return at most `number` countable nouns that are not short and not also adjectives."""
    adjectives = {adjective.en for adjective in entries("adjectives")}
    nouns = [
        noun
        for noun in entries("nouns")
        if len(noun.en[0]) >= 4 and "mass" not in noun.classes and noun.en[0] not in adjectives
    ]
    return nouns[:: max(1, len(nouns) // number)][:number]


def draw_for(task: str, grammar: Sentences, nouns: list[Noun]) -> Clause:
    """Return a sentence of any kind, or of a kind that the task needs and documents rarely have."""
    if grammar.chance(0.4):
        return grammar.sentence()
    if task == "word_content":
        return grammar.about(grammar.pick(nouns))
    if task == "coordination_inversion":
        return grammar.coordinated(anaphoric=True)
    if task == "top_constituents":
        return grammar.asked() if grammar.chance(0.5) else grammar.simple()
    if task not in {"tree_depth", "sentence_length"}:
        return grammar.simple()
    clause = grammar.with_adjunct() if grammar.chance(0.5) else grammar.reported()
    if clause.dependent and grammar.chance(0.7):
        clause.dependent = clause.dependent[0], grammar.long_subject(grammar.between(2, 4))
    return clause


def write_probing(folder: Path, seed: int, size: int) -> None:
    """Write every task's file.

    Args:
        folder: the folder of the files `<task>.txt`.
        seed: the demo's seed.
        size: the demo's training size. The number of examples grows with the size: 2,000, 300 and
            300 examples for 20,000 sentences, and at most five times as many.
    """
    scale = min(size, 100_000) / 20_000
    sizes = [max(60, round(2000 * scale)), *[max(20, round(300 * scale))] * 2]
    grammar = Sentences(seed, 5)
    nouns = content_nouns(max(20, min(100, sizes[0] // 20)))
    words = [noun.en[0] for noun in nouns]
    tasks = [Task(name, labels or words, sizes) for name, labels in LABELS.items()]
    for _ in range(12 * sum(sizes)):
        unfilled = [task for task in tasks if any(task.missing.values())]
        if not unfilled:
            break
        grammar.open_document()
        clause = draw_for(grammar.pick(unfilled).name, grammar, nouns)
        sentence = Sentence(clause, grammar, words)
        for task in unfilled:
            task.offer(sentence)
    for task in tasks:
        with writing(folder / f"{task.name}.txt") as stream:
            for part in PARTS:
                stream.writelines(grammar.shuffled(task.rows[part]))
