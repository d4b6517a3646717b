"""A small recurrent model that attends to its source, and a model that is a table: for tests of
search, apart from nmtkit's own models.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmtkit.data.batches import Batch, source_batch
from nmtkit.data.documents import ContextRule
from nmtkit.models.base import Memory, Model, ModelSettings, State, Vocabularies
from nmtkit.text.vocabulary import BOS, EOS


class Recurrent(Model):
    """Embeddings, a GRU cell, dot-product attention over source embeddings."""

    def __init__(self, settings: ModelSettings, vocabularies: Vocabularies) -> None:
        super().__init__(settings, vocabularies)
        self.source = nn.Embedding(vocabularies.src, 8)
        self.target = nn.Embedding(vocabularies.tgt, 8)
        self.cell = nn.GRUCell(16, 8)
        self.out = nn.Linear(8, vocabularies.tgt)

    @property
    def width(self) -> int:
        return 8

    def encode(self, batch: Batch) -> Memory:
        inside = torch.arange(batch.src.shape[1]) < batch.src_lengths[:, None]
        return {"keys": self.source(batch.src), "inside": {"mask": inside}}

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        rows, steps = tgt_in.shape
        keys, mask = memory["keys"], memory["inside"]["mask"]
        beams = rows // keys.shape[0]
        hidden = state["h"] if state else keys.new_zeros(rows, 8)
        outputs = []
        for t in range(steps):
            scores = torch.einsum("bkd,bsd->bks", hidden.view(-1, beams, 8), keys).masked_fill(
                ~mask[:, None], float("-inf")
            )
            context = torch.einsum("bks,bsd->bkd", scores.softmax(-1), keys).reshape(rows, 8)
            hidden = self.cell(torch.cat([self.target(tgt_in[:, t]), context], 1), hidden)
            outputs.append(hidden)
        return torch.stack(outputs, 1), (
            None if state is None else {"h": hidden, "steps": state.get("steps", 0) + steps}
        )

    def logits(self, hidden: Tensor) -> Tensor:
        return self.out(hidden)


class Table(Model):
    """The same logits at every position of every sentence."""

    def __init__(self, row: list[float]) -> None:
        super().__init__(ModelSettings(), Vocabularies(src=len(row), tgt=len(row), shared=True))
        self.row = nn.Parameter(torch.tensor(row, dtype=torch.float64))

    @property
    def width(self) -> int:
        return 1

    def encode(self, batch: Batch) -> Memory:
        return {}

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        return torch.zeros(*tgt_in.shape, 1, dtype=torch.float64), state

    def logits(self, hidden: Tensor) -> Tensor:
        return self.row.expand(*hidden.shape[:-1], -1).clone()


class ByPosition(Table):
    """Logits that depend on the position alone; counts the positions it was asked for."""

    def __init__(self, rows: list[list[float]]) -> None:
        super().__init__(rows[0])
        self.rows = torch.tensor(rows, dtype=torch.float64)
        self.steps = 0

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        start = state.get("start", 0) if state else 0
        self.steps += 1
        end = start + tgt_in.shape[1]
        positions = torch.arange(start, end, dtype=torch.float64)[None, :, None]
        return positions.expand(*tgt_in.shape, 1), None if state is None else {"start": end}

    def logits(self, hidden: Tensor) -> Tensor:
        return self.rows[hidden[..., 0].long()]


class Gossip(Model):
    """Says the words of its context, those of one sentence after the other, whatever its source
    is.
    """

    def __init__(self, vocabulary: int, rule: ContextRule) -> None:
        super().__init__(ModelSettings(), Vocabularies(src=vocabulary, tgt=vocabulary, shared=True))
        self.rule = rule
        self.none = nn.Parameter(torch.zeros(1))

    @property
    def width(self) -> int:
        return 1

    @property
    def context_rule(self) -> ContextRule | None:
        return self.rule

    def words(self, batch: Batch, row: int) -> list[int]:
        """What it says to a sentence, without </s>."""
        return [] if batch.context is None else of_context(batch, row, batch.context.ids)

    def encode(self, batch: Batch) -> Memory:
        said = torch.full((len(batch.src), 100), EOS)
        for row in range(len(said)):
            words = self.words(batch, row)
            said[row, : len(words)] = torch.tensor(words, dtype=torch.long)
        return {"said": said}

    def decode(
        self, tgt_in: Tensor, memory: Memory, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        start = state.get("start", 0) if state else 0
        end = start + tgt_in.shape[1]
        said = memory["said"].repeat_interleave(len(tgt_in) // len(memory["said"]), 0)
        return said[:, start:end, None].double(), None if state is None else {"start": end}

    def logits(self, hidden: Tensor) -> Tensor:
        return 10 * nn.functional.one_hot(hidden[..., 0].long(), self.vocabularies.tgt).double()


def of_context(batch: Batch, row: int, ids: Tensor) -> list[int]:
    """The words among ids of the context sentences of a row."""
    sentences = [i for i in batch.context.rows[row].tolist() if i >= 0]
    return [word for i in sentences for word in ids[i].tolist() if word > EOS]


class Heir(Gossip):
    """Says the first word of its source, and then the target sides of its context."""

    def words(self, batch: Batch, row: int) -> list[int]:
        first = int(batch.src[row, 0])
        return [
            first,
            *([] if batch.context is None else of_context(batch, row, batch.context.tgt_in)),
        ]


def recurrent(
    seed: int, vocabulary: int, sharpness: float = 3.0, eos_bias: float = 0.0
) -> Recurrent:
    """A random recurrent model in float64, peaked enough that hypotheses differ."""
    torch.manual_seed(seed)
    model = (
        Recurrent(ModelSettings(), Vocabularies(src=vocabulary, tgt=vocabulary, shared=True))
        .double()
        .eval()
    )
    with torch.no_grad():
        model.out.weight.mul_(sharpness)
        model.target.weight.mul_(2)
        model.out.bias[EOS] += eos_bias
    return model


def sources(seed: int, vocabulary: int, lengths: list[int]) -> list[list[int]]:
    """Random source ids of the given lengths, </s> included."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [*torch.randint(3, vocabulary, (n - 1,), generator=generator).tolist(), EOS]
        for n in lengths
    ]


def batch_of(ids: list[list[int]]) -> Batch:
    return source_batch(ids)


def log_probs(models: list[Model], source: list[int], prefix: list[int]) -> list[float]:
    """log P(next token | prefix) by decoding the whole prefix of one sentence: no state, no
    batch.
    """
    probabilities = torch.zeros(())
    for model in models:
        hidden, _ = model.decode(torch.tensor([[BOS, *prefix]]), model.encode(batch_of([source])))
        probabilities = probabilities + model.logits(hidden)[0, -1].softmax(-1)
    return (probabilities / len(models)).log().tolist()
