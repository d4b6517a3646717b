"""The stage `score`: the translations of a run against their references."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sacrebleu

import nmtkit
from nmtkit import console, files
from nmtkit.errors import ConfigError
from nmtkit.folders import recover, writing_folder
from nmtkit.locks import locked
from nmtkit.owned_files import PAPER, SCORES, SUFFIXES
from nmtkit.records import TextSet, load_or_warn
from nmtkit.run import Run, System
from nmtkit.score import lengths, paper, seeds
from nmtkit.score.budgets import read_budget
from nmtkit.score.evaluate import (
    Task,
    asked_metrics,
    check_baseline,
    check_options,
    evaluate,
    measure,
    sentence_rows,
)
from nmtkit.score.external_metrics import SetTexts, check_paths, external_metrics
from nmtkit.score.metrics import METRICS, tokenizer_for
from nmtkit.score.options import ScoreOptions
from nmtkit.score.plain_files import score_files
from nmtkit.score.resampling import Draws
from nmtkit.score.result_tables import print_results, tables
from nmtkit.score.stored_scores import ScoredFrom, Scores, SeedGroup
from nmtkit.score.translations import (
    NOT_THE_SEARCH,
    cautions_on,
    current_translations,
    described,
    lines_of,
    older_checkpoints,
    read_output,
    scorer_of,
    sets_to_score,
    source_lengths,
    translated_systems,
)
from nmtkit.settings import SearchSettings, TrainSettings, complete
from nmtkit.tables.table import StoredTable
from nmtkit.text.side import TextSide

__all__ = ["score", "score_files"]

UNCOMPARED_AVERAGE = ("log_every", "log_to", "samples", "deterministic")
"""Settings of a training that do not change its checkpoints, except for rounding."""
UNCOMPARED = (*UNCOMPARED_AVERAGE, "checkpoint_every", "keep_checkpoints")
"""Settings of a training that do not change its best checkpoint, which is always kept."""


def score(run: Run, **values: Any) -> None:
    """Score all systems of a run on each translated test set, print the tables and write them to
    score/<set>/.

    Args:
        run: the run.
        values: values of `ScoreOptions`, without those for outside files.
    Raises: DataError if nothing was translated, or lines are missing; ConfigError for unknown
        names.
    """
    options = ScoreOptions.of(values)
    check_options(options)
    printed = paper.find_table(options.paper or "", options.table)
    run.manifest()  # raises if the run is not prepared
    with (
        run.recorded("score", seed=options.seed),
        locked(run.path, "score", shared=True),
        locked(run.path / "score", "score", reads=True),
    ):
        text_sets = sets_to_score(run, options.set_names)
        check_paths(options, "{set}", [text_set.name for text_set in text_sets])
        translations = []
        for text_set in text_sets:
            against = _baseline(run, text_set, options)
            folders = translated_systems(run, text_set, options.systems, against)
            check_paths(options, "{system}", list(folders))
            of_set = options.model_copy(update={"against": against})
            translations.append((text_set, folders, of_set))
        print_results([_score_set(run, *each, printed) for each in translations], options)


def _baseline(run: Run, text_set: TextSet, options: ScoreOptions) -> str | None:
    """Return the system that --against names; for a group of training seeds its first system."""
    name = options.against
    if name is None or run.may_have_translations(name):
        return name
    folders = current_translations(run, text_set.name)
    for by_name in (True, False) if options.group_by == "name" else (False, True):
        for group in _seed_groups(run, folders, by_name):
            if group.name == name:
                first = group.systems[0]
                console.say(f"{text_set.name}: the baseline is '{first}', the first of '{name}'")
                return first
    return name


def _score_set(
    run: Run,
    text_set: TextSet,
    folders: dict[str, Path],
    options: ScoreOptions,
    printed: paper.Printed | None,
) -> Scores:
    """Return the scores of a set: those of an earlier call if they are up to date, else new scores,
    which are written to score/<set>/.

    Args:
        folders: the folders of the translations by system.
        printed: the table of --paper.
    """
    folder = run.path / "score" / text_set.name
    recover(folder, SCORES)
    stored = load_or_warn(Scores, folder / "scores.json")
    options = _completed(options, stored)
    groups = _seed_groups(run, folders, options.group_by == "name")
    made_from = _made_from(run, text_set, folders, options, groups)
    same_texts = stored is not None and _of_the_same_texts(run, stored, made_from)
    if (
        stored
        and same_texts
        and not (options.force or files.removed(folder, _file_names(stored)))
        and _is_current(stored, made_from, options)
    ):
        console.say(f"{text_set.name}: scores are up to date (--force computes them again)")
        result = stored
    else:
        side = TextSide.load(run.prep, "tgt")
        scorer = scorer_of(run, text_set.name, side)
        sources = lines_of(run.source(text_set.name), text_set.lines, "nmtkit prep --force")
        task = Task(
            scorer,
            made_from.baseline,
            options,
            source_lengths(run, text_set),
            "subwords of the source",
            SetTexts(text_set.name, sources, scorer.refs, folder / "metrics", options.force),
            groups,
            made_from.budgets,
            [*made_from.older_checkpoints, *made_from.cautions],
        )
        outputs = [read_output(run, side, text_set, *item) for item in folders.items()]
        metrics = measure(outputs, task)
        update = {"made_from": made_from, "paper": stored.paper if stored and same_texts else None}
        result = evaluate(metrics, task).model_copy(update=update)
        owned = SCORES if same_texts else (*SCORES, *PAPER)
        _write(result, sentence_rows(metrics, task.src_lengths), folder, owned)
        if stored:
            _say_replaced(stored, result, same_texts)
    if printed:
        table = paper.compared(printed, "score", paper.of_scores(result), run.manifest().dataset)
        table.write(folder, "paper")
        numbers = StoredTable.model_validate(table.as_json())
        result = result.model_copy(update={"paper": numbers})
        result.write(folder / "scores.json")
    return result


def _completed(options: ScoreOptions, stored: Scores | None) -> ScoreOptions:
    """Return the options; without --by-length or --group-by with those of an earlier call."""
    buckets, grouping = options.length_groups, options.group_by
    if stored and stored.by_length and not buckets:
        with contextlib.suppress(ConfigError):
            lengths.groups(stored.by_length.buckets)
            buckets = stored.by_length.buckets
    if stored and stored.seeds and not grouping:
        grouping = stored.seeds.grouping
    return options.model_copy(update={"buckets": buckets, "group_by": grouping or "seed"})


def _seed_groups(run: Run, folders: dict[str, Path], by_name: bool) -> list[SeedGroup]:
    """Return the systems with the same settings of training and search, except the training seed
    and settings that do not change the weights; or the systems with the same name.
    """
    settings = {name: _compared(run.system(name), folder) for name, folder in folders.items()}
    return seeds.group_systems(settings, by_name)


def _compared(system: System, folder: Path) -> tuple[dict[str, Any], int | None]:
    """Return the settings that systems of one group share, and the training seed.

    Args:
        folder: the translation; its settings of the search count.
    """
    if not system.config.is_file():
        return {}, None
    config = system.read_config()
    train = complete(TrainSettings, config.train)
    search = complete(SearchSettings, described(folder).settings or config.search)
    for key in UNCOMPARED if search["average"] == 1 else UNCOMPARED_AVERAGE:
        train.pop(key)
    for key in NOT_THE_SEARCH:
        search.pop(key)
    seed = train.pop("seed")
    # The settings of the preset are compared. A seed may be trained on another machine.
    compared = config.model_dump(exclude={"preset", "hardware"})
    return compared | {"train": train, "search": search}, seed


def _made_from(
    run: Run,
    text_set: TextSet,
    folders: dict[str, Path],
    options: ScoreOptions,
    groups: list[SeedGroup],
) -> ScoredFrom:
    """Return everything that the scores depend on. They are up to date while it is the same."""
    external, names = external_metrics(options), list(folders)
    inputs = [run.source(text_set.name), *run.references(text_set.name)]
    for folder in folders.values():
        inputs += [folder / "hyp.txt", folder / "hyp.subwords.txt"]
    return ScoredFrom(
        nmtkit=nmtkit.__version__,
        sacrebleu=sacrebleu.__version__,
        prepared=run.manifest().fingerprint,
        baseline=check_baseline(options.against, names),
        test=options.test,
        draws=asdict(Draws.of(options, 1)),
        seeds=[
            [seeds.METHOD, options.group_by],
            *([group.systems, group.seeds] for group in groups),
        ],
        files=files.hashes(inputs, run.path),
        budgets={name: known for name in names if (known := read_budget(run, name))},
        metrics={
            key: external[key].depends_on(text_set.name, names) if key in external else ""
            for key in asked_metrics(options)
        },
        older_checkpoints=list(older_checkpoints(run, text_set.name, folders).values()),
        cautions=cautions_on(run, text_set, folders),
    )


def _of_the_same_texts(run: Run, stored: Scores, made_from: ScoredFrom) -> bool:
    """True if stored scores are of the current translations, with any options, and with the BLEU
    tokenizer that is installed now.
    """
    inputs = {"files", "prepared", "nmtkit", "sacrebleu"}
    earlier = stored.made_from and stored.made_from.model_dump(include=inputs)
    manifest = run.manifest()
    tokenizer, _ = tokenizer_for(manifest.tgt, manifest.settings.tgt_tokenizer == "none")
    same_tokenizer = f"|tok:{tokenizer}" in stored.signatures["bleu"]
    return same_tokenizer and earlier == made_from.model_dump(include=inputs)


def _is_current(stored: Scores, made_from: ScoredFrom, options: ScoreOptions) -> bool:
    """True if stored scores have everything that this call asks for. They may have more external
    metrics.
    """
    earlier = stored.made_from
    if not earlier or options.length_groups != (stored.by_length and stored.by_length.buckets):
        return False
    metrics = {
        key: depends_on
        for key, depends_on in earlier.metrics.items()
        if key in METRICS or key in made_from.metrics
    }
    return earlier.model_copy(update={"metrics": metrics}) == made_from


def _write(result: Scores, sentences: list[str], folder: Path, owned: Sequence[str]) -> None:
    """Write a result, its tables and the lines of sentences.tsv in place of the `owned` files."""
    with writing_folder(folder, owned) as unfinished:
        files.write_lines(unfinished / "sentences.tsv", sentences)
        for stem, table in tables(result).items():
            table.write(unfinished, stem)
        if groups := result.by_length:
            svg = lengths.figure(groups.groups, groups.unit, result.set)
            if svg is not None:
                files.write_text(unfinished / "lengths.svg", svg)
        result.write(unfinished / "scores.json")
    console.say(f"{result.set}: written to {folder}")


def _file_names(result: Scores) -> list[str]:
    """Return the names of the files that `_write` writes besides scores.json."""
    names = [f"{stem}.{suffix}" for stem in tables(result) for suffix in SUFFIXES]
    figure = result.by_length is not None and importlib.util.find_spec("matplotlib") is not None
    return ["sentences.tsv", *names, *["lengths.svg"] * figure]


def _say_replaced(stored: Scores, result: Scores, same_texts: bool) -> None:
    """Print which scores of an earlier call are not in the new result."""
    lost = []
    if stored.baseline != result.baseline:
        against = f"{stored.baseline} are replaced by scores against {result.baseline}"
        lost.append(f"scores against {against} (--against)")
    buckets = result.by_length and result.by_length.buckets
    if stored.by_length and stored.by_length.buckets != buckets:
        lost.append(f"the length groups are no longer {stored.by_length.buckets} (--buckets)")
    if stored.paper and not same_texts:
        lost.append("the paper's numbers are out of date and removed (--paper)")
    if dropped := sorted({*stored.asked_further} - {*result.asked}):
        lost.append(f"no longer asked for: {', '.join(dropped)} (--metrics, --metric)")
    if left_out := sorted({*stored.names} - {*result.names}):
        lost.append(f"no longer scored: {', '.join(left_out)}")
    if lost:
        console.say(f"{result.set}: {', '.join(lost)}")
