"""How good a model is on the development set: its loss, and BLEU of its translations.

Of W ranks, each computes every W-th batch of both. A single process has the same batches, and
their results are added and scored in the same order. So the numbers have the same bits for any
number of ranks.
"""

from __future__ import annotations

import json
import operator
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
from nmtkit.errors import NmtkitError, counted, first_line, summary
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
Bleu = tuple[float | None, str | None, Samples]
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
            "dev_set": self.dev_set,
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
    """Return the summed loss of some pairs of a store."""
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


@dataclass
class Validator:
    """Measures a model on the development set of a run.

    Args:
        run: the run.
        dev: the development set.
        settings: batch size and unit, dev_bleu, dev_sentences, samples.
        model: on its device.
        autocast: arguments of torch.autocast.
        ranks: the processes that share the work.
        with_memory: calls a function, and once more if memory does not suffice.
    """

    run: Run
    dev: TextSet
    settings: TrainSettings
    model: Model
    autocast: dict[str, Any]
    ranks: Ranks
    with_memory: Callable[..., Any] = operator.call

    def __post_init__(self) -> None:
        run, name, settings = self.run, self.dev.name, self.settings
        self._store = store = Store(run.prep / name)
        self._search_settings = dev_search(store)
        lengths = store.src_lengths, store.tgt_lengths
        self._batches = batch_list(*lengths, settings.batch_size, settings.batch_unit, 0, 0)
        self._manifest = manifest = run.manifest()
        self._most = max(LONGEST_READ, manifest.settings.max_subwords + 1)
        sentences, limit = settings.dev_sentences, self._search_settings.max_length_a
        self._dev_set = _dev_set_hash(manifest.files, name, sentences, limit)
        self._decodes = settings.dev_bleu or settings.samples > 0
        if self._decodes:
            self._vocabulary = load_vocabularies(run.prep)[1]
            self._side = TextSide.load(run.prep, "tgt")
            self._source = list(files.text_lines(run.source(name)))
            self._references = [list(files.text_lines(path)) for path in run.references(name)]

    @cached_property
    def _readable(self) -> Ids:
        """The numbers of the sentences that are not too long, in order."""
        every = np.arange(len(self._store))
        rows = short_rows(self._store, self.model.context_rule, every, self._most)
        if left_out := len(every) - len(rows):
            console.warn(
                f"validation leaves out {counted(left_out, 'sentence')} longer than"
                f" {self._most:,} subwords, with the context that the model reads"
            )
        return rows

    def validate(self, stop: Stop) -> Validation:
        """Measure the model on all ranks, and leave it in training mode.

        Returns: the same on every rank, but for the seconds.
        Raises: Abandoned on all ranks if a signal stops one of them.
        """
        start = time.monotonic()
        bleu: Bleu = None, None, []
        self.model.eval()
        try:
            loss = self._loss(stop)
            loss_end = time.monotonic()
            if self._decodes:
                bleu = self._bleu(stop)
        except Undecodable as error:
            console.warn(f"decoding the development set failed ({error}): no BLEU")
        finally:
            self.model.train()
        value, signature, samples = bleu
        seconds = loss_end - start, time.monotonic() - loss_end
        return Validation(loss, value, signature, *seconds, samples, self._dev_set)

    def _loss(self, stop: Stop) -> float:
        """Return the loss per target token."""
        rows = self._readable
        batches = [batch[np.isin(batch, rows)] for batch in self._batches]
        work = partial(self.with_memory, batch_loss, self.model, self._store, self.autocast)
        nll = 0.0
        for of_batch in self._shared([batch for batch in batches if len(batch)], work, stop):
            nll += of_batch  # not by `sum`, whose last bits depend on Python's version
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
            expected: errors of `work` that become Undecodable on all ranks.
        Raises: Abandoned on all ranks if a signal stops one; Undecodable on all ranks after an
            expected error on one.
        """
        results = []
        ending: Exception | None = None
        try:
            for item in self.ranks.share(items):
                stop.check()
                results.append(work(item))
        except Abandoned as error:
            ending = error
        except expected as error:
            describe = first_line if isinstance(error, NmtkitError) else summary
            ending = Undecodable(describe(error))
        # All ranks must know of the error of one rank before they wait for each other again.
        of_ranks = self.ranks.gather_values((ending, results))
        if endings := [ending for ending, _ in of_ranks if ending]:
            raise min(endings, key=lambda ending: isinstance(ending, Undecodable))
        world = self.ranks.world
        return [of_ranks[i % world][1][i // world] for i in range(len(items))]

    def _bleu(self, stop: Stop) -> Bleu:
        """Return BLEU, its signature and samples.

        Raises: Undecodable.
        """
        size, readable = len(self._store), self._readable
        last = (self.settings.dev_sentences or size) if self.settings.dev_bleu else 0
        scored = readable[readable < last].tolist()
        # Samples are spread evenly over the set.
        spread = np.linspace(0, size - 1, min(self.settings.samples, size) + 2)[1:-1].round()
        shown = spread[np.isin(spread, readable)].astype(int).tolist()
        ids = self._translate(sorted({*scored, *shown}), stop)
        score = partial(self._score, ids, shown=shown)
        return self._shared([scored], score, stop, Exception)[0]  # on rank 0

    def _score(self, ids: Decoded, rows: list[int], shown: list[int]) -> Bleu:
        """Return BLEU of the translations of some rows, its signature, and the shown samples."""
        texts = self._texts(ids)
        samples = [(self._source[i], self._references[0][i], texts[i]) for i in shown]
        if not rows:
            return None, None, samples
        bleu = metrics.bleu(
            [texts[i] for i in rows],
            [[lines[i] for i in rows] for lines in self._references],
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
        line stays blank and is not searched, as in `Translator`. A sentence that is left out has an
        empty translation.

        Raises: Undecodable.
        """
        rule, store = self.model.context_rule, self._store
        rounds = store.documents.rounds(rows) if rule is not None and rule.targets else [rows]
        blank = np.flatnonzero(store.src_lengths == 1)  # </s> only
        searched = {*self._readable.tolist()}.difference(blank.tolist())
        ids: Decoded = {}
        decode = partial(self.with_memory, self._search, ids)
        for sentences in rounds:
            ids |= {row: np.array([EOS]) for row in sentences if row not in searched}
            wanted = [row for row in sentences if row in searched]
            wanted.sort(key=store.src_lengths.__getitem__)
            starts = range(0, len(wanted), DECODE_SENTENCES)
            batches = [np.asarray(wanted[start : start + DECODE_SENTENCES]) for start in starts]
            translations = self._shared(batches, decode, stop, Exception)
            for batch, of_batch in zip(batches, translations, strict=True):
                ids |= zip(batch.tolist(), of_batch, strict=True)
        return ids

    def _search(self, ids: Decoded, rows: Ids) -> list[Ids]:
        """Return the translation of each row of a batch; `ids`: of earlier sentences."""
        device, rule = device_of(self.model), self.model.context_rule
        batch = collate(self._store, rows, device, rule, ids.__getitem__)
        with torch.autocast(**self.autocast):
            nbest = search([self.model], without_targets(batch), self._search_settings)
        return [np.array([*hypotheses[0].ids, EOS]) for hypotheses in nbest]
