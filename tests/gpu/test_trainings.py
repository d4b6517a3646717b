"""Train on the GPU: deterministic mode, resuming, CUDA graphs, two ranks on one GPU."""

import gc

import pytest
import torch
from safetensors.torch import load_file

from nmtkit import files
from nmtkit.data.documents import documents_file
from nmtkit.models.variants import load_variant
from nmtkit.nn import recording
from nmtkit.train import graphs
from nmtkit.train.stage import train
from tests.device import DEVICE, ON_GPU
from tests.train.test_ranks import Together, largest_difference
from tests.train.tiny import TRAIN, make_run

pytestmark = pytest.mark.gpu


def settings_of(variant, *extra):
    """Return `--set` options of six tiny updates in deterministic mode."""
    sizes = load_variant(variant).adapt(
        {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    )
    model = [f"model.{key}={value}" for key, value in sizes.items()]
    steps = ["train.max_steps=6", "train.update_size=200", "train.validate_every=3"]
    steps += ["train.checkpoint_every=3", "train.deterministic=true"]
    return [*TRAIN, *model, "model.dropout=0.1", *steps, *extra]


def trained(run, name, variant, *extra):
    """Train a system and return its weights."""
    train(run, variant=variant, name=name, assignments=settings_of(variant, *extra), device=DEVICE)
    return load_file(run.system(name).checkpoints / "step-00000006" / "model.safetensors")


def with_documents(path):
    """Return a run whose training set has documents, which some variants read."""
    run = make_run(path, pairs=60, dev=6)
    starts = documents_file(run.prep, "train")
    starts.parent.mkdir(exist_ok=True)
    files.write_lines(starts, map(str, range(0, 60, 6)))
    return run


def same_bits(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_stopped_deterministic_training_has_the_bits_of_an_uninterrupted_one(variant, tmp_path):
    run = with_documents(tmp_path)
    whole = trained(run, "whole", variant)
    values = {"variant": variant, "name": "stopped", "device": DEVICE}
    train(run, assignments=settings_of(variant, "train.max_steps=3"), **values)
    assert same_bits(whole, trained(run, "stopped", variant))


@pytest.mark.skipif(not ON_GPU, reason="tests/train/test_graphs.py has a stand-in for a CPU")
def test_replayed_graphs_make_the_updates_of_kernels_to_the_bit(
    variant, tmp_path, monkeypatch, capsys
):
    """With dropout. A function that waits for the GPU cannot be recorded; then kernels run."""
    run, recorded, record = with_documents(tmp_path), [], recording.record

    def noted(compute, pool):
        recorded.append(record(compute, pool))
        return recorded[-1]

    def waiting(compute, pool):
        return record(lambda: compute() * float(compute().sum()), pool)

    monkeypatch.setattr(recording, "record", noted)
    replayed = trained(run, "replayed", variant)
    assert recorded
    assert "no CUDA graphs" not in capsys.readouterr().err
    monkeypatch.setattr(recording, "record", waiting)
    assert same_bits(replayed, trained(run, "waiting", variant))
    assert "no CUDA graphs" in capsys.readouterr().err
    monkeypatch.setattr(graphs, "SHAPES", 0)
    assert same_bits(replayed, trained(run, "kernels", variant))


@pytest.mark.skipif(not ON_GPU, reason="only a GPU records")
def test_earlier_graphs_replay_after_a_failed_recording(tmp_path, monkeypatch):
    run, record, first, events = make_run(tmp_path, pairs=60, dev=6), recording.record, [], []

    def later_ones_wait(compute, pool):
        if first:
            events.append("fails")
            return record(lambda: compute() * float(compute().sum()), pool)
        replay, result = record(compute, pool)
        first.append(result)
        return lambda: (events.append("replay"), replay()), result

    every = trained(run, "every", "caru")
    monkeypatch.setattr(recording, "record", later_ones_wait)
    assert same_bits(every, trained(run, "first", "caru"))
    assert "replay" in events[events.index("fails") :]
    torch.cuda.empty_cache()  # torch refuses this while it believes that a graph is recorded


@pytest.mark.skipif(not ON_GPU, reason="only a GPU records")
def test_garbage_collector_destroys_no_graph_during_a_recording():
    numbers = torch.ones(4, device=DEVICE)
    cycle = [recording.record(lambda: numbers + 1, recording.Pool())]
    cycle.append(cycle)
    del cycle
    before = gc.get_threshold()

    def compute():
        gc.set_threshold(1, 1, 1)
        _ = [[] for _ in range(1000)]
        return numbers + 1

    try:
        replay, result = recording.record(compute, recording.Pool())
    finally:
        gc.set_threshold(*before)
    replay()
    assert result.tolist() == [2.0] * 4


@pytest.mark.skipif(not ON_GPU, reason="tests/train/test_ranks.py has ranks on a CPU")
# Joined batches are cut by the number of ranks, which changes the dropout masks.
@pytest.mark.parametrize("cut", ["train.micro_batch=batch", "model.dropout=0"])
def test_two_ranks_on_one_gpu_make_the_updates_of_one_rank(tmp_path, monkeypatch, cut):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = make_run(tmp_path / "run", pairs=60, dev=6)
    exact = ["model.attn_bias=false", "train.precision=float32", "train.matmul=highest", cut]
    exact += ["train.lr=0.001"]  # Adam moves a weight by up to this rate for rounding alone
    settings = settings_of("transformer", *exact)
    for world in (1, 2):
        argv = ["train", "--run", str(run.path), "--device", DEVICE, "--system", f"of{world}"]
        argv += [part for value in settings for part in ("--set", value)]
        Together(tmp_path / str(world), world, argv).ended(*[0] * world)
    folders = [run.system(f"of{world}").checkpoints / "step-00000006" for world in (1, 2)]
    one, two = (load_file(folder / "model.safetensors") for folder in folders)
    assert largest_difference(one, two) < 1e-5
