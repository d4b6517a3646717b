"""The translations of a run: which sets have some, of which systems, and whether they may be
compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nmtkit import console, files
from nmtkit.errors import ConfigError, DataError, nearest
from nmtkit.models import checkpoints
from nmtkit.records import TextSet, TranslationMeta, load
from nmtkit.run import Run
from nmtkit.score.evaluate import Output
from nmtkit.score.formulas import Array
from nmtkit.score.metrics import Metric, Scorer

if TYPE_CHECKING:
    from nmtkit.text.side import TextSide

NOT_THE_SEARCH = ("batch_size", "nbest")
"""Settings of a search that the best translation does not depend on."""


def sets_to_score(run: Run, set_names: Sequence[str]) -> list[TextSet]:
    """The named sets, or every test set that some system translated.

    Raises: DataError naming the command that is missing.
    """
    if set_names:
        return list({one.name: one for one in map(run.text_set, set_names)}.values())
    chosen = [s for s in run.sets("test") if _by_system(run, s.name)]
    if not chosen:
        raise _nothing(run, "no test set of this run is translated")
    return chosen


def _nothing(run: Run, what: str, set_name: str | None = None) -> DataError:
    command = "nmtkit translate" + (f" --set-name {set_name}" if set_name else "")
    if not run.systems():
        return DataError(
            "nothing to score: this run has no trained system",
            where=run.path,
            hint="nmtkit train, then nmtkit translate",
        )
    return DataError(f"nothing to score: {what}", where=run.path / "systems", hint=f"{command}")


def _by_system(run: Run, set_name: str) -> dict[str, Path]:
    """The translation folders of a set by system: trained systems oldest first, then ensembles
    and outside ones by name.
    """
    order = [s.name for s in run.systems()]
    found = {
        p.parents[2].name: p.parent
        for p in sorted((run.path / "systems").glob(f"*/translate/{set_name}/hyp.txt"))
    }
    return {
        name: found[name]
        for name in sorted(found, key=lambda n: (order.index(n) if n in order else len(order), n))
    }


def translated_systems(
    run: Run, chosen: TextSet, systems: Sequence[str], against: str | None = None
) -> dict[str, Path]:
    """The translation folders of a set to look at, baseline among them.

    Args:
        run: the run; chosen: the set.
        systems: only these; the baseline `against` is added.
    Raises: DataError if one of them is not translated, ConfigError if it does not exist.
    """
    found = _by_system(run, chosen.name)
    wanted = [*systems, *([against] if against else [])]
    known = {s.name for s in run.systems()} | set(found)
    for name in [name for name, path in found.items() if not _is_of_this_text(run, chosen, path)]:
        what, hint = (
            f"the translation by '{name}' is of an earlier {chosen.name} set",
            f"nmtkit translate --system {name} --set-name {chosen.name}",
        )
        if name in wanted:
            raise DataError(what, where=found[name], hint=f"translate again: {hint}")
        if not systems:
            console.warn(f"{chosen.name}: {what} and left out ({hint})")
        known.discard(name)
        del found[name]
    for name in wanted:
        if name not in known:
            hint = nearest(name, known) if known else "first: nmtkit train"
            raise ConfigError(
                f"this run has no system '{name}'", where=run.path / "systems", hint=hint
            )
        if name not in found:
            hint = f"nmtkit translate --system {name} --set-name {chosen.name}"
            raise DataError(
                f"'{name}' has no translation of {chosen.name}",
                where=run.system(name).path,
                hint=hint,
            )
    if not found:
        raise _nothing(run, f"no system of this run has translated {chosen.name}", chosen.name)
    for name in (system.name for system in run.systems() if system.name in known - set(found)):
        if not systems:
            hint = f"nmtkit translate --system {name} --set-name {chosen.name}"
            console.say(f"{chosen.name}: '{name}' is left out, it has no translation yet ({hint})")
    kept = {name: path for name, path in found.items() if not systems or name in wanted}
    for name, path in kept.items():
        _warn_if_trained_on(run, chosen, name, path)
    if unlike := unlike_searches(chosen.name, kept):
        console.warn(f"{unlike.text}; alike after: {', then '.join(unlike.commands)}")
    return kept


def compared(run: Run, chosen: TextSet, systems: Sequence[str]) -> dict[str, Path]:
    """The translation folders of those of some systems that have translated a set, in their order:
    the first is the baseline.

    Raises: as `translated_systems`; DataError if none of them has.
    """
    translated = translated_systems(run, chosen, [])
    found = {name: translated[name] for name in systems if name in translated}
    if not found:
        raise DataError(
            f"none of {', '.join(systems)} has a translation of {chosen.name}",
            where=run.path,
            hint="nmtkit translate",
        )
    return found


def read_references(run: Run, text_set: TextSet) -> list[list[str]]:
    """Return the references of a set.

    Raises: DataError if a file has another number of lines than the set.
    """
    paths = run.references(text_set.name)
    refs = [list(files.text_lines(path)) for path in paths]
    for path, ref in zip(paths, refs, strict=True):
        if len(ref) != text_set.lines:
            raise DataError(
                f"{text_set.name}: {len(ref):,} lines in a reference of {text_set.lines:,}",
                where=path,
                hint="nmtkit prep --force",
            )
    return refs


def source_lengths(run: Run, text_set: TextSet) -> Array:
    """Return (N) source lengths of a set in subwords, without </s>.

    Raises: DataError if the store and the text do not belong together.
    """
    from nmtkit.data.store import Store

    lengths = np.asarray(Store(run.prep / text_set.name).src_lengths - 1)
    if len(lengths) != text_set.lines:
        raise DataError(
            f"{text_set.name}: {text_set.lines:,} lines of text, {len(lengths):,} prepared pairs",
            where=run.prep,
            hint="nmtkit prep --force",
        )
    return lengths


def read_output(side: TextSide, text_set: TextSet, name: str, folder: Path) -> Output:
    """Return a system's output of a set, as text and as tokens: those the model wrote, with BPE
    joined and truecasing undone.

    Raises: DataError if a file has another number of lines than the set.
    """
    lines = list(files.text_lines(folder / "hyp.txt"))
    hint = f"nmtkit translate --system {name} --set-name {text_set.name} --force"
    if len(lines) != text_set.lines:
        raise DataError(
            f"{name}: {len(lines):,} translations of {text_set.lines:,} sentences",
            where=folder / "hyp.txt",
            hint=hint,
        )
    subwords = folder / "hyp.subwords.txt"
    if not subwords.is_file():
        return Output(name, lines, [side.cased(line) for line in lines])
    tokens = [
        side.cased_surface(line.split(" ")) if line else "" for line in files.text_lines(subwords)
    ]
    if len(tokens) != len(lines):
        raise DataError(
            f"{name}: {len(tokens):,} lines of subwords for {len(lines):,} translations",
            where=subwords,
            hint=hint,
        )
    return Output(name, lines, tokens)


def scorer_of(run: Run, set_name: str) -> Scorer:
    """Return the metrics against the references of a set of a run."""
    manifest = run.manifest()
    refs = read_references(run, run.text_set(set_name))
    return Scorer(refs, manifest.tgt, manifest.settings.lowercase)


def bleu_of(run: Run, chosen: TextSet, folders: Mapping[str, Path]) -> dict[str, Metric]:
    """Return BLEU of the translations of a set by system, as the run's corpus is scored."""
    scorer = scorer_of(run, chosen.name)
    return {
        name: scorer.score("bleu", list(files.text_lines(path / "hyp.txt")))
        for name, path in folders.items()
    }


def described(translation: Path) -> TranslationMeta:
    """Return what `translate` wrote beside a translation; empty for one that was made otherwise.

    Raises: DataError if it is damaged.
    """
    path = translation / "meta.json"
    return load(TranslationMeta, path) if path.is_file() else TranslationMeta(format=1)


def _is_of_this_text(run: Run, chosen: TextSet, translation: Path) -> bool:
    """Whether the set still has the source that was translated (it may have been prepared anew,
    with as many lines).
    """
    source = described(translation).source
    return source is None or source.sha256 == files.sha256(run.source(chosen.name))


def _warn_if_trained_on(run: Run, chosen: TextSet, name: str, translation: Path) -> None:
    """Warn if the weights of a system are by now those of other checkpoints than it translated
    with.
    """
    meta = described(translation)
    then = [one.name for one in meta.checkpoints if one.system == name]  # of an ensemble none
    now = list(checkpoints.current(run.system(name), meta.settings.get("average")))
    if then and now and then != now:
        hint = f"nmtkit translate --system {name} --set-name {chosen.name}"
        console.warn(
            f"{chosen.name}: '{name}' was translated with {', '.join(then)}, its weights are now"
            f" those of {', '.join(now)} ({hint})"
        )


class Unlike(NamedTuple):
    """In what the searches of a set's translations were not alike, as a sentence, and the
    commands that make them alike.
    """

    text: str
    commands: list[str]


def unlike_searches(set_name: str, found: dict[str, Path]) -> Unlike | None:
    """Whether the searches of a set's translations were alike (None), or in what they were not.

    Args:
        found: the translation folders by system.
    Raises: DataError for a damaged meta.json.
    """
    values: dict[str, dict[Any, list[str]]] = {}
    members: dict[str, list[str]] = {}  # those of an ensemble are several
    for name, path in found.items():
        meta = described(path)
        used = {**meta.settings, "precision": meta.precision}
        averaged = Counter(one.system for one in meta.checkpoints)
        if averaged and "average" in used:
            used["average"] = max(averaged.values())  # fewer than asked for where fewer were kept
        if (path / "meta.json").is_file():
            members[name] = list(averaged) or [name]
        for key, value in used.items():
            if value is not None and key not in NOT_THE_SEARCH:
                values.setdefault(key, {}).setdefault(value, []).append(name)
    unlike = {key: systems for key, systems in values.items() if len(systems) > 1}
    if not unlike:
        return None
    told = [
        f"search.{key}"
        f" ({'; '.join(f'{value}: ' + ', '.join(names) for value, names in systems.items())})"
        for key, systems in unlike.items()
    ]
    single = [name for own in members.values() if len(own) == 1 for name in own]
    ensembles = [own for own in members.values() if len(own) > 1]
    options = [f"--force --set-name {set_name}", *(f"--set search.{key}=…" for key in unlike)]
    commands = [
        " ".join([f"nmtkit translate{kind}", *(f"--system {name}" for name in names), *options])
        for kind, names in (("", single), *((" --ensemble", own) for own in ensembles))
        if names
    ]
    return Unlike(
        f"{set_name}: not all systems were searched with the same {', '.join(told)}", commands
    )
