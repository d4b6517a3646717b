"""Measure the time of each kernel of nmtkit/nn/kernels beside torch's operations, forward and
backward.

    NMTKIT_DEVICE=cuda python tests/benchmarks/kernels.py        about a minute, on a GPU

The sizes are those of `base` with 25,000 target tokens an update: 8 heads of 64 numbers, width 512,
33,000 subwords, bfloat16. A search has 512 sentences. Each time is the median of 20 replays of a
CUDA graph. Without a GPU, each kernel runs once, and its time is printed as 0.
"""

from __future__ import annotations

import functools
import importlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nmtkit.data.packing import Packing, segments  # noqa: E402
from nmtkit.models.caru.attention import GatedAttention  # noqa: E402
from nmtkit.models.caru.gates import CARUGate, GRUGate  # noqa: E402
from nmtkit.models.caru.unit import CARUCell  # noqa: E402
from nmtkit.nn import gpu  # noqa: E402
from nmtkit.nn.alignment import AdditiveAttention  # noqa: E402
from nmtkit.nn.recurrent import GRU, Recurrent  # noqa: E402
from nmtkit.train.loss import chunk_loss  # noqa: E402
from tests.device import DEVICE, ON_GPU  # noqa: E402

if not ON_GPU:  # Triton reads this when nmtkit loads the kernels.
    os.environ["TRITON_INTERPRET"] = "1"

SENTENCES, WIDTH, HEADS, VOCABULARY, ROWS = (
    (860, 512, 8, 33_000, 8192) if ON_GPU else (6, 16, 2, 40, 8)
)
BEAMS, BUFFER = (512, 256) if ON_GPU else (2, 64)
NARROW = torch.bfloat16 if ON_GPU else torch.float32  # the interpreter has no products of bfloat16

Case = tuple[str, Callable[[], object]]
"""Name of a row, and the work that is timed."""


def microseconds(work: Callable[[], object]) -> float:
    """Return the time of the work on a GPU; without a GPU, do the work once and return 0."""
    work()
    if not ON_GPU:
        return 0.0
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def numbers(*shape: int, dtype: torch.dtype = NARROW) -> Tensor:
    """Return random numbers with a gradient."""
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def row() -> Packing:
    """Return sentences of about 28 positions in one row."""
    draw = np.random.default_rng(1)
    lengths = np.clip(draw.normal(28, 14, SENTENCES).round(), 3, 90).astype(np.int64)
    packing = segments(lengths, lengths, few_shapes=True).queries
    return Packing(*(tensor.to(DEVICE) for tensor in packing))


def cases(kernels: ModuleType) -> Iterator[Case]:
    """Yield all rows of the table."""
    where = row()
    yield from attention_cases(kernels, where)
    yield from norm_cases(kernels, len(where.cells))
    yield from affine_cases(kernels, len(where.cells))
    yield from cell_cases(kernels)
    yield from source_attention_cases(kernels)
    logits = numbers(ROWS, VOCABULARY).detach()
    targets = torch.randint(1, VOCABULARY, (ROWS,), device=DEVICE)
    scale = torch.tensor(1e-3, device=DEVICE)
    yield "loss: kernels", lambda: kernels.loss.loss_and_gradient(logits, targets, 0.1, scale)
    yield "loss: torch", lambda: chunk_loss(logits, targets[:, None], 0.1, scale)
    yield from step_cases()


def attention_cases(kernels: ModuleType, where: Packing) -> Iterator[Case]:
    """Yield causal self-attention within sentences, forward and backward."""
    q, k, v = (numbers(len(where.cells), HEADS, WIDTH // HEADS) for _ in range(3))
    seed = torch.randn_like(q)

    def padded() -> Tensor:
        sides = (where.padded(x[None]).transpose(1, 2) for x in (q, k, v))
        y = F.scaled_dot_product_attention(*sides, is_causal=True)
        return where.packed(y.transpose(1, 2).contiguous())[0]

    attend = kernels.attention.within_sentences
    for p in (0.0, 0.1):
        yield (
            f"attention, dropout {p}: kernels",
            lambda p=p: torch.autograd.grad(
                attend(q, k, v, where, where, True, p), (q, k, v), seed
            ),
        )
    yield "attention: torch, padded", lambda: torch.autograd.grad(padded(), (q, k, v), seed)


def norm_cases(kernels: ModuleType, count: int) -> Iterator[Case]:
    """Yield layer norm of a residual sum with dropout, forward and backward."""
    layer = nn.LayerNorm(WIDTH, device=DEVICE)
    x, y = numbers(count, WIDTH, dtype=torch.float32), numbers(count, WIDTH)
    wide, narrow = torch.randn_like(x), torch.randn_like(y)
    inputs = x, y, layer.weight, layer.bias
    norm = kernels.norm.residual_norm
    yield (
        "residual norm: kernels",
        lambda: torch.autograd.grad(norm(x, y, layer, 0.1, True, NARROW), inputs, (wide, narrow)),
    )

    def plain() -> object:
        result = layer(x + torch.dropout(y, 0.1, True))
        return torch.autograd.grad((result, result.to(NARROW)), inputs, (wide, narrow))

    yield "residual norm: torch", plain


def affine_cases(kernels: ModuleType, count: int) -> Iterator[Case]:
    """Yield the first map of a feed-forward layer, with and without ReLU, forward and backward."""
    y, inner = numbers(count, WIDTH), nn.Linear(WIDTH, 4 * WIDTH, device=DEVICE, dtype=NARROW)
    seed = torch.randn(count, 4 * WIDTH, device=DEVICE).to(NARROW)
    for relu in (False, True):
        name = f"affine map{', ReLU' if relu else ''}"

        def finished(relu: bool = relu) -> object:
            constant = inner.bias.detach()
            if relu:
                result = kernels.affine.relu_of_affine(y, inner.weight, inner.bias, constant)
            else:
                result = kernels.affine.biased(F.linear(y, inner.weight, constant), inner.bias)
            return torch.autograd.grad(result, (y, *inner.parameters()), seed)

        def affine(relu: bool = relu) -> object:
            result = torch.relu_(inner(y)) if relu else inner(y)
            return torch.autograd.grad(result, (y, *inner.parameters()), seed)

        yield f"{name}: kernels", finished
        yield f"{name}: torch", affine


def compared(name: str, kernels: ModuleType, work: Callable[[], object]) -> Iterator[Case]:
    """Yield the same work with the kernels loaded, and without them."""

    def done(loaded: ModuleType | None) -> None:
        gpu._kernels = loaded
        work()
        gpu._kernels = None

    yield f"{name}: kernels", functools.partial(done, kernels)
    yield f"{name}: torch", functools.partial(done, None)


def cell_cases(kernels: ModuleType) -> Iterator[Case]:
    """Yield recurrent layers on sentences of 32 words, forward and backward."""
    sentences, steps = (128, 32) if ON_GPU else (2, 3)
    lengths = torch.full((sentences,), steps, device=DEVICE)
    words = numbers(sentences, steps, WIDTH, dtype=torch.float32)
    for name, cell in (("GRU", GRU), ("CARU", CARUCell)):
        layer = Recurrent(cell, WIDTH, WIDTH, bidirectional=False).to(DEVICE)

        def trained(layer: Recurrent = layer) -> None:
            with torch.autocast(DEVICE, NARROW, enabled=ON_GPU):
                states, _ = layer(words, lengths)
            torch.autograd.grad(states.sum(), (words, *layer.parameters()))

        yield from compared(f"{name} of {steps} steps", kernels, trained)


def source_attention_cases(kernels: ModuleType) -> Iterator[Case]:
    """Yield the attention of 32 decoder states to 32 source words, forward and backward."""
    sentences, steps = (128, 32) if ON_GPU else (2, 3)
    h, s = (numbers(sentences, steps, WIDTH, dtype=torch.float32) for _ in range(2))
    plain = AdditiveAttention(WIDTH, WIDTH, WIDTH).to(DEVICE)
    gates = {"CARU": CARUGate(WIDTH, WIDTH, False), "GRU": GRUGate(WIDTH, WIDTH, False)}
    gated = {f"{name}-gated": GatedAttention(gate, plain) for name, gate in gates.items()}
    for name, attention in {"additive": plain, **gated}.items():
        layer = attention.to(DEVICE)

        def trained(layer: nn.Module = layer) -> None:
            with torch.autocast(DEVICE, NARROW, enabled=ON_GPU):
                once = layer.prepare(h)
            if isinstance(layer, GatedAttention):
                attend = layer.loop(h, once, None, steps, NARROW)
                results = [attend(state, False)[0] for state in s.unbind(1)]
            else:
                weigh = layer.loop(once, None, steps, NARROW)
                results = [weigh(state) @ h for state in s.unbind(1)]
            total = torch.stack(results).square().sum()
            # Backward computes a step again, with the same kernels.
            torch.autograd.grad(total, (h, s, *layer.parameters()), allow_unused=True)

        yield from compared(f"{name} attention", kernels, trained)


def step_cases() -> Iterator[Case]:
    """Yield the attention of a step of a search with beam 5; half of the buffer is used."""
    few_queries = importlib.import_module("nmtkit.nn.kernels.few_queries")
    width = WIDTH // HEADS
    q = numbers(BEAMS, 5, HEADS, width).detach().transpose(1, 2)
    k, v = (numbers(BEAMS, HEADS, BUFFER, width).detach() for _ in range(2))
    mask = torch.zeros(BEAMS, 5, BUFFER, device=DEVICE, dtype=NARROW)
    mask[..., BUFFER // 2 :] = torch.finfo(NARROW).min
    yield "attention of a step: kernels", lambda: few_queries.attend(q, k, v, mask)
    attend = F.scaled_dot_product_attention
    yield "attention of a step: torch", lambda: attend(q, k, v, attn_mask=mask[:, None])


def main() -> None:
    """Measure all cases."""
    for name, work in cases(importlib.import_module("nmtkit.nn.kernels")):
        print(f"{name:32} {microseconds(work):8,.0f} µs", flush=True)


if __name__ == "__main__":
    main()
