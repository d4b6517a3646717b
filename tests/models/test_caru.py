"""CARU-gated attention (Im & Chan 2024): parameter counts by hand, equations step by step, and the
model with its parts switched off.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from nmtkit import settings
from nmtkit.errors import ConfigError
from nmtkit.measures import macs
from nmtkit.models.base import Vocabularies
from nmtkit.models.caru import attention
from nmtkit.models.caru.gates import CARUGate
from nmtkit.models.caru.settings import WITHOUT_EFFECT
from nmtkit.models.caru.unit import CARUCell
from nmtkit.models.variants import build_model, count_parameters, load_variant
from nmtkit.nn.capture import capture
from nmtkit.nn.dropout import seed_dropout
from nmtkit.nn.linear import inference, pack
from nmtkit.text.vocabulary import BOS, EOS
from tests.models import contract
from tests.models.slow import (
    CELLS,
    affine,
    block,
    caru,
    caru_parts,
    dropped,
    mixed,
    plus,
    sigmoid,
    softmax,
    tanh,
    times,
)

BASELINE = "rnnsearch"


def lin(i, o):
    return i * o + o


def cell_count(kind, i, h):
    """Return the parameters of a cell with i inputs and h states."""
    return {
        "caru": 2 * (lin(i, h) + lin(h, h)),
        "gru": 3 * (i * h + h * h) + h,
        "mgu": 2 * lin(i, h) + 2 * h * h,
        "lstm": 4 * (lin(i, h) + h * h),
    }[kind]


def count(s, v):
    """Return the parameters as `caru_model` of reference/parameter_counts.py does, with the other
    cells, gates, modes, readouts and ties.
    """
    e, h, a = s.d_embedding, s.d_hidden, s.alignment_width or s.d_hidden
    sides = 2 if s.bidirectional else 1
    g = h if s.caatt and s.gate == "gru-inv" else sides * h
    read = {"off": g, "embed": e}.get(s.caembed, h)
    entry = {"embed": e, "replace": 0}.get(s.caembed, e + read)
    total = sides * cell_count(s.cell, e, h) + (lin(h, h) if s.bidirectional else 0)
    if s.caatt and s.gate == "caru":
        total += lin(h, g) + lin(g, g) + lin(g + h, g)
    elif s.caatt:
        total += 3 * (h + sides * h) * g + 3 * g
    total += lin(h + g, a) + a if s.alignment == "additive" else lin(h + g, 1)
    if s.caembed != "off":
        total += cell_count("caru", read, read) + (lin(g, read) if g != read else 0)
    total += e * h if s.caembed == "replace" else cell_count(s.cell, entry, h)
    if s.readout == "maxout":
        total += (e + h + g) * h + (h // 2) * e
    tables = {"none": 3, "target": 2, "all": 1}[s.tie] * e
    if s.tie == "none" and s.readout == "linear":
        tables += h - e
    return total + v * (tables + s.softmax_bias)


class Slow:
    """One sentence, one step at a time; vectors are lists of floats."""

    def __init__(self, weights, s):
        self.w, self.s = weights, s
        self.opened = []
        """How open CAEmbed's gate is at each step."""

    def word(self, side, y):
        """The vector of a word; its variance is 1 with unit embeddings."""
        scale = math.sqrt(self.s.d_embedding) if self.s.unit_embeddings else 1
        return dropped([scale * x for x in self.w[f"{side}_table.weight"][y]], self.s.dropout)

    def linear(self, name, x):
        return affine(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def blocks(self, name, x, number):
        """The products of x with the blocks of a matrix."""
        w, b = self.w[f"{name}.weight"], self.w.get(f"{name}.bias")
        return [affine(x, block(w, i, number), b and block(b, i, number)) for i in range(number)]

    def caru(self, name, state, *inputs):
        return caru(self.w, name, state, *inputs, first_step=self.s.first_step)

    def cell(self, name, state, *inputs):
        """The cell of encoder and decoder; the state of an LSTM is [h | c]."""
        if self.s.cell == "caru":
            return self.caru(name, state, *inputs)
        return CELLS[self.s.cell](self.w, name, state, *inputs)

    def read(self, src):
        """h_i, and the first state of the decoder."""
        found, ends, h = {}, {}, self.s.d_hidden
        for name in ["forwards", "backwards"][: 2 if self.s.bidirectional else 1]:
            state, found[name] = None, {}
            for i in range(len(src))[:: -1 if name == "backwards" else 1]:
                word = (f"encoder.{name}.input.weight", self.word("src", src[i]))
                state = self.cell(f"encoder.{name}", state, word)
                found[name][i] = state[:h]
            ends[name] = state
        states = [sum((side[i] for side in found.values()), []) for i in range(len(src))]
        if not self.s.bidirectional:
            return states, ends["forwards"]
        return states, tanh(self.linear("initial", ends["backwards"][:h])) + ends["backwards"][h:]

    def refine(self, s, h, t):
        """g_i, and the mean of its gate."""
        if self.s.gate == "caru":
            return self.caru_gate(s, h, t)
        if self.s.gate == "gru-inv":
            return self.gru_gate(s, h, "state", "source")
        return self.gru_gate(h, s, "source", "state")

    def caru_gate(self, s, h, t):
        """Im & Chan 2024, Eqs. 4 and 5. A linear first step has no gate."""
        x, z = self.blocks("attention.gate.state", s, 2)
        if t == 0 and self.s.caatt_first == "linear":
            return x, math.nan
        n, of_z = self.blocks("attention.gate.source", h, 2)
        gate = times(sigmoid(x), sigmoid(plus(z, of_z)))
        g = mixed(gate, h, tanh(plus(x, n, self.w["attention.gate.bias"])))
        return g, sum(gate) / len(gate)

    def gru_gate(self, history, entry, history_name, entry_name):
        """Zhang et al. 2017: a GRU whose history is the decoder's or the source's state."""
        of_history = self.blocks(f"attention.gate.{history_name}", history, 2)
        *of_entry, new = self.blocks(f"attention.gate.{entry_name}", entry, 3)
        reset, update = (sigmoid(plus(*both)) for both in zip(of_history, of_entry, strict=True))
        candidate = affine(times(reset, history), self.w["attention.gate.candidate.weight"])
        return mixed(update, history, tanh(plus(new, candidate))), sum(update) / len(update)

    def attend(self, s, states, t):
        """α = softmax(N e) and c = Σ α_i g_i; e = vᵀ tanh(W [s|g]), or tanh(w [s|g])."""
        prefix, gates = "attention", None
        if self.s.caatt:
            prefix = "attention.attention"
            states, gates = zip(*(self.refine(s, h, t) for h in states), strict=True)
        scores, query = [], self.linear(f"{prefix}.query", s)
        for g in states:
            hidden = tanh(plus(query, affine(g, self.w[f"{prefix}.key.weight"])))
            bounded = self.s.alignment == "bounded"
            v = [1.0] if bounded else self.w[f"{prefix}.score.weight"][0]
            scores.append(sum(times(v, hidden)))
        n = len(states) if self.s.n_scale == "length" else self.s.n_constant
        alpha = softmax([(1 if self.s.attention_norm == "softmax" else n) * e for e in scores])
        c = plus(*([a * x for x in g] for a, g in zip(alpha, states, strict=True)))
        return alpha, c, gates

    def next_state(self, state, words, written, c):
        """The decoder's state; CAEmbed reads the last words or states, then c."""
        mode, e, read = self.s.caembed, words[-1], c
        if mode != "off":
            last = self.linear("embed.project", c) if "embed.project.weight" in self.w else c
            if mode == "replace":
                last = plus(last, affine(e, self.w["word.weight"]))
            read = None
            for v in (words if mode == "embed" else written)[-self.s.history :]:
                read = self.caru("embed.cell", read, ("embed.cell.input.weight", v))
            _, gate = caru_parts(
                self.w, "embed.cell", read, *self.blocks("embed.cell.input", last, 2)
            )
            self.opened.append(sum(gate) / len(gate))  # to the context
            read = self.caru("embed.cell", read, ("embed.cell.input.weight", last))
        if mode == "replace":
            return read
        if mode == "embed":
            return self.cell("cell", state, ("cell.input.weight", read))
        return self.cell("cell", state, ("cell.input.weight", e), ("cell_context.weight", read))

    def read_out(self, e, s, c, new):
        if self.s.readout == "linear":
            return self.linear("output", dropped(new, self.s.dropout))
        units = affine(e + s + c, self.w["maxout.weight"])
        half = len(units) // 2
        largest = [max(pair) for pair in zip(units[:half], units[half:], strict=True)]
        readout = affine(largest, self.w["readout.weight"])
        return self.linear("output", dropped(readout, self.s.dropout))

    def write(self, src, tgt_in):
        """Logits, attention weights and gates at every target position."""
        states, state = self.read(src)
        width = self.s.d_hidden
        written, words, found = [state[:width]], [], []
        for t, y in enumerate(tgt_in):
            words.append(self.word("tgt", y))
            alpha, c, gates = self.attend(written[-1], states, t)
            state = self.next_state(state, words, written, c)
            logits = self.read_out(words[-1], written[-1], c, state[:width])
            written.append(state[:width])
            found.append((logits, alpha, gates))
        return tuple(map(list, zip(*found, strict=True)))


def slow_logits(weights, s, src, tgt_in):
    return Slow(weights, s).write(src, tgt_in)[0]


def small(variant="caru", **more):
    """Return a model in float64 whose weights are moved off their initial values."""
    return contract.Case(variant).build(**more)


def near(found, expected):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11, equal_nan=True)


RNNSEARCH = {
    "caatt": False,
    "caembed": "off",
    "attention_norm": "softmax",
    "cell": "gru",
    "bidirectional": True,
    "readout": "maxout",
    "unit_embeddings": False,
}


def without_idea(case):
    """Without gate, CAEmbed and L1(exp(Nx)), and with RNNSearch's cell, directions and readout, the
    model is RNNSearch with the same weights.
    """
    kept = [(key, value) for key, value in case.values if key not in WITHOUT_EFFECT]
    model = contract.Case(case.variant, (*kept, *RNNSEARCH.items())).build(alignment="additive")
    s = model.settings
    sizes = {"d_alignment": s.alignment_width}
    sizes |= {name: getattr(s, name) for name in ("d_embedding", "d_hidden", "tie", "softmax_bias")}
    baseline = contract.Case("rnnsearch").build(**sizes)
    with torch.no_grad():
        model.attention.query.bias.zero_()  # RNNSearch has none
        weights, e, h = (
            dict(model.named_parameters(remove_duplicate=False)),
            s.d_embedding,
            s.d_hidden,
        )
        for name, parameter in baseline.named_parameters(remove_duplicate=False):
            if name.endswith("words.bias"):
                parameter.zero_()  # CARU's word embeddings have no bias
            elif name.endswith("words.table.weight"):
                parameter.copy_(weights[f"{name[:3]}_table.weight"])
            elif name == "maxout.weight":
                parameter.copy_(weights[name][:, : e + h])
            elif name == "maxout_context.weight":
                parameter.copy_(weights["maxout.weight"][:, e + h :])
            else:
                parameter.copy_(weights[name])
    for more in (0, 2):
        batch = contract.collate(contract.pairs(), more=more)
        contract.close(contract.full(model, batch), contract.full(baseline, batch))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    ("caatt", "caembed", "printed"),  # in millions, with 7,850 and with 50,000 words
    [
        (False, "off", (21.51, 86.30)),
        (True, "off", (25.71, 90.49)),
        (True, "state", (29.91, 94.69)),
    ],
)
def test_parameter_counts_equal_the_audit_and_table_1(
    audit, caatt, caembed, printed, bidirectional
):
    values = {"caatt": caatt, "caembed": caembed, "bidirectional": bidirectional}
    values["readout"] = "linear"
    for v, millions in zip((7850, 50_000), printed, strict=True):
        with torch.device("meta"):
            model = build_model("caru", values, Vocabularies(v, v, shared=False))
        expected = audit["caru_model"](v, bidirectional, caatt, caembed == "state")
        assert count_parameters(model) == count(model.settings, v) == expected
        if not bidirectional:
            assert expected / 1e6 == pytest.approx(millions, abs=0.005)


def test_incompatible_settings_are_refused():
    vocabularies = Vocabularies(20, 20, shared=True)
    linear = {"tie": "target", "readout": "linear"}
    with pytest.raises(ConfigError, match=r"cannot share weights"):
        build_model("caru", {**linear, "d_embedding": 4, "d_hidden": 6}, vocabularies)
    with pytest.raises(ConfigError, match="even"):
        build_model("gatt", {"d_hidden": 7}, vocabularies)
    same = build_model("caru", {**linear, "d_embedding": 6, "d_hidden": 6}, vocabularies)
    assert same.output.weight is same.tgt_table.weight


def test_presets_of_transformers_are_adapted():
    for preset in ("tiny", "small", "base"):
        sizes = settings.load_preset(preset)["model"]
        for variant in ("caru", "gru-inv", "gatt"):
            values = load_variant(variant).adapt(sizes | {"d_model": 8})
            s = build_model(variant, values, Vocabularies(20, 20, shared=True)).settings
            expected = (8, 16, sizes["dropout"], sizes["tie"])
            assert (s.d_embedding, s.d_hidden, s.dropout, s.tie) == expected


@pytest.mark.parametrize(("variant", "gate"), [("gru-inv", "gru-inv"), ("gatt", "gru")])
def test_comparators_have_their_gate_and_no_idea_of_caru(variant, gate):
    s = small(variant).settings
    assert (s.caatt, s.gate, s.cell, s.caembed) == (True, gate, "gru", "off")
    assert (s.attention_norm, s.unit_embeddings) == ("softmax", False)


def test_initial_weights_of_the_paper_are_normal_with_deviation_001():
    torch.manual_seed(2)
    values = {"initial_weights": "normal", "d_embedding": 32, "d_hidden": 64}
    model = build_model("caru", values, Vocabularies(100, 100, shared=False))
    numbers = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert abs(float(numbers.mean())) < 1e-4
    assert float(numbers.std()) == pytest.approx(0.01, rel=0.01)
    assert all(0.002 < float(p.detach().abs().mean()) < 0.02 for p in model.parameters())


@pytest.fixture
def untrained():
    """A new model with its initial weights."""
    torch.manual_seed(3)
    sizes = {"d_embedding": 64, "d_hidden": 16, "tie": "target"}
    return build_model("caru", sizes, Vocabularies(500, 500, shared=False)).eval()


OPEN = 1 / (1 + math.exp(-2)) / (1 + math.exp(-1))
"""σ(2) σ(1), the initial gate l = σ(x) ⊙ z where words and states are 0."""


def test_gates_of_cells_begin_open(untrained):
    cells = [module for module in untrained.modules() if isinstance(module, CARUCell)]
    assert len(cells) == 4
    for cell in cells:
        x = cell.inputs(torch.zeros(1, cell.input.in_features))
        n, gate = cell.parts(x, torch.zeros(1, cell.d_hidden), cell.state)
        assert not n.any() and gate.tolist() == [pytest.approx([OPEN] * 16)]


@torch.no_grad()
def test_attention_gate_begins_open(untrained):
    gate, states = untrained.attention.gate, torch.zeros(1, 1, 3, 32)
    of_s, of_h = gate.state(torch.zeros(1, 1, 1, 16)), gate.prepare(states)
    torch.testing.assert_close(gate.openness(of_h, of_s), torch.full((1, 1, 3), OPEN))
    assert gate.mix(torch.float32, states, of_h, of_s).abs().amax() < 1e-6


def test_embeddings_begin_with_variance_one(untrained):
    for table in (untrained.src_table, untrained.tgt_table):
        vectors = untrained._words(table, torch.arange(500)[None]).detach()
        assert float(vectors.std()) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("values", [{"n_scale": "length"}, {"n_constant": 100}], ids=str)
def test_sentence_of_100_words_with_large_scores_stays_finite(values):
    model = small(**values, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.attention.parameters():
            parameter.mul_(200)
    hundred = [3 + i % 20 for i in range(99)] + [EOS]
    batch = contract.collate([(hundred, [4, 5, 6, EOS]), ([7, EOS], [8, EOS])])
    logits = contract.full(model, batch)
    logits.square().sum().backward()
    assert logits.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())


@pytest.fixture
def autograd_keeps_everything(monkeypatch):
    """Return a function that lets autograd keep every tensor of a step for the backward pass."""

    def mix(gate, dtype, history, of_h, of_s):
        (n, of_z), (x, z) = of_h.chunk(2, -1), of_s.chunk(2, -1)
        update = torch.sigmoid(x) * torch.sigmoid(of_z + z)
        return (1 - update) * history + update * torch.tanh(n / 2 + x)

    def change():
        def step(module, *tensors):
            return attention.refine_and_attend(module.gate, *tensors)

        monkeypatch.setattr(attention, "_Recomputed", SimpleNamespace(apply=step))
        monkeypatch.setattr(CARUGate, "mix", mix)

    return change


@pytest.mark.parametrize("variant", ["caru", "gru-inv", "gatt"])
def test_recomputing_changes_no_gradient(variant, autograd_keeps_everything):
    model, batch = small(variant, dropout=0.2).train(), contract.collate(contract.pairs())

    def gradients():
        seed_dropout(1, 1)
        return torch.autograd.grad(contract.loss_of(model, batch), list(model.parameters()))

    again = gradients()
    autograd_keeps_everything()
    for found, plain in zip(again, gradients(), strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "values",
    [
        {"caatt_first": "linear", "bidirectional": False},
        {"caembed": "embed", "history": 2},
        {"caembed": "replace"},
        {"caatt": False},
        {"gate": "gru"},
        {"gate": "gru-inv"},
    ],
    ids=str,
)
def test_capture_reads_attention_weights_and_gates(values):
    model, pairs = small(**values), contract.pairs()
    batch = contract.collate(pairs)
    plain = contract.full(model, batch)
    with capture() as captured:
        assert torch.equal(contract.full(model, batch), plain)
    seen = {name: tensors[0] for name, tensors in captured.items()}
    alpha, opened, context, gates = map(
        seen.pop, ("attention", "caembed_gate", "attention_context", "attention_gate"), (None,) * 4
    )
    assert not seen and (gates is not None) == model.settings.caatt
    assert alpha.shape == (len(pairs), 1, *batch.tgt_in.shape[1:], batch.src.size(1))
    assert opened.shape == batch.tgt_in.shape == context.shape[:2]
    if gates is None:
        expected = alpha[:, 0] @ model.encode(batch)["states"]
        near(context, expected)
    for row, (src, tgt) in enumerate(pairs):
        slow = Slow(contract.numbers(model), model.settings)
        _, weights, of_gate = slow.write(src, [BOS, *tgt[:-1]])
        near(opened[row, : len(tgt)], slow.opened)
        real = (row, slice(len(tgt)), slice(len(src)))
        near(alpha[:, 0][real], weights)
        if gates is not None:
            near(gates[real], of_gate)


def test_changed_weights_take_effect_at_the_first_step():
    """All g_i of a linear first step are equal, so that Σα_i g_i is g only while the weights sum to
    one.
    """
    model = small(caatt_first="linear")
    batch = contract.collate([([5, 6, 7, 2], [8, 2])])
    memory = model.encode(batch)
    contexts = []
    for share in (1, 0.25):
        with capture({"attention": lambda weights, share=share: weights * share}) as seen:
            model.decode(batch.tgt_in, memory)
        contexts.append(seen["attention_context"][0][:, 0])
    torch.testing.assert_close(contexts[1], contexts[0] / 4)


@pytest.mark.parametrize("variant", ["caru", "gru-inv", "gatt"])
def test_gradients_in_a_capture_follow_the_changed_weights(variant):
    model, batch = small(variant), contract.collate(contract.pairs())
    parameter = model.attention.gate.state.weight

    def loss():
        with capture({"attention": lambda weights: weights**2}):
            return contract.full(model, batch).square().sum()

    (grad,) = torch.autograd.grad(loss(), [parameter])
    direction, step = torch.randn_like(parameter), 1e-6
    losses = []
    with torch.no_grad():
        for sign in (1, -1):
            parameter.add_(direction, alpha=sign * step)
            losses.append(loss())
            parameter.sub_(direction, alpha=sign * step)
    slope = (losses[0] - losses[1]) / (2 * step)
    torch.testing.assert_close((grad * direction).sum(), slope, rtol=1e-6, atol=1e-8)


def test_backward_keeps_no_tensor_of_every_pair_of_positions(autograd_keeps_everything):
    """Kept tensors would have T times as many numbers as a sentence has positions. They are
    computed again.
    """
    model, batch = (
        small(dtype=torch.float32).train(),
        contract.collate(contract.pairs(count=20, longest=30)),
    )
    h, (b, s) = model.settings.d_hidden, batch.src.shape

    def large():
        found = set()

        def pack(tensor):
            if tensor.dim() == 4 and tensor.numel() >= b * s * h:
                found.add(tensor.data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            logits = contract.full(model, batch)
        logits.sum().backward()
        return len(found)

    assert large() == 2  # the states of the source and their products, once a sentence
    autograd_keeps_everything()
    assert large() > 2 * batch.tgt_in.size(1)


def test_macs_equal_the_closed_formula():
    """A step makes for each source position only the key of the refined state, its score and its
    share.
    """
    e, h, a, v, n, m = 6, 10, 8, 37, 5, 4
    sizes = {"d_embedding": e, "d_hidden": h, "alignment_width": a}
    options = {"bidirectional": False, "readout": "linear", "caatt_first": "linear"}
    model = build_model("caru", sizes | options, Vocabularies(v, v, shared=True))
    found = macs.count_macs(model, n, m)
    # The reader, whose first step needs no state, and the states that CAAtt makes.
    once = n * 2 * e * h + (n - 1) * 2 * h * h + n * 2 * h * h
    gate, embed, cell = 2 * h * h, h * h + 2 * h * h + 2 * h * h, 2 * e * h + 2 * h * h + 2 * h * h
    # The first step attends to everything alike.
    attend = h * a + n * (h * a + a + h)
    steps = m * (gate + embed + cell + h * v) + (m - 1) * attend
    assert found.encode * n == pytest.approx(once, abs=1e-6)
    assert found.step * m == pytest.approx(steps, abs=1e-6)
    # The gradient of what a score sums is an outer product, which is no matrix product.
    assert found.train * m == pytest.approx(3 * (once + steps) - (m - 1) * n * a, abs=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"attention_norm": "l1_exp_nx", "n_scale": "length"},
        {"attention_norm": "softmax", "bidirectional": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", ["caru", "gru-inv", "gatt"])
def test_attention_in_pieces_gives_the_same_states(variant, values, monkeypatch):
    model, batch = small(variant, **values), contract.collate(contract.pairs(), more=1)
    tgt_in = torch.randint(3, contract.V, (3 * len(batch.src), 5))
    calls, refine_and_attend = [], attention.refine_and_attend

    def counted(*args, **project):
        calls.append(args)
        return refine_and_attend(*args, **project)

    with torch.no_grad():
        memory = model.encode(batch)
        whole = model.decode(tgt_in, memory)[0]
        monkeypatch.setattr(attention, "refine_and_attend", counted)
        two_sentences = 2 * 3 * batch.src.size(1) * model.attention.gate.width
        monkeypatch.setattr(attention, "NUMBERS_AT_ONCE", two_sentences)
        contract.close(model.decode(tgt_in, memory)[0], whole)
    assert len(calls) == -(-len(batch.src) // 2) * 5


@pytest.mark.parametrize(
    "values",
    [{}, {"history": 2, "caembed": "replace"}, {"caembed": "embed", "cell": "gru"}],
    ids=str,
)
def test_packed_weights_give_the_same_logits(values, default_path):
    model, batch = small(dtype=torch.float32, **values), contract.collate(contract.pairs())
    with torch.inference_mode():
        plain = contract.full(model, batch)
    torch.set_float32_matmul_precision("medium")  # products are oneDNN's
    pack(model)
    if torch.backends.mkldnn.is_available():
        assert model.attention.attention.key.packed is not None
    with inference([model]):
        torch.testing.assert_close(contract.full(model, batch), plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("variant", "values", "setting"),
    [
        ("caru", {"caatt": False, "gate": "gru"}, "gate"),
        ("caru", {"caatt": False, "caatt_first": "linear"}, "caatt_first"),
        ("gatt", {"caatt_first": "linear"}, "caatt_first"),
        ("gru-inv", {"n_scale": "length"}, "n_scale"),
        ("caru", {"n_scale": "length", "n_constant": 3}, "n_constant"),
        ("caru", {"caembed": "off", "history": 2}, "history"),
        ("gru-inv", {"first_step": "linear"}, "first_step"),
        ("gru-inv", {"update_bias": 0}, "update_bias"),
        ("caru", {"initial_weights": "normal", "content_bias": 1}, "content_bias"),
    ],
    ids=str,
)
def test_setting_without_effect_is_refused(variant, values, setting):
    with pytest.raises(ConfigError, match=f"model.{setting}=.* has no effect"):
        small(variant, **values)
