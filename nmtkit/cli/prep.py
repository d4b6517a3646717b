"""The command `prep`: from text to a prepared run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from nmtkit.cli.door import command, examples
from nmtkit.cli.options import (
    Config,
    Debug,
    Quiet,
    force_option,
    jobs_option,
    preset_option,
    run_option,
    set_option,
)

OWN_FILES = "Own files"
"""A part of the help."""


@command(
    no_args_is_help=True,
    epilog=examples(
        "nmtkit prep demo",
        "nmtkit prep multi30k-ende --from-dir /data/multi30k",
        "nmtkit prep mine --train train.de train.en --dev dev.de dev.en --test test.de,test.en",
        "nmtkit prep mine --train train.de train.en --dev dev.de dev.en --docs train=train.docids"
        " --docs dev=blank",
        "nmtkit prep tvsub-zhen --size 200000 --test tst2010.zh,tst2010.en --docs"
        " tst2010=tst2010.doc",
        "nmtkit prep demo --size 5000 --parser stanza --run runs/parsed",
        "nmtkit prep demo --size 5000 --parses train=runs/parsed/prep/parses/train.txt --parses"
        " dev=runs/parsed/prep/parses/dev.txt",
        "nmtkit prep demo --size 5000 --set prep.merges=1000 --run runs/small-demo",
    ),
)
def prep(
    dataset: Annotated[
        Optional[str],
        typer.Argument(
            metavar="DATASET",
            help=(
                "A data set that `nmtkit datasets` lists; or, with --train and --dev, a name of"
                " yours."
            ),
        ),
    ] = None,
    from_dir: Annotated[
        Optional[Path],
        typer.Option(
            metavar="DIR", help="Look here for the data set's files before downloading them."
        ),
    ] = None,
    size: Annotated[
        Optional[int],
        typer.Option(
            metavar="N",
            min=1,
            help=(
                "Take only the first N training pairs, and the rest of the document that the last"
                " of them is in; a generated data set is made "
                "with N (demo: 20,000 by default)."
            ),
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of a generated data set.")
    ] = 1,
    train: Annotated[
        Optional[tuple[Path, Path]],
        typer.Option(
            metavar="SRC TGT",
            help="Training text, plain or as .gz, .xz, .bz2, .zst; one sentence a line.",
            rich_help_panel=OWN_FILES,
        ),
    ] = None,
    dev: Annotated[
        Optional[tuple[Path, Path]],
        typer.Option(
            metavar="SRC TGT",
            help="Development text, on which a training is watched.",
            rich_help_panel=OWN_FILES,
        ),
    ] = None,
    test: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar="SRC,TGT[,TGT…]",
            help=(
                "Test text: source, reference(s), commas between; also beside the sets of a data"
                " set. Repeatable."
            ),
            rich_help_panel=OWN_FILES,
        ),
    ] = None,
    src: Annotated[
        Optional[str],
        typer.Option(
            metavar="LANG",
            help="Source language, such as de (default: the files' suffix).",
            rich_help_panel=OWN_FILES,
        ),
    ] = None,
    tgt: Annotated[
        Optional[str],
        typer.Option(
            metavar="LANG",
            help="Target language, such as en (default: the files' suffix).",
            rich_help_panel=OWN_FILES,
        ),
    ] = None,
    docs: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar="SET=FILE|blank|marker",
            help=(
                "Where the documents of a set of own files (train, dev, or a test set) start: a"
                " file with the document's id for each line of the "
                "text, or with the line numbers (from 0) where documents start; or `blank`,"
                " `marker`: lines blank, or <d>, on every side "
                "separate them. SGM and XML say it themselves. Repeatable."
            ),
            rich_help_panel=OWN_FILES,
        ),
    ] = None,
    parses: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar="SET=FILE",
            help=(
                "Parses of a set's source (train, dev, or a test set): a bracketed tree for each"
                " line, such as (S (NP (DT the) (NN fox)) (VP (VBD "
                "ran))), or several, or blank; what --parser made for another run is in its"
                " prep/parses/SET.txt. Repeatable."
            ),
        ),
    ] = None,
    parser: Annotated[
        Optional[str],
        typer.Option(
            metavar="stanza",
            help=(
                "Parse the sets that have no --parses (needs stanza and its models, which it"
                " doesn't fetch)."
            ),
        ),
    ] = None,
    preset: Annotated[
        Optional[str],
        preset_option("the data set's; own files: small below 500,000 training pairs, else base"),
    ] = None,
    config: Config = None,
    assignments: Annotated[Optional[list[str]], set_option("prep.merges=4000")] = None,
    run: Annotated[
        Optional[Path], run_option("The run directory, which is made (default: runs/DATASET).")
    ] = None,
    jobs: Annotated[int, jobs_option()] = 0,
    force: Annotated[
        bool,
        force_option(
            "Prepare again, whatever is there; systems trained on another corpus will be refused"
            " then."
        ),
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Turn parallel text into token ids: clean, tokenize, truecase, BPE, vocabulary, store."""
    from nmtkit.prep import stage

    stage.prep(
        dataset,
        train=train,
        dev=dev,
        test=test or [],
        src=src,
        tgt=tgt,
        from_dir=from_dir,
        size=size,
        seed=seed,
        jobs=jobs,
        preset=preset,
        config=config,
        assignments=assignments or [],
        docs=docs or [],
        parses=parses or [],
        parser=parser,
        run_dir=run,
        force=force,
    )
