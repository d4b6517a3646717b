"""Select rows and replace tensors in memories and states, whatever a model stores in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Continued:
    """Rows that each continue a row of the same sentence: nothing moves between sentences.

    Attributes:
        rows: int64 (R'), as many for each sentence that stays.
        sentences: which sentences stay, int64; None = all.
    """

    rows: Tensor
    sentences: Tensor | None = None


def select_rows(tree: Any, index: Tensor | Continued) -> Any:
    """Return the tree whose row i is row index[i] of `tree`.

    Args:
        tree: nested dicts, lists and tuples of tensors, rows first. An object with a method
            `select_rows` (a key/value cache) selects its rows itself and may change in place, so do
            not use the tree afterwards. Any other leaf belongs to all rows.
        index: int64 (R'); rows may be left out, moved and repeated. The state of a search is
            selected with `Continued`, which lets a cache keep its entries where they are.
    """

    def select(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.index_select(0, index.rows if isinstance(index, Continued) else index)
        return leaf.select_rows(index) if hasattr(leaf, "select_rows") else leaf

    return mapped(tree, select)


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return a tree of nested dicts, lists and tuples with function(leaf) in place of each leaf."""
    if isinstance(tree, dict):
        return {key: mapped(value, function) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        make = getattr(tree, "_make", type(tree))  # of a named tuple
        return make(mapped(value, function) for value in tree)
    return function(tree)
