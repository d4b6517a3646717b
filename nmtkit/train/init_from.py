"""`--init-from`: begin with the weights of another system. Weights with the same name and shape are
copied; a message lists the others.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nmtkit import console
from nmtkit.errors import CheckpointError, ConfigError, DataError, nearest
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model, Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.run import Run, System


def find_source(run: Run, name: str) -> Path:
    """Return the checkpoint that --init-from names.

    It is the best one of a system of the run or of a system's folder, or a checkpoint folder.

    Raises: ConfigError if nothing has that name; CheckpointError if it has no valid checkpoint.
    """
    systems = {system.name: system for system in run.systems()}
    path = Path(name)
    if name in systems or (path / "checkpoints").is_dir():
        return checkpoints.choose(systems.get(name, System(path)), 1)[0]
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
    """Copy the weights of a checkpoint that a model has too, and print what was and was not copied.

    Tensors with an axis as long as a vocabulary are copied only if the vocabularies are the same.

    Raises: as `find_source`; CheckpointError if nothing matches.
    """
    path = find_source(run, name)
    weights, own = loading.weights_of(model), checkpoints.load_weights(path)
    first = _first_names(path)
    stored = own | {key: own[first[key]] for key in first if first[key] in own}
    common = weights.keys() & stored.keys()
    other_shape = {key for key in common if weights[key].shape != stored[key].shape}
    of_words: set[str] = set()
    if not _same_vocabularies(path, run):
        sizes = {model.vocabularies.src, model.vocabularies.tgt}
        of_words = {key for key in common - other_shape if sizes & set(weights[key].shape)}
    copied = common - other_shape - of_words
    if not copied:
        raise CheckpointError(
            f"nothing in {path} matches this model",
            where="--init-from",
            hint="name a system of the same family and sizes",
        )
    for key in copied:
        weights[key].copy_(stored[key])
    _print_copied(f"initialised from {path}", weights, copied)
    not_copied = {
        "new here": weights.keys() - stored.keys(),
        "of another shape": other_shape,
        "of another vocabulary": of_words,
        "not used from there": own.keys() - {first.get(key, key) for key in common},
    }
    for reason, keys in not_copied.items():
        if keys:
            more = " …" if len(keys) > 8 else ""
            console.say(f"  {reason}: {', '.join(sorted(keys)[:8])}{more} ({len(keys)})")
    if other_shape and (sizes_that_differ := _different_sizes(path, model)):
        console.say(f"  sizes that differ: {', '.join(sizes_that_differ)}")


def _first_names(path: Path) -> dict[str, str]:
    """Return every name of the parameters of a checkpoint's model, and the stored one: layers may
    share parameters. Return {} if the model is not known.
    """
    try:
        config = System(path.parent.parent).read_config()
        with torch.device("meta"):  # names alone, no memory
            vocabularies = Vocabularies(8, 8, shared=True)
            model = build_model(config.variant, config.model, vocabularies)
    except (ConfigError, DataError):
        return {}
    return loading.first_names(model)


def _same_vocabularies(path: Path, run: Run) -> bool:
    hashes = checkpoints.read_manifest(path).vocabulary, loading.vocabulary_hashes(run)
    return loading.of_ids(hashes[0]) == loading.of_ids(hashes[1])


def _print_copied(message: str, weights: dict[str, Tensor], copied: set[str]) -> None:
    numbers, total = (sum(weights[key].numel() for key in keys) for keys in (copied, weights))
    message += f": {len(copied)} of {len(weights)} tensors, {numbers:,} of {total:,} numbers"
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
