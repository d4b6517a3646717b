"""Analysis `lengths`: BLEU and output length, by the length of the source."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from nmtkit.analyze.finding import Finding
from nmtkit.records import LengthScore
from nmtkit.run import Run
from nmtkit.score import lengths
from nmtkit.score import paper as papers
from nmtkit.score.resampling import Draws
from nmtkit.score.stage import source_lengths
from nmtkit.score.translations import bleu_of, compared, sets_to_score
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Table

RESAMPLES, SEED = 1000, 1


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = (), buckets: str = "dc", paper: str = "", table: str = "") -> Finding:
    """BLEU and hypothesis/reference length of each system in each group of source lengths.

    Args:
        run: the run; systems: those that have a translation of the set are compared.
        set_names: the sets (default: every test set that is translated).
        buckets: the groups (see `nmtkit.score.lengths.groups`).
        paper: a paper's printed gains over the first system, to be put beside those of the first set; table: which of its tables.
    Raises: DataError if none of the systems translated the set.
    """
    lengths.groups(buckets)
    beside = papers.asked(paper, table, "group")
    rows: list[list[Any]] = []
    drawn: list[tuple[str, list[LengthScore]]] = []
    signature = ""
    for chosen in sets_to_score(run, set_names):
        scores = bleu_of(run, chosen, compared(run, chosen, systems))
        signature = next(iter(scores.values())).signature
        found = lengths.by_length(scores, source_lengths(run, chosen), buckets, Draws(chosen.lines, RESAMPLES, seed=SEED))
        drawn.append((chosen.name, found))
        rows += [[chosen.name, *lengths.row(f)] for f in found]
    notes = [f"BLEU: {signature}", f"[95%]: percentile interval over {RESAMPLES} resamples inside the group, seed {SEED}"]
    shown = Table("lengths", f"By source length in subwords (groups: {buckets})", [Column("set", "set", left=True), *lengths.COLUMNS], rows, notes)
    name, first = drawn[0]
    finding = Finding(
        name="lengths",
        title="BLEU and output length by source length",
        table=shown,
        text="Compare systems inside a group, not groups with each other (their sentences differ): where two intervals are far apart the systems "
        "differ on sentences of that length; a length ratio well below 1 in the long groups means that words are left out there.",
        figure=lengths.figure(first, "subwords", name) if figures.available() else None,
        bars="\n\n".join((f"{name}\n" if len(drawn) > 1 else "") + lengths.bars(found) for name, found in drawn),
        facts={"buckets": buckets, "resamples": RESAMPLES, "seed": SEED, "signature": signature},
    )
    return finding if beside is None else finding.beside(_beside(beside, first, name, run.manifest().dataset, signature))


def _beside(paper: papers.Printed, found: Sequence[LengthScore], set_name: str, dataset: str, signature: str) -> Table:
    """A paper's gains over the baseline, the first system, beside the measured ones."""
    base = papers.other_seeds(found[0].system, dict.fromkeys(score.system for score in found))
    known: dict[str, dict[str, float]] = {score.system: {} for score in found if score.system not in base}
    for group in dict.fromkeys(score.group for score in found):
        inside = {score.system: score.bleu.value for score in found if score.group == group and score.bleu.value is not None}
        if inside:  # all systems have the same sentences
            least = statistics.fmean(inside[name] for name in base)
            for name in known:
                known[name][group] = inside[name] - least
    remarks = [f"gained over {', '.join(base)} (their mean), in each group" if base[1:] else f"gained over {base[0]}, in each group"]
    groups = {score.group for score in found}
    if missing := [column.group for column in paper.table.columns if column.kind == "group" and column.group not in groups]:
        remarks.append(f"no group {', '.join(missing)} among these: --buckets says which there are (pr, dc, or borders)")
    return papers.numbers_beside(paper, "group", known, dataset, set_name, signature, remarks)
