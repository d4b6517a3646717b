"""The options of the stage `translate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from pydantic import create_model

from nmtkit.options import (
    GENERAL,
    Options,
    device_option,
    flag,
    jobs_option,
    option,
    preset_option,
    run_option,
    set_names_option,
    set_option,
)
from nmtkit.settings import SearchSettings

SEARCH = "Search (default: the system's own settings)"
OTHER = "Other ways to choose a translation"
"""Panels of the help."""


def _of_settings(panel: str, **metavars: str | None) -> dict[str, Any]:
    """Return options that override search settings: setting -> metavar."""
    options = {}
    for key, metavar in metavars.items():
        setting = SearchSettings.model_fields[key]
        text = f"{(setting.description or '').rstrip('.')} (search.{key})."
        limits = {name: n for bound in setting.metadata for name, n in asdict(bound).items()}
        values = option(None, metavar, flag(key), panel=panel, help=text, **limits)
        options[key] = Optional[setting.annotation], values
    return options


SearchOptions: Any = create_model(
    "SearchOptions",
    __base__=Options,
    **_of_settings(SEARCH, beam="N", length_penalty="X", nbest="N", average="K"),
    **_of_settings(OTHER, sample=None, temperature="X", top_k="K", top_p="P", seed="N", mbr="N"),
    **_of_settings(OTHER, diverse_groups="G", diversity="X"),
)


class TranslateOptions(SearchOptions):  # type: ignore[misc]
    """The options of `nmtkit translate`."""

    source: str | None = option(None, "-|FILE", argument=True)
    """Text to translate to stdout (- for stdin). Without it, the sets of the run are translated
    into the run."""
    systems: list[str] = option([], "NAME", "--system")
    """Only this system of the run. Repeatable. Default: all trained systems; for -|FILE the one
    trained last."""
    set_names: list[str] = set_names_option("every test set")
    ensemble: bool = option(False)
    """Translate with all systems as an ensemble: average their probabilities."""
    force_target: Path | None = option(None, "FILE")
    """Score these target lines instead of searching: print their tokens' log-probabilities as JSON
    lines."""
    docs: str | None = option(None, "FILE|blank|marker")
    """Document boundaries of -|FILE, for systems that read context. `blank`: blank lines separate
    documents. `marker`: lines `<d>` start documents and are copied to the output (with --nbest: an
    empty list). FILE has a document id for each line, or the line numbers (from 0) at which
    documents start. Default: each line is its own document. Systems without context only copy the
    lines `<d>`."""
    prefix: Path | None = option(None, "FILE", panel=OTHER)
    """Lines that the translations begin with, one for each source line; a blank line means
    no prefix. The last word of a prefix is a whole word; with SentencePiece it may go on."""
    constraints: Path | None = option(None, "FILE", panel=OTHER)
    """Phrases that the translations must have: one line for each source line, phrases separated by
    tabs; a blank line means no phrases. Not with --sample or --diverse-groups. With
    SentencePiece the last word of a phrase may go on."""
    metric: str | None = option(None, "NAME=COMMAND", panel=OTHER)
    """--mbr: the utility instead of chrF. The shell runs COMMAND, which reads lines of source,
    candidate and other candidate, separated by tabs, and prints one number for each.
    NAME:lower=COMMAND if lower is better."""
    assignments: list[str] = set_option("search.max_length_b=20", SEARCH)
    preset: str | None = preset_option("none", SEARCH, "The search settings")
    config: Path | None = option(None, "FILE", panel=SEARCH, once=True)
    """A TOML file of settings. Only its section search is read."""
    run: Path | None = run_option()
    jobs: int = jobs_option()
    device: str = device_option()
    force: bool = option(False, panel=GENERAL)
    """Translate again, even if the translations are up to date."""
