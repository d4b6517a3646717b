"""Translators of lines of letters, with toy models."""

import random

from toy_models import ContextCopier, TargetContextCopier, recurrent

from nmtkit.data.documents import ContextRule
from nmtkit.settings import SearchSettings
from nmtkit.text.bpe import Bpe
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.translate.scorer import Scorer
from tests.word_side import WordSide

LETTERS = "abcdefghij"
VOCABULARY = Vocabulary([*SPECIALS, *LETTERS, ".", ","])


class BpeWords(WordSide):
    """Text whose subwords are those of BPE."""

    splitter = Bpe.__new__(Bpe)  # its codes are not read

    def decode(self, subwords):
        return " ".join(self.splitter.join(subwords))


def translator(model=None, jobs=1, **settings):
    """A translator of lines, by default with a random recurrent model."""
    model = model or recurrent(9, len(VOCABULARY), sharpness=5)
    values = {"beam": 3, "max_length_b": 4, "batch_size": 4, **settings}
    settings = SearchSettings.model_validate(values)
    return Scorer([model], WordSide(), WordSide(), VOCABULARY, VOCABULARY, settings, jobs=jobs)


def context_copier(rule, **options):
    """A translator of every line into its source context."""
    model = ContextCopier(len(VOCABULARY), rule)
    return translator(model, max_length_a=0, max_length_b=30, **options)


def target_copier(size=1, join="parallel", **options):
    """A translator of every line into its first word and the translations of its context."""
    rule = ContextRule("previous", size, join, targets=True)
    model = TargetContextCopier(len(VOCABULARY), rule)
    return translator(model, max_length_a=0, max_length_b=30, **options)


def texts(translations):
    return [translation.text for translation in translations]


def random_lines(count, seed=0):
    """Lines of 0 to 8 random letters."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(LETTERS, k=draw.randrange(9))) for _ in range(count)]
