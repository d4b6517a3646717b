"""Analysis `alignment`: the attention of a sentence pair as a heat map, and how well attention
agrees with gold word alignments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from torch import Tensor

from nmtkit.analyze.analysis import Analysis, Finding, SentenceOptions, option
from nmtkit.analyze.study import Study, interval_note
from nmtkit.data.batches import Batch
from nmtkit.data.context import BREAK
from nmtkit.data.pairs import GivenPairs
from nmtkit.errors import ConfigError, LeftOut, counted, nearest
from nmtkit.measures import context_spread, links, recording
from nmtkit.measures.links import GoldSet
from nmtkit.measures.recording import CROSS, Sites
from nmtkit.models.base import Model
from nmtkit.score.resampling import mean
from nmtkit.tables import figures
from nmtkit.tables.bars import Heat, heat
from nmtkit.tables.table import (
    Column,
    Estimate,
    Table,
    csv_text,
    interval_column,
    text_column,
    text_columns,
)
from nmtkit.text.vocabulary import Vocabulary, load_vocabularies, unknown_share

AgreementRow = tuple[str, str, links.Rates, Estimate]
"""System, attention, its rates on gold pairs, and the spread of its contexts."""


@dataclass(frozen=True)
class Drawn:
    """The attention of one system that is drawn.

    Attributes:
        writes: True if each query is a step that writes a target token.
    """

    system: str
    attention: str
    weights: Heat
    writes: bool


@dataclass(frozen=True)
class Aligned:
    """The attention of some systems on sentence pairs.

    Attributes:
        sentences: the set, or the file of gold links.
        pairs: number of sentence pairs.
        drawn: the attention of each system that is drawn.
        agreement: a row for each attention; None without gold links.
    """

    sentences: str
    pairs: int
    drawn: list[Drawn]
    agreement: list[AgreementRow] | None


def select_sites(model: Model, layer: str, only_cross: bool) -> Sites:
    """Return the attentions that --layer selects.

    Args:
        layer: "" for the attentions from target to source of all layers; the number of a layer;
            or the name of any attention.
        only_cross: allow only attentions from target to source.
    Raises: LeftOut for a model without such a layer or attention, naming the known ones.
    """
    sites = recording.sides(model)
    if layer in sites and not only_cross:
        return {layer: sites[layer]}
    cross = recording.cross_sites(model)
    layers = {site: str(recording.layer_of(site)) for site in cross}
    selected = [site for site in cross if layer in ("", site, layers[site])]
    if selected:
        return dict.fromkeys(selected, CROSS)
    if layer in sites:
        message = f"'{layer}' is not an attention from the target to the source"
        raise LeftOut(f"{message}, known: {', '.join(cross)}")
    known = nearest(layer, layers.values() if layer.isdecimal() else sites)
    raise LeftOut(f"no layer '{layer}', {known}")


def drawn_site(sites: Iterable[str]) -> str:
    """Return the attention that is drawn: the last but one."""
    return [*sites][-2:][0]


def of_head(weights: Tensor, head: int) -> Tensor:
    """Return the weights of one head: (B, H, T, S) -> (B, T, S).

    Args:
        head: counted from 1; 0 = the mean over the heads.
    Raises: LeftOut if there are fewer heads.
    """
    if head > weights.size(1):
        raise LeftOut(f"no head {head}; it has {counted(weights.size(1), 'head')}")
    return weights[:, head - 1] if head else weights.mean(1)


class AlignmentOptions(SentenceOptions):
    """Options of `alignment`."""

    layer: str = option("", "N|NAME")
    """A layer, counted from 1, or an attention by its name (default: all; the last but one is
    drawn)."""
    head: int = option(0, "N", ge=0)
    """One head, counted from 1 (0: the mean over heads)."""
    gold: str = option("", "LINKS,PAIRS")
    """A file of gold links (i-j sure, ipj possible, counted from 1) and a file of their sentence
    pairs ('source ||| target' lines)."""


class Alignment(Analysis[AlignmentOptions, Aligned]):
    """Attention of each system on one sentence pair, and its alignment error rate on gold pairs."""

    name = "alignment"
    title = "attention and word alignment"
    reads_translations = False
    examples = ("--sentence 7 --layer 3 --head 2", "--gold enfr.gold,enfr.src-tgt")
    Options = AlignmentOptions

    def measure(self, study: Study) -> Aligned:
        options = self.options
        if options.gold and study.set_names:
            raise ConfigError(
                "--gold already names the sentence pairs",
                where="--on",
                hint="leave out one of them",
            )
        gold = links.read_gold_set(study.run.prep, options.gold) if options.gold else None
        pairs = gold.pairs if gold else None
        count = len((pairs or study.store).src_lengths)
        options.row(count)
        if pairs:
            sides = {"sources": pairs.src, "targets": pairs.tgt}
            study.warn_of_unknown(
                {name: unknown_share(map(side, range(count))) for name, side in sides.items()}
            )
        agreement: list[AgreementRow] = []

        def draw(name: str) -> Drawn:
            model = study.model(name)
            sites = select_sites(model, options.layer, gold is not None)
            if gold:
                agreement.extend(self._agreement(study, name, model, sites, gold))
            return self._drawn(study, name, model, sites, pairs)

        hint = "another --layer or --head, or a system with attention (`nmtkit variants`)"
        drawn = study.each(draw, "no system has this attention", hint)
        sentences = gold.name if gold else study.set_name
        return Aligned(sentences, count, list(drawn.values()), agreement if gold else None)

    def _drawn(
        self, study: Study, name: str, model: Model, sites: Sites, pairs: GivenPairs | None
    ) -> Drawn:
        """Return the attention of a system on the sentence pair that is drawn."""
        site = drawn_site(sites)
        row = np.array([self.options.sentence - 1])
        (batch,) = study.batches(name, model, row, pairs, with_context=pairs is None)
        recorded = recording.look(model, batch)
        weights = (recorded["decoder"] | recorded["encoder"])[site]
        matrix = of_head(weights, self.options.head)[0].double().cpu().tolist()
        writes, vocabularies = sites[site] == CROSS, load_vocabularies(study.run.prep)
        rows, columns = (
            _tokens(batch, side, count, writes, vocabularies)
            for side, count in zip(sites[site], (len(matrix), len(matrix[0])), strict=True)
        )
        return Drawn(name, site, Heat(matrix, rows, columns), writes)

    def _agreement(
        self, study: Study, name: str, model: Model, sites: Sites, gold: GoldSet
    ) -> list[AgreementRow]:
        """Return a row for each attention of a system."""
        count = len(gold.gold)
        counts = np.zeros((len(sites), count, 4))
        spread = np.full((len(sites), count), np.nan)
        for batch in study.batches(name, model, pairs=gold.pairs, with_context=False):
            assert batch.tgt_lengths is not None
            recorded, rows = recording.look(model, batch)["decoder"], batch.rows.tolist()
            for i, site in enumerate(sites):
                weights = of_head(recorded[site], self.options.head).double().cpu()
                for row, matrix in zip(rows, weights, strict=True):
                    words = gold.src_words[row], gold.tgt_words[row]
                    counts[i, row] = links.counts(links.word_links(matrix, *words), gold.gold[row])
                if (contexts := recorded.get(site + context_spread.ENDING)) is not None:
                    spread[i, rows] = context_spread.spread(contexts, batch.tgt_lengths).cpu()
        draws = study.draws(count)
        return [
            (name, site, links.rates(counts[i], draws), mean(spread[i], draws))
            for i, site in enumerate(sites)
        ]

    def present(self, result: Aligned) -> Finding:
        options = self.options
        head = f"head {options.head}" if options.head else "the mean over heads"
        pairs = counted(result.pairs, "sentence pair")
        where = f"{result.sentences}, line {options.sentence}"
        heats = {f"{drawn.system}, {drawn.attention}": drawn.weights for drawn in result.drawn}
        bars = [f"{label} ({where}; {head})\n{heat(panel)}" for label, panel in heats.items()]
        return Finding(
            table=(
                _strongest_table(result.drawn, where, head)
                if result.agreement is None
                else _agreement_table(result.agreement, f"{result.sentences}, {pairs}", head)
            ),
            text=(
                "Each row of a heat map sums to 1. Attention is not an alignment: it may read "
                "a word's neighbours, or </s>. A low error rate shows that a layer reads the "
                "words it translates. A high error rate does not show that the translation is "
                "bad."
            ),
            figure=figures.heat_map(heats, "read", "written"),
            bars="\n\n".join(bars),
            facts={"sentences": result.sentences},
            attachments={
                f"weights.{drawn.system}.{drawn.attention}.csv": _csv(drawn.weights)
                for drawn in result.drawn
            },
        )


def _csv(weights: Heat) -> str:
    """Return weights as CSV, with the names of rows and columns."""
    rows = ([row, *values] for row, values in zip(weights.rows, weights.values, strict=True))
    return csv_text([["", *weights.columns], *rows])


def _tokens(
    batch: Batch, side: str, count: int, writes: bool, vocabularies: tuple[Vocabulary, Vocabulary]
) -> list[str]:
    """Return the names of the queries or keys of an attention, for a batch of one pair.

    Args:
        side: "source", "target", or "" for other positions, which are numbered.
        count: the number of queries or keys.
        writes: name a target step by the token that it writes, not by the token that it reads.
    """
    assert batch.tgt_in is not None and batch.tgt_out is not None
    if side == "target":
        target = batch.tgt_out if writes else batch.tgt_in
        return [vocabularies[1][i] for i in target[0].tolist()]
    if side != "source":
        return [str(i + 1) for i in range(count)]
    ids = batch.src[0].tolist()
    if count > len(ids) and batch.context is not None:  # context and source are one text
        row = int(batch.context.rows[0, 0])
        context = batch.context.ids[row, : int(batch.context.lengths[row]) - 1].tolist()
        ids = [*context, BREAK, *ids]
    return ["####" if i == BREAK else vocabularies[0][i] for i in ids]


def _strongest_table(drawn: Sequence[Drawn], where: str, head: str) -> Table:
    """Return a table with a row for each query: the key with its largest weight."""
    rows = []
    for attention in drawn:
        panel = attention.weights
        for number, (token, weights) in enumerate(zip(panel.rows, panel.values, strict=True), 1):
            key, weight = max(zip(panel.columns, weights, strict=True), key=itemgetter(1))
            rows.append([attention.system, attention.attention, number, token, key, weight])
    columns = [
        *text_columns("system", "attention"),
        Column("position", "position"),
        *text_columns("query"),
        text_column("key", "attends most to"),
        Column("weight", "weight", decimals=3),
    ]
    notes = [
        "the query is the target token that the step writes; the target is the reference"
    ] * any(attention.writes for attention in drawn)
    title = f"Strongest weight of each query, {head} ({where})"
    return Table("alignment", title, columns, rows, notes)


def _agreement_table(agreement: Sequence[AgreementRow], name: str, head: str) -> Table:
    rows = [[system, attention, *rates, spread] for system, attention, rates, spread in agreement]
    columns = [
        *text_columns("system", "attention"),
        Column("links", "links"),
        interval_column("precision", "precision", 1),
        interval_column("recall", "recall", 1),
        interval_column("aer", "AER", 1),
        interval_column("context_spread", "context spread", 3),
    ]
    notes = [
        "AER: 1 - (|A∩S| + |A∩P|) / (|A| + |S|) over the whole set, in %; lower is better",
        (
            "attention: each target word is aligned to the source word with the largest "
            "weight at the step that writes it; weights are summed over a word's subwords, "
            "without </s>"
        ),
        (
            f"{context_spread.NOTE}, of all heads ({context_spread.GATED}: `analyze importance` has"
            " the spread with even weights beside it)"
        ),
        interval_note("of the sentence pairs"),
    ]
    title = f"Agreement with gold word alignments, {head} ({name})"
    return Table("alignment", title, columns, rows, notes)
