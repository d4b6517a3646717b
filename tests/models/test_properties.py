"""Properties of a model that are tried before a training of a class of the user's own."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies
from nmtkit.models.properties import (
    NOT_ALONE,
    NOT_CAUSAL,
    NOT_ROWS_FIRST,
    NOT_STEPWISE,
    READS_TARGETS,
    lacking,
)
from nmtkit.models.variants import VARIANTS
from tests.models.cases import TOY
from tests.models.contract import Case, batch_for, packed_for, pairs
from tests.refused import refused
from tests.toy_recurrent import ToyRecurrent


def lacked(model):
    alone = [batch_for(model, [pair]) for pair in pairs()]
    packed = packed_for(model) if model.reads_packed else None
    return lacking(model.eval(), batch_for(model), alone, packed)


def test_no_variant_lacks_a_property(case):
    assert lacked(case.build()) == []


@pytest.mark.parametrize("variant", [*VARIANTS, TOY])
def test_no_variant_lacks_a_property_in_32_bits(variant):
    assert lacked(Case(variant).build(dtype=torch.float32)) == []


def reads_the_future(self, tgt_in, memory, state=None):
    hidden, after = decode(self, tgt_in, memory, state)
    return hidden + hidden.mean(1, keepdim=True), after


def reads_the_next_word(self, tgt_in, memory, state=None):
    """As a mask that is shifted by one."""
    hidden, after = decode(self, tgt_in, memory, state)
    following = nn.functional.pad(hidden, (0, 0, 0, 1))[:, 1:]
    return hidden + following, after


def forgets(self, tgt_in, memory, state=None):
    hidden, after = decode(self, tgt_in, memory, {} if state else state)
    return hidden, after


def mixes_rows(self, tgt_in, memory, state=None):
    """As `repeat` in the place of `repeat_interleave`."""
    summaries = memory["summary"].repeat(len(tgt_in) // len(memory["summary"]), 1)
    return decode(self, tgt_in, {"summary": summaries}, state)


def reads_padding(self, batch):
    summary = self.src_embedding(batch.src).mean(1)
    return {"summary": summary + 0 * encode(self, batch)["summary"].mean()}


def reads_its_neighbours(self, batch):
    return {
        "summary": nn.functional.layer_norm(encode(self, batch)["summary"].T, batch.src.shape[:1]).T
    }


def reads_the_target(self, batch):
    memory = encode(self, batch)
    if batch.tgt_out is not None:
        memory["summary"] = memory["summary"] + self.tgt_embedding(batch.tgt_out[:, 0])
    return memory


def has_width_first(self, batch):
    return {"summary": encode(self, batch)["summary"].T}


def reads_width_first(self, tgt_in, memory, state=None):
    return decode(self, tgt_in, {"summary": memory["summary"].T}, state)


def keeps_layers_first(self, tgt_in, memory, state=None):
    """As the states of torch's own GRU."""
    before = {"hidden": state["hidden"][0]} if state else state
    hidden, after = decode(self, tgt_in, memory, before)
    return hidden, None if after is None else {"hidden": after["hidden"][None]}


def keeps_the_past_itself(self, tgt_in, memory, state=None):
    hidden, after = decode(self, tgt_in, memory, self.past if state else state)
    self.past = after
    return hidden, None if after is None else {"steps": 1}


def keeps_the_past_in_an_object(self, tgt_in, memory, state=None):
    before = state["past"].content if state else state
    hidden, after = decode(self, tgt_in, memory, before)
    return hidden, None if after is None else {"past": SimpleNamespace(content=after)}


encode, decode, logits = ToyRecurrent.encode, ToyRecurrent.decode, ToyRecurrent.logits


@pytest.mark.parametrize(
    ("method", "faulty", "lacks"),
    [
        ("decode", reads_the_future, [NOT_CAUSAL, NOT_ALONE, NOT_STEPWISE]),
        ("decode", reads_the_next_word, [NOT_CAUSAL, NOT_ALONE, NOT_STEPWISE]),
        ("decode", forgets, [NOT_STEPWISE]),
        ("decode", mixes_rows, [NOT_STEPWISE]),
        ("decode", keeps_layers_first, [NOT_ROWS_FIRST]),
        ("decode", keeps_the_past_itself, [NOT_STEPWISE]),
        ("decode", keeps_the_past_in_an_object, [NOT_STEPWISE]),
        ("encode", reads_padding, [NOT_ALONE]),
        ("encode", reads_its_neighbours, [NOT_ALONE]),
        ("encode", reads_the_target, [READS_TARGETS]),
    ],
)
def test_what_a_model_lacks_is_said(method, faulty, lacks, monkeypatch):
    monkeypatch.setattr(ToyRecurrent, method, faulty)
    assert lacked(Case(TOY).build()) == lacks


def test_a_memory_with_its_sentences_elsewhere_is_named(monkeypatch):
    monkeypatch.setattr(ToyRecurrent, "encode", has_width_first)
    monkeypatch.setattr(ToyRecurrent, "decode", reads_width_first)
    assert lacked(Case(TOY).build()) == [NOT_ROWS_FIRST]


@pytest.mark.parametrize(
    "returned",
    [
        lambda hidden, state: hidden,
        lambda hidden, state: (hidden.transpose(0, 1), state),
        lambda hidden, state: (hidden[..., :-1], state),
    ],
)
def test_a_decode_that_returns_something_else_is_refused(returned, monkeypatch):
    monkeypatch.setattr(ToyRecurrent, "decode", lambda *given: returned(*decode(*given)))
    caught = refused(ConfigError, r"decode must return \(hidden", lacked, Case(TOY).build())
    assert "test_properties.py, line " in caught.where


def test_logits_of_another_size_than_the_target_vocabulary_are_refused(monkeypatch):
    model = Case(TOY).build()
    model.vocabularies = Vocabularies(model.vocabularies.src, model.vocabularies.tgt + 1, False)
    caught = refused(ConfigError, r"logits must return .*not", lacked, model)
    assert "toy_recurrent.py, line " in caught.where


@pytest.mark.parametrize("detached", [False, True])
def test_parameters_without_a_gradient_are_named(monkeypatch, detached):
    model = Case(TOY).build()
    model.spare = nn.Linear(3, 3)
    if detached:
        monkeypatch.setattr(
            type(model), "logits", lambda self, hidden: logits(self, hidden.detach())
        )
    (sentence,) = lacked(model)
    spare = "no gradient reaches spare.weight, spare.bias"
    assert (sentence == spare) == (not detached)
    assert (sentence.startswith("no gradient reaches src_emb") and " more" in sentence) == detached


def test_a_norm_that_a_pass_in_training_mode_changes_lacks_nothing(monkeypatch):
    model = Case(TOY).build()
    model.norm = nn.BatchNorm1d(model.width).to(model.output.weight)
    monkeypatch.setattr(
        ToyRecurrent,
        "encode",
        lambda self, batch: {"summary": self.norm(encode(self, batch)["summary"])},
    )
    assert lacked(model) == []


def test_numbers_that_are_not_finite_are_left_to_the_training():
    """They may stand at padded positions alone."""
    model = Case(TOY).build()
    model.src_embedding.weight.data[:] = torch.nan
    assert lacked(model) == []


def test_a_model_without_steps_lacks_them(monkeypatch):
    def whole(self, tgt_in, memory, state=None):
        if state is not None:
            raise NotImplementedError
        return decode(self, tgt_in, memory)

    monkeypatch.setattr(ToyRecurrent, "decode", whole)
    assert lacked(Case(TOY).build()) == [NOT_STEPWISE]
