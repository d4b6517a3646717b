"""The options of the stage `report`."""

from __future__ import annotations

from pathlib import Path

from nmtkit.options import GENERAL, Options, option, run_option


class ReportOptions(Options):
    """The options of `nmtkit report`."""

    also: list[Path] = option([], "DIR")
    """A run whose parts follow in the same page. Repeatable."""
    title: str = option("", "TEXT")
    """The title of the page (default: how many systems on which data)."""
    attention: list[str] = option([], "SYSTEM")
    """Show in the sentence explorer what this system attended to, of each run that has it; computed
    now. Repeatable; default: none.
    """
    sentences: int = option(200, "N", ge=1)
    """With --attention: of so many sentences of a run, those on which its systems differ most."""
    run: Path | None = run_option()
    force: bool = option(False, panel=GENERAL)
    """Make a page again that is up to date."""
