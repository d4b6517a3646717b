"""The options of the stage `export`."""

from __future__ import annotations

from pathlib import Path

from nmtkit.options import GENERAL, Options, option, run_option


class ExportOptions(Options):
    """The options of `nmtkit export`."""

    system: str = option(..., "SYSTEM", argument=True)
    """The system of the run."""
    to: str = option(..., "ctranslate2")
    """The engine that is to run it."""
    out: Path | None = option(None, "DIR")
    """The folder to write (default: export/ctranslate2 in the system's own)."""
    quantization: str = option("float32", "TYPE")
    """How weights are stored: float32, float16, bfloat16, int16, int8, int8_float32, int8_float16,
    int8_bfloat16.
    """
    check: bool = option(False)
    """Translate lines of the first test set with both, compare, and print both speeds."""
    lines: int = option(100, "N", ge=1)
    """With --check: so many lines."""
    at_least: float | None = option(None, "PERCENT", ge=0, le=100)
    """With --check: exit with 1 if fewer are equal (default: 95, with any other TYPE than float32
    50).
    """
    run: Path | None = run_option()
    force: bool = option(False, panel=GENERAL)
    """Write again what is up to date."""
