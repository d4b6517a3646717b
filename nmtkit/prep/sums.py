"""Add up the facts of all shards for the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from nmtkit import files
from nmtkit.prep.clean import Reasons
from nmtkit.prep.shards import SetShards
from nmtkit.prep.tasks import Fact
from nmtkit.prep.work import OUT
from nmtkit.text.tokenizer import SIDES


def sum_reasons(facts: Sequence[Fact]) -> Reasons:
    """Return dropped pairs by reason and side."""
    total = Reasons()
    for fact in facts:
        for reason, side, count in fact.value["reasons"]:
            total[reason, side] += count
    return total


def by_reason(counts: Reasons) -> dict[str, dict[str, int]]:
    """Return dropped pairs by reason, most frequent first, and the sides to blame."""
    reasons = sorted(
        {reason for reason, _ in counts}, key=lambda reason: (-counts[reason, "pairs"], reason)
    )
    return {reason: {key: counts[reason, key] for key in ("pairs", *SIDES)} for reason in reasons}


def sum_changes(counts: Sequence[Sequence[dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Return what was changed in the text of each side, as the manifest has it."""
    sums = [Counter[str](), Counter[str]()]
    for both in counts:
        for total, count in zip(sums, both, strict=True):
            total.update(count)
    return {side: dict(sorted(count.items())) for side, count in zip(SIDES, sums, strict=True)}


def sum_lines(
    shards: SetShards, surveyed: Sequence[Fact], kind: Literal["foreign", "identical"]
) -> dict[str, dict[str, int]]:
    """Return the lines of a kind that `Survey` counts, by set and side."""
    facts = iter(surveyed)
    result = {}
    for name, parts in shards.items():
        total = Counter[str]()
        for _ in parts:
            total.update(next(facts).value[kind])
        result[name] = dict(+total)
    return result


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
