"""Measure speed and memory of prep on real text: lines a second of every stage with one worker and
with several, and memory for the corpus once and four times.

python tests/benchmarks/prep_speed.py --pair SRC TGT [--pair SRC TGT …]

The files are plain or compressed. Their lines are repeated until there are --lines lines.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from arguments import nmtkit, parser, write_json
from peers import wait_for_quiet

from nmtkit import files

WMT14 = 9_000_000 * 24
"""Words of WMT14 English-German: 4.5 million pairs, two sides, about 24 words each."""
STAGE = re.compile(r"nmtkit: (.+): ([\d,]+) lines in .*\(([\d,]+) lines/s\)")


def options() -> argparse.Namespace:
    options = parser(__doc__, jobs=[1, 2])
    options.add_argument(
        "--pair", nargs=2, type=Path, action="append", required=True, metavar=("SRC", "TGT")
    )
    options.add_argument("--languages", nargs=2, default=["en", "de"])
    options.add_argument("--lines", type=int, default=200_000, help="of both sides together")
    options.add_argument(
        "--times", type=int, nargs="+", default=[1, 4], help="multiples of --lines, for memory"
    )
    options.add_argument("--rounds", type=int, default=3, help="of the comparison of --jobs")
    options.add_argument("--json", type=Path)
    return options.parse_args()


def build(
    pairs: list[list[Path]], lines: int, folder: Path, languages: list[str]
) -> tuple[list[Path], int]:
    """Write a corpus of `lines` lines of real text: the pairs of files one after another, and again
    from the start. Return its files and its number of words.
    """
    texts: list[tuple[str, str]] = []
    for src, tgt in pairs:
        texts += zip(files.text_lines(src), files.text_lines(tgt), strict=True)
    wanted = list(islice(cycle(texts), lines // 2))
    paths = [folder / f"train-{lines}.{language}" for language in languages]
    for side, path in enumerate(paths):
        files.write_lines(path, [text[side] for text in wanted])
    words = sum(len(side.split()) for text in wanted for side in text)
    print(
        f"{lines:,} lines from {2 * len(texts):,} different ones, {words / lines:.1f} words a line",
        flush=True,
    )
    return paths, words


def tree_bytes(pid: int) -> tuple[int, int]:
    """Resident bytes of the largest process of a tree, and of all together (shared pages divided
    among those who share them).
    """
    largest = total = 0
    try:
        rollup = dict(
            line.split(":")
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
        )
        largest, total = (int(rollup[key].split()[0]) * 1024 for key in ("Rss", "Pss"))
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    except (OSError, KeyError, ValueError):
        return largest, total
    for child in children:
        largest_below, total_below = tree_bytes(int(child))
        largest, total = max(largest, largest_below), total + total_below
    return largest, total


def prep(paths: list[Path], jobs: int, folder: Path, watch: bool = False) -> dict[str, Any]:
    """Run `nmtkit prep`. Watching its memory takes time from one of the cores, so timed runs are
    not watched.
    """
    run = folder / f"run-{time.monotonic_ns()}"
    dev = [folder / f"dev.{path.suffix[1:]}" for path in paths]
    for path, short in zip(paths, dev, strict=True):
        files.write_lines(short, list(islice(files.text_lines(path), 100)))
    names = ["--train", *paths, "--dev", *dev]
    command = nmtkit("prep", "benchmark", *names, "--jobs", jobs, "--run", run)
    with (folder / "log.txt").open("w+", encoding="utf-8") as log:
        start, used = time.perf_counter(), os.times()
        process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)
        peak = (0, 0)
        while watch and process.poll() is None:
            peak = tuple(map(max, peak, tree_bytes(process.pid)))  # type: ignore[assignment]
            time.sleep(0.2)
        process.wait()
        seconds, after = time.perf_counter() - start, os.times()
        log.seek(0)
        messages = log.read()
    if process.returncode:
        raise SystemExit(messages)
    cpu = after.children_user + after.children_system - used.children_user - used.children_system
    stages = {
        match[1]: int(match[3].replace(",", ""))
        for match in map(STAGE.match, messages.splitlines())
        if match
    }
    return {
        "jobs": jobs,
        "seconds": seconds,
        "cpu": cpu,
        "largest": peak[0],
        "together": peak[1],
        "stages": stages,
    }


def show(lines: int, result: dict[str, Any]) -> None:
    rates = ", ".join(f"{name} {rate:,}/s" for name, rate in result["stages"].items())
    memory = ""
    if result["largest"]:
        largest, together = result["largest"] / 2**20, result["together"] / 2**20
        memory = f"; largest process {largest:.0f} MiB, all {together:.0f} MiB"
    print(
        f"{lines:9,} lines, {result['jobs']} job(s): {result['seconds']:6.1f} s wall,"
        f" {result['cpu']:6.1f} s processor, {lines / result['seconds']:8,.0f} lines/s{memory}\n   "
        f"       {rates}",
        flush=True,
    )


def main() -> None:
    args = options()
    everything: list[dict[str, Any]] = []

    def measure(lines: int, paths: list[Path], jobs: int, watch: bool = False) -> None:
        everything.append({"lines": lines, **prep(paths, jobs, folder, watch)})
        show(lines, everything[-1])

    with tempfile.TemporaryDirectory(prefix="nmtkit-benchmark-") as name:
        folder = Path(name)
        paths, words = build(args.pair, args.lines, folder, args.languages)
        for _ in range(args.rounds):
            for jobs in args.jobs:
                wait_for_quiet()
                measure(args.lines, paths, jobs)
        first, last = args.jobs[0], args.jobs[-1]
        seconds = {
            jobs: [r["seconds"] for r in everything if r["jobs"] == jobs] for jobs in (first, last)
        }
        gain = statistics.median(
            one / several for one, several in zip(seconds[first], seconds[last], strict=True)
        )
        print(f"\n{last} workers are {gain:.2f} times as fast as {first} (median of the rounds)")
        for times in args.times:
            longer, longer_words = build(args.pair, args.lines * times, folder, args.languages)
            measure(args.lines * times, longer, last, watch=True)
        # At most all processor time divided by words; at least what further words cost, when
        # start-up is past and most words are known.
        base = statistics.median(
            r["cpu"] for r in everything if r["jobs"] == last and r["lines"] == args.lines
        )
        most = least = base / words
        if longer_words > words:
            least = min(most, (everything[-1]["cpu"] - base) / (longer_words - words))
        print(
            f"{least * 1e6:.1f} to {most * 1e6:.1f} us of processor time a word: WMT14"
            f" English-German on 16 cores {least * WMT14 / 16:.0f} to {most * WMT14 / 16:.0f} s,"
            " and the learning of its merges"
        )
    write_json(args.json, everything)


if __name__ == "__main__":
    main()
