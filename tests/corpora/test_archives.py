"""Archives: the members asked for come out whole, and nothing else happens, whatever the archive
holds.
"""

import gzip
import io
import lzma
import os
import stat
import tarfile
import tracemalloc
import zipfile
from types import SimpleNamespace

import pytest

from nmtkit.corpora import archives
from nmtkit.errors import DataError, EnvironmentProblem
from tests.corpora.lookalikes import zipped
from tests.refused import refused

FILES = {
    "training/a.de": b"eins\nzwei\n",
    "training/a.en": b"one\ntwo\n",
    "other/README": b"?\n" * 10,
}


def tar(path, members, mode="w:gz"):
    """A tarball of bytes, or of TarInfo with type and linkname set."""
    with tarfile.open(path, mode) as one:
        for name, data in members.items():
            info = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(data, bytes):
                info.size = len(data)
            one.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)
    return path


MODES = {"tar": "w:", "tgz": "w:gz", "tar.xz": "w:xz", "tar.bz2": "w:bz2"}
KINDS = ["zip", *MODES]


def make(kind, folder, members):
    path = folder / f"x.{kind}"
    return zipped(path, members) if kind == "zip" else tar(path, members, MODES[kind])


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out" / "here").mkdir(parents=True)
    return tmp_path / "out" / "here"


def refuse(message, path, wanted, folder):
    """No archive from which this name is read: the error says why."""
    refused(DataError, message, archives.extract, path, [wanted], folder)


def outside(folder):
    """What lies anywhere but in the folder that may be written in, archives left out."""
    root = folder.parent.parent
    return sorted(
        p.relative_to(root).as_posix()
        for p in root.rglob("*")
        if p.is_file() and folder not in p.parents and p.parent != root
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["", "./"])
def test_members_come_out(tmp_path, folder, kind, prefix):
    path = make(kind, tmp_path, {prefix + name: data for name, data in FILES.items()})
    found = archives.extract(path, ["training/a.en", "training/a.de"], folder)
    assert {name: paths[0].read_bytes() for name, paths in found.items()} == {
        n: FILES[n] for n in FILES if "training" in n
    }
    assert sorted(p.name for p in folder.iterdir()) == ["00000-a.de", "00001-a.en"]


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_numbered_members_come_in_the_order_of_their_numbers(tmp_path, folder, kind):
    names = ["10", "9", "100", "0", "x1", "1.np", "07"]
    members = {f"train/{name}.zh": name.encode() for name in names} | {"train/9.en": b""}
    path = make(kind, tmp_path, members)
    taken = archives.extract(path, ["train/{number}.zh"], folder)["train/{number}.zh"]
    assert list(taken) == [0, 7, 9, 10, 100]
    assert [path.read_text() for path in taken.values()] == ["0", "07", "9", "10", "100"]


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("xz", lzma.compress)])
@pytest.mark.parametrize("decompress", [True, False])
def test_compressed_members(tmp_path, folder, suffix, compress, decompress):
    packed = compress(FILES["training/a.de"])
    path = tar(tmp_path / "x.tar", {f"giga.de.{suffix}": packed}, "w:")
    name = f"giga.de.{suffix}"
    taken = archives.extract(path, [name], folder, decompress)[name][0]
    assert taken.read_bytes() == (FILES["training/a.de"] if decompress else packed)
    assert list(folder.iterdir()) == [taken]


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_a_missing_member_names_the_nearest_or_what_is_there(tmp_path, folder, kind):
    path = make(kind, tmp_path, FILES)
    with pytest.raises(DataError, match="has no training/b.de") as caught:
        archives.extract(path, ["training/a.en", "training/b.de"], folder)
    assert "training/a.de" in caught.value.hint
    caught = refused(DataError, None, archives.extract, path, ["{number}.zh"], folder)
    assert "it holds training/a.de, training/a.en, other/README" in caught.hint


# what must not happen


@pytest.mark.parametrize("kind", ["zip", "tgz", "tar"])
@pytest.mark.parametrize(
    "name", ["../evil", "training/../../evil", "/tmp/evil-nmtkit", "..\\evil", "C:\\evil"]
)
@pytest.mark.parametrize("wanted", ["itself", "another"])
def test_names_that_leave_the_folder(tmp_path, folder, kind, name, wanted):
    path = make(kind, tmp_path, {name: b"evil"} | FILES)
    before = outside(folder)
    refuse("is not safe", path, name if wanted == "itself" else "training/a.de", folder)
    assert outside(folder) == before
    assert not any(p.exists() for p in (tmp_path / "evil", tmp_path / "out" / "evil"))
    assert not os.path.exists("/tmp/evil-nmtkit")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices(tmp_path, folder, kind):
    (tmp_path / "secret").write_text("secret")
    linked = link("training/a.de", str(tmp_path / "secret"), kind)
    path = tar(tmp_path / "x.tgz", {"training/a.de": linked, "training/a.en": b"x"})
    refuse("is not a plain file", path, "training/a.de", folder)
    assert list(folder.iterdir()) == []
    taken = archives.extract(path, ["training/a.en"], folder)
    assert taken["training/a.en"][0].read_bytes() == b"x"  # an unwanted link harms nobody


def test_a_link_through_which_another_member_would_be_written(tmp_path, folder):
    """The classic: a link to a folder, then a member inside it. Only our own names are written,
    so it lands in our folder.
    """
    target = tmp_path / "target"
    target.mkdir()
    path = tar(tmp_path / "x.tgz", {"dir": link("dir", str(target)), "dir/a.de": b"x"})
    archives.extract(path, ["dir/a.de"], folder)
    assert list(target.iterdir()) == []
    assert [p.name for p in folder.iterdir()] == ["00000-a.de"]


def test_a_link_in_a_zip(tmp_path, folder):
    info = zipfile.ZipInfo("a.de")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    zipped(tmp_path / "x.zip", {})
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as one:
        one.writestr(info, "/etc/passwd")
    refuse("is not a plain file", tmp_path / "x.zip", "a.de", folder)


def test_odd_names_become_plain_ones(tmp_path, folder):
    name = "dir/a b;$(x)\n.de"
    path = zipped(tmp_path / "x.zip", {name: b"x"})
    assert archives.extract(path, [name], folder)[name][0].name == "00000-a_b___x__.de"


ZEROS = bytes(3_000_000)


@pytest.mark.parametrize("kind", ["zip", "tgz", "tar.xz"])
def test_bombs(tmp_path, folder, kind, monkeypatch):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 100_000)
    path = make(kind, tmp_path, {"a.de": ZEROS})
    refuse("would grow to more than", path, "a.de", folder)
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 2_000_000


def test_a_bomb_inside_an_archive(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 100_000)
    monkeypatch.setattr(archives, "MOST_RATIO", 20)
    path = tar(tmp_path / "x.tar", {"a.de.gz": gzip.compress(ZEROS)}, "w:")
    refuse("would grow to more than", path, "a.de.gz", folder)
    assert sum(p.stat().st_size for p in folder.iterdir()) <= len(ZEROS)


@pytest.mark.parametrize("wanted", ["a.de", "b.de"])
def test_a_bomb_that_nobody_wants(tmp_path, folder, monkeypatch, wanted):
    """Not beside the member that is wanted, and not behind the end of the archive."""
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 100_000)
    monkeypatch.setattr(archives, "MOST_RATIO", 1)
    path = tar(tmp_path / "x.tgz", {"a.de": b"x\n", "b.de": ZEROS})
    refuse("would grow to more than", path, wanted, folder)
    path = tar(tmp_path / "y.tar", {"a.de": b"x\n", "b.de": b"x\n"}, "w")
    (tmp_path / "y.tgz").write_bytes(gzip.compress(path.read_bytes() + ZEROS))
    (folder / "second").mkdir()
    refuse("would grow to more than", tmp_path / "y.tgz", wanted, folder / "second")


def parsed_as_by_later_pythons(cls, tarball):
    """TarInfo.fromtarfile, which does not call cls.frombuf since CPython's gh-141707."""
    block = tarball.fileobj.read(512)
    header = tarfile.TarInfo.frombuf.__func__(cls, block, tarball.encoding, tarball.errors)
    header.offset = tarball.fileobj.tell() - 512
    return header._proc_member(tarball)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X"])
def test_a_header_of_gigabytes_is_not_read(tmp_path, folder, monkeypatch, kind, later):
    if later:
        parse = classmethod(parsed_as_by_later_pythons)
        monkeypatch.setattr(tarfile.TarInfo, "fromtarfile", parse)
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 4 << 30
    path = tmp_path / "x.tgz"
    path.write_bytes(gzip.compress(header.tobuf() + bytes(4 << 20)))
    tracemalloc.start()
    try:
        refuse(r"a header of 4\.3 GB is too long", path, "a.de", folder)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_member_that_claims_gigabytes(tmp_path, folder):
    header = tarfile.TarInfo("a.de")
    header.size = 4 << 40
    path = tmp_path / "x.tgz"
    path.write_bytes(gzip.compress(header.tobuf() + b"x\n"))
    with pytest.raises((DataError, EnvironmentProblem), match=r"no space|would grow"):
        archives.extract(path, ["a.de"], folder)
    assert list(folder.iterdir()) == []


def test_a_member_that_nobody_wants_and_that_claims_gigabytes(tmp_path, folder):
    """tarfile would read on after the end, 10 kB at once, for hours."""
    header = tarfile.TarInfo("b.de")
    header.size = 4 << 40
    path = tmp_path / "x.tar"
    path.write_bytes(header.tobuf() + b"x\n")
    refuse("would grow to more than", path, "a.de", folder)


def test_many_small_members_count_together(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 100_000)
    monkeypatch.setattr(archives, "MOST_RATIO", 1)
    path = tar(tmp_path / "x.tgz", {f"{i}.de": bytes(30_000) for i in range(10)})
    refuse("would grow", path, "{number}.de", folder)


def test_a_zip_that_lies_about_its_sizes(tmp_path, folder):
    path = zipped(tmp_path / "x.zip", {"a.de": ZEROS})
    data = path.read_bytes().replace((3_000_000).to_bytes(4, "little"), (300).to_bytes(4, "little"))
    path.write_bytes(data)
    refuse("damaged", path, "a.de", folder)
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 300


def test_a_full_disk_is_said_before_anything_is_written(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: SimpleNamespace(free=5))
    path = tar(tmp_path / "x.tgz", FILES)
    with pytest.raises(EnvironmentProblem, match="no space to unpack"):
        archives.extract(path, ["training/a.de"], folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.9])
def test_a_damaged_archive(tmp_path, folder, kind, kept):
    path = make(kind, tmp_path, {"a.de": os.urandom(50_000), "b.de": os.urandom(50_000)})
    data = path.read_bytes()
    path.write_bytes(data[: kept if kept in {0, 10} else int(kept * len(data))])
    caught = refused(
        DataError, r"is damaged|has no b\.de", archives.extract, path, ["b.de"], folder
    )
    assert str(caught.where) == str(path)


@pytest.mark.parametrize("kind", ["zip", "tgz", "tar.xz"])
def test_flipped_bits(tmp_path, folder, kind):
    path = make(kind, tmp_path, {"a.de": os.urandom(5000)})
    data = bytearray(path.read_bytes())
    data[2500] ^= 255
    path.write_bytes(data)
    refuse("is damaged", path, "a.de", folder)


def test_a_zip_whose_directory_points_before_its_beginning(tmp_path, folder):
    """Python seeks to a negative place there, which the system refuses."""
    path = zipped(tmp_path / "x.zip", {"a.de": b"x" * 50})
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\5\6")
    data[end + 16 : end + 20] = (1 << 20).to_bytes(4, "little")  # where the directory begins
    path.write_bytes(data)
    refuse("is damaged", path, "a.de", folder)


@pytest.mark.parametrize(
    ("name", "content", "right"),
    [
        ("x.tgz", gzip.compress(b"", mtime=0), True),
        ("x.tgz", b"<html>", False),
        ("x.zip", b"PK\3\4", True),
    ],
)
def test_kinds(tmp_path, name, content, right):
    (tmp_path / "file").write_bytes(content)
    assert archives.is_kind(tmp_path / "file", f"a/{name}") == right
    assert archives.is_kind(tmp_path / "file", "a/x.txt")
