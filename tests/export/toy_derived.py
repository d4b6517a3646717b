"""A user's variant: a Transformer with the same modules and another computation."""

from nmtkit.models.transformer import Transformer


class Derived(Transformer):
    """Nobody et al. 2026."""

    def encode(self, batch):
        """Pass the source through the encoder twice."""
        memory = super().encode(batch)
        return self.remember(
            self.through_encoder(memory["states"], memory["visible"]), memory["visible"]
        )
