"""Translation speed of nmtkit, Hugging Face `generate` and CTranslate2 with the same weights:
sentences a second, greedy and beam 5.

Equal outputs show that the weights were mapped exactly. Model loading, subword segmentation and
detokenization are left out for all.

python tests/benchmarks/decode_speed.py --corpus FOLDER --system NAME --hf-python ENV/bin/python
[--run RUN] [--earlier CHECKOUT]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import export_model
import peers
from arguments import write_json

from nmtkit.run import Run
from nmtkit.settings import parse_set
from nmtkit.text.vocabulary import Vocabulary


def options() -> argparse.ArgumentParser:
    parser = peers.common_options(__doc__, rounds=3)
    parser.add_argument(
        "--run", type=Path, help="run with the trained system (default: the corpus's own)"
    )
    parser.add_argument("--system", required=True)
    parser.add_argument(
        "--ctranslate2-python", help="environment with ctranslate2 (default: that of --hf-python)"
    )
    parser.add_argument("--rows", type=int, default=64, help="sentences a batch")
    parser.add_argument(
        "--precisions", nargs="+", default=["auto"], help="of nmtkit's search, each measured"
    )
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument(
        "--length-penalty", type=float, default=0.0, help="0, where the formulas of all three agree"
    )
    parser.add_argument(
        "--longest", type=int, default=100, help="subwords of a translation at most"
    )
    parser.add_argument(
        "--forced-length",
        type=int,
        help="every translation has so many subwords: for a system that is hardly trained",
    )
    return parser


def systems(args: argparse.Namespace, weights: Path) -> peers.Wanted:
    """Every engine, with each division of the cores that could be its fastest."""
    run = args.run or args.corpus / "run"
    model = export_model.export(Run(run), args.system, weights)
    search = parse_set([f"search.{item}" for item in args.set]).get("search", {})
    base: dict[str, Any] = {
        "width": model["d_model"],
        "heads": model["heads"],
        "layers": model["encoder_layers"],
        "inner": model["d_ff"],
        "dropout": 0.0,
        "vocabulary": peers.vocabulary_size(args.corpus),
        "corpus": str(args.corpus),
        "weights": str(weights),
        "sentences": args.sentences,
        "variables": f"{weights}{export_model.CTRANSLATE2}",
        "shortest": args.forced_length or 0,
        "rows": args.rows,
        "length_penalty": args.length_penalty,
        "longest": args.forced_length or args.longest,
        "run": str(run.resolve()),
        "system": args.system,
        "search": {"batch_size": args.rows, **search},
    }
    threads = args.threads
    ways = [("nmtkit", 1)]
    if threads > 1:
        ways = [(f"nmtkit, {threads} threads", 1), (f"nmtkit, {threads} processes", threads)]
    wanted = []
    for precision in args.precisions:
        setting = {**base, "search": {"precision": precision, **base["search"]}}
        suffix = "" if precision == "auto" else f" {precision}"
        wanted += [
            (name + suffix, args.nmtkit_python, "decode_nmtkit.py", {**setting, "jobs": jobs})
            for name, jobs in ways
        ]
    if args.earlier:
        setting = {**base, "jobs": 1, "checkout": str(args.earlier.resolve())}
        wanted.append(("nmtkit, earlier", args.nmtkit_python, "decode_nmtkit.py", setting))
    if args.hf_python:
        wanted.append(("Hugging Face generate", args.hf_python, "decode_marian.py", base))
    if python := args.ctranslate2_python or args.hf_python:
        for compute in ("float32", "int8"):
            for intra in {1, threads}:
                name = f"CTranslate2 {compute} {threads // intra} x {intra}"
                setting = {**base, "compute": compute, "intra": intra}
                wanted.append((name, python, "decode_ctranslate2.py", setting))
    return wanted


def bleu(hypotheses: list[list[int]], args: argparse.Namespace) -> float:
    """BLEU of the subword-joined tokens against the tokenized reference: to compare engines, not
    to report.
    """
    import sacrebleu

    vocabulary = Vocabulary.load(Path(args.corpus, "vocab.txt"))
    joined = [" ".join(vocabulary.decode(ids)).replace("@@ ", "") for ids in hypotheses]
    references = [
        line.replace("@@ ", "")
        for line in Path(args.corpus, "test.tgt").read_text("utf-8").split("\n")[: len(joined)]
    ]
    return sacrebleu.corpus_bleu(joined, [references], tokenize="none", force=True).score


def measure(entered: list[peers.System], args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for beam in args.beams:
        answers: dict[str, list[dict[str, Any]]] = {system.name: [] for system in entered}
        request = f"decode {beam}"
        for system in entered:
            system.ask(request)  # warm-up
        for i in range(args.rounds):
            for system in entered if i % 2 == 0 else reversed(entered):
                answer = peers.quiet_round(system, request, args.tries, args.patience)
                answers[system.name].append(answer)
        first = answers[entered[0].name][0]["hypotheses"]
        print(
            f"\nbeam {beam:<22d} {'sent/s':>7s} {'min-max':>13s} {'BLEU':>6s} {'tokens':>7s}"
            f" {'same':>6s} {'peak GiB':>8s} {'others':>6s}"
        )
        for system in entered:
            got = answers[system.name]
            rates = [args.sentences / answer[args.clock] for answer in got]
            hypotheses = got[0]["hypotheses"]
            row = {
                "system": system.name,
                "beam": beam,
                "sentences_per_second": statistics.median(rates),
                "rounds": rates,
                "bleu": bleu(hypotheses, args),
                "tokens_per_sentence": sum(map(len, hypotheses)) / len(hypotheses),
                "same_as_first": (
                    sum(a == b for a, b in zip(first, hypotheses, strict=True)) / len(hypotheses)
                ),
                "peak_bytes": max(answer["peak"] for answer in got),
            }
            rows.append(row)
            foreign = max(answer["foreign"] for answer in got)
            print(
                f"{system.name:27s} {row['sentences_per_second']:7.1f}"
                f" {min(rates):6.0f}-{max(rates):<6.0f} {row['bleu']:6.2f}"
                f" {row['tokens_per_sentence']:7.2f} {row['same_as_first']:6.1%}"
                f" {row['peak_bytes'] / 2**30:8.2f} {foreign:6.2f}",
                flush=True,
            )
    return rows


def main() -> None:
    args = peers.parsed(options())
    with tempfile.TemporaryDirectory(prefix="nmtkit-benchmark-") as folder:
        wanted = systems(args, Path(folder, "weights.safetensors"))
        with peers.started(wanted, args) as entered:
            write_json(args.json, measure(entered, args))


if __name__ == "__main__":
    main()
