"""Analysis `agreement`: how often a system prefers the right form to a wrong one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmtkit import console
from nmtkit.analyze.analysis import Analysis, Finding, Options, option
from nmtkit.analyze.contrastive_scores import (
    Reading,
    ScoreFile,
    Scores,
    decisions,
    preferred,
    read_scores,
    score,
)
from nmtkit.analyze.study import Study
from nmtkit.corpora import published
from nmtkit.errors import ConfigError, DataError, counted, nearest
from nmtkit.measures import contrastive
from nmtkit.measures.contrastive import Error, Item
from nmtkit.run import Run
from nmtkit.score.significance import wilson
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Rows, Table, interval_column, text_column

AGREEMENT = "subj_verb_agreement"
POLARITY = {
    "insertion": ("nicht_ins", "kein_ins", "affix_ins"),
    "deletion": ("nicht_del", "kein_del", "affix_del"),
}
LONGEST = 15
# The papers' figures show only subject-verb pairs. Lingeval97's table has all types with distances.
SUBJECT_VERB, ALL_TYPES = "distance, subject-verb", "distance, all types"
DISTANCES = {SUBJECT_VERB, ALL_TYPES}
# Lower bounds of the bins of Lingeval97's own evaluation, exclusive: 5 belongs to >2.
FREQUENCIES = (10000, 5000, 2000, 1000, 500, 200, 100, 50, 20, 10, 5, 2)
MEANINGS = {
    "none": "none: without context",
    "foreign": (
        "foreign: with the context of another sentence of the set, drawn with seed 1, "
        "the same for all systems"
    ),
}
Group = tuple[int, int, str, str]
"""(order of the section, order of the label in the section, section, label) in the table."""


class AgreementOptions(Options):
    """Options of `agreement`."""

    pairs: str = option("", "FILE|SRC,RIGHT,WRONG|CONTEXT,SRC,RIGHT,WRONG|pronouns|lingeval97")
    """The contrastive set: JSON in the format of Lingeval97, DiscEvalMT or the English-Russian
    consistency sets, text files, or a set of the run's corpus (default: agreement)."""
    context: str = option("true", "true,none,foreign")
    """The context of systems that read one: the context of the pair (true), no context (none), or
    the context of another sentence of the set (foreign). Several, with commas, are compared."""
    scores: tuple[str, ...] = option((), "FILE")
    """A file of scores in Lingeval97's format, shown beside the systems: log-probabilities if no
    number is above zero, otherwise negative log-likelihoods. Repeatable."""


@dataclass(frozen=True)
class AgreementResult:
    """A contrastive set and its scores.

    Attributes:
        where: the file or files of the set.
        contexts: the values of --context.
        columns: column of the table -> scores. A column is a score file, or a system with a
            context.
        files: name -> score file.
        systems: system -> how the system read the set.
    """

    where: str
    items: list[Item]
    contexts: list[str]
    columns: dict[str, Scores]
    files: dict[str, ScoreFile]
    systems: dict[str, Reading]

    @property
    def has_context(self) -> bool:
        """True if some pairs have a context."""
        return any(item.context_src for item in self.items)

    @property
    def has_several(self) -> bool:
        """True if some sources have several wrong translations."""
        return any(len(item.errors) > 1 for item in self.items)


class Agreement(Analysis[AgreementOptions, AgreementResult]):
    """Share of pairs in which a system prefers the right translation, by kind of error."""

    name = "agreement"
    title = "right forms preferred to wrong ones"
    reads_translations = False
    examples = ("--pairs lingeval97", "--pairs pronouns --context true,none,foreign")
    sets = "none"
    Options = AgreementOptions

    def measure(self, study: Study) -> AgreementResult:
        where = find_pairs(study.run, self.options.pairs)
        items, context = contrastive.read(where), self.options.context
        sets = {name: contrastive.under(items, name) for name in context.split(",")}
        files = self.score_files(items)
        columns = {name: file.scores for name, file in files.items()}
        result = AgreementResult(where, items, list(sets), columns, files, {})
        if context != "true" and not result.has_context:
            hint = f"leave it out, or name a set with contexts: {where} has none"
            raise ConfigError("no pair of this set has a context", where="--context", hint=hint)

        def read_by(name: str) -> Reading:
            if name in files:
                message = f"a score file and a system are both named '{name}'"
                raise DataError(message, where="--scores", hint="rename the file")
            reading, scores = score(study, name, sets)
            columns.update(scores)
            return reading

        nobody = "no system can score the set"
        result.systems.update(study.each(read_by, nobody, study.run.train_first))
        src, tgt = next(iter(result.systems.values())).unknown  # all systems have one vocabulary
        study.warn_of_unknown({"sources": src, "targets": tgt})
        return result

    def score_files(self, items: Sequence[Item]) -> dict[str, ScoreFile]:
        """Return the score files by name, and log how each is read."""
        files: dict[str, ScoreFile] = {}
        for path in map(Path, self.options.scores):
            name = path.name.split(".")[0]
            if name in files:
                message = f"two score files have the same name before the first dot: '{name}'"
                raise DataError(message, where="--scores", hint="rename one of them")
            files[name] = read_scores(path, items)
            console.say(f"scores of {name}: read as {files[name].meaning} (by their signs)")
        return files

    def present(self, result: AgreementResult) -> Finding:
        rows = rows_of(result)
        sections = {row[0] for row in rows}
        section = next(name for name in (SUBJECT_VERB, ALL_TYPES, "type") if name in sections)
        drawn = [row for row in rows if row[0] == section]
        labels = [row[1] for row in drawn]
        series = {name: [row[3 + i] for row in drawn] for i, name in enumerate(result.columns)}
        text = (
            "Chance is 50 for a pair and 100/N for a sentence with N translations. Two systems "
            "differ where their intervals are far apart."
        )
        if result.has_context:
            text += (
                " A system uses the preceding sentences if it gets more right with the true "
                "context than with no context and with another sentence's context. A gain that "
                "another sentence's context gives as well does not come from the content of the "
                "context."
            )
        if sections & DISTANCES:
            text += (
                " If the share does not fall as the distance grows, the system keeps the "
                "agreement across the words between."
            )
        title = f"Share of pairs whose right translation scores better, in % ({result.where})"
        columns = [
            text_column("section", "group"),
            text_column("label", ""),
            Column("pairs", "pairs", decimals=0),
            *(interval_column(name, name, decimals=1) for name in result.columns),
        ]
        return Finding(
            table=Table("agreement", title, columns, rows, notes_of(result, sections)),
            text=text,
            figure=figures.grouped_bars(labels, series, section, "right, %"),
            facts={
                "pairs": result.where,
                "items": len(result.items),
                "undecided_by_the_source": contrastive.undecidable(result.items),
                "unknown_subwords": {
                    name: [round(share, 4) for share in reading.unknown]
                    for name, reading in result.systems.items()
                },
            },
            attachments=attachments_of(result),
        )


def find_pairs(run: Run, pairs: str) -> str:
    """Return the file or files of a contrastive set.

    Args:
        pairs: a set of the run's corpus, lingeval97, or files; "" = the set agreement.
    Raises: ConfigError for an unknown name.
    """
    folder = run.prep / "eval"
    path = folder / f"{pairs or 'agreement'}.json"
    if path.stem.isidentifier() and path.is_file():
        return str(path)
    forms = "a JSON file, or SOURCES,RIGHT,WRONG"
    if not pairs:
        message = "this run's corpus has no contrastive set of its own"
        raise ConfigError(message, where="--pairs", hint=f"--pairs lingeval97, {forms}")
    if pairs == "lingeval97":
        return str(published.fetch(pairs)[0])
    if pairs.isidentifier() and not Path(pairs).exists():
        known = [*sorted(path.stem for path in folder.glob("*.json")), "lingeval97"]
        hint = f"{nearest(pairs, known)} - or {forms}"
        raise ConfigError(f"no contrastive set '{pairs}'", where="--pairs", hint=hint)
    return pairs


def groups_of(errors: Sequence[Error]) -> dict[tuple[str, str], list[int]]:
    """Return the groups in the table's order: (section, label) -> indices of their errors."""
    groups: dict[Group, list[int]] = {}
    for index, error in enumerate(errors):
        for group in memberships(error):
            groups.setdefault(group, []).append(index)
    types = {error.type for error in errors if error.distance is not None}
    duplicates = {ALL_TYPES} if types == {AGREEMENT} else set()
    ordered = sorted(groups, key=lambda group: group[:2])  # ties: as they first occur
    return {group[2:]: groups[group] for group in ordered if group[2] not in duplicates}


def memberships(error: Error) -> Iterator[Group]:
    """Yield the groups of an error, as in Lingeval97's evaluation and in the papers."""
    yield 0, 0, "all", "all"
    yield 1, 0, "type", error.type
    for rank, (kind, endings) in enumerate(POLARITY.items()):
        if error.type.endswith(endings):
            yield 2, rank, "type", f"polarity, {kind}"
    if error.back is not None:
        yield 3, error.back, "sentences back", str(error.back)
    if error.distance is not None:
        rank = min(error.distance, LONGEST + 1)
        label = str(rank) if rank <= LONGEST else f">{LONGEST}"
        if error.type == AGREEMENT:
            yield 4, rank, SUBJECT_VERB, label
        yield 5, rank, ALL_TYPES, label
    if error.frequency is not None:
        rank, label = _frequency_group(error.frequency)
        yield 6, -rank, "frequency", label


def _frequency_group(frequency: int) -> tuple[int, str]:
    """Return the lowest frequency and the label of a frequency's group. A frequency below all
    FREQUENCIES is its own group.
    """
    for low in FREQUENCIES:
        if frequency > low:
            return low + 1, f">{low}"
    return frequency, str(frequency)


def rows_of(result: AgreementResult) -> Rows:
    """Return a row for each group: section, label, pairs, and the share that is right by column."""
    errors = [error for item in result.items for error in item.errors]
    columns = result.columns.values()
    right = [decisions(scores) for scores in columns]
    rows: Rows = []
    for (section, label), indices in groups_of(errors).items():
        count = len(indices)
        shares = [wilson(sum(column[index] for index in indices), count) for column in right]
        rows.append([section, label, count, *shares])
    if result.has_several:
        count = sum(bool(item.errors) for item in result.items)
        shares = [wilson(sum(preferred(scores)), count) for scores in columns]
        rows.insert(1, ["sentence", "better than every wrong one", count, *shares])
    return rows


def notes_of(result: AgreementResult, sections: set[str]) -> list[str]:
    """Return the notes of the table: what its numbers mean, and warnings about them."""
    notes = [
        (
            "right: the reference has a strictly higher log-probability than the wrong "
            "translation (</s> included, not normalised by length); a tie is wrong"
        ),
        "[95%]: Wilson" + "; pairs of one source count as independent" * result.has_several,
    ]
    notes += [f"scores of {name}: read as {file.meaning}" for name, file in result.files.items()]
    if sections & DISTANCES:
        notes.append(
            "distance: difference of the positions of the two words that agree (1: neighbours), for"
            " pairs with a distance"
        )
    if "frequency" in sections:
        notes.append(
            "frequency: how often the word occurs in the training text of the set's "
            "authors, for all types with a frequency; for subject and verb, the frequency of "
            "the rarer word"
        )
    for name, system in result.systems.items():
        if system.ties:
            notes.append(f"{name}: {counted(system.ties, 'exact tie')}, counted as wrong")
    if not result.has_context:
        return notes
    readers, others = [], []
    for name, system in result.systems.items():
        if rule := system.rule:
            translations = ", translations too" if rule.targets else ""
            size = f"at most {rule.size}"
            readers.append(f"{name} ({rule.kind}, {size}, {rule.join}{translations})")
        else:
            others.append(name)
    lists = {"read by": readers, "not read by": others}
    parts = [f"{words} {', '.join(names)}" for words, names in lists.items() if names]
    notes.append(f"context, the sentences before: {'; '.join(parts)}")
    meanings = [MEANINGS[context] for context in result.contexts if context in MEANINGS]
    if meanings and readers:
        notes.append("; ".join(meanings))
    if count := contrastive.undecidable(result.items):
        total = sum(len(item.errors) for item in result.items)
        notes.append(
            f"{count:,} of {total:,} pairs also occur in the set with right and wrong swapped:"
            " only the preceding translations can decide them"
        )
    return notes


def attachments_of(result: AgreementResult) -> dict[str, str]:
    """Return the scores of each system as a score file with negative log-likelihoods."""
    texts = {}
    for name, column in result.columns.items():
        if name not in result.files:
            rows = zip(result.items, column, strict=True)
            lines = [f"{-scores[i]:.6f}\n" for item, scores in rows for i in item.in_score_file]
            texts[f"{name.replace(', ', '.')}.scores"] = "".join(lines)
    return texts
