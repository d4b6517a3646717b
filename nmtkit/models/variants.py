"""The table of variants: a name, where its class lives. Adding a paper to nmtkit is one file and one line here."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import asdict
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple

import torch

from nmtkit import fields, settings
from nmtkit.errors import ConfigError, NmtkitError, nearest
from nmtkit.models.base import Model, Vocabularies


class Variant(NamedTuple):
    """One entry of the table: where its class is (`module:Class`, imported when it is asked for) and what it is, in a line."""

    target: str
    what: str


VARIANTS: dict[str, Variant] = {
    "transformer": Variant("nmtkit.models.transformer:Transformer", "the baseline: post- or pre-norm, three ways of tying, biases as settings"),
    "enc-dc": Variant(
        "nmtkit.models.dual_context:DualContext", "attention to summaries of each position's neighbours beside the positions, in the encoder"
    ),
    "dec-dc": Variant(
        "nmtkit.models.dual_context:DecoderDualContext", "attention to summaries of each position's neighbours beside the positions, in the decoder"
    ),
    "full-dc": Variant(
        "nmtkit.models.dual_context:FullDualContext",
        "attention to summaries of each position's neighbours beside the positions, in encoder and decoder",
    ),
    "pr": Variant(
        "nmtkit.models.phrase:PhraseTransformer", "attention to source phrases beside source tokens; phrases are n-grams or follow parse trees"
    ),
    "amn": Variant(
        "nmtkit.models.memory:AssociatedMemoryTransformer",
        "attention to the words of other sentences of the document through an associated memory and a gate",
    ),
    "context-aware": Variant(
        "nmtkit.models.context_aware:ContextAwareTransformer", "the encoder's last layer attends to the source and to a context sentence, with a gate"
    ),
    "han": Variant("nmtkit.models.han:HierarchicalAttentionNetwork", "attention to the words of each context sentence, then to the sentences"),
    "concat": Variant("nmtkit.models.concat:ConcatTransformer", "context, a break and the source as one sentence"),
    "rnnsearch": Variant("nmtkit.models.rnnsearch:RNNSearch", "recurrent encoder and decoder with additive attention"),
    "caru": Variant("nmtkit.models.caru:CARUAttention", "RNNSearch with CARU cells, CARU-gated attention, CAEmbed and L1(exp(Nx)); each a setting"),
    "gru-inv": Variant("nmtkit.models.caru:GRUInv", "RNNSearch with its attention gated by a GRU, the decoder's state as history"),
    "gatt": Variant("nmtkit.models.caru:GAtt", "RNNSearch with its attention gated by a GRU, the source's state as history"),
}


def load_variant(name: str) -> type[Model]:
    """The class of a variant: a name of the table, or `package.module:Class` for one of your own.

    Raises: ConfigError if there is no such variant, its module cannot be imported (naming the line), or it is not a Model.
    """
    target = VARIANTS[name].target if name in VARIANTS else name
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
    Returns: name, what, paper, parameters, and settings (see `fields.Setting`) of each variant of the table.
    Raises: ConfigError for an unknown preset.
    """
    sizes = settings.load_preset(preset or "base").get("model", {})
    size = vocab_size or 32_000
    rows = []
    for name, (_, what) in VARIANTS.items():
        cls = load_variant(name)
        with torch.device("meta"):  # shapes alone, no memory
            model = build_model(name, cls.adapt(sizes), Vocabularies(size, size, shared=True))
        rows.append(
            {
                "name": name,
                "what": what,
                "paper": cls.paper,
                "parameters": count_parameters(model),
                "settings": [asdict(setting) for setting in fields.describe(cls.Settings)],
            }
        )
    return rows


def count_parameters(model: torch.nn.Module) -> int:
    """Trainable numbers, tied ones counted once."""
    return sum(p.numel() for p in model.parameters())
