"""The search as a GPU runs it, with the GPU's paths taken on a CPU."""

import pytest
import torch
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


class Products(TorchDispatchMode):
    """Collects the number types of matrix products."""

    def __init__(self):
        super().__init__()
        self.types = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation._schema.name in {"aten::linear", "aten::mm", "aten::addmm"}:
            self.types.append(args[1].dtype)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_products_of_16_bits(variant, precision, monkeypatch):
    """Layers multiply in 16 bits, the output layer does not; the best translations stay."""
    emulate(monkeypatch)
    model = Case(variant).build(dtype=torch.float32)
    batch, options = batch_for(model), SearchSettings(beam=3, **LIMITS)
    exact = search([model], batch, options)
    for module in model.modules():
        if isinstance(module, Packable):
            module.narrow = precision
    products = Products()
    with products:
        rounded = search([model], batch, options)
    assert {precision, torch.float32} == set(products.types)
    assert not torch.is_autocast_enabled("cpu")
    for (first, *_), (second, *_) in zip(exact, rounded, strict=True):
        if first.ids == second.ids:
            assert second.log_prob == pytest.approx(first.log_prob, abs=0.3)
    same = [a[0].ids == b[0].ids for a, b in zip(exact, rounded, strict=True)]
    assert sum(same) >= len(same) - 1


def test_pack_chooses_the_type_of_a_gpu():
    for precision, expected in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        layer = torch.nn.Sequential(*Case("transformer").build(dtype=torch.float32).encoder)
        pack(layer.to("meta"), precision)
        assert {m.narrow for m in layer.modules() if isinstance(m, Packable)} == {expected}
    pack(layer, "float32")
    assert {m.narrow for m in layer.modules() if isinstance(m, Packable)} == {None}


@pytest.mark.parametrize("variant", VARIANTS)
def test_fused_attention_gets_keys_in_its_layout(variant, monkeypatch):
    """torch's fused kernels read keys and values whose last dimension lies side by side."""
    emulate(monkeypatch)
    model = Case(variant).build(dtype=torch.float32)
    strides, plain = set(), F.scaled_dot_product_attention

    def watched(*tensors, **values):
        strides.update(x.stride(-1) for x in tensors)
        return plain(*tensors, **values)

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


def found_by(model, method, **limits):
    """Return the translations of sentences, of which some have forced prefixes."""
    settings = SearchSettings(**METHODS[method], **(LIMITS | limits))
    batch = batch_for(model)
    demands = [Demand((i,), (5, 6) if i % 2 else ()) for i in range(len(batch.src))]
    return decode([model], batch, settings, demands)


@every_variant_and_method
def test_translations_do_not_depend_on_the_path(variant, method, monkeypatch):
    model = Case(variant).build()
    expected = found_by(model, method)
    emulate(monkeypatch)
    for look in (1, 5, 8):
        monkeypatch.setattr(beam, "LOOK", look)
        for of_sentence, exact in zip(found_by(model, method), expected, strict=True):
            assert [(h.ids, h.finished) for h in of_sentence] == [
                (h.ids, h.finished) for h in exact
            ]
            assert [h.log_prob for h in of_sentence] == pytest.approx(
                [h.log_prob for h in exact], abs=1e-9
            )


@every_variant_and_method
def test_a_search_waits_for_the_device_every_eighth_step(variant, method, monkeypatch):
    emulate(monkeypatch)
    reads, steps, decoders_step = [], [], Decoders.step

    def counted(self, last, pick):
        if not steps:
            del reads[:]  # of the beginning
        steps.append(len(reads))
        return decoders_step(self, last, pick)

    monkeypatch.setattr(Decoders, "step", counted)
    model = Case(variant).build()
    with Reads(reads), Lists(reads):
        found_by(model, method, max_length_a=4)
    looks = -(-len(steps) // 8)
    assert len(steps) >= 8 and reads == ["cpu", "numpy"] * looks
    assert steps == [2 * (step // 8) for step in range(len(steps))]
