"""Rows that a search computes for sentences that are already over, and what refilling would save.

python tests/benchmarks/search_waste.py --run RUN --system NAME [--text FILE] [--beam 5 1]

A step computes the rows of all sentences that are in a batch. A sentence that is over leaves the
batch at a look, and not before enough rows leave with it (`beam._stay`). Refilling would give its
rows to a sentence that waits. The lines are translated once on the CPU to learn after how many
steps each sentence is over. The rest is counting, for a look after every step (CPU) and after
every eighth (GPU). Printed, of all rows times steps: the share that refilling saves; and the steps
of all batches, which is what a small model on a GPU takes time for, now and with refilling.
"""

from __future__ import annotations

import argparse
import heapq
from pathlib import Path

import torch

from nmtkit import files
from nmtkit.run import Run
from nmtkit.translate import beam
from nmtkit.translate.systems import SystemGroup
from nmtkit.translate.translator import Translator


def lifetimes(translator: Translator, lines: list[str]) -> list[list[int]]:
    """Return for each sentence of each batch the steps until it is over."""
    batches: list[list[int]] = []
    look = beam.Beams.look

    def watched(self: beam.Beams) -> list[bool]:
        if self.step == 1:
            batches.append([1] * len(self.sentences))
        going = look(self)
        for sentence, goes in zip(self.sentences, going, strict=True):
            batches[-1][sentence] += goes
        return going

    beam.Beams.look = watched  # type: ignore[method-assign]
    for _ in translator.translate(lines):
        pass
    return batches


def dropping(lives: list[int], every: int) -> tuple[int, int]:
    """Return the rows times steps, and the steps, of a batch as it is searched now."""
    steps = row_steps = 0
    while any(life > steps for life in lives):
        row_steps += len(lives) * every
        steps += every
        going = [life > steps for life in lives]
        lives = [lives[i] for i in beam._stay(going)] if any(going) else []
    return row_steps, steps


def refilling(lives: list[int], rows: int, every: int) -> tuple[int, int]:
    """Return the same for all sentences if each takes the place of one that is over."""
    whole = [-(-life // every) * every for life in lives]
    ends = [0] * rows
    for life in whole:
        heapq.heapreplace(ends, ends[0] + life)
    return sum(whole), max(ends)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--system", required=True)
    parser.add_argument("--text", type=Path, help="source lines; default: the first test set")
    parser.add_argument("--beam", type=int, nargs="*", default=[5, 1])
    given = parser.parse_args()
    torch.set_num_threads(1)
    run = Run(given.run)
    text = given.text or min(path for path in (run.prep / "text").glob("test*.src"))
    lines = list(files.text_lines(text))
    device = torch.device("cpu")
    print("| beam | look every | batches | saved rows | steps now | steps refilled |")
    print("| --- | --- | --- | --- | --- | --- |")
    for width in given.beam:
        system = run.system(given.system)
        settings = system.searching().model_copy(update={"beam": width})
        group = SystemGroup(run, [system], settings)
        models = group.load(device, group.hardware(device).precision)
        translator = Translator.for_corpus(run.prep, models, settings, device)
        batches = lifetimes(translator, lines)
        for every in (1, beam.LOOK):
            now = [sum(x) for x in zip(*(dropping(b, every) for b in batches), strict=True)]
            waiting = [life for batch in batches for life in batch]
            filled = refilling(waiting, settings.batch_size, every)
            saved = f"{1 - filled[0] / now[0]:.1%}"
            print(f"| {width} | {every} | {len(batches)} | {saved} | {now[1]} | {filled[1]} |")


if __name__ == "__main__":
    main()
