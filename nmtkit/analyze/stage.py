"""The stage `analyze`: the one runner of all analyses, whose findings are kept in
analyze/<name>/.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nmtkit
from nmtkit import console, files, settings
from nmtkit.analyze import ANALYSES
from nmtkit.analyze.analysis import Analysis, Finding, Options, as_words, flag
from nmtkit.analyze.study import Study, kept
from nmtkit.errors import ConfigError, DataError, nearest
from nmtkit.models import checkpoints
from nmtkit.run import Run, code_commit, locked
from nmtkit.score import paper as papers
from nmtkit.tables.table import check_format

AnyAnalysis = Analysis[Any, Any]


def find(name: str) -> type[AnyAnalysis]:
    """Return the class of an analysis: of the table, or outside the package as
    `package.module:Class`.

    Raises: ConfigError naming the nearest one.
    """
    target = ANALYSES[name].target if name in ANALYSES else name
    module, colon, cls = target.partition(":")
    try:
        if not colon:
            raise ConfigError(
                f"unknown analysis '{name}'", where="nmtkit analyze", hint=nearest(name, ANALYSES)
            )
        return getattr(importlib.import_module(module), cls)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        if name in ANALYSES:
            raise
        raise ConfigError(
            f"cannot import the analysis '{name}': {error}",
            where="nmtkit analyze",
            hint="package.module:Class",
        ) from error


def shows(name: str) -> str:
    """Return what an analysis shows, in one line."""
    return (
        ANALYSES[name].shows
        if name in ANALYSES
        else (find(name).__doc__ or "").partition("\n")[0].rstrip(".")
    )


def having(option: str) -> list[str]:
    """Return the names of the analyses that have an option."""
    return [name for name in ANALYSES if option in find(name).Options.model_fields]


def check_options(cls: type[AnyAnalysis], values: dict[str, Any]) -> Options:
    """Return the options of an analysis.

    Raises: ConfigError for an option of other analyses, or a bad value.
    """
    for key in values.keys() - cls.Options.model_fields.keys():
        others = having(key)
        hint = (
            f"leave it out; these have it: {', '.join(others)}" if others else "no analysis has it"
        )
        raise ConfigError(
            f"the analysis '{cls.name}' has no such option", where=flag(key), hint=hint
        )
    return settings.build(cls.Options, values, f"analyze {cls.name}")


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
    """Run one analysis, print its finding and keep it.

    Args:
        run: the run.
        name: of ANALYSES, or `package.module:Class`.
        systems: only these, the baseline first (default: all, the one trained first leads).
        set_names: only these (default: the analysis' own).
        output_format: table, json, md, tex or csv, on stdout.
        force: repeat an analysis that is up to date.
        options: of the analysis.
    Raises: ConfigError for an unknown analysis, system, set or option; DataError if there is
        nothing to analyse.
    """
    check_format(output_format)
    cls = find(name)
    analysis = cls(check_options(cls, options))
    study = _study(run, cls, systems, set_names)
    with run.recorded("analyze") as record:
        record["analysis"] = cls.name
        current(analysis, study, force).print(output_format)


def _study(
    run: Run, cls: type[AnyAnalysis], systems: Sequence[str], set_names: Sequence[str]
) -> Study:
    if set_names and cls.sets == "none":
        raise ConfigError(
            f"`analyze {cls.name}` reads no set of the run", where="--set-name", hint="leave it out"
        )
    run.manifest()
    chosen = [run.find_system(s).name for s in systems] or [s.name for s in run.systems()]
    if not chosen:
        raise DataError(
            "nothing to analyse: this run has no trained system",
            where=run.path,
            hint="nmtkit train",
        )
    if cls.sets == "one" and len(set_names) > 1:
        message = f"`analyze {cls.name}` reads one set, not {', '.join(set_names)}"
        raise ConfigError(message, where="--set-name", hint="name one of them")
    return Study(run, cls.name, chosen, list(set_names))


def current(analysis: AnyAnalysis, study: Study, force: bool = False) -> Finding:
    """Return the finding of an analysis, kept in analyze/NAME/: the kept one if it is up to date.

    Raises: as `Analysis.measure`.
    """
    run, name = study.run, analysis.name
    folder = run.path / "analyze" / name
    with locked(run.path, "analyze", shared=True), locked(folder, "analyze"):
        made_from = inputs(study, analysis.options)
        earlier = None if force or analysis.repeats else kept(run, name)
        if earlier is not None and earlier[1] == made_from:
            console.say(f"{name}: up to date (--force repeats it)")
            return earlier[0]
        finding = measured(analysis, study)
        finding.facts.update({"version": nmtkit.__version__, "commit": code_commit()})
        finding.write(folder, made_from)
        return finding


def measured(analysis: AnyAnalysis, study: Study) -> Finding:
    """Measure and present; put a paper's numbers beside the measured ones if they are asked for."""
    options = analysis.options
    printed = papers.asked(options.paper, options.table, analysis.paper) if analysis.paper else None
    result = analysis.measure(study)
    finding = replace(analysis.present(result), name=analysis.name, title=analysis.title)
    if study.checkpoints:
        finding.facts["checkpoints"] = study.checkpoints
    if printed is None or analysis.paper is None:
        return finding
    ours = analysis.printed_too(result)
    both = papers.numbers_beside(
        printed,
        analysis.paper,
        ours.numbers,
        study.dataset,
        ours.set_name,
        ours.signature,
        ours.remarks,
    )
    return finding.beside(both)


def inputs(study: Study, options: Options) -> dict[str, Any]:
    """Return everything that a finding depends on: options, corpus, texts, and each system's
    weights, log and translations.
    """
    run, values = study.run, {"set_names": study.set_names, **options.model_dump(mode="json")}
    texts = [
        path for s in run.sets() for path in (run.source(s.name), *run.references(s.name))
    ]  # not in the fingerprint
    hashes = {
        str(path.relative_to(run.path)): files.sha256(path) for path in texts if path.is_file()
    }
    for name in study.systems:
        folder = run.system(name).path
        kept_there = [
            folder / "config.toml",
            folder / "metrics.jsonl",
            *sorted(folder.glob("translate/*/*")),
        ]
        for path in kept_there:
            if path.is_file() and not path.name.startswith("."):
                hashes[str(path.relative_to(run.path))] = files.sha256(path)
    texts_given = itertools.chain.from_iterable(
        [v] if isinstance(v, str) else v for v in values.values() if isinstance(v, str | list)
    )
    for part in (
        part for word in texts_given for part in word.split(",") if part
    ):  # options that name files or folders of files
        for path in (Path(part), *Path(part).glob("*.txt*"), *Path(part).glob("*/*.txt*")):
            if path.is_file():
                hashes[str(path)] = files.sha256(path)
    prepared = run.manifest().fingerprint
    facts = {
        "nmtkit": nmtkit.__version__,
        "prepared": prepared,
        "systems": study.systems,
        "options": values,
        "files": hashes,
    }
    facts |= {
        "weights": {name: checkpoints.current(run.system(name)) for name in study.systems},
        "words": as_words(options.model_dump(mode="json", exclude_defaults=True)),
    }
    result: dict[str, Any] = json.loads(json.dumps(facts))  # as it will be read back
    return result
