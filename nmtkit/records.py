"""The files that stages write into a run, each as one frozen record.

Nothing else knows the keys of these files. Rules for all records:

- A field without a default must be there, with its type. A file without it, or of another `format`,
  is refused with a DataError.
- An unknown key, as another version may write, is ignored, and gone once the file is written anew.
  An unknown setting of prep is refused: with it the text would be another one.
- A field with a default is written only where it has another value. So old files without the field
  can still be read, and are written back as they were.
- Keys are written in the order of the fields.
- A name that may become a part of a path is a `Name` or a `RelativePath`: a run can be anybody's.
- A number is finite and no larger than MOST, so that arithmetic with it cannot fail.
- What the parts of a file must agree on is checked as the file is read.

Two files are not here, because stages fill in their classes as they work: history.jsonl
(`nmtkit.run.StageCall`) and state.json (`nmtkit.train.state.TrainState`). The same functions read
them.
"""

from __future__ import annotations

import contextlib
import functools
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticSerializationError, from_json

from nmtkit import console, files
from nmtkit.errors import DataError, plain
from nmtkit.files import JsonObject
from nmtkit.names import Name, RelativePath, Word
from nmtkit.owned_files import WEIGHTS
from nmtkit.settings import PrepSettings, SearchSettings, Section, without_unknown
from nmtkit.tables.table import StoredTable
from nmtkit.toml import values_of

R = TypeVar("R")
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
MOST = 1e100
"""The largest number in a file: float64 still holds its square."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt if a signal interrupted pydantic's serialization.

    pydantic turns it into an error of its own, of which only the text names it.
    """
    try:
        yield
    except PydanticSerializationError as error:
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from None
        raise


class Part(BaseModel):
    """Something that a record holds, with optional fields."""

    model_config = ConfigDict(frozen=True, defer_build=True)  # each command uses few

    @model_serializer(mode="wrap")
    def _without_defaults(self, values: Callable[[Any], JsonObject]) -> JsonObject:
        fields = type(self).model_fields
        return {
            name: value
            for name, value in values(self).items()
            if fields[name].is_required() or value != fields[name].default
        }

    def model_dump(self, **options: Any) -> JsonObject:
        with _stoppable():
            return super().model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        with _stoppable():
            return super().model_dump_json(**options)


class Record(Part):
    """A file."""

    again: ClassVar[str | None] = None
    """What to do where the file is damaged or of another version."""
    format: int = 1

    def write(self, path: Path) -> None:
        """Write the file, completely or not at all."""
        files.write_json(path, self.model_dump())


def load(record: type[R], path: Path, again: str | None = None) -> R:
    """Read a file: TOML if its name says so, else JSON.

    Args:
        record: what it holds: a Record or a dataclass.
        path: the file.
        again: what to do where the file is damaged, if the record does not know it.
    Raises: DataError naming the file, the field, and what to do next.
    """
    again = again or getattr(record, "again", None)
    try:
        if path.exists():
            files.check_file(path)
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"no such file: {path}", hint=again) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return parse(record, content, path, again, is_toml=path.suffix == ".toml")


def load_or_warn(record: type[R], path: Path) -> R | None:
    """Read a file that something can be done without.

    Returns: None if the file is absent, or damaged, which a warning says.
    """
    if not path.is_file():
        return None
    try:
        return load(record, path)
    except DataError as error:
        console.warn_once(f"{path} is not used: {error.message}")
        return None


def load_lines(record: type[R], path: Path) -> Iterator[R]:
    """Read a file of one record a line; a last line that a killed process cut off is left out.

    Raises: DataError as `load`, with the number of the line.
    """
    with files.open_binary(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.endswith(b"\n"):
                yield parse(record, line, f"{path}, line {number}")


_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(
    TypeAdapter
)  # made once a record: the lines of a log are many


def parse(
    record: type[R],
    content: str | bytes,
    where: object,
    again: str | None = None,
    is_toml: bool = False,
) -> R:
    """Read the content of a file, or a line of it.

    Args:
        record: what it holds.
        content: text in UTF-8.
        where: the name of the file.
        again: as of `load`.
        is_toml: True for TOML, False for JSON.
    Raises: DataError as `load`.
    """
    again = again or getattr(record, "again", None)
    try:
        if is_toml:
            values = tomllib.loads(content.decode() if isinstance(content, bytes) else content)
            value: R = _adapter(record).validate_python(values, strict=True)
        else:
            value = _adapter(record).validate_json(content, strict=True)
            values = from_json(content)
        place = _unusable(values)
        require(place is None, f"'{place}' is not finite, or above {MOST:g}")
    except ValidationError as error:
        raise _damaged(error, where, again) from None
    except RecursionError:
        raise DataError("the file is damaged: nested too deep", where=where, hint=again) from None
    except ValueError as error:
        raise DataError(f"the file is damaged: {error}", where=where, hint=again) from error
    return value


def _unusable(values: Any) -> str | None:
    """Return the place of a number that is not finite or too large; None if there is none."""
    if isinstance(values, (int, float)):
        return None if abs(values) <= MOST else ""
    if not isinstance(values, (dict, list)):
        return None
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if (place := _unusable(value)) is not None:
            return f"{key}.{place}".rstrip(".")
    return None


def _damaged(error: ValidationError, where: object, again: str | None) -> DataError:
    """Return the error that names the first wrong field; the format is the first of all fields."""
    wrong = error.errors()[0]
    field = ".".join(map(str, wrong["loc"]))
    message = "the file is damaged: " + (f"'{field}' " if field else "") + plain(wrong["msg"])
    if field == "format" and wrong["type"] != "missing":
        message = f"written by another version of nmtkit (format {wrong['input']})"
    return DataError(message, where=where, hint=again)


def _fits(schema: type[Section]) -> AfterValidator:
    """Return a check of stored settings. A setting that this version does not know may stand there:
    another version wrote it.
    """

    def check(values: JsonObject) -> JsonObject:
        try:
            schema.model_validate(without_unknown(schema, values))
        except ValidationError as error:
            first = error.errors()[0]
            keys = ".".join(map(str, first["loc"]))
            raise ValueError(f"{keys} {plain(first['msg'])}".strip()) from None
        return values

    return AfterValidator(check)


def _has(*keys: str) -> AfterValidator:
    """Return a check that an object has some keys."""

    def check(values: JsonObject) -> JsonObject:
        require(values.keys() >= {*keys}, f"lacks one of {', '.join(keys)}")
        return values

    return AfterValidator(check)


def require(condition: object, message: str) -> None:
    """Refuse a file whose parts do not agree.

    Raises: ValueError with the message.
    """
    if not condition:
        raise ValueError(message)


# prep/manifest.json


class TextSet(Part):
    """One prepared set: `train`, `dev`, or a test set under its own name."""

    name: Name
    split: str = Field(pattern="^(train|dev|test)$")
    lines: NonNegativeInt
    references: int = Field(ge=1, le=1000)
    src_tokens: int
    src_unknown: int
    tgt_tokens: int
    tgt_unknown: int
    changed: dict[str, dict[str, int]] | None = None
    """What was changed in the text, by side and kind; of the training text it is in `Cleaning`."""
    blank: dict[str, int] | None = None
    """Blank lines by the suffix of their file."""
    foreign: dict[str, int] = {}
    """Lines without a letter of their language's script, by side (src, ref, …), before cleaning."""
    identical: dict[str, int] = {}
    """Lines that are the same as the source, by side (ref, …), before cleaning."""
    documents: int | None = None
    """How many documents it has, where anything says so."""
    parses: dict[str, int] | None = None
    """Sentences by what came of their parses."""
    parses_first: dict[str, int] | None = None
    """The first line of each reason why a sentence has n-grams instead."""


@dataclass(frozen=True)
class VocabularySizes:
    """Types of each side."""

    shared: bool
    src: int
    tgt: int


@dataclass(frozen=True)
class Cleaning:
    """What cleaning left of the training text, and why pairs were dropped, by side to blame."""

    pairs_in: int
    pairs_kept: int
    dropped: dict[str, Annotated[dict[str, int], _has("pairs", "src", "tgt")]]
    changed: dict[str, dict[str, int]]


class Overlap(Part):
    """Pairs of a dev or test set that the training text contains."""

    name: Name
    exact: int
    normalised: int
    """Equal but for case, white space and punctuation; with those that are equal exactly."""


class Repeats(Part):
    """Repeated text, counted before cleaning."""

    duplicates: int
    """Training pairs that occurred before in the training text."""
    identical: int
    """Training pairs whose source and target are the same, blank ones left out."""
    overlap: list[Overlap]
    """Of each dev and test set."""


class TextRecipe(Record):
    """How text becomes subwords: the part of the manifest that an exported folder has."""

    again: ClassVar[str] = "nmtkit prep … --force"
    format: Literal[1] = 1
    src: Name
    tgt: Name
    settings: PrepSettings
    tools: dict[str, str] = {}
    """Versions of what shaped the text."""


class Manifest(Record):
    """What was prepared, how, and its fingerprint."""

    again: ClassVar[str] = TextRecipe.again
    format: Literal[1]
    dataset: Name
    src: Name
    tgt: Name
    preset: str
    source: JsonObject
    """What was asked for."""
    settings: PrepSettings
    sets: list[TextSet]
    vocabulary: VocabularySizes
    corpus: dict[str, int]
    """Words, types, subwords and merges of the training text."""
    cleaning: Cleaning
    files: dict[RelativePath, Sha256]
    """Of each file of the folder."""
    inputs: dict[str, Annotated[JsonObject, _has("size")]]
    """Size, time and SHA-256 of each file that was read."""
    tools: dict[str, str]
    speed: list[JsonObject]
    jobs: int
    fingerprint: str
    repeats: Repeats | None = None
    """None in a corpus that an older version prepared."""

    @model_validator(mode="after")
    def _has_sets(self) -> Self:
        names = [text_set.name for text_set in self.sets]
        require(names and len({*names}) == len(names), "'sets' is empty, or names a set twice")
        return self


# systems/<name>/translate/<set>/meta.json


@dataclass(frozen=True)
class UsedCheckpoint:
    """A checkpoint that a translation comes from, with the hash of its weights."""

    system: Name
    name: Name
    sha256: Sha256


@dataclass(frozen=True)
class SourceText:
    """The text that was translated."""

    lines: int
    sha256: Sha256


@dataclass(frozen=True)
class SearchSpeed:
    """How fast a set was translated."""

    seconds: float
    sentences_per_second: float
    tokens_per_second: float


class TranslationInputs(Record):
    """All that a translation follows from; of one made elsewhere little may be known."""

    again: ClassVar[str] = "nmtkit translate --force"
    format: Literal[1]
    set: Name | None = None
    settings: Annotated[JsonObject, _fits(SearchSettings)] = {}
    checkpoints: list[UsedCheckpoint] = []
    source: SourceText | None = None
    prep: str | None = None
    """The fingerprint of the corpus."""
    spans: list[str] | None = None
    docs: list[str] | None = None
    prefix: str | None = None
    """SHA-256 of the lines that the translations begin with."""
    constraints: str | None = None
    """SHA-256 of the phrases that the translations have."""
    metric: str | None = None
    """SHA-256 of the metric that minimum Bayes risk uses, its command and files."""


class TranslationMeta(TranslationInputs):
    """What `translate` writes beside a translation."""

    system: Name | None = None
    files: dict[Name, Sha256] = {}
    counts: dict[str, int] = {}
    speed: SearchSpeed | None = None
    hardware: dict[str, str | bool | int | float | None] = {}
    version: str | None = None


# systems/<name>/export/<engine>/nmtkit.json


class ExportedSystem(Record):
    """What an exported folder holds."""

    again: ClassVar[str] = "nmtkit export --force"
    format: Literal[1]
    nmtkit: str
    """The version that wrote it."""
    to: str = "ctranslate2"
    """The engine."""
    system: Name
    checkpoints: list[UsedCheckpoint]
    quantization: str
    prep: str
    """The fingerprint of the corpus."""
    vocabulary: dict[str, str]
    src: Name
    tgt: Name
    positions: int
    """The longest sentence."""
    search: JsonObject
    text: dict[str, list[str]]
    """What is done to text, in words: of the source before, of the target after."""
    files: dict[RelativePath, Sha256] = {}
    """Of each other file."""


# systems/<name>: config.toml, system.json, metrics.jsonl, best.json,
# checkpoints/step-*/manifest.json


class SystemConfig(BaseModel):
    """The resolved settings of a system, and the machine that trained it. Sections are kept as they
    stand in the file.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)
    variant: Word
    preset: Word = ""
    init_from: str = ""
    corpus: str = ""
    """The fingerprint of the corpus."""
    changed: list[str] = []
    """The changes of settings that --allow-change allowed."""
    model: JsonObject = {}
    train: JsonObject = {}
    search: JsonObject = {}
    hardware: dict[str, str | bool | int | float] = {}

    @model_validator(mode="before")
    @classmethod
    def _is_whole(cls, sections: JsonObject) -> JsonObject:
        """Refuse a file that was cut off, which may be TOML."""
        stated, found = sections.get("values"), values_of(sections)
        require(
            not isinstance(stated, int) or found >= stated, f"it has {found} of {stated} values"
        )
        return sections


class SystemRecord(Record):
    """When a system was made and trained, in ns since 1970 (a copy of a run has other times of
    files), and its size. It is read without the weights.
    """

    again: ClassVar[str] = "nmtkit train writes it again; until then the time of config.toml counts"
    format: Literal[1] = 1
    made: int
    """Later than that of every system that the run had then. The first system is the baseline."""
    trained: int | None = None
    """When the last checkpoint was saved; None before the first one."""
    parameters: PositiveInt | None = None
    """Trainable numbers, tied ones once; None if an earlier file has no number."""


class MetricsLine(Record):
    """One line of metrics.jsonl, with the measurements that are read again (None: not finite)."""

    again: ClassVar[str] = "take that line out of the file"
    step: PositiveInt
    kind: Literal["train", "dev"]
    updates: int = 0
    epoch: float | None = None
    nll: float | None = None
    tgt_tokens: int = 0
    seconds: float = 0
    cpu_seconds: float = 0
    processes: int = 1
    dev_loss: float | None = None
    dev_bleu: float | None = None
    signature: str | None = None


class BestCheckpoint(Record):
    """The checkpoint with the best validation."""

    again: ClassVar[str] = (
        "nmtkit train writes it anew; without the file the newest checkpoint is taken"
    )
    step: int
    checkpoint: Name
    metric: str
    dev_loss: float
    dev_bleu: float | None

    @model_validator(mode="after")
    def _names_its_step(self) -> Self:
        name = f"step-{self.step:08d}"
        require(self.checkpoint == name, f"'checkpoint' is not that of 'step' ({name})")
        return self


@dataclass(frozen=True)
class FileFacts:
    """Size and SHA-256 of a file."""

    bytes: int
    sha256: Sha256


TRAIN_AGAIN = "train the system again with its options: nmtkit train --system NAME --force …"
"""What to do about a system that cannot be used."""


class CheckpointManifest(Record):
    """What a checkpoint is of, and the files that it must have."""

    again: ClassVar[str] = (
        f"move its folder away to use another checkpoint of a system, or {TRAIN_AGAIN}"
    )
    format: Literal[1]
    step: int
    variant: str | None = None
    corpus: str | None = None
    """The fingerprint of the corpus."""
    vocabulary: dict[str, Sha256] = {}
    """Of the files that lead from text to ids."""
    files: dict[Name, FileFacts]

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        require(WEIGHTS in self.files, f"'files' lacks {WEIGHTS}")
        return self


# analyze/<name>/finding.json


def _names_sets(options: JsonObject) -> JsonObject:
    names = options.get("set_names", [])
    require(
        isinstance(names, list) and all(isinstance(name, str) for name in names),
        "set_names must be a list of names",
    )
    return options


class FindingInputs(BaseModel):
    """Everything that a finding depends on. The finding is up to date while this is the same."""

    nmtkit: str = ""
    analysis: str = ""
    """package.module:Class of an analysis of the user's own."""
    prepared: str = ""
    systems: list[Name]
    options: Annotated[JsonObject, AfterValidator(_names_sets)] = {}
    files: dict[str, str]
    """Path, relative to the run if inside it -> SHA-256."""
    weights: dict[str, dict[str, str]] = {}
    """System -> checkpoint -> SHA-256."""
    words: list[str] = []
    """The options as they are typed, without those at their default."""


class StoredFinding(Record):
    """What an analysis found, without its figure and attachments."""

    again: ClassVar[str] = "nmtkit analyze NAME --force"
    format: Literal[0, 1] = 0
    """0: a file without this field."""
    name: Name
    title: str
    text: str
    table: StoredTable
    paper: StoredTable | None = None
    bars: str = ""
    facts: JsonObject
    attachments: list[RelativePath]
    """The names of its further files."""
    hashes: dict[RelativePath, Sha256] = {}
    """SHA-256 of each of its further files."""
    made_from: FindingInputs
