"""Figures of a report: drawn into the page, cleaned of anything active, and as PDF for papers."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from nmtkit.analyze import ANALYSES
from nmtkit.curves import AXES
from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.report import page, stage, svg
from nmtkit.tables import drawing
from tests.fast_figures import draw_sketches
from tests.refused import refused

from .conftest import FIGURE, make

CURVES = [f"Loss and dev BLEU of each training by {axis}" for axis in AXES[:3]]


def labels(shown):
    return [attributes["aria-label"] for attributes in shown.all("svg")]


@pytest.fixture
def sketched_figures():
    with draw_sketches():
        yield


@pytest.mark.usefixtures("sketched_figures")
def test_page_has_every_finding_and_set(tmp_path, stdout):
    made = make(tmp_path / "run", sets=("test", "other"))
    names = [*ANALYSES, "of_somebody_else"]
    for name in names:
        made.finding(name, f"what {name} shows")
    stdout()
    shown = made.page()
    for name in names:
        for text in (f"hat {name} shows", f"How {name} is read.", f"The table of {name}"):
            assert text in shown.text
    assert len(shown.all("article")) == len(names)
    # The figure of `convergence` is replaced by curves over three axes.
    numbers = [label for label in labels(shown) if "figure; its numbers" in label]
    assert len(numbers) == len(ANALYSES)
    by_length = {f"BLEU by source length on {name}" for name in ("test", "other")}
    assert by_length < set(labels(shown))
    for text in ("base", "own", "test: 40 sentences", "other: 40 sentences"):
        assert text in shown.text
    assert stdout() == f"{made.run.path}/report/index.html\n"


@pytest.mark.usefixtures("sketched_figures")
def test_page_draws_learning_curves_lengths_and_differences(reported):
    drawn = {*CURVES, "BLEU by source length on test", "Differences in BLEU on test"}
    assert set(labels(reported.page())) == drawn


def test_figure_width_writes_the_figures_as_pdf(reported, stderr):
    reported.finding("cost", "cost")  # a figure that nmtkit did not draw
    stage.report(reported.run, figure_width=3.3)
    names = {path.stem for path in (reported.run.path / "report" / "figures").glob("*.pdf")}
    learning = {f"learning-{axis}" for axis in AXES[:3]}
    assert names == {*learning, "lengths-test", "differences-test"}
    assert "no cost.pdf: the figure does not hold its numbers" in stderr()


def test_deleted_figures_are_written_again(reported, stderr):
    folder = stage.report(reported.run, figure_width=3.3).parent / "figures"
    names = sorted(path.name for path in folder.iterdir())
    shutil.rmtree(folder)
    stage.report(reported.run, figure_width=3.3)
    assert sorted(path.name for path in folder.iterdir()) == names
    stderr()
    stage.report(reported.run, figure_width=3.3)
    assert "up to date" in stderr()


@pytest.mark.parametrize(
    ("width", "error", "message"),
    [
        (0.5, ConfigError, "must be at least 1"),
        (21, ConfigError, "must be at most 20"),
        (3.3, EnvironmentProblem, "figures need matplotlib"),
    ],
)
def test_figure_width_out_of_range_or_without_matplotlib_is_refused(
    reported, without_figures, width, error, message
):
    refused(error, message, stage.report, reported.run, figure_width=width)


@pytest.mark.parametrize(
    "style",
    [
        "fill: url(x)",
        "fill: URL( '#a')",
        r"fill: u\72l(//e.org/a)",
        "mask: src('//e.org/a')",
        "mask: image-set('//e.org/a' 1x)",
        "position: fixed",
        "fill: url(#a), url(//e.org/a)",
    ],
)
def test_style_that_loads_or_moves_something_is_removed(style):
    cleaned = svg.inline(FIGURE.replace("<path ", f'<path style="{style}" '), "f-", "")
    assert "<path id" in cleaned and cleaned.count("style=") == 1


def test_attributes_that_place_a_figure_elsewhere_are_removed():
    placed = (
        'style="inset:0;height:100vh" class="bar" overflow="visible" transform="scale(9)" id="b" '
    )
    for figure in (FIGURE, FIGURE.replace('width="90pt"', 'width="100vw"')):
        root = svg.inline(figure.replace("<svg ", "<svg " + placed), "f-", "").partition("><")[0]
        assert not re.search("inset|vh|class|overflow|transform|vw| id=", root)
        assert 'viewBox="0 0 90 50"' in root


@pytest.fixture
def recursion_limit():
    """Python's default limit; torch's compiler may have raised it in this process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield 1_000
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("depth", [400, 1_200, 100_000])
def test_figure_nested_deeper_than_python_recurses_is_left_out(recursion_limit, depth):
    nested = FIGURE.replace("</svg>", "<g>" * depth + "</g>" * depth + "</svg>")
    assert (svg.inline(nested, "f-", "") is None) == (depth > recursion_limit)


def test_ids_of_figures_get_a_prefix_and_the_size_and_label_are_set():
    text = FIGURE.replace(
        "</svg>",
        '<use xlink:href="#m" style="fill: url(#a)"'
        ' xmlns:xlink="http://www.w3.org/1999/xlink"/></svg>',
    )
    one, two = (svg.inline(text, prefix, 'a "label"') for prefix in ("f1-", "f2-"))
    for part in ('id="f1-m"', 'href="#f1-m"', "url(#f1-a)", "&quot;label&quot;"):
        assert part in one
    assert "f1-" not in two
    assert "width: 90pt; min-width: 76.5pt" in one


@pytest.mark.parametrize("name", ["lengths-test", "lengths-test.de"])
def test_figures_of_several_runs_with_one_name_have_separate_ids_and_files(name):
    drawn = page.Drawn()
    inlined = "".join(drawn(FIGURE, name, "label") for _ in range(3))
    assert list(drawn.figures) == [name, f"{name}.2", f"{name}.3"]
    ids = re.findall(' id="([^"]+)"', inlined)
    assert len(ids) == len(set(ids)) == 6


def test_scripts_images_and_styles_in_figures_are_removed():
    uri = 'href="data:image/png;base64,AAAA"'
    hostile = FIGURE.replace("<g ", '<g onclick="x()" style="fill: url(https://e.org/a)" ').replace(
        "</svg>",
        "<foreignObject><p>x</p></foreignObject><style>*{}</style><image"
        ' href="https://e.org/a.png" src="//e.org/a" srcset="//e.org/a 2x"/>'
        '<use href="data:image/svg+xml,x"/>'
        f"<desc>kept<image {uri}/></desc><title><g><image {uri}/></g></title></svg>",
    )
    cleaned = svg.inline(hostile, "f-", "")
    assert not re.search(
        r"onclick|e.org|foreignObject|<style|src|svg\+xml|<image[^>]*data", cleaned
    )
    assert "kept</" in cleaned


ENTITY = f'<!DOCTYPE svg [<!ENTITY a "b">]><svg xmlns="{svg.SVG}"><text>&a;</text></svg>'


@pytest.mark.parametrize("text", ["no svg", "<html/>", ENTITY])
def test_text_that_is_no_svg_is_left_out(text):
    assert svg.inline(text, "f-", "") is None


def test_black_and_white_follow_the_page_except_in_heat_maps():
    ground = (
        '<g id="patch_2"><path d="M 0 0" style="fill: #ffffff"/><path d="M 1 1" style="fill:'
        ' #1f77b4; stroke: #000000"/></g>'
    )
    heat = (
        '<g id="QuadMesh_1"><path d="M 2 2" style="fill: #ffffff"/><path d="M 3 3" style="fill:'
        ' #000000"/></g>'
    )
    figure = svg.inline(FIGURE.replace("</svg>", ground + heat + "</svg>"), "f-", "")
    assert re.findall('style="((?:fill|stroke)[^"]*)"', figure) == [
        "fill: none",
        "fill: #1f77b4; stroke: currentColor",
        "fill: #ffffff",
        "fill: #000000",
    ]


def luminance(colour):
    """Return the relative luminance of a colour such as #1f77b4 (WCAG 2.1)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_have_a_contrast_of_3_on_the_light_and_the_dark_page():
    style = (Path(stage.__file__).parent / "templates" / "page.css").read_text("utf-8")
    grounds = set(re.findall("--back: (#[0-9a-f]{6})", style))
    assert len(grounds) == 2 and len(set(drawing.COLOURS)) == 10
    for colour in drawing.COLOURS:
        for ground in grounds:
            low, high = sorted((luminance(colour), luminance(ground)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, ground)
