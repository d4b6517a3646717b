"""A run whose systems have settings and random weights: enough for every analysis."""

import csv
import json
import os
import shutil
from xml.etree import ElementTree

import pytest
import torch

from nmtkit.analyze import cost, stage, timing
from nmtkit.models import checkpoints, loading
from nmtkit.models.variants import build_model
from nmtkit.tables.drawing import DESCRIPTION
from nmtkit.toml import write_toml
from tests.fast_figures import draw_sketches
from tests.manifests import read_json, text_set
from tests.refused import refused
from tests.score.conftest import FakeRun, write

SMALL = {
    "d_model": 32,
    "d_ff": 64,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.1,
}
GATED = {"d_hidden": 16, "d_embedding": 8}
"""Sizes of the models with gates between recurrent states."""
TOKENS = 100
TOY = "tests.toy_recurrent:ToyRecurrent"


@pytest.fixture(scope="package", autouse=True)
def sketched_figures():
    """Draw figures as sketches: tests here read only their numbers and texts."""
    with draw_sketches():
        yield


@pytest.fixture(scope="package", autouse=True)
def one_core():
    """Start no worker processes: forks take longer than a few sentences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
        yield


COUNTS: dict[tuple, object] = {}


@pytest.fixture(scope="module", autouse=True)
def multiplications_are_counted_once():
    """Count the products of models of equal settings once: counting is slow."""
    count = cost.count_macs

    def counted(model, *sizes):
        key = type(model), model.settings.model_dump_json(), model.vocabularies, repr(sizes)
        if key not in COUNTS:
            COUNTS[key] = count(model, *sizes)
        return COUNTS[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "count_macs", counted)
        yield


@pytest.fixture
def brief(monkeypatch):
    """Measure speeds on little work."""
    for name, count in (("SENTENCES", 4), ("UPDATES", 1), ("MOST", 2)):
        monkeypatch.setattr(timing, name, count)


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)


def save_system(run, name, variant, model, scale=1.0, **search):
    """Add a system with a checkpoint of random weights times `scale`; return its model."""
    folder = run.path / "systems" / name
    settings = {"variant": variant, "model": model, "train": {"batch_size": 60}, "search": search}
    write_toml(folder / "config.toml", settings)
    torch.manual_seed(1)
    built = build_model(variant, model, loading.vocabulary_sizes(run)).eval()
    with torch.no_grad():
        for weights in built.parameters():
            weights.mul_(scale)
    about = {"vocabulary": loading.vocabulary_hashes(run)}
    checkpoints.save(folder / "checkpoints", 1, loading.weights_of(built), {}, {}, about)
    return built


class Findings:
    """Runs analyses of a run and reads their files."""

    def __init__(self, run):
        self.run = run

    def folder(self, name):
        return self.run.path / "analyze" / name

    def analyze(self, name, **options):
        """Run an analysis; keep and return its finding."""
        stage.analyze(self.run, name, **options)
        self.finding = json.loads(self.text(name, "finding.json"))
        return self.finding

    def rows(self, name, **options):
        """Run an analysis; return the rows of its table."""
        return self.analyze(name, **options)["table"]["rows"]

    def refused(self, name, error, words, /, **options):
        """Run an analysis that raises this error; return the error."""
        return refused(error, words, stage.analyze, self.run, name, **options)

    def rows_by(self, keys, name, **options):
        """Run an analysis; return the rows of its table by the values of some columns."""
        rows = self.rows(name, **options)
        return {tuple(row[key] for key in keys.split()): row for row in rows}

    def text(self, name, file="figure.svg"):
        return (self.folder(name) / file).read_text("utf-8")

    def figure(self, name, file="figure.svg"):
        """Return the numbers of a figure."""
        svg = ElementTree.fromstring(self.text(name, file))
        return json.loads(svg.findtext(f".//{DESCRIPTION}"))

    def check_bars(self, name, rows, label, systems, file="figure.svg"):
        """Check that a figure of grouped bars shows these rows of the table."""
        figure = self.figure(name, file)
        assert figure["groups"] == [row[label] for row in rows]
        assert figure["series"] == {system: [row[system] for row in rows] for system in systems}

    def csv_rows(self, name, file, **form):
        return list(csv.DictReader(self.text(name, file).splitlines(), **form))


class AnalysedRun(FakeRun, Findings):
    """A fake run with a training set (a copy of the test set), a vocabulary and checkpoints."""

    def __init__(self, path):
        FakeRun.__init__(self, path, sets=("test", "other"))
        prep = path / "prep"
        self.change_manifest(sets=[text_set("train", "train", 40), *self.manifest()["sets"]])
        shutil.copytree(prep / "test", prep / "train")
        write(
            prep / "vocab.txt",
            ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(TOKENS - 4))],
        )

    def manifest(self):
        return read_json(self.run.prep / "manifest.json")

    def change_manifest(self, **values):
        write(self.run.prep / "manifest.json", [json.dumps(self.manifest() | values)])

    def system(
        self, name="base", variant="transformer", model=SMALL, share=0.3, speeds=(), decoding=None
    ):
        """Add a system with random weights, logged speeds and translations of the test set with
        `share` of the words wrong; return its model.
        """
        folder = self.add(name, share, sets=["test"])
        search = {"beam": 2, "max_length_a": 0.0, "max_length_b": 6}
        built = save_system(self.run, name, variant, model, **search)
        logged = [
            {"step": i, "kind": "train", "tgt_tokens": speed, "seconds": 1.0}
            for i, speed in enumerate(speeds, 1)
        ]
        logged.append({"step": 9, "kind": "dev", "loss": 1.0})
        cut_off = '{"step": 10, "kind": "tra'  # the process was killed here
        lines = [*map(json.dumps, logged), cut_off]
        (folder / "metrics.jsonl").write_text("\n".join(lines), "utf-8")
        if decoding:
            speed = {"seconds": 1.0, "sentences_per_second": 1.0, "tokens_per_second": decoding}
            meta = json.dumps({"format": 1, "speed": speed})
            write(folder / "translate" / "test" / "meta.json", [meta])
        return built


@pytest.fixture(autouse=True)
def one_thread():
    """Compute with one thread: a second one only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def analysed(tmp_path):
    return AnalysedRun(tmp_path / "run")
