import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products are slower on two threads, and far slower when other tests run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
