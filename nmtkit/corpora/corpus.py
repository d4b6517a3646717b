"""What a corpus is made of before it is prepared: sets of files, the person's own or a registered data set's."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from nmtkit.errors import ConfigError, nearest
from nmtkit.files import COMPRESSED, open_binary
from nmtkit.text import chinese, moses

T = TypeVar("T")
MARKUP = (".sgm", ".sgml", ".xml")
Between = Literal["", "blank", "marker", "markup"]


@dataclass(frozen=True)
class SetFiles:
    """One set of a corpus as files of one sentence a line; several files of a side are read one after the other."""

    name: str
    split: str
    """train, dev or test."""
    src: tuple[Path, ...]
    tgt: tuple[Path, ...]
    references: tuple[tuple[Path, ...], ...] = ()
    """Further references (.ref1, .ref2, …)."""
    docs: Path | None = None
    """Where documents start (`documents.read_starts`)."""
    parses: Path | None = None
    """A bracketed tree for each line of the source; a blank line where there is none."""
    between: Between = ""
    """What in the files themselves separates documents, and is no sentence (`documents.separate`): lines that are blank, or <d>, on every side;
    the markup of SGM or XML."""
    first: int | None = None
    """Only so many pairs are wanted, and the rest of the document that the last one is in (`shorten.first_pairs`)."""

    def sides(self) -> dict[str, tuple[Path, ...]]:
        """Every stream of the set by its name: src, ref, ref1, …"""
        return {"src": self.src, "ref": self.tgt} | {f"ref{i}": reference for i, reference in enumerate(self.references, 1)}


@dataclass(frozen=True)
class Corpus:
    """A corpus to prepare."""

    name: str
    src: str
    """Language of the source."""
    tgt: str
    preset: str
    """The preset that systems trained on it take unless told otherwise."""
    sets: list[SetFiles]
    """Train first, then dev, then tests."""
    extras: dict[str, Path] = field(default_factory=dict)
    """Further files to keep, by their name in the prep folder (eval/agreement.json, …)."""
    published: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The published files that the text came from, by name: checksum, bytes, path."""


def own_files(
    name: str | None,
    train: tuple[Path, Path] | None,
    dev: tuple[Path, Path] | None,
    test: list[str],
    src: str | None,
    tgt: str | None,
    preset: str,
) -> Corpus:
    """The person's own files as a corpus.

    Args:
        name: what to call it; None: the language pair.
        train, dev: source and target file.
        test: "SRC,TGT[,TGT…]" each, further targets being further references.
        src, tgt: language codes; None: guessed from the suffix of the training files (news.de.gz -> de).
        preset: the preset of its systems.
    Raises: ConfigError if files or languages are missing, or the name is not one of a folder directly under ./runs, where runs are looked for.
    """
    if name is not None and not re.fullmatch(r"\w[\w.-]*", name):
        hint = "use letters, digits, '-', '_' and '.'; the folder of the run is chosen with --run DIR"
        raise ConfigError(f"'{name}' cannot name a corpus", where="nmtkit prep", hint=hint)
    if train is None or dev is None:
        missing = "training" if train is None else "development"
        raise ConfigError(f"own files need a {missing} set too", where="nmtkit prep", hint="--train SRC TGT --dev SRC TGT [--test SRC,TGT]")
    languages = [src or guess_language(train[0], "--src"), tgt or guess_language(train[1], "--tgt")]
    if languages[0] == languages[1]:
        raise ConfigError(f"source and target are both '{languages[0]}'", where="--src, --tgt", hint="name the languages: --src de --tgt en")
    for language in languages:
        if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", language):
            raise ConfigError(f"'{language}' is not a language code", where="--src, --tgt", hint="two or three letters, such as de")
    sets = [SetFiles("train", "train", (train[0],), (train[1],)), SetFiles("dev", "dev", (dev[0],), (dev[1],))]
    return Corpus(name or "-".join(languages), languages[0], languages[1], preset, [*sets, *own_tests(test, languages, {"train", "dev"})])


def own_tests(test: Sequence[str], languages: list[str], taken: Collection[str] = ()) -> list[SetFiles]:
    """The person's own test sets, each called by what the names of its files share.

    Args:
        test: "SRC,TGT[,TGT…]" each, further targets being further references.
        languages: source and target.
        taken: names that are another set's; a number keeps ours apart from them, and from each other.
    Raises: ConfigError for what is not of this form.
    """
    sets: list[SetFiles] = []
    names = {*taken}
    for text in test:
        paths = [Path(part) for part in text.split(",") if part]
        if len(paths) < 2:
            raise ConfigError(f"a test set is a source and a reference, got '{text}'", where="--test", hint="write --test news.de,news.en (no space)")
        set_name = _unused(_stem(paths, languages), names)
        sets.append(SetFiles(set_name, "test", (paths[0],), (paths[1],), tuple((path,) for path in paths[2:])))
    return sets


def parse_files(assignments: list[str]) -> dict[str, Path]:
    """The files of parses by set, from "SET=FILE" each.

    Raises: ConfigError for what is not of this form, or a set named twice.
    """
    found = assigned(assignments, "--parses", "--parses train=train.trees --parses dev=dev.trees")
    return {name: Path(file) for name, file in found.items()}


def assigned(assignments: list[str], option: str, example: str) -> dict[str, str]:
    """What an option gives to each set, from "SET=FILE" each.

    Args:
        assignments: the values of the option.
        option: its name.
        example: how to write it, for the message.
    Raises: ConfigError for what is not of this form, or a set named twice.
    """
    found: dict[str, str] = {}
    for text in assignments:
        name, equals, file = text.partition("=")
        if not name or not file or name in found:
            what = f"'{name}' has two" if equals and name in found else f"'{text}' names no set and file"
            raise ConfigError(what, where=option, hint=f"one for each set: {example}")
        found[name] = file
    return found


def of_sets(corpus: Corpus, given: Mapping[str, T], option: str) -> dict[str, T]:
    """What an option gives to sets, by their names, where "test" is also the only test set.

    Raises: ConfigError for a set that the corpus has not, or that is named by both of its names.
    """
    tests = [one.name for one in corpus.sets if one.split == "test"]
    names = {one.name: one.name for one in corpus.sets} | ({"test": tests[0]} if len(tests) == 1 else {})
    found: dict[str, T] = {}
    for name, value in given.items():
        if name not in names:
            raise ConfigError(f"'{corpus.name}' has no set '{name}'", where=option, hint=nearest(name, names))
        if names[name] in found:
            raise ConfigError(f"'{names[name]}' has two", where=option, hint=f"'test' is '{names[name]}' here: name it once")
        found[names[name]] = value
    return found


def with_parses(corpus: Corpus, parses: Mapping[str, Path]) -> Corpus:
    """The corpus with parses of its sources, given by the names of sets ("test" is also the only test set).

    Raises: ConfigError for a set that it has not.
    """
    given = of_sets(corpus, parses, "--parses")
    return replace(corpus, sets=[replace(one, parses=given.get(one.name)) for one in corpus.sets])


def guess_language(path: Path, option: str) -> str:
    """The language a file's suffix names: news.de.gz -> de.

    Raises: ConfigError if it names none; DataError for a folder or a pipe.
    """
    if path.exists() and not path.is_file():
        open_binary(path).close()  # says so
    name = _plain(path)
    suffix = Path(name).suffix[1:]
    if not re.fullmatch(r"[a-z]{2,3}", suffix) or suffix in {"txt", "tok", "raw"}:
        raise ConfigError(f"cannot tell the language of {path.name}", where=option, hint=f"pass {option} LANG, for example {option} de")
    return suffix


def language_doubts(corpus: Corpus) -> list[str]:
    """What looks like a slip in the languages of own files: no rules for one, or a file whose suffix is the code of another.

    Returns: a line for each.
    """
    found = []
    for option, language in (("--src", corpus.src), ("--tgt", corpus.tgt)):
        if not chinese.is_chinese(language) and language not in moses.languages():
            slip = f"if this is a slip, name the language with {option}"
            found.append(f"Moses has no rules for '{language}': English abbreviations are taken; {slip}")
    return found + suffix_doubts(corpus)


def suffix_doubts(corpus: Corpus) -> list[str]:
    """A line for each file whose suffix is the code of another language than it is taken for."""
    found = []
    roles = {"src": "source", "ref": "reference 1"}
    for one in corpus.sets:
        for side, paths in one.sides().items():
            language = corpus.src if side == "src" else corpus.tgt
            role = roles.get(side) or f"reference {int(side.removeprefix('ref')) + 1}"
            role = "target" if side == "ref" and not one.references else role
            for path in paths:
                suffix = Path(_plain(path)).suffix[1:]
                same = suffix == language.lower() or (chinese.is_chinese(suffix) and chinese.is_chinese(language))
                if suffix in moses.languages() and not same:
                    found.append(f"{path} is taken for '{language}' ({role} of '{one.name}'), though its suffix says '{suffix}'")
    return found


def is_markup(path: Path) -> bool:
    """Whether a file is SGM or XML, by its name."""
    return _uncompressed(path).endswith(MARKUP)


def _plain(path: Path) -> str:
    """A file's name without what says how it is written."""
    name = _uncompressed(path)
    return name if not name.endswith(MARKUP) else name[: name.rindex(".")]


def _uncompressed(path: Path) -> str:
    suffix = next((suffix for suffix in COMPRESSED if path.name.endswith(suffix)), "")
    return path.name.removesuffix(suffix)


def _stem(paths: list[Path], languages: list[str]) -> str:
    """The name of a test set: what the names of its source and reference share, less the language."""
    stems = []
    for path, language in zip(paths, [languages[0]] + [languages[1]] * len(paths), strict=False):
        stems.append(_plain(path).removesuffix(f".{language}"))
    name = stems[0] if stems[0] == stems[1] else "test"
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "test"


def _unused(name: str, taken: set[str]) -> str:
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}-{number}"
    taken.add(candidate)
    return candidate
