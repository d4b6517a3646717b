"""subword-nmt, the reference for BPE, and segmented words as lists."""

import contextlib
import io
from collections import Counter

import numpy as np
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe


def word_counts(lines):
    return Counter(word for line in lines for word in line.split(" ") if word)


def reference_codes(counts, merges):
    """Return the codes file that subword-nmt learns.

    Words that hold "</w>" are left out: subword-nmt takes it for its end marker.
    """
    out = io.StringIO()
    lines = [f"{word} {count}" for word, count in counts.items() if "</w>" not in word]
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe(lines, out, merges, is_dict=True)
    return out.getvalue()


def reference_bpe(codes, vocabulary=None):
    with open(codes, encoding="utf-8", newline="\n") as stream:
        return BPE(stream, vocab=vocabulary)


def pieces_of(segmented):
    """Return the pieces of each word of a `Segmented`."""
    words = np.split(segmented.flat, np.cumsum(segmented.lengths)[:-1])
    return [[segmented.pieces[piece] for piece in word] for word in words]
