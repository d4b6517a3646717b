"""A process that runs commands of nmtkit and kills them before their n-th rename.

Each line of stdin is JSON: a folder, the words of a command, and n (0: never kill). The answer is
the exit code and the number of renames. A command with n = 0 runs in this process, which then has
imported, compiled and drawn everything; other commands run in a fork.
"""

import gc
import json
import os
import sys

import torch

from nmtkit.cli import main as program
from tests.fast_figures import cached_figures

KILLED = 99
FUNCTIONS = {name: getattr(os, name) for name in ("replace", "rename", "link")}


os.fsync = lambda descriptor: None  # as in conftest.py


def end_before(number: int, count: list[int]) -> None:
    """Count renames from now on; exit instead of making the n-th."""

    def counting(original):
        def counted(*arguments, **more):
            count[0] += 1
            if count[0] == number:
                os._exit(KILLED)
            return original(*arguments, **more)

        return counted

    for name, original in FUNCTIONS.items():
        setattr(os, name, counting(original))


def run(words: list[str], number: int) -> tuple[int, int]:
    """Run a command; return its exit code and the number of its renames."""
    count = [0]
    end_before(number, count)
    sys.argv = ["nmtkit", *words]
    try:
        program()
    except SystemExit as end:
        return int(end.code or 0), count[0]
    return 0, count[0]


def in_fork(words: list[str], number: int) -> tuple[int, int]:
    """Run a command in a fork of this process."""
    reading, writing = os.pipe()
    gc.collect()
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code, count = run(words, number)
            os.write(writing, str(count).encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as answer:
        count = int(answer.read() or number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), count


def main() -> None:
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        folder, words, number = json.loads(line)
        os.chdir(folder)
        with open("output.txt", "w", encoding="utf-8") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        print(json.dumps((in_fork if number else run)(words, number)), file=answers, flush=True)


if __name__ == "__main__":
    with cached_figures():
        main()
