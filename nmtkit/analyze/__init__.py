"""What the systems do inside. The analysis NAME is the class Name in NAME.py."""

ANALYSES = {
    "lengths": "BLEU and output length by the length of the source",
    "cost": "parameters, multiply-accumulates, training and decoding speed beside the baseline's",
    "agreement": "right forms preferred to wrong ones, by kind of error, distance and frequency",
    "divergence": "how far local and global attention are from each other, layer by layer",
    "layers": "which encoder levels each decoder layer reads, where a mixture of them is learned",
    "alignment": "the attention of a sentence pair, and its alignment error rate on gold sets",
    "attention": (
        "what systems attend to in their own translations, for the report's sentence explorer"
    ),
    "importance": (
        "whether source positions with more attention matter more to the next word (ΔJS, Δα)"
    ),
    "gates": "how open content-adaptive gates are, by word, frequency and part of speech",
    "weights": (
        "what each source word of a sentence weighs in gated attention: attention times gate"
    ),
    "convergence": (
        "loss and dev BLEU by updates, epochs and time, and what it took to reach a BLEU"
    ),
    "context": (
        "whether the other sentences that systems read are used: loss and BLEU without, and with"
        " others"
    ),
    "examples": "a sentence as all systems translate it, and how often which of them is ahead",
    "phrases": "multi-word expressions translated as the reference does",
    "probing": (
        "what classifiers read off the encoder's mean state: length, words, syntax, tense, …"
    ),
}
"""What each analysis shows, in the order of the list. A new analysis has a line here."""
