"""A paper's printed numbers: the file's format, and the table of printed and measured numbers."""

import json

import pytest

from nmtkit.errors import ConfigError
from nmtkit.score import paper
from nmtkit.score.stored_scores import MetricScore, Scores, SystemScores
from nmtkit.tables.table import Estimate
from tests.refused import refused

from .conftest import csv_rows

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
  {printed = "Base", system = "base", numbers = {size = 60, En-De = 27.5, De-En = [30.1, 0.25]}},
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


def compared(table, dataset, result=RESULT):
    """Compare a table of a paper with the scores of a run of a data set."""
    return paper.compared(table, "score", paper.of_scores(result), dataset)


@pytest.fixture
def table(file):
    return paper.find_table(file, "one")


def test_printed_numbers_are_compared_on_the_same_test_set(table):
    found = compared(table, "toy-ende")
    assert rows(found) == [
        ["Base", "base", "En-De", 27.5, 2, 26.5, -1.0, "nrefs:1|tok:none"],
        ["Base + New", "base-new", "Δ", 0.5, 1, 2.0, 1.5, "nrefs:1|tok:none"],
        ["Base + New", "base-new", "En-De", 28.0, 1, 28.5, 0.5, "nrefs:1|tok:none"],
        ["T5", "not trained here", "En-De", 30.75, None, None, None, None],
    ]
    assert "paper_spread" not in found.csv() and "another corpus" not in found.title
    for part in ("tok. BLEU", "Somebody 2020", "read with care", "not alike"):
        assert part in found.markdown()


def test_printed_spread_is_a_column(table):
    (row,) = compared(table, "toy-deen").as_json()["rows"]
    assert (row["paper"], row["paper_spread"], row["measured"]) == (30.1, 0.25, 31.5)
    assert row["difference"] == pytest.approx(1.4)


@pytest.mark.parametrize("name", paper.PAPERS)
def test_papers_of_recipes_are_found_by_name_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("no toml")  # a file with the paper's name
    first, *_ = paper.load(paper.PAPERS[name]).tables.values()
    error = refused(ConfigError, "which of the paper's tables", paper.find_table, name, None)
    table = error.hint.split(": ")[1].split(", ")[0]
    assert paper.load(paper.PAPERS[name]).tables[table] == first


def test_unknown_paper_is_refused_with_the_known_names():
    error = refused(ConfigError, None, paper.find_table, "cargo", "table1")
    assert "caru" in error.hint and "name a file" in error.hint


@pytest.mark.parametrize(("dataset", "name"), [("toy-deen2", "news"), ("toy-ende", "olds")])
def test_numbers_of_another_corpus_have_no_difference_and_a_note(dataset, name, table):
    found = compared(table, dataset, RESULT.model_copy(update={"set": name}))
    assert [(row[0], row[2], row[5], row[6]) for row in rows(found)] == [
        ("Base", "En-De", 26.5, None),
        ("Base", "De-En", 31.5, None),
        ("Base + New", "Δ", 2.0, None),
        ("Base + New", "En-De", 28.5, None),
        ("T5", "En-De", None, None),
    ]
    assert "another corpus than the paper's" in found.title
    note = (
        f"measured on {dataset} {name}, printed for toy-ende news, toy-deen news: no difference is"
        " shown, since the corpora differ"
    )
    assert note in "\n".join(found.notes)


def test_measured_number_is_shown_once_beside_columns_of_other_corpora():
    columns = [{"name": name, "dataset": "other", "score": "bleu"} for name in "ab"]
    found = compared(printed(columns, TWICE, ELSEWHERE), "toy-ende")
    assert [(row[1], row[2], row[5]) for row in rows(found)] == [
        ("base", "a", 31.5),
        ("base", "b", None),
        ("not in this comparison", "a", None),
    ]


@pytest.fixture
def with_paper(file, fake, capsys):
    """Scores a run with the paper's table; returns stdout, stderr."""
    fake.add("base", 0.2)
    fake.add("base-new-s3", 0.1)

    def call(**options):
        fake.score(paper=file, table="one", **options)
        return capsys.readouterr()

    return call


def test_paper_table_is_printed_and_written(with_paper, fake):
    assert "Table 1, printed and measured (another corpus" in with_paper().out
    assert {path.suffix for path in fake.scores.glob("paper.*")} == {".md", ".tex", ".csv"}
    measured = [row["measured"] for row in fake.csv("paper.csv")[:2]]
    scores = fake.result()["systems"][0]["scores"]
    assert measured == [str(scores[key]["value"]) for key in ("tokenized_bleu", "bleu")]


def test_paper_table_is_printed_as_csv_and_json(with_paper):
    with_paper()
    out, err = with_paper(output_format="csv")
    assert "up to date" in err
    assert [row["set"] for row in csv_rows(out.split("\n\n")[-1])] == ["test"] * 5
    (result,) = json.loads(with_paper(output_format="json").out)
    assert result["paper"]["rows"][4]["system"] == "not trained here"


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
def test_wrong_file_is_refused_with_a_hint(old, new, message, hint, file):
    assert FILE.count(old) == 1
    file.write_text(FILE.replace(old, new), "utf-8")
    caught = refused(ConfigError, None, paper.find_table, file, "one")
    assert message in caught.message and hint in (caught.hint or "")
    assert str(caught.where).startswith(str(file))


def test_unknown_or_missing_table_is_refused_with_the_known_ones(file):
    for name, message, hint in (
        (None, "which of the paper's tables", "one of: one, sizes"),
        ("on", "no table 'on'", "did you mean 'one'"),
        ("sizes", "no scores of translations", "these have: one"),
    ):
        assert hint in refused(ConfigError, message, paper.find_table, file, name).hint
    with pytest.raises(ConfigError, match="cannot read the paper's numbers"):
        paper.find_table(file.parent / "none.toml", "one")


@pytest.fixture
def costs(file):
    """Compares costs of three systems with the paper; returns the table."""
    numbers = {"base-s1": {"parameters": 61.0}, "base-s2": {"parameters": 63.0}}
    numbers["other"] = {"parameters": 1.0}

    def call(dataset, numbers=numbers):
        measured = paper.Measured(numbers, "", {"": "counted"}, ["by hand"])
        return paper.compared(paper.find_table(file, "one", "cost"), "cost", measured, dataset)

    return call


def test_costs_of_an_analysis_are_compared_on_the_same_corpus(costs):
    found = costs("toy-ende")
    assert rows(found) == [
        ["Base", "base", "size", 60.0, 2, 62.0, 2.0, "counted"],
        ["Base + New", "not in this comparison", "size", 70.0, None, None, None, None],
    ]
    assert "by hand" in found.notes and "another corpus" not in found.title


def test_costs_that_were_not_measured_or_are_of_another_corpus_have_no_difference(costs):
    assert rows(costs("toy-ende", {"base": {}}))[0][1] == "not measured"
    elsewhere = costs("mine")
    assert [row[6] for row in rows(elsewhere)] == [None, None]
    assert "measured on mine, printed for toy-ende" in "\n".join(elsewhere.notes)


def test_costs_that_depend_on_the_machine_have_no_difference():
    speeds = {"name": "steps/s", "cost": paper.OF_MACHINES}
    base = {"printed": "Base", "system": "base", "numbers": {"steps/s": 3.66}}
    measured = paper.Measured({"base": {paper.OF_MACHINES: 1.5}}, "", {"": "here"})
    (row,) = rows(paper.compared(printed([speeds], base), "cost", measured, ""))
    assert (row[3], row[5], row[6]) == (3.66, 1.5, None)


def test_table_without_numbers_of_the_analysis_is_refused(file):
    assert paper.find_table("", "", "cost") is None
    refused(ConfigError, "--table needs --paper", paper.find_table, "", "one", "cost")
    for kind, what in (
        ("task", "accuracies of probing tasks"),
        ("group", "gains by length"),
    ):
        with pytest.raises(ConfigError, match=f"the paper's table 'one' has no {what}") as caught:
            paper.find_table(str(file), "one", kind)
        assert caught.value.hint == "these have: none"


@pytest.mark.parametrize("baseline", ["base-s1", "base-s3"])
def test_gains_are_differences_to_the_mean_of_the_baselines_seeds(baseline):
    columns = [{"name": "BLEU", "score": "bleu"}, {"name": "Δ", "score": "bleu", "gain": True}]
    numbers = [
        {"printed": "New", "system": "new", "numbers": {"BLEU": 29.0, "Δ": 0.89}},
        {"printed": "Base", "system": "base", "numbers": {"BLEU": 28, "Δ": 0.0}},
    ]
    values = {"base-s1": 27.0, "base-s2": 28.0, "base-s3": 29.0}
    values |= {"new-s1": 28.0, "new-s2": 29.0, "new_seed3": 30.0, "base-large": 99.0}
    systems = [system(name, bleu=value) for name, value in values.items()]
    updates = {"set": "", "baseline": baseline, "systems": systems}
    found = compared(printed(columns, *numbers), "", RESULT.model_copy(update=updates))
    assert [(row[2], row[5], row[6]) for row in rows(found)] == [
        ("BLEU", 29.0, 0.0),
        ("Δ", 1.0, pytest.approx(0.11)),
        ("BLEU", 28.0, 0.0),
        ("Δ", None, None),  # the baseline's seeds gain nothing over their mean
    ]
    assert any("gains: difference to base-s1, base-s2, base-s3" in note for note in found.notes)


def test_replaced_baseline_and_length_groups_are_reported(fake, stderr):
    fake.add_all(base=0.2, new=0.1)
    fake.score(against="new", by_length=True)
    assert "are replaced by" not in stderr()
    fake.score()
    err = stderr()
    assert "test: scores against new are replaced by scores against base (--against)" in err
    fake.score(buckets="pr")
    assert "the length groups are no longer dc (--buckets)" in stderr()
    fake.score(buckets="pr")
    assert "no longer" not in stderr()
