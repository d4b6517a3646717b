"""The commands that list what there is: variants, data sets."""

from __future__ import annotations

from typing import Annotated

import typer

from nmtkit import console
from nmtkit.cli.door import app
from nmtkit.cli.options import Debug, Preset, Quiet


@app.command()
def variants(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with every setting.")] = False,
    preset: Preset = None,
    vocab_size: Annotated[int, typer.Option(min=5, metavar="V", help="Vocabulary size (of each side) for the parameter counts.")] = 32000,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the variants: paper, parameters, settings."""
    import json

    from nmtkit.models.variants import describe

    rows = describe(preset=preset, vocab_size=vocab_size)
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    console.print_table(
        f"preset {preset or 'base'}, vocabulary {vocab_size:,}",
        ["<variant", "parameters", "<paper", "<settings"],
        [[row["name"], f"{row['parameters'] / 1e6:.2f}M", row["paper"], ", ".join(s["name"] for s in row["settings"])] for row in rows],
    )


@app.command()
def datasets(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the registered data sets: size, licence, citation, whether cached."""
    import json

    from nmtkit.prep.corpora.table import describe

    rows = describe()
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    columns = ["<data set", "<languages", "pairs", "download", "<cached", "<licence", "<citation"]
    print_rows = [
        [r["name"], f"{r['src']}-{r['tgt']}", f"{r['pairs']:,}", r["size"], "yes" if r["cached"] else "no", r["licence"], r["citation"]] for r in rows
    ]
    console.print_table("", columns, print_rows)
