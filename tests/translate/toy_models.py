"""A small recurrent model, a model that is a table, and models that repeat their context: for tests
of search, apart from nmtkit's own models.
"""

import torch
from torch import nn

from nmtkit.data.batches import source_batch
from nmtkit.models.base import Model, ModelSettings, Vocabularies
from nmtkit.text.vocabulary import BOS, EOS
from tests.toy_recurrent import ToyRecurrent


class Table(Model):
    """Logits that depend on the position alone; the last row repeats. Counts the calls of decode."""

    def __init__(self, *rows: list[float]):
        size = len(rows[0])
        super().__init__(ModelSettings(), Vocabularies(src=size, tgt=size, shared=True))
        self.rows = torch.tensor(rows, dtype=torch.float64)
        self.steps = 0

    @property
    def width(self):
        return 1

    def encode(self, batch):
        return {}

    def decode(self, tgt_in, memory, state=None):
        start = state.get("start", 0) if state else 0
        self.steps += 1
        end = start + tgt_in.shape[1]
        positions = torch.arange(start, end, dtype=torch.float64)[None, :, None]
        return positions.expand(*tgt_in.shape, 1), None if state is None else {"start": end}

    def logits(self, hidden):
        return self.rows[hidden[..., 0].long().clamp(max=len(self.rows) - 1)]


class Gossip(Model):
    """Says the words of its context, those of one sentence after the other, whatever its source
    is.
    """

    def __init__(self, vocabulary, rule):
        super().__init__(ModelSettings(), Vocabularies(src=vocabulary, tgt=vocabulary, shared=True))
        self.rule = rule
        self.none = nn.Parameter(torch.zeros(1))

    @property
    def width(self):
        return 1

    @property
    def context_rule(self):
        return self.rule

    def words(self, batch, row):
        """What it says to a sentence, without </s>."""
        return [] if batch.context is None else of_context(batch, row, batch.context.ids)

    def encode(self, batch):
        said = torch.full((len(batch.src), 100), EOS)
        for row in range(len(said)):
            words = self.words(batch, row)
            said[row, : len(words)] = torch.tensor(words, dtype=torch.long)
        return {"said": said}

    def decode(self, tgt_in, memory, state=None):
        start = state.get("start", 0) if state else 0
        end = start + tgt_in.shape[1]
        said = memory["said"].repeat_interleave(len(tgt_in) // len(memory["said"]), 0)
        return said[:, start:end, None].double(), None if state is None else {"start": end}

    def logits(self, hidden):
        return 10 * nn.functional.one_hot(hidden[..., 0].long(), self.vocabularies.tgt).double()


def of_context(batch, row, ids):
    """The words among ids of the context sentences of a row."""
    sentences = [i for i in batch.context.rows[row].tolist() if i >= 0]
    return [word for i in sentences for word in ids[i].tolist() if word > EOS]


class Heir(Gossip):
    """Says the first word of its source, and then the target sides of its context."""

    def words(self, batch, row):
        first = int(batch.src[row, 0])
        return [
            first,
            *([] if batch.context is None else of_context(batch, row, batch.context.tgt_in)),
        ]


def recurrent(seed, vocabulary, sharpness=3.0, eos_bias=0.0):
    """A random recurrent model in float64, peaked enough that hypotheses differ."""
    torch.manual_seed(seed)
    vocabularies = Vocabularies(src=vocabulary, tgt=vocabulary, shared=True)
    model = ToyRecurrent(ToyRecurrent.Settings(d_model=8), vocabularies).double().eval()
    with torch.no_grad():
        model.output.weight.mul_(3 * sharpness)
        model.src_embedding.weight.mul_(10)
        model.tgt_embedding.weight.mul_(2)
        model.output.bias[EOS] += eos_bias
    return model


def sources(seed, vocabulary, lengths):
    """Random source ids of the given lengths, </s> included."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [*torch.randint(3, vocabulary, (n - 1,), generator=generator).tolist(), EOS]
        for n in lengths
    ]


def batch_of(ids):
    return source_batch(ids)


def log_probs(models, source, prefix):
    """log P(next token | prefix) by decoding the whole prefix of one sentence, without a
    state.
    """
    return of_prefixes(models, source, [prefix])[0]


def of_prefixes(models, source, prefixes):
    """`log_probs` of prefixes of one length, decoded together."""
    tgt_in, probabilities = torch.tensor([[BOS, *prefix] for prefix in prefixes]), torch.zeros(())
    for model in models:
        hidden, _ = model.decode(tgt_in, model.encode(batch_of([source])))
        probabilities = probabilities + model.logits(hidden)[:, -1].softmax(-1)
    return (probabilities / len(models)).log().tolist()
