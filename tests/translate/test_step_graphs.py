"""CUDA graphs of search steps, with a stand-in on a CPU that repeats operations alone."""

import pytest
import torch

from nmtkit.models.variants import VARIANTS
from nmtkit.nn import recording
from nmtkit.settings import SearchSettings
from nmtkit.translate import beam, step_graphs
from nmtkit.translate.beam import search
from tests.models.contract import Case, batch_for, pairs
from tests.tape import tapes
from tests.train.test_waits import emulate

LIMITS = {"max_length_a": 0, "max_length_b": 40}


def found_by(models, sentences, **values):
    batch = batch_for(models[0], sentences)
    return search(models, batch, SearchSettings(**(LIMITS | values)))


def assert_equal(found, expected):
    for of_sentence, exact in zip(found, expected, strict=True):
        assert [(h.ids, h.finished) for h in of_sentence] == [(h.ids, h.finished) for h in exact]
        scores = [h.log_prob for h in exact]
        assert [h.log_prob for h in of_sentence] == pytest.approx(scores, abs=1e-9)


@pytest.fixture
def replays(monkeypatch):
    """The number of replays, of searches on the paths of a GPU."""
    step_graphs.forget()
    emulate(monkeypatch)
    monkeypatch.setattr(beam, "LOOK", 5)
    yield tapes(monkeypatch)
    step_graphs.forget()


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_replayed_steps_find_the_same(variant, width, monkeypatch, replays):
    """In batches whose sentences leave, and in another batch of the same shapes."""
    model = Case(variant).build()
    first, second = pairs(40, seed=1, longest=7), pairs(40, seed=2, longest=7)
    monkeypatch.setattr(recording, "graphs_fit", lambda device: False)
    expected = [found_by([model], of, beam=width, nbest=width) for of in (first, second)]
    monkeypatch.setattr(recording, "graphs_fit", lambda device: True)
    found = [found_by([model], of, beam=width, nbest=width) for of in (first, second)]
    for pair in zip(found, expected, strict=True):
        assert_equal(*pair)
    assert len(replays) > 50


def test_an_ensemble_and_changed_weights(monkeypatch, replays):
    models = [Case("transformer").build(seed=seed) for seed in (1, 2)]
    sentences, expected = pairs(20, seed=3), {}
    for count in (1, 2):
        monkeypatch.setattr(recording, "graphs_fit", lambda device: False)
        expected[count] = found_by(models[:count], sentences, beam=3, nbest=3)
        monkeypatch.setattr(recording, "graphs_fit", lambda device: True)
    for count in (2, 1, 2):  # a graph of other models is not replayed
        before = len(replays)
        assert_equal(found_by(models[:count], sentences, beam=3, nbest=3), expected[count])
        assert len(replays) > before + 10
    before = found_by(models, sentences, beam=3)
    with torch.no_grad():
        for parameter in models[0].parameters():
            parameter.mul_(0.9)
    changed = found_by(models, sentences, beam=3)  # a graph reads the new weights
    assert [h[0].log_prob for h in changed] != [h[0].log_prob for h in before]
    step_graphs.forget()
    assert_equal(found_by(models, sentences, beam=3), changed)


def test_weights_in_another_place_get_new_graphs(replays):
    model, sentences = Case("transformer").build(), pairs(20, seed=3)
    found_by([model], sentences, beam=3)
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.9
    moved = found_by([model], sentences, beam=3)
    step_graphs.forget()
    assert_equal(found_by([model], sentences, beam=3), moved)


def test_values_that_exchange_their_places():
    a, b = torch.zeros(2), torch.ones(2)
    step_graphs._copy([a, b], [b, a])
    assert a.tolist() == [1, 1] and b.tolist() == [0, 0]


def test_a_step_that_cannot_be_recorded_is_computed_kernel_by_kernel(monkeypatch, replays, capsys):
    model, sentences = Case("transformer").build(), pairs(20, seed=3)
    monkeypatch.setattr(recording, "graphs_fit", lambda device: False)
    expected = found_by([model], sentences, beam=3)
    monkeypatch.setattr(recording, "graphs_fit", lambda device: True)

    def record(compute, pool):
        compute()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recording, "record", record)
    assert_equal(found_by([model], sentences, beam=3), expected)
    assert capsys.readouterr().err.count("no CUDA graph of search steps") == 1


def test_without_memory_for_a_graph_kernels_are_started_one_by_one(monkeypatch, replays, capsys):
    model, sentences = Case("transformer").build(), pairs(20, seed=3)
    expected = found_by([model], sentences, beam=3)
    step_graphs.forget()

    def record(compute, pool):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(recording, "record", record)
    assert_equal(found_by([model], sentences, beam=3), expected)
    assert not capsys.readouterr().err
