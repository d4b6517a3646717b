"""Expressions translated as the reference does: hand-made sets whose answers are known, through
the stage and the command line.
"""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.analyze import phrases
from nmtkit.errors import ConfigError, DataError
from nmtkit.measures.expressions import parse
from tests.refused import refused
from tests.score.conftest import write

SOURCE = [
    "She looks up the word.",  # reference apart, both systems right
    "He says that she looks up words.",  # reference together; only the second is right
    "Look: she looks up at him.",  # reference has none: does not count
    "They give up and he gives up.",  # two; the first has one of them, the second both
    "We give up.",  # the reference is accepted, neither system
    "Nothing here.",
]
REFERENCE = [
    "Sie schlägt das Wort nach.",
    "Er sagt, dass sie Wörter nachschlägt.",
    "Schau: Sie schaut zu ihm auf.",
    "Sie geben auf und er gibt auf.",
    "Wir geben auf.",
    "Hier ist nichts.",
]
FIRST = [
    "Sie schlägt Wörter nach.",
    "Er schlägt nach dem.",
    "Sie schlägt nach.",
    "Sie geben und er gibt auf.",
    "Wir geben nach.",
    "x",
]
SECOND = [
    "sie Schlägt das nach",
    "Er: sie schlägt nach.",
    "x",
    "Sie geben auf, er gibt es auf.",
    "Aufgeben? Nein, wir gehen.",
    "x",
]
LIST = [
    "looks up\tschlägt ... nach $ | nachschlägt\tlook up",
    "give up\tgeben ... auf $ | geben ... auf und\tgive up",
    "gives up\tgibt ... auf $\tgive up",
    "get up\taufstehen",
]


@pytest.fixture
def judged(analysed, tmp_path):
    """A run whose only test sets are the lines above, twice over, with two systems."""
    prep = analysed.run.prep
    sets = analysed.manifest()["sets"]
    for one in sets:
        if one["split"] == "test":
            one["lines"] = len(SOURCE)
            write(prep / "text" / f"{one['name']}.src", SOURCE)
            write(prep / "text" / f"{one['name']}.ref", REFERENCE)
    analysed.change_manifest(sets=sets)
    for name, output in (("first", FIRST), ("second", SECOND)):
        folder = analysed.add(name, 0.0, sets=[])
        write(folder / "translate" / "test" / "hyp.txt", output)
    write(tmp_path / "list.tsv", LIST)
    return analysed


@pytest.fixture
def look_up(judged, tmp_path):
    """A function that runs the analysis, of both systems with the list above if nothing else is
    asked for, and returns the rows of its table.
    """

    def run(systems=("first", "second"), expressions=tmp_path / "list.tsv", **options):
        asked = {"expressions": str(expressions)} if expressions else {}
        judged.found = judged.analyze("phrases", systems=systems, **asked, **options)
        rows = judged.found["table"]["rows"]
        return {(row["set"], row["section"], row["label"]): row for row in rows}

    return run


def test_known_answers(judged, look_up, stdout):
    rows = look_up()
    shares = {
        key[1:]: (r["in_source"], r["in_reference"], r["first"]["value"], r["second"]["value"])
        for key, r in rows.items()
    }
    assert shares == {
        ("all", "all"): (6, 5, pytest.approx(40), pytest.approx(80)),
        ("reference", "in one piece"): (4, 4, pytest.approx(25), pytest.approx(75)),
        ("reference", "with words between"): (1, 1, 100, 100),
        ("expression", "give up"): (3, 3, pytest.approx(100 / 3), pytest.approx(200 / 3)),
        ("expression", "look up"): (3, 2, 50, 100),
    }
    whole = rows["test", "all", "all"]
    assert whole["second_difference"]["value"] == pytest.approx(40)
    assert 0 <= whole["first"]["low"] < 40 < whole["first"]["high"] <= 100
    facts = judged.found["facts"]
    assert (facts["listed"], facts["names"]) == (4, 3)
    assert facts["sets"] == ["test"]
    out = stdout()
    assert "test: 2 of 3 listed expressions occur, 6 times in 6 sentences; 2 of them have" in out
    assert "case ignored" in out and "+40.0" in out and "second - first" in out
    assert judged.text("phrases", "expressions.tsv").splitlines() == LIST
    found = judged.csv_rows("phrases", "occurrences.tsv", delimiter="\t", quoting=csv.QUOTE_NONE)
    assert [
        (r["line"], r["source phrase"], r["in reference"], r["first"], r["second"]) for r in found
    ] == [
        ("1", "looks up", "1", "1", "1"),
        ("2", "looks up", "1", "0", "1"),
        ("3", "looks up", "0", "0", "0"),
        ("4", "give up", "1", "0", "1"),
        ("4", "gives up", "1", "1", "1"),
        ("5", "give up", "1", "0", "0"),
    ]
    assert "with words between" in judged.text("phrases")


def test_case_that_counts(judged, look_up):
    rows = look_up(match_case=True)
    assert rows["test", "expression", "look up"]["second"]["value"] == 50  # Schlägt is no schlägt
    assert judged.found["made_from"]["options"]["match_case"] is True


def test_of_several_references_the_one_with_most(judged, look_up):
    sets = judged.manifest()["sets"]
    next(one for one in sets if one["name"] == "test")["references"] = 2
    judged.change_manifest(sets=sets)
    other = ["x", "x", "Sie schlägt es bei ihm nach.", "x", "x", "x"]
    write(judged.run.prep / "text" / "test.ref1", other)
    row = look_up(["first"])["test", "expression", "look up"]
    assert (row["in_source"], row["in_reference"]) == (3, 3)
    assert row["first"]["value"] == pytest.approx(200 / 3)


def test_a_system_that_is_named_twice_is_one_system(judged, look_up):
    assert look_up(["first", "first"]) == look_up(["first"])


def test_sets_that_not_all_systems_translated(judged, look_up):
    judged.add("third", 0.0, sets=[])
    for name in ("second", "third"):
        write(judged.run.path / "systems" / name / "translate" / "other" / "hyp.txt", SECOND)
    rows = look_up(["first", "second", "third"])
    test, other = rows["test", "all", "all"], rows["other", "all", "all"]
    assert test["second"] == other["second"]
    nothing = {"value": None, "low": None, "high": None}
    assert other["first"] == other["second_difference"] == other["third_difference"] == nothing
    assert {key[0] for key in look_up(["second"], set_names=["other"])} == {"other"}


def test_a_set_without_an_accepted_translation_is_left_out(judged, look_up):
    write(judged.run.prep / "text" / "other.ref", ["x"] * len(SOURCE))
    write(judged.run.path / "systems" / "first" / "translate" / "other" / "hyp.txt", FIRST)
    assert {key[0] for key in look_up()} == {"test"}
    (note,) = (n for n in judged.found["table"]["notes"] if n.startswith("other "))
    assert "left out: of 6 occurrences in the source the reference has no" in note


def wilson(right, count):
    """The shares that a count does not refute: the roots of (p̂ - p)² = z² p (1 - p) / n."""
    z, share = 1.959964, right / count
    return np.roots([1 + z * z / count, -2 * share - z * z / count, share * share])[::-1] * 100


def test_intervals_are_wilsons_and_of_differences_those_of_a_slow_bootstrap():
    listed = parse(["a\tA\tx", "b\tB\ty"], False, "list")
    rng = np.random.default_rng(5)
    source = [" ".join(rng.choice(list("abc"), 3)) for _ in range(60)]
    hypothesis = [
        " ".join(word if rng.random() < 0.6 else "c" for word in line.split()) for line in source
    ]
    found = phrases.look_up(listed, source, [source], {"s": hypothesis, "none": ["c"] * 60}, False)
    systems = ["s", "none"]
    row, *_ = phrases.rows_of(phrases.SetOccurrences("test", 60, systems, found), systems)
    wanted = [line.count("a") + line.count("b") for line in source]
    right = [
        sum(min(line.count(w), other.count(w)) for w in "ab")
        for line, other in zip(source, hypothesis, strict=True)
    ]
    draws = np.random.default_rng(1).integers(0, 60, (1000, 60))
    shares = [100 * sum(right[i] for i in lines) / sum(wanted[i] for i in lines) for lines in draws]
    assert row[3:5] == [sum(wanted), sum(wanted)]
    assert row[5].value == pytest.approx(100 * sum(right) / sum(wanted))
    assert (row[5].low, row[5].high) == pytest.approx(tuple(wilson(sum(right), sum(wanted))))
    low, high = np.quantile(shares, [0.025, 0.975])
    assert (row[6].value, row[6].low) == (0, 0)
    # None right of so many is no certainty.
    assert row[6].high == pytest.approx(wilson(0, sum(wanted)).max())
    assert (row[7].value, row[7].low, row[7].high) == pytest.approx((-row[5].value, -high, -low))
    few, *_ = phrases.rows_of(phrases.SetOccurrences("test", 60, systems, found[:9]), systems)
    assert few[7].value is not None and few[7].low is None


LINES = st.lists(
    st.lists(st.sampled_from(["a", "b", "...", "c", "x", "."]), max_size=6).map(" ".join),
    min_size=1,
    max_size=5,
)


@given(LINES, st.data())
def test_counts_never_exceed_and_the_reference_is_all_right(source, data):
    targets = st.sampled_from(["A B", "A x B", "C", "A", "B A", ". B C"])
    lines = st.lists(targets, min_size=len(source), max_size=len(source))
    reference, other = data.draw(lines), data.draw(lines)
    listed = parse(["a b\tA ... B", "a\tA | C", "c\tC"], True, "list")
    for one in phrases.look_up(
        listed, source, [reference], {"same": reference, "other": other}, True
    ):
        assert 0 <= one.right["other"] <= one.in_reference <= one.in_source
        assert one.right["same"] == one.in_reference


def test_a_rare_expression_is_in_the_file_and_not_in_the_table(judged, look_up, monkeypatch):
    monkeypatch.setattr(phrases, "MOST", 1)
    assert [key[2] for key in look_up(["first"]) if key[1] == "expression"] == ["give up"]
    assert "look up" in judged.text("phrases", "occurrences.tsv")


def test_a_list_of_its_own_has_the_demo_corpus_alone(judged, look_up):
    error = refused(ConfigError, "comes with no list", look_up, ["first"], None)
    assert "--expressions FILE" in error.hint
    known = look_up(["first"], "separable-verbs")
    judged.change_manifest(dataset="demo")
    assert look_up(["first"], None) == known
    row = known["test", "expression", "look up = nachschlagen"]
    assert (row["in_source"], row["in_reference"], row["first"]["value"]) == (3, 2, 50)
    written = judged.text("phrases", "expressions.tsv")
    assert parse(written.splitlines(), False, "again")  # it can be given again
    judged.change_manifest(tgt="fr")
    with pytest.raises(ConfigError, match="is for en-de, and this run is en-fr"):
        look_up(["first"], "separable-verbs")


def test_what_cannot_be_looked_up_is_said(judged, look_up, tmp_path):
    path = tmp_path / "list.tsv"
    for lines, what in (
        (["look\tblick"], "no set has an accepted translation"),
        (["look up"], "1 columns"),
    ):
        write(path, lines)
        refused(DataError, what, look_up, ["first"])
    write(path, LIST)
    refused(DataError, "no such file", look_up, expressions=tmp_path / "none.tsv")
    write(judged.run.path / "systems" / "first" / "translate" / "test" / "hyp.txt", FIRST[:4])
    refused(DataError, "4 lines for 6 sentences", look_up, ["first"])
    judged.add("third", 0.0, sets=[])
    with pytest.raises(DataError, match="none of third has translated test"):
        look_up(["third"], set_names=["test"])
