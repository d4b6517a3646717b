"""Seeds of dropout kernels, of which many are drawn at once."""

import pytest
import torch

from nmtkit.nn import recording
from nmtkit.nn.dropout import SEEDS, forget_seeds, new_seed, seed_everything

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_seeds():
    forget_seeds()
    yield
    forget_seeds()


def test_seeds_of_a_micro_batch_do_not_depend_on_earlier_draws():
    """An earlier pass may have ended in the middle, out of memory."""

    def seeds(count):
        seed_everything(1, 2, 3)
        return [new_seed(CPU) for _ in range(count)]

    first, second = seeds(SEEDS + 1), seeds(3)
    assert len({tuple(seed.tolist()) for seed in first}) == SEEDS + 1
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=False))


def test_recorded_graph_shares_no_seeds(monkeypatch):
    """A graph that shares seeds would read freed memory."""
    monkeypatch.setattr(recording, "record", lambda compute, pool: (compute, compute()))
    monkeypatch.setattr(recording.console, "warn", lambda _: None)
    drawn = [new_seed(CPU)]

    def compute():
        drawn.append(new_seed(CPU))
        return drawn[-1]

    recording.try_to_record(compute, recording.Pool(), "")
    drawn.append(new_seed(CPU))
    assert len({seed.untyped_storage().data_ptr() for seed in drawn}) == 3
