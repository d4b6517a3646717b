"""Raw text to token ids: two passes over the training text, chunk by chunk, in worker processes.

1. Tidy, tokenize, clean, and count the words. The tokenized text goes to a temporary file.
2. Learn truecaser, BPE and vocabularies from the counts alone.
3. Encode the tokenized text. Dev and test sets go the way of translation input and keep every line.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.corpora.corpus import Corpus, SetFiles
from nmtkit.corpora.document_starts import kept_starts
from nmtkit.data.documents import documents_file
from nmtkit.data.store import StoreWriter
from nmtkit.errors import DataError
from nmtkit.parallel import ordered_map
from nmtkit.prep.check import Inputs
from nmtkit.prep.clean import SIDES, Cleaned, Cleaner, WordCounts, row_chunks
from nmtkit.prep.encode import Encoded, SetEncoder, TrainEncoder, subword_counts
from nmtkit.prep.given import Given, GivenRun
from nmtkit.prep.learn import Models, learn
from nmtkit.prep.parse_spans import Stanza, check_parses, parse_text, write_spans
from nmtkit.prep.repeats import PairHashes, kept_rows, repeats, unwanted
from nmtkit.prep.tally import Tally, as_counts, fingerprint, tools
from nmtkit.records import Cleaning, Manifest, TextRecipe, TextSet, VocabularySizes
from nmtkit.settings import PrepSettings
from nmtkit.text.scripts import ForeignLines
from nmtkit.text.side import TextSide, load_splitter
from nmtkit.text.vocabulary import SPECIALS

SHARD_PAIRS = 200_000
"""Pairs of a shard."""
FEW_LINES = 2000
"""So many lines are encoded faster than worker processes start."""


class _ShardsWriter:
    """Writes the pairs of a set into shards of SHARD_PAIRS pairs; a set has at least one shard.

    Args:
        folder: of the set.
        vocab_size: tokens of the larger vocabulary.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self._make = functools.partial(StoreWriter, folder, vocab_size=vocab_size)
        self._writer, self._shard, self._room = self._make(0), 0, SHARD_PAIRS

    def add(self, encoded: Encoded) -> None:
        """Add a chunk of pairs."""
        ids, lengths = encoded.ids, encoded.lengths
        while len(lengths):
            if not self._room:
                self._writer.__exit__(None, None, None)
                self._shard, self._room = self._shard + 1, SHARD_PAIRS
                self._writer = self._make(self._shard)
            part = lengths[: 2 * self._room]
            count = int(part.sum())
            self._writer.add_block(ids[:count].tobytes(), part)
            self._room -= len(part) // 2
            ids, lengths = ids[count:], lengths[len(part) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer.__exit__(*error)


@dataclass
class Pipeline:
    """Prepares one corpus in a folder of its own.

    Args:
        folder: a fresh folder, the prep folder to be.
        corpus: what to prepare.
        inputs: its files.
        settings: of prep.
        jobs: worker processes; the output does not depend on it.
        identity: what was asked for, the manifest's `source`.
        parser: of the source language, for the sets without a file of parses.
        given: the text model that is not learnt.
    """

    folder: Path
    corpus: Corpus
    inputs: Inputs
    settings: PrepSettings
    jobs: int
    identity: dict[str, Any]
    parser: Stanza | None
    given: Given

    def __post_init__(self) -> None:
        self.languages = (self.corpus.src, self.corpus.tgt)
        self.tally = Tally()
        self.pair_hashes = {text.name: PairHashes() for text in self.corpus.sets}
        self.foreign = {text.name: Counter[str]() for text in self.corpus.sets}
        self.wanted = np.ones(0, bool)  # of the training text, if repeated pairs are dropped

    def run(self) -> Manifest:
        """Prepare the corpus.

        Returns: the manifest, written too.
        Raises: DataError if nothing is left of the training text.
        """
        collecting = gc.isenabled()
        gc.disable()  # there are no cycles to find, but millions of objects to walk through
        try:
            self._drop_repeats()
            with tempfile.TemporaryFile(dir=self.folder) as tokenized:
                train = self._prepare_train(tokenized)
            entries = [train, *map(self._encode_set, self.corpus.sets[1:])]
            sets = list(map(self._with_documents_and_spans, self.corpus.sets, entries))
            for name, path in self.corpus.extras.items():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, self.folder / name)
            return self._write_manifest(sets)
        finally:
            if collecting:
                gc.enable()

    def _drop_repeats(self) -> None:
        """Read the training text once more, and choose the pairs that the settings keep."""
        settings, sets = self.settings, self.corpus.sets
        if settings.drop_overlap == "none":
            if not settings.deduplicate:
                return
            sets = sets[:1]
        with self.tally.timed("find repeated pairs", 2 * self.inputs.lines(sets[0].src)):
            for text in sets:
                for _ in self._rows(text):
                    pass
        train, *held_out = (self.pair_hashes[text.name] for text in sets)
        dropped = unwanted(train, held_out, settings)
        self.wanted = ~np.any([*dropped.values()], axis=0)
        counts = {(reason, "pairs"): int(pairs.sum()) for reason, pairs in dropped.items()}
        self.tally.reasons.update({reason: count for reason, count in counts.items() if count})

    def _rows(self, text: SetFiles, **bounds: int) -> Iterator[list[bytes]]:
        """Read a set chunk by chunk, and take its measures if this is the first time."""
        chunks = row_chunks(list(text.sides().values()), **bounds)
        hashes = self.pair_hashes[text.name]
        return chunks if hashes.exact else hashes.watched(self._scripts_watched(text, chunks))

    def _scripts_watched(
        self, text: SetFiles, chunks: Iterable[list[bytes]]
    ) -> Iterator[list[bytes]]:
        """Yield the chunks unchanged, and count the lines in another script than their side's."""
        src, tgt = map(ForeignLines, self.languages)
        for chunk in chunks:
            for side, lines in zip(text.sides(), chunk, strict=True):
                self.foreign[text.name][side] += (src if side == "src" else tgt).count(lines)
            yield chunk

    def _prepare_train(self, tokenized: IO[bytes]) -> dict[str, Any]:
        sizes, masks, counts = self._clean(tokenized)
        models = self._learn(counts)
        del counts
        tokenized.seek(0)
        return self._encode_train(models, map(tokenized.read, sizes), masks)

    def _clean(
        self, tokenized: IO[bytes]
    ) -> tuple[list[int], list[NDArray[np.bool_]], tuple[WordCounts, WordCounts]]:
        """Write the tokenized text and count its words.

        Returns: for each chunk its bytes and which of its rows are kept; the counts of both sides.
        """
        train, tally = self.corpus.sets[0], self.tally
        lines = self.inputs.lines(train.src)
        splitters = [load_splitter(self.folder, side) for side in SIDES]
        make = functools.partial(Cleaner, self.languages, self.settings, splitters)
        make()  # the workers inherit what it imports and compiles
        sizes, masks = [], []
        total = (WordCounts(), WordCounts())
        with tally.timed("tidy, tokenize, clean, count", 2 * lines):
            chunks = self._rows(train)
            if self.wanted.size:
                chunks = kept_rows(chunks, self.wanted)
            cleaned: Cleaned
            for cleaned in self._map(make, chunks, "tokenizing", lines, self.jobs):
                sizes.append(tokenized.write(cleaned.text))
                masks.append(cleaned.kept)
                tally.reasons.update(cleaned.reasons)
                for sums, counts in zip(total, cleaned.counts, strict=True):
                    sums.merge(counts)
        tally.changes = [counts.changes for counts in total]
        self._count_pairs(masks)
        return sizes, masks, total

    def _count_pairs(self, masks: Sequence[NDArray[np.bool_]]) -> None:
        """Count the pairs that are kept, and refuse a corpus without any."""
        tally, train = self.tally, self.corpus.sets[0]
        self.kept = np.concatenate([np.zeros(0, bool), *masks])
        if self.wanted.size:
            cleaned, self.kept = self.kept, self.wanted.copy()
            self.kept[self.wanted] = cleaned
        tally.pairs_in, tally.pairs_kept = len(self.kept), int(self.kept.sum())
        if not tally.pairs_kept:
            dropped = tally.dropped().items()
            reasons = ", ".join(f"{reason} {count['pairs']:,}" for reason, count in dropped)
            names = "prep.min_words, max_words, max_ratio, max_subwords, drop_overlap"
            raise DataError(
                f"cleaning dropped all {tally.pairs_in:,} training pairs: {reasons}",
                where=", ".join(map(str, (*train.src, *train.tgt))),
                hint=f"check the files, or the settings {names}",
            )

    def _learn(self, counts: tuple[WordCounts, WordCounts]) -> Models:
        start = time.perf_counter()
        self.given.copy(self.folder, self.settings)
        models = learn(counts, self.languages, self.settings, self.folder, self.jobs)
        self.vocabularies = models.vocabularies
        if max(map(len, self.vocabularies)) == len(SPECIALS):
            hint = f"no word occurs {self.settings.min_frequency} times: lower it"
            raise DataError("the vocabulary is empty", where="prep.min_frequency", hint=hint)
        self.tally.corpus |= models.counts
        # `TextSide.load` needs this much of the manifest; the whole one follows at the end.
        recipe = TextRecipe(src=self.corpus.src, tgt=self.corpus.tgt, settings=self.settings)
        recipe.write(self.folder / "manifest.json")
        self.sides = (TextSide.load(self.folder, "src"), TextSide.load(self.folder, "tgt"))
        types = models.counts["src_types"] + models.counts["tgt_types"]
        self.tally.learnt(types, time.perf_counter() - start, isinstance(self.given, GivenRun))
        return models

    def _encode_train(
        self, models: Models, texts: Iterable[bytes], masks: list[NDArray[np.bool_]]
    ) -> dict[str, Any]:
        train, tally = self.corpus.sets[0], self.tally
        pairs = tally.pairs_kept
        make = functools.partial(TrainEncoder, models, self.settings.max_subwords)
        sizes = np.zeros((2, 2), np.int64)
        with tally.timed("truecase, segment, encode", 2 * pairs):
            encoded = self._encoded(train, make, texts, "encoding", pairs)
            for chunk, mask in zip(encoded, masks, strict=True):
                mask[mask] = chunk.kept
                tally.reasons.update(chunk.reasons)
                sizes += chunk.sizes
        self._count_pairs(masks)
        for side, subwords in zip(SIDES, sizes[0].tolist(), strict=True):
            tally.corpus[f"{side}_tokens"] = subwords
        return {"lines": tally.pairs_kept, **subword_counts(sizes)}

    def _encode_set(self, text: SetFiles) -> dict[str, Any]:
        """Encode a dev or test set, and write its text beside."""
        lines = self.inputs.lines(text.src)
        streams = text.sides()
        sizes = np.zeros((2, 2), np.int64)
        changed: list[Counter[str]] = [Counter(), Counter()]
        blank: Counter[str] = Counter()
        make = functools.partial(SetEncoder, self.sides, self.vocabularies)
        chunks = self._rows(text, max_rows=500)
        (self.folder / "text").mkdir(exist_ok=True)
        with (
            self.tally.timed(f"{text.name} set", len(streams) * lines),
            contextlib.ExitStack() as stack,
        ):
            paths = [self.folder / "text" / f"{text.name}.{stream}" for stream in streams]
            outputs = [stack.enter_context(files.writing(path)) for path in paths]
            for chunk in self._encoded(text, make, chunks, f"encoding {text.name}", lines):
                sizes += chunk.sizes
                for stream, output, part in zip(streams, outputs, chunk.texts, strict=True):
                    output.write(part)
                    blank[stream] += sum(not line.strip() for line in part.split("\n")[:-1])
                for total, changes in zip(changed, chunk.changes, strict=True):
                    total.update(changes)
        edits = {"changed": as_counts(changed), "blank": dict(+blank)}
        return {"lines": lines, **subword_counts(sizes), **edits}

    def _encoded(
        self,
        text: SetFiles,
        make: Callable[[], Callable[[Any], Encoded]],
        chunks: Iterable[Any],
        label: str,
        lines: int,
    ) -> Iterator[Encoded]:
        """Encode chunks in worker processes, write them to the store of a set, and yield them."""
        jobs = self.jobs if lines > FEW_LINES else 1
        vocab_size = max(map(len, self.vocabularies))
        with _ShardsWriter(self.folder / text.name, vocab_size) as store:
            for encoded in self._map(make, chunks, label, lines, jobs):
                store.add(encoded)
                yield encoded

    def _map(self, make: Any, chunks: Any, label: str, total: int, jobs: int) -> Iterator[Any]:
        """Map chunks in order, in worker processes, and show how far it is."""
        with console.progress(label, total) as advance:
            for result in ordered_map(make, chunks, jobs):
                advance(len(result.kept))
                yield result

    def _with_documents_and_spans(self, text: SetFiles, entry: dict[str, Any]) -> TextSet:
        """Write the documents and the spans of a set, and return its entry of the manifest."""
        kept = self.kept if text.split == "train" else np.ones(entry["lines"], bool)
        if text.docs is not None:
            entry["documents"] = self._write_documents(text.name, text.docs, kept)
        parses = text.parses
        if parses is None and self.parser is not None:
            parses = self.folder / "parses" / f"{text.name}.txt"
            with self.tally.timed(f"parsing {text.name}", entry["lines"]):
                parse_text(self.parser, self.sides[0], text.src, kept, parses)
        if parses is not None:
            jobs = self.jobs if entry["lines"] > FEW_LINES else 1
            with self.tally.timed(f"phrases of {text.name}", entry["lines"]):
                streams = [text.src, (parses,)]
                spans = write_spans(self.folder / text.name, streams, self.sides[0], kept, jobs)
            check_parses(text.name, parses, **spans, strict=text.parses is not None)
            entry |= spans
        references, foreign = 1 + len(text.references), dict(+self.foreign[text.name])
        return TextSet(
            name=text.name, split=text.split, references=references, foreign=foreign, **entry
        )

    def _write_documents(self, name: str, docs: Path, kept: NDArray[np.bool_]) -> int:
        """Write docs/<set>.txt, and return how many documents there are."""
        starts = kept_starts(docs, kept)
        path = documents_file(self.folder, name)
        path.parent.mkdir(exist_ok=True)
        files.write_lines(path, list(map(str, starts)))
        return len(starts)

    def _hashes(self) -> dict[str, str]:
        """Return the checksum of every file of the folder but the manifest."""
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        hashes = {path.relative_to(self.folder).as_posix(): files.sha256(path) for path in paths}
        del hashes["manifest.json"]
        return hashes

    def _write_manifest(self, sets: list[TextSet]) -> Manifest:
        hashes = self._hashes()
        corpus, tally = self.corpus, self.tally
        sizes = map(len, self.vocabularies)
        (_, train), *held_out = self.pair_hashes.items()
        manifest = Manifest(
            format=1,
            dataset=corpus.name,
            src=corpus.src,
            tgt=corpus.tgt,
            preset=corpus.preset,
            source=self.identity,
            settings=self.settings,
            sets=sets,
            vocabulary=VocabularySizes(self.settings.joint_vocab, *sizes),
            corpus=tally.corpus,
            cleaning=Cleaning(
                tally.pairs_in, tally.pairs_kept, tally.dropped(), as_counts(tally.changes)
            ),
            files=hashes,
            inputs=corpus.published | self.inputs.as_json(),
            tools=tools(self.languages, self.settings) | (self.parser.tools if self.parser else {}),
            speed=tally.speed,
            jobs=self.jobs,
            fingerprint=fingerprint(self.languages, self.settings, hashes),
            repeats=repeats(train, held_out),
        )
        manifest.write(self.folder / "manifest.json")
        return manifest
