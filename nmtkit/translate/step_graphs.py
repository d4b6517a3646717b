"""CUDA graphs of search steps: a GPU repeats the kernels of an earlier step of the same shapes.

The host needs several times as long to start the kernels of a step as a GPU needs to run them. A
replay starts all of them at once. A recorded step reads and writes fixed tensors, so the tensors of
another batch, or of fewer sentences, are first copied into them. The first step of new shapes is
computed kernel by kernel, which also creates lasting tensors such as tables of positions. The
second step is recorded.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nmtkit import console
from nmtkit.errors import is_out_of_memory
from nmtkit.models.base import Model
from nmtkit.nn import masks, recording
from nmtkit.nn.capture import capturing
from nmtkit.nn.recording import OutOfMemory, Pool, try_to_record
from nmtkit.nn.state import mapped

if TYPE_CHECKING:
    from nmtkit.translate.beam import Search

SHAPES = 256
"""The maximum number of graphs. When it is reached, all graphs are forgotten."""
SHARE = 4
"""All graphs are forgotten, too, when their inputs take one SHARE-th of the GPU's memory."""
Key = tuple[Any, ...]
_graphs: weakref.WeakKeyDictionary[Model, StepGraphs] = weakref.WeakKeyDictionary()


@dataclass
class Recorded:
    """A recorded step.

    Attributes:
        replay: computes the step again.
        inputs: the leaves that the step reads and changes (`leaves_of`); numbers are those of the
            recording.
        counts: index of a number in the leaves -> what a step adds to the number.
    """

    replay: Callable[[], object]
    inputs: list[Any]
    counts: dict[int, int]


def step_graphs(models: Sequence[Model], device: torch.device) -> StepGraphs | None:
    """Return the graphs of a search with these models; None if graphs cannot be used.

    A user's model may count positions on the host; a replay would repeat the same positions. A
    `capture` does not see replays.
    """
    if not recording.graphs_fit(device) or capturing():
        return None
    parts = [part for model in models for part in model.modules() if isinstance(part, Model)]
    ours = all(type(part).__module__.startswith("nmtkit.") for part in parts)
    if not parts or not ours:
        return None
    if models[0] not in _graphs:
        _graphs[models[0]] = StepGraphs(device)
    graphs = _graphs[models[0]]
    # A graph reads weights at fixed addresses, with the precision of products at its recording.
    narrows = torch.is_autocast_enabled(device.type)
    narrow = torch.get_autocast_dtype(device.type) if narrows else None
    places = tuple(
        weight.data_ptr()
        for model in models
        for weight in itertools.chain(model.parameters(), model.buffers())
    )
    graphs.serve((places, narrow, torch.get_float32_matmul_precision()))
    return graphs


def forget() -> None:
    """Free the memory of all graphs."""
    _graphs.clear()


class StepGraphs:
    """The recorded steps of searches with one or several models.

    Args:
        device: where the models are.
    """

    def __init__(self, device: torch.device) -> None:
        self._most = torch.cuda.mem_get_info(device)[1] // SHARE if device.type == "cuda" else 1e18
        self._served: Key = ()
        self._records = True
        self._clear()

    def _clear(self) -> None:
        self._recorded: dict[Key, Recorded] = {}
        # Graphs share the tensors that they read: only one of them runs at a time.
        self._inputs: dict[Key, Tensor] = {}
        self._pool = Pool()
        self._before: Key = ()
        self._size = 0

    def serve(self, models: Key) -> None:
        """Record and replay steps of these models; graphs of other models are forgotten."""
        if self._served != models:
            self._clear()
            self._served, self._records = models, True

    def step(self, search: Search) -> None:
        """Do a step of a search."""
        if search.beams.step == 0:  # a sentence has one hypothesis
            search.step()
            return
        search.decoders.fix_shapes()
        leaves = leaves_of(search)
        key = search.beams.settings.beam, *map(_kind, leaves)
        known = self._recorded.get(key)
        if known is None and key == self._before and self._records:
            known = self._record(search, key, leaves)
            leaves = leaves_of(search)
        self._before = key
        if known is None:
            masks.forget()  # the mask of an earlier batch may belong to an input of a graph
            search.step()
            return
        _copy(known.inputs, leaves)
        known.replay()
        after = [known.inputs[i] if isinstance(x, Tensor) else x for i, x in enumerate(leaves)]
        for i, count in known.counts.items():
            after[i] += count
        assign(search, after)

    def _record(self, search: Search, key: Key, leaves: list[Any]) -> Recorded | None:
        """Record a step of a search; the inputs of the graph become the leaves of the search."""
        if len(self._recorded) >= SHAPES or self._size > self._most:
            self._clear()
        otherwise = "no CUDA graph of search steps; the host starts each kernel"
        try:
            inputs = [self._input(i, x) for i, x in enumerate(leaves)]
            _copy(inputs, leaves)
            counts: dict[int, int] = {}

            def compute() -> Tensor:
                assign(search, inputs)
                search.step()
                after = leaves_of(search)
                if len(after) != len(inputs):
                    raise RuntimeError("the state of the search grows")
                pairs = enumerate(zip(inputs, after, strict=True))
                counts.update((i, y - x) for i, (x, y) in pairs if type(x) is int)
                _copy(inputs, after)
                return search.last

            recorded = try_to_record(compute, self._pool, otherwise)
        except (OutOfMemory, RuntimeError) as error:
            if not isinstance(error, OutOfMemory) and not is_out_of_memory(error):
                raise
            console.warn(f"{otherwise}: out of memory")
            recorded = None
            self._clear()
        if recorded is None:
            self._records = False
            assign(search, leaves)
            return None
        assign(search, inputs)
        self._recorded[key] = Recorded(recorded[0], inputs, counts)
        return self._recorded[key]

    def _input(self, place: int, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        key = place, leaf.shape, leaf.dtype
        if key not in self._inputs:
            self._inputs[key] = torch.empty_like(leaf)
            self._size += leaf.nbytes
        return self._inputs[key]


def _kind(leaf: Any) -> Any:
    """Return what a graph depends on: shape and type of a tensor. A number counts steps, so only
    its type matters.
    """
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype
    return int if type(leaf) is int else leaf


def leaves_of(search: Search) -> list[Any]:
    """Return the leaves that a step reads or changes."""
    leaves: list[Any] = []

    def noted(leaf: Any) -> Any:
        leaves.append(leaf)
        return leaf

    _replace(search, noted)
    return leaves


def assign(search: Search, leaves: Sequence[Any]) -> None:
    """Replace the leaves of a search."""
    rest = iter(leaves)
    _replace(search, lambda _: next(rest))


def _replace(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return a tree with function(leaf) in place of each leaf. An object with CHANGING attributes
    stays, and its attributes are replaced.
    """
    if not hasattr(tree, "CHANGING"):
        return function(tree)
    for name in tree.CHANGING:
        setattr(tree, name, mapped(getattr(tree, name), lambda leaf: _replace(leaf, function)))
    return tree


def _copy(places: Sequence[Any], values: Sequence[Any]) -> None:
    """Copy values to places. All values are read before the first place is written."""
    pairs = [
        (place, value)
        for place, value in zip(places, values, strict=True)
        if isinstance(place, Tensor) and place is not value
    ]
    for place, value in pairs:
        if place.shape != value.shape:
            raise RuntimeError(f"a state of {tuple(place.shape)} became {tuple(value.shape)}")
    written = {place.data_ptr() for place, _ in pairs}
    copied = [value.clone() if value.data_ptr() in written else value for _, value in pairs]
    if pairs:
        torch._foreach_copy_([place for place, _ in pairs], copied)
