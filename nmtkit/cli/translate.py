"""The command `translate`: the sets of a run, a file, or stdin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from nmtkit.cli.door import command, examples
from nmtkit.cli.options import (
    Debug,
    Device,
    Quiet,
    chosen_run,
    force_option,
    jobs_option,
    preset_option,
    run_option,
    set_names_option,
    set_option,
    systems_option,
)

SEARCH = "Search (default: the system's own settings)"
"""A part of the help."""


@command(
    epilog=examples(
        "nmtkit translate",
        'echo "A dog runs." | nmtkit translate -',
        "nmtkit translate news.en --system mine --beam 10 --nbest 5",
        "nmtkit translate --ensemble --system baseline --system mine",
        "nmtkit translate news.en --force-target news.de",
    ),
)
def translate(
    source: Annotated[
        Optional[str],
        typer.Argument(
            metavar="-|FILE",
            help=(
                "Text to translate to stdout, - for stdin; without it the run's sets are translated"
                " into the run."
            ),
        ),
    ] = None,
    systems: Annotated[
        Optional[list[str]],
        systems_option(
            "Only this system of the run. Repeatable; default: all that are trained, for -|FILE the"
            " one trained last."
        ),
    ] = None,
    set_names: Annotated[Optional[list[str]], set_names_option("every test set")] = None,
    ensemble: Annotated[
        bool,
        typer.Option(
            "--ensemble",
            help="Translate with the systems together: the mean of their probabilities.",
        ),
    ] = False,
    force_target: Annotated[
        Optional[Path],
        typer.Option(
            metavar="FILE",
            help=(
                "Search nothing; print the log-probabilities of the tokens of these target lines,"
                " as JSON lines."
            ),
        ),
    ] = None,
    docs: Annotated[
        Optional[str],
        typer.Option(
            metavar="FILE|blank|marker",
            help=(
                "Of -|FILE, for systems that read context: where documents start. `blank`: blank"
                " lines separate them; `marker`: lines <d> start "
                "them, and are written as they are; a file: a document's id for each line, or the"
                " line numbers (from 0) where documents start. "
                "Default: every line is a document."
            ),
        ),
    ] = None,
    beam: Annotated[
        Optional[int],
        typer.Option(
            metavar="N",
            min=1,
            help="Hypotheses kept per sentence; 1 = greedy (search.beam).",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    length_penalty: Annotated[
        Optional[float],
        typer.Option(
            metavar="X",
            min=0,
            help="Higher favours longer translations, 0 = none (search.length_penalty).",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    nbest: Annotated[
        Optional[int],
        typer.Option(
            metavar="N",
            min=1,
            help="Translations per sentence, best first, as JSON lines (search.nbest).",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    average: Annotated[
        Optional[int],
        typer.Option(
            metavar="K",
            min=1,
            help="Use the mean of the last K checkpoints; 1 = the best one (search.average).",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    assignments: Annotated[
        Optional[list[str]], set_option("search.max_length_b=20", SEARCH)
    ] = None,
    preset: Annotated[Optional[str], preset_option("none", SEARCH, "The search settings")] = None,
    config: Annotated[
        Optional[Path],
        typer.Option(
            metavar="FILE",
            help="A TOML file, of which the section search is read.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    run: Annotated[Optional[Path], run_option()] = None,
    jobs: Annotated[int, jobs_option(" on a CPU")] = 0,
    device: Device = "auto",
    force: Annotated[bool, force_option("Translate sets again that are up to date.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Translate: every test set of the run with every system that lacks it, a file, or stdin."""
    from nmtkit.translate import stage

    stage.translate(
        chosen_run(run),
        source=source,
        systems=systems or [],
        set_names=set_names or [],
        beam=beam,
        length_penalty=length_penalty,
        nbest=nbest,
        average=average,
        ensemble=ensemble,
        force_target=force_target,
        docs=docs,
        preset=preset,
        config=config,
        assignments=assignments or [],
        jobs=jobs,
        device=device,
        force=force,
    )
