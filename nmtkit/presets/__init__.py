"""Presets: a TOML file each, with all settings of a paper or of a size.

This module does not import the schema of the settings, which takes long to load.
"""

from __future__ import annotations

from importlib import resources


def preset_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(
        path.name.removesuffix(".toml")
        for path in resources.files(__name__).iterdir()
        if path.name.endswith(".toml")
    )


def preset_text(name: str) -> str:
    """Return the text of a preset's file."""
    return resources.files(__name__).joinpath(f"{name}.toml").read_text("utf-8")
