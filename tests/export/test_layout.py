"""The weights under CTranslate2's names: a Transformer that is computed from them alone, as
CTranslate2 documents its layers, is the model's.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from nmtkit.export import layout
from nmtkit.models import loading
from nmtkit.translate.forced import pair_batch
from tests.export.conftest import SETTINGS

SRC, TGT = [[5, 9, 7, 30, 2], [8, 2]], [[11, 4, 2], [6, 7, 20, 21, 2]]


class Computed:
    """One sentence at a time from the variables, in float64; of the names it reads it keeps
    account.
    """

    def __init__(self, variables, heads):
        self.v, self.heads, self.read = variables, heads, set()

    def get(self, name):
        self.read |= {name} & set(self.v)
        return self.v[name].astype(np.float64) if name in self.v else 0.0

    def linear(self, name, x):
        return x @ self.get(f"{name}/weight").T + self.get(f"{name}/bias")

    def norm(self, name, x):
        variance = x.var(-1, keepdims=True)
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + layout.EPSILON) * self.get(
            f"{name}/gamma"
        ) + self.get(f"{name}/beta")

    def heads_of(self, q, k, v, causal):
        found = []
        for own in zip(*(np.split(x, self.heads, -1) for x in (q, k, v)), strict=True):
            scores = own[0] @ own[1].T / np.sqrt(own[0].shape[-1])
            if causal:
                scores[np.triu_indices(len(scores), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            found.append(weights / weights.sum(-1, keepdims=True) @ own[2])
        return np.concatenate(found, -1)

    def self_attention(self, name, causal):
        return lambda x: self.linear(
            f"{name}/linear_1",
            self.heads_of(*np.split(self.linear(f"{name}/linear_0", x), 3, -1), causal),
        )

    def cross(self, name, states):
        k_v = np.split(self.linear(f"{name}/linear_1", states), 2, -1)
        return lambda x: self.linear(
            f"{name}/linear_2", self.heads_of(self.linear(f"{name}/linear_0", x), *k_v, False)
        )

    def feed_forward(self, name):
        return lambda x: self.linear(
            f"{name}/linear_1", np.maximum(0, self.linear(f"{name}/linear_0", x))
        )

    def stack(self, side, embeddings, ids, states=None):
        pre = f"{side}/layer_norm/gamma" in self.v
        table = self.get(f"{side}/{embeddings}/weight")
        x = (
            table[ids] * np.sqrt(table.shape[1])
            + self.get(f"{side}/position_encodings/encodings")[: len(ids)]
        )
        number = 0
        while f"{side}/layer_{number}/ffn/linear_0/weight" in self.v:
            own = f"{side}/layer_{number}"
            sublayers = {
                f"{own}/self_attention": self.self_attention(
                    f"{own}/self_attention", states is not None
                )
            }
            if states is not None:
                sublayers[f"{own}/attention"] = self.cross(f"{own}/attention", states)
            sublayers[f"{own}/ffn"] = self.feed_forward(f"{own}/ffn")
            for name, sublayer in sublayers.items():
                x = (
                    x + sublayer(self.norm(f"{name}/layer_norm", x))
                    if pre
                    else self.norm(f"{name}/layer_norm", x + sublayer(x))
                )
            number += 1
        return self.norm(f"{side}/layer_norm", x) if pre else x

    def logits(self, src, tgt_in):
        states = self.stack("encoder", "embeddings_0", src)
        return self.linear(
            "decoder/projection", self.stack("decoder", "embeddings", tgt_in, states)
        )


@pytest.mark.parametrize("name", SETTINGS)
def test_a_transformer_computed_from_the_variables_is_the_models(run, name):
    model = loading.load_system(run, run.system(name)).double()
    variables = layout.variables(model, positions=9)
    computed = Computed(variables, model.settings.heads)
    batch = pair_batch(SRC, TGT)
    with torch.no_grad():
        wanted = model.logits(model.decode(batch.tgt_in, model.encode(batch))[0]).numpy()
    for row, (src, tgt) in enumerate(zip(SRC, TGT, strict=True)):
        assert_allclose(
            computed.logits(src, [1, *tgt[:-1]]), wanted[row, : len(tgt)], rtol=0, atol=1e-5
        )  # positions are in float32
    assert computed.read == set(variables)
    assert all(value.dtype == np.float32 for value in variables.values())
    assert variables["encoder/position_encodings/encodings"].shape == (9, 16)
    assert ("encoder/layer_norm/gamma" in variables) == (name == "pre")
    assert ("decoder/projection/bias" in variables) == (name != "post")
    assert ("decoder/layer_0/attention/linear_1/bias" in variables) == (name != "pre")


def test_every_weight_of_the_model_is_in_them(run):
    for name in SETTINGS:
        model = loading.load_system(run, run.system(name))
        variables = layout.variables(model, positions=9)
        stored = {value.tobytes() for value in variables.values()}
        assert {
            weight.detach().numpy().tobytes() for weight in model.state_dict().values()
        } <= stored
        model.output.weight.data.zero_()
        assert variables["decoder/projection/weight"].any()  # they are copies


class Spec(SimpleNamespace):
    """In the place of CTranslate2's: takes what is set."""

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
def test_the_specification_gets_every_variable(run, monkeypatch, name, layers, heads):
    specs = SimpleNamespace(
        model_spec=SimpleNamespace(index_spec=Owner),
        transformer_spec=SimpleNamespace(TransformerSpec=Spec),
    )
    monkeypatch.setitem(sys.modules, "ctranslate2", SimpleNamespace(specs=specs))
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", specs)
    variables = layout.variables(loading.load_system(run, run.system(name)), positions=9)
    spec = layout.specification(variables, heads)
    assert (spec.layers, spec.heads, spec.pre_norm) == (layers, heads, name == "pre")
    assert spec.set.keys() == variables.keys() and all(
        spec.set[key] is value for key, value in variables.items()
    )
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
