"""The stage `translate`: a run's test sets into its folders, or a file or stdin to stdout."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import nmtkit
from nmtkit import console, files
from nmtkit.corpora.corpus import is_markup
from nmtkit.corpora.document_starts import MARKER_LINE
from nmtkit.data.documents import Documents, documents_file
from nmtkit.data.ragged import Ragged, ragged_files
from nmtkit.data.store import load_spans, spans_path
from nmtkit.errors import ConfigError, DataError, counted
from nmtkit.nn import hardware
from nmtkit.parallel import cores
from nmtkit.prep.check import first_odd_pair
from nmtkit.records import (
    SearchSpeed,
    SourceText,
    TextSet,
    TranslationInputs,
    TranslationMeta,
    load,
)
from nmtkit.run import Run, locked
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate import workers
from nmtkit.translate.chosen import Chosen, choose, overrides
from nmtkit.translate.options import TranslateOptions
from nmtkit.translate.scorer import Scorer
from nmtkit.translate.translator import Translation, Translator
from nmtkit.translate.windows import (
    STARTS,
    Starts,
    file_windows,
    has_marker,
    starts_after_blank,
    starts_at_marker,
    starts_everywhere,
    starts_of,
    starts_said,
    stream_windows,
    windows_for,
    with_markers,
    without_markers,
)

META, HYP, SUBWORDS, NBEST = "meta.json", "hyp.txt", "hyp.subwords.txt", "nbest.jsonl"


class Unavailable(DataError):
    """A system that another process is writing to, or whose model cannot be made."""


def translate(run: Run, **values: Any) -> None:
    """Translate test sets into systems/<name>/translate/<set>/, or a file or stdin to stdout.

    Args:
        run: the run.
        values: of `TranslateOptions`.
    Raises: ConfigError, DataError, CheckpointError as the parts say; EnvironmentProblem for an
        absent device.
    """
    options = TranslateOptions.of(values)
    source, force_target = options.source, options.force_target
    search = overrides(options)
    where = hardware.pick_device(options.device)
    run.manifest()
    to_stdout = source is not None or force_target is not None
    sets = (
        []
        if source is not None
        else [run.text_set(name) for name in options.set_names] or run.sets("test")
    )
    _check(run, source, sets, force_target, options.docs)
    starts = starts_said(source, options.docs)
    with (
        run.recorded("translate", device=str(where)) as record,
        locked(run.path, "translate", shared=True),
        workers.one_thread(where),
    ):
        groups = choose(run, options.systems, options.ensemble, search, single=to_stdout)
        record["systems"] = [group.name for group in groups]
        stage = _Stage(run, where, options.jobs or cores(), force_target is not None)
        if force_target is not None:
            stage.score(groups[0], source or sets[0], force_target, starts)
        elif source is not None:
            stage.print_translations(groups[0], source, starts)
        else:
            skipped = 0
            for group in groups:
                try:
                    stage.translate_sets(group, sets, options.force)
                except Unavailable as error:
                    skipped += 1
                    if options.systems or skipped == len(groups):
                        raise
                    console.warn(f"skipping '{group.name}': {error.message}")


def _check(
    run: Run, source: str | None, sets: list[TextSet], force_target: Path | None, docs: str | None
) -> None:
    """Refuse what cannot work before a model is loaded."""
    if (
        source == "-" and sys.stdin is None
    ):  # as Python has it where the process was started with file descriptor 0 closed
        raise DataError("stdin is closed", where="-", hint="pipe text into it, or name a file")
    if source is None and not sets:
        raise DataError(
            "this run has no test set",
            where=run.prep,
            hint="name a file (nmtkit translate FILE), or another set with --set-name",
        )
    for text_set in sets:
        text = run.source(text_set.name)
        if not text.is_file():
            raise ConfigError(
                f"the set '{text_set.name}' has no text to translate",
                where=text,
                hint="training text is not kept; name a file",
            )
    if force_target is not None:
        if source is None and len(sets) != 1:
            raise ConfigError(
                "which set are these the targets of?",
                where="--force-target",
                hint="name it with --set-name, or name the source file",
            )
        if source == "-":
            raise ConfigError(
                "--force-target needs a source that can be read twice",
                where="-",
                hint="put it into a file and name that",
            )
        files.check_file(force_target)
        _check_parallel(Path(source or run.source(sets[0].name)), force_target)
    elif source not in (None, "-"):
        if docs is None or docs in STARTS:  # as stdin can have them
            files.check_file(Path(str(source)), "pipe it to -: … | nmtkit translate -")
        for _ in file_windows(str(source)):
            pass


def _check_parallel(source: Path, target: Path) -> None:
    counts = [sum(map(len, file_windows(str(path)))) for path in (source, target)]
    if counts[0] != counts[1]:
        message = f"{target} has {counted(counts[1], 'line')} but {source} has {counts[0]:,}"
        where = first_odd_pair((source,), (target,)) if all(counts) else "--force-target"
        raise DataError(
            message, where=where, hint="--force-target wants one target line for each source line"
        )


class _Stage:
    """What the translations of one call share.

    Args:
        run: the run.
        device: where to compute.
        jobs: worker processes.
        forced: given targets are scored.
    """

    def __init__(self, run: Run, device: torch.device, jobs: int, forced: bool) -> None:
        self.run, self.device, self.forced = run, device, forced
        self.jobs = jobs if device.type == "cpu" else 1
        self._sides: tuple[TextSide, TextSide] | None = None
        self._hardware: dict[str, Any] = {}

    def translator(self, group: Chosen) -> Scorer:
        """Load what translates."""
        found = group.hardware(self.device, self.forced)
        before, self._hardware = self._hardware, {**found.values(), "jobs": self.jobs}
        if self._hardware != before:
            console.say(
                found.describe()
                + (
                    f"; up to {self.jobs} worker processes of one thread each"
                    if self.jobs > 1
                    else ""
                )
            )
        if self._sides is None:
            self._sides = TextSide.load(self.run.prep, "src"), TextSide.load(self.run.prep, "tgt")
        names = [f"{c.system}/{c.name}" for c in group.checkpoints()]
        try:
            models = group.load(self.device, found.precision)
        except (
            ConfigError
        ) as error:  # of a class outside nmtkit that is not to be found, or not as it was
            raise Unavailable(error.message, error.where, error.hint) from None
        translator = Scorer(
            models,
            *self._sides,
            *load_vocabularies(self.run.prep),
            group.settings,
            self.device,
            self.jobs,
        )
        console.say(f"loaded {', '.join(names)}{' (averaged)' if len(names) > len(models) else ''}")
        return translator

    def translate_sets(self, group: Chosen, sets: list[TextSet], force: bool) -> None:
        """Translate the sets that this system, or ensemble, lacks."""
        translator: Translator | None = None
        with contextlib.ExitStack() as held:
            for path in sorted(
                {self.run.system(group.name).path, *(s.path for s in group.systems)}
            ):
                try:
                    held.enter_context(locked(path, "translate"))
                except DataError as error:
                    raise Unavailable(error.message, error.where, error.hint) from None
            for text_set in sets:
                inputs = self._inputs(group, text_set)
                if not force and _up_to_date(group.translation(text_set.name), inputs):
                    console.say(
                        f"'{group.name}' has translated {text_set.name} already: up to date"
                        " (--force repeats it)"
                    )
                    continue
                translator = translator or self.translator(group)
                self._translate_set(group, text_set, translator, inputs)

    def _inputs(self, group: Chosen, text_set: TextSet) -> TranslationInputs:
        """All that the translation follows from."""
        beside = {
            "spans": ragged_files(spans_path(self.run.prep / text_set.name)),
            "docs": (documents_file(self.run.prep, text_set.name),),
        }
        return TranslationInputs(
            format=1,
            set=text_set.name,
            settings=group.settings.model_dump(),
            checkpoints=group.checkpoints(),
            source=SourceText(text_set.lines, files.sha256(self.run.source(text_set.name))),
            prep=self.run.manifest().fingerprint,
            **{
                kind: [files.sha256(path) for path in paths]
                for kind, paths in beside.items()
                if all(path.is_file() for path in paths)
            },
        )

    def _spans(self, text_set: TextSet) -> Ragged | None:
        """How prep cut the sources of a set into parts."""
        return load_spans(self.run.prep / text_set.name, text_set.lines)

    def _starts(self, text_set: TextSet) -> Starts:
        """Where prep found the documents of a set to start."""
        return starts_of(Documents.beside(self.run.prep, text_set.name, text_set.lines))

    def _translate_set(
        self, group: Chosen, text_set: TextSet, translator: Translator, inputs: TranslationInputs
    ) -> None:
        folder = group.translation(text_set.name)
        translator.counts.clear()
        start = time.monotonic()
        with contextlib.ExitStack() as open_files:
            (folder / META).unlink(missing_ok=True)  # from here on the folder is not up to date
            translator.done = open_files.enter_context(
                console.progress(f"{group.name}: {text_set.name}", text_set.lines)
            )
            hyp, subwords = (
                open_files.enter_context(files.writing(folder / name)) for name in (HYP, SUBWORDS)
            )
            nbest = (
                open_files.enter_context(files.writing(folder / NBEST))
                if group.settings.nbest > 1
                else None
            )
            number = 0
            known = self._spans(text_set)
            for window, of_window in windows_for(
                translator.context_rule,
                file_windows(str(self.run.source(text_set.name))),
                self._starts(text_set),
            ):
                spans = (
                    None
                    if known is None
                    else [known[number + i].tolist() for i in range(len(window))]
                )
                for translation in translator.translate_window(window, spans, of_window):
                    number += 1
                    hyp.write(translation.text + "\n")
                    subwords.write(" ".join(translation.subwords) + "\n")
                    if nbest is not None:
                        nbest.write(_nbest_line(number, translation))
        if nbest is None:
            (folder / NBEST).unlink(missing_ok=True)
        seconds = time.monotonic() - start
        names = [HYP, SUBWORDS] + ([NBEST] if nbest is not None else [])
        TranslationMeta(
            **dict(inputs),
            system=group.name,
            files={name: files.sha256(folder / name) for name in names},
            counts=translator.counts,
            speed=_speed(translator.counts, seconds),
            hardware=self._hardware,
            version=nmtkit.__version__,
        ).write(folder / META)
        console.say(f"{folder / HYP}: {_summary(translator.counts, seconds)}")

    def print_translations(self, group: Chosen, source: str, starts: Starts | None) -> None:
        """Translate a file or stdin to stdout, a window at a time."""
        translator = self.translator(group)
        starts = _of_outside(group, translator, source, starts)
        start = time.monotonic()
        number = 0
        marked = False
        with self._progress(group, source) as translator.done:
            windows = stream_windows(sys.stdin.buffer) if source == "-" else file_windows(source)
            for window, documents in windows_for(translator.context_rule, windows, starts):
                translations = translator.translate_window(
                    without_markers(window, starts), documents=documents
                )
                if group.settings.nbest > 1:
                    lines = [
                        _nbest_line(i, translation)
                        for i, translation in enumerate(translations, number + 1)
                    ]
                else:
                    lines = [
                        text + "\n"
                        for text in with_markers(
                            [translation.text for translation in translations], window, starts
                        )
                    ]
                number += len(window)
                marked = marked or (starts in UNLIKELY and has_marker(window))
                sys.stdout.write("".join(lines))
                sys.stdout.flush()
        if number and starts in UNLIKELY and marked != (starts is starts_at_marker):
            console.warn(UNLIKELY[starts])
        console.say(_summary(translator.counts, time.monotonic() - start))

    def score(
        self, group: Chosen, source: str | TextSet, target: Path, starts: Starts | None
    ) -> None:
        """Print the log-probabilities of given target lines, of a file or a set of the run, as
        JSON lines.
        """
        translator = self.translator(group)
        starts = (
            self._starts(source)
            if isinstance(source, TextSet)
            else _of_outside(group, translator, source, starts)
        )
        text = str(self.run.source(source.name)) if isinstance(source, TextSet) else source
        start = time.monotonic()
        targets = (line for window in file_windows(str(target)) for line in window)
        number = 0
        with self._progress(group, text) as translator.done:
            for window, documents in windows_for(
                translator.context_rule, file_windows(text), starts
            ):
                given = without_markers(list(itertools.islice(targets, len(window))), starts)
                for line in translator.force(without_markers(window, starts), given, documents):
                    number += 1
                    record = {
                        "line": number,
                        "log_prob": line.log_prob,
                        "tokens": line.tokens,
                        "log_probs": line.log_probs,
                    }
                    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
        sys.stdout.flush()
        console.say(_summary(translator.counts, time.monotonic() - start))

    def _progress(
        self, group: Chosen, source: str
    ) -> contextlib.AbstractContextManager[Callable[[float], None]]:
        if source == "-" or sys.stdout.isatty():
            return contextlib.nullcontext(lambda amount: None)
        return console.progress(group.name, files.count_lines(Path(source)))


UNLIKELY = {
    starts_at_marker: (
        "no line was <d>, so that all was one document (--docs blank: blank lines separate"
        " documents)"
    ),
    starts_after_blank: (
        "lines <d> were translated as sentences (--docs marker: they start documents)"
    ),
}
"""What is wrong where --docs says one way, and the text has the other's marks, or none of its
own.
"""


def _of_outside(
    group: Chosen, translator: Translator, source: str, starts: Starts | None
) -> Starts:
    """Where documents start in a text from outside, `source` (a file, or -), by what --docs
    says.
    """
    if starts is not None and translator.context_rule is None:
        raise ConfigError(
            f"'{group.name}' reads no context, so documents make no difference",
            where="--docs",
            hint="leave it out",
        )
    if starts is None and translator.context_rule is not None:
        console.say(
            "every line is a document of its own (--docs blank: blank lines separate documents;"
            " --docs marker: lines <d> start them)"
        )
    if (
        starts is starts_at_marker
        and source != "-"
        and not has_marker(files.text_lines(Path(source)))
    ):
        hint = "--docs blank if blank lines separate documents; without --docs every line is one"
        raise DataError(
            "no line of it is <d>, so that all would be one document", where=source, hint=hint
        )
    if starts is None and source != "-":
        if next(files.byte_lines(Path(source)), b"").strip() == MARKER_LINE:
            console.warn(
                f"{source} begins with <d>, which is translated as a sentence (--docs marker, with"
                " a system that reads context)"
            )
        elif is_markup(Path(source)):
            console.warn(
                f"{source} is SGM or XML: its lines are translated with their tags (nmtkit prep"
                " --test reads such files)"
            )
    return starts or starts_everywhere


def _up_to_date(folder: Path, inputs: TranslationInputs) -> bool:
    """Return True if the translation is up to date: it has these inputs, and its files have not
    changed.
    """
    try:
        outputs = load(TranslationMeta, folder / META).files
    except DataError:
        return False
    return load(TranslationInputs, folder / META) == inputs and not files.changed(folder, outputs)


def _nbest_line(number: int, translation: Translation) -> str:
    return (
        json.dumps(
            {"line": number, "nbest": [asdict(candidate) for candidate in translation.candidates]},
            ensure_ascii=False,
        )
        + "\n"
    )


def _speed(counts: Counter[str], seconds: float) -> SearchSpeed:
    seconds = max(seconds, 1e-9)
    return SearchSpeed(
        round(seconds, 3),
        round(counts["lines"] / seconds, 2),
        round(counts["tgt_tokens"] / seconds, 1),
    )


def _summary(counts: Counter[str], seconds: float) -> str:
    """The counts as people read them; only what happened."""
    speed = _speed(counts, seconds)
    rate = speed.sentences_per_second
    said = [
        f"{counted(counts['lines'], 'line')} in {console.duration(seconds)}"
        f" ({rate:,.{0 if rate >= 10 else 1}f} sentences/s)"
    ]
    phrases = {
        "empty": "blank, kept blank",
        "over_long": (
            f"over-long, in {counts['pieces']:,} pieces"
            if counts["pieces"]
            else "over-long, not cut"
        ),
        "unfinished": "cut at the length limit",
        "no_output": "translated as nothing",
        "unknown": "unknown source subwords",
        "unknown_target": "unknown target subwords",
        "no_spans": "read without a parse",
        "no_context": "without context",
    }
    return ", ".join(
        said + [f"{counts[key]:,} {phrase}" for key, phrase in phrases.items() if counts[key]]
    )
