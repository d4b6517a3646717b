"""How a figure is drawn with matplotlib (the extra `plots`): as SVG for a page and as PDF for a
column of a paper.

The SVG holds the numbers of the figure, so that it can be drawn again. Only matplotlib's object API
is used, which needs no display.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import io
import json
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, get_type_hints
from xml.etree import ElementTree

import numpy as np
from pydantic import TypeAdapter
from pydantic_core import to_json

from nmtkit import console

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = [
    "#1f77b4",
    "#cc6d00",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#d65fa5",
    "#7f7f7f",
    "#8f8a00",
    "#1292a4",
]
"""Matplotlib's ten colours, some darkened: each has a contrast of 3 to 1 with white paper and with
a dark page.
"""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable and small
    "svg.hashsalt": "nmtkit",  # the same element ids in every run
    "font.size": 9,
    "text.parse_math": False,  # texts and names may have dollar signs
    "axes.spines.top": False,
    "axes.spines.right": False,
}
PAPER: dict[Any, Any] = {
    "font.size": 7,
    "legend.fontsize": 6.5,
    "pdf.fonttype": 42,  # TrueType, embedded
    "lines.linewidth": 1.0,
    "axes.linewidth": 0.6,
}
"""Further style of a figure for a column of a paper."""
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
"""The element of a figure's SVG with the numbers of the figure."""

P = ParamSpec("P")
DRAWINGS: dict[str, Callable[..., None]] = {}
"""Kind of figure -> the function that draws it. An SVG names its kind."""
LONGEST = 40
"""The most characters of a name in a figure; a longer name loses its middle."""
column_width: ContextVar[float | None] = ContextVar("column_width", default=None)
"""The width of a figure in a paper, in inches; None on a page."""


def available() -> bool:
    """True if matplotlib is installed; if not, print how to install it."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    console.warn_once(
        "no figure: matplotlib is not installed (in nmtkit's checkout: pip install -e '.[plots]')"
    )
    return False


def as_svg(draw: Callable[Concatenate[Figure, P], None]) -> Callable[P, str | None]:
    """Decorate a function that draws into a figure: it returns the SVG, or None without matplotlib.
    The same input gives the same bytes.
    """
    DRAWINGS[draw.__name__] = draw

    @functools.wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> str | None:
        if not available():
            return None
        # The name takes the place of the first argument, `figure`.
        values = inspect.signature(draw).bind(draw.__name__, *args, **options).arguments
        numbers = to_json(values, fallback=np.ndarray.tolist)
        metadata = {"Date": None, "Description": numbers.decode()}
        return saved(lambda figure: draw(figure, *args, **options), "svg", metadata).decode()

    return drawn


def saved(draw: Callable[[Figure], None], form: str, metadata: Mapping[str, Any]) -> bytes:
    """Return a figure as the bytes of a file."""
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

    stream = io.BytesIO()
    style = {**STYLE, **(PAPER if form == "pdf" else {}), "axes.prop_cycle": cycler(color=COLOURS)}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # Matplotlib's font lacks Chinese, for example, but the reader's fonts have it. Long texts
        # may leave a figure little room.
        warnings.filterwarnings("ignore", message="Glyph .* missing|constrained_layout not applied")
        figure = Figure(layout="constrained")
        draw(figure)
        figure.savefig(stream, format=form, metadata=dict(metadata))
    return stream.getvalue()


def as_pdf(svg: str, width: float) -> bytes | None:
    """Draw a figure again for a column of a paper.

    Args:
        svg: the figure, as nmtkit drew it.
        width: width of the column, in inches.
    Returns: a PDF with embedded fonts; None if the SVG does not hold numbers that can be drawn.
    """
    token = column_width.set(width)
    try:
        numbers = ElementTree.fromstring(svg).findtext(f".//{DESCRIPTION}", "")
        values = json.loads(numbers)
        draw = DRAWINGS[str(values.pop("figure"))]
        hints = get_type_hints(draw, localns={"Figure": object})
        options = {
            name: TypeAdapter(hints[name]).validate_python(value) for name, value in values.items()
        }
        metadata = {"CreationDate": None, "Producer": None}
        return saved(lambda figure: draw(figure, **options), "pdf", metadata)
    except Exception:  # anybody can have written the numbers
        return None
    finally:
        column_width.reset(token)


def panels(
    figure: Figure,
    width: float,
    height: float,
    count: int = 1,
    column_height: float | None = None,
    same: bool = False,
) -> Any:
    """Return the axes of panels side by side.

    Args:
        width, height: size of the whole figure on a page. In a paper the figure is as wide as a
            column, and its panels stand one below the other.
        column_height: height of the whole figure in a paper.
        same: True if all panels have the same scales.
    """
    shape = 1, count
    if column := column_width.get():
        shape, width = (count, 1), column
        height = column_height or (0.62 * column + 0.2) * count
    figure.set_size_inches(width, height)
    return figure.subplots(*shape, squeeze=False, sharex=same, sharey=same).ravel()


def short(name: str) -> str:
    """Return a name as a label that leaves room for the figure."""
    return name if len(name) <= LONGEST else f"{name[:24]}…{name[25 - LONGEST :]}"


def legend(figure: Figure, handles: Mapping[str, Any], columns: int) -> None:
    """Put one legend above all panels, on the left, which a phone shows first."""
    names = list(map(short, handles))
    letter = 0.055 if column_width.get() else 0.075  # inches
    fitting = int(figure.get_figwidth() / (0.45 + letter * max(map(len, names))))
    columns = max(1, min(columns, fitting))
    place: Any = "outside upper left"
    figure.legend(list(handles.values()), names, loc=place, ncols=columns, frameon=False)
