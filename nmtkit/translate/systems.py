"""Systems and ensembles of systems that translate, with their search settings and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nmtkit import console, settings
from nmtkit.errors import ConfigError, DataError, NmtkitError
from nmtkit.folders import unchanged
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model
from nmtkit.models.variants import common_width
from nmtkit.names import LONGEST
from nmtkit.nn import hardware
from nmtkit.nn.linear import Precision
from nmtkit.owned_files import META
from nmtkit.records import TranslationMeta, UsedCheckpoint, load_or_warn
from nmtkit.run import Run, System
from nmtkit.settings import SearchSettings
from nmtkit.translate.options import TranslateOptions
from nmtkit.translate.scorer import Scorer


@dataclass(frozen=True)
class SystemGroup:
    """A system, or an ensemble: several systems that translate together."""

    run: Run
    systems: list[System]
    settings: SearchSettings
    average: int | None = None
    """The number of checkpoints to average; None = the number in each system's own settings."""

    @property
    def name(self) -> str:
        """The system's name, or ensemble-a+b."""
        names = [system.name for system in self.systems]
        return names[0] if len(names) == 1 else "ensemble-" + "+".join(names)

    @property
    def system(self) -> System:
        """The system of this name, in whose folder the translations are."""
        return self.run.system(self.name)

    @cached_property
    def _paths(self) -> list[list[Path]]:
        """The checkpoints of each system. They are looked up only once, so that the recorded
        checkpoints are the loaded ones.
        """
        return [checkpoints.choose(system, self.average) for system in self.systems]

    def checkpoints(self) -> list[UsedCheckpoint]:
        """Return the checkpoints that `load` reads, with the hashes of their weights.

        Raises: CheckpointError if a system has no valid checkpoint.
        """
        return [
            UsedCheckpoint(system.name, name, digest)
            for system, paths in zip(self.systems, self._paths, strict=True)
            for name, digest in checkpoints.digests(paths).items()
        ]

    def hardware(self, device: torch.device, forced: bool = False) -> hardware.Hardware:
        """Return how this machine computes translations.

        Args:
            device: the device to compute on.
            forced: True for scores of given targets, which are always computed in float32.
        Raises: ConfigError for a precision that the device does not have.
        """
        precision, possible = self.settings.precision, hardware.SEARCHES[device.type]
        if precision != "auto" and precision not in possible:
            name = {"cpu": "CPU", "cuda": "GPU", "mps": "GPU of Apple"}[device.type]
            raise ConfigError(
                f"a {name} does not search in {precision}",
                where="search.precision",
                hint=f"leave it out, or use {' or '.join(possible)}",
            )
        if forced or (precision == "auto" and device.type != "cpu"):
            precision = "float32"
        config = self.systems[0].read_config()
        width = common_width(config.preset, config.model)
        return hardware.choose(str(device), precision, width)

    def load(self, device: torch.device, precision: Precision = "float32") -> list[Model]:
        """Return the models in eval mode. Their matrix products have a precision.

        Raises: CheckpointError if a checkpoint is damaged or has another vocabulary.
        """
        return [
            loading.load_system(self.run, system, device, paths, precision)
            for system, paths in zip(self.systems, self._paths, strict=True)
        ]

    def scorer(self, device: torch.device, precision: Precision, jobs: int = 1) -> Scorer:
        """Return the scorer of raw text.

        Raises: as `load`.
        """
        models = self.load(device, precision)
        return Scorer.for_corpus(self.run.prep, models, self.settings, device, jobs)


def choose(
    run: Run, names: list[str], ensemble: bool, search: dict[str, Any], single: bool
) -> list[SystemGroup]:
    """Return the systems to translate with, at least one.

    Args:
        run: their run.
        names: as the user gave them; none = all systems that have a checkpoint.
        ensemble: True to make one ensemble of the systems.
        search: search settings that override each system's own.
        single: True if only one system, or ensemble, can be used: by default the system that was
            trained last.
    Raises: ConfigError for an unknown name (naming the nearest), a bad setting, or too many
        systems; DataError if none is trained.
    """
    systems = [run.find_system(name) for name in dict.fromkeys(names)] or trained(run)
    if ensemble:
        if len(systems) < 2:
            raise ConfigError(
                f"an ensemble needs two systems or more, not {len(systems)}",
                where="--ensemble",
                hint="name them: --system A --system B",
            )
        group = _group(run, systems, search)
        if not single and len(group.name.encode()) > LONGEST:
            raise ConfigError(
                "the name of this ensemble is too long for a folder",
                where="--ensemble",
                hint="name fewer systems, or a source file: its translation goes to stdout",
            )
        return [group]
    if single and len(systems) > 1:
        if names:
            raise ConfigError(
                f"{len(systems)} systems are named, but only one can be used here",
                where="--system",
                hint="name one, or add --ensemble",
            )
        systems = [trained_last(systems)]
        console.say(
            f"translating with '{systems[0].name}', the system trained last (others: --system"
            " NAME, in Python system=NAME)"
        )
    if not single and not names:
        systems = list(filter(_is_readable, systems)) or systems  # the first raises its error
    return [_group(run, [system], search) for system in systems]


def trained(run: Run) -> list[System]:
    """Return the systems of a run that have a checkpoint.

    Raises: DataError if there is none.
    """
    begun = run.systems()
    systems = [s for s in begun if checkpoints.candidates(s.checkpoints)]
    if not systems:
        if begun and checkpoints.was_trained(begun[0]):
            raise checkpoints.lost(begun[0])
        missing = "has a checkpoint yet" if begun else "has been trained in this run"
        command = f"nmtkit train --system {begun[0].name}" if begun else "nmtkit train"
        hint = command + run.needed_option
        raise DataError(f"no system {missing}", where=run.path / "systems", hint=hint)
    return systems


def _is_readable(system: System) -> bool:
    """True if the search settings of a system can be read; otherwise a warning gives the reason."""
    try:
        system.searching()
    except NmtkitError as error:
        console.warn(f"skipping '{system.name}': {error.message} ({error.where})")
        return False
    return True


def trained_last(systems: list[System]) -> System:
    """Return the system whose last checkpoint is the newest. All systems have a checkpoint."""

    def time(system: System) -> int:
        record, steps = system.read_record(), checkpoints.candidates(system.checkpoints)
        return record and record.trained or steps[-1].stat().st_mtime_ns

    return max(systems, key=time)


def _group(run: Run, systems: list[System], search: dict[str, Any]) -> SystemGroup:
    """Return a group with the search settings of its first system, overridden by `search`."""
    values = systems[0].searching().model_dump() | search
    built = settings.build(SearchSettings, values, "search")
    return SystemGroup(run, systems, built, built.average if "average" in search else None)


def search_overrides(options: TranslateOptions) -> dict[str, Any]:
    """Return the search settings of a command, weakest first: all of --preset, those in --config,
    --set search.key=value, and options such as --beam.

    Other sections of the preset and the file are ignored.

    Raises: ConfigError for --set of another section, for a file without search settings, and for
        settings that cannot be read.
    """
    values: dict[str, Any] = {}
    assigned = settings.parse_set(options.assignments)
    assigned_search = assigned.pop("search", {})
    for section in assigned:
        raise ConfigError(
            f"'{section}' settings cannot be changed at translation",
            where="--set",
            hint="only search.… can: --set search.beam=10",
        )
    if options.preset:
        preset = settings.load_preset(options.preset)["search"]
        values |= settings.build(SearchSettings, preset, "search").model_dump()
    if options.config is not None:
        sections = settings.load_config(options.config)
        if "search" not in sections:
            hint = "write them below a line [search]"
            raise ConfigError("the file has no search settings", options.config, hint)
        values |= sections["search"]
    values |= assigned_search
    values |= options.model_dump(include=set(SearchSettings.model_fields), exclude_none=True)
    return values


def owned(folder: Path) -> set[str]:
    """Return the files of nmtkit in the folder of a translation."""
    meta = load_or_warn(TranslationMeta, folder / META)
    return {META, *unchanged(folder, meta.files)} if meta else set()
