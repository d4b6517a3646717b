"""The stage `prep`: what was asked for, whether it is there already, and the prep folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmtkit import console, files, settings
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem, NmtkitError
from nmtkit.prep import check
from nmtkit.prep.corpora import generated, published, table
from nmtkit.prep.parallel import cores
from nmtkit.prep.pipeline import Pipeline
from nmtkit.prep.sources import Corpus, own_files
from nmtkit.run import Run, locked, write_toml
from nmtkit.settings import PrepSettings

OWN_PRESET = "base"
SEED = 1
"""Of a generated corpus, unless another one is asked for."""


@dataclass(frozen=True)
class _Request:
    """What to prepare.

    `identity` says what the text is, given the files read the last time and the settings, so that equal requests give equal corpora.
    `find` finds or downloads the files; what it returns makes them readable, in a folder beside the one in the making if `writes`.
    """

    name: str
    preset: str
    identity: Callable[[dict[str, Any], PrepSettings], dict[str, Any]]
    find: Callable[[PrepSettings], Callable[[Path], Corpus]]
    weak: dict[str, Any] = field(default_factory=dict)
    """Settings that a preset overrides."""
    strong: dict[str, Any] = field(default_factory=dict)
    """Settings that override those of the preset."""
    writes: bool = True


def prep(
    dataset: str | None = None,
    *,
    train: tuple[Path, Path] | None = None,
    dev: tuple[Path, Path] | None = None,
    test: list[str] | None = None,
    src: str | None = None,
    tgt: str | None = None,
    from_dir: Path | None = None,
    size: int | None = None,
    seed: int = SEED,
    jobs: int = 0,
    preset: str | None = None,
    config: Path | None = None,
    assignments: list[str] | None = None,
    run_dir: Path | None = None,
    force: bool = False,
) -> Run:
    """Prepare a corpus: clean, tokenize, truecase, BPE, vocabulary, store.

    Args:
        dataset: a registered name; for own files, a name of the person's (None: the language pair).
        train, dev: own files, source and target.
        test: own test sets, "SRC,TGT[,TGT…]" each.
        src, tgt: languages of own files (None: from their suffix).
        from_dir: looked through for a data set's files before the network.
        size, seed: of a generated corpus.
        jobs: worker processes, 0 = one a core; the output doesn't depend on it.
        preset, config, assignments: settings, weakest first, over those of the data set.
        run_dir: the run; None: runs/NAME.
        force: prepare again whatever is there.
    Returns: the run.
    Raises: ConfigError, DataError, EnvironmentProblem; then nothing of the prep folder has changed.
    """
    own = train is not None or dev is not None or bool(test)
    request = _own(dataset, train, dev, test or [], src, tgt, preset) if own else _registered(dataset, from_dir, size, seed, preset, src, tgt)
    if own:
        _refuse_ignored("own files are taken as they are", from_dir, size, seed)
    chosen = _settings(request, preset, config, assignments or [])
    run = _run_at(run_dir or Path("runs") / request.name)
    console.say(f"run {run.path}")
    old = _manifest(run)
    identity = request.identity(old.get("inputs", {}), chosen)
    if old and not force and _up_to_date(run, old, identity, chosen):
        return run
    strict = chosen.on_bad_utf8 == "error"
    read = request.find(chosen)
    corpus = None if request.writes else read(Path())
    facts = {} if corpus is None else check.check_sets(corpus.sets, strict)
    with _run_folder(run), locked(run.path, "prep"), run.recorded("prep", seed=identity.get("seed")), _work_folder(run) as work:
        start = time.perf_counter()
        if corpus is None:
            raw = work.with_name(work.name + "-raw")
            corpus = read(raw)
            facts = check.check_sets(corpus.sets, strict, raw)
        pipeline = Pipeline(work, corpus, facts, chosen, jobs or cores(), identity)
        manifest = pipeline.run()
        _warn_of_systems(run, old, manifest)
        _publish(work, run.prep)
        write_toml(run.path / "run.toml", _run_toml(manifest, identity, seed))
        _report(run, manifest, time.perf_counter() - start)
    return run


def _run_at(folder: Path) -> Run:
    """The run in a folder that is there or can be made; a DataError if it is a file."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file, not a run folder", where="--run", hint="name a folder, or a new one, with --run DIR")
    return Run(folder)


def _refuse_ignored(what: str, from_dir: Path | None, size: int | None, seed: int) -> None:
    """Refuse options that would have no effect.

    Raises: ConfigError naming the first.
    """
    generated_only = "generated corpora such as demo"
    for option, given, use in (
        ("--from-dir", from_dir is not None, "data sets that are downloaded"),
        ("--size", size is not None, generated_only),
        ("--seed", seed != SEED, generated_only),
    ):
        if given:
            raise ConfigError(f"{what}: {option} has no effect", where=option, hint=f"leave it out; it is for {use}")


def _own(
    name: str | None,
    train: tuple[Path, Path] | None,
    dev: tuple[Path, Path] | None,
    test: list[str],
    src: str | None,
    tgt: str | None,
    preset: str | None,
) -> _Request:
    if name in table.registered():
        hint = "for own files take another name; for the data set leave out --train, --dev and --test"
        raise ConfigError(f"'{name}' is a registered data set", where="--train, --dev, --test", hint=hint)
    corpus = own_files(name, train, dev, test, src, tgt, preset or OWN_PRESET)

    def identity(known: dict[str, Any], chosen: PrepSettings) -> dict[str, Any]:
        sets = [{"name": s.name, "split": s.split, **{k: [_known_sha256(p, known) for p in v] for k, v in s.sides().items()}} for s in corpus.sets]
        return _without_choice("own files", chosen, {"dataset": corpus.name, "src": corpus.src, "tgt": corpus.tgt, "sets": sets})

    return _Request(corpus.name, corpus.preset, identity, lambda chosen: lambda folder: corpus, writes=False)


def _without_choice(what: str, chosen: PrepSettings, identity: dict[str, Any]) -> dict[str, Any]:
    """The identity of a corpus whose sets cannot be chosen.

    Raises: ConfigError if they are.
    """
    if chosen.dev or chosen.test:
        hint = "they choose among the sets of a data set that is downloaded; own files: --dev SRC TGT --test SRC,TGT"
        raise ConfigError(f"prep.dev and prep.test have no effect on {what}", where="--set", hint=hint)
    return identity


def _known_sha256(path: Path, known: dict[str, Any]) -> str:
    """The checksum of a file, taken from the manifest where size and time of the file haven't changed."""
    with contextlib.suppress(OSError, KeyError, TypeError):
        facts, status = known[str(path)], path.stat()
        if (facts["size"], facts["mtime_ns"]) == (status.st_size, status.st_mtime_ns):
            return str(facts["sha256"])
    files.open_binary(path).close()  # says what is wrong with the path
    return files.sha256(path)


def _registered(
    name: str | None, from_dir: Path | None, size: int | None, seed: int, preset: str | None, src: str | None, tgt: str | None
) -> _Request:
    if name is None:
        hint = "name a data set (nmtkit datasets lists them), or own files: --train SRC TGT --dev SRC TGT"
        raise ConfigError("nothing to prepare", where="nmtkit prep", hint=hint)
    dataset = table.find(name)
    if (src or dataset.src, tgt or dataset.tgt) != (dataset.src, dataset.tgt):
        hint = "these are for own files; the name of a data set says its direction"
        raise ConfigError(f"'{name}' is {dataset.src}-{dataset.tgt}", where="--src, --tgt", hint=hint)
    if dataset.entry.evaluation:
        hint = f"analyses read it; `nmtkit datasets --fetch {name}` brings it here"
        raise ConfigError(f"'{name}' is an evaluation set, nothing to train on", where="nmtkit prep", hint=hint)
    preset = preset or dataset.entry.preset
    weak, strong = dataset.settings(preset)
    same = {"dataset": name, "src": dataset.src, "tgt": dataset.tgt}
    if dataset.entry.generator:
        _refuse_ignored(f"'{name}' is generated", from_dir, None, SEED)
        options = {"size": size or dataset.entry.train_pairs, "seed": seed}

        def generate(folder: Path) -> Corpus:
            return generated.corpus(dataset, folder, preset, **options)

        return _Request(name, preset, lambda known, chosen: _without_choice(name, chosen, same | options), lambda chosen: generate, weak, strong)
    _refuse_ignored(f"'{name}' is not generated", None, size, seed)
    return _Request(
        name,
        preset,
        lambda known, chosen: same | {"resources": published.identity(dataset, chosen)},
        lambda chosen: published.find(dataset, chosen, preset, from_dir),
        weak,
        strong,
    )


def _settings(request: _Request, preset: str | None, config: Path | None, assignments: list[str]) -> PrepSettings:
    """The settings of prep: default, data set, preset, file, --set."""
    given = settings.parse_set(assignments)
    for section, values in given.items():
        if section != "prep":
            hint = "give it to the stage it is for (train, translate)"
            raise ConfigError(f"prep doesn't read {section}.{next(iter(values))}", where="--set", hint=hint)
    layers = [
        {"prep": request.weak},
        settings.load_preset(request.preset),
        {"prep": request.strong},
        settings.load_config(config) if config else {},
        given,
    ]
    return settings.build(PrepSettings, settings.merge(*layers).get("prep", {}), "prep")


def _manifest(run: Run) -> dict[str, Any]:
    """The manifest of what is prepared; empty if nothing is, or if it can't be read."""
    with contextlib.suppress(DataError):
        return run.manifest()
    return {}


def _up_to_date(run: Run, old: dict[str, Any], identity: dict[str, Any], chosen: PrepSettings) -> bool:
    """Whether the prep folder holds what is asked for.

    Returns: False if it is damaged and must be made again.
    Raises: ConfigError if it holds something else.
    """
    before = _flat({"source": old.get("source", {}), "prep": settings.build(PrepSettings, {}, "prep").model_dump() | old.get("settings", {})})
    after = _flat({"source": identity, "prep": chosen.model_dump()})
    different = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    if different:
        lines = [f"{key}: {_short(before.get(key))} -> {_short(after.get(key))}" for key in different[:12]]
        raise ConfigError(
            f"this run was prepared differently ({len(different)} difference{'s' * (len(different) > 1)}: old -> new)",
            where="\n  ".join([str(run.prep), *lines]),
            hint="prepare another run with --run DIR, or this one again with --force",
        )
    missing = [name for name in old.get("files", {}) if not (run.prep / name).is_file()]
    if missing:
        console.warn(f"{run.prep / missing[0]} is missing; preparing again")
        return False
    console.say(f"{run.prep} is up to date ({old['dataset']}, fingerprint {old['fingerprint'][:12]}); --force prepares it again")
    return True


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(values, dict):
        return {key: value for name, part in values.items() for key, value in _flat(part, f"{prefix}.{name}" if prefix else str(name)).items()}
    if isinstance(values, list) and values and isinstance(values[0], dict):
        return {key: value for part in values for key, value in _flat(part, f"{prefix}.{part.get('name', '')}").items()}
    return {prefix: values}


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "-" if value is None else text if len(text) <= 40 else text[:12] + "…"


@contextlib.contextmanager
def _run_folder(run: Run) -> Iterator[None]:
    """Leave no run folder behind if this call made it and failed; a machine that can't write is said plainly."""
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
            raise EnvironmentProblem(what, hint="free some space or choose another --run folder") from error
        raise


@contextlib.contextmanager
def _work_folder(run: Run) -> Iterator[Path]:
    """A fresh folder beside the prep folder; what a killed call left is cleared away first (the run is locked)."""
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


def _warn_of_systems(run: Run, old: dict[str, Any], new: dict[str, Any]) -> None:
    names = [system.name for system in run.systems()]
    if names and old.get("fingerprint") != new["fingerprint"]:
        change = f"fingerprint {str(old.get('fingerprint'))[:12]} -> {new['fingerprint'][:12]}"
        console.warn(
            f"the corpus changes ({change}): the systems {', '.join(names)} in {run.path / 'systems'} belong to the old one and will be refused; "
            "train them again with --force, or get the old corpus back by preparing it again as it was"
        )


def _run_toml(manifest: dict[str, Any], identity: dict[str, Any], seed: int) -> dict[str, Any]:
    values = {key: manifest[key] for key in ("dataset", "src", "tgt", "preset", "fingerprint")}
    return values | {key: identity[key] for key in ("size", "seed") if key in identity} | {"prep": manifest["settings"]}


def _report(run: Run, manifest: dict[str, Any], seconds: float) -> None:
    """A short table of what was kept, dropped and changed."""
    cleaning, vocabulary, corpus = manifest["cleaning"], manifest["vocabulary"], manifest["corpus"]
    console.say(f"training pairs: {cleaning['pairs_in']:,} in, {cleaning['pairs_kept']:,} kept ({cleaning['pairs_kept'] / cleaning['pairs_in']:.2%})")
    for reason, count in cleaning["dropped"].items():
        console.say(f"  dropped: {reason:<18} {count['pairs']:>9,}  (source {count['src']:,}, target {count['tgt']:,})")
    for side, name in (("src", "source"), ("tgt", "target")):
        for kind, count in cleaning["changed"][side].items():
            console.say(f"  changed: {kind:<18} {count:>9,}  in the {name}")
    sizes = f"{vocabulary['src']:,}" if vocabulary["shared"] else f"{vocabulary['src']:,} + {vocabulary['tgt']:,}"
    console.say(f"{corpus['src_tokens']:,} + {corpus['tgt_tokens']:,} subwords, vocabulary {sizes}{' (shared)' * vocabulary['shared']}")
    for entry in manifest["sets"][1:]:
        shares = (f"{name} {entry[f'{side}_unknown'] / max(entry[f'{side}_tokens'], 1):.2%}" for side, name in (("src", "source"), ("tgt", "target")))
        console.say(f"  {entry['split']:<5} {entry['name']}: {entry['lines']:,} lines, unknown subwords {', '.join(shares)}")
    console.say(f"prepared {run.prep} in {console.duration(seconds)} (fingerprint {manifest['fingerprint'][:12]})")
