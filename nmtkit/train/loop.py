"""The training loop: update, validate and save until there is a reason to end."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nmtkit import console
from nmtkit.data.padding import Ids
from nmtkit.data.store import Store
from nmtkit.errors import Interrupted, NmtkitError, TrainingDiverged
from nmtkit.models import loading
from nmtkit.models.base import Model
from nmtkit.run import System
from nmtkit.settings import TrainSettings
from nmtkit.train import divergence, saving
from nmtkit.train.best import after_validation
from nmtkit.train.ema import Averages
from nmtkit.train.gradients import Gradients, Share
from nmtkit.train.optimizer import OptimizerStep, finite, optimizer_tensors, warn_of_parts
from nmtkit.train.prefetch import Prefetcher, PreparedUpdate
from nmtkit.train.ranks import Ranks
from nmtkit.train.reporting import Reporter
from nmtkit.train.schedule import learning_rate
from nmtkit.train.state import TrainState, Window
from nmtkit.train.stop import Abandoned, Stop, reason_to_end
from nmtkit.train.updates import Updates
from nmtkit.train.validation import Validator, batch_loss

PROBED = 200
"""Updates among which the largest part is looked for before the first step."""
FEW_PAIRS = 8
"""Pairs whose loss is measured before a checkpoint that no validation has measured."""


class RankNote(NamedTuple):
    """The numbers that each rank sends in each update: its signal (0 = none) and training time."""

    signal: float
    seconds: float


@dataclass(frozen=True)
class MadeUpdate:
    """An update whose numbers are not read yet. If they are not finite, it was skipped.

    Attributes:
        prepared: without its share.
        rate: the learning rate.
        sums: (3) of `OptimizerStep.step`.
    """

    step: int
    prepared: PreparedUpdate
    rate: float
    sums: Tensor


@dataclass
class Trainer:
    """One training of one model.

    Args:
        system: receives checkpoints and measurements.
        settings: budget and optimiser.
        model: on its device, in training mode.
        width: D of the noam schedule.
        store: the training set.
        autocast: arguments of torch.autocast.
        state: the state at which to begin.
        about: facts about model and corpus, for the manifests of checkpoints.
        validator: of the development set; None if the run has none.
        ranks: the processes that train together; all other arguments are equal in each rank.
        moments: tensors of the optimiser from a checkpoint.
        opening: lines that were printed before train.log was open; train.log begins with them.
    """

    system: System
    settings: TrainSettings
    model: Model
    width: int
    store: Store
    autocast: dict[str, Any]
    state: TrainState
    about: dict[str, Any]
    validator: Validator | None
    ranks: Ranks
    moments: InitVar[Mapping[str, Tensor]]
    opening: list[str]

    def __post_init__(self, moments: Mapping[str, Tensor]) -> None:
        state = self.state
        self.averages = Averages(self.model, self.settings.ema, moments)
        place = state.epoch, state.window, state.index
        self.updates = Updates(self.store, self.settings, *place)
        self.gradients = Gradients(
            self.model, self.store, self.settings, self.autocast, state, self.ranks, self._rank_note
        )
        if self.validator is not None:
            self.validator.with_memory = self.gradients.with_memory
        self.optimizer_step = OptimizerStep(self.gradients)
        self.prefetcher = Prefetcher(self.updates, self.gradients)
        self.stop = Stop()
        # Passes and learning rate of the last update. If a signal stopped the training before the
        # validation of that update, its line of the log may still be due.
        rate = learning_rate(self.settings, self.width, max(1, state.step), state.plateau)
        self._passes_and_rate = self.updates.passes, rate
        # The time of all updates, and when the current update began.
        self._seconds, self._begin = state.seconds, 0.0
        # The step and the validation of the last checkpoint. There is nothing new to save yet.
        self.saved = state.step, state.validated
        self.writer = saving.Writer()
        self.ranks.before_exit = self.writer.wait
        self.reporter: Reporter
        # The updates since the last `read`, and the last update that was read.
        self._unread: list[MadeUpdate] = []
        self._last_read: MadeUpdate | None = None

    def run(self) -> None:
        """Train until there is a reason to end, then save everything.

        Raises: Interrupted after a signal (everything is saved); TrainingDiverged;
            EnvironmentProblem.
        """
        self.reporter = Reporter(self.system, self.state, self.ranks, self.settings)
        for line in self.opening:
            self.reporter.note(line)
        try:
            with console.forwarding_warnings(self.reporter.note), self.stop.listening():
                self._train()
        except TrainingDiverged as error:
            raise (self._with_cause(error) if self.ranks.first else error) from None
        except NmtkitError as error:
            self.reporter.note(error.message)
            raise
        finally:
            self.prefetcher.close()
            self._end_writing()
            self.reporter.close()

    def _train(self) -> None:
        state, s = self.state, self.settings
        begin = state.step
        if state.split_from is not None:
            warn_of_parts(state)
        signal_name = self.signal_of_any_rank()
        while not signal_name:
            self.writer.check()
            ending, new_best = reason_to_end(state, s), False
            due = ending or state.step % s.validate_every == 0
            if due and state.validated < state.step:
                new_best = self.validate()
                ended = ending
                ending = reason_to_end(state, s)
                # The validation may have used up the patience.
                if ending and not ended and state.log.steps:
                    self._log(at_the_end=True)
                if signal_name := self.signal_of_any_rank():
                    break
            if new_best or ending or (state.step and state.step % s.checkpoint_every == 0):
                self.save()
            if ending:
                self.ranks.first_does(self.writer.finish)
                self.reporter.say(f"{'' if state.step > begin else 'already '}{ending}")
                return
            self.update()
            signal_name = _signal_name(RankNote(*note).signal for note in self.gradients.notes)
        self.save()
        self.ranks.first_does(self.writer.finish)
        message = f"stopped by {signal_name} after step {state.step:,}; everything is saved"
        raise Interrupted(message, where=self.system.path, hint="the same command continues")

    def signal_of_any_rank(self) -> str | None:
        """Return the name of the signal that asked any rank to stop, if there was one."""
        return _signal_name(signal for (signal,) in self.ranks.gather([self.stop.signal]))

    def _rank_note(self) -> RankNote:
        return RankNote(self.stop.signal, self._seconds + time.monotonic() - self._begin)

    # An update

    def update(self) -> None:
        """Make one update, and report if a line of the log is due."""
        state, before = self.state, self.state.overflows
        self.make_update()
        if state.overflows > before:
            self.reporter.detail(self.optimizer_step.describe_overflows(before))
        if state.step % self.settings.log_every == 0:
            self._log()
        elif reason_to_end(state, self.settings):
            self._log(at_the_end=True)  # now, because a signal may stop the last validation
        self.reporter.move_bar(state)

    def make_update(self) -> None:
        """Make one update without a report."""
        state = self.state
        with self._timed():
            update = self.prefetcher.next()
            state.step += 1
            state.epoch, state.window, state.index = update.place
            rate = learning_rate(self.settings, self.width, state.step, state.plateau)
            self._passes_and_rate = update.passes, rate
            sums = self.optimizer_step.step(update, rate)
            if self.settings.ema:
                self.gradients.with_memory(self.averages.update, state.step, finite(sums))
            prepared = replace(update, share=None)  # the share's batches take memory
            self._unread.append(MadeUpdate(state.step, prepared, rate, sums))
            # All ranks take the clock of rank 0, so that they make the same decisions. The clock
            # was read when the gradients were summed.
            state.seconds = RankNote(*self.gradients.notes[0]).seconds

    def read(self) -> None:
        """Read losses and norms of the updates since the last reading, and count them.

        Only here does the CPU wait for the device: at every line of the log, and before a
        validation or a checkpoint. The wait counts as time of the updates.

        Raises: TrainingDiverged; the updates after the one that it names are lost.
        """
        unread, self._unread = self._unread, []
        if unread:
            with self._timed():
                numbers = torch.stack([update.sums for update in unread]).tolist()
                for update, sums in zip(unread, numbers, strict=True):
                    self._count(update, *sums)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the time inside, and the processor's, as time of updates."""
        self._begin, cpu = time.monotonic(), time.process_time()
        yield
        seconds = time.monotonic() - self._begin
        self._seconds += seconds
        self.state.log.seconds += seconds
        self.state.log.cpu += time.process_time() - cpu

    def _count(self, update: MadeUpdate, smoothed: float, nll: float, norm: float) -> None:
        self._last_read, prepared = update, update.prepared
        if divergence.check_finite(self.state, update.step, smoothed / prepared.tokens, norm):
            self.state.tokens += prepared.tokens
            sums = smoothed, nll, prepared.tokens, prepared.positions, prepared.padding
            for window in (self.state.log, self.state.loss):
                window.add(Window(1, *sums, norm=norm))

    def _log(self, at_the_end: bool = False) -> None:
        """Report the updates since the last report.

        A report at the end starts no new window, because a longer training would not have made it.
        """
        self.read()
        self.reporter.progress(self.state, *self._passes_and_rate, at_the_end)
        if not at_the_end:
            self.state.log = Window()

    def probe(self) -> None:
        """Compute the gradient of the largest batch, so that too little memory shows at once.

        If batches are joined, compute the update with the largest part. The model does not change.
        """
        gradients, update = self.gradients, [self.updates.batches.largest()]

        def largest_part(update: list[Ids]) -> int:
            return max(map(gradients.positions_of, gradients.parts(update)))

        if gradients.joins:
            updates = itertools.islice(self.updates.of_window(), PROBED)
            update = max(updates, key=largest_part, default=update)
        gradients.compute(update, 0, 1)
        self.optimizer_step.optimizer.zero_grad(set_to_none=True)

    # Validations and checkpoints

    def validate(self) -> bool:
        """Measure the model on the development set.

        Returns: True if this is a new best.
        Raises: TrainingDiverged if the loss is not finite.
        """
        self.read()
        state = self.state
        if self.validator is None:
            return False
        self.reporter.validating(state.step)
        try:
            with self.averages.in_model():
                measured = self.validator.validate(self.stop)
        except Abandoned:  # by a signal
            return False
        return after_validation(measured, state, self.settings, self.reporter)

    def save(self) -> None:
        """Begin to write a checkpoint, unless the last checkpoint has this step and validation.

        The next updates do not wait for the write. If the write fails, the training ends later.

        Raises: TrainingDiverged if no validation has measured the weights and the loss of a few
            pairs is not finite.
        """
        self.read()
        state = self.state
        if self.saved == (state.step, state.validated):
            return
        if state.validated < state.step and not self.ranks.first_does(self._is_finite):
            raise TrainingDiverged(f"the loss is not finite after step {state.step}")
        # There is one copy of the tensors at a time. The other ranks wait.
        self.ranks.first_does(self.writer.finish)
        if self.ranks.first:
            state.scaler = self.optimizer_step.scaler.state_dict()
            moments = optimizer_tensors(self.model, self.optimizer_step.optimizer)
            with self.averages.in_model() as raw:
                weights = saving.copied(loading.weights_of(self.model))
                tensors = saving.copied(moments | raw)
            content = copy.deepcopy(state), weights, tensors, self.about
            self.writer.begin(partial(saving.write, self.system, self.settings, *content))
        self.saved = state.step, state.validated

    def _is_finite(self) -> bool:
        """True if the loss of a few pairs is finite: perhaps no update follows that would show."""
        rows = np.arange(min(sum(self.store.shard_sizes), FEW_PAIRS))
        fixed = self.model, self.store, self.autocast
        self.model.eval()
        try:
            return math.isfinite(self.gradients.with_memory(batch_loss, *fixed, rows))
        finally:
            self.model.train()

    def _end_writing(self) -> None:
        """Wait for the write after an error; note an error of the write in the log only."""
        try:
            self.writer.finish()
        except NmtkitError as error:
            self.reporter.note(error.message)

    def _with_cause(self, error: TrainingDiverged) -> TrainingDiverged:
        """Return the error with the first number that is not finite, and with a report on disk."""
        self._end_writing()  # so that the report names the last checkpoint
        if (update := self._last_read) is None:
            return error
        self.state.step = update.step
        rows = update.prepared.rows
        share = Share(list(enumerate(self.gradients.parts(rows))))
        self.gradients.graphs = None  # a replay calls no module
        cause = divergence.first_not_finite(
            self.model, lambda: self.gradients.add(share, self.state.step, 1)
        )
        return divergence.write_report(error, self.system, self.state, cause, rows, update.rate)


def _signal_name(signals: Iterable[float]) -> str | None:
    """Return the name of the highest signal, if there is one."""
    number = int(max(signals))
    return signal.Signals(number).name if number else None
