"""Options, commands of nmtkit and JSON files of the benchmarks."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def parser(description: str | None, **defaults: int | list[int]) -> argparse.ArgumentParser:
    """Return a parser with an option for each default: an integer or a list of them."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        nargs = "+" if isinstance(default, list) else None
        options.add_argument(f"--{name}".replace("_", "-"), type=int, nargs=nargs, default=default)
    return options


def nmtkit(*words: object) -> list[str]:
    """Return a command line of nmtkit for this interpreter."""
    return [sys.executable, "-m", "nmtkit", *map(str, words)]


def write_json(path: Path | None, figures: object) -> None:
    """Write the figures to the file of --json, if it is given."""
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
