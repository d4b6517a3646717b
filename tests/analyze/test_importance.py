"""ΔJS against Δα: batches against one removal at a time, the draws, the numbers, the stage."""

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
    """JS in base 2."""
    return js(p, q) / math.log(2)


def one_removal(model, site, batch, row, step, position, renormalise):
    """The next word's distribution at one step of one sentence, which is decoded up to there,
    alone, without one position; -1: with all.
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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batch_equals_one_removal_at_a_time(case):
    model, renormalise = case.build(), CASES.index(case) % 2 == 0
    batch = contract.collate([*contract.pairs(4), ([EOS], [5, EOS])], more=1)
    attention = of_source(model, renormalise)
    site = attention.site
    d_alpha, d_js, spread = ablation.compare(attention, batch)
    points = d_alpha.isfinite()
    assert torch.equal(points, d_js.isfinite())
    with capture() as seen:
        model.decode(batch.tgt_in, model.encode(batch))
    for contexts in seen.get(site + context_spread.ENDING, []):
        wanted = context_spread.spread(contexts, batch.tgt_lengths)
        torch.testing.assert_close(spread[0], wanted, equal_nan=True)
    single = contract.collate([([EOS], [5, EOS])])  # there is no other position
    assert ablation.compare(attention, single).alpha.isnan().all()
    alpha = seen[site][0].mean(1)
    best = alpha.argmax(-1)
    other = drawn_positions(batch.rows, best, batch.src_lengths)
    steps = torch.arange(batch.tgt_in.size(1)) < batch.tgt_lengths[:, None]
    assert torch.equal(points, steps & (batch.src_lengths > 1)[:, None])
    for row, t in points.nonzero().tolist():
        i, j = int(best[row, t]), int(other[row, t])
        whole, without_i, without_j = (
            one_removal(model, site, batch, row, t, k, renormalise) for k in (-1, i, j)
        )
        wanted = (alpha[row, t, i] - alpha[row, t, j]).item()
        assert d_alpha[row, t].item() == pytest.approx(wanted, abs=1e-12)
        wanted = bits(whole, without_i) - bits(whole, without_j)
        assert d_js[row, t].item() == pytest.approx(wanted, abs=1e-10)
    assert d_js[points].abs().max() > 1e-8


def test_a_model_that_attends_to_its_context_too_is_left_out():
    model, ids = contract.Case("concat").build(), [[5, 6, EOS], [7, EOS]]
    pairs = GivenPairs(ids, ids, documents=Documents([0], 2))
    batch = collate(pairs, np.arange(2), CPU, model.context_rule)
    with pytest.raises(LeftOut, match="attends to more than the source"):
        ablation.compare(of_source(model), batch)


def test_all_steps_go_in_one_pass_only_where_no_step_feels_another():
    alone = {case.variant for case in CASES if of_source(case.build()).in_parallel}
    assert alone == {"transformer", "full-dc", "pr"}
    model = contract.Case("transformer").build()
    below = Ablation(model, "decoder.0.cross", True)
    assert not below.in_parallel  # a layer above carries it on
    with pytest.raises(LeftOut, match="attention 'nowhere' cannot be changed"):
        Ablation(model, "nowhere", True)


@pytest.mark.parametrize("variant", ["transformer", "caru"])
def test_each_sentence_is_decoded_whole_once_and_once_for_each_removal(variant, monkeypatch):
    model = contract.Case(variant).build()
    batch = contract.collate(contract.pairs(4), more=1)
    attention, decode, words = of_source(model), model.decode, []
    monkeypatch.setattr(
        model,
        "decode",
        lambda tgt_in, *more: (words.append(tgt_in.numel()), decode(tgt_in, *more))[1],
    )
    ablation.compare(attention, batch)
    whole, removals, even = 1, 2, 1
    assert sum(words) == (whole + removals + even) * batch.tgt_in.numel()


def test_what_is_left_of_weights():
    weights = torch.tensor([[[[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]]])
    for renormalise, first in ((False, [0.0, 0.3, 0.2]), (True, [0.0, 0.6, 0.4])):
        left = ablation.without(weights, torch.tensor([[0, 0]]), renormalise)
        torch.testing.assert_close(left, torch.tensor([[[first, [0.0] * 3]]]))
    half = weights / 2  # a query that keeps all positions is not even scaled
    left = ablation.without(half, torch.tensor([[ablation.NOTHING, 2]]), True)
    assert torch.equal(left[..., 0, :], half[..., 0, :])


def test_draws_are_even_among_the_other_positions_and_each_sentence_has_its_own():
    rows, lengths = torch.arange(200), torch.full((200,), 4)
    best = torch.full((200, 60), 2)
    found = drawn_positions(rows, best, lengths)
    counts = torch.bincount(found.flatten(), minlength=4)
    assert counts[2] == 0 and len(counts) == 4
    assert (counts[[0, 1, 3]] / 4000 - 1).abs().max() < 0.05
    again = drawn_positions(rows[[7, 3]], best[[7, 3], :9], lengths[[7, 3]])
    assert torch.equal(again, found[[7, 3], :9])
    assert not torch.equal(found[3], found[7])


def test_numbers_from_sums_over_sentences():
    rng = np.random.default_rng(3)
    rows = np.sort(rng.integers(0, 12, 50))
    x = rng.random(50)
    y = x / 2 - 0.1 + 0.2 * rng.standard_normal(50)
    points = importance.Points(rows, np.arange(50), x, y, np.full((2, 14), np.nan))
    found = importance.numbers_of(importance.sums(points, 14).sum(0))
    loss = sum((x - y) ** 2)
    assert found == pytest.approx(
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

    def estimates(points):
        return importance.estimates(points, Draws(14, 200), np.arange(14))

    *numbers, spread, even = estimates(points)
    assert spread.value is even.value is None
    assert all(e.low < e.value < e.high for e in numbers)
    few = rows < 9
    few_points = importance.Points(rows[few], np.arange(few.sum()), x[few], y[few], points.spread)
    assert {(e.low, e.high) for e in estimates(few_points)} == {(None, None)}
    same = importance.Points(rows, np.arange(50), np.full(50, 0.1), y, points.spread)
    assert estimates(same)[2].value is None  # all at one Δα: no correlation
    noise = importance.Points(rows, np.arange(50), x, np.where(y < 0, -1e-12, y), points.spread)
    assert estimates(noise)[6].value == 0  # rounding is no sign
    none = importance.Points(rows[:0], rows[:0], x[:0], y[:0], points.spread)
    assert [e.value for e in estimates(none)[1:]] == [None] * 8


def test_spread_of_contexts_by_loops():
    torch.manual_seed(4)
    given, lengths = torch.randn(4, 5, 3, dtype=torch.float64), torch.tensor([5, 2, 1, 3])
    given[3] = 0
    found = context_spread.spread(given, lengths)
    for row, length in enumerate(lengths.tolist()):
        if length == 1 or row == 3:
            assert found[row].isnan()
            continue
        own = given[row, :length].tolist()
        size = sum(math.hypot(*v) for v in own) / length
        wanted = [sum(math.dist(v, other) for other in own) / (length - 1) / size for v in own]
        assert found[row].item() == pytest.approx(sum(wanted) / length, rel=1e-12)
    assert mean(found.numpy(), Draws(4, 50)).value == pytest.approx(
        (found[0] + found[1]).item() / 2
    )


def stored_points(analysed, name):
    """(line, step) -> (Δα, ΔJS) of a system, as they are kept."""
    return {
        (int(p["line"]), int(p["step"])): (float(p["d_alpha"]), float(p["d_js"]))
        for p in analysed.csv_rows("importance", f"points.{name}.csv")
    }


def test_the_stage_with_and_without_feedback(analysed):
    analysed.system(model=DEEP)
    analysed.system("recurrent", "rnnsearch", GATED)
    found = analysed.analyze("importance")
    steps = [
        (line, step + 1)
        for line, text in enumerate(analysed.lines["test"], 1)
        for step in range(len(text.split()) + 1)
    ]
    count = len(steps)
    assert [(row["system"], row["attention"], row["points"]) for row in found["table"]["rows"]] == [
        ("base", "decoder.1.cross", count),
        ("recurrent", "attention", count),
    ]
    for row in found["table"]["rows"]:
        points = stored_points(analysed, row["system"])
        assert list(points) == steps
        loss = sum((x - y) ** 2 for x, y in points.values())
        assert row["loss"]["value"] == pytest.approx(loss, rel=1e-3)
        spread = row["context_spread"]
        assert spread["low"] <= spread["value"] <= spread["high"]
        assert abs(row["even_context_spread"]["value"]) < 1e-4 < spread["value"]
    figure = analysed.text("importance")
    assert f"base ({count:,} of {count:,} points)" in figure and "renormalised" in figure
    before = found["table"]["rows"][0]["loss"]["value"]
    after = analysed.analyze("importance", removal="raw")
    row = after["table"]["rows"][0]
    assert row["removal"] == "raw" and row["loss"]["value"] != before
    assert json.dumps(after).count("stay as they are") == 1


def test_some_sentences_are_those_of_the_whole_set(analysed, stdout):
    analysed.system("own", "rnnsearch", GATED)
    points = {}
    for count in (10_000, 12):
        found = analysed.analyze("importance", sentences=count)
        points[count] = stored_points(analysed, "own")
    assert "(12 of 40 sentences of test, removal" in stdout()
    assert {line for line, _ in points[10_000]} == {*range(1, 41)}
    lines = {line for line, _ in points[12]}
    assert len(lines) == 12 and max(lines) > 12  # drawn, not the first ones
    assert (importance.draw(40, 12) + 1).tolist() == sorted(lines)
    assert points[12].keys() == {place for place in points[10_000] if place[0] in lines}
    for place, numbers in points[12].items():
        assert numbers == pytest.approx(points[10_000][place], abs=2e-6)
    row = found["table"]["rows"][0]
    assert row["points"] == len(points[12])
    assert row["d_alpha"]["low"] < row["d_alpha"]["value"] < row["d_alpha"]["high"]
    assert (found["facts"]["sentences"], found["facts"]["of"]) == (12, 40)


def test_what_cannot_be_is_said(analysed, monkeypatch):
    analysed.system()
    words = "removal.*'renormalised' or 'raw'"
    analysed.refused("importance", ConfigError, words, removal="row")
    # A model that only records.
    monkeypatch.setattr("nmtkit.nn.attention.changed", lambda name, weights: weights)
    words = "base: the weights of its attention 'decoder.0.cross' cannot be changed"
    analysed.refused("importance", DataError, words)
