"""Small models of every variant, and batches with everything that a model reads.

`Case.build` adapts one preset-like dict of sizes with the model's own `adapt`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit import settings
from nmtkit.data.batches import Batch, collate_packed, on_device
from nmtkit.data.context import Context, contexts
from nmtkit.data.documents import ContextRule
from nmtkit.data.pairs import GivenPairs
from nmtkit.models.base import Model, Vocabularies
from nmtkit.models.transformer import TransformerSettings
from nmtkit.models.variants import build_model, count_parameters, load_variant
from nmtkit.text.vocabulary import BOS, EOS, PAD
from tests.device import DEVICE, placed_on

V = 23
SIZES = {
    "d_model": 16,
    "d_ff": 24,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
    "tie": "none",
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
Pair = tuple[list[int], list[int]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A variant with settings."""

    variant: str
    values: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return "-".join(
            [self.variant.rpartition(":")[2], *(f"{key}={value}" for key, value in self.values)]
        )

    def build(self, seed: int = 1, dtype: torch.dtype = torch.float64, **more: Any) -> Model:
        """Return a new model in evaluation mode. Its parameters are moved off their initial values,
        so that no bias and no norm is trivial.
        """
        values = load_variant(self.variant).adapt(SIZES) | dict(self.values) | more
        with placed_on("cpu"), torch.no_grad():  # the same weights on every device
            torch.manual_seed(seed)
            model = build_model(self.variant, values, Vocabularies(V, V, shared=True))
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model.to(DEVICE, dtype).eval()


def pairs(count: int = 5, seed: int = 3, longest: int = 7) -> list[Pair]:
    """Return random sentence pairs of different lengths, </s> included. Many pairs together hold
    every token of the vocabulary.
    """
    draw = torch.Generator("cpu").manual_seed(seed)
    lengths = [(1 + (3 * i + 4) % longest, 1 + (5 * i + 2) % longest) for i in range(count)]
    return [(*(_random_ids(n - 1, draw) + [EOS] for n in pair),) for pair in lengths]


def _random_ids(count: int, draw: torch.Generator) -> list[int]:
    return torch.randint(3, V, (count,), generator=draw, device="cpu").tolist()


POOL = pairs(count=60, seed=8, longest=5)


def context_of(src: list[int], rule: ContextRule) -> list[int]:
    """Return the numbers of 0 to 2 sentences of `POOL`: the context of a source, which follows
    from its tokens alone.
    """
    count = min(len(src) // 2 % 3, rule.size)
    return sorted((sum(src) + i) % len(POOL) for i in range(count))


def contexts_of(src: list[int], rule: ContextRule) -> list[Any]:
    """Return the contexts of a source: ids, or pairs of ids and the decoder's input for their
    target sides.
    """
    context = _contexts([src], rule, 0)
    if context is None:
        return []
    sources = _unpadded(context.ids, context.lengths)
    if context.tgt_in is None or context.tgt_lengths is None:
        return sources
    return list(zip(sources, _unpadded(context.tgt_in, context.tgt_lengths), strict=True))


def _unpadded(ids: Tensor, lengths: Tensor) -> list[list[int]]:
    return [row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]


def _contexts(sources: list[list[int]], rule: ContextRule, more: int) -> Context | None:
    """Return the contexts of a batch with `more` columns of padding, and with a row of no context
    where contexts are parallel.
    """
    src, tgt = ((lambda i, side=side: np.array(POOL[i][side])) for side in (0, 1))
    of_rows = [context_of(src, rule) for src in sources]
    context = on_device(contexts(of_rows, src, rule, tgt, DEVICE), DEVICE)
    if context is None or not more:
        return context
    rows = F.pad(context.rows, (0, 1), value=-1) if rule.join == "parallel" else context.rows
    tgt_in = None if context.tgt_in is None else F.pad(context.tgt_in, (0, more), value=PAD)
    return dataclasses.replace(
        context,
        ids=F.pad(context.ids, (0, more), value=PAD),
        rows=rows,
        padded=True,
        tgt_in=tgt_in,
        tgt_padded=True,
    )


def spans_of(src: list[int]) -> list[int]:
    """Return the number of tokens of each phrase of a source, as from a parse. About a third of
    the sources have no parse.
    """
    sizes: list[int] = []
    while sum(src) % 3 and sum(sizes) < len(src):
        sizes.append(min(1 + (sum(src) + len(sizes)) % 3, len(src) - sum(sizes)))
    return sizes


def padded(
    rows: Sequence[Sequence[int]], more: int = 0, filler: int = PAD
) -> tuple[Tensor, Tensor]:
    """Return rows of ids as a tensor (B, longest + more), and their lengths (B)."""
    width = max(map(len, rows)) + more
    ids = [[*row, *[filler] * (width - len(row))] for row in rows]
    return torch.tensor(ids), torch.tensor([len(row) for row in rows])


def collate(
    sentences: list[Pair], more: int = 0, rule: ContextRule | None = None, spans: bool = False
) -> Batch:
    """Return a batch with `more` columns of padding beyond the longest sentence, with the contexts
    of a model's rule, and with phrases if `spans`.
    """
    src, tgt = [s for s, _ in sentences], [t for _, t in sentences]
    src_ids, src_lengths = padded(src, more)
    tgt_out, tgt_lengths = padded(tgt, more)
    return Batch(
        src=src_ids,
        src_lengths=src_lengths,
        rows=torch.arange(len(src)),
        tgt_in=padded([[BOS, *row[:-1]] for row in tgt], more)[0],
        tgt_out=tgt_out,
        tgt_lengths=tgt_lengths,
        src_padded=bool((src_lengths < src_ids.size(1)).any()),
        tgt_padded=bool((tgt_lengths < tgt_out.size(1)).any()),
        context=None if rule is None else _contexts(src, rule, more),
        spans=padded([spans_of(row) for row in src], 1 + more)[0] if spans else None,
    )


def store_of(sentences: list[Pair], model: Model) -> GivenPairs:
    """Return pairs as a store with everything that a model reads. The sentences of POOL follow
    the pairs: they are contexts.
    """
    everything = sentences + POOL
    src, tgt = zip(*everything, strict=True)

    def context(i, rule):
        return [len(sentences) + j for j in context_of(everything[i][0], rule)]

    spans = [spans_of(source) for source, _ in sentences] if model.reads_spans else None
    return GivenPairs(src, tgt, spans, SimpleNamespace(context=context))


def packed_for(
    model: Model, sentences: list[Pair] | None = None, multiple: int = 8, few_shapes: bool = False
) -> Batch:
    """Return a packed batch (of `pairs()`). For `multiple` and `few_shapes` see `collate_packed`."""
    sentences = pairs() if sentences is None else sentences
    store, rows = store_of(sentences, model), np.arange(len(sentences))
    of_model = model.context_rule, model.context_form, model.prepare
    return collate_packed(store, rows, DEVICE, multiple, few_shapes, *of_model)


def batch_for(model: Model, sentences: list[Pair] | None = None, more: int = 0) -> Batch:
    """Return a padded batch (of `pairs()`) with everything that a model reads."""
    return collate(
        pairs() if sentences is None else sentences, more, model.context_rule, model.reads_spans
    )


def full(model: Model, batch: Batch) -> Tensor:
    """Return the logits of whole targets, (B, T, V)."""
    return model.logits(model.decode(batch.tgt_in, model.encode(batch))[0])


def close(a: Tensor, b: Tensor, claim: str = "") -> None:
    """Check that two tensors are equal within the tolerance of their number type.

    Args:
        claim: what the equality shows; a failure begins with it.
    """
    tolerance = TOLERANCE[a.dtype]
    torch.testing.assert_close(
        a, b, rtol=tolerance, atol=tolerance, msg=lambda numbers: f"{claim}\n{numbers}"
    )


def loss_of(model: Model, batch: Batch, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of the real target tokens."""
    return loss_from(full(model, batch), batch, reduction)


def loss_from(logits: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of the real target tokens, of logits (B, T, V)."""
    logits, tokens = logits.flatten(0, 1), batch.tgt_out.flatten()
    return F.cross_entropy(logits, tokens, ignore_index=PAD, reduction=reduction)


def paper_size(variant: str, preset: str, vocabulary: int, shared: bool = True, **more: Any) -> int:
    """Return the number of parameters of a variant with a preset's settings, counted on shapes."""
    with torch.device("meta"):
        values = settings.load_preset(preset)["model"] | more
        vocabularies = Vocabularies(vocabulary, vocabulary, shared=shared)
        return count_parameters(build_model(variant, values, vocabularies))


def numbers(model: Model) -> dict[str, Any]:
    """Return a model's parameters as lists of floats, for the slow implementations."""
    return {name: p.tolist() for name, p in model.named_parameters(remove_duplicate=False)}


def plain_transformer(model: Model) -> Model:
    """Return a new Transformer with a model's settings, whose layers share no parameters."""
    values = {name: getattr(model.settings, name) for name in TransformerSettings.model_fields}
    values |= {"distinct_layers": 0, "share": "cycle-rev"}
    return build_model("transformer", values, Vocabularies(V, V, shared=True)).double().eval()


def transformer_of(model: Model) -> Model:
    """Return the Transformer with a model's weights."""
    base, weights = plain_transformer(model), model.state_dict()
    base.load_state_dict({name: weights[name] for name in base.state_dict()})
    return base
