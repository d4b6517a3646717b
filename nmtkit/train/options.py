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

    variant: str = option("transformer", "NAME")
    """The model: a variant that `nmtkit variants` lists, or package.module:Class for one of your
    own.
    """
    name: str | None = option(None, "NAME")
    """The system's name in the run (default: the variant's)."""
    init_from: str | None = option(None, "SYSTEM")
    """Begin with the weights of another system of the run, or of a system's or checkpoint's
    folder.
    """
    allow_change: list[str] = option([], "KEY")
    """Continue although this setting (train.lr, say) is not what the system was started with.
    Repeatable.
    """
    compile_model: bool = option(False, None, "--compile")
    """Compile the training step with torch.compile (needs g++): a minute or more first. Meant for
    GPUs.
    """
    preset: str | None = preset_option("the data set's")
    config: Path | None = config_option()
    assignments: list[str] = set_option("train.max_steps=1000")
    seed: int | None = option(None, "N", panel=SETTINGS, ge=0)
    """Seed of initialisation, dropout and order of batches: train.seed."""
    run: Path | None = run_option()
    device: str = device_option()
    force: bool = option(False, panel=GENERAL)
    """Begin anew where a system of this name exists: it and its checkpoints go."""
