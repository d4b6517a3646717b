"""Trees of words, and what is alike in realising a clause in English and in German."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from nmtkit.demo.constituents import NP, Clause
from nmtkit.demo.lexicon import FINITE, TABLES, Word

CLOSING = {",", ".", "?"}


def keyed(name: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return the first word of each line -> the English words after it, the German words."""
    sides = ([[form.strip("-") for form in side.split()] for side in line] for line in TABLES[name])
    return {key: (english, german) for (key, *english), german, _ in sides}


PRONOUNS, DETERMINERS, VERB_GROUPS = map(keyed, ("pronouns", "determiners", "verb_groups"))
FUNCTION_WORDS = {key: (key.strip("?!"), de, tag) for key, de, tag in TABLES["function_words"]}
TAGS = {"base": "VB", "infinitive": "VB", "participle": "VBN", "ing": "VBG"}


@dataclass(eq=False, slots=True)
class Leaf:
    """A word: its form, its tag, and its lexicon entry (or the name of a function word).

    Tags are the Penn Treebank's in both languages. German takes VBD and VBP for finite verbs, VB
    for infinitives, RP for separated prefixes.
    """

    form: str
    tag: str
    lex: Any = None


@dataclass(eq=False, slots=True)
class Node:
    """A constituent; `info`: the noun phrase or clause that it realises."""

    label: str
    kids: list[Any]
    info: Any = None

    def nodes(self) -> Iterator[Node]:
        """Yield this node and all below it, from the left."""
        yield self
        for kid in self.kids:
            if isinstance(kid, Node):
                yield from kid.nodes()

    def collect(self, words: list[Leaf]) -> None:
        """Append all words below, from the left."""
        for kid in self.kids:
            if kid.__class__ is Leaf:
                words.append(kid)
            else:
                kid.collect(words)

    def depth(self) -> int:
        """Return the number of constituents on the longest path to a word, with its tag."""
        return 1 + max(kid.depth() if isinstance(kid, Node) else 1 for kid in self.kids)


def leaves(tree: Node) -> list[Leaf]:
    """Return the words of a tree, from the left, without commas before other punctuation."""
    words: list[Leaf] = []
    tree.collect(words)
    followed = zip(words, words[1:] + words[-1:], strict=True)
    return [leaf for leaf, after in followed if leaf.form != "," or after.form not in CLOSING]


def spelled(words: list[Leaf]) -> str:
    """Return words separated by spaces, the first one capitalised."""
    sentence = " ".join([leaf.form for leaf in words])
    return sentence[0].upper() + sentence[1:]


def text(words: list[Leaf]) -> str:
    """Return a sentence as written: punctuation and the genitive's 's joined to the word before."""
    return re.sub(r" (?=[,.?]|'s)", "", spelled(words))


def some(*parts: Any) -> list[Any]:
    """Return the parts that are not empty."""
    return list(filter(None, parts))


def comma() -> Leaf:
    """Return a comma."""
    return Leaf(",", ",")


class Realiser:
    """The steps that both languages share.

    A language has a `side`, its place in pairs of English and German; the `order` of a clause's
    parts (objects are named by their case: `a`, or `pronoun-a` for pronouns); the `labels` of noun
    phrases by case; and the methods that are declared here.
    """

    side: int
    order: str
    labels: dict[str, str]
    determiner: Any
    attached: Any
    relative: Any
    subordinate: Any
    infinitive: Any
    main_clause: Any
    time: Any

    def word(self, entry: Word, tag: str = "RB") -> Leaf:
        """Return an entry's word."""
        return Leaf(entry.de if self.side else entry.en, tag, entry)

    def function(self, key: str) -> Leaf:
        """Return a function word."""
        forms = FUNCTION_WORDS[key]
        return Leaf(forms[self.side], forms[2], key)

    def noun_phrase(self, np: NP, case: str, label: str = "") -> Node:
        """Return a noun phrase in a case (n a d g); `label`: instead of the label of the case."""
        phrase = Node(label or self.labels.get(case, "NP"), self.words(np, case), np)
        for modifier in np.modifiers:
            relative = isinstance(modifier, Clause)
            part = self.relative(modifier, np) if relative else self.phrase(modifier)
            phrase = self.attached(phrase, part)
        return phrase

    def words(self, np: NP, case: str) -> list[Any]:
        """Return the parts of a noun phrase up to its noun."""
        if np.parts:
            first, second = (self.noun_phrase(part, case, "NP") for part in np.parts)
            return [first, self.function("and"), second]
        if np.pronoun:
            forms = PRONOUNS[np.pronoun + np.gender][self.side]
            return [Leaf(forms["nad".index(case)], "PRP", np.pronoun)]
        if np.name:
            return [self.word(np.name, "NNP")]
        determiner, ending = self.determiner(np, case)
        adjectives = [
            Leaf((adjective.stem if self.side else adjective.en) + ending, "JJ", adjective)
            for adjective in np.adjectives
        ]
        forms = np.noun.de[case] if self.side else np.noun.en
        noun = Leaf(forms[np.plural], "NN", np.noun)
        return some(determiner, np.numeral and self.word(np.numeral, "CD"), *adjectives, noun)

    def phrase(self, np: NP, case: str = "") -> Node:
        """Return a prepositional phrase, or a noun phrase if this language has no preposition."""
        *prepositions, governed = np.preposition
        case = governed or case
        if not prepositions[self.side]:
            return self.noun_phrase(np, case)
        preposition = Leaf(prepositions[self.side], "IN", prepositions[0])
        return Node("PP", [preposition, self.noun_phrase(np, case, "NP")])

    def adjective_phrase(self, clause: Clause) -> Node:
        """Return the predicate adjective, with its degree or what it is compared to."""
        adjective = clause.adjective
        if clause.than:
            than = [self.function("than"), self.noun_phrase(clause.than, "n", "NP")]
            comparative = Leaf(adjective.comparative[self.side], "JJR", adjective)
            return Node("ADJP", [comparative, Node("PP", than)])
        degree = clause.degree and self.word(clause.degree)
        return Node("ADJP", some(degree, self.word(adjective, "JJ")))

    def arranged(self, clause: Clause, **parts: Any) -> list[Any]:
        """Return objects, adverbials and predicate adjective in the order of this language.

        Args:
            parts: parts that only this language has there, by their names in `order`.
        """
        objects: dict[str, list[Any]] = defaultdict(list)
        for slot, np in clause.filled:
            if slot is not clause.gap:
                bare = "pronoun-" * bool(np.pronoun) + slot.case
                kind = "preposition" if np.preposition[self.side] else bare
                objects[kind].append(self.phrase(np, slot.case))
        parts["time"] = clause.front != "time" and self.time(clause)
        parts["place"] = clause.place and self.phrase(clause.place)
        parts["adjective"] = clause.adjective and self.adjective_phrase(clause)
        groups = (objects[name] or [parts.get(name)] for name in self.order.split())
        return some(*chain.from_iterable(groups))

    def verbs(self, clause: Clause) -> list[Leaf]:
        """Return the finite verb, and the infinitive or participle after an auxiliary."""
        verb, past = clause.verb, clause.past
        forms = verb.de if self.side else verb.en
        cell = 3 * past + clause.subject.agreement
        tag = "VBD" if past else "VBP"
        auxiliary, form = VERB_GROUPS[clause.modal or clause.tense][self.side]
        if not auxiliary:
            return [Leaf(forms.finite[cell], tag, verb)]
        if auxiliary == "haben" and verb.de.sein:
            auxiliary = "sein"
        main = Leaf(getattr(forms, form), TAGS[form], verb)
        return [Leaf(FINITE[auxiliary][cell], tag, auxiliary), main]

    def opening(self, clause: Clause) -> list[Any]:
        """Return what stands before the subject in English, before the verb in German."""
        if clause.front == "time":
            return [self.time(clause)]
        if clause.front == "sub" and clause.dependent:
            return [self.subordinate(*clause.dependent), comma()]
        word = clause.front or clause.question
        return [] if word in {"", "yn"} else [self.function(word)]

    def dependent(self, clause: Clause) -> Any:
        """Return the clause that ends a clause, if there is one."""
        if clause.dependent is None or clause.front == "sub":
            return None
        conjunction, inner = clause.dependent
        if conjunction == "to":
            return self.infinitive(inner)
        return self.subordinate(conjunction, inner)

    def sentence(self, clause: Clause) -> Node:
        """Return a whole sentence with its full stop or question mark."""
        top = self.main_clause(clause)
        if clause.second:
            conjunction, other = clause.second
            pause = conjunction == "but" and comma()
            link = self.function(conjunction)
            top = Node("COORD", some(top, pause, link, self.main_clause(other)))
        top.kids.append(Leaf("?" if clause.question else ".", "."))
        return Node("ROOT", [top])
