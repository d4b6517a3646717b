"""The command `analyze`: what the systems do inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from nmtkit import console
from nmtkit.cli.door import command, examples
from nmtkit.cli.options import Debug, Format, Quiet, chosen_run, force_option, run_option, set_names_option, systems_option


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
        "nmtkit analyze importance --set-name dev --removal raw",
        "nmtkit analyze gates --src-tags test.en.pos",
        "nmtkit analyze context --set-name dev",
        "nmtkit analyze convergence --levels 20,25,30",
        "nmtkit analyze phrases --expressions verbs.tsv",
        "nmtkit analyze probing --probes senteval --tasks tree_depth,word_content --layer 3",
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
    pairs: Annotated[
        str,
        typer.Option(
            metavar="FILE|SRC,RIGHT,WRONG|CONTEXT,SRC,RIGHT,WRONG|pronouns|lingeval97",
            help="Of agreement: the contrastive set: JSON as Lingeval97's, DiscEvalMT's or the English-Russian consistency sets', text files, or one "
            "that came with the corpus (default: agreement).",
        ),
    ] = "",
    context: Annotated[
        str,
        typer.Option(
            metavar="true,none,foreign",
            help="Of agreement, for systems that read context: the pairs' own, none, that of another sentence of the set; several, side by side.",
        ),
    ] = "true",
    scores: Annotated[
        Optional[list[str]], typer.Option(metavar="FILE", help="Of agreement: scores in Lingeval97's format, shown beside the systems. Repeatable.")
    ] = None,
    score_kind: Annotated[
        str,
        typer.Option(
            metavar="auto|nll|log-prob",
            help="Of agreement: what --scores has: negative log-likelihoods, as Lingeval97's own evaluation takes them, or log-probabilities "
            "(auto: the latter if none is above zero).",
        ),
    ] = "auto",
    sentence: Annotated[int, typer.Option(metavar="N", min=1, help="Of alignment: the sentence pair that is drawn, by its line.")] = 1,
    layer: Annotated[
        str,
        typer.Option(
            metavar="N|NAME",
            help="Of alignment: a layer from 1, or any attention by its name (default: all; the last but one is drawn). Of probing: a layer of the "
            "encoder from 1 (default: what the decoder reads).",
        ),
    ] = "",
    head: Annotated[int, typer.Option(metavar="N", min=0, help="Of alignment: one head from 1 (0: the mean over heads).")] = 0,
    gold: Annotated[
        str,
        typer.Option(metavar="LINKS,PAIRS", help="Of alignment: gold links (i-j sure, ipj possible, from 1) and their 'source ||| target' lines."),
    ] = "",
    alignments: Annotated[
        Optional[list[str]],
        typer.Option(metavar="FILE", help="Of alignment: hypothesised links for the pairs of --gold, shown beside the systems. Repeatable."),
    ] = None,
    levels: Annotated[
        str,
        typer.Option(
            metavar="BLEU,…",
            help="Of convergence: levels of dev BLEU, such as 20,25,30 (default: the best of the weakest, shares of the best).",
        ),
    ] = "",
    removal: Annotated[
        str,
        typer.Option(metavar="renormalised|raw", help="Of importance: whether the weights left are scaled to sum to one when one is taken away."),
    ] = "renormalised",
    expressions: Annotated[
        str,
        typer.Option(
            metavar="FILE|separable-verbs",
            help="Of phrases: lines of source phrase, tab, target phrases with ' | ' between, '...' for a gap (default: the corpus's own).",
        ),
    ] = "",
    match_case: Annotated[bool, typer.Option("--match-case", help="Of phrases: case counts (default: it is ignored).")] = False,
    src_tags: Annotated[
        str,
        typer.Option(metavar="FILE", help="Of gates: a part of speech for each source word of the set, as analyze/gates/tokens.src.txt has them."),
    ] = "",
    tgt_tags: Annotated[str, typer.Option(metavar="FILE", help="Of gates: the same of the reference (tokens.tgt.txt).")] = "",
    probes: Annotated[
        str,
        typer.Option(
            metavar="FOLDER|senteval",
            help="Of probing: files of 'tr|va|te, label, sentence' with tabs between, or folders TASK/{tr,va,te}.txt (default: the corpus's own).",
        ),
    ] = "",
    tasks: Annotated[str, typer.Option(metavar="TASK,…", help="Of probing: only these tasks (default: all that are there).")] = "",
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
    options = {"buckets": buckets, "measure": measure, "pairs": pairs, "context": context, "scores": tuple(scores or ())}
    options["score_kind"] = score_kind
    options |= {"sentence": sentence, "layer": layer, "head": head, "gold": gold, "alignments": tuple(alignments or ())}
    options |= {"levels": levels, "expressions": expressions, "match_case": match_case, "removal": removal}
    options |= {"src_tags": src_tags, "tgt_tags": tgt_tags, "probes": probes, "tasks": tasks}
    stage.analyze(chosen_run(run), analysis, systems=systems or [], set_names=set_names or [], output_format=output_format, force=force, **options)
