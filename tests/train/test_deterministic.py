"""`train.deterministic` without a GPU: torch's flags are set while a training runs, and every
variant trains with them, to the same bits.
"""

import contextlib
import os
import re

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.errors import ConfigError
from nmtkit.models.transformer import Transformer
from nmtkit.models.variants import load_variant
from nmtkit.nn import cpu
from nmtkit.nn.hardware import pick_device
from nmtkit.train import deterministic as ours
from nmtkit.train import stage
from nmtkit.train.stage import train
from tests.models.cases import DISTINCT
from tests.train.tiny import MODEL, TRAIN, equal_tensors, make_run

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
SHORT = (
    "train.max_steps=3",
    "train.validate_every=2",
    "train.checkpoint_every=3",
    "train.log_every=1",
)
# Operations that raise on a GPU, as torch.use_deterministic_algorithms documents them; cumsum
# raises for floating-point numbers only.
RAISES = (
    "put_?[.]|histc|bincount|median[.]dim|_?ctc_loss|nll_loss|grid_sampler|upsample|_?adaptive_|"
    "avg_pool3d|reflection_pad|fractional_max|max_unpool|_?embedding_bag|scatter_reduce"
)
RECURRENT = ["model.d_embedding=8", "model.d_hidden=16"]  # tiny sizes in the terms of that family


@pytest.fixture
def gpu(monkeypatch):
    """Pretend to have a GPU; this CPU computes for it."""
    monkeypatch.setattr(ours, "pick_device", lambda device: torch.device("cuda"))
    monkeypatch.setenv(WORKSPACE, "")  # so that it is taken back after the test
    monkeypatch.delenv(WORKSPACE)


def flags():
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        torch.utils.deterministic.fill_uninitialized_memory,
        os.environ.get(WORKSPACE),
    )


DETERMINISTIC = (True, False, True, False, False, ":4096:8")


@pytest.mark.parametrize("warn_only", [False, True])
def test_flags_are_set_and_restored(gpu, monkeypatch, warn_only):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.use_deterministic_algorithms(warn_only, warn_only=warn_only)
    try:
        before = flags()[:-1]
        with ours.deterministic(True, "auto"):
            assert flags() == DETERMINISTIC
        assert flags()[:-1] == before  # the workspace stays
        with pytest.raises(KeyError), ours.deterministic(True, "auto"):
            raise KeyError
        assert flags()[:-1] == before  # the workspace stays
    finally:
        torch.use_deterministic_algorithms(False)


def test_flags_stay_without_the_setting_and_on_a_cpu(gpu, monkeypatch):
    before = flags()
    with ours.deterministic(False, "auto"):
        assert flags() == before
    monkeypatch.setattr(ours, "pick_device", pick_device)
    with ours.deterministic(True, "cpu"):
        assert flags() == before


@pytest.mark.parametrize("value", [":4096:8", ":16:8"])
def test_workspace_setting_that_is_deterministic_stays(gpu, monkeypatch, value):
    monkeypatch.setenv(WORKSPACE, value)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with ours.deterministic(True, "auto"):
        assert os.environ[WORKSPACE] == value
    assert os.environ[WORKSPACE] == value


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        (":4096:2", f"{WORKSPACE} is ':4096:2' in the environment", ":4096:8"),
        ("", f"{WORKSPACE} is '' in the environment", ":4096:8"),
        (":4096:8 ", f"{WORKSPACE} is ':4096:8 ' in the environment", ":4096:8"),
        (None, "CUDA has started without", "before this process starts"),
    ],
)
def test_workspace_setting_that_is_not_deterministic_is_refused(
    gpu, monkeypatch, value, message, hint
):
    if value is None:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    else:
        monkeypatch.setenv(WORKSPACE, value)
    before = flags()
    with pytest.raises(ConfigError, match=message) as caught, ours.deterministic(True, "auto"):
        pass
    assert caught.value.where == "train.deterministic" and hint in caught.value.hint
    assert flags() == before


def test_second_training_of_a_process_finds_the_workspace_of_the_first(gpu, monkeypatch):
    """CUDA starts in the first training."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with ours.deterministic(True, "auto"):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert os.environ[WORKSPACE] == ":4096:8"
    with ours.deterministic(True, "auto"):
        assert flags() == DETERMINISTIC


class Operations(TorchDispatchMode):
    """Records the names of operations."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        of_floats = (
            bool(args)
            and isinstance(args[0], torch.Tensor)
            and (args[0].is_floating_point() or "dtype" in (kwargs or {}))
        )
        self.seen.add(f"float {name}" if name.startswith("cumsum") and of_floats else name)
        return function(*args, **kwargs or {})

    def refused(self):
        return {name for name in self.seen if re.match(f"({RAISES})|float cumsum", name)}


def trained(run, name, variant, *extra):
    """Train three updates; return weights and optimiser state."""
    sizes = RECURRENT if "d_embedding" in load_variant(variant).Settings.model_fields else MODEL
    if variant == "transformer-cycle":  # its default shares more layers than the model has
        sizes = [*sizes, "model.distinct_layers=1"]
    assignments = [*sizes, *TRAIN, *SHORT, *extra]
    train(run, variant=variant, name=name, assignments=assignments, device="cpu")
    checkpoint = run.system(name).checkpoints / "step-00000003"
    return [load_file(checkpoint / f"{kind}.safetensors") for kind in ("model", "optimizer")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("deterministic") / "run", pairs=40, dev=4)


@pytest.mark.parametrize("variant", DISTINCT)
def test_deterministic_training_has_the_same_bits_and_deterministic_operations_only(
    run, variant, gpu, monkeypatch
):
    """With a GPU's attention. No memory is read before it is written: torch fills new memory with
    NaN.
    """
    monkeypatch.setattr(cpu, "SHORT", 0)
    plain = trained(run, f"{variant}-plain", variant)
    operations, states = Operations(), []

    @contextlib.contextmanager
    def watched(enabled, device):
        with ours.deterministic(enabled, device), operations:
            states.append(flags())
            monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
            yield

    monkeypatch.setattr(stage, "deterministic", watched)
    again = trained(run, variant, variant, "train.deterministic=true")
    assert states == [DETERMINISTIC]
    assert all(map(equal_tensors, plain, again))
    backward, optimizer = "embedding_dense_backward.default", "_fused_adamw_.default"
    assert {backward, optimizer} <= operations.seen
    assert operations.refused() == set()


def test_recorder_names_operations_that_raise_on_a_gpu():
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    with Operations() as operations:
        x.cumsum(1).sum().backward()
        torch.arange(3).cumsum(0)
        torch.zeros(3).put_(torch.tensor([1]), torch.tensor([2.0]))
        x.detach().median(1)
        torch.nn.functional.nll_loss(x, torch.tensor([0, 1]))
    assert operations.refused() == {
        "float cumsum.default",
        "put_.default",
        "median.dim",
        "nll_loss_forward.default",
    }


class Scattering(Transformer):
    def encode(self, batch):
        torch.zeros(3).put_(torch.tensor([1]), torch.tensor([2.0]))  # torch refuses it on a CPU too
        return super().encode(batch)


def test_model_with_a_nondeterministic_operation_is_refused_before_the_training(run, gpu):
    with pytest.raises(
        ConfigError, match="the model uses put_, which has no deterministic form on a GPU"
    ) as caught:
        trained(run, "scattering", f"{__name__}:Scattering", "train.deterministic=true")
    assert caught.value.where == "train.deterministic"
    assert '"exit": 2' in (run.path / "history.jsonl").read_text("utf-8").splitlines()[-1]
    assert flags()[0] is False
    trained(run, "scattering", f"{__name__}:Scattering")


def test_deterministic_setting_is_logged_recorded_and_may_change(run, gpu, stderr):
    trained(run, "system", "transformer", "train.deterministic=true")
    system = run.system("system")
    message = "deterministic as every CPU training (train.deterministic changes nothing here)"
    assert message in stderr()
    assert system.read_config().train["deterministic"] is True
    assert message in (system.path / "train.log").read_text("utf-8").splitlines()[0]
    trained(run, "system", "transformer", "train.deterministic=false", "train.max_steps=4")
    assert "train.deterministic: True -> False" in stderr()
    assert system.read_config().train["deterministic"] is False
    assert ours.describe(True, "cuda") == ", deterministic algorithms"
    assert ours.describe(False, "cuda") == ours.describe(False, "cpu") == ""
