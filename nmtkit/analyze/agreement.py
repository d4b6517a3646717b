"""Analysis `agreement`: how often a system prefers the right translation to one with a wrong form, by kind, distance and frequency."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmtkit import console
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared.contrastive import (
    SCORE_KINDS,
    Error,
    Item,
    ScoreFile,
    as_documents,
    decisions,
    no_questions,
    open_questions,
    preferred,
    read,
    read_scores,
    under,
)
from nmtkit.data.documents import ContextRule
from nmtkit.errors import ConfigError, DataError, counted, nearest
from nmtkit.models import loading
from nmtkit.parallel import cores
from nmtkit.run import Run
from nmtkit.settings import SearchSettings, build
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, bar
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate import workers
from nmtkit.translate.scorer import Scorer

AGREEMENT = "subj_verb_agreement"
POLARITY = {"insertion": ("nicht_ins", "kein_ins", "affix_ins"), "deletion": ("nicht_del", "kein_del", "affix_del")}
LONGEST = 15
FEW = 0.02
"""Share of unknown subwords from which on a set is another language than the system's, or another tokenization."""
# The papers' figures are of subject and verb alone, the table of Lingeval97's own evaluation is of whatever has a distance.
OF_SUBJECT_VERB, OF_ALL_TYPES = "distance, subject-verb", "distance, all types"
# The bins of Lingeval97's own evaluation, as it counts them: 5 belongs to >2.
FREQUENCIES = (10000, 5000, 2000, 1000, 500, 200, 100, 50, 20, 10, 5, 2)
OF_DISTANCE = (
    "A system that keeps its share as the distance grows carries what the verb needs over the words between; compare systems where their intervals "
    "are far apart."
)
OF_CONTEXT = (
    "A system uses what was said before if it gets more right with the true context than with none and with another's; a gain that another's context "
    "gives as well is not from what the context says."
)
Group = tuple[str, str, Callable[[Error], bool]]


def groups(errors: Sequence[Error]) -> list[Group]:
    """The groups that occur: (section, label, which errors), as Lingeval97's evaluation and the papers have them."""
    kinds = list(dict.fromkeys(error.kind for error in errors))
    found: list[Group] = [("all", "all", lambda e: True)]
    found += [("type", kind, lambda e, k=kind: e.kind == k) for kind in kinds]  # type: ignore[misc]
    found += [("type", f"polarity, {merged}", lambda e, ends=ends: e.kind.endswith(ends)) for merged, ends in POLARITY.items()]  # type: ignore[misc]
    for back in sorted({error.back for error in errors if error.back is not None}):
        found.append(("sentences back", str(back), lambda e, b=back: e.back == b))  # type: ignore[misc]
    for section, of in ((OF_SUBJECT_VERB, lambda kind: kind == AGREEMENT), (OF_ALL_TYPES, lambda kind: True)):
        if section == OF_ALL_TYPES and not any(e.distance is not None and e.kind != AGREEMENT for e in errors):
            continue  # the same rows again
        for distance in range(LONGEST + 1):
            found.append((section, str(distance), lambda e, o=of, d=distance: o(e.kind) and e.distance == d))  # type: ignore[misc]
        far = lambda e, o=of: o(e.kind) and e.distance is not None and e.distance > LONGEST  # type: ignore[misc] # noqa: E731
        found.append((section, f">{LONGEST}", far))
    for low, high in zip(FREQUENCIES, (math.inf, *FREQUENCIES), strict=False):
        found.append(("frequency", f">{low}", lambda e, a=low, b=high: e.frequency is not None and a < e.frequency <= b))  # type: ignore[misc]
    for exactly in (2, 1, 0):
        found.append(("frequency", str(exactly), lambda e, f=exactly: e.frequency == f))  # type: ignore[misc]
    return [group for group in found if any(map(group[2], errors))]


def interval(right: int, count: int) -> Estimate:
    """A share with Wilson's 95% interval, in percent."""
    if not count:
        return Estimate(None)
    z = 1.959964
    share = right / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    low, high = centre - half, centre + half
    return Estimate(100 * share, 100 * low if right else 0.0, 100 * high if right < count else 100.0)  # these ends are exact, but for rounding


@dataclass(frozen=True)
class Scored:
    """What a system says of a set."""

    scores: dict[str, list[list[float]]]
    """For each context that was asked for, the log-probabilities of the targets of each item, </s> included, not normalised by length."""
    rate: float
    """Targets a second."""
    rule: ContextRule | None
    """Which context it reads; None if none."""
    unknown: tuple[float, float]
    """Share of the subwords of source and targets that it does not know, 0..1."""

    def ties(self, condition: str) -> int:
        """How many wrong targets are exactly as probable as the right one."""
        return sum(wrong == own[0] for own in self.scores[condition] for wrong in own[1:])


def reads_pairs(rule: ContextRule | None) -> bool:
    """Whether what a system reads hangs on what stands before a pair."""
    return rule is not None and rule.kind != "foreign"


def scored(run: Run, name: str, sets: Mapping[str, Sequence[Item]]) -> Scored:
    """The scores that a system gives the same items with several contexts; one that reads none, or none of these, is asked once, under the first."""
    src, tgt = (TextSide.load(run.prep, side) for side in ("src", "tgt"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with workers.one_thread(device):
        model = loading.load_system(run, run.find_system(name), str(device))
        if model.reads_spans:
            console.warn(f"'{name}' reads parses, which the pairs have none of: it sees n-grams instead")
        rule = model.context_rule
        sets = dict(list(sets.items())[: None if reads_pairs(rule) else 1])
        if rule is not None and not any(item.before for items in sets.values() for item in items):
            console.warn(f"'{name}' reads context, which the pairs have none of: it sees single sentences")
        elif rule is not None and rule.kind == "next":
            console.warn(f"'{name}' reads the sentences after, which the pairs have none of: it sees single sentences")
        elif rule is not None and rule.kind == "foreign":
            console.warn(f"'{name}' reads sentences of other documents, here of other pairs, and never what stands before its own: it is asked once")
        translator = Scorer([model], src, tgt, *load_vocabularies(run.prep), build(SearchSettings, {}, "search"), device, cores())
        start = time.perf_counter()
        found = {}
        for condition, items in sets.items():
            with console.progress(f"{name}: pairs", len(items)) as translator.done:
                text = as_documents(items, rule is not None and rule.targets)
                scores = translator.alternatives(text.lines, text.targets, text.documents)
                found[condition] = [scores[place] for place in text.places]
    seconds = time.perf_counter() - start
    of = translator.counts
    unknown = of["unknown"] / max(1, of["src_tokens"]), of["unknown_target"] / max(1, of["tgt_tokens"])
    if max(unknown) > FEW:
        said = f"{unknown[0]:.1%} of the source's subwords and {unknown[1]:.1%} of the targets'"
        console.warn(f"'{name}' does not know {said}: on such pairs it can only guess")
    return Scored(found, sum(len(own) for scores in found.values() for own in scores) / seconds, rule, unknown)


def default_pairs(run: Run) -> str:
    """The contrastive set that the run's own corpus came with.

    Raises: ConfigError if there is none.
    """
    own = run.prep / "eval" / "agreement.json"
    if own.is_file():
        return str(own)
    raise ConfigError(
        "this run's corpus has no contrastive set of its own", where="--pairs", hint="--pairs lingeval97, a JSON file, or SOURCES,RIGHT,WRONG"
    )


def find_pairs(run: Run, where: str) -> str:
    """The file of a set that came with the run's corpus, of a registered evaluation set, or what was given.

    Raises: ConfigError for a name that is none of these.
    """
    own = run.prep / "eval" / f"{where}.json"
    if where.isidentifier() and own.is_file():
        return str(own)
    if where != "lingeval97":
        known = [path.stem for path in sorted((run.prep / "eval").glob("*.json"))] + ["lingeval97"]
        if where.isidentifier() and not Path(where).exists():
            raise ConfigError(f"no contrastive set '{where}'", where="--pairs", hint=nearest(where, known, "a JSON file, or SOURCES,RIGHT,WRONG"))
        return where
    from nmtkit.corpora import published

    return str(published.fetch(where)[0])


def run(
    run: Run,
    systems: Sequence[str],
    *,
    set_names: Sequence[str] = (),
    pairs: str = "",
    context: str = "true",
    scores: Sequence[str] = (),
    score_kind: str = "auto",
) -> Finding:
    """Accuracy of each system on a contrastive set.

    Args:
        run: the run; systems: those that score the set. set_names is of no use here.
        pairs: what `contrastive.read` reads, the name of a set of the run's corpus (agreement, pronouns) or lingeval97; "" = the run's own set.
        context: what systems that read context get, of true, none and foreign with commas between: a column each.
        scores: score files in Lingeval97's format, shown beside the systems by their names; score_kind: what is in them, as `read_scores` has it.
    Raises: ConfigError, DataError as the parts say.
    """
    if set_names:
        raise ConfigError("agreement reads a contrastive set, not a set of the run", where="--set-name", hint="--pairs")
    where = find_pairs(run, pairs) if pairs else default_pairs(run)
    items = read(where)
    sets = {condition: under(items, condition) for condition in dict.fromkeys(context.split(","))}
    has_context = any(item.before for item in items)
    if context != "true" and not has_context:
        raise ConfigError("no pair of this set has a context", where="--context", hint=f"leave it out, or name a set that has: {where} has none")
    given = _given(scores, score_kind, items)
    judged = {name: one.scores for name, one in given.items()}
    of_systems: dict[str, Scored] = {}
    attachments = {}
    for name in systems:
        if name in judged:
            raise DataError(f"a score file and a system are both named '{name}'", where="--scores", hint="rename the file")
        of_systems[name] = scored(run, name, sets)
        for condition, found in of_systems[name].scores.items():
            other = reads_pairs(of_systems[name].rule) and condition != "true"
            judged[f"{name}, {condition}" if other else name] = found
            attachments[f"{name}.{condition}.scores" if other else f"{name}.scores"] = "".join(f"{-s:.6f}\n" for own in found for s in own)
    rows = _rows(items, judged)
    columns = [Column("section", "group", left=True), Column("label", "", left=True), Column("pairs", "pairs", decimals=0)]
    columns += [Column(name, f"{name} [95%]", decimals=1, interval=True) for name in judged]
    notes = [*_notes(rows, given), *_doubts(of_systems), *(_about_context(items, of_systems, list(sets)) if has_context else ())]
    if alike := no_questions(items):
        notes.append(f"{counted(alike, 'wrong translation')} of the set: the right one once more, word for word, so a tie")
    drawn = next(filter(None, ([row for row in rows if row[0] == section] for section in (OF_SUBJECT_VERB, OF_ALL_TYPES, "type"))))
    series = {name: [row[3 + i] for row in drawn] for i, name in enumerate(judged)}
    return Finding(
        name="agreement",
        title="right forms preferred to wrong ones",
        table=Table("agreement", f"Share of pairs in which the right translation scores better, in % ({where})", columns, rows, notes),
        text="50 is chance for a pair, and 1 of N for a sentence with N translations to choose from. " + (OF_CONTEXT if has_context else OF_DISTANCE),
        figure=figures.grouped_bars([row[1] for row in drawn], series, drawn[0][0], "right, %") if figures.available() else None,
        bars="\n\n".join(_bars(name, drawn, values) for name, values in series.items()),
        facts={
            **{"pairs": where, "items": len(items), "context": context, "undecided_by_the_source": open_questions(items)},
            "unknown_subwords": {name: [round(share, 4) for share in found.unknown] for name, found in of_systems.items()},
            "targets_per_second": {name: round(found.rate, 1) for name, found in of_systems.items()},
        },
        attachments=attachments,
    )


def _rows(items: Sequence[Item], judged: Mapping[str, list[list[float]]]) -> list[list[Any]]:
    """For each group of errors: section, label, how many, and the share that is right by each column's scores (see `Scored.scores`)."""
    errors = [error for item in items for error in item.errors]
    pairwise = [decisions(items, found) for found in judged.values()]
    rows: list[list[Any]] = []
    for section, label, belongs in groups(errors):
        own = [[right for error, right in found if belongs(error)] for found in pairwise]
        rows.append([section, label, len(own[0]), *(interval(sum(rights), len(rights)) for rights in own)])
    if any(len(item.errors) > 1 for item in items):
        best = [preferred(found) for found in judged.values()]
        rows.insert(1, ["sentence", "better than every wrong one", len(best[0]), *(interval(sum(rights), len(rights)) for rights in best)])
    return rows


def _notes(rows: Sequence[Sequence[Any]], given: Mapping[str, ScoreFile]) -> list[str]:
    """What the table's numbers are."""
    notes = ["right: the reference has a strictly higher log-probability, </s> included, not normalised by length; a tie is wrong", "[95%]: Wilson"]
    notes += map(_read_as, given, given.values())
    sections = {row[0] for row in rows}
    if sections & {OF_SUBJECT_VERB, OF_ALL_TYPES}:
        notes.append("distance: words between the two that belong together, of the pairs that have one")
    if "frequency" in sections:
        notes.append("frequency: of the word in the training text of the set's authors, all types that have one; of subject and verb the rarer one's")
    return notes


def _doubts(of_systems: Mapping[str, Scored]) -> list[str]:
    """What makes a share say less than it seems to."""
    notes = []
    for name, found in of_systems.items():
        if max(found.unknown) > FEW:
            notes.append(f"{name} does not know {found.unknown[0]:.1%} of the source's subwords and {found.unknown[1]:.1%} of the targets'")
        ties = found.ties(next(iter(found.scores)))
        if ties:
            notes.append(f"{name}: {counted(ties, 'exact tie')}, so wrong")
    return notes


def _given(paths: Sequence[str], kind: str, items: Sequence[Item]) -> dict[str, ScoreFile]:
    """The score files by name; how each was read is said.

    Raises: ConfigError, DataError as `read_scores`; ConfigError for a kind of no file.
    """
    if kind != "auto" and not paths:
        raise ConfigError("there is no score file that it could be said of", where="--score-kind", hint="--scores FILE")
    found = {Path(file).name.split(".")[0]: read_scores(Path(file), items, kind) for file in paths}
    for name, one in found.items():
        console.say(_read_as(name, one) + (" (by their signs; --score-kind says it)" if kind == "auto" else ""))
    return found


def _read_as(name: str, scores: ScoreFile) -> str:
    return f"scores of {name}: read as {SCORE_KINDS[scores.kind]}"


def _about_context(items: Sequence[Item], of_systems: Mapping[str, Scored], conditions: Sequence[str]) -> list[str]:
    """Which systems read the sentences before, under which conditions, and what that can decide."""
    rules = {name: found.rule for name, found in of_systems.items()}
    kinds = {name: f"{rule.kind}, at most {rule.size}, {rule.join}{', translations too' * rule.targets}" for name, rule in rules.items() if rule}
    reading = [f"{name} ({kind})" for name, kind in kinds.items()]
    without = [name for name, rule in rules.items() if rule is None]
    said = {"read by ": reading, "not read by ": without}
    notes = [f"context, the sentences before: {'; '.join(words + ', '.join(names) for words, names in said.items() if names)}"] if rules else []
    meaning = {"none": "without it", "foreign": "with that of another sentence of the set, drawn with seed 1, the same for all systems"}
    asked = [f"{condition}: {meaning[condition]}" for condition in conditions if condition in meaning]
    notes += ["; ".join(asked)] if asked and reading else []
    if undecided := open_questions(items):
        total = sum(len(item.errors) for item in items)
        notes.append(
            f"{undecided:,} of {total:,} pairs are in the set with right and wrong swapped too: only the translations before can decide them"
        )
    return notes


def _bars(name: str, rows: Sequence[Sequence[Any]], values: Sequence[Estimate]) -> str:
    width = max(len(row[1]) for row in rows)
    lines = [f"{row[1]:>{width}} {bar(value.value, 100)} {value.value or 0:5.1f} ({row[2]:,})" for row, value in zip(rows, values, strict=True)]
    return "\n".join([name, *lines])
