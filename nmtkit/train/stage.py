"""The stage `train`: from a prepared run to a trained system; the same call again continues
where it stopped.
"""

from __future__ import annotations

import contextlib
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nmtkit
from nmtkit import console, files
from nmtkit import run as runs
from nmtkit.data.batches import collate
from nmtkit.data.documents import Documents
from nmtkit.data.store import Store
from nmtkit.errors import CheckpointError, ConfigError, DataError, EnvironmentProblem
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model
from nmtkit.models.variants import build_model, default_name
from nmtkit.nn import hardware as machines
from nmtkit.records import Manifest, TextSet
from nmtkit.run import Run, System
from nmtkit.train.compiling import check_compiler, compile_training
from nmtkit.train.deterministic import describe, deterministic, without_form_refused
from nmtkit.train.gradients import autocast_arguments
from nmtkit.train.initial import copy_matching, find_source
from nmtkit.train.loop import Trainer, write_best
from nmtkit.train.optimizer import put_optimizer_tensors
from nmtkit.train.options import TrainOptions
from nmtkit.train.plan import Plan, check_known, check_unchanged, common_width, make_plan
from nmtkit.train.ranks import Ranks, bytes_sent
from nmtkit.train.state import TrainState
from nmtkit.train.validation import Validator


def train(run: Run, *, ranks: Ranks | None = None, **values: Any) -> None:
    """Train a system of a run, or continue it.

    Args:
        run: a prepared run.
        ranks: the processes that train it together, each of which calls this; None = this one
            alone.
        values: of `TrainOptions`.
    Raises: ConfigError, DataError, CheckpointError, EnvironmentProblem; Interrupted (all saved);
        TrainingDiverged.
    """
    options = TrainOptions.of(values)
    variant, device = options.variant, options.device
    ranks = ranks or Ranks()
    plan = make_plan(
        run,
        variant,
        options.preset,
        options.config,
        options.assignments,
        options.seed,
        options.init_from,
    )
    system = run.new_system(default_name(variant) if options.name is None else options.name)
    check_known(options.allow_change, system, plan)
    if options.init_from:
        find_source(run, options.init_from)
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            deterministic(plan.train.deterministic, device)
        )  # before anything starts CUDA
        if options.compile_model:
            check_compiler(machines.pick_device(device))
        record: dict[str, object] = {}
        if ranks.first:
            record = stack.enter_context(run.recorded("train", device, plan.train.seed))
            record |= {"system": system.name, "processes": ranks.world}
            stack.enter_context(_held(run, system))
        stack.enter_context(without_form_refused())
        ranks.first_does(lambda: _tidy(run, system))
        begun = bool(checkpoints.candidates(system.checkpoints)) and not options.force
        if begun:
            plan = check_unchanged(system, plan, run, options.allow_change)
        warned: list[str] = []
        with console.warnings_told_to(warned.append):
            state, model, trainer = _start(run, system, plan, device, ranks, fresh=not begun)
        record["device"] = state.hardware["device"]
        if options.compile_model:
            compile_training(
                model,
                collate(
                    trainer.store, np.arange(1), next(model.parameters()).device, model.context_rule
                ),
            )
        if not state.step:
            trainer.probe()
        ranks.first_does(lambda: _begin(system, plan, state))
        first = state.step
        trainer.opening += [
            *warned,
            (
                f"step {first:,} of {plan.train.max_steps:,}:"
                f" {'continuing' if first else 'starting'} '{system.name}'"
            ),
        ]
        console.say(f"{trainer.opening[-1]} in {system.path}")
        try:
            trainer.run()
        finally:
            record["steps"] = [first, state.step]


@contextlib.contextmanager
def _held(run: Run, system: System) -> Iterator[None]:
    """Hold the system for writing, and share the run.

    Raises: DataError naming the holder if it is taken; EnvironmentProblem if the folder is not
        writable.
    """
    with runs.locked(run.path, "train", shared=True), runs.locked(system.path, "train"):
        yield


def _tidy(run: Run, system: System) -> None:
    _check_prepared(run)
    checkpoints.clean(system.checkpoints)


def _begin(system: System, plan: Plan, state: TrainState) -> None:
    """Write what stands beside the checkpoints; a new training, which is known to work by now,
    first removes what an earlier one left.
    """
    values = plan.values()
    if not state.step:
        _clear(system)
    elif (
        state.step > plan.train.max_steps
    ):  # which asks for less than was done: the schedule was that of the longer training
        values["train"]["max_steps"] = system.read_config()["train"]["max_steps"]
    runs.write_toml(system.config, {**values, "hardware": state.hardware})  # what `auto` came to
    write_best(system, state, plan.train)


def _check_prepared(run: Run) -> None:
    """Raise DataError naming the first file for training that is not as prep wrote it."""
    wanted = ("train.", "vocab", *(f"{s.name}." for s in run.sets("dev")))
    hashes = {
        name: digest for name, digest in run.manifest().files.items() if name.startswith(wanted)
    }
    for name in files.changed(run.prep, hashes)[:1]:
        path = run.prep / name
        what = "has changed since it was prepared" if path.is_file() else "is missing"
        raise DataError(f"{name} {what}", where=path, hint=Manifest.again)


def _start(
    run: Run, system: System, plan: Plan, device: str, ranks: Ranks, fresh: bool
) -> tuple[TrainState, Model, Trainer]:
    """The model and its trainer, at the beginning or where the newest valid checkpoint left
    them.
    """
    store = Store(run.prep / "train")
    if not len(store):
        raise DataError(
            "the training set is empty",
            where=store.path,
            hint="see prep/manifest.json for what cleaning dropped",
        )
    weights, moments, state, path = ({}, {}, TrainState(), None) if fresh else newest(system)
    width = common_width(plan.values())
    device = ranks.device(device)
    hardware = machines.choose(device, plan.train.precision, width, plan.train.matmul)
    chosen = ranks.first_does(hardware.values)
    machine = hardware.describe() + describe(plan.train.deterministic, hardware.device)
    opening = [f"nmtkit {nmtkit.__version__}, torch {torch.__version__}: {machine}"]
    console.say(machine)
    if state.hardware and state.hardware != chosen:
        console.warn(
            "the hardware is not that of the last start: training goes on, but not with the same"
            " bits"
        )
        state.split_from = None  # its memory may be larger
    state.hardware = chosen
    torch.manual_seed(plan.train.seed)
    model = build_model(plan.variant, plan.model, loading.vocabulary_sizes(run))
    if model.reads_spans and store.spans is None:
        hint = (
            "prepare them: nmtkit prep … --parses train=FILE (one bracketed tree a line) or"
            " --parser stanza"
        )
        raise ConfigError(
            "this system reads parses of the source, and the training set has none",
            where=store.path,
            hint=hint,
        )
    rule = model.context_rule
    if rule is not None and rule.kind != "foreign" and len(store.documents) == len(store):
        console.warn(
            f"{plan.variant} reads other sentences of a document, and every sentence of the"
            " training set is a document of its own: none has a context (nmtkit prep --docs says"
            " where documents start)"
        )
    if path is not None:
        loading.check_vocabulary(path, run)
        loading.put_weights(model, weights, where=path)
    elif plan.init_from:
        copy_matching(run, plan.init_from, model)
    model.to(machines.pick_device(device)).train()
    dev = run.sets("dev")
    if (
        rule is not None
        and rule.kind != "foreign"
        and len(store.documents) < len(store)
        and dev
        and _alone(run, dev[0])
    ):
        console.warn(
            f"every sentence of '{dev[0].name}' is a document of its own: loss and BLEU on it, and"
            f" so the choice of the checkpoint, are those of {plan.variant} without a context"
            f" (nmtkit prep --docs {dev[0].name}=FILE says where its documents start)"
        )
    validator = (
        Validator(
            run, dev[0], plan.train, next(model.parameters()).device, autocast_arguments(hardware)
        )
        if dev
        else None
    )
    about = {
        "variant": plan.variant,
        "corpus": plan.corpus,
        "vocabulary": loading.vocabulary_hashes(run),
    }
    trainer = Trainer(system, plan.train, model, store, hardware, state, about, validator, ranks)
    put_optimizer_tensors(model, trainer.optimizer, moments, where=path)
    parameters = sum(p.numel() for p in model.parameters())
    opening.append(f"{plan.variant}: {parameters:,} parameters; {len(store):,} training pairs")
    console.say(opening[-1])
    _check_alike(ranks, plan, state, model)
    if ranks.world > 1 or state.processes > 1:
        before = (
            f" ({state.processes} before, with the same batches)"
            if state.step and state.processes != ranks.world
            else ""
        )
        megabytes = bytes_sent(parameters, ranks.world) / 1e6
        opening.append(
            f"{ranks.world} processes{before}: each sends and receives {megabytes:,.1f} MB of"
            " gradients an update"
        )
        console.say(opening[-1])
    state.processes = ranks.world
    trainer.opening = opening
    return state, model, trainer


def _check_alike(ranks: Ranks, plan: Plan, state: TrainState, model: Model) -> None:
    """Raise EnvironmentProblem naming a rank that does not begin where the first does."""
    weights = float(sum(p.detach().double().abs().sum() for p in model.parameters()))
    settings = float(zlib.crc32(repr(plan.values()).encode()))
    rows = ranks.gather([state.step, settings, weights])
    for rank, row in enumerate(rows):
        for what, mine, first in zip(("step", "settings", "weights"), row, rows[0], strict=True):
            if mine != first:
                message = (
                    f"rank {rank} does not begin with the {what} of rank 0 ({mine:g}, not"
                    f" {first:g})"
                )
                raise EnvironmentProblem(
                    message,
                    hint=(
                        "all machines must see the same run folder and have the same nmtkit and"
                        " torch"
                    ),
                )


def newest(
    system: System,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], TrainState, Path]:
    """Weights, optimiser, state of the newest checkpoint that is whole; damaged ones are named and
    passed over.

    Raises: CheckpointError if all are damaged.
    """
    for path in reversed(checkpoints.candidates(system.checkpoints)):
        try:
            return *checkpoints.load_training(path, TrainState), path
        except CheckpointError as error:
            console.warn(f"skipping {path}: {error.message}")
    hint = "nmtkit train --force begins anew"
    raise CheckpointError(
        "every checkpoint of this system is damaged", where=system.checkpoints, hint=hint
    )


def _clear(system: System) -> None:
    """Remove what an earlier training left in the system's folder; the new one is known to work
    by now.
    """
    for path in system.path.iterdir():
        if path.name == ".lock":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _alone(run: Run, one: TextSet) -> bool:
    """Whether every sentence of a set is a document of its own."""
    return len(Documents.beside(run.prep, one.name, one.lines)) == one.lines > 1
