"""Checkpoints are complete or absent; damaged and foreign checkpoints are refused.

Faults 1-3, 26 and 30 of README.md.
"""

import errno
import json
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch
from torch import nn

from nmtkit import files, folders
from nmtkit.errors import CheckpointError, DataError, EnvironmentProblem
from nmtkit.models import checkpoints, loading
from nmtkit.records import UsedCheckpoint
from nmtkit.run import Run, System
from nmtkit.toml import write_toml
from nmtkit.train import saving
from nmtkit.train.init_from import find_source
from tests.faults.trainings import Killed, fail, fit, killed
from tests.full_disk import full_disk
from tests.manifests import read_json, write_best, write_json
from tests.refused import refused
from tests.train.tiny import last, make_run, saved


def write(folder, step=1, value=1.0):
    weights = {"a": torch.full((3, 2), value), "b": torch.arange(step, step + 4)}
    return checkpoints.save(
        folder, step, weights, {"exp_avg/a": torch.zeros(3, 2)}, {"step": step}, {"variant": "x"}
    )


def trained(folder, there=(), every=1, average=1):
    """Write the config of a system and checkpoints at some steps; return the system."""
    write_toml(
        folder / "config.toml",
        {"variant": "x", "train": {"checkpoint_every": every}, "search": {"average": average}},
    )
    system = System(folder)
    for step in there:
        write(system.checkpoints, step)
    return system


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    run, threads = make_run(tmp_path_factory.mktemp("finished") / "run"), torch.get_num_threads()
    torch.set_num_threads(1)  # `one_thread` begins later, and a test compares weights to the bit
    fit(run)
    torch.set_num_threads(threads)
    return run.path


@pytest.fixture
def finished(finished_once, tmp_path):
    """A copy of a run with a finished training of 6 steps and 3 checkpoints."""
    return Run(shutil.copytree(finished_once, tmp_path / "run"))


def steps(paths):
    return [checkpoints.step_of(path) for path in paths]


def test_ctrl_c_while_weights_are_read_is_not_reported_as_damage(tmp_path, monkeypatch):
    """torch turns exceptions while it reads a tensor into an error of its own."""
    path = write(tmp_path / "checkpoints", 12)
    part = torch.UntypedStorage.__getitem__

    def stopped(storage, index):
        if isinstance(index, slice):
            return part(storage, index)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.UntypedStorage, "__getitem__", stopped)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.load_weights(path)


def test_saved_checkpoint_is_loaded_unchanged(tmp_path):
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
    assert len({p.stat().st_mode for p in path.iterdir()}) == 1  # others may read all files


def test_half_written_files_of_safetensors_are_removed(tmp_path, stderr):
    left = tmp_path / ".nmtkit-tmp-step-00000003-1"
    left.mkdir()
    (left / ".tmpAb3dEf").touch()
    checkpoints.clean(tmp_path)
    assert not list(tmp_path.iterdir()) and "half-written" in stderr()


def test_new_beginning_after_another_one_whose_checkpoint_is_still_open(tmp_path):
    """NFS keeps a removed file as .nfs… while a process reads it."""
    system = trained(tmp_path / "a", (1, 2))
    system.replaced.checkpoints.mkdir(parents=True)
    (system.replaced.checkpoints / f".nfs{1:024x}").touch()
    saving.begin_anew(system)
    steps = {path.name for path in checkpoints.candidates(system.replaced.checkpoints)}
    assert steps == {"step-00000001", "step-00000002"}


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_best_checkpoint_is_found_if_a_kill_follows_a_new_beginning(moved, tmp_path, monkeypatch):
    system, replace = trained(tmp_path / "a", (1, 2, 3)), os.replace
    write_best(system.path, "step-00000002")

    def killed_replace(source, target):
        folder = system.replaced.checkpoints
        if Path(target).parent == folder and len(list(folder.iterdir())) == moved:
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", killed_replace)
        saving.begin_anew(system)
    assert find_source(Run(tmp_path), str(system.path)).name == "step-00000002"


@pytest.mark.parametrize(
    ("owner", "call", "number"),
    [
        *((safetensors.torch, "save_file", 1), (safetensors.torch, "save_file", 2)),
        *((files, "sha256", 1), (files, "sha256", 2), (folders, "publish", 1)),
    ],
)
def test_kill_during_save_leaves_the_previous_checkpoint(
    owner, call, number, tmp_path, monkeypatch, stderr
):
    system = System(tmp_path)
    write(system.checkpoints, 1)
    with monkeypatch.context() as patch, killed(owner, call, number):
        # A killed process removes nothing.
        patch.setattr(folders.shutil, "rmtree", lambda *_, **__: None)
        write(system.checkpoints, 3)
    assert steps(checkpoints.find_checkpoints(system)) == [1]
    stderr()
    checkpoints.clean(system.checkpoints)
    assert ".nmtkit-tmp-step-00000003" in stderr()
    assert not list(system.checkpoints.glob(".*"))


def test_kill_during_replacement_restores_the_old_checkpoint(tmp_path):
    system = System(tmp_path)
    write(system.checkpoints, 1, value=1.0)
    # The first rename is of the manifest, the second of the old folder, the third of the new.
    with killed(checkpoints.os, "replace", 3):
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
def test_damaged_or_missing_file_of_a_checkpoint_is_named(victim, kind, tmp_path):
    path = write(tmp_path)
    damage(path / victim, kind)
    assert victim in str(refused(CheckpointError, None, checkpoints.load_training, path, dict))
    assert (path / "manifest.json").exists()  # never deleted silently


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"format": 1, "files": {"a": {"bytes": "x"}}}'],
)
def test_damaged_manifest_of_a_checkpoint_is_named(text, tmp_path):
    path = write(tmp_path)
    (path / "manifest.json").write_text(text)
    message = r"manifest\.json cannot be read \(the file is damaged"
    refused(CheckpointError, message, checkpoints.load_weights, path)


def test_checkpoint_of_another_format_is_refused(tmp_path):
    path = write(tmp_path)
    manifest = read_json(path / "manifest.json")
    files.write_json(path / "manifest.json", {**manifest, "format": 99})
    refused(CheckpointError, "format 99", checkpoints.load_weights, path)


class Dangerous:
    """Runs code when unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize("name", ["model.pt", "checkpoint.pth", "pytorch_model.bin"])
def test_pickle_is_never_loaded(name, tmp_path):
    foreign = tmp_path / name
    foreign.write_bytes(pickle.dumps(Dangerous()))
    refused(CheckpointError, "pickle", checkpoints.load_weights, foreign)
    refused(CheckpointError, "pickle", checkpoints.load_weights, tmp_path)  # its folder
    system = trained(tmp_path / "system")
    system.checkpoints.mkdir()
    shutil.copy(foreign, system.checkpoints)
    refused(CheckpointError, "no checkpoint yet", checkpoints.choose, system)
    # With the name and the hash of weights:
    path = write(tmp_path / "checkpoints")
    replace(path, "model.safetensors", foreign.read_bytes())
    refused(CheckpointError, "pickle", checkpoints.load_weights, path)


def replace(path, name, content):
    """Replace a file of a checkpoint, also in the manifest."""
    (path / name).write_bytes(content)
    manifest = read_json(path / "manifest.json")
    manifest["files"][name] = {"bytes": len(content), "sha256": files.sha256(path / name)}
    files.write_json(path / "manifest.json", manifest)


def test_training_resumes_from_the_newest_valid_checkpoint(finished, stderr):
    folder = finished.system("transformer").checkpoints
    last = folder / "step-00000006" / "model.safetensors"
    expected = last.read_bytes()
    damage(last, "one bit")
    damage(folder / "step-00000004" / "optimizer.safetensors", "truncated")
    fit(finished)
    output = stderr()
    assert "step-00000006: damaged checkpoint: model.safetensors" in output
    assert "step-00000004: truncated checkpoint: optimizer.safetensors" in output
    assert "step 2 of 6: continuing" in output
    assert last.read_bytes() == expected
    assert len(list(folder.glob(".damaged-*"))) == 2


def test_system_whose_checkpoints_are_all_damaged_is_refused(finished):
    system = finished.system("transformer")
    for path in system.checkpoints.glob("*/state.json"):
        path.write_text("{}")
    refused(CheckpointError, "every checkpoint", fit, finished)
    message = "no valid checkpoint of 'transformer'"
    refused(CheckpointError, message, loading.load_system, finished, system)


@pytest.mark.parametrize(
    ("name", "damaged", "message"),
    [
        ("state.json", {"window": 9}, "was in window 9 of 1"),
        ("state.json", {"epoch": -1}, "every checkpoint of this system is damaged"),
        ("optimizer.safetensors", b"", "the optimiser's state is incomplete, or of another model"),
    ],
)
def test_impossible_state_with_the_right_hash_is_refused(finished, name, damaged, message):
    for path in finished.system("transformer").checkpoints.iterdir():
        content = safetensors.torch.save({})
        if damaged:
            content = json.dumps(read_json(path / name) | damaged).encode()
        replace(path, name, content)
    refused(CheckpointError, message, fit, finished)


def test_checkpoint_of_another_vocabulary_is_refused(finished, monkeypatch):
    vocabulary, system = finished.prep / "vocab.txt", finished.system("transformer")
    tokens = vocabulary.read_text().split("\n")
    tokens[5], tokens[6] = tokens[6], tokens[5]
    vocabulary.write_text("\n".join(tokens))
    prepared = read_json(finished.prep / "manifest.json")
    hashes = prepared["files"] | {"vocab.txt": files.sha256(vocabulary)}
    write_json(finished.prep / "manifest.json", prepared | {"files": hashes})
    message = "another vocabulary: vocab.txt differs"
    refused(CheckpointError, message, loading.load_system, finished, system)
    # If the codes differ too, the message still names the vocabulary.
    recorded, current = ({"codes.bpe": digest, "vocab.txt": digest} for digest in "12")
    monkeypatch.setattr(loading, "read_manifest", lambda _: SimpleNamespace(vocabulary=recorded))
    monkeypatch.setattr(loading, "vocabulary_hashes", lambda _: current)
    refused(CheckpointError, message, loading.check_vocabulary, finished.path, finished)


def test_damaged_vocabulary_is_not_taken_for_another_one(finished):
    """To train the system again would lose it, and not help."""
    system, path = finished.system("transformer"), finished.prep / "vocab.txt"
    path.write_bytes(path.read_bytes()[:40])
    for message in ("vocab.txt has changed since it was prepared", "vocab.txt is missing"):
        error = refused(DataError, message, loading.load_system, finished, system)
        assert "prepare" in error.hint and "train" not in error.hint
        path.unlink(missing_ok=True)


def test_lost_settings_of_a_trained_system_are_named(finished):
    system = finished.system("transformer")
    system.config.unlink()
    for call in (system.read_config, lambda: fit(finished)):
        error = refused(DataError, "has checkpoints but no config.toml", call)
        assert error.where == str(system.config)
        assert "bring the file back" in error.hint and "--force" in error.hint


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_is_tried_again_with_a_warning(run, monkeypatch, stderr):
    fail(monkeypatch, safetensors.torch, "save_file", FULL, {1})
    fit(run)
    assert "No space left on device; trying once more" in stderr()
    assert len(saved(run)) == 3


def test_disk_that_stays_full_stops_the_training_and_keeps_checkpoints(run, monkeypatch):
    fit(run, "train.max_steps=2")
    with monkeypatch.context() as patch:
        fail(patch, safetensors.torch, "save_file", FULL, {1, 2})
        refused(EnvironmentProblem, "No space left", fit, run)
    folder = run.system("transformer").checkpoints
    assert [p.name for p in folder.iterdir()] == ["step-00000002"]
    fit(run)
    assert last(run).name == "step-00000006"


def test_write_refused_by_the_kernel_is_an_environment_error(tmp_path):
    """The kernel refuses the write in the middle of a file."""
    big = {"a": torch.zeros(1 << 16)}
    write(tmp_path, 1)
    with full_disk(1 << 16):
        refused(EnvironmentProblem, "step-00000002", checkpoints.save, tmp_path, 2, big, {}, {}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_full_disk_keeps_a_damaged_checkpoint_in_place(tmp_path, monkeypatch):
    damaged = write(tmp_path, 1) / "model.safetensors"
    damaged.write_bytes(b"damaged")
    fail(monkeypatch, safetensors.torch, "save_file", FULL, {1})
    refused(EnvironmentProblem, "No space left", write, tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_pruning_keeps_given_checkpoints_and_folders_without_a_manifest(tmp_path):
    system = trained(tmp_path, range(1, 8))
    (system.checkpoints / "step-00000002" / "manifest.json").unlink()  # not known as nmtkit's
    checkpoints.prune(system.checkpoints, ["step-00000006", "step-00000007", "step-00000003"])
    assert steps(checkpoints.candidates(system.checkpoints)) == [2, 3, 6, 7]
    assert not list(system.checkpoints.glob(".*"))


def test_checkpoints_are_ordered_by_number_not_by_name(tmp_path):
    for step in (100_000_000, 20_000_000):
        (tmp_path / f"step-{step:08d}").mkdir()
    assert steps(checkpoints.candidates(tmp_path)) == [20_000_000, 100_000_000]


def test_half_removed_checkpoint_is_not_restored(tmp_path, monkeypatch, stderr):
    """A process killed while it removes a checkpoint leaves a folder without a manifest."""
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


def test_old_checkpoint_beside_its_replacement_is_removed(tmp_path):
    system = trained(tmp_path, (1,))
    path = system.checkpoints / "step-00000001"
    shutil.copytree(path, checkpoints.folders.temporary_name(path, "old"))
    checkpoints.clean(system.checkpoints)
    assert list(system.checkpoints.iterdir()) == [path]


def test_forced_training_keeps_old_checkpoints_after_an_earlier_kill(tmp_path):
    (tmp_path / "a").mkdir()
    system = trained(tmp_path / "a", (1, 2))
    system.replaced.checkpoints.mkdir(parents=True)
    write(system.replaced.checkpoints, 2)
    saving.begin_anew(system)
    assert steps(checkpoints.candidates(system.replaced.checkpoints)) == [1, 2]
    assert not checkpoints.candidates(system.checkpoints)


def test_best_checkpoint_is_chosen_else_the_newest_valid_one(tmp_path, stderr, monkeypatch):
    system = trained(tmp_path, (1, 2, 3))
    assert steps(checkpoints.choose(system, 1)) == [3]
    write_best(tmp_path, "step-00000002")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.files, "sha256", hashed := Mock(wraps=files.sha256))
        assert steps(checkpoints.choose(system, 1)) == [2]
    # Only the chosen checkpoint is read: reading all checkpoints of a big model takes minutes.
    assert hashed.call_count == 1
    (system.checkpoints / "step-00000002" / "state.json").write_text("")
    assert steps(checkpoints.choose(system, 1)) == [3]
    message = "step-00000002 is missing or damaged; taking the newest, step-00000003"
    assert message in stderr().replace("\n", " ")


@pytest.mark.parametrize("average", [1, 2])
def test_system_without_checkpoints_is_refused(average, tmp_path):
    system = trained(tmp_path)
    error = refused(CheckpointError, "checkpoint yet", checkpoints.choose, system, average)
    assert error.hint == f"first: nmtkit train --system {system.name}"


def test_last_k_checkpoints_are_averaged_and_the_best_is_used_alone(tmp_path, stderr):
    system = trained(tmp_path, (1, 2, 3))
    write_best(tmp_path, "step-00000001")
    assert [steps(checkpoints.choose(system, k)) for k in (1, 2, 3)] == [[1], [2, 3], [1, 2, 3]]
    assert stderr() == ""
    assert steps(checkpoints.choose(system, 5)) == [1, 2, 3]
    assert "has 3 checkpoints to average, not 5" in stderr()
    assert steps(checkpoints.choose(system)) == [1]
    trained(tmp_path, average=2)
    assert steps(checkpoints.choose(system)) == [2, 3]  # the system's setting


@pytest.mark.parametrize(
    "there, average, chosen",
    [
        ((10, 20, 30, 34), 3, [10, 20, 30]),  # 34 is the last update of the training
        ((10, 13, 20, 27, 30), 3, [10, 20, 30]),  # 13 was the best, 27 the last before a stop
        ((10, 40, 50), 2, [40, 50]),
        ((10, 40, 50), 3, [40, 50]),  # 10 is an old best
        ((13, 17), 2, [13]),  # no multiple of 10: only the best
        ((13, 20), 2, [13]),  # one multiple is no mean
    ],
)
def test_averaged_checkpoints_are_equally_far_apart(there, average, chosen, tmp_path, stderr):
    system = trained(tmp_path, there, every=10, average=average)
    write_best(tmp_path, f"step-{there[0]:08d}")
    assert list(checkpoints.current(system)) == [path.name for path in checkpoints.choose(system)]
    assert steps(checkpoints.choose(system)) == chosen
    assert ("to average, not" in stderr()) is (len(chosen) < average)


def test_system_without_checkpoints_has_no_current_weights_and_no_changes(tmp_path):
    assert checkpoints.current(System(tmp_path / "never trained")) == {}
    assert checkpoints.current(trained(tmp_path)) == {}
    # A run may be passed on without checkpoints.
    assert not checkpoints.have_changed(trained(tmp_path), {"step-00000001": "0"})


def test_current_checkpoints_are_found_without_reading_weights(tmp_path, stderr, monkeypatch):
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
def test_mean_leaves_out_damaged_checkpoints(kind, tmp_path, stderr, monkeypatch):
    system = trained(tmp_path)
    weights = [write(system.checkpoints, step) / "model.safetensors" for step in (1, 2, 3, 4)]
    damage(weights[2], kind)
    monkeypatch.setattr(checkpoints.files, "sha256", hashed := Mock(wraps=files.sha256))
    assert steps(checkpoints.choose(system, 2)) == [2, 4]
    read = [path for (path,), _ in hashed.call_args_list if path != weights[2]]
    assert read == [weights[3], weights[1]]  # the first is not needed, and not read
    (warning,) = stderr().splitlines()
    assert warning.startswith(f"nmtkit: warning: skipping {weights[2].parent}: ")
    damage(weights[0], kind)
    assert steps(checkpoints.choose(system, 3)) == [2, 4]
    assert "has 2 checkpoints to average, not 3" in stderr()
    damage(weights[1], kind)
    damage(weights[3], kind)
    error = refused(CheckpointError, "no valid checkpoint", checkpoints.choose, system, 2)
    assert f"nmtkit train --system {tmp_path.name} --force …" in error.hint


@pytest.mark.parametrize("average", [1, 2])
def test_loading_a_model_hashes_each_checkpoint_once(average, run, monkeypatch):
    fit(run, "train.max_steps=2", "train.checkpoint_every=1")
    hashed = Mock(wraps=files.sha256)
    monkeypatch.setattr(checkpoints.files, "sha256", hashed)
    system = run.system("transformer")
    loading.load_system(run, system, paths=checkpoints.choose(system, average))
    read = [path.name for (path,), _ in hashed.call_args_list]
    assert read.count("model.safetensors") == average


def test_floating_tensors_are_averaged_in_float64_and_others_are_of_the_last(tmp_path):
    values = [1.0, 6e-8, 6e-8, 6e-8]
    paths = [write(tmp_path, step, value) for step, value in enumerate(values)]
    mean = loading.average(paths)
    assert mean["a"].dtype == torch.float32
    expected = torch.tensor(sum(values) / 4, dtype=torch.float64).float()
    assert torch.equal(mean["a"], expected.expand(3, 2))
    assert mean["b"].tolist() == [3, 4, 5, 6]
    first = checkpoints.load_weights(paths[0])
    assert torch.equal(loading.average(paths[:1])["a"], first["a"])


def test_checkpoints_of_different_models_are_not_averaged(tmp_path):
    other = checkpoints.save(tmp_path, 9, {"a": torch.zeros(5)}, {}, {}, {})
    refused(CheckpointError, "same model", loading.average, [write(tmp_path), other])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 5, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("count", torch.tensor(3))


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    saved, loaded = Tied(), Tied()
    weights = loading.weights_of(saved)
    assert sorted(weights) == ["count", "embedding.weight"]
    path = checkpoints.save(tmp_path, 1, weights, {}, {}, {})
    loading.put_weights(loaded, checkpoints.load_weights(path))
    assert torch.equal(loaded.output.weight, saved.embedding.weight)
    assert loaded.output.weight is loaded.embedding.weight
    message = "count is missing"
    refused(
        CheckpointError,
        message,
        loading.put_weights,
        loaded,
        {"embedding.weight": saved.output.weight},
    )


def test_load_system_takes_the_best_checkpoint_or_a_mean(run):
    fit(run, "train.validate_every=2")
    system = run.system("transformer")
    best = read_json(system.path / "best.json")["checkpoint"]
    last_two = checkpoints.choose(system, average=2)
    assert [path.name for path in last_two] == ["step-00000004", "step-00000006"]
    for paths, expected in (
        (None, checkpoints.load_weights(system.checkpoints / best)),
        (last_two, loading.average(last_two)),
    ):
        model = loading.load_system(run, system, paths=paths)
        weights = loading.weights_of(model)
        assert not model.training and weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_pruning_during_training_keeps_the_best_and_checkpoints_to_average(run, monkeypatch):
    """The best, the last update and the last k checkpoints at equal distances are kept."""
    monkeypatch.setattr("nmtkit.train.best.is_better", lambda new, best, by: best is None)
    settings = "train.validate_every=1", "train.keep_checkpoints=2", "search.average=2"
    fit(run, *settings, "train.max_steps=3")  # the second call resumes
    fit(run, *settings, "train.max_steps=9")
    system = run.system("transformer")
    assert steps(checkpoints.candidates(system.checkpoints)) == [1, 6, 8, 9]
    assert steps(checkpoints.choose(system)) == [6, 8]
    assert steps(checkpoints.choose(system, 1)) == [1]


def test_pruning_keeps_damaged_checkpoints_of_later_steps(run, stderr):
    """Damaged checkpoints that a resumed training skipped stay, and do not count as kept."""
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
    assert steps(checkpoints.candidates(folder)) == [4, 5, 6]  # 3 is pruned: 4 and 5 are valid
    assert steps(saved(run)) == [4, 5]
    (aside,) = folder.glob(".damaged-*")  # the old step 4, whose name was needed
    assert (aside / "model.safetensors").read_bytes() == before[0]
    assert damaged[1].read_bytes() == before[1]


NEWER = {("a", 1): {"step-1": "1"}, ("b", 1): {"step-3": "3"}}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({("a", 1): {"step-1": "1"}, ("b", None): {"step-2": "2"}}, False),
        ({("a", 1): {"step-1": "1"}, ("b", 1): {"step-2": "2"}}, False),
        ({("a", 1): {"step-1": "1"}}, False),  # those of b cannot be read
        (NEWER | {("b", None): {"step-2": "2"}}, False),
        (NEWER | {("b", None): {"step-3": "3"}}, True),
    ],
)
def test_ensemble_is_out_of_date_when_a_system_is(monkeypatch, now, expected):
    """Systems were averaged by an option of the call (1) or each by its setting (None)."""
    monkeypatch.setattr(checkpoints, "current", lambda name, average: now.get((name, average), {}))
    used = [("a", "step-1", "1"), ("b", "step-2", "2")]
    translation = SimpleNamespace(
        checkpoints=[UsedCheckpoint(*each) for each in used], settings={"average": 1}
    )
    assert checkpoints.outdated(SimpleNamespace(system=str), translation) is expected
