"""Only the first pairs of a training text: as if the files held no more, whole documents, and
another corpus than the whole.
"""

import gzip
import tomllib

import pytest

from nmtkit.errors import ConfigError, DataError
from nmtkit.files import sha256
from tests.prep.corpora import pairs, prepare, write
from tests.prep.test_documents import corpus, prepared, write_corpus, written

SIZES = [3, 1, 7, 2, 12, 1, 9, 4]
"""Pairs of each document of `corpus`."""


def by_hand(sets, size):
    """The corpus of the documents that come before the training text has so many pairs."""
    count = next((n for n in range(len(SIZES)) if sum(SIZES[:n]) >= size), len(SIZES))
    return sets | {"train": sets["train"][:count]}, count, sum(SIZES[:count])


def said_of(stderr):
    (said,) = [line for line in stderr().split("\n") if "training text: " in line]
    return said.partition("training text: ")[2]


@pytest.mark.parametrize(
    ("form", "size", "jobs"),
    [("numbers", 1, 1), ("numbers", 4, 2), ("ids", 25, 1), ("blank", 13, 1)],
)
def test_the_text_ends_with_the_document_of_the_last_pair(tmp_path, stderr, form, size, jobs):
    """Stores, documents, phrases, and the sets that are not shortened: byte for byte those of
    files that hold no more.
    """
    sets = corpus()
    less, documents, lines = by_hand(sets, size)
    options = write_corpus(tmp_path / "whole", sets, form) | {"jobs": jobs}
    expected = prepared(tmp_path, write_corpus(tmp_path / "less", less, "numbers"), "expected")
    stderr()
    run = prepared(tmp_path, options, size=size)
    assert (
        said_of(stderr)
        == f"the first {lines} of 39 pairs ({documents} document{'s' * (documents > 1)})"
    )
    manifest, wanted = (one.manifest().model_dump() for one in (run, expected))
    for key in ("files", "fingerprint", "sets", "cleaning"):
        assert manifest[key] == wanted[key]
    assert {"train/00000.spans.idx", "docs/train.txt"} <= {*manifest["files"]}
    assert [path.name for path in run.path.iterdir() if path.name.startswith("prep.")] == []


def test_without_documents_it_ends_after_so_many_pairs(tmp_path, stderr):
    """Raw pairs are counted, the dropped ones too; files may be compressed."""
    lines = pairs(50)
    lines[3] = ("", "x")
    train, dev = write(tmp_path / "in", "train", lines), write(tmp_path / "in", "dev", pairs(9, 7))
    packed = tuple(path.with_name(f"{path.name}.gz") for path in train)
    for path, other in zip(train, packed, strict=True):
        other.write_bytes(gzip.compress(path.read_bytes().removesuffix(b"\n")))

    def run_of(name, train, **options):
        return prepare(tmp_path, {"train": train, "dev": dev}, name, ["merges=20"], **options)

    run = run_of("run", packed, size=20)
    assert said_of(stderr) == "the first 20 of 50 pairs"
    expected = run_of("less", write(tmp_path / "in", "less", lines[:20]))
    assert run.manifest().files == expected.manifest().files
    assert run.manifest().inputs[str(packed[0])]["sha256"] == sha256(packed[0])
    assert (run.manifest().cleaning.pairs_in, run.manifest().cleaning.pairs_kept) == (20, 19)
    whole = run_of("whole", train)
    stderr()
    for size, told in ((50, "all 50 pairs"), (51, "all 50 pairs, fewer than the 51 asked for")):
        same = run_of(f"all-{size}", packed, size=size)
        assert said_of(stderr) == told
        assert same.manifest().files == whole.manifest().files


def test_another_size_is_another_corpus(tmp_path, stderr):
    options = write_corpus(tmp_path / "in", corpus(), "blank")
    run = prepared(tmp_path, options, size=5)
    assert (
        run.manifest().source["size"]
        == tomllib.loads((run.path / "run.toml").read_text("utf-8"))["size"]
        == 5
    )
    prepared(tmp_path, options, size=5)
    assert "up to date" in stderr()
    for size, change in ((6, "5 -> 6"), (None, "5 -> -")):
        with pytest.raises(ConfigError, match="prepared differently [(]1 difference:") as caught:
            prepared(tmp_path, options, size=size)
        assert f"source.size: {change}" in caught.value.where


def test_parses_may_be_of_the_lines_taken_only(tmp_path):
    """As --parser writes them for a shortened text; any other number of lines is refused."""
    options = write_corpus(tmp_path / "in", corpus(), "numbers")
    trees = tmp_path / "in" / "train.trees"
    lines = trees.read_text("utf-8").split("\n")[:-1]
    whole = prepared(tmp_path, options, size=5).manifest().files
    written(trees, lines[:11])
    assert prepared(tmp_path, options, "taken", size=5).manifest().files == whole
    for size, source in ((5, 11), (99, 39)):
        written(trees, lines[:10])
        with pytest.raises(
            DataError, match=f"train.trees has 10 lines but the source has {source} [(]train set[)]"
        ):
            prepared(tmp_path, options, "wrong", size=size)
        assert not (tmp_path / "wrong").exists()
