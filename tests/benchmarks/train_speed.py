"""Training speed of nmtkit and of other toolkits, in turns on the same machine: real target tokens
a second, padding, peak memory.

python tests/benchmarks/train_speed.py --corpus FOLDER --eole-python ENV/bin/python --hf-python ENV/bin/python
python tests/benchmarks/train_speed.py --corpus FOLDER --joey-python ENV/bin/python        # the recurrent pair: RNNSearch, JoeyNMT's GRU model
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from peers import System, alternate, median, round_rates, step_rates  # noqa: E402

TRANSFORMER = {
    "width": 256,
    "heads": 4,
    "layers": 4,
    "inner": 1024,
    "dropout": 0.1,
    "smoothing": 0.1,
}
# Bidirectional GRU, additive attention, GRU. States as wide as embeddings, so that JoeyNMT too can
# tie its output layer; at these sizes RNNSearch has a tenth more multiply-accumulates a token than
# JoeyNMT's model, which has no readout and feeds one state less into its cell.
RECURRENT = {"width": 512, "hidden": 512, "dropout": 0.1, "smoothing": 0.1}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder made by corpus.py")
    parser.add_argument("--nmtkit-python", default=sys.executable)
    parser.add_argument("--eole-python")
    parser.add_argument("--hf-python")
    parser.add_argument("--joey-python", help="measure the recurrent pair instead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2048, help="target tokens a batch")
    parser.add_argument(
        "--eole-batch",
        type=int,
        default=2240,
        help="eole counts the longer side: 2240 gives about 2048 target tokens",
    )
    parser.add_argument(
        "--joey-batch",
        type=int,
        default=4600,
        help="JoeyNMT counts padding and does not sort: 4600 gives about 2048 target tokens",
    )
    parser.add_argument("--warm-up", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="timed steps a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count processor seconds: with --threads 1 for a machine shared with others",
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=4,
        help="take a round disturbed by others again, so many times at most (not with --cpu-time)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        help="seconds to wait for a quiet machine before each round",
    )
    parser.add_argument("--only", nargs="*", help="names of systems to run")
    parser.add_argument("--precision", default="auto", help="of nmtkit")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another setting for nmtkit (repeatable)",
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def systems(args: argparse.Namespace) -> list[System]:
    vocabulary = len(Path(args.corpus, "vocab.txt").read_text("utf-8").split("\n")) - 1
    s = RECURRENT if args.joey_python else TRANSFORMER
    setting: dict[str, Any] = {
        **s,
        "corpus": str(args.corpus),
        "vocabulary": vocabulary,
        "batch": args.batch,
    }
    if args.joey_python:
        own = {
            "variant": "rnnsearch",
            "model": {"d_embedding": s["width"], "d_hidden": s["hidden"]},
        }
    else:
        sizes = {
            "d_model": s["width"],
            "d_ff": s["inner"],
            "heads": s["heads"],
            "encoder_layers": s["layers"],
            "decoder_layers": s["layers"],
        }
        own = {"variant": "transformer", "model": sizes}
    wanted = [
        (
            "nmtkit",
            args.nmtkit_python,
            "train_nmtkit.py",
            {**setting, **own, "precision": args.precision, "set": args.set},
        )
    ]
    if args.joey_python:
        wanted += [
            ("JoeyNMT", args.joey_python, "train_joey.py", {**setting, "batch": args.joey_batch})
        ]
    elif args.eole_python:
        wanted += [
            (
                "eole",
                args.eole_python,
                "train_eole.py",
                {**setting, "batch": args.eole_batch, "attention_entropy": False},
            ),
            (
                "eole (default logging)",
                args.eole_python,
                "train_eole.py",
                {**setting, "batch": args.eole_batch, "attention_entropy": True},
            ),
        ]
    if args.hf_python and not args.joey_python:
        wanted += [("Hugging Face Marian", args.hf_python, "train_marian.py", setting)]
    return [
        System(name, python, driver, values, args.threads)
        for name, python, driver, values in wanted
        if not args.only or name in args.only
    ]


def report(entered: list[System], clock: str) -> list[dict[str, Any]]:
    measured = [s for s in entered if s.rounds]
    peer = next((s.name for s in measured if s.name in {"eole", "JoeyNMT"}), "peer")
    base = next((median(round_rates(s, clock)) for s in measured if s.name == peer), None)
    rows = []
    print(
        f"\n{'system':28s} {'tok/s':>7s} {'min-max':>15s} {'best step':>9s} {'x ' + peer:>9s}"
        f" {'tok/batch':>9s} {'padding':>8s} {'peak GiB':>8s}"
    )
    for system in measured:
        rates, total = (
            round_rates(system, clock),
            {
                k: sum(r[k] for r in system.rounds)
                for k in ("src_real", "src_all", "tgt_real", "tgt_all")
            },
        )
        padding = 1 - (total["src_real"] + total["tgt_real"]) / (
            total["src_all"] + total["tgt_all"]
        )
        steps = sum(len(r["tokens"]) for r in system.rounds)
        row = {
            "system": system.name,
            "tokens_per_second": median(rates),
            "rounds": rates,
            "best_step": max(step_rates(system, clock)),
            "ratio": median(rates) / base if base else None,
            "ratio_to": peer,
            "tokens_per_batch": total["tgt_real"] / steps,
            "padding": padding,
            "peak_bytes": max(r["peak"] for r in system.rounds),
        }
        rows.append(row)
        ratio = f"{row['ratio']:9.2f}" if base else f"{'-':>9s}"
        print(
            f"{system.name:28s} {row['tokens_per_second']:7.0f}"
            f" {min(rates):7.0f}-{max(rates):<7.0f} {row['best_step']:9.0f} {ratio}"
            f" {row['tokens_per_batch']:9.0f} {padding:8.1%} {row['peak_bytes'] / 2**30:8.2f}"
        )
    return rows


def main() -> None:
    args = arguments()
    what = "processor" if args.cpu_time else "wall-clock"
    print(
        f"{platform.machine()}, {args.threads} threads, {what} seconds, load at start"
        f" {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    clock = "cpu" if args.cpu_time else "seconds"
    entered = systems(args)
    try:
        alternate(
            entered,
            args.warm_up,
            args.steps,
            args.rounds,
            clock,
            1 if args.cpu_time else args.tries,
            args.patience,
        )
        rows = report(entered, clock)
    finally:
        for system in entered:
            system.close()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
