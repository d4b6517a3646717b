"""Analysis `examples`: one sentence in all translations, and how often each system is ahead."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from nmtkit import files
from nmtkit.analyze.analysis import Analysis, Finding, SentenceOptions
from nmtkit.analyze.study import Study
from nmtkit.arrays import Array
from nmtkit.errors import counted
from nmtkit.score.resampling import FEWEST_FOR_P, Draws, few_note, mean
from nmtkit.score.significance import binomial, signs
from nmtkit.score.translations import bleu_of
from nmtkit.tables.table import Column, Table, interval_column, text_column


@dataclass(frozen=True)
class Example:
    """One line of a set in every language and system, and the sentence BLEU of all lines.

    Attributes:
        texts: (label, line) of the source, the references and the systems.
        bleu: system -> scores of all lines (N); the baseline first.
    """

    set_name: str
    texts: list[tuple[str, str]]
    bleu: dict[str, Array]
    signature: str
    resampling: Draws


class Examples(Analysis[SentenceOptions, Example]):
    """One source with its references and translations, and sentence BLEU over all lines."""

    name = "examples"
    title = "one sentence, translated by all"
    examples = ("--sentence 7",)
    reads_weights = False
    Options = SentenceOptions

    def measure(self, study: Study) -> Example:
        run, text_set = study.run, study.text_set
        row = self.options.row(text_set.lines)
        folders = study.translations()
        metrics = bleu_of(run, text_set, folders)
        paths = [("source", run.source(text_set.name))]
        paths += [("reference", path) for path in run.references(text_set.name)]
        paths += [(name, folder / "hyp.txt") for name, folder in folders.items()]
        return Example(
            set_name=text_set.name,
            texts=[
                (label, next(islice(files.text_lines(path), row, None))) for label, path in paths
            ],
            bleu={name: metric.sentence_scores() for name, metric in metrics.items()},
            signature=next(iter(metrics.values())).signature,
            resampling=study.draws(text_set.lines),
        )

    def present(self, result: Example) -> Finding:
        line, base = self.options.sentence, next(iter(result.bleu))
        rows = []
        for name, bleu in result.bleu.items():
            compared: list[float | None] = [None] * 3
            if name != base:
                ahead, behind = signs(bleu - result.bleu[base])
                p = binomial(ahead, behind) if len(bleu) >= FEWEST_FOR_P else None
                compared = [100 * ahead / len(bleu), 100 * behind / len(bleu), p]
            rows.append([name, float(bleu[line - 1]), mean(bleu, result.resampling), *compared])
        columns = [
            text_column("system"),
            Column("bleu", f"BLEU of line {line}"),
            interval_column("mean", "mean of all lines"),
            Column("ahead", f"ahead of {base}, %", decimals=1),
            Column("behind", "behind, %", decimals=1),
            Column("p", "p", decimals=3, below=0.001),
        ]
        notes = [
            (
                f"sentence BLEU, of {counted(result.resampling.sentences, 'line')} of"
                f" {result.set_name}; ahead, behind: lines with more, with less;"
                " p: two-sided sign test on these"
            ),
            f"{result.signature}; [95%]: percentile interval over {result.resampling.describe()}",
            *few_note(result.resampling.sentences),
        ]
        title = f"Line {line} of {result.set_name}, and all others"
        width = max(len(label) for label, _ in result.texts)
        return Finding(
            table=Table("examples", title, columns, rows, notes),
            text=(
                "A single sentence proves nothing. Compare on how many sentences each system "
                "is ahead, and whether that could be chance (sign test). Sentence BLEU is "
                "rough; corpus BLEU, which `nmtkit score` tests, is not its mean."
            ),
            bars="\n".join(f"{label:>{width}}  {text}" for label, text in result.texts),
        )
