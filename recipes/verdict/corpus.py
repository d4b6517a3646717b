"""Prepares the corpora of the list."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from recipes.verdict.folders import Folders, held
from recipes.verdict.listing import HERE, Row
from recipes.verdict.worker import Commands, Failed, NoRoom, Stopped
from recipes.workers import STOP_SIGNALS


def prepare(row: Row, folders: Folders) -> bool:
    """Prepare the corpus of a row, once; return False, and note why, if that is not possible.

    Raises: Stopped after a signal.
    """
    name = row.dataset
    with held(folders.lock(name), wait=True) as lock:
        if (folders.run(name) / "prep" / "manifest.json").is_file():
            return True
        if folders.failure(name):  # a worker has just tried
            return False
        assert lock is not None
        commands = Commands(folders, folders.log(name), lock)
        handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        commands.listen()
        given = {key: os.environ.get(key) for key in ("FROM_DIR", "TEXT")}
        absolute = [f"{key}={Path(path).resolve()}" for key, path in given.items() if path]
        command = ["bash", str(HERE / "prepare.sh"), f"runs/{name}", name, row.preset, *row.prep]
        (folders.state / "runs").mkdir(exist_ok=True)
        try:
            commands.run("env", *absolute, *command)
        except (Failed, NoRoom) as error:
            folders.fail(name, str(error))
            message = f"corpus {name} cannot be prepared: {error}\n  in: {commands.log}"
            print(f"verdict: {message}", file=sys.stderr)
            return False
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if commands.stopping:
            raise Stopped
    return True
