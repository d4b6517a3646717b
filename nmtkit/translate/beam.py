"""Beam search over any model that can `encode`, `decode` with a state, and give `logits`; beam 1 is
greedy search.

The search, exactly. Every sentence has K slots. At each step the live hypotheses of a sentence are
extended by every token but <pad> and <s>, and the best of these candidates by log-probability - as
many as there are slots - are kept; equal ones in the order of beam, then token id. A candidate that
ends in </s> is finished: it leaves with its slot, so a sentence never has more than K hypotheses in
all. A hypothesis has at most a·n+b tokens, </s> included, for n source tokens, </s> included; one
that gets there without </s> is kept as unfinished, behind all finished ones. Finished hypotheses
are ranked by log P / lp(|Y|), lp = ((5+|Y|)/6)^α, |Y| including </s> (Wu et al. 2016, eq. 14,
without coverage).

A sentence ends when nothing that its live hypotheses may still become can enter the n best:
log-probabilities only fall and lp only grows with length, so a live hypothesis with log-probability
p scores at most p / lp(a·n+b); once this is not above the n-th best finished score for the best
live one, going on cannot change the result. This bound is exact, so the n best do not depend on
when a sentence stops.

What a step chooses is in two methods of `Beams`: `pick` says which tokens may continue a
hypothesis, `choose` which candidates fill the slots. sampling.py, diverse.py and constraints.py
have other ones, each with its definition at the top; prefix.py forces tokens in all of them.

Legend: M sentences still searched, K beam, R = M·K rows, V vocabulary, D width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.errors import TrainingDiverged
from nmtkit.models.base import Model
from nmtkit.nn.hardware import widest
from nmtkit.nn.linear import inference
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import BOS, EOS
from nmtkit.translate.prefix import Demand, ForcedPrefixes
from nmtkit.translate.steps import Decoders, top_sorted

ROUND = 16
"""The number of sentences that stay in a batch is a multiple of this: a CPU prepares its products
anew for every number of rows.
"""


@dataclass(frozen=True)
class Hypothesis:
    """One translation: token ids without </s>.

    log_prob is the natural logarithm of its probability, that of </s> included if it is finished;
    score = log_prob / lp. finished is False if it reached the length limit without </s>.
    """

    ids: list[int]
    log_prob: float
    score: float
    finished: bool


def length_penalty(length: int, alpha: float) -> float:
    """GNMT's lp(|Y|) = ((5+|Y|)/6)^α (Wu et al. 2016, eq. 14).

    Args:
        length: |Y|, tokens of the hypothesis including </s>.
        alpha: 0 = no penalty.
    """
    return float(((5 + length) / 6) ** alpha)


def length_limit(source_length: int, settings: SearchSettings) -> int:
    """Return the most tokens that a hypothesis may have, at least 1; </s> counts on both sides."""
    return max(1, int(settings.max_length_a * source_length + settings.max_length_b))


def search(
    models: Sequence[Model],
    batch: Batch,
    settings: SearchSettings,
    beams: Beams | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best translations of each sentence of a batch.

    Args:
        models: one model, or several that share a target vocabulary: the mean of their
            probabilities is searched. In eval mode.
        batch: src (B, S) and src_lengths (B); target fields are not read.
        settings: beam, length_penalty, max_length_a, max_length_b, nbest.
        beams: of the batch, for another method than beam search (`nmtkit.translate.methods`).
    Returns: for each sentence at most `nbest` hypotheses, best first; neither their choice nor
        their order depends on the other sentences.
    Raises: TrainingDiverged if the models give no finite probability.
    """
    with inference(models):
        results = _search(Decoders(models, batch), beams or Beams(batch, settings))
    if not all(results):
        raise TrainingDiverged(
            "the model's probabilities are not finite",
            where="search",
            hint="use an earlier checkpoint; train.log shows the loss",
        )
    return results


def _hypothesis(ids: list[int], log_prob: float, settings: SearchSettings) -> Hypothesis:
    """Return the hypothesis of tokens that end in </s>, or at the length limit."""
    score = log_prob / length_penalty(len(ids), settings.length_penalty)
    finished = ids[-1] == EOS
    return Hypothesis(ids[:-1] if finished else ids, log_prob, score, finished)


def _stay(going: list[bool]) -> list[int]:
    """Return the sentences that stay in the batch, in order: all sentences, until the smaller batch
    saves more than copying its memory costs.

    Args:
        going: of each sentence, True if it is still searched; finished ones may fill up the number
            to a multiple of ROUND.
    """
    rows, still_open = len(going), sum(going)
    target = -(-still_open // ROUND) * ROUND if 2 * still_open > ROUND else still_open
    if (rows - target) * 8 < rows:
        return list(range(rows))
    spare = target - still_open
    keep = []
    for i, goes in enumerate(going):
        if goes or spare > 0:
            keep.append(i)
            spare -= not goes
    return keep


class Beams:
    """The live hypotheses of the M sentences still searched, and the ended hypotheses of all.

    Args:
        batch: the sources.
        settings: of the search.
        demands: of each sentence; None = none.
    Attributes:
        sentences: the M sentences.
        live: log-probabilities (M, K), -inf in a slot without a hypothesis; the first step has one
            hypothesis a sentence.
        slots: (M, 1) the slots that no finished hypothesis has taken.
        prefix: (M, K, step) the tokens of the live hypotheses.
    """

    def __init__(
        self, batch: Batch, settings: SearchSettings, demands: Sequence[Demand] | None = None
    ) -> None:
        limits = [length_limit(n, settings) for n in batch.src_lengths.tolist()]
        count, device = len(limits), batch.src.device
        self.settings, self.device = settings, device
        self.sentences = list(range(count))
        self.live = torch.zeros(count, 1, dtype=widest(device), device=device)
        self.slots = torch.full((count, 1), settings.beam, device=device)
        self.prefix = torch.zeros(count, 1, 0, dtype=torch.long, device=device)
        self.forced = ForcedPrefixes.of(demands or (), device)
        self.limits = torch.tensor(limits, device=device)[:, None]  # (M, 1)
        self._ended: list[list[Hypothesis]] = [[] for _ in limits]
        self._to_beat = [-math.inf] * count  # the n-th best score
        self._penalties = [length_penalty(limit, settings.length_penalty) for limit in limits]

    def pick(self, logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Pick the tokens that may continue some rows (`steps.Pick`): here the best ones."""
        return top_sorted(self.allowed(logits, rows), self.settings.beam)

    def allowed(self, logits: Tensor, rows: slice) -> Tensor:
        """Return logits with -inf for tokens that do not follow the forced prefix, if any."""
        if self.forced is None:
            return logits
        return self.forced.restrict(logits, rows, self.prefix.shape)

    def extend(self, log_probs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the chosen continuations of the live hypotheses.

        Args:
            log_probs, ids: (R, k) the tokens that may continue each hypothesis.
        Returns: for each slot (M, K) the row that it continues, and its new token.
        """
        count, width = self.live.shape
        rows, tokens = torch.arange(count, device=self.device)[:, None], ids.view(count, -1)
        self.live = (self.live.reshape(-1, 1) + log_probs).view(count, -1)
        if tokens.shape[1] > 1:  # else one slot has one candidate
            best = self.choose(tokens)
            parent, tokens = best // ids.shape[1], tokens.gather(1, best)
            rows = rows * width + parent
            steps = self.prefix.shape[2]
            self.prefix = self.prefix.gather(1, parent[..., None].expand(-1, -1, steps))
        self.prefix = torch.cat([self.prefix, tokens[..., None]], 2)
        return rows, tokens

    def choose(self, tokens: Tensor) -> Tensor:
        """Fill the free slots with the best of the candidates in `live`.

        Args:
            tokens: (M, C) of the candidates; `live` has their log-probabilities.
        Returns: all slots' columns (M, K); `live` is (M, K), -inf in slots that are not free.
        """
        self.live, best = top_sorted(self.live, self.settings.beam)
        slot = torch.arange(self.live.shape[1], device=self.device)
        self.live = self.live.masked_fill(slot >= self.slots, -math.inf)
        return best

    def end(self, step: int, token: Tensor) -> None:
        """Take hypotheses that end in </s>, or that are at their length limit, out of the beams."""
        marked = ((token == EOS) | (step >= self.limits)) & (self.live > -math.inf)
        where = marked.nonzero()
        if not len(where):
            return
        rows, slots = where.unbind(1)
        tokens, log_probs = self.prefix[rows, slots].tolist(), self.live[rows, slots].tolist()
        for row, slot, ids, log_prob in zip(
            rows.tolist(), slots.tolist(), tokens, log_probs, strict=True
        ):
            self.add(self.sentences[row], slot, _hypothesis(ids, log_prob, self.settings))
        self.live = self.live.masked_fill(marked, -math.inf)
        groups = self.slots.shape[1]
        self.slots = self.slots - marked.view(len(marked), groups, -1).sum(2)

    def add(self, sentence: int, slot: int, hypothesis: Hypothesis) -> None:
        """Take the hypothesis of a slot that has ended."""
        ended, nbest = self._ended[sentence], self.settings.nbest
        ended.append(hypothesis)
        # At its length limit a sentence has no live hypotheses left, so unfinished ones do no harm.
        scores = sorted((h.score for h in ended), reverse=True)
        if len(scores) >= nbest:
            self._to_beat[sentence] = scores[nbest - 1]

    def going(self) -> list[bool]:
        """Return for each sentence True if a live hypothesis can still enter its n best (the bound
        at the top of this file). Sentences without one lose their live hypotheses.
        """
        best = zip(self.live.amax(1).tolist(), self.sentences, strict=True)
        going = [log_p / self._penalties[s] > self._to_beat[s] for log_p, s in best]
        if any(going) and not all(going):
            ended = ~torch.tensor(going, device=self.device)[:, None]
            self.live = self.live.masked_fill(ended, -math.inf)
        return going

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the M sentences."""
        self.sentences = [self.sentences[row] for row in rows.tolist()]
        self.live, self.slots, self.prefix = self.live[rows], self.slots[rows], self.prefix[rows]
        self.limits = self.limits[rows]
        if self.forced is not None:
            self.forced = self.forced.keep(rows)

    def ranked(self) -> list[list[Hypothesis]]:
        """Return the n best of each sentence; among equals the one that came first."""
        return [
            sorted(ended, key=lambda h: (not h.finished, -h.score))[: self.settings.nbest]
            for ended in self._ended
        ]


def _search(decoders: Decoders, beams: Beams) -> list[list[Hypothesis]]:
    """Return what the search described at the top of this file finds."""
    device = decoders.device
    last = torch.full((beams.live.numel(),), BOS, device=device)
    for step in itertools.count(1):
        rows, token = beams.extend(*decoders.step(last, beams.pick))
        beams.end(step, token)
        going = beams.going()
        if not any(going):
            break
        staying = _stay(going)
        if len(staying) < len(going):
            keep = torch.tensor(staying, device=device)
            beams.keep(keep)
            token, rows = token[keep], rows[keep]
            decoders.keep_sentences(keep)
        decoders.keep_rows(rows.reshape(-1))
        last = token.reshape(-1)
    return beams.ranked()
