"""Layers that share parameters: N layers use the parameters of M distinct ones.

Source: Takase & Kiyono 2023, *Lessons on parameter sharing across layers in Transformers*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from nmtkit.errors import ConfigError, counted

Share = Literal["sequence", "cycle", "cycle-rev"]


def distinct_layer(layer: int, layers: int, distinct: int, share: Share) -> int:
    """Return which of M distinct layers a layer uses; both are counted from 0.

    Args:
        layer: its index.
        layers: N.
        distinct: M.
        share: sequence: neighbours share, as 1 1 2 2 3 3; cycle: the stack is repeated, as 1 2 3 1
            2 3; cycle-rev: as cycle, but the last M layers are in reverse, as 1 2 3 3 2 1.
    """
    if share == "sequence":
        return layer * distinct // layers
    place = layer % distinct
    return distinct - 1 - place if share == "cycle-rev" and layer >= layers - distinct else place


def share_parameters(layers: Sequence[nn.Module], distinct: int, share: Share) -> None:
    """Let layers that use the same distinct layer have the same parameters.

    Each layer remains a module of its own, with its own name. What only one of the layers has
    remains its own: a layer may have more parts than the layers it shares with.

    Args:
        layers: N modules; none is fine.
        distinct: M; 0 = N.
        share: see `distinct_layer`.
    Raises: ConfigError if M is more than N, if layers that share differ in kind or size, or if an
        order is chosen and no layers share.
    """
    if not distinct and share != "cycle-rev":
        raise ConfigError(
            "no layers share parameters",
            where="model.share",
            hint="--set model.distinct_layers=M, too",
        )
    if not distinct or not layers:
        return
    if distinct > len(layers):
        raise ConfigError(
            f"{counted(len(layers), 'layer')} cannot use {distinct} distinct ones",
            where="model.distinct_layers",
            hint="make model.distinct_layers smaller, or add layers to both stacks",
        )
    owners: dict[int, int] = {}
    for index, layer in enumerate(layers):
        number = distinct_layer(index, len(layers), distinct, share)
        owner = owners.setdefault(number, index)
        if not _use_parameters(layer, layers[owner]):
            raise ConfigError(
                f"layers {owner + 1} and {index + 1} differ and cannot share parameters",
                where="model.distinct_layers, model.share",
                hint="another model.share or model.distinct_layers, or the same kind of layer in"
                " both",
            )


def _use_parameters(module: nn.Module, owner: nn.Module) -> bool:
    """Replace parameters of a module by those that the owner has under the same names.

    Returns: False if two of them have different sizes.
    """
    shared = dict(owner.named_parameters())
    for name, parameter in list(module.named_parameters()):
        if name in shared:
            if shared[name].shape != parameter.shape:
                return False
            place, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(place), attribute, shared[name])
    return True
