"""RNNSearch (Bahdanau et al. 2015, appendix A): size, equations step by step, memory of the source."""

import pytest
import torch

from nmtkit import settings
from nmtkit.errors import ConfigError
from nmtkit.measures import macs
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model, load_variant
from nmtkit.nn.capture import capture
from tests.models import contract
from tests.models.slow import affine, dropped, gru, plus, softmax, tanh, times

BASELINE = None  # it is one itself


def count(s, v):
    """Return the formula of reference/parameter_counts.py, with alignment width and ties as
    settings.
    """
    e, h, a = s.d_embedding, s.d_hidden, s.d_alignment or s.d_hidden
    encoder = 2 * (3 * (e * h + h * h) + h)
    attention = 2 * h * a + h * a + a
    decoder = 3 * ((e + 2 * h) * h + h * h) + h
    initial = h * h + h
    out = (e + h + 2 * h) * h + (h // 2) * e + (v if s.softmax_bias else 0)
    tables = {"none": 3, "target": 2, "all": 1}[s.tie]
    return tables * v * e + 2 * e + encoder + attention + decoder + initial + out


class Slow:
    """One sentence, one step at a time; vectors are lists of floats."""

    def __init__(self, weights, s):
        self.w, self.s = weights, s

    def word(self, side, i):
        word = plus(self.w[f"{side}_words.table.weight"][i], self.w[f"{side}_words.bias"])
        return dropped(word, self.s.dropout)

    def read(self, src):
        """h_i = [forward state after word i | backward state after word i], and the backward
        reader's last state.
        """
        found = {}
        for name, order in (("forwards", range(len(src))), ("backwards", range(len(src))[::-1])):
            h, found[name] = None, {}
            for i in order:
                word, cell = self.word("src", src[i]), f"encoder.{name}"
                h = found[name][i] = gru(self.w, cell, h, (f"{cell}.input.weight", word))
        states = [found["forwards"][i] + found["backwards"][i] for i in range(len(src))]
        return states, found["backwards"][0]

    def attend(self, s, states):
        """e_i = vᵀtanh(W s + U h_i), α = softmax(e), c = Σ α_i h_i."""
        query, v = affine(s, self.w["attention.query.weight"]), self.w["attention.score.weight"][0]
        alpha = softmax(
            [
                sum(times(v, tanh(plus(query, affine(h, self.w["attention.key.weight"])))))
                for h in states
            ]
        )
        return alpha, plus(*([a * x for x in h] for a, h in zip(alpha, states, strict=True)))

    def write(self, src, tgt_in):
        """Logits and attention weights at every target position."""
        states, last = self.read(src)
        s = tanh(affine(last, self.w["initial.weight"], self.w["initial.bias"]))
        logits, weights = [], []
        for y in tgt_in:
            e = self.word("tgt", y)
            alpha, c = self.attend(s, states)
            units = plus(
                affine(e + s, self.w["maxout.weight"]), affine(c, self.w["maxout_context.weight"])
            )
            half = len(units) // 2
            largest = [max(pair) for pair in zip(units[:half], units[half:], strict=True)]
            readout = dropped(affine(largest, self.w["readout.weight"]), self.s.dropout)
            logits.append(affine(readout, self.w["output.weight"], self.w.get("output.bias")))
            weights.append(alpha)
            s = gru(self.w, "cell", s, ("cell.input.weight", e), ("cell_context.weight", c))
        return logits, weights


def slow_logits(weights, s, src, tgt_in):
    return Slow(weights, s).write(src, tgt_in)[0]


def test_size_of_the_paper_equals_the_audit(audit):
    size = contract.paper_size("rnnsearch", "rnnsearch", 32_000)
    assert size == audit["rnnsearch"](32_000) == 88_068_240  # "88.1M at V=32k"


def test_preset_of_the_paper_has_the_default_settings():
    settings_class = load_variant("rnnsearch").Settings
    assert settings_class(**settings.load_preset("rnnsearch")["model"]) == settings_class()


def test_incompatible_settings_are_refused():
    with pytest.raises(ConfigError, match="one vocabulary"):
        build_model("rnnsearch", {"tie": "all"}, Vocabularies(20, 20, shared=False))
    with pytest.raises(ConfigError, match="multiple of 2"):
        build_model("rnnsearch", {"d_hidden": 7}, Vocabularies(20, 20, shared=True))


@pytest.mark.parametrize("preset", ["tiny", "demo", "small", "base", "big"])
def test_presets_of_transformers_are_adapted(preset):
    """Embeddings of d and states of 2d."""
    sizes = settings.load_preset(preset)["model"]
    adapted = load_variant("rnnsearch").adapt(sizes)
    expected = {"d_embedding": sizes["d_model"], "d_hidden": 2 * sizes["d_model"]}
    expected |= {name: sizes[name] for name in ("dropout", "tie")}
    sizes = load_variant("rnnsearch").Settings(**adapted)
    assert {name: getattr(sizes, name) for name in expected} == expected


def test_preset_may_set_the_width_of_states():
    adapted = load_variant("rnnsearch").adapt({"d_model": 8, "d_hidden": 6})
    assert adapted == {"d_embedding": 8, "d_hidden": 6}


def test_small_size_is_within_a_third_of_the_transformer():
    """Without embeddings."""
    sizes, vocabularies = settings.load_preset("small")["model"], Vocabularies(9, 9, shared=True)
    with torch.device("meta"):
        transformer, rnnsearch = (
            macs.count_parameters(build_model(name, load_variant(name).adapt(sizes), vocabularies))
            for name in ("transformer", "rnnsearch")
        )
    assert 0.75 < rnnsearch.rest / transformer.rest < 1.34


def near(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_capture_reads_attention_weights():
    model, pairs = contract.Case("rnnsearch").build(), contract.pairs()
    batch = contract.collate(pairs)
    plain = contract.full(model, batch)
    with capture() as seen:
        assert torch.equal(contract.full(model, batch), plain)
    assert list(seen) == ["attention", "attention_context"]
    alpha, context = seen["attention"][0], seen["attention_context"][0]
    assert alpha.shape == (len(pairs), 1, *batch.tgt_in.shape[1:], batch.src.size(1))
    slow = Slow(contract.numbers(model), model.settings)
    for row, (src, tgt) in enumerate(pairs):
        weights = slow.write(src, batch.tgt_in[row, : len(tgt)].tolist())[1]
        near(alpha[row, 0, : len(tgt), : len(src)].tolist(), weights)
        assert (alpha[row, :, :, len(src) :] == 0).all()
    memory = model.encode(batch)
    assert "states" not in memory
    # W Σα_i h_i = Σα_i W h_i
    near(model.maxout_context(context), alpha[:, 0] @ memory["to_readout"])
    with capture() as seen:  # three rows a sentence: K·T queries
        model.decode(batch.tgt_in.repeat_interleave(3, dim=0), memory)
    near(seen["attention"][0].unflatten(2, (3, -1)).mean(2), alpha)


def test_macs_equal_the_closed_formula():
    """A decoding step multiplies no state of a source position."""
    e, h, a, v, n, m = 6, 10, 8, 37, 5, 4
    sizes = {"d_embedding": e, "d_hidden": h, "d_alignment": a}
    model = build_model("rnnsearch", sizes, Vocabularies(v, v, shared=True))
    found = macs.count_macs(model, n, m)
    first_state = h * h
    # Both directions; keys, and the inputs of the cell and of the readout.
    read = 2 * 3 * (e * h + h * h) + 2 * h * (a + 3 * h + h)
    cell = 3 * (e * h + h * h) + h * a + n * a + n * 3 * h
    out = (e + h) * h + n * h + (h // 2) * e + e * v
    once = n * read + first_state
    assert found.encode * n == pytest.approx(once, abs=1e-6)
    assert found.step == pytest.approx(cell + out, abs=1e-6)
    after_last_word = 3 * h * h + n * 3 * h  # this state is not computed
    forward = once + m * (cell + out) - after_last_word
    no_gradient = 2 * (h * 2 * h)  # the readers begin with zeros
    assert found.train * m == pytest.approx(3 * forward - no_gradient, abs=1e-6)
