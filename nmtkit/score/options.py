"""The options of the stage `score`."""

from __future__ import annotations

from pathlib import Path

from nmtkit.options import Options, format_option, option, run_option, set_names_option

OF_A_RUN, OUTSIDE = "Translations of a run", "Outside files, without a run"
"""Panels of the help."""


class ScoreOptions(Options):
    """The options of `nmtkit score`."""

    against: str | None = option(None, "NAME")
    """The baseline of differences and significance (default: the system trained first, or the first
    --hyp).
    """
    by_length: bool = option(False)
    """Also BLEU in groups of source length."""
    buckets: str | None = option(None, "dc|pr|10,20,…")
    """The groups of --by-length, which this implies: a paper's, or your own borders (default:
    dc).
    """
    group_by: str | None = option(None, "seed", panel=OF_A_RUN)
    """One row for the systems that differ in train.seed alone: mean and spread."""
    test: str = option("paired_bootstrap", "NAME")
    """The significance test whose p stands in the tables of scores, lengths and seeds; every test
    is in the table of significance: paired_bootstrap (Koehn), paired_bootstrap_half,
    sacrebleu_bootstrap, sacrebleu_randomization, sign.
    """
    resamples: int = option(1000, "N", ge=1)
    """Resamples of the bootstraps, for intervals and significance."""
    ratio: float = option(1.0, "R", gt=0, le=1)
    """Sentences in a resample of paired_bootstrap, as a share of the set (Koehn 1, compare-mt
    0.5).
    """
    trials: int = option(10_000, "N", ge=1)
    """Trials of sacrebleu_randomization."""
    seed: int = option(1, "N", ge=0)
    """Seed of resamples and trials."""
    paper: Path | None = option(None, "FILE", panel=OF_A_RUN)
    """A paper's printed numbers (recipes/PAPER/paper.toml), beside the measured ones."""
    table: str | None = option(None, "NAME", panel=OF_A_RUN)
    """Which table of --paper, for example table1."""
    output_format: str = format_option()
    systems: list[str] = option([], "NAME", "--system", panel=OF_A_RUN)
    """Only this system, beside the baseline. Repeatable; default: all that are translated."""
    set_names: list[str] = set_names_option("every test set that is translated", OF_A_RUN)
    run: Path | None = run_option(panel=OF_A_RUN)
    force: bool = option(False, panel=OF_A_RUN)
    """Compute scores again that are up to date."""
    hyp: list[Path] = option([], "FILE", panel=OUTSIDE)
    """A translation to score. Repeatable."""
    ref: list[Path] = option([], "FILE", panel=OUTSIDE)
    """A reference. Repeatable: several references of one text."""
    src: Path | None = option(None, "FILE", panel=OUTSIDE)
    """The source, whose words --by-length counts."""
    language: str | None = option(None, "LANG", "--lang", panel=OUTSIDE)
    """The target language, by whose rules tok. BLEU tokenizes (default: the reference's suffix, and
    no tok. BLEU).
    """

    @property
    def length_groups(self) -> str | None:
        """The groups of source length; None if there are to be none."""
        return self.buckets or ("dc" if self.by_length else None)
