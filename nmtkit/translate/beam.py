"""Beam search over any model that can `encode`, `decode` with a state, and give `logits`; beam 1 is
greedy search.

The search, exactly. Every sentence has K slots. At each step the live hypotheses of a sentence are
extended by every token but <pad> and <s>, and the best of these candidates by log-probability - as
many as there are slots - are kept; equal ones in the order of beam, then token id. A candidate that
ends in </s> is finished: it leaves with its slot, so a sentence never has more than K hypotheses in
all. A hypothesis has at most a·n+b tokens, </s> included, for n source tokens, </s> included; one
that gets there without </s> is kept as unfinished, after all finished ones. Finished hypotheses
are ranked by log P / lp(|Y|), lp = ((5+|Y|)/6)^α, |Y| including </s> (Wu et al. 2016, eq. 14,
without coverage).

A sentence ends when nothing that its live hypotheses may still become can enter the n best:
log-probabilities only fall and lp only grows with length, so a live hypothesis with log-probability
p scores at most p / lp(a·n+b); once this is not above the n-th best finished score for the best
live one, going on cannot change the result. This bound is exact, so the n best do not depend on
when a sentence stops.

On a CPU the host reads the hypotheses after every step. On a GPU the host would have to wait, so it
reads them after every eighth step (LOOK). Until then the choices of a step stay on the GPU, and a
sentence may be searched after its end, which changes nothing.

Two methods of `Beams` define what a step chooses: `pick` says which tokens may continue a
hypothesis, `choose` which candidates fill the slots. The subclasses in sampling.py, diverse.py and
constraints.py replace these methods; the definition of each search is at the top of its file.

A forced prefix works in all of them. If a sentence has a prefix of p tokens, token t ≤ p of every
hypothesis is token t of the prefix: every other token is impossible there. Nothing else changes, so
the log-probability of a translation, prefix included, is the model's own.

Legend: B sentences, M of them still searched, K beam, R = M·K rows, R' some of them, V vocabulary,
D width, P longest prefix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.data.padding import padded
from nmtkit.errors import TrainingDiverged
from nmtkit.models.base import Model
from nmtkit.nn import cpu
from nmtkit.nn.hardware import widest
from nmtkit.nn.linear import inference
from nmtkit.nn.state import Continued
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import BOS, EOS
from nmtkit.translate.demands import Demand
from nmtkit.translate.hypotheses import End, NBest, StepLog, length_limit, length_penalty
from nmtkit.translate.step_graphs import StepGraphs, step_graphs
from nmtkit.translate.steps import Decoders, top_sorted

ROUND = 16
"""The number of sentences that stay in a batch is a multiple of this, because a CPU prepares its
matrix products anew for every number of rows.
"""
LOOK = 8
"""Steps between two looks at a GPU. A look costs about the time of one step, and after its end a
batch is searched for half of these steps in vain. With about 30 steps, 8 costs least: 30/n + n/2.
"""
NO_TOKEN = -1
"""Fills the shorter prefixes of a batch up."""


def search(
    models: Sequence[Model],
    batch: Batch,
    settings: SearchSettings,
    beams: Beams | None = None,
    leave: int = 0,
) -> list[NBest]:
    """Return the n best translations of each sentence of a batch.

    Args:
        models: one model, or several that share a target vocabulary: the mean of their
            probabilities is searched. In eval mode.
        batch: src (B, S) and src_lengths (B); target fields are not read.
        settings: beam, length_penalty, max_length_a, max_length_b, nbest.
        beams: the beams of another method than beam search (`nmtkit.translate.methods`).
        leave: the search ends when at most this many sentences are unfinished.
    Returns: for each sentence at most `nbest` hypotheses, best first; neither their choice nor
        their order depends on the other sentences. The list of an unfinished sentence is empty.
    Raises: TrainingDiverged if the models give no finite probability.
    """
    with inference(models):
        beams = beams or Beams(batch, settings)
        # Other methods and forced prefixes need numbers from the host in each step.
        plain = type(beams) is Beams and beams.prefixes is None
        graphs = step_graphs(models, batch.src.device) if plain else None
        unfinished = _search(Decoders(models, batch), beams, leave, graphs)
    results = beams.ranked()
    for sentence in unfinished:
        results[sentence] = []
    if results.count([]) > len(unfinished):
        raise TrainingDiverged(
            "the model's probabilities are not finite",
            where="search",
            hint="--set search.precision=float32; if it is float32, move the checkpoint away to use"
            " an earlier one (train.log shows the loss)",
        )
    return results


def _read(tensors: Sequence[Tensor]) -> list[Any]:
    """Return tensors as arrays. A GPU sends all of them as one array, so the host waits once."""
    numbers = torch.cat([part.flatten() for part in tensors]).cpu().numpy()
    pieces = np.split(numbers, np.cumsum([part.numel() for part in tensors])[:-1])
    return [piece.reshape(part.shape) for piece, part in zip(pieces, tensors, strict=True)]


def _stay(going: list[bool], halves: bool = False) -> list[int]:
    """Return the sentences that stay in the batch, in order. All of them stay until the smaller
    batch saves more than copying it costs. Finished sentences may fill up the batch to a multiple
    of ROUND.

    Args:
        going: of each sentence, True if it is still searched.
        halves: halve the batch repeatedly, but not below ROUND, so that few sizes occur.
    """
    rows, still_open = len(going), sum(going)
    target = -(-still_open // ROUND) * ROUND if 2 * still_open > ROUND else still_open
    if halves:
        target = rows
        while (half := -(-target // 2)) >= max(still_open, ROUND):
            target = half
    if (rows - target) * 8 < rows:
        return list(range(rows))
    open_first = sorted(range(rows), key=lambda i: not going[i])
    return sorted(open_first[:target])


class Beams:
    """The live hypotheses of the M sentences still searched, and the ended hypotheses of all.

    Args:
        batch: the sources.
        settings: of the search.
        demands: what is asked of each translation; None = nothing.
    Attributes:
        sentences: the M sentences.
        prefixes: (M, P) the forced tokens, then NO_TOKEN; None if no sentence has a prefix.
        live: log-probabilities (M, K), -inf in a slot without a hypothesis; in the first step a
            sentence has one hypothesis.
        slots: (M, 1) the number of slots that no finished hypothesis has taken.
        left: (M, 1) the number of tokens that a hypothesis may still get.
        chosen: the choices of the last step (4, M, K): tokens, the slots that they continue,
            `live`, and 1 where a hypothesis has ended.
        step_log: the choices of the steps that the host has read.
        step: the number of tokens of the live hypotheses.
        look_every: steps between two looks.
    """

    CHANGING = "live", "slots", "left", "chosen", "step"
    """The attributes that a step changes (see step_graphs.py)."""

    def __init__(
        self, batch: Batch, settings: SearchSettings, demands: Sequence[Demand] | None = None
    ) -> None:
        limits = [length_limit(n, settings) for n in batch.src_lengths.tolist()]
        count, device = len(limits), batch.src.device
        self.settings, self.device = settings, device
        self.sentences = np.arange(count)
        self.live = torch.zeros(count, 1, dtype=widest(device), device=device)
        self.slots = torch.full((count, 1), settings.beam, device=device)
        prefixes = [demand.prefix for demand in demands or ()]
        self.prefixes: Tensor | None = None
        if any(prefixes):
            self.prefixes = torch.from_numpy(padded(prefixes, NO_TOKEN)[0]).to(device)
        self.left = torch.tensor(limits, device=device)[:, None]
        self.step, self.longest = 0, max(limits)
        self.look_every = 1 if cpu.reads_at_once(batch.src) else LOOK
        self.chosen = self.live.new_empty(4, count, 0)
        self._unread: list[Tensor] = []
        self.step_log = StepLog(count)
        self._ended: list[list[End]] = [[] for _ in limits]
        self._to_beat = np.full(count, -math.inf)  # the n-th best score
        self._penalties = np.array([length_penalty(n, settings.length_penalty) for n in limits])

    def pick(self, logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Pick the best tokens to continue some rows (see `steps.Pick`)."""
        return top_sorted(self.allowed(logits, rows), self.settings.beam)

    def allowed(self, logits: Tensor, rows: slice) -> Tensor:
        """Return logits (R', V) with -inf for tokens that a forced prefix excludes."""
        if self.prefixes is None or self.step >= self.prefixes.shape[1]:
            return logits
        wanted = self.prefixes[:, self.step].repeat_interleave(self.live.shape[1])[rows, None]
        other = wanted != torch.arange(logits.shape[1], device=self.device)
        return logits.masked_fill(other & (wanted != NO_TOKEN), -math.inf)

    def extend(self, log_probs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Extend the live hypotheses by the chosen tokens. Hypotheses that end in </s>, or reach
        their length limit, leave the beams.

        Args:
            log_probs, ids: (R, k) the tokens that may continue each hypothesis.
        Returns: for each slot (M, K) the row that it continues, and its new token.
        """
        count, width = self.live.shape
        tokens = ids.view(count, -1)
        self.live = (self.live.reshape(-1, 1) + log_probs).view(count, -1)
        rows = torch.arange(count * width, device=self.device).view(count, width)
        if ids.shape[1] > 1:
            best = self.choose(tokens)
            parents, tokens = best // ids.shape[1], tokens.gather(1, best)
            rows = rows[:, :1] + parents
        else:  # a slot has one candidate, which continues the slot
            parents = rows[:1].expand(count, -1)
        self.step += 1
        self.left = self.left - 1
        ended = ((tokens == EOS) | (self.left <= 0)) & (self.live > -math.inf)
        choices = tokens, parents, self.live, ended
        self.chosen = torch.stack([part.to(self.live.dtype) for part in choices])  # ids are exact
        self.live = self.live.masked_fill(ended, -math.inf)
        if ids.shape[1] > 1:  # else no slot is filled again
            self.slots = self.slots - ended.view(count, self.slots.shape[1], -1).sum(2)
        return rows, tokens

    def choose(self, tokens: Tensor) -> Tensor:
        """Fill the free slots with the best candidates, and `live` (M, C) with their
        log-probabilities (M, K): -inf in slots that are not free.

        Args:
            tokens: (M, C) of the candidates; `live` has their log-probabilities.
        Returns: for each slot the column of its candidate (M, K).
        """
        self.live, best = top_sorted(self.live, self.settings.beam)
        slot = torch.arange(self.live.shape[1], device=self.device)
        self.live = self.live.masked_fill(slot >= self.slots, -math.inf)
        return best

    def note(self) -> None:
        """Keep the choices of the last step until the next look."""
        # The next replay of a CUDA graph writes into the same tensor.
        self._unread.append(self.chosen.clone())

    @property
    def looks(self) -> bool:
        """True if the host looks at the hypotheses after this step."""
        return self.step % self.look_every == 0 or self.step >= self.longest

    def look(self) -> list[bool]:
        """Read all steps since the last look.

        Returns: for each of the M sentences True if a live hypothesis can still enter its n best
            (the bound at the top of this file).
        """
        *steps, best = _read([*self._unread, self.live.amax(1)])
        self._unread = []
        for tokens, parents, live, ended in steps:
            self.step_log.add(tokens, parents)
            length = len(self.step_log.steps)
            penalty = length_penalty(length, self.settings.length_penalty)
            for row, slot in np.argwhere(ended).tolist():
                sentence, log_prob = int(self.sentences[row]), float(live[row, slot])
                finished = bool(tokens[row, slot] == EOS)
                end = End(sentence, slot, length, log_prob, log_prob / penalty, finished)
                self.add(row, end)
        bound = best / self._penalties[self.sentences]
        going: list[bool] = (bound > self._to_beat[self.sentences]).tolist()
        return going

    def add(self, row: int, end: End) -> None:
        """Add an ended hypothesis of a row of the M."""
        ended, nbest = self._ended[end.sentence], self.settings.nbest
        ended.append(end)
        # Unfinished ones do no harm: at its length limit a sentence has no live hypotheses left.
        if len(ended) >= nbest:
            scores = sorted((other.score for other in ended), reverse=True)
            self._to_beat[end.sentence] = scores[nbest - 1]

    def keep(self, staying: Sequence[int]) -> Tensor:
        """Keep only some of the M sentences, just after a look.

        Args:
            staying: the rows of these sentences.
        Returns: the same numbers (M'), int64.
        """
        index = np.array(staying)
        self.sentences, rows = self.sentences[index], torch.from_numpy(index).to(self.device)
        self.step_log.keep(self.sentences)
        self.live, self.slots, self.left = self.live[rows], self.slots[rows], self.left[rows]
        self.chosen = self.chosen[:, rows]
        if self.prefixes is not None:
            self.prefixes = self.prefixes[rows]
        return rows

    def ranked(self) -> list[NBest]:
        """Return the n best of each sentence; equal ones in the order in which they ended."""
        ranked = (sorted(ended, key=lambda e: (not e.finished, -e.score)) for ended in self._ended)
        return self.step_log.hypotheses([ends[: self.settings.nbest] for ends in ranked])


@dataclass
class Search:
    """The state of a search.

    Attributes:
        last: (R) the newest token of each row.
    """

    CHANGING: ClassVar = "decoders", "beams", "last"
    """The attributes that a step reads or changes (see step_graphs.py)."""
    decoders: Decoders
    beams: Beams
    last: Tensor

    def step(self) -> None:
        """Extend all hypotheses by a token."""
        log_probs, ids = self.decoders.step(self.last, self.beams.pick)
        rows, token = self.beams.extend(log_probs, ids)
        if ids.shape[1] > 1:  # else every slot goes on
            self.decoders.keep_rows(Continued(rows.reshape(-1)))
        self.last = token.reshape(-1)

    def keep(self, staying: Sequence[int]) -> None:
        """Keep only some of the sentences."""
        width = self.beams.live.shape[1]
        sentences = self.beams.keep(staying)
        slots = torch.arange(width, device=sentences.device)
        rows = (sentences[:, None] * width + slots).reshape(-1)
        self.decoders.keep_sentences(sentences)
        self.decoders.keep_rows(Continued(rows, sentences))
        self.last = self.last[rows]


def _search(decoders: Decoders, beams: Beams, leave: int, graphs: StepGraphs | None) -> set[int]:
    """Do the search described at the top of this file.

    Returns: the unfinished sentences, at most `leave`.
    """
    rows = beams.live.numel()
    search = Search(decoders, beams, torch.full((rows,), BOS, device=decoders.device))
    while True:
        if graphs is None:
            search.step()
        else:
            graphs.step(search)
        beams.note()
        if beams.looks:
            going = beams.look()
            if sum(going) <= leave:
                return set(beams.sentences[going].tolist())
            staying = _stay(going, halves=graphs is not None)
            if len(staying) < len(going):
                search.keep(staying)
