"""The table of data sets: complete, consistent with the published files, and strict."""

import copy
import json
import tomllib
from importlib import resources

import pytest

from nmtkit.errors import ConfigError, DataError
from nmtkit.prep.corpora import table as datasets
from nmtkit.settings import PrepSettings, build, preset_names


@pytest.fixture
def table():
    return tomllib.loads(resources.files("nmtkit.prep.corpora").joinpath("datasets.toml").read_text("utf-8"))


def test_names():
    pairs = ["ende", "enfr", "deen", "defr", "fren", "frde"]
    assert list(datasets.registered()) == ["demo", *(f"multi30k-{pair}" for pair in pairs)]


@pytest.mark.parametrize("name", list(datasets.registered()))
def test_every_entry_is_whole(name):
    dataset = datasets.find(name)
    entry = dataset.entry
    assert entry.preset in preset_names()
    assert build(PrepSettings, entry.prep, "prep").merges > 0
    assert entry.licence and entry.citation and entry.title
    assert bool(entry.generator) != bool(entry.sets)
    if entry.sets:
        assert [table.split for table in entry.sets][:2] == ["train", "dev"]
        assert "test" in [table.split for table in entry.sets]
        assert all(url.startswith("https://") for file in dataset.needed() for url in dataset.urls(file))


def test_a_direction_needs_its_own_files():
    needed = list(datasets.find("multi30k-defr").needed())
    assert needed == [f"{s}.{lang}.gz" for s in ("train", "val", "test_2016_flickr", "test_2017_flickr") for lang in ("de", "fr")]


def test_unknown_name_says_the_nearest():
    with pytest.raises(ConfigError) as caught:
        datasets.find("mutli30k-ende")
    assert "multi30k-ende" in caught.value.hint
    assert "nmtkit datasets" in caught.value.hint


def test_unknown_key_is_an_error(table):
    table["multi30k"]["licens"] = "x"
    with pytest.raises(ConfigError, match="unknown setting 'multi30k.licens'") as caught:
        datasets.expand(table)
    assert "licence" in caught.value.hint


@pytest.mark.parametrize("checksum", ["d79cfa99", "sha256:xyz", "crc:00"])
def test_a_checksum_must_be_one(table, checksum):
    table["multi30k"]["resources"]["train.en.gz"]["checksum"] = checksum
    with pytest.raises(ConfigError, match="checksum"):
        datasets.expand(table)


def test_a_set_must_name_a_resource(table):
    del table["multi30k"]["resources"]["val.fr.gz"]
    with pytest.raises(ConfigError, match="val.fr.gz"):
        datasets.expand(table)


def test_mirrors_several_files_references_and_documents(table):
    """What the larger corpora need of the table: parts in order, further references, document starts, mirrors, md5."""
    values = copy.deepcopy(table["multi30k"])
    values["sets"][0]["files"] = ["train.{lang}.gz", "val.{lang}.gz"]
    values["sets"][2] |= {"references": [["test_2017_flickr.{lang}.gz"]], "documents": "starts", "starts": "docs.{src}-{tgt}"}
    values["resources"]["docs.en-de"] = {"size": 3, "checksum": "md5:" + "0" * 32, "urls": ["https://a.example/x", "https://b.example/x"]}
    values |= {"pairs": ["en-de"], "languages": []}
    dataset = datasets.expand({"multi30k": values})["multi30k-ende"]
    assert dataset.urls("docs.en-de") == ["https://a.example/x", "https://b.example/x"]
    assert list(dataset.needed())[:4] == ["train.en.gz", "val.en.gz", "train.de.gz", "val.de.gz"]
    assert "docs.en-de" in dataset.needed()


def test_describe_is_json_and_knows_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path))
    rows = {row["name"]: row for row in json.loads(json.dumps(datasets.describe()))}
    assert rows["multi30k-ende"]["pairs"] == 29000
    assert rows["multi30k-ende"]["size"] == "1.3 MB"
    assert rows["multi30k-ende"]["bytes"] == sum(r.size for r in datasets.find("multi30k-ende").needed().values())
    assert (rows["demo"]["cached"], rows["multi30k-ende"]["cached"]) == (True, False)
    (tmp_path / "multi30k").mkdir()
    for name, resource in datasets.find("multi30k-ende").needed().items():
        with open(tmp_path / "multi30k" / name, "wb") as stream:
            stream.truncate(resource.size)
    cached = {row["name"]: row["cached"] for row in datasets.describe()}
    assert cached["multi30k-ende"] and cached["multi30k-deen"] and not cached["multi30k-enfr"]


def test_the_table_agrees_with_the_published_files(shared):
    published = dict(reversed(line.split()) for line in (shared / "data" / "SHA256SUMS").read_text("utf-8").splitlines())
    resources_ = datasets.find("multi30k-ende").entry.resources
    assert len(resources_) == 12
    for name, resource in resources_.items():
        assert resource.checksum == "sha256:" + published[f"multi30k/raw/{name}"]
        assert resource.size == (shared / "data" / "multi30k" / "raw" / name).stat().st_size


def test_fetch_from_a_folder_and_its_subfolders(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path))
    raw = shared / "data" / "multi30k" / "raw"
    for folder in (raw, raw.parent):
        sets = datasets.find("multi30k-fren").fetch(folder)
        assert [one.name for one in sets] == ["train", "dev", "test_2016_flickr", "test_2017_flickr"]
        assert (sets[1].src, sets[1].tgt) == ((raw / "val.fr.gz",), (raw / "val.en.gz",))
    assert list(tmp_path.iterdir()) == []


def test_from_dir_must_exist(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        datasets.find("multi30k-fren").fetch(tmp_path / "nowhere")
