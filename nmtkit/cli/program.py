"""The program `nmtkit`: runs a command and turns every error into a message and an exit code."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import nmtkit
from nmtkit import console, environment, settings
from nmtkit.errors import ConfigError, explained, plain
from nmtkit.user_classes import blamed_on

STAGES = ("prep", "train", "translate", "score", "analyze", "report", "export")
STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals of batch systems and of a closed terminal. They end a command as Ctrl-C does."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
"""Settings of typer for every command."""
ONE_FILE = {
    "--train": "put all corpora into one file for each language (cat), or into one TSV file",
    "--dev": "put all sets into one file for each language (cat), or use --test for further sets",
    "--config": "put the settings into one file, or add --set KEY=VALUE",
}
"""Options that may be given once, because a second file would replace the first, each with what to
do instead.
"""
_debug = bool(os.environ.get("NMTKIT_DEBUG"))


def set_debug(value: bool) -> None:
    """Show tracebacks from now on if `value` is True."""
    global _debug
    _debug = _debug or value


def examples(*lines: str, before: str = "For example:", after: str = "") -> str:
    """Return the end of a command's help: example commands."""
    return "\n\n".join(
        part for part in (before, "\n".join(lines).replace("[", r"\["), after) if part
    )


class Help:
    """A command whose errors name the command, and whose help may be piped to `head`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the words of the command line.

        Raises: an error of typer's parser that names the command; ConfigError for an option in the
            place of another option's value, or for a second option of ONE_FILE.
        """
        self._check_words(args)
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # for `--measure=3`
                vars(error)["ctx"] = ctx
            raise

    def _check_words(self, args: list[str]) -> None:
        """Raise ConfigError for `--like --dev FILE`, where typer would take --dev as a value, and
        for a second option of ONE_FILE, because the first file would be ignored.
        """
        parameters = self.params  # type: ignore[attr-defined]
        names = {name for p in parameters for name in p.opts if name.startswith("--")}
        flags = {name for p in parameters if getattr(p, "is_flag", False) for name in p.opts}
        typed = [word.partition("=")[0] for word in args]
        for word, following in zip(args, typed[1:], strict=False):
            if word in names - flags and following in names:
                raise ConfigError(
                    f"{word} needs a value, got the option '{following}'",
                    where=word,
                    hint=f"write its value after {word}",
                )
        options = typed[: args.index("--")] if "--" in args else typed
        for name, hint in ONE_FILE.items():
            if options.count(name) > 1:
                raise ConfigError(f"{name} is given twice", where=name, hint=hint)

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; a flag shows no type."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help.

        Raises: typer.Exit with 0 if the reader of stdout has gone (rich would exit with 1), with 3
            if stdout cannot be written.
        """
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
            sys.stdout.flush()
        except (BrokenPipeError, SystemExit):
            _drop_stdout()
            raise typer.Exit(0) from None
        except OSError as error:
            raise _exit_of(error) or error from None


class Program(Help, TyperGroup):
    """The group of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the stages in their order, then the other commands."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: STAGES.index(name) if name in STAGES else len(names))

    def make_context(self, *args: Any, **options: Any) -> Any:
        try:
            return super().make_context(*args, **options)
        except Exception as error:
            raise _exit_of(error) or error from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises: typer.Exit with the code of the error (2, 3, 4, 75), 3 after an OSError, 130 after
            Ctrl-C or one of STOPPING, 1 after a bug of nmtkit, 0 if the reader of stdout has gone.
        """
        try:
            with blamed_on():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:
            if exit_with_code := _exit_of(error):
                raise exit_with_code from None
            raise
        return result


def _exit_of(error: BaseException) -> typer.Exit | None:
    """Print the error that ended a command, with its traceback if --debug, and return the exit with
    its code; None if typer itself ends the command.
    """
    is_usage = hasattr(error, "format_message")  # an error of typer's parser
    if not is_usage and type(error).__module__.startswith(("typer", "click")):
        return None
    explanation = _usage_error(error) if is_usage else explained(error)
    if isinstance(error, OSError):
        try:
            sys.stdout.flush()
        except OSError:
            _drop_stdout()
    if isinstance(error, BrokenPipeError):
        return typer.Exit(explanation.exit_code)
    with contextlib.suppress(OSError):  # stderr is as full as the disk, or closed
        if _debug:  # not printed by Python, which would keep control characters
            console.put("".join(traceback.format_exception(error)), end="", file=sys.stderr)
        console.put(f"nmtkit: {explanation}", file=sys.stderr)
    return typer.Exit(explanation.exit_code)


def _usage_error(error: Any) -> ConfigError:
    """Return an error of typer's parser as an error of nmtkit."""
    words = error.ctx.command_path.removeprefix("python -m ").split(" ") if error.ctx else [""]
    command = " ".join(["nmtkit", *words[1:]])  # however the program was called
    message = plain(error.format_message().rstrip("."))
    if (wrong := error.__cause__) and hasattr(wrong, "errors"):  # pydantic's
        message += f" (got {str(wrong.errors()[0]['input'])[:80]})"
    message = re.sub("^[Ii]nvalid value", "bad value", message)
    hint = f"{command} --help"
    name = getattr(error, "option_name", None)
    takes_settings = error.ctx and any(p.name == "assignments" for p in error.ctx.command.params)
    if name and takes_settings and (meant := settings.habit(name)):
        message, hint = re.sub(r" \(Possible options.*", "", message), meant
    return ConfigError(message, where=command, hint=hint)


def _drop_stdout() -> None:
    """Discard what Python flushes into stdout at exit, because stdout cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="nmtkit",
    cls=Program,
    help=(
        "Train translation models under equal conditions and find out which change to the model"
        " helps, and at what cost."
    ),
    epilog=examples(
        "nmtkit prep demo",
        "nmtkit train",
        "nmtkit translate",
        "nmtkit score --by-length",
        "nmtkit analyze cost",
        "nmtkit report",
        before="From text to scores, in any folder:",
        after=(
            "Each stage works on the run under ./runs that was prepared last. --run DIR or"
            " NMTKIT_RUN names another. The same command again resumes, or reports that all is"
            " up to date."
        ),
    ),
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@app.callback(invoke_without_command=True)
def _options(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
) -> None:
    if version:
        console.put(f"nmtkit {nmtkit.__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        ctx.get_help()  # rich prints it
        raise typer.Exit(ConfigError.exit_code)


def _open_streams() -> None:
    """Open /dev/null as stdout and stderr if they are closed (`>&-`). Otherwise the next files that
    are opened would take their file descriptors.
    """
    for number, name in enumerate(("stdout", "stderr"), start=1):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))


def _stop(number: int, frame: object) -> None:
    """End as on Ctrl-C, after which training finishes its step."""
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line. An error becomes three lines on stderr and an exit code (0, 2, 3, 4,
    75, 130).
    """
    environment.prepare()
    _open_streams()
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _stop)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            errors = "surrogateescape" if stream is sys.stdin else "backslashreplace"
            stream.reconfigure(encoding="utf-8", errors=errors)  # type: ignore[union-attr]
    app()
