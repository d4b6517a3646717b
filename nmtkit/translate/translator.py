"""Translates lines of text, whether they come from a file, stdin, a test set or Python."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import torch

from nmtkit.data.documents import Documents
from nmtkit.data.ragged import RaggedShards
from nmtkit.models.base import Model
from nmtkit.parallel import Workers, one_ahead
from nmtkit.settings import SearchSettings
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import UNK, Vocabulary, load_vocabularies
from nmtkit.translate.demands import (
    Demand,
    LineDemand,
    check_demand,
    phrase_ids,
    read_demands,
)
from nmtkit.translate.hypotheses import Hypothesis, NBest
from nmtkit.translate.over_long import cut
from nmtkit.translate.searcher import MANY_LINES, Searcher
from nmtkit.translate.windows import Boundaries, file_windows, windowed, windows_for

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Candidate:
    """One translation of a line, as text and as subwords. Its scores are those of
    `hypotheses.Hypothesis`, summed over the pieces of the line.
    """

    text: str
    subwords: list[str]
    log_prob: float
    score: float
    finished: bool


@dataclass(frozen=True)
class Translation:
    """The translations of one line, best first; none for a blank line."""

    candidates: list[Candidate] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The best translation as text; "" for a blank line."""
        return self.candidates[0].text if self.candidates else ""

    @property
    def subwords(self) -> list[str]:
        """The subwords of the best translation; none for a blank line."""
        return self.candidates[0].subwords if self.candidates else []


SHARE = 250
"""Lines of text that a worker handles at once."""
OBJECTS = 50_000
"""With a GPU, Python looks for cycles after this number of new objects. Translations have several
objects a line, but no cycles (`tests/benchmarks/text_ahead.py` measures the gain).
"""


class Window(NamedTuple):
    """Lines that are translated together.

    Attributes:
        lines: the source lines.
        spans: of each line, where known (see `nmtkit.data.store`); a line in pieces is translated
            without spans.
        documents: the whole documents that the lines are; None = every line is a document.
        demands: what the user demands of each translation; None = nothing.
    """

    lines: list[str]
    spans: Sequence[Sequence[int]] | None = None
    documents: Documents | None = None
    demands: Sequence[LineDemand] | None = None


class Translator(Searcher):
    """Translates lines with one model or an ensemble.

    Lines are read in windows. The batches of a window do not depend on the number of workers. A
    blank line stays blank; the model does not read it. A line of more than `max_source` subwords is
    translated in pieces.

    Args:
        models, settings, device, jobs: see `Searcher`.
        src_side, tgt_side: turn text into subwords and back.
        src_vocab, tgt_vocab: the vocabularies.
    Attributes:
        counts: lines, empty (blank lines), no_output (other lines with an empty translation),
            over_long (lines), pieces (of over-long lines), unfinished (lines cut at the length
            limit), unknown (source subwords), src_tokens, tgt_tokens; no_spans (pieces without the
            spans that a model reads), no_context (lines without the context that a model reads).
    """

    def __init__(
        self,
        models: Sequence[Model],
        src_side: TextSide,
        tgt_side: TextSide,
        src_vocab: Vocabulary,
        tgt_vocab: Vocabulary,
        settings: SearchSettings,
        device: torch.device | str = "cpu",
        jobs: int = 1,
    ) -> None:
        super().__init__(models, settings, device, jobs)
        self.src_side, self.tgt_side = src_side, tgt_side
        self.src_vocab, self.tgt_vocab = src_vocab, tgt_vocab
        self._readers: Workers[tuple[Any, list[Any]], list[Any]] | None = None

    @classmethod
    def for_corpus(
        cls,
        prep: Path,
        models: Sequence[Model],
        settings: SearchSettings,
        device: torch.device | str = "cpu",
        jobs: int = 1,
    ) -> Self:
        """Return a translator with the text sides and the vocabularies of a prepared corpus."""
        sides = TextSide.load(prep, "src"), TextSide.load(prep, "tgt")
        return cls(models, *sides, *load_vocabularies(prep), settings, device, jobs)

    @contextlib.contextmanager
    def reading(self, jobs: int) -> Iterator[None]:
        """Let workers turn text into ids and back in this context. A GPU searches several thousand
        lines a second, so one process would need much of the time to read them. For the same reason
        this process looks for cycles of objects less often.

        Args:
            jobs: number of worker processes. They do not see later changes of this translator.
        """
        if jobs <= 1 or not sys.platform.startswith("linux"):
            yield
            return
        before = gc.get_threshold()
        gc.set_threshold(OBJECTS)
        try:
            with contextlib.closing(Workers(lambda: self._of_share, jobs)) as self._readers:
                yield
        finally:
            self._readers = None
            gc.set_threshold(*before)

    def windows(
        self,
        texts: Iterable[list[str]],
        boundaries: Boundaries,
        demands: Iterator[LineDemand] | None = None,
        spans: RaggedShards | None = None,
    ) -> Iterator[Window]:
        """Yield the windows of a text; whole documents if a model reads context.

        Args:
            texts: the lines, in windows.
            boundaries: where documents start.
            demands, spans: of each line; None as in `Window`.
        """
        numbers = itertools.count()
        for lines, documents in windows_for(self.context_rule, texts, boundaries):
            known = None if spans is None else [spans[next(numbers)].tolist() for _ in lines]
            demanded = None if demands is None else list(itertools.islice(demands, len(lines)))
            yield Window(boundaries.sentences(lines), known, documents, demanded)

    def check_demands(
        self, source: str | Path, boundaries: Boundaries, prefix: Path | None, phrases: Path | None
    ) -> None:
        """Raise DataError or ConfigError if the translation of a line cannot meet its demand.

        Args:
            source, boundaries: the text.
            prefix, phrases: the files with the demands (see `read_demands`).
        """
        if prefix or phrases:
            lines = itertools.chain.from_iterable(map(boundaries.sentences, file_windows(source)))
            for line, demand in zip(lines, read_demands(prefix, phrases), strict=False):
                if demand.prefix or demand.phrases:
                    self._demands(demand, self._begin(demand), self._pieces(line), line)

    def translate_windows(
        self, windows: Iterable[Window], ahead: bool = True
    ) -> Iterator[list[Translation]]:
        """Translate windows, in their order. Workers (see `reading`) encode the next window and
        decode the previous one during a search.

        Args:
            windows: of one text.
            ahead: True to take a window before the previous one is translated.
        Raises: DataError if a demand cannot be met.
        """
        # With overlap: encode 1, encode 2, search 1, decode 1, encode 3, search 2, decode 2, …
        overlapping = one_ahead if ahead and self._readers is not None else iter
        encoded = overlapping((w, self._mapped(Translator._pieces, w.lines)) for w in windows)
        return map(list, overlapping(self._translate(window, list(ids)) for window, ids in encoded))

    def translate_window(
        self,
        lines: list[str],
        documents: Documents | None = None,
        demands: Sequence[LineDemand] | None = None,
    ) -> list[Translation]:
        """Translate a single `Window`.

        Raises: DataError if a demand cannot be met.
        """
        return next(self.translate_windows([Window(lines, None, documents, demands)]))

    def _translate(self, window: Window, ids: list[list[list[int]]]) -> Iterator[Translation]:
        """Search a window, and begin to turn its translations into text.

        Args:
            ids: of each line the ids of its pieces.
        """
        for pieces in ids:
            self._count_source(pieces)
        lines, spans, documents, demands = window
        if demands is None:
            demands = list(map(LineDemand, range(len(ids))))
        begins = list(map(self._begin, demands))
        of_pieces = list(map(self._demands, demands, begins, ids, lines))
        translated = self._translate_lines(ids, self._fitting(spans, ids), documents, of_pieces)
        subwords = list(map(self._subwords, translated, begins))
        texts = self._mapped(Translator._text, list(itertools.chain(*subwords)))
        return (self._join(*of_line, texts) for of_line in zip(translated, subwords, strict=True))

    def _begin(self, demand: LineDemand) -> list[str]:
        """Return the subwords of the prefix that a line demands."""
        return self.tgt_side.encode(demand.prefix) if demand.prefix.strip() else []

    def _demands(
        self, demand: LineDemand, begin: list[str], pieces: list[list[int]], line: str
    ) -> list[Demand]:
        """Return the demand of each piece of a line; the first piece gets the prefix.

        Args:
            begin: the subwords of the prefix.
        """
        prefix = tuple(self.tgt_vocab.encode(begin)[:-1])
        phrases = phrase_ids(self.tgt_side, self.tgt_vocab, demand)
        check_demand(demand.number, prefix, phrases, pieces, self.settings)
        unfinished = self._unfinished if phrases else frozenset()
        return [
            Demand((demand.number, i), () if i else prefix, phrases, unfinished, line)
            for i in range(len(pieces))
        ]

    @cached_property
    def _unfinished(self) -> frozenset[int]:
        """The ids of subwords that do not end a word."""
        joins_next = self.tgt_side.splitter.joins_next
        return frozenset(i for i, subword in enumerate(self.tgt_vocab) if joins_next(subword))

    def _fitting(
        self, spans: Sequence[Sequence[int]] | None, ids: Sequence[Sequence[Sequence[int]]]
    ) -> list[Sequence[int]]:
        """Return the spans of each line; none for a line in pieces, or with another number of
        tokens. Count the pieces without spans.
        """
        fitting = []
        for pieces, of_line in zip(ids, spans or [()] * len(ids), strict=True):
            fits = len(pieces) == 1 and sum(of_line) == len(pieces[0])
            fitting.append(of_line if fits else ())
            if self._reads_spans:
                self.counts["no_spans"] += 0 if fits else len(pieces)
        return fitting

    def _cut(self, subwords: list[str]) -> list[list[str]]:
        """Cut a line into pieces that are translated one by one."""
        return cut(subwords, self.settings.max_source, self.src_side.splitter)

    def _mapped(
        self, function: Callable[[Translator, Item], Result], items: list[Item]
    ) -> Iterator[Result]:
        """Apply a method that handles text to the items of a window. Workers begin with many items
        at once; this process handles few items when the results are read.
        """
        if self._readers is None or len(items) < MANY_LINES:
            return map(partial(function, self), items)
        shares = [(function, share) for share in windowed(items, SHARE)]
        return itertools.chain.from_iterable(self._readers.begin(shares))

    def _of_share(
        self, share: tuple[Callable[[Translator, Item], Result], list[Item]]
    ) -> list[Result]:
        function, items = share
        return [function(self, item) for item in items]

    def _pieces(self, line: str) -> list[list[int]]:
        """Return the ids of the pieces of a line, each ending in </s>; none for a blank line."""
        subwords = self.src_side.encode(line) if line.strip() else []
        return [self.src_vocab.encode(piece) for piece in self._cut(subwords)] if subwords else []

    def _count_source(self, pieces: list[list[int]]) -> None:
        self.counts["lines"] += 1
        self.counts["empty"] += not pieces
        if len(pieces) > 1:
            self.counts["over_long"] += 1
            self.counts["pieces"] += len(pieces)
        self.counts["src_tokens"] += sum(map(len, pieces))
        self.counts["unknown"] += sum(piece.count(UNK) for piece in pieces)

    def _texts(self, hypotheses: Sequence[Hypothesis]) -> list[str]:
        return [self._text(self.tgt_vocab.decode(h.ids)) for h in hypotheses]

    def _text(self, subwords: list[str]) -> str:
        return self.tgt_side.decode(subwords)

    def _subwords(self, pieces: list[NBest], begins: Sequence[str]) -> list[list[str]]:
        """Return the subwords of the candidates of a line: the best translations of its pieces
        joined, the second best ones joined, … A word that is cut between two pieces ends there.

        Args:
            begins: the subwords of the forced prefix, of which the vocabulary may lack some.
        """
        splitter, candidates = self.tgt_side.splitter, []
        for of_pieces in zip(*pieces, strict=False):  # as many as the piece with the fewest has
            subwords: list[str] = []
            for hypothesis in of_pieces:
                if subwords and splitter.joins_next(subwords[-1]):
                    subwords[-1:] = splitter.join(subwords[-1:])
                subwords += self.tgt_vocab.decode(hypothesis.ids)
            subwords[: len(begins)] = begins
            candidates.append(subwords)
        return candidates

    def _join(
        self, pieces: list[NBest], subwords: list[list[str]], texts: Iterator[str]
    ) -> Translation:
        """Return the translation of a line.

        Args:
            pieces: the hypotheses of each piece.
            subwords: of each candidate.
            texts: of each candidate of this line, then of the next lines.
        """
        candidates = [
            Candidate(
                text=next(texts),
                subwords=of_candidate,
                log_prob=sum(h.log_prob for h in of_pieces),
                score=sum(h.score for h in of_pieces),
                finished=all(h.finished for h in of_pieces),
            )
            for of_candidate, *of_pieces in zip(subwords, *pieces, strict=False)
        ]
        if candidates:
            self.counts["no_output"] += not candidates[0].subwords
            self.counts["unfinished"] += not candidates[0].finished
            self.counts["tgt_tokens"] += sum(
                len(hypotheses[0].ids) + hypotheses[0].finished for hypotheses in pieces
            )
        return Translation(candidates)
