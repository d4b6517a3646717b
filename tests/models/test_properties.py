"""Properties of a model that training tries before it trains a class of the user's own."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies
from nmtkit.models.properties import (
    NOT_ALONE,
    NOT_CAUSAL,
    NOT_CAUSAL_IN_TRAINING,
    NOT_ROWS_FIRST,
    NOT_STEPWISE,
    READS_TARGETS,
    lacking,
)
from nmtkit.models.transformer import Transformer
from nmtkit.models.variants import VARIANTS
from tests.models import test_contract as suite
from tests.models.cases import TOY
from tests.models.contract import Case, batch_for, packed_for, pairs
from tests.refused import refused
from tests.toy_recurrent import ToyRecurrent


def lacking_properties(model):
    alone = [batch_for(model, [pair]) for pair in pairs()]
    packed = packed_for(model) if model.reads_packed else None
    return lacking(model.eval(), batch_for(model), alone, packed)


def test_every_variant_has_all_properties(case):
    assert lacking_properties(case.build()) == []


@pytest.mark.parametrize("variant", [*VARIANTS, TOY])
def test_every_variant_has_all_properties_in_float32(variant):
    assert lacking_properties(Case(variant).build(dtype=torch.float32)) == []


def reads_the_future(self, tgt_in, memory, state=None):
    hidden, after = decode(self, tgt_in, memory, state)
    return hidden + hidden.mean(1, keepdim=True), after


def reads_the_next_word(self, tgt_in, memory, state=None):
    """A mask that is shifted by one."""
    hidden, after = decode(self, tgt_in, memory, state)
    following = nn.functional.pad(hidden, (0, 0, 0, 1))[:, 1:]
    return hidden + following, after


def reads_the_future_in_training(self, tgt_in, memory, state=None):
    """As batch normalisation does."""
    hidden, after = decode(self, tgt_in, memory, state)
    return hidden - hidden.mean(1, keepdim=True) * self.training, after


def forgets(self, tgt_in, memory, state=None):
    hidden, after = decode(self, tgt_in, memory, {} if state else state)
    return hidden, after


def mixes_rows(self, tgt_in, memory, state=None):
    """`repeat` in place of `repeat_interleave`."""
    summaries = memory["summary"].repeat(len(tgt_in) // len(memory["summary"]), 1)
    return decode(self, tgt_in, {"summary": summaries}, state)


def reads_padding(self, batch):
    summary = self.src_embedding(batch.src).mean(1)
    return {"summary": summary + 0 * encode(self, batch)["summary"].mean()}


def reads_its_neighbours(self, batch):
    return {
        "summary": nn.functional.layer_norm(encode(self, batch)["summary"].T, batch.src.shape[:1]).T
    }


def reads_its_neighbours_in_training(self, batch):
    summary = encode(self, batch)["summary"]
    return {"summary": summary - summary.mean(0) * self.training}


def reads_the_target(self, batch):
    memory = encode(self, batch)
    if batch.tgt_out is not None:
        memory["summary"] = memory["summary"] + self.tgt_embedding(batch.tgt_out[:, 0])
    return memory


def counts_passes_in_training(self, tgt_in, memory, state=None):
    """As spectral norm does."""
    self.passes = getattr(self, "passes", 0) + self.training
    hidden, after = decode(self, tgt_in, memory, state)
    return hidden * (1 + self.passes), after


def keeps_layers_first(self, tgt_in, memory, state=None):
    """States as of torch's GRU."""
    before = {"hidden": state["hidden"][0]} if state else state
    hidden, after = decode(self, tgt_in, memory, before)
    return hidden, None if after is None else {"hidden": after["hidden"][None]}


def keeps_the_past_in_the_model(self, tgt_in, memory, state=None):
    hidden, after = decode(self, tgt_in, memory, self.past if state else state)
    self.past = after
    return hidden, None if after is None else {"steps": 1}


def keeps_the_past_in_an_object(self, tgt_in, memory, state=None):
    before = state["past"].content if state else state
    hidden, after = decode(self, tgt_in, memory, before)
    return hidden, None if after is None else {"past": SimpleNamespace(content=after)}


def no_future(model):
    suite.check_no_future(model, [], whole_past=False)


def follows_rows(model):
    suite.check_state_follows_rows(model, seed=0)


encode, decode, logits = ToyRecurrent.encode, ToyRecurrent.decode, ToyRecurrent.logits


@pytest.mark.parametrize(
    ("method", "faulty", "lacks"),
    [
        ("decode", reads_the_future, [NOT_CAUSAL, NOT_ALONE, NOT_STEPWISE]),
        ("decode", reads_the_next_word, [NOT_CAUSAL, NOT_ALONE, NOT_STEPWISE]),
        ("decode", reads_the_future_in_training, [NOT_CAUSAL_IN_TRAINING]),
        ("decode", counts_passes_in_training, []),
        ("decode", forgets, [NOT_STEPWISE]),
        ("decode", mixes_rows, [NOT_STEPWISE]),
        ("decode", keeps_layers_first, [NOT_ROWS_FIRST]),
        ("decode", keeps_the_past_in_the_model, [NOT_STEPWISE]),
        ("decode", keeps_the_past_in_an_object, [NOT_STEPWISE]),
        ("encode", reads_padding, [NOT_ALONE]),
        ("encode", reads_its_neighbours, [NOT_ALONE]),
        ("encode", reads_the_target, [READS_TARGETS]),
    ],
)
def test_faulty_model_lacks_its_properties(method, faulty, lacks, monkeypatch):
    monkeypatch.setattr(ToyRecurrent, method, faulty)
    assert lacking_properties(Case(TOY).build()) == lacks


@pytest.mark.parametrize(
    ("method", "faulty", "check", "reason"),
    [
        ("decode", forgets, suite.check_steps_equal_whole, "a step with positions 1 to 1"),
        ("encode", reads_padding, suite.check_sentences_are_independent, "its neighbours"),
        ("decode", reads_the_next_word, no_future, "after position 0 change"),
        ("decode", reads_the_future_in_training, no_future, "after position 0 change"),
        ("encode", reads_the_target, suite.check_encoder_is_blind, "reads the target"),
        ("decode", mixes_rows, follows_rows, "after a selection of rows"),
        ("decode", keeps_layers_first, follows_rows, r"has 10 rows, .* \(1, 10, 16\)"),
        ("decode", keeps_the_past_in_an_object, follows_rows, "SimpleNamespace in the state"),
        ("encode", reads_its_neighbours_in_training, suite.check_gradients_are_sums, "in training"),
    ],
)
def test_contract_says_why_a_model_is_wrong(method, faulty, check, reason, monkeypatch):
    monkeypatch.setattr(ToyRecurrent, method, faulty)
    with pytest.raises(AssertionError, match=reason):
        check(Case(TOY).build().train())


def test_contract_wants_the_whole_past_of_nmtkits_models_only(vectors, monkeypatch):
    """A convolution sees a part of the past."""

    def sees_one_word(self, tgt_in, memory):
        words = self.tgt_embedding(tgt_in)  # (B, T, D)
        inputs = torch.cat([words, memory["summary"][:, None].expand_as(words)], dim=-1)
        return self.writer(inputs.flatten(0, 1)[:, None])[0].view_as(words), None

    monkeypatch.setattr(ToyRecurrent, "decode", sees_one_word)
    model = Case(TOY).build()
    suite.check_no_future(model, vectors, whole_past=False)
    with pytest.raises(AssertionError, match="position 1 does not see all words from 0 to 1"):
        suite.check_no_future(model, vectors, whole_past=True)


def test_contract_says_that_a_packed_form_mixes_sentences(monkeypatch):
    def shifted(self, x, visible):
        return through_encoder(self, x + x.roll(1, 1) * (visible is not None), visible)

    through_encoder = Transformer.through_encoder
    monkeypatch.setattr(Transformer, "through_encoder", shifted)
    with pytest.raises(AssertionError, match="a packed sentence does not depend on the others"):
        suite.check_packed_equals_padded(Case("transformer").build())


def test_memory_without_rows_first_is_named(monkeypatch):
    def encode_transposed(self, batch):
        return {"summary": encode(self, batch)["summary"].T}

    def decode_transposed(self, tgt_in, memory, state=None):
        return decode(self, tgt_in, {"summary": memory["summary"].T}, state)

    monkeypatch.setattr(ToyRecurrent, "encode", encode_transposed)
    monkeypatch.setattr(ToyRecurrent, "decode", decode_transposed)
    assert lacking_properties(Case(TOY).build()) == [NOT_ROWS_FIRST]


@pytest.mark.parametrize(
    "returned",
    [
        lambda hidden, state: hidden,
        lambda hidden, state: (hidden.transpose(0, 1), state),
        lambda hidden, state: (hidden[..., :-1], state),
    ],
)
def test_decode_with_another_result_is_refused(returned, monkeypatch):
    monkeypatch.setattr(ToyRecurrent, "decode", lambda *given: returned(*decode(*given)))
    caught = refused(
        ConfigError, r"decode must return \(hidden", lacking_properties, Case(TOY).build()
    )
    assert "test_properties.py, line " in caught.where


def test_logits_of_another_size_than_the_vocabulary_are_refused(monkeypatch):
    model = Case(TOY).build()
    model.vocabularies = Vocabularies(model.vocabularies.src, model.vocabularies.tgt + 1, False)
    caught = refused(ConfigError, r"logits must return .*not", lacking_properties, model)
    assert "toy_recurrent.py, line " in caught.where


def test_parameters_without_a_gradient_are_named():
    model = Case(TOY).build()
    model.spare = nn.Linear(3, 3)
    assert lacking_properties(model) == ["no gradient reaches spare.weight, spare.bias"]


def test_list_of_parameters_without_a_gradient_is_shortened(monkeypatch):
    detached = lambda self, hidden: logits(self, hidden.detach())  # noqa: E731
    monkeypatch.setattr(ToyRecurrent, "logits", detached)
    (sentence,) = lacking_properties(Case(TOY).build())
    assert sentence.startswith("no gradient reaches src_emb") and " more" in sentence


def test_batch_norm_lacks_no_property(monkeypatch):
    model = Case(TOY).build()
    model.norm = nn.BatchNorm1d(model.width).to(model.output.weight)
    monkeypatch.setattr(
        ToyRecurrent,
        "encode",
        lambda self, batch: {"summary": self.norm(encode(self, batch)["summary"])},
    )
    assert lacking_properties(model) == []


def test_nan_weights_lack_no_property():
    """Training reports them; they may come from padded positions only."""
    model = Case(TOY).build()
    model.src_embedding.weight.data[:] = torch.nan
    assert lacking_properties(model) == []


def test_model_that_refuses_a_state_lacks_steps(monkeypatch):
    def whole(self, tgt_in, memory, state=None):
        if state is not None:
            raise NotImplementedError
        return decode(self, tgt_in, memory)

    monkeypatch.setattr(ToyRecurrent, "decode", whole)
    assert lacking_properties(Case(TOY).build()) == [NOT_STEPWISE]
