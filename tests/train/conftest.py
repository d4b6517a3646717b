import pytest
import torch

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
