"""What translates: one trained system or an ensemble of several, with its search settings and
checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nmtkit import console, settings
from nmtkit.errors import ConfigError, DataError
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model
from nmtkit.nn import hardware
from nmtkit.nn.linear import Precision
from nmtkit.records import UsedCheckpoint
from nmtkit.run import Run, System
from nmtkit.settings import SearchSettings
from nmtkit.translate.options import TranslateOptions


@dataclass(frozen=True)
class Chosen:
    """A system, or several that translate together."""

    run: Run
    systems: list[System]
    settings: SearchSettings
    average: int | None = None
    """How many checkpoints are averaged, where a command line says so; None = as many as each
    system's own settings say.
    """

    @property
    def name(self) -> str:
        """The system's name, or ensemble-a+b."""
        return (
            self.systems[0].name
            if len(self.systems) == 1
            else "ensemble-" + "+".join(s.name for s in self.systems)
        )

    def translation(self, set_name: str) -> Path:
        """The folder of its translation of a set."""
        return self.run.system(self.name).translation(set_name)

    @cached_property
    def _paths(self) -> list[list[Path]]:
        """The checkpoints of each system, looked for once: what is written down as translated
        with is what was loaded.
        """
        return [checkpoints.choose(system, self.average) for system in self.systems]

    def checkpoints(self) -> list[UsedCheckpoint]:
        """The checkpoints that `load` reads, each with the hash of its weights.

        Raises: CheckpointError if a system has no valid one.
        """
        read = [
            (system.name, checkpoints.digests(paths))
            for system, paths in zip(self.systems, self._paths, strict=True)
        ]
        return [
            UsedCheckpoint(system, name, digest)
            for system, digests in read
            for name, digest in digests.items()
        ]

    def hardware(self, device: torch.device, forced: bool = False) -> hardware.Hardware:
        """How this machine computes their translations; with `forced`, their scores of given
        targets, which are float32.

        Raises: ConfigError for a precision that the device has none of.
        """
        asked = self.settings.precision
        if device.type != "cpu" and asked == "bfloat16":
            raise ConfigError(
                "a GPU searches in TF32",
                where="search.precision",
                hint="leave it out: bfloat16 is for CPUs that multiply it faster",
            )
        return hardware.choose(
            str(device), asked if device.type == "cpu" and not forced else "float32"
        )

    def load(self, device: torch.device, precision: Precision = "float32") -> list[Model]:
        """The models in eval mode, with products of a precision on a CPU.

        Raises: CheckpointError if a checkpoint is damaged or of another vocabulary.
        """
        return [
            loading.load_system(self.run, system, device, paths, precision)
            for system, paths in zip(self.systems, self._paths, strict=True)
        ]


def choose(
    run: Run, names: list[str], ensemble: bool, search: dict[str, Any], single: bool
) -> list[Chosen]:
    """The systems to translate with.

    Args:
        run: their run.
        names: as the person gave them; none = all that have a checkpoint.
        ensemble: all of them together.
        search: search settings that win over each system's own.
        single: one is wanted; if none is named, the one trained last.
    Returns: at least one.
    Raises: ConfigError for an unknown name (naming the nearest), a bad setting, or more systems
        than wanted; DataError if none is trained.
    """
    systems = [run.find_system(name) for name in dict.fromkeys(names)]
    if not systems:
        systems = trained(run)
        if single and not ensemble and len(systems) > 1:
            systems = [trained_last(systems)]
            console.say(
                f"translating with '{systems[0].name}', the system trained last (others: --system"
                " NAME)"
            )
    if ensemble:
        if len(systems) < 2:
            message = f"an ensemble needs two systems or more, not {len(systems)}"
            raise ConfigError(message, where="--ensemble", hint="name them: --system A --system B")
        return [_chosen(run, systems, search)]
    if single and len(systems) > 1:
        named = ", ".join(s.name for s in systems)
        raise ConfigError(
            f"one system is wanted here, not {named}",
            where="--system",
            hint="name one, or add --ensemble",
        )
    return [_chosen(run, [system], search) for system in systems]


def trained(run: Run) -> list[System]:
    """The systems of a run that have a checkpoint.

    Raises: DataError if there is none.
    """
    systems = [s for s in run.systems() if checkpoints.candidates(s.checkpoints)]
    if not systems:
        what = "has a checkpoint yet" if run.systems() else "has been trained in this run"
        raise DataError(f"no system {what}", where=run.path / "systems", hint="nmtkit train")
    return systems


def trained_last(systems: list[System]) -> System:
    """Of systems that have a checkpoint, the one whose last checkpoint is the newest."""
    return max(systems, key=lambda s: checkpoints.candidates(s.checkpoints)[-1].stat().st_mtime_ns)


def _chosen(run: Run, systems: list[System], search: dict[str, Any]) -> Chosen:
    """What translates, searching as the first system's settings say where `search` does not."""
    found = settings.build(
        SearchSettings, {**systems[0].read_config().get("search", {}), **search}, "search"
    )
    return Chosen(run, systems, found, found.average if "average" in search else None)


def overrides(options: TranslateOptions) -> dict[str, Any]:
    """Return search settings, weakest first: all of --preset, those in --config, --set
    search.key=value, and options such as --beam.

    The preset's and the file's other sections say how to prepare and to train, and are of no use
    here.

    Raises: ConfigError for --set of another section, for a file without search settings, and as
        these are read.
    """
    preset, config = options.preset, options.config
    values = settings.parse_set(options.assignments)
    other = next((section for section in values if section != "search"), None)
    if other is not None:
        message = f"'{other}' settings cannot be changed at translation"
        raise ConfigError(message, where="--set", hint="only search.… can: --set search.beam=10")
    layers = (
        [
            settings.build(
                SearchSettings, settings.load_preset(preset)["search"], "search"
            ).model_dump()
        ]
        if preset
        else []
    )
    if config is not None:
        sections = settings.load_config(config)
        if "search" not in sections:
            raise ConfigError(
                "no settings of the search in here",
                where=config,
                hint="write them below a line [search]",
            )
        layers.append(sections["search"])
    named = options.model_dump(include=set(SearchSettings.model_fields), exclude_none=True)
    return {
        key: value
        for layer in [*layers, values.get("search", {}), named]
        for key, value in layer.items()
    }
