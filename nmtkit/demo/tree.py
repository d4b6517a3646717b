"""Trees of words: what both renderers build, and the text they make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nmtkit.demo.english import article

CLOSING = {",", ".", "?"}


class Leaf:
    """A word: its `form`, part-of-speech `tag` (Penn Treebank in English, STTS in German), lexicon entry `lex`, and a `role`.

    Roles: fin (finite verb), verb (main verb), head (head noun of a subject or object), det, adj, neg, prefix, zu, it.
    """

    __slots__ = ("form", "lex", "role", "tag")

    def __init__(self, form: str, tag: str, lex: Any = None, role: str = "") -> None:
        self.form, self.tag, self.lex, self.role = form, tag, lex, role


class Node:
    """A constituent: `label`, `kids` (nodes and leaves), `info` for what the label leaves open (a clause's or noun phrase's abstract form)."""

    __slots__ = ("info", "kids", "label")

    def __init__(self, label: str, kids: list[Node | Leaf], info: Any = None) -> None:
        self.label, self.kids, self.info = label, kids, info

    def nodes(self) -> Iterator[Node]:
        """This node and all below it, from the left."""
        yield self
        for kid in self.kids:
            if isinstance(kid, Node):
                yield from kid.nodes()


def leaves(tree: Node) -> list[Leaf]:
    """The words of a tree, from the left, with the commas that orthography leaves: none doubled, none beside a full stop or at the start."""
    found: list[Leaf] = []
    _collect(tree, found)
    return [leaf for at, leaf in enumerate(found) if leaf.form != "," or (at > 0 and at + 1 < len(found) and found[at + 1].form not in CLOSING)]


def _collect(tree: Node, found: list[Leaf]) -> None:
    for kid in tree.kids:
        if isinstance(kid, Leaf):
            found.append(kid)
        else:
            _collect(kid, found)


def tokens(words: list[Leaf]) -> list[str]:
    """The words of a sentence as tokens: `a` before a vowel is `an`, the first word is capitalised, punctuation stands alone."""
    return " ".join(_forms(words)).split(" ")


def _forms(words: list[Leaf]) -> list[str]:
    forms = [leaf.form for leaf in words]
    for at, form in enumerate(forms):
        if form == "a" and words[at].tag == "DT":
            forms[at] = article(forms[at + 1])
    forms[0] = forms[0][0].upper() + forms[0][1:]
    return forms


def text(words: list[Leaf]) -> str:
    """A sentence as written: punctuation joined to the word before it, the genitive's 's to its noun."""
    written = " ".join(_forms(words))
    return written.replace(" ,", ",").replace(" .", ".").replace(" ?", "?").replace(" 's", "'s")


def depth(tree: Node) -> int:
    """The number of constituents on the longest way from the root to a word, the word's part of speech counted as one."""
    return 1 + max((depth(kid) if isinstance(kid, Node) else 1) for kid in tree.kids)
