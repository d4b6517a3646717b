"""The command `nmtkit`, which `python -m nmtkit` (and `torchrun -m nmtkit`) is too."""

import contextlib
import os
import sys


def main() -> None:
    """Load the command line and run it; Ctrl-C while it loads ends it as quietly as later."""
    try:
        from nmtkit import cli
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, AttributeError):  # stderr is full, or closed
            os.write(sys.stderr.fileno(), b"nmtkit: stopped; nothing was begun\n")
        raise SystemExit(130) from None
    cli.main()


if __name__ == "__main__":
    main()
