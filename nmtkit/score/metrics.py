"""The metrics: each score with its signature and the counts of every sentence.

A corpus score is a function of the sums of sentence counts. sacreBLEU counts once. The counts are
kept as an array, which is then resampled, grouped by length or read sentence by sentence with the
vectorised formulas of `nmtkit.score.formulas`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR

from nmtkit.arrays import Array
from nmtkit.errors import DataError, EnvironmentProblem, counted
from nmtkit.score import counts, formulas
from nmtkit.score.formulas import Formula
from nmtkit.score.scripts import Mteval, References, multi_bleu
from nmtkit.text.chinese import CODES
from nmtkit.text.scripts import language_subtag
from nmtkit.text.side import TextSide
from nmtkit.text.tokenizer import UNSPACED_LANGUAGES, usual_tokenizer

WESTERN = "13a"
"""sacreBLEU's default tokenizer, that of mteval-v13a.pl."""
TOKENIZERS = {
    **dict.fromkeys(UNSPACED_LANGUAGES, "char"),
    **dict.fromkeys(("ja", "jpn", "jp"), "ja-mecab"),
    **dict.fromkeys(CODES, "zh"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}
"""sacreBLEU's tokenizers of languages that have their own, or no spaces between words."""
TER_WORDS = 500
"""TER is left out if a line has more words. Its search for shifts takes about a second for a
shuffled line of 500 words and minutes for one of 2,000. For a line that begins with its last 40
words it takes a minute and an hour."""


@dataclass(frozen=True, eq=False)
class Metric:
    """A corpus score with its signature. Metrics compare by identity.

    Attributes:
        key: one of METRICS; name: its name there.
        value: the corpus score, exactly that of sacreBLEU or of the script that METRICS names.
        signature: what makes two values comparable; only equal signatures may be compared.
        statistics: (N, F) the counts of each of N sentences; a corpus score is
            `formula(statistics.sum(0))`.
        formula: (…, F) summed counts -> (…) scores.
        sentence_formula: the same for single sentences, if it is another (BLEU: effective order).
        higher_is_better: False for TER.
        empty_hypotheses: number of lines without a word; they are scored like any other line.
        details: for BLEU the precisions, brevity penalty and lengths.
    """

    key: str
    name: str
    value: float
    signature: str
    statistics: Array = field(repr=False)
    formula: Formula = field(repr=False)
    sentence_formula: Formula | None = field(default=None, repr=False)
    higher_is_better: bool = True
    empty_hypotheses: int = 0
    details: dict[str, Any] = field(default_factory=dict, repr=False)

    def sentence_scores(self) -> Array:
        """Return (N) the score of each sentence by itself."""
        return (self.sentence_formula or self.formula)(self.statistics)

    def part(self, rows: Array) -> Metric:
        """Return the metric of some of the sentences (without details).

        Args:
            rows: line numbers from 0, or a boolean mask (N).
        """
        statistics = self.statistics[rows]
        value = float(self.formula(statistics.sum(0)))
        return replace(self, statistics=statistics, value=value, details={})


@dataclass(frozen=True)
class Kind:
    """One metric: a line of METRICS.

    Attributes:
        header: its name as the head of a column; name: in full.
        counter: makes the object that counts n-grams, of sacreBLEU's class Metric.
        formula, sentence_formula: see `Metric`.
        of_tokens: True if it reads tokens, False if it reads detokenised text.
        western: True if its words end at spaces, so that it needs sacreBLEU's tokenizer 13a.
        higher_is_better: False for error rates.
        on_request: True if only `--metrics` makes it a column.
    """

    header: str
    name: str
    counter: Callable[[Scorer], Any]
    formula: Formula
    sentence_formula: Formula | None = None
    of_tokens: bool = False
    western: bool = False
    higher_is_better: bool = True
    on_request: bool = False


def has_words(refs: References) -> bool:
    """True if text in a language without spaces was cut into words.

    Chinese and Japanese words have fewer than 2 characters on average. The text between two spaces
    has far more.
    """
    words = [len(word) for ref in refs for line in ref for word in line.split()]
    return sum(words) <= 4 * len(words)


def own_tokenizer(lang: str) -> str:
    """Return the tokenizer of a language, by its code with any region or script."""
    return TOKENIZERS.get(language_subtag(lang), WESTERN)


def tokenizer_for(lang: str, tokenized: bool = False) -> tuple[str, str | None]:
    """Return sacreBLEU's tokenizer for a target language, and a remark if it is not the default.

    Args:
        lang: as of `own_tokenizer` ("zh-TW", "zh_Hans").
        tokenized: the text is tokenized already, so its words end at spaces.
    """
    if tokenized:
        return "none", (
            "BLEU of the tokens as they are (tok:none): compare it only with BLEU of the same"
            " tokenization"
        )
    name = own_tokenizer(lang)
    if name == WESTERN:
        return name, None
    try:
        BLEU(tokenize=name)
    except (RuntimeError, ImportError) as error:
        missing = (
            f"BLEU of '{lang}' by characters (tok:char): sacreBLEU's tokenizer {name} is not"
            f" installed: pip install 'sacrebleu[{name[:2]}]'"
        )
        return "char", missing + f" ({str(error).strip().splitlines()[0]})"
    return name, f"BLEU of '{lang}' with sacreBLEU's tokenizer {name}, not 13a"


class Scorer:
    """The metrics against one set of references, whose n-grams are counted once for all systems.

    Args:
        refs: reference streams of raw (detokenised) text; all of them are used.
        lang: target language, which chooses BLEU's tokenizer, and TER of characters for languages
            without spaces.
        lowercase: True to ignore case (named in the signature).
        side: tokenizes the references for tokenised BLEU. There is no tokenised BLEU if `side` is
            None, or does not cut text in a language without spaces into words.
        tokenized: True if references and hypotheses are tokenized already.
    """

    def __init__(
        self,
        refs: References,
        lang: str = "",
        lowercase: bool = False,
        side: TextSide | None = None,
        tokenized: bool = False,
    ) -> None:
        self.refs = refs
        self.lang = lang
        self.lowercase = lowercase
        self.side = side
        self.tokenizer, remark = tokenizer_for(lang, tokenized)
        self.remarks = [remark] if remark else []
        self.spaced = tokenized or usual_tokenizer(lang) == "moses"
        tokens = [[side.cased(line) for line in ref] for ref in refs] if side else []
        self.tokenized_refs = tokens if self.spaced or has_words(tokens) else []
        self._counters: dict[str, Any] = {}

    def columns(self, outputs: Sequence[Sequence[str]] = ()) -> list[str]:
        """Return the keys of METRICS that are columns by default. A metric that makes no sense
        here, or is too slow for these outputs, is left out with a remark.
        """
        keys = []
        left_out: dict[str, list[str]] = {}
        for key, kind in METRICS.items():
            if kind.on_request or (kind.of_tokens and self.side is None):
                continue
            if reason := self.lacks(key, outputs):
                left_out.setdefault(reason, []).append(kind.header)
            else:
                keys.append(key)
        self.remarks += [f"left out: {', '.join(of)} ({reason})" for reason, of in left_out.items()]
        return keys

    def lacks(self, key: str, outputs: Sequence[Sequence[str]] = ()) -> str | None:
        """Return why a metric makes no sense here, or takes too long for the outputs; else None."""
        kind = METRICS[key]
        if kind.of_tokens and not self.tokenized_refs:
            return "the text is not tokenized" if self.side else "it needs --lang"
        if kind.western and self.tokenizer != WESTERN:
            return f"it needs sacreBLEU's tokenizer {WESTERN}, and this text has {self.tokenizer}"
        if key == "ter":
            unspaced = not self.spaced and own_tokenizer(self.lang) == "char"
            if unspaced and not has_words(self.refs):
                return (
                    f"sacreBLEU's TER cuts text at spaces, and '{self.lang}' has none between words"
                )
            lines = itertools.chain(*self.refs, *outputs)
            longest = max(len(line.split() if self.spaced else line) for line in lines)
            if longest > TER_WORDS:
                unit = "words" if self.spaced else "characters"
                return f"a line has {longest:,} {unit}, more than {TER_WORDS:,}"
        return None

    def score(self, key: str, hyps: Sequence[str]) -> Metric:
        """Return one metric of one system.

        Args:
            key: one of METRICS that makes sense here (see `lacks`).
            hyps: one line per sentence: detokenised text, or for a metric of tokens the tokens
                separated by spaces.
        Raises: DataError if line counts differ.
        """
        kind = METRICS[key]
        refs = self.tokenized_refs if kind.of_tokens else self.refs
        for number, ref in enumerate(refs):
            if len(ref) != len(hyps):  # sacreBLEU would ignore the surplus lines
                raise DataError(
                    f"the hypotheses: {counted(len(hyps), 'line')}, but reference {number} has"
                    f" {len(ref):,}",
                    hint="line i must translate line i; translate again, or give the files that"
                    " belong together",
                )
        if key not in self._counters:
            self._counters[key] = kind.counter(self)
        counter = self._counters[key]
        rows, total = counts.count(counter, hyps, refs)
        return Metric(
            key,
            kind.name,
            float(total.score),
            counter.get_signature().format(),
            np.array(rows, dtype=np.float64),
            kind.formula,
            kind.sentence_formula,
            kind.higher_is_better,
            sum(not line.strip() for line in hyps),
            {
                "precisions": total.precisions,
                "bp": total.bp,
                "ratio": total.ratio,
                "hyp_len": total.sys_len,
                "ref_len": total.ref_len,
            }
            if isinstance(counter, BLEU)
            else {},
        )


def _spbleu(scorer: Scorer) -> BLEU:
    """Return BLEU of the subwords of FLORES-200.

    Raises: EnvironmentProblem if sacreBLEU has no SentencePiece, or cannot download the model.
    """
    try:
        return BLEU(
            tokenize="flores200", lowercase=scorer.lowercase, force=True, references=scorer.refs
        )
    except ImportError as error:
        raise EnvironmentProblem(
            "spBLEU needs the package sentencepiece",
            where="--metrics spbleu",
            hint="pip install sentencepiece",
        ) from error
    except (OSError, RuntimeError, SystemExit) as error:  # SystemExit: a download without TLS
        url = SPM_MODELS["flores200"]["url"]
        raise EnvironmentProblem(
            f"spBLEU: sacreBLEU cannot load its tokenizer flores200 ({error})",
            where=Path(SACREBLEU_DIR, "models", Path(url).name),
            hint=f"sacreBLEU downloads {url} to this file once; without a network copy it there",
        ) from error


METRICS: dict[str, Kind] = {
    "bleu": Kind(
        "BLEU",
        "BLEU",
        lambda scorer: BLEU(
            tokenize=scorer.tokenizer,
            lowercase=scorer.lowercase,
            force=True,
            references=scorer.refs,
        ),
        formulas.bleu,
        formulas.sentence_bleu,
    ),
    "tokenized_bleu": Kind(
        "tok. BLEU",
        "tokenised BLEU (multi-bleu.perl)",
        lambda scorer: multi_bleu(
            scorer.tokenized_refs,
            scorer.lowercase,
            scorer.side.tokenization if scorer.side else "none",
        ),
        formulas.multi_bleu,
        formulas.sentence_multi_bleu,
        of_tokens=True,
    ),
    "mteval": Kind(
        "NIST BLEU",
        "NIST BLEU (mteval-v13a.pl -c)",
        lambda scorer: Mteval(scorer.refs, scorer.lowercase),
        formulas.mteval_bleu,
        western=True,
    ),
    "mteval_uncased": Kind(
        "NIST uncased",
        "NIST BLEU, uncased (mteval-v13a.pl)",
        lambda scorer: Mteval(scorer.refs, lowercase=True),
        formulas.mteval_bleu,
        western=True,
    ),
    "chrf": Kind(
        "chrF",
        "chrF2",
        lambda scorer: CHRF(lowercase=scorer.lowercase, references=scorer.refs),
        formulas.chrf,
    ),
    "ter": Kind(
        "TER",
        "TER",
        # In text without spaces sacreBLEU splits Asian characters, if it normalises the text.
        lambda scorer: TER(
            case_sensitive=not scorer.lowercase,
            normalized=not scorer.spaced,
            asian_support=not scorer.spaced,
            references=scorer.refs,
        ),
        formulas.ter,
        higher_is_better=False,
    ),
    "chrf++": Kind(
        "chrF++",
        "chrF2++",
        lambda scorer: CHRF(word_order=2, lowercase=scorer.lowercase, references=scorer.refs),
        formulas.chrf,
        on_request=True,
    ),
    "spbleu": Kind(
        "spBLEU",
        "spBLEU (FLORES-200)",
        _spbleu,
        formulas.bleu,
        formulas.sentence_bleu,
        on_request=True,
    ),
}
"""Every metric that `score` computes, by its key in scores.json, in the order of the tables. A new
metric is a new entry.
"""


def header(key: str) -> str:
    """Return the head of a metric's column; an external metric's key is its name."""
    return METRICS[key].header if key in METRICS else key


def decimals(key: str, values: Iterable[float | None]) -> int:
    """Return the decimals that a metric's values are shown with: 2, but 4 for an external metric
    with small numbers, such as those from 0 to 1.
    """
    small = all(abs(value) < 2 for value in values if value is not None)
    return 4 if small and key not in METRICS else 2


def bleu(
    hyps: Sequence[str],
    refs: References,
    lang: str = "",
    lowercase: bool = False,
    tokenized: bool = False,
) -> Metric:
    """Return sacreBLEU's BLEU of detokenised text, or of tokenized text as it is.

    Args:
        hyps: one line per sentence; refs: reference streams; lang: target language
            (chooses the tokenizer).
    Raises: DataError if line counts differ.
    """
    return Scorer(refs, lang, lowercase, tokenized=tokenized).score("bleu", hyps)


def mean_metric(name: str, statistics: Array, signature: str, higher_is_better: bool) -> Metric:
    """Return the metric whose corpus score is a mean.

    Args:
        statistics: (N, 2) the sum and the count of each sentence.
    """
    mean = formulas.mean
    value = float(mean(statistics.sum(0)))
    return Metric(name, name, value, signature, statistics, mean, None, higher_is_better)


def looks_tokenized(hyps: Sequence[str]) -> bool:
    """True if text that should be detokenised seems tokenized. The sign is sacreBLEU's: 100 lines
    end in " .".
    """
    return sum(line.endswith(" .") for line in hyps) >= 100
