"""The stage `prep`. The prep folder appears complete or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from nmtkit import console, files, folders
from nmtkit.corpora.corpus import Corpus
from nmtkit.errors import ConfigError, DataError, NmtkitError, counted
from nmtkit.locks import locked
from nmtkit.owned_files import MANIFEST, PREP, STORES
from nmtkit.parallel import cores
from nmtkit.prep import engines
from nmtkit.prep.check import Inputs, check_samples
from nmtkit.prep.fingerprint import MACHINE, tools
from nmtkit.prep.options import PrepOptions
from nmtkit.prep.parse_spans import Stanza
from nmtkit.prep.plan import Plan
from nmtkit.prep.reporting import report
from nmtkit.prep.request import Request
from nmtkit.prep.rewrite import rewritten
from nmtkit.prep.work import OUT, remove_left, work_folder
from nmtkit.records import Manifest, load, load_or_warn
from nmtkit.run import Run
from nmtkit.settings import PrepSettings
from nmtkit.text.tokenizer import SIDES, tokenizer_name, unspaced
from nmtkit.toml import changes, flat, write_toml

WORK = "prep-work"
WORK_FORMAT = 7
"""Version of the files in a work folder. Work of another version is not continued."""
FEW_LINES = 2000
"""A training text of at most this many lines is prepared before worker processes would start."""


def prep(dataset: str | None = None, **values: Any) -> Run:
    """Prepare a corpus: clean, tokenize, truecase, BPE, vocabulary, store.

    Args:
        dataset: a registered name; or a new name for own files (None: the language pair).
        values: the other fields of `PrepOptions`.
    Returns: the run.
    Raises: ConfigError, DataError, EnvironmentProblem; the prep folder is then unchanged.
    """
    options = PrepOptions.of({"dataset": dataset, **values})
    request = Request(options)
    run = Run(options.run_dir or Path("runs") / request.own_corpus.name)
    if run.path.exists() and not run.path.is_dir():
        hint = "name a folder, or a new one, with --run DIR"
        raise DataError(f"{run.path} is a file, not a run folder", where="--run", hint=hint)
    work = options.work or run.path / WORK
    place = work.resolve()
    if place == run.path.resolve() or place.is_relative_to(run.prep.resolve()):
        hint = "name another folder, or leave it out"
        raise ConfigError(f"{work} is the run, or in its prep folder", "--work", hint)
    console.say(f"run {run.path}")
    old = load_or_warn(Manifest, run.prep / MANIFEST)
    identity = request.identity(old.inputs if old else {})
    if not old or options.force or not _up_to_date(run, old, identity, request.settings):
        _prepare(run, work, request, identity, old)
    else:
        if options.preset and options.preset != old.preset:
            _note_preset(run, options.preset, identity.get("seed"))
        _tidy(run, work)
    return run


def _prepare(
    run: Run, work: Path, request: Request, identity: dict[str, Any], old: Manifest | None
) -> None:
    """Make the prep folder. `old` is the manifest of the folder that it replaces."""
    options = request.options
    shared = options.shard is not None
    raw = work / (f"raw-{socket.gethostname()}-{os.getpid()}" if shared else "raw")
    inputs = Inputs(request.settings.on_bad_utf8 == "error", raw)
    inputs.check(request.own_corpus.sets)
    _say_what_is_chosen(request)
    write_corpus = request.locate()
    key = _key(request, identity)
    with (
        locked(run.path, "prep", shared=shared),
        _explaining(run, work),
        run.recorded("prep", seed=identity.get("seed")),
        work_folder(work, key, raw, shared=shared),
    ):
        start = time.perf_counter()
        files.check_place(run.prep)
        folders.recover(run.prep, _owned)
        corpus = _checked(write_corpus(raw), request, inputs, raw)
        parser = Stanza(corpus.src) if options.parser else None
        jobs = options.jobs or cores()
        few = inputs.lines(corpus.sets[0].src) <= FEW_LINES and options.engine == "local"
        with engines.opened(options.engine, options.address, 1 if few else jobs) as engine:
            plan = Plan(work, key, corpus, inputs, request, engine, jobs, identity, parser)
            if options.shard is not None:
                assert options.shards is not None
                plan.run_share(options.shard, options.shards)
                return
            manifest = plan.run(options.finish)
        inputs.refuse_changed()
        _warn_of_systems(run, old, manifest)
        write_toml(run.path / "run.toml", _run_toml(manifest))
        _publish(work / OUT, run)
        report(run, manifest)
        console.say(
            f"prepared {run.prep} in {console.duration(time.perf_counter() - start)} (preset"
            f" {manifest.preset}, fingerprint {manifest.fingerprint[:12]})"
        )


def _key(request: Request, identity: dict[str, Any]) -> str:
    """Return the key of the work: a checksum of the text's identity, the settings and the tools."""
    corpus, settings = request.own_corpus, request.settings
    inputs = {
        "identity": identity,
        "settings": settings.model_dump(exclude=MACHINE),
        "tools": tools((corpus.src, corpus.tgt), settings),
        "format": WORK_FORMAT,
    }
    return files.text_sha256(json.dumps(inputs, sort_keys=True, default=str))


def _checked(corpus: Corpus, request: Request, inputs: Inputs, raw: Path) -> Corpus:
    """Check all files of a corpus, and return the corpus as plain text, one sentence a line."""
    if request.dataset:
        inputs.check(corpus.sets)
    corpus = rewritten(corpus, inputs, raw)
    inputs.warn_of_copies(corpus.sets)
    names = {text.name for text in request.own_corpus.sets}
    own_sets = [text for text in corpus.sets if text.name in names]
    check_samples(own_sets, (corpus.src, corpus.tgt), request.settings)
    return corpus


def _say_what_is_chosen(request: Request) -> None:
    own = request.own_corpus
    for side, language in zip(SIDES, (own.src, own.tgt), strict=True):
        name = unspaced(language)
        if name and tokenizer_name(side, language, request.settings) != "raw":
            console.say(f"{name} has no spaces between words: by default characters are its words")
    for doubt in request.doubts:
        console.warn(doubt)
    for message in (request.note, request.text_model.message):
        if message:
            console.say(message)


def _up_to_date(run: Run, old: Manifest, identity: dict[str, Any], settings: PrepSettings) -> bool:
    """True if the prep folder holds the corpus of the request; False if a file is missing.

    Raises: ConfigError if the folder holds another corpus; DataError if a file has changed.
    """
    before = {"source": old.source, "prep": old.settings.model_dump(exclude=MACHINE)}
    after = {"source": identity, "prep": settings.model_dump(exclude=MACHINE)}
    different = changes(flat(before), flat(after))
    if different:
        known = tuple(f"source.sets.{text.name}." for text in old.sets)
        added = ("source.sets.", "source.resources.")
        is_valid = settings.drop_overlap == "none" and all(
            key == "prep.test"
            or (key.startswith(added) and not key.startswith(known) and was == "-")
            for key, (was, _) in different.items()
        )
        raise ConfigError(
            f"this run was prepared differently ({counted(len(different), 'difference')}:"
            " old -> new)",
            where="\n  ".join([str(run.prep / MANIFEST), *_shown(different, ": ")[:12]]),
            hint="prepare another run with --run DIR, or this one again with --force"
            + is_valid * "; only test sets differ, so its trained systems stay valid",
        )
    for name in old.files:
        if not (run.prep / name).is_file():
            console.warn(f"{run.prep / name} is missing; preparing again")
            return False
    written = (run.prep / MANIFEST).stat().st_mtime
    run.check_files(
        {n: sha for n, sha in old.files.items() if (run.prep / n).stat().st_mtime > written}
    )
    now = tools((old.src, old.tgt), settings)
    newer = changes({name: old.tools.get(name) for name in now}, now)
    if newer:
        console.warn(
            f"{run.prep} was prepared with other versions ({', '.join(_shown(newer))}); --force"
            " prepares it again"
        )
    console.say(
        f"{run.prep} is up to date ({old.dataset}, fingerprint {old.fingerprint[:12]}); --force"
        " prepares it again"
    )
    return True


def _shown(different: dict[str, tuple[str, str]], after_key: str = " ") -> list[str]:
    """Return changes as text. Long values, such as checksums, are cut."""
    return [
        after_key.join([key, " -> ".join(v if len(v) <= 40 else v[:12] + "…" for v in values)])
        for key, values in different.items()
    ]


def _note_preset(run: Run, preset: str, seed: int | None) -> None:
    """Record another preset for systems that will be trained. The text stays the same."""
    with locked(run.path, "prep"), run.recorded("prep", seed=seed):
        old = load(Manifest, run.prep / MANIFEST)
        manifest = old.model_copy(update={"preset": preset})
        manifest.write(run.prep / MANIFEST)
        write_toml(run.path / "run.toml", _run_toml(manifest))
    console.say(f"preset {old.preset} -> {preset}, for the systems that you train from now on")


@contextlib.contextmanager
def _explaining(run: Run, work: Path) -> Iterator[None]:
    """Say after Ctrl-C what is kept, and turn an OSError into an EnvironmentProblem."""
    try:
        yield
    except KeyboardInterrupt:
        message = f"the finished steps are in {work}; the same command continues"
        raise KeyboardInterrupt(message if work.exists() else "nothing was kept") from None
    except OSError as error:
        raise files.unwritable(Path(error.filename or run.path), error) from error


def _owned(prep: Path) -> Collection[str]:
    """Return the names of nmtkit's own files in a prep folder."""
    with contextlib.suppress(DataError):
        hashes = load(Manifest, prep / MANIFEST).files
        # Binary files are not read: nobody edits them, and they may have gigabytes.
        texts = {name: hashes[name] for name in hashes if not name.endswith((".bin", ".idx"))}
        return {MANIFEST, *STORES, *folders.unchanged(prep, texts)}
    return PREP


def _publish(complete: Path, run: Run) -> None:
    """Replace the prep folder by the finished one."""
    if complete.stat().st_dev != run.path.stat().st_dev:  # the work folder is on another disk
        complete = Path(shutil.move(complete, folders.temporary_name(run.prep, "tmp")))
    folders.publish(complete, run.prep, _owned)


def _tidy(run: Run, work: Path) -> None:
    """Remove what a killed call has left beside the finished folder, and say so."""
    with contextlib.suppress(NmtkitError, OSError), locked(run.path, "prep"):
        folders.recover(run.prep, _owned)
        remove_left(work)


def _warn_of_systems(run: Run, old: Manifest | None, new: Manifest) -> None:
    names = run.system_names()
    before = old.fingerprint if old else "none"
    if names and before != new.fingerprint:
        console.warn(
            f"the corpus changes (fingerprint {before[:12]} -> {new.fingerprint[:12]}): the systems"
            f" {', '.join(names)} in {run.path / 'systems'} belong to the old one and will be"
            " refused; train them again with --force, or get the old corpus back by preparing it"
            " again as it was"
        )


def _run_toml(manifest: Manifest) -> dict[str, Any]:
    described = {"dataset", "src", "tgt", "preset", "fingerprint"}
    drawn = {key: manifest.source[key] for key in ("size", "seed") if key in manifest.source}
    return manifest.model_dump(include=described) | drawn | {"prep": manifest.settings.model_dump()}
