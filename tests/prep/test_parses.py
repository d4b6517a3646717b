"""Phrases from constituency trees: Algorithm 1 of Xu et al. 2020 against a slow version, on worked
examples and on real trees.
"""

import math
import random
import zipfile

import pytest

from nmtkit.prep.trees import (
    Tree,
    Unusable,
    carry_words,
    cut,
    longest_phrase,
    parse_phrases,
    read_tree,
)
from nmtkit.text.moses import Moses

FOX = (
    "(S (NP (DT the) (JJ quick) (NN fox)) (VP (VBD jumped) (PP (IN over) (NP (DT the) (JJ lazy) (NN"
    " dog)))) (. .))"
)
SINGS = (
    "(S (NP (PRP he)) (ADVP (RB often)) (VP (VBZ says) (SBAR (IN that) (S (NP (PRP she)) (VP (VBZ"
    " sings))))) (. .))"
)


class Slow:
    """Algorithm 1 as the paper words it: nodes are marked as gone, and whoever asks for tokens
    collects them anew.
    """

    def __init__(self, tree):
        self.children = [Slow(child) for child in tree.children]
        self.own = [] if tree.children else [tree.text] * tree.size
        self.gone = False

    def tokens(self):
        return (
            []
            if self.gone
            else self.own + [token for child in self.children for token in child.tokens()]
        )

    def right_edge(self):
        edge = [self]
        while last := next(
            (child for child in reversed(edge[-1].children) if child.tokens()), None
        ):
            edge.append(last)
        return edge

    def phrases(self, n):
        found = []
        while self.tokens():
            depth, st = next(
                (d, node) for d, node in enumerate(self.right_edge()) if len(node.tokens()) <= n
            )
            p = st.tokens()
            st.gone = True
            mt = n - len(p)
            while mt > 0:
                edge = self.right_edge()
                sta = edge[depth] if depth < len(edge) else None
                if sta is None or not sta.tokens() or len(sta.tokens()) > mt:
                    break
                p = sta.tokens() + p
                mt -= len(sta.tokens())
                sta.gone = True
            found.append(p)
        return found[::-1]


def tree_of(text, n, sizes=None):
    tree = read_tree(text)
    words = [leaf.text for leaf in tree.leaves()]
    carry_words(tree, words, sizes or [1] * len(words), n)
    return tree


def as_text(text, n, sizes=None):
    tree = tree_of(text, n, sizes)
    tokens = [leaf.text for leaf in tree.leaves() for _ in range(leaf.size)]
    starts = 0
    found = []
    for length in cut(tree, n):
        found.append(" ".join(tokens[starts : starts + length]))
        starts += length
    return found


WORKED = {
    3: ["the quick fox", "jumped over", "the lazy dog", "."],
    4: ["the quick fox jumped", "over the lazy dog", "."],
    5: ["the quick fox", "jumped over the lazy dog", "."],
    2: ["the", "quick fox", "jumped", "over the", "lazy dog", "."],
}


@pytest.mark.parametrize("n", WORKED)
def test_worked_examples(n):
    """Cut by hand."""
    assert as_text(FOX, n) == WORKED[n]
    assert [" ".join(p) for p in Slow(tree_of(FOX, n)).phrases(n)] == WORKED[n]


def test_as_the_reference_computes_them(shared):
    """The reference's own code, cut out of the file, on both of its trees."""
    text = (shared / "reference" / "golden_values.py").read_text("utf-8")
    start = text.index("class N:")
    space = {}
    exec(text[start : text.index('T = "(S')], space)
    for tree in (FOX, SINGS):
        for n in range(1, 13):
            assert as_text(tree, n) == [
                " ".join(p) for p in space["phrases"](space["parse"](tree), n)
            ]


def test_end_of_sentence_is_a_leaf_below_the_root():
    """9 words and </s>: 10 tokens, at most 3 in a phrase; </s> and the full stop are both at
    depth 1.
    """
    words = ["the", "quick", "fox", "jumped", "over", "the", "lazy", "dog", "."]
    assert parse_phrases(FOX, words, [1] * 9) == [3, 2, 3, 2]
    for wrapped in (
        f"( {FOX} )",
        f"(ROOT {FOX})",
        f"(TOP (S1 {FOX}))",
        FOX.replace("(S ", "(S(", 1).replace("(NP", "NP", 1),
    ):
        assert parse_phrases(wrapped, words, [1] * 9) == [3, 2, 3, 2]
    assert parse_phrases("(NN fox)", ["fox"], [1]) == [2]
    assert parse_phrases("(ROOT fox)", ["fox"], [4]) == [
        3,
        1,
        1,
    ]  # a word of 4 pieces is a node at the depth of </s>, too long to join it


def test_subwords_are_carried_by_their_word():
    words = ["the", "quick", "fox", "jumped", "over", "the", "lazy", "dog", "."]
    assert as_text(FOX, 3, [1, 1, 2, 1, 1, 1, 1, 2, 1]) == [
        "the",
        "quick fox fox",
        "jumped over the",
        "lazy dog dog",
        ".",
    ]
    sizes = [1, 1, 7, 1, 1, 1, 1, 1, 1]
    assert as_text(FOX, 3, sizes) == [
        "the quick",
        "fox fox fox",
        "fox fox fox",
        "fox",
        "jumped over",
        "the lazy dog",
        ".",
    ]
    found = parse_phrases(FOX, words, sizes)
    assert sum(found) == sum(sizes) + 1 and max(found) <= 3


def test_a_leaf_without_a_word_is_no_neighbour():
    leaves = ["a", "b", "c", "d", "e", "f", "g", "h", "can", "not"]
    flat = f"(S {' '.join(f'(X {leaf})' for leaf in leaves)})"
    assert parse_phrases(flat, [*leaves[:8], "cannot"], [1] * 9) == [1, 3, 3, 3]


TREES = [
    "( (S (NP-SBJ (-NONE- *-1) ) (VP (TO to) (VP (VB go) (NP (-NONE- *T*-2))))))",
    "(S(NP(PRP I))(VP(VBD went)))",
]


def test_traces_and_what_holds_only_them_are_left_out():
    assert [[leaf.text for leaf in read_tree(tree).leaves()] for tree in TREES] == [
        ["to", "go"],
        ["I", "went"],
    ]
    tree = read_tree(TREES[0])
    assert (tree.label, [child.label for child in tree.children]) == ("S", ["VP"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "blank"),
        (" \t", "blank"),
        ("(())", "blank"),
        ("( (S (-NONE- *)))", "blank"),
        ("(S (NP a)", "not a tree"),
        ("(S (NP a)))", "not a tree"),
        ("(S a) b", "not a tree"),
        ("a (S b)", "not a tree"),
        ("(S a)) (S b)", "not a tree"),
        ("no tree", "not a tree"),
        ("(S (NN b))", "other text"),
        ("(S (NN a) (NN a))", "other text"),
    ],
)
def test_what_gives_no_phrases_says_why(line, reason):
    with pytest.raises(Unusable, match=reason):
        parse_phrases(line, ["a"], [1])


PAIRED = [  # leaves of the Penn Treebank, our words, the leaf of each word
    ("do n't stop", "don 't stop", [0, 1, 2]),
    ("-LRB- a -RRB-", "( a )", [0, 1, 2]),
    ("-LRB- a -RRB-", "&#40; a )".replace("&#40;", "("), [0, 1, 2]),
    ("`` Yes '' , he", '" yes " , he', [0, 1, 2, 3, 4]),
    ("`` Yes '' ,", "&quot; Yes &quot; ,", [0, 1, 2, 3]),
    ("“ Yes ”", '" Yes "', [0, 1, 2]),
    ("dog 's", "dog &apos;s", [0, 1]),
    ("a well-known man", "a well @-@ known man", [0, 1, 1, 1, 2]),
    ("a well - known man", "a well-known man", [0, 1, 4]),
    ("1\\/2 can not", "1 / 2 cannot", [0, 0, 0, 1]),
    ("she said -- well", "She said — well".replace("—", "--"), [0, 1, 2, 3]),
    ("AT&T &amp; [", "AT & T & &#91;", [0, 0, 0, 1, 2]),
]


@pytest.mark.parametrize(("leaves", "words", "expected"), PAIRED)
def test_words_find_their_leaves_by_characters(leaves, words, expected):
    tree = read_tree("(S " + " ".join(f"(X {leaf})" for leaf in leaves.split()) + ")")
    before = list(tree.children)
    carry_words(tree, words.split(), list(range(1, len(words.split()) + 1)), 99)
    sizes = {id(node): node.size for node in tree.children}
    for i, node in enumerate(before):
        assert sizes.get(id(node), 0) == sum(
            size for size, leaf in enumerate(expected, 1) if leaf == i
        )
    assert tree.size == sum(range(1, len(words.split()) + 1))


def random_tree(draw, depth=0):
    count = draw.randint(1, 4)
    return (
        "(X "
        + " ".join(
            "(Y w)" if depth > 4 or draw.random() < 0.45 else random_tree(draw, depth + 1)
            for _ in range(count)
        )
        + ")"
    )


def test_equals_the_slow_algorithm_on_drawn_trees():
    draw = random.Random(4)
    for _ in range(100):
        text = random_tree(draw)
        sizes = [draw.choice([1, 1, 1, 2, 3, 9]) for _ in read_tree(text).leaves()]
        for n in (2, 3, 5, 8):
            expected = [len(p) for p in Slow(tree_of(text, n, sizes)).phrases(n)]
            assert cut(tree_of(text, n, sizes), n) == expected
            assert sum(expected) == sum(sizes) and max(expected) <= n


def treebank(shared):
    """The bracketed trees of the sample, one a line."""
    trees = []
    with zipfile.ZipFile(shared / "data" / "treebank" / "treebank.zip") as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".mrg"):
                depth, part = 0, []
                for line in archive.read(name).decode().splitlines():
                    depth += line.count("(") - line.count(")")
                    part.append(line.strip())
                    if depth == 0 and any(part):
                        trees.append(" ".join(part).strip())
                        part = []
    return trees


def test_real_trees(shared):
    """All trees of the sample are aligned with our tokenization but for one; every fourth, with
    random subwords, is cut as by the slow algorithm.
    """
    trees = treebank(shared)
    assert len(trees) == 3914
    draw, moses, missed = random.Random(1), Moses("en", True, True, False), []
    for number, text in enumerate(trees):
        leaves = [leaf.text for leaf in read_tree(text).leaves()]
        sizes = [draw.choice([1, 1, 1, 2, 4]) for _ in leaves]
        n = longest_phrase(sum(sizes) + 1)
        assert n == max(min(8, math.ceil((sum(sizes) + 1) / 6)), 3)
        tree = tree_of(text, n, sizes)
        tree.children.append(Tree(text="</s>", size=1))
        tree.size += 1
        found = parse_phrases(text, leaves, sizes)
        assert sum(found) == sum(sizes) + 1 and max(found) <= n
        if number % 4 == 0:
            assert found == [len(p) for p in Slow(tree).phrases(n)]
        words = moses.tokenize(plain(leaves)).split(" ")
        try:
            found = parse_phrases(text, words, [1] * len(words))
            assert sum(found) == len(words) + 1
        except Unusable:
            missed.append(text)
    assert len(missed) <= 1  # a quotation mark that normalisation puts behind the full stop


def plain(leaves):
    """Leaves as running text has them."""
    spelled = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
    text = " ".join(spelled.get(leaf, leaf).replace("\\", "") for leaf in leaves)
    for mark in (",", ".", "?", "!", ";", ":", "'s", "n't", ")", "%"):
        text = text.replace(f" {mark}", mark)
    return text.replace("( ", "(").replace("$ ", "$")


def shape(tree):
    return tree.text if tree.text is not None else (tree.label, *map(shape, tree.children))


def test_sentences_of_one_line_stand_under_one_root():
    """Lines of real corpora have two sentences; the brackets around each that have no category
    of their own go, as they do around one.
    """
    expected = ("", ("S", ("X", "a"), ("Y", "b")), ("S", ("X", "c")))
    for line in (
        "(S (X a) (Y b)) (S (X c))",
        "(ROOT (S (X a) (Y b))) (TOP ( (S (X c))))",
        "((S (X a) (Y b)) (S (X c)))",
        "(S (X a) (Y b)) (S (-NONE- *)) (S (X c))",
    ):
        assert shape(read_tree(line)) == expected
    words = [f"w{i}" for i in range(9)]
    first, second = (" ".join(f"(X {word})" for word in own) for own in (words[:4], words[4:]))
    assert parse_phrases(f"(S {first}) (S {second})", words, [1] * 9) == parse_phrases(
        f"(T (S {first}) (S {second}))", words, [1] * 9
    )
