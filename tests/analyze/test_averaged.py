"""Every analysis, and the attention of a report, reads the weights that translate: with
search.average=2 the mean of two checkpoints.
"""

import functools
import shutil
from pathlib import Path

import pytest
import torch

from nmtkit import demo
from nmtkit.analyze import ANALYSES, stage
from nmtkit.models import checkpoints, loading
from nmtkit.report.stage import report
from nmtkit.run import Run
from nmtkit.score.stage import score
from nmtkit.translate.stage import translate
from tests.random_systems import add_system, prepare

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
"""Analyses that load a model: a variant that they apply to, and options."""
WITHOUT = {"lengths", "convergence", "examples", "phrases", "attention"}
"""Analyses of translations and logs. `attention` also needs translations: it is tested with the
report below.
"""
AVERAGED = ["step-00000002", "step-00000003"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Prepare a small run whose systems have three checkpoints and translate with the mean of the
    last two.
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
    """Save a checkpoint with the weights of the first checkpoint times a factor."""
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
    """Return the list of weights that were loaded into models."""
    seen, original = [], loading.put_weights

    def put(model, weights, where=None):
        seen.append(weights)
        original(model, weights, where)

    monkeypatch.setattr(loading, "put_weights", put)
    return seen


def is_mean(weights, run, system):
    mean = loading.average([run.system(system).checkpoints / name for name in AVERAGED])
    return weights.keys() == mean.keys() and all(
        torch.equal(weights[name], mean[name]) for name in mean
    )


def change_weights(run, system):
    """Replace the weights of the first averaged checkpoint, and nothing else."""
    save_weights(run, system, 2, 2)


def test_every_analysis_is_listed_here():
    assert CASES.keys() | WITHOUT == ANALYSES.keys()


@pytest.mark.parametrize("name", CASES)
def test_analysis_reads_averaged_weights(name, run, loaded, brief):
    system, options = CASES[name]
    facts = Findings(run).analyze(name, systems=[system], **options)["facts"]
    assert loaded and all(is_mean(weights, run, system) for weights in loaded)
    assert facts["checkpoints"] == {system: AVERAGED}


@pytest.mark.parametrize("name", ["layers", "probing"])  # probing stores vectors of weights, too
def test_finding_is_outdated_when_the_weights_of_its_systems_change(name, run, loaded, stderr):
    system, options = CASES[name]
    for changed, up_to_date in ((None, False), ("amn", True), (system, False)):
        if changed:
            change_weights(run, changed)
        loaded.clear()
        stage.analyze(run, name, systems=[system], **options)
        assert ("up to date" in stderr()) == up_to_date
        assert [is_mean(weights, run, system) for weights in loaded] == [True] * (not up_to_date)


def test_measured_times_are_dropped_when_weights_change(run, stderr, brief):

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


def test_attention_of_a_report_reads_averaged_weights(run, loaded, capsys):
    translate(run, systems=["pr"], set_names=["test"], jobs=1)
    score(run, resamples=10, trials=10)
    for name in ("layers", "attention"):
        stage.analyze(run, name, systems=["pr"])
    # By translate and by the two analyses.
    assert [is_mean(weights, run, "pr") for weights in loaded] == [True] * 3
    page = Path(report(run))
    before, _ = page.read_text("utf-8"), capsys.readouterr()
    report(run)
    assert "report: up to date" in capsys.readouterr().err
    change_weights(run, "pr")
    report(run)
    assert "the weights of pr" not in before
    assert "Made before these changed: the weights of pr" in page.read_text("utf-8")
