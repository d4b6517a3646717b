"""Perturbed inputs: training with random words replaced (`train.replace`) or left out
(`train.word_dropout`).

Source tokens and decoder inputs are perturbed, never the targets. `<pad>`, `<s>` and `</s>`, which
mark where a sentence begins and ends, are never replaced, left out or drawn. The context of a
document model is not perturbed. Validation and translation perturb nothing.

Legend: B sentences, T positions, N replaced tokens, V vocabulary, E width of the embeddings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import torch
from torch import Tensor

from nmtkit.data.batches import Batch
from nmtkit.errors import ConfigError
from nmtkit.models.base import Model
from nmtkit.models.lookups import WordsWithoutVector, word_tables
from nmtkit.settings import TrainSettings
from nmtkit.text.vocabulary import UNK

FIRST = UNK
"""The first id of a word; lower ids are <pad>, <s> and </s>."""


def keep_probability(step: int, settings: TrainSettings) -> float:
    """Return the probability that update i keeps a token, max(q_min, k / (k + exp(i/k))).

    The curve is the inverse sigmoid of scheduled sampling (Bengio et al. 2015).
    """
    falling = settings.replace_decay * math.exp(-step / settings.replace_decay)
    return max(settings.replace_keep, falling / (falling + 1))


class Perturbation:
    """Perturbs the inputs of micro-batches with torch's random numbers.

    Args:
        model: on its device.
        settings: replace, replace_keep, replace_decay, word_dropout.
    Raises: ConfigError if the settings need tables of embeddings and the model has none.
    Source: Takase & Kiyono 2021, *Rethinking perturbations in encoder-decoders for fast training*,
        NAACL: Rep(Uni), Rep(Sim), WDrop.
    """

    def __init__(self, model: Model, settings: TrainSettings) -> None:
        self.settings = settings
        tables: tuple[Tensor | None, Tensor | None] = (None, None)
        if settings.replace == "similar" or settings.word_dropout:
            tables = word_tables(model)
            if any(table is None for table in tables):
                key = "word_dropout" if settings.word_dropout else "replace"
                raise ConfigError(
                    f"{type(model).__name__} does not look its words up with F.embedding",
                    where=f"train.{key}",
                    hint="only train.replace=uniform works with this model",
                )
        # The vocabulary size and the table of each side.
        self._src = model.vocabularies.src, tables[0]
        self._tgt = model.vocabularies.tgt, tables[1]

    def inputs(self, batch: Batch, step: int) -> Batch:
        """Return a batch with perturbed `src` and `tgt_in`; a left-out word i has the id ~i = -1-i.

        Args:
            batch: with targets.
            step: the update, from 1.
        """
        assert batch.tgt_in is not None
        return dataclasses.replace(
            batch,
            src=self._perturb(batch.src, *self._src, step),
            tgt_in=self._perturb(batch.tgt_in, *self._tgt, step),
        )

    def reading(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which a model can read these inputs."""
        return WordsWithoutVector() if self.settings.word_dropout else contextlib.nullcontext()

    @torch.no_grad()
    def _perturb(self, ids: Tensor, size: int, table: Tensor | None, step: int) -> Tensor:
        """Return perturbed ids (B, T) of a vocabulary with `size` tokens."""
        words = ids >= FIRST
        if self.settings.replace != "none":
            keep = keep_probability(step, self.settings)
            ids = ids.clone()
            places = words & (torch.rand(ids.shape, device=ids.device) >= keep)
            ids[places] = self._draw(ids[places], size, table)
        if p := self.settings.word_dropout:
            dropped = words & (torch.rand(ids.shape, device=ids.device) < p)
            ids = torch.where(dropped, ~ids, ids)
        return ids

    def _draw(self, replaced: Tensor, size: int, table: Tensor | None) -> Tensor:
        """Return a new word for each replaced word (N)."""
        if self.settings.replace == "uniform" or not len(replaced):
            return torch.randint(FIRST, size, replaced.shape, device=replaced.device)
        assert table is not None
        scores = table[replaced] @ table[FIRST:].mT  # (N, V-FIRST)
        return FIRST + torch.multinomial(scores.softmax(-1), 1).squeeze(1)


def perturbation(model: Model, settings: TrainSettings) -> Perturbation | None:
    """Return the perturbation that the settings ask for; None if they ask for none."""
    wanted = settings.replace != "none" or settings.word_dropout
    return Perturbation(model, settings) if wanted else None
