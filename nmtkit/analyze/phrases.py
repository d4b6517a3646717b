"""Analysis `phrases`: how many multi-word expressions a system translates as the reference does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit import files
from nmtkit.analyze.analysis import Analysis, Finding, Options, option
from nmtkit.analyze.study import RESAMPLES, SEED, Study
from nmtkit.arrays import Array
from nmtkit.corpora import generated
from nmtkit.errors import ConfigError, DataError
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
PIECES = f"{TOGETHER}, {APART}: how the reference writes the phrase (schlägt ... nach)"
COUNTED = (
    "in reference: occurrences in the source whose reference has an accepted "
    "target phrase, at most as often as the source has the expression; the shares "
    "are of these occurrences whose translation by the system has one too"
)
INTERVALS = (
    f"[95%]: Wilson; for a difference, the percentile interval over {RESAMPLES} "
    f"resamples of sentences, seed {SEED}, which is too narrow with few "
    f"occurrences, or if all or none are right; {FEW}"
)
FILES = "occurrences.tsv lists each occurrence, expressions.tsv the expressions"
NONE = Estimate(None)
READING = (
    "100 means an accepted phrase wherever the reference has one. Another good "
    "translation counts as wrong, so compare systems with each other. If the "
    "interval of a difference excludes 0, another test set would probably agree on "
    "which system is better. An expression that hardly occurs allows no conclusion."
)


class PhrasesOptions(Options):
    """Options of `phrases`."""

    expressions: str = option("", "FILE|separable-verbs")
    """A list of expressions. Each line is a source phrase, a tab, and accepted target phrases with
    '|' between; '...' is a gap (default: the list of the run's corpus)."""
    match_case: bool = False
    """Distinguish upper and lower case (default: ignore case)."""


@dataclass(frozen=True)
class Occurrence:
    """An expression in a source line, and how often its translations stand in the target lines.

    Attributes:
        line: from 0.
        in_source: how often the source line has the expression.
        in_reference: how often the reference has an accepted translation too; only these count.
        in_one_piece: True if no word stands inside any of the reference's translations.
        right: system -> how many of the reference's translations the system has too.
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
        """How often the source has listed expressions."""
        return sum(o.in_source for o in self.occurrences)

    def names(self, least: int = 0) -> int:
        """Return how many listed names have an occurrence with `least` accepted translations."""
        return len({o.expression.name for o in self.occurrences if o.in_reference >= least})


@dataclass(frozen=True)
class PhrasesResult:
    """A list of expressions by name, its lines, and the occurrences in each set."""

    list_name: str
    lines: list[str]
    listed: list[Expression]
    systems: list[str]
    sets: list[SetOccurrences]


class Phrases(Analysis[PhrasesOptions, PhrasesResult]):
    """The share of expressions that each system translates, of those that the reference does."""

    name = "phrases"
    title = "multi-word expressions translated as the reference does"
    examples = ("--expressions verbs.tsv",)
    reads_weights = False
    sets = "some"
    Options = PhrasesOptions

    def measure(self, study: Study) -> PhrasesResult:
        name, lines = expression_list(study, self.options.expressions)
        listed = expressions.parse(lines, self.options.match_case, name)
        match_case, sets = self.options.match_case, []
        for text_set in sets_to_score(study.run, study.set_names):
            in_set = occurrences_in(study, text_set, listed, match_case)
            if any(o.in_reference for o in in_set.occurrences):
                sets.append(in_set)
            else:
                message = (
                    f"is left out: of {in_set.in_source:,} occurrences in the source the reference"
                    " has no accepted translation"
                )
                study.warn(in_set.name, message)
        if not sets:
            message = f"no set has an accepted translation of any of {len(listed):,} expressions"
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
            *(
                interval_column(f"{name}_difference", f"{name} - {systems[0]}", 1, signed=True)
                for name in systems[1:]
            ),
        ]
        return Finding(
            table=Table("phrases", title, columns, rows, self.notes(result)),
            text=READING,
            figure=figures.grouped_bars(labels, series, "in the reference", "as the reference, %"),
            facts={
                "expressions": result.list_name,
                "listed": len(result.listed),
                "names": len({expression.name for expression in result.listed}),
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
        """Return how much of the list each set has, and how to read the numbers."""
        case = "case kept" if self.options.match_case else "case ignored"
        names = len({expression.name for expression in result.listed})
        coverage = [
            f"{s.name}: {s.names():,} of {names:,} listed expressions occur, {s.in_source:,} times"
            f" in {s.sentences:,} sentences; {s.names(1):,} of them have an accepted translation in"
            " the reference"
            for s in result.sets
        ]
        return [
            *coverage,
            COUNTED,
            f"text: detokenised, cut at the boundaries of words, {case}; {PIECES}",
            INTERVALS,
            f"expressions: the {MOST} most frequent at most; {FILES}",
        ]


def expression_list(study: Study, name: str) -> tuple[str, list[str]]:
    """Return the name and the lines of a list of expressions.

    Args:
        name: a file, a list that a data set comes with, or "" for that of the run's own corpus.
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
    src, tgt = manifest.src, manifest.tgt
    if (src, tgt) != (wanted.src, wanted.tgt):
        message = f"the list '{name}' is for {wanted.src}-{wanted.tgt}, and this run is {src}-{tgt}"
        raise ConfigError(message, where="--expressions", hint="--expressions FILE")
    return name, generated.expressions(wanted, name)


def occurrences_in(
    study: Study,
    text_set: TextSet,
    listed: Sequence[Expression],
    match_case: bool,
) -> SetOccurrences:
    """Return the occurrences in a set.

    Raises: DataError if a text has another number of lines than the set, or no translation.
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
    """Return where expressions stand in a source, and how often they are translated as accepted.

    Args:
        source: (N) lines of detokenised text.
        references: one or more of N lines; of an expression, the one with most translations counts.
        outputs: system -> N lines.
    Returns: one for each line and each expression in it.
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
    """Return a row for all, for each way that the reference has them, and for each expression.

    Args:
        systems: of the table; those that have not translated the set have empty cells.
    Returns: set, section, label, in source, in reference, share of each system, difference of each
        but the first.
    """
    resampling = Draws(in_set.sentences, RESAMPLES, seed=SEED)
    rows = []
    for section, label, members in groups_of(in_set.occurrences):
        counts = np.zeros((in_set.sentences, 1 + len(in_set.systems)))
        for member in members:
            counts[member.line] += [member.in_reference, *member.right.values()]
        about = in_set.name, section, label, sum(member.in_source for member in members)
        rows.append([*about, *cells_of(counts, in_set.systems, systems, resampling)])
    return rows


def cells_of(
    counts: Array, translated: Sequence[str], systems: Sequence[str], resampling: Draws
) -> list[Any]:
    """Return the numbers of a group: in reference, shares of the systems, differences.

    Args:
        counts: of each sentence (N, 1 + translated): in the reference, and right in each system.
        translated: the systems that have translated the set; systems: those of the table.
    """
    sums = counts.sum(0)
    total, *right = sums.astype(int).tolist()
    sentences = (counts[:, 0] > 0).sum()
    whole, drawn = shares_of(sums), shares_of(resampling.sums(counts))
    shares, differences = dict.fromkeys(systems, NONE), dict.fromkeys(systems[1:], NONE)
    for i, name in enumerate(translated):
        shares[name] = wilson(right[i], total)
        if i and systems[0] == translated[0]:
            gap = drawn[:, i] - drawn[:, 0]
            differences[name] = estimate(float(whole[i] - whole[0]), gap, sentences)
    return [total, *shares.values(), *differences.values()]


def groups_of(members: Sequence[Occurrence]) -> list[tuple[str, str, list[Occurrence]]]:
    """Return section, label and members of each group that has a translation to count."""
    names: Counter[str] = Counter()
    for o in members:
        names[o.expression.name] += o.in_reference
    counting = [o for o in members if o.in_reference]
    groups = [
        ("all", "all", list(members)),
        ("reference", TOGETHER, [o for o in counting if o.in_one_piece]),
        ("reference", APART, [o for o in counting if not o.in_one_piece]),
    ]
    for name, _ in names.most_common(MOST):
        groups.append(("expression", name, [o for o in members if o.expression.name == name]))
    return [group for group in groups if any(o.in_reference for o in group[2])]


def shares_of(sums: Array) -> Array:
    """Return the shares (…, systems) of sums (…, 1 + systems), in percent; NaN of nothing."""
    with np.errstate(invalid="ignore"):
        return 100 * sums[..., 1:] / sums[..., :1]


def occurrences_tsv(result: PhrasesResult) -> str:
    """Return a line for each occurrence: where, which, how often references and systems have it."""
    head = ["set", "line", "expression", "source phrase", "in source", "in reference"]
    lines: Rows = [[*head, *result.systems]]
    for in_set in result.sets:
        for o in in_set.occurrences:
            place = [in_set.name, o.line + 1, o.expression.name, o.expression.source.text]
            right = [o.right.get(name, "") for name in result.systems]
            lines.append([*place, o.in_source, o.in_reference, *right])
    return "".join("\t".join(map(str, cells)) + "\n" for cells in lines)
