"""The list of runs: what it shows, what it finds out of date, and that it needs no torch."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from nmtkit import console
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
    """A copy that a test may spoil, as the current folder."""
    shutil.copytree(scored / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def described():
    return json.loads(ok("status --json").stdout)


def test_a_run_is_shown_with_its_scores_steps_and_sizes(folder):
    (folder / "runs" / "notes").mkdir()  # no run
    run = folder / "runs/demo"
    (values,) = described()
    (system,) = values["systems"]
    scores = read_json(run / "score/test/scores.json")
    best = read_json(run / "systems/transformer/best.json")
    assert values["out_of_date"] == []
    assert (system["step"], system["max_steps"]) == (6, 6)
    assert system["bleu"] == {"test": scores["systems"][0]["scores"]["bleu"]["value"]}
    assert system["best"]["step"] == best["step"]
    listing = subprocess.run(["find", run, "-type", "f", "-size", "+0"], capture_output=True)
    sizes = [os.stat(path).st_size for path in listing.stdout.decode().split("\n") if path]
    assert values["bytes"] == sum(sizes)
    shown = ok("status").stdout
    assert "6 of 6" in shown and f"BLEU {best['dev_bleu']:.2f}" in shown


def test_what_is_out_of_date_is_listed_with_its_command(folder, monkeypatch):
    run = folder / "runs/demo"
    system = run / "systems/transformer"
    hyp = system / "translate/test/hyp.txt"
    page = run / "report/index.html"
    page.parent.mkdir()
    ok("score --resamples 20 --metrics bleu,chrf")
    ok("analyze lengths --on test")
    page.write_text("")
    hyp.write_text("Another translation.\n")
    again = "nmtkit score --on test --significance paired_bootstrap --resamples 20"
    again += " --metrics bleu,chrf --run runs/demo"
    first, second, third = described()[0]["out_of_date"]
    changed = "systems/transformer/translate/test/hyp.txt"
    assert first == f"score/test: made before these changed: {changed}: {again}"
    lengths = "nmtkit analyze lengths --on test --run runs/demo"
    assert second == f"analyze/lengths: out of date: {lengths}"
    assert third == "report: older than the scores"  # its title and --also are not known
    shutil.copytree(system / "translate", run / "systems/ensemble-a+transformer/translate")
    assert f"test: not scored: ensemble-a+transformer: {again}" in described()[0]["out_of_date"]
    ok(
        "train --set train.max_steps=12 --set train.validate_every=3 --set train.best_by=dev_loss"
        f" --set train.checkpoint_every=3 {TINY} {SHORT}"
    )
    lines = described()[0]["out_of_date"]
    older = "test: the translation by {} is older than its weights: nmtkit translate --system {}"
    for name, words in (
        ("transformer", "transformer --on test --force --run runs/demo && nmtkit score --on test"),
        ("ensemble-a+transformer", "a --system transformer --ensemble --on test --force --run"),
    ):
        assert any(line.startswith(older.format(name, words)) for line in lines)
    shutil.rmtree(run / "systems/ensemble-a+transformer")
    hyp.unlink()
    command = f"nmtkit translate --on test --run runs/demo && {again}"
    assert f"test: not translated: transformer: {command}" in described()[0]["out_of_date"]
    monkeypatch.setattr(console, "width", lambda: 60)
    lines = ok("status").stdout.splitlines()
    table = lines[: next(i for i, line in enumerate(lines) if line.startswith("score/test"))]
    assert len(table) > 3 and max(map(len, table)) <= 60
    assert "report: older than the scores" in lines
    assert f"  {command}" in lines
    config = (system / "config.toml").read_text()
    (system / "config.toml").write_text(re.sub("(?m)^corpus = .*", 'corpus = "x"', config))
    (line,) = (line for line in described()[0]["out_of_date"] if "another preparation" in line)
    ok(line.rpartition(": nmtkit ")[2])
    now = (system / "config.toml").read_text()
    assert tomllib.loads(now) == tomllib.loads(config)
    assert not described()[0]["out_of_date"][0].startswith("transformer: ")


def test_a_command_names_only_what_is_there(folder):
    run = folder / "runs/demo"
    for name in ("other", "killed"):
        shutil.copytree(run / "systems/transformer", run / "systems" / name)
    ok(f"translate --jobs 1 {SHORT} --force")
    ok("score --against other")
    ok("analyze lengths --on test")
    shutil.rmtree(run / "systems/other")
    killed = run / "systems/killed"
    for part in ("checkpoints", "translate"):
        shutil.rmtree(killed / part)
    for name in ("best.json", "system.json"):
        (killed / name).unlink()
    lines = described()[0]["out_of_date"]
    assert "killed: no checkpoint yet: nmtkit train --system killed --run runs/demo" in lines
    assert len(lines) > 2 and not any("other" in line.rpartition(": nmtkit ")[2] for line in lines)
    assert not any("not translated" in line for line in lines)
    shutil.rmtree(run / "systems/transformer/checkpoints")  # as in a run that is passed on
    assert not any("transformer: no checkpoint" in line for line in described()[0]["out_of_date"])
    shutil.copytree(run / "systems/killed", run / "systems/third")
    best = run / "systems/transformer/best.json"  # trained, and its weights are elsewhere
    shutil.copy(best, run / "systems/third")
    (line,) = (line for line in described()[0]["out_of_date"] if "not translated" in line)
    assert line == "test: not translated: third"
    assert re.search("No weights here of .*transformer", ok("report").stderr)


@pytest.mark.parametrize("newer", ["score", "report", "systems"])
def test_a_copy_is_not_out_of_date(folder, newer):
    """Copies have other times: those of one folder can be later than those of the others."""
    ok("report")
    for path in Path("runs/demo").rglob("*"):
        os.utime(path, (1, 1) if newer not in path.parts else (2, 2))
    assert described()[0]["out_of_date"] == []


@pytest.mark.parametrize(
    "path",
    [
        "prep/manifest.json",
        "systems/transformer/best.json",
        "systems/transformer/config.toml",
    ],
)
def test_a_damaged_run_is_one_line_beside_the_others(folder, path):
    shutil.copytree("runs/demo", "runs/whole")
    Path("runs/demo", path).write_text("{", encoding="utf-8")
    lines = ok("status").stdout.splitlines()
    assert lines[0].startswith("runs/demo: ") and path in lines[0] and lines[1] == ""
    assert lines[2].startswith("runs/whole: demo,") and "transformer" in lines[5]


@pytest.mark.parametrize("path", ["score/test/scores.json", "systems/transformer/translate/test"])
def test_a_damaged_result_is_named_with_the_command_that_makes_it_again(folder, path):
    file = Path("runs/demo", path) / ("" if path.endswith("json") else "meta.json")
    file.write_text("{", encoding="utf-8")
    (values,) = described()
    assert [system["name"] for system in values["systems"]] == ["transformer"]
    (line,) = (line for line in values["out_of_date"] if "cannot be read" in line)
    assert path.removesuffix("/scores.json") in line
    for command in line.rpartition(": nmtkit ")[2].split(" && nmtkit "):
        ok(command + f" {SHORT}" * command.startswith("translate"))
    assert described()[0]["out_of_date"] == []


def test_no_run_and_a_missing_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no run under ./runs" in nmtkit("status").stderr
    for words in ("nowhere", "--run nowhere", "nowhere --json"):
        result = nmtkit(f"status {words}")
        assert result.exit_code == 2 and "no run at nowhere" in result.stderr
        assert not result.stdout


def test_a_run_is_named_as_for_the_other_commands(folder, monkeypatch):
    shown = ok("status runs/demo").stdout
    assert ok("status --run runs/demo").stdout == shown
    Path("runs").rename("elsewhere")
    monkeypatch.setenv("NMTKIT_RUN", "elsewhere/demo")
    assert ok("status").stdout == shown.replace("runs/demo", "elsewhere/demo")
    shutil.copytree("elsewhere/demo", "runs/demo")
    assert ok("status runs/demo").stdout == shown


def test_torch_is_not_loaded(folder):
    code = (
        "import sys\nfrom nmtkit.cli import app\ntry: app(['status'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    python("-c", code, check=True)


def test_a_run_without_its_weights_is_up_to_date(folder):
    """Results are passed on without weights; nothing about them has changed."""
    ok("analyze agreement --run runs/demo")
    system = folder / "runs/demo/systems/transformer"
    weights = load_file(next(system.glob("checkpoints/*/model.safetensors")))
    (system / "system.json").unlink()
    ok(
        f"train --run runs/demo {TINY} {BRIEF}"
    )  # nothing is left to train; it writes the file again
    shutil.rmtree(system / "checkpoints")
    result = ok("status --json")
    assert json.loads(result.stdout)[0]["out_of_date"] == [] and "skipping" not in result.stderr
    ok("report --run runs/demo")
    page = (folder / "runs/demo/report/index.html").read_text("utf-8")
    assert "changed: the weights" not in page
    assert read_json(system / "system.json")["parameters"] == sum(w.size for w in weights.values())
