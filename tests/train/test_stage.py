"""The stage `train`: where settings come from, what is written, endings, and resuming with other
settings.
"""

import os
from functools import partial

import pytest
import torch

from nmtkit import console, files, settings
from nmtkit.errors import CheckpointError, ConfigError, DataError, EnvironmentProblem
from nmtkit.models import checkpoints, loading
from nmtkit.models.properties import NOT_CAUSAL
from nmtkit.models.variants import common_width
from nmtkit.nn import hardware
from nmtkit.presets import preset_names
from nmtkit.records import SystemRecord
from nmtkit.run import Run
from nmtkit.settings import TrainSettings
from nmtkit.train import loop, saving
from nmtkit.train.options import TrainOptions
from nmtkit.train.plan import make_plan
from nmtkit.train.schedule import Plateau
from nmtkit.train.stage import train
from nmtkit.train.state import Best, TrainState
from nmtkit.train.stop import reason_to_end
from nmtkit.train.validation import Validator
from nmtkit.translate import systems
from tests.faults.trainings import fail, interfere
from tests.manifests import read_json
from tests.refused import refused
from tests.toy_recurrent import ToyRecurrent
from tests.train.test_resume import stop
from tests.train.tiny import (
    FOUR_STEPS,
    QUIET,
    last,
    lines_of,
    make_run,
    mark_documents,
    metrics,
    saved,
    state_of,
    trainer,
)

go = trainer(FOUR_STEPS)
one_step = trainer([*QUIET, "train.max_steps=1", "train.batch_size=64"])
VARIANT = "transformer"
TOY = "tests.toy_recurrent:ToyRecurrent"
toy_step = partial(trainer([*QUIET, "model.d_model=16", "train.max_steps=1"]), variant=TOY)


@pytest.fixture
def system(run):
    """The folder of the Transformer."""
    return run.system(VARIANT)


def plan_of(run, *assignments, **values):
    return make_plan(run, TrainOptions.of({"assignments": list(assignments), **values}))


# Settings


def test_settings_come_from_preset_then_config_then_set_then_seed(run, tmp_path, monkeypatch):
    model = {"d_model": 32, "heads": 2, "unknown_to_this_family": 1}
    presets = {
        "a": {"model": model, "train": {"lr": 1.0, "warmup": 5}, "prep": {"merges": 3}},
        "b": {"train": {"lr": 2.0}},
    }
    monkeypatch.setattr(settings, "load_preset", presets.__getitem__)
    files.write_json(run.prep / "manifest.json", {**run.manifest().model_dump(), "preset": "a"})
    config = tmp_path / "my.toml"
    config.write_text("[train]\nlr = 3.0\nwarmup = 7\n[prep]\nmerges = 1\n[search]\nbeam = 9\n")
    cases = [  # assignments, options; preset, d_model, learning rate, warmup, beam, seed
        ([], {}, ("a", 32, 1.0, 5, 5, 1)),
        ([], {"preset": "b"}, ("b", 512, 2.0, 8000, 5, 1)),  # a preset is a whole setting
        ([], {"preset": "b", "config": config}, ("b", 512, 3.0, 7, 9, 1)),
        (["train.lr=4"], {"preset": "b", "config": config}, ("b", 512, 4.0, 7, 9, 1)),
        (["train.seed=3"], {}, ("a", 32, 1.0, 5, 5, 3)),
        (["train.seed=3"], {"seed": 5}, ("a", 32, 1.0, 5, 5, 5)),
    ]
    for assignments, values, expected in cases:
        plan = plan_of(run, *assignments, **values)
        found = plan.train.lr, plan.train.warmup, plan.search.beam, plan.train.seed
        assert (plan.preset, plan.model["d_model"], *found) == expected


@pytest.mark.parametrize(
    ("preset", "assignments", "rate"),
    [
        *((preset, [], None) for preset in preset_names()),
        ("small", ["train.schedule=constant"], None),
        ("tiny", ["train.schedule=cosine", "train.lr=1e-3"], None),
        # 0.6·128^-0.5·500^-0.5; 2e-3·256^0.5·1000^0.5; without warm-up the first rate is the highest
        ("demo", ["train.schedule=plateau"], "0.0024"),
        ("small", ["train.schedule=noam", "train.warmup=1000"], "1"),
        ("caru-multi30k", ["train.schedule=noam"], "0.023"),
    ],
)
def test_refused_rate_of_another_schedule_is_converted_in_the_hint(run, preset, assignments, rate):
    if rate is None:
        plan_of(run, *assignments, preset=preset)
        return
    error = refused(ConfigError, None, plan_of, run, *assignments, preset=preset)
    assert (error.where, f"train.lr={rate} " in error.hint) == ("train.lr", True), error


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
def test_error_of_a_bad_setting_names_its_key(run, assignment, message):
    assert message in str(refused(ConfigError, None, go, run, assignment))
    assert not (run.path / "systems").exists()


def test_resuming_refuses_a_setting_without_effect(run):
    go(run)
    message = "train.min_lr has no effect without train.schedule=plateau"
    refused(ConfigError, message, train, run, assignments=["train.min_lr=1e-5"], device="cpu")


def test_rate_of_a_begun_training_is_kept_unless_its_schedule_changes(run):
    """Earlier nmtkit warned of a preset's rate for another schedule, and trained with it."""
    options = TrainOptions.of({"assignments": ["train.schedule=cosine"], "preset": "demo"})
    assert make_plan(run, options, resumes=True).train.lr == 0.6
    go(run, "train.schedule=cosine", "train.lr=0.6")
    change = {"assignments": ["train.schedule=noam"], "allow_change": ["train.schedule"]}
    message = "train.lr=0.6 is meant for train.schedule=cosine"
    refused(ConfigError, message, train, run, **change, device="cpu")


def test_training_that_would_end_before_its_first_update_is_refused(run):
    plateau = ("train.schedule=plateau", "train.lr=0.01")
    message = "no update would be made: learning rate down to 0.01 at step 0; lower train.min_lr"
    refused(ConfigError, message, go, run, *plateau, "train.min_lr=0.01")
    go(run, *plateau, "train.min_lr=0.009")
    train(run, assignments=["train.min_lr=0.01"], device="cpu")  # a begun training ends now


def test_config_file_may_have_settings_of_a_schedule_that_set_replaces(run, tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text('[train]\nschedule = "plateau"\nplateau_on = "train_loss"\nmin_lr = 1e-5\n')
    plan = plan_of(run, "train.schedule=constant", "train.lr=1e-4", config=config)
    assert (plan.train.schedule, plan.train.min_lr) == ("constant", 1e-5)
    plan_of(run, "train.replace_keep=0.9")  # the default, which changes nothing


def test_unknown_variant_preset_and_run_are_refused(run):
    refused(ConfigError, "unknown variant", train, run, variant="transfomer")
    refused(ConfigError, "unknown preset", train, run, preset="hugeish")
    refused(DataError, "not prepared", train, Run(run.path.parent))


def test_warning_if_the_corpus_was_prepared_with_other_settings(run, stderr, tmp_path):
    config, merges = tmp_path / "mine.toml", run.manifest().settings.merges
    for value in (merges, merges + 1):
        stderr()
        config.write_text(f"[prep]\nmerges = {value}\n", "utf-8")
        go(run, name="mine", config=config, dry_run=True)
        assert (f"prep.merges = {merges + 1} has no effect" in stderr()) is (value != merges)
    config.write_text("[prep]\nmergs = 3\n", "utf-8")
    refused(ConfigError, "unknown setting 'prep.mergs'", go, run, config=config)


@pytest.mark.parametrize(
    ("key", "good", "bad", "message"),
    [
        ("train.warmup", 3, 4, "the learning rate rises until the end"),
        ("search.average", 5, 6, "but train.keep_checkpoints keeps only 5"),
    ],
)
def test_warning_if_settings_contradict_each_other(run, stderr, key, good, bad, message):
    for value in (good, bad):
        stderr()
        go(run, f"{key}={value}", name=f"v{value}", dry_run=True)
        assert (message in stderr()) is (value == bad)


FINAL_STATE = ("model.readout=linear", "model.bidirectional=false", "model.tie=none")


@pytest.mark.parametrize(
    ("variant", "assignments"),
    [("transformer", ()), ("rnnsearch", ()), ("caru", ()), ("caru", FINAL_STATE), ("gatt", ())],
)
def test_variants_of_a_preset_share_precision_and_learning_rate(
    run, variant, assignments, monkeypatch
):
    """All variants of `tiny` (d = 64) are narrow, whatever their family calls its widths. So a CPU
    with fast bfloat16 products of wide matrices trains all of them in float32.
    """
    fastest = {True: "bfloat16", False: "float32"}
    monkeypatch.setattr(hardware, "_fastest", lambda device, width: fastest[width >= 128])
    one_step(run, *assignments, variant=variant, preset="tiny")
    assert state_of(run, variant)["hardware"]["precision"] == "float32"
    (group,) = systems.choose(run, [variant], False, {}, single=True)
    assert group.hardware(torch.device("cpu")).precision == "float32"
    (update,) = metrics(run, "train", variant)
    assert update["lr"] == pytest.approx(0.8 * 64**-0.5 * 400**-1.5)
    plan = plan_of(run, *assignments, variant=variant, preset="base")
    assert common_width(plan.preset, plan.model) == 512
    width = "d_embedding" if "d_embedding" in plan.model else "d_model"
    assert common_width("tiny", plan.model | {width: 620}) == 620


# What is written


def test_config_manifest_history_and_metrics_record_the_training(run, system):
    go(run, "train.seed=7", "train.betas=[0.8, 0.9]", "train.lr=0.01", "train.warmup=8")
    config, manifest = system.read_config(), read_json(last(run) / "manifest.json")
    (record,) = lines_of(run.path / "history.jsonl")
    (progress,) = metrics(run, "train")
    for found, expected in [
        (vars(config), {"variant": VARIANT, "corpus": run.manifest().fingerprint}),
        (config.train, {"seed": 7, "betas": [0.8, 0.9]}),
        (config.model, {"d_model": 16}),
        (manifest, {"step": 4, "variant": VARIANT}),
        (record, {"stage": "train", "exit": 0, "seed": 7, "device": "cpu", "steps": [0, 4]}),
        (progress, {"step": 4, "lr": 0.01 * 4 / 8}),
    ]:
        assert expected.items() <= found.items()
    assert list(manifest["vocabulary"]) == ["vocab.txt"]
    measured = "loss nll lr tgt_tokens_per_s padding memory_gib grad_norm epoch"
    assert set(measured.split()) <= progress.keys()
    log = (system.path / "train.log").read_text("utf-8")
    assert ", float32, " in log.splitlines()[0] and "parameters; " in log.splitlines()[1]
    assert "dev loss" in log


def test_truncated_config_is_reported_as_damaged(run, system):
    go(run)
    whole = system.config.read_bytes()
    lines = whole.splitlines(keepends=True)
    cut = [whole[:length] for length in range(len(whole) - 1)]  # all but its last line feed
    for damaged in [*cut, b"".join(line for line in lines if b"corpus" not in line)]:
        system.config.write_bytes(damaged)
        refused(DataError, "the file is damaged", system.read_config)


def test_metrics_cover_every_update_once_over_resumed_trainings(run, system, stderr):
    def steps_after(max_steps, name=VARIANT):
        go(run, f"train.max_steps={max_steps}", "train.log_every=4", name=name)
        return [line["step"] for line in metrics(run, "train", name)]

    assert steps_after(6) == [4, 6]
    assert "step 6/6, " in stderr()
    assert steps_after(6) == [4, 6]
    assert steps_after(2) == [4, 6]
    assert system.read_config().train["max_steps"] == 6  # the value of the training
    assert steps_after(8) == [4, 6, 8]
    assert steps_after(8, "straight") == [4, 8]
    continued, straight = (
        {k: v for k, v in line.items() if "second" not in k and "_s" not in k and k != "memory_gib"}
        for line in (metrics(run, "train")[-1], metrics(run, "train", "straight")[-1])
    )
    assert continued == straight  # of the steps 5 to 8, both


def test_log_has_stops_and_warnings_of_all_parts_of_a_training(run, system, monkeypatch):
    stop(monkeypatch, 2, go, run)
    warn = partial(console.warn, "one update is skipped")
    interfere(monkeypatch, loop.divergence, "check_finite", {1}, warn)
    go(run)
    log = (system.path / "train.log").read_text("utf-8")
    messages = [
        "step 0 of 4: starting",
        "warning: SIGTERM: finishing",
        "stopped by SIGTERM after step 2",
        "step 2 of 4: continuing",
        "warning: one update",
    ]
    places = [log.find(message) for message in messages]
    assert -1 not in places and places == sorted(places)


def test_record_keeps_the_creation_time_and_the_time_of_the_last_checkpoint(tmp_path):
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
    saving.note_trained(first)
    record = first.read_record()
    assert (record.made, record.parameters) == (7, 3) and record.trained > 9


@pytest.mark.parametrize("best_by", ["dev_bleu", "dev_loss"])
def test_best_json_names_the_measure(tmp_path, best_by):
    system = Run(tmp_path).system("a")
    state = TrainState(best=Best(2, 2.0, 30.0))
    saving.write_best(system, state, TrainSettings(best_by=best_by))
    assert read_json(system.path / "best.json")["metric"] == best_by


def test_best_json_is_written_again_if_a_kill_came_before(run, system):
    go(run)
    written = (system.path / "best.json").read_bytes()
    (system.path / "best.json").unlink()
    go(run)
    assert (system.path / "best.json").read_bytes() == written


# Models outside the package


def test_variant_outside_the_package_is_trained_and_loaded(run):
    toy_step(run, "train.max_steps=2", "train.dev_bleu=true")
    system = run.system("toy-recurrent")
    assert type(loading.load_system(run, system)).__name__ == "ToyRecurrent"
    assert read_json(system.path / "best.json")["dev_bleu"] is not None


@pytest.mark.parametrize("dry_run", [True, False])
def test_fault_in_a_users_model_names_its_file_and_line(run, monkeypatch, dry_run):
    monkeypatch.setattr(ToyRecurrent, "encode", lambda *_: {})
    failing = partial(toy_step, run, name="toy", dry_run=dry_run)
    caught = refused(ConfigError, "your code failed: KeyError", failing)
    assert "toy_recurrent.py, line " in caught.where


@pytest.mark.parametrize("fault", [RuntimeError("CUDA out of memory"), MemoryError()])
def test_fault_of_the_machine_is_not_blamed_on_a_users_model(run, monkeypatch, fault):
    fail(monkeypatch, ToyRecurrent, "encode", fault, range(100))
    with pytest.raises((type(fault), EnvironmentProblem)):
        toy_step(run, name="mine")


def test_warning_if_a_users_model_reads_the_future(run, monkeypatch, stderr):
    toy_step(run, name="sound")
    assert stderr().count(TOY) == 1  # beside the number of its parameters
    decode = ToyRecurrent.decode

    def decode_with_future(self, tgt_in, memory, state=None):
        hidden, after = decode(self, tgt_in, memory, state)
        return hidden.flip(1).cumsum(1).flip(1), after

    monkeypatch.setattr(ToyRecurrent, "decode", decode_with_future)
    toy_step(run, name="faulty")
    assert f"{TOY}: {NOT_CAUSAL}" in " ".join(stderr().split())
    assert NOT_CAUSAL in (run.system("faulty").path / "train.log").read_text("utf-8")


def test_resuming_a_users_model_needs_its_class_again(run, stderr):
    toy_step(run, name="mine")
    caught = refused(ConfigError, "'mine' uses your own model class", train, run, name="mine")
    assert caught.hint == f"--variant {TOY}"
    train(run, name="mine", variant=TOY)
    assert "has the settings of" in stderr()


# One update


def moments_after_a_step(path, *assignments, pairs=60):
    run = make_run(path, pairs=pairs, dev=0)
    go(run, *assignments, "train.max_steps=1")
    return checkpoints.load_training(last(run), dict)[1]


def test_accumulated_micro_batches_make_the_update_of_one_batch(tmp_path):
    """The loss is divided once, by the target tokens of the whole update: 1 x 32 sentences is 4 x 8
    (OpenNMT-py#2209).
    """
    whole, *accumulated = (
        moments_after_a_step(
            tmp_path / str(batch_size),
            "train.batch_unit=sentences",
            "model.dropout=0",
            f"train.batch_size={batch_size}",
            f"train.update_size={update_size}",
            pairs=32,
        )
        for batch_size, update_size in ((32, 0), (8, 32), (1, 32))
    )
    for moments in accumulated:
        assert all(torch.allclose(whole[k], moments[k], rtol=1e-4, atol=1e-7) for k in whole)
    lines = [line for size in (32, 8, 1) for line in metrics(Run(tmp_path / str(size)), "train")]
    assert [line["loss"] for line in lines] == pytest.approx([lines[0]["loss"]] * 3, rel=1e-4)


def test_clipped_gradient_has_the_maximum_norm_and_its_old_direction(tmp_path):
    free, clipped = (
        torch.cat([t.flatten() / 0.1 for name, t in moments.items() if name.startswith("exp_avg/")])
        for clip in ("0", "0.001")
        for moments in [moments_after_a_step(tmp_path / clip, f"train.clip_norm={clip}")]
    )  # m = (1-β1)·g
    assert clipped.norm() == pytest.approx(1e-3, rel=1e-3)
    assert free.norm() > 0.1
    assert torch.allclose(clipped / 1e-3, free / free.norm(), atol=1e-4)
    for clip in ("0", "0.001"):  # the log has the norm before clipping
        (line,) = metrics(Run(tmp_path / clip), "train")
        assert line["grad_norm"] == pytest.approx(free.norm().item(), rel=1e-4)


def test_training_learns_to_translate(tmp_path):
    """The loss falls far below that of guessing letters (ln 12 = 2.5), and most translations are
    right.
    """
    run = make_run(tmp_path / "run", pairs=400, dev=10)
    sizes = ("model.d_model=32", "model.d_ff=64", "model.dropout=0", "train.batch_size=300")
    steps = ("train.max_steps=400", "train.validate_every=400", "train.log_every=100")
    go(run, *sizes, *steps, "train.lr=0.004", "train.dev_bleu=true")
    first, *_, final = metrics(run, "train")
    assert final["nll"] < 0.8 < 1.8 < first["nll"]
    (dev,) = metrics(run, "dev")
    assert dev["dev_bleu"] > 25
    assert "tok:13a" in dev["signature"]


# Endings


def test_training_ends_when_patience_runs_out(run, system, monkeypatch, stderr):
    monkeypatch.setattr("nmtkit.train.best.is_better", lambda new, best, by: best is None)
    go(run, "train.max_steps=100", "train.validate_every=2", "train.patience=3")
    assert last(run).name == "step-00000008"  # a best at 2, then three without
    assert "no new best in 3 validations at step 8; raise train.patience to go on" in stderr()
    assert checkpoints.choose(system)[0].name == "step-00000002"


def test_extra_validation_at_the_end_does_not_count_for_patience(run, monkeypatch):
    better = iter([True, False, False, True])
    monkeypatch.setattr("nmtkit.train.best.is_better", lambda *_: next(better))
    go(run, "train.max_steps=7", "train.validate_every=2")
    assert (state_of(run)["best"]["step"], state_of(run)["since_best"]) == (7, 2)


@pytest.mark.parametrize(
    ("factor", "message"), [(0.95, None), (0.5, "rate down to 0.0005 at step 3")]
)
def test_reason_to_end_is_a_learning_rate_below_the_minimum(factor, message):
    values = {"schedule": "plateau", "lr": 1e-3, "min_lr": 9e-4, "warmup": 0}
    state = TrainState(step=3, plateau=Plateau(factor=factor))
    ending = reason_to_end(state, TrainSettings(**values))
    assert (message in ending) if message else ending is None


def test_training_ends_at_the_minimum_learning_rate_and_resumes_below_it(run, monkeypatch):
    monkeypatch.setattr(Validator, "_loss", lambda self, stop: 1.0)
    plateau = ("train.schedule=plateau", "train.lr=0.01", "train.min_lr=0.002")
    go(run, *plateau, "train.validate_every=2", "train.max_steps=100", "train.log_every=2")
    assert [line["lr"] for line in metrics(run, "train")] == [0.01, 0.01, 0.005, 0.0025]
    assert last(run).name == "step-00000008"
    train(run, assignments=["train.min_lr=0.001"], device="cpu")
    assert [line["lr"] for line in metrics(run, "train")][4:] == [0.00125]


def test_training_ends_after_max_minutes(run, stderr):
    go(run, "train.max_steps=100000", "train.max_minutes=0.01")
    assert "0.01 min of training done" in stderr()
    assert 0 < checkpoints.step_of(last(run)) < 5000


def test_without_a_development_set_the_last_checkpoint_is_used(tmp_path):
    run = make_run(tmp_path / "run", dev=0)
    go(run, "train.checkpoint_every=2")
    assert not (run.system(VARIANT).path / "best.json").exists()
    assert checkpoints.choose(run.system(VARIANT))[0].name == "step-00000004"


# Starting again, and resuming with other settings


def test_force_removes_the_old_checkpoints_when_the_first_new_one_is_saved(run, system):
    go(run)
    old = (last(run) / "model.safetensors").read_bytes()
    translated = system.path / "translate" / "test"
    files.write_text(translated / "hyp.txt", "alt\n")
    with pytest.raises(ConfigError):
        go(run, "model.heads=5", force=True)
    assert (last(run) / "model.safetensors").read_bytes() == old
    go(run, "train.max_steps=2", "train.seed=9", force=True)
    assert [path.name for path in saved(run)] == ["step-00000002"]
    assert not translated.exists() and not system.replaced.path.exists()
    (kept,) = (system.path / "translate").glob("not-of-nmtkit-*/hyp.txt")  # no meta.json lists it
    assert kept.read_text() == "alt\n"
    assert system.read_config().train["seed"] == 9


def test_settings_may_change_before_the_first_checkpoint(run, system):
    files.write_text(system.config, 'variant = "x"\n')
    go(run)
    assert system.read_config().variant == VARIANT


def test_resuming_without_settings_after_a_kill_before_the_first_checkpoint(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "run", lambda self: None)
        go(run, "train.lr=0.5", name="mine", variant="enc-dc", preset="tiny")
    before = run.system("mine").read_config()
    train(run, name="mine", assignments=["train.max_steps=2"])
    after = run.system("mine").read_config()
    assert after.variant == "enc-dc" and after.train == {**before.train, "max_steps": 2}


@pytest.fixture
def mine(run):
    """A system with changed settings."""
    go(run, "train.lr=0.5", name="mine", variant="enc-dc", preset="tiny", seed=3)
    return run.system("mine")


def test_resuming_without_settings_takes_those_of_the_system(run, mine, stderr):
    config = mine.read_config()
    for variant in ({}, {"variant": "enc-dc"}):
        stderr()
        train(run, name="mine", **variant)
        assert f"'mine' has the settings of {mine.config}" in stderr()
        assert mine.read_config() == config
    message = "settings of 'mine' have changed"
    for changed in ({"variant": "transformer"}, {"seed": 3}, {"preset": "base"}):
        caught = refused(ConfigError, message, train, run, name="mine", **changed)
        assert "leave out --preset, --config, --seed, --init-from and --set" in caught.hint


def test_force_does_not_take_the_settings_of_the_system(run, mine, stderr):
    stderr()
    go(run, name="mine", force=True)
    assert "has the settings of" not in stderr()
    assert mine.read_config().variant == VARIANT


def test_resuming_with_some_settings_takes_the_others_of_the_system(run, mine, stderr):
    """The preset of the data set does not count."""
    before = mine.read_config()
    train(run, name="mine", assignments=["train.log_every=2", "search.beam=3"])
    after = mine.read_config()  # no update was made, so only the search has changed
    assert (after.train, after.search["beam"]) == (before.train, 3)
    train(run, name="mine", assignments=["train.max_steps=5", "search.beam=2"])
    after = mine.read_config()
    assert "train.max_steps: 4 -> 5" in stderr()
    assert after.train == {**before.train, "max_steps": 5}
    assert after.search == {**before.search, "beam": 2}
    assert (after.model, after.preset) == (before.model, "tiny")


def test_changed_settings_are_recorded_when_an_update_is_made_with_them(run, mine):
    before = mine.read_config()
    for steps in (4, 5):
        assigned = ["train.lr=0.1", "model.dropout=0.3", f"train.max_steps={steps}"]
        allowed = ["train.lr", "model.dropout"]
        train(run, name="mine", assignments=assigned, allow_change=allowed)
        after, changed = mine.read_config(), steps == 5
        new = ({"lr": 0.1, "max_steps": 5}, {"dropout": 0.3}) if changed else ({}, {})
        assert (after.train, after.model) == (before.train | new[0], before.model | new[1])
    train(run, name="mine", assignments=["train.max_steps=6"])  # which keeps the changes
    assert mine.read_config().changed == [
        "model.dropout 0.1 -> 0.3 after update 4",
        "train.lr 0.5 -> 0.1 after update 4",
    ]


def test_change_is_dated_by_the_checkpoint_that_is_resumed(run):
    """The newest checkpoint is damaged, so the training resumes from the one before."""
    settings = "train.lr=0.5", "train.checkpoint_every=2", "train.keep_checkpoints=2"
    go(run, *settings, name="mine")
    mine = run.system("mine")
    damaged = max(mine.checkpoints.glob("step-*")) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    train(run, name="mine", assignments=["train.lr=0.1"], allow_change=["train.lr"])
    assert mine.read_config().changed == ["train.lr 0.5 -> 0.1 after update 2"]
    history = lines_of(run.path / "history.jsonl")
    assert [record["steps"] for record in history] == [[0, 4], [2, 4]]


def test_resuming_refuses_a_changed_or_bad_setting_and_names_it_alone(run, mine):
    for assigned, message in {"max_step=9": "max_step", "max_steps=x": "bad value"}.items():
        refused(ConfigError, message, train, run, name="mine", assignments=[f"train.{assigned}"])
    changed = partial(train, run, name="mine", assignments=["train.lr=0.2"])
    caught = refused(ConfigError, "have changed", changed)
    # The preset of the data set would change all settings.
    assert [line.split()[0] for line in caught.where.splitlines()] == ["key", "train.lr"]


def test_hint_for_a_changed_model_size_is_to_leave_the_change_out(run, mine):
    allowed = partial(train, run, name="mine", assignments=["model.d_ff=33"])
    caught = refused(CheckpointError, "another model", allowed, allow_change=["model.d_ff"])
    assert "leave out --allow-change and the changes" in caught.hint


@pytest.mark.parametrize("key", ["corpus", "preset", "init_from", "train.lr"])
def test_allowed_change_of_what_has_not_changed_is_warned_of(run, mine, stderr, key):
    train(run, name="mine", allow_change=[key])
    assert f"--allow-change {key} has no effect: {key} has not changed" in stderr()


def test_allowed_changes_without_a_training_to_resume_are_warned_of(run, stderr):
    go(run, name="mine", allow_change=["train.lr"])
    assert "--allow-change has no effect: this training begins anew" in stderr()


def test_hardware_is_no_setting_to_allow(run, mine):
    refused(ConfigError, "unknown setting", train, run, name="mine", allow_change=["hardware.name"])


def test_resuming_reads_the_config_of_an_earlier_version(run, stderr):
    go(run, name="mine")
    config = run.system("mine").config
    removed = ("values", "preset", "word_dropout", "replace")
    lines = [line for line in files.text_lines(config) if not line.startswith(removed)]
    files.write_lines(config, ['preset = "gone"', *lines])
    train(run, name="mine")
    assert "already at step 4 of 4" in stderr()
    lines = [line for line in files.text_lines(config) if not line.startswith("values")]
    lines.insert(lines.index("[train]") + 1, "old = 1")
    files.write_lines(config, lines)
    refused(ConfigError, "have changed(?s:.*)train.old", train, run, name="mine")
    train(run, name="mine", allow_change=["train.old"])


def test_settings_added_later_have_the_value_that_old_systems_were_trained_with(run):
    sizes = ["model.d_embedding=8", "model.d_hidden=8", "model.dropout=0.1"]
    later = ("values", "unit_embeddings", "content_bias", "update_bias", "replace", "word_dropout")
    for name, more in (("gru-inv", []), ("caru", ["model.unit_embeddings=false"])):
        fit = partial(trainer([*QUIET, *sizes, *more]), run, variant=name)
        fit("train.max_steps=1")
        config = run.system(name).config
        lines = [line for line in files.text_lines(config) if not line.startswith(later)]
        files.write_lines(config, lines)
        model = loading.build_untrained(run, run.system(name))
        assert model.settings.unit_embeddings is False
        fit("train.max_steps=2")
        assert state_of(run, name)["step"] == 2


# Documents


def test_warning_if_a_document_model_is_trained_without_documents(run, stderr):
    def warnings(name, *assignments, variant="amn"):
        one_step(run, *assignments, variant=variant, preset="tiny", name=name)
        return stderr().replace("\n", " ")

    without = "every sentence of the training set is a document of its own: none has a context"
    assert without in warnings("alone")
    assert without not in warnings("foreign", "model.context=foreign")
    assert without not in warnings("none", variant="transformer")
    mark_documents(run, "train", [0, 3])
    of_dev = warnings("train")
    assert without not in of_dev and "every sentence of 'dev' is a document of its own" in of_dev
    mark_documents(run, "dev", [0, 2])
    assert "document of its own" not in warnings("both")


def test_documents_of_the_development_set_alone_are_refused(run, stderr):
    mark_documents(run, "dev", [0, 2])
    message = "would first meet a context after training: dev has"
    refused(ConfigError, message, partial(one_step, run, variant="amn", preset="tiny"))
    one_step(run, variant="transformer", preset="tiny")
    assert "document of its own" not in stderr()
