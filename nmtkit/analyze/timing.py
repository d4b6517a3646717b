"""Speed of several systems: timed in turn, kept from an earlier call, or read from the logs.

Systems are timed in turn in one process, so that other load on the machine slows all of them alike.
Every sentence of a timed search gets the same length; otherwise a system that writes more would
seem slower.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from nmtkit import console, files
from nmtkit.analyze.analysis import stored
from nmtkit.analyze.study import Study
from nmtkit.arrays import Floats
from nmtkit.curves import read
from nmtkit.data.batches import Batch, collate
from nmtkit.data.padding import Ids
from nmtkit.data.store import Store
from nmtkit.errors import EnvironmentProblem
from nmtkit.models import checkpoints
from nmtkit.models.base import Memory, Model, State
from nmtkit.models.variants import common_width
from nmtkit.nn import hardware
from nmtkit.nn.linear import rounds
from nmtkit.run import System
from nmtkit.score.translations import described
from nmtkit.settings import SearchSettings, complete
from nmtkit.tables.table import Estimate
from nmtkit.text.vocabulary import EOS
from nmtkit.train.gradients import Gradients, Share, autocast_arguments
from nmtkit.train.state import TrainState
from nmtkit.train.updates import Updates
from nmtkit.translate.beam import search

UPDATES, SENTENCES = 3, 48
"""The work of each system in a round: updates, and sentences of one search."""
LEAST, MOST, SECONDS = 7, 25, 120.0
"""As many rounds are timed as fit into SECONDS, at least LEAST and at most MOST."""
SEED = 1


@dataclass(frozen=True)
class Timing:
    """Speed of one system; None where it is not known.

    Attributes:
        train_tokens_per_s, decode_tokens_per_s: target tokens a second.
        updates_per_s: updates a second.
        train_ratio, decode_ratio: time divided by the baseline's time: median and middle 95 % of
            the ratios of the rounds.
        rounds: timed rounds; 0 = the speeds are from the logs.
        device: the device and its precision.
    """

    train_tokens_per_s: float | None
    updates_per_s: float | None
    decode_tokens_per_s: float | None
    train_ratio: Estimate = Estimate(None)
    decode_ratio: Estimate = Estimate(None)
    rounds: int = 0
    device: str = ""


class Endless(Model):
    """A model that never writes </s>."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.settings, model.vocabularies)
        self.model = model

    @property
    def width(self) -> int:
        return self.model.width

    def encode(self, batch: Batch) -> Memory:
        return self.model.encode(batch)

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        return self.model.decode(tgt_in, memory, state)

    def logits(self, hidden: Tensor) -> Tensor:
        scores = self.model.logits(hidden)
        scores[..., EOS] = float("-inf")
        return scores


class Bench:
    """The models of a study, and the work that each model does in a round.

    Args:
        study: its first system gives batches, precision and search settings.
        steps: target tokens of every decoded sentence.
    """

    def __init__(self, study: Study, steps: int) -> None:
        first = study.run.system(study.systems[0])
        config, training, settings = first.read_config(), first.training(), first.searching()
        limits = {"max_length_a": 0.0, "max_length_b": steps, "nbest": 1}
        self.search = settings.model_copy(update=limits)
        wanted = settings.precision if study.device.type == "cpu" else "float32"
        width = common_width(config.preset, config.model)
        decoding = hardware.choose(precision=wanted, width=width).precision
        # The last choice, because it sets how float32 is multiplied.
        machine = hardware.choose("auto", training.precision, width, training.matmul)
        self.device, autocast = study.device, autocast_arguments(machine)
        self.models = {name: study.model(name, decoding) for name in study.systems}
        if not rounds([*self.models.values()], decoding):
            decoding = "float32"
        self.where = machine.describe()
        if decoding != machine.precision:
            self.where += f", decoding in {decoding}"
        console.say(f"measuring on: {self.where}")
        self.endless = {name: Endless(model) for name, model in self.models.items()}
        self.sources = {name: _sources(study, name, self.models[name]) for name in study.systems}
        self.pairs = Store(study.run.prep / "train")
        self.gradients = {
            name: Gradients(
                model, self.pairs, study.run.system(name).training(), autocast, TrainState()
            )
            for name, model in self.models.items()
        }
        self.updates = Updates(self.pairs, training)

    def round(self, number: int, advance: console.Advance) -> tuple[int, Floats]:
        """Do the work of a round. All systems get the same batches; every round has new batches.

        Returns: target tokens of the updates; seconds of updates and search, (systems, 2).
        """
        first = number * UPDATES + 1
        drawn = [self.updates.next() for _ in range(UPDATES)]
        seconds = np.empty((len(self.models), 2))
        for i, (name, model) in list(enumerate(self.models.items()))[:: 1 if number % 2 else -1]:
            model.train()  # a model may read other contexts in training than in evaluation
            gradients = self.gradients[name]
            shares = [(update, gradients.share(update, make=True)) for update in drawn]
            updates = partial(self._update, gradients, shares, first)
            if gradients.graphs:  # CUDA graphs are recorded in the second run
                updates()
                updates()
            decoding = partial(self._decode, self.endless[name], self.sources[name])
            seconds[i] = self._seconds(updates), self._seconds(decoding)
            if gradients.state.split_from is not None:
                message = f"too little memory for an update of '{name}'"
                hint = "measure on a machine with more memory"
                raise EnvironmentProblem(message, where="--measure", hint=hint)
            if gradients.graphs:  # only the graphs of a search serve the next round
                gradients.graphs.clear()
            advance(1)
        batches = itertools.chain.from_iterable(drawn)
        return sum(int(self.pairs.lengths(rows)[1].sum()) for rows in batches), seconds

    def _update(
        self, gradients: Gradients, shares: Sequence[tuple[list[Ids], Share]], first: int
    ) -> None:
        """Compute forward and backward passes as training does, without the optimiser's step."""
        for step, (update, share) in enumerate(shares, first):
            gradients.compute(update, step, 1.0, share)
            gradients.model.zero_grad(set_to_none=True)

    def _decode(self, model: Endless, sources: Batch) -> None:
        search([model.eval()], sources, self.search)

    def _seconds(self, work: Callable[[], None]) -> float:
        self._wait()
        start = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        """Wait until a GPU has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure_speed(study: Study, steps: int, rounds: int = 0) -> dict[str, Timing]:
    """Time updates (forward, loss, backward) and beam search of every system, in turn.

    Updates take batches of the training set; sentences of the study's set are decoded.

    Args:
        study: systems with checkpoints; ratios are to the first.
        steps: target tokens of every decoded sentence.
        rounds: timed rounds; 0 = as many as the time of an untimed round allows.
    Raises: CheckpointError, DataError if a system cannot be loaded.
    """
    bench = Bench(study, steps)
    with console.progress("warming up", len(bench.models)) as advance:
        _, warm_up = bench.round(0, advance)
    rounds = rounds or round(min(MOST, max(LEAST, SECONDS / warm_up.sum())))
    with console.progress("measuring", rounds * len(bench.models)) as advance:
        timed = [bench.round(number, advance) for number in range(1, rounds + 1)]
    tokens, seconds = (np.array(column) for column in zip(*timed, strict=True))
    ratios = np.quantile(seconds / seconds[:, :1], [0.5, 0.025, 0.975], axis=0)
    decoded = len(bench.sources[study.systems[0]].src) * steps
    timings = {}
    for i, name in enumerate(bench.models):
        update, decoding = seconds[:, i].T
        train_ratio, decode_ratio = (Estimate(*values) for values in ratios[:, i].T.tolist())
        timings[name] = Timing(
            float(np.median(tokens / update)),
            float(np.median(UPDATES / update)),
            float(np.median(decoded / decoding)),
            train_ratio,
            decode_ratio,
            rounds,
            bench.where,
        )
    return timings


def _sources(study: Study, name: str, model: Model) -> Batch:
    """Return SENTENCES sentences of the set, with the contexts and spans that a system reads."""
    store = study.store
    if model.reads_spans and store.spans is None:
        without = f"'{name}' reads parses, but {study.set_name} has none"
        console.warn(f"{without}: it decodes with n-grams instead")
    drawn = np.random.default_rng(SEED).permutation(len(store))[:SENTENCES]
    by_length = sorted(drawn, key=lambda i: int(store.src_lengths[i]))
    return collate(store, np.array(by_length), study.device, model.context_rule)


class CostFacts(BaseModel):
    """The facts of a finding of `cost`.

    Attributes:
        baseline: the first system.
        src_length, tgt_length: of the counted sentences.
        contexts, spans: see `Count`; only systems that read some.
        set: the set whose sentences are decoded.
        measured: system -> timing; empty if the speeds are from the logs.
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
    """Return the timings of an earlier --measure; {} if baseline, set or systems changed."""
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
            " systems and are replaced by speeds from the logs (--measure takes times again)"
        )
    return {}


def processor_of(hardware: Mapping[str, object]) -> tuple[object, object]:
    """Return the name of a processor and its number type. Times compare only if both are equal.

    Args:
        hardware: the record in config.toml of a system, or in meta.json of a translation.
    """
    return hardware.get("name"), hardware.get("precision")


def logged_speeds(study: Study) -> dict[str, Timing]:
    """Return the speeds that training and translation logged, without intervals.

    A ratio is left out if the baseline had another processor, number type or search.
    """
    logs = {name: logged(study.run.system(name), study.set_name) for name in study.systems}
    base, *of_base = logs[study.systems[0]]
    timings = {}
    for name, (speed, *conditions) in logs.items():
        trained, translated = map(operator.eq, conditions, of_base)
        train = relative(base.train_tokens_per_s, speed.train_tokens_per_s)
        decode = relative(base.decode_tokens_per_s, speed.decode_tokens_per_s)
        timings[name] = replace(
            speed,
            train_ratio=Estimate(train if trained else None),
            decode_ratio=Estimate(decode if translated else None),
        )
    return timings


def logged(system: System, set_name: str) -> tuple[Timing, object, object]:
    """Return the logged speeds of a system and two conditions: the processor of its training, and
    the processor, worker processes and search settings of its translation.

    Raises: DataError for a damaged metrics.jsonl or meta.json.
    """
    hardware, translation = system.read_config().hardware, described(system.translation(set_name))
    tokens, updates = read(system.metrics).speed(hardware.get("device") == "cpu")
    speed = translation.speed.tokens_per_second if translation.speed else None
    search = complete(SearchSettings, translation.settings)
    for key in ("nbest", "average", "precision"):  # cost no time, or belong to the processor
        search.pop(key)
    searched = *processor_of(translation.hardware), translation.hardware.get("jobs"), search
    return Timing(tokens, updates, speed), processor_of(hardware), searched
