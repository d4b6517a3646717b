"""`--size`: the first pairs of a training text, up to the end of a document, give the corpus of
files that hold no more.
"""

import gzip
import itertools
import tomllib

import pytest

from nmtkit.errors import ConfigError, DataError
from nmtkit.files import sha256
from tests.prep.corpora import pairs, prepare, write
from tests.prep.test_documents import SIZES, corpus, names, prepared, write_corpus, write_lines
from tests.refused import refused


def read_report(stderr):
    """Return what prep prints of the size of the training text."""
    (line,) = [line for line in stderr().split("\n") if "training text: " in line]
    return line.partition("training text: ")[2]


@pytest.mark.parametrize(
    ("form", "size", "jobs", "documents"),
    [("numbers", 1, 1, 1), ("numbers", 4, 2, 2), ("ids", 25, 1, 5), ("blank", 13, 1, 4)],
)
def test_text_ends_with_the_document_of_the_last_pair(
    tmp_path, stderr, form, size, jobs, documents
):
    sets = corpus()
    before, lines = [0, *itertools.accumulate(SIZES["train"])][documents - 1 : documents + 1]
    assert before < size <= lines
    options = write_corpus(tmp_path / "whole", sets, form) | {"jobs": jobs}
    less = sets | {"train": sets["train"][:documents]}
    expected = prepared(tmp_path, write_corpus(tmp_path / "less", less, "numbers"), "expected")
    stderr()
    run = prepared(tmp_path, options, size=size)
    plural = "s" * (documents > 1)
    assert read_report(stderr) == f"the first {lines} of 39 pairs ({documents} document{plural})"
    manifest, wanted = (run.manifest().model_dump() for run in (run, expected))
    for key in ("files", "fingerprint", "sets", "cleaning"):
        assert manifest[key] == wanted[key]
    assert {"train/00000.spans.idx", "docs/train.txt"} <= {*manifest["files"]}
    assert not [name for name in names(run.path) if name.startswith("prep.")]


@pytest.fixture
def prepare_train(tmp_path):
    """Return a function that prepares training files beside the same dev files."""
    dev = write(tmp_path / "in", "dev", pairs(9, 7))
    return lambda name, train, **options: prepare(
        tmp_path, {"train": train, "dev": dev}, name, ["merges=20"], **options
    )


@pytest.fixture
def lines():
    return [*pairs(3), ("", "x"), *pairs(46, 4)]


@pytest.fixture
def compressed(tmp_path, lines):
    """50 pairs, compressed and without the last LF."""
    paths = []
    for path in write(tmp_path / "in", "train", lines):
        paths.append(path.with_name(f"{path.name}.gz"))
        paths[-1].write_bytes(gzip.compress(path.read_bytes().removesuffix(b"\n")))
    return tuple(paths)


def test_size_counts_raw_pairs_where_there_are_no_documents(
    tmp_path, stderr, lines, compressed, prepare_train
):
    run = prepare_train("run", compressed, size=20)
    assert read_report(stderr) == "the first 20 of 50 pairs"
    less = prepare_train("less", write(tmp_path / "in", "less", lines[:20])).manifest()
    manifest = run.manifest()
    assert manifest.files == less.files
    assert manifest.inputs[str(compressed[0])]["sha256"] == sha256(compressed[0])
    assert (manifest.cleaning.pairs_in, manifest.cleaning.pairs_kept) == (20, 19)


def test_size_of_all_pairs_or_more_takes_the_whole_text(
    tmp_path, stderr, lines, compressed, prepare_train
):
    whole = prepare_train("whole", write(tmp_path / "in", "train", lines)).manifest().files
    stderr()
    for size, report in ((50, "all 50 pairs"), (51, "all 50 pairs, fewer than the 51 asked for")):
        run = prepare_train(f"all-{size}", compressed, size=size)
        assert read_report(stderr) == report
        assert run.manifest().files == whole


def test_another_size_is_another_corpus(tmp_path, stderr):
    options = write_corpus(tmp_path / "in", corpus(), "blank")
    run = prepared(tmp_path, options, size=5)
    assert run.manifest().source["size"] == 5
    assert tomllib.loads((run.path / "run.toml").read_text("utf-8"))["size"] == 5
    prepared(tmp_path, options, size=5)
    assert "up to date" in stderr()
    message = "prepared differently [(]1 difference:"
    for size, change in ((6, "5 -> 6"), (None, "5 -> -")):
        caught = refused(ConfigError, message, prepared, tmp_path, options, size=size)
        assert f"source.size: {change}" in caught.where


def test_parses_may_cover_the_taken_lines_only(tmp_path):
    """`--parser` writes such a file for a shortened text. Other numbers of lines are refused."""
    options = write_corpus(tmp_path / "in", corpus(), "numbers")
    trees = tmp_path / "in" / "train.trees"
    lines = trees.read_text("utf-8").split("\n")[:-1]
    whole = prepared(tmp_path, options, size=5).manifest().files
    write_lines(trees, lines[:11])
    assert prepared(tmp_path, options, "taken", size=5).manifest().files == whole
    write_lines(trees, lines[:10])
    for size, source in ((5, 11), (99, 39)):
        message = f"train.trees has 10 lines but the source has {source} [(]train set[)]"
        refused(DataError, message, prepared, tmp_path, options, "wrong", size=size)
        assert not (tmp_path / "wrong").exists()
