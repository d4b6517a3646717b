"""Learning-rate schedules with warm-up.

noam, cosine and constant are functions of the step alone; plateau depends on how a loss develops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nmtkit.settings import TrainSettings


@dataclass
class Plateau:
    """State of the plateau schedule.

    Attributes:
        factor: of the learning rate.
        best: the lowest loss.
        since: validations since the lowest loss.
    """

    factor: float = 1.0
    best: float | None = None
    since: int = 0

    def observe(self, loss: float, settings: TrainSettings) -> bool:
        """Note the loss at a validation; lower the factor if the loss no longer falls.

        Args:
            loss: the loss that `plateau_on` names, per token.
            settings: decay_factor, decay_patience.
        Returns: True if the factor was lowered.
        """
        if math.isfinite(loss) and (self.best is None or loss < self.best):
            self.best, self.since = loss, 0
            return False
        self.since += 1
        if self.since <= settings.decay_patience:
            return False
        self.factor, self.since = self.factor * settings.decay_factor, 0
        return True


def learning_rate(
    settings: TrainSettings, width: int, step: int, plateau: Plateau | None = None
) -> float:
    """Return the learning rate of an update.

    noam: s·D^-0.5·min(t^-0.5, t·w^-1.5) (Vaswani et al. 2017, eq. 3). cosine: peak·min(1, t/w)·
    ½(1+cos(π·max(0, t-w)/(n-w))) for n steps in all (So et al. 2019, one cycle). constant and
    plateau: the peak after a linear warm-up, plateau times its factor.

    Args:
        settings: schedule, lr, warmup, max_steps.
        width: D of the model (noam).
        step: of the update, from 1.
        plateau: state of that schedule.
    """
    if settings.schedule == "noam":
        rising = step * settings.warmup**-1.5 if settings.warmup else math.inf
        return float(settings.lr * width**-0.5 * min(step**-0.5, rising))
    rate = settings.lr * (min(1.0, step / settings.warmup) if settings.warmup else 1.0)
    if settings.schedule == "cosine":
        falling = max(0, step - settings.warmup) / max(1, settings.max_steps - settings.warmup)
        return rate * 0.5 * (1 + math.cos(math.pi * min(1.0, falling)))
    if settings.schedule == "plateau" and plateau is not None:
        return rate * plateau.factor
    return rate
