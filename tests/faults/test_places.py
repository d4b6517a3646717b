"""Commands on a stranger's run write, truncate and remove nothing outside the run."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nmtkit import files
from nmtkit.cli import app
from nmtkit.errors import ConfigError, DataError
from nmtkit.models import checkpoints
from nmtkit.names import check_name, check_path
from nmtkit.records import (
    BestCheckpoint,
    CheckpointManifest,
    Manifest,
    StoredFinding,
    TranslationMeta,
    load,
)
from nmtkit.run import Run
from tests.manifests import edit, read_json, with_change, write_best, write_json
from tests.random_systems import add_system, prepare
from tests.refused import refused

META = "systems/plain/translate/test/meta.json"
TINY = "--preset tiny --set train.max_steps=1 --set train.dev_bleu=false"
STAGES = {
    "translate": "translate --jobs 1 --force",
    "score": "score --force --resamples 10 --trials 10",
    "analyze": "analyze cost --force",
    "report": "report --force",
    "export": "export --system plain --to huggingface --force",
    "again": f"train --force --system plain {TINY}",
    "new": f"train --system new {TINY} --set train.log_to=tensorboard",
    "prep": "prep demo --size 60 --set prep.merges=60 --force --jobs 1",
}


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    run = prepare(tmp_path_factory.mktemp("places") / "run")
    add_system(run, "plain", "transformer")
    write_best(run.system("plain").path, "step-00000001")
    call("translate --jobs 1", run.path)
    call("score --resamples 10 --trials 10", run.path)
    call("analyze cost", run.path)
    return run.path


@pytest.fixture
def downloaded(ready, tmp_path):
    """A copy of the run, as from a stranger."""
    folder = tmp_path / "runs/downloaded"
    shutil.copytree(ready, folder)
    return folder


@pytest.fixture
def home(tmp_path):
    """A folder of the user with files whose names nmtkit could write or remove."""
    folder = tmp_path / "home"
    for name in (
        *("hyp.txt", "hyp.subwords.txt", "meta.json", "nbest.jsonl", "table.md", "table.csv"),
        *("scores.json", "lengths.svg", "paper.md", "finding.json", "figure.svg", "diary.txt"),
        *("config.toml", "train.log", "metrics.jsonl", "index.html", "README.md", "manifest.json"),
        *(
            "step-00000001/model.safetensors",
            ".nmtkit-tmp-step-00000001-1/x",
            ".nmtkit-old-step-00000002-1/x",
        ),
        *("checkpoints/step-00000001/model.safetensors", "00000.bin"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("the user's\n", "utf-8")
    return folder


def content(folder):
    """Return times and contents of all files in a folder."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


def call(words, run):
    result = CliRunner().invoke(app, [*words.split(), "--run", str(run)], input="x\n")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "internal error" not in result.output
    return result.exit_code, result.output


LINKS = {
    ".lock": "translate score analyze report export new prep",
    "history.jsonl": "translate score analyze report export new prep",
    "run.toml": "prep",
    "prep": "prep",
    "prep-work": "prep",
    "systems": "translate export again new",
    "systems/plain": "translate export again",
    "systems/plain/.lock": "translate again",
    "systems/plain/translate": "translate",
    "systems/plain/translate/test": "translate",
    "systems/plain/translate/test/hyp.txt": "translate",
    "systems/plain/translate/.nmtkit-tmp-test-1": "translate",
    "systems/plain/translate/.nmtkit-old-test-1": "translate",
    "systems/.replaced-plain": "again",
    "score/.nmtkit-old-test-1": "score",
    ".nmtkit-old-prep-1": "prep",
    "systems/plain/checkpoints": "again",
    "systems/plain/export": "export",
    "systems/plain/export/huggingface": "export",
    "systems/new": "new",
    "systems/new/train.log": "new",
    "systems/new/metrics.jsonl": "new",
    "systems/new/tensorboard": "new",
    "systems/new/config.toml": "new",
    "score": "score",
    "score/.lock": "score",
    "score/test": "score",
    "score/test/table.md": "score",
    "analyze": "analyze",
    "analyze/cost": "analyze",
    "analyze/cost/finding.json": "analyze",
    "report": "report",
    "report/index.html": "report",
}
CLEARED = {"systems/new/train.log", "systems/new/metrics.jsonl"}
CLEARED |= {"systems/plain/translate/test/hyp.txt", "score/test/table.md"}
"""Files that a new training, translation or score replaces, and the link with them."""


@pytest.mark.parametrize("link", LINKS)
def test_nothing_is_written_through_a_link(downloaded, home, link):
    """The target of the link stays unchanged, also if the command works."""
    place = downloaded / link
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix or place.name == ".lock":
        target = home / "diary.txt"
        place.unlink(missing_ok=True)
    else:
        target = home / "folder"
        if place.is_dir():
            shutil.move(place, target)  # stages find the files that they read
        for name in (".nmtkit-tmp-step-00000001-1", ".nmtkit-old-step-00000002-1"):
            (target / name).mkdir(parents=True)
    place.symlink_to(target)
    before = content(home)
    for name in LINKS[link].split():
        code, output = call(STAGES[name], downloaded)
        assert content(home) == before, name
        if link not in CLEARED:
            assert code == 2, (name, output)
            assert f"in: {place}" in output.replace("\n", ""), (name, output)
            assert "not a link" in output, (name, output)


@pytest.mark.parametrize("command", STAGES)
def test_path_in_place_of_the_name_of_a_set_is_refused(downloaded, home, command):
    names = "../../../home", str(home), "..", ".hidden", "a/b", "a\\b", "a\x1b[31m", ""
    path = downloaded / "prep/manifest.json"
    manifest = read_json(path)
    for name in names:
        for text_set in manifest["sets"]:
            if text_set["split"] == "test":
                text_set["name"] = name
        write_json(path, manifest)
        before = content(home)
        if command != "prep":
            code, output = call(STAGES[command], downloaded)
            assert code == 2 and "sets.2.name" in output.replace("\n", ""), output
        assert content(home) == before
    if command == "prep":
        assert call(STAGES[command], downloaded)[0] == 0  # prepares anew
        assert content(home) == before


NAMES = [
    ("prep/manifest.json", Manifest, ("dataset",), "../x"),
    ("prep/manifest.json", Manifest, ("src",), "../x"),
    ("prep/manifest.json", Manifest, ("files",), {"../../diary.txt": 64 * "0"}),
    ("prep/manifest.json", Manifest, ("sets", 0, "name"), "../x"),
    ("systems/plain/best.json", BestCheckpoint, ("checkpoint",), "../x"),
    (
        "systems/plain/checkpoints/step-00000001/manifest.json",
        CheckpointManifest,
        ("files",),
        {"../../diary.txt": {"bytes": 1, "sha256": 64 * "0"}},
    ),
    (META, TranslationMeta, ("set",), "../x"),
    (META, TranslationMeta, ("system",), "../x"),
    (META, TranslationMeta, ("files",), {"../../diary.txt": 64 * "0"}),
    (META, TranslationMeta, ("checkpoints", 0, "system"), "../x"),
    (META, TranslationMeta, ("checkpoints", 0, "name"), "../x"),
    ("analyze/cost/finding.json", StoredFinding, ("name",), "../x"),
    ("analyze/cost/finding.json", StoredFinding, ("attachments",), ["../x"]),
]


@pytest.mark.parametrize(("file", "record", "field", "name"), NAMES)
def test_path_in_place_of_a_name_in_a_record_is_refused(ready, tmp_path, file, record, field, name):
    load(record, ready / file)
    write_json(tmp_path / "damaged.json", with_change(read_json(ready / file), field, name))
    refused(DataError, "cannot be a name", load, record, tmp_path / "damaged.json")


def test_paths_in_place_of_names_are_refused(downloaded):
    for name in ("../x", "a/b", "..", ".x", "", "a\x1b[0m", "/x"):
        refused(ConfigError, "cannot name a system", Run(downloaded).system, name)
        refused(ValueError, "cannot be a name", check_name, name)
        path = {"a/b": "a//b", ".x": "a/./b"}.get(name, name)
        refused(ValueError, "cannot be a name", check_path, path)
    assert check_name("Online-A (2024)") and check_path("train/00000.bin")


def test_path_to_another_folder_as_best_checkpoint_is_refused(downloaded, home):
    edit(downloaded / "systems/plain/best.json", "step-00000001", "../../../../../home")
    refused(DataError, "cannot be a name", checkpoints.choose, Run(downloaded).system("plain"))


def test_pipe_in_place_of_lock_or_history_is_refused(downloaded):
    for name in (".lock", "history.jsonl"):
        (downloaded / name).unlink()
        os.mkfifo(downloaded / name)
        code, output = call("score --force", downloaded)
        assert code == 2 and str(downloaded / name) in output.replace("\n", "")
        (downloaded / name).unlink()


READ = {
    "prep/vocab.txt": "translate --force --jobs 1",
    "prep/codes.bpe": "translate --force --jobs 1",
    "score/test/scores.json": "report --force",
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(("name", "words"), READ.items())
def test_pipes_and_devices_in_a_run_are_refused(downloaded, name, words, kind):
    """A pipe would wait for a writer, and a device may be endless (here an empty one)."""
    path = downloaded / name
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(os.devnull)
    with given_up_after(60):
        code, output = call(words, downloaded)
    assert code == 2 and f"is a {kind}, not a file" in output.replace("\n", " "), output


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_records_and_hashes_are_not_read_from_pipes_and_devices(tmp_path, kind):
    path = tmp_path / "x.json"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(os.devnull)
    with given_up_after(10):
        for reader in (files.sha256, functools.partial(load, Manifest)):
            refused(DataError, f"is a {kind}, not a file", reader, path)


OPENED = {
    "report/index.html": "report",
    "prep/train/00000.idx": "analyze cost --force",
    "systems/plain/checkpoints/step-00000001/model.safetensors": "report --force",
}


@pytest.mark.parametrize("name", OPENED)
def test_pipes_in_place_of_other_files_stop_no_command(downloaded, name):
    call("report", downloaded)
    (downloaded / name).unlink()
    os.mkfifo(downloaded / name)
    line = [*OPENED[name].split(), "--run", str(downloaded)]
    # A library opens the weights, which no signal of this process interrupts.
    result = subprocess.run(
        [sys.executable, "-m", "nmtkit", *line], capture_output=True, text=True, timeout=60
    )
    assert result.returncode in {0, 2} and "internal error" not in result.stderr


@contextlib.contextmanager
def given_up_after(seconds):
    """Fail instead of waiting for ever for the writer of a pipe."""

    def fail(*_):
        raise TimeoutError("a pipe is waited for")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_run_folder_may_be_a_link(downloaded, tmp_path):
    (tmp_path / "link").symlink_to(downloaded)
    assert call("score --force --resamples 10 --trials 10", tmp_path / "link")[0] == 0


def test_links_in_the_work_folder_of_prep_are_refused(downloaded, home):
    """Workers write into the work folder without checks of links."""
    shutil.rmtree(downloaded / "prep")
    (downloaded / "prep-work/out/train").mkdir(parents=True)
    (downloaded / "prep-work/work.json").write_text('{"format": 1, "key": "x"}', "utf-8")
    (downloaded / "prep-work/out/train/00000.bin").symlink_to(home / "00000.bin")
    before = content(home)
    code, output = call("prep demo --size 60 --set prep.merges=60 --jobs 1", downloaded)
    assert code == 2 and "00000.bin" in output.replace("\n", "")
    assert content(home) == before
