"""Add up the facts of all shards for the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nmtkit import files
from nmtkit.files import JsonObject
from nmtkit.prep.clean import Reasons
from nmtkit.prep.shards import SetShards
from nmtkit.prep.tasks import Fact, total
from nmtkit.prep.work import OUT


def by_frequency(reasons: Reasons) -> Reasons:
    """Return the reasons why pairs were dropped, most frequent first."""
    order = sorted(reasons, key=lambda reason: (-reasons[reason]["pairs"], reason))
    return {reason: reasons[reason] for reason in order if reasons[reason]["pairs"]}


def lines_of_sets(shards: SetShards, surveyed: Sequence[Fact]) -> dict[str, JsonObject]:
    """Return the lines that `survey_shard` counts, by set, kind and side."""
    facts = iter(surveyed)
    return {
        name: {
            kind: {side: count for side, count in counts.items() if count}
            for kind, counts in total(next(facts).value for _ in parts).items()
        }
        for name, parts in shards.items()
    }


def file_hashes(folder: Path, facts: Sequence[Fact]) -> dict[str, str]:
    """Return the checksum of every file of a folder but the manifest.

    Args:
        folder: the prep folder to be.
        facts: of all tasks, which know the checksums of their files.
    """
    known = {
        name.removeprefix(f"{OUT}/"): written.sha256
        for fact in facts
        for name, written in fact.files.items()
    }
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    del names["manifest.json"]
    return {name: known.get(name) or files.sha256(path) for name, path in names.items()}
