"""Every analysis, and the attention of a page, reads the weights that translate: with
search.average=2 the mean of two checkpoints.
"""

import functools
import shutil
from pathlib import Path

import pytest
import torch

from nmtkit import demo
from nmtkit.analyze import ANALYSES, stage, timing
from nmtkit.models import checkpoints, loading
from nmtkit.report.stage import report
from nmtkit.run import Run
from nmtkit.score.stage import score
from nmtkit.translate.stage import translate
from tests.ready import add_system, prepare

from .conftest import Findings

CASES = {
    "agreement": ("pr", {}),
    "alignment": ("pr", {}),
    "context": ("amn", {}),
    "cost": ("pr", {"measure": True}),
    "divergence": ("full-dc", {}),
    "gates": ("gatt", {}),
    "importance": ("pr", {"sentences": 5}),
    "layers": ("pr", {}),
    "probing": ("pr", {"tasks": "sentence_length"}),
    "weights": ("gatt", {}),
}
"""Analyses that load a model: a system that they can look at, and options."""
WITHOUT = {"lengths", "convergence", "examples", "phrases", "attention"}
"""Analyses of translations and logs; attention, which needs translations, is tested with the
page below.
"""
AVERAGED = ["step-00000002", "step-00000003"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A run of few sentences whose systems have three checkpoints each and translate with the mean
    of the last two.
    """
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "generate", functools.partial(demo.generate, dev=40, test=40))
        run = prepare(tmp_path_factory.mktemp("averaged") / "run")
    search = {"average": 2, "beam": 1, "max_length_a": 0, "max_length_b": 5}
    for variant in sorted({system for system, _ in CASES.values()}):
        add_system(run, variant, variant, search=search, train={"checkpoint_every": 1})
        for step in (2, 3):
            save_weights(run, variant, step, 1 + step / 10)
    return run


def save_weights(run, system, step, factor):
    """A checkpoint with the weights of the first one times a factor."""
    folder = run.system(system).checkpoints
    first = checkpoints.load_weights(folder / "step-00000001")
    weights = {name: factor * values for name, values in first.items()}
    about = {"vocabulary": loading.vocabulary_hashes(run)}
    checkpoints.save(folder, step, weights, {}, {}, about)


@pytest.fixture
def run(drawn, tmp_path):
    return Run(shutil.copytree(drawn.path, tmp_path / "run"))


@pytest.fixture
def loaded(monkeypatch):
    """The weights that were put into models."""
    found, original = [], loading.put_weights

    def put(model, weights, where=None):
        found.append(weights)
        original(model, weights, where)

    monkeypatch.setattr(loading, "put_weights", put)
    return found


def is_mean(weights, run, system):
    mean = loading.average([run.system(system).checkpoints / name for name in AVERAGED])
    return weights.keys() == mean.keys() and all(
        torch.equal(weights[name], mean[name]) for name in mean
    )


def change_weights(run, system):
    """Other weights under the name of the first of the two checkpoints that are averaged; all
    else stays.
    """
    save_weights(run, system, 2, 2)


def test_every_analysis_is_here():
    assert CASES.keys() | WITHOUT == ANALYSES.keys()


@pytest.mark.parametrize("name", CASES)
def test_an_analysis_reads_the_weights_that_translate_until_they_change(
    name, run, loaded, stderr, monkeypatch
):
    """Only weights change, neither the log nor what is named the best."""
    monkeypatch.setattr(timing, "MOST", 1)
    system, options = CASES[name]
    facts = Findings(run).analyze(name, systems=[system], **options)["facts"]
    assert loaded and all(is_mean(weights, run, system) for weights in loaded)
    assert facts["checkpoints"] == {system: AVERAGED}
    if name in {"cost", "context"}:
        return  # new times are taken whenever they are asked for, and translations take long
    count = len(loaded)
    change_weights(run, "amn")  # which it did not read
    stderr()
    stage.analyze(run, name, systems=[system], **options)
    assert f"{name}: up to date" in stderr() and len(loaded) == count
    change_weights(run, system)
    stage.analyze(run, name, systems=[system], **options)
    assert "up to date" not in stderr()
    assert len(loaded) > count and is_mean(loaded[-1], run, system)


def test_measured_times_are_kept_as_long_as_their_weights_are(run, stderr, monkeypatch):
    monkeypatch.setattr(timing, "MOST", 1)

    def facts(**options):
        return Findings(run).analyze("cost", systems=["pr"], **options)["facts"]

    facts(measure=True)
    for _ in range(2):
        again = facts()
        assert again["measured"] and again["checkpoints"] == {"pr": AVERAGED}
    assert "cost: up to date" in stderr()
    change_weights(run, "pr")
    assert facts()["measured"] == {}
    assert "the times that --measure took of pr are not of these systems" in stderr()


def test_the_attention_of_a_page_is_of_the_weights_that_translate(run, loaded, capsys):
    translate(run, systems=["pr"], set_names=["test"], jobs=1)
    score(run, resamples=10, trials=10)
    for name in ("layers", "attention"):
        stage.analyze(run, name, systems=["pr"])
    # What translated, and the two analyses.
    assert [is_mean(weights, run, "pr") for weights in loaded] == [True] * 3
    page = Path(report(run))
    before, _ = page.read_text("utf-8"), capsys.readouterr()
    report(run)
    assert "report: up to date" in capsys.readouterr().err
    change_weights(run, "pr")
    report(run)
    assert "the weights of pr" not in before
    assert "Made before these changed: the weights of pr" in page.read_text("utf-8")
