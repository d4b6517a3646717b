"""Perturbed inputs, beside the equations of Takase & Kiyono 2021 token by token: which tokens are
replaced by which, and that a training resumes exactly.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from nmtkit.data.pairs import GivenPairs
from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from nmtkit.nn.dropout import seed_everything
from nmtkit.settings import TrainSettings
from nmtkit.text.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.train.gradients import Gradients
from nmtkit.train.perturb import Perturbation, keep_probability, perturbation
from nmtkit.train.ranks import Ranks
from nmtkit.train.state import TrainState
from nmtkit.train.validation import Validator
from tests.models.contract import SIZES, collate, pairs
from tests.refused import refused
from tests.train.test_resume import outcome, stop
from tests.train.tiny import NO_AUTOCAST, make_run, options, trainer

V = 23
STEP = 3


def settings(**values):
    return TrainSettings(**{"replace_keep": 0.0, "replace_decay": 2.0} | values)


def small_model(vocabularies=None, **values):
    torch.manual_seed(5)
    model = build_model("transformer", SIZES | values, vocabularies or Vocabularies(V, V, True))
    return model.double().train()


def slow_keep(step, floor, k):
    """The probability to keep a token, as the paper prints it (inverse sigmoid decay)."""
    return max(floor, k / (k + math.exp(step / k)))


def slow_replaced(ids, keep, size, draw):
    """The oracle: ids after a decision for each word, row by row; `draw(words, size)` chooses words
    for the replaced ones in order.
    """
    chances = torch.rand(ids.shape).tolist()
    rows = ids.tolist()
    places = [
        (i, j)
        for i, row in enumerate(rows)
        for j, token in enumerate(row)
        if token not in (PAD, BOS, EOS) and chances[i][j] >= keep
    ]
    for (i, j), word in zip(places, draw([rows[i][j] for i, j in places], size), strict=True):
        rows[i][j] = word
    return rows


def slow_left_out(rows, p):
    chances = torch.rand(len(rows), len(rows[0])).tolist()
    return [
        [-1 - token if token > EOS and chance < p else token for token, chance in both]
        for both in (zip(*of_row, strict=True) for of_row in zip(rows, chances, strict=True))
    ]


def uniformly(words, size):
    return torch.randint(UNK, size, (len(words),)).tolist()


def test_probability_to_keep_a_token_follows_the_formula_and_never_overflows():
    for k, floor in ((1000.0, 0.9), (2.0, 0.0), (50.0, 0.5)):
        for step in (0, 1, 7, 900, 5000):
            if step / k < 700:
                found = keep_probability(step, settings(replace_keep=floor, replace_decay=k))
                assert found == pytest.approx(slow_keep(step, floor, k), rel=1e-12)
    of_paper = TrainSettings()
    assert keep_probability(1, of_paper) == pytest.approx(0.999, abs=1e-4)
    assert keep_probability(4000, of_paper) == pytest.approx(1000 / (1000 + math.exp(4)))
    assert keep_probability(10_000_000, of_paper) == 0.9


@pytest.mark.parametrize("word_dropout", [0.0, 0.3])
def test_perturbed_inputs_equal_those_of_a_loop_over_tokens(word_dropout):
    """Other fields of the batch stay. Each side has a vocabulary."""
    chosen = settings(replace="uniform", word_dropout=word_dropout)
    model = small_model(Vocabularies(V, V + 9, False))
    batch = collate(pairs(count=8), more=2)
    seed_everything(1, STEP, 0)
    perturbed = Perturbation(model, chosen).inputs(batch, STEP)
    seed_everything(1, STEP, 0)
    keep = slow_keep(STEP, 0.0, 2.0)
    for side, size in (("src", V), ("tgt_in", V + 9)):
        ids, found = getattr(batch, side), getattr(perturbed, side)
        rows = slow_replaced(ids, keep, size, uniformly)
        rows = slow_left_out(rows, word_dropout) if word_dropout else rows
        assert found.tolist() == rows != ids.tolist()
        assert bool((found < 0).any()) == bool(word_dropout)
    others = vars(batch).keys() - {"src", "tgt_in"}
    assert all(getattr(perturbed, key) is getattr(batch, key) for key in others)
    assert batch.src.tolist() == collate(pairs(count=8), more=2).src.tolist()


def odds_of_words(table, word, kind):
    """Uniform, or softmax(E·e_x) times a constant, over words; 0 for special symbols."""
    products = [sum(a * b for a, b in zip(row, table[word], strict=True)) for row in table]
    odds = [math.exp(product) if kind == "similar" else 1.0 for product in products]
    return [0.0] * UNK + odds[UNK:]


@pytest.mark.parametrize("kind", ["uniform", "similar"])
def test_replacements_are_drawn_with_their_probabilities(kind):
    model = small_model(d_model=4, heads=1)
    table = model.src_embedder.table.weight.detach().mul_(3)
    count, word = 40_000, 7
    perturb = Perturbation(model, settings(replace=kind))
    seed_everything(1, 1, 1)
    batch = collate([([word] * 200 + [EOS], [word, EOS])] * (count // 200))
    drawn = perturb.inputs(batch, 10**6).src[:, :-1].flatten().tolist()  # nothing is kept
    odds = odds_of_words(table.tolist(), word, kind)
    for other, odd in enumerate(odds):
        expected = odd / sum(odds)
        error = 5 * math.sqrt(expected * (1 - expected) / count)
        assert abs(drawn.count(other) / count - expected) <= error
    assert kind == "uniform" or max(odds) > 3 * min(odds[UNK:])  # so "uniform" would fail


# In a training

SETTINGS = options(
    "train.max_steps=8",
    "train.update_size=150",
    "train.validate_every=4",
    "train.checkpoint_every=5",
    "train.clip_norm=1.0",
)
go = trainer(SETTINGS)
STRONG = ("train.replace_keep=0.5", "train.replace_decay=1")
BOTH = ("train.replace=similar", *STRONG, "train.word_dropout=0.2")


def test_perturbation_that_keeps_all_tokens_does_not_change_the_training(tmp_path):
    """A perturbation that replaces some of them does."""
    perturbations = {
        "off": (),
        "kept": ("train.replace=uniform", "train.replace_keep=1"),
        "replaced": ("train.replace=uniform", *STRONG),
        "similar": ("train.replace=similar", *STRONG),
        "left-out": ("train.word_dropout=0.2",),
    }
    outcomes = {}
    for name, values in perturbations.items():
        run = make_run(tmp_path / name)
        go(run, *values, "train.max_steps=2", "train.dev_bleu=false", "train.samples=0")
        outcomes[name] = outcome(run)
    assert outcomes["kept"] == outcomes["off"]
    weights = [
        repr(outcomes[name]["model.safetensors"]) for name in perturbations if name != "kept"
    ]
    assert len(set(weights)) == 4


def test_stopped_training_with_perturbation_resumes_exactly(run, tmp_path, monkeypatch):
    whole = make_run(tmp_path / "whole")
    go(whole, *BOTH)
    stop(monkeypatch, 3, go, run, *BOTH)
    go(run, *BOTH)
    assert outcome(run) == outcome(whole)


def test_validation_is_not_perturbed(run, monkeypatch):
    calls, losses = [], []
    inputs, measure = Perturbation.inputs, Validator._loss
    monkeypatch.setattr(
        Perturbation, "inputs", lambda *args: calls.append(args[2]) or inputs(*args)
    )

    def measured(self, stop):
        before = len(calls)
        losses.append([measure(self, stop) for _ in range(2)])
        assert len(calls) == before
        return losses[-1][0]

    monkeypatch.setattr(Validator, "_loss", measured)
    go(run, *BOTH)
    assert calls[0] == 0 and set(calls[1:]) == set(range(1, 9))  # after the largest batch: updates
    assert len(losses) == 2 and all(first == second for first, second in losses)


class Rank(Ranks):
    """A rank of two that talks to no other rank."""

    def __init__(self, rank):
        self.rank, self.world = rank, 2


def test_ranks_perturb_as_one_process():
    """A micro-batch is perturbed by its place in the update, whichever rank computes it."""
    store = GivenPairs(*zip(*pairs(count=12), strict=True))
    update = [np.arange(i, i + 3) for i in (0, 3, 6, 9)]

    def gradient(ranks):
        model, chosen = small_model(), settings(replace="similar", word_dropout=0.2)
        computer = Gradients(model, store, chosen, NO_AUTOCAST, TrainState(), ranks)
        computer.add(computer.share(update), STEP, 30)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    alone, first, second = map(gradient, (Ranks(), Rank(0), Rank(1)))
    torch.testing.assert_close(first + second, alone, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(first, second)


# Wrong inputs


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.replace=random", "bad value for 'train.replace'"),
        ("train.replace_keep=1.5", "bad value for 'train.replace_keep'"),
        ("train.replace_decay=0", "bad value for 'train.replace_decay'"),
        ("train.word_dropout=1", "bad value for 'train.word_dropout'"),
    ],
)
def test_error_of_a_bad_setting_names_its_key(run, assignment, message):
    refused(ConfigError, message, go, run, assignment)


class OneHot(nn.Module):
    """Reads words as rows of its table, without F.embedding."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, ids, start=0, packing=None):
        return self.table.weight[ids]


@pytest.mark.parametrize(
    ("values", "key"),
    [({"replace": "similar"}, "train.replace"), ({"word_dropout": 0.1}, "train.word_dropout")],
)
def test_model_that_reads_words_without_a_lookup_is_refused(values, key):
    model = small_model()
    model.tgt_embedder = OneHot(model.tgt_embedder.table)
    caught = refused(
        ConfigError, "does not look its words up", perturbation, model, settings(**values)
    )
    assert caught.where == key
    assert perturbation(model, settings(replace="uniform")) is not None
    assert perturbation(model, settings()) is None
