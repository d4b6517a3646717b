"""Random segmentations: BPE-dropout equals the algorithm of its paper, and unigram sampling has the
probabilities of all segmentations.
"""

import itertools
import math
import random as random_of_subword_nmt
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.errors import ConfigError
from nmtkit.settings import PrepSettings
from nmtkit.text.bpe import Bpe, learn_bpe
from nmtkit.text.sampling import _lattice, merge_with_dropout, unigram_draw
from nmtkit.text.sentencepiece import SentencePiece, learn_sentencepiece
from nmtkit.text.side import TextSide
from nmtkit.text.splitter import Splitter
from tests.prep.real import lines
from tests.text.reference_bpe import reference_bpe, word_counts


@pytest.fixture(scope="module")
def counts(shared):
    text = lines(shared / "data/multi30k/tok/train.lc.norm.tok.de")[:3000]
    return word_counts(text)


@pytest.fixture(scope="module")
def bpe(counts, tmp_path_factory):
    codes = tmp_path_factory.mktemp("bpe") / "codes"
    learn_bpe([*counts], [*counts.values()], 800, codes)
    return codes


def slow_merge(symbols, ranks, dropout, random):
    """Merge by Algorithm 1 of Provilkov et al. 2020: each step looks at all pairs."""
    while True:
        merges = [
            (ranks[pair], place)
            for place, pair in enumerate(itertools.pairwise(symbols))
            if pair in ranks and random() >= dropout
        ]
        if not merges:
            return symbols
        best = min(merges)[0]
        places = {place for rank, place in merges if rank == best}
        result, place = [], 0
        while place < len(symbols):
            step = 2 if place in places else 1
            result.append("".join(symbols[place : place + step]))
            place += step
        symbols = result


@settings(deadline=None, max_examples=400)
@given(
    st.text("aab", min_size=1, max_size=14),
    st.permutations([(a, b) for a in ("a", "b", "aa", "ab") for b in ("a", "b", "aa", "ba")]),
    st.sampled_from([0, 0.1, 0.5, 1]),
    st.integers(0, 9),
)
def test_dropout_equals_the_algorithm_of_the_paper(word, pairs, dropout, seed):
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    wanted = slow_merge(list(word), ranks, dropout, Random(seed).random)
    got = merge_with_dropout(list(word), ranks.get, dropout, Random(seed).random)
    assert got == wanted


def test_dropout_0_gives_the_usual_segmentation_and_dropout_1_characters(bpe, counts):
    splitter = Bpe(bpe)
    nothing, everything = (splitter.sampler(p, set()) for p in (0, 1))
    for word in counts:
        assert nothing(word, Random(1)) == splitter.segment([word])
        assert "".join(everything(word, Random(1))).replace("@@", "") == word
        assert len(everything(word, Random(1))) == len(word)
    assert merge_with_dropout(["a", "b"], {("a", "b"): 0}.get, 0, lambda: 0.0) == ["ab"]
    # words that hold a marker have no random segmentation
    assert nothing("a</w>b", Random(1)) == nothing("x@@", Random(1)) == []


@pytest.mark.parametrize(("threshold", "several"), [(0, 20), (60, 6)])
def test_dropout_has_the_distribution_of_subword_nmt(bpe, counts, threshold, several):
    """With prep.vocab_threshold the merges to rarer subwords are undone."""
    usual, allowed = Counter(), None
    for word, number in counts.items():
        usual.update(dict.fromkeys(Bpe(bpe).segment([word]), number))
    if threshold:
        allowed = {piece for piece, number in usual.items() if number >= threshold}
    theirs = reference_bpe(bpe, allowed)
    draw, random, many = Bpe(bpe, allowed).sampler(0.2, set()), Random(5), 6000
    random_of_subword_nmt.seed(7)
    ours = Counter(" ".join(draw("zwischen", random)) for _ in range(many))
    reference = Counter(
        " ".join(theirs.segment_tokens(["zwischen"], dropout=0.2)) for _ in range(many)
    )
    assert len(reference) > several
    for segmentation in ours.keys() | reference.keys():
        first, second = ours[segmentation], reference[segmentation]
        assert abs(first - second) < 5 * math.sqrt(first + second + 5)
    letters = {f"{letter}@@" for letter in "zwische"} | {"n"}
    assert not threshold or {*" ".join(ours).split()} <= allowed | letters


SCORES = {"a": -1.0, "b": -2.0, "ab": -1.5, "ba": -2.5, "aba": -4.0, "▁": -0.5, "▁a": -1.2}


def segmentations(text):
    if not text:
        return [[]]
    return [
        [text[:size], *rest]
        for size in range(1, len(text) + 1)
        if text[:size] in SCORES
        for rest in segmentations(text[size:])
    ]


@pytest.mark.parametrize("alpha", [0, 0.3, 2])
def test_unigram_sampling_has_the_probabilities_of_all_segmentations(alpha):
    text = "▁abaabab"
    weights = {piece: alpha * score for piece, score in SCORES.items()}
    lattice = _lattice(text, weights, 3)
    every = segmentations(text)
    products = [math.exp(sum(weights[piece] for piece in pieces)) for pieces in every]
    assert len(every) > 30
    draw, random = unigram_draw(SCORES, alpha), Random(3)
    drawn = Counter(tuple(draw(text, random)) for _ in range(20_000))
    assert set(drawn) <= set(map(tuple, every))
    for pieces, product in zip(every, products, strict=True):
        wanted, probability, end = product / sum(products), 1.0, len(text)
        for piece in reversed(pieces):
            below, options = 0.0, lattice[end]
            for start, total in options:
                if start == end - len(piece):
                    probability *= (total - below) / options[-1][1]
                below = total
            end -= len(piece)
        assert probability == pytest.approx(wanted, rel=1e-12)
        spread = math.sqrt(20_000 * wanted * (1 - wanted))
        assert abs(drawn[tuple(pieces)] - 20_000 * wanted) < 5 * spread + 1
    assert draw("▁xa", random) == []


@pytest.mark.parametrize(("kind", "strength"), [("unigram", 1000), ("bpe", 0)])
def test_sentencepiece_samplers_without_randomness_give_the_usual_pieces(
    counts, tmp_path, kind, strength
):
    learn_sentencepiece(counts, 700, kind, tmp_path / "model")
    splitter = SentencePiece(tmp_path / "model")
    assert splitter.unigram == (kind == "unigram")
    draw = splitter.sampler(strength, set(splitter.pieces))
    known = set(splitter.pieces)
    words = [word for word in counts if known.issuperset(splitter.segment([word]))]
    same = [draw(word, Random(1)) == splitter.segment([word]) for word in words]
    assert len(words) > 4000
    assert all(same) if kind == "bpe" else sum(same) > 0.99 * len(same)  # ties differ
    drawn = splitter.sampler(0.5, known)
    for word in words[:500]:
        assert splitter.join(drawn(word, Random(1))) == [word]


def test_encode_inside_adds_no_space_in_chinese(tmp_path):
    """A phrase that must occur in a translation follows the text before it without a space."""
    sentences = ["红色自行车很快", "我有红色的车", "警告他", "他很快", "自行车"]
    learn_sentencepiece(Counter(sentences * 20), 40, "unigram", tmp_path / "model")
    splitter, choices = SentencePiece(tmp_path / "model"), PrepSettings()
    side = TextSide("zh", choices, splitter=splitter, tokenizer="raw")
    for text in ("自行车", "警告", "车"):
        inside = side.encode_inside(text)
        assert "".join(inside) == text and set(inside) <= set(splitter.pieces)
        assert side.decode([*side.encode("红色"), *inside]) == f"红色{text}"
    assert side.encode_inside("") == []
    english = TextSide("en", choices, splitter=splitter, tokenizer="raw")
    assert english.encode_inside("车") == english.encode("车")


def test_sampling_whole_words_is_refused():
    with pytest.raises(ConfigError, match="not split into subwords"):
        Splitter().sampler(0.1, set())
