"""Attention: every path against loops over floats; dropout, long sentences, capture."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nmtkit.data.packing import segments
from nmtkit.nn import cpu, gpu
from nmtkit.nn.attention import attention
from nmtkit.nn.capture import capture
from nmtkit.nn.dropout import seed_dropout
from nmtkit.nn.masks import additive, visible_positions

H, C = 2, 3


def tensors(rows, queries, sentences, keys, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, queries, H, C), (sentences, H, keys, C), (sentences, H, keys, C + 1)
    return [
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes
    ]


def check_gradients(found, expected, inputs):
    weight = torch.randn_like(expected)
    gradients = [torch.autograd.grad((y * weight).sum(), inputs) for y in (found, expected)]
    for gradient, right in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-10, atol=1e-12)


def slow(q, k, v, allowed):
    """Return attention, one query, head and key at a time; allowed(row, query, key)."""
    per = len(q) // len(k)
    out = torch.zeros(len(q), q.size(1), H * v.size(3), dtype=q.dtype)
    for r in range(len(q)):
        for t in range(q.size(1)):
            seen = [s for s in range(k.size(2)) if allowed(r, t, s)]
            for h in range(H):
                scores = [torch.exp(q[r, t, h] @ k[r // per, h, s] / math.sqrt(C)) for s in seen]
                for score, s in zip(scores, seen, strict=True):
                    out[r, t, h * v.size(3) : (h + 1) * v.size(3)] += (
                        score / sum(scores) * v[r // per, h, s]
                    )
    return out


LENGTHS = torch.tensor([4, 2, 1, 3])
PADDED = visible_positions(LENGTHS, 4)
CASES = {  # rows, visible, causal, allowed
    "everything": (4, None, False, lambda r, t, s: True),
    "padding": (4, PADDED, False, lambda r, t, s: s < LENGTHS[r]),
    "causal": (4, None, True, lambda r, t, s: s <= t),
    "causal and padding": (4, PADDED, True, lambda r, t, s: s <= t and s < LENGTHS[r]),
    "three rows a sentence": (12, PADDED, False, lambda r, t, s: s < LENGTHS[r // 3]),
    "a mask per query": (
        4,
        torch.arange(64).view(4, 4, 4) % 3 > 0,
        False,
        lambda r, t, s: (16 * r + 4 * t + s) % 3 > 0,
    ),
}


@pytest.mark.parametrize("path", ["training", "search", "torch's kernel"])
@pytest.mark.parametrize("case", CASES)
def test_every_path_equals_the_slow_attention(case, path, monkeypatch):
    rows, visible, causal, allowed = CASES[case]
    q, k, v = tensors(rows, 4, 4, 4)
    if path == "torch's kernel":
        monkeypatch.setattr(cpu, "SHORT", 0)
    with torch.set_grad_enabled(path != "search"):
        found = attention(q, k, v, visible, causal)
    expected = slow(q, k, v, allowed)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    if path != "search":
        check_gradients(found, expected, (q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_packed_batch_equals_the_slow_attention(causal):
    src, tgt = ([4, 1, 3], [3, 3, 1]) if not causal else ([2, 4, 1], [2, 4, 1])
    q, k, v = tensors(1, sum(tgt), 1, sum(src))
    sentence = [[i for i, length in enumerate(side) for _ in range(length)] for side in (tgt, src)]
    expected = slow(
        q, k, v, lambda r, t, s: sentence[0][t] == sentence[1][s] and (s <= t or not causal)
    )
    found = attention(q, k, v, segments(np.array(src), np.array(tgt)), causal)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    check_gradients(found, expected, (q, k, v))


@pytest.mark.parametrize("path", ["training", "validation", "search"])
def test_softmax_stays_in_float32_under_bfloat16(path):
    """bfloat16 rounds scores around 60 to multiples of a quarter; the weights are exact all the
    same.
    """
    q, k, v = (t.detach() for t in tensors(2, 6, 2, 6, dtype=torch.bfloat16))
    q[..., 0], k[..., 0] = 10, 10  # what all scores of a query have in common
    exact = attention(q.double(), k.double(), v.double(), causal=True)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=path != "search"),
        torch.set_grad_enabled(path == "training"),
    ):
        found = attention(q.requires_grad_(path == "training"), k, v, causal=True)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(
        found.double(), exact, rtol=2**-8, atol=1e-3
    )  # the rounding of the result alone


@pytest.mark.parametrize("explicit", [0, 10**6])
def test_last_queries_of_a_causal_target_see_all_keys_before_them(explicit, monkeypatch):
    monkeypatch.setattr(cpu, "SHORT", explicit)
    q, k, v = tensors(2, 5, 2, 5)
    torch.testing.assert_close(
        attention(q[:, 3:], k, v, causal=True), attention(q, k, v, causal=True)[:, 3:]
    )


@pytest.mark.parametrize("explicit", [True, False])
def test_mask_per_head_acts_on_each_head_alone(explicit, monkeypatch):
    monkeypatch.setattr(cpu, "writes_attention_out", lambda q, k: explicit)
    torch.manual_seed(3)
    q, k, v = torch.randn(2, 5, 3, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    mask = additive(torch.rand(2, 3, 5, 6) < 0.7, torch.float32)
    found = attention(q, k, v, mask).unflatten(2, (3, 8))
    for head in range(3):
        one = slice(head, head + 1)
        alone = attention(q[:, :, one], k[:, one], v[:, one], mask[:, head])
        torch.testing.assert_close(found[:, :, head], alone)


def test_search_kernel_is_not_used_with_a_mask_per_head(monkeypatch):
    kernel = SimpleNamespace(fits=lambda *of: True, attend=lambda *of: "context")
    monkeypatch.setattr(gpu, "_few_queries", lambda device: kernel)
    q = torch.empty(2, 3, 5, 8, device="meta")
    with torch.no_grad():
        assert gpu.search_attention(q, q, q, q.new_empty(2, 5, 5)) == "context"
        assert gpu.search_attention(q, q, q, q.new_empty(2, 3, 5, 5)) is None


def test_search_kernel_is_not_used_with_dropout(monkeypatch):
    """HAN reads contexts without gradients in training, too."""
    calls = []
    monkeypatch.setattr(cpu, "writes_attention_out", lambda q, k: False)
    monkeypatch.setattr(gpu, "search_attention", lambda *of: calls.append(1))
    q = torch.randn(2, 3, 2, 8)
    with torch.no_grad():
        attention(q, q.transpose(1, 2), q.transpose(1, 2), p=0.3)
        assert not calls
        attention(q, q.transpose(1, 2), q.transpose(1, 2))
    assert calls


def test_dropout_on_weights_has_the_gradient_of_finite_differences():
    inputs = tensors(3, 4, 3, 4)
    w = torch.randn(3, 4, H * (C + 1), dtype=torch.float64)

    def value(q, k, v):
        seed_dropout(1, 2, 3)
        return (attention(q, k, v, p=0.4) * w).sum()

    assert torch.autograd.gradcheck(value, inputs)


def test_dropout_on_weights_keeps_the_mean():
    q, k, v = tensors(3, 4, 3, 4)
    seed_dropout(1, 1, 1)
    many = torch.stack([attention(q, k, v, p=0.4).detach() for _ in range(1500)])
    error = (many.mean(0) - attention(q, k, v).detach()).abs() / (many.std(0) / 1500**0.5)
    assert error.max() < 5 and (many.std(0) > 0.05).all()


def test_capture_records_weights_before_dropout():
    q, k, v = tensors(4, 4, 4, 4)
    with capture() as seen:
        context = attention(q, k, v, visible_positions(LENGTHS, 4), p=0.5, name="here")
        attention(q, k, v)
    (weights,) = seen["here"]
    assert set(seen) == {"here", "here_context"} and torch.equal(seen["here_context"][0], context)
    assert weights.shape == (4, H, 4, 4) and not weights.requires_grad
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, H, 4, dtype=torch.float64))
    assert (weights[2, :, :, 1:] == 0).all()
    attention(q, k, v, name="here")
    assert len(seen["here"]) == 1


@pytest.mark.parametrize("parts", [(), ("first", "second")])
def test_weights_changed_in_a_capture_are_used_and_recorded(parts):
    q, k, v = tensors(4, 4, 4, 4)
    names = [f"here.{part}" for part in parts] or ["here"]

    def second_key_only(weights):
        return torch.eye(4, dtype=weights.dtype)[1].expand_as(weights)

    plain = attention(q, k, v, name="here", parts=parts)
    with capture({names[-1]: second_key_only}) as seen:
        found = attention(q, k, v, name="here", parts=parts)
    wanted = plain.unflatten(-1, (H, -1)).clone()
    wanted[:, :, len(parts) // 2 :] = v[:, :, 1].unsqueeze(1)[:, :, len(parts) // 2 :]
    torch.testing.assert_close(found, wanted.flatten(2), rtol=1e-12, atol=1e-12)
    assert (seen[names[-1]][0][..., 1] == 1).all()
    assert torch.equal(
        attention(q, k, v, name="here", parts=parts), plain
    )  # over, and nothing stays


def test_search_reads_keys_in_cache_buffers_without_copies():
    """Keys are the first entries of larger buffers. Keys with heads behind positions are copied."""
    q, k, v = (x.detach() for x in tensors(9, 1, 3, 5))
    wanted = slow(q, k, v, lambda r, t, s: True)
    buffers = [
        cpu.buffer(x, *x.shape[:2], 12, x.size(3)).fill_(torch.nan)[:, :, :5] for x in (k, v)
    ]
    for buffer, x in zip(buffers, (k, v), strict=True):
        buffer.copy_(x)
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    with torch.inference_mode():
        assert all(cpu.factor(x) is x for x in buffers)
        for keys, values in (buffers, apart):
            assert not any(x.is_contiguous() for x in (keys, values))
            torch.testing.assert_close(attention(q, keys, values), wanted, rtol=1e-10, atol=1e-10)
    assert cpu.factor(buffers[0]).is_contiguous()  # where a product may have gradients


def test_additive_mask_of_search_equals_the_bool_mask():
    q, k, v = (x.detach() for x in tensors(3, 1, 3, 4))
    visible = visible_positions(torch.tensor([4, 2, 1]), 4)
    assert cpu.search_mask(visible, q) is visible
    with torch.inference_mode():
        mask = cpu.search_mask(visible, q)
        assert mask.dtype == q.dtype
        assert torch.equal(attention(q, k, v, mask), attention(q, k, v, visible))
        assert cpu.search_mask(None, q) is None
        wanted = slow(q, k, v, lambda r, t, s: bool(visible[r, 0, s]))
        torch.testing.assert_close(attention(q, k, v, mask), wanted, rtol=1e-10, atol=1e-10)
