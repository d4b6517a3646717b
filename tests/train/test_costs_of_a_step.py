"""What a training step does once and not once a layer: masks, copies of weights."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.nn import cpu, masks
from tests.models.contract import Case, batch_for, packed_for, pairs


class Operations(TorchDispatchMode):
    """Collects the name and the tensors of each operation that is not a view."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            parts = torch.utils._pytree.tree_leaves((args, kwargs, result))
            tensors = [part for part in parts if isinstance(part, torch.Tensor)]
            self.done.append((operation._schema.name.partition("::")[2], tensors))
        return result


@pytest.fixture(params=["cpu", "as on a GPU"])
def path(request, monkeypatch):
    """Take the paths of a CPU, or those of a GPU on a CPU."""
    if request.param != "cpu":
        monkeypatch.setattr(cpu, "writes_attention_out", lambda q, k: False)
        monkeypatch.setattr(cpu, "reads_at_once", lambda x: False)


MASKS = {"transformer": 8, "context-aware": 21, "han": 25}
"""Operations on masks in a step of any number of layers. Made anew, they were 12 to 20 for each layer
of encoder and decoder.
"""


@pytest.mark.parametrize(
    ("variant", "packed"),
    [("transformer", False), ("transformer", True), ("context-aware", False), ("han", False)],
)
def test_masks_are_made_once_a_batch(variant, packed, path):
    """More layers do not add operations on bool tensors."""
    counts = []
    for layers in (2, 4):
        model = Case(variant).build(encoder_layers=layers, decoder_layers=layers).train()
        batch = packed_for(pairs()) if packed else batch_for(model, pairs())
        masks._kept.cache_clear()
        with Operations() as operations:
            hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
            hidden.sum().backward()
        of_bool = [any(x.dtype == torch.bool for x in tensors) for _, tensors in operations.done]
        counts.append(sum(of_bool))
    assert 0 < counts[0] == counts[1] <= MASKS[variant]
