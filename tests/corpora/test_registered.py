"""Every registered data set, prepared whole by the command, from archives that look like the
published ones.
"""

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


@pytest.fixture(scope="module")
def folder(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lookalikes")
    lookalikes.build(folder, shared / "data")
    return folder


@pytest.fixture(scope="module")
def known(folder):
    """The table with the look-alikes' own checksums where one is published, and no address."""
    values = tomllib.loads(
        resources.files("nmtkit.corpora").joinpath("datasets.toml").read_text("utf-8")
    )
    for source, entry in values["sources"].items():
        entry["bases"] = []
        for path, one in entry["files"].items():
            one["urls"] = [url for url in one.get("urls", []) if "::" in url]
            one.pop("size", None)
            if "checksum" in one:
                algorithm = one["checksum"].partition(":")[0]
                same_name = folder.rglob(path.rpartition("/")[2])
                found = next(
                    p
                    for p in same_name
                    if str(p).endswith(f"{source}/{path}")
                    or p.parent in (folder, folder / "probing")
                )
                one["checksum"] = checksum(found, algorithm)
    return table.expand(values)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def look_alikes(known, cache, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(cache))
    monkeypatch.setattr(table, "registered", lambda: known)
    return known


SMALL = "--set prep.merges=60 --set prep.vocab_threshold=0"


def nmtkit(command):
    return CliRunner().invoke(app, command.split())


def prepare(name, folder, run, more=""):
    """Prepare with few merges: the run and what is printed."""
    result = nmtkit(f"prep {name} --from-dir {folder} --run {run} --jobs 1 {SMALL} {more}")
    assert result.exit_code == 0, result.stderr
    return Run(run), result.stderr


# name: pairs of training text, lines of dev, lines of each test set, sets that have documents and
# how many
EXPECTED = {
    "multi30k": (TRAIN, HELD, {"test_2016_flickr": HELD, "test_2017_flickr": HELD}, {}),
    "wmt14-de": (TRAIN, HELD, {"newstest2014": HELD}, {"dev": 3, "newstest2014": 3}),
    "wmt14-fr": (250, 2 * HELD, {"newstest2014": HELD}, {"dev": 6, "newstest2014": 3}),
    "wmt17-de": (200, 2 * HELD, {"newstest2017": HELD}, {"dev": 6, "newstest2017": 3}),
    "iwslt14-de": (TRAIN + 6 - 6, 6, {"test": 5 * HELD}, {"train": 3, "test": 15}),
    "iwslt14-es": (TRAIN, 4 * HELD, {"tst2014": HELD}, {"train": 3, "dev": 12, "tst2014": 3}),
    "iwslt14-ro": (TRAIN, 4 * HELD, {"tst2014": HELD}, {"train": 3, "dev": 12, "tst2014": 3}),
    "iwslt15-vi": (TRAIN, HELD, {"tst2013": HELD}, {"train": 3, "dev": 3, "tst2013": 3}),
    "iwslt15-fr": (
        TRAIN,
        HELD,
        {"tst2014+2015": 2 * HELD},
        {"train": 3, "dev": 3, "tst2014+2015": 6},
    ),
    "iwslt15-zh": (
        TRAIN,
        HELD,
        {f"tst{y}": HELD for y in range(2010, 2014)},
        {"train": 3, "dev": 3} | {f"tst{y}": 3 for y in range(2010, 2014)},
    ),
    "ted-zh": (TRAIN, HELD, {"tst2010-2013": 4 * HELD}, {"train": 3, "dev": 3, "tst2010-2013": 12}),
    "ted-es": (TRAIN, HELD, {"tst2010-2012": 3 * HELD}, {"train": 3, "dev": 3, "tst2010-2012": 9}),
    "newscommentary-es": (
        TRAIN,
        HELD,
        {"newstest2009-2013": 5 * HELD},
        {"dev": 3, "newstest2009-2013": 15},
    ),
    "opensubtitles2018-es": (
        300,
        1000,
        {"last-1000": 1000},
        {"train": 5, "dev": 15, "last-1000": 15},
    ),
    "tvsub-zh": (240, 1086, {"test": 1154}, {"train": 4, "dev": 2, "test": 2}),
}


def family(name):
    """The section of the table: the name with English left out."""
    stem, _, pair = name.rpartition("-")
    return stem if stem == "multi30k" else f"{stem}-{pair.replace('en', '', 1)}"


def text(run, name, side):
    return list(text_lines(run.prep / "text" / f"{name}.{side}"))


def test_an_archive_that_a_killed_call_unpacked_is_unpacked_again(look_alikes, folder, tmp_path):
    run, begin = tmp_path / "run", tasks.Runner.run

    def stop(runner, label, of_step):
        if of_step and of_step[0].step.startswith("merge"):
            raise KeyboardInterrupt
        return begin(runner, label, of_step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.Runner, "run", stop)
        stopped = nmtkit(f"prep ted-esen --from-dir {folder} --run {run} --jobs 1 {SMALL}")
    assert stopped.exit_code == 130, stopped.stderr
    left = run / "prep-work" / "raw" / "archive-0" / "a file"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text("of a call that was killed")
    _, printed = prepare("ted-esen", folder, run)
    assert "going on in" in printed and not (run / "prep-work").exists()


@pytest.mark.parametrize("name", CORPORA)
def test_prep_of_everything_registered(look_alikes, folder, tmp_path, name):
    run, _ = prepare(name, folder, tmp_path / "run")
    manifest, dataset = run.manifest().model_dump(), look_alikes[name]
    train, dev, tests, documents = EXPECTED[family(name)]
    assert manifest["cleaning"]["pairs_in"] == train
    assert manifest["cleaning"]["pairs_kept"] > 0.7 * train
    sizes = {"train": manifest["cleaning"]["pairs_kept"], "dev": dev} | tests
    assert {s.name: s.lines for s in run.sets()} == sizes
    facts = {"src": dataset.src, "tgt": dataset.tgt, "preset": dataset.entry.preset}
    assert facts.items() <= manifest.items()
    found = {path.stem: len(list(text_lines(path))) for path in run.prep.glob("docs/*.txt")}
    assert found == documents
    inputs = manifest["inputs"]
    assert all(inputs[one]["checksum"] and inputs[one]["size"] > 0 for one in dataset.needed())
    assert not any("prep.tmp" in one for one in inputs)
    assert not list(run.path.glob("prep.tmp-*"))
    result = nmtkit(f"prep {name} --run {run.path} {SMALL}")
    assert result.exit_code == 0 and "up to date" in result.stderr  # nothing is looked for again


def unpacked(dataset, folder, path):
    """The sets of a data set, from the archives of a folder."""
    chosen = dataset.choose()
    finder = Finder(dataset.published, folder)
    return unpack(
        dataset, chosen, {name: finder.find(name).path for name in dataset.needed(chosen)}, path
    )


@pytest.mark.parametrize(
    "name", [name for name in CORPORA if not name.rpartition("-")[2].startswith("en")]
)
def test_both_directions_are_the_same_text(look_alikes, folder, tmp_path, name):
    """Where one archive serves both, the sets of one direction are those of the other with the
    sides changed; WMT's newest have their own.
    """
    stem, _, pair = name.rpartition("-")
    other = f"{stem}-{pair[2:]}{pair[:2]}"
    sets = [unpacked(look_alikes[one], folder, tmp_path / one) for one in (name, other)]
    read = lambda paths: [line for path in paths for line in text_lines(path)]  # noqa: E731
    for ours, theirs in zip(*sets, strict=True):
        if "wmt17" in name and ours.split != "train":
            continue
        assert read(ours.src) == read(theirs.tgt)
        assert read(ours.tgt) == read(theirs.src)
        assert (ours.docs is None) == (theirs.docs is None)
        assert len(read(ours.src)) == len(read(ours.tgt)) > 0


# what a person asks for, and is told


def test_pr_s_development_set_comes_with_its_preset(look_alikes, folder, tmp_path):
    run, _ = prepare("wmt14-ende", folder, tmp_path / "pr", "--preset pr-base")
    assert {s.name: s.lines for s in run.sets()}["dev"] == 2 * HELD
    assert run.manifest().settings.dev == "newstest2012+2013"
    result = nmtkit(f"prep wmt14-ende --from-dir {folder} --run {run.path} --preset dc-wmt {SMALL}")
    assert result.exit_code == 2
    assert "prep.dev: newstest2012+2013 -> " in result.stderr
    assert "source.resources.wmt12/test.tgz: md5:" in result.stderr


def test_a_size_takes_the_first_pairs_of_the_training_text(look_alikes, folder, tmp_path):
    """Of several files; what is dropped in cleaning counts, and dev and test sets are whole."""
    name, size = "wmt14-ende", 70
    run, printed = prepare(name, folder, tmp_path / "run", f"--size {size}")
    assert f"training text: the first {size} of {TRAIN} pairs" in printed
    manifest = run.manifest().model_dump()
    whole = unpacked(look_alikes[name], folder, tmp_path / "whole")[0]
    for side, paths in (("src", whole.src), ("ref", whole.tgt)):
        lines = [line for path in paths for line in path.read_bytes().split(b"\n")[:-1]]
        digest = hashlib.sha256(b"".join(line + b"\n" for line in lines[:size])).hexdigest()
        assert manifest["inputs"][f"first/train.{side}"]["sha256"] == digest
    assert manifest["cleaning"]["pairs_in"] == size
    _, dev, tests, documents = EXPECTED[family(name)]
    assert {s.name: s.lines for s in run.sets()[1:]} == {"dev": dev} | tests
    starts = {one["name"]: one["documents"] for one in manifest["sets"][1:] if "documents" in one}
    assert starts.items() <= documents.items()


def test_own_test_sets_beside_those_of_a_data_set(
    look_alikes, folder, shared, tmp_path, monkeypatch
):
    """Real talks with the lines where they start; prep.test chooses as before."""
    talks = lookalikes.pool(shared / "data", "de")[:HELD]
    for side, lang in enumerate(("de", "en")):
        (tmp_path / f"talks.{lang}").write_bytes(lookalikes.join(pair[side] for pair in talks))
    (tmp_path / "talks.doc").write_text("0\n5\n")
    monkeypatch.chdir(tmp_path)
    own = "--test talks.en,talks.de --docs talks=talks.doc --set prep.test=newstest2017"
    run, printed = prepare("wmt14-ende", folder, tmp_path / "run", own)
    assert "though its suffix" not in printed
    sets = {one.name: one.lines for one in run.sets("test")}
    assert sets == {"newstest2017": HELD, "talks": HELD}
    assert text(run, "talks", "src") == list(text_lines(tmp_path / "talks.en"))
    assert (run.prep / "docs" / "talks.txt").read_text() == "0\n5\n"
    assert {"talks.en", "talks.doc"} <= set(run.manifest().inputs)


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's own archives."""
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def test_an_unpublished_checksum_is_said_once_and_another_copy_refused(
    look_alikes, folder, mine, tmp_path, monkeypatch
):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    message = "no checksum is published"
    _, printed = prepare("ted-esen", folder, tmp_path / "a")
    assert f"{message} for wit3/2014-01/texts/en/es/en-es.tgz" in printed
    _, printed = prepare("ted-enes", folder, tmp_path / "b")
    assert message not in printed
    lookalikes.tarball(mine / "en-es.tgz", {"en-es/train.tags.en-es.es": b"x\n"})
    result = nmtkit(f"prep ted-esen --from-dir {mine} --run {tmp_path}/c")
    assert result.exit_code == 2 and "is not the copy seen before" in result.stderr
    assert not (tmp_path / "c").exists()


def test_a_copy_that_could_not_be_read_is_not_remembered(
    look_alikes, folder, mine, tmp_path, monkeypatch
):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    lookalikes.tarball(mine / "en-es.tgz", {"es-en/train.tags.es-en.es": b"x\n"})
    result = nmtkit(f"prep ted-esen --from-dir {mine} --run {tmp_path}/a")
    assert result.exit_code == 2
    assert "en-es.tgz has no en-es/train.tags.en-es.es" in result.stderr
    assert "another release of this name" in result.stderr
    assert not (tmp_path / "a").exists()
    prepare("ted-esen", folder, tmp_path / "a")


def test_a_download_that_cannot_be_read_is_not_remembered_either(
    look_alikes, folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
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
    said = " ".join(result.stderr.split())
    assert f"delete {path}" in said and "sha256" not in said
    assert not path.with_name("en-es.tgz.sha256").exists()
    path.unlink()
    prepare("ted-esen", folder, tmp_path / "a")


def test_a_published_archive_that_is_another_one(look_alikes, mine, tmp_path):
    command = f"prep wmt14-ende --from-dir {mine} --run {tmp_path}/a"
    (mine / "training-parallel-nc-v9.tgz").write_bytes(b"x")
    result = nmtkit(command)
    name = "wmt13/training-parallel-europarl-v7.tgz"
    assert result.exit_code == 3 and f"cannot download {name}" in result.stderr
    (mine / "training-parallel-europarl-v7.tgz").write_bytes(b"x")
    result = nmtkit(command)
    assert result.exit_code == 2
    of_x = hashlib.sha256(b"x").hexdigest()
    for copy in (look_alikes["wmt14-ende"].published[name].checksum, f"sha256:{of_x}"):
        assert copy.partition(":")[2] in result.stderr
    assert not (tmp_path / "a").exists()


def test_what_a_release_lacks_is_said(look_alikes, folder, tmp_path):
    _, printed = prepare("newscommentary-esen", folder, tmp_path / "a")
    assert "does not say where the documents of its training text start" in printed


def test_three_references_are_kept_and_scored(look_alikes, folder, tmp_path):
    run, _ = prepare("tvsub-zhen", folder, tmp_path / "run")
    references = [text(run, "test", f"ref{i or ''}") for i in range(3)]
    assert len({tuple(one) for one in references}) == 3
    assert [one[2] for one in references] == ["ross, thank you.", "thanks, ross.", "thanks, ross."]
    assert next(s for s in run.sets() if s.name == "test").references == 3
    paths = [run.prep / "text" / f"test.ref{i or ''}" for i in range(3)]
    hyp = tmp_path / "hyp.en"
    hyp.write_text("".join(line + "\n" for line in references[2]), "utf-8")
    for count in (1, 3):
        options = " ".join(f"--ref {path}" for path in paths[:count])
        result = nmtkit(f"score --hyp {hyp} {options} --lang en")
        assert result.exit_code == 0, result.stderr
        assert f"nrefs:{count}" in result.stdout
        assert (" 100.00 [" in result.stdout) == (count == 3)


def test_from_the_network_out_of_a_whole_release(known, folder, tmp_path, monkeypatch):
    """The archive of a pair has gone from its address; the release of its year, elsewhere, holds
    it.
    """
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "cache"))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        found = {
            name: one.model_copy(update={"urls": [f"{address}gone/{name}", *one.urls]})
            for name, one in known["ted-zhen"].published.items()
        }
        release = "wit3-releases/2015-01.tgz"
        elsewhere = {"urls": [f"{address}2015-01.tgz"]}
        found[release] = found[release].model_copy(update=elsewhere)
        dataset = dataclasses.replace(known["ted-zhen"], published=found)
        monkeypatch.setattr(table, "registered", lambda: {"ted-zhen": dataset})
        result = nmtkit(f"prep ted-zhen --run {tmp_path}/run --jobs 1 --set prep.merges=60")
        server.shutdown()
    assert result.exit_code == 0, result.stderr
    assert "404" in result.stderr and "taking 2015-01/texts/zh/en/zh-en.tgz out of" in result.stderr
    cache = tmp_path / "cache"
    kept = {path.relative_to(cache).as_posix() for path in cache.rglob("*.tgz*")}
    names = {release, "wit3/2015-01/texts/zh/en/zh-en.tgz"}
    assert kept == names | {f"{name}.sha256" for name in names}


def test_fetch_by_the_command(look_alikes, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path))
    result = nmtkit(f"datasets --fetch senteval --fetch lingeval97 --from-dir {folder}")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.split()) == 11
    assert published.evaluation_set("senteval") == tmp_path / "senteval"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lingeval97", "senteval"]
    cached = {row["name"]: row["cached"] for row in json.loads(nmtkit("datasets --json").stdout)}
    assert cached["senteval"] and cached["lingeval97"] and not cached["ted-zhen"]
    listed = nmtkit("datasets").stdout
    assert all(name in listed for name in look_alikes)
    for options in (f"--from-dir {folder}", "--fetch senteval --json", "--fetch wmt14-ende2"):
        assert nmtkit(f"datasets {options}").exit_code == 2
    assert nmtkit("prep senteval").exit_code == 2


def test_what_is_said_of_an_evaluation_set_that_cannot_be_had_can_be_followed(
    look_alikes, folder, tmp_path, monkeypatch
):
    """Analyses have no --from-dir: the command that has it, as it is to be typed, brings the
    file to where they find it.
    """
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path))
    error = refused(
        EnvironmentProblem, "cannot download", find_pairs, Run(tmp_path / "run"), "lingeval97"
    )
    command = error.hint.partition("`")[2].partition("`")[0]
    assert command == "nmtkit datasets --fetch lingeval97 --from-dir DIR"
    result = nmtkit(command.removeprefix("nmtkit ").replace("DIR", str(folder)))
    assert result.exit_code == 0, result.stderr
    path = tmp_path / "lingeval97" / "lingeval97.json"
    assert find_pairs(Run(tmp_path / "run"), "lingeval97") == str(path)
    result = nmtkit(f"prep wmt14-ende --run {tmp_path}/run")
    assert result.exit_code == 3 and "and pass --from-dir DIR" in result.stderr
