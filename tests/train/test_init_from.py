"""--init-from across runs: rows of subwords that both vocabularies have, tensor by tensor."""

import copy
import shutil

import pytest
import torch

from nmtkit.models import checkpoints, loading
from nmtkit.models.variants import build_model, load_variant
from nmtkit.prep.stage import prep
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.train.init_from import copy_matching, find_source
from nmtkit.train.stage import train
from tests import ready

OF_SOURCE = ("src_",)
VARIANTS = ["transformer", "rnnsearch", "caru", "concat"]


def new_model(run, variant, **model):
    """A fresh model of the sizes that `ready.add_system` draws."""
    values = {**load_variant(variant).adapt({**ready.SIZES, "dropout": 0.1, "tie": "all"}), **model}
    torch.manual_seed(5)
    return build_model(variant, values, loading.vocabulary_sizes(run))


def slow_copy(fresh, theirs, here, there):
    """Tensors of a model with the rows of another one, subword by subword."""
    expected = {}
    for name, tensor in fresh.items():
        side = 0 if name.startswith(OF_SOURCE) else 1
        if len(here[side]) not in tensor.shape:
            expected[name] = theirs[name]
            continue
        assert tensor.shape[0] == len(here[side])
        rows = tensor.clone()
        for i, token in enumerate(here[side]):
            if token in there[side]:
                rows[i] = theirs[name][list(there[side]).index(token)]
        expected[name] = rows
    return expected


def check_rows(run, other, variant, **model):
    """Initialise a model of a run with one of another run; returns how many tensors have rows."""
    theirs = loading.weights_of(ready.add_system(other, variant, variant, **model))
    built = new_model(run, variant, **model)
    fresh = copy.deepcopy({k: t.detach() for k, t in loading.weights_of(built).items()})
    copy_matching(run, str(other.system(variant).path), built)
    expected = slow_copy(fresh, theirs, load_vocabularies(run.prep), load_vocabularies(other.prep))
    weights = loading.weights_of(built)
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name
    return sum(not torch.equal(expected[name], theirs[name]) for name in theirs)


@pytest.fixture(scope="module", params=["true", "false"])
def runs(request, tmp_path_factory):
    """Two runs of other text and other merges: their vocabularies share some subwords."""
    folder = tmp_path_factory.mktemp("runs")
    joint = request.param
    return (
        ready.prepare(folder / "a", 60, merges=60, joint_vocab=joint),
        ready.prepare(folder / "b", 90, merges=90, joint_vocab=joint),
        joint == "true",
    )


@pytest.fixture
def other(runs, tmp_path):
    """A copy of the first run, without systems."""
    shutil.copytree(runs[0].path, tmp_path / "other")
    return type(runs[0])(tmp_path / "other")


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_subwords_that_both_have(runs, other, variant, stderr):
    run, joint = runs[1:]
    ties = ["all", "target", "none"] if joint else ["target", "none"]
    if "tie" not in load_variant(variant).Settings.model_fields:
        ties = []
    for tie in ties:
        shutil.rmtree(other.path / "systems", ignore_errors=True)
        stderr()
        assert check_rows(run, other, variant, tie=tie) >= 1
        said = stderr()
        sides = (0,) if joint else (0, 1)
        for side in sides:
            here, there = (set(load_vocabularies(one.prep)[side]) for one in (run, other))
            label = "" if joint else ("source ", "target ")[side]
            counts = f"{len(here & there)} carried over, {len(here - there)} new, "
            counts += f"{len(there - here)} not used"
            assert f"{label}embedding rows: {counts}" in " ".join(said.split())
        assert f"nmtkit prep … --like {other.path} keeps all; for" in " ".join(said.split())
        assert "rows of known subwords only: " in said


def test_rows_are_known_without_the_package_of_the_other_variant(runs, other, capsys):
    theirs = loading.weights_of(ready.add_system(other, "transformer", "transformer", tie="none"))
    system = other.system("transformer")
    config = system.config.read_text("utf-8")
    system.config.write_text(config.replace('"transformer"', '"gone_package:Model"'), "utf-8")
    model = new_model(runs[1], "transformer", tie="none")
    fresh = {k: t.detach().clone() for k, t in loading.weights_of(model).items()}
    copy_matching(runs[1], str(system.path), model)
    vocabularies = load_vocabularies(runs[1].prep), load_vocabularies(other.prep)
    expected = slow_copy(fresh, theirs, *vocabularies)
    weights = loading.weights_of(model)
    assert expected.keys() == weights.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


def test_one_vocabulary_becomes_two(tmp_path):
    joint = ready.prepare(tmp_path / "joint", 60)
    apart = ready.prepare(tmp_path / "apart", 90, merges=90, joint_vocab="false")
    assert check_rows(apart, joint, "transformer", tie="none") >= 1


def test_two_vocabularies_become_one_of_tied_rows(tmp_path, stderr):
    """The message counts the rows that a tied model takes: those of the source."""
    joint = ready.prepare(tmp_path / "joint", 60)
    apart = ready.prepare(tmp_path / "apart", 90, merges=90, joint_vocab="false")
    ready.add_system(apart, "transformer", "transformer", tie="target")
    stderr()
    copy_matching(joint, str(apart.system("transformer").path), new_model(joint, "transformer"))
    assert stderr().count("carried over") == 1


def test_without_the_vocabulary_of_the_checkpoint_rows_are_lost(runs, other, stderr):
    ready.add_system(other, "transformer", "transformer", tie="none")
    path = other.system("transformer").path
    for vocabulary in other.prep.glob("vocab*.txt"):
        tokens = vocabulary.read_text().splitlines()
        vocabulary.write_text("\n".join([*tokens[:4], *tokens[:3:-1]]) + "\n", "utf-8")
    for gone in (False, True):
        if gone:
            shutil.rmtree(other.prep)
        model = new_model(runs[1], "transformer", tie="none")
        fresh = {k: t.detach().clone() for k, t in loading.weights_of(model).items()}
        stderr()
        copy_matching(runs[1], str(path), model)
        said = " ".join(stderr().split())
        assert "embedding rows: 0 carried over" in said
        assert f"--like {'RUN' if gone else other.path} keeps all; for" in said
        lost = said.split("of another vocabulary: ")[1].split(" nmtkit:")[0]
        assert lost.endswith("(4)") or lost.endswith("(3)"), lost
        assert "not used" in said
        for name, tensor in loading.weights_of(model).items():
            if any(len(v) in tensor.shape for v in load_vocabularies(runs[1].prep)):
                assert torch.equal(tensor, fresh[name]), name
                assert name in lost


def test_a_copied_checkpoint_has_a_short_path(runs, other, tmp_path, monkeypatch, stderr):
    ready.add_system(other, "transformer", "transformer", tie="none")
    (checkpoint,) = checkpoints.candidates(other.system("transformer").checkpoints)
    shutil.copytree(checkpoint, tmp_path / "copied")
    monkeypatch.chdir(tmp_path)
    copy_matching(runs[1], "copied", new_model(runs[1], "transformer", tie="none"))
    assert "0 carried over" in " ".join(stderr().split())


def test_a_run_like_another_carries_over_every_weight(tmp_path, stderr):
    first = ready.prepare(tmp_path / "first", 80)
    theirs = loading.weights_of(ready.add_system(first, "transformer", "transformer"))
    run = prep("demo", size=50, seed=4, run_dir=tmp_path / "run", like=first.path, jobs=1)
    source = str(first.system("transformer").path)
    settings = [f"model.{key}={value}" for key, value in ready.SIZES.items()]
    settings += ["train.max_steps=1", "train.lr=1e-12", "train.schedule=constant"]
    train(run, init_from=source, assignments=[*settings, "train.warmup=0"])
    said = stderr()
    assert f"{len(theirs)} of {len(theirs)} tensors" in said
    assert "vocabulary is not" not in said
    weights = loading.weights_of(loading.load_system(run, run.system("transformer")))
    for name, tensor in theirs.items():
        assert torch.allclose(weights[name], tensor, atol=1e-8), name
    # A system that translates with a mean of checkpoints gives its best one.
    settings = {"search": {"average": 2}, "train": {"checkpoint_every": 1}}
    model = ready.add_system(first, "mean", "transformer", **settings)
    about = {"variant": "transformer", "vocabulary": loading.vocabulary_hashes(first)}
    newest = checkpoints.save(
        first.system("mean").checkpoints, 2, loading.weights_of(model), {}, {}, about
    )
    assert find_source(first, "mean") == newest
