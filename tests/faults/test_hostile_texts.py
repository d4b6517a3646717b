"""Strings of a stranger's run are shown as text: in the report, on a terminal, in CSV and LaTeX."""

import csv
import io
import json
import re
import shlex
import shutil
import warnings

import pytest
from typer.testing import CliRunner

from nmtkit import console
from nmtkit.cli import app
from nmtkit.errors import NmtkitError
from nmtkit.report import stage
from nmtkit.run import Run
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Table, csv_text, tex, text_column
from tests.manifests import parts_with_paths, with_change
from tests.report.browser import Browser, find
from tests.report.conftest import FIGURE, Page, make

MARKUP = (
    "</script></style></textarea></title>--><img src=x onerror=hit()><svg onload=hit()>"
    '<a href=javascript:hit() onclick=hit()>x</a>"\' onmouseover=hit() x="{{7*7}}'
    "<iframe src=http://127.0.0.1:9/></iframe>"
)
HOSTILE = f"=cmd|' /C calc'!A0 \x1b]0;owned\x07\x1b[2J\x9b31m\x7f\x08\u202e\u2066\u200f {MARKUP}"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
HANDLED = {"name", "set", "system", "systems", "baseline", "set_name", "format", "key"}
"""Names, which other tests cover, and keys that must agree with other files."""


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A small run with findings."""
    made = make(tmp_path_factory.mktemp("hostile") / "run")
    made.finding("cost", "cost")
    made.finding("gates", "gates", figure=FIGURE.replace("<g", "<g onload='hit()'"))
    return made.run


def leaves(value):
    """Return the paths of the strings in a JSON value."""
    return [
        path
        for path, part in parts_with_paths(value)
        if isinstance(part, str) and path[-1] not in HANDLED
    ]


def spoil(run):
    """Replace every string of a run's files with which a report can still be made.

    Returns: the numbers of replaced and of refused strings.
    """
    paths = [
        *(run.path / "score/test/scores.json", run.path / "prep/manifest.json"),
        *sorted(run.path.glob("analyze/*/finding.json")),
        *(run.path / "history.jsonl", *sorted(run.path.glob("systems/*/metrics.jsonl"))),
    ]
    for path in [*run.path.glob("systems/*/translate/test/hyp.txt"), run.source("test")]:
        lines = path.read_text("utf-8").split("\n")
        path.write_text("\n".join([f"{HOSTILE} {line}".strip() for line in lines[:-1]] + [""]))
    count = refused = 0
    for path in paths:
        lines = path.read_text("utf-8")
        first, _, rest = lines.partition("\n") if path.suffix == ".jsonl" else (lines, "", "")
        value = json.loads(first)
        groups = [leaves(value)]
        while groups:  # replace all strings of a group; if no report can be made, half of them
            group = groups.pop()
            spoiled = value
            for leaf in group:
                spoiled = with_change(spoiled, leaf, HOSTILE)
            path.write_text(f"{json.dumps(spoiled)}\n{rest}", "utf-8")
            if accepted(run, path):
                value, count = spoiled, count + len(group)
            elif len(group) > 1:
                groups += [group[len(group) // 2 :], group[: len(group) // 2]]
            else:
                refused += 1
        path.write_text(f"{json.dumps(value)}\n{rest}", "utf-8")
    return count, refused


def accepted(run, path):
    """True if a report can be made and reads the file."""
    try:
        html = stage.report(run, force=True).read_text("utf-8")
    except NmtkitError as error:
        assert "internal" not in str(error)
        return False
    check(html)
    return "cannot be read" not in html or path.suffix == ".jsonl"


def check(html):
    """Check that no element, attribute, script or address of the page comes from the run."""
    page = Page(html)
    for tag, attributes in page.elements:
        assert tag not in {"img", "iframe", "object", "embed", "base", "textarea", "video"}, tag
        for name, value in attributes.items():
            assert not name.startswith("on") and name != "srcdoc" and name.isprintable()
            if name in {"href", "src", "xlink:href", "action", "formaction"}:
                assert value.startswith(("#", "data:text/plain;", "data:,")), value
    assert len(page.all("script")) == 2 and len(page.all("style")) == 1
    assert page.all("meta")[1]["http-equiv"] == "Content-Security-Policy"


@pytest.fixture(scope="module")
def hostile(original, tmp_path_factory):
    """The run with every string replaced by a hostile one, where possible."""
    run = Run(shutil.copytree(original.path, tmp_path_factory.mktemp("spoiled") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nmtkit.tables.drawing.available", lambda: False)  # drawing is slow
        count, refused = spoil(run)
    assert count >= 40 and refused < count, (count, refused)
    return run


def test_report_shows_hostile_strings_as_text(hostile, tmp_path):
    """Checked by an HTML parser, and in a browser if one is installed."""
    path = stage.report(hostile, force=True, title=HOSTILE)
    check(path.read_text("utf-8"))
    if find() is None:
        warnings.warn("no browser: only an HTML parser checked the page", stacklevel=1)
        return
    browser = Browser(tmp_path)
    try:
        browser.open(path)
        assert browser.run("typeof hit") == "undefined"
        names = "img, iframe, object, [onerror], [onload], [onclick], [onmouseover]"
        assert browser.run(f"document.querySelectorAll({json.dumps(names)}).length") == 0
        assert browser.run("document.querySelectorAll('script').length") == 2
        assert browser.run("document.getElementById('results').children.length") > 0
        assert not browser.errors
        assert all(url.startswith(("file:", "data:")) for url in browser.requests)
    finally:
        browser.close()


COMMANDS = (
    "status",
    "score",
    *(f"score --format {form}" for form in ("json", "md", "tex", "csv")),
    "score --force --by-length",
    "report",
    "report --force",
    *(f"analyze {name}" for name in ("cost", "gates", "examples", "lengths", "convergence")),
    *("analyze", "analyze examples --sentence 2 --force", "settings", "variants", "datasets"),
    *("translate", "train", "export --system base", "translate -", "prep demo --size 20"),
)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_print_no_escape_sequences(hostile, tmp_path, line):
    run = shutil.copytree(hostile.path, tmp_path / "run")
    name = line.split()[0]
    option = "" if name in {"settings", "variants", "datasets", "status"} else f" --run {run}"
    if name == "status":
        option = f" {run}"
    result = CliRunner().invoke(app, shlex.split(line + option), input=f"{HOSTILE}\n")
    assert "internal error" not in result.stderr, result.stderr
    assert "no such option" not in result.stderr.lower(), result.stderr
    assert not CONTROL.search(result.output), CONTROL.search(result.output)


@pytest.mark.parametrize("name", ["x\x1b]0;owned\x07", "$(touch owned)", "a;b", "=1+cmd", "-rf"])
def test_folder_with_a_hostile_name_is_no_system(original, tmp_path, name):
    """Messages quote the name: a terminal or a shell could obey it."""
    run = shutil.copytree(original.path, tmp_path / "run")
    (run / "systems/base").rename(run / "systems" / name)
    for line in (f"status {run}", f"translate --run {run}", f"score --run {run} --force"):
        console.warn_once.cache_clear()  # as in a new process
        result = CliRunner().invoke(app, line.split())
        assert f"{name!r} cannot name a system" in result.output.replace("\n", " ")
        assert "in: --system" not in result.output
        assert not CONTROL.search(result.output)


def test_folder_with_an_invalid_name_stops_no_command(original, tmp_path):
    """A user may keep other folders anywhere in a run."""
    run = shutil.copytree(original.path, tmp_path / "run")
    shutil.copytree(run / "systems/base", run / "systems/(base) copy")
    for line in (f"status {run}", f"score --run {run} --force --resamples 10 --trials 10"):
        console.warn_once.cache_clear()
        result = CliRunner().invoke(app, line.split())
        assert result.exit_code == 0, result.output
        assert "'(base) copy' cannot name a system" in result.output.replace("\n", " ")


def test_control_characters_of_text_direction_are_escaped():
    """These characters show a line in another order, or as two lines."""
    turning = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    assert console.visible(turning) == "".join(f"\\u{ord(c):04x}" for c in turning)
    assert console.visible("\u200d\u2027\u202f\u206a") == "\u200d\u2027\u202f\u206a"


def test_progress_label_is_not_read_as_markup(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", screen)
    with console.progress("[link=http://x]a[/link]\x1b]0;owned\x07", 1) as advance:
        advance(1)
    assert "[link=http://x]a[/link]\\u001b]0;owned\\u0007" in screen.getvalue()


def test_dollars_in_a_figure_are_not_read_as_mathematics():
    """matplotlib would read "$5-$6" as mathematics, and fail at "$_$"."""
    curve = figures.Curve("$_$ for $5-$6", [1.0], [1.0])
    assert "$_$ for $5-$6" in figures.curves([figures.Panel("$_$", "y", [curve])])


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        *((f"{sign}1+cmd", f"'{sign}1+cmd") for sign in "=+-@\t\n"),
        *(("\r=1", "' =1"), ("a\r=1", "a =1")),
        *(("-0.5", "-0.5"), ("+1e-3", "+1e-3"), (-0.5, "-0.5"), ("a=b", "a=b"), ("-", "'-")),
        *(("", ""), (None, ""), ("-1 +cmd", "'-1 +cmd"), ("-٣", "'-٣"), ("-1\n", "'-1\n")),
        # Some spreadsheets split a cell at these characters.
        *((f"a{separator}=1+1", f"a{separator}'=1+1") for separator in ";\t\n"),
        *((f"a;b;{sign}1;c", f"a;b;'{sign}1;c") for sign in "=+-@"),
        *(('a;"=1', "a;'\"=1"), ("a;\t@b", "a;\t'@b"), ("a; b=1", "a; b=1")),
    ],
)
def test_no_cell_of_a_csv_table_is_a_formula(cell, written):
    """Neither in the head of a table nor in a cell; numbers stay."""
    assert list(csv.reader(io.StringIO(csv_text([[cell, "x"]]), newline=""))) == [[written, "x"]]
    table = Table("t", "t", [text_column("=head"), Column("n", "n")], [[cell, -0.5]])
    rows = list(csv.reader(io.StringIO(table.csv(), newline="")))
    assert rows == [["'=head", "n"], [written, "-0.5"]]


def test_latex_text_has_no_line_breaks_and_no_commands():
    assert tex("a\rb\x0bc\x85d\u2028e\x1bf") == "a b c d e f"
    specials = tex(r"\input{x} & % $ # _ { } ~ ^ ^^M")
    assert not re.search(r"(?<!\\)[&%$#_~^]", specials.replace(r"\textbackslash{}", ""))
    assert r"\input" not in specials
