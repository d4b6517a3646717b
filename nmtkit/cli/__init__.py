"""The command line: one file a stage's command, and lists of what there is. Each parses its
options, calls one function and prints the result.
"""

import importlib

from nmtkit.cli.door import app, main

for name in (
    "prep",
    "train",
    "translate",
    "score",
    "analyze",
    "report",
    "export",
    "lists",
):  # in the order of the help
    importlib.import_module(f"nmtkit.cli.{name}")

__all__ = ["app", "main"]
