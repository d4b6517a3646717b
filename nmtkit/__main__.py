"""`python -m nmtkit` (and `torchrun -m nmtkit`) is the same program as the `nmtkit` command."""

from nmtkit.cli import main

if __name__ == "__main__":
    main()
