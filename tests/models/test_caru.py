"""CARU-gated attention (Im & Chan 2024) against counts by hand and its equations step by step, and
what it becomes where its parts are off.
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
from tests.models import contract
from tests.models.slow import CELLS, affine, block, caru, mixed, plus, sigmoid, softmax, tanh, times

BASELINE = "rnnsearch"


def lin(i, o):
    return i * o + o


def cell_count(kind, i, h):
    """Of a cell that reads i numbers."""
    return {
        "caru": 2 * (lin(i, h) + lin(h, h)),
        "gru": 3 * (i * h + h * h) + h,
        "mgu": 2 * lin(i, h) + 2 * h * h,
        "lstm": 4 * (lin(i, h) + h * h),
    }[kind]


def count(s, v):
    """`caru_model` of reference/parameter_counts.py, with the other cells, gates, modes, readout
    and tying.
    """
    e, h, a = s.d_embedding, s.d_hidden, s.alignment_width or s.d_hidden
    hd = 2 * h if s.bidirectional else h
    total = {"none": 2, "target": 2, "all": 1}[s.tie] * v * e
    total += (2 if s.bidirectional else 1) * cell_count(s.cell, e, h) + (
        lin(h, h) if s.bidirectional else 0
    )
    g = hd
    if s.caatt and s.gate == "caru":
        total += lin(h, hd) + lin(hd, hd) + lin(hd + h, hd)
    elif s.caatt:
        g = h if s.gate == "gru-inv" else hd
        total += 3 * (h + hd) * g + 3 * g
    total += lin(h + g, a) + a if s.alignment == "additive" else lin(h + g, 1)
    read = {"off": g, "embed": e}.get(s.caembed, h)
    if s.caembed != "off":
        total += cell_count("caru", read, read) + (lin(g, read) if g != read else 0)
    if s.caembed == "embed":
        total += cell_count(s.cell, e, h)
    elif s.caembed == "replace":
        total += e * h
    else:
        total += cell_count(s.cell, e + read, h)
    if s.readout == "maxout":
        total += (e + h + g) * h + (h // 2) * e
    width = h if s.readout == "linear" else e
    return total + (0 if s.tie != "none" else v * width) + (v if s.softmax_bias else 0)


class Slow:
    """One sentence, one step at a time; vectors are lists of floats."""

    def __init__(self, weights, s):
        self.w, self.s = weights, s

    def word(self, side, y):
        """The vector of a word; its variance is 1 with unit embeddings."""
        scale = math.sqrt(self.s.d_embedding) if self.s.unit_embeddings else 1
        return [scale * x for x in self.w[f"{side}_table.weight"][y]]

    def linear(self, name, x):
        return affine(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def part(self, name, i, of):
        return block(self.w[name], i, of)

    def caru(self, name, state, *inputs):
        return caru(self.w, name, state, *inputs, first_step=self.s.first_step)

    def cell(self, name, state, *inputs):
        """The cell of encoder and decoder; the state of an LSTM is [h | c]."""
        if self.s.cell == "caru":
            return self.caru(name, state, *inputs)
        return CELLS[self.s.cell](self.w, name, state, *inputs)

    def read(self, src):
        """h_i, and the state that the decoder begins with."""
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
        """g_i: Im & Chan 2024, Eqs. 4 and 5, for CARU; Zhang et al. 2017 for the two GRUs."""
        if self.s.gate == "caru":
            w, b = "attention.gate.state.weight", "attention.gate.state.bias"
            x = affine(s, self.part(w, 0, 2), self.part(b, 0, 2))
            if t == 0 and self.s.caatt_first == "linear":
                return x, None
            of_h = [affine(h, self.part("attention.gate.source.weight", i, 2)) for i in range(2)]
            n = tanh(plus(x, of_h[0], self.w["attention.gate.bias"]))
            of_z = plus(affine(s, self.part(w, 1, 2), self.part(b, 1, 2)), of_h[1])
            gate = times(sigmoid(x), sigmoid(of_z))
            return mixed(gate, h, n), gate
        history, entry, names = (
            (s, h, ("state", "source")) if self.s.gate == "gru-inv" else (h, s, ("source", "state"))
        )
        u = f"attention.gate.{names[0]}.weight"
        of_history = [affine(history, self.part(u, i, 2)) for i in range(2)]
        w, b = f"attention.gate.{names[1]}.weight", f"attention.gate.{names[1]}.bias"
        of_entry = [affine(entry, self.part(w, i, 3), self.part(b, i, 3)) for i in range(3)]
        reset, update = (sigmoid(plus(of_history[i], of_entry[i])) for i in range(2))
        candidate = affine(times(reset, history), self.w["attention.gate.candidate.weight"])
        return mixed(update, history, tanh(plus(of_entry[2], candidate))), update

    def attend(self, s, states, t):
        """α = softmax(N e) and c = Σ α_i g_i; e = vᵀ tanh(W [s|g]), or tanh(w [s|g])."""
        prefix, opened = "attention", None
        if self.s.caatt:
            prefix, found = "attention.attention", [self.refine(s, h, t) for h in states]
            states = [g for g, _ in found]
            opened = [None if gate is None else sum(gate) / len(gate) for _, gate in found]
        scores = []
        for g in states:
            hidden = tanh(
                plus(self.linear(f"{prefix}.query", s), affine(g, self.w[f"{prefix}.key.weight"]))
            )
            scores.append(
                hidden[0]
                if self.s.alignment == "bounded"
                else sum(times(self.w[f"{prefix}.score.weight"][0], hidden))
            )
        n = (
            1
            if self.s.attention_norm == "softmax"
            else len(states)
            if self.s.n_scale == "length"
            else self.s.n_constant
        )
        alpha = softmax([n * e for e in scores])
        return (
            alpha,
            plus(*([a * x for x in g] for a, g in zip(alpha, states, strict=True))),
            opened,
        )

    def write(self, src, tgt_in):
        """Logits, attention weights and gates at every target position."""
        states, state = self.read(src)
        width, mode, p = self.s.d_hidden, self.s.caembed, self.s.history
        written, words, logits, weights, gates = [state[:width]], [], [], [], []
        for t, y in enumerate(tgt_in):
            e, s = self.word("tgt", y), written[-1]
            words.append(e)
            alpha, c, opened = self.attend(s, states, t)
            weights.append(alpha)
            gates.append(opened)
            u = c
            if mode != "off":
                last = self.linear("embed.project", c) if "embed.project.weight" in self.w else c
                if mode == "replace":
                    last = plus(last, affine(e, self.w["word.weight"]))
                run = None
                for v in [*(words if mode == "embed" else written)[-p:], last]:
                    run = self.caru("embed.cell", run, ("embed.cell.input.weight", v))
                u = run
            if mode == "replace":
                state = u
            elif mode == "embed":
                state = self.cell("cell", state, ("cell.input.weight", u))
            else:
                state = self.cell(
                    "cell", state, ("cell.input.weight", e), ("cell_context.weight", u)
                )
            written.append(state[:width])
            read = state[:width]
            if self.s.readout == "maxout":
                units = affine(e + s + c, self.w["maxout.weight"])
                half = len(units) // 2
                read = affine(
                    [max(pair) for pair in zip(units[:half], units[half:], strict=True)],
                    self.w["readout.weight"],
                )
            logits.append(affine(read, self.w["output.weight"], self.w.get("output.bias")))
        return logits, weights, gates


def slow_logits(weights, s, src, tgt_in):
    return Slow(weights, s).write(src, tgt_in)[0]


def small(variant="caru", **more):
    """A model in float64 whose weights are moved off their initial values."""
    return contract.Case(variant).build(**more)


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
    """Gate, CAEmbed and L1(exp(Nx)) off, RNNSearch's cell, directions and readout: RNNSearch
    with the same weights.
    """
    kept = [
        (key, value) for key, value in case.values if key not in WITHOUT_EFFECT
    ]  # these belong to what is off
    model = contract.Case(case.variant, (*kept, *RNNSEARCH.items())).build(alignment="additive")
    s = model.settings
    sizes = {"d_alignment": s.alignment_width}
    sizes |= {name: getattr(s, name) for name in ("d_embedding", "d_hidden", "tie", "softmax_bias")}
    baseline = contract.Case("rnnsearch").build(**sizes)
    with torch.no_grad():
        model.attention.query.bias.zero_()  # RNNSearch has none
        own, e, h = dict(model.named_parameters(remove_duplicate=False)), s.d_embedding, s.d_hidden
        for name, parameter in baseline.named_parameters(remove_duplicate=False):
            if name.endswith("words.bias"):
                parameter.zero_()  # and its words' biases are here a part of the words
            elif name.endswith("words.table.weight"):
                parameter.copy_(own[f"{name[:3]}_table.weight"])
            elif name == "maxout.weight":
                parameter.copy_(own[name][:, : e + h])
            elif name == "maxout_context.weight":
                parameter.copy_(own["maxout.weight"][:, e + h :])
            else:
                parameter.copy_(own[name])
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
def test_the_ladder_has_the_audited_counts(audit, caatt, caembed, printed, bidirectional):
    """The rungs of Im & Chan 2024 that Table 1 names, with separate embeddings."""
    values = {"caatt": caatt, "caembed": caembed, "bidirectional": bidirectional}
    values["readout"] = "linear"
    for v, millions in zip((7850, 50_000), printed, strict=True):
        with torch.device("meta"):
            model = build_model("caru", values, Vocabularies(v, v, shared=False))
        expected = audit["caru_model"](v, bidirectional, caatt, caembed == "state")
        assert count_parameters(model) == count(model.settings, v) == expected
        if not bidirectional:
            assert expected / 1e6 == pytest.approx(millions, abs=0.005)


def test_settings_that_cannot_be():
    vocabularies = Vocabularies(20, 20, shared=True)
    linear = {"tie": "target", "readout": "linear"}
    with pytest.raises(ConfigError, match=r"cannot share weights"):
        build_model("caru", {**linear, "d_embedding": 4, "d_hidden": 6}, vocabularies)
    with pytest.raises(ConfigError, match="even"):
        build_model("gatt", {"d_hidden": 7}, vocabularies)
    same = build_model("caru", {**linear, "d_embedding": 6, "d_hidden": 6}, vocabularies)
    assert same.output.weight is same.tgt_table.weight


def test_presets_of_other_families_are_adapted():
    for preset in ("tiny", "small", "base"):
        sizes = settings.load_preset(preset)["model"]
        for variant in ("caru", "gru-inv", "gatt"):
            values = load_variant(variant).adapt(sizes | {"d_model": 8})
            s = build_model(variant, values, Vocabularies(20, 20, shared=True)).settings
            expected = (8, 16, sizes["dropout"], sizes["tie"])
            assert (s.d_embedding, s.d_hidden, s.dropout, s.tie) == expected


def test_the_papers_weights_are_drawn_from_one_normal_distribution():
    torch.manual_seed(2)
    model = build_model(
        "caru",
        {"initial_weights": "normal", "d_embedding": 32, "d_hidden": 64},
        Vocabularies(100, 100, shared=False),
    )
    numbers = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert abs(float(numbers.mean())) < 1e-4 and float(numbers.std()) == pytest.approx(
        0.01, rel=0.01
    )
    assert all(0.002 < float(p.detach().abs().mean()) < 0.02 for p in model.parameters())


def test_gates_begin_open_and_embeddings_with_variance_one():
    """Where words and states are 0, every l = σ(x) ⊙ z is σ(2) σ(1), and every candidate is 0."""
    torch.manual_seed(3)
    sizes = {"d_embedding": 64, "d_hidden": 16, "tie": "target"}
    model = build_model("caru", sizes, Vocabularies(500, 500, shared=False))
    expected = 1 / (1 + math.exp(-2)) / (1 + math.exp(-1))
    cells = [module for module in model.modules() if isinstance(module, CARUCell)]
    for cell in cells:
        zeros = torch.zeros(1, cell.d_hidden)
        x = cell.inputs(torch.zeros(1, cell.input.in_features))
        n, gate = cell.parts(x, zeros, cell.state)
        assert not n.any() and gate.tolist() == [pytest.approx([expected] * 16)]
    gate, states = model.attention.gate, torch.zeros(1, 1, 3, 32)
    of_s, of_h = gate.state(torch.zeros(1, 1, 1, 16)), gate.prepare(states)
    torch.testing.assert_close(gate.openness(of_h, of_s), torch.full((1, 1, 3), expected))
    with torch.no_grad():
        mixed = gate.mix(torch.float32, states, of_h, of_s)
    assert len(cells) == 4 and mixed.abs().amax() < 1e-6
    for table in (model.src_table, model.tgt_table):
        vectors = model.eval()._words(table, torch.arange(500)[None]).detach()
        assert float(vectors.std()) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("values", [{"n_scale": "length"}, {"n_constant": 100}], ids=str)
def test_a_hundred_words_with_large_scores_stay_finite(values):
    model = small(**values, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.attention.parameters():
            parameter.mul_(200)
    batch = contract.collate(
        [([3 + i % 20 for i in range(99)] + [2], [4, 5, 6, 2]), ([7, 2], [8, 2])]
    )
    logits = contract.full(model, batch)
    logits.square().sum().backward()
    assert logits.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())


@pytest.fixture
def keep(monkeypatch):
    """Return a function that lets autograd keep everything of a step for the backward pass."""

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
def test_recomputing_changes_no_gradient(variant, keep):
    model, batch = small(variant, dropout=0.2).train(), contract.collate(contract.pairs())

    def gradients():
        seed_dropout(1, 1)
        return torch.autograd.grad(contract.loss_of(model, batch), list(model.parameters()))

    again = gradients()
    keep()
    for found, plain in zip(again, gradients(), strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "values",
    [
        {"caatt_first": "linear", "bidirectional": False},
        {"caembed": "embed", "history": 2},
        {"caembed": "replace"},
        {"caatt": False},
    ],
    ids=str,
)
def test_capture_reads_weights_and_gates(values):
    model, pairs = small(**values), contract.pairs()
    batch = contract.collate(pairs)
    plain = contract.full(model, batch)
    with capture() as seen:
        assert torch.equal(contract.full(model, batch), plain)
    gated = model.settings.caatt
    names = {"attention", "attention_context", "caembed_gate"}
    assert set(seen) == names | ({"attention_gate"} if gated else set())
    alpha, opened, context = (
        seen[name][0] for name in ("attention", "caembed_gate", "attention_context")
    )
    assert alpha.shape == (len(pairs), 1, *batch.tgt_in.shape[1:], batch.src.size(1))
    assert opened.shape == batch.tgt_in.shape == context.shape[:2]
    assert (opened > 0).all() and (opened < 1).all()
    if not gated:
        expected = alpha[:, 0] @ model.encode(batch)["states"]
        torch.testing.assert_close(context, expected, rtol=1e-9, atol=1e-11)
    for row, (src, tgt) in enumerate(pairs):
        tgt_in = batch.tgt_in[row, : len(tgt)].tolist()
        _, weights, gates = Slow(contract.numbers(model), model.settings).write(src, tgt_in)
        found = alpha[row, 0, : len(tgt), : len(src)].tolist()
        torch.testing.assert_close(found, weights, rtol=1e-9, atol=1e-11)
        for t, expected in enumerate(gates if gated else []):
            gate = seen["attention_gate"][0][row, t, : len(src)]
            if expected[0] is None:  # Im & Chan 2024, Eq. 4: the first step has no gate
                assert t == 0 and gate.isnan().all()
            else:
                torch.testing.assert_close(gate.tolist(), expected, rtol=1e-9, atol=1e-11)


def test_weights_that_are_changed_weigh_at_the_first_step_too():
    """Its g is one for all i, so that Σα_i g_i is g only as long as the weights sum to one."""
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
def test_gradients_in_a_capture_are_those_of_the_changed_weights(variant):
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


def test_nothing_of_every_pair_of_positions_is_kept_for_backward(keep):
    """Numbers for every source position at every step: T times as many as a sentence has, were
    they not computed again.
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
    keep()
    assert large() > 2 * batch.tgt_in.size(1)


def test_products_are_as_few_as_they_can_be():
    """Multiply-accumulates of the closed formula: per step and source position only the key of
    the refined state, its score and its share.
    """
    e, h, a, v, n, m = 6, 10, 8, 37, 5, 4
    model = build_model(
        "caru",
        {"d_embedding": e, "d_hidden": h, "alignment_width": a}
        | {"bidirectional": False, "readout": "linear", "caatt_first": "linear"},
        Vocabularies(v, v, shared=True),
    )
    found = macs.count_macs(model, n, m)
    once = (
        n * 2 * e * h + (n - 1) * 2 * h * h + n * 2 * h * h
    )  # the reader, whose first step needs no state; what CAAtt makes of its states
    gate, embed, cell = 2 * h * h, h * h + 2 * h * h + 2 * h * h, 2 * e * h + 2 * h * h + 2 * h * h
    attend = h * a + n * (
        h * a + a + h
    )  # not at the first step, where everything is attended to alike
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
def test_a_search_in_pieces_finds_the_same(variant, values, monkeypatch):
    model, batch = small(variant, **values), contract.collate(contract.pairs(), more=1)
    tgt_in = torch.randint(3, contract.V, (3 * len(batch.src), 5))
    with torch.no_grad():
        memory = model.encode(batch)
        whole = model.decode(tgt_in, memory)[0]
        calls = []
        look = attention.refine_and_attend
        monkeypatch.setattr(
            attention,
            "refine_and_attend",
            lambda *args, **project: calls.append(args) or look(*args, **project),
        )
        monkeypatch.setattr(
            attention, "NUMBERS_AT_ONCE", 2 * 3 * batch.src.size(1) * model.attention.gate.width
        )  # two sentences
        contract.close(model.decode(tgt_in, memory)[0], whole)
    assert len(calls) == -(-len(batch.src) // 2) * 5


@pytest.mark.parametrize(
    "values",
    [{}, {"history": 2, "caembed": "replace"}, {"caembed": "embed", "cell": "gru"}],
    ids=str,
)
def test_weights_laid_out_for_a_search_give_the_same(values):
    model, batch = small(dtype=torch.float32, **values), contract.collate(contract.pairs())
    with torch.inference_mode():
        plain = contract.full(model, batch)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        pack(model)
        assert (
            not torch.backends.mkldnn.is_available()
            or model.attention.attention.key.packed is not None
        )
        with inference([model]):
            torch.testing.assert_close(contract.full(model, batch), plain, rtol=0, atol=1e-5)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("variant", "values", "idle"),
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
def test_a_setting_that_changes_nothing_is_refused(variant, values, idle):
    with pytest.raises(ConfigError, match=f"model.{idle}=.* has no effect"):
        small(variant, **values)
