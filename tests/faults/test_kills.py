"""A stage killed before any of its renames, and repeated, writes the files of an unkilled run."""

import json
import random
import re
import shutil
import subprocess
import sys
from itertools import count

import pytest

from tests import ROOT
from tests.faults.killing_process import KILLED
from tests.manifests import read_json

WORDS = ["the", "a", "dog", "cat", "house", "sees", "likes", "red", "big", "small", "runs"]
TRAIN = "train --preset tiny" + "".join(
    f" --set {assignment}"
    for assignment in (
        *("train.max_steps=2", "train.checkpoint_every=1", "train.validate_every=1"),
        *("train.log_to=none", "train.dev_bleu=false", "train.keep_checkpoints=1"),
        *("model.d_model=16", "model.d_ff=16", "model.encoder_layers=1", "model.decoder_layers=1"),
        *("search.beam=2", "search.max_length_a=0", "search.max_length_b=4"),
    )
)
TEXT = "--train train.en train.de --dev dev.en dev.de --test test.en test.de --jobs 1"
SCORE = "score --resamples 10 --trials 10"
STAGES = {
    "prep": f"prep mine {TEXT} --set prep.merges=20",
    "prep again": f"prep mine {TEXT} --set prep.merges=20 --force",
    "train": TRAIN,
    "train again": f"{TRAIN} --force --seed 2",
    "translate": "translate --jobs 1 --nbest 2",
    "translate again": "translate --jobs 1 --set search.length_penalty=1",
    "score": f"{SCORE} --by-length",
    "score again": f"{SCORE} --significance sign",
    "analyze": "analyze lengths",
    "analyze again": "analyze lengths --buckets 3",
    "export": "export --system transformer --to huggingface",
    "export again": "export --system transformer --to huggingface --force",
    "report": "report",
    "report again": "report --title again --figure-width 3",
}
"""The commands; each starts from the run that the previous command has left."""
WHOLE = (
    *("prep", "score/test"),
    *("systems/transformer/translate/test", "systems/transformer/export/huggingface"),
)
"""Folders that appear whole or not at all."""
STRIDES = {"prep again": 3, "train again": 2, "score again": 2, "report again": 4}
"""Try only every n-th rename: the first call tries the others, and figures are alike."""
VOLATILE = {
    *("seconds", "cpu_seconds", "cpu", "tgt_tokens_per_s", "memory_gib", "loss_seconds", "speed"),
    *("bleu_seconds", "mtime_ns", "made", "trained", "argv", "commit"),
}
"""Keys whose values depend on the clock, on memory or on the command line."""


class Server:
    """The process that runs the commands."""

    def __init__(self, folder):
        self.folder = folder
        command = [sys.executable, "-m", "tests.faults.killing_process"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, words, number=0):
        """Run a command, and kill it before its n-th rename; return exit code and renames."""
        request = [str(self.folder), [*words.split(), "--run", "run"], number]
        print(json.dumps(request), file=self.process.stdin, flush=True)
        code, renames = json.loads(self.process.stdout.readline())
        assert code in (0, KILLED), (words, number, (self.folder / "output.txt").read_text())
        return code, renames

    def copy(self, folder):
        """Replace the run by a copy of a folder."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        shutil.copytree(folder, self.folder / "run")

    def before(self, stage):
        """Return the folder of the run in which a stage starts; make it with the stages before."""
        folder, stages = self.folder / f"before {stage}", list(STAGES)
        if stage == stages[0]:
            folder.mkdir(exist_ok=True)
        elif not folder.exists():
            earlier = stages[stages.index(stage) - 1]
            self.copy(self.before(earlier))
            self.run(STAGES[earlier])
            (self.folder / "run").rename(folder)
        return folder

    def close(self):
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The process, in a folder with texts."""
    folder = tmp_path_factory.mktemp("kills")
    draw = random.Random(1)
    for name, size in (("train", 40), ("dev", 3), ("test", 3)):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(2, 6))) + "." for _ in range(size)]
        for side, text in (("en", lines), ("de", [line.upper() for line in lines])):
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in text), "utf-8")
    process = Server(folder)
    yield process
    process.close()


def outcome(folder):
    """Return the content of every file of a run by path, without volatile values."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): content(path)
        for path in paths
        if path.name not in {".lock", "history.jsonl", "train.log"}
    }


def within(files, folder):
    """Return the files of one folder among those of a run."""
    prefix = f"{folder}/"
    return {
        name.removeprefix(prefix): value for name, value in files.items() if name.startswith(prefix)
    }


def content(path):
    if path.suffix == ".json":
        value = timeless(read_json(path))
        if "checkpoints" in path.parts and path.name == "manifest.json":
            del value["files"]["state.json"]  # contains the time of the training
        return value
    if path.suffix == ".jsonl":
        return [timeless(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    if path.suffix == ".html":
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "", path.read_text("utf-8"))
    return path.read_bytes()


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key not in VOLATILE}
    return [timeless(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("stage", STAGES)
def test_stage_killed_before_any_rename_is_completed_by_the_same_command(server, stage):
    command, before, run = STAGES[stage], server.before(stage), server.folder / "run"
    server.copy(before)
    server.run(command)
    expected = outcome(run)
    stride = STRIDES.get(stage, 1)
    for number in count(1, stride):
        server.copy(before)
        code, renames = server.run(command, number)
        if code != KILLED:
            break
        for part in WHOLE:
            assert outcome(run / part) in ({}, outcome(before / part), within(expected, part))
        server.run(command)
        found = outcome(run)
        assert found.keys() == expected.keys(), number
        for name, value in expected.items():
            assert found[name] == value, (number, name)
    assert number - stride <= renames < number and renames > 0
