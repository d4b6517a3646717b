"""The options of the stage `train`."""

from __future__ import annotations

from pathlib import Path

from nmtkit.options import (
    GENERAL,
    SETTINGS,
    Options,
    config_option,
    device_option,
    option,
    preset_option,
    run_option,
    set_option,
)


class TrainOptions(Options):
    """The options of `nmtkit train`."""

    variant: str | None = option(None, "NAME")
    """The model: a variant (see `nmtkit variants`), or package.module:Class for your own (default:
    transformer)."""
    name: str | None = option(None, "NAME", "--system")
    """Name of the system in the run (default: the name of the variant)."""
    init_from: str | None = option(None, "SYSTEM")
    """Start from the weights of another system: a name in the run, or the folder of a system or
    checkpoint, which may be of another run (RUN/systems/NAME). Prepare the corpus with `nmtkit prep
    --like RUN`; otherwise only rows of subwords that both vocabularies have are carried over."""
    match_parameters: str | None = option(None, "SYSTEM")
    """Choose model.d_ff so that the system has as many parameters as another system of the run."""
    allow_change: list[str] = option([], "KEY")
    """Resume although this setting (such as train.lr) has changed since the system was started.
    Repeatable."""
    compile_model: bool = option(False, None, "--compile")
    """Compile the training step with torch.compile. It needs g++ and takes a minute or more at the
    start. Meant for GPUs."""
    dry_run: bool = option(False)
    """Print the settings, parameters, memory, time and epochs of this training, estimated from a
    few updates that are timed. Nothing is written."""
    preset: str | None = preset_option("that of the data set")
    config: Path | None = config_option()
    assignments: list[str] = set_option("train.max_steps=1000")
    seed: int | None = option(None, "N", panel=SETTINGS, ge=0)
    """Seed of initialisation, dropout and batch order (train.seed)."""
    run: Path | None = run_option()
    device: str = device_option()
    force: bool = option(False, panel=GENERAL)
    """Start again: remove the log, translations and exports of this system, and its checkpoints
    when the first new one is saved. Files that nmtkit did not write stay."""
