"""The command line: the program, and a command for each stage and each list. A command takes its
options, calls one function and prints the result.
"""

from nmtkit.cli import analyze, lists, stages, status  # noqa: F401 - they add their commands to `app`
from nmtkit.cli.program import app, main

__all__ = ["app", "main"]
