import pytest
import torch

from nmtkit.nn import cpu
from tests.train.tiny import make_run


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products are slower on two threads, and far slower when other tests run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Take the paths that a GPU takes, on a CPU."""
    monkeypatch.setattr(cpu, "writes_attention_out", lambda q, k: False)
    monkeypatch.setattr(cpu, "row_multiple", lambda device: 1)
    monkeypatch.setattr(cpu, "dropout", lambda x, p: torch.dropout(x, p, True))
