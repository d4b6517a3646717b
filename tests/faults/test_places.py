"""A run of somebody else: nothing is written, truncated or removed outside it."""

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
from tests.manifests import read_json, write_best, write_json
from tests.random_systems import add_system, prepare
from tests.refused import refused

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
    """A run of somebody else."""
    folder = tmp_path / "runs/downloaded"
    shutil.copytree(ready, folder)
    return folder


@pytest.fixture
def home(tmp_path):
    """A folder of the user's, with a file of each name that nmtkit may write or remove."""
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
    """Everything in a folder."""
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
"""Files that a new training, translation or score replaces: the link goes."""


@pytest.mark.parametrize("link", LINKS)
def test_nothing_is_written_through_a_link(downloaded, home, link):
    """Whatever the command says, the target of the link stays as it was."""
    place = downloaded / link
    target = home / ("folder" if place.suffix == "" and place.name != ".lock" else "diary.txt")
    place.parent.mkdir(parents=True, exist_ok=True)
    if target.name == "folder" and place.is_dir():
        shutil.copytree(place, target)  # so that every stage finds what it reads
        shutil.rmtree(place)
        for name in (".nmtkit-tmp-step-00000001-1", ".nmtkit-old-step-00000002-1"):
            (target / name).mkdir()
    elif target.name == "folder":
        target.mkdir()
    else:
        place.unlink(missing_ok=True)
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
def test_a_set_is_no_path(downloaded, home, command):
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
        assert call(STAGES[command], downloaded)[0] == 0  # makes it anew
        assert content(home) == before


def test_every_name_of_a_record_is_checked(downloaded, tmp_path):
    run = Run(downloaded)
    system = run.system("plain")
    files = {
        run.prep / "manifest.json": (Manifest, ["dataset", "src", "files", "sets.0.name"]),
        system.path / "best.json": (BestCheckpoint, ["checkpoint"]),
        system.checkpoints / "step-00000001/manifest.json": (CheckpointManifest, ["files"]),
        system.translation("test") / "meta.json": (
            TranslationMeta,
            ["set", "system", "files", "checkpoints.0.system", "checkpoints.0.name"],
        ),
        downloaded / "analyze/cost/finding.json": (StoredFinding, ["name", "attachments"]),
    }
    for path, (record, fields) in files.items():
        load(record, path)
        for field in fields:
            values = damaged = read_json(path)
            *way, last = (int(part) if part.isdigit() else part for part in field.split("."))
            for part in way:
                damaged = damaged[part]
            if isinstance(damaged[last], dict):
                damaged[last] = {"../../diary.txt": next(iter(damaged[last].values()), "0")}
            else:
                damaged[last] = ["../x"] if isinstance(damaged[last], list) else "../x"
            other = tmp_path / "damaged.json"
            write_json(other, values)
            refused(DataError, "cannot be a name", load, record, other)


def test_names_of_the_command_line_are_checked_alike(downloaded):
    for name in ("../x", "a/b", "..", ".x", "", "a\x1b[0m", "/x"):
        refused(ConfigError, "cannot name a system", Run(downloaded).system, name)
        refused(ValueError, "cannot be a name", check_name, name)
        with pytest.raises(ValueError, match="cannot be a name"):
            check_path({"a/b": "a//b", ".x": "a/./b"}.get(name, name))
    assert check_name("Online-A (2024)") and check_path("train/00000.bin")


def test_the_best_checkpoint_is_one_of_the_system(downloaded, home):
    (downloaded / "systems/plain/best.json").unlink()
    write_best(downloaded / "systems/plain", "step-00000001")
    values = read_json(downloaded / "systems/plain/best.json")
    values["checkpoint"] = "../../../../../home"
    write_json(downloaded / "systems/plain/best.json", values)
    refused(DataError, "cannot be a name", checkpoints.choose, Run(downloaded).system("plain"))


def test_a_pipe_in_the_place_of_a_file_is_refused(downloaded):
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
def test_no_pipe_or_device_in_a_run_is_read(downloaded, name, words, kind):
    """A pipe would wait for a writer; a device may never end, as /dev/zero, here an empty one."""
    path = downloaded / name
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(os.devnull)
    with given_up_after(60):
        code, output = call(words, downloaded)
    assert code == 2 and f"is a {kind}, not a file" in output.replace("\n", " "), output


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_readers_of_records_and_hashes_refuse_what_is_no_file(tmp_path, kind):
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
def test_no_pipe_in_the_place_of_another_file_is_opened(downloaded, name):
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
    """Fail instead of waiting without end for the writer of a pipe."""

    def fail(*_):
        raise TimeoutError("a pipe is waited for")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_run_may_be_a_link_as_a_whole(downloaded, tmp_path):
    (tmp_path / "link").symlink_to(downloaded)
    assert call("score --force --resamples 10 --trials 10", tmp_path / "link")[0] == 0


def test_the_work_of_a_stopped_prep_has_no_links(downloaded, home):
    """Tasks write into a work folder by paths of their own."""
    shutil.rmtree(downloaded / "prep")
    (downloaded / "prep-work/out/train").mkdir(parents=True)
    (downloaded / "prep-work/work.json").write_text('{"format": 1, "key": "x"}', "utf-8")
    (downloaded / "prep-work/out/train/00000.bin").symlink_to(home / "00000.bin")
    before = content(home)
    code, output = call("prep demo --size 60 --set prep.merges=60 --jobs 1", downloaded)
    assert code == 2 and "00000.bin" in output.replace("\n", "")
    assert content(home) == before
