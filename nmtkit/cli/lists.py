"""The commands that list what there is: variants, settings, data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from nmtkit import console
from nmtkit.cli.door import command, examples
from nmtkit.cli.options import Debug, Quiet, preset_option
from nmtkit.errors import ConfigError, nearest

if TYPE_CHECKING:  # imported by the command that needs it, so that --help is instant
    from nmtkit.fields import Setting


@command(epilog=examples("nmtkit variants --preset dc-wmt --vocab-size 33432"))
def variants(
    preset: Annotated[Optional[str], preset_option("base", panel=None)] = None,
    vocab_size: Annotated[
        int,
        typer.Option(
            min=5,
            metavar="V",
            help="Vocabulary size, of each side, with which parameters are counted.",
        ),
    ] = 32000,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with every setting.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the variants: parameters, paper and what each is; as JSON their settings too."""
    import json

    from nmtkit.models.variants import describe

    rows = describe(preset=preset, vocab_size=vocab_size)
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    console.print_table(
        f"preset {preset or 'base'}, vocabulary {vocab_size:,}",
        ["<variant", "parameters", "<paper", "<what it is"],
        [
            [row["name"], f"{row['parameters'] / 1e6:.2f}M", row["paper"], row["what"]]
            for row in rows
        ],
    )
    console.say("the settings of one: nmtkit settings model --variant NAME")


@command(
    "settings",
    epilog=examples(
        "nmtkit settings train",
        "nmtkit settings --preset dc-wmt",
        "nmtkit settings model --variant my_file:MyModel",
    ),
)
def list_settings(
    section: Annotated[
        Optional[str], typer.Argument(metavar="prep|train|model|search", help="Only this section.")
    ] = None,
    preset: Annotated[Optional[str], preset_option("none, the plain defaults", panel=None)] = None,
    variant: Annotated[
        Optional[str],
        typer.Option(
            metavar="NAME",
            help=(
                "The variant that the section model is of, as in `nmtkit train` (default: the"
                " baseline)."
            ),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the settings: what each means, which values it takes, its default or what a preset
    makes of it.
    """
    import json
    from dataclasses import asdict

    from nmtkit import settings

    if section is not None and section not in settings.SECTIONS:
        raise ConfigError(
            f"unknown section '{section}'",
            where="nmtkit settings",
            hint=nearest(section, settings.SECTIONS),
        )
    values = settings.load_preset(preset) if preset else {}
    tables = {
        name: _settings_of(name, values.get(name, {}), variant)
        for name in ([section] if section else ("prep", "train", "model", "search"))
    }
    if as_json:
        print(
            json.dumps(
                [
                    {"section": name, **asdict(setting)}
                    for name, rows in tables.items()
                    for setting in rows
                ],
                ensure_ascii=False,
                indent=1,
            )
        )
        return
    for number, (name, rows) in enumerate(tables.items()):
        if number:
            print()
        cells = [
            [f"{name}.{row.name}", row.default_text, row.values, row.description] for row in rows
        ]
        console.print_table(
            name, ["<setting", f"<{preset or 'default'}", "<values", "<meaning"], cells
        )


def _settings_of(section: str, values: dict[str, Any], variant: str | None) -> list[Setting]:
    """The settings of a section, with a preset's values for defaults."""
    from nmtkit import fields, settings

    if section != "model":
        return fields.describe(settings.STAGES[section], values, section)
    from nmtkit.models.variants import VARIANTS, load_variant

    cls = load_variant(variant or next(iter(VARIANTS)))
    return fields.describe(cls.Settings, cls.adapt(values), section)


@command(
    epilog=examples("nmtkit datasets --json", "nmtkit datasets --fetch senteval --from-dir /data")
)
def datasets(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with sets and notes.")] = False,
    fetch: Annotated[
        Optional[list[str]],
        typer.Option(
            "--fetch",
            metavar="NAME",
            help="Bring this one's files here and print their paths. Repeatable.",
        ),
    ] = None,
    from_dir: Annotated[
        Optional[Path],
        typer.Option(metavar="DIR", help="With --fetch: look here before the network."),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the registered data sets: size, licence, citation, whether cached."""
    import json
    import textwrap

    from nmtkit.corpora import published, table

    for name in fetch or []:
        for path in published.fetch(name, from_dir):
            print(path)
    if fetch:
        return
    rows = table.describe()
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    cells = []
    sources: dict[
        tuple[str, str], int
    ] = {}  # many data sets have one licence and citation: said once, below
    for row in rows:
        pairs = f"{'~' * row['approximate']}{row['pairs']:,}" if row["pairs"] else ""
        number = sources.setdefault((row["citation"], row["licence"]), len(sources) + 1)
        cells.append([row["name"], pairs, row["size"], "yes" if row["cached"] else "no", number])
    console.print_table(
        "", ["<data set", "pairs", "download", "<cached", "citation and licence"], cells
    )
    print()
    for (citation, licence), number in sources.items():
        for line in (f"[{number}] {citation}", f"    Licence: {licence}"):
            print(textwrap.fill(line, 79, subsequent_indent="    ", break_on_hyphens=False))
    if any("?" in row["size"] for row in rows):
        console.say("?: a size that is not published")
