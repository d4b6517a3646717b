"""The door: one command a stage. Each parses its options, calls one stage function and prints what it returns."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer.core import TyperGroup

import nmtkit
from nmtkit import console
from nmtkit.errors import NmtkitError

if TYPE_CHECKING:  # the rooms are imported by the command that needs them, so that --help is instant
    from nmtkit.run import Run

_debug = bool(os.environ.get("NMTKIT_DEBUG"))


class Door(TyperGroup):
    """Runs a command and turns whatever ends it into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises: typer.Exit with the code of the error (2, 3, 4, 75), 130 after Ctrl-C, 0 when the reader of stdout has gone.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except NmtkitError as error:
            if _debug:
                raise
            with contextlib.suppress(OSError):
                print(f"nmtkit: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            # `nmtkit … | head`: nothing to say, and nothing may be flushed into the closed pipe at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            if _debug:
                raise
            raise typer.Exit(130) from None
        except Exception as error:
            if _debug or type(error).__module__.startswith(("typer", "click")):
                raise
            print(f"nmtkit: internal error: {type(error).__name__}: {error}\n  this is a fault of nmtkit; --debug shows where", file=sys.stderr)
            raise typer.Exit(1) from None
        return result


app = typer.Typer(
    name="nmtkit",
    cls=Door,
    help="Parallel text through prep, train, translate, score and analyze: which change to the translation model helps, at what cost?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

PrepRunOption = Annotated[
    Optional[Path], typer.Option("--run", metavar="DIR", envvar="NMTKIT_RUN", help="The run directory (default: runs/DATASET).")
]
RunOption = Annotated[
    Optional[Path],
    typer.Option("--run", metavar="DIR", envvar="NMTKIT_RUN", help="The run directory; without it the run prepared last under ./runs."),
]
Force = Annotated[bool, typer.Option("--force", help="Do it again even if it is up to date.")]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Say nothing on stderr but warnings and errors.", callback=lambda value: (console.set_quiet(value), value)[1]),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.", callback=lambda value: (_set_debug(value), value)[1])]
Preset = Annotated[
    Optional[str],
    typer.Option(metavar="NAME", help="A paper's or a size's whole setting: tiny, demo, small, base, big, dc-wmt, dc-iwslt, pr-base, pr-big, amn."),
]
Config = Annotated[Optional[Path], typer.Option(metavar="FILE", help="Settings in TOML, in the sections prep, model, train, search.")]


def _set_option(example: str) -> Any:
    return typer.Option("--set", metavar="KEY=VALUE", help=f"One setting, for example --set {example}. Repeatable.")


Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.")]
Systems = Annotated[Optional[list[str]], typer.Option("--system", metavar="NAME", help="Only this system of the run. Repeatable.")]
SetNames = Annotated[
    Optional[list[str]],
    typer.Option("--set-name", metavar="NAME", help="Only this set of the run (test, dev, or a test set's own name). Repeatable."),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, metavar="N", help="Worker processes; 0 = one a core. The output does not depend on it.")]
Format = Annotated[str, typer.Option("--format", metavar="table|json|md|tex|csv", help="How to print the result on stdout.")]


def _set_debug(value: bool) -> None:
    global _debug
    _debug = _debug or value


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"nmtkit {nmtkit.__version__}")
        raise typer.Exit


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
    assignments: Annotated[Optional[list[str]], _set_option("prep.merges=4000")] = None,
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
    assignments: Annotated[Optional[list[str]], _set_option("train.max_steps=1000")] = None,
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


@app.command()
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
    assignments: Annotated[Optional[list[str]], _set_option("search.max_length_b=20")] = None,
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


@app.command()
def score(
    against: Annotated[
        Optional[str], typer.Option(metavar="NAME", help="The baseline of differences and significance (default: the oldest system).")
    ] = None,
    by_length: Annotated[bool, typer.Option("--by-length", help="Also BLEU per group of source lengths.")] = False,
    buckets: Annotated[str, typer.Option(metavar="dc|pr|10,20,…", help="The length groups: a paper's, or your own borders.")] = "dc",
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

    options = {"against": against, "by_length": by_length, "buckets": buckets, "output_format": output_format, "resamples": resamples, "seed": seed}
    if hyp or ref:
        stage.score_files(hyp or [], ref or [], src=src, language=language, **options)  # type: ignore[arg-type]
    else:
        stage.score(_chosen(run), systems=systems or [], set_names=set_names or [], force=force, **options)  # type: ignore[arg-type]


@app.command()
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


@app.command()
def variants(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with every setting.")] = False,
    preset: Preset = None,
    vocab_size: Annotated[int, typer.Option(min=5, metavar="V", help="Vocabulary size (of each side) for the parameter counts.")] = 32000,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the variants: paper, parameters, settings."""
    import json

    from nmtkit.models.variants import describe

    rows = describe(preset=preset, vocab_size=vocab_size)
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    console.print_table(
        f"preset {preset or 'base'}, vocabulary {vocab_size:,}",
        ["<variant", "parameters", "<paper", "<settings"],
        [[row["name"], f"{row['parameters'] / 1e6:.2f}M", row["paper"], ", ".join(s["name"] for s in row["settings"])] for row in rows],
    )


@app.command()
def datasets(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the registered data sets: size, licence, citation, whether cached."""
    import json

    from nmtkit.prep.corpora.table import describe

    rows = describe()
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    columns = ["<data set", "<languages", "pairs", "download", "<cached", "<licence", "<citation"]
    print_rows = [
        [r["name"], f"{r['src']}-{r['tgt']}", f"{r['pairs']:,}", r["size"], "yes" if r["cached"] else "no", r["licence"], r["citation"]] for r in rows
    ]
    console.print_table("", columns, print_rows)


def _chosen(folder: Path | None) -> Run:
    """The run a stage works on; said, so that nobody works on another one unawares."""
    from nmtkit.run import choose

    run = choose(folder)
    console.say(f"run {run.path}")
    return run


def main() -> None:
    """Run the command line; errors become three lines on stderr and an exit code (0, 2, 3, 4, 75, 130)."""
    # Read by OpenMP when torch is loaded. A thread that spins while it waits keeps the other one from the core they share with
    # another program, and a step takes ten times as long; spinning briefly costs a quiet machine a few per cent with tiny models.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape" if stream is sys.stdin else "backslashreplace")  # type: ignore[union-attr]
    app()


if __name__ == "__main__":
    main()
