"""CUDA graphs of search steps, with a stand-in on a CPU that repeats operations alone."""

import pytest
import torch

from nmtkit.data.batches import source_batch
from nmtkit.nn import cpu, recording
from nmtkit.nn.capture import capture
from nmtkit.settings import SearchSettings
from nmtkit.translate import beam, step_graphs
from nmtkit.translate.beam import search
from nmtkit.translate.demands import Demand
from nmtkit.translate.methods import decode
from tests.models.cases import DISTINCT
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
    monkeypatch.setattr(cpu, "search_mask", lambda visible, like: visible)  # as on a GPU
    monkeypatch.setattr(beam, "LOOK", 5)
    yield tapes(monkeypatch)
    step_graphs.forget()


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("variant", DISTINCT)
def test_replayed_steps_find_the_same(variant, width, monkeypatch, replays):
    """In batches whose sentences leave, and in another batch of the same shapes."""
    model = Case(variant).build()
    first, second = pairs(24, seed=1, longest=7), pairs(25, seed=2, longest=7)[1:]
    options = {"beam": width, "nbest": width, "max_length_b": 20}
    monkeypatch.setattr(recording, "graphs_fit", lambda device: False)
    expected = [found_by([model], of, **options) for of in (first, second)]
    monkeypatch.setattr(recording, "graphs_fit", lambda device: True)
    found = [found_by([model], of, **options) for of in (first, second)]
    for pair in zip(found, expected, strict=True):
        assert_equal(*pair)
    assert len(replays) > 30


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
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.detach() * 0.9))
    moved = found_by([model], sentences, beam=3)
    step_graphs.forget()
    assert_equal(found_by([model], sentences, beam=3), moved)


@pytest.mark.parametrize("limit", ["SHAPES", "_most"])
def test_graphs_are_forgotten_when_there_are_too_many(limit, monkeypatch, replays):
    model, sets = Case("transformer").build(), [pairs(n, seed=n) for n in (20, 30)]
    monkeypatch.setattr(recording, "graphs_fit", lambda device: False)
    expected = [found_by([model], of, beam=3) for of in sets]
    monkeypatch.setattr(recording, "graphs_fit", lambda device: True)
    if limit == "SHAPES":
        monkeypatch.setattr(step_graphs, limit, 2)
    else:
        begin = step_graphs.StepGraphs.__init__
        monkeypatch.setattr(
            step_graphs.StepGraphs,
            "__init__",
            lambda of, on: begin(of, on) or setattr(of, limit, 1),
        )
    for _ in range(2):
        for of, exact in zip(sets, expected, strict=True):
            assert_equal(found_by([model], of, beam=3), exact)
            assert len(step_graphs._graphs[model]._recorded) <= 2


def test_a_few_lengths_of_sources():
    for longest in range(1, 20):
        src = source_batch([[5] * (longest - 1) + [2], [2]], few_shapes=True).src
        assert src.shape == (2, -(-longest // 8) * 8) and (src != 0).sum() == longest + 1


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
    assert capsys.readouterr().err.count("out of memory") == 1


@pytest.mark.parametrize("later", [False, True])
def test_single_kernels_read_the_masks_of_their_own_batch(later, monkeypatch, replays):
    """With buffers that grow just before the end; or if only the first shapes get graphs."""
    model = Case("transformer").build()
    sets = [pairs(40 + seed, seed=seed)[seed:] for seed in range(4)]  # of other lengths
    limits = {"beam": 5, "max_length_b": 20 if later else 14}
    monkeypatch.setattr(recording, "graphs_fit", lambda device: False)
    expected = [found_by([model], of, **limits) for of in sets]
    monkeypatch.setattr(recording, "graphs_fit", lambda device: True)
    record, count = recording.record, []

    def first_only(compute, pool):
        count.append(1)
        if later and len(count) > 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return record(compute, pool)

    monkeypatch.setattr(recording, "record", first_only)
    for of, exact in zip(sets, expected, strict=True):
        assert_equal(found_by([model], of, **limits), exact)


def test_a_second_search_of_the_same_shapes_replays_all_but_the_first_step(monkeypatch, replays):
    """Also after sentences have left."""
    model, sentences, stay = Case("transformer").build(), pairs(200, seed=1, longest=7), []
    keep = beam.Search.keep
    monkeypatch.setattr(beam.Search, "keep", lambda *of: stay.append(1) or keep(*of))
    limits = {"beam": 5, "max_length_a": 5, "max_length_b": 3}
    for _ in range(3):
        found_by([model], sentences, **limits)
    eager, step = [], beam.Search.step
    monkeypatch.setattr(beam.Search, "step", lambda of: eager.append(of.beams.step) or step(of))
    del stay[:]
    found_by([model], sentences, **limits)
    assert eager == [0] and len(stay) > 1


def test_more_hypotheses_than_subwords(replays):
    model, sentences = Case("transformer").build(), pairs(5, seed=3)
    first, second = ({"beam": n, "nbest": n, "max_length_b": 12} for n in (23, 30))
    found_by([model], sentences, **first)
    assert len(replays) > 5
    found = found_by([model], sentences, **second)
    step_graphs.forget()
    assert_equal(found_by([model], sentences, **second), found)


def test_who_has_no_graphs(monkeypatch, replays):
    """Other methods, forced prefixes, models in files of a user, and what a capture watches."""
    model, sentences = Case("transformer").build(), pairs(12, seed=3)
    batch = batch_for(model, sentences)
    for values in ({"sample": True}, {"beam": 4, "diverse_groups": 2}, {"beam": 3}):
        demands = [Demand((i,), (5, 6)) for i in range(len(sentences))]
        decode([model], batch, SearchSettings(**(LIMITS | values)), demands)
    with capture() as seen:
        found_by([model], sentences, beam=3)
    assert len(seen["decoder.0.cross"]) > 5
    user = type("Mine", (type(model),), {"__module__": "mine"})
    model.__class__ = user
    found_by([model], sentences, beam=3)
    assert not replays
