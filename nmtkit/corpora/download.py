"""Download one file; continue a download that broke off.

A server may honour, ignore or refuse a Range. It may send a web page instead of the file, break
off, send more than the file, send without end, or send hardly anything.
NAME.part holds the bytes so far. It is locked: if two processes want the file, one downloads and
the other waits. When the file is complete, NAME.part is renamed to NAME.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import re
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

from rich.filesize import decimal

from nmtkit import console
from nmtkit.errors import EnvironmentProblem
from nmtkit.locks import take_lock

CONNECT_SECONDS = 15
SILENT_SECONDS = 30
"""If a server sends nothing for this long, nmtkit asks again."""
TRIES = 3
"""After this many attempts in a row without new bytes, nmtkit gives up an address."""
SLOW_SECONDS, SLOW_BYTES = 60, 60_000
"""nmtkit stops a download if fewer than SLOW_BYTES arrive in SLOW_SECONDS."""
MOST = 1 << 36
"""The most bytes that a file of unpublished size may have."""
REDIRECTS = 10
AHEAD = 64
"""The most blocks that wait to be written."""
BUSY = {429, 500, 502, 503, 504}
BLOCK = 1 << 13
"""Bytes read at once; a broken connection loses fewer bytes than this."""
PAGE = re.compile(rb"^(\xef\xbb\xbf)?\s*(<!doctype html|<html)", re.I)


class Failed(EnvironmentProblem):
    """The file could not be downloaded from an address."""


class _Broken(Exception):
    """The connection ended before the file did; asking again may help."""


def download(url: str, path: Path, size: int | None, trusted: bool) -> bool:
    """Download a file from an address; continue where an earlier attempt stopped.

    Args:
        url: http(s) address.
        path: the file; it appears only when complete. The caller compares the checksum.
        size: bytes; None if not published.
        trusted: True if the file has a published checksum, so that a part from another address may
            be continued.
    Returns: True if the file was assembled from several transfers.
    Raises: Failed if the address does not deliver the file; PATH.part keeps the bytes so far.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _sole_writer(path.with_name(f"{path.name}.part")) as stream:
        part = _Part(url, path, stream, size)
        if path.is_file():  # another process has downloaded it
            part.remove()
            return False
        part.check_origin(trusted)
        console.say(f"downloading {url}" + (f" ({decimal(size)})" if size else ""))
        try:
            _ask_until_whole(part)
            part.finish()
        finally:
            if not part.done:
                part.remove()
        return part.continued


def _ask_until_whole(part: _Part) -> None:
    """Request the rest until the file is complete; fail if several requests bring no new bytes."""
    failures, most = 0, part.done
    while True:
        try:
            _transfer(part)
            return
        except _Broken as error:
            part.check_pace()
            failures = 0 if part.done > most else failures + 1
            most = max(most, part.done)
            reason = f"{error}; {decimal(part.done)} are kept" if part.done else str(error)
            if failures >= TRIES or not part.answered:
                raise Failed(reason) from error
            console.say(f"{part.path.name}: {reason}; trying again")
            time.sleep(2**failures / 4)


def _transfer(part: _Part) -> None:
    """Make one request, for the whole file or the rest of it."""
    import requests
    import urllib3

    arriving = _in_a_thread(part)
    try:
        response = next(arriving)
        if response.status_code in {200, 206}:
            part.receive(response, arriving)
        else:
            _refused(response, part)
    except (requests.ConnectionError, requests.Timeout, urllib3.exceptions.TimeoutError) as error:
        raise _Broken(_reason(error)) from error
    except urllib3.exceptions.HTTPError as error:
        raise _Broken("the connection broke off") from error
    except (requests.RequestException, ValueError) as error:  # ValueError: the address is invalid
        raise Failed(_reason(error)) from error
    finally:
        arriving.close()


def _in_a_thread(part: _Part) -> Generator[Any, None, None]:
    """Yield the response to a request, then its body in blocks.

    A thread reads, because a server that now and then sends one byte of a header blocks the reader
    forever.

    Raises: Failed as `_Part.check_pace`, and the errors of the request.
    """
    arrived: queue.Queue[Any] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def put(item: object) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                arrived.put(item, timeout=1)
                return

    def read() -> None:
        try:
            with _answer(part) as response:
                # Old servers announce a .tgz as x-gzip; without the header it is not decompressed.
                response.raw.headers.pop("Content-Encoding", None)
                put(response)
                while not stopped.is_set() and (block := response.raw.read(BLOCK)):
                    put(block)
                put(None)
        except Exception as error:
            put(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (item := part.wait(arrived)) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        stopped.set()


def _answer(part: _Part) -> Any:
    """Return the response to a request.

    Redirections are followed here, because `requests` would read the whole body of each of them.
    """
    import requests

    url = part.url
    for _ in range(REDIRECTS):
        with requests.Session() as session:
            setattr(session, "get_redirect_target", lambda response: None)  # noqa: B010
            timeout = CONNECT_SECONDS, SILENT_SECONDS
            response = session.get(url, headers=part.headers(), timeout=timeout, stream=True)
        if not response.is_redirect:
            return response
        url = urljoin(url, response.headers["Location"])
        response.close()
    raise Failed("the server redirects without end")


def _refused(response: Any, part: _Part) -> None:
    """Raise an error, unless the server refuses because the part is already complete."""
    status = f"the server answers {response.status_code} {response.reason}"
    if response.status_code == 416 and part.done:
        if response.headers.get("Content-Range", "").rpartition("/")[2] == str(part.done):
            return
        part.restart()
        part.answered = True
        raise _Broken("the server has another file than the one partly downloaded")
    raise (_Broken if response.status_code in BUSY and part.answered else Failed)(status)


def _reason(error: BaseException) -> str:
    """Return the innermost cause of a failed request in few words."""
    while isinstance(
        cause := getattr(error, "reason", None) or next(iter(error.args), None), Exception
    ):
        error = cause
    reason = str(error) or type(error).__name__
    return re.sub(r"^HTTPS?Connection(Pool)?\(.*?\): ", "", reason)


class _Part:
    """NAME.part, the bytes downloaded so far.

    NAME.part.from holds their address and the file's version (ETag or Last-Modified).
    """

    def __init__(self, url: str, path: Path, stream: BinaryIO, size: int | None) -> None:
        self.url, self.path, self.size = url, path, size
        self.answered = self.continued = False
        self._stream = stream
        self._origin = path.with_name(f"{path.name}.part.from")
        self._version = ""
        # The pace counts over all attempts at this address.
        self._start, self._bytes = time.monotonic(), 0

    @property
    def done(self) -> int:
        """The number of bytes downloaded so far."""
        return self._stream.tell()

    def wait(self, arrived: queue.Queue[Any]) -> Any:
        """Return the next item that arrives, and count its bytes.

        Raises: Failed as `check_pace`.
        """
        while True:
            self.check_pace()
            left = self._start + SLOW_SECONDS - time.monotonic()
            with contextlib.suppress(queue.Empty):
                item = arrived.get(timeout=max(0, left))
                self._bytes += len(item) if isinstance(item, bytes) else 0
                return item

    def check_pace(self) -> None:
        """Raise Failed if too few bytes arrived in the last SLOW_SECONDS."""
        if time.monotonic() - self._start < SLOW_SECONDS:
            return
        if self._bytes < SLOW_BYTES:
            raise Failed(
                f"too slow: {decimal(self._bytes)} in {SLOW_SECONDS:g} s; what came is kept"
            )
        self._start, self._bytes = time.monotonic(), 0

    def check_origin(self, trusted: bool) -> None:
        """Start again unless the part may be continued from this address."""
        with contextlib.suppress(OSError, ValueError):
            address, version = self._origin.read_text("utf-8").split("\n")[:2]
            self._version = version if address == self.url else ""
        if not self._version and not trusted:
            self.restart()

    def restart(self) -> None:
        """Empty the part."""
        self._stream.seek(0)
        self._stream.truncate()
        self.continued = False

    def headers(self) -> dict[str, str]:
        """Return the headers that ask for what is missing."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "nmtkit"}
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
            if self._version:
                headers["If-Range"] = self._version  # a changed file is sent whole
        return headers

    def receive(self, response: Any, blocks: Iterator[bytes]) -> None:
        """Write the response to the part: the whole file (200) or its rest (206)."""
        self.answered = True
        headers = response.headers
        self._note_version(headers)
        whole = response.status_code == 200
        length = headers.get("Content-Length", "") if whole else self._total_length(headers)
        total = int(length) if re.fullmatch("[0-9]{1,18}", length) else self.size
        most = self.size or MOST
        expected = decimal(most) if self.size else f"at most {decimal(most)}"
        if total is not None and total > most:
            raise Failed(f"the server announces {decimal(total)}, the file has {expected}")
        with console.progress(f"downloading {self.path.name}", total) as advance:
            advance(self.done)
            block = b""
            for number, block in enumerate(blocks):
                if number == 0 and whole:
                    advance(-self.done)
                    self._replace(block)
                if self.done + len(block) > most:
                    self.restart()
                    raise Failed(
                        f"the server sends more than the file has ({expected}); what came is"
                        " removed"
                    )
                self.continued |= not whole
                self._stream.write(block)
                advance(len(block))
        if not block or (total is not None and self.done < total):
            raise _Broken("the connection ended early")

    def _note_version(self, headers: Mapping[str, str]) -> None:
        """Record the version of the file that the server sends: its ETag or Last-Modified."""
        etag = headers.get("ETag", "W/")
        self._version = headers.get("Last-Modified", "") if etag.startswith("W/") else etag
        self._origin.write_text(f"{self.url}\n{self._version}\n", encoding="utf-8")

    def _total_length(self, headers: Mapping[str, str]) -> str:
        """Return the length of the whole file ("*": unknown); fail if another part comes."""
        rest = re.match(r"bytes ([0-9]{1,18})-\d+/(\d+|\*)", headers.get("Content-Range", ""))
        if rest is None or int(rest[1]) != self.done:
            self.restart()
            raise _Broken("the server sent another part of the file than asked for")
        return rest[2]

    def _replace(self, block: bytes) -> None:
        """Empty the part for the whole file, of which this block is the first."""
        if PAGE.match(block):
            raise Failed(
                "a web page came instead of the file: a login, a proxy, or the file has moved"
            )
        if self.done:
            console.say(f"{self.path.name}: the server cannot continue a download; starting again")
            self.restart()

    def finish(self) -> None:
        """Rename the complete part to the file's name."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._origin.unlink(missing_ok=True)
        os.replace(self._stream.name, self.path)

    def remove(self) -> None:
        """Remove the part and NAME.part.from."""
        Path(self._stream.name).unlink(missing_ok=True)
        self._origin.unlink(missing_ok=True)


@contextlib.contextmanager
def _sole_writer(part: Path) -> Iterator[BinaryIO]:
    """Open NAME.part for appending, with a lock that only one process can hold."""
    while True:
        with open(part, "ab") as stream:
            if take_lock(stream, fcntl.LOCK_EX) is False:
                console.say(f"another process is downloading {part.stem}; waiting for it")
                fcntl.flock(stream, fcntl.LOCK_EX)
            # The process that held the lock may have renamed or removed the file opened here.
            try:
                same = os.path.samestat(part.stat(), os.fstat(stream.fileno()))
            except FileNotFoundError:
                same = False
            if same:
                yield stream
                return
