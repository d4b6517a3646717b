"""A model of your own in one file: sequence to sequence without attention.

nmtkit train --variant tests.toy_recurrent:ToyRecurrent --set model.d_model=128
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from nmtkit.data.batches import Batch
from nmtkit.models.base import Memory, Model, ModelSettings, State, Vocabularies
from nmtkit.nn.dropout import Dropout


class ToyRecurrent(Model):
    """Sutskever, Vinyals & Le 2014, *Sequence to sequence learning with neural networks*, with
    one layer of GRUs.
    """

    class Settings(ModelSettings):
        """Settings of this model, for `--set model.…` and presets. `ModelSettings` has `dropout`."""

        d_model: int = Field(256, ge=1)
        """Width of embeddings and of both GRUs."""

    paper = "Sutskever et al. 2014"

    def __init__(self, settings: Settings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        self.src_embedding = nn.Embedding(vocabularies.src, settings.d_model)
        self.tgt_embedding = nn.Embedding(vocabularies.tgt, settings.d_model)
        # On a CPU nmtkit's dropout is faster than nn.Dropout.
        self.dropout = Dropout(settings.dropout)
        self.reader = nn.GRU(settings.d_model, settings.d_model, batch_first=True)
        self.writer = nn.GRU(2 * settings.d_model, settings.d_model, batch_first=True)
        self.output = nn.Linear(settings.d_model, vocabularies.tgt)

    @property
    def width(self) -> int:
        """D of the hidden states that `logits` reads."""
        return self.settings.d_model

    def encode(self, batch: Batch) -> Memory:
        """The source as one vector (B, D): the mean of the reader's states at real positions."""
        # (B, S, D); padding comes last, so no real state sees it.
        states, _ = self.reader(self.dropout(self.src_embedding(batch.src)))
        positions = torch.arange(batch.src.size(1), device=batch.src.device)
        real = positions < batch.src_lengths[:, None]  # (B, S)
        total = (states * real[:, :, None]).sum(1)
        return {"summary": total / batch.src_lengths.clamp(min=1)[:, None]}

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """The writer starts from the summary and reads it again beside every target token."""
        rows, steps = tgt_in.shape
        summaries = memory["summary"]  # (B, D)
        # K rows for each of B sentences: (R, D) with R = B·K.
        summary = summaries.repeat_interleave(rows // len(summaries), dim=0)
        start = state["hidden"] if state else summary
        words = self.dropout(self.tgt_embedding(tgt_in))  # (R, T, D)
        inputs = torch.cat([words, summary[:, None].expand(-1, steps, -1)], dim=-1)  # (R, T, 2D)
        hidden, last = self.writer(inputs, start[None].contiguous())
        return hidden, None if state is None else {"hidden": last[0]}

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, D) -> (…, V)."""
        return self.output(hidden)
