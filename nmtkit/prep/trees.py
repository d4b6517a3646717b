"""Phrases of a sentence from its constituency tree.

A line has one tree, `(S (NP (DT the) (NN fox)) (VP (VBD ran)))`, or several. The tokens of a tree
may differ from our words, so both are aligned by their characters. Algorithm 1 of Xu et al. 2020
cuts the tree into phrases.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
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
# A quote becomes one apostrophe and a double quote two, so `` and '' of the Penn Treebank equal the
# double quotes of a text.
_ALIKE = str.maketrans(
    dict.fromkeys("`´‘’‚‛‹›ʼ", "'")
    | dict.fromkeys('"“”„‟«»″', "''")
    | dict.fromkeys("‐‑‒–—―−", "-")
    | dict.fromkeys("\\\ufeff\u200b\u200c\u200d\u00ad ", "")
)


class Unusable(ValueError):
    """Raised for a line that gives no phrases. The message is the reason that prep counts."""


@dataclass(eq=False, slots=True)
class Tree:
    """A node. `size` is the number of its subwords that are not cut off yet. Only a leaf has
    `text`.
    """

    label: str = ""
    children: list[Tree] = field(default_factory=list)
    text: str | None = None
    size: int = 0

    def nodes(self) -> list[Tree]:
        """Return this node and all nodes below it: parents first, from left to right."""
        nodes, waiting = [], [self]
        while waiting:
            nodes.append(waiting.pop())
            waiting += reversed(nodes[-1].children)
        return nodes

    def leaves(self) -> list[Tree]:
        """Return the leaves from left to right."""
        return [node for node in self.nodes() if node.text is not None]


def read_tree(line: str) -> Tree:
    """Read a bracketed tree.

    Traces (-NONE-), nodes without words and an outer bracket without a category (ROOT) are left
    out. Several trees on a line get a common root without a category.

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
    """Return a token in a form that is equal in all tokenizations: brackets, quotes, slashes,
    dashes and case are written in one way, and Moses' escapes are undone.
    """
    token = html.unescape(token) if "&" in token else token
    # Quotes come first, because NFKC turns ´ into a space with an accent.
    token = unicodedata.normalize("NFKC", token.translate(_ALIKE)).casefold()
    return _SPELLED.get(token, token).translate(_ALIKE)


def carry_words(tree: Tree, words: Sequence[str], sizes: Sequence[int], longest: int) -> None:
    """Put our words into the leaves of a tree: each word into the leaf with its first character.

    A leaf with several words becomes a node of these words. A word with more than `longest`
    subwords becomes a node of pieces. Leaves without a word are removed. Every node gets its size.

    Args:
        tree: from `read_tree`; changed in place.
        words: our words of the sentence.
        sizes: subwords of each word.
        longest: the largest number of subwords of a phrase.
    Raises: Unusable if tree and words have different texts.
    """
    leaves = tree.leaves()
    theirs = [letters(leaf.text or "") for leaf in leaves]
    ours = [letters(word) for word in words]
    if "".join(theirs) != "".join(ours):
        raise Unusable("other text")
    ends = list(accumulate(map(len, theirs)))
    start = 0
    for word, text, size in zip(words, ours, sizes, strict=True):
        leaf = leaves[min(bisect_right(ends, start), len(leaves) - 1)]
        leaf.children.append(_word(word, size, longest))
        start += len(text)
    for leaf in leaves:
        leaf.size = sum(word.size for word in leaf.children)
        if len(leaf.children) == 1:
            leaf.children = leaf.children[0].children  # the pieces of a word that is cut
        if leaf.children:
            leaf.text = None
    for node in reversed(tree.nodes()):  # children before their parents
        if node.children:
            node.children = [child for child in node.children if child.size]
            node.size = sum(child.size for child in node.children)


def _word(text: str, size: int, longest: int) -> Tree:
    if size <= longest:
        return Tree(text=text, size=size)
    pieces = [Tree(text=text, size=min(longest, size - start)) for start in range(0, size, longest)]
    return Tree(children=pieces, size=size)


def cut(tree: Tree, longest: int) -> list[int]:
    """Cut a sentence into phrases of neighbouring constituents, from right to left.

    The first node down the right edge with at most `longest` tokens is the end of a phrase. Its
    left neighbours at the same depth join the phrase while there is room. The tree is empty
    afterwards.

    Args:
        tree: each leaf has at most `longest` tokens.
        longest: the largest number of tokens of a phrase.
    Returns: tokens of each phrase, from left to right.
    Source: Xu et al. 2020, Algorithm 1, corrected twice: "at most" (as in the paper's text) instead
        of "less than", and the room after the first constituent, which is never set there.
        Takes O(tokens · depth).
    """
    phrases = []
    while tree.size:
        path = [tree]
        while path[-1].size > longest:
            path.append(path[-1].children[-1])
        depth = len(path) - 1
        total = path[-1].size
        _remove(path)
        while total < longest:
            path = _right_edge(tree, depth)
            if len(path) <= depth or not path[-1].size or path[-1].size > longest - total:
                break
            total += path[-1].size
            _remove(path)
        phrases.append(total)
    return phrases[::-1]


def _right_edge(tree: Tree, depth: int) -> list[Tree]:
    """Return the last nodes of the tree down to a depth, or to the end of the edge."""
    path = [tree]
    while len(path) <= depth and path[-1].children:
        path.append(path[-1].children[-1])
    return path


def _remove(path: list[Tree]) -> None:
    """Remove the last node of a right edge, and the nodes above it that become empty."""
    size = path[-1].size
    for node in path:
        node.size -= size
    for parent, node in zip(path[-2::-1], path[:0:-1], strict=True):
        if node.size:
            break
        parent.children.pop()


def longest_phrase(tokens: int) -> int:
    """Return the largest number of tokens of a phrase: a sixth of the sentence, but 3 to 8 (Xu et
    al., §3.1).
    """
    return max(min(8, -(-tokens // 6)), 3)


def parse_phrases(line: str, words: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """Cut a sentence into phrases by its parse.

    Args:
        line: the bracketed tree.
        words: our words of the sentence.
        sizes: subwords of each word.
    Returns: subwords of each phrase from left to right. </s> counts as a leaf below the root.
    Raises: Unusable if the line gives no phrases.
    """
    tree = read_tree(line)
    longest = longest_phrase(sum(sizes) + 1)
    carry_words(tree, words, sizes, longest)
    tree.children.append(Tree(text="</s>", size=1))
    tree.size += 1
    return cut(tree, longest)
