"""A prepared run with two small systems of random weights: tests of searches, files and messages
do not need trained ones.
"""

import io
import json
from types import SimpleNamespace

import pytest
import torch
from toy_models import recurrent

from nmtkit import files
from nmtkit.models import checkpoints, loading
from nmtkit.nn.hardware import Hardware
from nmtkit.run import Run
from nmtkit.text.vocabulary import SPECIALS
from nmtkit.toml import write_toml
from nmtkit.translate.stage import translate
from tests.manifests import write_best, write_manifest
from tests.models.cases import TOY

TEXT = "a dog runs over the green meadow and two men look at it . , ! ? ; A The Two"
WORDS = TEXT.split()
SIZE = len(SPECIALS) + len(WORDS)
LINES = [
    "A dog runs over the meadow.",
    "",
    "two men look",
    "  ",
    "The dog, the men and the meadow!",
    "it",
    "a zebra looks at it",
]


def save_system(run, name, seed, steps=(10,)):
    """A system with a checkpoint for each step; the first is the best."""
    system = run.system(name)
    system.path.mkdir(parents=True)
    search = {"beam": 3, "length_penalty": 0.6, "max_length_a": 1.0, "max_length_b": 5}
    train = {"checkpoint_every": 10}
    values = {"variant": TOY, "model": {"d_model": 8}, "train": train, "search": search}
    write_toml(system.config, values)
    about = {"variant": TOY, "vocabulary": loading.vocabulary_hashes(run)}
    for step in steps:
        weights = loading.weights_of(recurrent(seed + step, SIZE, eos_bias=2.0).float())
        checkpoints.save(system.checkpoints, step, weights, {"x": torch.zeros(1)}, {}, about)
    write_best(system.path, f"step-{steps[0]:08d}")


def choose_float32(device, precision, width):
    """Replace `hardware.choose`, whose measurements change settings of the whole process."""
    return Hardware("cpu", "test", 1, "float32", "highest", False)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with the sets `test` and `other`, and the systems `one` and `two`."""
    run = Run(tmp_path / "runs" / "toy")
    text = run.prep / "text"
    text.mkdir(parents=True)
    files.write_lines(run.prep / "vocab.txt", [*SPECIALS, *WORDS])
    files.write_lines(text / "test.src", LINES)
    files.write_lines(text / "test.ref", LINES)
    files.write_lines(text / "other.src", LINES[:3])
    write_manifest(
        run.prep,
        [("train", "train", 5), ("test", "test", len(LINES)), ("other", "test", 3)],
        {"aggressive_hyphens": False, "subwords": "none"},
        tgt="en",
        vocabulary={"shared": True, "src": SIZE, "tgt": SIZE},
        fingerprint="f0",
    )
    save_system(run, "one", seed=1, steps=(10, 20, 30))
    save_system(run, "two", seed=2)
    monkeypatch.setattr("nmtkit.nn.hardware.choose", choose_float32)
    return run


def translated(run, **options):
    """Translate, by default the test set by the system `one`; return that translation's folder."""
    translate(run, **{"systems": ["one"], "set_names": ["test"], "jobs": 1} | options)
    return run.system("one").translation("test")


def lines_of(path):
    return path.read_text("utf-8").split("\n")[:-1]


def read_json_lines(text):
    return [json.loads(line) for line in text.split("\n")[:-1]]


def set_stdin(monkeypatch, data):
    stdin = SimpleNamespace(buffer=io.BytesIO(data), close=lambda: None)
    monkeypatch.setattr("sys.stdin", stdin)
