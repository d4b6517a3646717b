"""The stage: what it prints, what it keeps, what it refuses."""

import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest
import sacrebleu
from typer.testing import CliRunner

import nmtkit.score
from nmtkit import files
from nmtkit.cli import app
from nmtkit.errors import ConfigError, DataError
from nmtkit.files import write_json
from nmtkit.owned_files import SCORES
from nmtkit.prep.stage import prep
from nmtkit.records import load
from nmtkit.run import Run
from nmtkit.score import plain_files
from nmtkit.score.budgets import NOT_COMPARED, read_budget, unequal
from nmtkit.score.metrics import METRICS, TOKENIZERS
from nmtkit.score.notes import main_notes
from nmtkit.score.options import ScoreOptions
from nmtkit.score.resampling import FEW
from nmtkit.score.significance import FEW_DIFFERENT, TESTS
from nmtkit.score.stage import score, score_files
from nmtkit.score.stored_scores import Budget, Scores, SeedGroup
from nmtkit.score.translations import FORCED, unlike_searches
from nmtkit.text.side import TextSide
from tests.manifests import edit, read_json, write_best
from tests.prep.real import lines as real_lines
from tests.refused import refused

from . import slow
from .conftest import WORDS, read, result_of, spoil, write

SHA = "0" * 64
DEFAULT = [key for key, kind in METRICS.items() if not kind.on_request]
"""The metrics that are columns without --metrics."""

SPLIT = f"nrefs:1|case:mixed|eff:no|tok:moses-normalized-split-hyphens|smooth:none|version:{sacrebleu.__version__}"
"""The signature of tokenised BLEU with the defaults of prep."""


def test_all_systems_side_by_side(fake, capsys):
    fake.add("base", 0.4)
    fake.add("better", 0.1)
    fake.score(by_length=True, resamples=100)
    out, err = capsys.readouterr()
    result = result_of(fake.run)
    assert [s["name"] for s in result["systems"]] == ["base", "better"]
    assert result["baseline"] == "base"
    base, better = result["systems"]
    expected = sacrebleu.corpus_bleu(spoil(fake.lines["test"], 0.1, 6), [fake.lines["test"]]).score
    assert better["scores"]["bleu"]["value"] == expected
    assert base["tests"] == {}
    assert better["tests"]["paired_bootstrap"]["bleu"]["p"] == 0.0
    difference = expected - base["scores"]["bleu"]["value"]
    assert better["differences"]["bleu"]["value"] == pytest.approx(difference)
    tested = {test: list(of_test) for test, of_test in better["tests"].items()}
    assert tested == dict.fromkeys(TESTS, DEFAULT)
    for value in (*base["scores"].values(), *better["scores"].values()):
        assert value["low"] <= value["value"] <= value["high"]
        assert value["signature"].endswith(f"version:{sacrebleu.__version__}")
    assert (result["resampling"]["seed"], result["resampling"]["resamples"]) == (1, 100)
    for shown in ("nrefs:1|case:mixed|eff:no|tok:13a", "<0.01", "█", "[10,20)"):
        assert shown in out
    assert "written to" in err and "written to" not in out
    for name, content in (
        ("table.tex", r"\toprule"),
        ("table.md", "| better |"),
        ("table.csv", "system,bleu,bleu_low,bleu_high,delta,"),
        ("lengths.md", "[10,20)"),
    ):
        assert content in read(fake.run, "test", name)
    history = (fake.run.path / "history.jsonl").read_text("utf-8").splitlines()
    assert {"stage": "score", "exit": 0, "seed": 1}.items() <= json.loads(history[-1]).items()


def test_lengths_are_those_of_the_prepared_source_without_its_end(fake):
    fake.add("base", 0.4)
    fake.score(by_length=True, buckets="5,9")
    result = result_of(fake.run)
    sizes = [len(line.split()) for line in fake.lines["test"]]
    counted = {g["group"]: g["sentences"] for g in result["by_length"]["groups"]}
    assert counted == {
        "<5": sum(n < 5 for n in sizes),
        "[5,9)": sum(5 <= n < 9 for n in sizes),
        "≥9": sum(n >= 9 for n in sizes),
    }
    rows = list(csv.reader(io.StringIO(read(fake.run, "test", "sentences.tsv")), delimiter="\t"))
    assert rows[0] == ["line", "src_length", "base.bleu", "base.chrf"]
    assert [int(row[1]) for row in rows[1:]] == sizes
    hyp, ref = spoil(fake.lines["test"], 0.4, 4)[2], fake.lines["test"][2]
    expected = sacrebleu.sentence_bleu(hyp, [ref], use_effective_order=True).score
    assert float(rows[3][2]) == pytest.approx(expected, abs=1e-4)


def test_one_system_has_nothing_to_compare_with_and_its_empty_lines_are_shown(fake, capsys):
    fake.add("only", 0)
    fake.translate("only", ["", "  ", *fake.lines["test"][2:]])
    fake.score()
    out = capsys.readouterr().out
    assert "nothing to compare with" in out
    assert "empty hypotheses: only 2" in out and "Δ" not in out and "empty references" not in out
    result = load(Scores, fake.run.path / "score/test/scores.json")
    notes = main_notes(result.model_copy(update={"empty_references": 3}))
    assert "empty references: 3" in notes


def test_up_to_date_is_said_and_not_repeated_but_still_printed(
    fake, capsys, monkeypatch, read_only
):
    folder = fake.add("a", 0.2)
    fake.add("b", 0.3)
    fake.score()
    first = capsys.readouterr().out
    monkeypatch.setattr("nmtkit.score.stage.evaluate", lambda *_: pytest.fail("computed again"))
    fake.score()
    again = capsys.readouterr()
    assert again.out == first
    assert "up to date" in again.err
    monkeypatch.undo()
    for change in (
        {"force": True},
        {"resamples": 11},
        {"trials": 9},
        {"ratio": 0.5},
        {"test": "sign"},
        {"seed": 2},
        {"against": "b"},
        {"by_length": True},
    ):
        fake.score(**change)
        assert "written to" in capsys.readouterr().err
    write(folder / "translate" / "test" / "hyp.txt", fake.lines["test"])
    fake.score()
    assert "100.00" in capsys.readouterr().out
    stored = fake.run.path / "score/test/scores.json"
    older = {**read_json(stored), "format": 1}
    write_json(stored, older)
    fake.score()
    shown = capsys.readouterr()
    assert "written to" in shown.err
    read_only(fake.run.path)  # as a run of somebody else
    fake.score()
    assert capsys.readouterr().out == shown.out


def test_the_folder_never_holds_tables_of_an_earlier_call(fake):
    for seed, name in enumerate(["one", "two", "gone"]):
        fake.add(name, 0.2, seed=seed)
    fake.score(by_length=True, metrics="chrf")
    folder = fake.run.path / "score/test"
    everything = {path.name for path in folder.iterdir()}
    # Every file is known as one of the stage, and every pattern is of some file.
    assert all(any(fnmatch(name, pattern) for pattern in SCORES) for name in everything)
    assert all(any(fnmatch(name, pattern) for name in everything) for pattern in SCORES)
    fake.score(systems=["one"], metrics="chrf")
    left = {"scores", "sentences", "table", "lengths", "lengths-chrf"}
    assert {path.stem for path in folder.iterdir()} == left
    fake.score(systems=["one", "two"], metrics="chrf")
    assert {path.name for path in folder.iterdir()} == everything
    assert not any("gone" in path.read_text("utf-8") for path in folder.iterdir())


def test_scores_that_broke_off_are_not_up_to_date(fake, monkeypatch, stderr):
    fake.add("one", 0.2)
    fake.score()
    monkeypatch.setattr("nmtkit.score.stage.tables", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fake.score(resamples=11)
    monkeypatch.undo()
    assert result_of(fake.run)["resampling"]["resamples"] == 10
    stderr()
    fake.score(resamples=11)
    assert "up to date" not in stderr()
    assert {path.name for path in (fake.run.path / "score").iterdir()} == {".lock", "test"}


def folder_of(fake):
    folder = fake.run.path / "score/test"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


def test_what_further_options_wrote_stays_without_them(fake_run, capsys, tmp_path, fake):
    """Groups of length are those of the present translations. A paper's numbers and external
    metrics stay while they are of the present translations; then they are removed aloud.
    """
    fake.add("base", 0.3)
    fake.add("new", 0.2)
    for name in ("base", "new"):
        write(tmp_path / f"numbers.{name}", [str(n) for n in range(40)])
    paper = write(
        tmp_path / "paper.toml",
        [
            *('citation = "A"', "[tables.one]", 'title = "T"', 'metric = "BLEU"'),
            'columns = [{name = "BLEU", score = "bleu"}]',
            'rows = [{printed = "Base", system = "base", numbers = {"BLEU" = 20}}]',
        ],
    )
    own = {"metric_scores": [f"own={tmp_path / 'numbers.{system}'}"]}
    further = {"paper": paper, "table": "one", "buckets": "5,9", **own}
    fake.score(**further)
    (fake.run.path / "score/test/notes.md").write_text("mine")
    whole = folder_of(fake)
    assert {"paper.csv", "lengths.csv", "lengths-own.csv", "lengths.svg"} <= whole.keys()
    capsys.readouterr()
    fake.score()
    printed = capsys.readouterr()
    assert "up to date" in printed.err and "5" in printed.out and "printed" not in printed.out
    assert folder_of(fake) == whole
    fake.score(against="new", **own)
    assert folder_of(fake).keys() == whole.keys()
    assert result_of(fake.run)["by_length"]["buckets"] == "5,9"
    groups = result_of(fake.run)["by_length"]["groups"]
    assert {group["system"] for group in groups if group["difference"]["value"] is None} == {"new"}
    assert result_of(fake.run)["paper"]["rows"][0]["system"] == "base"
    capsys.readouterr()
    fake.score(against="new", test="sign")
    assert "no longer asked for: own (--metrics, --metric)" in capsys.readouterr().err
    assert {name for name in whole if "own" not in name} == folder_of(fake).keys()
    fake.score(**further)
    capsys.readouterr()
    fake.translate("new", spoil(fake.lines["test"], 0.1, 9))
    fake.score()
    told = capsys.readouterr().err
    assert "the paper's numbers are out of date and removed (--paper)" in told
    assert "no longer asked for: own" in told
    left = {name for name in whole if not ("own" in name or "paper" in name)}
    assert folder_of(fake).keys() == left
    fresh = fake_run()
    fresh.add("base", 0.3)
    fresh.add("new", 0.2)
    fresh.translate("new", spoil(fresh.lines["test"], 0.1, 9))
    fresh.score(buckets="5,9")
    assert result_of(fresh.run)["by_length"] == result_of(fake.run)["by_length"]


def test_groups_of_length_that_make_no_sense_in_a_run_are_made_no_more(fake):
    fake.add("base", 0.3)
    fake.score(by_length=True)
    result = result_of(fake.run)
    result["by_length"]["buckets"] = "a lot"
    write_json(fake.run.path / "score/test/scores.json", result)
    fake.score()
    assert "by_length" not in result_of(fake.run)


def test_baseline_and_choice_of_systems_and_sets(fake_run, stdout):
    fake = fake_run(sets=("dev", "one", "two"))
    for name, share in (("zeta", 0.1), ("alpha", 0.2), ("mid", 0.3)):
        fake.add(name, share, sets=["one", "dev"])
    fake.add("ensemble-alpha+mid", 0.05, sets=["one"], trained=False)
    fake.score()
    result = result_of(fake.run, "one")
    assert [s["name"] for s in result["systems"]] == ["zeta", "alpha", "mid", "ensemble-alpha+mid"]
    assert not (fake.run.path / "score" / "two").exists()
    fake.score(systems=["mid"], against="alpha", set_names=["dev"])
    result = result_of(fake.run, "dev")
    assert [s["name"] for s in result["systems"]] == ["alpha", "mid"]
    assert result["baseline"] == "alpha"
    assert result["systems"][1]["differences"]["bleu"]["value"] < 0
    fake.score(systems=["mid"], set_names=["dev"])
    assert [s["name"] for s in result_of(fake.run, "dev")["systems"]] == ["zeta", "mid"]
    stdout()
    fake.score(set_names=["one", "dev"], output_format="csv", force=True)
    rows = list(csv.DictReader(io.StringIO(stdout())))
    pairs = [(row["set"], row["system"]) for row in rows]
    assert pairs[3:5] == [("one", "ensemble-alpha+mid"), ("dev", "zeta")]
    fake.score(set_names=["one"], output_format="json")
    assert json.loads(stdout())[0]["set"] == "one"
    write(fake.run.path / "systems/zeta/translate/two/hyp.txt", fake.lines["two"])
    fake.score(set_names=["two", "dev"], output_format="csv")
    rows = list(csv.DictReader(io.StringIO(stdout())))
    assert [row["p"] != "" for row in rows] == [False, False, True, True]
    columns = list(rows[0])  # in the order of the widest table
    assert columns.index("p") < columns.index("chrf")
    long = [" ".join(["x"] * 501), *fake.lines["dev"][1:]]
    write(fake.run.path / "systems/zeta/translate/dev/hyp.txt", long)  # the wider table has no TER
    fake.score(set_names=["two", "dev"], output_format="csv")
    rows = list(csv.DictReader(io.StringIO(stdout())))
    assert [row["ter"] != "" for row in rows] == [True, False, False, False]


def test_multiple_references_and_lower_case_are_used(fake_run):
    fake = fake_run(references=3, lowercase=True)
    fake.add("a", 0)
    fake.translate("a", [line.lower() for line in fake.lines["test"]])
    fake.score()
    result = result_of(fake.run)
    assert result["references"] == 3
    for key in ("bleu", "tokenized_bleu"):
        assert result["systems"][0]["scores"][key]["value"] == pytest.approx(100)
    for signature in result["signatures"].values():
        assert signature.startswith("nrefs:3|case:lc")


@pytest.fixture
def news(shared):
    """Real English with hyphens and names, and the same with one word in six lost."""
    lines = real_lines(shared / "data" / "wmt_newstest" / "newstest2013.eng")[:700]
    return lines, [
        " ".join(word for i, word in enumerate(line.split(" ")) if i % 6 != 4) for line in lines
    ]


def test_tokenised_bleu_is_of_moses_tokens_in_their_own_case(shared, tmp_path, news):
    """Truecasing is undone before it is counted, and a translation without subwords is tokenized
    as the references are.
    """
    lines, lossy = news
    german = real_lines(shared / "data" / "wmt_newstest" / "newstest2013.deu")[:700]
    pair = write(tmp_path / "test.de", german), write(tmp_path / "test.en", lines)
    options = {"test": [",".join(map(str, pair))], "assignments": ["prep.merges=200"]}
    run = prep("mine", train=pair, dev=pair, jobs=1, run_dir=tmp_path / "run", **options)
    side = TextSide.load(run.prep, "tgt")
    subwords = [side.encode(line) for line in lossy]
    outputs = {
        ("ours", "hyp.subwords.txt"): map(" ".join, subwords),
        ("ours", "hyp.txt"): map(side.decode, subwords),
        ("outside", "hyp.txt"): lossy,
    }
    for (name, file), text in outputs.items():
        write(run.path / "systems" / name / "translate" / "test" / file, text)
    score(run, resamples=5, trials=5)
    result = result_of(run)
    found = {one["name"]: one["scores"]["tokenized_bleu"]["value"] for one in result["systems"]}
    refs = [slow.moses_tokens(lines, "en")]
    expected = {
        "ours": slow.bleu_of_tokens(slow.cased_tokens(map(" ".join, subwords)), refs),
        "outside": slow.bleu_of_tokens(slow.moses_tokens(lossy, "en"), refs),
    }
    assert found == pytest.approx(expected, abs=1e-9)
    truecased = slow.bleu_of_tokens(
        [side.surface(one) for one in subwords], [[" ".join(side.tokens(line)) for line in lines]]
    )
    assert abs(truecased - expected["ours"]) > 0.1  # if truecasing were not undone
    assert result["signatures"]["tokenized_bleu"] == SPLIT


@pytest.mark.parametrize(
    ("settings", "tokenizer"),
    [
        ({"normalize": False, "aggressive_hyphens": False}, "case:mixed|eff:no|tok:moses|"),
        ({"normalize": False}, "case:mixed|eff:no|tok:moses-split-hyphens|"),
        ({"lowercase": True}, "case:lc-ascii|eff:no|tok:moses-normalized-split-hyphens|"),
    ],
)
def test_the_signature_of_tokenised_bleu_names_hyphens_and_case(fake, settings, tokenizer):
    fake.add("a", 0.1)
    path = fake.run.prep / "manifest.json"
    manifest = read_json(path)
    manifest["settings"] |= settings
    write_json(path, manifest)
    fake.score()
    assert tokenizer in result_of(fake.run)["signatures"]["tokenized_bleu"]


def test_tokenised_bleu_of_outside_files_is_of_their_moses_tokens_with_lang_and_absent_without(
    tmp_path, capsys, news
):
    ref, hyp = (
        write(tmp_path / name, lines)
        for name, lines in zip(("ref.en", "hyp.en"), news, strict=True)
    )
    result, err = result_of_files(capsys, [hyp], [ref], language="en")
    refs, hyps = (slow.moses_tokens(lines, "en") for lines in news)
    expected = slow.bleu_of_tokens(hyps, [refs])
    found = result["systems"][0]["scores"]["tokenized_bleu"]["value"]
    assert found == pytest.approx(expected, abs=1e-9)
    assert result["signatures"]["tokenized_bleu"] == SPLIT
    assert "tok. BLEU takes its tokens" in err
    result, err = result_of_files(capsys, [hyp], [ref])
    assert result["language"] == "en" and "tokenized_bleu" not in result["signatures"]
    assert "tok. BLEU needs --lang" in err


def test_what_is_missing_is_said_with_the_command_that_makes_it(fake_run, tmp_path):
    refused(DataError, "not prepared", score, Run(tmp_path))
    assert not list(tmp_path.iterdir())
    fake = fake_run(sets=("one", "two"))

    def refuse(error, message, hint, **options):
        assert hint in refused(error, message, fake.score, **options).hint

    refuse(DataError, "no trained system", "nmtkit train")
    folder = fake.add("a", 0.1, sets=[])
    refuse(DataError, "nothing to score", "nmtkit translate")
    fake.add("base", 0.1, sets=["one"])
    missing = "nothing to score: no system of this run has translated two"
    refuse(DataError, missing, "nmtkit translate --on two", set_names=["two"])
    missing = "'a' has no translation of one"
    refuse(DataError, missing, "nmtkit translate --system a --on one", against="a")
    refuse(ConfigError, "no system 'bass'", "'base'", systems=["bass"])
    refuse(ConfigError, "no system 'aa'", "'a'", systems=["aa"])
    refuse(ConfigError, "unknown format", "", output_format="yaml")
    refuse(ConfigError, "length groups", "", buckets="x")
    translation = folder / "translate" / "one"
    write(translation / "hyp.txt", fake.lines["one"][:-1])
    refuse(DataError, "39 lines for 40 sentences", "--force")
    write(translation / "hyp.txt", fake.lines["one"])
    write(translation / "hyp.subwords.txt", fake.lines["one"][:3])
    refuse(DataError, "3 lines for 40 sentences", "--force")
    write(fake.run.prep / "text" / "one.ref", ["Dogs run ."])
    refuse(DataError, "1 line for 40 sentences", "nmtkit prep --force")
    fake.run.source("two").unlink()
    refuse(ConfigError, "keeps no text of the set 'two'", "--on", set_names=["two"])
    assert not (fake.run.path / "score" / "one").exists()
    history = (fake.run.path / "history.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["exit"] for line in history} == {2}


def test_a_corpus_without_a_test_set_is_named(fake):
    manifest = fake.run.prep / "manifest.json"
    edit(manifest, '"split": "test"', '"split": "dev"')
    fake.add("a", 0.1)
    error = refused(DataError, "no test set", fake.score)
    assert error.where == str(manifest) and "--on" in error.hint


def test_systems_without_a_translation_are_named_oldest_first_with_the_command_for_this_set(
    fake_run, stderr
):
    fake = fake_run(sets=("dev", "test"))
    for name in ["zeta", "alpha", "mid", "done", "beta", "last"]:
        fake.add(name, 0.1, sets=["dev", "test"] if name == "done" else ["test"])
    fake.score(set_names=["dev"])
    said = [line for line in stderr().splitlines() if "left out" in line]
    assert [line.split("'")[1] for line in said] == ["zeta", "alpha", "mid", "beta", "last"]
    command = f"nmtkit translate --system zeta --on dev --run {fake.run.path}"
    assert said[0].endswith(f"({command})")


def result_of_files(capsys, hyps, refs, **options):
    """The result of outside files, and what is printed on stderr."""
    score_files(hyps, refs, output_format="json", **{"resamples": 5, **options})
    out, err = capsys.readouterr()
    return json.loads(out)[0], err


@pytest.mark.parametrize("name", ["news.tgt", "news.sys", "news.bpe.gz"])
def test_a_suffix_that_is_no_language(name, tmp_path):
    assert plain_files._language(tmp_path / name) == ""


def test_outside_files(tmp_path, capsys):
    ref = ["ein Hund läuft heute hier", "die Katze schläft dort und hier", "der Hund schläft"] * 10
    ref_path = write(tmp_path / "ref.de", ref)
    hyps = [write(tmp_path / "a.txt", spoil(ref, 0.4, 1)), write(tmp_path / "b.txt", ref)]
    src = write(tmp_path / "src.en", ["a b", "c", "d e f"] * 10)
    result, _ = result_of_files(capsys, hyps, [ref_path], resamples=50)
    assert (result["baseline"], result["language"]) == ("a.txt", "de")
    assert result["systems"][1]["scores"]["bleu"]["value"] == pytest.approx(100)
    assert result["systems"][1]["differences"]["bleu"]["value"] > 0
    for against in ("b", "b.txt", str(hyps[1])):
        result, _ = result_of_files(capsys, hyps, hyps[1:], against=against)
        assert (result["baseline"], result["language"]) == ("b.txt", "")
    options = {"resamples": 9, "trials": 7, "ratio": 0.4, "seed": 5, "test": "sign"}
    result, _ = result_of_files(capsys, hyps, [ref_path], **options)
    assert result["test"] == "sign"
    settings = {
        "paired_bootstrap": "9 resamples of 12 sentences, seed 5",
        "sacrebleu_bootstrap": "9 resamples of 30 sentences, seed 5",
        "sacrebleu_randomization": "7 trials, seed 5",
    }
    tests = result["systems"][1]["tests"]
    assert {test: tests[test]["bleu"]["setting"] for test in settings} == settings
    by_length = {"src": src, "by_length": True, "buckets": "2,3"}
    score_files(hyps[:1], [ref_path, hyps[1]], resamples=9, **by_length)
    out, err = capsys.readouterr()
    for shown in ("2 references", "words of the source", "other intervals: --format json"):
        assert shown in out
    assert "nothing to compare with" in out
    assert "scores.json" not in out + err
    assert len([p for p in tmp_path.iterdir()]) == 4  # nothing is written


def test_few_sentences_have_neither_p_nor_interval_in_any_form(fake_run, stdout):
    fake = fake_run(count=9)
    for name, share, seed in (("a-1", 0.5, 1), ("a-2", 0.5, 2), ("b-1", 0.1, 1), ("b-2", 0.1, 2)):
        fake.add(name, share, seed=seed, variant=name[0])
    fake.score(by_length=True, output_format="json")
    (result,) = json.loads(stdout())
    for system in (result["systems"][0], result["systems"][2]):
        numbers = [*system["scores"].values(), *system["differences"].values()]
        for number in [*numbers, system["length_ratio"]]:
            assert number["value"] is not None and number["low"] is number["high"] is None
        assert {test["p"] for of in system["tests"].values() for test in of.values()} <= {None}
    assert {group["p"] for group in result["by_length"]["groups"]} == {None}
    for stem in ("table", "significance", "seeds", "lengths"):
        assert f"{FEW}  " in read(fake.run, "test", f"{stem}.md").splitlines()
        assert f"% {FEW}" in read(fake.run, "test", f"{stem}.tex").splitlines()
    row = list(csv.DictReader(io.StringIO(read(fake.run, "test", "table.csv"))))[2]
    assert float(row["bleu"]) and float(row["delta"])
    assert [row[key] for key in ("bleu_low", "bleu_high", "delta_low", "p")] == [""] * 4
    row = list(csv.DictReader(io.StringIO(read(fake.run, "test", "seeds.csv"))))[1]
    assert (row["pairs"], row["better"]) == ("2", "")


def test_unequal_trainings_are_under_every_table_and_in_the_scores(fake_run):
    fake = fake_run(count=60)

    def train(name, updates, tokens, seed, preset, corpus="first"):
        folder = fake.add(name, 0.3, seed=seed, variant=name[0], preset=preset, corpus=corpus)
        lines = [
            json.dumps({"step": step, "kind": "train", "updates": 10, "tgt_tokens": tokens})
            for step in range(10, updates + 1, 10)
        ]
        write(folder / "metrics.jsonl", lines)

    def remarks():
        fake.score(by_length=True)
        return result_of(fake.run)["remarks"]

    train("a-1", 20, 5000, 1, "small")
    train("b-1", 20, 5100, 1, "small")
    assert remarks() == []
    train("b-1", 40, 5100, 1, "base", "another")
    train("b-2", 40, 5100, 2, "base", "another")
    fake.add("elsewhere", 0.3, trained=False)
    said = (
        "The systems were not trained alike: updates (a-1 20, b-1 40, b-2 40); seeds (a-1 1, b 2);"
        " target tokens seen (a-1 10,000, b-1 20,400, b-2 20,400); presets (a-1 small, b-1 base,"
        " b-2 base); preparations of the corpus (a-1 first, b-1 another, b-2 another)."
    )
    assert remarks() == [said]
    budgets = result_of(fake.run)["made_from"]["budgets"]
    trained = {"updates": 40, "tokens": 20400, "preset": "base", "corpus": "another"}
    trained |= {"init_from": ""}
    settings = budgets["b-2"].pop("settings")
    assert settings["train.label_smoothing"] == 0.1 and not settings.keys() & NOT_COMPARED
    assert budgets["b-2"] == trained
    for stem in ("table", "significance", "seeds", "lengths"):
        assert said in read(fake.run, "test", f"{stem}.md"), stem
    for name in ("b-1", "b-2"):  # twice the updates, half the tokens in each
        train(name, 40, 2500, int(name[-1]), "small")
    updates = "updates (a-1 20, b-1 40, b-2 40); seeds (a-1 1, b 2)."
    assert remarks() == [f"The systems were not trained alike: {updates}"]
    for name in ("b-1", "b-2"):  # a signal stopped it between two lines of the log
        (fake.run.system(name).checkpoints / "step-00000046").mkdir(parents=True)
    assert remarks() == [f"The systems were not trained alike: {updates}".replace("40", "46")]
    assert result_of(fake.run)["made_from"]["budgets"]["b-1"]["tokens"] is None  # of 46 updates


RATES = [("a", 1.0), ("b", 1.0), ("c", 0.5)]


def test_of_many_systems_the_budgets_are_summed_up():
    made = {f"a-{i}": Budget(i, None, "", "x" if i < 5 else "y") for i in range(1, 8)}
    assert unequal(made) == [
        "The systems were not trained alike: updates (from 1 (a-1) to 7 (a-7)); preparations of the"
        " corpus (x of 4 systems, y of 3 systems)."
    ]
    assert unequal({"a": Budget(100, None, ""), "b": Budget(101, None, "")})
    del made["a-7"]
    listed = ", ".join(f"a-{i} {i}" for i in range(1, 7)), ", a-6 y)"
    assert all(text in unequal(made)[0] for text in listed)


def test_systems_with_other_settings_of_training_are_not_trained_alike():
    first = {"train.lr": 1.0, "train.betas": [0.9, 0.98]}
    made = {name: Budget(9, None, "", settings=first | {"train.lr": rate}) for name, rate in RATES}
    text = "The systems were not trained alike: train.lr (a 1.0, b 1.0, c 0.5)."
    assert unequal(made | {"without": Budget(9, None, "")}) == [text]
    seeds = SeedGroup("a", ["a-s1", "a-s2"], [1, 2])
    made = {name: Budget(9, None, "", init_from="x") for name in seeds.systems}
    begun = "All seeds of a began with the weights of x, so no p covers the seed of these weights."
    assert unequal(made, [seeds]) == [begun]
    assert begun not in unequal(made | {"a-s2": Budget(9, None, "")}, [seeds])
    # What is known of one system alone is not compared.
    one, two = ({f"train.{letter}": n for letter in "abcdefghij"} for n in (1, 2))
    one |= {"hardware.precision": "float32"}
    made = {name: Budget(9, None, "", settings=of) for name, of in (("a", one), ("b", two))}
    assert unequal(made)[0].endswith("; and 4 more settings of training.")


def test_systems_that_begin_with_weights_of_another_one_are_not_trained_alike():
    made = {"a": Budget(9, None, "", "x"), "b": Budget(9, None, "", "x", "a")}
    text = "The systems were not trained alike: initial weights (a random, b a)."
    assert unequal(made) == [text]
    assert not unequal({"b": made["b"], "c": made["b"]})
    seeds = {"b-s1": "a-s1", "b-s2": "a-s2", "c": "a"}
    assert not unequal({name: Budget(9, None, "", "x", start) for name, start in seeds.items()})


def test_systems_of_equal_names_in_two_runs_are_different_initial_weights():
    """By default a system has the name of its variant."""
    sources = {"a-s1": "../wmt/systems/base-s1", "a-s2": "/runs/wmt/systems/base-s2"}
    made = {name: Budget(9, None, "", "x", source) for name, source in sources.items()}
    assert not unequal(made)
    made["b"] = Budget(9, None, "", "x", "../news/systems/base")
    weights = "initial weights (a-s1 wmt/base, a-s2 wmt/base, b news/base)"
    assert weights in unequal(made)[0]


def test_the_path_of_a_system_of_the_same_run_is_its_name(fake):
    for name, source in (("a", "base"), ("b", fake.run.path / "systems" / "base")):
        fake.add(name, 0.3, init_from=str(source))
        assert read_budget(fake.run, name).init_from == "base"


def test_tokens_are_noticed_where_text_is_expected(tmp_path, capsys):
    text = write(tmp_path / "text.de", ["ein Hund."] * 100)
    tokens = write(tmp_path / "tokens.de", ["ein Hund ."] * 100)
    assert "is this text detokenised?" in result_of_files(capsys, [tokens], [text])[1]
    assert "detokenised?" not in result_of_files(capsys, [tokens], [tokens])[1]


def test_a_source_without_by_length_is_looked_for_and_said_to_be_unused(tmp_path, capsys):
    ref = write(tmp_path / "ref.de", ["ein Hund", "die Katze"])
    options = {"resamples": 5, "output_format": "json"}
    with pytest.raises(DataError, match=r"no such file: .*nope\.en"):
        score_files([ref], [ref], src=tmp_path / "nope.en", **options)
    assert capsys.readouterr().out == ""
    score_files([ref], [ref], src=ref, **options)
    assert "--src is only used by --by-length" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")  # opened, it would wait for a writer
    with pytest.raises(DataError, match="is a pipe, not a file"):
        score_files([ref], [ref], src=tmp_path / "pipe", **options)
    score_files([ref], [ref], src=ref, by_length=True, **options)
    assert "only used" not in capsys.readouterr().err
    lengths = {"by_length": True, "buckets": "3,7"}
    for name, lines, unit, sizes in (
        ("s.zh", ["我们今天 去学校了吗", "他昨天没有来"], "characters of the source", [0, 1, 1]),
        ("s.tok.zh", ["我们 今天 去", "他"], "words of the source", [1, 1, 0]),
        ("s.en", ["supercalifragilistic", "a b c d e"], "words of the source", [1, 1, 0]),
    ):
        src = write(tmp_path / name, lines)
        found = result_of_files(capsys, [ref], [ref], src=src, **lengths)[0]["by_length"]
        assert found["unit"] == unit
        assert [group["sentences"] for group in found["groups"]] == sizes
    ref = write(tmp_path / "ref.zh", ["我们今天去学校", "他昨天没有来"])
    found = result_of_files(capsys, [ref], [ref], **lengths)[0]["by_length"]
    assert found["unit"] == "characters of the reference (no --src given)"


def test_of_many_comparisons_by_length_the_lucky_ones_are_said_where_there_are_some(
    fake_run, capsys
):
    fake = fake_run(count=80)
    fake.add("a", 0.2)
    fake.add("b", 0.3)
    many = "1,2,3,5,7,9,11,13,15,17,19,21,23,25"
    for buckets, some in (("15", True), (many, False)):
        fake.score(buckets=buckets, by_length=True)
        lines = read(fake.run, "test", "lengths.md").splitlines()
        assert (f"{FEW}  " in lines) == (not some)
        note = next(line for line in lines if "inside the group, paired" in line)
        assert ("about 0.2 of 2 such p" in note) == ("by chance" in note) == some
    assert "by chance" not in read(fake.run, "test", "table.md")  # of one p
    fake.add("c", 0.3)
    fake.score()
    for table, chance in (("table", "0.2 of 2"), ("significance", "1.2 of 12")):
        lines = read(fake.run, "test", f"{table}.md").splitlines()
        note = next(line for line in lines if "paired bootstrap (Koehn 2004)" in line)
        assert f"; about {chance} such p are below 0.05 by chance" in note
    capsys.readouterr()
    fake.score(metrics="bleu,chrf", force=True)
    assert "about 0.4 of 4 such p" in capsys.readouterr().out.replace("\n", " ")


def test_lines_that_do_not_pair_are_shown_where_they_begin_to(tmp_path):
    lines = [" ".join(["wort"] * (1 + 5 * number % 23)) for number in range(60)]
    ref, hyp = (
        write(tmp_path / "ref.de", lines),
        write(tmp_path / "hyp.de", lines[:20] + lines[21:]),
    )
    empty = write(tmp_path / "empty.de", [])
    caught = refused(
        DataError, "hyp.de has 59 lines but .*ref.de has 60", score_files, [ref, hyp], [ref]
    )
    words = len(lines[21].split()), len(lines[20].split())
    assert caught.where == "first odd pair: line 21 ({} words vs {})".format(*words)
    caught = refused(
        DataError, "empty.de has 0 lines but .*ref.de has 60", score_files, [empty], [ref]
    )
    assert caught.where is None


def test_outside_files_may_be_pipes(tmp_path, capsys, pipe):
    ref = ["ein Hund", "die Katze schläft dort", "ja"]
    hyp = ["ein Hund", "die Katze schläft hier", "ja"]
    ref_path, hyp_path = write(tmp_path / "ref.de", ref), write(tmp_path / "hyp.de", hyp)
    options = {"language": "de", "by_length": True}
    of_files, _ = result_of_files(capsys, [hyp_path], [ref_path], src=ref_path, **options)
    piped = [pipe("".join(line + "\n" for line in lines)) for lines in (hyp, ref, ref)]
    of_pipes, _ = result_of_files(capsys, piped[:1], piped[1:2], src=piped[2], **options)
    assert of_pipes["systems"][0]["scores"] == of_files["systems"][0]["scores"]
    short = pipe("ein Hund\n")
    with pytest.raises(DataError, match=f"{short} has 1 line but .*ref.de has 3") as caught:
        score_files([short], [ref_path], **options)
    assert caught.value.where is None  # no line is named: there is nothing left to look at


def called(*words, text=b""):
    """Standard output and standard error of `nmtkit score`, in a process with its own stdin."""
    command = [sys.executable, "-m", "nmtkit", "score", *map(str, words), "--resamples", "5"]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_lines_of_outside_files_that_mark_documents_are_warned_of(tmp_path, capsys):
    path = tmp_path / "ref.de"
    for text, note in (
        ("ein Hund\n", ""),
        ("<d>\nein Hund\n<d>\nja\n", "(2 lines of ref.de)"),
    ):
        path.write_text(text, "utf-8")
        score_files([path], [path], resamples=5)
        warned = capsys.readouterr().err
        assert ("scored as sentences" in warned) == bool(note) and note in warned


def test_outside_files_as_arguments_and_from_stdin(tmp_path, capsys):
    ref = ["ein Hund", "die Katze schläft dort", "ja"] * 20
    worse = ["ein Hund", "die Katze läuft dort", "nein"] * 20
    paths = []
    for name, lines in (("base", worse), ("mine", ref)):
        (tmp_path / name / "out").mkdir(parents=True)
        paths.append(write(tmp_path / name / "out" / "hyp.txt", lines))
    (base, mine), ref_path = paths, write(tmp_path / "ref.de", ref)
    by_option, _ = result_of_files(capsys, paths, [ref_path], against=str(mine))
    json_words = ["--ref", ref_path, "--format", "json"]
    code, out, err = called(base, mine, *json_words, "--against", "mine")
    assert code == 0, err
    (by_argument,) = json.loads(out)
    assert [system["name"] for system in by_argument["systems"]] == ["base", "mine"]
    assert by_argument["baseline"] == "mine"
    assert by_argument["systems"] == by_option["systems"]
    text = "".join(f"{line}\n" for line in worse).encode()
    code, out, err = called("-", "--hyp", mine, *json_words, text=text)
    assert code == 0, err
    stdin, other = json.loads(out)[0]["systems"]
    assert (stdin["name"], other["name"]) == ("stdin", "hyp.txt")
    assert stdin["scores"] == by_argument["systems"][0]["scores"]
    code, out, err = called(mine, "--ref", "-", "--format", "json", text=text.rstrip(b"\n"))
    assert code == 0, err
    assert json.loads(out)[0]["set"] == "stdin"


def test_a_line_of_stdin_that_is_too_long_is_named(tmp_path, monkeypatch):
    """`yes | tr -d '\n'` is one, which has no end."""
    monkeypatch.setattr(files, "LONGEST", 9)
    text = io.BytesIO(b"123456789\n1234567890\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text, encoding="utf-8"))
    reference = write(tmp_path / "ref.de", ["a"])
    caught = refused(
        DataError, "^line 2 has more than 16 MiB", score_files, [Path("-")], [reference]
    )
    assert caught.where == "stdin" and caught.hint.startswith("split it")


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        (["-"], b"x\n", "go together, got no --ref"),
        (["-", "--ref", "-"], b"x\n", "stdin can be read only once"),
        (["-", "--ref", "REF"], b"x\n", "stdin has 1 line but REF has 3"),
        (["-", "--ref", "REF"], b"x\ny\xff\nz\n", "stdin, line 2"),
        (["REF", "REF", "--ref", "REF"], b"", "named twice"),
        (["none.de", "--ref", "REF"], b"", "no such file: none.de"),
        (["REF", "--ref", "REF", "--system", "a"], b"", "--system has no effect"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, words, text, message):
    ref = str(write(tmp_path / "ref.de", ["x", "y", "z"]))
    words = [word.replace("REF", ref) for word in words]
    done = CliRunner().invoke(app, ["score", *words, "--resamples", "5"], input=text)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message.replace("REF", ref) in " ".join(done.stderr.split())


def test_outside_files_that_do_not_fit_are_refused(tmp_path):
    short, ref = write(tmp_path / "a.txt", ["x", "y"]), write(tmp_path / "ref.txt", ["x", "y", "z"])
    source = r"a\.txt has 2 lines.*\n.*first odd pair.*\n.*give the source"
    for hyps, refs, options, error, message in (
        ([tmp_path / "none"], [ref], {}, DataError, "no such file"),
        ([short], [], {}, ConfigError, "go together"),
        ([ref], [ref], {"language": "english"}, ConfigError, "'english' is not a language code"),
        ([ref], [ref], {"src": short, "by_length": True}, DataError, source),
        ([short, short], [short], {}, ConfigError, "twice"),
        ([short], [short], {"against": "c"}, DataError, "baseline 'c'"),
    ):
        refused(error, message, score_files, hyps, refs, **options)


def test_a_chinese_target_is_scored_by_characters(fake_run, capsys):
    lines = ["我们今天去学校", "他昨天没有来这里", "天气很好"]
    hyps = ["我们今天去学校", "他昨天来这里", "天气好"]
    fake = fake_run(tgt="zho", count=3)
    write(fake.run.prep / "text" / "test.ref", lines)
    fake.add("a", 0)
    fake.translate("a", hyps)
    fake.score()
    result = result_of(fake.run)
    expected = sacrebleu.corpus_bleu(hyps, [lines], tokenize="zh").score
    assert result["systems"][0]["scores"]["bleu"]["value"] == expected > 50
    signatures = result["signatures"]
    assert "tok:zh" in signatures["bleu"] and "tok:jieba" in signatures["tokenized_bleu"]
    assert "mteval" not in signatures
    out, err = capsys.readouterr()
    assert "tokenizer zh, not 13a" in err and "left out: NIST BLEU, NIST uncased (it needs" in err
    assert "NIST BLEU  " not in out


def test_scores_of_another_tokenizer_are_not_up_to_date(fake, monkeypatch, stderr):
    """As after an installation of sacreBLEU's tokenizer for the language."""
    fake.add("a", 0.3)
    with monkeypatch.context() as patch:
        patch.setitem(TOKENIZERS, "de", "char")
        fake.score()
        assert "tok:char" in result_of(fake.run)["signatures"]["bleu"]
        fake.score()
        assert "up to date" in stderr()
    fake.score()
    assert "tok:13a" in result_of(fake.run)["signatures"]["bleu"]
    assert "up to date" not in stderr()


def test_every_test_is_shown_under_its_name(fake_run, stdout):
    fake = fake_run(count=60)
    for name, share in (("base", 0.3), ("better", 0.25), ("same", 0.3)):
        fake.add(name, share)
    fake.translate("same", spoil(fake.lines["test"], 0.3, len("base")))
    fake.score(resamples=200, trials=300, test="sign", ratio=0.5)
    out = stdout()
    rows = list(csv.DictReader(io.StringIO(read(fake.run, "test", "significance.csv"))))
    assert [(row["system"], row["metric"]) for row in rows] == [
        (s, kind.header) for s in ("better", "same") for kind in map(METRICS.get, DEFAULT)
    ]
    result = result_of(fake.run)
    for test in TESTS:
        assert float(rows[0][f"p_{test}"]) == result["systems"][1]["tests"][test]["bleu"]["p"]
        assert f"{TESTS[test].header}: {TESTS[test].name}" in out
    assert "ties)" not in out  # each system has numbers of its own
    shown = [line.split() for line in out.splitlines() if line.startswith(("better ", "same "))]
    assert [line[:2] for line in shown[2:]] == [["better", "BLEU"], ["same", "BLEU"]]
    # Equal outputs: Koehn's p is 1. sacreBLEU's tests, whose p would be as small as it can be, have
    # none.
    same = rows[len(DEFAULT)]
    p_values = [same[f"p_{test}"] for test in TESTS]
    assert [p and float(p) for p in p_values] == [1.0, 1.0, "", "", 1.0]
    assert FEW_DIFFERENT in out and FEW_DIFFERENT not in read(fake.run, "test", "table.md")
    header, _, better = read(fake.run, "test", "table.csv").split("\n")[:3]
    main = dict(zip(*csv.reader([header, better]), strict=True))
    assert float(main["p"]) == result["systems"][1]["tests"]["sign"]["bleu"]["p"]
    assert "Collins" in read(fake.run, "test", "table.md")
    fake.score(test="sacrebleu_bootstrap", by_length=True)
    for stem in ("table", "lengths"):
        assert FEW_DIFFERENT in read(fake.run, "test", f"{stem}.md")


def test_equal_scores_of_different_outputs_have_no_p(fake_run):
    fake = fake_run(count=60)
    for name, words in (("base", 1), ("other", 2)):
        fake.add(name, 0)
        fake.translate(name, ["wrong " * words + str(line) for line in range(60)])
    fake.score(resamples=100, trials=100, test="sacrebleu_randomization")
    assert FEW_DIFFERENT in read(fake.run, "test", "table.md")
    tests = result_of(fake.run)["systems"][1]["tests"]
    p_values = {test: of_metrics["bleu"]["p"] for test, of_metrics in tests.items()}
    assert p_values == dict.fromkeys(TESTS, 1.0) | {
        "sacrebleu_bootstrap": None,
        "sacrebleu_randomization": None,
    }


def test_the_page_and_the_help_name_every_metric_and_every_test():
    page = (Path(nmtkit.score.__file__).parent / "README.md").read_text("utf-8")
    for key, entry in [*METRICS.items(), *TESTS.items()]:
        assert f"| `{key}` | {entry.header} |" in page
    columns = " ".join(ScoreOptions.model_fields["metrics"].description.split())
    assert f": {', '.join(METRICS)}. " in columns
    listed = ScoreOptions.model_fields["test"].description.split(":")[1]
    assert set(re.findall(r"\w+", listed)) >= set(TESTS)


def translated_as(fake, system, text, checkpoint="step-00000010", sha256=8 * "00000010"):
    """Write down what `translate` would: the text and the checkpoint that a translation is of."""
    digest = hashlib.sha256("".join(line + "\n" for line in text).encode()).hexdigest()
    fake.describe(
        system,
        source={"lines": 40, "sha256": digest},
        settings={"beam": 5},
        checkpoints=[{"system": system, "name": checkpoint, "sha256": sha256}],
    )


def test_a_translation_of_another_text_is_never_scored(fake, stderr):
    for name, text in (("today", fake.lines["test"]), ("earlier", fake.lines["test"][::-1])):
        fake.add(name, 0.3)
        translated_as(fake, name, text)
    fake.translate("ensemble-a+b", fake.lines["test"])
    translated_as(fake, "ensemble-a+b", fake.lines["test"][::-1])
    fake.score()
    said = stderr()
    for name, systems in (("earlier", "earlier"), ("ensemble-a+b", "a --system b --ensemble")):
        message = f"the translation by '{name}' is of an earlier test set, so it is left out"
        assert f"{message} (nmtkit translate --system {systems} --on" in said
    assert [s["name"] for s in result_of(fake.run)["systems"]] == ["today"]
    for named in ({"systems": ["earlier"]}, {"against": "earlier"}):
        refused(DataError, "is of an earlier test set", fake.score, **named)
    write(fake.run.path / "prep/text/test.src", fake.lines["test"][::-1])
    fake.score(systems=["earlier"])
    write(fake.run.path / "prep/text/test.src", ["another"] * 40)
    refused(DataError, "nothing to score", fake.score)


def test_a_system_trained_on_since_it_was_translated_is_named(fake, stderr):
    folder = fake.add("a", 0.3)
    translated_as(fake, "a", fake.lines["test"])
    for name in ("step-00000010", "step-00000020"):
        weights = {"model.safetensors": {"bytes": 0, "sha256": 8 * name[-8:]}}
        manifest = {"format": 1, "step": 10, "files": weights}
        write(folder / "checkpoints" / name / "model.safetensors", [])
        write(folder / "checkpoints" / name / "manifest.json", [json.dumps(manifest)])
    message = "'a' was translated with step-00000010, and its weights have changed since"
    for best, warned in (("step-00000010", False), ("step-00000020", True)):
        write_best(folder, best)
        fake.score()
        assert (message in stderr()) is warned
        shown = result_of(fake.run)["remarks"], read(fake.run, "test", "table.md")
        assert [message in str(text) for text in shown] == [warned, warned]
    (folder / "config.toml").write_text(
        'variant = "x"\n[train]\ncheckpoint_every = 10\n[search]\naverage = 2\n'
    )
    fake.score()
    assert message in stderr()
    fake.translate("a", [], "meta.json")
    translated_as(fake, "a", fake.lines["test"], "step-00000020", 8 * "00000020")
    (folder / "config.toml").write_text('variant = "x"\n')
    fake.score()
    assert "weights" not in stderr() and not result_of(fake.run)["remarks"]


def test_systems_that_were_not_searched_alike_are_named(fake, stderr):
    for name, beam, precision in (("a", 5, "float32"), ("b", 5, "bfloat16"), ("c", 4, "float32")):
        fake.add(name, 0.3)
        settings = {"beam": beam, "batch_size": beam}
        fake.describe(name, settings=settings, hardware={"precision": precision})
    fake.score(systems=["a", "b"])
    printed = stderr()
    assert "with the same search.precision (float32: a; bfloat16: b)" in printed
    assert "search.beam" not in printed and "batch_size" not in printed
    fake.score()
    # One command for all settings: the next would undo the one before.
    (line,) = (line for line in stderr().splitlines() if "searched" in line)
    differences = "search.beam (5: a, b; 4: c), search.precision (float32: a, c; bfloat16: b)"
    assert f"with the same {differences}; alike after: nmtkit" in line
    command = "--system a --system b --system c --force --on test"
    settings = "--set search.beam=… --set search.precision=…"
    assert line.endswith(f"{command} {settings} --run {fake.run.path}")
    fake.score(systems=["a"])
    assert "searched" not in stderr()


def test_markup_is_not_scored_as_text(tmp_path):
    for name in ("hyp.sgm", "ref.de"):
        (tmp_path / name).write_text("Ein Hund.\n")
    hyps, refs = [tmp_path / "hyp.sgm"], [tmp_path / "ref.de"]
    refused(DataError, "hyp.sgm is SGM or XML", score_files, hyps, refs)


def test_systems_that_a_call_leaves_out_are_named(fake, capsys):
    for name in ("base", "new"):
        fake.add(name, 0.2)
    fake.score()
    capsys.readouterr()
    fake.score(systems=["base"])
    assert "test: no longer scored: new" in capsys.readouterr().err


def test_outside_files_without_a_line_or_not_utf8_are_named(tmp_path):
    for name, content in (("empty.de", b""), ("latin1.de", "gut\nschön\n".encode("latin-1"))):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="nothing to score: .*empty.de is empty"):
        score_files([tmp_path / "empty.de"], [tmp_path / "empty.de"])
    caught = refused(
        DataError, "not UTF-8", score_files, [tmp_path / "latin1.de"], [tmp_path / "latin1.de"]
    )
    assert "line 2, byte 7" in caught.where and "prep." not in caught.hint


@pytest.fixture
def searched(tmp_path):
    def describe(name, checkpoints, **settings):
        """The folder of a translation with these checkpoints: (system, number) each."""
        used = [{"system": s, "name": f"step-{i}", "sha256": SHA} for s, i in checkpoints]
        forced = {key: settings.pop(key) for key in FORCED if key in settings}
        meta = {"format": 1, "settings": {"beam": 5, "average": 1, **settings}, "checkpoints": used}
        meta |= forced
        write_json(tmp_path / name / "meta.json", meta)
        return tmp_path / name

    return describe


def test_what_was_really_averaged_is_compared(searched):
    """`--average 99` of one kept checkpoint searched as `--average 1` did; of three it did not."""
    folders = {
        "one": searched("one", [("one", 1)]),
        "many": searched("many", [("many", 1)], average=99),
    }
    assert unlike_searches("test", folders) is None
    # One setting of the search is newer than the first two translations.
    assert (
        unlike_searches("test", {**folders, "new": searched("new", [("new", 1)], seed=1)}) is None
    )
    folders["three"] = searched("three", [("three", i) for i in range(3)], average=99)
    assert "search.average (1: one, many; 3: three)" in unlike_searches("test", folders).text


def test_averages_of_checkpoints_with_unequal_distances_are_unlike(searched):
    """Five checkpoints 100 updates apart are another mean than five 1,000 updates apart."""

    def averaged(name, distance):
        return searched(name, [(name, distance * i) for i in (7, 8, 9)], average=3)

    folders = {"base": averaged("base", 100), "like": averaged("like", 100)}
    assert unlike_searches("test", folders) is None
    folders["far"] = averaged("far", 1000)
    unlike = unlike_searches("test", folders)
    distances = "updates between averaged checkpoints (100: base, like; 1000: far)"
    assert unlike.text.endswith(f"searched with the same {distances}")
    assert "--set" not in unlike.commands[0]


@pytest.mark.parametrize("option", FORCED)
def test_a_forced_translation_is_not_compared_as_a_free_one(searched, option):
    folders = {name: searched(name, [(name, 1)]) for name in "ab"}
    folders["c"] = searched("c", [("c", 1)], **{option: SHA})
    unlike = unlike_searches("test", folders)
    assert unlike.text.endswith(f"the same --{option} (none: a, b; 00000000: c)")
    command = "nmtkit translate --system a --system b --system c --force --on test"
    assert unlike.commands == [command]


def test_what_makes_translations_unlike_stands_under_the_table(fake):
    for name, beam in (("base", 5), ("new", 1)):
        fake.add(name, 0.2)
        fake.describe(name, settings={"beam": beam}, counts={"no_context": 40 * (beam - 1) // 4})
    path = fake.run.prep / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    overlap = [{"name": "test", "exact": 3, "normalised": 4}]
    write_json(path, manifest | {"repeats": {"duplicates": 0, "identical": 0, "overlap": overlap}})
    fake.score()
    texts = [
        "test: not all systems were searched with the same search.beam (5: base; 1: new)",
        "test: base read it without context, since the set has no document starts",
        "test: 3 of 40 pairs were in the training text before cleaning",
    ]
    assert result_of(fake.run)["remarks"] == texts
    assert all(text in read(fake.run, "test", "table.md") for text in texts)
    fake.describe("new", settings={"beam": 5})
    fake.score()
    assert result_of(fake.run)["remarks"] == texts[1:]


def test_scores_of_the_development_set_say_that_checkpoints_were_chosen_on_it(fake_run):
    fake = fake_run(sets=("dev",))
    fake.add("base", 0.2)
    fake.score(set_names=["dev"])
    text = "dev: the development set, on which checkpoints were chosen"
    assert result_of(fake.run, "dev")["remarks"] == [text]


def test_an_ensemble_is_searched_again_by_a_command_of_its_own(searched):
    folders = {
        "a": searched("a", [("a", 1)]),
        "ensemble-a+b": searched("ensemble-a+b", [("a", 1), ("b", 1)], beam=4),
    }
    assert unlike_searches("test", folders).commands == [
        f"nmtkit translate{systems} --force --on test --set search.beam=…"
        for systems in (" --system a", " --ensemble --system a --system b")
    ]


@pytest.mark.parametrize(
    ("meta", "field"),
    [
        ([], "damaged: must be an object"),
        ({"hardware": None}, "damaged: 'hardware' must be"),
        ({"checkpoints": [{}]}, r"damaged: 'checkpoints\.0\.system' is missing"),
        ({"format": 2}, r"written by another version of nmtkit \(format 2\)"),
    ],
)
def test_a_damaged_description_of_a_translation_is_named(fake, meta, field):
    fake.add("a", 0.3)
    fake.describe("a", **(meta or {}))
    path = fake.run.path / "systems/a/translate/test/meta.json"
    if meta == []:
        path.write_text("[]")
    caught = refused(DataError, field, fake.score)
    assert str(caught.where) == str(path) and "nmtkit translate --force" in caught.hint


def test_a_line_too_long_for_ter_costs_ter_alone(fake, capsys):
    """Shuffled, it took sacreBLEU a minute and more."""
    words = [WORDS[i * i % 15] + str(i % 500) for i in range(3000)]
    for path in (fake.run.path / "prep/text").glob("test.*"):
        write(path, [" ".join(words), *fake.lines["test"][1:]])
    for name, share in (("base", 0.4), ("better", 0.1)):
        fake.add(name, share)
        lines = [" ".join(sorted(words)), *spoil(fake.lines["test"][1:], share, 1)]
        fake.translate(name, lines)
    start = time.process_time()
    fake.score(by_length=True)
    assert time.process_time() - start < 20
    result, printed = result_of(fake.run), capsys.readouterr()
    said = "left out: TER (a line has "
    assert said + "3,000 words, more than 500)" in printed.err
    assert said + "3,000 words, more than 500)" in result["remarks"]
    assert said + "3,000 words, more than 500)" in printed.out
    for of_test in result["systems"][1]["tests"].values():
        assert list(of_test) == [key for key in DEFAULT if key != "ter"]
    bleu = sacrebleu.corpus_bleu(lines, [[" ".join(words), *fake.lines["test"][1:]]]).score
    assert result["systems"][1]["scores"]["bleu"]["value"] == bleu
    with pytest.raises(ConfigError, match="TER is not possible here: a line has 3,000 words"):
        fake.score(metrics="ter")
    fake.score(metrics="chrf")
    assert not result_of(fake.run)["remarks"]


def test_the_longest_line_with_ter(fake, fake_run):
    fake.add("base", 0.4)
    fake.translate("base", [" ".join(["x"] * 500), *fake.lines["test"][1:]])
    fake.score()
    assert "ter" in result_of(fake.run)["signatures"]
    fake.translate("base", [" ".join(["x"] * 501), *fake.lines["test"][1:]])
    fake.score()
    assert "ter" not in result_of(fake.run)["signatures"]
    chinese = fake_run("zh", tgt="zh", count=2)
    chinese.add("base", 0.4)
    chinese.translate("base", ["我" * 501, "你"])
    chinese.score()
    said = "left out: TER (a line has 501 characters, more than 500)"
    assert said in result_of(chinese.run)["remarks"]
