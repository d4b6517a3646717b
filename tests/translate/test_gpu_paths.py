"""The paths of a search on a GPU, taken on a CPU: 16-bit products, fused attention, waits."""

import pytest
import torch
from slow_search import assert_same
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.models.variants import VARIANTS
from nmtkit.nn.linear import Packable, pack
from nmtkit.settings import SearchSettings
from nmtkit.translate import beam
from nmtkit.translate.beam import search
from nmtkit.translate.demands import Demand
from nmtkit.translate.methods import decode
from nmtkit.translate.steps import Decoders
from tests.models.contract import Case, batch_for
from tests.train.test_waits import Lists, Reads, emulate

LIMITS = {"max_length_a": 0, "max_length_b": 13}


class ProductTypes(TorchDispatchMode):
    """Collects the number types of matrix products."""

    def __init__(self):
        super().__init__()
        self.types = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation._schema.name in {"aten::linear", "aten::mm", "aten::addmm"}:
            self.types.add(args[1].dtype)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_products_of_16_bits_change_translations_little(variant, precision, monkeypatch):
    """Layers multiply in 16 bits, the output layer in 32."""
    emulate(monkeypatch)
    model = Case(variant).build(dtype=torch.float32)
    batch, settings = batch_for(model), SearchSettings(beam=3, **LIMITS)
    exact = search([model], batch, settings)
    for module in model.modules():
        if isinstance(module, Packable):
            module.narrow = precision
    products = ProductTypes()
    with products:
        rounded = search([model], batch, settings)
    assert products.types == {precision, torch.float32}
    assert not torch.is_autocast_enabled("cpu")
    pairs = [(first, second) for (first, *_), (second, *_) in zip(exact, rounded, strict=True)]
    alike = [(first, second) for first, second in pairs if first.ids == second.ids]
    assert len(alike) >= len(pairs) - 1
    for first, second in alike:
        assert second.log_prob == pytest.approx(first.log_prob, abs=0.3)


def test_pack_gives_layers_on_a_gpu_their_number_type():
    layers = torch.nn.Sequential(*Case("transformer").build(dtype=torch.float32).encoder)
    layers.to("meta")
    types = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": None}
    for precision, expected in types.items():
        pack(layers, precision)
        assert {m.narrow for m in layers.modules() if isinstance(m, Packable)} == {expected}


@pytest.mark.parametrize("variant", VARIANTS)
def test_fused_attention_gets_vectors_without_gaps(variant, monkeypatch):
    """torch's fused kernels read keys and values whose last dimension is contiguous."""
    emulate(monkeypatch)
    model = Case(variant).build(dtype=torch.float32)
    strides, attention = set(), F.scaled_dot_product_attention

    def watched(*tensors, **values):
        strides.update(x.stride(-1) for x in tensors)
        return attention(*tensors, **values)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    search([model], batch_for(model), SearchSettings(beam=3, **LIMITS))
    assert strides <= {1}


METHODS = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "nbest": 4},
    "samples": {"sample": True, "nbest": 3, "top_k": 7, "top_p": 0.9},
    "diverse": {"beam": 4, "nbest": 4, "diverse_groups": 2},
}
every_variant_and_method = pytest.mark.parametrize(
    ("variant", "method"),
    [
        *((name, "beam") for name in VARIANTS),
        *((n, method) for n in ("transformer", "caru") for method in METHODS if method != "beam"),
    ],
)


def translations(model, method, **limits):
    """The translations of a batch; every second one has a forced prefix."""
    settings = SearchSettings(**METHODS[method], **(LIMITS | limits))
    batch = batch_for(model)
    demands = [Demand((i,), (5, 6) if i % 2 else ()) for i in range(len(batch.src))]
    return decode([model], batch, settings, demands)


@every_variant_and_method
def test_translations_do_not_depend_on_the_steps_between_looks(variant, method, monkeypatch):
    model = Case(variant).build()
    expected = translations(model, method)
    emulate(monkeypatch)
    for look in (1, 5, 8):
        monkeypatch.setattr(beam, "LOOK", look)
        for hypotheses, exact in zip(translations(model, method), expected, strict=True):
            assert_same(hypotheses, exact)


@every_variant_and_method
def test_search_waits_for_the_device_only_every_eighth_step(variant, method, monkeypatch):
    emulate(monkeypatch)
    reads, reads_before_step, step = [], [], Decoders.step

    def counted(self, last, pick):
        if not reads_before_step:
            reads.clear()  # reads before the first step
        reads_before_step.append(len(reads))
        return step(self, last, pick)

    monkeypatch.setattr(Decoders, "step", counted)
    model = Case(variant).build()
    with Reads(reads), Lists(reads):
        translations(model, method, max_length_a=4)
    steps = len(reads_before_step)
    assert steps >= 8 and reads == ["cpu", "numpy"] * -(-steps // 8)
    assert reads_before_step == [2 * (i // 8) for i in range(steps)]
