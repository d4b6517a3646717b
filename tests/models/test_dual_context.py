"""The dual contextual module (Ampomah et al. 2021): sizes of the paper, equations loop by loop."""

import functools

import pytest
import torch

from nmtkit.errors import ConfigError
from nmtkit.models.dual_context import DualContextAttention, DualContextSettings
from nmtkit.nn import attention
from nmtkit.nn.capture import capture
from tests.models import contract, test_transformer
from tests.models.contract import paper_size
from tests.models.slow import affine, block, dropped, multi_head, plus, sigmoid, times
from tests.models.test_contract import check_steps_equal_whole

BASELINE = "transformer"


def replaced(s, in_encoder):
    """Return the indices of the layers with the module."""
    layers = range(s.encoder_layers if in_encoder else s.decoder_layers)
    if not (s.encoder if in_encoder else s.decoder):
        return []
    first, last = map(int, (s.layers or "1-99").split("-"))
    return [i for i in layers if first <= i + 1 <= last]


def count(s, v):
    """Return the parameters of Eqs. 6-9: the local unit and its norm, q, k and v of both units and
    W_z, in place of q, k, v and output.
    """
    d, f = s.d_model, s.kernel_size
    bias = 1 if s.attn_bias else 0
    module = 2 * 3 * (d * d + bias * d) + 2 * d * d + bias * d
    if s.local == "conv":
        module += f * d * 2 * d + 2 * d + 2 * d
    layers = sum(test_transformer.distinct(s, len(replaced(s, side))) for side in (True, False))
    return test_transformer.count(s, v) + layers * (module - test_transformer.sublayers(s)[0])


class Slow(test_transformer.Slow):
    """Two units with H heads each; W_z reads their outputs side by side."""

    def attend(self, name, queries, keys, allowed=test_transformer.everything):
        stack, index, kind = name.split(".")
        if kind != "attention" or int(index) not in replaced(self.s, stack == "encoder"):
            return super().attend(name, queries, keys, allowed)
        local = self.local(name, stack, queries)
        how = self.s.heads, allowed, self.s.attention_dropout
        q_local, *q_k_v = self.blocks(f"{name}.own", queries, 4)
        h_local = multi_head(q_local, *self.blocks(f"{name}.local_kv", local, 2), *how)
        h_global = multi_head(*q_k_v, *how)
        joined = [h_l + h_g for h_l, h_g in zip(h_local, h_global, strict=True)]
        return [self.linear(f"{name}.out", x) for x in joined]  # W_z

    def blocks(self, name, xs, number):
        w, b = self.get(f"{name}.weight"), self.get(f"{name}.bias")
        return [
            [affine(x, block(w, i, number), b and block(b, i, number)) for x in xs]
            for i in range(number)
        ]

    def local(self, name, stack, queries):
        """Return l_c of every position, or the positions as they are without the unit."""
        if self.s.local == "none":
            return queries
        d, f = self.s.d_model, self.s.kernel_size
        # The window of the encoder: f = 2 is {t-1, t}, f = 3 is centred, f = 4 is {t-2 .. t+1}, or
        # {t-1 .. t+2} with even_side = right.
        first = (
            1 - f
            if stack == "decoder"
            else -(f // 2) + (self.s.even_side == "right" and f % 2 == 0)
        )
        local = []
        for t, r in enumerate(queries):
            window = []
            for offset in range(first, first + f):
                window += queries[t + offset] if 0 <= t + offset < len(queries) else [0.0] * d
            both = self.linear(f"{name}.local.convolution", window)
            gated = times(both[:d], sigmoid(both[d:]))
            local.append(plus(r, dropped(gated, self.s.dropout)))
        return self.norm(f"{name}.local.residual.norm", local)


slow_logits = functools.partial(test_transformer.slow_logits, slow_class=Slow)


def without_idea(case):
    """With W_z's upper half zero and its lower half W_o, the module is multi-head attention."""
    model = case.build()
    d, weights = model.settings.d_model, model.state_dict()
    base = contract.plain_transformer(model)
    of_base = {name: weights.get(name) for name in base.state_dict()}
    for name, module in model.named_modules():
        if isinstance(module, DualContextAttention):
            module.out.weight.data[:, :d] = 0
            of_base[f"{name}.out.weight"] = module.out.weight[:, d:]
            for kind, parameter in module.own.named_parameters():
                of_base[f"{name}.qkv.{kind}"] = parameter[d:]
    base.load_state_dict(of_base)
    batch = contract.collate(contract.pairs())
    contract.close(contract.full(model, batch), contract.full(base, batch))


def wmt_size(variant, **values):
    return paper_size(variant, "dc-wmt", 33_432, **values)


def millions(sizes):
    return [round(size / 1e6, 2) for size in sizes]


def test_sizes_equal_those_of_the_paper():
    """61.2 / 73.86 / 86.5 million on WMT14, and 3.146 million more for each position of the
    window.
    """
    variants = ("transformer", "enc-dc", "dec-dc", "full-dc")
    assert millions(map(wmt_size, variants)) == [61.26, 73.86, 73.86, 86.46]
    sizes = [wmt_size("enc-dc", kernel_size=f) for f in range(2, 9)]
    assert millions(sizes) == [73.86, 77.01, 80.15, 83.30, 86.44, 89.59, 92.73]
    assert millions([paper_size("enc-dc", "dc-iwslt", 32_000)]) == [17.67]


def test_size_of_one_layer_equals_the_audit(audit):
    more = wmt_size("enc-dc", layers="1-1") - wmt_size("transformer")
    assert more == audit["dc_layer"](512, 2) - audit["mha"](512, True) == 2_100_736
    # The control without the unit lacks its matrices and its norm.
    control = wmt_size("enc-dc", layers="1-1", local="none") - wmt_size("transformer")
    assert control == more - (2 * 512 * 1024 + 1024) - 1024 == 1_050_112
    assert millions([wmt_size("enc-dc", local="none")]) == [67.56]


@pytest.mark.parametrize("kernel", range(1, 9))
@pytest.mark.parametrize("side", ["left", "right"])
def test_windows_of_every_size_equal_the_slow_equations(kernel, side):
    """For sentences shorter and longer than the window, at both ends."""
    values = {"kernel_size": kernel, "even_side": side, "encoder_layers": 1, "decoder_layers": 1}
    model = contract.Case("full-dc").build(**values)
    test_transformer.check_sentences_beside_others(
        model, Slow, (list(range(3, 14)), list(range(9, 19)))
    )
    check_steps_equal_whole(model)


def has_module(stack):
    return [isinstance(layer.attention, DualContextAttention) for layer in stack]


def test_setting_layers_chooses_layers_with_the_module():
    sizes = (("encoder_layers", 4), ("decoder_layers", 3), ("layers", "2-3"))
    model = contract.Case("full-dc", sizes).build()
    assert has_module(model.encoder) == [False, True, True, False]
    assert has_module(model.decoder) == [False, True, True]
    for layers in (2, "2", "2-2"):  # `--set model.layers=2` comes as a number
        model = contract.Case("enc-dc").build(layers=layers)
        assert has_module(model.encoder) == [False, True]


@pytest.mark.parametrize(
    ("variant", "values", "message"),
    [
        ("enc-dc", {"layers": "3-9"}, "1-2"),
        ("enc-dc", {"layers": "2-1"}, "among"),
        ("enc-dc", {"layers": "0-1"}, "among"),
        ("enc-dc", {"layers": "x"}, "layers"),
        ("enc-dc", {"layers": 3}, "'3-3' are not among"),
        ("enc-dc", {"layers": True}, "layers"),
        ("enc-dc", {"layers": [2]}, "layers"),
        ("enc-dc", {"encoder": False}, "no layer has the module"),
        ("enc-dc", {"encoder_layers": 0}, "no layer has the module"),
        ("enc-dc", {"local": "none", "kernel_size": 3}, "leave out model.kernel_size"),
        ("full-dc", {"local": "none", "even_side": "right"}, "there is no window"),
        ("dec-dc", {"local": "mean"}, "bad value for 'model.local'"),
        ("dec-dc", {"even_side": "right"}, "never reaches to the right\n  in: model.even_side"),
    ],
)
def test_incompatible_settings_are_refused(variant, values, message):
    with pytest.raises(ConfigError, match=message):
        contract.Case(variant).build(**values)


def test_both_units_are_computed_in_one_attention(monkeypatch):
    """Eqs. 7 and 8 are one call of 2 H heads in each layer."""
    model, shapes = contract.Case("full-dc").build(), []
    original = attention.attention

    def spy(q, *rest):
        shapes.append(tuple(q.shape[2:]))
        return original(q, *rest)

    monkeypatch.setattr(attention, "attention", spy)
    contract.full(model, contract.collate(contract.pairs()))
    assert shapes == [(8, 4)] * 2 + [(8, 4), (4, 4)] * 2


def test_local_and_global_heads_are_captured_under_two_names():
    """The first H heads read the local summaries: with local keys of zero their weights are even."""
    settings = DualContextSettings(d_model=8, heads=2, dropout=0.0, attn_bias=False)
    module = DualContextAttention(settings, before=1).double().eval()
    module.name = "here"
    module.local_kv.weight.data.zero_()
    with capture() as seen:
        module(torch.randn(1, 3, 8, dtype=torch.float64))
    assert set(seen) == {"here.local", "here.global", "here_context"}
    (local,), (whole,) = seen["here.local"], seen["here.global"]
    assert local.shape == whole.shape == (1, 2, 3, 3)
    torch.testing.assert_close(local, torch.full_like(local, 1 / 3))
    assert (whole - 1 / 3).abs().max() > 1e-3
