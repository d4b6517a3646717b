"""Lexical constraints: phrases that a translation must have, by dynamic beam allocation (Post &
Vilar 2018).

The search, exactly. It is that of beam.py with two changes.

A phrase of tokens occurs where they stand side by side and no unfinished word stands before them.
Occurrences may overlap; a phrase that is asked for twice must occur twice. A hypothesis cannot end
with </s> before all its phrases occur.

The coverage of a hypothesis is the number of tokens of the phrases that occur, and of the longest
beginning of another phrase that the hypothesis ends with. At each step the candidates are ranked by
log-probability among those of equal coverage; equal ones in the order of beam, then token id. The
free slots are filled in rounds: each round takes the next candidate of every coverage, highest
coverage first, until no slot is free. So a slot that one coverage cannot use goes to the others.

Hypotheses that lack a phrase at the length limit are dropped, unless all lack one.

Legend: M sentences still searched, K beam, R = M·K rows, R' some of them, C candidates of a
sentence, S most tokens that can continue phrases, V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.data.padding import padded
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import EOS
from nmtkit.translate.beam import Beams
from nmtkit.translate.demands import Demand
from nmtkit.translate.hypotheses import End, NBest
from nmtkit.translate.steps import top_sorted

Missing = Counter[tuple[int, ...]]
"""How often each phrase still has to occur; a phrase that has occurred often enough is left out."""


@dataclass(frozen=True)
class Phrases:
    """The phrases of a sentence.

    Attributes:
        wanted: token ids of each phrase -> how often it must occur.
        unfinished: ids of subwords that do not end a word.
    """

    wanted: Counter[tuple[int, ...]]
    unfinished: frozenset[int]

    def _ends_with(self, ids: Sequence[int], tokens: tuple[int, ...]) -> bool:
        start = len(ids) - len(tokens)
        if start < 0 or tuple(ids[start:]) != tokens:
            return False
        return not start or ids[start - 1] not in self.unfinished

    def missing_after(self, ids: Sequence[int], missing: Missing) -> Missing:
        """Return the phrases that tokens lack; without the last token they lacked `missing`."""
        return missing - Counter(phrase for phrase in missing if self._ends_with(ids, phrase))

    def _begun(self, ids: Sequence[int], missing: Missing) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield each missing phrase with the length of each of its beginnings, which may be 0, that
        tokens end with.
        """
        for phrase in missing:
            for length in range(len(phrase)):
                if self._ends_with(ids, phrase[:length]):
                    yield phrase, length

    def coverage(self, ids: Sequence[int], missing: Missing) -> int:
        """Return the coverage of tokens that lack these phrases."""
        occurring = self.wanted - missing
        covered = sum(len(phrase) * count for phrase, count in occurring.items())
        return covered + max((length for _, length in self._begun(ids, missing)), default=0)

    def continuing(self, ids: Sequence[int], missing: Missing) -> list[int]:
        """Return the tokens that begin, continue or complete a missing phrase."""
        return sorted({phrase[length] for phrase, length in self._begun(ids, missing)})


class ConstrainedBeams(Beams):
    """The live hypotheses of M sentences with phrases that must occur. The arguments are those of
    `Beams`.
    """

    def __init__(self, batch: Batch, settings: SearchSettings, demands: Sequence[Demand]) -> None:
        super().__init__(batch, settings, demands)
        self._phrases = [Phrases(Counter(d.phrases), d.unfinished) for d in demands]
        self._missing = [[phrases.wanted] for phrases in self._phrases]  # (M, K)
        self._incomplete: list[list[End]] = [[] for _ in demands]
        self.look_every = 1  # phrases are sought in the tokens so far

    def pick(self, logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Pick the tokens that continue phrases, and the best others."""
        if rows.start == 0:  # the first rows of this step
            self._prepare()
        logits, special = self.allowed(logits, rows), self._continuing[rows]
        values = logits.gather(1, special)
        logits.scatter_(1, special, -math.inf)
        logits[:, EOS].masked_fill_(self._lacking[rows], -math.inf)
        best, ids = top_sorted(logits, self.settings.beam)
        return torch.cat([best, values], 1), torch.cat([ids, special], 1)

    def _prepare(self) -> None:
        """Find the ids (R, S) that continue the phrases of each row, filled up with <pad>, which is
        impossible; and which rows lack a phrase (R).
        """
        width = self.live.shape[1]
        places = [(int(i), slot, self.step) for i in self.sentences for slot in range(width)]
        tokens = self.step_log.tokens_of(places)
        self._prefixes = [tokens[i : i + width] for i in range(0, len(tokens), width)]  # (M, K)
        missing = [of_slot for of_slots in self._missing for of_slot in of_slots]  # (R)
        special = [
            self._phrases[sentence].continuing(ids, of_slot)
            for (sentence, _, _), ids, of_slot in zip(places, tokens, missing, strict=True)
        ]
        self._continuing = torch.from_numpy(padded(special)[0]).to(self.device)
        self._lacking = torch.tensor(list(map(bool, missing)), device=self.device)

    def choose(self, tokens: Tensor) -> Tensor:
        """Fill the free slots in rounds; a sentence that lacks no phrase, as in beam search."""
        candidates = self.live
        best = super().choose(tokens)
        lacking, self._missing = self._missing, [[Counter()] * best.shape[1] for _ in self._missing]
        for row in [row for row, of_slots in enumerate(lacking) if any(of_slots)]:
            filled = self._rounds(row, candidates[row], tokens[row], lacking[row])
            self.live[row], best[row] = -math.inf, 0
            for slot, (column, missing) in enumerate(filled):
                self.live[row, slot], best[row, slot] = candidates[row, column], column
                self._missing[row][slot] = missing
        return best

    def _rounds(
        self, row: int, live: Tensor, tokens: Tensor, lacking: list[Missing]
    ) -> list[tuple[int, Missing]]:
        """Return the candidates that fill the free slots of a sentence, best first: the column of
        each, and what it lacks.

        Args:
            row: of the sentence among the M.
            live, tokens: (C) of the candidates.
            lacking: of each hypothesis of the sentence.
        """
        phrases, prefixes = self._phrases[self.sentences[row]], self._prefixes[row]
        ids = tokens.tolist()
        width = len(ids) // len(prefixes)
        ranked = sorted(
            (-log_prob, column // width, ids[column], column)
            for column, log_prob in enumerate(live.tolist())
            if log_prob > -math.inf
        )
        in_coverage: Counter[int] = Counter()
        order = []
        for rank, (_, slot, token, column) in enumerate(ranked):
            extended = [*prefixes[slot], token]
            missing = phrases.missing_after(extended, lacking[slot])
            coverage = phrases.coverage(extended, missing)
            order.append((in_coverage[coverage], -coverage, rank, column, missing))
            in_coverage[coverage] += 1
        order.sort(key=lambda entry: entry[:2])
        filled = sorted(order[: int(self.slots[row])], key=lambda entry: entry[2])
        return [(column, missing) for *_, column, missing in filled]

    def add(self, row: int, end: End) -> None:
        if self._missing[row][end.slot]:
            self._incomplete[end.sentence].append(end)
        else:
            super().add(row, end)

    def keep(self, staying: Sequence[int]) -> Tensor:
        self._missing = [self._missing[row] for row in staying]
        return super().keep(staying)

    def ranked(self) -> list[NBest]:
        incomplete = self.step_log.hypotheses(self._incomplete)
        return [
            complete or sorted(others, key=lambda h: -h.score)[: self.settings.nbest]
            for complete, others in zip(super().ranked(), incomplete, strict=True)
        ]
