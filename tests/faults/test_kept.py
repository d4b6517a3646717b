"""nmtkit removes only files that it wrote, and a copied run equals the original."""

import contextlib
import itertools
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from nmtkit import folders
from nmtkit.analyze.stage import analyze
from nmtkit.errors import DataError
from nmtkit.files import sha256
from nmtkit.models import checkpoints
from nmtkit.owned_files import PREP
from nmtkit.prep import work
from nmtkit.prep.stage import _owned as prepared
from nmtkit.prep.stage import prep
from nmtkit.prep.steps import Steps
from nmtkit.report.stage import report
from nmtkit.run import Run
from nmtkit.score.stage import score
from nmtkit.train import saving
from nmtkit.train.stage import train
from nmtkit.translate.stage import translate
from nmtkit.translate.systems import trained, trained_last
from tests.faults.trainings import killed
from tests.manifests import edit, read_json, write_json
from tests.random_systems import prepare
from tests.refused import refused
from tests.train.tiny import last, make_run, options

SHORT = options("train.max_steps=6", "train.checkpoint_every=2", "train.validate_every=2")
NOTES = (
    *("notes.md", "translate/notes.md", "translate/dev/notes.md", "checkpoints/notes.md"),
    *("plots/curve.svg", "tensorboard/notes.md", "export/mine/model.bin", "made.log"),
    *("checkpoints/best/step-00000006/model.safetensors", "checkpoints/step-6-copy/state.json"),
    *("translate/dev/before/hyp.txt", "wandb/run-notes.md"),
)
"""Files that a user may put into the folder of a system."""


def fit(run, name="a", *settings, **values):
    train(run, name=name, assignments=[*SHORT, *settings], **values)


def content(folder):
    """Return the contents of the files of a folder, without lock and log."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in {".lock", "train.log"}
    }


def write_notes(folder, names=NOTES):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"mine: {name}", "utf-8")


def notes(folder):
    """Return the sorted names of the notes in a folder."""
    return sorted(
        path.read_text("utf-8", errors="replace").removeprefix("mine: ")
        for path in folder.rglob("*")
        if path.is_file() and path.read_bytes().startswith(b"mine: ")
    )


# A system without its checkpoints


@pytest.mark.parametrize("dev", [6, 0])
@pytest.mark.parametrize("removed", ["checkpoints", "checkpoints/*"])
def test_system_without_its_checkpoints_is_trained_again_only_with_force(
    tmp_path, dev, removed, stderr
):
    run = make_run(tmp_path / "run", pairs=30, dev=dev)
    fit(run)
    system = run.system("a")
    if dev:
        translate(run, set_names=["dev"], jobs=1)
    for path in system.path.glob(removed):
        shutil.rmtree(path)
    write_notes(system.path)
    before = content(system.path)
    for settings in ((), ("train.seed=2",)):
        error = refused(DataError, "its checkpoints are gone", fit, run, "a", *settings)
        assert "--force" in error.hint
        assert content(system.path) == before
    refused(DataError, "its checkpoints are gone", checkpoints.choose, system)
    assert "skipping" not in stderr()
    fit(run, force=True)
    assert last(run, "a").name == "step-00000006"
    assert notes(system.path) == sorted(NOTES)
    assert all((system.path / name).is_file() for name in NOTES)
    assert not list(system.path.glob("translate/*/hyp*")) + list(system.path.glob("*/*/meta.json"))


def test_training_killed_before_its_first_checkpoint_begins_again(tmp_path):
    run = make_run(tmp_path / "run", pairs=30)
    write_notes(run.system("a").path)
    with killed(saving, "retried"):
        fit(run)
    fit(run, "a", "train.seed=2")
    assert last(run, "a").name == "step-00000006"
    assert notes(run.system("a").path) == sorted(NOTES)


def test_notes_in_a_checkpoint_folder_survive_its_removal(tmp_path, stderr):
    run = make_run(tmp_path / "run", pairs=30)
    fit(run)
    system = run.system("a")
    steps = [path.name for path in checkpoints.candidates(system.checkpoints)]
    names = [f"checkpoints/{step}/notes.md" for step in steps]
    write_notes(system.path, names)
    fit(run, "a", "train.max_steps=8", "train.keep_checkpoints=1")
    assert "not-of-nmtkit" in stderr()
    assert notes(system.path) == sorted(names)
    fit(run, force=True)
    assert notes(system.path) == sorted(names)
    assert [path.name for path in checkpoints.find_checkpoints(system)] == steps


# A system whose new training begins with its old weights


def test_system_initialised_from_itself_keeps_its_weights_until_new_ones_are_saved(
    tmp_path, monkeypatch
):
    """After a kill the same command finds the old weights and gives the same new ones."""
    run, whole = make_run(tmp_path / "run", pairs=30, dev=6), Run(tmp_path / "whole")
    fit(run)
    train_again = partial(fit, name="a", init_from="a", force=True)
    shutil.copytree(run.path, whole.path)
    train_again(whole)
    old = sha256(checkpoints.choose(run.system("a"), 1)[0] / "model.safetensors")
    calls = [(os, "replace", n) for n in range(1, 6)] + [(saving, "retried", 1)]
    for owner, function, number in calls:
        with killed(owner, function, number):
            train_again(run)
        weights = (run.path / "systems").rglob("model.safetensors")
        assert old in map(sha256, weights), (function, number)
    train_again(run)
    assert hashes_of_weights(run) == hashes_of_weights(whole)
    assert not run.system("a").replaced.path.exists()


def hashes_of_weights(run):
    return [
        (path.name, sha256(path / "model.safetensors"))
        for path in checkpoints.find_checkpoints(run.system("a"))
    ]


# The order of the systems


@pytest.fixture(scope="module")
def three_once(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("three") / "run", pairs=30, dev=6)
    for name in ("c", "a", "b"):
        fit(run, name, "train.log_to=none")
    return run.path


@pytest.fixture
def three(three_once, tmp_path):
    """A copy of a run of three systems, trained in another order than that of their names."""
    return Run(shutil.copytree(three_once, tmp_path / "three"))


@pytest.fixture(scope="module")
def demo_once(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("demo") / "run").path


@pytest.fixture
def demo(demo_once, tmp_path):
    """A copy of the prepared demo corpus."""
    return Run(shutil.copytree(demo_once, tmp_path / "run"))


def order(run):
    return [system.name for system in run.systems()]


def test_copied_run_has_the_same_baseline_and_last_system(three, tmp_path):
    assert order(three) == ["c", "a", "b"]
    for times in itertools.permutations((1, 2, 3)):
        copy = tmp_path / f"copy{times}"
        shutil.copytree(three.path, copy, copy_function=shutil.copyfile)
        for name, time in zip("abc", times, strict=True):
            for path in (copy / "systems" / name).rglob("*"):
                os.utime(path, (time, time))
        assert order(Run(copy)) == ["c", "a", "b"]
        assert trained_last(trained(Run(copy))).name == "b"


def test_repeated_training_of_the_baseline_keeps_the_order_of_systems(three):
    before = content(three.path / "systems")
    fit(three, "c", "train.log_to=none")
    assert content(three.path / "systems") == before
    assert order(three) == ["c", "a", "b"]
    assert trained_last(trained(three)).name == "b"
    fit(three, "c", "train.max_steps=8")
    fit(three, "a", force=True)
    assert order(three) == ["c", "a", "b"]
    assert trained_last(trained(three)).name == "a"


def test_clock_that_is_set_back_keeps_the_order_of_systems(three, monkeypatch):
    monkeypatch.setattr(saving.time, "time_ns", lambda: 5)
    fit(three, "0")
    fit(three, "00")
    assert order(three) == ["c", "a", "b", "0", "00"]


def test_systems_without_a_record_are_ordered_by_the_time_of_their_config(three):
    for number, name in enumerate(("b", "c", "a"), 1):
        (three.system(name).path / "system.json").unlink()
        os.utime(three.system(name).config, (number, number))
    assert order(three) == ["b", "c", "a"]
    fit(three, "b")  # writes config.toml
    fit(three, "new")
    assert order(three) == ["b", "c", "a", "new"]
    (three.system("c").path / "system.json").write_text("{")  # a damaged file counts as missing
    assert order(three) == ["b", "c", "a", "new"]


# Translations and the prepared corpus


def prepare_again(run, size=60):
    settings = ["prep.merges=60"]
    prep("demo", size=size, run_dir=run.path, jobs=1, assignments=settings, force=True)


def test_notes_beside_a_translation_are_kept(three):
    folder = three.system("a").translation("dev")
    names = "notes.md", "hyp.post-edited.txt", "figures/one.svg"
    write_notes(folder, names)
    (folder / "for later/deep").mkdir(parents=True)
    (folder / "figures/empty").mkdir()
    for nbest in (3, 1):
        translate(three, systems=["a"], set_names=["dev"], nbest=nbest, jobs=1, force=True)
        written = {"hyp.txt", "hyp.subwords.txt", "meta.json"} | set(["nbest.jsonl"] * (nbest > 1))
        assert content(folder).keys() == written | set(names)
        assert notes(folder) == sorted(names)
        assert (folder / "for later/deep").is_dir() and (folder / "figures/empty").is_dir()


def test_edited_translations_are_moved_aside(three, stderr):
    folder = three.system("a").translation("dev")
    translate(three, systems=["a"], set_names=["dev"], jobs=1)
    (folder / "hyp.txt").write_text("mine: hyp.txt")
    translate(three, systems=["a"], set_names=["dev"], jobs=1)
    assert notes(folder) == [] and notes(folder.parent) == ["hyp.txt"] and "not-of-" in stderr()
    (folder / "hyp.subwords.txt").write_text("mine: hyp.subwords.txt")
    fit(three, "a", force=True)
    assert notes(folder.parent) == ["hyp.subwords.txt", "hyp.txt"]
    assert [path.name for path in folder.iterdir()] == ["hyp.subwords.txt"]


def test_edited_files_of_prep_are_moved_aside(demo):
    write_notes(demo.prep, ["notes.md", "text/dev.ref"])
    manifest = read_json(demo.prep / "manifest.json")
    manifest["files"]["notes.md"] = 64 * "0"  # anybody can write this
    write_json(demo.prep / "manifest.json", manifest)
    prepare_again(demo)
    assert notes(demo.prep) == ["notes.md"] and notes(demo.path) == ["notes.md", "text/dev.ref"]


def test_empty_folders_of_the_user_are_kept(tmp_path):
    older, final = tmp_path / "older", tmp_path / "final"
    for name in ("both/both", "both/mine", "mine/mine", "text", "wandb/1"):
        (older / name).mkdir(parents=True)
    (final / "both/both").mkdir(parents=True)
    for name in ("text/a.src", "text/b.src", "both/a.src"):
        (older / name).touch()
    (final / "file").touch()
    write_notes(older, ["file/notes.md"])
    folders._retire(older, final, ["*/*.src", "wandb/*"])
    assert {str(p.relative_to(tmp_path)) for p in final.rglob("*")} == {
        *("final/file", "final/both", "final/both/both", "final/both/mine"),
        *("final/mine", "final/mine/mine"),
    }
    assert not older.exists()
    assert [str(p.relative_to(tmp_path)).partition("/")[2] for p in tmp_path.glob("not-*/*/*")] == [
        "file/notes.md"
    ]


def test_removed_file_that_is_still_open_on_a_network_disk_is_no_file_of_the_user(tmp_path, stderr):
    """NFS calls it .nfs…; removing it fails, so its folder stays until the next removal."""
    older, final, step = (tmp_path / name for name in ("older", "final", "step-00000003"))
    still_open = [older / f"text/.nfs{1:024x}", step / f".nfs{2:024x}"]
    for path in (older / "text/a.src", final / "text/a.src", *still_open):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for is_open in (True, False):
        folders._retire(older, final, ["text/*"])
        folders.remove_folder(step, ["*"], tmp_path)
        opened = sorted(tmp_path.rglob(".nfs*"))
        assert opened == (still_open if is_open else [])
        for path in opened:
            path.unlink()
    assert list(tmp_path.rglob("*")) == [final, final / "text", final / "text/a.src"]
    assert not stderr()


def test_file_of_a_macs_finder_goes_with_its_folder(tmp_path, stderr):
    (folder := tmp_path / "step-00000003").mkdir()
    for name in (".DS_Store", "state.json"):
        (folder / name).touch()
    folders.remove_folder(folder, ["state.json"], tmp_path)
    assert not list(tmp_path.iterdir()) and not stderr()


def test_folders_beside_prep_and_notes_in_prep_are_kept(demo):
    """nmtkit removes only folders with names that it gave itself."""
    run, whole = demo, content(demo.prep)
    copies = "prep.old-1", "prep.old-copy", "prep.tmp-1", "prep.tmp-mine", ".old-prep-copy"
    for name in copies:
        shutil.copytree(run.prep, run.path / name)
    names = "notes.md", "train/notes.md", "text/notes.md", "mine/list.txt", "notes.bin"
    names += "train/mine.idx", "text/mine.src", "docs/notes.txt", "vocab-notes.txt"
    write_notes(run.prep, names)
    prepare_again(run)
    assert notes(run.prep) == sorted(names)
    assert content(run.prep).keys() == whole.keys() | set(names)
    for name in copies:
        assert content(run.path / name) == whole
    prepare_again(run, size=70)
    assert notes(run.prep) == sorted(names)
    assert not names & read_json(run.prep / "manifest.json")["files"].keys()


def test_half_written_files_of_prep_are_not_part_of_the_corpus(tmp_path, monkeypatch):
    leave = Steps.encode

    def left(self, *arguments):
        found = leave(self, *arguments)
        (self.out / "train/.00010.idx.abcdefgh").write_text("half")
        (self.out / ".nmtkit-vocab.txt-abcdefgh").write_text("half")
        return found

    monkeypatch.setattr(Steps, "encode", left)
    run = prepare(tmp_path / "run")
    names = read_json(run.prep / "manifest.json")["files"]
    assert not [name for name in names if "/." in f"/{name}"]
    assert content(run.prep).keys() == names.keys() | {"manifest.json"}


def test_every_file_of_a_prepared_corpus_is_known_as_nmtkits(tmp_path):
    """Otherwise files of an older corpus would stay beside those of a new one."""
    for number, settings in enumerate(({}, {"subwords": "sentencepiece", "vocab_size": 90})):
        run = prepare(tmp_path / str(number), **settings)
        shutil.copytree(run.prep, tmp_path / f"copy{number}")
        for folder, owned in ((run.prep, prepared), (tmp_path / f"copy{number}", PREP)):
            folders.remove_owned(folder, owned)
            assert not folder.exists()


def test_killed_removal_of_a_corpus_is_completed_later(demo):
    (demo.prep / "notes.bin").write_text("mine: notes.bin")
    for number in (1, 5):
        with killed(Path, "unlink", number):
            folders.remove_owned(demo.prep, prepared)
    folders.remove_owned(demo.prep, prepared)
    assert notes(demo.prep) == ["notes.bin"] and len(content(demo.prep)) == 1


@contextlib.contextmanager
def work_on_another_disk():
    """Give the output of the work folder another device number, and refuse renames of it."""
    stat = Path.stat

    def elsewhere(path, **more):
        facts = stat(path, **more)
        is_out = path.name == work.OUT
        return os.stat_result([*facts[:2], -1, *facts[3:]]) if is_out else facts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "stat", elsewhere)
        patch.setattr(os, "rename", lambda *_: os.stat("/nowhere"))
        yield


@pytest.mark.parametrize("disk", [contextlib.nullcontext, work_on_another_disk])
@pytest.mark.parametrize(
    ("owner", "function"), [(folders, "publish"), (folders, "_retire"), (work, "remove")]
)
def test_prep_killed_at_its_end_leaves_no_files_after_the_next_prep(
    demo, tmp_path, disk, owner, function
):
    folder, settings = tmp_path / "work", ["prep.merges=60"]
    prep_demo = partial(prep, "demo", size=60, jobs=1, run_dir=demo.path, assignments=settings)
    write_notes(demo.prep, ["notes.md"])
    whole, names = content(demo.prep), sorted(os.listdir(demo.path))
    with disk(), killed(owner, function):
        prep_demo(work=folder, force=True)
    prep_demo(work=folder, force=function == "publish")
    assert content(demo.prep).keys() == whole.keys() and notes(demo.prep) == ["notes.md"]
    assert sorted(os.listdir(demo.path)) == names and not folder.exists()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("step", ["encode", "learn"])
def test_prep_reports_the_work_of_a_killed_prep(demo, stderr, step, shared):
    """Prep continues the work if it can, and removes it if not; work shared by jobs stays."""
    settings = ["prep.merges=60"]
    prep_demo = partial(prep, "demo", size=60, jobs=1, run_dir=demo.path, assignments=settings)
    whole, folder = content(demo.prep), demo.path / "prep-work"
    for _ in range(2):
        stderr()
        with killed(Steps, step):
            prep_demo(force=True)
    assert f"going on in {folder}, which another call has begun" in stderr()
    if shared:
        edit(folder / "work.json", '"key"', '"shared": true, "key"')
        (folder / work.OUT).mkdir(exist_ok=True)
    write_notes(folder, ["notes.md"])
    prep_demo()
    message = f"removing {folder}, which a call of prep that was stopped has left"
    assert stderr().count(message) == (not shared) and content(demo.prep) == whole
    assert shared == (folder / "work.json").exists() == (folder / work.OUT).exists()
    assert notes(folder) == ["notes.md"]


def test_removal_of_a_half_written_folder_is_reported(tmp_path, stderr):
    (left := tmp_path / ".nmtkit-tmp-m-4999999").mkdir()
    folders.recover(tmp_path / "m", ["a"])
    assert stderr().count(f"removing {left}, which") == 1 and not left.exists()


def test_only_left_over_folders_of_nmtkit_are_removed(tmp_path):
    """Folders of a running process and other folders stay."""
    final, mine = tmp_path / "m", {".tmp-m-2024", ".old-m-2024", ".nmtkit-tmp-m-1"}
    left = {".nmtkit-tmp-m-4999999", ".nmtkit-old-m-4999999"}
    for name in (final.name, *mine, *left):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.bin").write_text(name)
    folders.recover(final, ["model.bin"])
    assert {path.name for path in tmp_path.iterdir()} == {final.name, *mine}


def test_notes_of_equal_names_are_both_kept(tmp_path, stderr):
    final, older = tmp_path / "prep", tmp_path / ".nmtkit-old-prep-4999999"
    for folder in (final, older):
        folder.mkdir()
        (folder / "notes.txt").write_text(folder.name)
        (folder / "model.bin").write_text("")
    folders.recover(final, ["model.bin"])
    (others,) = set(tmp_path.iterdir()) - {final}
    assert (final / "notes.txt").read_text() == final.name and others.name.startswith("not-of-")
    assert (others / "notes.txt").read_text() == older.name and others.name in stderr()


def test_notes_beside_scores_and_findings_are_kept(three):
    translate(three, set_names=["dev"], jobs=1)
    names = "table.xlsx", "paper.pdf", "notes.md", "lengths.ods", "notes.json"
    folders = three.path / "score/dev", three.path / "analyze/attention"
    for added in ([], sorted(names)):
        score(three, set_names=["dev"], by_length=True, force=True)
        analyze(three, "attention", set_names=["dev"], sentences=2, force=True)
        for folder in folders:
            assert notes(folder) == added
            write_notes(folder, names)
    report(three)


def test_killed_analysis_leaves_no_old_finding(three):
    analyze(three, "convergence")
    folder = three.path / "analyze/convergence"
    assert (folder / "finding.json").is_file()
    with killed(os, "replace", 2):
        analyze(three, "convergence", force=True)
    assert not (folder / "finding.json").exists()
