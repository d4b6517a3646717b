"""The options of the stage `translate`."""

from __future__ import annotations

from pathlib import Path

from nmtkit.options import (
    GENERAL,
    Options,
    device_option,
    jobs_option,
    option,
    preset_option,
    run_option,
    set_names_option,
    set_option,
)

SEARCH = "Search (default: the system's own settings)"
"""A panel of the help."""


class TranslateOptions(Options):
    """The options of `nmtkit translate`."""

    source: str | None = option(None, "-|FILE", argument=True)
    """Text to translate to stdout, - for stdin; without it the run's sets are translated into the
    run.
    """
    systems: list[str] = option([], "NAME", "--system")
    """Only this system of the run. Repeatable; default: all that are trained, for -|FILE the one
    trained last.
    """
    set_names: list[str] = set_names_option("every test set")
    ensemble: bool = option(False)
    """Translate with the systems together: the mean of their probabilities."""
    force_target: Path | None = option(None, "FILE")
    """Search nothing; print the log-probabilities of the tokens of these target lines, as JSON
    lines.
    """
    docs: str | None = option(None, "FILE|blank|marker")
    """Of -|FILE, for systems that read context: where documents start. `blank`: blank lines
    separate them; `marker`: lines <d> start them, and are written as they are; a file: a document's
    id for each line, or the line numbers (from 0) where documents start. Default: every line is a
    document.
    """
    beam: int | None = option(None, "N", panel=SEARCH, ge=1)
    """Hypotheses kept per sentence; 1 = greedy (search.beam)."""
    length_penalty: float | None = option(None, "X", panel=SEARCH, ge=0)
    """Higher favours longer translations, 0 = none (search.length_penalty)."""
    nbest: int | None = option(None, "N", panel=SEARCH, ge=1)
    """Translations per sentence, best first, as JSON lines (search.nbest)."""
    average: int | None = option(None, "K", panel=SEARCH, ge=1)
    """Use the mean of the last K checkpoints; 1 = the best one (search.average)."""
    assignments: list[str] = set_option("search.max_length_b=20", SEARCH)
    preset: str | None = preset_option("none", SEARCH, "The search settings")
    config: Path | None = option(None, "FILE", panel=SEARCH)
    """A TOML file, of which the section search is read."""
    run: Path | None = run_option()
    jobs: int = jobs_option(" on a CPU")
    device: str = device_option()
    force: bool = option(False, panel=GENERAL)
    """Translate sets again that are up to date."""
