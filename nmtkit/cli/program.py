"""The door: the program `nmtkit`, which turns whatever ends a command into a message and an exit
code.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import nmtkit
from nmtkit import environment
from nmtkit.errors import ConfigError, EnvironmentProblem, NmtkitError, plain

STAGES = ("prep", "train", "translate", "score", "analyze", "report", "export")
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""Settings of typer for every command."""
_debug = bool(os.environ.get("NMTKIT_DEBUG"))


def set_debug(value: bool) -> None:
    """Let errors show their traceback (once on, it stays on)."""
    global _debug
    _debug = _debug or value


def examples(*lines: str, before: str = "For example:", after: str = "") -> str:
    """The end of a command's help: commands as one would type them."""
    return "\n\n".join(
        part for part in (before, "\n".join(lines).replace("[", r"\["), after) if part
    )


class Help:
    """A help whose reader may leave before its end; options that are on or off show no type."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; an option that is on or off shows no type."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help.

        Raises: typer.Exit with 0 when the reader of stdout has gone, for which rich has an exit
            code of 1; with 3 when stdout takes nothing.
        """
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
            sys.stdout.flush()
        except OSError as error:
            raise _of_the_machine(error) from None
        except SystemExit:
            raise typer.Exit(0) from None


class Door(Help, TyperGroup):
    """Runs a command and turns whatever ends it into a message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the stages in their order, then the other commands."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: STAGES.index(name) if name in STAGES else len(names))

    def make_context(self, *args: Any, **options: Any) -> Any:
        try:
            return super().make_context(*args, **options)
        except Exception as error:
            raise _usage(error) or error from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises: typer.Exit with the code of the error (2, 3, 4, 75), 3 after an OSError, 130 after
            Ctrl-C or SIGTERM, 0 when the reader of stdout has gone.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except NmtkitError as error:
            if _debug:
                raise
            _complain(error)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:  # `nmtkit … | head`: nothing to say
            _drop_stdout()
            raise typer.Exit(0) from None
        except OSError as error:
            if _debug:
                raise
            raise _of_the_machine(error) from None
        except KeyboardInterrupt as stopped:
            if _debug:
                raise
            _complain(f"stopped; {str(stopped) or 'what was finished before is kept'}")
            raise typer.Exit(130) from None
        except Exception as error:
            if wrong := _usage(error):
                raise wrong from None
            if _debug or type(error).__module__.startswith(("typer", "click")):
                raise
            _complain(
                f"internal error: {type(error).__name__}: {error}\n  this is a fault of nmtkit;"
                " --debug shows where"
            )
            raise typer.Exit(1) from None
        return result


def _usage(error: Exception) -> typer.Exit | None:
    """Print an error of typer's parser like every other error; None if it is no such error."""
    if not hasattr(error, "format_message"):
        return None
    context = getattr(error, "ctx", None)
    command = (
        "nmtkit"
        if context is None
        else re.sub(
            r"^.*?(?= |$)", "nmtkit", context.command_path.removeprefix("python -m "), count=1
        )
    )
    _complain(
        ConfigError(
            plain(error.format_message().rstrip(".")), where=command, hint=f"{command} --help"
        )
    )
    return typer.Exit(ConfigError.exit_code)


def _complain(what: object) -> None:
    with contextlib.suppress(OSError):  # stderr is as full as the disk, or closed
        print(f"nmtkit: {what}", file=sys.stderr)


def _of_the_machine(error: OSError) -> typer.Exit:
    """Say what the machine refused: a full disk behind stdout, too many open files, a network
    disk that went away.
    """
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()
    where = (
        error.filename or "stdout, or a file that was being written"
    )  # of a stream that is open, errors do not say which it is
    _complain(
        EnvironmentProblem(
            error.strerror or str(error),
            where=where,
            hint="free some space, or mend what refuses; --debug shows where",
        )
    )
    return typer.Exit(EnvironmentProblem.exit_code)


def _drop_stdout() -> None:
    """Let nothing be flushed at exit into a stdout that takes nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="nmtkit",
    cls=Door,
    help=(
        "Parallel text through prep, train, translate, score and analyze: which change to the"
        " translation model helps, at what cost?"
    ),
    epilog=examples(
        *(
            "nmtkit prep demo",
            "nmtkit train",
            "nmtkit translate",
            "nmtkit score --by-length",
            "nmtkit analyze cost",
            "nmtkit report",
        ),
        before="From text to scores, in any folder:",
        after=(
            "Each stage works on the run prepared last under ./runs; --run DIR, or NMTKIT_RUN,"
            " names another. The same command again continues, or says that it is up to date."
        ),
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"nmtkit {nmtkit.__version__}")
        raise typer.Exit


def _open_streams() -> None:
    """Lead stdout and stderr to nowhere where they were closed (`>&-`), or the next files that
    are opened would take their places.
    """
    for number, name in enumerate(("stdout", "stderr"), start=1):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))


def _stop(number: int, frame: object) -> None:
    """End on SIGTERM, by which batch systems stop a job, as on Ctrl-C (training finishes its
    step on both).
    """
    signal.signal(number, signal.SIG_IGN)  # the clearing away is not to be stopped by a second one
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; errors become three lines on stderr and an exit code (0, 2, 3, 4,
    75, 130).
    """
    environment.prepare()
    _open_streams()
    signal.signal(signal.SIGTERM, _stop)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            errors = "surrogateescape" if stream is sys.stdin else "backslashreplace"
            stream.reconfigure(encoding="utf-8", errors=errors)  # type: ignore[union-attr]
    app()
