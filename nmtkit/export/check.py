"""Whether the other engine translates as nmtkit does: the same lines with both."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nmtkit import console, files
from nmtkit.errors import DataError, NmtkitError
from nmtkit.run import Run
from nmtkit.text.side import TextSide
from nmtkit.translate import workers
from nmtkit.translate.beam import length_limit
from nmtkit.translate.forced import forced_scores, pair_batch
from nmtkit.translate.systems import SystemGroup
from nmtkit.translate.translator import Translator

WARM = 8
"""Lines translated before the clock starts."""
ROWS = 32
"""Pairs scored at once."""
SHOWN = 3
"""Translations shown that differ."""


class Disagreement(NmtkitError):
    """Translations that should be equal and are not."""

    exit_code = 1


@dataclass(frozen=True)
class Checked:
    """What both engines made of the same lines."""

    lines: list[str]
    ours: list[str]
    theirs: list[str]
    equal: list[bool]
    """Whether the subwords are the same."""
    gap: float
    """The largest difference of the log-probabilities that both give to CTranslate2's
    translations.
    """
    seconds: tuple[float, float]
    """Ours, theirs."""
    compute_type: str
    """In which CTranslate2 computed."""

    @property
    def share(self) -> float:
        """Of equal translations."""
        return sum(self.equal) / len(self.equal)


def comparable_lines(run: Run, count: int, longest: int, side: TextSide) -> tuple[str, list[str]]:
    """Return the first lines of the run's first test set (or of dev) that are neither blank nor
    translated in pieces.

    Returns: the set's name, at most `count` lines.
    Raises: DataError if there are none.
    """
    for text_set in [*run.sets("test"), *run.sets("dev")]:
        if run.source(text_set.name).is_file():
            usable = (
                line
                for line in files.text_lines(run.source(text_set.name))
                if line.strip() and len(side.encode(line)) <= longest
            )
            if lines := list(itertools.islice(usable, count)):
                return text_set.name, lines
    raise DataError(
        "this run has no test set to compare translations of",
        where=run.prep,
        hint="leave --check out",
    )


def compare(group: SystemGroup, folder: Path, lines: Sequence[str]) -> Checked:
    """Translate lines with a system and with its exported folder, on one core each.

    Beam and batches are the system's own. There is no length penalty, as its formulas differ, and
    one limit of length for all lines: the largest that nmtkit would have for one of them. nmtkit
    computes in float32.
    """
    import ctranslate2

    own = group.settings
    side = TextSide.load(group.run.prep, "src")
    tokens = [side.encode(line) for line in lines]
    limit = max(length_limit(len(line) + 1, own) for line in tokens)
    without_penalty = {
        "nbest": 1,
        "length_penalty": 0.0,
        "max_length_a": 0.0,
        "max_length_b": limit,
    }
    settings = own.model_copy(update=without_penalty)
    cpu = torch.device("cpu")
    with workers.one_thread(cpu):
        precision = group.hardware(cpu, forced=True).precision
        translator = replace(group, settings=settings).scorer(cpu, precision)
        ours, seconds = _timed(lambda part: list(translator.translate(part)), list(lines))
        engine = ctranslate2.Translator(
            str(folder), device="cpu", compute_type="default", inter_threads=1, intra_threads=1
        )
        options: dict[str, Any] = {
            "beam_size": own.beam,
            "length_penalty": 0,
            "max_decoding_length": limit,
            "max_input_length": 0,
            "min_decoding_length": 0,  # as in nmtkit's search, a translation may be empty
        }
        theirs, their_seconds = _timed(
            lambda part: engine.translate_batch(part, max_batch_size=own.batch_size, **options),
            tokens,
        )
        hypotheses = [list(result.hypotheses[0]) for result in theirs]
        texts = [translator.tgt_side.decode(words) for words in hypotheses]
        scores = _scores(translator, tokens, hypotheses)
        their_scores = [
            sum(result.log_probs)
            for result in engine.score_batch(tokens, hypotheses, max_input_length=0)
        ]
    gap = max(abs(mine - other) for mine, other in zip(scores, their_scores, strict=True))
    equal = [best.subwords == hypothesis for best, hypothesis in zip(ours, hypotheses, strict=True)]
    return Checked(
        list(lines),
        [translation.text for translation in ours],
        texts,
        equal,
        gap,
        (seconds, their_seconds),
        engine.compute_type,
    )


def _scores(
    translator: Translator, sources: Sequence[list[str]], targets: Sequence[list[str]]
) -> list[float]:
    """Log-probabilities that nmtkit gives to subwords, </s> included."""
    src, tgt = (
        [vocabulary.encode(line) for line in of]
        for vocabulary, of in ((translator.src_vocab, sources), (translator.tgt_vocab, targets))
    )
    starts = range(0, len(src), ROWS)
    batches = [pair_batch(src[start : start + ROWS], tgt[start : start + ROWS]) for start in starts]
    return [sum(line) for batch in batches for line in forced_scores(translator.models, batch)]


def _timed(work: Callable[[list[Any]], list[Any]], lines: list[Any]) -> tuple[list[Any], float]:
    """What comes of lines, and the processor seconds it took."""
    work(lines[:WARM])
    start = time.process_time()
    result = work(lines)
    return result, time.process_time() - start


def show(checked: Checked, of: str) -> None:
    """Print it on stdout.

    Args:
        of: the lines, in words.
    """
    count = len(checked.lines)
    rows = [
        [name, f"{count / max(1e-9, seconds):,.1f}"]
        for name, seconds in zip(
            ("nmtkit", f"CTranslate2, {checked.compute_type}"), checked.seconds, strict=True
        )
    ]
    console.print_table(of, ["<engine", "sentences a second of one core"], rows)
    print(f"equal translations: {sum(checked.equal)} of {count} ({checked.share:.1%})")
    print(
        f"log-probabilities of CTranslate2's translations, by both: at most {checked.gap:.2g} apart"
    )
    for number in [i for i, same in enumerate(checked.equal) if not same][:SHOWN]:
        print(
            f"{number + 1}: {checked.lines[number]}\n  nmtkit       {checked.ours[number]}\n "
            f" CTranslate2  {checked.theirs[number]}"
        )
