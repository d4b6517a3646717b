"""A paper's printed numbers: what its file may hold, and the table that has them beside measured
ones.
"""

import csv
import io
import json
from dataclasses import replace

import pytest

from nmtkit.errors import ConfigError
from nmtkit.score import paper
from nmtkit.score.stored_scores import MetricScore, Scores, SystemScores
from nmtkit.tables.table import Estimate
from tests.manifests import read_json
from tests.refused import refused

FILE = """
citation = "Somebody 2020, Something"

[tables.one]
title = "Table 1"
metric = "BLEU of tokens"
remarks = ["read with care"]
columns = [
  { name = "size", dataset = "toy-ende", cost = "parameters" },
  { name = "Δ", dataset = "toy-ende", set = "news", score = "tokenized_bleu", gain = true },
  { name = "En-De", dataset = "toy-ende", set = "news", score = "tokenized_bleu" },
  { name = "De-En", dataset = "toy-deen", set = "news", score = "bleu" },
]
rows = [
  { printed = "Base", system = "base", numbers = { size = 60, En-De = 27.5, De-En = [30.1, 0.25] } },
  { printed = "Base + New", system = "base-new", numbers = { size = 70, En-De = 28, "Δ" = 0.5 } },
  { printed = "T5", numbers = { En-De = 30.75 } },
]

[tables.sizes]
title = "Table 2"
metric = "millions"
columns = [{ name = "size" }]
rows = [{ printed = "Base", numbers = { size = 60 } }]
"""
SCORES = {
    "base-s1": (26.0, 31.0),
    "base-s2": (27.0, 32.0),
    "base-new-s1": (28.5, 33.5),
    "base-newer": (90.0, 90.0),
}


def system(name, **values):
    scores = {key: MetricScore("", value, None, None, "", {}) for key, value in values.items()}
    return SystemScores(name, scores, Estimate(1.0), 0, {}, {})


RESULT = Scores.model_construct(
    set="news",
    baseline="base-s1",
    signatures={"bleu": "nrefs:1|tok:13a", "tokenized_bleu": "nrefs:1|tok:none"},
    systems=[system(name, tokenized_bleu=a, bleu=b) for name, (a, b) in SCORES.items()],
    remarks=["not alike"],
)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "paper.toml").write_text(FILE, "utf-8")
    return tmp_path / "paper.toml"


TWICE = {"printed": "Base", "system": "base", "numbers": {"a": 20.0, "b": 30.0}}
ELSEWHERE = {"printed": "Other", "system": "other", "numbers": {"a": 20.0}}
KEYS = ("row", "system", "column", "paper", "seeds", "measured", "difference", "signature")


def printed(columns, *rows):
    return paper.Printed("", paper.PaperTable(title="", metric="", columns=columns, rows=rows))


def rows(table):
    return [[row[key] for key in KEYS] for row in table.as_json()["rows"]]


def test_the_column_of_the_same_test_set_is_compared(file):
    found = paper.compared(
        paper.find_table(file, "one"), "score", paper.of_scores(RESULT), "toy-ende"
    )
    assert rows(found) == [
        ["Base", "base", "En-De", 27.5, 2, 26.5, -1.0, "nrefs:1|tok:none"],
        ["Base + New", "base-new", "Δ", 0.5, 1, 2.0, 1.5, "nrefs:1|tok:none"],
        ["Base + New", "base-new", "En-De", 28.0, 1, 28.5, 0.5, "nrefs:1|tok:none"],
        ["T5", "not trained here", "En-De", 30.75, None, None, None, None],
    ]
    assert "paper_spread" not in found.csv() and "another corpus" not in found.title
    for shown in ("tok. BLEU", "Somebody 2020", "read with care", "not alike"):
        assert shown in found.markdown()
    spread = paper.compared(
        paper.find_table(file, "one"), "score", paper.of_scores(RESULT), "toy-deen"
    )
    assert [
        (row["paper"], row["paper_spread"], row["measured"], row["difference"])
        for row in spread.as_json()["rows"]
    ] == [(30.1, 0.25, 31.5, pytest.approx(1.4))]


@pytest.mark.parametrize("name", paper.PAPERS)
def test_a_paper_of_a_recipe_has_a_name(name, tmp_path, monkeypatch):
    """From any folder, also one that has a file of this name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("no toml")
    first, *_ = paper.load(paper.PAPERS[name]).tables.values()
    error = refused(ConfigError, "which of the paper's tables", paper.find_table, name, None)
    table = error.hint.split(": ")[1].split(", ")[0]
    assert paper.load(paper.PAPERS[name]).tables[table] == first


def test_an_unknown_name_is_answered_with_those_that_exist():
    error = refused(ConfigError, None, paper.find_table, "cargo", "table1")
    assert "caru" in error.hint and "name a file" in error.hint


@pytest.mark.parametrize(("dataset", "name"), [("toy-deen2", "news"), ("toy-ende", "olds")])
def test_of_another_corpus_there_is_no_difference_and_it_is_said(dataset, name, file):
    result = RESULT.model_copy(update={"set": name})
    found = paper.compared(paper.find_table(file, "one"), "score", paper.of_scores(result), dataset)
    assert [(row[0], row[2], row[5], row[6]) for row in rows(found)] == [
        *(("Base", "En-De", 26.5, None), ("Base", "De-En", 31.5, None)),
        *(
            ("Base + New", "Δ", 2.0, None),
            ("Base + New", "En-De", 28.5, None),
            ("T5", "En-De", None, None),
        ),
    ]
    assert "another corpus than the paper's" in found.title
    columns = [{"name": n, "score": "bleu"} for n in "ab"]
    found_twice = paper.compared(
        printed(columns, TWICE, ELSEWHERE), "score", paper.of_scores(result), dataset
    )
    assert [(row[1], row[2], row[5]) for row in rows(found_twice)] == [
        *(("base", "a", 31.5), ("base", "b", None), ("not in this comparison", "a", None)),
    ]
    said = (
        f"measured on {dataset} {name}, printed for toy-ende news, toy-deen news: no difference is"
        " shown, since the corpora differ"
    )
    assert any(said in note for note in found.notes)


def test_a_call_keeps_and_prints_the_table_and_the_next_without_it_prints_none(file, fake, capsys):
    fake.add("base", 0.2)
    fake.add("base-new-s3", 0.1)
    kept = fake.run.path / "score" / "test"
    fake.score(paper=file, table="one")
    assert "Table 1, printed and measured (another corpus" in capsys.readouterr().out
    assert {path.suffix for path in kept.glob("paper.*")} == {".md", ".tex", ".csv"}
    scores = read_json(kept / "scores.json")
    measured = [
        row["measured"]
        for row in csv.DictReader((kept / "paper.csv").read_text("utf-8").splitlines())
    ]
    assert measured[:2] == [
        str(scores["systems"][0]["scores"][key]["value"]) for key in ("tokenized_bleu", "bleu")
    ]
    fake.score(paper=file, table="one", output_format="csv")
    captured = capsys.readouterr()
    last = captured.out.split("\n\n")[-1]
    assert (
        "up to date" in captured.err
        and [row["set"] for row in csv.DictReader(io.StringIO(last))] == ["test"] * 5
    )
    fake.score(paper=file, table="one", output_format="json")
    assert (
        json.loads(capsys.readouterr().out)[0]["paper"]["rows"][4]["system"] == "not trained here"
    )
    fake.score()
    assert list(kept.glob("paper.*")) and "printed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        (
            'score = "bleu"',
            'score = "blue"',
            "unknown score 'blue' of the column 'De-En'",
            "did you mean 'bleu'",
        ),
        (
            "numbers = { En-De = 30.75 }",
            "numbers = { En-Du = 30.75 }",
            "the row 'T5' has a number for an unknown column: 'En-Du'",
            "did you mean 'En-De'",
        ),
        ('system = "base-new"', 'system = "base"', "more than one entry", "once"),
        (
            'cost = "parameters"',
            'cost = "parameter"',
            "unknown cost 'parameter' of the column 'size'",
            "did you mean 'parameters'",
        ),
        (
            'cost = "parameters"',
            'cost = "parameters", task = "x"',
            "the column 'size' has several kinds",
            "one of: score, task, cost",
        ),
        (
            'score = "tokenized_bleu", gain = true',
            "gain = true",
            "the column 'Δ' has a gain, but no score",
            "name it",
        ),
        ("columns = [{", "columns = {", "not valid TOML", ""),
        (
            'score = "bleu" }',
            'scoer = "bleu" }',
            "tables.one.columns.3.scoer",
            "did you mean 'score'",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused(old, new, message, hint, file):
    assert FILE.count(old) == 1
    file.write_text(FILE.replace(old, new), "utf-8")
    caught = refused(ConfigError, None, paper.find_table, file, "one")
    assert message in caught.message and hint in (caught.hint or "")
    assert str(caught.where).startswith(str(file))


def test_which_table_is_asked_for(file):
    for name, message, hint in (
        (None, "which of the paper's tables", "one of: one, sizes"),
        ("on", "no table 'on'", "did you mean 'one'"),
        ("sizes", "no scores of translations", "these have: one"),
    ):
        assert hint in refused(ConfigError, message, paper.find_table, file, name).hint
    with pytest.raises(ConfigError, match="cannot read the paper's numbers"):
        paper.find_table(file.parent / "none.toml", "one")


def test_numbers_of_an_analysis(file):
    """Of the same corpus with a difference, but of what tells of the machine; a mean over seeds;
    of another corpus once and without one.
    """
    told = paper.find_table(file, "one", "cost")
    known = {
        "base-s1": {"parameters": 61.0},
        "base-s2": {"parameters": 63.0},
        "other": {"parameters": 1.0},
    }
    ours = paper.Measured(known, "", {"": "counted"}, ["by hand"])
    same = paper.compared(told, "cost", ours, "toy-ende")
    assert rows(same) == [
        ["Base", "base", "size", 60.0, 2, 62.0, 2.0, "counted"],
        ["Base + New", "not in this comparison", "size", 70.0, None, None, None, None],
    ]
    assert "by hand" in same.notes and "another corpus" not in same.title
    unmeasured = paper.compared(told, "cost", replace(ours, numbers={"base": {}}), "toy-ende")
    assert rows(unmeasured)[0][1] == "not measured"
    elsewhere = paper.compared(told, "cost", ours, "mine")
    assert [row[6] for row in rows(elsewhere)] == [
        None,
        None,
    ] and "measured on mine, printed for toy-ende" in "\n".join(elsewhere.notes)
    speeds = {"name": "steps/s", "cost": paper.OF_MACHINES}
    base = {"printed": "Base", "system": "base", "numbers": {"steps/s": 3.66}}
    ours = paper.Measured({"base": {paper.OF_MACHINES: 1.5}}, "", {"": "here"})
    table = paper.compared(printed([speeds], base), "cost", ours, "")
    (row,) = rows(table)
    assert (row[3], row[5], row[6]) == (3.66, 1.5, None)


def test_an_analysis_is_asked_for_a_table_that_has_its_kind(file):
    assert paper.find_table("", "", "cost") is None
    refused(ConfigError, "--table needs --paper", paper.find_table, "", "one", "cost")
    for kind, what in (
        ("task", "accuracies of probing tasks"),
        ("group", "gains by length"),
    ):
        with pytest.raises(ConfigError, match=f"the paper's table 'one' has no {what}") as caught:
            paper.find_table(str(file), "one", kind)
        assert caught.value.hint == "these have: none"


def test_gains_are_over_the_mean_of_the_baselines_seeds():
    """Difference of the means that stand in the same table, whichever seed is the baseline of
    the call.
    """
    columns = [{"name": "BLEU", "score": "bleu"}, {"name": "Δ", "score": "bleu", "gain": True}]
    numbers = [
        {"printed": "New", "system": "new", "numbers": {"BLEU": 29.0, "Δ": 0.89}},
        {"printed": "Base", "system": "base", "numbers": {"BLEU": 28}},
    ]
    told = printed(columns, *numbers)
    values = {"base-s1": 27.0, "base-s2": 28.0, "base-s3": 29.0}
    values |= {"new-s1": 28.0, "new-s2": 29.0, "new_seed3": 30.0, "base-large": 99.0}
    systems = [system(name, bleu=value) for name, value in values.items()]
    for baseline in ("base-s1", "base-s3"):
        result = Scores.model_construct(
            set="", baseline=baseline, signatures={"bleu": "s"}, systems=systems, remarks=[]
        )
        found = paper.compared(told, "score", paper.of_scores(result), "")
        assert [(row[2], row[5], row[6]) for row in rows(found)] == [
            ("BLEU", 29.0, 0.0),
            ("Δ", 1.0, pytest.approx(0.11)),
            ("BLEU", 28.0, 0.0),
        ]
        assert any("gains: difference to base-s1, base-s2, base-s3" in note for note in found.notes)


def test_what_a_call_drops_of_the_one_before_is_said(fake, stderr):
    fake.add("base", 0.2)
    fake.add("new", 0.1)
    fake.score(against="new", by_length=True)
    assert "give way" not in stderr()
    fake.score()
    err = stderr()
    assert "test: scores against new are replaced by scores against base (--against)" in err
    fake.score(buckets="pr")
    assert "the length groups are no longer dc (--buckets)" in stderr()
    fake.score(buckets="pr")
    assert "no longer" not in stderr()
