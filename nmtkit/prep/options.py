"""The options of the stage `prep`, and the files of a set as a user names them: `SRC TGT`,
`SRC,TGT[,TGT…]`, or one TSV file.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import field_validator

from nmtkit.errors import ConfigError, counted
from nmtkit.files import check_file, expanded_path, is_tsv
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

NUL = "\0"
"""Joins the file names of one value. No file name can contain it."""
OPTIONS = {"--train": "training", "--dev": "development", "--test": "test"}
"""The options that name the files of a set, and the word for the set."""
MODELS = {"--codes": "merges", "--vocab": "a vocabulary", "--spm": "a model"}
"""The options that name one file, or one for each side, and what the file contains."""
OWN_FILES, CLUSTER = "Own files", "Many machines"
"""Panels of the help."""


def one_value(files: Any) -> Any:
    """Return the value of an option for a path or a sequence of paths of a Python call."""
    files = [files] if isinstance(files, Path) else files
    return NUL.join(map(str, files)) if isinstance(files, (list, tuple)) else files


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


def joined_words(args: Sequence[str]) -> list[str]:
    """Return a command line in which each option of `OPTIONS` and `MODELS` has a single value.

    A TSV file and a value with a comma are complete. Otherwise an option of `OPTIONS` takes two
    words, an option of `MODELS` one word; both also take all further words that are files.

    Raises: ConfigError for an option without a file.
    """
    joined = []
    words = deque(args)
    while words:
        word = words.popleft()
        option, equals, value = word.partition("=")
        if option not in OPTIONS | MODELS:
            joined.append(word)
            continue
        if equals:
            words.appendleft(value)
        if not words:
            raise _error(f"{_name(option)} needs files, got nothing", option)
        taken = [words.popleft()]
        least = 1 if option in MODELS else 2
        complete = is_tsv(Path(taken[0])) or ("," in taken[0] and not _is_file(taken[0]))
        while not complete and words and not words[0].startswith("-"):
            if len(taken) >= least and not _is_file(words[0]):
                break
            taken.append(words.popleft())
        joined.append(f"{option}={NUL.join(taken)}")
    return joined


def file_list(value: str, option: str) -> list[Path]:
    """Return the files of a set: source, target and further references, or one TSV file.

    Args:
        value: of an option of `OPTIONS`, from `joined_words` or `one_value`.
        option: the option.
    Raises: ConfigError for a value that begins with `--`, or a wrong number of files.
    """
    paths, name = _paths(value, option), _name(option)
    target = "reference" if option == "--test" else "target"
    got = ", ".join(map(str, paths))
    if len(paths) == 1 and is_tsv(paths[0]):
        return paths
    if any(map(is_tsv, paths)):
        raise _error(f"one TSV file holds all sides of {name}, got '{got}'", option)
    if len(paths) < 2 or (len(paths) > 2 and option != "--test"):
        files = f"{counted(len(paths), 'file')}: '{got}'"
        raise _error(f"{name} is a source and a {target}, got {files}", option)
    return paths


def model_files(value: str | None, option: str) -> tuple[Path, ...]:
    """Return the one or two files of an option of `MODELS`; no files for None.

    Raises: ConfigError for more files; DataError for a missing file.
    """
    paths = _paths(value, option) if value else []
    if len(paths) > 2:
        raise _error(f"{_name(option)} is a file, or one for each side: got {len(paths)}", option)
    for path in paths:
        check_file(path, where=option)
    return tuple(paths)


def _paths(value: str, option: str) -> list[Path]:
    separator = NUL if NUL in value or _is_file(value) else ","
    words = [word for word in value.split(separator) if word]
    for word in words:
        if word.startswith("--"):
            raise _error(f"{_name(option)} needs files, got the option '{word}'", option)
    return list(map(expanded_path, words))


def _is_file(name: str) -> bool:
    """True for a file. A list of names may be too long for a file name, which is an OSError."""
    with contextlib.suppress(OSError):
        return expanded_path(name).is_file()
    return False


def _name(option: str) -> str:
    return f"a {OPTIONS[option]} set" if option in OPTIONS else f"the option {option}"


def _error(problem: str, option: str) -> ConfigError:
    hint = f"write {option} news.de news.en, {option} news.de,news.en or {option} news.tsv"
    if option in MODELS:
        hint = f"write {option} FILE, or {option} SRC TGT for {MODELS[option]} of each side"
    return ConfigError(problem, where=option, hint=hint)
