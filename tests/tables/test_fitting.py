"""Tables on terminals of any width: columns are dropped, rows transposed or listed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit import console
from nmtkit.score.stage import score
from nmtkit.tables.fitting import as_wide, wrapped
from nmtkit.tables.table import Column, Estimate, Table, text_column
from tests import table_width
from tests.score.conftest import FakeRun
from tests.test_cli import ok

SYSTEMS = ["base", "own"]


def table(names, first=()):
    """Return a table with a BLEU column and eight columns of numbers; `first` ranks columns."""
    bleu = Column("bleu", "BLEU [95%]", interval=True)
    columns = [text_column("system"), bleu, *(Column(f"c{i}", f"column {i}") for i in range(8))]
    numbers = [Estimate(37.46, 36.0, 38.9), *(1000.5 + i for i in range(8))]
    return Table("t", "a title", columns, [[name, *numbers] for name in names], ["a note"], first)


def test_piped_table_has_one_line_per_row(stdout):
    table(SYSTEMS, ["bleu"]).print()
    title, header, rule, *rows, note = stdout().splitlines()
    assert (title, note) == ("a title", "a note")
    assert header.split("  ")[-1] == "column 7" and set(rule) == {"-", " "}
    numbers = [f"1,00{i}.50" for i in range(8)]
    assert rows[1].split() == ["own", "37.46", "[36.00,", "38.90]", *numbers]


def test_narrow_terminal_drops_the_least_important_columns_and_names_them():
    ranked = table(SYSTEMS, ["c7", "bleu"])
    lines = ranked.lines(60)
    assert lines[1].endswith("BLEU [95%]  column 0  column 1  column 7")  # in table order
    left_out = "left out: column 2 · column 3 · column 4 · column 5 · column 6;"
    assert " ".join(lines).count(left_out) == 1
    table_width.check(ranked, range(44, 130))


@pytest.mark.parametrize("first", [["c7", "bleu"], ["c0", "c1", "c2", "c3"]])
def test_table_keeps_all_columns_that_fit_and_at_least_the_first_three(first):
    ranked = table(SYSTEMS, first)
    order, least = ranked.ranked(), 1 + min(len(first), 3)
    for count in range(least, len(order)):
        width = ranked.only(order[:count]).grid().width
        for room, kept in ((width, count), (width - 1, count - 1)):
            left_out = " · ".join(ranked.columns[i].header for i in sorted(order[kept:]))
            shown = " ".join(ranked.lines(room))
            assert (f"left out: {left_out}; " in shown) == (kept >= least)


def test_table_without_ranked_columns_is_transposed_if_it_has_few_rows():
    lines = table(SYSTEMS).lines(60)
    assert lines[1].split() == ["system", "base", "own"]
    assert lines[3].split()[:2] == ["BLEU", "[95%]"] and len(lines) == 1 + 2 + 9 + 1
    many = table([f"s{i}" for i in range(12)])
    table_width.check(many)
    assert "left out: column 5" in "".join(many.lines(80))  # intervals stay


def test_table_too_wide_to_transpose_is_printed_as_a_list():
    name = "a-very-long-name-of-a-system-" * 2
    lines = table([name, "own"] * 6).lines(60)
    assert lines[1:4] == ["system", " " * 12 + name, "BLEU [95%]  37.46 [36.00, 38.90]"]
    assert "" in lines  # between rows


def test_prose_wraps_at_spaces_only():
    about = (
        "the dual contextual module (a-b/c_d) in the encoder, the decoder or both,"
        " \u00a0see the paper"
    )
    columns = [text_column("variant"), text_column("what it is")]
    lines = Table("t", "", columns, [["full-dc", about]], []).lines(40)
    assert len(lines) > 4 and max(map(len, lines)) <= 40
    assert " ".join(line[9:].strip() for line in lines[2:]) == about
    assert wrapped("a" * 9 + " b", 4, "  ") == ["a" * 9, "  b"]
    assert wrapped("猫猫猫猫 a", 4) == ["猫猫", "猫猫", "a"]


words = st.text("ab1.-猫", min_size=1, max_size=9)
prose = st.lists(words, min_size=1).map(" ".join)


@given(
    st.lists(st.tuples(words, words, prose), max_size=4),
    st.tuples(st.booleans(), st.booleans(), st.just(True)),
    st.integers(21, 60),
)
def test_random_tables_fit_random_widths(rows, left, width):
    columns = [Column(key, key, left=is_left) for key, is_left in zip("xyz", left, strict=True)]
    table_width.check(Table("t", "title", columns, rows, ["note"]), [width])


def test_text_figure_too_wide_for_the_terminal_is_replaced_by_a_note():
    figure = "base ████ 3.0\ncolumns: one, two, three, four"
    assert as_wide(figure, None) == figure == as_wide(figure, 80)
    assert as_wide(figure, 20) == "base ████ 3.0\ncolumns: one, two,\n  three, four"
    assert as_wide(figure, 10).startswith("(a figure of 30 characters: pipe it")


@pytest.fixture(scope="module")
def run_to_score(tmp_path_factory):
    """A run with translations by three systems."""
    fake = FakeRun(tmp_path_factory.mktemp("fitting") / "run")
    for name, share in (("base", 0.3), ("own-with-a-longer-name", 0.1), ("third", 0.2)):
        fake.add(name, share)
    return fake.run


@pytest.mark.parametrize("width", table_width.WIDTHS)
def test_lists_and_scores_fit_the_terminal(width, run_to_score, stdout, monkeypatch):
    monkeypatch.setattr(console, "width", lambda: width)
    score(run_to_score, by_length=True, resamples=20, trials=20)
    scores = stdout()
    for word in ("own-with-a-longer-name", "BLEU", "Δ", "chrF"):
        assert word in scores
    commands = ("variants", "settings", "datasets", f"status {run_to_score.path}", "analyze")
    printed = scores + "".join(ok(command).stdout for command in commands)
    # A signature is one word, and a command is one line to copy.
    lines = [line.strip() for line in printed.split("\n") if " --run " not in line]
    assert [line for line in lines if len(line) > width and " " in line] == []


def test_console_width_is_the_terminal_width(monkeypatch):
    assert console.width() is None
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "77")
    assert console.width() == 77
