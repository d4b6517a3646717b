"""Importance of source positions (ΔJS) against attention weights (Δα): removals, draws, numbers."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from nmtkit.analyze import importance
from nmtkit.data.batches import collate
from nmtkit.data.documents import Documents
from nmtkit.data.pairs import GivenPairs
from nmtkit.errors import ConfigError, DataError, LeftOut
from nmtkit.measures import ablation, context_spread, recording
from nmtkit.measures.ablation import Ablation
from nmtkit.nn.capture import capture
from nmtkit.score.resampling import Draws, mean
from nmtkit.text.vocabulary import EOS
from tests.models import contract

from .conftest import GATED, SMALL
from .test_divergence import js

CPU = torch.device("cpu")
DEEP = {**SMALL, "encoder_layers": 2, "decoder_layers": 2}
CARU = [
    {"caatt_first": "linear", "bidirectional": False, "readout": "linear"},
    {"caembed": "embed", "history": 2},
    {"caembed": "replace", "caatt": False},
]
VARIANTS = ["transformer", "full-dc", "pr", "rnnsearch", "caru", "gru-inv", "gatt"]
CASES = [
    *map(contract.Case, VARIANTS),
    *(contract.Case("caru", tuple(settings.items())) for settings in CARU),
]


def bits(p, q):
    """Return the Jensen-Shannon divergence in base 2."""
    return js(p, q) / math.log(2)


def one_removal(model, site, batch, row, step, position, renormalise):
    """Return the next word's distribution at a step of a sentence that is decoded alone up to it.

    position: the source position without weight at this step; -1 = none.
    """
    length = int(batch.src_lengths[row])
    alone = contract.collate([(batch.src[row, :length].tolist(), [EOS])])
    calls = 0

    def change(weights):
        nonlocal calls
        weights = weights.clone()
        last = weights.view(-1, *weights.shape[-2:])  # (heads, queries, S)
        assert last.size(1) in {1, step + 1}
        calls += last.size(1)
        if calls == step + 1:
            for head in last:
                head[-1, position] = 0
                if renormalise and head[-1].sum() > 0:
                    head[-1] /= head[-1].sum()
        return weights

    with torch.inference_mode():
        memory = model.encode(alone)
        with capture({site: change} if position >= 0 else None):
            hidden = model.decode(batch.tgt_in[row : row + 1, : step + 1], memory)[0][0, -1]
        return torch.softmax(model.logits(hidden), -1).tolist()


def of_source(model, renormalise=True):
    return Ablation(model, recording.cross_sites(model)[-1], renormalise)


def drawn_positions(rows, best, src_lengths):
    chances = ablation.drawn_chances(rows, best.size(1))
    return ablation.other_positions(chances, best, src_lengths)


def recorded_pass(attention, batch):
    """Return what a pass over a batch records, and the weights of an attention (B, T, S)."""
    with capture() as seen:
        attention.model.decode(batch.tgt_in, attention.model.encode(batch))
    return seen, seen[attention.site][0].mean(1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batch_equals_one_removal_at_a_time(case):
    model, renormalise = case.build(), CASES.index(case) % 2 == 0
    batch = contract.collate([*contract.pairs(4), ([EOS], [5, EOS])], more=1)
    attention = of_source(model, renormalise)
    d_alpha, d_js, spread = ablation.compare(attention, batch)
    seen, alpha = recorded_pass(attention, batch)
    for contexts in seen.get(attention.site + context_spread.ENDING, []):
        expected = context_spread.spread(contexts, batch.tgt_lengths)
        torch.testing.assert_close(spread[0], expected, equal_nan=True)
    best = alpha.argmax(-1)
    other = drawn_positions(batch.rows, best, batch.src_lengths)
    points = d_alpha.isfinite()
    for row, t in points.nonzero().tolist():
        i, j = int(best[row, t]), int(other[row, t])
        whole, without_i, without_j = (
            one_removal(model, attention.site, batch, row, t, k, renormalise) for k in (-1, i, j)
        )
        expected = (alpha[row, t, i] - alpha[row, t, j]).item()
        assert d_alpha[row, t].item() == pytest.approx(expected, abs=1e-12)
        expected = bits(whole, without_i) - bits(whole, without_j)
        assert d_js[row, t].item() == pytest.approx(expected, abs=1e-10)
    assert d_js[points].abs().max() > 1e-8


@pytest.mark.parametrize("variant", ["transformer", "caru"])
def test_steps_have_points_if_the_source_has_another_position(variant):
    attention = of_source(contract.Case(variant).build())
    batch = contract.collate([*contract.pairs(4), ([EOS], [5, EOS])], more=1)
    d_alpha, d_js, _ = ablation.compare(attention, batch)
    steps = torch.arange(batch.tgt_in.size(1)) < batch.tgt_lengths[:, None]
    points = steps & (batch.src_lengths > 1)[:, None]
    assert torch.equal(d_alpha.isfinite(), points) and torch.equal(d_js.isfinite(), points)
    single = contract.collate([([EOS], [5, EOS])])
    assert ablation.compare(attention, single).alpha.isnan().all()


def test_model_whose_attention_reads_context_too_is_left_out():
    model, ids = contract.Case("concat").build(), [[5, 6, EOS], [7, EOS]]
    pairs = GivenPairs(ids, ids, documents=Documents([0], 2))
    batch = collate(pairs, np.arange(2), CPU, model.context_rule)
    with pytest.raises(LeftOut, match="attends to more than the source"):
        ablation.compare(of_source(model), batch)


def test_steps_are_removed_in_parallel_only_if_they_are_independent():
    alone = {case.variant for case in CASES if of_source(case.build()).in_parallel}
    assert alone == {"transformer", "full-dc", "pr"}
    model = contract.Case("transformer").build()
    below = Ablation(model, "decoder.0.cross", True)
    assert not below.in_parallel  # the layer above mixes steps
    with pytest.raises(LeftOut, match="attention 'nowhere' cannot be changed"):
        Ablation(model, "nowhere", True)


@pytest.mark.parametrize("variant", ["transformer", "caru"])
def test_each_sentence_is_decoded_four_times(variant, monkeypatch):
    model = contract.Case(variant).build()
    batch = contract.collate(contract.pairs(4), more=1)
    attention, decode, tokens = of_source(model), model.decode, []

    def counting(tgt_in, *more):
        tokens.append(tgt_in.numel())
        return decode(tgt_in, *more)

    monkeypatch.setattr(model, "decode", counting)
    ablation.compare(attention, batch)
    whole, removals, even = 1, 2, 1
    assert sum(tokens) == (whole + removals + even) * batch.tgt_in.numel()


def test_other_position_is_drawn_evenly_and_by_sentence():
    rows, lengths = torch.arange(200), torch.full((200,), 4)
    best = torch.full((200, 60), 2)
    drawn = drawn_positions(rows, best, lengths)
    counts = torch.bincount(drawn.flatten(), minlength=4)
    assert counts[2] == 0 and len(counts) == 4
    assert (counts[[0, 1, 3]] / 4000 - 1).abs().max() < 0.05
    again = drawn_positions(rows[[7, 3]], best[[7, 3], :9], lengths[[7, 3]])
    assert torch.equal(again, drawn[[7, 3], :9])
    assert not torch.equal(drawn[3], drawn[7])


@pytest.fixture
def points():
    """Return 50 points of 12 of 14 sentences, ΔJS near Δα / 2."""
    rng = np.random.default_rng(3)
    rows, x = np.sort(rng.integers(0, 12, 50)), rng.random(50)
    y = x / 2 - 0.1 + 0.2 * rng.standard_normal(50)
    return importance.Points(rows, np.arange(50), x, y, np.full((2, 14), np.nan))


def estimates(points, **changes):
    changed = dataclasses.replace(points, **changes)
    return importance.estimates(changed, Draws(14, 200), np.arange(14))


def test_numbers_from_sums_equal_numbers_from_points(points):
    x, y = points.alpha, points.js
    loss = sum((x - y) ** 2)
    assert importance.numbers_of(importance.sums(points, 14).sum(0)) == pytest.approx(
        {
            "loss": loss,
            "loss_per_point": loss / 50,
            "correlation": np.corrcoef(x, y)[0, 1],
            "d_alpha": x.mean(),
            "d_js": y.mean(),
            "explained": 100 - 100 * loss / sum(x * x),
            "against": 100 * sum(y < 0) / 50,
        },
        rel=1e-12,
    )


def test_estimates_have_intervals_from_ten_sentences_on(points):
    *numbers, spread, even = estimates(points)
    assert spread.value is even.value is None
    assert all(e.low < e.value < e.high for e in numbers)
    few = points.rows < 9
    parts = {name: getattr(points, name)[few] for name in ("rows", "steps", "alpha", "js")}
    assert {(e.low, e.high) for e in estimates(points, **parts)} == {(None, None)}


def test_context_spread_is_the_mean_of_the_sentences_that_are_read(points):
    rows, spread = np.array([3, 7, 9, 13]), np.arange(28.0).reshape(2, 14)
    spread[:, 9] = np.nan
    changed = dataclasses.replace(points, spread=spread)
    *_, whole, even = importance.estimates(changed, Draws(4, 20), rows)
    assert (whole.value, even.value) == pytest.approx((23 / 3, 23 / 3 + 14))


def test_undefined_numbers_are_none_and_rounding_is_not_negative(points):
    equal_alpha = estimates(points, alpha=np.full(50, 0.1))
    assert equal_alpha[2].value is None  # the correlation
    rounded = estimates(points, js=np.where(points.js < 0, -1e-12, points.js))
    assert rounded[6].value == 0  # the share of ΔJS < 0
    nothing = dict.fromkeys(("alpha", "js"), points.alpha[:0])
    without = estimates(points, rows=points.rows[:0], steps=points.steps[:0], **nothing)
    assert [e.value for e in without[1:]] == [None] * 8


def test_context_spread_equals_loops():
    torch.manual_seed(4)
    contexts, lengths = torch.randn(4, 5, 3, dtype=torch.float64), torch.tensor([5, 2, 1, 3])
    contexts[3] = 0
    spread = context_spread.spread(contexts, lengths)
    for row, length in ((0, 5), (1, 2)):
        vectors = contexts[row, :length].tolist()
        size = sum(math.hypot(*v) for v in vectors) / length
        distances = [sum(math.dist(v, other) for other in vectors) for v in vectors]
        expected = sum(distances) / length / (length - 1) / size
        assert spread[row].item() == pytest.approx(expected, rel=1e-12)
    assert spread[2:].isnan().all()  # one vector; zeros
    known = (spread[0] + spread[1]).item() / 2
    assert mean(spread.numpy(), Draws(4, 50)).value == pytest.approx(known)


def stored_points(analysed, name):
    """Return the stored points of a system: (line, step) -> (Δα, ΔJS)."""
    return {
        (int(p["line"]), int(p["step"])): (float(p["d_alpha"]), float(p["d_js"]))
        for p in analysed.csv_rows("importance", f"points.{name}.csv")
    }


def test_points_rows_and_figure_of_a_transformer_and_a_recurrent_model(analysed):
    analysed.system(model=DEEP)
    analysed.system("recurrent", "rnnsearch", GATED)
    rows = analysed.rows("importance")
    lengths = [len(line.split()) + 1 for line in analysed.lines["test"]]
    steps = [(i, step + 1) for i, length in enumerate(lengths, 1) for step in range(length)]
    count = len(steps)
    assert [(row["system"], row["attention"], row["points"]) for row in rows] == [
        ("base", "decoder.1.cross", count),
        ("recurrent", "attention", count),
    ]
    for row in rows:
        points = stored_points(analysed, row["system"])
        assert list(points) == steps
        loss = sum((x - y) ** 2 for x, y in points.values())
        assert row["loss"]["value"] == pytest.approx(loss, rel=1e-3)
        spread = row["context_spread"]
        assert spread["low"] <= spread["value"] <= spread["high"]
        assert abs(row["even_context_spread"]["value"]) < 1e-4 < spread["value"]
    figure = analysed.text("importance")
    assert "renormalised" in figure
    clouds = analysed.figure("importance")["panels"]
    for row in rows:
        cloud = clouds[f"{row['system']} ({count:,} of {count:,} points)"]
        drawn = np.array([cloud["x"], cloud["y"]]).T
        assert drawn == pytest.approx(
            np.array([*stored_points(analysed, row["system"]).values()]), abs=1e-6
        )


def test_raw_removal_keeps_the_other_weights(analysed):
    analysed.system(model=DEEP)
    (renormalised,) = analysed.rows("importance")
    finding = analysed.analyze("importance", removal="raw")
    (raw,) = finding["table"]["rows"]
    assert raw["removal"] == "raw" and raw["loss"]["value"] != renormalised["loss"]["value"]
    assert json.dumps(finding).count("stay as they are") == 1


def test_points_of_a_sample_equal_those_of_the_whole_set(analysed, stdout):
    analysed.system("own", "rnnsearch", GATED)
    points = {}
    for count in (10_000, 12):
        finding = analysed.analyze("importance", sentences=count)
        points[count] = stored_points(analysed, "own")
    assert "(12 of 40 sentences of test, removal" in stdout()
    assert {line for line, _ in points[10_000]} == {*range(1, 41)}
    lines = {line for line, _ in points[12]}
    assert len(lines) == 12 and max(lines) > 12  # drawn, not the first ones
    assert (importance.draw(40, 12) + 1).tolist() == sorted(lines)
    assert points[12].keys() == {place for place in points[10_000] if place[0] in lines}
    for place, numbers in points[12].items():
        assert numbers == pytest.approx(points[10_000][place], abs=2e-6)
    row = finding["table"]["rows"][0]
    assert row["points"] == len(points[12])
    assert row["d_alpha"]["low"] < row["d_alpha"]["value"] < row["d_alpha"]["high"]
    assert (finding["facts"]["sentences"], finding["facts"]["of"]) == (12, 40)


def test_unknown_removal_and_unchangeable_attention_are_refused(analysed, monkeypatch):
    analysed.system()
    words = "removal.*'renormalised' or 'raw'"
    analysed.refused("importance", ConfigError, words, removal="row")
    # A model that records its weights, but ignores changes.
    monkeypatch.setattr("nmtkit.nn.attention.changed", lambda name, weights: weights)
    words = "base: the weights of its attention 'decoder.0.cross' cannot be changed"
    analysed.refused("importance", DataError, words)


def test_removal_sets_a_position_to_zero_and_rescales_only_if_asked():
    weights = torch.tensor([[[[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]]])
    for renormalise, first in ((False, [0.0, 0.3, 0.2]), (True, [0.0, 0.6, 0.4])):
        left = ablation.without(weights, torch.tensor([[0, 0]]), renormalise)
        torch.testing.assert_close(left, torch.tensor([[[first, [0.0] * 3]]]))
    half = weights / 2  # a query that keeps all positions is not rescaled
    left = ablation.without(half, torch.tensor([[ablation.NOTHING, 2]]), True)
    assert torch.equal(left[..., 0, :], half[..., 0, :])
