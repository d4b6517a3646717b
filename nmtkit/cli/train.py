"""The command `train`: from a prepared run to a trained system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from nmtkit.cli.door import command, examples
from nmtkit.cli.options import (
    SETTINGS,
    Config,
    Debug,
    Device,
    Quiet,
    chosen_run,
    force_option,
    preset_option,
    run_option,
    set_option,
)


@command(
    epilog=examples(
        "nmtkit train",
        "nmtkit train --name pre-norm --set model.norm=pre --set train.max_steps=20000",
        "nmtkit train --variant my_package.my_file:MyModel --preset tiny",
        "torchrun --nproc-per-node 4 -m nmtkit train",
        before="For example, in a run that is prepared:",
        after=(
            "`nmtkit train` given again continues a training that was stopped (Ctrl-C or SIGTERM"
            " save first)."
        ),
    ),
)
def train(
    variant: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=(
                "The model: a variant that `nmtkit variants` lists, or package.module:Class for one"
                " of your own."
            ),
        ),
    ] = "transformer",
    name: Annotated[
        Optional[str],
        typer.Option(metavar="NAME", help="The system's name in the run (default: the variant's)."),
    ] = None,
    init_from: Annotated[
        Optional[str],
        typer.Option(
            metavar="SYSTEM",
            help=(
                "Begin with the weights of another system of the run, or of a system's or"
                " checkpoint's folder."
            ),
        ),
    ] = None,
    allow_change: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar="KEY",
            help=(
                "Continue although this setting (train.lr, say) is not what the system was started"
                " with. Repeatable."
            ),
        ),
    ] = None,
    compile_model: Annotated[
        bool,
        typer.Option(
            "--compile",
            help=(
                "Compile the training step with torch.compile (needs g++): a minute or more first."
                " Meant for GPUs."
            ),
        ),
    ] = False,
    preset: Annotated[Optional[str], preset_option("the data set's")] = None,
    config: Config = None,
    assignments: Annotated[Optional[list[str]], set_option("train.max_steps=1000")] = None,
    seed: Annotated[
        Optional[int],
        typer.Option(
            metavar="N",
            min=0,
            help="Seed of initialisation, dropout and order of batches: train.seed.",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    run: Annotated[Optional[Path], run_option()] = None,
    device: Device = "auto",
    force: Annotated[
        bool,
        force_option("Begin anew where a system of this name exists: it and its checkpoints go."),
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a system; the same command again continues where it stopped."""
    from nmtkit.train import stage
    from nmtkit.train.ranks import joined

    with joined() as ranks:
        stage.train(
            chosen_run(run),
            variant=variant,
            name=name,
            preset=preset,
            config=config,
            assignments=assignments or [],
            seed=seed,
            device=device,
            compile_model=compile_model,
            init_from=init_from,
            allow_change=allow_change or [],
            force=force,
            ranks=ranks,
        )
