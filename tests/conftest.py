"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; on CI its absence is a failure."""
    folder = Path(__file__).resolve().parent.parent.parent / "shared"
    if not (folder / "data").is_dir():
        message = f"no real data at {folder}: this test needs the folder 'shared' beside the checkout"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return folder
