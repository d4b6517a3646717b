"""The local Transformer of the documentation: encoder positions attend to near positions only."""

import functools

import pytest
import torch

from tests.models import contract, test_transformer
from tests.models.cases import LOCAL

BASELINE = "transformer"
count = test_transformer.count  # no new parameters


class Slow(test_transformer.Slow):
    def attend(self, name, queries, keys, allowed=test_transformer.everything):
        if name.startswith("encoder."):
            allowed = lambda query, key: abs(query - key) <= self.s.reach  # noqa: E731
        return super().attend(name, queries, keys, allowed)


slow_logits = functools.partial(test_transformer.slow_logits, slow_class=Slow)


def without_idea(case):
    """With a reach beyond the sentence, the model is the Transformer of the same weights."""
    model = case.build(reach=99)
    batch = contract.batch_for(model)
    base = contract.transformer_of(model)
    contract.close(contract.full(model, batch), contract.full(base, batch))


@pytest.mark.parametrize("reach", [0, 1, 3])
def test_encoder_layer_reads_only_positions_within_reach(reach):
    model = contract.Case(LOCAL, (("reach", reach), ("encoder_layers", 1))).build()
    x = torch.randn(1, 9, model.width, dtype=torch.float64, requires_grad=True)
    model.through_encoder(x, None)[0, 4].sum().backward()
    seen = x.grad[0].abs().sum(-1) > 0
    assert seen.tolist() == [abs(place - 4) <= reach for place in range(9)]
