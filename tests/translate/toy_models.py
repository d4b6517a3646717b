"""Small models for tests of search: a random recurrent model, a table of logits, and models that
copy their context.
"""

import torch
from torch import nn

from nmtkit.data.batches import source_batch
from nmtkit.models.base import Model, ModelSettings, Vocabularies
from nmtkit.text.vocabulary import BOS, EOS
from tests.toy_recurrent import ToyRecurrent


class Table(Model):
    """Logits that depend on the position only; the last row repeats. `steps` counts calls of
    `decode`.
    """

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


class ContextCopier(Model):
    """Translates every sentence into the source words of its context sentences, in order."""

    def __init__(self, vocabulary, rule):
        super().__init__(ModelSettings(), Vocabularies(src=vocabulary, tgt=vocabulary, shared=True))
        self.rule = rule
        self.unused = nn.Parameter(torch.zeros(1))

    @property
    def width(self):
        return 1

    @property
    def context_rule(self):
        return self.rule

    def translation(self, batch, row):
        """The token ids of a sentence's translation, without </s>."""
        return [] if batch.context is None else context_words(batch, row, batch.context.ids)

    def encode(self, batch):
        output = torch.full((len(batch.src), 100), EOS)
        for row in range(len(output)):
            words = self.translation(batch, row)
            output[row, : len(words)] = torch.tensor(words, dtype=torch.long)
        return {"output": output}

    def decode(self, tgt_in, memory, state=None):
        start = state.get("start", 0) if state else 0
        end = start + tgt_in.shape[1]
        output = memory["output"].repeat_interleave(len(tgt_in) // len(memory["output"]), 0)
        return output[:, start:end, None].double(), None if state is None else {"start": end}

    def logits(self, hidden):
        return 10 * nn.functional.one_hot(hidden[..., 0].long(), self.vocabularies.tgt).double()


class TargetContextCopier(ContextCopier):
    """Translates every sentence into its first source word and the target words of its context."""

    def translation(self, batch, row):
        words = [int(batch.src[row, 0])]
        return (
            words
            if batch.context is None
            else words + context_words(batch, row, batch.context.tgt_in)
        )


def context_words(batch, row, ids):
    """The words of the context sentences of a row; `ids` has the sentences."""
    sentences = [i for i in batch.context.rows[row].tolist() if i >= 0]
    return [word for i in sentences for word in ids[i].tolist() if word > EOS]


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
    """Random source ids of these lengths, </s> included."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [*torch.randint(3, vocabulary, (n - 1,), generator=generator).tolist(), EOS]
        for n in lengths
    ]


def encoded(models, source):
    """Each model with its memory of a source."""
    batch = source_batch([source])
    return [(model, model.encode(batch)) for model in models]


def next_log_probs(memories, prefixes):
    """log P(token | prefix) of every token (rows: prefixes of one length), decoded without a
    state. With several models, P is the mean of their probabilities.

    Args:
        memories: from `encoded`.
    """
    tgt_in, probabilities = torch.tensor([[BOS, *prefix] for prefix in prefixes]), torch.zeros(())
    for model, memory in memories:
        hidden, _ = model.decode(tgt_in, memory)
        probabilities = probabilities + model.logits(hidden)[:, -1].softmax(-1)
    return (probabilities / len(memories)).log().tolist()
