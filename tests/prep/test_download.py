"""Downloads: verified, never half under the good name, and clear about what went wrong."""

import contextlib
import gzip
import hashlib
import http.server
import lzma
import threading

import pytest

from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.prep.corpora import download

CONTENT = b"Ein Hund.\n" * 5000
CHECKSUM = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        body = b"<html>please log in</html>" if self.path == "/captive" else CONTENT
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body[:1000] if self.path == "/broken" else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        one.asked = []
        one.address = f"http://127.0.0.1:{one.server_address[1]}"
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield one
        one.shutdown()


def fetch(server, *paths, checksum=CHECKSUM, from_dir=None):
    return download.fetch("train.de", checksum, [server.address + path for path in paths], len(CONTENT), "corpus", from_dir)


def cache(tmp_path):
    return {p.name: p.read_bytes() for p in (tmp_path / "cache").rglob("*") if p.is_file()}


@pytest.mark.parametrize("checksum", [CHECKSUM, "md5:" + hashlib.md5(CONTENT).hexdigest()])
def test_download_then_cache(server, tmp_path, checksum, capsys):
    path = fetch(server, "/good", checksum=checksum)
    assert path == tmp_path / "cache" / "corpus" / "train.de"
    assert cache(tmp_path) == {"train.de": CONTENT}
    assert fetch(server, "/good", checksum=checksum) == path
    assert server.asked == ["/good"]
    assert download.cached("corpus", "train.de", len(CONTENT))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "50.0 kB" in printed.err


def test_a_wrong_file_is_set_aside_and_the_mirror_tried(server, tmp_path, capsys):
    assert fetch(server, "/captive", "/good").read_bytes() == CONTENT
    assert server.asked == ["/captive", "/good"]
    assert cache(tmp_path) == {"train.de": CONTENT, "train.de.bad": b"<html>please log in</html>"}
    said = capsys.readouterr().err
    assert CHECKSUM.partition(":")[2] in said
    assert hashlib.sha256(b"<html>please log in</html>").hexdigest() in said


@pytest.mark.parametrize(("path", "reason"), [("/captive", "expected"), ("/missing", "404"), ("/broken", "")])
def test_nothing_good_means_exit_3_and_no_file(server, tmp_path, path, reason):
    with pytest.raises(EnvironmentProblem) as caught:
        fetch(server, path)
    assert caught.value.exit_code == 3
    assert reason in caught.value.where
    assert "--from-dir" in caught.value.hint
    assert set(cache(tmp_path)) <= {"train.de.bad"}


def test_no_network(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(EnvironmentProblem) as caught:
        fetch(server, "/good")
    assert "refused" in caught.value.where
    assert cache(tmp_path) == {}


def test_a_damaged_file_in_the_cache_is_fetched_again(server, tmp_path, capsys):
    path = fetch(server, "/good")
    path.write_bytes(CONTENT[:-1] + b"x")
    assert fetch(server, "/good").read_bytes() == CONTENT
    assert cache(tmp_path)["train.de.bad"] == CONTENT[:-1] + b"x"
    assert "damaged" in capsys.readouterr().err


def test_from_dir_goes_first_and_needs_no_network(server, tmp_path):
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    mine = tmp_path / "mine" / "deep" / "train.de"
    mine.write_bytes(CONTENT)
    assert fetch(server, "/good", from_dir=tmp_path / "mine") == mine
    assert server.asked == []


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_from_dir_finds_the_file_compressed(server, tmp_path, suffix, compress):
    (tmp_path / "mine").mkdir()
    mine = tmp_path / "mine" / f"train.de{suffix}"
    mine.write_bytes(compress(CONTENT))
    assert fetch(server, "/good", from_dir=tmp_path / "mine") == mine


def test_from_dir_takes_the_copy_that_is_right(server, tmp_path):
    (tmp_path / "mine" / "old").mkdir(parents=True)
    (tmp_path / "mine" / "train.de").write_bytes(b"another")
    (tmp_path / "mine" / "old" / "train.de").write_bytes(CONTENT)
    assert fetch(server, "/good", from_dir=tmp_path / "mine").parent.name == "old"


def test_from_dir_with_a_wrong_file_names_both_checksums(server, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.de").write_bytes(b"another")
    with pytest.raises(DataError) as caught:
        fetch(server, "/good", from_dir=tmp_path / "mine")
    assert CHECKSUM.partition(":")[2] in caught.value.message
    assert hashlib.sha256(b"another").hexdigest() in caught.value.message
    assert caught.value.where.endswith("mine/train.de")
    assert (tmp_path / "mine" / "train.de").read_bytes() == b"another"
    assert server.asked == []


def test_from_dir_without_the_file_goes_to_the_network(server, tmp_path):
    (tmp_path / "mine").mkdir()
    assert fetch(server, "/good", from_dir=tmp_path / "mine").parent == tmp_path / "cache" / "corpus"


def test_an_unwritable_cache_is_the_machine_s_problem(server, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(EnvironmentProblem, match="cannot write") as caught:
        fetch(server, "/good")
    assert "NMTKIT_CACHE" in caught.value.hint
