"""External metrics (--metric, --metric-scores): scores, statistics, caching, errors and safety."""

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
from nmtkit.run import code_commit
from nmtkit.score.external_metrics import SetTexts, external_metrics
from nmtkit.score.metrics import Scorer
from nmtkit.score.options import ScoreOptions
from nmtkit.score.result_tables import length_tables, main_table
from nmtkit.score.stage import score_files
from tests.manifests import read_json, write_json
from tests.refused import refused

from .conftest import write

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
"""Starts ten times as fast as CHRF."""


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
    """A run with two systems and two references."""
    fake = fake_run(count=60, references=2)
    fake.add_all(base=0.3, better=0.2)
    return fake


def texts_of(fake, system):
    """Return the hypotheses of a system and the two references, as lists of lines."""
    names = (
        f"systems/{system}/translate/test/hyp.txt",
        "prep/text/test.ref",
        "prep/text/test.ref1",
    )
    return [(fake.run.path / name).read_text("utf-8").splitlines() for name in names]


def sentence_chrf(fake, system):
    """Return the sentence chrF of a system by sacreBLEU."""
    hyps, *refs = texts_of(fake, system)
    pairs = zip(hyps, zip(*refs, strict=True), strict=True)
    return np.array([sacrebleu.sentence_chrf(hyp, lines).score for hyp, lines in pairs])


def test_chrf_by_a_command_equals_sacrebleus_sentence_chrf(fake, command, stdout):
    fake.score(metric=[f"own={command(CHRF)}"], resamples=200)
    rows = fake.csv("sentences.tsv", delimiter="\t")
    assert len(rows) == 60
    for row in rows:
        for system in ("base", "better"):
            assert row[f"{system}.own"] == row[f"{system}.chrf"]
    out = stdout()
    assert "own [95%]" in out and f"own: nrefs:2|command:{sys.executable}" in out
    cells = [line.split()[:2] for line in out.splitlines() if line.startswith("better ")]
    assert cells[1:] == [["better", "BLEU"], ["better", "own"]]


def test_corpus_score_of_a_command_is_the_mean_over_sentences(fake, command):
    """sacreBLEU's chrF of a corpus sums n-grams instead. Of one sentence both are equal."""
    metric = external_metrics(ScoreOptions(metric=[f"own={command(CHRF)}"]))["own"]
    hyps, *refs = texts_of(fake, "base")
    external = metric.measure("base", hyps, SetTexts("test", hyps, refs))
    built_in = Scorer(refs).score("chrf", hyps)
    expected = sentence_chrf(fake, "base")
    assert external.sentence_scores().tolist() == expected.tolist()
    assert external.value == pytest.approx(expected.mean(), abs=1e-12)
    assert external.sentence_scores() == pytest.approx(built_in.sentence_scores(), abs=1e-12)
    for line in range(60):
        sentence, expected = (score.part(np.array([line])) for score in (external, built_in))
        assert sentence.value == pytest.approx(expected.value, abs=1e-12)


@pytest.fixture
def scored(fake, tmp_path):
    """The result of sentence chrF as an external metric, and the sentence chrF of both systems."""
    chrf = {system: sentence_chrf(fake, system) for system in ("base", "better")}
    for system, scores in chrf.items():
        write(tmp_path / f"{system}.txt", map(repr, scores.tolist()))
    options = {"resamples": 200, "by_length": True, "buckets": "10,20"}
    fake.score(metric_scores=[f"own={tmp_path}/{{system}}.txt"], **options)
    return fake.result(), *chrf.values()


def test_mean_interval_difference_and_p_equal_a_slow_bootstrap(scored):
    result, base, better = scored
    rng = np.random.default_rng(1)
    draws = [rng.integers(0, 60, 60) for _ in range(200)]
    first, second = result["systems"]
    gaps = [better[draw].mean() - base[draw].mean() for draw in draws]
    for found, values, samples in (
        (first["scores"]["own"], base, [base[draw].mean() for draw in draws]),
        (second["differences"]["own"], better - base, gaps),
    ):
        low, high = np.quantile(samples, [0.025, 0.975])
        interval = [found[key] for key in ("value", "low", "high")]
        assert interval == pytest.approx([values.mean(), low, high], abs=1e-9)
    tests = second["tests"]
    assert tests["paired_bootstrap"]["own"]["p"] == 1 - np.mean([gap > 0 for gap in gaps])
    rises = sum(better - base > 1e-6)
    assert tests["sign"]["own"]["setting"].startswith(f"{rises} sentences +, ")


def test_length_groups_have_the_mean_of_their_sentences(fake, scored):
    result, base, better = scored
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
        assert group["sentences"] == len(scores)
        assert group["score"]["value"] == pytest.approx(scores.mean(), abs=1e-9)
        assert (group["p"] is None) is (len(scores) < 30 or group["system"] == "base")
    header, *_ = fake.read("lengths-own.csv").splitlines()
    assert header.startswith("group,sentences,system,own,own_low,own_high,delta")


def test_report_shows_the_metric_but_not_its_command(fake, command):
    fake.score(metric=[f"own={command(LENGTH)}"], by_length=True)
    page = report.report(fake.run).read_text("utf-8")
    assert page.count("own [95%]") >= 3
    assert "nrefs:2|command:" in page
    fake.translate("better", fake.lines["test"])
    page = report.report(fake.run).read_text("utf-8")
    assert "own=…" in page  # the command to score again names the metric, not its command


def test_command_runs_again_only_for_changed_inputs_or_damaged_scores(fake, command, stderr):
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
    stored = fake.scores / "metrics/own/base.json"
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


def test_metric_stays_until_other_options_leave_it_out(fake, command, stderr):
    fake.score(metric=[f"own={command(LENGTH)}"], by_length=True)
    stderr()
    fake.score()
    assert "own" in fake.read("scores.json") and (fake.scores / "lengths-own.md").exists()
    fake.score(test="sign")
    assert "no longer asked for: own (--metrics, --metric)" in stderr()
    assert "own" not in fake.read("scores.json")
    assert not (fake.scores / "lengths-own.md").exists()


def test_interrupt_kills_all_processes_of_the_command(fake, tmp_path, monkeypatch):
    child = tmp_path / "child"
    command = f"sleep 60 & echo $! > {child}; wait"

    def interrupt(process, _):
        while not child.is_file() or not child.read_text().endswith("\n"):
            time.sleep(0.01)
        raise KeyboardInterrupt

    code_commit()  # git is a command, too, and its answer is kept
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fake.score(metric=[f"own={command}"])
    state = Path(f"/proc/{child.read_text().strip()}/stat")
    deadline = time.monotonic() + 20  # a killed process dies when it runs next

    def alive():
        try:
            return state.read_text("utf-8").rpartition(")")[2].split()[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    while alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_removed_results_are_not_reported_if_writing_fails(fake, monkeypatch, stderr):
    fake.score(metrics="bleu,chrf")

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("nmtkit.folders.publish", refuse)
    error = refused(EnvironmentProblem, "Read-only", fake.score, test="sign")
    assert error.hint.endswith("a folder that is writable") and "and removed" not in stderr()


def test_scores_json_has_no_external_fields_without_the_options(fake):
    fake.score(by_length=True)
    result = fake.result()
    assert "asked" not in result and "further" not in result["by_length"]
    assert "metrics" not in result["made_from"]


def test_commands_in_the_files_of_a_run_are_never_executed(fake, command, monkeypatch):
    """scores.json has the metric's command; only a command on the command line is executed."""
    fake.score(metric=[f"own={command(LENGTH)}"], by_length=True)
    runs, subprocess_run = command.runs(), subprocess.run
    stored = fake.result()
    assert runs == 2 and "script.py" in stored["signatures"]["own"]
    stored["signatures"]["own"] = f"command:touch {fake.run.path}/executed"
    stored["made_from"]["metrics"] = {f"own=touch {fake.run.path}/executed": ""}
    write_json(fake.scores / "scores.json", stored)

    def without_shell(*arguments, shell=False, **options):
        assert not shell
        return subprocess_run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", without_shell)
    for options in ({}, {"by_length": True}, {"force": True}):
        report.report(fake.run, force=True)
        fake.score(**options)
    assert command.runs() == runs
    assert not (fake.run.path / "executed").exists()


def test_tabs_and_line_breaks_in_texts_become_spaces():
    breaks = "a\tb\rc\x0bd\x0ce\x1cf\x85g\u2028h"
    rows = SetTexts("test", [breaks, "x"], [["r", "s"], ["t", breaks]]).rows(["", "y\xa0z"])
    safe = "a b c d e f g h"
    assert rows == f"{safe}\t\tr\tt\nx\ty\xa0z\ts\t{safe}\n"
    assert len(rows.splitlines()) == 2


def test_lower_is_better_metric_has_mirrored_sign_test(fake, command):
    errors = command("import sys\nfor line in sys.stdin: print(len(line) % 7)")
    fake.score(metric=[f"up={errors}", f"down:lower={errors}"])
    result = fake.result()
    tests = result["systems"][1]["tests"]["sign"]
    up, down = (re.findall(r"\d+", tests[name]["setting"]) for name in ("up", "down"))
    assert up == [down[1], down[0], down[2]] and up != down
    assert result["signatures"]["down"].endswith("|corpus:mean|better:lower")


def test_scores_from_0_to_1_have_four_decimals(fake, command, stdout):
    small = command("import sys\nfor line in sys.stdin: print(len(line) / 500)")
    fake.score(metric=[f"small={small}"], seed=2)
    out = stdout()
    value = fake.result()["systems"][0]["scores"]["small"]["value"]
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
def test_failing_command_is_named_with_the_reason(fake, command, code, message):
    caught = refused((DataError, ConfigError), message, fake.score, metric=[f"own={command(code)}"])
    assert caught.where.startswith("--metric own=") and caught.hint
    assert not (fake.scores / "scores.json").exists()


def test_missing_command_is_named(fake):
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
        ({"metrics": ""}, "unknown metric ''"),
    ],
)
def test_invalid_metric_options_are_refused(fake, options, message):
    caught = refused((DataError, ConfigError), message, fake.score, **options)
    assert caught.where.startswith("--metric") and caught.hint


def test_unknown_metric_is_refused_with_the_nearest_name(fake):
    message = "unknown metric 'chrff'"
    error = refused(ConfigError, message, fake.score, metrics="chrff")
    assert error.hint == "did you mean 'chrf'?"


@pytest.fixture
def chosen(fake, stdout):
    """A run scored with --metrics, and what was printed."""
    fake.score(metrics="ter, chrF++,spbleu", by_length=True)
    return fake, stdout()


CHOSEN = ["bleu", "ter", "chrf++", "spbleu"]


def test_metrics_option_selects_the_columns(chosen):
    fake, out = chosen
    columns = "system BLEU [95%] Δ [95%] p TER [95%] chrF++ [95%] spBLEU [95%] length"
    assert out.splitlines()[1].split() == columns.split()
    result = fake.result()
    assert result["asked"] == list(result["signatures"]) == CHOSEN
    hyps, *refs = texts_of(fake, "base")
    expected = sacrebleu.corpus_chrf(hyps, refs, word_order=2).score
    assert result["systems"][0]["scores"]["chrf++"]["value"] == expected
    narrow = "\n".join(main_table(fake.loaded()).lines(80))
    assert "chrF++" in narrow and "spBLEU" in narrow and "left out" not in narrow


def test_metrics_option_selects_the_length_tables(chosen):
    fake, _ = chosen
    assert list(fake.result()["by_length"]["further"]) == CHOSEN[1:]
    titles = [table.title for table in length_tables(fake.loaded()).values()]
    ends = [title.rpartition(" (groups: dc)")[2] for title in titles]
    assert ends == ["", ": TER", ": chrF++", ": spBLEU"]


def test_report_accepts_scores_without_chrf_and_repeats_the_metrics_option(chosen):
    fake, _ = chosen
    assert "sentences.tsv is missing" not in report.report(fake.run).read_text("utf-8")
    command = score_command(fake.run, "test", fake.loaded())
    assert "--metrics bleu,ter,chrf++,spbleu" in command


def test_metric_that_does_not_suit_the_target_language_is_refused(fake_run):
    fake = fake_run(tgt="zh")
    fake.add("a", 0.2)
    with pytest.raises(ConfigError, match="NIST BLEU is not possible here: it needs .* 13a"):
        fake.score(metrics="mteval")


def test_score_files_are_read_per_system_and_set(fake_run, tmp_path):
    fake = fake_run(sets=("test", "other"))
    fake.add_all(base=0.2, better=0.2)
    for system in ("base", "better"):
        for name in ("test", "other"):
            write(tmp_path / f"{name}-{system}.txt", [f"{len(system) + len(name)}.5"] * 40)

    def scores_of_other(path):
        fake.score(metric_scores=[f"human={tmp_path / path}"])
        return [system["scores"]["human"]["value"] for system in fake.result("other")["systems"]]

    path = "{set}-{system}.txt"
    assert scores_of_other(path) == [9.5, 11.5]
    write(tmp_path / "other-base.txt", ["1"] * 40)
    assert scores_of_other(path) == [1.0, 11.5]
    message = "one file cannot have the scores of test, other"
    refused(ConfigError, message, scores_of_other, "test-{system}.txt")
    write(tmp_path / "test-base.txt", ["1"] * 39)
    refused(DataError, "39 numbers in .*test-base.txt for 40 sentences", scores_of_other, path)


def test_command_scores_plain_files_with_and_without_source(tmp_path, command, capsys):
    hyp, ref = write(tmp_path / "hyp.de", ["ein Hund"]), write(tmp_path / "ref.de", ["der Hund"])
    src = write(tmp_path / "src.en", ["a dog"])
    echo = command(
        f"import sys; open({str(tmp_path / 'seen')!r}, 'w').write(t := sys.stdin.read()); print(7)"
    )
    for source, seen in (
        ({"src": src}, "a dog\tein Hund\tder Hund\n"),
        ({}, "\tein Hund\tder Hund\n"),
    ):
        score_files([hyp], [ref], metric=[f"seven={echo}"], output_format="json", **source)
        out, err = capsys.readouterr()
        assert json.loads(out)[0]["systems"][0]["scores"]["seven"]["value"] == 7.0
        assert ("no --src: --metric commands read empty sources" in err) is not source
        assert (tmp_path / "seen").read_text("utf-8") == seen
