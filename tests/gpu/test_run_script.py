"""Run tests/gpu/run.sh on the CPU with tiny models, and without a GPU."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from nmtkit.settings import SearchSettings
from nmtkit.translate.beam import Beams, search
from tests.gpu import run, table
from tests.models import test_contract
from tests.models.cases import CASES
from tests.models.conftest import on_the_device  # noqa: F401
from tests.models.contract import Case, batch_for

ROOT = Path(__file__).resolve().parents[2]


def run_script(out, *arguments, python=sys.executable, **variables):
    """Run tests/gpu/run.sh; variables: of the environment, beside PYTHON and OUT."""
    inherited = {key: value for key, value in os.environ.items() if key != "NMTKIT_DEVICE"}
    environment = {**inherited, "PYTHON": str(python), "OUT": str(out), **variables}
    command = ["bash", "tests/gpu/run.sh", "--jobs", "1", *arguments]
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(command, check=False, timeout=600, **options)


def test_script_computes_on_cuda_by_default(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$NMTKIT_DEVICE $*"\n')
    python.chmod(0o755)
    done = run_script(tmp_path / "out", python=python)
    command = f"cuda -m tests.gpu.run --out {tmp_path}/out --jobs 1"
    assert done.stdout.splitlines()[-1] == command


def test_script_on_a_cpu_reports_a_table_of_tiny_models(tmp_path):
    done = run_script(tmp_path, "--systems", "transformer", NMTKIT_DEVICE="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [step["code"] for step in written["steps"]] == [0]
    rows = {(r["preset"], r["system"], r["measure"]): r for r in written["table"]["rows"]}
    assert rows["dc-iwslt", "transformer", "training"]["over_macs"] == 1
    report = (tmp_path / "report.md").read_text("utf-8")
    assert "No GPU was used" in report and "| dc-iwslt | transformer | training |" in report
    assert done.stdout.endswith(report + "\n") and "no GPU, tiny models" in done.stdout


@pytest.mark.parametrize("on_gpu", [True, False])
def test_steps_select_existing_tests(on_gpu, monkeypatch):
    monkeypatch.setattr(run, "ON_GPU", on_gpu)
    commands = run.steps(jobs=4)
    assert commands.keys() == {"contract", "tests/gpu"}
    paths = {word for command in commands.values() for word in command if word.startswith("tests/")}
    assert paths == {"tests/models/test_contract.py", "tests/gpu", "tests/nn/test_kernels.py"}
    assert all((ROOT / path).exists() for path in paths)
    if not on_gpu:
        expressions = [command[command.index("-k") + 1] for command in commands.values()]
        assert expressions == ["transformer-norm and test_01", "test_models and transformer"]
        assert any(str(case).startswith("transformer-norm") for case in CASES)
        assert any(name.startswith("test_01") for name in vars(test_contract))
        assert (ROOT / "tests" / "gpu" / "test_models.py").exists()


def main_ends_with(code, monkeypatch, *arguments, on_gpu=False):
    """Assert the exit code of the command behind the script."""
    monkeypatch.setattr(run, "ON_GPU", on_gpu)
    monkeypatch.setattr(sys, "argv", ["run", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == code


@pytest.mark.parametrize("code", [0, 1])
def test_script_runs_all_steps_and_ends_with_1_if_one_fails(code, tmp_path, monkeypatch):
    def end(name, command, limit, log):
        return run.Step(name, command, code if name == "contract" else 0, 0.0, f"last of {name}")

    monkeypatch.setattr(run, "run", end)
    main_ends_with(code, monkeypatch, "--out", tmp_path)
    steps = json.loads((tmp_path / "report.json").read_text("utf-8"))["steps"]
    assert [step["name"] for step in steps] == ["contract", "tests/gpu", "table"]
    report = (tmp_path / "report.md").read_text("utf-8")
    assert "| tests/gpu | 0 | 0 | last of tests/gpu |" in report
    assert "--tiny" in steps[-1]["command"] and "--systems" not in steps[-1]["command"]


def test_script_with_systems_runs_only_their_table(tmp_path, monkeypatch):
    commands = []

    def end(name, command, limit, log):
        commands.append(command)
        return run.Step(name, command, 0, 0.0, "")

    monkeypatch.setattr(run, "run", end)
    main_ends_with(0, monkeypatch, "--out", tmp_path, "--systems", "amn,caru-compiled")
    ((*_, option, systems, tiny),) = commands
    assert (option, systems, tiny) == ("--systems", "amn,caru-compiled", "--tiny")


def test_script_refuses_an_unknown_system(tmp_path, monkeypatch, capsys):
    main_ends_with(2, monkeypatch, "--out", tmp_path, "--systems", "amn,cary")
    assert "no variant cary" in capsys.readouterr().err


def test_tiny_table_has_a_row_of_every_training_and_search(tmp_path):
    bench = table.Bench(tmp_path / "runs", tiny=True)
    for measurement in bench.work():
        bench.add(*measurement)
    table.write(tmp_path, bench, left_out=0)
    assert not [row for row in bench.rows if "error" in row]
    rows = {(row["preset"], row["system"], row["measure"]): row for row in bench.rows}
    for preset in ("base", "dc-iwslt", "small"):
        assert rows[preset, "transformer", "training"]["over_macs"] == 1
    for beam in (1, 5):
        for system in ("nmtkit", "nmtkit, bfloat16"):
            assert rows["base", system, f"beam {beam}"]["sentences"] > 0
    assert rows["dc-iwslt", "caru", "training"]["macs"] != 1
    assert "| dc-iwslt | caru | training |" in (tmp_path / "table.md").read_text("utf-8")


def test_table_of_systems_measures_the_baseline_first(tmp_path):
    bench = table.Bench(tmp_path, tiny=True)
    work = bench.work(["amn", "transformer", "caru-compiled"])
    measured = [(system, measure) for _, system, measure, _ in work]
    assert measured == [(name, "training") for name in ("transformer", "amn", "caru-compiled")]


def test_script_without_a_gpu_ends_with_3(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main_ends_with(3, monkeypatch, "--out", tmp_path / "out", on_gpu=True)
    assert "no GPU here; NMTKIT_DEVICE=cpu" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_waits_of_a_search_are_counted_by_step(monkeypatch):
    """A GPU warns of each wait in a debug mode; here `look` warns instead."""
    modes = ["default"]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    case = Case("transformer")
    model, settings = case.build(), SearchSettings(beam=2, max_length_a=0, max_length_b=6)
    look, looks = Beams.look, []

    def watched(self):
        looks.append(self.step)
        if modes[-1] == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("another one", stacklevel=1)
        return look(self)

    monkeypatch.setattr(Beams, "look", watched)
    waits = table.waits_a_step(lambda: search([model], batch_for(model), settings))
    assert waits == len(looks) / looks[-1]
    assert modes == ["default", "warn", "default"]
