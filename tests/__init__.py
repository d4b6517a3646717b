"""The tests of nmtkit."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the repository."""
