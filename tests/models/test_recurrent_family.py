"""What RNNSearch and CARU have in common: loops over time with gradients of their own."""

import pytest
import torch

from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from tests.models import contract
from tests.models.differences import whole_gradients_are_right

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
def test_gradients_are_those_of_finite_differences(variant, values):
    torch.manual_seed(3)
    model = build_model(variant, values, Vocabularies(5, 5, shared=True))
    assert whole_gradients_are_right(model)


@pytest.mark.parametrize(
    ("variant", "wide"),
    [("rnnsearch", ["keys"]), ("caru", ["products", "states"]), ("gatt", ["products", "states"])],
)
def test_states_are_kept_in_the_parameters_precision_under_autocast(variant, wide):
    """Rounding to 8 bits at every step would add up over a sentence."""
    model = contract.Case(variant).build(dtype=torch.float32)
    batch = contract.collate(contract.pairs())
    with torch.autocast("cpu", torch.bfloat16):
        memory = model.encode(batch)
        _, state = model.decode(batch.tgt_in, memory, {})
    assert {state["s"].dtype, *(memory[name].dtype for name in wide)} == {torch.float32}
    if variant == "rnnsearch":
        assert memory["to_cell"].dtype == torch.bfloat16
