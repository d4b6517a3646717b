"""The command `export`: a trained system for another engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from nmtkit.cli.door import command, examples
from nmtkit.cli.options import Debug, Quiet, chosen_run, force_option, run_option


@command(
    epilog=examples(
        "nmtkit export --to ctranslate2 baseline --check",
        "nmtkit export --to ctranslate2 baseline --quantization int8 --out baseline-int8",
    ),
)
def export(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="The system of the run.")],
    to: Annotated[
        str, typer.Option("--to", metavar="ctranslate2", help="The engine that is to run it.")
    ],
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out",
            metavar="DIR",
            help="The folder to write (default: export/ctranslate2 in the system's own).",
        ),
    ] = None,
    quantization: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help=(
                "How weights are stored: float32, float16, bfloat16, int16, int8, int8_float32,"
                " int8_float16, int8_bfloat16."
            ),
        ),
    ] = "float32",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Translate lines of the first test set with both, compare, and print both speeds.",
        ),
    ] = False,
    lines: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --check: so many lines.")
    ] = 100,
    at_least: Annotated[
        Optional[float],
        typer.Option(
            metavar="PERCENT",
            min=0,
            max=100,
            help=(
                "With --check: exit with 1 if fewer are equal (default: 95, with any other TYPE"
                " than float32 50)."
            ),
        ),
    ] = None,
    run: Annotated[Optional[Path], run_option()] = None,
    force: Annotated[bool, force_option("Write again what is up to date.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a trained system for CTranslate2, a fast engine for translation; say at once what it
    cannot run.
    """
    from nmtkit.export import stage

    share = None if at_least is None else at_least / 100
    stage.export(
        chosen_run(run),
        system,
        to,
        out=out,
        quantization=quantization,
        lines=lines if check else 0,
        share=share,
        force=force,
    )
