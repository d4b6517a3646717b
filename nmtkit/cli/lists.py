"""The commands that list variants, settings and data sets."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nmtkit import console, fields, settings, trust
from nmtkit.cli.command import command
from nmtkit.cli.program import examples
from nmtkit.errors import ConfigError, check_known
from nmtkit.options import Options, option, preset_option
from nmtkit.tables.table import Column, Table, text_column
from nmtkit.toml import toml_value

LISTED = ("prep", "train", "model", "search")
"""All sections, in the order of the list."""


class VariantsOptions(Options):
    """The options of `nmtkit variants`."""

    preset: str | None = preset_option("base", panel=None)
    vocab_size: int = option(32000, "V", ge=5, le=1_000_000_000)
    """Size of each vocabulary for the number of parameters."""
    variant: list[str] = option([], "NAME")
    """Only this variant, or package.module:Class for your own. Repeatable."""
    as_json: bool = option(False, None, "--json")
    """Print JSON, with every setting."""


@command(
    "variants",
    VariantsOptions,
    epilog=examples(
        "nmtkit variants --preset dc-wmt --vocab-size 33432",
        "nmtkit variants --preset tiny --variant my_file:MyModel",
    ),
)
def variants(
    vocab_size: int, as_json: bool, preset: str = "base", variant: Sequence[str] = ()
) -> None:
    """List the variants with their parameters and papers."""
    from nmtkit.models.variants import describe

    trust.allow(variant)
    rows = describe(preset, vocab_size, variant)
    if as_json:
        console.print_json(rows)
        return
    title = f"preset {preset}, vocabulary {vocab_size:,}"
    cells = [
        [row["name"], f"{row['parameters'] / 1e6:.2f}M", row["paper"], row["what"]] for row in rows
    ]
    columns = [text_column("name", "variant"), Column("parameters", "parameters")]
    columns += [text_column("paper"), text_column("what", "what it is")]
    Table("variants", title, columns, cells).print()
    console.say("the settings of one: nmtkit settings model --variant NAME")


class SettingsOptions(Options):
    """The options of `nmtkit settings`."""

    section: str | None = option(None, "prep|train|model|search", argument=True)
    """Only this section."""
    preset: str | None = preset_option("none, the plain defaults", panel=None)
    variant: str | None = option(None, "NAME")
    """The variant whose section model is shown (default: the baseline)."""
    as_json: bool = option(False, None, "--json")
    """Print JSON."""
    as_toml: bool = option(False, None, "--toml")
    """Print a settings file to edit, for --config."""


@command(
    "settings",
    SettingsOptions,
    epilog=examples(
        "nmtkit settings train",
        "nmtkit settings --preset dc-wmt",
        "nmtkit settings --preset small --toml > mine.toml",
        "nmtkit settings model --variant my_file:MyModel",
    ),
)
def list_settings(
    as_json: bool,
    as_toml: bool,
    section: str | None = None,
    preset: str | None = None,
    variant: str | None = None,
) -> None:
    """List the settings: what each means, which values it takes, its default or what a preset
    makes of it.
    """
    _check_section(section, variant)
    values = settings.load_preset(preset) if preset else {}
    tables = {
        name: _settings_of(name, values.get(name, {}), variant)
        for name in ([section] if section else LISTED)
    }
    if as_json:
        console.print_json(
            [{"section": name, **asdict(row)} for name, rows in tables.items() for row in rows]
        )
        return
    if as_toml:
        _print_toml(tables, variant)
        return
    names = ("setting", preset or "default", "values", "meaning")
    columns = [text_column(name) for name in names]
    for number, (name, rows) in enumerate(tables.items()):
        if number:
            console.put()
        cells = [
            # Spaces let a narrow terminal wrap the values.
            [f"{name}.{s.name}", s.default_text, s.values.replace("|", " | "), s.description]
            for s in rows
        ]
        Table(name, name, columns, cells, first=[names[1], "meaning"]).print()


def _print_toml(tables: dict[str, list[fields.Setting]], variant: str | None) -> None:
    """Print settings as a file for --config, each below a comment with its meaning."""
    from nmtkit.models.variants import BASELINE

    if "model" in tables:
        console.put(f"variant = {toml_value(variant or BASELINE)}")
    for section, rows in tables.items():
        console.put(f"\n[{section}]")
        for row in rows:
            about = f"# {row.description} ({row.values})"
            console.put(textwrap.fill(about, 98, subsequent_indent="# ", break_on_hyphens=False))
            if row.default is None:
                console.put(f"# {row.name} =")
            else:
                console.put(f"{row.name} = {toml_value(row.default)}")


def _check_section(section: str | None, variant: str | None) -> None:
    if section is not None:
        unknown = f"unknown section '{section}'"
        check_known(section, settings.SECTIONS, unknown, "nmtkit settings")
    if variant is not None and section not in {None, "model"}:
        message = "only the section model depends on the variant: --variant has no effect"
        hint = "leave it out, or list nmtkit settings model"
        raise ConfigError(message, where="--variant", hint=hint)


def _settings_of(section: str, values: dict[str, Any], variant: str | None) -> list[fields.Setting]:
    """Return the settings of a section, with a preset's values as defaults."""
    if section != "model":
        return fields.describe(settings.STAGES[section], values, section)
    from nmtkit.models.variants import BASELINE, load_variant

    if variant is not None:
        trust.allow([variant])
    cls = load_variant(variant or BASELINE)
    return fields.describe(cls.Settings, cls.adapt(values), section)


class DatasetsOptions(Options):
    """The options of `nmtkit datasets`."""

    as_json: bool = option(False, None, "--json")
    """Print JSON, with sets, notes, and the files with their addresses."""
    fetch: list[str] = option([], "NAME")
    """Download the files of this data set and print their paths. Repeatable."""
    from_dir: Path | None = option(None, "DIR")
    """With --fetch: folder searched before downloading."""


@command(
    "datasets",
    DatasetsOptions,
    epilog=examples("nmtkit datasets --json", "nmtkit datasets --fetch senteval --from-dir /data"),
)
def datasets(as_json: bool, fetch: Sequence[str] = (), from_dir: Path | None = None) -> None:
    """List the registered data sets: size, licence, citation, and whether they are in the cache."""
    from nmtkit.corpora import published

    for name in fetch:
        console.put("\n".join(map(str, published.fetch(name, from_dir))))
    if fetch:
        return
    rows = published.describe()
    if as_json:
        console.print_json(rows)
    else:
        _print_datasets(rows)


def _print_datasets(rows: list[dict[str, Any]]) -> None:
    cells = []
    # Many data sets share a licence and a citation, which are printed once below the table.
    sources: dict[tuple[str, str], int] = {}
    for row in rows:
        pairs = f"{'~' * row['approximate']}{row['pairs']:,}" if row["pairs"] else ""
        number = sources.setdefault((row["citation"], row["licence"]), len(sources) + 1)
        cells.append([row["name"], pairs, row["size"], "yes" if row["cached"] else "no", number])
    columns = [text_column("data set"), Column("pairs", "pairs"), Column("size", "download")]
    columns += [text_column("cached"), Column("source", "citation and licence")]
    Table("datasets", "", columns, cells).print()
    console.put()
    _print_sources(sources)
    if any("?" in row["size"] for row in rows):
        console.say("?: a size that is not published")


def _print_sources(sources: dict[tuple[str, str], int]) -> None:
    """Print each citation and its licence under their number."""
    for (citation, licence), number in sources.items():
        for line in (f"[{number}] {citation}", f"    Licence: {licence}"):
            console.put(textwrap.fill(line, 79, subsequent_indent="    ", break_on_hyphens=False))
