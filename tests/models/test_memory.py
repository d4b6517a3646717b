"""The associated memory (Jiang et al. 2019, as read in nmtkit/models/readings.md): size, equations
word by word, contexts.
"""

import math
from functools import partial

import pytest

from nmtkit.data.documents import ContextRule, Documents
from nmtkit.errors import ConfigError
from nmtkit.models import memory
from nmtkit.nn.capture import capture
from nmtkit.settings import SearchSettings, build
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.translate.scorer import Scorer
from tests.models import contract, test_transformer
from tests.models.contexts import MIXED, ONE, PAIRS, THREE, TWO, batch_of, without_idea  # noqa: F401
from tests.models.contract import paper_size
from tests.models.slow import affine, dropped, gru, lstm, mixed, plus, sigmoid, softmax, times
from tests.word_side import WordSide

BASELINE = "transformer"


def count(s, v):
    """Return the parameters, with one bias in each GRU (Cho et al. 2014) where the audit has
    torch's six.
    """
    d, (attention, feed_forward) = s.d_model, test_transformer.sublayers(s)
    layer = attention + feed_forward + 2 * 2 * d
    h = d // 2
    reader = {
        "gru": 3 * 2 * d * d + d,
        "bigru": 2 * (3 * (d * h + h * h) + h),
        "lstm": 4 * 2 * d * d + 4 * d,
        "none": 0,
        "transformer": test_transformer.distinct(s, s.encoder_layers) * layer
        + (2 * d if s.norm == "pre" else 0),
    }[s.context_encoder]
    meeting = 0
    if s.inter_attention:
        separate = s.query_from == "embed" and not s.share_first_attention
        meeting = (2 + separate) * attention + (2 if s.query_from == "embed" else 1) * 2 * d
    read_out = feed_forward + 2 * 2 * d + 2 * d * d + d
    return test_transformer.count(s, v) + reader + meeting + read_out


def added(xs, ys, p=0.0):
    return [plus(x, dropped(y, p)) for x, y in zip(xs, ys, strict=True)]


def mean(xs):
    return [math.fsum(column) / len(xs) for column in zip(*xs, strict=True)]


class Slow(test_transformer.Slow):
    """One sentence and one context at a time."""

    def run(self, cell, xs):
        """The states after each input, from zeros."""
        step = lstm if self.s.context_encoder == "lstm" else gru
        width = len(self.w[f"{cell}.input.weight"]) // (4 if step is lstm else 3)
        state, states = None, []
        for x in xs:
            state = step(self.w, cell, state, (f"{cell}.input.weight", x))
            states.append(state[:width])
        return states

    def read_context(self, ids):
        """Section 3.3: one recurrent layer over embeddings; or embeddings with positions, and as
        many layers as the source has.
        """
        table, kind, part = "src_embedder.table.weight", self.s.context_encoder, "memory.encoder"
        plain = [[self.s.d_model**0.5 * a for a in self.get(table)[i]] for i in ids]
        plain = [dropped(x, self.s.dropout) for x in plain]
        if kind in ("gru", "lstm"):
            return self.run(f"{part}.rnn.forwards", plain)
        if kind == "bigru":
            forwards = self.run(f"{part}.rnn.forwards", plain)
            backwards = self.run(f"{part}.rnn.backwards", plain[::-1])[::-1]
            return [a + b for a, b in zip(forwards, backwards, strict=True)]
        xs = self.embed(table, ids)
        if kind == "none":
            return xs
        for i in range(self.s.encoder_layers):
            xs = self.layer(f"{part}.layers.{i}", xs)
        return self.last_norm(f"{part}.norm", xs)

    def first(self, attention, norm, xs):
        """Section 3.4: LN(x + Dropout(MHA₁(x)))."""
        read = self.attend(f"memory.{attention}", xs, xs)
        return self.norm(f"memory.{norm}.norm", added(xs, read, self.s.dropout))

    def scores(self, queries, words):
        """Scores before the softmax, for every head, word and word of the context."""
        d, heads = self.s.d_model, self.s.heads
        c = d // heads
        q = [self.linear("memory.inter.query", x) for x in queries]
        w, b = self.get("memory.inter.kv.weight")[:d], self.get("memory.inter.kv.bias")
        k = [affine(x, w, b[:d] if b else None) for x in words]
        part = [slice(h * c, (h + 1) * c) for h in range(heads)]
        return [math.fsum(times(x[p], y[p])) / math.sqrt(c) for p in part for x in q for y in k]

    def read(self, src, states, contexts):
        """C of every source word, the queries, and β."""
        memories = [self.read_context(ids) for ids in contexts]
        if not self.s.inter_attention:
            share = 1 / len(memories)
            c = plus(*([share * a for a in mean(words)] for words in memories))
            return [c] * len(src), states, [share] * len(memories)
        queries = states
        if self.s.query_from == "embed":
            embedded = self.embed("src_embedder.table.weight", src)
            name = "first" if self.s.share_first_attention else "source_first"
            queries = self.first(name, "source_residual", embedded)
        memories = [self.first("first", "first_residual", words) for words in memories]
        beta = softmax([math.fsum(s) / len(s) for s in (self.scores(queries, m) for m in memories)])
        found = [self.attend("memory.inter", queries, words) for words in memories]
        c = [
            plus(*([b * a for a in x] for b, x in zip(beta, xs, strict=True)))
            for xs in zip(*found, strict=True)
        ]
        return c, queries, beta

    def encode(self, src, contexts=()):
        states = super().encode(src)
        if not contexts:
            return states
        read, queries, _ = self.read(src, states, contexts)
        read = [dropped(x, self.s.dropout) for x in read]
        if self.s.context_residual:
            read = added(queries, read)
        first = self.norm("memory.read_residual.norm", read)
        fed = added(first, self.feed_forward("memory.feed_forward", first), self.s.dropout)
        out = []
        for h, c in zip(states, self.norm("memory.feed_forward_residual.norm", fed), strict=True):
            out.append(mixed(sigmoid(self.linear("memory.gate", h + c)), c, h))
        return out


def slow_logits(weights, s, src, tgt_in, contexts=()):
    slow = Slow(weights, s)
    return slow.logits(slow.decode(slow.encode(src, contexts), tgt_in))


def test_size_of_the_paper(audit):
    """+6.31 million with torch's six biases of a GRU; the GRU of Cho et al. has one."""
    size = partial(paper_size, preset="amn", vocabulary=32_000, shared=False)
    assert round(audit["amn_shared"] / 1e6, 2) == 6.31
    assert size("amn") - size("transformer") == audit["amn_shared"] - 5 * 512
    more = size("amn", share_first_attention=False) - size("amn")
    assert more == audit["mha"](512, True)
    reader = size("amn", context_encoder="bigru") - size("amn", context_encoder="none")
    assert reader == audit["gru"](512, 256) * 2 - 2 * 5 * 256


def test_context_weights_are_a_softmax_of_mean_scores():
    """With one context its weight β is 1 whatever the scores."""
    model = contract.Case("amn").build(context_join="parallel")
    slow, texts = Slow(contract.numbers(model), model.settings), [ONE, TWO, THREE]
    with capture() as captured:
        model.encode(batch_of(*texts, rows=MIXED))
    seen = {name: tensors[0] for name, tensors in captured.items()}
    beta, gate = seen["memory.inter_sentences"], seen["memory.gate"]
    for row, contexts, (src, _) in zip(beta, MIXED, PAIRS, strict=True):
        if contexts:
            expected = slow.read(src, slow.encode(src), [texts[i] for i in contexts])[2]
            expected += [0] * (3 - len(contexts))
            assert row.tolist() == pytest.approx(expected, abs=1e-12)
    assert beta[0, 0] == 1
    assert seen["memory.inter"].shape == (12, 4, 7, 7)  # B·J, heads, words, words of contexts
    assert seen["context.memory.first"].shape == (3, 4, 7, 7)
    assert seen["memory.first"].shape == (4, 4, 7, 7)
    assert [bool(row.isnan().all()) for row in gate] == [False, True, False, False]
    assert gate.nan_to_num(0.5).sub(0.5).abs().max() < 0.5


def test_batch_memory_in_training_reads_all_contexts_of_the_batch():
    """Fewer contexts in the batch change the result; a sentence without context stays the
    Transformer's.
    """
    model = contract.Case("amn").build(memory_scope="batch").train()
    logits = lambda *texts, rows: contract.full(model, batch_of(*texts, rows=rows))  # noqa: E731
    expected = logits(ONE, TWO, THREE, rows=[[2], [], [0], [1]])
    contract.close(logits(ONE, TWO, THREE, rows=[[0], [], [1], [2]]), expected)
    fewer = logits(ONE, TWO, rows=[[1], [], [0], [1]])
    assert (fewer - expected).abs().amax((1, 2)).gt(1e-4).tolist() == [True, False, True, True]
    own, batch = contract.Case("amn").build(), batch_of(ONE, rows=[[0]] * 4)
    contract.close(contract.full(own, batch), contract.full(model, batch))


TEXT = ["1 2 3", "4 5", "", "6", "7 8", "9 1", "2 2 3"]
"""Two documents; the second starts at line 4."""


@pytest.fixture
def document_scores():
    """A function that scores lines with a model of the memory of a batch."""
    model = contract.Case("amn").build(memory_scope="batch")
    assert model.context_rule.whole and not model.train().context_rule.whole
    model.eval()
    ids, sides = Vocabulary([*SPECIALS, *map(str, range(contract.V - len(SPECIALS)))]), WordSide()

    def scores(lines, batch_size=100):
        search = build(SearchSettings, {"batch_size": batch_size}, "search")
        scorer = Scorer([model], sides, sides, ids, ids, search)
        forced = scorer.force(lines, ["1 2"] * len(lines), Documents([0, 4], len(lines)))
        return [line.log_prob for line in forced]

    return scores


def test_batch_memory_in_translation_does_not_depend_on_batches(document_scores, monkeypatch):
    expected = pytest.approx(document_scores(TEXT), abs=1e-9)
    assert document_scores(TEXT, batch_size=1) == expected
    monkeypatch.setattr(memory, "CONTEXTS_AT_ONCE", 0)
    assert document_scores(TEXT) == expected


@pytest.mark.parametrize(
    ("lines", "changed"),
    [
        ([*TEXT[:4], "3 3 3", "5", "1"], [4, 5, 6]),  # the other document
        (["4 4", *TEXT[1:]], [0, 1, 3]),  # all lines with words
    ],
)
def test_batch_memory_in_translation_reads_the_whole_document(lines, changed, document_scores):
    both = zip(document_scores(TEXT), document_scores(lines), strict=True)
    assert [i for i, (a, b) in enumerate(both) if abs(a - b) > 1e-6] == changed


def test_context_rule_follows_the_settings():
    amn = contract.Case("amn")
    assert amn.build().context_rule == ContextRule("previous", 1, "concatenate", 1)
    more = {"context": "foreign", "context_size": 3, "context_join": "parallel", "context_seed": 7}
    assert amn.build(**more).context_rule == ContextRule("foreign", 3, "parallel", 7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"context": "none"}, "model.context"),
        ({"context_size": 6}, "model.context_size"),
        ({"context_encoder": "bigru", "d_model": 15, "heads": 5}, "odd"),
        ({"memory_scope": "batch", "context_size": 2}, "a memory each"),
    ],
)
def test_incompatible_settings_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        contract.Case("amn").build(**values)
