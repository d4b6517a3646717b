"""Training and decoding speed of several systems, taken in turn in one process, so that the machine's moods hit all alike.

Decoding is beam search in which no sentence may end before a common length: otherwise a system that writes more would seem slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmtkit import console
from nmtkit.data.batches import Batch, batch_list, collate, source_batch
from nmtkit.data.context import contexts
from nmtkit.data.documents import ContextRule
from nmtkit.data.store import Store
from nmtkit.data.vocabulary import EOS
from nmtkit.models.base import Memory, Model, State
from nmtkit.models.loading import load_system
from nmtkit.nn import hardware
from nmtkit.nn.dropout import seed_dropout
from nmtkit.run import Run, System
from nmtkit.score.tables import Estimate
from nmtkit.settings import SearchSettings, TrainSettings, build
from nmtkit.train import loss
from nmtkit.train.gradients import autocast_arguments
from nmtkit.train.plan import common_width
from nmtkit.translate.beam import search

UPDATES, SENTENCES = 3, 48
LEAST, MOST, SECONDS = 7, 25, 120.0
"""Rounds: as many as fit into so many seconds, within these bounds."""
SEED = 1


@dataclass(frozen=True)
class Timing:
    """Speed of one system, and its time relative to the baseline of the same rounds (median, middle 95 % of the rounds)."""

    train_tokens_per_s: float
    updates_per_s: float
    decode_tokens_per_s: float
    train_ratio: Estimate
    decode_ratio: Estimate
    rounds: int
    device: str
    """What it was measured on, precision included."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        ratios = {name: vars(value) for name, value in (("train_ratio", self.train_ratio), ("decode_ratio", self.decode_ratio))}
        return {**vars(self), **ratios}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Timing:
        """Read back what `as_json` gave."""
        return cls(**{**value, **{name: Estimate(**value[name]) for name in ("train_ratio", "decode_ratio")}})


class Endless(Model):
    """A model whose sentences never end, for searches of equal length."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.settings, model.vocabularies)
        self.model = model

    @property
    def width(self) -> int:
        """The model's."""
        return self.model.width

    def encode(self, batch: Batch) -> Memory:
        """As the model does."""
        return self.model.encode(batch)

    def decode(self, tgt_in: Tensor, memory: Memory, state: State | None = None) -> tuple[Tensor, State | None]:
        """As the model does."""
        return self.model.decode(tgt_in, memory, state)

    def logits(self, hidden: Tensor) -> Tensor:
        """The model's scores, with none for </s>."""
        scores = self.model.logits(hidden)
        scores[..., EOS] = float("-inf")
        return scores


def measure_speed(run: Run, systems: Sequence[System], set_name: str, steps: int, rounds: int = 0) -> dict[str, Timing]:
    """Time updates (forward, loss, backward) and beam search of every system, system after system in every round.

    Args:
        run: the run; systems: with checkpoints; the first is the baseline of the ratios.
        set_name: whose sentences are decoded, with the baseline's beam; updates take batches of the training set.
        steps: target tokens of every decoded sentence.
        rounds: measured rounds, 0 = by the time that the one before them takes, which warms everything up.
    Returns: by system.
    Raises: CheckpointError, DataError if a system cannot be loaded.
    """
    baseline = systems[0].read_config()
    train, searched = build(TrainSettings, baseline.get("train", {}), "train"), build(SearchSettings, baseline.get("search", {}), "search")
    on_cpu = hardware.pick_device("auto").type == "cpu"
    decoding = hardware.choose(precision=searched.precision if on_cpu else "float32").precision  # as the baseline is translated with
    chosen = hardware.choose("auto", train.precision, common_width(baseline), train.matmul)  # as it was trained
    where = f"{chosen.describe()}{f', decoding in {decoding}' if decoding != chosen.precision else ''}"
    console.say(f"measuring on: {where}")
    device, autocast = torch.device(chosen.device), autocast_arguments(chosen)
    models = {s.name: load_system(run, s, device, precision=decoding) for s in systems}
    searched = searched.model_copy(update={"max_length_a": 0.0, "max_length_b": steps, "nbest": 1})
    store = Store(run.prep / run.sets("train")[0].name)
    sources = {name: _sources(run, set_name, device, model.context_rule) for name, model in models.items()}
    rows = batch_list(store.src_lengths, store.tgt_lengths, train.batch_size, train.batch_unit, SEED, 0)
    tokens: list[int] = []
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in models}

    def one_round(number: int, advance: Callable[[float], None]) -> None:
        drawn = [rows[(number * UPDATES + i) % len(rows)] for i in range(UPDATES)]  # new ones in every round, as training has them
        tokens.append(sum(int(store.tgt_lengths[own].sum()) for own in drawn))
        for name in list(models) if number % 2 else list(models)[::-1]:
            batches = [collate(store, own, device, models[name].context_rule) for own in drawn]
            update = _seconds(partial(_updates, models[name], batches, train, autocast), device)
            spent[name].append((update, _seconds(partial(_decode, models[name], sources[name], searched), device)))
            advance(1)

    with console.progress("warming up", len(models)) as advance:
        one_round(0, advance)
    rounds = rounds or round(min(MOST, max(LEAST, SECONDS / sum(map(sum, (own[0] for own in spent.values()))))))
    with console.progress("measuring", rounds * len(models)) as advance:
        for number in range(1, rounds + 1):
            one_round(number, advance)
    base = np.array(spent[systems[0].name][1:])
    decoded = len(sources[systems[0].name].src) * steps
    return {name: _timing(np.array(pairs[1:]), base, np.array(tokens[1:]), decoded, where) for name, pairs in spent.items()}


def _timing(pairs: Any, base: Any, tokens: Any, decoded: int, device: str) -> Timing:
    """From the seconds (rounds, 2) of updates and decoding, the baseline's, the target tokens (rounds) of the updates, those decoded a round."""
    ratios = [_ratio(pairs[:, i] / base[:, i]) for i in (0, 1)]
    train, decode = float(np.median(tokens / pairs[:, 0])), float(np.median(decoded / pairs[:, 1]))
    return Timing(train, UPDATES / float(np.median(pairs[:, 0])), decode, ratios[0], ratios[1], len(pairs), device)


def _ratio(values: Any) -> Estimate:
    low, middle, high = np.quantile(values, [0.025, 0.5, 0.975])
    return Estimate(float(middle), float(low), float(high))


def _sources(run: Run, set_name: str, device: torch.device, rule: ContextRule | None) -> Batch:
    """Some sentences of a set, with the context that a model reads with them."""
    store = Store(run.prep / set_name)
    drawn = np.random.default_rng(SEED).permutation(len(store))[:SENTENCES]
    chosen = sorted(map(int, drawn), key=lambda i: int(store.src_lengths[i]))
    context = None if rule is None else contexts([store.documents.context(i, rule) for i in chosen], store.src, rule, device, store.tgt)
    return source_batch([store.src(i) for i in chosen], device, context=context)


def _updates(model: Model, batches: Sequence[Batch], settings: TrainSettings, autocast: dict[str, Any]) -> None:
    """Forward and backward as training does them, without the optimiser's step."""

    def logits(hidden: Tensor) -> Tensor:
        with torch.autocast(**autocast):
            return model.logits(hidden)

    model.train()
    for number, batch in enumerate(batches):
        assert batch.tgt_in is not None
        seed_dropout(SEED, number, 0)
        with torch.autocast(**autocast):
            hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
        loss.backward(logits, hidden, batch, settings.label_smoothing, 1.0, loss.chunk_rows(model.vocabularies.tgt, hidden.device.type))
        model.zero_grad(set_to_none=True)


def _decode(model: Model, sources: Batch, settings: SearchSettings) -> None:
    model.eval()
    search([Endless(model).eval()], sources, settings)


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
