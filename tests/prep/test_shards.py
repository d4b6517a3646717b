"""Shards hold every line once and in order, and are read from the middle of files."""

import gzip
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nmtkit.errors import DataError
from nmtkit.prep import check, shards
from nmtkit.prep.check import inspect
from nmtkit.prep.shards import cut, shard_rows, unpack
from tests.refused import refused

LINES = st.lists(
    st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), min_size=1, max_size=40
)


def text_files(folder, name, lines, ends):
    """Write the lines as one or more files, some without a last LF; return what `inspect` finds."""
    folder.mkdir(exist_ok=True)
    cuts = sorted({min(end, len(lines)) for end in ends} | {0, len(lines)})
    result = []
    for number, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        path = folder / f"{name}{number}"
        path.write_bytes(b"\n".join(lines[start:end]) + b"\n" * (lines[end - 1] == b""))
        result.append(inspect(path, strict=False))
    return result


@given(LINES, st.lists(st.integers(1, 40), max_size=3), st.integers(1, 50), st.integers(1, 7))
@hypothesis_settings(max_examples=150, deadline=None)
def test_shards_hold_every_line_once_and_in_order(tmp_path_factory, lines, ends, rows, every):
    folder = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        for module in (check, shards):
            patch.setattr(module, "MARK_EVERY", every)
        streams = [text_files(folder, "a", lines, ends), text_files(folder, "b", lines[::-1], [])]
        parts = cut(streams, rows)
        assert [part.index for part in parts] == list(range(len(parts)))
        assert [part.first for part in parts] == list(range(0, len(lines), rows))
        read = [list(part.chunks(max_rows=3, max_bytes=20)) for part in parts]
    sides = zip(*(chunk for chunks in read for chunk in chunks), strict=True)
    src, tgt = (b"".join(side).split(b"\n")[:-1] for side in sides)
    assert src == lines and tgt == lines[::-1]
    assert all(chunk[0].count(b"\n") <= 3 for chunks in read for chunk in chunks)
    sizes = [sum(chunk[0].count(b"\n") for chunk in chunks) for chunks in read]
    assert sizes == [part.rows for part in parts] and set(sizes[:-1]) <= {rows}


def test_file_that_becomes_shorter_is_an_error(tmp_path):
    (tmp_path / "a").write_bytes(b"x\n" * 20)
    text = inspect(tmp_path / "a", strict=True)
    (part,) = cut([[text], [text]], 20)
    (tmp_path / "a").write_bytes(b"x\n" * 19)
    caught = refused(DataError, "changed while they were read", list, part.chunks())
    assert "run prep again" in caught.hint


def test_compressed_text_is_read_from_its_middle(tmp_path):
    lines = [f"line {number}".encode() for number in range(5000)]
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    facts = inspect(tmp_path / "a.gz", strict=True)
    _, (plain,) = unpack(tmp_path, 3, tmp_path / "a.gz")
    assert plain == tmp_path / "plain" / "00003.txt"
    last = cut([[replace(facts, plain=plain)]], 1500)[-1]
    assert b"".join(chunk[0] for chunk in last.chunks()).split(b"\n")[:-1] == lines[4500:]


def test_shard_size_grows_with_the_text_between_limits():
    sizes = {1: 5000, 320_000: 5000, 640_000: 10_000, 4_500_000: 70_312, 10**9: 200_000}
    assert {lines: shard_rows(lines, 0) for lines in sizes} == sizes
    assert shard_rows(10**9, 77) == 77
