"""Forced scores against a loop over positions, against search, and in chunks."""

from __future__ import annotations

import pytest
from toy_models import batch_of, log_probs, recurrent, sources

from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import EOS
from nmtkit.translate import forced
from nmtkit.translate.beam import search
from nmtkit.translate.forced import forced_scores, pair_batch


@pytest.mark.parametrize("chunk", [1, 50, 1 << 22])
@pytest.mark.parametrize("count", [1, 3])
def test_forced_scores_are_the_slow_ones(count, chunk, monkeypatch):
    monkeypatch.setattr(forced, "CHUNK_LOGITS", chunk)
    models = [recurrent(i, 20) for i in range(count)]
    src, tgt = sources(0, 20, [5, 1, 7, 3]), sources(1, 20, [2, 6, 1, 9])
    found = forced_scores(models, pair_batch(src, tgt))
    for scores, s, t in zip(found, src, tgt, strict=True):
        slow = [log_probs(models, s, t[:i])[token] for i, token in enumerate(t)]
        assert scores == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("count", [1, 2])
def test_search_score_is_forced_score(beam, count):
    models = [recurrent(30 + i, 60, eos_bias=5.0) for i in range(count)]
    src = sources(2, 60, [5, 9, 1, 7, 3, 12])
    found = search(models, batch_of(src), SearchSettings(beam=beam, nbest=beam, max_length_b=6))
    chosen = [
        (s, h) for s, hypotheses in zip(src, found, strict=True) for h in hypotheses if h.finished
    ]
    assert len(chosen) >= 6
    scores = forced_scores(
        models, pair_batch([s for s, _ in chosen], [[*h.ids, EOS] for _, h in chosen])
    )
    assert [sum(s) for s in scores] == pytest.approx([h.log_prob for _, h in chosen], abs=1e-10)


def test_targets_are_needed():
    with pytest.raises(ValueError, match="targets"):
        forced_scores([recurrent(0, 9)], batch_of([[4, EOS]]))
