"""The options of the stage `report`."""

from __future__ import annotations

from pathlib import Path

from nmtkit.options import GENERAL, Options, option, run_option


class ReportOptions(Options):
    """The options of `nmtkit report`."""

    also: list[Path] = option([], "DIR")
    """Another run to include in the same page. Repeatable."""
    title: str = option("", "TEXT")
    """Title of the page (default: the number of systems and the data)."""
    figure_width: float | None = option(None, "INCHES", ge=1, le=20)
    """Draw every figure of the page as a PDF for a paper, too: report/figures/NAME.pdf, as wide
    as this (a column of an ACL paper: 3.03). Needs matplotlib."""
    run: Path | None = run_option()
    force: bool = option(False, panel=GENERAL)
    """Make the page again, even if it is up to date."""
