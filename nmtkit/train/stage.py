"""The stage `train`: from a prepared run to a trained system. The same call again resumes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import nmtkit
from nmtkit import console
from nmtkit.data.batches import collate
from nmtkit.data.resegmented import Resegmented
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError, check_known, counted
from nmtkit.locks import locked
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model, device_of
from nmtkit.models.variants import (
    BASELINE,
    build_model,
    common_width,
    count_parameters,
    default_name,
    load_variant,
)
from nmtkit.nn import hardware as machines
from nmtkit.records import TextSet
from nmtkit.run import Run, StageCall, System
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.toml import flat, values_of, write_toml
from nmtkit.train import checks, dry_run, saving
from nmtkit.train.compiling import check_compiler, compile_training
from nmtkit.train.deterministic import describe, deterministic, without_form_refused
from nmtkit.train.gradients import autocast_arguments
from nmtkit.train.init_from import copy_matching, find_source
from nmtkit.train.loggers import check_installed
from nmtkit.train.loop import Trainer
from nmtkit.train.optimizer import put_optimizer_tensors
from nmtkit.train.options import TrainOptions
from nmtkit.train.plan import (
    Plan,
    make_plan,
    match_parameters,
    named_variant,
    plan_of_system,
    plan_to_resume,
)
from nmtkit.train.ranks import Ranks
from nmtkit.train.state import TrainState
from nmtkit.train.stop import reason_to_end
from nmtkit.train.validation import Validator
from nmtkit.user_classes import blamed_on


def train(run: Run, *, ranks: Ranks | None = None, **values: Any) -> None:
    """Train a system of a run, or continue it.

    Args:
        run: a prepared run.
        ranks: the processes that train together, each of which calls this; None = this process
            alone.
        values: of `TrainOptions`.
    Raises: ConfigError, DataError, CheckpointError, EnvironmentProblem; Interrupted (all saved);
        TrainingDiverged.
    """
    options = TrainOptions.of(values)
    ranks = ranks or Ranks()
    variant = options.variant or BASELINE
    named_variant(variant)  # an unknown variant cannot name a system either
    name = default_name(variant) if options.name is None else options.name
    system = run.system(name, new=True)
    resumes = bool(checkpoints.candidates(system.checkpoints)) and not options.force
    plan = plan_of_system(run, system, options) or make_plan(run, options, resumes)
    training = _Training(run, system, plan, options, ranks)
    if options.match_parameters:
        training.plan, message = match_parameters(run, plan, name, options.match_parameters)
        training.say(message)
        plan = training.plan
    for key in options.allow_change:
        known = set(flat(plan.model_dump()))
        if system.config.is_file():  # a setting of an earlier nmtkit
            known |= flat(system.read_config().model_dump(exclude={"hardware"})).keys()
        known.discard("changed")  # is no setting
        check_known(key, known, f"unknown setting '{key}'", "--allow-change")
    if options.allow_change and (options.force or not system.config.is_file()):
        console.warn("--allow-change has no effect: this training begins anew")
    if not training.begun:
        if reason := reason_to_end(TrainState(), plan.train):
            raise ConfigError(f"no update would be made: {reason}", where="train.min_lr")
        if options.init_from:
            find_source(run, options.init_from)
    if ranks.first:
        check_installed(plan.train.log_to)
    # Before anything starts CUDA.
    with deterministic(plan.train.deterministic, options.device):
        with console.forwarding_warnings(training.opening.append):
            training.device = ranks.device(options.device)
        if options.compile_model:
            check_compiler(machines.pick_device(training.device))
        blamed = blamed_on(load_variant(plan.variant))
        if options.dry_run:
            with blamed, without_form_refused():
                training.rehearse()
            return
        with training.recorded() as call, blamed, without_form_refused():
            training.train(call)


@dataclass
class _Training:
    """One call of `train`.

    Attributes:
        device: of this rank.
        opening: the first lines of train.log.
    """

    run: Run
    system: System
    plan: Plan
    options: TrainOptions
    ranks: Ranks
    device: str = ""
    opening: list[str] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """True if the system has a checkpoint from which this call continues."""
        return bool(checkpoints.candidates(self.system.checkpoints)) and not self.options.force

    def say(self, line: str) -> None:
        """Print a line, and write it at the beginning of train.log."""
        console.say(line)
        self.opening.append(line)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[StageCall]:
        """On rank 0, lock the system and write a line of history; yield the line."""
        run, system, first = self.run, self.system, self.ranks.first
        with contextlib.ExitStack() as held:
            line = run.recorded("train", self.options.device, self.plan.train.seed, write=first)
            call = held.enter_context(line)
            call.system, call.processes = system.name, self.ranks.world
            if first:
                held.enter_context(locked(run.path, "train", shared=True))
                held.enter_context(locked(system.path, "train"))
            yield call

    def train(self, call: StageCall) -> None:
        """Train, and note device and steps in the line of history."""
        system, first_does = self.system, self.ranks.first_does
        first_does(lambda: checks.check_prepared(self.run))
        first_does(lambda: _tidy(system, self.options.force))
        trainer = self.ready_trainer()
        state, plan = trainer.state, self.plan
        call.device = state.hardware["device"]
        if not state.step:
            trainer.probe()
        first_does(lambda: _write_settings(self.run, system, plan, trainer))
        first = state.step
        verb = "continuing" if first else "starting"
        line = f"step {first:,} of {plan.train.max_steps:,}: {verb} '{system.name}'"
        self.opening.append(line)
        console.say(f"{line} in {system.path}")
        try:
            trainer.run()
        finally:
            call.steps = [first, state.step]

    def rehearse(self) -> None:
        """Time a few updates and print what the training would be; write nothing."""
        self.ranks.first_does(lambda: checks.check_prepared(self.run))
        trainer = self.ready_trainer()
        estimate = dry_run.rehearse(trainer)
        if self.ranks.first:
            dry_run.show(self.plan, trainer, estimate)

    def ready_trainer(self) -> Trainer:
        """Return the trainer, after a check that a resumed training has its settings."""
        changes: list[str] = []
        if begun := self.begun:
            allowed = self.options.allow_change
            self.plan, changes = plan_to_resume(self.system, self.plan, self.run, allowed)
        with console.forwarding_warnings(self.opening.append):
            trainer = self.make_trainer(begun)
            changed = [f"{change} after update {trainer.state.step:,}" for change in changes]
            self.plan = self.plan.model_copy(update={"changed": [*self.plan.changed, *changed]})
            model = trainer.model
            if not trainer.state.step and ":" in self.plan.variant:
                checks.warn_of_model(self.plan.variant, model, Store(self.run.prep / "train"))
        if self.options.compile_model:
            first_pair = collate(trainer.store, np.arange(1), device_of(model), model.context_rule)
            compile_training(model, first_pair)
        return trainer

    def make_trainer(self, begun: bool) -> Trainer:
        """Return the trainer, at the beginning or at the newest undamaged checkpoint."""
        run, plan, settings = self.run, self.plan, self.plan.train
        store = Store(run.prep / "train")
        if not len(store):
            hint = "see prep/manifest.json for what cleaning dropped"
            raise DataError("the training set is empty", where=store.path, hint=hint)
        weights, moments, state, path = (
            saving.newest(self.system) if begun else ({}, {}, TrainState(), None)
        )
        width = common_width(plan.preset, plan.model)
        autocast = autocast_arguments(self.choose_hardware(width, state))
        dev = next(iter(run.sets("dev")), None)
        model = self.make_model(store, dev, weights, path)
        model.to(machines.pick_device(self.device)).train()
        hashes = loading.vocabulary_hashes(run)
        trainer = Trainer(
            self.system,
            settings,
            model,
            width,
            self.resegmented(store, model) if settings.subword_dropout else store,
            autocast,
            state,
            about={"variant": plan.variant, "corpus": plan.corpus, "vocabulary": hashes},
            validator=Validator(run, dev, settings, model, autocast, self.ranks) if dev else None,
            ranks=self.ranks,
            moments=moments,
            opening=self.opening,
        )
        if begun:
            put_optimizer_tensors(model, trainer.optimizer_step.optimizer, moments, where=path)
        checks.check_ranks_agree(self.ranks, plan, state, model, autocast)
        self.announce(state, model, len(store))
        return trainer

    def choose_hardware(self, width: int, state: TrainState) -> machines.Hardware:
        """Choose number types and algorithms for a model of this width.

        Warn if the training resumes on other hardware.
        """
        settings = self.plan.train
        hardware = machines.choose(self.device, settings.precision, width, settings.matmul)
        algorithms = describe(settings.deterministic, hardware.device)
        self.opening.append(
            f"nmtkit {nmtkit.__version__}, torch {torch.__version__}:"
            f" {hardware.describe()}{algorithms}"
        )
        console.say(hardware.brief() + algorithms)
        of_first = self.ranks.first_does(hardware.values)
        if state.hardware and state.hardware != of_first:
            console.warn(checks.hardware_warning(state.hardware, of_first))
            state.split_from = None  # its memory may be larger
        state.hardware = of_first
        return hardware

    def make_model(
        self, store: Store, dev: TextSet | None, weights: dict[str, Tensor], path: Path | None
    ) -> Model:
        """Return the model with the weights of a checkpoint, of --init-from, or new ones."""
        run, plan = self.run, self.plan
        torch.manual_seed(plan.train.seed)
        model = build_model(plan.variant, plan.model, loading.vocabulary_sizes(run))
        checks.check_parses_and_documents(model, plan.variant, run, store, dev)
        if path is not None:
            loading.check_vocabulary(path, run)
            resized = any(key.startswith("model.") for key in self.options.allow_change)
            hint = "leave out --allow-change and the changes that it allows, or begin anew: --force"
            loading.put_weights(model, weights, path, hint if resized else checkpoints.AGAIN)
        elif plan.init_from:
            copy_matching(run, plan.init_from, model)
        return model

    def resegmented(self, store: Store, model: Model) -> Resegmented:
        """Return the training set with subwords drawn anew in each epoch.

        Raises: ConfigError if words are not split, or the model reads parses.
        """
        if model.reads_spans:
            raise ConfigError(
                "this system reads parses of the source, which do not fit other subwords",
                where="train.subword_dropout",
                hint="leave it out",
            )
        prep, settings = self.run.prep, self.plan.train
        splitters = [TextSide.load(prep, side).splitter for side in ("src", "tgt")]
        vocabularies = load_vocabularies(prep)
        return Resegmented(store, splitters, vocabularies, settings.subword_dropout, settings.seed)

    def announce(self, state: TrainState, model: Model, pairs: int) -> None:
        """Print the sizes of the training, and warn of settings that do not fit together."""
        world, train = self.ranks.world, self.plan.train
        parameters = count_parameters(model)
        self.say(
            f"{self.plan.variant}: {parameters:,} parameters; {counted(pairs, 'training pair')}"
        )
        if world > 1 or state.processes > 1:
            before = ""
            if state.step and state.processes != world:
                before = f" ({state.processes} before, with the same batches)"
            self.say(f"{world} process{'es' * (world > 1)}{before}")
        state.processes = world
        if train.warmup >= train.max_steps:
            console.warn(
                f"train.warmup is {train.warmup:,} of {train.max_steps:,} updates: the learning"
                " rate rises until the end"
            )
        if (average := self.plan.search.average) > train.keep_checkpoints:
            console.warn(
                f"search.average is {average}, but train.keep_checkpoints keeps only"
                f" {train.keep_checkpoints}"
            )


def _tidy(system: System, force: bool) -> None:
    """Tidy up after a killed training.

    Raises: DataError if the system has lost its checkpoints: a new training would remove the files
        that were made with them.
    """
    checkpoints.clean(system.checkpoints)
    if checkpoints.candidates(system.checkpoints):
        saving.remove_replaced(system)
    elif not force and checkpoints.was_trained(system):
        raise checkpoints.lost(system)


def _write_settings(run: Run, system: System, plan: Plan, trainer: Trainer) -> None:
    """Write config.toml, system.json and best.json, and remove old checkpoints.

    A new training first removes the files of an earlier one. By now it is known to work.
    """
    state = trainer.state
    values = plan.model_dump() | {"hardware": state.hardware}
    saving.write_record(system, run, not state.step, count_parameters(trainer.model))
    if not state.step:
        saving.begin_anew(system)
    elif reason_to_end(state, plan.train):  # no update is made: keep all but the search
        values |= system.read_config().model_dump(exclude={"search"})
    write_toml(system.config, {"values": values_of(values), **values})
    settings = system.training()
    saving.write_best(system, state, settings)
    saving.prune(system, state, settings)  # a killed training may not have got to it
