"""COMET of every line on stdin (source, hypothesis and reference, separated by tabs): one number a
line on stdout. `README.md` beside this file has the commands.
"""

import contextlib
import os
import sys
from pathlib import Path

from comet import download_model, load_from_checkpoint  # the package unbabel-comet

NAMES = ("src", "mt", "ref")


def main(model: str = "Unbabel/wmt22-comet-da") -> None:
    """Score stdin with a model: a name that COMET knows, or a checkpoint file."""
    rows = [dict(zip(NAMES, line.rstrip("\n").split("\t"), strict=False)) for line in sys.stdin]
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the numbers only
        path = model if Path(model).is_file() else download_model(model)
        gpus = int(os.environ.get("COMET_GPUS", "0"))
        scores = load_from_checkpoint(path).predict(rows, batch_size=16, gpus=gpus).scores
    print(*scores, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
