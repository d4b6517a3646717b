import pytest

from nmtkit.prep import clean, learn, parse_spans, pipeline


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks so small that a few hundred lines make many, and workers are used everywhere."""
    for module in (pipeline, parse_spans):
        rows = lambda files, **_: clean.row_chunks(files, max_rows=7)  # noqa: E731
        monkeypatch.setattr(module, "row_chunks", rows)
    monkeypatch.setattr(pipeline, "FEW_LINES", 0)
    monkeypatch.setattr(learn, "WORDS_PER_CHUNK", 10)
