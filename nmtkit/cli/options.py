"""Options that several commands have, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from nmtkit import console
from nmtkit.cli.door import set_debug

PrepRunOption = Annotated[
    Optional[Path], typer.Option("--run", metavar="DIR", envvar="NMTKIT_RUN", help="The run directory (default: runs/DATASET).")
]
RunOption = Annotated[
    Optional[Path],
    typer.Option("--run", metavar="DIR", envvar="NMTKIT_RUN", help="The run directory; without it the run prepared last under ./runs."),
]
Force = Annotated[bool, typer.Option("--force", help="Do it again even if it is up to date.")]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Say nothing on stderr but warnings and errors.", callback=lambda value: (console.set_quiet(value), value)[1]),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.", callback=lambda value: (set_debug(value), value)[1])]
Preset = Annotated[
    Optional[str],
    typer.Option(metavar="NAME", help="A paper's or a size's whole setting: tiny, demo, small, base, big, dc-wmt, dc-iwslt, pr-base, pr-big, amn."),
]
Config = Annotated[Optional[Path], typer.Option(metavar="FILE", help="Settings in TOML, in the sections prep, model, train, search.")]


def set_option(example: str) -> Any:
    """The option --set, with an example from the command that has it."""
    return typer.Option("--set", metavar="KEY=VALUE", help=f"One setting, for example --set {example}. Repeatable.")


Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.")]
Systems = Annotated[Optional[list[str]], typer.Option("--system", metavar="NAME", help="Only this system of the run. Repeatable.")]
SetNames = Annotated[
    Optional[list[str]],
    typer.Option("--set-name", metavar="NAME", help="Only this set of the run (test, dev, or a test set's own name). Repeatable."),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, metavar="N", help="Worker processes; 0 = one a core. The output does not depend on it.")]
Format = Annotated[str, typer.Option("--format", metavar="table|json|md|tex|csv", help="How to print the result on stdout.")]
