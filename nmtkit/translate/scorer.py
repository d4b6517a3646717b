"""Scores given translations of lines by their probability, with the context that a translation
would read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nmtkit.data.batches import source_batch, with_targets
from nmtkit.data.documents import Documents
from nmtkit.errors import DataError, short
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.translate.forced import forced_scores
from nmtkit.translate.searcher import (
    POSITIONS_PER_SENTENCE,
    ContextIds,
    best_ids,
    without_blank_lines,
)
from nmtkit.translate.translator import Translator, Window

MOST_SUBWORDS = 20_000
"""The most subwords of a line that is scored. No line is cut, and the time of attention grows with
the square of the length.
"""
Ids = list[int]
Given = tuple[Ids, list[Ids], Sequence[int], list[ContextIds]]
"""A source, its targets, its spans and its context."""


@dataclass(frozen=True)
class ForcedLine:
    """A given target line: its tokens, </s> last, and the natural log-probability of each."""

    tokens: list[str]
    log_probs: list[float]

    @property
    def log_prob(self) -> float:
        """The log-probability of the whole line."""
        return sum(self.log_probs)


class Scorer(Translator):
    """Scores given translations. If a model reads the translation of a line as context, and no
    translation is given, the scorer translates the line.
    """

    def force(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        documents: Documents | None = None,
        spans: Sequence[Sequence[int]] | None = None,
    ) -> list[ForcedLine]:
        """Score given translations of lines. A source is not cut; a blank source is scored as an
        empty sentence.

        Args:
            sources, targets: (N) lines.
            documents: the whole documents that the sources are, read as in translation; None =
                every line is a document.
            spans: of each source, where known.
        Raises: ValueError if the numbers of sources and targets differ.
        """
        tokens = [_whole(self.tgt_side, line) for line in targets]
        tgt = [[self.tgt_vocab.encode(line)] for line in tokens]
        scores = self._score_all(sources, tgt, documents, spans)
        return [
            ForcedLine([*line, self.tgt_vocab[EOS]], of_line)
            for line, (of_line,) in zip(tokens, scores, strict=True)
        ]

    def force_windows(
        self, windows: Iterable[Window], targets: Iterator[str]
    ) -> Iterator[ForcedLine]:
        """Score the given translations of the lines of windows.

        Args:
            windows: of one text.
            targets: a translation of each line of the text.
        """
        for lines, spans, documents, _ in windows:
            yield from self.force(
                lines, list(itertools.islice(targets, len(lines))), documents, spans
            )

    def alternatives(
        self,
        sources: Sequence[str],
        targets: Sequence[Sequence[str]],
        documents: Documents | None = None,
    ) -> list[list[float]]:
        """Return the log-probabilities of several given translations of each line, </s> included. A
        source is read once for all of its targets.

        Args:
            sources: (N) lines.
            targets: (N, K_i) lines; a line without targets is only read as context.
            documents: as of `force`.
        Returns: (N, K_i).
        """
        tgt = [
            [self.tgt_vocab.encode(_whole(self.tgt_side, line)) for line in lines]
            for lines in targets
        ]
        scores = self._score_all(sources, tgt, documents)
        return [[sum(of_target) for of_target in of_line] for of_line in scores]

    def _batches_with_targets(self, src: list[Ids], tgt: list[list[Ids]]) -> list[list[int]]:
        """Return the numbers of the lines with targets in batches. The sources of a batch have the
        same number of targets.
        """
        longest = [max(map(len, ids), default=0) for ids in tgt]
        order = sorted(
            (i for i, ids in enumerate(tgt) if ids),
            key=lambda i: (-len(tgt[i]), -max(len(src[i]), longest[i])),
        )
        batches = []
        for count, same in itertools.groupby(order, key=lambda i: len(tgt[i])):
            rows = list(same)
            # A source needs a row for each of its targets. Short lines all count
            # POSITIONS_PER_SENTENCE, so that they stay in their order.
            positions = [count * max(POSITIONS_PER_SENTENCE, len(src[i]), longest[i]) for i in rows]
            batches += [[rows[place] for place in batch] for batch in self._batches(positions)]
        return batches

    def _uncut(self, lines: Sequence[str]) -> tuple[list[Ids], list[Ids]]:
        """Return the ids of whole lines, and the ids of their first pieces, which are read as
        context; none for a blank line.
        """
        subwords = [_whole(self.src_side, line) if line.strip() else [] for line in lines]
        heads = [self._cut(words)[0] for words in subwords]
        encode = self.src_vocab.encode
        return list(map(encode, subwords)), [encode(head) if head else [] for head in heads]

    def _given_or_translated(
        self, heads: list[Ids], targets: list[list[Ids]], documents: Documents | None
    ) -> list[ContextIds]:
        """Return what models read of each line as context. As its translation they read the first
        given target; without a target, the system's own translation.
        """
        if not self._reads_targets:
            return [(tuple(head), ()) for head in heads]
        read: list[Sequence[int]] = [of_line[0] if of_line else () for of_line in targets]
        if not all(targets):
            pieces = [[head] if head else [] for head in heads]
            translated = self._translate_lines(pieces, [()] * len(heads), documents, counted=False)
            read = [ids or best_ids(of_line) for ids, of_line in zip(read, translated, strict=True)]
        return list(zip(map(tuple, heads), map(tuple, read), strict=True))

    def _score_all(
        self,
        sources: Sequence[str],
        tgt: list[list[Ids]],
        documents: Documents | None,
        spans: Sequence[Sequence[int]] | None = None,
    ) -> list[list[list[float]]]:
        """Score the targets of each line, batch by batch on the workers.

        Args:
            sources: (N) lines.
            tgt: (N, K_i); a line without targets is not scored.
            documents, spans: of the lines.
        Returns: of each line, of each target, the log-probabilities of its tokens.
        Raises: ValueError if the numbers of sources and targets differ.
        """
        src, heads = self._uncut(sources)
        pairs = list(zip(src, tgt, strict=True))
        fitting = self._fitting(spans, [[line] for line in src])
        targets = list(itertools.chain(*tgt))
        self.counts.update(
            lines=len(src),
            empty=sum(len(line) == 1 for line in src),
            src_tokens=sum(map(len, src)),
            tgt_tokens=sum(map(len, targets)),
            over_long=sum(len(line) > self.settings.max_source + 1 for line in src),
            unknown=sum(line.count(UNK) for line in src),
            unknown_target=sum(line.count(UNK) for line in targets),
        )
        reads = self._given_or_translated(heads, tgt, documents)
        documents = without_blank_lines(documents, heads)
        batches = self._batches_with_targets(src, tgt)
        items = {
            line: (*pairs[line], fitting[line], self._context(line, reads, documents))
            for line in itertools.chain(*batches)
        }
        scores = self._by_batch(self._score, items, batches)
        return [scores.get(line, []) for line in range(len(src))]

    def _score(self, lines: list[Given]) -> list[list[list[float]]]:
        src, tgt, spans, reads = zip(*lines, strict=True)
        known = spans if self._reads_spans else None
        batch = source_batch(src, self.device, known, self._context_tensors(reads))
        scores = forced_scores(self.models, with_targets(batch, list(itertools.chain(*tgt))))
        count = len(tgt[0])
        return [scores[start : start + count] for start in range(0, len(scores), count)]


def _whole(side: TextSide, line: str) -> list[str]:
    """Return the subwords of a whole line.

    Raises: DataError if it has too many subwords.
    """
    subwords = side.encode(line)
    if len(subwords) > MOST_SUBWORDS:
        raise DataError(
            f"a line has {len(subwords):,} subwords; forced scores read lines whole, of at most"
            f" {MOST_SUBWORDS:,}",
            where=f"the line {short(line)}",
            hint="split the line",
        )
    return subwords
