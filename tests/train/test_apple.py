"""--device mps: the choices for an Apple GPU. No test here runs on an Apple GPU."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from nmtkit.data.batches import on_device
from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.models import loading
from nmtkit.nn import embeddings, hardware
from nmtkit.settings import SearchSettings, TrainSettings
from nmtkit.train import compiling, deterministic, gradients, loss, ranks
from nmtkit.train.optimizer import make_optimizer, put_optimizer_tensors
from nmtkit.translate import beam, forced, methods, sampling, steps
from nmtkit.translate.demands import Demand
from tests.refused import refused
from tests.train.tiny import metrics, options, trainer

MPS = torch.device("mps")
SETTINGS = options(
    "train.max_steps=3", "train.validate_every=3", "train.ema=0.5", "train.precision=float32"
)
go = trainer(SETTINGS)


@pytest.fixture
def apple(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


@pytest.mark.parametrize(("cuda", "devices"), [(False, "cpu"), (True, "cpu, cuda")])
def test_error_without_an_apple_gpu_lists_the_devices(cuda, devices, run, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    caught = refused(EnvironmentProblem, "no Apple GPU here", go, run, device="mps")
    assert (caught.where, caught.hint) == ("--device mps", f"this machine has: {devices}")


def test_apple_gpu_is_used_only_under_the_name_mps(apple):
    assert hardware.pick_device("mps") == MPS
    assert hardware.pick_device("auto").type != "mps"
    for name in ("mps:0", "mps:1", "MPS", "metal"):
        caught = refused(ConfigError, "unknown device", hardware.pick_device, name)
        assert caught.hint == "auto, cpu, cuda or mps"


def test_apple_gpu_computes_in_plain_float32(apple):
    before = torch.get_float32_matmul_precision()
    try:
        chosen = hardware.choose("mps", width=1024)
    finally:
        torch.set_float32_matmul_precision(before)
    assert (chosen.device, chosen.precision, chosen.matmul) == ("mps", "float32", "highest")
    assert not chosen.keeps_blocks and "Apple GPU" in chosen.describe()
    assert not gradients.autocast_arguments(chosen)["enabled"]
    assert hardware.widest(MPS) == torch.float32
    assert {hardware.widest(torch.device(name)) for name in ("cpu", "cuda")} == {torch.float64}
    for precision in ("bfloat16", "float16"):
        refused(ConfigError, f"float32 here, not in {precision}", hardware.choose, "mps", precision)


def test_compiler_deterministic_algorithms_and_ranks_are_refused_on_mps(apple, run):
    with pytest.raises(ConfigError, match="nothing is compiled for an Apple GPU"):
        go(run, device="mps", compile_model=True)
    with pytest.raises(ConfigError, match="no deterministic algorithms"):
        go(run, "train.deterministic=true", device="mps")
    with pytest.raises(ConfigError, match="several processes cannot share"):
        ranks.Group.__new__(ranks.Group).device("mps")
    refused(ConfigError, "nothing is compiled", compiling.check_compiler, MPS)
    with deterministic.deterministic(False, "mps"):
        pass


def test_only_batches_for_cuda_are_pinned(monkeypatch):
    def pin_memory(self):
        raise AssertionError("pinned")

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    assert on_device(torch.arange(3), "meta").device.type == "meta"


class ParameterOnMps(nn.Parameter):
    """A parameter that claims to be on an Apple GPU."""

    place = MPS
    device = property(lambda self: self.place)


@pytest.mark.parametrize("place", ["mps", "cpu"])
def test_adam_on_mps_is_not_fused_and_counts_its_steps_in_main_memory(place, monkeypatch):
    monkeypatch.setattr(ParameterOnMps, "place", torch.device(place))
    model = nn.Module()
    model.weight = torch.Tensor._make_subclass(ParameterOnMps, torch.zeros(2), True)
    optimizer = make_optimizer(model, TrainSettings.model_validate({}))
    assert optimizer.defaults["fused"] == (place == "cpu")
    moments = {"exp_avg/weight": torch.zeros(2), "exp_avg_sq/weight": torch.zeros(2)}
    put_optimizer_tensors(model, optimizer, moments | {"step/weight": torch.tensor(4.0)})
    assert float(optimizer.state[model.weight]["step"]) == 4


class No64Bits(TorchDispatchMode):
    """Refuses operations on float64, which an Apple GPU does not have."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves((args, kwargs, result)):
            assert not isinstance(x, torch.Tensor) or x.dtype != torch.float64, func
        return result


@contextlib.contextmanager
def as_on_mps(monkeypatch):
    """Compute on the CPU with the number types of an Apple GPU."""
    table = embeddings.sinusoids

    def on_the_cpu(length, width):  # there it is computed on an Apple machine, too
        with _disable_current_modes():
            return table(length, width).float()

    with monkeypatch.context() as patch:
        patch.setattr(embeddings, "sinusoids", on_the_cpu)
        for module in (hardware, gradients, loss, beam, sampling, steps, forced):
            patch.setattr(module, "widest", lambda device: torch.float32)
        patch.setattr(hardware, "_float32_path", lambda: "highest")  # measured in float64
        with No64Bits():
            yield


def test_training_and_search_need_no_float64(run, monkeypatch):
    with pytest.raises(AssertionError, match="aten"), No64Bits():
        go(run, name="wide")
    go(run, name="wide", force=True)
    model = loading.load_system(run, run.system("wide"))
    settings = SearchSettings.model_validate({"beam": 3})
    sampled = settings.model_copy(update={"sample": True, "top_p": 0.9})
    with as_on_mps(monkeypatch):
        go(run)
        batch = forced.pair_batch([[5, 6, 7, 2], [9, 2]], [[18, 17, 2], [21, 2]])
        assert len(beam.search([model], batch, settings)) == 2
        assert len(methods.decode([model], batch, sampled, [Demand((i,)) for i in (0, 1)])) == 2
        assert all(forced.forced_scores([model], batch))
    narrow, wide = (metrics(run, "dev", name)[0]["dev_loss"] for name in ("transformer", "wide"))
    assert narrow == pytest.approx(wide, rel=1e-5)
