"""train.subword_dropout: other subwords of the same words in each epoch, resumable bit for bit."""

import itertools
import math
from collections import Counter
from random import Random

import numpy as np
import pytest

from nmtkit.data import resegmented
from nmtkit.data.resegmented import Resegmented
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError
from nmtkit.models import checkpoints
from nmtkit.models.checkpoints import load_weights
from nmtkit.prep.stage import prep
from nmtkit.text.side import load_splitter
from nmtkit.text.vocabulary import EOS, UNK, load_vocabularies
from nmtkit.train.stage import train
from tests.prep.real import lines
from tests.refused import refused
from tests.train.test_ranks import Together, arguments
from tests.train.tiny import MODEL, TRAIN

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


def pairs_of(run, strength=0.3, seed=1):
    splitters = [load_splitter(run.prep, side) for side in ("src", "tgt")]
    store = Store(run.prep / "train")
    pairs = Resegmented(store, splitters, load_vocabularies(run.prep), strength, seed)
    pairs.begin(0, 0, [0])
    return pairs


def sentences(pairs):
    return [ids.tolist() for row in range(len(pairs)) for ids in (pairs.src(row), pairs.tgt(row))]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "spm-bpe"])
def test_an_epoch_has_the_same_words_and_depends_on_nothing_but_seed_and_number(
    run_of, kind, monkeypatch
):
    run = run_of(kind)
    store, pairs = Store(run.prep / "train"), pairs_of(run)
    vocabularies = load_vocabularies(run.prep)
    splitters = [load_splitter(run.prep, side) for side in ("src", "tgt")]
    first = sentences(pairs)
    changed = 0
    for number, (new, old) in enumerate(zip(first, sentences(store), strict=True)):
        side = number % 2
        subwords = [[vocabularies[side][i] for i in ids[:-1]] for ids in (new, old)]
        words = [splitters[side].join(line) for line in subwords]
        assert words[0] == words[1] and new[-1] == EOS and new.count(EOS) == 1
        assert new.count(UNK) == old.count(UNK)
        changed += new != old
    assert changed > 0.9 * len(first)
    types = pairs._words.types
    assert all(ids == [EOS] for _, _, ids in types if EOS in ids)
    for side, text, ids in types:
        pieces = [vocabularies[side][i] for i in ids]
        assert not text or splitters[side].segment([text]) == pieces
    lengths = np.array([len(ids) for ids in first])
    for side, found in enumerate(pairs.shard_lengths(0)):
        assert found.tolist() == lengths[side::2].tolist()
    pairs.begin(1, 0, [0])
    second = sentences(pairs)
    assert second != first
    monkeypatch.setattr(resegmented, "ROWS", 7)
    other = pairs_of(run)
    assert sentences(other) == first
    other.begin(4, 0, [0])
    other.begin(1, 0, [0])
    assert sentences(other) == second
    assert sentences(pairs_of(run, seed=2)) != first


def test_every_epoch_window_and_seed_has_other_segmentations_in_other_places(run_of, monkeypatch):
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


def test_strength_0_is_the_prepared_text_and_strength_1_characters(run_of):
    run = run_of("bpe")
    store = Store(run.prep / "train")
    assert sentences(pairs_of(run, 0.0)) == sentences(store)
    vocabularies, pairs = load_vocabularies(run.prep), pairs_of(run, 1.0)
    sizes = [
        len(vocabularies[0][i].removesuffix("@@"))
        for row in range(len(pairs))
        for i in pairs.src(row)[:-1].tolist()
    ]
    assert sizes.count(1) > 0.9 * len(sizes)


def test_each_place_of_a_word_has_a_draw_of_its_own(run_of):
    """A frequent word has the segmentations of its distribution."""
    run = run_of("bpe")
    vocabulary, pairs = load_vocabularies(run.prep)[1], pairs_of(run, 0.2)
    drawn = Counter()
    for epoch in range(60):
        pairs.begin(epoch, 0, [0])
        for row in range(len(pairs)):
            subwords = [vocabulary[i] for i in pairs.tgt(row)[:-1].tolist()]
            text = " ".join(subwords).replace("@@ ", "|").split(" ")
            drawn.update(word for word in text if word.replace("|", "") == "with")
    draw, random, total = (
        load_splitter(run.prep, "tgt").sampler(0.2, set()),
        Random(3),
        sum(drawn.values()),
    )
    usual = load_splitter(run.prep, "tgt").segment(["with"])
    wanted = Counter()
    for _ in range(20_000):
        pieces = draw("with", random)
        known = all(piece in vocabulary for piece in pieces)
        wanted["|".join(pieces if known else usual).replace("@@", "")] += 1
    assert drawn.keys() <= wanted.keys() and len(drawn) > 3
    for word, count in wanted.items():
        share = count / 20_000
        # the draws of an epoch are shared, so only 60 · DRAWS are independent
        spread = math.sqrt(share * (1 - share) / min(total, 60 * resegmented.DRAWS))
        assert abs(drawn[word] / total - share) < 6 * spread + 0.01


def weights_after(run, name, *steps, dropout=0.2):
    for count in steps:
        values = [*MODEL, *TRAIN, f"train.max_steps={count}", f"train.subword_dropout={dropout}"]
        values += ["train.update_size=1500", "train.batch_size=400", "train.dev_bleu=false"]
        train(run, variant="transformer", name=name, assignments=values, device="cpu")
    path = checkpoints.candidates(run.system(name).checkpoints)[-1]
    return load_weights(path)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_continued_is_as_if_never_stopped(run_of, kind, monkeypatch):
    """An epoch is a handful of updates, and updates cross the borders of epochs."""
    epochs, begin = [], Resegmented.begin
    monkeypatch.setattr(
        Resegmented, "begin", lambda pairs, *place: (epochs.append(place[0]), begin(pairs, *place))
    )
    run = run_of(kind)
    whole = weights_after(run, "whole", 12)
    assert epochs == [*range(epochs[-1] + 1)] and epochs[-1] > 1
    parts = weights_after(run, "parts", 3, 7, 12)
    assert all((whole[name] == parts[name]).all() for name in whole)
    without = weights_after(run, "without", 12, dropout=0)
    assert any((whole[name] != without[name]).any() for name in whole)


def test_two_processes_draw_the_same(run_of, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = run_of("bpe")
    values = ["train.subword_dropout=0.3", "train.batch_size=400", "train.update_size=1000"]
    for world in (1, 2):
        call = arguments(run, *values, "train.dev_bleu=false", name=f"of{world}")
        Together(tmp_path / f"of{world}", world, call).ended(*[0] * world)
    one, two = (
        load_weights(checkpoints.candidates(run.system(name).checkpoints)[-1])
        for name in ("of1", "of2")
    )
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


def test_whole_words_are_refused(run_of):
    error = refused(
        ConfigError, "not split into subwords", weights_after, run_of("none"), "system", 2
    )
    assert error.where == "train.subword_dropout"
