"""Faults that only this file tests completely; names have their numbers in README.md."""

import contextlib
import ctypes
import errno
import gc
import json
import os
import pty
import re
import shutil
import signal
import sys
import time

import pytest
import safetensors.torch
import torch

from nmtkit import console
from nmtkit.data.store import Store
from nmtkit.errors import CheckpointError, ConfigError, DataError, EnvironmentProblem, Interrupted
from nmtkit.locks import locked
from nmtkit.models import checkpoints, loading
from nmtkit.models.transformer import Transformer
from nmtkit.nn import hardware
from nmtkit.prep.stage import prep
from nmtkit.score.budgets import read_budget
from nmtkit.text.vocabulary import EOS
from nmtkit.train import loop, reporting, saving, validation
from nmtkit.train.stop import Stop
from nmtkit.train.validation import Validation
from tests.faults.trainings import fail, fit, interfere, killed
from tests.manifests import read_json
from tests.refused import refused
from tests.soak.memory import in_use
from tests.train.tiny import last, make_run, metrics, state_of

VALIDATING = "train.validate_every=2", "train.dev_bleu=true"


def test_01_training_killed_in_a_checkpoint_continues_from_the_one_before(run, monkeypatch, stderr):
    # The fourth file is the optimiser of the second checkpoint.
    with monkeypatch.context() as patch, killed(safetensors.torch, "save_file", 4):
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process removes nothing
        fit(run)
    folder = run.system("transformer").checkpoints
    (half,) = folder.glob(".nmtkit-tmp-*")
    assert half.name.startswith(".nmtkit-tmp-step-00000004")
    stderr()
    fit(run)
    output = stderr()
    assert f"removing {half.name}, left half-written" in output
    assert "step 2 of 6: continuing" in output
    assert {p.name for p in folder.iterdir()} == {f"step-0000000{step}" for step in (2, 4, 6)}


class FullDisk:
    """A file on a full disk."""

    def write(self, *text):
        raise OSError(errno.ENOSPC, "No space left on device")

    flush = close = write


def test_02_full_disk_for_metrics_stops_the_training_and_keeps_checkpoints(run, monkeypatch):
    original = reporting.Reporter.progress

    def full(self, state, *rest):
        if state.step == 4:
            self._metrics.close()
            self._metrics = FullDisk()
        original(self, state, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(reporting.Reporter, "progress", full)
        message = "cannot write .*metrics.jsonl: No space left"
        error = refused(EnvironmentProblem, message, fit, run, "train.log_every=1")
    assert "the same command continues" in error.hint
    assert state_of(run)["step"] == 2
    fit(run, "train.log_every=1")
    steps = [line["step"] for line in metrics(run)]
    assert steps == [1, 2, 3, 4, 5, 6, 6]  # the last line is of the validation


def test_02_full_disk_for_the_log_does_not_stop_the_training(run, monkeypatch, stderr):
    original = reporting.Reporter.__init__

    def full(self, *args):
        original(self, *args)
        self._log.close()
        self._log = FullDisk()

    monkeypatch.setattr(reporting.Reporter, "__init__", full)
    fit(run)
    assert "at step 6 of 6" in stderr()
    assert state_of(run)["step"] == 6


@pytest.fixture
def without_nohup():
    """Let SIGHUP end this process, even if the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("without_nohup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
def test_04_signal_saves_the_training_and_ends_with_exit_code_75(run, monkeypatch, stderr, number):
    message = f"stopped by {number.name} after step 3; everything is saved"
    with monkeypatch.context() as patch:
        interfere(patch, loop.Trainer, "update", {3}, lambda: os.kill(os.getpid(), number))
        error = refused(Interrupted, message, fit, run)
    assert error.hint == "the same command continues"
    assert f"{number.name}: finishing this step, then saving" in stderr()
    assert state_of(run)["step"] == 3
    assert json.loads((run.path / "history.jsonl").read_text().splitlines()[-1])["exit"] == 75
    fit(run)
    assert state_of(run)["step"] == 6


@pytest.mark.usefixtures("without_nohup")
def test_04_closed_terminal_saves_and_ends_the_training(run, monkeypatch):
    primary, secondary = pty.openpty()

    def hang_up():
        os.close(primary)
        os.kill(os.getpid(), signal.SIGHUP)

    stream = os.fdopen(secondary, "w")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setenv("TERM", "xterm")
        interfere(patch, loop.Trainer, "update", {3}, hang_up)
        with pytest.raises(Interrupted):
            fit(run)
        with console.progress("translating", 3) as advance:
            advance(1)
    with contextlib.suppress(OSError):  # the buffer still has lines
        stream.close()
    assert state_of(run)["step"] == 3


def test_04_nohup_ignores_sighup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Stop().listening():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, before)


def test_05_allowed_change_of_a_setting_is_applied_and_recorded(run, stderr):
    fit(run, "train.max_steps=3")
    changed = "train.lr=0.02", "train.clip_norm=1"
    error = refused(ConfigError, "have changed", fit, run, *changed, allow_change=["train.lr"])
    keys = [line.split()[0] for line in error.where.splitlines()]
    assert keys == ["key", "train.clip_norm"]
    assert "--allow-change KEY to resume with the new value" in error.hint
    fit(run, *changed, allow_change=["train.lr", "train.clip_norm"])
    assert "train.lr: 0.01 -> 0.02" in stderr()
    assert state_of(run)["step"] == 6
    config = run.system("transformer").read_config()
    assert config.train["lr"] == 0.02
    changes = "train.lr 0.01 -> 0.02 after update 3", "train.clip_norm 0.0 -> 1.0 after update 3"
    assert sorted(config.changed, reverse=True) == list(changes)
    settings = read_budget(run, "transformer").settings
    assert settings["changed by --allow-change"] == "; ".join(config.changed)
    fit(run, *changed)  # the system now has these settings


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_16_memory_does_not_grow_over_epochs(tmp_path, monkeypatch):
    """Measure allocated memory: resident memory would hide a leak in blocks that are kept."""
    run, seen, original = make_run(tmp_path / "run", dev=0), {}, loop.Trainer.update

    def update(self):
        original(self)
        if self.state.epoch not in seen:
            gc.collect()
            seen[self.state.epoch] = in_use()

    monkeypatch.setattr(loop.Trainer, "update", update)
    gc.freeze()  # collect only objects of the training
    try:
        fit(run, "train.max_steps=100", "train.checkpoint_every=60", "train.log_every=1000")
    finally:
        gc.unfreeze()
    epochs = sorted(seen)
    assert len(epochs) > 10
    growth = seen[epochs[-1]] - seen[epochs[len(epochs) // 2]]
    assert growth < 128 << 10, growth  # usually some KiB; a leak of 4 KiB a step makes 200 KiB


def prep_mine(folder, train, dev, **options):
    return prep(
        "mine", train=train, dev=dev, run_dir=folder / "run", preset="tiny", jobs=1, **options
    )


def write(folder, name, source, target):
    folder.mkdir(exist_ok=True)
    paths = folder / f"{name}.en", folder / f"{name}.de"
    for path, text in zip(paths, (source, target), strict=True):
        path.write_bytes(text)
    return paths


def test_17_bytes_that_are_not_utf8_are_shown_with_the_text_around_them(tmp_path):
    source, target = b"a good line\nthe caf\xe9 is closed\n", b"eine Zeile\nnoch eine\n"
    train = write(tmp_path / "in", "train", source, target)
    error = refused(DataError, None, prep_mine, tmp_path, train, train)
    assert str(train[0]) in error.where
    assert "line 2, byte 19 (near 'the caf\ufffd is closed')" in error.where


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"", b"", "is empty"),
        (b"\n\n", b"\n\n", "dropped all 2 training pairs: empty 2"),
        (b"a\n", b"b\n", "no words"),
        (b"a dog\n", b"", "is empty"),
    ],
    ids=["empty", "blank", "single letters", "one side"],
)
def test_24_too_little_text_is_refused_before_prep_writes(tmp_path, source, target, message):
    train = write(tmp_path / "in", "train", source, target)
    dev = write(tmp_path / "in", "dev", b"a dog\n", b"ein Hund\n")
    assert refused(DataError, message, prep_mine, tmp_path, train, dev).hint
    assert not (tmp_path / "run").exists()


def test_24_text_of_single_letters_can_be_prepared_as_the_hint_says(tmp_path):
    train = write(tmp_path / "in", "train", b"a\n", b"b\n")
    hint = refused(DataError, "no words", prep_mine, tmp_path, train, train).hint
    assert "--set prep.subwords=none" in hint
    prep_mine(tmp_path, train, train, assignments=["prep.subwords=none"])


def test_24_corpus_of_one_pair_can_be_prepared_and_trained_on(tmp_path, stderr):
    train = write(tmp_path / "in", "train", b"banana band bandana\n", b"banane band bandage\n")
    run = prep_mine(tmp_path, train, train, assignments=["prep.merges=5000"])
    output = stderr()
    assert run.manifest().sets[0].lines == 1
    assert "of 5,000 merges" in output and "has no more" in output
    fit(run, "train.max_steps=2")
    assert state_of(run)["step"] == 2


@pytest.mark.parametrize("name", ["codes.bpe", "truecase.en"])
def test_26_codes_or_casing_other_than_in_training_are_refused(run, name):
    """fairseq#592: 25.7 and 22.8 BLEU by a wrong path, with the right vocabulary."""
    path = run.prep / name
    path.write_text("#version: 0.2\na b</w>\n")
    fit(run, "train.max_steps=2")
    system = run.system("transformer")
    loading.load_system(run, system)
    path.write_text("#version: 0.2\na c</w>\n")
    message = f"cut into tokens otherwise: {name} differs"
    refused(CheckpointError, message, loading.load_system, run, system)
    refused(CheckpointError, f"{name} differs", fit, run, "train.max_steps=4")
    path.unlink()
    refused(CheckpointError, f"{name} differs", loading.load_system, run, system)


def test_26_checkpoint_without_a_record_of_codes_is_loaded(run):
    fit(run, "train.max_steps=2")
    (run.prep / "codes.bpe").write_text("#version: 0.2\na b</w>\n")
    path = last(run)
    assert set(checkpoints.read_manifest(path).vocabulary) == {"vocab.txt"}
    loading.load_system(run, run.system("transformer"))


def without_sleep(monkeypatch):
    """Skip the pauses of saving; return the list that gets their seconds."""
    pauses, original = [], time.sleep

    def sleep(seconds):
        pauses.append(seconds) if seconds in saving.PAUSES else original(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    return pauses


def test_29_training_waits_for_the_disk_to_save_a_checkpoint(run, monkeypatch, stderr):
    pauses = without_sleep(monkeypatch)
    text = f"Error while serializing: I/O error: Stale file handle (os error {errno.ESTALE})"
    error = safetensors.SafetensorError(text)
    calls = fail(monkeypatch, safetensors.torch, "save_file", error, {1, 2, 3})
    fit(run)
    assert pauses == list(saving.PAUSES[:3])
    assert calls[0] == 3 + 2 * 3
    assert "Stale file handle; trying once more in 4 s" in stderr()
    assert state_of(run)["step"] == 6


def test_29_training_waits_for_the_disk_to_write_system_json(run, monkeypatch):
    pauses, error = without_sleep(monkeypatch), OSError(errno.EIO, "Input/output error")
    fail(monkeypatch, saving, "note_trained", error, {1, 2})
    fit(run)
    assert pauses == list(saving.PAUSES[:2]) and state_of(run)["step"] == 6


def test_29_training_ends_when_its_folder_is_gone_for_a_minute(run, monkeypatch):
    pauses, system = without_sleep(monkeypatch), run.system("transformer")
    message = "cannot write checkpoint step-00000004: No such file"
    with monkeypatch.context() as patch:
        interfere(patch, checkpoints, "save", {2}, lambda: system.path.rename(run.path / "gone"))
        refused(EnvironmentProblem, message, fit, run)
    assert sum(pauses) == 60
    assert not system.path.exists()  # no new folder that looks like a system
    (run.path / "gone").rename(system.path)
    fit(run)
    assert state_of(run)["step"] == 6


@pytest.mark.parametrize(("longer", "limit"), [(1, 1.5), (4, 4.8)])
def test_32_decoding_the_development_set_is_limited_in_length_and_sentences(
    longer, limit, run, monkeypatch, stderr
):
    """A model that never writes </s> stops at the limit, which is higher for longer targets."""
    lengths, search, logits = [], validation.search, Transformer.logits

    def counted(models, batch, chosen):
        found = search(models, batch, chosen)
        lengths.extend(
            zip(batch.src_lengths.tolist(), (len(best.ids) for best, *_ in found), strict=True)
        )
        return found

    def endless(self, hidden):
        values = logits(self, hidden)
        return values - 1e4 * (torch.arange(values.size(-1)) == EOS)

    monkeypatch.setattr(validation, "search", counted)
    monkeypatch.setattr(Store, "tgt_lengths", property(lambda store: longer * store.src_lengths))
    monkeypatch.setattr(Transformer, "logits", endless)
    fit(run, *VALIDATING, "train.dev_sentences=4", "train.max_steps=2")
    assert lengths == [(n, int(limit * n + 10)) for n, _ in lengths] and len(lengths) == 4
    assert re.search(r"\(greedy, \d+ s\)", stderr())
    (line,) = metrics(run, "dev")
    assert line["bleu_seconds"] >= 0


def test_33_missing_gpu_numbers_and_malformed_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert hardware.pick_device("cuda:1") == torch.device("cuda", 1)
    refused(EnvironmentProblem, "no GPU 2 here: there are 2", hardware.pick_device, "cuda:2")
    for word in ("cuda:x", "cuda:", "cuda:-1", "cuda1"):
        refused(ConfigError, "unknown device", hardware.pick_device, word)


def test_36_clock_that_is_set_back_changes_no_result(run, tmp_path, monkeypatch):
    other = make_run(tmp_path / "other")
    fit(other, *VALIDATING)
    clock = iter(range(10**9, 0, -3600))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(clock)))
        fit(run, *VALIDATING, "train.max_steps=4")
        fit(run, *VALIDATING)
        with (
            locked(run.system("x").path, "train"),
            pytest.raises(DataError, match="for 0 min"),
            locked(run.system("x").path, "train"),
        ):
            pass
    first, second = (
        [(line["step"], line["kind"], line.get("dev_loss")) for line in metrics(trained)]
        for trained in (run, other)
    )
    assert first == second
    assert state_of(run)["seconds"] >= 0


# 41: numbers that must be right although nothing crashes


def test_41_scores_of_another_development_set_or_signature_do_not_count_for_the_best(
    run, monkeypatch, stderr
):
    results = iter(
        Validation(loss, bleu, signature, 0, 0, [], dev_set)
        for loss, bleu, dev_set, signature in (
            (2.0, 30.0, "one", "nrefs:1"),
            (3.0, 20.0, "two", "nrefs:1"),
            (4.0, 10.0, "two", "nrefs:2"),
            (5.0, None, "two", None),
        )
    )
    monkeypatch.setattr("nmtkit.train.validation.Validator.validate", lambda *_: next(results))
    best = []
    for steps in (2, 4, 6, 8):
        fit(run, *VALIDATING, f"train.max_steps={steps}")
        best.append(read_json(run.system("transformer").path / "best.json")["step"])
    assert best == [2, 4, 6, 6]  # without BLEU, the last validation is compared by its loss
    assert stderr().count("earlier validations no longer count") == 2
    assert state_of(run)["since_best"] == 1


def test_41_best_records_its_development_set_and_signature(run):
    fit(run, *VALIDATING, "train.max_steps=2")
    first = state_of(run)["best"]["dev_set"]
    fit(run, *VALIDATING, "train.max_steps=4", "train.dev_sentences=3")
    second = state_of(run)["best"]["dev_set"]
    assert first and second and first != second
    assert state_of(run)["best"]["signature"].startswith("nrefs:1")
