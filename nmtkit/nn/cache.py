"""Keys and values of the target positions so far: sized once, written by index, never moved when
hypotheses are reordered.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nmtkit.nn.masks import additive, future


class Cache:
    """The past of every row, for all attentions of a decoder.

    Rows form G groups of K neighbours (the hypotheses of one sentence). Each decoding step appends
    K entries to a group, one for each row, and `seen` says which entries of its group are a row's
    own past; reordering hypotheses only reorders that mask. The K rows of a group attend to the
    group's E entries in one product, so reading them is no more work for memory than copying them
    would be, and the products are larger. When the buffers are full, entries that no row sees any
    more are thrown out; they are doubled only if that would not free half of them.

    Args:
        layers: how many attentions keep their keys and values here.
    """

    def __init__(self, layers: int) -> None:
        self.length = 0
        """Target positions so far."""
        self.visible: Tensor | None = None
        """Which entries each query of this call may attend to, as numbers to add to scores (G,
        K·T, E); None = all up to its own.
        """
        self._groups = self._rows = self._entries = self._start = self._capacity = 0
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self.recent: dict[int, Tensor] = {}
        """What a layer keeps of the positions just before, rows first (R, …); only kept in order
        here.
        """
        self._seen: Tensor | None = (
            None  # bool (R, capacity); None = every row sees all entries of its group
        )

    def begin(self, rows: int, sentences: int, steps: int, like: Tensor) -> None:
        """Make room for the next positions, before any layer appends to it.

        Args:
            rows: R.
            sentences: B; at the first call R / B rows form a group, later the groups are what
                `select_rows` made of them.
            steps: T, how many positions come now.
            like: a tensor with the device and number type of the scores.
        """
        if self.length == 0:
            self._groups, self._rows = sentences, rows
        new = rows // self._groups * steps
        if self._entries + new > self._capacity:
            self._make_room(new, like.device)
        self._start, self._entries = self._entries, self._entries + new
        self.length += steps
        self.visible = self._mask(steps, like)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of the new positions to one layer.

        Args:
            layer: its index.
            k: (R, H, T, C), v: (R, H, T, C'), as `attention` takes them; views will do.
        Returns: the keys (G, H, E, C) and values (G, H, E, C') of all positions so far.
        """
        return self._write(self._keys, layer, k), self._write(self._values, layer, v)

    def _write(self, buffers: list[Tensor | None], layer: int, new: Tensor) -> Tensor:
        rows, heads, steps, width = new.shape
        buffer = buffers[layer]
        if buffer is None:
            buffer = buffers[layer] = new.new_empty(self._groups, heads, self._capacity, width)
        here = buffer[:, :, self._start : self._entries].unflatten(
            2, (-1, steps)
        )  # (G, H, K, T, C)
        here.copy_(new.unflatten(0, (self._groups, -1)).transpose(1, 2))
        return buffer[:, :, : self._entries]

    def _mask(self, steps: int, like: Tensor) -> Tensor | None:
        count = self._rows // self._groups
        if count == 1 and self._seen is None:
            return None
        if self._seen is None:
            self._seen = torch.ones(
                self._rows, self._capacity, dtype=torch.bool, device=like.device
            )
        own = torch.eye(count, dtype=torch.bool, device=like.device).repeat_interleave(
            steps, dim=1
        )  # (K, K·T)
        seen = self._seen.view(self._groups, count, -1)
        seen[:, :, self._start : self._entries] = own
        visible = seen[:, :, : self._entries]
        if steps > 1:
            visible = visible.repeat_interleave(steps, dim=1)  # (G, K·T, E)
            visible[:, :, self._start :] &= ~future(steps, steps, like.device).repeat(count, count)
        return additive(visible, like.dtype)

    def _make_room(self, new: int, device: torch.device) -> None:
        if self._seen is not None and self._entries:
            live = (
                self._seen[:, : self._entries].view(self._groups, -1, self._entries).any(1)
            )  # (G, E)
            most = int(live.sum(1).max())
            if 2 * most <= self._capacity and most + new <= self._capacity:
                order = live.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
                self._rebuild(
                    lambda t: t.gather(
                        2, order[:, None, :, None].expand(-1, t.size(1), -1, t.size(3))
                    ),
                    most,
                    self._capacity,
                )
                rows = order.repeat_interleave(self._rows // self._groups, dim=0)  # (R, most)
                self._seen[:, :most] = self._seen.gather(1, rows)
                return
        capacity = max(64, 2 * self._capacity, 2 * (self._entries + new))
        self._rebuild(lambda t: t, self._entries, capacity)
        if self._seen is not None:
            grown = self._seen.new_zeros(self._rows, capacity)
            grown[:, : self._entries] = self._seen[:, : self._entries]
            self._seen = grown

    def _rebuild(self, function: Callable[[Tensor], Tensor], entries: int, capacity: int) -> None:
        """Give every buffer its entries anew: function((G, H, E, C)) -> (G', H, E', C), in a
        buffer of `capacity`.
        """
        for buffers in (self._keys, self._values):
            for layer, buffer in enumerate(buffers):
                if buffer is not None:
                    kept = function(buffer[:, :, : self._entries])
                    buffers[layer] = fresh = kept.new_empty(*kept.shape[:2], capacity, kept.size(3))
                    fresh[:, :, :entries] = kept
        self._entries, self._capacity = entries, capacity

    def select_rows(self, index: Tensor) -> Cache:
        """Keep the rows of `index` (R'); see `nmtkit.nn.state.select_rows`."""
        self.recent = {layer: kept.index_select(0, index) for layer, kept in self.recent.items()}
        rows, count = index.numel(), self._rows // self._groups
        group = index // count
        continues = torch.arange(rows, device=index.device) * self._groups // rows
        if rows % self._groups == 0 and torch.equal(group, continues):
            pass  # every hypothesis continues one of its own sentence: only the mask changes
        elif rows % count == 0 and bool(
            (group.view(-1, count) == group.view(-1, count)[:, :1]).all()
        ):
            kept = group.view(-1, count)[:, 0]
            self._rebuild(lambda t: t.index_select(0, kept), self._entries, self._capacity)
            self._groups = kept.numel()
        else:
            self._separate(index, group)
            return self
        self._rows = rows
        if self._seen is not None:
            self._seen = self._seen.index_select(0, index)
        return self

    def _separate(self, index: Tensor, group: Tensor) -> None:
        """Any rows in any order: every row becomes a group of its own, with its own past only."""
        past: Tensor | None = None
        if self._seen is not None:
            # Every row sees exactly `length` entries, in the order of time.
            past = (
                self._seen.index_select(0, index)[:, : self._entries]
                .nonzero()[:, 1]
                .view(index.numel(), 1, self.length, 1)
            )
        self._seen = None
        self._groups = self._rows = index.numel()
        if past is None:
            self._rebuild(lambda t: t.index_select(0, group), self._entries, self._capacity)
        else:
            self._rebuild(
                lambda t: t.index_select(0, group).gather(
                    2, past.expand(-1, t.size(1), -1, t.size(3))
                ),
                self.length,
                self._capacity,
            )

    def repeat_rows(self, count: int) -> Cache:
        """Every row `count` times; see `nmtkit.nn.state.repeat_rows`."""
        some = next(t for t in self._keys if t is not None)
        return self.select_rows(
            torch.arange(self._rows, device=some.device).repeat_interleave(count)
        )

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Cache:
        """Apply a function to every tensor; see `nmtkit.nn.state.map_tensors`."""
        self._keys = [None if t is None else function(t) for t in self._keys]
        self._values = [None if t is None else function(t) for t in self._values]
        self._seen = None if self._seen is None else function(self._seen)
        self.recent = {layer: function(kept) for layer, kept in self.recent.items()}
        return self
