"""What stays float32 when a model is trained in bfloat16: sums, exponentials and everything that
lives longer than a step.
"""

from collections import defaultdict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.data.batches import collate
from nmtkit.data.store import Store
from nmtkit.models import loading
from nmtkit.models.variants import build_model
from nmtkit.train import loss as losses
from nmtkit.train.gradients import seed_everything
from nmtkit.train.stage import train
from tests.train.tiny import last, make_run, options

SIZES = {
    "d_model": 16,
    "d_ff": 32,
    "heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}


class Watched(TorchDispatchMode):
    """Notes the number types of what goes into and comes out of every operation of torch,
    forwards and backwards.
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
def watched(run):
    """A training of three updates, of several micro-batches each."""
    settings = options(
        "train.max_steps=3",
        "train.update_size=150",
        "train.precision=bfloat16",
        "train.validate_every=100",
        "model.norm=post",
    )
    with Watched() as seen:
        train(run, assignments=settings)
    return seen


def test_matrix_products_with_weights_are_bfloat16(watched):
    for name in ("addmm", "mm"):
        assert torch.bfloat16 in watched.types[name], name


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
def test_all_else_is_float32(watched, name):
    assert watched.types[name] == {torch.float32}


def test_softmax_is_float32(watched):
    """The output layer's, and attention's."""
    assert {dtype for dtype, _ in watched.softmax_errors} == {torch.float32}
    assert max(error for _, error in watched.softmax_errors) < 1e-6


def test_what_is_stored_is_float32(watched, run):
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert {tensor.dtype for tensor in load_file(last(run) / name).values()} == {torch.float32}


def gradients(model, store, micro_batches):
    model.zero_grad()
    for micro, rows in micro_batches:
        seed_everything(1, 1, micro)
        batch = collate(store, rows)
        with torch.autocast("cpu", torch.bfloat16):
            hidden, _ = model.decode(batch.tgt_in, model.encode(batch))

        def logits(x):
            with torch.autocast("cpu", torch.bfloat16):
                return model.logits(x)

        losses.backward(logits, hidden, batch, 0.1, 1 / 100, 512)
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.fixture
def model(run):
    torch.manual_seed(1)
    return build_model("transformer", SIZES, loading.vocabulary_sizes(run)).train()


def test_gradients_of_micro_batches_are_summed_in_float32(run, model):
    """Sixteen of them: a bfloat16 sum would be off by half a percent."""
    store = Store(run.prep / "train")
    parts = [(i, np.arange(3 * i, 3 * i + 3)) for i in range(16)]
    total = gradients(model, store, parts)
    single = [gradients(model, store, [part]) for part in parts]
    for name, gradient in total.items():
        assert gradient.dtype == torch.float32
        wanted = sum(g[name].double() for g in single)
        assert float((gradient - wanted).norm() / wanted.norm()) < 1e-6, name
