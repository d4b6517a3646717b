"""Checkpoints: folders `step-00012000` that exist completely or not at all, without pickle, and
checked by hash when read.

A folder holds model.safetensors, optimizer.safetensors, state.json and, written last, manifest.json
with the size and SHA-256 of the others. It is written under a temporary name, flushed, renamed;
only then are old ones removed (by renaming them first).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError

from nmtkit import console, files
from nmtkit.errors import CheckpointError, DataError, EnvironmentProblem, NmtkitError, counted
from nmtkit.records import BestCheckpoint, CheckpointManifest, FileFacts, load
from nmtkit.run import System
from nmtkit.settings import SearchSettings, TrainSettings, build

# torch is imported where tensors are read or written: a report only asks which checkpoints a system
# has
if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]

WEIGHTS, OPTIMIZER, STATE, MANIFEST = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "manifest.json",
)
PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".npz"}
AGAIN = (
    "move its folder away, and another checkpoint is taken; or train again: nmtkit train --force"
)


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
        weights, optimizer: tensors by name, tied ones once.
        state: plain values that continue the training.
        about: plain values for the manifest: variant, fingerprints of corpus and vocabulary.
    Returns: the checkpoint's folder.
    Raises: EnvironmentProblem if the disk is full or not writable; then no checkpoint is touched.
    """
    from safetensors.torch import save_file

    final = folder / f"step-{step:08d}"
    temporary = folder / f".tmp-{final.name}-{os.getpid()}"
    size = sum(
        t.numel() * t.element_size() for tensors in (weights, optimizer) for t in tensors.values()
    )
    try:
        folder.mkdir(
            exist_ok=True
        )  # not its parents: a system whose folder has gone is not begun anew unseen
        if shutil.disk_usage(folder).free < 2 * size:
            raise OSError(
                f"less than {2 * size / 2**20:,.0f} MiB free, which is kept ready for a checkpoint"
                f" of {size / 2**20:,.0f} MiB"
            )
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name, tensors in ((WEIGHTS, weights), (OPTIMIZER, optimizer)):
            save_file(
                {k: t.detach().cpu().contiguous() for k, t in tensors.items()},
                temporary / name,
                {"format": "pt"},
            )
        (temporary / STATE).write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
        parts = [temporary / name for name in (WEIGHTS, OPTIMIZER, STATE)]
        described = {
            path.name: FileFacts(path.stat().st_size, _synced_hash(path)) for path in parts
        }
        CheckpointManifest(format=1, step=step, **about, files=described).write(
            temporary / MANIFEST
        )
        files.sync_folder(temporary)
        _give_name(temporary, final)
    except (OSError, SafetensorError, EnvironmentProblem) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        what = getattr(error, "strerror", None) or error
        hint = (
            "free some space, or bring the folder back; the same command continues from the last"
            " checkpoint"
        )
        raise EnvironmentProblem(
            f"cannot write checkpoint {final.name}: {what}", where=folder, hint=hint
        ) from error
    return final


def _give_name(temporary: Path, final: Path) -> None:
    """Rename a complete checkpoint; one that has the name already is set aside first, and only
    removed once the new one is there.
    """
    old: Path | None = None
    if final.exists():
        try:
            manifest = read_manifest(final)
            for name in manifest.files:
                _check_hash(final, name, manifest)
            old = final.with_name(f".old-{final.name}-{os.getpid()}")
        except CheckpointError as error:
            old = final.with_name(f".damaged-{final.name}-{time.time_ns()}")
            console.warn(f"{error.message}; {final} is now {old.name}")
        os.replace(final, old)
    os.replace(temporary, final)
    files.sync_folder(final.parent)
    if old is not None and old.name.startswith(".old"):
        _remove(old)


def _remove(path: Path) -> None:
    """Empty a folder that was set aside, its manifest first: without it, it is known for
    rubbish.
    """
    with contextlib.suppress(OSError):
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)


def _synced_hash(path: Path) -> str:
    """Flush a file to disk and hash what was written."""
    with open(path, "rb+") as stream:
        os.fsync(stream.fileno())
        return hashlib.file_digest(stream, "sha256").hexdigest()


def step_of(path: Path) -> int:
    """The step in a checkpoint's name."""
    return int(path.name.removeprefix("step-"))


def candidates(folder: Path) -> list[Path]:
    """All checkpoint folders, valid or not, oldest first."""
    return sorted(
        (p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name)), key=step_of
    )


def read_manifest(path: Path) -> CheckpointManifest:
    """A checkpoint's manifest, after a look at the sizes of its files.

    Raises: CheckpointError if it is no checkpoint of nmtkit, incomplete, truncated, or of another
        format.
    """
    if path.is_file() or path.suffix in PICKLES:
        raise CheckpointError(
            f"not a checkpoint folder of nmtkit: {path}", hint=_foreign_hint(path)
        )
    try:
        manifest = load(CheckpointManifest, path / MANIFEST)
    except DataError as error:
        found = next((p for p in path.glob("*") if p.suffix in PICKLES), path)
        raise CheckpointError(
            f"incomplete checkpoint: {error.message}",
            where=path / MANIFEST,
            hint=_foreign_hint(found),
        ) from None
    for name, wanted in manifest.files.items():
        actual = (path / name).stat().st_size if (path / name).is_file() else None
        if actual != wanted.bytes:
            what = (
                "is missing" if actual is None else f"has {actual} bytes instead of {wanted.bytes}"
            )
            raise CheckpointError(f"truncated checkpoint: {name} {what}", where=path, hint=AGAIN)
    return manifest


def _foreign_hint(path: Path) -> str:
    if path.suffix in PICKLES:
        return (
            f"{path.name} may be a pickle, which nmtkit never loads (it can run code); convert it"
            " to safetensors with the tool that wrote it"
        )
    return AGAIN


def _read_tensors(
    path: Path, name: str, manifest: CheckpointManifest, checked: bool = False
) -> dict[str, Tensor]:
    """Tensors of one file of a checkpoint, its hash checked unless it was.

    Raises: CheckpointError if a bit is wrong, or the file is something else (a pickle).
    """
    from safetensors.torch import load_file

    if not checked:
        _check_hash(path, name, manifest)
    try:
        return load_file(path / name)
    except (SafetensorError, OSError, ValueError) as error:
        with open(path / name, "rb") as stream:
            start = stream.read(2)
        hint = (
            "it looks like a pickle, which nmtkit never loads (it can run code)"
            if start[:1] == b"\x80" or start == b"PK"
            else AGAIN
        )
        raise CheckpointError(
            f"{name} is not a safetensors file: {error}", where=path, hint=hint
        ) from None


def _check_hash(path: Path, name: str, manifest: CheckpointManifest) -> None:
    if name not in manifest.files or files.sha256(path / name) != manifest.files[name].sha256:
        raise CheckpointError(
            f"damaged checkpoint: {name} does not have the hash of its manifest",
            where=path,
            hint=AGAIN,
        )


def load_weights(path: Path, checked: bool = False) -> dict[str, Tensor]:
    """The weights of a checkpoint, on the CPU.

    Args:
        path: its folder.
        checked: it comes from `choose`, which has just compared the hash: reading a big model once
            more takes minutes.
    Raises: CheckpointError if it is damaged or foreign.
    """
    return _read_tensors(path, WEIGHTS, read_manifest(path), checked)


def load_training(path: Path, record: type[R]) -> tuple[dict[str, Tensor], dict[str, Tensor], R]:
    """Return all that continues a training: weights, optimiser tensors, and the state, which is of
    the class `record`.

    Raises: CheckpointError if any of it is damaged.
    """
    manifest = read_manifest(path)
    _check_hash(path, STATE, manifest)
    try:
        state = load(record, path / STATE)
    except DataError as error:
        raise CheckpointError(error.message, where=path / STATE, hint=AGAIN) from None
    return _read_tensors(path, WEIGHTS, manifest), _read_tensors(path, OPTIMIZER, manifest), state


def find_checkpoints(system: System) -> list[Path]:
    """The checkpoints that are complete (sizes agree; hashes are checked on loading), oldest
    first; others are named and skipped.
    """
    found = []
    for path in candidates(system.checkpoints):
        try:
            read_manifest(path)
            found.append(path)
        except CheckpointError as error:
            console.warn(f"skipping {path}: {error.message}")
    return found


def _is_sound(path: Path) -> bool:
    """True if the weights have the hash of their manifest; if not, a warning says why."""
    try:
        _check_hash(path, WEIGHTS, read_manifest(path))
    except CheckpointError as error:
        console.warn(f"skipping {path}: {error.message}")
        return False
    return True


def _is_complete(path: Path) -> bool:
    """True if the files have the sizes of their manifest."""
    with contextlib.suppress(CheckpointError):
        read_manifest(path)
        return True
    return False


def choose(system: System, average: int | None = None) -> list[Path]:
    """Return the checkpoints that hold the weights of a system: the mean of their weights
    translates, and is what analyses look at.

    Args:
        system: the system.
        average: 1 = the best checkpoint (by best.json; the newest one without it) alone; k = the
            last k that are `train.checkpoint_every` updates apart, oldest first; None = as the
            system's setting search.average says.
    Returns: theirs whose weights have the hash of their manifest. Others are named and skipped.
        Fewer than k, which a warning says, where fewer are left; the best one where none of them is
        `train.checkpoint_every` updates apart.
    Raises: CheckpointError if there is no valid one.
    """
    average = _average(system) if average is None else average
    found = _selected(system, average, _is_sound)
    if not found:
        raise _none_valid(system)
    if len(found) < average:
        hint = (
            "train.keep_checkpoints says how many are kept, train.checkpoint_every how far they are"
            " apart"
        )
        console.warn(
            f"system '{system.name}' has {counted(len(found), 'checkpoint')} to average, not"
            f" {average}; {hint}"
        )
    elif average == 1 and (named := _named_best(system)) not in (None, found[0]):
        console.warn(
            f"the best checkpoint {named.name} is missing or damaged; taking the newest,"
            f" {found[0].name}"
        )
    return found


def current(system: System, average: int | None = None) -> dict[str, str]:
    """Return the `digests` of the checkpoints that `choose` would return if their files are
    undamaged, {} if there are none.

    Nothing is printed and no weights are read: to find out if a stored result is up to date.
    """
    try:
        return digests(
            _selected(system, _average(system) if average is None else average, _is_complete)
        )
    except NmtkitError:
        return {}


def digests(paths: Sequence[Path]) -> dict[str, str]:
    """Return the SHA-256 of the weights of checkpoints by the names of their folders."""
    return {path.name: read_manifest(path).files[WEIGHTS].sha256 for path in paths}


def _average(system: System) -> int:
    return build(SearchSettings, system.read_config().get("search", {}), "search").average


def _selected(system: System, average: int, usable: Callable[[Path], bool]) -> list[Path]:
    """The usable ones of the last k checkpoints, oldest first; where there is none, or with k =
    1, the best one, or the newest.
    """
    if average > 1 and (
        found := list(itertools.islice(filter(usable, _evenly_spaced(system)), average))
    ):
        return found[::-1]
    named = _named_best(system)
    newest = [path for path in reversed(candidates(system.checkpoints)) if path != named]
    return list(itertools.islice(filter(usable, [named, *newest] if named else newest), 1))


def _evenly_spaced(system: System) -> list[Path]:
    """The last checkpoints that are `train.checkpoint_every` updates apart, newest first, up to
    the first gap: what stands before is an old best.
    """
    every = build(TrainSettings, system.read_config().get("train", {}), "train").checkpoint_every
    found = regular(system.checkpoints, every)[::-1]
    return [path for i, path in enumerate(found) if step_of(path) == step_of(found[0]) - i * every]


def regular(folder: Path, every: int) -> list[Path]:
    """Return the checkpoint folders at multiples of `every` updates, oldest first.

    A new best, the end of a training, and a stop are saved at other steps too, nearer to the
    checkpoint before.
    """
    return [path for path in candidates(folder) if step_of(path) % every == 0]


def _none_valid(system: System) -> CheckpointError:
    damaged = candidates(system.checkpoints)
    what = (
        f"no valid checkpoint of '{system.name}'"
        if damaged
        else f"system '{system.name}' has no checkpoint yet"
    )
    again = (
        "all are damaged: train it again with the options it had: nmtkit train --name"
        f" {system.name} --force …"
    )
    hint = again if damaged else "first: nmtkit train"
    return CheckpointError(what, where=system.checkpoints, hint=hint)


def _named_best(system: System) -> Path | None:
    with contextlib.suppress(DataError):
        return system.checkpoints / load(BestCheckpoint, system.path / "best.json").checkpoint
    return None


def prune(folder: Path, keep: Iterable[str]) -> None:
    """Remove all complete checkpoints but those named; each is renamed first, so none is ever
    half there under its name.
    """
    names = set(keep)
    for path in candidates(folder):
        if path.name not in names and (path / MANIFEST).is_file():
            doomed = folder / f".old-{path.name}-{os.getpid()}"
            with contextlib.suppress(OSError):
                os.replace(path, doomed)
                _remove(doomed)


def clean(folder: Path) -> None:
    """Tidy up after a killed process, and say so: what is half-written or half-removed goes, a
    checkpoint that was set aside comes back.

    The caller holds the system's lock.
    """
    for path in folder.glob(".old-step-*"):
        final = folder / "-".join(path.name.removeprefix(".old-").split("-")[:2])
        if (path / MANIFEST).is_file() and not final.exists():
            os.replace(path, final)
    for path in [*folder.glob(".tmp-step-*"), *folder.glob(".old-step-*")]:
        console.say(
            f"removing {path.name}, left"
            f" {'half-written' if path.name.startswith('.tmp') else 'half-removed'} by a process"
            " that was stopped"
        )
        shutil.rmtree(path, ignore_errors=True)
