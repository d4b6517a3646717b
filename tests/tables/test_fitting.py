"""Tables on terminals of any width: what is wrapped, turned, left out and listed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit import console
from nmtkit.score.stage import score
from nmtkit.tables.fitting import as_wide, wrapped
from nmtkit.tables.table import Column, Estimate, Table, text_column
from tests import fitted
from tests.score.conftest import FakeRun
from tests.test_cli import ok

BLEU = Column("bleu", "BLEU [95%]", interval=True)
FURTHER = [Column(f"c{i}", f"column {i}") for i in range(8)]


def made(names, first=(), columns=FURTHER):
    rows = [
        [name, Estimate(37.46, 36.0, 38.9), *(1000.5 + i for i in range(len(columns)))]
        for name in names
    ]
    return Table("t", "a title", [text_column("system"), BLEU, *columns], rows, ["a note"], first)


def test_a_pipe_gets_everything_on_one_line_a_row(stdout):
    made(["base", "own"], ["bleu"]).print()
    title, header, rule, *rows, note = stdout().splitlines()
    assert (title, note) == ("a title", "a note")
    assert header.split("  ")[-1] == "column 7" and set(rule) == {"-", " "}
    assert rows[1].split() == [
        "own",
        "37.46",
        "[36.00,",
        "38.90]",
        *(f"1,00{i}.50" for i in range(8)),
    ]


def test_a_terminal_leaves_out_what_matters_least_and_names_it():
    table = made(["base", "own"], ["c7", "bleu"])
    lines = table.lines(60)
    assert lines[1].endswith("BLEU [95%]  column 0  column 1  column 7")  # in its place
    left_out = "left out: column 2 · column 3 · column 4 · column 5 · column 6;"
    assert " ".join(lines).count(left_out) == 1
    fitted.check(table, range(44, 130))


def test_without_a_ranking_a_table_of_few_rows_is_turned():
    lines = made(["base", "own"]).lines(60)
    assert lines[1].split() == ["system", "base", "own"]
    assert lines[3].split()[:2] == ["BLEU", "[95%]"] and len(lines) == 1 + 2 + 9 + 1
    many = made([f"s{i}" for i in range(12)])
    fitted.check(many)
    assert "left out: column 5" in "".join(many.lines(80))  # intervals stay


def test_what_does_not_fit_at_all_is_listed():
    name = "a-very-long-name-of-a-system-" * 2
    table = made([name, "own"] * 6)
    lines = table.lines(60)
    assert lines[1:4] == ["system", " " * 12 + name, "BLEU [95%]  37.46 [36.00, 38.90]"]
    assert "" in lines  # between rows


def test_prose_is_torn_at_spaces_alone():
    about = "the dual contextual module (a-b/c_d) in the encoder, the decoder or both, \u00a0see the paper"
    columns = [text_column("variant"), text_column("what it is")]
    table = Table("t", "", columns, [["full-dc", about]], [])
    lines = table.lines(40)
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
def test_any_table_at_any_width(rows, left, width):
    columns = [Column(key, key, left=is_left) for key, is_left in zip("xyz", left, strict=True)]
    fitted.check(Table("t", "title", columns, rows, ["note"]), [width])


def test_a_figure_of_text_is_whole_or_not_shown():
    figure = "base ████ 3.0\ncolumns: one, two, three, four"
    assert as_wide(figure, None) == figure == as_wide(figure, 80)
    assert as_wide(figure, 20) == "base ████ 3.0\ncolumns: one, two,\n  three, four"
    assert as_wide(figure, 10).startswith("(a figure of 30 characters: pipe it")


@pytest.mark.parametrize("width", fitted.WIDTHS)
def test_every_list_and_the_scores(width, tmp_path, stdout, monkeypatch):
    """Lines of the commands on a terminal: of variants, settings, data sets, analyses, runs and
    scores.
    """
    monkeypatch.setattr(console, "width", lambda: width)
    run = FakeRun(tmp_path / "run", sets=("test",))
    for name, share in (("base", 0.3), ("own-with-a-longer-name", 0.1), ("third", 0.2)):
        run.add(name, share)
    score(run.run, by_length=True, resamples=20, trials=20)
    scores = stdout()
    for word in ("own-with-a-longer-name", "BLEU", "Δ", "chrF"):
        assert word in scores
    commands = ("variants", "settings", "datasets", f"status {run.run.path}", "analyze")
    printed = scores + "".join(ok(command).stdout for command in commands)
    # A signature is one word, and a command is one line to copy.
    lines = [line.strip() for line in printed.split("\n") if " --run " not in line]
    too_wide = [line for line in lines if len(line) > width and " " in line]
    assert too_wide == []


def test_the_width_is_that_of_the_terminal(monkeypatch):
    assert console.width() is None
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "77")
    assert console.width() == 77
