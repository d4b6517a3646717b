"""Forced scores against a loop over positions, against search, and in chunks."""

import pytest
from toy_models import batch_of, log_probs, recurrent, sources

from nmtkit.text.vocabulary import EOS
from nmtkit.translate import forced
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


def test_targets_are_needed():
    with pytest.raises(ValueError, match="targets"):
        forced_scores([recurrent(0, 9)], batch_of([[4, EOS]]))
