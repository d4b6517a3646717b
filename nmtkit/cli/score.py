"""The command `score`: translations against references."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from nmtkit.cli.door import command, examples
from nmtkit.cli.options import (
    Debug,
    Format,
    Quiet,
    chosen_run,
    force_option,
    run_option,
    set_names_option,
    systems_option,
)

OF_A_RUN, OUTSIDE = "Translations of a run", "Outside files, without a run"
"""Parts of the help."""


@command(
    epilog=examples(
        "nmtkit score --by-length",
        "nmtkit score --against baseline --format tex",
        "nmtkit score --against baseline --group-by seed",
        "nmtkit score --test sign",
        "nmtkit score --paper recipes/phrase/paper.toml --table table2",
        "nmtkit score --hyp a.de --hyp b.de --ref news.de --lang de",
    ),
)
def score(
    against: Annotated[
        Optional[str],
        typer.Option(
            metavar="NAME",
            help=(
                "The baseline of differences and significance (default: the system trained first,"
                " or the first --hyp)."
            ),
        ),
    ] = None,
    by_length: Annotated[
        bool, typer.Option("--by-length", help="Also BLEU in groups of source length.")
    ] = False,
    buckets: Annotated[
        Optional[str],
        typer.Option(
            metavar="dc|pr|10,20,…",
            help=(
                "The groups of --by-length, which this implies: a paper's, or your own borders"
                " (default: dc)."
            ),
        ),
    ] = None,
    group_by: Annotated[
        Optional[str],
        typer.Option(
            metavar="seed",
            help="One row for the systems that differ in train.seed alone: mean and spread.",
            rich_help_panel=OF_A_RUN,
        ),
    ] = None,
    test: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=(
                "The significance test whose p stands in the tables of scores, lengths and seeds;"
                " every test is in the table of significance: "
                "paired_bootstrap (Koehn), paired_bootstrap_half, sacrebleu_bootstrap,"
                " sacrebleu_randomization, sign."
            ),
        ),
    ] = "paired_bootstrap",
    resamples: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Resamples of the bootstraps, for intervals and significance."
        ),
    ] = 1000,
    ratio: Annotated[
        float,
        typer.Option(
            metavar="R",
            help=(
                "Sentences in a resample of paired_bootstrap, as a share of the set (Koehn 1,"
                " compare-mt 0.5)."
            ),
        ),
    ] = 1.0,
    trials: Annotated[
        int, typer.Option(metavar="N", min=1, help="Trials of sacrebleu_randomization.")
    ] = 10_000,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of resamples and trials.")
    ] = 1,
    paper: Annotated[
        Optional[Path],
        typer.Option(
            metavar="FILE",
            help="A paper's printed numbers (recipes/PAPER/paper.toml), beside the measured ones.",
            rich_help_panel=OF_A_RUN,
        ),
    ] = None,
    table: Annotated[
        Optional[str],
        typer.Option(
            metavar="NAME",
            help="Which table of --paper, for example table1.",
            rich_help_panel=OF_A_RUN,
        ),
    ] = None,
    output_format: Format = "table",
    systems: Annotated[
        Optional[list[str]],
        systems_option(
            "Only this system, beside the baseline. Repeatable; default: all that are translated.",
            OF_A_RUN,
        ),
    ] = None,
    set_names: Annotated[
        Optional[list[str]], set_names_option("every test set that is translated", OF_A_RUN)
    ] = None,
    run: Annotated[Optional[Path], run_option(panel=OF_A_RUN)] = None,
    force: Annotated[
        bool, force_option("Compute scores again that are up to date.", OF_A_RUN)
    ] = False,
    hyp: Annotated[
        Optional[list[Path]],
        typer.Option(
            metavar="FILE", help="A translation to score. Repeatable.", rich_help_panel=OUTSIDE
        ),
    ] = None,
    ref: Annotated[
        Optional[list[Path]],
        typer.Option(
            metavar="FILE",
            help="A reference. Repeatable: several references of one text.",
            rich_help_panel=OUTSIDE,
        ),
    ] = None,
    src: Annotated[
        Optional[Path],
        typer.Option(
            metavar="FILE",
            help="The source, whose words --by-length counts.",
            rich_help_panel=OUTSIDE,
        ),
    ] = None,
    language: Annotated[
        Optional[str],
        typer.Option(
            "--lang",
            metavar="LANG",
            help=(
                "The target language, by whose rules tok. BLEU tokenizes (default: the reference's"
                " suffix, and no tok. BLEU)."
            ),
            rich_help_panel=OUTSIDE,
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """BLEU, chrF and TER of all systems side by side, with intervals and significance against a
    baseline.
    """
    from nmtkit.score import stage

    groups = {"by_length": by_length or buckets is not None, "buckets": buckets or "dc"}
    options: dict[str, Any] = {**groups, "against": against, "output_format": output_format}
    options |= {
        "test": test,
        "resamples": resamples,
        "ratio": ratio,
        "trials": trials,
        "seed": seed,
    }
    if hyp or ref:
        stage.score_files(hyp or [], ref or [], src=src, language=language, **options)
    else:
        options |= {"group_by": group_by, "paper_file": paper, "paper_table": table}
        stage.score(
            chosen_run(run),
            systems=systems or [],
            set_names=set_names or [],
            force=force,
            **options,
        )
