"""Faults 5, 6, 8-10, 12, 13, 29, 32, 33, 36: changed settings or data, numbers that are not
finite, too little memory, failing decoding.
"""

import contextlib
import signal
import subprocess
import sys
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
from nmtkit.settings import TrainSettings
from nmtkit.train import loop, reporting, validation
from nmtkit.train import loss as losses
from nmtkit.train.gradients import Gradients
from nmtkit.train.state import TrainState
from tests.faults import trainings
from tests.faults.trainings import fail, interfere
from tests.manifests import read_json
from tests.processes import python
from tests.refused import refused
from tests.train.tiny import last, make_run, metrics, saved, state_of


def fit(run, *assignments, **more):
    often = "train.checkpoint_every=3", "train.validate_every=3"
    trainings.fit(run, *often, *assignments, **more)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", dev=0)


@pytest.fixture
def trained(tmp_path):
    run = make_run(tmp_path / "run")
    fit(run)
    return run


def weights(run):
    return (last(run) / "model.safetensors").read_bytes()


# 5: resume with changed settings


def test_changed_settings_are_refused_with_a_table(trained):
    config = trained.system("transformer").config.read_text()
    caught = refused(
        ConfigError, None, fit, trained, "train.lr=0.02", "model.d_ff=64", "train.max_steps=9"
    )
    rows = [line.split() for line in caught.where.splitlines()]
    assert rows == [["key", "old", "new"], ["model.d_ff", "32", "64"], ["train.lr", "0.01", "0.02"]]
    assert "--force" in caught.hint
    assert trained.system("transformer").config.read_text() == config


def test_damaged_settings_are_named_and_a_training_anew_needs_none(trained):
    config = trained.system("transformer").config
    written = config.read_text("utf-8")
    config.write_text("variant = ", "utf-8")
    caught = refused(DataError, "the file is damaged", fit, trained)
    assert str(config) in caught.where and "--force" in caught.hint
    fit(trained, force=True)
    assert config.read_text("utf-8") == written


def test_harmless_changes_are_said_and_taken(trained, stderr):
    changes = "train.max_steps=8", "train.log_every=1", "train.keep_checkpoints=1"
    fit(trained, *changes, "search.beam=2")
    said = stderr()
    changes = "max_steps: 6 -> 8", "log_every: 4 -> 1", "keep_checkpoints: 5 -> 1"
    assert all(f"train.{change}" in said for change in changes) and "search.beam: 5 -> 2" in said
    config = trained.system("transformer").read_config()
    assert (config.train["max_steps"], config.search["beam"]) == (8, 2)


def test_a_longer_cosine_is_warned_about(tmp_path, stderr):
    run = make_run(tmp_path / "run")
    fit(run, "train.schedule=cosine")
    fit(run, "train.schedule=cosine", "train.max_steps=8")
    assert "warning: the cosine schedule depends on train.max_steps" in stderr()


# 6: resume after the data changed


def test_a_corpus_prepared_anew_is_refused(trained):
    manifest = trained.manifest().model_dump()
    files.write_json(trained.prep / "manifest.json", {**manifest, "fingerprint": "0" * 64})
    refused(DataError, "another preparation", fit, trained)


@pytest.mark.parametrize(
    "victim", ["train/00000.bin", "train/00000.idx", "vocab.txt", "dev/00000.bin"]
)
def test_a_changed_file_is_named(victim, trained):
    path = trained.prep / victim
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(DataError, f"{victim} has changed", fit, trained)
    path.unlink()
    refused(DataError, f"{victim} is missing", fit, trained)


# 8: a finished run


def test_a_finished_training_says_so(trained, stderr):
    before = weights(trained)
    stderr()
    fit(trained)
    assert "already at step 6 of 6; raise train.max_steps to go on" in stderr()
    assert weights(trained) == before


# 9: two processes on one system


def test_a_held_system_is_refused(trained):
    code = """
import sys, time
from pathlib import Path
from nmtkit.locks import locked
with locked(Path(sys.argv[1]), "train"):
    print(1, flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", code, str(trained.system("transformer").path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"1\n"
        refused(DataError, f"in use by 'train' \\(process {other.pid} on ", fit, trained)
        other.kill()
    fit(trained)  # the lock ended with its holder


# 10: numbers that are not finite


def poison(monkeypatch, updates):
    """Make the gradients of these updates not finite; updates count from 1, without the probe."""
    original, calls = losses.backward, [-1]

    def poisoned(logits_of, hidden, *args):
        calls[0] += 1
        return original(logits_of, hidden * float("nan") if calls[0] in updates else hidden, *args)

    monkeypatch.setattr(losses, "backward", poisoned)


def test_an_update_that_is_not_finite_is_skipped_and_counted(run, monkeypatch, stderr):
    with monkeypatch.context() as patch:
        poison(patch, {4})
        fit(run, "train.max_steps=4")
    state = state_of(run)
    expected = {"step": 4, "skipped": 1, "skipped_in_row": 1}
    assert expected.items() <= state.items() and len(state["norms"]) == 3
    message = "step 4: loss nan, gradient norm nan: update skipped (1 so far)"
    assert message in stderr()
    three, four = map(checkpoints.load_weights, saved(run))
    assert all(torch.equal(three[name], four[name]) for name in three)  # no update between
    fit(run)
    assert state_of(run)["skipped_in_row"] == 0


def test_five_in_a_row_stop_with_everything_needed(run, monkeypatch):
    save = checkpoints.save

    def slow(*args):
        time.sleep(0.5)  # the error comes while the checkpoint of step 6 is still being written
        save(*args)

    monkeypatch.setattr(checkpoints, "save", slow)
    poison(monkeypatch, set(range(4, 100)))
    caught = refused(TrainingDiverged, None, fit, run, "train.max_steps=30")
    assert "5 updates in a row, up to step 8" in caught.message
    assert "step-00000006" in caught.hint  # good weights: no update was made since step 3
    report = read_json(run.system("transformer").path / "diverged.json")
    assert report["step"] == 8
    assert len(report["gradient_norms_before"]) == 3
    assert report["lr"] == 0.01
    assert all(0 <= row < 120 for rows in report["rows"] for row in rows)


def test_the_first_module_that_is_not_finite_is_named(run, monkeypatch):
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: x * float("inf") * 0)
    message = "first not finite: output of encoder.0.feed_forward"
    refused(TrainingDiverged, message, fit, run)


def test_the_last_updates_may_not_lose_the_weights(tmp_path):
    """There is no later update that would notice."""
    run = make_run(tmp_path / "run", dev=6)
    with pytest.raises(TrainingDiverged, match="the dev loss is not finite at step 1; first not"):
        fit(run, "train.max_steps=1", "train.lr=1e30", "train.schedule=constant")
    assert not list(run.system("transformer").checkpoints.glob("step-*"))


def spoil(monkeypatch, step):
    """Make the update of a step so large that every later loss is not finite."""
    original = loop.learning_rate
    monkeypatch.setattr(
        loop, "learning_rate", lambda s, w, at, p: 1e30 if at == step else original(s, w, at, p)
    )


@pytest.mark.parametrize("more", [[], ["train.ema=0.9"]])
def test_the_last_update_may_not_lose_the_weights_without_a_dev_set(run, monkeypatch, more):
    spoil(monkeypatch, 5)
    message = "the loss is not finite after step 5; first not finite: "
    caught = refused(TrainingDiverged, message, fit, run, "train.max_steps=5", *more)
    (left,) = saved(run)
    assert left.name == "step-00000003" and caught.hint.endswith(left.name)
    assert all(torch.isfinite(part).all() for part in checkpoints.load_weights(left).values())


@pytest.mark.parametrize("dev", [0, 6])
def test_a_signal_may_not_lose_the_weights(tmp_path, monkeypatch, dev):
    run = make_run(tmp_path / "run", dev=dev)
    spoil(monkeypatch, 5)
    interfere(
        monkeypatch, losses, "backward", {6}, lambda: signal.raise_signal(signal.SIGTERM)
    )  # the first is the probe
    message = "the loss is not finite after step 5"
    refused(TrainingDiverged, message, fit, run, "train.max_steps=9")
    assert [path.name for path in saved(run)] == ["step-00000003"]


@pytest.mark.parametrize("end", ["train.max_steps=6", "train.max_steps=99"])
def test_updates_before_those_that_were_skipped_are_saved(run, monkeypatch, end):
    """At the end of the training, or of a signal."""
    poison(monkeypatch, {5, 6})
    interfere(
        monkeypatch,
        losses,
        "backward",
        {7} if end.endswith("99") else set(),
        lambda: signal.raise_signal(signal.SIGTERM),
    )
    with contextlib.suppress(Interrupted):
        fit(run, end)
    state = state_of(run)
    assert (state["step"], state["skipped_in_row"]) == (6, 2)
    monkeypatch.undo()
    again = make_run(run.path.parent / "again", dev=0)
    fit(again, "train.max_steps=4")
    assert weights(again) == weights(run)


def test_the_hint_of_a_divergence_names_a_checkpoint_that_is_there(run, monkeypatch):
    poison(monkeypatch, set(range(7, 99)))
    keep = "train.checkpoint_every=1", "train.keep_checkpoints=1"
    caught = refused(TrainingDiverged, "up to step 11", fit, run, "train.max_steps=30", *keep)
    assert caught.hint.endswith(last(run).name)
    assert read_json(run.system("transformer").path / "diverged.json")["last_checkpoint"] == (
        last(run).name
    )


def test_one_in_a_hundred_stops(run, monkeypatch):
    poison(monkeypatch, set(range(0, 400, 3)))
    with pytest.raises(TrainingDiverged, match="10 of 30 updates"):
        fit(run, "train.max_steps=100", "train.checkpoint_every=1000")


# 12, 13: memory


def gradients_of_an_update(run, monkeypatch, memory=None, settings=()):
    """Train one step; return the moments. `memory` is the maximum number of positions that fit."""
    original = losses.backward

    def small(logits_of, hidden, batch, *args):
        if memory and batch.src.numel() + batch.tgt_out.numel() > memory:
            batch.tgt_out.fill_(0)  # what was computed before memory ran out must not count
            original(logits_of, hidden, batch, *args)
            message = "you tried to allocate 8 bytes"
            raise RuntimeError(
                f"[enforce fail] DefaultCPUAllocator: can't allocate memory: {message}"
            )
        return original(logits_of, hidden, batch, *args)

    with monkeypatch.context() as patch:
        patch.setattr(losses, "backward", small)
        fit(run, "model.dropout=0", "train.max_steps=1", "train.update_size=150", *settings)
    return checkpoints.load_training(last(run), dict)[1]


def test_out_of_memory_computes_the_same_update_in_parts(tmp_path, monkeypatch, stderr):
    whole = gradients_of_an_update(make_run(tmp_path / "whole", dev=0), monkeypatch)
    parts = gradients_of_an_update(make_run(tmp_path / "parts", dev=0), monkeypatch, memory=50)
    printed, warning = stderr(), "positions does not fit into memory"
    assert warning in printed and "but other dropout masks" in printed
    log = tmp_path / "parts" / "systems" / "transformer" / "train.log"
    assert warning in log.read_text()
    assert all(torch.allclose(whole[name], parts[name], atol=1e-6) for name in whole)
    assert any(not torch.equal(whole[name], parts[name]) for name in whole)


def test_the_part_that_memory_did_not_hold_is_split_and_no_other(run, monkeypatch):
    """A long pair alone, which fits, beside a batch that does not."""
    store, state = Store(run.prep / "train"), TrainState()
    chosen = settings.build(TrainSettings, {}, "train")
    sizes = {"d_model": 8, "heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1}
    model = build_model("transformer", sizes, vocabulary_sizes(run))
    autocast = {"device_type": "cpu", "enabled": False}
    gradients = Gradients(model, store, chosen, autocast, state)
    long, pair = np.argsort(-store.src_lengths)[:1], np.argsort(store.src_lengths)[:2]

    def positions(rows):
        return padded_positions(*store.lengths(rows))

    assert positions(long) > positions(pair)
    original = losses.backward

    def small(logits_of, hidden, batch, *args):
        if batch.src.size(0) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(logits_of, hidden, batch, *args)

    monkeypatch.setattr(losses, "backward", small)
    gradients.compute([long, pair], 1, 10)
    assert state.split_from == positions(pair)


def test_too_little_memory_for_one_pair_is_said(run, monkeypatch):
    with pytest.raises(EnvironmentProblem, match="out of memory on a single sentence pair of"):
        gradients_of_an_update(run, monkeypatch, memory=3)
    assert not run.system("transformer").config.exists()


def test_other_errors_are_not_taken_for_lack_of_memory(tmp_path, monkeypatch):
    fail(monkeypatch, losses, "backward", RuntimeError("shapes differ"), {1})
    refused(RuntimeError, "shapes differ", fit, make_run(tmp_path / "run", dev=0))


def test_a_pair_above_the_budget_is_trained_on(tmp_path):
    run = make_run(tmp_path / "run", pairs=20, dev=0)
    fit(run, "train.batch_size=2", "train.max_steps=20", "train.log_every=20")
    (line,) = metrics(run)
    assert line["tgt_tokens"] == Store(run.prep / "train").tgt_lengths.sum()
    assert line["padding"] == 0


# 29: a folder that cannot be written


def test_a_system_folder_that_is_a_file_is_an_environment_problem(tmp_path):
    run = make_run(tmp_path / "run")
    (run.path / "systems").write_text("")
    refused(EnvironmentProblem, "cannot write", fit, run)


# 32: development decoding that fails


def test_failing_decoding_is_a_warning_and_the_loss_decides(tmp_path, monkeypatch, stderr):
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
def test_a_gpu_that_is_not_there(run):
    refused(EnvironmentProblem, "no CUDA device", fit, run, device="cuda")


LYING_CLOCK = """
import itertools, json, sys, time
import torch
from nmtkit.nn import hardware
for late in 0, 1:
    calls = itertools.count()
    def clock():  # every second stretch of time seems nine times as long as the one before it, or the other way round
        pair, end = divmod(next(calls), 2)
        return end * (9.0 if pair % 2 == late else 1.0)
    time.process_time = time.perf_counter = time.thread_time = time.monotonic = clock
    found = hardware.choose("cpu")
    assert torch.get_float32_matmul_precision() == found.matmul
    print(json.dumps(found.values()))
"""


def test_no_choice_depends_on_a_clock():
    """The same command computes the same bits, whatever else the machine does meanwhile."""
    first, second = python("-c", LYING_CLOCK, check=True).stdout.splitlines()
    assert first == second and '"matmul"' in first


ZEN3 = "fpu avx2 fma"
ZEN4 = f"{ZEN3} avx512f avx512bw avx512dq avx512vl avx512_bf16"
SAPPHIRE_RAPIDS = f"{ZEN4} amx_bf16 amx_tile"


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
def test_facts_of_the_processor_decide(maker, flags, matmul, precision, monkeypatch):
    info = {
        "vendor_id": maker,
        "model name": "a CPU",
        "Features" if "asimd" in flags else "flags": flags,
    }
    monkeypatch.setattr(hardware, "_cpu_info", lambda key: info.get(key, ""))
    exact = set()
    monkeypatch.setattr(hardware, "_is_float32", lambda path: exact.add(path) or True)
    before = torch.get_float32_matmul_precision()
    try:
        found = hardware.choose("cpu")
        assert (found.matmul, found.precision) == (matmul, precision)
        assert exact == {matmul} - {"highest"}
        assert hardware.choose("cpu", width=64).precision == "float32"
        assert torch.get_float32_matmul_precision() == matmul
        found = hardware.choose("cpu", "float32", matmul="high")
        assert (found.matmul, found.precision) == ("high", "float32")
        assert torch.get_float32_matmul_precision() == "high"
        monkeypatch.setattr(hardware, "_is_float32", lambda path: False)
        assert hardware.choose("cpu").matmul == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_path_that_rounds_the_factors_is_not_float32(monkeypatch):
    is_float32 = hardware._is_float32.__wrapped__  # without the answers that are kept
    assert is_float32("highest")
    product = torch.Tensor.__matmul__

    def rounding(x, w):
        if x.dtype == torch.float32:
            x, w = x.bfloat16().float(), w.bfloat16().float()
        return product(x, w)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert not is_float32("highest")


def test_the_choice_stands_beside_the_settings(run):
    before = torch.get_float32_matmul_precision()
    try:
        # Rounding alone differs, so a training may go on with another.
        for matmul, steps in (("medium", 2), ("highest", 4)):
            fit(run, f"train.matmul={matmul}", f"train.max_steps={steps}")
            config = run.system("transformer").read_config()
            assert config.train["matmul"] == config.hardware["matmul"] == matmul
            assert torch.get_float32_matmul_precision() == matmul
            assert config.train["precision"] == "auto"
            assert config.hardware["precision"] == "float32"
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_differs_on_another_machine_is_named(run, monkeypatch, stderr):
    fit(run, "train.max_steps=2")
    values = hardware.Hardware.values
    then = run.system("transformer").read_config().hardware["matmul"]
    now = "high" if then == "medium" else "medium"
    monkeypatch.setattr(hardware.Hardware, "values", lambda self: values(self) | {"matmul": now})
    fit(run, "train.max_steps=3")
    warning = stderr().replace("\n", " ")
    assert (
        f"hardware or arithmetic has changed since the last start (matmul {then} -> {now})"
        in warning
    )
    assert f"--set train.matmul={then}" in warning
    monkeypatch.setattr(
        hardware.Hardware, "values", lambda self: values(self) | {"matmul": now, "name": "other"}
    )
    fit(run, "train.max_steps=4")
    warning = stderr()
    assert " -> other)" in warning and "--set train.matmul" not in warning


# 36: curves never double


def test_metrics_beyond_the_checkpoint_are_cut(trained):
    path = trained.system("transformer").metrics
    whole = path.read_text()
    path.write_text(
        whole + '{"step": 7, "kind": "train"}\n{"step": 99, "kind": "dev"}\n{"step": 6, "ki'
    )
    fit(trained)
    assert path.read_text() == whole
    reporting.cut_metrics(trained.system("transformer"), 3)
    assert [line["step"] for line in metrics(trained)] == [3]
