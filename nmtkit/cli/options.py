"""Options that several commands have, each written once, and the run that they choose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from nmtkit import console
from nmtkit.cli.door import GENERAL, set_debug
from nmtkit.presets import preset_names

if (
    TYPE_CHECKING
):  # the rooms are imported by the command that needs them, so that --help is instant
    from nmtkit.run import Run

SETTINGS = "Settings, weakest first"
"""The part of a command's help that has the options that change settings."""


def force_option(help_text: str, panel: str = GENERAL) -> Any:
    """The option --force, with what it does in the command that has it."""
    return typer.Option("--force", help=help_text, rich_help_panel=panel)


def preset_option(default: str, panel: str | None = SETTINGS, what: str = "All settings") -> Any:
    """The option --preset, with what is taken without it, and what of it is."""
    text = (
        f"{what} of a paper, or of a size: {', '.join(preset_names())} (shown by `nmtkit settings"
        f" --preset NAME`; default: {default})."
    )
    return typer.Option(metavar="NAME", help=text, rich_help_panel=panel)


def set_option(example: str, panel: str = SETTINGS) -> Any:
    """The option --set, with an example from the command that has it."""
    section = example.partition(".")[0]
    text = (
        f"One setting, for example {example} (listed by `nmtkit settings {section}`). Repeatable."
    )
    return typer.Option("--set", metavar="KEY=VALUE", help=text, rich_help_panel=panel)


def jobs_option(where: str = "") -> Any:
    """The option --jobs, with where it counts."""
    text = (
        f"At most so many worker processes{where}; 0 = one for each CPU core. The output does not"
        " depend on it."
    )
    return typer.Option("--jobs", "-j", min=0, metavar="N", help=text, rich_help_panel=GENERAL)


def systems_option(help_text: str, panel: str | None = None) -> Any:
    """The option --system, with what it means in the command that has it."""
    return typer.Option("--system", metavar="NAME", help=help_text, rich_help_panel=panel)


def set_names_option(default: str, panel: str | None = None) -> Any:
    """The option --set-name, with the sets that are taken without it."""
    text = (
        "Only this set of the run: a test set by its name (or test, if it is the only one), or"
        f" dev. Repeatable; default: {default}."
    )
    return typer.Option("--set-name", metavar="NAME", help=text, rich_help_panel=panel)


def format_option(panel: str | None = None) -> Any:
    """The option --format."""
    return typer.Option(
        "--format",
        metavar="table|json|md|tex|csv",
        help="How the result is printed on stdout.",
        rich_help_panel=panel,
    )


def run_option(
    help_text: str = "The run directory (default: the one prepared last under ./runs).",
    panel: str = GENERAL,
) -> Any:
    """The option --run."""
    return typer.Option(
        "--run", metavar="DIR", envvar="NMTKIT_RUN", help=help_text, rich_help_panel=panel
    )


Quiet = Annotated[
    bool,
    typer.Option(
        *("--quiet", "-q"),
        help="Say nothing on stderr but warnings and errors.",
        callback=lambda value: (console.set_quiet(value), value)[1],
        rich_help_panel=GENERAL,
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show the traceback of an error.",
        callback=lambda value: (set_debug(value), value)[1],
        rich_help_panel=GENERAL,
    ),
]
Config = Annotated[
    Optional[Path],
    typer.Option(
        metavar="FILE",
        help="A TOML file of settings, in the sections prep, train, model, search.",
        rich_help_panel=SETTINGS,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda",
        help="Where to compute; auto takes the GPU if there is one.",
        rich_help_panel=GENERAL,
    ),
]
Format = Annotated[str, format_option()]


def chosen_run(folder: Path | None) -> Run:
    """The run that --run means; said, so that nobody works on another one unawares."""
    from nmtkit.run import choose

    run = choose(folder)
    console.say(f"run {run.path}")
    return run
