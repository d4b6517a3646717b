"""train.subword_dropout: each epoch has other subwords of the same words, and a training resumes
exactly.
"""

import itertools
import math
import operator
import shutil
from collections import Counter
from random import Random

import numpy as np
import pytest

from nmtkit.data import resegmented
from nmtkit.data.resegmented import Resegmented
from nmtkit.data.store import Store, write_spans
from nmtkit.errors import ConfigError
from nmtkit.prep.stage import prep
from nmtkit.text.side import load_splitter
from nmtkit.text.vocabulary import EOS, UNK, Vocabulary, load_vocabularies
from nmtkit.train.stage import train
from tests.prep.real import lines
from tests.refused import refused
from tests.train.test_ranks import largest_difference, train_in_ranks, weights
from tests.train.tiny import MODEL, TRAIN, equal_tensors, saved_weights

KINDS = {
    "bpe": ["prep.merges=700"],
    "unigram": ["prep.subwords=sentencepiece", "prep.vocab_size=900"],
    "spm-bpe": [
        "prep.subwords=sentencepiece",
        "prep.sentencepiece=bpe",
        "prep.vocab_size=700",
        "prep.joint_vocab=false",
    ],
    "none": ["prep.subwords=none"],
}


@pytest.fixture(scope="module")
def run_of(shared, tmp_path_factory):
    """Runs of 250 captions with one kind of subwords each."""
    folder = tmp_path_factory.mktemp("captions")
    for lang in ("de", "en"):
        text = lines(shared / f"data/multi30k/raw/train.{lang}.gz")
        (folder / f"train.{lang}").write_text("\n".join(text[:250]) + "\n", "utf-8")
        (folder / f"dev.{lang}").write_text("\n".join(text[250:260]) + "\n", "utf-8")
    runs = {}

    def made(kind):
        if kind not in runs:
            train_files, dev = (f"{folder}/{n}.de,{folder}/{n}.en" for n in ("train", "dev"))
            values = {"run_dir": folder / kind, "assignments": KINDS[kind], "jobs": 1}
            runs[kind] = prep("captions", train=train_files, dev=dev, **values)
        return runs[kind]

    return made


def splitters_of(run):
    return [load_splitter(run.prep, side) for side in ("src", "tgt")]


def pairs_of(run, strength=0.3, seed=1):
    """The training set with subwords drawn in epoch 0."""
    store, vocabularies = Store(run.prep / "train"), load_vocabularies(run.prep)
    pairs = Resegmented(store, splitters_of(run), vocabularies, strength, seed)
    pairs.begin(0, 0, [0])
    return pairs


def sentences(pairs):
    return [ids.tolist() for row in range(len(pairs)) for ids in (pairs.src(row), pairs.tgt(row))]


EVERY_KIND = pytest.mark.parametrize("kind", ["bpe", "unigram", "spm-bpe"])


@EVERY_KIND
def test_drawn_sentences_have_other_subwords_of_the_same_words(run_of, kind):
    run = run_of(kind)
    pairs, vocabularies, splitters = pairs_of(run), load_vocabularies(run.prep), splitters_of(run)
    drawn, prepared = sentences(pairs), sentences(Store(run.prep / "train"))
    for number, both in enumerate(zip(drawn, prepared, strict=True)):
        side = number % 2
        new, old = (splitters[side].join([vocabularies[side][i] for i in ids[:-1]]) for ids in both)
        assert new == old
        assert [(ids[-1], ids.count(EOS)) for ids in both] == [(EOS, 1)] * 2
        assert both[0].count(UNK) == both[1].count(UNK)
    changed = sum(map(operator.ne, drawn, prepared))
    assert changed > 0.9 * len(drawn)
    for side, lengths in enumerate(pairs.shard_lengths(0)):
        assert lengths.tolist() == [len(ids) for ids in drawn[side::2]]


@EVERY_KIND
def test_words_without_dropout_have_the_prepared_subwords(run_of, kind):
    run = run_of(kind)
    vocabularies, splitters = load_vocabularies(run.prep), splitters_of(run)
    words = pairs_of(run)._words
    types = words.types
    assert words.draws.max() == resegmented.DRAWS  # of a frequent word
    assert all(ids == [EOS] for _, _, ids in types if EOS in ids)
    for side, text, ids in types:
        pieces = [vocabularies[side][i] for i in ids]
        assert not text or splitters[side].segment([text]) == pieces


@EVERY_KIND
def test_words_that_are_split_in_another_way_are_never_split_anew(run_of, kind):
    run = run_of(kind)
    pairs, vocabulary, splitter = (
        pairs_of(run),
        load_vocabularies(run.prep)[1],
        splitters_of(run)[1],
    )

    def text_of(subwords):
        ids = np.array(vocabulary.encode(subwords)[:-1], pairs._id_type)
        return pairs._type(1, ids.tobytes())[1]

    usual = splitter.segment(["with"])
    single = next(
        pieces
        for pieces in map(splitter.sampler(1.0, vocabulary), ["with"] * 99, [Random(1)] * 99)
        if pieces != usual
    )
    assert text_of(usual) == "with"
    assert text_of(single) == text_of(usual * 2) == text_of(["<unk>"]) == ""


def test_ids_have_the_type_of_the_larger_vocabulary_and_phrases_are_left_out(run_of, tmp_path):
    """The phrases of the prepared subwords do not fit others."""
    run = run_of("bpe")
    shutil.copytree(run.prep / "train", tmp_path / "train")
    write_spans(tmp_path / "train", 0, [[1]] * 250)
    store, (vocabulary, _) = Store(tmp_path / "train"), load_vocabularies(run.prep)
    large = Vocabulary([*vocabulary, *(f"more-{i}" for i in range(1 << 16))])
    for sides in ((vocabulary, large), (large, vocabulary)):
        pairs = Resegmented(store, splitters_of(run), sides, 0.3, 1)
        assert pairs._id_type == np.uint32
    assert store.spans is not None and pairs.spans is None


@EVERY_KIND
def test_draw_depends_on_seed_and_epoch_alone(run_of, kind, monkeypatch):
    pairs = pairs_of(run_of(kind))
    first = sentences(pairs)
    pairs.begin(1, 0, [0])
    second = sentences(pairs)
    assert second != first != sentences(pairs_of(run_of(kind), seed=2))
    monkeypatch.setattr(resegmented, "ROWS", 7)
    other = pairs_of(run_of(kind))
    assert sentences(other) == first
    other.begin(4, 0, [0])
    other.begin(1, 0, [0])
    assert sentences(other) == second


def test_epochs_windows_and_seeds_draw_other_segmentations_of_other_words(run_of, monkeypatch):
    texts = []
    monkeypatch.setattr(resegmented, "Random", lambda text: texts.append(text) or Random(3))
    pairs = pairs_of(run_of("bpe"))
    drawn = [sentences(pairs)]
    for epoch, window in ((1, 0), (0, 1)):
        pairs.begin(epoch, window, [0])
        drawn.append(sentences(pairs))
    drawn.append(sentences(pairs_of(run_of("bpe"), seed=2)))
    assert len(set(texts)) == 4
    assert all(a != b for a, b in itertools.combinations(drawn, 2))


def test_dropout_0_keeps_the_prepared_subwords_and_dropout_1_gives_characters(run_of):
    run = run_of("bpe")
    assert sentences(pairs_of(run, 0.0)) == sentences(Store(run.prep / "train"))
    vocabularies, pairs = load_vocabularies(run.prep), pairs_of(run, 1.0)
    sizes = [
        len(vocabularies[0][i].removesuffix("@@"))
        for row in range(len(pairs))
        for i in pairs.src(row)[:-1].tolist()
    ]
    assert sizes.count(1) > 0.9 * len(sizes)


def test_frequent_word_has_the_segmentations_of_its_distribution(run_of):
    run = run_of("bpe")
    vocabulary, pairs = load_vocabularies(run.prep)[1], pairs_of(run, 0.2)
    drawn, expected = Counter(), Counter()
    for epoch in range(60):
        pairs.begin(epoch, 0, [0])
        for row in range(len(pairs)):
            subwords = [vocabulary[i] for i in pairs.tgt(row)[:-1].tolist()]
            words = " ".join(subwords).replace("@@ ", "|").split(" ")
            drawn.update(word for word in words if word.replace("|", "") == "with")
    splitter, random = load_splitter(run.prep, "tgt"), Random(3)
    sample, usual = splitter.sampler(0.2, set()), splitter.segment(["with"])
    for _ in range(20_000):
        pieces = sample("with", random)
        known = all(piece in vocabulary for piece in pieces)
        expected["|".join(pieces if known else usual).replace("@@", "")] += 1
    assert drawn.keys() <= expected.keys() and len(drawn) > 3
    # The draws of an epoch are shared: only 60 · DRAWS are independent.
    total = drawn.total()
    independent = min(total, 60 * resegmented.DRAWS)
    for word, count in expected.items():
        share = count / 20_000
        spread = math.sqrt(share * (1 - share) / independent)
        assert abs(drawn[word] / total - share) < 6 * spread + 0.01


def weights_after(run, name, *steps, dropout=0.2):
    for count in steps:
        values = [*MODEL, *TRAIN, f"train.max_steps={count}", f"train.subword_dropout={dropout}"]
        values += ["train.update_size=1500", "train.batch_size=400", "train.dev_bleu=false"]
        train(run, variant="transformer", name=name, assignments=values, device="cpu")
    return saved_weights(run, name)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_stopped_training_with_subword_dropout_resumes_exactly(run_of, kind, monkeypatch):
    """An epoch is a handful of updates, and updates cross the borders of epochs."""
    epochs, begin = [], Resegmented.begin
    monkeypatch.setattr(
        Resegmented, "begin", lambda pairs, *place: (epochs.append(place[0]), begin(pairs, *place))
    )
    run = run_of(kind)
    whole = weights_after(run, "whole", 12)
    assert epochs == [*range(epochs[-1] + 1)] and epochs[-1] > 1
    assert equal_tensors(whole, weights_after(run, "parts", 3, 7, 12))
    assert not equal_tensors(whole, weights_after(run, "without", 12, dropout=0))


def test_ranks_draw_the_subwords_of_one_process(run_of, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = run_of("bpe")
    values = ["train.subword_dropout=0.3", "train.batch_size=400", "train.update_size=1000"]
    for ranks in (1, 2):
        train_in_ranks(tmp_path, run, ranks, *values, "train.dev_bleu=false", name=f"of{ranks}")
    assert largest_difference(weights(run, "of1", 6), weights(run, "of2", 6)) < 1e-5


def test_subword_dropout_is_refused_for_whole_words(run_of):
    error = refused(
        ConfigError, "not split into subwords", weights_after, run_of("none"), "system", 2
    )
    assert error.where == "train.subword_dropout"
