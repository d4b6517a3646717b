"""The ordered map keeps order, bounds its memory, and passes errors on; workers end with their
parent.
"""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nmtkit import parallel
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.parallel import cores, memory_bytes, one_ahead, ordered_map


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, (64, None)),
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": "4096"}, (2, 4096)),
        ("1:cpu:/x\n0::/a/b\n", {"a/cpu.max": "300000 100000", "memory.max": "9"}, (3, 9)),
        ("0::/a/b\n", {"a/b/memory.max": "7", "a/memory.max": "9", "a/cpu.max": "5 10"}, (1, 7)),
        ("4:memory:/x\n", {}, (64, None)),
    ],
)
def test_cores_and_memory_respect_container_limits(tmp_path, monkeypatch, group, limits, expected):
    machine = memory_bytes()
    for name, limit in {"a/b/x": "", "own": group, **limits}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(limit)
    monkeypatch.setattr(parallel, "CGROUPS", tmp_path)
    monkeypatch.setattr(parallel, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert (cores(), memory_bytes()) == (expected[0], expected[1] or machine)


def slow_first():
    """Early chunks take longest, so that later chunks are ready before them."""

    def work(number):
        time.sleep(0.05 if number < 2 else 0)
        return number * number

    return work


def failing(at):
    def work(number):
        if number == at:
            raise DataError("bad line", where=f"line {number}", hint="mend it")
        return number

    return work


def bad_start():
    raise DataError("no codes", where="codes.bpe")


def killed():
    def work(number):
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return work


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_results_come_in_order(jobs):
    squares = [number * number for number in range(50)]
    assert list(ordered_map(slow_first, range(50), jobs)) == squares
    assert list(ordered_map(slow_first, [], jobs)) == []


def test_at_most_six_chunks_are_in_flight():
    taken = 0

    def chunks():
        nonlocal taken
        for number in range(100):
            taken += 1
            yield number

    for done, _ in enumerate(ordered_map(slow_first, chunks(), 2), 1):
        assert taken - done <= 6


@pytest.mark.parametrize("jobs", [1, 2])
def test_error_of_a_worker_comes_after_the_results_before_it(jobs):
    seen = []
    with pytest.raises(DataError) as caught:
        for value in ordered_map(functools.partial(failing, 7), range(100), jobs):
            seen.append(value)
    assert seen == list(range(7))
    error = caught.value
    assert (error.message, error.where, error.hint) == ("bad line", "line 7", "mend it")
    with pytest.raises(DataError, match="no codes"):
        list(ordered_map(bad_start, range(3), jobs))


def test_killed_worker_is_an_error():
    with pytest.raises(EnvironmentProblem, match="killed"):
        list(ordered_map(killed, range(100), 2))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_closing_early_stops_the_workers():
    before = set(children(os.getpid()))  # of other tests in this process
    results = ordered_map(slow_first, iter(int, 1), 2)  # an endless input
    assert [next(results) for _ in range(3)] == [0, 0, 0]
    assert set(children(os.getpid())) > before
    results.close()
    assert set(children(os.getpid())) <= before


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as stream:
        return [int(child) for child in stream.read().split()]


SCRIPT = """
import signal, time
from nmtkit.parallel import ordered_map
# a shell's background jobs are started with SIGINT ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
def make():
    return lambda number: (time.sleep(0.1), number)[1]
for value in ordered_map(make, range(10000), 2):
    print(value, flush=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(number):
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout.readline() == "0\n"
    workers = children(parent.pid)
    assert len(workers) == 2
    send = os.killpg if number == signal.SIGINT else os.kill  # Ctrl-C reaches the whole group
    send(parent.pid, number)
    _, errors = parent.communicate(timeout=20)
    assert parent.returncode == -number
    assert errors.count("Traceback") <= 1  # the parent's KeyboardInterrupt
    deadline = time.monotonic() + 10
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.1)


def is_running(pid):
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text("ascii")
    except FileNotFoundError:
        return False


def items(made, stop, error):
    """Yield 0 to 3, and raise the error before item `stop`."""
    for number in range(4):
        if number == stop:
            raise error
        made.append(number)
        yield number


def test_one_ahead_makes_the_next_item_before_it_yields():
    made = []
    steps = [(item, len(made)) for item in one_ahead(items(made, 9, None))]
    assert steps == [(0, 2), (1, 3), (2, 4), (3, 4)]
    assert list(one_ahead([])) == []
    closed = one_ahead(items(made, 9, None))
    next(closed)
    closed.close()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_one_ahead_yields_all_items_before_an_error(error):
    results = one_ahead(items([], 2, error))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(error):
        next(results)
