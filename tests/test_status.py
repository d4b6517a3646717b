"""`nmtkit status`: runs with their scores, and what is out of date, with commands."""

import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.numpy import load_file

from nmtkit import console
from nmtkit.cli import status
from nmtkit.run import Run
from tests.manifests import read_json
from tests.processes import python
from tests.test_cli import BRIEF, SHORT, TINY, nmtkit, ok


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """The folder of a run with one system, translated and scored."""
    folder = tmp_path_factory.mktemp("status")
    run = folder / "runs" / "demo"
    ok(f"prep demo --size 200 --run {run} --jobs 1")
    ok(f"train --run {run} {TINY} {BRIEF}")
    ok(f"translate --run {run} --jobs 1 {SHORT}")
    ok(f"score --run {run}")
    return folder


@pytest.fixture
def folder(scored, tmp_path, monkeypatch):
    """A copy that a test may change; it is the current folder."""
    shutil.copytree(scored / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def described():
    return json.loads(ok("status --json").stdout)


def out_of_date():
    """Return what `status` lists as out of date in the first run."""
    return described()[0]["out_of_date"]


def test_run_is_shown_with_scores_steps_and_size(folder):
    (folder / "runs" / "notes").mkdir()  # ignored: no run
    run = folder / "runs/demo"
    (values,) = described()
    (system,) = values["systems"]
    scores = read_json(run / "score/test/scores.json")
    best = read_json(run / "systems/transformer/best.json")
    assert values["out_of_date"] == []
    assert (system["step"], system["max_steps"]) == (6, 6)
    assert system["bleu"] == {"test": scores["systems"][0]["scores"]["bleu"]["value"]}
    assert system["best"]["step"] == best["step"]
    assert values["bytes"] == sum(p.stat().st_size for p in run.rglob("*") if p.is_file())
    shown = ok("status").stdout
    assert "6 of 6" in shown and f"BLEU {best['dev_bleu']:.2f}" in shown


def test_system_has_its_own_scores_and_the_measure_of_its_best_checkpoint(folder):
    rows = [
        SimpleNamespace(name=name, scores={"bleu": SimpleNamespace(value=value)})
        for name, value in (("transformer", 1.5), ("other", 99.0))
    ]
    system = Run(folder / "runs/demo").system("transformer")
    facts = status._system(system, {"test": SimpleNamespace(systems=rows)})
    assert facts["bleu"] == {"test": 1.5}
    for bleu, shown in ((0.0, "BLEU 0.00"), (None, "loss 2.000")):
        best = {"step": 6, "dev_loss": 2.0, "dev_bleu": bleu}
        assert status._cells(facts | {"best": best})[2:5] == [shown, "6", "test\u00a01.50"]
    assert status._cells(facts | {"best": None})[2:4] == ["–", "–"]


AGAIN = "nmtkit score --on test --significance paired_bootstrap --resamples 20 --metrics bleu,chrf"
AGAIN += " --run runs/demo"
HYP = Path("systems/transformer/translate/test/hyp.txt")


@pytest.fixture
def scored_again(folder):
    """The run, scored with the options of `AGAIN`."""
    ok("score --resamples 20 --metrics bleu,chrf")
    return folder / "runs/demo"


def test_changed_translation_makes_scores_analyses_and_the_report_out_of_date(
    scored_again, monkeypatch
):
    ok("analyze lengths --on test")
    page = scored_again / "report/index.html"
    page.parent.mkdir()
    page.write_text("")
    (scored_again / HYP).write_text("Another translation.\n")
    lengths = "nmtkit analyze lengths --on test --run runs/demo"
    assert out_of_date() == [
        f"score/test: made before these changed: {HYP}: {AGAIN}",
        f"analyze/lengths: out of date: {lengths}",
        "report: older than the scores",  # its options --title and --also are not known
    ]
    monkeypatch.setattr(console, "width", lambda: 60)
    lines = ok("status").stdout.splitlines()
    table = lines[: next(i for i, line in enumerate(lines) if line.startswith("score/test"))]
    assert len(table) > 3 and max(map(len, table)) <= 60
    assert "report: older than the scores" in lines and f"  {lengths}" in lines


def test_missing_translations_and_scores_are_listed(scored_again):
    translations = scored_again / "systems/transformer/translate"
    shutil.copytree(translations, scored_again / "systems/ensemble-a+transformer/translate")
    assert f"test: not scored: ensemble-a+transformer: {AGAIN}" in out_of_date()
    (scored_again / HYP).unlink()
    command = f"nmtkit translate --on test --run runs/demo && {AGAIN}"
    assert f"test: not translated: transformer: {command}" in out_of_date()


def test_further_training_makes_translations_out_of_date(scored_again):
    systems = scored_again / "systems"
    shutil.copytree(systems / "transformer", systems / "a")
    shutil.copytree(systems / "a/translate", systems / "ensemble-a+transformer/translate")
    ok(
        "train --set train.max_steps=12 --set train.validate_every=3 --set train.best_by=dev_loss"
        f" --set train.checkpoint_every=3 {TINY} {SHORT}"
    )
    older = "test: the translation by {} is older than its weights: nmtkit translate --system {}"
    for name, words in (
        ("transformer", "transformer --on test --force --run runs/demo && nmtkit score --on test"),
        ("ensemble-a+transformer", "a --system transformer --ensemble --on test --force --run"),
    ):
        assert any(line.startswith(older.format(name, words)) for line in out_of_date())


def test_system_of_another_preparation_is_listed_with_the_command_that_trains_it(folder):
    path = folder / "runs/demo/systems/transformer/config.toml"
    config = path.read_text()
    path.write_text(re.sub("(?m)^corpus = .*", 'corpus = "x"', config))
    (line,) = (line for line in out_of_date() if "another preparation" in line)
    ok(line.rpartition(": nmtkit ")[2])
    assert tomllib.loads(path.read_text()) == tomllib.loads(config)
    assert not any(line.startswith("transformer: ") for line in out_of_date())


@pytest.fixture
def killed(folder):
    """The folder of a copied system without checkpoints, translations and records."""
    copied = folder / "runs/demo/systems/killed"
    shutil.copytree(folder / "runs/demo/systems/transformer", copied)
    for part in ("checkpoints", "translate"):
        shutil.rmtree(copied / part)
    for name in ("best.json", "system.json"):
        (copied / name).unlink()
    return copied


def test_commands_name_only_systems_that_exist(folder, killed):
    systems = folder / "runs/demo/systems"
    shutil.copytree(systems / "transformer", systems / "other")
    ok("score --against other --force")
    ok("analyze lengths --on test")
    shutil.rmtree(systems / "other")
    lines = out_of_date()
    assert "killed: no checkpoint yet: nmtkit train --system killed --run runs/demo" in lines
    assert len(lines) > 2 and not any("other" in line.rpartition(": nmtkit ")[2] for line in lines)
    assert not any("not translated" in line for line in lines)


def test_trained_system_without_checkpoints_gets_no_command(folder, killed):
    """A run may be passed on without weights."""
    systems = folder / "runs/demo/systems"
    shutil.rmtree(systems / "transformer/checkpoints")
    assert not any("transformer: no checkpoint" in line for line in out_of_date())
    shutil.copy(systems / "transformer/best.json", killed)
    (line,) = (line for line in out_of_date() if "not translated" in line)
    assert line == "test: not translated: killed"
    assert re.search("No weights here of .*transformer", ok("report").stderr)


@pytest.mark.parametrize("newer", ["score", "report", "systems"])
def test_copied_run_is_up_to_date_whatever_its_file_times(folder, newer):
    """In a copy, the files of one folder can be newer than all other files."""
    ok("report")
    for path in Path("runs/demo").rglob("*"):
        os.utime(path, (1, 1) if newer not in path.parts else (2, 2))
    assert out_of_date() == []


@pytest.mark.parametrize(
    "path",
    [
        "prep/manifest.json",
        "systems/transformer/best.json",
        "systems/transformer/config.toml",
    ],
)
def test_damaged_run_is_one_line_and_other_runs_are_shown(folder, path):
    shutil.copytree("runs/demo", "runs/whole")
    Path("runs/demo", path).write_text("{", encoding="utf-8")
    lines = ok("status").stdout.splitlines()
    assert lines[0].startswith("runs/demo: ") and path in lines[0] and lines[1] == ""
    assert lines[2].startswith("runs/whole: demo,") and "transformer" in lines[5]


@pytest.mark.parametrize("path", ["score/test/scores.json", "systems/transformer/translate/test"])
def test_damaged_result_is_listed_with_the_command_that_repairs_it(folder, path):
    file = Path("runs/demo", path) / ("" if path.endswith("json") else "meta.json")
    file.write_text("{", encoding="utf-8")
    (values,) = described()
    assert [system["name"] for system in values["systems"]] == ["transformer"]
    (line,) = (line for line in values["out_of_date"] if "cannot be read" in line)
    assert path.removesuffix("/scores.json") in line
    for command in line.rpartition(": nmtkit ")[2].split(" && nmtkit "):
        ok(command + f" {SHORT}" * command.startswith("translate"))
    assert out_of_date() == []


def test_missing_runs_are_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no run under ./runs" in nmtkit("status").stderr
    for words in ("nowhere", "--run nowhere", "nowhere --json"):
        result = nmtkit(f"status {words}")
        assert result.exit_code == 2 and "no run at nowhere" in result.stderr
        assert not result.stdout


def test_run_can_be_named_by_argument_option_or_environment(folder, monkeypatch):
    shown = ok("status runs/demo").stdout
    assert ok("status --run runs/demo").stdout == shown
    Path("runs").rename("elsewhere")
    monkeypatch.setenv("NMTKIT_RUN", "elsewhere/demo")
    assert ok("status").stdout == shown.replace("runs/demo", "elsewhere/demo")
    shutil.copytree("elsewhere/demo", "runs/demo")
    assert ok("status runs/demo").stdout == shown


def test_status_does_not_load_torch(folder):
    code = (
        "import sys\nfrom nmtkit.cli import app\ntry: app(['status'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    python("-c", code, check=True)


def test_run_without_weights_is_up_to_date(folder):
    """A run may be passed on without weights."""
    ok("analyze agreement --run runs/demo")
    system = folder / "runs/demo/systems/transformer"
    weights = load_file(next(system.glob("checkpoints/*/model.safetensors")))
    (system / "system.json").unlink()
    ok(f"train --run runs/demo {TINY} {BRIEF}")  # trains nothing, and writes system.json again
    shutil.rmtree(system / "checkpoints")
    result = ok("status --json")
    assert json.loads(result.stdout)[0]["out_of_date"] == [] and "skipping" not in result.stderr
    ok("report --run runs/demo")
    page = (folder / "runs/demo/report/index.html").read_text("utf-8")
    assert "changed: the weights" not in page
    assert read_json(system / "system.json")["parameters"] == sum(w.size for w in weights.values())
