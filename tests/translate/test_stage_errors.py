"""The stage `translate`: wrong input, systems that cannot translate, and streams and disks that
fail.
"""

import contextlib
import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from toy_run import LINES, save_system, set_stdin, translated

from nmtkit.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EnvironmentProblem,
    NmtkitError,
    TrainingDiverged,
)
from nmtkit.locks import locked
from nmtkit.models import checkpoints, loading
from nmtkit.run import Run
from nmtkit.translate import stage
from nmtkit.translate.stage import translate
from tests.manifests import write_best
from tests.refused import refused


def test_translation_stays_if_the_source_of_its_set_is_damaged(run):
    hyp = run.system("one").translation("test") / "hyp.txt"
    translate(run, systems=["one"], jobs=1)
    before = hyp.read_text("utf-8")
    source = run.source("test")
    lines = source.read_text("utf-8").splitlines(keepends=True)
    source.write_text("".join(lines[:2]), "utf-8")
    message = f"2 lines, but {len(lines)} were prepared"
    assert "prepare" in refused(DataError, message, translate, run, jobs=1).hint
    source.unlink()
    assert "prepare" in refused(DataError, "test.src is missing", translate, run, jobs=1).hint
    assert hyp.read_text("utf-8") == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"systems": ["onne"]}, ConfigError, "has no system 'onne'"),
        ({"set_names": ["tst"]}, ConfigError, "has no set 'tst'"),
        ({"set_names": ["train"]}, ConfigError, "keeps no text of the set 'train'"),
        ({"source": "missing.txt"}, DataError, "no such file"),
        ({"source": "."}, DataError, "is a directory"),
        ({"source": "ok.txt", "systems": ["one", "two"]}, ConfigError, "2 systems are named"),
        ({"beam": 2, "nbest": 3}, ConfigError, "search.nbest = 3 is more than search.beam = 2"),
        ({"assignments": ["train.seed=3"]}, ConfigError, "cannot be changed at translation"),
        ({"assignments": ["search.bean=3"]}, ConfigError, "unknown setting 'search.bean'"),
        ({"assignments": ["search.beam=x"]}, ConfigError, "bad value for 'search.beam'"),
        ({"preset": "smal"}, ConfigError, "unknown preset 'smal'"),
        ({"config": Path("missing.toml")}, ConfigError, "cannot read the settings file"),
        ({"config": Path("other.toml")}, ConfigError, "the file has no search settings"),
        ({"device": "gpu"}, ConfigError, "unknown device"),
        ({"force_target": Path("missing.txt"), "set_names": ["test"]}, DataError, "no such file"),
        ({"docs": "marker"}, ConfigError, "the documents of prepared sets are known"),
        ({"force_target": Path("ok.txt")}, ConfigError, "which set"),
        ({"force_target": Path("ok.txt"), "source": "-"}, ConfigError, "read twice"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_written(
    run, tmp_path, monkeypatch, options, error, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.txt").write_text("a\n")
    (tmp_path / "other.toml").write_text("[train]\nmax_steps = 3\n")
    with pytest.raises(error, match=message):
        translate(run, jobs=1, **options)
    assert not list(run.path.glob("systems/*/translate/*/*"))


@pytest.mark.parametrize(
    ("name", "content", "message", "where", "hint"),
    [
        ("a.de-en.tsv", b"ein Hund\ta dog\n", "is a TSV file", "", "cut -f1 FILE.tsv | nmtkit tr"),
        ("x.txt", b"fine\nnot \xff fine\n", "not UTF-8", "x.txt, line 2, byte 9 ", "iconv"),
    ],
)
def test_files_that_are_not_lines_of_text_are_refused_before_any_output(
    run, tmp_path, stdout, name, content, message, where, hint
):
    path = tmp_path / name
    path.write_bytes(content)
    error = refused(DataError, message, translate, run, source=str(path), systems=["one"])
    assert where in str(error.where) and hint in error.hint and "prep." not in error.hint
    assert stdout() == ""


def test_ensemble_whose_name_no_folder_can_have_translates_files_only(run, tmp_path, stdout):
    names = ["b" * 123, "c" * 123]
    for name in names:
        save_system(run, name, seed=1)
    ensemble = partial(translate, run, ensemble=True, systems=names)
    error = refused(ConfigError, "too long for a folder", ensemble, set_names=["test"])
    assert "name fewer systems" in error.hint
    (tmp_path / "x").write_text("a dog\n")
    ensemble(source=str(tmp_path / "x"), jobs=1)
    assert stdout().count("\n") == 1


def test_files_with_another_number_of_lines_than_the_source_are_refused(run, tmp_path):
    target = tmp_path / "target.txt"
    target.write_text("a\nb\n")
    message = f"2 lines but .* has {len(LINES)}"
    error = refused(DataError, message, translated, run, force_target=target)
    assert error.where.startswith("first odd pair: line ") and "--force-target" in error.hint
    # Prefixes are not as long as their sources, so their lengths do not show where lines are
    # missing.
    assert refused(DataError, message, translated, run, prefix=target).where == "--prefix"


@pytest.mark.parametrize(
    ("piped", "options"),
    [
        ("source", {}),
        ("source", {"docs": "blank"}),
        ("source", {"docs": "ok.txt"}),
        ("source", {"force_target": Path("ok.txt")}),
        ("force_target", {"source": "ok.txt"}),
        ("docs", {"source": "ok.txt"}),
    ],
)
def test_pipe_in_place_of_a_file_is_refused_and_not_read(
    run, tmp_path, monkeypatch, stdout, pipe, piped, options
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.txt").write_text("a\n")
    path = pipe("b\n")
    options = {piped: path if piped == "force_target" else str(path), **options}
    message = f"is a pipe, not a file, .*: {path}"
    error = refused(DataError, message, translated, run, set_names=[], **options)
    assert "write it to a file first" in error.hint
    assert ("pipe it to -" in error.hint) == (piped == "source")
    assert path.read_text() == "b\n"
    assert stdout() == ""


def test_closed_stdin_is_a_data_error(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as Python does if file descriptor 0 is closed
    error = refused(DataError, "stdin is closed", translated, run, set_names=[], source="-")
    assert "name a file" in error.hint


@pytest.mark.parametrize("jobs", [1, 2])
def test_stdout_whose_reader_has_left_raises_broken_pipe_error(run, monkeypatch, jobs):
    reader, writer = os.pipe()
    os.close(reader)
    stream = open(writer, "w", encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(BrokenPipeError):
        translated(run, set_names=[], source=str(run.source("test")), jobs=jobs)
    with contextlib.suppress(BrokenPipeError):  # closing the stream writes the rest
        stream.close()


@pytest.mark.parametrize("locked_before", [True, False])
def test_run_on_a_read_only_disk_translates_to_stdout(
    run, tmp_path, monkeypatch, stdout, read_only, locked_before
):
    path = tmp_path / "input.txt"
    path.write_text("a dog\n", "utf-8")
    calls = [{"source": str(path)}, {"source": "-"}, {"source": str(path), "force_target": path}]

    def printed(options):
        set_stdin(monkeypatch, path.read_bytes())
        translated(run, set_names=[], **options)
        return stdout()

    def contents():
        return {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}

    translated(run)
    expected = list(map(printed, calls))
    if not locked_before:
        (run.path / ".lock").unlink()
    before = contents()
    read_only(run.path)
    assert list(map(printed, calls)) == expected and all(expected)
    translated(run)  # it is up to date
    message = r"cannot write .*systems/one: Permission"
    refused(EnvironmentProblem, message, translated, run, force=True)
    assert contents() == before


def test_failed_search_leaves_the_earlier_translation(run, monkeypatch):
    folder = translated(run)
    before = (folder / "hyp.txt").read_bytes()

    def fail(scorer, windows):
        raise RuntimeError("broke")

    monkeypatch.setattr(stage.Scorer, "translate_windows", fail)
    with pytest.raises(RuntimeError, match="broke"):
        translated(run, beam=2)
    assert (folder / "hyp.txt").read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == ["hyp.subwords.txt", "hyp.txt", "meta.json"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_run_that_is_not_prepared_or_has_no_checkpoints_is_refused(run, tmp_path):
    refused(DataError, "not prepared", translate, Run(tmp_path))
    for system in run.systems():
        shutil.rmtree(system.checkpoints)
    refused(DataError, "'one' was trained, but its checkpoints are gone", translate, run)
    (run.system("one").path / "best.json").unlink()
    error = refused(DataError, "no system has a checkpoint yet", translate, run)
    assert error.hint == f"nmtkit train --system one --run {run.path}"
    for system in run.systems():
        system.config.unlink()
    refused(DataError, "has been trained", translate, run)


def test_metric_that_fails_ends_the_translation_with_the_first_system(run, stderr):
    """The fault is not the system's, so the other systems are not searched."""
    with pytest.raises(ConfigError, match="exit code 3"):
        translate(run, set_names=["test"], jobs=1, mbr=2, beam=2, metric="mine=exit 3")
    assert stderr().count("loaded ") == 1


def test_system_in_training_is_skipped_unless_it_is_named(run, stderr):
    with locked(run.system("two").path, "train"):
        translate(run, set_names=["test"], jobs=1)
        assert "skipping 'two'" in stderr()
        assert (run.system("one").translation("test") / "hyp.txt").exists()
        refused(DataError, "in use by 'train'", translate, run, systems=["two"], jobs=1)


def edit_files(system, pattern, old, new):
    for path in system.path.glob(pattern):
        path.write_text(re.sub(old, new, path.read_text("utf-8")), "utf-8")


def save_diverged_checkpoint(system):
    weights = checkpoints.load_weights(system.checkpoints / "step-00000010")
    weights = {name: torch.full_like(tensor, torch.nan) for name, tensor in weights.items()}
    about = {"vocabulary": loading.vocabulary_hashes(Run(system.path.parents[1]))}
    checkpoints.save(system.checkpoints, 40, weights, {}, {}, about)
    write_best(system.path, "step-00000040")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            lambda system: edit_files(
                system, "checkpoints/*/manifest.json", '"[0-9a-f]{64}"', f'"{64 * "0"}"'
            ),
            CheckpointError,
            "no valid checkpoint",
        ),
        (save_diverged_checkpoint, TrainingDiverged, "the model's probabilities are not finite"),
        (
            lambda system: edit_files(
                system, "config.toml", "(?m)^variant = .*$", 'variant = "nowhere.to_be:Found"'
            ),
            DataError,
            ".*nowhere",
        ),
        (
            lambda system: edit_files(system, "config.toml", r"\Z", "x = 1 ="),
            DataError,
            "the file is damaged",
        ),
        (
            lambda system: edit_files(system, "config.toml", r"\Z", "depth = 1"),
            ConfigError,
            "unknown setting 'search.depth'",
        ),
    ],
)
def test_system_that_cannot_translate_is_skipped_unless_it_is_named(
    run, stderr, damage, error, message
):
    system = run.system("one")
    damage(system)
    translate(run, set_names=["test"], jobs=1)
    assert re.search(f"skipping 'one': {message}", stderr())
    assert (run.system("two").translation("test") / "hyp.txt").exists()
    assert not list(system.path.glob("translate/*"))
    refused(error, message, translate, run, systems=["one"], jobs=1)
    with pytest.raises(NmtkitError):
        translate(run, systems=["one"], source=str(run.source("test")), jobs=1)
