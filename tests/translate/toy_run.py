"""A prepared run with two small trained systems, made by hand: search, files and messages do not
need a good model.
"""

import pytest
import torch
import toy_models

from nmtkit import files
from nmtkit.models import checkpoints, loading
from nmtkit.run import Run
from nmtkit.text.vocabulary import SPECIALS
from nmtkit.toml import write_toml
from tests.manifests import write_best, write_manifest
from tests.models.cases import TOY

TEXT = "a dog runs over the green meadow and two men look at it . , ! ? ; A The Two"
WORDS = TEXT.split()
LINES = [
    "A dog runs over the meadow.",
    "",
    "two men look",
    "  ",
    "The dog, the men and the meadow!",
    "it",
    "a zebra looks at it",
]


def save_system(run, name, seed, steps=(10,), bias=2.0):
    """A system of random weights with a checkpoint per step."""
    system = run.system(name)
    system.path.mkdir(parents=True)
    size = len(SPECIALS) + len(WORDS)
    search = {"beam": 3, "length_penalty": 0.6, "max_length_a": 1.0, "max_length_b": 5}
    write_toml(
        system.config,
        {
            "variant": TOY,
            "model": {"d_model": 8},
            "train": {"checkpoint_every": 10},
            "search": search,
        },
    )
    about = {"variant": TOY, "vocabulary": loading.vocabulary_hashes(run)}
    for step in steps:
        model = toy_models.recurrent(seed + step, size, eos_bias=bias).float()
        checkpoints.save(
            system.checkpoints, step, loading.weights_of(model), {"x": torch.zeros(1)}, {}, about
        )
    write_best(system.path, f"step-{steps[0]:08d}")
    return system


@pytest.fixture
def run(tmp_path, monkeypatch):
    made = Run(tmp_path / "runs" / "toy")
    prep = made.prep
    (prep / "text").mkdir(parents=True)
    files.write_lines(prep / "vocab.txt", [*SPECIALS, *WORDS])
    files.write_lines(prep / "text" / "test.src", LINES)
    files.write_lines(prep / "text" / "test.ref", LINES)
    files.write_lines(prep / "text" / "other.src", LINES[:3])
    size = len(SPECIALS) + len(WORDS)
    sets = [("train", "train", 5), ("test", "test", len(LINES)), ("other", "test", 3)]
    vocabulary = {"shared": True, "src": size, "tgt": size}
    write_manifest(
        prep,
        sets,
        {"aggressive_hyphens": False, "subwords": "none"},
        tgt="en",
        vocabulary=vocabulary,
        fingerprint="f0",
    )
    save_system(made, "one", seed=1, steps=(10, 20, 30))
    save_system(made, "two", seed=2)
    monkeypatch.setattr(
        "nmtkit.nn.hardware.choose", cheap_choice
    )  # its measurements change process-wide settings of torch
    return made


def cheap_choice(device, precision, width):
    from nmtkit.nn.hardware import Hardware

    return Hardware("cpu", "test", 1, "float32", "highest", False)
