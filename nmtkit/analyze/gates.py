"""Analysis `gates`: how open a content-adaptive gate is, by word, frequency and part of speech."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nmtkit import console
from nmtkit.analyze.analysis import Analysis, Finding, Options, option
from nmtkit.analyze.study import Study, interval_note
from nmtkit.arrays import Floats, Ints
from nmtkit.data.batches import Batch
from nmtkit.errors import ConfigError, DataError
from nmtkit.measures import recording
from nmtkit.measures.words import (
    TOP,
    Group,
    Words,
    groups,
    read_tags,
    read_words,
    training_counts,
)
from nmtkit.models.base import Model
from nmtkit.nn.masks import real_positions
from nmtkit.score.resampling import Draws, ratios
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, interval_column, text_column, text_columns
from nmtkit.text.tokenizer import Side

ENDING, OF_CONTEXT = "_gate", ".gate"
"""The endings of the names of gates, and of gates to other sentences (`nmtkit.nn.capture`)."""
SIDES: dict[Side, str] = {"src": "source", "tgt": "target"}


def gates_of(model: Model) -> dict[str, Side]:
    """Return the gates that a model records: site -> the side whose subwords it belongs to.

    Warns of a gate with another shape, and leaves it out.
    """
    source, target = recording.PROBE
    shapes: dict[Any, Side] = {(source,): "src", (target,): "tgt", (target, source): "src"}
    sides: dict[str, Side] = {}
    for recorded in recording.probed(model).values():
        for site, value in recorded.items():
            if not site.endswith((ENDING, OF_CONTEXT)):
                continue
            if side := shapes.get(tuple(value.shape[1:])):
                sides[site] = side
            else:
                console.warn(
                    f"gate '{site}' left out: record the mean over its numbers, as (B, S), (B, T)"
                    " or (B, T, S) (nmtkit/nn/capture.py)"
                )
    return sides


def subword_gates(opened: Tensor, batch: Batch, site: str, side: Side) -> list[Floats]:
    """Return how open a gate is for each subword of each sentence, without </s>.

    Args:
        opened: what the gate recorded, one of
            (B, T, S): source positions at each step. The result is the mean over the steps that
                use the gate.
            (B, S): source positions.
            (B, T) at NAME_gate: the gate between the previous word and the context. It counts for
                the previous word.
            (B, T) at NAME.gate: the gate between a step and other sentences. It counts for the word
                of the step.
        site: the name of the gate; side: the side of its subwords.
    Returns: values; NaN where the gate is never used.
    Source: Im & Chan 2024, the gate l of Eq. 5d (CAAtt) and of the cell in Algorithm 1 (CAEmbed).
    """
    assert batch.tgt_lengths is not None
    opened = opened.double()
    if opened.dim() == 3:
        real = real_positions(batch.tgt_lengths, opened.size(1))
        opened = opened.masked_fill(~real.unsqueeze(-1), torch.nan).nanmean(1)
    lengths = batch.src_lengths if side == "src" else batch.tgt_lengths
    first = 1 if side == "tgt" and not site.endswith(OF_CONTEXT) else 0
    rows = zip(opened.cpu().numpy(), lengths.tolist(), strict=True)
    return [row[first : first + length - 1] for row, length in rows]


def word_gates(
    study: Study, name: str, model: Model, sides: Mapping[str, Side], words: Mapping[Side, Words]
) -> dict[str, Floats]:
    """Return how open each gate is for each word of the set (N): the mean over its subwords.

    Args:
        name: the system; model: its model.
        sides: site -> side, for the gates of all systems.
        words: side -> the words of the set.
    Returns: site -> values; NaN where the system does not use the gate.
    """
    values = {
        site: [np.full(len(line), np.nan) for line in words[side].lines]
        for site, side in sides.items()
    }
    for batch in study.batches(name, model):
        recorded = recording.look(model, batch)
        gates = recorded["encoder"] | recorded["decoder"]
        for site in sides.keys() & gates.keys():
            by_sentence = subword_gates(gates[site], batch, site, sides[site])
            owners = words[sides[site]].owners
            for row, of_subwords in zip(batch.rows.tolist(), by_sentence, strict=True):
                values[site][row] = word_means(of_subwords, owners[row])
    return {site: np.concatenate(lines) for site, lines in values.items()}


def word_means(of_subwords: Floats, owners: Ints) -> Floats:
    """Return the mean over the subwords of each word of a line.

    Args:
        of_subwords: a number for each subword; owners: the word of each subword.
    """
    return np.bincount(owners, of_subwords) / np.bincount(owners)


def group_means(
    values: Floats, words: Words, word_groups: Sequence[Group], draws: Draws
) -> list[Estimate]:
    """Return the mean of the values in each group of words, with an interval over resampled
    sentences.
    """
    sums, counts = [], []
    for group in word_groups:
        members = group.members & np.isfinite(values)
        sentences = words.sentences[members]
        sums.append(np.bincount(sentences, values[members], draws.sentences))
        counts.append(np.bincount(sentences, minlength=draws.sentences))
    return ratios(np.stack(sums, axis=1), np.stack(counts, axis=1), draws)


def openings(model: Model) -> list[str]:
    """Return what the open gates of a model do: the attributes `opens` of its modules."""
    return [opens for module in model.modules() if (opens := getattr(module, "opens", ""))]


def meanings(opens: Mapping[str, Iterable[str]]) -> list[str]:
    """Return a text for each thing that open gates do, with the names of its systems.

    Args:
        opens: system -> its `openings`.
    """
    systems: dict[str, list[str]] = {}
    for name, texts in opens.items():
        for meaning in dict.fromkeys(texts):
            systems.setdefault(meaning, []).append(name)
    return [f"{meaning} ({', '.join(names)})" for meaning, names in systems.items()]


class GatesOptions(Options):
    """Options of `gates`."""

    src_tags: str = option("", "FILE")
    """A file with a part of speech for each source word of the set. The words are in
    analyze/gates/tokens.src.txt."""
    tgt_tags: str = option("", "FILE")
    """The same for the words of the reference, which are in tokens.tgt.txt."""


class GateMean(NamedTuple):
    """How open one gate is in one group of words."""

    site: str
    side: str
    section: str
    label: str
    occurrences: int
    means: dict[str, Estimate]
    """By system."""


@dataclass(frozen=True)
class GateMeans:
    """How open the gates of some systems are on the words of a set.

    Attributes:
        set_name: the set; sentences: the number of its sentences.
        gates: system -> site -> the side whose words the gate belongs to.
        meanings: what open gates do.
        rows: the means of each gate in each group of words.
        tokens: side -> the words of each sentence.
    """

    set_name: str
    sentences: int
    gates: dict[str, dict[str, Side]]
    meanings: list[str]
    rows: list[GateMean]
    tokens: dict[Side, list[list[str]]]


class Gates(Analysis[GatesOptions, GateMeans]):
    """How open the gates of each system are."""

    name = "gates"
    title = "how open gates are, by word"
    reads_translations = False
    examples = ("--src-tags test.en.pos",)
    Options = GatesOptions

    def measure(self, study: Study) -> GateMeans:
        run, store = study.run, study.store
        gated = study.models_with(gates_of, "gates", lambda _, model, sites: (model, sites))
        sides = {site: side for _, sites in gated.values() for site, side in sites.items()}
        words = {side: read_words(run, store, side) for side in dict.fromkeys(sides.values())}
        tags = self._tags(words)
        word_groups = {
            side: groups(of_side, training_counts(run, side, of_side, store), tags.get(side))
            for side, of_side in words.items()
        }
        if blank := [SIDES[side] for side in words if not word_groups[side]]:
            read = " and ".join(blank)
            message = f"gates are measured on {read} words, and this set has only blank lines there"
            raise DataError(message, where=f"--on {study.set_name}", hint="name another set")
        draws = study.draws(len(store))
        values = {
            name: word_gates(study, name, model, sides, words) for name, (model, _) in gated.items()
        }
        rows = []
        for site, side in sides.items():
            columns = [
                group_means(opened[site], words[side], word_groups[side], draws)
                for opened in values.values()
            ]
            for group, *means in zip(word_groups[side], *columns, strict=True):
                about = site, SIDES[side], group.section, group.label, int(group.members.sum())
                rows.append(GateMean(*about, dict(zip(values, means, strict=True))))
        return GateMeans(
            study.set_name,
            len(store),
            {name: sites for name, (_, sites) in gated.items()},
            meanings({name: openings(model) for name, (model, _) in gated.items()}),
            rows,
            {side: of_side.lines for side, of_side in words.items()},
        )

    def _tags(self, words: Mapping[Side, Words]) -> dict[Side, list[str]]:
        """Return the tags of the words of each side that has a file of tags.

        Raises: ConfigError for tags of a side without a gate.
        """
        tags = {}
        for side in SIDES:
            if not (file := getattr(self.options, f"{side}_tags")):
                continue
            if side not in words:
                message = f"no system has a gate on {SIDES[side]} words"
                raise ConfigError(message, where=f"--{side}-tags", hint="leave it out")
            tags[side] = read_tags(Path(file), words[side], side)
        return tags

    def present(self, result: GateMeans) -> Finding:
        figure, *more = _figures(result).items()
        attachments = {f"figure.{site}.svg": svg for site, svg in more if svg}
        for side, lines in result.tokens.items():
            attachments[f"tokens.{side}.txt"] = "".join(" ".join(line) + "\n" for line in lines)
        return Finding(
            table=_table(result),
            text=(
                "0 keeps the old state, 1 replaces it by the new one. If a gate has learned "
                "which words carry content, nouns and verbs differ from articles, prepositions "
                "and punctuation. Compare words inside a column; the level of a whole column "
                "belongs to the model. Gates on other sentences (NAME.gate) work the other way "
                "round: 1 keeps the word's own state, so words that depend on context have low "
                "values."
            ),
            figure=figure[1],
            facts={"sentences": result.sentences, "gates": result.gates},
            attachments=attachments,
        )


def _table(result: GateMeans) -> Table:
    columns = [
        *text_columns("gate", "side", "group"),
        text_column("label", ""),
        Column("occurrences", "occurrences"),
        *(interval_column(name, name, 3) for name in result.gates),
    ]
    rows = [[*about, *of_systems.values()] for *about, of_systems in result.rows]
    notes = [
        (
            "how open a gate is: mean over its dimensions, 0 to 1, with the reference as "
            "target; source word: mean over the target steps at which the gate acts; "
            "target word: its value at the following step, where the gate lets the context "
            "in"
        ),
        (
            "a word's value is the mean over its subwords, a row's the mean over its "
            f"occurrences; words: the {TOP} most frequent types of this set, tokenized and "
            "truecased, without </s> and other special tokens; frequency: how often the "
            "type occurs in the prepared training text"
        ),
        interval_note(),
        *result.meanings,
        (
            "tokens.src.txt and tokens.tgt.txt beside this table hold the words; "
            "--src-tags and --tgt-tags give one tag for each"
        ),
    ]
    return Table("gates", f"How open gates are, by word ({result.set_name})", columns, rows, notes)


def _figures(result: GateMeans) -> dict[str, str | None]:
    """Return the figure of each gate: its means of the most frequent words."""
    images = {}
    for site in dict.fromkeys(row.site for row in result.rows):
        words = [row for row in result.rows if row.site == site and row.section == "word"]
        systems = [name for name, sites in result.gates.items() if site in sites]
        images[site] = figures.grouped_bars(
            [row.label for row in words],
            {name: [row.means[name] for row in words] for name in systems},
            f"most frequent {words[0].side} words",
            f"{site}, 0 to 1",
            upright=True,
        )
    return images
