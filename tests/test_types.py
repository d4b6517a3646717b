"""The types of nmtkit agree: mypy finds no error."""

import subprocess
import sys
from pathlib import Path


def test_mypy_finds_no_error():
    command = [sys.executable, "-m", "mypy"]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
