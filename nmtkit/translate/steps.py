"""One step of a search over one model or several: the log-probabilities of the best next tokens of
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
"""Columns whose maximum is looked at first when the best of a row are sought."""
Pick = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""Returns the tokens that may continue some rows: their logits (R', k), -inf in a place without a
token, and their ids (R', k). Arguments: the logits (R', V), which it may overwrite, -inf for <pad>
and <s>; and which of all rows they are.
"""


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
        """Read one more token in every row and pick the next ones.

        Args:
            last: (R) the tokens just chosen.
            pick: picks the tokens that may follow.
        Returns: natural log-probabilities (R, k) in the `widest` type and token ids (R, k), in
            the order of `pick`; never <pad> or <s>, whose places have -inf.
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
            picked_tokens(self._logits(block), slice(i * rows, (i + 1) * rows), pick)
            for i, block in enumerate(blocks)
        ]
        values, ids = zip(*parts, strict=True)
        return torch.cat(values), torch.cat(ids)

    def _logits(self, hidden: Sequence[Tensor]) -> Tensor:
        """Return the logits (R', V) of each model's hidden (R', D); for an ensemble the logarithm
        of the mean probabilities, plus a constant.
        """
        scores = [exact_logits(m, h) for m, h in zip(self._models, hidden, strict=True)]
        if len(scores) == 1:
            return scores[0]
        return torch.stack([wide(s).log_softmax(-1) for s in scores]).logsumexp(0)

    def fix_shapes(self) -> None:
        """Keep the shapes of caches from step to step."""
        mapped(self._states, lambda leaf: leaf.fix_shapes() if isinstance(leaf, Cache) else None)

    def keep_rows(self, rows: Continued) -> None:
        """Go on with these rows of the states."""
        self._states = [select_rows(state, rows) for state in self._states]

    def keep_sentences(self, sentences: Tensor) -> None:
        """Go on with these sentences of the memories."""
        self._memories = [select_rows(memory, sentences) for memory in self._memories]


def exact_logits(model: Model, hidden: Tensor) -> Tensor:
    """Return logits (R', V) of hidden (R', D), in 32 bits even if the layers use 16: scores are
    compared with one another.
    """
    if not torch.is_autocast_enabled(hidden.device.type):
        return model.logits(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        return model.logits(wide(hidden))


def wide(logits: Tensor) -> Tensor:
    """Return logits of at least 32 bits, for sums over the vocabulary."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def picked_tokens(logits: Tensor, rows: slice, pick: Pick) -> tuple[Tensor, Tensor]:
    """Return the tokens that `pick` picks from each row.

    Args:
        logits: (R', V); overwritten.
        rows: which of all rows they are.
        pick: see `Decoders.step`.
    Returns: log-probabilities (R', k) in the `widest` type, token ids (R', k).
    """
    logits = wide(logits)
    log_probs = logits.log_softmax(-1)  # one kernel: faster than several passes over all rows
    logits[:, NEVER] = -math.inf
    values, ids = pick(logits, rows)
    return log_probs.gather(1, ids).masked_fill(values == -math.inf, -math.inf).to(
        widest(logits.device)
    ), ids


def top_sorted(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of each row with their columns, largest first, equal ones by
    column (torch.topk leaves that open).

    Args:
        values: (R, C).
    Returns: values and columns, both (R, min(k, C)).
    """
    if values.shape[1] <= k:
        return values.sort(dim=-1, descending=True, stable=True)
    if not cpu.reads_at_once(values):
        return _top_without_a_wait(values, k)
    if k == 1:
        return _first_largest(values)
    top, index = _largest(values, k + 1)
    tied = (top[:, 1:] == top[:, :-1]) & (top[:, 1:] > -math.inf)
    rows = tied.any(1).nonzero()[:, 0]
    top, index = top[:, :k], index[:, :k]
    if len(rows):
        exact, where = values[rows].sort(dim=-1, descending=True, stable=True)
        top = top.index_copy(0, rows, exact[:, :k])
        index = index.index_copy(0, rows, where[:, :k])
    return top, index


def _first_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest entry of each row and its column, the first one of equals, (R, 1) each."""
    columns = values.shape[1]
    if columns < CHUNK:
        return values.max(1, keepdim=True)
    index = _columns(_maxima(values).max(1, keepdim=True).indices, columns)
    top, where = values.gather(1, index).max(1, keepdim=True)
    return top, index.gather(1, where)


def _top_without_a_wait(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return `top_sorted` by stable sorts, without waiting for a GPU to say whether entries
    are equal.

    A stable sort puts the first of two equal chunks first, and so its entries.
    """
    columns = values.shape[1]
    index: Tensor | None = None
    if columns // CHUNK >= 4 * k:
        best = _maxima(values).sort(dim=-1, descending=True, stable=True)[1][:, :k].sort(dim=-1)[0]
        index = _columns(best, columns)
        values = values.gather(1, index)
    top, where = values.sort(dim=-1, descending=True, stable=True)
    top, where = top[:, :k], where[:, :k]
    return top, where if index is None else index.gather(1, where)


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return what torch.topk returns, several times as fast on long rows: the k largest entries lie
    in the k chunks with the largest maxima, or in the rest of the row.
    """
    columns = values.shape[1]
    if columns // CHUNK < 4 * k:
        return values.topk(k, dim=-1)
    index = _columns(_maxima(values).topk(k, dim=-1, sorted=False).indices, columns)
    top, where = values.gather(1, index).topk(k, dim=-1)
    return top, index.gather(1, where)


def _maxima(values: Tensor) -> Tensor:
    """Return the largest entry of each chunk: (R, C) -> (R, C // CHUNK)."""
    rows, columns = values.shape
    return values[:, : columns // CHUNK * CHUNK].reshape(rows, columns // CHUNK, CHUNK).amax(2)


def _columns(best: Tensor, columns: int) -> Tensor:
    """Return the columns (R, k·CHUNK+rest) of some chunks (R, k) and of the rest of the row."""
    device, body = best.device, columns // CHUNK * CHUNK
    inside = (best[:, :, None] * CHUNK + torch.arange(CHUNK, device=device)).flatten(1)
    rest = torch.arange(body, columns, device=device).expand(len(best), -1)
    return torch.cat([inside, rest], 1)
