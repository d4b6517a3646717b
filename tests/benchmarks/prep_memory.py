"""Measure the peak memory of prep for a text, and for texts 4 and 16 times as long, with words by
Zipf's law.

python tests/benchmarks/prep_memory.py [--pairs 100000] [--times 1 4 16] [--jobs 1]

A longer text has more different words. The settings bound the number of words that prep keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from arguments import nmtkit, parser, write_json
from bpe_learning import made_up_words

AT_ONCE = 20_000
"""Number of lines that are written at a time."""


def options() -> argparse.Namespace:
    options = parser(__doc__, pairs=100_000, times=[1, 4, 16], jobs=1, seed=1)
    options.add_argument("--words", type=int, default=20, help="of a line")
    options.add_argument("--types", type=int, default=4_000_000, help="words that are drawn from")
    options.add_argument(
        "--set",
        nargs="+",
        default=["prep.max_types=300000", "prep.memory=0.25", "prep.shard_lines=20000"],
    )
    options.add_argument("--json", type=Path)
    return options.parse_args()


def write_text(paths: list[Path], words: np.ndarray, lines: int, length: int, seed: int) -> None:
    """Write lines of words; the n-th word is drawn in proportion to 1 / n."""
    random = np.random.default_rng(seed)
    limits = np.cumsum(1 / np.arange(1, len(words) + 1))
    for path in paths:
        with path.open("w", encoding="utf-8") as out:
            for first in range(0, lines, AT_ONCE):
                rows = min(AT_ONCE, lines - first)
                drawn = words[limits.searchsorted(random.random((rows, length)) * limits[-1])]
                out.writelines(" ".join(line) + "\n" for line in drawn.tolist())


def prepared(folder: Path, paths: list[Path], args: argparse.Namespace) -> dict[str, float]:
    """Prepare a text, and return the peak of the largest process in MiB."""
    run = folder / paths[0].stem
    texts = ["--train", *paths, "--dev", *sorted(folder.glob("dev.*"))]
    options = ["--preset", "small", "--jobs", args.jobs, "--run", run]
    options += [word for setting in args.set for word in ("--set", setting)]
    command = nmtkit("prep", *texts, *options)
    # RUSAGE_CHILDREN keeps the largest child ever, so each prep has a new parent process.
    watch = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(used.ru_maxrss, used.ru_utime + used.ru_stime)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watch, *command], check=True, stdout=subprocess.PIPE, text=True
    )
    peak, seconds = map(float, done.stdout.split()[-2:])
    corpus = json.loads((run / "prep/manifest.json").read_text("utf-8"))["corpus"]
    learnt = corpus["src_types"] + corpus["tgt_types"]
    types = learnt + corpus.get("types_left_out", 0)
    return {"peak": peak / 1024, "seconds": seconds, "types": types, "learnt": learnt}


def main() -> None:
    args = options()
    listed, _ = made_up_words(args.types, args.seed)
    words = np.array(listed, object)
    results = []
    with tempfile.TemporaryDirectory(prefix="nmtkit-benchmark-") as name:
        folder = Path(name)
        write_text([folder / "dev.de", folder / "dev.en"], words, 200, args.words, args.seed)
        for times in args.times:
            paths = [folder / f"x{times}.{language}" for language in ("de", "en")]
            write_text(paths, words, args.pairs * times, args.words, args.seed + times)
            result = {"pairs": args.pairs * times, **prepared(folder, paths, args)}
            results.append(result)
            print(
                f"{result['pairs']:10,} pairs, {result['types']:10,} different words"
                f" ({result['learnt']:,} learnt from): peak {result['peak']:.0f} MiB,"
                f" {result['peak'] / results[0]['peak']:.2f} x the first,"
                f" {result['seconds']:.0f} s of processor time",
                flush=True,
            )
            for path in paths:
                os.remove(path)
    write_json(args.json, results)


if __name__ == "__main__":
    main()
