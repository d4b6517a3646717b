"""Given translations of lines and how probable a model finds them; on the translator's batches,
and with its context.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nmtkit.data.documents import Documents
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.translate import workers
from nmtkit.translate.forced import alternatives_batch, forced_scores, pair_batch
from nmtkit.translate.over_long import cut
from nmtkit.translate.translator import POSITIONS, Read, Translator, readable, said

Target = TypeVar("Target")
Work = tuple[list[list[int]], list[Target], list[list[Read]]]
"""Of the lines of a batch: the sources, the target or the targets, and what is read as context."""


@dataclass(frozen=True)
class ForcedLine:
    """A given target line: its tokens, </s> last, and the natural log-probability of each."""

    tokens: list[str]
    log_probs: list[float]

    @property
    def log_prob(self) -> float:
        """Of the whole line."""
        return sum(self.log_probs)


class Scorer(Translator):
    """Scores given translations; what a model reads as context, and nobody gives, it translates
    itself.
    """

    def force(
        self, sources: Sequence[str], targets: Sequence[str], documents: Documents | None = None
    ) -> list[ForcedLine]:
        """Score given translations of lines, in their order; an over-long source is not cut, a
        blank one is scored as an empty sentence.

        Args:
            sources, targets: (N) lines.
            documents: of the sources, whole ones, read as in translation; None = every line is one.
        Raises: ValueError if there are more lines of one than of the other.
        """
        src, heads = self._whole(sources)
        tokens = [self.tgt_side.encode(line) for line in targets]
        tgt = [self.tgt_vocab.encode(line) for line in tokens]
        batches = self._batches([max(len(s), len(t)) for s, t in zip(src, tgt, strict=True)])
        self._count_given(src, tgt)
        reads: list[Read] = [
            (tuple(head), tuple(ids) if self._reads_targets else ())
            for head, ids in zip(heads, tgt, strict=True)
        ]
        documents = readable(documents, list(map(bool, heads)))
        read = {i: self._context(i, reads, documents) for i in range(len(src))}
        found = self._each(self._score, batches, src, tgt, read)
        return [
            ForcedLine([*line, self.tgt_vocab[EOS]], scores)
            for line, scores in zip(tokens, found, strict=True)
        ]

    def _whole(self, lines: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
        """The ids of lines that are scored, not cut, and of each what `_context` reads of it:
        the first piece, none of a blank line.
        """
        subwords = [self.src_side.encode(line) if line.strip() else [] for line in lines]
        ids = [self.src_vocab.encode(own) for own in subwords]
        return ids, [
            self.src_vocab.encode(cut(own, self.settings.max_source)[0]) if own else []
            for own in subwords
        ]

    def _count_given(self, src: list[list[int]], tgt: list[list[int]]) -> None:
        """Count lines, and given targets (of each line one, or any number in a row)."""
        self.counts["lines"] += len(src)
        self.counts["empty"] += sum(len(line) == 1 for line in src)
        self.counts["src_tokens"] += sum(map(len, src))
        self.counts["tgt_tokens"] += sum(map(len, tgt))
        self.counts["over_long"] += sum(len(line) > self.settings.max_source + 1 for line in src)
        self.counts["unknown"] += sum(line.count(UNK) for line in src)
        self.counts["unknown_target"] += sum(line.count(UNK) for line in tgt)
        if self._reads_spans:
            self.counts["no_spans"] += len(src)

    def _read(
        self, heads: list[list[int]], targets: list[list[list[int]]], documents: Documents | None
    ) -> list[Read]:
        """What is read of lines as context: where translations are, of a line without targets
        the system's own, of others the first target.
        """
        if not self._reads_targets:
            return [(tuple(head), ()) for head in heads]
        found = self._translated(
            [[head] if head else [] for head in heads], None, documents, lambda amount: None
        )
        return [
            (tuple(head), tuple(own[0]) if own else said(of))
            for head, own, of in zip(heads, targets, found, strict=True)
        ]

    def _each(
        self,
        score: Callable[[Work[Target]], list[list[float]]],
        batches: Sequence[Sequence[int]],
        src: Sequence[list[int]],
        tgt: Sequence[Target],
        read: Mapping[int, list[Read]],
    ) -> list[list[float]]:
        """What `score` gives of every line, batch by batch on the workers; nothing of lines in no
        batch.

        Args:
            score: of a batch, a list for each line; batches: numbers of lines.
            src, tgt: (N) of all lines; read: the context of those in batches.
        Returns: (N).
        """
        work = [
            ([src[i] for i in batch], [tgt[i] for i in batch], [read[i] for i in batch])
            for batch in batches
        ]
        found: list[list[float]] = [[] for _ in src]
        for batch, scores in zip(batches, workers.mapped(score, work, self.jobs), strict=True):
            for i, own in zip(batch, scores, strict=True):
                found[i] = own
            self.done(len(batch))
        return found

    def _score(self, work: Work[list[int]]) -> list[list[float]]:
        src, tgt, read = work
        return forced_scores(
            self.models,
            dataclasses.replace(pair_batch(src, tgt, self.device), context=self._contexts(read)),
        )

    def alternatives(
        self,
        sources: Sequence[str],
        targets: Sequence[Sequence[str]],
        documents: Documents | None = None,
    ) -> list[list[float]]:
        """Log-probabilities of several given translations of each line, </s> included; a source is
        read once for all of its targets.

        Args:
            sources: (N) lines.
            targets: (N, K_i) lines; a line with none is there to be read as context.
            documents: of the sources, whole ones, read as in translation; None = every line is one.
        Returns: (N, K_i).
        """
        src, heads = self._whole(sources)
        tgt = [
            [self.tgt_vocab.encode(self.tgt_side.encode(line)) for line in lines]
            for lines in targets
        ]
        self._count_given(src, [target for targets in tgt for target in targets])
        longest = [max(map(len, targets), default=0) for targets in tgt]
        order = sorted(
            (i for i, own in enumerate(tgt) if own),
            key=lambda i: (-len(tgt[i]), -len(src[i]), -longest[i]),
        )
        reads = self._read(heads, tgt, documents)
        documents = readable(documents, list(map(bool, heads)))
        read = {i: self._context(i, reads, documents) for i in order}
        batches: list[list[int]] = []
        for count, same in itertools.groupby(
            order, key=lambda i: len(tgt[i])
        ):  # only sources with as many targets share a batch
            own = list(same)
            # A source counts for all of its targets; those too short for the limit of positions
            # count alike, so that they stay in their order.
            positions = [count * max(POSITIONS, len(src[i]), longest[i]) for i in own]
            batches += [[own[place] for place in batch] for batch in self._batches(positions)]
        return self._each(self._score_alternatives, batches, src, tgt, read)

    def _score_alternatives(self, work: Work[list[list[int]]]) -> list[list[float]]:
        src, tgt, read = work
        batch = dataclasses.replace(
            alternatives_batch(src, tgt, self.device), context=self._contexts(read)
        )
        sums = [sum(scores) for scores in forced_scores(self.models, batch)]
        count = len(tgt[0])
        return [sums[start : start + count] for start in range(0, len(sums), count)]
