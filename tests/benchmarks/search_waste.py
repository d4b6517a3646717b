"""Count the steps of a search and the rows of all steps, in two forms: each batch is searched until
its last sentence ends, or the last sentences of all batches are searched together
(`Searcher._search_pieces`).

python tests/benchmarks/search_waste.py --run RUN --system NAME [--text FILE] [--beam 5 1]

The time of a small model grows with the steps, and the time of a large one with the rows. The CPU
translates the lines twice: as usual on a CPU, and as on a GPU (batches of 512, a look at the
hypotheses after every eighth step).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

from nmtkit import files
from nmtkit.run import Run
from nmtkit.translate import beam, searcher, steps
from nmtkit.translate.systems import SystemGroup
from nmtkit.translate.translator import Translator


def count_steps(translator: Translator, lines: list[str]) -> tuple[int, int]:
    """Translate the lines, and return the steps and the rows of all steps."""
    rows: list[int] = []
    step = steps.Decoders.step

    def watched(
        self: steps.Decoders, last: torch.Tensor, pick: steps.Pick
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows.append(len(last))
        return step(self, last, pick)

    steps.Decoders.step = watched  # type: ignore[method-assign]
    translator.translate_window(lines)
    steps.Decoders.step = step  # type: ignore[method-assign]
    return len(rows), sum(rows)


def as_on_a_gpu() -> None:
    """Make a search on the CPU look at hypotheses and leave sentences as on a GPU."""
    looks = property(lambda self: self.step % beam.LOOK == 0 or self.step >= self.longest)
    beam.Beams.looks = looks  # type: ignore[assignment, method-assign]
    searcher.LEFT_HYPOTHESES = 1 << 30


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--system", required=True)
    parser.add_argument("--text", type=Path, help="source lines; default: the first test set")
    parser.add_argument("--beam", type=int, nargs="*", default=[5, 1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = Run(args.run)
    text = args.text or min((run.prep / "text").glob("test*.src"))
    lines = list(files.text_lines(text))
    print("| as on a | beam | steps alone | steps together | rows alone | rows together |")
    print("| --- | --- | --- | --- | --- | --- |")
    enough = searcher.BATCHES_TO_LEAVE_FROM
    for device, size in (("CPU", searcher.AT_ONCE), ("GPU", searcher.AT_ONCE_ON_A_GPU)):
        if device == "GPU":
            as_on_a_gpu()
        for width in args.beam:
            system = run.system(args.system)
            settings = system.searching().model_copy(update={"beam": width, "batch_size": size})
            group = SystemGroup(run, [system], settings)
            models = group.load(torch.device("cpu"), group.hardware(torch.device("cpu")).precision)
            figures = []
            for searcher.BATCHES_TO_LEAVE_FROM in (math.inf, enough):  # type: ignore[assignment]
                translator = Translator.for_corpus(run.prep, models, settings)
                figures.append(count_steps(translator, lines))
            (steps_alone, rows_alone), (steps_together, rows_together) = figures
            print(
                f"| {device} | {width} | {steps_alone:,} | {steps_together:,} | {rows_alone:,}"
                f" | {rows_together:,} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
