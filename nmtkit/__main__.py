"""The command `nmtkit`, which `python -m nmtkit` (and `torchrun -m nmtkit`) is too."""

import sys


def main() -> None:
    """Load the command line and run it; Ctrl-C while it loads ends it as quietly as later."""
    try:
        from nmtkit import cli
    except KeyboardInterrupt:
        print("nmtkit: stopped; nothing was begun", file=sys.stderr)
        raise SystemExit(130) from None
    cli.main()


if __name__ == "__main__":
    main()
