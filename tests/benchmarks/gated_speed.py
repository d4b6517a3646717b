"""Compare CARU-gated attention with RNNSearch of the same sizes, and with a plain form of its
equations. The systems take turns in one run.

The output has the processor seconds of an update and of the steps of a search (best round), their
ratios beside the ratios of multiply-accumulates, and the peak memory of an update, which a separate
process measures.

python tests/benchmarks/gated_speed.py --alignment 256 --length 15 [--rows 100] [--rounds 4]
[--bfloat16] [--compile]
"""

from __future__ import annotations

import argparse
import copy
import functools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arguments
import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.measures import macs, recording
from nmtkit.models.base import Model, Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.nn.linear import inference, pack
from nmtkit.train.compiling import compile_training
from nmtkit.train.loss import backward, chunk_rows

V = 8000


class Plain:
    """CARU-gated attention as in Im & Chan 2024, Eqs. 4 and 5: every pair of positions is computed
    by itself, and nothing is computed once per sentence.
    """

    def __init__(self, model: Any) -> None:
        self.gate, self.attention = model.attention.gate, model.attention.attention

    def loop(
        self,
        h: Tensor,
        _once: Tensor,
        visible: Tensor | None,
        _times: int,
        _dtype: torch.dtype,
        scale: Any = None,
    ) -> Callable[..., Any]:
        assert visible is None
        (w, w_zs), (b, b_z) = self.gate.state.weight.chunk(2), self.gate.state.bias.chunk(2)
        w_n, w_zh = self.gate.source.weight.chunk(2)
        w_z = torch.cat([w_zs, w_zh], dim=1)
        w_a = torch.cat([self.attention.query.weight, self.attention.key.weight], dim=1)

        def attend(s: Tensor, first: bool) -> tuple[Tensor, Tensor, None]:
            x = F.linear(s, w, b)
            states = s.unsqueeze(1).expand(-1, h.size(1), -1)
            n = torch.tanh(x.unsqueeze(1) + F.linear(h, w_n, self.gate.bias))
            gate = torch.sigmoid(x).unsqueeze(1) * torch.sigmoid(
                F.linear(torch.cat([states, h], dim=-1), w_z, b_z)
            )
            g = x.unsqueeze(1).expand_as(h) if first else (1 - gate) * h + gate * n
            scores = (
                torch.tanh(F.linear(torch.cat([states, g], dim=-1), w_a, self.attention.query.bias))
                @ self.attention.v
            )
            alpha = torch.softmax(scores.unsqueeze(1) * (1 if scale is None else scale), dim=-1)
            return torch.matmul(alpha, g).squeeze(1), alpha, None

        return attend


def build(name: str, width: int) -> Model:
    """Return a model of the paper's sizes: rnnsearch, caru, or caru-plain (with `Plain`)."""
    torch.manual_seed(1)
    alignment: dict[str, Any] = {"d_alignment": width}
    if name != "rnnsearch":
        alignment = {"alignment_width": width, "caatt_first": "linear"}
    model = build_model(
        name.removesuffix("-plain"),
        {"d_embedding": 256, "d_hidden": 1024, "dropout": 0.0, **alignment},
        Vocabularies(V, V, shared=False),
    )
    if name.endswith("-plain"):
        model.attention.loop = Plain(model).loop
    return model


def update(model: Model, length: int, rows: int, bfloat16: bool) -> Tensor:
    """Compute forward and backward of a batch; return the states that the output layer reads."""
    model.train()
    batch = recording.made_up((length, length), torch.device("cpu"), rows)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
        backward(model.logits, hidden, batch, 0.1, 1 / (rows * length), chunk_rows(V, "cpu"))
    model.zero_grad()
    return hidden.detach()


def translate(model: Model, length: int, rows: int, beam: int) -> None:
    """Compute the decoder steps of a search with packed weights, without the search itself."""
    with inference([model]):
        batch = recording.made_up((length, length), torch.device("cpu"), rows)
        memory, state = model.encode(batch), {}
        last = torch.ones(rows * beam, 1, dtype=torch.long)
        for _ in range(length):
            hidden, state = model.decode(last, memory, state)
            model.logits(hidden[:, -1])


def show_best(label: str, works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Let works take turns; print and return the processor seconds of each in its best round."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    print(f"{label}  " + "  ".join(f"{name} {seconds:.3f} s" for name, seconds in best.items()))
    return best


def most_memory() -> float:
    """Return the peak memory of this process in MiB (Linux). `getrusage` would include the peak of
    the parent process.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def peak(name: str, a: argparse.Namespace) -> float:
    """Return the MiB that an update adds to the peak memory of a new process."""
    sizes = [f"--{option}={getattr(a, option)}" for option in ("alignment", "length", "rows")]
    command = [sys.executable, __file__, *sizes, f"--peak={name}", *["--bfloat16"] * a.bfloat16]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = arguments.parser(
        __doc__, alignment=256, length=15, rows=100, rounds=4, threads=1, beam=5
    )
    parser.add_argument(
        "--bfloat16",
        action="store_true",
        help="autocast in training, oneDNN's bfloat16 products in the search",
    )
    parser.add_argument("--compile", action="store_true", help="updates with --compile, too")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    if a.peak:
        model = build(a.peak, a.alignment)
        update(model, 2, 2, a.bfloat16)
        before = most_memory()
        update(model, a.length, a.rows, a.bfloat16)
        print(most_memory() - before)
        return
    names = ("rnnsearch", "caru", "caru-plain")
    models = {name: build(name, a.alignment) for name in names}
    hidden = [update(models[name], a.length, 4, bfloat16=False) for name in names[1:]]
    torch.testing.assert_close(
        *hidden, rtol=1e-4, atol=1e-4
    )  # the plain equations are the same ones
    counts = {name: macs.count_macs(models[name], a.length, a.length) for name in names[:2]}
    updated = dict(models)
    for name in names[:2] if a.compile else ():
        model = updated[f"{name}-compiled"] = copy.deepcopy(models[name])
        example = recording.made_up((a.length, a.length), torch.device("cpu"), a.rows)
        compile_training(model, example)
        update(model, a.length, a.rows, a.bfloat16)
    works = {
        name: functools.partial(update, model, a.length, a.rows, a.bfloat16)
        for name, model in updated.items()
    }
    times = show_best("update", works, a.rounds)
    ratio = counts["caru"].train / counts["rnnsearch"].train
    print(
        f"  caru/rnnsearch {times['caru'] / times['rnnsearch']:.2f}, MACs {ratio:.2f};"
        f" caru-plain/caru {times['caru-plain'] / times['caru']:.2f}"
    )
    if a.bfloat16:
        torch.set_float32_matmul_precision("medium")
    searching = {name: models[name].eval() for name in names[:2]}
    for model in searching.values():
        pack(model)
    works = {
        name: functools.partial(translate, model, a.length, 16, a.beam)
        for name, model in searching.items()
    }
    times = show_best("search", works, a.rounds)
    whole = {name: c.encode * a.length + c.step * a.length * a.beam for name, c in counts.items()}
    print(
        f"  caru/rnnsearch {times['caru'] / times['rnnsearch']:.2f}, MACs"
        f" {whole['caru'] / whole['rnnsearch']:.2f}"
    )
    print(
        "peak memory of an update  "
        + "  ".join(f"{name} {peak(name, a):.0f} MiB" for name in names)
    )


if __name__ == "__main__":
    main()
