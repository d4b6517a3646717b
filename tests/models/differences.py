"""Gradients of whole models: against finite differences, and in bfloat16 against float32."""

from __future__ import annotations

import torch

from nmtkit.data.batches import Batch
from nmtkit.models.base import Model
from nmtkit.nn.dropout import seed_everything
from tests.models import contract


def gradients_match_finite_differences(model: Model) -> bool:
    """Return True if every parameter of a tiny model (a vocabulary of 5) has the gradient of
    finite differences, on a padded batch with two rows a sentence.
    """
    model = model.double().train()
    batch = contract.collate([([3, 4, 2], [4, 2]), ([2], [3, 3, 2])])
    assert batch.tgt_in is not None
    tgt_in = batch.tgt_in.repeat_interleave(2, dim=0)
    names = [name for name, _ in model.named_parameters()]
    values = tuple(
        (p.detach() + 0.3 * torch.randn_like(p)).requires_grad_() for p in model.parameters()
    )

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self):
            seed_everything(1, 1, 0)
            return self.model.logits(self.model.decode(tgt_in, self.model.encode(batch))[0])

    whole = Whole()

    def logits(*parameters):
        return torch.func.functional_call(
            whole, {f"model.{name}": p for name, p in zip(names, parameters, strict=True)}, ()
        )

    # fast_mode compares projections of all gradients.
    return torch.autograd.gradcheck(logits, values, fast_mode=True, atol=1e-7, rtol=1e-5)


def similarity_in_bfloat16(model: Model, batch: Batch) -> float:
    """Return the cosine similarity of the gradients under autocast to bfloat16 and in float32, and
    check that the losses differ by less than 2 %.

    Args:
        model: in training mode, in float32.
        batch: with both sides.
    """

    def loss_and_gradients(narrow: bool) -> tuple[float, torch.Tensor]:
        seed_everything(1, 1, 0)
        with torch.autocast(batch.src.device.type, torch.bfloat16, enabled=narrow):
            logits = contract.full(model, batch)
        loss = contract.loss_from(logits.float(), batch)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return float(loss.detach()), torch.cat([gradient.flatten() for gradient in gradients])

    (wide, exact), (narrow, rounded) = map(loss_and_gradients, (False, True))
    assert wide != narrow and abs(wide - narrow) < 0.02 * wide
    return float(torch.nn.functional.cosine_similarity(exact, rounded, dim=0))
