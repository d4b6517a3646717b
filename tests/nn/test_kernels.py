"""The kernels of a GPU beside the equations. Without a GPU, Triton's interpreter runs them on a CPU,
in float32 and float16: it has no products of bfloat16.
"""

import importlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from nmtkit.data import packing
from nmtkit.data.packing import segments
from nmtkit.nn import gpu
from nmtkit.nn.attention import SelfAttention
from nmtkit.nn.dropout import forget_seeds
from nmtkit.nn.linear import Linear
from nmtkit.settings import SearchSettings
from nmtkit.train import loss as losses
from nmtkit.translate.beam import search
from tests.device import DEVICE, ON_GPU
from tests.models.contract import Case, batch_for, full, packed_for, pairs

pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="no Triton for this system")
package = importlib.import_module("nmtkit.nn.kernels")
additive, affine, attention = package.additive, package.affine, package.attention
cells, norm, loss = package.cells, package.norm, package.loss
few_queries = importlib.import_module("nmtkit.nn.kernels.few_queries")

WIDE, NARROW = torch.float32, torch.bfloat16 if ON_GPU else torch.float16
TYPES = pytest.mark.parametrize("dtype", [WIDE, NARROW], ids=["wide", "narrow"])
DROPOUT = pytest.mark.parametrize("p", [0.0, 0.3])


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Triton's interpreter runs one program after the other: on a CPU, batches of few shapes have
    8 rows of 8 positions, not 64 of 32.
    """
    if not ON_GPU:
        monkeypatch.setattr(packing, "LEAST_ROWS", 8)
        monkeypatch.setattr(packing, "LEAST_LENGTH", 8)


def numbers(*shape, dtype=WIDE):
    return torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()


def near(value, right, dtype):
    """True numbers, rounded once or a few times."""
    assert value.dtype == dtype
    value, right = value.detach().double(), right.detach().double()
    error = float((value - right).abs().max() / right.abs().max().clamp(min=1e-30))
    assert error < (3e-6 if dtype == WIDE else 2**-7), error


def begin_draws():
    torch.manual_seed(1)
    forget_seeds()


def gradients(outputs, seeds, inputs):
    pairs = [(o.double() * s.double()).sum() for o, s in zip(outputs, seeds, strict=True)]
    return torch.autograd.grad(sum(pairs), inputs)


# Attention of few queries


@pytest.mark.parametrize(("width", "queries"), [(8, 1), (24, 5), (64, 4), (128, 16)])
@pytest.mark.parametrize(
    ("keys", "masked", "dtype"),
    [
        *itertools.product([1, 30, 32, 33, 150], ["not", "sentences", "queries"], [WIDE]),
        *itertools.product([33, 150], ["queries"], [NARROW]),
        *((1, "not", NARROW), (32, "sentences", NARROW), (150, "not", NARROW)),
    ],
)
def test_attention_of_few_queries(width, queries, keys, masked, dtype):
    """Keys whose place is in a longer buffer; numbers that are hidden are any."""
    torch.manual_seed(1)
    heads = 2 if ON_GPU or keys < 100 else 1  # the interpreter takes them one after the other
    q = numbers(3, queries, heads, width, dtype=dtype).detach().transpose(1, 2)
    k, v = (numbers(3, heads, keys + 5, width, dtype=dtype).detach() for _ in range(2))
    k, v = k[:, :, :keys], v[:, :, :keys]
    mask, hidden = None, torch.zeros(3, 1, keys, dtype=torch.bool, device=DEVICE)
    if masked != "not":
        rows = 1 if masked == "sentences" else queries
        hidden = torch.rand(3, rows, keys, device=DEVICE) < 0.6
        hidden[..., 64:128] = True  # a whole block
        hidden[torch.arange(3), :, torch.tensor([0, keys - 1, keys // 4])] = False
        mask = torch.zeros(hidden.shape, dtype=dtype, device=DEVICE)
        mask = mask.masked_fill(hidden, torch.finfo(dtype).min)
    assert few_queries.fits(q, k, v)
    found = few_queries.attend(q, k, v, mask)
    scores = (q.double() @ k.double().mT / width**0.5).masked_fill(hidden[:, None], -torch.inf)
    near(found, scores.softmax(-1) @ v.double(), dtype)
    if masked != "not" and keys > 128:  # no program reads the hidden block
        k[:, :, 64:128] = v[:, :, 64:128] = torch.nan
        torch.testing.assert_close(few_queries.attend(q, k, v, mask), found, rtol=0, atol=0)


# Attention


def places(causal):
    """Sentences of the queries and of the keys, and sentences of <pad> that one side lacks."""
    src, tgt = np.array([30, 1, 62, 9, 4]), np.array([17, 40, 1, 70])
    src, tgt = (tgt, tgt) if causal else (src, tgt)
    found = segments(src, tgt, few_shapes=True)
    queries, keys = (
        type(side)(*(tensor.to(DEVICE) for tensor in side)) for side in (found[0], found[1])
    )
    return queries, queries if causal else keys


def sees(queries, keys, causal):
    """Whether each query sees each key, (T, S)."""
    of_query, of_key = (side.cells // side.positions.size(1) for side in (queries, keys))
    seen = of_query[:, None] == of_key
    return seen.tril() if causal else seen


def weights_of(q, k, seen):
    scores = torch.einsum("thc,shc->ths", q, k) / q.size(-1) ** 0.5
    return scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)


@TYPES
@pytest.mark.parametrize("width", [8, 24, 64, 80])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_within_sentences(causal, width, dtype):
    queries, keys = places(causal)
    count = int(queries.offsets[4])  # queries that see a key
    q, k, v = (numbers(len(s.cells), 3, width, dtype=dtype) for s in (queries, keys, keys))
    context = attention.within_sentences(q, k, v, queries, keys, causal, 0.0)
    seed = torch.randn_like(context)
    found = gradients([context], [seed], (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    weights = weights_of(*exact[:2], sees(queries, keys, causal))
    right = torch.einsum("ths,shc->thc", weights[:count], exact[2])
    near(context[:count], right, dtype)
    assert torch.isfinite(context).all()
    for value, true in zip(found, gradients([right], [seed[:count]], exact), strict=True):
        near(value, true, dtype)


def test_dropout_on_attention_weights():
    """The same weights are dropped forwards and backwards."""
    queries, keys = places(False)
    count, width, p = int(queries.offsets[4]), 16, 0.3
    q, k, v = (numbers(len(side.cells), 2, width) for side in (queries, keys, keys))

    def dropped(values):
        begin_draws()
        return attention.within_sentences(q, k, values, queries, keys, False, p)

    columns = -(-len(v) // width) * width
    one_hot = torch.eye(len(v), columns, device=DEVICE)[:, None].expand(-1, 2, -1)
    found = torch.cat([dropped(part.contiguous()) for part in one_hot.split(width, -1)], dim=-1)
    found = found[..., : len(v)]
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    weights = weights_of(*exact[:2], sees(queries, keys, False))[:count]
    kept = (found[:count] > 0).double()
    seen = weights > 0
    assert 0.66 < kept[seen].mean() < 0.74
    assert not torch.equal(kept[:, 0][seen[:, 0]], kept[:, 1][seen[:, 1]])  # of two heads
    near(found[:count], weights * kept / (1 - p), WIDE)
    context, right = dropped(v), torch.einsum("ths,shc->thc", weights * kept / (1 - p), exact[2])
    near(context[:count], right, WIDE)
    seed = torch.randn_like(right).float()
    begin_draws()
    values = gradients([context[:count]], [seed], (q, k, v))
    for value, true in zip(values, gradients([right], [seed], exact), strict=True):
        near(value, true, WIDE)


@pytest.mark.parametrize("own", [True, False])
def test_gradients_that_lie_side_by_side_are_not_copied(own, monkeypatch):
    """Of self-attention, whose queries are a part too, and of attention to a source."""
    stack, stacked = torch.stack, []
    monkeypatch.setattr(torch, "stack", lambda *x: (stacked.append(1), stack(*x))[1])
    queries, keys = places(own)
    x = numbers(1, len(keys.cells), 3 if own else 2, 2, 16)
    q = numbers(len(queries.cells), 2, 16)

    def context(parts):
        rows = [part.squeeze(0) for part in parts]
        return attention.within_sentences(*(rows if own else [q, *rows]), queries, keys, own, 0.0)

    found = context(attention.parts(x))
    seed = torch.randn_like(found)
    value = torch.autograd.grad(found, x, seed)[0]
    assert not stacked and value.is_contiguous()
    right = torch.autograd.grad(context(x.unbind(2)), x, seed)[0]
    assert torch.equal(value, right)
    q, *rest = attention.parts(x)
    (part,) = torch.autograd.grad(q.sum(), x)
    assert stacked and part.sum() == q.numel() and not part[:, :, 1:].any()


@pytest.mark.parametrize("rows, steps", [(0, 3), (1, 0)])
def test_gradients_of_no_positions(rows, steps):
    x = numbers(rows, steps, 2, 2, 16)
    k, v = attention.parts(x)
    assert torch.autograd.grad((k + v).sum(), x)[0].shape == x.shape


def test_heads_wider_than_a_block_of_keys():
    assert attention.fits(torch.empty(1, 128, dtype=NARROW), torch.empty(1, 128, dtype=NARROW))
    assert not attention.fits(torch.empty(1, 136, dtype=NARROW), torch.empty(1, 136, dtype=NARROW))
    assert not attention.fits(torch.empty(1, 8, dtype=NARROW), torch.empty(1, 16, dtype=NARROW))


# Residual norms


@pytest.fixture
def layer():
    found = nn.LayerNorm(24, device=DEVICE)
    nn.init.normal_(found.weight)
    nn.init.normal_(found.bias)
    return found


@TYPES
@DROPOUT
def test_a_residual_norm(layer, p, dtype, monkeypatch):
    monkeypatch.setattr(norm, "PROGRAMS", 3)  # each sums over several rows
    x, y = numbers(5, 130, 24), numbers(5, 130, 24, dtype=dtype)
    narrow = None if dtype == WIDE else dtype
    begin_draws()
    result, rounded = norm.residual_norm(x, y, layer, p, True, narrow)
    outputs = [result] if narrow is None else [result, rounded]
    seeds = [torch.randn_like(output) for output in outputs]
    weights = layer.weight, layer.bias
    found = gradients(outputs, seeds, (x, y, *weights))
    kept = (found[1] != 0).double() / (1 - p)
    assert not p or not torch.equal(kept[0, 0], kept[0, 1])  # of two rows
    assert float(kept.mean()) == pytest.approx(1, abs=0.05)
    exact = [t.detach().double().requires_grad_() for t in (x, y, *weights)]
    total = exact[0] + exact[1] * (kept if p else 1)
    right = nn.functional.layer_norm(total, [24], *exact[2:], layer.eps)
    near(result, right, WIDE)
    for output in outputs:
        near(output, right, output.dtype)
    values = gradients([right] * len(seeds), seeds, exact)
    for value, true, of in zip(found, values, (WIDE, dtype, WIDE, WIDE), strict=True):
        near(value, true, of)


@DROPOUT
def test_a_residual_norm_of_which_one_result_is_used(layer, p):
    x, y = numbers(7, 24), numbers(7, 24, dtype=NARROW)

    def results():
        begin_draws()
        return norm.residual_norm(x, y, layer, p, True, NARROW)

    seed = torch.randn(7, 24, device=DEVICE).to(NARROW)
    inputs = x, y, layer.weight, layer.bias
    for value, right in zip(
        gradients(results()[:1], [seed], inputs),
        gradients(results()[1:], [seed], inputs),
        strict=True,
    ):
        torch.testing.assert_close(value, right)


def test_a_norm_alone_in_16_bits(layer):
    x = numbers(7, 24)
    nothing, rounded = norm.residual_norm(x, None, layer, 0.0, False, NARROW)
    assert nothing is None
    exact = x.detach().double().requires_grad_()
    right = nn.functional.layer_norm(
        exact, [24], layer.weight.double(), layer.bias.double(), layer.eps
    )
    near(rounded, right, NARROW)
    seed = torch.randn_like(rounded)
    near(*gradients([rounded], [seed], [x]), *gradients([right], [seed], [exact]), WIDE)


# The loss


@TYPES
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("classes", [7, 40])
def test_the_loss_and_its_gradient(classes, smoothing, dtype, monkeypatch):
    monkeypatch.setattr(loss, "BLOCK", 16)
    logits, targets = (
        (3 * numbers(9, classes)).detach().to(dtype),
        torch.arange(9, device=DEVICE) % 7,
    )
    scale = torch.tensor(0.37, dtype=torch.float64, device=DEVICE)
    exact = losses.chunk_loss(logits.double(), targets[:, None], smoothing, scale)
    found = loss.loss_and_gradient(logits, targets, smoothing, scale)
    assert not found[targets == 0].any() and not logits[targets == 0].any()  # <pad>
    near(found.sum(0), exact[0], WIDE)
    near(logits, exact[1], dtype)


def test_a_class_that_is_forbidden(monkeypatch):
    """Its logit is -inf; a block may have no other class."""
    monkeypatch.setattr(loss, "BLOCK", 4)
    logits = numbers(3, 10).detach()
    logits[:, :5] = -torch.inf
    targets, scale = torch.tensor([6, 7, 9], device=DEVICE), torch.tensor(1.0, device=DEVICE)
    exact = losses.chunk_loss(logits.double(), targets[:, None], 0.0, scale.double())
    found = loss.loss_and_gradient(logits, targets, 0.0, scale)
    near(found.sum(0), exact[0], WIDE)
    near(logits, exact[1], WIDE)


# Affine maps


@TYPES
@pytest.mark.parametrize("width", [6, 200])
def test_the_gradient_of_a_bias(width, dtype, monkeypatch):
    monkeypatch.setattr(affine, "PROGRAMS", 3)  # each sums over several rows
    y, bias = numbers(150, width, dtype=dtype), numbers(width)
    for _ in range(2):  # a kernel leaves the counters at 0
        out = affine.biased(y + 0, bias)
        seed = torch.randn_like(out)
        found = gradients([out], [seed], (y, bias))
        assert torch.equal(out, y) and torch.equal(found[0], seed)
        near(found[1], seed.double().sum(0), WIDE)


def test_the_gradient_of_a_bias_from_some_columns_of_a_gradient():
    """As of one part of a concatenation: nothing is copied."""
    y, bias, seed = numbers(150, 24), numbers(24), numbers(150, 70).detach()[:, 30:54]
    found = gradients([affine.biased(y + 0, bias)], [seed], (y, bias))
    near(found[1], seed.double().sum(0), WIDE)
    same, _ = affine._gradients(seed, None, torch.float32)
    assert same.data_ptr() == seed.data_ptr()
    out = affine.relu_of_affine(y, torch.eye(24, device=DEVICE), bias, bias.detach())
    (found,) = gradients([out], [seed], (bias,))
    near(found, (seed * (out > 0)).double().sum(0), WIDE)


@TYPES
def test_relu_of_an_affine_map(dtype):
    x, weight, bias = numbers(150, 24, dtype=dtype), numbers(40, 24, dtype=dtype), numbers(40)
    out = affine.relu_of_affine(x, weight, bias, bias.detach().to(dtype))
    seed = torch.randn_like(out)
    found = gradients([out], [seed], (x, weight, bias))
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    right = (exact[0] @ exact[1].t() + exact[2]).relu()
    near(out, right, dtype)
    # Of numbers near 0 one may have been rounded to 0.
    true = gradients([right], [seed.double() * (out > 0)], exact)
    for value, gradient, kind in zip(found, true, (dtype, dtype, WIDE), strict=True):
        near(value, gradient, kind)


@TYPES
def test_the_sigmoid_of_an_affine_map(dtype):
    y, bias = numbers(150, 40, dtype=dtype), numbers(40)
    out = affine.biased(y + 0, bias, True)
    seed = torch.randn_like(out)
    found = gradients([out], [seed], (y, bias))
    near(out, y.detach().double().sigmoid(), dtype)
    right = seed.double() * (out.double() * (1 - out.double())).detach()
    near(found[0], right, dtype)
    near(found[1], right.sum(0), WIDE)


# Steps of recurrent cells


def gru_step(x, p, h, candidate):
    """Cho et al. 2014; x and p without the product for the candidate."""
    width = h.size(-1)
    reset, update = (x[..., : 2 * width] + p).sigmoid().chunk(2, -1)
    new = (x[..., 2 * width :] + candidate(reset * h)).tanh()
    return (1 - update) * h + update * new


def adaptive_step(x, p, h):
    """Chan et al. 2020, Eq. 4."""
    (x, of_z), (n, z) = x.chunk(2, -1), p.chunk(2, -1)
    gate = x.sigmoid() * (of_z + z).sigmoid()
    return (1 - gate) * h + gate * (x + n).tanh()


@TYPES
@pytest.mark.parametrize(("shape", "width"), [((5,), 24), ((2, 3), 7), ((2, 1), 130)])
def test_a_step_of_a_recurrent_cell(shape, width, dtype):
    """Also of some rows of the inputs of several cells side by side."""
    torch.manual_seed(3)
    h, p, matrix = (
        numbers(*shape, width),
        numbers(*shape, 2 * width, dtype=dtype),
        numbers(width, width),
    )
    longer = (*shape[:-1], shape[-1] + 2)
    for name, blocks, slow in (("gru", 3, gru_step), ("adaptive", 2, adaptive_step)):
        whole = numbers(*longer, blocks * width)
        x, more = whole[..., 1:-1, :], ()
        if name == "gru":
            more = (lambda kept: kept @ matrix.to(kept.dtype),)
        new, copy = getattr(cells, name)(x, h, p, *more)
        seeds = torch.randn_like(new), torch.randn_like(copy)
        inputs = whole, p, h
        found = gradients([new, copy], seeds, inputs)
        exact = [t.detach().double().requires_grad_() for t in inputs]
        if name == "gru":
            more = (lambda kept: kept @ matrix.detach().double(),)
        right = slow(exact[0][..., 1:-1, :], *exact[1:], *more)
        near(new.to(dtype), right, dtype)
        near(copy, right, dtype)
        true = gradients([right, right], seeds, exact)
        for value, gradient in zip(found, true, strict=True):
            near(value.to(dtype), gradient, dtype)


@TYPES
@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("cell", ["gru", "adaptive"])
def test_a_step_of_a_cell_for_all_positions(cell, inverted, dtype, kernels):
    """Input or history are the same at every position; rounded once."""
    torch.manual_seed(4)
    batch, positions, width, blocks = 2, 3, 20, 3 if cell == "gru" else 2
    one, all_ = (batch, 1, 1), (batch, 1, positions)
    of_input, of_history = (all_, one) if inverted else (one, all_)
    x = numbers(*of_input, blocks * width)
    h, p = (numbers(*of_history, n * width) for n in (1, 2))
    matrix = numbers(width, width)
    candidate = {"gru": lambda kept: kept @ matrix.to(kept.dtype), "adaptive": 0.5}[cell]
    g = gpu.refined_states(cell, x, h, p, dtype, candidate)
    assert g.shape == (*all_, width) and kernels.cells == 1
    seed = torch.randn_like(g)
    found = gradients([g], [seed], (x, h, p))
    exact = [t.detach().double().requires_grad_() for t in (x, h, p)]
    a, b, c = (t.expand(*all_, -1) for t in exact)
    if cell == "gru":
        right = gru_step(a, c, b, lambda kept: kept @ matrix.detach().double())
    else:
        n, z = c.chunk(2, -1)
        right = adaptive_step(a, torch.cat([n / 2, z], -1), b)
    near(g, right, dtype)
    for value, gradient in zip(found, gradients([right], [seed], exact), strict=True):
        near(value.to(dtype), gradient, dtype)


# Scores of additive attention


@pytest.mark.parametrize(("dtype", "other"), [(WIDE, NARROW), (NARROW, WIDE)], ids=["keys", "q"])
@pytest.mark.parametrize(("positions", "width"), [(1, 16), (5, 70), (35, 130)])
def test_scores_of_additive_attention(positions, width, dtype, other):
    """Queries or keys are narrow."""
    torch.manual_seed(5)
    q, keys = (numbers(2, *n, width, dtype=t) for n, t in (((), dtype), ((positions,), other)))
    inputs = q, keys, numbers(width)
    out = additive.scores(*inputs, 0.5)
    q, keys, v = exact = [t.detach().double().requires_grad_() for t in inputs]
    right = (q[:, None] + keys / 2).tanh() @ v
    near(out, right, WIDE)
    seed = torch.randn_like(out)
    for value, gradient, x in zip(
        gradients([out], [seed], inputs), gradients([right], [seed], exact), inputs, strict=True
    ):
        near(value, gradient, x.dtype)


# Compiled graphs


def test_a_compiled_layer_has_one_graph_for_all_lengths(monkeypatch):
    """Also the one of the gradient."""
    from torch._dynamo.testing import CompileCounterWithBackend  # loading it takes two seconds

    monkeypatch.setattr(gpu, "_for", lambda x: package)
    monkeypatch.setattr(attention, "fits", lambda q, v: True)
    layer, graphs = SelfAttention(32, 2).to(DEVICE), CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(layer, dynamic=True, backend=graphs)
    for lengths in ([3, 4, 7], [6, 7, 2, 3], [1, 9, 9], [5, 5, 5, 5]):
        where = segments(np.array(lengths), np.array(lengths))
        where = type(where)(*(type(side)(*(t.to(DEVICE) for t in side)) for side in where))
        values = []
        x = numbers(1, sum(lengths), 32)
        for compute in (layer, compiled):
            values.append(torch.autograd.grad(compute(x, where, True).square().sum(), x)[0])
        near(values[1], values[0], WIDE)
    assert graphs.frame_count == 2  # the second has lengths that vary


# The door


@pytest.fixture
def kernels(monkeypatch):
    """Use the kernels on this device; return how often each one did."""
    counts = SimpleNamespace(additive=0, affine=0, relu=0, attention=0, cells=0, norm=0, loss=0)

    def counted(module, name, count):
        compute = getattr(module, name)

        def wrapped(*args, **options):
            setattr(counts, count, getattr(counts, count) + 1)
            return compute(*args, **options)

        return wrapped

    of_additive = SimpleNamespace(
        fits=additive.fits, scores=counted(additive, "scores", "additive")
    )
    of_affine = SimpleNamespace(
        biased=counted(affine, "biased", "affine"),
        fits=affine.fits,
        relu_of_affine=counted(affine, "relu_of_affine", "relu"),
    )
    of_attention = SimpleNamespace(
        fits=lambda q, v: q.size(-1) == v.size(-1),
        within_sentences=counted(attention, "within_sentences", "attention"),
        parts=attention.parts,
    )
    of_norm = SimpleNamespace(fits=norm.fits, residual_norm=counted(norm, "residual_norm", "norm"))
    of_cells = SimpleNamespace(
        WIDEST=cells.WIDEST,
        fits=cells.fits,
        gru=counted(cells, "gru", "cells"),
        adaptive=counted(cells, "adaptive", "cells"),
    )
    of_loss = SimpleNamespace(loss_and_gradient=counted(loss, "loss_and_gradient", "loss"))
    found = SimpleNamespace(
        additive=of_additive,
        affine=of_affine,
        attention=of_attention,
        cells=of_cells,
        norm=of_norm,
        loss=of_loss,
    )
    monkeypatch.setattr(gpu, "_for", lambda x: found if x.dtype.itemsize <= 4 else None)
    return counts


def test_kernels_that_do_not_compile_are_left_out(monkeypatch):
    """Triton needs a C compiler, as late as at the first kernel."""

    def fails(*_):
        raise RuntimeError("Failed to find C compiler.\nmore")

    monkeypatch.setattr(gpu, "_kernels", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "_try", fails)
        assert gpu.load_kernels(torch.device("cuda")) == "Failed to find C compiler."
        assert gpu._kernels is None
        patch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
        assert gpu.load_kernels(torch.device("cuda")) == ""
    monkeypatch.setattr(gpu, "_try", lambda kernels, _: tried(kernels, torch.device(DEVICE)))
    assert gpu.load_kernels(torch.device("cuda")) == "" and gpu._kernels is not None


tried = gpu._try
ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}


def same_step(build, batch, monkeypatch):
    """Compare the losses and the gradients of a training step with those without kernels."""
    found = []
    for door in (gpu._for, lambda x: None):
        monkeypatch.setattr(gpu, "_for", door)
        model = build().train()
        hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
        scale = torch.tensor(0.1, device=DEVICE)
        sums = losses.backward(model.logits, hidden, batch, 0.1, scale, 16)
        found.append([sums, *(p.grad for p in model.parameters())])
    for value, right in zip(*found, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "case",
    [Case("amn", tuple(ONE_LAYER.items())), *map(Case, ("rnnsearch", "caru", "gatt", "gru-inv"))],
    ids=str,
)
def test_a_training_step_of_cells_with_kernels_is_one_without(case, kernels, monkeypatch):
    """In float32; of AMN on a packed batch."""
    make = packed_for if case.build().reads_packed else batch_for
    batch = make(case.build(), pairs(3, longest=4))
    same_step(lambda: case.build(dtype=WIDE, dropout=0.0), batch, monkeypatch)
    assert kernels.cells and bool(kernels.additive) == (case.variant != "amn")


@pytest.mark.parametrize(
    ("case", "rows", "dtype"),
    [
        (Case("caru"), 3, WIDE),
        (Case("gatt"), 3, WIDE),
        (Case("caru", (("caatt", False),)), 1, NARROW),
        (Case("rnnsearch"), 1, NARROW),
    ],
    ids=str,
)
def test_a_training_step_that_kernels_compute_in_part(case, rows, dtype, kernels, monkeypatch):
    """Several targets for a source, or parameters of 16 bits: as without kernels."""
    model, found = case.build(dtype=dtype, dropout=0.0).train(), []
    batch = batch_for(model, pairs(3, longest=4))
    tgt_in = batch.tgt_in.repeat_interleave(rows, 0)
    for door in (gpu._for, lambda x: None):
        monkeypatch.setattr(gpu, "_for", door)
        hidden, _ = model.decode(tgt_in, model.encode(batch))
        found.append(
            [hidden, *torch.autograd.grad(hidden.square().sum(), model.encoder.parameters())]
        )
    scale = 1e-4 if dtype == WIDE else 2**-6
    for value, right in zip(*found, strict=True):
        error = (value - right).abs().max() / right.abs().max().clamp(min=1e-30)
        assert value.dtype == dtype and error < scale
    assert kernels.cells


@pytest.mark.parametrize(
    ("form", "case"),
    [
        ("post", Case("transformer")),
        ("pre", Case("transformer")),
        ("post", Case("pr", tuple(ONE_LAYER.items()))),
        (
            "post",
            Case("han", tuple({"side": "joint", "heads": 2, **ONE_LAYER}.items())),
        ),
    ],
    ids=str,
)
def test_a_training_step_with_kernels_is_one_without(form, case, kernels, monkeypatch):
    """In float32, on a packed batch: losses and gradients of all parameters. pr has keys that nothing
    reads. HAN has more queries than a row has positions, and contexts that nothing reads.
    """
    batch = packed_for(case.build(), pairs(6), 64, few_shapes=True)
    same_step(lambda: case.build(dtype=WIDE, dropout=0.0, norm=form), batch, monkeypatch)
    assert kernels.affine and kernels.attention and kernels.loss
    assert bool(kernels.norm) == (form == "post")  # pre-norm only rounds to 16 bits


@pytest.mark.parametrize("after", [(), ("relu",), ("sigmoid",)])
@pytest.mark.parametrize("shape", [(8,), (0, 8), (2, 0, 8), (2, 3, 8)])
def test_an_affine_map_of_any_shape(shape, after, kernels, monkeypatch):
    """One vector, or none, as torch's layer."""
    layer, x, found = Linear(8, 6).to(DEVICE), numbers(*shape), []
    for door in (gpu._for, lambda x: None):
        monkeypatch.setattr(gpu, "_for", door)
        y = layer(x, **dict.fromkeys(after, True))
        found.append([y, *torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))])
    assert kernels.affine == 1
    for value, right in zip(*found, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-5, atol=1e-6)


def test_the_copy_of_16_bits_is_that_of_the_numbers(kernels, layer, monkeypatch):
    monkeypatch.setattr(gpu, "_narrow_type", lambda x: NARROW)
    x = gpu.residual_norm(numbers(5, 24), numbers(5, 24), layer, 0.1).detach_()
    assert gpu.low_precision_copy(x).dtype == NARROW
    near(gpu.low_precision_copy(x), x, NARROW)
    x.add_(1)
    assert gpu.low_precision_copy(x) is x
    assert gpu.low_precision_copy(x + 1).dtype == WIDE


@pytest.mark.parametrize("last", [torch.tanh, lambda x: x.mT.contiguous().mT, lambda x: x])
def test_logits_that_the_loss_may_not_overwrite(last, kernels, monkeypatch):
    """The backward pass of some operations reads their results; a kernel reads whole rows."""
    product, batch = (
        nn.Linear(8, 40, device=DEVICE),
        packed_for(Case("transformer").build(), pairs(6)),
    )
    hidden, found = torch.randn(1, batch.tgt_out.size(1), 8, device=DEVICE), []
    for door in (gpu._for, lambda x: None):
        monkeypatch.setattr(gpu, "_for", door)
        product.zero_grad()
        states, scale = hidden.clone().requires_grad_(), torch.tensor(0.1, device=DEVICE)
        sums = losses.backward(lambda x: last(product(x)), states, batch, 0.1, scale, 64)
        found.append([sums[0], product.weight.grad.clone()])
    for value, right in zip(*found, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-6)


def test_a_norm_of_another_kind_has_no_kernel(kernels):
    class Other(nn.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    x = numbers(5, 24)
    for norm_layer in (
        Other(24),
        nn.LayerNorm(24, bias=False),
        nn.LayerNorm(24, elementwise_affine=False),
    ):
        assert gpu.residual_norm(x, x, norm_layer.to(DEVICE), 0.0) is None
        assert gpu.low_precision_norm(x, norm_layer.to(DEVICE)) is None


def test_a_model_of_16_bits_has_no_norm_kernel(kernels, layer):
    """Its norms return 16 bits, and a kernel 32."""
    x = numbers(5, 24, dtype=NARROW)
    assert gpu.residual_norm(x, x, layer.to(NARROW), 0.0) is None


def test_a_search_during_a_training_of_16_bits(kernels):
    """Of pr, whose embeddings get a copy of 16 bits in training; their search has no gradients."""
    case = Case("pr", tuple(ONE_LAYER.items()))
    model = case.build(dtype=WIDE)
    with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
        (hypotheses, *_) = search([model], batch_for(model, pairs(1)), SearchSettings(beam=2))
    assert len(hypotheses) >= 1


def test_products_of_any_layout_and_rows_that_do_not_fit():
    h, both = numbers(5, 8), numbers(5, 40)
    x, p = numbers(5, 16), both[:, 3:19]
    new, _ = cells.adaptive(x, h, p)
    near(new, adaptive_step(*(t.detach().double() for t in (x, p, h))), WIDE)
    assert cells.fits(x, h) and not cells.fits(x[:1], h) and not cells.fits(x, h[None])


def test_validation_and_search_use_no_norm_kernels(kernels):
    model = Case("transformer").build(dtype=WIDE).eval()
    batch = packed_for(model)
    with torch.no_grad():
        assert torch.isfinite(full(model, batch)).all()
    assert kernels.attention and not kernels.norm and not kernels.affine
