"""Write where the documents of a set start, and the spans that parses cut its source into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmtkit import files
from nmtkit.arrays import Mask
from nmtkit.corpora.corpus import SetFiles
from nmtkit.corpora.document_starts import kept_starts
from nmtkit.data.documents import documents_file
from nmtkit.prep.check import inspect
from nmtkit.prep.clean import read_kept
from nmtkit.prep.parse_spans import CutSpans, Stanza, check_parses, parse_text, sum_of_outcomes
from nmtkit.prep.shards import Shard, TextFile, cut
from nmtkit.prep.tasks import Runner, Task
from nmtkit.prep.work import OUT
from nmtkit.text.side import TextSide


@dataclass
class Annotations:
    """Writes the documents and the spans of sets.

    Args:
        runner: of the tasks, whose results are those of the sets.
        plain: every text file, so that shards can be cut from it.
        parser: of the source language, for the sets without a file of parses.
    """

    runner: Runner
    plain: dict[Path, TextFile]
    parser: Stanza | None

    def of_set(self, text: SetFiles, shards: Sequence[Shard]) -> files.JsonObject:
        """Write those of a set, and return what its entry of the manifest says of them."""
        if text.docs is None and text.parses is None and self.parser is None:
            return {}
        entry = {}
        kept = self._kept(text, shards)
        if text.docs is not None:
            starts = kept_starts(text.docs, kept)
            files.write_lines(documents_file(self.folder, text.name), list(map(str, starts)))
            entry["documents"] = len(starts)
        if parses := text.parses or self._parsed(text, kept):
            entry |= self._spans(text, parses, shards)
        return entry

    @property
    def folder(self) -> Path:
        """The prep folder to be."""
        return self.runner.work / OUT

    def _kept(self, text: SetFiles, shards: Sequence[Shard]) -> Mask:
        """Return which lines of the files of a set are in the set."""
        if text.split != "train":
            return np.ones(sum(shard.rows for shard in shards), bool)
        encode = self.runner.work / "encode"
        return np.concatenate([read_kept(encode, shard) for shard in shards])

    def _parsed(self, text: SetFiles, kept: Mask) -> Path | None:
        """Parse the source of a set, and return the file of its trees."""
        if self.parser is None:
            return None
        path = self.folder / "parses" / f"{text.name}.txt"
        if not path.is_file():
            (source,) = cut([[self.plain[file] for file in text.src]], len(kept))
            with self.runner.timed(f"parsing {text.name}", len(kept)):
                parse_text(self.parser, TextSide.load(self.folder, "src"), source, kept, path)
        return path

    def _spans(self, text: SetFiles, parses: Path, shards: Sequence[Shard]) -> files.JsonObject:
        """Cut the sources of a set by their parses."""
        trees = self.plain.get(parses) or inspect(parses, strict=True).text_file(parses)
        streams = [[self.plain[path] for path in text.src], [trees]]
        tasks = []
        for shard in cut(streams, shards[0].rows):
            spans = CutSpans(shard, text.name, text.split == "train")
            tasks.append(Task(f"spans.{text.name}", shard.index, spans, shard.rows))
        stage, label = f"phrases of {text.name}", f"parses of {text.name}"
        facts = self.runner.run_timed(stage, label, tasks, sides=1)
        outcomes = sum_of_outcomes([fact.value["outcomes"] for fact in facts])
        check_parses(text.name, parses, **outcomes, strict=text.parses is not None)
        return outcomes
