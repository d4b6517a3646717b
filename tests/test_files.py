"""Reading of plain and compressed text, and writing of files whole or not at all."""

import bz2
import errno
import gzip
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
import zstandard

from nmtkit import files, folders
from nmtkit.errors import DataError, EnvironmentProblem
from tests.full_disk import full_disk
from tests.refused import refused
from tests.systems import needs_dev_full

TEXT = "eins\u2028zwei\x85drei\x0cvier\n\nfünf\r\nno newline at the end"
LINES = ["eins\u2028zwei\x85drei\x0cvier", "", "fünf\r", "no newline at the end"]


PACKED = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
}


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), *PACKED.items()])
def test_lines_end_at_lf_only_in_every_compression(tmp_path, suffix, pack):
    path = tmp_path / f"text.en{suffix}"
    path.write_bytes(pack(TEXT.encode()))
    assert list(files.text_lines(path)) == LINES
    assert files.count_lines(path) == len(LINES)


@pytest.mark.parametrize(("suffix", "pack"), PACKED.items())
def test_truncated_compressed_file_is_refused(tmp_path, suffix, pack):
    path = tmp_path / f"text{suffix}"
    data = pack(b"".join(b"line %d\n" % number for number in range(5000)))
    for whole in (b"", data):
        path.write_bytes(whole + data[:-20])
        refused(DataError, "ended before the end-of-stream marker", files.count_lines, path)
    path.write_bytes(data + data)
    assert files.count_lines(path) == 10_000


def test_all_frames_of_a_zst_file_are_read(tmp_path):
    path, skipped = tmp_path / "text.zst", b"\x50\x2a\x4d\x18\x04\0\0\0skip"
    frames = [
        zstandard.compress(text) for text in (b"", b"one\n", b"x" * 300_000 + b"\n", b"three")
    ]
    path.write_bytes(skipped + b"".join(frames) + skipped)
    assert list(files.text_lines(path)) == ["one", "x" * 300_000, "three"]
    path.write_bytes(b"(\xb5/\xfd\x00\x90A\x00\x00one\ntwo\n")  # zstd --long=28
    assert list(files.text_lines(path)) == ["one", "two"]
    path.write_bytes(b"")
    assert list(files.text_lines(path)) == []


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress)])
def test_line_too_long_to_be_text_is_refused(tmp_path, monkeypatch, suffix, pack):
    """For example a pipe without end and without line ends: `<(yes | tr -d '\\n')`."""
    monkeypatch.setattr(files, "LONGEST", 9)
    path = tmp_path / f"text{suffix}"
    path.write_bytes(pack(b"12345678\n123456789\n123456789"))
    assert files.count_lines(path) == 3
    for before in (0, 1, 256, 300):
        path.write_bytes(pack(b"12345678\n" * before + b"1234567890\n1\n"))
        message = f"^line {before + 1} has more than 16 MiB"
        caught = refused(DataError, message, files.count_lines, path)
        assert caught.where == str(path) and caught.hint.startswith("split it into sentences")


def test_missing_file_and_folder_are_refused(tmp_path):
    refused(DataError, "no such file.*nope", files.count_lines, tmp_path / "nope")
    refused(DataError, "is a directory", files.count_lines, tmp_path)


def test_pipes_and_devices_are_refused_unless_a_text_is_read_once(tmp_path, pipe):
    path = pipe("eins\nzwei\n")
    message = "is a pipe, not a file, and cannot be read twice: /dev/fd/"
    for read in (
        files.open_binary,
        files.count_lines,
        files.check_file,
        lambda path: list(files.text_lines(path)),
    ):
        error = refused(DataError, message, read, path)
        assert error.hint.startswith("write it to a file first")
    assert list(files.text_lines(path, once=True)) == ["eins", "zwei"]
    os.mkfifo(tmp_path / "named")  # opening would wait for a writer
    refused(DataError, "is a pipe.*named", files.check_file, tmp_path / "named")
    refused(DataError, "is a device, not a file", files.check_file, Path("/dev/zero"))


def test_bytes_that_are_not_utf8_are_refused_with_line_and_byte(tmp_path):
    path = tmp_path / "latin1"
    path.write_bytes("gut\nsch\xf6n\n".encode("latin-1"))
    refused(DataError, r"0xf6(.|\n)*line 2, byte 7", list, files.text_lines(path))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    refused(DataError, r"0xf6(.|\n)*line 2, byte 10", list, files.text_lines(path))


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError(),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        PermissionError(errno.EACCES, "of an input"),
        OSError("no number"),
    ],
)
def test_error_while_a_file_is_written_is_raised_as_it_is_and_keeps_the_old_file(tmp_path, error):
    path = tmp_path / "out.txt"
    files.write_text(path, "old")
    with pytest.raises(type(error)) as caught, files.writing(path) as stream:
        stream.write("new")
        raise error
    assert caught.value is error
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.parametrize(("count", "room"), [(100, 200), (100_000, 200), (100_000, 9_000)])
def test_array_on_a_full_disk_is_an_environment_error_and_leaves_no_file(tmp_path, count, room):
    path = tmp_path / "x.npy"
    message = f"cannot write {path}: File too large"
    with full_disk(room):
        refused(EnvironmentProblem, message, files.write_array, path, np.arange(count))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG])
def test_full_or_read_only_disk_during_a_write_is_an_environment_error(tmp_path, number):
    with (
        pytest.raises(EnvironmentProblem, match="cannot write .*out.txt"),
        files.writing(tmp_path / "out.txt"),
    ):
        raise OSError(number, os.strerror(number))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["fsync", "replace", "fdopen"])
def test_error_in_any_step_of_a_write_is_an_environment_error(tmp_path, monkeypatch, step):
    def denied(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files.os, step, denied)
    refused(EnvironmentProblem, "Input/output error", files.write_text, tmp_path / "out.txt", "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.ENOTSUP])
def test_file_system_without_modes_and_folder_fsync_is_supported(tmp_path, monkeypatch, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.Path, "chmod", refuse)
    files.write_text(tmp_path / "out.txt", "x")
    assert (tmp_path / "out.txt").read_text() == "x"
    monkeypatch.setattr(files.os, "fsync", refuse)
    files.sync_folder(tmp_path)


@needs_dev_full
def test_full_device_is_noticed_in_write_and_at_the_flush(tmp_path, monkeypatch):
    """On a device without space a long text fails in write, a short text at the flush."""
    fdopen = os.fdopen

    def on_full_device(handle, mode, **text):
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, handle)
        os.close(full)
        return fdopen(handle, mode, **text)

    monkeypatch.setattr(files.os, "fdopen", on_full_device)
    for text in ("x", "x" * 1_000_000):
        refused(EnvironmentProblem, "No space left", files.write_text, tmp_path / "out.txt", text)
    assert list(tmp_path.iterdir()) == []


def test_old_folder_is_restored_if_the_new_one_cannot_be_published(tmp_path):
    final = tmp_path / "final"
    final.mkdir()
    with pytest.raises(FileNotFoundError):
        folders.publish(tmp_path / "missing", final, ())
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_bom_at_the_start_of_a_text_is_removed(tmp_path):
    path = tmp_path / "file"
    path.write_text("<d>\n\ufeffb\n", "utf-8-sig")
    assert list(files.byte_lines(path)) == [b"<d>", "\ufeffb".encode()]
    assert list(files.text_lines(path)) == ["<d>", "\ufeffb"]
    stdin = path.read_bytes().splitlines()
    assert list(files.decoded(stdin, "stdin")) == ["<d>", "\ufeffb"]


def test_bom_at_the_start_of_codes_counts_starts_and_links_is_removed(tmp_path):
    from nmtkit.corpora.document_starts import read_starts
    from nmtkit.measures.links import read_gold
    from nmtkit.text.bpe import Bpe
    from nmtkit.text.vocabulary import read_counts

    path = tmp_path / "file"

    def marked(text):
        path.write_text(text, "utf-8-sig")
        return path

    assert Bpe(marked("#version: 0.2\na b</w>\n")).segment(["ab", "ba"]) == ["ab", "b@@", "a"]
    for end in ("\n", "\r\n"):
        assert read_counts(marked(f"a@@ 3{end}b 2{end}")) == {"a@@": 3, "b": 2}
    assert read_starts(marked("0\n2\n"), 3) == [0, 2]
    assert read_starts(marked("talk\ntalk\nnews\n"), 3) == [0, 2]
    assert read_gold(marked("1-1 2-2\n"))[0].sure == {(0, 0), (1, 1)}


def test_changed_and_missing_files_are_named(tmp_path):
    for name in ("same", "other", "gone"):
        (tmp_path / name).write_text(name, "utf-8")
    known = files.hashes([tmp_path / name for name in ("same", "other", "gone", "no")], tmp_path)
    assert files.changed(tmp_path, known) == []
    (tmp_path / "other").write_text("changed", "utf-8")
    (tmp_path / "gone").unlink()
    assert files.changed(tmp_path, known) == ["other", "gone"]
