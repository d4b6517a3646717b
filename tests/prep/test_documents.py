"""Where documents start: told by a file, by lines between them or by markup, carried through
cleaning, refused where it can't be right.
"""

import random
from pathlib import Path

import pytest

from nmtkit.corpora.document_starts import read_starts
from nmtkit.errors import ConfigError, DataError
from nmtkit.prep import request
from nmtkit.prep.options import PrepOptions
from tests.prep.corpora import own_files, pairs, prepare
from tests.refused import refused

MANY = "cleaning takes this line away " * 12


def written(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def corpus(seed=3):
    """Three sets, each a list of documents of rows (source, reference, second reference, tree);
    some training rows do not survive cleaning.
    """
    draw = random.Random(seed)
    sets = {}
    for name, sizes in {
        "train": [3, 1, 7, 2, 12, 1, 9, 4],
        "dev": [2, 1, 5],
        "news": [1, 4],
    }.items():
        sets[name] = []
        for size in sizes:
            words = [
                [
                    f"{draw.choice('abcdefgh')}{draw.choice('xyz')}"
                    for _ in range(draw.randint(2, 6))
                ]
                for _ in range(size)
            ]
            sets[name].append(
                [
                    (" ".join(w), " ".join(reversed(w)), " ".join(sorted(w)), f"(S {tree(w)})")
                    for w in words
                ]
            )
    documents = sets["train"]
    documents[1] = [(MANY, "x", "x", "")]  # a whole document
    documents[2][0] = (MANY, "x", "x", "")
    documents[4][5] = ("x", MANY, "x", "")
    documents[7][3] = (MANY, MANY, "x", "")
    return sets


def tree(words):
    middle = len(words) // 2
    return " ".join(
        f"(X {' '.join(f'(Y {word})' for word in part)})"
        for part in (words[:middle], words[middle:])
        if part
    )


def kept(name, row):
    return name != "train" or MANY not in row


def write_corpus(folder, sets, form):
    """Files of a corpus in one form of telling its documents; returns the options of prep."""
    folder.mkdir(parents=True)
    options = {"docs": [], "parses": []}
    for name, documents in sets.items():
        separator = {
            "blank": [("", " \t", "\r", "")],
            "marker": [("<d>", "<d> ", "<d>\r", "")],
        }.get(form, [])
        rows = [
            row
            for number, document in enumerate(documents)
            for row in (*(separator * bool(number)), *document)
        ]
        rows = [*separator, *rows, *separator * 2] if form == "blank" else [*separator, *rows]
        for i, suffix in enumerate(("en", "de", "de2", "trees")):
            written(folder / f"{name}.{suffix}", [row[i] for row in rows])
            if form == "markup" and suffix != "trees":
                columns = [1, 2][: 1 + (name == "news")] if suffix == "de" else [i]
                (folder / f"{name}.{suffix}.sgm").write_text(marked_up(documents, columns), "utf-8")
        options["parses"].append(f"{name}={folder / name}.trees")
        sizes = list(map(len, documents))
        lines = {
            "numbers": [sum(sizes[:i]) for i in range(len(sizes))],
            "ids": [f"doc {i} " for i, size in enumerate(sizes) for _ in range(size)],
        }
        told = (
            form
            if form in {"blank", "marker"}
            else written(folder / f"{name}.doc", lines.get(form, []))
        )
        options["docs"].append(f"{'test' if name == 'news' else name}={told}")
    options |= {name: (folder / f"{name}.en", folder / f"{name}.de") for name in ("train", "dev")}
    if form == "markup":
        train, dev = (
            tuple(Path(f"{path}.sgm") for path in options[name]) for name in ("train", "dev")
        )
        return options | {
            "docs": [],
            "train": train,
            "dev": dev,
            "test": [f"{folder}/news.en.sgm,{folder}/news.de.sgm"],
        }
    return options | {
        "test": [",".join(str(folder / f"news.{suffix}") for suffix in ("en", "de", "de2"))]
    }


def marked_up(documents, columns):
    """Documents as SGM, the columns as versions of one side."""
    lines = ["<refset setid='x' srclang='en' trglang='de'>"]
    for column in columns:
        for number, document in enumerate(documents):
            lines += [f'<DOC docid="{number}" sysid="r{column}">', "<hl>"]
            lines += [
                f"<seg id={i}> {row[column]}  </seg>" for i, row in enumerate(document, 1)
            ] + ["</hl>", "</DOC>"]
    return "\n".join([*lines, "</refset>\n"])


def prepared(folder, options, name="run", **more):
    return prepare(folder, options, name, ["merges=10", "max_words=30"], **more)


def test_all_ways_to_tell_the_documents_are_one(tmp_path, small_shards, stderr):
    """The prep folders are the same byte for byte, parses and references included, and the
    boundaries those of the rows that are left.
    """
    sets = corpus()
    runs = {
        form: prepared(tmp_path, write_corpus(tmp_path / form, sets, form), f"run-{form}")
        for form in ("numbers", "ids", "blank", "marker", "markup")
    }
    manifests = {form: run.manifest().model_dump() for form, run in runs.items()}
    blank = manifests["blank"]
    for manifest in manifests.values():
        for key in ("files", "fingerprint"):
            assert manifest[key] == blank[key]
    assert {"train/00000.spans.idx", "news/00000.spans.idx", "text/news.ref1", "docs/news.txt"} <= {
        *blank["files"]
    }
    assert blank["sets"][0]["parses"]["parsed"] == blank["sets"][0]["lines"] == 35
    assert [
        path.name for path in runs["blank"].path.iterdir() if path.name.startswith("prep.")
    ] == []
    for name, documents in sets.items():
        starts, rows = [], 0
        for document in documents:
            left = sum(kept(name, row) for row in document)
            starts += [rows] * bool(left)
            rows += left
        entry = next(one for one in blank["sets"] if one["name"] == name)
        assert (entry["lines"], entry["documents"]) == (rows, len(starts))
        for run in runs.values():
            assert (run.prep / "docs" / f"{name}.txt").read_text().split() == list(map(str, starts))
    assert blank["sets"][0]["documents"] == 7
    assert "documents of train: 7, of 5.0 lines" in stderr()


def test_documents_are_renumbered_by_the_lines_kept(tmp_path, small_shards):
    lines = pairs(30)
    for i in (0, 1, 2, 12, 20, 29):  # document 0-2 vanishes, lines of others too
        lines[i] = ("", "x")
    lines[25] = (
        " ".join(f"{i}qz{i}vw" for i in range(40)),
        lines[25][1] * 4,
    )  # goes only once it is segmented
    files = own_files(tmp_path, lines, pairs(5))
    docs = {"train": [0, 3, 12, 21, 25, 26, 29], "dev": [0, 2]}
    told = [f"{name}={written(tmp_path / name, starts)}" for name, starts in docs.items()]
    limits = ["merges=10", "max_ratio=40", "max_words=80", "max_subwords=150"]
    run = prepare(tmp_path, files, "run", limits, docs=told)
    assert run.manifest().cleaning.dropped["too many subwords"]["pairs"] == 1
    kept = [i for i in range(30) if i not in (0, 1, 2, 12, 20, 29, 25)]
    starts = [int(line) for line in (run.prep / "docs" / "train.txt").read_text().split()]
    assert starts == [kept.index(3), kept.index(13), kept.index(21), kept.index(26)]
    assert (run.prep / "docs" / "dev.txt").read_text() == "0\n2\n"


def test_line_numbers_and_ids(tmp_path):
    assert read_starts(written(tmp_path / "numbers", [0, 2, 4]), 5) == [0, 2, 4]
    assert read_starts(written(tmp_path / "one", [0]), 5) == [0]
    assert read_starts(written(tmp_path / "ids", ["b 1\r", " b 1", "a", "a", "b 2"]), 5) == [
        0,
        2,
        4,
    ]
    assert read_starts(written(tmp_path / "same", [7, 7, 7, 7, 7]), 5) == [0]
    assert read_starts(written(tmp_path / "both", range(5)), 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "line"),
    [("x", 1), ("1 1", 1), ("0 0", 2), ("5", 1), ("0 5", 2), ("-1", 1), ("0 3 1", 3), ("0.5", 1)]
    + [("1 3", 1), ("a a b b", 1), ("0  3", 2), ("9" * 5000, 1)],
    ids=lambda value: str(value)[:9],
)
def test_line_numbers_that_are_none(tmp_path, text, line):
    lines = text.split(" ")
    after = f", after {lines[line - 2]}" if line > 1 else ""
    message = f"'{lines[line - 1][:40]}' cannot start a document in a text of 5 lines{after}"
    caught = refused(DataError, message, read_starts, written(tmp_path / "starts", lines), 5)
    assert caught.where == f"{tmp_path / 'starts'}, line {line}"
    count = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
    assert f"it has {count}: give a document id for each of the 5, or the l" in caught.hint
    refused(DataError, "is empty", read_starts, written(tmp_path / "starts", []), 5)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("aabba", "document 'a' ended and comes back at line 5"),
        (" abcd", "line 1 names no document"),
    ],
)
def test_ids_that_are_none(tmp_path, ids, message):
    caught = refused(DataError, message, read_starts, written(tmp_path / "ids", ids), 5)
    assert (caught.where, bool(caught.hint)) == (str(tmp_path / "ids"), True)


@pytest.mark.parametrize(
    ("name", "suffix", "how", "message"),
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
def test_lines_that_cannot_separate(tmp_path, name, suffix, how, message):
    """One clear error, of a line as the person's editor numbers it, and nothing is left behind."""
    form = "marker" if how == "unmarked" else "blank"
    options = write_corpus(tmp_path / "in", corpus(), form)
    changes = {
        "unmarked": lambda lines: ["no marker", *lines[1:]],
        "blanked": lambda lines: [*lines[:1], "", *lines[2:]],
        "moved": lambda lines: [*lines[:4], *lines[5:6], lines[4], *lines[6:]],
        "none": lambda lines: [line for line in lines if line.strip()],
        "all": lambda lines: [""] * len(lines),
        "shorter": lambda lines: lines[:-1],
    }
    for path in (tmp_path / "in").glob(f"{name}.{suffix}"):
        written(path, changes[how](path.read_text("utf-8").split("\n")[:-1]))
    caught = refused(DataError, message, prepared, tmp_path, options)
    assert caught.hint
    if how != "shorter":  # that place is a pair of lines
        assert f"{tmp_path / 'in' / name}.{suffix.replace('*', 'en')}" in caught.where
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_file_of_documents_that_does_not_fit(tmp_path):
    options = write_corpus(tmp_path / "in", corpus(), "numbers")
    path = tmp_path / "in" / "dev.doc"
    written(path, [0, 99])
    caught = refused(DataError, "cannot start a document", prepared, tmp_path, options)
    assert "dev.doc" in str(caught)
    path.unlink()
    refused(DataError, "no such file: .*dev.doc", prepared, tmp_path, options)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_other_documents_are_another_corpus(tmp_path, stderr):
    options = write_corpus(tmp_path / "in", corpus(), "numbers")
    first = prepared(tmp_path, options).manifest().fingerprint
    prepared(tmp_path, options)
    prepared(
        tmp_path, options | {"docs": [told.replace("test=", "news=") for told in options["docs"]]}
    )
    assert stderr().count("up to date") == 2

    written(tmp_path / "in" / "news.doc", [0, 2])
    caught = refused(
        ConfigError, "prepared differently [(]1 difference:", prepared, tmp_path, options
    )
    assert "source.sets.news.docs" in caught.where
    assert (
        prepared(tmp_path, options, force=True).manifest().fingerprint == first
    )  # of a test set: no system depends on it
    written(tmp_path / "in" / "dev.doc", [0, 4])
    assert prepared(tmp_path, options, force=True).manifest().fingerprint != first
    caught = refused(ConfigError, None, prepared, tmp_path, options | {"docs": []})
    assert "source.sets.dev.docs" in caught.where and "-> -" in caught.where
    without = prepared(tmp_path, options | {"docs": []}, force=True)
    assert (
        not (without.prep / "docs").exists()
        and "documents" not in without.manifest().model_dump()["sets"][0]
    )


def test_test_is_named_once(tmp_path):
    options = write_corpus(tmp_path / "in", corpus(), "blank")
    with pytest.raises(ConfigError, match="'news' is named twice"):
        prepared(tmp_path, options | {"docs": [*options["docs"], "news=blank"]})


def test_markup_that_is_not_parallel(tmp_path):
    """What else may not match: tests/corpora/test_unpack.py."""
    options = write_corpus(tmp_path / "in", corpus(), "markup")
    path = tmp_path / "in" / "dev.de.sgm"
    path.write_text(path.read_text("utf-8").replace("<seg id=5>", "", 1), "utf-8")
    with pytest.raises(DataError, match=r"dev.de.sgm has 7 lines but dev.en.sgm has more \(dev"):
        prepared(tmp_path, options)
    assert not (tmp_path / "run" / "prep").exists()


def test_markup_needs_no_documents_and_markers_that_nobody_tells_of_are_doubted(tmp_path, stderr):
    options = write_corpus(tmp_path / "markup", corpus(), "markup")
    with pytest.raises(
        ConfigError, match="the markup of the dev set says where its documents start"
    ):
        prepared(tmp_path, options | {"docs": ["dev=blank"]})
    options = write_corpus(tmp_path / "marker", corpus(), "marker")
    prepared(tmp_path, options | {"docs": options["docs"][1:], "parses": []})
    said = stderr()
    assert (
        f"{tmp_path}/marker/train.en begins with <d>: if such lines separate documents, say --docs"
        " train=marker" in said
    )
    assert "dev.en begins" not in said


def test_blank_lines_that_may_separate_documents_are_suggested(tmp_path, stderr):
    """Only if nothing else says where the documents start."""
    options = write_corpus(tmp_path / "in", corpus(), "blank")
    starts = tmp_path / "starts"
    starts.write_text("0\n", "utf-8")
    prepared(tmp_path, options | {"docs": [f"dev={starts}"], "parses": []})
    said = stderr().replace("\n", " ")
    assert "dev has blank lines" in said and "--docs dev=blank" not in said
    assert said.count("--docs news=blank") == 1


def test_documents_that_may_be_meant_otherwise_are_warned_of(tmp_path, stderr):
    """The text itself given as its document starts, and a set of which nothing is said beside
    others.
    """
    options = write_corpus(tmp_path / "in", corpus(), "ids")
    docs = [options["docs"][0], f"dev={tmp_path / 'in' / 'dev.en'}"]
    prepared(tmp_path, options | {"docs": docs})
    warned = stderr().replace("\n", " ")
    assert "every line of dev is a document of its own" in warned
    assert "no document starts are given for news" in warned
    for wrong in ("every line of train", "given for train", "documents: no"):
        assert wrong not in warned


@pytest.mark.parametrize("form", ["numbers", "blank", "marker", "markup"])
def test_what_separates_documents_is_no_pair(tmp_path, form, monkeypatch):
    """By which the preset is chosen."""
    files = write_corpus(tmp_path / "in", corpus(), form)
    options = {"train": files["train"], "dev": files["dev"], "docs": files["docs"][:2]}
    for limit, preset in ((39, "base"), (40, "small")):
        monkeypatch.setattr(request, "MANY_PAIRS", limit)
        asked = request.Request(PrepOptions(dataset="mine", src="en", tgt="de", **options))
        assert asked.preset == preset
