"""The stage `prep`: the prep folder appears whole or not at all."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmtkit import console, files
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem, counted
from nmtkit.parallel import cores
from nmtkit.prep.check import Inputs, check_samples
from nmtkit.prep.clean import SIDES as TEXT_SIDES
from nmtkit.prep.options import PrepOptions
from nmtkit.prep.parse_spans import PARSED, Stanza
from nmtkit.prep.pipeline import Pipeline
from nmtkit.prep.repeats import DUPLICATE, HELD_OUT
from nmtkit.prep.request import Request
from nmtkit.prep.rewrite import rewritten
from nmtkit.records import Cleaning, Manifest, Repeats, TextSet
from nmtkit.run import Run, locked, write_toml
from nmtkit.settings import PrepSettings, flat
from nmtkit.text.scripts import scripts
from nmtkit.text.tokenizer import tokenizer_name, unspaced

SIDES = (("src", "source"), ("tgt", "target"))
MANY_UNKNOWN, MANY_FOREIGN = 0.05, 0.01
"""From these shares prep warns: of unknown subwords of a dev or test set, and of lines of a side in
another script than its language's.
"""


def prep(dataset: str | None = None, **values: Any) -> Run:
    """Prepare a corpus: clean, tokenize, truecase, BPE, vocabulary, store.

    Args:
        dataset: a registered name; for own files, a name of the user's (None: the language pair).
        values: of `PrepOptions`.
    Returns: the run.
    Raises: ConfigError, DataError, EnvironmentProblem; then nothing of the prep folder has changed.
    """
    options = PrepOptions.of({"dataset": dataset, **values})
    request = Request(options)
    settings = request.settings()
    run = _run_at(options.run_dir or Path("runs") / request.own_corpus.name)
    console.say(f"run {run.path}")
    old = _manifest(run)
    identity = request.identity(old.inputs if old else {}, settings)
    if not old or options.force or not _up_to_date(run, old, identity, settings):
        _prepare(run, request, settings, identity, old)
    return run


def _prepare(
    run: Run,
    request: Request,
    settings: PrepSettings,
    identity: dict[str, Any],
    old: Manifest | None,
) -> None:
    """Make the prep folder anew; `old` describes the one that it replaces."""
    work = run.path / f"prep.tmp-{os.getpid()}"
    raw = work.with_name(f"{work.name}-raw")
    inputs = Inputs(settings.on_bad_utf8 == "error", raw)
    inputs.check(request.own_corpus.sets)
    own = request.own_corpus
    for side, language in zip(TEXT_SIDES, (own.src, own.tgt), strict=True):
        if tokenizer_name(side, language, settings) == "raw":
            continue
        if name := unspaced(language):
            console.say(f"{name} has no spaces between words: by default characters are its words")
    for doubt in request.doubts:
        console.warn(doubt)
    for message in (request.note, request.given.message):
        if message:
            console.say(message)
    read = request.find(settings)
    with (
        _nothing_left(run),
        locked(run.path, "prep"),
        run.recorded("prep", seed=identity.get("seed")),
        _work_folders(run, work, raw),
    ):
        start = time.perf_counter()
        corpus = read(raw)
        if request.dataset:
            inputs.check(corpus.sets)
        corpus = rewritten(corpus, inputs, raw)
        names = {text.name for text in own.sets}
        own_sets = [text for text in corpus.sets if text.name in names]
        check_samples(own_sets, (own.src, own.tgt), settings)
        parser = Stanza(corpus.src) if request.options.parser else None
        jobs = request.options.jobs or cores()
        pipeline = Pipeline(work, corpus, inputs, settings, jobs, identity, parser, request.given)
        manifest = pipeline.run()
        _warn_of_systems(run, old, manifest)
        _publish(work, run.prep)
        write_toml(run.path / "run.toml", _run_toml(manifest, identity))
        _report(run, manifest)
        result = f"(preset {manifest.preset}, fingerprint {manifest.fingerprint[:12]})"
        seconds = console.duration(time.perf_counter() - start)
        console.say(f"prepared {run.prep} in {seconds} {result}")


def _run_at(folder: Path) -> Run:
    if folder.exists() and not folder.is_dir():
        hint = "name a folder, or a new one, with --run DIR"
        raise DataError(f"{folder} is a file, not a run folder", where="--run", hint=hint)
    return Run(folder)


def _manifest(run: Run) -> Manifest | None:
    """Return the manifest; None if nothing is prepared or it cannot be read."""
    with contextlib.suppress(DataError):
        return run.manifest()
    return None


def _up_to_date(run: Run, old: Manifest, identity: dict[str, Any], settings: PrepSettings) -> bool:
    """True if the prep folder holds what is asked for.

    Returns: False if it is damaged and must be made again.
    Raises: ConfigError if it holds something else.
    """
    before = flat({"source": old.source, "prep": old.settings.model_dump()})
    after = flat({"source": identity, "prep": settings.model_dump()})
    different = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    if different:
        lines = [
            f"{key}: {_short(before.get(key))} -> {_short(after.get(key))}"
            for key in different[:12]
        ]
        raise ConfigError(
            f"this run was prepared differently ({counted(len(different), 'difference')}:"
            " old -> new)",
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


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "-" if value is None else text if len(text) <= 40 else text[:12] + "…"


@contextlib.contextmanager
def _nothing_left(run: Run) -> Iterator[None]:
    """Leave no run folder behind if this call made it and failed.

    Raises: KeyboardInterrupt that says what remains; EnvironmentProblem if nothing can be written.
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
        if isinstance(error, KeyboardInterrupt):
            remains = f"{run.prep} is as it was" if run.prep.exists() else "nothing was kept"
            raise KeyboardInterrupt(remains) from None
        if isinstance(error, OSError):
            problem = f"cannot write {error.filename or run.path}: {error.strerror or error}"
            hint = "free some space or choose another --run folder"
            raise EnvironmentProblem(problem, hint=hint) from error
        raise


@contextlib.contextmanager
def _work_folders(run: Run, work: Path, raw: Path) -> Iterator[None]:
    """Make the work folder, and clear away what a killed call left (the run is locked)."""
    for stale in run.path.glob("prep.old-*"):
        if run.prep.exists():
            shutil.rmtree(stale)
        else:  # killed between the two renames of _publish
            os.replace(stale, run.prep)
    for stale in run.path.glob("prep.tmp-*"):
        console.say(f"removing {stale.name}, left by a call that was stopped")
        shutil.rmtree(stale)
    work.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(raw, ignore_errors=True)


def _publish(work: Path, final: Path) -> None:
    """Give the finished folder its name, and remove an older one."""
    old = final.with_name(f"prep.old-{os.getpid()}")
    files.publish(work, final, old)
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
    described = {"dataset", "src", "tgt", "preset", "fingerprint"}
    drawn = {key: identity[key] for key in ("size", "seed") if key in identity}
    return manifest.model_dump(include=described) | drawn | {"prep": manifest.settings.model_dump()}


def _report(run: Run, manifest: Manifest) -> None:
    """Print what was kept, dropped and changed."""
    _report_cleaning(manifest.cleaning)
    vocabulary, (train, *held_out) = manifest.vocabulary, manifest.sets
    target = " (shared)" if vocabulary.shared else f" + {vocabulary.tgt:,}"
    tokens = f"{train.src_tokens:,} + {train.tgt_tokens:,} subwords"
    console.say(f"{tokens}, vocabulary {vocabulary.src:,}{target}")
    given = "given" in manifest.source
    for text in manifest.sets if given else held_out:
        _report_set(run, text, given)
    if manifest.repeats:
        _report_repeats(manifest.repeats)
    _report_scripts(manifest)
    _report_documents(manifest.sets)
    dropped = manifest.cleaning.dropped
    gaps = sum(dropped[reason]["pairs"] for reason in (HELD_OUT, DUPLICATE) if reason in dropped)
    if gaps and train.documents is not None:
        console.warn(
            f"{counted(gaps, 'repeated pair')} dropped from the documents of train: the sentences"
            " after a dropped one have an earlier sentence as context"
        )
    for text in manifest.sets:
        if text.parses is not None:
            reasons = ", ".join(
                f"{text.parses[reason]:,} {reason} (first: line {line:,})"
                for reason, line in (text.parses_first or {}).items()
            )
            counts = f"{text.parses[PARSED]:,} sentences; as n-grams: {reasons or 'none'}"
            console.say(f"  parses of {text.name}: {counts}")


def _report_cleaning(cleaning: Cleaning) -> None:
    share = cleaning.pairs_kept / cleaning.pairs_in
    pairs = f"{cleaning.pairs_in:,} in, {cleaning.pairs_kept:,} kept ({share:.2%})"
    console.say(f"training pairs: {pairs}")
    width = max(map(len, itertools.chain(cleaning.dropped, *cleaning.changed.values())), default=0)
    for reason, count in cleaning.dropped.items():
        blame = f"(source {count['src']:,}, target {count['tgt']:,})"
        sides = blame if count["src"] or count["tgt"] else ""
        console.say(f"  dropped: {reason:<{width}} {count['pairs']:>9,}  {sides}".rstrip())
    for side, name in SIDES:
        for kind, number in cleaning.changed[side].items():
            console.say(f"  changed: {kind:<{width}} {number:>9,}  in the {name}")


def _report_repeats(repeats: Repeats) -> None:
    counts = f"duplicates {repeats.duplicates:,}, source = target {repeats.identical:,}"
    console.say(f"  repeated training pairs: {counts}")
    for text in repeats.overlap:
        if text.normalised:
            counts = f"{text.exact:,} exactly, {text.normalised:,} without case and punctuation"
            console.say(f"  pairs of {text.name} that training has too: {counts}")


def _report_scripts(manifest: Manifest) -> None:
    """Warn of lines in another script than their language's, and of a vocabulary of two scripts."""
    for text in manifest.sets:
        lines = manifest.cleaning.pairs_in if text.split == "train" else text.lines
        for side, count in text.foreign.items():
            if count >= MANY_FOREIGN * lines:
                name, lang = ("source", manifest.src) if side == "src" else ("target", manifest.tgt)
                letters = f"no {' or '.join(scripts(lang))} letters"
                console.warn(
                    f"{count / lines:.1%} of the lines of the {name} of {text.name} ('{lang}') have"
                    f" {letters}, but letters of another script ({count:,} of {lines:,})"
                )
    src, tgt = scripts(manifest.src), scripts(manifest.tgt)
    if manifest.settings.joint_vocab and src and tgt and not {*src} & {*tgt}:
        console.warn(
            f"'{manifest.src}' and '{manifest.tgt}' share no script, so they share few subwords:"
            " --set prep.joint_vocab=false learns a vocabulary for each side"
        )


def _report_set(run: Run, text: TextSet, given: bool) -> None:
    src = text.src_unknown / max(text.src_tokens, 1)
    tgt = text.tgt_unknown / max(text.tgt_tokens, 1)
    shares = f"unknown subwords source {src:.2%}, target {tgt:.2%}"
    console.say(f"  {text.split:<5} {text.name}: {text.lines:,} lines, {shares}")
    for share, (_, name) in zip((src, tgt), SIDES, strict=True):
        if share >= MANY_UNKNOWN:
            console.warn(
                f"{share:.1%} of the subwords of {text.name} are unknown in the {name}: is the"
                f" {'text that the vocabulary is from' if given else 'training text'} of the same"
                " language and preprocessing?"
            )
    for side, name in SIDES:
        for kind, count in (text.changed or {}).get(side, {}).items():
            console.say(f"  changed in {text.name}: {kind} {count:,}  in the {name}")
    if text.blank:
        counts = ", ".join(f"{count:,} of .{stream}" for stream, count in text.blank.items())
        console.warn(
            f"{text.name} has blank lines ({counts}; {text.lines:,} lines each): they are kept, a"
            " blank source line is translated as a blank line, and all count in the scores:"
            f" {run.prep / 'text' / text.name}.*"
        )


def _report_documents(sets: list[TextSet]) -> None:
    if all(text.documents is None for text in sets):
        nothing = "no document starts are given, so each sentence is its own document"
        console.say(f"  documents: {nothing}")
        return
    for text in sets:
        if text.documents is not None:
            length = text.lines / max(text.documents, 1)
            console.say(f"  documents of {text.name}: {text.documents:,}, of {length:.1f} lines")
            if text.documents == text.lines > 1:
                console.warn(
                    f"every line of {text.name} is a document of its own, so none has a context: is"
                    f" --docs {text.name} the right file?"
                )
    for text in sets:
        if text.documents is None and text.lines > 1:
            option = f"--docs {text.name}"
            blank = f", or {option}=blank, if its blank lines separate them" if text.blank else ""
            console.warn(
                f"no document starts are given for {text.name}, so each of its sentences is its own"
                f" document, without a context ({option}=FILE{blank})"
            )
