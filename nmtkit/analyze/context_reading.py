"""How much each source word reads of the words of its context (other sentences of the document),
and how much of its own state it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jinja2
import numpy as np
import torch
from torch import Tensor

from nmtkit.analyze.gates import OF_CONTEXT
from nmtkit.arrays import Floats
from nmtkit.data.batches import Batch
from nmtkit.data.context import BREAK, Context
from nmtkit.measures import recording
from nmtkit.models.base import Model
from nmtkit.nn.capture import CONTEXT
from nmtkit.text.splitter import Splitter
from nmtkit.text.vocabulary import BOS, EOS, SPECIALS, Vocabulary

WeightedWord = tuple[str, float]
LENGTH = 23
"""The length of the made-up context; the source has another length, `recording.PROBE[0]`."""
STRONG = 1.5
"""In text a word is marked if its weight is at least STRONG times the mean of its line."""
BROKEN = "####"
"""The text in a table for `BREAK`."""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{ title }}</title>
<style>body { font-family: sans-serif; max-width: 60em; margin: 2em auto; line-height: 1.7 } \
dt { color: #666 }</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ note }}</p>
{%- macro words(weighted, colour) -%}
{%- set weights = weighted | map("last") | list -%}
{%- set top = (weights | max if weights else 0) or 1 -%}
{%- for word, weight in weighted -%}
<span style="background: rgba({{ colour }}, {{ "%.3f" % ([0, weight] | max / top) }})" \
title="{{ "%.4f" % weight }}">{{ word }}</span>{{ " " if not loop.last }}
{%- endfor -%}
{%- endmacro %}
{% for example in examples -%}
<h2>{{ example.title }}</h2>
<dl>
<dt>context</dt><dd>{{ words(example.context, "255, 140, 0") }}</dd>
<dt>source</dt><dd>{{ words(example.source, "30, 144, 255") }}</dd>
<dt>reference</dt><dd>{{ example.reference }}</dd>
</dl>
{% endfor -%}
</body>
</html>
"""


@dataclass(frozen=True)
class Sites:
    """Where a model reads contexts.

    Attributes:
        attention: the attentions of source words to context words.
        ahead: number of keys before the words of a context (1 for a first symbol <s>).
        joined: True if these attentions read context and source as one text, the context first.
        gates: the gates that record how much of its own state a word keeps.
    """

    attention: tuple[str, ...]
    ahead: int
    joined: bool
    gates: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """What a source sentence of S subwords reads in the C symbols of its contexts.

    Attributes:
        weights: (S, C) attention to each symbol, mean over heads and layers. A row sums to 1, or to
            less if context and source are one text.
        kept: (S) share of its own state that each subword keeps; None without a gate.
        symbols: (C) ids.
    """

    weights: Floats
    kept: Floats | None
    symbols: list[int]

    @property
    def on_words(self) -> Floats:
        """Attention of each subword to context words, without breaks and ends (S)."""
        words = ~np.isin(self.symbols, (BOS, EOS, BREAK))
        total: Floats = self.weights[:, words].sum(1)
        return total

    @property
    def share(self) -> Floats:
        """How much each subword takes from its context (S)."""
        return self.weights.sum(1) if self.kept is None else 1 - self.kept


def sites_of(model: Model) -> Sites:
    """Return where a model reads contexts, by the shapes of what it records on made-up pairs."""
    recorded = recording.probed(model, LENGTH)["encoder"]
    gates = tuple(site for site in recorded if site.endswith(OF_CONTEXT))
    source, both = recording.PROBE[0], recording.PROBE[0] + LENGTH
    joined = []
    ahead = {}
    for site, value in recorded.items():
        if value.dim() != 4 or site.startswith(CONTEXT) or value.size(0) != 2:
            continue
        queries, keys = value.shape[-2:]
        if queries == keys == both:
            joined.append(site)
        elif queries == source and keys in (LENGTH, LENGTH + 1):
            ahead[site] = keys - LENGTH
    if joined:
        return Sites(tuple(joined), 0, True, gates)
    return Sites(tuple(ahead), max(ahead.values(), default=0), False, gates)


def readings(model: Model, batch: Batch, sites: Sites) -> list[Reading | None]:
    """Return what each source of a batch reads; None for a source without context."""
    context = batch.context
    if context is None:
        return [None] * len(batch.src)
    recorded = recording.look(model, batch)["encoder"]
    gates = [recorded[site] for site in sites.gates]
    kept = torch.stack(gates).mean(0).double().cpu().numpy() if gates else None
    maps = [_attention(recorded, site, context, sites.joined) for site in sites.attention]
    of_sources: list[Reading | None] = []
    for row, length in enumerate((batch.src_lengths - 1).tolist()):  # without </s>
        texts = [
            [BOS] * sites.ahead + context.ids[number, : int(context.lengths[number])].tolist()
            for number in context.rows[row].tolist()
            if number >= 0
        ]
        if not texts:
            of_sources.append(None)
            continue
        symbols = sum(texts, [])
        before = len(symbols)
        weights = []  # (S, C) of each site
        for attention in maps:
            if sites.joined:
                weights.append(attention[row, 0, before : before + length, :before])
            else:
                read = zip(attention[row], texts, strict=False)
                parts = [of_text[:length, : len(text)] for of_text, text in read]
                weights.append(np.concatenate(parts, axis=1))
        own = None if kept is None else kept[row, :length]
        mean = np.mean(weights or [np.zeros((length, before))], axis=0)
        of_sources.append(Reading(mean, own, symbols))
    return of_sources


def _attention(recorded: dict[str, Tensor], site: str, context: Context, joined: bool) -> Floats:
    """Return the attention of a site, mean over heads: (B, J, S, M) to each of J contexts, or
    (B, 1, C+S, C+S) if context and source are one text.
    """
    weights = recorded[site].double()
    if joined:
        return weights.mean(1, keepdim=True).cpu().numpy()
    weights = weights.view(*context.rows.shape, *weights.shape[1:]).mean(2)
    # The weight of each context, in models that weigh contexts: (B, J) or (B, H, S, J).
    for name in (f"{site}_sentences", f"{site.rpartition('.')[0]}.sentences"):
        if name in recorded:
            share = recorded[name].double()
            share = share.unsqueeze(-1) if share.dim() == 2 else share.mean(1).transpose(1, 2)
            weights = weights * share.unsqueeze(-1)  # (B, J, S or 1, 1)
    return weights.cpu().numpy()


@dataclass(frozen=True)
class Example:
    """A sentence and its context, as words with weights."""

    title: str
    context: list[WeightedWord]
    source: list[WeightedWord]
    reference: str


def example(
    title: str,
    reading: Reading,
    source: Sequence[int],
    reference: str,
    vocabulary: Vocabulary,
    splitter: Splitter,
) -> Example:
    """Return a sentence and its context as words with weights.

    The weight of a source word is the share that the word takes from the context (mean of its
    subwords). The weight of a context word is the attention from all source words, each weighted by
    its share; the weights sum to 1.
    """
    of_context = reading.share @ reading.weights
    if (total := of_context.sum()) > 0:
        of_context = of_context / total
    names = [  # a <s> that begins a context is no break
        BROKEN if symbol == BREAK and before != EOS else vocabulary[symbol]
        for symbol, before in zip(reading.symbols, [EOS, *reading.symbols], strict=False)
    ]
    context = [(word, float(sum(values))) for word, values in _words(names, of_context, splitter)]
    subwords = [vocabulary[i] for i in source]
    taken = _words(subwords, reading.share, splitter)
    words = [(word, float(np.mean(values))) for word, values in taken]
    return Example(title, context, words, reference)


def _words(
    subwords: Sequence[str], values: Floats, splitter: Splitter
) -> list[tuple[str, list[float]]]:
    """Return each word with the values of its subwords. A break and </s> are words."""
    words: list[tuple[list[str], list[float]]] = []
    begins = True
    for subword, value, is_end in zip(
        subwords, values.tolist(), splitter.ends(subwords), strict=True
    ):
        if begins or subword in (BROKEN, SPECIALS[EOS]):
            words.append(([], []))
        parts, of_word = words[-1]
        parts.append(subword)
        of_word.append(value)
        begins = is_end
    return [("".join(splitter.join(parts)), of_word) for parts, of_word in words]


def as_text(examples: Sequence[Example]) -> str:
    """Return examples for a terminal; words with a large weight are shown as *word*(weight)."""

    def line(name: str, words: Sequence[WeightedWord]) -> str:
        least = STRONG * sum(weight for _, weight in words) / max(len(words), 1)
        shown = [f"*{word}*({w:.2f})" if w > 0 and w >= least else word for word, w in words]
        return f"  {name:<9} {' '.join(shown)}"

    blocks = []
    for example in examples:
        lines = line("context", example.context), line("source", example.source)
        blocks.append("\n".join([example.title, *lines, f"  {'reference':<9} {example.reference}"]))
    return "\n\n".join(blocks)


def as_html(title: str, note: str, examples: Sequence[Example]) -> str:
    """Return an HTML page without external resources. A darker word has a larger weight."""
    pages = jinja2.Environment(keep_trailing_newline=True, autoescape=True)
    return pages.from_string(PAGE).render(title=title, note=note, examples=examples)
