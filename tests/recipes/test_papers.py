"""The numbers that the papers print: each paper has a file, whose columns name what exists."""

import pytest

from nmtkit.corpora import table as corpora
from nmtkit.measures.probes import CATEGORIES
from nmtkit.score import lengths, paper

PAPERS = paper.PAPERS


def test_every_paper_has_its_file():
    assert list(PAPERS) == ["caru", "dual_context", "memory", "phrase"]


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
            elif column.kind == "cost":
                assert corpora.find(column.dataset) and not column.set
            else:  # of a sentence that the paper does not name
                assert column.kind == "sentence" and not column.dataset and not column.set
            assert not column.group or column.group in [
                group.label for spec in ("dc", "pr") for group in lengths.groups(spec)
            ]
