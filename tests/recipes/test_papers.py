"""The numbers that the papers print: those in their READMEs are those in their files, and what
the recipes train has their names.
"""

import re

import pytest

from nmtkit.corpora import table as corpora
from nmtkit.measures.probes import CATEGORIES
from nmtkit.score import lengths, paper
from tests.recipes.recipe_calls import ROOT

PAPERS = paper.PAPERS
NUMBER = r"[+−]?(\d*\.\d+|\d+)"


def cell(text):
    """29.26, "+0.89‡", "61.2M", "31.28 ± .50" as numbers; nothing as None."""
    found = re.fullmatch(rf"({NUMBER})[M‡]?(?: ± ({NUMBER}))?", text)
    if not text:
        return None
    assert found, text
    value, spread = (float(part.replace("−", "-")) if part else None for part in found.group(1, 3))
    return value if spread is None else (value, spread)


def tables_of(readme):
    """The Markdown tables of the section "The paper's numbers": rows of cells, without head and
    rule.
    """
    section = readme.partition("## The paper's numbers\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^\|.*\n)+", section, re.M)
    lines = [
        [
            [part.strip() for part in line.strip().strip("|").split("|")]
            for line in block.splitlines()
        ]
        for block in blocks
    ]
    return [rows[2:] for rows in lines], section


def as_rows(table):
    return [
        (row.printed, [row.numbers.get(column.name) for column in table.columns])
        for row in table.rows
    ]


def test_every_paper_has_its_file():
    assert list(PAPERS) == ["caru", "dual_context", "memory", "phrase"]


@pytest.mark.parametrize("name", PAPERS)
def test_the_readme_has_the_numbers_of_the_file_and_no_others(name):
    """As a table, or as "<row> <number>" in the text."""
    shown, section = tables_of((ROOT / "recipes" / name / "README.md").read_text("utf-8"))
    shown = [[(first, [cell(text) for text in rest]) for first, *rest in rows] for rows in shown]
    tables = paper.load(PAPERS[name]).tables.values()
    in_text = [table for table in tables if as_rows(table) not in shown]
    for table in in_text:
        section = " ".join(section.split())
        missing = [
            row.printed
            for row in table.rows
            if not all(f"{row.printed} {number}" in section for number in row.numbers.values())
        ]
        assert not missing, f"{table.title}: {missing} is otherwise in README.md"
    assert shown == [as_rows(table) for table in tables if table not in in_text]


@pytest.mark.parametrize("name", PAPERS)
def test_the_columns_name_corpora_and_their_test_sets(name):
    for table in paper.load(PAPERS[name]).tables.values():
        for column in table.columns:
            if column.kind in ("score", "group"):
                assert column.set in corpora.find(column.dataset).entry.test
            elif column.kind == "task":
                known = {*CATEGORIES, *(task for tasks in CATEGORIES.values() for task in tasks)}
                assert (
                    corpora.find(column.dataset)
                    and corpora.find(column.set).entry.evaluation
                    and column.task in known
                )
            else:
                assert column.kind == "cost"
                assert corpora.find(column.dataset) and not column.set
            assert not column.group or column.group in [
                group.label for spec in ("dc", "pr") for group in lengths.groups(spec)
            ]
