"""Were the systems of a comparison trained alike? A p does not account for unequal budgets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nmtkit.curves import read
from nmtkit.errors import counted
from nmtkit.fields import HARMLESS
from nmtkit.models import checkpoints
from nmtkit.run import Run
from nmtkit.score.seeds import without_mark
from nmtkit.score.stored_scores import Budget, SeedGroup
from nmtkit.settings import TrainSettings, complete
from nmtkit.toml import flat, toml_value

ALIKE = 1.05
"""Numbers of target tokens with a smaller ratio are equal, because batches differ between seeds."""
OF_THE_BEST = {"train.best_by", "train.dev_bleu", "train.dev_sentences"}
"""Settings that choose the checkpoint of later stages, though they may change in a training."""
NOT_COMPARED = (HARMLESS - OF_THE_BEST) | {
    "train.seed",
    "train.micro_batch",
    "train.packed",
    "train.sums",
}
ABOUT = ("presets", "preparations of the corpus", "initial weights")
"""What is compared besides settings of training."""
MOST_LISTED = 6
"""The most systems, and the most settings of training, that a remark lists."""
_SOURCE = re.compile(
    r"(?:(?:.*/)?(?P<run>[^/]+)/)?"
    r"(?P<path>systems/(?P<name>[^/]+)(?:/checkpoints/(?P<step>[^/]+))?)"
)
"""A path that --init-from names: RUN/systems/NAME or RUN/systems/NAME/checkpoints/STEP."""


def read_budget(run: Run, name: str) -> Budget | None:
    """Return the budget of a system; None if the system was not trained in this run.

    Raises: DataError if its settings or its log are damaged.
    """
    system = run.system(name)
    if not system.config.is_file():
        return None
    config, curves = system.read_config(), read(system.metrics)
    # A training that was stopped by a signal saved updates after the last line of its log.
    saved = [checkpoints.step_of(path) for path in checkpoints.candidates(system.checkpoints)]
    updates = max([curves.last, *saved])
    tokens = curves.tokens if updates == curves.last else None
    source = Path(config.init_from).as_posix() if config.init_from else ""
    match = _SOURCE.fullmatch(source)
    if match and match["run"] in {None, run.path.absolute().name}:
        source = match["path"] if match["step"] else match["name"]
    about = config.preset, config.corpus, source
    changed = {"changed by --allow-change": "; ".join(config.changed) or "nothing"}
    of_training = changed | flat({"train": complete(TrainSettings, config.train)})
    if precision := config.hardware.get("precision"):
        of_training["hardware.precision"] = precision
    settings = {k: of_training[k] for k in of_training if k not in NOT_COMPARED}
    return Budget(updates or None, tokens, *about, settings)


def unequal(budgets: Mapping[str, Budget], groups: Sequence[SeedGroup] = ()) -> list[str]:
    """Return warnings if systems were not trained alike: updates, number of seeds, target tokens
    seen, preset, preparation of the corpus, initial weights, settings of training.

    Args:
        budgets: by system; unknown numbers are not compared.
        groups: the systems by training seed.
    """
    parts = [*_unequal_counts(budgets, groups), *_unequal_properties(budgets)]
    texts = [f"The systems were not trained alike: {'; '.join(parts)}."] if parts else []
    for group in groups:
        initial = {budgets[n].init_from if n in budgets else "" for n in group.systems}
        if len(group.systems) > 1 and len(initial) == 1 and "" not in initial:
            texts.append(
                f"All seeds of {group.name} began with the weights of {initial.pop()}, so no p"
                " covers the seed of these weights."
            )
    return texts


def _unequal_counts(budgets: Mapping[str, Budget], groups: Sequence[SeedGroup]) -> Iterator[str]:
    updates = {name: b.updates for name, b in budgets.items() if b.updates}
    seeds = {g.name: len(g.systems) for g in groups if None not in g.seeds}
    tokens = {name: b.tokens for name, b in budgets.items() if b.tokens}
    for label, counts, ratio in (
        ("updates", updates, 1),
        ("seeds", seeds, 1),
        ("target tokens seen", tokens, ALIKE),
    ):
        if counts and max(counts.values()) > ratio * min(counts.values()):
            listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            if len(counts) > MOST_LISTED:
                low, high = (choose(counts, key=counts.__getitem__) for choose in (min, max))
                listed = f"from {counts[low]:,} ({low}) to {counts[high]:,} ({high})"
            yield f"{label} ({listed})"


def _unequal_properties(budgets: Mapping[str, Budget]) -> Iterator[str]:
    values: dict[str, dict[str, str]] = {label: {} for label in ABOUT}  # of each system
    for name, budget in budgets.items():
        weights = _initial_weights(budget.init_from) or "random"
        about = zip(ABOUT, (budget.preset, budget.corpus[:12], weights), strict=True)
        settings = ((key, toml_value(value)) for key, value in budget.settings.items())
        for label, value in (*about, *settings):
            if value:
                values.setdefault(label, {})[name] = value
    unlike = [label for label in values if len(set(values[label].values())) > 1]
    listed = unlike[: MOST_LISTED + len({*ABOUT}.intersection(unlike))]
    for label in listed:
        each = [f"{name} {value}" for name, value in values[label].items()]
        if len(each) > MOST_LISTED:
            frequency = Counter(values[label].values())
            each = [f"{value} of {counted(n, 'system')}" for value, n in frequency.items()]
        yield f"{label} ({', '.join(each)})"
    if more := len(unlike) - len(listed):
        yield f"and {counted(more, 'more setting')} of training"


def _initial_weights(source: str) -> str:
    """Return the run, the system and the checkpoint with whose weights a training began, without
    the mark of a seed: each seed may begin with that seed of another system.
    """
    if match := _SOURCE.fullmatch(source):
        parts = match["run"], without_mark(match["name"]), match["step"]
        return "/".join(part for part in parts if part)
    return without_mark(source)
