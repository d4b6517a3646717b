"""Prepare every registered data set from look-alikes of the published archives."""

import dataclasses
import functools
import hashlib
import http.server
import json
import threading
import tomllib
from importlib import resources

import pytest
from typer.testing import CliRunner

from nmtkit.analyze.agreement import find_pairs
from nmtkit.cli import app
from nmtkit.corpora import fetch, published, table
from nmtkit.corpora.fetch import Finder, checksum
from nmtkit.corpora.table import Resource
from nmtkit.corpora.unpack import unpack
from nmtkit.errors import EnvironmentProblem
from nmtkit.files import text_lines
from nmtkit.prep import tasks
from nmtkit.run import Run
from tests.corpora import lookalikes
from tests.corpora.lookalikes import HELD, TRAIN
from tests.refused import refused

CORPORA = [name for name, one in table.registered().items() if one.entry.sets]


def family(name):
    """Return the section of the table: the name without English."""
    stem, _, pair = name.rpartition("-")
    return stem if stem == "multi30k" else f"{stem}-{pair.replace('en', '', 1)}"


ONE_DIRECTION = [*{family(name): name for name in CORPORA}.values()]
"""One direction of each section; test_both_directions_have_the_same_text compares the other."""


@pytest.fixture(scope="module")
def folder(shared, tmp_path_factory):
    """The folder of the look-alikes."""
    folder = tmp_path_factory.mktemp("lookalikes")
    lookalikes.build(folder, shared / "data")
    return folder


@pytest.fixture(scope="module")
def known(folder):
    """The registered data sets with the look-alikes' checksums and without addresses."""
    toml = resources.files("nmtkit.corpora").joinpath("datasets.toml").read_text("utf-8")
    values = tomllib.loads(toml)
    for source, entry in values["sources"].items():
        entry["bases"] = []
        for path, resource in entry["files"].items():
            resource["urls"] = [url for url in resource.get("urls", []) if "::" in url]
            resource.pop("size", None)
            if "checksum" in resource:
                algorithm = resource["checksum"].partition(":")[0]
                copy = lookalikes.find(folder, f"{source}/{path}")
                resource["checksum"] = checksum(copy, algorithm)
    return table.expand(values)


@pytest.fixture
def look_alikes(known, tmp_path, monkeypatch):
    """Register the look-alikes, with an empty cache."""
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(table, "registered", lambda: known)
    return known


SMALL = "--set prep.merges=60 --set prep.vocab_threshold=0"


def nmtkit(command):
    return CliRunner().invoke(app, command.split())


def prepare(name, folder, run, more=""):
    """Prepare with few merges; return the run and what is printed on stderr."""
    result = nmtkit(f"prep {name} --from-dir {folder} --run {run} --jobs 1 {SMALL} {more}")
    assert result.exit_code == 0, result.stderr
    return Run(run), result.stderr


def lines_of(run):
    """Return the number of lines of each set but the training text."""
    return {text_set.name: text_set.lines for text_set in run.sets() if text_set.name != "train"}


TALKS = {"train": 3, "dev": 3}
CHINESE_TALKS = [f"tst{year}" for year in range(2010, 2014)]
EXPECTED = {
    "multi30k": (TRAIN, HELD, {"test_2016_flickr": HELD, "test_2017_flickr": HELD}, {}),
    "wmt14-de": (TRAIN, HELD, {"newstest2014": HELD}, {"dev": 3, "newstest2014": 3}),
    "wmt14-fr": (250, 2 * HELD, {"newstest2014": HELD}, {"dev": 6, "newstest2014": 3}),
    "wmt17-de": (200, 2 * HELD, {"newstest2017": HELD}, {"dev": 6, "newstest2017": 3}),
    "iwslt14-de": (TRAIN, 6, {"test": 5 * HELD}, {"train": 3, "test": 15}),
    "iwslt14-es": (TRAIN, 4 * HELD, {"tst2014": HELD}, {"train": 3, "dev": 12, "tst2014": 3}),
    "iwslt14-ro": (TRAIN, 4 * HELD, {"tst2014": HELD}, {"train": 3, "dev": 12, "tst2014": 3}),
    "iwslt15-vi": (TRAIN, HELD, {"tst2013": HELD}, TALKS | {"tst2013": 3}),
    "iwslt15-fr": (TRAIN, HELD, {"tst2014+2015": 2 * HELD}, TALKS | {"tst2014+2015": 6}),
    "iwslt15-zh": (
        *(TRAIN, HELD, dict.fromkeys(CHINESE_TALKS, HELD)),
        TALKS | dict.fromkeys(CHINESE_TALKS, 3),
    ),
    "ted-zh": (TRAIN, HELD, {"tst2010-2013": 4 * HELD}, TALKS | {"tst2010-2013": 12}),
    "ted-es": (TRAIN, HELD, {"tst2010-2012": 3 * HELD}, TALKS | {"tst2010-2012": 9}),
    "newscommentary-es": (
        *(TRAIN, HELD, {"newstest2009-2013": 5 * HELD}),
        {"dev": 3, "newstest2009-2013": 15},
    ),
    "opensubtitles2018-es": (
        *(300, 1000, {"last-1000": 1000}),
        {"train": 5, "dev": 15, "last-1000": 15},
    ),
    "tvsub-zh": (240, 1086, {"test": 1154}, {"train": 4, "dev": 2, "test": 2}),
}
"""Family -> training pairs, lines of dev, lines of each test set, documents of each set."""


def text(run, name, side):
    return list(text_lines(run.prep / "text" / f"{name}.{side}"))


@pytest.mark.parametrize("name", [*ONE_DIRECTION, "wmt17-ende", "multi30k-ende"])
def test_prepared_data_set_has_the_expected_lines_and_documents(
    look_alikes, folder, tmp_path, name
):
    run, _ = prepare(name, folder, tmp_path / "run")
    manifest, dataset = run.manifest(), look_alikes[name]
    train, dev, tests, documents = EXPECTED[family(name)]
    assert manifest.cleaning.pairs_in == train
    assert manifest.cleaning.pairs_kept > 0.7 * train
    assert lines_of(run) == {"dev": dev} | tests
    facts = manifest.src, manifest.tgt, manifest.preset
    assert facts == (dataset.src, dataset.tgt, dataset.entry.preset)
    docs = {path.stem: len(list(text_lines(path))) for path in run.prep.glob("docs/*.txt")}
    assert docs == documents
    inputs = manifest.model_dump()["inputs"]
    assert all(inputs[name]["checksum"] and inputs[name]["size"] > 0 for name in dataset.needed())
    assert not any("prep.tmp" in name for name in inputs)
    assert not list(run.path.glob("prep.tmp-*"))
    result = nmtkit(f"prep {name} --run {run.path} {SMALL}")  # needs no files
    assert result.exit_code == 0 and "up to date" in result.stderr


def test_interrupted_prep_unpacks_its_archives_again(look_alikes, folder, tmp_path):
    run, begin = tmp_path / "run", tasks.Runner.run

    def interrupt(runner, label, of_step):
        if of_step and of_step[0].step.startswith("merge"):
            raise KeyboardInterrupt
        return begin(runner, label, of_step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.Runner, "run", interrupt)
        stopped = nmtkit(f"prep ted-esen --from-dir {folder} --run {run} --jobs 1 {SMALL}")
    assert stopped.exit_code == 130, stopped.stderr
    leftover = run / "prep-work" / "raw" / "archive-0" / "a file"
    leftover.parent.mkdir(parents=True, exist_ok=True)
    leftover.touch()
    _, printed = prepare("ted-esen", folder, run)
    assert "going on in" in printed and not (run / "prep-work").exists()


def unpacked(dataset, folder, path):
    """Unpack the default sets of a data set into a folder."""
    chosen = dataset.choose()
    finder = Finder(dataset.published, folder)
    paths = {name: finder.find(name).path for name in dataset.needed(chosen)}
    return unpack(dataset, chosen, paths, path)


def read(paths):
    return [line for path in paths for line in text_lines(path)]


@pytest.mark.parametrize(
    "name", [name for name in CORPORA if not name.rpartition("-")[2].startswith("en")]
)
def test_both_directions_have_the_same_text(look_alikes, folder, tmp_path, name):
    """Only WMT17 has test sets of each direction."""
    stem, _, pair = name.rpartition("-")
    names = name, f"{stem}-{pair[2:]}{pair[:2]}"
    directions = [unpacked(look_alikes[each], folder, tmp_path / each) for each in names]
    for ours, theirs in zip(*directions, strict=True):
        if "wmt17" in name and ours.split != "train":
            continue
        assert read(ours.src) == read(theirs.tgt)
        assert read(ours.tgt) == read(theirs.src)
        assert [ours.name, ours.split] == [theirs.name, theirs.split]
        assert (ours.docs is None) == (theirs.docs is None)
        assert ours.docs is None or read([ours.docs]) == read([theirs.docs])
        assert len(read(ours.src)) == len(read(ours.tgt)) > 0


# options and messages


def test_preset_pr_changes_the_development_set_and_another_preset_then_needs_another_run(
    look_alikes, folder, tmp_path
):
    run, _ = prepare("wmt14-ende", folder, tmp_path / "pr", "--preset pr-base")
    assert lines_of(run)["dev"] == 2 * HELD
    assert run.manifest().settings.dev == "newstest2012+2013"
    result = nmtkit(f"prep wmt14-ende --from-dir {folder} --run {run.path} --preset dc-wmt {SMALL}")
    assert result.exit_code == 2
    assert "prep.dev: newstest2012+2013 -> " in result.stderr
    assert "source.resources.wmt12/test.tgz: md5:" in result.stderr


def test_size_takes_the_first_training_pairs_over_several_files(look_alikes, folder, tmp_path):
    name, size = "wmt14-ende", 70
    run, printed = prepare(name, folder, tmp_path / "run", f"--size {size}")
    assert f"training text: the first {size} of {TRAIN} pairs" in printed
    manifest = run.manifest().model_dump()
    whole = unpacked(look_alikes[name], folder, tmp_path / "whole")[0]
    assert len(whole.src) > 1
    for side, paths in (("src", whole.src), ("ref", whole.tgt)):
        lines = [line for path in paths for line in path.read_bytes().split(b"\n")[:-1]]
        digest = hashlib.sha256(b"".join(line + b"\n" for line in lines[:size])).hexdigest()
        assert manifest["inputs"][f"first/train.{side}"]["sha256"] == digest
    assert manifest["cleaning"]["pairs_in"] == size  # before cleaning
    _, dev, tests, documents = EXPECTED[family(name)]
    assert lines_of(run) == {"dev": dev} | tests
    starts = {name: documents[name] for name in ("dev", "newstest2014")}
    sets = {text_set["name"]: text_set.get("documents") for text_set in manifest["sets"][1:]}
    assert sets == starts


def test_users_test_set_joins_the_test_sets_of_a_data_set(
    look_alikes, folder, shared, tmp_path, monkeypatch
):
    talks = lookalikes.pool(shared / "data", "de")[:HELD]
    for side, lang in enumerate(("de", "en")):
        (tmp_path / f"talks.{lang}").write_bytes(lookalikes.join(pair[side] for pair in talks))
    (tmp_path / "talks.doc").write_text("0\n5\n")
    monkeypatch.chdir(tmp_path)
    own = "--test talks.en,talks.de --docs talks=talks.doc --set prep.test=newstest2017"
    run, printed = prepare("wmt14-ende", folder, tmp_path / "run", own)
    assert "though its suffix" not in printed
    sets = {text_set.name: text_set.lines for text_set in run.sets("test")}
    assert sets == {"newstest2017": HELD, "talks": HELD}
    assert text(run, "talks", "src") == list(text_lines(tmp_path / "talks.en"))
    assert (run.prep / "docs" / "talks.txt").read_text() == "0\n5\n"
    assert {"talks.en", "talks.doc"} <= set(run.manifest().inputs)


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's own archives."""
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def test_first_copy_without_a_published_checksum_is_reported_once_and_another_copy_refused(
    look_alikes, folder, mine, tmp_path
):
    message = "no checksum is published"
    _, printed = prepare("ted-esen", folder, tmp_path / "a")
    assert f"{message} for wit3/2014-01/texts/en/es/en-es.tgz" in printed
    _, printed = prepare("ted-enes", folder, tmp_path / "b")
    assert message not in printed
    lookalikes.tarball(mine / "en-es.tgz", {"en-es/train.tags.en-es.es": b"x\n"})
    result = nmtkit(f"prep ted-esen --from-dir {mine} --run {tmp_path}/c")
    assert result.exit_code == 2 and "is not the copy seen before" in result.stderr
    assert not (tmp_path / "c").exists()


def test_checksum_of_a_users_copy_that_cannot_be_read_is_not_recorded(
    look_alikes, folder, mine, tmp_path
):
    lookalikes.tarball(mine / "en-es.tgz", {"es-en/train.tags.es-en.es": b"x\n"})
    result = nmtkit(f"prep ted-esen --from-dir {mine} --run {tmp_path}/a")
    assert result.exit_code == 2
    assert "en-es.tgz has no en-es/train.tags.en-es.es" in result.stderr
    assert "another release of this name" in result.stderr
    assert not (tmp_path / "a").exists()
    prepare("ted-esen", folder, tmp_path / "a")


def test_checksum_of_a_truncated_download_is_not_recorded(
    look_alikes, folder, tmp_path, monkeypatch
):
    name = "wit3/2014-01/texts/en/es/en-es.tgz"
    whole = next(folder.rglob("en-es.tgz")).read_bytes()

    def download(url, path, size, trusted):
        path.parent.mkdir(parents=True)
        path.write_bytes(whole[: len(whole) // 2])

    monkeypatch.setattr(fetch, "download", download)
    path = Finder({name: Resource(urls=["http://127.0.0.1/"])}).find(name).path
    result = nmtkit(f"prep ted-esen --run {tmp_path}/a")
    assert result.exit_code == 2 and "is damaged" in result.stderr
    assert "recorded" not in result.stderr
    message = " ".join(result.stderr.split())
    assert f"delete {path}" in message and "sha256" not in message
    assert not path.with_name("en-es.tgz.sha256").exists()
    path.unlink()
    prepare("ted-esen", folder, tmp_path / "a")


def test_missing_archive_is_an_environment_error_and_a_wrong_one_a_user_error(
    look_alikes, mine, tmp_path
):
    command = f"prep wmt14-ende --from-dir {mine} --run {tmp_path}/a"
    (mine / "training-parallel-nc-v9.tgz").write_bytes(b"x")
    result = nmtkit(command)
    name = "wmt13/training-parallel-europarl-v7.tgz"
    assert result.exit_code == 3 and f"cannot download {name}" in result.stderr
    assert f"--from-dir {mine} does not hold it" in " ".join(result.stderr.split())
    (mine / "training-parallel-europarl-v7.tgz").write_bytes(b"x")
    result = nmtkit(command)
    assert result.exit_code == 2
    expected = look_alikes["wmt14-ende"].published[name].checksum.partition(":")[2]
    assert expected in result.stderr and hashlib.sha256(b"x").hexdigest() in result.stderr
    assert not (tmp_path / "a").exists()


def test_prep_prints_the_note_of_the_data_set(look_alikes, folder, tmp_path):
    _, printed = prepare("newscommentary-esen", folder, tmp_path / "a")
    assert "does not say where the documents of its training text start" in printed


def test_three_references_are_prepared_and_scored(look_alikes, folder, tmp_path):
    run, _ = prepare("tvsub-zhen", folder, tmp_path / "run")
    sides = ["ref", "ref1", "ref2"]
    references = [text(run, "test", side) for side in sides]
    assert len(set(map(tuple, references))) == 3
    assert [lines[2] for lines in references] == [
        *("ross, thank you.", "thanks, ross.", "thanks, ross.")
    ]
    assert next(s for s in run.sets() if s.name == "test").references == 3
    paths = [run.prep / "text" / f"test.{side}" for side in sides]
    for count in (1, 3):
        options = " ".join(f"--ref {path}" for path in paths[:count])
        result = nmtkit(f"score --hyp {paths[2]} {options} --lang en --resamples 10")
        assert result.exit_code == 0, result.stderr
        assert f"nrefs:{count}" in result.stdout
        assert (" 100.00 [" in result.stdout) == (count == 3)


@pytest.fixture
def address(folder, monkeypatch):
    """The address of a server that has the files of the folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_archive_that_has_gone_is_taken_out_of_the_release_that_holds_it(
    known, address, tmp_path, monkeypatch
):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    published = {
        name: resource.model_copy(update={"urls": [f"{address}gone/{name}", *resource.urls]})
        for name, resource in known["ted-zhen"].published.items()
    }
    release = "wit3-releases/2015-01.tgz"
    urls = {"urls": [f"{address}2015-01.tgz"]}
    published[release] = published[release].model_copy(update=urls)
    dataset = dataclasses.replace(known["ted-zhen"], published=published)
    monkeypatch.setattr(table, "registered", lambda: {"ted-zhen": dataset})
    result = nmtkit(f"prep ted-zhen --run {tmp_path}/run --jobs 1 --set prep.merges=60")
    assert result.exit_code == 0, result.stderr
    assert "404" in result.stderr and "taking 2015-01/texts/zh/en/zh-en.tgz out of" in result.stderr
    cache = tmp_path / "cache"
    kept = {path.relative_to(cache).as_posix() for path in cache.rglob("*.tgz*")}
    names = {release, "wit3/2015-01/texts/zh/en/zh-en.tgz"}
    assert kept == names | {f"{name}.sha256" for name in names}


def test_fetch_option_puts_evaluation_sets_into_the_cache(look_alikes, folder, tmp_path):
    result = nmtkit(f"datasets --fetch senteval --fetch lingeval97 --from-dir {folder}")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.split()) == 11
    cache = tmp_path / "cache"
    assert published.evaluation_set("senteval") == cache / "senteval"
    assert sorted(path.name for path in cache.iterdir()) == ["lingeval97", "senteval"]
    rows = json.loads(nmtkit("datasets --json").stdout)
    cached = {row["name"]: row["cached"] for row in rows}
    assert cached["senteval"] and cached["lingeval97"] and not cached["ted-zhen"]


@pytest.mark.parametrize(
    "options", ["--from-dir .", "--fetch senteval --json", "--fetch wmt14-ende2"]
)
def test_datasets_refuses_wrong_options(look_alikes, options):
    assert nmtkit(f"datasets {options}").exit_code == 2


def test_command_in_the_hint_of_a_missing_evaluation_set_brings_it(look_alikes, folder, tmp_path):
    """Analyses have no --from-dir, so the hint names a command that has it."""
    run = Run(tmp_path / "run")
    error = refused(EnvironmentProblem, "cannot download", find_pairs, run, "lingeval97")
    command = error.hint.partition("`")[2].partition("`")[0]
    assert command == "nmtkit datasets --fetch lingeval97 --from-dir DIR"
    result = nmtkit(command.removeprefix("nmtkit ").replace("DIR", str(folder)))
    assert result.exit_code == 0, result.stderr
    path = tmp_path / "cache" / "lingeval97" / "lingeval97.json"
    assert find_pairs(run, "lingeval97") == str(path)


def test_hint_of_a_missing_corpus_names_from_dir(look_alikes, tmp_path):
    result = nmtkit(f"prep wmt14-ende --run {tmp_path}/run")
    assert result.exit_code == 3 and "and pass --from-dir DIR" in result.stderr
