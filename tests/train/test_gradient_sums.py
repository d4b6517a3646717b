"""Gradients that travel while the backward pass runs are the plain sums, whatever each rank
computes. The ranks are threads; `test_ranks.py` has processes.
"""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from nmtkit.data.store import Store
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.settings import TrainSettings
from nmtkit.train import gradient_sums, gradients
from nmtkit.train import loss as losses
from nmtkit.train.gradients import Gradients, Share
from nmtkit.train.ranks import Ranks
from nmtkit.train.state import TrainState
from tests.train.graph_stand_in import standing_in
from tests.train.tiny import LETTERS, make_run

SIZES = {
    "transformer": {"d_model": 8, "heads": 2, "d_ff": 12, "encoder_layers": 2, "decoder_layers": 2},
    "rnnsearch": {"d_embedding": 8, "d_hidden": 8, "d_alignment": 8},
}

FIRST = {"transformer": "encoder.0.attention.qkv.weight", "rnnsearch": "encoder.forwards.bias"}
WORDS = 4 + 2 * len(LETTERS)
PLAIN = {"device_type": "cpu", "enabled": False}


class Meeting:
    """Where the ranks meet: what each has brought to exchange 0, 1, 2, …"""

    def __init__(self, world):
        self.world, self.brought, self.changed = world, {}, threading.Condition()

    def bring(self, number, rank, value):
        with self.changed:
            self.brought.setdefault(number, {})[rank] = value
            self.changed.notify_all()

    def result(self, number):
        with self.changed:
            complete = self.changed.wait_for(
                lambda: len(self.brought[number]) == self.world, timeout=20
            )
            assert complete, f"a rank does not come to exchange {number}"
            return [self.brought[number][rank] for rank in range(self.world)]


class Thread(Ranks):
    """A rank that is a thread; `events` has its exchanges and whatever else a test notes."""

    def __init__(self, rank, meeting):
        self.rank, self.world = rank, meeting.world
        self._meeting, self._count, self.events = meeting, 0, []

    def _bring(self, kind, value):
        self.events.append(kind)
        self._count += 1
        self._meeting.bring(self._count, self.rank, (kind, value))
        return self._count

    def _result(self, number):
        kinds, values = zip(*self._meeting.result(number), strict=True)
        assert len(set(kinds)) == 1, f"the ranks meet with different things: {kinds}"
        return values

    def begin_sum(self, tensor):
        # What it holds now travels: a gradient that is added later would be missing.
        number = self._bring(f"sum of {tensor.numel()}", tensor.clone())
        return lambda: tensor.copy_(sum(self._result(number)))

    def gather(self, values):
        return [list(row) for row in self._result(self._bring("gather", list(values)))]


class Some(nn.Module):
    """A model with a layer that no batch uses, and one that only batches of two pairs use."""

    def __init__(self, variant, **more):
        super().__init__()
        torch.manual_seed(1)
        self.never = nn.Linear(3, 3)
        sizes = {**SIZES[variant], "dropout": 0.0}
        self.inner = build_model(variant, sizes | more, Vocabularies(WORDS, WORDS, True))
        self.sometimes = nn.Linear(8, 8)
        self.vocabularies, self.context_rule = self.inner.vocabularies, None
        self.reads_spans = self.reads_batch_length = self.reads_packed = False
        self.context_form = "plain"
        self.logits, self.encode = self.inner.logits, self.inner.encode

    def decode(self, tgt_in, memory):
        hidden, cache = self.inner.decode(tgt_in, memory)
        return (self.sometimes(hidden) if len(tgt_in) == 2 else hidden), cache


def first_layer(model, kind):
    """A parameter that gets its gradient late in the backward pass."""
    return dict(model.inner.named_parameters())[FIRST[MODELS[kind][0]]]


def names(model):
    return [name for name, _ in model.named_parameters()]


def in_ranks(world, work):
    """What `work(rank)` returns in each of some threads."""
    meeting = Meeting(world)
    ranks = [Thread(rank, meeting) for rank in range(world)]
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(work, ranks)), ranks


@pytest.fixture
def store(tmp_path):
    return Store(make_run(tmp_path / "run", dev=0).prep / "train")


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    monkeypatch.setattr(gradient_sums, "BUCKET", 1000)


def computer(model, store, ranks=None, **settings):
    chosen = TrainSettings(**settings)
    return Gradients(model, store, chosen, PLAIN, TrainState(), ranks or Ranks())


def plain_sums(model, store, update):
    """The oracle: each part in a model of its own, and their gradients added one by one."""
    total = {name: None for name in names(model)}
    loss = torch.zeros(2, dtype=torch.float64)
    for part in enumerate(update):
        alone = copy.deepcopy(model)
        loss += computer(alone, store).add(Share([part]), 1, 30)[0]
        for name, parameter in alone.named_parameters():
            if parameter.grad is not None:
                total[name] = parameter.grad + (0 if total[name] is None else total[name])
    return total, loss


UPDATES = {
    "7 parts": [np.arange(i, i + 3) for i in range(0, 21, 3)],
    "one of another size": [np.arange(0, 3), np.arange(3, 6), np.arange(6, 8)],
    "fewer pairs than ranks": [np.arange(0, 1)],
}
MODELS = {
    "tied": ("transformer", {}),
    "untied": ("transformer", {"tie": "none"}),
    "recurrent": ("rnnsearch", {}),
}


def build(kind):
    variant, more = MODELS[kind]
    return Some(variant, **more)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("update", UPDATES)
def test_sums_are_those_of_the_parts(store, world, kind, update):
    model, parts = build(kind), UPDATES[update]
    wanted, loss = plain_sums(model, store, parts)

    def work(ranks):
        mine = copy.deepcopy(model)
        found = computer(mine, store, ranks)
        found.compute(UPDATES["7 parts"], 1, 30)  # nothing is left of an earlier update
        mine.zero_grad(set_to_none=True)
        sums = found.compute(parts, 1, 30)
        return sums, {name: p.grad for name, p in mine.named_parameters()}

    for sums, found in in_ranks(world, work)[0]:
        torch.testing.assert_close(sums, loss, rtol=1e-6, atol=0)
        assert [n for n in found if found[n] is None] == [n for n in wanted if wanted[n] is None]
        for name, gradient in wanted.items():
            if gradient is not None:
                torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("kind", MODELS)
def test_replayed_graphs_are_summed_over_ranks(store, world, kind, monkeypatch):
    """A replay calls no hooks. Gradients stay in their places; one that no batch has is zero."""
    monkeypatch.setattr(gradients, "graphs_fit", lambda _: True)
    counts = standing_in(monkeypatch, alone=False)
    model, parts = build(kind), UPDATES["7 parts"]
    wanted, loss = plain_sums_by_kernels(model, store, parts, monkeypatch)

    def work(ranks):
        mine = copy.deepcopy(model)
        found, places = computer(mine, store, ranks), set()
        for step in (1, 2, 3):
            sums = found.compute(parts, step, 30)
            places.add(tuple(p.grad.data_ptr() for p in mine.parameters()))
            grads = {name: p.grad.clone() for name, p in mine.named_parameters()}
            mine.zero_grad(set_to_none=True)
        assert len(places) == 1
        return sums.clone(), grads

    for sums, found in in_ranks(world, work)[0]:
        torch.testing.assert_close(sums, loss, rtol=1e-6, atol=0)
        for name, gradient in wanted.items():
            right = torch.zeros_like(found[name]) if gradient is None else gradient
            torch.testing.assert_close(found[name], right, rtol=1e-5, atol=1e-7)
    assert len(counts) > 5


def plain_sums_by_kernels(model, store, update, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(gradients, "graphs_fit", lambda _: False)
        return plain_sums(model, store, update)


@pytest.mark.parametrize("kind", MODELS)
def test_sums_in_bfloat16(store, kind):
    """Each rank's gradients are rounded once, and their sum; the losses are not."""
    model, update = build(kind), UPDATES["7 parts"]
    losses_of_all = plain_sums(model, store, update)[1]
    of_rank = [plain_sums(model, store, update[rank::2])[0] for rank in range(2)]

    def work(ranks):
        mine = copy.deepcopy(model)
        gradients = computer(mine, store, ranks, sums="bfloat16")
        sums = gradients.compute(update, 1, 30)
        return sums, {name: p.grad for name, p in mine.named_parameters()}

    for sums, of_all in in_ranks(2, work)[0]:
        torch.testing.assert_close(sums, losses_of_all, rtol=1e-6, atol=0)
        for name, gradient in of_all.items():
            terms = [rank[name] for rank in of_rank if rank[name] is not None]
            if terms:
                assert gradient.dtype == torch.float32
                assert torch.equal(gradient, gradient.bfloat16().float())
                size = sum(term.abs() for term in terms)
                assert ((gradient - sum(terms)).abs() <= 2**-7 * size).all()


@pytest.mark.parametrize("moment", ["before it", "in it", "while buckets travel"])
@pytest.mark.parametrize("short", [0, 1, 2])
def test_one_rank_short_of_memory_in_its_last_part(store, monkeypatch, short, moment):
    """All ranks compute the same smaller parts, whatever has travelled before."""
    model, update = build("tied"), UPDATES["7 parts"]
    original, thread = losses.backward, threading.local()
    last = {0: 3, 1: 2, 2: 2}[short]

    def refuse(*_):
        if thread.rank == short and thread.calls == last:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def small(*arguments):
        thread.calls += 1
        if moment == "before it":
            refuse()
        loss = original(*arguments)
        if moment == "in it":
            refuse()
        return loss

    def work(ranks):
        thread.rank, thread.calls = ranks.rank, 0
        mine = copy.deepcopy(model)
        if moment == "while buckets travel":
            first_layer(mine, "tied").register_hook(refuse)
        found = computer(mine, store, ranks)
        found.compute(update, 1, 30)
        return found.parts(update), {name: p.grad for name, p in mine.named_parameters()}

    with monkeypatch.context() as patch:
        patch.setattr(losses, "backward", small)
        found, ranks = in_ranks(3, work)
    parts = found[0][0]
    assert len(parts) > len(update) and ranks[0].events.count("gather") == 2
    wanted, _ = plain_sums(model, store, parts)
    for of_rank, grads in found:
        assert list(map(list, of_rank)) == list(map(list, parts))
        for name, gradient in wanted.items():
            if gradient is not None:
                torch.testing.assert_close(grads[name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_buckets_travel_while_the_last_part_is_computed(store, kind, known, monkeypatch):
    """An update makes one exchange for each bucket, and one of the hosts. If torch does not tell
    which gradients are to come, a layer that no batch uses holds up the buckets after it.
    """
    model, update = build(kind), UPDATES["7 parts"]
    if not known:
        monkeypatch.delattr(torch._C, "_will_engine_execute_node")

    def work(ranks):
        mine = copy.deepcopy(model)
        first_layer(mine, kind).register_hook(lambda _: ranks.events.append("first layer"))
        found = computer(mine, store, ranks)
        found.compute(update, 1, 30)
        return ranks.events, len(list(gradient_sums.buckets(list(mine.parameters()))))

    for (events, buckets), parts in zip(in_ranks(2, work)[0], (4, 3), strict=True):
        exchanges = [event for event in events if event != "first layer"]
        assert len(exchanges) == buckets + 1 > 3 and exchanges[-1] == "gather"
        places = [i for i, event in enumerate(events) if event == "first layer"]
        assert places[:-1] == list(range(parts - 1))
        early = places[-1] - (parts - 1)
        assert early >= buckets // 2 if known else early == 0


def test_buckets_hold_everything_in_order(monkeypatch):
    monkeypatch.setattr(gradient_sums, "BUCKET", 100)
    tensors = [torch.zeros(n) for n in (3, 30, 1, 20, 4, 2)]
    buckets = list(gradient_sums.buckets([*tensors, torch.zeros(5, dtype=torch.float64)]))
    assert [[len(t) for t in bucket] for bucket in buckets] == [[3], [30], [1, 20, 4], [2], [5]]
