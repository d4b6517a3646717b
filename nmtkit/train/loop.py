"""The training loop, readable from top to bottom: update, validate, save, until there is a
reason to end.
"""

from __future__ import annotations

import itertools
import signal
import time
from dataclasses import dataclass
from typing import Any

import torch

from nmtkit import console, files
from nmtkit.data.batches import Ids, Pairs
from nmtkit.errors import EnvironmentProblem, Interrupted, NmtkitError, TrainingDiverged
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model
from nmtkit.nn.hardware import Hardware
from nmtkit.records import BestCheckpoint
from nmtkit.run import System
from nmtkit.settings import TrainSettings
from nmtkit.train import guard
from nmtkit.train.gradients import Gradients, autocast_arguments
from nmtkit.train.optimizer import make_optimizer, optimizer_tensors
from nmtkit.train.order import Order
from nmtkit.train.ranks import Ranks
from nmtkit.train.reporting import Reporter, Silent
from nmtkit.train.schedules import Plateau, learning_rate
from nmtkit.train.state import Best, TrainState, Window
from nmtkit.train.validation import Validation, Validator, is_better


@dataclass(frozen=True)
class Ending:
    """Why a training is over: said to the person, with what to change to go on."""

    reason: str
    hint: str


class Trainer:
    """One training of one model.

    Args:
        system: where checkpoints and measurements go.
        settings: budget and optimiser.
        model: on its device, in training mode.
        store: the training set.
        hardware: device and precision.
        state: where to begin.
        about: what a checkpoint's manifest says of the model and its corpus.
        validator: of the development set; None if the run has none.
        ranks: the processes that train together; all are given the same otherwise.
    """

    def __init__(
        self,
        system: System,
        settings: TrainSettings,
        model: Model,
        store: Pairs,
        hardware: Hardware,
        state: TrainState,
        about: dict[str, Any],
        validator: Validator | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.system, self.settings, self.model, self.store = system, settings, model, store
        self.state, self.about, self.validator = state, about, validator
        self.optimizer = make_optimizer(model, settings)
        self.order = Order(store.src_lengths, store.tgt_lengths, settings, state.epoch, state.index)
        self.gradients = Gradients(
            model, store, self.order, settings, autocast_arguments(hardware), state, self.ranks
        )
        self.stop = guard.Stop()
        self.saved = (
            state.step,
            state.validated,
        )  # a training that has done nothing has nothing to save
        self.reporter: Reporter
        self.opening: list[str] = []
        """What train.log begins with: lines that were said before it was open."""
        self._last: tuple[list[Ids], float] = ([], 0.0)

    def run(self) -> Ending:
        """Train until there is a reason to end; everything is saved then.

        Raises: Interrupted when told to stop (all saved); TrainingDiverged; EnvironmentProblem.
        """
        self.reporter = (
            Reporter(self.system, self.state.step, self.ranks.world)
            if self.ranks.first
            else Silent()
        )
        for line in self.opening:
            self.reporter.note(line)
        begun = self.state.step
        try:
            with console.warnings_told_to(self.reporter.note):
                return self._until_an_end(begun)
        except TrainingDiverged as error:
            raise (self._diverged(error) if self.ranks.first else error) from None
        except NmtkitError as error:
            self.reporter.note(error.message)
            raise
        finally:
            self.reporter.close()

    def _until_an_end(self, begun: int) -> Ending:
        """Update, validate, save; all is written to train.log, also why it ends."""
        if self.state.split_from is not None:
            self._say_parts()
        with self.stop.listening():
            while not (told := self.told_to_stop()):
                ending = self.ending()
                if self.validation_due(ending):
                    new_best = self.validate()
                    ending = self.ending()  # a validation may have used up the patience
                    if told := self.told_to_stop():
                        break
                else:
                    new_best = False
                if (
                    new_best
                    or ending
                    or (self.state.step and self.state.step % self.settings.checkpoint_every == 0)
                ):
                    self.save()
                if ending:
                    if self.state.step > begun and self.state.step % self.settings.log_every:
                        self._log(self._last[1], at_the_end=True)
                    self.reporter.say(
                        f"{'' if self.state.step > begun else 'already '}{ending.reason};"
                        f" {ending.hint}"
                    )
                    return ending
                self.update()
            self.save()
        message = f"stopped by {told} after step {self.state.step:,}; everything is saved"
        raise Interrupted(message, where=self.system.path, hint="the same command continues")

    def told_to_stop(self) -> str | None:
        """The signal that asked any of the ranks to stop; the clock of the first, too, becomes
        that of all, so that they decide alike.
        """
        rows = self.ranks.gather([self.stop.number, self.state.seconds])
        self.state.seconds = rows[0][1]
        number = max(int(row[0]) for row in rows)
        return signal.Signals(number).name if number else None

    def ending(self) -> Ending | None:
        """The reason to end, if there is one."""
        state, s = self.state, self.settings
        if state.step >= s.max_steps:
            return Ending(
                f"at step {state.step:,} of {s.max_steps:,}", "raise train.max_steps to go on"
            )
        if s.max_minutes and state.seconds >= 60 * s.max_minutes:
            return Ending(
                f"{s.max_minutes:g} minutes of training done at step {state.step:,}",
                "raise train.max_minutes to go on",
            )
        if s.patience and state.since_best >= s.patience:
            return Ending(
                f"no better for {state.since_best} validations at step {state.step:,}",
                "raise train.patience to go on",
            )
        if s.schedule == "plateau" and s.min_lr and s.lr * state.plateau.factor <= s.min_lr:
            return Ending(
                f"learning rate down to {s.min_lr:g} at step {state.step:,}",
                "lower train.min_lr to go on",
            )
        return None

    # One update

    def update(self) -> None:
        """One step: gradients of all its micro-batches, then Adam; the log now and then."""
        start, cpu = time.monotonic(), time.process_time()
        state, s = self.state, self.settings
        update = self.order.next_update()
        state.step += 1
        state.epoch, state.index = self.order.epoch, self.order.index
        everything, tokens = self.order.tokens(update)
        positions = sum(self.order.positions(rows) for rows in update)
        split_before = state.split_from
        smoothed, nll = self.gradients.compute(update, state.step, tokens)
        if state.split_from != split_before:
            self._say_parts()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        rate = learning_rate(s, self.model.width, state.step, state.plateau)
        smoothed_sum, nll_sum, norm_value = torch.stack(
            [smoothed, nll, norm.double()]
        ).tolist()  # the one wait for the device in a step
        self._last = (update, rate)
        if guard.check_finite(state, smoothed_sum / tokens, norm_value):
            if s.clip_norm:
                torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), s.clip_norm, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self._count(
                Window(
                    1,
                    smoothed_sum,
                    nll_sum,
                    tokens,
                    positions,
                    positions - everything,
                    norm=norm_value,
                )
            )
        self.optimizer.zero_grad(set_to_none=True)
        seconds = time.monotonic() - start
        state.seconds += seconds
        state.log.seconds += seconds
        state.log.cpu += time.process_time() - cpu
        if state.step % s.log_every == 0:
            self._log(rate)

    def _count(self, window: Window) -> None:
        self.state.tokens += window.tokens
        for target in (self.state.log, self.state.loss):
            for name, value in vars(window).items():
                setattr(target, name, getattr(target, name) + value)

    def _log(self, rate: float, at_the_end: bool = False) -> None:
        """Report the updates since the last report; at the end those since are not forgotten, as
        a longer training would not have reported them.
        """
        state, s = self.state, self.settings
        left = [(s.max_steps - state.step) * state.log.seconds / max(1, state.log.steps)]
        if s.max_minutes:
            left.append(60 * s.max_minutes - state.seconds)
        epoch = state.epoch + state.index / self.order.batches
        self.reporter.progress(
            state.step, s.max_steps, epoch, state.log, rate, None if at_the_end else min(left)
        )
        if not at_the_end:
            state.log = Window()

    def probe(self) -> None:
        """Compute the largest batch once, without an update, so that too little memory shows now
        and not after hours.
        """
        self.gradients.compute([self.order.largest()], 0, 1)
        self.optimizer.zero_grad(set_to_none=True)

    def _say_parts(self) -> None:
        self.reporter.say(
            f"memory does not hold a batch of {self.state.split_from:,} positions: batches from"
            " that size on are computed in parts; the update is that of the same pairs, but with"
            " other dropout masks",
            warning=True,
        )

    # Now and then

    def validation_due(self, ending: Ending | None) -> bool:
        """Whether to validate before the next update: every `validate_every` steps, and at the
        end.
        """
        state = self.state
        return state.validated < state.step and (
            ending is not None or state.step % self.settings.validate_every == 0
        )

    def validate(self) -> bool:
        """Measure on the development set, remember the best, and let the schedule see the loss.

        An extra validation at the end of the training is counted neither by the schedule nor by
        patience, for it would not have been there in a longer training.

        Returns: whether this is a new best.
        """
        state, s = self.state, self.settings
        if self.validator is None:
            return False
        regular = state.step % s.validate_every == 0
        measured = self.ranks.first_does(self._measure)
        if measured is None:
            return False
        found = Validation(**measured)
        if state.best is not None and not found.comparable(state.best):
            self.reporter.say(
                "the development set, or how BLEU is measured on it, has changed: the best is"
                " sought anew",
                warning=True,
            )
            state.best, state.since_best = None, 0
            if s.plateau_on == "dev_loss":
                state.plateau = Plateau(factor=state.plateau.factor)
        state.validated = state.step
        train_loss = state.loss.smoothed / max(1, state.loss.tokens)
        if regular:
            state.loss = Window()
            observed = train_loss if s.plateau_on == "train_loss" else found.loss
            if s.schedule == "plateau" and state.plateau.observe(observed, s):
                self.reporter.say(
                    f"{s.plateau_on} no longer falls: learning rate factor now"
                    f" {state.plateau.factor:g}"
                )
        new_best = is_better(found, state.best, s.best_by)
        if new_best:
            state.best, state.since_best = (
                Best(state.step, found.loss, found.bleu, found.dev_set, found.signature),
                0,
            )
        else:
            state.since_best += regular
        self.reporter.record("dev", state.step, found.values())
        self.reporter.say(
            f"step {state.step:,}: {found.describe()}{', the best so far' if new_best else ''}"
        )
        for source, reference, translation in found.samples:
            self.reporter.say(f"  source      {source}")
            self.reporter.say(f"  reference   {reference}")
            self.reporter.say(f"  translation {translation}")
        return new_best

    def _measure(self) -> dict[str, Any] | None:
        """The validation as plain values; None if it was broken off."""
        assert self.validator is not None
        try:
            return vars(self.validator.validate(self.model, self.stop, self.reporter))
        except guard.Abandoned:
            return None

    def save(self) -> None:
        """Write a checkpoint, unless this moment has one."""
        if self.saved != (self.state.step, self.state.validated):
            self.ranks.first_does(self._write)
            self.saved = (self.state.step, self.state.validated)

    def _write(self) -> None:
        """Write a checkpoint; when the disk refuses, again after removing our own leftovers:
        once if it is full, else for a minute.
        """
        folder = self.system.checkpoints
        weights, moments = (
            loading.weights_of(self.model),
            optimizer_tensors(self.model, self.optimizer),
        )
        for attempt in itertools.count():
            try:
                checkpoints.save(
                    folder, self.state.step, weights, moments, self.state.values(), self.about
                )
                break
            except EnvironmentProblem as error:
                pauses = guard.pauses(error)
                if attempt >= len(pauses):
                    raise
                pause = pauses[attempt]
                self.reporter.say(
                    f"{error.message}; trying once more{f' in {pause} s' if pause else ''}",
                    warning=True,
                )
                time.sleep(pause)
                checkpoints.clean(folder)
        write_best(self.system, self.state, self.settings)
        # Later ones are damaged ones that resuming passed over: they neither count as kept nor are
        # removed unseen.
        later = [
            path
            for path in checkpoints.candidates(folder)
            if checkpoints.step_of(path) > self.state.step
        ]
        regular = [
            path
            for path in checkpoints.regular(folder, self.settings.checkpoint_every)
            if path not in later
        ]
        kept = {path.name for path in [*regular[-self.settings.keep_checkpoints :], *later]}
        newest_and_best = [self.state.step, *([self.state.best.step] if self.state.best else [])]
        checkpoints.prune(folder, kept | {f"step-{step:08d}" for step in newest_and_best})

    def _diverged(self, error: TrainingDiverged) -> TrainingDiverged:
        """The error with all that helps to find its cause, which is also written to
        diverged.json.
        """
        update, rate = self._last
        with guard.finding_first_bad(self.model) as bad:
            self.gradients.add(list(enumerate(self.gradients.parts(update))), self.state.step, 1)
        module = (
            f"output of {bad[0]}" if bad else guard.bad_weights_or_gradients(self.model) or "loss"
        )
        valid = checkpoints.find_checkpoints(self.system)
        report = {
            "step": self.state.step,
            "first_not_finite": module,
            "lr": rate,
            "rows": [rows.tolist() for rows in update],
            "gradient_norms_before": self.state.norms,
            "skipped": self.state.skipped,
            "last_checkpoint": valid[-1].name if valid else None,
        }
        files.write_json(self.system.path / "diverged.json", report)
        last = (
            f"the last good checkpoint is {valid[-1].name}"
            if valid
            else "there is no checkpoint yet"
        )
        return TrainingDiverged(
            f"{error.message}; first not finite: {module}",
            where=(
                f"{self.system.path / 'diverged.json'} (batch rows, learning rate {rate:.3g},"
                " gradient norms)"
            ),
            hint=f"lower train.lr or set train.clip_norm=1, with --force to begin anew; {last}",
        )


def write_best(system: System, state: TrainState, settings: TrainSettings) -> None:
    """Write best.json, which names the best checkpoint."""
    if state.best is None:
        return
    best = state.best
    by = "dev_bleu" if settings.best_by == "dev_bleu" and best.dev_bleu is not None else "dev_loss"
    named = f"step-{best.step:08d}"
    BestCheckpoint(
        step=best.step, checkpoint=named, metric=by, dev_loss=best.dev_loss, dev_bleu=best.dev_bleu
    ).write(system.path / "best.json")
