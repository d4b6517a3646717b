"""Select rows of a memory or a state, whatever a model stores in it."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def select_rows(tree: Any, index: Tensor) -> Any:
    """Return the tree whose row i is row index[i] of `tree`.

    Args:
        tree: nested dicts, lists and tuples of tensors, rows first. An object with a method
            `select_rows` (a key/value cache) selects its rows itself and may change in place, so do
            not use the tree afterwards. Any other leaf belongs to all rows.
        index: int64 (R'); rows may be left out, moved and repeated.
    """
    if isinstance(tree, Tensor):
        return tree.index_select(0, index)
    if isinstance(tree, dict):
        return {key: select_rows(value, index) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(select_rows(value, index) for value in tree)
    return tree.select_rows(index) if hasattr(tree, "select_rows") else tree
