"""Check a corpus before any work is done on it. Every file must be readable, UTF-8 and not empty.
The sides of a set must have the same number of lines.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from nmtkit import console, files
from nmtkit.corpora.corpus import SetFiles
from nmtkit.corpora.document_starts import read_starts
from nmtkit.corpora.parallel_text import first_odd_pair
from nmtkit.errors import DataError, counted
from nmtkit.prep.shards import MARK_EVERY, RUN_AGAIN, TextFile
from nmtkit.settings import PrepSettings
from nmtkit.text.scripts import ForeignLines, scripts
from nmtkit.text.tidy import tidy
from nmtkit.text.tokenizer import (
    SIDE_NAMES,
    SIDES,
    SPACE,
    Side,
    joiner,
    moses_doubt,
    usual_tokenizer,
)

NOTHING = "nothing was written"
SAMPLE = 2000
"""Lines of a file that are looked at."""
FEW_LINES, NEARLY_ALL = 20, 0.9
"""A script is wrong if this share of at least this many lines has no letter of the language."""
JOIN = {
    "@@": "join them (sed 's/@@ //g'; --codes FILE splits words in the same way)",
    SPACE: "join them (spm_decode; --spm MODEL splits words in the same way)",
}
"""How to join text that is split into subwords, by the mark of the subwords."""
TAGS = re.compile(rb"\s*<[A-Za-z/?!].*>\s*")
"""A line of markup begins and ends with a tag. A line `<de> text` only begins with a tag."""
FORMATS = re.compile(rb"\s*</?(doc|seg|tuv?|tmx|xliff|trans-unit|unit|\?xml|!DOCTYPE)\b", re.I)
"""A tag of a markup format of corpora."""


@dataclass
class Inputs:
    """The facts of a corpus's files. Each file is read and checked once.

    Args:
        strict: True if bytes that are not UTF-8 are an error.
        temporary: a folder whose files exist only while prep works.
    Attributes:
        facts: of each file that was checked.
    """

    strict: bool
    temporary: Path
    facts: dict[Path, TextFile] = field(default_factory=dict)

    def lines(self, paths: Sequence[Path]) -> int:
        """Return the number of lines of several files together."""
        return sum(self.facts[path].lines for path in paths)

    def as_json(self) -> dict[str, files.JsonObject]:
        """Return the facts for the manifest by path; a temporary file has a relative path."""
        prefix = f"{self.temporary}/"
        return {
            str(path).removeprefix(prefix): facts.as_json() for path, facts in self.facts.items()
        }

    def check(self, sets: Sequence[SetFiles]) -> None:
        """Check every file of some sets, and compare the line counts of their sides.

        Raises: DataError for a file that is missing, a directory, damaged, empty or not UTF-8; for
            line counts that differ (with the first suspicious line); for a side of a dev or test
            set without any text.
        """
        for text in sets:
            for path in (*text.files(), text.docs, text.parses):
                if path is not None and path not in self.facts:
                    self.facts[path] = inspect(path, self.strict)
        for text in sets:
            if text.between != "markup":  # its lines are no sentences
                self._check_lines(text)
            # Cleaning counts the blank lines of training text. `separate` removes blank lines
            # between documents.
            if text.split != "train" and not text.between:
                for side in text.sides:
                    _check_some_text(text, side)
            if text.docs is not None:
                read_starts(text.docs, self.lines(text.src))

    def refuse_changed(self) -> None:
        """Raise DataError for a file that has changed since it was checked."""
        for path, facts in self.facts.items():
            files.check_file(path)
            status = path.stat()
            before = facts.size, facts.mtime_ns
            touched = (status.st_size, status.st_mtime_ns) != before
            if touched and files.sha256(path) != facts.sha256:
                raise DataError(f"{path.name} changed while prep read it", path, RUN_AGAIN)

    def warn_of_copies(self, sets: Sequence[SetFiles]) -> None:
        """Warn of sets with the same text, after their files have been checked."""
        names: dict[tuple[str, ...], str] = {}
        for text in sets:
            first = names.setdefault(tuple(self.facts[p].sha256 for p in text.files()), text.name)
            if first != text.name:
                console.warn(
                    f"{first} and {text.name} are the same text: is one of their files the wrong"
                    " one?"
                )

    def _check_lines(self, text: SetFiles) -> None:
        src, *targets = text.sides.values()
        for side in targets:
            if len(src) != len(side):
                self._check_pair(text.name, src, side)
                continue
            for ours, theirs in zip(src, side, strict=True):
                self._check_pair(text.name, [ours], [theirs])
        # With --size the parses may have a line for only the pairs taken: that is checked later.
        later = text.first is not None and not text.between
        if text.parses is not None and not later:
            count, total = self.lines([text.parses]), self.lines(src)
            if count != total:
                raise DataError(
                    f"{text.parses.name} has {counted(count, 'line')} but the source has {total:,}"
                    f" ({text.name} set)",
                    where=text.parses,
                    hint="give one tree for each line of the source, a blank line where there is"
                    f" none; {NOTHING}",
                )

    def _check_pair(self, name: str, ours: Sequence[Path], theirs: Sequence[Path]) -> None:
        counts = self.lines(ours), self.lines(theirs)
        if counts[0] != counts[1]:
            names = [" + ".join(path.name for path in paths) for paths in (ours, theirs)]
            raise DataError(
                f"{names[0]} has {counted(counts[0], 'line')} but {names[1]} has {counts[1]:,}"
                f" ({name} set)",
                where=first_odd_pair(ours, theirs),
                hint="fix the files so that line i of one is the translation of line i of the"
                f" other; {NOTHING}",
            )


def inspect(path: Path, strict: bool) -> TextFile:
    """Read a text file, and return its facts.

    Args:
        path: the file, compressed or not.
        strict: True if bytes that are not UTF-8 are an error.
    Raises: DataError if the file is missing, a directory, damaged, empty, (strict) not UTF-8 (with
        line and byte offset), or if its lines end in CR.
    """
    files.check_file(path)
    status = path.stat()  # first, so that later changes are noticed
    lines = offset = returns = 0
    marks = []
    try:
        for block in files.line_blocks(path, size=MARK_EVERY):
            marks.append(offset)
            text = b"".join(block)
            lines, offset = lines + len(block), offset + len(text)
            returns += text.count(b"\r")
            if strict:
                text.decode()
    except UnicodeDecodeError:
        try:
            for _ in files.text_lines(path):  # finds and names the place
                pass
        except DataError as error:
            hint = f"{error.hint}, or pass --set prep.on_bad_utf8=replace (or drop)"
            raise DataError(error.message, error.where, hint) from None
    if not lines:
        raise DataError(f"{path} is empty", hint="name a file with one sentence a line")
    if returns > 2 * lines:
        hint = "end lines in LF: tr '\\r' '\\n' converts them"
        raise DataError(f"the lines of {path.name} end in CR (\\r)", path, hint)
    return TextFile(files.sha256(path), lines, status.st_size, status.st_mtime_ns, path, marks)


@dataclass(frozen=True)
class Sample:
    """The first lines of a side of a set.

    Attributes:
        side: src or tgt.
        language, opposite: the languages of this side and of the other side.
        name: of the side, for messages.
        where: the user's files.
        is_scored: True for the target of a dev or test set.
        raw: the lines as they are in the file.
    """

    side: Side
    language: str
    opposite: str
    name: str
    where: str
    is_scored: bool
    raw: list[bytes]

    @cached_property
    def lines(self) -> list[str]:
        return [tidy(line.decode(errors="replace")) for line in self.raw]


def check_samples(
    sets: Sequence[SetFiles], languages: tuple[str, str], settings: PrepSettings
) -> None:
    """Look at the first lines of the user's own sets.

    Args:
        sets: one sentence a line.
        languages: of source and target.
        settings: of prep.
    Raises: DataError for SGM, XML and TMX; for text in another script than its language; for text
        that is split into subwords, unless prep.subwords=none; for text that Moses cannot tokenize,
        unless a setting chooses Moses.
    """
    samples = list(_samples(sets, languages))
    for sample in samples:
        _check_tags(sample)
        _check_script(sample)
        _check_whole_words(sample, settings)
    _check_moses(samples, settings)


def _samples(sets: Sequence[SetFiles], languages: tuple[str, str]) -> Iterator[Sample]:
    for text in sets:
        for number, (key, paths) in enumerate(text.sides.items()):
            is_target = number > 0  # further references are targets, too
            side = SIDES[is_target]
            yield Sample(
                side=side,
                language=languages[is_target],
                opposite=languages[not is_target],
                name=f"the {SIDE_NAMES[side]} of {text.name}",
                where=text.where(key),
                is_scored=is_target and text.split != "train",
                raw=list(itertools.islice(files.byte_lines(*paths), SAMPLE)),
            )


def _check_tags(sample: Sample) -> None:
    """Refuse a markup format of corpora; warn of other lines of markup."""
    tags = list(filter(TAGS.fullmatch, sample.raw))
    if not tags:
        return
    example = tags[0].strip()[:30].decode(errors="replace")
    lines = counted(len(sample.raw), "line")
    problem = f"{len(tags):,} of the first {lines} of {sample.name} are markup ({example})"
    if len(tags) > len(sample.raw) / 2 and any(map(FORMATS.match, tags)):
        raise DataError(
            problem,
            sample.where,
            "files of <doc> and <seg> elements need a name that ends in .sgm or .xml; convert other"
            f" formats (TMX, XLIFF) to text with one sentence a line; {NOTHING}",
        )
    if len(tags) >= FEW_LINES:
        console.warn(f"{problem}, which becomes sentences: remove it")


def _check_script(sample: Sample) -> None:
    """Refuse text if nearly all lines are in another script."""
    text = [line + b"\n" for line in sample.raw if line.strip()]
    joined = b"".join(text)
    foreign = ForeignLines(sample.language).count(joined)
    if len(text) < FEW_LINES or foreign < NEARLY_ALL * len(text):
        return
    hint = f"name its language with --{sample.side}, with a script that is unusual (hi-Latn)"
    opposite = sample.opposite
    if scripts(opposite) and ForeignLines(opposite).count(joined) < len(text) / 2:
        hint = f"its letters are those of '{opposite}': give the file of the source first"
    script = " or ".join(scripts(sample.language))
    raise DataError(
        f"{sample.name} has hardly a line with {script} letters, but is taken for"
        f" '{sample.language}'",
        sample.where,
        f"{hint}; {NOTHING}",
    )


def _check_whole_words(sample: Sample, settings: PrepSettings) -> None:
    if not (mark := joiner(sample.lines)):
        return
    problem = f"{sample.name} looks split into subwords ({mark})"
    if settings.subwords != "none":
        raise DataError(
            problem,
            sample.where,
            f"{JOIN[mark]}, or --set prep.subwords=none to keep the subwords; {NOTHING}",
        )
    if sample.is_scored:
        console.warn(f"{problem}: BLEU and all other scores will count subwords")


def _check_moses(samples: Sequence[Sample], settings: PrepSettings) -> None:
    """Refuse text that Moses cannot tokenize, and name the settings of both sides at once."""
    doubts = {}  # by setting: the problem, the files, the settings to choose from
    for sample in samples:
        setting = f"{sample.side}_tokenizer"
        is_auto = getattr(settings, setting) == "auto"
        is_moses = is_auto and usual_tokenizer(sample.language) == "moses"
        if setting in doubts or not is_moses or not (doubt := moses_doubt(sample.lines)):
            continue
        problem, tokenizers = doubt
        if settings.subwords != "sentencepiece" or tokenizers == ["none"]:  # raw needs no spaces
            choice = " or ".join(f"--set prep.{setting}={name}" for name in tokenizers)
            doubts[setting] = f"{sample.name} {problem}", sample.where, choice
    if doubts:
        problems, places, choices = zip(*doubts.values(), strict=True)
        hint = f"pass {' and '.join(choices)} (or moses, to tokenize it); {NOTHING}"
        where = ", ".join(dict.fromkeys(places))  # a TSV file holds both sides
        raise DataError("; ".join(problems), where, hint)


def _check_some_text(text: SetFiles, side: str) -> None:
    """Refuse a side without any text: nothing could be measured on it."""
    lines = (line.decode(errors="replace") for line in files.byte_lines(*text.sides[side]))
    if not any(map(str.strip, map(tidy, lines))):
        name = "source" if side == "src" else "target"
        raise DataError(
            f"{text.name} has no line with text: all of the {name} is blank",
            where=text.where(side),
            hint="name files with one sentence a line, line i of one the translation of line i of"
            f" the other; {NOTHING}",
        )
