"""How good a model is on the development set: loss, and BLEU of what it really translates."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nmtkit import files
from nmtkit.data.batches import Ids, batch_list, collate
from nmtkit.data.store import Store
from nmtkit.errors import NmtkitError
from nmtkit.models.base import Model
from nmtkit.records import TextSet
from nmtkit.run import Run
from nmtkit.score import metrics
from nmtkit.settings import SearchSettings, TrainSettings
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import EOS, load_vocabularies
from nmtkit.train import loss as losses
from nmtkit.train.guard import Abandoned, Stop
from nmtkit.train.reporting import Reporter
from nmtkit.train.state import Best
from nmtkit.translate.beam import search

# Greedy, and bounded more tightly than final translation: an untrained model never ends a sentence
# by itself.
DEV_SEARCH = SearchSettings.model_validate(
    {"beam": 1, "nbest": 1, "max_length_a": 1.5, "max_length_b": 10}
)
DECODE_SENTENCES = 128


@dataclass(frozen=True)
class Validation:
    """One look at the development set. Losses are per target token; bleu is None if it was not
    asked for or could not be had.
    """

    loss: float
    smoothed: float
    bleu: float | None
    signature: str | None
    loss_seconds: float
    bleu_seconds: float
    samples: list[tuple[str, str, str]]
    """Source, reference, translation."""
    dev_set: str = ""
    """Hash of the development set and of how many of its sentences BLEU is of."""

    def comparable(self, best: Best) -> bool:
        """Whether the best so far was measured on the same sentences, and its BLEU in the same
        way.
        """
        return best.dev_set in ("", self.dev_set) and (
            best.signature is None or self.signature in (None, best.signature)
        )

    def values(self) -> dict[str, Any]:
        """For metrics.jsonl."""
        values = {
            "dev_loss": self.loss,
            "dev_smoothed": self.smoothed,
            "dev_perplexity": math.exp(min(self.loss, 700.0)),
            "dev_bleu": self.bleu,
        }
        times = {
            "loss_seconds": round(self.loss_seconds, 2),
            "bleu_seconds": round(self.bleu_seconds, 2),
        }
        return {**values, "signature": self.signature, **times}

    def describe(self) -> str:
        """One line for people."""
        bleu = (
            f", dev BLEU {self.bleu:.2f} (greedy, {self.bleu_seconds:.0f} s)"
            if self.bleu is not None
            else ""
        )
        return f"dev loss {self.loss:.4f}, perplexity {math.exp(min(self.loss, 700.0)):.4g}{bleu}"


def is_better(new: Validation, best: Best | None, by: str) -> bool:
    """Whether a validation is a new best: by BLEU where both have one (equal ones by loss), else
    by loss.
    """
    if not math.isfinite(new.loss):
        return False
    if best is None:
        return True
    if by == "dev_bleu" and new.bleu is not None and best.dev_bleu is not None:
        return (new.bleu, -new.loss) > (best.dev_bleu, -best.dev_loss)
    return new.loss < best.dev_loss


class Validator:
    """The development set of a run, ready to be used again and again.

    Args:
        run: the run.
        dev: its development set.
        settings: batch size and unit, smoothing, dev_bleu, dev_sentences, samples.
        device: of the model.
        autocast: arguments of torch.autocast.
    """

    def __init__(
        self,
        run: Run,
        dev: TextSet,
        settings: TrainSettings,
        device: torch.device,
        autocast: dict[str, Any],
    ) -> None:
        self._settings, self._device, self._autocast = settings, device, autocast
        self._store = Store(run.prep / dev.name)
        self._batches = batch_list(
            self._store.src_lengths,
            self._store.tgt_lengths,
            settings.batch_size,
            settings.batch_unit,
            0,
            0,
        )
        self._tokens = int(self._store.tgt_lengths.sum())
        self._decoding = settings.dev_bleu or settings.samples > 0
        own = {
            name: digest
            for name, digest in run.manifest().files.items()
            if name.startswith((f"{dev.name}.", f"text/{dev.name}."))
        }
        self._dev_set = hashlib.sha256(
            json.dumps([sorted(own.items()), settings.dev_sentences]).encode()
        ).hexdigest()[:16]
        if self._decoding:
            self._vocabulary = load_vocabularies(run.prep)[1]
            self._side = TextSide.load(run.prep, "tgt")
            self._language = run.manifest().tgt
            self._source = list(files.text_lines(run.source(dev.name)))
            self._references = [list(files.text_lines(path)) for path in run.references(dev.name)]

    def validate(self, model: Model, stop: Stop, reporter: Reporter) -> Validation:
        """Measure a model, which is left in training mode.

        Raises: Abandoned if the training is told to stop meanwhile.
        """
        start = time.monotonic()
        model.eval()
        try:
            nll, smoothed = self._loss(model, stop)
            between = time.monotonic()
            bleu, signature, samples = (
                self._bleu(model, stop, reporter) if self._decoding else (None, None, [])
            )
        finally:
            model.train()
        return Validation(
            nll,
            smoothed,
            bleu,
            signature,
            between - start,
            time.monotonic() - between,
            samples,
            self._dev_set,
        )

    @torch.no_grad()
    def _loss(self, model: Model, stop: Stop) -> tuple[float, float]:
        nll = smoothed = 0.0
        chunk = losses.chunk_rows(model.vocabularies.tgt, self._device.type)
        for rows in self._batches:
            if stop.requested:
                raise Abandoned
            batch = collate(self._store, rows, self._device, model.context_rule)
            assert batch.tgt_in is not None
            with torch.autocast(**self._autocast):
                hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
                loss = losses.evaluate(
                    model.logits, hidden, batch, self._settings.label_smoothing, chunk
                )
            nll += float(loss.nll)
            smoothed += float(loss.smoothed)
        return nll / self._tokens, smoothed / self._tokens

    def _bleu(
        self, model: Model, stop: Stop, reporter: Reporter
    ) -> tuple[float | None, str | None, list[tuple[str, str, str]]]:
        """BLEU (None if decoding fails, which is only a warning), its signature, and samples."""
        count = len(self._store) if self._settings.dev_bleu else 0
        if self._settings.dev_sentences:
            count = min(count, self._settings.dev_sentences)
        shown = [
            int(i)
            for i in np.linspace(0, len(self._store) - 1, self._settings.samples + 2)[1:-1].round()
        ]
        rows = sorted({*range(count), *shown})
        try:
            texts = self._translate(model, rows, stop)
            samples = [(self._source[i], self._references[0][i], texts[i]) for i in shown]
            if not count:
                return None, None, samples
            result = metrics.bleu(
                [texts[i] for i in range(count)],
                [lines[:count] for lines in self._references],
                self._language,
            )
            return float(result.value or 0.0), result.signature, samples
        except (Abandoned, KeyboardInterrupt):
            raise
        except Exception as error:
            what = (
                error.message
                if isinstance(error, NmtkitError)
                else f"{type(error).__name__}: {error}"
            )
            reporter.say(
                f"decoding the development set failed ({what}); its loss decides", warning=True
            )
            return None, None, []

    def _translate(self, model: Model, rows: list[int], stop: Stop) -> dict[int, str]:
        """Translations of sentences, of like length together; where a model reads what it said
        before, of those before in their documents too.

        A blank line stays blank and never meets the model, as in `Translator`.
        """
        rule, said = model.context_rule, dict[int, Ids]()
        rounds = [rows] if rule is None or not rule.targets else self._store.documents.rounds(rows)
        for together in rounds:
            said |= {row: np.array([EOS]) for row in together if self._store.src_lengths[row] == 1}
            order = sorted(
                (row for row in together if row not in said),
                key=lambda i: int(self._store.src_lengths[i]),
            )
            for start in range(0, len(order), DECODE_SENTENCES):
                if stop.requested:
                    raise Abandoned
                part = order[start : start + DECODE_SENTENCES]
                batch = collate(self._store, np.asarray(part), self._device, rule, said.__getitem__)
                with torch.autocast(**self._autocast):
                    found = search([model], batch, DEV_SEARCH)
                said |= {
                    row: np.array([*hypotheses[0].ids, EOS])
                    for row, hypotheses in zip(part, found, strict=True)
                }
        return {
            row: self._side.decode(self._vocabulary.decode(ids[:-1].tolist()))
            for row, ids in said.items()
        }
