"""The settings of a training: from all their sources, and which may change when it is resumed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from nmtkit import console, settings, trust
from nmtkit.errors import ConfigError, DataError
from nmtkit.fields import HARMLESS
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model, Vocabularies
from nmtkit.models.variants import (
    BASELINE,
    build_model,
    common_width,
    count_parameters,
    load_variant,
)
from nmtkit.presets import preset_names
from nmtkit.run import Run, System
from nmtkit.settings import PrepSettings, SearchSettings, Section, TrainSettings, Values
from nmtkit.toml import changes, flat, toml_value
from nmtkit.train.options import TrainOptions
from nmtkit.train.schedule import learning_rate

OF_PLATEAU = ("decay_factor", "decay_patience", "plateau_on", "min_lr")
OF_REPLACE = ("replace_keep", "replace_decay")
"""The settings of train.schedule=plateau, and those of train.replace."""
SETTINGS_OPTIONS = ("preset", "config", "assignments", "seed", "init_from", "match_parameters")
"""The options that give settings, besides the variant."""
MATCH = "--match-parameters"


class Plan(BaseModel, frozen=True):
    """All settings of a training, in the order of config.toml.

    Attributes:
        corpus: its fingerprint.
        changed: the changes that --allow-change allowed, each as text.
    """

    variant: str
    preset: str
    init_from: str
    corpus: str
    changed: list[str] = []
    model: dict[str, Any]
    train: TrainSettings
    search: SearchSettings


def plan_of_system(run: Run, system: System, options: TrainOptions) -> Plan | None:
    """Return the settings of a system that has begun, changed by --set.

    Returns: None if the call has other options for settings, or another variant. Without a
        checkpoint, None also if --set changes what an update computes.
    Raises: ConfigError for a bad value in config.toml or --set, or if the model is a class of the
        user's own and not named: a run is no reason to import code.
    """
    given = options.model_dump(include={*SETTINGS_OPTIONS}, exclude_defaults=True)
    assigned, begun = _assigned(options), checkpoints.candidates(system.checkpoints)
    continues = given.keys() <= {"assignments"} and (
        begun or all(may_change(key, options.allow_change) for key in flat(assigned))
    )
    if not continues or options.force or not system.config.is_file():
        return None
    stored = system.read_config()
    if options.variant is None and ":" in stored.variant:
        message = f"'{system.name}' uses your own model class, so name the class"
        hint = f"--variant {trust.shown(stored.variant)}"
        raise ConfigError(message, where=system.config, hint=hint)
    if options.variant not in (None, stored.variant):
        return None
    more = ", with --set" if assigned else ""
    if not begun:
        more += "; --force takes those of the preset"
    console.say(f"'{system.name}' has the settings of {system.config}{more}")
    of_file = {}
    for section, schema in schemas_of(named_variant(stored.variant)).items():
        known = settings.without_unknown(schema, getattr(stored, section))
        of_file[section] = settings.build(schema, known, section, system.config).model_dump()
    preset = stored.preset if stored.preset in preset_names() else ""
    plan = _plan(run, stored.variant, preset, stored.init_from, of_file, assigned)
    _check_rate(plan, of_file["train"], assigned.get("train", {}))
    return plan


def schemas_of(cls: type[Model]) -> dict[str, type[Section]]:
    """Return the settings of a system by section."""
    return {"model": cls.Settings, "train": TrainSettings, "search": SearchSettings}


def _plan(
    run: Run, variant: str, preset: str, init_from: str, sections: Values, assigned: Values
) -> Plan:
    """Return a plan of these settings, changed by those of --set."""
    values: dict[str, Any] = {"variant": variant, "preset": preset, "init_from": init_from}
    values["corpus"] = run.manifest().fingerprint
    changed = settings.merge(sections, assigned)
    for name, schema in schemas_of(load_variant(variant)).items():
        values[name] = settings.build(schema, changed.get(name, {}), name).model_dump()
    plan = Plan.model_validate(values)
    _check_effects(plan.train, assigned.get("train", {}))
    return plan


def may_change(key: str, allowed: Collection[str]) -> bool:
    """True if a training can continue with another value of a setting.

    Args:
        key: section.key.
        allowed: keys of --allow-change.
    """
    return key in HARMLESS or key in allowed or key.startswith("search.")


def make_plan(run: Run, options: TrainOptions, resumes: bool = False) -> Plan:
    """Return the settings from, weakest first: defaults, preset, --config, --set, --seed.

    A named preset replaces that of the data set. Its model sizes are adapted to the variant's
    family. `resumes`: the system has a checkpoint to continue from.

    Raises: ConfigError naming the key and the nearest known one; DataError if the run is not
        prepared.
    """
    manifest, variant = run.manifest(), options.variant or BASELINE
    cls = named_variant(variant)
    preset = options.preset or manifest.preset
    of_preset = settings.load_preset(preset) if preset else {}
    # The baseline's sizes serve a variant that adds settings, not one that changes their defaults.
    extends = cls.Settings.model_fields.keys() > load_variant(BASELINE).Settings.model_fields.keys()
    variants = (variant, BASELINE) if extends else (variant,)
    of_file = settings.load_config(options.config, *variants) if options.config else {}
    if of_file.get("prep"):
        _warn_of_prep(of_file["prep"], manifest.settings, options.config)
    assigned = _assigned(options)
    of_seed = {"train": {} if options.seed is None else {"seed": options.seed}}
    typed = settings.merge(of_file, assigned, of_seed)
    if options.match_parameters and "d_ff" in typed.get("model", {}):
        message = "model.d_ff is given, and this option chooses it"
        raise ConfigError(message, where=MATCH, hint="leave out one of them")
    adapted = {**of_preset, "model": cls.adapt(of_preset.get("model", {}))}
    sections = settings.merge(adapted, of_file)
    assigned = settings.merge(assigned, of_seed)
    plan = _plan(run, variant, preset, options.init_from or "", sections, assigned)
    if not resumes:  # plan_to_resume refuses settings that differ from those of the training
        _check_rate(plan, of_preset.get("train", {}), typed["train"])
    return plan


def _check_rate(plan: Plan, before: Values, typed: Collection[str]) -> None:
    """Raise ConfigError if the learning rate is meant for another schedule. The hint names the rate
    with the same learning rate at the end of the warm-up.

    Args:
        before: the settings of the preset, or of the training to resume.
        typed: the settings of train that the user gives.
    """
    old, new = TrainSettings.model_validate(before), plan.train
    if "lr" in typed or (new.schedule == "noam") == (old.schedule == "noam"):
        return
    width, unit = common_width(plan.preset, plan.model), new.model_copy(update={"lr": 1.0})
    highest, of_unit = (learning_rate(s, width, s.warmup or 1) for s in (old, unit))
    message = f"train.lr={old.lr:g} is meant for train.schedule={old.schedule}"
    hint = f"--set train.lr={highest / of_unit:.2g} has the same highest learning rate with"
    raise ConfigError(message, where="train.lr", hint=f"{hint} train.schedule={new.schedule}")


def _check_effects(train: TrainSettings, typed: Collection[str]) -> None:
    """Raise ConfigError for settings of --set that have no effect without another setting. A file
    of settings, or a preset, may have such settings.
    """
    idle = OF_PLATEAU * (train.schedule != "plateau") + OF_REPLACE * (train.replace == "none")
    for key in idle:
        if key in typed and getattr(train, key) != TrainSettings.model_fields[key].default:
            needed = "replace" if key in OF_REPLACE else "schedule=plateau"
            message = f"train.{key} has no effect without train.{needed}"
            raise ConfigError(message, where=f"train.{key}", hint="leave it out")


def _warn_of_prep(values: dict[str, Any], prepared: PrepSettings, file: Path | None) -> None:
    """Warn if a file has other settings of prep than the prepared corpus.

    Raises: ConfigError for an unknown setting or a bad value.
    """
    wanted = settings.build(PrepSettings, values, "prep", file)
    for key in values:
        asked, there = getattr(wanted, key), getattr(prepared, key)
        if asked != there:
            console.warn(
                f"{file}: prep.{key} = {toml_value(asked)} has no effect: the corpus was"
                f" prepared with {toml_value(there)}"
            )


def named_variant(name: str) -> type[Model]:
    """Return the class of a variant that the user names, and allow its code from now on."""
    if ":" in name:
        trust.allow([name])
    cls = load_variant(name)
    if ":" in name:
        trust.allow([name], remember=True)
    return cls


def _assigned(options: TrainOptions) -> dict[str, Any]:
    """Return the settings of --set."""
    assigned = settings.parse_set(options.assignments)
    if "prep" in assigned:
        key = "prep." + next(iter(assigned["prep"]))
        raise ConfigError(
            f"{key} cannot change now: the corpus is prepared",
            where="--set",
            hint=f"nmtkit prep … --set {key}=…, in another run",
        )
    return assigned


def plan_to_resume(
    system: System, plan: Plan, run: Run, allowed: Collection[str]
) -> tuple[Plan, list[str]]:
    """Return the plan to resume a training with, and the changes that --allow-change allows. Print
    all settings that change.

    Args:
        system: has checkpoints and config.toml.
        plan: the plan of this call. --init-from matters at the beginning only: that of the system
            is kept if this call names none, or if --allow-change names init_from.
        run: the run.
        allowed: keys of --allow-change.
    Raises: ConfigError with a table of key, old and new value if other settings have changed, or
        for a bad value in config.toml; DataError if the corpus is not the one it was trained on.
    """
    stored = system.read_config()
    effective = {"init_from"} if plan.init_from not in ("", stored.init_from) else set()
    if not plan.init_from or "init_from" in allowed:
        plan = plan.model_copy(update={"init_from": stored.init_from})
    if stored.corpus != plan.corpus:
        raise DataError(
            f"system '{system.name}' was trained on another preparation of this run's data",
            where=f"{run.prep / 'manifest.json'}; corpus in {system.config}",
            hint="--force begins anew, --system trains a second system",
        )
    schemas = schemas_of(load_variant(plan.variant))
    if stored.variant == plan.variant:
        known = settings.without_unknown(schemas["model"], stored.model)
        settings.build(schemas["model"], known, "model", system.config)
    else:
        del schemas["model"]
    # Settings that are newer than the file have their defaults.
    sections = {
        key: settings.complete(schema, getattr(stored, key)) for key, schema in schemas.items()
    }
    of_file = stored.model_dump(exclude={"hardware", "changed"})  # these are no settings
    changed = changes(flat(of_file | sections), flat(plan.model_dump(exclude={"changed"})))
    refused = [(key, *of) for key, of in changed.items() if not may_change(key, allowed)]
    if refused:
        rows = [("key", "old", "new"), *refused]
        first, second, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        raise ConfigError(
            f"the settings of '{system.name}' have changed since it was started",
            where="\n  ".join(f"{key:{first}}  {old:{second}}  {new}" for key, old, new in rows),
            hint="leave out --preset, --config, --seed, --init-from and --set of these keys to"
            f" resume with the settings of {system.config}, or --system for a second system,"
            " --force to begin this one anew, --allow-change KEY to resume with the new value",
        )
    for key in dict.fromkeys(allowed):
        if key not in effective | changed.keys():
            console.warn(f"--allow-change {key} has no effect: {key} has not changed")
    allowed_changes = []
    for key, (before, after) in changed.items():
        console.say(f"{key}: {before} -> {after}")
        if not may_change(key, []):
            allowed_changes.append(f"{key} {before} -> {after}")
    if "train.max_steps" in changed and plan.train.schedule == "cosine":
        console.warn(
            "the cosine schedule depends on train.max_steps: from here on the learning rate is that"
            " of the longer training"
        )
    return plan.model_copy(update={"changed": stored.changed}), allowed_changes


def match_parameters(run: Run, plan: Plan, name: str, other: str) -> tuple[Plan, str]:
    """Return a plan whose d_ff gives as many parameters as another system has, and a message.

    Args:
        run: has the other system and the vocabularies.
        plan: its d_ff does not matter.
        name: the system to train.
        other: the other system.
    Raises: ConfigError if the variant has no d_ff, if there is no such system, or if no d_ff gives
        so few parameters.
    """
    if "d_ff" not in load_variant(plan.variant).Settings.model_fields:
        message = f"variant {plan.variant} has no model.d_ff to choose"
        raise ConfigError(message, where=MATCH, hint="give its sizes with --set")
    if other == name:
        message = f"'{name}' is the system that is to be trained"
        raise ConfigError(message, where=MATCH, hint="--system gives another name")
    sizes = loading.vocabulary_sizes(run)
    with torch.device("meta"):  # shapes alone, no memory
        wanted = count_parameters(loading.build_untrained(run, run.find_system(other)))
        least, next_least = (_parameters(plan, sizes, d_ff) for d_ff in (1, 2))
        # Parameters are linear in d_ff.
        d_ff = 1 + round((wanted - least) / (next_least - least))
        if d_ff < 1:
            raise ConfigError(
                f"'{other}' has {wanted:,} parameters; with model.d_ff=1 this system has {least:,}",
                where=MATCH,
                hint="make this system smaller, for example with fewer layers",
            )
        count = _parameters(plan, sizes, d_ff)
    matched = plan.model_copy(update={"model": {**plan.model, "d_ff": d_ff}})
    return matched, f"model.d_ff = {d_ff}: {count:,} parameters; '{other}' has {wanted:,}"


def _parameters(plan: Plan, sizes: Vocabularies, d_ff: int) -> int:
    """Return the number of parameters that a plan has with another d_ff."""
    return count_parameters(build_model(plan.variant, {**plan.model, "d_ff": d_ff}, sizes))
