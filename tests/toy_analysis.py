"""An analysis outside the package: how often each system writes its most frequent words.

nmtkit analyze tests.toy_analysis:FrequentWords --words 3
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nmtkit import files
from nmtkit.analyze.analysis import Analysis, Finding, Options, option
from nmtkit.analyze.study import Study
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table


class FrequentWordsOptions(Options):
    """Options of the analysis."""

    words: int = option(5, "N", ge=1)
    """How many words are shown of each system."""
    ignore_case: bool = False
    """Count words without their case."""


@dataclass(frozen=True)
class WordCounts:
    """The set, and of each system its words with their counts."""

    set_name: str
    counts: dict[str, list[tuple[str, int]]]


class FrequentWords(Analysis[FrequentWordsOptions, WordCounts]):
    """The most frequent words of each system's translation."""

    name = "frequent-words"
    title = "the most frequent words"
    examples = ("--words 3",)
    sets = "one"
    Options = FrequentWordsOptions

    def measure(self, study: Study) -> WordCounts:
        counts = {}
        for name, folder in study.translations().items():
            lines = files.text_lines(folder / "hyp.txt")
            words = (line.lower() if self.options.ignore_case else line for line in lines)
            counts[name] = Counter(" ".join(words).split()).most_common(self.options.words)
        return WordCounts(study.set_name, counts)

    def present(self, result: WordCounts) -> Finding:
        rows = [
            [name, word, count] for name, words in result.counts.items() for word, count in words
        ]
        columns = [
            Column("system", "system", left=True),
            Column("word", "word", left=True),
            Column("count", "count"),
        ]
        first = next(iter(result.counts.values()))
        return Finding(
            table=Table("words", f"The most frequent words ({result.set_name})", columns, rows),
            text="A system that repeats itself shows a word here that the others do not have.",
            figure=figures.grouped_bars(
                [word for word, _ in first],
                {"count": [Estimate(n) for _, n in first]},
                "word",
                "count",
            ),
            facts={"set": result.set_name},
        )
