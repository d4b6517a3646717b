"""One metric of one system, for tests."""

from types import SimpleNamespace

from nmtkit.score.metrics import Scorer

TOKENS = SimpleNamespace(tokenization="none", cased=lambda line: line)
"""The side of lines that are tokens already."""


def tokenized_bleu(hyps, refs, lowercase=False):
    return Scorer(refs, lowercase=lowercase, side=TOKENS).score("tokenized_bleu", hyps)


def mteval(hyps, refs, lowercase=False):
    return Scorer(refs).score("mteval_uncased" if lowercase else "mteval", hyps)


def chrf(hyps, refs):
    return Scorer(refs).score("chrf", hyps)


def ter(hyps, refs):
    return Scorer(refs).score("ter", hyps)


def multi_bleu_line(metric):
    """A BLEU metric as multi-bleu.perl prints it."""
    d = metric.details
    precisions = "/".join(f"{p:.1f}" for p in d["precisions"])
    return (
        f"BLEU = {metric.value:.2f}, {precisions} (BP={d['bp']:.3f}, ratio={d['ratio']:.3f},"
        f" hyp_len={d['hyp_len']}, ref_len={d['ref_len']})"
    )
