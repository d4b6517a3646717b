"""A corpus before it is prepared: sets of the user's own files or of a registered data set."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from nmtkit.errors import ConfigError, check_known
from nmtkit.files import TSV, uncompressed
from nmtkit.names import HINT, is_new_name
from nmtkit.owned_files import MANIFEST, TEXT_FILES
from nmtkit.settings import PrepSettings
from nmtkit.text import chinese
from nmtkit.text.moses import language_code, languages
from nmtkit.text.scripts import scripts
from nmtkit.text.tokenizer import SIDES, tokenizer_name

T = TypeVar("T")
MARKUP = (".sgm", ".sgml", ".xml")
FOLDERS = ("text", "docs", "parses", "eval")
"""Folders of a prepared corpus beside those of its sets: no set has such a name."""
FILES = (MANIFEST, "vocab*.txt", *TEXT_FILES)
"""Patterns of the files beside these folders: no set has such a name, either."""
EXAMPLES = {
    "--docs": "--docs train=train.doc --docs dev=blank",
    "--parses": "--parses train=train.trees --parses dev=dev.trees",
}
Between = Literal["", "blank", "marker", "markup"]


@dataclass(frozen=True)
class SetFiles:
    """One set of a corpus: files with one sentence per line.

    If a side has several files, they are read one after the other.
    """

    name: str
    split: str
    """train, dev or test."""
    sides: Mapping[str, tuple[Path, ...]]
    """Name of a side (`side_names`) -> its files."""
    docs: Path | None = None
    """The file that says where documents start (`document_starts.read_starts`)."""
    parses: Path | None = None
    """The file with a bracketed tree for each source line; a blank line means no tree."""
    between: Between = ""
    """The separator of documents inside the text (`document_starts.separate`): blank lines or lines
    <d> on every side, or the markup of SGM or XML. Separators are not sentences."""
    columns: bool = False
    """True if one TSV file holds all sides (`parallel_text.split_columns`)."""
    first: int | None = None
    """Number of pairs to use; the document of the last pair is completed. None means all
    (`prep.rewrite`)."""
    original: SetFiles | None = None
    """The user's set that nmtkit wrote these files from, if it did."""

    @property
    def src(self) -> tuple[Path, ...]:
        """The files of the source."""
        return self.sides["src"]

    @property
    def tgt(self) -> tuple[Path, ...]:
        """The files of the target, the first reference."""
        return self.sides["ref"]

    def files(self) -> Iterator[Path]:
        """Return all files of all sides."""
        return itertools.chain.from_iterable(self.sides.values())

    def where(self, *sides: str) -> str:
        """Return the user's files of some sides, for a message."""
        originals = (self.original or self).sides
        # A TSV file or a file of markup holds all references.
        paths = itertools.chain(*(originals.get(side, originals["ref"]) for side in sides))
        return ", ".join(map(str, dict.fromkeys(paths)))


def side_names(count: int) -> list[str]:
    """Return the names of `count` sides: src, ref, and ref1, ref2, … for further references."""
    return ["src", "ref", *(f"ref{number}" for number in range(1, count - 1))]


@dataclass(frozen=True)
class Corpus:
    """A corpus to prepare."""

    name: str
    src: str
    """Language of the source."""
    tgt: str
    sets: list[SetFiles]
    """Train first, then dev, then tests."""
    extras: dict[str, Path] = field(default_factory=dict)
    """Name in the prep folder (eval/agreement.json, …) -> further file to keep."""
    published: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name of each published file that the text came from -> its checksum, bytes and path."""


def own_files(
    name: str | None,
    train: Sequence[Path] | None,
    dev: Sequence[Path] | None,
    test: Sequence[Sequence[Path]],
    src: str | None,
    tgt: str | None,
) -> Corpus:
    """Return the user's own files as a corpus.

    Args:
        name: the name of the corpus; None means the language pair.
        train, dev: source and target file, or one TSV file.
        test: for each test set its source, reference and further references, or one TSV file.
        src, tgt: language codes; None means that the suffix of the training files (news.de.gz ->
            de) or of the training TSV file (news.de-en.tsv) gives the language.
    Raises: ConfigError if files or languages are missing, or if the name cannot be the name of a
        folder under ./runs.
    """
    if name is not None and not is_new_name(name):
        hint = f"{HINT}; --run DIR chooses the folder of the run"
        raise ConfigError(f"'{name}' cannot name a corpus", "nmtkit prep", hint)
    if train is None or dev is None:
        missing = "training" if train is None else "development"
        hint = "--train SRC TGT --dev SRC TGT [--test SRC TGT]"
        raise ConfigError(f"own files need a {missing} set too", "nmtkit prep", hint)
    src, tgt = _languages(train, src, tgt)
    sets = [
        _own_set("train", "train", train),
        _own_set("dev", "dev", dev),
        *own_tests(test, [src, tgt], {"train", "dev"}),
    ]
    return Corpus(name or f"{src}-{tgt}", src, tgt, sets)


def _own_set(name: str, split: str, paths: Sequence[Path]) -> SetFiles:
    """Return a set of source, target and further references, or of one TSV file."""
    columns = len(paths) == 1
    files = [*paths] * 2 if columns else paths
    sides = {side: (path,) for side, path in zip(side_names(len(files)), files, strict=True)}
    between: Between = "markup" if any(map(is_markup, paths)) else ""
    return SetFiles(name, split, sides, between=between, columns=columns)


def _languages(train: Sequence[Path], src: str | None, tgt: str | None) -> tuple[str, str]:
    """Return the two languages; a language that is not given is guessed from the file names."""
    pair = re.fullmatch("([a-z]{2,3})-([a-z]{2,3})", _suffix(train[0])) if len(train) == 1 else None
    src = src or (pair[1] if pair else guess_language(train[0], "--src"))
    tgt = tgt or (pair[2] if pair else guess_language(train[-1], "--tgt"))
    where = "--src, --tgt"
    if src == tgt:
        hint = "name the languages: --src de --tgt en"
        raise ConfigError(f"source and target are both '{src}'", where, hint)
    for language in (src, tgt):
        check_language(language, where)
    return src, tgt


def check_language(language: str, where: str) -> None:
    """Raise ConfigError unless `language` is a language code; `where`: the option it is from."""
    if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", language):
        hint = "two or three letters, such as de"
        raise ConfigError(f"'{language}' is not a language code", where, hint)


def own_tests(
    test: Sequence[Sequence[Path]], languages: list[str], taken: Collection[str] = ()
) -> list[SetFiles]:
    """Return the user's own test sets, each named by what its file names share.

    Args:
        test: for each test set its source, reference and further references, or one TSV file.
        languages: source and target.
        taken: names of other sets; a name that is taken gets a number.
    """
    sets = []
    names = {*taken, *FOLDERS}
    for paths in test:
        name = stem = _stem(paths, languages)
        number = 1
        while name.casefold() in names:  # some file systems do not tell Dev from dev
            number += 1
            name = f"{stem}-{number}"
        names.add(name.casefold())
        sets.append(_own_set(name, "test", paths))
    return sets


def _stem(paths: Sequence[Path], languages: list[str]) -> str:
    """Return the name that source and reference share, without the language; else "test"."""
    suffixes = languages if len(paths) > 1 else ["-".join(languages)]  # test.de-en.tsv
    pairs = zip(paths, suffixes, strict=False)
    stems = {_plain(path).removesuffix(f".{suffix}") for path, suffix in pairs}
    name = stems.pop() if len(stems) == 1 else "test"
    name = re.sub(r"[^\w.-]+", "_", name).lstrip(".-").rstrip(".") or "test"
    taken = any(fnmatch.fnmatchcase(name.casefold(), pattern) for pattern in FILES)
    return name.replace(".", "_") if taken else name


def assigned(assignments: list[str], option: str) -> dict[str, str]:
    """Return the values of "SET=FILE" assignments by set.

    Args:
        option: --docs or --parses.
    Raises: ConfigError if an assignment has another form, or if a set is named twice.
    """
    values = {}
    for text in assignments:
        name, _, file = text.partition("=")
        if not name or not file or name in values:
            twice = file and name in values
            problem = f"'{name}' is named twice" if twice else f"'{text}' is not SET=FILE"
            raise ConfigError(problem, option, f"one for each set: {EXAMPLES[option]}")
        values[name] = file
    return values


def of_sets(corpus: Corpus, values: Mapping[str, T], option: str) -> dict[str, T]:
    """Return the values of an option by set name; "test" may stand for the only test set.

    Raises: ConfigError if the corpus lacks a set, or if a set is named by both of its names.
    """
    names = {text.name: text.name for text in corpus.sets}
    tests = [text.name for text in corpus.sets if text.split == "test"]
    if len(tests) == 1:
        names["test"] = tests[0]
    by_set = {}
    for alias, value in values.items():
        check_known(alias, names, f"'{corpus.name}' has no set '{alias}'", option)
        name = names[alias]
        if name in by_set:
            hint = f"'test' is '{name}' here: name it once"
            raise ConfigError(f"'{name}' is named twice", option, hint)
        by_set[name] = value
    return by_set


def with_parses(corpus: Corpus, parses: Mapping[str, Path]) -> Corpus:
    """Return the corpus with the parses of its sources.

    Args:
        parses: set -> file; "test" may stand for the only test set.
    Raises: ConfigError if the corpus lacks a set.
    """
    by_set = of_sets(corpus, parses, "--parses")
    sets = [replace(text, parses=by_set.get(text.name)) for text in corpus.sets]
    return replace(corpus, sets=sets)


def guess_language(path: Path, option: str) -> str:
    """Return the language of a file by its suffix: news.de.gz -> de.

    Raises: ConfigError if the suffix is not a language.
    """
    suffix = _suffix(path)
    if not re.fullmatch(r"[a-z]{2,3}", suffix) or suffix in {"txt", "tok", "raw"}:
        hint = f"pass {option} LANG, for example {option} de"
        raise ConfigError(f"cannot tell the language of {path.name}", option, hint)
    return suffix


def language_doubts(corpus: Corpus, settings: PrepSettings) -> list[str]:
    """Return a warning for each language that Moses tokenizes without having rules for it."""
    return [
        f"Moses has no rules for '{language}': English abbreviations are taken; if this "
        f"is a slip, name the language with --{side}"
        for side, language in zip(SIDES, (corpus.src, corpus.tgt), strict=True)
        if tokenizer_name(side, language, settings) == "moses"
        and language_code(language) not in languages()
    ]


def suffix_doubts(corpus: Corpus) -> list[str]:
    """Return a warning for each file whose suffix is not the language of its side.

    Raises: ConfigError if the suffix is the language of the other side.
    """
    doubts = []
    for text in corpus.sets:
        if text.columns:
            _check_column_order(text, corpus)
            continue
        for number, paths in enumerate(text.sides.values()):
            sides = (corpus.src, corpus.tgt)
            language, opposite = sides[::-1] if number else sides
            role = f"reference {number}" if len(text.sides) > 2 else "target"
            for path in paths:
                suffix = _suffix(path)
                same = language_code(suffix) == language_code(language)
                same |= chinese.is_chinese(suffix) and chinese.is_chinese(language)
                is_code = suffix in languages() or (len(suffix) == 2 and scripts(suffix))
                if is_code and not same:
                    side = f"{role if number else 'source'} of '{text.name}'"
                    taken = f"{path} is taken for '{language}' ({side})"
                    if suffix == language_code(opposite):
                        raise ConfigError(
                            f"{taken}, but its suffix says '{suffix}'",
                            f"--{text.split}",
                            f"give the file of the source, '{corpus.src}', first; or correct --src"
                            " and --tgt",
                        )
                    doubts.append(f"{taken}, though its suffix says '{suffix}'")
    return doubts


def _check_column_order(text: SetFiles, corpus: Corpus) -> None:
    """Raise ConfigError if the suffix of a TSV file names the languages in the wrong order."""
    path, suffix = text.src[0], _suffix(text.src[0])
    if suffix == f"{corpus.tgt}-{corpus.src}".lower():
        raise ConfigError(
            f"{path} is taken for '{corpus.src}-{corpus.tgt}', but its suffix says '{suffix}'",
            f"--{text.split}",
            "a line is source TAB target; or correct --src and --tgt",
        )


def is_markup(path: Path) -> bool:
    """True if a file is SGM or XML, by its name."""
    return uncompressed(path).suffix in MARKUP


def _suffix(path: Path) -> str:
    return Path(_plain(path)).suffix[1:]


def _plain(path: Path) -> str:
    """Return a file's name without the suffixes of compression, markup and TSV."""
    name = uncompressed(path)
    return name.stem if name.suffix in {*MARKUP, TSV} else name.name
