"""The command `nmtkit`, which `python -m nmtkit` (and `torchrun -m nmtkit`) is too."""

import contextlib
import importlib.util
import os
import signal
import sys
from pathlib import Path

from nmtkit import environment
from nmtkit.errors import of_the_machine

UNSUPPORTED = (
    "nmtkit: this system lacks file locks (fcntl): nmtkit runs on Linux, macOS and other POSIX"
    " systems; on Windows, use WSL"
)


def main() -> None:
    """Load the command line and run it; Ctrl-C while it loads, or while Python ends, is as quiet as
    between.
    """
    if importlib.util.find_spec("fcntl") is None:
        print(UNSUPPORTED, file=sys.stderr)
        raise SystemExit(3)
    try:
        Path.cwd()
    except FileNotFoundError:  # libraries of torch would name a library of their own
        print("nmtkit: the current folder is gone; cd to another one", file=sys.stderr)
        raise SystemExit(3) from None
    environment.restart_with_utf8()
    if sys.argv[1:2] == ["train"]:
        environment.restart_without_small_caches()
    try:
        from nmtkit import cli

        cli.main()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, AttributeError):  # stderr is full, or closed
            os.write(sys.stderr.fileno(), b"nmtkit: stopped\n")
        raise SystemExit(130) from None
    except (ImportError, OSError) as error:
        if (problem := of_the_machine(error)) is None:
            raise
        print(f"nmtkit: {problem}", file=sys.stderr)
        raise SystemExit(problem.exit_code) from None
    finally:  # Python ends: a handler would print a traceback
        remove_signal_handlers()


def remove_signal_handlers() -> None:
    """Let signals end the process, except those that `nohup` or the parent ignores."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
