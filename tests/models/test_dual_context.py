"""The dual contextual module against models.md sections 1 and 10: counts of the paper, and its
equations as two attentions, loop by loop.
"""

import contextlib
import io
import runpy

import pytest
import torch

from nmtkit import settings
from nmtkit.data.batches import Batch
from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies
from nmtkit.models.dual_context import DualContextAttention, DualContextSettings
from nmtkit.models.transformer import TransformerSettings
from nmtkit.models.variants import build_model, count_parameters
from nmtkit.nn.capture import capture
from tests.models import contract, test_transformer
from tests.models.slow import affine, layer_norm, multi_head, plus, sigmoid, times

BASELINE = "transformer"


def chosen(s, in_encoder):
    """Indices of the layers with the module."""
    layers = range(s.encoder_layers if in_encoder else s.decoder_layers)
    if not (s.encoder if in_encoder else s.decoder):
        return []
    first, last = map(int, (s.layers or "1-99").split("-"))
    return [i for i in layers if first <= i + 1 <= last]


def count(s, v):
    """models.md section 1.5: local unit and its norm, own q, k and v in both units, W_z; instead
    of q, k, v and output.
    """
    d, f = s.d_model, s.kernel_size
    bias = 1 if s.attn_bias else 0
    module = f * d * 2 * d + 2 * d + 2 * d + 2 * 3 * (d * d + bias * d) + 2 * d * d + bias * d
    usual = 4 * (d * d + bias * d)
    return test_transformer.count(s, v) + (len(chosen(s, True)) + len(chosen(s, False))) * (
        module - usual
    )


class Slow(test_transformer.Slow):
    """Two feature-interaction units with H heads each, then their outputs side by side through
    W_z.
    """

    def attend(self, name, queries, keys, allowed):
        stack, index, kind = name.split(".")
        if kind != "attention" or int(index) not in chosen(self.s, stack == "encoder"):
            return super().attend(name, queries, keys, allowed)
        d, f, heads = self.s.d_model, self.s.kernel_size, self.s.heads
        if stack == "decoder":
            offsets = list(range(-(f - 1), 1))
        elif self.s.even_side == "left" or f % 2:
            offsets = list(range(-(f // 2), f - f // 2))
        else:
            offsets = list(range(-(f // 2 - 1), f // 2 + 1))
        assert len(offsets) == f
        local = []
        for t, r in enumerate(queries):
            window = []
            for offset in offsets:
                window += queries[t + offset] if 0 <= t + offset < len(queries) else [0.0] * d
            both = affine(
                window,
                self.get(f"{name}.local.convolution.weight"),
                self.get(f"{name}.local.convolution.bias"),
            )
            gated = times(both[:d], sigmoid(both[d:]))
            gain, bias = (
                self.get(f"{name}.local.residual.norm.weight"),
                self.get(f"{name}.local.residual.norm.bias"),
            )
            local.append(layer_norm(plus(r, gated), gain, bias))

        def projected(part, block, xs):
            w, b = self.get(f"{name}.{part}.weight"), self.get(f"{name}.{part}.bias")
            rows = slice(block * d, (block + 1) * d)
            return [affine(x, w[rows], b[rows] if b else None) for x in xs]

        h_local = multi_head(
            projected("own", 0, queries),
            projected("local_kv", 0, local),
            projected("local_kv", 1, local),
            heads,
            allowed,
        )
        h_global = multi_head(
            projected("own", 1, queries),
            projected("own", 2, queries),
            projected("own", 3, queries),
            heads,
            allowed,
        )
        w_z, b_z = self.get(f"{name}.out.weight"), self.get(f"{name}.out.bias")
        return [affine(one + other, w_z, b_z) for one, other in zip(h_local, h_global, strict=True)]


def slow_logits(weights, s, src, tgt_in):
    slow = Slow(weights, s)
    return slow.logits(slow.decode(slow.encode(src), tgt_in))


def without_idea(case):
    """With W_z's upper half zero and its lower half W_o, the module is multi-head attention
    (models.md section 10).
    """
    model = case.build()
    s = model.settings
    shared = {
        name: getattr(s, name)
        for name in type(s).model_fields
        if name in TransformerSettings.model_fields
    }
    base = (
        build_model("transformer", shared, Vocabularies(contract.V, contract.V, shared=True))
        .double()
        .eval()
    )
    d = s.d_model
    weights = dict(base.state_dict())
    own = model.state_dict()
    for name in weights:
        stack, _, rest = name.partition(".")
        index, _, part = rest.partition(".")
        place = f"{stack}.{index}.attention"
        if not part.startswith("attention.") or f"{place}.own.weight" not in own:
            weights[name] = own[name]
            continue
        kind, number = part.removeprefix("attention.").split(".")
        if kind == "qkv":
            weights[name] = own[f"{place}.own.{number}"][d:]
        elif number == "weight":
            own[f"{place}.out.weight"][:, :d] = 0
            weights[name] = own[f"{place}.out.weight"][:, d:]
        else:
            weights[name] = own[f"{place}.out.bias"]
    model.load_state_dict(own)
    base.load_state_dict(weights)
    batch = contract.collate(contract.pairs())
    contract.close(contract.full(model, batch), contract.full(base, batch))


def parameters(variant, preset, size, **more):
    with torch.device("meta"):
        return count_parameters(
            build_model(
                variant,
                settings.load_preset(preset)["model"] | more,
                Vocabularies(size, size, shared=True),
            )
        )


def test_sizes_are_the_papers(shared):
    """61.2 / 73.86 / 86.5 million on WMT14, and 3.146 million more for each position of the
    window.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        audit = runpy.run_path(str(shared / "reference" / "parameter_counts.py"))
    v, base = 33_432, parameters("transformer", "dc-wmt", 33_432)
    assert [
        round(parameters(name, "dc-wmt", v) / 1e6, 2)
        for name in ("transformer", "enc-dc", "dec-dc", "full-dc")
    ] == [61.26, 73.86, 73.86, 86.46]
    assert (
        parameters("enc-dc", "dc-wmt", v, layers="1-1") - base
        == audit["dc_layer"](512, 2) - audit["mha"](512, True)
        == 2_100_736
    )
    sizes = [round(parameters("enc-dc", "dc-wmt", v, kernel_size=f) / 1e6, 2) for f in range(2, 9)]
    assert sizes == [73.86, 77.01, 80.15, 83.30, 86.44, 89.59, 92.73]
    assert round(parameters("enc-dc", "dc-iwslt", 32_000) / 1e6, 2) == 17.67


@pytest.mark.parametrize("kernel", range(1, 9))
@pytest.mark.parametrize("side", ["left", "right"])
def test_every_kernel_at_both_ends_of_a_sentence(kernel, side):
    """Sentences shorter and longer than the window, alone and beside others; the slow form pads
    nothing and sees no neighbour.
    """
    case = contract.Case(
        "full-dc",
        (
            ("kernel_size", kernel),
            ("even_side", side),
            ("encoder_layers", 1),
            ("decoder_layers", 1),
        ),
    )
    model = case.build()
    weights = {name: p.tolist() for name, p in model.named_parameters(remove_duplicate=False)}
    sentences = [([3], [4]), ([5, 6], [7, 8, 9]), (list(range(3, 14)), list(range(9, 19)))]
    together = contract.full(model, contract.collate(sentences, more=2))
    for i, (src, tgt) in enumerate(sentences):
        slow = torch.tensor(
            slow_logits(weights, model.settings, src, [1, *tgt[:-1]]), dtype=torch.float64
        )
        torch.testing.assert_close(together[i, : len(tgt)], slow, rtol=1e-10, atol=1e-10)
    contract.step_by_step(case, torch.float64)
    contract.causality(case)


def test_a_window_of_one_is_a_gated_linear_unit_of_each_token():
    torch.manual_seed(3)
    settings = DualContextSettings(d_model=8, heads=2, kernel_size=1, dropout=0.0)
    attention = DualContextAttention(settings, before=0).double().eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    a, b = (x @ attention.local.convolution.weight.T + attention.local.convolution.bias).chunk(
        2, dim=-1
    )
    expected = torch.nn.functional.layer_norm(x + a * torch.sigmoid(b), (8,))
    torch.testing.assert_close(attention.local(x), expected)


def test_window_and_past_of_the_encoder():
    """models.md section 1.1: f = 2 is {t-1, t}, f = 3 is centred, f = 4 is {t-2 .. t+1}; the
    other side with even_side = right.
    """
    reach = {}
    for f in range(1, 6):
        for side in ("left", "right"):
            model = contract.Case("enc-dc", (("kernel_size", f), ("even_side", side))).build()
            local = model.encoder[0].attention.local
            x = torch.randn(1, 11, 16, dtype=torch.float64, requires_grad=True)
            (gradient,) = torch.autograd.grad(
                local(x)[0, 5].sum() * 1.7 + local(x)[0, 5].pow(2).sum(), x
            )
            reach[f, side] = (gradient[0].abs().sum(-1) > 1e-12).nonzero().flatten().sub(5).tolist()
    assert reach[1, "left"] == reach[1, "right"] == [0]
    assert (reach[2, "left"], reach[2, "right"]) == ([-1, 0], [0, 1])
    assert reach[3, "left"] == reach[3, "right"] == [-1, 0, 1]
    assert (reach[4, "left"], reach[4, "right"]) == ([-2, -1, 0, 1], [-1, 0, 1, 2])
    assert reach[5, "left"] == reach[5, "right"] == [-2, -1, 0, 1, 2]


def test_layers_choose_where_the_module_stands():
    model = contract.Case(
        "full-dc", (("encoder_layers", 4), ("decoder_layers", 3), ("layers", "2-3"))
    ).build()
    assert [isinstance(layer.attention, DualContextAttention) for layer in model.encoder] == [
        False,
        True,
        True,
        False,
    ]
    assert [isinstance(layer.attention, DualContextAttention) for layer in model.decoder] == [
        False,
        True,
        True,
    ]
    for layers in (2, "2", "2-2"):  # `--set model.layers=2` comes as a number
        module = [
            isinstance(layer.attention, DualContextAttention)
            for layer in contract.Case("enc-dc", (("layers", layers),)).build().encoder
        ]
        assert module == [False, True]
    for layers, words in (
        ("3-9", "1-2"),
        ("2-1", "among"),
        ("0-1", "among"),
        ("x", "layers"),
        (3, "'3-3' are not among"),
        (True, "layers"),
        ([2], "layers"),
    ):
        with pytest.raises(ConfigError, match=words):
            contract.Case("enc-dc", (("layers", layers),)).build()
    with pytest.raises(ConfigError, match="nowhere"):
        contract.Case("enc-dc", (("encoder", False),)).build()


def test_a_side_that_no_window_has_is_refused():
    """Only an encoder's window reaches to the right. An odd size is no slip: sweeps over sizes
    say the side once for all.
    """
    with pytest.raises(ConfigError, match="never reaches to the right") as error:
        contract.Case("dec-dc", (("even_side", "right"),)).build()
    assert "even_side" in error.value.where
    contract.Case("enc-dc", (("even_side", "right"), ("kernel_size", 3))).build()


def test_padded_positions_are_zero_before_the_convolution():
    """What stands in the padding of a batch must not reach its sentences, whatever the layers
    below left there.
    """
    model = contract.Case("enc-dc", (("kernel_size", 4),)).build()
    attention = model.encoder[0].attention
    x, lengths = torch.randn(2, 6, 16, dtype=torch.float64), torch.tensor([6, 3])
    visible = (torch.arange(6) < lengths[:, None]).unsqueeze(1)
    other = x.masked_fill(~visible.transpose(1, 2), 123.0)
    torch.testing.assert_close(
        attention(x, visible)[1, :3], attention(other, visible)[1, :3], rtol=0, atol=0
    )
    torch.testing.assert_close(attention(x, visible)[1:, :3], attention(x[1:, :3]))


def test_one_attention_call_for_both_units(monkeypatch):
    """Exactly one call a layer, of 2 H heads (models.md section 1.3)."""
    model, shapes = contract.Case("full-dc").build(), []
    from nmtkit.nn import attention

    original = attention.attention
    monkeypatch.setattr(
        attention,
        "attention",
        lambda q, *rest: shapes.append(tuple(q.shape[2:])) or original(q, *rest),
    )
    batch: Batch = contract.collate(contract.pairs())
    contract.full(model, batch)
    assert shapes == [(8, 4)] * 2 + [(8, 4), (4, 4)] * 2


def test_the_local_heads_and_the_global_ones_are_captured_under_names_of_their_own():
    """The first H heads read the local summaries: with their keys and values at zero, their weights are even."""
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


# logits of tokens 3 and 11 at the three steps; the slow implementation above gives them too
FROZEN = {
    ("enc-dc", ()): [
        0.426624685,
        -0.521166374,
        0.501212637,
        -0.565648379,
        0.404202657,
        -0.536888577,
    ],
    ("dec-dc", ()): [
        0.233926028,
        -0.823213118,
        0.256898606,
        -0.89295706,
        0.258371191,
        -0.871693502,
    ],
    ("full-dc", (("kernel_size", 3),)): [
        0.260610576,
        -0.605030354,
        0.274000156,
        -0.666683724,
        0.259927688,
        -0.648868103,
    ],
    ("full-dc", (("kernel_size", 4), ("even_side", "right"))): [
        0.242951634,
        -0.609890826,
        0.219398799,
        -0.671255818,
        0.18895053,
        -0.651413818,
    ],
}


@pytest.mark.parametrize(("variant", "values"), FROZEN)
def test_golden_logits(variant, values):
    """No seed is behind them: the weights are sines of their places, so neither a generator nor
    an initialisation can move them.
    """
    model = contract.Case(variant, values).build()
    for name, parameter in model.named_parameters():
        places = torch.arange(parameter.numel(), dtype=torch.float64).view_as(parameter)
        parameter.data = 0.5 * torch.sin(0.7 * places + len(name)) + (
            1.0 if name.endswith("norm.weight") else 0.0
        )
    src, tgt = [3, 4, 5, 6, 7, 2], [8, 9, 2]
    found = contract.full(model, contract.collate([(src, tgt)], more=1))[0, :3]
    weights = {name: p.tolist() for name, p in model.named_parameters(remove_duplicate=False)}
    slow = torch.tensor(
        slow_logits(weights, model.settings, src, [1, *tgt[:-1]]), dtype=torch.float64
    )
    for logits in (found, slow):
        assert logits[:, [3, 11]].flatten().tolist() == pytest.approx(
            FROZEN[variant, values], abs=1e-8
        )
