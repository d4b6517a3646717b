"""The prep stage: bad input is refused before anything is written, a prepared corpus appears whole
or not at all, and a run is not prepared twice by accident.
"""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from nmtkit import demo
from nmtkit.cli import app
from nmtkit.corpora import parallel_text, table
from nmtkit.corpora.corpus import guess_language, own_files
from nmtkit.demo import generate
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.files import sha256
from nmtkit.locks import locked
from nmtkit.prep import request, steps
from nmtkit.prep.fingerprint import fingerprint
from nmtkit.prep.options import PrepOptions, file_list
from nmtkit.prep.shards import Shard
from nmtkit.prep.stage import prep
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide
from nmtkit.text.tokenizer import SIDES
from nmtkit.train.options import TrainOptions
from nmtkit.train.plan import make_plan
from tests.manifests import read_json
from tests.prep import corpora
from tests.prep.corpora import pairs, prepare, write
from tests.prep.real import lines
from tests.refused import refused

LEFT = [".lock", "history.jsonl", "prep", "run.toml"]
"""Names in a run folder after prep."""


@pytest.fixture
def files(tmp_path):
    """Own files: 60 training pairs, 20 dev pairs."""
    return corpora.own_files(tmp_path, pairs(60))


@pytest.fixture
def run(run_prep):
    return run_prep()


@pytest.fixture
def news_files(tmp_path):
    return write(tmp_path / "in", "test", pairs(10, 3))


@pytest.fixture
def run_prep(tmp_path, files):
    """Return a function that prepares `files` with a few merges; it returns the run."""

    def call(name="run", settings=(), **options):
        return prepare(tmp_path, files, name, ["merges=20", *settings], **options)

    return call


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def snapshot(folder):
    return {
        p.relative_to(folder).as_posix(): (sha256(p), p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file()
    }


def joined(*paths):
    """Return the value of `test` for one test set."""
    return [",".join(map(str, paths))]


def read_toml(run):
    return tomllib.loads((run.path / "run.toml").read_text("utf-8"))


# bad input


def spoil(path, how):
    if how == "latin-1":
        path.write_bytes("Der Hund.\nDie Bäume sind groß.\n".encode("latin-1") * 30)
    elif how == "CR":
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if how == "directory":
            path.mkdir()
        if how == "device":
            path.symlink_to("/dev/null")


@pytest.mark.parametrize("which", ["train", "dev", "test"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "no such file"),
        ("directory", "is a directory"),
        ("device", "is a device, not a file"),
        ("empty", "is empty"),
        ("latin-1", "not UTF-8: byte 0xe4"),
        ("CR", "end in CR"),
    ],
)
def test_bad_file_is_refused_by_name(run_prep, tmp_path, files, which, how, message, news_files):
    spoil({**files, "test": news_files}[which][1], how)
    caught = refused(DataError, message, run_prep, test=joined(*news_files))
    assert f"{which}.de" in str(caught)
    assert caught.hint
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize(("which", "side"), [("dev", 0), ("dev", 1), ("test", 1), ("test", 2)])
def test_set_with_a_blank_side_is_refused(run_prep, tmp_path, files, which, side, news_files):
    second = tmp_path / "in" / "test.de1"
    second.write_bytes(news_files[1].read_bytes())
    sides = {"dev": files["dev"], "test": (*news_files, second)}
    blanks = ["", " ", "\r", "\ufeff", "\u2028\x85", "\x00\t"] * 4
    text = "".join(f"{blank}\n" for blank in blanks[: 20 if which == "dev" else 10])
    sides[which][side].write_text(text, "utf-8", newline="\n")
    name = "target" if side else "source"
    message = f"^{which} has no line with text: all of the {name} is blank"
    caught = refused(DataError, message, run_prep, test=joined(*sides["test"]))
    assert str(sides[which][side]) in caught.where and "one sentence a line" in caught.hint
    assert names(tmp_path) == ["in"]


def test_blank_lines_of_dev_and_test_sets_are_counted_with_a_warning(
    run_prep, tmp_path, files, stderr, news_files, monkeypatch
):
    monkeypatch.setattr(Shard.chunks, "__defaults__", (2, 1 << 20))
    second = tmp_path / "in" / "test.de1"
    second.write_text("Ein Hund.\n" * 9 + "\u2028\n", "utf-8")
    rows = [("", ""), ("A dog.", "\u00a0"), ("\u2028", "Ein Hund."), (b"\xef\xbb\xbf \r", "ja")]
    files["dev"] = write(tmp_path / "in", "dev", [*rows, ("yes", "ja")])
    run = run_prep(test=joined(*news_files, second))
    sets = run.manifest().model_dump()["sets"]
    assert [entry.get("blank") for entry in sets] == [None, {"src": 3, "ref": 2}, {"ref1": 1}]
    dev_warning, test_warning = (line for line in warnings_of(stderr) if "blank" in line)
    assert dev_warning.startswith("dev has blank lines (3 of .src, 2 of .ref; 5 lines each)")
    assert test_warning.startswith("test has blank lines (1 of .ref1; 10 lines each)")
    # it refuses lines that are blank on one side
    assert "--docs" not in dev_warning + test_warning


def test_bad_utf8_is_refused_with_its_line_and_byte(run_prep, files):
    text = files["train"][1].read_bytes()
    start = text.index(b"\n", 500) + 1
    files["train"][1].write_bytes(text[:start] + b"Gr\xfc\xdfe!\n" + text[start:])
    caught = refused(DataError, None, run_prep)
    assert f"line {text[:start].count(10) + 1}, byte {start + 2} " in caught.where
    assert "prep.on_bad_utf8" in caught.hint


def test_file_that_is_mostly_markup_is_refused(run_prep, tmp_path, files):
    lines = ["<tu>", '<tuv xml:lang="en"><seg>A dog.</seg></tuv>', "</tu>", "A dog."] * 5
    files["train"] = write(tmp_path / "in", "train", [(line, "Ein Hund.") for line in lines])
    message = r"15 of the first 20 lines of the source of train are markup \(<tu>\)"
    caught = refused(DataError, message, run_prep)
    assert ".sgm or .xml" in caught.hint and "TMX" in caught.hint


TALK = ["<url>http://x</url>", "<title>A title</title>", *("A dog." for _ in range(18))]


@pytest.mark.parametrize(
    ("lines", "is_warned"),
    [
        (TALK * 10, True),  # as in the training text of IWSLT
        (TALK, False),
        (["<de> A dog."] * 20, False),  # names the language of the line
    ],
    ids=["talks", "two lines", "language"],
)
def test_some_lines_of_markup_are_a_warning(run_prep, tmp_path, files, stderr, lines, is_warned):
    files["train"] = write(tmp_path / "in", "train", [(line, "Ein Hund.") for line in lines])
    run_prep()
    assert ("are markup" in stderr()) == is_warned


def test_truncated_gzip_file_is_refused(run_prep, tmp_path, files):
    path = tmp_path / "in" / "train.en.gz"
    path.write_bytes(gzip.compress(files["train"][0].read_bytes())[:-20])
    files["train"] = path, files["train"][1]
    assert "train.en.gz" in refused(DataError, None, run_prep).where
    assert names(tmp_path) == ["in"]


LENGTHS = [4 + 5 * (1 + (i * 7) % 23) for i in range(60)]


@pytest.mark.parametrize(
    ("src", "tgt", "line"),
    [
        ([*LENGTHS[:7], 80, *LENGTHS[7:]], LENGTHS, 7),
        (LENGTHS, [*LENGTHS[:41], 80, *LENGTHS[41:]], 41),
        ([1, *LENGTHS], LENGTHS, 0),
        (LENGTHS, [*LENGTHS[:59], 80, *LENGTHS[59:]], 59),
        # a file that ends too early: its first missing line
        ([13] * 9 + [14] * 41, [13] * 9 + [14] * 11, 20),
        ([7] * 20, [7] * 50, 20),
    ],
)
def test_first_odd_line_is_found_by_the_lengths_of_lines(src, tgt, line):
    assert parallel_text.first_odd_line(src, tgt) == line


@pytest.mark.parametrize(
    ("src", "tgt", "message", "where"),
    [
        (
            ["a b c"],
            ["a b c", "d e f g"],
            "en has 1 line but train.de has 2 (",
            "line 2 (no line vs 4 words)",
        ),
        (
            ["a b c", "d"],
            ["a b c"],
            "en has 2 lines but train.de has 1 (",
            "line 2 (1 word vs no line)",
        ),
        (
            ["a", *["b b b"] * 9],
            ["b b b"] * 9,
            "en has 10 lines but train.de has 9 (",
            "line 1 (1 word vs 3)",
        ),
        (
            ["a" * 3, "b" * 12, "c" * 5, "d" * 20],
            ["a" * 3, "c" * 5, "d" * 20],
            "en has 4 lines but train.de has 3 (",
            "line 2 (1 word vs 1)",
        ),
    ],
)
def test_different_line_counts_are_refused_with_the_first_odd_pair(
    tmp_path, src, tgt, message, where
):
    train = tmp_path / "train.en", tmp_path / "train.de"
    for path, side in zip(train, (src, tgt), strict=True):
        path.write_text("".join(f"{line}\n" for line in side), "utf-8")
    caught = refused(DataError, None, prepare, tmp_path, {"train": train, "dev": train})
    assert message in caught.message and caught.where == f"first odd pair: {where}"
    assert "nothing was written" in caught.hint and names(tmp_path) == ["train.de", "train.en"]


def test_no_odd_pair_is_named_in_a_file_too_long_to_compare(tmp_path, monkeypatch):
    paths = [(path,) for path in write(tmp_path, "long", [("a b c", "d e f")] * 12)]
    odd = "x y z w v u t s r q p o n\n" + paths[0][0].read_text("utf-8")
    paths[0][0].write_text(odd, "utf-8")
    assert parallel_text.first_odd_pair(*paths) == "first odd pair: line 1 (13 words vs 3)"
    for limit in (12, 10):
        monkeypatch.setattr(parallel_text, "COMPARED_LINES", limit)
        assert parallel_text.first_odd_pair(*paths[::-1]) is None
        assert parallel_text.first_odd_pair(*paths) is None


@pytest.mark.parametrize("line", [100, 500, 900])
@pytest.mark.parametrize("extra", [1, 3])
def test_first_odd_line_of_real_text_is_found_within_ten_lines(shared, line, extra):
    raw = shared / "data/multi30k/raw"
    src, tgt = (list(map(len, lines(raw / f"val.{lang}.gz"))) for lang in ("en", "de"))
    inserted = parallel_text.first_odd_line(src[:line] + [60] * extra + src[line:], tgt)
    removed = parallel_text.first_odd_line(src, tgt[:line] + tgt[line + extra :])
    assert abs(inserted - line) <= 10 and abs(removed - line) <= 10


REGISTERED = [
    ({"dataset": "mutli30k-frde"}, "unknown data set", "multi30k-frde"),
    ({"dataset": None}, "nothing to prepare", "nmtkit datasets"),
    ({"dataset": "multi30k-ende", "seed": 2}, "is not generated: --seed has no effect", "demo"),
    (
        {"dataset": "demo", "docs": ["train=x.doc"]},
        "is a registered data set: --docs has no effect",
        "own files",
    ),
    (
        {"dataset": "demo", "from_dir": Path("x")},
        "is generated: --from-dir has no effect",
        "downloaded",
    ),
    (
        {"dataset": "demo", "test": ["dev.en,dev.de"]},
        "'demo' has a set 'dev' already",
        "give dev.en and dev.de other names: a test set is called by what the names of its files",
    ),
    (
        {"dataset": "wmt14-ende", "test": ["newstest2014.en,newstest2014.de"]},
        "has a set 'newstest2014' already",
        "other names",
    ),
    (
        {"dataset": "demo", "test": ["news.en,news.de"], "docs": ["dev=blank"]},
        "'dev' is none of your test sets",
        "news",
    ),
    ({"dataset": "demo", "dev": "own"}, "is a registered data set", "--test adds"),
    ({"dataset": "multi30k-ende", "src": "de"}, "is en-de", "own files"),
    ({"dataset": "multi30k-ende", "train": "own"}, "is a registered data set", "another name"),
    ({"train": None, "dev": "own"}, "training set", "--train"),
]
"""Arguments of prep, its error and the hint; "own" is replaced by own files."""
OWN = [
    ({"dataset": "../out"}, "'../out' cannot name a corpus", "--run"),
    ({"dataset": ".hidden"}, "'.hidden' cannot name a corpus", "--run"),
    ({"dataset": ""}, "'' cannot name a corpus", "--run"),
    ({"docs": ["x.doc"]}, "'x.doc' is not SET=FILE", "--docs train=train.doc --docs dev=blank"),
    ({"docs": ["dev=blank", "dev=x.doc"]}, "'dev' is named twice", "one for each set"),
    ({"docs": ["test=blank"]}, "has no set 'test'", "dev"),
    ({"seed": 2}, "own files .* --seed has no effect", "demo"),
    ({"from_dir": Path("x")}, "own files .* --from-dir has no effect", "downloaded"),
    ({"dev": None}, "development set", "--dev"),
    ({"test": ["news.de"]}, "a source and a reference", "news.de,news.en"),
    ({"src": "de", "tgt": "de"}, "both 'de'", "--src"),
    ({"src": "../x"}, "not a language code", "two or three letters"),
    ({"preset": "tinny"}, "unknown preset", "tiny"),
    ({"assignments": ["prep.merge=3"]}, "unknown setting 'prep.merge'", "merges"),
    ({"assignments": ["prep.merges=many"]}, "bad value for 'prep.merges'", "BPE"),
    ({"assignments": ["train.max_steps=3"]}, "prep doesn't read train.max_steps", "train"),
    (
        {"assignments": ["prep.dev=x"]},
        "prep.dev and prep.test have no effect on own files",
        "--dev",
    ),
    ({"assignments": ["prep.test=x"]}, "have no effect on own files", "--test"),
    ({"parser": "stanzer"}, "unknown parser 'stanzer'", "stanza"),
]
"""The same for own files."""


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [*REGISTERED, *(({"train": "own", "dev": "own"} | row[0], *row[1:]) for row in OWN)],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    tmp_path, files, arguments, message, hint
):
    arguments = {"dataset": "mine", "preset": "tiny", "run_dir": tmp_path / "run"} | arguments
    for key in ("train", "dev"):
        if arguments.get(key) == "own":
            arguments[key] = files[key]
    assert hint in refused(ConfigError, message, prep, **arguments).hint
    assert names(tmp_path) == ["in"]


def test_missing_sentencepiece_is_named_before_anything_is_written(run_prep, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    message = "sentencepiece is not installed"
    refused(EnvironmentProblem, message, run_prep, settings=["subwords=sentencepiece"])
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("name", "language"), [("news.de", "de"), ("a.b.en.gz", "en"), ("x.zho.xz", "zho")]
)
def test_language_is_the_suffix_of_the_file(name, language):
    assert guess_language(Path(name), "--src") == language


@pytest.mark.parametrize("name", ["train.txt", "train"])
def test_file_without_a_language_suffix_is_refused(name):
    refused(ConfigError, "cannot tell the language", guess_language, Path(name), "--src")


@pytest.mark.parametrize("languages", [{}, {"src": "en", "tgt": "de"}])
def test_folder_as_a_text_file_is_refused(run_prep, tmp_path, files, languages, monkeypatch):
    monkeypatch.chdir(tmp_path / "in")
    files["train"] = Path("."), files["train"][1]
    message = r"is a directory, not a text file: \."
    refused(DataError, message, run_prep, **languages)


def test_own_test_sets_get_distinct_names_from_their_files():
    own = (Path("a.de"), Path("a.en"))
    expected = {
        "x/news.2014.de.gz,x/news.2014.en": "news.2014",
        "dev.de,dev.en": "dev-2",
        "source.txt,ref.txt,ref2.txt": "test",
        "x/dev.de,y/dev.en": "dev-3",
        "ö b.de,ö b.en": "ö_b",
        "./-set.de,./-set.en": "set",
        "x/Dev.de,x/Dev.en": "Dev-4",
    }
    paths = [file_list(value, "--test") for value in expected]
    corpus = own_files(None, own, own, paths, None, None)
    assert [text.name for text in corpus.sets] == ["train", "dev", *expected.values()]
    assert corpus.name == "de-en"
    assert corpus.sets[4].sides["ref1"] == (Path("ref2.txt"),)


def warnings_of(stderr):
    warning = "nmtkit: warning: "
    return [line.removeprefix(warning) for line in stderr().split("\n") if line.startswith(warning)]


def test_language_without_moses_rules_is_a_warning(run_prep, stderr):
    run_prep(src="xx", tgt="de")
    (warning,) = [line for line in warnings_of(stderr) if "Moses" in line]
    assert warning.startswith("Moses has no rules for 'xx': English abbreviations are taken")
    assert "--src" in warning
    run_prep(src="xx", tgt="de")  # up to date
    run_prep("plain")
    run_prep("chinese", src="eng_Latn", tgt="zh-Latn")
    run_prep("tokens", ["src_tokenizer=none"], src="xx", tgt="de")
    assert "Moses" not in stderr()


def test_preset_of_own_files_is_chosen_by_their_size(run_prep, stderr):
    run_prep()
    printed = stderr()
    assert "(preset tiny, fingerprint" in printed and "--preset" not in printed
    run = run_prep("own", preset=None)
    note = "preset small, for fewer than 500,000 training pairs; another one: --preset NAME"
    assert f"nmtkit: {note}\n" in stderr()
    assert read_toml(run)["preset"] == run.manifest().preset == "small"
    assert make_plan(run, TrainOptions()).preset == "small"
    run_prep("own", preset=None)
    assert "up to date" in stderr()
    (option,) = (o for o in get_command(app).commands["prep"].params if o.name == "preset")
    assert f"your files small below {request.MANY_PAIRS:,} training pairs, else base" in option.help


@pytest.mark.parametrize(
    ("limit", "size", "preset"),
    [
        (60, None, "base"),
        (61, None, "small"),
        (60, 60, "base"),
        (60, 59, "small"),
        (60, 99, "base"),
    ],
)
def test_preset_depends_on_the_number_of_pairs_taken(files, monkeypatch, limit, size, preset):
    monkeypatch.setattr(request, "MANY_PAIRS", limit)
    asked = request.Request(PrepOptions(dataset="mine", **files, size=size))
    assert asked.preset == preset and asked.note.startswith(f"preset {preset}, for ")
    assert asked.settings.merges == {"small": 8000, "base": 32000}[preset]


def test_reference_with_the_suffix_of_another_language_is_a_warning(run_prep, stderr, news_files):
    other = news_files[1].with_suffix(".fr.gz")
    other.write_bytes(gzip.compress(news_files[1].read_bytes()))
    run_prep(test=joined(*news_files, other))
    assert warnings_of(stderr) == [
        f"{other} is taken for 'de' (reference 2 of 'test'), though its suffix says 'fr'"
    ]


def test_files_with_swapped_languages_are_refused(run_prep, tmp_path, files, news_files):
    message = f"{files['train'][0]} is taken for 'de' (source of 'train'), but its suffix says 'en'"
    caught = refused(ConfigError, None, run_prep, src="de", tgt="en")
    assert (caught.message, caught.where) == (message, "--train")
    swapped = {"test": joined(*news_files[::-1])}
    message = r"test\.de is taken for 'en' \(source of 'test'\)"
    refused(ConfigError, message, run_prep, **swapped)
    assert names(tmp_path) == ["in"]


def test_suffixes_that_name_no_language_or_a_dialect_are_no_warning(run_prep, stderr, news_files):
    others = [news_files[0].with_name(name) for name in ("x.1", "x.ref", "x.tok", "x")]
    for path in others:
        path.write_bytes(news_files[1].read_bytes())
    run_prep(src="en-US", tgt="deu", test=joined(news_files[0], *others))
    assert warnings_of(stderr) == []


# up to date, force, other settings


def test_same_command_again_changes_nothing(run_prep, files, stderr, run):
    before = snapshot(run.prep)
    stderr()
    run_prep()
    assert "up to date" in stderr()
    os.utime(files["train"][0])  # not changed: the checksum decides
    run_prep()
    assert snapshot(run.prep) == before


def test_file_is_read_again_only_if_its_size_or_time_has_changed(tmp_path):
    path = tmp_path / "text"
    path.write_text("a\n")
    status = path.stat()
    facts = {"sha256": "known", "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    assert request._known_sha256(path, {str(path): facts}) == "known"
    changes = {"size": 1}, {"mtime_ns": 1}, {"mtime_ns": None}
    for known in (*({str(path): facts | change} for change in changes), {}):
        assert request._known_sha256(path, known) == sha256(path)


def test_force_prepares_the_same_corpus_again(run_prep, run):
    before = snapshot(run.prep)
    run_prep(force=True)
    after = snapshot(run.prep)
    assert after.keys() == before.keys()
    assert all(after[name][0] == before[name][0] for name in before if name != "manifest.json")
    assert after["train/00000.bin"][1] != before["train/00000.bin"][1]


def test_other_settings_are_refused_with_old_and_new_values(run_prep, run):
    before = snapshot(run.path)
    other = ["truecase=none", "joint_vocab=false"]
    caught = refused(ConfigError, "prepared differently", run_prep, settings=other)
    assert "prep.truecase: both -> none" in caught.where
    assert "prep.joint_vocab: True -> False" in caught.where
    assert "--force" in caught.hint and "--run" in caught.hint
    assert snapshot(run.path) == before
    run_prep(settings=other, force=True)
    assert run.manifest().settings.truecase == "none"


@pytest.mark.parametrize(
    ("is_new_test_set", "options", "valid"),
    [
        (True, {}, True),
        (True, {"settings": ["truecase=none"]}, False),
        (True, {"settings": ["drop_overlap=exact"]}, False),
        (False, {"docs": ["dev=blank"]}, False),
    ],
)
def test_only_a_new_test_set_leaves_systems_valid(
    run_prep, run, news_files, stderr, is_new_test_set, options, valid
):
    (run.path / "systems" / "mine").mkdir(parents=True)
    (run.path / "systems" / "mine" / "config.toml").write_text("")
    options = options | ({"test": joined(*news_files)} if is_new_test_set else {})
    caught = refused(ConfigError, "prepared differently", run_prep, **options)
    assert ("trained systems stay valid" in caught.hint) == valid
    fingerprint = run.manifest().fingerprint
    if "docs" not in options:
        stderr()
        run_prep(force=True, **options)
        printed = stderr()
        assert ("belong to the old one" in printed) != valid
        assert ("the systems mine" in printed and "--force" in printed) != valid
        assert (run.manifest().fingerprint == fingerprint) == valid


def test_another_preset_with_the_same_text_is_recorded(run_prep, stderr, run):
    before, manifest = snapshot(run.prep), run.manifest()
    stderr()
    run_prep(preset="base")
    assert "preset tiny -> base" in stderr()
    assert run.manifest() == manifest.model_copy(update={"preset": "base"})
    assert read_toml(run)["preset"] == "base"
    del before["manifest.json"]
    assert before.items() <= snapshot(run.prep).items()
    run_prep(preset=None)
    assert run.manifest().preset == "base" and "preset base ->" not in stderr()


@pytest.mark.parametrize(
    ("setting", "subwords", "has_effect"),
    [
        ("vocab_size", "bpe", False),
        ("vocab_size", "sentencepiece", True),
        ("vocab_threshold", "sentencepiece", False),
        ("vocab_threshold", "bpe", True),
        ("vocab_size", "none", True),
    ],
)
def test_setting_without_effect_is_a_warning(files, setting, subwords, has_effect):
    def doubts(value):
        settings = [f"prep.subwords={subwords}", f"prep.{setting}={value}"]
        return request.Request(PrepOptions.of(files | {"assignments": settings})).doubts

    warning = f"prep.{setting} has no effect with prep.subwords={subwords}"
    assert any(warning in doubt for doubt in doubts(90)) != has_effect
    assert not doubts(0)


def test_another_training_text_or_data_set_is_refused(run_prep, tmp_path):
    run_prep()
    write(tmp_path / "in", "train", pairs(61))
    assert "source.sets.train.src" in refused(ConfigError, None, run_prep).where
    caught = refused(ConfigError, None, prep, "demo", run_dir=tmp_path / "run", size=10)
    assert "source.dataset: mine -> demo" in caught.where


def test_missing_file_is_made_again_and_changed_file_is_refused(run_prep, stderr, run):
    path, content = run.prep / "train/00000.bin", (run.prep / "train/00000.bin").read_bytes()
    path.unlink()
    run_prep()
    assert path.read_bytes() == content
    assert "train/00000.bin is missing; preparing again" in stderr()
    path.write_bytes(content[:-1] + b"?")
    caught = refused(DataError, "has changed since it was prepared", run_prep)
    assert caught.where == str(path) and "--force" in caught.hint


def test_two_sets_with_the_same_files_are_a_warning(run_prep, files, stderr):
    run_prep(test=joined(*files["dev"]))
    (warning,) = (line for line in warnings_of(stderr) if "same" in line)
    assert warning == "dev and dev-2 are the same text: is one of their files the wrong one?"


def test_other_tool_versions_than_those_of_the_run_are_a_warning(run_prep, stderr, run):
    manifest = run.manifest()
    manifest.tools["sacremoses"] = "0.0"
    del manifest.tools["text rules"]  # as of an earlier version
    manifest.write(run.prep / "manifest.json")
    run_prep()
    (warning,) = (line for line in warnings_of(stderr) if "sacremoses" in line)
    assert "was prepared with other versions (" in warning
    assert "text rules - -> " in warning and "sacremoses 0.0 -> " in warning


def test_other_text_rules_are_a_warning_when_new_text_is_read(stderr, run):
    TextSide.load(run.prep, "src")
    assert "text rules" not in stderr()
    manifest = run.manifest()
    manifest.tools["text rules"] = "3"
    manifest.write(run.prep / "manifest.json")
    for side in SIDES:
        TextSide.load(run.prep, side)
    (warning,) = warnings_of(stderr)
    assert "was prepared with another version of nmtkit's rules for text" in warning


def test_fingerprint_depends_on_train_and_dev_text_and_settings(run_prep, tmp_path):
    fingerprints = [run_prep("a").manifest().fingerprint]
    assert run_prep("b").manifest().fingerprint == fingerprints[0]
    run = run_prep("c", ["max_words=249"])
    fingerprints.append(run.manifest().fingerprint)
    for seed, name in enumerate(("train", "dev"), 1):
        write(tmp_path / "in", name, pairs(60, seed))
        fingerprints.append(run_prep(name).manifest().fingerprint)
    assert len({*fingerprints}) == 4
    chosen = PrepSettings(dev="a", test=["b"])  # sets of a data set, not text
    assert fingerprint(("en", "de"), chosen, {}) == fingerprint(("en", "de"), PrepSettings(), {})


def test_run_toml_and_history_record_the_corpus_and_the_call(run):
    record = read_toml(run)
    recorded = [record[key] for key in ("dataset", "src", "tgt", "preset", "fingerprint")]
    assert recorded == ["mine", "en", "de", "tiny", run.manifest().fingerprint]
    assert record["prep"]["merges"] == 20
    call = read_json(run.path / "history.jsonl")
    assert (call["stage"], call["exit"]) == ("prep", 0)


# a corpus appears whole or not at all


def failing(error):
    def fail(*_):
        raise error

    return fail


def test_failed_prep_leaves_the_old_corpus_unchanged(run_prep, monkeypatch, run):
    before = snapshot(run.prep)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(steps.Steps, "encode", failing(full))
    refused(EnvironmentProblem, "No space left", run_prep, force=True)
    assert snapshot(run.prep) == before
    assert names(run.path) == sorted([*LEFT, "prep-work"])
    monkeypatch.undo()
    run_prep(force=True)
    assert names(run.path) == LEFT


def test_user_error_in_a_new_run_leaves_no_files(run_prep, tmp_path, monkeypatch):
    monkeypatch.setattr(steps.Steps, "encode_sets", failing(DataError("broken")))
    with pytest.raises(DataError):
        run_prep()
    assert names(tmp_path) == ["in"]


def test_folders_that_prep_did_not_make_are_kept(run_prep, run):
    for name in ("prep.old-1", "prep.old-notes", "prep.tmp-1"):
        (run.path / name).mkdir()
    shutil.copytree(run.prep, run.path / "prep.old-2")
    run_prep(force=True)
    own = ["prep.old-1", "prep.old-2", "prep.old-notes", "prep.tmp-1"]
    assert names(run.path) == sorted([*LEFT, *own])
    assert snapshot(run.path / "prep.old-2").keys() == snapshot(run.prep).keys()


def test_old_corpus_is_back_after_a_kill_between_two_renames(run_prep, monkeypatch, run):
    """Even if the next call fails."""
    before = snapshot(run.prep)
    run.prep.rename(run.path / ".nmtkit-old-prep-4999999")
    monkeypatch.setattr(steps.Steps, "encode", failing(DataError("broken")))
    refused(DataError, "broken", run_prep)
    assert snapshot(run.prep) == before
    assert names(run.path) == LEFT


def start_prep(folder, files, jobs):
    """Start a process that prepares the files in `folder`/run; return it when it has begun."""
    # a shell's background jobs are started with SIGINT ignored
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from nmtkit.cli import main; main()"
    sets = ["--train", *files["train"], "--dev", *files["dev"]]
    options = ["--run", "run", "--preset", "tiny", "--force", "--jobs", str(jobs)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "prep", "mine", *map(str, sets), *options],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list(folder.glob("run/prep-work/survey")):
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
@pytest.mark.parametrize("before", ["fresh", "prepared"])
def test_signal_stops_prep_and_keeps_finished_work(run_prep, tmp_path, files, number, jobs, before):
    kept = snapshot(run_prep().prep) if before == "prepared" else None
    write(tmp_path / "in", "train", pairs(30_000, 2))
    process = start_prep(tmp_path, files, jobs)
    process.send_signal(number)
    printed = process.communicate(timeout=60)[1]
    assert (process.returncode, printed.count("Traceback")) == (130, 0)
    run = tmp_path / "run"
    kept_in = f"the finished steps are in {Path('run') / 'prep-work'}; the same command continues"
    assert printed.rstrip("\n").split("\n")[-1] == f"nmtkit: stopped; {kept_in}"
    left = LEFT if kept else [".lock", "history.jsonl"]
    assert names(run) == sorted([*left, "prep-work"])
    if kept is not None:
        assert snapshot(run / "prep") == kept
    call = json.loads((run / "history.jsonl").read_text("utf-8").split("\n")[bool(kept)])
    assert (call["stage"], call["exit"]) == ("prep", 130)


def test_prep_of_a_run_in_use_is_refused(run_prep, run):
    with locked(run.path, "train", shared=True), pytest.raises(DataError, match="in use"):
        run_prep(force=True)


def test_folder_that_cannot_be_written_is_an_environment_error(tmp_path, files):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot write"):
        prep("mine", **files, run_dir=tmp_path / "file" / "run", preset="tiny", jobs=1)


@pytest.mark.parametrize("name", ["demo", "mine"])
def test_file_as_a_run_folder_is_refused(tmp_path, files, name):
    path = tmp_path / "file"
    path.write_text("text")
    with pytest.raises(DataError, match="file is a file, not a run folder") as caught:
        prep(name, **(files if name == "mine" else {}), run_dir=path)
    assert caught.value.where == "--run"
    assert path.read_text() == "text"


# generated corpora


def test_demo_corpus_is_the_same_for_the_same_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "generate", generate)
    runs = [
        prep("demo", size=300, seed=seed, run_dir=tmp_path / name, jobs=1)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    run = runs[0]
    files = run.manifest().files
    assert {s.name: s.lines for s in run.sets()} == {"train": 300, "dev": 500, "test": 500}
    assert runs[1].manifest().files == files
    assert runs[2].manifest().fingerprint != run.manifest().fingerprint
    assert {"eval/agreement.json", "eval/pronouns.json"} <= {*files}
    assert {"docs/train.txt", "docs/test.txt"} <= {*files}
    assert list((run.prep / "eval" / "probing").glob("*.txt"))
    assert names(run.path) == LEFT
    caught = refused(ConfigError, None, prep, "demo", size=301, run_dir=run.path)
    assert "source.size: 300 -> 301" in caught.where
    caught = refused(ConfigError, None, prep, "demo", size=300, seed=2, run_dir=run.path)
    assert "source.seed: 1 -> 2" in caught.where


@pytest.fixture
def demo_options(tmp_path):
    """Options of prep for a small demo corpus."""
    return {"size": 50, "run_dir": tmp_path / "run", "jobs": 1, "assignments": ["prep.merges=20"]}


@pytest.fixture
def own_tests(tmp_path):
    """Options for two own test sets with documents: "news" with two references, and "other"."""
    news, other = (write(tmp_path / "in", name, pairs(10, 3)) for name in ("news", "other"))
    (tmp_path / "in" / "news.doc").write_text("0\n4\n")
    for path in other:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\n\n", 3))
    docs = [f"news={tmp_path / 'in' / 'news.doc'}", "other=blank"]
    return {"test": joined(*news, news[1]) + joined(*other), "docs": docs}


def test_own_test_sets_beside_a_data_set_are_prepared_with_references_and_documents(
    demo_options, own_tests, stderr
):
    run = prep("demo", **demo_options, **own_tests)
    printed = stderr()
    assert "news: 10 lines, 2 references, unknown" in printed
    assert "other: 10 lines, unknown" in printed
    found = [(text.name, text.lines, text.references) for text in run.sets("test")]
    assert found == [("test", 60, 1), ("news", 10, 2), ("other", 10, 1)]
    for name, starts in (("news", "0\n4\n"), ("other", "0\n1\n2\n3\n")):
        assert (run.prep / "docs" / f"{name}.txt").read_text() == starts
    sides = zip(*pairs(10, 3), strict=True)
    for path in (run.source("news"), run.references("other")[0]):
        assert path.read_text("utf-8").split("\n")[:-1] == [*next(sides)]


def test_own_test_sets_do_not_change_the_corpus_of_a_data_set(demo_options, own_tests, tmp_path):
    plain = prep("demo", **demo_options | {"run_dir": tmp_path / "plain"}).manifest()
    manifest = prep("demo", **demo_options, **own_tests).manifest()
    assert plain.files.items() <= manifest.files.items()
    assert manifest.fingerprint == plain.fingerprint
    caught = refused(ConfigError, None, prep, "demo", **demo_options)
    assert "source.sets.news.docs: " in caught.where
    assert "source.sets.other.docs: blank -> -" in caught.where


def test_error_names_a_data_set_and_not_its_temporary_files(demo_options):
    options = demo_options | {"assignments": ["prep.max_words=1"]}
    assert refused(DataError, "dropped all 50", prep, "demo", **options).where == "demo"


def test_no_test_set_is_named_like_a_file_of_prep_or_changes_the_fingerprint(
    demo_options, tmp_path
):
    without = prep("demo", **demo_options).manifest().fingerprint
    names_of_files = "vocabulary.txt", "truecase.de", "codes.new", "dev.new"
    texts = [write(tmp_path / "in", name, pairs(3, 3)) for name in names_of_files]
    starts = tmp_path / "starts"
    starts.write_text("0\n2\n")
    test = [path for pair in texts for path in joined(*pair)]
    run = prep("demo", **demo_options, test=test, docs=[f"dev.new={starts}"], force=True)
    set_names = ["test", "vocabulary_txt", "truecase_de", "codes.new", "dev.new"]
    assert [text.name for text in run.sets("test")] == set_names
    assert run.manifest().fingerprint == without


def test_bad_test_set_beside_a_data_set_is_refused_before_anything_is_written(
    tmp_path, demo_options
):
    news = write(tmp_path / "in", "news", pairs(10, 3))
    news[1].write_bytes(news[1].read_bytes() + b"mehr\n")
    message = "news.en has 10 lines but news.de has 11"
    refused(DataError, message, prep, "demo", **demo_options, test=joined(*news))
    assert names(tmp_path) == ["in"]


def test_run_folder_is_named_after_the_data_set(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert table.find("demo").name == "demo"
    assert prep("demo", size=50, jobs=1).path == Path("runs/demo")
