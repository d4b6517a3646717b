"""Clean a shard of the training text: tidy, tokenize and filter its pairs, count their words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

import numpy as np

from nmtkit import files
from nmtkit.arrays import Ints, Mask
from nmtkit.prep.repeats import read_wanted
from nmtkit.prep.shards import Shard
from nmtkit.prep.tasks import Outcome, step_cache, total
from nmtkit.prep.words import SideText
from nmtkit.prep.work import TEXT_MODEL
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide, load_splitter
from nmtkit.text.splitter import Splitter
from nmtkit.text.tidy import tidy, utf8_lines
from nmtkit.text.tokenizer import SIDES, SPACE, Side, tokenizer_name, usual_tokenizer

Reasons = dict[str, dict[str, int]]
"""For each reason the number of dropped pairs ("pairs"), and how often each side is to blame."""


def truecased(settings: PrepSettings, side: Side, language: str) -> bool:
    """True if a side is truecased.

    Only text that Moses tokenizes is truecased. Chinese has no capitals at the start of a sentence:
    detruecasing would give `iPhone` one. Text that is tokenized already stays as it is.
    """
    wanted = settings.truecase in (side, "both") and not settings.lowercase
    return wanted and tokenizer_name(side, language, settings) == "moses"


class Cleaner:
    """Tidies, tokenizes and filters training pairs, and counts what it changes and drops.

    Args:
        languages: of source and target.
        settings: of prep.
        splitters: of both sides; they normalise the text.
    Attributes:
        reasons: why pairs of the shard were dropped.
        changes: what `tidy` changed on each side of the shard, by kind.
        texts: the text of both sides of the shard.
    """

    def __init__(
        self,
        languages: tuple[str, str],
        settings: PrepSettings,
        splitters: Sequence[Splitter | None] = (None, None),
    ) -> None:
        self._sides, self.texts = [], []
        for side, language, splitter in zip(SIDES, languages, splitters, strict=True):
            name = tokenizer_name(side, language, settings)
            self._sides.append(TextSide(language, settings, None, splitter, name))
            by_character = name == "raw" and usual_tokenizer(language) != "moses"
            self.texts.append(SideText(truecased(settings, side, language), by_character))
        self._settings = settings
        # A line with more spaces than this stays too long: tokenization joins at most two words.
        self._hopeless = 10 * settings.max_words
        self.reset()

    def reset(self) -> None:
        """Begin the text of another shard."""
        self.reasons: Reasons = {}
        self.changes: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        for text in self.texts:
            text.begin()

    def __call__(self, texts: Sequence[bytes]) -> Mask:
        """Clean a chunk, and add the pairs that are kept to the text of the shard.

        Args:
            texts: the source lines and the target lines, each with its LF.
        Returns: True for each row of the chunk that is kept.
        """
        drop = self._settings.on_bad_utf8 == "drop"
        src, tgt = (
            utf8_lines(text, None if drop else changes)
            for text, changes in zip(texts, self.changes, strict=True)
        )
        bad = np.array([[line is None for line in lines] for lines in (src, tgt)], bool)
        if bad[0].any():  # a target is not read if its source is bad
            bad[1] &= ~bad[0]
            tgt = [None if a is None else b for a, b in zip(src, tgt, strict=True)]
        sides = [
            text.read([self._numbers(side, line) for line in lines])
            for side, (text, lines) in enumerate(zip(self.texts, (src, tgt), strict=True))
        ]
        words = np.stack([side.words for side in sides])
        giant = np.stack([side.giant for side in sides])
        kept = np.ones(len(src), bool)
        reasons = {"not UTF-8": bad, **drop_reasons(words, giant, self._settings)}
        for reason, blame in reasons.items():
            blame = blame & kept
            kept &= ~blame.any(0)
            self.reasons = total([self.reasons, {reason: blamed(blame)}])
        for text, side in zip(self.texts, sides, strict=True):
            text.keep(side, kept)
        return kept

    def _numbers(self, side: int, raw: str | None) -> list[int]:
        """Tidy and tokenize a line, and number its parts. A bad line (None) has no parts."""
        if raw is None:
            return []
        line = tidy(raw, self.changes[side])
        if SPACE in line and self._settings.subwords == "sentencepiece":
            line = tidy(line.replace(SPACE, " "))  # as SentencePiece does, which is not learnt yet
        if line.count(" ") > self._hopeless:  # its words would fill the memory
            return [self.texts[side].parts["x"]] * (self._hopeless + 1)
        return self._sides[side].numbered(line, self.texts[side].parts)


def drop_reasons(words: Ints, giant: Mask, settings: PrepSettings) -> dict[str, Mask]:
    """Return for each reason to drop a training pair the sides that are to blame (2, N).

    A pair is dropped for the first reason that blames one of its sides. The rules are those of
    Moses' clean-corpus-n.perl, and a limit for the length of a word.

    Args:
        words: the number of words of each side; of characters in text without spaces (2, N).
        giant: True for a side with a word that is too long (2, N).
        settings: of prep.
    """
    shorter, longer = words.min(0), words.max(0)
    is_unlike = longer / np.maximum(shorter, 1) > settings.max_ratio
    return {
        "empty": words == 0,
        "too long": words > settings.max_words,
        "too short": words < settings.min_words,
        "ratio": is_unlike & (words == longer),
        "word too long": giant,
    }


def blamed(blame: Mask) -> dict[str, int]:
    """Return one entry of `Reasons`.

    Args:
        blame: True for each side that is to blame (2, N).
    """
    counts = [blame.any(0).sum(), *blame.sum(1)]
    return dict(zip(("pairs", *SIDES), map(int, counts), strict=True))


def clean_shard(
    work: Path,
    index: int,
    shard: Shard,
    languages: tuple[str, str],
    settings: PrepSettings,
    dropped: str = "",
) -> Outcome:
    """Clean a shard of the training text. Write the text as word numbers, the words with their
    counts, and which rows are kept.

    Args:
        languages, settings: as for `Cleaner`.
        dropped: folder in the work folder, with the repeated pairs to drop ("" for none).
    Returns: the number of kept pairs, dropped pairs by reason, and changes of the text; the files.
    """

    def cleaner() -> Cleaner:
        splitters = [load_splitter(work / TEXT_MODEL, side) for side in SIDES]
        return Cleaner(languages, settings, splitters)

    clean = step_cache(cleaner)  # remembers words from shard to shard
    clean.reset()
    kept, reasons = read_wanted(work / dropped, shard)
    row = 0
    for chunk in shard.chunks():
        mask = kept[row : row + chunk[0].count(b"\n")]  # a view: changes of it change `kept`
        row += len(mask)
        if not mask.all():
            chunk = [_selected(text, mask) for text in chunk]
        mask[mask] = clean(chunk)
    paths = [write_kept(work / "clean", shard, kept)]
    for name, text in zip(SIDES, clean.texts, strict=True):
        forms, table = text.finish(index)
        path = work / "clean" / f"{shard.name}.{name}"
        paths += [*table.save(path), files.write_array(Path(f"{path}.text.npy"), forms)]
    changes = dict(zip(SIDES, map(dict, clean.changes), strict=True))
    value = {"kept": int(kept.sum()), "reasons": reasons | clean.reasons, "changes": changes}
    return value, paths


def _selected(text: bytes, mask: Mask) -> bytes:
    return b"".join([line + b"\n" for line in compress(text.split(b"\n"), mask.tolist())])


def write_kept(folder: Path, shard: Shard, mask: Mask) -> Path:
    """Write which rows of a shard are kept, and return the file."""
    return files.write_array(folder / f"{shard.name}.kept.npy", mask)


def read_kept(folder: Path, shard: Shard) -> Mask:
    """Return which rows of a shard are kept."""
    kept: Mask = np.load(folder / f"{shard.name}.kept.npy", allow_pickle=False)
    return kept
