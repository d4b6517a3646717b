"""Analysis `weights`: what each source word of one sentence weighs in gated attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nmtkit.analyze.analysis import Analysis, Finding, SentenceOptions
from nmtkit.analyze.gates import ENDING, meanings, openings, word_means
from nmtkit.analyze.study import Study
from nmtkit.arrays import Array, Floats, Ints
from nmtkit.data.batches import Batch
from nmtkit.measures import recording
from nmtkit.measures.words import read_words
from nmtkit.models.base import Model
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, text_column

END = "</s>"


class WordWeights(NamedTuple):
    """The weights of the source words of a sentence (N), </s> the last, over the target's steps.

    Attributes:
        attention: sum over the steps and a word's subwords.
        gate: how open it is, mean over the steps that use it and a word's subwords.
        weighted: attention times gate, summed as attention is; a step without gate adds nothing.
    """

    attention: Array
    gate: Array
    weighted: Array


def attentions_of(model: Model) -> list[str]:
    """Return the sites of attention whose source positions have gates."""
    recorded = recording.probed(model)["decoder"]
    words = recording.PROBE[::-1]  # T, S
    gates = {site for site, opened in recorded.items() if opened.shape[1:] == words}
    return [site for site, w in recorded.items() if w.dim() == 4 and site + ENDING in gates]


def of_words(alpha: Floats, opened: Floats, owners: Ints) -> WordWeights:
    """Return what words weigh.

    Args:
        alpha, opened: attention and gate (T, S), NaN where the gate is not used.
        owners: the word of each subword (S - 1); the last position is </s>.
    Source: Im & Chan 2024, Table 3. It does not say how a word's steps are put together; their mean
        is this sum divided by T.
    """
    owners = np.append(owners, owners[-1] + 1 if len(owners) else 0)
    used = np.isfinite(opened)
    opened = np.where(used, opened, 0)
    with np.errstate(invalid="ignore"):
        gate = opened.sum(0) / used.sum(0)
    weighted = (alpha * opened).sum(0)
    return WordWeights(
        np.bincount(owners, alpha.sum(0)), word_means(gate, owners), np.bincount(owners, weighted)
    )


def measured(model: Model, site: str, batch: Batch, owners: Ints) -> WordWeights:
    """Return what the words of the one sentence of a batch weigh at a site, mean over heads."""
    recorded = recording.look(model, batch)["decoder"]
    alpha, opened = recorded[site][0].mean(0), recorded[site + ENDING][0]
    return of_words(alpha.double().cpu().numpy(), opened.double().cpu().numpy(), owners)


@dataclass(frozen=True)
class SentenceWeights:
    """The weights of the source words of one sentence, by system.

    Attributes:
        set_name: the set of the sentence.
        words: of the source, </s> last.
        steps: target tokens of the reference.
        weights: by system; by system and site if a system has several sites.
        meanings: what an open gate does.
    """

    set_name: str
    words: list[str]
    steps: int
    weights: dict[str, WordWeights]
    meanings: list[str]


class Weights(Analysis[SentenceOptions, SentenceWeights]):
    """What each source word of a sentence weighs, by system, with the reference given."""

    name = "weights"
    title = "what each source word weighs in gated attention"
    reads_translations = False
    examples = ("--sentence 7",)
    Options = SentenceOptions

    def measure(self, study: Study) -> SentenceWeights:
        store = study.store
        row = self.options.row(len(store))
        words = read_words(study.run, store, "src")
        weights = {}

        def weigh(name: str, model: Model, sites: list[str]) -> list[str]:
            (batch,) = study.batches(name, model, np.array([row]))
            for site in sites:
                label = f"{name}, {site}" if len(sites) > 1 else name
                weights[label] = measured(model, site, batch, words.owners[row])
            return openings(model)

        opens = study.models_with(attentions_of, "gated attention", weigh)
        return SentenceWeights(
            study.set_name,
            [*words.lines[row], END],
            int(store.tgt_lengths[row]),
            weights,
            meanings(opens),
        )

    def present(self, result: SentenceWeights) -> Finding:
        line, weights = self.options.sentence, result.weights
        where = f"{result.set_name}, line {line}"
        series = {name: [Estimate(float(x)) for x in w.weighted] for name, w in weights.items()}
        return Finding(
            table=_table(result, where),
            text=(
                "A word has a large weight if steps attend to it while its gate is open; "
                "attention alone sums to the number of steps. One sentence is an example and "
                "proves nothing: `nmtkit analyze gates` has means over all sentences."
            ),
            figure=figures.grouped_bars(
                result.words, series, where, "attention × gate", upright=True
            ),
            facts={"steps": result.steps},
        )


def _table(result: SentenceWeights, where: str) -> Table:
    columns = [Column("position", "position"), text_column("word")]
    cells = [[*range(1, len(result.words) + 1), None], [*result.words, "sum"]]
    for name, weights in result.weights.items():
        for key, numbers in weights._asdict().items():
            columns.append(Column(f"{name}_{key}", f"{name}: {key}", decimals=3))
            cells.append([*numbers.tolist(), None if key == "gate" else float(numbers.sum())])
    notes = [
        (
            f"attention: summed over the {result.steps} target steps of the reference and "
            "over a word's subwords; gate: how open, 0 to 1, mean over its dimensions, "
            "over the steps at which it acts, and over a word's subwords"
        ),
        (
            "weighted: attention times gate, summed like attention; divided by "
            f"{result.steps}, the mean over the steps"
        ),
        *result.meanings,
    ]
    title = f"What each source word weighs ({where})"
    return Table("weights", title, columns, list(zip(*cells, strict=True)), notes)
