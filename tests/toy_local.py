"""A changed Transformer of your own in one file: its encoder looks at near positions only.

nmtkit train --variant tests.toy_local:LocalTransformer --set model.reach=3
"""

import torch
from pydantic import Field
from torch import Tensor

from nmtkit.models.transformer import EncoderLayer, Transformer, TransformerSettings
from nmtkit.nn.attention import SelfAttention
from nmtkit.nn.masks import Visible


class LocalAttention(SelfAttention):
    """Self-attention to the positions that are at most `reach` away."""

    reach: int

    def forward(self, x: Tensor, visible: Visible = None, **decoding: object) -> Tensor:
        """Attend within x (B, S, D), of which `visible` bool (B, 1, S) is real; None = all."""
        place = torch.arange(x.size(1), device=x.device)
        near = (place[:, None] - place).abs() <= self.reach  # (S, S)
        near = near.expand(x.size(0), -1, -1) if visible is None else near & visible  # (B, S, S)
        # Padding is never read, but each of its positions must see one.
        return super().forward(x, near | torch.eye(x.size(1), dtype=torch.bool, device=x.device))


class LocalTransformer(Transformer):
    """Yang et al. 2018, *Modeling localness for self-attention networks*, with a fixed window."""

    class Settings(TransformerSettings):
        """Settings of this model; those of the Transformer are there, too."""

        reach: int = Field(3, ge=0)
        """The farthest position that a position of the encoder attends to."""

    paper = "Yang et al. 2018"

    def encoder_layer(self, index: int) -> EncoderLayer:
        attention = LocalAttention(*self.settings.attention_sizes)
        attention.reach = self.settings.reach
        return EncoderLayer(self.settings, attention)
