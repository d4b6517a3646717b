"""Cuts an over-long sentence into pieces that a model can translate one by one."""

from __future__ import annotations

from collections.abc import Sequence

from nmtkit.text.splitter import Splitter

# The punctuation that may end a piece, strongest first; quotes and brackets may follow.
ENDINGS = (frozenset(".!?…。！？"), frozenset(";:；："), frozenset(",，、–—"))
WIDE = frozenset("。！？；：，、")
"""Punctuation of text without spaces, where a piece may end although no word does."""
CLOSING = frozenset(
    ('"', "'", ")", "]", "»", "“", "”", "’", "」", "』", "）", "&quot;", "&apos;", "&#93;")
)


def cut(subwords: Sequence[str], limit: int, splitter: Splitter) -> list[list[str]]:
    """Cut a sentence into pieces of at most `limit` subwords.

    A piece ends after the last of the strongest punctuation marks among the second half of these
    subwords. Without a mark it ends at the last end of a word; without an end of a word, within the
    word.

    Args:
        subwords: of the whole sentence.
        limit: the most subwords of a piece, at least 1.
        splitter: finds the ends of words.
    Returns: the pieces in order; one piece if the sentence is short enough.
    """
    bare = [subword.lstrip("▁") for subword in subwords]
    word_ends = zip(bare, splitter.ends(subwords), strict=True)
    ends = [is_end or text in WIDE for text, is_end in word_ends]
    pieces = []
    start = 0
    while len(subwords) - start > limit:
        room = slice(start, start + limit)
        end = start + _end(bare[room], ends[room])
        pieces.append(list(subwords[start:end]))
        start = end
    return [*pieces, list(subwords[start:])]


def _end(room: Sequence[str], is_end: Sequence[bool]) -> int:
    """Return the number of subwords of the next piece.

    Args:
        room: the subwords that the piece may have.
        is_end: for each subword, True if a word ends with it.
    """
    first = max(1, len(room) // 2)
    word_ends = [end for end in range(len(room), 0, -1) if is_end[end - 1]]
    ends = [end for end in word_ends if end >= first]  # last first
    for marks in ENDINGS:
        for end in ends:
            last = end - 1
            while last > 0 and room[last] in CLOSING:
                last -= 1
            if room[last] in marks:
                return end
    return next(iter(word_ends), len(room))
