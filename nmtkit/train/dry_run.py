"""`--dry-run`: size and time of a training, from a few updates that are timed and thrown away."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from nmtkit import console, settings
from nmtkit.errors import counted
from nmtkit.models.variants import count_parameters, load_variant
from nmtkit.tables.table import Table, text_column
from nmtkit.toml import flat, toml_value
from nmtkit.train.loop import Trainer
from nmtkit.train.plan import Plan, schemas_of
from nmtkit.train.reporting import memory
from nmtkit.train.updates import Updates

WARM_UP = 2
"""Updates before the timed ones: the first ones fill caches of the libraries."""
SECONDS = 5.0
"""Time after which no further update is timed."""
UPDATES = (3, 20)
"""The minimum and the maximum number of updates that are timed."""


@dataclass(frozen=True)
class Estimate:
    """The rest of a training.

    Attributes:
        timed: updates that were timed.
        speed: target tokens per second.
        updates: still to make.
        tokens: target tokens of these updates.
        epochs: passes over the training set of these updates.
    """

    timed: int
    speed: float
    updates: int
    tokens: float
    epochs: float

    @property
    def seconds(self) -> float:
        """Training time, without validations and checkpoints."""
        return self.tokens / self.speed


def rehearse(trainer: Trainer) -> Estimate:
    """Compute the largest batch and a few updates, which change the model but write nothing."""
    state, s = trainer.state, trainer.settings
    begin, seconds = state.step, state.seconds
    trainer.probe()
    for _ in range(WARM_UP):
        trainer.make_update()
    trainer.read()
    timed, speed = _time_updates(trainer)
    updates, epoch_tokens = of_an_epoch(trainer)
    epochs = (s.max_steps - begin) / updates
    if s.max_minutes:
        epochs = min(epochs, speed * (60 * s.max_minutes - seconds) / epoch_tokens)
    epochs = max(0.0, epochs)
    return Estimate(timed, speed, round(epochs * updates), epochs * epoch_tokens, epochs)


def _time_updates(trainer: Trainer) -> tuple[int, float]:
    """Make updates for a few seconds; return their number and their target tokens per second."""
    state = trainer.state
    tokens, timed, start = state.tokens, 0, time.monotonic()
    # The clock of rank 0 decides: all ranks make the same updates.
    in_time = partial(trainer.ranks.first_does, lambda: time.monotonic() - start < SECONDS)
    while timed < UPDATES[0] or (timed < UPDATES[1] and in_time()):
        trainer.make_update()
        timed += 1
    trainer.read()
    return timed, max(1, state.tokens - tokens) / max(1e-9, time.monotonic() - start)


def of_an_epoch(trainer: Trainer) -> tuple[float, float]:
    """Return the updates (a fraction) and the target tokens of one pass over the training set,
    estimated from its first window.
    """
    updates, count = Updates(trainer.store, trainer.settings), 0
    window = updates.batches
    while updates.batches is window:
        updates.next()
        count += 1
    windows = sum(trainer.store.shard_sizes) / len(window.rows)
    return count / updates.passes, int(window.tgt_lengths.sum()) * windows


def show(plan: Plan, trainer: Trainer, estimate: Estimate) -> None:
    """Print the settings that differ from the defaults, and the estimate."""
    preset = f" --preset {plan.preset}" if plan.preset else ""
    title = f"Settings that differ from the defaults (all: nmtkit settings{preset})"
    columns = list(map(text_column, ("setting", "value", "default")))
    Table("settings", title, columns, changed_settings(plan)).print()
    console.put()
    columns = list(map(text_column, ("training", "estimate")))
    Table("estimate", "", columns, _rows(trainer, estimate)).print()


def changed_settings(plan: Plan) -> list[tuple[str, str, str]]:
    """Return key, value and default of each setting whose value is not the default."""
    schemas = schemas_of(load_variant(plan.variant))
    defaults = flat({name: settings.complete(schema, {}) for name, schema in schemas.items()})
    return [
        (key, toml_value(value), toml_value(defaults.get(key, "-")))
        for key, value in flat(plan.model_dump(include=set(schemas))).items()
        if value is not None and defaults.get(key) != value
    ]


def _rows(trainer: Trainer, estimate: Estimate) -> list[tuple[str, str]]:
    """Return the estimate as names and values."""
    held = "on the GPU" if trainer.autocast["device_type"] == "cuda" else "this process"
    epochs = f"{estimate.epochs:,.{0 if estimate.epochs >= 100 else 1}f}"
    timed = counted(estimate.timed, "update")
    rows = [
        ("variant", trainer.about["variant"]),
        ("parameters", f"{count_parameters(trainer.model):,}"),
        ("memory", f"{memory() / 2**30:.2f} GiB {held}, measured"),
        ("updates", f"{estimate.updates:,} to make: {epochs} epochs"),
        ("speed", f"{estimate.speed:,.0f} target tokens/s, measured in {timed}"),
        ("time", f"{console.duration(estimate.seconds)} without validations, estimated"),
    ]
    if trainer.ranks.world > 1:
        rows.append(("processes", f"{trainer.ranks.world}; memory is that of the first"))
    return rows
