"""The stage `score` on a run: what it computes, writes, prints, keeps and refuses."""

import json
import re
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest
import sacrebleu

import nmtkit.score
from nmtkit.errors import ConfigError, DataError
from nmtkit.owned_files import SCORES
from nmtkit.prep.stage import prep
from nmtkit.score.metrics import METRICS, TOKENIZERS
from nmtkit.score.notes import main_notes
from nmtkit.score.options import ScoreOptions
from nmtkit.score.resampling import FEW
from nmtkit.score.result_tables import significance_table
from nmtkit.score.significance import FEW_DIFFERENT, TESTS
from nmtkit.score.stage import score
from nmtkit.text.side import TextSide
from tests.manifests import read_json, write_json
from tests.prep.real import lines as real_lines
from tests.refused import refused

from . import slow
from .conftest import SPLIT, WORDS, csv_rows, result_of, spoil, write

DEFAULT = [key for key, kind in METRICS.items() if not kind.on_request]
"""The metrics that are columns without --metrics."""


@pytest.fixture
def compared(fake):
    """A run with the systems `base` and `better`."""
    fake.add_all(base=0.4, better=0.1)
    return fake


@pytest.fixture
def one_system(fake):
    fake.add("base", 0.4)
    return fake


def test_scores_json_has_values_intervals_signatures_and_tests(compared):
    compared.score(resamples=100)
    result, lines = compared.result(), compared.lines["test"]
    base, better = result["systems"]
    assert [system["name"] for system in (base, better)] == ["base", "better"]
    assert result["baseline"] == "base" and base["tests"] == {}
    expected = sacrebleu.corpus_bleu(spoil(lines, 0.1, len("better")), [lines]).score
    assert better["scores"]["bleu"]["value"] == expected
    assert better["tests"]["paired_bootstrap"]["bleu"]["p"] == 0.0
    difference = expected - base["scores"]["bleu"]["value"]
    assert better["differences"]["bleu"]["value"] == pytest.approx(difference)
    tested = {test: list(metrics) for test, metrics in better["tests"].items()}
    assert tested == dict.fromkeys(TESTS, DEFAULT)
    for value in (*base["scores"].values(), *better["scores"].values()):
        assert value["low"] <= value["value"] <= value["high"]
        assert value["signature"].endswith(f"version:{sacrebleu.__version__}")
    assert (result["resampling"]["seed"], result["resampling"]["resamples"]) == (1, 100)


def test_each_column_of_p_is_as_fine_as_its_test(compared):
    compared.score(resamples=20)
    columns = significance_table(compared.loaded()).columns
    below = {column.key: column.below for column in columns if column.key.startswith("p_")}
    counted = dict.fromkeys(["p_paired_bootstrap", "p_paired_bootstrap_half"], 1 / 20)
    assert below == {f"p_{test}": 0.001 for test in TESTS} | counted


def test_tables_are_printed_and_written_and_the_call_is_recorded(compared, capsys):
    compared.score(by_length=True, resamples=100)
    out, err = capsys.readouterr()
    for part in ("nrefs:1|case:mixed|eff:no|tok:13a", "<0.01", "█", "[10,20)"):
        assert part in out
    assert "written to" in err and "written to" not in out
    for name, part in (
        ("table.tex", r"\toprule"),
        ("table.md", "| better |"),
        ("table.csv", "system,bleu,bleu_low,bleu_high,delta,"),
        ("lengths.md", "[10,20)"),
    ):
        assert part in compared.read(name)
    (line,) = compared.run.history.read_text("utf-8").splitlines()
    assert {"stage": "score", "exit": 0, "seed": 1}.items() <= json.loads(line).items()


def test_groups_have_lengths_of_the_prepared_source_without_end_of_sentence(one_system):
    one_system.score(by_length=True, buckets="5,9")
    sizes = [len(line.split()) for line in one_system.lines["test"]]
    groups = one_system.result()["by_length"]["groups"]
    assert {group["group"]: group["sentences"] for group in groups} == {
        "<5": sum(n < 5 for n in sizes),
        "[5,9)": sum(5 <= n < 9 for n in sizes),
        "≥9": sum(n >= 9 for n in sizes),
    }


def test_sentences_tsv_has_source_lengths_and_sentence_scores(one_system):
    one_system.score()
    rows = one_system.csv("sentences.tsv", delimiter="\t")
    assert list(rows[0]) == ["line", "src_length", "base.bleu", "base.chrf"]
    lines = one_system.lines["test"]
    assert [int(row["src_length"]) for row in rows] == [len(line.split()) for line in lines]
    hyps = spoil(lines, 0.4, len("base"))
    for row, hyp, ref in zip(rows, hyps, lines, strict=True):
        expected = sacrebleu.sentence_bleu(hyp, [ref], use_effective_order=True).score
        assert float(row["base.bleu"]) == pytest.approx(expected, abs=1e-4)


def test_single_system_has_no_difference_and_a_note_on_empty_lines(one_system, stdout):
    one_system.translate("base", ["", "  ", *one_system.lines["test"][2:]])
    one_system.score()
    out = stdout()
    assert "nothing to compare with" in out and "Δ" not in out
    assert "empty hypotheses: base 2" in out and "empty references" not in out
    result = one_system.loaded().model_copy(update={"empty_references": 3})
    assert "empty references: 3" in main_notes(result)


def test_up_to_date_scores_are_printed_again_without_computing(
    compared, capsys, monkeypatch, read_only
):
    compared.score()
    first = capsys.readouterr().out
    monkeypatch.setattr("nmtkit.score.stage.evaluate", lambda *_: pytest.fail("computed again"))
    read_only(compared.run.path)  # like the run of another user
    compared.score()
    again = capsys.readouterr()
    assert again.out == first
    assert "up to date" in again.err


def test_changed_options_translations_or_format_compute_scores_again(compared, capsys):
    compared.score()
    for change in (
        {"force": True},
        {"resamples": 11},
        {"trials": 9},
        {"ratio": 0.5},
        {"test": "sign"},
        {"seed": 2},
        {"against": "better"},
        {"by_length": True},
    ):
        capsys.readouterr()
        compared.score(**change)
        assert "written to" in capsys.readouterr().err, change
    compared.translate("base", compared.lines["test"])
    compared.score()
    assert "100.00" in capsys.readouterr().out
    write_json(compared.scores / "scores.json", {**compared.result(), "format": 1})
    compared.score()
    assert "written to" in capsys.readouterr().err


def test_changed_source_computes_scores_again(compared, stderr):
    compared.score(by_length=True)
    write(compared.run.source("test"), compared.lines["test"][::-1])
    compared.score()
    assert "up to date" not in stderr()


def test_tables_of_an_earlier_call_are_removed_or_replaced(fake):
    for seed, name in enumerate(["one", "two", "gone"]):
        fake.add(name, 0.2, seed=seed)
    fake.score(by_length=True, metrics="chrf")
    everything = {path.name for path in fake.scores.iterdir()}
    # Every file is known as one of the stage, and every pattern is of some file.
    assert all(any(fnmatch(name, pattern) for pattern in SCORES) for name in everything)
    assert all(any(fnmatch(name, pattern) for name in everything) for pattern in SCORES)
    fake.score(systems=["one"], metrics="chrf")
    left = {"scores", "sentences", "table", "lengths", "lengths-chrf"}
    assert {path.stem for path in fake.scores.iterdir()} == left
    fake.score(systems=["one", "two"], metrics="chrf")
    assert {path.name for path in fake.scores.iterdir()} == everything
    assert not any("gone" in path.read_text("utf-8") for path in fake.scores.iterdir())


def test_scores_that_broke_off_are_not_up_to_date(one_system, monkeypatch, stderr):
    one_system.score()
    monkeypatch.setattr("nmtkit.score.stage.tables", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one_system.score(resamples=11)
    monkeypatch.undo()
    assert one_system.result()["resampling"]["resamples"] == 10
    stderr()
    one_system.score(resamples=11)
    assert "up to date" not in stderr()
    assert {path.name for path in one_system.scores.parent.iterdir()} == {".lock", "test"}


def test_systems_that_a_call_leaves_out_are_named(compared, stderr):
    compared.score()
    stderr()
    compared.score(systems=["base"])
    assert "test: no longer scored: better" in stderr()


def contents(fake):
    """Return the files of the scores of the set `test` with their bytes."""
    return {
        path.relative_to(fake.scores).as_posix(): path.read_bytes()
        for path in fake.scores.rglob("*.*")
    }


PAPER = """
citation = "A"
[tables.one]
title = "T"
metric = "BLEU"
columns = [{name = "BLEU", score = "bleu"}]
rows = [{printed = "Base", system = "base", numbers = {"BLEU" = 20}}]
"""


@pytest.fixture
def extended(fake, tmp_path):
    """A run scored with a paper's numbers, length groups and a metric `own`; and these options."""
    fake.add_all(base=0.3, new=0.2)
    for name in ("base", "new"):
        write(tmp_path / f"numbers.{name}", map(str, range(40)))
    metric = {"metric_scores": [f"own={tmp_path}/numbers.{{system}}"]}
    paper = write(tmp_path / "paper.toml", [PAPER])
    fake.score(paper=paper, table="one", buckets="5,9", **metric)
    (fake.scores / "notes.md").write_text("of the user")
    return fake, metric


def test_plain_call_keeps_paper_metric_and_length_groups(extended, capsys):
    fake, _ = extended
    before = contents(fake)
    assert {"paper.csv", "lengths.csv", "lengths-own.csv", "lengths.svg"} <= before.keys()
    capsys.readouterr()
    fake.score()
    out, err = capsys.readouterr()
    assert "up to date" in err and "5" in out and "printed" not in out
    assert contents(fake) == before


@pytest.mark.parametrize("name", ["lengths.svg", "table.tex", "lengths-own.csv", "sentences.tsv"])
def test_removed_file_is_written_again(extended, stderr, name):
    fake, metric = extended
    before = contents(fake)
    (fake.scores / name).unlink()
    for up_to_date in (False, True):
        stderr()
        fake.score(**metric)
        assert ("up to date" in stderr()) == up_to_date
    assert contents(fake) == before


def test_new_baseline_keeps_paper_metric_and_length_groups(extended):
    fake, metric = extended
    names = contents(fake).keys()
    fake.score(against="new", **metric)
    assert contents(fake).keys() == names
    result = fake.result()
    assert result["by_length"]["buckets"] == "5,9"
    groups = result["by_length"]["groups"]
    assert {group["system"] for group in groups if group["difference"]["value"] is None} == {"new"}
    assert result["paper"]["rows"][0]["system"] == "base"


def test_metric_that_a_new_call_leaves_out_is_removed_with_a_message(extended, stderr):
    fake, _ = extended
    names = contents(fake).keys()
    fake.score(test="sign")
    assert "no longer asked for: own (--metrics, --metric)" in stderr()
    assert contents(fake).keys() == {name for name in names if "own" not in name}


def test_new_translation_removes_paper_and_metric_and_renews_length_groups(
    extended, fake_run, stderr
):
    fake, _ = extended
    names = contents(fake).keys()
    fresh = fake_run("fresh")
    fresh.add_all(base=0.3, new=0.2)
    for run in (fake, fresh):
        run.translate("new", spoil(fake.lines["test"], 0.1, 9))
    fake.score()
    err = stderr()
    assert "the paper's numbers are out of date and removed (--paper)" in err
    assert "no longer asked for: own" in err
    left = {name for name in names if not ("own" in name or "paper" in name)}
    assert contents(fake).keys() == left
    fresh.score(buckets="5,9")
    assert fresh.result()["by_length"] == fake.result()["by_length"]


def test_unreadable_stored_length_groups_are_dropped(one_system):
    one_system.score(by_length=True)
    result = one_system.result()
    result["by_length"]["buckets"] = "a lot"
    write_json(one_system.scores / "scores.json", result)
    one_system.score()
    assert "by_length" not in one_system.result()


@pytest.fixture
def three_sets(fake_run):
    """Three systems have translated the sets `dev` and `one`, an ensemble `one`, nobody `two`."""
    fake = fake_run(sets=("dev", "one", "two"))
    for name, share in (("zeta", 0.1), ("alpha", 0.2), ("mid", 0.3)):
        fake.add(name, share, sets=["one", "dev"])
    fake.add("ensemble-alpha+mid", 0.05, sets=["one"], trained=False)
    return fake


def test_systems_are_ordered_by_training_and_untranslated_sets_are_skipped(three_sets):
    three_sets.score()
    assert three_sets.systems("one") == ["zeta", "alpha", "mid", "ensemble-alpha+mid"]
    assert not (three_sets.run.path / "score" / "two").exists()


def test_selected_systems_are_compared_with_the_baseline(three_sets):
    three_sets.score(systems=["mid"], against="alpha", set_names=["dev"])
    result = three_sets.result("dev")
    assert three_sets.systems("dev") == ["alpha", "mid"]
    assert result["baseline"] == "alpha"
    assert result["systems"][1]["differences"]["bleu"]["value"] < 0
    three_sets.score(systems=["mid"], set_names=["dev"])
    assert three_sets.systems("dev") == ["zeta", "mid"]  # by default the oldest


def test_missing_translation_is_refused_before_any_set_is_scored(three_sets):
    three_sets.add("late", 0.2, sets=["one"])
    named = {"systems": ["late"], "set_names": ["one", "dev"]}
    refused(DataError, "'late' has no translation of dev", three_sets.score, **named)
    assert not (three_sets.run.path / "score/one/scores.json").exists()


def test_printed_csv_and_json_have_the_named_sets_in_order(three_sets, stdout):
    three_sets.score(set_names=["one", "dev"], output_format="csv")
    pairs = [(row["set"], row["system"]) for row in csv_rows(stdout())]
    assert pairs[3:5] == [("one", "ensemble-alpha+mid"), ("dev", "zeta")]
    three_sets.score(set_names=["one"], output_format="json")
    assert json.loads(stdout())[0]["set"] == "one"


def test_printed_csv_has_the_columns_of_all_sets(three_sets, stdout):
    write(three_sets.run.system("zeta").translation("two") / "hyp.txt", three_sets.lines["two"])
    three_sets.score(set_names=["two", "dev"], output_format="csv")
    rows = csv_rows(stdout())
    assert [row["p"] != "" for row in rows] == [False, False, True, True]
    columns = list(rows[0])  # in the order of the widest table
    assert columns.index("p") < columns.index("chrf")
    long = [" ".join(["x"] * 501), *three_sets.lines["dev"][1:]]
    write(three_sets.run.system("zeta").translation("dev") / "hyp.txt", long)  # no TER on dev
    three_sets.score(set_names=["two", "dev"], output_format="csv")
    assert [row["ter"] != "" for row in csv_rows(stdout())] == [True, False, False, False]


def test_all_references_and_lower_case_are_used(fake_run):
    fake = fake_run(references=3, lowercase=True)
    fake.add("a", 0)
    fake.translate("a", [line.lower() for line in fake.lines["test"]])
    write(fake.run.prep / "text" / "test.ref1", ["", " ", *fake.lines["test"][2:]])
    fake.score()
    result = fake.result()
    assert (result["references"], result["empty_references"]) == (3, 2)
    for key in ("bleu", "tokenized_bleu"):
        assert result["systems"][0]["scores"][key]["value"] == pytest.approx(100)
    for signature in result["signatures"].values():
        assert signature.startswith("nrefs:3|case:lc")


@pytest.fixture
def truecased(tmp_path, news, shared):
    """A run prepared with truecasing, translated by `ours` with subwords and by `outside` without.

    Returns: the run, and the subwords of each line of `ours`.
    """
    lines, lossy = news
    german = shared / "data" / "wmt_newstest" / "newstest2013.deu"
    pair = write(tmp_path / "test.de", real_lines(german)[: len(lines)]), tmp_path / "test.en"
    write(pair[1], lines)
    options = {"test": [",".join(map(str, pair))], "assignments": ["prep.merges=200"]}
    run = prep("mine", train=pair, dev=pair, jobs=1, run_dir=tmp_path / "run", **options)
    side = TextSide.load(run.prep, "tgt")
    subwords = [side.encode(line) for line in lossy]
    ours, outside = (run.system(name).translation("test") for name in ("ours", "outside"))
    write(ours / "hyp.subwords.txt", map(" ".join, subwords))
    write(ours / "hyp.txt", map(side.decode, subwords))
    write(outside / "hyp.txt", lossy)
    return run, subwords


def test_tokenized_bleu_uses_moses_tokens_without_truecasing(truecased, news):
    """A translation without subwords is tokenized like the references."""
    (run, subwords), (lines, lossy) = truecased, news
    score(run, resamples=5, trials=5)
    result = result_of(run)
    found = [system["scores"]["tokenized_bleu"]["value"] for system in result["systems"]]
    refs = [slow.moses_tokens(lines, "en")]
    expected = [
        slow.bleu_of_tokens(slow.cased_tokens(map(" ".join, subwords)), refs),
        slow.bleu_of_tokens(slow.moses_tokens(lossy, "en"), refs),
    ]
    assert [system["name"] for system in result["systems"]] == ["ours", "outside"]
    assert found == pytest.approx(expected, abs=1e-9)
    assert result["signatures"]["tokenized_bleu"] == SPLIT
    side = TextSide.load(run.prep, "tgt")
    hyps, refs = ([" ".join(side.tokens(line)) for line in text] for text in (lossy, lines))
    assert abs(slow.bleu_of_tokens(hyps, [refs]) - expected[0]) > 0.1  # with truecased tokens


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"normalize": False, "aggressive_hyphens": False}, "case:mixed|eff:no|tok:moses|"),
        ({"normalize": False}, "case:mixed|eff:no|tok:moses-split-hyphens|"),
        ({"lowercase": True}, "case:lc-ascii|eff:no|tok:moses-normalized-split-hyphens|"),
    ],
)
def test_signature_of_tokenized_bleu_names_normalisation_hyphens_and_case(
    one_system, settings, part
):
    path = one_system.run.prep / "manifest.json"
    manifest = read_json(path)
    manifest["settings"] |= settings
    write_json(path, manifest)
    one_system.score()
    assert part in one_system.result()["signatures"]["tokenized_bleu"]


@pytest.fixture
def nine_lines(fake_run):
    """Two seeds of two systems, scored on nine lines."""
    fake = fake_run(count=9)
    for name, share, seed in (("a-1", 0.5, 1), ("a-2", 0.5, 2), ("b-1", 0.1, 1), ("b-2", 0.1, 2)):
        fake.add(name, share, seed=seed, variant=name[0])
    fake.score(by_length=True)
    return fake


def test_few_sentences_have_neither_p_nor_interval_by_any_metric(nine_lines):
    result = nine_lines.result()
    for system in (result["systems"][0], result["systems"][2]):
        numbers = [*system["scores"].values(), *system["differences"].values()]
        for number in (*numbers, system["length_ratio"]):
            assert number["value"] is not None and number["low"] is number["high"] is None
    rows = nine_lines.csv("significance.csv")
    assert {row[f"p_{test}"] for row in rows for test in TESTS} == {""}
    assert {group["p"] for group in result["by_length"]["groups"]} == {None}


def test_tables_of_few_sentences_have_empty_cells_and_a_note(nine_lines):
    fake = nine_lines
    for stem in ("table", "significance", "seeds", "lengths"):
        assert f"{FEW}  " in fake.read(f"{stem}.md").splitlines()
        assert f"% {FEW}" in fake.read(f"{stem}.tex").splitlines()
    row = fake.csv("table.csv")[2]
    assert float(row["bleu"]) and float(row["delta"])
    assert [row[key] for key in ("bleu_low", "bleu_high", "delta_low", "p")] == [""] * 4
    row = fake.csv("seeds.csv")[1]
    assert (row["pairs"], row["better"]) == ("2", "")


@pytest.fixture
def eighty_lines(fake_run):
    """Two systems on 80 lines."""
    fake = fake_run(count=80)
    fake.add_all(a=0.2, b=0.3)
    return fake


def note_with(text, table):
    return next(line for line in table.splitlines() if text in line)


@pytest.mark.parametrize(
    ("buckets", "has_p"), [("15", True), (",".join(map(str, [1, 2, 3, *range(5, 26, 2)])), False)]
)
def test_length_table_notes_how_many_small_p_are_chance(eighty_lines, buckets, has_p):
    eighty_lines.score(buckets=buckets, by_length=True)
    table = eighty_lines.read("lengths.md")
    note = note_with("inside the group, paired", table)
    assert ("about 0.2 of 2 such p" in note) == ("by chance" in note) == has_p
    assert (f"{FEW}  " in table.splitlines()) == (not has_p)
    assert "by chance" not in eighty_lines.read("table.md")  # it has one p


def test_tables_of_several_p_note_how_many_small_p_are_chance(eighty_lines, stdout):
    eighty_lines.add("c", 0.3)
    eighty_lines.score(buckets="15")
    for table, chance in (("table", "0.2 of 2"), ("significance", "1.2 of 12")):
        note = note_with("paired bootstrap (Koehn 2004)", eighty_lines.read(f"{table}.md"))
        assert f"; about {chance} such p are below 0.05 by chance" in note
    stdout()
    eighty_lines.score(metrics="bleu,chrf", force=True)
    assert "about 0.4 of 4 such p" in stdout().replace("\n", " ")


def test_chinese_target_is_scored_by_characters(fake_run, capsys):
    lines = ["我们今天去学校", "他昨天没有来这里", "天气很好"]
    hyps = ["我们今天去学校", "他昨天来这里", "天气好"]
    fake = fake_run(tgt="zho", count=3)
    write(fake.run.prep / "text" / "test.ref", lines)
    fake.add("a", 0)
    fake.translate("a", hyps)
    fake.score()
    result = fake.result()
    expected = sacrebleu.corpus_bleu(hyps, [lines], tokenize="zh").score
    assert result["systems"][0]["scores"]["bleu"]["value"] == expected > 50
    signatures = result["signatures"]
    assert "tok:zh" in signatures["bleu"] and "tok:jieba" in signatures["tokenized_bleu"]
    assert "mteval" not in signatures
    out, err = capsys.readouterr()
    assert "tokenizer zh, not 13a" in err and "left out: NIST BLEU, NIST uncased (it needs" in err
    assert "NIST BLEU  " not in out


def test_newly_installed_tokenizer_computes_scores_again(one_system, monkeypatch, stderr):
    with monkeypatch.context() as patch:
        patch.setitem(TOKENIZERS, "de", "char")
        one_system.score()
        assert "tok:char" in one_system.result()["signatures"]["bleu"]
        one_system.score()
        assert "up to date" in stderr()
    one_system.score()
    assert "tok:13a" in one_system.result()["signatures"]["bleu"]
    assert "up to date" not in stderr()


@pytest.fixture
def with_equal(fake_run):
    """`better` and `same`, whose output equals that of `base`, on 60 lines."""
    fake = fake_run(count=60)
    fake.add_all(base=0.3, better=0.25, same=0.3)
    fake.translate("same", spoil(fake.lines["test"], 0.3, len("base")))
    return fake


def test_significance_table_has_p_of_every_test_and_metric(with_equal, stdout):
    with_equal.score(resamples=200, trials=300, test="sign", ratio=0.5)
    out, rows = stdout(), with_equal.csv("significance.csv")
    headers = [METRICS[key].header for key in DEFAULT]
    pairs = [(system, header) for system in ("better", "same") for header in headers]
    assert [(row["system"], row["metric"]) for row in rows] == pairs
    tests = with_equal.result()["systems"][1]["tests"]
    for test in TESTS:
        assert float(rows[0][f"p_{test}"]) == tests[test]["bleu"]["p"]
        assert f"{TESTS[test].header}: {TESTS[test].name}" in out
    assert "ties)" not in out  # the numbers differ between systems
    printed = [line.split() for line in out.splitlines() if line.startswith(("better ", "same "))]
    assert [line[:2] for line in printed[2:]] == [["better", "BLEU"], ["same", "BLEU"]]
    # Of equal outputs Koehn's p is 1, and sacreBLEU's tests have none.
    same = [rows[len(DEFAULT)][f"p_{test}"] for test in TESTS]
    assert [p and float(p) for p in same] == [1.0, 1.0, "", "", 1.0]
    assert FEW_DIFFERENT in out


def test_main_table_has_p_of_the_chosen_test_and_its_note(with_equal):
    with_equal.score(test="sign")
    better = with_equal.csv("table.csv")[1]
    expected = with_equal.result()["systems"][1]["tests"]["sign"]["bleu"]["p"]
    assert float(better["p"]) == expected
    table = with_equal.read("table.md")
    assert "Collins" in table and FEW_DIFFERENT not in table
    with_equal.score(test="sacrebleu_bootstrap", by_length=True)
    for stem in ("table", "lengths"):
        assert FEW_DIFFERENT in with_equal.read(f"{stem}.md")


def test_documentation_and_help_name_every_metric_and_test():
    page = (Path(nmtkit.score.__file__).parent / "README.md").read_text("utf-8")
    for key, entry in [*METRICS.items(), *TESTS.items()]:
        assert f"| `{key}` | {entry.header} |" in page
    columns = " ".join(ScoreOptions.model_fields["metrics"].description.split())
    assert f": {', '.join(METRICS)}. " in columns
    listed = ScoreOptions.model_fields["test"].description.split(":")[1]
    assert set(re.findall(r"\w+", listed)) >= set(TESTS)


@pytest.fixture
def long_line(compared):
    """A run whose first line has 3,000 words, shuffled: a minute and more for sacreBLEU's TER."""
    words = [WORDS[i * i % 15] + str(i % 500) for i in range(3000)]
    lines = compared.lines["test"][1:]
    for path in (compared.run.prep / "text").glob("test.*"):
        write(path, [" ".join(words), *lines])
    for name, share in (("base", 0.4), ("better", 0.1)):
        compared.translate(name, [" ".join(sorted(words)), *spoil(lines, share, 1)])
    return compared


LEFT_OUT = "left out: TER (a line has 3,000 words, more than 500)"


def test_long_line_leaves_out_only_ter(long_line, capsys):
    start = time.process_time()
    long_line.score(by_length=True)
    assert time.process_time() - start < 20
    result, printed = long_line.result(), capsys.readouterr()
    for texts in (printed.err, printed.out, result["remarks"]):
        assert LEFT_OUT in texts
    for metrics in result["systems"][1]["tests"].values():
        assert list(metrics) == [key for key in DEFAULT if key != "ter"]
    run = long_line.run
    paths = (run.system("better").translation("test") / "hyp.txt", run.prep / "text/test.ref")
    hyps, refs = (path.read_text("utf-8").splitlines() for path in paths)
    expected = sacrebleu.corpus_bleu(hyps, [refs]).score
    assert result["systems"][1]["scores"]["bleu"]["value"] == expected


def test_ter_of_a_long_line_is_refused_if_asked_for(long_line):
    with pytest.raises(ConfigError, match="TER is not possible here: a line has 3,000 words"):
        long_line.score(metrics="ter")
    long_line.score(metrics="chrf")
    assert not long_line.result()["remarks"]


@pytest.mark.parametrize("words", [500, 501])
def test_longest_line_with_ter_has_500_words(one_system, words):
    one_system.translate("base", [" ".join(["x"] * words), *one_system.lines["test"][1:]])
    one_system.score()
    assert ("ter" in one_system.result()["signatures"]) == (words == 500)


def test_longest_chinese_line_with_ter_has_500_characters(fake_run):
    fake = fake_run(tgt="zh", count=2)
    fake.add("base", 0.4)
    fake.translate("base", ["我" * 501, "你"])
    fake.score()
    remark = "left out: TER (a line has 501 characters, more than 500)"
    assert remark in fake.result()["remarks"]
