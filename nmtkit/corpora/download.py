"""Downloading one file: what is there already is kept when the connection breaks, and the good name appears only for the whole file.

The transfer is pooch's; what is added here is the way a server's answer is taken: a Range that is honoured, ignored or refused, a web
page that comes instead of the file, a connection that dies. NAME.part is the file in the making; its lock is the kernel's, so that of two
processes one downloads and the other waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmtkit import console
from nmtkit.corpora.checksums import human_size

CONNECT_SECONDS = 15
SILENT_SECONDS = 30
"""A server that sends nothing for so long is given up (and asked again)."""
TRIES = 3
"""Attempts in a row that bring nothing new before an address is given up."""
BUSY = {429, 500, 502, 503, 504}
BLOCK = 1 << 13
"""What is read at once; less than that may be lost when a connection breaks."""
PAGE = re.compile(rb"^(\xef\xbb\xbf)?\s*(<!doctype html|<html)", re.I)


class Failed(Exception):
    """An address did not give the file."""


def download(url: str, path: Path, size: int | None, trusted: bool) -> bool:
    """Bring a file from an address, going on where an earlier attempt stopped.

    Args:
        url: http(s) address.
        path: the good name; it appears only when the file is whole (its checksum is for the caller to compare).
        size: bytes; None if not published.
        trusted: the file has a published checksum, so that a part from another address may be continued.
    Returns: whether it was put together from several transfers.
    Raises: Failed if this address doesn't give it; then path doesn't exist, and path.part holds what did come.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _sole_writer(path) as stream:
        if stream is None:  # another process has brought it meanwhile
            return False
        part = _Part(path, stream, size)
        part.start(url, trusted)
        console.say(f"downloading {url}" + (f" ({human_size(size)})" if size else ""))
        try:
            _persist(url, part)
            part.finish()
        finally:
            part.leave_nothing_empty()
        return part.continued


def _persist(url: str, part: _Part) -> None:
    """Ask until the part is whole, as long as asking brings something.

    Raises: Failed.
    """
    failures, most = 0, part.done
    while True:
        try:
            with contextlib.ExitStack() as part.display:
                _transfer(url, part)
            return
        except _Broken as error:
            failures = 0 if part.done > most else failures + 1
            most = max(most, part.done)
            kept = f"; {human_size(part.done)} are kept" if part.done else ""
            if failures >= TRIES or not part.answered:
                raise Failed(f"{error}{kept}") from error
            console.say(f"{part.path.name}: {error}{kept}; trying again")
            time.sleep(2**failures / 4)


class _Broken(Exception):
    """The connection ended before the file did; asking again may help."""


class _Part:
    """NAME.part, and how far it is. Pooch writes into it; the server's answer decides where."""

    def __init__(self, path: Path, stream: BinaryIO, size: int | None) -> None:
        self.path = path
        self.file = path.with_name(path.name + ".part")
        self.size = size
        self.advance: Callable[[float], None] = lambda amount: None
        self.display = contextlib.ExitStack()
        self.answered = False
        self.continued = False
        self.url = ""
        self.done = os.fstat(stream.fileno()).st_size
        self._stream = stream
        self._from = path.with_name(path.name + ".part.from")  # address and validator of what is in the part
        self._validator = ""
        self._total: int | None = None
        self._begun = False
        self._fresh = True

    def start(self, url: str, trusted: bool) -> None:
        """Decide whether what is there may be continued from this address."""
        self.url = url
        address, validator = "", ""
        with contextlib.suppress(OSError, ValueError):
            address, validator = self._from.read_text("utf-8").split("\n")[:2]
        if address == url and validator:
            self._validator = validator
        elif not trusted:
            self.restart()

    def restart(self) -> None:
        """Forget what is there."""
        self.advance(-self.done)
        self._stream.truncate(0)
        self.done, self.continued = 0, False

    def headers(self) -> dict[str, str]:
        """What to ask for: the rest, if a part is there."""
        asked = {"Accept-Encoding": "identity", "User-Agent": "nmtkit"}
        if self.done:
            asked["Range"] = f"bytes={self.done}-"
            if self._validator:
                asked["If-Range"] = self._validator  # a file that has changed comes whole
        return asked

    def answer(self, response: Any, *_: object, **__: object) -> None:
        """Look at the server's answer before its content comes."""
        status, headers = response.status_code, response.headers
        if status not in {200, 206}:
            return
        self.answered = True
        self._begun = False
        response.raw.headers.pop("Content-Encoding", None)  # "x-gzip" of a .tgz: the file itself is meant
        rest = re.match(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", "")) if status == 206 else None
        self._fresh = rest is None or int(rest[1]) != self.done
        length = headers.get("Content-Length", "")
        self._total = int(rest[2]) if rest and rest[2].isdigit() else int(length) if length.isdigit() and self._fresh else None
        etag = headers.get("ETag", "")
        self._validator = headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag
        self._from.write_text(f"{self.url}\n{self._validator}\n", encoding="utf-8")
        self.advance = self.display.enter_context(console.progress(f"downloading {self.path.name}", self._total or self.size))
        self.advance(self.done)
        if status == 206 and self._fresh:
            self.restart()
            raise _Broken("the server sent another part of the file than asked for")

    def write(self, block: bytes) -> None:
        """Take what came."""
        if not self._begun and self._fresh:
            if PAGE.match(block) and not PAGE.match(self.path.name.encode()):
                raise _Page(block)
            if self.done:
                console.say(f"{self.path.name}: the server cannot continue a download; starting it again")
                self.restart()
        elif not self._begun:
            self.continued = True
        self._begun = True
        self._stream.write(block)
        self.done += len(block)
        self.advance(len(block))

    def flush(self) -> None:
        """Called by pooch after every block; the file is flushed when it is whole."""

    def whole(self) -> bool:
        """Whether nothing is missing, as far as the server or the table says."""
        wanted = self._total if self._total is not None else self.size
        return self._begun and (wanted is None or self.done >= wanted)

    def finish(self) -> None:
        """Give the file its good name."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._from.unlink(missing_ok=True)
        os.replace(self.file, self.path)

    def leave_nothing_empty(self) -> None:
        """Take the part away if nothing came."""
        if not self.done:
            for path in (self.file, self._from):
                path.unlink(missing_ok=True)


class _Page(Exception):
    """A web page came instead of the file."""


def _transfer(url: str, part: _Part) -> None:
    """One request: the whole file, or the rest of it.

    Raises: _Broken if it ended early, Failed if the server refuses or sends something else.
    """
    import pooch
    import requests

    if part.size is not None and part.done >= part.size:
        if part.done == part.size:
            return
        part.restart()
    get = pooch.HTTPDownloader(
        progressbar=False, chunk_size=BLOCK, headers=part.headers(), timeout=(CONNECT_SECONDS, SILENT_SECONDS), hooks={"response": part.answer}
    )
    try:
        get(url, part, None)
    except _Page as page:
        title = re.search(rb"<title[^>]*>\s*(.*?)\s*</title", page.args[0], re.I | re.S)
        said = f" ('{title[1].decode('utf-8', 'replace')[:80]}')" if title else ""
        raise Failed(f"a web page came instead of the file{said}: a login, a proxy, or the file has moved") from None
    except requests.HTTPError as error:
        if not _whole_after_all(error.response, part):
            raise Failed(_status(error.response)) from error
        return
    except requests.exceptions.ChunkedEncodingError as error:
        raise _Broken("the connection broke off") from error
    except (requests.ConnectionError, requests.Timeout) as error:
        raise _Broken(_reason(error)) from error
    except requests.RequestException as error:
        raise Failed(_reason(error)) from error
    if not part.whole():
        raise _Broken("the connection ended early")


def _whole_after_all(response: Any, part: _Part) -> bool:
    """Whether a refusal only says that there is nothing after what is here.

    Raises: _Broken if asking again may help.
    """
    if response.status_code == 416 and part.done:
        if response.headers.get("Content-Range", "").rpartition("/")[2] == str(part.done):
            return True
        part.restart()
        part.answered = True
        raise _Broken("the server has another file than the part that is here")
    if response.status_code in BUSY and part.answered:
        raise _Broken(_status(response))
    return False


def _status(response: Any) -> str:
    return f"the server answers {response.status_code} {response.reason}"


def _reason(error: BaseException) -> str:
    """Why a request failed, in few words: the innermost cause."""
    while True:
        first = error.args[0] if error.args else None
        cause = getattr(error, "reason", None) or (first if isinstance(first, Exception) else None)
        if cause is None or not isinstance(cause, Exception):
            said = str(error if cause is None else cause) or type(error).__name__
            return re.sub(r"^HTTPS?Connection(Pool)?\(.*?\): ", "", said)
        error = cause


@contextlib.contextmanager
def _sole_writer(path: Path) -> Iterator[BinaryIO | None]:
    """NAME.part opened for appending and locked; None if the file came while another process held it."""
    part = path.with_name(path.name + ".part")
    waited = False
    while True:
        stream = open(part, "ab")
        try:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                console.say(f"another process is downloading {path.name}; waiting for it")
                waited = True
                fcntl.flock(stream, fcntl.LOCK_EX)
            if waited and path.is_file():
                part.unlink(missing_ok=True)
                yield None
                return
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(part.stat(), os.fstat(stream.fileno())):  # else it got its good name while we waited
                    yield stream
                    return
        finally:
            stream.close()
