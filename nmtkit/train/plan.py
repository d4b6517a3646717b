"""What is to be trained: the settings resolved from their layers, and compared with those of a
training to be continued.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit import console, settings
from nmtkit.errors import ConfigError, DataError, nearest
from nmtkit.models.variants import load_variant
from nmtkit.run import Run, System
from nmtkit.settings import SearchSettings, TrainSettings

# Settings that may change when a training goes on: they decide how long it lasts, what is kept and
# shown, never what an update does (`deterministic`, `matmul`: nothing but how it is rounded, as
# another GPU would).
HARMLESS = {
    f"train.{key}"
    for key in (
        *("max_steps", "max_minutes", "patience", "log_every", "samples"),
        *(
            "checkpoint_every",
            "keep_checkpoints",
            "dev_bleu",
            "dev_sentences",
            "best_by",
            "deterministic",
            "matmul",
        ),
    )
}


@dataclass(frozen=True)
class Plan:
    """A resolved training: what config.toml holds."""

    variant: str
    preset: str
    init_from: str
    corpus: str
    """Fingerprint of the prepared corpus."""
    model: dict[str, Any]
    train: TrainSettings
    search: SearchSettings

    def values(self) -> dict[str, Any]:
        """As plain values in the order of config.toml."""
        top = {
            "variant": self.variant,
            "preset": self.preset,
            "init_from": self.init_from,
            "corpus": self.corpus,
        }
        return {
            **top,
            "model": self.model,
            "train": _plain(self.train.model_dump()),
            "search": _plain(self.search.model_dump()),
        }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Tuples as the lists that TOML gives back."""
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
    }


def make_plan(
    run: Run,
    variant: str,
    preset: str | None,
    config: Path | None,
    assignments: list[str],
    seed: int | None,
    init_from: str | None = None,
) -> Plan:
    """Resolve the settings: the schema's defaults, then the preset (that named, else the data
    set's), --config, --set, --seed.

    A named preset takes the place of the data set's, for it is a whole setting; its model sizes are
    adapted to the variant's family.

    Raises: ConfigError naming the key and the nearest known one; DataError if the run is not
        prepared.
    """
    manifest = run.manifest()
    cls = load_variant(variant)
    preset = preset or manifest.preset
    base = settings.load_preset(preset) if preset else {}
    given = settings.parse_set(assignments)
    if "prep" in given:
        key = "prep." + next(iter(given["prep"]))
        raise ConfigError(
            f"{key} cannot change now: the corpus is prepared",
            where="--set",
            hint=f"nmtkit prep … --set {key}=…, in another run",
        )
    own = settings.load_config(config) if config else {}
    adapted = {**base, "model": cls.adapt(base.get("model", {}))}
    merged = settings.merge(adapted, own, given, {"train": {} if seed is None else {"seed": seed}})
    model = settings.build(cls.Settings, merged.get("model", {}), "model")
    return Plan(
        variant=variant,
        preset=preset,
        init_from=init_from or "",
        corpus=manifest.fingerprint,
        model=_plain(model.model_dump()),
        train=settings.build(TrainSettings, merged.get("train", {}), "train"),
        search=settings.build(SearchSettings, merged.get("search", {}), "search"),
    )


def common_width(values: dict[str, Any]) -> int:
    """D by which the arithmetic is chosen: that of the preset for every variant that has no
    `d_model` of its own, whatever the sizes it adapts it to.

    So the systems of one preset compute alike, and what is compared is the models.

    Args:
        values: of config.toml.
    Raises: ConfigError for a preset that there is no more.
    """
    preset = settings.load_preset(values["preset"]) if values.get("preset") else {}
    return int(
        values.get("model", {}).get("d_model") or preset.get("model", {}).get("d_model") or 256
    )


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that differ between two plans' values, as section.key -> (old, new); a missing
    one counts as its other's absence.
    """
    found = {}
    for section in old.keys() | new.keys():
        before, after = old.get(section), new.get(section)
        if isinstance(before, dict) or isinstance(after, dict):
            for key in (before or {}).keys() | (after or {}).keys():
                pair = (before or {}).get(key), (after or {}).get(key)
                if pair[0] != pair[1]:
                    found[f"{section}.{key}"] = pair
        elif before != after:
            found[section] = (before, after)
    return dict(sorted(found.items()))


def check_known(allowed: Collection[str], system: System, plan: Plan) -> None:
    """Refuse a key of --allow-change that is no setting, neither of this training nor of the one to
    be continued.

    Raises: ConfigError naming the nearest one.
    """
    if not allowed:
        return
    known = set(differences({}, plan.values())) | (
        set(differences({}, system.read_config())) if system.config.is_file() else set()
    )
    for key in allowed:
        if key not in known:
            raise ConfigError(
                f"unknown setting '{key}'",
                where="--allow-change",
                hint=nearest(key, known, "write it as section.key: train.lr, say"),
            )


def check_unchanged(system: System, plan: Plan, run: Run, allowed: Collection[str] = ()) -> Plan:
    """Refuse to continue a training with other settings or another corpus; harmless changes are
    said and taken.

    Args:
        system: which has checkpoints and config.toml.
        plan: what is asked for now; without --init-from the system's own is kept, since it acts at
            the beginning only.
        run: the run.
        allowed: keys that may change although they are not harmless: the training goes on, but is
            no longer one of these settings.
    Returns: the plan to go on with.
    Raises: ConfigError with a table of key, old, new; DataError if the corpus is not the one it was
        trained on.
    """
    old = system.read_config()
    old.pop("hardware", None)  # no setting: of the machine that trained it
    if not plan.init_from:
        plan = Plan(**{**vars(plan), "init_from": old.get("init_from", "")})
    if old.get("corpus") != plan.corpus:
        message = f"system '{system.name}' was trained on another preparation of this run's data"
        raise DataError(
            message,
            where=run.prep / "manifest.json",
            hint="--force begins anew, --name trains a second system",
        )
    changed = differences(old, plan.values())
    changed.pop("preset", None)  # only a name: what it sets is compared by itself
    harmful = {
        key: pair
        for key, pair in changed.items()
        if key not in HARMLESS and key not in allowed and not key.startswith("search.")
    }
    if harmful:
        rows = [
            ("key", "old", "new"),
            *(
                (key, _shown(old_value), _shown(new_value))
                for key, (old_value, new_value) in harmful.items()
            ),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        table = "\n  ".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
        hint = (
            "use the settings it was started with, or --name for a second system, --force to begin"
            " this one anew, --allow-change KEY to go on so"
        )
        raise ConfigError(
            f"the settings of '{system.name}' have changed since it was started",
            where=table,
            hint=hint,
        )
    for key, (before, after) in changed.items():
        console.say(f"{key}: {_shown(before)} -> {_shown(after)}")
    if "train.max_steps" in changed and plan.train.schedule == "cosine":
        console.warn(
            "the cosine schedule depends on train.max_steps: from here on the learning rate is that"
            " of the longer training"
        )
    return plan


def _shown(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
