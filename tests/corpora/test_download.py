"""Download from a local server: resume, verify, and give up on slow or hostile servers."""

import contextlib
import gzip
import hashlib
import http.server
import lzma
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from nmtkit.corpora import download
from nmtkit.corpora.fetch import Finder, checksum, is_cached
from nmtkit.corpora.table import Resource
from nmtkit.errors import DataError, EnvironmentProblem
from tests.refused import refused

CONTENT = random.Random(1).randbytes(50_000)
SIZE = len(CONTENT)
HALF = 3 * download.BLOCK
OTHER = random.Random(2).randbytes(40_000)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Please log in</title></head></html>"
NAME = "corpus/train.bin"
UNKNOWN = {"checksum": None, "size": None}
"""Neither checksum nor size are published."""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


CHECKSUM = f"sha256:{sha256(CONTENT)}"
GIT = "git:" + hashlib.sha1(b"blob %d\0" % SIZE + CONTENT).hexdigest()
BODIES = {"page": PAGE, "wrong": OTHER, "empty": b""}
TRICKLES = {
    "slow-status": b"HTTP/1.1 20",
    "slow-header": b"HTTP/1.1 200 OK\r\nX-",
    "slow-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "slow-redirection": b"HTTP/1.1 302 Found\r\nLocation: /good/",
}
"""Beginnings of answers; then single bytes follow, so that no wait for the next byte is long."""
MALFORMED = {
    "superscript": b"200 OK\r\nContent-Length: \xb2",
    "long-length": b"200 OK\r\nContent-Length: " + b"9" * 5000,
    "long-start": b"206 Partial\r\nContent-Range: bytes " + b"9" * 5000 + b"-9/9",
    "long-total": b"206 Partial\r\nContent-Range: bytes 0-9/" + b"9" * 5000,
    "no-address": b"302 Found\r\nLocation: http://[::1",
    "no-port": b"302 Found\r\nLocation: http://127.0.0.1:99999999/",
    "no-host": b"302 Found\r\nLocation: http://\xff\x01/",
    "no-chunk": b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 5000,
}
"""Answers with a malformed number or address."""
ENDLESS = {
    "drip": (200, ()),
    "endless": (200, ()),
    "huge": (200, ("Content-Length", str(1 << 50))),
    "redirect": (302, ("Location", "/good")),
    "circle": (302, ("Location", "/circle")),
}
"""Status and header of answers whose body has no end."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Behave as the path says, /KIND/OPTION/…; note requests as (path, first byte asked for)."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        _, kind, *options = self.path.split("/")
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        self.server.asked.append((self.path, start))
        count = sum(path == self.path for path, _ in self.server.asked)
        if kind in {*TRICKLES, *MALFORMED, *ENDLESS}:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.misbehave(kind)
        elif kind == "missing":
            self.send_error(404)
        elif kind == "busy" and count <= 2:
            self.send_error(503)
        else:
            self.send_file(kind, options, start, count)

    def misbehave(self, kind):
        """Send a malformed answer, or an answer without end."""
        if kind in MALFORMED:
            self.wfile.write(b"HTTP/1.1 %s\r\n\r\n" % MALFORMED[kind])
            return
        block, pause = (bytes(1 << 16), 0) if kind in ENDLESS else (b"0", 0.05)
        if kind in TRICKLES:
            self.wfile.write(TRICKLES[kind])
        else:
            status, header = ENDLESS[kind]
            self.send_response(status)
            if header:
                self.send_header(*header)
            self.end_headers()
        if kind == "drip":
            block, pause = b"x", 0.05
        while not self.server.gate.wait(pause):
            self.wfile.write(block)
            self.server.sent += len(block)

    def send_file(self, kind, options, start, count):
        """Send the file, or its rest from a byte on."""
        body = BODIES.get(kind, CONTENT)
        if kind == "changed" and count == 1:
            body = OTHER
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        if self.headers.get("If-Range", etag) != etag or "norange" in options:
            start = 0
        if kind == "shifted" and start and count <= 2:
            start -= 10
        beyond = start >= len(body) > 0
        self.send_response(416 if beyond else 206 if start else 200)
        if start:
            sent = "*" if beyond else f"{start}-{len(body) - 1}"
            self.send_header("Content-Range", f"bytes {sent}/{len(body)}")
        if "nolength" in options:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body[start:])))
        if "noetag" not in options:
            self.send_header("ETag", etag)
        if kind == "encoded":
            self.send_header("Content-Encoding", "x-gzip")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.send_body(kind, body[start:], count)

    def send_body(self, kind, body, count):
        """Send a body, with the breaks and pauses of the kind."""
        if kind in {"dying", "changed"} or (kind in {"silent", "shifted"} and count == 1):
            self.wfile.write(body[:HALF])
            self.wfile.flush()
            if kind == "silent":
                self.server.gate.wait(60)
            self.close_connection = True
        elif kind == "crumbs":
            self.wfile.write(body[:3])
        elif kind in {"slow", "gated"}:
            for i in range(0, len(body), 5000):
                self.wfile.write(body[i : i + 5000])
                self.wfile.flush()
                if kind == "slow":
                    time.sleep(0.1)
                elif i == 10_000 and count == 1:
                    self.server.gate.wait(60)
        else:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.sent = [], 0
        server.gate = threading.Event()
        server.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.gate.set()
        server.shutdown()


def find(server, *paths, name=NAME, checksum=CHECKSUM, size=SIZE, from_dir=None):
    """Find a file published at paths of the server; return its path."""
    urls = [server.address + path for path in paths]
    resource = Resource(size=size, checksum=checksum, urls=urls)
    return Finder({name: resource}, from_dir).find(name).path


def refusal(*arguments, **known):
    """Return the error of `find` for a file that no address delivers."""
    return refused(EnvironmentProblem, None, find, *arguments, **known)


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's files."""
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


@pytest.fixture
def part(server, tmp_path):
    """The path of the bytes that an earlier call has downloaded."""
    path = tmp_path / "cache" / "corpus" / "train.bin.part"
    path.parent.mkdir(parents=True)
    return path


def cache(tmp_path, checksums=True):
    """Return the files in the cache; without recorded checksums if `checksums` is False."""
    files = (tmp_path / "cache").rglob("*.*")
    return {p.name: p.read_bytes() for p in files if checksums or p.suffix != ".sha256"}


@pytest.mark.parametrize("checksum", [CHECKSUM, "md5:" + hashlib.md5(CONTENT).hexdigest(), GIT])
def test_file_is_downloaded_once_and_then_taken_from_the_cache(server, tmp_path, checksum, capsys):
    path = find(server, "/good", checksum=checksum)
    assert path == tmp_path / "cache" / "corpus" / "train.bin"
    assert cache(tmp_path) == {"train.bin": CONTENT}
    assert find(server, "/good", checksum=checksum) == path
    assert server.asked == [("/good", 0)]
    assert is_cached(NAME, SIZE) and is_cached(NAME, None) and not is_cached(NAME, 1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "50.0 kB" in printed.err


def test_progress_shows_the_servers_length_and_resumes_at_the_bytes_so_far(server, monkeypatch):
    totals, done = [], []

    @contextlib.contextmanager
    def progress(label, total):
        totals.append((label, total))
        yield done.append

    monkeypatch.setattr(download.console, "progress", progress)
    find(server, "/dying", size=None)
    assert totals == [("downloading train.bin", SIZE)] * 3
    # Each of the three displays begins with the bytes so far.
    assert done[0] == 0 and sum(done) == SIZE + HALF + 2 * HALF


def test_git_checksum_is_the_one_of_git_hash_object(tmp_path):
    (tmp_path / "x").write_bytes(CONTENT)
    output = subprocess.check_output(["git", "hash-object", tmp_path / "x"], text=True)
    assert checksum(tmp_path / "x", "git") == f"git:{output.strip()}"
    (tmp_path / "x.gz").write_bytes(gzip.compress(CONTENT))
    assert checksum(tmp_path / "x.gz", "git", decompress=True) == f"git:{output.strip()}"
    compressed = (tmp_path / "x.gz").read_bytes()
    assert checksum(tmp_path / "x.gz") == f"sha256:{sha256(compressed)}"


# resuming


@pytest.mark.parametrize(
    ("path", "known", "starts"),
    [
        ("/good/nolength", {}, [0]),
        ("/slow", {}, [0]),
        ("/encoded", {}, [0]),  # old servers announce a .tgz as x-gzip; that is not undone
        ("/dying", {}, [0, HALF, 2 * HALF]),
        ("/shifted", {}, [0, HALF, 0]),  # a wrong range: start again
        # A file that has changed is sent whole, because its ETag differs.
        ("/changed", UNKNOWN, [0, HALF, HALF, 2 * HALF]),
    ],
)
def test_interrupted_download_continues_with_the_missing_bytes(
    server, tmp_path, path, known, starts
):
    assert find(server, path, **known).read_bytes() == CONTENT
    assert server.asked == [(path, start) for start in starts]
    assert cache(tmp_path, checksums=False) == {"train.bin": CONTENT}


LENGTH = 30_000
START = CONTENT[:LENGTH]


@pytest.mark.parametrize(
    ("begun", "paths", "known", "asked", "message"),
    [
        (START, ["/good/norange"], {}, [("/good/norange", LENGTH)], "cannot continue"),
        # A busy address that has not answered before is not asked twice.
        (START, ["/busy", "/good"], {}, [("/busy", LENGTH), ("/good", LENGTH)], ""),
        (CONTENT, ["/good"], {"size": None}, [("/good", SIZE)], ""),
        (CONTENT + b"xyz", ["/good"], {"size": None}, [("/good", SIZE + 3), ("/good", 0)], ""),
        (OTHER[:LENGTH], ["/good"], {}, [("/good", LENGTH), ("/good", 0)], "another file"),
        # Without checksum and ETag a part is never continued.
        (OTHER[:LENGTH], ["/good"], UNKNOWN, [("/good", 0)], ""),
        (OTHER[:LENGTH], ["/good/noetag"], UNKNOWN, [("/good/noetag", 0)], ""),
    ],
)
def test_part_of_an_earlier_call_is_continued_if_it_may_be_of_the_same_file(
    server, part, tmp_path, stderr, begun, paths, known, asked, message
):
    part.write_bytes(begun)
    assert find(server, *paths, **known).read_bytes() == CONTENT
    assert server.asked == asked
    assert message in stderr()
    bad = {"train.bin.bad": OTHER[:LENGTH] + CONTENT[LENGTH:]} if "another" in message else {}
    assert cache(tmp_path, checksums=False) == {"train.bin": CONTENT} | bad


def test_server_that_falls_silent_is_asked_again(server, monkeypatch):
    monkeypatch.setattr(download, "SILENT_SECONDS", 1)
    assert find(server, "/silent").read_bytes() == CONTENT
    server.gate.set()
    assert server.asked[:2] == [("/silent", 0), ("/silent", HALF)]


def test_download_of_a_killed_process_is_continued_by_the_next_call(server, part, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", CHILD, server.address + "/gated"])
    wait_until(lambda: part.exists() and part.stat().st_size)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.gate.set()
    assert set(cache(tmp_path)) == {"train.bin.part", "train.bin.part.from"}
    begun = part.stat().st_size
    assert find(server, "/gated").read_bytes() == CONTENT
    assert server.asked == [("/gated", 0), ("/gated", begun)] and begun == download.BLOCK
    assert cache(tmp_path) == {"train.bin": CONTENT}


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


CHILD = f"""
import sys
from nmtkit.corpora.fetch import Finder
from nmtkit.corpora.table import Resource
print(Finder({{"{NAME}": Resource(size={SIZE}, checksum="{CHECKSUM}", urls=[sys.argv[1]])}}).find("{NAME}").path)
"""


def test_three_processes_download_the_same_file_once(server, tmp_path):
    command = [sys.executable, "-c", CHILD, server.address + "/gated"]
    errors = [tmp_path / f"{i}.err" for i in range(3)]
    children = [
        subprocess.Popen(command, stdout=-1, stderr=path.open("wb"), text=True) for path in errors
    ]
    waiting = "another process is downloading"
    wait_until(lambda: sum(waiting in path.read_text() for path in errors) == 2)
    server.gate.set()
    outputs = {child.communicate()[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert outputs == {str(tmp_path / "cache" / "corpus" / "train.bin")}
    assert server.asked == [("/gated", 0)]
    assert cache(tmp_path) == {"train.bin": CONTENT}


def test_server_that_always_breaks_off_without_range_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    error = refusal(server, "/dying/norange")
    assert len(server.asked) == 1 + download.TRIES
    assert "24.6 kB are kept" in error.where
    assert cache(tmp_path)["train.bin.part"] == CONTENT[:HALF]
    assert "train.bin" not in cache(tmp_path)


def test_truncated_file_of_unknown_length_is_refused(server):
    refusal(server, "/dying/nolength/norange")


# wrong files


def test_wrong_file_is_set_aside_and_the_mirror_is_tried(server, tmp_path, stderr):
    assert find(server, "/wrong", "/good").read_bytes() == CONTENT
    assert server.asked == [("/wrong", 0), ("/good", 0)]
    assert cache(tmp_path) == {"train.bin": CONTENT, "train.bin.bad": OTHER}
    message = stderr()
    assert sha256(CONTENT) in message and sha256(OTHER) in message
    assert message.count("trying another address") == 1


def test_web_page_instead_of_the_rest_leaves_the_part(server, part):
    part.write_bytes(START)
    assert "web page" in refusal(server, "/page/norange").where
    assert part.read_bytes() == START


@pytest.mark.parametrize("kind", ["page", "good"])
def test_archive_without_a_checksum_must_begin_as_an_archive(server, tmp_path, kind):
    with pytest.raises((EnvironmentProblem, DataError), match=r"cannot download|is no \.tgz file"):
        find(server, f"/{kind}", name="corpus/de-en.tgz", **UNKNOWN)
    assert not (tmp_path / "cache" / "corpus" / "de-en.tgz").exists()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/page", "web page"),
        ("/missing", "404"),
        ("/wrong", "another file"),
        ("/busy", "503"),
        ("/empty", ""),
        ("/circle", "redirects without end"),
    ],
)
def test_error_names_every_address_with_its_reason_and_no_file_is_left(
    server, tmp_path, path, reason
):
    error = refusal(server, path, "/missing/too")
    assert re.search(f"{server.address}{path}: .*{reason}", error.where)
    assert f"{server.address}/missing/too: " in error.where
    assert "--from-dir" in error.hint
    assert set(cache(tmp_path)) <= {"train.bin.bad"}


def test_server_that_is_down_is_reported(server, tmp_path):
    server.shutdown()
    server.server_close()
    assert "refused" in refusal(server, "/good").where
    assert cache(tmp_path) == {}


def test_damaged_file_in_the_cache_is_downloaded_again(server, tmp_path, stderr):
    path = find(server, "/good")
    path.write_bytes(CONTENT[:-1] + b"x")
    assert find(server, "/good").read_bytes() == CONTENT
    assert cache(tmp_path)["train.bin.bad"] == CONTENT[:-1] + b"x"
    assert "damaged" in stderr()


def test_unwritable_cache_is_an_environment_error(server, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    error = refused(EnvironmentProblem, "cannot write", find, server, "/good")
    assert "NMTKIT_CACHE" in error.hint


# hostile servers


@pytest.mark.parametrize(
    ("path", "known", "reason"),
    [
        ("/endless", {}, "more than the file has (50.0 kB); what came is removed"),
        ("/endless", UNKNOWN, "more than the file has (at most 1.0 MB); what came is removed"),
        ("/huge", {}, "the server announces 1.1 PB, the file has 50.0 kB"),
        ("/huge", UNKNOWN, "the server announces 1.1 PB, the file has at most 1.0 MB"),
    ],
)
def test_server_that_sends_more_than_the_file_is_given_up(
    server, tmp_path, monkeypatch, path, known, reason
):
    monkeypatch.setattr(download, "MOST", 1_000_000)
    assert reason in refusal(server, path, **known).where
    assert cache(tmp_path) == {} and len(server.asked) == 1
    assert server.sent < 20_000_000  # buffers of the connection


def test_part_stays_if_a_server_announces_too_much(server, part):
    part.write_bytes(START)
    assert "announces" in refusal(server, "/huge").where
    assert part.read_bytes() == START


def test_server_that_sends_single_bytes_is_given_up_and_the_part_stays(server, part, monkeypatch):
    monkeypatch.setattr(download, "SLOW_SECONDS", 0.5)
    part.write_bytes(START)
    monkeypatch.setattr(download._Part, "headers", lambda self: {})
    start = time.monotonic()
    error = refusal(server, "/drip")
    assert time.monotonic() - start < 10
    assert re.search(r"too slow: \d+ bytes in 0\.5 s; what came is kept", error.where)
    assert part.read_bytes() == START


@pytest.mark.parametrize("kind", TRICKLES)
def test_answer_whose_header_hardly_arrives_is_given_up(server, monkeypatch, kind):
    monkeypatch.setattr(download, "SLOW_SECONDS", 0.5)
    start = time.monotonic()
    assert "too slow: 0 bytes in 0.5 s" in refusal(server, f"/{kind}").where
    assert time.monotonic() - start < 5


def test_server_that_breaks_off_after_a_few_bytes_is_given_up(server, monkeypatch):
    """Every attempt brings bytes, so attempts alone would never end."""
    monkeypatch.setattr(download, "SLOW_SECONDS", 1)
    monkeypatch.setattr(download, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(download, "BLOCK", 1)
    monkeypatch.setattr(time, "sleep", lambda _: threading.Event().wait(0.05))
    assert "too slow" in refusal(server, "/crumbs").where and len(server.asked) > 3


def test_slow_server_above_the_limit_is_waited_for(server, monkeypatch):
    monkeypatch.setattr(download, "SLOW_SECONDS", 0.3)
    monkeypatch.setattr(download, "SLOW_BYTES", 5000)
    assert find(server, "/slow").read_bytes() == CONTENT


def test_body_of_a_redirection_is_not_read(server):
    assert find(server, "/redirect").read_bytes() == CONTENT
    assert server.sent < 20_000_000


@pytest.mark.parametrize("known", [{}, UNKNOWN])
@pytest.mark.parametrize("kind", MALFORMED)
def test_mirror_is_tried_after_a_malformed_answer(server, monkeypatch, kind, known):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert find(server, f"/{kind}", "/good", **known).read_bytes() == CONTENT
    assert server.asked[-1] == ("/good", 0)


# files without a published checksum


def test_checksum_of_the_first_copy_is_recorded_and_later_copies_are_compared(
    server, tmp_path, mine
):
    path = find(server, "/good", **UNKNOWN)
    Finder({NAME: Resource(urls=[])}).find(NAME).remember()  # as prep does after unpacking
    record = path.parent / "train.bin.sha256"
    assert record.read_text() == f"{sha256(CONTENT)}  train.bin\n"
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "-c", record.name], cwd=path.parent, check=True)
    path.unlink()
    assert find(server, "/wrong", "/good", **UNKNOWN).read_bytes() == CONTENT
    assert cache(tmp_path)["train.bin.bad"] == OTHER
    (mine / "train.bin").write_bytes(OTHER)
    message = "not the copy seen before"
    error = refused(DataError, message, find, server, "/good", **UNKNOWN, from_dir=mine)
    assert sha256(CONTENT) in error.message and sha256(OTHER) in error.message
    assert "train.bin.sha256" in error.hint
    path.unlink()
    assert "train.bin.sha256" in refusal(server, "/wrong", **UNKNOWN).where


def test_users_copy_stays_new_until_it_is_remembered(server, tmp_path):
    (tmp_path / "train.bin").write_bytes(CONTENT)
    finder = Finder({NAME: Resource(urls=[])}, tmp_path)
    file = finder.find(NAME)
    assert file.new and file.checksum == CHECKSUM
    assert finder.find(NAME).new
    file.remember()
    assert not finder.find(NAME).new


def test_copy_is_used_with_a_warning_if_its_checksum_cannot_be_recorded(
    server, tmp_path, mine, stderr
):
    (mine / "train.bin").write_bytes(CONTENT)
    file = Finder({NAME: Resource(urls=[])}, mine).find(NAME)
    (tmp_path / "cache").write_text("a file, not a folder")
    file.remember()
    assert "a later copy of corpus/train.bin cannot be compared with this one" in stderr()


# --from-dir


def test_from_dir_is_searched_first_with_its_subfolders(server, mine):
    path = mine / "deep" / "train.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert find(server, "/good", from_dir=mine) == path
    assert server.asked == []


def test_from_dir_reads_each_linked_folder_once(server, mine):
    """20 folders link to each other: there are endless ways around."""
    elsewhere = mine.with_name("elsewhere")
    elsewhere.mkdir()
    (mine / "train.bin").write_bytes(CONTENT)
    (elsewhere / "link").symlink_to(mine)
    for number in range(20):
        (elsewhere / f"{number}").mkdir()
        for other in range(20):
            (elsewhere / f"{number}" / f"round-{other}").symlink_to(elsewhere / f"{other}")
    assert find(server, "/good", from_dir=elsewhere) == elsewhere / "link" / "train.bin"
    assert server.asked == []


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize("checksum", [CHECKSUM, GIT, None])
def test_from_dir_may_hold_the_file_compressed(server, mine, suffix, compress, checksum):
    path = mine / f"train.bin{suffix}"
    path.write_bytes(compress(CONTENT))
    assert find(server, "/good", from_dir=mine, checksum=checksum) == path


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_from_dir_with_a_truncated_compressed_file_is_refused(server, mine, suffix, compress):
    path = mine / f"train.bin{suffix}"
    path.write_bytes(compress(CONTENT)[:-10])
    message = "is not the published file: it is damaged"
    assert refused(DataError, message, find, server, "/good", from_dir=mine).where == str(path)


def test_from_dir_with_several_files_of_the_name_gives_the_one_with_the_checksum(server, mine):
    (mine / "old").mkdir()
    (mine / "train.bin").write_bytes(b"another")
    (mine / "old" / "train.bin").write_bytes(CONTENT)
    assert find(server, "/good", from_dir=mine) == mine / "old" / "train.bin"


def test_from_dir_with_a_wrong_file_is_refused_with_both_checksums(server, mine):
    path = mine / "train.bin"
    path.write_bytes(b"another")
    error = refused(DataError, None, find, server, "/good", from_dir=mine)
    assert CHECKSUM.partition(":")[2] in error.message and sha256(b"another") in error.message
    assert error.where == str(path)
    assert path.read_bytes() == b"another" and server.asked == []


def test_file_that_from_dir_lacks_is_downloaded(server, tmp_path, mine):
    assert find(server, "/good", from_dir=mine).parent == tmp_path / "cache" / "corpus"


YEARS = {"wmt12/test.bin": CONTENT, "wmt13/test.bin": OTHER}


@pytest.mark.parametrize("published", [True, False])
def test_folder_or_checksum_distinguishes_files_of_the_same_name(server, mine, published):
    for name, content in YEARS.items():
        (mine / name).parent.mkdir()
        (mine / name).write_bytes(content)
    digests = {name: f"md5:{hashlib.md5(content).hexdigest()}" for name, content in YEARS.items()}
    known = {n: Resource(checksum=digest if published else None) for n, digest in digests.items()}
    finder = Finder(known, mine)
    assert [finder.find(name).path for name in YEARS] == [mine / name for name in YEARS]


def test_file_of_the_same_name_of_another_year_does_not_stop_the_download(server, tmp_path, mine):
    (mine / "test.bin").write_bytes(OTHER)
    urls = [server.address + "/good"]
    known = {
        name: Resource(checksum=f"md5:{hashlib.md5(content).hexdigest()}", urls=urls)
        for name, content in YEARS.items()
    }
    finder = Finder(known, mine)
    assert finder.find("wmt13/test.bin").path == mine / "test.bin"
    assert finder.find("wmt12/test.bin").path == tmp_path / "cache" / "wmt12" / "test.bin"


def test_file_in_the_folder_of_another_year_is_not_taken(server, tmp_path, mine):
    (mine / "wmt13").mkdir()
    (mine / "wmt13" / "test.bin").write_bytes(OTHER)
    known = {name: Resource(urls=[server.address + "/good"]) for name in YEARS}
    path = Finder(known, mine).find("wmt12/test.bin").path
    assert path == tmp_path / "cache" / "wmt12" / "test.bin"
