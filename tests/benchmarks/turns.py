"""Let two processes take turns, so that other work of the machine slows both of them equally."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any


def take_turns(commands: Sequence[list[str]], turns: int, **options: Any) -> list[list[Any]]:
    """Start two processes and let them take turns; the order is reversed each time.

    Args:
        commands: programs that do a turn of work and print a line of JSON for each line of stdin.
        turns: number of turns of each process.
        options: options of subprocess.Popen.
    Returns: the JSON values of each process.
    """
    options |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **options) for command in commands]
    answers: list[list[Any]] = [[] for _ in processes]
    for turn in range(turns):
        for side in (0, 1) if turn % 2 else (1, 0):
            process = processes[side]
            process.stdin.write("\n")
            process.stdin.flush()
            answers[side].append(json.loads(process.stdout.readline()))
    for process in processes:
        process.stdin.close()
        process.wait()
    return answers
