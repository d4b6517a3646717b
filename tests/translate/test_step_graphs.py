"""CUDA graphs of search steps, with a stand-in on a CPU that only repeats operations."""

import pytest
import torch
from slow_search import assert_same

from nmtkit.nn import cpu, recording
from nmtkit.nn.capture import capture
from nmtkit.settings import SearchSettings
from nmtkit.translate import beam, step_graphs
from nmtkit.translate.beam import search
from nmtkit.translate.demands import Demand
from nmtkit.translate.methods import decode
from tests.models.cases import DISTINCT
from tests.models.contract import Case, batch_for, pairs
from tests.train.test_waits import emulate
from tests.translate.graph_tape import use_tapes

LIMITS = {"beam": 3, "max_length_a": 0, "max_length_b": 25}
CAPTURE_ERROR = RuntimeError("operation not permitted when stream is capturing")


def translations(models, sentences, **values):
    batch = batch_for(models[0], sentences)
    return search(models, batch, SearchSettings(**(LIMITS | values)))


def translations_without_graphs(models, sentences, **values):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "graphs_fit", lambda device: False)
        return translations(models, sentences, **values)


def assert_equal(results, expected):
    for hypotheses, exact in zip(results, expected, strict=True):
        assert_same(hypotheses, exact)


@pytest.fixture
def replays(monkeypatch):
    """A list with an entry for each replay; searches take the paths of a GPU."""
    step_graphs.forget()
    emulate(monkeypatch)
    monkeypatch.setattr(cpu, "search_mask", lambda visible, like: visible)  # as on a GPU
    monkeypatch.setattr(beam, "LOOK", 5)
    yield use_tapes(monkeypatch)
    step_graphs.forget()


@pytest.fixture
def model():
    return Case("transformer").build()


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("variant", DISTINCT)
def test_replayed_steps_find_the_translations_of_computed_steps(variant, width, replays):
    """In batches whose sentences leave, and in another batch of the same shapes."""
    models = [Case(variant).build()]
    values = {"beam": width, "nbest": width, "max_length_b": 20}
    batches = pairs(24, seed=1, longest=7), pairs(25, seed=2, longest=7)[1:]
    expected = [translations_without_graphs(models, of_batch, **values) for of_batch in batches]
    for of_batch, exact in zip(batches, expected, strict=True):
        assert_equal(translations(models, of_batch, **values), exact)
    assert len(replays) > 30


def test_graphs_are_replayed_for_their_models_only(replays):
    models = [Case("transformer").build(seed=seed) for seed in (1, 2)]
    sentences = pairs(20, seed=3)
    one, two = (translations_without_graphs(models[:n], sentences, nbest=3) for n in (1, 2))
    for count, expected in ((2, two), (1, one), (2, two)):
        before = len(replays)
        assert_equal(translations(models[:count], sentences, nbest=3), expected)
        assert len(replays) > before + 10


@pytest.mark.parametrize("moved", [False, True])
def test_graphs_read_changed_weights(moved, model, replays):
    sentences = pairs(20, seed=3)
    before = translations([model], sentences)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if moved:
                setattr(module, name, torch.nn.Parameter(parameter.detach() * 0.9))
            else:
                parameter.detach().mul_(0.9)
    changed = translations([model], sentences)
    assert [h[0].log_prob for h in changed] != [h[0].log_prob for h in before]
    assert_equal(translations_without_graphs([model], sentences), changed)


@pytest.mark.parametrize("limit", ["SHAPES", "_most"])
def test_graphs_are_forgotten_when_there_are_too_many(limit, model, monkeypatch, replays):
    batches = [pairs(n, seed=n) for n in (20, 30)]
    expected = [translations_without_graphs([model], of_batch) for of_batch in batches]
    if limit == "SHAPES":
        monkeypatch.setattr(step_graphs, limit, 2)
    else:
        begin = step_graphs.StepGraphs.__init__
        monkeypatch.setattr(
            step_graphs.StepGraphs,
            "__init__",
            lambda graphs, device: begin(graphs, device) or setattr(graphs, limit, 1),
        )
    for of_batch, exact in 2 * list(zip(batches, expected, strict=True)):
        assert_equal(translations([model], of_batch), exact)
        assert len(step_graphs._graphs[model]._recorded) <= 2


def test_copy_exchanges_tensors_that_overlap():
    a, b = torch.zeros(2), torch.ones(2)
    step_graphs._copy([a, b], [b, a])
    assert a.tolist() == [1, 1] and b.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CAPTURE_ERROR, "no CUDA graph of search steps"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
    ],
)
def test_steps_are_computed_if_recording_fails_and_the_user_is_warned_once(
    error, message, model, monkeypatch, replays, stderr
):
    def record(compute, pool):
        compute()
        raise error

    sentences = pairs(20, seed=3)
    expected = translations_without_graphs([model], sentences)
    monkeypatch.setattr(recording, "record", record)
    assert_equal(translations([model], sentences), expected)
    assert stderr().count(message) == 1 and not replays


@pytest.mark.parametrize("only_first", [False, True])
def test_computed_steps_read_the_masks_of_their_own_batch(only_first, model, monkeypatch, replays):
    """With buffers that grow just before the end; or if only the first shapes get graphs."""
    batches = [pairs(40 + seed, seed=seed)[seed:] for seed in range(4)]  # of other lengths
    values = {"beam": 5, "max_length_b": 20 if only_first else 14}
    expected = [translations_without_graphs([model], of_batch, **values) for of_batch in batches]
    record, calls = recording.record, []

    def record_some(compute, pool):
        calls.append(1)
        if only_first and len(calls) > 1:
            raise CAPTURE_ERROR
        return record(compute, pool)

    monkeypatch.setattr(recording, "record", record_some)
    for of_batch, exact in zip(batches, expected, strict=True):
        assert_equal(translations([model], of_batch, **values), exact)


def test_later_searches_of_the_same_shapes_compute_only_the_first_step(model, monkeypatch, replays):
    """Also after sentences have left."""
    sentences = pairs(70, seed=1, longest=7)
    values = {"beam": 5, "max_length_a": 5, "max_length_b": 3}
    for _ in range(3):
        translations([model], sentences, **values)
    leaves, computed, keep, step = [], [], beam.Search.keep, beam.Search.step
    monkeypatch.setattr(beam.Search, "keep", lambda *of: leaves.append(1) or keep(*of))
    monkeypatch.setattr(beam.Search, "step", lambda s: computed.append(s.beams.step) or step(s))
    translations([model], sentences, **values)
    assert computed == [0] and len(leaves) > 1


def test_graphs_of_beams_wider_than_the_vocabulary(model, replays):
    sentences = pairs(5, seed=3)
    for beam_size in (23, 30):
        values = {"beam": beam_size, "nbest": beam_size, "max_length_b": 12}
        expected = translations_without_graphs([model], sentences, **values)
        before = len(replays)
        assert_equal(translations([model], sentences, **values), expected)
        assert len(replays) > before + 5


@pytest.mark.parametrize(
    "values", [{"sample": True}, {"beam": 4, "diverse_groups": 2}, {"beam": 3}]
)
def test_steps_with_prefixes_are_not_recorded(values, model, replays):
    sentences = pairs(12, seed=3)
    demands = [Demand((i,), (5, 6)) for i in range(len(sentences))]
    settings = SearchSettings(**(LIMITS | values))
    decode([model], batch_for(model, sentences), settings, demands)
    assert not replays


def test_captured_steps_and_steps_of_foreign_models_are_not_recorded(model, replays):
    sentences = pairs(12, seed=3)
    with capture() as captured:
        translations([model], sentences)
    assert len(captured["decoder.0.cross"]) > 5
    model.__class__ = type("Mine", (type(model),), {"__module__": "mine"})
    translations([model], sentences)
    assert not replays
