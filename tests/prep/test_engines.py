"""Engines: processes, Dask, Ray and a user's Executor give the same bytes, also if a worker dies."""

import functools
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
from tests.systems import workers_only

SETTINGS = ["merges=40", "shard_lines=100"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return own_files(tmp_path_factory.mktemp("text"), pairs(2500, 4))


@pytest.fixture(scope="module")
def expected(tmp_path_factory, text):
    return contents(prepare(tmp_path_factory.mktemp("expected"), text, "run", SETTINGS))


@pytest.fixture
def own_text(tmp_path):
    """Files that a test may change."""
    return own_files(tmp_path, pairs(200, 4))


@pytest.fixture
def prepare_run(tmp_path, text):
    """Return a function that prepares `text` in the folder "run" and returns the run."""
    return functools.partial(prepare, tmp_path, text, "run", SETTINGS)


# engines that a user could write


def threads(address, jobs):
    return ThreadPoolExecutor(1)


def no_executor(address, jobs):
    return "no executor"


def fails(address, jobs):
    raise ValueError("no cluster\nhere")


def test_executor_of_the_user_gives_the_same_corpus(prepare_run, expected):
    engine = "tests.prep.test_engines:threads"
    assert contents(prepare_run(engine=engine)) == expected


@workers_only
def test_corpus_is_the_same_after_a_local_worker_is_killed(
    prepare_run, tmp_path, monkeypatch, expected
):
    marker = tmp_path / "killed"

    def clean_or_die(work, index, *others):
        if index == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return clean_shard(work, index, *others)

    replace_cleaning(monkeypatch, clean_or_die)
    assert contents(prepare_run(jobs=2)) == expected
    assert marker.exists()


@workers_only
def test_prep_stops_after_three_killed_workers_and_can_go_on(prepare_run, monkeypatch, expected):
    replace_cleaning(monkeypatch, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
    message = "killed 3 times in step clean"
    assert "fewer --jobs" in refused(EnvironmentProblem, message, prepare_run, jobs=2).hint
    monkeypatch.undo()
    assert contents(prepare_run(jobs=2)) == expected


def killer(folder, pids):
    """Start a thread that kills a worker as soon as a shard is cleaned; return its `join`, which
    returns the killed process.
    """
    killed = []

    def work():
        end = time.monotonic() + 120
        while time.monotonic() < end and not killed:
            time.sleep(0.01)
            if list(folder.glob("clean/0*.json")):
                for pid in pids()[:1]:  # none while all workers of Ray wait for a task
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=work)
    thread.start()
    return lambda: (thread.join(), killed)[1]


def children(word):
    """Return a function that lists the child processes whose command holds this pattern."""
    psutil = pytest.importorskip("psutil")
    return lambda: [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if re.search(word, " ".join(process.as_dict(["cmdline"])["cmdline"] or ["zombie"]))
    ]


@pytest.mark.parametrize(
    ("engine", "package", "worker", "message"),
    [
        ("dask", "distributed", "spawn_main|dask worker", "Dask: 2 workers, dashboard http"),
        ("ray", "ray", "ray::_call", ""),
    ],
)
def test_corpus_is_the_same_after_a_worker_of_a_cluster_is_killed(
    prepare_run, tmp_path, stderr, engine, package, worker, message, expected
):
    pytest.importorskip(package)
    join = killer(tmp_path / "run" / "prep-work", children(worker))
    run = prepare_run(jobs=2, engine=engine)
    assert join() and contents(run) == expected
    assert message in stderr()


def blocks_interrupts():
    """True if the main thread of this process blocks SIGINT; any thread may ask."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    return bool(blocked >> (signal.SIGINT - 1) & 1)


def prints_warnings():
    """True if a worker of Dask in this process prints warnings."""
    handlers = logging.getLogger("distributed").handlers or [logging.lastResort]
    return any(handler.level <= logging.WARNING for handler in handlers)


class TestDaskEngine:
    @pytest.fixture(scope="class")
    @classmethod
    def dask(cls):
        pytest.importorskip("distributed")
        with engines.opened("dask", None, 1) as engine:
            yield engine.executor

    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
    def test_workers_ignore_ctrl_c(self, dask):
        """A worker would print its traceback; only this process reacts."""
        assert dask.submit(blocks_interrupts).result()
        assert not blocks_interrupts()

    def test_workers_print_no_warnings_when_prep_is_stopped(self, dask):
        """By default they warn of each task that is cancelled."""
        assert not dask.submit(prints_warnings).result()

    @pytest.mark.parametrize(
        "name", ["distributed.client", "distributed.core", "tornado.application"]
    )
    def test_this_process_prints_no_errors_when_the_scheduler_is_lost(self, dask, name):
        """By default it prints tracebacks before the error of prep."""
        assert not logging.getLogger(name).isEnabledFor(logging.ERROR)


def local_cluster(workers, **options):
    distributed = pytest.importorskip("distributed")
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", **options
    )


def test_error_in_a_dask_worker_names_the_file(tmp_path, own_text, monkeypatch):
    """Here the file changes after it was checked."""
    source, cut = own_text["train"][0], shards.cut

    def cut_and_shorten(streams, rows):
        parts = cut(streams, rows)
        if streams[0][0].plain == source:
            source.write_bytes(source.read_bytes()[:1000])
        return parts

    with local_cluster(1, processes=False) as cluster:
        monkeypatch.setattr("nmtkit.prep.steps.cut", cut_and_shorten)
        options = {"engine": "dask", "address": cluster.scheduler_address}
        message = "files changed while they were read"
        caught = refused(
            Exception, message, prepare, tmp_path, own_text, "run", SETTINGS, **options
        )
        monkeypatch.undo()
    assert caught.where == str(source)


def test_ray_workers_have_the_priority_of_this_process():
    pytest.importorskip("ray")
    with engines.opened("ray", None, 1) as engine:
        assert engine.executor.submit(os.nice, 0).result() == os.nice(0)


def test_worker_with_another_version_of_nmtkit_is_refused(prepare_run, monkeypatch):
    """Its results could differ."""
    perform = tasks.perform
    monkeypatch.setattr(
        tasks, "perform", lambda work, task: perform(work, replace(task, version="0.0.1"))
    )
    with pytest.raises(EnvironmentProblem, match=f"does not have nmtkit .*: {nmtkit.__version__}"):
        prepare_run()


def test_ray_does_not_replace_the_programs_sigterm_handler():
    """Ray's handler ends the program with another code, or with a dump of the stack."""
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
def test_dask_worker_without_this_nmtkit_is_refused(prepare_run, tmp_path, content):
    """A worker without nmtkit ends, and Dask's scheduler would wait for another one forever."""
    pytest.importorskip("distributed")
    other = tmp_path / "other/nmtkit/__init__.py"
    other.parent.mkdir(parents=True)
    other.write_text(content, "utf-8")
    paths = os.pathsep.join([str(tmp_path / "other"), os.environ.get("PYTHONPATH", "")])
    with local_cluster(0) as cluster:
        address = cluster.scheduler_address
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address]
        worker = subprocess.Popen(
            [*command, "--nthreads=1", "--no-nanny", "--no-dashboard"],
            env={**os.environ, "PYTHONPATH": paths},
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        options = {"engine": "dask", "address": address}
        caught = refused(EnvironmentProblem, "does not have nmtkit", prepare_run, **options)
        worker.terminate()
        worker.wait()
    assert "start the workers again" in caught.hint


def test_worker_that_does_not_see_the_text_is_an_environment_error(tmp_path, own_text, monkeypatch):
    cut = shards.cut

    def cut_and_remove(streams, rows):
        parts = cut(streams, rows)
        Path(streams[0][0].plain).unlink(missing_ok=True)
        return parts

    monkeypatch.setattr("nmtkit.prep.steps.cut", cut_and_remove)
    message = f"does not see {own_text['train'][0]}"
    refused(EnvironmentProblem, message, prepare, tmp_path, own_text, "run", SETTINGS)


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
def test_wrong_engine_is_refused_before_anything_is_written(
    prepare_run, tmp_path, options, message, hint
):
    caught = refused(ConfigError, message, prepare_run, **options)
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
def test_address_without_a_cluster_is_an_environment_error(
    prepare_run, monkeypatch, engine, package, address, message
):
    pytest.importorskip(package)
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address.format(port=free.getsockname()[1])
    with pytest.raises(EnvironmentProblem, match=message) as caught:
        prepare_run(engine=engine, address=address)
    assert caught.value.where == f"--address {address}"


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n"])
def test_address_of_another_server_is_refused(prepare_run, tmp_path, monkeypatch, answer):
    """A silent server is waited for no longer than a missing one."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        accepted = thread.submit(server.accept)
        accepted.add_done_callback(lambda done: done.result()[0].sendall(answer))
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EnvironmentProblem, match="no Dask scheduler answers"):
            prepare_run(engine="dask", address=address)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["A dog.", "[1]", "{}", '{"address": 7}'])
def test_malformed_scheduler_file_is_refused(prepare_run, tmp_path, content):
    pytest.importorskip("distributed")
    path = tmp_path / "scheduler.json"
    path.write_text(content, "utf-8")
    options = {"engine": "dask", "address": str(path)}
    caught = refused(DataError, None, prepare_run, **options)
    assert caught.where == str(path) and "--scheduler-file" in caught.hint


def test_dask_scheduler_is_found_by_its_scheduler_file(tmp_path):
    path = tmp_path / "scheduler.json"
    with local_cluster(1, processes=False) as cluster:
        path.write_text(json.dumps(cluster.scheduler.identity()), "utf-8")
        with engines.opened("dask", str(path), 1) as engine:
            assert engine.executor.submit(abs, -1).result() == 1


def test_missing_scheduler_file_is_refused(prepare_run):
    pytest.importorskip("distributed")
    options = {"engine": "dask", "address": "scheduler.json"}
    message = "scheduler.json is no file"
    caught = refused(ConfigError, message, prepare_run, **options)
    assert "tcp://HOST:PORT" in caught.hint


@pytest.mark.parametrize(("engine", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_engine_that_is_not_installed_is_refused_with_the_install_command(
    prepare_run, monkeypatch, engine, module
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvironmentProblem, match=f"{module} is not installed") as caught:
        prepare_run(engine=engine)
    assert f"pip install -e '.[{engine}]'" in caught.value.hint


def test_worker_that_does_not_see_the_work_folder_is_an_environment_error(
    prepare_run, tmp_path, monkeypatch
):
    def move_and_clean(work, *others):
        shutil.move(work / "work.json", tmp_path / "away")
        return clean_shard(work, *others)

    replace_cleaning(monkeypatch, move_and_clean)
    caught = refused(EnvironmentProblem, "does not see the work folder", prepare_run)
    assert "--work" in caught.hint and Path(tmp_path / "run" / "prep-work").exists()
