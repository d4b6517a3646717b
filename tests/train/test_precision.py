"""A bfloat16 training keeps in float32: sums, exponentials, and everything that lives longer than an
update.
"""

from collections import defaultdict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.data.pairs import GivenPairs
from nmtkit.settings import TrainSettings
from nmtkit.train.gradients import Gradients, Share
from nmtkit.train.stage import train
from nmtkit.train.state import TrainState
from tests.models.contract import Case, pairs
from tests.train.tiny import last, make_run, options


class NumberTypes(TorchDispatchMode):
    """Records the number types of arguments and results of every operation of torch, forwards and
    backwards, and the relative errors of every softmax.
    """

    def __init__(self):
        super().__init__()
        self.types = defaultdict(set)
        self.softmax_errors = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        exact = torch.softmax(args[0].double(), -1) if name == "_softmax" else None
        result = func(*args, **(kwargs or {}))
        self.types[name] |= {
            x.dtype
            for x in torch.utils._pytree.tree_leaves((args, kwargs, result))
            if isinstance(x, torch.Tensor) and x.is_floating_point()
        }
        if exact is not None:
            error = ((result.double() - exact).abs() / exact.clamp(min=1e-30)).max()
            self.softmax_errors.append((result.dtype, float(error)))
        return result


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("precision") / "run")


@pytest.fixture(scope="module")
def recorded(run):
    """A training of three updates, of several micro-batches each."""
    settings = options(
        "train.max_steps=3",
        "train.update_size=150",
        "train.precision=bfloat16",
        "train.validate_every=100",
        "model.norm=post",
    )
    with NumberTypes() as recorder:
        train(run, assignments=settings)
    return recorder


def test_matrix_products_with_weights_are_in_bfloat16(recorded):
    for name in ("addmm", "mm"):
        assert recorded.types[name] == {torch.bfloat16}, name


@pytest.mark.parametrize(
    "name",
    [
        "bmm",  # attention: bfloat16 would round a score of 60 to a multiple of a quarter
        "native_layer_norm",
        "native_layer_norm_backward",
        "embedding",
        "embedding_dense_backward",
        "log",  # of the loss: the logits are widened before the softmax
        "_fused_adamw_",  # weights, gradients, moments
    ],
)
def test_operation_stays_in_float32_under_bf16(recorded, name):
    assert recorded.types[name] == {torch.float32}


def test_softmax_stays_in_float32_under_bf16(recorded):
    """The softmax of the output layer, and of attention."""
    assert {dtype for dtype, _ in recorded.softmax_errors} == {torch.float32}
    assert max(error for _, error in recorded.softmax_errors) < 1e-6


def test_checkpoint_is_in_float32(recorded, run):
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert {tensor.dtype for tensor in load_file(last(run) / name).values()} == {torch.float32}


BFLOAT16 = {"device_type": "cpu", "dtype": torch.bfloat16, "enabled": True}


def test_gradients_of_micro_batches_are_summed_in_float32():
    """A bfloat16 sum of these sixteen would be off by half a percent."""
    model = Case("transformer").build(dtype=torch.float32, dropout=0.1, attention_dropout=0.1)
    store = GivenPairs(*zip(*pairs(48), strict=True))
    computer = Gradients(model, store, TrainSettings(), BFLOAT16, TrainState())

    def gradients(parts):
        model.zero_grad()
        computer.add(Share(parts), 1, 100)
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    parts = [(i, np.arange(3 * i, 3 * i + 3)) for i in range(16)]
    total, single = gradients(parts), [gradients([part]) for part in parts]
    for name, gradient in total.items():
        assert gradient.dtype == torch.float32
        expected = sum(g[name].double() for g in single)
        assert float((gradient - expected).norm() / expected.norm()) < 1e-6, name
