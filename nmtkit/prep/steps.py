"""The steps of prep; `plan` has their order. Each step is a list of tasks over shards."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Mask
from nmtkit.corpora.corpus import Corpus, SetFiles
from nmtkit.corpora.document_starts import kept_starts
from nmtkit.data.documents import documents_file
from nmtkit.errors import DataError, counted
from nmtkit.parallel import memory_bytes
from nmtkit.prep.check import Inputs, inspect
from nmtkit.prep.clean import Reasons, clean_shard
from nmtkit.prep.encode import encode_set, encode_shard, encoded_rows
from nmtkit.prep.engines import Engine
from nmtkit.prep.lookup import learn_models
from nmtkit.prep.parse_spans import Stanza, check_parses, cut_spans, parse_text, sum_of_outcomes
from nmtkit.prep.repeats import compare_hashes, overlaps, survey_shard
from nmtkit.prep.request import Request
from nmtkit.prep.shards import SetShards, Shard, TextFile, cut, shard_rows, unpack, unpacked
from nmtkit.prep.tasks import Fact, Outcome, Runner, Task, total
from nmtkit.prep.word_table import merge_words
from nmtkit.prep.work import OUT, TEXT_MODEL
from nmtkit.records import Overlap, Repeats, TextRecipe
from nmtkit.text.side import RULES, TextSide
from nmtkit.text.vocabulary import SPECIALS

PART_BYTES = 1 << 26
"""The most bytes of hashes or words that one task compares or adds up."""


def by_frequency(reasons: Reasons) -> Reasons:
    """Return the reasons why pairs were dropped, most frequent first."""
    order = sorted(reasons, key=lambda reason: (-reasons[reason]["pairs"], reason))
    return {reason: reasons[reason] for reason in order if reasons[reason]["pairs"]}


def _shard_tasks(
    shards: Sequence[Shard], step: str, function: Callable[..., Outcome], *arguments: Any
) -> list[Task]:
    """Return a task of a step for each shard; its arguments begin with the shard."""
    return [Task(step, shard.index, shard.rows, function, (shard, *arguments)) for shard in shards]


@dataclass
class Steps:
    """The steps of preparing one corpus in a work folder.

    Args:
        work: the work folder; a task that is finished there is not done again.
        key: of the work (`stage._key`).
        corpus: the text to prepare.
        inputs: the files of the corpus.
        request: the user's request.
        engine: where the tasks run.
        jobs: worker processes for steps that run here.
        identity: the manifest's `source`.
        parser: of the source language, for sets without a file of parses.
    """

    work: Path
    key: str
    corpus: Corpus
    inputs: Inputs
    request: Request
    engine: Engine
    jobs: int
    identity: files.JsonObject
    parser: Stanza | None

    def __post_init__(self) -> None:
        self.work = self.work.absolute()  # workers may have another current folder
        self.settings = self.request.settings
        self.languages = (self.corpus.src, self.corpus.tgt)
        self.out = self.work / OUT
        self.runner = Runner(self.work, self.key, self.engine)
        memory = self.settings.memory or memory_bytes() / (1 << 30) / 4
        self.budget = max(1 << 20, int(memory * (1 << 30)))  # below it, pieces are too many

    @property
    def drops(self) -> bool:
        """True if repeated pairs are dropped."""
        return self.settings.deduplicate or self.settings.drop_overlap != "none"

    def begin(self) -> None:
        """Write what every task reads: the user's text model, and the recipe of the text."""
        (self.work / TEXT_MODEL).mkdir(parents=True, exist_ok=True)
        self.request.text_model.copy(self.work / TEXT_MODEL, self.settings)
        src, tgt = self.languages
        TextRecipe(src=src, tgt=tgt, settings=self.settings, tools=RULES).write(
            self.out / "manifest.json"
        )

    def shards(self) -> SetShards:
        """Return the shards of every set; a dev or test set is one shard."""
        self.plain = plain = self._plain_texts()
        result = {}
        for text in self.corpus.sets:
            streams = [[plain[path] for path in paths] for paths in text.sides.values()]
            lines = self.inputs.lines(text.src)
            train = text.split == "train"
            rows = shard_rows(lines, self.settings.shard_lines) if train else max(lines, 1)
            result[text.name] = cut(streams, rows)
        return result

    def _plain_texts(self) -> dict[Path, TextFile]:
        """Decompress text files, because reading a shard begins in the middle of a file; return
        every text file with its plain text.
        """
        paths = [p for text in self.corpus.sets for p in (*text.files(), text.parses) if p]
        texts, tasks = {}, list[Task]()
        for path in dict.fromkeys(paths):
            facts, plain = self.inputs.facts[path], path.absolute()
            if path.suffix in files.COMPRESSED:
                index = len(tasks)
                tasks.append(Task("plain", index, facts.lines, unpack, (plain,)))
                plain = unpacked(self.work, index)
            texts[path] = replace(facts, plain=plain)
        self.runner.run("decompressing", tasks)
        return texts

    def survey(self, shards: SetShards) -> list[Fact]:
        """Hash the pairs of all sets, and count lines in another script."""
        tasks = list[Task]()
        for text in self.corpus.sets:
            for shard in shards[text.name]:
                arguments = shard, tuple(text.sides), self.languages
                tasks.append(Task("survey", len(tasks), shard.rows, survey_shard, arguments))
        return self.runner.run_timed("find repeated pairs", "finding repeated pairs", tasks)

    def compare(self, shards: SetShards, surveyed: Sequence[Fact]) -> tuple[Repeats, str]:
        """Count repeated pairs.

        Args:
            shards: of every set.
            surveyed: the facts of `survey`.
        Returns: the counts, and the folder with the pairs to drop ("" if none is dropped).
        """
        train, *held_out = map(len, shards.values())
        ends = itertools.accumulate(held_out, initial=train)
        ranges = tuple(range(*pair) for pair in itertools.pairwise(ends))
        rows = sum(shard.rows for shard in shards["train"])
        parts = self._parts(16 * rows)
        step = f"repeats.{parts}"
        arguments = step, parts, train, ranges, self.settings
        tasks = [
            Task(step, part, rows // parts, compare_hashes, arguments) for part in range(parts)
        ]
        values = [fact.value for fact in self.runner.run("comparing pairs", tasks)]
        repeats = Repeats(
            duplicates=sum(value["duplicates"] for value in values),
            identical=sum(fact.value["identical"]["ref"] for fact in surveyed[:train]),
            overlap=[
                Overlap(name=name, exact=exact, normalised=folded)
                for name, (exact, folded) in zip(list(shards)[1:], overlaps(values), strict=True)
            ],
        )
        return repeats, step if self.drops else ""

    def _parts(self, size: int) -> int:
        """Return the number of tasks that together compare or add up `size` bytes."""
        within_memory = -(-8 * size * max(self.jobs, 1) // self.budget)
        return max(1, within_memory, size // PART_BYTES)

    def clean(self, shards: Sequence[Shard], dropped: str) -> list[Fact]:
        """Clean the training text, without the pairs that `compare` left in the folder `dropped`
        ("" if none is dropped).
        """
        tasks = _shard_tasks(shards, "clean", clean_shard, self.languages, self.settings, dropped)
        return self.runner.run_timed("tidy, tokenize, clean, count", "tokenizing", tasks)

    def merge(self, cleaned: Sequence[Fact]) -> tuple[str, int]:
        """Add up the word counts of all shards, in parts.

        Returns: the folder of the parts, and their number.
        """
        tables = [
            self.work / name
            for fact in cleaned
            for name in fact.files
            if not name.endswith((".text.npy", ".kept.npy"))
        ]
        size = sum(path.stat().st_size for path in tables)
        parts = self._parts(size)
        step = f"merge.{parts}"
        arguments = step, parts, len(cleaned)
        tasks = [Task(step, part, 1, merge_words, arguments) for part in range(parts)]
        self.runner.run("counting words", tasks)
        return step, parts

    def learn(self, merged: tuple[str, int]) -> Fact:
        """Learn truecasers, subwords and vocabularies in this process."""
        start = time.perf_counter()
        arguments = *merged, self.languages, self.settings, self.jobs
        fact = self.runner.run_here(Task("learn", 0, 0, learn_models, arguments))
        self.runner.models = files.text_sha256(repr(sorted(fact.files.items())))
        if max(fact.value["vocabularies"]) == len(SPECIALS):
            hint = "lower it, or raise prep.max_types"
            raise DataError("the vocabulary is empty", where="prep.min_frequency", hint=hint)
        counts = fact.value["counts"]
        types, seconds = counts["src_types"] + counts["tgt_types"], time.perf_counter() - start
        stage = "subwords, vocabulary"
        self.runner.speed.append({"stage": stage, "types": types, "seconds": round(seconds, 3)})
        if not self.request.text_model.languages:
            console.say(f"{stage}: from {counted(types, 'word')} in {seconds:.1f}s")
        if left_out := counts.get("types_left_out"):
            console.say(f"not learnt from: {counted(left_out, 'rare word')} (prep.max_types)")
        return fact

    def encode(
        self, shards: Sequence[Shard], learnt: Fact, reasons: Reasons
    ) -> tuple[files.JsonObject, Reasons]:
        """Encode the training text.

        Args:
            shards: of the training text.
            learnt: the fact of `learn`.
            reasons: why cleaning dropped pairs.
        Returns: the entry of the manifest, and why cleaning or encoding dropped pairs.
        """
        vocabulary = max(learnt.value["vocabularies"])
        tasks = _shard_tasks(shards, "encode", encode_shard, vocabulary, self.settings.max_subwords)
        encoded = self.runner.run_timed("truecase, segment, encode", "encoding", tasks)
        facts = total(fact.value for fact in encoded)
        reasons = reasons | facts["reasons"]
        self.refuse_nothing(facts["kept"], reasons)
        return {"lines": facts["kept"], **facts["subwords"]}, reasons

    def refuse_nothing(self, kept: int, reasons: Reasons) -> None:
        """Raise DataError if no training pair is kept."""
        if kept:
            return
        train = self.corpus.sets[0]
        dropped = by_frequency(reasons).items()
        counts = ", ".join(f"{reason} {count['pairs']:,}" for reason, count in dropped)
        raise DataError(
            f"cleaning dropped all {counted(self.inputs.lines(train.src), 'training pair')}:"
            f" {counts}",
            # the text of a data set is in a temporary folder
            where=self.corpus.name if self.request.dataset else train.where("src", "ref"),
            hint="check the files, or the settings prep.min_words, max_words, max_ratio,"
            " max_subwords, drop_overlap",
        )

    def encode_sets(self, shards: SetShards) -> list[files.JsonObject]:
        """Encode dev and test sets, and return their entries of the manifest."""
        tasks = []
        for number, text in enumerate(self.corpus.sets[1:]):
            (shard,) = shards[text.name]
            arguments = shard, text.name, tuple(text.sides)
            tasks.append(Task("sets", number, shard.rows, encode_set, arguments))
        facts = self.runner.run_timed("dev and test sets", "encoding dev and test sets", tasks)
        return [
            {
                "lines": task.lines,
                **fact.value["subwords"],
                "changed": fact.value["changes"],
                "blank": fact.value["blank"],
            }
            for task, fact in zip(tasks, facts, strict=True)
        ]

    def annotate(self, text: SetFiles, shards: Sequence[Shard]) -> files.JsonObject:
        """Write the document starts of a set, and the phrases that parses give; return both parts
        of the manifest's entry.
        """
        if text.docs is None and text.parses is None and self.parser is None:
            return {}
        entry = {}
        train = text.split == "train"
        kept = np.concatenate([encoded_rows(self.work, shard, train) for shard in shards])
        if text.docs is not None:
            starts = kept_starts(text.docs, kept)
            files.write_lines(documents_file(self.out, text.name), list(map(str, starts)))
            entry["documents"] = len(starts)
        if parses := text.parses or self._parsed(text, kept):
            entry |= self._spans(text, parses, shards)
        return entry

    def _parsed(self, text: SetFiles, kept: Mask) -> Path | None:
        """Parse the source of a set, and return the file of its trees (None without a parser)."""
        if self.parser is None:
            return None
        path = self.out / "parses" / f"{text.name}.txt"
        if not path.is_file():
            (source,) = cut([[self.plain[file] for file in text.src]], len(kept))
            with self.runner.timed(f"parsing {text.name}", len(kept)):
                parse_text(self.parser, TextSide.load(self.out, "src"), source, kept, path)
        return path

    def _spans(self, text: SetFiles, parses: Path, shards: Sequence[Shard]) -> files.JsonObject:
        """Cut the source sentences of a set into phrases by their parses."""
        trees = self.plain.get(parses) or inspect(parses, strict=True)
        streams = [[self.plain[path] for path in text.src], [trees]]
        parts = cut(streams, shards[0].rows)
        tasks = _shard_tasks(
            parts, f"spans.{text.name}", cut_spans, text.name, text.split == "train"
        )
        stage, label = f"phrases of {text.name}", f"parses of {text.name}"
        facts = self.runner.run_timed(stage, label, tasks, sides=1)
        outcomes = sum_of_outcomes([fact.value["outcomes"] for fact in facts])
        of_user = (text.original or text).parses
        check_parses(text.name, of_user or parses, **outcomes, strict=of_user is not None)
        return outcomes
