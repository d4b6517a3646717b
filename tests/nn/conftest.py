"""One thread: these tensors are tiny, and threads that wait for each other on a busy machine cost far more than they save."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
