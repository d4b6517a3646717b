"""Metrics by command and by file: beside the built-in ones, and with slow versions of mean,
interval and test.
"""

import csv
import errno
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.report import stage as report
from nmtkit.report.commands import score_command
from nmtkit.score.external_metrics import SetTexts, external_metrics
from nmtkit.score.metrics import Scorer
from nmtkit.score.options import ScoreOptions
from nmtkit.score.result_tables import length_tables, main_table
from nmtkit.score.stage import score_files
from nmtkit.score.stored_scores import Scores
from tests.manifests import read_json, write_json
from tests.refused import refused

from .conftest import read, result_of, write

CHRF = """
import sys
from sacrebleu import sentence_chrf
for line in sys.stdin:
    source, hypothesis, *references = line.rstrip("\\n").split("\\t")
    print(sentence_chrf(hypothesis, references).score)
"""
LENGTH = """
import sys
for line in sys.stdin:
    print(len(line.split("\\t")[1]))
"""
"""Starts in a tenth of the time."""


@pytest.fixture
def command(tmp_path):
    """Builds a command from Python code; each run of it adds a line to the file `runs`."""

    def build(code, name="script.py"):
        count = f"open({str(tmp_path / 'runs')!r}, 'a').write('x\\n')\n"
        path = write(tmp_path / name, [count + code])
        return f"{sys.executable} {path}"

    def runs():
        path = tmp_path / "runs"
        return len(path.read_text().splitlines()) if path.is_file() else 0

    build.runs = runs
    return build


@pytest.fixture
def fake(fake_run):
    """A run with two systems."""
    made = fake_run(count=60, references=2)
    made.add("base", 0.3)
    made.add("better", 0.2)
    return made


def texts_of(fake, system):
    """The hypotheses and references of a system, as lists of lines."""
    names = (
        f"systems/{system}/translate/test/hyp.txt",
        "prep/text/test.ref",
        "prep/text/test.ref1",
    )
    return [(fake.run.path / name).read_text("utf-8").splitlines() for name in names]


def by_sentence(fake, system):
    """Sentence chrF of a system by sacreBLEU itself."""
    hyps, *refs = texts_of(fake, system)
    pairs = zip(hyps, zip(*refs, strict=True), strict=True)
    return np.array([sacrebleu.sentence_chrf(hyp, ours).score for hyp, ours in pairs])


def test_chrf_by_a_command_equals_the_built_in_one(fake, command, stdout):
    """To the last digit sentence by sentence; the corpus score is the mean of these, unlike
    sacreBLEU's chrF of a corpus, which sums n-grams.
    """
    fake.score(metric=[f"own={command(CHRF)}"], resamples=200)
    rows = list(
        csv.DictReader(read(fake.run, "test", "sentences.tsv").splitlines(), delimiter="\t")
    )
    assert len(rows) == 60
    for row in rows:
        for system in ("base", "better"):
            assert row[f"{system}.own"] == row[f"{system}.chrf"]
    metric = external_metrics(ScoreOptions(metric=[f"own={command(CHRF)}"]))["own"]
    hyps, *refs = texts_of(fake, "base")
    ours = metric.measure("base", hyps, SetTexts("test", hyps, refs))
    built_in = Scorer(refs).score("chrf", hyps)
    assert ours.sentence_scores().tolist() == by_sentence(fake, "base").tolist()
    assert ours.sentence_scores() == pytest.approx(built_in.sentence_scores(), abs=1e-12)
    # One sentence is a corpus of its own: there both corpus scores are the same number.
    for line in range(60):
        rows = np.array([line])
        assert ours.part(rows).value == pytest.approx(built_in.part(rows).value, abs=1e-12)
    out = stdout()
    assert "own [95%]" in out and f"own: nrefs:2|command:{sys.executable}" in out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("better ")][1:] == [
        ["better", "BLEU"],
        ["better", "own"],
    ]


def test_a_command_in_the_files_of_a_run_is_not_executed(fake, command):
    """scores.json has the command of a metric; only the command line executes one."""
    fake.score(metric=[f"own={command(CHRF)}"])
    runs = command.runs()
    assert runs and "script.py" in read(fake.run, "test", "scores.json")
    report.report(fake.run)
    fake.score(force=True)
    report.report(fake.run, force=True)
    assert command.runs() == runs


def test_mean_interval_difference_and_p_equal_the_slow_ones(fake, command):
    fake.score(metric=[f"own={command(CHRF)}"], resamples=200, by_length=True, buckets="10,20")
    result = result_of(fake.run)
    base, better = by_sentence(fake, "base"), by_sentence(fake, "better")
    rng = np.random.default_rng(1)
    draws = [rng.integers(0, 60, 60) for _ in range(200)]
    gaps = [better[draw].mean() - base[draw].mean() for draw in draws]
    means = [base[draw].mean() for draw in draws]
    first, second = result["systems"]
    low, high = np.quantile(means, [0.025, 0.975])
    assert first["scores"]["own"]["value"] == pytest.approx(base.mean(), abs=1e-12)
    found = [first["scores"]["own"][key] for key in ("low", "high")]
    assert found == pytest.approx([low, high], abs=1e-9)
    difference = second["differences"]["own"]
    low, high = np.quantile(gaps, [0.025, 0.975])
    expected = {"value": better.mean() - base.mean(), "low": low, "high": high}
    assert difference == pytest.approx(expected, abs=1e-9)
    koehn = second["tests"]["paired_bootstrap"]["own"]
    assert koehn["p"] == 1 - np.mean([gap > 0 for gap in gaps])
    sign = second["tests"]["sign"]["own"]
    rises = sum(better - base > 1e-6)
    assert sign["setting"].startswith(f"{rises} sentences +, ")
    lengths = np.array([len(line.split()) for line in fake.lines["test"]])
    inside = {
        "<10": lengths < 10,
        "[10,20)": (lengths >= 10) & (lengths < 20),
        "≥20": lengths >= 20,
    }
    groups = result["by_length"]["further"]["own"]
    assert len(groups) == 6
    for group in groups:
        scores = {"base": base, "better": better}[group["system"]][inside[group["group"]]]
        assert (group["sentences"], group["score"]["value"]) == (
            len(scores),
            pytest.approx(scores.mean(), abs=1e-9),
        )
        few = len(scores) < 30 or group["system"] == "base"
        assert (group["p"] is None) is few
    header = read(fake.run, "test", "lengths-own.csv").splitlines()[0]
    assert header.startswith("group,sentences,system,own,own_low,own_high,delta")


def test_the_report_has_the_metric_and_its_length_groups(fake, command):
    fake.score(metric=[f"own={command(CHRF)}"], by_length=True)
    page = report.report(fake.run).read_text("utf-8")
    assert page.count("own [95%]") >= 3
    assert "nrefs:2|command:" in page
    fake.translate("better", fake.lines["test"])
    page = report.report(fake.run).read_text("utf-8")
    assert "own=…" in page  # the command to score again names the metric, not its command


def test_a_command_runs_again_only_if_something_has_changed(fake, command, stderr):
    script = command(LENGTH)
    metric = {"metric": [f"own={script}"]}
    fake.score(**metric)
    assert command.runs() == 2
    fake.score(**metric)
    assert "scores are up to date" in stderr()
    fake.score(**metric, by_length=True, test="sign")
    assert command.runs() == 2
    fake.translate("better", fake.lines["test"])
    fake.score(**metric)
    assert command.runs() == 3
    stored = fake.run.path / "score/test/metrics/own/base.json"
    for damaged in ("[", json.dumps({**read_json(stored), "scores": [float("nan")]})):
        stored.write_text(damaged)
        fake.score(**metric, by_length=True)
        fake.score(**metric, test="sign")
    assert command.runs() == 5
    command(LENGTH + "# another script")
    fake.score(**metric)
    assert command.runs() == 7
    fake.score(**metric, force=True)
    assert command.runs() == 9
    stderr()
    fake.score()
    assert "own" in read(fake.run, "test", "scores.json")
    fake.score(test="sign")
    assert "no longer asked for: own (--metrics, --metric)" in stderr()
    assert "own" not in read(fake.run, "test", "scores.json")
    assert not (fake.run.path / "score/test/lengths-own.md").exists()


def test_a_signal_ends_everything_that_the_command_has_started(fake, tmp_path, monkeypatch):
    child = tmp_path / "child"
    command = f"sleep 60 & echo $! > {child}; wait"

    def interrupt(process, _):
        while not child.is_file() or not child.read_text().endswith("\n"):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fake.score(metric=[f"own={command}"])
    state = Path(f"/proc/{child.read_text().strip()}/status")
    assert not state.exists() or "Z (zombie)" in state.read_text("utf-8")


def test_what_was_removed_is_said_once_the_scores_are_written(fake, monkeypatch, stderr):
    fake.score(metrics="bleu,chrf")

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("nmtkit.folders.publish", refuse)
    error = refused(EnvironmentProblem, "Read-only", fake.score, test="sign")
    assert error.hint == "choose a folder that is writable" and "and removed" not in stderr()


def test_without_the_options_nothing_is_stored_of_them(fake):
    fake.score(by_length=True)
    result = result_of(fake.run)
    assert "asked" not in result and "further" not in result["by_length"]
    assert "metrics" not in result["made_from"]


def test_a_run_makes_nmtkit_execute_nothing(fake, command, capsys, monkeypatch):
    """The command is in scores.json and its numbers are beside it: neither is ever run."""
    fake.score(metric=[f"own={command(CHRF)}"], by_length=True)
    before, run = command.runs(), subprocess.run
    path = fake.run.path / "score/test/scores.json"
    stored = read_json(path)
    stored["signatures"]["own"] = f"command:touch {fake.run.path}/executed"
    stored["made_from"]["metrics"] = {f"own=touch {fake.run.path}/executed": ""}
    write_json(path, stored)

    def without_shell(*arguments, shell=False, **options):
        assert not shell
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", without_shell)
    report.report(fake.run)
    fake.score()
    fake.score(by_length=True)
    assert command.runs() == before
    assert not (fake.run.path / "executed").exists()


def test_tabs_and_line_breaks_inside_a_text_become_spaces(tmp_path, command):
    breaks = "a\tb\rc\x0bd\x0ce\x1cf\x85g\u2028h"
    rows = SetTexts("test", [breaks, "x"], [["r", "s"], ["t", breaks]]).rows(["", "y\xa0z"])
    safe = "a b c d e f g h"
    assert rows == f"{safe}\t\tr\tt\nx\ty\xa0z\ts\t{safe}\n"
    assert len(rows.splitlines()) == 2


def test_a_metric_may_be_better_when_lower(fake, command):
    errors = command("import sys\nfor line in sys.stdin: print(len(line) % 7)")
    fake.score(metric=[f"up={errors}", f"down:lower={errors}"])
    tests = result_of(fake.run)["systems"][1]["tests"]["sign"]
    up, down = (re.findall(r"\d+", tests[name]["setting"]) for name in ("up", "down"))
    assert up == [down[1], down[0], down[2]] and up != down
    assert result_of(fake.run)["signatures"]["down"].endswith("|corpus:mean|better:lower")


def test_numbers_from_0_to_1_have_four_decimals(fake, command, stdout):
    small = command("import sys\nfor line in sys.stdin: print(len(line) / 500)")
    fake.score(metric=[f"small={small}"], seed=2)
    out = stdout()
    value = result_of(fake.run)["systems"][0]["scores"]["small"]["value"]
    assert f"{value:.4f} [" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("better ")]
    assert rows[1][1] == "BLEU" and rows[2][1] == "small"
    assert len(rows[2][2].split(".")[1]) == 4


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print(1)", "1 number in the command's output for 60 sentences"),
        ("pass", "0 numbers in the command's output for 60 sentences"),
        ("print('1\\n' * 61)", "more numbers in the command's output for 60 sentences"),
        ("print('1\\nscore: 2')", "line 2 of .* is not a finite number: 'score: 2'"),
        ("print('nan\\n' * 59 + 'nan')", "line 1 of .* is not a finite number: 'nan'"),
        ("print('1\\n-inf')", "line 2 of .* is not a finite number: '-inf'"),
        ("import no_such_package", "exit code 1: .*No module named 'no_such_package'"),
        ("raise SystemExit(3)", "exit code 3: it printed no message"),
    ],
)
def test_a_command_that_fails_is_named_with_the_reason(fake, command, code, message):
    caught = refused((DataError, ConfigError), message, fake.score, metric=[f"own={command(code)}"])
    assert caught.where.startswith("--metric own=") and caught.hint
    assert not (fake.run.path / "score/test/scores.json").exists()


def test_a_command_that_does_not_exist_is_named(fake):
    with pytest.raises(ConfigError, match="does not find the command: .*no-such-command"):
        fake.score(metric=["own=no-such-command"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": ["comet"]}, "cannot read 'comet'"),
        ({"metric": ["comet= "]}, "cannot read"),
        ({"metric": ["../x=true"]}, "cannot read"),
        ({"metric": ["x:upper=true"]}, "cannot read"),
        ({"metric": ["x:=true"]}, "cannot read"),
        ({"metric": ["BLEU=true"]}, "the name 'BLEU' is taken"),
        ({"metric": ["delta=true"]}, "the name 'delta' is taken"),
        ({"metric": ["P_Holm=true"]}, "the name 'P_Holm' is taken"),
        ({"metric": ["x=true"], "metric_scores": ["x=file"]}, "the name 'x' is taken"),
        ({"metric_scores": ["x=file.txt"]}, "one file cannot have the scores of base, better"),
        ({"metric_scores": ["x=no/{system}.txt"]}, "no such file: no/base.txt"),
        ({"metrics": "bleu,chrff"}, "unknown metric 'chrff'"),
        ({"metrics": ""}, "unknown metric ''"),
    ],
)
def test_metrics_that_do_not_exist_are_refused(fake, options, message):
    caught = refused((DataError, ConfigError), message, fake.score, **options)
    assert caught.where.startswith("--metric") and caught.hint
    if "chrff" in message:
        assert caught.hint == "did you mean 'chrf'?"


def test_metrics_chooses_the_columns(fake, stdout):
    fake.score(metrics="ter, chrF++,spbleu", by_length=True)
    header = stdout().splitlines()[1]
    columns = "system BLEU [95%] Δ [95%] p TER [95%] chrF++ [95%] spBLEU [95%] length"
    assert header.split() == columns.split()
    result = result_of(fake.run)
    assert result["asked"] == list(result["signatures"]) == ["bleu", "ter", "chrf++", "spbleu"]
    hyps, *refs = texts_of(fake, "base")
    plus = sacrebleu.corpus_chrf(hyps, refs, word_order=2).score
    assert result["systems"][0]["scores"]["chrf++"]["value"] == plus
    assert list(result["by_length"]["further"]) == ["ter", "chrf++", "spbleu"]
    titles = [table.title for table in length_tables(Scores.model_validate(result)).values()]
    ends = [title.rpartition(" (groups: dc)")[2] for title in titles]
    assert ends == ["", ": TER", ": chrF++", ": spBLEU"]
    narrow = "\n".join(main_table(Scores.model_validate(result)).lines(80))
    assert "chrF++" in narrow and "spBLEU" in narrow and "left out" not in narrow
    page = report.report(fake.run).read_text("utf-8")
    assert "sentences.tsv is missing" not in page  # it has no chrF, which was not asked for
    again = score_command(fake.run, "test", Scores.model_validate(result))
    assert "--metrics bleu,ter,chrf++,spbleu" in again


def test_a_metric_that_makes_no_sense_for_a_language_is_refused(fake_run):
    fake = fake_run(tgt="zh")
    fake.add("a", 0.2)
    with pytest.raises(ConfigError, match="NIST BLEU is not possible here: it needs .* 13a"):
        fake.score(metrics="mteval")


def test_scores_of_a_file_are_read_by_system_and_set(fake_run, tmp_path):
    fake = fake_run(sets=("test", "other"), count=40)
    for system in ("base", "better"):
        fake.add(system, 0.2)
        for name in ("test", "other"):
            numbers = [f"{len(system) + len(name)}.5" for _ in range(40)]
            write(tmp_path / f"{name}-{system}.txt", numbers)
    path = f"{tmp_path}/{{set}}-{{system}}.txt"
    fake.score(metric_scores=[f"human={path}"])
    values = [
        system["scores"]["human"]["value"] for system in result_of(fake.run, "other")["systems"]
    ]
    assert values == [9.5, 11.5]
    write(tmp_path / "other-base.txt", ["1"] * 40)
    fake.score(metric_scores=[f"human={path}"])
    assert result_of(fake.run, "other")["systems"][0]["scores"]["human"]["value"] == 1.0
    with pytest.raises(ConfigError, match="one file cannot have the scores of test, other"):
        fake.score(metric_scores=[f"human={tmp_path}/test-{{system}}.txt"])
    write(tmp_path / "test-base.txt", ["1"] * 39)
    with pytest.raises(DataError, match="39 numbers in .*test-base.txt for 40 sentences"):
        fake.score(metric_scores=[f"human={path}"])


def test_outside_files_are_scored_by_a_command(tmp_path, command, capsys):
    hyp, ref = write(tmp_path / "hyp.de", ["ein Hund"]), write(tmp_path / "ref.de", ["der Hund"])
    src = write(tmp_path / "src.en", ["a dog"])
    echo = command(
        f"import sys; open({str(tmp_path / 'seen')!r}, 'w').write(t := sys.stdin.read()); print(7)"
    )
    for given, seen in (
        ({"src": src}, "a dog\tein Hund\tder Hund\n"),
        ({}, "\tein Hund\tder Hund\n"),
    ):
        score_files([hyp], [ref], metric=[f"seven={echo}"], output_format="json", **given)
        out, err = capsys.readouterr()
        assert json.loads(out)[0]["systems"][0]["scores"]["seven"]["value"] == 7.0
        assert ("no --src: --metric commands read empty sources" in err) is not given
        assert (tmp_path / "seen").read_text("utf-8") == seen
