"""Weights for CTranslate2: a slow Transformer that reads only these equals nmtkit's model."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from nmtkit.export import stage, to_ctranslate2
from nmtkit.models import loading
from nmtkit.translate.forced import pair_batch
from tests.export.conftest import SETTINGS
from tests.models.slow import position
from tests.models.test_transformer import slow_logits

SRC, TGT = [[5, 9, 7, 30, 2], [8, 2]], [[11, 4, 2], [6, 7, 20, 21, 2]]


OUTSIDE = {
    "encoder/embeddings_0": "src_embedder.table",
    "decoder/embeddings": "tgt_embedder.table",
    "encoder/layer_norm": "encoder_norm",
    "decoder/layer_norm": "decoder_norm",
    "decoder/projection": "output",
}
INSIDE = {
    "self_attention/linear_0": "attention.qkv",
    "self_attention/linear_1": "attention.out",
    "self_attention/layer_norm": "attention_residual.norm",
    "attention/linear_0": "cross.query",
    "attention/linear_1": "cross.kv",
    "attention/linear_2": "cross.out",
    "attention/layer_norm": "cross_residual.norm",
    "ffn/linear_0": "feed_forward.inner",
    "ffn/linear_1": "feed_forward.outer",
    "ffn/layer_norm": "feed_forward_residual.norm",
}
"""Modules of CTranslate2, outside and inside a layer, by their names in `slow_logits`."""


def as_slow(name):
    """Return the name that `slow_logits` uses for a variable of CTranslate2."""
    path, _, attribute = name.rpartition("/")
    side, layer, module = [*path.split("/", 2), ""][:3]
    place = OUTSIDE.get(path) or f"{side}.{layer.removeprefix('layer_')}.{INSIDE[module]}"
    return f"{place}.{ {'gamma': 'weight', 'beta': 'bias'}.get(attribute, attribute) }"


@pytest.mark.parametrize("name", SETTINGS)
def test_slow_transformer_with_exported_variables_gives_the_models_logits(run, name):
    model = loading.load_system(run, run.system(name)).double()
    variables = to_ctranslate2.variables(model, positions=9)
    batch = pair_batch(SRC, TGT)
    with torch.no_grad():
        wanted = model.logits(model.decode(batch.tgt_in, model.encode(batch))[0]).numpy()
    assert ("encoder/layer_norm/gamma" in variables) == (name == "pre")
    assert ("decoder/projection/bias" in variables) == (name != "post")
    assert ("decoder/layer_0/attention/linear_1/bias" in variables) == (name != "pre")
    assert all(value.dtype == np.float32 for value in variables.values())
    model.output.weight.data.zero_()  # the variables are copies
    for side in ("encoder", "decoder"):
        table = variables.pop(f"{side}/position_encodings/encodings")
        assert_allclose(table, [position(i, 16) for i in range(9)], rtol=0, atol=1e-6)
    weights = {as_slow(key): value.tolist() for key, value in variables.items()}
    without_dropout = model.settings.model_copy(update={"dropout": 0.0})
    for row, (src, tgt) in enumerate(zip(SRC, TGT, strict=True)):
        found = slow_logits(weights, without_dropout, src, [1, *tgt[:-1]])
        assert_allclose(found, wanted[row, : len(tgt)], rtol=0, atol=1e-10)


def test_layers_that_share_parameters_are_each_written(run):
    stage.refuse(run, "transformer-cycle", stage.ENGINES["ctranslate2"])  # does not refuse
    variables = to_ctranslate2.variables(
        loading.load_system(run, run.system("transformer-cycle")), 9
    )
    first, last = (f"encoder/layer_{i}/self_attention/linear_0/weight" for i in (0, 1))
    assert np.array_equal(variables[first], variables[last])
    assert "decoder/layer_3/attention/linear_1/weight" in variables


class Spec(SimpleNamespace):
    """A stand-in for the specification of CTranslate2 that records variables."""

    @classmethod
    def from_config(cls, layers, heads, pre_norm):
        stacks = {side: cls(set={}) for side in ("encoder", "decoder")}
        return cls(layers=layers, heads=heads, pre_norm=pre_norm, config=cls(), set={}, **stacks)


class Owner:
    def __init__(self, spec, name):
        vars(self).update(spec=spec, name=name)

    def __setattr__(self, attribute, value):
        self.spec.set[f"{self.name}/{attribute}"] = value


@pytest.mark.parametrize(
    ("name", "layers", "heads"), [("post", (1, 2), 2), ("pre", (1, 2), 2), ("apart", (2, 1), 4)]
)
def test_specification_gets_every_variable_and_setting(run, monkeypatch, name, layers, heads):
    specs = SimpleNamespace(
        model_spec=SimpleNamespace(index_spec=Owner),
        transformer_spec=SimpleNamespace(TransformerSpec=Spec),
    )
    monkeypatch.setitem(sys.modules, "ctranslate2", SimpleNamespace(specs=specs))
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", specs)
    model = loading.load_system(run, run.system(name))
    variables = to_ctranslate2.variables(model, positions=9)
    spec = to_ctranslate2.specification(variables, model.settings)
    assert (spec.layers, spec.heads, spec.pre_norm) == (layers, heads, name == "pre")
    assert spec.set.keys() == variables.keys()
    assert all(spec.set[key] is value for key, value in variables.items())
    assert spec.encoder.scale_embeddings is spec.decoder.scale_embeddings is True
    assert vars(spec.config) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "decoder_start_token": "<s>",
        "add_source_bos": False,
        "add_source_eos": True,
        "layer_norm_epsilon": 1e-5,
    }
