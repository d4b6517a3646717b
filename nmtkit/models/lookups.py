"""Find or change the embedding lookups of any model.

Every model looks words up with `F.embedding`, directly or in `nn.Embedding`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from nmtkit.data.batches import source_batch
from nmtkit.models.base import Model, device_of
from nmtkit.text.vocabulary import BOS, EOS, UNK


class _Lookups(TorchFunctionMode):
    """Records each embedding lookup: (ids, table)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.embedding:
            self.seen.append((args[0], args[1]))
        return func(*args, **(kwargs or {}))

    def table(self, ids: Tensor) -> Tensor | None:
        """Return the table in which these ids were looked up; None if they were not."""
        return next((table for seen, table in self.seen if torch.equal(seen, ids)), None)


def word_tables(model: Model) -> tuple[Tensor | None, Tensor | None]:
    """Return the tables (V, E) in which a model looks up source tokens and decoder inputs.

    Args:
        model: its training mode does not change.
    Returns: None for a side that the model does not look up with `F.embedding`.
    """
    batch = source_batch([[UNK] * 4 + [EOS]], device_of(model))
    tgt_in = batch.src.new_tensor([[BOS, UNK, UNK]])
    training = model.training
    with torch.no_grad(), _Lookups() as lookups:
        model.eval().decode(tgt_in, model.encode(batch))
    model.train(training)
    return lookups.table(batch.src), lookups.table(tgt_in)


class WordsWithoutVector(TorchFunctionMode):
    """A context in which a negative id, a word left out, is looked up as a vector of zeros."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.embedding:
            return func(*args, **(kwargs or {}))
        ids, *others = args
        vectors = func(ids.clamp(min=0), *others, **(kwargs or {}))
        return vectors.masked_fill((ids < 0).unsqueeze(-1), 0)
