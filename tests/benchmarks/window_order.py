"""Measure the time and memory that a rank needs to open a training set of 100 million pairs and to
begin an epoch, and the padding of the batches.

The set is synthetic: only its lengths are written (target lengths from a gamma distribution with a
mean of 27 subwords, sources of 0.6 to 1.6 times the target), and the files of ids are sparse. A new
process opens the set and batches windows. It prints processor seconds and the growth of resident
memory since the imports. The exit code is 1 above a limit: 1 second to open, 2 seconds for a
window, 500 MB, 4 % padding.

python tests/benchmarks/window_order.py FOLDER [--pairs 100_000_000] [--shards 500] [--windows 5]
    [--batch-size 25000]
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from pathlib import Path

import arguments
import numpy as np

from nmtkit.data import order
from nmtkit.data.ragged import ragged_files
from nmtkit.data.store import MAGIC, Store, shard_path
from nmtkit.settings import TrainSettings, build
from nmtkit.train.updates import Updates

LIMITS = {"open": 1.0, "window": 2.0, "MB": 500, "padding": 0.04}


def write_lengths(folder: Path, shard: int, pairs: int) -> None:
    """Write a shard with real lengths and a sparse file of ids."""
    draw = np.random.default_rng(shard)
    tgt = np.clip(draw.gamma(2.2, 12, pairs), 1, 150).astype(np.int64) + 1
    src = np.clip(np.round(tgt * draw.lognormal(0, 0.25, pairs)), 1, 150).astype(np.int64) + 1
    offsets = np.cumsum(np.stack([src, tgt], 1).ravel(), dtype="<i8")
    data, index = ragged_files(shard_path(folder, shard))
    header = MAGIC + (2).to_bytes(8, "little") + (32_000).to_bytes(8, "little")
    index.write_bytes(header + bytes(8) + offsets.tobytes())
    with open(data, "wb") as stream:
        stream.truncate(2 * int(offsets[-1]))


def memory() -> float:
    """Return the peak memory of this process in MB, including file pages."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measure(folder: Path, windows: int, batch_size: int) -> None:
    """Open the set, begin windows and print the table; called in a new process."""
    settings = build(TrainSettings, {"batch_size": batch_size}, "train")
    imports, start = memory(), time.process_time()
    store = Store(folder)
    opened = time.process_time() - start
    print(f"{len(store):,} pairs in {len(store.shard_sizes):,} shards")
    print(f"open: {opened:.3f} s, {memory() - imports:.1f} MB")
    shards = order.epoch_windows(store.shard_sizes, settings.seed, 0)
    print(f"{len(shards)} windows of {min(map(len, shards))} to {max(map(len, shards))} shards")
    print("| window | pairs | seconds | padding | batches | MB so far |")
    print("|---|---|---|---|---|---|")
    seconds, paddings = [], []
    for window in range(min(windows, len(shards))):
        start = time.process_time()
        batches = Updates(store, settings, 0, window).batches
        seconds.append(time.process_time() - start)
        positions = sum(map(batches.positions, range(len(batches))))
        real = int(batches.src_lengths.sum() + batches.tgt_lengths.sum())
        paddings.append(1 - real / positions)
        cells = (window, f"{len(batches.rows):,}", f"{seconds[-1]:.2f}", f"{paddings[-1]:.2%}")
        print("|", " | ".join(map(str, (*cells, len(batches), round(memory() - imports)))), "|")
        del batches
    start = time.process_time()
    rows = np.random.default_rng(1).integers(0, len(store), 10_000)
    for pair in np.sort(rows).tolist():
        store.src(pair)
    print(f"reading a source: {1e6 * (time.process_time() - start) / len(rows):.1f} µs")
    measured = {
        "open": opened,
        "window": max(seconds),
        "MB": memory() - imports,
        "padding": max(paddings),
    }
    above = [key for key, limit in LIMITS.items() if measured[key] > limit]
    sys.exit(f"above the limit: {', '.join(above)}" if above else 0)


def main() -> None:
    parser = arguments.parser(__doc__, pairs=100_000_000, shards=500)
    parser.add_argument("folder", type=Path, help="of the synthetic set; written if it is missing")
    parser.add_argument("--windows", type=int, default=5, help="windows that are measured")
    parser.add_argument("--batch-size", type=int, default=25_000, help="target tokens of a batch")
    args = parser.parse_args()
    if not args.folder.exists():
        args.folder.mkdir(parents=True)
        for shard in range(args.shards):
            write_lengths(args.folder, shard, args.pairs // args.shards)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=measure, args=(args.folder, args.windows, args.batch_size))
    process.start()
    process.join()
    sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
