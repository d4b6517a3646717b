"""What the systems do inside: one file an analysis, one table that lists them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Analysis:
    """One entry of the table: where its function is (`module:function`, imported when it is asked for) and what it shows."""

    target: str
    title: str


ANALYSES: dict[str, Analysis] = {
    "lengths": Analysis("nmtkit.analyze.lengths:run", "BLEU and output length by the length of the source"),
    "cost": Analysis("nmtkit.analyze.cost:run", "parameters, multiply-accumulates, training and decoding speed beside the baseline's"),
    "agreement": Analysis("nmtkit.analyze.agreement:run", "right forms preferred to wrong ones, by kind of error, distance and frequency"),
    "divergence": Analysis("nmtkit.analyze.divergence:run", "how far local and global attention are from each other, layer by layer"),
    "layers": Analysis("nmtkit.analyze.layers:run", "which encoder levels each decoder layer reads, where a mixture of them is learned"),
    "alignment": Analysis("nmtkit.analyze.alignment:run", "the attention of a sentence pair, and its alignment error rate on gold sets"),
    "importance": Analysis("nmtkit.analyze.importance:run", "whether source positions with more attention matter more to the next word (ΔJS, Δα)"),
    "gates": Analysis("nmtkit.analyze.gates:run", "how open content-adaptive gates are, by word, frequency and part of speech"),
    "weights": Analysis("nmtkit.analyze.weights:run", "what each source word of a sentence weighs in gated attention: attention times gate"),
    "convergence": Analysis("nmtkit.analyze.convergence:run", "loss and dev BLEU by updates, epochs and time, and what it took to reach a BLEU"),
    "context": Analysis(
        "nmtkit.analyze.context_use:run", "whether the other sentences that systems read are used: loss and BLEU without, and with others"
    ),
    "examples": Analysis("nmtkit.analyze.examples:run", "a sentence as all systems translate it, and how often which of them is ahead"),
    "phrases": Analysis("nmtkit.analyze.phrases:run", "multi-word expressions translated as the reference does"),
    "probing": Analysis("nmtkit.analyze.probing:run", "what classifiers read off the mean of the encoder's states: length, words, syntax, tense, …"),
}
"""Every analysis by name. Its function is `run(run, systems, *, set_names, …) -> Finding`, where … are the options it has; another analysis is one
file and one line."""

OPTIONS: dict[str, object] = {
    **{"buckets": "dc", "measure": False, "pairs": "", "context": "true", "scores": (), "score_kind": "auto"},
    **{"sentence": 1, "layer": "", "head": 0, "gold": "", "alignments": ()},
    **{"levels": "", "expressions": "", "match_case": False, "removal": "renormalised", "sentences": 0},
    **{"src_tags": "", "tgt_tags": ""},
    **{"probes": "", "tasks": "", "paper": "", "table": ""},
}
"""The options that some analyses have, each with its default; an analysis gets those that its function declares."""
