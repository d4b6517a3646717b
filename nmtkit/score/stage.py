"""The stage `score`: the translations of a run against their references."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu

import nmtkit
from nmtkit import console, files
from nmtkit.errors import ConfigError, DataError
from nmtkit.records import Manifest, ScoredFrom, Scores, SeedGroup, TextSet, load
from nmtkit.run import Run, locked
from nmtkit.score import lengths, paper, seeds
from nmtkit.score.evaluate import (
    Evaluation,
    Output,
    Task,
    check_baseline,
    evaluate,
    sentence_rows,
)
from nmtkit.score.formulas import Array
from nmtkit.score.options import ScoreOptions
from nmtkit.score.outside import score_files
from nmtkit.score.resampling import Draws
from nmtkit.score.show import show
from nmtkit.score.significance import check_test
from nmtkit.score.translations import described, sets_to_score, translated_systems
from nmtkit.score.views import STEMS, tables
from nmtkit.tables.table import SUFFIXES, StoredTable, check_format

__all__ = ["score", "score_files"]

GROUPINGS = ("seed",)
WATCHING = ("log_every", "samples", "deterministic")
"""Settings of a training that its weights do not depend on, but for their rounding, as on
another GPU.
"""
KEEPING = ("checkpoint_every", "keep_checkpoints")
"""Those that only an average of the last checkpoints depends on: the best one is saved and kept
whatever they are.
"""


def score(run: Run, **values: Any) -> None:
    """All systems of a run side by side, on each test set that was translated; printed and kept in
    score/<set>/.

    Args:
        run: the run.
        values: of `ScoreOptions`, but those of outside files.
    Raises: DataError if nothing was translated, or lines are missing; ConfigError for unknown
        names.
    """
    options = ScoreOptions.of(values)
    buckets, test, against = options.length_groups, options.test, options.against
    check_format(options.output_format)
    check_test(test)
    check_grouping(options.group_by)
    lengths.groups(buckets or "dc")
    draws = Draws(1, options.resamples, options.trials, options.ratio, options.seed)
    printed = paper.asked(options.paper or "", options.table)
    manifest = run.manifest()
    with (
        run.recorded("score", seed=options.seed) as record,
        locked(run.path, "score", shared=True),
        locked(run.path / "score", "score"),
    ):
        results = []
        for chosen in sets_to_score(run, options.set_names):
            found = translated_systems(run, chosen, options.systems, against)
            made_from = _made_from(
                run, chosen, found, manifest, check_baseline(against, list(found)), draws, test
            )
            result = None if options.force else _up_to_date(run, chosen, made_from, buckets)
            if result is None:
                _say_replaced(run.path / "score" / chosen.name, made_from.baseline, bool(buckets))
                task = _task(run, chosen, found, manifest, made_from, draws, buckets)
                result = _score_set(
                    run,
                    chosen,
                    found,
                    replace(task, test=test, commit=record.get("commit")),
                    made_from,
                )
            else:
                console.say(f"{chosen.name}: scores are up to date (--force computes them again)")
            if len(result.systems) == 1:
                only = result.systems[0].name
                console.say(
                    f"{chosen.name}: only '{only}' is translated, so there is nothing to compare"
                    " with; train and translate another system"
                )
            results.append(
                _beside_printed(run.path / "score" / chosen.name, printed, result, manifest)
            )
        show(results, options.output_format, bool(buckets), options.group_by == "seed")


def _say_replaced(folder: Path, baseline: str, by_length: bool) -> None:
    """Say what of an earlier call's scores this one does not have."""
    try:
        stored = load(Scores, folder / "scores.json")
    except DataError:
        return
    lost = (
        [f"scores against {stored.baseline} give way to those against {baseline} (--against)"]
        if stored.baseline != baseline
        else []
    )
    lost += (
        ["the groups of length are dropped (--by-length)"]
        if stored.by_length and not by_length
        else []
    )
    if lost:
        console.say(f"{folder.name}: {', '.join(lost)}")


def _beside_printed(
    folder: Path, printed: paper.Printed | None, result: Scores, manifest: Manifest
) -> Scores:
    """Return the result with a paper's numbers beside it, if this call names some; they take the
    place of an earlier call's in the folder.
    """
    table = paper.beside(printed, result, manifest.dataset) if printed else None
    if table is not None:
        table.write(folder, "paper")
    else:
        for suffix in SUFFIXES:
            (folder / f"paper.{suffix}").unlink(missing_ok=True)
    found = result.model_copy(
        update={"paper": table and StoredTable.model_validate(table.as_json())}
    )
    if found != result:
        found.write(folder / "scores.json")
    return found


def check_grouping(group_by: str | None) -> None:
    """Refuse an unknown --group-by before any work is done.

    Raises: ConfigError naming what there is.
    """
    if group_by is not None and group_by not in GROUPINGS:
        raise ConfigError(
            f"cannot group systems by '{group_by}'",
            where="--group-by",
            hint="one of: " + ", ".join(GROUPINGS),
        )


def _made_from(
    run: Run,
    chosen: TextSet,
    found: dict[str, Path],
    manifest: Manifest,
    baseline: str,
    draws: Draws,
    test: str,
) -> ScoredFrom:
    """Everything a result depends on: equal to the stored one means that the result is up to
    date.
    """
    inputs = [
        *run.references(chosen.name),
        *(path / name for path in found.values() for name in ("hyp.txt", "hyp.subwords.txt")),
    ]
    return ScoredFrom(
        nmtkit=nmtkit.__version__,
        sacrebleu=sacrebleu.__version__,
        prepared=manifest.fingerprint,
        baseline=baseline,
        test=test,
        draws=asdict(draws),
        seeds=[[group.systems, group.seeds] for group in seed_groups(run, found)],
        files={
            str(path.relative_to(run.path)): files.sha256(path) for path in inputs if path.is_file()
        },
    )


def seed_groups(run: Run, found: dict[str, Path]) -> list[SeedGroup]:
    """The systems put together by what they were trained and translated with, the training seed
    aside, and how it was watched.

    Args:
        found: system -> the folder of its translation, whose meta.json holds the settings of the
            search.
    """
    settings: dict[str, tuple[Any, int | None]] = {}
    for name, path in found.items():
        system = run.system(name)
        if not system.config.is_file():
            settings[name] = (name, None)
            continue
        config = system.read_config()
        train = dict(config.get("train", {}))
        seed = train.pop("seed", None)
        search = described(path).settings or config.get("search") or {}
        for key in (*WATCHING, *(KEEPING if search.get("average", 1) == 1 else ())):
            train.pop(key, None)
        config.pop("preset", None)  # only a name: what it sets is compared by itself
        settings[name] = ({**config, "train": train, "search": search}, seed)
    return seeds.group_systems(settings)


def _up_to_date(
    run: Run, chosen: TextSet, made_from: ScoredFrom, buckets: str | None
) -> Scores | None:
    try:
        stored = load(Scores, run.path / "score" / chosen.name / "scores.json")
    except DataError:
        return None
    groups = stored.by_length and stored.by_length.buckets
    return stored if stored.made_from == made_from and buckets in (None, groups) else None


def source_lengths(run: Run, chosen: TextSet) -> Array:
    """(N) source lengths of a set in subwords, without </s>.

    Raises: DataError if the store and the text do not belong together.
    """
    from nmtkit.data.store import Store

    found = Store(run.prep / chosen.name).src_lengths - 1
    if len(found) != chosen.lines:
        raise DataError(
            f"{chosen.name}: {chosen.lines:,} lines of text, {len(found):,} prepared pairs",
            where=run.prep,
            hint="nmtkit prep --force",
        )
    return np.asarray(found)


def _task(
    run: Run,
    chosen: TextSet,
    found: dict[str, Path],
    manifest: Manifest,
    made_from: ScoredFrom,
    draws: Draws,
    buckets: str | None,
) -> Task:
    """What the systems are measured against: references, raw and as tokens (see `read_outputs`)."""
    from nmtkit.text.side import TextSide

    side, refs = TextSide.load(run.prep, "tgt"), read_references(run, chosen)
    return Task(
        set_name=chosen.name,
        refs=refs,
        tokenized_refs=[[side.cased(line) for line in ref] for ref in refs],
        tokenization=side.tokenization,
        lang=manifest.tgt,
        baseline=made_from.baseline,
        draws=replace(draws, sentences=len(refs[0])),
        lowercase=manifest.settings.lowercase,
        seed_groups=seed_groups(run, found),
        src_lengths=source_lengths(run, chosen) if buckets else None,
        length_unit="subwords",
        buckets=buckets or "dc",
    )


def _score_set(
    run: Run, chosen: TextSet, found: dict[str, Path], task: Task, made_from: ScoredFrom
) -> Scores:
    if task.lowercase:
        console.say(
            f"{chosen.name}: the corpus was prepared in lower case, so case does not count"
            " (case:lc)"
        )
    evaluation = evaluate(read_outputs(run, chosen, found), task)
    evaluation = replace(
        evaluation, result=evaluation.result.model_copy(update={"made_from": made_from})
    )
    _write(run.path / "score" / chosen.name, evaluation, source_lengths(run, chosen))
    return evaluation.result


def read_references(run: Run, chosen: TextSet) -> list[list[str]]:
    """The references of a set.

    Raises: DataError where a file has another number of lines than the set.
    """
    refs = [list(files.text_lines(path)) for path in run.references(chosen.name)]
    for path, ref in zip(run.references(chosen.name), refs, strict=True):
        if len(ref) != chosen.lines:
            raise DataError(
                f"{chosen.name}: {len(ref):,} lines in a reference of {chosen.lines:,}",
                where=path,
                hint="nmtkit prep --force",
            )
    return refs


def read_outputs(run: Run, chosen: TextSet, found: dict[str, Path]) -> list[Output]:
    """The systems' outputs of a set, as text and as tokens: those the models wrote, with BPE joined
    and truecasing undone.

    Raises: DataError where a file has another number of lines than the set.
    """
    from nmtkit.text.side import TextSide

    side = TextSide.load(run.prep, "tgt")
    outputs = []
    for name, path in found.items():
        lines = list(files.text_lines(path / "hyp.txt"))
        again = f"nmtkit translate --system {name} --set-name {chosen.name} --force"
        if len(lines) != chosen.lines:
            raise DataError(
                f"{name}: {len(lines):,} translations of {chosen.lines:,} sentences",
                where=path / "hyp.txt",
                hint=again,
            )
        subwords = path / "hyp.subwords.txt"
        if subwords.is_file():
            tokens = [
                side.cased_surface(line.split(" ")) if line else ""
                for line in files.text_lines(subwords)
            ]
            if len(tokens) != len(lines):
                raise DataError(
                    f"{name}: {len(tokens):,} lines of subwords for {len(lines):,} translations",
                    where=subwords,
                    hint=again,
                )
        else:
            tokens = [side.cased(line) for line in lines]
        outputs.append(Output(name, lines, tokens))
    return outputs


def _write(folder: Path, evaluation: Evaluation, src_lengths: Array) -> None:
    result = evaluation.result
    # An earlier call may have been of other systems: none of its tables may stand beside this
    # one's.
    for name in (
        "scores.json",
        "lengths.svg",
        *(f"{stem}.{suffix}" for stem in STEMS for suffix in SUFFIXES),
    ):
        (folder / name).unlink(missing_ok=True)
    files.write_lines(folder / "sentences.tsv", sentence_rows(evaluation, src_lengths))
    for stem, table in tables(result).items():
        table.write(folder, stem)
    if result.by_length and (
        svg := lengths.figure(result.by_length.groups, result.by_length.unit, result.set)
    ):
        files.write_text(folder / "lengths.svg", svg)
    result.write(folder / "scores.json")  # last: it says that the rest is up to date
    console.say(f"{result.set}: written to {folder}")
