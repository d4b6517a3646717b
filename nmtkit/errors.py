"""Errors for the user: what is wrong, where, what to do next, and the exit code for scripts."""

from __future__ import annotations

import difflib
import errno
import importlib
import re
import sys
from collections.abc import Collection, Iterable
from typing import Any


class NmtkitError(Exception):
    """Base of all errors that a user can meet; printed in three lines, without a traceback.

    Args:
        message: what is wrong, one line.
        where: the file and line, the key, or the command.
        hint: what to do next.
    """

    exit_code = 2

    def __init__(self, message: str, where: object = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = None if where is None else str(where)
        self.hint = hint

    def __str__(self) -> str:
        where, hint = (self.where and f"in: {self.where}"), (self.hint and f"try: {self.hint}")
        return "\n  ".join(part for part in (self.message, where, hint) if part)


class ConfigError(NmtkitError):
    """A setting, option or name that does not exist or has the wrong type or value."""


class DataError(NmtkitError):
    """Text that cannot be used: missing, empty, not UTF-8, not parallel."""


class CheckpointError(NmtkitError):
    """A checkpoint that is damaged, foreign, or does not belong to this run."""


class EnvironmentProblem(NmtkitError):
    """The machine, not the user: disk, network, device, a missing optional package."""

    exit_code = 3


class TrainingDiverged(NmtkitError):
    """Loss or gradients stopped being finite."""

    exit_code = 4


class Interrupted(NmtkitError):
    """Stopped on request with everything saved; the same command continues."""

    exit_code = 75


class LeftOut(NmtkitError):
    """A system that an analysis cannot use; the message is the reason."""


LACKS_MEMORY = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED")
"""Parts of messages of torch, cuBLAS and cuDNN."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if the GPU or the CPU had too little memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)  # torch's errors of both kinds
        and any(text in str(error) for text in LACKS_MEMORY)
    )


FREE_SPACE = "free some space, or choose a folder on another disk"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST}
"""Errors of the wrong kind of thing at a path: a folder instead of a file, or the reverse."""


def remedy(error: OSError, otherwise: str = "") -> str:
    """Return what the user can do about an error of a file or folder.

    Args:
        otherwise: the hint for a full disk, and for errors of unknown causes.
    """
    if error.errno in _IN_THE_WAY:
        return "move away the file or folder that has this name"
    if error.errno in _REFUSED:
        return "check its permissions, or choose a folder that is writable"
    full = FREE_SPACE if error.errno in _FULL else "fix the cause; --debug shows the traceback"
    return otherwise or full


_BROKEN = re.compile("shared object|undefined symbol|[Ll]ibrary not loaded|[Ss]ymbol not found")
"""Parts of the messages of loaders of shared libraries."""


def of_the_machine(error: BaseException) -> EnvironmentProblem | None:
    """Return the environment error that caused an error of Python or a library; None if none did.

    Causes: a package that is missing or broken, too little memory, no home folder.
    """
    package = (isinstance(error, ModuleNotFoundError) and error.name or "nmtkit").partition(".")[0]
    if package != "nmtkit":
        command = f"{sys.executable} -m pip install {package.replace('_', '-')}"
        return EnvironmentProblem(f"the package {package} is not installed", hint=command)
    if is_out_of_memory(error):
        hint = "take smaller sizes, or a machine with more memory"
        return EnvironmentProblem("the machine has too little memory for this", hint=hint)
    # The loader of shared libraries gives no errno.
    is_loading = isinstance(error, ImportError | OSError) and getattr(error, "errno", None) is None
    if is_loading and _BROKEN.search(str(error)):
        command = f"{sys.executable} -m pip install --force-reinstall torch"
        hint = f"install its package again; for torch: {command}; too little memory (ulimit -v) and"
        hint += " a file system without execution (noexec) prevent loading, too"
        return EnvironmentProblem(f"cannot load a library: {first_line(error)}", hint=hint)
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # ~ in a path
        return EnvironmentProblem("the home folder is unknown", hint="export HOME=/a/folder")
    return None


def explained(error: BaseException) -> NmtkitError:
    """Return the error that the user reads, with the exit code of the command."""
    if isinstance(error, NmtkitError):
        return error
    if problem := of_the_machine(error):
        return problem
    if isinstance(error, OSError):
        # An error of an open stream does not name the file.
        where = error.filename or "stdout, or a file that was being written"
        message = error.strerror or str(error)
        problem = EnvironmentProblem(message, where=where, hint=remedy(error))
        if isinstance(error, BrokenPipeError):  # the reader has gone: `nmtkit … | head`
            problem.exit_code = 0
        return problem
    if isinstance(error, KeyboardInterrupt):
        stopped = NmtkitError(f"stopped; {str(error) or 'what was finished before is kept'}")
        stopped.exit_code = 130
        return stopped
    fault = NmtkitError(
        f"internal error: {type(error).__name__}: {error}\n  this is a fault of nmtkit; --debug"
        " shows the traceback"
    )
    fault.exit_code = 1
    return fault


_WORDINGS = {
    r"Input should be greater than or equal to (\S+)": r"must be at least \1",
    r"Input should be less than or equal to (\S+)": r"must be at most \1",
    r"Input should be greater than (\S+)": r"must be above \1",
    r"Input should be less than (\S+)": r"must be below \1",
    r"Input should be a valid integer.*": "must be a whole number",
    r"Unable to parse input string as an integer.*": "must have fewer digits",
    r"Input should be a valid number.*": "must be a number",
    r"Input should be a valid boolean.*": "must be true or false",
    r"Input should be a valid string.*": "must be text",
    r"Input should be a valid (list|tuple|array).*": "must be a list",
    r"Input should be (.*)": r"must be \1",
    r"Field required": "is missing",
    r"Value error, (.*)": r"\1",
}


def plain(message: str) -> str:
    """Return a message of pydantic, reworded like nmtkit's own messages."""
    for pattern, words in _WORDINGS.items():
        if (reworded := re.sub(pattern, words, message, count=1)) != message:
            return reworded
    return message[:1].lower() + message[1:]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; without a message, the error's class."""
    lines = map(str.strip, str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def summary(error: BaseException) -> str:
    """Return the class and the first line of an error."""
    name, line = type(error).__name__, first_line(error)
    return line if line == name else f"{name}: {line}"


def short(value: object) -> str:
    """Return at most 80 characters of a value, for a message."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print a number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:79] + "…"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 line, 2,000 lines."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def nearest(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Return the hint for an unknown name: the nearest known one, else the list of all.

    Args:
        name: what the user typed.
        names: the names that exist.
        otherwise: the hint to give instead of the list, if the list would be too long.
    Returns: a sentence such as "did you mean 'heads'?" or "known: a, b, c".
    """
    known = sorted(set(names))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else otherwise or "known: " + ", ".join(known)


def check_known(
    name: str, names: Collection[str], message: str, where: object, if_none: str | None = None
) -> None:
    """Raise ConfigError if a name is unknown; the hint has the nearest name.

    Args:
        name: what the user typed.
        names: the names that exist.
        message, where: the message and place of the error.
        if_none: the hint if no name exists.
    """
    if name not in names:
        raise ConfigError(message, where, nearest(name, names) if names else if_none)


def imported(module: str, extra: str, where: str) -> Any:
    """Import a module of one of nmtkit's extras; `where` names the command that needs it.

    Raises: EnvironmentProblem if the module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"{module} is not installed: {error}"
        hint = f"in nmtkit's checkout: pip install -e '.[{extra}]'"
        raise EnvironmentProblem(message, where, hint) from error
