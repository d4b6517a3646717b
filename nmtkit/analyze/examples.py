"""Analysis `examples`: one sentence as every system translates it, its score, and how often which system is ahead on all the others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from nmtkit import files
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared.recording import one_set
from nmtkit.errors import ConfigError
from nmtkit.run import Run
from nmtkit.score import paper as papers
from nmtkit.score.metrics import Metric
from nmtkit.score.resampling import Draws, estimate
from nmtkit.score.significance import binomial
from nmtkit.score.translations import bleu_of, compared
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table

RESAMPLES, SEED = 1000, 1
SAME = 1e-9
"""Scores no further apart are the same."""


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = (), sentence: int = 1, paper: str = "", table: str = "") -> Finding:
    """A source with its references and translations, the sentence BLEU of each, and what that of a whole set says.

    Args:
        run: the run; systems: those that have a translation of the set, the first of them is the baseline.
        set_names: one set (default: the first test set); sentence: its line, from 1.
        paper: a paper's printed numbers of a sentence, to be put beside; table: which of its tables.
    Raises: ConfigError for a line that is not there; DataError if none of the systems translated the set.
    """
    beside = papers.asked(paper, table, "sentence")
    chosen = run.text_set(one_set(run, set_names, "a sentence"))
    if not 1 <= sentence <= chosen.lines:
        raise ConfigError(f"no line {sentence}: there are {chosen.lines:,}", where="--sentence", hint=f"1 to {chosen.lines}")
    folders = compared(run, chosen, systems)
    scores = bleu_of(run, chosen, folders)
    signature = next(iter(scores.values())).signature
    shown = _table(scores, Draws(chosen.lines, RESAMPLES, seed=SEED), sentence, chosen.name, signature)
    texts = [("source", run.source(chosen.name)), *(("reference", path) for path in run.references(chosen.name))]
    texts += [(name, path / "hyp.txt") for name, path in folders.items()]
    finding = Finding(
        name="examples",
        title="one sentence, translated by all",
        table=shown,
        text="One sentence measures nothing: what counts is how many sentences a system is ahead on, and whether that could be luck (sign test). "
        "Sentence BLEU is rough; corpus BLEU, which `nmtkit score` tests, is no mean of it.",
        figure=_figure(shown) if len(shown.rows) > 1 and figures.available() else None,
        bars=_aligned([(label, next(itertools.islice(files.text_lines(path), sentence - 1, None))) for label, path in texts]),
        facts={"set": chosen.name, "line": sentence, "resamples": RESAMPLES, "seed": SEED, "signature": signature},
    )
    if beside is None:
        return finding
    known = {name: {"bleu": float(metric.sentence_scores()[sentence - 1]) / 100} for name, metric in scores.items()}
    remark = "which sentence the paper's is, is not said"
    where = f"{chosen.name}, line {sentence}"
    return finding.beside(papers.numbers_beside(beside, "sentence", known, run.manifest().dataset, where, signature, [remark]))


def _table(scores: Mapping[str, Metric], draws: Draws, sentence: int, set_name: str, signature: str) -> Table:
    base_name, *_ = scores
    base = scores[base_name]
    rows: list[list[Any]] = []
    for name, metric in scores.items():
        own = metric.sentence_scores()
        means = draws.full.sums(own[:, None])[:, 0] / len(own)
        row = [name, float(own[sentence - 1]), estimate(float(own.mean()), means)]
        if name == base_name:
            rows.append([*row, None, None, None])
            continue
        gap = own - base.sentence_scores()
        ahead, behind = int((gap > SAME).sum()), int((gap < -SAME).sum())
        rows.append([*row, 100 * ahead / len(gap), 100 * behind / len(gap), binomial(ahead, behind)])
    columns = [
        Column("system", "system", left=True),
        Column("bleu", f"BLEU of line {sentence}"),
        Column("mean", "mean of all lines [95%]", interval=True),
        Column("ahead", f"ahead of {base_name}, %", decimals=1),
        Column("behind", "behind, %", decimals=1),
        Column("p", "p", decimals=3, below=0.001),
    ]
    notes = [
        f"sentence BLEU, of {draws.sentences:,} lines of {set_name}; ahead, behind: lines with more, with less; p: two-sided sign test on these",
        f"{signature}; [95%]: percentile interval over {draws.full.describe()}",
    ]
    return Table("examples", f"Line {sentence} of {set_name}, and all others", columns, rows, notes)


def _figure(table: Table) -> str:
    """How many of all lines each system is ahead on, and behind."""
    keys = [column.key for column in table.columns]
    base, *others = table.rows
    series = {word: [Estimate(row[keys.index(word)]) for row in others] for word in ("ahead", "behind")}
    return figures.grouped_bars([row[0] for row in others], series, f"against {base[0]}", "% of the sentences", upright=True)


def _aligned(lines: Sequence[tuple[str, str]]) -> str:
    """Texts below each other, each behind its label."""
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:>{width}}  {text}" for label, text in lines)
