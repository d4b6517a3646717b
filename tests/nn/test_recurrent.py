"""Recurrent blocks against their equations, one sentence and one step at a time, and their
gradients against plain autograd.
"""

import contextlib
import gc
import io
import runpy
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.models.caru import CARU, CARUCell
from nmtkit.nn.alignment import AdditiveAttention
from nmtkit.nn.cells import GRU, LSTM, MGU, cell_step
from nmtkit.nn.loops import LoopProduct
from nmtkit.nn.masks import visible_positions
from nmtkit.nn.recurrent import Recurrent
from tests.models.slow import affine, plus, sigmoid, softmax, times
from tests.models.slow import tanh as slow_tanh

LENGTHS = torch.tensor([4, 1, 6, 3])


def shaken(module, seed=1):
    """Every parameter, biases too, moved off its initial value, in float64."""
    torch.manual_seed(seed)
    module = module.double()
    for parameter in module.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return module


def slow_gru(cell, v, h):
    width = cell.d_hidden
    h = h or [0.0] * width
    w, u = cell.input.weight.tolist(), cell.gates.weight.tolist()
    reset = sigmoid(plus(affine(v, w[:width]), affine(h, u[:width])))
    update = sigmoid(plus(affine(v, w[width : 2 * width]), affine(h, u[width:])))
    new = slow_tanh(
        plus(
            affine(v, w[2 * width :]),
            affine(times(reset, h), cell.candidate.weight.tolist()),
            cell.bias.tolist(),
        )
    )
    return [(1 - z) * a + z * n for z, a, n in zip(update, h, new, strict=True)]


def slow_caru(cell, v, h):
    """models.md section 4.1; h = None where there is no history."""
    width = cell.d_hidden
    w, b, u, c = (
        p.tolist() for p in (cell.input.weight, cell.input.bias, cell.state.weight, cell.state.bias)
    )
    x = affine(v, w[:width], b[:width])
    if h is None:
        return slow_tanh(x) if cell.first_step == "tanh" else x
    n = slow_tanh(plus(x, affine(h, u[:width], c[:width])))
    z = sigmoid(plus(affine(v, w[width:], b[width:]), affine(h, u[width:], c[width:])))
    gate = times(sigmoid(x), z)
    return [(1 - g) * a + g * b for g, a, b in zip(gate, h, n, strict=True)]


def slow_mgu(cell, v, h):
    width = cell.d_hidden
    h = h or [0.0] * width
    w, b = cell.input.weight.tolist(), cell.input.bias.tolist()
    forget = sigmoid(plus(affine(v, w[:width], b[:width]), affine(h, cell.forget.weight.tolist())))
    new = slow_tanh(
        plus(
            affine(v, w[width:], b[width:]),
            affine(times(forget, h), cell.candidate.weight.tolist()),
        )
    )
    return [(1 - f) * a + f * n for f, a, n in zip(forget, h, new, strict=True)]


def slow_lstm(cell, v, state):
    width = cell.d_hidden
    h, c = (state[:width], state[width:]) if state else ([0.0] * width, [0.0] * width)
    w, b, u = cell.input.weight.tolist(), cell.input.bias.tolist(), cell.state.weight.tolist()
    rows = [slice(k * width, (k + 1) * width) for k in range(4)]
    of = [plus(affine(v, w[r], b[r]), affine(h, u[r])) for r in rows]
    i, f, o = (sigmoid(x) for x in of[:3])
    c = plus(times(f, c), times(i, slow_tanh(of[3])))
    return times(o, slow_tanh(c)) + c


def linear_caru(d_in, d_hidden):
    return CARUCell(d_in, d_hidden, "linear")


KINDS = [
    (GRU, slow_gru),
    (CARUCell, slow_caru),
    (linear_caru, slow_caru),
    (MGU, slow_mgu),
    (LSTM, slow_lstm),
]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize(("kind", "slow"), KINDS)
def test_cells_read_sentences_as_their_equations_say(kind, slow, history, bidirectional):
    """Also those that are blank: their state is the one before."""
    d_in, width, steps = 3, 5, 8
    lengths = torch.tensor([4, 1, 0, 6, 3])
    model = shaken(Recurrent(kind, d_in, width, bidirectional))
    v = torch.randn(len(lengths), steps, d_in, dtype=torch.float64)
    whole = model.forwards.state_blocks * width
    before = (
        torch.randn(1 + bidirectional, len(lengths), whole, dtype=torch.float64)
        if history
        else None
    )
    states, last = model(v, lengths, before)
    assert states.shape == (len(lengths), steps, width * (1 + bidirectional)) and last.shape == (
        1 + bidirectional,
        len(lengths),
        whole,
    )
    for row, length in enumerate(lengths.tolist()):
        for side, cell in enumerate([model.forwards] + [model.backwards] * bidirectional):
            h = before[side, row].tolist() if history else None
            for t in range(length)[:: -1 if side else 1]:
                h = slow(cell, v[row, t].tolist(), h)
                torch.testing.assert_close(
                    states[row, t, side * width : (side + 1) * width].tolist(),
                    h[:width],
                    rtol=1e-12,
                    atol=1e-12,
                )
            torch.testing.assert_close(
                last[side, row].tolist(), h or [0.0] * whole, rtol=1e-12, atol=1e-12
            )
            assert (
                states[row, length:, side * width : (side + 1) * width] == last[side, row, :width]
            ).all(), "padding changed a state"


@pytest.mark.parametrize(("kind", "slow"), KINDS)
def test_a_cell_by_itself_is_called_as_torchs(kind, slow):
    cell = shaken(kind(3, 5))
    v, h = (
        torch.randn(2, 3, dtype=torch.float64),
        torch.randn(2, 5 * cell.state_blocks, dtype=torch.float64),
    )
    for row in range(2):
        for before in (None, h):
            expected = slow(cell, v[row].tolist(), None if before is None else before[row].tolist())
            torch.testing.assert_close(
                cell(v, before)[row].tolist(), expected, rtol=1e-12, atol=1e-12
            )
            torch.testing.assert_close(
                cell(v[row], None if before is None else before[row]).tolist(),
                expected,
                rtol=1e-12,
                atol=1e-12,
            )


def test_the_lstm_is_torchs():
    cell, theirs = shaken(LSTM(3, 4)), nn.LSTMCell(3, 4).double()
    v, h = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    order = torch.cat(
        [torch.arange(8), torch.arange(12, 16), torch.arange(8, 12)]
    )  # theirs: i, f, c, o
    with torch.no_grad():
        for own, other in (
            (cell.input.weight, theirs.weight_ih),
            (cell.state.weight, theirs.weight_hh),
            (cell.input.bias, theirs.bias_ih),
        ):
            other.copy_(own[order])
        theirs.bias_hh.zero_()
        torch.testing.assert_close(cell(v, h), torch.cat(theirs(v, (h[:, :4], h[:, 4:])), dim=-1))


def test_the_golden_step_of_a_caru_cell():
    """models.md section 10."""
    cell = CARUCell(input_size=1, hidden_size=1).double()
    values = {
        "input.weight": [[0.5], [0.7]],
        "input.bias": [0.1, 0.05],
        "state.weight": [[0.3], [-0.4]],
        "state.bias": [-0.2, 0.0],
    }
    cell.load_state_dict(
        {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    )
    x = cell.inputs(torch.ones(1, 1, dtype=torch.float64))
    assert x[0, 0].item() == pytest.approx(0.6)
    h = torch.full((1, 1), 0.8, dtype=torch.float64)
    n, gate = cell.parts(x, h, cell.state)
    assert (n.item(), gate.item()) == (
        pytest.approx(0.5649, abs=5e-7),
        pytest.approx(0.391186, abs=5e-7),
    )
    assert (
        cell_step([cell], 1, torch.float64)(x, h).item()
        == cell(torch.ones(1, 1).double(), h).item()
        == pytest.approx(0.708032, abs=5e-7)
    )
    assert cell(torch.ones(1, 1).double()).item() == pytest.approx(0.537050, abs=5e-7)
    cell.first_step = "linear"
    assert cell(torch.ones(1, 1).double()).item() == pytest.approx(0.6)


def test_caru_has_the_audited_number_of_parameters(shared):
    """reference/parameter_counts.py: 2EH + 2H² + 4H, two thirds of a GRU's."""
    with contextlib.redirect_stdout(io.StringIO()):
        audit = runpy.run_path(str(shared / "reference" / "parameter_counts.py"))
    with torch.device("meta"):
        found = [
            sum(p.numel() for p in module.parameters())
            for module in (CARUCell(256, 1024), CARU(256, 1024, 2, bidirectional=True))
        ]
    assert found[0] == audit["caru"](256, 1024) == 2_625_536
    assert found[1] == 2 * audit["caru"](256, 1024) + 2 * audit["caru"](2048, 1024)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_caru_layers_are_called_as_torchs_gru(batch_first, history, bidirectional):
    """Shapes as nn.GRU's; packed, masked and single sequences give the same, and what the
    equations say; padding freezes the states.
    """
    d_in, width, layers, n = 3, 4, 2, 1 + bidirectional
    model = shaken(CARU(d_in, width, layers, batch_first=batch_first, bidirectional=bidirectional))
    theirs = nn.GRU(
        d_in, width, layers, batch_first=batch_first, bidirectional=bidirectional
    ).double()
    v = torch.randn(len(LENGTHS), 6, d_in, dtype=torch.float64)
    hx = torch.randn(layers * n, len(LENGTHS), width, dtype=torch.float64) if history else None
    mask = torch.arange(6) < LENGTHS[:, None]
    turned = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))
    masked, last = model(turned(v), hx, turned(mask))
    packed, packed_last = model(
        nn.utils.rnn.pack_padded_sequence(
            turned(v), LENGTHS, batch_first=batch_first, enforce_sorted=False
        ),
        hx,
    )
    unpacked, lengths = nn.utils.rnn.pad_packed_sequence(packed, batch_first=batch_first)
    assert torch.equal(lengths, LENGTHS) and torch.equal(packed_last, last)
    assert torch.equal(turned(unpacked)[mask], turned(masked)[mask])
    plain, plain_last = model(turned(v), hx)
    for found, other in zip((plain, plain_last), theirs(turned(v), hx), strict=True):
        assert found.shape == other.shape
    masked = turned(masked)
    for row, length in enumerate(LENGTHS.tolist()):
        x = v[row, :length].tolist()
        for index, layer in enumerate(model.layers):
            sides = []
            for side, cell in enumerate([layer.forwards] + [layer.backwards] * bidirectional):
                h, found = hx[index * n + side, row].tolist() if history else None, {}
                for t in range(length)[:: -1 if side else 1]:
                    h = found[t] = slow_caru(cell, x[t], h)
                torch.testing.assert_close(
                    last[index * n + side, row].tolist(), h, rtol=1e-12, atol=1e-12
                )
                sides.append([found[t] for t in range(length)])
            x = [sum(parts, []) for parts in zip(*sides, strict=True)]
        torch.testing.assert_close(masked[row, :length].tolist(), x, rtol=1e-12, atol=1e-12)
        single, single_last = model(v[row, :length], None if hx is None else hx[:, row])
        assert single.shape == (length, n * width) and single_last.shape == (layers * n, width)
        torch.testing.assert_close(single, masked[row, :length], rtol=1e-12, atol=1e-12)
        assert (masked[row, length:, :width] == last[(layers - 1) * n, row]).all(), (
            "padding changed a state"
        )


def test_caru_refuses_masks_that_it_cannot_follow():
    model, v = CARU(3, 4, batch_first=True), torch.randn(1, 3, 3)
    with pytest.raises(ValueError, match="holes"):
        model(v, mask=torch.tensor([[True, False, True]]))
    packed = nn.utils.rnn.pack_padded_sequence(v, torch.tensor([3]), batch_first=True)
    with pytest.raises(ValueError, match="packed"):
        model(packed, mask=torch.ones(1, 3, dtype=torch.bool))


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
        step = cell_step([cell], 2, torch.float64)
        assert (step(cell.inputs(v), h) - theirs(v, h)).abs().max() > 1e-3
        x = cell.inputs(v)
        x[:, :4] = 1e3
        bias = torch.zeros(12, dtype=torch.float64)
        bias[:4] = 1e3
        torch.testing.assert_close(
            step(x, h),
            torch.gru_cell(v, h, theirs.weight_ih, theirs.weight_hh, bias, torch.zeros_like(bias)),
        )


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS])
def test_padding_costs_no_gradient_and_batches_equal_their_sentences(kind):
    model = shaken(Recurrent(kind, 3, 4, bidirectional=True))
    v = torch.randn(len(LENGTHS), 6, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(len(LENGTHS), 6, 8, dtype=torch.float64)

    def gradients(rows):
        total = torch.zeros((), dtype=torch.float64)
        for row in rows:
            states, last = model(v[row], LENGTHS[row])
            real = torch.arange(states.size(1)) < LENGTHS[row][:, None]
            total = (
                total + (states * weight[row, : states.size(1)])[real].sum() + last.square().sum()
            )
        return torch.autograd.grad(total, [v, *model.parameters()])

    everything = [torch.arange(len(LENGTHS))]
    together = gradients(everything)
    real = torch.arange(6) < LENGTHS[:, None]
    assert (together[0][~real] == 0).all() and (together[0][real] != 0).all()
    total = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(LENGTHS.tolist()):
        states, last = model(v[row : row + 1, :length], LENGTHS[row : row + 1])
        total = total + (states * weight[row : row + 1, :length]).sum() + last.square().sum()
    for found, alone in zip(
        together, torch.autograd.grad(total, [v, *model.parameters()]), strict=True
    ):
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

    fast = states(LoopProduct(matrix, 7, bias))  # more uses were announced than come
    plain = states(lambda h: h @ matrix + (0 if bias is None else bias))
    for steps in (
        [4],
        [1],
        [0, 3],
        [4],
    ):  # of one graph, again and again: nothing of an earlier pass may stay
        losses = [sum(found[t].square().sum() for t in steps) for found in (fast, plain)]
        for a, b in zip(
            *(torch.autograd.grad(loss, leaves, retain_graph=True) for loss in losses), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    (a,), (b,) = (
        torch.autograd.grad(found[2].sum(), [x], retain_graph=True) for found in (fast, plain)
    )  # the matrix is not asked for
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
        if function in {
            torch.ops.aten.mm.default,
            torch.ops.aten.bmm.default,
            torch.ops.aten.addmm.default,
            torch.ops.aten.baddbmm.default,
        }:
            self.shapes.append(tuple(out.shape))
        return out


@pytest.mark.parametrize("cell", [GRU, LSTM])
def test_products_that_are_compiled_have_few_numbers_of_rows_and_the_states_are_the_same(cell):
    """States, last states and gradients, sentences blank, of one word, and longer."""
    torch.manual_seed(3)
    model = shaken(Recurrent(cell, 3, 5, bidirectional=True))
    v, lengths = torch.randn(45, 9, 3, dtype=torch.float64), torch.randint(0, 10, (45,))
    lengths[:2] = torch.tensor([9, 0])
    found = []
    for narrow in (False, True):
        x = v.clone().requires_grad_()
        with (
            Products() as seen,
            torch.autocast("cpu", torch.bfloat16, enabled=narrow),
        ):  # which leaves 64 bits as they are
            states, last = model(x, lengths)
        loss = states.square().sum() + (last * last.detach().cos()).sum()
        found.append([states, last, *torch.autograd.grad(loss, [x, *model.parameters()])])
        rows = {shape[1] for shape in seen.shapes if len(shape) == 3}
        assert (rows <= {32, 45}) == narrow
    for plain, fewer in zip(*found, strict=True):
        torch.testing.assert_close(fewer, plain, rtol=1e-12, atol=1e-12)


def test_a_matrix_has_one_gradient_product_however_long_the_loop():
    """And none of the products has rows for padding."""
    width = 7
    model = Recurrent(GRU, 3, width, bidirectional=True)
    with Products() as seen:
        model(torch.randn(2, 10, 3), torch.tensor([4, 9]))[0].sum().backward()
    assert (
        seen.shapes.count((2, width, 2 * width)) == 1 and seen.shapes.count((2, width, width)) == 1
    )
    assert (
        seen.shapes.count((3 * width, 3)) == 2
    )  # each direction's input side: one product for the gradient of its matrix
    assert (
        seen.shapes.count((4 + 9, 3 * width)) == 2
    )  # and one forward, over all words (the inputs need no gradient)
    assert [shape[1] for shape in seen.shapes if shape[0] == 2 and shape[2] == 2 * width] == [
        2
    ] * 4 + [1] * 5 + [width]  # of the state, forward


def test_a_loops_graph_is_freed_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        product = LoopProduct(torch.randn(3, 3, requires_grad=True), 4)
        h = torch.randn(2, 3)
        for _ in range(4):
            h = product(h).tanh()
        kept = weakref.ref(product._inputs[2])
        assert kept() is not None
        del product, h
        assert kept() is None
    finally:
        gc.enable()


def slow_weights(attention, s, states):
    query, v = affine(s, attention.query.weight.tolist()), attention.score.weight[0].tolist()
    return softmax(
        [
            sum(times(v, slow_tanh(plus(query, affine(h, attention.key.weight.tolist())))))
            for h in states
        ]
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_additive_attention_equals_its_equation(rows):
    attention = shaken(AdditiveAttention(5, 4, 6))
    states, s = (
        torch.randn(len(LENGTHS), 6, 4, dtype=torch.float64),
        torch.randn(rows * len(LENGTHS), 5, dtype=torch.float64),
    )
    attend = attention.loop(
        attention.prepare(states), visible_positions(LENGTHS, 6), 2, torch.float64
    )
    alpha = attend(s)
    assert alpha.shape == (len(LENGTHS), rows, 6)
    for b, length in enumerate(LENGTHS.tolist()):
        assert (alpha[b, :, length:] == 0).all()
        for k in range(rows):
            expected = slow_weights(
                attention, s[b * rows + k].tolist(), states[b, :length].tolist()
            )
            torch.testing.assert_close(
                alpha[b, k, :length].tolist(), expected, rtol=1e-12, atol=1e-13
            )
    blind = attention.loop(
        attention.prepare(states),
        visible_positions(torch.tensor([4, 0, 6, 3]), 6),
        1,
        torch.float64,
    )(s)
    torch.testing.assert_close(blind[1], torch.full_like(blind[1], 1 / 6))


def test_additive_attention_has_the_gradients_of_its_equation():
    attention = shaken(AdditiveAttention(3, 2, 4))
    leaves = [
        torch.randn(2, 5, 2, dtype=torch.float64),
        torch.randn(4, 3, dtype=torch.float64),
        *(p.detach() for p in attention.parameters()),
    ]
    names = [name for name, _ in attention.named_parameters()]

    def twice(states, s, *parameters):
        class Steps(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = attention

            def forward(self):
                attend = self.attention.loop(
                    self.attention.prepare(states),
                    visible_positions(torch.tensor([5, 3]), 5),
                    2,
                    torch.float64,
                )
                return attend(s) + 2 * attend(s.flip(0)).square()

        return torch.func.functional_call(
            Steps(), {f"attention.{n}": p for n, p in zip(names, parameters, strict=True)}, ()
        )

    assert torch.autograd.gradcheck(twice, [leaf.requires_grad_() for leaf in leaves])


def test_attention_keeps_no_numbers_for_every_pair_of_positions():
    """Backward computes the (B, K, S, A) numbers again; kept is what was there anyway, the keys."""
    b, s, a, steps = 3, 5, 64, 4
    attention = AdditiveAttention(8, 8, a)
    keys = attention.prepare(torch.randn(b, s, 8))
    large = set()

    def pack(tensor):
        if tensor.numel() >= b * s * a:
            large.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attend = attention.loop(keys, None, steps, torch.float32)
        sum(attend(torch.randn(b, 8)).square().sum() for _ in range(steps)).backward()
    assert large == {keys.data_ptr()}
