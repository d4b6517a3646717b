"""Faults 1-3, 26, 30: a checkpoint is complete or absent; damaged and foreign checkpoints are named
and never loaded.
"""

import errno
import json
import pickle
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch
from torch import nn

from nmtkit import files, folders
from nmtkit.errors import CheckpointError, EnvironmentProblem
from nmtkit.models import checkpoints, loading
from nmtkit.records import UsedCheckpoint
from nmtkit.run import System
from nmtkit.toml import write_toml
from nmtkit.train import saving
from tests.faults.trainings import Killed, fail, fit
from tests.full_disk import full_disk
from tests.manifests import read_json, write_best
from tests.refused import refused
from tests.train.tiny import last, saved


def write(folder, step=1, value=1.0):
    weights = {"a": torch.full((3, 2), value), "b": torch.arange(step, step + 4)}
    return checkpoints.save(
        folder, step, weights, {"exp_avg/a": torch.zeros(3, 2)}, {"step": step}, {"variant": "x"}
    )


def trained(folder, there=(), every=1, average=1):
    """A system with stored settings and checkpoints at some steps."""
    write_toml(
        folder / "config.toml",
        {"variant": "x", "train": {"checkpoint_every": every}, "search": {"average": average}},
    )
    system = System(folder)
    for step in there:
        write(system.checkpoints, step)
    return system


def steps(paths):
    return [checkpoints.step_of(path) for path in paths]


def test_a_signal_while_weights_are_read_is_no_damage(tmp_path, monkeypatch):
    """torch turns what Python raises while it reads a tensor into an error of its own."""
    path = write(tmp_path / "checkpoints", 12)
    part = torch.UntypedStorage.__getitem__

    def stopped(storage, index):
        if isinstance(index, slice):
            return part(storage, index)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.UntypedStorage, "__getitem__", stopped)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.load_weights(path)


def test_save_and_load(tmp_path):
    path = write(tmp_path / "checkpoints", 12)
    assert path.name == "step-00000012"
    weights, moments, state = checkpoints.load_training(path, dict)
    assert weights["a"].tolist() == [[1.0, 1.0]] * 3
    assert weights["b"].dtype == torch.int64
    assert list(moments) == ["exp_avg/a"]
    assert state == {"step": 12}
    names = {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}
    assert {p.name for p in path.iterdir()} == names
    (path / "mine").touch()
    assert len({p.stat().st_mode for p in path.iterdir()}) == 1  # colleagues may read all of them


def test_what_safetensors_leaves_when_it_is_killed_is_removed(tmp_path, stderr):
    left = tmp_path / ".nmtkit-tmp-step-00000003-1"
    left.mkdir()
    (left / ".tmpAb3dEf").touch()
    checkpoints.clean(tmp_path)
    assert not list(tmp_path.iterdir()) and "half-written" in stderr()


@pytest.mark.parametrize(
    "owner, call",
    [(safetensors.torch, "save_file"), (files, "sha256"), (folders, "publish")],
)
@pytest.mark.parametrize("times", [1, 2])
def test_killed_while_saving_leaves_the_previous_checkpoint(
    owner, call, times, tmp_path, monkeypatch, stderr
):
    system = System(tmp_path)
    write(system.checkpoints, 1)
    once_a_checkpoint = call == "publish" and times == 2
    with monkeypatch.context() as patch:
        fail(patch, owner, call, Killed, {times})
        if once_a_checkpoint:
            write(system.checkpoints, 2)
        # A killed process tidies nothing up.
        patch.setattr(folders.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            write(system.checkpoints, 3)
    assert steps(checkpoints.find_checkpoints(system)) == [1] + [2] * once_a_checkpoint
    stderr()
    checkpoints.clean(system.checkpoints)
    assert ".nmtkit-tmp-step-00000003" in stderr()
    assert not list(system.checkpoints.glob(".*"))


def test_killed_while_replacing_brings_the_old_one_back(tmp_path, monkeypatch):
    system = System(tmp_path)
    write(system.checkpoints, 1, value=1.0)
    with monkeypatch.context() as patch:
        # The manifest's own rename, the old one's, then this: the new one's.
        fail(patch, checkpoints.os, "replace", Killed, {3})
        with pytest.raises(Killed):
            write(system.checkpoints, 1, value=2.0)
    assert checkpoints.candidates(system.checkpoints) == []
    checkpoints.clean(system.checkpoints)
    (path,) = checkpoints.find_checkpoints(system)
    assert checkpoints.load_weights(path)["a"][0, 0] == 1.0
    write(system.checkpoints, 1, value=2.0)
    assert checkpoints.load_weights(path)["a"][0, 0] == 2.0


def damage(path, kind):
    """Cut a file short, flip one of its bits or remove it."""
    content = bytearray(path.read_bytes())
    path.unlink()
    content[-1] ^= 1
    if kind != "missing":
        path.write_bytes(content[: -1 if kind == "truncated" else None])


DAMAGES = pytest.mark.parametrize("kind", ["truncated", "one bit", "missing"])


@pytest.mark.parametrize("victim", ["model.safetensors", "optimizer.safetensors", "state.json"])
@DAMAGES
def test_damage_is_named(victim, kind, tmp_path):
    path = write(tmp_path)
    damage(path / victim, kind)
    assert victim in str(refused(CheckpointError, None, checkpoints.load_training, path, dict))
    assert (path / "manifest.json").exists()  # never deleted silently


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"format": 1, "files": {"a": {"bytes": "x"}}}'],
)
def test_a_damaged_manifest_is_named(text, tmp_path):
    path = write(tmp_path)
    (path / "manifest.json").write_text(text)
    with pytest.raises(
        CheckpointError, match=r"manifest\.json cannot be read \(the file is damaged"
    ):
        checkpoints.load_weights(path)


def test_another_format_is_refused(tmp_path):
    path = write(tmp_path)
    manifest = read_json(path / "manifest.json")
    files.write_json(path / "manifest.json", {**manifest, "format": 99})
    refused(CheckpointError, "format 99", checkpoints.load_weights, path)


class Dangerous:
    """Runs code when unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize("name", ["model.pt", "checkpoint.pth", "pytorch_model.bin"])
def test_a_pickle_is_never_loaded(name, tmp_path):
    foreign = tmp_path / name
    foreign.write_bytes(pickle.dumps(Dangerous()))
    refused(CheckpointError, "pickle", checkpoints.load_weights, foreign)
    refused(
        CheckpointError, "pickle", checkpoints.load_weights, tmp_path
    )  # a folder that holds one
    # Under the right name, and even with the right hash:
    path = write(tmp_path / "checkpoints")
    shutil.copy(foreign, path / "model.safetensors")
    manifest = read_json(path / "manifest.json")
    manifest["files"]["model.safetensors"] = {
        "bytes": foreign.stat().st_size,
        "sha256": files.sha256(foreign),
    }
    files.write_json(path / "manifest.json", manifest)
    refused(CheckpointError, "pickle", checkpoints.load_weights, path)


def test_training_goes_on_from_the_newest_whole_checkpoint(run, stderr):
    fit(run)
    folder = run.system("transformer").checkpoints
    last = folder / "step-00000006" / "model.safetensors"
    expected = last.read_bytes()
    damage(last, "one bit")
    damage(folder / "step-00000004" / "optimizer.safetensors", "truncated")
    stderr()
    fit(run)
    printed = stderr()
    assert "step-00000006: damaged checkpoint: model.safetensors" in printed
    assert "step-00000004: truncated checkpoint: optimizer.safetensors" in printed
    assert "step 2 of 6: continuing" in printed
    assert last.read_bytes() == expected
    assert len(list(folder.glob(".damaged-*"))) == 2


def test_all_damaged_is_an_error(run):
    fit(run)
    for path in run.system("transformer").checkpoints.glob("*/state.json"):
        path.write_text("{}")
    refused(CheckpointError, "every checkpoint", fit, run)
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        loading.load_system(run, run.system("transformer"))


@pytest.mark.parametrize(
    ("name", "damaged", "message"),
    [
        ("state.json", {"window": 9}, "was in window 9 of 1"),
        ("state.json", {"epoch": -1}, "every checkpoint of this system is damaged"),
        ("optimizer.safetensors", b"", "the optimiser's state is incomplete, or of another model"),
    ],
)
def test_a_damaged_state_with_the_right_hash_is_refused(run, name, damaged, message):
    fit(run)
    for folder in run.system("transformer").checkpoints.iterdir():
        path, manifest = folder / name, read_json(folder / "manifest.json")
        content = (
            json.dumps(read_json(path) | damaged).encode()
            if damaged
            else safetensors.torch.save({})
        )
        path.write_bytes(content)
        manifest["files"][name] = {"bytes": len(content), "sha256": files.sha256(path)}
        files.write_json(folder / "manifest.json", manifest)
    refused(CheckpointError, message, fit, run)


def test_another_vocabulary_is_refused(run, monkeypatch):
    fit(run)
    vocabulary = run.prep / "vocab.txt"
    tokens = vocabulary.read_text().split("\n")
    tokens[5], tokens[6] = tokens[6], tokens[5]
    vocabulary.write_text("\n".join(tokens))
    with pytest.raises(CheckpointError, match="another vocabulary: vocab.txt"):
        loading.load_system(run, run.system("transformer"))
    # Where the codes differ too, the vocabulary is named.
    recorded, current = ({"codes.bpe": digest, "vocab.txt": digest} for digest in "12")
    monkeypatch.setattr(loading, "read_manifest", lambda _: SimpleNamespace(vocabulary=recorded))
    monkeypatch.setattr(loading, "vocabulary_hashes", lambda _: current)
    message = "another vocabulary: vocab.txt"
    refused(CheckpointError, message, loading.check_vocabulary, run.path, run)


FULL = OSError(errno.ENOSPC, "No space left on device")  # as the kernel and safetensors say it


def test_disk_full_once_is_a_warning(run, monkeypatch, stderr):
    fail(monkeypatch, safetensors.torch, "save_file", FULL, {1})
    fit(run)
    assert "No space left on device; trying once more" in stderr()
    assert len(saved(run)) == 3


def test_disk_full_twice_stops_with_the_last_state_intact(run, monkeypatch):
    fit(run, "train.max_steps=2")
    with monkeypatch.context() as patch:
        fail(patch, safetensors.torch, "save_file", FULL, {1, 2})
        refused(EnvironmentProblem, "No space left", fit, run)
    folder = run.system("transformer").checkpoints
    assert [p.name for p in folder.iterdir()] == ["step-00000002"]
    fit(run)
    assert last(run).name == "step-00000006"


def test_a_write_that_the_kernel_refuses(tmp_path):
    """A real refusal in the middle of a file: the kernel's limit on file sizes."""
    big = {"a": torch.zeros(1 << 16)}
    write(tmp_path, 1)
    with full_disk(1 << 16):
        refused(EnvironmentProblem, "step-00000002", checkpoints.save, tmp_path, 2, big, {}, {}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_a_full_disk_leaves_a_damaged_checkpoint_its_name(tmp_path, monkeypatch):
    damaged = write(tmp_path, 1) / "model.safetensors"
    damaged.write_bytes(b"damaged")
    fail(monkeypatch, safetensors.torch, "save_file", OSError(errno.ENOSPC, "full"), {1})
    refused(EnvironmentProblem, "full", write, tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_pruning_keeps_the_last_and_the_best(tmp_path):
    system = trained(tmp_path, range(1, 8))
    (system.checkpoints / "step-00000002" / "manifest.json").unlink()  # not ours to remove
    checkpoints.prune(system.checkpoints, ["step-00000006", "step-00000007", "step-00000003"])
    assert steps(checkpoints.candidates(system.checkpoints)) == [2, 3, 6, 7]
    assert not list(system.checkpoints.glob(".*"))
    for step in (100_000_000, 20_000_000):  # in the order of numbers, not of names
        (system.checkpoints / f"step-{step:08d}").mkdir()
    assert steps(checkpoints.candidates(system.checkpoints))[-2:] == [20_000_000, 100_000_000]


def test_a_checkpoint_that_was_half_removed_does_not_come_back(tmp_path, monkeypatch, stderr):
    """A process that is killed while it removes a checkpoint leaves a folder without a manifest,
    which `clean` does not restore.
    """
    system = trained(tmp_path, (1, 2))

    def killed(path, owned):
        (path / "optimizer.safetensors").unlink()
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoints.folders, "remove_owned", killed)
        checkpoints.prune(system.checkpoints, ["step-00000002"])
    checkpoints.clean(system.checkpoints)
    assert "left half-removed" in stderr()
    assert [path.name for path in system.checkpoints.iterdir()] == ["step-00000002"]


def test_a_checkpoint_that_was_set_aside_gives_way_to_the_one_in_its_place(tmp_path):
    system = trained(tmp_path, (1,))
    path = system.checkpoints / "step-00000001"
    shutil.copytree(path, checkpoints.folders.temporary_name(path, "old"))
    checkpoints.clean(system.checkpoints)
    assert list(system.checkpoints.iterdir()) == [path]


def test_a_training_begins_anew_after_one_that_was_killed_beside_the_replaced_one(tmp_path):
    (tmp_path / "a").mkdir()
    system = trained(tmp_path / "a", (1, 2))
    system.replaced.checkpoints.mkdir(parents=True)
    write(system.replaced.checkpoints, 2)
    saving.begin_anew(system)
    assert steps(checkpoints.candidates(system.replaced.checkpoints)) == [1, 2]
    assert not checkpoints.candidates(system.checkpoints)


def test_best_and_what_happens_without_it(tmp_path, stderr, monkeypatch):
    system = trained(tmp_path, (1, 2, 3))
    assert steps(checkpoints.choose(system, 1)) == [3]
    write_best(tmp_path, "step-00000002")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.files, "sha256", hashed := Mock(wraps=files.sha256))
        assert steps(checkpoints.choose(system, 1)) == [2]
    # Only the one that is taken: reading all of a big model's takes minutes.
    assert hashed.call_count == 1
    (system.checkpoints / "step-00000002" / "state.json").write_text("")
    assert steps(checkpoints.choose(system, 1)) == [3]
    assert "step-00000002 is missing or damaged" in stderr()


def test_the_checkpoints_of_a_system(tmp_path, stderr):
    system = trained(tmp_path)
    for average in (1, 2):
        caught = refused(CheckpointError, "checkpoint yet", checkpoints.choose, system, average)
        assert caught.hint == f"first: nmtkit train --system {system.name}"
    trained(tmp_path, (1, 2, 3))
    write_best(tmp_path, "step-00000001")
    assert [steps(checkpoints.choose(system, k)) for k in (1, 2, 3)] == [[1], [2, 3], [1, 2, 3]]
    assert stderr() == ""
    assert steps(checkpoints.choose(system, 5)) == [1, 2, 3]
    assert "has 3 checkpoints to average, not 5" in stderr()
    trained(tmp_path, average=2)
    assert steps(checkpoints.choose(system)) == [2, 3]  # as many as its own settings say
    trained(tmp_path)
    assert steps(checkpoints.choose(system)) == [1]


@pytest.mark.parametrize(
    "there, average, chosen",
    [
        ((10, 20, 30, 34), 3, [10, 20, 30]),  # the last update of a training that is no multiple
        ((10, 13, 20, 27, 30), 3, [10, 20, 30]),  # a new best, a stop
        ((10, 40, 50), 2, [40, 50]),
        ((10, 40, 50), 3, [40, 50]),  # 10 is an old best
        ((13, 17), 2, [13]),  # the best, for none is a multiple
        ((13, 20), 2, [13]),  # and one alone is no mean
    ],
)
def test_the_mean_is_of_checkpoints_that_are_equally_far_apart(
    there, average, chosen, tmp_path, stderr
):
    system = trained(tmp_path, there, every=10, average=average)
    write_best(tmp_path, f"step-{there[0]:08d}")
    assert list(checkpoints.current(system)) == [path.name for path in checkpoints.choose(system)]
    assert steps(checkpoints.choose(system)) == chosen
    assert ("to average, not" in stderr()) is (len(chosen) < average)


def test_what_is_current_follows_the_weights_and_reads_none(tmp_path, stderr, monkeypatch):
    assert checkpoints.current(System(tmp_path / "never trained")) == {}
    assert checkpoints.current(trained(tmp_path)) == {}
    # A run may be passed on without checkpoints.
    assert not checkpoints.have_changed(trained(tmp_path), {"step-00000001": "0"})
    system = trained(tmp_path, (1, 2, 3), average=2)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.files, "sha256", Mock(side_effect=AssertionError))
        before = checkpoints.current(system)
    assert before == checkpoints.digests(checkpoints.choose(system))
    write(system.checkpoints, 2, value=2.0)
    after = checkpoints.current(system)
    assert after.keys() == before.keys() and after["step-00000002"] != before["step-00000002"]
    assert stderr() == ""
    (system.checkpoints / "step-00000003" / "model.safetensors").unlink()
    for _ in range(2):
        assert list(checkpoints.current(system)) == ["step-00000001", "step-00000002"]
    assert stderr().count("step-00000003: truncated checkpoint") == 1


@DAMAGES
def test_a_damaged_checkpoint_is_left_out_of_the_mean(kind, tmp_path, stderr, monkeypatch):
    system = trained(tmp_path)
    weights = [write(system.checkpoints, step) / "model.safetensors" for step in (1, 2, 3, 4)]
    damage(weights[2], kind)
    hashed = Mock(wraps=files.sha256)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.files, "sha256", hashed)
        assert steps(checkpoints.choose(system, 2)) == [2, 4]
    read = [path for (path,), _ in hashed.call_args_list if path != weights[2]]
    assert read == [weights[3], weights[1]]  # the first is not wanted, so not read
    (warning,) = stderr().splitlines()
    assert warning.startswith(f"nmtkit: warning: skipping {weights[2].parent}: ")
    damage(weights[0], kind)
    assert steps(checkpoints.choose(system, 3)) == [2, 4]
    assert "has 2 checkpoints to average, not 3" in stderr()
    damage(weights[1], kind)
    damage(weights[3], kind)
    caught = refused(CheckpointError, "no valid checkpoint", checkpoints.choose, system, 2)
    again = f"nmtkit train --system {tmp_path.name} --force …"
    assert again in caught.hint


@pytest.mark.parametrize("average", [1, 2])
def test_weights_are_hashed_once_on_the_way_to_a_model(average, run, monkeypatch):
    fit(run, "train.max_steps=2", "train.checkpoint_every=1")
    hashed = Mock(wraps=files.sha256)
    monkeypatch.setattr(checkpoints.files, "sha256", hashed)
    system = run.system("transformer")
    loading.load_system(run, system, paths=checkpoints.choose(system, average))
    read = [path.name for (path,), _ in hashed.call_args_list]
    assert read.count("model.safetensors") == average


def test_averaging_in_float64(tmp_path):
    values = [1.0, 6e-8, 6e-8, 6e-8]
    paths = [write(tmp_path, step, value) for step, value in enumerate(values)]
    mean = loading.average(paths)
    assert mean["a"].dtype == torch.float32
    assert (
        mean["a"][0, 0].item() == torch.tensor(sum(values) / 4, dtype=torch.float64).float().item()
    )
    assert mean["b"].tolist() == [3, 4, 5, 6]  # of the last one
    assert (
        loading.average(paths[:1])["a"].tolist() == checkpoints.load_weights(paths[0])["a"].tolist()
    )
    other = checkpoints.save(tmp_path, 9, {"a": torch.zeros(5)}, {}, {}, {})
    refused(CheckpointError, "same model", loading.average, [*paths, other])


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.output = nn.Linear(3, 5, bias=False)
            self.output.weight = self.embedding.weight
            self.register_buffer("count", torch.tensor(3))

    one, two = Tied(), Tied()
    weights = loading.weights_of(one)
    assert sorted(weights) == ["count", "embedding.weight"]
    path = checkpoints.save(tmp_path, 1, weights, {}, {}, {})
    loading.put_weights(two, checkpoints.load_weights(path))
    assert torch.equal(two.output.weight, one.embedding.weight)
    assert two.output.weight is two.embedding.weight
    with pytest.raises(CheckpointError, match="count is missing"):
        loading.put_weights(two, {"embedding.weight": one.embedding.weight})


def test_load_system_best_and_average(run):
    fit(run, "train.validate_every=2")
    system = run.system("transformer")
    model = loading.load_system(run, system)
    assert not model.training
    best = read_json(system.path / "best.json")["checkpoint"]
    stored, own = checkpoints.load_weights(system.checkpoints / best), loading.weights_of(model)
    assert stored.keys() == own.keys()
    assert all(torch.equal(own[name], stored[name]) for name in stored)
    chosen = checkpoints.choose(system, average=2)
    assert [path.name for path in chosen] == ["step-00000004", "step-00000006"]
    averaged = loading.weights_of(loading.load_system(run, system, paths=chosen))
    mean = loading.average(chosen)
    assert all(torch.equal(averaged[name], mean[name]) for name in mean)


def test_pruning_while_training_keeps_the_best_and_what_is_averaged(run, monkeypatch):
    """The last k checkpoints at equal distances are kept, beside an old best, the last update and
    checkpoints saved in between.
    """
    monkeypatch.setattr("nmtkit.train.best.is_better", lambda new, best, by: best is None)
    settings = "train.validate_every=1", "train.keep_checkpoints=2", "search.average=2"
    fit(run, *settings, "train.max_steps=3")  # then it goes on, as after a stop
    fit(run, *settings, "train.max_steps=9")
    system = run.system("transformer")
    assert steps(checkpoints.candidates(system.checkpoints)) == [1, 6, 8, 9]
    assert steps(checkpoints.choose(system)) == [6, 8]
    assert steps(checkpoints.choose(system, 1)) == [1]


def test_pruning_beside_damaged_checkpoints_of_later_steps(run, stderr):
    """Damaged checkpoints that a resumed training skipped do not count among the last k, and stay."""
    often = "train.keep_checkpoints=2", "train.checkpoint_every=1"
    fit(run, "train.keep_checkpoints=3")
    folder = run.system("transformer").checkpoints
    damaged = [folder / f"step-0000000{step}" / "model.safetensors" for step in (4, 6)]
    for path in damaged:
        damage(path, "truncated")
    before = [path.read_bytes() for path in damaged]
    fit(run, *often, "train.max_steps=3")
    assert "step 2 of 3: continuing" in stderr()
    assert steps(checkpoints.candidates(folder)) == [2, 3, 4, 6]
    assert [path.read_bytes() for path in damaged] == before
    fit(run, *often, "train.max_steps=5")
    assert steps(checkpoints.candidates(folder)) == [4, 5, 6]  # 3 went: two whole ones are kept
    assert steps(saved(run)) == [4, 5]
    (aside,) = folder.glob(".damaged-*")  # the old 4, whose name was needed
    assert (aside / "model.safetensors").read_bytes() == before[0]
    assert damaged[1].read_bytes() == before[1]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({("a", 1): {"step-1": "1"}, ("b", None): {"step-2": "2"}}, False),
        ({("a", 1): {"step-1": "1"}, ("b", 1): {"step-2": "2"}}, False),
        ({("a", 1): {"step-1": "1"}}, False),  # those of b cannot be read
        (
            {("a", 1): {"step-1": "1"}, ("b", 1): {"step-3": "3"}, ("b", None): {"step-2": "2"}},
            False,
        ),
        (
            {("a", 1): {"step-1": "1"}, ("b", 1): {"step-3": "3"}, ("b", None): {"step-3": "3"}},
            True,
        ),
    ],
)
def test_an_ensemble_is_out_of_date_with_its_systems(monkeypatch, now, expected):
    """Each system was averaged by its own settings, or all systems by an option of the call."""
    monkeypatch.setattr(checkpoints, "current", lambda name, average: now.get((name, average), {}))
    used = [("a", "step-1", "1"), ("b", "step-2", "2")]
    translation = SimpleNamespace(
        checkpoints=[UsedCheckpoint(*each) for each in used], settings={"average": 1}
    )
    assert checkpoints.outdated(SimpleNamespace(system=str), translation) is expected
