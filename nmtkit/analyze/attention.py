"""Analysis `attention`: what each system attends to in its own translations, for the sentence
explorer of the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field

from nmtkit.analyze.alignment import drawn_site, of_head
from nmtkit.analyze.analysis import Analysis, Finding, Options, option
from nmtkit.analyze.study import Study
from nmtkit.data.pairs import GivenPairs
from nmtkit.errors import LeftOut
from nmtkit.measures import recording
from nmtkit.records import Record
from nmtkit.run import translate_command
from nmtkit.score.translations import bleu_of, current_translations, lines_of
from nmtkit.tables.table import Column, Table, text_columns
from nmtkit.text.vocabulary import EOS, SPECIALS, load_vocabularies


class AttentionOptions(Options):
    """Options of `attention`."""

    sentences: int = option(200, "N", ge=1)
    """The number of sentences; those on which the systems differ most are taken."""


@dataclass(frozen=True)
class SentenceAttention:
    """The tokens of a sentence pair, and the attention (T, S) of target tokens to source tokens."""

    src: list[str]
    tgt: list[str]
    weights: list[list[float]]

    def __post_init__(self) -> None:
        if list(map(len, self.weights)) != [len(self.src)] * len(self.tgt):
            raise ValueError("'weights' are not those of 'src' and 'tgt'")


class SystemAttention(Record):
    """The attention of one system on some sentences of a set.

    It is stored as analyze/attention/SYSTEM.attention.json.

    Attributes:
        site: the name of the attention, and how its heads are combined.
        sentences: line (from 0) -> attention.
    """

    again: ClassVar[str] = "nmtkit analyze attention --force"
    format: Literal[1] = 1
    system: str
    site: str = Field(validation_alias=AliasChoices("site", "what"))
    set_name: str
    sentences: dict[int, SentenceAttention]


def lines_that_differ(study: Study, count: int) -> list[int]:
    """Return the lines (from 0, sorted) on which sentence BLEU of the run's systems differs most.
    If lines differ equally, the first of them are taken.
    """
    folders = current_translations(study.run, study.set_name)
    scores = bleu_of(study.run, study.text_set, folders)
    bleu = np.stack([metric.sentence_scores() for metric in scores.values()])
    spread = bleu.max(0) - bleu.min(0)
    return sorted(np.argsort(-spread, kind="stable")[:count].tolist())


def attention_of(study: Study, name: str, lines: Sequence[int]) -> SystemAttention:
    """Return the attention of a system to the source at each token of its translation: the mean
    over the heads of its last layer but one.

    Args:
        name: a system that has translated the set.
        lines: the lines to read, from 0. Lines with an empty translation are left out.
    Raises: DataError if a line of the translation is missing; LeftOut if the translation has no
        subwords, or if the system does not attend to the source alone.
    """
    store, set_name = study.store, study.set_name
    path = study.run.system(name).translation(set_name) / "hyp.subwords.txt"
    hint = f"{translate_command(name, set_name)} --force{study.run.needed_option}"
    if not path.is_file():
        raise LeftOut(f"its translation of {set_name} has no {path.name}", where=path, hint=hint)
    written = lines_of(path, len(store), hint)
    subwords = [line.split(" ") if line else [] for line in written]
    model = study.model(name)
    site = drawn_site(recording.cross_sites(model))
    src_vocabulary, tgt_vocabulary = load_vocabularies(study.run.prep)
    src, tgt = map(store.src, range(len(store))), map(tgt_vocabulary.encode, subwords)
    pairs = GivenPairs(list(src), list(tgt), store.spans, store.documents)
    rows = np.array([i for i in lines if subwords[i]], dtype=np.int64)
    sentences = {}
    for batch in study.batches(name, model, rows, pairs):
        weights = of_head(recording.look(model, batch)["decoder"][site], 0).float().cpu()
        recording.check_positions(weights, batch)
        for i, matrix in zip(batch.rows.tolist(), weights, strict=True):
            read = [src_vocabulary[k] for k in pairs.src(i).tolist()]
            tokens = [*subwords[i], SPECIALS[EOS]]
            real = matrix[: len(tokens), : len(read)].tolist()
            sentences[i] = SentenceAttention(read, tokens, real)
    site += ", mean over heads"
    return SystemAttention(system=name, site=site, set_name=set_name, sentences=sentences)


class Attention(Analysis[AttentionOptions, list[SystemAttention]]):
    """The attention of each system on its own translations, for the report's sentence explorer."""

    name = "attention"
    title = "what systems attend to in their translations"
    reads_all_translations = True  # they choose the sentences
    examples = ("--sentences 50",)
    Options = AttentionOptions

    def measure(self, study: Study) -> list[SystemAttention]:
        translated = study.translations()
        lines = lines_that_differ(study, self.options.sentences)

        def measured(name: str) -> SystemAttention:
            if name not in translated:
                raise LeftOut(f"it has no translation of {study.set_name}")
            return attention_of(study, name, lines)

        hint = "name systems that attend to the source: --system NAME"
        return list(study.each(measured, "no attention to show", hint).values())

    def present(self, result: list[SystemAttention]) -> Finding:
        set_name = result[0].set_name
        rows = [[system.system, system.site, len(system.sentences)] for system in result]
        columns = [*text_columns("system", "attention"), Column("sentences", "sentences")]
        title = f"Attention kept for the explorer ({set_name})"
        return Finding(
            table=Table("attention", title, columns, rows),
            text=(
                "The sentence explorer of `nmtkit report` shows these weights, each system's "
                "on its own translation. Attention shows what a step read, not why it chose a "
                "word."
            ),
            attachments={
                f"{system.system}.attention.json": system.model_dump_json() + "\n"
                for system in result
            },
        )
