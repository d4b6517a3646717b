"""The stage `score`: the translations of a run against their references."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import sacrebleu

import nmtkit
from nmtkit import console, files
from nmtkit.errors import ConfigError
from nmtkit.folders import recover, writing_folder
from nmtkit.locks import locked
from nmtkit.owned_files import PAPER, SCORES
from nmtkit.records import TextSet, load_or_warn
from nmtkit.run import Run
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

UNCOMPARED = ("log_every", "log_to", "samples", "deterministic")
"""Settings of a training that its weights do not depend on, except for rounding."""
ONLY_AVERAGED = ("checkpoint_every", "keep_checkpoints")
"""Settings that matter only for an average of the last checkpoints: the best checkpoint is always
kept.
"""


def score(run: Run, **values: Any) -> None:
    """Score all systems of a run on each translated test set, print the tables and keep them in
    score/<set>/.

    Args:
        run: the run.
        values: of `ScoreOptions`, but those of files without a run.
    Raises: DataError if nothing was translated, or lines are missing; ConfigError for unknown
        names.
    """
    options = ScoreOptions.of(values)
    check_options(options)
    printed = paper.find_table(options.paper or "", options.table)
    run.manifest()  # refuses a run that is not prepared
    with (
        run.recorded("score", seed=options.seed),
        locked(run.path, "score", shared=True),
        locked(run.path / "score", "score", reads=True),
    ):
        results = []
        text_sets = sets_to_score(run, options.set_names)
        check_paths(options, "{set}", [text_set.name for text_set in text_sets])
        for text_set in text_sets:
            folders = translated_systems(run, text_set, options.systems, options.against)
            check_paths(options, "{system}", list(folders))
            scored_set = ScoredSet(run, text_set, folders, options)
            recover(scored_set.folder, SCORES)
            result = scored_set.current()
            results.append(scored_set.with_paper(printed, result))
        print_results(results, options)


@dataclass(frozen=True)
class ScoredSet:
    """A set of a run, the folders of its translations by system, and score/<set>/."""

    run: Run
    text_set: TextSet
    folders: dict[str, Path]
    options: ScoreOptions

    @property
    def folder(self) -> Path:
        """The folder of the scores."""
        return self.run.path / "score" / self.text_set.name

    @cached_property
    def seed_groups(self) -> list[SeedGroup]:
        """The systems whose settings of training and search are the same, except the training
        seed and what the weights do not depend on; or the systems with the same name.
        """
        settings: dict[str, tuple[dict[str, Any], int | None]] = {}
        for name, folder in self.folders.items():
            system = self.run.system(name)
            if not system.config.is_file():
                settings[name] = ({}, None)
                continue
            config = system.read_config()
            train = complete(TrainSettings, config.train)
            seed = train.pop("seed")
            search = complete(SearchSettings, described(folder).settings or config.search)
            best = search["average"] == 1
            for key in (*UNCOMPARED, *(ONLY_AVERAGED if best else ())):
                train.pop(key)
            for key in NOT_THE_SEARCH:
                search.pop(key)
            # The settings of the preset are compared. A seed may be trained on another machine.
            compared = config.model_dump(exclude={"preset", "hardware"})
            settings[name] = ({**compared, "train": train, "search": search}, seed)
        return seeds.group_systems(settings, self.grouping == "name")

    @cached_property
    def made_from(self) -> ScoredFrom:
        """Everything the scores depend on: they are up to date while it is the same."""
        external, names = external_metrics(self.options), list(self.folders)
        inputs = self.run.references(self.text_set.name)
        for folder in self.folders.values():
            inputs += [folder / "hyp.txt", folder / "hyp.subwords.txt"]
        return ScoredFrom(
            nmtkit=nmtkit.__version__,
            sacrebleu=sacrebleu.__version__,
            prepared=self.run.manifest().fingerprint,
            baseline=check_baseline(self.options.against, names),
            test=self.options.test,
            draws=asdict(Draws.of(self.options, 1)),
            seeds=[
                [seeds.METHOD, self.grouping],
                *([group.systems, group.seeds] for group in self.seed_groups),
            ],
            files=files.hashes(inputs, self.run.path),
            budgets={name: known for name in names if (known := read_budget(self.run, name))},
            metrics={
                key: external[key].depends_on(self.text_set.name, names) if key in external else ""
                for key in asked_metrics(self.options)
            },
            older_checkpoints=[
                *older_checkpoints(self.run, self.text_set.name, self.folders).values()
            ],
            cautions=cautions_on(self.run, self.text_set, self.folders),
        )

    @cached_property
    def stored(self) -> Scores | None:
        """The scores of an earlier call."""
        return load_or_warn(Scores, self.folder / "scores.json")

    @property
    def length_groups(self) -> str | None:
        """The groups of source length; those of an earlier call if this one names none."""
        earlier = self.stored and self.stored.by_length
        with contextlib.suppress(ConfigError):
            if earlier and not self.options.length_groups and lengths.groups(earlier.buckets):
                return earlier.buckets
        return self.options.length_groups

    @property
    def grouping(self) -> str:
        """The value of --group-by; without it that of an earlier call, or else "seed"."""
        earlier = self.stored and self.stored.seeds
        return self.options.group_by or (earlier.grouping if earlier else "seed")

    def _is_current(self, stored: Scores) -> bool:
        """True if an earlier call's scores have all that is asked for. They may have further
        external metrics.
        """
        earlier, wanted = stored.made_from, self.made_from
        if earlier is None or self.length_groups != (stored.by_length and stored.by_length.buckets):
            return False
        kept = {
            key: depends_on
            for key, depends_on in earlier.metrics.items()
            if key in METRICS or key in wanted.metrics
        }
        same = earlier.model_copy(update={"metrics": kept}) == wanted
        return same and self._of_the_same_texts(stored)

    def current(self) -> Scores:
        """Return the scores; those of an earlier call if they are up to date."""
        stored = self.stored
        if stored and not self.options.force and self._is_current(stored):
            again = "--force computes them again"
            console.say(f"{self.text_set.name}: scores are up to date ({again})")
            return stored
        return self.score()

    def score(self) -> Scores:
        """Score all systems and write the folder."""
        name, side = self.text_set.name, TextSide.load(self.run.prep, "tgt")
        scorer = scorer_of(self.run, name, side)
        sources = lines_of(self.run.source(name), self.text_set.lines, "nmtkit prep --force")
        texts = SetTexts(name, sources, scorer.refs, self.folder / "metrics", self.options.force)
        task = Task(
            scorer,
            self.made_from.baseline,
            self.options.model_copy(
                update={"buckets": self.length_groups, "group_by": self.grouping}
            ),
            source_lengths(self.run, self.text_set),
            "subwords of the source",
            texts,
            self.seed_groups,
            self.made_from.budgets,
            [*self.made_from.older_checkpoints, *self.made_from.cautions],
        )
        outputs = [
            read_output(self.run, side, self.text_set, *item) for item in self.folders.items()
        ]
        metrics = measure(outputs, task)
        result = evaluate(metrics, task).model_copy(update={"made_from": self.made_from})
        self._write(result, sentence_rows(metrics, task.src_lengths))
        self._say_replaced()
        return result

    def _say_replaced(self) -> None:
        """Print what this call has removed of an earlier call's scores."""
        stored, baseline = self.stored, self.made_from.baseline
        if stored is None:
            return
        lost = []
        if stored.baseline != baseline:
            lost.append(
                f"scores against {stored.baseline} give way to those against {baseline} (--against)"
            )
        if stored.by_length and self.length_groups != stored.by_length.buckets:
            lost.append(
                f"the groups of length are no longer {stored.by_length.buckets} (--buckets)"
            )
        if stored.paper and not self._of_the_same_texts(stored):
            lost.append("the paper's numbers beside them are out of date, and removed (--paper)")
        if dropped := set(stored.asked_further) - set(asked_metrics(self.options)):
            names = ", ".join(sorted(dropped))
            lost.append(f"no longer asked for: {names} (--metrics, --metric)")
        if left_out := {s.name for s in stored.systems} - set(self.folders):
            lost.append(f"no longer scored: {', '.join(sorted(left_out))}")
        if lost:
            console.say(f"{self.text_set.name}: {', '.join(lost)}")

    def _of_the_same_texts(self, stored: Scores) -> bool:
        """True if scores are of these translations, whatever the options, and of the tokenizer of
        BLEU that is installed now.
        """
        inputs = {"files", "prepared", "nmtkit", "sacrebleu"}
        earlier = stored.made_from and stored.made_from.model_dump(include=inputs)
        manifest = self.run.manifest()
        tokenizer, _ = tokenizer_for(manifest.tgt, manifest.settings.tgt_tokenizer == "none")
        same_tokenizer = f"|tok:{tokenizer}" in stored.signatures["bleu"]
        return same_tokenizer and earlier == self.made_from.model_dump(include=inputs)

    def _write(self, result: Scores, sentences: list[str]) -> None:
        kept = self.stored and self._of_the_same_texts(self.stored)
        owned = SCORES if kept else (*SCORES, *PAPER)
        with writing_folder(self.folder, owned) as folder:
            files.write_lines(folder / "sentences.tsv", sentences)
            for stem, table in tables(result).items():
                table.write(folder, stem)
            if groups := result.by_length:
                svg = lengths.figure(groups.groups, groups.unit, result.set)
                if svg is not None:
                    files.write_text(folder / "lengths.svg", svg)
            result.write(folder / "scores.json")
        console.say(f"{result.set}: written to {self.folder}")

    def with_paper(self, printed: paper.Printed | None, result: Scores) -> Scores:
        """Return the result with a paper's numbers, if this call names some; write them. Those of
        an earlier call stay while the translations are the same.
        """
        numbers = None
        if printed:
            table = paper.compared(
                printed, "score", paper.of_scores(result), self.run.manifest().dataset
            )
            table.write(self.folder, "paper")
            numbers = StoredTable.model_validate(table.as_json())
        elif self.stored and self._of_the_same_texts(self.stored):
            numbers = self.stored.paper
        with_numbers = result.model_copy(update={"paper": numbers})
        if with_numbers != result:
            with_numbers.write(self.folder / "scores.json")
        return with_numbers
