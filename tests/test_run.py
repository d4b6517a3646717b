"""The run directory: choosing a run, names of systems, locks and the history."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import nmtkit
from nmtkit import files, locks
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem, explained
from nmtkit.locks import Holder, locked
from nmtkit.records import load_lines
from nmtkit.run import Run, StageCall, choose, code_commit
from tests.manifests import write_manifest
from tests.prep.corpora import own_files, pairs, prepare
from tests.refused import refused


@pytest.fixture
def system(tmp_path):
    """A system with a folder and no files."""
    system = Run(tmp_path).system("mine")
    system.path.mkdir(parents=True)
    return system


def prepared(folder, name="x", sets=(("train", "train"), ("dev", "dev"), ("test", "test"))):
    prep = folder / name / "prep"
    prep.mkdir(parents=True)
    write_manifest(prep, [(name, split, 3) for name, split in sets])
    return folder / name


def test_default_run_is_the_one_prepared_last(tmp_path, monkeypatch, stderr):
    monkeypatch.chdir(tmp_path)
    first, second = (prepared(Path("runs"), name) for name in "ab")
    os.utime(first / "prep/manifest.json", ns=(1, 1))
    assert choose(None).path == second
    os.utime(second / "prep/manifest.json", ns=(0, 0))
    assert choose(None).path == first
    assert choose(second).path == second
    assert stderr() == "".join(f"nmtkit: run runs/{name}\n" for name in "bab")
    options = ["", " --run runs/b"]
    assert [Run(path).needed_option for path in (first, second)] == options
    monkeypatch.setenv("NMTKIT_RUN", "runs/b")
    assert Run(first).needed_option == " --run runs/a"


def test_missing_run_is_refused_with_the_command_to_run_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(DataError, "nmtkit prep", choose, None)
    hint = "nmtkit prep DATASET --run 'my run'"
    assert refused(DataError, "no run at", choose, Path("my run")).hint == hint
    assert refused(DataError, "no such folder", Run(Path("my run")).manifest).hint == hint
    inside = Run(prepared(Path("runs"), "a") / "systems" / "pr")
    hint = "name the run: --run runs/a"
    assert refused(DataError, "no such folder", inside.manifest).hint == hint


def test_text_set_is_found_by_name_or_by_split(tmp_path):
    run = Run(prepared(tmp_path, sets=(("train", "train"), ("dev", "dev"), ("test_2016", "test"))))
    assert run.text_set("test").name == "test_2016"
    refused(ConfigError, "did you mean 'test_2016'", run.text_set, "test_2017")
    run = Run(prepared(tmp_path, "y", sets=(("test_2016", "test"), ("test_2017", "test"))))
    refused(ConfigError, "this run has no set 'test'", run.text_set, "test")


INVALID_NAMES = "-x,_x,sp ace,a+b,ensemble-a+b,x\n,\tx,a:b,a*,ok.-_=,,a/b,..,.x,−1"


@pytest.mark.parametrize("name", [*INVALID_NAMES.split(","), "ö" * 101])
def test_new_system_needs_a_name_of_letters_digits_hyphens_underscores_and_dots(tmp_path, name):
    error = refused(ConfigError, "cannot name a system", Run(tmp_path).system, name, new=True)
    assert error.where == "--system" and "a letter or a digit first" in error.hint


@pytest.mark.parametrize("name", ["a", "7", "enc-dc-f3-s1", "caru_bi.2", "Größe", "ensemble-a"])
def test_valid_names_of_new_systems_are_accepted(tmp_path, name):
    assert Run(tmp_path).system(name, new=True) == Run(tmp_path).system(name)


def test_systems_whose_names_differ_only_in_case_would_share_a_folder_on_a_mac(tmp_path):
    run = Run(tmp_path)
    (tmp_path / "systems" / "größe").mkdir(parents=True)
    message = "'GRÖSSE' and the system 'größe' differ only in case"
    refused(ConfigError, message, run.system, "GRÖSSE", new=True)
    assert run.system("größe", new=True).name == "größe"
    (tmp_path / "systems" / "GRÖSSE").mkdir()  # from an earlier nmtkit
    assert run.system("GRÖSSE", new=True).name == "GRÖSSE"


def test_translations_of_an_ensemble_have_a_folder_of_their_own(tmp_path):
    folder = Run(tmp_path).system("ensemble-a+b").translation("test")
    assert folder == tmp_path / "systems" / "ensemble-a+b" / "translate" / "test"


@pytest.mark.parametrize(
    ("damaged", "field"),
    [
        pytest.param(b"", "'variant' is missing", id="empty"),
        pytest.param(b'variant = "rnn\n', "line 1", id="not TOML"),
        pytest.param(b'variant = "\xff"\n', "decode", id="not UTF-8"),
        pytest.param(b"\x00" * 40, "line 1", id="zeros"),
        pytest.param(b"variant = 3\n", "'variant' must be text", id="a number"),
        pytest.param(b"[search]\nbeam = 3\n", "'variant' is missing", id="cut at the beginning"),
        pytest.param(b'variant = "x"\nsearch = 3\n', "'search' ", id="no section"),
    ],
)
def test_damaged_config_of_a_system_is_refused(system, damaged, field):
    system.config.write_bytes(damaged)
    error = refused(DataError, f"the file is damaged: .*{field}", system.read_config)
    assert error.where == str(system.config)
    assert error.hint == (
        "bring the file back from a copy, or train the system again with its options:"
        f" nmtkit train --system mine --run {system.path.parent.parent} --force …"
    )


def test_missing_config_means_an_untrained_system(system):
    refused(DataError, "has not been trained", system.read_config)


def test_unknown_settings_of_a_training_are_ignored_and_of_a_search_refused(system):
    """An unknown setting of the search may change translations."""
    system.config.write_text(
        'variant = "x"\n[train]\nlater = 1\nmax_steps = 7\n[search]\nbeem = 3\n[model]\n'
    )
    assert system.training().max_steps == 7
    caught = refused(ConfigError, "unknown setting 'search.beem'", system.searching)
    assert str(system.config) in caught.where and "beam" in caught.hint


HOLD = """
import sys, pathlib
from nmtkit.locks import locked
with locked(pathlib.Path(sys.argv[1]), sys.argv[2], shared=len(sys.argv) > 3):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def other_process(folder, *arguments):
    """Hold a lock in another process, which is killed at the end."""
    command = [sys.executable, "-c", HOLD, str(folder), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def lock(folder, stage, error=None, **options):
    """Lock a folder for a moment."""
    with locked(folder, stage, **options):
        if error:
            raise error


def lock_refused(folder, message, stage="prep", **options):
    return refused(DataError, message, lock, folder, stage, **options)


def test_second_writer_is_refused_with_the_process_that_holds_the_run(tmp_path):
    with other_process(tmp_path, "train") as holder:
        lock_refused(tmp_path, rf"'train' \(process {holder.pid} on ")
        lock_refused(tmp_path, "in use", "translate", shared=True)
    lock(tmp_path, "prep")  # the lock ends with its process


def test_holder_is_named_instead_of_an_earlier_one(tmp_path):
    lock(tmp_path, "prep")
    with locked(tmp_path, "train", shared=True):
        lock_refused(tmp_path, rf"'train' \(process {os.getpid()} ")


def test_failed_stage_removes_the_folder_that_its_lock_created(tmp_path):
    refused(ZeroDivisionError, None, lock, tmp_path / "new", "train", ZeroDivisionError())
    assert not (tmp_path / "new").exists()


def test_shared_locks_exclude_only_an_exclusive_one(tmp_path):
    with locked(tmp_path, "train", shared=True):
        lock(tmp_path, "translate", shared=True)
        lock_refused(tmp_path, "in use")


def test_all_processes_that_share_a_run_are_named(tmp_path):
    """A process that shared the run for a moment is not named, nor does it remove other names.

    A second `train` of a system in training is such a process.
    """
    minutes = r"on [^,]+, for [01] min\)"
    with other_process(tmp_path, "train", "shared") as first:
        with other_process(tmp_path, "score", "shared") as second:
            second.communicate()
        holder = rf"in use by 'train' \(process {first.pid} {minutes}"
        with locked(tmp_path, "translate", shared=True):
            other = rf"'translate' \(process {os.getpid()} {minutes}"
            lock_refused(tmp_path, rf"(?m){holder}, {other}$")
        lock_refused(tmp_path, rf"(?m){holder}$")
    with locked(tmp_path, "analyze", shared=True):  # the killed process is not named
        lock_refused(tmp_path, rf"(?m)in use by 'analyze' \(process {os.getpid()} {minutes}$")
    assert (tmp_path / ".lock").read_text() == ""  # the file does not grow


def test_holder_is_described_with_its_age_and_is_alive_if_it_runs_elsewhere():
    holder = Holder("elsewhere", 4_999_999, "train", time.time() - 7200)
    assert str(holder) == "'train' (process 4999999 on elsewhere, for 120 min)"
    assert holder.alive and not replace(holder, host=socket.gethostname()).alive


def test_lock_of_a_stage_that_may_only_read_is_shared_in_a_read_only_folder(tmp_path, read_only):
    with locked(tmp_path, "score", reads=True):
        lock_refused(tmp_path, "in use by 'score'", "report", shared=True)
    read_only(tmp_path)
    with locked(tmp_path, "score", reads=True):
        lock(tmp_path, "report", shared=True)


def test_lock_waits_briefly_for_the_last_holder_to_leave(tmp_path, monkeypatch):
    with open(tmp_path / ".lock", "a", encoding="utf-8") as leaving:
        fcntl.flock(leaving, fcntl.LOCK_EX)
        monkeypatch.setattr(
            "nmtkit.run.time.sleep", lambda seconds: fcntl.flock(leaving, fcntl.LOCK_UN)
        )
        lock(tmp_path, "score", shared=True)


def test_shared_lock_works_in_a_read_only_folder(tmp_path, read_only):
    lock(tmp_path, "prep")
    read_only(tmp_path)
    with (
        locked(tmp_path, "translate", shared=True),
        open(tmp_path / ".lock", "rb") as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(tmp_path / ".lock", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        lock_refused(tmp_path, "in use by another process", "translate", shared=True)
    (tmp_path / ".lock").unlink()
    lock(tmp_path, "translate", shared=True)
    message = "cannot write .*: Read-only file system"
    refused(EnvironmentProblem, message, lock, tmp_path, "prep")
    assert list(tmp_path.iterdir()) == []


def test_shared_lock_works_on_a_full_disk(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with locked(tmp_path, "translate", shared=True):
        lock_refused(tmp_path, "in use by another process")
    error = refused(EnvironmentProblem, "cannot write ", lock, tmp_path, "x")
    assert str(tmp_path) in error.message and "free some space" in error.hint


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EACCES, "check its permissions"),
        (errno.EISDIR, "move away the file or folder"),
        (errno.EIO, "fix the cause"),
    ],
)
def test_hint_of_an_error_of_a_file_fits_its_cause(tmp_path, number, hint):
    error = OSError(number, os.strerror(number), str(tmp_path))
    for problem in (explained(error), files.unwritable(tmp_path, error)):
        assert str(tmp_path) in str(problem) and problem.hint.startswith(hint)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (None, 0, None),
        (DataError("no text.\udcff"), 2, "no text.?"),
        (KeyboardInterrupt(), 130, "KeyboardInterrupt()"),
        (ZeroDivisionError("x"), 1, "ZeroDivisionError('x')"),
        (OSError(5, "x"), 3, "OSError(5, 'x')"),
        (ModuleNotFoundError("x", name="jieba"), 3, "ModuleNotFoundError('x')"),
        (BrokenPipeError(), 0, "BrokenPipeError()"),
    ],
)
def test_history_records_exit_code_and_error_of_a_stage(tmp_path, error, code, message):
    run = Run(tmp_path)
    with pytest.raises(type(error)) if error else contextlib.nullcontext(), run.recorded("score"):
        if error:
            raise error
    (line,) = load_lines(StageCall, run.history)
    assert (line.stage, line.exit, line.seed, line.error) == ("score", code, None, message)
    assert line.start <= line.end and line.version


def test_history_has_one_line_of_documented_keys_for_each_stage_call(tmp_path, monkeypatch):
    run = Run(tmp_path)
    monkeypatch.setattr(sys, "argv", ["nmtkit", "prep", "text.\udcff"])  # not UTF-8
    with run.recorded("prep", seed=3) as call:
        call.systems = ["a", "b"]
    with pytest.raises(DataError), run.recorded("score"):
        raise DataError("x")
    with run.recorded("train", write=False):
        pass
    first, second = map(json.loads, run.history.read_text("utf-8").splitlines())
    assert (first["argv"], first["seed"]) == (["prep", r"text.\xff"], 3)
    keys = "stage argv version commit python device seed start end exit"
    assert " ".join(first) == f"{keys} systems" and " ".join(second) == f"{keys} error"


def test_commit_is_recorded_of_a_checkout_and_not_of_an_installed_package(tmp_path, monkeypatch):
    """The environment may lie in the repository of another project."""
    repository = tmp_path / "checkout"
    (repository / "nmtkit").mkdir(parents=True)
    identity = ["-c", "user.name=x", "-c", "user.email=x", "-c", "core.hooksPath=/dev/null"]
    for words in (["init"], [*identity, "commit", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True)
    installed = repository / "venv/lib/nmtkit"
    installed.mkdir(parents=True)
    for package, is_checkout in ((repository / "nmtkit", True), (installed, False)):
        monkeypatch.setattr(nmtkit, "__file__", str(package / "__init__.py"))
        assert bool(code_commit.__wrapped__()) == is_checkout


@pytest.fixture
def overtaken(monkeypatch):
    """Let another process create and lock the next folder just before nmtkit opens its lock."""
    opened = locks._opened
    with contextlib.ExitStack() as first:

        def slow(path, shared):
            monkeypatch.setattr(locks, "_opened", opened)
            first.enter_context(locked(path.parent, "prep"))
            return opened(path, shared)

        monkeypatch.setattr(locks, "_opened", slow)
        yield


def test_writer_that_loses_a_race_keeps_the_winners_lock(tmp_path, overtaken):
    lock_refused(tmp_path / "new", "in use")
    assert (tmp_path / "new" / ".lock").read_text()


def test_prep_that_loses_a_race_keeps_the_winners_run(tmp_path, overtaken):
    refused(DataError, "in use", prepare, tmp_path, own_files(tmp_path, pairs(30)))
    assert (tmp_path / "run" / ".lock").read_text()


@pytest.mark.parametrize("number", [errno.EWOULDBLOCK, errno.EACCES])
def test_lock_that_another_command_holds_is_refused(tmp_path, monkeypatch, number):
    """Network disks answer with EACCES."""

    def refuses(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    lock_refused(tmp_path, "in use")


# 45 is ENOTSUP of a Mac; a lost NFS server is not another command that holds the lock.
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, 45, errno.ESTALE])
def test_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, stderr, number):
    def refuses(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    (tmp_path / ".nmtkit-half").touch()
    for shared in (False, True):
        lock(tmp_path, "train", shared=shared)
    assert (tmp_path / ".nmtkit-half").exists()  # another process may be writing it
    assert f".lock ({os.strerror(number)}): do not start two" in " ".join(stderr().split())
