"""Phrases of a sentence from its constituency tree: bracketed trees, their leaves aligned with our
words, and Algorithm 1.

A line is a tree, `(S (NP (DT the) (NN fox)) (VP (VBD ran)))`, or several. Its tokenization need not
be ours: both are compared by their characters.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_PART = re.compile(r"[()]|[^\s()]+")
_WRAPPERS = frozenset({"", "ROOT", "TOP", "S1"})
_TRACE = "-NONE-"
_SPELLED = {
    "-lrb-": "(",
    "-rrb-": ")",
    "-lsb-": "[",
    "-rsb-": "]",
    "-lcb-": "{",
    "-rcb-": "}",
    "@-@": "-",
}
# Every quote becomes apostrophes, a double one two: `` and '' of the Penn Treebank, " and what a
# text has are then alike.
_ALIKE = str.maketrans(
    dict.fromkeys("`´‘’‚‛‹›ʼ", "'")
    | dict.fromkeys('"“”„‟«»″', "''")
    | dict.fromkeys("‐‑‒–—―−", "-")
    | dict.fromkeys("\\\ufeff\u200b\u200c\u200d\u00ad ", "")
)


class Unusable(ValueError):
    """A line that gives no phrases, with the reason that is counted."""


class Tree:
    """A node: how many tokens it has left, and its children that have some; a leaf has no
    children but a text.
    """

    __slots__ = ("children", "label", "size", "text")

    def __init__(
        self,
        label: str = "",
        children: list[Tree] | None = None,
        text: str | None = None,
        size: int = 0,
    ) -> None:
        self.label = label
        self.children = children or []
        self.text = text
        self.size = size

    def leaves(self) -> list[Tree]:
        """Its leaves from left to right."""
        found, waiting = [], [self]
        while waiting:
            node = waiting.pop()
            if node.text is not None:
                found.append(node)
            waiting += reversed(node.children)
        return found


def read_tree(line: str) -> Tree:
    """Read a bracketed tree; traces (-NONE-) and nodes without words are left out, and so is an
    outer bracket without a category (ROOT).

    Several trees on the line, of a line with several sentences, stand under one root without a
    category.

    Raises: Unusable for a blank line, trees without words, or brackets that do not make trees.
    """
    top = Tree()
    open_nodes = [top]
    labelled = True
    for part in _PART.findall(line):
        if part == "(":
            open_nodes.append(Tree())
            labelled = False
            continue
        if part == ")":
            node = open_nodes.pop()
            if not open_nodes:
                raise Unusable("not a tree")
            if node.children and node.label != _TRACE:
                open_nodes[-1].children.append(node)
        elif labelled:
            open_nodes[-1].children.append(Tree(text=part))
        else:
            open_nodes[-1].label = part
        labelled = True
    if len(open_nodes) > 1 or any(child.text is not None for child in top.children):
        raise Unusable("not a tree")
    if not top.children:
        raise Unusable("blank")
    top = _unwrapped(top)
    if top.label in _WRAPPERS:
        top.children = [_unwrapped(child) for child in top.children]
    return top


def _unwrapped(tree: Tree) -> Tree:
    while len(tree.children) == 1 and tree.label in _WRAPPERS and tree.children[0].text is None:
        tree = tree.children[0]
    return tree


@functools.lru_cache(maxsize=1 << 16)
def letters(token: str) -> str:
    """What of a token can be compared between tokenizations: brackets, quotes, slashes, dashes
    and case written one way, Moses' escapes undone.
    """
    token = html.unescape(token) if "&" in token else token
    token = unicodedata.normalize(
        "NFKC", token.translate(_ALIKE)
    ).casefold()  # NFKC makes ´ a space with an accent: quotes come first
    return _SPELLED.get(token, token).translate(_ALIKE)


def carry_words(tree: Tree, words: Sequence[str], sizes: Sequence[int], most: int) -> None:
    """Give the leaves of a tree our words; each word goes to the leaf that its first character is
    in.

    A leaf of several of our words becomes a node of them, and a word of more than `most` subwords a
    node of its pieces. Leaves that get no word go, and all nodes learn how many subwords they have.

    Args:
        tree: as `read_tree` gives it; changed in place.
        words: ours, of the same sentence.
        sizes: subwords of each.
        most: of a phrase.
    Raises: Unusable if tree and words are not of the same text.
    """
    leaves = tree.leaves()
    theirs = [letters(leaf.text or "") for leaf in leaves]
    ours = [letters(word) for word in words]
    if "".join(theirs) != "".join(ours):
        raise Unusable("other text")
    ends = list(accumulate(map(len, theirs)))
    carried: dict[int, list[Tree]] = {}
    start = 0
    for word, own, size in zip(words, ours, sizes, strict=True):
        leaf = leaves[min(bisect_right(ends, start), len(leaves) - 1)]
        carried.setdefault(id(leaf), []).append(_word(word, size, most))
        start += len(own)
    _settle(tree, carried)


def _word(text: str, size: int, most: int) -> Tree:
    if size <= most:
        return Tree(text=text, size=size)
    pieces = [Tree(text=text, size=min(most, size - start)) for start in range(0, size, most)]
    return Tree(children=pieces, size=size)


def _settle(tree: Tree, carried: dict[int, list[Tree]]) -> None:
    """Put the words where their leaves are, sum the sizes, and drop what has none; children
    before their parents.
    """
    order, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += node.children
    for node in reversed(order):
        if node.text is None:
            node.children = [child for child in node.children if child.size]
            node.size = sum(child.size for child in node.children)
        elif id(node) in carried:
            words = carried[id(node)]
            node.size = sum(word.size for word in words)
            if len(words) > 1 or words[0].children:  # a leaf of one plain word stays as it is
                node.text = None
                node.children = words if len(words) > 1 else words[0].children


def cut(tree: Tree, most: int) -> list[int]:
    """Cut a sentence into phrases of neighbouring constituents, from the right; the tree is used
    up.

    The right edge is gone down to the first node of at most `most` tokens, then its left neighbours
    at the same depth join as long as there is room.

    Args:
        tree: whose leaves have at most `most` tokens each.
        most: tokens of a phrase.
    Returns: tokens of each phrase, from left to right.
    Source: Xu et al. 2020, Algorithm 1, with "at most" as the text says where the print has "less
        than", and with the room that the first constituent leaves, which the print forgets to set.
        Takes O(tokens · depth).
    """
    phrases = []
    while tree.size:
        path = [tree]
        while path[-1].size > most:
            path.append(path[-1].children[-1])
        depth = len(path) - 1
        total = path[-1].size
        _remove(path)
        while total < most:
            path = _right_edge(tree, depth)
            if len(path) <= depth or not path[-1].size or path[-1].size > most - total:
                break
            total += path[-1].size
            _remove(path)
        phrases.append(total)
    return phrases[::-1]


def _right_edge(tree: Tree, depth: int) -> list[Tree]:
    """The last nodes of the tree down to a depth, or to where the edge ends."""
    path = [tree]
    while len(path) <= depth and path[-1].children:
        path.append(path[-1].children[-1])
    return path


def _remove(path: list[Tree]) -> None:
    """Take the last node of a right edge away, and with it the nodes that have nothing left."""
    size = path[-1].size
    for node in path:
        node.size -= size
    for parent, node in zip(path[-2::-1], path[:0:-1], strict=True):
        if node.size:
            break
        parent.children.pop()


def longest_phrase(tokens: int) -> int:
    """Most tokens of a phrase in a sentence of so many: a sixth, but at least 3 and at most 8
    (Xu et al. 2020, §3.1).
    """
    return max(min(8, -(-tokens // 6)), 3)


def parse_phrases(line: str, words: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """The phrases of a sentence by its parse.

    Args:
        line: the bracketed tree.
        words: of the sentence as we tokenize it.
        sizes: subwords of each.
    Returns: subwords of each phrase from left to right, </s> included: a leaf of its own below the
        root.
    Raises: Unusable where the line gives no phrases.
    """
    tree = read_tree(line)
    most = longest_phrase(sum(sizes) + 1)
    carry_words(tree, words, sizes, most)
    tree.children.append(Tree(text="</s>", size=1))
    tree.size += 1
    return cut(tree, most)
