"""Raw text to token ids, streaming: two passes over the training text, both in worker processes, the first of which does the slow work.

1. tidy, tokenize, clean; count the words by case and position (for the truecaser) -> tokenized text in a temporary file
2. from these counts alone: truecaser, BPE, subword counts, vocabulary (no pass over the text: a word's truecased form depends on the
   word and on whether it starts a sentence, its subwords on the word)
3. truecase, segment, look up -> the store; dev and test sets go the way translation input goes, and keep every line
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import console, files
from nmtkit.data.store import StoreWriter
from nmtkit.data.vocabulary import SPECIALS, Vocabulary, load_vocabularies
from nmtkit.errors import DataError
from nmtkit.prep import check
from nmtkit.prep.encoders import BOTH, Encoded, SetEncoder, SubwordCounter, TrainEncoder, load_sides
from nmtkit.prep.parallel import ordered_map
from nmtkit.prep.sources import Corpus, SetFiles
from nmtkit.prep.subwords import learn_bpe
from nmtkit.prep.tally import FORMAT, Tally, fingerprint, tools
from nmtkit.prep.truecase import Truecaser
from nmtkit.prep.workers import Cleaned, Cleaner, SideCounts, rows_in_chunks, truecased
from nmtkit.settings import PrepSettings

TYPES_PER_CHUNK = 2000
KEPT_WORDS = 1 << 17


class Pipeline:
    """Prepares one corpus in a folder of its own.

    Args:
        folder: a fresh folder, the prep folder to be.
        corpus: what to prepare; its files are checked.
        facts: the facts of its files (`check.check_sets`).
        settings: of prep.
        jobs: worker processes; the output doesn't depend on it.
        identity: what was asked for, kept in the manifest as `source`.
    """

    def __init__(
        self, folder: Path, corpus: Corpus, facts: dict[str, check.Facts], settings: PrepSettings, jobs: int, identity: dict[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self.corpus = corpus
        self.facts = facts
        self.settings = settings
        self.jobs = jobs
        self.identity = identity or {}
        self.tally = Tally()
        self._text = folder / "train.tok"
        self._parts: list[tuple[int, int]] = []
        self._dropped = (array("q"), array("q"))  # rows dropped by cleaning, and among those kept then, by encoding

    def run(self) -> dict[str, Any]:
        """Do all of it.

        Returns: the manifest, written too.
        Raises: DataError if nothing is left of the training text.
        """
        train = self.corpus.sets[0]
        counts = self._clean(train)
        self._learn(counts)
        sets = [self._encode_train(train), *(self._encode_set(one) for one in self.corpus.sets[1:])]
        for path in (self._text, *map(self._segmented, BOTH)):
            path.unlink(missing_ok=True)
        for one in self.corpus.sets:
            self._write_documents(one)
        for name, path in self.corpus.extras.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.folder / name)
        return self._write_manifest(sets)

    def _clean(self, train: SetFiles) -> dict[str, SideCounts]:
        lines = check.total(train.src, self.facts)
        make = functools.partial(Cleaner, (self.corpus.src, self.corpus.tgt), self.settings)
        make()  # what it imports and compiles is then there in every worker
        counts = {side: SideCounts() for side in BOTH}
        offset = 0
        with self.tally.timed("tidy, tokenize, clean, count", 2 * lines), open(self._text, "wb") as stream:
            for done in self._map(make, rows_in_chunks(_rows([train.src, train.tgt])), "tokenizing", lines):
                cleaned: Cleaned = done
                stream.write(cleaned.text)
                if cleaned.pairs:
                    self._parts.append((offset, len(cleaned.text)))
                offset += len(cleaned.text)
                self._dropped[0].extend(self.tally.pairs_in + row for row in cleaned.dropped)
                self.tally.pairs_in += cleaned.pairs + len(cleaned.dropped)
                self.tally.pairs_kept += cleaned.pairs
                self.tally.reasons.update(cleaned.reasons)
                for side in BOTH:
                    counts[side].merge(cleaned.sides[side])
        for side in BOTH:
            self.tally.changes[side] = counts[side].changes
        self._refuse_nothing()
        return counts

    def _refuse_nothing(self) -> None:
        if self.tally.pairs_kept:
            return
        reasons = ", ".join(f"{reason} {count['pairs']:,}" for reason, count in self.tally.dropped().items())
        raise DataError(
            f"cleaning dropped all {self.tally.pairs_in:,} training pairs: {reasons}",
            where=", ".join(str(p) for p in (*self.corpus.sets[0].src, *self.corpus.sets[0].tgt)),
            hint="check the files, or the settings prep.min_words, max_words, max_ratio, max_subwords",
        )

    def _learn(self, counts: dict[str, SideCounts]) -> None:
        """Truecasers, BPE and vocabularies, from counts of words."""
        start = time.perf_counter()
        languages = {"src": self.corpus.src, "tgt": self.corpus.tgt}
        words: dict[str, Counter[str]] = {}
        for side in BOTH:
            truecaser = None
            if truecased(self.settings, side):
                counts[side].trainer.save(self.folder / f"truecase.{languages[side]}")
                truecaser = Truecaser.load(self.folder / f"truecase.{languages[side]}")
            words[side] = counts[side].words(truecaser)
            self.tally.corpus |= {f"{side}_words": words[side].total(), f"{side}_types": len(words[side])}
        tokens = self._learn_bpe(words) if self.settings.merges else words
        smallest = self.settings.min_frequency
        if self.settings.joint_vocab:
            Vocabulary.from_counts(tokens["src"] + tokens["tgt"], smallest).save(self.folder / "vocab.txt")
        else:
            for side in BOTH:
                Vocabulary.from_counts(tokens[side], smallest).save(self.folder / f"vocab.{side}.txt")
        seconds = time.perf_counter() - start
        types = sum(len(words[side]) for side in BOTH)
        self.tally.speed.append({"stage": "truecaser, BPE, vocabulary", "types": types, "seconds": round(seconds, 3)})
        console.say(f"truecaser, BPE, vocabulary: from {types:,} words in {seconds:.1f}s")

    def _learn_bpe(self, words: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
        """Learn the merges and write how often each subword occurs on each side.

        Returns: the counts of subwords once those too rare on their side are taken apart.
        """
        joint = self.settings.joint_vocab
        codes = {side: self.folder / ("codes.bpe" if joint else f"codes.{side}.bpe") for side in BOTH}
        for side in BOTH[: 1 if joint else 2]:
            learnt = learn_bpe(words["src"] + words["tgt"] if joint else words[side], self.settings.merges, codes[side])
            self.tally.corpus["merges" if joint else f"{side}_merges"] = learnt
            if learnt < self.settings.merges:
                console.say(f"BPE: learned {learnt:,} of {self.settings.merges:,} merges; the corpus has no more")
        tokens = {side: self._subwords(side, words[side], codes[side], None) for side in BOTH}
        threshold = self.settings.vocab_threshold
        for side in BOTH:
            ranked = sorted(tokens[side].items(), key=lambda item: (-item[1], item[0]))
            files.write_lines(self.folder / f"bpe-vocab.{side}.txt", [f"{token} {count}" for token, count in ranked])
            if threshold:
                tokens[side] = self._subwords(side, words[side], codes[side], {token for token, count in ranked if count >= threshold})
        return tokens

    def _subwords(self, side: str, words: Counter[str], codes: Path, vocabulary: set[str] | None) -> Counter[str]:
        """Count subwords from counts of words, and keep how the frequent words are segmented for the encoders to read."""
        items = words.most_common()
        chunks = (items[i : i + TYPES_PER_CHUNK] for i in range(0, len(items), TYPES_PER_CHUNK))
        counts: Counter[str] = Counter()
        make = functools.partial(SubwordCounter, codes, vocabulary)
        with open(self._segmented(side), "w", encoding="utf-8", newline="\n") as stream:
            for number, (part, segmented) in enumerate(ordered_map(make, chunks, self.jobs if len(items) > 2 * TYPES_PER_CHUNK else 1)):
                counts.update(part)
                if number * TYPES_PER_CHUNK < KEPT_WORDS:
                    stream.writelines(line + "\n" for line in segmented)
        return counts

    def _segmented(self, side: str) -> Path:
        return self._text.with_name(f"{self._text.name}.{side}")

    def _encode_train(self, train: SetFiles) -> dict[str, Any]:
        self._write_start_of_manifest()
        load_sides.cache_clear()
        load_sides(self.folder)
        make = functools.partial(TrainEncoder, self.folder, self._text, self.settings.max_subwords)
        kept = 0
        unknown = np.zeros(2, np.int64)
        tokens = np.zeros(2, np.int64)
        pairs = self.tally.pairs_kept
        with self.tally.timed("truecase, segment, encode", 2 * pairs), StoreWriter(self.folder / train.name, self._vocabulary_size()) as store:
            for done in self._map(make, self._parts, "encoding", pairs):
                encoded: Encoded = done
                store.add_block(encoded.ids, encoded.lengths)
                self._dropped[1].extend(kept + row for row in encoded.dropped)
                kept += len(encoded.dropped) + len(encoded.lengths) // 2
                self.tally.reasons.update(encoded.reasons)
                unknown += encoded.unknown
                tokens += _tokens(encoded)
        self.tally.pairs_kept -= len(self._dropped[1])
        self._refuse_nothing()
        self.tally.corpus |= {f"{side}_tokens": int(tokens[i]) for i, side in enumerate(BOTH)}
        return _set_entry(train, self.tally.pairs_kept, tokens, unknown)

    def _encode_set(self, one: SetFiles) -> dict[str, Any]:
        lines = check.total(one.src, self.facts)
        streams = one.sides()
        unknown = np.zeros(2, np.int64)
        tokens = np.zeros(2, np.int64)
        (self.folder / "text").mkdir(exist_ok=True)
        make = functools.partial(SetEncoder, self.folder)
        rows = rows_in_chunks(_rows(list(streams.values())), max_rows=500)
        with self.tally.timed(f"{one.name} set", len(streams) * lines), contextlib.ExitStack() as stack:
            store = stack.enter_context(StoreWriter(self.folder / one.name, self._vocabulary_size()))
            texts = [stack.enter_context(files.writing(self.folder / "text" / f"{one.name}.{stream}")) for stream in streams]
            for encoded in self._map(make, rows, f"encoding {one.name}", lines, self.jobs if lines > 2000 else 1):
                store.add_block(encoded.ids, encoded.lengths)
                unknown += encoded.unknown
                tokens += _tokens(encoded)
                for text, part in zip(texts, encoded.texts, strict=True):
                    text.write(part)
                for side, changes in zip(BOTH, encoded.changes, strict=True):
                    self.tally.changes[side].update(changes)
        return _set_entry(one, lines, tokens, unknown)

    def _map(self, make: Any, chunks: Any, label: str, total: int, jobs: int | None = None) -> Iterator[Any]:
        """`ordered_map` with the progress display."""
        with console.progress(label, total) as advance:
            for done in ordered_map(make, chunks, jobs or self.jobs):
                advance(len(done.dropped) + (done.pairs if isinstance(done, Cleaned) else len(done.lengths) // 2))
                yield done

    def _vocabulary_size(self) -> int:
        return max(self._vocabulary_sizes())

    @functools.cache  # noqa: B019 - one pipeline, one answer
    def _vocabulary_sizes(self) -> tuple[int, int]:
        src, tgt = load_vocabularies(self.folder)
        if max(len(src), len(tgt)) == len(SPECIALS):
            hint = f"no word occurs {self.settings.min_frequency} times: lower it"
            raise DataError("the vocabulary is empty", where="prep.min_frequency", hint=hint)
        return len(src), len(tgt)

    def _write_documents(self, one: SetFiles) -> None:
        """docs/<set>.txt: where documents start among the lines kept; a document of which nothing is left is left out."""
        if one.docs is None:
            return
        starts = np.array(check.read_starts(one.docs, check.total(one.src, self.facts)), np.int64)
        lines = check.total(one.src, self.facts)
        if one.split == "train":
            for dropped in self._dropped:
                starts -= np.searchsorted(np.frombuffer(dropped, np.int64) if dropped else np.empty(0, np.int64), starts)
                lines -= len(dropped)
        starts = np.unique(starts)
        (self.folder / "docs").mkdir(exist_ok=True)
        files.write_lines(self.folder / "docs" / f"{one.name}.txt", [str(start) for start in starts if start < lines])

    def _manifest(self) -> dict[str, Any]:
        corpus = self.corpus
        settings = self.settings.model_dump()
        head = {"format": FORMAT, "dataset": corpus.name, "src": corpus.src, "tgt": corpus.tgt, "preset": corpus.preset}
        return head | {"source": self.identity, "settings": settings}

    def _write_start_of_manifest(self) -> None:
        """What `TextSide.load` needs to know; the whole manifest follows at the end."""
        files.write_json(self.folder / "manifest.json", self._manifest())

    def _write_manifest(self, sets: list[dict[str, Any]]) -> dict[str, Any]:
        sizes = self._vocabulary_sizes()
        hashes = {p.relative_to(self.folder).as_posix(): files.sha256(p) for p in sorted(self.folder.rglob("*")) if p.is_file()}
        hashes.pop("manifest.json", None)
        tally = self.tally
        manifest = self._manifest() | {
            "sets": sets,
            "vocabulary": {"shared": self.settings.joint_vocab, "src": sizes[0], "tgt": sizes[1]},
            "corpus": tally.corpus,
            "cleaning": {
                "pairs_in": tally.pairs_in,
                "pairs_kept": tally.pairs_kept,
                "dropped": tally.dropped(),
                "changed": {side: dict(sorted(tally.changes[side].items())) for side in BOTH},
            },
            "files": hashes,
            "inputs": self.corpus.published | check.as_json(self.facts),
            "tools": tools(self.corpus),
            "speed": tally.speed,
            "jobs": self.jobs,
        }
        manifest["fingerprint"] = fingerprint(manifest)
        files.write_json(self.folder / "manifest.json", manifest)
        return manifest


def _rows(streams: list[tuple[Path, ...]]) -> Iterator[Sequence[bytes]]:
    """The lines of parallel files, row by row."""
    lines = [itertools.chain.from_iterable(files.byte_lines(path) for path in paths) for paths in streams]
    try:
        yield from zip(*lines, strict=True)
    except ValueError as error:
        raise DataError("the files changed while they were read: their line counts differ", where=streams[0][0]) from error


def _tokens(encoded: Encoded) -> tuple[int, int]:
    """Subwords of each side, </s> not counted."""
    pairs = len(encoded.lengths) // 2
    return sum(encoded.lengths[0::2]) - pairs, sum(encoded.lengths[1::2]) - pairs


def _set_entry(one: SetFiles, lines: int, tokens: Any, unknown: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": one.name, "split": one.split, "lines": lines, "references": 1 + len(one.references)}
    for i, side in enumerate(BOTH):
        entry |= {f"{side}_tokens": int(tokens[i]), f"{side}_unknown": int(unknown[i])}
    return entry
