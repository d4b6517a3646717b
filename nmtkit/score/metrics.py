"""BLEU, chrF and TER by sacreBLEU, each value with its signature, and the per-sentence statistics that everything else reuses.

A corpus score is a function of sums of per-sentence counts. The counts are made once (by sacreBLEU), kept as an array, and then
resampled, grouped by length or read sentence by sentence with the vectorised formulas of `nmtkit.score.formulas`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmtkit.errors import DataError
from nmtkit.score import formulas
from nmtkit.score.formulas import Array, Formula

# sacreBLEU's tokenizer by target language; any other language gets its default, 13a (mteval-v13a.pl).
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
# Python's split() also splits at these; the byte-wise split of multi-bleu.perl does not. Each becomes a private character of its own.
_SPACES_OF_PYTHON_ALONE = (*range(0x1C, 0x20), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
_NOT_A_SPACE_IN_PERL = {c: 0xF0000 + c for c in _SPACES_OF_PYTHON_ALONE}


@dataclass(frozen=True)
class Metric:
    """A corpus score that cannot be parted from its signature.

    Attributes:
        key: bleu, tokenized_bleu, chrf or ter; name: as sacreBLEU writes it.
        value: the corpus score, exactly sacreBLEU's.
        signature: what makes two values comparable; only equal signatures may be compared.
        statistics: (N, F) the counts of each of N sentences; a corpus score is `formula(statistics.sum(0))`.
        formula: (…, F) summed counts -> (…) scores; sentence_formula: the same for single sentences (BLEU: effective order).
        higher_is_better: False for TER.
        empty_hypotheses, empty_references: lines without a word; they are scored like any other, and counted here.
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

    def length_ratio(self) -> float | None:
        """BLEU only: words in the hypotheses / words in the (closest) references."""
        return self.details.get("ratio")

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def check_lines(hyps: Sequence[str], refs: Sequence[Sequence[str]], what: str = "the hypotheses") -> None:
    """Refuse what sacreBLEU would cut silently.

    Args:
        hyps: one line a sentence; refs: each a full reference stream.
    Raises: DataError with both counts where they differ, or where there is nothing to score.
    """
    if not refs:
        raise DataError("no reference to score against", where=what, hint="give at least one reference")
    for number, ref in enumerate(refs):
        if len(ref) != len(hyps):
            raise DataError(
                f"{what}: {len(hyps):,} lines, but reference {number} has {len(ref):,}",
                hint="line i must translate line i; translate again, or give the files that belong together",
            )
    if not hyps:
        raise DataError("nothing to score: no lines", where=what)


def tokenizer_for(lang: str) -> tuple[str, str | None]:
    """sacreBLEU's tokenizer for a target language.

    Args:
        lang: language code; regions and scripts ("zh-TW", "zh_Hans") are ignored.
    Returns: its name, and what to tell the person when it is not the default 13a (None when it is).
    """
    base = lang.lower().replace("_", "-").partition("-")[0]
    name = TOKENIZERS.get({"cmn": "zh", "jp": "ja"}.get(base, base), "13a")
    if name == "13a":
        return name, None
    try:
        BLEU(tokenize=name)
    except (RuntimeError, ImportError) as error:
        missing = f"BLEU of '{lang}' by characters (tok:char): sacreBLEU's tokenizer {name} is not installed: pip install 'sacrebleu[{base}]'"
        return "char", missing + f" ({str(error).strip().splitlines()[0]})"
    return name, f"BLEU of '{lang}' with sacreBLEU's tokenizer {name}, not 13a"


class Scorer:
    """The four metrics against one set of references, whose n-grams are counted once for all systems.

    Args:
        refs: each a full reference stream of raw (detokenised) text; all of them are used.
        lang: target language, which chooses BLEU's tokenizer.
        lowercase: compare without regard to case (the signature says so).
        tokenized_refs: the references as tokens, for BLEU as multi-bleu.perl computes it; None if there are none.
        tokenizer: overrides the choice by language.
    Raises: DataError where the references differ in length or there are none.
    """

    def __init__(
        self,
        refs: Sequence[Sequence[str]],
        lang: str = "",
        lowercase: bool = False,
        tokenized_refs: Sequence[Sequence[str]] | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self.refs, self.tokenized_refs, self.lowercase = refs, tokenized_refs, lowercase
        self.tokenizer, self.remark = (tokenizer, None) if tokenizer else tokenizer_for(lang)
        check_lines(refs[0] if refs else [], refs, "reference 0")
        self._cache: dict[str, Any] = {}

    def bleu(self, hyps: Sequence[str]) -> Metric:
        """BLEU of detokenised text: mteval-v13a's tokenization (or the language's own), exponential smoothing."""
        build = partial(BLEU, tokenize=self.tokenizer, lowercase=self.lowercase, force=True)
        return self._score("bleu", build, hyps, self.refs, formulas.bleu, formulas.sentence_bleu)

    def tokenized_bleu(self, hyps: Sequence[str]) -> Metric:
        """BLEU of tokens as they are: equal to multi-bleu.perl.

        Args:
            hyps: tokens separated by spaces.
        Raises: DataError if the scorer has no tokenised references.
        """
        build = partial(BLEU, tokenize="none", smooth_method="none", lowercase=self.lowercase, force=True)
        sentence = partial(formulas.bleu, smooth="none", effective_order=True)
        refs = [_perl(ref) for ref in self.tokenized_refs or []]
        return self._score("tokenized_bleu", build, _perl(hyps), refs, partial(formulas.bleu, smooth="none"), sentence)

    def chrf(self, hyps: Sequence[str]) -> Metric:
        """chrF2 of detokenised text (character 6-grams, beta 2)."""
        return self._score("chrf", partial(CHRF, lowercase=self.lowercase), hyps, self.refs, formulas.chrf, formulas.chrf)

    def ter(self, hyps: Sequence[str]) -> Metric:
        """Translation edit rate in percent (lower is better), by tercom's rules; case counts unless `lowercase`."""
        return self._score("ter", partial(TER, case_sensitive=not self.lowercase), hyps, self.refs, formulas.ter, formulas.ter)

    def _score(self, key: str, build: Any, hyps: Sequence[str], refs: Sequence[Sequence[str]], formula: Formula, sentence_formula: Formula) -> Metric:
        check_lines(hyps, refs)
        metric = self._cache.get(key) or self._cache.setdefault(key, build(references=refs))
        rows = metric._extract_corpus_statistics(hyps, None)
        found = metric._compute_score_from_stats([sum(column) for column in zip(*rows, strict=True)])
        details: dict[str, Any] = {}
        if isinstance(metric, BLEU):
            details = {"precisions": found.precisions, "bp": found.bp, "ratio": found.ratio, "hyp_len": found.sys_len, "ref_len": found.ref_len}
        return Metric(
            key=key,
            name="BLEU" if key == "bleu" else "tokenised BLEU" if key == "tokenized_bleu" else found.name,
            value=float(found.score),
            signature=metric.get_signature().format(),
            statistics=np.array(rows, dtype=np.float64),
            formula=formula,
            sentence_formula=sentence_formula,
            higher_is_better=key != "ter",
            empty_hypotheses=sum(not h.strip() for h in hyps),
            empty_references=sum(not r.strip() for ref in refs for r in ref),
            details=details,
        )


def _perl(lines: Sequence[str]) -> list[str]:
    return [line.translate(_NOT_A_SPACE_IN_PERL) if not line.isascii() or not line.isprintable() else line for line in lines]


def bleu(hyps: Sequence[str], refs: Sequence[Sequence[str]], lang: str = "", lowercase: bool = False) -> Metric:
    """sacreBLEU of detokenised text.

    Args:
        hyps: one line a sentence; refs: each a full reference stream; lang: target language (chooses the tokenizer).
    Raises: DataError where line counts differ.
    """
    return Scorer(refs, lang, lowercase).bleu(hyps)


def tokenized_bleu(hyps: Sequence[str], refs: Sequence[Sequence[str]], lowercase: bool = False) -> Metric:
    """BLEU of tokenised text, equal to multi-bleu.perl (its -lc with `lowercase`).

    Raises: DataError where line counts differ.
    """
    return Scorer(refs, lowercase=lowercase, tokenized_refs=refs).tokenized_bleu(hyps)


def chrf(hyps: Sequence[str], refs: Sequence[Sequence[str]], lowercase: bool = False) -> Metric:
    """chrF2 of detokenised text. Raises: DataError where line counts differ."""
    return Scorer(refs, lowercase=lowercase).chrf(hyps)


def ter(hyps: Sequence[str], refs: Sequence[Sequence[str]], lowercase: bool = False) -> Metric:
    """Translation edit rate in percent, lower is better. Raises: DataError where line counts differ."""
    return Scorer(refs, lowercase=lowercase).ter(hyps)


def multi_bleu_line(metric: Metric) -> str:
    """A BLEU metric as multi-bleu.perl prints it."""
    d = metric.details
    precisions = "/".join(f"{p:.1f}" for p in d["precisions"])
    return f"BLEU = {metric.value:.2f}, {precisions} (BP={d['bp']:.3f}, ratio={d['ratio']:.3f}, hyp_len={d['hyp_len']}, ref_len={d['ref_len']})"


def looks_tokenized(hyps: Sequence[str]) -> bool:
    """Whether text that should be detokenised seems not to be (sacreBLEU's own sign: 100 lines that end in " .")."""
    return sum(line.endswith(" .") for line in hyps) >= 100
