"""The gradient of an update, accumulated over its micro-batches.

Each micro-batch has its own random numbers, seeded by its place in the update and not by the rank
that computes it. So an update is the same for any number of ranks, unless batches are joined
(`joins`): then they are cut for the number of ranks, and the dropout masks depend on it.

A micro-batch that does not fit into memory is computed in parts. A part is a micro-batch of its
own: the update is the mean over the same pairs, but with other dropout masks. The training's state
therefore holds the size from which batches are cut, so that a resumed training does the same. An
update with fewer micro-batches than ranks is cut, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from nmtkit import console
from nmtkit.arrays import Integers
from nmtkit.data.batch_lists import padded_positions
from nmtkit.data.batches import Batch, collate, collate_packed
from nmtkit.data.packing import filled
from nmtkit.data.padding import Ids
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, EnvironmentProblem, is_out_of_memory
from nmtkit.models.base import Model, target_states
from nmtkit.nn import cpu, gpu
from nmtkit.nn.dropout import seed_everything
from nmtkit.nn.hardware import Hardware, widest
from nmtkit.nn.recording import graphs_fit
from nmtkit.settings import TrainSettings
from nmtkit.train import loss as losses
from nmtkit.train.gradient_sums import GradientSums
from nmtkit.train.graphs import Graphs, copied_fields
from nmtkit.train.multi_tensor import multi_tensor_pass
from nmtkit.train.perturb import perturbation
from nmtkit.train.ranks import Ranks
from nmtkit.train.state import TrainState
from nmtkit.train.updates import cuts_for_ranks, equal_parts
from nmtkit.translate import step_graphs

FEW_ROWS = 128
"""On a GPU, the rows of packed batches have a multiple of this many positions."""
T = TypeVar("T")
ALL_FIT = 2**53
"""Larger than any batch: returned when every part fitted into memory."""


def autocast_arguments(hardware: Hardware) -> dict[str, Any]:
    """Return the arguments of torch.autocast for the precision of the hardware."""
    return {
        "device_type": hardware.device,
        "dtype": torch.float16 if hardware.precision == "float16" else torch.bfloat16,
        "enabled": hardware.precision != "float32",
    }


def packed_multiple(
    model: Model, settings: TrainSettings, device: str, in_rows: bool = True
) -> int:
    """Return the number m, so that the length of a packed row is a multiple of m; 0 = not packed.

    On a GPU m is an eighth of a batch, or a 24th of an update whose batches are joined, so that few
    shapes occur.

    Args:
        model: that reads the batches.
        settings: packed, batch_unit, batch_size, micro_batch, update_size, replace, word_dropout.
        device: cpu, cuda or mps.
        in_rows: True if a GPU has a kernel for attention within the sentences of a row.
    Raises: ConfigError if the settings ask for packed batches that the model cannot read.
    """
    perturbs = settings.replace != "none" or settings.word_dropout > 0
    # A packed source with its context would be perturbed as a whole.
    reads = model.reads_packed and not (perturbs and model.context_form == "source")
    if settings.packed == "yes" and not reads:
        message = f"{type(model).__name__} does not read packed batches with these settings"
        hint = "leave it out: auto packs where the model reads it"
        if not (model.reads_packed or type(model).__module__.startswith("nmtkit.")):
            hint += "; if your class reads packed batches, write in it: packs = True"
        raise ConfigError(message, where="train.packed", hint=hint)
    # Measured: a CPU loses in attention what it saves elsewhere. But a context and its source
    # together differ much in length, so their padding costs more. On a GPU without a kernel,
    # attention pads all sentences to the longest of a whole update. But padded contexts have no
    # CUDA graphs.
    gains = {
        "cuda": in_rows or model.context_rule is not None,
        "cpu": model.context_form == "source",
    }
    wanted = settings.packed == "yes" or (settings.packed == "auto" and gains.get(device))
    if not (wanted and reads):
        return 0
    if device == "cpu":
        return cpu.FILLED
    if settings.batch_unit == "sentences":
        return FEW_ROWS
    joined = settings.update_size if settings.micro_batch == "auto" else 0
    return max(FEW_ROWS, max(settings.batch_size // 8, joined // 24) // FEW_ROWS * FEW_ROWS)


def joins(settings: TrainSettings, device: torch.device) -> bool:
    """True if the batches of an update are joined, and cut anew."""
    return settings.micro_batch == "auto" and device.type == "cuda"


@dataclass(frozen=True)
class Share:
    """A rank's share of an update.

    Attributes:
        parts: the place in the update, which seeds the random numbers, and the rows of each part.
        split_from: of the state when the parts were cut.
        batches: the batches that are made already, by place.
    """

    parts: list[tuple[int, Ids]]
    split_from: int | None = None
    batches: dict[int, Batch] = field(default_factory=dict)


@dataclass
class Gradients:
    """Computes gradients of a model on batches of a training set.

    Args:
        model: in training mode, on its device; without gradients.
        store: the training set.
        settings: seed, label_smoothing, packed, replace, word_dropout.
        autocast: arguments of torch.autocast.
        state: holds `split_from`, which is lowered when memory does not suffice.
        ranks: the processes that share the work.
        note: returns the numbers that this rank sends to the other ranks in each update.
    Attributes:
        device: of the model.
        joins: True if the batches of an update are joined.
        graphs: of batches on a GPU; None = kernel by kernel.
        notes: the numbers of every rank in the last update.
    """

    model: Model
    store: Store
    settings: TrainSettings
    autocast: dict[str, Any]
    state: TrainState
    ranks: Ranks = field(default_factory=Ranks)
    note: Callable[[], Sequence[float]] = list

    def __post_init__(self) -> None:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.device = parameters[0].device
        self.joins = joins(self.settings, self.device)
        self.graphs: Graphs | None = None
        self.notes: list[list[float]] = []
        # Read here, because a thread makes batches during validations too, in which a model may
        # have another rule.
        self._rule = self.model.train().context_rule
        self._released = False  # True if graphs gave back their memory since the update began
        self._chunk = losses.chunk_rows(self.model.vocabularies.tgt, self.device.type)
        if warning := gpu.load_kernels(self.device):
            console.warn(warning)
        self._narrow = self.autocast["dtype"] if self.autocast.get("enabled") else None
        in_rows = gpu.attends_in_rows(self._narrow or torch.float32)
        self._multiple = packed_multiple(self.model, self.settings, self.device.type, in_rows)
        self._perturb = perturbation(self.model, self.settings)
        # A graph has one shape. Padded contexts would have many, and a batch that is perturbed, or
        # whose length matters, cannot be rounded up.
        few_shapes = self._multiple or self.model.context_rule is None
        plain = self._perturb is None and not self.model.reads_batch_length
        if few_shapes and plain and graphs_fit(self.device):
            self.graphs = Graphs(self._add_part, "batches")
        dtype = getattr(torch, self.settings.sums)
        self._sums = GradientSums(parameters, self.ranks, dtype, self.graphs is not None)

    def share(self, update: list[Ids], make: bool = False) -> Share:
        """Return the share of this rank, cut for the memory known so far.

        Args:
            update: the rows of its batches.
            make: True to make the batches, too.
        """
        split_from = self.state.split_from
        parts = self.ranks.share(list(enumerate(self.parts(update))))
        batches = {micro: self._batch(rows) for micro, rows in parts} if make else {}
        return Share(parts, split_from, batches)

    def _batch(self, rows: Ids) -> Batch:
        model, few, rule = self.model, self.graphs is not None, self._rule
        if self._multiple:
            fixed = self.device, self._multiple, few, rule, model.context_form, model.prepare
            batch = collate_packed(self.store, rows, *fixed)
        else:
            batch = collate(self.store, rows, self.device, rule, few_shapes=few)
        return replace(batch, spans=None) if few and not model.reads_spans else batch

    def compute(
        self, update: list[Ids], step: int, divisor: float, share: Share | None = None
    ) -> Tensor:
        """Compute the gradient of an update: each rank computes its share and gets the sum.

        If memory does not suffice, begin again with smaller parts.

        Args:
            update: the rows of its micro-batches.
            step: of the optimiser, for the random numbers.
            divisor: of the loss: the target tokens of the whole update, over the loss scale.
            share: of this rank, if it is known already.
        Returns: sums (2) of the smoothed loss and of the negative log-likelihood, not divided.
        Raises: EnvironmentProblem if memory does not hold a single pair.
        """
        self._released = self.graphs is None and self.device.type != "cuda"
        while True:
            if share is None or share.split_from != self.state.split_from:
                share = self.share(update)
            self._sums.begin()
            sums, too_big = self.add(share, step, divisor, self._sums.overlap)
            sums, self.notes = self._sums.finish(sums, [too_big, *self.note()])
            smallest = min(int(row.pop(0)) for row in self.notes)
            if smallest == ALL_FIT:
                return sums
            if self._released:
                self.state.split_from = smallest
            self.model.zero_grad(set_to_none=True)
            self.release_memory()

    def release_memory(self) -> None:
        """Give back the memory of all graphs, and what torch keeps of a GPU's memory."""
        step_graphs.forget()
        if self.graphs:
            self.graphs.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._released = True

    def with_memory(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return what `work` returns. If memory does not suffice, release some and work again."""
        try:
            return work(*arguments)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self.release_memory()
        return work(*arguments)

    def add(
        self,
        share: Share,
        step: int,
        divisor: float,
        before_last: Callable[[Tensor], object] | None = None,
    ) -> tuple[Tensor, int]:
        """Add the gradients of a share of an update.

        Args:
            share: of this rank, or all parts of the update.
            step, divisor: as of `compute`.
            before_last: is called with the hidden states of the last part before their backward
                pass.
        Returns: sums (2) of the smoothed loss and of the negative log-likelihood; positions of the
            part that did not fit into memory, else ALL_FIT.
        """
        sums = torch.zeros(2, dtype=widest(self.device), device=self.device)
        # The outermost region keeps the 16-bit copies of weights for all parts.
        with torch.autocast(**self.autocast | {"enabled": False}):
            for micro, rows in share.parts:
                try:
                    seed_everything(self.settings.seed, step, micro)
                    batch = share.batches.get(micro) or self._batch(rows)
                    if self._perturb:
                        batch = self._perturb.inputs(batch, step)
                    if self.graphs:
                        scale = torch.full_like(sums[0], 1 / divisor)
                        sums += self.graphs(copied_fields(batch), scale)
                    else:
                        before = before_last if micro == share.parts[-1][0] else None
                        sums += self._add_part(batch, 1 / divisor, before)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    return sums, self._too_big(rows)
        return sums, ALL_FIT

    def parts(self, update: list[Ids]) -> list[Ids]:
        """Return the micro-batches of an update, cut for the ranks and to fit into memory."""
        world = self.ranks.world
        if self.joins:
            rows = np.concatenate(update)
            below = self.state.split_from or ALL_FIT
            cut = equal_parts(rows, *self.store.lengths(rows), world, below, self.positions)
        else:
            count = cuts_for_ranks(len(update), world)
            cut = [part for rows in update for part in np.array_split(rows, min(count, len(rows)))]
        return [part for rows in cut for part in self._halved_to_fit(rows)]

    def positions(self, src_lengths: Integers, tgt_lengths: Integers) -> int:
        """Return the number of positions of a batch of pairs (B): both sides, padding included."""
        if self._multiple:
            return sum(filled(side, self._multiple) for side in (src_lengths, tgt_lengths))
        return padded_positions(src_lengths, tgt_lengths)

    def positions_of(self, rows: Ids) -> int:
        """Return the number of positions of a batch by its rows."""
        return self.positions(*self.store.lengths(rows))

    def _add_part(
        self,
        batch: Batch,
        scale: float | Tensor,
        before: Callable[[Tensor], object] | None = None,
    ) -> Tensor:
        """Add the gradients of a micro-batch.

        Args:
            scale: of the gradients; a tensor if a graph computes them.
            before: is called with the hidden states before the backward pass.
        Returns: sums (2) of the smoothed loss and of the negative log-likelihood.
        """
        with contextlib.ExitStack() as whole_pass:
            if self.graphs:
                whole_pass.enter_context(multi_tensor_pass(self.model, self._narrow))
            perturbing = self._perturb.reading() if self._perturb else contextlib.nullcontext()
            with torch.autocast(**self.autocast), perturbing:
                hidden = target_states(self.model, batch)
            if before:
                before(hidden)
            smoothing = self.settings.label_smoothing
            return losses.backward(self._logits, hidden, batch, smoothing, scale, self._chunk)

    def _logits(self, hidden: Tensor) -> Tensor:
        with torch.autocast(**self.autocast):
            return self.model.logits(hidden)

    def _halved_to_fit(self, rows: Ids) -> list[Ids]:
        split_from = self.state.split_from
        if split_from is None or len(rows) == 1 or self.positions_of(rows) < split_from:
            return [rows]
        half = len(rows) // 2
        return self._halved_to_fit(rows[:half]) + self._halved_to_fit(rows[half:])

    def _too_big(self, rows: Ids) -> int:
        """Return the positions of a batch that does not fit into memory.

        Raises: EnvironmentProblem if it is a single pair, and graphs hold no memory.
        """
        positions = self.positions_of(rows)
        if len(rows) == 1 and self._released:
            raise EnvironmentProblem(
                f"out of memory on a single sentence pair of {positions} positions (line"
                f" {int(rows[0]) + 1} of the training set)",
                hint="a smaller model, or prepare with a lower prep.max_subwords",
            )
        return positions
