"""The keys of a settings class with their type, default, allowed values and meaning; and the keys
that may change when a training is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from nmtkit.settings import build
from nmtkit.toml import toml_value

LIMITS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "multipleOf": "a multiple of",
}
# Settings that may change when a training is resumed: they decide how long it lasts and what is
# kept and reported. `deterministic` and `matmul` change only how an update is rounded.
HARMLESS = {
    *("train.max_steps", "train.max_minutes", "train.patience", "train.log_every", "train.samples"),
    *("train.checkpoint_every", "train.keep_checkpoints", "train.dev_bleu", "train.dev_sentences"),
    *("train.best_by", "train.min_lr", "train.deterministic", "train.matmul", "train.log_to"),
}


@dataclass(frozen=True)
class Setting:
    """One key of a settings class."""

    name: str
    type: str
    """For example integer, number, boolean, string, "2 numbers", "list of strings"."""
    default: Any
    allowed: str
    """The choices ("noam|cosine") or the limits ("≥ 0, < 1"), of each entry of a list. Empty if
    every value of the type is allowed.
    """
    description: str

    @property
    def values(self) -> str:
        """Type and allowed values in one text: "integer ≥ 1", "noam|cosine", "true|false"."""
        if self.type == "boolean":
            return "true|false"
        return self.allowed if "|" in self.allowed else f"{self.type} {self.allowed}".strip()

    @property
    def default_text(self) -> str:
        """The default as `--set` takes it."""
        plain = isinstance(self.default, str) and self.default
        return self.default if plain else toml_value(self.default)


def describe(
    schema: type[BaseModel], values: Mapping[str, Any] | None = None, section: str = ""
) -> list[Setting]:
    """Return all keys of a settings class.

    Args:
        schema: the class.
        values: values that replace defaults, for example those of a preset.
        section: name of the section, for messages.
    Raises: ConfigError if a value is not allowed.
    """
    defaults = build(schema, dict(values or {}), section)
    properties = schema.model_json_schema()["properties"]
    return [
        Setting(
            name,
            _type(properties[name]),
            getattr(defaults, name),
            _allowed(properties[name]),
            " ".join((field.description or "").split()),
        )
        for name, field in schema.model_fields.items()
    ]


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return "|".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        entries = schema.get("prefixItems")
        return (
            f"{len(entries)} {_type(entries[0])}s"
            if entries
            else f"list of {_type(schema.get('items', {}))}s"
        )
    return str(schema.get("type", "any"))


def _allowed(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return _allowed((schema.get("prefixItems") or [schema.get("items", {})])[0])
    return ", ".join(f"{sign} {schema[key]:,.15g}" for key, sign in LIMITS.items() if key in schema)
