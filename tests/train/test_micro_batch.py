"""`train.micro_batch = auto`: the batches of an update are joined and cut into equal parts, as on a
GPU.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.data.batch_lists import padded_positions
from nmtkit.data.store import Store
from nmtkit.settings import TrainSettings
from nmtkit.train import gradients, updates
from nmtkit.train import loss as losses
from nmtkit.train.updates import Updates, equal_parts
from tests.faults.test_training import moments_after_one_step
from tests.train.test_resume import SETTINGS, outcome, short_of_memory, stop
from tests.train.tiny import equal_tensors, make_run, metrics, state_of, trainer

go = trainer(SETTINGS)
LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=100)


@pytest.fixture
def joined(monkeypatch):
    """Join batches on a CPU, too."""
    monkeypatch.setattr(gradients, "joins", lambda settings, device: True)
    monkeypatch.setattr(updates, "PART", 40)


def positions(parts, src, tgt):
    return [padded_positions(src[rows], tgt[rows]) for rows in parts]


@given(LENGTHS, st.integers(1, 8), st.sampled_from([200, 1000, gradients.ALL_FIT]))
def test_each_pair_is_in_exactly_one_part_and_parts_fit_into_memory(lengths, ranks, below):
    src, tgt = np.array(lengths).T
    parts = equal_parts(np.arange(len(src)), src, tgt, ranks, below)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(src)))
    assert all(len(part) for part in parts)
    assert max(positions(parts, src, tgt)) < below


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ranks_have_about_equal_work(ranks):
    """An update of 7 batches of 64 pairs."""
    draw = np.random.default_rng(1)
    src, tgt = draw.integers(5, 60, (2, 7 * 64))
    for below in (gradients.ALL_FIT, 9000):
        parts = equal_parts(np.arange(7 * 64), src, tgt, ranks, below)
        work = np.array(positions(parts, src, tgt))
        assert len(parts) % ranks == 0 and max(work) < below
        of_ranks = [work[rank::ranks].sum() for rank in range(ranks)]
        assert max(of_ranks) < 1.25 * np.mean(of_ranks)


def fastest_number_of_parts(src, tgt, part):
    """The oracle: the number of parts of least time, of all numbers; a part costs as much as `part`
    positions.
    """
    rows, order = np.arange(len(src)), np.lexsort((src, tgt))[::-1]
    work = (src + tgt)[order].cumsum()
    times = []
    for count in range(1, len(src) + 1):
        number = [sum(work[i] >= work[-1] * k / count for k in range(1, count)) for i in rows]
        cut = [order[np.array(number) == k] for k in sorted(set(number))]
        times.append((sum(positions(cut, src, tgt)) + count * part, len(cut)))
    return min(times)[1]


def test_number_of_parts_takes_the_least_time_and_grows_if_memory_is_short(monkeypatch):
    draw = np.random.default_rng(1)
    src, tgt = draw.integers(5, 60, (2, 100))
    rows = np.arange(100)
    for part in (1, 50, 500, 10**6):
        monkeypatch.setattr(updates, "PART", part)
        chosen = equal_parts(rows, src, tgt, 1, gradients.ALL_FIT)
        assert len(chosen) == fastest_number_of_parts(src, tgt, part)
    halves = equal_parts(rows, src, tgt, 1, max(positions(chosen, src, tgt)))
    assert len(chosen) == 1 and len(halves) > 1


def test_joined_batches_have_the_same_gradients(tmp_path, monkeypatch):
    apart = moments_after_one_step(make_run(tmp_path / "apart", dev=0), monkeypatch)
    monkeypatch.setattr(gradients, "joins", lambda settings, device: True)
    joined = moments_after_one_step(make_run(tmp_path / "joined", dev=0), monkeypatch)
    assert all(torch.allclose(apart[key], joined[key], atol=1e-6) for key in apart)
    assert not equal_tensors(apart, joined)


def test_batches_are_joined_on_a_gpu_only():
    for name in ("auto", "batch"):
        settings = TrainSettings(micro_batch=name)
        assert gradients.joins(settings, torch.device("cuda")) == (name == "auto")
        assert not gradients.joins(settings, torch.device("cpu"))


def test_largest_part_is_tried_first_and_padding_is_logged(run, joined, monkeypatch):
    computed, tokens, original = [], [], losses.backward

    def recorded(logits_of, hidden, batch, *rest):
        sides = batch.src, batch.tgt_out
        computed.append(sum(side.numel() for side in sides))
        tokens.append(sum(int(side.count_nonzero()) for side in sides))
        return original(logits_of, hidden, batch, *rest)

    monkeypatch.setattr(losses, "backward", recorded)
    monkeypatch.setattr(updates, "PART", 10**6)  # one part an update
    go(run)
    assert len(computed) == 1 + 12
    assert computed[0] == max(computed[1:3])  # of an epoch of two updates and a rest
    padding = 1 - sum(tokens[1:6]) / sum(computed[1:6])
    assert metrics(run, "train")[0]["padding"] == pytest.approx(padding, abs=1e-5) != 0


@pytest.mark.parametrize("update_size", [64, 150, 180])
def test_probed_updates_of_a_window_are_those_that_the_training_makes(run, update_size):
    settings = TrainSettings(batch_size=64, update_size=update_size)
    updates = Updates(Store(run.prep / "train"), settings)
    probed = list(updates.of_window())
    assert len(probed) == len(updates.batches) // round(update_size / 64)
    for update in probed:
        assert all(map(np.array_equal, update, updates.next()))


def test_resumed_training_has_the_same_parts_if_memory_was_short_at_first(
    tmp_path, joined, monkeypatch
):
    runs = [make_run(tmp_path / name) for name in ("whole", "stopped")]
    with monkeypatch.context() as patch:
        short_of_memory(patch, calls=8)
        go(runs[0])
    assert state_of(runs[0])["split_from"]
    with monkeypatch.context() as patch:
        short_of_memory(patch, calls=8)
        stop(monkeypatch, 1, go, runs[1])
    for _ in range(3):
        stop(monkeypatch, 3, go, runs[1])
    go(runs[1])
    assert outcome(runs[0]) == outcome(runs[1])
