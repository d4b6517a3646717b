"""The stage `analyze`: run any analysis and store its finding in analyze/<name>/."""

from __future__ import annotations

import glob
import importlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nmtkit
from nmtkit import console, files, trust
from nmtkit.analyze import ANALYSES
from nmtkit.analyze.analysis import Analysis, Finding, as_words, print_finding, stored
from nmtkit.analyze.study import Study
from nmtkit.data.documents import documents_file
from nmtkit.data.store import spans_files
from nmtkit.errors import ConfigError, DataError, check_known
from nmtkit.locks import check_writable, locked
from nmtkit.models import checkpoints
from nmtkit.names import HINT, is_new_name
from nmtkit.options import Options, flag
from nmtkit.records import FindingInputs, StoredFinding
from nmtkit.run import Run, code_commit
from nmtkit.tables.table import SUFFIXES, Column, check_format
from nmtkit.user_classes import blamed_on, check_base, load_class, place_of

AnyAnalysis = Analysis[Any, Any]
TABLES = tuple(f"table.{suffix}" for suffix in SUFFIXES)


def find(name: str) -> type[AnyAnalysis]:
    """Return the class of an analysis.

    Args:
        name: a name in ANALYSES, or `package.module:Class` for the user's own.
    Raises: ConfigError for an unknown name (with the nearest known one), a class without a title or
        a free name, or as `load_class` and `check_base`.
    """
    if name in ANALYSES:
        module = importlib.import_module(f"nmtkit.analyze.{name}")
        return getattr(module, name.capitalize())  # type: ignore[no-any-return]
    if ":" not in name:
        check_known(name, ANALYSES, f"unknown analysis '{name}'", "nmtkit analyze")
    guide = "nmtkit/analyze/README.md"
    trust.allow([name])
    cls: type[AnyAnalysis] = load_class(name, Analysis, "analysis", "nmtkit analyze", guide)
    check_base(cls.Options, Options, f"Options of {name}", "nmtkit analyze", guide)
    for attribute in ("name", "title"):
        if not hasattr(cls, attribute):
            hint = f'write in the class: {attribute} = "…"'
            raise ConfigError(f"{name} has no {attribute}", where=place_of(cls), hint=hint)
    # The name becomes a folder. It must not be the folder of another analysis.
    is_own = not cls.__module__.startswith("nmtkit.")
    if is_own and (cls.name in ANALYSES or not is_new_name(cls.name)):
        message = f"{cls.name!r} cannot name an analysis of your own"
        hint = f"{HINT}; these are taken: {', '.join(ANALYSES)}"
        raise ConfigError(message, where=place_of(cls), hint=hint)
    return cls


def summary(name: str) -> str:
    """Return one line that says what an analysis shows."""
    cls = find(name)
    return ANALYSES.get(name) or (cls.__doc__ or cls.title).partition("\n")[0].rstrip(".")


def check_option(cls: type[AnyAnalysis], key: str) -> None:
    """Raise ConfigError if only other analyses have an option."""
    having = [name for name in ANALYSES if key in find(name).Options.model_fields]
    if having and key not in cls.Options.model_fields:
        message = f"the analysis '{cls.name}' has no such option"
        hint = f"leave it out; these have it: {', '.join(having)}"
        raise ConfigError(message, where=flag(key), hint=hint)


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
    """Run one analysis, store its finding and print the finding.

    Args:
        run: the run.
        name: a name in ANALYSES, or `package.module:Class`.
        systems: the systems to analyse, the baseline first (default: all, oldest first).
        set_names: the sets to analyse (default: the analysis decides).
        output_format: table, json, md, tex or csv, on stdout.
        force: repeat an analysis that is up to date.
        options: the options of the analysis.
    Raises: ConfigError for an unknown analysis, system, set or option; DataError if there is
        nothing to analyse.
    """
    check_format(output_format)
    cls = find(name)
    values = cls.Options.of(options)
    study = _study(run, cls, systems, set_names)
    with run.recorded("analyze") as call, blamed_on(cls):
        call.analysis = cls.name
        print_finding(current(cls(values), study, force), output_format)


def _study(
    run: Run, cls: type[AnyAnalysis], systems: Sequence[str], set_names: Sequence[str]
) -> Study:
    """Return the study of some systems and sets.

    Raises: ConfigError for an unknown system, or for sets that the analysis does not read;
        DataError if the run has no system.
    """
    where, reads = "--on", f"`analyze {cls.name}` reads"
    set_names = list(dict.fromkeys(set_names))
    if set_names and cls.sets == "none":
        raise ConfigError(f"{reads} no set of the run", where=where, hint="leave it out")
    run.manifest()
    names = list(dict.fromkeys(_system(run, cls, s) for s in systems)) or run.system_names()
    if not names:
        message = "nothing to analyse: this run has no trained system"
        raise DataError(message, where=run.path, hint=run.train_first)
    if cls.sets == "one" and len(set_names) > 1:
        message = f"{reads} one set, not {', '.join(set_names)}"
        raise ConfigError(message, where=where, hint="name one of them")
    return Study(run, cls.name, names, set_names)


def _system(run: Run, cls: type[AnyAnalysis], name: str) -> str:
    """Return the name of a system, or of a translation without weights if the analysis reads none.

    Raises: ConfigError if there is no such system, or if the analysis needs weights.
    """
    if name in run.system_names() or not run.may_have_translations(name):
        return run.find_system(name).name
    if cls.reads_weights:
        message = (
            f"'{name}' is an ensemble or a translation made elsewhere, without weights to read"
        )
        without = ", ".join(n for n in ANALYSES if not find(n).reads_weights)
        hint = f"name trained systems; these analyses read translations alone: {without}"
        raise ConfigError(message, where="--system", hint=hint)
    return name


def current(analysis: AnyAnalysis, study: Study, force: bool = False) -> StoredFinding:
    """Return the finding of an analysis; measure only if the stored finding is outdated.

    Raises: as `Analysis.measure`.
    """
    name = analysis.name
    with (
        locked(study.run.path, "analyze", shared=True),
        locked(study.folder, "analyze", reads=True),
    ):
        inputs = inputs_of(study, analysis)
        earlier = None if force or analysis.repeats else stored(study.folder)
        if (
            earlier is not None
            and earlier.made_from == inputs
            and not files.removed(study.folder, earlier.hashes)
        ):
            if files.removed(study.folder, TABLES):
                earlier.table.table.write(study.folder, "table")
            console.say(f"{name}: up to date (--force repeats it)")
            return earlier
        check_writable(study.folder)
        finding = replace(analysis.finding(study), name=name, title=analysis.title)
        return _with_provenance(finding, study).write(study.folder, inputs)


def _with_provenance(finding: Finding, study: Study) -> Finding:
    """Return a finding with the facts and warnings of its study, and the version of nmtkit."""
    facts = finding.facts | study.facts
    if study.left_out:
        facts["left_out"] = study.left_out
    if study.checkpoints:
        facts["checkpoints"] = study.checkpoints
    facts |= {"version": nmtkit.__version__, "commit": code_commit()}
    table, columns = finding.table, _with_different_keys(finding.table.columns)
    table = replace(table, columns=columns, notes=[*table.notes, *study.warnings])
    return replace(finding, table=table, facts=facts)


def _with_different_keys(columns: Sequence[Column]) -> list[Column]:
    """Return columns whose keys differ. A system may be named like a column; the later of two equal
    keys gets an '_'.
    """
    keys: dict[str, Column] = {}
    for column in columns:
        key = column.key
        while key in keys:
            key += "_"
        keys[key] = replace(column, key=key)
    return [*keys.values()]


def inputs_of(study: Study, analysis: AnyAnalysis) -> FindingInputs:
    """Return all inputs of a finding: options, corpus, texts, and the weights, log and translations
    of each system; for the user's own analysis also its code.
    """
    run, options, cls = study.run, analysis.options, type(analysis)
    is_own = not cls.__module__.startswith("nmtkit.")
    hashes = _hashes_of_run(study, cls)
    for path in [*options.paths(), *([Path(inspect.getfile(cls))] if is_own else [])]:
        texts = path, *path.glob("*.txt*"), *path.glob("*/*.txt*")  # of a folder
        hashes |= {str(p): files.sha256(p) for p in texts if p.is_file()}
    return FindingInputs(
        nmtkit=nmtkit.__version__,
        analysis=f"{cls.__module__}:{cls.__qualname__}" if is_own else "",
        prepared=run.manifest().fingerprint,
        systems=study.systems,
        options={"set_names": study.set_names, **options.model_dump(mode="json")},
        files=hashes,
        weights={name: checkpoints.current(run.system(name)) for name in study.systems},
        words=as_words(options.model_dump(mode="json", exclude_defaults=True)),
    )


def _hashes_of_run(study: Study, cls: type[AnyAnalysis]) -> dict[str, str]:
    """Return path in the run -> SHA-256 of texts, settings, logs and the translations that the
    analysis reads.
    """
    run = study.run
    # The fingerprint of the prepared corpus covers no text, and nothing of test sets.
    paths = [path for s in run.sets() for path in (run.source(s.name), *run.references(s.name))]
    for text_set in run.sets("test"):
        paths.append(documents_file(run.prep, text_set.name))
        paths += spans_files(run.prep / text_set.name)
    for name in study.systems:
        folder = run.system(name).path
        paths += [folder / "config.toml", folder / "metrics.jsonl"]
    if cls.reads_translations:
        names = ["[!.]*"] if cls.reads_all_translations else map(glob.escape, study.systems)
        for name in names:
            paths += sorted(run.path.glob(f"systems/{name}/translate/[!.]*/[!.]*"))
    return files.hashes(paths, run.path)
