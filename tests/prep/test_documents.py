"""Document starts, marked by a file, by separating lines or by markup, carried through
cleaning, and refused where the marks do not fit the text.
"""

import itertools
import random

import pytest

from nmtkit.corpora.document_starts import read_starts
from nmtkit.errors import ConfigError, DataError
from nmtkit.prep import request
from nmtkit.prep.options import PrepOptions
from tests.prep.corpora import own_files, pairs, prepare, write
from tests.refused import refused

SIZES = {"train": [3, 1, 7, 2, 12, 1, 9, 4], "dev": [2, 1, 5], "news": [1, 4]}
"""Rows of each document of `corpus`."""
TOO_LONG = "cleaning drops this line " * 12
SUFFIXES = ("en", "de", "de2", "trees")
SEPARATORS = {"blank": [("", " \t", "\r", "")], "marker": [("<d>", "<d> ", "<d>\r", "")]}


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def corpus():
    """Return three sets, each a list of documents of rows (source, reference, second reference,
    tree). Cleaning drops some training rows.
    """
    draw = random.Random(3)

    def row():
        words = [draw.choice("abcdefgh") + draw.choice("xyz") for _ in range(draw.randint(2, 6))]
        return " ".join(words), " ".join(words[::-1]), " ".join(sorted(words)), tree(words)

    sets = {name: [[row() for _ in range(n)] for n in sizes] for name, sizes in SIZES.items()}
    documents = sets["train"]
    documents[1] = [(TOO_LONG, "x", "x", "")]  # a whole document
    documents[2][0] = (TOO_LONG, "x", "x", "")
    documents[4][5] = ("x", TOO_LONG, "x", "")
    documents[7][3] = (TOO_LONG, TOO_LONG, "x", "")
    return sets


def tree(words):
    middle = len(words) // 2
    halves = (" ".join(f"(Y {word})" for word in half) for half in (words[:middle], words[middle:]))
    return f"(S {' '.join(f'(X {half})' for half in halves)})"


def starts_of(documents):
    """Return the line at which each document starts; empty documents have none."""
    sizes = [*map(len, filter(None, documents))]
    return [0, *itertools.accumulate(sizes)][: len(sizes)]


def write_corpus(folder, sets, form):
    """Write a corpus whose documents are marked in one form; return the options of prep."""
    options = {"docs": [], "parses": []}
    for name, documents in sets.items():
        separator = SEPARATORS.get(form, [])
        rows = [row for document in documents for row in (*separator, *document)]
        paths = write(folder, name, rows + separator * 2 * (form == "blank"), SUFFIXES)
        options["parses"].append(f"{name}={paths[3]}")
        if form == "markup":
            paths = write_markup(folder, name, documents)
        else:
            marks = form if separator else write_marks(folder / f"{name}.doc", documents, form)
            options["docs"].append(f"{'test' if name == 'news' else name}={marks}")
        is_test = name == "news"
        options |= {"test": [",".join(map(str, paths[:3]))]} if is_test else {name: paths[:2]}
    return options


def write_marks(path, documents, form):
    """Write the numbers of the first lines, or the document id of each line."""
    ids = (f"doc {i} " for i, document in enumerate(documents) for _ in document)
    return write_lines(path, starts_of(documents) if form == "numbers" else ids)


def write_markup(folder, name, documents):
    """Write the sides of a set as SGM; a test set has two versions of its target."""
    paths = []
    for side, columns in (("en", [0]), ("de", [1, 2] if name == "news" else [1])):
        lines = ["<refset setid='x' srclang='en' trglang='de'>"]
        for column, (number, document) in itertools.product(columns, enumerate(documents)):
            lines += [f'<DOC docid="{number}" sysid="r{column}">', "<hl>"]
            lines += [f"<seg id={i}> {row[column]}  </seg>" for i, row in enumerate(document, 1)]
            lines += ["</hl>", "</DOC>"]
        paths.append(write_lines(folder / f"{name}.{side}.sgm", [*lines, "</refset>"]))
    return paths


def prepared(folder, options, name="run", **more):
    return prepare(folder, options, name, ["merges=10", "max_words=30"], **more)


def names(folder):
    return [path.name for path in folder.iterdir()]


def read_docs(run, name):
    return [int(line) for line in (run.prep / "docs" / f"{name}.txt").read_text().split()]


def test_all_forms_of_document_marks_give_the_same_files(tmp_path, small_shards, stderr):
    sets = corpus()
    runs = [
        prepared(tmp_path, write_corpus(tmp_path / form, sets, form), f"run-{form}")
        for form in ("numbers", "ids", "blank", "marker", "markup")
    ]
    first, *others = (run.manifest() for run in runs)
    for manifest in others:
        assert (manifest.files, manifest.fingerprint) == (first.files, first.fingerprint)
    wanted = {"train/00000.spans.idx", "news/00000.spans.idx", "text/news.ref1", "docs/news.txt"}
    assert wanted <= {*first.files}
    assert not [name for name in names(runs[2].path) if name.startswith("prep.")]
    for name, documents in sets.items():
        if name == "train":
            documents = [[row for row in rows if TOO_LONG not in row] for rows in documents]
        (entry,) = (entry for entry in first.sets if entry.name == name)
        starts = starts_of(documents)
        assert (entry.lines, entry.documents) == (sum(map(len, documents)), len(starts))
        assert read_docs(runs[0], name) == starts
    assert first.sets[0].parses["parsed"] == first.sets[0].lines == 35
    assert "documents of train: 7, of 5.0 lines" in stderr()


def test_document_starts_are_renumbered_when_cleaning_drops_lines(tmp_path, small_shards):
    lines = pairs(30)
    dropped = [0, 1, 2, 12, 20, 29]  # lines 0 to 2 are a whole document
    for i in dropped:
        lines[i] = ("", "x")
    # too long only when it is split into subwords
    lines[25] = " ".join(f"{i}qz{i}vw" for i in range(40)), lines[25][1] * 4
    starts = {"train": [0, 3, 12, 21, 25, 26, 29], "dev": [0, 2]}
    docs = [f"{name}={write_lines(tmp_path / name, rows)}" for name, rows in starts.items()]
    limits = ["merges=10", "max_ratio=40", "max_words=80", "max_subwords=150"]
    run = prepare(tmp_path, own_files(tmp_path, lines, pairs(5)), "run", limits, docs=docs)
    assert run.manifest().cleaning.dropped["too many subwords"]["pairs"] == 1
    kept = [i for i in range(30) if i not in (*dropped, 25)]
    assert read_docs(run, "train") == [kept.index(i) for i in (3, 13, 21, 26)]
    assert read_docs(run, "dev") == [0, 2]


@pytest.mark.parametrize(
    ("lines", "starts"),
    [
        ([0, 2, 4], [0, 2, 4]),
        ([0], [0]),
        (["b 1\r", " b 1", "a", "a", "b 2"], [0, 2, 4]),
        ([7, 7, 7, 7, 7], [0]),
        (range(5), [0, 1, 2, 3, 4]),  # as ids and as numbers
    ],
)
def test_file_of_documents_holds_line_numbers_or_ids(tmp_path, lines, starts):
    assert read_starts(write_lines(tmp_path / "starts", lines), 5) == starts


@pytest.mark.parametrize(
    ("text", "line"),
    [("x", 1), ("1 1", 1), ("0 0", 2), ("5", 1), ("0 5", 2), ("-1", 1), ("0 3 1", 3), ("0.5", 1)]
    + [("1 3", 1), ("a a b b", 1), ("0  3", 2), ("9" * 5000, 1)],
    ids=lambda value: str(value)[:9],
)
def test_wrong_line_number_of_a_document_is_refused(tmp_path, text, line):
    lines = text.split(" ")
    after = f", after {lines[line - 2]}" if line > 1 else ""
    message = f"'{lines[line - 1][:40]}' cannot start a document in a text of 5 lines{after}"
    caught = refused(DataError, message, read_starts, write_lines(tmp_path / "starts", lines), 5)
    assert caught.where == f"{tmp_path / 'starts'}, line {line}"
    count = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
    assert f"it has {count}: give a document id for each of the 5, or the l" in caught.hint


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("aabba", "document 'a' ended and comes back at line 5"),
        (" abcd", "line 1 names no document"),
        ("", "is empty"),
    ],
)
def test_wrong_file_of_documents_is_refused(tmp_path, lines, message):
    caught = refused(DataError, message, read_starts, write_lines(tmp_path / "ids", lines), 5)
    assert caught.hint and caught.where == str(tmp_path / "ids")


CHANGES = {
    "unmarked": lambda lines: ["no marker", *lines[1:]],
    "blanked": lambda lines: [*lines[:1], "", *lines[2:]],
    "moved": lambda lines: [*lines[:4], *lines[5:6], lines[4], *lines[6:]],
    "none": lambda lines: [line for line in lines if line.strip()],
    "all": lambda lines: [""] * len(lines),
    "shorter": lambda lines: lines[:-1],
}


@pytest.mark.parametrize(
    ("name", "suffix", "change", "message"),
    [
        ("train", "en", "blanked", "line 2 is blank in train.en but not in train.de [(]train set"),
        ("dev", "de", "blanked", "line 2 is blank in dev.de but not in dev.en [(]dev set"),
        ("news", "de2", "blanked", "line 2 is blank in news.de2 but not in news.en [(]news set"),
        ("train", "de", "moved", "line 5 is blank in train.en but not in train.de"),
        ("dev", "*", "none", "no line is blank, so none separates documents [(]dev set"),
        ("dev", "*", "all", "all lines are blank, so none separates documents [(]dev set"),
        ("train", "de", "shorter", "train.en has 49 lines but train.de has 48"),
        ("dev", "de", "unmarked", "line 1 is <d> in dev.en but not in dev.de [(]dev set"),
    ],
)
def test_separators_that_differ_between_sides_are_refused(tmp_path, name, suffix, change, message):
    """Lines are numbered as in the file, and nothing is written."""
    form = "marker" if change == "unmarked" else "blank"
    options = write_corpus(tmp_path / "in", corpus(), form)
    for path in (tmp_path / "in").glob(f"{name}.{suffix}"):
        write_lines(path, CHANGES[change](path.read_text("utf-8").split("\n")[:-1]))
    caught = refused(DataError, message, prepared, tmp_path, options)
    assert caught.hint
    if change != "shorter":  # its place is a pair of lines
        assert f"{tmp_path / 'in' / name}.{suffix.replace('*', 'en')}" in caught.where
    assert names(tmp_path) == ["in"]


def test_wrong_or_missing_file_of_documents_is_refused_before_anything_is_written(tmp_path):
    options = write_corpus(tmp_path / "in", corpus(), "numbers")
    path = write_lines(tmp_path / "in" / "dev.doc", [0, 99])
    caught = refused(DataError, "cannot start a document", prepared, tmp_path, options)
    assert "dev.doc" in str(caught)
    path.unlink()
    refused(DataError, "no such file: .*dev.doc", prepared, tmp_path, options)
    assert names(tmp_path) == ["in"]


def test_other_documents_are_another_corpus(tmp_path, stderr):
    """Documents of a test set do not change the fingerprint: no system depends on them."""
    options = write_corpus(tmp_path / "in", corpus(), "numbers")
    without = options | {"docs": []}
    by_name = options | {"docs": [docs.replace("test=", "news=") for docs in options["docs"]]}
    first = prepared(tmp_path, options).manifest().fingerprint
    prepared(tmp_path, options)
    prepared(tmp_path, by_name)
    assert stderr().count("up to date") == 2
    write_lines(tmp_path / "in" / "news.doc", [0, 2])
    message = "prepared differently [(]1 difference:"
    assert (
        "source.sets.news.docs" in refused(ConfigError, message, prepared, tmp_path, options).where
    )
    assert prepared(tmp_path, options, force=True).manifest().fingerprint == first
    write_lines(tmp_path / "in" / "dev.doc", [0, 4])
    assert prepared(tmp_path, options, force=True).manifest().fingerprint != first
    caught = refused(ConfigError, None, prepared, tmp_path, without)
    assert "source.sets.dev.docs" in caught.where and "-> -" in caught.where
    run = prepared(tmp_path, without, force=True)
    assert not (run.prep / "docs").exists()
    assert "documents" not in run.manifest().model_dump()["sets"][0]


def test_documents_of_a_set_given_twice_are_refused(tmp_path):
    """`test` names the only test set."""
    options = write_corpus(tmp_path / "in", corpus(), "blank")
    options["docs"].append("news=blank")
    refused(ConfigError, "'news' is named twice", prepared, tmp_path, options)


def test_markup_files_with_different_line_counts_are_refused(tmp_path):
    """Other differences: tests/corpora/test_unpack.py."""
    options = write_corpus(tmp_path / "in", corpus(), "markup")
    path = tmp_path / "in" / "dev.de.sgm"
    path.write_text(path.read_text("utf-8").replace("<seg id=5>", "", 1), "utf-8")
    message = r"dev.de.sgm has 7 lines but dev.en.sgm has more \(dev"
    refused(DataError, message, prepared, tmp_path, options)
    assert not (tmp_path / "run" / "prep").exists()


def test_documents_option_of_a_markup_set_is_refused(tmp_path):
    options = write_corpus(tmp_path / "in", corpus(), "markup") | {"docs": ["dev=blank"]}
    message = "the markup of the dev set says where its documents start"
    refused(ConfigError, message, prepared, tmp_path, options)


def test_marker_lines_without_the_documents_option_are_a_warning(tmp_path, stderr):
    options = write_corpus(tmp_path / "in", corpus(), "marker")
    prepared(tmp_path, options | {"docs": options["docs"][1:], "parses": []})
    printed = stderr()
    begins = f"{tmp_path}/in/train.en begins with <d>"
    assert f"{begins}: if such lines separate documents, say --docs train=marker" in printed
    assert "dev.en begins" not in printed


def test_blank_lines_suggest_the_documents_option_where_it_is_not_given(tmp_path, stderr):
    options = write_corpus(tmp_path / "in", corpus(), "blank")
    docs = [f"dev={write_lines(tmp_path / 'starts', [0])}"]
    prepared(tmp_path, options | {"docs": docs, "parses": []})
    printed = stderr().replace("\n", " ")
    assert "dev has blank lines" in printed and "--docs dev=blank" not in printed
    assert printed.count("--docs news=blank") == 1


def test_doubtful_document_marks_are_warnings(tmp_path, stderr):
    """The text itself as its document starts, and a set without starts beside sets with them."""
    options = write_corpus(tmp_path / "in", corpus(), "ids")
    docs = [options["docs"][0], f"dev={tmp_path / 'in' / 'dev.en'}"]
    prepared(tmp_path, options | {"docs": docs})
    printed = stderr().replace("\n", " ")
    assert "every line of dev is a document of its own" in printed
    assert "no document starts are given for news" in printed
    for wrong in ("every line of train", "given for train", "documents: no"):
        assert wrong not in printed


@pytest.mark.parametrize("form", ["numbers", "blank", "marker", "markup"])
def test_separator_lines_do_not_count_as_pairs_for_the_preset(tmp_path, form, monkeypatch):
    files = write_corpus(tmp_path / "in", corpus(), form)
    options = {"train": files["train"], "dev": files["dev"], "docs": files["docs"][:2]}
    for limit, preset in ((39, "base"), (40, "small")):
        monkeypatch.setattr(request, "MANY_PAIRS", limit)
        asked = request.Request(PrepOptions(dataset="mine", src="en", tgt="de", **options))
        assert asked.preset == preset
