"""Were the systems of a comparison trained alike? A p does not account for unequal budgets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.curves import Curves, read
from nmtkit.errors import counted
from nmtkit.run import Run
from nmtkit.score.stored_scores import Budget, SeedGroup

ALIKE = 1.05
"""Counts of target tokens with a smaller ratio are called equal: batches differ between seeds."""
TOKENS = "target tokens seen"
MOST_LISTED = 6
"""The most systems that are listed one by one."""


def budget(curves: Curves, preset: str, corpus: str, init_from: str) -> Budget:
    """Return the budget of a training."""
    return Budget(curves.last or None, curves.tokens, preset, corpus, init_from)


def read_budget(run: Run, name: str) -> Budget | None:
    """Return the budget of a system; None if it was not trained here.

    Raises: DataError if its settings or its log are damaged.
    """
    system = run.system(name)
    if not system.config.is_file():
        return None
    config = system.read_config()
    return budget(read(system.metrics), config.preset, config.corpus, config.init_from)


def unequal(budgets: Mapping[str, Budget], groups: Sequence[SeedGroup] = ()) -> list[str]:
    """Return a warning if systems were not trained alike: updates, number of seeds, target tokens
    seen, preset, preparation of the corpus, initial weights.

    Args:
        budgets: by system; unknown numbers are not compared.
        groups: the systems by training seed.
    """
    facts: dict[str, dict[str, Any]] = {
        "updates": {name: b.updates for name, b in budgets.items()},
        "seeds": {g.name: len(g.systems) for g in groups if None not in g.seeds},
        TOKENS: {name: b.tokens for name, b in budgets.items()},
        "presets": {name: b.preset for name, b in budgets.items()},
        "preparations of the corpus": {name: b.corpus[:12] for name, b in budgets.items()},
        # Each seed may begin with the weights of that seed of another system.
        "initial weights": {
            name: _without_seed(b.init_from) or "random" for name, b in budgets.items()
        },
    }
    parts = []
    for label, values in facts.items():
        known = {name: value for name, value in values.items() if value}
        if len(set(known.values())) > 1 and not (
            label == TOKENS and max(known.values()) <= ALIKE * min(known.values())
        ):
            parts.append(f"{label} ({_listed(known)})")
    return [f"The systems were not trained alike: {'; '.join(parts)}."] if parts else []


def _without_seed(system: str) -> str:
    """Return the name of a system, or of its folder, without the seed that recipes append."""
    return re.sub(r"-s\d+$", "", Path(system).name)


def _listed(values: Mapping[str, Any]) -> str:
    """Return the value of each system; of many systems the smallest and the largest number, or how
    many systems have each word.
    """
    shown = {name: f"{v:,}" if isinstance(v, int) else v for name, v in values.items()}
    if len(values) <= MOST_LISTED:
        return ", ".join(f"{name} {value}" for name, value in shown.items())
    if words := Counter(value for value in values.values() if isinstance(value, str)):
        return ", ".join(f"{word} of {counted(n, 'system')}" for word, n in words.items())
    low, high = (choose(values, key=values.__getitem__) for choose in (min, max))
    return f"from {shown[low]} ({low}) to {shown[high]} ({high})"
