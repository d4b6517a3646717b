"""From checkpoints to a model: check the vocabulary, average the weights, load them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit import files, settings
from nmtkit.errors import CheckpointError, ConfigError
from nmtkit.models.base import Model, Vocabularies
from nmtkit.models.checkpoints import AGAIN, choose, load_weights, read_manifest
from nmtkit.models.variants import build_model, load_variant
from nmtkit.nn.linear import Precision, pack
from nmtkit.owned_files import MANIFEST, TEXT_FILES
from nmtkit.records import TRAIN_AGAIN
from nmtkit.run import Run, System
from nmtkit.text.vocabulary import load_vocabularies


def load_system(
    run: Run,
    system: System,
    device: torch.device | str = "cpu",
    paths: Sequence[Path] | None = None,
    precision: Precision = "float32",
) -> Model:
    """Return a trained system, ready to translate.

    Args:
        run: its run.
        system: the system.
        device: where it goes.
        paths: checkpoints from `choose`; None = the checkpoints of the system's own settings.
        precision: of its products (see `nmtkit.nn.linear.pack`).
    Returns: the model in evaluation mode; its weights must not change any more (see `pack`).
    Raises: as `build_untrained`; CheckpointError if its checkpoints are damaged or of another
        vocabulary.
    """
    paths = paths or choose(system)
    for path in paths:
        check_vocabulary(path, run)
    model = build_untrained(run, system)
    put_weights(model, average(paths), where=paths[-1])
    model.to(device).eval()
    pack(model, precision)
    return model


def build_untrained(run: Run, system: System) -> Model:
    """Return a new model with a system's settings.

    Raises: DataError if the system was never trained; ConfigError if its class is not found here.
    """
    config = system.read_config()
    try:
        schema = load_variant(config.variant).Settings
    except ConfigError as error:  # its message names --variant, which this command may not have
        alternatives = " ".join(
            f"--system {s.name}" for s in run.systems() if s.name != system.name
        )
        hint = error.hint or "where it was trained there was one"
        hint += f"; or leave this system out: {alternatives}" if alternatives else ""
        named = "" if error.where == "--variant" else f" ({error.where})"
        raise ConfigError(
            f"system '{system.name}': {error.message}",
            where=f"{system.config}{named}",
            hint=hint,
        ) from error
    values = settings.complete(schema, config.model)
    return build_model(config.variant, values, vocabulary_sizes(run), system.config)


def check_vocabulary(path: Path, run: Run) -> None:
    """Refuse a checkpoint of another vocabulary, or of text that was tokenized in another way.

    Raises: CheckpointError naming the file that differs; DataError if this file of the run has
        changed since it was prepared.
    """
    recorded, current = read_manifest(path).vocabulary, vocabulary_hashes(run)
    if recorded == of_ids(recorded):  # written when codes and truecasers were not recorded yet
        current = of_ids(current)
    differing = sorted({name for name, _ in recorded.items() ^ current.items()})
    if differing:
        prepared = run.manifest().files
        run.check_files({name: prepared[name] for name in differing if name in prepared})
        cause = "was trained on text that was cut into tokens otherwise"
        if of_ids(recorded) != of_ids(current):
            cause = "is of another vocabulary"
        raise CheckpointError(
            f"the checkpoint {cause}: {differing[-1]} differs",  # vocab.txt is last
            where=path / MANIFEST,
            hint=f"the run {run.path} was prepared anew; {TRAIN_AGAIN}",
        )


def vocabulary_sizes(run: Run) -> Vocabularies:
    """Return the sizes of a run's vocabularies."""
    src, tgt = load_vocabularies(run.prep)
    return Vocabularies(len(src), len(tgt), src is tgt)


def vocabulary_hashes(run: Run) -> dict[str, str]:
    """Return the SHA-256 of a run's files that turn text into ids: vocabularies, subwords, case."""
    patterns = ("vocab*.txt", *TEXT_FILES)
    paths = [path for pattern in patterns for path in sorted(run.prep.glob(pattern))]
    return {path.name: files.sha256(path) for path in paths}


def of_ids(hashes: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of the vocabulary files, which decide what an id means."""
    return {name: digest for name, digest in hashes.items() if name.startswith("vocab")}


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of checkpoints, tied weights once.

    Floating tensors are added up in float64; other tensors are those of the last checkpoint.

    Args:
        paths: their folders; their hashes have been compared (see `load_weights`).
    Raises: CheckpointError if they are not of one model.
    """
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for path in paths:
        weights = load_weights(path, checked=True)
        if last and _shapes(weights) != _shapes(last):
            raise CheckpointError(
                "not a checkpoint of the same model",
                where=path,
                hint="average checkpoints of one system",
            )
        wide = {name: t.double() for name, t in weights.items() if t.is_floating_point()}
        sums = {name: sums[name] + t for name, t in wide.items()} if sums else wide
        last = weights
    means = {name: (total / len(paths)).to(last[name].dtype) for name, total in sums.items()}
    return last | means


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in weights.items()}


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters and persistent buffers by name; tied ones have the first name."""
    weights = dict(model.named_parameters())
    known = {id(parameter) for parameter in weights.values()}
    state = model.state_dict(keep_vars=True)
    return weights | {name: tensor for name, tensor in state.items() if id(tensor) not in known}


def first_names(model: torch.nn.Module) -> dict[str, str]:
    """Return, for every name of a model's parameters, the name that `weights_of` gives to it."""
    owners: dict[int, str] = {}
    every = model.named_parameters(remove_duplicate=False)
    return {name: owners.setdefault(id(parameter), name) for name, parameter in every}


@torch.no_grad()
def put_weights(
    model: torch.nn.Module, weights: Mapping[str, Tensor], where: Any = None, hint: str = AGAIN
) -> None:
    """Copy weights into a model that has exactly these.

    Raises: CheckpointError with `hint`, naming the first that is missing, unknown or of another
        shape.
    """
    targets = weights_of(model)
    for name in sorted(targets.keys() | weights.keys()):
        if name not in targets or name not in weights:
            problem = "missing" if name in targets else "unknown"
        elif targets[name].shape != weights[name].shape:
            problem = f"{tuple(weights[name].shape)} instead of {tuple(targets[name].shape)}"
        else:
            continue
        raise CheckpointError(
            f"the checkpoint is of another model: {name} is {problem}",
            where=where,
            hint=hint,
        )
    for name, tensor in targets.items():
        tensor.copy_(weights[name])
