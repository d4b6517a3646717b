"""The door: the program `nmtkit`, which turns whatever ends a command into a message and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import nmtkit
from nmtkit.errors import NmtkitError

_debug = bool(os.environ.get("NMTKIT_DEBUG"))


def set_debug(value: bool) -> None:
    """Let errors show their traceback (once on, it stays on)."""
    global _debug
    _debug = _debug or value


class Door(TyperGroup):
    """Runs a command and turns whatever ends it into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises: typer.Exit with the code of the error (2, 3, 4, 75), 130 after Ctrl-C, 0 when the reader of stdout has gone.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except NmtkitError as error:
            if _debug:
                raise
            with contextlib.suppress(OSError):
                print(f"nmtkit: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            # `nmtkit … | head`: nothing to say, and nothing may be flushed into the closed pipe at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            if _debug:
                raise
            raise typer.Exit(130) from None
        except Exception as error:
            if _debug or type(error).__module__.startswith(("typer", "click")):
                raise
            print(f"nmtkit: internal error: {type(error).__name__}: {error}\n  this is a fault of nmtkit; --debug shows where", file=sys.stderr)
            raise typer.Exit(1) from None
        return result


app = typer.Typer(
    name="nmtkit",
    cls=Door,
    help="Parallel text through prep, train, translate, score and analyze: which change to the translation model helps, at what cost?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"nmtkit {nmtkit.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; errors become three lines on stderr and an exit code (0, 2, 3, 4, 75, 130)."""
    # Read by OpenMP when torch is loaded. A thread that spins while it waits keeps the other one from the core they share with
    # another program, and a step takes ten times as long; spinning briefly costs a quiet machine a few per cent with tiny models.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape" if stream is sys.stdin else "backslashreplace")  # type: ignore[union-attr]
    app()
