"""Presets, a TOML file each: all settings of a paper, or of a size. Their names are known
without the settings' schema, which takes long to load.
"""

from __future__ import annotations

from importlib import resources


def preset_names() -> list[str]:
    """Names of the presets that come with nmtkit."""
    return sorted(
        p.name.removesuffix(".toml")
        for p in resources.files(__name__).iterdir()
        if p.name.endswith(".toml")
    )


def preset_text(name: str) -> str:
    """A preset's file."""
    return resources.files(__name__).joinpath(f"{name}.toml").read_text("utf-8")
