"""The sentences of a report: side by side, with marked differences, and the explorer's data."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nmtkit.analyze.attention import SentenceAttention, SystemAttention
from nmtkit.report import explorer, page
from nmtkit.report.contents import read_contents
from nmtkit.report.texts import Texts, differences, read_texts, side_by_side
from nmtkit.tables.table import Estimate
from tests.manifests import edit
from tests.score.conftest import write

from .conftest import make

pytestmark = pytest.mark.usefixtures("without_figures")

SENTENCE = SentenceAttention(["ein", "</s>"], ["a", "</s>"], [[1.0, 0.0], [0.5, 0.5]])


def attention(*lines, sentence=SENTENCE):
    """Return the attention of the system `own` for some lines of the set `test`."""
    sentences = dict.fromkeys(lines, sentence)
    return SystemAttention(system="own", site="last", set_name="test", sentences=sentences)


def explored(data):
    """Return the first set of the explorer's data."""
    return json.loads(data)["sets"][0]


def test_attention_of_each_run_is_shown(reported, second):
    sentence = SentenceAttention(["ein", "</s>"], ["a", "</s>"], [[1.2, -0.1], [0.5, 1.0]])
    attachments = {"own.json": attention(0, sentence=sentence).model_dump_json()}
    for made, expected in ((second, [False, True]), (reported, [True, True])):
        made.finding("attention", "attention", attachments=attachments)
        both = reported.page(also=[second.run.path])
        sets = [explored(data) for data in both.datas]
        assert ["attention" in data for data in sets] == expected
        assert both.text.count("only with attention") == sum(expected)
        assert both.text.count("no attention of this run") == 2 - sum(expected)
        (packed,) = sets[1]["attention"][-1]["of"].values()
        assert packed["rows"] == ["z0", "iz"]  # weights are clipped to 0 … 1, in 35 steps


@pytest.mark.parametrize("outdated", [False, True])
def test_outdated_attention_is_left_out_and_shown_sentences_are_counted(
    reported, monkeypatch, outdated
):
    monkeypatch.setattr(explorer, "step_of", lambda *_: 2)
    files = {"systems/own/translate/test/hyp.txt": "0"} if outdated else {}
    reported.finding(
        "attention",
        "attention",
        made_from={"systems": ["base", "own"], "files": files},
        attachments={"own.json": attention(0, 2, 3).model_dump_json()},
    )
    shown = reported.page()
    assert ("attention" in explored(shown.data)) is not outdated
    assert ("(last), for 2 sentences of test" in shown.text) is not outdated
    assert ("leaves out the attention of analyze/attention" in shown.text) is outdated


def test_unreadable_attention_is_named_with_the_command(reported):
    attachments = dict.fromkeys(
        ("base.json", "own.json", "third.json"), attention(0).model_dump_json()
    )
    reported.finding("attention", "attention", attachments=attachments)
    assert len(explored(reported.page().data)["attention"]) == 3
    folder = reported.run.path / "analyze/attention"
    (folder / "base.json").write_text("{", "utf-8")
    (folder / "third.json").unlink()
    shown = reported.page()
    assert len(explored(shown.data)["attention"]) == 1
    for name in ("base", "third"):
        assert f"analyze/attention/{name}.json cannot be read" in shown.text
    assert f"nmtkit analyze attention --force --run {reported.run.path}" in shown.text


def long_texts(lines, name="test"):
    """Return texts of six systems, all different, in lines of 25 words."""
    systems = [f"s{k}" for k in range(6)]
    text = [" ".join(f"Wort{(i * 7 + k * 13) % 997}" for k in range(25)) for i in range(lines)]
    values = {
        system: [(i * 37 + k * 11) % 1000 / 10 for i in range(lines)]
        for k, system in enumerate(systems)
    }
    scores, outputs = {"bleu": values, "chrf": values}, dict.fromkeys(systems, text)
    return Texts(name, "s0", text, [text], outputs, scores, [25] * lines)


def explorer_data(texts, attention=()):
    """Return the explorer's data as in the page, and how many lines it has one of."""
    step = explorer.step_of(texts)
    run = SimpleNamespace(manifest=SimpleNamespace(src="en", tgt="de"))
    return explorer.script_text(explorer.data(page.Part(run, texts, step, attention))), step


@pytest.fixture(scope="module")
def attention_of_200():
    weights = [[1 / 40] * 40 for _ in range(40)]
    sentences = {i: SentenceAttention([f"w{i}"] * 40, ["w"] * 40, weights) for i in range(200)}
    return SystemAttention(system="s1", site="layer", set_name="test", sentences=sentences)


def test_explorer_has_all_lines_of_a_set_of_usual_size(attention_of_200):
    data, step = explorer_data([long_texts(1000)], [attention_of_200])
    assert step == 1 and len(data) < 3_500_000


def test_explorer_of_large_sets_has_every_nth_line_with_its_attention(attention_of_200):
    data, step = explorer_data([long_texts(8000), long_texts(8000, "other")], [attention_of_200])
    assert step > 1 and len(data) < 1.1 * explorer.MOST
    first, other = json.loads(data)["sets"]
    assert other["line"][:2] == [1, 1 + step]
    sentences = first["attention"][0]["of"]  # by index of the kept lines
    words = {int(index): sentence["src"][0] for index, sentence in sentences.items()}
    assert words == {i: f"w{i * step}" for i in range(len(range(0, 200, step)))}


def test_size_of_the_explorer_is_measured_in_bytes():
    thai = replace(long_texts(1000), sources=["ก" * 3000] * 1000)
    data, step = explorer_data([thai])
    assert step == 3 and len(data.encode()) < 1.1 * explorer.MOST


def test_sort_keys_are_empty_without_a_number():
    values = (None, float("nan"), Estimate(float("nan")), 2, Estimate(0.5), "text")
    assert [page.sort_key(value) for value in values] == ["", "", "", "2.0", "0.5", "text"]


@pytest.mark.parametrize(
    ("text", "other", "pieces"),
    [
        ("ein Hund läuft.", "ein Hund läuft.", [("ein Hund läuft.", False)]),
        (
            "ein Hund schläft.",
            "ein Hund läuft.",
            [("ein Hund ", False), ("schläft", True), (".", False)],
        ),
        ("", "x", []),
        ("x", "", [("x", True)]),
        ("我爱狗", "我爱猫", [("我爱", False), ("狗", True)]),
        ("ที่นี่", "ที่นั่น", [("ที่นี่", True)]),  # marks are parts of words
    ],
)
def test_words_that_differ_from_another_text_are_marked(text, other, pieces):
    assert differences(text, other) == pieces


def test_side_by_side_has_the_three_largest_gains_and_losses(reported):
    texts = read_texts(read_contents(reported.run), "test")
    base, own = texts.scores["bleu"].values()
    gains = [ours - theirs for ours, theirs in zip(own, base, strict=True)]
    which, shown = side_by_side(texts)
    assert "on which a system gains or loses most against base, by" in which
    by_gain = sorted(range(len(gains)), key=lambda line: (gains[line], line))
    assert gains[by_gain[2]] < 0 < gains[by_gain[-3]]
    assert [one.line - 1 for one in shown] == sorted([*by_gain[:3], *by_gain[-3:]])


def test_side_by_side_without_scores_or_baseline(reported):
    texts = read_texts(read_contents(reported.run), "test")
    assert side_by_side(replace(texts, scores={}))[0] == "The first sentences of test."
    outputs = {"own": texts.outputs["own"], "third": texts.outputs["base"]}
    which, _ = side_by_side(replace(texts, outputs=outputs))
    assert "on which own scores best and worst" in which


def test_side_by_side_prefers_lines_on_which_several_systems_differ(monkeypatch):
    monkeypatch.setattr("nmtkit.report.texts.MOST_LINES", 3)
    gains = {"a": {}, "b": {1: 3.0, 2: -3.0, 7: 1.0}, "c": {2: -2.0, 7: 4.0, 9: 5.0}}
    scores = {name: [gain.get(line, 0.0) for line in range(20)] for name, gain in gains.items()}
    outputs = dict.fromkeys(gains, ["x"] * 20)
    texts = Texts("test", "a", ["x"] * 20, [["x"] * 20], outputs, {"bleu": scores}, None)
    assert [(one.line, one.why) for one in side_by_side(texts)[1]] == [
        (2, ["b gains 3.0"]),
        (3, ["b loses 3.0", "c loses 2.0"]),
        (8, ["b gains 1.0", "c gains 4.0"]),
    ]


def test_side_by_side_marks_differences_from_the_baseline():
    texts = Texts("test", "a", ["x"], [["r"]], {"a": ["b c"], "d": ["b e"]}, {}, None)
    (line,) = side_by_side(texts)[1]
    assert line.outputs == [
        ("a", None, [("b c", False)]),
        ("d", None, [("b ", False), ("e", True)]),
    ]
    (line,) = side_by_side(replace(texts, outputs={"a": ["r c"]}))[1]
    assert line.outputs == [("a", None, [("r", False), (" c", True)])]  # from the reference


def test_single_system_shows_its_worst_sentences(tmp_path):
    shown = make(tmp_path / "run", systems=(("only", 0.2),)).page()
    assert "there is no other system to compare it with" in shown.text
    assert "among the worst of only" in shown.text and shown.all("mark")
    assert explored(shown.data)["systems"] == ["only"]


@pytest.mark.parametrize("cell", ["nan", "1e999"])
def test_sentence_scores_that_are_not_finite_are_left_out(reported, cell):
    path = reported.scores / "sentences.tsv"
    header, first, *rest = path.read_text("utf-8").split("\n")
    row = dict(zip(header.split("\t"), first.split("\t"), strict=True)) | {"own.bleu": cell}
    path.write_text("\n".join([header, "\t".join(row.values()), *rest]), "utf-8")
    assert "sentences.tsv is missing or of other translations" in reported.page().text


AGAIN = "nmtkit score --on test --significance paired_bootstrap --resamples 20 --trials 20"


@pytest.mark.parametrize(
    ("missing", "text", "options"),
    [
        (False, "(39 lines for 40 sentences)", " --set search.beam=2 --force"),
        (True, "(no such file", " --force"),
    ],
)
def test_unusable_translation_is_left_out_with_the_commands(reported, missing, text, options):
    edit(reported.run.system("own").config, "[train]", "[search]\nbeam = 5\nnbest = 1\n\n[train]")
    reported.describe("own", settings={"beam": 2, "nbest": 1})
    output = reported.run.system("own").translation("test") / "hyp.txt"
    output.write_text(output.read_text("utf-8").partition("\n")[2], "utf-8")
    if missing:
        shutil.rmtree(output.parent)
    shown, contents = reported.page(), read_contents(reported.run)
    read_texts(contents, "test")
    assert f"the translation by own cannot be shown {text}" in shown.text
    assert explored(shown.data)["systems"] == ["base"]
    command = f"nmtkit translate --system own --on test{options} && {AGAIN}"
    assert any(remark.command.startswith(command) for remark in contents.remarks)


def test_removed_system_is_not_translated_again(reported):
    shutil.rmtree(reported.run.system("own").path)
    contents = read_contents(reported.run)
    read_texts(contents, "test")
    assert not [r for r in contents.remarks if "translate" in r.command]


def test_without_source_or_translations_the_scores_are_still_shown(reported):
    write(reported.run.source("test"), ["too short"])
    assert "nmtkit prep DATASET --force" in reported.page().text
    shutil.rmtree(reported.run.path / "systems")
    shown = reported.page()
    contents = read_contents(reported.run)
    read_texts(contents, "test")
    assert not any("nmtkit score" in remark.command for remark in contents.remarks)
    assert "its texts cannot be shown" in shown.text
    assert "There are no texts to explore" in shown.text
    assert "own is better than base" in shown.text
