"""One step of a search with one or several models: the log-probabilities of the best next tokens of
every row.

Legend: R rows (hypotheses), V vocabulary, D width, k tokens wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.models.base import Memory, Model, State
from nmtkit.nn import cpu
from nmtkit.nn.cache import Cache
from nmtkit.nn.hardware import widest
from nmtkit.nn.state import Continued, mapped, select_rows
from nmtkit.text.vocabulary import BOS, PAD

NEVER = slice(min(PAD, BOS), max(PAD, BOS) + 1)  # <pad> and <s>, which are neighbours
BLOCK_LOGITS = 1 << 22
"""Logits computed at once on a CPU, so that memory does not grow with rows x vocabulary."""
CHUNK = 64
"""Columns of a chunk. The search for the largest entries of a row begins with chunk maxima."""
Pick = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""Returns the tokens that may continue some rows: their logits (R', k), -inf in a place without a
token, and their ids (R', k). Arguments: the logits (R', V), which are -inf for <pad> and <s> and
may be overwritten; the slice of all rows that they are.
"""
Select = Callable[[Tensor], tuple[Tensor, Tensor]]


class Decoders:
    """One or several models in the middle of decoding a batch.

    Args:
        models: they share a target vocabulary; each has its own memory and state.
        batch: the sources (B sentences).
    """

    CHANGING = "_memories", "_states"
    """The attributes that a step reads or changes."""

    def __init__(self, models: Sequence[Model], batch: Batch) -> None:
        self.device = batch.src.device
        self._models = list(models)
        self._memories: list[Memory] = [model.encode(batch) for model in self._models]
        self._states: list[State] = [{} for _ in self._models]

    def step(self, last: Tensor, pick: Pick) -> tuple[Tensor, Tensor]:
        """Read one more token in every row and pick the next tokens.

        Args:
            last: (R) the newest token of each row.
            pick: picks the next tokens.
        Returns: natural log-probabilities (R, k) in the `widest` type and token ids (R, k), in
            the order of `pick`; a place without a token has -inf.
        """
        hidden = []
        for i, model in enumerate(self._models):
            output, state = model.decode(last[:, None], self._memories[i], self._states[i])
            self._states[i] = state or {}
            hidden.append(output[:, -1])  # (R, D)
        rows = len(last)
        if self.device.type == "cpu":
            rows = max(1, BLOCK_LOGITS // self._models[0].vocabularies.tgt)
        blocks = zip(*(torch.split(h, rows) for h in hidden), strict=True)
        parts = [
            self._picked(block, slice(i * rows, (i + 1) * rows), pick)
            for i, block in enumerate(blocks)
        ]
        values, ids = zip(*parts, strict=True)
        return torch.cat(values), torch.cat(ids)

    def _picked(self, hidden: Sequence[Tensor], rows: slice, pick: Pick) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and the ids (R', k) of the next tokens of some rows.

        Args:
            hidden: (R', D) of each model.
            rows: the slice of all rows that they are.
        """
        scores = [exact_logits(m, h) for m, h in zip(self._models, hidden, strict=True)]
        logits = scores[0]
        if len(scores) > 1:  # the logarithm of the mean probabilities, plus a constant
            logits = torch.stack([s.log_softmax(-1) for s in scores]).logsumexp(0)
        log_probs = logits.log_softmax(-1)  # one kernel: faster than several passes over all rows
        logits[:, NEVER] = -math.inf
        values, ids = pick(logits, rows)
        log_probs = log_probs.gather(1, ids).masked_fill(values == -math.inf, -math.inf)
        return log_probs.to(widest(logits.device)), ids

    def fix_shapes(self) -> None:
        """Keep the shapes of caches from step to step."""
        mapped(self._states, lambda leaf: leaf.fix_shapes() if isinstance(leaf, Cache) else None)

    def keep_rows(self, rows: Continued) -> None:
        """Keep only these rows of the states."""
        self._states = [select_rows(state, rows) for state in self._states]

    def keep_sentences(self, sentences: Tensor) -> None:
        """Keep only these sentences of the memories."""
        self._memories = [select_rows(memory, sentences) for memory in self._memories]


def exact_logits(model: Model, hidden: Tensor) -> Tensor:
    """Return the logits (R', V) of hidden states (R', D), in 32 bits even if the layers use 16,
    because scores are compared with each other.
    """
    if not torch.is_autocast_enabled(hidden.device.type):
        return wide(model.logits(hidden))
    with torch.autocast(hidden.device.type, enabled=False):
        return wide(model.logits(wide(hidden)))


def wide(logits: Tensor) -> Tensor:
    """Return logits of at least 32 bits, for sums over the vocabulary."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def top_sorted(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of each row with their columns, largest first, equal ones by
    column (torch.topk leaves the order of equal ones open).

    Args:
        values: (R, C).
    Returns: values and columns, both (R, min(k, C)).
    """

    def exact(values: Tensor) -> tuple[Tensor, Tensor]:
        top, columns = values.sort(dim=-1, descending=True, stable=True)
        return top[:, :k], columns[:, :k]

    if values.shape[1] <= k:
        return exact(values)
    if not cpu.reads_at_once(values):  # a look for equal entries would wait for the GPU
        return _selected(values, k, exact)
    if k == 1:
        return _selected(values, 1, lambda x: x.max(1, keepdim=True))  # the first of equal ones
    top, index = _selected(values, k + 1, lambda x: x.topk(k + 1, dim=-1))
    tied = (top[:, 1:] == top[:, :-1]) & (top[:, 1:] > -math.inf)
    rows = tied.any(1).nonzero()[:, 0]
    top, index = top[:, :k], index[:, :k]
    if len(rows):
        exact_top, exact_index = exact(values[rows])
        top = top.index_copy(0, rows, exact_top)
        index = index.index_copy(0, rows, exact_index)
    return top, index


def _selected(values: Tensor, k: int, select: Select) -> tuple[Tensor, Tensor]:
    """Return select(values), several times as fast on long rows: the k largest entries lie in the k
    chunks with the largest maxima, or in the rest of the row.

    Args:
        select: returns the k largest entries of each row, and their columns.
    """
    columns = values.shape[1]
    if columns // CHUNK < 4 * k:
        return select(values)
    chunks = select(_maxima(values))[1]
    if not cpu.reads_at_once(values):  # `select` is a stable sort: columns keep their order
        chunks = chunks.sort(dim=-1)[0]
    index = _columns(chunks, columns)
    top, where = select(values.gather(1, index))
    return top, index.gather(1, where)


def _maxima(values: Tensor) -> Tensor:
    """Return the largest entry of each chunk: (R, C) -> (R, C // CHUNK)."""
    chunks = values.shape[1] // CHUNK
    return values[:, : chunks * CHUNK].reshape(len(values), chunks, CHUNK).amax(2)


def _columns(chunks: Tensor, columns: int) -> Tensor:
    """Return the columns (R, k·CHUNK+rest) of some chunks (R, k) and of the rest of the row."""
    device = chunks.device
    inside = (chunks[:, :, None] * CHUNK + torch.arange(CHUNK, device=device)).flatten(1)
    rest = torch.arange(columns // CHUNK * CHUNK, columns, device=device).expand(len(chunks), -1)
    return torch.cat([inside, rest], 1)
