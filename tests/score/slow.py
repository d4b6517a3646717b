"""Slow, obvious oracles: each written from the definition, sharing nothing with nmtkit.score."""

import math
import re
from collections import Counter
from fractions import Fraction

import sacrebleu
import sacremoses


def ngrams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def closest(length, ref_lengths):
    """The reference length nearest to `length`; of two as near the shorter."""
    return min(ref_lengths, key=lambda other: (abs(length - other), other))


def counts(hyps, refs, orders=4):
    """(matches, n-grams, hypothesis length, reference length) of words: clipped at the most that
    one reference has.
    """
    match, total, hyp_len, ref_len = Counter(), Counter(), 0, 0
    for i, words in enumerate(hyps):
        others = [ref[i] for ref in refs]
        hyp_len += len(words)
        ref_len += closest(len(words), [len(other) for other in others])
        for n in range(1, orders + 1):
            own = ngrams(words, n)
            most = Counter()
            for other in others:
                most |= ngrams(other, n)
            total[n] += sum(own.values())
            match[n] += sum((own & most).values())
    return match, total, hyp_len, ref_len


def multi_bleu(hyps, refs, lowercase=False):
    """Moses' multi-bleu.perl: bytes, split at ASCII white space; -lc lowers bytes."""
    read = [
        [line.encode().lower() if lowercase else line.encode() for line in stream]
        for stream in (hyps, *refs)
    ]
    words = [[line.split() for line in stream] for stream in read]
    match, total, *lengths = counts(words[0], words[1:])
    return bleu(match, total, *lengths)


def bleu(match, total, hyp_len, ref_len):
    """BLEU of counts, without smoothing."""
    if any(match[n] == 0 for n in range(1, 5)):
        return 0.0
    brevity = 1.0 if hyp_len >= ref_len else math.exp(1 - ref_len / hyp_len)
    return 100 * brevity * math.exp(sum(math.log(match[n] / total[n]) for n in range(1, 5)) / 4)


def moses_tokens(lines, lang):
    """Moses' normalize-punctuation.perl and tokenizer.perl -a -no-escape, as sacremoses has
    them.
    """
    normalizer, tokenizer = sacremoses.MosesPunctNormalizer(lang), sacremoses.MosesTokenizer(lang)
    options = {"aggressive_dash_splits": True, "escape": False, "return_str": True}
    return [tokenizer.tokenize(normalizer.normalize(line), **options) for line in lines]


def cased_tokens(subword_lines):
    """The tokens of truecased subwords: BPE joined, then Moses' detruecase.perl."""
    detruecaser = sacremoses.MosesDetruecaser()
    return [
        detruecaser.detruecase(re.sub("@@( |$)", "", line), return_str=True)
        for line in subword_lines
    ]


def bleu_of_tokens(hyps, refs):
    """sacreBLEU of tokens as they are, without smoothing."""
    return sacrebleu.corpus_bleu(
        hyps, refs, tokenize="none", smooth_method="none", force=True
    ).score


PERL_SPACE = " \t\n\v\f\r\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def mteval_words(line, lowercase):
    """mteval-v13a.pl, sub tokenization (11b's rules; --international-tokenization is off), on a
    segment with its white space joined.
    """
    line = re.sub(f"[{PERL_SPACE}]+", " ", line)
    line = line.replace("<skipped>", "")
    for entity, character in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        line = line.replace(entity, character)
    line = f" {line} "
    if lowercase:
        line = "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in line)
    line = re.sub(r"([{-~\[-` -&(-+:-@/])", r" \1 ", line)  # punctuation
    line = re.sub(r"([^0-9])([.,])", r"\1 \2 ", line)  # period and comma unless preceded by a digit
    line = re.sub(r"([.,])([^0-9])", r" \1 \2", line)  # and unless followed by one
    line = re.sub(r"([0-9])(-)", r"\1 \2 ", line)  # dash after a digit
    return [word for word in re.split(f"[{PERL_SPACE}]+", line) if word]


def mteval(hyps, refs, lowercase=False):
    """mteval-v13a.pl, sub bleu_score: 0 to 100."""
    words = [[mteval_words(line, lowercase) for line in stream] for stream in (hyps, *refs)]
    match, total, hyp_len, ref_len = counts(words[0], words[1:])
    if hyp_len == 0:
        return 0.0
    logs, smooth = 0.0, 1
    for n in range(1, 5):
        if total[n] == 0:
            continue  # adds log(1)
        if match[n] == 0:
            smooth *= 2
            logs += math.log(1 / (smooth * total[n]))
        else:
            logs += math.log(match[n] / total[n])
    return 100 * math.exp(logs / 4) * math.exp(min(0, 1 - ref_len / hyp_len))


def nltk_bleu(hyps, refs):
    """NLTK's corpus_bleu, on which compare-mt rests: a sentence too short for an n-gram counts
    as one without a match.
    """
    words = [[line.split() for line in stream] for stream in (hyps, *refs)]
    match, total, *lengths = counts(words[0], words[1:])
    for n in range(1, 5):
        total[n] += sum(len(one) < n for one in words[0])
    return bleu(match, total, *lengths)


def gaps(ours, theirs, refs, draws):
    """Differences of sacreBLEU between two systems, for each draw of sentences."""

    def score(hyps, draw):
        drawn = [[ref[i] for i in draw] for ref in refs]
        return sacrebleu.corpus_bleu([hyps[i] for i in draw], drawn).score

    return [score(ours, draw) - score(theirs, draw) for draw in draws]


def sign_test(
    better, baseline, refs, score=lambda hyps, refs: sacrebleu.corpus_bleu(hyps, refs).score
):
    """Collins, Koehn, Kučerová 2005: (+, -, ties, p); each sentence is put into the baseline's
    output and the whole scored again.
    """
    whole = score(baseline, refs)
    plus = minus = 0
    for i, line in enumerate(better):
        changed = score([*baseline[:i], line, *baseline[i + 1 :]], refs)
        plus += changed > whole + 1e-9
        minus += changed < whole - 1e-9
    return plus, minus, len(better) - plus - minus, two_sided(plus, minus)


def two_sided(plus, minus):
    """The exact two-sided binomial at 1/2, in whole numbers."""
    n = plus + minus
    tail = sum(math.comb(n, k) for k in range(min(plus, minus) + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**n)))
