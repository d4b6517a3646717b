"""The options of the stage `prep`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import field_validator

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
from nmtkit.prep.file_values import one_value

OWN_FILES, CLUSTER = "Own files", "Many machines"
"""Panels of the help."""


class PrepOptions(Options):
    """The options of `nmtkit prep`."""

    dataset: str | None = option(None, "DATASET", argument=True)
    """A registered data set (see `nmtkit datasets`), or with --train and --dev a new name for your
    files."""
    from_dir: Path | None = option(None, "DIR")
    """Folder searched for the data set's files before downloading."""
    size: int | None = option(None, "N", ge=1)
    """Use only the first N training pairs, rounded up to whole documents. A generated data set gets
    N pairs (default of demo: 20,000)."""
    seed: int = option(1, "N", ge=0)
    """Seed of a generated data set."""
    train: str | None = option(None, "SRC TGT", panel=OWN_FILES)
    """Training text, plain or as .gz, .xz, .bz2, .zst; one sentence a line. Two files (SRC TGT or
    SRC,TGT), or one TSV file: source TAB target."""
    dev: str | None = option(None, "SRC TGT", panel=OWN_FILES)
    """Development text, used for validation during training. Files as for --train."""
    test: list[str] = option([], "SRC TGT…", panel=OWN_FILES)
    """Test text: source and references. Files as for --train; further files, or further columns of
    a TSV file, are further references. May be added to a registered data set. Repeatable."""
    src: str | None = option(None, "LANG", panel=OWN_FILES)
    """Source language, such as de (default: the files' suffix)."""
    tgt: str | None = option(None, "LANG", panel=OWN_FILES)
    """Target language, such as en (default: the files' suffix)."""
    docs: list[str] = option([], "SET=FILE|blank|marker", panel=OWN_FILES)
    """Document boundaries of a set of your files (train, dev, or a test set). FILE has a document
    id for each line of the text, or the line numbers (from 0) at which documents start. `blank`:
    blank lines separate documents. `marker`: lines `<d>` separate documents. SGM and XML files have
    their own boundaries. Repeatable."""
    parses: list[str] = option([], "SET=FILE")
    """Parses of the source of a set (train, dev, or a test set). Each line has one bracketed tree,
    such as (S (NP (DT the) (NN fox)) (VP (VBD ran))), several trees, or none. Parses that --parser
    made for another run are in its prep/parses/SET.txt. Repeatable."""
    parser: str | None = option(None, "stanza")
    """Parser for the sets without --parses. It needs stanza and its models, which are not
    downloaded."""
    spm: str | None = option(None, "FILE…", panel=OWN_FILES)
    """Your SentencePiece model: one for both sides, or two files (SRC TGT or SRC,TGT). Sets
    prep.subwords=sentencepiece."""
    like: Path | None = option(None, "RUN")
    """Turn text into token ids as another run does: take its tokenizers, truecasers, subwords and
    vocabulary, and its preset. `nmtkit train --init-from RUN/systems/NAME` then trains a system of
    that run further, with all its weights."""
    codes: str | None = option(None, "FILE…", panel=OWN_FILES)
    """Merges that subword-nmt has learned: one file for both sides, or two files (SRC TGT or
    SRC,TGT). No merges are learned then."""
    vocab: str | None = option(None, "FILE…", panel=OWN_FILES)
    """Subwords of --codes with their counts, as subword-nmt writes them (get-vocab,
    --write-vocabulary): one file for both sides, or two. With prep.joint_vocab, two files are
    joined."""
    preset: str | None = preset_option(
        "that of --like, else of the data set; for your files small below 500,000 training pairs,"
        " else base"
    )
    config: Path | None = config_option()
    assignments: list[str] = set_option("prep.merges=4000")
    run_dir: Path | None = run_option("The run directory to create (default: runs/DATASET).")
    jobs: int = jobs_option()
    engine: str = option("local", "NAME", panel=CLUSTER)
    """Where the work is done. local: processes of this machine; dask, ray: a cluster of that
    library; package.module:function: any concurrent.futures.Executor, which your
    function(address, jobs) returns."""
    address: str | None = option(None, "auto|ADDRESS|FILE", panel=CLUSTER)
    """The cluster of --engine: Dask's tcp://HOST:PORT or scheduler file, Ray's HOST:PORT. auto (the
    default): one on this machine."""
    work: Path | None = option(None, "DIR", panel=CLUSTER)
    """Folder for unfinished work, which all nodes must share (default: prep-work in the run). The
    same command goes on there after it was stopped."""
    shards: int | None = option(None, "N", ge=1, panel=CLUSTER)
    """Without a cluster, for job arrays: the number of jobs. Each job cleans its part of the
    training text."""
    shard: int | None = option(None, "K", ge=0, panel=CLUSTER)
    """The number of this job, from 0 to N - 1."""
    finish: bool = option(False, panel=CLUSTER)
    """After all jobs of an array have ended: do the rest. A part that is missing is an error."""
    force: bool = option(False, panel=GENERAL)
    """Prepare again, even if the corpus is up to date. Systems trained on a different corpus are
    refused afterwards."""

    @field_validator("train", "dev", "codes", "vocab", "spm", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        return one_value(value)

    @field_validator("test", mode="before")
    @classmethod
    def _each_joined(cls, value: Any) -> Any:
        return [one_value(files) for files in value] if isinstance(value, list) else value
