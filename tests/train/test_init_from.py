"""--init-from: which weights a new system takes of another one, in the same run or another, and the
messages about the rest.

Across runs, subwords that both vocabularies have keep their rows.
"""

import copy
import shutil
from functools import partial

import pytest
import torch

from nmtkit.errors import CheckpointError, ConfigError
from nmtkit.models import checkpoints, loading
from nmtkit.models.variants import build_model, load_variant
from nmtkit.prep.stage import prep
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.train.init_from import copy_matching, find_source
from nmtkit.train.stage import train
from tests import random_systems
from tests.refused import refused
from tests.train.tiny import FOUR_STEPS, last, mark_documents, saved_weights, trainer

go = trainer(FOUR_STEPS)
FROZEN = ("train.max_steps=1", "train.lr=1e-12")
"""Weights after this one update are those at the beginning, up to 1e-8."""
ATOL = 1e-8
VARIANT = "transformer"


def close(one, other):
    return torch.allclose(one, other, atol=ATOL)


# In the same run


def test_source_is_a_system_a_folder_or_a_checkpoint(run, stderr, monkeypatch):
    go(run)
    expected = saved_weights(run)
    sources = [VARIANT, str(run.system(VARIANT).path), str(last(run)), f"./{VARIANT}"]
    monkeypatch.chdir(run.path / "systems")
    for number, source in enumerate(sources):
        stderr()
        go(run, *FROZEN, name=f"s{number}", init_from=source)
        found = saved_weights(run, f"s{number}")
        assert all(close(found[name], expected[name]) for name in expected)
        assert f"{len(expected)} of {len(expected)} tensors" in stderr()


def test_resuming_needs_no_source_and_another_one_must_be_allowed(run, stderr):
    go(run)
    fit = partial(go, run, "train.lr=1e-12", name="second")
    for name in ("second", "third"):
        go(run, *FROZEN, name=name, init_from=VARIANT)
    fit("train.max_steps=2", seed=1)  # all settings are given again
    again = partial(fit, "train.max_steps=2", init_from="third")
    refused(ConfigError, "have changed", again)
    stderr()
    again(allow_change=["init_from"])
    assert "--allow-change" not in stderr()
    assert run.system("second").read_config().init_from == VARIANT
    run.system(VARIANT).path.rename(run.path / "gone")
    fit("train.max_steps=3", init_from=VARIANT)


def test_message_lists_missing_tensors_and_other_shapes(run, stderr):
    go(run)
    stderr()
    go(run, "model.encoder_layers=2", "model.d_ff=64", name="deeper", init_from=VARIANT)
    message = stderr()
    assert "not in the checkpoint: encoder.1." in message
    assert "of another shape: decoder.0.feed_forward" in message


def test_source_of_which_nothing_fits_is_refused(run):
    go(run)
    toy = "tests.toy_recurrent:ToyRecurrent"
    with pytest.raises(CheckpointError, match="nothing in .* matches"):
        train(run, name="other", variant=toy, init_from=VARIANT)
    with pytest.raises(CheckpointError, match=r"matches.*; model.d_ff 64 \(there 32\)"):
        go(run, "model.d_model=8", "model.d_ff=64", name="wider", init_from=VARIANT)
    for source, message, hint in [
        ("transformr", "no system or folder 'transformr'", "transformer"),
        (str(run.path), "is a run, not a system", str(run.path / "systems")),
    ]:
        caught = refused(ConfigError, message, go, run, name="third", init_from=source)
        assert hint in caught.hint


def test_few_matching_tensors_are_a_warning(run, stderr):
    go(run)
    stderr()
    go(run, "model.d_model=32", "train.max_steps=1", name="wider", init_from=VARIANT)
    found, source = saved_weights(run, "wider"), saved_weights(run)
    same = sum(found[name].numel() for name in found if found[name].shape == source[name].shape)
    total = sum(tensor.numel() for tensor in found.values())
    message = stderr()
    (line,) = [line for line in message.splitlines() if "initialised from" in line]
    rest = f"the other {100 * (1 - same / total):.1f}% begin at random"
    assert line.startswith("nmtkit: warning: ") and f"{same:,} of {total:,} numbers; {rest}" in line
    assert "sizes that differ: model.d_model 32 (there 16)" in message
    go(run, "train.max_steps=1", name="same", init_from=VARIANT)
    assert "warning: initialised" not in stderr()


def test_document_model_starts_with_a_transformer(run, stderr):
    """The two stages of Miculicich et al. 2018: what the Transformer has is as it was trained,
    the rest is fresh and begins to learn.
    """
    go(run)
    mark_documents(run, "train", [0, 20, 40])
    stderr()
    go(run, "train.max_steps=1", "train.lr=1e-3", name="second", variant="han", init_from=VARIANT)
    message = stderr()
    source, found = saved_weights(run), saved_weights(run, "second")
    missing = message.partition("not in the checkpoint: encoder_context.")[2]
    assert f"{len(source)} of {len(found)} tensors" in message
    assert f"({len(found) - len(source)})" in missing
    # One update moves a number by at most the learning rate.
    assert all(torch.allclose(found[name], source[name], atol=1.1e-3) for name in source)
    assert all(name.startswith("encoder_context.") for name in found.keys() - source.keys())
    norm = found["encoder_context.norm.weight"]
    assert not torch.equal(norm, torch.ones(16))  # contexts were read


def test_config_of_a_transformer_gives_a_document_model_its_sizes(run):
    go(run)
    config = run.system(VARIANT).config
    train(run, variant="han", name="second", config=config, init_from=VARIANT, preset="tiny")
    source, found = (run.system(name).read_config().model for name in (VARIANT, "second"))
    assert found.items() > source.items()
    for variant in ("transformer-cycle", "rnnsearch"):  # the first would lose its shared layers
        call = partial(train, run, variant=variant, config=config, name="third")
        refused(ConfigError, f"of 'transformer', not of '{variant}'", call)


def test_shared_layers_are_copied_to_each_layer_and_back(run, stderr):
    """A Transformer with parameters of its own in every layer gets those that the layer used;
    layers that share get those of the first of them.
    """
    deep = ("model.encoder_layers=4", "model.decoder_layers=4", *FROZEN)
    go(run, *deep, "model.distinct_layers=2", name="shared")
    stderr()
    go(run, *deep, name="apart", init_from="shared")
    message = stderr()
    source, found = (saved_weights(run, name) for name in ("shared", "apart"))
    assert len(found) > len(source) and f"{len(found)} of {len(found)} tensors" in message
    assert "checkpoint: " not in message
    for name, tensor in found.items():
        used = name.replace("coder.2.", "coder.1.").replace("coder.3.", "coder.0.")
        assert close(tensor, source[used]), name
    sequence = ("model.distinct_layers=2", "model.share=sequence")
    go(run, *deep, *sequence, name="sequence", init_from="apart")
    message = stderr()
    assert "only in the checkpoint: decoder.1." in message and "not in the" not in message
    for name, tensor in saved_weights(run, "sequence").items():
        assert close(tensor, found[name]), name


# Across runs


def new_model(run, variant, **model):
    """A fresh model of the sizes that `random_systems.add_system` draws."""
    values = {
        **load_variant(variant).adapt({**random_systems.SIZES, "dropout": 0.1, "tie": "all"}),
        **model,
    }
    torch.manual_seed(5)
    return build_model(variant, values, loading.vocabulary_sizes(run))


def slow_copy(fresh, source, here, there):
    """The oracle: the source's tensors, or fresh ones with its rows, subword by subword.

    Args:
        fresh, source: tensors of the new model, and of the model to begin from.
        here, there: their vocabularies of both sides.
    """
    expected = {}
    for name, tensor in fresh.items():
        side = 0 if name.startswith("src_") else 1
        if len(here[side]) not in tensor.shape:
            expected[name] = source[name]
            continue
        assert tensor.shape[0] == len(here[side])
        rows = expected[name] = tensor.clone()
        for i, token in enumerate(here[side]):
            if token in there[side]:
                rows[i] = source[name][list(there[side]).index(token)]
    return expected


def check_copied(run, other, model, source, path=None):
    """Begin a model of a run with a system of another run, and compare it with the oracle; return
    how many tensors of the source were not copied whole.
    """
    fresh = copy.deepcopy({k: t.detach() for k, t in loading.weights_of(model).items()})
    copy_matching(run, str(path or other.system(VARIANT).path), model)
    expected = slow_copy(fresh, source, load_vocabularies(run.prep), load_vocabularies(other.prep))
    found = loading.weights_of(model)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    return sum(not torch.equal(expected[name], source[name]) for name in source)


def add_system(run, variant=VARIANT, name=VARIANT, **model):
    """Add a system with random weights to a run; return its weights."""
    return loading.weights_of(random_systems.add_system(run, name, variant, **model))


@pytest.fixture(scope="module", params=["true", "false"])
def runs(request, tmp_path_factory):
    """Two runs of other text and other merges: their vocabularies share some subwords."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        random_systems.prepare(folder / name, size, merges=size, joint_vocab=request.param)
        for name, size in (("a", 60), ("b", 90))
    ]


@pytest.fixture
def new_run(runs):
    return runs[1]


@pytest.fixture
def other(runs, tmp_path):
    """A copy of the first run, without systems."""
    shutil.copytree(runs[0].path, tmp_path / "other")
    return type(runs[0])(tmp_path / "other")


@pytest.fixture(scope="module")
def joint(tmp_path_factory):
    """A run with one vocabulary of both sides."""
    return random_systems.prepare(tmp_path_factory.mktemp("joint"), 60)


@pytest.fixture
def apart(tmp_path):
    """A run with a vocabulary of each side."""
    return random_systems.prepare(tmp_path / "apart", 90, merges=90, joint_vocab="false")


@pytest.mark.parametrize("variant", ["transformer", "rnnsearch", "caru", "concat"])
def test_rows_of_shared_subwords_are_copied_and_counted(new_run, other, variant, stderr):
    here, there = (load_vocabularies(run.prep) for run in (new_run, other))
    sides = {"": 0} if here[0] is here[1] else {"source ": 0, "target ": 1}
    ties = ["all", "target", "none"] if len(sides) == 1 else ["target", "none"]
    assert "tie" in load_variant(variant).Settings.model_fields
    for tie in ties:
        shutil.rmtree(other.path / "systems", ignore_errors=True)
        source = add_system(other, variant, tie=tie)
        stderr()
        assert check_copied(new_run, other, new_model(new_run, variant, tie=tie), source) >= 1
        message = " ".join(stderr().split())
        for label, side in sides.items():
            new, old = set(here[side]), set(there[side])
            counts = f"{len(new & old)} carried over, {len(new - old)} new, {len(old - new)} not"
            assert f"{label}embedding rows: {counts} used" in message
        assert f"nmtkit prep … --like {other.path} keeps all; for" in message
        assert "rows of known subwords only: " in message


def test_rows_are_copied_without_the_package_of_the_source_model(new_run, other):
    source = add_system(other, tie="none")
    config = other.system(VARIANT).config
    text = config.read_text("utf-8")
    config.write_text(text.replace('"transformer"', '"gone_package:Model"'), "utf-8")
    check_copied(new_run, other, new_model(new_run, VARIANT, tie="none"), source)


def test_rows_of_one_vocabulary_are_copied_to_two(joint, apart):
    source = add_system(joint, tie="none")
    assert check_copied(apart, joint, new_model(apart, VARIANT, tie="none"), source) >= 1


def test_rows_of_two_vocabularies_become_tied_rows_of_the_source_side(joint, apart, stderr):
    add_system(apart, tie="target")
    stderr()
    copy_matching(joint, str(apart.system(VARIANT).path), new_model(joint, VARIANT))
    assert stderr().count("carried over") == 1


@pytest.mark.parametrize("gone", [False, True])
def test_rows_are_lost_without_the_vocabulary_of_the_checkpoint(new_run, other, stderr, gone):
    add_system(other, tie="none")
    if gone:
        shutil.rmtree(other.prep)
    else:
        for vocabulary in other.prep.glob("vocab*.txt"):
            tokens = vocabulary.read_text().splitlines()
            vocabulary.write_text("\n".join([*tokens[:4], *tokens[:3:-1]]) + "\n", "utf-8")
    model = new_model(new_run, VARIANT, tie="none")
    fresh = {k: t.detach().clone() for k, t in loading.weights_of(model).items()}
    stderr()
    copy_matching(new_run, str(other.system(VARIANT).path), model)
    message = " ".join(stderr().split())
    assert "embedding rows: 0 carried over" in message and "not used" in message
    assert f"--like {'RUN' if gone else other.path} keeps all; for" in message
    lost = message.split("of another vocabulary: ")[1].split(" nmtkit:")[0]
    assert lost.endswith(("(4)", "(3)")), lost
    sizes = set(map(len, load_vocabularies(new_run.prep)))
    for name, tensor in loading.weights_of(model).items():
        if sizes & set(tensor.shape):
            assert torch.equal(tensor, fresh[name]), name
            assert name in lost


def test_relative_path_of_a_copied_checkpoint_is_a_source(
    new_run, other, tmp_path, monkeypatch, stderr
):
    add_system(other, tie="none")
    (checkpoint,) = checkpoints.candidates(other.system(VARIANT).checkpoints)
    shutil.copytree(checkpoint, tmp_path / "copied")
    monkeypatch.chdir(tmp_path)
    copy_matching(new_run, "copied", new_model(new_run, VARIANT, tie="none"))
    assert "0 carried over" in " ".join(stderr().split())


def test_run_prepared_like_another_takes_every_weight(joint, tmp_path, stderr):
    source = add_system(joint, name="trained")
    run = prep("demo", size=50, seed=4, run_dir=tmp_path / "run", like=joint.path, jobs=1)
    sizes = [f"model.{key}={value}" for key, value in random_systems.SIZES.items()]
    steps = [*FROZEN, "train.schedule=constant", "train.warmup=0"]
    train(run, init_from=str(joint.system("trained").path), assignments=[*sizes, *steps])
    message = stderr()
    assert f"{len(source)} of {len(source)} tensors" in message
    assert "vocabulary is not" not in message
    found = loading.weights_of(loading.load_system(run, run.system(VARIANT)))
    for name, tensor in source.items():
        assert close(found[name], tensor), name


def test_source_that_averages_checkpoints_gives_its_best_one(joint):
    settings = {"search": {"average": 2}, "train": {"checkpoint_every": 1}}
    model = random_systems.add_system(joint, "mean", VARIANT, **settings)
    about = {"variant": VARIANT, "vocabulary": loading.vocabulary_hashes(joint)}
    weights, folder = loading.weights_of(model), joint.system("mean").checkpoints
    newest = checkpoints.save(folder, 2, weights, {}, {}, about)
    assert find_source(joint, "mean") == newest
