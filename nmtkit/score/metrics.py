"""The metrics, each value with its signature, and the per-sentence statistics that everything else
reuses.

A corpus score is a function of sums of per-sentence counts. The counts are made once (by
sacreBLEU), kept as an array, and then resampled, grouped by length or read sentence by sentence
with the vectorised formulas of `nmtkit.score.formulas`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmtkit.errors import DataError
from nmtkit.score import counts, formulas
from nmtkit.score.formulas import Array, Formula
from nmtkit.score.scripts import Mteval, MultiBleu

# sacreBLEU's tokenizer by target language; any other language gets its default, 13a
# (mteval-v13a.pl).
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
_CODES = {"cmn": "zh", "zho": "zh", "jp": "ja", "jpn": "ja", "kor": "ko"}
_UNSPACED = {"zh", "ja"}
# characters a word, on average: Chinese and Japanese words have fewer than 2, their text between
# two spaces far more
_LONGEST_WORDS = 4.0


@dataclass(frozen=True)
class Metric:
    """A corpus score that cannot be parted from its signature.

    Attributes:
        key: one of METRICS; name: its name there.
        value: the corpus score, exactly that of sacreBLEU or of the script that METRICS names.
        signature: what makes two values comparable; only equal signatures may be compared.
        statistics: (N, F) the counts of each of N sentences; a corpus score is
            `formula(statistics.sum(0))`.
        formula: (…, F) summed counts -> (…) scores; sentence_formula: the same for single sentences
            (BLEU: effective order).
        higher_is_better: False for TER.
        empty_hypotheses, empty_references: lines without a word; they are scored like any other,
            and counted here.
        details: for BLEU the precisions, brevity penalty and lengths.
    """

    key: str
    name: str
    value: float
    signature: str
    statistics: Array = field(repr=False)
    formula: Formula = field(repr=False)
    sentence_formula: Formula = field(repr=False)
    higher_is_better: bool = True
    empty_hypotheses: int = 0
    empty_references: int = 0
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    def sentence_scores(self) -> Array:
        """(N) the score of each sentence by itself."""
        return self.sentence_formula(self.statistics)

    def on(self, rows: Array) -> float:
        """The corpus score of some of the sentences.

        Args:
            rows: line numbers from 0, or a boolean mask (N).
        """
        return float(self.formula(self.statistics[rows].sum(0)))

    def part(self, rows: Array) -> Metric:
        """The metric of some of the sentences alone (without details; see `on`)."""
        return replace(self, statistics=self.statistics[rows], value=self.on(rows), details={})

    def length_ratio(self) -> float | None:
        """BLEU only: words in the hypotheses / words in the (closest) references."""
        return self.details.get("ratio")

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def check_lines(
    hyps: Sequence[str], refs: Sequence[Sequence[str]], what: str = "the hypotheses"
) -> None:
    """Refuse what sacreBLEU would cut silently.

    Args:
        hyps: one line a sentence; refs: each a full reference stream.
    Raises: DataError with both counts where they differ, or where there is nothing to score.
    """
    if not refs:
        raise DataError(
            "no reference to score against", where=what, hint="give at least one reference"
        )
    for number, ref in enumerate(refs):
        if len(ref) != len(hyps):
            raise DataError(
                f"{what}: {len(hyps):,} lines, but reference {number} has {len(ref):,}",
                hint=(
                    "line i must translate line i; translate again, or give the files that belong"
                    " together"
                ),
            )
    if not hyps:
        raise DataError("nothing to score: no lines", where=what)


WESTERN = "13a"
Counter = Callable[[Sequence[Sequence[str]], str, bool, bool], Any]


@dataclass(frozen=True)
class Kind:
    """One metric: a line of METRICS.

    Attributes:
        header: its name as the head of a column; name: in full.
        counter: (references, sacreBLEU's tokenizer, lowercase, whether words end at spaces) -> the
            object that counts, of sacreBLEU's class Metric. A metric of tokens gets the name of
            what made them in place of the tokenizer.
        formula, sentence_formula: see `Metric`.
        of_tokens: it reads tokens, as the models work with them, not text for people.
        western: it makes sense only where sacreBLEU's tokenizer is 13a, for its own words end at
            spaces.
        higher_is_better: False for error rates.
    """

    header: str
    name: str
    counter: Counter
    formula: Formula
    sentence_formula: Formula
    of_tokens: bool = False
    western: bool = False
    higher_is_better: bool = True


def _bleu(refs: Sequence[Sequence[str]], tokenizer: str, lowercase: bool, _: bool) -> BLEU:
    return BLEU(tokenize=tokenizer, lowercase=lowercase, force=True, references=refs)


def _ter(refs: Sequence[Sequence[str]], _: str, lowercase: bool, spaced: bool) -> TER:
    """Words between spaces; without spaces sacreBLEU's splitting of Asian text, which it does
    only where it normalises.
    """
    return TER(
        case_sensitive=not lowercase,
        normalized=not spaced,
        asian_support=not spaced,
        references=refs,
    )


METRICS = {
    "bleu": Kind("BLEU", "BLEU", _bleu, formulas.bleu, formulas.sentence_bleu),
    "tokenized_bleu": Kind(
        "tok. BLEU",
        "tokenised BLEU (multi-bleu.perl)",
        lambda refs, tokenization, lowercase, _: MultiBleu(refs, lowercase, tokenization),
        formulas.multi_bleu,
        formulas.sentence_multi_bleu,
        of_tokens=True,
    ),
    "mteval": Kind(
        "NIST BLEU",
        "NIST BLEU (mteval-v13a.pl -c)",
        lambda refs, _, lowercase, __: Mteval(refs, lowercase),
        formulas.mteval_bleu,
        formulas.mteval_bleu,
        western=True,
    ),
    "mteval_uncased": Kind(
        "NIST uncased",
        "NIST BLEU, uncased (mteval-v13a.pl)",
        lambda refs, *_: Mteval(refs, lowercase=True),
        formulas.mteval_bleu,
        formulas.mteval_bleu,
        western=True,
    ),
    "chrf": Kind(
        "chrF",
        "chrF2",
        lambda refs, _, lowercase, __: CHRF(lowercase=lowercase, references=refs),
        formulas.chrf,
        formulas.chrf,
    ),
    "ter": Kind("TER", "TER", _ter, formulas.ter, formulas.ter, higher_is_better=False),
}
"""Every metric that `score` computes, by its key in scores.json, in the order of the tables;
another metric is one more entry.
"""


def _base(lang: str) -> str:
    """The language of a code with regions and scripts, in two letters where we know them."""
    base = lang.lower().replace("_", "-").partition("-")[0]
    return _CODES.get(base, base)


def _has_words(refs: Sequence[Sequence[str]]) -> bool:
    """Whether text in a language without spaces was cut into words."""
    words = [len(word) for ref in refs for line in ref for word in line.split()]
    return sum(words) <= _LONGEST_WORDS * len(words)


def tokenizer_for(lang: str) -> tuple[str, str | None]:
    """sacreBLEU's tokenizer for a target language.

    Args:
        lang: language code; regions and scripts ("zh-TW", "zh_Hans") are ignored.
    Returns: its name, and what to tell the person when it is not the default 13a (None when it is).
    """
    base = _base(lang)
    name = TOKENIZERS.get(base, WESTERN)
    if name == WESTERN:
        return name, None
    without = "; NIST BLEU, whose words end at spaces, is left out"
    if base in _UNSPACED:
        without += "; TER of single Asian characters (norm:yes, asian:yes)"
    try:
        BLEU(tokenize=name)
    except (RuntimeError, ImportError) as error:
        missing = (
            f"BLEU of '{lang}' by characters (tok:char): sacreBLEU's tokenizer {name} is not"
            f" installed: pip install 'sacrebleu[{base}]'"
        )
        return "char", missing + f" ({str(error).strip().splitlines()[0]})" + without
    return name, f"BLEU of '{lang}' with sacreBLEU's tokenizer {name}, not 13a" + without


class Scorer:
    """The metrics against one set of references, whose n-grams are counted once for all systems.

    Args:
        refs: each a full reference stream of raw (detokenised) text; all of them are used.
        lang: target language, which chooses BLEU's tokenizer, and TER of characters where words do
            not end at spaces.
        lowercase: compare without regard to case (the signature says so).
        tokenized_refs: the references as tokens, for BLEU as multi-bleu.perl computes it; None if
            there are none. Text in a language without spaces that was not cut into words is none.
        tokenization: what made the tokens, for the signature.
    Raises: DataError where the references differ in length or there are none.
    """

    def __init__(
        self,
        refs: Sequence[Sequence[str]],
        lang: str = "",
        lowercase: bool = False,
        tokenized_refs: Sequence[Sequence[str]] | None = None,
        tokenization: str = "none",
    ) -> None:
        self.refs, self.tokenized_refs, self.tokenization, self.lowercase = (
            refs,
            tokenized_refs,
            tokenization,
            lowercase,
        )
        self.tokenizer, self.remark = tokenizer_for(lang)
        self._spaced = _base(lang) not in _UNSPACED
        if tokenized_refs is not None and not self._spaced and not _has_words(tokenized_refs):
            self.tokenized_refs = None
            self.remark = (
                f"{self.remark}; tokenised BLEU is left out: the references are not cut into words"
            )
        check_lines(refs[0] if refs else [], refs, "reference 0")
        self._counters: dict[str, Any] = {}

    @property
    def keys(self) -> list[str]:
        """Those of METRICS that make sense here: of tokens only where there are some, mteval's
        only where words end at spaces.
        """
        return [
            key
            for key, kind in METRICS.items()
            if (self.tokenizer == WESTERN or not kind.western)
            and (self.tokenized_refs is not None or not kind.of_tokens)
        ]

    def score(self, key: str, hyps: Sequence[str]) -> Metric:
        """One metric of one system.

        Args:
            key: one of METRICS.
            hyps: detokenised text, one line a sentence; for a metric of tokens, tokens separated by
                spaces.
        Raises: DataError where line counts differ, or a metric of tokens has no tokenised
            references.
        """
        kind = METRICS[key]
        refs = (self.tokenized_refs or []) if kind.of_tokens else self.refs
        check_lines(hyps, refs)
        if key not in self._counters:
            tokenizer = self.tokenization if kind.of_tokens else self.tokenizer
            self._counters[key] = kind.counter(refs, tokenizer, self.lowercase, self._spaced)
        counter = self._counters[key]
        rows, found = counts.count(counter, hyps, refs)
        details: dict[str, Any] = {}
        if isinstance(counter, BLEU):
            details = {
                "precisions": found.precisions,
                "bp": found.bp,
                "ratio": found.ratio,
                "hyp_len": found.sys_len,
                "ref_len": found.ref_len,
            }
        return Metric(
            key=key,
            name=kind.name,
            value=float(found.score),
            signature=counter.get_signature().format(),
            statistics=np.array(rows, dtype=np.float64),
            formula=kind.formula,
            sentence_formula=kind.sentence_formula,
            higher_is_better=kind.higher_is_better,
            empty_hypotheses=sum(not h.strip() for h in hyps),
            empty_references=sum(not r.strip() for ref in refs for r in ref),
            details=details,
        )


def bleu(
    hyps: Sequence[str], refs: Sequence[Sequence[str]], lang: str = "", lowercase: bool = False
) -> Metric:
    """sacreBLEU of detokenised text.

    Args:
        hyps: one line a sentence; refs: each a full reference stream; lang: target language
            (chooses the tokenizer).
    Raises: DataError where line counts differ.
    """
    return Scorer(refs, lang, lowercase).score("bleu", hyps)


def tokenized_bleu(
    hyps: Sequence[str], refs: Sequence[Sequence[str]], lowercase: bool = False
) -> Metric:
    """BLEU of tokenised text, equal to multi-bleu.perl (its -lc with `lowercase`).

    Raises: DataError where line counts differ.
    """
    return Scorer(refs, lowercase=lowercase, tokenized_refs=refs).score("tokenized_bleu", hyps)


def mteval(hyps: Sequence[str], refs: Sequence[Sequence[str]], lowercase: bool = False) -> Metric:
    """BLEU as NIST's mteval-v13a.pl computes it: cased with its option -c, uncased (`lowercase`)
    without.

    Raises: DataError where line counts differ.
    """
    return Scorer(refs).score("mteval_uncased" if lowercase else "mteval", hyps)


def chrf(hyps: Sequence[str], refs: Sequence[Sequence[str]], lowercase: bool = False) -> Metric:
    """chrF2 of detokenised text. Raises: DataError where line counts differ."""
    return Scorer(refs, lowercase=lowercase).score("chrf", hyps)


def ter(hyps: Sequence[str], refs: Sequence[Sequence[str]], lowercase: bool = False) -> Metric:
    """Translation edit rate in percent, lower is better. Raises: DataError where line counts
    differ.
    """
    return Scorer(refs, lowercase=lowercase).score("ter", hyps)


def multi_bleu_line(metric: Metric) -> str:
    """A BLEU metric as multi-bleu.perl prints it."""
    d = metric.details
    precisions = "/".join(f"{p:.1f}" for p in d["precisions"])
    return (
        f"BLEU = {metric.value:.2f}, {precisions} (BP={d['bp']:.3f}, ratio={d['ratio']:.3f},"
        f" hyp_len={d['hyp_len']}, ref_len={d['ref_len']})"
    )


def looks_tokenized(hyps: Sequence[str]) -> bool:
    """Whether text that should be detokenised seems not to be (sacreBLEU's own sign: 100 lines
    that end in " .").
    """
    return sum(line.endswith(" .") for line in hyps) >= 100
