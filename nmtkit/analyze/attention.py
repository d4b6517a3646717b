"""Analysis `attention`: what each system attends to in its own translations, for the sentence
explorer of the report.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from nmtkit import console, files
from nmtkit.analyze.alignment import drawn_site, of_head
from nmtkit.analyze.analysis import Analysis, Finding, LeftOut, Options, option
from nmtkit.analyze.shared import recording
from nmtkit.analyze.shared.presenting import text_columns
from nmtkit.analyze.study import Study
from nmtkit.errors import DataError
from nmtkit.score.translations import bleu_of, translated_systems
from nmtkit.tables.table import Column, Table
from nmtkit.text.vocabulary import EOS, SPECIALS, load_vocabularies
from nmtkit.translate.forced import GivenPairs


class AttentionOptions(Options):
    """Options of `attention`."""

    sentences: int = option(200, "N", ge=1)
    """Only so many sentences, those on which the systems differ most."""


@dataclass(frozen=True)
class SentenceAttention:
    """One sentence as a system reads it: tokens of both sides, and weights (T, S) of target
    tokens on source tokens.
    """

    src: list[str]
    tgt: list[str]
    weights: list[list[float]]


@dataclass(frozen=True)
class SystemAttention:
    """The attention of one system on some sentences of a set.

    Attributes:
        what: which attention, and which heads.
        sentences: by line, from 0.
    """

    system: str
    what: str
    set_name: str
    sentences: dict[int, SentenceAttention]


def lines_that_differ(study: Study, count: int) -> list[int]:
    """Return the lines on which sentence BLEU of all systems lies farthest apart, the first ones
    among equals, in order.
    """
    scores = bleu_of(study.run, study.text_set, translated_systems(study.run, study.text_set, []))
    bleu = np.stack([metric.sentence_scores() for metric in scores.values()])
    spread = bleu.max(0) - bleu.min(0)
    return sorted(np.argsort(-spread, kind="stable")[:count].tolist())


def attention_of(study: Study, name: str, lines: Sequence[int]) -> SystemAttention:
    """Return how a system reads the source at each token of its translation: mean over the heads of
    its last layer but one.

    Args:
        name: a system that has translated the set.
        lines: from 0; empty sources and outputs are left out.
    Raises: DataError if its translation lacks subwords; LeftOut if it does not attend to the source
        alone.
    """
    path, store = study.run.system(name).translation(study.set_name), study.store
    path /= "hyp.subwords.txt"
    subwords = [line.split(" ") if line else [] for line in files.text_lines(path)]
    if len(subwords) != len(store):
        hint = f"nmtkit translate --force --system {name} --set-name {study.set_name}"
        message = f"{len(subwords):,} lines of subwords for {len(store):,} sentences"
        raise DataError(message, where=path, hint=hint)
    model = study.model(name)
    site = drawn_site(recording.cross_sites(model, study.device))
    src_vocabulary, tgt_vocabulary = load_vocabularies(study.run.prep)
    pairs = GivenPairs(
        [store.src(i) for i in range(len(store))],
        [tgt_vocabulary.encode(tokens) for tokens in subwords],
        store.spans,
        store.documents,
    )
    rows = [i for i in lines if subwords[i] and store.src_lengths[i] > 1]
    order = np.array(sorted(rows, key=lambda i: -store.src_lengths[i]), dtype=np.int64)
    sentences: dict[int, SentenceAttention] = {}
    with console.progress(f"{name}: attention", len(rows)) as advance:
        for batch in recording.ordered_batches(pairs, study.device, model.context_rule, order):
            weights = of_head(recording.look(model, batch)["decoder"][site], 0).float().cpu()
            if weights.size(-1) != batch.src.size(1):
                raise LeftOut(
                    "it attends to more than the source, so its attention cannot be shown beside "
                    "the source"
                )
            for i, matrix in zip(batch.rows.tolist(), weights, strict=True):
                src = [src_vocabulary[k] for k in pairs.src(i).tolist()]
                tgt = [*subwords[i], SPECIALS[EOS]]
                sentences[i] = SentenceAttention(src, tgt, matrix[: len(tgt), : len(src)].tolist())
            advance(len(batch.rows))
    return SystemAttention(name, f"{site}, mean over heads", study.set_name, sentences)


class Attention(Analysis[AttentionOptions, list[SystemAttention]]):
    """The attention of each system on its own translations, kept for the report's sentence
    explorer.
    """

    name = "attention"
    title = "what systems attend to in their translations"
    examples = ("--sentences 50",)
    Options = AttentionOptions

    def measure(self, study: Study) -> list[SystemAttention]:
        lines = lines_that_differ(study, self.options.sentences)
        translated = study.translations()

        def measured(name: str) -> SystemAttention:
            if name not in translated:
                raise LeftOut(f"it has no translation of {study.set_name}")
            return attention_of(study, name, lines)

        hint = "name systems that attend to the source: --system NAME"
        return list(study.each(measured, "no attention to show", hint).values())

    def present(self, result: list[SystemAttention]) -> Finding:
        set_name = result[0].set_name
        rows = [[system.system, system.what, len(system.sentences)] for system in result]
        columns = [*text_columns("system", "attention"), Column("sentences", "sentences")]
        title = f"Attention kept for the explorer ({set_name})"
        return Finding(
            table=Table("attention", title, columns, rows),
            text=(
                "The sentence explorer of `nmtkit report` shows these weights, each system's "
                "on its own translation. Attention shows what a step read, not why it chose a "
                "word."
            ),
            facts={"set": set_name},
            attachments={
                f"{system.system}.json": json.dumps(asdict(system), ensure_ascii=False) + "\n"
                for system in result
            },
        )
