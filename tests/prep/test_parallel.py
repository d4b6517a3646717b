"""The ordered map: order, bounded memory, errors as they were, and workers that don't outlive
their parent.
"""

import functools
import os
import signal
import subprocess
import sys
import time

import pytest

from nmtkit import parallel
from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.parallel import cores, memory_bytes, one_ahead, ordered_map


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, (64, None)),
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": "4096"}, (2, 4096)),
        ("1:cpu:/x\n0::/a/b\n", {"a/cpu.max": "300000 100000", "memory.max": "9"}, (3, 9)),
        ("0::/a/b\n", {"a/b/memory.max": "7", "a/memory.max": "9", "a/cpu.max": "5 10"}, (1, 7)),
        ("4:memory:/x\n", {}, (64, None)),
    ],
)
def test_the_limits_of_a_container(tmp_path, monkeypatch, own, limits, expected):
    machine = memory_bytes()
    for name, limit in {"a/b/x": "", "own": own, **limits}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(limit)
    monkeypatch.setattr(parallel, "CGROUPS", tmp_path)
    monkeypatch.setattr(parallel, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert (cores(), memory_bytes()) == (expected[0], expected[1] or machine)


def upper():
    return lambda chunk: [line.upper() for line in chunk]


def slow_first():
    """Early chunks take longest, so that later ones are ready before them."""

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
def test_order_is_kept(jobs):
    assert list(ordered_map(slow_first, range(50), jobs)) == [
        number * number for number in range(50)
    ]
    text = [str(number).encode() * 3 for number in range(999)]
    assert [
        line
        for part in ordered_map(upper, (text[i : i + 7] for i in range(0, 999, 7)), jobs)
        for line in part
    ] == text
    assert list(ordered_map(slow_first, [], jobs)) == []


def test_only_so_many_chunks_are_in_flight():
    taken = 0

    def chunks():
        nonlocal taken
        for number in range(100):
            taken += 1
            yield number

    for done, _ in enumerate(ordered_map(slow_first, chunks(), 2), 1):
        assert taken - done <= 6


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_comes_back_as_it_was(jobs):
    seen = []
    with pytest.raises(DataError) as caught:
        for value in ordered_map(functools.partial(failing, 7), range(100), jobs):
            seen.append(value)
    assert seen == list(range(7))
    assert (caught.value.message, caught.value.where, caught.value.hint) == (
        "bad line",
        "line 7",
        "mend it",
    )
    with pytest.raises(DataError, match="no codes"):
        list(ordered_map(bad_start, range(3), jobs))


def test_a_killed_worker_is_an_error_not_a_hang():
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
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
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
    assert parent.stdout is not None and parent.stdout.readline() == "0\n"
    workers = children(parent.pid)
    assert len(workers) == 2
    (os.killpg if number == signal.SIGINT else os.kill)(
        parent.pid, number
    )  # Ctrl-C reaches the whole group
    _, errors = parent.communicate(timeout=20)
    assert parent.returncode == -number
    assert errors.count("Traceback") <= 1  # the parent's KeyboardInterrupt alone
    deadline = time.monotonic() + 10
    while any(
        os.path.exists(f"/proc/{worker}/stat")
        and " Z " not in open(f"/proc/{worker}/stat", encoding="ascii").read()
        for worker in workers
    ):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.1)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_one_ahead(error):
    """An item comes when the next one is there; before an error all items come."""
    made = []

    def items(stop: int):
        for number in range(4):
            if number == stop:
                raise error
            made.append(number)
            yield number

    assert [(item, len(made)) for item in one_ahead(items(9))] == [(0, 2), (1, 3), (2, 4), (3, 4)]
    assert list(one_ahead([])) == []
    came = one_ahead(items(2))
    assert [next(came), next(came)] == [0, 1]
    with pytest.raises(error):
        next(came)
    came = one_ahead(items(9))
    next(came)
    came.close()
