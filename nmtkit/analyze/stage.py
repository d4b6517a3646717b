"""The stage `analyze`: one analysis over some systems of a run, kept in analyze/<name>/."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nmtkit
from nmtkit import console, files
from nmtkit.analyze import ANALYSES, OPTIONS
from nmtkit.analyze.finding import Finding
from nmtkit.errors import ConfigError, DataError, nearest
from nmtkit.run import Run, locked
from nmtkit.tables.table import check_format


def analyze(
    run: Run,
    name: str,
    *,
    systems: Sequence[str] = (),
    set_names: Sequence[str] = (),
    output_format: str = "table",
    force: bool = False,
    **options: Any,
) -> None:
    """Run one analysis, print it and keep it.

    Args:
        run: the run.
        name: a name of ANALYSES.
        systems, set_names: only these (default: all that the analysis can use).
        output_format: table, json, md, tex or csv, on stdout.
        force: do it again even if nothing it depends on has changed.
        options: of the analysis (buckets, measure, …); those of others must be at their default.
    Raises: ConfigError for an unknown analysis, system or set, or an option of another analysis; DataError if there is nothing to analyse.
    """
    check_format(output_format)
    function = find(name)
    options = own_options(name, function, options)
    run.manifest()
    chosen = [run.find_system(s).name for s in systems] if systems else [s.name for s in run.systems()]
    if not chosen:
        raise DataError("nothing to analyse: this run has no trained system", where=run.path, hint="first: nmtkit train")
    with run.recorded("analyze") as record, locked(run.path, "analyze", shared=True), locked(run.path / "analyze" / name, "analyze"):
        record["analysis"] = name
        made_from = _made_from(run, chosen, {"set_names": list(set_names), **options})
        finding = None if force or options.get("measure") else _up_to_date(run, name, made_from)
        if finding is None:
            finding = function(run, chosen, set_names=list(set_names), **options)
            finding.facts.update({"version": nmtkit.__version__, "commit": record["commit"]})
            finding.write(run.path / "analyze" / name, made_from)
        else:
            console.say(f"{name}: up to date (--force does it again)")
        finding.print(output_format)


def find(name: str) -> Callable[..., Finding]:
    """The function of an analysis.

    Raises: ConfigError naming the nearest one.
    """
    if name not in ANALYSES:
        raise ConfigError(f"unknown analysis '{name}'", where="nmtkit analyze", hint=nearest(name, ANALYSES))
    module, _, function = ANALYSES[name].target.partition(":")
    found: Callable[..., Finding] = getattr(importlib.import_module(module), function)
    return found


def own_options(name: str, function: Callable[..., Finding], options: dict[str, Any]) -> dict[str, Any]:
    """The options that an analysis declares, at their defaults where nothing is asked.

    Raises: ConfigError for one that it doesn't, unless that is at its default.
    """
    declared = _declared(function)
    for option, value in options.items():
        if option not in declared and (option not in OPTIONS or value != OPTIONS[option]):
            having = [other for other in ANALYSES if option in _declared(find(other))]
            hint = f"leave it out; it is for: {', '.join(having)}" if having else "no analysis has it"
            raise ConfigError(f"the analysis '{name}' has no such option", where="--" + option.replace("_", "-"), hint=hint)
    asked = {option: value for option, value in options.items() if option in declared}
    return {option: value for option, value in OPTIONS.items() if option in declared} | asked


def _declared(function: Callable[..., Finding]) -> list[str]:
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]


def _made_from(run: Run, systems: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """Everything a finding depends on: settings, the corpus, its texts, and of each system its weights, measurements and translations."""
    texts = [path for one in run.sets() for path in (run.source(one.name), *run.references(one.name))]  # the fingerprint knows no test set
    inputs = {str(path.relative_to(run.path)): files.sha256(path) for path in texts if path.is_file()}
    for name in systems:
        folder = run.system(name).path
        for path in [folder / "config.toml", folder / "best.json", folder / "metrics.jsonl", *sorted(folder.glob("translate/*/*"))]:
            if path.is_file() and not path.name.startswith("."):
                inputs[str(path.relative_to(run.path))] = files.sha256(path)
    for value in itertools.chain.from_iterable([o] if isinstance(o, str) else o for o in options.values() if isinstance(o, (str, list, tuple))):
        named = [path for part in value.split(",") if part for path in (Path(part), *Path(part).glob("*.txt*"), *Path(part).glob("*/*.txt*"))]
        inputs |= {str(path): files.sha256(path) for path in named if path.is_file()}
    prepared = run.manifest().fingerprint
    facts = {"nmtkit": nmtkit.__version__, "prepared": prepared, "systems": list(systems), "options": options, "files": inputs}
    result: dict[str, Any] = json.loads(json.dumps(facts))  # as it will be read back
    return result


def _up_to_date(run: Run, name: str, made_from: dict[str, Any]) -> Finding | None:
    path = run.path / "analyze" / name / "finding.json"
    if not path.is_file():
        return None
    try:
        stored = files.read_json(path)
        return Finding.from_json(stored) if stored["made_from"] == made_from else None
    except (DataError, KeyError, TypeError):
        return None
