"""Learning rates against the golden values of the papers' formulas; Adam against torch's."""

import math

import pytest
import torch
from torch import nn

from nmtkit.settings import TrainSettings
from nmtkit.train.optimizer import finite, make_optimizer, optimizer_tensors, set_rate, step_if
from nmtkit.train.schedule import Plateau, learning_rate
from tests.train.tiny import equal_tensors


def settings(**values):
    return TrainSettings.model_validate(values)


def test_noam_rises_until_warmup_and_falls_with_the_root_of_the_step():
    s = settings(schedule="noam", lr=1.0, warmup=8000)
    rates = {step: learning_rate(s, 512, step) for step in (1, 4000, 8000, 8001, 32000)}
    assert rates[8000] == pytest.approx(4.941e-4, rel=1e-4)
    assert rates[4000] == pytest.approx(rates[8000] / 2)
    assert rates[32000] == pytest.approx(rates[8000] / 2)
    assert rates[1] == pytest.approx(512**-0.5 * 8000**-1.5)
    assert max(rates.values()) == rates[8000]


def test_noam_without_warmup_only_falls():
    s = settings(schedule="noam", lr=2.0, warmup=0)
    assert learning_rate(s, 256, 4) == pytest.approx(2 / 16 / 2)


@pytest.mark.parametrize(
    ("step", "rate"), [(4000, 4.941e-4), (8000, 9.882e-4), (84000, 4.941e-4), (160000, 0.0)]
)
def test_cosine_has_the_golden_values(step, rate):
    peak = 2 * 512**-0.5 * 8000**-0.5
    s = settings(schedule="cosine", lr=peak, warmup=8000, max_steps=160_000)
    assert learning_rate(s, 512, step) == pytest.approx(rate, rel=1e-4, abs=1e-12)
    assert learning_rate(s, 512, 170_000) == 0.0


def test_cosine_of_a_training_that_ends_with_its_warmup_only_rises():
    s = settings(schedule="cosine", lr=0.3, warmup=10, max_steps=10)
    assert [learning_rate(s, 64, step) for step in (5, 10)] == pytest.approx([0.15, 0.3])


def test_constant_rate_warms_up_and_stays():
    s = settings(schedule="constant", lr=0.3, warmup=10)
    assert [learning_rate(s, 64, step) for step in (1, 5, 10, 1000)] == pytest.approx(
        [0.03, 0.15, 0.3, 0.3]
    )
    assert learning_rate(settings(schedule="constant", lr=0.3, warmup=0), 64, 1) == 0.3


def test_plateau_halves_the_rate_when_the_loss_stalls():
    s = settings(schedule="plateau", lr=1e-3, warmup=0, decay_factor=0.5, decay_patience=1)
    plateau = Plateau()
    losses = (math.nan, 5.0, 4.0, 4.0, 4.1, 3.9, 3.9, 3.95, 4.0, 4.0)
    lowered = [plateau.observe(loss, s) for loss in losses]
    assert lowered == [False, *[False] * 3, True, False, False, True, False, True]
    assert plateau.factor == 0.125
    assert learning_rate(s, 64, 100, plateau) == 1.25e-4


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_has_the_bits_of_torchs_adamw(decay):
    """With a changing learning rate, and an update that is skipped because it is not finite."""
    ours, theirs = (nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    values = {"weight_decay": decay, "betas": [0.9, 0.98]}
    adam = make_optimizer(ours, settings(**values, epsilon=1e-9))
    torchs = torch.optim.AdamW(theirs.parameters(), **values, eps=1e-9, fused=True)
    for step, rate in enumerate([1e-3, 5e-2, 1e-2, 1e-2]):
        for model, optimizer in ((ours, adam), (theirs, torchs)):
            x = torch.randn(7, 5, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(x).square().sum().backward()
        set_rate(adam, rate)
        torchs.param_groups[0]["lr"] = rate
        if finite := step != 2:
            torchs.step()
        step_if(adam, torch.tensor(finite))
        assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    of_torch = {
        f"{kind}/{name}": tensor
        for name, parameter in theirs.named_parameters()
        for kind, tensor in torchs.state[parameter].items()
    }
    states = optimizer_tensors(ours, adam)
    assert len(states) == 6 and equal_tensors(states, of_torch)


@pytest.mark.parametrize("place", [0, 2])
def test_update_is_skipped_if_the_smoothed_loss_or_the_norm_is_not_finite(place):
    """The smoothed loss alone is infinite if a class has the logit -inf."""
    sums = torch.ones(3)
    assert finite(sums)
    sums[place] = math.inf
    assert not finite(sums)


def test_adam_allocates_its_memory_before_the_first_step():
    model = nn.Linear(5, 3)
    states = optimizer_tensors(model, make_optimizer(model, settings()))
    assert len(states) == 6 and not any(state.any() for state in states.values())
    model.bias.requires_grad_(False)  # as in a user's model
    states = optimizer_tensors(model, make_optimizer(model, settings()))
    assert {name.rpartition("/")[2] for name in states} == {"weight"}
