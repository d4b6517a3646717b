"""The key-value cache: keys and values of the target positions so far.

Buffers are sized once and written by index; reordering hypotheses moves nothing in them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.nn import cpu
from nmtkit.nn.masks import Visible, additive, future
from nmtkit.nn.state import Continued, select_rows


class DeviceCount(NamedTuple):
    """A count that lives on the device, and a bound that the host knows."""

    value: Tensor
    """int64 ()."""
    below: int
    """The count is smaller than this."""


class Cache:
    """The past of every row, for all attentions of a decoder.

    Rows form G groups of K neighbours (the hypotheses of one sentence). Each decoding step appends
    K entries to a group, one for each row. `_seen` marks the entries that are a row's own past;
    reordering hypotheses only reorders that mask. The K rows of a group attend to the group's E
    entries in one product: it reads no more memory than copies for each row would need, and one
    large product is faster than several small ones. When the buffers are full, a CPU removes the
    entries that no row sees any more; the buffers are doubled if that would not free half of them.

    After `fix_shapes`, all steps have the same shapes until the buffers are doubled. Queries attend
    to whole buffers, and the device counts the entries. A CUDA graph of one step then serves all.
    """

    CHANGING = "_length", "_entries", "_counted", "_seen", "recent", "_buffers"
    """The attributes that a decoding step changes and that the next step reads."""

    def __init__(self) -> None:
        self.visible: Visible = None
        """Which entries each query of this call may attend to, as numbers to add to scores (G,
        K·T, E); None = all up to its own.
        """
        self.attention = 0
        """The number of the attention that appends next in this step; layers may share a module."""
        self.recent: dict[int, Tensor] = {}
        """Earlier inputs that an attention needs next, rows first (R, …); reordered here."""
        self._groups = self._rows = self._entries = self._start = self._capacity = 0
        self._buffers: dict[tuple[int, str], Tensor] = {}
        """Keys and values of each attention (G, H, capacity, C)."""
        self._seen: Tensor | None = None
        """bool (R, capacity); None = every row sees all entries of its group."""
        self._length = 0
        self._counted: tuple[Tensor, Tensor] | None = None
        """After `fix_shapes`, the positions and the entries so far, int64 () each."""
        self._index: Tensor | None = None
        """After `fix_shapes`, the entries of this call (K)."""

    @property
    def length(self) -> int | DeviceCount:
        """Return the number of target positions so far."""
        if self._counted is None:
            return self._length
        return DeviceCount(self._counted[0], self._capacity)

    def positions(self, steps: int, device: torch.device) -> Tensor:
        """Return the positions in a target, int64 (T), of the T `steps` that this call adds."""
        end = self._length if self._counted is None else self._counted[0]
        return end - steps + torch.arange(steps, device=device)

    def fix_shapes(self) -> None:
        """Make all further steps, of one position each, alike in shape; make room for one step."""
        self._make_room(self._count)
        if self._counted is not None:
            return
        device = next(iter(self._buffers.values())).device
        _, seen = self._seen_entries(device)
        seen[:, :, self._entries :] = False
        for buffer in self._buffers.values():
            buffer[:, :, self._entries :] = 0  # a weight of 0 does not hide what is not finite
        length = torch.full((), self._length, device=device)
        self._counted = length, torch.full((), self._entries, device=device)

    def begin(self, rows: int, sentences: int, steps: int, like: Tensor) -> None:
        """Make room for the next positions, before any attention appends to it.

        Args:
            rows: R.
            sentences: B; at the first call R / B rows form a group, later the groups are what
                `select_rows` made of them.
            steps: T, how many positions come now.
            like: a tensor with the device and number type of the scores.
        """
        assert self._counted is None or steps == 1
        self.attention = 0
        if self._length == 0:
            self._groups, self._rows = sentences, rows
        self._make_room(self._count * steps)
        self._start, self._entries = self._entries, self._entries + self._count * steps
        self._length += steps
        self.visible = self._mask(steps, like) if self._counted is None else self._count_step(like)

    @property
    def _count(self) -> int:
        """Return K, the rows of a group."""
        return self._rows // self._groups

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of the new positions to those of one attention. The attentions of
        a decoder append in the same order in each step, and once each.

        The index of an entry is not its position in a target. If attention depends on positions,
        rotate the keys by `positions`, or store the positions beside them, before they are added.

        Args:
            k: (R, H, T, C), v: (R, H, T, C'); views will do.
        Returns: the keys (G, H, E, C) and values (G, H, E, C') of all positions so far.
        """
        number, self.attention = self.attention, self.attention + 1
        return self._write((number, "keys"), k), self._write((number, "values"), v)

    def _write(self, name: tuple[int, str], new: Tensor) -> Tensor:
        _, heads, steps, width = new.shape
        if name not in self._buffers:
            self._buffers[name] = cpu.buffer(new, self._groups, heads, self._capacity, width)
        buffer = self._buffers[name]
        grouped = new.unflatten(0, (self._groups, -1)).transpose(1, 2)  # (G, H, K, T, C)
        if self._index is not None:
            return buffer.index_copy_(2, self._index, grouped.flatten(2, 3))
        buffer[:, :, self._start : self._entries].unflatten(2, (-1, steps)).copy_(grouped)
        return buffer[:, :, : self._entries]

    def _seen_entries(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the identity matrix of a group's rows (K, K), and `_seen` (G, K, capacity)."""
        if self._seen is None:  # until now every row saw all entries of its group
            self._seen = torch.ones(self._rows, self._capacity, dtype=torch.bool, device=device)
        own = torch.eye(self._count, dtype=torch.bool, device=device)
        return own, self._seen.view(self._groups, self._count, -1)

    def _mask(self, steps: int, like: Tensor) -> Visible:
        """Return which entries each new position sees: the past of its own row, and itself."""
        count = self._count
        if self._seen is None and count == 1:
            return None
        own, seen = self._seen_entries(like.device)
        seen[:, :, self._start : self._entries] = own.repeat_interleave(steps, dim=1)  # (K, K·T)
        visible = seen[:, :, : self._entries]
        if steps > 1:
            visible = visible.repeat_interleave(steps, dim=1)  # (G, K·T, E)
            visible[:, :, self._start :] &= ~future(steps, steps, like.device).repeat(count, count)
        return additive(visible, like.dtype)

    def _count_step(self, like: Tensor) -> Tensor:
        """Count a step, and return its mask (G, K, capacity)."""
        assert self._counted is not None
        positions, entries = self._counted
        self._index = entries + torch.arange(self._count, device=like.device)
        self._counted = positions + 1, entries + self._count
        own, seen = self._seen_entries(like.device)
        seen.index_copy_(2, self._index, own.expand(self._groups, -1, -1))
        return additive(seen, like.dtype)

    def _make_room(self, new: int) -> None:
        """Make room for new entries, if there is not enough.

        Entries that no row sees are removed, unless the host would wait for their number. Otherwise
        the buffers grow.
        """
        if self._entries + new <= self._capacity:
            return
        if self._seen is not None and cpu.reads_at_once(self._seen):
            seen = self._seen[:, : self._entries]
            live = seen.view(self._groups, -1, self._entries).any(1)  # (G, E)
            count = int(live.sum(1).max())
            if count + max(count, new) <= self._capacity:
                self._keep(live, count)
                return
        capacity = max(64, 2 * self._capacity, 2 * (self._entries + new))
        if self._seen is not None:
            self._seen = F.pad(self._seen, (0, capacity - self._capacity))
        self._rebuild(capacity)

    def _keep(self, live: Tensor, count: int) -> None:
        """Remove the entries that are not live (G, E), of which a group has at most `count`."""
        assert self._seen is not None
        order = live.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
        self._rebuild(self._capacity, entries=order)
        rows = order.repeat_interleave(self._count, dim=0)  # (R, count)
        self._seen[:, :count] = self._seen.gather(1, rows)

    def _rebuild(
        self, capacity: int, groups: Tensor | None = None, entries: Tensor | None = None
    ) -> None:
        """Copy all entries to new buffers.

        Args:
            capacity: of the new buffers.
            groups: which groups the new buffers have (G'); None = all.
            entries: which of its entries each of them has (G', E'); None = all.
        """
        for name, buffer in self._buffers.items():
            past = buffer[:, :, : self._entries]
            past = past if groups is None else past.index_select(0, groups)
            if entries is not None:
                index = entries[:, None, :, None].expand(-1, past.size(1), -1, past.size(3))
                past = past.gather(2, index)
            groups_left, heads, _, width = past.shape
            buffer = self._buffers[name] = cpu.buffer(past, groups_left, heads, capacity, width)
            buffer[:, :, : past.size(2)] = past
            if self._counted is not None:
                buffer[:, :, past.size(2) :] = 0
        self._entries = self._entries if entries is None else entries.size(1)
        self._capacity = capacity

    def select_rows(self, index: Continued) -> Cache:
        """Select rows (R'); see `nmtkit.nn.state.select_rows`."""
        self.recent = select_rows(self.recent, index)
        if index.sentences is not None:
            self._rebuild(self._capacity, groups=index.sentences)
            self._groups = len(index.sentences)
        self._rows = len(index.rows)
        if self._seen is not None:
            self._seen = self._seen.index_select(0, index.rows)
        return self
