import contextlib
import functools

import pytest

from nmtkit.prep import check, clean, learn, shards, stage, steps


@pytest.fixture
def small_shards():
    """Shards so small that a few hundred lines make many, and workers are used everywhere."""
    with shards_made_small():
        yield


@contextlib.contextmanager
def shards_made_small():
    """Make shards small, for fixtures of a module."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (check, shards):
            patch.setattr(module, "MARK_EVERY", 3)
        patch.setattr(shards, "FEWEST", 37)
        # Words are added up in several parts; test_repeats.py compares pairs in several.
        patch.setattr(steps, "PART_BYTES", 12_000)
        patch.setattr(stage, "FEW_LINES", 0)
        patch.setattr(learn, "WORDS_PER_CHUNK", 10)
        yield


def replace_cleaning(monkeypatch, function):
    """Let this process and its workers clean shards by another function, found by its name."""
    replaced = functools.wraps(clean.clean_shard)(function)
    for module in (clean, steps):
        monkeypatch.setattr(module, "clean_shard", replaced)
