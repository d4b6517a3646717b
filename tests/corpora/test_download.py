"""Downloads from a real server on loopback: resumed, verified, never half under the good name,
and clear about what went wrong.
"""

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
HALF = 3 * download.BLOCK
OTHER = random.Random(2).randbytes(40_000)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Please log in</title></head></html>"
NAME = "corpus/train.bin"
SLOW = {
    "slow-status": b"HTTP/1.1 20",
    "slow-header": b"HTTP/1.1 200 OK\r\nX-",
    "slow-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "slow-redirection": b"HTTP/1.1 302 Found\r\nLocation: /good/",
}
"""The beginnings of answers of which a byte comes now and then, so that no wait is long."""
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
"""Answers whose numbers or addresses are none."""
SIZE = len(CONTENT)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


CHECKSUM = "sha256:" + sha256(CONTENT)


class Handler(http.server.BaseHTTPRequestHandler):
    """The path says how the server behaves; requests are recorded as (path, first byte asked
    for).
    """

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, (_, kind, *options) = self.server, self.path.split("/")
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        server.asked.append((self.path, start))
        count = sum(path == self.path for path, _ in server.asked)
        body = {
            "page": PAGE,
            "wrong": OTHER,
            "changed": [OTHER, CONTENT][count > 1],
            "empty": b"",
        }.get(kind, CONTENT)
        etag = hashlib.md5(body).hexdigest()
        if kind in SLOW:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.wfile.write(SLOW[kind])
                while not self.server.gate.wait(0.05):
                    self.wfile.write(b"0")
            return
        if kind in {"endless", "drip", "huge", "redirect", *MALFORMED}:
            self.hostile(kind)
            return
        if kind in {"missing", "busy"} and (kind == "missing" or count <= 2):
            self.send_error(404 if kind == "missing" else 503)
            return
        ranges = "norange" not in options
        if self.headers.get("If-Range", f'"{etag}"') != f'"{etag}"' or not ranges:
            start = 0
        if kind == "shifted" and start and count <= 2:
            start -= 10
        if start >= len(body) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if "nolength" in options:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body) - start))
        if "noetag" not in options:
            self.send_header("ETag", f'"{etag}"')
        if kind == "encoded":
            self.send_header("Content-Encoding", "x-gzip")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.send_body(kind, body[start:], count)

    def hostile(self, kind):
        """Answer without end, until the other side has had enough; or with what is no answer."""
        self.close_connection = True
        if kind in MALFORMED:
            self.wfile.write(b"HTTP/1.1 %s\r\n\r\n" % MALFORMED[kind])
            return
        self.send_response(302 if kind == "redirect" else 200)
        if kind == "redirect":
            self.send_header("Location", "/good")
        if kind == "huge":
            self.send_header("Content-Length", str(1 << 50))
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.gate.is_set():
                self.wfile.write(b"x" if kind == "drip" else bytes(1 << 16))
                self.server.sent += 1 if kind == "drip" else 1 << 16
                if kind == "drip":
                    self.server.gate.wait(0.05)

    def send_body(self, kind, body, count):
        if kind in {"dying", "changed"} or (kind in {"silent", "shifted"} and count == 1):
            self.wfile.write(body[:HALF])
            self.wfile.flush()
            if kind == "silent":
                self.server.gate.wait(60)
            self.close_connection = True
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
    resource = Resource(
        size=size,
        checksum=checksum,
        urls=[path if "::" in path else server.address + path for path in paths],
    )
    return Finder({name: resource}, from_dir).find(name).path


def remembered(*arguments, **known):
    path = find(*arguments, **known)
    Finder({NAME: Resource(urls=[])}).find(NAME).remember()  # as prep does after unpacking
    return path


def refusal(*arguments, **known):
    """The error of a machine that cannot find a file."""
    with pytest.raises(EnvironmentProblem) as caught:
        find(*arguments, **known)
    return caught.value


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's own files."""
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def cache(tmp_path, checksums=True):
    """The files of the cache; without the checksums of first copies."""
    files = (tmp_path / "cache").rglob("*.*")
    return {p.name: p.read_bytes() for p in files if checksums or p.suffix != ".sha256"}


GIT = "git:" + hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()


@pytest.mark.parametrize("checksum", [CHECKSUM, "md5:" + hashlib.md5(CONTENT).hexdigest(), GIT])
def test_download_then_cache(server, tmp_path, checksum, capsys):
    path = find(server, "/good", checksum=checksum)
    assert path == tmp_path / "cache" / "corpus" / "train.bin"
    assert cache(tmp_path) == {"train.bin": CONTENT}
    assert find(server, "/good", checksum=checksum) == path
    assert server.asked == [("/good", 0)]
    assert is_cached(NAME, len(CONTENT)) and is_cached(NAME, None) and not is_cached(NAME, 1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "50.0 kB" in printed.err


def test_progress_knows_the_length_from_the_server(server, monkeypatch):
    totals, done = [], []

    @contextlib.contextmanager
    def progress(label, total):
        totals.append((label, total))
        yield done.append

    monkeypatch.setattr(download.console, "progress", progress)
    find(server, "/dying", size=None)
    assert totals == [("downloading train.bin", len(CONTENT))] * 3
    # Each display begins with what is there already.
    assert done[0] == 0 and sum(done) == len(CONTENT) + HALF + 2 * HALF


def test_the_git_checksum_is_git_s(tmp_path):
    (tmp_path / "x").write_bytes(CONTENT)
    output = subprocess.check_output(["git", "hash-object", tmp_path / "x"], text=True)
    assert checksum(tmp_path / "x", "git") == f"git:{output.strip()}"
    (tmp_path / "x.gz").write_bytes(gzip.compress(CONTENT))
    assert checksum(tmp_path / "x.gz", "git", decompress=True) == f"git:{output.strip()}"


# interrupted, dying, slow


UNKNOWN = {"checksum": None, "size": None}


@pytest.mark.parametrize(
    ("path", "known", "starts"),
    [
        ("/good/nolength", {}, [0]),
        ("/slow", {}, [0]),  # waited for
        ("/encoded", {}, [0]),  # old servers announce a .tgz as x-gzip; that is not undone
        ("/dying", {}, [0, HALF, 2 * HALF]),
        ("/shifted", {}, [0, HALF, 0]),  # another range than asked for is not believed
        # A file that changed meanwhile comes whole: the server's validator decides, also where no
        # checksum is published.
        ("/changed", UNKNOWN, [0, HALF, HALF, 2 * HALF]),
    ],
)
def test_a_server_is_asked_for_the_rest(server, tmp_path, path, known, starts):
    assert find(server, path, **known).read_bytes() == CONTENT
    assert server.asked == [(path, start) for start in starts]
    assert cache(tmp_path, checksums=False) == {"train.bin": CONTENT}


LENGTH = 30_000
START = CONTENT[:LENGTH]


@pytest.fixture
def part(server, tmp_path):
    """The place of what an earlier call has downloaded."""
    path = tmp_path / "cache" / "corpus" / "train.bin.part"
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("held", "paths", "known", "asked", "message"),
    [
        (START, ["/good/norange"], {}, [("/good/norange", LENGTH)], "cannot continue"),
        # An address that has never answered is left for the next.
        (START, ["/busy", "/good"], {}, [("/busy", LENGTH), ("/good", LENGTH)], ""),
        (CONTENT, ["/good"], {"size": None}, [("/good", SIZE)], ""),
        (CONTENT + b"xyz", ["/good"], {"size": None}, [("/good", SIZE + 3), ("/good", 0)], ""),
        (OTHER[:LENGTH], ["/good"], {}, [("/good", LENGTH), ("/good", 0)], "another file"),
        # Without checksum and validator nothing is mixed.
        (OTHER[:LENGTH], ["/good"], UNKNOWN, [("/good", 0)], ""),
        (OTHER[:LENGTH], ["/good/noetag"], UNKNOWN, [("/good/noetag", 0)], ""),
    ],
)
def test_a_part_is_continued_if_it_can_be(
    server, part, tmp_path, stderr, held, paths, known, asked, message
):
    part.write_bytes(held)
    assert find(server, *paths, **known).read_bytes() == CONTENT
    assert server.asked == asked
    assert message in stderr()
    bad = {"train.bin.bad": OTHER[:LENGTH] + CONTENT[LENGTH:]} if "another" in message else {}
    assert cache(tmp_path, checksums=False) == {"train.bin": CONTENT} | bad


def test_a_server_that_falls_silent_is_asked_for_the_rest(server, monkeypatch):
    monkeypatch.setattr(download, "SILENT_SECONDS", 1)
    assert find(server, "/silent").read_bytes() == CONTENT
    server.gate.set()
    assert server.asked[:2] == [("/silent", 0), ("/silent", HALF)]


def test_a_killed_download_is_continued_by_the_next_call(server, part, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", CHILD, server.address + "/gated"])
    until(lambda: part.exists() and part.stat().st_size)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.gate.set()
    assert set(cache(tmp_path)) == {"train.bin.part", "train.bin.part.from"}
    held = part.stat().st_size
    assert find(server, "/gated").read_bytes() == CONTENT
    assert server.asked == [("/gated", 0), ("/gated", held)] and held == download.BLOCK
    assert cache(tmp_path) == {"train.bin": CONTENT}


def until(holds):
    """Wait for something that happens in another process."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


CHILD = f"""
import sys
from nmtkit.corpora.fetch import Finder
from nmtkit.corpora.table import Resource
print(Finder({{"{NAME}": Resource(size={len(CONTENT)}, checksum="{CHECKSUM}", urls=[sys.argv[1]])}}).find("{NAME}").path)
"""


def test_three_processes_fetch_the_same_file_once(server, tmp_path):
    command = [sys.executable, "-c", CHILD, server.address + "/gated"]
    errors = [tmp_path / f"{i}.err" for i in range(3)]
    children = [
        subprocess.Popen(command, stdout=-1, stderr=path.open("wb"), text=True) for path in errors
    ]
    waiting = "another process is downloading"
    until(lambda: sum(waiting in path.read_text() for path in errors) == 2)
    server.gate.set()
    outputs = {child.communicate()[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert outputs == {str(tmp_path / "cache" / "corpus" / "train.bin")}
    assert server.asked == [("/gated", 0)]
    assert cache(tmp_path) == {"train.bin": CONTENT}


def test_a_server_that_always_dies_without_range_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    error = refusal(server, "/dying/norange")
    assert len(server.asked) == 1 + download.TRIES
    assert "24.6 kB are kept" in error.where
    assert cache(tmp_path)["train.bin.part"] == CONTENT[:HALF]
    assert "train.bin" not in cache(tmp_path)


def test_a_file_of_unknown_length_whose_end_does_not_come(server):
    with pytest.raises(EnvironmentProblem):
        find(server, "/dying/nolength/norange")


# the wrong thing


def test_a_wrong_file_is_set_aside_and_the_mirror_tried(server, tmp_path, stderr):
    assert find(server, "/wrong", "/good").read_bytes() == CONTENT
    assert server.asked == [("/wrong", 0), ("/good", 0)]
    assert cache(tmp_path) == {"train.bin": CONTENT, "train.bin.bad": OTHER}
    message = stderr()
    assert sha256(CONTENT) in message and sha256(OTHER) in message


def test_a_web_page_is_named_and_costs_nothing_that_was_there(server, part):
    part.write_bytes(START)
    assert "web page" in refusal(server, "/page/norange").where
    assert part.read_bytes() == START


@pytest.mark.parametrize("kind", ["page", "good"])
def test_without_a_checksum_a_page_is_no_archive(server, tmp_path, kind):
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
    ],
)
def test_nothing_good_means_exit_3_and_no_file(server, tmp_path, path, reason):
    error = refusal(server, path)
    assert reason in error.where
    assert "--from-dir" in error.hint
    assert set(cache(tmp_path)) <= {"train.bin.bad"}


def test_every_address_is_named(server):
    error = refusal(server, "/missing", "/page")
    for path in ("/missing", "/page"):
        assert f"{server.address}{path}: " in error.where


def test_no_network(server, tmp_path):
    server.shutdown()
    server.server_close()
    assert "refused" in refusal(server, "/good").where
    assert cache(tmp_path) == {}


def test_a_damaged_file_in_the_cache_is_fetched_again(server, tmp_path, stderr):
    path = find(server, "/good")
    path.write_bytes(CONTENT[:-1] + b"x")
    assert find(server, "/good").read_bytes() == CONTENT
    assert cache(tmp_path)["train.bin.bad"] == CONTENT[:-1] + b"x"
    assert "damaged" in stderr()


def test_an_unwritable_cache_is_the_machine_s_problem(server, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(EnvironmentProblem, match="cannot write") as caught:
        find(server, "/good")
    assert "NMTKIT_CACHE" in caught.value.hint


# more than the file, without end, or hardly anything


@pytest.mark.parametrize(
    ("path", "known", "reason"),
    [
        ("/endless", {}, "sends more than the file has (50.0 kB); what came is removed"),
        (
            "/endless",
            UNKNOWN,
            "sends more than the file has (at most 1.0 MB); what came is removed",
        ),
        ("/huge", {}, "the server announces 1.1 PB, the file has 50.0 kB"),
        ("/huge", UNKNOWN, "the server announces 1.1 PB, the file has at most 1.0 MB"),
    ],
)
def test_no_more_than_the_file_is_taken(server, tmp_path, monkeypatch, path, known, reason):
    monkeypatch.setattr(download, "MOST", 1_000_000)
    assert reason in refusal(server, path, **known).where
    assert cache(tmp_path) == {} and len(server.asked) == 1
    assert server.sent < 20_000_000  # what the two ends of the connection hold


def test_what_came_from_elsewhere_stays_if_too_much_is_announced(server, part):
    part.write_bytes(START)
    with pytest.raises(EnvironmentProblem, match="cannot download"):
        find(server, "/huge")
    assert part.read_bytes() == START


def test_a_drip_is_given_up_and_what_came_is_continued(server, part, monkeypatch):
    monkeypatch.setattr(download, "SLOW_SECONDS", 0.5)
    part.write_bytes(START)
    monkeypatch.setattr(download._Part, "headers", lambda self: {})
    start = time.monotonic()
    error = refusal(server, "/drip")
    assert time.monotonic() - start < 10
    assert re.search(r"too slow: \d+ bytes in 0\.5 s; what came is kept", error.where)
    assert part.read_bytes() == START
    monkeypatch.undo()


@pytest.mark.parametrize("kind", SLOW)
def test_an_answer_that_hardly_comes_is_given_up(server, monkeypatch, kind):
    monkeypatch.setattr(download, "SLOW_SECONDS", 0.5)
    start = time.monotonic()
    assert "too slow: 0 bytes in 0.5 s" in refusal(server, f"/{kind}").where
    assert time.monotonic() - start < 5


def test_a_drip_between_breaks_is_given_up(server, monkeypatch):
    """Each attempt brings something, so attempts alone would never end."""
    monkeypatch.setattr(download, "SLOW_SECONDS", 1)
    monkeypatch.setattr(download, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(download, "BLOCK", 1)
    monkeypatch.setattr(Handler, "send_body", lambda self, kind, body, count: self.drop(body))
    monkeypatch.setattr(
        Handler, "drop", lambda self, body: self.wfile.write(body[:3]), raising=False
    )
    monkeypatch.setattr(time, "sleep", lambda _: threading.Event().wait(0.05))
    assert "too slow" in refusal(server, "/good").where and len(server.asked) > 3


def test_a_slow_server_that_is_fast_enough_is_waited_for(server, monkeypatch):
    monkeypatch.setattr(download, "SLOW_SECONDS", 0.3)
    monkeypatch.setattr(download, "SLOW_BYTES", 5000)
    assert find(server, "/slow").read_bytes() == CONTENT


def test_the_body_of_a_redirection_is_not_read(server):
    assert find(server, "/redirect").read_bytes() == CONTENT
    assert server.sent < 20_000_000


@pytest.mark.parametrize("known", [{}, UNKNOWN])
@pytest.mark.parametrize("kind", MALFORMED)
def test_after_a_malformed_answer_the_mirror_is_tried(server, monkeypatch, kind, known):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert find(server, f"/{kind}", "/good", **known).read_bytes() == CONTENT
    assert server.asked[-1] == ("/good", 0)


# no published checksum: the first copy counts


def test_the_first_copy_is_recorded_and_later_ones_compared(server, tmp_path, mine):
    path = remembered(server, "/good", **UNKNOWN)
    recorded = path.parent / "train.bin.sha256"
    assert recorded.read_text() == f"{sha256(CONTENT)}  train.bin\n"
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "-c", recorded.name], cwd=path.parent, check=True)
    path.unlink()
    assert find(server, "/wrong", "/good", **UNKNOWN).read_bytes() == CONTENT
    assert cache(tmp_path)["train.bin.bad"] == OTHER
    (mine / "train.bin").write_bytes(OTHER)
    with pytest.raises(DataError, match="not the copy seen before") as caught:
        find(server, "/good", **UNKNOWN, from_dir=mine)
    assert sha256(CONTENT) in caught.value.message and sha256(OTHER) in caught.value.message
    assert "train.bin.sha256" in caught.value.hint
    path.unlink()
    assert "train.bin.sha256" in refusal(server, "/wrong", **UNKNOWN | {"name": NAME}).where


def test_a_person_s_copy_is_remembered_once_it_has_proved_readable(server, tmp_path):
    (tmp_path / "train.bin").write_bytes(CONTENT)
    finder = Finder({NAME: Resource(urls=[])}, tmp_path)
    found = finder.find(NAME)
    assert (found.new, found.checksum) == (True, CHECKSUM)
    assert finder.find(NAME).new
    found.remember()
    assert not finder.find(NAME).new


# a folder of the person's


def test_from_dir_goes_first_and_needs_no_network(server, mine):
    path = mine / "deep" / "train.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert find(server, "/good", from_dir=mine) == path
    elsewhere = mine.with_name("elsewhere")
    elsewhere.mkdir()
    (elsewhere / "link").symlink_to(path.parent)
    for number in range(20):  # many ways around
        (elsewhere / f"{number}").mkdir()
        for other in range(20):
            (elsewhere / f"{number}" / f"round-{other}").symlink_to(elsewhere / f"{other}")
    assert find(server, "/good", from_dir=elsewhere) == elsewhere / "link" / "train.bin"
    assert server.asked == []


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize("checksum", [CHECKSUM, GIT, None])
def test_from_dir_finds_the_file_compressed(server, mine, suffix, compress, checksum):
    path = mine / f"train.bin{suffix}"
    path.write_bytes(compress(CONTENT))
    assert find(server, "/good", from_dir=mine, checksum=checksum) == path


def test_from_dir_with_a_compressed_file_that_is_cut_short_says_so(server, mine):
    for suffix, compress in ((".gz", gzip.compress), (".xz", lzma.compress)):
        path = mine / f"train.bin{suffix}"
        path.write_bytes(compress(CONTENT)[:-10])
        message = "is not the published file: it is damaged"
        assert refused(DataError, message, find, server, "/good", from_dir=mine).where == str(path)
        path.unlink()


def test_from_dir_takes_the_copy_that_is_right(server, mine):
    (mine / "old").mkdir()
    (mine / "train.bin").write_bytes(b"another")
    (mine / "old" / "train.bin").write_bytes(CONTENT)
    assert find(server, "/good", from_dir=mine).parent.name == "old"


def test_from_dir_with_a_wrong_file_names_both_checksums(server, mine):
    (mine / "train.bin").write_bytes(b"another")
    with pytest.raises(DataError) as caught:
        find(server, "/good", from_dir=mine)
    assert CHECKSUM.partition(":")[2] in caught.value.message
    assert sha256(b"another") in caught.value.message
    assert caught.value.where.endswith("mine/train.bin")
    assert (mine / "train.bin").read_bytes() == b"another"
    assert server.asked == []


def test_from_dir_without_the_file_goes_to_the_network(server, tmp_path, mine):
    assert find(server, "/good", from_dir=mine).parent == tmp_path / "cache" / "corpus"


def test_two_published_files_of_one_base_name(server, tmp_path, mine):
    """test.tgz of two years: the folder's path says which, else the checksum."""
    for year, content in (("wmt12", CONTENT), ("wmt13", OTHER)):
        (mine / year).mkdir(parents=True)
        (mine / year / "test.bin").write_bytes(content)
    known = {
        f"wmt{n}/test.bin": Resource(checksum="md5:" + hashlib.md5(content).hexdigest())
        for n, content in ((12, CONTENT), (13, OTHER))
    }
    for published in (known, {name: Resource() for name in known}):
        finder = Finder(published, mine)
        assert [finder.find(name).path.parent.name for name in known] == ["wmt12", "wmt13"]
    (mine / "test.bin").write_bytes((mine / "wmt13" / "test.bin").read_bytes())
    for year in ("wmt12", "wmt13"):
        (mine / year / "test.bin").unlink()
    urls = {"urls": [server.address + "/good"]}
    finder = Finder({name: one.model_copy(update=urls) for name, one in known.items()}, mine)
    assert finder.find("wmt13/test.bin").path == mine / "test.bin"
    # The other year's is no reason to stop.
    assert finder.find("wmt12/test.bin").path == tmp_path / "cache" / "wmt12" / "test.bin"
