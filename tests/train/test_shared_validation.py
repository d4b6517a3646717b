"""Ranks share a validation: the same numbers and translations as one process, to the bit."""

import copy
import itertools
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nmtkit.data.documents import documents_file
from nmtkit.errors import EnvironmentProblem
from nmtkit.models.base import Vocabularies
from nmtkit.models.transformer import Transformer
from nmtkit.models.variants import build_model, load_variant
from nmtkit.settings import TrainSettings
from nmtkit.train import validation
from nmtkit.train.gradients import Gradients
from nmtkit.train.ranks import Ranks
from nmtkit.train.stop import Abandoned, Stop
from nmtkit.train.validation import Validator
from tests.train.tiny import make_run

SIZES = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}


class Threads:
    """What ranks exchange, if each is a thread."""

    def __init__(self, world):
        self.world, self.barrier = world, threading.Barrier(world)
        self.values = [None] * world


class Thread(Ranks):
    def __init__(self, group, rank):
        self.group, self.rank, self.world = group, rank, group.world

    def gather_values(self, value):
        self.group.values[self.rank] = value
        self.group.barrier.wait(60)
        values = list(self.group.values)
        self.group.barrier.wait(60)
        return values

    def first_does(self, work):
        return self.gather_values(work() if self.first else None)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("validation") / "run", pairs=20, dev=40)
    starts = documents_file(run.prep, "dev")
    starts.parent.mkdir()
    starts.write_text("0\n7\n30\n")
    return run


def validate(run, variant, world, decode=None, stopped=None, dtype=torch.float32, make=Validator):
    """Validate with as many ranks; return the results (or errors) of all and the translations.

    Args:
        decode: replaces what a rank searches with: rank, original -> search.
        stopped: the rank that a signal stops at the beginning.
    """
    group, results, translated = Threads(world), [None] * world, [None] * world

    torch.manual_seed(3)
    values = load_variant(variant).adapt(SIZES)
    built = build_model(variant, values, Vocabularies(28, 28, shared=True)).to(dtype)
    models = [copy.deepcopy(built) for _ in range(world)]

    def work(rank):
        model = models[rank]
        settings = TrainSettings(batch_size=60, batch_unit="tgt_tokens", samples=2)
        autocast = {"device_type": "cpu", "enabled": False}
        dev = next(iter(run.sets("dev")))
        ranks = Thread(group, rank) if world > 1 else Ranks()
        validator = make(run, dev, settings, model, autocast, ranks)
        translate, search = validator._translate, validator._search

        def kept(*arguments):
            translated[rank] = translate(*arguments)
            return translated[rank]

        validator._translate = kept
        if decode:
            validator._search = lambda *arguments: decode(rank, search, *arguments)
        stop = Stop()
        stop.signal = 15 if rank == stopped else 0
        try:
            results[rank] = validator.validate(stop)
        except Abandoned as error:
            results[rank] = error
        assert model.training

    threads = [threading.Thread(target=work, args=[rank]) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, translated


def without_clocks(result):
    clocks = ("loss_seconds", "bleu_seconds")
    return {key: value for key, value in vars(result).items() if key not in clocks}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(validation, "DECODE_SENTENCES", 8)


@pytest.mark.parametrize("variant", ["transformer", "han", "amn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_any_number_of_ranks_has_the_result_of_one(run, variant, dtype):
    (one,), (texts,) = validate(run, variant, 1, dtype=dtype)
    assert len(texts) == 40 and one.bleu is not None and len(one.samples) == 2
    for world in (2, 3, 16):
        results, translated = validate(run, variant, world, dtype=dtype)
        assert all(without_clocks(result) == without_clocks(one) for result in results)
        for of_rank in translated:
            assert of_rank.keys() == texts.keys()
            assert all(np.array_equal(of_rank[row], texts[row]) for row in texts)


def test_each_sentence_is_searched_once(run):
    searched = []

    def decode(rank, search, ids, rows):
        searched.append((rank, rows.tolist()))
        return search(ids, rows)

    validate(run, "transformer", 3, decode)
    assert sorted(itertools.chain(*(rows for _, rows in searched))) == list(range(40))
    assert {rank for rank, _ in searched} == {0, 1, 2}


def test_a_search_has_no_references(run, monkeypatch):
    encoded = []

    def encode(self, batch):
        encoded.append(batch.tgt_out is not None)
        return original(self, batch)

    original = Transformer.encode
    monkeypatch.setattr(Transformer, "encode", encode)
    validate(run, "transformer", 1)
    of_loss = encoded.index(False)
    assert of_loss and encoded == [True] * of_loss + [False] * 5


@pytest.mark.parametrize("stopped", [0, 1, 2])
def test_a_signal_to_one_rank_ends_the_validation_of_all(run, stopped):
    results, _ = validate(run, "transformer", 3, stopped=stopped)
    assert [type(result) for result in results] == [Abandoned] * 3


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize(
    ("error", "problem"),
    [(KeyError("x"), "KeyError: 'x'"), (EnvironmentProblem("no disk"), "no disk")],
)
def test_if_one_rank_cannot_decode_the_loss_decides_on_all(run, failing, error, problem, stderr):
    def decode(rank, search, *arguments):
        if rank == failing:
            raise error
        return search(*arguments)

    (one,), _ = validate(run, "transformer", 1)
    results, _ = validate(run, "transformer", 3, decode)
    for result in results:
        assert (result.loss, result.bleu, result.samples) == (one.loss, None, [])
    expected = f"decoding the development set failed ({problem}): no BLEU"
    assert expected in " ".join(stderr().split())


def test_memory_that_graphs_hold_is_released_for_another_attempt(run, monkeypatch):
    """A batch of the loss and one of the search do not fit until it is."""
    (wanted,), _ = validate(run, "transformer", 1)
    released, batch_loss = [], validation.batch_loss

    def made(*arguments):
        validator = Validator(*arguments)
        validator.with_memory = partial(
            Gradients.with_memory, SimpleNamespace(release_memory=lambda: released.append(1))
        )
        return validator

    def fails(number):
        if len(released) == number:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def loss(*arguments):
        fails(0)
        return batch_loss(*arguments)

    def decode(rank, search, *arguments):
        fails(1)
        return search(*arguments)

    monkeypatch.setattr(validation, "batch_loss", loss)
    (found,), _ = validate(run, "transformer", 1, decode, make=made)
    assert without_clocks(found) == without_clocks(wanted) and len(released) == 2
