"""Starting systems in their own environments, and asking them for timed rounds."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

DRIVERS = Path(__file__).parent / "drivers"
DISTURBED = 0.1  # cores used by others from which a round is taken again


class System:
    """One system under measurement: a process in its own environment that runs rounds when asked.

    Args:
        name: for the table.
        python: the interpreter of its environment.
        driver: file in drivers/.
        setting: written as JSON for the driver, with a folder of its own as `scratch`.
        threads: for OpenMP and the like.
        log: file for what it prints.
    """

    def __init__(
        self,
        name: str,
        python: str,
        driver: str,
        setting: dict[str, Any],
        threads: int,
        log: Path | None = None,
    ) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="nmtkit-benchmark-")
        scratch = Path(self._folder.name)
        file = scratch / "setting.json"
        file.write_text(
            json.dumps({**setting, "threads": threads, "scratch": str(scratch)}), "utf-8"
        )
        env = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
        }
        self._log_path = log or scratch / "log.txt"
        self._process = subprocess.Popen(
            [python, str(DRIVERS / driver), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_path.open("w", encoding="utf-8"),
            text=True,
            env=env,
        )
        self.pid = self._process.pid
        self.rounds: list[dict[str, Any]] = []

    def ask(self, request: str) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises: RuntimeError with the end of its log if the system died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(
                f"{self.name} ended:\n"
                + "\n".join(self._log_path.read_text("utf-8", errors="replace").splitlines()[-25:])
            )
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it died before it was told to
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def _busy() -> float:
    """Seconds that all cores together have been busy since the machine started."""
    user, nice, system, _, _, irq, soft, steal = map(
        int, Path("/proc/stat").read_text("ascii").split("\n")[0].split()[1:9]
    )
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _used(pid: int) -> float:
    """Seconds of processor time of a process and of all below it."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat")
            .read_text("ascii", errors="replace")
            .rpartition(")")[2]
            .split()
        )
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(
        _used(int(child)) for child in children
    )


def wait_for_quiet(limit: float = 60.0) -> None:
    """Wait until other processes leave the machine alone for two seconds, at most `limit`
    seconds.
    """
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before = _busy()
        time.sleep(2)
        if _busy() - before < 0.15:
            return


def quiet_round(system: System, request: str, tries: int, patience: float) -> dict[str, Any]:
    """A round without disturbance if there is one in so many tries, else the least disturbed one.

    Two threads that share two cores with anything else wait for each other most of the time, so
    such a round says nothing.
    Returns: the answer with `foreign`, the cores that other processes used meanwhile.
    """
    best: dict[str, Any] = {}
    for _ in range(tries):
        if tries > 1:
            wait_for_quiet(patience)
        busy, used, start = _busy(), _used(system.pid), time.perf_counter()
        answer = system.ask(request)
        wall = time.perf_counter() - start
        answer["foreign"] = max(0.0, (_busy() - busy) - (_used(system.pid) - used)) / wall
        if not best or answer["foreign"] < best["foreign"]:
            best = answer
        if best["foreign"] < DISTURBED:
            break
    return best


def alternate(
    systems: list[System],
    warm_up: int,
    steps: int,
    rounds: int,
    clock: str,
    tries: int,
    patience: float,
) -> None:
    """Warm every system up, then give each its turn `rounds` times; the order turns round each
    time, so that drift hits all alike.

    Args:
        systems: those that die are reported and left out.
        warm_up: steps not timed.
        steps: timed steps a round.
        rounds: turns of each system.
        clock: "seconds" (wall) or "cpu", for the line printed.
        tries: a round disturbed by other processes is taken again up to so many times.
        patience: seconds to wait for a quiet machine before a round.
    """
    alive = []
    for system in systems:
        try:
            system.ask(f"go {warm_up}")
            alive.append(system)
        except RuntimeError as error:
            print(error, flush=True)
    for i in range(rounds):
        for system in alive if i % 2 == 0 else reversed(alive):
            answer = quiet_round(system, f"go {steps}", tries, patience)
            system.rounds.append(answer)
            rate = sum(answer["tokens"]) / sum(answer[clock])
            print(
                f"  round {i + 1} {system.name:28s} {rate:7.0f} tokens/s   (others used"
                f" {answer['foreign']:.2f} cores)",
                flush=True,
            )


def step_rates(system: System, clock: str) -> list[float]:
    """Tokens a second of every timed step."""
    return [
        n / s
        for answer in system.rounds
        for n, s in zip(answer["tokens"], answer[clock], strict=True)
    ]


def round_rates(system: System, clock: str) -> list[float]:
    """Tokens a second of every round."""
    return [sum(answer["tokens"]) / sum(answer[clock]) for answer in system.rounds]


def median(values: list[float]) -> float:
    """The middle value."""
    return statistics.median(values)
