"""One table, five forms: values survive, markup is escaped."""

import csv
import dataclasses
import io
import json
import re
import zlib

import pytest

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


def test_csv_holds_raw_values_and_splits_intervals():
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows[0] == ["name", "bleu", "bleu_low", "bleu_high", "p", "n"]
    assert rows[1] == ["a_b|c", "37.456", "36.0", "38.9", "0.0123", "29000"]
    assert rows[2] == ["{x}\\", "", "", "", "", "0"]


def test_json_is_plain():
    found = json.loads(files.json_text(TABLE.as_json()))
    assert found["rows"][0] == {
        "name": "a_b|c",
        "bleu": {"value": 37.456, "low": 36.0, "high": 38.9},
        "p": 0.0123,
        "n": 29000,
    }
    assert found["rows"][1]["bleu"]["value"] is None
    assert found["notes"] == ["read #1"]
    stored = StoredTable.model_validate_json(json.dumps(found), strict=True)
    assert (stored.table.cells(), stored.table.csv()) == (TABLE.cells(), TABLE.csv())
    assert stored.model_dump() == found


def test_latex_escapes_everything_it_would_read_as_markup():
    source = TABLE.latex()
    assert r"a\_b\textbar{}c & 37.46 & [36.00, 38.90] & +0.012 & 29,000 \\" in source
    assert r"\{x\}\textbackslash{} & -- & & -- & 0 \\" in source
    assert r"$\Delta$\_p" in source
    assert (
        tex("50 % & $2 #1 ~^<>")
        == r"50 \% \& \$2 \#1 \textasciitilde{}\textasciicircum{}\textless{}\textgreater{}"
    )
    body = [line for line in source.splitlines() if not line.startswith("%")]
    assert (
        body[0] == r"\begin{tabular}{lr@{~}rrr}"
        and body[2] == r"name & \multicolumn{2}{c}{BLEU} & $\Delta$\_p & n \\"
    )


def test_latex_keeps_what_tex_would_join_or_take_for_an_option():
    assert tex("--set ''a'' ,, a---b") == "-{}-set '{}'a'{}' ,{}, a-{}-{}-b"
    assert tex('"`\nΣα²') == r"''\textasciigrave{} $\Sigma$$\alpha$$^2$"
    rows = [["[10,20)", -0.5], ["*", None], ["a-b", 2]]
    source = Table(
        "t", "two\nlines", [Column("a", "a", left=True), Column("b", "b", 1)], rows, ["\\end\nx"]
    ).latex()
    assert source.splitlines()[5:] == [
        *(r"\midrule", r"{}[10,20) & $-$0.5 \\", r"{}* & -- \\", r"a-b & 2 \\"),
        *(r"\bottomrule", r"\end{tabular}", r"% \end x"),
    ]
    assert source.startswith("% two lines\n") and "pdflatex" not in source
    assert (
        "% it has letters that pdflatex lacks"
        in Table("t", "", [Column("a", "a")], [["猫"]]).latex()
    )


def test_markdown_escapes_bars_and_aligns():
    tags = dataclasses.replace(TABLE, title="</s>", notes=["<unk>, &amp; <10, p < 0.05"])
    title, *_, note = tags.markdown().splitlines()
    assert (title, note.strip()) == (r"**\</s>**", r"\<unk>, \&amp; <10, p < 0.05")
    lines = TABLE.markdown().splitlines()
    assert lines[2:5] == [
        "| name | BLEU | Δ_p | n |",
        "|:---|---:|---:|---:|",
        r"| a_b\|c | 37.46 [36.00, 38.90] | +0.012 | 29,000 |",
    ]


def test_print_writes_each_form_to_stdout(capsys):
    for form, sign in {
        "table": "37.46 [36.00",
        "md": "|:---|",
        "tex": "toprule",
        "csv": "bleu_low",
    }.items():
        TABLE.print(form)
        out, err = capsys.readouterr()
        assert sign in out
        assert err == ""
    check_format("md")
    with pytest.raises(ConfigError, match="unknown format 'markdwn'"):
        check_format("markdwn")


def test_a_row_of_the_wrong_length_is_our_own_fault():
    with pytest.raises(ValueError, match="shorter"):
        Table("t", "", [Column("a", "a")], [[1, 2]]).cells()
    with pytest.raises(ValueError, match="a row has other cells"):
        StoredTable.model_validate({**TABLE.as_json(), "rows": [{"name": "a"}]})


def test_numbers_that_are_not_finite_are_shown_as_nothing():
    assert text(float("nan"), Column("a", "a")) == "–"
    assert text(Estimate(1.0), Column("a", "a")) == "1.00"
    p = Column("p", "p", 3, below=0.001)
    assert (text(0.0, p), text(0.001, p)) == ("<0.001", "0.001")
    assert Table("t", "", [Column("a", "a")], [[float("inf")]]).as_json()["rows"] == [{"a": None}]


def test_bars_are_as_long_as_their_share():
    assert bar(10, 10, 4) == "████"
    assert bar(5, 10, 4) == "██"
    assert len(bar(3.3, 10, 30)) == 10
    assert (bar(None, 10, 30), bar(1, 0, 30), bar(0, 10, 30)) == ("", "", "")


def words_of(draw, *words):
    """Draw a figure twice: the same bytes, with these words as text."""
    pytest.importorskip("matplotlib", reason="figures need the extra [plots]")
    drawn = draw()
    assert drawn == draw() and drawn.lstrip().startswith("<?xml")
    for word in words:
        assert f">{word}<" in drawn, word
    return drawn


def test_a_figure_is_reproducible_svg_with_text_as_text():
    series = {
        "a": [Estimate(10, 9, 11), Estimate(None), Estimate(None)],
        "b_1": [Estimate(12.5), Estimate(3, 4, 5), Estimate(None)],
    }

    def draw():
        groups = ["short", "long", "nobody"]
        return figures.grouped_bars(groups, series, "source length", "BLEU", "test & more")

    words = ("source length", "BLEU", "b_1", "test &amp; more", "short", "long")
    assert ">nobody<" not in words_of(draw, *words)


def test_a_bar_without_interval_has_no_error_bar():
    pytest.importorskip("matplotlib")
    both, one = (
        figures.grouped_bars(["a", "b"], {"x": series}, "length", "BLEU").count("<use ")
        for series in (
            [Estimate(9.0, 8.0, 10.0), Estimate(5.0, 4.0, 6.0)],
            [Estimate(9.0, 8.0, 10.0), Estimate(5.0)],
        )
    )
    assert both - one == 2  # the caps of an interval


def test_bars_beyond_the_tenth_are_told_apart_by_a_hatch():
    pytest.importorskip("matplotlib")
    for count, hatched in ((10, 0), (12, 2)):
        series = {f"s{i}": [Estimate(9.0)] for i in range(count)}
        drawn = figures.grouped_bars(["a"], series, "length", "BLEU")
        assert len(re.findall("fill: url", drawn)) == 2 * hatched  # the bar, and in the legend


def test_a_long_name_leaves_room_for_the_figure():
    pytest.importorskip("matplotlib")
    names = [f"{'x' * 100}{i}" for i in range(3)]
    points = [figures.Difference(name, name, Estimate(1.0, 0.5, 2.0)) for name in names]
    curves = [figures.Curve(name, [1, 2], [3.0, 4.0]) for name in names]
    for drawn in (
        figures.differences(points, "BLEU", names),
        figures.curves([figures.Panel("updates", "loss", curves)]),
    ):
        shown = drawn.partition("</dc:description>")[2]
        assert f"{'x' * 24}…{'x' * 14}2</text>" in shown and "x" * 40 not in shown
        assert drawing.as_pdf(drawn, 3.3)


def test_no_warning_of_matplotlib_reaches_the_user(recwarn):
    pytest.importorskip("matplotlib")
    series = {"x" * 30 + str(i): [Estimate(9.0)] for i in range(20)}
    drawn = figures.grouped_bars(["a"], series, "length", "BLEU", "long title " * 50)
    assert drawing.as_pdf(drawn, 3.0)
    assert not recwarn.list


def test_heat_maps_are_reproducible_svg_too():
    panels = {
        "one": Heat([[0.0, 1.0]], ["$x$"], ["a", "</s>"]),
        "two": Heat([[0.5], [0.5]], ["p", "q"], ["r"]),
    }
    words = ("one", "two", "$x$", "&lt;/s&gt;", "keys", "queries")
    words_of(lambda: figures.heat_map(panels, "keys", "queries"), *words)


def test_curves_share_a_legend_and_have_whole_numbers_below():
    points = [
        figures.Curve("a$1$", [1, 2], [3.0, 4.0], faint=True),
        figures.Curve("a$1$", [2], [5.0]),
        figures.Curve("b", [1], [2.0]),
    ]
    rows = [figures.Panel("updates", "loss", points), figures.Panel("epochs", "BLEU", points[:1])]
    words = ("a$1$", "b", "updates", "epochs", "loss", "BLEU")
    drawn = words_of(lambda: figures.curves(rows), *words)
    assert {drawn.count(f">{word}<") for word in words} == {1}
    marked = [figures.Panel("updates", "loss", [dataclasses.replace(points[0], faint=False)])]
    plain = [figures.Panel("updates", "loss", points[:1])]
    layers = figures.curves([figures.Panel("layer", "dv", [figures.Curve("a", [1, 2], [3, 4])])])
    assert ">2</text>" in layers and ">1.5</text>" not in layers
    markers = figures.curves(marked).count("<use") - figures.curves(plain).count("<use")
    assert markers == 3  # of two points and the legend
    assert ">updates<" in figures.curves([figures.Panel("updates", "loss", [])])


def test_heat_maps_have_one_scale():
    """A shade is the same number in every panel."""
    pytest.importorskip("matplotlib", reason="figures need the extra [plots]")

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


def test_every_drawing_is_tried():
    assert EVERY_DRAWING.keys() == drawing.DRAWINGS.keys()


@pytest.mark.parametrize("name", EVERY_DRAWING)
def test_a_figure_is_drawn_again_for_a_column_of_a_paper(name):
    pytest.importorskip("matplotlib", reason="figures need the extra [plots]")
    svg = getattr(figures, name)(*EVERY_DRAWING[name])
    pdf = drawing.as_pdf(svg, 3.3)
    assert pdf == drawing.as_pdf(svg, 3.3) and pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf  # TrueType fonts, embedded
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    page = zlib.decompress(streams[0])
    sizes = [float(size) for size in re.findall(rb"/F[0-9]+ ([0-9.]+) Tf", page)]
    assert sizes and min(sizes) >= 6  # points, at the width of a column
    box = re.search(rb"/MediaBox \[ *0 0 ([0-9.]+)", pdf)
    assert float(box[1]) == pytest.approx(3.3 * 72)
    assert getattr(figures, name)(*EVERY_DRAWING[name]) == svg  # the page's figure is as before


def test_a_mean_is_a_diamond_and_its_seeds_are_dots():
    pytest.importorskip("matplotlib", reason="figures need the extra [plots]")
    shapes = []
    for seeds in ((), (0.5, 1.5)):
        point = figures.Difference("a", "a", Estimate(1.0, -1.0, 2.0), seeds)
        svg = figures.differences([point], "Δ BLEU", ["a"])
        outlines = re.findall(r'<defs>\s*<path id="([^"]*)" d="([^"]*)"', svg)
        closed = [
            (svg.count(f'xlink:href="#{name}"'), "C" in d) for name, d in outlines if "z" in d
        ]
        shapes.append(sorted(closed))
    assert shapes == [[(1, True)], [(1, False), (2, True)]]


@pytest.mark.parametrize("svg", ["", "<svg/>", "no markup"])
def test_a_figure_without_its_numbers_is_not_drawn_again(svg):
    assert drawing.as_pdf(svg, 3.3) is None


@pytest.mark.filterwarnings("error")
def test_a_script_that_the_drawing_font_lacks_is_text_all_the_same():
    pytest.importorskip("matplotlib", reason="figures need the extra [plots]")
    assert ">猫<" in figures.heat_map({"one": Heat([[1.0]], ["猫"], ["a"])}, "keys", "queries")


def test_without_matplotlib_one_line_says_how_to_get_it(monkeypatch, stderr):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not drawing.available()
    assert "pip install -e '.[plots]'" in stderr()
