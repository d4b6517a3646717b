"""tests/gpu/run.sh on the CPU at tiny sizes, and its message without a GPU."""

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


def run_script(out, device, *arguments):
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(out), "NMTKIT_DEVICE": device}
    command = ["bash", "tests/gpu/run.sh", "--jobs", "1", *arguments]
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(command, check=False, timeout=600, **options)


def test_the_script_on_a_cpu(tmp_path):
    done = run_script(tmp_path, "cpu", "--systems", "transformer")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [step["code"] for step in found["steps"]] == [0]
    rows = {(r["preset"], r["system"], r["measure"]): r for r in found["table"]["rows"]}
    assert rows["dc-iwslt", "transformer", "training"]["over_macs"] == 1
    report = (tmp_path / "report.md").read_text("utf-8")
    assert "No GPU was used" in report and "| dc-iwslt | transformer | training |" in report
    assert done.stdout.endswith(report + "\n") and "no GPU, tiny models" in done.stdout


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_steps_name_tests_that_exist(on_gpu, monkeypatch):
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


@pytest.mark.parametrize("code", [0, 1])
def test_all_steps_run_and_a_failed_one_ends_the_script_with_1(code, tmp_path, monkeypatch):
    def end(name, command, limit, log):
        return run.Step(name, command, code if name == "contract" else 0, 0.0, f"last of {name}")

    monkeypatch.setattr(run, "run", end)
    monkeypatch.setattr(run, "ON_GPU", False)
    monkeypatch.setattr(sys, "argv", ["run", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == code
    steps = json.loads((tmp_path / "report.json").read_text("utf-8"))["steps"]
    assert [step["name"] for step in steps] == ["contract", "tests/gpu", "table"]
    assert "| tests/gpu | 0 | 0 | last of tests/gpu |" in (tmp_path / "report.md").read_text(
        "utf-8"
    )
    assert "--tiny" in steps[-1]["command"] and "--systems" not in steps[-1]["command"]


def test_the_table_has_a_row_of_everything(tmp_path):
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


def test_chosen_systems_are_measured_alone(tmp_path, monkeypatch, capsys):
    """The Transformer comes first: times of the others are relative to that of the Transformer."""
    bench = table.Bench(tmp_path, tiny=True)
    work = bench.work(["amn", "transformer", "caru-compiled"])
    measured = [(system, measure) for _, system, measure, _ in work]
    assert measured == [(name, "training") for name in ("transformer", "amn", "caru-compiled")]
    begun = []

    def begin(name, command, limit, log):
        begun.append(command)
        return run.Step(name, command, 0, 0.0, "")

    monkeypatch.setattr(run, "run", begin)
    monkeypatch.setattr(run, "ON_GPU", False)
    monkeypatch.setattr(
        sys, "argv", ["run", "--out", str(tmp_path), "--systems", "amn,caru-compiled"]
    )
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 0 and len(begun) == 1
    assert begun[0][begun[0].index("--systems") + 1] == "amn,caru-compiled"
    monkeypatch.setattr(sys, "argv", ["run", "--out", str(tmp_path), "--systems", "amn,cary"])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2 and len(begun) == 1
    assert "no variant cary" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    done = run_script(tmp_path / "out", "cuda")
    assert done.returncode == 3 and "no GPU here; NMTKIT_DEVICE=cpu" in done.stderr
    assert not (tmp_path / "out").exists()


def test_waits_of_a_step_are_counted(monkeypatch):
    """torch warns of each wait in a mode of its own; here a stand-in does."""
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
