"""Compare every model on the GPU with float64 on the CPU; the marker `gpu` selects these tests.

`bash tests/gpu/run.sh` runs them on the GPU; the usual test command runs them on the CPU, with the
Transformer alone. Heads have sizes for which fused attention has kernels, unlike in the contract.
"""

import dataclasses

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


def on_cpu(value):
    """Return a batch, a context or a tuple of these with all tensors in main memory."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, tuple):
        return tuple(map(on_cpu, value))
    if dataclasses.is_dataclass(value):
        return type(value)(**{key: on_cpu(part) for key, part in vars(value).items()})
    return value


def autocast(dtype):
    return torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16)


def relative(actual, expected):
    """Return the largest difference relative to the largest number."""
    actual, expected = actual.detach().double().cpu(), expected.detach()
    return float((actual - expected).abs().max() / expected.abs().max())


def flat_gradient(loss, model):
    gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return torch.cat([gradient.double().flatten().cpu() for gradient in gradients])


def assert_near(actual, expected, dtype):
    """Assert that logits and gradients, given as pairs, are near each other."""
    (logits, gradient), (expected_logits, expected_gradient) = actual, expected
    assert relative(logits, expected_logits) < TOLERANCE[dtype]
    similarity = F.cosine_similarity(gradient, expected_gradient, dim=0)
    assert similarity > (0.99 if dtype == torch.bfloat16 else 0.99999)


@both
def test_logits_and_gradients_are_near_those_of_float64_on_a_cpu(variant, dtype):
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
        results.append((logits.detach().cpu()[real], flat_gradient(loss, model)))
    assert_near(*results, dtype)


@both
def test_logits_step_by_step_or_with_more_padding_are_near_those_of_the_whole(variant, dtype):
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
def test_packed_batch_has_the_logits_and_gradients_of_a_padded_one(variant, dtype):
    """On a GPU, bfloat16 uses the kernels for sentences in a row."""
    if not build(variant).reads_packed:
        pytest.skip("training pads the batches of this model")
    model = build(variant)
    padded, packed = batch_for(model, sentences()), packed_for(model, sentences())
    real, results = padded.tgt_out != PAD, []
    for batch in (packed, padded):
        model = build(variant).train()
        with autocast(dtype):
            logits = full(model, batch)
        flat = logits[real] if batch is padded else logits[0, : int(real.sum())]
        loss = F.cross_entropy(flat.float(), padded.tgt_out[real])
        results.append((flat.double().cpu(), flat_gradient(loss, model)))
    assert_near(*results, dtype)


def test_log_prob_of_a_beam_is_its_forced_score(variant):
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
    batch, logits = batch_for(model, sentences()), []
    for seed in (1, 1, 2):
        seed_dropout(seed, 1, 1)
        logits.append(full(model, batch))
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])
