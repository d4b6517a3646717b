"""A variant of someone's own, derived from the Transformer, with the same modules and another
computation.
"""

from nmtkit.models.transformer import Transformer


class Derived(Transformer):
    """Nobody et al. 2026."""

    def encode(self, batch):
        """Reads the source twice."""
        memory = super().encode(batch)
        return self.remember(
            self.through_encoder(memory["states"], memory["visible"]), memory["visible"]
        )
