"""Slow, simple reference implementations, written from definitions; none uses nmtkit.score."""

import math
import re
from collections import Counter
from fractions import Fraction

import sacrebleu
import sacremoses


def ngrams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def closest(length, ref_lengths):
    """Return the closest reference length; of two equally close ones the shorter."""
    return min(ref_lengths, key=lambda other: (abs(length - other), other))


def counts(hyps, refs, orders=4):
    """Return the counts of BLEU (Papineni et al. 2002): matches and n-grams by order, hypothesis
    and reference length. An n-gram matches at most as often as one of the references has it.
    """
    match, total, hyp_len, ref_len = Counter(), Counter(), 0, 0
    for words, *references in zip(hyps, *refs, strict=True):
        hyp_len += len(words)
        ref_len += closest(len(words), map(len, references))
        for n in range(1, orders + 1):
            counted, most = ngrams(words, n), Counter()
            for reference in references:
                most |= ngrams(reference, n)
            total[n] += sum(counted.values())
            match[n] += sum((counted & most).values())
    return match, total, hyp_len, ref_len


def multi_bleu(hyps, refs, lowercase=False):
    """Return BLEU as Moses' multi-bleu.perl does: it splits bytes at ASCII white space, and its
    option -lc lowercases bytes.
    """

    def words(line):
        return (line.encode().lower() if lowercase else line.encode()).split()

    hyps, *refs = [list(map(words, stream)) for stream in (hyps, *refs)]
    return bleu(*counts(hyps, refs))


def bleu(match, total, hyp_len, ref_len):
    """Return BLEU of counts: BP · exp(Σ log p_n / 4), BP = min(1, exp(1 - r/c)), no smoothing."""
    if any(match[n] == 0 for n in range(1, 5)):
        return 0.0
    brevity = 1.0 if hyp_len >= ref_len else math.exp(1 - ref_len / hyp_len)
    return 100 * brevity * math.exp(sum(math.log(match[n] / total[n]) for n in range(1, 5)) / 4)


def moses_tokens(lines, lang):
    """Tokenize as Moses' normalize-punctuation.perl and tokenizer.perl -a -no-escape do
    (sacremoses).
    """
    normalizer, tokenizer = sacremoses.MosesPunctNormalizer(lang), sacremoses.MosesTokenizer(lang)
    options = {"aggressive_dash_splits": True, "escape": False, "return_str": True}
    return [tokenizer.tokenize(normalizer.normalize(line), **options) for line in lines]


def cased_tokens(subword_lines):
    """Join the BPE of truecased subwords and undo truecasing (Moses' detruecase.perl)."""
    detruecase = sacremoses.MosesDetruecaser().detruecase
    return [detruecase(re.sub("@@( |$)", "", line), return_str=True) for line in subword_lines]


def bleu_of_tokens(hyps, refs):
    """Return sacreBLEU's BLEU of tokens, without smoothing."""
    options = {"tokenize": "none", "smooth_method": "none", "force": True}
    return sacrebleu.corpus_bleu(hyps, refs, **options).score


PERL_SPACE = " \t\n\v\f\r\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def mteval_words(line, lowercase):
    """Tokenize as sub tokenization of mteval-v13a.pl, without --international-tokenization."""
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
    """Return BLEU (0 to 100) as sub bleu_score of mteval-v13a.pl does."""
    hyps, *refs = [[mteval_words(line, lowercase) for line in stream] for stream in (hyps, *refs)]
    match, total, hyp_len, ref_len = counts(hyps, refs)
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
    """Return BLEU as NLTK's corpus_bleu, which compare-mt uses: a sentence too short for an n-gram
    counts as one n-gram without a match.
    """
    hyps, *refs = [[line.split() for line in stream] for stream in (hyps, *refs)]
    match, total, *lengths = counts(hyps, refs)
    for n in range(1, 5):
        total[n] += sum(len(words) < n for words in hyps)
    return bleu(match, total, *lengths)


def gaps(ours, theirs, refs, draws):
    """Return the difference of two systems in sacreBLEU's BLEU for each draw of sentences."""

    def score(hyps, draw):
        drawn = [[ref[i] for i in draw] for ref in refs]
        return sacrebleu.corpus_bleu([hyps[i] for i in draw], drawn).score

    return [score(ours, draw) - score(theirs, draw) for draw in draws]


def corpus_bleu(hyps, refs):
    return sacrebleu.corpus_bleu(hyps, refs).score


def sign_test(better, baseline, refs, score=corpus_bleu):
    """Return (+, -, ties, p) of the sign test (Collins, Koehn, Kučerová 2005): put each sentence of
    `better` into the baseline's output and score the whole output again.
    """
    whole = score(baseline, refs)
    plus = minus = 0
    for i, line in enumerate(better):
        changed = score([*baseline[:i], line, *baseline[i + 1 :]], refs)
        plus += changed > whole + 1e-9
        minus += changed < whole - 1e-9
    return plus, minus, len(better) - plus - minus, two_sided(plus, minus)


def two_sided(plus, minus):
    """Return the exact two-sided binomial p at 1/2."""
    n = plus + minus
    tail = sum(math.comb(n, k) for k in range(min(plus, minus) + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**n)))
