"""Measure training speed with and without `train.subword_dropout`: processor seconds of whole
epochs, including the draw of their subwords.

Two processes of one thread each take turns, epoch by epoch. Both run nmtkit's stage `train`, which
makes its updates on request. The table shows target tokens in a processor second (median), the
share of the speed that is lost (median and range of the pairs of turns), the share of the time that
the draw takes, and how much longer both sides are. The exit code is 1 if more than 10 % of the
speed is lost.

python tests/benchmarks/subword_dropout.py --run RUN [--run RUN …] [--strength 0.1] [--preset small]
    [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import arguments
import numpy as np
import torch
from turns import take_turns

from nmtkit import environment
from nmtkit.data.resegmented import Resegmented
from nmtkit.run import Run
from nmtkit.train import dry_run
from nmtkit.train.loop import Trainer
from nmtkit.train.stage import train

MOST_LOST = 0.10
WARM_UP = 1


def serve(a: argparse.Namespace) -> None:
    """Train an epoch for each line of stdin; print its processor seconds, the seconds of the draw,
    and the numbers of source and target tokens.
    """
    begin, drawing = Resegmented.begin, [0.0]

    def timed(pairs: Resegmented, epoch: int, window: int, shards: list[int]) -> None:
        start = time.process_time()
        begin(pairs, epoch, window, shards)
        drawing[0] = time.process_time() - start

    def epochs(trainer: Trainer) -> None:
        state, store = trainer.state, trainer.store
        for _ in sys.stdin:
            start, tokens, epoch = time.process_time(), state.tokens, state.epoch
            shards = range(len(store.shard_sizes))
            sources = sum(int(store.shard_lengths(shard)[0].sum()) for shard in shards)
            while state.epoch == epoch:
                trainer.make_update()
            trainer.read()  # counts the tokens
            seconds = time.process_time() - start
            answer = [seconds, drawing[0], sources, state.tokens - tokens]
            print(json.dumps(answer), flush=True)
        sys.exit()

    torch.set_num_threads(1)
    Resegmented.begin = timed
    dry_run.rehearse = epochs  # --dry-run writes nothing
    values = [f"train.subword_dropout={a.serve}", "train.log_to=none", *a.set]
    train(Run(a.run[0]), preset=a.preset, assignments=values, device="cpu", dry_run=True)


def measure(a: argparse.Namespace, run: Path) -> tuple[str, float]:
    """Return a row of the table, and the share of speed that is lost."""
    common = ["--run", str(run), "--preset", a.preset, *(f"--set={value}" for value in a.set)]
    commands = [
        [sys.executable, __file__, *common, "--serve", str(strength)]
        for strength in (0.0, a.strength)
    ]
    answers = np.array(take_turns(commands, a.rounds + WARM_UP, stderr=subprocess.DEVNULL))
    # Each has two rows, without and with it, of one number for each turn.
    seconds, drawing, sources, targets = np.moveaxis(answers[:, WARM_UP:], -1, 0)
    speeds = targets / seconds
    lost = 1 - speeds[1] / speeds[0]
    low, middle, high = (f"{100 * x:.1f}" for x in (lost.min(), np.median(lost), lost.max()))
    usual, drawn = (f"{x:,.0f}" for x in np.median(speeds, axis=1))
    draw = np.median(drawing[1] / seconds[1])
    longer = [f"{x[1].sum() / x[0].sum() - 1:.0%}" for x in (sources, targets)]
    row = f"| {run.name} | {usual} | {drawn} | **{middle}** ({low} to {high}) | {draw:.1%}"
    row += f" | {', '.join(longer)} |"
    return row, float(np.median(lost))


def main() -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("--run", type=Path, action="append", required=True, help="a prepared run")
    parser.add_argument("--strength", type=float, default=0.1, help="train.subword_dropout")
    parser.add_argument("--preset", default="small", help="the sizes of the model")
    parser.add_argument("--set", action="append", default=[], help="as of nmtkit train")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each process")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    a = parser.parse_args()
    environment.prepare()
    if a.serve is not None:
        serve(a)
        return
    print("| run | tokens/s without | with | speed lost % | draw | longer: source, target |")
    print("|---|---|---|---|---|---|")
    worst = 0.0
    for run in a.run:
        row, lost = measure(a, run)
        print(row, flush=True)
        worst = max(worst, lost)
    sys.exit(worst > MOST_LOST)


if __name__ == "__main__":
    main()
