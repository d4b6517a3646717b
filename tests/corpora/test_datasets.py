"""Check datasets.toml (entries, checksums, choices of the papers) and the list of data sets."""

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
from tests.manifests import with_change
from tests.refused import refused

PUBLISHED = table.find("multi30k-ende").published
"""Every published file of every data set."""

NAMES = """
demo lingeval97 senteval multi30k-ende multi30k-enfr multi30k-deen multi30k-defr multi30k-fren
multi30k-frde wmt14-ende wmt14-deen wmt14-enfr wmt14-fren wmt17-ende wmt17-deen iwslt14-deen
iwslt14-ende iwslt14-esen iwslt14-enes iwslt14-roen iwslt14-enro iwslt15-vien iwslt15-envi
iwslt15-fren iwslt15-enfr iwslt15-zhen iwslt15-enzh ted-zhen ted-enzh ted-esen ted-enes
newscommentary-esen newscommentary-enes opensubtitles2018-esen opensubtitles2018-enes tvsub-zhen
tvsub-enzh
"""


@pytest.fixture
def values():
    """Return the parsed datasets.toml."""
    return tomllib.loads(
        resources.files("nmtkit.corpora").joinpath("datasets.toml").read_text("utf-8")
    )


def test_registered_names_are_the_expected_ones():
    assert sorted(table.registered()) == sorted(NAMES.split())


@pytest.mark.parametrize("name", NAMES.split())
def test_entry_has_licence_citation_and_valid_settings(name):
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
        assert [chosen.split for chosen in dataset.choose()][:3] == ["train", "dev", "test"]
        assert all(resource.urls for resource in dataset.needed().values())


def test_every_published_file_belongs_to_a_data_set():
    used = set()
    for dataset in table.registered().values():
        used.update(dataset.needed())
        for key in dataset.entry.sets.keys() - {"train"}:
            used.update(dataset.needed(dataset.choose(key, [key])))
    addresses = [url for resource in PUBLISHED.values() for url in resource.urls]
    outer = {url.partition("::")[0] for url in addresses if "::" in url}
    assert used | outer == set(PUBLISHED)


def test_multi30k_checksums_and_sizes_equal_the_shared_files(shared):
    data = shared / "data"
    known = dict(reversed(line.split()) for line in (data / "SHA256SUMS").read_text().splitlines())
    for name, resource in PUBLISHED.items():
        if name.startswith("multi30k/"):
            path = name.replace("multi30k/", "multi30k/raw/")
            assert resource.checksum == f"sha256:{known[path]}"
            assert resource.size == (data / path).stat().st_size


def test_tvsub_commit_is_that_of_the_shared_files(shared):
    assert "tvsub @ 76a07be477ea" in (shared / "data" / "README.md").read_text("utf-8")
    names = [name for name in PUBLISHED if name.startswith("tvsub/")]
    assert names and all(name[12:24] == "76a07be477ea" for name in names)


def test_addresses_checksums_and_sizes_agree_with_the_shared_notes(shared):
    """The notes are sources.md and formats.md."""
    notes = "".join(
        (shared / "data" / name).read_text("utf-8") for name in ("sources.md", "formats.md")
    )
    hosts = re.sub(r"\{([^}]*)\}", r"\1", notes).replace("https://", "http://")
    for name, resource in PUBLISHED.items():
        if name.startswith(("multi30k/", "tvsub/")):
            continue
        if resource.checksum:
            algorithm, _, digest = resource.checksum.partition(":")
            assert digest in notes, name
            assert algorithm in {"sha256", "git"} or re.search(f"(md5|/) {digest}", notes), name
        assert str(resource.size or "") in notes, name
        for address in resource.urls:
            assert re.match(r"https?://|wit3-releases/", address)
            host = re.match(r"https?://(?:www.)?([^/]+)/", address)
            if "::" not in address and host[1] != "drive.usercontent.google.com":
                assert host[1] in hosts, name


@pytest.mark.parametrize(
    "theirs", ["wmt08", "wmt09", "wmt10", "wmt11", "wmt12", "wmt13", "wmt14/full", "wmt15", "wmt17"]
)
def test_wmt_test_sets_have_the_address_checksum_and_members_of_sacrebleu(theirs):
    """For every direction that uses the archive."""
    ours = "wmt14/test-full.tgz" if theirs == "wmt14/full" else f"{theirs}/test.tgz"
    resource, other = PUBLISHED[ours], DATASETS[theirs]
    assert resource.checksum == f"md5:{other.md5[0]}"
    addresses = [address.replace("www.", "") for address in resource.urls]
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
def test_dev_test_and_merges_equal_the_paper(name, preset, dev, test, merges):
    dataset = table.find(name)
    entry = dataset.entry
    values = entry.prep | entry.presets.get(preset or entry.preset, {})
    members = [
        re.findall(r"newstest\d+|(?:dev|tst)\d+", " ".join(src.member for src, _ in chosen.parts))
        for chosen in dataset.choose(values.get("dev", ""))[1:]
    ]
    assert members == [dev.split(), test.split()]
    assert merges in (None, values.get("merges"))


def prep_settings(name, preset=None, *assignments):
    """Return the resolved settings of `nmtkit prep NAME`."""
    return Request(PrepOptions(dataset=name, preset=preset, assignments=[*assignments])).settings


def test_data_sets_value_for_a_preset_overrides_the_preset_and_set_option_overrides_both():
    assert prep_settings("iwslt14-esen").merges == 34000  # its preset dc-iwslt: 32000
    assert prep_settings("iwslt14-esen", "tiny").merges == 1000
    assert prep_settings("iwslt14-esen", None, "prep.merges=5").merges == 5
    assert prep_settings("wmt14-ende", "pr-base").dev == "newstest2012+2013"
    assert prep_settings("wmt14-ende").dev == ""
    sets = "prep.dev=newstest2013", "prep.test=newstest2014,newstest2017"
    chosen = prep_settings("wmt14-ende", "pr-base", *sets)
    assert chosen.test == ["newstest2014", "newstest2017"]
    german = prep_settings("iwslt14-deen")
    assert german.lowercase and german.max_ratio == 1.5


@pytest.mark.parametrize("preset", ["pr-base", "pr-big"])
def test_pr_presets_process_french_as_german(preset):
    german, french = (
        prep_settings(f"wmt14-en{lang}", preset).model_dump() for lang in ("de", "fr")
    )
    assert french == german | {"dev": ""}  # English-French has no other dev set
    assert (french["truecase"], french["aggressive_hyphens"]) == ("none", True)


def test_needed_files_are_those_of_the_direction_and_of_the_chosen_sets():
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
def test_unknown_set_is_refused_with_the_nearest_name(dev, test, hint):
    error = refused(ConfigError, "has no set", table.find("wmt14-ende").choose, dev, test)
    assert hint in error.hint
    assert error.where == ("prep.dev" if dev else "prep.test")


def test_unknown_data_set_is_refused_with_the_nearest_name():
    error = refused(ConfigError, None, table.find, "mutli30k-ende")
    assert "multi30k-ende" in error.hint
    assert "nmtkit datasets" in error.hint
    far = refused(ConfigError, None, table.find, "mine")  # no name is near, so none is listed
    assert "--train SRC TGT" in far.hint and "wmt14" not in far.hint


M = ("datasets", "multi30k")
T = (*M, "sets", "train")
VAL = ("sources", "multi30k", "files", "val.fr.gz")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((*M, "licens"), "x", "unknown setting 'multi30k.licens'"),
        ((*T, "fles"), ["x"], "unknown setting"),
        ((*T, "format"), "tmx", "bad value"),
        (
            (*T, "files"),
            ["multi30k/trian.{lang}.gz"],
            "needs 'multi30k/trian.en.gz', which no source",
        ),
        ((*T, "files"), {"en": ["multi30k/train.en.gz"]}, "don't match"),
        ((*T, "boundaries"), ["multi30k/train.en.gz"] * 2, "don't match"),
        ((*T, "rows"), "1:2", "don't match"),
        ((*M, "sets", "val"), {"rows": "every 23rd"}, "bad value .*first:last"),
        ((*M, "dev"), "dev", "has no set 'dev'"),
        ((*M, "test"), ["val", "tset"], "has no set 'tset'"),
        ((*M, "sets", "train"), None, "has no set 'train'"),
        ((*M, "presets"), {"base": {"mergs": 3}}, "unknown setting 'multi30k.presets.mergs'"),
        (VAL, None, r"val\.fr\.gz"),
        ((*VAL, "checksum"), "d79cfa99", "checksum"),
        ((*VAL, "checksum"), "sha256:xyz", "checksum"),
        ((*VAL, "checksum"), "crc:00", "checksum"),
        ((*VAL, "size"), 0, "size"),
        (("sources", "multi30k", "mirror"), "x", "unknown setting"),
    ],
)
def test_wrong_table_is_refused(values, path, value, message):
    """A value of None removes the key."""
    wrong = with_change(values, path, ... if value is None else value)
    refused(ConfigError, message, table.expand, wrong)


def test_addresses_of_the_source_come_before_the_archive_that_holds_the_file():
    urls = PUBLISHED["wit3/2014-01/texts/de/en/de-en.tgz"].urls
    hosts = [address.partition("//")[2].partition("/")[0] for address in urls[:2]]
    assert hosts == ["wit3.fbk.eu", "dl.fbaipublicfiles.com"]
    assert urls[2:] == ["wit3-releases/2014-01.tgz::2014-01/texts/de/en/de-en.tgz"]


# the list


def listed():
    """Return the rows of `nmtkit datasets --json` by name."""
    return {row["name"]: row for row in json.loads(json.dumps(published.describe()))}


def test_description_has_pairs_size_sets_and_addresses(tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path))
    rows = listed()
    facts = {
        "multi30k-ende": {
            "pairs": 29000,
            "size": "1.3 MB",
            "bytes": sum(file.size for file in table.find("multi30k-ende").needed().values()),
            "verified": True,
            "kind": "corpus",
            "sets": ["train", "dev", "test_2016_flickr", "test_2017_flickr"],
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


def test_description_marks_data_sets_whose_files_are_all_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path))
    assert not listed()["multi30k-ende"]["cached"]
    (tmp_path / "multi30k").mkdir()
    for name, resource in table.find("multi30k-ende").needed().items():
        with open(tmp_path / name, "wb") as stream:
            stream.truncate(resource.size)
    rows = listed()
    assert rows["multi30k-ende"]["cached"] and rows["multi30k-deen"]["cached"]
    assert not rows["multi30k-enfr"]["cached"]


def test_printed_list_fits_80_columns_with_citation_and_licence_of_every_data_set():
    printed = CliRunner().invoke(app, ["datasets"]).stdout
    assert max(map(len, printed.split("\n"))) < 80
    text = " ".join(printed.split())
    for name, row in listed().items():
        (line,) = [line for line in printed.split("\n") if line.split(" ")[0] == name]
        assert f"[{line.split()[-1]}] {row['citation']} Licence: {row['licence']}" in text
    for line in ("iwslt14-esen +~183,000 ", "iwslt14-deen +167,522 "):
        assert re.search(f"^{line}", printed, re.M)
    help_text = CliRunner().invoke(app, ["datasets", "--help"]).stdout
    assert "nmtkit datasets --fetch senteval" in help_text


# evaluation sets and fetching


@pytest.fixture
def lingeval(tmp_path, monkeypatch, values):
    """Register a small lingeval97 without an address; return its file in a folder of the user."""
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "lingeval97.json"
    path.write_text("[]")
    source = values["sources"]["lingeval97"]
    source["bases"], source["files"]["lingeval97.json"]["checksum"] = [], checksum(path, "git")
    known = table.expand(values)
    monkeypatch.setattr(table, "registered", lambda: known)
    return path


def test_fetched_evaluation_set_stays_in_the_cache(lingeval, tmp_path):
    with pytest.raises(EnvironmentProblem, match="cannot download lingeval97"):
        published.evaluation_set("lingeval97")
    folder = published.fetch("lingeval97", lingeval.parent)[0].parent
    assert folder == tmp_path / "cache" / "lingeval97"
    assert [path.name for path in folder.iterdir()] == ["lingeval97.json"]
    lingeval.unlink()
    assert published.evaluation_set("lingeval97") == folder
    assert published.fetch("lingeval97") == [folder / "lingeval97.json"]
    assert listed()["lingeval97"]["cached"]


def test_evaluation_set_that_the_user_compressed_is_cached_uncompressed(lingeval):
    (lingeval.parent / "lingeval97.json.xz").write_bytes(lzma.compress(lingeval.read_bytes()))
    lingeval.unlink()
    folder = published.fetch("lingeval97", lingeval.parent)[0].parent
    assert (folder / "lingeval97.json").read_text() == "[]"


def test_prep_refuses_an_evaluation_set_and_fetch_refuses_the_demo_corpus(tmp_path):
    run_dir = tmp_path / "run"
    error = refused(ConfigError, "is an evaluation set", stage.prep, "senteval", run_dir=run_dir)
    assert "nmtkit datasets --fetch senteval" in error.hint
    refused(ConfigError, "nothing to fetch", published.fetch, "demo")


def test_fetch_of_an_unknown_name_does_not_mention_prep():
    error = refused(ConfigError, "unknown data set 'senteva'", published.fetch, "senteva")
    assert error.where == "nmtkit datasets --fetch"
    assert error.hint == "did you mean 'senteval'? (nmtkit datasets lists them)"


def test_fetch_of_a_corpus_returns_the_users_files_and_leaves_the_cache_empty(
    shared, tmp_path, monkeypatch
):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path))
    raw = shared / "data" / "multi30k" / "raw"
    for folder in (raw, raw.parent):
        paths = published.fetch("multi30k-fren", folder)
        assert paths[2:4] == [raw / "val.fr.gz", raw / "val.en.gz"]
    assert list(tmp_path.iterdir()) == []
    refused(DataError, "no such folder", published.fetch, "multi30k-fren", tmp_path / "nowhere")
