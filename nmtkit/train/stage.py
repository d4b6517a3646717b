"""The stage `train`: from a prepared run to a trained system; the same call again continues where it stopped."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from nmtkit import console, files
from nmtkit import run as runs
from nmtkit.data.batches import collate
from nmtkit.data.store import Store
from nmtkit.errors import CheckpointError, DataError
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model
from nmtkit.models.variants import build_model, default_name
from nmtkit.nn import hardware as machines
from nmtkit.run import Run, System
from nmtkit.train.compiling import check_compiler, compile_training
from nmtkit.train.gradients import autocast_arguments
from nmtkit.train.initial import copy_matching, find_source
from nmtkit.train.loop import Trainer, write_best
from nmtkit.train.optimizer import put_optimizer_tensors
from nmtkit.train.plan import Plan, check_unchanged, make_plan
from nmtkit.train.state import TrainState
from nmtkit.train.validation import Validator


def train(
    run: Run,
    *,
    variant: str = "transformer",
    name: str | None = None,
    preset: str | None = None,
    config: Path | None = None,
    assignments: list[str] | None = None,
    seed: int | None = None,
    device: str = "auto",
    compile_model: bool = False,
    init_from: str | None = None,
    force: bool = False,
) -> None:
    """Train a system of a run, or continue it.

    Args:
        run: a prepared run.
        variant: a name of the table of variants, or package.module:Class.
        name: of the system; None = the variant's.
        preset, config, assignments, seed: settings, the later the stronger; without a preset the data set's default one.
        device: auto, cpu or cuda.
        compile_model: use torch.compile.
        init_from: begin with the weights of this system (of the run, or a folder).
        force: begin anew even if the system exists.
    Raises: ConfigError, DataError, CheckpointError, EnvironmentProblem; Interrupted (all saved); TrainingDiverged.
    """
    plan = make_plan(run, variant, preset, config, assignments or [], seed, init_from)
    system = run.system(name or default_name(variant))
    if init_from:
        find_source(run, init_from)
    if compile_model:
        check_compiler(machines.pick_device(device))
    with run.recorded("train", device, plan.train.seed) as record, _held(run, system):
        record["system"] = system.name
        _check_prepared(run)
        checkpoints.clean(system.checkpoints)
        begun = bool(checkpoints.candidates(system.checkpoints)) and not force
        if begun:
            plan = check_unchanged(system, plan, run)
        state, model, trainer = _start(run, system, plan, device, fresh=not begun)
        record["device"] = state.hardware["device"]
        if compile_model:
            compile_training(model, collate(trainer.store, np.arange(1), next(model.parameters()).device))
        if not state.step:
            trainer.probe()
            _clear(system)
        runs.write_toml(system.config, plan.values())
        write_best(system, state, plan.train)
        first = state.step
        console.say(f"step {first:,} of {plan.train.max_steps:,}: {'continuing' if first else 'starting'} '{system.name}' in {system.path}")
        try:
            trainer.run()
        finally:
            record["steps"] = [first, state.step]


@contextlib.contextmanager
def _held(run: Run, system: System) -> Iterator[None]:
    """Hold the system for writing, and share the run.

    Raises: DataError naming the holder if it is taken; EnvironmentProblem if the folder is not writable.
    """
    with runs.locked(run.path, "train", shared=True), runs.locked(system.path, "train"):
        yield


def _check_prepared(run: Run) -> None:
    """Raise DataError naming the first file for training that is not as prep wrote it."""
    manifest = run.manifest()
    wanted = ("train.", "vocab", *(f"{s.name}." for s in run.sets("dev")))
    for relative, recorded in manifest["files"].items():
        if relative.startswith(wanted):
            path = run.prep / relative
            if not path.is_file() or files.sha256(path) != recorded:
                what = "has changed since it was prepared" if path.is_file() else "is missing"
                raise DataError(f"{relative} {what}", where=path, hint="prepare the run again: nmtkit prep … --force")


def _start(run: Run, system: System, plan: Plan, device: str, fresh: bool) -> tuple[TrainState, Model, Trainer]:
    """The model and its trainer, at the beginning or where the newest valid checkpoint left them."""
    store = Store(run.prep / "train")
    if not len(store):
        raise DataError("the training set is empty", where=store.path, hint="see prep/manifest.json for what cleaning dropped")
    weights, moments, state, path = ({}, {}, TrainState(), None) if fresh else newest(system)
    width = int(plan.model.get("d_model", 256))
    hardware = machines.choose(device, plan.train.precision, width, state.hardware)
    console.say(hardware.describe())
    if state.hardware and state.hardware != hardware.values():
        console.warn("the hardware is not that of the last start: training goes on, but not with the same bits")
        state.split_from = None  # its memory may be larger
    state.hardware = hardware.values()
    torch.manual_seed(plan.train.seed)
    model = build_model(plan.variant, plan.model, loading.vocabulary_sizes(run))
    if path is not None:
        loading.check_vocabulary(path, run)
        loading.put_weights(model, weights, where=path)
    elif plan.init_from:
        copy_matching(run, plan.init_from, model)
    model.to(machines.pick_device(device)).train()
    dev = run.sets("dev")
    validator = Validator(run, dev[0], plan.train, next(model.parameters()).device, autocast_arguments(hardware)) if dev else None
    about = {"variant": plan.variant, "corpus": plan.corpus, "vocabulary": loading.vocabulary_hashes(run)}
    trainer = Trainer(system, plan.train, model, store, hardware, state, about, validator)
    put_optimizer_tensors(model, trainer.optimizer, moments, where=path)
    console.say(f"{plan.variant}: {sum(p.numel() for p in model.parameters()):,} parameters; {len(store):,} training pairs")
    return state, model, trainer


def newest(system: System) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], TrainState, Path]:
    """Weights, optimiser, state of the newest checkpoint that is whole; damaged ones are named and passed over.

    Raises: CheckpointError if all are damaged.
    """
    for path in reversed(checkpoints.candidates(system.checkpoints)):
        try:
            weights, moments, values = checkpoints.load_training(path)
            return weights, moments, TrainState.from_values(values), path
        except CheckpointError as error:
            console.warn(f"skipping {path}: {error.message}")
    hint = "nmtkit train --force begins anew"
    raise CheckpointError("every checkpoint of this system is damaged", where=system.checkpoints, hint=hint)


def _clear(system: System) -> None:
    """Remove what an earlier training left in the system's folder; the new one is known to work by now."""
    for path in system.path.iterdir():
        if path.name == ".lock":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
