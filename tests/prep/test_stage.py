"""The stage: bad input is one clear error, nothing is ever half there, and a run is not prepared
twice by accident.
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

import numpy as np
import pytest
from typer.main import get_command

from nmtkit import demo
from nmtkit.cli import app
from nmtkit.corpora import parallel_text, table
from nmtkit.corpora.corpus import guess_language, own_files
from nmtkit.data.store import Store
from nmtkit.demo import generate
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.files import sha256
from nmtkit.locks import locked
from nmtkit.prep import request, steps
from nmtkit.prep.encode import subword_counts
from nmtkit.prep.fingerprint import fingerprint
from nmtkit.prep.options import PrepOptions, file_list
from nmtkit.prep.shards import Shard
from nmtkit.prep.stage import prep
from nmtkit.run import Run
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide
from nmtkit.text.tokenizer import SIDES
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.train.options import TrainOptions
from nmtkit.train.plan import make_plan
from tests.manifests import read_json
from tests.prep import corpora
from tests.prep.corpora import pairs, prepare, write
from tests.refused import refused

LEFT = [".lock", "history.jsonl", "prep", "run.toml"]
"""What a run holds after prep."""


@pytest.fixture
def files(tmp_path):
    """Own files: training 60 pairs, dev 20."""
    return corpora.own_files(tmp_path, pairs(60))


def run_prep(folder, files, name="run", settings=(), **options):
    return prepare(folder, files, name, ["merges=20", *settings], **options)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def snapshot(folder):
    return {
        p.relative_to(folder).as_posix(): (sha256(p), p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file()
    }


def joined(paths):
    return [",".join(map(str, paths))]


def started(folder, files, *arguments):
    """A process that prepares the files in `folder`/run, once it has begun to work."""
    # a shell's background jobs are started with SIGINT ignored
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    sets = ["--train", *files["train"], "--dev", *files["dev"]]
    process = subprocess.Popen(
        [sys.executable, "-c", heard + "from nmtkit.cli import main; main()", "prep", "mine"]
        + [*map(str, sets), "--run", "run", "--preset", "tiny", *arguments],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list(folder.glob("run/prep-work/survey")):
        time.sleep(0.01)
    return process


# bad input


def spoil(path, how):
    if how == "missing":
        path.unlink()
    elif how == "directory":
        path.unlink()
        path.mkdir()
    elif how == "device":
        path.unlink()
        path.symlink_to("/dev/null")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "latin-1":
        path.write_bytes("Der Hund.\nDie Bäume sind groß.\n".encode("latin-1") * 30)
    elif how == "CR":
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))


@pytest.fixture
def run(tmp_path, files):
    return run_prep(tmp_path, files)


@pytest.fixture(name="test")
def own_set(tmp_path):
    return write(tmp_path / "in", "test", pairs(10, 3))


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
def test_a_bad_file_is_named_and_nothing_is_written(tmp_path, files, which, how, message, test):
    spoil({**files, "test": test}[which][1], how)
    caught = refused(DataError, message, run_prep, tmp_path, files, test=joined(test))
    assert f"{which}.de" in str(caught)
    assert caught.hint
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize(("which", "side"), [("dev", 0), ("dev", 1), ("test", 1), ("test", 2)])
def test_a_set_without_a_line_with_text_is_refused_and_nothing_is_written(
    tmp_path, files, which, side, test
):
    second = tmp_path / "in" / "test.de1"
    second.write_bytes(test[1].read_bytes())
    path = {"dev": files["dev"], "test": (*test, second)}[which][side]
    blanks = ["", " ", "\r", "\ufeff", "\u2028\x85", "\x00\t"]
    path.write_text(
        "".join(blanks[i % 6] + "\n" for i in range(20 if which == "dev" else 10)),
        "utf-8",
        newline="\n",
    )
    of_side = "target" if side else "source"
    with pytest.raises(
        DataError, match=f"^{which} has no line with text: all of the {of_side} is blank"
    ) as caught:
        run_prep(tmp_path, files, test=joined((*test, second)))
    assert str(path) in caught.value.where and "one sentence a line" in caught.value.hint
    assert names(tmp_path) == ["in"]


def test_blank_lines_of_dev_and_test_sets_are_counted_and_warned_of(
    tmp_path, files, stderr, test, monkeypatch
):
    monkeypatch.setattr(Shard.chunks, "__defaults__", (2, 1 << 20))
    second = tmp_path / "in" / "test.de1"
    second.write_text("Ein Hund.\n" * 9 + "\u2028\n", "utf-8")
    files["dev"] = write(
        tmp_path / "in",
        "dev",
        [
            ("", ""),
            ("A dog.", "\u00a0"),
            ("\u2028", "Ein Hund."),
            (b"\xef\xbb\xbf \r", "ja"),
            ("yes", "ja"),
        ],
    )
    run = run_prep(tmp_path, files, test=joined((*test, second)))
    assert [entry.get("blank") for entry in run.manifest().model_dump()["sets"]] == [
        None,
        {"src": 3, "ref": 2},
        {"ref1": 1},
    ]
    said = [line for line in stderr().splitlines() if "has blank lines" in line]
    assert len(said) == 2 and all("warning: " in line for line in said)
    assert (
        "dev has blank lines (3 of .src, 2 of .ref; 5 lines each)" in said[0]
        and "test has blank lines (1 of .ref1; 10 lines each)" in said[1]
    )
    assert not any("--docs" in line for line in said)  # it would refuse lines blank on one side


def test_bad_utf8_has_line_and_byte_offset(tmp_path, files):
    text = files["train"][1].read_bytes()
    start = text.index(b"\n", 500) + 1
    files["train"][1].write_bytes(text[:start] + b"Gr\xfc\xdfe!\n" + text[start:])
    caught = refused(DataError, None, run_prep, tmp_path, files)
    assert f"line {text[:start].count(10) + 1}, byte {start + 2} " in caught.where
    assert "prep.on_bad_utf8" in caught.hint


def test_markup_in_files_of_another_name(tmp_path, files, stderr):
    """Most lines: an error. Some, as in the training text of IWSLT: a warning. A tag that begins a
    line names its language.
    """
    talk = ["<url>http://x</url>", "<title>A title</title>", *("A dog." for _ in range(18))]
    texts = {
        "unit": ["<tu>", '<tuv xml:lang="en"><seg>A dog.</seg></tuv>', "</tu>", "A dog."] * 5,
        "talk": talk * 10,
        "few": talk,
        "language": ["<de> A dog."] * 20,
    }
    said = {}
    for name, lines in texts.items():
        train = write(tmp_path / name, "train", [(line, "Ein Hund.") for line in lines])
        if name == "unit":
            message = r"15 of the first 20 lines of the source of train are markup \(<tu>\)"
            error = refused(DataError, message, run_prep, tmp_path, files | {"train": train})
            assert ".sgm or .xml" in error.hint and "TMX" in error.hint
        else:
            run_prep(tmp_path, files | {"train": train}, name)
        said[name] = "are markup" in stderr()
    assert said == {"unit": False, "talk": True, "few": False, "language": False}


def test_a_gz_cut_short(tmp_path, files):
    path = tmp_path / "in" / "train.en.gz"
    path.write_bytes(gzip.compress(files["train"][0].read_bytes())[:-20])
    caught = refused(
        DataError, None, run_prep, tmp_path, files | {"train": (path, files["train"][1])}
    )
    assert "train.en.gz" in caught.where
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize(("side", "at"), [(0, 7), (1, 41), (0, 0), (1, 59)])
def test_the_first_suspicious_line(side, at):
    lengths = [[4 + 5 * (1 + (i * 7) % 23) for i in range(60)] for _ in "12"]
    lengths[side].insert(at, 80 if at % 2 else 1)
    assert parallel_text.first_odd_line(*lengths) == at


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
def test_counts_that_differ_are_said_in_words_that_fit(tmp_path, src, tgt, message, where):
    train = tmp_path / "train.en", tmp_path / "train.de"
    for path, lines in zip(train, (src, tgt), strict=True):
        path.write_text("".join(line + "\n" for line in lines), "utf-8")
    caught = refused(DataError, None, run_prep, tmp_path, {"train": train, "dev": train})
    assert message in caught.message and caught.where == f"first odd pair: {where}"
    assert "nothing was written" in caught.hint and names(tmp_path) == [
        "train.de",
        "train.en",
    ]


def test_the_suspicious_line_of_a_file_cut_short_is_the_first_that_is_missing():
    assert parallel_text.first_odd_line([13] * 9 + [14] * 41, [13] * 9 + [14] * 11) == 20
    assert parallel_text.first_odd_line([7] * 20, [7] * 50) == 20


def test_no_line_is_suspected_in_a_file_that_is_not_compared_whole(tmp_path, monkeypatch):
    paths = [(path,) for path in write(tmp_path, "long", [("a b c", "d e f")] * 12)]
    odd = "x y z w v u t s r q p o n\n" + paths[0][0].read_text("utf-8")
    paths[0][0].write_text(odd, "utf-8")
    assert parallel_text.first_odd_pair(*paths) == "first odd pair: line 1 (13 words vs 3)"
    for limit in (12, 10):
        monkeypatch.setattr(parallel_text, "COMPARED_LINES", limit)
        assert parallel_text.first_odd_pair(*paths[::-1]) is None
        assert parallel_text.first_odd_pair(*paths) is None


def test_the_suspicious_line_in_real_text(shared):
    raw = shared / "data" / "multi30k" / "raw"
    src, tgt = (
        [
            len(line)
            for line in gzip.decompress((raw / f"val.{lang}.gz").read_bytes()).split(b"\n")[:-1]
        ]
        for lang in ("en", "de")
    )
    for line in (100, 500, 900):
        for extra in (1, 3):
            assert (
                abs(
                    parallel_text.first_odd_line(src[:line] + [60] * extra + src[line:], tgt) - line
                )
                <= 10
            )
            assert (
                abs(parallel_text.first_odd_line(src, tgt[:line] + tgt[line + extra :]) - line)
                <= 10
            )


def test_a_last_line_without_line_feed_counts(tmp_path, files):
    path = files["train"][0]
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert run_prep(tmp_path, files).text_set("train").lines == 60


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
"""Arguments of prep, its error and the hint; "own" stands for own files."""
OWN = [
    ({"dataset": "../out"}, "'../out' cannot name a corpus", "--run"),
    ({"dataset": ".hidden"}, "'.hidden' cannot name a corpus", "--run"),
    ({"dataset": ""}, "'' cannot name a corpus", "--run"),
    (
        {"docs": ["x.doc"]},
        "'x.doc' is not SET=FILE",
        "--docs train=train.doc --docs dev=blank",
    ),
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
]
"""As REGISTERED, for own files."""


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [*REGISTERED, *(({"train": "own", "dev": "own"} | row[0], *row[1:]) for row in OWN)],
)
def test_a_wrong_request_is_one_clear_error(tmp_path, files, arguments, message, hint):
    arguments = {"dataset": "mine", "preset": "tiny", "run_dir": tmp_path / "run"} | arguments
    for key in ("train", "dev"):
        if arguments.get(key) == "own":
            arguments[key] = files[key]
    assert hint in refused(ConfigError, message, prep, **arguments).hint
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("news.de", "de"),
        ("a.b.en.gz", "en"),
        ("x.zho.xz", "zho"),
        ("train.txt", None),
        ("train", None),
    ],
)
def test_languages_from_suffixes(name, language):
    if language is None:
        refused(ConfigError, "cannot tell the language", guess_language, Path(name), "--src")
    else:
        assert guess_language(Path(name), "--src") == language


@pytest.mark.parametrize("given", [{}, {"src": "en", "tgt": "de"}])
def test_a_folder_is_no_text(tmp_path, files, given, monkeypatch):
    monkeypatch.chdir(tmp_path / "in")
    with pytest.raises(DataError, match=r"is a directory, not a text file: \."):
        run_prep(tmp_path, files | {"train": (Path("."), files["train"][1])}, **given)


def test_names_of_own_test_sets():
    own = (Path("a.de"), Path("a.en"))
    tests = [
        "x/news.2014.de.gz,x/news.2014.en",
        "dev.de,dev.en",
        "source.txt,ref.txt,ref2.txt",
        "x/dev.de,y/dev.en",
        "ö b.de,ö b.en",
        "./-set.de,./-set.en",
        "x/Dev.de,x/Dev.en",
    ]
    paths = [file_list(value, "--test") for value in tests]
    corpus = own_files(None, own, own, paths, None, None)
    assert [one.name for one in corpus.sets] == [
        "train",
        "dev",
        "news.2014",
        "dev-2",
        "test",
        "dev-3",
        "ö_b",
        "set",
        "Dev-4",
    ]
    assert corpus.name == "de-en"
    assert corpus.sets[4].sides["ref1"] == (Path("ref2.txt"),)


def warnings_of(stderr):
    return [
        line.removeprefix("nmtkit: warning: ") for line in stderr().split("\n") if "warning" in line
    ]


def test_a_language_without_rules_is_said(tmp_path, files, stderr):
    run_prep(tmp_path, files, src="xx", tgt="de")
    (said,) = [one for one in warnings_of(stderr) if "Moses" in one]
    assert (
        said.startswith("Moses has no rules for 'xx': English abbreviations are taken")
        and "--src" in said
    )
    run_prep(tmp_path, files, src="xx", tgt="de")  # up to date
    run_prep(tmp_path, files, "plain")
    run_prep(tmp_path, files, "chinese", src="eng_Latn", tgt="zh-Latn")
    run_prep(tmp_path, files, "tokens", ["src_tokenizer=none"], src="xx", tgt="de")
    assert [one for one in warnings_of(stderr) if "Moses" in one] == []


def test_the_preset_of_own_files_goes_by_their_size(tmp_path, files, stderr):
    """It is said, train takes it, and the next call finds all up to date."""
    run_prep(tmp_path, files)
    said = stderr()
    assert "(preset tiny, fingerprint" in said and "--preset" not in said
    run = run_prep(tmp_path, files, "own", preset=None)
    assert (
        "nmtkit: preset small, for fewer than 500,000 training pairs; another one: --preset NAME\n"
        in stderr()
    )
    assert (
        tomllib.loads((run.path / "run.toml").read_text("utf-8"))["preset"]
        == run.manifest().preset
        == "small"
    )
    assert make_plan(run, TrainOptions()).preset == "small"
    run_prep(tmp_path, files, "own", preset=None)
    assert "up to date" in stderr()
    (option,) = [one for one in get_command(app).commands["prep"].params if one.name == "preset"]
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
def test_training_pairs_are_counted_before_the_preset_is_chosen(
    files, monkeypatch, limit, size, preset
):
    """Those of which --size is."""
    monkeypatch.setattr(request, "MANY_PAIRS", limit)
    asked = request.Request(PrepOptions(dataset="mine", **files, size=size))
    assert asked.preset == preset and asked.note.startswith(f"preset {preset}, for ")
    assert asked.settings.merges == {"small": 8000, "base": 32000}[preset]


def test_a_file_whose_suffix_is_of_another_language_is_said(tmp_path, files, stderr, test):
    other = test[1].with_suffix(".fr.gz")
    other.write_bytes(gzip.compress(test[1].read_bytes()))
    run_prep(tmp_path, files, test=joined((*test, other)))
    assert warnings_of(stderr) == [
        f"{other} is taken for 'de' (reference 2 of 'test'), though its suffix says 'fr'"
    ]
    swapped = f"{files['train'][0]} is taken for 'de' (source of 'train'), but its suffix says 'en'"
    caught = refused(ConfigError, None, run_prep, tmp_path, files, "swapped", src="de", tgt="en")
    assert (caught.message, caught.where) == (swapped, "--train")
    assert not (tmp_path / "swapped").exists()
    with pytest.raises(ConfigError, match=r"test\.de is taken for 'en' \(source of 'test'\)"):
        run_prep(tmp_path, files, "swapped", test=joined(test[::-1]))
    for name in ("x.1", "x.ref", "x.tok", "x"):
        test[1].with_name(name).write_bytes(test[1].read_bytes())
    run_prep(
        tmp_path,
        files,
        "others",
        src="en-US",
        tgt="deu",
        test=[
            ",".join(
                str(test[0].with_name(name)) for name in ("test.en", "x.1", "x.ref", "x.tok", "x")
            )
        ],
    )
    assert warnings_of(stderr) == []


# up to date, force, other settings


def test_the_same_again_says_so_and_changes_nothing(tmp_path, files, stderr, run):
    before = snapshot(run.prep)
    stderr()
    run_prep(tmp_path, files)
    assert "up to date" in stderr()
    os.utime(files["train"][0])  # touched, not changed: the checksum decides
    run_prep(tmp_path, files)
    assert snapshot(run.prep) == before
    run_prep(tmp_path, files, force=True)
    after = snapshot(run.prep)
    assert after.keys() == before.keys()
    assert all(after[name][0] == before[name][0] for name in before if name != "manifest.json")
    assert after["train/00000.bin"][1] != before["train/00000.bin"][1]


def test_other_settings_are_refused_with_old_and_new(tmp_path, files, run):
    before = snapshot(run.path)
    with pytest.raises(ConfigError, match="prepared differently") as caught:
        run_prep(tmp_path, files, settings=["truecase=none", "joint_vocab=false"])
    assert "prep.truecase: both -> none" in caught.value.where
    assert "prep.joint_vocab: True -> False" in caught.value.where
    assert "--force" in caught.value.hint and "--run" in caught.value.hint
    assert snapshot(run.path) == before
    assert (
        run_prep(tmp_path, files, settings=["truecase=none"], force=True)
        .manifest()
        .settings.truecase
        == "none"
    )


def test_systems_stay_valid_if_only_test_sets_are_new(tmp_path, files, run, test):
    def hint(**options):
        error = refused(ConfigError, "prepared differently", run_prep, tmp_path, files, **options)
        return error.hint

    valid = "trained systems stay valid"
    assert valid in hint(test=joined(test))
    assert valid not in hint(test=joined(test), settings=["truecase=none"])
    assert valid not in hint(test=joined(test), settings=["drop_overlap=exact"])
    assert valid not in hint(docs=["dev=blank"])
    before = run.manifest().fingerprint
    assert run_prep(tmp_path, files, test=joined(test), force=True).manifest().fingerprint == before


def test_another_preset_with_the_same_text_is_noted(tmp_path, files, stderr):
    run = prepare(tmp_path, files, settings=["merges=20"])
    before, manifest = snapshot(run.prep), run.manifest()
    stderr()
    prepare(tmp_path, files, settings=["merges=20"], preset="base")
    assert "preset tiny -> base" in stderr()
    assert run.manifest() == manifest.model_copy(update={"preset": "base"})
    assert tomllib.loads((run.path / "run.toml").read_text("utf-8"))["preset"] == "base"
    del before["manifest.json"]
    assert before.items() <= snapshot(run.prep).items()
    prepare(tmp_path, files, settings=["merges=20"], preset=None)  # none is asked for
    assert run.manifest().preset == "base" and "preset base ->" not in stderr()


@pytest.mark.parametrize(
    ("setting", "subwords", "ineffective"),
    [
        ("vocab_size", "bpe", True),
        ("vocab_size", "sentencepiece", False),
        ("vocab_threshold", "sentencepiece", True),
        ("vocab_threshold", "bpe", False),
        ("vocab_size", "none", False),
    ],
)
def test_a_setting_without_effect_is_warned_of(files, setting, subwords, ineffective):
    values = [f"prep.subwords={subwords}", f"prep.{setting}="]
    made = lambda number: request.Request(  # noqa: E731
        PrepOptions.of(files | {"assignments": [values[0], values[1] + number]})
    )
    warning = f"prep.{setting} has no effect with prep.subwords={subwords}"
    assert any(warning in doubt for doubt in made("90").doubts) == ineffective
    assert not made("0").doubts


def test_another_text_is_refused(tmp_path, files):
    run_prep(tmp_path, files)
    write(tmp_path / "in", "train", pairs(61))
    assert "source.sets.train.src" in refused(ConfigError, None, run_prep, tmp_path, files).where
    caught = refused(ConfigError, None, prep, "demo", run_dir=tmp_path / "run", size=10)
    assert "source.dataset: mine -> demo" in caught.where


def test_a_missing_piece_is_made_again_and_another_one_refused(tmp_path, files, stderr, run):
    path, content = run.prep / "train/00000.bin", (run.prep / "train/00000.bin").read_bytes()
    path.unlink()
    run_prep(tmp_path, files)
    assert path.read_bytes() == content
    assert "train/00000.bin is missing; preparing again" in stderr()
    path.write_bytes(content[:-1] + b"?")
    caught = refused(DataError, "has changed since it was prepared", run_prep, tmp_path, files)
    assert caught.where == str(path) and "--force" in caught.hint


def test_two_sets_with_the_same_files_are_a_warning(tmp_path, files, stderr):
    run_prep(tmp_path, files, test=joined(files["dev"]))
    (said,) = (line for line in warnings_of(stderr) if "same" in line)
    assert said == "dev and dev-2 are the same text: is one of their files the wrong one?"


def test_other_tools_than_those_of_a_run_are_a_warning(tmp_path, files, stderr, run):
    manifest = run.manifest()
    manifest.tools["sacremoses"] = "0.0"
    del manifest.tools["text rules"]  # as of an earlier version
    manifest.write(run.prep / "manifest.json")
    run_prep(tmp_path, files)
    (said,) = (line for line in warnings_of(stderr) if "sacremoses" in line)
    assert "was prepared with other versions (" in said and "text rules - -> " in said
    assert "sacremoses 0.0 -> " in said


def test_other_text_rules_are_a_warning_where_new_text_is_read(stderr, run):
    TextSide.load(run.prep, "src")
    assert "text rules" not in stderr()
    manifest = run.manifest()
    manifest.tools["text rules"] = "3"
    manifest.write(run.prep / "manifest.json")
    for side in SIDES:
        TextSide.load(run.prep, side)
    (said,) = warnings_of(stderr)
    assert "was prepared with another version of nmtkit's rules for text" in said


def test_systems_of_the_old_corpus_are_named(tmp_path, files, stderr, run):
    (run.path / "systems" / "mine").mkdir(parents=True)
    (run.path / "systems" / "mine" / "config.toml").write_text("")
    test = write(tmp_path / "in", "news", pairs(10, 3))
    run_prep(tmp_path, files, test=joined(test), force=True)
    assert "belong to the old one" not in stderr()  # a further test set leaves the systems valid
    run_prep(tmp_path, files, settings=["truecase=none"], force=True)
    said = stderr()
    assert "the systems mine" in said and "--force" in said


def test_the_fingerprint_is_that_of_the_training_side(tmp_path, files):
    first = run_prep(tmp_path, files, "a").manifest().fingerprint
    assert run_prep(tmp_path, files, "b").manifest().fingerprint == first
    assert (
        run_prep(tmp_path, files, "c", settings=["max_words=249"]).manifest().fingerprint != first
    )
    for number, name in enumerate(("train", "dev")):
        write(tmp_path / "in", name, pairs(60, number + 1))
        first, before = run_prep(tmp_path, files, name).manifest().fingerprint, first
        assert first != before
    chosen = PrepSettings(dev="a", test=["b"])  # sets of a data set, which are not text
    assert fingerprint(("en", "de"), chosen, {}) == fingerprint(("en", "de"), PrepSettings(), {})


def test_run_toml_and_history(run):
    said = tomllib.loads((run.path / "run.toml").read_text("utf-8"))
    assert (said["dataset"], said["src"], said["tgt"], said["preset"]) == (
        "mine",
        "en",
        "de",
        "tiny",
    )
    assert said["prep"]["merges"] == 20
    assert said["fingerprint"] == run.manifest().fingerprint
    record = read_json(run.path / "history.jsonl")
    assert (record["stage"], record["exit"]) == ("prep", 0)


# never half there


def failing(error):
    def fail(*_):
        raise error

    return fail


def test_a_failure_leaves_the_old_corpus_alone(tmp_path, files, monkeypatch, run):
    before = snapshot(run.prep)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(steps.Steps, "encode", failing(full))
    refused(EnvironmentProblem, "No space left", run_prep, tmp_path, files, force=True)
    assert snapshot(run.prep) == before
    assert names(run.path) == sorted([*LEFT, "prep-work"])
    monkeypatch.undo()
    run_prep(tmp_path, files, force=True)
    assert names(run.path) == LEFT


def test_an_error_of_the_user_in_a_fresh_run_leaves_nothing(tmp_path, files, monkeypatch):
    monkeypatch.setattr(steps.Steps, "encode_sets", failing(DataError("broken")))
    with pytest.raises(DataError):
        run_prep(tmp_path, files)
    assert names(tmp_path) == ["in"]


def test_folders_that_prep_did_not_make_stay(tmp_path, files, run):
    for name in ("prep.old-1", "prep.old-notes", "prep.tmp-1"):
        (run.path / name).mkdir()
    shutil.copytree(run.prep, run.path / "prep.old-2")
    run_prep(tmp_path, files, force=True)
    own = ["prep.old-1", "prep.old-2", "prep.old-notes", "prep.tmp-1"]
    assert names(run.path) == sorted([*LEFT, *own])
    assert snapshot(run.path / "prep.old-2").keys() == snapshot(run.prep).keys()


def test_killed_between_two_renames(tmp_path, files, monkeypatch, run):
    """The old folder is back even if the next call fails."""
    before = snapshot(run.prep)
    run.prep.rename(run.path / ".nmtkit-old-prep-4999999")
    with monkeypatch.context() as patch, pytest.raises(DataError, match="broken"):
        patch.setattr(steps.Steps, "encode", failing(DataError("broken")))
        run_prep(tmp_path, files)
    assert snapshot(run.prep) == before
    assert names(run.path) == LEFT


def test_kill_at_any_time_leaves_no_half_prep(tmp_path, files):
    """SIGKILL after delays that fall into every step; whatever is there is whole, and the same
    command finishes the work.
    """
    write(tmp_path / "in", "train", pairs(3000, 2))
    run, killed = Run(tmp_path / "run"), 0
    for _ in range(4):
        process = started(tmp_path, files, "--jobs", "2")
        time.sleep(0.12 * killed)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        if run.prep.exists():
            manifest = run.manifest().model_dump()
            assert {name: sha256(run.prep / name) for name in manifest["files"]} == manifest[
                "files"
            ]
    assert killed
    run_prep(tmp_path, files, force=True)
    assert names(run.path) == LEFT
    assert len(Store(run.prep / "train")) == 3000


@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
@pytest.mark.parametrize("before", ["fresh", "prepared"])
def test_a_signal_stops_prep_and_the_same_command_goes_on(tmp_path, files, number, jobs, before):
    kept = snapshot(run_prep(tmp_path, files).prep) if before == "prepared" else None
    write(tmp_path / "in", "train", pairs(30_000, 2))
    process = started(tmp_path, files, "--force", "--jobs", str(jobs))
    process.send_signal(number)
    printed = process.communicate(timeout=60)[1]
    assert (process.returncode, printed.count("Traceback")) == (130, 0)
    run = tmp_path / "run"
    kept_in = f"what is finished is in {Path('run') / 'prep-work'}; the same command goes on"
    assert printed.rstrip("\n").split("\n")[-1] == f"nmtkit: stopped; {kept_in}"
    assert names(run) == sorted(
        {*LEFT, "prep-work"} - ({"prep", "run.toml"} if not kept else set())
    )
    if kept is not None:
        assert snapshot(run / "prep") == kept
    record = json.loads((run / "history.jsonl").read_text("utf-8").split("\n")[bool(kept)])
    assert (record["stage"], record["exit"]) == ("prep", 130)


def test_a_run_in_use_is_refused(tmp_path, files, run):
    with locked(run.path, "train", shared=True), pytest.raises(DataError, match="in use"):
        run_prep(tmp_path, files, force=True)


def test_a_folder_that_cannot_be_written(tmp_path, files):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot write"):
        prep("mine", **files, run_dir=tmp_path / "file" / "run", preset="tiny", jobs=1)


@pytest.mark.parametrize("name", ["demo", "mine"])
def test_a_file_is_not_a_run_folder(tmp_path, files, name):
    path = tmp_path / "file"
    path.write_text("text")
    with pytest.raises(DataError, match="file is a file, not a run folder") as caught:
        prep(name, **(files if name == "mine" else {}), run_dir=path)
    assert caught.value.where == "--run"
    assert path.read_text() == "text"


# generated corpora


def test_demo(tmp_path, monkeypatch):
    """The embedded corpus: sets, documents and evaluation files, the same for the same seed."""
    monkeypatch.setattr(demo, "generate", generate)
    runs = [
        prep("demo", size=300, seed=seed, run_dir=tmp_path / name, jobs=2)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    run = runs[0]
    assert {s.name: s.lines for s in run.sets()} == {"train": 300, "dev": 500, "test": 500}
    assert runs[1].manifest().files == run.manifest().files
    assert runs[2].manifest().fingerprint != run.manifest().fingerprint
    assert {"eval/agreement.json", "eval/pronouns.json", "docs/train.txt", "docs/test.txt"} <= set(
        run.manifest().files
    )
    assert list((run.prep / "eval" / "probing").glob("*.txt"))
    assert names(run.path) == LEFT
    caught = refused(ConfigError, None, prep, "demo", size=301, run_dir=run.path)
    assert "source.size: 300 -> 301" in caught.where


def test_own_test_sets_beside_those_of_a_data_set(tmp_path, monkeypatch, stderr):
    """They are prepared as those of own files are; the data set's are as without them, and no
    system depends on them.
    """
    generate = demo.generate
    monkeypatch.setattr(
        demo,
        "generate",
        lambda folder, size, seed: generate(folder, size=size, dev=12, test=12, seed=seed),
    )
    news, other = (write(tmp_path / "in", name, pairs(10, 3)) for name in ("news", "other"))
    (tmp_path / "in" / "news.doc").write_text("0\n4\n")
    for path in other:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\n\n", 3))
    tests = [f"{news[0]},{news[1]},{news[1]}", ",".join(map(str, other))]
    options = {
        "size": 50,
        "run_dir": tmp_path / "run",
        "jobs": 1,
        "assignments": ["prep.merges=20"],
    }
    told = {"test": tests, "docs": [f"news={tmp_path / 'in' / 'news.doc'}", "other=blank"]}
    plain = prep("demo", **options | {"run_dir": tmp_path / "plain"}).manifest().model_dump()
    stderr()
    run = prep("demo", **options, **told)
    said = stderr()
    assert "news: 10 lines, 2 references, unknown" in said and "other: 10 lines, unknown" in said
    assert [(one.name, one.lines, one.references) for one in run.sets("test")] == [
        ("test", 12, 1),
        ("news", 10, 2),
        ("other", 10, 1),
    ]
    assert [
        (run.prep / "docs" / f"{name}.txt").read_text().split() for name in ("news", "other")
    ] == [["0", "4"], ["0", "1", "2", "3"]]
    assert run.source("news").read_bytes() == news[0].read_bytes() and run.references("other")[
        0
    ].read_bytes() == other[1].read_bytes().replace(b"\n\n", b"\n")
    manifest = run.manifest().model_dump()
    assert (
        plain["files"].items() <= manifest["files"].items()
        and manifest["fingerprint"] == plain["fingerprint"]
    )
    caught = refused(ConfigError, None, prep, "demo", **options)
    assert (
        "source.sets.news.docs: " in caught.where
        and "source.sets.other.docs: blank -> -" in caught.where
    )


def test_a_bad_test_set_beside_a_data_set_is_found_before_anything_is_written(tmp_path):
    news = write(tmp_path / "in", "news", pairs(10, 3))
    prep_demo = {"size": 50, "run_dir": tmp_path / "run", "test": joined(news)}
    news[1].write_bytes(news[1].read_bytes() + b"mehr\n")
    refused(DataError, "news.en has 10 lines but news.de has 11", prep, "demo", **prep_demo)
    assert names(tmp_path) == ["in"]


def test_every_registered_name_makes_its_own_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert table.find("demo").name == "demo"
    assert prep("demo", size=50, jobs=1).path == Path("runs/demo")


def test_an_unknown_subword_counts_where_it_stands():
    ids = np.array([*(UNK, EOS), *(5, EOS), *(4, EOS), *(UNK, UNK, EOS)])
    counts = {"src_tokens": 2, "tgt_tokens": 3, "src_unknown": 1, "tgt_unknown": 2}
    assert subword_counts(ids, np.array([2, 2, 2, 3])) == counts
