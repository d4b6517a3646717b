"""From checkpoints to a model: do their ids mean this run's words, the mean of several, weights
put in by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmtkit import files
from nmtkit.errors import CheckpointError, ConfigError
from nmtkit.models.base import Model, Vocabularies
from nmtkit.models.checkpoints import AGAIN, choose, load_weights, read_manifest
from nmtkit.models.variants import build_model, load_variant
from nmtkit.nn.linear import Precision, pack
from nmtkit.run import Run, System


def load_system(
    run: Run,
    system: System,
    device: torch.device | str = "cpu",
    paths: Sequence[Path] | None = None,
    precision: Precision = "float32",
) -> Model:
    """A trained system, ready to translate.

    Args:
        run: its run.
        system: the system.
        device: where it goes.
        paths: checkpoints that `choose` found, where a command line says which; None = those that
            hold the weights of the system.
        precision: of its products on a CPU (see `nmtkit.nn.linear.pack`).
    Returns: the model in evaluation mode; its weights must not change any more (see
        `nmtkit.nn.linear.pack`).
    Raises: as `build_untrained`; CheckpointError if its checkpoints are damaged or of another
        vocabulary.
    """
    paths = paths or choose(system)
    for path in paths:
        check_vocabulary(path, run)
    model = build_untrained(run, system)
    put_weights(model, average(paths, checked=True), where=paths[-1])
    model.to(device).eval()
    pack(model, precision)
    return model


def build_untrained(run: Run, system: System) -> Model:
    """A model as a system's settings say, with weights just drawn.

    Raises: DataError if the system was never trained; ConfigError if its class is not found here.
    """
    config = system.read_config()
    try:
        load_variant(config["variant"])
    except ConfigError as error:  # which speaks of an option that the command at hand may not have
        others = " ".join(
            f"--system {other.name}" for other in run.systems() if other.name != system.name
        )
        where = f"{system.path} ({error.where})" if error.where != "--variant" else system.path
        hint = error.hint or "where it was trained there was one"
        hint += f"; or leave this system out: {others}" if others else ""
        raise ConfigError(
            f"system '{system.name}': {error.message}", where=where, hint=hint
        ) from error
    return build_model(config["variant"], config.get("model", {}), vocabulary_sizes(run))


def check_vocabulary(path: Path, run: Run) -> None:
    """Refuse a checkpoint whose ids mean other tokens, or whose text was cut into tokens otherwise.

    Raises: CheckpointError naming the file that differs.
    """
    then, now = read_manifest(path).vocabulary, vocabulary_hashes(run)
    if then == of_ids(then):  # written when codes and truecasers were not recorded yet
        now = of_ids(now)
    odd = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if odd:
        hint = f"the run {run.path} was prepared anew; train again with --force"
        what = (
            "is of another vocabulary"
            if of_ids(then) != of_ids(now)
            else "was trained on text that was cut into tokens otherwise"
        )
        raise CheckpointError(
            f"the checkpoint {what}: {odd[-1]} differs", where=path, hint=hint
        )  # vocab.txt is last


def vocabulary_sizes(run: Run) -> Vocabularies:
    """What a model must know of a run's vocabularies."""
    sizes = run.manifest().vocabulary
    return Vocabularies(sizes.src, sizes.tgt, sizes.shared)


def vocabulary_hashes(run: Run) -> dict[str, str]:
    """SHA-256 of the files of a run that lead from text to ids: what a checkpoint's ids mean,
    and how text is cut into tokens and cased.
    """
    patterns = ("vocab*.txt", "codes*.bpe", "bpe-vocab.*.txt", "truecase.*")
    return {
        path.name: files.sha256(path)
        for pattern in patterns
        for path in sorted(run.prep.glob(pattern))
    }


def of_ids(hashes: Mapping[str, str]) -> dict[str, str]:
    """Of these hashes, those that say what an id means."""
    return {name: digest for name, digest in hashes.items() if name.startswith("vocab")}


def average(paths: Sequence[Path], checked: bool = False) -> dict[str, Tensor]:
    """The mean of the weights of checkpoints: floating tensors in float64, tied weights once, other
    tensors from the last.

    Args:
        paths: their folders.
        checked: as of `load_weights`.
    Raises: CheckpointError if they are not of one model.
    """
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for path in paths:
        last = load_weights(path, checked)
        if sums and {k: v.shape for k, v in last.items()} != {k: v.shape for k, v in sums.items()}:
            raise CheckpointError(
                "not a checkpoint of the same model",
                where=path,
                hint="average checkpoints of one system",
            )
        for name, tensor in last.items():
            wide = tensor.double() if tensor.is_floating_point() else tensor
            sums[name] = sums[name] + wide if name in sums and tensor.is_floating_point() else wide
    return {
        name: (sums[name] / len(paths)).to(t.dtype) if t.is_floating_point() else t
        for name, t in last.items()
    }


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """A model's parameters and persistent buffers by name, tied ones once (under the first
    name).
    """
    everything = model.state_dict(keep_vars=True)
    parameters = dict(model.named_parameters())
    known = {id(p) for p in parameters.values()}
    return {
        **parameters,
        **{name: tensor for name, tensor in everything.items() if id(tensor) not in known},
    }


@torch.no_grad()
def put_weights(
    model: torch.nn.Module, weights: Mapping[str, Tensor], where: object = None
) -> None:
    """Copy weights into a model that has exactly these.

    Raises: CheckpointError naming the first that is missing, unknown or of another shape.
    """
    own = weights_of(model)
    odd = sorted(own.keys() ^ weights.keys())
    if odd:
        raise CheckpointError(
            f"the checkpoint is of another model: {odd[0]} is"
            f" {'missing' if odd[0] in own else 'unknown'}",
            where=where,
            hint=AGAIN,
        )
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
            raise CheckpointError(
                f"the checkpoint is of another model: {name} is {shapes}", where=where, hint=AGAIN
            )
        tensor.copy_(weights[name])
