"""The settings of all stages: their schema and defaults, presets, settings files and `--set`.

A setting has a value from, weakest first: the default, the data set, the preset, `--config FILE`,
`--set key=value`. The class of a variant defines the section `model`; here that section is a dict.
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from nmtkit.errors import ConfigError, check_known, nearest, plain, short
from nmtkit.other_toolkits import HABITS, habit_in
from nmtkit.presets import preset_names, preset_text
from nmtkit.toml import read_toml

SECTIONS = ("prep", "model", "train", "search")
OF_A_SYSTEM = ("variant", "preset", "init_from", "corpus", "values", "changed", "hardware")
"""Keys of a system's config.toml that are no settings."""
LARGEST = {int: 10**18, float: 1e30}
SMALLEST = 1e-30
"""The limits of the magnitude of every setting and option; a field may have narrower ones."""
AtLeastOne = Annotated[int, Field(ge=1)]
Tokenizer = Literal["auto", "moses", "jieba", "characters", "none"]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
"""A share below 1."""


class Section(BaseModel):
    """A group of settings. It is frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
    earlier: ClassVar[dict[str, Any]] = {}
    """Values of keys that an older config.toml lacks, if they are not the defaults."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean_for_number(cls, value: Any, info: ValidationInfo) -> Any:
        if (
            isinstance(value, bool)
            and info.field_name
            and cls.model_fields[info.field_name].annotation in {int, float}
        ):
            raise ValueError("must be a number, not true or false")
        return value

    @field_validator("*")
    @classmethod
    def _refuse_overflow(cls, value: Any) -> Any:
        """Refuse an integer that overflows in 64 bits, and a float that overflows in 32 bits."""
        largest = LARGEST.get(type(value))
        if largest and abs(value) > largest:
            raise ValueError(f"must be at most {largest:.0e}")
        if isinstance(value, float) and 0 < abs(value) < SMALLEST:
            raise ValueError(f"must be 0 or at least {SMALLEST:.0e}")
        return value


class PrepSettings(Section):
    """How raw text becomes token ids (`prep.*`)."""

    dev: str = ""
    """The development set, by its name in the table of data sets; empty: the data set's own."""
    test: list[str] = []
    """The test sets, by their names in the table of data sets; empty: the data set's own."""
    src_tokenizer: Tokenizer = "auto"
    """How the source is cut into words. moses; jieba; characters; none: at white space, for text
    that is tokenized already; nothing is undone. auto: jieba for Chinese, characters for Japanese,
    Thai, Khmer, Lao and Burmese, else moses. With `subwords=sentencepiece` auto uses no tokenizer:
    SentencePiece reads plain text.
    """
    tgt_tokenizer: Tokenizer = "auto"
    """How the target is cut into words, as `src_tokenizer`. With none, scores have the signature
    tok:none.
    """
    normalize: bool = True
    """Moses punctuation normalisation before tokenization."""
    aggressive_hyphens: bool = True
    """Split hyphens as ` @-@ ` (Moses tokenizer -a)."""
    escape: bool = False
    """Write & | < > ' " [ ] as XML entities as the Moses scripts do."""
    lowercase: bool = False
    """Lowercase both sides (instead of truecasing)."""
    truecase: Literal["none", "src", "tgt", "both"] = "both"
    """Which sides are truecased, by a model trained on the training side; only those that Moses
    tokenizes.
    """
    joint_vocab: bool = True
    """One model of subwords and one vocabulary for both languages."""
    subwords: Literal["bpe", "sentencepiece", "none"] = "bpe"
    """How words are split. bpe: subword-nmt's; sentencepiece: by the package sentencepiece, which
    reads plain text, also in languages without spaces between words; none: words stay whole.
    """
    sentencepiece: Literal["unigram", "bpe"] = "unigram"
    """sentencepiece: the model to learn, a unigram language model or byte-pair encoding."""
    merges: NonNegativeInt = 8000
    """BPE merge operations to learn (for each side if not joint); 0 = none, as `subwords=none`."""
    vocab_size: NonNegativeInt = 0
    """With `subwords=sentencepiece`: pieces to learn (for each side if not joint); 0 = as many as
    `merges`. With `subwords=none`: keep only this many words, the most frequent ones; 0 = all.
    """
    vocab_threshold: NonNegativeInt = 0
    """BPE: undo merges that give a unit seen less often than this on that side (subword-nmt
    --vocabulary-threshold).
    """
    min_frequency: AtLeastOne = 1
    """Tokens seen less often in the training text than this become <unk>."""
    min_words: AtLeastOne = 1
    """Training pairs with a shorter side (in words of its tokenizer) are dropped."""
    max_words: AtLeastOne = 250
    """Training pairs with a longer side (in words of its tokenizer) are dropped."""
    max_ratio: float = Field(9.0, ge=1)
    """Training pairs whose sides differ in length by more than this factor are dropped (Moses
    clean-corpus-n: 9).
    """
    max_subwords: int = Field(256, ge=2)
    """Training pairs with a longer side in subwords are dropped."""
    deduplicate: bool = False
    """Drop training pairs that occurred before in the training text."""
    drop_overlap: Literal["none", "exact", "normalised"] = "none"
    """Drop training pairs that a dev or test set contains: exactly, or normalised (regardless of
    case, white space and punctuation).
    """
    shard_lines: NonNegativeInt = 0
    """Training pairs of a shard, the unit of work of prep and of the order of training; 0 = by the
    size of the text, from 5,000 to 200,000.
    """
    memory: float = Field(0.0, ge=0, le=1e9)
    """GiB of memory that prep may use for counts of words and for repeated pairs; 0 = a quarter of
    the machine. The output does not depend on it.
    """
    max_types: AtLeastOne = 5_000_000
    """The most different words, of both sides together, that truecasers, subwords and vocabularies
    are learnt from. If a text has more, the rarest are left out; the manifest says how many.
    """
    on_bad_utf8: Literal["error", "replace", "drop"] = "error"
    """What to do with bytes that are not UTF-8: stop, put U+FFFD in their place, or drop the
    training pair (counted; dev and test lines stay).
    """

    @field_validator("test", mode="before")
    @classmethod
    def _split_at_commas(cls, value: Any) -> Any:
        return [name for name in value.split(",") if name] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _sentencepiece_reads_words(self) -> Self:
        if self.subwords == "sentencepiece" and "characters" in {
            self.src_tokenizer,
            self.tgt_tokenizer,
        }:
            raise ValueError(
                "prep.subwords = sentencepiece cannot join characters: leave out the tokenizer, "
                "because SentencePiece reads text without spaces"
            )
        return self


class TrainSettings(Section):
    """The budget and the optimiser (`train.*`)."""

    max_steps: AtLeastOne = 100_000
    """Updates of the weights in all, counted from the first step of the system."""
    max_minutes: NonNegativeFloat = 0.0
    """Stop after this much training time (validation not counted); 0 = no limit."""
    batch_size: AtLeastOne = 4096
    """Size of one batch, in `batch_unit`."""
    batch_unit: Literal["tgt_tokens", "src_tokens", "sentences"] = "tgt_tokens"
    """What batches are measured in: subwords of one side (</s> included), or sentence pairs."""
    update_size: int = Field(0, ge=0, le=100_000_000)
    """Size of an update, which has round(`update_size` / `batch_size`) batches, at least one; 0 =
    every batch is an update.
    """
    micro_batch: Literal["auto", "batch"] = "auto"
    """What is computed at once. batch: a batch. auto: on a GPU the batches of an update are joined
    and cut anew, into parts that fit into memory and give every rank equal work; on a CPU as batch.
    """
    schedule: Literal["noam", "cosine", "plateau", "constant"] = "noam"
    """The learning rate after the warm-up. noam: falls with t^-0.5; cosine: half a cosine down to 0
    at `max_steps`; plateau: falls whenever a loss stalls; constant: stays.
    """
    lr: PositiveFloat = 1.0
    """noam: the factor s of s·d^-0.5·min(t^-0.5, t·w^-1.5), d being `d_model` or `d_embedding`;
    cosine, plateau, constant: the peak learning rate.
    """
    warmup: NonNegativeInt = 8000
    """Updates in which the learning rate rises linearly from 0; 0 = none."""
    decay_factor: float = Field(0.5, gt=0, lt=1)
    """plateau: the learning rate is multiplied by this when `plateau_on` has not improved for more
    than `decay_patience` validations.
    """
    decay_patience: NonNegativeInt = 0
    """plateau: validations without improvement that are tolerated; the next one lowers the learning
    rate.
    """
    plateau_on: Literal["train_loss", "dev_loss"] = "dev_loss"
    """plateau: the loss that must improve, of the development set or of the training since the
    last validation.
    """
    min_lr: NonNegativeFloat = 0.0
    """plateau: stop when the learning rate falls to this."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.98)
    """Adam's decay rates of the means of gradients and of their squares."""
    epsilon: PositiveFloat = 1e-9
    """Adam's ε, added to the root of the mean square."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled from the gradient (AdamW); 0 = none."""
    label_smoothing: BelowOne = 0.1
    """Share of the target probability that is spread over the whole vocabulary; the right subword
    gets the rest.
    """
    replace: Literal["none", "uniform", "similar"] = "none"
    """Replace random source tokens and decoder inputs in training, by a token drawn uniformly from
    the vocabulary or by one with a similar embedding.
    """
    replace_keep: float = Field(0.9, ge=0, le=1)
    """replace: the probability that a token is kept falls to this."""
    replace_decay: PositiveFloat = 1000.0
    """replace: k of the probability k/(k+exp(i/k)) that a token is kept at update i."""
    word_dropout: BelowOne = 0.0
    """Probability that a source token or a decoder input has a vector of zeros in training."""
    subword_dropout: float = Field(0.0, ge=0, le=1)
    """Split words anew at random in each epoch, on both sides of the training text. With BPE the
    probability that a merge is left out (BPE-dropout); with a unigram model of SentencePiece the α
    of its sampling, where smaller values give rarer segmentations; 0 = off. 0.1 is usual.
    """
    clip_norm: NonNegativeFloat = 0.0
    """Clip the global gradient norm; 0 = off."""
    ema: BelowOne = 0.0
    """Decay of an exponential moving average of the weights, such as 0.9999; 0 = none. Validation
    and all later stages use the averages; training goes on with the weights themselves.
    """
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on a GPU that has it, and on a CPU that multiplies it faster if the model is
    at least 128 wide; float16 with loss scaling on a GPU without fast bfloat16 (Volta, Turing);
    else float32.
    """
    matmul: Literal["auto", "highest", "high", "medium"] = "auto"
    """Path of float32 products (torch.set_float32_matmul_precision); auto: TF32 on a GPU, on a
    CPU the fastest that is as exact as `highest`.
    """
    sums: Literal["float32", "bfloat16"] = "float32"
    """The type in which gradients travel between ranks. bfloat16 halves the bytes; an update is
    then less exact, and it depends on the number of ranks.
    """
    packed: Literal["auto", "yes", "no"] = "auto"
    """The sentences of a batch stand one after the other in one row, without padding between them,
    for models that can read that (Transformers). auto packs on a GPU with nmtkit's attention kernel
    (16 bits), models with contexts on any GPU, and concatenation also on a CPU. Elsewhere packing
    gains or loses a few percent. The batches are the same, with other dropout masks.
    """
    deterministic: bool = False
    """On a GPU, use only algorithms that give the same bits every time; some are slower. A CPU
    always gives the same bits.
    """
    seed: NonNegativeInt = 1
    """Seed of initialisation, dropout and the order of batches."""
    checkpoint_every: AtLeastOne = 1000
    """Updates between two checkpoints (a new best and the last update are saved too)."""
    keep_checkpoints: AtLeastOne = 5
    """Keep the last k checkpoints at multiples of `checkpoint_every`, the newest and the best."""
    validate_every: AtLeastOne = 1000
    """Updates between two validations on the development set."""
    dev_bleu: bool = True
    """Decode the development set at validation and score it."""
    dev_sentences: NonNegativeInt = 0
    """Number of development sentences for BLEU, from the first; 0 = all."""
    best_by: Literal["dev_bleu", "dev_loss"] = "dev_bleu"
    """The value that chooses the best checkpoint; without `dev_bleu` it is the loss."""
    patience: NonNegativeInt = 0
    """Early stopping: end after this many validations without a new best; 0 = never."""
    log_every: AtLeastOne = 50
    """Updates between two lines of the log."""
    samples: NonNegativeInt = 2
    """Number of sample translations in the log at each validation."""
    log_to: Literal["auto", "tensorboard", "wandb", "none"] = "auto"
    """Where curves and sample translations go, beside train.log and metrics.jsonl: TensorBoard,
    Weights & Biases or nowhere else. auto: TensorBoard if it is installed.
    """


class SearchSettings(Section):
    """How the search for translations works (`search.*`)."""

    beam: int = Field(5, ge=1, le=10_000)
    """Hypotheses per sentence; 1 = greedy."""
    length_penalty: float = Field(0.6, ge=0, le=20)
    """α of GNMT's penalty ((5+|Y|)/6)^α, |Y| including the end of sentence."""
    max_length_a: float = Field(1.0, ge=0, le=1000)
    """a of the limit a·n+b on the subwords of a translation with n source subwords."""
    max_length_b: int = Field(50, ge=0, le=100_000)
    """b of the limit a·n+b."""
    nbest: int = Field(1, ge=1, le=10_000)
    """Translations written for each sentence, best first; above 1 as lines of JSON. At most `mbr`
    if that is set, else at most `beam`, or any number with `sample`.
    """
    average: AtLeastOne = 1
    """Number of checkpoints to average: the last ones at multiples of `train.checkpoint_every`.
    With 1, or with fewer than two such checkpoints, the best checkpoint alone.
    """
    batch_size: int = Field(0, ge=0, le=1_000_000)
    """Sentences in one batch of the search; 0 = 128 on a CPU, or 256 for greedy search of 4,000
    lines or more; 512 on a GPU, whose time for a step hardly depends on the rows; fewer if a
    sentence has 16 or more hypotheses or samples.
    """
    precision: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    """Number type of the products inside the layers; auto: bfloat16 on a CPU that multiplies it
    faster if the model is at least 128 wide, TF32 on a GPU. float16 needs a GPU. int8 (on a CPU)
    rounds weights and activations of all wide products to 255 levels, the output layer's too, which
    otherwise uses float32. Forced scoring always uses float32, as TF32 on a GPU.
    """
    max_source: int = Field(250, ge=1, le=1_000_000)
    """Longer inputs (in subwords) are translated in pieces, cut at punctuation if there is any."""
    sample: bool = False
    """Draw translations from the model's distribution instead of searching; `nbest` of each
    sentence.
    """
    temperature: PositiveFloat = 1.0
    """sample: below 1, probable tokens are drawn more often; above 1, less often."""
    top_k: NonNegativeInt = 0
    """sample: draw only from the k most probable tokens; 0 = from all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """sample: draw only from the most probable tokens that together have this probability."""
    seed: NonNegativeInt = 1
    """sample: seed of the draws."""
    mbr: int = Field(0, ge=0, le=10_000)
    """Choose by minimum Bayes risk among this many candidates: samples with `sample`, else the best
    of the beam. The utility is chrF; 0 = choose the most probable.
    """
    diverse_groups: AtLeastOne = 1
    """Groups of a diverse beam search, which share `beam` equally; 1 = plain beam search."""
    diversity: NonNegativeFloat = 0.5
    """diverse_groups: penalty λ for a token that each hypothesis of an earlier group has chosen at
    the same step.
    """

    @model_validator(mode="after")
    def _fits_the_method(self) -> Self:
        self._refuse_without("sample", self.sample, "temperature", "top_k", "top_p", "seed")
        self._refuse_without("diverse_groups", self.diverse_groups > 1, "diversity")
        if self.sample and self.diverse_groups > 1:
            raise ValueError("search.diverse_groups is for a beam, search.sample has none")
        if self.beam % self.diverse_groups:
            raise ValueError(
                f"search.beam = {self.beam} cannot be shared by search.diverse_groups ="
                f" {self.diverse_groups}"
            )
        candidates, key = (self.mbr, "mbr") if self.mbr else (self.nbest, "nbest")
        if candidates > self.beam and not self.sample:
            raise ValueError(
                f"search.{key} = {candidates} is more than search.beam = {self.beam}: raise the"
                " beam or ask for fewer"
            )
        if self.nbest > candidates:
            raise ValueError(f"search.nbest = {self.nbest} is more than search.mbr = {self.mbr}")
        return self

    def _refuse_without(self, other: str, is_set: bool, *keys: str) -> None:
        """Refuse settings that have no effect because another one (`other`) is not set."""
        for key in keys:
            value = getattr(self, key)
            if not is_set and value != type(self).model_fields[key].default:
                raise ValueError(f"search.{key} = {value} has no effect without search.{other}")


STAGES: dict[str, type[Section]] = {
    "prep": PrepSettings,
    "train": TrainSettings,
    "search": SearchSettings,
}
S = TypeVar("S", bound=BaseModel)
Values = dict[str, dict[str, Any]]


def load_preset(name: str) -> Values:
    """Return the sections of a preset (nmtkit/presets/NAME.toml).

    Raises: ConfigError that names the nearest preset if this one is unknown.
    """
    check_known(name, preset_names(), f"unknown preset '{name}'", "--preset")
    return _sections(tomllib.loads(preset_text(name)), f"preset {name}")


def habit(name: str) -> str:
    """Return nmtkit's name for an option or setting of other toolkits; "" if unknown.

    Args:
        name: such as --batch-size, lr or train.dropout.
    """
    key = name.lstrip("-").rpartition(".")[2].replace("-", "_")
    of_setting = " or ".join(f"--set {section}.{key}=…" for section in _sections_with(key))
    return HABITS.get(key) or of_setting


def _sections_with(key: str) -> list[str]:
    """Return the sections of a setting, by its name alone."""
    return [section for section, schema in STAGES.items() if key in schema.model_fields]


def load_config(path: Path, *variants: str) -> Values:
    """Return the sections of a TOML settings file, which may be the config.toml of a system or the
    run.toml of a run.

    Args:
        path: the file.
        variants: the variant of the call, then other variants with the same settings.
    Raises: ConfigError if the file is missing, is not TOML, has an unknown section, or names
        another variant.
    """
    values = read_toml(
        path,
        "the settings file",
        "--config",
        'write it as [train] / max_steps = 1000 / schedule = "noam"',
    )
    of_file = values.get("variant")
    if variants and of_file not in (None, *variants):
        message = f"the file has the settings of '{of_file}', not of '{variants[0]}'"
        raise ConfigError(message, path, "name its variant with --variant")
    if "fingerprint" in values:  # run.toml, whose other keys are no settings
        values = {"prep": values.get("prep")}
    return _sections({k: v for k, v in values.items() if k not in OF_A_SYSTEM}, path)


def _sections(values: dict[str, Any], where: object) -> Values:
    for key, value in values.items():
        if key not in SECTIONS and not isinstance(value, dict):
            names = " or ".join(f"[{name}]" for name in _sections_with(key) or SECTIONS)
            raise ConfigError(
                f"'{key}' is in no section", where=where, hint=f"write {names} on a line before it"
            )
        check_known(key, SECTIONS, f"unknown section '{key}'", where)
        if not isinstance(value, dict):
            raise ConfigError(
                f"'{key}' is a section, not a value",
                where=where,
                hint=f"write [{key}] on a line of its own",
            )
    return values


def parse_set(assignments: list[str]) -> Values:
    """Return the sections of `--set section.key=value` options; a value that is not TOML is text.

    Raises: ConfigError for a malformed option or an unknown section.
    """
    values: Values = {}
    for text in assignments:
        key, equals, raw = text.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or not dot or not name:
            raise ConfigError(
                f"cannot read the setting '{text}'",
                where="--set",
                hint=(not dot and habit(section))
                or "write --set section.key=value, for example --set train.max_steps=1000",
            )
        check_known(section, SECTIONS, f"unknown section '{section}' in '{text}'", "--set")
        try:
            value = tomllib.loads(f"x = {raw.strip()}")["x"]
        except (ValueError, RecursionError):  # ValueError: a number of thousands of digits, too
            value = raw.strip()
        values.setdefault(section, {})[name] = value
    return values


def merge(*layers: Values) -> Values:
    """Merge layers of sections; for each key the last layer with the key wins."""
    merged: Values = {}
    for layer in layers:
        for section, values in layer.items():
            merged.setdefault(section, {}).update(values)
    return merged


def complete(schema: type[Section], values: dict[str, Any]) -> dict[str, Any]:
    """Return a section of config.toml with values for settings that are newer than the file."""
    defaults = {
        key: field.get_default(call_default_factory=True)
        for key, field in schema.model_fields.items()
        if not field.is_required()
    }
    return defaults | schema.earlier | values


def without_unknown(schema: type[Section], values: dict[str, Any]) -> dict[str, Any]:
    """Return `complete` without settings that this version lacks."""
    return {k: v for k, v in complete(schema, values).items() if k in schema.model_fields}


def build(schema: type[S], values: dict[str, Any], section: str, file: Path | None = None) -> S:
    """Check values against a section's schema.

    Args:
        schema: the pydantic class.
        values: plain values.
        section: name of the section, for messages.
        file: the settings file of the values, for messages.
    Returns: the frozen settings.
    Raises: ConfigError that names the key, the value and the allowed values; for an unknown key,
        the nearest one.
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        message = plain(first["msg"])
        where = f"{file}, [{section}]" if file else f"[{section}]"
        if not first["loc"]:  # the error is about several keys together
            hint = "change one of them"
            raise ConfigError(message, where=where, hint=hint) from None
        key = ".".join([section, *map(str, first["loc"])])
        if first["type"] == "extra_forbidden":
            name = str(first["loc"][-1])
            meant = habit_in(section, schema.model_fields, name)
            hint = meant or nearest(name, _known(schema, first["loc"]))
            raise ConfigError(f"unknown setting '{key}'", where=where, hint=hint) from None
        raise ConfigError(
            f"bad value for '{key}': {message} (got {short(first['input'])})",
            where=where,
            hint=_describe(schema, first),
        ) from None


def _describe(schema: type[BaseModel], error: Any) -> str | None:
    name = str(error["loc"][0])
    field = schema.model_fields.get(name)
    if field is None:
        return None
    default = "required" if field.is_required() else f"default {field.default!r}"
    meaning = " ".join((field.description or name.replace("_", " ")).split())  # on one line
    return f"{name}: {meaning} ({default})"


def _known(schema: type[BaseModel], place: Sequence[int | str]) -> Iterable[str]:
    """Return the known settings beside an unknown one: of the schema, or of a schema inside it."""
    for part in place[:-1]:
        field = schema.model_fields.get(str(part))
        types = _types(field.annotation) if field else []
        inside = (t for t in types if isinstance(t, type) and issubclass(t, BaseModel))
        schema = next(inside, schema)
    return schema.model_fields


def _types(annotation: Any) -> list[Any]:
    """Return a type and all types inside it."""
    return [annotation, *(inner for part in typing.get_args(annotation) for inner in _types(part))]
