"""Train for N minutes and print the memory: resident, in use by the C heap, and the growth of
resident memory after the first fifth of the time.

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

import numpy as np
import torch

from nmtkit import console, environment
from nmtkit.run import Run
from nmtkit.train import loop
from nmtkit.train.stage import train
from tests.train.tiny import make_run, options

# Epochs, validations with decoding, checkpoints, pruning and log lines: all of them often.
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
    """Return the bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class HeapFacts(ctypes.Structure):
    """struct mallinfo2 of glibc: bytes, over all arenas."""

    NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]


def in_use() -> int:
    """Return the allocated bytes of the C heap, with the blocks that it got by mmap."""
    read = ctypes.CDLL(None).mallinfo2
    read.restype = HeapFacts
    facts = read()
    return int(facts.uordblks + facts.hblkhd)


def mib(size: int) -> float:
    return round(size / 2**20, 1)


def show(**values: object) -> None:
    print(json.dumps(values), flush=True)


def growth(readings: list[tuple[float, int]], begin: float = 0.2) -> float:
    """Return the growth of memory in MiB from a fraction of the time to its end.

    It is that of a line fitted to the readings (least squares), because single readings jump.
    """
    start = readings[0][0] + begin * (readings[-1][0] - readings[0][0])
    late = np.array([(t, memory / 2**20) for t, memory in readings if t >= start])
    slope = np.polyfit(*late.T, 1)[0] if len(late) > 1 else 0.0
    return float(slope * (late[-1, 0] - late[0, 0]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--variant", default="transformer")
    parser.add_argument("--every", type=float, default=10, help="seconds between two readings")
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--run", type=Path, help="a prepared run; its corpus is copied")
    parser.add_argument("--set", action="append", default=[], help="instead of the settings here")
    return parser.parse_args()


class Readings:
    """Read the memory every few seconds of a training, and end the training in time."""

    def __init__(self, every: float, minutes: float) -> None:
        self.memory: list[tuple[float, int]] = []
        self.steps = 0
        self._every, self._start = every, time.monotonic()
        self._seconds = 60 * minutes
        update, reason_to_end = loop.Trainer.update, loop.reason_to_end

        def update_and_read(trainer: loop.Trainer) -> None:
            update(trainer)
            self.steps = trainer.state.step
            self._read()

        def time_is_up(state, settings) -> str | None:
            # train.max_minutes would count updates alone, not validations and checkpoints.
            over = time.monotonic() > self._start + self._seconds
            return "the time is up" if over else reason_to_end(state, settings)

        loop.Trainer.update = update_and_read  # type: ignore[method-assign]
        loop.reason_to_end = time_is_up

    def _read(self) -> None:
        now = time.monotonic() - self._start
        if not self.memory or now >= self.memory[-1][0] + self._every:
            self.memory.append((now, resident()))
            facts = {"resident_mib": mib(self.memory[-1][1]), "in_use_mib": mib(in_use())}
            show(seconds=round(now), step=self.steps, **facts)

    def summarize(self) -> None:
        """Print the growth."""
        grown, (end, last) = growth(self.memory), self.memory[-1]
        fifth = next(memory for t, memory in self.memory if t >= 0.2 * end)
        show(
            minutes=round(end / 60, 1),
            steps=self.steps,
            resident_mib_first_fifth_last=[*map(mib, (self.memory[0][1], fifth, last))],
            growth_mib_after_first_fifth=round(grown, 2),
            growth_mib_per_1000_steps=round(grown / max(1, 0.8 * self.steps) * 1000, 4),
        )


def main() -> None:
    chosen = arguments()
    environment.prepare()  # as `nmtkit train` does
    environment.restart_without_small_caches()
    torch.set_num_threads(1)
    console.set_quiet(True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        if chosen.run is None:
            run = make_run(path, pairs=chosen.pairs, dev=40)
        else:
            without = shutil.ignore_patterns("systems")
            run = Run(shutil.copytree(chosen.run, path, ignore=without))
        endless = ["train.max_steps=1000000000"]
        assignments = [*chosen.set, *endless] if chosen.set else SETTINGS
        readings = Readings(chosen.every, chosen.minutes)
        train(run, variant=chosen.variant, assignments=assignments)
    readings.summarize()


if __name__ == "__main__":
    main()
