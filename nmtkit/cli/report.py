"""The command `report`: a run, or several, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from nmtkit.cli.door import command, examples
from nmtkit.cli.options import Debug, Quiet, chosen_run, force_option, run_option


@command(
    epilog=examples(
        "nmtkit report",
        'nmtkit report --run runs/multi30k-ende --title "Two variants, one seed, 3,500 updates"',
        "nmtkit report --attention baseline --attention mine --sentences 50",
        "nmtkit report --run runs/sentences --also runs/documents",
    ),
)
def report(
    also: Annotated[
        Optional[list[Path]],
        typer.Option(
            "--also",
            metavar="DIR",
            help="A run whose parts follow in the same page. Repeatable.",
            show_default=False,
        ),
    ] = None,
    title: Annotated[
        str,
        typer.Option(
            "--title",
            metavar="TEXT",
            help="The title of the page (default: how many systems on which data).",
            show_default=False,
        ),
    ] = "",
    attention: Annotated[
        Optional[list[str]],
        typer.Option(
            "--attention",
            metavar="SYSTEM",
            help=(
                "Show in the sentence explorer what this system attended to, of each run that has"
                " it; computed now. Repeatable; default: none."
            ),
            show_default=False,
        ),
    ] = None,
    sentences: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help=(
                "With --attention: of so many sentences of a run, those on which its systems differ"
                " most."
            ),
        ),
    ] = 200,
    run: Annotated[Optional[Path], run_option()] = None,
    force: Annotated[bool, force_option("Make a page again that is up to date.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """One HTML page of a run, or of several, RUN/report/index.html: comparison, curves,
    findings, translations, provenance.
    """
    from nmtkit.report import stage

    others = [chosen_run(folder) for folder in also or ()]
    stage.report(
        chosen_run(run),
        also=others,
        title=title,
        attention=attention or (),
        sentences=sentences,
        force=force,
    )
