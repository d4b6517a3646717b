"""One thread, and which library multiplies float32."""

import pytest
import torch

from tests.train.conftest import one_thread  # noqa: F401


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
