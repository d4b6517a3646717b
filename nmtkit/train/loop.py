"""The training loop, readable from top to bottom: update, validate, save, until there is a reason to end."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nmtkit import console, files
from nmtkit.data.batches import Ids, Pairs, collate
from nmtkit.errors import EnvironmentProblem, Interrupted, TrainingDiverged
from nmtkit.models import checkpoints
from nmtkit.models.base import Model
from nmtkit.nn.dropout import seed_dropout
from nmtkit.nn.hardware import Hardware
from nmtkit.run import System
from nmtkit.settings import TrainSettings
from nmtkit.train import guard
from nmtkit.train import loss as losses
from nmtkit.train.optimizer import make_optimizer, optimizer_tensors
from nmtkit.train.order import Order
from nmtkit.train.reporting import Reporter
from nmtkit.train.schedules import learning_rate
from nmtkit.train.state import Best, TrainState, Window
from nmtkit.train.validation import Validator, is_better


@dataclass(frozen=True)
class Ending:
    """Why a training is over: said to the person, with what to change to go on."""

    reason: str
    hint: str


def autocast_arguments(hardware: Hardware) -> dict[str, Any]:
    """The arguments of torch.autocast for the precision chosen."""
    return {"device_type": hardware.device, "dtype": torch.bfloat16, "enabled": hardware.precision == "bfloat16"}


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
    ) -> None:
        self.system, self.settings, self.model, self.store = system, settings, model, store
        self.state, self.about, self.validator = state, about, validator
        self.optimizer = make_optimizer(model, settings)
        self.order = Order(store.src_lengths, store.tgt_lengths, settings, state.epoch, state.index)
        self.device = next(model.parameters()).device
        self.autocast = autocast_arguments(hardware)
        self.chunk = losses.chunk_rows(model.vocabularies.tgt, self.device.type)
        self.stop = guard.Stop()
        self.saved = (state.step, state.validated)  # a training that has done nothing has nothing to save
        self.limit = math.inf  # positions of a batch that memory was found not to hold
        self.reporter: Reporter

    def run(self) -> Ending:
        """Train until there is a reason to end; everything is saved then.

        Raises: Interrupted when told to stop (all saved); TrainingDiverged; EnvironmentProblem.
        """
        self.reporter = Reporter(self.system, self.state.step)
        begun = self.state.step
        try:
            with self.stop.listening():
                while not self.stop.requested:
                    ending = self.ending()
                    new_best = self.validate() if self.validation_due(ending) else False
                    ending = self.ending()  # a validation may have used up the patience
                    if self.stop.requested:
                        break
                    if new_best or ending or (self.state.step and self.state.step % self.settings.checkpoint_every == 0):
                        self.save()
                    if ending:
                        self.reporter.say(f"{'' if self.state.step > begun else 'already '}{ending.reason}; {ending.hint}")
                        return ending
                    self.update()
                self.save()
            message = f"stopped by {self.stop.requested} after step {self.state.step:,}; everything is saved"
            raise Interrupted(message, where=self.system.path, hint="the same command continues")
        except TrainingDiverged as error:
            raise self._diverged(error) from None
        finally:
            self.reporter.close()

    def ending(self) -> Ending | None:
        """The reason to end, if there is one."""
        state, s = self.state, self.settings
        if state.step >= s.max_steps:
            return Ending(f"at step {state.step:,} of {s.max_steps:,}", "raise train.max_steps to go on")
        if s.max_minutes and state.seconds >= 60 * s.max_minutes:
            return Ending(f"{s.max_minutes:g} minutes of training done at step {state.step:,}", "raise train.max_minutes to go on")
        if s.patience and state.since_best >= s.patience:
            return Ending(f"no better for {state.since_best} validations at step {state.step:,}", "raise train.patience to go on")
        if s.schedule == "plateau" and s.min_lr and s.lr * state.plateau.factor <= s.min_lr:
            return Ending(f"learning rate down to {s.min_lr:g} at step {state.step:,}", "lower train.min_lr to go on")
        return None

    # One update

    def update(self) -> None:
        """One step: gradients of all its micro-batches, then Adam; the log now and then."""
        start = time.monotonic()
        state, s = self.state, self.settings
        update = self.order.next_update()
        state.step += 1
        state.epoch, state.index = self.order.epoch, self.order.index
        everything, tokens = self.order.tokens(update)
        positions = sum(self.order.positions(rows) for rows in update)
        smoothed, nll = self._gradients(update, tokens)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        rate = learning_rate(s, self.model.width, state.step, state.plateau)
        smoothed_sum, nll_sum, norm_value = torch.stack([smoothed, nll, norm.double()]).tolist()  # the one wait for the device in a step
        self._last = (update, rate)
        if guard.check_finite(state, smoothed_sum / tokens, norm_value):
            if s.clip_norm:
                torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), s.clip_norm, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self._count(Window(1, smoothed_sum, nll_sum, tokens, positions, positions - everything, 0.0, norm_value))
        self.optimizer.zero_grad(set_to_none=True)
        seconds = time.monotonic() - start
        state.seconds += seconds
        state.log.seconds += seconds
        if state.step % s.log_every == 0:
            self._log(rate)

    def _gradients(self, update: list[Ids], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of the loss per target token of the whole update; when memory does not suffice, again in smaller parts.

        Returns: sums of the smoothed loss and of the negative log-likelihood.
        """
        while True:
            parts = [part for rows in update for part in self._parts(rows)]
            try:
                sums = [self._backward(rows, micro, tokens) for micro, rows in enumerate(parts)]
                return torch.stack([x.smoothed for x in sums]).sum(), torch.stack([x.nll for x in sums]).sum()
            except (RuntimeError, MemoryError) as error:
                if not guard.is_out_of_memory(error):
                    raise
                self.limit = self._lower_limit(max(parts, key=self.order.positions))
            self.optimizer.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _backward(self, rows: Ids, micro: int, tokens: int) -> losses.Loss:
        seed_everything(self.settings.seed, self.state.step, micro)
        batch = collate(self.store, rows, self.device)
        assert batch.tgt_in is not None
        with torch.autocast(**self.autocast):
            hidden, _ = self.model.decode(batch.tgt_in, self.model.encode(batch))
        return losses.backward(self._logits, hidden, batch, self.settings.label_smoothing, 1 / tokens, self.chunk)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(**self.autocast):
            return self.model.logits(hidden)

    def _parts(self, rows: Ids) -> list[Ids]:
        """A batch as it is, or in parts that memory holds."""
        if self.order.positions(rows) < self.limit or len(rows) == 1:
            return [rows]
        half = len(rows) // 2
        return self._parts(rows[:half]) + self._parts(rows[half:])

    def _lower_limit(self, rows: Ids) -> float:
        positions = self.order.positions(rows)
        if len(rows) == 1:
            raise EnvironmentProblem(
                f"out of memory on a single sentence pair of {positions} positions (line {int(rows[0]) + 1} of the training set)",
                hint="a smaller model, or prepare with a lower prep.max_subwords",
            )
        console.warn(f"out of memory on a batch of {positions:,} positions: from now on such batches are computed in parts, with the same result")
        return positions

    def probe(self) -> None:
        """Compute the largest batch once, without an update, so that too little memory shows now and not after hours."""
        self._gradients([self.order.largest()], 1)
        self.optimizer.zero_grad(set_to_none=True)

    def _count(self, window: Window) -> None:
        self.state.tokens += window.tokens
        for target in (self.state.log, self.state.loss):
            for name, value in vars(window).items():
                setattr(target, name, getattr(target, name) + value)

    def _log(self, rate: float) -> None:
        state, s = self.state, self.settings
        left = [(s.max_steps - state.step) * state.log.seconds / max(1, state.log.steps)]
        if s.max_minutes:
            left.append(60 * s.max_minutes - state.seconds)
        epoch = state.epoch + state.index / self.order.batches
        self.reporter.progress(state.step, s.max_steps, epoch, state.log, rate, min(left))
        state.log = Window()

    # Now and then

    def validation_due(self, ending: Ending | None) -> bool:
        """Whether to validate before the next update: every `validate_every` steps, and at the end."""
        state = self.state
        return state.validated < state.step and (ending is not None or state.step % self.settings.validate_every == 0)

    def validate(self) -> bool:
        """Measure on the development set, remember the best, and let the schedule see the loss.

        An extra validation at the end of the training is counted neither by the schedule nor by patience, for it would not have been
        there in a longer training.

        Returns: whether this is a new best.
        """
        state, s = self.state, self.settings
        if self.validator is None:
            return False
        regular = state.step % s.validate_every == 0
        try:
            found = self.validator.validate(self.model, self.stop, self.reporter)
        except guard.Abandoned:
            return False
        state.validated = state.step
        train_loss = state.loss.smoothed / max(1, state.loss.tokens)
        if regular:
            state.loss = Window()
            observed = train_loss if s.plateau_on == "train_loss" else found.loss
            if s.schedule == "plateau" and state.plateau.observe(observed, s):
                self.reporter.say(f"{s.plateau_on} no longer falls: learning rate factor now {state.plateau.factor:g}")
        new_best = is_better(found, state.best, s.best_by)
        if new_best:
            state.best, state.since_best = Best(state.step, found.loss, found.bleu), 0
        else:
            state.since_best += regular
        self.reporter.record("dev", state.step, found.values())
        self.reporter.say(f"step {state.step:,}: {found.describe()}{', the best so far' if new_best else ''}")
        for source, reference, translation in found.samples:
            self.reporter.say(f"  source      {source}")
            self.reporter.say(f"  reference   {reference}")
            self.reporter.say(f"  translation {translation}")
        return new_best

    def save(self) -> None:
        """Write a checkpoint; when the disk refuses, once more after removing our own leftovers."""
        if self.saved == (self.state.step, self.state.validated):
            return
        folder = self.system.checkpoints
        weights, moments = checkpoints.weights_of(self.model), optimizer_tensors(self.model, self.optimizer)
        try:
            checkpoints.save(folder, self.state.step, weights, moments, self.state.values(), self.about)
        except EnvironmentProblem as error:
            self.reporter.say(f"{error.message}; trying once more", warning=True)
            checkpoints.clean(folder)
            checkpoints.save(folder, self.state.step, weights, moments, self.state.values(), self.about)
        self.saved = (self.state.step, self.state.validated)
        write_best(self.system, self.state, self.settings)
        kept = [path.name for path in checkpoints.candidates(folder)][-self.settings.keep_checkpoints :]
        checkpoints.prune(folder, [*kept, *([f"step-{self.state.best.step:08d}"] if self.state.best else [])])

    def _diverged(self, error: TrainingDiverged) -> TrainingDiverged:
        """The error with all that helps to find its cause, which is also written to diverged.json."""
        update, rate = self._last
        with guard.finding_first_bad(self.model) as bad:
            self._gradients(update, 1)
        module = f"output of {bad[0]}" if bad else guard.bad_weights_or_gradients(self.model) or "loss"
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
        last = f"the last good checkpoint is {valid[-1].name}" if valid else "there is no checkpoint yet"
        return TrainingDiverged(
            f"{error.message}; first not finite: {module}",
            where=f"{self.system.path / 'diverged.json'} (batch rows, learning rate {rate:.3g}, gradient norms)",
            hint=f"lower train.lr or set train.clip_norm=1, with --force to begin anew; {last}",
        )


def seed_everything(seed: int, step: int, micro: int) -> None:
    """Begin the random numbers of a micro-batch: a model may draw from any of the usual sources and still be continued exactly."""
    seed_dropout(seed, step, micro)
    mixed = int(np.random.SeedSequence((seed, step, micro, 1)).generate_state(1)[0])
    torch.manual_seed(mixed)
    np.random.seed(mixed)
    random.seed(mixed)


def write_best(system: System, state: TrainState, settings: TrainSettings) -> None:
    """Write best.json, which names the best checkpoint."""
    if state.best is None:
        return
    best = state.best
    by = "dev_bleu" if settings.best_by == "dev_bleu" and best.dev_bleu is not None else "dev_loss"
    values = {"step": best.step, "checkpoint": f"step-{best.step:08d}", "metric": by, "dev_loss": best.dev_loss, "dev_bleu": best.dev_bleu}
    files.write_json(system.path / "best.json", values)
