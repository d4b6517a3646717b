"""Tests of a GPU beside the contract of the models; the marker `gpu` chooses them.

`bash tests/gpu/run.sh` runs them on the GPU; the usual tests run them on the CPU. The sizes are
those for which fused attention has kernels, unlike those of the contract.
"""

import pytest
import torch
from torch.nn import functional as F

from nmtkit.models.variants import load_variant
from nmtkit.nn.dropout import seed_dropout
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import PAD
from nmtkit.translate.beam import search
from nmtkit.translate.forced import forced_scores
from tests.device import DEVICE
from tests.models.conftest import on_the_device  # noqa: F401
from tests.models.contract import Case, batch_for, full, packed_for, pairs

pytestmark = pytest.mark.gpu
SIZES = {"d_model": 64, "d_ff": 128, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference of a logit from float64 on a CPU, relative to the largest logit."""
both = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def sentences():
    """Return pairs of up to 40 tokens."""
    return pairs(count=12, seed=5, longest=40)


def build(variant, dtype=torch.float32, dropout=0.0):
    """Return a model whose heads have 32 dimensions, with the same weights for every type."""
    sizes = load_variant(variant).adapt(SIZES) | {"dropout": dropout}
    model = Case(variant).build(dtype=torch.float64, **sizes)
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    return model.to(dtype)


def on_cpu(batch):
    """Return a batch in main memory."""
    context = batch.context and type(batch.context)(
        **{k: _on_cpu(v) for k, v in vars(batch.context).items()}
    )
    return type(batch)(
        **{k: _on_cpu(v) for k, v in vars(batch).items() if k != "context"}, context=context
    )


def _on_cpu(value):
    if isinstance(value, tuple):
        return tuple(type(part)(**{k: _on_cpu(v) for k, v in vars(part).items()}) for part in value)
    return value.cpu() if isinstance(value, torch.Tensor) else value


def autocast(dtype):
    return torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16)


def relative(found, expected):
    """Return the largest difference relative to the largest number."""
    found, expected = found.detach().double().cpu(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


@both
def test_logits_and_gradients_are_those_of_float64_on_a_cpu(variant, dtype):
    batch = batch_for(build(variant), sentences())
    real = (batch.tgt_out != PAD).cpu()
    results = []
    for device, number, data in (
        (DEVICE, torch.float32, batch),
        ("cpu", torch.float64, on_cpu(batch)),
    ):
        model = build(variant, number).to(device).train()
        with autocast(dtype if number == torch.float32 else number):
            logits = full(model, data)
        wide = logits.to(number).flatten(0, 1)
        loss = F.cross_entropy(wide, data.tgt_out.flatten(), ignore_index=PAD)
        gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        flat = torch.cat([gradient.double().flatten().cpu() for gradient in gradients])
        results.append((logits.detach().cpu()[real], flat))
    (logits, gradient), (exact_logits, exact_gradient) = results
    assert relative(logits, exact_logits) < TOLERANCE[dtype]
    similarity = F.cosine_similarity(gradient, exact_gradient, dim=0)
    assert similarity > (0.99 if dtype == torch.bfloat16 else 0.99999)


@both
def test_steps_equal_the_whole_and_padding_does_not_matter(variant, dtype):
    model = build(variant)
    batch = batch_for(model, sentences())
    with torch.no_grad(), autocast(dtype):
        whole = full(model, batch).double().cpu()
        padded = full(model, batch_for(model, sentences(), more=3)).double().cpu()
        memory, state, steps = model.encode(batch), {}, []
        for last in batch.tgt_in.split(1, dim=1):
            hidden, state = model.decode(last, memory, state)
            steps.append(model.logits(hidden))
    real = (batch.tgt_out != PAD).cpu()
    whole, padded = whole[real], padded[:, : real.size(1)][real]
    assert relative(torch.cat(steps, dim=1).cpu()[real], whole) < TOLERANCE[dtype]
    assert relative(padded, whole) < TOLERANCE[dtype]


@both
def test_packed_batches_are_read_as_padded_ones(variant, dtype):
    """On a GPU, in bfloat16, by the kernels for sentences in a row."""
    if not build(variant).reads_packed:
        pytest.skip("training pads the batches of this model")
    model = build(variant)
    padded, packed = batch_for(model, sentences()), packed_for(model, sentences())
    real, results = padded.tgt_out != PAD, []
    for batch in (padded, packed):
        model = build(variant).train()
        with autocast(dtype):
            logits = full(model, batch)
        flat = logits[real] if batch is padded else logits[0, : int(real.sum())]
        loss = F.cross_entropy(flat.float(), padded.tgt_out[real])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        results.append((flat.double().cpu(), torch.cat([g.double().flatten() for g in gradients])))
    assert relative(results[1][0], results[0][0]) < TOLERANCE[dtype]
    similarity = F.cosine_similarity(results[1][1], results[0][1], dim=0)
    assert similarity > (0.99 if dtype == torch.bfloat16 else 0.99999)


def test_a_beam_has_its_forced_score(variant):
    model = build(variant)
    batch = batch_for(model, sentences())
    settings = SearchSettings(beam=4, max_length_a=0, max_length_b=12)
    with torch.no_grad():
        best = [hypotheses[0] for hypotheses in search([model], batch, settings)]
        outputs = [(src, [*h.ids, 2]) for (src, _), h in zip(sentences(), best, strict=True)]
        forced = forced_scores([model], batch_for(model, outputs))
    for hypothesis, scores in zip(best, forced, strict=True):
        log_prob = sum(scores if hypothesis.finished else scores[:-1])
        assert log_prob == pytest.approx(hypothesis.log_prob, abs=2e-3)


def test_dropout_repeats_with_its_seed(variant):
    model = build(variant, dropout=0.3).train()
    batch, found = batch_for(model, sentences()), []
    for seed in (1, 1, 2):
        seed_dropout(seed, 1, 1)
        found.append(full(model, batch))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
