"""The options of the benchmarks, the commands of nmtkit that they call, and their JSON files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def parser(description: str | None, **defaults: int | list[int]) -> argparse.ArgumentParser:
    """A parser with options of whole numbers, or lists of them, by their defaults."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        many = "+" if isinstance(default, list) else None
        made.add_argument(f"--{name}".replace("_", "-"), type=int, nargs=many, default=default)
    return made


def nmtkit(*words: object) -> list[str]:
    """A command of nmtkit for this interpreter."""
    return [sys.executable, "-m", "nmtkit", *map(str, words)]


def write_json(path: Path | None, figures: object) -> None:
    """Write the figures to the file of --json, if it is given."""
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
