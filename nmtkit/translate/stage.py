"""The stage `translate`: translates the test sets of a run into its folders, or a file or stdin to
stdout.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nmtkit
from nmtkit import console, files
from nmtkit.corpora.parallel_text import first_odd_pair
from nmtkit.data.documents import Documents, documents_file
from nmtkit.data.store import load_spans, spans_files
from nmtkit.errors import CheckpointError, ConfigError, DataError, TrainingDiverged, counted
from nmtkit.folders import recover, writing_folder
from nmtkit.locks import check_writable, locked
from nmtkit.nn import hardware
from nmtkit.nn.linear import rounds
from nmtkit.options import flag
from nmtkit.owned_files import HYPOTHESES, META, NBEST, SUBWORDS
from nmtkit.parallel import cores
from nmtkit.records import (
    SourceText,
    TextSet,
    TranslationInputs,
    TranslationMeta,
    load,
    load_or_warn,
)
from nmtkit.run import Run
from nmtkit.score.external_metrics import CommandMetric, parse
from nmtkit.settings import SearchSettings, complete
from nmtkit.toml import differing
from nmtkit.translate import workers
from nmtkit.translate.demands import read_demands
from nmtkit.translate.options import TranslateOptions
from nmtkit.translate.output import (
    checked_boundaries,
    nbest_line,
    print_forced,
    print_translations,
    speed,
    summary,
)
from nmtkit.translate.risk import external_utility
from nmtkit.translate.scorer import Scorer
from nmtkit.translate.systems import SystemGroup, choose, owned, search_overrides
from nmtkit.translate.windows import Boundaries, file_windows, named_boundaries

READERS = 4
"""The most workers that read text for a GPU."""


class Unavailable(DataError):
    """Raised for a system that another process is writing to, or that cannot be loaded."""


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """Turn a user error into Unavailable, so that other systems can still translate."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise Unavailable(error.message, error.where, error.hint) from None


def translate(run: Run, **values: Any) -> None:
    """Translate test sets into systems/<name>/translate/<set>/, or a file or stdin to stdout.

    Args:
        run: the run.
        values: of `TranslateOptions`.
    Raises: ConfigError or DataError for user errors; CheckpointError if no checkpoint of a system
        can be used; EnvironmentProblem if the device does not exist.
    """
    options = TranslateOptions.of(values)
    search = search_overrides(options)
    device = hardware.pick_device(options.device)
    run.manifest()
    sets = []
    if options.source is None:
        sets = [run.text_set(name) for name in options.set_names] or run.sets("test")
    _check(run, options, sets)
    boundaries = named_boundaries(options.source, options.docs)
    to_stdout = options.source is not None or options.force_target is not None
    with (
        run.recorded("translate", device=str(device)) as call,
        locked(run.path, "translate", shared=True),
        workers.one_thread(device),
    ):
        groups = choose(run, options.systems, options.ensemble, search, single=to_stdout)
        call.systems = [group.name for group in groups]
        if options.metric and not all(group.settings.mbr for group in groups):
            raise ConfigError(
                "--metric chooses among candidates, and --mbr sets their number",
                where="--metric",
                hint="add --mbr N, or leave --metric out",
            )
        stage = _Stage(run, device, options)
        if to_stdout:
            stage.to_stdout(groups[0], sets, boundaries)
        else:
            stage.translate_all(groups, sets)


def _check(run: Run, options: TranslateOptions, sets: list[TextSet]) -> None:
    """Raise ConfigError or DataError if the options do not fit the run or the files. No model is
    loaded yet.
    """
    source = options.source
    if source == "-" and sys.stdin is None:  # the process was started with file descriptor 0 closed
        raise DataError("stdin is closed", where="-", hint="pipe text into it, or name a file")
    if source is None and not sets:
        hint = "name a file (nmtkit translate FILE), or another set with --on"
        raise run.no_test_set(hint)
    for text_set in sets:
        run.check_text(text_set.name)
    for key in ("force_target", "prefix", "constraints"):
        if (path := getattr(options, key)) is not None:
            _check_beside(run, source, sets, path, flag(key))
    if options.force_target is None and source not in (None, "-"):
        for _ in file_windows(str(source)):  # all of it is UTF-8
            pass


def _check_beside(run: Run, source: str | None, sets: list[TextSet], path: Path, name: str) -> None:
    """Raise ConfigError or DataError unless a file has one line for each line of the source.

    Args:
        run: the run.
        source: the file to translate, if it is named.
        sets: the sets to translate if no file is named.
        path: the file.
        name: the option that names `path`.
    """
    if source is None and len(sets) != 1:
        raise ConfigError(
            "which set does this file belong to?",
            where=name,
            hint="name it with --on, or name the source file",
        )
    if source == "-":
        raise ConfigError(
            f"{name} needs a source that can be read twice",
            where="-",
            hint="put the text into a file and name the file",
        )
    files.check_file(path, where=name)
    text = Path(source or run.source(sets[0].name))
    expected = sum(map(len, file_windows(text)))
    # Tabs separate the phrases of a line, so their file may be named as a TSV file.
    lines = [files.text_lines(path)] if name == flag("constraints") else file_windows(path)
    count = sum(1 for _ in itertools.chain.from_iterable(lines))
    if expected != count:
        message = f"{path} has {counted(count, 'line')} but {text} has {expected:,}"
        # Targets are as long as their sources; prefixes and constraints are not.
        has_targets = name == flag("force_target") and expected and count
        where = first_odd_pair((text,), (path,)) if has_targets else name
        raise DataError(message, where=where, hint=f"{name} needs one line for each source line")


def _boundaries(run: Run, text_set: TextSet) -> Boundaries:
    """Return where the documents of a prepared set start."""
    return Boundaries(known=Documents.of_set(run.prep, text_set.name, text_set.lines))


class _Stage:
    """One call of the stage.

    Args:
        run: the run.
        device: the device to compute on.
        options: of the call.
    """

    def __init__(self, run: Run, device: torch.device, options: TranslateOptions) -> None:
        self.run, self.device, self.options = run, device, options
        self.jobs = options.jobs or cores()
        self.readers = 1 if device.type == "cpu" else min(self.jobs, READERS)
        self._demand_files = options.prefix, options.constraints
        self._hardware: files.JsonObject = {}
        self.metric = parse(CommandMetric, options.metric) if options.metric else None

    def scorer(self, group: SystemGroup) -> Scorer:
        """Load a system and log how it computes."""
        machine = group.hardware(self.device, self.options.force_target is not None)
        names = [f"{used.system}/{used.name}" for used in group.checkpoints()]
        scorer = group.scorer(self.device, machine.precision, self.jobs)
        if machine.precision != "float32" and not rounds(scorer.models, machine.precision):
            if group.settings.precision != "auto":
                why = f"has no layer that {machine.precision} rounds (see nmtkit/models/README.md)"
                console.say(f"'{group.name}' {why}: it searches in float32")
            machine = replace(machine, precision="float32")
        values = {**machine.values(), "jobs": scorer.jobs}
        if self._hardware != values:
            processes = f"; up to {scorer.jobs} worker processes of one thread each"
            console.say(machine.describe() + processes * (scorer.jobs > 1))
        self._hardware = values
        if self.metric:
            scorer.utility = external_utility(self.metric)
        averaged = " (averaged)" * (len(names) > len(scorer.models))
        console.say(f"loaded {', '.join(names)}{averaged}")
        return scorer

    def to_stdout(
        self, group: SystemGroup, sets: list[TextSet], boundaries: Boundaries | None
    ) -> None:
        """Print the translations of a file or of stdin, or the scores of given targets."""
        scorer, source, target = self.scorer(group), self.options.source, self.options.force_target
        spans = None
        if source is None:
            source, boundaries = str(self.run.source(sets[0].name)), _boundaries(self.run, sets[0])
            spans = load_spans(self.run.prep / sets[0].name, sets[0].lines)
        else:
            boundaries = checked_boundaries(scorer, source, boundaries)
        if target is None:
            scorer.check_demands(source, boundaries, *self._demand_files)
            demands = read_demands(*self._demand_files)
            with scorer.reading(self.readers):
                print_translations(scorer, group, source, boundaries, demands)
        else:
            print_forced(scorer, group, source, boundaries, target, spans)

    def translate_all(self, groups: list[SystemGroup], sets: list[TextSet]) -> None:
        """Translate the sets with every system. A system that cannot translate is skipped, unless
        the user named it or no system is left.
        """
        skipped = 0
        for group in groups:
            try:
                self.translate_sets(group, sets)
            except (Unavailable, CheckpointError, TrainingDiverged) as error:
                skipped += 1
                if self.options.systems or skipped == len(groups):
                    raise
                hint = f" ({error.hint})" if error.hint else ""
                console.warn(f"skipping '{group.name}': {error.message}{hint}")

    def translate_sets(self, group: SystemGroup, sets: list[TextSet]) -> None:
        """Translate the sets whose translations by a system or ensemble are not up to date."""
        scorer: Scorer | None = None
        with contextlib.ExitStack() as locks:
            for path in sorted({system.path for system in (group.system, *group.systems)}):
                with _loading():
                    locks.enter_context(locked(path, "translate", reads=True))
            for text_set in sets:
                inputs = self._inputs(group, text_set)
                folder = group.system.translation(text_set.name)
                recover(folder, owned)
                if not self.options.force and _up_to_date(folder, inputs):
                    console.say(
                        f"'{group.name}' has translated {text_set.name} already: up to date"
                        " (--force repeats it)"
                    )
                    continue
                check_writable(group.system.path)
                with _loading():
                    scorer = scorer or self.scorer(group)
                    text = self.run.source(text_set.name), _boundaries(self.run, text_set)
                    scorer.check_demands(*text, *self._demand_files)
                self._translate_set(folder, text_set, scorer, inputs)

    def _inputs(self, group: SystemGroup, text_set: TextSet) -> TranslationInputs:
        """Return the files and settings that a translation depends on."""
        documents = documents_file(self.run.prep, text_set.name)
        return TranslationInputs(
            format=1,
            set=text_set.name,
            settings=group.settings.model_dump(),
            checkpoints=group.checkpoints(),
            source=SourceText(text_set.lines, files.sha256(self.run.source(text_set.name))),
            prep=self.run.manifest().fingerprint,
            prefix=_sha256(self.options.prefix),
            constraints=_sha256(self.options.constraints),
            metric=self.metric.depends_on(text_set.name, []) if self.metric else None,
            spans=list(map(files.sha256, spans_files(self.run.prep / text_set.name))) or None,
            docs=[files.sha256(documents)] if documents.is_file() else None,
        )

    def _translate_set(
        self, final: Path, text_set: TextSet, scorer: Scorer, inputs: TranslationInputs
    ) -> None:
        name = final.parents[1].name
        scorer.counts.clear()
        start = time.monotonic()
        with writing_folder(final, owned) as folder:
            bar = console.progress(f"{name}: {text_set.name}", text_set.lines)
            with bar as scorer.done, scorer.reading(self.readers):
                names = self._write(folder, text_set, scorer)
            seconds = time.monotonic() - start
            TranslationMeta(
                **dict(inputs),
                system=name,
                files={name: files.sha256(folder / name) for name in names},
                counts=scorer.counts,
                speed=speed(scorer.counts, seconds),
                hardware=self._hardware,
                version=nmtkit.__version__,
            ).write(folder / META)
        console.say(f"{final / HYPOTHESES}: {summary(scorer.counts, seconds)}")

    def _write(self, folder: Path, text_set: TextSet, scorer: Scorer) -> list[str]:
        """Write the translation of a set; return the names of its files."""
        names = [HYPOTHESES, SUBWORDS] + [NBEST] * (scorer.settings.nbest > 1)
        source, boundaries = self.run.source(text_set.name), _boundaries(self.run, text_set)
        demands = read_demands(*self._demand_files)
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(files.writing(folder / name)) for name in names]
            spans = load_spans(self.run.prep / text_set.name, text_set.lines)
            windows = scorer.windows(file_windows(source), boundaries, demands, spans)
            translated = scorer.translate_windows(windows)
            for number, translation in enumerate(itertools.chain.from_iterable(translated), 1):
                lines = [translation.text + "\n", " ".join(translation.subwords) + "\n"]
                if NBEST in names:
                    lines.append(nbest_line(number, translation))
                for stream, line in zip(streams, lines, strict=True):
                    stream.write(line)
        return names


def _sha256(path: Path | None) -> str | None:
    return None if path is None else files.sha256(path)


def _up_to_date(folder: Path, inputs: TranslationInputs) -> bool:
    """True if a translation was made from these inputs, and its files have not changed."""
    meta = load_or_warn(TranslationMeta, folder / META)
    if meta is None:
        return False
    made_from = load(TranslationInputs, folder / META)
    settings = complete(SearchSettings, made_from.settings)
    if made_from.model_copy(update={"settings": settings}) != inputs:
        if changed := differing([settings, inputs.settings]):
            earlier = ", ".join(f"search.{key}={settings[key]}" for key in changed)
            console.say(f"{folder}: replaces a translation with {earlier}")
        return False
    return not files.changed(folder, meta.files)
