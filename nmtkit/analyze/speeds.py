"""The speeds of `cost`: those that an earlier --measure timed, or those of the logs."""

from __future__ import annotations

import operator

from pydantic import BaseModel, ValidationError

from nmtkit import console, files
from nmtkit.analyze.analysis import stored
from nmtkit.analyze.study import Study
from nmtkit.analyze.timing import Timing
from nmtkit.curves import read
from nmtkit.models import checkpoints
from nmtkit.records import processor_of
from nmtkit.run import System
from nmtkit.score.translations import described
from nmtkit.tables.table import Estimate

Speeds = tuple[float | None, float | None, float | None]
"""Target tokens/s and updates/s of training, and target tokens/s of decoding, if known."""


class CostFacts(BaseModel):
    """The facts of a finding of `cost`.

    Attributes:
        baseline: the first system.
        src_length, tgt_length: of the counted sentences.
        contexts, spans: of the systems that read some.
        set: the set that decoding speeds are of.
        measured: speeds that were measured in turn; empty if speeds are from the logs.
    """

    baseline: str
    src_length: int
    tgt_length: int
    contexts: dict[str, float]
    spans: dict[str, int]
    set: str
    measured: dict[str, Timing]


def relative(value: float | None, baseline: float | None) -> float | None:
    """Return value / baseline, None if either is missing."""
    return value / baseline if value is not None and baseline else None


def stored_speeds(study: Study) -> dict[str, Timing]:
    """Return the speeds that an earlier --measure timed, if baseline, set and systems are the same.

    Returns: system -> timing; {} without such timings.
    """
    earlier = stored(study.folder)
    if earlier is None:
        return {}
    try:
        facts = CostFacts.model_validate(earlier.facts)
    except ValidationError:  # a finding of another version
        return {}
    weights = {name: checkpoints.current(study.run.system(name)) for name in study.systems}
    configs = files.hashes((study.run.system(n).config for n in study.systems), study.run.path)
    if (
        (facts.baseline, facts.set) == (study.systems[0], study.set_name)
        and facts.measured.keys() >= {*study.systems}
        and weights.items() <= earlier.made_from.weights.items()
        and configs.items() <= earlier.made_from.files.items()
    ):
        study.checkpoints |= {name: list(digests) for name, digests in weights.items()}
        return {name: facts.measured[name] for name in study.systems}
    if facts.measured:
        console.say(
            f"cost: the times that --measure took of {', '.join(facts.measured)} are not of these"
            " systems; speeds are read from the logs"
        )
    return {}


def logged_speeds(study: Study) -> dict[str, Timing]:
    """Return the speeds that training and translation logged: system -> timing without interval,
    and without a ratio to a baseline of another processor or number type.
    """
    logs = {name: logged(study.run.system(name), study.set_name) for name in study.systems}
    base, base_processors = logs[study.systems[0]]
    timings = {}
    for name, (speeds, processors) in logs.items():
        trained, translated = map(operator.eq, processors, base_processors)
        train_ratio = Estimate(relative(base[0], speeds[0]) if trained else None)
        decode_ratio = Estimate(relative(base[2], speeds[2]) if translated else None)
        timings[name] = Timing(*speeds, train_ratio, decode_ratio)
    return timings


def logged(system: System, set_name: str) -> tuple[Speeds, list[tuple[object, object]]]:
    """Return the logged speeds of a system, and the processors (`processor_of`) of its training and
    of its translation.

    Raises: DataError for a damaged metrics.jsonl or meta.json.
    """
    hardware, translation = system.read_config().hardware, described(system.translation(set_name))
    tokens, updates = read(system.metrics).speed(hardware.get("device") == "cpu")
    speed = translation.speed.tokens_per_second if translation.speed else None
    return (tokens, updates, speed), [processor_of(hardware), processor_of(translation.hardware)]
