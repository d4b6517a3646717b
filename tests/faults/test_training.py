"""Training with changed settings or data, non-finite numbers, too little memory or other hardware.

Faults 5, 6, 8-10, 12, 13, 29, 32, 33 and 36 of README.md.
"""

import contextlib
import itertools
import math
import shutil
import signal
import time

import numpy as np
import pytest
import torch

from nmtkit import files, settings
from nmtkit.data.batch_lists import padded_positions
from nmtkit.data.store import Store
from nmtkit.errors import (
    ConfigError,
    DataError,
    EnvironmentProblem,
    Interrupted,
    TrainingDiverged,
)
from nmtkit.models import checkpoints
from nmtkit.models.loading import vocabulary_sizes
from nmtkit.models.variants import build_model
from nmtkit.nn import hardware
from nmtkit.nn.sublayer import FeedForward
from nmtkit.run import Run
from nmtkit.settings import TrainSettings
from nmtkit.train import loop, reporting, validation
from nmtkit.train import loss as losses
from nmtkit.train.divergence import check_finite, first_not_finite, write_report
from nmtkit.train.gradients import Gradients
from nmtkit.train.state import TrainState
from tests.faults import trainings
from tests.faults.trainings import fail, interfere
from tests.manifests import read_json
from tests.processes import python
from tests.refused import refused
from tests.test_run import other_process
from tests.train.tiny import last, make_run, metrics, saved, state_of


def fit(run, *assignments, **more):
    often = "train.checkpoint_every=3", "train.validate_every=3"
    trainings.fit(run, *often, *assignments, **more)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", dev=0)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("trained") / "run")
    fit(run)
    return run.path


@pytest.fixture
def trained(trained_once, tmp_path):
    """A copy of a run with a finished training."""
    return Run(shutil.copytree(trained_once, tmp_path / "run"))


def weights(run):
    return (last(run) / "model.safetensors").read_bytes()


# 5: resume with changed settings


def test_changed_settings_are_refused_with_a_table(trained):
    config = trained.system("transformer").config.read_text()
    changes = "train.lr=0.02", "model.d_ff=64", "train.max_steps=9"
    error = refused(ConfigError, None, fit, trained, *changes)
    rows = [line.split() for line in error.where.splitlines()]
    assert rows == [["key", "old", "new"], ["model.d_ff", "32", "64"], ["train.lr", "0.01", "0.02"]]
    assert "--force" in error.hint
    assert trained.system("transformer").config.read_text() == config


def test_damaged_config_is_refused_and_replaced_by_force(trained):
    config = trained.system("transformer").config
    written = config.read_text("utf-8")
    config.write_text("variant = ", "utf-8")
    caught = refused(DataError, "the file is damaged", fit, trained)
    assert str(config) in caught.where and "--force" in caught.hint
    fit(trained, force=True)
    assert config.read_text("utf-8") == written


def test_harmless_changes_are_reported_and_applied(trained, stderr):
    changes = "train.max_steps=8", "train.log_every=1", "train.keep_checkpoints=1"
    fit(trained, *changes, "search.beam=2")
    output = stderr()
    changes = "max_steps: 6 -> 8", "log_every: 4 -> 1", "keep_checkpoints: 5 -> 1"
    assert all(f"train.{change}" in output for change in changes)
    assert "search.beam: 5 -> 2" in output
    config = trained.system("transformer").read_config()
    assert (config.train["max_steps"], config.search["beam"]) == (8, 2)


def test_longer_cosine_schedule_gives_a_warning(tmp_path, stderr):
    run = make_run(tmp_path / "run")
    fit(run, "train.schedule=cosine")
    fit(run, "train.schedule=cosine", "train.max_steps=8")
    assert "warning: the cosine schedule depends on train.max_steps" in stderr()


# 6: resume after the data changed


def test_corpus_of_another_preparation_is_refused(trained):
    manifest = trained.manifest().model_dump()
    files.write_json(trained.prep / "manifest.json", {**manifest, "fingerprint": "0" * 64})
    refused(DataError, "another preparation", fit, trained)


@pytest.mark.parametrize(
    "victim", ["train/00000.bin", "train/00000.idx", "vocab.txt", "dev/00000.bin"]
)
def test_changed_or_missing_file_of_the_corpus_is_named(victim, trained):
    path = trained.prep / victim
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(DataError, f"{victim} has changed", fit, trained)
    path.unlink()
    refused(DataError, f"{victim} is missing", fit, trained)


# 8: a finished run


def test_finished_training_changes_nothing_and_reports_it(trained, stderr):
    before = weights(trained)
    stderr()
    fit(trained)
    assert "already at step 6 of 6; raise train.max_steps to go on" in stderr()
    assert weights(trained) == before


# 9: two processes on one system


def test_system_in_training_is_refused(trained):
    with other_process(trained.system("transformer").path, "train") as holder:
        refused(DataError, f"in use by 'train' \\(process {holder.pid} on ", fit, trained)
    fit(trained)  # the lock ends with its process


# 10: numbers that are not finite


def poison(monkeypatch, updates):
    """Make the gradients of some updates NaN; updates count from 1, without the probe."""
    original, update = losses.backward, itertools.count()

    def poisoned(logits_of, hidden, *args):
        factor = float("nan") if next(update) in updates else 1
        return original(logits_of, hidden * factor, *args)

    monkeypatch.setattr(losses, "backward", poisoned)


def test_non_finite_update_is_skipped_and_counted(run, monkeypatch, stderr):
    with monkeypatch.context() as patch:
        poison(patch, {4})
        fit(run, "train.max_steps=4")
    state = state_of(run)
    (line,) = metrics(run, "train")
    expected = {"step": 4, "skipped": 1, "skipped_in_row": 1, "tokens": line["tgt_tokens"]}
    assert expected.items() <= state.items() and len(state["norms"]) == 3
    message = "step 4: loss nan, gradient norm nan: update skipped (1 so far)"
    assert message in stderr()
    three, four = map(checkpoints.load_weights, saved(run))
    assert all(torch.equal(three[name], four[name]) for name in three)  # no update
    fit(run)
    assert state_of(run)["skipped_in_row"] == 0


def test_five_skipped_updates_in_a_row_stop_the_training(run, monkeypatch):
    save = checkpoints.save

    def slow(*args):
        time.sleep(0.5)  # the error comes before the checkpoint of step 6 is written
        save(*args)

    monkeypatch.setattr(checkpoints, "save", slow)
    poison(monkeypatch, set(range(4, 100)))
    message = "5 updates in a row, up to step 8"  # which is read after step 9
    settings = "train.max_steps=30", "train.log_every=100"
    error = refused(TrainingDiverged, message, fit, run, *settings)
    assert "step-00000006" in error.hint  # its weights are good: step 3 is the last update
    report = read_json(run.system("transformer").path / "diverged.json")
    assert report["step"] == 8
    assert len(report["gradient_norms_before"]) == 3
    assert report["lr"] == 0.01
    assert all(0 <= row < 120 for rows in report["rows"] for row in rows)


def test_first_module_with_non_finite_output_is_named(run, monkeypatch):
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: x * float("inf") * 0)
    message = "first not finite: output of encoder.0.feed_forward"
    refused(TrainingDiverged, message, fit, run)


@pytest.mark.parametrize("cause", ["weight 0.bias", "gradient of 0.weight", "loss"])
def test_weights_then_gradients_are_named_if_every_output_is_finite(cause):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    if cause != "loss":
        model[0].weight.grad[1] = math.inf
    if cause == "weight 0.bias":
        model[0].bias.data[1] = math.nan
    assert first_not_finite(model, lambda: None) == cause


def test_report_of_a_divergence_has_the_rows_of_every_batch(run):
    rows = [np.arange(2), np.arange(2, 5)]
    error = TrainingDiverged("diverged")
    system, state = run.system("transformer"), TrainState(step=3)
    error = write_report(error, system, state, "loss", rows, 0.1)
    assert read_json(system.path / "diverged.json")["rows"] == [[0, 1], [2, 3, 4]]
    assert error.hint.endswith("there is no checkpoint yet")


def test_diverging_last_update_is_noticed_by_the_dev_loss(tmp_path):
    run = make_run(tmp_path / "run", dev=6)
    settings = "train.max_steps=1", "train.lr=1e30", "train.schedule=constant"
    message = "the dev loss is not finite at step 1; first not"
    refused(TrainingDiverged, message, fit, run, *settings)
    assert not list(run.system("transformer").checkpoints.glob("step-*"))


def spoil(monkeypatch, step):
    """Make the update of a step so large that no later loss is finite."""
    original = loop.learning_rate
    monkeypatch.setattr(
        loop, "learning_rate", lambda s, w, at, p: 1e30 if at == step else original(s, w, at, p)
    )


@pytest.mark.parametrize("settings", [[], ["train.ema=0.9"]])
def test_diverging_last_update_without_a_dev_set_is_not_saved(run, monkeypatch, settings):
    spoil(monkeypatch, 5)
    message = "the loss is not finite after step 5; first not finite: "
    error = refused(TrainingDiverged, message, fit, run, "train.max_steps=5", *settings)
    (left,) = saved(run)
    assert left.name == "step-00000003" and error.hint.endswith(left.name)
    assert all(torch.isfinite(part).all() for part in checkpoints.load_weights(left).values())


def raise_sigterm():
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("dev", [0, 6])
def test_signal_after_a_diverging_update_does_not_save_its_weights(tmp_path, monkeypatch, dev):
    run = make_run(tmp_path / "run", dev=dev)
    spoil(monkeypatch, 5)
    interfere(monkeypatch, losses, "backward", {6}, raise_sigterm)  # the first call is the probe
    message = "the loss is not finite after step 5"
    refused(TrainingDiverged, message, fit, run, "train.max_steps=9")
    assert [path.name for path in saved(run)] == ["step-00000003"]


@pytest.mark.parametrize("end", ["last step", "signal"])
def test_updates_before_skipped_ones_are_saved(run, monkeypatch, end):
    poison(monkeypatch, {5, 6})
    if end == "signal":
        interfere(monkeypatch, losses, "backward", {7}, raise_sigterm)
    with contextlib.suppress(Interrupted):
        fit(run, "train.max_steps=99" if end == "signal" else "train.max_steps=6")
    state = state_of(run)
    assert (state["step"], state["skipped_in_row"]) == (6, 2)
    monkeypatch.undo()
    again = make_run(run.path.parent / "again", dev=0)
    fit(again, "train.max_steps=4")
    assert weights(again) == weights(run)


def test_divergence_names_an_existing_checkpoint(run, monkeypatch):
    poison(monkeypatch, set(range(7, 99)))
    keep = "train.checkpoint_every=1", "train.keep_checkpoints=1"
    error = refused(TrainingDiverged, "up to step 11", fit, run, "train.max_steps=30", *keep)
    report = read_json(run.system("transformer").path / "diverged.json")
    assert error.hint.endswith(last(run).name) and report["last_checkpoint"] == last(run).name


def test_too_many_skipped_updates_stop_the_training(run, monkeypatch):
    poison(monkeypatch, set(range(0, 400, 3)))
    settings = "train.max_steps=100", "train.checkpoint_every=1000"
    refused(TrainingDiverged, "10 of 30 updates", fit, run, *settings)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf)])
def test_one_skipped_update_in_a_hundred_is_no_divergence(loss, norm):
    state = TrainState(skipped=9)
    assert not check_finite(state, 1000, loss, norm)
    assert (state.skipped, state.skipped_in_row) == (10, 1)
    with pytest.raises(TrainingDiverged, match="11 of 1000 updates"):
        check_finite(state, 1000, loss, norm)
    assert check_finite(state, 1001, 1.0, 1.0)


# 12, 13: memory


def moments_after_one_step(run, monkeypatch, memory=None, settings=()):
    """Train one step; return the optimiser's moments. `memory`: the largest number of positions."""
    original = losses.backward

    def small(logits_of, hidden, batch, *args):
        if memory and batch.src.numel() + batch.tgt_out.numel() > memory:
            batch.tgt_out.fill_(0)  # gradients from before the error must not count
            original(logits_of, hidden, batch, *args)
            reason = "can't allocate memory: you tried to allocate 8 bytes"
            raise RuntimeError(f"[enforce fail] DefaultCPUAllocator: {reason}")
        return original(logits_of, hidden, batch, *args)

    with monkeypatch.context() as patch:
        patch.setattr(losses, "backward", small)
        fit(run, "model.dropout=0", "train.max_steps=1", "train.update_size=150", *settings)
    return checkpoints.load_training(last(run), dict)[1]


def test_largest_batch_of_the_epoch_is_tried_before_the_first_update(run, monkeypatch):
    sizes, backward = [], losses.backward

    def recorded(logits_of, hidden, batch, *args):
        sizes.append(batch.src.numel() + batch.tgt_out.numel())
        return backward(logits_of, hidden, batch, *args)

    monkeypatch.setattr(losses, "backward", recorded)
    fit(run, "train.max_steps=7")  # an epoch has seven batches
    assert sizes[0] == max(sizes[1:]) > sizes[1]


def test_update_that_does_not_fit_into_memory_is_computed_in_parts(tmp_path, monkeypatch, stderr):
    whole = moments_after_one_step(make_run(tmp_path / "whole", dev=0), monkeypatch)
    parts = moments_after_one_step(make_run(tmp_path / "parts", dev=0), monkeypatch, memory=50)
    output, warning = stderr(), "positions does not fit into memory"
    assert warning in output and "but other dropout masks" in output
    log = tmp_path / "parts" / "systems" / "transformer" / "train.log"
    assert warning in log.read_text()
    assert all(torch.allclose(whole[name], parts[name], atol=1e-6) for name in whole)
    assert any(not torch.equal(whole[name], parts[name]) for name in whole)


def test_only_batches_that_do_not_fit_are_split(run, monkeypatch):
    """One long pair fits, two short pairs do not; only batches of their size are split later."""
    store, state = Store(run.prep / "train"), TrainState()
    sizes = {"d_model": 8, "heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1}
    model = build_model("transformer", sizes, vocabulary_sizes(run))
    autocast = {"device_type": "cpu", "enabled": False}
    gradients = Gradients(model, store, settings.build(TrainSettings, {}, "train"), autocast, state)
    long, pair = np.argsort(-store.src_lengths)[:1], np.argsort(store.src_lengths)[:2]
    sizes = [padded_positions(*store.lengths(rows)) for rows in (long, pair)]
    assert sizes[0] > sizes[1]
    original = losses.backward

    def small(logits_of, hidden, batch, *args):
        if batch.src.size(0) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(logits_of, hidden, batch, *args)

    monkeypatch.setattr(losses, "backward", small)
    gradients.compute([long, pair], 1, 10)
    assert state.split_from == sizes[1]


def test_too_little_memory_for_one_pair_is_an_environment_error(run, monkeypatch):
    message = "out of memory on a single sentence pair of"
    refused(EnvironmentProblem, message, moments_after_one_step, run, monkeypatch, memory=3)
    assert not run.system("transformer").config.exists()


def test_other_runtime_errors_are_not_taken_for_out_of_memory(tmp_path, monkeypatch):
    fail(monkeypatch, losses, "backward", RuntimeError("shapes differ"), {1})
    refused(RuntimeError, "shapes differ", fit, make_run(tmp_path / "run", dev=0))


def test_pair_longer_than_the_batch_is_trained_on(tmp_path):
    run = make_run(tmp_path / "run", pairs=20, dev=0)
    fit(run, "train.batch_size=2", "train.max_steps=20", "train.log_every=20")
    (line,) = metrics(run)
    assert line["tgt_tokens"] == Store(run.prep / "train").tgt_lengths.sum()
    assert line["padding"] == 0


# 29: a folder that cannot be written


def test_file_in_place_of_the_systems_folder_is_an_environment_error(tmp_path):
    run = make_run(tmp_path / "run")
    (run.path / "systems").write_text("")
    refused(EnvironmentProblem, "cannot write", fit, run)


# 32: development decoding that fails


def test_failed_decoding_is_a_warning_and_the_dev_loss_decides(tmp_path, monkeypatch, stderr):
    run = make_run(tmp_path / "run", dev=6)
    fail(monkeypatch, validation, "search", RuntimeError("no beam today"), {1, 2})
    fit(run, "train.dev_bleu=true")
    message = "decoding the development set failed (RuntimeError: no beam today): no BLEU"
    assert message in stderr()
    best = read_json(run.system("transformer").path / "best.json")
    assert best["metric"] == "dev_loss"
    assert best["dev_bleu"] is None


# 33: no such device


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_an_environment_error(run):
    refused(EnvironmentProblem, "no CUDA device", fit, run, device="cuda")


LYING_CLOCK = """
import itertools, json, sys, time
import torch
from nmtkit.nn import hardware
for late in 0, 1:
    calls = itertools.count()
    def clock():  # every second interval seems nine times as long as the others
        pair, end = divmod(next(calls), 2)
        return end * (9.0 if pair % 2 == late else 1.0)
    time.process_time = time.perf_counter = time.thread_time = time.monotonic = clock
    found = hardware.choose("cpu")
    assert torch.get_float32_matmul_precision() == found.matmul
    print(json.dumps(found.values()))
"""


def test_choice_of_arithmetic_does_not_depend_on_timings():
    """The same command computes the same bits, however busy the machine is."""
    first, second = python("-c", LYING_CLOCK, check=True).stdout.splitlines()
    assert first == second and '"matmul"' in first


ZEN3 = "fpu avx2 fma"
ZEN4 = f"{ZEN3} avx512f avx512bw avx512dq avx512vl avx512_bf16"
SAPPHIRE_RAPIDS = f"{ZEN4} amx_bf16 amx_tile"


@pytest.fixture
def matmul_precision():
    """Restore the float32 products of torch at the end."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("matmul_precision")
@pytest.mark.parametrize(
    ("maker", "flags", "matmul", "precision"),
    [
        ("AuthenticAMD", ZEN4, "medium", "bfloat16"),
        ("AuthenticAMD", ZEN4.replace("avx512_bf16", ""), "medium", "float32"),
        ("AuthenticAMD", ZEN3, "highest", "float32"),
        ("AuthenticAMD", SAPPHIRE_RAPIDS, "highest", "bfloat16"),
        ("GenuineIntel", SAPPHIRE_RAPIDS, "highest", "bfloat16"),
        ("GenuineIntel", ZEN4, "highest", "float32"),
        ("", "fp asimd sve bf16", "highest", "bfloat16"),
        ("", "fp asimd", "highest", "float32"),
        ("", "", "highest", "float32"),
    ],
)
def test_processor_decides_the_arithmetic(maker, flags, matmul, precision, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    info = {"vendor_id": maker, "model name": "a CPU"}
    info["Features" if "asimd" in flags else "flags"] = flags
    monkeypatch.setattr(hardware, "_cpu_info", lambda key: info.get(key, ""))
    tested = set()
    monkeypatch.setattr(hardware, "_is_float32", lambda path: tested.add(path) or True)
    found = hardware.choose("cpu")
    assert (found.matmul, found.precision) == (matmul, precision)
    assert tested == {matmul} - {"highest"}
    assert hardware.choose("cpu", width=64).precision == "float32"
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert hardware.choose("cpu").precision == "float32"
    assert torch.get_float32_matmul_precision() == matmul
    monkeypatch.setattr(hardware, "_is_float32", lambda path: False)
    assert hardware.choose("cpu").matmul == "highest"


@pytest.mark.usefixtures("matmul_precision")
@pytest.mark.parametrize("flags", [ZEN3, ZEN4, SAPPHIRE_RAPIDS])
def test_given_arithmetic_is_used_on_every_processor(flags, monkeypatch):
    info = {"vendor_id": "AuthenticAMD", "model name": "a CPU", "flags": flags}
    monkeypatch.setattr(hardware, "_cpu_info", lambda key: info.get(key, ""))
    monkeypatch.setattr(hardware, "_is_float32", lambda path: True)
    found = hardware.choose("cpu", "float32", matmul="high")
    assert (found.matmul, found.precision) == ("high", "float32")
    assert torch.get_float32_matmul_precision() == "high"


def test_products_of_rounded_factors_are_not_float32(monkeypatch):
    is_float32 = hardware._is_float32.__wrapped__  # without the cache
    assert is_float32("highest")
    product = torch.Tensor.__matmul__

    def rounding(x, w):
        if x.dtype == torch.float32:
            x, w = x.bfloat16().float(), w.bfloat16().float()
        return product(x, w)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert not is_float32("highest")


@pytest.mark.usefixtures("matmul_precision")
def test_arithmetic_is_recorded_and_may_change_in_a_resumed_training(run):
    for matmul, steps in (("medium", 2), ("highest", 4)):
        fit(run, f"train.matmul={matmul}", f"train.max_steps={steps}")
        config = run.system("transformer").read_config()
        assert config.train["matmul"] == config.hardware["matmul"] == matmul
        assert torch.get_float32_matmul_precision() == matmul
        assert config.train["precision"] == "auto"
        assert config.hardware["precision"] == "float32"


def test_changed_hardware_gives_a_warning_with_the_settings_that_restore_it(
    run, monkeypatch, stderr
):
    fit(run, "train.max_steps=2")
    values = hardware.Hardware.values
    then = run.system("transformer").read_config().hardware["matmul"]
    now = "high" if then == "medium" else "medium"
    monkeypatch.setattr(hardware.Hardware, "values", lambda self: values(self) | {"matmul": now})
    fit(run, "train.max_steps=3")
    warning = stderr().replace("\n", " ")
    change = f"(matmul {then} -> {now})"
    assert f"hardware or arithmetic has changed since the last start {change}" in warning
    assert f"--set train.matmul={then}" in warning
    other = {"matmul": now, "name": "other"}
    monkeypatch.setattr(hardware.Hardware, "values", lambda self: values(self) | other)
    fit(run, "train.max_steps=4")
    warning = stderr()
    assert " -> other)" in warning and "--set train.matmul" not in warning


# 36: curves never double


def test_metrics_after_the_checkpoint_are_removed_at_a_resume(trained):
    path = trained.system("transformer").metrics
    whole = path.read_text()
    path.write_text(
        whole + '{"step": 7, "kind": "train"}\n{"step": 99, "kind": "dev"}\n{"step": 6, "ki'
    )
    fit(trained)
    assert path.read_text() == whole
    reporting.cut_metrics(trained.system("transformer"), TrainState(3, validated=3))
    assert [line["step"] for line in metrics(trained)] == [3]
