import pytest

from nmtkit.prep import check, learn, shards, stage, steps


@pytest.fixture
def small_shards(monkeypatch):
    """Shards so small that a few hundred lines make many, and workers are used everywhere."""
    for module in (check, shards):
        monkeypatch.setattr(module, "MARK_EVERY", 3)
    monkeypatch.setattr(shards, "FEWEST", 37)
    monkeypatch.setattr(steps, "PART_BYTES", 3000)
    monkeypatch.setattr(stage, "FEW_LINES", 0)
    monkeypatch.setattr(learn, "WORDS_PER_CHUNK", 10)
