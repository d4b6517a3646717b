"""The stage `prep`: what was asked for, whether it is there already, and the prep folder that
appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nmtkit import console, files
from nmtkit.corpora.corpus import Corpus, SetFiles, assigned
from nmtkit.corpora.document_starts import separate
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem, NmtkitError
from nmtkit.parallel import cores
from nmtkit.prep import check
from nmtkit.prep.options import PrepOptions
from nmtkit.prep.parse_spans import PARSED
from nmtkit.prep.parsers import Stanza
from nmtkit.prep.pipeline import Pipeline
from nmtkit.prep.request import own_request, parse_identity, registered_request
from nmtkit.prep.shorten import first_pairs
from nmtkit.records import Manifest, TextSet
from nmtkit.run import Run, locked, write_toml
from nmtkit.settings import PrepSettings

SIDES = (("src", "source"), ("tgt", "target"))


def prep(dataset: str | None = None, **values: Any) -> Run:
    """Prepare a corpus: clean, tokenize, truecase, BPE, vocabulary, store.

    Args:
        dataset: a registered name; for own files, a name of the user's (None: the language pair).
        values: of `PrepOptions`.
    Returns: the run.
    Raises: ConfigError, DataError, EnvironmentProblem; then nothing of the prep folder has changed.
    """
    options = PrepOptions.of({"dataset": dataset, **values})
    documents = assigned(options.docs, "--docs")
    trees = {name: Path(file) for name, file in assigned(options.parses, "--parses").items()}
    own = options.train is not None or options.dev is not None
    request = (own_request if own else registered_request)(options, documents, trees)
    chosen = request.settings(options.config, options.assignments)
    run = _run_at(options.run_dir or Path("runs") / request.name)
    console.say(f"run {run.path}")
    old = _manifest(run)
    known = old.inputs if old else {}
    identity = request.identity(known, chosen) | parse_identity(trees, options.parser, known)
    if old and not options.force and _up_to_date(run, old, identity, chosen):
        return run
    strict = chosen.on_bad_utf8 == "error"
    facts = check.check_sets(request.own, strict)
    for doubt in request.doubts:
        console.warn(doubt)
    if request.note:
        console.say(request.note)
    read = request.find(chosen)
    with (
        _stoppable(run),
        _run_folder(run),
        locked(run.path, "prep"),
        run.recorded("prep", seed=identity.get("seed")),
        _work_folder(run) as work,
    ):
        start = time.perf_counter()
        raw = work.with_name(work.name + "-raw")
        corpus = read(raw)
        if not request.all_own:
            facts = check.check_sets(corpus.sets, strict, raw, facts)
        corpus, facts = _written_anew(corpus, facts, strict, raw)
        loaded = (
            Stanza(corpus.src) if options.parser else None
        )  # before the long work, which it would be a pity to lose
        pipeline = Pipeline(work, corpus, facts, chosen, options.jobs or cores(), identity, loaded)
        manifest = pipeline.run()
        _warn_of_systems(run, old, manifest)
        _publish(work, run.prep)
        write_toml(run.path / "run.toml", _run_toml(manifest, identity))
        _report(run, manifest, time.perf_counter() - start)
    return run


def _written_anew(
    corpus: Corpus, facts: dict[str, check.Facts], strict: bool, raw: Path
) -> tuple[Corpus, dict[str, check.Facts]]:
    """The corpus with those sets written into a folder in whose text something separates documents,
    or of which only the first pairs are wanted; and the facts of all files.
    """
    sets: list[SetFiles] = []
    for given in corpus.sets:
        one = given
        if one.between:
            one = separate(one, (corpus.src, corpus.tgt), raw / "separated")
            facts = check.check_sets([one], strict, raw, facts)
        if one.first is not None:
            one = first_pairs(one, facts, raw / "first")
            facts = check.check_sets([one], strict, raw, facts)
        sets.append(one)
    return replace(corpus, sets=sets), facts


def _run_at(folder: Path) -> Run:
    """The run in a folder that is there or can be made; a DataError if it is a file."""
    if folder.exists() and not folder.is_dir():
        raise DataError(
            f"{folder} is a file, not a run folder",
            where="--run",
            hint="name a folder, or a new one, with --run DIR",
        )
    return Run(folder)


def _manifest(run: Run) -> Manifest | None:
    """Return what is prepared; None if nothing is, or the manifest can't be read."""
    with contextlib.suppress(DataError):
        return run.manifest()
    return None


def _up_to_date(run: Run, old: Manifest, identity: dict[str, Any], chosen: PrepSettings) -> bool:
    """Whether the prep folder holds what is asked for.

    Returns: False if it is damaged and must be made again.
    Raises: ConfigError if it holds something else.
    """
    before = _flat({"source": old.source, "prep": old.settings.model_dump()})
    after = _flat({"source": identity, "prep": chosen.model_dump()})
    different = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    if different:
        lines = [
            f"{key}: {_short(before.get(key))} -> {_short(after.get(key))}"
            for key in different[:12]
        ]
        raise ConfigError(
            f"this run was prepared differently ({len(different)}"
            f" difference{'s' * (len(different) > 1)}: old -> new)",
            where="\n  ".join([str(run.prep), *lines]),
            hint="prepare another run with --run DIR, or this one again with --force",
        )
    missing = [name for name in old.files if not (run.prep / name).is_file()]
    if missing:
        console.warn(f"{run.prep / missing[0]} is missing; preparing again")
        return False
    console.say(
        f"{run.prep} is up to date ({old.dataset}, fingerprint {old.fingerprint[:12]}); --force"
        " prepares it again"
    )
    return True


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(values, dict):
        return {
            key: value
            for name, part in values.items()
            for key, value in _flat(part, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    if isinstance(values, list) and values and isinstance(values[0], dict):
        return {
            key: value
            for part in values
            for key, value in _flat(part, f"{prefix}.{part.get('name', '')}").items()
        }
    return {prefix: values}


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "-" if value is None else text if len(text) <= 40 else text[:12] + "…"


@contextlib.contextmanager
def _stoppable(run: Run) -> Iterator[None]:
    """Say what was kept when someone stops it.

    Raises: KeyboardInterrupt with that.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"{run.prep} is as it was" if run.prep.exists() else "nothing was kept"
        ) from None


@contextlib.contextmanager
def _run_folder(run: Run) -> Iterator[None]:
    """Leave no run folder behind if this call made it and failed; a machine that can't write is
    said plainly.
    """
    fresh = not run.path.exists()
    try:
        yield
    except BaseException as error:
        if fresh:
            with contextlib.suppress(OSError):
                for name in ("history.jsonl", ".lock"):
                    (run.path / name).unlink(missing_ok=True)
                run.path.rmdir()
        if isinstance(error, OSError) and not isinstance(error, NmtkitError):
            what = f"cannot write {error.filename or run.path}: {error.strerror or error}"
            raise EnvironmentProblem(
                what, hint="free some space or choose another --run folder"
            ) from error
        raise


@contextlib.contextmanager
def _work_folder(run: Run) -> Iterator[Path]:
    """A fresh folder beside the prep folder; what a killed call left is cleared away first (the
    run is locked).
    """
    for stale in run.path.glob("prep.old-*"):
        if run.prep.exists():
            shutil.rmtree(stale)
        else:  # killed between the two renames of _publish
            os.replace(stale, run.prep)
    for stale in run.path.glob("prep.tmp-*"):
        console.say(f"removing {stale.name}, left by a call that was stopped")
        shutil.rmtree(stale)
    work = run.path / f"prep.tmp-{os.getpid()}"
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(work.with_name(work.name + "-raw"), ignore_errors=True)


def _publish(work: Path, final: Path) -> None:
    """Give the finished folder its name; an older one goes."""
    old = final.with_name(f"prep.old-{os.getpid()}")
    if final.exists():
        os.replace(final, old)
    os.replace(work, final)
    files.sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _warn_of_systems(run: Run, old: Manifest | None, new: Manifest) -> None:
    names = [system.name for system in run.systems()]
    before = old.fingerprint if old else "none"
    if names and before != new.fingerprint:
        change = f"fingerprint {before[:12]} -> {new.fingerprint[:12]}"
        console.warn(
            f"the corpus changes ({change}): the systems {', '.join(names)} in"
            f" {run.path / 'systems'} belong to the old one and will be refused; train them again"
            " with --force, or get the old corpus back by preparing it again as it was"
        )


def _run_toml(manifest: Manifest, identity: dict[str, Any]) -> dict[str, Any]:
    values = {
        key: getattr(manifest, key) for key in ("dataset", "src", "tgt", "preset", "fingerprint")
    }
    return (
        values
        | {key: identity[key] for key in ("size", "seed") if key in identity}
        | {"prep": manifest.settings.model_dump()}
    )


def _report(run: Run, manifest: Manifest, seconds: float) -> None:
    """A short table of what was kept, dropped and changed."""
    cleaning, vocabulary, (train, *others) = manifest.cleaning, manifest.vocabulary, manifest.sets
    console.say(
        f"training pairs: {cleaning.pairs_in:,} in, {cleaning.pairs_kept:,} kept"
        f" ({cleaning.pairs_kept / cleaning.pairs_in:.2%})"
    )
    wide = max(
        map(
            len,
            [
                *cleaning.dropped,
                *(kind for changed in cleaning.changed.values() for kind in changed),
            ],
        ),
        default=0,
    )
    for reason, pairs in cleaning.dropped.items():
        console.say(
            f"  dropped: {reason:<{wide}} {pairs['pairs']:>9,}  (source {pairs['src']:,}, target"
            f" {pairs['tgt']:,})"
        )
    for side, name in SIDES:
        for kind, count in cleaning.changed[side].items():
            console.say(f"  changed: {kind:<{wide}} {count:>9,}  in the {name}")
    sizes = (
        f"{vocabulary.src:,}" if vocabulary.shared else f"{vocabulary.src:,} + {vocabulary.tgt:,}"
    )
    console.say(
        f"{train.src_tokens:,} + {train.tgt_tokens:,} subwords, vocabulary"
        f" {sizes}{' (shared)' * vocabulary.shared}"
    )
    for one in others:
        shares = (
            f"source {one.src_unknown / max(one.src_tokens, 1):.2%}, target"
            f" {one.tgt_unknown / max(one.tgt_tokens, 1):.2%}"
        )
        console.say(f"  {one.split:<5} {one.name}: {one.lines:,} lines, unknown subwords {shares}")
        for side, name in SIDES:
            for kind, count in (one.changed or {}).get(side, {}).items():
                console.say(f"  changed in {one.name}: {kind} {count:,}  in the {name}")
        if one.blank:
            counts = ", ".join(f"{count:,} of .{stream}" for stream, count in one.blank.items())
            console.warn(
                f"{one.name} has blank lines ({counts}; {one.lines:,} lines each): they are kept, a"
                " blank source line is translated as a blank line, and all count in the scores:"
                f" {run.prep / 'text' / one.name}.*"
            )
    _report_documents(manifest.sets)
    for one in manifest.sets:
        if one.parses is not None:
            reasons = (
                f"{one.parses[reason]:,} {reason} (first: line {line:,})"
                for reason, line in (one.parses_first or {}).items()
            )
            console.say(
                f"  parses of {one.name}: {one.parses[PARSED]:,} sentences; as n-grams:"
                f" {', '.join(reasons) or 'none'}"
            )
    console.say(
        f"prepared {run.prep} in {console.duration(seconds)} (preset {manifest.preset}, fingerprint"
        f" {manifest.fingerprint[:12]})"
    )


def _report_documents(sets: list[TextSet]) -> None:
    known = [one for one in sets if one.documents is not None]
    for one in known:
        console.say(
            f"  documents of {one.name}: {one.documents:,}, of"
            f" {one.lines / max(one.documents or 0, 1):.1f} lines"
        )
        if one.documents == one.lines > 1:
            console.warn(
                f"every line of {one.name} is a document of its own, so none has a context: is"
                f" --docs {one.name} the right file?"
            )
    if not known:
        console.say(
            "  documents: nothing says where they start, so every sentence is one of its own"
        )
        return
    for one in sets:
        if one.documents is None and one.lines > 1:
            name = one.name
            hint = f"--docs {name}=FILE" + (
                f", or --docs {name}=blank, if its blank lines separate them" if one.blank else ""
            )
            console.warn(
                f"nothing says where the documents of {name} start, so each of its sentences is one"
                f" of its own, without a context ({hint})"
            )
