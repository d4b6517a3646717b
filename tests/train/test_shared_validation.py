"""Ranks share a validation: the numbers and translations of one process, to the bit. The ranks are
threads.
"""

import copy
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

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
from tests.train.tiny import NO_AUTOCAST, make_run, mark_documents

SIZES = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}


class Threads:
    """Exchanges values between ranks that are threads."""

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
    mark_documents(run, "dev", [0, 7, 30])
    return run


def build(variant, dtype):
    torch.manual_seed(3)
    values = load_variant(variant).adapt(SIZES)
    return build_model(variant, values, Vocabularies(28, 28, shared=True)).to(dtype)


def validate(run, world, variant="transformer", dtype=torch.float32, change=None, stopped=None):
    """Validate with this number of ranks.

    Args:
        change: called in each rank with its `Validator`.
        stopped: the rank that a signal stops at the beginning.
    Returns: of each rank the result or the error, and of each rank the translations.
    """
    group, model, translated = Threads(world), build(variant, dtype), [None] * world
    settings = TrainSettings(batch_size=60, batch_unit="tgt_tokens", samples=2)
    (dev,) = run.sets("dev")

    def work(rank):
        ranks = Thread(group, rank) if world > 1 else Ranks()
        validator = Validator(run, dev, settings, copy.deepcopy(model), NO_AUTOCAST, ranks)
        translate = validator._translate

        def record(*arguments):
            translated[rank] = translate(*arguments)
            return translated[rank]

        validator._translate = record
        if change:
            change(validator)
        stop = Stop()
        stop.signal = 15 if rank == stopped else 0
        try:
            return validator.validate(stop)
        except Abandoned as error:
            return error
        finally:
            assert validator.model.training

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(work, range(world))), translated


def without_clocks(result):
    clocks = ("loss_seconds", "bleu_seconds")
    return {key: value for key, value in vars(result).items() if key not in clocks}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(validation, "DECODE_SENTENCES", 8)


@pytest.mark.parametrize("variant", ["transformer", "han", "amn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ranks_have_the_results_of_one_process(run, variant, dtype):
    (alone,), (texts,) = validate(run, 1, variant, dtype)
    assert len(texts) == 40 and alone.bleu is not None and len(alone.samples) == 2
    for world in (2, 3, 16):
        results, translated = validate(run, world, variant, dtype)
        assert all(without_clocks(result) == without_clocks(alone) for result in results)
        for of_rank in translated:
            assert of_rank.keys() == texts.keys()
            assert all(np.array_equal(of_rank[row], texts[row]) for row in texts)


def test_each_sentence_is_translated_by_exactly_one_rank(run):
    searched = []

    def record(validator):
        search = validator._search

        def recorded(ids, rows):
            searched.append((validator.ranks.rank, rows.tolist()))
            return search(ids, rows)

        validator._search = recorded

    validate(run, 3, change=record)
    assert sorted(itertools.chain(*(rows for _, rows in searched))) == list(range(40))
    assert {rank for rank, _ in searched} == {0, 1, 2}


def test_search_gets_no_references(run, monkeypatch):
    encode, with_references = Transformer.encode, []

    def recorded(self, batch):
        with_references.append(batch.tgt_out is not None)
        return encode(self, batch)

    monkeypatch.setattr(Transformer, "encode", recorded)
    validate(run, 1)
    of_loss = with_references.index(False)
    assert of_loss and with_references == [True] * of_loss + [False] * 5


@pytest.mark.parametrize("stopped", [0, 1, 2])
def test_signal_to_one_rank_ends_the_validation_of_all(run, stopped):
    results, _ = validate(run, 3, stopped=stopped)
    assert [type(result) for result in results] == [Abandoned] * 3


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize(
    ("error", "problem"),
    [(KeyError("x"), "KeyError: 'x'"), (EnvironmentProblem("no disk"), "no disk")],
)
def test_all_ranks_have_the_loss_alone_if_one_cannot_decode(run, failing, error, problem, stderr):
    def search(*_):
        raise error

    def fail(validator):
        if validator.ranks.rank == failing:
            validator._search = search

    (alone,), _ = validate(run, 1)
    results, _ = validate(run, 3, change=fail)
    for result in results:
        assert (result.loss, result.bleu, result.samples) == (alone.loss, None, [])
    expected = f"decoding the development set failed ({problem}): no BLEU"
    assert expected in " ".join(stderr().split())


def test_memory_of_graphs_is_released_for_another_attempt(run, monkeypatch):
    """A batch of the loss and one of the search do not fit until it is released."""
    (expected,), _ = validate(run, 1)
    released, batch_loss = [], validation.batch_loss

    def fitting(work, number):
        def attempt(*arguments):
            if len(released) == number:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return work(*arguments)

        return attempt

    def change(validator):
        graphs = SimpleNamespace(release_memory=lambda: released.append(1))
        validator.with_memory = partial(Gradients.with_memory, graphs)
        validator._search = fitting(validator._search, 1)

    monkeypatch.setattr(validation, "batch_loss", fitting(batch_loss, 0))
    (found,), _ = validate(run, 1, change=change)
    assert without_clocks(found) == without_clocks(expected) and len(released) == 2
