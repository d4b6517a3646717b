"""The page of a run: what it shows, that it needs nothing from elsewhere, and what it says of
missing, damaged and outdated parts.
"""

import base64
import json
import re
import shlex
import shutil

import pytest

from nmtkit.errors import ConfigError, DataError
from nmtkit.models import checkpoints
from nmtkit.records import FindingInputs, SystemConfig
from nmtkit.report import comparison, page, stage
from nmtkit.report.commands import analyze_command, train_command
from nmtkit.report.contents import read_contents
from nmtkit.report.texts import read_texts
from nmtkit.run import Run
from nmtkit.score.stage import score
from nmtkit.tables.table import Table, text_column
from tests.manifests import edit, read_json, write_json
from tests.processes import python
from tests.refused import refused
from tests.score.conftest import write

from .conftest import FIGURE, SCRIPT, make

pytestmark = pytest.mark.usefixtures("without_figures")

OUTSIDE = re.compile(
    r"""(?:src|href|srcset|action|data)\s*=\s*["']?\s*(?:https?:|//)"""
    r"""|url\(\s*["']?(?:https?:|//)|@import""",
    re.I,
)
"""A reference of HTML or CSS to another file."""


def test_page_shows_scores_verdict_calls_and_corpus(reported):
    shown, result = reported.page(), read_json(reported.scores / "scores.json")
    base, own = result["systems"]
    for system in (base, own):
        assert f"{system['scores']['bleu']['value']:.2f}" in shown.text
        assert system["scores"]["bleu"]["signature"] in shown.text
    delta = own["differences"]["bleu"]
    for text in (
        "Each system was trained once",
        "own is better than base: {value:+.2f} BLEU [{low:+.2f}, {high:+.2f}]".format(**delta),
        f"nmtkit analyze convergence --run {reported.run.path}",
        *("abc1234-dirty", "the checkout had changes"),
        *("took, seconds", "+0000 200 0"),  # from start to end
        *("Settings in which the systems differ", "test test 40"),  # set, split, lines
    ):
        assert text in shown.text, text


@pytest.mark.parametrize(
    ("made_from", "command"),
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
def test_command_of_a_finding_repeats_its_options(made_from, command):
    inputs = FindingInputs(**{"systems": ["a", "b"], "files": {}, **made_from})
    assert analyze_command("agreement", inputs, ["a", "b"]) == command


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"preset": "tiny"}, " --preset tiny"),
        ({"preset": "unknown"}, ""),
        ({"init_from": "base"}, " --init-from base"),
    ],
)
def test_command_of_a_training_repeats_preset_and_initial_weights(reported, settings, options):
    system = reported.run.system("own")
    command = train_command(system, SystemConfig(variant="own", **settings))
    expected = f"nmtkit train --system own --variant own{options} --config {system.config} --force"
    assert command == expected


def test_command_of_scores_repeats_their_options(reported):
    drawn = {"resamples": 50, "ratio": 0.5, "trials": 60, "seed": 7}
    score(reported.run, against="own", metrics="bleu,ter", **drawn)
    (reported.scores / "sentences.tsv").unlink()
    contents = read_contents(reported.run)
    read_texts(contents, "test")
    (command,) = (one.command for one in contents.remarks if "sentences.tsv" in one.text)
    assert command == (
        "nmtkit score --on test --significance paired_bootstrap --resamples 50 --ratio 0.5"
        " --trials 60 --seed 7 --against own --buckets 10 --metrics bleu,ter --force"
    )


def test_markup_in_texts_titles_and_settings_stays_text(reported):
    active = "<script>alert(1)</script><a href='https://e.org' onclick='x()'>a</a>"
    reported.finding("lengths", SCRIPT, FIGURE.replace("</g>", f"</g>{active}"))
    write(reported.run.system("own").config, [f"variant = {json.dumps(SCRIPT)}"])
    shown = reported.page(title=SCRIPT)
    assert len(shown.all("script")) == 2  # the scripts of the page
    assert not shown.all("b") and not shown.all("a")[-1].get("onclick")
    assert shown.text.count("<script>alert('x')</script>") >= 4
    data = json.loads(shown.data)
    assert data["sets"][0]["hyps"][1][2] == SCRIPT == data["sets"][0]["src"][2]
    assert "<" not in shown.data


def test_page_refers_to_no_other_file(reported):
    reported.finding("cost", "cost")
    html = stage.report(reported.run).read_text("utf-8")
    assert not OUTSIDE.search(html)
    assert "default-src 'none'" in html


@pytest.mark.parametrize(
    "reference",
    ["<img src=https://e.org>", "<link href='//e.org/x.css'>", "@import 'x'", "url(http://e.org)"],
)
def test_pattern_of_references_finds_them(reference):
    assert OUTSIDE.search(reference)


def test_tables_of_papers_are_shown_beside_scores_and_findings_with_code_in_backticks(reported):
    title = "Table 7, printed and measured"
    paper = Table("paper", title, [text_column("row")], [["<b>Ours</b>"]])
    reported.finding("cost", "cost", None, paper=paper, text="Then `nmtkit analyze <x>` it.")
    scores = reported.scores / "scores.json"
    write_json(scores, read_json(scores) | {"paper": paper.as_json()})
    html = stage.report(reported.run).read_text("utf-8")
    assert html.count(f"<caption><span>{title}</span></caption>") == 2
    assert html.count(">&lt;b&gt;Ours&lt;/b&gt;<") == 2
    assert "<code>nmtkit analyze &lt;x&gt;</code> it." in html


def downloads(shown):
    """Return the files that links of a page hold: name -> text."""
    return {
        link["download"]: base64.b64decode(link["href"].partition("base64,")[2]).decode()
        for link in shown.all("a")
        if "download" in link
    }


def test_tables_can_be_downloaded_as_latex_and_csv(reported):
    files = downloads(reported.page())
    table = comparison.tables(read_contents(reported.run), "test")[0]
    linked = [text for name, text in files.items() if name.startswith("comparison-")]
    assert sorted(linked) == sorted([table.latex(), table.csv()])
    assert {name.rpartition(".")[2] for name in files} == {"tex", "csv"} and len(files) > 8


def test_wide_table_of_few_rows_is_transposed_on_the_page_but_not_in_its_files(reported):
    columns = [text_column("system"), *(text_column(f"column-{i}-of-many") for i in range(8))]
    table = Table("cost", "Cost", columns, [["base", *"abcdefgh"], ["own", *"ijklmnop"]])
    reported.finding("cost", "cost", None, table=table)
    shown = reported.page()
    assert "system base own column-0-of-many a i column-1-of-many b j" in shown.text
    assert downloads(shown)["cost-Cost.csv"] == table.csv()


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("score", ["score"]),
        ("translate", ["score", "systems/base/translate", "systems/own/translate"]),
        ("train", ["score", "systems"]),
        ("prep", ["score", "systems", "prep"]),
    ],
)
def test_report_without_scores_is_refused_with_the_next_command(reported, command, missing):
    for folder in missing:
        shutil.rmtree(reported.run.path / folder)
    assert f"nmtkit {command}" in refused(DataError, None, stage.report, reported.run).hint
    assert not (reported.run.path / "report" / "index.html").exists()


def test_scores_of_another_version_are_refused_with_the_command(reported):
    edit(reported.scores / "scores.json", '"format": ', '"format": 9')
    message = r"report: score/test cannot be read \(written by"
    assert "nmtkit score --force" in refused(DataError, message, stage.report, reported.run).hint


def test_missing_outdated_and_damaged_findings_are_listed(reported):
    reported.finding("cost", "cost", figure=None, rows=1002)
    reported.finding("headroom", "headroom")
    reported.finding("lengths", "lengths", figure="no SVG")
    analyses = reported.run.path / "analyze"
    edit(analyses / "headroom/finding.json", '"format": 1', '"format": 99')
    (analyses / "gates").mkdir()
    write(analyses / "layers/finding.json", ['{"name": 1'])
    outdated = {"files": {"systems/own/metrics.jsonl": "0"}, "prepared": "another"}
    for name, inputs in (
        ("weights", {"files": {}, "weights": {"../base": {}}}),
        ("alignment", outdated),
    ):
        reported.finding(name, name, made_from={"systems": ["base"], **inputs})
    shown = reported.page()
    for text in (
        "analyze/gates: it has no finding",
        "analyze/layers cannot be read",
        "analyze/weights cannot be read",
        "another version of nmtkit (format 99)",
        "Made for base, without own",
        "Made before these changed: the prepared corpus, systems/own/metrics.jsonl",
        "the first 1000 of 1002 rows",
        "cannot be shown: it is damaged nmtkit analyze lengths --force",
        "nmtkit analyze convergence",
        "Analyses that were not made of this run",
    ):
        assert text in shown.text, text


def test_missing_outdated_and_damaged_systems_and_scores_are_listed(reported):
    scores = read_json(reported.scores / "scores.json")
    scores["made_from"] |= {"prepared": "another", "seeds": [[0, "seed"]]}
    write_json(reported.scores / "scores.json", scores)
    (reported.scores / "sentences.tsv").unlink()
    reported.add("later", 0.5, sets=[])
    write(reported.run.system("later").config, ["variant = "])
    reported.add("unscored", 0.5)
    reported.add("foreign", 0.5, sets=[], corpus="another")
    shutil.copytree(reported.scores, reported.scores.with_name("gone"))
    write(reported.run.system("own").path / "metrics.jsonl", ["not JSON"])
    reported.finding("cost", "cost", made_from={"systems": ["base"], "files": {}})
    shown = reported.page()
    for text in (
        "sentences.tsv is missing",
        "not scored: unscored",
        "foreign: trained on another preparation of the corpus",
        "score/gone is of a set that this run no longer has",
        "systems/later: its settings cannot be read (the file is damaged: ",
        "later: no checkpoint yet",
        "score/test: made before these changed: the prepared corpus, how nmtkit computes scores",
    ):
        assert text in shown.text, text
    assert "without own, later" not in shown.text  # a system without a row is not compared
    assert json.loads(shown.data)["sets"][0]["scores"] == {}


def test_last_calls_are_shown_and_damaged_lines_of_the_history_are_counted(reported):
    first, *_ = reported.run.history.read_text("utf-8").splitlines()
    call = json.loads(first) | {"exit": 2}
    with open(reported.run.history, "a", encoding="utf-8") as history:
        for number in range(200):
            print(json.dumps(call | {"argv": [f"call-{number}"]}), file=history)
    shown = reported.page()
    assert "nmtkit call-199" in shown.text
    assert "history.jsonl: damaged lines that the table of calls leaves out: 1" in shown.text


@pytest.mark.parametrize("content", [None, "{}", "not JSON"])
def test_damaged_meta_json_of_a_translation_is_named_but_a_missing_one_is_not(reported, content):
    path = reported.run.system("own").translation("test") / "meta.json"
    path.unlink(missing_ok=True)
    if content:
        path.write_text(content, "utf-8")
    text = reported.page().text
    for part in (
        "systems/own/translate/test: its meta.json cannot be read (the file is damaged",
        "nmtkit translate --system own --on test --force",
    ):
        assert (part in text) == bool(content)


@pytest.mark.parametrize(("step", "older"), [("3", True), ("9", False)])
def test_translation_with_older_weights_is_named_with_the_commands(reported, step, older):
    folder = reported.run.system("own").checkpoints / "step-00009000"
    write(folder / "model.safetensors", [])
    weights = {"model.safetensors": {"bytes": 0, "sha256": "9" * 64}}
    write_json(folder / "manifest.json", {"format": 1, "step": 9000, "files": weights})
    used = {"system": "own", "name": f"step-0000{step}000", "sha256": step * 64}
    reported.describe("own", checkpoints=[used])
    remarks = {remark.text: remark.command for remark in read_contents(reported.run).remarks}
    command = remarks.get("test: the translation by own is older than its weights", "")
    expected = "nmtkit translate --system own --on test --force && nmtkit score --on test"
    assert command.startswith(expected) is older


def test_up_to_date_page_is_not_written_again(reported, stderr, monkeypatch, read_only):
    path = stage.report(reported.run)
    first = path.read_bytes()
    stderr()
    read_only(reported.run.path)  # like the run of another user
    stage.report(reported.run)
    assert "up to date" in stderr() and path.read_bytes() == first


def test_page_is_written_again_after_any_change(reported, tmp_path, stderr, monkeypatch):
    def written(run=reported.run, **options):
        stderr()
        path = stage.report(run, **options)
        assert "written to" in stderr()
        return path.read_text("utf-8")

    written()
    reported.finding("cost", "a new finding")
    assert "a new finding" in written().lower()
    assert "another title" in written(title="another title")
    written(title="another title", force=True)
    with open(reported.run.history, "a", encoding="utf-8") as history:
        print("another damaged line", file=history)
    written(title="another title")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "current", lambda system: ["digest of other weights"])
        written(title="another title")
    reported.run.path.rename(tmp_path / "moved")  # its commands name the run
    written(Run(tmp_path / "moved"), title="another title")


INPUTS = [
    *("prep/manifest.json", "prep/text/test.src", "score/test/scores.json"),
    *("score/test/sentences.tsv", "systems/own/config.toml", "systems/own/metrics.jsonl"),
    *("systems/own/translate/test/hyp.txt", "analyze/attention/own.json"),
    *("analyze/cost/finding.json", "analyze/cost/figure.svg"),
]


def test_page_is_written_again_after_a_change_of_any_input(reported, stderr, monkeypatch):
    monkeypatch.setattr(page, "render", lambda *_, digest, **about: f'content="{digest}"')
    reported.finding("attention", "attention", attachments={"own.json": "{}"})
    reported.finding("cost", "cost")
    stage.report(reported.run)
    for name in INPUTS * 2:  # the first change may be in a remark, the second is only in the input
        path = reported.run.path / name
        *_, last = path.read_text("utf-8").splitlines(keepends=True)
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(last if name.endswith("metrics.jsonl") else "\n")  # still a valid log
        stderr()
        stage.report(reported.run)
        assert "written to" in stderr(), name


def test_page_is_written_completely_or_not_at_all(reported, monkeypatch):
    path = stage.report(reported.run)
    before = path.read_bytes()

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    refused(Exception, "cannot write", stage.report, reported.run, title="new")
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "index.html"]


def test_page_of_two_runs_has_systems_commands_and_data_of_both(reported, second, capsys):
    shown = reported.page(also=[second.run.path])
    out, err = capsys.readouterr()
    assert out == f"{reported.run.path}/report/index.html\n" and "later: no checkpoint yet" in err
    assert not (second.run.path / "report").exists()
    first = "2 systems on run, en to de"
    run, other = (f"--run {shlex.quote(str(made.run.path))}" for made in (reported, second))
    for text in (
        f"{first}; 3 systems on second run, en to de",
        f"1. {first} run run",
        f"nmtkit analyze cost {run}",
        f"nmtkit analyze cost --system base --system own {other}",  # made of two of four systems
        f"nmtkit train --system later {other}",
        f"This page has no attention of this run: nmtkit analyze attention {other}",
        "third is better than base",
    ):
        assert text in shown.text, text
    systems = [json.loads(data)["sets"][0]["systems"] for data in shown.datas]
    assert systems == [["base", "own"], ["base", "own", "third"]]


def test_ids_of_two_runs_on_one_page_are_unique(reported, second):
    shown = reported.page(also=[second.run.path])
    ids = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {f"run{n}-{part}" for n in (1, 2) for part in ("finding-cost", "h-lengths")} <= set(ids)


def test_page_of_two_runs_is_written_again_after_a_change_in_the_second(reported, second, stderr):
    also = [second.run.path]
    path = stage.report(reported.run, also=also)
    stage.report(reported.run, also=also)
    assert "up to date" in stderr()
    second.finding("cost", "a new finding")
    stage.report(reported.run, also=also)
    assert "A new finding" in path.read_text("utf-8")


def test_same_run_twice_on_a_page_is_refused(reported, second):
    also = [second.run.path, reported.run.path / ".." / "run"]
    error = refused(ConfigError, "in this page already", stage.report, reported.run, also=also)
    assert error.where == "--also"


def test_unscored_second_run_is_refused(reported, second):
    shutil.rmtree(second.run.path / "score")
    error = refused(DataError, "not scored", stage.report, reported.run, also=[second.run.path])
    assert str(second.run.path) in str(error.where)


def test_test_sets_come_before_the_development_set(tmp_path):
    made = make(tmp_path / "run", sets=("dev", "news", "talks"), markup=False)
    score(made.run, set_names=["dev"], resamples=20, trials=20)
    assert list(read_contents(made.run).scores) == ["news", "talks", "dev"]


def test_scores_of_the_only_translated_set_are_the_next_step(reported):
    shutil.rmtree(reported.run.path / "score")
    edit(reported.run.prep / "manifest.json", '"split": "test"', '"split": "dev"')
    error = refused(DataError, "not scored", stage.report, reported.run)
    assert error.hint == f"nmtkit score --by-length --on test --run {reported.run.path}"
    shutil.rmtree(reported.run.path / "systems")
    hint = refused(DataError, "no trained system", stage.report, reported.run).hint
    assert re.fullmatch(r"nmtkit train .* && nmtkit translate --on (\w+) .* score --on \1 .*", hint)


def test_report_without_attention_does_not_import_torch(reported):
    code = f"""
import sys
from pathlib import Path
from nmtkit.report import stage
from nmtkit.run import Run
stage.report(Run(Path({str(reported.run.path)!r})))
sys.exit('torch' in sys.modules)
"""
    python("-c", code, check=True)
