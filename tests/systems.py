"""Marks of tests that not every system can run."""

import sys
from pathlib import Path

import pytest

workers_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has forked workers"
)
needs_dev_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="only Linux has this full device"
)
