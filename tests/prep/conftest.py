import contextlib
import functools

import pytest

from nmtkit.prep import check, clean, learn, shards, stage, steps


@contextlib.contextmanager
def make_shards_small():
    """Make shards so small that a few hundred lines fill many, and use workers everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (check, shards):
            patch.setattr(module, "MARK_EVERY", 3)
        patch.setattr(shards, "FEWEST", 37)
        # Words are added up in several parts; test_repeats.py compares pairs in several parts.
        patch.setattr(steps, "PART_BYTES", 12_000)
        patch.setattr(stage, "FEW_LINES", 0)
        patch.setattr(learn, "WORDS_PER_CHUNK", 10)
        yield


@pytest.fixture
def small_shards():
    with make_shards_small():
        yield


def replace_cleaning(monkeypatch, function):
    """Let this process and its workers clean shards with another function."""
    replaced = functools.wraps(clean.clean_shard)(function)
    for module in (clean, steps):
        monkeypatch.setattr(module, "clean_shard", replaced)
