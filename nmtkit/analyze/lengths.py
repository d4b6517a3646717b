"""Analysis `lengths`: BLEU and output length, by the length of the source."""

from __future__ import annotations

from dataclasses import dataclass

from nmtkit.analyze.analysis import Finding, PaperAnalysis, PaperOptions, option
from nmtkit.analyze.study import Study, interval_note
from nmtkit.score import lengths
from nmtkit.score import paper as papers
from nmtkit.score.stored_scores import LengthScore
from nmtkit.score.translations import bleu_of, sets_to_score, source_lengths
from nmtkit.tables.table import Table, text_column


class LengthsOptions(PaperOptions):
    """Options of `lengths`."""

    buckets: str = option("dc", "dc|pr|10,20,…")
    """The groups of source lengths: those of a paper, or your own borders."""


@dataclass(frozen=True)
class LengthScores:
    """Set -> scores of every system in every group; set -> signature of BLEU."""

    by_set: dict[str, list[LengthScore]]
    signatures: dict[str, str]


class Lengths(PaperAnalysis[LengthsOptions, LengthScores]):
    """BLEU and hypothesis/reference length of each system in each group of source lengths."""

    name = "lengths"
    title = "BLEU and output length by source length"
    examples = ("--buckets 10,20,40",)
    reads_weights = False
    sets = "some"
    Options = LengthsOptions
    paper = "group"

    def measure(self, study: Study) -> LengthScores:
        lengths.groups(self.options.buckets)  # refuses wrong borders at once
        by_set, signatures = {}, {}
        for text_set in sets_to_score(study.run, study.set_names):
            scores = bleu_of(study.run, text_set, study.translations(text_set))
            signatures[text_set.name] = next(iter(scores.values())).signature
            draws, src_lengths = study.draws(text_set.lines), source_lengths(study.run, text_set)
            by_set[text_set.name] = lengths.by_length(
                scores, src_lengths, self.options.buckets, draws
            )
        return LengthScores(by_set, signatures)

    def present(self, result: LengthScores) -> Finding:
        rows = [
            [name, *lengths.row(score)]
            for name, scores in result.by_set.items()
            for score in scores
        ]
        sets: dict[str, list[str]] = {}
        for name, signature in result.signatures.items():
            sets.setdefault(signature, []).append(name)
        notes = []
        for signature, names in sets.items():
            of_sets = f" of {', '.join(names)}" if len(sets) > 1 else ""
            notes.append(f"BLEU{of_sets}: {signature}")
        notes.append(interval_note("inside the group"))
        columns = [text_column("set"), *lengths.COLUMNS]
        title = f"By source length in subwords (groups: {self.options.buckets})"
        first, scores = next(iter(result.by_set.items()))
        return Finding(
            table=Table("lengths", title, columns, rows, notes),
            text=(
                "Compare systems inside a group; groups hold different sentences. Where two "
                "intervals are far apart, the systems differ on sentences of that length. A "
                "length ratio well below 1 in the long groups means that the system leaves "
                "words out."
            ),
            figure=lengths.figure(scores, "subwords", first),
            facts={"signatures": result.signatures},
        )

    def printed_too(self, result: LengthScores) -> papers.Measured:
        """Return gains over the baseline (the mean of its seeds) in each group of the first set."""
        set_name, scores = next(iter(result.by_set.items()))
        # All systems have the same sentences, so a group has BLEU for all systems or for none.
        bleu: dict[str, dict[str, float]] = {}
        for score in scores:
            if score.bleu.value is not None:
                bleu.setdefault(score.system, {})[score.group] = score.bleu.value
        baseline = scores[0].system
        base, gains = papers.other_seeds(baseline, bleu), papers.gains_over(baseline, bleu)
        over = f"{', '.join(base)} (their mean)" if base[1:] else base[0]
        remark = f"gained over {over}, in each group"
        return papers.Measured(gains, set_name, {"": result.signatures[set_name]}, [remark])
