"""Gradients that travel between ranks while the backward pass runs are the plain sums, whatever
each rank computes. The ranks are threads; `test_ranks.py` has processes.
"""

import copy
import threading
from collections import defaultdict
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
from tests.train.graph_stand_in import replace_graphs
from tests.train.tiny import LETTERS, NO_AUTOCAST, make_run

WORDS = 4 + 2 * len(LETTERS)
TRANSFORMER = {"d_model": 8, "heads": 2, "d_ff": 12, "encoder_layers": 2, "decoder_layers": 2}
RECURRENT = {"d_embedding": 8, "d_hidden": 8, "d_alignment": 8}
FIRST = "encoder.0.attention.qkv.weight"
# Variant, settings, and a parameter of the first layer, which gets its gradient late.
MODELS = {
    "tied": ("transformer", TRANSFORMER, FIRST),
    "untied": ("transformer", TRANSFORMER | {"tie": "none"}, FIRST),
    "recurrent": ("rnnsearch", RECURRENT, "encoder.forwards.bias"),
}
EVERY_MODEL = pytest.mark.parametrize("kind", MODELS)
SEVEN_PARTS = [np.arange(i, i + 3) for i in range(0, 21, 3)]


class Meeting:
    """Values that the ranks exchange, by the number of the exchange."""

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
    """A rank that is a thread; `events` has its exchanges and whatever else a test adds."""

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


class PartlyUsed(nn.Module):
    """A model with a layer that no batch uses, and a layer that only batches of two pairs use."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(1)
        self.never = nn.Linear(3, 3)
        variant, sizes, first = MODELS[kind]
        self.inner = build_model(
            variant, sizes | {"dropout": 0.0}, Vocabularies(WORDS, WORDS, True)
        )
        self.sometimes = nn.Linear(8, 8)
        self.first = dict(self.inner.named_parameters())[first]
        self.vocabularies, self.context_rule = self.inner.vocabularies, None
        self.reads_spans = self.reads_batch_length = self.reads_packed = False
        self.context_form = "plain"
        self.logits, self.encode = self.inner.logits, self.inner.encode

    def decode(self, tgt_in, memory):
        hidden, cache = self.inner.decode(tgt_in, memory)
        return (self.sometimes(hidden) if len(tgt_in) == 2 else hidden), cache


@pytest.fixture
def store(tmp_path):
    return Store(make_run(tmp_path / "run", dev=0).prep / "train")


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    monkeypatch.setattr(gradient_sums, "BUCKET", 1000)


def gradients_of(model, store, ranks=None, **settings):
    chosen = TrainSettings(**settings)
    return Gradients(model, store, chosen, NO_AUTOCAST, TrainState(), ranks or Ranks())


def plain_sums(model, store, update):
    """The oracle: each part in a model of its own, and their gradients added one by one."""
    total = {name: None for name, _ in model.named_parameters()}
    loss = torch.zeros(2, dtype=torch.float64)
    for part in enumerate(update):
        alone = copy.deepcopy(model)
        loss += gradients_of(alone, store).add(Share([part]), 1, 30)[0]
        for name, parameter in alone.named_parameters():
            if parameter.grad is not None:
                total[name] = parameter.grad + (0 if total[name] is None else total[name])
    return total, loss


def nothing(*_):
    pass


def in_ranks(world, model, store, *updates, before=nothing, after=nothing, **settings):
    """Compute updates of a model in ranks that are threads.

    Args:
        before: called in each thread with its rank and model, before the first update.
        after: called in each thread with its model, after each update.
        settings: of the training.
    Returns: of each rank the sums of the losses and the gradients of the last update, and the
        `Gradients`.
    """
    meeting = Meeting(world)

    def work(rank):
        ranks, mine = Thread(rank, meeting), copy.deepcopy(model)
        before(ranks, mine)
        computer = gradients_of(mine, store, ranks, **settings)
        for update in updates:
            mine.zero_grad(set_to_none=True)
            sums = computer.compute(update, 1, 30)
            after(mine)
        return sums, {name: p.grad for name, p in mine.named_parameters()}, computer

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(work, range(world)))


def check_gradients(found, expected):
    for name, gradient in expected.items():
        if gradient is not None:
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)


UPDATES = {
    "7 parts": SEVEN_PARTS,
    "one of another size": [np.arange(0, 3), np.arange(3, 6), np.arange(6, 8)],
    "fewer pairs than ranks": [np.arange(0, 1)],
}


@pytest.mark.parametrize("world", [1, 2, 3])
@EVERY_MODEL
@pytest.mark.parametrize("update", UPDATES)
def test_sums_over_ranks_equal_those_of_single_parts(store, world, kind, update):
    """An earlier update of the same ranks leaves nothing behind."""
    model = PartlyUsed(kind)
    expected, loss = plain_sums(model, store, UPDATES[update])
    unused = [name for name in expected if expected[name] is None]
    for sums, found, _ in in_ranks(world, model, store, SEVEN_PARTS, UPDATES[update]):
        torch.testing.assert_close(sums, loss, rtol=1e-6, atol=0)
        assert [name for name in found if found[name] is None] == unused
        check_gradients(found, expected)


@pytest.mark.parametrize("world", [1, 2])
@EVERY_MODEL
def test_gradients_of_replayed_graphs_are_summed_over_ranks(store, world, kind, monkeypatch):
    """A replay calls no hooks. Gradients keep their memory; one that no batch has is zero."""
    model, places = PartlyUsed(kind), defaultdict(set)
    expected, loss = plain_sums(model, store, SEVEN_PARTS)
    expected |= {n: torch.zeros_like(p) for n, p in model.named_parameters() if expected[n] is None}
    monkeypatch.setattr(gradients, "graphs_fit", lambda _: True)
    replays = replace_graphs(monkeypatch, alone=False)

    def note_places(model):
        places[model].add(tuple(p.grad.data_ptr() for p in model.parameters()))

    for sums, found, _ in in_ranks(world, model, store, *[SEVEN_PARTS] * 3, after=note_places):
        torch.testing.assert_close(sums, loss, rtol=1e-6, atol=0)
        check_gradients(found, expected)
    assert [len(of_model) for of_model in places.values()] == [1] * world
    assert len(replays) > 5


@EVERY_MODEL
def test_sums_in_bfloat16_round_gradients_but_not_losses(store, kind):
    """Each rank's gradients are rounded once, and their sum."""
    model = PartlyUsed(kind)
    _, loss = plain_sums(model, store, SEVEN_PARTS)
    of_ranks = [plain_sums(model, store, SEVEN_PARTS[rank::2])[0] for rank in range(2)]
    for sums, found, _ in in_ranks(2, model, store, SEVEN_PARTS, sums="bfloat16"):
        torch.testing.assert_close(sums, loss, rtol=1e-6, atol=0)
        for name, gradient in found.items():
            terms = [of_rank[name] for of_rank in of_ranks if of_rank[name] is not None]
            if terms:
                assert gradient.dtype == torch.float32
                assert torch.equal(gradient, gradient.bfloat16().float())
                size = sum(term.abs() for term in terms)
                assert ((gradient - sum(terms)).abs() <= 2**-7 * size).all()


@pytest.mark.parametrize("moment", ["before it", "in it", "while buckets travel"])
@pytest.mark.parametrize("short", [0, 1, 2])
def test_all_ranks_cut_parts_if_one_rank_lacks_memory_in_its_last_part(
    store, monkeypatch, short, moment
):
    """All ranks compute the same smaller parts, whatever has travelled before."""
    model, thread, backward = PartlyUsed("tied"), threading.local(), losses.backward
    last = {0: 3, 1: 2, 2: 2}[short]

    def fail_in_last_part(*_):
        if thread.rank == short and thread.calls == last:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def failing_backward(*arguments):
        thread.calls += 1
        if moment == "before it":
            fail_in_last_part()
        loss = backward(*arguments)
        if moment == "in it":
            fail_in_last_part()
        return loss

    def before(ranks, model):
        thread.rank, thread.calls = ranks.rank, 0
        if moment == "while buckets travel":
            model.first.register_hook(fail_in_last_part)

    with monkeypatch.context() as patch:
        patch.setattr(losses, "backward", failing_backward)
        computed = in_ranks(3, model, store, SEVEN_PARTS, before=before)
    parts, *of_others = (
        [part.tolist() for part in computer.parts(SEVEN_PARTS)] for *_, computer in computed
    )
    assert len(parts) > len(SEVEN_PARTS) and of_others == [parts] * 2
    expected, _ = plain_sums(model, store, [np.array(part) for part in parts])
    for _, found, computer in computed:
        assert computer.ranks.events.count("gather") == 2
        check_gradients(found, expected)


@pytest.mark.parametrize("known", [True, False])
@EVERY_MODEL
def test_buckets_travel_while_the_last_part_is_computed(store, kind, known, monkeypatch):
    """An update makes one exchange for each bucket, and one of the hosts. If torch does not tell
    which gradients are to come, a layer that no batch uses holds up the buckets after it.
    """
    model = PartlyUsed(kind)
    buckets = len(list(gradient_sums.buckets(list(model.parameters()))))
    if not known:
        monkeypatch.delattr(torch._C, "_will_engine_execute_node")

    def before(ranks, model):
        model.first.register_hook(lambda _: ranks.events.append("first layer"))

    computed = in_ranks(2, model, store, SEVEN_PARTS, before=before)
    for (*_, computer), parts in zip(computed, (4, 3), strict=True):
        events = computer.ranks.events
        exchanges = [event for event in events if event != "first layer"]
        assert len(exchanges) == buckets + 1 > 3 and exchanges[-1] == "gather"
        places = [i for i, event in enumerate(events) if event == "first layer"]
        assert places[:-1] == list(range(parts - 1))
        early = places[-1] - (parts - 1)
        assert early >= buckets // 2 if known else early == 0


def test_buckets_hold_every_tensor_in_order(monkeypatch):
    monkeypatch.setattr(gradient_sums, "BUCKET", 100)
    tensors = [torch.zeros(n) for n in (3, 30, 1, 20, 4, 2)]
    buckets = list(gradient_sums.buckets([*tensors, torch.zeros(5, dtype=torch.float64)]))
    assert [[len(t) for t in bucket] for bucket in buckets] == [[3], [30], [1, 20, 4], [2], [5]]
