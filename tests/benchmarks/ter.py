"""Measure the processor time of TER's edits with nmtkit's edit distance and with sacreBLEU's.

The two take turns. The output says that all edits are equal, the median seconds of both, and their
ratio.

python tests/benchmarks/ter.py TRANSLATIONS REFERENCES [--lines 500] [--rounds 5]
"""

from __future__ import annotations

import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path

import arguments
from sacrebleu.metrics.lib_ter import translation_edit_rate

from nmtkit import files
from nmtkit.score.edit_distance import fast_edit_distance

Pairs = list[tuple[list[str], list[str]]]


def edits(pairs: Pairs, distance: AbstractContextManager[None]) -> tuple[list[int], float]:
    """Return the number of edits of each line, and the processor seconds of all lines."""
    start = time.process_time()
    with distance:
        counts = [translation_edit_rate(*pair)[0] for pair in pairs]
    return counts, time.process_time() - start


def main() -> None:
    """Measure and print."""
    parser = arguments.parser(__doc__, lines=500, rounds=5)
    parser.add_argument("texts", nargs=2, metavar="TEXT", help="translations, references")
    args = parser.parse_args()
    sides = ((line.split() for line in files.text_lines(Path(path))) for path in args.texts)
    pairs = list(islice(zip(*sides, strict=True), args.lines))
    fast_times, slow_times = list[float](), list[float]()
    for _ in range(args.rounds):
        fast, seconds = edits(pairs, fast_edit_distance())
        slow, slow_seconds = edits(pairs, nullcontext())
        assert fast == slow, "the edits differ"
        fast_times.append(seconds)
        slow_times.append(slow_seconds)
    ratio = statistics.median(b / a for a, b in zip(fast_times, slow_times, strict=True))
    medians = f"nmtkit {statistics.median(fast_times):.2f} s"
    medians += f", sacreBLEU {statistics.median(slow_times):.2f} s"
    print(f"{len(pairs)} lines, equal edits: {medians}: {ratio:.1f}x")


if __name__ == "__main__":
    main()
