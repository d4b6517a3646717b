"""Phrases from constituency trees: Algorithm 1 of Xu et al. 2020 equals worked examples and a slow
version, on generated and on real trees.
"""

import functools
import itertools
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


class SlowTree:
    """Algorithm 1 as the paper words it: nodes are marked as gone, tokens are collected anew."""

    def __init__(self, tree):
        self.children = [SlowTree(child) for child in tree.children]
        self.leaf = [] if tree.children else [tree.text] * tree.size
        self.gone = False

    def tokens(self):
        if self.gone:
            return []
        return self.leaf + [token for child in self.children for token in child.tokens()]

    def right_edge(self):
        edge = [self]
        while remaining := [child for child in edge[-1].children if child.tokens()]:
            edge.append(remaining[-1])
        return edge

    def phrases(self, n):
        """Return phrases of at most n tokens, taken from the right."""
        phrases = []
        while self.tokens():
            edge = self.right_edge()
            depth = next(d for d, node in enumerate(edge) if len(node.tokens()) <= n)
            phrase = edge[depth].tokens()
            edge[depth].gone = True
            while len(phrase) < n:
                edge = self.right_edge()
                neighbour = edge[depth].tokens() if depth < len(edge) else []
                if not neighbour or len(neighbour) > n - len(phrase):
                    break
                phrase = neighbour + phrase
                edge[depth].gone = True
            phrases.append(phrase)
        return phrases[::-1]


def tree_of(text, n, sizes=None):
    tree = read_tree(text)
    words = [leaf.text for leaf in tree.leaves()]
    carry_words(tree, words, sizes or [1] * len(words), n)
    return tree


def phrases_of(text, n, sizes=None):
    tree = tree_of(text, n, sizes)
    tokens = iter([leaf.text for leaf in tree.leaves() for _ in range(leaf.size)])
    return [" ".join(itertools.islice(tokens, length)) for length in cut(tree, n)]


def slow_phrases(text, n, sizes=None):
    return [" ".join(phrase) for phrase in SlowTree(tree_of(text, n, sizes)).phrases(n)]


WORKED = {
    3: ["the quick fox", "jumped over", "the lazy dog", "."],
    4: ["the quick fox jumped", "over the lazy dog", "."],
    5: ["the quick fox", "jumped over the lazy dog", "."],
    2: ["the", "quick fox", "jumped", "over the", "lazy dog", "."],
}


@pytest.mark.parametrize("n", WORKED)
def test_phrases_equal_those_cut_by_hand(n):
    assert phrases_of(FOX, n) == slow_phrases(FOX, n) == WORKED[n]


@pytest.mark.parametrize("tree", [FOX, SINGS], ids=["fox", "sings"])
def test_phrases_equal_the_golden_values(shared, tree):
    """The code of the reference, taken out of its file."""
    text = (shared / "reference" / "golden_values.py").read_text("utf-8")
    code = text[text.index("class N:") : text.index('T = "(S')]
    reference = {}
    exec(code, reference)
    for n in range(1, 13):
        golden = reference["phrases"](reference["parse"](tree), n)
        assert phrases_of(tree, n) == [" ".join(phrase) for phrase in golden]


FOX_WORDS = ["the", "quick", "fox", "jumped", "over", "the", "lazy", "dog", "."]


@pytest.mark.parametrize(
    "tree",
    [
        FOX,
        f"( {FOX} )",
        f"(ROOT {FOX})",
        f"(TOP (S1 {FOX}))",
        FOX.replace("(S ", "(S(", 1).replace("(NP", "NP", 1),
    ],
    ids=["plain", "brackets", "ROOT", "TOP and S1", "no space"],
)
def test_end_of_sentence_is_a_leaf_below_the_root(tree):
    """9 words and </s>: 10 tokens, at most 3 in a phrase; </s> and the full stop have depth 1."""
    assert parse_phrases(tree, FOX_WORDS, [1] * 9) == [3, 2, 3, 2]


def test_single_word_and_end_of_sentence_share_a_phrase_if_they_fit():
    assert parse_phrases("(NN fox)", ["fox"], [1]) == [2]
    # a word of 4 subwords is a node at the depth of </s>, too long to join it
    assert parse_phrases("(ROOT fox)", ["fox"], [4]) == [3, 1, 1]


@pytest.mark.parametrize(
    ("sizes", "phrases"),
    [
        (
            [1, 1, 2, 1, 1, 1, 1, 2, 1],
            ["the", "quick fox fox", "jumped over the", "lazy dog dog", "."],
        ),
        (
            [1, 1, 7, 1, 1, 1, 1, 1, 1],
            ["the quick", *["fox fox fox"] * 2, "fox", "jumped over", "the lazy dog", "."],
        ),
    ],
)
def test_subwords_stay_in_the_node_of_their_word(sizes, phrases):
    assert phrases_of(FOX, 3, sizes) == phrases
    lengths = parse_phrases(FOX, FOX_WORDS, sizes)
    assert sum(lengths) == sum(sizes) + 1 and max(lengths) <= 3


def test_leaf_without_a_word_is_skipped_between_neighbours():
    leaves = ["a", "b", "c", "d", "e", "f", "g", "h", "can", "not"]
    flat = f"(S {' '.join(f'(X {leaf})' for leaf in leaves)})"
    assert parse_phrases(flat, [*leaves[:8], "cannot"], [1] * 9) == [1, 3, 3, 3]


TREES = [
    "( (S (NP-SBJ (-NONE- *-1) ) (VP (TO to) (VP (VB go) (NP (-NONE- *T*-2))))))",
    "(S(NP(PRP I))(VP(VBD went)))",
]


def test_traces_and_nodes_of_traces_only_are_left_out():
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
def test_unusable_tree_is_refused_with_its_reason(line, reason):
    with pytest.raises(Unusable, match=reason):
        parse_phrases(line, ["a"], [1])


PAIRED = [  # leaves of the Penn Treebank, our words, the leaf of each word
    ("do n't stop", "don 't stop", [0, 1, 2]),
    ("-LRB- a -RRB-", "( a )", [0, 1, 2]),
    ("`` Yes '' , he", '" yes " , he', [0, 1, 2, 3, 4]),
    ("`` Yes '' ,", "&quot; Yes &quot; ,", [0, 1, 2, 3]),
    ("“ Yes ”", '" Yes "', [0, 1, 2]),
    ("dog 's", "dog &apos;s", [0, 1]),
    ("a well-known man", "a well @-@ known man", [0, 1, 1, 1, 2]),
    ("a well - known man", "a well-known man", [0, 1, 4]),
    ("1\\/2 can not", "1 / 2 cannot", [0, 0, 0, 1]),
    ("she said -- well", "She said -- well", [0, 1, 2, 3]),
    ("AT&T &amp; [", "AT & T & &#91;", [0, 0, 0, 1, 2]),
]


@pytest.mark.parametrize(("leaves", "words", "expected"), PAIRED)
def test_words_are_aligned_with_leaves_by_their_characters(leaves, words, expected):
    tree = read_tree("(S " + " ".join(f"(X {leaf})" for leaf in leaves.split()) + ")")
    nodes, words = list(tree.children), words.split()
    carry_words(tree, words, list(range(1, len(words) + 1)), 99)
    sizes = {id(node): node.size for node in tree.children}
    for i, node in enumerate(nodes):
        carried = sum(size for size, leaf in enumerate(expected, 1) if leaf == i)
        assert sizes.get(id(node), 0) == carried
    assert tree.size == sum(range(1, len(words) + 1))


def random_tree(draw, depth=0):
    def child():
        is_leaf = depth > 4 or draw.random() < 0.45
        return "(Y w)" if is_leaf else random_tree(draw, depth + 1)

    return f"(X {' '.join(child() for _ in range(draw.randint(1, 4)))})"


def test_phrases_of_generated_trees_equal_the_slow_version():
    draw = random.Random(4)
    for _ in range(40):
        text = random_tree(draw)
        sizes = [draw.choice([1, 1, 1, 2, 3, 9]) for _ in read_tree(text).leaves()]
        for n in (2, 3, 5, 8):
            expected = [len(phrase) for phrase in SlowTree(tree_of(text, n, sizes)).phrases(n)]
            assert cut(tree_of(text, n, sizes), n) == expected
            assert sum(expected) == sum(sizes) and max(expected) <= n


@functools.cache
def treebank(shared):
    """Return the bracketed trees of the sample of the Penn Treebank."""
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


@pytest.fixture(scope="module")
def real_trees(shared):
    """Pairs (text, words of the leaves)."""
    trees = [(text, [leaf.text for leaf in read_tree(text).leaves()]) for text in treebank(shared)]
    assert len(trees) == 3914
    return trees


def test_phrases_of_real_trees_equal_the_slow_version(real_trees):
    """With random subwords; every eighth tree is compared with the slow version."""
    draw = random.Random(1)
    for number, (text, words) in enumerate(real_trees):
        sizes = [draw.choice([1, 1, 1, 2, 4]) for _ in words]
        length = sum(sizes) + 1
        n = longest_phrase(length)
        assert n == max(min(8, math.ceil(length / 6)), 3)
        phrases = parse_phrases(text, words, sizes)
        assert sum(phrases) == length and max(phrases) <= n
        if number % 8 == 0:
            tree = tree_of(text, n, sizes)
            tree.children.append(Tree(text="</s>", size=1))
            tree.size += 1
            assert phrases == [len(phrase) for phrase in SlowTree(tree).phrases(n)]


def test_real_trees_are_aligned_with_the_tokens_of_moses(real_trees):
    """All but one: normalisation puts a quotation mark behind the full stop."""
    moses, missed = Moses("en", True, True, False), 0
    for text, leaves in real_trees:
        words = moses.tokenize(plain(leaves)).split(" ")
        try:
            assert sum(parse_phrases(text, words, [1] * len(words))) == len(words) + 1
        except Unusable:
            missed += 1
    assert missed <= 1


def plain(leaves):
    """Return the running text of these leaves."""
    spelled = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
    text = " ".join(spelled.get(leaf, leaf).replace("\\", "") for leaf in leaves)
    for mark in (",", ".", "?", "!", ";", ":", "'s", "n't", ")", "%"):
        text = text.replace(f" {mark}", mark)
    return text.replace("( ", "(").replace("$ ", "$")


def shape(tree):
    return tree.text if tree.text is not None else (tree.label, *map(shape, tree.children))


def test_sentences_of_one_line_get_one_root():
    """Brackets without a category around each sentence are removed."""
    expected = ("", ("S", ("X", "a"), ("Y", "b")), ("S", ("X", "c")))
    for line in (
        "(S (X a) (Y b)) (S (X c))",
        "(ROOT (S (X a) (Y b))) (TOP ( (S (X c))))",
        "((S (X a) (Y b)) (S (X c)))",
        "(S (X a) (Y b)) (S (-NONE- *)) (S (X c))",
    ):
        assert shape(read_tree(line)) == expected
    words = [f"w{i}" for i in range(9)]
    leaves = [f"(X {word})" for word in words]
    first, second = (f"(S {' '.join(part)})" for part in (leaves[:4], leaves[4:]))
    phrases = parse_phrases(f"{first} {second}", words, [1] * 9)
    assert phrases == parse_phrases(f"(T {first} {second})", words, [1] * 9)
