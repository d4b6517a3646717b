"""Checkpoints: folders `step-00012000` that exist completely or not at all, read without pickle.

A folder holds model.safetensors, optimizer.safetensors, state.json and, written last, manifest.json
with the size and SHA-256 of these files, which are checked when they are read. A folder is written
under a temporary name, flushed and renamed. Only then are old folders removed, each renamed first.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError

from nmtkit import console, files, folders
from nmtkit.errors import (
    CheckpointError,
    DataError,
    EnvironmentProblem,
    NmtkitError,
    counted,
    remedy,
)
from nmtkit.owned_files import CHECKPOINT, MANIFEST, OPTIMIZER, STATE, WEIGHTS
from nmtkit.records import BestCheckpoint, CheckpointManifest, FileFacts, TranslationMeta, load
from nmtkit.run import Run, System

if TYPE_CHECKING:  # a report only asks which checkpoints there are: torch comes with tensors
    from torch import Tensor

    Tensors = Mapping[str, Tensor]

PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".npz"}
PICKLED = (
    "{} may be a pickle, which nmtkit never loads (it can run code); "
    "convert it to safetensors with the tool that wrote it"
)
AGAIN = CheckpointManifest.again
R = TypeVar("R")


def save(
    folder: Path,
    step: int,
    weights: Tensors,
    optimizer: Tensors,
    state: dict[str, Any],
    about: dict[str, Any],
) -> Path:
    """Write a checkpoint completely or not at all.

    Args:
        folder: the system's checkpoints folder.
        step: updates done.
        weights, optimizer: tensors by name, each tied tensor once.
        state: plain values that continue the training.
        about: plain values for the manifest: variant, fingerprints of corpus and vocabulary.
    Returns: the checkpoint's folder.
    Raises: EnvironmentProblem if the disk is full or not writable; then no checkpoint is touched.
    """
    final = folder / f"step-{step:08d}"
    hint = "free some space, or bring the folder back; the same command then continues"
    try:
        files.check_place(final)
        # Do not make its parents: if the system's folder has disappeared, saving must fail.
        folder.mkdir(exist_ok=True)
        with folders.writing_folder(final, CHECKPOINT, hint) as new:
            write_tensors(new / WEIGHTS, weights)
            write_tensors(new / OPTIMIZER, optimizer)
            (new / STATE).write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
            paths = sorted(new.iterdir())
            facts = {p.name: FileFacts(p.stat().st_size, files.sha256(p)) for p in paths}
            manifest = CheckpointManifest(format=1, step=step, **about, files=facts)
            manifest.write(new / MANIFEST)
            _set_damaged_aside(final)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write checkpoint {final.name}: {error.strerror or error}",
            where=folder,
            hint=remedy(error, hint),
        ) from error
    return final


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file, with the permissions of the user's other files.

    Raises: OSError.
    """
    from safetensors.torch import save_file

    plain = {key: t.detach().cpu().contiguous() for key, t in tensors.items()}
    try:
        save_file(plain, path, {"format": "pt"})
    except SafetensorError as error:  # only its text has the error's number
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise OSError(str(error)) from error
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    files.give_usual_mode(path)


def _set_damaged_aside(path: Path) -> None:
    """Give a damaged checkpoint another name, so that it is kept."""
    if path.exists():
        try:
            _verify(path)
        except CheckpointError as error:
            damaged = path.with_name(f".damaged-{path.name}-{time.time_ns()}")
            console.warn(f"{error.message}; {path} is now {damaged.name}")
            os.replace(path, damaged)


def _remove(path: Path) -> None:
    """Remove a renamed folder, its manifest first: without a manifest it is no checkpoint."""
    with contextlib.suppress(OSError):
        (path / MANIFEST).unlink(missing_ok=True)
        folders.remove_folder(path, CHECKPOINT, path.parent)


def step_of(path: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(path.name.removeprefix("step-"))


def candidates(folder: Path) -> list[Path]:
    """Return all checkpoint folders, valid or not, oldest first."""
    paths = (path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name))
    return sorted(paths, key=step_of)


def read_manifest(path: Path) -> CheckpointManifest:
    """Return a checkpoint's manifest after comparing the sizes of the files with it.

    Raises: CheckpointError if the checkpoint is not nmtkit's, incomplete, truncated, or of another
        format.
    """
    if path.is_file() or path.suffix in PICKLES:
        raise CheckpointError(
            f"not a checkpoint folder of nmtkit: {path}",
            hint=_hint(path),
        )
    try:
        manifest = load(CheckpointManifest, path / MANIFEST)
    except DataError as error:
        raise CheckpointError(
            f"incomplete checkpoint: {MANIFEST} cannot be read ({error.message})",
            where=path / MANIFEST,
            hint=_hint(*path.glob("*")),
        ) from None
    for name, facts in manifest.files.items():
        problem = ""
        if not (path / name).is_file():
            problem = "is missing"
        elif (actual := (path / name).stat().st_size) != facts.bytes:
            problem = f"has {actual} bytes instead of {facts.bytes}"
        if problem:
            raise CheckpointError(
                f"truncated checkpoint: {name} {problem}",
                where=path,
                hint=AGAIN,
            )
    return manifest


def _hint(*paths: Path) -> str:
    """Return the hint for files that are no checkpoint."""
    for path in paths:
        if path.suffix in PICKLES:
            return PICKLED.format(path.name)
    return AGAIN


def _verify(path: Path, *names: str) -> None:
    """Compare files of a checkpoint, by default all, with the hashes of its manifest.

    Raises: CheckpointError as `read_manifest`, or one that names the first file that differs.
    """
    facts = read_manifest(path).files
    for name in names or facts:
        if name not in facts or files.sha256(path / name) != facts[name].sha256:
            raise CheckpointError(
                f"damaged checkpoint: {name} does not have the hash of its manifest",
                where=path,
                hint=AGAIN,
            )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file.

    Raises: CheckpointError if the file has another format, for example a pickle.
    """
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        if "could not determine the shape" in str(error):  # torch hides an interrupt this way
            raise KeyboardInterrupt from None
        raise CheckpointError(
            f"{path.name} is not a safetensors file: {error}",
            where=path.parent,
            hint=AGAIN if isinstance(error, OSError) else PICKLED.format(path.name),
        ) from None


def load_weights(path: Path, checked: bool = False) -> dict[str, Tensor]:
    """Return the weights of a checkpoint, on the CPU.

    Args:
        path: the checkpoint's folder.
        checked: True if `choose` has just compared the hash; hashing a big file again takes
            minutes.
    Raises: CheckpointError if the checkpoint is damaged or not nmtkit's.
    """
    if checked:
        read_manifest(path)
    else:
        _verify(path, WEIGHTS)
    return _read_tensors(path / WEIGHTS)


def load_training(path: Path, record: type[R]) -> tuple[dict[str, Tensor], dict[str, Tensor], R]:
    """Return weights, optimiser tensors and the state (of type `record`), to resume a training.

    Raises: CheckpointError if a file is damaged.
    """
    _verify(path, STATE, WEIGHTS, OPTIMIZER)
    try:
        state = load(record, path / STATE)
    except DataError as error:
        raise CheckpointError(error.message, where=path / STATE, hint=AGAIN) from None
    return _read_tensors(path / WEIGHTS), _read_tensors(path / OPTIMIZER), state


def _passes(check: Callable[..., object], path: Path, *names: str) -> bool:
    """True if a checkpoint passes a check; otherwise a warning gives the reason."""
    try:
        check(path, *names)
    except CheckpointError as error:
        console.warn_once(f"skipping {path}: {error.message}")
        return False
    return True


def find_checkpoints(system: System) -> list[Path]:
    """Return the checkpoints whose files have the right sizes, oldest first; warn of the rest."""
    return [path for path in candidates(system.checkpoints) if _passes(read_manifest, path)]


def choose(system: System, average: int | None = None) -> list[Path]:
    """Return the checkpoints whose mean is the weights of a system, for every stage.

    Args:
        system: the system.
        average: 1 = only the best checkpoint (by best.json; without it the newest); k = the last k
            that are `train.checkpoint_every` updates apart, oldest first; None = the system's
            setting search.average.
    Returns: checkpoints whose weights have the hash of their manifest. A warning names damaged
        checkpoints. Another warns if there are fewer than k; if there are not two that are
        `train.checkpoint_every` updates apart, only the best checkpoint is returned.
    Raises: CheckpointError if no checkpoint is valid; DataError if best.json is damaged, or the
        checkpoints of a trained system are gone.
    """
    average = average or system.searching().average
    paths = _selected(system, average, lambda path: _passes(_verify, path, WEIGHTS))
    if not paths:
        if candidates(system.checkpoints):
            message, hint = f"no valid checkpoint of '{system.name}'", system.train_again
        elif was_trained(system):
            raise lost(system)
        else:
            message = f"system '{system.name}' has no checkpoint yet"
            hint = f"first: {system.train_command}"
        raise CheckpointError(message, where=system.checkpoints, hint=hint)
    if len(paths) < average:
        console.warn(
            f"system '{system.name}' has {counted(len(paths), 'checkpoint')} to average, not"
            f" {average}; train.keep_checkpoints says how many are kept,"
            " train.checkpoint_every how far they are apart"
        )
    elif average == 1 and (best := _named_best(system)) not in (None, paths[0]):
        console.warn(
            f"the best checkpoint {best.name} is missing or damaged; taking the newest,"
            f" {paths[0].name}"
        )
    return paths


def was_trained(system: System) -> bool:
    """True if a system once had a checkpoint, whether or not it still has one."""
    stored = system.read_record()
    traces = "best.json", "translate/*/hyp.txt", "export/*/nmtkit.json"
    return bool(stored and stored.trained) or any(
        path for pattern in traces for path in system.path.glob(pattern)
    )


def lost(system: System) -> DataError:
    """Return the error for a trained system without a checkpoint."""
    return DataError(
        f"system '{system.name}' was trained, but its checkpoints are gone",
        where=system.checkpoints,
        hint="bring them back, or train a second system with --system;"
        f" {system.train_command} --force begins anew and removes the log, the curves,"
        " translations and exports of this one",
    )


def current(system: System, average: int | None = None) -> dict[str, str]:
    """Return the `digests` of the checkpoints that `choose` would return; {} if there are none.

    Tells if a stored result is up to date. It reads no weights and does not notice damaged ones.
    """
    if not system.config.is_file():
        return {}
    try:
        average = average or system.searching().average
        return digests(_selected(system, average, lambda path: _passes(read_manifest, path)))
    except NmtkitError as error:
        console.warn_once(f"{error.where or system.path}: {error.message}")
        return {}


def have_changed(system: System, used: dict[str, str]) -> bool:
    """True if a system has other weights now than those used for a result, by their `digests`.

    False for a system without checkpoints, as in a run directory that was passed on without them.
    """
    return bool(candidates(system.checkpoints)) and current(system) != used


def outdated(run: Run, translation: TranslationMeta) -> bool:
    """True if a system that translated, alone or in an ensemble, has other weights now."""
    used: dict[str, dict[str, str]] = {}
    for checkpoint in translation.checkpoints:
        used.setdefault(checkpoint.system, {})[checkpoint.name] = checkpoint.sha256
    # In an ensemble each system averaged as many checkpoints as its own settings say, or as the
    # settings of the translation say.
    averages = {translation.settings.get("average"), *[None] * (len(used) - 1)}
    return any(
        all(now and now != each for now in (current(run.system(name), n) for n in averages))
        for name, each in used.items()
    )


def digests(paths: Sequence[Path]) -> dict[str, str]:
    """Return the SHA-256 of the weights of each checkpoint, by the name of its folder."""
    return {path.name: read_manifest(path).files[WEIGHTS].sha256 for path in paths}


def _selected(system: System, average: int, usable: Callable[[Path], bool]) -> list[Path]:
    """Return the last `average` usable checkpoints that are evenly spaced, oldest first.

    If `average` is 1, or if there are not two, return the best checkpoint, or else the newest.
    """
    best = _named_best(system)
    newest = [path for path in reversed(candidates(system.checkpoints)) if path != best]
    spaced = _evenly_spaced(system) if average > 1 else []
    selected = list(itertools.islice(filter(usable, spaced), average))
    single = filter(usable, [best, *newest] if best and best.is_dir() else newest)
    return selected[::-1] if len(selected) > 1 else list(itertools.islice(single, 1))


def _evenly_spaced(system: System) -> list[Path]:
    """Return the last checkpoints `train.checkpoint_every` updates apart, newest first.

    They end at the first gap, because a checkpoint before a gap is an old best. A new best, the end
    of a training and a stop save checkpoints at other steps too.
    """
    every = system.training().checkpoint_every
    paths = [path for path in candidates(system.checkpoints) if step_of(path) % every == 0][::-1]
    return [path for i, path in enumerate(paths) if step_of(path) == step_of(paths[0]) - i * every]


def _named_best(system: System) -> Path | None:
    """Return the checkpoint that best.json names; None before the first validation.

    Raises: DataError if the file is damaged, because other weights would give other results.
    """
    path = system.path / "best.json"
    return system.checkpoints / load(BestCheckpoint, path).checkpoint if path.is_file() else None


def prune(folder: Path, keep: Iterable[str]) -> None:
    """Remove all complete checkpoints except those with the names `keep`.

    Each is renamed first, so that no checkpoint is ever incomplete under its own name.
    """
    names = set(keep)
    files.check_place(folder)
    for path in candidates(folder):
        if path.name not in names and (path / MANIFEST).is_file():
            doomed = folders.temporary_name(path, "old")
            with contextlib.suppress(OSError):
                os.replace(path, doomed)
                _remove(doomed)


def clean(folder: Path) -> None:
    """Tidy up after a killed process: remove incomplete checkpoints, and give a complete checkpoint
    that was renamed its name back.

    The caller holds the system's lock.
    """
    files.check_place(folder)
    for kind, state in (("tmp", "half-written"), ("old", "half-removed")):
        start = f"{files.UNFINISHED}{kind}-"
        for path in folder.glob(f"{start}step-*"):
            final = folder / "-".join(path.name.removeprefix(start).split("-")[:2])
            if kind == "old" and (path / MANIFEST).is_file() and not final.exists():
                os.replace(path, final)
            else:
                if not any(map(folders.is_still_open, path.rglob("*"))):
                    console.say(f"removing {path.name}, left {state} by a process that was stopped")
                _remove(path)
