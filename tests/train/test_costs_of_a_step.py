"""A training step makes masks and copies of weights once, not once a layer or batch."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.data.pairs import GivenPairs
from nmtkit.nn import cpu, masks
from nmtkit.settings import TrainSettings
from nmtkit.train.gradients import Gradients, Share
from nmtkit.train.state import TrainState
from tests.models.contract import Case, batch_for, packed_for, pairs


class Operations(TorchDispatchMode):
    """Records the name and the tensors of each operation that is not a view."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            given = {key: value for key, value in (kwargs or {}).items() if key != "out"}
            parts = torch.utils._pytree.tree_leaves((args, given, result))
            tensors = [part for part in parts if isinstance(part, torch.Tensor)]
            self.done.append((operation._schema.name.partition("::")[2], tensors))
        return result


@pytest.fixture(params=["cpu", "as on a GPU"])
def device_path(request, monkeypatch):
    """Take the code paths of a CPU, or those of a GPU on a CPU."""
    if request.param != "cpu":
        monkeypatch.setattr(cpu, "writes_attention_out", lambda q, k: False)
        monkeypatch.setattr(cpu, "reads_at_once", lambda x: False)


MASKS = {"transformer": 8, "context-aware": 21, "han": 25}
"""Operations on masks in a step of any number of layers. If each layer of encoder and decoder made
its masks, it would take 12 to 20.
"""


@pytest.mark.parametrize(
    ("variant", "packed"),
    [("transformer", False), ("transformer", True), ("context-aware", False), ("han", False)],
)
def test_masks_are_made_once_a_batch(variant, packed, device_path):
    """So more layers do not add operations on bool tensors."""
    counts = []
    for layers in (2, 4):
        model = Case(variant).build(encoder_layers=layers, decoder_layers=layers).train()
        batch = packed_for(model) if packed else batch_for(model, pairs())
        masks._kept.cache_clear()
        with Operations() as operations:
            hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
            hidden.sum().backward()
        of_bool = [any(x.dtype == torch.bool for x in tensors) for _, tensors in operations.done]
        counts.append(sum(of_bool))
    assert 0 < counts[0] == counts[1] <= MASKS[variant]


BFLOAT16 = {"device_type": "cpu", "dtype": torch.bfloat16, "enabled": True}


def test_weights_are_copied_to_16_bits_once_an_update(monkeypatch):
    """Not once for each of its batches, nor for each chunk of the loss."""
    model, sentences = Case("transformer").build(dtype=torch.float32).train(), pairs()
    store = GivenPairs(*zip(*sentences, strict=True))
    gradients = Gradients(model, store, TrainSettings(), BFLOAT16, TrainState())
    gradients._chunk = 3
    parts = [(0, np.array([0, 1])), (1, np.array([2, 3])), (2, np.array([4]))]
    with Operations() as operations:
        gradients.add(Share(parts), 0, 1.0)
    weights = {p.data_ptr(): name for name, p in model.named_parameters()}
    copied = [
        weights[tensors[0].data_ptr()]
        for name, tensors in operations.done
        if name == "_to_copy" and tensors[0].data_ptr() in weights
    ]
    assert {"output.weight", "encoder.0.attention.qkv.weight"} <= set(copied)
    assert len(copied) == len(set(copied))
