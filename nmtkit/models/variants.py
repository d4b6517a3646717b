"""The table of variants (variants.toml), and new models of a variant."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nmtkit import fields, settings
from nmtkit.errors import ConfigError, nearest
from nmtkit.models.base import Model, ModelSettings, Vocabularies
from nmtkit.presets import preset_names
from nmtkit.user_classes import check_base, load_class


class Variant(NamedTuple):
    """One entry of the table: its class as `module:Class`, and what the variant is."""

    target: str
    summary: str


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
VARIANTS = {name: Variant(**entry) for name, entry in _TABLE.items()}
BASELINE = next(iter(VARIANTS))
"""The variant of a call that names none."""


def load_variant(name: str) -> type[Model]:
    """Return the class of a variant: a name of the table, or `package.module:Class`.

    Raises: ConfigError if there is no such variant, or as `load_class`.
    """
    if name in VARIANTS:
        module_name, _, class_name = VARIANTS[name].target.partition(":")
        return getattr(importlib.import_module(module_name), class_name)  # type: ignore[no-any-return]
    if ":" in name:
        guide = "nmtkit/models/README.md"
        cls: type[Model] = load_class(name, Model, "variant", "--variant", guide)
        check_base(cls.Settings, ModelSettings, f"Settings of {name}", "--variant", guide)
        return cls
    own = "`nmtkit variants` lists them, package.module:Class is one of your own"
    raise ConfigError(
        f"unknown variant '{name}'",
        where="--variant",
        hint=f"{nearest(name, VARIANTS)} - {own}",
    )


def default_name(variant: str) -> str:
    """Return the default system name: the variant's, or the class's in lower-case with hyphens."""
    name = variant.rpartition(":")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower() if ":" in variant else variant


def common_width(preset: str, model: Mapping[str, Any]) -> int:
    """Return the width D that decides the number type and the noam learning rate of a system: its
    `d_model`, its `d_embedding`, or, if it has neither, the preset's `d_model` (else 256).

    By default these are equal in all systems of a preset that has a `d_model`. So they compute and
    learn alike, and only the models are compared.

    Args:
        preset: its name; one that no longer exists counts as none.
        model: the settings of the model.
    """
    sizes = settings.load_preset(preset).get("model", {}) if preset in preset_names() else {}
    return int(model.get("d_model") or model.get("d_embedding") or sizes.get("d_model") or 256)


def build_model(
    variant: str, values: dict[str, Any], vocabularies: Vocabularies, file: Path | None = None
) -> Model:
    """Return a new model of a variant, its weights drawn from torch's current generator.

    Args:
        variant: a name of the table, or package.module:Class.
        values: the section `model` as plain values; what is left out has the variant's default.
        vocabularies: the sizes of the vocabularies, and whether they are one.
        file: the settings file that the values are from, for messages.
    Raises: ConfigError for an unknown variant or setting, a bad value, or settings that do not go
        together.
    """
    cls = load_variant(variant)
    built = settings.build(cls.Settings, values, "model", file)
    try:
        model = cls(built, vocabularies)
    except ConfigError as error:  # settings that do not go together: it names keys, not the file
        if file is None:
            raise
        raise ConfigError(
            error.message,
            where=", ".join(filter(None, [str(file), error.where])),
            hint=error.hint,
        ) from error
    model.initialise()
    return model


def describe(
    preset: str = "base", vocab_size: int = 32_000, names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the variants as plain values, for people and for JSON.

    Args:
        preset: whose sizes the parameters are counted with.
        vocab_size: V, of each side (one vocabulary where the preset ties all embeddings).
        names: of the table, or package.module:Class; none = all of the table.
    Returns: name, what, paper, parameters, and settings (see `fields.Setting`) of each variant.
    Raises: ConfigError for an unknown preset; as `load_variant`.
    """
    sizes = settings.load_preset(preset).get("model", {})
    vocabularies = Vocabularies(vocab_size, vocab_size, shared=True)
    rows = []
    for name in names or VARIANTS:
        cls = load_variant(name)
        about = VARIANTS[name].summary if name in VARIANTS else inspect.cleandoc(cls.__doc__ or "")
        # Only shapes, no memory; a class of the user's own may need numbers.
        with torch.device("meta" if name in VARIANTS else "cpu"):
            model = build_model(name, cls.adapt(sizes), vocabularies)
        rows.append(
            {
                "name": name,
                "what": " ".join(about.partition("\n\n")[0].split()),
                "paper": cls.paper,
                "parameters": count_parameters(model),
                "settings": [asdict(setting) for setting in fields.describe(cls.Settings)],
            }
        )
    return rows


def count_parameters(model: torch.nn.Module) -> int:
    """Return the trainable numbers, tied ones counted once."""
    return sum(p.numel() for p in model.parameters())
