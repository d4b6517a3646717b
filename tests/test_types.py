"""mypy over nmtkit: a test, so that it runs beside the others."""

import subprocess
import sys
from pathlib import Path


def test_types_agree():
    command = [sys.executable, "-m", "mypy"]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
