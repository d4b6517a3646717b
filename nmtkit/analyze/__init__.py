"""The analyses: what the systems of a run do inside. The analysis NAME is the class Name in
NAME.py.
"""

ANALYSES = {
    "lengths": "BLEU and output length by the length of the source",
    "cost": "parameters, multiply-accumulates, training and decoding speed beside the baseline's",
    "agreement": (
        "how often right forms are preferred to wrong ones, by kind of error, distance and"
        " frequency"
    ),
    "divergence": "how far local and global attention are from each other, layer by layer",
    "layers": "which encoder levels each decoder layer reads, in models that learn a mixture",
    "alignment": "the attention of a sentence pair, and its alignment error rate on gold sets",
    "attention": (
        "what systems attend to in their own translations, for the report's sentence explorer"
    ),
    "importance": (
        "whether source positions with more attention matter more to the next word (ΔJS, Δα)"
    ),
    "gates": "how open content-adaptive gates are, by word, frequency and part of speech",
    "weights": "the weight of each source word in gated attention: attention times gate",
    "convergence": (
        "loss and dev BLEU by updates, epochs and time, and the updates needed to reach a BLEU"
    ),
    "context": (
        "whether systems use the context that they read: loss and BLEU with it, without it, and"
        " with other sentences"
    ),
    "examples": "one sentence in all translations, and how often each system is ahead",
    "phrases": "multi-word expressions translated as the reference does",
    "probing": (
        "what classifiers find in the encoder's mean state: length, words, syntax, tense, …"
    ),
}
"""Analysis -> what it shows, in the order that `nmtkit analyze` prints. A new analysis has a line
here.
"""
