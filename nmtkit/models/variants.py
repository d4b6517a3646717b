"""The table of variants: a name, where its class lives. Adding a paper to nmtkit is one file and one line here."""

from __future__ import annotations

import importlib
import re

from nmtkit.errors import ConfigError, NmtkitError, nearest
from nmtkit.models.base import Model

VARIANTS: dict[str, str] = {
    "transformer": "nmtkit.models.transformer:Transformer",
}


def load_variant(name: str) -> type[Model]:
    """The class of a variant: a name of the table, or `package.module:Class` for one of your own.

    Raises: ConfigError if there is no such variant, or it is not a Model.
    """
    target = VARIANTS.get(name, name)
    module_name, colon, class_name = target.partition(":")
    if not colon:
        raise ConfigError(f"unknown variant '{name}'", where="--variant", hint=nearest(name, VARIANTS) + " - or package.module:Class for one of your own")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except NmtkitError:
        raise
    except ImportError as error:
        raise ConfigError(f"cannot import variant '{name}': {error}", where="--variant", hint="is its folder on PYTHONPATH?") from error
    except AttributeError:
        raise ConfigError(f"module {module_name} has no class {class_name}", where="--variant") from None
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise ConfigError(f"{name} is not a subclass of nmtkit.models.base.Model", where="--variant", hint="see 'add your own' in the README")
    return found


def default_name(variant: str) -> str:
    """The system name for a variant when --name is not given: the variant's, or the class's in lower-case with hyphens."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", variant.rpartition(":")[2]).lower() if ":" in variant else variant
