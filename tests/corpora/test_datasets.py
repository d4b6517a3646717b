"""The table of data sets: complete, consistent with what is published, and strict."""

import copy
import json
import lzma
import re
import tomllib
from importlib import resources

import pytest
from sacrebleu.dataset import DATASETS
from typer.testing import CliRunner

from nmtkit.cli import app
from nmtkit.corpora import published, table
from nmtkit.corpora.fetch import checksum
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.prep import stage
from nmtkit.prep.options import PrepOptions
from nmtkit.prep.request import Request
from nmtkit.presets import preset_names
from nmtkit.settings import PrepSettings, build
from tests.refused import refused

EVALUATION = ["lingeval97", "senteval"]
ALL = """
demo lingeval97 senteval multi30k-ende multi30k-enfr multi30k-deen multi30k-defr multi30k-fren
multi30k-frde wmt14-ende wmt14-deen wmt14-enfr wmt14-fren wmt17-ende wmt17-deen iwslt14-deen
iwslt14-ende iwslt14-esen iwslt14-enes iwslt14-roen iwslt14-enro iwslt15-vien iwslt15-envi
iwslt15-fren iwslt15-enfr iwslt15-zhen iwslt15-enzh ted-zhen ted-enzh ted-esen ted-enes
newscommentary-esen newscommentary-enes opensubtitles2018-esen opensubtitles2018-enes tvsub-zhen
tvsub-enzh
"""


@pytest.fixture
def values():
    path = resources.files("nmtkit.corpora").joinpath("datasets.toml")
    return tomllib.loads(path.read_text("utf-8"))


@pytest.fixture
def sources(shared):
    names = ("sources.md", "formats.md")
    return "".join((shared / "data" / name).read_text("utf-8") for name in names)


def test_names():
    assert sorted(table.registered()) == sorted(ALL.split())


@pytest.mark.parametrize("name", ALL.split())
def test_every_entry_is_whole(name):
    dataset = table.find(name)
    entry = dataset.entry
    assert entry.licence and entry.citation and entry.title
    assert bool(entry.generator) + bool(entry.sets) + bool(entry.evaluation) == 1
    if entry.evaluation:
        return
    assert entry.preset in preset_names() and entry.train_pairs > 0
    assert set(entry.presets) <= set(preset_names())
    assert build(PrepSettings, entry.prep, "prep").merges > 0
    if entry.sets:
        assert [one.split for one in dataset.choose()][:3] == ["train", "dev", "test"]
        assert all(one.urls for one in dataset.needed().values())


def test_every_published_file_is_used(values):
    published, used = table.find("multi30k-ende").published, set()
    for dataset in table.registered().values():
        for key in dataset.entry.sets:
            chosen = dataset.choose(*(() if key == "train" else (key, [key])))
            used.update(dataset.needed(chosen))
    for name in EVALUATION:
        used.update(table.find(name).needed())
    addresses = [url for one in published.values() for url in one.urls]
    inside = {url.partition("::")[0] for url in addresses if "::" in url}
    assert used | inside == set(published)


def test_addresses_and_checksums_are_the_published_ones(sources, shared):
    """Every size, checksum and address stands in the notes on what is published (Multi30k:
    beside the files themselves).
    """
    known = dict(
        reversed(line.split())
        for line in (shared / "data" / "SHA256SUMS").read_text("utf-8").splitlines()
    )
    plain = re.sub(r"\{([^}]*)\}", lambda m: m[1], sources).replace("https://", "http://")
    for name, one in table.find("multi30k-ende").published.items():
        algorithm, _, checksum = (one.checksum or ":").partition(":")
        if name.startswith("multi30k/"):
            path = name.replace("multi30k/", "multi30k/raw/")
            assert checksum == known[path] and one.size == (shared / "data" / path).stat().st_size
            continue
        if name.startswith("tvsub/"):  # not in the notes: the commit that the files here come from
            readme = (shared / "data" / "README.md").read_text("utf-8")
            assert "tvsub @ 76a07be477ea" in readme and name[12:24] == "76a07be477ea"
            continue
        if checksum:
            assert checksum in sources, name
            published = algorithm in {"sha256", "git"}
            assert published or re.search(f"(md5|/) {checksum}", sources), name
        if one.size:
            assert str(one.size) in sources, name
        for address in one.urls:
            assert re.match(r"https?://|wit3-releases/", address)
            host = re.match(r"https?://(?:www.)?([^/]+)/", address)
            if "::" not in address and host[1] != "drive.usercontent.google.com":
                assert host[1] in plain, name


@pytest.mark.parametrize(
    "theirs", ["wmt08", "wmt09", "wmt10", "wmt11", "wmt12", "wmt13", "wmt14/full", "wmt15", "wmt17"]
)
def test_wmt_s_test_sets_are_sacrebleu_s(theirs):
    """Address, checksum and members as in sacreBLEU's own table, for every direction that uses
    the archive.
    """
    ours = "wmt14/test-full.tgz" if theirs == "wmt14/full" else f"{theirs}/test.tgz"
    one, other = table.find("wmt14-ende").published[ours], DATASETS[theirs]
    assert one.checksum == f"md5:{other.md5[0]}"
    addresses = [address.replace("www.", "") for address in one.urls]
    assert other.data[0].replace("www.", "") in addresses
    seen = 0
    for dataset in table.registered().values():
        members = other.langpairs.get(f"{dataset.src}-{dataset.tgt}", [])[:2]
        for key in set(dataset.entry.sets) - {"train"}:
            for chosen in dataset.choose(key, [key])[2:]:
                for src, tgt in chosen.parts:
                    if src.resource == ours:
                        assert [src.member, tgt.member] == members
                        seen += 1
    assert seen >= 2


EARLY = "tst2010 tst2011 tst2012 dev2010"
NEWS = "newstest2009 newstest2010 newstest2011 newstest2012 newstest2013"


@pytest.mark.parametrize(
    ("name", "preset", "dev", "test", "merges"),
    [
        ("wmt14-ende", None, "newstest2013", "newstest2014", 32000),
        ("wmt14-ende", "pr-base", "newstest2012 newstest2013", "newstest2014", 32000),
        ("wmt14-fren", None, "newstest2012 newstest2013", "newstest2014", 32000),
        ("wmt17-deen", None, "newstest2014 newstest2015", "newstest2017", 32000),
        ("newscommentary-esen", None, "newstest2008", NEWS, None),
        ("iwslt14-esen", None, EARLY, "tst2014", 34000),
        ("iwslt14-enro", None, EARLY, "tst2014", 32000),
        ("iwslt15-envi", None, "tst2012", "tst2013", 21000),
        ("iwslt15-fren", None, "tst2013", "tst2014 tst2015", 31000),
        ("ted-zhen", None, "dev2010", "tst2010 tst2011 tst2012 tst2013", None),
        ("ted-enes", None, "dev2010", "tst2010 tst2011 tst2012", None),
    ],
)
def test_papers_choices(name, preset, dev, test, merges):
    """Dev, test and merges of each paper, and what a preset changes."""
    dataset = table.find(name)
    entry = dataset.entry
    values = entry.prep | entry.presets.get(preset or entry.preset, {})
    members = [
        re.findall(r"newstest\d+|(?:dev|tst)\d+", " ".join(src.member for src, _ in one.parts))
        for one in dataset.choose(values.get("dev", ""))[1:]
    ]
    assert members == [dev.split(), test.split()]
    assert merges in (None, values.get("merges"))


def test_settings_of_preset_and_data_set_in_the_right_order():
    """The data set's own < the preset's < the data set's with that preset < --set."""

    def chosen(name, preset=None, *assignments):
        options = PrepOptions(dataset=name, preset=preset, assignments=list(assignments))
        return Request(options).settings

    assert chosen("iwslt14-esen").merges == 34000  # preset dc-iwslt: 32000
    assert chosen("iwslt14-esen", "tiny").merges == 1000
    assert chosen("iwslt14-esen", None, "prep.merges=5").merges == 5
    assert chosen("wmt14-ende", "pr-base").dev == "newstest2012+2013"
    assert chosen("wmt14-ende").dev == ""
    sets = "prep.dev=newstest2013", "prep.test=newstest2014,newstest2017"
    assert chosen("wmt14-ende", "pr-base", *sets).test == ["newstest2014", "newstest2017"]
    for pr in ("pr-base", "pr-big"):  # one paper, one protocol: tokenized, case kept
        german, french = (chosen(f"wmt14-en{other}", pr).model_dump() for other in ("de", "fr"))
        assert french == german | {"dev": ""}  # English-French has no other dev set
        assert (french["truecase"], french["aggressive_hyphens"]) == ("none", True)
    assert chosen("iwslt14-deen").lowercase and chosen("iwslt14-deen").max_ratio == 1.5


def test_a_direction_needs_its_own_files_and_a_choice_only_what_it_names():
    needed = list(table.find("multi30k-defr").needed())
    assert needed == [
        f"multi30k/{s}.{lang}.gz"
        for s in ("train", "val", "test_2016_flickr", "test_2017_flickr")
        for lang in ("de", "fr")
    ]
    wmt = table.find("wmt14-ende")
    assert "wmt17/test.tgz" not in wmt.needed()
    assert "wmt17/test.tgz" in wmt.needed(wmt.choose("", ["newstest2017"]))
    twice = wmt.choose("", ["newstest2014", "newstest2014"])
    assert [text.name for text in twice] == ["train", "dev", "newstest2014"]


@pytest.mark.parametrize(
    ("dev", "test", "hint"),
    [
        ("newstest2012", [], "newstest2012+2013"),
        ("", ["newstest14"], "newstest2014"),
        ("train", [], ""),
    ],
)
def test_an_unknown_set_says_the_nearest(dev, test, hint):
    caught = refused(ConfigError, "has no set", table.find("wmt14-ende").choose, dev, test)
    assert hint in caught.hint
    assert caught.where == ("prep.dev" if dev else "prep.test")


def test_unknown_name_says_the_nearest():
    caught = refused(ConfigError, None, table.find, "mutli30k-ende")
    assert "multi30k-ende" in caught.hint
    assert "nmtkit datasets" in caught.hint
    caught = refused(
        ConfigError, None, table.find, "mine"
    )  # nothing is near: one line, not a list of all
    assert "--train SRC TGT" in caught.hint and "wmt14" not in caught.hint


# strict


def change(values, *path, value=None):
    """The table with one value changed (taken out if None)."""
    changed = copy.deepcopy(values)
    place = changed
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


M = ("datasets", "multi30k")
T = (*M, "sets", "train")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((*M, "licens"), "x", "unknown setting 'multi30k.licens'"),
        ((*T, "fles"), ["x"], "unknown setting"),
        ((*T, "format"), "tmx", "bad value"),
        (
            (*T, "files"),
            ["multi30k/trian.{lang}.gz"],
            "needs 'multi30k/trian.en.gz', which no source has",
        ),
        ((*T, "files"), {"en": ["multi30k/train.en.gz"]}, "don't match"),
        ((*T, "boundaries"), ["multi30k/train.en.gz"] * 2, "don't match"),
        ((*T, "rows"), "1:2", "don't match"),
        ((*M, "sets", "val"), {"rows": "every 23rd"}, "bad value .*first:last"),
        ((*M, "dev"), "dev", "has no set 'dev'"),
        ((*M, "test"), ["val", "tset"], "has no set 'tset'"),
        ((*M, "sets", "train"), None, "has no set 'train'"),
        ((*M, "presets"), {"base": {"mergs": 3}}, "unknown setting 'multi30k.presets.mergs'"),
        (("sources", "multi30k", "files", "val.fr.gz"), None, r"val\.fr\.gz"),
        (("sources", "multi30k", "files", "val.fr.gz", "checksum"), "d79cfa99", "checksum"),
        (("sources", "multi30k", "files", "val.fr.gz", "checksum"), "sha256:xyz", "checksum"),
        (("sources", "multi30k", "files", "val.fr.gz", "checksum"), "crc:00", "checksum"),
        (("sources", "multi30k", "files", "val.fr.gz", "size"), 0, "size"),
        (("sources", "multi30k", "mirror"), "x", "unknown setting"),
    ],
)
def test_the_table_is_strict(values, path, value, message):
    refused(ConfigError, message, table.expand, change(values, *path, value=value))


def test_mirrors_of_the_source_come_first():
    one = table.find("iwslt14-deen").published["wit3/2014-01/texts/de/en/de-en.tgz"]
    hosts = [address.partition("//")[2].partition("/")[0] for address in one.urls[:2]]
    assert hosts == ["wit3.fbk.eu", "dl.fbaipublicfiles.com"]
    assert one.urls[2:] == ["wit3-releases/2014-01.tgz::2014-01/texts/de/en/de-en.tgz"]


# the list


def test_describe_is_json_and_knows_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path))
    rows = {row["name"]: row for row in json.loads(json.dumps(published.describe()))}
    needed = table.find("multi30k-ende").needed()
    facts = {
        "multi30k-ende": {
            "pairs": 29000,
            "size": "1.3 MB",
            "bytes": sum(resource.size for resource in needed.values()),
            "verified": True,
            "kind": "corpus",
            "sets": ["train", "dev", "test_2016_flickr", "test_2017_flickr"],
            "cached": False,
        },
        "demo": {"cached": True, "kind": "generated"},
        "ted-zhen": {"bytes": None, "size": "?", "verified": False},
        "wmt14-ende": {"size": "1.7 GB + ?", "verified": True},
        "senteval": {"kind": "evaluation set", "sets": []},
    }
    assert {name: {key: rows[name][key] for key in row} for name, row in facts.items()} == facts
    for name in facts:
        addresses = {key: file.urls for key, file in table.find(name).needed().items()}
        assert rows[name]["files"] == addresses
    assert rows["senteval"]["files"] and not rows["demo"]["files"]
    assert "newstest2012+2013" in rows["wmt14-ende"]["further_sets"]
    (tmp_path / "multi30k").mkdir()
    for name, resource in needed.items():
        with open(tmp_path / name, "wb") as stream:
            stream.truncate(resource.size)
    cached = {row["name"]: row["cached"] for row in published.describe()}
    assert cached["multi30k-ende"] and cached["multi30k-deen"] and not cached["multi30k-enfr"]


# evaluation sets


@pytest.fixture
def lingeval(tmp_path, monkeypatch, values):
    """A small lingeval97 in a folder, and the table that knows it."""
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "lingeval97.json"
    path.write_text("[]")
    one = values["sources"]["lingeval97"]
    one["bases"], one["files"]["lingeval97.json"]["checksum"] = [], checksum(path, "git")
    known = table.expand(values)
    monkeypatch.setattr(table, "registered", lambda: known)
    return path


def test_an_evaluation_set_is_kept_for_the_analyses(lingeval, tmp_path):
    with pytest.raises(EnvironmentProblem, match="cannot download lingeval97"):
        published.evaluation_set("lingeval97")
    folder = published.fetch("lingeval97", lingeval.parent)[0].parent
    assert folder == tmp_path / "cache" / "lingeval97"
    assert [p.name for p in folder.iterdir()] == ["lingeval97.json"]
    lingeval.unlink()
    assert published.evaluation_set("lingeval97") == folder
    assert published.fetch("lingeval97") == [folder / "lingeval97.json"]
    assert {row["name"]: row["cached"] for row in published.describe()}["lingeval97"]


def test_an_evaluation_set_compressed_since_is_kept_uncompressed(lingeval, tmp_path):
    (lingeval.parent / "lingeval97.json.xz").write_bytes(lzma.compress(lingeval.read_bytes()))
    lingeval.unlink()
    folder = published.fetch("lingeval97", lingeval.parent)[0].parent
    assert (folder / "lingeval97.json").read_text() == "[]"


def test_what_is_and_is_no_evaluation_set(tmp_path):
    caught = refused(
        ConfigError, "is an evaluation set", stage.prep, "senteval", run_dir=tmp_path / "run"
    )
    assert "nmtkit datasets --fetch senteval" in caught.hint
    refused(ConfigError, "nothing to fetch", published.fetch, "demo")


def test_the_list_fits_80_columns_and_leaves_nothing_out():
    listed = CliRunner().invoke(app, ["datasets"]).stdout
    assert max(map(len, listed.split("\n"))) < 80
    text = " ".join(listed.split())
    help_text = CliRunner().invoke(app, ["datasets", "--help"]).stdout
    assert "nmtkit datasets --fetch senteval" in help_text
    for row in published.describe():
        (line,) = [line for line in listed.split("\n") if line.split(" ")[0] == row["name"]]
        number = line.split()[-1]
        assert f"[{number}] {row['citation']} Licence: {row['licence']}" in text
    for line in ("iwslt14-esen +~183,000 ", "iwslt14-deen +167,522 "):
        assert re.search(f"^{line}", listed, re.M)


def test_an_unknown_name_to_fetch_is_no_matter_of_prep():
    caught = refused(ConfigError, "unknown data set 'senteva'", published.fetch, "senteva")
    assert caught.where == "nmtkit datasets --fetch"
    assert caught.hint == "did you mean 'senteval'? (nmtkit datasets lists them)"


def test_fetch_without_preparing(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path))
    raw = shared / "data" / "multi30k" / "raw"
    for folder in (raw, raw.parent):
        paths = published.fetch("multi30k-fren", folder)
        assert paths[2:4] == [raw / "val.fr.gz", raw / "val.en.gz"]
    assert list(tmp_path.iterdir()) == []
    refused(DataError, "no such folder", published.fetch, "multi30k-fren", tmp_path / "nowhere")
