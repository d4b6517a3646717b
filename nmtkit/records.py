"""The files that stages write into a run. Each file is one frozen record.

No other code knows the keys of these files. Rules for all records:

- A field without a default must be present, with its type. If it is missing, or if `format`
  differs, reading raises DataError.
- An unknown key, which another version may have written, is ignored and is lost when the file is
  written again. An unknown setting of prep raises DataError, because it would change the text.
- A field with a default is written only if its value differs from the default. So old files without
  the field can be read, and are written back unchanged.
- Keys are written in the order of the fields.
- A name that may become part of a path is a `Name` or a `RelativePath`, because anybody can have
  made the run.
- A number is finite and at most MOST, so that arithmetic with it cannot fail.
- Validators check what the parts of a file must agree on.

Two files have their classes elsewhere, because stages fill them in step by step: history.jsonl
(`nmtkit.run.StageCall`) and state.json (`nmtkit.train.state.TrainState`). The functions here read
them, too.
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

    pydantic raises an error of its own instead, and only the text of the error names the cause.
    """
    try:
        yield
    except PydanticSerializationError as error:
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from None
        raise


class Part(BaseModel):
    """A part of a record."""

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
    """The hint of the error if the file is damaged or from another version."""
    format: int = 1

    def write(self, path: Path) -> None:
        """Write the file, completely or not at all."""
        files.write_json(path, self.model_dump())


def load(record: type[R], path: Path, again: str | None = None) -> R:
    """Read a file: TOML if its suffix is .toml, else JSON.

    Args:
        record: the class of the content: a Record or a dataclass.
        path: the file.
        again: what to do if the file is damaged; by default `record.again`.
    Raises: DataError naming the file, the field, and what to do next.
    """
    try:
        if path.exists():
            files.check_file(path)
        content = path.read_bytes()
    except FileNotFoundError:
        hint = again or getattr(record, "again", None)
        raise DataError(f"no such file: {path}", hint=hint) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return parse(record, content, path, again, is_toml=path.suffix == ".toml")


def load_or_warn(record: type[R], path: Path) -> R | None:
    """Read an optional file.

    Returns: None if the file does not exist, or if it is damaged; then a warning is printed.
    """
    if not path.is_file():
        return None
    try:
        return load(record, path)
    except DataError as error:
        console.warn_once(f"{path} is not used: {error.message}")
        return None


def load_lines(record: type[R], path: Path) -> Iterator[R]:
    """Read a file with one record per line. A last line that was cut off is left out.

    Raises: DataError as `load`, with the line number.
    """
    with files.open_binary(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.endswith(b"\n"):
                yield parse(record, line, f"{path}, line {number}")


# A log has many lines, so the adapter of a record is made once.
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def parse(
    record: type[R],
    content: str | bytes,
    where: object,
    again: str | None = None,
    is_toml: bool = False,
) -> R:
    """Read the content or a line of a file.

    Args:
        record, again: as for `load`.
        content: text in UTF-8.
        where: the name of the file.
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
    except (ValueError, RecursionError) as error:
        raise DataError(_damage(error), where=where, hint=again) from error
    return value


def _unusable(values: Any) -> str | None:
    """Return the key of a number that is not finite or too large; None if all numbers are fine."""
    if isinstance(values, (int, float)):
        return None if abs(values) <= MOST else ""
    if not isinstance(values, (dict, list)):
        return None
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if (place := _unusable(value)) is not None:
            return f"{key}.{place}".rstrip(".")
    return None


def _damage(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a file: its version, or the first wrong field."""
    if isinstance(error, RecursionError):
        return "the file is damaged: nested too deep"
    if not isinstance(error, ValidationError):
        return f"the file is damaged: {error}"
    wrong = error.errors()[0]
    field = ".".join(map(str, wrong["loc"]))
    if field == "format" and wrong["type"] != "missing":  # `format` is the first field of all
        return f"written by another version of nmtkit (format {wrong['input']})"
    return "the file is damaged: " + (f"'{field}' " if field else "") + plain(wrong["msg"])


def _fits(schema: type[Section]) -> AfterValidator:
    """Return a validator of stored settings, which ignores unknown settings of other versions."""

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
    """Return a validator that an object has some keys."""

    def check(values: JsonObject) -> JsonObject:
        require(values.keys() >= {*keys}, f"lacks one of {', '.join(keys)}")
        return values

    return AfterValidator(check)


def require(condition: object, message: str) -> None:
    """Raise ValueError with the message unless the condition is true."""
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
    """Side -> kind of change -> number of changes; for the training text see `Cleaning`."""
    blank: dict[str, int] | None = None
    """Suffix of a file -> its number of blank lines."""
    foreign: dict[str, int] = {}
    """Side (src, ref, …) -> lines without a letter of the language's script, before cleaning."""
    identical: dict[str, int] = {}
    """Side (ref, …) -> lines that are the same as the source, before cleaning."""
    documents: int | None = None
    """Number of documents, if known."""
    parses: dict[str, int] | None = None
    """Result of parsing -> number of sentences."""
    parses_first: dict[str, int] | None = None
    """Reason why sentences have n-grams instead of phrases -> the first such line."""


@dataclass(frozen=True)
class VocabularySizes:
    """Number of types of each side."""

    shared: bool
    src: int
    tgt: int


@dataclass(frozen=True)
class Cleaning:
    """What cleaning did to the training text: pairs kept, and pairs dropped by reason and side."""

    pairs_in: int
    pairs_kept: int
    dropped: dict[str, Annotated[dict[str, int], _has("pairs", "src", "tgt")]]
    changed: dict[str, dict[str, int]]


class Overlap(Part):
    """Pairs of a dev or test set that the training text contains."""

    name: Name
    exact: int
    normalised: int
    """Pairs that are equal except for case, white space and punctuation, with the exact ones."""


class Repeats(Part):
    """Repeated text, counted before cleaning."""

    duplicates: int
    """Training pairs that occur earlier in the training text."""
    identical: int
    """Training pairs whose source and target are the same, without blank pairs."""
    overlap: list[Overlap]
    """One entry for each dev and test set."""


class TextRecipe(Record):
    """How text becomes subwords: the part of the manifest that an exported folder has."""

    again: ClassVar[str] = "nmtkit prep … --force"
    format: Literal[1] = 1
    src: Name
    tgt: Name
    settings: PrepSettings
    tools: dict[str, str] = {}
    """Versions of the tools that processed the text."""


class Manifest(Record):
    """What was prepared and how, with its fingerprint."""

    again: ClassVar[str] = TextRecipe.again
    format: Literal[1]
    dataset: Name
    src: Name
    tgt: Name
    preset: str
    source: JsonObject
    """The corpus that was asked for."""
    settings: PrepSettings
    sets: list[TextSet]
    vocabulary: VocabularySizes
    corpus: dict[str, int]
    """Words, types, subwords and merges of the training text."""
    cleaning: Cleaning
    files: dict[RelativePath, Sha256]
    """File of the folder -> SHA-256."""
    inputs: dict[str, Annotated[JsonObject, _has("size")]]
    """File that was read -> size, time and SHA-256."""
    tools: dict[str, str]
    speed: list[JsonObject]
    jobs: int
    fingerprint: str
    repeats: Repeats | None = None
    """None if an older version prepared the corpus."""

    @model_validator(mode="after")
    def _has_sets(self) -> Self:
        names = [text_set.name for text_set in self.sets]
        require(names and len({*names}) == len(names), "'sets' is empty, or names a set twice")
        return self


# systems/<name>/translate/<set>/meta.json


@dataclass(frozen=True)
class UsedCheckpoint:
    """A checkpoint that translated, with the hash of its weights."""

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
    """Everything that a translation depends on. Little is known of a translation made elsewhere."""

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
    """SHA-256 of the lines that the translations must begin with."""
    constraints: str | None = None
    """SHA-256 of the phrases that the translations must contain."""
    metric: str | None = None
    """SHA-256 of the command and the files of the metric for minimum Bayes risk."""


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
    """The content of an exported folder."""

    again: ClassVar[str] = "nmtkit export --force"
    format: Literal[1]
    nmtkit: str
    """The version of nmtkit that wrote the folder."""
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
    """The length of the longest sentence."""
    search: JsonObject
    text: dict[str, list[str]]
    """In words: what is done to the source before, and to the target after translation."""
    files: dict[RelativePath, Sha256] = {}
    """Other file of the folder -> SHA-256."""


# systems/<name>: config.toml, system.json, metrics.jsonl, best.json,
# checkpoints/step-*/manifest.json


class SystemConfig(BaseModel):
    """The resolved settings of a system, and the machine that trained it.

    Sections are stored as they are in the file.
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
        """Raise ValueError if the file was cut off; the rest may still be valid TOML."""
        stated, present = sections.get("values"), values_of(sections)
        if isinstance(stated, int):
            require(present >= stated, f"it has {present} of {stated} values")
        return sections


class SystemRecord(Record):
    """When a system was made and trained, in ns since 1970, and its size.

    The times of files cannot tell this, because a copy of a run has other times. The record is read
    without the weights.
    """

    again: ClassVar[str] = "nmtkit train writes it again; until then the time of config.toml counts"
    format: Literal[1] = 1
    made: int
    """Later than `made` of all older systems of the run. The first system is the baseline."""
    trained: int | None = None
    """When the last checkpoint was saved; None before the first checkpoint."""
    parameters: PositiveInt | None = None
    """Number of trainable parameters, tied ones once; None if an old file lacks it."""


class MetricsLine(Record):
    """One line of metrics.jsonl: the measurements that nmtkit reads again (None: not finite)."""

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
    dev_set: str = ""
    """Hash of the sentences of dev BLEU; "" in logs of earlier versions."""


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
    """What a checkpoint belongs to, and the files that it must have."""

    again: ClassVar[str] = (
        f"move its folder away to use another checkpoint of a system, or {TRAIN_AGAIN}"
    )
    format: Literal[1]
    step: int
    variant: str | None = None
    corpus: str | None = None
    """The fingerprint of the corpus."""
    vocabulary: dict[str, Sha256] = {}
    """File that maps text to ids -> SHA-256."""
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
    """Everything that a finding depends on. While this is the same, the finding is up to date."""

    nmtkit: str = ""
    analysis: str = ""
    """package.module:Class of a user's own analysis."""
    prepared: str = ""
    systems: list[Name]
    options: Annotated[JsonObject, AfterValidator(_names_sets)] = {}
    files: dict[str, str]
    """Path (relative to the run if it is inside) -> SHA-256."""
    weights: dict[str, dict[str, str]] = {}
    """System -> checkpoint -> SHA-256."""
    words: list[str] = []
    """The options as typed, without options at their default."""


class StoredFinding(Record):
    """The result of an analysis, without its figure and attachments."""

    again: ClassVar[str] = "nmtkit analyze NAME --force"
    format: Literal[0, 1] = 0
    """0 if the file lacks this field."""
    name: Name
    title: str
    text: str
    table: StoredTable
    paper: StoredTable | None = None
    bars: str = ""
    facts: JsonObject
    attachments: list[RelativePath]
    """The names of further files."""
    hashes: dict[RelativePath, Sha256] = {}
    """Further file, and the figure if there is one -> SHA-256."""
    made_from: FindingInputs
