"""Raw text to token ids, streaming: two passes over the training text, both in worker processes,
the first of which does the slow work.

1. tidy, tokenize, clean; count the words by case and position (for the truecaser) -> tokenized text
  in temporary files
2. from these counts alone: truecaser, BPE, subword counts, vocabulary (no pass over the text: a
  word's truecased form depends on the
   word and on whether it starts a sentence, its subwords on the word); meanwhile, the text as
   numbers of truecased words
3. numbers of words to token ids -> the store; dev and test sets go the way translation input goes,
  and keep every line
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import shutil
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import console, files
from nmtkit.corpora.corpus import Corpus, SetFiles
from nmtkit.corpora.document_starts import read_starts
from nmtkit.data.documents import documents_file
from nmtkit.data.store import StoreWriter, id_type
from nmtkit.errors import DataError
from nmtkit.parallel import Meanwhile, ordered_map
from nmtkit.prep import check
from nmtkit.prep.encoders import (
    BOTH,
    Encoded,
    Numberer,
    Numbers,
    SetEncoder,
    TrainEncoder,
    keep_sides,
)
from nmtkit.prep.learn import Models, Words, learn, numbered
from nmtkit.prep.parse_spans import PARSED, Kept, Parser, parse_text, write_spans
from nmtkit.prep.parts import Part
from nmtkit.prep.tally import Tally, as_counts, fingerprint, tools
from nmtkit.prep.workers import Cleaned, Cleaner, Counts, SideCounts, row_chunks
from nmtkit.records import Cleaning, Manifest, TextRecipe, TextSet, VocabularySizes
from nmtkit.settings import PrepSettings
from nmtkit.text.segmented import WordIds
from nmtkit.text.side import TextSide
from nmtkit.text.truecase import Truecaser, TruecaseTrainer
from nmtkit.text.vocabulary import SPECIALS

PARTS_IN_PARENT = 100  # encoding these takes less than starting workers for it


class Pipeline:
    """Prepares one corpus in a folder of its own.

    Args:
        folder: a fresh folder, the prep folder to be.
        corpus: what to prepare; its files are checked.
        facts: the facts of its files (`check.check_sets`).
        settings: of prep.
        jobs: worker processes; the output doesn't depend on it.
        identity: what was asked for, kept in the manifest as `source`.
        parser: of the source language, for the sets that have no file of parses; None: these have
            none.
    """

    def __init__(
        self,
        folder: Path,
        corpus: Corpus,
        facts: dict[str, check.Facts],
        settings: PrepSettings,
        jobs: int,
        identity: dict[str, Any] | None = None,
        parser: Parser | None = None,
    ) -> None:
        self.folder = folder
        self.corpus = corpus
        self.facts = facts
        self.settings = settings
        self.jobs = jobs
        self.identity = identity or {}
        self.parser = parser
        self.tally = Tally()
        self._vocabulary_sizes = (0, 0)
        self._dropped = (
            array("q"),
            array("q"),
        )  # rows dropped by cleaning, and among those kept then, by encoding

    def run(self) -> Manifest:
        """Do all of it.

        Returns: the manifest, written too.
        Raises: DataError if nothing is left of the training text.
        """
        collecting = gc.isenabled()
        gc.disable()  # here are no cycles to find, but millions of objects to walk through
        try:
            return self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> Manifest:
        train = self.corpus.sets[0]
        parts, counts = self._clean(train)
        start = time.perf_counter()
        truecasers, words = self._number(counts)
        trainers = {
            self.folder / f"truecase.{language}": counts[side].trainer
            for side, language in zip(BOTH, (self.corpus.src, self.corpus.tgt), strict=True)
            if truecasers[side]
        }
        del counts
        number = functools.partial(
            _Aside,
            trainers,
            (words["src"].numbers, words["tgt"].numbers),
            self.folder / "train.words",
        )
        work: list[Any] = [*trainers, *parts]
        with Meanwhile(number, work, self.jobs, 1 if self.settings.joint_vocab else 2) as aside:
            models = self._learn(words, truecasers, start)
            numbered_parts: Iterator[Any] = itertools.islice(aside.results(), len(trainers), None)
            sets = [self._encode_train(train, numbered_parts, models, len(parts))]
        for path in {part.path for part in parts} | set(self.folder.glob("train.words.*")):
            path.unlink()
        sets += [self._encode_set(one) for one in self.corpus.sets[1:]]
        sets = [
            entry.model_copy(
                update=self._write_documents(one) | self._write_spans(one, entry.lines)
            )
            for one, entry in zip(self.corpus.sets, sets, strict=True)
        ]
        for name, path in self.corpus.extras.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.folder / name)
        return self._write_manifest(sets)

    def _clean(self, train: SetFiles) -> tuple[list[Part], dict[str, SideCounts]]:
        """Tokenized text, and what is counted in it."""
        lines = check.total(train.src, self.facts)
        make = functools.partial(
            Cleaner, (self.corpus.src, self.corpus.tgt), self.settings, self.folder / "train.tok"
        )
        make()  # what it imports and compiles is then there in every worker
        parts: list[Part] = []
        counted: list[Counts] = []
        with self.tally.timed("tidy, tokenize, clean, count", 2 * lines):
            for done in self._map(
                make,
                enumerate(_chunks([train.src, train.tgt])),
                "tokenizing",
                lines,
                handed_over=counted,
            ):
                cleaned: Cleaned = done
                if cleaned.pairs:
                    parts.append(cleaned.part)
                self._dropped[0].extend(self.tally.pairs_in + row for row in cleaned.dropped)
                self.tally.pairs_in += cleaned.pairs + len(cleaned.dropped)
                self.tally.pairs_kept += cleaned.pairs
                self.tally.reasons.update(cleaned.reasons)
            counts = Counts.together(counted)
        for side in BOTH:
            self.tally.changes[side] = counts[side].changes
        self._refuse_nothing()
        return parts, counts

    def _refuse_nothing(self) -> None:
        if self.tally.pairs_kept:
            return
        reasons = ", ".join(
            f"{reason} {count['pairs']:,}" for reason, count in self.tally.dropped().items()
        )
        raise DataError(
            f"cleaning dropped all {self.tally.pairs_in:,} training pairs: {reasons}",
            where=", ".join(str(p) for p in (*self.corpus.sets[0].src, *self.corpus.sets[0].tgt)),
            hint=(
                "check the files, or the settings prep.min_words, max_words, max_ratio,"
                " max_subwords"
            ),
        )

    def _number(
        self, counts: dict[str, SideCounts]
    ) -> tuple[dict[str, Truecaser | None], dict[str, Words]]:
        """Truecasers and the words that they leave."""
        truecasers = {
            side: counts[side].trainer.truecaser() if counts[side].truecase else None
            for side in BOTH
        }
        words = numbered(counts, truecasers, self.settings.joint_vocab)
        for side in BOTH:
            self.tally.corpus |= {
                f"{side}_words": int(words[side].counts.sum()),
                f"{side}_types": int(np.count_nonzero(words[side].counts)),
            }
        return truecasers, words

    def _learn(
        self, words: dict[str, Words], truecasers: dict[str, Truecaser | None], start: float
    ) -> Models:
        """BPE and vocabularies."""
        models = learn(words, self.settings, self.folder, self.jobs, self.tally.corpus)
        if max(map(len, models.vocabularies)) == len(SPECIALS):
            hint = f"no word occurs {self.settings.min_frequency} times: lower it"
            raise DataError("the vocabulary is empty", where="prep.min_frequency", hint=hint)
        self._vocabulary_sizes = (len(models.vocabularies[0]), len(models.vocabularies[1]))
        # What `TextSide.load` needs to know; the whole manifest follows at the end.
        TextRecipe(src=self.corpus.src, tgt=self.corpus.tgt, settings=self.settings).write(
            self.folder / "manifest.json"
        )
        src, tgt = (
            TextSide(language, self.settings, truecasers[side], models.bpe[side])
            for side, language in zip(BOTH, (self.corpus.src, self.corpus.tgt), strict=True)
        )
        keep_sides(self.folder, ((src, tgt), models.vocabularies))
        seconds = time.perf_counter() - start
        types = sum(self.tally.corpus[f"{side}_types"] for side in BOTH)
        self.tally.speed.append(
            {"stage": "truecaser, BPE, vocabulary", "types": types, "seconds": round(seconds, 3)}
        )
        console.say(f"truecaser, BPE, vocabulary: from {types:,} words in {seconds:.1f}s")
        return models

    def _encode_train(
        self, train: SetFiles, parts: Iterable[Part], models: Models, count: int
    ) -> TextSet:
        size = max(self._vocabulary_sizes)
        ids = WordIds(
            [
                (models.segmented[side], vocabulary)
                for side, vocabulary in zip(BOTH, models.vocabularies, strict=True)
            ],
            id_type(size),
        )
        make = functools.partial(TrainEncoder, ids, self.settings.max_subwords)
        kept = 0
        unknown = np.zeros(2, np.int64)
        tokens = np.zeros(2, np.int64)
        pairs = self.tally.pairs_kept
        with (
            self.tally.timed("truecase, segment, encode", 2 * pairs),
            StoreWriter(self.folder / train.name, size) as store,
        ):
            for done in self._map(
                make, parts, "encoding", pairs, self.jobs if count > PARTS_IN_PARENT else 1
            ):
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

    def _encode_set(self, one: SetFiles) -> TextSet:
        lines = check.total(one.src, self.facts)
        streams = one.sides()
        unknown = np.zeros(2, np.int64)
        tokens = np.zeros(2, np.int64)
        changed: dict[str, Counter[str]] = {side: Counter() for side in BOTH}
        blank = dict.fromkeys(streams, 0)
        (self.folder / "text").mkdir(exist_ok=True)
        make = functools.partial(SetEncoder, self.folder)
        chunks = _chunks(list(streams.values()), max_rows=500)
        with (
            self.tally.timed(f"{one.name} set", len(streams) * lines),
            contextlib.ExitStack() as stack,
        ):
            store = stack.enter_context(
                StoreWriter(self.folder / one.name, max(self._vocabulary_sizes))
            )
            texts = [
                stack.enter_context(files.writing(self.folder / "text" / f"{one.name}.{stream}"))
                for stream in streams
            ]
            for encoded in self._map(
                make, chunks, f"encoding {one.name}", lines, self.jobs if lines > 2000 else 1
            ):
                store.add_block(encoded.ids, encoded.lengths)
                unknown += encoded.unknown
                tokens += _tokens(encoded)
                for stream, text, part in zip(streams, texts, encoded.texts, strict=True):
                    text.write(part)
                    blank[stream] += sum(map(check.is_blank, part.split("\n")[:-1]))
                for side, changes in zip(BOTH, encoded.changes, strict=True):
                    changed[side].update(changes)
        counted = {
            "changed": as_counts(changed),
            "blank": {stream: count for stream, count in blank.items() if count},
        }
        return _set_entry(one, lines, tokens, unknown).model_copy(update=counted)

    def _map(
        self,
        make: Any,
        chunks: Any,
        label: str,
        total: int,
        jobs: int | None = None,
        handed_over: list[Any] | None = None,
    ) -> Iterator[Any]:
        """`ordered_map` with the progress display."""
        with console.progress(label, total) as advance:
            for done in ordered_map(make, chunks, jobs or self.jobs, handed_over):
                advance(
                    len(done.dropped)
                    + (done.pairs if isinstance(done, Cleaned) else len(done.lengths) // 2)
                )
                yield done

    def _write_documents(self, one: SetFiles) -> dict[str, Any]:
        """docs/<set>.txt: where documents start among the lines kept; a document of which nothing
        is left is left out.

        Returns: how many there are, for the set's entry of the manifest.
        """
        if one.docs is None:
            return {}
        starts = np.array(read_starts(one.docs, check.total(one.src, self.facts)), np.int64)
        lines = check.total(one.src, self.facts)
        if one.split == "train":
            for dropped in self._dropped:
                starts -= np.searchsorted(
                    np.frombuffer(dropped, np.int64) if dropped else np.empty(0, np.int64), starts
                )
                lines -= len(dropped)
        starts = np.unique(starts)
        starts = starts[starts < lines]
        path = documents_file(self.folder, one.name)
        path.parent.mkdir(exist_ok=True)
        files.write_lines(path, [str(start) for start in starts])
        return {"documents": len(starts)}

    def _write_spans(self, one: SetFiles, lines: int) -> dict[str, Any]:
        """<set>.spans.*, the phrases of its source by its parses.

        Returns: how many there are, for the set's entry of the manifest.
        """
        dropped = self._dropped if one.split == "train" else ()
        parses = one.parses
        if parses is None and self.parser is not None:
            parses = self.folder / "parses" / f"{one.name}.txt"
            side = TextSide(self.corpus.src, self.settings)
            with self.tally.timed(f"parsing {one.name}", lines):
                parse_text(
                    self.parser, side, _chunks([one.src], max_rows=500), Kept(*dropped), parses
                )
        if parses is None:
            return {}
        with self.tally.timed(f"phrases of {one.name}", lines):
            chunks = _chunks([one.src, (parses,)])
            found = write_spans(
                self.folder, one.name, chunks, Kept(*dropped), self.jobs if lines > 2000 else 1
            )
        reasons = ", ".join(
            f"{found.counts[reason]:,} {reason}, first line {line:,}"
            for reason, line in found.first.items()
        )
        if (
            one.parses and not found.counts[PARSED]
        ):  # a model of parses would be one of n-grams and still be called by their name
            hint = (
                "a line is a bracketed tree of the source's line, such as (S (NP (DT the) (NN fox))"
                " (VP (VBD ran))), or blank"
            )
            raise DataError(
                f"the parses of '{one.name}': none of them fits its sentence ({reasons})",
                where=parses,
                hint=hint,
            )
        if found.many_unusable:
            console.warn(
                f"parses of {one.name}: many do not fit, and their sentences are cut into n-grams"
                f" instead ({reasons}): {parses}"
            )
        return {"parses": found.counts, "parses_first": found.first}

    def _write_manifest(self, sets: list[TextSet]) -> Manifest:
        hashes = {
            p.relative_to(self.folder).as_posix(): files.sha256(p)
            for p in sorted(self.folder.rglob("*"))
            if p.is_file()
        }
        hashes.pop("manifest.json", None)
        corpus, tally = self.corpus, self.tally
        manifest = Manifest(
            format=1,
            dataset=corpus.name,
            src=corpus.src,
            tgt=corpus.tgt,
            preset=corpus.preset,
            source=self.identity,
            settings=self.settings,
            sets=sets,
            vocabulary=VocabularySizes(self.settings.joint_vocab, *self._vocabulary_sizes),
            corpus=tally.corpus,
            cleaning=Cleaning(
                tally.pairs_in, tally.pairs_kept, tally.dropped(), as_counts(tally.changes)
            ),
            files=hashes,
            inputs=corpus.published | check.as_json(self.facts),
            tools=tools(corpus) | (self.parser.tools if self.parser else {}),
            speed=tally.speed,
            jobs=self.jobs,
            fingerprint=fingerprint(corpus.src, corpus.tgt, self.settings, hashes),
        )
        manifest.write(self.folder / "manifest.json")
        return manifest


class _Aside:
    """What can be done while the parent learns: truecasers are written, words of the text numbered.

    Args:
        trainers: of the truecasers, each by its file.
        numbers, text: as of `Numberer`.
    """

    def __init__(
        self, trainers: Mapping[Path, TruecaseTrainer], numbers: tuple[Numbers, Numbers], text: Path
    ) -> None:
        self._trainers = trainers
        self._number = Numberer(numbers, text)

    def __call__(self, work: Path | Part) -> Part | None:
        """Write the truecaser of a file, or number a part."""
        if isinstance(work, Part):
            return self._number(work)
        self._trainers[work].save(work)
        return None


def _chunks(streams: Sequence[tuple[Path, ...]], **limits: int) -> Iterator[list[bytes]]:
    """The lines of parallel files in chunks, a text for each stream, each line with its LF."""
    blocks = [itertools.chain.from_iterable(map(files.line_blocks, paths)) for paths in streams]
    try:
        for chunk in row_chunks(
            [itertools.chain.from_iterable(stream) for stream in blocks], **limits
        ):
            yield [b"".join(lines) for lines in chunk]
    except ValueError as error:
        raise DataError(
            "the files changed while they were read: their line counts differ", where=streams[0][0]
        ) from error


def _tokens(encoded: Encoded) -> tuple[int, int]:
    """Subwords of each side, </s> not counted."""
    pairs = len(encoded.lengths) // 2
    return int(encoded.lengths[0::2].sum()) - pairs, int(encoded.lengths[1::2].sum()) - pairs


def _set_entry(one: SetFiles, lines: int, tokens: Any, unknown: Any) -> TextSet:
    return TextSet(
        name=one.name,
        split=one.split,
        lines=lines,
        references=1 + len(one.references),
        src_tokens=int(tokens[0]),
        src_unknown=int(unknown[0]),
        tgt_tokens=int(tokens[1]),
        tgt_unknown=int(unknown[1]),
    )
