"""One thread, and fixtures for the library that multiplies float32."""

import pytest
import torch

from tests.train.conftest import one_thread  # noqa: F401


@pytest.fixture
def default_path():
    """Float32 products that are not oneDNN's; the precision is restored."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def onednn(default_path):
    """Float32 products of oneDNN."""
    torch.set_float32_matmul_precision("medium")
