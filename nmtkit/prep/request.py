"""What prep is asked to prepare: own files, a generated corpus or a published one, with the
settings it asks for.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nmtkit import files, settings
from nmtkit.corpora import generated, published, table
from nmtkit.corpora.corpus import (
    Corpus,
    SetFiles,
    language_doubts,
    own_files,
    own_tests,
    suffix_doubts,
    with_parses,
)
from nmtkit.corpora.document_starts import (
    BLANK,
    MARKER,
    MARKER_LINE,
    document_doubts,
    with_documents,
    with_markup,
)
from nmtkit.corpora.table import Dataset
from nmtkit.errors import ConfigError, nearest
from nmtkit.options import flag
from nmtkit.prep.options import PrepOptions
from nmtkit.prep.parsers import PARSERS
from nmtkit.prep.shorten import with_first
from nmtkit.settings import PrepSettings

FEW, MANY = "small", "base"
"""Presets of own files, by their training pairs."""
MANY_PAIRS = 500_000
"""From here on they are many."""


@dataclass(frozen=True)
class Request:
    """What to prepare.

    `identity` says what the text is, given the files read the last time and the settings, so that
    equal requests give equal corpora. `find` finds or downloads the files; what it returns makes
    them readable, in a folder beside the one in the making.
    """

    name: str
    preset: str
    identity: Callable[[dict[str, Any], PrepSettings], dict[str, Any]]
    find: Callable[[PrepSettings], Callable[[Path], Corpus]]
    weak: dict[str, Any] = field(default_factory=dict)
    """Settings that a preset overrides."""
    strong: dict[str, Any] = field(default_factory=dict)
    """Settings that override those of the preset."""
    own: list[SetFiles] = field(default_factory=list)
    """Sets of the person's own files, which can be checked before anything is found or written;
    without parses, but where all are own.
    """
    all_own: bool = False
    """Whether there are no others."""
    doubts: list[str] = field(default_factory=list)
    """What may not be meant, a line each."""
    note: str = ""
    """What was chosen for the person, and why."""

    def settings(self, config: Path | None, assignments: list[str]) -> PrepSettings:
        """The settings of prep, weakest first: default, data set, preset, data set with this
        preset, file, --set.

        Raises: ConfigError for a setting that isn't one, or not one of prep.
        """
        given = settings.parse_set(assignments)
        for section, values in given.items():
            if section != "prep":
                hint = "give it to the stage it is for (train, translate)"
                raise ConfigError(
                    f"prep doesn't read {section}.{next(iter(values))}", where="--set", hint=hint
                )
        from_file = settings.load_config(config) if config else {}
        layers = [
            {"prep": self.weak},
            settings.load_preset(self.preset),
            {"prep": self.strong},
            from_file,
            given,
        ]
        return settings.build(PrepSettings, settings.merge(*layers).get("prep", {}), "prep")


def refuse_ignored(what: str, options: PrepOptions, *names: str) -> None:
    """Refuse options that would have no effect, if they differ from their defaults.

    Raises: ConfigError naming the first.
    """
    uses = {"from_dir": "data sets that are downloaded", "seed": "generated corpora such as demo"}
    for name in names:
        if getattr(options, name) != PrepOptions.model_fields[name].default:
            raise ConfigError(
                f"{what}: {flag(name)} has no effect",
                where=flag(name),
                hint=f"leave it out; it is for {uses[name]}",
            )


def own_request(
    options: PrepOptions, documents: Mapping[str, str], parses: Mapping[str, Path]
) -> Request:
    """Return a request for own files.

    Args:
        options: of the command.
        documents, parses: its --docs and --parses, by set.
    Raises: ConfigError if files or languages are missing, the name is that of a data set, or an
        option means nothing for own files; DataError if no preset is named and the training text
        can't be read.
    """
    name, preset = options.dataset, options.preset
    if name in table.registered():
        hint = (
            "for own files take another name; for the data set leave them out (--test adds test"
            " sets of yours to its own)"
        )
        raise ConfigError(f"'{name}' is a registered data set", where="--train, --dev", hint=hint)
    corpus = with_documents(
        with_markup(
            own_files(
                name,
                options.train,
                options.dev,
                options.test,
                options.src,
                options.tgt,
                preset or MANY,
            )
        ),
        documents,
    )
    corpus = with_first(with_parses(corpus, parses), options.size)
    refuse_ignored("own files are taken as they are", options, "from_dir", "seed")
    note = ""
    if preset is None:
        few = _pairs(corpus.sets[0], MANY_PAIRS) < MANY_PAIRS
        corpus = replace(corpus, preset=FEW if few else MANY)
        why = (
            f"fewer than {MANY_PAIRS:,} training pairs"
            if few
            else f"{MANY_PAIRS:,} training pairs or more"
        )
        note = f"preset {corpus.preset}, for {why}; another one: --preset NAME"

    def identity(known: dict[str, Any], chosen: PrepSettings) -> dict[str, Any]:
        same = {"dataset": corpus.name, "src": corpus.src, "tgt": corpus.tgt}
        return _without_choice(
            "own files",
            chosen,
            same | _own_identity(corpus.sets, known) | _size_identity(options.size),
        )

    said: dict[str, Any] = {
        "doubts": language_doubts(corpus) + document_doubts(corpus),
        "note": note,
    }
    return Request(
        corpus.name,
        corpus.preset,
        identity,
        lambda chosen: lambda folder: corpus,
        own=corpus.sets,
        all_own=True,
        **said,
    )


def _pairs(train: SetFiles, most: int) -> int:
    """How many pairs a training text of own files has, counted up to `most`: no more of it is
    read.
    """
    lines = itertools.chain.from_iterable(map(files.byte_lines, train.src))
    is_pair = {
        BLANK: bytes.strip,
        MARKER: lambda line: line.strip() != MARKER_LINE,
        "markup": lambda line: b"<seg" in line.lower(),
    }
    pairs = filter(is_pair[train.between], lines) if train.between else lines
    return sum(1 for _ in itertools.islice(pairs, min(most, train.first or most)))


def _own_identity(sets: list[SetFiles], known: dict[str, Any]) -> dict[str, Any]:
    """Sets of own files as part of what a corpus is; nothing where there are none."""
    return {"sets": [_set_identity(one, known) for one in sets]} if sets else {}


def _set_identity(one: SetFiles, known: dict[str, Any]) -> dict[str, Any]:
    """What a set of own files is; DataError for a file that can't be read."""
    documents = one.between or (_known_sha256(one.docs, known) if one.docs else None)
    sides = {
        side: [_known_sha256(path, known) for path in paths] for side, paths in one.sides().items()
    }
    return {"name": one.name, "split": one.split, **sides} | (
        {"docs": documents} if documents else {}
    )


def _size_identity(size: int | None) -> dict[str, Any]:
    """How many pairs are taken, as part of what a corpus is."""
    return {} if size is None else {"size": size}


def _without_choice(what: str, chosen: PrepSettings, identity: dict[str, Any]) -> dict[str, Any]:
    """The identity of a corpus whose sets cannot be chosen.

    Raises: ConfigError if they are.
    """
    if chosen.dev or chosen.test:
        hint = (
            "they choose among the sets of a data set that is downloaded; own files: --dev SRC TGT"
            " --test SRC,TGT"
        )
        raise ConfigError(
            f"prep.dev and prep.test have no effect on {what}", where="--set", hint=hint
        )
    return identity


def parse_identity(
    parses: Mapping[str, Path], parser: str | None, known: dict[str, Any]
) -> dict[str, Any]:
    """What is asked for of parses, as part of a corpus' identity; nothing where none are.

    Raises: ConfigError for a parser that isn't one, DataError for a file that can't be read.
    """
    if parser is not None and parser not in PARSERS:
        raise ConfigError(
            f"unknown parser '{parser}'", where="--parser", hint=nearest(parser, PARSERS)
        )
    trees = {name: _known_sha256(path, known) for name, path in parses.items()}
    return ({"parses": trees} if trees else {}) | ({"parser": parser} if parser else {})


def _known_sha256(path: Path, known: dict[str, Any]) -> str:
    """The checksum of a file, taken from the manifest where size and time of the file haven't
    changed.
    """
    with contextlib.suppress(OSError, KeyError, TypeError):
        facts, status = known[str(path)], path.stat()
        if (facts["size"], facts["mtime_ns"]) == (status.st_size, status.st_mtime_ns):
            return str(facts["sha256"])
    files.open_binary(path).close()  # says what is wrong with the path
    return files.sha256(path)


def registered_request(
    options: PrepOptions, documents: Mapping[str, str], parses: Mapping[str, Path]
) -> Request:
    """Return a request for a registered data set, perhaps with test sets of the user's; arguments
    as of `own_request`.

    Raises: ConfigError for an unknown name, or an option that means nothing for this data set.
    """
    name, size = options.dataset, options.size
    if name is None:
        hint = (
            "name a data set (nmtkit datasets lists them), or own files: --train SRC TGT --dev"
            " SRC TGT"
        )
        raise ConfigError("nothing to prepare", where="nmtkit prep", hint=hint)
    dataset = table.find(name)
    if dataset.entry.evaluation:
        hint = f"analyses read it; `nmtkit datasets --fetch {name}` brings it here"
        raise ConfigError(
            f"'{name}' is an evaluation set, nothing to train on", where="nmtkit prep", hint=hint
        )
    direction = dataset.src, dataset.tgt
    if (options.src or dataset.src, options.tgt or dataset.tgt) != direction:
        hint = "these are for own files; the name of a data set says its direction"
        raise ConfigError(
            f"'{name}' is {dataset.src}-{dataset.tgt}", where="--src, --tgt", hint=hint
        )
    preset = options.preset or dataset.entry.preset
    weak, strong = dataset.entry.prep, dataset.entry.presets.get(preset, {})
    own = _further_tests(dataset, options.test, documents)
    generator = dataset.entry.generator
    if generator:
        refuse_ignored(f"'{name}' is generated", options, "from_dir")
        drawn = {"size": size or dataset.entry.train_pairs, "seed": options.seed}
    else:
        refuse_ignored(f"'{name}' is not generated", options, "seed")

    def identity(known: dict[str, Any], chosen: PrepSettings) -> dict[str, Any]:
        _refuse_taken_names(dataset, chosen, own)
        same = {"dataset": name, "src": dataset.src, "tgt": dataset.tgt} | _own_identity(
            own.sets, known
        )
        if generator:
            return _without_choice(name, chosen, same | drawn)
        return same | {"resources": published.identity(dataset, chosen)} | _size_identity(size)

    def find(chosen: PrepSettings) -> Callable[[Path], Corpus]:
        def generate(folder: Path) -> Corpus:
            return generated.corpus(dataset, folder, preset, **drawn)

        read = generate if generator else published.find(dataset, chosen, preset, options.from_dir)

        def whole(folder: Path) -> Corpus:
            corpus = read(folder)
            corpus = with_parses(replace(corpus, sets=corpus.sets + own.sets), parses)
            return corpus if generator else with_first(corpus, size)

        return whole

    return Request(
        name,
        preset,
        identity,
        find,
        weak,
        strong,
        own=own.sets,
        doubts=suffix_doubts(own) + document_doubts(own),
    )


def _further_tests(dataset: Dataset, test: Sequence[str], documents: Mapping[str, str]) -> Corpus:
    """The person's test sets beside those of a data set, as a corpus of them alone.

    Raises: ConfigError for documents of a set that is not among them.
    """
    own = with_markup(
        Corpus(
            dataset.name, dataset.src, dataset.tgt, "", own_tests(test, [dataset.src, dataset.tgt])
        )
    )
    names = [one.name for one in own.sets]
    for name in documents:
        if not names:
            hint = (
                "leave it out; it is for own files (--test SRC,TGT adds such), a data set has the"
                " documents it was published with"
            )
            raise ConfigError(
                f"'{dataset.name}' is a registered data set: --docs has no effect",
                where="--docs",
                hint=hint,
            )
        if name not in names:
            hint = (
                f"{nearest(name, names)}; the sets of '{dataset.name}' have the documents they were"
                " published with"
            )
            raise ConfigError(f"'{name}' is none of your test sets", where="--docs", hint=hint)
    return with_documents(own, documents)


def _refuse_taken_names(dataset: Dataset, chosen: PrepSettings, own: Corpus) -> None:
    """Raise a ConfigError if a test set of the person's is called as one of the data set's that
    are prepared.
    """
    taken = {one.name for one in dataset.choose(chosen.dev, chosen.test)} or {
        "train",
        "dev",
        "test",
    }
    for one in own.sets:
        if one.name in taken:
            names = " and ".join(path.name for path in (*one.src, *one.tgt))
            hint = (
                f"give {names} other names: a test set is called by what the names of its files"
                " share (news.de,news.en: news), else test"
            )
            raise ConfigError(
                f"'{dataset.name}' has a set '{one.name}' already", where="--test", hint=hint
            )
