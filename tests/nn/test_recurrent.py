"""Recurrent blocks against their equations, one sentence and one step at a time, and their gradients against plain autograd."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.nn.linear import Linear
from nmtkit.nn.masks import visible_positions
from nmtkit.nn.recurrent import GRU, AdditiveAttention, Cell, Recurrent, Repeated, loop, tanh
from tests.models.slow import affine, plus, sigmoid, softmax, times
from tests.models.slow import tanh as slow_tanh

LENGTHS = torch.tensor([4, 1, 6, 3])


class CARU(Cell):
    """A further cell (models.md section 4.1; after its first step): one short class."""

    blocks = 2

    def __init__(self, d_in, d_hidden):
        super().__init__()
        self.input = Linear(d_in, 2 * d_hidden, blocks=2)
        self.state = Linear(d_hidden, 2 * d_hidden, blocks=2)

    def inputs(self, v):
        return self.input(v)

    def products(self):
        return (self.state,)

    @staticmethod
    def step(x, h, *products):
        (state,) = products
        x, of_z = x.chunk(2, -1)
        n, z = state(h).chunk(2, -1)
        return torch.lerp(h, tanh(x + n), torch.sigmoid(x) * torch.sigmoid(of_z + z))


def shaken(module, seed=1):
    """Every parameter, biases too, moved off its initial value, in float64."""
    torch.manual_seed(seed)
    module = module.double()
    for parameter in module.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return module


def slow_gru(cell, v, h):
    width = len(h)
    w, u = cell.input.weight.tolist(), cell.gates.weight.tolist()
    reset = sigmoid(plus(affine(v, w[:width]), affine(h, u[:width])))
    update = sigmoid(plus(affine(v, w[width : 2 * width]), affine(h, u[width:])))
    new = slow_tanh(plus(affine(v, w[2 * width :]), affine(times(reset, h), cell.candidate.weight.tolist()), cell.bias.tolist()))
    return [(1 - z) * a + z * n for z, a, n in zip(update, h, new, strict=True)]


def slow_caru(cell, v, h):
    width = len(h)
    w, b, u, c = (p.tolist() for p in (cell.input.weight, cell.input.bias, cell.state.weight, cell.state.bias))
    x = affine(v, w[:width], b[:width])
    n = slow_tanh(plus(x, affine(h, u[:width], c[:width])))
    z = sigmoid(plus(affine(v, w[width:], b[width:]), affine(h, u[width:], c[width:])))
    gate = times(sigmoid(x), z)
    return [(1 - g) * a + g * b for g, a, b in zip(gate, h, n, strict=True)]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("kind", "slow"), [(GRU, slow_gru), (CARU, slow_caru)])
def test_cells_read_sentences_as_their_equations_say(kind, slow, bidirectional):
    d_in, width, steps = 3, 5, 8
    model = shaken(Recurrent(kind, d_in, width, bidirectional))
    v = torch.randn(len(LENGTHS), steps, d_in, dtype=torch.float64)
    states, last = model(v, LENGTHS)
    assert states.shape == (len(LENGTHS), steps, width * (1 + bidirectional)) and last.shape == (1 + bidirectional, len(LENGTHS), width)
    for row, length in enumerate(LENGTHS.tolist()):
        for side, cell in enumerate([model.forwards] + [model.backwards] * bidirectional):
            h = [0.0] * width
            for t in range(length)[:: -1 if side else 1]:
                h = slow(cell, v[row, t].tolist(), h)
                torch.testing.assert_close(states[row, t, side * width : (side + 1) * width].tolist(), h, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(last[side, row].tolist(), h, rtol=1e-12, atol=1e-12)
            assert (states[row, length:, side * width : (side + 1) * width] == last[side, row]).all(), "padding changed a state"


def test_the_golden_step_of_a_caru_cell():
    """models.md section 10."""
    cell = CARU(1, 1).double()
    values = {"input.weight": [[0.5], [0.7]], "input.bias": [0.1, 0.05], "state.weight": [[0.3], [-0.4]], "state.bias": [-0.2, 0.0]}
    cell.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()})
    x = cell.inputs(torch.ones(1, 1, dtype=torch.float64))
    assert x[0, 0].item() == pytest.approx(0.6)
    assert loop([cell], 1, torch.float64)(x, torch.full((1, 1), 0.8, dtype=torch.float64)).item() == pytest.approx(0.708032, abs=5e-7)


def test_the_gru_is_torchs_where_the_reset_gate_is_open():
    """Only the reset gate's place differs from torch's cell."""
    cell, theirs = shaken(GRU(3, 4)), nn.GRUCell(3, 4, bias=False).double()
    v, h = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    with torch.no_grad():
        cell.bias.zero_()
        order = torch.cat([torch.arange(4), torch.arange(4, 12)])
        theirs.weight_ih.copy_(cell.input.weight[order])
        theirs.weight_hh.copy_(torch.cat([cell.gates.weight, cell.candidate.weight]))
        theirs.weight_ih[4:8] *= -1  # its update gate keeps the old state, ours takes the new one
        theirs.weight_hh[4:8] *= -1
        step = loop([cell], 2, torch.float64)
        assert (step(cell.inputs(v), h) - theirs(v, h)).abs().max() > 1e-3
        x = cell.inputs(v)
        x[:, :4] = 1e3
        bias = torch.zeros(12, dtype=torch.float64)
        bias[:4] = 1e3
        torch.testing.assert_close(step(x, h), torch.gru_cell(v, h, theirs.weight_ih, theirs.weight_hh, bias, torch.zeros_like(bias)))


@pytest.mark.parametrize("kind", [GRU, CARU])
def test_padding_costs_no_gradient_and_batches_equal_their_sentences(kind):
    model = shaken(Recurrent(kind, 3, 4, bidirectional=True))
    v = torch.randn(len(LENGTHS), 6, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(len(LENGTHS), 6, 8, dtype=torch.float64)

    def gradients(rows, padded):
        total = torch.zeros((), dtype=torch.float64)
        for row in rows:
            states, last = model(v[row], LENGTHS[row], padded)
            real = torch.arange(states.size(1)) < LENGTHS[row][:, None]
            total = total + (states * weight[row, : states.size(1)])[real].sum() + last.square().sum()
        return torch.autograd.grad(total, [v, *model.parameters()])

    everything = [torch.arange(len(LENGTHS))]
    together = gradients(everything, True)
    real = torch.arange(6) < LENGTHS[:, None]
    assert (together[0][~real] == 0).all() and (together[0][real] != 0).all()
    total = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(LENGTHS.tolist()):
        states, last = model(v[row : row + 1, :length], LENGTHS[row : row + 1], False)
        total = total + (states * weight[row : row + 1, :length]).sum() + last.square().sum()
    for found, alone in zip(together, torch.autograd.grad(total, [v, *model.parameters()]), strict=True):
        torch.testing.assert_close(found, alone, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("leading", [(), (2,)])
@pytest.mark.parametrize("biased", [False, True])
def test_repeated_products_have_the_gradients_of_plain_ones(leading, biased):
    torch.manual_seed(5)
    shape = {"dtype": torch.float64, "requires_grad": True}
    matrix, x = torch.randn(*leading, 4, 4, **shape), torch.randn(*leading, 3, 4, **shape)
    bias = torch.randn(*leading, *([1] if leading else []), 4, **shape) if biased else None
    leaves = [t for t in (matrix, x, bias) if t is not None]

    def states(product):
        found = [x]
        for _ in range(5):
            found.append(torch.tanh(product(found[-1])))
        return found[1:]

    fast = states(Repeated(matrix, 7, bias))  # more uses were announced than come
    plain = states(lambda h: h @ matrix + (0 if bias is None else bias))
    for steps in ([4], [1], [0, 3], [4]):  # of one graph, again and again: nothing of an earlier pass may stay
        losses = [sum(found[t].square().sum() for t in steps) for found in (fast, plain)]
        for a, b in zip(*(torch.autograd.grad(loss, leaves, retain_graph=True) for loss in losses), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    (a,), (b,) = (torch.autograd.grad(found[2].sum(), [x], retain_graph=True) for found in (fast, plain))  # the matrix is not asked for
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    (a,), (b,) = (torch.autograd.grad(found[0].sum(), [matrix]) for found in (fast, plain))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


class Products(TorchDispatchMode):
    """The shapes of the results of matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function in {torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default}:
            self.shapes.append(tuple(out.shape))
        return out


def test_a_matrix_has_one_gradient_product_however_long_the_loop():
    steps, width = 9, 7
    model = Recurrent(GRU, 3, width, bidirectional=True)
    with Products() as seen:
        model(torch.randn(2, steps, 3), torch.tensor([9, 4]))[0].sum().backward()
    assert seen.shapes.count((2, width, 2 * width)) == 1 and seen.shapes.count((2, width, width)) == 1
    assert seen.shapes.count((3 * width, 3)) == 2  # each direction's input side: one product for the gradient of its matrix
    assert sum(shape[0] == steps * 2 for shape in seen.shapes) == 2  # and one forward, over all steps (the inputs need no gradient)


def test_a_loops_graph_is_freed_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        product = Repeated(torch.randn(3, 3, requires_grad=True), 4)
        h = torch.randn(2, 3)
        for _ in range(4):
            h = product(h).tanh()
        kept = weakref.ref(product._inputs[2])
        assert kept() is not None
        del product, h
        assert kept() is None
    finally:
        gc.enable()


def test_tanh_is_tanh():
    x = torch.linspace(-30, 30, 4001, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(tanh(x), torch.tanh(x), rtol=0, atol=4.5e-16)  # the last bits of 2σ - 1
    torch.testing.assert_close(tanh(x.detach().float()), torch.tanh(x.detach().float()), rtol=0, atol=3e-7)
    assert torch.autograd.gradcheck(tanh, (x.detach()[1900:2100].requires_grad_(),))


def slow_weights(attention, s, states):
    query, v = affine(s, attention.query.weight.tolist()), attention.score.weight[0].tolist()
    return softmax([sum(times(v, slow_tanh(plus(query, affine(h, attention.key.weight.tolist()))))) for h in states])


@pytest.mark.parametrize("rows", [1, 3])
def test_additive_attention_equals_its_equation(rows):
    attention = shaken(AdditiveAttention(5, 4, 6))
    states, s = torch.randn(len(LENGTHS), 6, 4, dtype=torch.float64), torch.randn(rows * len(LENGTHS), 5, dtype=torch.float64)
    attend = attention.loop(attention.keys(states), visible_positions(LENGTHS, 6), 2, torch.float64)
    alpha = attend(s)
    assert alpha.shape == (len(LENGTHS), rows, 6)
    for b, length in enumerate(LENGTHS.tolist()):
        assert (alpha[b, :, length:] == 0).all()
        for k in range(rows):
            expected = slow_weights(attention, s[b * rows + k].tolist(), states[b, :length].tolist())
            torch.testing.assert_close(alpha[b, k, :length].tolist(), expected, rtol=1e-12, atol=1e-13)
    blind = attention.loop(attention.keys(states), visible_positions(torch.tensor([4, 0, 6, 3]), 6), 1, torch.float64)(s)
    torch.testing.assert_close(blind[1], torch.full_like(blind[1], 1 / 6))


def test_additive_attention_has_the_gradients_of_its_equation():
    attention = shaken(AdditiveAttention(3, 2, 4))
    leaves = [torch.randn(2, 5, 2, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64), *(p.detach() for p in attention.parameters())]
    names = [name for name, _ in attention.named_parameters()]

    def twice(states, s, *parameters):
        class Steps(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = attention

            def forward(self):
                attend = self.attention.loop(self.attention.keys(states), visible_positions(torch.tensor([5, 3]), 5), 2, torch.float64)
                return attend(s) + 2 * attend(s.flip(0)).square()

        return torch.func.functional_call(Steps(), {f"attention.{n}": p for n, p in zip(names, parameters, strict=True)}, ())

    assert torch.autograd.gradcheck(twice, [leaf.requires_grad_() for leaf in leaves])


def test_attention_keeps_no_numbers_for_every_pair_of_positions():
    """Backward computes the (B, K, S, A) numbers again; kept is what was there anyway, the keys."""
    b, s, a, steps = 3, 5, 64, 4
    attention = AdditiveAttention(8, 8, a)
    keys = attention.keys(torch.randn(b, s, 8))
    large = set()

    def pack(tensor):
        if tensor.numel() >= b * s * a:
            large.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attend = attention.loop(keys, None, steps, torch.float32)
        sum(attend(torch.randn(b, 8)).square().sum() for _ in range(steps)).backward()
    assert large == {keys.data_ptr()}
