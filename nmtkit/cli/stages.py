"""The commands of the stages: prep, train, translate, score, analyze."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from nmtkit import console
from nmtkit.cli.door import app
from nmtkit.cli.options import Config, Debug, Device, Force, Format, Jobs, PrepRunOption, Preset, Quiet, RunOption, SetNames, Systems, set_option
from nmtkit.cli.unused import Command

if TYPE_CHECKING:  # the rooms are imported by the command that needs them, so that --help is instant
    from nmtkit.run import Run


@app.command(no_args_is_help=True)
def prep(
    dataset: Annotated[
        Optional[str], typer.Argument(metavar="[DATASET]", help="A data set that `nmtkit datasets` lists; for own files, a name of yours.")
    ] = None,
    train: Annotated[Optional[tuple[Path, Path]], typer.Option(metavar="SRC TGT", help="Own training files (plain, .gz, .xz, .bz2, .zst).")] = None,
    dev: Annotated[Optional[tuple[Path, Path]], typer.Option(metavar="SRC TGT", help="Own development files.")] = None,
    test: Annotated[
        Optional[list[str]], typer.Option(metavar="SRC,TGT[,TGT…]", help="Own test files, a comma between source and reference(s). Repeatable.")
    ] = None,
    src: Annotated[Optional[str], typer.Option(metavar="LANG", help="Source language of own files (default: their suffix).")] = None,
    tgt: Annotated[Optional[str], typer.Option(metavar="LANG", help="Target language of own files (default: their suffix).")] = None,
    from_dir: Annotated[Optional[Path], typer.Option(metavar="DIR", help="Look here for the data set's files before the network.")] = None,
    size: Annotated[Optional[int], typer.Option(metavar="N", min=1, help="demo: training pairs (default 20,000).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="demo: seed of the grammar's draws.")] = 1,
    jobs: Jobs = 0,
    preset: Preset = None,
    config: Config = None,
    assignments: Annotated[Optional[list[str]], set_option("prep.merges=4000")] = None,
    run: PrepRunOption = None,
    force: Force = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Turn parallel text into token ids: clean, tokenize, truecase, BPE, vocabulary, store."""
    from nmtkit.prep import stage

    stage.prep(
        dataset,
        train=train,
        dev=dev,
        test=test or [],
        src=src,
        tgt=tgt,
        from_dir=from_dir,
        size=size,
        seed=seed,
        jobs=jobs,
        preset=preset,
        config=config,
        assignments=assignments or [],
        run_dir=run,
        force=force,
    )


@app.command()
def train(
    variant: Annotated[
        str, typer.Option(metavar="NAME", help="A variant that `nmtkit variants` lists, or package.module:Class for one of your own.")
    ] = "transformer",
    name: Annotated[Optional[str], typer.Option(metavar="NAME", help="The system's name in the run (default: the variant's).")] = None,
    preset: Preset = None,
    config: Config = None,
    assignments: Annotated[Optional[list[str]], set_option("train.max_steps=1000")] = None,
    seed: Annotated[Optional[int], typer.Option(min=0, help="Seed of initialisation, dropout and order (train.seed).")] = None,
    device: Device = "auto",
    compile_model: Annotated[
        bool, typer.Option("--compile", help="Compile the model with torch.compile: some minutes first, then faster steps on a GPU.")
    ] = False,
    init_from: Annotated[
        Optional[str], typer.Option(metavar="SYSTEM", help="Start from the weights of another system of the run, or of a checkpoint folder.")
    ] = None,
    run: RunOption = None,
    force: Force = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a system; the same command again continues where it stopped."""
    from nmtkit.train import stage

    stage.train(
        _chosen(run),
        variant=variant,
        name=name,
        preset=preset,
        config=config,
        assignments=assignments or [],
        seed=seed,
        device=device,
        compile_model=compile_model,
        init_from=init_from,
        force=force,
    )


@app.command(cls=Command)
def translate(
    source: Annotated[
        Optional[str], typer.Argument(metavar="[-|FILE]", help="Text to translate to stdout: - for stdin; without it, the run's test sets.")
    ] = None,
    systems: Systems = None,
    set_names: SetNames = None,
    beam: Annotated[Optional[int], typer.Option(min=1, help="Beam size; 1 = greedy (search.beam).")] = None,
    length_penalty: Annotated[Optional[float], typer.Option(min=0, help="GNMT length penalty (search.length_penalty).")] = None,
    nbest: Annotated[Optional[int], typer.Option(min=1, help="Translations per sentence, as JSON lines (search.nbest).")] = None,
    average: Annotated[
        Optional[int], typer.Option(min=1, metavar="K", help="Average the last K checkpoints; 1 = the best one alone (search.average).")
    ] = None,
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Translate with the named systems together.")] = False,
    force_target: Annotated[
        Optional[Path], typer.Option(metavar="FILE", help="Score these target lines instead of searching: token log-probabilities as JSON lines.")
    ] = None,
    assignments: Annotated[Optional[list[str]], set_option("search.max_length_b=20")] = None,
    jobs: Jobs = 0,
    device: Device = "auto",
    run: RunOption = None,
    force: Force = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Translate: every test set of the run with every system that lacks it, a file, or stdin."""
    from nmtkit.translate import stage

    stage.translate(
        _chosen(run),
        source=source,
        systems=systems or [],
        set_names=set_names or [],
        beam=beam,
        length_penalty=length_penalty,
        nbest=nbest,
        average=average,
        ensemble=ensemble,
        force_target=force_target,
        assignments=assignments or [],
        jobs=jobs,
        device=device,
        force=force,
    )


@app.command(cls=Command)
def score(
    against: Annotated[
        Optional[str], typer.Option(metavar="NAME", help="The baseline of differences and significance (default: the oldest system).")
    ] = None,
    by_length: Annotated[bool, typer.Option("--by-length", help="Also BLEU per group of source lengths.")] = False,
    buckets: Annotated[
        Optional[str],
        typer.Option(metavar="dc|pr|10,20,…", help="With --by-length, which it implies: a paper's groups, or your own borders (default: dc)."),
    ] = None,
    output_format: Format = "table",
    systems: Systems = None,
    set_names: SetNames = None,
    hyp: Annotated[Optional[list[Path]], typer.Option(metavar="FILE", help="Without a run: a translation to score. Repeatable.")] = None,
    ref: Annotated[Optional[list[Path]], typer.Option(metavar="FILE", help="Without a run: a reference. Repeatable.")] = None,
    src: Annotated[Optional[Path], typer.Option(metavar="FILE", help="Without a run: the source, for --by-length.")] = None,
    language: Annotated[
        Optional[str], typer.Option("--lang", metavar="LANG", help="Without a run: target language (default: the reference's suffix).")
    ] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Resamples of the paired bootstrap.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resampling.")] = 1,
    run: RunOption = None,
    force: Force = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """BLEU, chrF and TER of all systems side by side, with intervals and significance against a baseline."""
    from nmtkit.score import stage

    groups = {"by_length": by_length or buckets is not None, "buckets": buckets or "dc"}
    options: dict[str, Any] = {**groups, "against": against, "output_format": output_format, "resamples": resamples, "seed": seed}
    if hyp or ref:
        stage.score_files(hyp or [], ref or [], src=src, language=language, **options)
    else:
        stage.score(_chosen(run), systems=systems or [], set_names=set_names or [], force=force, **options)


@app.command(cls=Command)
def analyze(
    analysis: Annotated[Optional[str], typer.Argument(metavar="[NAME]", help="The analysis; without it, the list of them.")] = None,
    systems: Systems = None,
    set_names: SetNames = None,
    buckets: Annotated[str, typer.Option(metavar="dc|pr|10,20,…", help="lengths: the groups.")] = "dc",
    measure: Annotated[bool, typer.Option("--measure", help="cost: time the systems now, in turn, in one process.")] = False,
    output_format: Format = "table",
    run: RunOption = None,
    force: Force = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Look inside the systems: table, figure and one sentence on how to read them."""
    from nmtkit.analyze import ANALYSES, stage

    if analysis is None:
        console.print_table("", ["<analysis", "<what it shows"], [[name, entry.title] for name, entry in ANALYSES.items()])
        return
    options = {"buckets": buckets, "measure": measure}
    stage.analyze(_chosen(run), analysis, systems=systems or [], set_names=set_names or [], output_format=output_format, force=force, **options)


def _chosen(folder: Path | None) -> Run:
    """The run a stage works on; said, so that nobody works on another one unawares."""
    from nmtkit.run import choose

    run = choose(folder)
    console.say(f"run {run.path}")
    return run
