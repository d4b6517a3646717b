"""The translations of a run: which systems have translated which sets, and what makes a comparison
of their translations unfair.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmtkit import console, files
from nmtkit.arrays import Array
from nmtkit.data.store import Store
from nmtkit.errors import DataError, check_known, counted
from nmtkit.models import checkpoints
from nmtkit.records import TextSet, TranslationMeta, load
from nmtkit.run import Run, translate_command
from nmtkit.score.evaluate import Output
from nmtkit.score.metrics import Metric, Scorer
from nmtkit.settings import SearchSettings, complete
from nmtkit.text.side import TextSide

NOT_THE_SEARCH = ("batch_size", "nbest")
"""Settings of a search that do not change the best translation."""
FORCED = ("prefix", "constraints", "metric")
"""Options that change the translation. Their SHA-256 is recorded."""
DISTANCE = "updates between averaged checkpoints"
"""A difference of searches that no setting of a search changes."""


def sets_to_score(run: Run, set_names: Sequence[str]) -> list[TextSet]:
    """Return the named sets, or every test set that some system has translated.

    Raises: DataError, with the next command, if there is none.
    """
    if set_names:
        named = {text_set.name: text_set for text_set in map(run.text_set, set_names)}
        for name in named:
            run.check_text(name)
        return list(named.values())
    tests = run.sets("test")
    if not tests:
        raise run.no_test_set("name another set with --on, or a file with --hyp and --ref")
    translated = [text_set for text_set in tests if _folders(run, text_set.name)]
    if not translated:
        raise _nothing(run, "no test set of this run is translated", "nmtkit translate")
    return translated


def _nothing(run: Run, reason: str, hint: str) -> DataError:
    if not run.systems():
        return DataError(
            "nothing to score: this run has no trained system",
            where=run.path,
            hint=f"nmtkit train{run.needed_option}, then nmtkit translate",
        )
    hint += run.needed_option
    return DataError(f"nothing to score: {reason}", where=run.path / "systems", hint=hint)


def _folders(run: Run, set_name: str) -> dict[str, Path]:
    """Return the translation folders of a set by system: first the trained systems, oldest first;
    then ensembles and outside translations, by name.
    """
    paths = run.with_file(f"translate/{set_name}/hyp.txt")
    folders = {name: path.parent for name, path in paths.items()}
    trained = [name for name in run.system_names() if name in folders]
    return {name: folders[name] for name in (*trained, *sorted(folders.keys() - set(trained)))}


def current_translations(run: Run, set_name: str) -> dict[str, Path]:
    """Return the translation folders of a set by system, as `_folders`, without translations of an
    earlier source: the set may have been prepared again, with as many lines.
    """
    run.check_text(set_name)
    source = files.sha256(run.source(set_name))
    return {
        name: folder
        for name, folder in _folders(run, set_name).items()
        if (translated := described(folder).source) is None or translated.sha256 == source
    }


def translated_systems(
    run: Run,
    text_set: TextSet,
    systems: Sequence[str],
    against: str | None = None,
    among: Sequence[str] = (),
) -> dict[str, Path]:
    """Return the translation folders of the systems to compare, with the baseline.

    Args:
        run: the run; text_set: the set.
        systems: compare these systems and the baseline: `against`, or the first system that has
            translated the set. Empty: compare all systems.
        among: without `systems`, compare only those of these systems that have translated the set.
            Empty: all.
    Raises: DataError if a named system has not translated the set, ConfigError if it does not
        exist.
    """
    set_name = text_set.name
    translated, current = _folders(run, set_name), current_translations(run, set_name)
    names = among or dict.fromkeys([*translated, *run.system_names()])
    folders = {name: current[name] for name in names if name in current}
    lacking = {
        name: f"the translation by '{name}' is of an earlier {set_name} set"
        if name in translated
        else f"'{name}' has no translation of {set_name}"
        for name in names
        if name not in current
    }

    def again(name: str) -> str:
        if "+" not in name and name not in run.system_names():  # made elsewhere
            return f"write it to {run.system(name).translation(set_name) / 'hyp.txt'}"
        return translate_command(name, set_name) + run.needed_option

    for name in [*systems, *filter(None, [against])]:
        if name not in translated and run.may_have_translations(name):
            lacking.setdefault(name, f"'{name}' has no translation of {set_name}")
        if name in lacking:
            raise DataError(lacking[name], where=run.system(name).path, hint=again(name))
        message, where = f"this run has no system '{name}'", run.path / "systems"
        check_known(name, {*folders, *lacking}, message, where, run.train_first)
    if not systems:
        for name, reason in lacking.items():
            console.warn(f"{set_name}: {reason}, so it is left out ({again(name)})")
    if not folders:
        hint = translate_command(among[0], set_name) if among else ""
        hint = hint or f"nmtkit translate --on {set_name}"
        who = f"none of {', '.join(among)}" if among else "no system of this run"
        raise _nothing(run, f"{who} has translated {set_name}", hint)
    if systems:
        shown = {*systems, against or next(iter(folders))}
        folders = {name: folder for name, folder in folders.items() if name in shown}
    for name, remark in older_checkpoints(run, set_name, folders).items():
        console.warn(f"{remark} ({again(name)})")
    if unlike := unlike_searches(set_name, folders):
        commands = (command + run.needed_option for command in unlike.commands)
        console.warn(f"{unlike.text}; alike after: {', then '.join(commands)}")
    return folders


def older_checkpoints(run: Run, set_name: str, folders: Mapping[str, Path]) -> dict[str, str]:
    """Return a remark on each system whose weights have changed since it translated the set."""
    return {
        name: f"{set_name}: '{name}' was translated with"
        f" {', '.join(used.name for used in meta.checkpoints)}, and its weights have changed since"
        for name, folder in folders.items()
        if checkpoints.outdated(run, meta := described(folder))
    }


def source_lengths(run: Run, text_set: TextSet) -> Array:
    """Return the (N) source lengths of a set in subwords, without </s>.

    Raises: DataError if the store and the text have different numbers of sentences.
    """
    lengths = np.asarray(Store(run.prep / text_set.name).src_lengths - 1)
    if len(lengths) != text_set.lines:
        raise DataError(
            f"{text_set.name}: {counted(text_set.lines, 'line')} of text,"
            f" {counted(len(lengths), 'prepared pair')}",
            where=run.prep,
            hint="nmtkit prep --force",
        )
    return lengths


def read_output(run: Run, side: TextSide, text_set: TextSet, name: str, folder: Path) -> Output:
    """Return a system's output of a set as text and as tokens. The tokens are the model's, with BPE
    joined and truecasing undone.

    Raises: DataError unless each file has one line per line of the set.
    """
    hint = f"{translate_command(name, text_set.name)} --force{run.needed_option}"
    lines = lines_of(folder / "hyp.txt", text_set.lines, hint)
    subwords = folder / "hyp.subwords.txt"
    if not subwords.is_file():
        return Output(name, lines, [side.cased(line) for line in lines])
    tokens = lines_of(subwords, text_set.lines, hint)
    cased = [side.cased_surface(line.split(" ")) if line else "" for line in tokens]
    return Output(name, lines, cased)


def lines_of(path: Path, count: int, hint: str) -> list[str]:
    """Return the lines of a file of a run.

    Raises: DataError with the hint unless it can be read and has `count` lines.
    """
    try:
        lines = list(files.text_lines(path))
    except DataError as error:  # its own hint is about a file that the user has named
        raise DataError(error.message, where=error.where or path, hint=hint) from error
    if len(lines) != count:
        message = f"{counted(len(lines), 'line')} for {counted(count, 'sentence')}"
        raise DataError(message, where=path, hint=hint)
    return lines


def scorer_of(run: Run, set_name: str, side: TextSide | None = None) -> Scorer:
    """Return the metrics against the references of a set of a run.

    Args:
        side: the target side, for metrics of tokens.
    Raises: DataError unless each reference has one line per line of the set.
    """
    manifest, count = run.manifest(), run.text_set(set_name).lines
    refs = [lines_of(path, count, "nmtkit prep --force") for path in run.references(set_name)]
    settings = manifest.settings
    tokenized = settings.tgt_tokenizer == "none"
    return Scorer(refs, manifest.tgt, settings.lowercase, side, tokenized)


def bleu_of(run: Run, text_set: TextSet, folders: Mapping[str, Path]) -> dict[str, Metric]:
    """Return BLEU of each system on a set, computed as `nmtkit score` computes it."""
    scorer = scorer_of(run, text_set.name)
    return {
        name: scorer.score("bleu", list(files.text_lines(path / "hyp.txt")))
        for name, path in folders.items()
    }


def cautions_on(run: Run, text_set: TextSet, folders: Mapping[str, Path]) -> list[str]:
    """Return what every reader of the scores of a set should know about its translations.

    Args:
        folders: the translations' folders by system.
    Raises: DataError for a damaged meta.json.
    """
    manifest, name = run.manifest(), text_set.name
    texts = without_parses(name, folders)
    if unlike := unlike_searches(name, folders):
        texts.append(unlike.text)
    texts += [
        f"{name}: {system} read it without context, since the set has no document starts"
        for system, folder in folders.items()
        if text_set.documents is None and described(folder).counts.get("no_context")
    ]
    if text_set.split == "dev":
        texts.append(f"{name}: the development set, on which checkpoints were chosen")
    if manifest.repeats and manifest.settings.drop_overlap == "none":
        texts += [
            f"{name}: {text.exact:,} of {text_set.lines:,} pairs were in the training text before"
            " cleaning"
            for text in manifest.repeats.overlap
            if text.name == name and text.exact
        ]
    return texts


def without_parses(set_name: str, folders: Mapping[str, Path]) -> list[str]:
    """Return a remark on each system that was trained with parses and read sentences without them.

    Args:
        folders: the translations' folders by system.
    Raises: DataError for a damaged meta.json.
    """
    counts = {name: described(folder).counts.get("no_spans", 0) for name, folder in folders.items()}
    return [
        f"{set_name}: {name} read {counted(count, 'sentence')} without a parse, as n-grams"
        for name, count in counts.items()
        if count
    ]


def described(translation: Path) -> TranslationMeta:
    """Return a translation's meta.json; an empty record if the translation is not of nmtkit.

    Raises: DataError if meta.json is damaged.
    """
    path = translation / "meta.json"
    return load(TranslationMeta, path) if path.is_file() else TranslationMeta(format=1)


class Unlike(NamedTuple):
    """How the searches of a set's translations differ, as a sentence, and the commands after which
    they are alike.
    """

    text: str
    commands: list[str]


def unlike_searches(set_name: str, folders: Mapping[str, Path]) -> Unlike | None:
    """Return how the searches of a set's translations differ; None if they are alike.

    Args:
        folders: the translations' folders by system.
    Raises: DataError for a damaged meta.json.
    """
    values: dict[str, dict[Any, list[str]]] = {}  # systems by setting and its value
    singles: list[str] = []
    ensembles: list[list[str]] = []
    for name, folder in folders.items():
        meta = described(folder)
        averaged = Counter(checkpoint.system for checkpoint in meta.checkpoints)
        if len(averaged) > 1:
            ensembles.append(list(averaged))
        elif (folder / "meta.json").is_file():
            singles += list(averaged) or [name]
        for key, value in _search(meta, averaged).items():
            values.setdefault(key, {}).setdefault(value, []).append(name)
    differences, settings = [], ""
    for key, systems in values.items():
        if len(systems) > 1:
            parts = [f"{value}: {', '.join(names)}" for value, names in systems.items()]
            differences.append(f"{key} ({'; '.join(parts)})")
            settings += f" --set {key}=…" if key.startswith("search.") else ""
    if not differences:
        return None
    if len(values.get(DISTANCE, ())) > 1 and "search.average" not in settings:
        settings += " --set search.average=1"  # the kept checkpoints stay as far apart
    commands = []
    for kind, names in (("", singles), *((" --ensemble", members) for members in ensembles)):
        if names:
            which = kind + "".join(f" --system {name}" for name in names)
            commands.append(f"nmtkit translate{which} --force --on {set_name}{settings}")
    text = f"{set_name}: not all systems were searched with the same {', '.join(differences)}"
    return Unlike(text, commands)


def _search(meta: TranslationMeta, averaged: Counter[str]) -> files.JsonObject:
    """Return the settings and options of a search that change the translation.

    Args:
        averaged: the number of averaged checkpoints by system.
    """
    settings = complete(SearchSettings, meta.settings) if meta.settings else {}
    settings["precision"] = meta.hardware.get("precision")
    if averaged and "average" in settings:
        settings["average"] = max(averaged.values())  # fewer than asked for if fewer were kept
    options = {f"--{key}": (getattr(meta, key) or "none")[:8] for key in FORCED if meta.settings}
    names = [re.fullmatch(r"step-(\d{1,18})", checkpoint.name) for checkpoint in meta.checkpoints]
    steps = [int(match[1]) for match in names if match]
    if len(averaged) == 1 and len(steps) > 1:
        options[DISTANCE] = str(steps[1] - steps[0])
    return options | {
        f"search.{key}": value
        for key, value in settings.items()
        if value is not None and key not in NOT_THE_SEARCH
    }
