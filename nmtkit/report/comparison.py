"""The systems of a run side by side: scores with significance, size and cost in one table a set,
and what it says in words.
"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from nmtkit.errors import DataError, counted
from nmtkit.records import Scores, SeedResult
from nmtkit.report.gathered import DAMAGED, Gathered, Remark, TrainedSystem
from nmtkit.score import result_tables
from nmtkit.score.translations import described
from nmtkit.tables.table import Column, Table, text

LEVEL = 0.05
"""A difference with a smaller p is called one."""
READING = (
    f"A system is called better or worse where p < {LEVEL:g}, and only perhaps so where the 95%"
    " interval of its difference Δ holds 0 all the same. Parameters are the numbers in the"
    " checkpoint, tied ones once. Minutes are of updates alone. Times, ×, are beside the"
    " baseline's: measured ones are those of nmtkit analyze cost --measure, which takes the"
    " systems in turn (its finding has their intervals); logged ones are of machines that may have"
    " done other work."
)


def tables(found: Gathered, set_name: str) -> list[Table]:
    """What a set's scores are read from first: where several seeds were trained, the table of
    their groups; then that of the systems.
    """
    result = found.scores[set_name]
    return [
        *([result_tables.seeds_table(result)] if result.has_seeds else []),
        table(found, set_name),
    ]


def table(found: Gathered, set_name: str) -> Table:
    """One row a system: BLEU, its difference to the baseline's and p, parameters, and the cost of
    training and decoding.

    Args:
        found: the run; set_name: one of its scored sets.
    """
    result = found.scores[set_name]
    main = result_tables.main_table(result)
    kept = [
        i
        for i, column in enumerate(main.columns)
        if column.key in {"system", "bleu", "delta", "p", "chrf"}
    ]
    trained = {system.name: system for system in found.systems}
    base, measured = _minutes_an_update(trained.get(result.baseline)), _measured(found, result)
    columns = [
        *(main.columns[i] for i in kept),
        Column("seed", "seed"),
        Column("parameters", "parameters, M"),
        Column("updates", "updates"),
    ]
    columns += [Column("minutes", "training, minutes", decimals=1)]
    if measured:
        columns += [
            Column("update_ratio", "update, × (measured)"),
            Column("decoding", "search, × (measured)"),
        ]
    else:
        columns += [
            Column("update_ratio", "update, × (logged)"),
            Column("decoding", "search, tokens/s (logged)", decimals=0),
        ]
    rows: list[list[Any]] = []
    for row in main.rows:
        system = trained.get(row[0])
        own = _minutes_an_update(system)
        cost: list[Any] = [None] * 4
        if system is not None:
            last = system.curves.last or None
            millions = None if system.parameters is None else system.parameters / 1e6
            cost = [
                system.seed,
                millions,
                last,
                system.curves.at(last, "minutes") if last else None,
            ]
        times = (
            measured.get(row[0], (None, None))
            if measured
            else (own / base if own and base else None, _speed(found, row[0], set_name))
        )
        rows.append([*(row[i] for i in kept), *cost, *times])
    notes = [
        note
        for note in main.notes
        if note.startswith(("BLEU:", "[95%]", "Δ, p", "one system", "empty"))
    ]
    return Table("comparison", main.title, columns, rows, notes)


def _measured(found: Gathered, result: Scores) -> dict[str, tuple[float, float]]:
    """The time of an update and of a search beside that of the scores' baseline, by system, where
    `analyze cost --measure` took it in turns.

    Returns: nothing where that is of another baseline, out of date, or cannot be read.
    """
    kept = found.findings.get("cost")
    if kept is None or kept.late or kept.finding.facts.get("baseline") != result.baseline:
        return {}
    try:
        measured = kept.finding.facts["measured"].items()
        return {
            name: (float(own["train_ratio"]["value"]), float(own["decode_ratio"]["value"]))
            for name, own in measured
        }
    except DAMAGED:
        return {}


def _minutes_an_update(system: TrainedSystem | None) -> float | None:
    """Median over the log, without its first line, in which everything starts."""
    if system is None:
        return None
    known = [
        (s.seconds / 60 / (s.end - s.begin)) for s in system.curves.train if s.seconds is not None
    ]
    return statistics.median(known[1:] or known) if known else None


def _speed(found: Gathered, system: str, set_name: str) -> float | None:
    try:
        speed = described(found.run.system(system).translation(set_name)).speed
    except DataError:
        return None
    return None if speed is None else speed.tokens_per_second


def verdicts(result: Scores) -> list[str]:
    """What a set's scores say of each system, or group of training seeds, against the baseline,
    a sentence each; the best first.
    """
    if result.seeds and result.has_seeds and len(result.seeds.groups) > 1:
        return _seed_verdicts(result.seeds)
    if len(result.systems) == 1:
        only = result.systems[0]
        return [
            f"{only.name} has {only.scores['bleu'].value:.2f} BLEU; there is no other system to"
            " compare it with."
        ]
    said = []
    for system in sorted(result.systems, key=lambda one: -(one.scores["bleu"].value or 0.0)):
        if not system.tests:
            continue
        delta, p = system.differences["bleu"], system.tests[result.test]["bleu"].p
        how = "not clearly different from"
        if p < LEVEL:
            sure = (delta.low or 0) > 0 or (delta.high or 0) < 0
            how = ("" if sure else "perhaps ") + (
                "better than" if (delta.value or 0) > 0 else "worse than"
            )
        interval = f"[{delta.low:+.2f}, {delta.high:+.2f}]"
        shown = _p(p, result_tables.p_column(result, result.test, "p", "p"))
        said.append(
            f"{system.name} is {how} {result.baseline}: {delta.value:+.2f} BLEU {interval},"
            f" {shown}."
        )
    return said


def _p(value: float, column: Column) -> str:
    shown = text(value, column)
    return f"p < {shown[1:]}" if shown.startswith("<") else f"p = {shown}"


def _seed_verdicts(result: SeedResult) -> list[str]:
    """The same of groups of systems that differ in the training seed alone: by their means, and
    what each pair of equal seeds says.
    """
    said = []
    for group in sorted(result.groups, key=lambda one: -one.scores["bleu"].mean):
        against = group.against.get("bleu")
        if against is None:
            continue
        pairs, p = against.pairs, against.p_seeds
        clear = [pair.better for pair in pairs if pair.p < LEVEL]
        better, worse = sum(clear), len(clear) - sum(clear)
        of = f"{counted(len(pairs), 'pair')} of equal seeds"
        found = (
            f"better in {better} and worse in {worse} of {of}"
            if pairs
            else "no pairs of equal seeds"
        )
        name = f"{group.name} ({counted(len(group.systems), 'seed')})"
        told = (
            f"{name}: {against.difference:+.2f} BLEU to {result.baseline} in the mean, {found} (p <"
            f" {LEVEL:g})"
        )
        said.append(told + (f"; p of the seeds {p:.3f}." if p is not None else "."))
    return said


def cautions(found: Gathered) -> list[Remark]:
    """What every reader of the comparison should know: the luck of seeds, unequal budgets, tests
    of which some turn out well by luck.
    """
    said = []
    compared = [result for result in found.scores.values() if len(result.systems) > 1]
    if compared and not any(result.has_seeds for result in compared):
        text = "One training a system: no test here says anything of the luck of a training seed."
        used = {system.seed for system in found.systems}
        seed = next(number for number in itertools.count(1) if number not in used)
        said.append(
            Remark(text, f"nmtkit train --seed {seed} --name NAME && nmtkit score --group-by seed")
        )
    tests = sum(bool(system.tests) for result in compared for system in result.systems)
    if tests > 4:
        said.append(
            Remark(
                f"{tests} differences are tested: of so many, about {tests * LEVEL:.1f} would have"
                f" p < {LEVEL:g} by luck alone."
            )
        )
    updates = {system.name: system.curves.last for system in found.systems if system.curves.last}
    if len(set(updates.values())) > 1:
        told = ", ".join(f"{name} {count:,}" for name, count in updates.items())
        said.append(Remark(f"The systems had different numbers of updates: {told}."))
    return said


def details(result: Scores) -> list[Table]:
    """All tables of a set's scores but those by length and by training seed: every metric, every
    test.
    """
    return [
        table
        for stem, table in result_tables.tables(result).items()
        if stem != "seeds" and not stem.startswith("lengths")
    ]


def by_length(result: Scores) -> list[Table]:
    """The tables by length, of a result that has them."""
    return [
        table for stem, table in result_tables.tables(result).items() if stem.startswith("lengths")
    ]
