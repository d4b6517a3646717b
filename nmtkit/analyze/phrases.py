"""Analysis `phrases`: how many multi-word expressions a system translates as the reference does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmtkit import files
from nmtkit.analyze.analysis import Analysis, Finding, Options, option
from nmtkit.analyze.study import RESAMPLES, SEED, Study
from nmtkit.arrays import Array
from nmtkit.corpora import generated
from nmtkit.errors import ConfigError, DataError, counted
from nmtkit.measures import expressions
from nmtkit.measures.expressions import Expression, Match, spaced, translations
from nmtkit.records import TextSet
from nmtkit.score.resampling import FEW, Draws, estimate
from nmtkit.score.significance import wilson
from nmtkit.score.translations import lines_of, sets_to_score
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Rows, Table, interval_column, text_column

MOST = 40
"""The table has at most this many expressions; every occurrence is in occurrences.tsv."""
TOGETHER, APART = "in one piece", "with words between"
NONE = Estimate(None)


class PhrasesOptions(Options):
    """Options of `phrases`."""

    expressions: str = option("", "FILE|separable-verbs")
    """A list of expressions. Each line is a source phrase, a tab, and accepted target phrases with
    '|' between; '...' is a gap (default: the list of the run's corpus)."""
    match_case: bool = False
    """Distinguish upper and lower case (default: ignore case)."""


@dataclass(frozen=True)
class Occurrence:
    """An expression in a source line, and how often it is translated as accepted.

    Attributes:
        line: the number of the line, from 0.
        in_source: how often the source line has the expression.
        in_reference: how often the reference has an accepted translation; only these count.
        in_one_piece: True if no translation in the reference has other words inside.
        right: system -> how often the system has an accepted translation, `in_reference` at most.
    """

    line: int
    expression: Expression
    in_source: int
    in_reference: int
    in_one_piece: bool
    right: Mapping[str, int]


@dataclass(frozen=True)
class SetOccurrences:
    """The occurrences in one set, and the systems that have translated the set."""

    name: str
    sentences: int
    systems: list[str]
    occurrences: list[Occurrence]

    @property
    def in_source(self) -> int:
        """How often expressions of the list occur in the source."""
        return sum(o.in_source for o in self.occurrences)


@dataclass(frozen=True)
class PhrasesResult:
    """The occurrences in each set.

    Attributes:
        list_name: the name of the list of expressions; lines: its lines.
        listed: the expressions of the list.
        systems: the systems that have translated one of the sets.
        sets: the occurrences by set.
    """

    list_name: str
    lines: list[str]
    listed: list[Expression]
    systems: list[str]
    sets: list[SetOccurrences]


class Phrases(Analysis[PhrasesOptions, PhrasesResult]):
    """The share of the reference's accepted translations that each system has too."""

    name = "phrases"
    title = "multi-word expressions translated as the reference does"
    examples = ("--expressions verbs.tsv",)
    reads_weights = False
    sets = "some"
    Options = PhrasesOptions

    def measure(self, study: Study) -> PhrasesResult:
        match_case = self.options.match_case
        name, lines = expression_list(study, self.options.expressions)
        listed = expressions.parse(lines, match_case, name)
        sets = []
        for text_set in sets_to_score(study.run, study.set_names):
            in_set = occurrences_in(study, text_set, listed, match_case)
            if any(o.in_reference for o in in_set.occurrences):
                sets.append(in_set)
                continue
            study.warn(
                in_set.name,
                f"is left out: of {counted(in_set.in_source, 'occurrence')} in the source the"
                " reference has no accepted translation",
            )
        if not sets:
            message = (
                f"no set has an accepted translation of any of {counted(len(listed), 'expression')}"
            )
            hint = "compare the list with the text: gaps '...', upper case (--match-case)"
            raise DataError(message, where=name, hint=hint)
        systems = [system for system in study.systems if any(system in s.systems for s in sets)]
        return PhrasesResult(name, lines, listed, systems, sets)

    def present(self, result: PhrasesResult) -> Finding:
        first, systems = result.sets[0], result.systems
        rows = [row for in_set in result.sets for row in rows_of(in_set, systems)]
        drawn = [row for row in rows if row[0] == first.name and row[1] in {"all", "reference"}]
        labels = [row[2] for row in drawn]
        series = {name: [row[5 + systems.index(name)] for row in drawn] for name in first.systems}
        title = f"Expressions that have an accepted translation, in % ({result.list_name})"
        columns = [
            text_column("set"),
            text_column("section", "group"),
            text_column("label", ""),
            Column("in_source", "in source"),
            Column("in_reference", "in reference"),
            *(interval_column(name, name, 1) for name in systems),
        ]
        for name in systems[1:]:
            header = f"{name} - {systems[0]}"
            columns.append(interval_column(f"{name}_difference", header, 1, signed=True))
        return Finding(
            table=Table("phrases", title, columns, rows, self.notes(result)),
            text=(
                "100 means an accepted phrase wherever the reference has one. Another good "
                "translation counts as wrong, so compare systems with each other. If the "
                "interval of a difference excludes 0, another test set would probably agree on "
                "which system is better. An expression that hardly occurs allows no conclusion."
            ),
            figure=figures.grouped_bars(labels, series, "in the reference", "as the reference, %"),
            facts={
                "expressions": result.list_name,
                "listed": len(result.listed),
                "names": len(names_of(result.listed)),
                "resamples": RESAMPLES,
                "seed": SEED,
                "sets": [in_set.name for in_set in result.sets],
            },
            attachments={
                "occurrences.tsv": occurrences_tsv(result),
                "expressions.tsv": "".join(line + "\n" for line in result.lines),
            },
        )

    def notes(self, result: PhrasesResult) -> list[str]:
        """Return the notes of the table: how much of the list each set has, what is counted."""
        case = "case kept" if self.options.match_case else "case ignored"
        listed = len(names_of(result.listed))
        coverage = []
        for in_set in result.sets:
            occur = names_of(o.expression for o in in_set.occurrences)
            translated = names_of(o.expression for o in in_set.occurrences if o.in_reference)
            coverage.append(
                f"{in_set.name}: {len(occur):,} of {listed:,} listed expressions occur,"
                f" {counted(in_set.in_source, 'time')} in {counted(in_set.sentences, 'sentence')};"
                f" {len(translated):,} of them have an accepted translation in the reference"
            )
        return [
            *coverage,
            (
                "in reference: occurrences in the source whose reference has an accepted "
                "target phrase, at most as often as the source has the expression; the shares "
                "are of these occurrences whose translation by the system has one too"
            ),
            (
                f"text: detokenised, cut at the boundaries of words, {case}; {TOGETHER}, {APART}: "
                "how the reference writes the phrase (schlägt ... nach)"
            ),
            (
                f"[95%]: Wilson; for a difference, the percentile interval over {RESAMPLES} "
                f"resamples of sentences, seed {SEED}, which is too narrow with few "
                f"occurrences, or if all or none are right; {FEW}"
            ),
            (
                f"expressions: the {MOST} most frequent at most; occurrences.tsv lists each "
                "occurrence, expressions.tsv the expressions"
            ),
        ]


def names_of(listed: Iterable[Expression]) -> set[str]:
    """Return the names under which expressions are counted."""
    return {expression.name for expression in listed}


def expression_list(study: Study, name: str) -> tuple[str, list[str]]:
    """Return the name and the lines of a list of expressions.

    Args:
        name: a file, a list of a data set, or "" for the list of the run's own corpus.
    Raises: ConfigError if there is none, or it is for other languages; DataError for a bad file.
    """
    lists = generated.expression_lists()
    name = name or next((key for key in lists if lists[key].name == study.dataset), "")
    if not name:
        hint = "--expressions FILE, of lines: source phrase, tab, accepted target phrases with "
        hint += f"'|' between; or --expressions {', '.join(lists)}"
        message = "this run's corpus comes with no list of expressions"
        raise ConfigError(message, where="--expressions", hint=hint)
    if name not in lists:
        return name, list(files.text_lines(Path(name)))
    wanted, manifest = lists[name], study.run.manifest()
    languages, of_list = f"{manifest.src}-{manifest.tgt}", f"{wanted.src}-{wanted.tgt}"
    if languages != of_list:
        message = f"the list '{name}' is for {of_list}, and this run is {languages}"
        raise ConfigError(message, where="--expressions", hint="--expressions FILE")
    return name, generated.expressions(wanted, name)


def occurrences_in(
    study: Study, text_set: TextSet, listed: Sequence[Expression], match_case: bool
) -> SetOccurrences:
    """Return the occurrences in a set.

    Raises: DataError if no system has translated the set, or if a text has another number of lines.
    """

    def read(path: Path) -> list[str]:
        return lines_of(path, text_set.lines, "translate or prepare it again (--force)")

    folders, run = study.translations(text_set), study.run
    outputs = {name: read(path / "hyp.txt") for name, path in folders.items()}
    references = [read(path) for path in run.references(text_set.name)]
    source = read(run.source(text_set.name))
    occurrences = look_up(listed, source, references, outputs, match_case)
    return SetOccurrences(text_set.name, text_set.lines, list(outputs), occurrences)


def look_up(
    listed: Sequence[Expression],
    source: Sequence[str],
    references: Sequence[Sequence[str]],
    outputs: Mapping[str, Sequence[str]],
    match_case: bool,
) -> list[Occurrence]:
    """Return the occurrences of expressions in N source lines, one for each line and expression.

    Args:
        source: (N) lines of detokenised text.
        references: one or several translations of the lines. For each occurrence the reference with
            the most accepted translations counts.
        outputs: system -> N lines.
    """

    def matches(lines: Sequence[str], line: int, most: Mapping[int, int]) -> dict[int, list[Match]]:
        return translations(listed, most, spaced(lines[line], match_case))

    results = []
    for line, text in enumerate(source):
        counts = expressions.occurrences(listed, spaced(text, match_case))
        if not counts:
            continue
        known = [matches(lines, line, counts) for lines in references]
        best = {i: max((of_reference[i] for of_reference in known), key=len) for i in counts}
        wanted = {i: len(translated) for i, translated in best.items()}
        systems = {name: matches(lines, line, wanted) for name, lines in outputs.items()}
        for i, count in counts.items():
            together = all(match.in_one_piece for match in best[i])
            right = {name: len(of_system[i]) for name, of_system in systems.items()}
            results.append(Occurrence(line, listed[i], count, wanted[i], together, right))
    return results


def rows_of(in_set: SetOccurrences, systems: Sequence[str]) -> Rows:
    """Return a row for all occurrences, for each way the reference writes them, and for each name.

    Args:
        systems: the systems of the table. If one has not translated the set, its cells are empty.
    Returns: set, section, label, in source, in reference, the share of each system, the difference
        of each system to the first.
    """
    resampling = Draws(in_set.sentences, RESAMPLES, seed=SEED)
    rows = []
    for section, label, members in groups_of(in_set.occurrences):
        # (N, 1 + systems): translations in the reference, and in each system.
        counts = np.zeros((in_set.sentences, 1 + len(in_set.systems)))
        for member in members:
            counts[member.line] += [member.in_reference, *member.right.values()]
        sums = counts.sum(0)
        total, *right = sums.astype(int).tolist()
        whole, drawn = shares_of(sums), shares_of(resampling.sums(counts))
        shares, differences = dict.fromkeys(systems, NONE), dict.fromkeys(systems[1:], NONE)
        for i, name in enumerate(in_set.systems):
            shares[name] = wilson(right[i], total)
            if i and systems[0] == in_set.systems[0]:
                gap, sentences = drawn[:, i] - drawn[:, 0], (counts[:, 0] > 0).sum()
                differences[name] = estimate(float(whole[i] - whole[0]), gap, sentences)
        about = in_set.name, section, label, sum(member.in_source for member in members), total
        rows.append([*about, *shares.values(), *differences.values()])
    return rows


def groups_of(members: Sequence[Occurrence]) -> list[tuple[str, str, list[Occurrence]]]:
    """Return section, label and members of each group that has a translation to count."""
    names: Counter[str] = Counter()
    for o in members:
        names[o.expression.name] += o.in_reference
    groups = [
        ("all", "all", list(members)),
        ("reference", TOGETHER, [o for o in members if o.in_reference and o.in_one_piece]),
        ("reference", APART, [o for o in members if o.in_reference and not o.in_one_piece]),
    ]
    for name, _ in names.most_common(MOST):
        groups.append(("expression", name, [o for o in members if o.expression.name == name]))
    return [group for group in groups if any(o.in_reference for o in group[2])]


def shares_of(sums: Array) -> Array:
    """Return shares in percent (…, systems) from sums (…, 1 + systems); NaN for 0 / 0."""
    with np.errstate(invalid="ignore"):
        return 100 * sums[..., 1:] / sums[..., :1]


def occurrences_tsv(result: PhrasesResult) -> str:
    """Return a line for each occurrence: its place, the expression, and the counts."""
    head = ["set", "line", "expression", "source phrase", "in source", "in reference"]
    lines: Rows = [[*head, *result.systems]]
    for in_set in result.sets:
        for o in in_set.occurrences:
            place = [in_set.name, o.line + 1, o.expression.name, o.expression.source.text]
            right = [o.right.get(name, "") for name in result.systems]
            lines.append([*place, o.in_source, o.in_reference, *right])
    return "".join("\t".join(map(str, cells)) + "\n" for cells in lines)
