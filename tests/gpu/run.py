"""The command behind tests/gpu/run.sh: each step in a process of its own, then one report."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from nmtkit.models.variants import VARIANTS
from tests.device import ON_GPU
from tests.gpu.table import COMPILED, device_name

LEAST = 60.0
"""Seconds for the table even if the tests have taken all the time."""
SHARE = 0.35
"""The share of the time for each of the two steps of tests."""


@dataclass(frozen=True)
class Step:
    """A step that has ended.

    Attributes:
        command: its arguments.
        code: exit code; 124 after a timeout.
        seconds: its duration.
        last: the last line of its output.
    """

    name: str
    command: list[str]
    code: int
    seconds: float
    last: str


def steps(jobs: int) -> dict[str, list[str]]:
    """Return the commands of the tests."""
    tests = ["pytest", "-p", "no:cacheprovider"]
    tests += ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
    contract, of_gpu = (
        ["tests/models/test_contract.py"],
        ["tests/gpu", "tests/nn/test_kernels.py", "-m", "gpu"],
    )
    if not ON_GPU:
        contract += ["-k", "transformer-norm and test_01"]
        of_gpu += ["-k", "test_models and transformer"]
    return {"contract": tests + contract, "tests/gpu": tests + of_gpu}


def run(name: str, command: list[str], limit: float, log: Path) -> Step:
    """Run a module of Python for at most `limit` seconds; its output goes to a file."""
    print(f"{name}: python -m {' '.join(command)}", flush=True)
    start = time.monotonic()
    with open(log, "w+", encoding="utf-8") as stream:
        options = {"stdout": stream, "stderr": subprocess.STDOUT, "timeout": limit}
        try:
            done = subprocess.run([sys.executable, "-m", *command], check=False, **options)
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = 124
        stream.seek(0)
        last = next((line for line in reversed(stream.read().splitlines()) if line.strip()), "")
    step = Step(name, command, code, round(time.monotonic() - start, 1), last)
    print(f"  exit code {step.code}, {step.seconds:.0f} s: {step.last}", flush=True)
    return step


def report(out: Path, done: list[Step]) -> None:
    """Write report.json and report.md with the steps and the table so far."""
    table = out / "table.json"
    measured = json.loads(table.read_text("utf-8")) if table.is_file() else None
    facts = {"device": device_name(), "torch": torch.__version__, "commit": commit()}
    values = {**facts, "steps": [asdict(step) for step in done], "table": measured}
    (out / "report.json").write_text(json.dumps(values, indent=1) + "\n", "utf-8")
    lines = [f"# {device_name()}, torch {torch.__version__}, commit {commit()}", ""]
    if not ON_GPU:
        lines += ["**No GPU was used: a few tests and tiny models on the CPU.**", ""]
    if measured and measured["bf16_peak"]:
        peak = measured["bf16_peak"] / 1e12
        lines += [f"Products of 8,192² matrices in bfloat16: {peak:,.0f} TFLOP/s.", ""]
    lines += ["| step | exit code | seconds | last line |", "|---|---|---|---|"]
    lines += [f"| {s.name} | {s.code} | {s.seconds:.0f} | {s.last} |" for s in done]
    if measured:
        lines += ["", (out / "table.md").read_text("utf-8").rstrip()]
    (out / "report.md").write_text("\n".join(lines) + "\n", "utf-8")


def commit() -> str:
    """Return the commit of the checkout; empty if git does not know."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def arguments() -> argparse.Namespace:
    """Return the options of the command; exit with 2 if a variant is unknown."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--seconds", type=float, default=570, help="for everything")
    parser.add_argument(
        "--jobs", type=int, default=min(8, os.cpu_count() or 1), help="tests at once"
    )
    parser.add_argument(
        "--systems",
        default="",
        help="variants with commas between them: no tests, only their trainings and the Transformer's; "
        "pr-compiled: with --compile",
    )
    given = parser.parse_args()
    systems = filter(None, given.systems.split(","))
    if unknown := {name.removesuffix(COMPILED) for name in systems} - VARIANTS.keys():
        parser.error(f"--systems: no variant {', '.join(sorted(unknown))} (see nmtkit variants)")
    return given


def main() -> None:
    """Run all steps; end with 1 if one of them failed, with 3 if there is no GPU."""
    given = arguments()
    if ON_GPU and not torch.cuda.is_available():
        print("no GPU here; NMTKIT_DEVICE=cpu tries this script on the CPU", file=sys.stderr)
        raise SystemExit(3)
    end, out = time.monotonic() + given.seconds, given.out
    out.mkdir(parents=True, exist_ok=True)
    for name in ("table.json", "table.md"):  # of an earlier call
        (out / name).unlink(missing_ok=True)
    print(f"device: {device_name()}" + ("" if ON_GPU else ": no GPU, tiny models"), flush=True)
    done: list[Step] = []
    tests = {} if given.systems else steps(given.jobs)
    for number, (name, command) in enumerate(tests.items(), 1):
        limit = max(LEAST, SHARE * given.seconds)
        done.append(run(name, command, limit, out / f"step{number}.log"))
        report(out, done)
    left = max(LEAST, end - time.monotonic())
    done.append(run("table", table_command(given, left), left, out / "table.log"))
    report(out, done)
    print((out / "report.md").read_text("utf-8"))
    raise SystemExit(any(step.code for step in done))


def table_command(given: argparse.Namespace, left: float) -> list[str]:
    """Return the command of the table, given the seconds that are left."""
    # A row that has begun may take more than a minute.
    command = ["tests.gpu.table", str(given.out), "--seconds", f"{max(0.5 * left, left - 75):.0f}"]
    command += ["--systems", given.systems] if given.systems else []
    return command + ([] if ON_GPU else ["--tiny"])


if __name__ == "__main__":
    main()
