"""The commands that compute a missing or outdated part of a report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from nmtkit import trust
from nmtkit.analyze import ANALYSES
from nmtkit.presets import preset_names
from nmtkit.records import FindingInputs, SystemConfig
from nmtkit.run import Run, System
from nmtkit.score.metrics import METRICS
from nmtkit.score.options import ScoreOptions
from nmtkit.score.stored_scores import Scores


def score_command(run: Run, set_name: str, result: Scores | None) -> str:
    """Return the command that scores a set with all systems and the options of a result."""
    if result is None:
        return f"nmtkit score --on {set_name}"
    options = ["--on", set_name, "--significance", result.test]
    for key in ("resamples", "ratio", "trials", "seed"):
        if (drawn := getattr(result.resampling, key)) != ScoreOptions.model_fields[key].default:
            options += [f"--{key}", str(drawn)]
    baseline = run.system(result.baseline).translation(set_name)
    if result.compared and (baseline / "hyp.txt").is_file():
        options += ["--against", result.baseline]
    options += ["--buckets", result.by_length.buckets] if result.by_length else []
    if result.seeds and result.seeds.grouping != "seed":
        options += ["--group-by", result.seeds.grouping]
    if columns := [key for key in result.asked if key in METRICS]:
        options += ["--metrics", ",".join(columns)]
    for key in result.asked:
        if key not in METRICS:  # nobody should paste a shell command that a run holds
            options += ["--metric", f"{key}=…"]
    return shlex.join(["nmtkit", "score", *options])


def score_again(run: Run, set_name: str, result: Scores | None) -> str:
    """Return the same command; empty if the set has no translation."""
    translated = run.with_file(f"translate/{set_name}/hyp.txt")
    return score_command(run, set_name, result) if translated else ""


def to_first_scores(run: Run) -> tuple[str, str]:
    """Return why a run has no scores, and the commands that compute its first scores."""
    translated = [s for s in run.sets() if run.with_file(f"translate/{s.name}/hyp.txt")]
    sets = translated or run.sets("test") or run.sets("dev")
    has_test = any(s.split == "test" for s in sets)
    on = "" if has_test else "".join(f" --on {s.name}" for s in sets[:1])
    if translated:
        return "the translations of this run are not scored", f"nmtkit score --by-length{on}"
    commands = f"nmtkit translate{on} && nmtkit score{on}"
    if run.systems():
        return "no set of this run is translated", commands
    return "this run has no trained system", f"nmtkit train && {commands}"


def analyze_command(name: str, inputs: FindingInputs, systems: Sequence[str]) -> str:
    """Return the command that computes a finding again.

    Args:
        systems: all systems of the run, which need not be named.
    """
    words = []
    if inputs.systems != list(systems):
        for system in inputs.systems:
            words += ["--system", system]
    for set_name in inputs.options.get("set_names", ()):
        words += ["--on", set_name]
    analysis = trust.shown(inputs.analysis or name)
    allows_code = any(word.startswith("--allow") for word in inputs.words)  # nobody may paste it
    if analysis in {*ANALYSES, inputs.analysis} and not allows_code:
        words += inputs.words
    return shlex.join(["nmtkit", "analyze", analysis, *words])


def train_command(system: System, stored: SystemConfig) -> str:
    """Return the command that trains a system again with its stored settings."""
    words = ["nmtkit", "train", "--system", system.name, "--variant", trust.shown(stored.variant)]
    words += ["--preset", stored.preset] if stored.preset in preset_names() else []
    words += ["--init-from", stored.init_from] if stored.init_from else []
    return shlex.join([*words, "--config", str(system.config), "--force"])


def of_run(command: str, run: Run) -> str:
    """Return one or several commands (joined by `&&`), each with the option that names the run."""
    return command.replace(" && ", f"{run.option} && ") + run.option
