"""Engines: the same bytes from processes, Dask, Ray and a user's Executor, also if a worker is lost."""

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import nmtkit
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.prep import engines, shards, tasks
from nmtkit.prep.clean import clean_shard
from tests.prep.conftest import replace_cleaning
from tests.prep.corpora import own_files, pairs, prepare
from tests.prep.test_resume import contents
from tests.refused import refused

SETTINGS = ["merges=40", "shard_lines=100"]


@pytest.fixture
def text(tmp_path):
    return own_files(tmp_path, pairs(2500, 4))


@pytest.fixture
def expected(tmp_path, text):
    return contents(prepare(tmp_path, text, "whole", SETTINGS))


def threads(address, jobs):
    """An engine of the user's own."""
    return ThreadPoolExecutor(1)


def no_executor(address, jobs):
    return "no executor"


def fails(address, jobs):
    raise ValueError("no cluster\nhere")


def test_a_users_executor(tmp_path, text, expected):
    engine = "tests.prep.test_engines:threads"
    assert contents(prepare(tmp_path, text, "run", SETTINGS, engine=engine)) == expected


def test_a_local_worker_is_killed(tmp_path, text, monkeypatch, expected):
    marker = tmp_path / "killed"

    def dies(work, index, *others):
        if index == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return clean_shard(work, index, *others)

    replace_cleaning(monkeypatch, dies)
    assert contents(prepare(tmp_path, text, "run", SETTINGS, jobs=2)) == expected
    assert marker.exists()


def test_a_worker_that_is_killed_again_and_again(tmp_path, text, monkeypatch):
    replace_cleaning(monkeypatch, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(EnvironmentProblem, match="killed 3 times in step clean") as caught:
        prepare(tmp_path, text, "run", SETTINGS, jobs=2)
    assert "fewer --jobs" in caught.value.hint
    monkeypatch.undo()
    prepare(tmp_path, text, "run", SETTINGS, jobs=2)


def killer(folder, pids):
    """A thread that kills a worker as soon as a shard is cleaned; call the result to join it."""
    killed = []

    def work():
        end = time.monotonic() + 120
        while time.monotonic() < end and not killed:
            time.sleep(0.01)
            if list(folder.glob("clean/0*.json")):
                for pid in pids()[:1]:  # none while all of Ray's wait for a task
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=work)
    thread.start()
    return lambda: (thread.join(), killed)[1]


def children(word):
    psutil = pytest.importorskip("psutil")
    return lambda: [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if re.search(word, " ".join(process.as_dict(["cmdline"])["cmdline"] or ["zombie"]))
    ]


@pytest.mark.parametrize(
    ("engine", "package", "worker", "said"),
    [
        ("dask", "distributed", "spawn_main|dask worker", "Dask: 2 workers, dashboard http"),
        ("ray", "ray", "ray::_call", ""),
    ],
)
def test_a_worker_of_a_cluster_is_killed(
    tmp_path, text, stderr, engine, package, worker, said, expected
):
    pytest.importorskip(package)
    join = killer(tmp_path / "run" / "prep-work", children(worker))
    run = prepare(tmp_path, text, "run", SETTINGS, jobs=2, engine=engine)
    assert join() and contents(run) == expected
    assert said in stderr()


def blocks_interrupts():
    """True if the main thread of this process does, in whatever thread this is asked."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    return bool(blocked >> (signal.SIGINT - 1) & 1)


def test_ctrl_c_reaches_no_dask_worker():
    """It would print its traceback; this process alone reacts."""
    pytest.importorskip("distributed")
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    with engines.opened("dask", None, 1) as engine:
        assert engine.executor.submit(blocks_interrupts).result()
    assert not blocks_interrupts()


def warns():
    """True if a worker of Dask in this process prints warnings."""
    handlers = logging.getLogger("distributed").handlers or [logging.lastResort]
    return any(handler.level <= logging.WARNING for handler in handlers)


def test_dask_workers_print_nothing_when_prep_is_stopped():
    """They warn of each task that is cancelled, between the messages of prep."""
    pytest.importorskip("distributed")
    with engines.opened("dask", None, 1) as engine:
        assert not engine.executor.submit(warns).result()


def test_dask_prints_nothing_when_its_scheduler_is_lost():
    """It would print tracebacks before the message of prep."""
    pytest.importorskip("distributed")
    with engines.opened("dask", None, 1):
        for name in ("distributed.client", "distributed.core", "tornado.application"):
            assert not logging.getLogger(name).isEnabledFor(logging.ERROR)


def test_errors_of_a_dask_worker_are_those_of_prep(tmp_path, text):
    """With the file that is to blame: here one that changed after it was checked."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        address = cluster.scheduler_address
        with pytest.MonkeyPatch.context() as patch:
            cut = shards.cut
            source = text["train"][0]

            def cut_and_shorten(streams, rows):
                parts = cut(streams, rows)
                if streams[0][0].plain == source:
                    source.write_bytes(source.read_bytes()[:1000])
                return parts

            patch.setattr("nmtkit.prep.steps.cut", cut_and_shorten)
            with pytest.raises(Exception, match="files changed while they were read") as caught:
                prepare(tmp_path, text, "run", SETTINGS, engine="dask", address=address)
    assert caught.value.where == str(source)


def test_rays_workers_are_as_important_as_others():
    pytest.importorskip("ray")
    with engines.opened("ray", None, 1) as engine:
        assert engine.executor.submit(os.nice, 0).result() == os.nice(0)


def test_a_worker_with_another_version(tmp_path, text, monkeypatch):
    """Its results could be others, so no engine takes them."""
    perform = tasks.perform

    def asked(work, task):
        return perform(work, replace(task, version="0.0.1"))

    monkeypatch.setattr(tasks, "perform", asked)
    with pytest.raises(EnvironmentProblem, match=f"does not have nmtkit .*: {nmtkit.__version__}"):
        prepare(tmp_path, text, "run", SETTINGS)


def test_ray_leaves_sigterm_to_the_program():
    """Ray's own handler ends the program with another code, or with a dump of the stack."""
    pytest.importorskip("ray")

    def stop(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with engines.opened("ray", None, 1), pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("content", ["raise ImportError('no')", "__version__ = '0.0.1'"])
def test_a_dask_worker_without_this_nmtkit(tmp_path, text, monkeypatch, content):
    """Without nmtkit a worker of Dask ends, and its scheduler waits for another without end."""
    distributed = pytest.importorskip("distributed")
    other = tmp_path / "other/nmtkit/__init__.py"
    other.parent.mkdir(parents=True)
    other.write_text(content, "utf-8")
    paths = os.pathsep.join([str(tmp_path / "other"), os.environ.get("PYTHONPATH", "")])
    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=1, dashboard_address=":0"
    ) as cluster:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        worker = subprocess.Popen(
            [*command, "--nthreads=1", "--no-nanny", "--no-dashboard"],
            env={**os.environ, "PYTHONPATH": paths},
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        with pytest.raises(EnvironmentProblem, match="does not have nmtkit") as caught:
            address = cluster.scheduler_address
            prepare(tmp_path, text, "run", SETTINGS, engine="dask", address=address)
        worker.terminate()
        worker.wait()
    assert "start the workers again" in caught.value.hint


def test_a_worker_that_does_not_see_a_text(tmp_path, text, monkeypatch):
    cut = shards.cut

    def cut_and_move(streams, rows):
        parts = cut(streams, rows)
        Path(streams[0][0].plain).unlink(missing_ok=True)
        return parts

    monkeypatch.setattr("nmtkit.prep.steps.cut", cut_and_move)
    with pytest.raises(EnvironmentProblem, match=f"does not see {text['train'][0]}"):
        prepare(tmp_path, text, "run", SETTINGS)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"engine": "dusk"}, "unknown engine 'dusk'", "dask"),
        ({"engine": "nowhere:make"}, "cannot import engine 'nowhere:make'", "PYTHONPATH"),
        ({"engine": "tests.prep.test_engines:nothing"}, "has no function nothing", "address"),
        ({"engine": "tests.prep.test_engines:no_executor"}, "returned no Executor", "str"),
        (
            {"engine": "tests.prep.test_engines:fails"},
            "failed: ValueError: no cluster\n",
            "--debug",
        ),
        ({"address": "tcp://x:1"}, "the local engine has no address", "--engine"),
    ],
)
def test_engines_that_are_none(tmp_path, text, options, message, hint):
    caught = refused(ConfigError, message, prepare, tmp_path, text, "run", SETTINGS, **options)
    assert hint in caught.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("engine", "package", "address", "message"),
    [
        ("dask", "distributed", "tcp://127.0.0.1:{port}", "no Dask scheduler answers"),
        ("ray", "ray", "127.0.0.1:{port}", "no Ray cluster answers"),
        ("ray", "ray", "nowhere", "no Ray cluster answers"),
    ],
)
def test_nobody_answers(tmp_path, text, monkeypatch, engine, package, address, message):
    pytest.importorskip(package)
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address.format(port=free.getsockname()[1])
    with pytest.raises(EnvironmentProblem, match=message) as caught:
        prepare(tmp_path, text, "run", SETTINGS, engine=engine, address=address)
    assert caught.value.where == f"--address {address}"


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n"])
def test_a_server_that_is_no_dask_scheduler(tmp_path, text, monkeypatch, answer):
    """One that says nothing is waited for no longer than one that is not there."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        accepted = thread.submit(server.accept)
        accepted.add_done_callback(lambda done: done.result()[0].sendall(answer))
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EnvironmentProblem, match="no Dask scheduler answers"):
            prepare(tmp_path, text, "run", SETTINGS, engine="dask", address=address)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["A dog.", "[1]", "{}", '{"address": 7}'])
def test_a_file_that_is_no_scheduler_file(tmp_path, text, content):
    pytest.importorskip("distributed")
    path = tmp_path / "scheduler.json"
    path.write_text(content, "utf-8")
    with pytest.raises(DataError) as caught:
        prepare(tmp_path, text, "run", SETTINGS, engine="dask", address=str(path))
    assert caught.value.where == str(path) and "--scheduler-file" in caught.value.hint


def test_a_scheduler_file(tmp_path):
    distributed = pytest.importorskip("distributed")
    path = tmp_path / "scheduler.json"
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        path.write_text(json.dumps(cluster.scheduler.identity()), "utf-8")
        with engines.opened("dask", str(path), 1) as engine:
            assert engine.executor.submit(abs, -1).result() == 1


def test_a_scheduler_file_that_is_missing(tmp_path, text):
    pytest.importorskip("distributed")
    with pytest.raises(ConfigError, match="scheduler.json is no file") as caught:
        prepare(tmp_path, text, "run", SETTINGS, engine="dask", address="scheduler.json")
    assert "tcp://HOST:PORT" in caught.value.hint


@pytest.mark.parametrize(("engine", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_an_engine_that_is_not_installed(tmp_path, text, monkeypatch, engine, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvironmentProblem, match=f"{module} is not installed") as caught:
        prepare(tmp_path, text, "run", SETTINGS, engine=engine)
    assert f"pip install -e '.[{engine}]'" in caught.value.hint


def test_a_worker_that_does_not_see_the_work_folder(tmp_path, text, monkeypatch):
    def elsewhere(work, *others):
        shutil.move(work / "work.json", tmp_path / "away")
        return clean_shard(work, *others)

    replace_cleaning(monkeypatch, elsewhere)
    caught = refused(
        EnvironmentProblem, "does not see the work folder", prepare, tmp_path, text, "run", SETTINGS
    )
    assert "--work" in caught.hint and Path(tmp_path / "run" / "prep-work").exists()
