"""The options of the stage `prep`."""

from __future__ import annotations

from pathlib import Path

from nmtkit.options import (
    GENERAL,
    Options,
    config_option,
    jobs_option,
    option,
    preset_option,
    run_option,
    set_option,
)

OWN_FILES = "Own files"
"""A panel of the help."""


class PrepOptions(Options):
    """The options of `nmtkit prep`."""

    dataset: str | None = option(None, "DATASET", argument=True)
    """A data set that `nmtkit datasets` lists; or, with --train and --dev, a name of yours."""
    from_dir: Path | None = option(None, "DIR")
    """Look here for the data set's files before downloading them."""
    size: int | None = option(None, "N", ge=1)
    """Take only the first N training pairs, and the rest of the document that the last of them is
    in; a generated data set is made with N (demo: 20,000 by default).
    """
    seed: int = option(1, "N", ge=0)
    """Seed of a generated data set."""
    train: tuple[Path, Path] | None = option(None, "SRC TGT", panel=OWN_FILES)
    """Training text, plain or as .gz, .xz, .bz2, .zst; one sentence a line."""
    dev: tuple[Path, Path] | None = option(None, "SRC TGT", panel=OWN_FILES)
    """Development text, on which a training is watched."""
    test: list[str] = option([], "SRC,TGT[,TGT…]", panel=OWN_FILES)
    """Test text: source, reference(s), commas between; also beside the sets of a data set.
    Repeatable.
    """
    src: str | None = option(None, "LANG", panel=OWN_FILES)
    """Source language, such as de (default: the files' suffix)."""
    tgt: str | None = option(None, "LANG", panel=OWN_FILES)
    """Target language, such as en (default: the files' suffix)."""
    docs: list[str] = option([], "SET=FILE|blank|marker", panel=OWN_FILES)
    """Where the documents of a set of own files (train, dev, or a test set) start: a file with the
    document's id for each line of the text, or with the line numbers (from 0) where documents
    start; or `blank`, `marker`: lines blank, or <d>, on every side separate them. SGM and XML say
    it themselves. Repeatable.
    """
    parses: list[str] = option([], "SET=FILE")
    """Parses of a set's source (train, dev, or a test set): a bracketed tree for each line, such as
    (S (NP (DT the) (NN fox)) (VP (VBD ran))), or several, or blank; what --parser made for another
    run is in its prep/parses/SET.txt. Repeatable.
    """
    parser: str | None = option(None, "stanza")
    """Parse the sets that have no --parses (needs stanza and its models, which it doesn't
    fetch).
    """
    preset: str | None = preset_option(
        "the data set's; own files: small below 500,000 training pairs, else base"
    )
    config: Path | None = config_option()
    assignments: list[str] = set_option("prep.merges=4000")
    run_dir: Path | None = run_option("The run directory, which is made (default: runs/DATASET).")
    jobs: int = jobs_option()
    force: bool = option(False, panel=GENERAL)
    """Prepare again, whatever is there; systems trained on another corpus will be refused then."""
