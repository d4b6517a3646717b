"""Faults that no other file tests completely, by their number in README.md."""

import contextlib
import ctypes
import errno
import gc
import json
import os
import pty
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
from nmtkit.nn import hardware
from nmtkit.prep.stage import prep
from nmtkit.score.budgets import read_budget
from nmtkit.train import loop, reporting, saving
from nmtkit.train.stop import Stop
from nmtkit.train.validation import Validation
from tests.faults.trainings import Killed, fail, fit, interfere
from tests.manifests import read_json
from tests.refused import refused
from tests.soak.memory import in_use
from tests.train.tiny import last, make_run, metrics, state_of

VALIDATING = "train.validate_every=2", "train.dev_bleu=true"


def test_01_killed_while_a_checkpoint_is_written(run, monkeypatch, stderr):
    with monkeypatch.context() as patch:
        # The optimiser of the second checkpoint.
        fail(patch, safetensors.torch, "save_file", Killed, {4})
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process tidies nothing up
        with pytest.raises(Killed):
            fit(run)
    folder = run.system("transformer").checkpoints
    (half,) = folder.glob(".nmtkit-tmp-*")
    assert half.name.startswith(".nmtkit-tmp-step-00000004")
    stderr()
    fit(run)
    said = stderr()
    assert f"removing {half.name}, left half-written" in said
    assert "step 2 of 6: continuing" in said
    assert {p.name for p in folder.iterdir()} == {f"step-0000000{step}" for step in (2, 4, 6)}


class FullDisk:
    """A file on a full disk."""

    def write(self, *text):
        raise OSError(errno.ENOSPC, "No space left on device")

    flush = close = write


def test_02_a_full_disk_under_the_metrics_stops_with_what_is_saved(run, monkeypatch):
    original = reporting.Reporter.progress

    def full(self, state, *rest):
        if state.step == 4:
            self._metrics.close()
            self._metrics = FullDisk()
        original(self, state, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(reporting.Reporter, "progress", full)
        with pytest.raises(
            EnvironmentProblem, match="cannot write .*metrics.jsonl: No space left"
        ) as caught:
            fit(run, "train.log_every=1")
    assert "the same command continues" in caught.value.hint
    assert state_of(run)["step"] == 2
    fit(run, "train.log_every=1")
    steps = [line["step"] for line in metrics(run)]
    assert steps == [1, 2, 3, 4, 5, 6, 6]  # its last one has a validation too


def test_02_a_log_that_cannot_be_written_ends_nothing(run, monkeypatch, stderr):
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
    """A closed terminal ends this process, also if the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("without_nohup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
def test_04_a_signal_saves_and_ends_with_the_code_for_resumable(run, monkeypatch, stderr, number):
    message = f"stopped by {number.name} after step 3; everything is saved"
    with monkeypatch.context() as patch:
        interfere(patch, loop.Trainer, "update", {3}, lambda: os.kill(os.getpid(), number))
        with pytest.raises(Interrupted, match=message) as caught:
            fit(run)
    assert caught.value.hint == "the same command continues"
    assert f"{number.name}: finishing this step, then saving" in stderr()
    assert state_of(run)["step"] == 3
    assert json.loads((run.path / "history.jsonl").read_text().splitlines()[-1])["exit"] == 75
    fit(run)
    assert state_of(run)["step"] == 6


@pytest.mark.usefixtures("without_nohup")
def test_04_a_terminal_that_is_closed_ends_the_training_with_all_saved(run, monkeypatch):
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
    with contextlib.suppress(OSError):  # it has the rest of its lines
        stream.close()
    assert state_of(run)["step"] == 3


def test_04_nohup_keeps_a_training_going():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Stop().listening():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, before)


def test_05_a_change_that_is_allowed_is_said_and_taken(run, stderr):
    fit(run, "train.max_steps=3")
    changed = "train.lr=0.02", "train.clip_norm=1"
    caught = refused(ConfigError, "have changed", fit, run, *changed, allow_change=["train.lr"])
    keys = [line.split()[0] for line in caught.where.splitlines()]
    assert keys == ["key", "train.clip_norm"]
    assert "--allow-change KEY to resume with the new value" in caught.hint
    fit(run, *changed, allow_change=["train.lr", "train.clip_norm"])
    assert "train.lr: 0.01 -> 0.02" in stderr()
    assert state_of(run)["step"] == 6
    config = run.system("transformer").read_config()
    assert config.train["lr"] == 0.02
    changes = "train.lr 0.01 -> 0.02 after update 3", "train.clip_norm 0.0 -> 1.0 after update 3"
    assert sorted(config.changed, reverse=True) == list(changes)
    settings = read_budget(run, "transformer").settings
    assert settings["changed by --allow-change"] == "; ".join(config.changed)
    fit(run, *changed)  # now they are the settings of the system


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_16_memory_does_not_grow_over_epochs(tmp_path, monkeypatch):
    """Measure what is allocated, not what is resident: the allocator keeps big blocks, which would
    hide a leak.
    """
    run, seen, original = make_run(tmp_path / "run", dev=0), {}, loop.Trainer.update

    def update(self):
        original(self)
        if self.state.epoch not in seen:
            gc.collect()
            seen[self.state.epoch] = in_use()

    monkeypatch.setattr(loop.Trainer, "update", update)
    gc.freeze()  # a collection looks only at what the training makes
    try:
        fit(run, "train.max_steps=100", "train.checkpoint_every=60", "train.log_every=1000")
    finally:
        gc.unfreeze()
    epochs = sorted(seen)
    assert len(epochs) > 10
    growth = seen[epochs[-1]] - seen[epochs[len(epochs) // 2]]
    assert growth < 128 << 10, growth  # some KiB as a rule; a leak of 4 KiB a step makes 200


def write(folder, name, source, target):
    folder.mkdir(exist_ok=True)
    paths = folder / f"{name}.en", folder / f"{name}.de"
    for path, text in zip(paths, (source, target), strict=True):
        path.write_bytes(text)
    return paths


def test_17_the_text_around_a_bad_byte_is_shown(tmp_path):
    train = write(
        tmp_path / "in",
        "train",
        b"a good line\nthe caf\xe9 is closed\n",
        b"eine Zeile\nnoch eine\n",
    )
    with pytest.raises(DataError) as caught:
        prep("mine", train=train, dev=train, run_dir=tmp_path / "run", preset="tiny", jobs=1)
    assert str(train[0]) in caught.value.where
    assert "line 2, byte 19 (near 'the caf\ufffd is closed')" in caught.value.where


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
def test_24_too_little_to_prepare_is_said_before_anything_is_written(
    tmp_path, source, target, message
):
    train, dev = (
        write(tmp_path / "in", "train", source, target),
        write(tmp_path / "in", "dev", b"a dog\n", b"ein Hund\n"),
    )
    with pytest.raises(DataError, match=message) as caught:
        prep("mine", train=train, dev=dev, run_dir=tmp_path / "run", preset="tiny", jobs=1)
    assert caught.value.hint
    assert not (tmp_path / "run").exists()


def test_24_a_corpus_of_one_pair_has_the_merges_it_has_and_can_be_trained_on(tmp_path, stderr):
    train_files = write(
        tmp_path / "in", "train", b"banana band bandana\n", b"banane band bandage\n"
    )
    run = prep(
        "mine",
        train=train_files,
        dev=train_files,
        run_dir=tmp_path / "run",
        preset="tiny",
        jobs=1,
        assignments=["prep.merges=5000"],
    )
    said = stderr()
    learned = run.manifest().model_dump()["sets"][0]
    assert learned["lines"] == 1
    assert "of 5,000 merges" in said and "has no more" in said
    fit(run, "train.max_steps=2")
    assert state_of(run)["step"] == 2


@pytest.mark.parametrize("name", ["codes.bpe", "truecase.en"])
def test_26_text_cut_or_cased_otherwise_than_in_training_is_refused(run, name):
    """fairseq#592: 25.7 and 22.8 BLEU by a wrong path, with the right vocabulary."""
    path = run.prep / name
    path.write_text("#version: 0.2\na b</w>\n")
    fit(run, "train.max_steps=2")
    system = run.system("transformer")
    loading.load_system(run, system)
    path.write_text("#version: 0.2\na c</w>\n")
    with pytest.raises(CheckpointError, match=f"cut into tokens otherwise: {name} differs"):
        loading.load_system(run, system)
    refused(CheckpointError, f"{name} differs", fit, run, "train.max_steps=4")
    path.unlink()
    refused(CheckpointError, f"{name} differs", loading.load_system, run, system)


def test_26_checkpoints_from_before_codes_were_recorded_still_load(run):
    fit(run, "train.max_steps=2")
    (run.prep / "codes.bpe").write_text("#version: 0.2\na b</w>\n")
    path = last(run)
    assert set(checkpoints.read_manifest(path).vocabulary) == {"vocab.txt"}
    loading.load_system(run, run.system("transformer"))


def without_sleep(monkeypatch):
    """Let training not sleep; return the list of the seconds that it would have slept."""
    slept, original = [], time.sleep
    monkeypatch.setattr(
        time,
        "sleep",
        lambda seconds: slept.append(seconds) if seconds in saving.PAUSES else original(seconds),
    )
    return slept


def test_29_a_disk_that_is_away_for_a_while_is_waited_for(run, monkeypatch, stderr):
    slept = without_sleep(monkeypatch)
    text = f"Error while serializing: I/O error: Stale file handle (os error {errno.ESTALE})"
    error = safetensors.SafetensorError(text)
    calls = fail(monkeypatch, safetensors.torch, "save_file", error, {1, 2, 3})
    fit(run)
    assert slept == list(saving.PAUSES[:3])
    assert calls[0] == 3 + 2 * 3
    said = stderr()
    assert "Stale file handle; trying once more in 4 s" in said
    assert state_of(run)["step"] == 6


def test_29_records_beside_a_checkpoint_are_waited_for(run, monkeypatch):
    slept, error = without_sleep(monkeypatch), OSError(errno.EIO, "Input/output error")
    fail(monkeypatch, saving, "note_trained", error, {1, 2})
    fit(run)
    assert slept == list(saving.PAUSES[:2]) and state_of(run)["step"] == 6


def test_29_a_folder_that_has_gone_ends_the_training_after_a_minute(run, monkeypatch):
    slept, system = without_sleep(monkeypatch), run.system("transformer")
    message = "cannot write checkpoint step-00000004: No such file"
    with monkeypatch.context() as patch:
        interfere(patch, checkpoints, "save", {2}, lambda: system.path.rename(run.path / "gone"))
        refused(EnvironmentProblem, message, fit, run)
    assert sum(slept) == 60
    assert not system.path.exists()  # nothing that looks like a system stands in its place
    (run.path / "gone").rename(system.path)
    fit(run)
    assert state_of(run)["step"] == 6


@pytest.mark.parametrize(("longer", "limit"), [(1, 1.5), (4, 4.8)])
def test_32_decoding_the_development_set_is_bounded_and_its_time_is_shown(
    longer, limit, run, monkeypatch, stderr
):
    """An untrained model never ends a sentence: the length and the number of sentences are limited.
    Targets that are much longer than their sources have more room.
    """
    from nmtkit.train import validation

    searched, original = [], validation.search

    def counted(models, batch, chosen):
        found = original(models, batch, chosen)
        searched.extend(
            (n, len(h[0].ids)) for n, h in zip(batch.src_lengths.tolist(), found, strict=True)
        )
        return found

    monkeypatch.setattr(validation, "search", counted)
    monkeypatch.setattr(Store, "tgt_lengths", property(lambda store: longer * store.src_lengths))
    monkeypatch.setattr("nmtkit.models.transformer.Transformer.logits", endless())
    fit(run, *VALIDATING, "train.dev_sentences=4", "train.max_steps=2")
    limits = [int(limit * n + 10) for n, _ in searched]
    assert len(limits) == 4 and [written for _, written in searched] == limits
    assert "(greedy, 0 s)" in stderr()
    (line,) = metrics(run, "dev")
    assert line["bleu_seconds"] >= 0


def endless():
    """Logits under which </s> is never the best."""
    from nmtkit.models.transformer import Transformer

    original = Transformer.logits

    def logits(self, hidden):
        values = original(self, hidden)
        return values - 1e4 * torch.nn.functional.one_hot(torch.tensor(2), values.shape[-1])

    return logits


def test_33_a_gpu_is_named_by_a_number_that_there_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert hardware.pick_device("cuda:1") == torch.device("cuda", 1)
    refused(EnvironmentProblem, "no GPU 2 here: there are 2", hardware.pick_device, "cuda:2")
    for word in ("cuda:x", "cuda:", "cuda:-1", "cuda1"):
        refused(ConfigError, "unknown device", hardware.pick_device, word)


def test_36_a_clock_that_is_set_back_changes_nothing_that_counts(run, tmp_path, monkeypatch):
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
    curves = [
        [(line["step"], line["kind"], line.get("dev_loss")) for line in metrics(one)]
        for one in (run, other)
    ]
    assert curves[0] == curves[1]
    assert state_of(run)["seconds"] >= 0


# 4.1: numbers that must be right although nothing crashes


def validation(loss, bleu, dev_set="one", signature="nrefs:1"):
    return Validation(loss, bleu, signature, 0, 0, [], dev_set)


def test_41_the_best_is_sought_anew_when_another_development_set_is_measured(
    run, monkeypatch, stderr
):
    """With another set, more of its sentences or another signature, earlier scores do not count."""
    values = [
        (2.0, 30.0),
        (3.0, 20.0, "two"),
        (4.0, 10.0, "two", "nrefs:2"),
        (5.0, None, "two", None),
    ]
    results = iter([validation(*one) for one in values])
    monkeypatch.setattr("nmtkit.train.validation.Validator.validate", lambda *_: next(results))
    best = []
    for steps in (2, 4, 6, 8):
        fit(run, *VALIDATING, f"train.max_steps={steps}")
        best.append(read_json(run.system("transformer").path / "best.json")["step"])
    assert best == [2, 4, 6, 6]  # the last one, whose decoding failed, is compared by its loss
    assert stderr().count("earlier validations no longer count") == 2
    assert state_of(run)["since_best"] == 1


def test_41_what_was_measured_is_part_of_the_best(run):
    found = []
    for more in (["train.max_steps=2"], ["train.max_steps=4", "train.dev_sentences=3"]):
        fit(run, *VALIDATING, *more)
        found.append(state_of(run)["best"]["dev_set"])
    assert found[0] and found[1] and found[0] != found[1]
    assert state_of(run)["best"]["signature"].startswith("nrefs:1")
