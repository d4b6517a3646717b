"""What the user sees: messages and progress go to stderr, tables of results to stdout."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # end a line, or turn its direction
)
EVERY = 10.0
"""Seconds between two lines of progress where stderr is no terminal."""
_quiet = False
_muted = False
Advance = Callable[[float], None]
"""Tells a progress bar the units of work done since the last call."""
_listeners: list[Callable[[str], None]] = []


def set_quiet(quiet: bool) -> None:
    """Switch off everything but warnings and errors."""
    global _quiet
    _quiet = quiet


def mute() -> None:
    """Write nothing, no warnings either: only rank 0 of a training writes messages."""
    global _quiet, _muted
    _quiet = _muted = True


def say(message: str) -> None:
    """Write a line on stderr; --quiet hides it."""
    if not _quiet:
        _emit(message)


def warn(message: str) -> None:
    """Write a line on stderr that the user should not miss; --quiet does not hide it."""
    _emit(f"warning: {message}")
    for listener in _listeners[-1:]:
        listener(f"warning: {message}")


@functools.cache
def warn_once(message: str) -> None:
    """Write a warning the first time only."""
    warn(message)


@contextlib.contextmanager
def forwarding_warnings(listener: Callable[[str], None]) -> Iterator[None]:
    """Also pass every warning in the body to a function, such as one that writes a log. Of nested
    listeners only the innermost gets a warning.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()


def _emit(message: str) -> None:
    with contextlib.suppress(OSError):  # the terminal or the disk of a log does not end the work
        if not _muted:
            put(f"nmtkit: {message}", file=sys.stderr)


def visible(text: str) -> str:
    """Return a text with control characters as JSON escapes, except line breaks and tabs, so that
    no text of a corpus or a run can control the terminal.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def put(text: str = "", end: str = "\n", file: IO[str] | None = None) -> None:
    """Write a text with visible control characters to stdout or another file.

    Raises: OSError at once if the file cannot be written, and not when the process ends.
    """
    print(visible(text), end=end, file=file, flush=True)


def duration(seconds: float) -> str:
    """Return seconds for people: 8s, 3m 20s, 2h 05m."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"


@contextlib.contextmanager
def progress(label: str, total: float | None) -> Iterator[Advance]:
    """Show how far a long job is, with the time left: a rich bar on a terminal, else a line every
    few seconds.

    Args:
        label: what is being done.
        total: units of work in all, None if unknown.
    Yields: a function to call with the units done since the last call.
    """
    if _quiet:
        yield lambda amount: None
        return
    if sys.stderr.isatty():
        from rich.markup import escape

        with _bar() as bar:
            task = bar.add_task(escape(visible(label)), total=total)
            yield lambda amount: bar.advance(task, amount)
        return
    start = last = time.monotonic()
    done = 0.0

    def advance(amount: float) -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            left = ""
            if total and done:
                seconds = (now - start) * (total - done) / done
                left = f", {100 * done / total:.0f}%, {duration(seconds)} left"
            say(f"{label}: {done:,.0f}{left}")

    yield advance


@contextlib.contextmanager
def _bar(*columns: Any, **options: Any) -> Iterator[Any]:
    """Show a progress bar of rich on stderr. Results that are printed meanwhile go to stdout.

    Args:
        columns: of rich; without any, rich's default ones.
        options: of rich's Progress.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, **options)
    try:
        with contextlib.suppress(OSError):  # the terminal may be gone
            bar.start()
        yield bar
    finally:
        with contextlib.suppress(OSError):
            bar.stop()


class Bar:
    """A bar below all other lines of a terminal; nothing in a pipe or file, or with --quiet.

    Args:
        done, total: steps at the beginning, and in all.
    """

    def __init__(self, done: float, total: float) -> None:
        self._live: Any = None
        self._shown = contextlib.ExitStack()
        if not sys.stderr.isatty() or _quiet or os.environ.get("TERM") == "dumb":
            return
        from rich.progress import BarColumn, TextColumn

        steps = TextColumn("step {task.completed:,}/{task.total:,}")
        columns = steps, BarColumn(None), TextColumn("{task.description}")
        # Each drawing takes time from the work, so there are few.
        bar = _bar(*columns, refresh_per_second=4, expand=True)
        self._live = self._shown.enter_context(bar)
        self._task = self._live.add_task("", completed=done, total=total)

    @property
    def shown(self) -> bool:
        """True if there is a bar on the terminal."""
        return self._live is not None

    def move(self, done: float, text: str) -> None:
        """Show the steps done, with a text beside the bar."""
        if self._live is not None:
            self._live.update(self._task, completed=done, description=text)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        self._shown.close()
        self._live = None


def print_json(value: object) -> None:
    """Print a plain value on stdout as indented JSON."""
    put(json.dumps(value, ensure_ascii=False, indent=1))


def width() -> int | None:
    """Return the width of the terminal that stdout is; None for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
