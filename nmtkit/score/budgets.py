"""Were the systems of a comparison trained alike? A p does not account for unequal budgets."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
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
"""Counts of target tokens with a smaller ratio are called equal: batches differ between seeds."""
OF_THE_BEST = {"train.best_by", "train.dev_bleu", "train.dev_sentences"}
"""Settings that choose the checkpoint of later stages, though they may change in a training."""
NOT_COMPARED = (HARMLESS - OF_THE_BEST) | {
    *("train.seed", "train.micro_batch", "train.packed", "train.sums")
}
MOST_LISTED = 6
"""The most systems, and settings of training, that are listed one by one."""


def read_budget(run: Run, name: str) -> Budget | None:
    """Return the budget of a system; None if it was not trained here.

    Raises: DataError if its settings or its log are damaged.
    """
    system = run.system(name)
    if not system.config.is_file():
        return None
    config, curves = system.read_config(), read(system.metrics)
    # A training that a signal stopped saved updates after the last line of its log.
    saved = [checkpoints.step_of(path) for path in checkpoints.candidates(system.checkpoints)]
    updates = max([curves.last, *saved])
    tokens = curves.tokens if updates == curves.last else None
    about = config.preset, config.corpus, config.init_from
    changed = {"changed by --allow-change": "; ".join(config.changed) or "nothing"}
    of_training = changed | flat({"train": complete(TrainSettings, config.train)})
    if precision := config.hardware.get("precision"):
        of_training["hardware.precision"] = precision
    settings = {k: of_training[k] for k in of_training if k not in NOT_COMPARED}
    return Budget(updates or None, tokens, *about, settings)


def unequal(budgets: Mapping[str, Budget], groups: Sequence[SeedGroup] = ()) -> list[str]:
    """Return a warning if systems were not trained alike: updates, number of seeds, target tokens
    seen, preset, preparation of the corpus, initial weights, settings of training.

    Args:
        budgets: by system; unknown numbers are not compared.
        groups: the systems by training seed.
    """
    updates = {name: b.updates for name, b in budgets.items() if b.updates}
    tokens = {name: b.tokens for name, b in budgets.items() if b.tokens}
    presets = {name: b.preset for name, b in budgets.items() if b.preset}
    corpora = {name: b.corpus[:12] for name, b in budgets.items() if b.corpus}
    # Each seed may begin with the weights of that seed of another system.
    weights = {
        name: without_mark(Path(b.init_from).name) or "random" for name, b in budgets.items()
    }
    seeds = {g.name: len(g.systems) for g in groups if None not in g.seeds}
    settings = {name: b.settings for name, b in budgets.items() if b.settings}
    values = {
        key: {name: toml_value(of[key]) for name, of in settings.items() if key in of}
        for key in itertools.chain(*settings.values())
    }
    unlike = [(key, of) for key, of in values.items() if len(set(of.values())) > 1]
    parts = []
    for label, numbers, ratio in (
        ("updates", updates, 1),
        ("seeds", seeds, 1),
        ("target tokens seen", tokens, ALIKE),
    ):
        if numbers and max(numbers.values()) > ratio * min(numbers.values()):
            parts.append(f"{label} ({_listed(numbers)})")
    for label, words in (
        ("presets", presets),
        ("preparations of the corpus", corpora),
        ("initial weights", weights),
        *unlike[:MOST_LISTED],
    ):
        if len(set(words.values())) > 1:
            each = [f"{name} {word}" for name, word in words.items()]
            if len(each) > MOST_LISTED:
                of_word = Counter(words.values())
                each = [f"{word} of {counted(of_word[word], 'system')}" for word in of_word]
            parts.append(f"{label} ({', '.join(each)})")
    if more := unlike[MOST_LISTED:]:
        parts.append(f"and {counted(len(more), 'more setting')} of training")
    texts = [f"The systems were not trained alike: {'; '.join(parts)}."] if parts else []
    for group in groups:
        (begun, *others) = {budgets[n].init_from if n in budgets else "" for n in group.systems}
        if len(group.systems) > 1 and begun and not others:
            texts.append(
                f"All seeds of {group.name} began with the weights of {begun}, so no p covers the"
                " seed of these weights."
            )
    return texts


def _listed(counts: Mapping[str, int]) -> str:
    """Return the count of each system; of many systems the smallest and the largest."""
    if len(counts) <= MOST_LISTED:
        return ", ".join(f"{name} {count:,}" for name, count in counts.items())
    low, high = (choose(counts, key=counts.__getitem__) for choose in (min, max))
    return f"from {counts[low]:,} ({low}) to {counts[high]:,} ({high})"
