"""Diverse beam search (Vijayakumar et al. 2016): an n-best list whose translations differ.

The search, exactly. The K slots of a sentence are G groups of K/G slots. Each group does its own
beam search, as defined at the top of beam.py, without an early end. At each step the groups choose
in order. Group g ranks a candidate that continues with token v by log P - λ·c, where c counts the
hypotheses of earlier groups that chose v at this step (Hamming diversity). The penalty only affects
the choice of this step: hypotheses keep the model's log-probabilities. Equal candidates are taken
in the order of beam, then log P, then token id. At the end the hypotheses of all groups are ranked
like those of one beam, each token sequence once. With λ = 0 all groups find the same hypotheses.

Legend: M sentences still searched, K beam, G groups, C candidates of a group, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.settings import SearchSettings
from nmtkit.translate.beam import Beams
from nmtkit.translate.demands import Demand
from nmtkit.translate.hypotheses import Hypothesis, NBest
from nmtkit.translate.steps import top_sorted


class DiverseBeams(Beams):
    """The live hypotheses of M sentences, in K slots: group by group, K/G slots each.

    Args:
        batch: the sources.
        settings: beam, diverse_groups, diversity, nbest.
        demands: of each sentence.
    """

    def __init__(self, batch: Batch, settings: SearchSettings, demands: Sequence[Demand]) -> None:
        # No group ends early, because its tokens count for the later groups.
        super().__init__(batch, settings.model_copy(update={"nbest": settings.beam}), demands)
        self._nbest, self._groups = settings.nbest, settings.diverse_groups
        self._size = settings.beam // self._groups
        count = len(self.live)
        self.live = self.live.expand(-1, self._groups)
        self.slots = torch.full((count, self._groups), self._size, device=self.device)

    def choose(self, tokens: Tensor) -> Tensor:
        count, candidates = self.live.shape
        share = candidates // self._groups  # C
        live, chosen = [], []
        used = torch.zeros(count, 0, dtype=torch.long, device=self.device)  # by earlier groups
        for group in range(self._groups):
            columns = slice(group * share, (group + 1) * share)
            values, continues = self.live[:, columns], tokens[:, columns]
            repeats = (continues[:, :, None] == used[:, None, :]).sum(2)
            order = top_sorted(values - self.settings.diversity * repeats, self._size)[1]
            slot = torch.arange(order.shape[1], device=self.device)
            kept = values.gather(1, order)
            kept = kept.masked_fill(slot >= self.slots[:, group, None], -math.inf)
            taken = continues.gather(1, order).masked_fill(kept == -math.inf, -1)
            used = torch.cat([used, taken], 1)
            live.append(kept)
            chosen.append(order + group * share)
        self.live = torch.cat(live, 1)
        return torch.cat(chosen, 1)

    def ranked(self) -> list[NBest]:
        results = []
        for hypotheses in super().ranked():
            distinct: dict[tuple[int, ...], Hypothesis] = {}
            for hypothesis in hypotheses:  # best first
                distinct.setdefault(tuple(hypothesis.ids), hypothesis)
            results.append(list(distinct.values())[: self._nbest])
        return results
