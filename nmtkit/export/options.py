"""The options of the stage `export`."""

from __future__ import annotations

from pathlib import Path

from nmtkit.options import GENERAL, Options, option, run_option


class ExportOptions(Options):
    """The options of `nmtkit export`."""

    system: str = option(..., "NAME")
    """The system to export."""
    to: str = option(..., "ENGINE")
    """The target engine: ctranslate2 or huggingface."""
    out: Path | None = option(None, "DIR")
    """The folder to write (default: export/ENGINE in the folder of the system)."""
    quantization: str = option("float32", "TYPE")
    """The data type of the stored weights: float32, float16, bfloat16, int16, int8, int8_float32,
    int8_float16, int8_bfloat16; for huggingface float32 only."""
    check: bool = option(False)
    """Translate lines of the first test set with both engines, compare the translations, and print
    both speeds."""
    lines: int = option(100, "N", ge=1)
    """With --check: the number of lines to translate."""
    at_least: float | None = option(None, "PERCENT", ge=0, le=100)
    """With --check: the minimum percentage of equal translations; below it, exit with 1 (default:
    95 for float32, else 50)."""
    run: Path | None = run_option()
    force: bool = option(False, panel=GENERAL)
    """Export again, even if the export is up to date."""
