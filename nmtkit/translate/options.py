"""The options of the stage `translate`."""

from __future__ import annotations

from pathlib import Path

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

SEARCH = "Search (default: the system's own settings)"
OTHER = "Other ways to choose a translation"
"""Panels of the help."""


class TranslateOptions(Options):
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
    documents. `marker`: lines `<d>` start documents and are copied to the output. FILE has a
    document id for each line, or the line numbers (from 0) at which documents start. Default: each
    line is its own document."""
    beam: int | None = option(None, "N", panel=SEARCH, ge=1)
    """Beam size; 1 = greedy search (search.beam)."""
    length_penalty: float | None = option(None, "X", panel=SEARCH, ge=0)
    """Length penalty: a higher value favours longer translations, 0 = none (search.length_penalty).
    """
    nbest: int | None = option(None, "N", panel=SEARCH, ge=1)
    """N above 1: print the N best translations per sentence, best first, as JSON lines
    (search.nbest)."""
    average: int | None = option(None, "K", panel=SEARCH, ge=1)
    """Average the last K checkpoints; 1 = use the best checkpoint (search.average)."""
    prefix: Path | None = option(None, "FILE", panel=OTHER)
    """Lines that the translations begin with, one for each source line; a blank line means
    no prefix. The last word of a prefix is a whole word; with SentencePiece it may go on."""
    constraints: Path | None = option(None, "FILE", panel=OTHER)
    """Phrases that the translations must have: one line for each source line, phrases separated by
    tabs; a blank line means no phrases. Needs beam search (--beam). With SentencePiece the last
    word of a phrase may go on."""
    sample: bool | None = option(None, None, "--sample", panel=OTHER)
    """Draw translations from the model's distribution instead of searching; --nbest N draws N of
    each line (search.sample)."""
    temperature: float | None = option(None, "X", panel=OTHER)
    """--sample: below 1, probable words are drawn more often; above 1, less often
    (search.temperature)."""
    top_k: int | None = option(None, "K", panel=OTHER, ge=0)
    """--sample: draw only from the K most probable subwords (search.top_k)."""
    top_p: float | None = option(None, "P", panel=OTHER)
    """--sample: draw only from the most probable subwords that together have probability P
    (search.top_p)."""
    seed: int | None = option(None, "N", panel=OTHER, ge=0)
    """--sample: seed of the draws; the same seed draws the same translations (search.seed)."""
    mbr: int | None = option(None, "N", panel=OTHER, ge=0)
    """Choose by minimum Bayes risk with chrF, among N samples with --sample, else among the N best
    of the beam (search.mbr)."""
    metric: str | None = option(None, "NAME=COMMAND", panel=OTHER)
    """--mbr: the utility instead of chrF. The shell runs COMMAND, which reads lines of source,
    candidate and other candidate, separated by tabs, and prints one number for each.
    NAME:lower=COMMAND if lower is better."""
    diverse_groups: int | None = option(None, "G", panel=OTHER, ge=1)
    """Search with G groups that share the beam and choose different subwords, for an --nbest list
    whose translations differ (search.diverse_groups)."""
    diversity: float | None = option(None, "X", panel=OTHER, ge=0)
    """--diverse-groups: the penalty for a subword that a hypothesis of an earlier group has chosen
    (search.diversity)."""
    assignments: list[str] = set_option("search.max_length_b=20", SEARCH)
    preset: str | None = preset_option("none", SEARCH, "The search settings")
    config: Path | None = option(None, "FILE", panel=SEARCH, once=True)
    """A TOML file of settings. Only its section search is read."""
    run: Path | None = run_option()
    jobs: int = jobs_option()
    device: str = device_option()
    force: bool = option(False, panel=GENERAL)
    """Translate again, even if the translations are up to date."""

    def beside_the_source(self) -> list[tuple[Path, str]]:
        """Return the files with one line for each source line, each with its option."""
        keys = ("force_target", "prefix", "constraints")
        return [(path, flag(key)) for key in keys if (path := getattr(self, key)) is not None]
