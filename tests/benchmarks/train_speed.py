"""Training speed of nmtkit and of other toolkits, in turns on the same machine: real target tokens
a second, padding, peak memory.

python tests/benchmarks/train_speed.py --corpus FOLDER --earlier CHECKOUT --threads 1 --cpu-time   # before and after a change
python tests/benchmarks/train_speed.py --corpus FOLDER --eole-python ENV/bin/python --hf-python ENV/bin/python
python tests/benchmarks/train_speed.py --corpus FOLDER --joey-python ENV/bin/python        # the recurrent pair: RNNSearch, JoeyNMT's GRU model
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import peers
from arguments import write_json

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


def options() -> argparse.ArgumentParser:
    parser = peers.common_options(__doc__, rounds=5)
    parser.add_argument("--eole-python")
    parser.add_argument("--joey-python", help="measure the recurrent pair instead")
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
    parser.add_argument("--precision", default="auto", help="of nmtkit")
    return parser


def systems(args: argparse.Namespace) -> peers.Wanted:
    sizes = RECURRENT if args.joey_python else TRANSFORMER
    setting: dict[str, Any] = {
        **sizes,
        "corpus": str(args.corpus),
        "vocabulary": peers.vocabulary_size(args.corpus),
        "batch": args.batch,
    }
    variant = "rnnsearch" if args.joey_python else "transformer"
    model = {
        "rnnsearch": {"d_embedding": "width", "d_hidden": "hidden"},
        "transformer": {
            "d_model": "width",
            "d_ff": "inner",
            "heads": "heads",
            "encoder_layers": "layers",
            "decoder_layers": "layers",
        },
    }[variant]
    nmtkit = {
        "variant": variant,
        "model": {name: sizes[size] for name, size in model.items()},
        "precision": args.precision,
        "set": args.set,
    }
    wanted = [("nmtkit", args.nmtkit_python, "train_nmtkit.py", {**setting, **nmtkit})]
    if args.earlier:
        earlier = {**wanted[0][3], "checkout": str(args.earlier.resolve())}
        wanted.append(("nmtkit, earlier", args.nmtkit_python, "train_nmtkit.py", earlier))
    if args.joey_python:
        joey = {**setting, "batch": args.joey_batch}
        return [*wanted, ("JoeyNMT", args.joey_python, "train_joey.py", joey)]
    if args.eole_python:
        for name, entropy in (("eole", False), ("eole (default logging)", True)):
            eole = {**setting, "batch": args.eole_batch, "attention_entropy": entropy}
            wanted.append((name, args.eole_python, "train_eole.py", eole))
    if args.hf_python:
        wanted.append(("Hugging Face Marian", args.hf_python, "train_marian.py", setting))
    return wanted


def report(entered: list[peers.System], clock: str) -> list[dict[str, Any]]:
    measured = [s for s in entered if s.rounds]
    comparable = {"nmtkit, earlier", "eole", "JoeyNMT"}
    peer = next((s.name for s in measured if s.name in comparable), "peer")
    base = next(
        (statistics.median(peers.round_rates(s, clock)) for s in measured if s.name == peer), None
    )
    rows = []
    print(
        f"\n{'system':28s} {'tok/s':>7s} {'min-max':>15s} {'best step':>9s} {'x ' + peer:>17s}"
        f" {'tok/batch':>9s} {'padding':>8s} {'peak GiB':>8s}"
    )
    for system in measured:
        rates = peers.round_rates(system, clock)
        sides = ("src_real", "src_all", "tgt_real", "tgt_all")
        total = {side: sum(answer[side] for answer in system.rounds) for side in sides}
        padding = 1 - (total["src_real"] + total["tgt_real"]) / (
            total["src_all"] + total["tgt_all"]
        )
        steps = sum(len(r["tokens"]) for r in system.rounds)
        row = {
            "system": system.name,
            "tokens_per_second": statistics.median(rates),
            "rounds": rates,
            "best_step": max(peers.step_rates(system, clock)),
            "ratio": statistics.median(rates) / base if base else None,
            "ratio_to": peer,
            "tokens_per_batch": total["tgt_real"] / steps,
            "padding": padding,
            "peak_bytes": max(r["peak"] for r in system.rounds),
        }
        rows.append(row)
        ratio = f"{row['ratio']:17.2f}" if base else f"{'-':>17s}"
        print(
            f"{system.name:28s} {row['tokens_per_second']:7.0f}"
            f" {min(rates):7.0f}-{max(rates):<7.0f} {row['best_step']:9.0f} {ratio}"
            f" {row['tokens_per_batch']:9.0f} {padding:8.1%} {row['peak_bytes'] / 2**30:8.2f}"
        )
    return rows


def main() -> None:
    args = peers.parsed(options())
    with peers.started(systems(args), args) as entered:
        peers.alternate(entered, args)
        write_json(args.json, report(entered, args.clock))


if __name__ == "__main__":
    main()
