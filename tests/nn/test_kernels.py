"""GPU kernels against equations. Without a GPU, Triton's interpreter runs them on a CPU, in float32
and float16: it cannot multiply bfloat16.
"""

import importlib
import itertools
from collections import Counter
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
    """Use small batches of few shapes on a CPU, 8 rows of 8 positions instead of 64 of 32: Triton's
    interpreter runs one program after the other.
    """
    if not ON_GPU:
        monkeypatch.setattr(packing, "LEAST_ROWS", 8)
        monkeypatch.setattr(packing, "LEAST_LENGTH", 8)


def numbers(*shape, dtype=WIDE):
    return torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()


def near(value, right, dtype):
    """Check a number type, and that the numbers are right up to a few roundings."""
    assert value.dtype == dtype
    value, right = value.detach().double(), right.detach().double()
    error = float((value - right).abs().max() / right.abs().max().clamp(min=1e-30))
    assert error < (3e-6 if dtype == WIDE else 2**-7), error


def all_near(values, rights, *dtypes):
    for value, right, dtype in zip(values, rights, dtypes, strict=True):
        near(value, right, dtype)


def exactly(*tensors):
    """Return copies in float64 with gradients of their own."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


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
def test_attention_of_few_queries_equals_the_equation(width, queries, keys, masked, dtype):
    """Keys lie in a longer buffer. Hidden numbers may be anything."""
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
    """Return positions of queries and of keys in sentences, some of which only one side has."""
    src, tgt = np.array([30, 1, 62, 9, 4]), np.array([17, 40, 1, 70])
    src, tgt = (tgt, tgt) if causal else (src, tgt)
    found = segments(src, tgt, few_shapes=True)
    queries, keys = (
        type(side)(*(tensor.to(DEVICE) for tensor in side)) for side in (found[0], found[1])
    )
    return queries, queries if causal else keys


def sees(queries, keys, causal):
    """Return which keys each query sees, (T, S)."""
    of_query, of_key = (side.cells // side.positions.size(1) for side in (queries, keys))
    seen = of_query[:, None] == of_key
    return seen.tril() if causal else seen


def weights_of(q, k, seen):
    scores = torch.einsum("thc,shc->ths", q, k) / q.size(-1) ** 0.5
    return scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)


@TYPES
@pytest.mark.parametrize("width", [8, 24, 64, 80])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_within_sentences_equals_the_equation(causal, width, dtype):
    queries, keys = places(causal)
    count = int(queries.offsets[4])  # queries that see a key
    q, k, v = (numbers(len(s.cells), 3, width, dtype=dtype) for s in (queries, keys, keys))
    context = attention.within_sentences(q, k, v, queries, keys, causal, 0.0)
    seed = torch.randn_like(context)
    found = gradients([context], [seed], (q, k, v))
    exact = exactly(q, k, v)
    weights = weights_of(*exact[:2], sees(queries, keys, causal))
    right = torch.einsum("ths,shc->thc", weights[:count], exact[2])
    near(context[:count], right, dtype)
    assert torch.isfinite(context).all()
    all_near(found, gradients([right], [seed[:count]], exact), *[dtype] * 3)


def test_attention_drops_the_same_weights_forwards_and_backwards():
    queries, keys = places(False)
    count, width, p = int(queries.offsets[4]), 16, 0.3
    q, k, v = (numbers(len(side.cells), 2, width) for side in (queries, keys, keys))

    def dropped(values):
        begin_draws()
        return attention.within_sentences(q, k, values, queries, keys, False, p)[:count]

    # With one-hot values the context is the weights.
    one_hot = torch.eye(len(v), -(-len(v) // width) * width, device=DEVICE)
    parts = one_hot[:, None].expand(-1, 2, -1).split(width, -1)
    weights = torch.cat([dropped(part.contiguous()) for part in parts], -1)[..., : len(v)]
    exact = exactly(q, k, v)
    right = weights_of(*exact[:2], sees(queries, keys, False))[:count]
    kept, seen = (weights > 0).double(), right > 0
    assert 0.66 < kept[seen].mean() < 0.74
    assert not torch.equal(kept[:, 0][seen[:, 0]], kept[:, 1][seen[:, 1]])  # of two heads
    right = right * kept / (1 - p)
    near(weights, right, WIDE)
    context, right = dropped(v), torch.einsum("ths,shc->thc", right, exact[2])
    near(context, right, WIDE)
    seed = torch.randn_like(context)
    found = gradients([context], [seed], (q, k, v))
    all_near(found, gradients([right], [seed], exact), *[WIDE] * 3)


@pytest.mark.parametrize("own", [True, False])
def test_side_by_side_gradients_are_not_copied(own, monkeypatch):
    """In self-attention, queries are a part too; in attention to a source, only keys and values."""
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
def test_parts_of_no_positions_have_empty_gradients(rows, steps):
    x = numbers(rows, steps, 2, 2, 16)
    k, v = attention.parts(x)
    assert torch.autograd.grad((k + v).sum(), x)[0].shape == x.shape


def test_attention_kernel_fits_heads_of_equal_width_up_to_128():
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
def test_residual_norm_equals_the_equation(layer, p, dtype, monkeypatch):
    monkeypatch.setattr(norm, "PROGRAMS", 3)  # each sums over several rows
    x, y = numbers(5, 130, 24), numbers(5, 130, 24, dtype=dtype)
    begin_draws()
    result, rounded = norm.residual_norm(x, y, layer, p, True, None if dtype == WIDE else dtype)
    outputs = [result] if dtype == WIDE else [result, rounded]
    seeds = [torch.randn_like(output) for output in outputs]
    inputs = x, y, layer.weight, layer.bias
    found = gradients(outputs, seeds, inputs)
    kept = (found[1] != 0).double() / (1 - p)
    assert not p or not torch.equal(kept[0, 0], kept[0, 1])  # of two rows
    assert float(kept.mean()) == pytest.approx(1, abs=0.05)
    exact = exactly(*inputs)
    total = exact[0] + exact[1] * (kept if p else 1)
    right = nn.functional.layer_norm(total, [24], *exact[2:], layer.eps)
    all_near(outputs, [right] * len(outputs), WIDE, *[dtype] * (len(outputs) - 1))
    all_near(found, gradients([right] * len(seeds), seeds, exact), WIDE, dtype, WIDE, WIDE)


@DROPOUT
def test_residual_norm_has_the_same_gradient_from_either_result(layer, p):
    x, y = numbers(7, 24), numbers(7, 24, dtype=NARROW)
    seed, found = torch.randn(7, 24, device=DEVICE).to(NARROW), []
    for i in range(2):
        begin_draws()
        result = norm.residual_norm(x, y, layer, p, True, NARROW)[i]
        found.append(gradients([result], [seed], (x, y, layer.weight, layer.bias)))
    for value, right in zip(*found, strict=True):
        torch.testing.assert_close(value, right)


def test_norm_without_residual_returns_16_bits(layer):
    x = numbers(7, 24)
    nothing, rounded = norm.residual_norm(x, None, layer, 0.0, False, NARROW)
    assert nothing is None
    (exact,) = exactly(x)
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
def test_loss_and_gradient_equal_the_equation(classes, smoothing, dtype, monkeypatch):
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


def test_loss_with_forbidden_classes_equals_the_equation(monkeypatch):
    """Their logits are -inf; a block may have no other class."""
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
def test_bias_gradient_is_the_sum_over_rows(width, dtype, monkeypatch):
    monkeypatch.setattr(affine, "PROGRAMS", 3)  # each sums over several rows
    y, bias = numbers(150, width, dtype=dtype), numbers(width)
    for _ in range(2):  # a kernel leaves the counters at 0
        out = affine.biased(y + 0, bias)
        seed = torch.randn_like(out)
        found = gradients([out], [seed], (y, bias))
        assert torch.equal(out, y) and torch.equal(found[0], seed)
        near(found[1], seed.double().sum(0), WIDE)


def test_bias_gradient_reads_some_columns_without_a_copy():
    """One part of a concatenation alone has the same result."""
    y, bias, seed = numbers(150, 24), numbers(24), numbers(150, 70).detach()[:, 30:54]
    found = gradients([affine.biased(y + 0, bias)], [seed], (y, bias))
    near(found[1], seed.double().sum(0), WIDE)
    same, _ = affine._gradients(seed, None, torch.float32)
    assert same.data_ptr() == seed.data_ptr()
    out = affine.relu_of_affine(y, torch.eye(24, device=DEVICE), bias, bias.detach())
    (found,) = gradients([out], [seed], (bias,))
    near(found, (seed * (out > 0)).double().sum(0), WIDE)


@TYPES
def test_relu_of_affine_map_equals_the_equation(dtype):
    x, weight, bias = numbers(150, 24, dtype=dtype), numbers(40, 24, dtype=dtype), numbers(40)
    out = affine.relu_of_affine(x, weight, bias, bias.detach().to(dtype))
    seed = torch.randn_like(out)
    found = gradients([out], [seed], (x, weight, bias))
    exact = exactly(x, weight, bias)
    right = (exact[0] @ exact[1].t() + exact[2]).relu()
    near(out, right, dtype)
    # Numbers near 0 may have been rounded to 0.
    true = gradients([right], [seed.double() * (out > 0)], exact)
    all_near(found, true, dtype, dtype, WIDE)


@TYPES
def test_sigmoid_of_biased_product_equals_the_equation(dtype):
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


STEPS = {"gru": (3, gru_step), "adaptive": (2, adaptive_step)}
"""Blocks of the inputs, and the equation, of each cell."""


@TYPES
@pytest.mark.parametrize(("shape", "width"), [((5,), 24), ((2, 3), 7), ((2, 1), 130)])
@pytest.mark.parametrize("cell", STEPS)
def test_cell_step_equals_the_equation(cell, shape, width, dtype):
    """The inputs are some rows of the inputs of several cells side by side."""
    torch.manual_seed(3)
    blocks, slow = STEPS[cell]
    h, p = numbers(*shape, width), numbers(*shape, 2 * width, dtype=dtype)
    matrix = numbers(width, width).detach()
    x = numbers(*shape[:-1], shape[-1] + 2, blocks * width)
    candidate = [lambda kept: kept @ matrix.to(kept.dtype)] if cell == "gru" else []
    new, copy = getattr(cells, cell)(x[..., 1:-1, :], h, p, *candidate)
    seeds = torch.randn_like(new), torch.randn_like(copy)
    found = gradients([new, copy], seeds, (x, p, h))
    exact = exactly(x, p, h)
    right = slow(exact[0][..., 1:-1, :], *exact[1:], *candidate)
    near(new.to(dtype), right, dtype)
    near(copy, right, dtype)
    true = gradients([right, right], seeds, exact)
    all_near([value.to(dtype) for value in found], true, *[dtype] * 3)


@TYPES
@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("cell", STEPS)
def test_refined_states_equal_a_cell_step_at_each_position(cell, inverted, dtype, kernels):
    """Input or history are the same at every position; results are rounded once."""
    torch.manual_seed(4)
    batch, positions, width = 2, 3, 20
    sizes = [(batch, 1, 1), (batch, 1, positions)]
    of_input, of_history = reversed(sizes) if inverted else sizes
    x = numbers(*of_input, STEPS[cell][0] * width)
    h, p = (numbers(*of_history, n * width) for n in (1, 2))
    matrix = numbers(width, width).detach()
    candidate = (lambda kept: kept @ matrix.to(kept.dtype)) if cell == "gru" else 0.5
    g = gpu.refined_states(cell, x, h, p, dtype, candidate)
    assert g.shape == (batch, 1, positions, width) and kernels["cells"] == 1
    seed = torch.randn_like(g)
    found = gradients([g], [seed], (x, h, p))
    exact = exactly(x, h, p)
    a, b, c = (t.expand(batch, 1, positions, -1) for t in exact)
    if cell == "gru":
        right = gru_step(a, c, b, candidate)
    else:
        n, z = c.chunk(2, -1)
        right = adaptive_step(a, torch.cat([n / 2, z], -1), b)
    near(g, right, dtype)
    found = [value.to(dtype) for value in found]
    all_near(found, gradients([right], [seed], exact), *[dtype] * 3)


# Scores of additive attention


@pytest.mark.parametrize(("dtype", "other"), [(WIDE, NARROW), (NARROW, WIDE)], ids=["keys", "q"])
@pytest.mark.parametrize(("positions", "width"), [(1, 16), (5, 70), (35, 130)])
def test_additive_scores_equal_the_equation(positions, width, dtype, other):
    """Queries or keys are narrow."""
    torch.manual_seed(5)
    inputs = (
        numbers(2, width, dtype=dtype),
        numbers(2, positions, width, dtype=other),
        numbers(width),
    )
    out = additive.scores(*inputs, 0.5)
    q, keys, v = exact = exactly(*inputs)
    right = (q[:, None] + keys / 2).tanh() @ v
    near(out, right, WIDE)
    seed = torch.randn_like(out)
    found = gradients([out], [seed], inputs)
    all_near(found, gradients([right], [seed], exact), *(x.dtype for x in inputs))


# Compiled graphs


def test_compiled_attention_has_one_graph_for_all_lengths(monkeypatch):
    """The gradient has one graph, too."""
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


# Where kernels are used


@pytest.fixture
def kernels(monkeypatch):
    """Use the kernels on this device; return how often each kernel computed."""
    counts = Counter()

    def counting(module, **functions):
        def counted(compute, name):
            return lambda *args, **options: counts.update([name]) or compute(*args, **options)

        wrapped = {name: counted(getattr(module, name), key) for name, key in functions.items()}
        return SimpleNamespace(**vars(module) | wrapped)

    package = SimpleNamespace(
        additive=counting(additive, scores="additive"),
        affine=counting(affine, biased="affine", relu_of_affine="relu"),
        attention=counting(attention, within_sentences="attention"),
        cells=counting(cells, gru="cells", adaptive="cells"),
        norm=counting(norm, residual_norm="norm"),
        loss=counting(loss, loss_and_gradient="loss"),
    )
    package.attention.fits = lambda q, v: q.size(-1) == v.size(-1)
    monkeypatch.setattr(gpu, "_for", lambda x: package if x.dtype.itemsize <= 4 else None)
    return counts


@pytest.fixture
def same(kernels, monkeypatch):
    """Return a function that checks that tensors of a computation are the same without kernels."""

    def check(compute, rtol=1e-4, atol=1e-6):
        found = compute()
        monkeypatch.setattr(gpu, "_for", lambda x: None)
        for value, right in zip(found, compute(), strict=True):
            torch.testing.assert_close(value, right, rtol=rtol, atol=atol)

    return check


@pytest.fixture
def unloaded(monkeypatch):
    """A GPU with kernels that are not loaded yet."""
    monkeypatch.setattr(gpu, "_kernels", None)
    monkeypatch.setattr(gpu, "_recurrent_fail", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    return torch.device("cuda")


def fails(*_):
    raise RuntimeError("Failed to find C compiler.\nmore")


FAILED = "nmtkit's kernels do not work here, torch's are slower: Failed to find C compiler."


@pytest.mark.parametrize(("capability", "warning"), [((9, 0), FAILED), ((7, 5), "")])
def test_kernels_that_do_not_compile_are_not_used(unloaded, capability, warning, monkeypatch):
    """Triton needs a C compiler, as late as at the first kernel. Older GPUs try no kernel."""
    monkeypatch.setattr(gpu, "_try", fails)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert gpu.load_kernels(unloaded) == warning and gpu._kernels is None


def try_on_this_device(monkeypatch, name):
    """Let a trial of kernels run on the device of the tests."""
    trial = getattr(gpu, name)
    monkeypatch.setattr(gpu, name, lambda kernels, _: trial(kernels, torch.device(DEVICE)))


def test_kernels_that_compile_are_used(unloaded, monkeypatch):
    for name in ("_try", "_try_recurrent"):
        try_on_this_device(monkeypatch, name)
    assert gpu.load_kernels(unloaded) == "" and gpu._kernels is not None
    assert not gpu._recurrent_fail


def test_kernels_work_without_those_of_recurrent_models(unloaded, kernels, monkeypatch):
    """On a GPU of `unloaded`, whose kernels the fixture replaces."""
    try_on_this_device(monkeypatch, "_try")
    monkeypatch.setattr(gpu, "_try_recurrent", fails)
    warning = FAILED.replace("kernels", "kernels of recurrent models")
    assert gpu.load_kernels(unloaded) == warning and gpu._kernels is not None
    x = torch.ones(2, 4, device=DEVICE, requires_grad=True)
    layer = nn.Linear(4, 4, device=DEVICE)
    product = lambda h: torch.cat([h, h], -1)  # noqa: E731
    assert gpu.recurrent_step("adaptive", product(x), x, product) is None
    assert not gpu.refines(x, 1, 4)
    assert gpu.additive_scores(x[:, None], x[:, None], layer.bias, 1.0) is None
    for sigmoid in (True, False):
        result = gpu.affine(x, layer.weight, layer.bias, None, relu=False, sigmoid=sigmoid)
        assert (result is None) is sigmoid
    assert kernels == {"affine": 1}


ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}


def training_step(build, batch):
    """Return a function that computes the losses and gradients of a training step."""

    def compute():
        model = build().train()
        hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
        scale = torch.tensor(0.1, device=DEVICE)
        sums = losses.backward(model.logits, hidden, batch, 0.1, scale, 16)
        return [sums, *(p.grad for p in model.parameters())]

    return compute


@pytest.mark.parametrize(
    "case",
    [Case("amn", tuple(ONE_LAYER.items())), *map(Case, ("rnnsearch", "caru", "gatt", "gru-inv"))],
    ids=str,
)
def test_recurrent_training_step_is_the_same_with_kernels(case, kernels, same):
    """In float32; AMN reads a packed batch."""
    make = packed_for if case.build().reads_packed else batch_for
    batch = make(case.build(), pairs(2, longest=4))
    same(training_step(lambda: case.build(dtype=WIDE, dropout=0.0), batch))
    assert kernels["cells"] and bool(kernels["additive"]) == (case.variant != "amn")


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
def test_training_step_partly_in_kernels_is_the_same(case, rows, dtype, kernels, monkeypatch):
    """Several targets for a source, or parameters of 16 bits."""
    model, found = case.build(dtype=dtype, dropout=0.0).train(), []
    batch = batch_for(model, pairs(2, longest=4))
    tgt_in = batch.tgt_in.repeat_interleave(rows, 0)
    for kernels_for in (gpu._for, lambda x: None):
        monkeypatch.setattr(gpu, "_for", kernels_for)
        hidden, _ = model.decode(tgt_in, model.encode(batch))
        loss = hidden.square().sum()
        found.append([hidden, *torch.autograd.grad(loss, model.encoder.parameters())])
    for value, right in zip(*found, strict=True):
        error = (value - right).abs().max() / right.abs().max().clamp(min=1e-30)
        assert value.dtype == dtype and error < (1e-4 if dtype == WIDE else 2**-6)
    assert kernels["cells"]


@pytest.mark.parametrize(
    ("form", "case"),
    [
        ("post", Case("transformer")),
        ("pre", Case("transformer", tuple(ONE_LAYER.items()))),
        ("post", Case("pr", tuple(ONE_LAYER.items()))),
        (
            "post",
            Case("han", tuple({"side": "joint", "heads": 2, **ONE_LAYER}.items())),
        ),
    ],
    ids=str,
)
def test_transformer_training_step_is_the_same_with_kernels(form, case, kernels, same):
    """In float32, on a packed batch. pr has keys that no query reads. HAN has more queries than a
    row has positions, and contexts that no sentence reads.
    """
    batch = packed_for(case.build(), pairs(6), 64, few_shapes=True)
    same(training_step(lambda: case.build(dtype=WIDE, dropout=0.0, norm=form), batch))
    assert kernels["affine"] and kernels["attention"] and kernels["loss"]
    assert bool(kernels["norm"]) == (form == "post")  # pre-norm only rounds to 16 bits


@pytest.mark.parametrize("after", [(), ("relu",), ("sigmoid",)])
@pytest.mark.parametrize("shape", [(8,), (0, 8), (2, 0, 8), (2, 3, 8)])
def test_affine_map_of_any_shape_equals_the_layer_without_kernels(shape, after, kernels, same):
    layer, x = Linear(8, 6).to(DEVICE), numbers(*shape)

    def compute():
        y = layer(x, **dict.fromkeys(after, True))
        return [y, *torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))]

    same(compute, rtol=1e-5)
    assert kernels["affine"] == 1


def test_low_precision_copy_is_dropped_when_numbers_change(kernels, layer, monkeypatch):
    monkeypatch.setattr(gpu, "_narrow_type", lambda x: NARROW)
    x = gpu.residual_norm(numbers(5, 24), numbers(5, 24), layer, 0.1).detach_()
    assert gpu.low_precision_copy(x).dtype == NARROW
    near(gpu.low_precision_copy(x), x, NARROW)
    x.add_(1)
    assert gpu.low_precision_copy(x) is x
    assert gpu.low_precision_copy(x + 1).dtype == WIDE


@pytest.mark.parametrize("last", [torch.tanh, lambda x: x.mT.contiguous().mT, lambda x: x])
def test_loss_leaves_logits_that_backward_reads(last, same):
    """The backward pass of some operations reads their results; a kernel reads whole rows."""
    product = nn.Linear(8, 40, device=DEVICE)
    batch = packed_for(Case("transformer").build(), pairs(6))
    hidden = torch.randn(1, batch.tgt_out.size(1), 8, device=DEVICE)

    def compute():
        product.zero_grad()
        states, scale = hidden.clone().requires_grad_(), torch.tensor(0.1, device=DEVICE)
        sums = losses.backward(lambda x: last(product(x)), states, batch, 0.1, scale, 64)
        return [sums[0], product.weight.grad.clone()]

    same(compute)


def test_other_kinds_of_norm_have_no_kernel(kernels):
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


def test_norm_of_16_bit_model_has_no_kernel(kernels, layer):
    """Its norms return 16 bits, a kernel 32."""
    x = numbers(5, 24, dtype=NARROW)
    assert gpu.residual_norm(x, x, layer.to(NARROW), 0.0) is None


def test_search_works_during_16_bit_training(kernels):
    """In training, embeddings of pr get a copy of 16 bits; a search has no gradients."""
    case = Case("pr", tuple(ONE_LAYER.items()))
    model = case.build(dtype=WIDE)
    with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
        (hypotheses, *_) = search([model], batch_for(model, pairs(1)), SearchSettings(beam=2))
    assert len(hypotheses) >= 1


def test_cell_kernel_reads_products_of_any_layout():
    h, x, p = numbers(5, 8), numbers(5, 16), numbers(5, 40)[:, 3:19]
    near(cells.adaptive(x, h, p)[0], adaptive_step(*exactly(x, p, h)), WIDE)


def test_cell_kernel_fits_inputs_and_states_of_equal_rows():
    h, x = numbers(5, 8), numbers(5, 16)
    assert cells.fits(x, h) and not cells.fits(x[:1], h) and not cells.fits(x, h[None])


def test_validation_and_search_use_no_norm_kernels(kernels):
    model = Case("transformer").build(dtype=WIDE).eval()
    batch = packed_for(model)
    with torch.no_grad():
        assert torch.isfinite(full(model, batch)).all()
    assert kernels["attention"] and not kernels["norm"] and not kernels["affine"]
