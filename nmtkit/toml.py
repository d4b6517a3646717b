"""Read TOML files that a person wrote, write plain values as TOML, compare settings."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.errors import ConfigError


def read_toml(path: Path, kind: str, option: str, example: str) -> dict[str, Any]:
    """Return the values of a TOML file that a person wrote.

    Args:
        path: the file.
        kind: the kind of file, for the message.
        option: the option that names the file, for the message.
        example: the right form of the file, for the message.
    Raises: ConfigError if the file cannot be read or is not TOML.
    """
    try:
        with open(path, "rb") as stream:
            content = stream.read(files.LONGEST + 1)  # a pipe may never end
        if len(content) > files.LONGEST:
            raise ConfigError(f"{kind} has more than 16 MiB", where=path, hint=f"check {option}")
        return tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {kind}: {error.strerror}", where=path, hint=f"check {option}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not valid TOML: {error}", where=path, hint=example) from error


def write_toml(path: Path, values: dict[str, Any]) -> None:
    """Write plain values and sections as TOML, atomically."""
    files.write_text(path, to_toml(values))


def to_toml(sections: dict[str, Any]) -> str:
    """Return plain values, and one level of sections, as TOML.

    A plain value is a string, a number, a boolean, or a list of these. None in a section is left
    out.
    """
    lines, tables = [], []
    for name, values in sections.items():
        if not isinstance(values, dict):
            lines.append(f"{name} = {toml_value(values)}")
            continue
        tables += ["", f"[{name}]"]
        tables += [f"{k} = {toml_value(value)}" for k, value in values.items() if value is not None]
    return "\n".join(lines + tables).lstrip("\n") + "\n"


def toml_value(value: object) -> str:
    """Return a plain value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)


def flat(values: Any, key: str = "") -> dict[str, Any]:
    """Return the values of nested tables, and of lists of named tables, by dotted keys.

    A tuple becomes a list, because TOML has no tuples.
    """
    if isinstance(values, list) and values and all(isinstance(part, dict) for part in values):
        values = {str(part.get("name", "")): part for part in values}
    if not isinstance(values, dict):
        return {key: list(values) if isinstance(values, tuple) else values}
    result: dict[str, Any] = {}
    for name, part in values.items():
        result |= flat(part, f"{key}.{name}" if key else name)
    return result


def changes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the old and the new text of each value that differs, for a message.

    The name of the preset is left out, because its values are compared.
    """
    return {
        key: (_shown(old.get(key)), _shown(new.get(key)))
        for key in sorted((old.keys() | new.keys()) - {"preset"})
        if old.get(key) != new.get(key)
    }


def _shown(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "-" if value is None else text or "-"


def values_of(sections: dict[str, Any]) -> int:
    """Return the number of values in a TOML file and its sections, without the key `values`."""
    values = flat(sections).items()
    return sum(value is not None for key, value in values if key != "values")


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not the same in all settings."""
    keys = dict.fromkeys(itertools.chain(*settings))
    return [key for key in keys if any(of.get(key) != settings[0].get(key) for of in settings)]
