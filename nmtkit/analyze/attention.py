"""Analysis `attention`: what each system attends to in its own translations, for the sentence
explorer of the report.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.analyze.alignment import chosen_sites, of_head, shown_site
from nmtkit.analyze.analysis import Analysis, Finding, LeftOut, Options, option
from nmtkit.analyze.shared import recording
from nmtkit.analyze.study import Study
from nmtkit.data.batches import collate
from nmtkit.data.spans import Spans
from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.score.translations import bleu_of, translated_systems
from nmtkit.tables.table import Column, Table
from nmtkit.text.vocabulary import EOS, SPECIALS, Vocabulary, load_vocabularies


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
    """The attention of one system on some sentences of a set."""

    system: str
    what: str
    """Which attention, and which heads."""
    set_name: str
    sentences: dict[int, SentenceAttention]
    """By line, from 0."""


class Translated:
    """A prepared set whose target side is a system's output, as batching reads it.

    Args:
        store: the set; subwords: the tokens of each output; vocabulary: of the target.
    """

    def __init__(
        self, store: Store, subwords: Sequence[Sequence[str]], vocabulary: Vocabulary
    ) -> None:
        self.src, self.src_lengths, self.documents = store.src, store.src_lengths, store.documents
        self.spans: Spans | None = store.spans
        self._targets = [np.array(vocabulary.encode(tokens), dtype=np.int64) for tokens in subwords]
        self.tgt_lengths = np.array([len(target) for target in self._targets], dtype=np.int64)

    def tgt(self, i: int) -> NDArray[Any]:
        """Return the target ids of pair i, </s> last."""
        return self._targets[i]


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
    path = study.run.system(name).translation(study.set_name) / "hyp.subwords.txt"
    subwords = [line.split(" ") if line else [] for line in files.text_lines(path)]
    store = study.store
    if len(subwords) != len(store):
        hint = f"nmtkit translate --force --system {name} --set-name {study.set_name}"
        raise DataError(
            f"{len(subwords):,} lines of subwords for {len(store):,} sentences",
            where=path,
            hint=hint,
        )
    model = study.model(name)
    sites = chosen_sites(model, "", True, study.device)
    if not sites:
        raise LeftOut("it does not attend to the source")
    site = shown_site(sites)
    src_vocabulary, tgt_vocabulary = load_vocabularies(study.run.prep)
    pairs = Translated(store, subwords, tgt_vocabulary)
    order = sorted(
        (i for i in lines if subwords[i] and store.src_lengths[i] > 1),
        key=lambda i: (-store.src_lengths[i], i),
    )
    sentences: dict[int, SentenceAttention] = {}
    with console.progress(f"{name}: attention", len(order)) as done:
        while order:
            size = max(1, recording.POSITIONS // int(store.src_lengths[order[0]]))
            rows, order = order[:size], order[size:]
            batch = collate(pairs, np.array(rows), study.device, model.context_rule, pairs.tgt)
            weights = of_head(recording.look(model, batch)["decoder"][site], 0).float().cpu()
            if weights.size(-1) != batch.src.size(1):
                raise LeftOut(
                    "it attends to more than its source, so its attention cannot be shown beside"
                    " the source"
                )
            for i, matrix in zip(rows, weights, strict=True):
                src, tgt = (
                    [src_vocabulary[k] for k in store.src(i).tolist()],
                    [
                        *subwords[i],
                        SPECIALS[EOS],
                    ],
                )
                sentences[i] = SentenceAttention(src, tgt, matrix[: len(tgt), : len(src)].tolist())
            done(len(rows))
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
        rows = [[one.system, one.what, len(one.sentences)] for one in result]
        columns = [
            Column("system", "system", left=True),
            Column("attention", "attention", left=True),
        ]
        columns += [Column("sentences", "sentences")]
        return Finding(
            table=Table(
                "attention",
                f"Attention kept for the explorer ({result[0].set_name})",
                columns,
                rows,
            ),
            text=(
                "The sentence explorer of `nmtkit report` shows these weights, each system's on its"
                " own translation. Attention says what was read at a step, not why a word was"
                " chosen."
            ),
            facts={"set": result[0].set_name},
            attachments={
                f"{one.system}.json": json.dumps(asdict(one), ensure_ascii=False) + "\n"
                for one in result
            },
        )
