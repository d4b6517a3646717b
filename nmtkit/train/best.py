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
        console.warn(
            "the development set, or how BLEU is measured on it, has changed: earlier validations"
            " no longer count for the best checkpoint"
        )
        state.best, state.since_best = None, 0
        if s.plateau_on == "dev_loss":
            state.plateau = Plateau(factor=state.plateau.factor)
    state.validated = state.step
    new_best = is_better(measured, state.best, s.best_by if s.dev_bleu else "dev_loss")
    if state.step % s.validate_every == 0:
        state.since_best = 0 if new_best else state.since_best + 1
        train_loss = state.loss.smoothed / max(1, state.loss.tokens)
        state.loss = Window()
        loss = train_loss if s.plateau_on == "train_loss" else measured.loss
        if s.schedule == "plateau" and state.plateau.observe(loss, s):
            factor = state.plateau.factor
            reporter.say(f"{s.plateau_on} no longer falls: learning rate factor now {factor:g}")
    if new_best:
        state.best = Best(
            state.step, measured.loss, measured.bleu, measured.dev_set, measured.signature
        )
    reporter.record("dev", state.step, measured.values())
    ending = ", the best so far" if new_best else ""
    reporter.say(*(f"step {state.step:,}: {text}{ending}" for text in measured.describe()))
    reporter.samples(state.step, measured.samples)
    if not math.isfinite(measured.loss):
        raise TrainingDiverged(f"the dev loss is not finite at step {state.step}")
    return new_best


def is_better(new: Validation, best: Best | None, by: str) -> bool:
    """True if a validation is a new best.

    With `by` = dev_bleu, BLEU decides. A validation without BLEU is then worse than one with BLEU,
    and the loss decides between equal ones. With `by` = dev_loss, the loss decides.
    """
    if not math.isfinite(new.loss) or best is None:
        return math.isfinite(new.loss)
    if by == "dev_bleu" and new.bleu != best.dev_bleu:
        return new.bleu is not None and (best.dev_bleu is None or new.bleu > best.dev_bleu)
    return new.loss < best.dev_loss
