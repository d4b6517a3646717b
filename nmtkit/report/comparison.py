"""The systems of a run side by side: scores with significance, size and cost in one table a set,
and each comparison as a sentence.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from nmtkit.errors import counted
from nmtkit.report.contents import Contents, Remark
from nmtkit.score import result_tables
from nmtkit.score.metrics import header
from nmtkit.score.resampling import FEW, FEWEST_FOR_P
from nmtkit.score.result_tables import DELTA, P_SEEDS
from nmtkit.score.seeds import NOT_KNOWN
from nmtkit.score.significance import FEW_DIFFERENT, LEVEL, chance_of
from nmtkit.score.stored_scores import Scores, SeedResult, SystemScores
from nmtkit.tables import figures
from nmtkit.tables.figures import Difference
from nmtkit.tables.table import Column, Estimate, Table, text, text_column

READING = (
    f"A system is called better or worse if its difference Δ is not 0 and p < {LEVEL:g} (over "
    "several training seeds: p after Holm's correction), and only perhaps so if the 95% interval "
    "of Δ contains 0. Tied parameters count once. Minutes count updates only. nmtkit analyze cost "
    "adds times (×) relative to the baseline of the scores: with --measure it alternates the "
    "systems; without it times are from the logs."
)
SHOWN = {"system", "bleu", "delta", "p", "chrf"}
"""The columns of the scores that the comparison shows, besides the metrics that are asked for."""
TIMES = {"train_time_ratio": "update", "decode_time_ratio": "search"}
"""The columns of `analyze cost` that the table of costs shows."""


def tables(contents: Contents, set_name: str) -> list[Table]:
    """Return the first tables of a set: the groups of training seeds, if several were trained, the
    systems, and their costs.
    """
    result = contents.scores[set_name]
    by_seed = [result_tables.seeds_table(result)] if result.has_seeds else []
    return [*by_seed, score_table(result), cost_table(contents, set_name)]


def group_of(result: Scores) -> dict[str, str]:
    """Return the group of training seeds of each system; its own name if it has none."""
    if by_seed := _by_seed(result):
        return {name: group.name for group in by_seed.groups for name in group.systems}
    return {name: name for name in result.names}


def differences(result: Scores) -> list[Difference]:
    """Return the differences in BLEU to the baseline, largest first: of each system, or of each
    group of training seeds. A difference has no interval if the error of the seeds is not known.
    """
    points = []
    if by_seed := _by_seed(result):
        bleu = {system.name: system.scores["bleu"].value or 0.0 for system in result.systems}
        base = next(g.scores["bleu"].mean for g in by_seed.groups if g.name == by_seed.baseline)
        for group in by_seed.groups:
            if against := group.against.get("bleu"):
                label, gaps = group.systems[0], []
                if (count := len(group.systems)) > 1:
                    label = f"{group.name}, {count} seeds"
                    gaps = [bleu[system] - base for system in group.systems]
                points.append(Difference(label, group.name, against.estimate, gaps))
    else:
        for system in result.systems:
            if system.differences:
                points.append(Difference(system.name, system.name, system.differences["bleu"]))
    drawn = [point for point in points if point.delta.value is not None]
    return sorted(drawn, key=lambda point: -(point.delta.value or 0.0))


def _by_seed(result: Scores) -> SeedResult | None:
    """Return the groups of training seeds if they are compared: there are several groups, and one
    of them has several seeds.
    """
    seeds = result.seeds
    return seeds if seeds and seeds.several and len(seeds.groups) > 1 else None


def figure(result: Scores) -> str | None:
    """Return the figure of the differences (SVG); None if there are none, or without matplotlib."""
    points, by_seed = differences(result), _by_seed(result)
    if not points:
        return None
    label = f"Δ BLEU against {result.baseline} [95%]"
    if by_seed:
        label = f"Δ BLEU against {by_seed.baseline} [95%]; ◆ mean of seeds, ● a seed"
    return figures.differences(points, label, list(dict.fromkeys(group_of(result).values())))


def score_table(result: Scores) -> Table:
    """Return one row a system: BLEU, its difference to the baseline and p, chrF, and the metrics
    that were asked for.
    """
    whole = result_tables.main_table(result)
    shown = {*SHOWN, *result.asked}
    scores = whole.only([i for i, column in enumerate(whole.columns) if column.key in shown])
    signatures = [f"{header(key)}:" for key in ("bleu", *result.asked)]
    beginnings = (*signatures, "[95%]", "Δ, p", "one system", "empty", FEW, FEW_DIFFERENT)
    notes = [note for note in whole.notes if note.startswith(beginnings)]
    return replace(scores, name="comparison", notes=notes, turns=False)


def cost_table(contents: Contents, set_name: str) -> Table:
    """Return one row a system: parameters, and the cost of training and decoding."""
    result = contents.scores[set_name]
    trained = {system.name: system for system in contents.systems}
    time_columns, times = _times(contents, result)
    columns = [
        text_column("system"),
        Column("seed", "seed"),
        Column("parameters", "parameters, M"),
        Column("updates", "updates"),
        Column("minutes", "training, minutes", decimals=1),
        *time_columns,
    ]
    rows = []
    for name in result.names:
        training: list[float | None] = [None] * 4
        if system := trained.get(name):
            updates, parameters = system.curves.last or None, system.parameters
            minutes = updates and system.curves.at(updates, "minutes")
            training = [system.seed, parameters and parameters / 1e6, updates, minutes]
        rows.append([name, *training, *times.get(name, [None] * len(time_columns))])
    return Table("cost", f"{result.set}: size and cost", columns, rows)


def _times(contents: Contents, result: Scores) -> tuple[list[Column], dict[str, list[Any]]]:
    """Return the columns of the times of `analyze cost`, and their cells by system; nothing if the
    times are out of date or relative to another baseline than the scores.
    """
    cost = contents.findings.get("cost")
    if cost is None or cost.outdated or cost.finding.facts.get("baseline") != result.baseline:
        return [], {}
    how = "measured" if cost.finding.facts.get("measured") else "logged"
    where = {"search": f"{how} on {cost.finding.facts.get('set')}"}
    headers = {key: f"{name}, × ({where.get(name, how)})" for key, name in TIMES.items()}
    table = cost.finding.table.table
    times = table.only([0, *(i for i, c in enumerate(table.columns) if c.key in TIMES)])
    columns = [replace(c, header=headers[c.key]) for c in times.columns[1:]]
    return columns, {name: cells for name, *cells in times.rows}


def verdicts(result: Scores) -> list[str]:
    """Return a sentence on each system, or group of training seeds, against the baseline; best
    first.
    """
    if by_seed := _by_seed(result):
        return _seed_verdicts(by_seed, result)
    systems = sorted(result.systems, key=lambda system: -(system.scores["bleu"].value or 0.0))
    if len(systems) == 1:
        bleu = text(systems[0].scores["bleu"].value, Column("bleu", "BLEU"))
        return [f"{systems[0].name} has {bleu} BLEU; there is no other system to compare it with."]
    return [_system_verdict(system, result) for system in systems if system.tests]


def _system_verdict(system: SystemScores, result: Scores) -> str:
    """Return a sentence on one system."""
    delta, test = system.differences["bleu"], system.tests[result.test]["bleu"]
    shown = text(delta, DELTA)
    if test.p is None:
        why = FEW if result.sentences < FEWEST_FOR_P else test.setting
        return f"{system.name} - {result.baseline}: {shown} BLEU; {why}."
    p = _shown_p(test.p, result_tables.p_column(result, result.test))
    verdict = f"{system.name} is {_verdict(delta, test.p)} {result.baseline}"
    return f"{verdict}: {shown.replace(' [', ' BLEU [')}, {p}."


def _shown_p(p: float, column: Column) -> str:
    """Return "p = …", or "p < …" if p is smaller than its column shows."""
    shown = text(p, column)
    return f"p < {shown[1:]}" if shown.startswith("<") else f"p = {shown}"


def _verdict(delta: Estimate, p: float) -> str:
    """Return how a system compares with the baseline, by its difference in BLEU and p."""
    if p >= LEVEL or abs(delta.value or 0.0) < 0.005:  # shown as 0.00
        return "not clearly different from"
    sure = (delta.low or 0) > 0 or (delta.high or 0) < 0
    return ("" if sure else "perhaps ") + f"{'better' if (delta.value or 0) > 0 else 'worse'} than"


def _seed_verdicts(by_seed: SeedResult, result: Scores) -> list[str]:
    """Return a sentence on the mean of each group of systems that differ in the training seed."""
    sentences = []
    for group in sorted(by_seed.groups, key=lambda group: -group.scores["bleu"].mean):
        against = group.against.get("bleu")
        if against is None:
            continue
        name = f"{group.name} ({counted(len(group.systems), 'seed')})"
        if against.p is None or against.p_holm is None:
            why = FEW if result.sentences < FEWEST_FOR_P else NOT_KNOWN
            sentences.append(f"{name}: mean difference {against.difference:+.2f} BLEU; {why}.")
            continue
        verdict = f"{name} is {_verdict(against.estimate, against.p_holm)} {by_seed.baseline}"
        shown = text(against.estimate, DELTA).replace(" [", " BLEU [")
        p = f"{_shown_p(against.p, P_SEEDS)} (Holm {text(against.p_holm, P_SEEDS)})"
        sentences.append(f"{verdict}: {shown}, {p}.")
    return sentences


def _by_chance(result: Scores) -> list[float]:
    """Return, for each p of the verdicts, the chance of p < LEVEL without a difference."""
    by_seed = _by_seed(result)
    if by_seed is None:
        return [chance_of(result.test) for p in result.p_of_bleu if p is not None]
    against = [group.against["bleu"] for group in by_seed.groups if group.against]
    return [LEVEL for difference in against if difference.p is not None]


def cautions(contents: Contents) -> list[Remark]:
    """Return what every reader of the comparison should know: the chance of seeds and of many
    tests, and the remarks on the scores.
    """
    remarks = []
    compared = [result for result in contents.scores.values() if result.compared]
    if compared and not any(result.has_seeds for result in compared):
        used = {system.seed for system in contents.systems}
        seed = next(number for number in itertools.count(1) if number not in used)
        remarks.append(
            Remark(
                "Each system was trained once: no test here accounts for the training seed. Train"
                f" each again under another name, with its options and --seed {seed}; then:",
                "nmtkit score --group-by seed",
            )
        )
    texts = []
    by_chance = [chance for result in compared for chance in _by_chance(result)]
    if len(by_chance) > 1:
        texts.append(
            f"{len(by_chance)} differences are tested: about {sum(by_chance):.1f} of them would "
            f"have p < {LEVEL:g} by chance alone."
        )
    for result in contents.scores.values():
        # Another section of the page lists outdated parts.
        outdated = result.made_from.older_checkpoints if result.made_from else []
        texts += [text for text in result.remarks if text not in (*texts, *outdated)]
    return [*remarks, *map(Remark, texts)]
