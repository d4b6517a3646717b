"""Beginning with the weights of another system: what matches by name and shape is copied, the
rest is said.
"""

from __future__ import annotations

from pathlib import Path

import torch

from nmtkit import console
from nmtkit.errors import CheckpointError, ConfigError, DataError, nearest
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model
from nmtkit.run import Run, System


def find_source(run: Run, name: str) -> Path:
    """The checkpoint that --init-from means: the best one of a system of the run or of a system's
    folder, or a checkpoint folder.

    Raises: ConfigError if there is nothing of that name; CheckpointError if it has no valid
        checkpoint.
    """
    systems = [system.name for system in run.systems()]
    if name in systems:
        return checkpoints.choose(run.system(name), 1)[0]
    path = Path(name)
    if (path / "checkpoints").is_dir():
        return checkpoints.choose(System(path), 1)[0]
    if (path / "systems").is_dir():
        names = [system.name for system in Run(path).systems()]
        hint = (
            f"name one of its systems: {path / 'systems' / names[0]}"
            if names
            else "it has no trained system"
        )
        raise ConfigError(f"{path} is a run, not a system", where="--init-from", hint=hint)
    if path.exists():
        checkpoints.read_manifest(path)
        return path
    raise ConfigError(
        f"no system or folder '{name}'",
        where="--init-from",
        hint=nearest(name, systems) if systems else "name a checkpoint folder",
    )


@torch.no_grad()
def copy_matching(run: Run, name: str, model: Model) -> None:
    """Copy into a model all weights of a checkpoint that it has too, and say what was and was not.

    Tensors with an axis as long as a vocabulary are copied only if the vocabularies are the same.

    Raises: as `find_source`; CheckpointError if nothing matches.
    """
    path = find_source(run, name)
    theirs, own = checkpoints.load_weights(path), loading.weights_of(model)
    same_vocabulary = loading.of_ids(checkpoints.read_manifest(path).vocabulary) == loading.of_ids(
        loading.vocabulary_hashes(run)
    )
    sizes = {model.vocabularies.src, model.vocabularies.tgt}
    copied, other_shape, of_words = [], [], []
    for key in own.keys() & theirs.keys():
        if own[key].shape != theirs[key].shape:
            other_shape.append(key)
        elif not same_vocabulary and sizes & set(own[key].shape):
            of_words.append(key)
        else:
            own[key].copy_(theirs[key])
            copied.append(key)
    if not copied:
        raise CheckpointError(
            f"nothing in {path} matches this model",
            where="--init-from",
            hint="name a system of the same family and sizes",
        )
    taken, all_numbers = (
        sum(own[key].numel() for key in copied),
        sum(tensor.numel() for tensor in own.values()),
    )
    said = (
        f"initialised from {path}: {len(copied)} of {len(own)} tensors, {taken:,} of"
        f" {all_numbers:,} numbers"
    )
    if taken < all_numbers / 2:
        console.warn(f"{said}; the other {100 * (1 - taken / all_numbers):.1f}% begin at random")
    else:
        console.say(said)
    left = {
        "new here": own.keys() - theirs.keys(),
        "of another shape": other_shape,
        "of another vocabulary": of_words,
        "not used from there": theirs.keys() - own.keys(),
    }
    for what, keys in left.items():
        if keys:
            console.say(
                f"  {what}: {', '.join(sorted(keys)[:8])}{' …' if len(keys) > 8 else ''}"
                f" ({len(keys)})"
            )
    if other_shape and (unlike := _unlike(path, model)):
        console.say(f"  sizes that differ: {', '.join(unlike)}")


def _unlike(path: Path, model: Model) -> list[str]:
    """The numbers among a model's settings that the system of a checkpoint has otherwise."""
    try:
        theirs = System(path.parent.parent).read_config().get("model", {})
    except DataError:
        return []
    own = model.settings.model_dump()
    pairs = {
        key: (own[key], theirs[key])
        for key in own.keys() & theirs.keys()
        if isinstance(own[key], int) and not isinstance(own[key], bool)
    }
    return [
        f"model.{key} {here} (there {there})"
        for key, (here, there) in sorted(pairs.items())
        if here != there
    ]
