"""What source words read in the other sentences of their document: attention to context words,
and what is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.analyze.gates import OF_CONTEXT
from nmtkit.analyze.shared import recording
from nmtkit.data.batches import Batch
from nmtkit.data.context import BREAK
from nmtkit.models.base import Model
from nmtkit.text.vocabulary import BOS, EOS, Vocabulary

Numbers = NDArray[np.float64]
LENGTH = 23
"""Of the context of a probe, beside `recording.PROBE`."""
JOINER = "@@"
STRONG = 1.5
"""A word is marked in text if it has at least so many times the mean weight of the words beside
it.
"""


@dataclass(frozen=True)
class Sites:
    """Where a model reads contexts.

    attention: the attentions of source words to context words; those of `joined` have both as one
    text instead, the context first. ahead: positions before the context's own among the keys (a
    first symbol); gates: what is kept of a word's own state.
    """

    attention: tuple[str, ...]
    ahead: int
    joined: bool
    gates: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """What a source sentence of S subwords reads in the C symbols of its contexts.

    weights (S, C): how the attention of each falls on them, mean over heads and layers; it sums to
    1 where contexts are read by themselves, to less where they are one text with the source. kept
    (S): the share of its own state that each keeps, None without a gate. symbols (C): ids.
    """

    weights: Numbers
    kept: Numbers | None
    symbols: list[int]

    @property
    def words(self) -> NDArray[np.bool_]:
        """Which symbols are of words, and not breaks and ends (C)."""
        return ~np.isin(self.symbols, (BOS, EOS, BREAK))

    @property
    def on_words(self) -> Numbers:
        """How much of the attention of each subword falls on context words (S)."""
        found: Numbers = self.weights[:, self.words].sum(1)
        return found

    @property
    def share(self) -> Numbers:
        """How much each subword takes from its context (S)."""
        return self.weights.sum(1) if self.kept is None else 1 - self.kept


def sites_of(model: Model, where: torch.device) -> Sites:
    """Where a model reads contexts, by the shapes of what it records on a probe."""
    seen = recording.look(model, recording.probe(model, where, context=LENGTH))["encoder"]
    gates = tuple(site for site in seen if site.endswith(OF_CONTEXT))
    weights = {
        site: value
        for site, value in seen.items()
        if value.dim() == 4 and not site.startswith(recording.OF_CONTEXTS) and value.size(0) == 2
    }
    asked, both = recording.PROBE[0], recording.PROBE[0] + LENGTH
    joined = tuple(site for site, value in weights.items() if value.shape[-2:] == (both, both))
    if joined:
        return Sites(joined, 0, True, gates)
    apart = {
        site: value.size(-1) - LENGTH
        for site, value in weights.items()
        if value.size(-2) == asked and value.size(-1) in (LENGTH, LENGTH + 1)
    }
    return Sites(tuple(apart), next(iter(apart.values()), 0), False, gates)


def readings(model: Model, batch: Batch, sites: Sites) -> list[Reading | None]:
    """What each source of a batch reads; None for one without context."""
    if batch.context is None:
        return [None] * len(batch.src)
    seen = recording.look(model, batch)["encoder"]
    kept = (
        torch.stack([seen[site] for site in sites.gates]).mean(0).double().cpu().numpy()
        if sites.gates
        else None
    )
    maps = [
        _joined(seen[site], batch) if sites.joined else _apart(seen, site, batch, sites.ahead)
        for site in sites.attention
    ]
    context = batch.context
    found: list[Reading | None] = []
    for row, (own, length) in enumerate(
        zip(context.rows.tolist(), batch.src_lengths.tolist(), strict=True)
    ):
        chosen = [number for number in own if number >= 0]
        if not chosen:
            found.append(None)
            continue
        symbols = [
            i
            for number in chosen
            for i in [BOS] * sites.ahead
            + context.ids[number, : int(context.lengths[number])].tolist()
        ]
        weights = (
            np.mean([each[row] for each in maps], axis=0)
            if maps
            else np.zeros((length, len(symbols)))
        )
        found.append(
            Reading(
                weights[: length - 1], None if kept is None else kept[row, : length - 1], symbols
            )
        )
    return found


def _apart(seen: dict[str, Tensor], site: str, batch: Batch, ahead: int) -> list[Numbers]:
    """(S, C) of each row, from attention (B·J, H, S, M) to each of J contexts and, where these
    are weighed, (B, J) or (B, H, S, J).
    """
    assert batch.context is not None
    rows, lengths = batch.context.rows, batch.context.lengths
    weights = seen[site].double()  # (B·J, H, S, M)
    weights = weights.view(*rows.shape, *weights.shape[1:]).mean(2)  # (B, J, S, M)
    weighed = next(
        (
            seen[name].double()
            for name in (f"{site}_sentences", f"{site.rpartition('.')[0]}.sentences")
            if name in seen
        ),
        None,
    )
    if weighed is not None:
        weights = weights * (
            weighed[..., None, None]
            if weighed.dim() == 2
            else weighed.mean(1).transpose(1, 2).unsqueeze(-1)
        )
    found = []
    for own, row, length in zip(
        weights.cpu().numpy(), rows.tolist(), batch.src_lengths.tolist(), strict=True
    ):
        parts = [
            own[j, :length, : ahead + int(lengths[number])]
            for j, number in enumerate(row)
            if number >= 0
        ]
        found.append(np.concatenate(parts, axis=1) if parts else np.zeros((length, 0)))
    return found


def _joined(weights: Tensor, batch: Batch) -> list[Numbers]:
    """(S, C) of each row, from attention (B, H, C+S, C+S) in the text of both."""
    assert batch.context is not None
    found = []
    for own, row, length in zip(
        weights.double().mean(1).cpu().numpy(),
        batch.context.rows[:, 0].tolist(),
        batch.src_lengths.tolist(),
        strict=True,
    ):
        before = 0 if row < 0 else int(batch.context.lengths[row])
        found.append(own[before : before + length, :before])
    return found


@dataclass(frozen=True)
class Example:
    """A sentence and what it reads: words with a weight each."""

    title: str
    context: list[tuple[str, float]]
    source: list[tuple[str, float]]
    reference: str


def example(
    title: str, reading: Reading, source: Sequence[int], reference: str, vocabulary: Vocabulary
) -> Example:
    """A sentence as words: of the source with what each takes from the context (its subwords'
    mean), of the context with what is read there.

    A context word's weight is the attention it gets from all source words, in proportion to what
    each of these takes; the weights sum to 1.
    """
    of_context = reading.share @ reading.weights
    total = of_context.sum()
    first = [
        i
        for i, symbol in enumerate(reading.symbols)
        if symbol == BOS and (i == 0 or reading.symbols[i - 1] == EOS)
    ]
    names = [
        "<s>" if i in first else "####" if symbol == BREAK else vocabulary[symbol]
        for i, symbol in enumerate(reading.symbols)
    ]
    context = [
        (word, float(sum(own)))
        for word, own in _joined_words(names, of_context / total if total > 0 else of_context)
    ]
    words = [
        (word, float(np.mean(own)))
        for word, own in _joined_words([vocabulary[i] for i in source], reading.share)
    ]
    return Example(title, context, words, reference)


def _joined_words(subwords: Sequence[str], values: Numbers) -> list[tuple[str, list[float]]]:
    """Words, each with the values of its subwords."""
    found: list[tuple[str, list[float]]] = []
    going_on = False
    for subword, value in zip(subwords, values.tolist(), strict=True):
        if not going_on:
            found.append(("", []))
        text, own = found[-1]
        going_on = subword.endswith(JOINER)
        found[-1] = (text + subword.removesuffix(JOINER), [*own, value])
    return found


def as_text(examples: Sequence[Example]) -> str:
    """For a terminal: *word*(weight) where much is read, or much is taken."""
    blocks = []
    for one in examples:
        lines = [one.title]
        for name, words in (("context", one.context), ("source", one.source)):
            least = STRONG * sum(weight for _, weight in words) / max(len(words), 1)
            lines.append(
                f"  {name:<9} "
                + " ".join(
                    f"*{word}*({w:.2f})" if w > 0 and w >= least else word for word, w in words
                )
            )
        blocks.append("\n".join([*lines, f"  {'reference':<9} {one.reference}"]))
    return "\n\n".join(blocks)


def as_html(title: str, note: str, examples: Sequence[Example]) -> str:
    """A page that needs nothing beside itself; the darker a word, the more is read there, or
    taken.
    """

    def shown(words: Sequence[tuple[str, float]], colour: str) -> str:
        top = max((weight for _, weight in words), default=0.0) or 1.0
        return " ".join(
            f'<span style="background: rgba({colour}, {max(0.0, w) / top:.3f})"'
            f' title="{w:.4f}">{escape(word)}</span>'
            for word, w in words
        )

    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f"<title>{escape(title)}</title>\n",
    ]
    parts.append(
        "<style>body { font-family: sans-serif; max-width: 60em; margin: 2em auto; line-height: 1.7"
        " } dt { color: #666 }</style>\n</head>\n"
    )
    parts.append(f"<body>\n<h1>{escape(title)}</h1>\n<p>{escape(note)}</p>\n")
    for one in examples:
        context, source = shown(one.context, "255, 140, 0"), shown(one.source, "30, 144, 255")
        parts.append(f"<h2>{escape(one.title)}</h2>\n<dl>\n<dt>context</dt><dd>{context}</dd>\n")
        parts.append(f"<dt>source</dt><dd>{source}</dd>\n<dt>reference</dt>")
        parts.append(f"<dd>{escape(one.reference)}</dd>\n</dl>\n")
    return "".join([*parts, "</body>\n</html>\n"])
