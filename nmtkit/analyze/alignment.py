"""Analysis `alignment`: the attention of a sentence pair as a heat map, and how well attention agrees with gold word alignments."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit import console
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared import context_spread, links, recording
from nmtkit.analyze.shared.recording import CROSS
from nmtkit.data.batches import Batch, collate
from nmtkit.data.context import BREAK
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError, nearest
from nmtkit.models import loading
from nmtkit.models.base import Model
from nmtkit.run import Run
from nmtkit.score.resampling import Resampling
from nmtkit.tables import figures
from nmtkit.tables.figures import Heat
from nmtkit.tables.table import Column, Estimate, Table, heat
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import Vocabulary, load_vocabularies
from nmtkit.translate.forced import pair_batch

RESAMPLES, SEED = 1000, 1
Recorded = dict[str, dict[str, Tensor]]
"""What `recording.look` gives."""
Sites = dict[str, tuple[str, str]]
"""Attentions by name, of each whose positions ask whose: what `recording.sides` gives."""


@dataclass(frozen=True)
class GoldSet:
    """Gold alignments, and their sentence pairs as words."""

    gold: list[links.Gold]
    pairs: list[tuple[list[str], list[str]]]


@dataclass(frozen=True)
class Aligned:
    """What one attention does on the gold pairs."""

    links: list[frozenset[links.Link]]
    spread: NDArray[np.float64]
    """How far apart the contexts of each pair's steps lie; NaN where that is not known."""


@dataclass(frozen=True)
class Side:
    """Sentences of one language as a model reads them."""

    ids: list[list[int]]
    owners: list[list[int]]
    """Of each subword the word it belongs to, </s> left out."""


@dataclass(frozen=True)
class Asked:
    """What every system is asked."""

    sentences: str
    """The set, or the file of gold links."""
    line: int
    """Of the pair that is drawn, from 1."""
    batch: Callable[[Model], Batch]
    """That pair, with the context that a model reads where the set has one."""
    vocabularies: tuple[Vocabulary, Vocabulary]
    gold: GoldSet | None = None
    sides: tuple[Side, Side] | None = None
    """All gold pairs as they are read."""


def read_goldset(where: str) -> GoldSet:
    """Read "LINKS,PAIRS".

    Raises: ConfigError for another number of files; DataError as `links` says.
    """
    parts = where.split(",")
    if len(parts) != 2:
        raise ConfigError(f"two files are wanted, not {len(parts)}", where="--gold", hint="--gold LINKS,PAIRS with source ||| target in PAIRS")
    found = GoldSet(links.read_gold(Path(parts[0])), links.read_pairs(Path(parts[1])))
    links.check(found.gold, found.pairs, parts[0])
    return found


def as_read(side: TextSide, vocabulary: Vocabulary, sentences: Sequence[Sequence[str]]) -> Side:
    """Sentences of given words as subwords: each word is tokenized by itself, so that it is known whose a subword is."""
    ids, owners = [], []
    for words in sentences:
        tokens = [(token, number) for number, word in enumerate(words) for token in side.tokenized(word).split()]
        cased = [token for token, _ in tokens]
        cased = side.truecaser.truecase(cased) if side.truecaser else cased
        pieces = [
            (piece, number)
            for token, (_, number) in zip(cased, tokens, strict=True)
            for piece in (side.bpe.segment([token]) if side.bpe else [token])
        ]
        ids.append(vocabulary.encode(piece for piece, _ in pieces))
        owners.append([number for _, number in pieces])
    return Side(ids, owners)


def word_links(weights: Tensor, src: Sequence[int], tgt: Sequence[int]) -> frozenset[links.Link]:
    """For each target word the source word with the most attention, summed over the subwords of both; </s> takes no part.

    Args:
        weights: (T, S) or larger, of subwords.
        src, tgt: (S), (T) the word that each subword belongs to.
    """
    if not src or not tgt:
        return frozenset()
    of_src, of_tgt = (torch.tensor(owners, device=weights.device) for owners in (src, tgt))
    words = weights.new_zeros(int(of_tgt.max()) + 1, int(of_src.max()) + 1)
    rows = weights.new_zeros(len(tgt), words.size(1)).index_add_(1, of_src, weights[: len(tgt), : len(src)])
    words.index_add_(0, of_tgt, rows)
    words[:, [i for i in range(words.size(1)) if i not in set(src)]] = -1  # words of which nothing is left
    best = words.argmax(1).tolist()
    return frozenset((best[j], j) for j in sorted(set(tgt)))


def chosen_sites(model: Model, layer: str, only_cross: bool) -> Sites:
    """The attentions that are looked at: those from target to source of all layers, of one, or any by its name.

    Raises: ConfigError naming what there is, if there is none like that.
    """
    everything = recording.sides(model, recording.device())
    cross = {site: who for site, who in everything.items() if who == CROSS}
    if not layer:
        return cross
    if layer in everything:
        if only_cross and layer not in cross:
            what = f"'{layer}' is no attention from the target to the source, so it aligns nothing"
            raise ConfigError(what, where="--layer", hint=", ".join(cross))
        return {layer: everything[layer]}
    numbered = {site: who for site, who in cross.items() if str(recording.layer_of(site)) == layer}
    if not numbered:
        numbers = sorted({recording.layer_of(site) for site in cross})
        hint = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 2 else " or ".join(map(str, numbers))
        raise ConfigError(f"no layer '{layer}'", where="--layer", hint=hint if numbers and layer.isdecimal() else nearest(layer, everything))
    return numbered


def of_head(weights: Tensor, head: int) -> Tensor:
    """One head's weights, counted from 1, or the mean over heads for 0: (B, H, T, S) -> (B, T, S).

    Raises: ConfigError if there are not so many.
    """
    if head > weights.size(1):
        raise ConfigError(f"there are {weights.size(1)} heads", where="--head", hint=f"1 to {weights.size(1)}; without --head their mean")
    return weights[:, head - 1] if head else weights.mean(1)


def run(
    run: Run,
    systems: Sequence[str],
    *,
    set_names: Sequence[str] = (),
    sentence: int = 1,
    layer: str = "",
    head: int = 0,
    gold: str = "",
    alignments: Sequence[str] = (),
) -> Finding:
    """The attention of each system on a sentence pair, and its alignment error rate.

    Args:
        run: the run; systems: those without attention to the source are left out. set_names: one set, whose references are the targets (default:
            the first test set); not beside gold.
        sentence: which pair is drawn, from 1.
        layer: a layer, from 1, or the name of any attention; "" = every layer is compared, and the last but one is drawn.
        head: from 1; 0 = the mean over heads.
        gold: "LINKS,PAIRS", gold alignments; alignments: files of hypothesised ones for these pairs, shown beside the systems.
    Raises: ConfigError, DataError as the parts say.
    """
    if gold and set_names:
        raise ConfigError("the sentences are those of --gold", where="--set-name", hint="leave out one of them")
    if alignments and not gold:
        raise ConfigError("there is nothing to compare it with", where="--alignments", hint="--gold LINKS,PAIRS")
    gold_set = read_goldset(gold) if gold else None
    chosen = Path(gold.split(",")[0]).name if gold_set else recording.one_set(run, set_names, "a sentence")
    asked = _sentence(run, chosen, gold_set, sentence)
    rows: list[list[Any]] = [_rates_row(Path(file).name, "–", _hypothesised(file, gold_set), gold_set) for file in alignments if gold_set]
    heats: dict[str, Heat] = {}
    for name in systems:
        model = loading.load_system(run, run.find_system(name), recording.device())
        sites = chosen_sites(model, layer, only_cross=gold_set is not None)
        if not sites:
            console.say(f"left out, for it has no attention to the source: {name}")
            continue
        drawn, weights, own = _of_system(model, name, sites, head, asked)
        heats[f"{name}, {drawn}"] = weights
        rows += own
    if not heats and not rows:
        raise DataError(
            "no system of this run attends to the source", where=", ".join(systems), hint="train one that does; `nmtkit variants` lists them"
        )
    return _finding(asked, rows, heats, layer, head)


def _finding(asked: Asked, rows: list[list[Any]], heats: Mapping[str, Heat], layer: str, head: int) -> Finding:
    """The finding of a table's rows and of what is drawn (by "SYSTEM, ATTENTION")."""
    of = f"head {head}" if head else "the mean over heads"
    where = f"{asked.sentences}, line {asked.line}"
    return Finding(
        name="alignment",
        title="attention and word alignment",
        table=_rates_table(rows, asked.sentences, of) if asked.gold else _strongest_table(rows, where, of),
        text="A row of a heat map sums to 1. Attention is no alignment: it may read a word's neighbours, or rest on </s>; a low error rate says "
        "that a layer reads what it translates, a high one does not say that the translation is bad.",
        figure=figures.heat_map(heats, "keys", "queries") if heats and figures.available() else None,
        bars="\n\n".join(f"{label} ({where}; {of})\n{heat(h.values, h.rows, h.columns)}" for label, h in heats.items()),
        facts={"sentences": asked.sentences, "line": asked.line, "layer": layer or "all", "head": head or "mean"},
        attachments={f"weights.{label.replace(', ', '.')}.csv": _csv(h) for label, h in heats.items()},
    )


def _sentence(run: Run, chosen: str, gold_set: GoldSet | None, number: int) -> Asked:
    """One sentence pair of a set or, with all pairs of it, of a gold set.

    Raises: ConfigError if there are not so many.
    """
    store = None if gold_set else Store(run.prep / chosen)
    count = len(gold_set.pairs) if gold_set else len(store or ())
    if not 1 <= number <= count:
        raise ConfigError(f"no line {number}: there are {count:,}", where="--sentence", hint=f"1 to {count}")
    vocabularies = load_vocabularies(run.prep)
    if store is not None:
        rows = np.array([number - 1])
        return Asked(chosen, number, lambda model: collate(store, rows, recording.device(), model.context_rule), vocabularies)
    assert gold_set is not None
    texts = (TextSide.load(run.prep, "src"), TextSide.load(run.prep, "tgt"))
    src, tgt = (as_read(text, words, [pair[i] for pair in gold_set.pairs]) for i, (text, words) in enumerate(zip(texts, vocabularies, strict=True)))
    batch = pair_batch([src.ids[number - 1]], [tgt.ids[number - 1]], recording.device())
    return Asked(chosen, number, lambda model: batch, vocabularies, gold_set, (src, tgt))


def _of_system(model: Model, name: str, sites: Sites, head: int, asked: Asked) -> tuple[str, Heat, list[list[Any]]]:
    """The attention of a system that is drawn, its weights on the pair, and the system's rows of the table."""
    drawn = list(sites)[max(0, len(sites) - 2)]
    batch = asked.batch(model)
    seen = recording.look(model, batch)
    weights = _heat(seen, batch, drawn, sites[drawn], head, asked.vocabularies)
    if asked.gold is None or asked.sides is None:
        return drawn, weights, _strongest(name, drawn, weights, _apart(seen, batch, drawn, sites[drawn]))
    draws = Resampling(len(asked.gold.gold), RESAMPLES, seed=SEED)
    found = _aligned(model, name, list(sites), head, *asked.sides)
    return drawn, weights, [_rates_row(name, site, own.links, asked.gold, context_spread.mean(own.spread, draws)) for site, own in found.items()]


def _aligned(model: Model, name: str, sites: Sequence[str], head: int, src: Side, tgt: Side) -> dict[str, Aligned]:
    """The links of every gold pair by the attentions asked for, and how their contexts spread."""
    found = {site: Aligned([frozenset()] * len(src.ids), np.full(len(src.ids), np.nan)) for site in sites}
    order = sorted(range(len(src.ids)), key=lambda i: (-len(src.ids[i]), -len(tgt.ids[i])))
    with console.progress(f"{name}: sentences", len(order)) as done:
        while order:
            size = max(1, recording.POSITIONS // len(src.ids[order[0]]))
            own, order = order[:size], order[size:]
            batch = pair_batch([src.ids[i] for i in own], [tgt.ids[i] for i in own], recording.device())
            seen = recording.look(model, batch)["decoder"]
            for site in sites:
                weights = of_head(seen[site], head).double().cpu()
                for i, matrix in zip(own, weights, strict=True):
                    found[site].links[i] = word_links(matrix, src.owners[i], tgt.owners[i])
                if (given := seen.get(site + context_spread.ENDING)) is not None and batch.tgt_lengths is not None:
                    found[site].spread[own] = context_spread.spread(given, batch.tgt_lengths).cpu().numpy()
            done(len(own))
    return found


def _hypothesised(file: str, gold_set: GoldSet) -> list[frozenset[links.Link]]:
    found = links.read_links(Path(file))
    if len(found) != len(gold_set.gold):
        raise DataError(f"{len(found):,} lines of links for {len(gold_set.gold):,} sentence pairs", where=file)
    return found


def _heat(recorded: Recorded, batch: Batch, site: str, who: tuple[str, str], head: int, vocabularies: tuple[Vocabulary, Vocabulary]) -> Heat:
    """One attention on one pair, its rows and columns named by the tokens the model read or, where a target asks a source, will write."""
    weights = next(seen[site] for seen in recorded.values() if site in seen)
    values = of_head(weights, head)[0].double().cpu().tolist()
    assert batch.tgt_in is not None and batch.tgt_out is not None
    target = batch.tgt_out if who == CROSS else batch.tgt_in
    tokens = {"source": [vocabularies[0][i] for i in batch.src[0].tolist()], "target": [vocabularies[1][i] for i in target[0].tolist()]}
    counts = (len(values), len(values[0]))
    if any(side == "source" and count > len(tokens["source"]) for side, count in zip(who, counts, strict=True)):
        tokens["source"] = _before(batch, vocabularies[0]) + tokens["source"]
    names = [tokens.get(side) or [str(i + 1) for i in range(count)] for side, count in zip(who, counts, strict=True)]
    return Heat(values, *names)


def _before(batch: Batch, vocabulary: Vocabulary) -> list[str]:
    """The tokens before those of the source where a model reads the pair's context and source as one text."""
    assert batch.context is not None
    row = int(batch.context.rows[0, 0])
    ids = batch.context.ids[row, : int(batch.context.lengths[row]) - 1].tolist()
    return [*("####" if i == BREAK else vocabulary[i] for i in ids), "####"]


def _apart(recorded: Recorded, batch: Batch, site: str, who: tuple[str, str]) -> list[float | None]:
    """How far the context of each step is from those of the others; nothing where the target asks no source."""
    assert batch.tgt_lengths is not None
    given = recorded["decoder"].get(site + context_spread.ENDING) if who == CROSS else None
    if given is None:
        return []
    return [None if np.isnan(value) else value for value in context_spread.distances(given, batch.tgt_lengths)[0].tolist()]


def _strongest(name: str, site: str, drawn: Heat, apart: Sequence[float | None]) -> list[list[Any]]:
    best = [max(range(len(row)), key=row.__getitem__) for row in drawn.values]
    each = zip(drawn.rows, best, apart or [None] * len(best), strict=True)
    return [[name, site, i + 1, token, drawn.columns[b], drawn.values[i][b], distance] for i, (token, b, distance) in enumerate(each)]


def _strongest_table(rows: list[list[Any]], what: str, of: str) -> Table:
    columns = [Column("system", "system", left=True), Column("attention", "attention", left=True), Column("position", "position")]
    columns += [Column("query", "query", left=True), Column("key", "attends most to", left=True), Column("weight", "weight", decimals=3)]
    columns += [Column("context_distance", "context from others", decimals=3)]
    notes = [
        "where the target asks the source, the query is the token that is written at that step; the target is the reference",
        "context from others: mean Euclidean distance of what the attention gives here (all heads) to what it gives at the other steps, divided by "
        "the mean length of these vectors",
    ]
    return Table("alignment", f"Strongest weight of each query, {of} ({what})", columns, rows, notes)


def _rates_row(name: str, site: str, found: list[frozenset[links.Link]], gold_set: GoldSet, spread: Estimate | None = None) -> list[Any]:
    rates = links.rates(found, gold_set.gold)
    percent = [None if value is None else 100 * value for value in (rates.precision, rates.recall, rates.error)]
    return [name, site, rates.links, *percent, spread]


def _rates_table(rows: list[list[Any]], what: str, of: str) -> Table:
    columns = [Column("system", "system", left=True), Column("attention", "attention", left=True), Column("links", "links")]
    columns += [Column(key, header, decimals=1) for key, header in (("precision", "precision"), ("recall", "recall"), ("aer", "AER"))]
    columns += [context_spread.column()]
    notes = [
        "AER: 1 - (|A∩S| + |A∩P|) / (|A| + |S|) over the whole set, in %; lower is better",
        "attention: for each target word the source word with the most weight at the step that writes it, subwords summed onto words, without </s>",
        f"{context_spread.NOTE}, of all heads ({context_spread.GATED}: `analyze importance` has the spread with even weights beside it)",
        f"[95%]: percentile interval over {RESAMPLES} resamples of the sentence pairs, seed {SEED}",
    ]
    return Table("alignment", f"Agreement with gold word alignments, {of} ({what})", columns, rows, notes)


def _csv(drawn: Heat) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["", *drawn.columns])
    writer.writerows([name, *row] for name, row in zip(drawn.rows, drawn.values, strict=True))
    return stream.getvalue()
