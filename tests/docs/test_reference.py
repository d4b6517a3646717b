"""Check that the generated reference pages are current."""

import re

import pytest

from tests import ROOT
from tests.docs.reference import PAGES, VARIABLES, cell, table


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_reference_page_is_current(path):
    assert path.read_text("utf-8") == PAGES[path](), "outdated: python -m tests.docs.reference"


def test_cell_escapes_markup_outside_of_code():
    assert cell("a|b\n  <unk> *x* `c<d|e`") == "a\\|b \\<unk> \\*x\\* `c<d\\|e`"
    assert table(["a", "b"], [["1", "2"]]) == ["| a | b |", "|---|---|", "| 1 | 2 |", ""]


def test_every_environment_variable_is_in_the_reference():
    files = [
        path
        for folder, pattern in (("nmtkit", "*.py"), ("recipes", "*.sh"), ("tests/gpu", "*.sh"))
        for path in (ROOT / folder).rglob(pattern)
    ]
    used = {
        name for path in files for name in re.findall(r"NMTKIT_[A-Z_]+", path.read_text("utf-8"))
    }
    assert used == VARIABLES.keys()
