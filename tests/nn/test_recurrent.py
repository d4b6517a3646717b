"""Recurrent blocks against their equations, one step at a time, and against plain autograd."""

import contextlib
import gc
import itertools
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.models.caru import CARU, CARUCell
from nmtkit.nn import cpu
from nmtkit.nn.loops import LoopProduct
from nmtkit.nn.recurrent import GRU, LSTM, MGU, Recurrent, cell_step
from tests.models.slow import CELLS

LENGTHS = torch.tensor([4, 1, 6, 3])


def shaken(module, seed=1):
    """Return a module in float64, every parameter moved off its initial value."""
    torch.manual_seed(seed)
    module = module.double()
    for parameter in module.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return module


def slow_step(cell, v, h):
    """Return the next state of a cell by its equations; h = None at the first step."""
    w = {f"cell.{name}": p.tolist() for name, p in cell.named_parameters()}
    options = {"first_step": cell.first_step} if isinstance(cell, CARUCell) else {}
    step = CELLS["caru" if options else type(cell).__name__.lower()]
    return step(w, "cell", h, ("cell.input.weight", v), **options)


def slow_states(cell, inputs, h, backwards):
    """Return the state of a cell after each input, and its last state."""
    states = {}
    for t in range(len(inputs))[:: -1 if backwards else 1]:
        h = states[t] = slow_step(cell, inputs[t], h)
    return [states[t] for t in range(len(inputs))], h


def cells_of(layer):
    return [layer.forwards, *([layer.backwards] if layer.backwards else [])]


def linear_caru(d_in, d_hidden):
    return CARUCell(d_in, d_hidden, "linear")


def same(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


KINDS = [GRU, CARUCell, linear_caru, MGU, LSTM]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_states_equal_the_equations_of_the_cell(kind, history, bidirectional):
    """Also of empty sentences: their state is the initial state."""
    width, steps, sides = 5, 8, 1 + bidirectional
    lengths = torch.tensor([4, 1, 0, 6, 3])
    model = shaken(Recurrent(kind, 3, width, bidirectional))
    v = torch.randn(len(lengths), steps, 3, dtype=torch.float64)
    whole = model.forwards.state_blocks * width
    before = torch.randn(sides, len(lengths), whole, dtype=torch.float64) if history else None
    states, last = model(v, lengths, before)
    assert states.shape == (len(lengths), steps, width * sides)
    assert last.shape == (sides, len(lengths), whole)
    for row, length in enumerate(lengths.tolist()):
        for side, cell in enumerate(cells_of(model)):
            of_side = states[row, :, side * width : (side + 1) * width]
            h = before[side, row].tolist() if history else None
            expected, h = slow_states(cell, v[row, :length].tolist(), h, backwards=side == 1)
            same(of_side[:length].tolist(), [state[:width] for state in expected])
            same(last[side, row].tolist(), h or [0.0] * whole)
            assert (of_side[length:] == last[side, row, :width]).all(), "padding changed a state"


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_single_cell_is_called_like_torchs(kind, history):
    cell = shaken(kind(3, 5))
    v = torch.randn(2, 3, dtype=torch.float64)
    h = torch.randn(2, 5 * cell.state_blocks, dtype=torch.float64) if history else None
    rows = [None, None] if h is None else h
    expected = [
        slow_step(cell, x.tolist(), None if row is None else row.tolist())
        for x, row in zip(v, rows, strict=True)
    ]
    same(cell(v, h).tolist(), expected)
    same([cell(x, row).tolist() for x, row in zip(v, rows, strict=True)], expected)


def test_caru_step_has_the_golden_numbers():
    """Chan, Ke & Im 2020, Eq. 4, by hand."""
    cell = CARUCell(input_size=1, hidden_size=1).double()
    values = {
        "input.weight": [[0.5], [0.7]],
        "input.bias": [0.1, 0.05],
        "state.weight": [[0.3], [-0.4]],
        "state.bias": [-0.2, 0.0],
    }
    cell.load_state_dict({name: torch.tensor(value).double() for name, value in values.items()})
    v, h = torch.ones(1, 1).double(), torch.full((1, 1), 0.8).double()
    x = cell.inputs(v)
    n, gate = cell.parts(x, h, cell.state)
    golden = partial(pytest.approx, abs=5e-7)
    assert [x[0, 0].item(), n.item(), gate.item()] == golden([0.6, 0.5649, 0.391186])
    step = cell_step([cell], 1, torch.float64)(x, h).item()
    assert step == cell(v, h).item() == golden(0.708032)
    assert cell(v).item() == golden(0.537050)
    cell.first_step = "linear"
    assert cell(v).item() == pytest.approx(0.6)


def test_parameter_count_of_caru_equals_the_audit(audit):
    """reference/parameter_counts.py: 2EH + 2H² + 4H, two thirds of a GRU's."""
    with torch.device("meta"):
        cell, layers = CARUCell(256, 1024), CARU(256, 1024, 2, bidirectional=True)
    sizes = [sum(p.numel() for p in module.parameters()) for module in (cell, layers)]
    of_cell = audit["caru"](256, 1024)
    assert sizes == [of_cell, 2 * of_cell + 2 * audit["caru"](2048, 1024)]
    assert of_cell == 2_625_536


@pytest.fixture(params=itertools.product([False, True], repeat=3), ids=str)
def layers(request):
    """Two CARU layers with an input, first states or none, and a mask in the layout of the layers."""
    batch_first, history, bidirectional = request.param
    sides, rows = 1 + bidirectional, len(LENGTHS)
    options = {"batch_first": batch_first, "bidirectional": bidirectional}
    model = shaken(CARU(3, 4, 2, **options))
    turned = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))
    v = torch.randn(rows, 6, 3, dtype=torch.float64)
    hx = torch.randn(2 * sides, rows, 4, dtype=torch.float64) if history else None
    mask = torch.arange(6) < LENGTHS[:, None]
    masked, last = model(turned(v), hx, turned(mask))
    return SimpleNamespace(
        model=model,
        options=options,
        sides=sides,
        turned=turned,
        v=v,
        hx=hx,
        mask=mask,
        masked=turned(masked),
        last=last,
    )


def test_caru_layers_return_the_shapes_of_torchs_gru(layers):
    theirs, x = nn.GRU(3, 4, 2, **layers.options).double(), layers.turned(layers.v)
    for found, other in zip(layers.model(x, layers.hx), theirs(x, layers.hx), strict=True):
        assert found.shape == other.shape


def test_caru_layers_read_packed_sequences_as_masked_ones(layers):
    batch_first, pad = layers.options["batch_first"], nn.utils.rnn.pad_packed_sequence
    sequence = nn.utils.rnn.pack_padded_sequence(
        layers.turned(layers.v), LENGTHS, batch_first=batch_first, enforce_sorted=False
    )
    packed, last = layers.model(sequence, layers.hx)
    unpacked, lengths = pad(packed, batch_first=batch_first)
    assert torch.equal(lengths, LENGTHS) and torch.equal(last, layers.last)
    assert torch.equal(layers.turned(unpacked)[layers.mask], layers.masked[layers.mask])


def test_caru_layers_equal_the_equations(layers):
    for row, length in enumerate(LENGTHS.tolist()):
        x = layers.v[row, :length].tolist()
        for index, layer in enumerate(layers.model.layers):
            sides = []
            for side, cell in enumerate(cells_of(layer)):
                number = index * layers.sides + side
                h = None if layers.hx is None else layers.hx[number, row].tolist()
                states, h = slow_states(cell, x, h, backwards=side == 1)
                same(layers.last[number, row].tolist(), h)
                sides.append(states)
            x = [sum(parts, []) for parts in zip(*sides, strict=True)]
        same(layers.masked[row, :length].tolist(), x)
        padding = layers.masked[row, length:, :4]
        assert (padding == layers.last[layers.sides, row]).all(), "padding changed a state"


def test_caru_layers_read_single_sequences_as_rows_of_a_batch(layers):
    for row, length in enumerate(LENGTHS.tolist()):
        hx = None if layers.hx is None else layers.hx[:, row]
        states, last = layers.model(layers.v[row, :length], hx)
        assert last.shape == (2 * layers.sides, 4)
        same(states, layers.masked[row, :length])


def test_caru_refuses_masks_with_holes_or_of_packed_sequences():
    model, v = CARU(3, 4, batch_first=True), torch.randn(1, 3, 3)
    with pytest.raises(ValueError, match="holes"):
        model(v, mask=torch.tensor([[True, False, True]]))
    packed = nn.utils.rnn.pack_padded_sequence(v, torch.tensor([3]), batch_first=True)
    with pytest.raises(ValueError, match="packed"):
        model(packed, mask=torch.ones(1, 3, dtype=torch.bool))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_gets_no_gradient_and_batch_gradients_sum_over_sentences(kind):
    model = shaken(Recurrent(kind, 3, 4, bidirectional=True))
    v = torch.randn(len(LENGTHS), 6, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(len(LENGTHS), 6, 8, dtype=torch.float64)
    real = torch.arange(6) < LENGTHS[:, None]

    def gradients(*batches):
        total = 0
        for rows, steps in batches:
            states, last = model(v[rows, :steps], LENGTHS[rows])
            of_words = (states * weight[rows, :steps])[real[rows, :steps]]
            total = total + of_words.sum() + last.square().sum()
        return torch.autograd.grad(total, [v, *model.parameters()])

    together = gradients((slice(None), 6))
    assert (together[0][~real] == 0).all() and (together[0][real] != 0).all()
    alone = gradients(*((slice(i, i + 1), n) for i, n in enumerate(LENGTHS.tolist())))
    for found, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("leading", [(), (2,)])
@pytest.mark.parametrize("biased", [False, True])
def test_loop_product_has_the_gradients_of_plain_products(leading, biased):
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

    def compare(steps, *leaves):
        of_both = [
            torch.autograd.grad(
                sum(found[t].square().sum() for t in steps), leaves, retain_graph=True
            )
            for found in (fast, plain)
        ]
        for found, expected in zip(*of_both, strict=True):
            same(found, expected)

    for steps in ([4], [1], [0, 3], [4]):  # of one graph: nothing of an earlier pass may stay
        compare(steps, *leaves)
    compare([2], x)
    compare([0], matrix)


class Products(TorchDispatchMode):
    """Collect the shapes of results of matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in {"mm", "bmm", "addmm", "baddbmm"}:
            self.shapes.append(tuple(out.shape))
        return out


def states_and_gradients(model, v, lengths, watch=contextlib.nullcontext()):  # noqa: B008
    x = v.clone().requires_grad_()
    with watch:
        states, last = model(x, lengths)
    loss = states.square().sum() + (last * last.detach().cos()).sum()
    return [states, last, *torch.autograd.grad(loss, [x, *model.parameters()])]


@pytest.mark.parametrize("cell", [GRU, LSTM])
def test_bfloat16_training_uses_few_row_counts_and_gives_the_same_states(cell):
    """Autocast leaves float64 as it is. Sentences are empty, of one word, and longer."""
    torch.manual_seed(3)
    model = shaken(Recurrent(cell, 3, 5, bidirectional=True))
    v, lengths = torch.randn(45, 9, 3, dtype=torch.float64), torch.randint(0, 10, (45,))
    lengths[:2] = torch.tensor([9, 0])
    found = []
    for narrow in (False, True):
        products = Products()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            found.append(states_and_gradients(model, v, lengths, products))
        rows = {shape[1] for shape in products.shapes if len(shape) == 3}
        assert (rows <= {32, 45}) == narrow
    for plain, fewer in zip(*found, strict=True):
        same(fewer, plain)


@pytest.mark.parametrize("cell", [GRU, LSTM])
def test_steps_over_all_rows_as_on_a_gpu_give_the_same_states(cell, monkeypatch):
    torch.manual_seed(3)
    model = shaken(Recurrent(cell, 3, 5, bidirectional=True))
    v, lengths = torch.randn(7, 6, 3, dtype=torch.float64), torch.tensor([3, 5, 0, 1, 5, 4, 2])
    assert cpu.reads_at_once(lengths)
    plain = states_and_gradients(model, v, lengths)
    monkeypatch.setattr(cpu, "reads_at_once", lambda x: False)
    for found, expected in zip(states_and_gradients(model, v, lengths), plain, strict=True):
        same(found, expected)


def test_matrix_has_one_gradient_product_for_the_whole_loop():
    """No product has rows for padding."""
    width = 7
    model = Recurrent(GRU, 3, width, bidirectional=True)
    with Products() as seen:
        model(torch.randn(2, 10, 3), torch.tensor([4, 9]))[0].sum().backward()
    count = seen.shapes.count
    assert count((2, width, 2 * width)) == count((2, width, width)) == 1
    # Each direction's input side: one product for the gradient of its matrix, and one forward,
    # over all words (the inputs need no gradient).
    assert count((3 * width, 3)) == count((4 + 9, 3 * width)) == 2
    of_state = [shape[1] for shape in seen.shapes if shape[0] == 2 and shape[2] == 2 * width]
    assert of_state == [2] * 4 + [1] * 5 + [width]  # the last one is the gradient's


def test_graph_of_a_loop_is_freed_without_the_garbage_collector():
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
