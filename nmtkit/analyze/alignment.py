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
"""System, attention, its error rate on gold pairs, and how far apart its contexts lie."""


@dataclass(frozen=True)
class Drawn:
    """One attention of one system on the sentence pair that is drawn.

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
        drawn: the attentions that are drawn.
        agreement: a row for each attention and each file of links; None without gold links.
    """

    sentences: str
    pairs: int
    drawn: list[Drawn]
    agreement: list[AgreementRow] | None


def select_sites(model: Model, layer: str, only_cross: bool) -> Sites:
    """Return the attentions from target to source of all layers or of one, or any attention by its
    name.

    Raises: LeftOut for a model without such a layer or attention, naming those that it has.
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
        message = f"'{layer}' is no attention from the target to the source, so it aligns nothing"
        raise LeftOut(f"{message}, known: {', '.join(cross)}")
    known = nearest(layer, layers.values() if layer.isdecimal() else sites)
    raise LeftOut(f"no layer '{layer}', {known}")


def drawn_site(sites: Iterable[str]) -> str:
    """Return the attention that is drawn: the last but one."""
    return [*sites][-2:][0]


def of_head(weights: Tensor, head: int) -> Tensor:
    """Return one head's weights, counted from 1, or the mean over heads for 0: (B, H, T, S) -> (B,
    T, S).

    Raises: LeftOut if there are fewer heads.
    """
    if head > weights.size(1):
        raise LeftOut(f"no head {head}, there are {weights.size(1)} heads")
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
    """The attention of each system on a sentence pair, and its alignment error rate on gold
    pairs.
    """

    name = "alignment"
    title = "attention and word alignment"
    reads_translations = False
    examples = ("--sentence 7 --layer 3 --head 2", "--gold enfr.gold,enfr.src-tgt")
    Options = AlignmentOptions

    def measure(self, study: Study) -> Aligned:
        options = self.options
        if options.gold and study.set_names:
            raise ConfigError(
                "the sentences are those of --gold", where="--on", hint="leave out one of them"
            )
        gold = links.read_gold_set(study.run.prep, options.gold) if options.gold else None
        pairs = gold.pairs if gold else None
        count = len((pairs or study.store).src_lengths)
        options.row(count)
        if pairs:
            rows = range(count)
            sides = {"sources": map(pairs.src, rows), "targets": map(pairs.tgt, rows)}
            study.warn_of_unknown({side: unknown_share(ids) for side, ids in sides.items()})
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
        (batch,) = study.batches(name, model, np.array([self.options.sentence - 1]), pairs)
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
        """Return the error rate of each attention on the gold pairs, and the spread of its
        contexts.
        """
        count = len(gold.gold)
        counts = {site: np.zeros((count, 4)) for site in sites}
        spread = {site: np.full(count, np.nan) for site in sites}
        for batch in study.batches(name, model, pairs=gold.pairs):
            assert batch.tgt_lengths is not None
            recorded, rows = recording.look(model, batch)["decoder"], batch.rows.tolist()
            for site in sites:
                weights = of_head(recorded[site], self.options.head).double().cpu()
                for row, matrix in zip(rows, weights, strict=True):
                    words = gold.src_words[row], gold.tgt_words[row]
                    aligned = links.word_links(matrix, *words)
                    counts[site][row] = links.counts(aligned, gold.gold[row])
                if (contexts := recorded.get(site + context_spread.ENDING)) is not None:
                    values = context_spread.spread(contexts, batch.tgt_lengths)
                    spread[site][rows] = values.cpu().numpy()
        draws = study.draws(count).full
        return [
            (name, site, links.rates(counts[site], draws), mean(spread[site], draws))
            for site in sites
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
    """Return weights with the names of rows and columns as the text of a CSV file."""
    rows = ([row, *values] for row, values in zip(weights.rows, weights.values, strict=True))
    return csv_text([["", *weights.columns], *rows])


def _tokens(
    batch: Batch, side: str, count: int, writes: bool, vocabularies: tuple[Vocabulary, Vocabulary]
) -> list[str]:
    """Name the `count` queries or keys of an attention in the one pair of a batch.

    Args:
        side: "source", "target", or "" for numbers.
        writes: name target steps by the tokens that they write, not by those that they read.
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
    """Return a row for each query: the key with its largest weight."""
    rows = []
    for attention in drawn:
        about, weights = (attention.system, attention.attention), attention.weights
        for number, (token, values) in enumerate(zip(weights.rows, weights.values, strict=True), 1):
            key, weight = max(zip(weights.columns, values, strict=True), key=itemgetter(1))
            rows.append([*about, number, token, key, weight])
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
