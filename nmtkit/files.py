"""Reading and writing files so that nothing is misread, half-written or lost."""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import importlib
import io
import itertools
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, BinaryIO

from nmtkit.errors import DataError, EnvironmentProblem, remedy

COMPRESSED = (".gz", ".xz", ".zst", ".bz2")
TSV = ".tsv"
_OPENERS = {".gz": "gzip", ".xz": "lzma", ".bz2": "bz2"}
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
"""Errors that only writing raises: disk full, quota exceeded, read-only, file too large."""
LONGEST = 1 << 24
"""The maximum number of bytes of a line of text."""
ZSTANDARD_BLOCK = 1 << 12
"""Bytes that are decompressed at once. Damaged data may grow to 2 ** 15 times its size."""
_MASK = os.umask(0)  # to read the mask is to change it, for all threads: so once, at the start
os.umask(_MASK)
UNFINISHED = ".nmtkit-"
"""The beginning of the name of a file that is being written."""
_FD = "/dev/fd/", "/dev/stdin", "/proc/self/fd/"
"""The beginnings of the path of a pipe of the shell."""
JsonObject = dict[str, Any]
"""What JSON calls an object: values by name."""
_runs: set[Path] = set()


def unwritable(path: Path, error: OSError, hint: str = "") -> EnvironmentProblem:
    """Return the error of a file or folder that cannot be written; `hint` is for a full disk."""
    message = f"cannot write {path}: {error.strerror or error}"
    return EnvironmentProblem(message, hint=remedy(error, hint))


def protect(run: Path) -> None:
    """From now on, refuse to write through a link in a run directory.

    Anybody can have made a run, with symbolic links to files of the user.
    """
    _runs.add(run.absolute())


def check_place(path: Path) -> None:
    """Refuse to write, append or remove at a path that leads out of a protected run.

    Raises: DataError naming the symbolic link, "..", or what is neither a file nor a folder.
    """
    path, inside = path.absolute(), False
    for place in (*reversed(path.parents), path):
        if inside and (place.name == ".." or not _is_plain(place)):
            raise DataError(
                "a run must have a file or folder where nmtkit writes, not a link or a device",
                where=place,
                hint="remove it, or put what it leads to in its place; the whole run may be a link",
            )
        inside = inside or place in _runs


def _is_plain(place: Path) -> bool:
    """True for a file, a folder, or a path that does not exist; it may vanish at any time."""
    try:
        mode = place.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def appending(path: Path, mode: str = "a", errors: str | None = None) -> IO[str]:
    """Open a text file to write at its end.

    Raises: DataError as `check_place`; OSError.
    """
    check_place(path)
    return open(path, mode, encoding="utf-8", errors=errors)


def remove(path: Path) -> None:
    """Remove a file if it exists.

    Raises: DataError as `check_place`.
    """
    check_place(path)
    path.unlink(missing_ok=True)


def check_file(
    path: Path,
    instead: str = "write it to a file first, and name the file",
    once: bool = False,
    where: str | None = None,
) -> None:
    """Raise DataError, before anything is read, unless a path is a file.

    Most texts are read twice: first to check them, then to use them. A pipe would be empty the
    second time. A pipe with a name waits for a writer that may never come, and a device may never
    end.

    Args:
        path: as the user gave it.
        instead: hint for a pipe: what the user can do instead.
        once: True if the file is read only once, so that it may be a pipe of the shell, `<(…)`.
        where: the option that names the file.
    Raises: DataError if it is missing, a directory, a socket, a device, a pipe (with `once` only a
        pipe with a name), or not readable.
    """
    if not path.exists():
        hint = "check the path; relative paths start at the current folder"
        raise DataError(f"no such file: {path}", where, hint)
    if path.is_dir():
        raise DataError(f"is a directory, not a text file: {path}", where, "name a file in it")
    is_pipe = stat.S_ISFIFO(mode := path.stat().st_mode)
    of_shell = is_pipe and str(path).startswith(_FD)
    if not path.is_file() and not (once and (of_shell or str(path) == os.devnull)):
        kind = "a pipe" if is_pipe else "a socket" if stat.S_ISSOCK(mode) else "a device"
        why = "" if once else ", and cannot be read twice"
        raise DataError(f"is {kind}, not a file{why}: {path}", where, instead)
    if not os.access(path, os.R_OK):
        hint = f"chmod u+r {shlex.quote(str(path))}"
        raise DataError(f"no permission to read {path}", where, hint)


def uncompressed(path: Path) -> Path:
    """Return a path without the suffix of compression."""
    return path.with_suffix("") if path.suffix in COMPRESSED else path


def is_tsv(path: Path) -> bool:
    """True if a file is a TSV file by its name, compressed or not."""
    return uncompressed(path).suffix == TSV


def open_binary(path: Path, once: bool = False) -> BinaryIO:
    """Open a file for reading, decompressing .gz, .xz, .bz2 and .zst on the way.

    Args:
        path: the file.
        once: True if the caller reads the file only once, so that it may be a pipe.
    Raises: DataError if it is missing, a directory, a pipe (without `once`), or not readable.
    """
    check_file(path, once=once)
    try:
        return decompressed(path, path.suffix)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def decompressed(path: Path, suffix: str) -> BinaryIO:
    """Open a file for reading as a file of this suffix is read.

    Raises: OSError.
    """
    if suffix in _OPENERS:
        stream: BinaryIO = importlib.import_module(_OPENERS[suffix]).open(path, "rb")
        return stream
    if suffix == ".zst":
        return io.BufferedReader(_Blocks(_zstandard_blocks(open(path, "rb"))))
    return open(path, "rb")


class _Blocks(io.RawIOBase):
    """A stream of bytes that come in blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            if (block := next(self._blocks, None)) is None:
                return 0
            self._rest = memoryview(block)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _zstandard_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a .zst file, frame by frame. zstandard's own reader does not notice that
    a file is cut short.
    """
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # as after zstd --long=31
    frame: Any = None
    with stream:
        while data := stream.read(ZSTANDARD_BLOCK):
            while data:
                frame = frame or decompressor.decompressobj()
                yield frame.decompress(data)
                data, frame = frame.unused_data, None if frame.eof else frame
    if frame:
        raise EOFError("Compressed file ended before the end-of-stream marker was reached")


def line_blocks(path: Path, size: int = 256, once: bool = False) -> Iterator[list[bytes]]:
    """Yield the lines of a file in blocks of at most `size` lines. Lines are split at LF only (not
    at U+2028, form feed, …). Every line is yielded with its LF; the last line gets one if needed.

    Raises: DataError if the file cannot be read, its compressed data is damaged, or a line is too
        long to be text.
    """
    number = 0
    with open_binary(path, once) as stream:
        lines = stream_lines(stream, path)
        while True:
            block: list[bytes] = []
            try:
                block.extend(itertools.islice(lines, size))
            except Exception as error:
                problem, hint = "damaged compressed data after", "fetch the file again"
                if isinstance(error, (OSError, EOFError, ValueError)):
                    problem, hint = "cannot read beyond", "is the file complete, and is it text?"
                elif not is_damage(error):
                    raise
                number += len(block)  # lines read before the error
                raise DataError(f"{problem} line {number}: {error}", path, hint) from error
            if not block:
                return
            number += len(block)
            if not block[-1].endswith(b"\n"):
                block[-1] += b"\n"
            yield block


def is_damage(error: Exception) -> bool:
    """True for an error of compressed data that is damaged or cut short."""
    if isinstance(error, OSError):  # of gzip and bz2; an error of the disk has a number
        return error.errno is None
    packages = {"zlib", "lzma", "_lzma", "zstandard"}  # they have their own error classes
    return isinstance(error, EOFError) or type(error).__module__.split(".")[0] in packages


def stream_lines(stream: BinaryIO, where: object) -> Iterator[bytes]:
    """Yield the lines of a stream; `where` names it.

    Raises: DataError as `too_long`, before the line fills the memory.
    """
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 2), b""), 1):
        if len(line) > LONGEST and len(line.removesuffix(b"\n")) > LONGEST:
            raise too_long(number, where)
        yield line


def too_long(number: int, where: object) -> DataError:
    """Return the error of a line that is too long to be text."""
    hint = "split it into sentences, one a line; is it text?"
    return DataError(f"line {number:,} has more than 16 MiB", where=where, hint=hint)


def byte_lines(*paths: Path) -> Iterator[bytes]:
    """Yield the lines of files, one file after another, without their LF, as `line_blocks` splits
    them, and without a BOM at the beginning of a file.

    Raises: DataError if a file cannot be read or its compressed data is damaged.
    """
    for path in paths:
        mark = codecs.BOM_UTF8
        for block in line_blocks(path):
            for line in block:
                yield line[:-1].removeprefix(mark)
                mark = b""


def text_lines(path: Path, once: bool = False) -> Iterator[str]:
    """Return the lines of a UTF-8 file as `byte_lines` does; with `once` it may be a pipe.

    Raises: DataError naming line and byte offset of the first byte that is not UTF-8.
    """
    return decoded((line[:-1] for block in line_blocks(path, once=once) for line in block), path)


def decoded(lines: Iterable[bytes], where: object) -> Iterator[str]:
    """Yield lines without their LF as text, without a BOM at the beginning; errors as of
    `text_lines`.
    """
    offset = 0  # in the uncompressed file
    for number, raw in enumerate(lines, 1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            around = raw[max(0, error.start - 15) : error.start + 15].decode("utf-8", "replace")
            raise DataError(
                f"not UTF-8: byte 0x{raw[error.start]:02x}",
                where=f"{where}, line {number}, byte {offset + error.start} (near {around!r})",
                hint="convert it to UTF-8 first, for example with iconv; compressed text needs its"
                " suffix (.gz), or zcat before stdin",
            ) from error
        yield line.removeprefix("\ufeff") if number == 1 else line
        offset += len(raw) + 1


def count_lines(path: Path) -> int:
    """Return the number of lines of a text file; a last line without LF counts.

    Raises: DataError if the file cannot be read.
    """
    return sum(map(len, line_blocks(path)))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal text.

    Raises: DataError as `check_file`.
    """
    check_file(path)
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def text_sha256(text: str) -> str:
    """Return the SHA-256 of a text as hexadecimal text."""
    return hashlib.sha256(text.encode()).hexdigest()


def hashes(paths: Iterable[Path], folder: Path) -> dict[str, str]:
    """Return path in a folder -> SHA-256, for those of the paths that are files."""
    return {str(path.relative_to(folder)): sha256(path) for path in paths if path.is_file()}


def changed(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Return the names in `hashes` whose file in the folder is missing or has another SHA-256."""
    return [
        name
        for name, digest in hashes.items()
        if not (folder / name).is_file() or sha256(folder / name) != digest
    ]


def removed(folder: Path, names: Iterable[str]) -> list[str]:
    """Return the names of files that are missing in a folder; [] if this user cannot write there,
    for example in the run of another user.
    """
    if not os.access(folder, os.W_OK):
        return []
    return [name for name in names if not (folder / name).is_file()]


@contextlib.contextmanager
def _if_supported() -> Iterator[None]:
    """Ignore the error of an operation that the file system does not support."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}:
            raise


def give_usual_mode(path: Path) -> None:
    """Give a file the mode of the user's other new files (umask)."""
    with _if_supported():
        path.chmod(0o666 & ~_MASK)


@contextlib.contextmanager
def writing(path: Path, mode: str = "w", durable: bool = True) -> Iterator[IO[Any]]:
    """Write a file completely or not at all: write a temporary file beside it, fsync, rename.

    Args:
        path: the final path; its folder is created.
        mode: "w" (UTF-8, LF) or "wb".
        durable: False for a file that is checked before it is used: no fsync, which is slow for
            many small files, so after a power cut the file may be damaged.
    Raises: DataError as `check_place`; EnvironmentProblem if the disk is full or not writable.
        Other errors of the body are raised unchanged.
    """
    check_place(path)
    temporary, in_body = "", False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f"{UNFINISHED}{path.name}-", dir=path.parent)
        text: Any = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
        with os.fdopen(handle, mode, **text) as stream:
            in_body = True
            yield stream
            in_body = False
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        give_usual_mode(Path(temporary))
        os.replace(temporary, path)
    except OSError as error:
        if in_body and error.errno not in UNWRITABLE:
            raise  # not about this file: for example a closed pipe or an unreadable input
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # it has its final name, or was never made
            os.unlink(temporary)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file atomically."""
    with writing(path) as stream:
        stream.write(text)


def write_lines(path: Path, lines: list[str]) -> None:
    """Write each string as one line, atomically; a string must not contain an LF."""
    with writing(path) as stream:
        stream.writelines(line + "\n" for line in lines)


def write_array(path: Path, values: Any, durable: bool = False) -> Path:
    """Write a numpy array as `writing` does, and return its path."""
    import numpy as np

    with writing(path, "wb", durable) as stream:
        # numpy writes into a file itself, and does not say why it fails
        np.save(SimpleNamespace(write=stream.write), values, allow_pickle=False)
    return path


def write_json(path: Path, value: object) -> None:
    """Write indented JSON atomically (keys in the order given)."""
    write_text(path, json_text(value))


def json_text(value: object) -> str:
    """Return the text that `write_json` writes."""
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with _if_supported():
            os.fsync(handle)
    finally:
        os.close(handle)


def expanded_path(path: str | Path) -> Path:
    """Return a path with the home folder in place of a leading `~`; a shell does not replace the
    `~` of `--run=~/x`.
    """
    path = Path(path)
    with contextlib.suppress(RuntimeError):  # no such user, as in ~x
        return path.expanduser()
    return path


def cache_folder() -> Path:
    """Return the folder of downloads and parsed dictionaries: NMTKIT_CACHE if it is set, otherwise
    a folder in the user's cache folder.
    """
    if os.environ.get("NMTKIT_CACHE"):
        return expanded_path(os.environ["NMTKIT_CACHE"])
    import platformdirs

    return Path(platformdirs.user_cache_dir("nmtkit"))
