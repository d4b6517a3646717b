"""RNNSearch and CARU: their loops over time have gradients of their own and stay in float32."""

import pytest
import torch

from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model
from tests.models import contract
from tests.models.differences import gradients_match_finite_differences
from tests.models.test_transformer import check_initial_matrices

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


OF_GRU = {"input": 3, "gates": 2, "cell_context": 3}


@pytest.mark.parametrize(
    ("variant", "stacked"),
    [
        ("rnnsearch", OF_GRU),
        ("caru", dict.fromkeys(("input", "state", "source", "cell_context"), 2)),
        ("gatt", OF_GRU | {"state": 3, "source": 2}),
        ("gru-inv", OF_GRU | {"state": 2, "source": 3}),
    ],
)
def test_initial_matrices_have_xaviers_bound_each(variant, stacked):
    """`stacked`: how many matrices a product holds."""
    torch.manual_seed(0)
    sizes = {"d_embedding": 64, "d_hidden": 128}
    model = build_model(variant, sizes, Vocabularies(99, 99, shared=True))
    for name, parameter in model.named_parameters():
        kind = name.split(".")[-2]
        if parameter.dim() == 2 and "table" not in kind:
            check_initial_matrices(name, parameter.detach(), stacked.get(kind, 1))


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
