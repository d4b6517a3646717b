"""The table of variants: a name, where its class lives. Adding a paper to nmtkit is one file and one line here."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import asdict
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch

from nmtkit import fields, settings
from nmtkit.errors import ConfigError, NmtkitError, nearest
from nmtkit.models.base import Model, Vocabularies

VARIANTS: dict[str, str] = {
    "transformer": "nmtkit.models.transformer:Transformer",
    "enc-dc": "nmtkit.models.dual_context:DualContext",
    "dec-dc": "nmtkit.models.dual_context:DecoderDualContext",
    "full-dc": "nmtkit.models.dual_context:FullDualContext",
    "pr": "nmtkit.models.phrase:PhraseTransformer",
    "amn": "nmtkit.models.memory:AssociatedMemoryTransformer",
    "context-aware": "nmtkit.models.context_aware:ContextAwareTransformer",
    "han": "nmtkit.models.han:HierarchicalAttentionNetwork",
    "concat": "nmtkit.models.concat:ConcatTransformer",
    "rnnsearch": "nmtkit.models.rnnsearch:RNNSearch",
    "caru": "nmtkit.models.caru:CARUAttention",
    "gru-inv": "nmtkit.models.caru:GRUInv",
    "gatt": "nmtkit.models.caru:GAtt",
}


def load_variant(name: str) -> type[Model]:
    """The class of a variant: a name of the table, or `package.module:Class` for one of your own.

    Raises: ConfigError if there is no such variant, its module cannot be imported (naming the line), or it is not a Model.
    """
    target = VARIANTS.get(name, name)
    module_name, colon, class_name = target.partition(":")
    if not colon:
        hint = nearest(name, VARIANTS) + " - or package.module:Class for one of your own"
        raise ConfigError(f"unknown variant '{name}'", where="--variant", hint=hint)
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)  # `nmtkit` itself does not look in the folder one stands in; `python -m nmtkit` does
    try:
        module = importlib.import_module(module_name)
    except NmtkitError:
        raise
    except Exception as error:  # whatever the module does
        if name in VARIANTS:
            raise
        raise _not_imported(name, module_name, error) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise ConfigError(f"module {module_name} has no class {class_name}", where="--variant")
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise ConfigError(f"{name} is not a subclass of nmtkit.models.base.Model", where="--variant", hint="see 'add your own' in the README")
    return found


def _not_imported(name: str, module: str, error: Exception) -> ConfigError:
    """What to say of a module of someone's own: it is not found, or it is and fails."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return ConfigError(f"cannot import variant '{name}': {error}", where="--variant", hint="is its folder on PYTHONPATH?")
    where = next((f"{frame.filename}, line {frame.lineno}" for frame in extract_tb(error.__traceback__) if frame.name == "<module>"), "--variant")
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    said = str(error).partition("\n")[0]
    hint = "its module fails when it is imported: mend it there (--debug shows the traceback)"
    return ConfigError(f"cannot import variant '{name}': {type(error).__name__}: {said}", where=where, hint=hint)


def default_name(variant: str) -> str:
    """The system name for a variant when --name is not given: the variant's, or the class's in lower-case with hyphens."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", variant.rpartition(":")[2]).lower() if ":" in variant else variant


def build_model(variant: str, values: dict[str, Any], vocabularies: Vocabularies) -> Model:
    """A new model of a variant, its weights drawn from torch's current generator.

    Args:
        variant: a name of the table, or package.module:Class.
        values: the section `model` as plain values; what is left out has the variant's default.
        vocabularies: the sizes of the vocabularies, and whether they are one.
    Raises: ConfigError for an unknown variant or setting, a bad value, or settings that do not go together.
    """
    cls = load_variant(variant)
    model = cls(settings.build(cls.Settings, values, "model"), vocabularies)
    model.initialise()
    return model


def describe(preset: str | None = None, vocab_size: int | None = None) -> list[dict[str, Any]]:
    """The variants as plain values, for people and for JSON.

    Args:
        preset: whose sizes the parameters are counted with; None = base.
        vocab_size: V, of each side (one vocabulary where the preset ties all embeddings); None = 32,000.
    Returns: name, paper, parameters, and settings (see `fields.Setting`) of each variant of the table.
    Raises: ConfigError for an unknown preset.
    """
    sizes = settings.load_preset(preset or "base").get("model", {})
    size = vocab_size or 32_000
    rows = []
    for name in VARIANTS:
        cls = load_variant(name)
        with torch.device("meta"):  # shapes alone, no memory
            model = build_model(name, cls.adapt(sizes), Vocabularies(size, size, shared=True))
        rows.append(
            {
                "name": name,
                "paper": cls.paper,
                "parameters": count_parameters(model),
                "settings": [asdict(setting) for setting in fields.describe(cls.Settings)],
            }
        )
    return rows


def count_parameters(model: torch.nn.Module) -> int:
    """Trainable numbers, tied ones counted once."""
    return sum(p.numel() for p in model.parameters())
