"""The contract suite: one parametrised test over the table of variants and over a model outside
the package.
"""

import importlib

import pytest
import torch

from nmtkit.models.variants import VARIANTS, count_parameters
from nmtkit.text.vocabulary import BOS
from tests.models import contract
from tests.models.cases import TOY
from tests.models.contract import V


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_01_step_by_step_equals_full_decoding(case, dtype):
    contract.step_by_step(case, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_02_neither_neighbours_nor_padding_matter(case, dtype):
    contract.neighbours(case, dtype)


def test_03_no_position_sees_the_future(case):
    contract.causality(case)


def test_04_search_agrees_with_forced_scores_and_greedy(case):
    contract.searching(case)
    contract.searching_without_state(case)


def test_05_rows_may_be_permuted_and_selected(case):
    contract.rows_permuted(case)
    contract.memory_is_per_sentence(case)


def test_06_every_parameter_gets_a_gradient(case):
    contract.gradients(case)


def test_07_eight_pairs_are_learnt_by_heart(case):
    contract.overfits(case)


def test_08_saved_weights_give_the_same_bits(case, tmp_path):
    contract.saved(case, tmp_path)


def test_10_rows_without_a_source_stay_finite(case):
    contract.blind_rows(case)


def test_13_dropout_repeats_with_its_seed(case):
    contract.dropout_repeats(case)


def test_14_contexts_may_come_in_parts(case, monkeypatch):
    monkeypatch.setattr("nmtkit.data.context.SAVED", 4)
    contract.parts_of_contexts(case)


def oracle(case):
    """The test file of the case's variant, which must hold the formula, the slow implementation
    and the switched-off idea.
    """
    if case.variant == TOY:
        return importlib.import_module("tests.models.test_toy")
    if case.variant not in VARIANTS:
        pytest.skip("a model outside the package states its size and equations in its own tests")
    module = VARIANTS[case.variant].target.partition(":")[0].rpartition(".")[2]
    return importlib.import_module(f"tests.models.test_{module}")


def test_09_parameters_are_as_many_as_the_formula_says(case):
    model = case.build()
    assert count_parameters(model) == oracle(case).count(model.settings, V)


def test_11_with_its_idea_off_a_variant_is_its_baseline(case):
    """A variant's test file names the baseline that it is without its idea and checks it; only a
    baseline has none.
    """
    facts = oracle(case)
    assert facts.BASELINE in {None, *VARIANTS}
    if facts.BASELINE is None:
        assert not hasattr(facts, "without_idea")
    else:
        facts.without_idea(case)


def test_12_equations_equal_the_slow_implementation(case):
    model, facts = case.build(), oracle(case)
    weights = {name: p.tolist() for name, p in model.named_parameters(remove_duplicate=False)}
    for src, tgt in contract.pairs(count=3):
        contexts = (
            () if model.context_rule is None else (contract.contexts_of(src, model.context_rule),)
        )
        slow = torch.tensor(
            facts.slow_logits(weights, model.settings, src, [BOS, *tgt[:-1]], *contexts),
            dtype=torch.float64,
        )
        for training in (True, False):  # the paths may differ
            with torch.set_grad_enabled(training):
                fast = contract.full(model, contract.batch_for(model, [(src, tgt)]))[0]
            torch.testing.assert_close(fast.detach(), slow, rtol=1e-10, atol=1e-10)
