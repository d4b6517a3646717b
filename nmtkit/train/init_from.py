"""`--init-from`: begin with the weights of another system, of this run or of another one.

Weights with the same name and shape are copied; a message lists the other weights. If the
vocabularies differ, the rows of the subwords in both vocabularies are copied.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nmtkit import console
from nmtkit.errors import CheckpointError, ConfigError, DataError, nearest
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model, Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.run import Run, System
from nmtkit.text.vocabulary import load_vocabularies

SIDES = ("source", "target")
UNUSUAL = (10_007, 10_009)
"""Sizes of vocabularies that no other axis of a model has."""


def find_source(run: Run, name: str) -> Path:
    """Return the checkpoint that --init-from names.

    Args:
        run: the run to train in.
        name: a system of the run, the folder of a system (then its best checkpoint), or a
            checkpoint folder. A folder may be of another run.
    Raises: ConfigError if nothing has that name; CheckpointError if it has no valid checkpoint.
    """
    systems = {system.name: system for system in run.systems()}
    path = Path(name)
    if name in systems or (path / "checkpoints").is_dir():
        system = systems.get(name, System(path))
        begun = checkpoints.candidates(system.checkpoints)
        replaced = checkpoints.candidates(system.replaced.checkpoints)
        return checkpoints.choose(system if begun or not replaced else system.replaced, 1)[0]
    message, hint = f"no system or folder '{name}'", "name a checkpoint folder"
    if (path / "systems").is_dir():
        message, hint = f"{path} is a run, not a system", "it has no trained system"
        if trained := Run(path).systems():
            hint = f"name one of its systems: {trained[0].path}"
    elif path.exists():
        checkpoints.read_manifest(path)
        return path
    elif systems:
        hint = nearest(name, systems)
    raise ConfigError(message, where="--init-from", hint=hint)


@torch.no_grad()
def copy_matching(run: Run, name: str, model: Model) -> None:
    """Copy the weights that a model shares with a checkpoint; print what was and was not copied.

    Raises: as `find_source`; CheckpointError if nothing matches.
    """
    path = find_source(run, name)
    weights, saved = loading.weights_of(model), checkpoints.load_weights(path)
    first = _first_names(path)
    stored = saved | {key: saved[other] for key, other in first.items() if other in saved}
    common = weights.keys() & stored.keys()
    rows = {} if _same_vocabularies(path, run) else _common_rows(path, run, model)
    copied = {}  # numbers, by tensor
    for key in sorted(common):
        target, source = weights[key], stored[key]
        if key in rows:
            copied[key] = rows[key].copy(source, target)
        elif target.shape == source.shape:
            copied[key] = target.copy_(source).numel()
    if not any(copied.values()):
        raise CheckpointError(
            "; ".join([f"nothing in {path} matches this model", *_different_sizes(path, model)]),
            where="--init-from",
            hint=f"take its sizes: --config {path.parent.parent / 'config.toml'}, or name a system"
            " of the same family and sizes",
        )
    _print_copied(f"initialised from {path}", weights, copied)
    other_shape = common - copied.keys()
    with_rows = {key: match for key, match in rows.items() if copied.get(key)}
    not_copied = {
        "not in the checkpoint": weights.keys() - stored.keys(),
        "of another shape": other_shape,
        "of another vocabulary": {key for key, numbers in copied.items() if not numbers},
        "rows of known subwords only": with_rows.keys(),
        "only in the checkpoint": saved.keys() - {first.get(key, key) for key in common},
    }
    for reason, keys in not_copied.items():
        if keys:
            more = " …" if len(keys) > 8 else ""
            console.say(f"  {reason}: {', '.join(sorted(keys)[:8])}{more} ({len(keys)})")
    if rows:
        source_run = _run_of(path)
        counts = "; ".join(dict.fromkeys(map(str, (with_rows or rows).values())))
        like = source_run.path if source_run.prep.is_dir() else "RUN"
        console.warn(
            f"the vocabulary is not that of {path}: {counts} (nmtkit prep … --like {like} keeps"
            " all; for other languages, --codes and --vocab with the files of its prep folder)"
        )
    if other_shape and (sizes := _different_sizes(path, model)):
        console.say(f"  sizes that differ: {', '.join(sizes)}")


@dataclass(frozen=True)
class _Rows:
    """The subwords that a new and an old vocabulary share, as rows of tensors.

    Attributes:
        axis: the axis of a tensor that is as long as the vocabulary.
        label: the kind of rows, for messages.
        new_ids: ids in the vocabulary of the new model (N).
        old_ids: ids in the vocabulary of the checkpoint (N).
        sizes: of the new and of the old vocabulary.
    """

    axis: int
    label: str
    new_ids: Tensor
    old_ids: Tensor
    sizes: tuple[int, int]

    def copy(self, source: Tensor, target: Tensor) -> int:
        """Copy the rows; return the count of numbers copied: 0 if the shapes do not fit."""
        shape = list(target.shape)
        shape[self.axis] = self.sizes[1]
        if list(source.shape) != shape:
            return 0
        rows = source.index_select(self.axis, self.old_ids)
        target.index_copy_(self.axis, self.new_ids, rows.to(target.dtype))
        return rows.numel()

    def __str__(self) -> str:
        new, unused = (size - len(self.new_ids) for size in self.sizes)
        return f"{self.label}: {len(self.new_ids):,} carried over, {new:,} new, {unused:,} not used"


def _common_rows(path: Path, run: Run, model: Model) -> dict[str, _Rows]:
    """Return the common subwords for each parameter with an axis of a vocabulary.

    There are none if the checkpoint's run no longer has the vocabularies of its training.
    """
    new, source = load_vocabularies(run.prep), _run_of(path)
    known = _same_vocabularies(path, source)
    old: Sequence[Iterable[str]] = load_vocabularies(source.prep) if known else ((), ())
    shared = new[0] is new[1]

    @functools.cache
    def rows(axis: int, side: int) -> _Rows:
        ids = {token: i for i, token in enumerate(old[side])}
        pairs = [(i, ids[token]) for i, token in enumerate(new[side]) if token in ids]
        common = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
        label = "embedding rows" if shared else f"{SIDES[side]} embedding rows"
        return _Rows(axis, label, common[:, 0], common[:, 1], (len(new[side]), len(ids)))

    return {name: rows(*place) for name, place in _vocabulary_axes(model).items()}


def _vocabulary_axes(model: Model) -> dict[str, tuple[int, int]]:
    """Return for each parameter with an axis of a vocabulary that axis and the side (0, 1)."""
    with torch.device("meta"):  # shapes only, no memory
        model = type(model)(model.settings, Vocabularies(*UNUSUAL, shared=True))
    return {
        name: (axis, UNUSUAL.index(length))
        for name, parameter in model.named_parameters(remove_duplicate=False)
        for axis, length in enumerate(parameter.shape)
        if length in UNUSUAL
    }


def _run_of(path: Path) -> Run:
    """Return the run of a checkpoint: RUN/systems/NAME/checkpoints/STEP."""
    return Run(path.parent.parent.parent.parent)  # a short relative path ends at .


def _first_names(path: Path) -> dict[str, str]:
    """Return name -> stored name of all parameters of a checkpoint's model, whose layers may share
    parameters; {} if the model is not known.
    """
    try:
        config = System(path.parent.parent).read_config()
        with torch.device("meta"):  # names alone, no memory
            model = build_model(config.variant, config.model, Vocabularies(8, 8, shared=True))
    except ConfigError as error:
        message = "the checkpoint's model cannot be built, so parameters that its layers share may"
        console.warn(f"{message} be lost: {error}")
        return {}
    except DataError:
        return {}
    return loading.first_names(model)


def _same_vocabularies(path: Path, run: Run) -> bool:
    stored = loading.of_ids(checkpoints.read_manifest(path).vocabulary)
    return stored == loading.of_ids(loading.vocabulary_hashes(run))


def _print_copied(message: str, weights: dict[str, Tensor], copied: Mapping[str, int]) -> None:
    numbers, total = sum(copied.values()), sum(tensor.numel() for tensor in weights.values())
    tensors = sum(map(bool, copied.values()))
    message += f": {tensors} of {len(weights)} tensors, {numbers:,} of {total:,} numbers"
    if numbers < total / 2:
        console.warn(f"{message}; the other {100 * (1 - numbers / total):.1f}% begin at random")
    else:
        console.say(message)


def _different_sizes(path: Path, model: Model) -> list[str]:
    """Return the numbers in a model's settings that differ from those of a checkpoint's system."""
    try:
        stored = System(path.parent.parent).read_config().model
    except DataError:
        return []
    return [
        f"model.{key} {size} (there {stored[key]})"
        for key, size in sorted(model.settings.model_dump().items())
        if type(size) is int and stored.get(key, size) != size
    ]
