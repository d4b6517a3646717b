"""The options of the stage `score`."""

from __future__ import annotations

from pathlib import Path

from nmtkit.options import Options, format_option, option, run_option, set_names_option

OF_A_RUN, OUTSIDE = "Translations of a run", "Outside files, without a run"
"""Panels of the help."""


class ScoreOptions(Options):
    """The options of `nmtkit score`."""

    hyps: list[Path] = option([], "HYP", argument=True, panel=OUTSIDE, once=True)
    """Translations to score, one file a system (- for stdin), against --ref."""
    against: str | None = option(None, "NAME")
    """The baseline for differences and significance (default: the system trained first, or the
    first HYP). The name of a group of training seeds stands for the first of its systems."""
    by_length: bool = option(False)
    """Also print scores by source length: BLEU, and the metrics that are asked for. Later calls
    keep these tables up to date."""
    buckets: str | None = option(None, "dc|pr|10,20,…")
    """Length groups of a paper (dc, pr) or your own boundaries. Implies --by-length (default: dc).
    """
    group_by: str | None = option(None, "seed|name", panel=OF_A_RUN)
    """Print one row for systems that differ only in train.seed: mean, spread, and a p over seeds
    and sentences. name: for systems whose names differ only in the seed (mine-s1, mine-s2)."""
    test: str = option("paired_bootstrap", "NAME", "--significance")
    """The significance test for the p-values in the tables of scores, lengths and seeds:
    paired_bootstrap (Koehn), paired_bootstrap_half, sacrebleu_bootstrap, sacrebleu_randomization or
    sign. The significance table has all of them."""
    resamples: int = option(1000, "N", ge=1, le=1_000_000)
    """Number of bootstrap resamples for intervals and significance."""
    ratio: float = option(1.0, "R", gt=0, le=1)
    """Size of a paired_bootstrap resample, as a fraction of the set (Koehn 1, compare-mt 0.5)."""
    trials: int = option(10_000, "N", ge=1, le=1_000_000)
    """Number of trials of sacrebleu_randomization."""
    seed: int = option(1, "N", ge=0)
    """Seed of the resamples and trials."""
    paper: Path | None = option(None, "NAME|FILE", panel=OF_A_RUN, once=True)
    """Show the printed numbers of a paper (caru, dual_context, memory, phrase) beside the measured
    ones. FILE: numbers of a paper in the same form (nmtkit/score/papers)."""
    table: str | None = option(None, "NAME", panel=OF_A_RUN)
    """The table of --paper, for example table1."""
    metrics: str | None = option(None, "LIST")
    """The columns, separated by commas: bleu, tokenized_bleu, mteval, mteval_uncased, chrf, ter,
    chrf++, spbleu. BLEU is always one. Default: all but chrf++ and spbleu."""
    metric: list[str] = option([], "NAME=COMMAND", "--metric")
    """An external metric, such as COMET. The shell runs COMMAND, which reads lines of source,
    hypothesis and reference, separated by tabs, and prints one number for each.
    NAME:lower=COMMAND if lower is better. Repeatable."""
    metric_scores: list[str] = option([], "NAME=FILE", "--metric-scores", once=True)
    """An external metric whose numbers, one for each line, are in FILE. In FILE, {system} and {set}
    stand for the names of the system and the test set. Repeatable."""
    output_format: str = format_option()
    systems: list[str] = option([], "NAME", "--system", panel=OF_A_RUN)
    """Only this system, next to the baseline. Repeatable. Default: all translated systems."""
    set_names: list[str] = set_names_option("all translated test sets", OF_A_RUN)
    run: Path | None = run_option(panel=OF_A_RUN)
    force: bool = option(False, panel=OF_A_RUN)
    """Score again, even if the scores are up to date."""
    hyp: list[Path] = option([], "FILE", panel=OUTSIDE, once=True)
    """A translation to score, as HYP. Repeatable."""
    ref: list[Path] = option([], "FILE", panel=OUTSIDE, once=True)
    """A reference (- for stdin). Repeat for several references of the same text."""
    src: Path | None = option(None, "FILE", panel=OUTSIDE, once=True)
    """The source (- for stdin). --by-length counts its words, or its characters if its language
    (the ending of its name, such as .zh) has no spaces between words."""
    language: str | None = option(None, "LANG", "--lang", panel=OUTSIDE)
    """The target language, whose tokenizer tok. BLEU uses. Without it the suffix of the
    reference names the language, and tok. BLEU is left out."""

    @property
    def length_groups(self) -> str | None:
        """The groups of source length; None for no groups."""
        if self.by_length or self.buckets is not None:
            return self.buckets or "dc"
        return None
