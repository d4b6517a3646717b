"""After a validation: update best checkpoint, early stopping and plateau schedule, and report."""

from __future__ import annotations

import math

from nmtkit import console
from nmtkit.errors import TrainingDiverged
from nmtkit.settings import TrainSettings
from nmtkit.train.reporting import Reporter
from nmtkit.train.schedule import Plateau
from nmtkit.train.state import Best, TrainState, Window
from nmtkit.train.validation import Validation


def after_validation(
    measured: Validation, state: TrainState, settings: TrainSettings, reporter: Reporter
) -> bool:
    """Report a validation, and update the state: best checkpoint, patience, plateau schedule.

    Neither the plateau schedule nor patience counts an extra validation at the end of the training,
    because a longer training would not have had it.

    Returns: True if this is a new best.
    Raises: TrainingDiverged if the loss is not finite.
    """
    s = settings
    if state.best is not None and not measured.comparable(state.best):
        _forget_best(state, s)
    state.validated = state.step
    regular = state.step % s.validate_every == 0
    by = s.best_by if s.dev_bleu else "dev_loss"
    new_best = is_better(measured, state.best, by)
    if regular:
        _update_plateau(measured, state, s, reporter)
        state.since_best = 0 if new_best else state.since_best + 1
    if new_best:
        state.best = Best(
            state.step, measured.loss, measured.bleu, measured.dev_set, measured.signature
        )
    _report(measured, state.step, new_best, reporter)
    if not math.isfinite(measured.loss):
        raise TrainingDiverged(f"the dev loss is not finite at step {state.step}")
    return new_best


def is_better(new: Validation, best: Best | None, by: str) -> bool:
    """True if a validation is a new best.

    With `by` = dev_bleu, BLEU decides. A validation without BLEU is then worse than one with BLEU,
    and the loss decides between equal ones. With `by` = dev_loss, the loss decides.
    """
    if not math.isfinite(new.loss):
        return False
    if best is None:
        return True
    both = (new.bleu, new.loss), (best.dev_bleu, best.dev_loss)
    ours, theirs = (
        (bleu if by == "dev_bleu" and bleu is not None else -1, -loss) for bleu, loss in both
    )
    return ours > theirs


def _forget_best(state: TrainState, settings: TrainSettings) -> None:
    console.warn(
        "the development set, or how BLEU is measured on it, has changed: earlier validations"
        " no longer count for the best checkpoint"
    )
    state.best, state.since_best = None, 0
    if settings.plateau_on == "dev_loss":
        state.plateau = Plateau(factor=state.plateau.factor)


def _update_plateau(
    measured: Validation, state: TrainState, settings: TrainSettings, reporter: Reporter
) -> None:
    s = settings
    train_loss = state.loss.smoothed / max(1, state.loss.tokens)
    state.loss = Window()
    loss = train_loss if s.plateau_on == "train_loss" else measured.loss
    if s.schedule == "plateau" and state.plateau.observe(loss, s):
        reporter.say(
            f"{s.plateau_on} no longer falls: learning rate factor now {state.plateau.factor:g}"
        )


def _report(measured: Validation, step: int, new_best: bool, reporter: Reporter) -> None:
    best = ", the best so far" if new_best else ""
    reporter.record("dev", step, measured.values())
    reporter.say(*(f"step {step:,}: {text}{best}" for text in measured.describe()))
    reporter.samples(step, measured.samples)
