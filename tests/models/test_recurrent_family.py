"""RNNSearch and CARU: their loops over time have gradients of their own and stay in float32."""

import pytest
import torch

from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from tests.models import contract
from tests.models.differences import gradients_match_finite_differences

TINY = {"d_embedding": 2, "dropout": 0.2}
CARU = TINY | {"d_hidden": 2, "alignment_width": 2}


@pytest.mark.parametrize(
    ("variant", "values"),
    [
        ("rnnsearch", TINY | {"d_hidden": 2, "d_alignment": 3}),
        ("caru", CARU),
        ("caru", CARU | {"caembed": "embed", "history": 2}),
        ("caru", CARU | {"caembed": "replace", "caatt_first": "linear"}),
    ],
    ids=str,
)
def test_gradients_of_a_recurrent_model_match_finite_differences(variant, values):
    torch.manual_seed(3)
    model = build_model(variant, values, Vocabularies(5, 5, shared=True))
    assert gradients_match_finite_differences(model)


@pytest.mark.parametrize(
    ("variant", "wide"),
    [("rnnsearch", ["keys"]), ("caru", ["products", "states"]), ("gatt", ["products", "states"])],
)
def test_recurrent_states_stay_float32_under_bfloat16_autocast(variant, wide):
    """Rounding to 8 bits at every step would add up over a sentence."""
    model = contract.Case(variant).build(dtype=torch.float32)
    batch = contract.collate(contract.pairs())
    with torch.autocast("cpu", torch.bfloat16):
        memory = model.encode(batch)
        _, state = model.decode(batch.tgt_in, memory, {})
    assert {state["s"].dtype, *(memory[name].dtype for name in wide)} == {torch.float32}
    if variant == "rnnsearch":
        assert memory["to_cell"].dtype == torch.bfloat16
