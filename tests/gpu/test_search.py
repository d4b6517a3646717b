"""Search on the GPU: waits, fused attention, replayed CUDA graphs, and scores in 16 bits.

tests/translate/test_gpu_paths.py counts waits on a CPU, with the paths of a GPU.
"""

import contextlib

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmtkit.nn import recording
from nmtkit.nn.linear import Packable
from nmtkit.settings import SearchSettings
from nmtkit.translate import beam
from nmtkit.translate.demands import Demand
from nmtkit.translate.forced import forced_scores
from nmtkit.translate.methods import decode
from tests.device import ON_GPU
from tests.gpu.test_models import build, sentences
from tests.models.conftest import on_the_device  # noqa: F401
from tests.models.contract import batch_for, pairs

pytestmark = pytest.mark.gpu
METHODS = {
    "greedy": {"beam": 1},
    "beam": {"beam": 5, "nbest": 5},
    "samples": {"sample": True, "nbest": 3, "top_p": 0.9},
    "diverse": {"beam": 4, "nbest": 4, "diverse_groups": 2},
}
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
narrow_types = pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)


def translations(model, **values):
    """Return the hypotheses of `sentences`; every other sentence has a forced prefix."""
    settings = SearchSettings(max_length_a=0, max_length_b=20, **values)
    batch = batch_for(model, sentences())
    demands = [Demand((i,), (5, 6) if i % 2 else ()) for i in range(len(batch.src))]
    return decode([model], batch, settings, demands)


def in_16_bits(model, narrow):
    """Let the model compute products in this type in a search; return the model."""
    for module in model.modules():
        if isinstance(module, Packable):
            module.narrow = narrow
    return model


@contextlib.contextmanager
def waits(mode):
    """Set torch's mode for waits for the GPU: "error" or "default"."""
    if not ON_GPU:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def under(mode, function):
    """Return the function, called in a mode of `waits`."""

    def wrapped(*args):
        with waits(mode):
            return function(*args)

    return wrapped


@pytest.mark.parametrize("method", METHODS)
def test_search_waits_for_the_gpu_at_looks_only(variant, method, monkeypatch):
    model = build(variant)
    expected = translations(model, **METHODS[method])
    looks, look = [], beam.Beams.look

    def counted(self):
        looks.append(self.step)
        return look(self)

    monkeypatch.setattr(beam, "_search", under("error", beam._search))
    monkeypatch.setattr(recording, "record", under("default", recording.record))
    monkeypatch.setattr(beam.Beams, "look", under("default", counted))
    monkeypatch.setattr(beam.Beams, "keep", under("default", beam.Beams.keep))
    actual = translations(model, **METHODS[method])
    assert [[h.ids for h in of] for of in actual] == [[h.ids for h in of] for of in expected]
    every = beam.LOOK if ON_GPU else 1
    assert looks == sorted({*range(every, looks[-1] + 1, every), looks[-1]})


@pytest.mark.skipif(not ON_GPU, reason="tests/translate/test_step_graphs.py has a stand-in")
@pytest.mark.parametrize("narrow", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 5])
def test_replayed_steps_find_the_hypotheses_of_kernels(variant, width, narrow, monkeypatch, capsys):
    """Sentences leave the batch; the second search uses the graphs of the first."""
    model = in_16_bits(build(variant), narrow)
    batch = batch_for(model, pairs(70, seed=1))
    settings = SearchSettings(beam=width, nbest=width, max_length_a=0, max_length_b=60)
    monkeypatch.setattr(recording, "graphs_fit", lambda device: False)
    exact = beam.search([model], batch, settings)
    monkeypatch.undo()
    recorded, record = [], recording.record
    monkeypatch.setattr(recording, "record", lambda *of: recorded.append(1) or record(*of))
    first, second = (beam.search([model], batch, settings) for _ in range(2))
    assert "no CUDA graph" not in capsys.readouterr().err and recorded
    for replayed in (first, second):
        best = [(a[0], b[0]) for a, b in zip(replayed, exact, strict=True)]
        same = [(a, b) for a, b in best if a.ids == b.ids]
        assert len(same) >= (0.9 if narrow else 1) * len(best)
        for a, b in same:
            assert a.log_prob == pytest.approx(b.log_prob, abs=0.3 if narrow else 1e-3)


@narrow_types
def test_scores_of_a_search_in_16_bits_are_near_those_of_float32(variant, narrow):
    model = in_16_bits(build(variant), narrow)
    best = [hypotheses[0] for hypotheses in translations(model, beam=4)]
    outputs = [(src, [*h.ids, 2]) for (src, _), h in zip(sentences(), best, strict=True)]
    forced = forced_scores([build(variant)], batch_for(model, outputs))
    for hypothesis, scores in zip(best, forced, strict=True):
        log_prob = sum(scores if hypothesis.finished else scores[:-1])
        assert log_prob == pytest.approx(hypothesis.log_prob, abs=0.02 * (1 + len(scores)))


@pytest.mark.skipif(not ON_GPU, reason="these are kernels of a GPU")
@pytest.mark.parametrize("narrow", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [1, 5])
def test_fused_kernels_take_the_tensors_of_every_step(width, narrow):
    """torch raises an error if no kernel takes them."""
    model = in_16_bits(build("transformer"), narrow)
    with sdpa_kernel(FUSED):
        translations(model, beam=width)
