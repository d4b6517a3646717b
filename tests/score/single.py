"""The score of a single system by one metric."""

from types import SimpleNamespace

from nmtkit.score.metrics import Scorer

TOKENS = SimpleNamespace(tokenization="none", cased=lambda line: line)
"""A text side whose lines are already tokens."""


def tokenized_bleu(hyps, refs, lowercase=False):
    return Scorer(refs, lowercase=lowercase, side=TOKENS).score("tokenized_bleu", hyps)


def mteval(hyps, refs, lowercase=False):
    return Scorer(refs).score("mteval_uncased" if lowercase else "mteval", hyps)


def chrf(hyps, refs):
    return Scorer(refs).score("chrf", hyps)


def ter(hyps, refs):
    return Scorer(refs).score("ter", hyps)


def multi_bleu_line(metric):
    """Return a BLEU score in the form that multi-bleu.perl prints."""
    details = metric.details
    precisions = "/".join(f"{p:.1f}" for p in details["precisions"])
    sizes = "BP={bp:.3f}, ratio={ratio:.3f}, hyp_len={hyp_len}, ref_len={ref_len}"
    return f"BLEU = {metric.value:.2f}, {precisions} ({sizes.format(**details)})"
