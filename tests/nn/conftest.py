"""One thread: these tensors are tiny, and threads that wait for each other on a busy machine cost
far more than they save.

And which library multiplies float32.
"""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def default_path():
    """As on a CPU whose float32 products are not oneDNN's."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def onednn(default_path):
    """As on a CPU whose float32 products are oneDNN's."""
    torch.set_float32_matmul_precision("medium")
