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
import signal
import subprocess
import sys
import threading
import time

import pytest

from nmtkit.corpora import download
from nmtkit.corpora.cache import checksum, is_cached
from nmtkit.corpora.fetch import Finder
from nmtkit.corpora.table import Resource
from nmtkit.errors import DataError, EnvironmentProblem

CONTENT = random.Random(1).randbytes(50_000)
HALF = 3 * download.BLOCK
OTHER = random.Random(2).randbytes(40_000)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Please log in</title></head></html>"
NAME = "corpus/train.bin"
SIZE = len(CONTENT)
CHECKSUM = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


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
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        one.asked = []
        one.gate = threading.Event()
        one.address = f"http://127.0.0.1:{one.server_address[1]}"
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield one
        one.shutdown()


def find(server, *paths, name=NAME, checksum=CHECKSUM, size=SIZE, from_dir=None):
    resource = Resource(
        size=size,
        checksum=checksum,
        urls=[path if "::" in path else server.address + path for path in paths],
    )
    return Finder({name: resource}, from_dir).find(name).path


def cache(tmp_path):
    return {p.name: p.read_bytes() for p in (tmp_path / "cache").rglob("*") if p.is_file()}


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
    assert (
        done[0] == 0 and sum(done) == len(CONTENT) + HALF + 2 * HALF
    )  # each display begins with what is there already


def test_the_git_checksum_is_git_s(tmp_path):
    (tmp_path / "x").write_bytes(CONTENT)
    git = subprocess.run(
        ["git", "hash-object", tmp_path / "x"], capture_output=True, text=True, check=True
    )
    assert checksum(tmp_path / "x", "git") == f"git:{git.stdout.strip()}"


# interrupted, dying, slow


def test_a_dying_server_is_asked_for_the_rest(server, tmp_path):
    assert find(server, "/dying").read_bytes() == CONTENT
    assert server.asked == [("/dying", 0), ("/dying", HALF), ("/dying", 2 * HALF)]
    assert cache(tmp_path) == {"train.bin": CONTENT}


def test_a_server_that_falls_silent_is_asked_for_the_rest(server, monkeypatch):
    monkeypatch.setattr(download, "SILENT_SECONDS", 1)
    assert find(server, "/silent").read_bytes() == CONTENT
    server.gate.set()
    assert server.asked[:2] == [("/silent", 0), ("/silent", HALF)]


def test_a_slow_server_is_waited_for(server):
    assert find(server, "/slow").read_bytes() == CONTENT
    assert server.asked == [("/slow", 0)]


def test_a_killed_download_is_continued_by_the_next_call(server, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", CHILD, server.address + "/gated"])
    part = tmp_path / "cache" / "corpus" / "train.bin.part"
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
    said = [tmp_path / f"{i}.err" for i in range(3)]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, server.address + "/gated"],
            stdout=-1,
            stderr=path.open("wb"),
            text=True,
        )
        for path in said
    ]
    until(lambda: sum("another process is downloading" in path.read_text() for path in said) == 2)
    server.gate.set()
    outputs = {child.communicate()[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert outputs == {str(tmp_path / "cache" / "corpus" / "train.bin")}
    assert server.asked == [("/gated", 0)]
    assert cache(tmp_path) == {"train.bin": CONTENT}


def test_without_range_it_starts_again_and_says_so(server, tmp_path, capsys):
    part = tmp_path / "cache" / "corpus" / "train.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:30_000])
    assert find(server, "/good/norange").read_bytes() == CONTENT
    assert server.asked == [("/good/norange", 30_000)]
    assert "cannot continue" in capsys.readouterr().err


def test_a_server_that_always_dies_without_range_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(EnvironmentProblem) as caught:
        find(server, "/dying/norange")
    assert len(server.asked) == 1 + download.TRIES
    assert "24.6 kB are kept" in caught.value.where
    assert cache(tmp_path)["train.bin.part"] == CONTENT[:HALF]
    assert "train.bin" not in cache(tmp_path)


def test_another_range_than_asked_for_is_not_believed(server, tmp_path):
    assert find(server, "/shifted").read_bytes() == CONTENT
    assert cache(tmp_path) == {"train.bin": CONTENT}
    assert server.asked == [("/shifted", 0), ("/shifted", HALF), ("/shifted", 0)]


def test_a_busy_server_is_asked_again_once_it_has_answered(server, tmp_path):
    part = tmp_path / "cache" / "corpus" / "train.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:30_000])
    assert (
        find(server, "/busy", "/good").read_bytes() == CONTENT
    )  # an address that has never answered is left for the next
    assert server.asked == [("/busy", 30_000), ("/good", 30_000)]


@pytest.mark.parametrize("length", [len(CONTENT), len(CONTENT) + 3])
def test_a_part_that_is_whole_or_too_long(server, tmp_path, length):
    part = tmp_path / "cache" / "corpus" / "train.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes((CONTENT + b"xyz")[:length])
    assert find(server, "/good", size=None).read_bytes() == CONTENT
    assert (
        server.asked == [("/good", length)]
        if length == len(CONTENT)
        else [("/good", length), ("/good", 0)]
    )


def test_a_part_of_another_file_costs_one_more_transfer(server, tmp_path, capsys):
    part = tmp_path / "cache" / "corpus" / "train.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(OTHER[:30_000])
    assert find(server, "/good").read_bytes() == CONTENT
    assert server.asked == [("/good", 30_000), ("/good", 0)]
    assert cache(tmp_path)["train.bin.bad"] == OTHER[:30_000] + CONTENT[30_000:]
    assert "another file" in capsys.readouterr().err


def test_a_file_that_changed_meanwhile_comes_whole(server, tmp_path):
    """The server's validator decides, also where no checksum is published."""
    assert find(server, "/changed", checksum=None, size=None).read_bytes() == CONTENT
    assert server.asked == [
        ("/changed", 0),
        ("/changed", HALF),
        ("/changed", HALF),
        ("/changed", 2 * HALF),
    ]


@pytest.mark.parametrize("validator", ["", "/noetag"])
def test_without_checksum_and_validator_nothing_is_mixed(server, tmp_path, validator):
    part = tmp_path / "cache" / "corpus" / "train.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(OTHER[:30_000])
    assert find(server, f"/good{validator}", checksum=None, size=None).read_bytes() == CONTENT
    assert server.asked == [(f"/good{validator}", 0)]


def test_a_file_of_unknown_length(server):
    assert find(server, "/good/nolength").read_bytes() == CONTENT
    with pytest.raises(EnvironmentProblem):
        find(server, "/dying/nolength/norange", name="corpus/other.bin")


def test_an_encoding_of_the_file_itself_is_not_undone(server, tmp_path):
    """Old servers announce a .tgz as x-gzip; the file is what was asked for."""
    assert find(server, "/encoded").read_bytes() == CONTENT


# the wrong thing


def test_a_wrong_file_is_set_aside_with_both_checksums_and_the_mirror_tried(
    server, tmp_path, capsys
):
    assert find(server, "/wrong", "/good").read_bytes() == CONTENT
    assert server.asked == [("/wrong", 0), ("/good", 0)]
    assert cache(tmp_path) == {"train.bin": CONTENT, "train.bin.bad": OTHER}
    said = capsys.readouterr().err
    assert CHECKSUM.partition(":")[2] in said
    assert hashlib.sha256(OTHER).hexdigest() in said


def test_a_web_page_is_named_and_costs_nothing_that_was_there(server, tmp_path):
    part = tmp_path / "cache" / "corpus" / "train.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:30_000])
    with pytest.raises(EnvironmentProblem) as caught:
        find(server, "/page/norange")
    assert "web page" in caught.value.where
    assert part.read_bytes() == CONTENT[:30_000]


@pytest.mark.parametrize("kind", ["page", "good"])
def test_without_a_checksum_a_page_is_no_archive(server, tmp_path, kind):
    with pytest.raises((EnvironmentProblem, DataError), match=r"cannot download|is no \.tgz file"):
        find(server, f"/{kind}", name="corpus/de-en.tgz", checksum=None, size=None)
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
    with pytest.raises(EnvironmentProblem) as caught:
        find(server, path)
    assert caught.value.exit_code == 3
    assert reason in caught.value.where
    assert "--from-dir" in caught.value.hint
    assert set(cache(tmp_path)) <= {"train.bin.bad"}


def test_every_address_is_named(server):
    with pytest.raises(EnvironmentProblem) as caught:
        find(server, "/missing", "/page")
    assert (
        f"{server.address}/missing: " in caught.value.where
        and f"{server.address}/page: " in caught.value.where
    )


def test_no_network(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(EnvironmentProblem) as caught:
        find(server, "/good")
    assert "refused" in caught.value.where
    assert cache(tmp_path) == {}


def test_a_damaged_file_in_the_cache_is_fetched_again(server, tmp_path, capsys):
    path = find(server, "/good")
    path.write_bytes(CONTENT[:-1] + b"x")
    assert find(server, "/good").read_bytes() == CONTENT
    assert cache(tmp_path)["train.bin.bad"] == CONTENT[:-1] + b"x"
    assert "damaged" in capsys.readouterr().err


def test_an_unwritable_cache_is_the_machine_s_problem(server, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(EnvironmentProblem, match="cannot write") as caught:
        find(server, "/good")
    assert "NMTKIT_CACHE" in caught.value.hint


# no published checksum: the first copy counts


def test_the_first_copy_is_recorded_and_later_ones_compared(server, tmp_path, capsys):
    path = find(server, "/good", checksum=None, size=None)
    assert (
        path.parent / "train.bin.sha256"
    ).read_text() == f"{CHECKSUM.partition(':')[2]}  train.bin\n"
    assert (
        subprocess.run(
            ["sha256sum", "-c", "train.bin.sha256"],
            cwd=path.parent,
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    path.unlink()
    assert find(server, "/wrong", "/good", checksum=None, size=None).read_bytes() == CONTENT
    assert cache(tmp_path)["train.bin.bad"] == OTHER
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "train.bin").write_bytes(OTHER)
    with pytest.raises(DataError, match="not the copy seen before") as caught:
        find(server, "/good", checksum=None, size=None, from_dir=mine)
    assert (
        CHECKSUM.partition(":")[2] in caught.value.message
        and hashlib.sha256(OTHER).hexdigest() in caught.value.message
    )
    assert "train.bin.sha256" in caught.value.hint


def test_a_person_s_copy_is_remembered_once_it_has_proved_readable(server, tmp_path):
    (tmp_path / "train.bin").write_bytes(CONTENT)
    finder = Finder({NAME: Resource(urls=[])}, tmp_path)
    found = finder.find(NAME)
    assert (found.new, found.checksum) == (True, CHECKSUM)
    assert finder.find(NAME).new
    found.remember()
    assert not finder.find(NAME).new


# a folder of the person's


def test_from_dir_goes_first_and_needs_no_network(server, tmp_path):
    mine = tmp_path / "mine" / "deep" / "train.bin"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(CONTENT)
    assert find(server, "/good", from_dir=tmp_path / "mine") == mine
    assert server.asked == []


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize("checksum", [CHECKSUM, GIT, None])
def test_from_dir_finds_the_file_compressed(server, tmp_path, suffix, compress, checksum):
    (tmp_path / "mine").mkdir()
    mine = tmp_path / "mine" / f"train.bin{suffix}"
    mine.write_bytes(compress(CONTENT))
    assert find(server, "/good", from_dir=tmp_path / "mine", checksum=checksum) == mine


def test_from_dir_takes_the_copy_that_is_right(server, tmp_path):
    (tmp_path / "mine" / "old").mkdir(parents=True)
    (tmp_path / "mine" / "train.bin").write_bytes(b"another")
    (tmp_path / "mine" / "old" / "train.bin").write_bytes(CONTENT)
    assert find(server, "/good", from_dir=tmp_path / "mine").parent.name == "old"


def test_from_dir_with_a_wrong_file_names_both_checksums(server, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.bin").write_bytes(b"another")
    with pytest.raises(DataError) as caught:
        find(server, "/good", from_dir=tmp_path / "mine")
    assert CHECKSUM.partition(":")[2] in caught.value.message
    assert hashlib.sha256(b"another").hexdigest() in caught.value.message
    assert caught.value.where.endswith("mine/train.bin")
    assert (tmp_path / "mine" / "train.bin").read_bytes() == b"another"
    assert server.asked == []


def test_from_dir_without_the_file_goes_to_the_network(server, tmp_path):
    (tmp_path / "mine").mkdir()
    assert find(server, "/good", from_dir=tmp_path / "mine").parent == tmp_path / "cache" / "corpus"


def test_two_published_files_of_one_base_name(server, tmp_path):
    """test.tgz of two years: the folder's path says which, else the checksum."""
    mine = tmp_path / "mine"
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
    finder = Finder(
        {
            name: one.model_copy(update={"urls": [server.address + "/good"]})
            for name, one in known.items()
        },
        mine,
    )
    assert finder.find("wmt13/test.bin").path == mine / "test.bin"
    assert (
        finder.find("wmt12/test.bin").path == tmp_path / "cache" / "wmt12" / "test.bin"
    )  # the other year's is no reason to stop
