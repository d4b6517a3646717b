"""Sampling: translations that are drawn from the model's distribution.

The draws, exactly. Every sentence has K samples, independent of each other. Each token is drawn
from softmax(logits / temperature) over all tokens but <pad> and <s>, given the tokens before. With
top_k, only the k most probable tokens can be drawn (equal ones in the order of their ids). With
top_p, of these only the smallest set of most probable tokens that together have at least
probability p (Holtzman et al. 2020), p of the distribution after temperature and top_k. A sample
ends with </s>, or at the length limit of beam search, where it is unfinished.

The i-th sample of a sentence uses the random numbers of the generator of (seed, sentence, i), one a
token: the token is the first whose cumulative probability exceeds the number, in the order of ids,
or with top_k or top_p from the most probable. So, up to rounding, a sample depends neither on the
batch nor on how many samples there are. log_prob is the model's own, without temperature, top_k and
top_p; samples stay in the order in which they are drawn.

Legend: M sentences still sampled, K samples, R = M·K rows (M in the first step), R' some of them, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.nn import cpu
from nmtkit.nn.hardware import widest
from nmtkit.settings import SearchSettings
from nmtkit.translate.beam import Beams
from nmtkit.translate.demands import Demand
from nmtkit.translate.hypotheses import End, NBest
from nmtkit.translate.steps import top_sorted

HEAD = 512
"""With top_p alone, a CPU sorts only the most probable tokens of a row, this number of them. If
their probability is less than top_p, it sorts all tokens, which takes much longer.
"""


class Samples(Beams):
    """The samples of the M sentences still sampled: each sample has a slot.

    Args:
        batch: the sources.
        settings: temperature, top_k, top_p, seed; beam = the number of samples.
        demands: of each sentence; the keys determine the samples.
    """

    def __init__(self, batch: Batch, settings: SearchSettings, demands: Sequence[Demand]) -> None:
        super().__init__(batch, settings, demands)
        size = len(demands), settings.beam, self.longest
        numbers = torch.zeros(size, dtype=widest(self.device))  # (M, K, longest)
        limits = self.left.flatten().tolist()
        for of_sentence, demand, limit in zip(numbers.numpy(), demands, limits, strict=True):
            for i, of_sample in enumerate(of_sentence):
                rng = np.random.default_rng([settings.seed, *demand.key, i])
                of_sample[:limit] = rng.random(limit)
        self._numbers = numbers.to(self.device)

    def pick(self, logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Draw the next token of each sample; in the first step, K tokens for each sentence."""
        numbers = self._numbers[:, :, self.step].reshape(self.live.numel(), -1)
        return draw(self.allowed(logits, rows), numbers[rows], self.settings)

    def choose(self, tokens: Tensor) -> Tensor:
        """In the first step, each sample takes its own token."""
        return torch.arange(tokens.shape[1], device=self.device).expand(len(tokens), -1)

    def add(self, row: int, end: End) -> None:
        self._ended[end.sentence].append(end)

    def keep(self, staying: Sequence[int]) -> Tensor:
        rows = super().keep(staying)
        self._numbers = self._numbers[rows]
        return rows

    def ranked(self) -> list[NBest]:
        in_order = [sorted(ended, key=lambda end: end.slot) for ended in self._ended]
        return self.step_log.hypotheses(in_order)


def draw(logits: Tensor, numbers: Tensor, settings: SearchSettings) -> tuple[Tensor, Tensor]:
    """Draw tokens as defined at the top of this file.

    Args:
        logits: (R', V), -inf where a token is impossible.
        numbers: (R', n) in [0, 1), one for each token, of the type to compute in.
        settings: temperature, top_k, top_p.
    Returns: logits and ids of the tokens, (R', n).
    """
    size, top_k, top_p = logits.shape[1], settings.top_k, settings.top_p
    head = top_p < 1 and not top_k and size > HEAD and cpu.reads_at_once(logits)
    values, ids = logits, None
    if top_k or top_p < 1:
        values, ids = top_sorted(logits, HEAD if head else top_k or size)
    scaled = values.to(numbers.dtype) / settings.temperature
    if head:  # relative to all tokens, not to the sorted ones alone
        rest = (logits - values[:, :1]) / settings.temperature
        probabilities = (scaled - scaled[:, :1] - rest.logsumexp(-1, keepdim=True)).exp()
    else:
        probabilities = scaled.softmax(-1)
    up_to = probabilities.cumsum(-1)
    if top_p < 1:
        up_to = probabilities.masked_fill(up_to - probabilities >= top_p, 0).cumsum(-1)
    total = up_to[:, -1:]
    below = torch.minimum(numbers * total, total.nextafter(torch.zeros_like(total)))
    places = torch.searchsorted(up_to, below, right=True).clamp(max=values.shape[1] - 1)
    drawn = values.gather(1, places), places if ids is None else ids.gather(1, places)
    if head and (lacking := total[:, 0] < top_p).any():
        every = settings.model_copy(update={"top_k": size})
        for part, whole in zip(drawn, draw(logits[lacking], numbers[lacking], every), strict=True):
            part[lacking] = whole
    return drawn
