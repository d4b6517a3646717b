"""The report of a small run: all that the stages wrote is in the page, nothing in it is markup,
and what is missing is said.
"""

import base64
import functools
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmtkit.analyze import ANALYSES
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.attention import SentenceAttention, SystemAttention
from nmtkit.curves import AXES
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.models import checkpoints
from nmtkit.records import FindingInputs, SystemRecord
from nmtkit.report import comparison, explorer, page, stage, svg
from nmtkit.report.commands import analyze_command
from nmtkit.report.contents import read_contents
from nmtkit.report.texts import Texts, differences, read_texts, side_by_side
from nmtkit.run import Run
from nmtkit.score.resampling import FEW
from nmtkit.score.result_tables import significance_table
from nmtkit.score.seeds import NOT_KNOWN
from nmtkit.score.significance import FEW_DIFFERENT
from nmtkit.score.stage import score
from nmtkit.score.stored_scores import (
    Comparison,
    MetricScore,
    Scores,
    SignificanceTest,
    SystemScores,
)
from nmtkit.tables import drawing
from nmtkit.tables.table import Column, Estimate, Table, text_column
from tests.manifests import edit, read_json, write_json
from tests.processes import python
from tests.refused import refused
from tests.score.conftest import write

from .conftest import FIGURE, SCRIPT, ReportedRun, make

OUTSIDE = re.compile(
    r"""(?:src|href|srcset|action|data)\s*=\s*["']?\s*(?:https?:|//)|url\(\s*["']?(?:https?:|//)|@import""",
    re.I,
)


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """A page is ten times as long in the making if it draws its own figures. Gives what lets it."""
    monkeypatch.setattr(drawing, "available", lambda: False)
    return monkeypatch.undo


def test_every_system_set_and_finding_is_in_the_page(tmp_path, stdout, undrawn):
    undrawn()
    made = make(tmp_path / "run", sets=("test", "other"))
    for name in [*ANALYSES, "of_somebody_else"]:
        made.finding(name, f"what {name} shows")
    stdout()
    page = made.page()
    for name in [*ANALYSES, "of_somebody_else"]:
        assert (
            f"hat {name} shows" in page.text
            and f"How {name} is read." in page.text
            and f"The table of {name}" in page.text
        )
    assert len(page.all("article")) == len(ANALYSES) + 1
    labels = [one["aria-label"] for one in page.all("svg")]
    # The curves of `convergence` are drawn anew, over three axes.
    assert len([label for label in labels if "figure; its numbers" in label]) == len(ANALYSES)
    assert {"BLEU by source length on test", "BLEU by source length on other"} < set(labels)
    for name in ("base", "own", "test: 40 sentences", "other: 40 sentences"):
        assert name in page.text
    assert stdout() == f"{made.run.path}/report/index.html\n"


def test_numbers_are_those_of_the_scores(reported, undrawn):
    undrawn()
    page = reported.page()
    result = read_json(reported.run.path / "score/test/scores.json")
    base, own = result["systems"]
    for system in (base, own):
        assert f"{system['scores']['bleu']['value']:.2f}" in page.text
        assert system["scores"]["bleu"]["signature"] in page.text
    delta = own["differences"]["bleu"]
    assert "Each system was trained once" in page.text
    assert (
        f"own is better than base: {delta['value']:+.2f} BLEU [{delta['low']:+.2f},"
        f" {delta['high']:+.2f}]" in page.text
    )
    curves = {f"Loss and dev BLEU of each training by {axis}" for axis in AXES[:3]}
    others = {"BLEU by source length on test", "Differences in BLEU on test"}
    assert curves | others == {one["aria-label"] for one in page.all("svg")}
    assert f"nmtkit analyze convergence --run {reported.run.path}" in page.text
    assert "abc1234-dirty" in page.text and "the checkout had changes" in page.text
    assert "took, seconds" in page.text and "+0000 200 0" in page.text  # from start to end
    assert (
        "Settings in which the systems differ" in page.text and "test test 40" in page.text
    )  # the corpus: set, split, lines


@pytest.mark.parametrize(
    ("low", "p", "said"),
    [
        (0.5, 0.01, "own is better than base"),
        (-0.1, 0.04, "own is perhaps better"),
        (-0.1, 0.2, "not clearly different from"),
    ],
)
def test_a_verdict_needs_p_and_interval(low, p, said):
    def system(name, bleu, *compared):
        scores = {"bleu": MetricScore("BLEU", bleu, None, None, "", {})}
        return SystemScores(name, scores, Estimate(1.0), 0, *compared)

    tested = {"bleu": Estimate(1.0, low, 2.0)}, {"t": {"bleu": Comparison(p, "")}}
    own = system("own", 21.0, *tested)
    result = Scores.model_construct(
        baseline="base",
        test="t",
        tests={"t": SignificanceTest("", "", 0.001)},
        systems=[system("base", 20.0, {}, {}), own],
    )
    assert said in comparison.verdicts(result)[0]
    own.differences["bleu"] = Estimate(-1.0, -2.0, -low)
    assert said.replace("better", "worse") in comparison.verdicts(result)[0]
    own.differences["bleu"] = Estimate(0.0, 0.0, 0.0)
    assert "own is not clearly different from base: +0.00" in comparison.verdicts(result)[0]


def test_cost_of_training_and_decoding(reported):
    def own():
        table = comparison.tables(read_contents(reported.run), "test")[-1]
        return table.as_json()["rows"][1], [column.header for column in table.columns[5:]]

    SystemRecord(made=1, parameters=12).write(reported.run.system("own").record)
    row, headers = own()
    assert {"updates": 10, "seed": 1, "parameters": 12e-6}.items() <= row.items()
    assert row["minutes"] == pytest.approx(1.0) and headers == []
    columns = [
        text_column("system"),
        *(Column(key, "time ×", interval=True) for key in comparison.TIMES),
    ]
    times = [["own", Estimate(1.2), Estimate(1.5)]]
    kept = {"table": Table("cost", "Cost", columns, times)}
    facts = {"baseline": "base", "set": "dev", "measured": {}}
    reported.finding("cost", "cost", facts=facts, **kept)
    row, headers = own()
    assert headers == ["update, × (logged)", "search, × (logged on dev)"]
    assert [row[key]["value"] for key in comparison.TIMES] == [1.2, 1.5]
    reported.finding("cost", "cost", facts=facts | {"measured": {"own": {}}}, **kept)
    assert own()[1] == ["update, × (measured)", "search, × (measured on dev)"]
    # Of another baseline, or out of date, the times say nothing here.
    stale = {"systems": ["base", "own"], "files": {"systems/own/config.toml": "another"}}
    for change in ({"facts": {**facts, "baseline": "own"}}, {"facts": facts, "made_from": stale}):
        reported.finding("cost", "cost", **change, **kept)
        assert own()[1] == []
    (reported.run.path / "systems/own/metrics.jsonl").unlink()
    assert own()[0]["updates"] is None


@pytest.mark.parametrize(
    ("made_from", "expected"),
    [
        ({}, "nmtkit analyze agreement"),
        (
            {"systems": ["a", "b"], "options": {"pairs": "", "scores": [], "measure": False}},
            "nmtkit analyze agreement",
        ),
        (
            {"systems": ["b"], "options": {"set_names": ["dev"]}},
            "nmtkit analyze agreement --system b --on dev",
        ),
        (
            {"options": {"pairs": "x", "score_kind": "auto"}, "words": ["--pairs", "x"]},
            "nmtkit analyze agreement --pairs x",
        ),
    ],
)
def test_a_finding_is_made_again_as_it_was_made(made_from, expected):
    inputs = FindingInputs(**{"systems": ["a", "b"], "files": {}, **made_from})
    assert analyze_command("agreement", inputs, ["a", "b"]) == expected


def test_the_next_seed_is_one_that_is_not_in_use(reported):
    config = reported.run.path / "systems/own/config.toml"
    edit(config, "seed = 1", "seed = 2")
    assert any(
        "and --seed 3; then:" in remark.text
        for remark in comparison.cautions(read_contents(reported.run))
    )


def test_markup_in_a_hypothesis_stays_text(reported):
    reported.finding(
        "lengths",
        SCRIPT,
        FIGURE.replace(
            "</g>", "</g><script>alert(1)</script><a href='https://e.org' onclick='x()'>a</a>"
        ),
    )
    (reported.run.path / "systems/own/config.toml").write_text(
        f"variant = {json.dumps(SCRIPT)}\n", "utf-8"
    )
    page = reported.page(title=SCRIPT)
    assert (
        len(page.all("script")) == 2 and not page.all("b") and not page.all("a")[-1].get("onclick")
    )
    assert page.text.count("<script>alert('x')</script>") >= 4
    data = json.loads(page.data)
    assert data["sets"][0]["hyps"][1][2] == SCRIPT == data["sets"][0]["src"][2]
    assert "<" not in page.data


def test_the_page_needs_nothing_from_elsewhere(reported):
    reported.finding("cost", "cost")
    html = stage.report(reported.run).read_text("utf-8")
    assert not OUTSIDE.search(html)
    assert "default-src 'none'" in html
    for bad in (
        "<img src=https://e.org>",
        "<link href='//e.org/x.css'>",
        "@import 'x'",
        "url(http://e.org)",
    ):
        assert OUTSIDE.search(bad)


def test_a_papers_numbers_stand_on_the_page_as_tables(reported):
    """Those beside scores, and those beside a finding; and what stands in backticks is code."""
    title = "Table 7, printed and measured"
    beside = Table("paper", title, [text_column("row")], [["<b>Ours</b>"]])
    table = Table("cost", "Cost", [text_column("system")], [["base"]])
    text = "Then `nmtkit analyze <x>` it."
    made = Finding(table, text, paper=beside, name="cost", title="cost")
    inputs = FindingInputs(systems=["base", "own"], files={})
    made.write(reported.run.path / "analyze" / "cost", inputs)
    scores = reported.run.path / "score" / "test" / "scores.json"
    result = read_json(scores) | {"paper": beside.as_json()}
    write_json(scores, result)
    html = stage.report(reported.run).read_text("utf-8")
    assert html.count(f"<caption><span>{title}</span></caption>") == 2
    assert html.count(">&lt;b&gt;Ours&lt;/b&gt;<") == 2
    assert "<code>nmtkit analyze &lt;x&gt;</code> it." in html


URI = 'href="data:image/png;base64,AAAA"'


@pytest.mark.parametrize(
    "style",
    [
        *("fill: url(x)", "fill: URL( '#a')", r"fill: u\72l(//e.org/a)", "mask: src('//e.org/a')"),
        *("mask: image-set('//e.org/a' 1x)", "position: fixed", "fill: url(#a), url(//e.org/a)"),
    ],
)
def test_no_style_of_a_figure_loads_or_moves_something(style):
    cleaned = svg.inline(FIGURE.replace("<path ", f'<path style="{style}" '), "f-", "")
    assert "<path id" in cleaned and cleaned.count("style=") == 1


def test_a_figure_keeps_its_place_in_the_page():
    """Its outermost element has attributes of nmtkit alone."""
    placed = (
        'style="inset:0;height:100vh" class="bar" overflow="visible" transform="scale(9)" id="b" '
    )
    for figure in (FIGURE, FIGURE.replace('width="90pt"', 'width="100vw"')):
        root = svg.inline(figure.replace("<svg ", "<svg " + placed), "f-", "").partition("><")[0]
        assert not re.search("inset|vh|class|overflow|transform|vw| id=", root)
        assert 'viewBox="0 0 90 50"' in root


def test_a_deeply_nested_figure_is_left_out(request):
    request.addfinalizer(functools.partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(1_000)  # torch's compiler may have raised it in this process
    for depth in (400, 1_200, 100_000):
        nested = FIGURE.replace("</svg>", "<g>" * depth + "</g>" * depth + "</svg>")
        assert (svg.inline(nested, "f-", "") is None) == (depth > 1_000)


def test_figures_keep_apart_and_run_nothing():
    text = FIGURE.replace(
        "</svg>",
        '<use xlink:href="#m" style="fill: url(#a)"'
        ' xmlns:xlink="http://www.w3.org/1999/xlink"/></svg>',
    )
    one, two = (svg.inline(text, prefix, 'a "label"') for prefix in ("f1-", "f2-"))
    assert 'id="f1-m"' in one and 'href="#f1-m"' in one and "url(#f1-a)" in one and "f1-" not in two
    assert "width: 90pt; min-width: 76.5pt" in one and "&quot;label&quot;" in one
    hostile = FIGURE.replace("<g ", '<g onclick="x()" style="fill: url(https://e.org/a)" ').replace(
        "</svg>",
        "<foreignObject><p>x</p></foreignObject><style>*{}</style><image"
        ' href="https://e.org/a.png" src="//e.org/a" srcset="//e.org/a 2x"/>'
        f"<desc>kept<image {URI}/></desc><title><g><image {URI}/></g></title></svg>",
    )
    cleaned = svg.inline(hostile, "f-", "")
    assert not re.search("onclick|e.org|foreignObject|<style|src|<image[^>]*data", cleaned)
    assert "kept</" in cleaned
    assert svg.inline("no svg", "f-", "") is None and svg.inline("<html/>", "f-", "") is None


def test_a_figure_has_the_ground_and_the_ink_of_the_page():
    """But for what is white or black because of its value, as in a heat map."""
    ground = (
        '<g id="patch_2"><path d="M 0 0" style="fill: #ffffff"/><path d="M 1 1" style="fill:'
        ' #1f77b4; stroke: #000000"/></g>'
    )
    heat = (
        '<g id="QuadMesh_1"><path d="M 2 2" style="fill: #ffffff"/><path d="M 3 3" style="fill:'
        ' #000000"/></g>'
    )
    found = svg.inline(FIGURE.replace("</svg>", ground + heat + "</svg>"), "f-", "")
    assert re.findall('style="((?:fill|stroke)[^"]*)"', found) == [
        "fill: none",
        "fill: #1f77b4; stroke: currentColor",
        "fill: #ffffff",
        "fill: #000000",
    ]


def test_colours_of_figures_are_seen_on_either_page():
    style = (Path(stage.__file__).parent / "templates" / "page.css").read_text("utf-8")
    grounds = re.findall("--back: (#[0-9a-f]{6})", style)

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert len(set(grounds)) == 2 and len(set(drawing.COLOURS)) == 10
    for colour in drawing.COLOURS:
        for back in grounds:
            low, high = sorted((luminance(colour), luminance(back)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, back)


@pytest.mark.parametrize("missing", ["prep", "train", "translate", "score"])
def test_without_scores_the_next_command_is_named(reported, missing):
    path = reported.run.path
    shutil.rmtree(path / "score")
    stages = {
        "translate": ("systems/base/translate", "systems/own/translate"),
        "train": ("systems",),
        "prep": ("systems", "prep"),
    }
    for folder in stages.get(missing, ()):
        shutil.rmtree(path / folder)
    assert f"nmtkit {missing}" in refused(DataError, None, stage.report, reported.run).hint
    assert not (path / "report" / "index.html").exists()


def test_one_system(tmp_path):
    made = make(tmp_path / "run", systems=(("only", 0.2),))
    page = made.page()
    assert "there is no other system to compare it with" in page.text
    assert "among the worst of only" in page.text and page.all("mark")
    assert json.loads(page.data)["sets"][0]["systems"] == ["only"]


def test_what_is_missing_is_said(reported):
    run = reported.run.path
    reported.finding("cost", "cost", figure=None, rows=1002)
    reported.finding("headroom", "headroom")
    reported.finding("lengths", "lengths", figure="no SVG")
    other = run / "analyze/headroom/finding.json"
    edit(other, '"format": 1', '"format": 99')
    scores = read_json(run / "score/test/scores.json")
    scores["made_from"] |= {"prepared": "another", "seeds": [[0, "seed"]]}
    write_json(run / "score/test/scores.json", scores)
    (run / "analyze/gates").mkdir()
    (run / "analyze/layers").mkdir()
    (run / "analyze/layers/finding.json").write_text('{"name": 1', "utf-8")
    for name, inputs in (
        ("weights", {"files": {}, "weights": {"../base": {}}}),
        ("alignment", {"files": {"systems/own/metrics.jsonl": "0"}, "prepared": "another"}),
    ):
        reported.finding(name, name, made_from={"systems": ["base"], **inputs})
    reported.add("later", 0.5, sets=[])
    (run / "systems/later/config.toml").write_text("variant = ", "utf-8")
    reported.add("unscored", 0.5)
    (run / "score/test/sentences.tsv").unlink()
    (run / "systems/own/metrics.jsonl").write_text("not JSON\n", "utf-8")
    first, *_ = (run / "history.jsonl").read_text("utf-8").splitlines()
    call = json.loads(first) | {"exit": 2}
    with open(run / "history.jsonl", "a", encoding="utf-8") as history:
        for number in range(200):
            print(json.dumps(call | {"argv": [f"call-{number}"]}), file=history)
    page = reported.page()
    for said in (
        "analyze/gates: it has no finding",
        "analyze/layers cannot be read",
        "analyze/weights cannot be read",
        "another version of nmtkit (format 99)",
        "sentences.tsv is missing",
        "not scored: unscored",
        "systems/later: its settings cannot be read (the file is damaged: ",
        "later: no checkpoint yet",
        "Made for base, without own",
        "Made before these changed: the prepared corpus, systems/own/metrics.jsonl",
        "score/test: made before these changed: the prepared corpus, how nmtkit computes scores",
        "the first 1000 of 1002 rows",
        "cannot be shown: it is damaged nmtkit analyze lengths --system base --system own --force",
        "nmtkit call-199",
        "nmtkit analyze convergence",
        "Analyses that were not made of this run",
        "history.jsonl: damaged lines that the table of calls leaves out: 1",
    ):
        assert said in page.text, said
    assert "without own, later" not in page.text  # what is in no table is not compared
    assert json.loads(page.data)["sets"][0]["scores"] == {}


@pytest.mark.parametrize("content", [None, "{}", "not JSON"])
def test_a_damaged_translation_is_named_and_a_missing_one_is_not(reported, content):
    path = reported.run.system("own").translation("test") / "meta.json"
    path.unlink(missing_ok=True)
    if content:
        path.write_text(content, "utf-8")
    named = "systems/own/translate/test: its meta.json cannot be read (the file is damaged"
    text = reported.page().text
    assert (named in text) == bool(content)
    assert ("nmtkit translate --system own --on test --force" in text) == bool(content)


def test_a_translation_with_earlier_weights_is_named(reported):
    folder = reported.run.system("own").checkpoints / "step-00009000"
    write(folder / "model.safetensors", [])
    weights = {"model.safetensors": {"bytes": 0, "sha256": "9" * 64}}
    write_json(folder / "manifest.json", {"format": 1, "step": 9000, "files": weights})
    command = "nmtkit translate --system own --on test --force"
    for step, old in (("3", True), ("9", False)):
        used = {"system": "own", "name": f"step-0000{step}000", "sha256": step * 64}
        reported.describe("own", checkpoints=[used])
        remarks = {one.text: one.command for one in read_contents(reported.run).remarks}
        found = remarks.get("test: the translation by own is older than its weights", "")
        assert found.startswith(f"{command} && nmtkit score --on test") is old


def test_cautions_and_curves_are_of_the_systems_compared(reported):
    reported.add("elsewhere", 0.5, sets=[])
    folder = reported.run.path / "systems/elsewhere"
    shutil.copy(reported.run.path / "systems/own/config.toml", folder / "config.toml")
    lines = (reported.run.path / "systems/own/metrics.jsonl").read_text("utf-8")
    (folder / "metrics.jsonl").write_text(lines.replace('"step": 10', '"step": 99'), "utf-8")
    found = read_contents(reported.run)
    assert [system.name for system in found.systems] == ["base", "own"]
    assert not any("not trained alike" in one.text for one in comparison.cautions(found))
    systems = found.scores["test"].systems
    own = next(system for system in systems if system.tests)
    for tested, said in ((1, False), (2, True)):
        systems[:] = [system for system in systems if not system.tests] + [own] * tested
        texts = [remark.text for remark in comparison.cautions(found)]
        words = f"{tested} differences are tested: about 0.2 of them"
        assert any(words in text for text in texts) is said
    found.scores["test"] = found.scores["test"].model_copy(update={"test": "sign"})
    texts = [remark.text for remark in comparison.cautions(found)]
    assert any("2 differences are tested: about 0.1 of them" in text for text in texts)
    own.tests["sign"]["bleu"] = Comparison(None, "")  # not tested
    assert not any("tested" in remark.text for remark in comparison.cautions(found))


@pytest.mark.parametrize("cell", ["nan", "1e999"])
def test_a_score_that_is_no_number_is_left_out(reported, cell):
    path = reported.run.path / "score/test/sentences.tsv"
    header, first, *rest = path.read_text("utf-8").split("\n")
    row = dict(zip(header.split("\t"), first.split("\t"), strict=True)) | {"own.bleu": cell}
    path.write_text("\n".join([header, "\t".join(row.values()), *rest]), "utf-8")
    assert "sentences.tsv is missing or of other translations" in reported.page().text


def test_a_p_of_nought_is_below_what_can_be_shown(reported):
    result = read_contents(reported.run).scores["test"]
    own = next(system for system in result.systems if system.tests)
    own.tests[result.test]["bleu"] = Comparison(0.0, "")  # of 20 resamples
    assert comparison.verdicts(result)[0].endswith("p < 0.050.")
    result = result.model_copy(update={"test": "sign"})
    own.tests["sign"]["bleu"] = Comparison(1e-9, "")
    assert not result.tests["sign"].finest
    assert comparison.verdicts(result)[0].endswith("p < 0.001.")


def test_texts_that_are_gone_are_said(reported):
    again = "nmtkit score --on test --significance paired_bootstrap --resamples 20 --trials 20"
    folder = reported.run.path / "systems/own/translate"
    output = folder / "test/hyp.txt"
    output.write_text(output.read_text("utf-8").partition("\n")[2], "utf-8")
    edit(reported.run.system("own").config, "[train]", "[search]\nbeam = 5\nnbest = 1\n\n[train]")
    reported.describe("own", settings={"beam": 2, "nbest": 1})
    translate = "nmtkit translate --system own --on test"
    for text, command in (
        (
            "the translation by own cannot be shown (39 lines for 40 sentences)",
            f"{translate} --set search.beam=2 --force",
        ),
        ("the translation by own cannot be shown (no such file", f"{translate} --force"),
    ):
        page, contents = reported.page(), read_contents(reported.run)
        read_texts(contents, "test")
        assert text in page.text and json.loads(page.data)["sets"][0]["systems"] == ["base"]
        assert any(one.command.startswith(f"{command} && {again}") for one in contents.remarks)
        shutil.rmtree(folder, ignore_errors=True)
    source = reported.run.source("test")
    source.write_text("too short\n", "utf-8")
    assert "nmtkit prep DATASET --force" in reported.page().text
    shutil.rmtree(reported.run.path / "systems")
    page = reported.page()
    assert "its texts cannot be shown" in page.text and "There are no texts to explore" in page.text
    assert "own is better than base" in page.text  # the scores are still there


def test_a_set_is_scored_again_as_it_was_scored(reported):
    drawn = {"resamples": 50, "ratio": 0.5, "trials": 60, "seed": 7}
    score(reported.run, against="own", metrics="bleu,ter", **drawn)
    (reported.run.path / "score/test/sentences.tsv").unlink()
    contents = read_contents(reported.run)
    read_texts(contents, "test")
    (command,) = (one.command for one in contents.remarks if "sentences.tsv" in one.text)
    assert command == (
        "nmtkit score --on test --significance paired_bootstrap --resamples 50 --ratio 0.5"
        " --trials 60 --seed 7 --against own --buckets 10 --metrics bleu,ter --force"
    )


def test_scores_of_another_version_are_left_out(reported):
    path = reported.run.path / "score/test/scores.json"
    edit(path, '"format": ', '"format": 9')
    error = refused(
        DataError, r"report: score/test cannot be read \(written by", stage.report, reported.run
    )
    assert "nmtkit score --force" in error.hint


def test_unequal_budgets_are_said_as_score_says_them(tmp_path):
    made = ReportedRun(tmp_path / "budgets")
    for name, step in (("a", 10), ("b", 99)):
        made.add(name, 0.3, variant=name, seed=1, corpus=f"of {name}")
        made.log(name)
        path = made.run.path / "systems" / name / "metrics.jsonl"
        edit(path, '"step": 10', f'"step": {step}')
    score(made.run, resamples=20, trials=20)
    contents = read_contents(made.run)
    (said,) = (one.text for one in comparison.cautions(contents) if "alike" in one.text)
    corpora = "preparations of the corpus (a of a, b of b)"
    assert said == f"The systems were not trained alike: updates (a 10, b 99); {corpora}."
    assert contents.scores["test"].remarks == [said]


def test_few_sentences_that_differ_get_no_verdict(tmp_path):
    made = ReportedRun(tmp_path / "alike")
    for name in ("a", "b"):
        made.add(name, 0.3, variant=name)
    score(made.run, resamples=20, trials=20, test="sacrebleu_randomization")
    contents = read_contents(made.run)
    (verdict,) = comparison.verdicts(contents.scores["test"])
    assert verdict.startswith("b - a: ") and verdict.endswith(f"] BLEU; {FEW_DIFFERENT}.")
    assert FEW_DIFFERENT in comparison.tables(contents, "test")[0].notes
    notes = significance_table(contents.scores["test"]).notes
    assert sum(note.count(FEW_DIFFERENT) for note in notes) == 1


def test_scores_may_name_a_test_of_another_version(tmp_path):
    made = ReportedRun(tmp_path / "newer")
    for name, share in (("a", 0.5), ("b", 0.3), ("c", 0.1)):
        made.add(name, share, variant=name)
    score(made.run, resamples=20, trials=20, test="sign")
    path = made.run.path / "score" / "test" / "scores.json"
    path.write_text(path.read_text("utf-8").replace('"sign"', '"newer"'), "utf-8")
    assert "about 0.1 of 2 such p are below 0.05 by chance" in made.page().text


def test_few_sentences_get_no_verdict(tmp_path):
    made = ReportedRun(tmp_path / "few", count=20)
    for name, share, seed in (("a-1", 0.5, 1), ("b-1", 0.1, 1)):
        made.add(name, share, seed=seed, variant=name[0])
    score(made.run, resamples=20, trials=20)
    contents = read_contents(made.run)
    (verdict,) = comparison.verdicts(contents.scores["test"])
    assert verdict.startswith("b-1 - a-1: +") and verdict.endswith(f"] BLEU; {FEW}.")
    assert FEW in comparison.tables(contents, "test")[0].notes and FEW in made.page().text
    made.add("a-2", 0.5, seed=2, variant="a")
    made.add("b-2", 0.1, seed=2, variant="b")
    score(made.run, resamples=20, trials=20)
    (verdict,) = comparison.verdicts(read_contents(made.run).scores["test"])
    assert verdict.startswith("b (2 seeds): mean difference") and FEW in verdict


def test_the_error_of_one_seed_needs_several_seeds_of_others(tmp_path):
    """With less a single system has no p and no interval, and two seeds of one system are two
    systems.
    """
    made = ReportedRun(tmp_path / "seeds")
    shown = []
    for name, seed in (("a-1", 1), ("a-2", 2), ("b-1", 1), ("a-3", 3), ("a-4", 4)):
        made.add(name, 0.3 - 0.2 * (name == "b-1"), seed=seed, variant=name[0])
        score(made.run, resamples=20, trials=20)
        contents = read_contents(made.run)
        result = contents.scores["test"]
        texts = [remark.text for remark in comparison.cautions(contents)]
        assert not any("differences are tested" in text for text in texts)  # one at most
        shown.append((comparison.verdicts(result), comparison.differences(result)))
        if name == "b-1":
            against_mean = result.seeds.groups[1].against["bleu"].difference
    (_, none), ((of_a,), (a,)), ((of_b,), (b,)), _, ((later,), (c,)) = shown
    assert none == [] and of_a.startswith("a-2 is ") and a.name == "a-2"
    assert of_b == f"b-1 (1 seed): mean difference {against_mean:+.2f} BLEU; {NOT_KNOWN}."
    # The axis is of differences to the mean of a, as the table of seeds is; not to a-1.
    assert (b.name, b.delta) == ("b-1", Estimate(against_mean))
    assert later.startswith("b-1 (1 seed) is ") and "(Holm " in later
    assert c.delta.value == pytest.approx(result.seeds.groups[1].against["bleu"].difference)


def test_seeds_are_put_together(tmp_path):
    made = ReportedRun(tmp_path / "seeds")
    for name, share, seed in (("a-1", 0.3, 1), ("a-2", 0.3, 2), ("b-1", 0.1, 1), ("b-2", 0.1, 2)):
        made.add(name, share, seed=seed, variant=name[0])
    score(made.run, resamples=20, trials=20)
    page = made.page()
    assert "by training seed" in page.text and "Each system was trained once" not in page.text
    contents = read_contents(made.run)
    result = contents.scores["test"]
    group = next(group for group in result.seeds.groups if group.name == "b")
    against = group.against["bleu"]
    verdict = (
        f"b (2 seeds) is not clearly different from a: {against.difference:+.2f} BLEU"
        f" [{against.low:+.2f}, {against.high:+.2f}], p = {against.p:.3f} (Holm"
        f" {against.p_holm:.3f})."
    )
    assert comparison.verdicts(result) == [verdict] and verdict in page.text
    # With 10,000 resamples a p may be below what is shown.
    group.against["bleu"] = replace(against, p=2e-4, p_holm=2e-4)
    assert comparison.verdicts(result)[0].endswith(" p < 0.001 (Holm <0.001).")
    assert comparison.tables(contents, "test")[0].cells()[1].count("<0.001") == 2
    group.against["bleu"] = replace(against, p=0.04, p_holm=0.08)
    assert comparison.verdicts(result)[0].startswith("b (2 seeds) is not clearly different from a")
    group.against["bleu"] = against
    tables = comparison.tables(contents, "test")
    assert [table.name for table in tables] == ["seeds", "comparison", "cost"]
    (point,) = comparison.differences(result)
    assert (point.name, point.group) == ("b, 2 seeds", "b")
    assert point.delta == Estimate(against.difference, against.low, against.high)
    bleu = {system.name: system.scores["bleu"].value for system in result.systems}
    base = (bleu["a-1"] + bleu["a-2"]) / 2
    assert point.seeds == pytest.approx([bleu["b-1"] - base, bleu["b-2"] - base])
    made.add("c-1", 0.2, seed=1, variant="c")
    score(made.run, resamples=20, trials=20)
    points = comparison.differences(read_contents(made.run).scores["test"])
    assert [(point.name, len(point.seeds)) for point in points] == [("b, 2 seeds", 2), ("c-1", 0)]
    score(made.run, resamples=20, trials=20, metrics="bleu,ter")
    _, scores, cost = comparison.tables(read_contents(made.run), "test")
    keys = [[column.key for column in table.columns] for table in (scores, cost)]
    assert "ter" in keys[0] and "ter" not in keys[1]


def test_tables_are_linked_as_latex_and_csv(reported):
    """What a link holds is the table's own form, byte for byte."""
    page = reported.page()
    kept = {
        link["download"]: base64.b64decode(link["href"].partition("base64,")[2]).decode()
        for link in page.all("a")
        if "download" in link
    }
    table = comparison.tables(read_contents(reported.run), "test")[0]
    named = {name: text for name, text in kept.items() if name.startswith("comparison-")}
    assert sorted(named.values()) == sorted([table.latex(), table.csv()])
    assert {name.rpartition(".")[2] for name in kept} == {"tex", "csv"} and len(kept) > 8


def test_a_wide_table_of_few_rows_is_turned_and_its_links_are_not(reported):
    wide = [text_column("system"), *(text_column(f"column-{i}-of-many") for i in range(8))]
    table = Table("cost", "Cost", wide, [["base", *"abcdefgh"], ["own", *"ijklmnop"]])
    found = Finding(table, "Read it.", name="cost", title="cost")
    inputs = FindingInputs(systems=["base", "own"], files={})
    found.write(reported.run.path / "analyze" / "cost", inputs)
    page = reported.page()
    assert "system base own column-0-of-many a i column-1-of-many b j" in page.text
    (link,) = [a for a in page.all("a") if a.get("download") == "cost-Cost.csv"]
    assert base64.b64decode(link["href"].partition("base64,")[2]).decode() == table.csv()


def test_figures_for_a_paper(reported, undrawn, stderr):
    undrawn()
    reported.finding("cost", "cost")  # a figure that nmtkit did not draw
    stage.report(reported.run, figure_width=3.3)
    names = {path.stem for path in (reported.run.path / "report" / "figures").glob("*.pdf")}
    learning = {f"learning-{axis}" for axis in AXES[:3]}
    assert names == {*learning, "lengths-test", "differences-test"}
    assert "no cost.pdf: the figure does not hold its numbers" in stderr()


def test_figures_of_no_width_or_without_matplotlib_are_refused(reported):
    for width, message in ((0.5, "must be at least 1"), (21, "must be at most 20")):
        refused(ConfigError, message, stage.report, reported.run, figure_width=width)
    message = "figures need matplotlib"
    refused(EnvironmentProblem, message, stage.report, reported.run, figure_width=3.3)


def test_up_to_date_until_something_changes(reported, stderr, monkeypatch, read_only):
    path = stage.report(reported.run)
    first = path.read_bytes()
    stderr()
    read_only(reported.run.path)  # as a run of somebody else
    stage.report(reported.run)
    monkeypatch.undo()
    assert "up to date" in stderr() and path.read_bytes() == first
    reported.finding("cost", "a new finding")
    stage.report(reported.run)
    assert "a new finding" in path.read_text("utf-8").lower()
    stage.report(reported.run, title="another title")
    assert "another title" in path.read_text("utf-8")
    stderr()
    stage.report(reported.run, title="another title", force=True)
    assert "written to" in stderr()
    with open(reported.run.history, "a", encoding="utf-8") as history:
        print("another damaged line", file=history)
    stage.report(reported.run, title="another title")
    assert "written to" in stderr()
    monkeypatch.setattr(checkpoints, "current", lambda system: ["another digest"])
    stage.report(reported.run, title="another title")
    assert "written to" in stderr()  # the weights have changed


def test_the_commands_of_a_run_that_was_moved_name_its_new_folder(reported, tmp_path, stderr):
    stage.report(reported.run)
    reported.run.path.rename(tmp_path / "moved")
    stderr()
    stage.report(Run(tmp_path / "moved"))
    assert "written to" in stderr()


@pytest.fixture
def second(tmp_path, reported, capsys):
    """Another run, whose findings and systems have names of the first one's; some of it is
    missing.
    """
    made = make(
        tmp_path / "second run", systems=(("base", 0.3), ("own", 0.2), ("third", 0.1)), markup=False
    )
    made.add("later", 0.5, sets=[])
    for one in (made, reported):
        one.finding("cost", "cost")
    capsys.readouterr()
    return made


def test_a_page_of_two_runs(reported, second, capsys):
    page = reported.page(also=[second.run.path])
    out, err = capsys.readouterr()
    assert out == f"{reported.run.path}/report/index.html\n" and "later: no checkpoint yet" in err
    assert not (second.run.path / "report").exists()
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {f"run{n}-{part}" for n in (1, 2) for part in ("finding-cost", "h-lengths")} <= set(ids)
    first = "2 systems on run, en to de"
    run, other = (f"--run {shlex.quote(str(made.run.path))}" for made in (reported, second))
    for shown in (
        f"{first}; 3 systems on second run, en to de",
        f"1. {first} run run",
        f"nmtkit analyze cost {run}",
        f"nmtkit analyze cost --system base --system own {other}",  # as it was made, of two of four
        f"nmtkit train --system later {other}",
        f"This page has no attention of this run: nmtkit analyze attention {other}",
        "third is better than base",
    ):
        assert shown in page.text, shown
    systems = [json.loads(data)["sets"][0]["systems"] for data in page.datas]
    assert systems == [["base", "own"], ["base", "own", "third"]]
    path = stage.report(reported.run, also=[second.run.path])
    assert "up to date" in capsys.readouterr().err
    second.finding("cost", "a new finding")
    stage.report(reported.run, also=[second.run.path])
    assert "A new finding" in path.read_text("utf-8")


def test_runs_that_make_no_page_together(reported, second):
    with pytest.raises(ConfigError, match="in this page already") as error:
        stage.report(reported.run, also=[second.run.path, reported.run.path / ".." / "run"])
    assert error.value.where == "--also"
    shutil.rmtree(second.run.path / "score")
    error = refused(DataError, "not scored", stage.report, reported.run, also=[second.run.path])
    assert str(second.run.path) in str(error.where)


def test_the_attention_of_each_run_that_has_some(reported, second):
    sentence = SentenceAttention(["ein", "</s>"], ["a", "</s>"], [[1.2, -0.1], [0.5, 1.0]])
    kept = SystemAttention(system="own", site="layer", set_name="test", sentences={0: sentence})
    for made, expected in ((second, [False, True]), (reported, [True, True])):
        files_of = {"own.json": kept.model_dump_json()}
        made.finding("attention", "attention", attachments=files_of)
        page = reported.page(also=[second.run.path])
        sets = [json.loads(data)["sets"][0] for data in page.datas]
        assert ["attention" in each for each in sets] == expected
        assert page.text.count("only with attention") == sum(expected)
        assert page.text.count("no attention of this run") == 2 - sum(expected)
        (packed,) = sets[1]["attention"][-1]["of"].values()
        assert packed["rows"] == ["z0", "iz"]  # 0 to 1 in 35 steps; not less, not more


def test_attention_that_is_out_of_date_is_left_out_and_what_is_shown_is_counted(
    reported, monkeypatch
):
    sentence = SentenceAttention(["ein", "</s>"], ["a", "</s>"], [[1.0, 0.0], [0.5, 0.5]])
    kept = SystemAttention(
        system="own", site="last", set_name="test", sentences=dict.fromkeys((0, 2, 3), sentence)
    )
    monkeypatch.setattr(explorer, "step_of", lambda *_: 2)
    for hashes, shown in (({}, True), ({"systems/own/translate/test/hyp.txt": "0"}, False)):
        reported.finding(
            "attention",
            "attention",
            made_from={"systems": ["base", "own"], "files": hashes},
            attachments={"own.json": kept.model_dump_json()},
        )
        page = reported.page()
        assert ("attention" in json.loads(page.data)["sets"][0]) is shown
        assert ("(last), for 2 sentences of test" in page.text) is shown
        assert ("leaves out the attention of analyze/attention" in page.text) is not shown


def test_attention_that_cannot_be_read_is_named(reported):
    sentence = SentenceAttention(["ein", "</s>"], ["a", "</s>"], [[1.0, 0.0], [0.5, 0.5]])
    kept = SystemAttention(system="own", site="last", set_name="test", sentences={0: sentence})
    attachments = dict.fromkeys(("base.json", "own.json", "third.json"), kept.model_dump_json())
    reported.finding("attention", "attention", attachments=attachments)
    assert len(json.loads(reported.page().data)["sets"][0]["attention"]) == 3
    folder = reported.run.path / "analyze/attention"
    (folder / "base.json").write_text("{", "utf-8")
    (folder / "third.json").unlink()
    page = reported.page()
    assert len(json.loads(page.data)["sets"][0]["attention"]) == 1
    for name in ("base", "third"):
        assert f"analyze/attention/{name}.json cannot be read" in page.text
    assert f"nmtkit analyze attention --force --run {reported.run.path}" in page.text


def test_a_page_is_there_whole_or_not_at_all(reported, monkeypatch):
    path = stage.report(reported.run)
    before = path.read_bytes()
    monkeypatch.setattr(
        "os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    refused(Exception, "cannot write", stage.report, reported.run, title="new")
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "index.html"]


def long_texts(lines, name="test"):
    """Texts of six systems, all different, in lines of 25 words."""
    systems = [f"s{k}" for k in range(6)]
    text = [" ".join(f"Wort{(i * 7 + k * 13) % 997}" for k in range(25)) for i in range(lines)]
    values = {
        system: [(i * 37 + k * 11) % 1000 / 10 for i in range(lines)]
        for k, system in enumerate(systems)
    }
    scores, outputs = {"bleu": values, "chrf": values}, dict.fromkeys(systems, text)
    return Texts(name, "s0", text, [text], outputs, scores, [25] * lines)


def explorer_data(texts, attention=()):
    """The explorer's data as it stands in the page, and of how many lines one is kept."""
    step = explorer.step_of(texts)
    run = SimpleNamespace(manifest=SimpleNamespace(src="en", tgt="de"))
    return explorer.script_text(explorer.data(page.Part(run, texts, step, attention))), step


def test_the_page_stays_small():
    weights = [[1 / 40] * 40 for _ in range(40)]
    sentences = {i: SentenceAttention([f"w{i}"] * 40, ["w"] * 40, weights) for i in range(200)}
    attention = SystemAttention(system="s1", site="layer", set_name="test", sentences=sentences)
    data, step = explorer_data([long_texts(1000)], [attention])
    assert step == 1 and len(data) < 3_500_000
    data, step = explorer_data([long_texts(8000), long_texts(8000, "other")], [attention])
    assert step > 1 and len(data) < 1.1 * explorer.MOST
    thai = replace(long_texts(1000), sources=["ก" * 3000] * 1000)
    in_thai, of_thai = explorer_data([thai])
    assert of_thai == 3 and len(in_thai.encode()) < 1.1 * explorer.MOST
    first, other = json.loads(data)["sets"]
    assert other["line"][:2] == [1, 1 + step]
    # a sentence's attention stands at the place of its line
    placed = {int(place): each["src"][0] for place, each in first["attention"][0]["of"].items()}
    assert placed == {i: f"w{i * step}" for i in range(len(range(0, 200, step)))}


def test_keys_for_sorting_are_empty_without_a_number():
    values = (None, float("nan"), Estimate(float("nan")), 2, Estimate(0.5), "text")
    assert [page.sort_key(value) for value in values] == ["", "", "", "2.0", "0.5", "text"]


def test_differences_are_marked():
    assert differences("ein Hund läuft.", "ein Hund läuft.") == [("ein Hund läuft.", False)]
    assert differences("ein Hund schläft.", "ein Hund läuft.") == [
        ("ein Hund ", False),
        ("schläft", True),
        (".", False),
    ]
    assert differences("", "x") == [] and differences("x", "") == [("x", True)]
    assert differences("我爱狗", "我爱猫") == [("我爱", False), ("狗", True)]
    assert differences("ที่นี่", "ที่นั่น") == [("ที่นี่", True)]  # marks are parts of words


def test_side_by_side_shows_the_largest_gains_and_losses(reported):
    texts = read_texts(read_contents(reported.run), "test")
    base, own = texts.scores["bleu"].values()
    deltas = [mine - theirs for mine, theirs in zip(own, base, strict=True)]
    which, shown = side_by_side(texts)
    lines = [one.line - 1 for one in shown]
    assert "on which a system gains or loses most against base, by" in which
    by_gain = sorted(range(len(deltas)), key=lambda line: (deltas[line], line))
    assert deltas[by_gain[2]] < 0 < deltas[by_gain[-3]]
    assert lines == sorted([*by_gain[:3], *by_gain[-3:]])
    assert side_by_side(replace(texts, scores={}))[0] == "The first sentences of test."
    left = replace(texts, outputs={"own": texts.outputs["own"], "third": texts.outputs["base"]})
    assert "on which own scores best and worst" in side_by_side(left)[0]  # the baseline is gone


def test_no_torch_without_attention(reported):
    code = f"""
import sys
from pathlib import Path
from nmtkit.report import stage
from nmtkit.run import Run
stage.report(Run(Path({str(reported.run.path)!r})))
sys.exit('torch' in sys.modules)
"""
    python("-c", code, check=True)
