"""The ways to translate a batch: beam search, with phrases, diverse, or sampling."""

from __future__ import annotations

from collections.abc import Sequence

from nmtkit.data.batches import Batch
from nmtkit.models.base import Model
from nmtkit.settings import SearchSettings
from nmtkit.translate.beam import Beams, search
from nmtkit.translate.constraints import ConstrainedBeams
from nmtkit.translate.demands import Demand
from nmtkit.translate.diverse import DiverseBeams
from nmtkit.translate.hypotheses import NBest
from nmtkit.translate.sampling import Samples


def decode(
    models: Sequence[Model],
    batch: Batch,
    settings: SearchSettings,
    demands: Sequence[Demand],
    leave: int = 0,
) -> list[NBest]:
    """Return the samples or the n best translations of each sentence of a batch. With `mbr`, return
    all candidates of minimum Bayes risk.

    Args:
        models, batch, leave: see `search`.
        settings: sample, diverse_groups, mbr, and the settings of the method.
        demands: of each sentence.
    Raises: TrainingDiverged if the models give no finite probability.
    """
    count = settings.mbr or settings.nbest
    changes = {"nbest": count}
    method: type[Beams] = Beams
    if any(demand.phrases for demand in demands):
        method = ConstrainedBeams
    elif settings.sample:
        method = Samples
        changes["beam"] = count
    elif settings.diverse_groups > 1:
        method = DiverseBeams
    settings = settings.model_copy(update=changes)
    return search(models, batch, settings, method(batch, settings, demands), leave)
