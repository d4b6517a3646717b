"""Convolutional self-attention (Yang et al. 2019): one query, head and key at a time."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from nmtkit.errors import ConfigError
from nmtkit.measures import macs
from nmtkit.models import csan
from nmtkit.models.base import Vocabularies
from nmtkit.models.csan import ConvolutionalAttention, ConvolutionalSettings, Windows
from nmtkit.models.variants import build_model
from nmtkit.nn.capture import capture
from nmtkit.nn.masks import visible_positions
from tests.models import contract, test_transformer
from tests.models.contract import paper_size
from tests.models.slow import block, dropped, plus, softmax, times

BASELINE = "transformer"
count = test_transformer.count  # no new parameters


def area(query, head, positions, heads, s):
    """Return the (position, head) pairs that a query of a head sees: no padding, and no head before
    the first or after the last.
    """
    return [
        (t, h)
        for h in range(head - s.head_window // 2, head + s.head_window // 2 + 1)
        for t in range(query - s.window // 2, query + s.window // 2 + 1)
        if 0 <= t < positions and 0 <= h < heads
    ]


class Slow(test_transformer.Slow):
    def attend(self, name, queries, keys, allowed=test_transformer.everything):
        stack, index, _ = name.split(".")
        local_layers = self.s.local_layers or (self.s.encoder_layers + 1) // 2
        if stack != "encoder" or int(index) >= local_layers:
            return super().attend(name, queries, keys, allowed)
        heads, c = self.s.heads, self.s.d_model // self.s.heads
        q, k, v = ([split(x, heads) for x in part] for part in self.projected(name, queries))
        out = []
        for t in range(len(queries)):
            row = []
            for h in range(heads):
                seen = area(t, h, len(queries), heads, self.s)
                scores = [sum(times(q[t][h], k[u][g])) / math.sqrt(c) for u, g in seen]
                weights = dropped(softmax(scores), self.s.attention_dropout)
                shares = zip(weights, seen, strict=True)
                row += plus(*([p * a for a in v[u][g]] for p, (u, g) in shares))
            out.append(self.linear(f"{name}.out", row))
        return out


def split(x, heads):
    return [block(x, h, heads) for h in range(heads)]


slow_logits = partial(test_transformer.slow_logits, slow_class=Slow)


def without_idea(case):
    """With a window of the whole sentence and of one head, the model is the Transformer."""
    model = case.build(window=99, head_window=1)
    base = contract.transformer_of(model)
    batch = contract.batch_for(model)
    contract.close(contract.full(model, batch), contract.full(base, batch))
    if case.build().settings.head_window > 1:
        both = (case.build(), contract.transformer_of(case.build()))
        assert not torch.allclose(*(contract.full(each, batch) for each in both), atol=1e-3)


def test_windows_of_the_paper_have_11_positions_and_3_heads():
    assert ConvolutionalSettings().window == 11 and ConvolutionalSettings().head_window == 3


def test_csan_has_as_many_parameters_as_the_transformer():
    for preset, v in (("base", 32_000), ("dc-wmt", 33_432)):
        assert paper_size("csan", preset, v) == paper_size("transformer", preset, v)


@pytest.mark.parametrize("block", [1, 36, 48, 400])
@pytest.mark.parametrize(
    ("window", "heads"), [(1, 1), (1, 3), (3, 1), (3, 3), (5, 5), (11, 11), (21, 3)]
)
def test_blocks_of_any_size_equal_the_slow_equations(monkeypatch, block, window, heads):
    """Sentences shorter and longer than a window and than a block, beside others."""
    monkeypatch.setattr(csan, "BLOCK", block)
    model = contract.Case("csan").build(window=window, head_window=heads, decoder_layers=1)
    test_transformer.check_sentences_beside_others(model, Slow, (list(range(3, 16)), [9, 10, 11]))


def attention(window=3):
    """Return the layer of 4 heads and a function that computes it from x and what is visible."""
    torch.manual_seed(5)
    module = ConvolutionalAttention(16, 4).double().eval()
    module.name = "here"

    def attend(x, visible=None):
        sentences = torch.zeros(x.shape[:2]) if visible is None else visible[:, 0].long()
        return module(x, Windows.of(sentences, 4, window, 3, x.dtype))

    return module, attend


def seen_by(query, head, positions, window=3):
    """Return the (position, head) pairs that a query of this layer sees."""
    s = ConvolutionalSettings(window=window, head_window=3)
    return area(query, head, positions, 4, s)


@pytest.mark.parametrize("block", [12, 128])
def test_gradients_of_a_query_reach_only_its_window(monkeypatch, block):
    """The window covers the neighbouring heads too."""
    monkeypatch.setattr(csan, "BLOCK", block)
    (module, attend), steps = attention(), 19
    module.out = torch.nn.Identity()
    with torch.no_grad():
        module.qkv.weight[16:].copy_(torch.eye(16).repeat(2, 1))  # keys and values are x itself
    lengths = torch.tensor([steps, 13])
    visible = visible_positions(lengths, steps)
    for row, query, head in ((0, 0, 0), (0, 9, 1), (0, 18, 3), (1, 12, 2), (1, 7, 3)):
        x = torch.randn(2, steps, 16, dtype=torch.float64, requires_grad=True)
        attend(x, visible)[row, query, 4 * head : 4 * head + 4].sum().backward()
        touched = (x.grad != 0).unflatten(-1, (4, 4)).any(-1)  # (2, S, H)
        expected = torch.zeros_like(touched)
        expected[row, query] = True  # its query reads all of x
        for t, h in seen_by(query, head, int(lengths[row])):
            expected[row, t, h] = True
        assert torch.equal(touched, expected), (row, query, head)


@pytest.fixture(params=[3, 11])
def captured(request):
    """A layer, its results for sentences of 20 and of 5 positions, and what a capture reads. Without
    a capture the layer cuts the longer sentence into blocks.
    """
    module, attend = attention(request.param)
    x = torch.randn(2, 20, 16, dtype=torch.float64)
    visible = visible_positions(torch.tensor([20, 5]), 20)
    plain = attend(x, visible)
    with capture() as seen:
        result = attend(x, visible)
    (weights,), (context,) = seen["here"], seen["here_context"]
    return SimpleNamespace(
        window=request.param,
        module=module,
        x=x,
        real=visible[:, 0],
        plain=plain,
        result=result,
        weights=weights,
        context=context,
    )


def test_capture_changes_no_result(captured):
    near, real = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12), captured.real
    near(captured.result[real], captured.plain[real])
    near(captured.module.out(captured.context), captured.result)


def test_captured_weights_cover_the_window_and_sum_to_1(captured):
    weights, t = captured.weights, torch.arange(20)
    assert weights.shape == (2, 4, 20, 20) and captured.context.shape == captured.x.shape
    torch.testing.assert_close(weights.sum(-1)[0], torch.ones(4, 20, dtype=torch.float64))
    near = (t[:, None] - t).abs() <= captured.window // 2
    assert torch.equal(weights[0] > 0, near.expand(4, -1, -1))
    assert torch.equal(weights[1, :, :5] > 0, (near & (t < 5))[:5].expand(4, -1, -1))


def test_captured_weight_of_a_position_is_the_sum_over_heads(captured):
    q, k, _ = captured.module.qkv(captured.x[1]).unflatten(-1, (3, 4, 4)).unbind(1)  # (S, H, C)
    pairs = seen_by(2, 3, 5, captured.window)
    scores = softmax([(q[2, 3] @ k[u, g]).item() / 2 for u, g in pairs])
    expected = torch.zeros(20, dtype=torch.float64)
    for p, (u, _) in zip(scores, pairs, strict=True):
        expected[u] += p
    torch.testing.assert_close(captured.weights[1, 3, 2], expected)


@pytest.mark.parametrize("batch_of", [contract.batch_for, contract.packed_for])
def test_layers_share_windows_no_wider_than_the_longest_sentence(monkeypatch, batch_of):
    model, calls = contract.Case("csan").build(encoder_layers=4, window=201), []
    make = csan.Windows.of
    monkeypatch.setattr(csan.Windows, "of", lambda *a: calls.append(a) or make(*a))
    batch = batch_of(model)
    model.encode(batch)
    ((_, _, window, *_),) = calls
    longest = batch.segments.keys.positions.size(1) if batch.segments else batch.src.size(1)
    assert window == 2 * longest - 1


def test_memory_grows_linearly_with_sentence_length():
    """Compare the largest saved tensor for sentences of 256 and of 1,024 positions."""
    module, attend = attention(window=11)

    def largest(steps):
        x, sizes = torch.randn(1, steps, 16, dtype=torch.float64), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.numel()) or t, lambda t: t
        ):
            attend(x)
        return max(sizes)

    assert largest(1024) <= 4.1 * largest(256)
    assert largest(1024) < 1024 * 1024


@pytest.mark.parametrize("length", [7, 40, 90, 150])
def test_macs_count_the_keys_of_each_block(length):
    """In each block, K keys of all heads for each query of each head."""
    d, layers, heads = 32, 2, 4
    sizes = {"d_model": d, "d_ff": 48, "heads": heads, "encoder_layers": layers}
    found, plain = (
        macs.count_macs(
            build_model(name, sizes | {"decoder_layers": 1, **more}, Vocabularies(50, 50, True)),
            length,
            4,
        )
        for name, more in (("csan", {"local_layers": 1, "window": 5}), ("transformer", {}))
    )
    blocks, block = {7: (1, 7), 40: (3, 16), 90: (6, 16), 150: (10, 16)}[length]
    keys = block + 4 if blocks > 1 else block
    local, whole = blocks * block * 2 * heads * keys * d, length * 2 * length * d
    assert (found.encode - plain.encode) * length == pytest.approx(local - whole, abs=1e-6)
    assert (found.train - plain.train) * 4 == pytest.approx(3 * (local - whole), abs=1e-6)
    assert found.step == plain.step


@pytest.mark.parametrize(
    ("layers", "chosen", "local"),
    [(1, 0, 1), (2, 0, 1), (3, 0, 2), (4, 0, 2), (6, 0, 3), (4, 3, 3)],
)
def test_local_layers_are_the_lower_half_or_the_chosen_number(layers, chosen, local):
    model = contract.Case("csan").build(encoder_layers=layers, local_layers=chosen)
    found = [isinstance(layer.attention, ConvolutionalAttention) for layer in model.encoder]
    assert found == [True] * local + [False] * (layers - local)
    assert not any(isinstance(layer.attention, ConvolutionalAttention) for layer in model.decoder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": 10}, "window 10 is even; a window has a middle"),
        ({"head_window": 2}, "head_window 2 is even; a window has a middle"),
        ({"encoder_layers": 0}, "the encoder has no layers\n  in: model.encoder_layers"),
        ({"local_layers": 3}, "3 layers are more than the 2 of the encoder"),
    ],
)
def test_incompatible_settings_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        contract.Case("csan").build(**values)
