"""The command lines of the benchmarks."""

from __future__ import annotations

import argparse


def parser(description: str | None, **defaults: int | list[int]) -> argparse.ArgumentParser:
    """A parser with options of whole numbers, or lists of them, by their defaults."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        many = "+" if isinstance(default, list) else None
        made.add_argument(f"--{name}".replace("_", "-"), type=int, nargs=many, default=default)
    return made
