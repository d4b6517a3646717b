"""Measure processor time with and without each faster path of a CPU (nmtkit/nn/cpu.py, and `HEAD`
of nmtkit/translate/sampling.py).

Two processes of one thread each, with the path and without it, take turns, batch by batch. The
table shows the median time of a turn with the path, and the share of the time that the path saves
(median and middle half of the pairs of turns).

python tests/benchmarks/tricks.py [--run RUN] [--rounds 15] [--only pack] [--matmul medium]
    [--preset demo]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import arguments
import numpy as np
import torch
from turns import take_turns

from nmtkit import environment, settings
from nmtkit.analyze.timing import Endless
from nmtkit.data.batch_lists import batch_list
from nmtkit.data.batches import collate, source_batch
from nmtkit.data.store import Store
from nmtkit.models import loading
from nmtkit.models.base import Model
from nmtkit.models.variants import build_model, load_variant
from nmtkit.nn import cpu, hardware, linear
from nmtkit.nn.dropout import seed_dropout
from nmtkit.run import Run
from nmtkit.settings import SearchSettings
from nmtkit.train import loss
from nmtkit.translate import beam, sampling

UPDATES, STEPS = 8, 15
WARM_UP = 2
"""Turns that do not count."""
CPU = torch.device("cpu")


@contextlib.contextmanager
def without_default_path(models: list[Model]) -> Iterator[None]:
    """Stand in for `inference` without its choice of a backend for small products."""
    with torch.inference_mode():
        yield


# Path -> a function that puts the plain form in its place.
WITHOUT: dict[str, Callable[[], object]] = {
    "dropout": lambda: setattr(cpu, "dropout", lambda x, p: torch.dropout(x, p, True)),
    "writes_attention_out": lambda: setattr(cpu, "SHORT", 0),
    "row_multiple": lambda: setattr(cpu, "FILLED", 1),
    "factor": lambda: setattr(cpu, "factor", torch.Tensor.contiguous),
    "buffer": lambda: setattr(cpu, "buffer", lambda like, *shape: like.new_empty(shape)),
    "search_mask": lambda: setattr(cpu, "search_mask", lambda visible, like: visible),
    "pack": lambda: setattr(cpu, "pack", lambda weight, precision: None),
    "keep_big_blocks": lambda: setattr(cpu, "keep_big_blocks", lambda: False),
    "inference": lambda: setattr(beam, "inference", without_default_path),
    "HEAD": lambda: setattr(sampling, "HEAD", sys.maxsize),
    "set_flush_denormal": lambda: setattr(torch, "set_flush_denormal", lambda on: False),
}
# Trick, work, variant, precision.
MEASURED = [
    ("dropout", "training", "transformer", "bfloat16"),
    ("dropout", "training", "transformer", "float32"),
    ("writes_attention_out", "training", "transformer", "bfloat16"),
    ("writes_attention_out", "training", "transformer", "float32"),
    ("writes_attention_out", "search", "transformer", "bfloat16"),
    ("row_multiple", "training", "amn", "bfloat16"),
    ("row_multiple", "training", "rnnsearch", "bfloat16"),
    ("row_multiple", "training", "transformer", "bfloat16"),
    ("pack", "search", "transformer", "bfloat16"),
    ("pack", "search", "transformer", "float32"),
    ("factor", "search", "transformer", "float32"),
    ("buffer", "search", "transformer", "float32"),
    ("search_mask", "search", "transformer", "float32"),
    ("keep_big_blocks", "training", "transformer", "bfloat16"),
    ("keep_big_blocks", "search", "transformer", "bfloat16"),
    ("keep_big_blocks", "search", "transformer", "float32"),
    ("inference", "search", "transformer", "float32"),
    ("HEAD", "draws", "transformer", "float32"),
    ("set_flush_denormal", "Adam", "transformer", "float32"),
]


def training(model: Model, store: Store, narrow: bool) -> Callable[[int], None]:
    """Return a turn of training: forward and backward of UPDATES batches."""
    rows = batch_list(store.src_lengths, store.tgt_lengths, 2048, "tgt_tokens", 1, 0)
    autocast: dict[str, Any] = {"device_type": "cpu", "dtype": torch.bfloat16, "enabled": narrow}

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(**autocast):
            return model.logits(hidden)

    def turn(number: int) -> None:
        for i in range(number * UPDATES, (number + 1) * UPDATES):
            batch = collate(store, rows[i % len(rows)], CPU, model.context_rule)
            seed_dropout(1, i)
            with torch.autocast(**autocast):
                hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
            loss.backward(
                logits, hidden, batch, 0.1, 1.0, loss.chunk_rows(model.vocabularies.tgt, "cpu")
            )
            model.zero_grad(set_to_none=True)

    return turn


def search(model: Model, store: Store, narrow: bool) -> Callable[[int], None]:
    """Return a turn of search: 40 sentences, each translation STEPS subwords long."""
    linear.pack(model.eval(), "bfloat16" if narrow else "float32")
    wanted = settings.build(SearchSettings, {"max_length_a": 0.0, "max_length_b": STEPS}, "search")

    def turn(number: int) -> None:
        sentences = [store.src(i % len(store)) for i in range(number * 40, (number + 1) * 40)]
        beam.search([Endless(model).eval()], source_batch(sentences, CPU), wanted)

    return turn


def draws(model: Model, store: Store, narrow: bool) -> Callable[[int], None]:
    """Return a turn of draws with top_p: 3 draws for 128 rows from 32,000 tokens. The distribution
    is about as uneven as that of a model.
    """
    logits, numbers = 4 * torch.randn(128, 32_000), torch.rand(128, 1)
    wanted = settings.build(SearchSettings, {"sample": True, "top_p": 0.9}, "search")

    def turn(number: int) -> None:
        for _ in range(3):
            sampling.draw(logits, numbers, wanted)

    return turn


def adam(model: Model, store: Store, narrow: bool) -> Callable[[int], None]:
    """Return a turn of Adam: 5 updates of weights whose gradients have long been zero."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for moments in optimizer.state.values():
        moments["exp_avg"].fill_(1e-37)
        moments["exp_avg_sq"].fill_(1e-38)
    return lambda number: [optimizer.step() for _ in range(5)][0]


def serve(a: argparse.Namespace) -> None:
    """Take a turn for each line of stdin, and print its processor seconds."""
    trick, work, variant, precision, state = a.serve.split(",")
    if state == "without":
        WITHOUT[trick]()
    torch.set_num_threads(1)
    hardware.choose("cpu", precision, matmul=a.matmul)
    cls, run = load_variant(variant), Run(a.run)
    sizes = settings.build(
        cls.Settings, cls.adapt(settings.load_preset(a.preset)["model"]), "model"
    )
    torch.manual_seed(1)
    model = build_model(variant, sizes.model_dump(), loading.vocabulary_sizes(run)).train()
    turn = {"training": training, "search": search, "draws": draws, "Adam": adam}[work](
        model, Store(run.prep / "train"), precision == "bfloat16"
    )
    for number, _ in enumerate(sys.stdin):
        start = time.process_time()
        turn(number)
        print(time.process_time() - start, flush=True)


def measure(a: argparse.Namespace, trick: str, *work: str) -> str:
    """Measure with and without a path, and return a row of the table."""
    common = ["--run", str(a.run), "--matmul", a.matmul, "--preset", a.preset]
    commands = [
        [sys.executable, __file__, *common, "--serve", ",".join((trick, *work, state))]
        for state in ("with", "without")
    ]
    used, without = np.array(take_turns(commands, a.rounds + WARM_UP))[:, WARM_UP:]
    saved = np.quantile(1 - used / without, [0.25, 0.5, 0.75])
    low, middle, high = (f"{100 * x:.0f}" for x in saved)
    cells = f"`{trick}`", *work, f"{np.median(used):.3f}", f"**{middle}** ({low} to {high})"
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = arguments.parser(__doc__, rounds=15)
    parser.add_argument(
        "--run", type=Path, help="a prepared run with documents; without it the demo is prepared"
    )
    parser.add_argument("--only", choices=WITHOUT, help="measure one path")
    parser.add_argument("--matmul", default="auto", help="as train.matmul")
    parser.add_argument("--preset", default="small", help="the sizes of the model")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    a = parser.parse_args()
    environment.prepare()
    if a.serve:
        serve(a)
        return
    with tempfile.TemporaryDirectory() as folder:
        if a.run is None:
            a.run = Path(folder) / "run"
            options = ["--size", 4000, "--run", a.run, "--quiet"]
            subprocess.run(arguments.nmtkit("prep", "demo", *options), check=True)
        print("| trick | work | variant | precision | seconds with it | saved % |")
        print("|---|---|---|---|---|---|")
        for trick, *work in MEASURED:
            if a.only in {None, trick}:
                print(measure(a, trick, *work), flush=True)


if __name__ == "__main__":
    main()
