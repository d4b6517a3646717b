"""A model that copies its source, so that an output shows which line it translates."""

import torch
from torch import nn

from nmtkit.models.base import Model
from nmtkit.text.vocabulary import EOS


class Copying(Model):
    """Predict the source token at the same position with a probability near 1, then </s>."""

    def __init__(self, settings, vocabularies):
        super().__init__(settings, vocabularies)
        self.sureness = nn.Parameter(torch.tensor(50.0))

    @property
    def width(self):
        return 1

    def encode(self, batch):
        inside = torch.arange(batch.src.shape[1]) < batch.src_lengths[:, None]
        return {"src": batch.src.masked_fill(~inside, EOS)}

    def decode(self, tgt_in, memory, state=None):
        start = state.get("start", 0) if state else 0
        src = memory["src"].repeat_interleave(len(tgt_in) // len(memory["src"]), 0)
        positions = torch.arange(start, start + tgt_in.shape[1]).clamp(max=src.shape[1] - 1)
        return src[:, positions][..., None].double(), (
            None if state is None else {"start": start + tgt_in.shape[1]}
        )

    def logits(self, hidden):
        return self.sureness * nn.functional.one_hot(hidden[..., 0].long(), self.vocabularies.tgt)
