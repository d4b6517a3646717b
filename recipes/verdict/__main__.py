"""The command behind recipes/verdict.sh."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from nmtkit import files
from nmtkit.errors import ConfigError, NmtkitError, nearest
from recipes.verdict import corpus, leavings, status
from recipes.verdict.folders import Folders, held
from recipes.verdict.listing import HERE, Item, read_list
from recipes.verdict.measured import measured
from recipes.verdict.worker import (
    ENVIRONMENT,
    Commands,
    Failed,
    NoRoom,
    Stopped,
    Worker,
)
from recipes.workers import STOPPED, Workers

DONE, FAILED, NOTHING = 0, 4, 10
"""Exit codes of `--one` beside those of nmtkit: a system is done, has failed, or none is free."""


def main() -> None:
    """Run the command and exit with its code."""
    parser = argparse.ArgumentParser(
        prog="verdict.sh",
        description="Train the systems of a list; the same command continues.",
        epilog="The head of recipes/verdict.sh has the variables.",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--status", action="store_true", help="print what is done, and hours left")
    group.add_argument(
        "--retry",
        nargs="?",
        const="",
        metavar="CORPUS/NAME",
        help="forget that a system (default: every system) has failed",
    )
    group.add_argument("--collect", action="store_true", help="copy results to the repository")
    group.add_argument(
        "--tables", action="store_true", help="print scores with tests, costs and findings"
    )
    group.add_argument("--page", action="store_true", help="write the results as one HTML page")
    group.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        folders, items = _folders(), read_list(_list_file())
        if given.status:
            status.table(items, folders, _jobs(items)).print()
        elif given.retry is not None:
            retry(items, folders, given.retry)
        elif given.collect:
            print(*leavings.collect(folders), sep="\n")
        elif given.tables:
            from recipes.verdict import tables

            for table in tables.tables(items, folders):
                table.print("md")
                print()
        elif given.page:
            from recipes.verdict import pages

            print(pages.page(items, folders))
        elif given.one:
            sys.exit(one(items, folders))
        else:
            sys.exit(work(items, folders, _jobs(items)))
    except NmtkitError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except Stopped:
        _say("stopped while a corpus was prepared; the same command continues")
        sys.exit(STOPPED)


def _say(message: str) -> None:
    print(f"verdict: {message}", file=sys.stderr, flush=True)


def _folders() -> Folders:
    state = os.environ.get("NMTKIT_VERDICT") or files.cache_folder() / "verdict"
    results = os.environ.get("RESULTS") or HERE / "results"
    return Folders(Path(state).resolve(), Path(results).resolve())


def _list_file() -> Path:
    path = Path(os.environ.get("LIST") or HERE / "systems.sh").resolve()
    files.check_file(path, where="LIST")
    return path


def _jobs(items: list[Item]) -> int:
    jobs = os.environ.get("JOBS") or "1"
    if jobs == "all":
        return len(items)
    if not jobs.isdecimal() or int(jobs) < 1:
        message = f"JOBS must be a number of systems, or all, not '{jobs}'"
        raise ConfigError(message, hint="JOBS=2 bash recipes/verdict.sh")
    return int(jobs)


def retry(items: list[Item], folders: Folders, name: str) -> None:
    """Forget the failure of one system, or of all.

    Raises: ConfigError if the list has no such system.
    """
    paths = [item.path for item in items]
    if name and name not in paths:
        raise ConfigError(f"the list has no '{name}'", where="--retry", hint=nearest(name, paths))
    for path in [name] if name else paths:
        if folders.forget_failure(path):
            _say(f"{path} is tried again")


def one(items: list[Item], folders: Folders) -> int:
    """Do the first free training of the list; return the exit code."""
    os.nice(19)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for state in status.states(items, folders):
        if state.word != "waiting":
            continue
        item = state.item
        with held(folders.lock(item.path)) as lock:
            # Another worker may have taken or finished it since its state was read.
            taken = lock is None or folders.result(item) or folders.failure(item.path)
            if taken or folders.failure(item.row.dataset):
                continue
            if not corpus.prepare(item.row, folders):
                continue
            return _do(item, folders, Commands(folders, folders.log(item.path), lock))
    return NOTHING


def _do(item: Item, folders: Folders, commands: Commands) -> int:
    commands.listen()
    device = ["--device", os.environ["DEVICE"]] if os.environ.get("DEVICE") else []
    _say(f"{item.path}: begins or continues")
    try:
        Worker(item, folders, commands, device).work()
    except Stopped:
        _say(f"{item.path}: stopped; the same command continues")
        return STOPPED
    except Failed as error:
        folders.fail(item.path, str(error))
        _say(f"{item.path}: failed: {error}\n  in: {folders.log(item.path)}")
        return FAILED
    except NoRoom as error:
        _say(f"{item.path}: {error}\n  in: {folders.log(item.path)}")
        return ENVIRONMENT
    result = folders.result(item)
    best = measured(result).best if result else None
    _say(f"{item.path}: done" + (f", dev BLEU {best['dev_bleu']:.2f}" if best else ""))
    return DONE


def work(items: list[Item], folders: Folders, jobs: int) -> int:
    """Train the list with several workers at once, until no system is free, a signal comes, or a
    worker ends with an error that is not its system's; return the exit code.

    Each worker is a process that trains one system, so it has the code and the list of its start.
    """
    folders.state.mkdir(parents=True, exist_ok=True)
    for dataset in {item.row.dataset for item in items}:
        folders.forget_failure(dataset)  # its files may be there now
    workers = Workers()
    workers.listen()
    command, wanted = [sys.executable, "-m", "recipes.verdict", "--one"], jobs
    while True:
        while workers.code == DONE and len(workers.running) < wanted:
            workers.start(command)
        if not workers.running:
            break
        _, code = workers.next_ended()
        if code in {DONE, FAILED}:
            wanted = jobs
        elif code == NOTHING:  # until another worker ends
            wanted = len(workers.running)
        else:
            workers.stop(code)
    if workers.code == DONE:
        _say("nothing is left that can be trained now; --status tells why")
    return workers.code


if __name__ == "__main__":
    main()
