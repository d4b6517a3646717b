"""The commands of the stages: prep, train, translate, score, analyze."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from nmtkit import console
from nmtkit.cli.door import command, examples
from nmtkit.cli.options import (
    SETTINGS,
    Config,
    Debug,
    Device,
    Format,
    Quiet,
    force_option,
    jobs_option,
    preset_option,
    run_option,
    set_names_option,
    set_option,
    systems_option,
)

if TYPE_CHECKING:  # the rooms are imported by the command that needs them, so that --help is instant
    from nmtkit.run import Run

OWN_FILES, SEARCH, OF_A_RUN, OUTSIDE = (
    "Own files",
    "Search (default: the system's own settings)",
    "Translations of a run",
    "Outside files, without a run",
)
"""Parts of a command's help."""


@command(
    no_args_is_help=True,
    epilog=examples(
        "nmtkit prep demo",
        "nmtkit prep multi30k-ende --from-dir /data/multi30k",
        "nmtkit prep mine --train train.de train.en --dev dev.de dev.en --test test.de,test.en",
        "nmtkit prep demo --size 5000 --set prep.merges=1000 --run runs/small-demo",
    ),
)
def prep(
    dataset: Annotated[
        Optional[str], typer.Argument(metavar="DATASET", help="A data set that `nmtkit datasets` lists; or, with own files, a name of yours.")
    ] = None,
    from_dir: Annotated[Optional[Path], typer.Option(metavar="DIR", help="Look here for the data set's files before downloading them.")] = None,
    size: Annotated[Optional[int], typer.Option(metavar="N", min=1, help="Training pairs of a generated data set (demo: 20,000 by default).")] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of a generated data set.")] = 1,
    train: Annotated[
        Optional[tuple[Path, Path]],
        typer.Option(metavar="SRC TGT", help="Training text, plain or as .gz, .xz, .bz2, .zst; one sentence a line.", rich_help_panel=OWN_FILES),
    ] = None,
    dev: Annotated[
        Optional[tuple[Path, Path]],
        typer.Option(metavar="SRC TGT", help="Development text, on which a training is watched.", rich_help_panel=OWN_FILES),
    ] = None,
    test: Annotated[
        Optional[list[str]],
        typer.Option(metavar="SRC,TGT[,TGT…]", help="Test text: source, reference(s), commas between. Repeatable.", rich_help_panel=OWN_FILES),
    ] = None,
    src: Annotated[
        Optional[str], typer.Option(metavar="LANG", help="Source language, such as de (default: the files' suffix).", rich_help_panel=OWN_FILES)
    ] = None,
    tgt: Annotated[
        Optional[str], typer.Option(metavar="LANG", help="Target language, such as en (default: the files' suffix).", rich_help_panel=OWN_FILES)
    ] = None,
    preset: Annotated[Optional[str], preset_option("the data set's")] = None,
    config: Config = None,
    assignments: Annotated[Optional[list[str]], set_option("prep.merges=4000")] = None,
    run: Annotated[Optional[Path], run_option("The run directory, which is made (default: runs/DATASET).")] = None,
    jobs: Annotated[int, jobs_option()] = 0,
    force: Annotated[bool, force_option("Prepare again, whatever is there; systems trained on another corpus will be refused then.")] = False,
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


@command(
    epilog=examples(
        "nmtkit train",
        "nmtkit train --name pre-norm --set model.norm=pre --set train.max_steps=20000",
        "nmtkit train --variant my_package.my_file:MyModel --preset tiny",
        before="For example, in a run that is prepared:",
        after="`nmtkit train` given again continues a training that was stopped (Ctrl-C or SIGTERM save first).",
    ),
)
def train(
    variant: Annotated[
        str, typer.Option(metavar="NAME", help="The model: a variant that `nmtkit variants` lists, or package.module:Class for one of your own.")
    ] = "transformer",
    name: Annotated[Optional[str], typer.Option(metavar="NAME", help="The system's name in the run (default: the variant's).")] = None,
    init_from: Annotated[
        Optional[str],
        typer.Option(metavar="SYSTEM", help="Begin with the weights of another system of the run, or of a system's or checkpoint's folder."),
    ] = None,
    compile_model: Annotated[
        bool, typer.Option("--compile", help="Compile the model with torch.compile: some minutes first, then faster steps on a GPU.")
    ] = False,
    preset: Annotated[Optional[str], preset_option("the data set's")] = None,
    config: Config = None,
    assignments: Annotated[Optional[list[str]], set_option("train.max_steps=1000")] = None,
    seed: Annotated[
        Optional[int],
        typer.Option(metavar="N", min=0, help="Seed of initialisation, dropout and order of batches: train.seed.", rich_help_panel=SETTINGS),
    ] = None,
    run: Annotated[Optional[Path], run_option()] = None,
    device: Device = "auto",
    force: Annotated[bool, force_option("Begin anew where a system of this name exists: it and its checkpoints go.")] = False,
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


@command(
    epilog=examples(
        "nmtkit translate",
        'echo "A dog runs." | nmtkit translate -',
        "nmtkit translate news.en --system mine --beam 10 --nbest 5",
        "nmtkit translate --ensemble --system baseline --system mine",
        "nmtkit translate news.en --force-target news.de",
    ),
)
def translate(
    source: Annotated[
        Optional[str],
        typer.Argument(metavar="-|FILE", help="Text to translate to stdout, - for stdin; without it the run's sets are translated into the run."),
    ] = None,
    systems: Annotated[
        Optional[list[str]],
        systems_option("Only this system of the run. Repeatable; default: all that are trained, for -|FILE the one trained last."),
    ] = None,
    set_names: Annotated[Optional[list[str]], set_names_option("every test set")] = None,
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Translate with the systems together: the mean of their probabilities.")] = False,
    force_target: Annotated[
        Optional[Path],
        typer.Option(metavar="FILE", help="Search nothing; print the log-probabilities of the tokens of these target lines, as JSON lines."),
    ] = None,
    beam: Annotated[
        Optional[int], typer.Option(metavar="N", min=1, help="Hypotheses kept per sentence; 1 = greedy (search.beam).", rich_help_panel=SEARCH)
    ] = None,
    length_penalty: Annotated[
        Optional[float],
        typer.Option(metavar="X", min=0, help="Higher favours longer translations, 0 = none (search.length_penalty).", rich_help_panel=SEARCH),
    ] = None,
    nbest: Annotated[
        Optional[int],
        typer.Option(metavar="N", min=1, help="Translations per sentence, best first, as JSON lines (search.nbest).", rich_help_panel=SEARCH),
    ] = None,
    average: Annotated[
        Optional[int],
        typer.Option(metavar="K", min=1, help="Use the mean of the last K checkpoints; 1 = the best one (search.average).", rich_help_panel=SEARCH),
    ] = None,
    assignments: Annotated[Optional[list[str]], set_option("search.max_length_b=20", SEARCH)] = None,
    run: Annotated[Optional[Path], run_option()] = None,
    jobs: Annotated[int, jobs_option(" on a CPU")] = 0,
    device: Device = "auto",
    force: Annotated[bool, force_option("Translate sets again that are up to date.")] = False,
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


@command(
    epilog=examples(
        "nmtkit score --by-length",
        "nmtkit score --against baseline --format tex",
        "nmtkit score --hyp a.de --hyp b.de --ref news.de",
    ),
)
def score(
    against: Annotated[
        Optional[str],
        typer.Option(metavar="NAME", help="The baseline of differences and significance (default: the system trained first, or the first --hyp)."),
    ] = None,
    by_length: Annotated[bool, typer.Option("--by-length", help="Also BLEU in groups of source length.")] = False,
    buckets: Annotated[
        Optional[str],
        typer.Option(metavar="dc|pr|10,20,…", help="The groups of --by-length, which this implies: a paper's, or your own borders (default: dc)."),
    ] = None,
    resamples: Annotated[int, typer.Option(metavar="N", min=1, help="Resamples of the bootstrap, for intervals and significance.")] = 1000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the resampling.")] = 1,
    output_format: Format = "table",
    systems: Annotated[
        Optional[list[str]], systems_option("Only this system, beside the baseline. Repeatable; default: all that are translated.", OF_A_RUN)
    ] = None,
    set_names: Annotated[Optional[list[str]], set_names_option("every test set that is translated", OF_A_RUN)] = None,
    run: Annotated[Optional[Path], run_option(panel=OF_A_RUN)] = None,
    force: Annotated[bool, force_option("Compute scores again that are up to date.", OF_A_RUN)] = False,
    hyp: Annotated[Optional[list[Path]], typer.Option(metavar="FILE", help="A translation to score. Repeatable.", rich_help_panel=OUTSIDE)] = None,
    ref: Annotated[
        Optional[list[Path]], typer.Option(metavar="FILE", help="A reference. Repeatable: several references of one text.", rich_help_panel=OUTSIDE)
    ] = None,
    src: Annotated[Optional[Path], typer.Option(metavar="FILE", help="The source, whose words --by-length counts.", rich_help_panel=OUTSIDE)] = None,
    language: Annotated[
        Optional[str],
        typer.Option("--lang", metavar="LANG", help="The target language (default: the reference's suffix).", rich_help_panel=OUTSIDE),
    ] = None,
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


@command(
    epilog=examples(
        "nmtkit analyze",
        "nmtkit analyze lengths --buckets 10,20,40",
        "nmtkit analyze cost --measure --system baseline --system mine",
    ),
)
def analyze(
    analysis: Annotated[Optional[str], typer.Argument(metavar="NAME", help="The analysis; without it they are listed.")] = None,
    systems: Annotated[
        Optional[list[str]], systems_option("Only this system of the run, the baseline first. Repeatable; default: all, the one trained first leads.")
    ] = None,
    set_names: Annotated[Optional[list[str]], set_names_option("all, or the first, as the analysis needs")] = None,
    buckets: Annotated[str, typer.Option(metavar="dc|pr|10,20,…", help="Of lengths: the groups, a paper's or your own borders.")] = "dc",
    measure: Annotated[
        bool, typer.Option("--measure", help="Of cost: time training and decoding now, the systems in turn, instead of reading the logs.")
    ] = False,
    output_format: Format = "table",
    run: Annotated[Optional[Path], run_option()] = None,
    force: Annotated[bool, force_option("Do an analysis again that is up to date.")] = False,
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
