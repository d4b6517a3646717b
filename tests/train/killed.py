"""Trains in a child process and kills it after as many seconds as each line of stdin says (`cpu
0.5`: of processor time, for a busy machine); prints how it ended (0, or minus the signal).

Imports torch and sacremoses once, which takes a second, and forks. No torch operation runs before
the fork, so no thread is lost in it.
"""

import os
import signal
import sys
import time
from pathlib import Path

import sacremoses  # noqa: F401
import torch

from nmtkit.run import Run
from nmtkit.train.stage import train


def child(run: Path, assignments: list[str]) -> int:
    code = 1
    try:
        torch.set_num_threads(1)
        train(Run(run), assignments=assignments)
        code = 0
    finally:
        os._exit(code)


def processor_time(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = (
        Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    run, assignments = Path(sys.argv[1]), sys.argv[2:]
    for line in sys.stdin:
        clock = processor_time if line.startswith("cpu") else lambda pid: time.monotonic()
        end = float(line.removeprefix("cpu"))
        if clock is not processor_time:
            end += time.monotonic()
        pid = os.fork()
        if pid == 0:
            child(run, assignments)
        status = None
        while status is None:
            done, found = os.waitpid(pid, os.WNOHANG)
            if done:
                status = found
            elif clock(pid) >= end:
                os.kill(pid, signal.SIGKILL)
                end = float("inf")
            else:
                time.sleep(0.002)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
