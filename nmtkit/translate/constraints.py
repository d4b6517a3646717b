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

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import EOS, PAD
from nmtkit.translate.beam import Beams
from nmtkit.translate.hypotheses import End, NBest
from nmtkit.translate.prefix import Demand
from nmtkit.translate.steps import top_sorted

Missing = dict[tuple[int, ...], int]
"""How often each phrase still has to occur; a phrase that has occurred often enough is left out."""


class Phrases:
    """The phrases of a sentence.

    Args:
        phrases: token ids, each phrase as often as it must occur.
        unfinished: ids of subwords that do not end a word.
    """

    def __init__(self, phrases: Sequence[tuple[int, ...]], unfinished: frozenset[int]) -> None:
        self._wanted = Counter(phrases)
        self._unfinished = unfinished

    def _ends_with(self, ids: Sequence[int], tokens: tuple[int, ...]) -> bool:
        start = len(ids) - len(tokens)
        if start < 0 or tuple(ids[start:]) != tokens:
            return False
        return not start or ids[start - 1] not in self._unfinished

    def missing_after(self, ids: Sequence[int], missing: Missing) -> Missing:
        """Return what tokens lack whose last one was added to tokens that lacked `missing`."""
        left = {phrase: count - self._ends_with(ids, phrase) for phrase, count in missing.items()}
        return {phrase: count for phrase, count in left.items() if count}

    def coverage(self, ids: Sequence[int], missing: Missing) -> int:
        """Return the coverage of tokens that lack these phrases."""
        wanted, left = (
            sum(len(phrase) * count for phrase, count in counts.items())
            for counts in (self._wanted, missing)
        )
        begun = (
            length
            for phrase in missing
            for length in range(1, len(phrase))
            if self._ends_with(ids, phrase[:length])
        )
        return wanted - left + max(begun, default=0)

    def continuing(self, ids: Sequence[int], missing: Missing) -> list[int]:
        """Return the tokens that begin, continue or complete a missing phrase."""
        return sorted(
            {
                phrase[length]
                for phrase in missing
                for length in range(len(phrase))
                if self._ends_with(ids, phrase[:length])
            }
        )


class ConstrainedBeams(Beams):
    """The live hypotheses of M sentences with phrases that must occur.

    Args:
        batch: the sources.
        settings: of the search.
        demands: of each sentence, with its phrases.
    """

    def __init__(self, batch: Batch, settings: SearchSettings, demands: Sequence[Demand]) -> None:
        super().__init__(batch, settings, demands)
        self._phrases = [Phrases(demand.phrases, demand.unfinished) for demand in demands]
        self._missing: list[list[Missing]] = [[dict(Counter(d.phrases))] for d in demands]  # (M, K)
        self._incomplete: list[list[End]] = [[] for _ in demands]
        self.look_every = 1  # phrases are sought in the tokens so far
        self._prepared = -1  # the step that `_prepare` has seen

    def pick(self, logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Pick the tokens that continue phrases, and the best others."""
        self._prepare()
        logits, special = self.allowed(logits, rows), self._continuing[rows]
        values = logits.gather(1, special)
        logits.scatter_(1, special, -math.inf)
        logits[:, EOS].masked_fill_(self._lacking[rows], -math.inf)
        best, ids = top_sorted(logits, self.settings.beam)
        return torch.cat([best, values], 1), torch.cat([ids, special], 1)

    def _prepare(self) -> None:
        """Find, once a step, what continues the phrases of each row: ids (R, S), filled up with
        <pad>, which is impossible; and which rows lack a phrase (R).
        """
        if self._prepared == self.step:
            return
        self._prepared, width = self.step, self.live.shape[1]
        of, slots = zip(*itertools.product(self.sentences, range(width)), strict=True)
        tokens = self.step_log.tokens_of(of, slots, [self.step] * len(of))
        self._prefixes = [tokens[i : i + width] for i in range(0, len(tokens), width)]  # (M, K)
        special, lacking = [], []
        for sentence, of_slots, prefixes in zip(
            self.sentences, self._missing, self._prefixes, strict=True
        ):
            phrases = self._phrases[sentence]
            for missing, ids in zip(of_slots, prefixes, strict=True):
                special.append(phrases.continuing(ids, missing))
                lacking.append(bool(missing))
        most = max(map(len, special))
        padded = [[*tokens, *[PAD] * (most - len(tokens))] for tokens in special]
        self._continuing = torch.tensor(padded, dtype=torch.long, device=self.device)
        self._lacking = torch.tensor(lacking, device=self.device)

    def choose(self, tokens: Tensor) -> Tensor:
        """Fill the free slots in rounds; those of sentences that lack no phrase as beam search."""
        candidates, prefixes = self.live, self._prefixes
        best = super().choose(tokens)
        lacking, self._missing = self._missing, [[{}] * best.shape[1] for _ in self._missing]
        for row in [row for row, of_slots in enumerate(lacking) if any(of_slots)]:
            filled = self._rounds(row, candidates[row], tokens[row], prefixes[row], lacking[row])
            self.live[row], best[row] = -math.inf, 0
            for slot, (column, missing) in enumerate(filled):
                self.live[row, slot], best[row, slot] = candidates[row, column], column
                self._missing[row][slot] = missing
        return best

    def _rounds(
        self,
        row: int,
        live: Tensor,
        tokens: Tensor,
        prefixes: list[list[int]],
        lacking: list[Missing],
    ) -> list[tuple[int, Missing]]:
        """Return the candidates that fill the free slots of a sentence, best first: the column of
        each, and what it lacks.

        Args:
            row: of the sentence among the M.
            live, tokens: (C) of the candidates.
            prefixes, lacking: of each hypothesis that they continue.
        """
        phrases, ids = self._phrases[self.sentences[row]], tokens.tolist()
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
