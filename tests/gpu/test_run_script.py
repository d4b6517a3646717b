"""tests/gpu/run.sh on the CPU at tiny sizes; and that it says when there is no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def run_script(out, device, *arguments):
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(out), "NMTKIT_DEVICE": device}
    command = ["bash", "tests/gpu/run.sh", "--jobs", "1", *arguments]
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(command, check=False, timeout=600, **options)


def test_the_script_on_a_cpu(tmp_path):
    done = run_script(tmp_path, "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [step["code"] for step in found["steps"]] == [0, 0, 0]
    assert "passed" in found["steps"][0]["last"] and "passed" in found["steps"][1]["last"]
    rows = {(r["preset"], r["system"], r["measure"]): r for r in found["table"]["rows"]}
    for preset in ("base", "dc-iwslt", "small"):
        assert rows[preset, "transformer", "training"]["over_macs"] == 1
        for beam in (1, 5):
            assert rows[preset, "nmtkit", f"beam {beam}"]["sentences"] > 0
    assert rows["dc-iwslt", "caru", "training"]["macs"] != 1
    report = (tmp_path / "report.md").read_text("utf-8")
    assert "No GPU was used" in report and "| dc-iwslt | caru | training |" in report
    assert done.stdout.endswith(report + "\n") and "no GPU, tiny models" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    done = run_script(tmp_path / "out", "cuda")
    assert done.returncode == 3 and "no GPU here; NMTKIT_DEVICE=cpu" in done.stderr
    assert not (tmp_path / "out").exists()
