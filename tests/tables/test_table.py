"""Tables in five formats, and figures: values are kept, markup is escaped, drawings repeat."""

import csv
import dataclasses
import io
import json
import re
import zlib

import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from nmtkit import files
from nmtkit.errors import ConfigError
from nmtkit.tables import drawing, figures
from nmtkit.tables.bars import Heat, bar
from nmtkit.tables.table import Column, Estimate, StoredTable, Table, check_format, tex, text

TABLE = Table(
    "t",
    "a title with 100 % & more",
    [
        Column("name", "name", left=True),
        Column("bleu", "BLEU", interval=True),
        Column("p", "Δ_p", 3, signed=True),
        Column("n", "n"),
    ],
    [["a_b|c", Estimate(37.456, 36.0, 38.9), 0.0123, 29000], ["{x}\\", Estimate(None), None, 0]],
    ["read #1"],
)


def test_csv_has_raw_values_and_columns_for_interval_ends():
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows[0] == ["name", "bleu", "bleu_low", "bleu_high", "p", "n"]
    assert rows[1] == ["a_b|c", "37.456", "36.0", "38.9", "0.0123", "29000"]
    assert rows[2] == ["{x}\\", "", "", "", "", "0"]


def test_json_round_trip_keeps_the_table():
    plain = json.loads(files.json_text(TABLE.as_json()))
    assert plain["rows"][0] == {
        "name": "a_b|c",
        "bleu": {"value": 37.456, "low": 36.0, "high": 38.9},
        "p": 0.0123,
        "n": 29000,
    }
    assert plain["rows"][1]["bleu"]["value"] is None
    assert plain["notes"] == ["read #1"]
    stored = StoredTable.model_validate_json(json.dumps(plain), strict=True)
    assert (stored.table.cells(), stored.table.csv()) == (TABLE.cells(), TABLE.csv())
    assert stored.model_dump() == plain


def test_latex_escapes_special_characters():
    source = TABLE.latex()
    assert r"a\_b\textbar{}c & 37.46 & [36.00, 38.90] & +0.012 & 29,000 \\" in source
    assert r"\{x\}\textbackslash{} & -- & & -- & 0 \\" in source
    assert r"$\Delta$\_p" in source
    escaped = r"50 \% \& \$2 \#1 \textasciitilde{}\textasciicircum{}\textless{}\textgreater{}"
    assert tex("50 % & $2 #1 ~^<>") == escaped
    begin, _, header, *_ = [line for line in source.splitlines() if not line.startswith("%")]
    assert begin == r"\begin{tabular}{lr@{~}rrr}"
    assert header == r"name & \multicolumn{2}{c}{BLEU} & $\Delta$\_p & n \\"


def test_latex_breaks_ligatures_and_bracket_arguments():
    assert tex("--set ''a'' ,, a---b") == "-{}-set '{}'a'{}' ,{}, a-{}-{}-b"
    assert tex('"`\nΣα²') == r"''\textasciigrave{} $\Sigma$$\alpha$$^2$"
    rows = [["[10,20)", -0.5], ["*", None], ["a-b", 2]]
    columns = [Column("a", "a", left=True), Column("b", "b", 1)]
    source = Table("t", "two\nlines", columns, rows, ["\\end\nx"]).latex()
    assert source.splitlines()[5:] == [
        *(r"\midrule", r"{}[10,20) & $-$0.5 \\", r"{}* & -- \\", r"a-b & 2 \\"),
        *(r"\bottomrule", r"\end{tabular}", r"% \end x"),
    ]
    assert source.startswith("% two lines\n") and "pdflatex" not in source
    chinese = Table("t", "", [Column("a", "a")], [["猫"]]).latex()
    assert "% it has letters that pdflatex lacks" in chinese


def test_markdown_escapes_markup_and_aligns_columns():
    tags = dataclasses.replace(TABLE, title="</s>", notes=["<unk>, &amp; <10, p < 0.05"])
    title, *_, note = tags.markdown().splitlines()
    assert (title, note.strip()) == (r"**\</s>**", r"\<unk>, \&amp; <10, p < 0.05")
    lines = TABLE.markdown().splitlines()
    assert lines[2:5] == [
        "| name | BLEU | Δ_p | n |",
        "|:---|---:|---:|---:|",
        r"| a_b\|c | 37.46 [36.00, 38.90] | +0.012 | 29,000 |",
    ]


@pytest.mark.parametrize(
    ("output_format", "part"),
    [("table", "37.46 [36.00"), ("md", "|:---|"), ("tex", "toprule"), ("csv", "bleu_low")],
)
def test_print_writes_each_format_to_stdout(capsys, output_format, part):
    check_format(output_format)
    TABLE.print(output_format)
    out, err = capsys.readouterr()
    assert part in out and err == ""


def test_unknown_format_is_refused():
    with pytest.raises(ConfigError, match="unknown format 'markdwn'"):
        check_format("markdwn")


def test_row_of_wrong_length_raises_value_error():
    with pytest.raises(ValueError, match="shorter"):
        Table("t", "", [Column("a", "a")], [[1, 2]]).cells()
    with pytest.raises(ValueError, match="a row has other cells"):
        StoredTable.model_validate({**TABLE.as_json(), "rows": [{"name": "a"}]})


@pytest.mark.parametrize(("key", "value"), [("bleu", 3.0), ("n", {"value": 3.0})])
def test_stored_number_that_its_column_cannot_have_raises_value_error(key, value):
    stored = TABLE.as_json()
    stored["rows"][1][key] = value
    with pytest.raises(
        ValueError, match=rf"has a value that its column cannot have: rows\.1\.{key}"
    ):
        StoredTable.model_validate(stored)


def test_non_finite_numbers_are_empty_and_tiny_p_is_below_a_limit():
    assert text(float("nan"), Column("a", "a")) == "–"
    assert text(Estimate(1.0), Column("a", "a")) == "1.00"
    p = Column("p", "p", 3, below=0.001)
    assert (text(0.0, p), text(0.001, p)) == ("<0.001", "0.001")
    assert Table("t", "", [Column("a", "a")], [[float("inf")]]).as_json()["rows"] == [{"a": None}]


def test_bar_length_is_proportional_to_value():
    assert bar(10, 10, 4) == "████"
    assert bar(5, 10, 4) == "██"
    assert (bar(3, 8, 1), bar(9, 8, 1), bar(-1, 8, 1)) == ("▍", "█", "")
    assert len(bar(3.3, 10, 30)) == 10
    assert (bar(None, 10, 30), bar(1, 0, 30), bar(0, 10, 30)) == ("", "", "")


def check_reproducible(draw, *words):
    """Draw a figure twice. Assert that it is the same SVG and has these words as text."""
    drawn = draw()
    assert drawn == draw() and drawn.lstrip().startswith("<?xml")
    for word in words:
        assert f">{word}<" in drawn, word
    return drawn


def test_grouped_bars_are_reproducible_svg_without_empty_groups():
    series = {
        "a": [Estimate(10, 9, 11), Estimate(None), Estimate(None)],
        "b_1": [Estimate(12.5), Estimate(3, 4, 5), Estimate(None)],
    }
    groups = ["short", "long", "nobody"]
    words = ("source length", "BLEU", "b_1", "test &amp; more", "short", "long")
    drawn = check_reproducible(
        lambda: figures.grouped_bars(groups, series, *words[:2], "test & more"), *words
    )
    assert ">nobody<" not in drawn


@pytest.fixture
def axes_of(monkeypatch):
    """Return a function that draws a figure with one panel and returns the axes."""
    figures_drawn = []

    def saved(draw, form, metadata):
        figures_drawn.append(Figure())
        draw(figures_drawn[-1])
        return b""

    monkeypatch.setattr(drawing, "saved", saved)

    def axes(kind, *arguments):
        kind(*arguments)
        return figures_drawn[-1].axes[0]

    return axes


def test_bars_stand_at_their_groups_with_their_intervals(axes_of):
    series = {
        "a": [Estimate(None), Estimate(10, 8, 11), Estimate(None), Estimate(4, 3, 6)],
        "b": [Estimate(None), Estimate(None), Estimate(None), Estimate(5)],
    }
    axes = axes_of(figures.grouped_bars, ["none", "one", "nobody", "two"], series, "x", "y")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["one", "two"]
    bars = [drawn for drawn in axes.containers if isinstance(drawn, BarContainer)]
    places = [
        [(round(bar.get_x() + bar.get_width() / 2, 9), bar.get_height()) for bar in of]
        for of in bars
    ]
    assert places == [[(-0.2, 10), (0.8, 4)], [(1.2, 5)]]
    (intervals,) = bars[0].errorbar.lines[2]
    ends = [[round(y, 9) for _, y in segment] for segment in intervals.get_segments()]
    assert ends == [[8, 11], [3, 6]]


def test_differences_stand_one_below_the_other_with_intervals_and_values(axes_of):
    points = [
        figures.Difference("a", "x", Estimate(1.0, -0.5, 2.0)),
        figures.Difference("b", "y", Estimate(-2.0, -3.0, -1.0), [-1.5, -2.5]),
        figures.Difference("c", "x", Estimate(0.5)),
    ]
    axes = axes_of(figures.differences, points, "Δ", ["base", "x", "y"])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.get_ylim() == (2.5, -0.5)  # the first on top
    lines = [(*map(list, line.get_data()), line.get_color()) for line in axes.lines]
    assert [line for line in lines if line[0]] == [
        ([-0.5, 2.0], [0, 0], "C1"),
        ([1.0], [0], "C1"),
        ([-3.0, -1.0], [1, 1], "C2"),
        ([-1.5, -2.5], [1, 1], "C2"),
        ([-2.0], [1], "C2"),
        ([0.5], [2], "C1"),
        ([0, 0], [0, 1], "0.5"),
    ]
    assert [text.get_text() for text in axes.texts] == ["+1.00", "-2.00", "+0.50"]


def test_first_row_of_a_heat_map_is_on_top(axes_of):
    values = [[0.1, 0.2, 0.7], [0.5, 0.0, 0.5]]
    axes = axes_of(figures.heat_map, {"t": Heat(values, ["p", "q"], ["x", "y", "z"])}, "k", "q")
    assert axes.collections[0].get_array().tolist() == values and axes.yaxis_inverted()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["p", "q"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y", "z"]


def bars_of(series):
    """Return a bar chart of two groups (SVG)."""
    return figures.grouped_bars(["a", "b"], series, "length", "BLEU")


def test_bar_without_interval_has_no_error_bar():
    first = Estimate(9.0, 8.0, 10.0)
    both = bars_of({"x": [first, Estimate(5.0, 4.0, 6.0)]}).count("<use ")
    one = bars_of({"x": [first, Estimate(5.0)]}).count("<use ")
    assert both - one == 2  # the caps of an interval


@pytest.mark.parametrize(("count", "hatched"), [(10, 0), (12, 2)])
def test_bars_beyond_the_tenth_are_hatched(count, hatched):
    drawn = bars_of({f"s{i}": [Estimate(9.0), Estimate(None)] for i in range(count)})
    assert len(re.findall("fill: url", drawn)) == 2 * hatched  # the bar, and in the legend


def test_long_names_are_shortened_in_figures():
    names = [f"{'x' * 100}{i}" for i in range(3)]
    points = [figures.Difference(name, name, Estimate(1.0, 0.5, 2.0)) for name in names]
    lines = [figures.Curve(name, [1, 2], [3.0, 4.0]) for name in names]
    for drawn in (figures.differences(points, "BLEU", names), curves(*lines)):
        shown = drawn.partition("</dc:description>")[2]
        assert f"{'x' * 24}…{'x' * 14}2</text>" in shown and "x" * 40 not in shown
        assert drawing.as_pdf(drawn, 3.3)


def test_matplotlib_warnings_are_silenced(recwarn):
    series = {"x" * 30 + str(i): [Estimate(9.0)] for i in range(20)}
    drawn = figures.grouped_bars(["a"], series, "length", "BLEU", "long title " * 50)
    assert drawing.as_pdf(drawn, 3.0)
    assert not recwarn.list


def test_heat_map_is_reproducible_svg():
    panels = {
        "one": Heat([[0.0, 1.0]], ["$x$"], ["a", "</s>"]),
        "two": Heat([[0.5], [0.5]], ["p", "q"], ["r"]),
    }
    words = ("one", "two", "$x$", "&lt;/s&gt;", "keys", "queries")
    check_reproducible(lambda: figures.heat_map(panels, "keys", "queries"), *words)


def curves(*shown, x="updates", y="loss"):
    """Return a figure of one panel (SVG)."""
    return figures.curves([figures.Panel(x, y, shown)])


def test_curves_share_one_legend():
    points = [
        figures.Curve("a$1$", [1, 2], [3.0, 4.0], faint=True),
        figures.Curve("a$1$", [2], [5.0]),
        figures.Curve("b", [1], [2.0]),
    ]
    rows = [figures.Panel("updates", "loss", points), figures.Panel("epochs", "BLEU", points[:1])]
    words = ("a$1$", "b", "updates", "epochs", "loss", "BLEU")
    drawn = check_reproducible(lambda: figures.curves(rows), *words)
    assert {drawn.count(f">{word}<") for word in words} == {1}


def test_curves_have_markers_unless_faint_and_integer_ticks():
    curve = figures.Curve("a", [1, 2], [3.0, 4.0])
    marked, faint = curves(curve), curves(dataclasses.replace(curve, faint=True))
    assert marked.count("<use") - faint.count("<use") == 3  # two points and the legend
    assert ">2</text>" in marked and ">1.5</text>" not in marked
    assert ">updates<" in curves()


def test_heat_map_panels_share_one_colour_scale():
    def shades(*tops):
        panels = {f"p{i}": Heat([[top]], ["r"], ["c"]) for i, top in enumerate(tops)}
        meshes = figures.heat_map(panels, "read", "written").split('<g id="QuadMesh_')[1:]
        fills = [re.search("fill: (#[0-9a-f]{6})", mesh.partition("</g>")[0]) for mesh in meshes]
        return [fill[1] if fill else "#000000" for fill in fills]  # SVG's own is black

    assert shades(0.5, 0.5) == ["#000000", "#000000"]
    light, dark = shades(0.5, 1.0)
    assert dark == "#000000" != light


EVERY_DRAWING = {
    "grouped_bars": (["a", "b"], {"x": [Estimate(1.0, 0.5, 2.0), Estimate(3.0)]}, "length", "BLEU"),
    "curves": ([figures.Panel("updates", "loss", [figures.Curve("a", [1, 2], [3.0, 4.0])])],),
    "scatter": ({"one": figures.Cloud([0.1, 0.2], [0.3, 0.4])}, "x", "y"),
    "heat_map": ({"one": Heat([[0.0, 1.0]], ["r"], ["a", "b"])}, "read", "written"),
    "differences": ([figures.Difference("a", "a", Estimate(1.0, -1.0, 2.0))], "Δ BLEU", ["a"]),
}


def test_all_drawings_are_in_the_pdf_test():
    assert EVERY_DRAWING.keys() == drawing.DRAWINGS.keys()


@pytest.mark.parametrize("name", EVERY_DRAWING)
def test_pdf_has_requested_width_legible_text_and_embedded_fonts(name):
    svg = getattr(figures, name)(*EVERY_DRAWING[name])
    pdf = drawing.as_pdf(svg, 3.3)
    assert pdf == drawing.as_pdf(svg, 3.3) and pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf  # TrueType fonts, embedded
    stream = re.search(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    page = zlib.decompress(stream[1])
    sizes = [float(size) for size in re.findall(rb"/F[0-9]+ ([0-9.]+) Tf", page)]
    assert sizes and min(sizes) >= 6  # points, at the width of a column
    box = re.search(rb"/MediaBox \[ *0 0 ([0-9.]+)", pdf)
    assert float(box[1]) == pytest.approx(3.3 * 72)
    assert getattr(figures, name)(*EVERY_DRAWING[name]) == svg  # the page's figure is as before


def test_differences_draw_means_as_diamonds_and_seeds_as_dots():
    shapes = []
    for seeds in ((), (0.5, 1.5)):
        point = figures.Difference("a", "a", Estimate(1.0, -1.0, 2.0), seeds)
        svg = figures.differences([point], "Δ BLEU", ["a"])
        outlines = re.findall(r'<defs>\s*<path id="([^"]*)" d="([^"]*z[^"]*)"', svg)
        # Number of markers of each outline, and True if it has curves (round).
        shapes.append(
            sorted((svg.count(f'xlink:href="#{name}"'), "C" in d) for name, d in outlines)
        )
    assert shapes == [[(1, True)], [(1, False), (2, True)]]


@pytest.mark.parametrize("svg", ["", "<svg/>", "no markup"])
def test_svg_without_stored_numbers_gives_no_pdf(svg):
    assert drawing.as_pdf(svg, 3.3) is None


@pytest.mark.filterwarnings("error")
def test_characters_missing_in_the_font_stay_text():
    assert ">猫<" in figures.heat_map({"one": Heat([[1.0]], ["猫"], ["a"])}, "keys", "queries")


def test_missing_matplotlib_is_reported_with_the_install_command(monkeypatch, stderr):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not drawing.available()
    assert "pip install -e '.[plots]'" in stderr()
