"""Train for an hour (or N minutes) and print memory: resident, in use by the C heap, and the growth
of resident memory after the first fifth of the time.

python -m tests.soak.memory [--minutes 60] [--variant transformer] [--every 10]
    [--run RUN --set KEY=VALUE …]
"""

import argparse
import ctypes
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch

from nmtkit import console, environment
from nmtkit.run import Run
from nmtkit.train import loop
from nmtkit.train.stage import train
from tests.train.tiny import make_run, options

# Everything a training does, often: epochs, validation with decoding, checkpoints, pruning, log
# lines.
SETTINGS = options(
    "train.max_steps=1000000000",
    "train.batch_size=256",
    "train.validate_every=500",
    "train.checkpoint_every=250",
    "train.log_every=100",
    "train.keep_checkpoints=2",
    "train.lr=0.001",
    "train.schedule=noam",
    "train.warmup=100",
)


def resident() -> int:
    """Bytes of this process in memory now."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class HeapFacts(ctypes.Structure):
    """struct mallinfo2 of glibc: bytes, over all arenas."""

    NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]


def in_use() -> int:
    """Bytes of the C heap that are allocated now, blocks of their own (mmap) included."""
    read = ctypes.CDLL(None).mallinfo2
    read.restype = HeapFacts
    facts = read()
    return int(facts.uordblks + facts.hblkhd)


def mib(size: int) -> float:
    return round(size / 2**20, 1)


def show(**values: object) -> None:
    print(json.dumps(values), flush=True)


def growth(readings: list[tuple[float, int]], begin: float = 0.2) -> float:
    """The growth of memory in MiB from a fraction of the time to its end, by a straight line
    through the readings, as single readings jump.
    """
    start = readings[0][0] + begin * (readings[-1][0] - readings[0][0])
    kept = [(t, memory / 2**20) for t, memory in readings if t >= start]
    mean_t, mean_m = (sum(column) / len(kept) for column in zip(*kept, strict=True))
    spread = sum((t - mean_t) ** 2 for t, _ in kept)
    slope = sum((t - mean_t) * (m - mean_m) for t, m in kept) / spread if spread else 0.0
    return slope * (kept[-1][0] - kept[0][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--variant", default="transformer")
    parser.add_argument("--every", type=float, default=10, help="seconds between two readings")
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--run", type=Path, help="a prepared run; its corpus is copied")
    parser.add_argument("--set", action="append", default=[], help="instead of the settings here")
    chosen = parser.parse_args()
    environment.prepare()  # as `nmtkit train` does
    environment.restart_without_small_caches()
    torch.set_num_threads(1)
    console.set_quiet(True)
    start = time.monotonic()
    readings: list[tuple[float, int]] = []
    steps, original = [0], loop.Trainer.update

    def update(self: loop.Trainer) -> None:
        original(self)
        steps[0] = self.state.step
        now = time.monotonic() - start
        if not readings or now >= readings[-1][0] + chosen.every:
            readings.append((now, resident()))
            facts = {"resident_mib": mib(readings[-1][1]), "in_use_mib": mib(in_use())}
            show(seconds=round(now), step=steps[0], **facts)

    loop.Trainer.update = update  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        if chosen.run is None:
            run = make_run(Path(folder) / "run", pairs=chosen.pairs, dev=40)
        else:
            without = shutil.ignore_patterns("systems")
            run = Run(shutil.copytree(chosen.run, Path(folder) / "run", ignore=without))
        # max_minutes counts updates alone; the rest (validation, checkpoints) is watched too.
        end = time.monotonic() + 60 * chosen.minutes
        ending = loop.reason_to_end
        loop.reason_to_end = lambda state, s: (
            "the time is up" if time.monotonic() > end else ending(state, s)
        )
        endless = ["train.max_steps=1000000000"]
        given = [*chosen.set, *endless] if chosen.set else SETTINGS
        train(run, variant=chosen.variant, assignments=given)
    grown = growth(readings)
    fifth = next(memory for t, memory in readings if t >= 0.2 * readings[-1][0])
    show(
        minutes=round(readings[-1][0] / 60, 1),
        steps=steps[0],
        resident_mib_first_fifth_last=[*map(mib, (readings[0][1], fifth, readings[-1][1]))],
        growth_mib_after_first_fifth=round(grown, 2),
        growth_mib_per_1000_steps=round(grown / max(1, 0.8 * steps[0]) * 1000, 4),
    )


if __name__ == "__main__":
    main()
