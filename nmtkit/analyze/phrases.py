"""Analysis `phrases`: how many of the multi-word expressions of a source a system translates as the reference does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import files
from nmtkit.analyze import expressions as lists
from nmtkit.analyze.agreement import interval
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared.expressions import Expression, occurrences, spaced, translations
from nmtkit.demo import separable_expressions
from nmtkit.errors import ConfigError, DataError
from nmtkit.records import TextSet
from nmtkit.run import Run
from nmtkit.score.formulas import Array
from nmtkit.score.resampling import Resampling, estimate
from nmtkit.score.translations import compared, sets_to_score
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, bar

RESAMPLES, SEED = 1000, 1
MOST = 40
"""Expressions in the table; the others are in occurrences.tsv."""
BUILT_IN = "separable-verbs"
KINDS = ("in one piece", "with words between")


@dataclass(frozen=True)
class Occurrence:
    """An expression in a source line whose reference has an accepted translation of it, or has none (then `wanted` is 0)."""

    line: int
    expression: int
    in_source: int
    wanted: int
    """How often the reference has one too, at most as often as the source: what counts."""
    in_one_piece: bool
    """Whether no word stands inside any of the reference's."""
    right: Mapping[str, int]
    """How many of them each system has."""


def look_up(
    expressions: Sequence[Expression],
    source: Sequence[str],
    references: Sequence[Sequence[str]],
    outputs: Mapping[str, Sequence[str]],
    match_case: bool,
) -> list[Occurrence]:
    """Where expressions stand in a source, and how often references and systems have an accepted translation of them.

    Args:
        source: lines of detokenised text; references: one or more of as many lines; outputs: system -> its lines.
    Returns: one for each line and expression in it.
    """
    found = []
    for number, line in enumerate(source):
        counts = occurrences(expressions, spaced(line, match_case))
        if not counts:
            continue
        known = [translations(expressions, counts, spaced(lines[number], match_case)) for lines in references]
        theirs = {which: max((one[which] for one in known), key=len) for which in counts}
        wanted = {which: len(matches) for which, matches in theirs.items()}
        ours = {name: translations(expressions, wanted, spaced(lines[number], match_case)) for name, lines in outputs.items()}
        for which, count in counts.items():
            in_one_piece = all(match.in_one_piece for match in theirs[which])
            right = {name: len(one[which]) for name, one in ours.items()}
            found.append(Occurrence(number, which, count, wanted[which], in_one_piece, right))
    return found


@dataclass(frozen=True)
class Result:
    """What was found in one set."""

    name: str
    sentences: int
    systems: Sequence[str]
    """Those that have translated it."""
    found: Sequence[Occurrence]

    def occurring(self, listed: Sequence[Expression], wanted: bool = False) -> int:
        """How many of the listed names stand in the source at all; wanted: those that a reference translates as the list has it."""
        return len({listed[one.expression].name for one in self.found if one.wanted or not wanted})

    @property
    def totals(self) -> dict[str, Any]:
        """Counts over all expressions."""
        counts = {key: sum(getattr(one, key) for one in self.found) for key in ("in_source", "wanted")}
        right = {name: sum(one.right[name] for one in self.found) for name in self.systems}
        return {"sentences": self.sentences, "in_source": counts["in_source"], "in_reference": counts["wanted"], "right": right}


def _look_up_in(run: Run, chosen: TextSet, systems: Sequence[str], listed: Sequence[Expression], match_case: bool, where: str) -> Result:
    outputs = {name: _lines(path / "hyp.txt", chosen.lines) for name, path in compared(run, chosen, systems).items()}
    references = [_lines(path, chosen.lines) for path in run.references(chosen.name)]
    found = look_up(listed, _lines(run.source(chosen.name), chosen.lines), references, outputs, match_case)
    if not any(one.wanted for one in found):
        count = sum(one.in_source for one in found)
        what = (
            f"{chosen.name}: of {len(listed):,} expressions {count:,} occurrences in the source, and an accepted translation of none in the reference"
        )
        raise DataError(what, where=where, hint="compare the list with the set's text; the gap '...' and the case (--match-case) are choices")
    return Result(chosen.name, chosen.lines, list(outputs), found)


def separable(run: Run) -> str:
    """The separable verbs that the demo grammar knows, as the text of a list: for any English-German corpus.

    Raises: ConfigError for one of other languages.
    """
    manifest = run.manifest()
    if (manifest.src, manifest.tgt) != ("en", "de"):
        what = f"{BUILT_IN} are of English-German, and this run is {manifest.src}-{manifest.tgt}"
        raise ConfigError(what, where="--expressions", hint="--expressions FILE")
    return "".join(f"{source}\t{' | '.join(targets)}\t{name}\n" for source, targets, name in separable_expressions())


def listed_in(run: Run, given: str) -> list[str]:
    """The lines of the list that was asked for: a file, the built-in one, or "" for that of the run's own corpus.

    Raises: ConfigError if there is none; DataError if it cannot be read.
    """
    if given and given != BUILT_IN:
        return list(files.text_lines(Path(given)))
    if not given and run.manifest().dataset != "demo":
        hint = f"--expressions FILE, of lines: source phrase, tab, accepted target phrases with ' | ' between; or --expressions {BUILT_IN}"
        raise ConfigError("this run's corpus comes with no list of expressions", where="--expressions", hint=hint)
    return separable(run).splitlines()


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = (), expressions: str = "", match_case: bool = False) -> Finding:
    """The share of expressions that each system translates with an accepted phrase, where the reference does.

    Args:
        run: the run; systems: those that have a translation of the set are compared, with the first of them.
        set_names: the sets (default: every test set that is translated).
        expressions: the list, a file as `nmtkit.analyze.shared.expressions` says, or BUILT_IN; "" = that of the run's own corpus.
        match_case: whether "Aufgeben" is another word than "aufgeben".
    Raises: ConfigError if there is no list; DataError for a line that is no expression, or if no reference translates any as the list has it.
    """
    given, where = listed_in(run, expressions), expressions or BUILT_IN
    listed = lists.parse(given, match_case, where)
    results = [_look_up_in(run, chosen, systems, listed, match_case, where) for chosen in sets_to_score(run, set_names)]
    shown = [name for name in systems if any(name in result.systems for result in results)]
    rows = [row for result in results for row in _rows(result, listed, shown)]
    drawn = [row for row in rows if row[0] == results[0].name and row[1] in {"all", "reference"}]
    groups, series = [row[2] for row in drawn], {name: [row[5 + i] for row in drawn] for i, name in enumerate(shown) if name in results[0].systems}
    title, notes = f"Expressions that have an accepted translation, in % ({where})", _notes(results, listed, match_case)
    return Finding(
        name="phrases",
        title="multi-word expressions translated as the reference does",
        table=Table("phrases", title, _columns(shown), rows, notes),
        text="100 would mean that a system has an accepted phrase wherever the reference has one; another good translation counts as wrong, "
        "so compare systems with each other. Where the difference's interval leaves out 0, another test set would most likely agree on who is ahead; "
        "where few expressions occur at all, nothing follows for the others.",
        figure=figures.grouped_bars(groups, series, "in the reference", "as the reference, %") if figures.available() else None,
        bars="\n\n".join(_bars(name, groups, values) for name, values in series.items()),
        facts={
            **{"expressions": where, "listed": len(listed), "names": len({one.name for one in listed}), "match_case": match_case},
            **{"text": "detokenised, cut at the boundaries of words", "resamples": RESAMPLES, "seed": SEED},
            "sets": {result.name: {"occurring": result.occurring(listed), **result.totals} for result in results},
        },
        attachments={
            "occurrences.tsv": _occurrences_tsv(results, listed, shown),
            "expressions.tsv": "".join(line + "\n" for line in given),
        },
    )


def _lines(path: Path, count: int) -> list[str]:
    """The lines of a text that must have as many as its set.

    Raises: DataError with both counts.
    """
    found = list(files.text_lines(path))
    if len(found) != count:
        raise DataError(f"{len(found):,} lines, but the set has {count:,}", where=path, hint="translate or prepare it again (--force)")
    return found


def _rows(result: Result, listed: Sequence[Expression], shown: Sequence[str]) -> list[list[Any]]:
    """A row for all, for each way that the reference has them, and for each expression.

    Returns: set, section, label, in source, in reference, share of each system shown, difference of each but the first.
    """
    groups = _groups(result.found, listed)
    statistics = np.full((result.sentences, len(groups), 1 + len(shown)), 0.0)
    for number, (_, _, members) in enumerate(groups):
        for one in members:
            statistics[one.line, number] += [one.wanted, *(one.right.get(name, np.nan) for name in shown)]
    resampling = Resampling(result.sentences, RESAMPLES, seed=SEED)
    sums = resampling.sums(statistics.reshape(result.sentences, -1)).reshape(RESAMPLES, len(groups), -1)
    rows = []
    for number, (section, label, members) in enumerate(groups):
        whole, drawn = _shares(statistics[:, number].sum(0)[None])[0], _shares(sums[:, number])
        shares = [_share(statistics[:, number, 1 + i].sum(), int(statistics[:, number, 0].sum())) for i in range(len(shown))]
        against = [_estimate(whole[i] - whole[0], drawn[:, i] - drawn[:, 0]) for i in range(1, len(shown))]
        counts = [sum(one.in_source for one in members), sum(one.wanted for one in members)]
        rows.append([result.name, section, label, *counts, *shares, *against])
    return rows


def _groups(found: Sequence[Occurrence], listed: Sequence[Expression]) -> list[tuple[str, str, list[Occurrence]]]:
    """Section, label and members of each group that counts something."""
    names = Counter({listed[one.expression].name: 0 for one in found})
    for one in found:
        names[listed[one.expression].name] += one.wanted
    groups = [("all", "all", list(found))]
    groups += [("reference", kind, [one for one in found if one.wanted and one.in_one_piece == (kind == KINDS[0])]) for kind in KINDS]
    frequent = [name for name, count in names.most_common(MOST) if count]
    groups += [("expression", name, [one for one in found if listed[one.expression].name == name]) for name in frequent]
    return [group for group in groups if any(one.wanted for one in group[2])]


def _share(right: Any, count: int) -> Estimate:
    """A share with its interval, which holds for few occurrences too; empty for a system that has not translated the set."""
    return interval(int(right), count) if np.isfinite(right) else Estimate(None)


def _estimate(value: Any, drawn: Array) -> Estimate:
    """A difference with its interval; empty for a system that has not translated the set."""
    return estimate(float(value), drawn) if np.isfinite(value) else Estimate(None)


def _shares(sums: Array) -> Array:
    """(draws, 1 + systems) sums -> (draws, systems) shares in percent; NaN where a draw has no occurrence."""
    with np.errstate(invalid="ignore"):
        found: Array = 100 * sums[:, 1:] / sums[:, :1]
    return found


def _columns(systems: Sequence[str]) -> list[Column]:
    columns = [Column("set", "set", left=True), Column("section", "group", left=True), Column("label", "", left=True)]
    columns += [Column("in_source", "in source"), Column("in_reference", "in reference")]
    columns += [Column(name, f"{name} [95%]", decimals=1, interval=True) for name in systems]
    return columns + [Column(f"{name}_difference", f"{name} - {systems[0]} [95%]", decimals=1, interval=True, signed=True) for name in systems[1:]]


def _notes(results: Sequence[Result], listed: Sequence[Expression], match_case: bool) -> list[str]:
    return [
        *(_occurring(result, listed) for result in results),
        "in reference: occurrences in the source whose reference has an accepted target phrase, as often at most as the source has the expression; "
        "of these is the share that has one in the system's output too",
        f"text: detokenised, cut at the boundaries of words, {'case kept' if match_case else 'case ignored'}; {KINDS[0]}, {KINDS[1]}: "
        "how the reference has it (schlägt ... nach)",
        f"[95%]: Wilson; of a difference the percentile interval over {RESAMPLES} resamples of sentences, seed {SEED}, which with few occurrences, "
        "and where all or none are right, is too narrow",
        f"expressions: the {MOST} most frequent at most; each occurrence is in occurrences.tsv, the list in expressions.tsv",
    ]


def _occurring(result: Result, listed: Sequence[Expression]) -> str:
    """How much of the list a set can tell anything of."""
    names, totals = len({one.name for one in listed}), result.totals
    return (
        f"{result.name}: {result.occurring(listed):,} of {names:,} listed expressions occur, {totals['in_source']:,} times in "
        f"{result.sentences:,} sentences; {result.occurring(listed, wanted=True):,} of them have an accepted translation in the reference"
    )


def _occurrences_tsv(results: Sequence[Result], listed: Sequence[Expression], shown: Sequence[str]) -> str:
    """A line for each occurrence in a source: where, what, and how many of it reference and systems have."""
    lines = [["set", "line", "expression", "source phrase", "in source", "in reference", *shown]]
    for result in results:
        for one in result.found:
            expression, right = listed[one.expression], [one.right.get(name, "") for name in shown]
            lines.append([result.name, *map(str, (one.line + 1, expression.name, expression.source.text, one.in_source, one.wanted, *right))])
    return "".join("\t".join(cells) + "\n" for cells in lines)


def _bars(name: str, groups: Sequence[str], values: Sequence[Estimate]) -> str:
    width = max(map(len, groups))
    lines = [f"{label:>{width}} {bar(value.value, 100)} {value.value or 0:5.1f}" for label, value in zip(groups, values, strict=True)]
    return "\n".join([name, *lines])
