"""The ways to translate a batch: beam search and sampling, by the settings."""

from __future__ import annotations

from collections.abc import Sequence

from nmtkit.data.batches import Batch
from nmtkit.models.base import Model
from nmtkit.settings import SearchSettings
from nmtkit.translate.beam import Beams, Hypothesis, search
from nmtkit.translate.prefix import Demand
from nmtkit.translate.sampling import Samples


def decode(
    models: Sequence[Model], batch: Batch, settings: SearchSettings, demands: Sequence[Demand]
) -> list[list[Hypothesis]]:
    """Return the translations of each sentence of a batch: samples, or the n best.

    Args:
        models, batch: as `search`.
        settings: sample, and what its method reads.
        demands: of each sentence.
    Raises: TrainingDiverged if the models give no finite probability.
    """
    method: type[Beams] = Beams
    if settings.sample:
        method = Samples
        settings = settings.model_copy(update={"beam": settings.nbest})
    return search(models, batch, settings, method(batch, settings, demands))
