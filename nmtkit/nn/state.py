"""Select rows of a memory or a state, whatever a model stores in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Continued:
    """Rows of which each continues a row of its own sentence: nothing moves between sentences.

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
        index: int64 (R'); rows may be left out, moved and repeated. `Continued` says of them what a
            cache would otherwise have to find out, for which the host would wait for a GPU.
    """
    if isinstance(tree, Tensor):
        return tree.index_select(0, index.rows if isinstance(index, Continued) else index)
    if isinstance(tree, dict):
        return {key: select_rows(value, index) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(select_rows(value, index) for value in tree)
    return tree.select_rows(index) if hasattr(tree, "select_rows") else tree
