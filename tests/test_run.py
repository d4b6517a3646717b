"""The run directory: choosing it, holding it, and its history."""

import contextlib
import errno
import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nmtkit
from nmtkit import locks
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.locks import locked
from nmtkit.records import load_lines
from nmtkit.run import Run, StageCall, choose, code_commit
from tests.manifests import write_manifest
from tests.prep.corpora import own_files, pairs, prepare
from tests.refused import refused


def prepared(folder, name="x", sets=(("train", "train"), ("dev", "dev"), ("test", "test"))):
    prep = folder / name / "prep"
    prep.mkdir(parents=True)
    write_manifest(prep, [(name, split, 3) for name, split in sets])
    return folder / name


def test_the_run_prepared_last_is_chosen(tmp_path, monkeypatch, stderr):
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


def test_no_run_says_what_to_do_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(DataError, "nmtkit prep", choose, None)
    hint = "nmtkit prep DATASET --run 'my run'"
    assert refused(DataError, "no run at", choose, Path("my run")).hint == hint
    assert refused(DataError, "no such folder", Run(Path("my run")).manifest).hint == hint
    inside = Run(prepared(Path("runs"), "a") / "systems" / "pr")
    hint = "name the run: --run runs/a"
    assert refused(DataError, "no such folder", inside.manifest).hint == hint


def test_sets_by_name(tmp_path):
    run = Run(prepared(tmp_path, sets=(("train", "train"), ("dev", "dev"), ("test_2016", "test"))))
    assert run.text_set("test").name == "test_2016"
    refused(ConfigError, "did you mean 'test_2016'", run.text_set, "test_2017")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".hidden"])
def test_a_system_name_is_a_plain_folder_name(tmp_path, name):
    refused(ConfigError, "cannot name a system", Run(tmp_path).system, name)


NO_NAMES = "-x,_x,sp ace,a+b,ensemble-a+b,x\n,\tx,a:b,a*,ok.-_=,,a/b,..,.x,−1"


@pytest.mark.parametrize("name", NO_NAMES.split(","))
def test_a_system_to_be_trained_has_a_name_that_commands_and_ensembles_can_read(tmp_path, name):
    caught = refused(ConfigError, "cannot name a system", Run(tmp_path).system, name, new=True)
    assert caught.where == "--system" and "a letter or a digit first" in caught.hint


@pytest.mark.parametrize("name", ["a", "7", "enc-dc-f3-s1", "caru_bi.2", "Größe", "ensemble-a"])
def test_names_of_letters_digits_hyphens_underscores_and_dots(tmp_path, name):
    assert Run(tmp_path).system(name, new=True) == Run(tmp_path).system(name)


def test_the_folder_of_an_ensemble_is_found(tmp_path):
    assert (
        Run(tmp_path).system("ensemble-a+b").translation("test")
        == tmp_path / "systems" / "ensemble-a+b" / "translate" / "test"
    )


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
def test_damaged_settings_of_a_system_are_named(tmp_path, damaged, field):
    system = Run(tmp_path).system("mine")
    system.path.mkdir(parents=True)
    refused(DataError, "has not been trained", system.read_config)
    system.config.write_bytes(damaged)
    caught = refused(DataError, f"the file is damaged: .*{field}", system.read_config)
    assert caught.where == str(system.config)
    assert (
        caught.hint
        == "bring the file back from a copy, or train the system again with its options: nmtkit train"
        f" --system mine --run {tmp_path} --force …"
    )


def test_settings_of_another_version(tmp_path):
    """Those of a training are passed over; one of the search may change translations."""
    system = Run(tmp_path).system("mine")
    system.path.mkdir(parents=True)
    system.config.write_text(
        'variant = "x"\n[train]\nlater = 1\nmax_steps = 7\n[search]\nbeem = 3\n[model]\n'
    )
    assert system.training().max_steps == 7
    caught = refused(ConfigError, "unknown setting 'search.beem'", system.searching)
    assert str(system.config) in caught.where and "beam" in caught.hint


HOLD = """
import sys, pathlib
from nmtkit.locks import locked
with locked(pathlib.Path(sys.argv[1]), "train"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_is_told_who_holds_the_run_and_a_dead_one_does_not_count(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(DataError, match=rf"'train' \(process {holder.pid} on "),
        locked(tmp_path, "prep"),
    ):
        pass
    with pytest.raises(DataError, match="in use"), locked(tmp_path, "translate", shared=True):
        pass
    holder.kill()
    holder.wait()
    with locked(tmp_path, "prep"):
        pass


def test_the_holder_named_is_the_one_that_holds_and_a_refused_folder_is_not_left_behind(tmp_path):
    with locked(tmp_path, "prep"):
        pass
    with (
        locked(tmp_path, "train", shared=True),
        pytest.raises(DataError, match=rf"'train' \(process {os.getpid()} "),
        locked(tmp_path, "prep"),
    ):
        pass
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "new", "train"):
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()


def test_sharers_keep_out_only_who_wants_it_alone(tmp_path):
    with locked(tmp_path, "train", shared=True):
        with locked(tmp_path, "translate", shared=True):
            pass
        with pytest.raises(DataError, match="in use"), locked(tmp_path, "prep"):
            pass


def test_a_sharer_that_came_and_went_leaves_the_names_of_those_who_stay(tmp_path):
    """As a second `train` of a system that is in training does: it shares the run for a moment,
    and is refused.
    """
    code = HOLD.replace('"train")', '"train", shared=True)')
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout.readline() == "held\n"
    second = subprocess.run(
        [sys.executable, "-c", code.replace('"train"', '"score"'), str(tmp_path)],
        input="",
        capture_output=True,
        check=True,
    )
    assert second.stdout == b"held\n"
    with (
        locked(tmp_path, "translate", shared=True),
        pytest.raises(DataError) as caught,
        locked(tmp_path, "prep"),
    ):
        pass
    named = (
        rf"in use by 'train' \(process {first.pid} on [^,]+, for 0 min\), 'translate' \(process"
        rf" {os.getpid()} on [^,]+, for 0 min\)$"
    )
    assert re.search(named, caught.value.message)
    with (
        pytest.raises(
            DataError, match=rf"(?m)in use by 'train' \(process {first.pid} on [^,]+, for 0 min\)$"
        ),
        locked(tmp_path, "prep"),
    ):
        pass
    first.kill()
    first.wait()
    with locked(tmp_path, "analyze", shared=True):
        pass
    assert (tmp_path / ".lock").read_text() == ""  # it does not grow with the years


def test_who_comes_while_the_last_one_leaves_is_let_in(tmp_path, monkeypatch):
    with open(tmp_path / ".lock", "a", encoding="utf-8") as leaving:
        fcntl.flock(leaving, fcntl.LOCK_EX)
        monkeypatch.setattr(
            "nmtkit.run.time.sleep", lambda seconds: fcntl.flock(leaving, fcntl.LOCK_UN)
        )
        with locked(tmp_path, "score", shared=True):
            pass


def test_a_sharer_of_a_folder_that_cannot_be_written_goes_on_and_keeps_out_of_one_that_is_held(
    tmp_path, read_only
):
    with locked(tmp_path, "prep"):
        pass
    read_only(tmp_path)
    with (
        locked(tmp_path, "translate", shared=True),
        open(tmp_path / ".lock", "rb") as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(tmp_path / ".lock", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(DataError, match="in use by another process"),
            locked(tmp_path, "translate", shared=True),
        ):
            pass
    (tmp_path / ".lock").unlink()
    with locked(tmp_path, "translate", shared=True):
        pass
    with (
        pytest.raises(EnvironmentProblem, match="cannot write .*: Read-only file system"),
        locked(tmp_path, "prep"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_sharer_needs_no_room_on_the_disk_for_its_name(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with (
        locked(tmp_path, "translate", shared=True),
        pytest.raises(DataError, match="in use by another process"),
        locked(tmp_path, "prep"),
    ):
        pass
    with (
        pytest.raises(EnvironmentProblem, match="cannot write ") as caught,
        locked(tmp_path, "x"),
    ):
        pass
    assert str(tmp_path) in caught.value.message and "free some space" in caught.value.hint


def test_history_has_one_line_a_stage_call_however_it_ends(tmp_path, monkeypatch):
    run = Run(tmp_path)
    monkeypatch.setattr(sys, "argv", ["nmtkit", "prep", "text.\udcff"])  # a name that is not UTF-8
    with run.recorded("prep", seed=3) as call:
        call.systems = ["a", "b"]
    for stage, error in (
        ("score", DataError("no text.\udcff")),
        ("train", KeyboardInterrupt()),
        ("report", ZeroDivisionError("x")),
        ("export", OSError(5, "x")),
        ("analyze", ModuleNotFoundError("x", name="jieba")),
        ("translate", BrokenPipeError()),
    ):
        with pytest.raises(type(error)), run.recorded(stage):
            raise error
    with run.recorded("train", write=False):
        pass
    lines = list(load_lines(StageCall, run.history))
    assert [(line.stage, line.exit, line.seed, line.error) for line in lines] == [
        ("prep", 0, 3, None),
        ("score", 2, None, "no text.?"),
        ("train", 130, None, "KeyboardInterrupt()"),
        ("report", 1, None, "ZeroDivisionError('x')"),
        ("export", 3, None, "OSError(5, 'x')"),
        ("analyze", 3, None, "ModuleNotFoundError('x')"),
        ("translate", 0, None, "BrokenPipeError()"),
    ]
    assert all(line.start <= line.end and line.version for line in lines)
    assert lines[0].argv == ["prep", r"text.\xff"]
    keys = "stage argv version commit python device seed start end exit"
    written = list(map(json.loads, run.history.read_text("utf-8").splitlines()))
    assert [" ".join(line) for line in written] == [f"{keys} systems", *[f"{keys} error"] * 6]


def test_the_commit_is_that_of_nmtkit_and_not_of_the_repository_of_its_environment(
    tmp_path, monkeypatch
):
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
    """Another process makes the next folder that is to be locked, and holds it."""
    opened = locks._opened
    with contextlib.ExitStack() as first:

        def slow(path, shared):
            monkeypatch.setattr(locks, "_opened", opened)
            first.enter_context(locked(path.parent, "prep"))
            return opened(path, shared)

        monkeypatch.setattr(locks, "_opened", slow)
        yield


def test_a_writer_that_is_overtaken_leaves_the_lock_of_the_other(tmp_path, overtaken):
    folder = tmp_path / "new"
    with pytest.raises(DataError, match="in use"), locked(folder, "prep"):
        pass
    assert (folder / ".lock").read_text()


def test_prep_that_is_overtaken_leaves_the_run_of_the_other(tmp_path, overtaken):
    files = own_files(tmp_path, pairs(30))
    with pytest.raises(DataError, match="in use"):
        prepare(tmp_path, files)
    assert (tmp_path / "run" / ".lock").read_text()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, stderr, number):
    def refuses(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuses)
    (tmp_path / ".nmtkit-half").touch()
    for shared in (False, True):
        with locked(tmp_path, "train", shared=shared):
            pass
    assert (tmp_path / ".nmtkit-half").exists()  # another process may be writing it
    assert f"has no locks ({os.strerror(number)})" in " ".join(stderr().split())
