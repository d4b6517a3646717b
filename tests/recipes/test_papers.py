"""Compare the papers' tables in nmtkit/score/papers with the READMEs of the recipes."""

import re

import pytest

from nmtkit.corpora import table as corpora
from nmtkit.measures.probes import CATEGORIES
from nmtkit.score import lengths, paper
from tests.recipes.recipe_calls import ROOT

PAPERS = paper.PAPERS
NUMBER = r"[+−]?(\d*\.\d+|\d+)"


def cell(text):
    """Return 29.26, "+0.89‡" or "61.2M" as a number, "31.28 ± .50" as two, nothing as None."""
    if not text:
        return None
    match = re.fullmatch(rf"({NUMBER})[M‡]?(?: ± ({NUMBER}))?", text)
    assert match, text
    value, spread = (float(part.replace("−", "-")) if part else None for part in match.group(1, 3))
    return value if spread is None else (value, spread)


def tables_of(section):
    """Return the rows of each Markdown table, without head and rule, with numbers as in `cell`."""
    tables = []
    for block in re.findall(r"(?:^\|.*\n)+", section, re.M):
        rows = [line.strip().strip("|").split("|") for line in block.splitlines()[2:]]
        tables.append([(row[0].strip(), [cell(text.strip()) for text in row[1:]]) for row in rows])
    return tables


def as_rows(table):
    return [
        (row.printed, [row.numbers.get(column.name) for column in table.columns])
        for row in table.rows
    ]


def test_every_paper_has_its_file():
    assert list(PAPERS) == ["caru", "dual_context", "memory", "phrase"]


@pytest.mark.parametrize("name", PAPERS)
def test_readme_has_every_number_of_the_paper_and_no_other(name):
    """In a table, or as "<row> <number>" in the text."""
    readme = (ROOT / "recipes" / name / "README.md").read_text("utf-8")
    section = readme.partition("## The paper's numbers\n")[2].partition("\n## ")[0]
    shown, text = tables_of(section), " ".join(section.split())
    tables = paper.load(PAPERS[name]).tables.values()
    assert shown == [rows for rows in map(as_rows, tables) if rows in shown]
    for table in tables:
        if as_rows(table) not in shown:
            numbers = [(row.printed, n) for row in table.rows for n in row.numbers.values()]
            assert [pair for pair in numbers if "{} {}".format(*pair) not in text] == []


KNOWN = {
    "group": {"", *(group.label for spec in ("dc", "pr") for group in lengths.groups(spec))},
    "task": {*CATEGORIES, *(task for tasks in CATEGORIES.values() for task in tasks)},
}


@pytest.mark.parametrize("name", PAPERS)
def test_columns_name_registered_corpora_test_sets_tasks_and_groups(name):
    for table in paper.load(PAPERS[name]).tables.values():
        for column in table.columns:
            corpus = corpora.find(column.dataset)
            assert column.group in KNOWN["group"]
            if column.kind in {"score", "group"}:
                assert column.set in corpus.entry.test
            elif column.kind == "task":
                assert corpora.find(column.set).entry.evaluation
                assert column.task in KNOWN["task"]
            else:
                assert column.kind == "cost" and not column.set
