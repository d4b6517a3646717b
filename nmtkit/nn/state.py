"""What search does with a memory or a state: select rows, repeat rows, move tensors; it never looks inside.

A tree is nested dicts, lists and tuples of tensors with rows first. A leaf that has methods `select_rows`, `repeat_rows` and
`map_tensors` of its own (a key/value cache) is asked to do it itself; any other leaf belongs to all rows alike and is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def select_rows(tree: Any, index: Tensor) -> Any:
    """The tree whose row i is row index[i] of the given one.

    Args:
        tree: a memory or a state; it must not be used afterwards.
        index: int64 (R'), rows may be left out, moved and repeated.
    """
    return _walk(tree, lambda t: t.index_select(0, index), lambda leaf: leaf.select_rows(index))


def repeat_rows(tree: Any, count: int) -> Any:
    """The tree with each row `count` times, the copies next to each other; the given one must not be used afterwards."""
    return _walk(tree, lambda t: t.repeat_interleave(count, dim=0), lambda leaf: leaf.repeat_rows(count))


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The tree with a function applied to every tensor (to move it to a device, say)."""
    return _walk(tree, function, lambda leaf: leaf.map_tensors(function))


def _walk(tree: Any, on_tensor: Callable[[Tensor], Tensor], on_object: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Tensor):
        return on_tensor(tree)
    if isinstance(tree, dict):
        return {key: _walk(value, on_tensor, on_object) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_walk(value, on_tensor, on_object) for value in tree)
    return on_object(tree) if hasattr(tree, "select_rows") else tree
