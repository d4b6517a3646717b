"""What the systems do inside: one file an analysis, one table that lists them."""

from typing import NamedTuple


class Listed(NamedTuple):
    """One entry of the table: where the class of an analysis is (imported when it is asked for)
    and what it shows.
    """

    target: str
    shows: str


ANALYSES = {
    "lengths": Listed(
        "nmtkit.analyze.lengths:Lengths", "BLEU and output length by the length of the source"
    ),
    "cost": Listed(
        "nmtkit.analyze.cost:Cost",
        "parameters, multiply-accumulates, training and decoding speed beside the baseline's",
    ),
    "agreement": Listed(
        "nmtkit.analyze.agreement:Agreement",
        "right forms preferred to wrong ones, by kind of error, distance and frequency",
    ),
    "divergence": Listed(
        "nmtkit.analyze.divergence:Divergence",
        "how far local and global attention are from each other, layer by layer",
    ),
    "layers": Listed(
        "nmtkit.analyze.layers:Layers",
        "which encoder levels each decoder layer reads, where a mixture of them is learned",
    ),
    "alignment": Listed(
        "nmtkit.analyze.alignment:Alignment",
        "the attention of a sentence pair, and its alignment error rate on gold sets",
    ),
    "attention": Listed(
        "nmtkit.analyze.attention:Attention",
        "what systems attend to in their own translations, for the report's sentence explorer",
    ),
    "importance": Listed(
        "nmtkit.analyze.importance:Importance",
        "whether source positions with more attention matter more to the next word (ΔJS, Δα)",
    ),
    "gates": Listed(
        "nmtkit.analyze.gates:Gates",
        "how open content-adaptive gates are, by word, frequency and part of speech",
    ),
    "weights": Listed(
        "nmtkit.analyze.weights:Weights",
        "what each source word of a sentence weighs in gated attention: attention times gate",
    ),
    "convergence": Listed(
        "nmtkit.analyze.convergence:Convergence",
        "loss and dev BLEU by updates, epochs and time, and what it took to reach a BLEU",
    ),
    "context": Listed(
        "nmtkit.analyze.context:Context",
        "whether the other sentences that systems read are used: loss and BLEU without, and with"
        " others",
    ),
    "examples": Listed(
        "nmtkit.analyze.examples:Examples",
        "a sentence as all systems translate it, and how often which of them is ahead",
    ),
    "phrases": Listed(
        "nmtkit.analyze.phrases:Phrases", "multi-word expressions translated as the reference does"
    ),
    "probing": Listed(
        "nmtkit.analyze.probing:Probing",
        "what classifiers read off the encoder's mean state: length, words, syntax, tense, …",
    ),
}
"""Every analysis by name, in the order of the list. A new analysis is one file and one line
here.
"""
