"""Searches lines of token ids: contexts, batches, worker processes."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from nmtkit import console
from nmtkit.data.batch_lists import longest_first
from nmtkit.data.batches import source_batch
from nmtkit.data.context import Context, contexts
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.errors import ConfigError
from nmtkit.models.base import Model
from nmtkit.nn.recording import graphs_fit
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import EOS
from nmtkit.translate import workers
from nmtkit.translate.demands import Demand
from nmtkit.translate.hypotheses import Hypothesis, NBest
from nmtkit.translate.methods import decode
from nmtkit.translate.risk import PairUtility, distinct, least_risk

Item = TypeVar("Item")
Result = TypeVar("Result")

POSITIONS_PER_SENTENCE = 64
"""A batch has at most search.batch_size times this number of source positions, padding included.
So long sentences come in smaller batches.
"""
LARGE_GPU_BYTES = 64 << 30
"""Bytes of memory. A larger GPU takes twice as many positions, unless search.batch_size is set."""
AT_ONCE, AT_ONCE_ON_A_GPU = 128, 512
"""Sentences in a batch, unless search.batch_size is set. Greedy search of MANY_LINES on a CPU has
twice as many, because its sentences have one hypothesis each. With n samples or hypotheses a
sentence, a batch has n // FULL_BATCH_HYPOTHESES times fewer sentences.
"""

BATCHES_TO_LEAVE_FROM = 8
"""From this number of batches on, each leaves its last sentences, which are searched together."""
LEAVE_ONE_IN = 8
"""A batch leaves at most one of this number of its sentences."""
LEFT_HYPOTHESES = 8
"""On a CPU a batch leaves at most this number of hypotheses: a step of more is worth its time."""
FULL_BATCH_HYPOTHESES = 8
"""Memory holds whole batches with fewer than twice this number of hypotheses a sentence."""


MANY_LINES = 4000
"""Text of fewer lines is searched in smaller batches, and read in this process."""

ContextIds = tuple[tuple[int, ...], tuple[int, ...]]
"""What a model reads of a line as context: source ids (of an over-long line its first piece) and,
for models that read targets, the ids of the translation. Both end in </s>.
"""


@dataclass(frozen=True)
class Piece:
    """A line, or a part of an over-long line.

    Attributes:
        line: number of the line.
        ids: token ids, </s> last.
        spans: of the line; empty if they are not known.
        context: what the model reads as context.
        demand: what is asked of the translation.
    """

    line: int
    ids: list[int]
    spans: Sequence[int]
    context: list[ContextIds]
    demand: Demand


def sentences_at_once(settings: SearchSettings, device: torch.device, lines: int) -> int:
    """Return the number of sentences in a batch.

    Args:
        lines: the number of lines that are searched together.
    """
    if settings.batch_size:
        return settings.batch_size
    rows = (settings.mbr or settings.nbest) if settings.sample else settings.beam
    many = rows == 1 and lines >= MANY_LINES
    size = AT_ONCE_ON_A_GPU if device.type == "cuda" else AT_ONCE * (2 if many else 1)
    return max(1, size // max(1, rows // FULL_BATCH_HYPOTHESES))


def positions_at_once(settings: SearchSettings, device: torch.device) -> int:
    """Return the most source positions of a batch, padding included."""
    automatic = device.type == "cuda" and not settings.batch_size
    roomy = automatic and torch.cuda.get_device_properties(device).total_memory >= LARGE_GPU_BYTES
    return sentences_at_once(settings, device, 0) * POSITIONS_PER_SENTENCE * (2 if roomy else 1)


def shared_context_rule(models: Sequence[Model]) -> ContextRule | None:
    """Return which lines of a document the models read as context; None = no context.

    Raises: ConfigError if the models read different contexts.
    """
    rules = {_without_idle_fields(rule) for model in models if (rule := model.context_rule)}
    if len(rules) > 1:
        raise ConfigError(
            "the systems of an ensemble read different contexts",
            where="--ensemble",
            hint="name systems that read the same sentences in the same form (see"
            " model.context, model.context_size, model.context_seed, model.side)",
        )
    return rules.pop() if rules else None


def _without_idle_fields(rule: ContextRule) -> ContextRule:
    """Return a rule with the defaults of the fields that do not change which sentences are read."""
    if rule.kind not in {"random", "foreign"}:  # nothing is drawn
        rule = replace(rule, seed=ContextRule.seed)
    # A single sentence is the same context under both ways to join several.
    return replace(rule, join="parallel") if rule.size == 1 and not rule.whole else rule


class Searcher(ABC):
    """Searches lines with one model or an ensemble.

    Pieces of lines are sorted by length, cut into batches and searched. The batches do not depend
    on the number of workers, so the results do not either.

    Args:
        models: in eval mode, on `device`, sharing the target vocabulary.
        settings: of the search and its batches.
        device: where the models are.
        jobs: worker processes on a CPU of Linux (1 elsewhere).
    Attributes:
        done: called with the number of lines of each finished batch.
        utility: of minimum Bayes risk; None = chrF.
        context_rule: which lines of a document the models read as context; None = no context.
        counts: no_context (lines without the context that a model reads).
    Raises: ConfigError if the models read different contexts.
    """

    def __init__(
        self,
        models: Sequence[Model],
        settings: SearchSettings,
        device: torch.device | str = "cpu",
        jobs: int = 1,
    ) -> None:
        self.models, self.settings = list(models), settings
        self.device = torch.device(device)
        self.jobs = workers.usable_jobs(self.device, jobs)
        self.done: console.Advance = lambda amount: None
        self.utility: PairUtility | None = None
        self._reads_spans = any(model.reads_spans for model in self.models)
        rounds = not any(model.reads_batch_length for model in self.models)
        self._replayed = rounds and graphs_fit(self.device)
        self.context_rule = shared_context_rule(self.models)
        self.counts: Counter[str] = Counter()

    @abstractmethod
    def _texts(self, hypotheses: Sequence[Hypothesis]) -> list[str]:
        """Return the texts of hypotheses, which minimum Bayes risk compares."""

    @property
    def _reads_targets(self) -> bool:
        return self.context_rule is not None and self.context_rule.targets

    def _translate_lines(
        self,
        ids: list[list[list[int]]],
        spans: Sequence[Sequence[int]],
        documents: Documents | None,
        demands: list[list[Demand]] | None = None,
        counted: bool = True,
    ) -> list[list[NBest]]:
        """Translate each piece of each line. All lines are translated at once; if a model reads
        translations as context, a line is translated after the earlier lines of its document.

        Args:
            ids: of each line the ids of its pieces.
            spans: of each line, empty if they are not known.
            documents: of the lines.
            demands: of each piece of each line.
            counted: True if `done` counts the lines.
        Returns: of each line, of each piece, the n best translations.
        """
        documents = without_blank_lines(documents, ids)
        rounds = [list(range(len(ids)))]
        if documents is not None and self._reads_targets:
            rounds = documents.rounds(range(len(ids)))
        context_ids: list[ContextIds] = [(tuple(pieces[0]) if pieces else (), ()) for pieces in ids]
        hypotheses: list[list[NBest]] = [[] for _ in ids]
        lines_per_item = counted * len(ids) / max(1, sum(map(len, ids)))
        for lines in rounds:
            pieces: list[Piece] = []
            for line in lines:
                context = self._context(line, context_ids, documents)
                for number, of_piece in enumerate(ids[line]):
                    demand = demands[line][number] if demands else Demand((line, number))
                    pieces.append(Piece(line, of_piece, spans[line], context, demand))
            results = self._search_pieces(pieces, lines_per_item)
            for piece, nbest in zip(pieces, results, strict=True):
                hypotheses[piece.line].append(nbest)
            if self._reads_targets:
                for line in lines:
                    context_ids[line] = (context_ids[line][0], best_ids(hypotheses[line]))
        return hypotheses

    def _search_pieces(self, pieces: list[Piece], lines_per_item: float) -> list[NBest]:
        """Search all pieces. When most sentences of a batch have ended, the rest is left and
        searched again, together with the rest of the other batches: a step of few sentences takes
        nearly as long as one of many.
        """
        results: dict[int, NBest] = {}
        while len(results) < len(pieces):
            waiting = [number for number in range(len(pieces)) if number not in results]
            batches = [
                [waiting[i] for i in batch]
                for batch in self._batches([len(pieces[number].ids) for number in waiting])
            ]
            work = partial(self._search_batch, leaves=len(batches) >= BATCHES_TO_LEAVE_FROM)
            hypotheses = self._by_batch(work, pieces, batches, lines_per_item)
            results |= {number: nbest for number, nbest in hypotheses.items() if nbest}
        found = [results[number] for number in range(len(pieces))]
        if self.settings.mbr and self.utility is not None:
            return self._of_utility(self.utility, pieces, found)
        return found

    def _by_batch(
        self,
        function: Callable[[list[Item]], list[Result]],
        items: Sequence[Item] | Mapping[int, Item],
        batches: Sequence[Sequence[int]],
        lines_per_item: float = 1,
    ) -> dict[int, Result]:
        """Apply a function to the items of each batch, on the workers.

        Args:
            function: returns a result for each item of a batch.
            items: by number.
            batches: numbers of items.
            lines_per_item: added to the lines that are done, for each item with a result.
        Returns: the results by the numbers of the items.
        """
        work = [[items[number] for number in batch] for batch in batches]
        results: dict[int, Result] = {}
        for batch, of_batch in zip(batches, workers.mapped(function, work, self.jobs), strict=True):
            results.update(zip(batch, of_batch, strict=True))
            self.done(sum(map(bool, of_batch)) * lines_per_item)
        return results

    def _context(
        self, line: int, context_ids: list[ContextIds], documents: Documents | None
    ) -> list[ContextIds]:
        """Return the context that the models read with a line.

        Args:
            context_ids: of each line.
            documents: from `without_blank_lines`.
        """
        if self.context_rule is None or not context_ids[line][0]:
            return []
        sentences = [] if documents is None else documents.context(line, self.context_rule)
        self.counts["no_context"] += not len(sentences)
        return [context_ids[sentence] for sentence in sentences]

    def _batches(self, lengths: list[int]) -> list[list[int]]:
        """Return the indices of sentences in batches. The longest come first, so that workers end
        together, and memory runs out at the start or never.
        """
        size = sentences_at_once(self.settings, self.device, len(lengths))
        return longest_first(lengths, positions_at_once(self.settings, self.device), size)

    def _search_batch(self, pieces: list[Piece], leaves: bool) -> list[NBest]:
        """Translate a batch.

        Args:
            leaves: True if the last few sentences are left, and get no hypotheses.
        """
        spans = [piece.spans for piece in pieces] if self._reads_spans else None
        context = self._context_tensors([piece.context for piece in pieces])
        ids = [piece.ids for piece in pieces]
        batch = source_batch(ids, self.device, spans, context, self._replayed)
        leave = len(pieces) // LEAVE_ONE_IN if leaves else 0
        if self.device.type == "cpu":
            leave = min(leave, LEFT_HYPOTHESES // self.settings.beam)
        demands = [piece.demand for piece in pieces]
        hypotheses = decode(self.models, batch, self.settings, demands, leave)
        if not self.settings.mbr or self.utility is not None:
            return hypotheses
        nbest, drawn = self.settings.nbest, self.settings.sample
        return [least_risk(h, self._texts(h), nbest, drawn) if h else [] for h in hypotheses]

    def _of_utility(
        self, utility: PairUtility, pieces: Sequence[Piece], candidates: Sequence[NBest]
    ) -> list[NBest]:
        """Return the hypotheses of each piece that minimum Bayes risk chooses, best first. The
        utility is measured for all pieces at once, because a command may load a model each time.
        """
        nbest, drawn = self.settings.nbest, self.settings.sample
        texts = list(map(self._texts, candidates))
        sources = [piece.demand.source for piece in pieces]
        matrices = utility(sources, list(map(distinct, texts)))
        return [
            least_risk(hypotheses, of_piece, nbest, drawn, matrix)
            for hypotheses, of_piece, matrix in zip(candidates, texts, matrices, strict=True)
        ]

    def _context_tensors(self, reads: Sequence[Sequence[ContextIds]]) -> Context | None:
        """Return the contexts of a batch; equal contexts are stored once."""
        if self.context_rule is None:
            return None
        unique = list(dict.fromkeys(itertools.chain.from_iterable(reads)))
        number = {read: i for i, read in enumerate(unique)}
        src, tgt = ([np.asarray(read[side]) for read in unique] for side in (0, 1))
        rows = [[number[read] for read in of_row] for of_row in reads]
        return contexts(rows, src.__getitem__, self.context_rule, tgt.__getitem__, self.device)


def without_blank_lines(documents: Documents | None, lines: Sequence[object]) -> Documents | None:
    """Return the documents without blank lines, which are never context.

    Args:
        lines: anything that is false for a blank line.
    """
    blank = {number for number, line in enumerate(lines) if not line}
    return None if documents is None else documents.without(blank)


def best_ids(pieces: list[NBest]) -> tuple[int, ...]:
    """Return the ids of the best translation of a line's first piece, </s> last; a blank line has
    </s> alone.
    """
    return (*(pieces[0][0].ids if pieces else ()), EOS)
