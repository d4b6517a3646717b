"""Analysis `alignment`: the attention of a sentence pair as a heat map, and how well attention
agrees with gold word alignments.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmtkit import console
from nmtkit.analyze.analysis import Analysis, Finding, LeftOut, Options, option
from nmtkit.analyze.shared import context_spread, links, recording
from nmtkit.analyze.shared.recording import CROSS
from nmtkit.analyze.study import RESAMPLES, SEED, Study
from nmtkit.data.batches import Batch, collate
from nmtkit.data.context import BREAK
from nmtkit.errors import ConfigError, DataError, nearest
from nmtkit.models.base import Model
from nmtkit.tables import figures
from nmtkit.tables.figures import Heat
from nmtkit.tables.table import Column, Estimate, Table, heat
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import Vocabulary, load_vocabularies
from nmtkit.translate.forced import pair_batch

Recorded = dict[str, dict[str, Tensor]]
"""What `recording.look` returns."""
Sites = dict[str, tuple[str, str]]
"""Attentions by name: (queries, keys), as `recording.sides` returns them."""


@dataclass(frozen=True)
class Side:
    """Sentences of one language as a model reads them."""

    ids: list[list[int]]
    owners: list[list[int]]
    """The word of each subword, </s> left out."""


@dataclass(frozen=True)
class GoldPairs:
    """Sentence pairs with gold links, as words and as a model reads them."""

    name: str
    gold: list[links.Gold]
    src: Side
    tgt: Side


@dataclass(frozen=True)
class Agreement:
    """The error rate of one attention, or of a file of links, on the gold pairs."""

    system: str
    attention: str
    rates: links.Rates
    spread: Estimate | None = None
    """How far apart the contexts of the steps of a sentence lie."""


@dataclass(frozen=True)
class Drawn:
    """One attention of one system on the sentence pair that is drawn."""

    system: str
    attention: str
    weights: Heat
    distances: Sequence[float | None]
    """How far the context of each query is from those of the others; None where that is not
    known.
    """


@dataclass(frozen=True)
class Aligned:
    """What was measured: `agreement` is None without gold links."""

    sentences: str
    drawn: list[Drawn]
    agreement: list[Agreement] | None


def as_read(side: TextSide, vocabulary: Vocabulary, sentences: Sequence[Sequence[str]]) -> Side:
    """Return sentences of given words as subwords; each word is tokenized by itself, so that its
    subwords are known.
    """
    ids, owners = [], []
    for words in sentences:
        tokens = [
            (token, number)
            for number, word in enumerate(words)
            for token in side.tokenized(word).split()
        ]
        cased = [token for token, _ in tokens]
        cased = side.truecaser.truecase(cased) if side.truecaser else cased
        subwords, places = side.subwords(cased)
        ids.append(vocabulary.encode(subwords))
        owners.append([tokens[place][1] for place in places])
    return Side(ids, owners)


def word_links(weights: Tensor, src: Sequence[int], tgt: Sequence[int]) -> frozenset[links.Link]:
    """Link each target word to the source word with the most attention, summed over the subwords of
    both, without </s>.

    Args:
        weights: (T, S) or larger, of subwords.
        src, tgt: (S), (T) the word of each subword.
    """
    if not src or not tgt:
        return frozenset()
    src_words, tgt_words = (torch.tensor(owners, device=weights.device) for owners in (src, tgt))
    words = weights.new_zeros(int(tgt_words.max()) + 1, int(src_words.max()) + 1)
    rows = weights.new_zeros(len(tgt), words.size(1)).index_add_(
        1, src_words, weights[: len(tgt), : len(src)]
    )
    words.index_add_(0, tgt_words, rows)
    words[
        :, [i for i in range(words.size(1)) if i not in set(src)]
    ] = -1  # words without any subword
    best = words.argmax(1).tolist()
    return frozenset((best[j], j) for j in sorted(set(tgt)))


def chosen_sites(model: Model, layer: str, only_cross: bool, device: torch.device) -> Sites:
    """Return the attentions from target to source of all layers or of one, or any attention by its
    name.

    Raises: ConfigError naming what there is, if there is none like that.
    """
    sites = recording.sides(model, device)
    cross = {site: sides for site, sides in sites.items() if sides == CROSS}
    if not layer:
        return cross
    if layer in sites:
        if only_cross and layer not in cross:
            message = (
                f"'{layer}' is no attention from the target to the source, so it aligns nothing"
            )
            raise ConfigError(message, where="--layer", hint=", ".join(cross))
        return {layer: sites[layer]}
    if in_layer := {
        site: sides for site, sides in cross.items() if str(recording.layer_of(site)) == layer
    }:
        return in_layer
    numbers = sorted({recording.layer_of(site) for site in cross})
    hint = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 2 else " or ".join(map(str, numbers))
    hint = hint if numbers and layer.isdecimal() else nearest(layer, sites)
    raise ConfigError(f"no layer '{layer}'", where="--layer", hint=hint)


def shown_site(sites: Sites) -> str:
    """Return the attention that is drawn: the last but one."""
    return list(sites)[max(0, len(sites) - 2)]


def of_head(weights: Tensor, head: int) -> Tensor:
    """Return one head's weights, counted from 1, or the mean over heads for 0: (B, H, T, S) -> (B,
    T, S).

    Raises: ConfigError if there are fewer heads.
    """
    if head > weights.size(1):
        hint = f"1 to {weights.size(1)}; without --head their mean"
        raise ConfigError(f"there are {weights.size(1)} heads", where="--head", hint=hint)
    return weights[:, head - 1] if head else weights.mean(1)


class AlignmentOptions(Options):
    """Options of `alignment`."""

    sentence: int = option(1, "N", ge=1)
    """The sentence pair that is drawn, by its line."""
    layer: str = option("", "N|NAME")
    """A layer from 1, or any attention by its name (default: all; the last but one is drawn)."""
    head: int = option(0, "N", ge=0)
    """One head from 1 (0: the mean over heads)."""
    gold: str = option("", "LINKS,PAIRS")
    """Gold links (i-j sure, ipj possible, from 1) and their 'source ||| target' lines."""
    alignments: tuple[str, ...] = option((), "FILE")
    """Hypothesised links for the pairs of --gold, shown beside the systems. Repeatable."""


class Alignment(Analysis[AlignmentOptions, Aligned]):
    """The attention of each system on a sentence pair, and its alignment error rate on gold
    pairs.
    """

    name = "alignment"
    title = "attention and word alignment"
    examples = ("--sentence 7 --layer 3 --head 2", "--gold enfr.gold,enfr.src-tgt")
    Options = AlignmentOptions

    def measure(self, study: Study) -> Aligned:
        options = self.options
        if options.gold and study.set_names:
            raise ConfigError(
                "the sentences are those of --gold",
                where="--set-name",
                hint="leave out one of them",
            )
        if options.alignments and not options.gold:
            raise ConfigError(
                "there is nothing to compare it with",
                where="--alignments",
                hint="--gold LINKS,PAIRS",
            )
        pairs = read_gold_pairs(study, options.gold) if options.gold else None
        count = len(pairs.gold) if pairs else len(study.store)
        if options.sentence > count:
            message = f"no line {options.sentence}: there are {count:,}"
            raise ConfigError(message, where="--sentence", hint=f"1 to {count}")
        files = [_of_file(file, pairs.gold) for file in options.alignments] if pairs else []

        def measured(name: str) -> tuple[Drawn, list[Agreement]]:
            model = study.model(name)
            sites = chosen_sites(model, options.layer, pairs is not None, study.device)
            if not sites:
                raise LeftOut("it has no attention to the source")
            drawn = self._drawn(study, name, model, sites, pairs)
            return drawn, self._agreement(study, name, model, list(sites), pairs) if pairs else []

        hint = "train one that does; `nmtkit variants` lists them"
        systems = study.each(measured, "no system of this run attends to the source", hint)
        agreement = [*files, *(row for _, rows in systems.values() for row in rows)]
        return Aligned(
            pairs.name if pairs else study.set_name,
            [drawn for drawn, _ in systems.values()],
            agreement if pairs else None,
        )

    def _drawn(
        self, study: Study, name: str, model: Model, sites: Sites, pairs: GoldPairs | None
    ) -> Drawn:
        """Return the attention of a system on the sentence pair that is drawn."""
        row, site = self.options.sentence - 1, shown_site(sites)
        if pairs:
            batch = pair_batch([pairs.src.ids[row]], [pairs.tgt.ids[row]], study.device)
        else:
            batch = collate(study.store, np.array([row]), study.device, model.context_rule)
        recorded = recording.look(model, batch)
        weights = next(values[site] for values in recorded.values() if site in values)
        matrix = of_head(weights, self.options.head)[0].double().cpu().tolist()
        names = _names(
            batch, sites[site], (len(matrix), len(matrix[0])), load_vocabularies(study.run.prep)
        )
        return Drawn(
            name, site, Heat(matrix, *names), _distances(recorded, batch, site, sites[site])
        )

    def _agreement(
        self, study: Study, name: str, model: Model, sites: Sequence[str], pairs: GoldPairs
    ) -> list[Agreement]:
        """Return the error rate of each attention on the gold pairs, and how its contexts
        spread.
        """
        src, tgt = pairs.src, pairs.tgt
        aligned = {site: [frozenset[links.Link]()] * len(src.ids) for site in sites}
        spread = {site: np.full(len(src.ids), np.nan) for site in sites}
        order = sorted(range(len(src.ids)), key=lambda i: (-len(src.ids[i]), -len(tgt.ids[i])))
        with console.progress(f"{name}: sentences", len(order)) as done:
            while order:
                size = max(1, recording.POSITIONS // len(src.ids[order[0]]))
                rows, order = order[:size], order[size:]
                batch = pair_batch(
                    [src.ids[i] for i in rows], [tgt.ids[i] for i in rows], study.device
                )
                recorded = recording.look(model, batch)["decoder"]
                for site in sites:
                    weights = of_head(recorded[site], self.options.head).double().cpu()
                    for i, matrix in zip(rows, weights, strict=True):
                        aligned[site][i] = word_links(matrix, src.owners[i], tgt.owners[i])
                    contexts = recorded.get(site + context_spread.ENDING)
                    if contexts is not None and batch.tgt_lengths is not None:
                        spread[site][rows] = (
                            context_spread.spread(contexts, batch.tgt_lengths).cpu().numpy()
                        )
                done(len(rows))
        draws = study.resampling(len(pairs.gold))
        return [
            Agreement(
                name,
                site,
                links.rates(aligned[site], pairs.gold),
                context_spread.mean(spread[site], draws),
            )
            for site in sites
        ]

    def present(self, result: Aligned) -> Finding:
        options = self.options
        head = f"head {options.head}" if options.head else "the mean over heads"
        where = f"{result.sentences}, line {options.sentence}"
        heats = {f"{d.system}, {d.attention}": d.weights for d in result.drawn}
        bars = (
            f"{label} ({where}; {head})\n{heat(h.values, h.rows, h.columns)}"
            for label, h in heats.items()
        )
        table = (
            _strongest_table(result.drawn, where, head)
            if result.agreement is None
            else _agreement_table(result.agreement, result.sentences, head)
        )
        facts = {
            "sentences": result.sentences,
            "line": options.sentence,
            "layer": options.layer or "all",
        }
        return Finding(
            table=table,
            text=(
                "A row of a heat map sums to 1. Attention is no alignment: it may read a word's"
                " neighbours, or rest on </s>; a low error rate says that a layer reads what it"
                " translates, a high one does not say that the translation is bad."
            ),
            figure=figures.heat_map(heats, "keys", "queries"),
            bars="\n\n".join(bars),
            facts={**facts, "head": options.head or "mean"},
            attachments={
                f"weights.{label.replace(', ', '.')}.csv": _csv(h) for label, h in heats.items()
            },
        )


def read_gold_pairs(study: Study, files: str) -> GoldPairs:
    """Read "LINKS,PAIRS" and cut the pairs into the run's subwords.

    Raises: ConfigError for another number of files; DataError as `links` says.
    """
    paths = files.split(",")
    if len(paths) != 2:
        hint = "--gold LINKS,PAIRS with source ||| target in PAIRS"
        raise ConfigError(f"two files are wanted, not {len(paths)}", where="--gold", hint=hint)
    gold, pairs = links.read_gold(Path(paths[0])), links.read_pairs(Path(paths[1]))
    links.check(gold, pairs, paths[0])
    prep = study.run.prep
    texts, vocabularies = (
        (
            TextSide.load(prep, "src"),
            TextSide.load(prep, "tgt"),
        ),
        load_vocabularies(prep),
    )
    src, tgt = (as_read(texts[i], vocabularies[i], [pair[i] for pair in pairs]) for i in (0, 1))
    return GoldPairs(Path(paths[0]).name, gold, src, tgt)


def _of_file(file: str, gold: Sequence[links.Gold]) -> Agreement:
    aligned = links.read_links(Path(file))
    if len(aligned) != len(gold):
        raise DataError(
            f"{len(aligned):,} lines of links for {len(gold):,} sentence pairs", where=file
        )
    return Agreement(Path(file).name, "–", links.rates(aligned, gold))


def _names(
    batch: Batch,
    sides: tuple[str, str],
    counts: tuple[int, int],
    vocabularies: tuple[Vocabulary, Vocabulary],
) -> list[list[str]]:
    """Name queries and keys by the tokens that the model reads or, where a target asks a source,
    writes.
    """
    assert batch.tgt_in is not None and batch.tgt_out is not None
    target = batch.tgt_out if sides == CROSS else batch.tgt_in
    source_tokens = [vocabularies[0][i] for i in batch.src[0].tolist()]
    if any(
        side == "source" and count > len(source_tokens)
        for side, count in zip(sides, counts, strict=True)
    ):
        source_tokens = _context_tokens(batch, vocabularies[0]) + source_tokens
    tokens = {"source": source_tokens, "target": [vocabularies[1][i] for i in target[0].tolist()]}
    numbers = ([str(i + 1) for i in range(count)] for count in counts)
    return [tokens.get(side) or plain for side, plain in zip(sides, numbers, strict=True)]


def _context_tokens(batch: Batch, vocabulary: Vocabulary) -> list[str]:
    """Return the tokens before those of the source where a model reads context and source as one
    text.
    """
    assert batch.context is not None
    row = int(batch.context.rows[0, 0])
    ids = batch.context.ids[row, : int(batch.context.lengths[row]) - 1].tolist()
    return [*("####" if i == BREAK else vocabulary[i] for i in ids), "####"]


def _distances(
    recorded: Recorded, batch: Batch, site: str, sides: tuple[str, str]
) -> list[float | None]:
    """Return how far the context of each step is from the others'; empty where the target asks
    no source.
    """
    assert batch.tgt_lengths is not None
    contexts = recorded["decoder"].get(site + context_spread.ENDING) if sides == CROSS else None
    if contexts is None:
        return []
    distances = context_spread.distances(contexts, batch.tgt_lengths)[0].tolist()
    return [None if np.isnan(value) else value for value in distances]


def _strongest_table(drawn: Sequence[Drawn], where: str, head: str) -> Table:
    """The key with the largest weight of each query."""
    rows: list[list[Any]] = []
    for one in drawn:
        weights = one.weights
        best = [max(range(len(row)), key=row.__getitem__) for row in weights.values]
        each = zip(weights.rows, best, one.distances or [None] * len(best), strict=True)
        rows += [
            [
                one.system,
                one.attention,
                i + 1,
                token,
                weights.columns[b],
                weights.values[i][b],
                distance,
            ]
            for i, (token, b, distance) in enumerate(each)
        ]
    columns = [Column("system", "system", left=True), Column("attention", "attention", left=True)]
    columns += [Column("position", "position"), Column("query", "query", left=True)]
    columns += [Column("key", "attends most to", left=True), Column("weight", "weight", decimals=3)]
    columns += [Column("context_distance", "context from others", decimals=3)]
    notes = [
        (
            "where the target asks the source, the query is the token that is written at that step;"
            " the target is the reference"
        ),
        (
            "context from others: mean Euclidean distance of what the attention gives here (all"
            " heads) to what it gives at the other steps, divided by the mean length of these"
            " vectors"
        ),
    ]
    return Table(
        "alignment", f"Strongest weight of each query, {head} ({where})", columns, rows, notes
    )


def _agreement_table(agreement: Sequence[Agreement], name: str, head: str) -> Table:
    rows = []
    for one in agreement:
        rates = (one.rates.precision, one.rates.recall, one.rates.error)
        percent = [None if rate is None else 100 * rate for rate in rates]
        rows.append([one.system, one.attention, one.rates.links, *percent, one.spread])
    columns = [Column("system", "system", left=True), Column("attention", "attention", left=True)]
    columns += [Column("links", "links"), Column("precision", "precision", decimals=1)]
    columns += [
        Column("recall", "recall", decimals=1),
        Column("aer", "AER", decimals=1),
        context_spread.column(),
    ]
    notes = [
        "AER: 1 - (|A∩S| + |A∩P|) / (|A| + |S|) over the whole set, in %; lower is better",
        (
            "attention: for each target word the source word with the most weight at the step that"
            " writes it, subwords summed onto words, without </s>"
        ),
        (
            f"{context_spread.NOTE}, of all heads ({context_spread.GATED}: `analyze importance` has"
            " the spread with even weights beside it)"
        ),
        f"[95%]: percentile interval over {RESAMPLES} resamples of the sentence pairs, seed {SEED}",
    ]
    return Table(
        "alignment", f"Agreement with gold word alignments, {head} ({name})", columns, rows, notes
    )


def _csv(weights: Heat) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["", *weights.columns])
    writer.writerows([name, *row] for name, row in zip(weights.rows, weights.values, strict=True))
    return stream.getvalue()
