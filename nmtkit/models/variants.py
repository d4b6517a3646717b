"""The table of variants (variants.toml), and new models of a variant."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple

import torch

from nmtkit import fields, settings
from nmtkit.environment import import_module
from nmtkit.errors import ConfigError, NmtkitError, nearest
from nmtkit.models.base import Model, Vocabularies


class Variant(NamedTuple):
    """One entry of the table: its class as `module:Class`, and what the variant is."""

    target: str
    summary: str


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
VARIANTS = {name: Variant(**entry) for name, entry in _TABLE.items()}


def load_variant(name: str) -> type[Model]:
    """Return the class of a variant: a name of the table, or `package.module:Class`.

    Raises: ConfigError if there is no such variant, its module cannot be imported (naming the
        line), or it is not a Model.
    """
    target = VARIANTS[name].target if name in VARIANTS else name
    module_name, colon, class_name = target.partition(":")
    if not colon:
        hint = nearest(name, VARIANTS) + " - or package.module:Class for one of your own"
        raise ConfigError(f"unknown variant '{name}'", where="--variant", hint=hint)
    try:
        module = import_module(module_name)
    except NmtkitError:
        raise
    except Exception as error:  # whatever the module does
        if name in VARIANTS:
            raise
        raise _not_imported(name, module_name, error) from error
    cls = getattr(module, class_name, None)
    if cls is None:
        raise ConfigError(f"module {module_name} has no class {class_name}", where="--variant")
    if not (isinstance(cls, type) and issubclass(cls, Model)):
        message = f"{name} is not a subclass of nmtkit.models.base.Model"
        raise ConfigError(message, where="--variant", hint="see 'add your own' in the README")
    return cls


def _not_imported(name: str, module: str, error: Exception) -> ConfigError:
    """Return the error for a module of someone's own that is not there, or that fails."""
    message, where = f"cannot import variant '{name}': ", "--variant"
    missing = isinstance(error, ModuleNotFoundError) and error.name
    if missing and f"{module}.".startswith(f"{missing}."):
        return ConfigError(message + str(error), where=where, hint="is its folder on PYTHONPATH?")
    for frame in reversed(extract_tb(error.__traceback__)):
        if frame.name == "<module>":
            where = f"{frame.filename}, line {frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    message += f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    hint = "its module fails when it is imported: mend it there (--debug shows the traceback)"
    return ConfigError(message, where=where, hint=hint)


def default_name(variant: str) -> str:
    """Return the default system name: the variant's, or the class's in lower-case with hyphens."""
    name = variant.rpartition(":")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower() if ":" in variant else variant


def build_model(variant: str, values: dict[str, Any], vocabularies: Vocabularies) -> Model:
    """Return a new model of a variant, its weights drawn from torch's current generator.

    Args:
        variant: a name of the table, or package.module:Class.
        values: the section `model` as plain values; what is left out has the variant's default.
        vocabularies: the sizes of the vocabularies, and whether they are one.
    Raises: ConfigError for an unknown variant or setting, a bad value, or settings that do not go
        together.
    """
    cls = load_variant(variant)
    model = cls(settings.build(cls.Settings, values, "model"), vocabularies)
    model.initialise()
    return model


def describe(preset: str | None = None, vocab_size: int | None = None) -> list[dict[str, Any]]:
    """Return the variants as plain values, for people and for JSON.

    Args:
        preset: whose sizes the parameters are counted with; None = base.
        vocab_size: V, of each side (one vocabulary where the preset ties all embeddings); None =
            32,000.
    Returns: name, what, paper, parameters, and settings (see `fields.Setting`) of each variant of
        the table.
    Raises: ConfigError for an unknown preset.
    """
    sizes = settings.load_preset(preset or "base").get("model", {})
    vocabularies = Vocabularies(vocab_size or 32_000, vocab_size or 32_000, shared=True)
    rows = []
    for name, variant in VARIANTS.items():
        cls = load_variant(name)
        with torch.device("meta"):  # shapes alone, no memory
            parameters = count_parameters(build_model(name, cls.adapt(sizes), vocabularies))
        keys = [asdict(setting) for setting in fields.describe(cls.Settings)]
        row = {"name": name, "what": variant.summary, "paper": cls.paper}
        rows.append(row | {"parameters": parameters, "settings": keys})
    return rows


def count_parameters(model: torch.nn.Module) -> int:
    """Return the trainable numbers, tied ones counted once."""
    return sum(p.numel() for p in model.parameters())
