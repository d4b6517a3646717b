"""The stage: what it prints, what it keeps, what it refuses."""

import csv
import io
import json
import os

import pytest
import sacrebleu

from nmtkit.errors import ConfigError, DataError
from nmtkit.score.stage import score, score_files

from .conftest import spoil, write


def read(run, *parts):
    return (run.path / "score").joinpath(*parts).read_text("utf-8")


def test_all_systems_side_by_side(fake_run, capsys):
    fake = fake_run()
    fake.add("base", 0.4)
    fake.add("better", 0.1)
    os.utime(fake.run.path / "systems" / "base" / "config.toml", (1, 1))
    score(fake.run, by_length=True, resamples=100)
    out, err = capsys.readouterr()
    result = json.loads(read(fake.run, "test", "scores.json"))
    assert [s["name"] for s in result["systems"]] == ["base", "better"]
    assert result["baseline"] == "base"
    base, better = result["systems"]
    expected = sacrebleu.corpus_bleu(spoil(fake.lines["test"], 0.1, 6), [fake.lines["test"]]).score
    assert better["scores"]["bleu"]["value"] == expected
    assert base["tests"] == {}
    test = better["tests"]["paired_bootstrap"]["bleu"]
    assert test["p"] == 0.0
    assert test["difference"]["value"] == pytest.approx(expected - base["scores"]["bleu"]["value"])
    for system in result["systems"]:
        for value in system["scores"].values():
            assert value["low"] <= value["value"] <= value["high"]
            assert value["signature"].endswith(f"version:{sacrebleu.__version__}")
    assert (result["resampling"]["seed"], result["resampling"]["resamples"]) == (1, 100)
    assert "commit" in result
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in out
    assert "<0.01" in out
    assert "█" in out
    assert "[10,20)" in out
    assert "written to" in err
    assert "written to" not in out
    assert r"\toprule" in read(fake.run, "test", "table.tex")
    assert "| better |" in read(fake.run, "test", "table.md")
    assert read(fake.run, "test", "table.csv").startswith("system,bleu,bleu_low,bleu_high,delta,")
    assert "[10,20)" in read(fake.run, "test", "lengths.md")
    history = [json.loads(line) for line in (fake.run.path / "history.jsonl").read_text("utf-8").splitlines()]
    assert (history[-1]["stage"], history[-1]["exit"], history[-1]["seed"]) == ("score", 0, 1)


def test_lengths_are_those_of_the_prepared_source_without_its_end(fake_run):
    fake = fake_run()
    fake.add("base", 0.4)
    score(fake.run, by_length=True, buckets="5,9", resamples=10)
    result = json.loads(read(fake.run, "test", "scores.json"))
    sizes = [len(line.split()) for line in fake.lines["test"]]
    counted = {g["group"]: g["sentences"] for g in result["by_length"]["groups"]}
    assert counted == {"<5": sum(n < 5 for n in sizes), "[5,9)": sum(5 <= n < 9 for n in sizes), "≥9": sum(n >= 9 for n in sizes)}
    rows = list(csv.reader(io.StringIO(read(fake.run, "test", "sentences.tsv")), delimiter="\t"))
    assert rows[0] == ["line", "src_length", "base.bleu", "base.chrf"]
    assert [int(row[1]) for row in rows[1:]] == sizes
    hyps = spoil(fake.lines["test"], 0.4, 4)
    expected = sacrebleu.sentence_bleu(hyps[2], [fake.lines["test"][2]], use_effective_order=True).score
    assert float(rows[3][2]) == pytest.approx(expected, abs=1e-4)


def test_one_system_has_nothing_to_compare_with(fake_run, capsys):
    fake = fake_run()
    fake.add("only", 0.2)
    score(fake.run, resamples=10)
    out, err = capsys.readouterr()
    assert "nothing to compare with" in err
    assert "nothing to compare with" in out
    assert "Δ" not in out


def test_up_to_date_is_said_and_not_repeated_but_still_printed(fake_run, capsys, monkeypatch):
    fake = fake_run()
    folder = fake.add("a", 0.2)
    fake.add("b", 0.3)
    score(fake.run, resamples=10)
    first = capsys.readouterr().out
    monkeypatch.setattr("nmtkit.score.stage.evaluate", lambda *_: pytest.fail("computed again"))
    score(fake.run, resamples=10)
    again = capsys.readouterr()
    assert again.out == first
    assert "up to date" in again.err
    monkeypatch.undo()
    for change in ({"force": True}, {"resamples": 11}, {"against": "b"}, {"by_length": True}):
        score(fake.run, **{"resamples": 10, **change})
        assert "written to" in capsys.readouterr().err
    write(folder / "translate" / "test" / "hyp.txt", fake.lines["test"])
    score(fake.run, resamples=10)
    assert "100.00" in capsys.readouterr().out


def test_baseline_and_choice_of_systems_and_sets(fake_run, capsys):
    fake = fake_run(sets=("dev", "one", "two"))
    for age, name in enumerate(["zeta", "alpha", "mid"]):
        folder = fake.add(name, 0.1 * (age + 1), sets=["one", "dev"])
        os.utime(folder / "config.toml", (age + 1, age + 1))
    fake.add("ensemble-alpha+mid", 0.05, sets=["one"], trained=False)
    score(fake.run, resamples=10)
    result = json.loads(read(fake.run, "one", "scores.json"))
    assert [s["name"] for s in result["systems"]] == ["zeta", "alpha", "mid", "ensemble-alpha+mid"]
    assert not (fake.run.path / "score" / "two").exists()
    score(fake.run, systems=["mid"], against="alpha", set_names=["dev"], resamples=10)
    result = json.loads(read(fake.run, "dev", "scores.json"))
    assert [(s["name"], result["baseline"]) for s in result["systems"]] == [("alpha", "alpha"), ("mid", "alpha")]
    assert result["systems"][1]["tests"]["paired_bootstrap"]["bleu"]["difference"]["value"] < 0
    capsys.readouterr()
    score(fake.run, set_names=["one", "dev"], output_format="csv", resamples=10, force=True)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["set"], r["system"]) for r in rows][3:5] == [("one", "ensemble-alpha+mid"), ("dev", "zeta")]
    score(fake.run, set_names=["one"], output_format="json", resamples=10)
    assert json.loads(capsys.readouterr().out)[0]["set"] == "one"


def test_multiple_references_and_lower_case_are_used(fake_run):
    fake = fake_run(references=3, lowercase=True)
    folder = fake.add("a", 0)
    write(folder / "translate" / "test" / "hyp.txt", [line.lower() for line in fake.lines["test"]])
    score(fake.run, resamples=10)
    result = json.loads(read(fake.run, "test", "scores.json"))
    assert result["references"] == 3
    assert result["systems"][0]["scores"]["bleu"]["value"] == pytest.approx(100)
    assert result["systems"][0]["scores"]["tokenized_bleu"]["value"] == pytest.approx(100)
    assert result["signatures"]["bleu"].startswith("nrefs:3|case:lc")


def test_tokenised_bleu_is_that_of_the_subwords_joined(fake_run):
    fake = fake_run(count=5)
    folder = fake.add("a", 0) / "translate" / "test"
    write(folder / "hyp.subwords.txt", ["a@@ b c d e f"] + [" ".join(w[0] + "@@ " + w[1:] for w in line.split()) for line in fake.lines["test"][1:]])
    score(fake.run, resamples=10)
    tokens = ["ab c d e f", *fake.lines["test"][1:]]
    expected = sacrebleu.corpus_bleu(tokens, [fake.lines["test"]], tokenize="none", smooth_method="none", force=True).score
    assert json.loads(read(fake.run, "test", "scores.json"))["systems"][0]["scores"]["tokenized_bleu"]["value"] == expected


def test_what_is_missing_is_said_with_the_command_that_makes_it(fake_run):
    fake = fake_run(sets=("one", "two"))
    with pytest.raises(DataError) as error:
        score(fake.run)
    assert "nmtkit train" in error.value.hint
    folder = fake.add("a", 0.1, sets=[])
    with pytest.raises(DataError, match="nothing to score") as error:
        score(fake.run)
    assert "nmtkit translate" in error.value.hint
    fake.add("base", 0.1, sets=["one"])
    with pytest.raises(DataError) as error:
        score(fake.run, set_names=["two"])
    assert error.value.hint == "first: nmtkit translate --set-name two"
    with pytest.raises(DataError, match="'a' has no translation of one") as error:
        score(fake.run, against="a")
    assert "nmtkit translate --system a --set-name one" in error.value.hint
    with pytest.raises(ConfigError, match="no system 'bass'") as error:
        score(fake.run, systems=["bass"])
    assert "'base'" in error.value.hint
    with pytest.raises(ConfigError, match="unknown format"):
        score(fake.run, output_format="yaml")
    with pytest.raises(ConfigError, match="length groups"):
        score(fake.run, buckets="x")
    write(folder / "translate" / "one" / "hyp.txt", fake.lines["one"][:-1])
    with pytest.raises(DataError, match="39 translations of 40 sentences"):
        score(fake.run)
    write(folder / "translate" / "one" / "hyp.txt", fake.lines["one"])
    write(folder / "translate" / "one" / "hyp.subwords.txt", fake.lines["one"][:3])
    with pytest.raises(DataError, match="3 lines of subwords"):
        score(fake.run)
    assert not (fake.run.path / "score" / "one").exists()
    history = [json.loads(line)["exit"] for line in (fake.run.path / "history.jsonl").read_text("utf-8").splitlines()]
    assert set(history) == {2}


def test_empty_hypotheses_are_counted_and_shown(fake_run, capsys):
    fake = fake_run()
    folder = fake.add("a", 0)
    write(folder / "translate" / "test" / "hyp.txt", ["", "  ", *fake.lines["test"][2:]])
    score(fake.run, resamples=10)
    assert "empty hypotheses: a 2" in capsys.readouterr().out


def test_outside_files(tmp_path, capsys):
    ref = ["ein Hund läuft heute hier", "die Katze schläft dort und hier", "der Hund schläft"]
    for name, lines in {"ref.de": ref, "a.txt": spoil(ref, 0.4, 1), "b.txt": ref, "src.en": ["a b", "c", "d e f"]}.items():
        write(tmp_path / name, lines)
    score_files([tmp_path / "a.txt", tmp_path / "b.txt"], [tmp_path / "ref.de"], output_format="json", resamples=50)
    result = json.loads(capsys.readouterr().out)[0]
    assert (result["baseline"], result["language"]) == ("a.txt", "de")
    assert result["systems"][1]["scores"]["bleu"]["value"] == pytest.approx(100)
    assert result["systems"][1]["tests"]["paired_bootstrap"]["bleu"]["difference"]["value"] > 0
    score_files([tmp_path / "a.txt"], [tmp_path / "ref.de", tmp_path / "b.txt"], src=tmp_path / "src.en", by_length=True, buckets="2,3", resamples=9)
    out, err = capsys.readouterr()
    assert "2 references" in out
    assert "words of the source" in out
    assert "nothing to compare with" in err
    assert len([p for p in tmp_path.iterdir()]) == 4  # nothing is written


def test_a_source_without_by_length_is_looked_for_and_said_to_be_unused(tmp_path, capsys):
    write(tmp_path / "ref.de", ["ein Hund", "die Katze"])
    options = {"resamples": 5, "output_format": "json"}
    with pytest.raises(DataError, match=r"no such file: .*nope\.en"):
        score_files([tmp_path / "ref.de"], [tmp_path / "ref.de"], src=tmp_path / "nope.en", **options)
    assert capsys.readouterr().out == ""
    score_files([tmp_path / "ref.de"], [tmp_path / "ref.de"], src=tmp_path / "ref.de", **options)
    assert "--src is only used by --by-length" in capsys.readouterr().err
    score_files([tmp_path / "ref.de"], [tmp_path / "ref.de"], src=tmp_path / "ref.de", by_length=True, **options)
    assert "only used" not in capsys.readouterr().err


def test_outside_files_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path / "a.txt", ["x", "y"])
    write(tmp_path / "ref.txt", ["x", "y", "z"])
    with pytest.raises(DataError, match=r"a\.txt has 2 lines but .*ref\.txt has 3"):
        score_files([tmp_path / "a.txt"], [tmp_path / "ref.txt"])
    with pytest.raises(DataError, match="no such file"):
        score_files([tmp_path / "none"], [tmp_path / "ref.txt"])
    with pytest.raises(ConfigError, match="go together"):
        score_files([tmp_path / "a.txt"], [])
    with pytest.raises(DataError, match=r"a\.txt has 2 lines.*\n.*give the source"):
        score_files([tmp_path / "ref.txt"], [tmp_path / "ref.txt"], src=tmp_path / "a.txt", by_length=True)
    with pytest.raises(ConfigError, match="twice"):
        score_files([tmp_path / "a.txt", tmp_path / "a.txt"], [tmp_path / "a.txt"])
    with pytest.raises(DataError, match="baseline 'c'"):
        score_files([tmp_path / "a.txt"], [tmp_path / "a.txt"], against="c")


def test_chinese_is_scored_by_characters_and_the_choice_is_said(tmp_path, capsys):
    write(tmp_path / "ref.zh", ["我们今天去学校", "他昨天没有来这里"])
    score_files([tmp_path / "ref.zh"], [tmp_path / "ref.zh"], resamples=5)
    out, err = capsys.readouterr()
    assert "100.00" in out
    assert "tok:zh" in out
    assert "tokenizer zh" in err
