"""How good a model is on the development set: its loss, and BLEU of its translations.

Each rank computes every W-th batch of both. The batches are those of a single process, and rank 0
adds and scores in their order, so the result has the same bits for any number of ranks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch

from nmtkit import console, files
from nmtkit.data.batch_lists import batch_list
from nmtkit.data.batches import LONGEST_READ, collate, short_rows, without_targets
from nmtkit.data.padding import Ids
from nmtkit.data.pairs import Pairs
from nmtkit.data.store import Store
from nmtkit.errors import NmtkitError, counted, first_line
from nmtkit.models.base import Model, device_of, target_states
from nmtkit.records import TextSet
from nmtkit.run import Run
from nmtkit.score import metrics
from nmtkit.settings import SearchSettings, TrainSettings
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import EOS, load_vocabularies
from nmtkit.train import loss as losses
from nmtkit.train.loggers import Samples
from nmtkit.train.ranks import Ranks
from nmtkit.train.reporting import perplexity
from nmtkit.train.state import Best
from nmtkit.train.stop import Abandoned, Stop
from nmtkit.translate.beam import search

# Greedy, with a lower length limit than final translations: an untrained model never ends a
# sentence. `dev_search` raises the limit for a target language with many tokens.
DEV_SEARCH = SearchSettings.model_validate(
    {"beam": 1, "nbest": 1, "max_length_a": 1.5, "max_length_b": 10}
)
LONGER = 1.2
"""A translation may have more target tokens for a source token than the dev set, by this factor."""
DECODE_SENTENCES = 128
Item = TypeVar("Item")
T = TypeVar("T")
Measured = tuple[float | None, str | None, Samples]
"""BLEU, its signature, and samples."""
Decoded = dict[int, Ids]
"""The translation of each sentence by its number."""


class Undecodable(Exception):
    """A rank cannot decode or score the development set; raised on all ranks."""


@dataclass(frozen=True)
class Validation:
    """One measurement on the development set.

    Attributes:
        loss: per target token.
        bleu: None if the settings exclude BLEU or decoding failed.
        dev_set: hash of the development set and of the number of sentences that BLEU uses.
    """

    loss: float
    bleu: float | None
    signature: str | None
    loss_seconds: float
    bleu_seconds: float
    samples: Samples
    dev_set: str = ""

    def comparable(self, best: Best) -> bool:
        """True if the best so far has the same sentences and the same signature of BLEU."""
        same_kind = best.signature is None or self.signature in (None, best.signature)
        return same_kind and best.dev_set in ("", self.dev_set)

    def values(self) -> files.JsonObject:
        """Return the values for metrics.jsonl."""
        return {
            "dev_loss": self.loss,
            "dev_perplexity": perplexity(self.loss),
            "dev_bleu": self.bleu,
            "signature": self.signature,
            "loss_seconds": round(self.loss_seconds, 2),
            "bleu_seconds": round(self.bleu_seconds, 2),
        }

    def describe(self) -> tuple[str, str]:
        """Return one line for the log, and one for a terminal of 80 columns."""
        loss = f"dev loss {self.loss:.4f}"
        line = f"{loss}, perplexity {perplexity(self.loss):.4g}"
        if self.bleu is None:
            return line, line
        bleu = f"dev BLEU {self.bleu:.2f}"
        return f"{line}, {bleu} (greedy, {self.bleu_seconds:.0f} s)", f"{loss}, {bleu}"


@torch.no_grad()
def batch_loss(model: Model, store: Pairs, autocast: dict[str, Any], rows: Ids) -> float:
    """Return the sum of the loss of some pairs of a store."""
    device = device_of(model)
    chunk = losses.chunk_rows(model.vocabularies.tgt, device.type)
    batch = collate(store, rows, device, model.context_rule)
    with torch.autocast(**autocast):
        hidden = target_states(model, batch)
        return float(losses.evaluate(model.logits, hidden, batch, chunk))


def dev_search(store: Store) -> SearchSettings:
    """Return how a development set is translated.

    Its targets may be much longer than its sources, if one side alone is cut into characters.
    """
    ratio = float(store.tgt_lengths.sum() / store.src_lengths.sum())
    a = max(DEV_SEARCH.max_length_a, LONGER * ratio)
    return DEV_SEARCH.model_copy(update={"max_length_a": a})


def _dev_set_hash(hashes: dict[str, str], name: str, sentences: int, limit: float) -> str:
    """Return a hash of the files of a set, of the number of sentences that BLEU uses, and of a
    length limit above the usual one.
    """
    of_set = [item for item in hashes.items() if item[0].startswith((f"{name}/", f"text/{name}."))]
    longer = [limit] if limit > DEV_SEARCH.max_length_a else []
    return files.text_sha256(json.dumps([sorted(of_set), sentences, *longer]))[:16]


class Validator:
    """Measures a model on the development set of a run.

    Args:
        run: the run.
        dev: the development set.
        settings: batch size and unit, smoothing, dev_bleu, dev_sentences, samples.
        model: on its device.
        autocast: arguments of torch.autocast.
        ranks: the processes that share the work.
    Attributes:
        with_memory: calls a function, and once more if memory does not suffice.
    """

    def __init__(
        self,
        run: Run,
        dev: TextSet,
        settings: TrainSettings,
        model: Model,
        autocast: dict[str, Any],
        ranks: Ranks,
    ) -> None:
        self.with_memory: Callable[..., Any] = lambda work, *arguments: work(*arguments)
        self._ranks = ranks
        self._settings, self._model, self._autocast = settings, model, autocast
        self._store = store = Store(run.prep / dev.name)
        self._search_settings = dev_search(store)
        lengths = store.src_lengths, store.tgt_lengths
        self._batches = batch_list(*lengths, settings.batch_size, settings.batch_unit, 0, 0)
        self._manifest = manifest = run.manifest()
        self._most = max(LONGEST_READ, manifest.settings.max_subwords + 1)
        sentences, limit = settings.dev_sentences, self._search_settings.max_length_a
        self._dev_set = _dev_set_hash(manifest.files, dev.name, sentences, limit)
        self._decodes = settings.dev_bleu or settings.samples > 0
        if self._decodes:
            self._vocabulary = load_vocabularies(run.prep)[1]
            self._side = TextSide.load(run.prep, "tgt")
            self._source = list(files.text_lines(run.source(dev.name)))
            self._references = [list(files.text_lines(path)) for path in run.references(dev.name)]

    @cached_property
    def _readable(self) -> Ids:
        """The sentences that are not too long to be read."""
        every = np.arange(len(self._store))
        rows = short_rows(self._store, self._model.context_rule, every, self._most)
        if left_out := len(every) - len(rows):
            console.warn(
                f"validation leaves out {counted(left_out, 'sentence')} longer than"
                f" {self._most:,} subwords, with the context that the model reads"
            )
        return rows

    def validate(self, stop: Stop) -> Validation:
        """Measure the model on all ranks, and leave it in training mode.

        Returns: the same on every rank, but for the seconds.
        Raises: Abandoned on all ranks if a signal meanwhile stops one.
        """
        start = time.monotonic()
        measured: Measured = None, None, []
        self._model.eval()
        try:
            loss = self._loss(stop)
            loss_end = time.monotonic()
            if self._decodes:
                measured = self._bleu(stop)
        except Undecodable as error:
            console.warn(f"decoding the development set failed ({error}): no BLEU")
        finally:
            self._model.train()
        bleu, signature, samples = measured
        seconds = loss_end - start, time.monotonic() - loss_end
        return Validation(loss, bleu, signature, *seconds, samples, self._dev_set)

    def _loss(self, stop: Stop) -> float:
        """Return the loss per target token."""
        rows = self._readable
        batches = [batch[np.isin(batch, rows)] for batch in self._batches]
        batches = [batch for batch in batches if len(batch)]
        fixed = self._model, self._store, self._autocast
        nll = 0.0
        for of_batch in self._shared(batches, partial(self.with_memory, batch_loss, *fixed), stop):
            nll += of_batch
        return nll / max(1, int(self._store.tgt_lengths[rows].sum()))

    def _shared(
        self,
        items: Sequence[Item],
        work: Callable[[Item], T],
        stop: Stop,
        expected: type[Exception] | tuple[()] = (),
    ) -> list[T]:
        """Return what `work` returns for each item; the ranks share the items.

        Args:
            expected: the errors of `work` that end this on all ranks.
        Raises: Abandoned on all ranks if a signal stops one; Undecodable on all ranks after an
            expected error of one.
        """
        results = []
        ending: Exception | None = None
        try:
            for item in self._ranks.share(items):
                stop.check()
                results.append(work(item))
        except Abandoned as error:
            ending = error
        except expected as error:
            name = "" if isinstance(error, NmtkitError) else f"{type(error).__name__}: "
            ending = Undecodable(f"{name}{first_line(error)}")
        # All ranks must know what one rank met before they wait for each other again.
        of_ranks = self._ranks.gather_values((ending, results))
        if endings := [ending for ending, _ in of_ranks if ending]:
            raise min(endings, key=lambda ending: isinstance(ending, Undecodable))
        world = self._ranks.world
        return [of_ranks[i % world][1][i // world] for i in range(len(items))]

    def _bleu(self, stop: Stop) -> Measured:
        """Return BLEU, its signature and samples.

        Raises: Undecodable.
        """
        size, limit = len(self._store), self._settings.dev_sentences
        count = size if self._settings.dev_bleu else 0
        if limit:
            count = min(count, limit)
        # Samples are spread evenly over the set.
        spread = np.linspace(0, size - 1, min(self._settings.samples, size) + 2)[1:-1]
        readable_rows = set(self._readable.tolist())
        shown = [row for row in spread.round().astype(int).tolist() if row in readable_rows]
        scored_rows = [row for row in range(count) if row in readable_rows]
        ids = self._translate(sorted({*scored_rows, *shown}), stop)
        score = partial(self._score, ids, shown=shown)
        return self._shared([scored_rows], score, stop, Exception)[0]  # on rank 0

    def _score(self, ids: Decoded, rows: list[int], shown: list[int]) -> Measured:
        """Return BLEU of the translations of some rows, its signature, and the shown samples."""
        texts = self._texts(ids)
        samples = [(self._source[i], self._references[0][i], texts[i]) for i in shown]
        if not rows:
            return None, None, samples
        references = [[lines[i] for i in rows] for lines in self._references]
        bleu = metrics.bleu(
            [texts[i] for i in rows],
            references,
            self._manifest.tgt,
            tokenized=self._manifest.settings.tgt_tokenizer == "none",
        )
        return float(bleu.value or 0.0), bleu.signature, samples

    def _texts(self, ids: Decoded) -> dict[int, str]:
        return {
            row: self._side.decode(self._vocabulary.decode(sentence[:-1].tolist()))
            for row, sentence in ids.items()
        }

    def _translate(self, rows: list[int], stop: Stop) -> Decoded:
        """Return translations of sentences, </s> included.

        If the model reads earlier translations, the earlier sentences are translated too. A blank
        line stays blank and is not searched, as in `Translator`.

        Raises: Undecodable.
        """
        rule, store = self._model.context_rule, self._store
        ids: Decoded = {}
        rounds = store.documents.rounds(rows) if rule is not None and rule.targets else [rows]
        # A blank line has </s> only. A sentence that is left out has an empty translation.
        searched = set(self._readable.tolist()) - set(np.flatnonzero(store.src_lengths == 1))
        for sentences in rounds:
            ids |= {row: np.array([EOS]) for row in sentences if row not in searched}
            self._search_round([row for row in sentences if row not in ids], ids, stop)
        return ids

    def _search_round(self, rows: list[int], ids: Decoded, stop: Stop) -> None:
        """Add translations to those in `ids`, in batches of similar length."""
        rows = sorted(rows, key=lambda row: int(self._store.src_lengths[row]))
        starts = range(0, len(rows), DECODE_SENTENCES)
        batches = [np.asarray(rows[start : start + DECODE_SENTENCES]) for start in starts]
        search = partial(self.with_memory, self._search, ids)
        decoded = self._shared(batches, search, stop, Exception)
        for batch, translations in zip(batches, decoded, strict=True):
            ids |= dict(zip(batch.tolist(), translations, strict=True))

    def _search(self, ids: Decoded, rows: Ids) -> list[Ids]:
        """Return the translation of each row of a batch; `ids`: of earlier sentences."""
        device, rule = device_of(self._model), self._model.context_rule
        batch = collate(self._store, rows, device, rule, ids.__getitem__)
        with torch.autocast(**self._autocast):
            nbest = search([self._model], without_targets(batch), self._search_settings)
        return [np.array([*hypotheses[0].ids, EOS]) for hypotheses in nbest]
