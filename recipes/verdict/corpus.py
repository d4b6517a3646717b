"""Prepares the corpora of the list."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from recipes.verdict.folders import Folders, held
from recipes.verdict.listing import HERE, Row
from recipes.verdict.worker import last_message


def prepare(row: Row, folders: Folders) -> bool:
    """Prepare the corpus of a row, once; return False, and note why, if that is not possible."""
    name = row.dataset
    with held(folders.lock(name), wait=True):
        if (folders.run(name) / "prep" / "manifest.json").is_file():
            return True
        if folders.failure(name):  # of another worker just now
            return False
        log = folders.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        command = ["bash", str(HERE / "prepare.sh"), f"runs/{name}", name, row.preset, *row.prep]
        given = {key: os.environ.get(key) for key in ("FROM_DIR", "TEXT")}
        absolute = {key: str(Path(path).resolve()) for key, path in given.items() if path}
        environment = {**os.environ, **absolute}
        (folders.state / "runs").mkdir(exist_ok=True)
        with open(log, "wb") as out:
            done = subprocess.run(
                command, cwd=folders.state, env=environment, stdout=out, stderr=out, check=False
            )
        if done.returncode:
            reason = last_message(log, 0)
            folders.fail(name, reason)
            print(
                f"verdict: corpus {name} cannot be prepared: {reason}\n  in: {log}", file=sys.stderr
            )
    return done.returncode == 0
