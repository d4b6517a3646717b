"""Check that a table fits a terminal of any width."""

import re

from rich.cells import cell_len

WIDTHS = (80, 120, 200)
WIDE = re.compile("[\u2e80-\uffef]")


def check(table, widths=WIDTHS):
    """Assert that lines fit, numbers and names are unbroken, and important columns are shown."""
    keys = [column.key for column in table.columns]
    for width in widths:
        lines = table.lines(width)
        text = "\n".join(lines)
        too_wide = [line for line in lines if cell_len(line) > width and " " in line.strip()]
        assert not too_wide, (width, too_wide)
        out = re.search(r"left out: (.*?); the whole table", " ".join(lines))
        names = out[1].split(" · ") if out else []
        shown = [i for i, column in enumerate(table.columns) if column.header not in names]
        assert 0 in shown
        assert all(keys.index(key) in shown for key in table.first[:3] if key in keys), width
        pieces = set(re.split(r"[ \n]+", text))
        words = {word for row in table.cells() for i in shown for word in row[i].split(" ")}
        broken = {word for word in words - pieces if not WIDE.search(word)}
        assert broken <= {""}, (width, broken)
        numbers = [row[i] for row in table.cells() for i in shown if not table.columns[i].left]
        for number in filter(None, numbers):
            assert any(number in line for line in lines), (width, number)
