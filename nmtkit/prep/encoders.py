"""What the worker processes of prep do with tokenized text: words to subwords to ids, each word once."""

from __future__ import annotations

import functools
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nmtkit.data.store import id_type
from nmtkit.data.vocabulary import EOS, UNK, Vocabulary, load_vocabularies
from nmtkit.files import text_lines
from nmtkit.prep.clean import tidy
from nmtkit.prep.subwords import Bpe
from nmtkit.prep.text import TextSide
from nmtkit.prep.truecase import DELAYED_START, SENTENCE_END

CACHED_WORDS = 1 << 18
BOTH = ("src", "tgt")


@functools.lru_cache(maxsize=1)
def load_sides(prep: Path) -> tuple[tuple[TextSide, TextSide], tuple[Vocabulary, Vocabulary]]:
    """Both sides' text and vocabularies, read once a process; forked workers inherit what their parent has read."""
    return (TextSide.load(prep, "src"), TextSide.load(prep, "tgt")), load_vocabularies(prep)


class SubwordCounter:
    """Segments words that occur so often, once each.

    Args:
        codes: the BPE codes file.
        vocabulary: the subwords allowed, None for all.
    """

    def __init__(self, codes: Path, vocabulary: set[str] | None) -> None:
        self._bpe = Bpe(codes, vocabulary)

    def __call__(self, chunk: list[tuple[str, int]]) -> tuple[Counter[str], list[str]]:
        """The counts of the subwords of (word, count) pairs, and each word followed by its subwords, space-joined."""
        counts: Counter[str] = Counter()
        segmented: list[str] = []
        for word, count in chunk:
            pieces = self._bpe.segment([word])
            segmented.append(" ".join([word, *pieces]))
            for piece in pieces:
                counts[piece] += count
        return counts, segmented


class _Known(dict[str, bytes]):
    """A bounded cache of a function of a word."""

    def __init__(self, look_up: Callable[[str], bytes]) -> None:
        self._look_up = look_up

    def __missing__(self, word: str) -> bytes:
        if len(self) >= CACHED_WORDS:
            self.clear()
        result = self[word] = self._look_up(word)
        return result


class WordIds:
    """Words to token ids of a side: truecasing, BPE and vocabulary, each done once for a word and its position (start of a sentence or not).

    Args:
        side: the text of the side.
        vocabulary: of the side.
        kind: array code of the ids.
        segmented: a file of words followed by their subwords, so that the frequent ones needn't be segmented by every process; need not exist.
    """

    def __init__(self, side: TextSide, vocabulary: Vocabulary, kind: str, segmented: Path) -> None:
        self._bpe = side.bpe
        self._vocabulary = vocabulary
        self._kind = kind
        self._pieces: dict[str, str] = dict(line.split(" ", 1) for line in text_lines(segmented)) if segmented.is_file() else {}  # type: ignore[misc]
        caser = side.truecaser
        self._truecased = caser is not None
        self._elsewhere = _Known(lambda word: self._ids(caser.truecase(["x", word])[1] if caser else word))
        self._at_start = _Known(lambda word: self._ids(caser.truecase([word])[0] if caser else word))

    def __call__(self, tokens: list[str]) -> bytes:
        """The ids of a tokenized line, without </s>, as bytes."""
        if not self._truecased:
            return b"".join(map(self._elsewhere.__getitem__, tokens))
        at_start, elsewhere = self._at_start, self._elsewhere
        parts: list[bytes] = []
        start = True
        for token in tokens:
            if start:
                parts.append(at_start[token])
                start = token in SENTENCE_END or token in DELAYED_START
            else:
                parts.append(elsewhere[token])
                start = token in SENTENCE_END
        return b"".join(parts)

    def _ids(self, word: str) -> bytes:
        known = self._pieces.get(word)
        pieces = known.split(" ") if known is not None else self._bpe.segment([word]) if self._bpe else [word]
        return array(self._kind, self._vocabulary.encode(pieces)[:-1]).tobytes()


@dataclass
class Encoded:
    """A chunk of pairs as token ids."""

    ids: bytes
    """src, tgt, src, … each with its </s>, in the store's type."""
    lengths: array[int]
    dropped: list[int]
    reasons: Counter[tuple[str, str]]
    unknown: list[int]
    """<unk> on each side."""
    texts: list[str] = field(default_factory=list)
    """Tidied lines of each stream (dev and test sets only)."""
    changes: list[Counter[str]] = field(default_factory=list)


class _Ids:
    """Collects the ids of a chunk."""

    def __init__(self, vocabularies: tuple[Vocabulary, Vocabulary]) -> None:
        self._type = id_type(max(map(len, vocabularies)))
        self.width = self._type.itemsize
        self.kind = "I" if self.width == 4 else "H"
        self.end = array(self.kind, [EOS]).tobytes()
        self._parts: list[bytes] = []
        self._lengths = array("q")

    def add(self, src: bytes, tgt: bytes) -> None:
        """Add a pair of sentences without </s>."""
        self._parts += (src, self.end, tgt, self.end)
        self._lengths.append(len(src) // self.width + 1)
        self._lengths.append(len(tgt) // self.width + 1)

    def done(self, dropped: list[int], reasons: Counter[tuple[str, str]]) -> Encoded:
        flat = b"".join(self._parts)
        sides = np.repeat(np.arange(len(self._lengths)) % 2, np.frombuffer(self._lengths, np.int64) if self._lengths else [])
        unknown = np.bincount(sides[np.frombuffer(flat, self._type.newbyteorder("=")) == UNK], minlength=2)
        return Encoded(flat, self._lengths, dropped, reasons, [int(count) for count in unknown])


class TrainEncoder:
    """Encodes tokenized training pairs and drops those with too many subwords.

    Args:
        prep: the prep folder as far as it is written: models, vocabularies and a manifest with languages and settings.
        text: the tokenized pairs; TEXT.src and TEXT.tgt, where they are, hold segmented words.
        max_subwords: most subwords of a side.
    """

    def __init__(self, prep: Path, text: Path, max_subwords: int) -> None:
        sides, self._vocabularies = load_sides(prep)
        kind = _Ids(self._vocabularies).kind
        self._encode = [WordIds(s, v, kind, text.with_name(f"{text.name}.{n}")) for n, s, v in zip(BOTH, sides, self._vocabularies, strict=True)]
        self._text = text
        self._longest = max_subwords

    def __call__(self, part: tuple[int, int]) -> Encoded:
        """Encode the pairs in a byte range (start, length) of the tokenized text."""
        with open(self._text, "rb") as stream:
            stream.seek(part[0])
            lines = stream.read(part[1]).decode().split("\n")[:-1]
        result = _Ids(self._vocabularies)
        dropped: list[int] = []
        reasons: Counter[tuple[str, str]] = Counter()
        src_ids, tgt_ids = self._encode
        longest = self._longest * result.width
        for row, (src_line, tgt_line) in enumerate(zip(lines[0::2], lines[1::2], strict=True)):
            src, tgt = src_ids(src_line.split(" ")), tgt_ids(tgt_line.split(" "))
            if len(src) > longest or len(tgt) > longest:
                dropped.append(row)
                reasons["too many subwords", "pairs"] += 1
                reasons.update(("too many subwords", side) for side, ids in zip(BOTH, (src, tgt), strict=True) if len(ids) > longest)
                continue
            result.add(src, tgt)
        return result.done(dropped, reasons)


class SetEncoder:
    """Encodes a dev or test set line for line, just as translation will, and keeps its text; nothing is dropped.

    Args:
        prep: as for TrainEncoder.
    """

    def __init__(self, prep: Path) -> None:
        self._sides, self._vocabularies = load_sides(prep)

    def __call__(self, chunk: list[Sequence[bytes]]) -> Encoded:
        """Encode rows of (src, ref, ref1, …); the store gets the first reference."""
        texts: list[list[str]] = [[] for _ in chunk[0]]
        changes: list[Counter[str]] = [Counter(), Counter()]
        result = _Ids(self._vocabularies)
        for row in chunk:
            lines = []
            for stream, raw in enumerate(row):
                counts = changes[min(stream, 1)]
                try:
                    line = raw.decode()
                except UnicodeDecodeError:
                    counts["lines not UTF-8"] += 1
                    line = raw.decode(errors="replace")
                lines.append(tidy(line, counts))
                texts[stream].append(lines[-1] + "\n")
            src, tgt = (v.encode(s.encode(line))[:-1] for v, s, line in zip(self._vocabularies, self._sides, lines, strict=False))
            result.add(array(result.kind, src).tobytes(), array(result.kind, tgt).tobytes())
        encoded = result.done([], Counter())
        encoded.texts = ["".join(text) for text in texts]
        encoded.changes = changes
        return encoded
