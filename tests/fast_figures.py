"""Speed up tests that draw many figures: write sketches, or render equal figures once."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from xml.sax.saxutils import escape

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from nmtkit.report import page
from nmtkit.tables import drawing

SKETCH = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:dc="http://purl.org/dc/elements/1.1/">
<metadata><dc:description>{numbers}</dc:description></metadata>
{texts}
</svg>
"""


def sketch(draw: Callable[[Figure], None], form: str, metadata: Mapping[str, Any]) -> bytes:
    """Return an SVG with the numbers and texts of a figure.

    The figure is drawn but not laid out: layout takes most of the time.
    """
    assert form == "svg"
    figure = Figure()
    draw(figure)
    for axes in figure.axes:
        axes.get_xticklabels(), axes.get_yticklabels()  # matplotlib writes them when asked
    shown = [text.get_text() for text in figure.findobj(Text) if text.get_visible()]
    texts = [f"<text>{escape(text)}</text>" for text in shown]
    numbers = escape(metadata["Description"])
    return SKETCH.format(numbers=numbers, texts="\n".join(texts)).encode()


@contextmanager
def draw_sketches() -> Iterator[None]:
    """Write sketches instead of figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "saved", sketch)
        yield


@contextmanager
def cached_figures() -> Iterator[None]:
    """Render equal figures once, and compile the templates of reports once.

    tests/tables checks that equal figures have the same bytes.
    """
    render, figures = drawing.saved, {}

    def saved(draw: Callable[[Figure], None], form: str, metadata: Mapping[str, Any]) -> bytes:
        key = metadata.get("Description")
        if key is None:
            return render(draw, form, metadata)
        if key not in figures:
            figures[key] = render(draw, form, metadata)
        return figures[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "saved", saved)
        patch.setattr(drawing, "as_pdf", functools.cache(drawing.as_pdf))
        patch.setattr(page, "_environment", functools.cache(page._environment))
        yield
