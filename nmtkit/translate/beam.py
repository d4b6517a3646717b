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

Legend: M sentences still searched, K beam, R = M·K rows, V vocabulary, D width.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.errors import ConfigError, TrainingDiverged
from nmtkit.models.base import Model
from nmtkit.nn.linear import inference
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import BOS, EOS
from nmtkit.translate.steps import Decoders, top_sorted

ROUND = 16
"""Sentences leave a batch so that such a multiple is left: every number of rows costs a CPU the
preparation of its products anew.
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
    """The most tokens (</s> included) of a hypothesis for a source of so many tokens (</s>
    included); at least 1.
    """
    return max(1, int(settings.max_length_a * source_length + settings.max_length_b))


def search(
    models: Sequence[Model], batch: Batch, settings: SearchSettings
) -> list[list[Hypothesis]]:
    """The n best translations of each sentence of a batch.

    Args:
        models: one model, or several that share a target vocabulary: the mean of their
            probabilities is searched. In eval mode.
        batch: src (B, S) and src_lengths (B); target fields are not read.
        settings: beam, length_penalty, max_length_a, max_length_b, nbest.
    Returns: for each sentence at most `nbest` hypotheses, best first; neither their choice nor
        their order depends on the other sentences.
    Raises: ConfigError if nbest > beam; TrainingDiverged if the models give no finite probability.
    """
    if settings.nbest > settings.beam:
        message = f"cannot give the {settings.nbest} best of a beam of {settings.beam}"
        raise ConfigError(message, where="search.nbest", hint="raise --beam or lower --nbest")
    limits = [length_limit(n, settings) for n in batch.src_lengths.tolist()]
    with inference(models):
        decoders = Decoders(models, batch)
        found = (
            _greedy(decoders, limits, settings)
            if settings.beam == 1
            else _beam(decoders, limits, settings)
        )
    if not all(found):
        raise TrainingDiverged(
            "the model's probabilities are not finite",
            where="search",
            hint="use an earlier checkpoint; train.log shows the loss",
        )
    return found


def _hypothesis(ids: list[int], log_prob: float, finished: bool, alpha: float) -> Hypothesis:
    return Hypothesis(
        ids, log_prob, log_prob / length_penalty(len(ids) + finished, alpha), finished
    )


def _greedy(
    decoders: Decoders, limits: list[int], settings: SearchSettings
) -> list[list[Hypothesis]]:
    """Beam search with one slot: the most probable token at each step until </s>."""
    count = len(limits)
    found: list[list[Hypothesis]] = [[] for _ in limits]
    device = decoders.device
    sentences = list(range(count))  # of each row
    open_rows = set(sentences)
    total = torch.zeros(count, dtype=torch.float64, device=device)
    tokens: list[Tensor] = []  # one (M) per step
    last = torch.full((count,), BOS, dtype=torch.long, device=device)
    for step in itertools.count(1):
        log_prob, token = decoders.step(last, 1)  # (M, 1)
        last = token[:, 0]
        total = total + log_prob[:, 0]
        tokens.append(last)
        stopped = [
            row
            for row, t in enumerate(last.tolist())
            if (t == EOS or step >= limits[sentences[row]]) and sentences[row] in open_rows
        ]
        if stopped:
            index = torch.tensor(stopped, device=device)
            ids, sums = torch.stack([t[index] for t in tokens], 1).tolist(), total[index].tolist()
            for row, row_ids, log_p in zip(stopped, ids, sums, strict=True):
                finished = row_ids[-1] == EOS
                if log_p == log_p and log_p != float("-inf"):
                    found[sentences[row]].append(
                        _hypothesis(
                            row_ids[:-1] if finished else row_ids,
                            log_p,
                            finished,
                            settings.length_penalty,
                        )
                    )
                open_rows.discard(sentences[row])
            if not open_rows:
                return found
            keep = _stay([s in open_rows for s in sentences])
            if len(keep) < len(sentences):
                index = torch.tensor(keep, device=device)
                sentences = [sentences[row] for row in keep]
                total, last, tokens = total[index], last[index], [t[index] for t in tokens]
                decoders.keep_sentences(index)
                decoders.keep_rows(index)
    raise AssertionError("unreachable")


def _stay(going: list[bool]) -> list[int]:
    """Which sentences stay in the batch: all, until enough are finished to pay for copying the
    memory of the others.

    Args:
        going: whether each is still searched.
    Returns: their indices, in order; finished ones may fill up the number to a multiple of ROUND.
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


class _Results:
    """Finished and unfinished hypotheses of every sentence of the batch, and the score to beat."""

    def __init__(self, limits: list[int], settings: SearchSettings) -> None:
        self.alpha, self.nbest = settings.length_penalty, settings.nbest
        self.finished: list[list[Hypothesis]] = [[] for _ in limits]
        self.unfinished: list[list[Hypothesis]] = [[] for _ in limits]
        self.to_beat = [float("-inf")] * len(limits)
        self.best_penalty = [length_penalty(limit, self.alpha) for limit in limits]

    def add(self, sentence: int, ids: list[int], log_prob: float, finished: bool) -> None:
        """Keep a hypothesis; it leaves the beam."""
        hypothesis = _hypothesis(ids, log_prob, finished, self.alpha)
        if not finished:
            self.unfinished[sentence].append(hypothesis)
            return
        kept = self.finished[sentence]
        kept.append(hypothesis)
        if len(kept) >= self.nbest:
            self.to_beat[sentence] = sorted((h.score for h in kept), reverse=True)[self.nbest - 1]

    def ranked(self) -> list[list[Hypothesis]]:
        """The n best of each sentence; among equals the one that came first."""
        pairs = zip(self.finished, self.unfinished, strict=True)
        return [
            (sorted(f, key=lambda h: -h.score) + sorted(u, key=lambda h: -h.score))[: self.nbest]
            for f, u in pairs
        ]


def _beam(
    decoders: Decoders, limits: list[int], settings: SearchSettings
) -> list[list[Hypothesis]]:
    """The search described at the top of this file."""
    device, width = decoders.device, settings.beam
    results = _Results(limits, settings)
    sentences = list(range(len(limits)))
    slots = torch.full((len(limits),), width, device=device)
    live = torch.zeros(
        len(limits), 1, dtype=torch.float64, device=device
    )  # log-probabilities (M, K); the first step has one row a sentence
    prefix = torch.zeros(len(limits), 1, 0, dtype=torch.long, device=device)  # (M, K, step-1)
    last = torch.full((len(limits),), BOS, dtype=torch.long, device=device)
    rank = torch.arange(width, device=device)
    for step in itertools.count(1):
        log_probs, ids = decoders.step(last, width)  # (R, k)
        beams, k = live.shape[1], log_probs.shape[1]
        pool = (live.reshape(-1, 1) + log_probs).view(len(sentences), beams * k)
        live, flat = top_sorted(pool, width)  # (M, K)
        live = live.masked_fill(rank[: live.shape[1]] >= slots[:, None], float("-inf"))
        parent = flat // k
        token = ids.reshape(len(sentences), beams * k).gather(1, flat)
        prefix = torch.cat(
            [prefix.gather(1, parent[..., None].expand(-1, -1, step - 1)), token[..., None]], 2
        )  # (M, K, step)

        closed = (token == EOS) & (live > float("-inf"))
        live, slots = _close(closed, live, slots, prefix, sentences, results)
        if step >= min(limits[s] for s in sentences):
            at_limit = torch.tensor([step >= limits[s] for s in sentences], device=device)
            live, slots = _close(
                at_limit[:, None] & (live > float("-inf")), live, slots, prefix, sentences, results
            )

        going = _still_open(live, sentences, results)
        if not any(going):
            return results.ranked()
        if not all(going):
            live = live.masked_fill(~torch.tensor(going, device=device)[:, None], float("-inf"))
        offset = torch.arange(len(sentences), device=device)[:, None] * beams
        staying = _stay(going)
        if len(staying) < len(sentences):
            keep = torch.tensor(staying, device=device)
            sentences = [sentences[m] for m in staying]
            live, slots, prefix, token, parent, offset = (
                t[keep] for t in (live, slots, prefix, token, parent, offset)
            )
            decoders.keep_sentences(keep)
        decoders.keep_rows((parent + offset).reshape(-1))
        last = token.reshape(-1)
    raise AssertionError("unreachable")


def _close(
    ended: Tensor,
    live: Tensor,
    slots: Tensor,
    prefix: Tensor,
    sentences: list[int],
    results: _Results,
) -> tuple[Tensor, Tensor]:
    """Move the hypotheses marked in `ended` (M, K) from the beam to the results; returns the new
    `live` and `slots`.
    """
    where = ended.nonzero()
    if not len(where):
        return live, slots
    rows = prefix[where[:, 0], where[:, 1]].tolist()
    for (m, _), ids, log_prob in zip(
        where.tolist(), rows, live[where[:, 0], where[:, 1]].tolist(), strict=True
    ):
        finished = ids[-1] == EOS
        results.add(sentences[m], ids[:-1] if finished else ids, log_prob, finished)
    return live.masked_fill(ended, float("-inf")), slots - ended.sum(1)


def _still_open(live: Tensor, sentences: list[int], results: _Results) -> list[bool]:
    """For each sentence, whether some live hypothesis can still enter its n best (the bound at
    the top of this file).
    """
    best = live.amax(1).tolist()
    return [
        b / results.best_penalty[s] > results.to_beat[s]
        for b, s in zip(best, sentences, strict=True)
    ]
