"""The files of scores, each as one frozen record, by the rules of `nmtkit.records`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from pydantic import FiniteFloat, NonNegativeFloat, model_validator

from nmtkit.files import JsonObject
from nmtkit.names import Name
from nmtkit.records import Part, Record, require
from nmtkit.tables.table import Estimate, StoredTable

# score/<set>/metrics/<metric>/<system>.json


class ExternalScores(Record):
    """Scores of an external metric for one system, as its command printed them."""

    again: ClassVar[str] = "nmtkit score --force"
    format: Literal[1]
    made_from: str
    """A hash of the command and of all texts."""
    scores: list[FiniteFloat]
    """One for each sentence."""


# score/<set>/scores.json


@dataclass(frozen=True)
class MetricScore:
    """One metric of one system, with its 95% interval."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    signature: str
    details: JsonObject

    @property
    def estimate(self) -> Estimate:
        """The value with its interval."""
        return Estimate(self.value, self.low, self.high)


@dataclass(frozen=True)
class Comparison:
    """The outcome of one significance test of a system against a baseline on one metric.

    Attributes:
        p: as the test defines it; None if there are few sentences, or few that differ.
        setting: the resamples, or the counts, behind p.
    """

    p: float | None
    setting: str


@dataclass(frozen=True)
class SystemScores:
    """One system on a set; the baseline has no differences and tests."""

    name: Name
    scores: dict[str, MetricScore]
    length_ratio: Estimate
    empty_hypotheses: int
    differences: dict[str, Estimate]
    tests: dict[str, dict[str, Comparison]]


@dataclass(frozen=True)
class SignificanceTest:
    """A significance test; finest: its smallest p above 0 with these resamples (0: no limit)."""

    name: str
    reading: str
    finest: NonNegativeFloat


@dataclass(frozen=True)
class DrawnResamples:
    """The resamples behind intervals and tests."""

    resamples: int
    trials: int
    ratio: float
    seed: int
    interval: str


@dataclass(frozen=True)
class Spread:
    """Scores of several seeds.

    Attributes:
        half_range: (max - min) / 2, the b of papers that write a±b.
        mid_range: (max + min) / 2, the a of these papers.
        deviation: sample standard deviation (n - 1); None for one value.
    """

    n: int
    mean: float
    half_range: float
    mid_range: float
    deviation: float | None
    low: float
    high: float


@dataclass(frozen=True)
class SeedPair:
    """A system against the baseline of the same seed."""

    seed: int
    system: str
    baseline: str
    difference: float
    better: bool
    p: float | None


@dataclass(frozen=True)
class SeedDifference:
    """A group of seeds against the group of the baseline.

    Attributes:
        difference: the difference of the means.
        low, high, p: the 95% interval of the difference, and its p, over other seeds and other
            sentences; None if the error of the seeds is not known, or there are few sentences.
        p_holm: p after Holm's correction over all groups that are compared on this metric.
    """

    difference: float
    pairs: list[SeedPair]
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None

    @property
    def estimate(self) -> Estimate:
        """The difference with its interval."""
        return Estimate(self.difference, self.low, self.high)


@dataclass(frozen=True)
class SeedGroup:
    """Systems that differ in the training seed.

    Attributes:
        name: the common beginning of the names, without a seed's mark (base-s1, base-s2: base).
        systems: the names of the systems.
        seeds: the seed of each system; None for an ensemble or an outside system.
        unequal: other settings in which the systems differ, if they were grouped by name.
    """

    name: str
    systems: list[str]
    seeds: list[int | None]
    unequal: list[str] = field(default_factory=list, kw_only=True)


@dataclass(frozen=True)
class SeedScores(SeedGroup):
    """A group's scores by metric, and its differences to the baseline's group (which has none)."""

    scores: dict[str, Spread]
    against: dict[str, SeedDifference]


@dataclass(frozen=True)
class SeedResult:
    """All groups of training seeds; baseline: a group; test: the test of the pairs."""

    baseline: str
    test: str
    groups: list[SeedScores]
    grouping: str = "seed"
    """One of `score.seeds.GROUPINGS`."""

    def check(self, names: Collection[str], keys: Sequence[str]) -> None:
        """Raise ValueError if the groups have other systems, or lack a metric."""
        members = sorted(name for group in self.groups for name in group.systems)
        require(members == sorted(names), "'seeds.groups' has other systems")
        require(self.baseline in {g.name for g in self.groups}, "'seeds' lacks its baseline")
        for group in self.groups:
            place = f"'seeds.groups': {group.name}"
            require(len(group.seeds) == len(group.systems) > 0, f"{place} has other seeds")
            against = [] if group.name == self.baseline else keys
            same = [*group.scores] == [*keys] and [*group.against] == [*against]
            require(same, f"{place} lacks a metric")

    @property
    def several(self) -> bool:
        """True if some group has two systems or more."""
        return any(len(group.systems) > 1 for group in self.groups)


@dataclass(frozen=True)
class LengthScore:
    """One system in one length group. BLEU and length ratio of an empty group are None.

    Difference and p are against the baseline inside the group; the baseline has none. A group of
    few sentences has no p, and a group of very few sentences no intervals.
    """

    group: str
    sentences: int
    system: str
    p: float | None
    bleu: Estimate
    length_ratio: Estimate
    difference: Estimate


@dataclass(frozen=True)
class GroupScore:
    """Another metric than BLEU of one system in one length group; see `LengthScore`."""

    group: str
    sentences: int
    system: str
    p: float | None
    score: Estimate
    difference: Estimate


class LengthResult(Part):
    """All length groups; buckets: the value of --buckets; unit: the unit of source lengths."""

    buckets: str
    unit: str
    groups: list[LengthScore]
    further: dict[str, list[GroupScore]] = {}
    """The groups of all other metrics of --metrics and --metric, by metric."""


@dataclass(frozen=True)
class Budget:
    """How a system was trained; None or "" for unknown values."""

    updates: int | None
    tokens: int | None
    """Target tokens seen."""
    preset: str
    corpus: str = ""
    """The fingerprint of the prepared corpus."""
    init_from: str = ""
    """The system whose weights were the initial weights."""
    settings: JsonObject = field(default_factory=dict)
    """Settings of the updates by key (train.lr), without the seed."""


class ScoredFrom(Part):
    """Everything that scores depend on. They are up to date if it has not changed."""

    nmtkit: str
    sacrebleu: str
    prepared: str
    baseline: str
    test: str
    draws: JsonObject
    seeds: list[Any]
    files: dict[str, str]
    budgets: dict[str, Budget] = {}
    """The budget of each system, by name."""
    metrics: dict[str, str] = {}
    """The metrics that were asked for, each external one with a hash of what it depends on."""
    older_checkpoints: list[str] = []
    """A remark on each system whose checkpoints have changed since it translated."""
    cautions: list[str] = []
    """Further remarks on the translations, as `cautions_on` returns them."""


class Scores(Record):
    """All systems on one test set, side by side."""

    again: ClassVar[str] = "nmtkit score --force"
    format: Literal[4]
    set: str
    language: str
    sentences: int
    references: int
    empty_references: int
    baseline: str
    signatures: dict[str, str]
    resampling: DrawnResamples
    test: str
    """The test whose p is in the main table."""
    tests: dict[str, SignificanceTest]
    version: str
    commit: str | None
    remarks: list[str]
    systems: list[SystemScores]
    seeds: SeedResult | None = None
    by_length: LengthResult | None = None
    made_from: ScoredFrom | None = None
    paper: StoredTable | None = None
    """These scores beside the numbers of a paper."""
    asked: list[str] = []
    """The metrics of --metrics (BLEU is the first of them) and of --metric."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Raise ValueError unless every system has all that the tables show."""
        keys, tests = self.signatures.keys(), self.tests.keys()
        names = {*self.names}
        require("bleu" in keys and keys >= {*self.asked}, "'signatures' lacks a metric")
        require(self.test in tests, "'tests' lacks 'test'")
        require(len(names) == len(self.systems), "'systems' names a system twice")
        require(self.baseline in names, "'systems' lacks 'baseline'")
        for system in self.systems:
            place = f"'systems': {system.name}"
            measured: list[Mapping[str, object]] = [system.scores]
            if system.name != self.baseline:
                measured += [system.differences, *system.tests.values()]
                require(system.tests.keys() == tests, f"{place} lacks a test")
            require(all(of.keys() == keys for of in measured), f"{place} lacks a metric")
        if self.seeds:
            self.seeds.check(names, [*keys])
        if self.by_length:
            require(self.by_length.further.keys() <= keys, "'by_length' has an unknown metric")
            scored = [g.system for g in self.by_length.groups]
            require(
                Counter(scored) == Counter(len(scored) // len(names) * [*names]),
                "'by_length.groups' has other systems",
            )
        return self

    @property
    def names(self) -> Sequence[str]:
        """The names of the systems."""
        return [system.name for system in self.systems]

    @property
    def compared(self) -> bool:
        """True if there are several systems."""
        return len(self.systems) > 1

    @property
    def p_of_bleu(self) -> list[float | None]:
        """The p of each system's BLEU against the baseline."""
        return [system.tests[self.test]["bleu"].p for system in self.systems if system.tests]

    @property
    def asked_further(self) -> list[str]:
        """The metrics that were asked for, besides BLEU."""
        return [key for key in self.asked if key != "bleu"]

    @property
    def has_seeds(self) -> bool:
        """True if some system has several seeds."""
        return self.seeds is not None and self.seeds.several
