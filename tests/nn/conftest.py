"""One thread, and fixtures for the library that multiplies float32."""

import pytest
import torch

from nmtkit.nn import private
from tests.train.conftest import one_thread  # noqa: F401


@pytest.fixture
def default_path():
    """Float32 products that are not oneDNN's; the precision is restored."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def packs():
    """Skip a test of packed weights if this torch has none, as on a Mac."""
    if not private.has_packed_products():
        pytest.skip("this torch comes without oneDNN")


@pytest.fixture
def onednn(packs, default_path):
    """Float32 products of oneDNN."""
    torch.set_float32_matmul_precision("medium")
