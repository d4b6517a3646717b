"""The files of a set are given as words, with commas, or as one TSV file."""

import gzip
import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nmtkit.cli import app
from nmtkit.errors import ConfigError, DataError
from nmtkit.prep.options import file_list, joined_words
from tests.manifests import read_json
from tests.prep import real
from tests.prep.corpora import pairs, prepare, write
from tests.prep.test_documents import write_lines
from tests.refused import refused


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """Train, dev and test files in both forms, and the current folder beside them."""
    monkeypatch.chdir(tmp_path)
    rows = {"train": pairs(60), "dev": pairs(20, 7), "test": pairs(9, 8)}
    for name, lines in rows.items():
        write(tmp_path, name, lines)
        write_table(tmp_path / f"{name}.en-de.tsv", lines)
    write_table(tmp_path / "dev.de-en.tsv", rows["dev"])
    return rows


def write_table(path, rows):
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as stream:
        stream.write("".join("\t".join(row) + "\n" for row in rows).encode())
    return path


def call(*words):
    return CliRunner().invoke(app, ["prep", "--preset", "tiny", "-j", "1", *words])


def read_files(run):
    """Return the checksums of the files of a run."""
    return read_json(Path(run) / "prep/manifest.json")["files"]


TABLES = "--train train.en-de.tsv --dev dev.en-de.tsv"
COMMAND_LINES = {
    "words": "--train train.en train.de --dev dev.en dev.de --test test.en test.de mine",
    "commas": "mine --train train.en,train.de --dev dev.en,dev.de --test test.en,test.de",
    "equals": f"mine --test=test.en test.de {TABLES}",
}


@pytest.mark.parametrize("form", COMMAND_LINES)
def test_files_as_words_commas_or_tables_give_the_same_corpus(sets, form):
    lines = {"table": f"mine {TABLES} --test test.en-de.tsv", form: COMMAND_LINES[form]}
    for run, line in lines.items():
        result = call("--run", run, *line.split(" "))
        assert result.exit_code == 0, result.output
    assert read_files(form) == read_files("table")


def test_paths_in_a_value_may_begin_with_a_tilde(sets, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    plain = call("--run", "plain", *COMMAND_LINES["commas"].split(" "))
    assert plain.exit_code == 0, plain.output
    tests = ",".join(["test.en", *["~/test.de"] * 40])  # too long for the name of a file
    train = "--train=~/train.en", "train.de"
    result = call("mine", *train, "--dev=dev.en,~/dev.de", "--test", tests)
    assert result.exit_code == 0, result.output
    files = read_files("runs/mine")
    assert read_files("plain").items() <= files.items()
    assert files["text/test.ref39"] == files["text/test.ref"]


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        (["--train", "a", "b", "mine"], ["--train=a\0b", "mine"]),
        (["--train", "a,b", "mine"], ["--train=a,b", "mine"]),
        (["--train", "x.tsv.gz", "mine"], ["--train=x.tsv.gz", "mine"]),
        (["--test=a", "b", "c", "-q"], ["--test=a\0b", "c", "-q"]),
        (["--test", "a", "b", "c.en", "d.en"], ["--test=a\0b\0c.en", "d.en"]),
        (["--train", "a", "b", "c.en"], ["--train=a\0b\0c.en"]),
        (["--dev", "a", "--train", "c", "d"], ["--dev=a", "--train=c\0d"]),
        (["--dev", "x,y.de", "x,y.en", "mine"], ["--dev=x,y.de\0x,y.en", "mine"]),
        (["--codes", "a", "mine", "--vocab", "b,c"], ["--codes=a", "mine", "--vocab=b,c"]),
        (["--vocab", "a", "c.en", "c.en", "mine"], ["--vocab=a\0c.en\0c.en", "mine"]),
    ],
)
def test_words_after_a_file_option_are_joined(words, joined, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("c.en", "x,y.de", "x,y.en"):
        Path(name).touch()
    assert joined_words(words) == joined


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train", "--dev", "dev.en", "dev.de"], "needs files, got the option '--dev'"),
        (["--train"], "a training set needs files, got nothing"),
        (["--train", "train.en", "--dev", "dev.en,dev.de"], "got 1 file: 'train.en'"),
        (["--train", "train.en,train.de,dev.de"], "a source and a target, got 3 files"),
        (["--train", "train.en", "train.de", "dev.de"], "a source and a target, got 3 files"),
        (["--codes", "dev.en", "dev.de", "test.de"], "or one for each side: got 3"),
        (["--train", "train.en,--dev"], "a training set needs files, got the option '--dev'"),
        (["--dev", "dev.de-en.tsv"], "taken for 'en-de', but its suffix says 'de-en'"),
        (["--dev", "dev.en-de.tsv,dev.de"], "one TSV file holds all sides of a development set"),
        (["--test", "test.en"], "a test set is a source and a reference, got 1 file: 'test.en'"),
        (["--test", "test.en,gone.de"], "no such file: gone.de"),
        (["--test", "gone.tsv"], "no such file: gone.tsv"),
        (["--codes", "--dev", "dev.en-de.tsv"], "the option --codes needs files, got the option"),
    ],
)
def test_wrong_file_option_is_refused_before_anything_is_written(sets, words, message, tmp_path):
    option = words[0]
    for name in ("train", "dev"):
        if f"--{name}" not in words:
            words = [f"--{name}", f"{name}.en-de.tsv", *words]
    result = call("mine", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert f"in: {option}" in result.output
    assert result.output.count("in:") == result.output.count("try:") == 1
    assert not (tmp_path / "runs").exists()


def test_file_list_splits_at_commas_or_at_nul():
    assert file_list("a.de,b.en", "--train") == [Path("a.de"), Path("b.en")]
    assert file_list("a.de\0b,c.en", "--train") == [Path("a.de"), Path("b,c.en")]
    assert file_list("x.tsv.zst", "--dev") == [Path("x.tsv.zst")]
    refused(ConfigError, "got 0 files", file_list, "", "--dev")


def test_columns_of_a_test_table_are_references(sets, tmp_path):
    rows = [(src, tgt, tgt.upper(), f"{tgt} {tgt}") for src, tgt in sets["test"]]
    path = write_table(tmp_path / "news.tsv.gz", rows)
    files = {"train": [tmp_path / "train.en-de.tsv"], "dev": [tmp_path / "dev.en-de.tsv"]}
    run = prepare(tmp_path, files, test=[[path]])
    assert run.text_set("news").references == 3
    for number, suffix in enumerate(("src", "ref", "ref1", "ref2")):
        text = (run.prep / f"text/news.{suffix}").read_text().splitlines()
        assert text == [row[number] for row in rows]


@pytest.mark.parametrize(
    ("name", "number", "line", "message"),
    [
        ("train", 5, b"no tab here", "a TSV line has no tab"),
        ("train", 1, b"a\tb\tc", "a TSV line has 3 columns"),
        ("dev", 1, b"a\tb\tc", "a TSV line has 3 columns"),
        ("test", 5, b"a\tb\tc", "a TSV line has 3 columns"),
        ("test", 5, b"", "a TSV line has no tab"),
    ],
)
def test_wrong_line_of_a_table_is_refused_with_its_number(
    sets, tmp_path, name, number, line, message
):
    path = tmp_path / f"{name}.en-de.tsv"
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = line
    path.write_bytes(b"\n".join(lines))
    files = {key: [tmp_path / f"{key}.en-de.tsv"] for key in sets}
    test = [files.pop("test")]
    caught = refused(DataError, message, prepare, tmp_path, files, test=test)
    assert caught.where == f"{path}, line {number}"
    assert (f"--docs {name}=blank" in caught.hint) == (not line)
    assert not (tmp_path / "run").exists()


def check_tables(folder, files, tables, **options):
    """Assert that tables give the corpus of files with one side each; return its file names."""
    for run, sets in (("files", files), ("tables", tables)):
        prepare(folder, sets, run, **options)
    assert read_files(folder / "tables") == read_files(folder / "files")
    return {*read_files(folder / "tables")}


def test_table_with_documents_parses_and_size_equals_two_files(sets, tmp_path):
    write_lines(tmp_path / "ids", (f"d{i // 7}" for i in range(60)))
    leaves = (" ".join(f"(X {word})" for word in src.split()) for src, _ in sets["train"])
    write_lines(tmp_path / "trees", (f"(S {words})" for words in leaves))
    options = {"docs": [f"train={tmp_path / 'ids'}"], "parses": [f"train={tmp_path / 'trees'}"]}
    files = {name: (tmp_path / f"{name}.en", tmp_path / f"{name}.de") for name in ("train", "dev")}
    tables = {name: [tmp_path / f"{name}.en-de.tsv"] for name in ("train", "dev")}
    assert "docs/train.txt" in check_tables(tmp_path, files, tables, size=20, **options)


def test_blank_lines_of_a_table_separate_documents_as_in_two_files(sets, tmp_path):
    """Blank lines have no tab or only tabs. The test set begins with one and has three columns."""
    files, tables = {}, {}
    for name, rows in sets.items():
        if name == "test":
            rows = [(src, tgt, tgt.upper()) for src, tgt in rows]
        blank = ("",) * len(rows[0])
        documents = [blank, *rows[:4], blank, *rows[4:7], blank, *rows[7:]]
        files[name] = write(tmp_path, name, documents, ("en", "de", "de1")[: len(blank)])
        forms = iter([("",), blank, (" ",)])
        lines = (next(forms) if row == blank else row for row in documents)
        tables[name] = [write_table(tmp_path / f"{name}.en-de.tsv", lines)]
    for values in (files, tables):
        values["test"] = [values["test"]]
    docs = [f"{name}=blank" for name in sets]
    assert "docs/test.txt" in check_tables(tmp_path, files, tables, docs=docs)


def test_compressed_tables_of_real_text_equal_two_files(tmp_path, shared):
    """Text of Europarl, and languages from the name of a table."""
    folder = shared / "data/europarl_deen_20k"
    texts = [real.lines(folder / f"train.{side}.xz")[:400] for side in ("de", "en")]
    rows = list(zip(*texts, strict=True))
    sets = {"train": rows[:300], "dev": rows[300:]}
    files = {name: write(tmp_path / "in", name, sets[name], ("de", "en")) for name in sets}
    expected = prepare(tmp_path, files, "files").manifest().fingerprint
    for suffix in ("", ".gz", ".xz"):
        names = {"train": f"train.de-en.tsv{suffix}", "dev": f"dev.tsv{suffix}"}
        tables = {name: [write_table(tmp_path / names[name], sets[name])] for name in sets}
        manifest = prepare(tmp_path, tables, f"table{suffix}").manifest()
        assert (manifest.src, manifest.tgt) == ("de", "en")
        assert manifest.fingerprint == expected
