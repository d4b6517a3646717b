"""The command `analyze`: what the systems do inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from nmtkit import console
from nmtkit.cli.door import GENERAL, command, examples
from nmtkit.cli.options import Debug, Quiet, chosen_run, force_option, format_option, run_option, set_names_option, systems_option


def of(*analyses: str) -> str:
    """The part of the help that has the options of these analyses."""
    return f"Of {', '.join(analyses[:-1])} and {analyses[-1]}" if analyses[1:] else f"Of {analyses[0]}"


@command(
    epilog=examples(
        "nmtkit analyze",
        "nmtkit analyze lengths --buckets 10,20,40",
        "nmtkit analyze cost --measure --system baseline --system mine",
        "nmtkit analyze agreement --pairs lingeval97",
        "nmtkit analyze agreement --pairs pronouns --context true,none,foreign",
        "nmtkit analyze divergence --system dc-2 --system dc-5",
        "nmtkit analyze alignment --sentence 7 --layer 3",
        "nmtkit analyze alignment --gold enfr.gold,enfr.src-tgt",
        "nmtkit analyze importance --set-name dev --removal raw --sentences 200",
        "nmtkit analyze gates --src-tags test.en.pos",
        "nmtkit analyze weights --sentence 7",
        "nmtkit analyze examples --sentence 7",
        "nmtkit analyze context --set-name dev",
        "nmtkit analyze convergence --levels 20,25,30",
        "nmtkit analyze phrases --expressions verbs.tsv",
        "nmtkit analyze probing --probes senteval --tasks tree_depth,word_content --layer 3",
    ),
)
def analyze(
    analysis: Annotated[Optional[str], typer.Argument(metavar="NAME", help="The analysis; without it they are listed.")] = None,
    systems: Annotated[
        Optional[list[str]],
        systems_option("Only this system of the run, the baseline first. Repeatable; default: all, the one trained first leads.", GENERAL),
    ] = None,
    set_names: Annotated[Optional[list[str]], set_names_option("all, or the first, as the analysis needs", GENERAL)] = None,
    output_format: Annotated[str, format_option(GENERAL)] = "table",
    run: Annotated[Optional[Path], run_option()] = None,
    force: Annotated[bool, force_option("Do an analysis again that is up to date.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
    buckets: Annotated[
        str,
        typer.Option(
            metavar="dc|pr|10,20,…",
            help="The groups, a paper's or your own borders.",
            rich_help_panel=of("lengths"),
        ),
    ] = "dc",
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Time training and decoding now, the systems in turn, instead of reading the logs.",
            rich_help_panel=of("cost"),
        ),
    ] = False,
    pairs: Annotated[
        str,
        typer.Option(
            metavar="FILE|SRC,RIGHT,WRONG|CONTEXT,SRC,RIGHT,WRONG|pronouns|lingeval97",
            help="The contrastive set: JSON as Lingeval97's, DiscEvalMT's or the English-Russian consistency sets', text files, or one "
            "that came with the corpus (default: agreement).",
            rich_help_panel=of("agreement"),
        ),
    ] = "",
    context: Annotated[
        str,
        typer.Option(
            metavar="true,none,foreign",
            help="For systems that read context: the pairs' own, none, that of another sentence of the set; several, side by side.",
            rich_help_panel=of("agreement"),
        ),
    ] = "true",
    scores: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar="FILE",
            help="Scores in Lingeval97's format, shown beside the systems. Repeatable.",
            rich_help_panel=of("agreement"),
        ),
    ] = None,
    score_kind: Annotated[
        str,
        typer.Option(
            metavar="auto|nll|log-prob",
            help="What --scores has: negative log-likelihoods, as Lingeval97's own evaluation takes them, or log-probabilities "
            "(auto: the latter if none is above zero).",
            rich_help_panel=of("agreement"),
        ),
    ] = "auto",
    sentence: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="The sentence pair that is shown, by its line.",
            rich_help_panel=of("alignment", "weights", "examples"),
        ),
    ] = 1,
    layer: Annotated[
        str,
        typer.Option(
            metavar="N|NAME",
            help="For alignment a layer from 1, or any attention by its name (default: all; the last but one is drawn). For probing a layer of the "
            "encoder from 1 (default: what the decoder reads).",
            rich_help_panel=of("alignment", "probing"),
        ),
    ] = "",
    head: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="One head from 1 (0: the mean over heads).",
            rich_help_panel=of("alignment"),
        ),
    ] = 0,
    gold: Annotated[
        str,
        typer.Option(
            metavar="LINKS,PAIRS",
            help="Gold links (i-j sure, ipj possible, from 1) and their 'source ||| target' lines.",
            rich_help_panel=of("alignment"),
        ),
    ] = "",
    alignments: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar="FILE",
            help="Hypothesised links for the pairs of --gold, shown beside the systems. Repeatable.",
            rich_help_panel=of("alignment"),
        ),
    ] = None,
    levels: Annotated[
        str,
        typer.Option(
            metavar="BLEU,…",
            help="Levels of dev BLEU, such as 20,25,30 (default: the best of the weakest, shares of the best).",
            rich_help_panel=of("convergence"),
        ),
    ] = "",
    removal: Annotated[
        str,
        typer.Option(
            metavar="renormalised|raw",
            help="Whether the weights left are scaled to sum to one when one is taken away.",
            rich_help_panel=of("importance"),
        ),
    ] = "renormalised",
    sentences: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Only so many sentences of the set, drawn at random (0: all).",
            rich_help_panel=of("importance"),
        ),
    ] = 0,
    expressions: Annotated[
        str,
        typer.Option(
            metavar="FILE|separable-verbs",
            help="Lines of source phrase, tab, target phrases with ' | ' between, '...' for a gap (default: the corpus's own).",
            rich_help_panel=of("phrases"),
        ),
    ] = "",
    match_case: Annotated[
        bool,
        typer.Option(
            "--match-case",
            help="Case counts (default: it is ignored).",
            rich_help_panel=of("phrases"),
        ),
    ] = False,
    src_tags: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="A part of speech for each source word of the set, as analyze/gates/tokens.src.txt has them.",
            rich_help_panel=of("gates"),
        ),
    ] = "",
    tgt_tags: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The same of the reference (tokens.tgt.txt).",
            rich_help_panel=of("gates"),
        ),
    ] = "",
    probes: Annotated[
        str,
        typer.Option(
            metavar="FOLDER|senteval",
            help="Files of 'tr|va|te, label, sentence' with tabs between, or folders TASK/{tr,va,te}.txt (default: the corpus's own).",
            rich_help_panel=of("probing"),
        ),
    ] = "",
    tasks: Annotated[
        str,
        typer.Option(
            metavar="TASK,…",
            help="Only these tasks (default: all that are there).",
            rich_help_panel=of("probing"),
        ),
    ] = "",
    paper: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="A paper's printed numbers (recipes/PAPER/paper.toml), beside the measured ones.",
            rich_help_panel=of("lengths", "cost", "examples", "probing"),
        ),
    ] = "",
    table: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Which table of --paper, for example table1.",
            rich_help_panel=of("lengths", "cost", "examples", "probing"),
        ),
    ] = "",
) -> None:
    """Look inside the systems: table, figure and one sentence on how to read them."""
    from nmtkit.analyze import ANALYSES, stage

    if analysis is None:
        console.print_table("", ["<analysis", "<what it shows"], [[name, entry.title] for name, entry in ANALYSES.items()])
        return
    options = {"buckets": buckets, "measure": measure, "pairs": pairs, "context": context, "scores": tuple(scores or ())}
    options["score_kind"] = score_kind
    options |= {"sentence": sentence, "layer": layer, "head": head, "gold": gold, "alignments": tuple(alignments or ())}
    options |= {"levels": levels, "expressions": expressions, "match_case": match_case, "removal": removal, "sentences": sentences}
    options |= {"src_tags": src_tags, "tgt_tags": tgt_tags, "probes": probes, "tasks": tasks, "paper": paper, "table": table}
    stage.analyze(chosen_run(run), analysis, systems=systems or [], set_names=set_names or [], output_format=output_format, force=force, **options)
