"""The digests in the head of a page, which tell from what it was made."""

from __future__ import annotations

import json
from pathlib import Path

from nmtkit import files
from nmtkit.run import Run


def of_scores(run: Run) -> str:
    """Return one number for the scores of a run."""
    paths = sorted(run.path.glob("score/[!.]*/scores.json"))
    return files.text_sha256(json.dumps(files.hashes(paths, run.path)))


def has(page: Path, digest: str) -> bool:
    """True if a page exists and was made from what has this digest."""
    if not page.is_file():
        return False
    try:
        with open(page, encoding="utf-8") as stream:
            return f'content="{digest}"' in stream.read(4096)
    except (OSError, UnicodeDecodeError):
        return False
