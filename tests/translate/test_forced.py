"""Forced scores against a loop over positions, in chunks of logits."""

import pytest
from toy_models import encoded, next_log_probs, recurrent, sources

from nmtkit.data.batches import source_batch
from nmtkit.text.vocabulary import EOS
from nmtkit.translate import forced
from nmtkit.translate.forced import forced_scores, pair_batch


@pytest.mark.parametrize("chunk", [1, 50, 1 << 22])
@pytest.mark.parametrize("count", [1, 3])
def test_forced_scores_equal_the_log_probability_of_each_position(count, chunk, monkeypatch):
    monkeypatch.setattr(forced, "CHUNK_LOGITS", chunk)
    models = [recurrent(i, 20) for i in range(count)]
    src, tgt = sources(0, 20, [5, 1, 7, 3]), sources(1, 20, [2, 6, 1, 9])
    scores = forced_scores(models, pair_batch(src, tgt))
    for of_pair, source, target in zip(scores, src, tgt, strict=True):
        memories = encoded(models, source)
        expected = [
            next_log_probs(memories, [target[:i]])[0][token] for i, token in enumerate(target)
        ]
        assert of_pair == pytest.approx(expected, abs=1e-12)


def test_forced_scores_without_targets_raise_value_error():
    with pytest.raises(ValueError, match="targets"):
        forced_scores([recurrent(0, 9)], source_batch([[4, EOS]]))
