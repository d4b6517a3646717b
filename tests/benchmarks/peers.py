"""Run systems in their own environments and time them in rounds, for the benchmarks against other
toolkits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arguments

DRIVERS = Path(__file__).parent / "drivers"
DISTURBED = 0.1  # cores used by others from which a round is taken again


def common_options(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """A parser with the options of both benchmarks; `rounds` is the default of --rounds."""
    parser = arguments.parser(description, threads=2, rounds=rounds)
    parser.add_argument("--corpus", type=Path, required=True, help="folder made by corpus.py")
    parser.add_argument("--nmtkit-python", default=sys.executable)
    parser.add_argument("--hf-python", help="environment with transformers")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count processor seconds: with --threads 1 for a machine shared with others",
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=4,
        help="maximum number of times that a disturbed round is taken (1 with --cpu-time)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        help="seconds to wait for a quiet machine before each round",
    )
    parser.add_argument(
        "--earlier", type=Path, help="checkout of an earlier commit, measured beside this one"
    )
    parser.add_argument("--only", nargs="*", help="names of systems to run")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of nmtkit (repeatable); of the search for translation, without `search.`",
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options, and print the circumstances. `clock` is the entry of an answer that
    counts.
    """
    args = parser.parse_args()
    args.clock = "cpu" if args.cpu_time else "seconds"
    if args.cpu_time:
        args.tries = 1
    print(
        f"{platform.machine()}, {args.threads} threads,"
        f" {'processor' if args.cpu_time else 'wall-clock'} seconds, load at start"
        f" {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    return args


Wanted = list[tuple[str, str, str, dict[str, Any]]]
"""Of each system: name, interpreter, driver, setting."""


@contextlib.contextmanager
def started(wanted: Wanted, args: argparse.Namespace) -> Iterator[list[System]]:
    """Start the wanted systems; close them at the end."""
    systems = [
        System(name, python, driver, setting, args.threads)
        for name, python, driver, setting in wanted
        if not args.only or name in args.only
    ]
    try:
        yield systems
    finally:
        for system in systems:
            system.close()


def vocabulary_size(corpus: Path) -> int:
    """Number of tokens of a corpus made by corpus.py."""
    return len((corpus / "vocab.txt").read_text("utf-8").split("\n")) - 1


class System:
    """One system under measurement: a process in its own environment that runs rounds when asked.

    Args:
        name: for the table.
        python: the interpreter of its environment.
        driver: file in drivers/.
        setting: written as JSON for the driver, with a folder of its own as `scratch`.
        threads: for OpenMP and the like.
    """

    def __init__(
        self, name: str, python: str, driver: str, setting: dict[str, Any], threads: int
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
        self._log_path = scratch / "log.txt"
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
    """The first undisturbed round of at most `tries` rounds, else the least disturbed one.

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


def alternate(systems: list[System], args: argparse.Namespace) -> None:
    """Warm up every system, then let the systems take turns. The order is reversed each time, so
    that drift affects all systems alike.

    Args:
        systems: those that die are reported and left out.
        args: warm_up, steps: not timed, and timed in each round; rounds, clock, tries, patience.
    """
    alive = []
    for system in systems:
        try:
            system.ask(f"go {args.warm_up}")
            alive.append(system)
        except RuntimeError as error:
            print(error, flush=True)
    for i in range(args.rounds):
        for system in alive if i % 2 == 0 else reversed(alive):
            answer = quiet_round(system, f"go {args.steps}", args.tries, args.patience)
            system.rounds.append(answer)
            rate = sum(answer["tokens"]) / sum(answer[args.clock])
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
