"""The command line: one command a stage, and lists of what there is. Each parses its options, calls one function and prints what it returns."""

from nmtkit.cli import stages  # first, for the help lists the commands in the order in which they are made

# isort: split
from nmtkit.cli import lists
from nmtkit.cli.door import app, main

__all__ = ["app", "lists", "main", "stages"]
