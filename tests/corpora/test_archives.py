"""Extract the wanted members of archives; refuse unsafe, oversized and damaged archives."""

import gzip
import lzma
import os
import stat
import tarfile
import tracemalloc
import zipfile
from types import SimpleNamespace

import pytest
import zstandard

from nmtkit.corpora import archives
from nmtkit.errors import DataError, EnvironmentProblem
from tests.corpora.lookalikes import tarball, zipped
from tests.refused import refused

FILES = {
    "training/a.de": b"eins\nzwei\n",
    "training/a.en": b"one\ntwo\n",
    "other/README": b"?\n" * 10,
}
ZEROS = bytes(3_000_000)
KINDS = ["zip", "tar", "tgz", "tar.xz", "tar.bz2", "tar.zst"]


def make(kind, folder, members):
    """Write an archive and return its path."""
    path = folder / f"x.{kind}"
    if kind != "tar.zst":  # tarfile does not write it
        return (zipped if kind == "zip" else tarball)(path, members)
    plain = tarball(path.with_suffix(".tar"), members).read_bytes()
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(plain))
    return path


def special(name, kind, target=""):
    """Return the header of a link or a device."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def folder(tmp_path):
    """The folder for extracted members."""
    (tmp_path / "out" / "here").mkdir(parents=True)
    return tmp_path / "out" / "here"


def refuse(message, archive, wanted, folder):
    """Assert that extracting a member fails with this message; return the error."""
    return refused(DataError, message, archives.extract, archive, [wanted], folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["", "./"])
def test_extract_writes_only_the_wanted_members(tmp_path, folder, kind, prefix):
    archive = make(kind, tmp_path, {prefix + name: data for name, data in FILES.items()})
    extracted = archives.extract(archive, ["training/a.en", "training/a.de"], folder)
    assert {name: paths[0].read_bytes() for name, paths in extracted.items()} == {
        name: data for name, data in FILES.items() if "training" in name
    }
    assert sorted(path.name for path in folder.iterdir()) == ["00000-a.de", "00001-a.en"]


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_numbered_members_are_sorted_by_number(tmp_path, folder, kind):
    names = ["10", "9", "100", "0", "x1", "1.np", "07"]
    members = {f"train/{name}.zh": name.encode() for name in names} | {"train/9.en": b""}
    archive = make(kind, tmp_path, members)
    extracted = archives.extract(archive, ["train/{number}.zh"], folder)["train/{number}.zh"]
    assert list(extracted) == [0, 7, 9, 10, 100]
    assert [path.read_text() for path in extracted.values()] == ["0", "07", "9", "10", "100"]


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("xz", lzma.compress)])
@pytest.mark.parametrize("decompress", [True, False])
def test_compressed_member_is_decompressed_on_request(
    tmp_path, folder, suffix, compress, decompress
):
    name, packed = f"giga.de.{suffix}", compress(b"eins\n")
    archive = tarball(tmp_path / "x.tar", {name: packed})
    path = archives.extract(archive, [name], folder, decompress)[name][0]
    assert path.read_bytes() == (b"eins\n" if decompress else packed)
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_missing_member_is_refused_with_the_nearest_name_or_the_names_there_are(
    tmp_path, folder, kind
):
    archive = make(kind, tmp_path, FILES)
    with pytest.raises(DataError, match="has no training/b.de") as caught:
        archives.extract(archive, ["training/a.en", "training/b.de"], folder)
    assert "training/a.de" in caught.value.hint
    error = refuse("has no", archive, "{number}.zh", folder)
    assert "it holds training/a.de, training/a.en, other/README" in error.hint


# unsafe names, links and devices


@pytest.mark.parametrize("kind", ["zip", "tgz", "tar"])
@pytest.mark.parametrize(
    "name", ["../evil", "training/../../evil", "/tmp/evil-nmtkit", "..\\evil", "C:\\evil"]
)
@pytest.mark.parametrize("wanted", ["unsafe", "safe"])
def test_archive_with_a_name_outside_its_folder_is_refused(tmp_path, folder, kind, name, wanted):
    archive = make(kind, tmp_path, {name: b"evil"} | FILES)
    refuse("is not safe", archive, name if wanted == "unsafe" else "training/a.de", folder)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {archive}
    assert not os.path.exists("/tmp/evil-nmtkit")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_link_or_device_is_refused_only_if_it_is_wanted(tmp_path, folder, kind):
    (tmp_path / "secret").write_text("secret")
    link = special("training/a.de", kind, str(tmp_path / "secret"))
    archive = tarball(tmp_path / "x.tgz", {"training/a.de": link, "training/a.en": b"x"})
    refuse("is not a plain file", archive, "training/a.de", folder)
    assert list(folder.iterdir()) == []
    extracted = archives.extract(archive, ["training/a.en"], folder)
    assert extracted["training/a.en"][0].read_bytes() == b"x"


def test_link_in_a_zip_is_refused(tmp_path, folder):
    link = zipfile.ZipInfo("a.de")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = zipped(tmp_path / "x.zip", {link: "/etc/passwd"})
    refuse("is not a plain file", archive, "a.de", folder)


def test_member_below_a_linked_folder_is_written_into_the_target_folder(tmp_path, folder):
    target = tmp_path / "target"
    target.mkdir()
    members = {"dir": special("dir", tarfile.SYMTYPE, str(target)), "dir/a.de": b"x"}
    archives.extract(tarball(tmp_path / "x.tgz", members), ["dir/a.de"], folder)
    assert list(target.iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["00000-a.de"]


def test_odd_characters_of_a_member_name_become_underscores(tmp_path, folder):
    name = "dir/a b;$(x)\n.de"
    archive = zipped(tmp_path / "x.zip", {name: b"x"})
    assert archives.extract(archive, [name], folder)[name][0].name == "00000-a_b___x__.de"


# content larger than text can be


@pytest.mark.parametrize(
    ("kind", "members", "wanted", "ratio"),
    [
        ("zip", {"a.de": ZEROS}, "a.de", archives.MOST_RATIO),
        ("tgz", {"a.de": ZEROS}, "a.de", archives.MOST_RATIO),
        ("tar.xz", {"a.de": ZEROS}, "a.de", archives.MOST_RATIO),
        ("tar", {"a.de.gz": gzip.compress(ZEROS)}, "a.de.gz", 20),
        ("tgz", {"a.de": b"x\n", "b.de": ZEROS}, "a.de", 1),
        ("tgz", {"a.de": b"x\n", "b.de": ZEROS}, "b.de", 1),
        ("tgz", {f"{i}.de": bytes(30_000) for i in range(10)}, "{number}.de", 1),
    ],
    ids=["zip", "tgz", "tar.xz", "compressed member", "unwanted", "second", "many members"],
)
def test_content_too_large_for_the_archive_is_refused(
    tmp_path, folder, monkeypatch, kind, members, wanted, ratio
):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 100_000)
    monkeypatch.setattr(archives, "MOST_RATIO", ratio)
    archive = make(kind, tmp_path, members)
    refuse("would grow to more than", archive, wanted, folder)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2_000_000


def test_content_may_be_as_large_as_the_ratio_allows(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 0)
    archive = zipped(tmp_path / "x.zip", {"a.de": ZEROS[:30_000]})
    assert archive.stat().st_size < 1000
    assert archives.extract(archive, ["a.de"], folder)["a.de"][0].read_bytes() == ZEROS[:30_000]


def test_large_content_behind_the_end_of_a_tarball_is_refused(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 100_000)
    monkeypatch.setattr(archives, "MOST_RATIO", 1)
    path = tarball(tmp_path / "x.tar", {"a.de": b"x\n", "b.de": b"x\n"})
    archive = tmp_path / "x.tgz"
    archive.write_bytes(gzip.compress(path.read_bytes() + ZEROS))
    refuse("would grow to more than", archive, "a.de", folder)


def parse_without_frombuf(cls, tarball):
    """Parse a header as TarInfo.fromtarfile does since CPython's gh-141707."""
    block = tarball.fileobj.read(512)
    header = tarfile.TarInfo.frombuf.__func__(cls, block, tarball.encoding, tarball.errors)
    header.offset = tarball.fileobj.tell() - 512
    return header._proc_member(tarball)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X"])
def test_header_of_gigabytes_is_refused_without_reading_it(
    tmp_path, folder, monkeypatch, kind, later
):
    if later:
        monkeypatch.setattr(tarfile.TarInfo, "fromtarfile", classmethod(parse_without_frombuf))
    header = special("x", kind)
    header.size = 4 << 30
    archive = tmp_path / "x.tgz"
    archive.write_bytes(gzip.compress(header.tobuf() + bytes(4 << 20)))
    tracemalloc.start()
    try:
        refuse(r"a header of 4\.3 GB is too long", archive, "a.de", folder)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["a.de", "b.de"])
def test_member_that_claims_terabytes_is_refused(tmp_path, folder, name):
    """Without a limit tarfile looks for the end of an unwanted member for hours."""
    header = tarfile.TarInfo(name)
    header.size = 4 << 40
    archive = tmp_path / "x.tar"
    archive.write_bytes(header.tobuf() + b"x\n")
    with pytest.raises((DataError, EnvironmentProblem), match="no space|would grow to|is damaged"):
        archives.extract(archive, ["a.de"], folder)
    assert list(folder.iterdir()) == []


def test_zip_that_declares_a_smaller_size_is_refused(tmp_path, folder):
    archive = zipped(tmp_path / "x.zip", {"a.de": ZEROS})
    real, declared = (size.to_bytes(4, "little") for size in (len(ZEROS), 300))
    archive.write_bytes(archive.read_bytes().replace(real, declared))
    refuse("damaged", archive, "a.de", folder)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 300


def test_full_disk_is_reported_before_anything_is_written(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: SimpleNamespace(free=5))
    archive = tarball(tmp_path / "x.tgz", FILES)
    with pytest.raises(EnvironmentProblem, match="no space to unpack"):
        archives.extract(archive, ["training/a.de"], folder)
    assert list(folder.iterdir()) == []


# damage


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bytes_left", [0, 10, 50_000, 90_000])
def test_archive_that_is_cut_short_is_refused(tmp_path, folder, kind, bytes_left):
    archive = make(kind, tmp_path, {"a.de": os.urandom(50_000), "b.de": os.urandom(50_000)})
    archive.write_bytes(archive.read_bytes()[:bytes_left])
    error = refuse(r"is damaged|has no b\.de", archive, "b.de", folder)
    assert error.where == str(archive)


@pytest.mark.parametrize("kind", ["zip", "tgz", "tar.xz", "tar.zst"])
def test_flipped_bits_are_refused(tmp_path, folder, kind):
    archive = make(kind, tmp_path, {"a.de": os.urandom(5000)})
    data = bytearray(archive.read_bytes())
    data[2500] ^= 255
    archive.write_bytes(data)
    refuse("is damaged", archive, "a.de", folder)


def test_zip_directory_with_a_negative_offset_is_refused(tmp_path, folder):
    """Python then seeks to a negative position, which is an OSError."""
    archive = zipped(tmp_path / "x.zip", {"a.de": b"x" * 50})
    data = bytearray(archive.read_bytes())
    end = data.rindex(b"PK\5\6")
    data[end + 16 : end + 20] = (1 << 20).to_bytes(4, "little")  # where the directory begins
    archive.write_bytes(data)
    refuse("is damaged", archive, "a.de", folder)


@pytest.mark.parametrize(
    ("name", "content", "is_kind"),
    [
        ("a/x.tgz", gzip.compress(b"", mtime=0), True),
        ("a/x.tgz", b"<html>", False),
        ("a/x.zip", b"PK\3\4", True),
        ("a/x.txt", b"<html>", True),
    ],
)
def test_first_bytes_tell_if_a_file_is_the_archive_that_its_name_says(
    tmp_path, name, content, is_kind
):
    (tmp_path / "file").write_bytes(content)
    assert archives.is_kind(tmp_path / "file", name) == is_kind
