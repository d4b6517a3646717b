"""Train in a child process and kill it after as many seconds as a line of stdin says (`cpu 0.5`: of
processor time, for a busy machine); print its exit code (minus the signal). Repeat for each line.

The parent imports torch and sacremoses once, which takes a second, and forks. No torch operation
runs before the fork, so no thread is lost in it.
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
    """Return the seconds of processor time that a process has used."""
    text = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    run, assignments = Path(sys.argv[1]), sys.argv[2:]
    for line in sys.stdin:
        end = float(line.removeprefix("cpu"))
        if not line.startswith("cpu"):
            end += time.monotonic()
        pid = os.fork()
        if pid == 0:
            child(run, assignments)
        status = None
        while status is None:
            done, found = os.waitpid(pid, os.WNOHANG)
            if done:
                status = found
            elif (processor_time(pid) if line.startswith("cpu") else time.monotonic()) >= end:
                os.kill(pid, signal.SIGKILL)
                end = float("inf")
            else:
                time.sleep(0.002)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
