"""The stage `train`: settings from their layers, beginning from other weights, beginning anew,
endings, what is written.
"""

import os
import signal
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from nmtkit import console, files, settings
from nmtkit.data.batches import collate
from nmtkit.data.documents import Documents, documents_file
from nmtkit.data.store import Store
from nmtkit.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EnvironmentProblem,
    Interrupted,
)
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Vocabularies
from nmtkit.models.properties import NOT_CAUSAL
from nmtkit.models.variants import build_model, common_width
from nmtkit.nn import hardware
from nmtkit.presets import preset_names
from nmtkit.records import SystemRecord
from nmtkit.run import Run
from nmtkit.score.metrics import bleu
from nmtkit.settings import TrainSettings
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import Vocabulary
from nmtkit.train import loop, saving, validation
from nmtkit.train.best import after_validation, is_better
from nmtkit.train.gradients import Gradients
from nmtkit.train.options import TrainOptions
from nmtkit.train.plan import make_plan
from nmtkit.train.ranks import Ranks
from nmtkit.train.schedule import Plateau
from nmtkit.train.stage import train
from nmtkit.train.state import Best, TrainState, Window
from nmtkit.train.stop import Abandoned, Stop, reason_to_end
from nmtkit.train.validation import DEV_SEARCH, Validation, Validator, dev_search
from nmtkit.translate import systems
from nmtkit.translate.beam import search
from nmtkit.translate.translator import Translator
from tests.manifests import edit, read_json
from tests.refused import refused
from tests.stored import pair_writer
from tests.toy_recurrent import ToyRecurrent
from tests.train.tiny import last, lines_of, make_run, metrics, options, state_of, trainer

QUIET = (
    "train.validate_every=100",
    "train.checkpoint_every=100",
    "train.dev_bleu=false",
    "train.samples=0",
)
SETTINGS = options("train.max_steps=4", *QUIET)
go = trainer(SETTINGS)
VARIANT = "transformer"
TOY = "tests.toy_recurrent:ToyRecurrent"


# Settings


def test_layers_of_settings(run, tmp_path, monkeypatch):
    presets = {
        "a": {
            "model": {"d_model": 32, "heads": 2, "unknown_to_this_family": 1},
            "train": {"lr": 1.0, "warmup": 5},
            "prep": {"merges": 3},
        },
        "b": {"train": {"lr": 2.0}},
    }
    monkeypatch.setattr(settings, "load_preset", presets.__getitem__)
    files.write_json(run.prep / "manifest.json", {**run.manifest().model_dump(), "preset": "a"})
    config = tmp_path / "my.toml"
    config.write_text("[train]\nlr = 3.0\nwarmup = 7\n[prep]\nmerges = 1\n[search]\nbeam = 9\n")

    def plan(preset=None, config=None, assignments=(), seed=None):
        options = {"preset": preset, "config": config, "assignments": list(assignments)}
        return make_plan(run, TrainOptions.of(options | {"seed": seed}))

    def values(*arguments):
        found = plan(*arguments)
        return found.preset, found.model["d_model"], found.train.lr, found.train.warmup

    assert values() == ("a", 32, 1.0, 5)
    assert values("b") == ("b", 512, 2.0, 8000)  # a preset is a whole setting
    assert values("b", config) == ("b", 512, 3.0, 7) and plan("b", config).search.beam == 9
    assert plan("b", config, ["train.lr=4"]).train.lr == 4.0
    assert plan(assignments=["train.seed=3"]).train.seed == 3
    assert plan(assignments=["train.seed=3"], seed=5).train.seed == 5


@pytest.mark.parametrize(
    ("preset", "assignments", "warned"),
    [
        *((preset, [], False) for preset in preset_names()),
        ("tiny", ["train.schedule=cosine"], True),
        ("small", ["train.schedule=noam"], True),
        ("small", ["train.schedule=constant"], False),
        ("tiny", ["train.schedule=cosine", "train.lr=1e-3"], False),
    ],
)
def test_a_learning_rate_of_another_schedule_is_warned_about(
    run, stderr, preset, assignments, warned
):
    make_plan(run, TrainOptions.of({"preset": preset, "assignments": assignments}))
    assert ("as for train.schedule=" in stderr()) is warned


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.max_step=3", "did you mean 'max_steps'"),
        ("model.head=3", "did you mean 'heads'"),
        ("search.beams=3", "did you mean 'beam'"),
        ("trian.lr=3", "did you mean 'train'"),
        ("train.lr=fast", "train.lr"),
        ("train.schedule=linear", "train.schedule"),
        ("prep.merges=3", "prep.merges cannot change now"),
        ("train.min_lr=1e-5", "train.min_lr has no effect without train.schedule=plateau"),
        ("train.replace_keep=0.8", "train.replace_keep has no effect without train.replace"),
    ],
)
def test_bad_settings_name_the_key(run, assignment, message):
    assert message in str(refused(ConfigError, None, go, run, assignment))
    assert not (run.path / "systems").exists()


def test_a_setting_without_effect_on_a_continued_training(run):
    go(run)
    message = "train.min_lr has no effect without train.schedule=plateau"
    refused(ConfigError, message, train, run, assignments=["train.min_lr=1e-5"], device="cpu")


def test_a_file_may_have_the_settings_of_another_schedule(run, tmp_path):
    """Such as a whole preset, of which --set changes the schedule."""
    file = tmp_path / "mine.toml"
    file.write_text('[train]\nschedule = "plateau"\nplateau_on = "train_loss"\nmin_lr = 1e-5\n')
    assignments = ["train.schedule=constant", "train.lr=1e-4"]
    plan = make_plan(run, TrainOptions.of({"config": file, "assignments": assignments}))
    assert (plan.train.schedule, plan.train.min_lr) == ("constant", 1e-5)


def test_names_that_lead_nowhere(run):
    refused(ConfigError, "unknown variant", train, run, variant="transfomer")
    refused(ConfigError, "unknown preset", train, run, preset="hugeish")
    refused(DataError, "not prepared", train, Run(run.path.parent))


def subset(values, **expected):
    """True if a mapping has these values."""
    return {key: values[key] for key in expected} == expected


def test_what_is_written(run):
    go(run, "train.seed=7", "train.betas=[0.8, 0.9]")
    config = run.system(VARIANT).read_config()
    assert subset(vars(config), variant=VARIANT, corpus=run.manifest().fingerprint)
    assert subset(config.train, seed=7, betas=[0.8, 0.9]) and config.model["d_model"] == 16
    whole = run.system(VARIANT).config.read_bytes()
    for length in range(len(whole) - 1):  # without its last line feed the file is whole
        run.system(VARIANT).config.write_bytes(whole[:length])
        refused(DataError, "the file is damaged", run.system(VARIANT).read_config)
    lines = whole.splitlines(keepends=True)
    run.system(VARIANT).config.write_bytes(b"".join(x for x in lines if b"corpus" not in x))
    refused(DataError, "the file is damaged", run.system(VARIANT).read_config)
    run.system(VARIANT).config.write_bytes(whole)
    manifest = read_json(last(run) / "manifest.json")
    assert subset(manifest, step=4, variant=VARIANT) and list(manifest["vocabulary"]) == [
        "vocab.txt"
    ]
    (record,) = lines_of(run.path / "history.jsonl")
    assert subset(record, stage="train", exit=0, seed=7, device="cpu", steps=[0, 4])
    log = (run.system(VARIANT).path / "train.log").read_text("utf-8")
    assert "dev loss" in log
    assert ", float32, " in log.splitlines()[0] and "parameters; " in log.splitlines()[1]
    (progress,) = metrics(run, "train")
    assert progress["step"] == 4
    measured = "loss nll lr tgt_tokens_per_s padding memory_gib grad_norm epoch"
    assert set(measured.split()) <= progress.keys()


def test_a_training_shorter_than_a_stretch_of_the_log_tells_of_its_numbers_too(run, stderr):
    go(run, "train.max_steps=6", "train.log_every=4")
    assert [line["step"] for line in metrics(run, "train")] == [4, 6]
    assert "step 6/6, " in stderr()
    go(run, "train.max_steps=6", "train.log_every=4")
    assert [line["step"] for line in metrics(run, "train")] == [4, 6]  # already there: nothing new
    go(run, "train.max_steps=2", "train.log_every=4")
    config = run.system(VARIANT).read_config()
    assert config.train["max_steps"] == 6  # what it was trained with
    go(run, "train.max_steps=8", "train.log_every=4")
    go(run, "train.max_steps=8", "train.log_every=4", name="straight")
    continued, straight = (
        {k: v for k, v in line.items() if "second" not in k and "_s" not in k and k != "memory_gib"}
        for line in (metrics(run, "train")[-1], metrics(run, name="straight")[1])
    )
    assert continued == straight  # of the steps 5 to 8, both


def test_the_log_that_stays_tells_of_stops_and_of_warnings(run, monkeypatch):
    compute = Gradients.compute

    def told_to_stop(self, update, step, *more):
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
        return compute(self, update, step, *more)

    monkeypatch.setattr(Gradients, "compute", told_to_stop)
    with pytest.raises(Interrupted):
        go(run)
    monkeypatch.undo()
    skipped = lambda *_: console.warn("one update is skipped") or True  # noqa: E731
    monkeypatch.setattr(loop.divergence, "check_finite", skipped)
    go(run)
    log = (run.system(VARIANT).path / "train.log").read_text("utf-8")
    told = [
        "step 0 of 4: starting",
        "warning: SIGTERM: finishing",
        "stopped by SIGTERM after step 2",
        "step 2 of 4: continuing",
        "warning: one update",
    ]
    places = [log.find(words) for words in told]
    assert -1 not in places and places == sorted(places)


def test_a_variant_outside_the_package(run):
    settings = [s for s in SETTINGS if s.startswith(("model.d_model", "train."))]
    longer = trainer([*settings, "train.max_steps=60", "train.dev_bleu=true"])
    longer(run, variant=TOY)
    system = run.system("toy-recurrent")
    assert type(loading.load_system(run, system)).__name__ == "ToyRecurrent"
    assert read_json(system.path / "best.json")["dev_bleu"] is not None


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_fault_of_a_model_outside_the_package_is_named(run, monkeypatch, dry_run):
    monkeypatch.setattr(ToyRecurrent, "encode", lambda *_: {})
    faulty = partial(few_of_toy, run, variant=TOY, name="toy", dry_run=dry_run)
    caught = refused(ConfigError, "your code failed: KeyError", faulty)
    assert "toy_recurrent.py, line " in caught.where


def test_a_model_outside_the_package_that_reads_the_future_is_warned_about(
    run, monkeypatch, stderr
):
    few_of_toy(run, variant=TOY, name="sound")
    assert stderr().count(TOY) == 1  # beside the number of its parameters
    decode = ToyRecurrent.decode

    def faulty(self, tgt_in, memory, state=None):
        hidden, after = decode(self, tgt_in, memory, state)
        return hidden.flip(1).cumsum(1).flip(1), after

    monkeypatch.setattr(ToyRecurrent, "decode", faulty)
    few_of_toy(run, variant=TOY, name="faulty")
    assert f"{TOY}: {NOT_CAUSAL}" in " ".join(stderr().split())
    assert NOT_CAUSAL in (run.system("faulty").path / "train.log").read_text("utf-8")


few_of_toy = trainer([*QUIET, "model.d_model=16", "train.max_steps=1"])
one_step = trainer([*QUIET, "train.max_steps=1", "train.batch_size=64"])


OF_THE_STATE = ["model.readout=linear", "model.bidirectional=false", "model.tie=none"]


@pytest.mark.parametrize(
    ("variant", "settings"),
    [("transformer", []), ("rnnsearch", []), ("caru", []), ("caru", OF_THE_STATE), ("gatt", [])],
)
def test_all_variants_of_a_preset_compute_and_learn_alike(run, variant, settings, monkeypatch):
    """On a CPU that multiplies bfloat16 faster, too: of `tiny` (d = 64) all are narrow, whatever
    their family calls its widths, and all have one learning rate.
    """
    monkeypatch.setattr(
        hardware, "_fastest", lambda device, width: "bfloat16" if width >= 128 else "float32"
    )
    one_step(run, *settings, variant=variant, preset="tiny")
    assert state_of(run, variant)["hardware"]["precision"] == "float32"
    (group,) = systems.choose(run, [variant], False, {}, single=True)
    assert group.hardware(torch.device("cpu")).precision == "float32"
    (update,) = metrics(run, "train", variant)
    assert update["lr"] == pytest.approx(0.8 * 64**-0.5 * 400**-1.5)
    plan = make_plan(run, TrainOptions(variant=variant, preset="base", assignments=settings))
    assert common_width(plan.preset, plan.model) == 512
    own_size = {"d_embedding": 620} if "d_embedding" in plan.model else {"d_model": 620}
    assert common_width("tiny", plan.model | own_size) == 620


@pytest.mark.parametrize(
    ("factor", "message"), [(0.95, None), (0.5, "rate down to 0.0005 at step 3")]
)
def test_a_training_ends_at_its_lowest_learning_rate(factor, message):
    values = {"schedule": "plateau", "lr": 1e-3, "min_lr": 9e-4, "warmup": 0}
    state = TrainState(step=3, plateau=Plateau(factor=factor))
    ending = reason_to_end(state, TrainSettings(**values))
    assert (message in ending) if message else ending is None


# One update


def moments_after_a_step(path, *settings, **values):
    run = make_run(path, dev=0, **values)
    go(run, *settings, "train.max_steps=1")
    return checkpoints.load_training(last(run), dict)[1]


def test_accumulated_micro_batches_equal_one_batch(tmp_path):
    """The loss is divided once, by the tokens of the whole update: 1 x 32 sentences is 4 x 8
    (OpenNMT-py#2209).
    """
    settings = ("train.batch_unit=sentences", "model.dropout=0")
    whole, *others = (
        moments_after_a_step(
            tmp_path / str(size),
            *settings,
            f"train.batch_size={size}",
            f"train.update_size={update}",
            pairs=32,
        )
        for size, update in ((32, 0), (8, 32), (1, 32))
    )
    for other in others:
        assert all(torch.allclose(whole[k], other[k], rtol=1e-4, atol=1e-7) for k in whole)


def test_clipping(tmp_path):
    free, clipped = (
        torch.cat([t.flatten() / 0.1 for name, t in moments.items() if name.startswith("exp_avg/")])
        for clip in ("0", "0.001")
        for moments in [moments_after_a_step(tmp_path / clip, f"train.clip_norm={clip}")]
    )  # m = (1-β1)·g
    assert clipped.norm() == pytest.approx(1e-3, rel=1e-3)
    assert free.norm() > 0.1
    assert torch.allclose(clipped / 1e-3, free / free.norm(), atol=1e-4)


def test_learning(tmp_path):
    """The loss falls far below that of guessing letters (ln 12 = 2.5) and the translations come
    out mostly right.
    """
    run = make_run(tmp_path / "run", pairs=400, dev=10)
    more = (
        "train.max_steps=400",
        "train.validate_every=400",
        "train.dev_bleu=true",
        "model.d_model=32",
        "model.d_ff=64",
        "train.batch_size=300",
    )
    go(run, *more, "model.dropout=0", "train.lr=0.004", "train.log_every=100")
    first, *_, final = metrics(run, "train")
    assert final["nll"] < 0.8 < 1.8 < first["nll"]
    (dev,) = metrics(run, "dev")
    assert dev["dev_bleu"] > 25
    assert "tok:13a" in dev["signature"]


# Endings


def test_patience(run, monkeypatch, stderr):
    monkeypatch.setattr("nmtkit.train.best.is_better", lambda new, best, by: best is None)
    go(run, "train.max_steps=100", "train.validate_every=2", "train.patience=3")
    assert last(run).name == "step-00000008"  # a best at 2, then three without
    assert "no new best in 3 validations at step 8; raise train.patience to go on" in stderr()
    assert checkpoints.choose(run.system(VARIANT))[0].name == "step-00000002"


def test_the_extra_validation_at_the_end_does_not_count_for_patience(run, monkeypatch):
    better = iter([True, False, False, True])
    monkeypatch.setattr("nmtkit.train.best.is_better", lambda *_: next(better))
    go(run, "train.max_steps=7", "train.validate_every=2")
    assert (state_of(run)["best"]["step"], state_of(run)["since_best"]) == (7, 2)


def test_the_learning_rate_has_run_down(run, monkeypatch):
    monkeypatch.setattr(Validator, "_loss", lambda self, stop: 1.0)
    more = (
        "train.schedule=plateau",
        "train.lr=0.01",
        "train.min_lr=0.002",
        "train.validate_every=2",
        "train.max_steps=100",
    )
    go(run, *more, "train.log_every=2")
    assert [line["lr"] for line in metrics(run, "train")] == [0.01, 0.01, 0.005, 0.0025]
    assert last(run).name == "step-00000008"
    train(run, assignments=["train.min_lr=0.001"], device="cpu")
    assert [line["lr"] for line in metrics(run, "train")][4:] == [0.00125]


def test_max_minutes(run, stderr):
    go(run, "train.max_steps=100000", "train.max_minutes=0.01")
    assert "0.01 minutes of training done" in stderr()
    assert 0 < checkpoints.step_of(last(run)) < 5000


# Beginning


def test_force_begins_anew_but_only_when_the_new_one_works(run):
    go(run)
    system = run.system(VARIANT)
    old = (last(run) / "model.safetensors").read_bytes()
    translated = system.path / "translate" / "test"
    translated.mkdir(parents=True)
    (translated / "hyp.txt").write_text("alt\n")
    with pytest.raises(ConfigError):
        go(run, "model.heads=5", force=True)
    assert (last(run) / "model.safetensors").read_bytes() == old
    go(run, "train.max_steps=2", "train.seed=9", force=True)
    assert [p.name for p in checkpoints.find_checkpoints(system)] == ["step-00000002"]
    assert not translated.exists()
    (kept,) = (system.path / "translate").glob("not-of-nmtkit-*/hyp.txt")  # no meta.json lists it
    assert kept.read_text() == "alt\n"
    assert system.read_config().train["seed"] == 9


def test_other_settings_are_fine_as_long_as_nothing_is_saved(run):
    system = run.system(VARIANT)
    system.path.mkdir(parents=True)
    system.config.write_text('variant = "x"\n')
    go(run)
    assert system.read_config().variant == VARIANT


def test_a_record_keeps_the_place_of_a_system_and_the_time_of_its_last_checkpoint(tmp_path):
    run = Run(tmp_path)
    first, second, third = map(run.system, "abc")
    for system, made in ((first, 7), (second, 2**62)):
        files.write_text(system.config, 'variant = "x"\n')
        os.utime(system.config, ns=(made, made))
    saving.write_record(first, run, anew=True, parameters=3)  # of an earlier version, without one
    assert first.read_record() == SystemRecord(made=7, trained=None, parameters=3)
    saving.write_record(third, run, anew=True, parameters=3)
    assert third.made == 2**62 + 1  # the last one, also if a clock has been put back
    SystemRecord(made=7, trained=9, parameters=3).write(first.record)
    for anew, trained in ((False, 9), (True, None)):
        saving.write_record(first, run, anew=anew, parameters=3)
        assert first.read_record().trained == trained


@pytest.mark.parametrize("best_by", ["dev_bleu", "dev_loss"])
def test_the_best_checkpoint_is_noted_with_the_measure_that_chose_it(tmp_path, best_by):
    system = Run(tmp_path).system("a")
    state = TrainState(best=Best(2, 2.0, 30.0))
    saving.write_best(system, state, TrainSettings(best_by=best_by))
    assert read_json(system.path / "best.json")["metric"] == best_by


def test_a_system_killed_before_its_first_checkpoint_keeps_its_settings(run, monkeypatch):
    monkeypatch.setattr(loop.Trainer, "run", lambda self: None)
    go(run, "train.lr=0.5", name="mine", variant="enc-dc", preset="tiny")
    before = run.system("mine").read_config()
    monkeypatch.undo()
    train(run, name="mine", assignments=["train.max_steps=2"])
    assert run.system("mine").read_config().variant == "enc-dc"
    assert run.system("mine").read_config().train == {**before.train, "max_steps": 2}


def test_a_call_without_settings_resumes_with_those_of_the_system(run, stderr):
    go(run, "train.lr=0.5", name="mine", variant="enc-dc", seed=3)
    config = run.system("mine").read_config()
    for variant in ({}, {"variant": "enc-dc"}):
        stderr()
        train(run, name="mine", **variant)
        assert f"'mine' has the settings of {run.system('mine').config}" in stderr()
        assert run.system("mine").read_config() == config
    message = "settings of 'mine' have changed"
    for given in ({"variant": "transformer"}, {"seed": 3}, {"preset": "tiny"}):
        caught = refused(ConfigError, message, train, run, name="mine", **given)
        assert "leave out --preset, --config, --seed, --init-from and --set" in caught.hint


def test_a_setting_that_may_change_resumes_with_the_others_of_the_system(run, stderr):
    """Not with those of the preset of the data set."""
    go(run, "train.lr=0.5", name="mine", variant="enc-dc", preset="tiny", seed=3)
    before = run.system("mine").read_config()
    train(run, name="mine", assignments=["train.max_steps=5", "search.beam=2"])
    after = run.system("mine").read_config()
    assert "train.max_steps: 4 -> 5" in stderr()
    assert after.train == {**before.train, "max_steps": 5}
    assert after.search == {**before.search, "beam": 2}
    assert (after.model, after.preset) == (before.model, "tiny")
    for steps in (5, 6):  # without an update the settings stay
        assigned = ["train.lr=0.1", "model.dropout=0.3", f"train.max_steps={steps}"]
        allowed = ["train.lr", "model.dropout"]
        train(run, name="mine", assignments=assigned, allow_change=allowed)
        now = run.system("mine").read_config()
        changed = {"lr": 0.1, "max_steps": 6} if steps == 6 else {}
        assert now.train == {**after.train, **changed}
        assert now.model == {**after.model, **({"dropout": 0.3} if steps == 6 else {})}
    train(run, name="mine")  # which keeps the changes
    changed = run.system("mine").read_config().changed
    assert changed == [
        "model.dropout 0.1 -> 0.3 after update 5",
        "train.lr 0.5 -> 0.1 after update 5",
    ]
    wrong = {"lr=0.2": "have changed", "max_step=9": "max_step", "max_steps=x": "bad value"}
    for assigned, message in wrong.items():
        assigned = [f"train.{assigned}"]
        caught = refused(ConfigError, message, train, run, name="mine", assignments=assigned)
        if message == "have changed":  # with the preset of the data set, all others would have
            keys = [line.split()[0] for line in caught.where.splitlines()]
            assert keys == ["key", "train.lr"]


def test_a_call_without_settings_reads_those_of_an_earlier_version(run, stderr):
    go(run, name="mine")
    config = run.system("mine").config
    lines = config.read_text("utf-8").splitlines()
    removed = ("values", "preset", "word_dropout", "replace")
    lines = [line for line in lines if not line.startswith(removed)]
    config.write_text("\n".join(['preset = "gone"', *lines]) + "\n", "utf-8")
    train(run, name="mine")
    assert "already at step 4 of 4" in stderr()
    text = config.read_text("utf-8").replace("[train]\n", "[train]\nold = 1\n")
    lines = [line for line in text.splitlines() if not line.startswith("values")]
    config.write_text("\n".join(lines) + "\n", "utf-8")
    refused(ConfigError, "have changed(?s:.*)train.old", train, run, name="mine")
    train(run, name="mine", allow_change=["train.old"])


def test_a_class_of_the_users_own_is_named_again(run, stderr):
    few_of_toy(run, variant=TOY, name="mine")
    caught = refused(ConfigError, "'mine' uses your own model class", train, run, name="mine")
    assert caught.hint == f"--variant {TOY}"
    train(run, name="mine", variant=TOY)
    assert "has the settings of" in stderr()


@pytest.mark.parametrize("fault", [RuntimeError("CUDA out of memory"), MemoryError()])
def test_the_machine_is_not_the_fault_of_a_model_outside_the_package(run, monkeypatch, fault):
    def encode(*_):
        raise fault

    monkeypatch.setattr(ToyRecurrent, "encode", encode)
    with pytest.raises((type(fault), EnvironmentProblem)):
        few_of_toy(run, variant=TOY, name="mine")


def test_settings_of_prep_that_the_corpus_does_not_have_are_warned_about(run, stderr, tmp_path):
    merges = run.manifest().settings.merges
    for value in (merges, merges + 1):
        stderr()
        text = f"[prep]\nmerges = {value}\n"
        (tmp_path / "mine.toml").write_text(text, "utf-8")
        go(run, name="mine", config=tmp_path / "mine.toml", dry_run=True)
        assert (f"prep.merges = {merges + 1} has no effect" in stderr()) is (value != merges)
    (tmp_path / "mine.toml").write_text("[prep]\nmergs = 3\n", "utf-8")
    refused(ConfigError, "unknown setting 'prep.mergs'", go, run, config=tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("key", "good", "bad", "message"),
    [
        ("train.warmup", 3, 4, "the learning rate rises until the end"),
        ("search.average", 5, 6, "search.average is 6, but train.keep_checkpoints keeps only 5"),
    ],
)
def test_settings_that_cannot_do_what_they_say_are_warned_about(
    run, stderr, key, good, bad, message
):
    for value in (good, bad):
        stderr()
        go(run, f"{key}={value}", name=f"v{value}", dry_run=True)
        assert (message in stderr()) is (value == bad)


def test_settings_that_came_later_have_the_value_that_systems_were_trained_with(run):
    sizes = ["model.d_embedding=8", "model.d_hidden=8", "model.dropout=0.1"]

    def fit(steps):
        more = [*sizes, f"train.max_steps={steps}", *QUIET]
        train(run, variant="gru-inv", assignments=more)
        train(run, variant="caru", assignments=[*more, "model.unit_embeddings=false"])

    fit(1)
    for name in ("caru", "gru-inv"):
        config = run.system(name).config
        lines = config.read_text("utf-8").splitlines()
        later = (
            "values",
            "unit_embeddings",
            "content_bias",
            "update_bias",
            "replace",
            "word_dropout",
        )
        files.write_lines(config, [line for line in lines if not line.startswith(later)])
        model = loading.build_untrained(run, run.system(name))
        assert model.settings.unit_embeddings is False
    fit(2)
    assert state_of(run, "caru")["step"] == state_of(run, "gru-inv")["step"] == 2


def test_init_from_a_system_a_folder_and_a_checkpoint(run, stderr, monkeypatch):
    go(run)
    theirs = checkpoints.load_weights(last(run))
    sources = [VARIANT, str(run.system(VARIANT).path), str(last(run)), f"./{VARIANT}"]
    monkeypatch.chdir(run.path / "systems")
    for i, source in enumerate(sources):
        stderr()
        # A learning rate of nearly nothing: the weights after one step are those at the beginning.
        go(run, "train.max_steps=1", "train.lr=1e-12", name=f"s{i}", init_from=source)
        own = checkpoints.load_weights(last(run, f"s{i}"))
        assert all(torch.allclose(own[name], theirs[name], atol=1e-8) for name in theirs)
        assert f"{len(theirs)} of {len(theirs)} tensors" in stderr()
    go(run, "train.max_steps=2", "train.lr=1e-12", name="s0")  # continuing needs no --init-from
    again = partial(go, run, "train.max_steps=2", "train.lr=1e-12", name="s0", init_from="s1")
    refused(ConfigError, "have changed", again)
    again(allow_change=["init_from"])
    assert run.system("s0").read_config().init_from == VARIANT
    run.system(VARIANT).path.rename(run.path / "gone")
    go(run, "train.max_steps=3", "train.lr=1e-12", name="s0", init_from=VARIANT)


def test_init_from_says_what_did_not_match(run, stderr):
    go(run)
    stderr()
    go(run, "model.encoder_layers=2", "model.d_ff=64", name="deeper", init_from=VARIANT)
    said = stderr()
    assert "not in the checkpoint: encoder.1." in said
    assert "of another shape: decoder.0.feed_forward" in said
    with pytest.raises(CheckpointError, match="nothing in .* matches"):
        train(run, name="other", variant=TOY, init_from=VARIANT)
    with pytest.raises(CheckpointError, match=r"matches.*; model.d_ff 64 \(there 32\)"):
        go(run, "model.d_model=8", "model.d_ff=64", name="wider", init_from=VARIANT)
    with pytest.raises(ConfigError, match="no system or folder 'transformr'") as caught:
        go(run, name="third", init_from="transformr")
    assert "transformer" in caught.value.hint
    caught = refused(
        ConfigError, "is a run, not a system", go, run, name="third", init_from=str(run.path)
    )
    assert str(run.path / "systems") in caught.hint


def test_a_document_model_begins_with_a_transformer(run, stderr):
    """The two stages of Miculicich et al. 2018: what the Transformer has is as it was trained,
    the rest is fresh and begins to learn.
    """
    go(run)
    files.write_text(documents_file(run.prep, "train"), "0\n20\n40\n")
    stderr()
    go(run, "train.max_steps=1", "train.lr=1e-3", name="second", variant="han", init_from=VARIANT)
    said = stderr()
    theirs, own = checkpoints.load_weights(last(run)), checkpoints.load_weights(last(run, "second"))
    assert (
        f"{len(theirs)} of {len(own)} tensors" in said
        and f"({len(own) - len(theirs)})"
        in said.partition("not in the checkpoint: encoder_context.")[2]
    )
    assert all(
        torch.allclose(own[name], theirs[name], atol=1.1e-3) for name in theirs
    )  # one update moves a number by at most the rate
    new = {name: tensor for name, tensor in own.items() if name not in theirs}
    assert new and all(name.startswith("encoder_context.") for name in new)
    assert not torch.equal(new["encoder_context.norm.weight"], torch.ones(16))  # contexts were read


def test_the_file_of_a_transformer_gives_a_variant_its_sizes(run):
    """As the second stage of HAN needs them."""
    go(run)
    config = run.system(VARIANT).config
    train(run, variant="han", name="second", config=config, init_from=VARIANT, preset="tiny")
    theirs, own = (run.system(name).read_config().model for name in (VARIANT, "second"))
    assert own.items() > theirs.items()
    for variant in ("transformer-cycle", "rnnsearch"):  # the first would lose what it is
        refused(
            ConfigError,
            f"of 'transformer', not of '{variant}'",
            partial(train, run, variant=variant, config=config, name="third"),
        )


def test_a_document_model_is_told_that_there_are_no_documents(run, stderr):
    warning = "every sentence of the training set is a document of its own: none has a context"

    def said(name, *settings, variant="amn"):
        one_step(run, *settings, variant=variant, preset="tiny", name=name)
        return stderr().replace("\n", " ")

    assert warning in said("alone")
    assert warning not in said("foreign", "model.context=foreign")
    assert warning not in said("none", variant="transformer")
    files.write_text(documents_file(run.prep, "train"), "0\n3\n")
    of_dev = said("train")
    assert warning not in of_dev and "every sentence of 'dev' is a document of its own" in of_dev
    files.write_text(documents_file(run.prep, "dev"), "0\n2\n")
    assert "document of its own" not in said("both")
    documents_file(run.prep, "train").unlink()
    refused(ConfigError, "would first meet a context after training: dev has", said, "late")
    assert "document of its own" not in said("single", variant="transformer")


def drawn_model(name, **more):
    """A tiny model whose weights are large enough for translations that differ."""
    torch.manual_seed(3)
    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = build_model(name, sizes | more, Vocabularies(28, 28, shared=True)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    return model


@pytest.fixture
def on_dev(run, monkeypatch):
    """For a model and settings: a validator, and what `translate` makes of lines in documents."""
    side, vocabulary = TextSide.load(run.prep, "tgt"), Vocabulary.load(run.prep / "vocab.txt")
    monkeypatch.setattr(TextSide, "encode", lambda self, line: line.split())

    def prepared(model, **values):
        settings = TrainSettings.model_validate(values)
        autocast = {"device_type": "cpu", "enabled": False}
        validator = Validator(run, run.sets("dev")[0], settings, model, autocast, Ranks())
        search_settings = dev_search(validator._store)
        translator = Translator([model], side, side, vocabulary, vocabulary, search_settings)

        def translated(lines, documents):
            found = translator.translate_window(lines, documents=documents)
            return [translation.text for translation in found]

        return validator, translated

    return prepared


JOINT = {"side": "joint", "context_size": 2}


def test_translations_before_are_the_context_in_validation_too(run, on_dev):
    """Dev sentences are translated as `translate` does whole documents, not with the references
    of those before; only what is needed is.
    """
    files.write_text(documents_file(run.prep, "dev"), "0\n4\n")
    model = drawn_model("han", **JOINT)
    validator, translated = on_dev(model)
    texts = validator._texts(validator._translate([1, 5], Stop()))
    assert sorted(texts) == [0, 1, 4, 5]
    lines = list(files.text_lines(run.source("dev")))
    whole, alone = translated(lines, Documents([0, 4], 6)), translated(lines, None)
    assert {row: whole[row] for row in texts} == texts
    assert [whole[row] == alone[row] for row in (0, 1, 4, 5)] == [True, False, True, False]
    batch = collate(Store(run.prep / "dev"), np.array([1]), rule=model.context_rule)
    (with_references,) = search([model], batch, DEV_SEARCH)
    vocabulary = Vocabulary.load(run.prep / "vocab.txt")
    side = TextSide.load(run.prep, "tgt")
    assert side.decode(vocabulary.decode(with_references[0].ids)) != whole[1]


@pytest.mark.parametrize(("name", "options"), [("transformer", {}), ("concat", {}), ("han", JOINT)])
def test_blank_lines_stay_blank_in_validation_and_are_no_context(run, on_dev, name, options):
    """Dev BLEU and samples are of what `translate` prints: a blank source line is not decoded,
    and not read by its neighbours.
    """
    source, target = (
        list(files.text_lines(path)) for path in (run.source("dev"), *run.references("dev"))
    )
    for row in (0, 3, 5):
        source[row] = ""
    vocabulary = Vocabulary.load(run.prep / "vocab.txt")
    with pair_writer(run.prep / "dev", 0, len(vocabulary)) as add:
        for pair in zip(source, target, strict=True):
            add(*(vocabulary.encode(line.split()) for line in pair))
    files.write_lines(run.source("dev"), source)
    files.write_text(documents_file(run.prep, "dev"), "0\n3\n")
    model = drawn_model(name, **options)
    validator, translated = on_dev(model, samples=6)
    real = translated(source, Documents([0, 3], 6))
    assert [text == "" for text in real] == [row in (0, 3, 5) for row in range(6)]
    found = validator._translate(list(range(6)), Stop())
    assert validator._texts(found) == dict(enumerate(real))
    measured = validator.validate(Stop())
    assert measured.bleu == bleu(real, [target], "de").value
    assert {sample[0]: sample[2] for sample in measured.samples}[""] == ""


def test_earlier_sentences_that_validation_leaves_out_are_not_searched(run, on_dev):
    """Sentences 1 and 2 read the over-long sentence 0, and sentence 3 reads 1 and 2."""
    vocabulary = Vocabulary.load(run.prep / "vocab.txt")
    words = list(files.text_lines(run.source("dev")))[1].split()
    with pair_writer(run.prep / "dev", 0, len(vocabulary)) as add:
        for source in (words * 9, *[words] * 5):
            add(vocabulary.encode(source), vocabulary.encode(words))
    files.write_text(documents_file(run.prep, "dev"), "0\n4\n")
    model = drawn_model("han", **JOINT)
    validator, _ = on_dev(model)
    validator._most = len(words) * 5
    ids = validator._translate([3], Stop())
    assert [len(ids[row]) > 1 for row in range(4)] == [False, False, False, True]
    # The loss is the mean over the tokens of the sentences that are read.
    rows, autocast = np.array([3, 4, 5]), {"device_type": "cpu", "enabled": False}
    store = Store(run.prep / "dev")
    total = validation.batch_loss(model, store, autocast, rows)
    assert validator._loss(Stop()) == pytest.approx(total / store.tgt_lengths[rows].sum())


def test_init_from_a_system_whose_layers_share_parameters(run, stderr):
    """A Transformer with parameters of its own in every layer gets those that the layer used;
    layers that share get those of the first of them.
    """
    deep = ("model.encoder_layers=4", "model.decoder_layers=4", "train.lr=1e-12")
    go(run, *deep, "model.distinct_layers=2", name="shared")
    stderr()
    go(run, *deep, name="apart", init_from="shared")
    said = stderr()
    theirs, own = (checkpoints.load_weights(last(run, name)) for name in ("shared", "apart"))
    assert len(own) > len(theirs) and f"{len(own)} of {len(own)} tensors" in said
    assert "checkpoint: " not in said
    for name, tensor in own.items():
        same = name.replace("coder.2.", "coder.1.").replace("coder.3.", "coder.0.")
        assert torch.allclose(tensor, theirs[same], atol=1e-8), name
    again = ("model.distinct_layers=2", "model.share=sequence", "train.max_steps=1")
    go(run, *deep, *again, name="sequence", init_from="apart")
    said = stderr()
    assert "only in the checkpoint: decoder.1." in said and "not in the" not in said
    for name, tensor in checkpoints.load_weights(last(run, "sequence")).items():
        assert torch.allclose(tensor, own[name], atol=1e-8), name


def test_init_from_what_gives_little_is_a_warning(run, stderr):
    go(run)
    stderr()
    go(run, "model.d_model=32", "train.max_steps=1", name="wider", init_from=VARIANT)
    own, theirs = checkpoints.load_weights(last(run, "wider")), checkpoints.load_weights(last(run))
    alike = sum(own[name].numel() for name in own if own[name].shape == theirs[name].shape)
    everything = sum(tensor.numel() for tensor in own.values())
    said = stderr()
    (line,) = [line for line in said.splitlines() if "initialised from" in line]
    assert line.startswith("nmtkit: warning: ")
    assert (
        f"{alike:,} of {everything:,} numbers; the other {100 * (1 - alike / everything):.1f}%"
        " begin at random" in line
    )
    assert "sizes that differ: model.d_model 32 (there 16)" in said
    go(run, "train.max_steps=1", name="alike", init_from=VARIANT)
    assert "warning: initialised" not in stderr()


# Validation


@pytest.mark.parametrize(
    ("new", "best", "by", "better"),
    [
        ((9.0, 1.0), None, "dev_bleu", True),
        ((2.5, 31.0), (2.0, 30.0), "dev_bleu", True),
        ((1.5, 29.0), (2.0, 30.0), "dev_bleu", False),
        ((1.5, 30.0), (2.0, 30.0), "dev_bleu", True),
        ((2.0, 30.0), (2.0, 30.0), "dev_bleu", False),
        ((1.5, 29.0), (2.0, 30.0), "dev_loss", True),
        # Decoding may have failed once.
        ((1.5, None), (2.0, 30.0), "dev_bleu", False),
        ((1.5, None), (2.0, 0.0), "dev_bleu", False),
        ((2.5, 40.0), (2.0, None), "dev_bleu", True),
        ((1.5, None), (2.0, None), "dev_bleu", True),
        ((1.5, None), (2.0, 30.0), "dev_loss", True),
    ],
)
def test_which_is_better(new, best, by, better):
    loss, bleu = new
    validated = Validation(loss, bleu, None, 0, 0, [])
    assert is_better(validated, best and Best(1, *best), by) == better


@pytest.mark.parametrize(("kind", "loss"), [("dev_loss", 1.5), ("train_loss", 3.0)])
def test_what_a_validation_changes(kind, loss):
    values = {"schedule": "plateau", "plateau_on": kind, "validate_every": 2, "dev_bleu": False}
    update = partial(after_validation, settings=TrainSettings(**values), reporter=MagicMock())
    state = TrainState(step=4, best=Best(2, 2.0, 30.0, "a"), loss=Window(smoothed=9.0, tokens=3))
    measured = Validation(1.5, None, None, 0, 0, [], "a")
    assert measured.comparable(Best(2, 2.0, 30.0))  # of an earlier version
    assert update(measured, state)  # BLEU decides no more
    assert (state.plateau, state.loss, state.validated) == (Plateau(best=loss), Window(), 4)
    # An extra validation, on another development set.
    state.step, state.since_best, state.plateau.factor = 5, 2, 0.5
    assert update(Validation(9.0, None, None, 0, 0, [], "b"), state)
    assert state.since_best == 0
    assert state.plateau == Plateau(0.5, None if kind == "dev_loss" else loss)


def test_dev_loss_is_the_mean_over_all_target_tokens(run):
    go(run, "train.dev_bleu=true", "train.samples=2")
    model = loading.load_system(run, run.system(VARIANT)).double()
    store = Store(run.prep / "dev")
    total = 0.0
    for i in range(len(store)):
        batch = collate(store, torch.tensor([i]).numpy())
        log_p = model.logits(model.decode(batch.tgt_in, model.encode(batch))[0]).log_softmax(-1)
        total -= log_p[0].gather(-1, batch.tgt_out[0, :, None]).sum().item()
    (line,) = metrics(run, "dev")
    assert line["dev_loss"] == pytest.approx(total / store.tgt_lengths.sum(), rel=1e-5)


def test_a_signal_counts_more_than_a_set_that_cannot_be_decoded(on_dev):
    validator, _ = on_dev(drawn_model("transformer"))
    of_ranks = [(validation.Undecodable("of one"), []), (Abandoned("of another"), [])]
    validator.ranks = SimpleNamespace(share=list, gather_values=lambda _: of_ranks, world=2)
    with pytest.raises(Abandoned):
        validator._shared([], len, Stop())


def test_samples_and_dev_sentences(run, on_dev, monkeypatch, stderr):
    sizes = []
    original = validation.metrics.bleu

    def counted(hyps, refs, lang, tokenized):
        sizes.append((len(hyps), [len(r) for r in refs], lang, tokenized))
        return original(hyps, refs, lang, tokenized=tokenized)

    monkeypatch.setattr(validation.metrics, "bleu", counted)
    go(run, "train.dev_bleu=true", "train.samples=2", "train.dev_sentences=4")
    assert sizes == [(4, [4], "de", False)]
    said = stderr()
    assert (
        said.count("  source ") == said.count("  reference ") == said.count("  translation ") == 2
    )
    lines = list(files.text_lines(run.source("dev")))
    assert lines[2] in said and lines[3] in said  # spread evenly over six
    edit(run.prep / "manifest.json", '"tgt_tokenizer": "auto"', '"tgt_tokenizer": "none"')
    on_dev(drawn_model("transformer"), samples=2)[0].validate(Stop())
    assert sizes[1:] == [(6, [6], "de", True)]
    no_bleu = {"dev_bleu": False, "samples": 2, "dev_sentences": 4}
    measured = on_dev(drawn_model("transformer"), **no_bleu)[0].validate(Stop())
    assert measured.bleu is None and len(measured.samples) == 2
    for longest, most in ((1000, 1024), (2000, 2001)):  # </s> included
        manifest = read_json(run.prep / "manifest.json")
        manifest["settings"]["max_subwords"] = longest
        files.write_json(run.prep / "manifest.json", manifest)
        assert on_dev(drawn_model("transformer"))[0]._most == most


def test_a_longer_limit_of_translations_makes_another_development_set(run):
    store = Store(run.prep / "dev")
    assert dev_search(store) == DEV_SEARCH
    store.tgt_lengths = 3 * store.src_lengths
    limit = dev_search(store).max_length_a
    assert limit == pytest.approx(3.6)
    hashes = [validation._dev_set_hash({}, "dev", 0, a) for a in (1.2, 1.5, limit)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_more_samples_than_sentences(run, stderr):
    go(run, "train.samples=1000000000000000")
    assert "  source " in stderr()


def test_without_a_development_set_the_last_checkpoint_counts(tmp_path):
    run = make_run(tmp_path / "run", dev=0)
    go(run, "train.checkpoint_every=2")
    assert not (run.system(VARIANT).path / "best.json").exists()
    assert checkpoints.choose(run.system(VARIANT))[0].name == "step-00000004"
