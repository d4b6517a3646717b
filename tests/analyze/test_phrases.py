"""Expressions translated as in the reference: sets with known answers, intervals, refusals."""

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
    "She looks up the word.",  # words between in the reference; both systems right
    "He says that she looks up words.",  # in one piece in the reference; only the second right
    "Look: she looks up at him.",  # not in the reference: does not count
    "They give up and he gives up.",  # two; the first has one of them, the second both
    "We give up.",  # neither system is right
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
    """Return a run whose two test sets have the lines above, with two systems."""
    prep = analysed.run.prep
    sets = analysed.manifest()["sets"]
    for entry in sets:
        if entry["split"] == "test":
            entry["lines"] = len(SOURCE)
            write(prep / "text" / f"{entry['name']}.src", SOURCE)
            write(prep / "text" / f"{entry['name']}.ref", REFERENCE)
    analysed.change_manifest(sets=sets)
    for name, output in (("first", FIRST), ("second", SECOND)):
        folder = analysed.add(name, 0.0, sets=[])
        write(folder / "translate" / "test" / "hyp.txt", output)
    write(tmp_path / "list.tsv", LIST)
    return analysed


@pytest.fixture
def look_up(judged, tmp_path):
    """Return a function that runs the analysis, by default of both systems with the list above,
    and returns its rows by set, section and label.
    """

    def run(systems=("first", "second"), expressions=tmp_path / "list.tsv", **options):
        if expressions:
            options["expressions"] = str(expressions)
        return judged.rows_by("set section label", "phrases", systems=systems, **options)

    return run


def test_shares_of_expressions_equal_known_answers(judged, look_up, stdout):
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
    facts = judged.finding["facts"]
    assert (facts["listed"], facts["names"], facts["sets"]) == (4, 3, ["test"])
    out = stdout()
    assert "test: 2 of 3 listed expressions occur, 6 times in 6 sentences; 2 of them have" in out
    assert "case ignored" in out and "+40.0" in out and "second - first" in out
    assert "with words between" in judged.text("phrases")


def test_occurrences_are_listed_with_the_systems_that_are_right(judged, look_up):
    look_up()
    assert judged.text("phrases", "expressions.tsv").splitlines() == LIST
    rows = judged.csv_rows("phrases", "occurrences.tsv", delimiter="\t", quoting=csv.QUOTE_NONE)
    columns = ("line", "source phrase", "in reference", "first", "second")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        ("1", "looks up", "1", "1", "1"),
        ("2", "looks up", "1", "0", "1"),
        ("3", "looks up", "0", "0", "0"),
        ("4", "give up", "1", "0", "1"),
        ("4", "gives up", "1", "1", "1"),
        ("5", "give up", "1", "0", "0"),
    ]


def test_match_case_distinguishes_capitals(judged, look_up):
    rows = look_up(match_case=True)
    assert rows["test", "expression", "look up"]["second"]["value"] == 50  # "Schlägt"
    assert judged.finding["made_from"]["options"]["match_case"] is True


def test_reference_with_most_translations_counts(judged, look_up):
    sets = judged.manifest()["sets"]
    next(entry for entry in sets if entry["name"] == "test")["references"] = 2
    judged.change_manifest(sets=sets)
    other = ["x", "x", "Sie schlägt es bei ihm nach.", "x", "x", "x"]
    write(judged.run.prep / "text" / "test.ref1", other)
    row = look_up(["first"])["test", "expression", "look up"]
    assert (row["in_source"], row["in_reference"]) == (3, 3)
    assert row["first"]["value"] == pytest.approx(200 / 3)


def test_system_named_twice_is_one_system(judged, look_up):
    assert look_up(["first", "first"]) == look_up(["first"])


def test_set_without_a_translation_has_an_empty_cell(judged, look_up):
    judged.add("third", 0.0, sets=[])
    for name in ("second", "third"):
        write(judged.run.path / "systems" / name / "translate" / "other" / "hyp.txt", SECOND)
    rows = look_up(["first", "second", "third"])
    test, other = rows["test", "all", "all"], rows["other", "all", "all"]
    assert test["second"] == other["second"]
    nothing = {"value": None, "low": None, "high": None}
    assert other["first"] == other["second_difference"] == other["third_difference"] == nothing
    assert {key[0] for key in look_up(["second"], set_names=["other"])} == {"other"}
    rows = look_up(["third", "first", "second"])
    drawn = [row for key, row in rows.items() if key[0] == "test" and key[1] != "expression"]
    judged.check_bars("phrases", drawn, "label", ["first", "second"])


def test_set_without_an_accepted_translation_is_left_out(judged, look_up):
    write(judged.run.prep / "text" / "other.ref", ["x"] * len(SOURCE))
    write(judged.run.path / "systems" / "first" / "translate" / "other" / "hyp.txt", FIRST)
    assert {key[0] for key in look_up()} == {"test"}
    (note,) = (n for n in judged.finding["table"]["notes"] if n.startswith("other "))
    assert "left out: of 6 occurrences in the source the reference has no" in note


def wilson(right, count):
    """Return the Wilson interval (Wilson 1927) in percent: the roots p of
    (p̂ - p)² = z² p (1 - p) / n.
    """
    z, share = 1.959964, right / count
    return np.roots([1 + z * z / count, -2 * share - z * z / count, share * share])[::-1] * 100


@pytest.fixture(scope="module")
def random_set():
    """Return look-ups in 60 random sentences of a, b, c; the number of a and b of each sentence
    in the source, and how many of them the system "s" has right; the system "none" has none.
    """
    listed = parse(["a\tA\tx", "b\tB\ty"], False, "list")
    rng = np.random.default_rng(5)
    source = [" ".join(rng.choice(list("abc"), 3)) for _ in range(60)]
    hypotheses = [
        " ".join(word if rng.random() < 0.6 else "c" for word in line.split()) for line in source
    ]
    systems = {"s": hypotheses, "none": ["c"] * 60}
    occurrences = phrases.look_up(listed, source, [source], systems, False)
    right = [
        sum(min(line.count(w), other.count(w)) for w in "ab")
        for line, other in zip(source, hypotheses, strict=True)
    ]
    return (
        occurrences,
        np.array([len(line.split()) - line.count("c") for line in source]),
        np.array(right),
    )


def first_row(occurrences):
    """Return the row of all expressions: in source, in reference, both systems, difference."""
    systems = ["s", "none"]
    row, *_ = phrases.rows_of(phrases.SetOccurrences("test", 60, systems, occurrences), systems)
    return row[3:]


def test_intervals_of_shares_are_wilsons(random_set):
    occurrences, count, right = random_set
    in_source, in_reference, s, none, _ = first_row(occurrences)
    assert in_source == in_reference == count.sum()
    assert s.value == pytest.approx(100 * right.sum() / count.sum())
    assert (s.low, s.high) == pytest.approx(tuple(wilson(right.sum(), count.sum())))
    assert (none.value, none.low) == (0, 0)
    assert none.high == pytest.approx(wilson(0, count.sum()).max())


def test_intervals_of_differences_equal_a_slow_bootstrap(random_set):
    occurrences, count, right = random_set
    _, _, s, _, difference = first_row(occurrences)
    draws = np.random.default_rng(1).integers(0, 60, (1000, 60))
    shares = [100 * right[lines].sum() / count[lines].sum() for lines in draws]
    low, high = np.quantile(shares, [0.025, 0.975])
    measured = difference.value, difference.low, difference.high
    assert measured == pytest.approx((-s.value, -high, -low))
    lines = sorted({occurrence.line for occurrence in occurrences})
    for sentences in (9, 10):  # with a phrase in the reference
        few = [occurrence for occurrence in occurrences if occurrence.line < lines[sentences]]
        *_, difference = first_row(few)
        assert difference.value is not None
        assert (difference.low is None) == (sentences < 10)


LINES = st.lists(
    st.lists(st.sampled_from(["a", "b", "...", "c", "x", "."]), max_size=6).map(" ".join),
    min_size=1,
    max_size=5,
)


@given(LINES, st.data())
def test_right_counts_stay_below_those_of_the_reference(source, data):
    targets = st.sampled_from(["A B", "A x B", "C", "A", "B A", ". B C"])
    lines = st.lists(targets, min_size=len(source), max_size=len(source))
    reference, other = data.draw(lines), data.draw(lines)
    listed = parse(["a b\tA ... B", "a\tA | C", "c\tC"], True, "list")
    systems = {"same": reference, "other": other}
    for occurrence in phrases.look_up(listed, source, [reference], systems, True):
        assert 0 <= occurrence.right["other"] <= occurrence.in_reference <= occurrence.in_source
        assert occurrence.right["same"] == occurrence.in_reference


def test_rare_expressions_are_only_in_the_file(judged, look_up, monkeypatch):
    monkeypatch.setattr(phrases, "MOST", 1)
    assert [key[2] for key in look_up(["first"]) if key[1] == "expression"] == ["give up"]
    assert "look up" in judged.text("phrases", "occurrences.tsv")


def test_demo_corpus_has_a_default_list_of_separable_verbs(judged, look_up):
    error = refused(ConfigError, "comes with no list", look_up, ["first"], None)
    assert "--expressions FILE" in error.hint
    known = look_up(["first"], "separable-verbs")
    judged.change_manifest(dataset="demo")
    assert look_up(["first"], None) == known
    row = known["test", "expression", "look up = nachschlagen"]
    assert (row["in_source"], row["in_reference"], row["first"]["value"]) == (3, 2, 50)
    written = judged.text("phrases", "expressions.tsv")
    assert parse(written.splitlines(), False, "again")
    judged.change_manifest(tgt="fr")
    message = "is for en-de, and this run is en-fr"
    refused(ConfigError, message, look_up, ["first"], "separable-verbs")


def test_bad_lists_and_missing_translations_are_refused(judged, look_up, tmp_path):
    path = tmp_path / "list.tsv"
    for lines, message in (
        (["look\tblick"], "no set has an accepted translation"),
        (["look up"], "1 column"),
    ):
        write(path, lines)
        refused(DataError, message, look_up, ["first"])
    write(path, LIST)
    refused(DataError, "no such file", look_up, expressions=tmp_path / "none.tsv")
    write(judged.run.path / "systems" / "first" / "translate" / "test" / "hyp.txt", FIRST[:4])
    refused(DataError, "4 lines for 6 sentences", look_up, ["first"])
    judged.add("third", 0.0, sets=[])
    message = "none of third has translated test"
    refused(DataError, message, look_up, ["third"], set_names=["test"])
