"""The commands of all stages except `analyze`: prep, train, translate, score, report, export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmtkit.cli.command import Command, command
from nmtkit.cli.program import examples
from nmtkit.export.options import ExportOptions
from nmtkit.options import CodeOptions
from nmtkit.prep.options import PrepOptions, joined_words
from nmtkit.report.options import ReportOptions
from nmtkit.run import choose
from nmtkit.score.options import ScoreOptions
from nmtkit.train.options import TrainOptions
from nmtkit.translate.options import TranslateOptions


class PrepCommand(Command):
    """The command `prep`, whose options for files take one word or several."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return super().parse_args(ctx, joined_words(args))


# The stages are imported when they run, so that `--help` is instant.


@command(
    "prep",
    PrepOptions,
    cls=PrepCommand,
    no_args_is_help=True,
    epilog=examples(
        "nmtkit prep demo",
        "nmtkit prep multi30k-ende --from-dir /data/multi30k",
        "nmtkit prep mine --train train.de train.en --dev dev.de dev.en --test test.de,test.en",
        "nmtkit prep mine --train train.de-en.tsv --dev dev.tsv --test test.tsv",
        "nmtkit prep mine --train train.de train.en --dev dev.de dev.en --docs train=train.docids"
        " --docs dev=blank",
        "nmtkit prep mine --train train.de train.en --dev dev.de dev.en --codes bpe.codes --vocab"
        " vocab.de,vocab.en",
        "nmtkit prep talks --train talks.de talks.en --dev dev.de dev.en --like runs/news",
        "nmtkit prep tvsub-zhen --size 200000 --test tst2010.zh,tst2010.en --docs"
        " tst2010=tst2010.doc",
        "nmtkit prep demo --size 5000 --parser stanza --run runs/parsed",
        "nmtkit prep demo --size 5000 --parses train=runs/parsed/prep/parses/train.txt --parses"
        " dev=runs/parsed/prep/parses/dev.txt",
        "nmtkit prep demo --size 5000 --set prep.merges=1000 --run runs/small-demo",
    ),
)
def prep(**options: Any) -> None:
    """Turn parallel text into token ids: clean, tokenize, truecase, BPE, vocabulary, store."""
    from nmtkit.prep import stage

    stage.prep(**options)


@command(
    "train",
    TrainOptions,
    CodeOptions,
    epilog=examples(
        "nmtkit train",
        "nmtkit train --system pre-norm --set model.norm=pre --set train.max_steps=20000",
        "nmtkit train --variant my_package.my_file:MyModel --preset tiny",
        "nmtkit train --init-from runs/news/systems/mine",
        "torchrun --nproc-per-node 4 -m nmtkit train",
        before="For example, after `nmtkit prep`:",
        after=(
            "Ctrl-C, SIGTERM and a closed terminal save a checkpoint and stop. The same command"
            " resumes the training. Without settings (`nmtkit train --system NAME`), or with `--set"
            " train.max_steps=N` alone, it resumes with the settings of the system."
        ),
    ),
)
def train(run: Path | None = None, **options: Any) -> None:
    """Train a system. Run the same command again to resume a stopped training."""
    from nmtkit.train import stage
    from nmtkit.train.torchrun import joined

    with joined() as ranks:
        stage.train(choose(run), ranks=ranks, **options)


@command(
    "translate",
    TranslateOptions,
    CodeOptions,
    epilog=examples(
        "nmtkit translate",
        'echo "A dog runs." | nmtkit translate -',
        "nmtkit translate news.en --system mine --beam 10 --nbest 5",
        "nmtkit translate --ensemble --system baseline --system mine",
        "nmtkit translate news.en --sample --nbest 10 --top-p 0.9 --seed 3",
        "nmtkit translate news.en --beam 12 --mbr 12",
        "nmtkit translate news.en --beam 12 --constraints phrases.de",
        "nmtkit translate news.en --force-target news.de",
    ),
)
def translate(run: Path | None = None, **options: Any) -> None:
    """Translate the run's test sets with every trained system, or translate a file or stdin."""
    from nmtkit.translate import stage

    stage.translate(choose(run), **options)


@command(
    "score",
    ScoreOptions,
    epilog=examples(
        "nmtkit score --by-length",
        "nmtkit score --against baseline --format tex",
        "nmtkit score --against baseline --group-by seed",
        "nmtkit score --significance sign",
        "nmtkit score --paper phrase --table table2",
        "nmtkit score a.de b.de --ref news.de --lang de --against b.de",
        "cat a.de | nmtkit score - --ref news.de --ref news2.de",
        "nmtkit score --metric comet='~/comet/bin/python recipes/metrics/comet_scores.py'",
    ),
)
def score(
    run: Path | None = None,
    hyps: Sequence[Path] = (),
    hyp: Sequence[Path] = (),
    ref: Sequence[Path] = (),
    **options: Any,
) -> None:
    """Print BLEU, chrF and TER of all systems, with confidence intervals, and significance tests
    against a baseline.
    """
    from nmtkit.score import stage

    if hyps or hyp or ref:
        stage.score_files([*hyps, *hyp], ref, **options)
    else:
        stage.score(choose(run), **options)


@command(
    "report",
    ReportOptions,
    epilog=examples(
        "nmtkit report",
        'nmtkit report --run runs/multi30k-ende --title "Two variants, one seed, 3,500 updates"',
        "nmtkit report --run runs/sentences --also runs/documents",
    ),
)
def report(run: Path | None = None, **options: Any) -> None:
    """Write RUN/report/index.html, one HTML page about one or several runs: comparison,
    curves, findings, translations, provenance.
    """
    from nmtkit.report import stage

    stage.report(choose(run), **options)


@command(
    "export",
    ExportOptions,
    CodeOptions,
    epilog=examples(
        "nmtkit export --to ctranslate2 --system baseline --check",
        "nmtkit export --to ctranslate2 --system baseline --quantization int8 --out baseline-int8",
        "nmtkit export --to huggingface --system baseline --check",
    ),
)
def export(run: Path | None = None, **options: Any) -> None:
    """Export a trained system to CTranslate2, a fast translation engine, or to Hugging Face's
    transformers. Models that the engine cannot run are refused at once.
    """
    from nmtkit.export import stage

    stage.export(choose(run), **options)
