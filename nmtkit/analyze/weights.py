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
from nmtkit.errors import counted
from nmtkit.measures import recording
from nmtkit.measures.words import read_words
from nmtkit.models.base import Model
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, text_column

END = "</s>"


class WordWeights(NamedTuple):
    """The weights of the N source words of a sentence; </s> is the last word.

    Attributes:
        attention: (N) the sum over the target steps and the subwords of a word.
        gate: (N) how open the gate is: the mean over the steps that use it and the subwords.
        weighted: (N) attention times gate, summed like attention. A step without a gate adds 0.
    """

    attention: Array
    gate: Array
    weighted: Array


def attentions_of(model: Model) -> list[str]:
    """Return the attentions that have a gate for each source position."""
    recorded = recording.probed(model)["decoder"]
    words = recording.PROBE[::-1]  # T, S
    gates = {site for site, opened in recorded.items() if opened.shape[1:] == words}
    return [site for site, w in recorded.items() if w.dim() == 4 and site + ENDING in gates]


def word_weights(alpha: Floats, opened: Floats, owners: Ints) -> WordWeights:
    """Return the weights of words from those of subwords.

    Args:
        alpha, opened: attention and gate (T, S); NaN where the gate is not used.
        owners: the word of each subword (S - 1); the last position is </s>.
    Source: Im & Chan 2024, Table 3. The paper does not say how the steps of a word are combined;
        their mean is the sum here divided by T.
    """
    owners = np.append(owners, owners[-1] + 1 if len(owners) else 0)
    used = np.isfinite(opened)
    opened = np.where(used, opened, 0)
    with np.errstate(invalid="ignore"):
        gate = opened.sum(0) / used.sum(0)
    attention, weighted = (np.bincount(owners, w.sum(0)) for w in (alpha, alpha * opened))
    return WordWeights(attention, word_means(gate, owners), weighted)


def measured(model: Model, site: str, batch: Batch, owners: Ints) -> WordWeights:
    """Return the weights of the words in a batch of one sentence, for one attention (mean over
    heads).
    """
    recorded = recording.look(model, batch)["decoder"]
    alpha, opened = recorded[site][0].mean(0), recorded[site + ENDING][0]
    return word_weights(alpha.double().cpu().numpy(), opened.double().cpu().numpy(), owners)


@dataclass(frozen=True)
class SentenceWeights:
    """The weights of the source words of one sentence, by system.

    Attributes:
        set_name: the set of the sentence.
        words: the words of the source, </s> last.
        steps: the number of target tokens of the reference.
        weights: system -> weights; "SYSTEM, SITE" if a system has several gated attentions.
        meanings: what open gates do.
    """

    set_name: str
    words: list[str]
    steps: int
    weights: dict[str, WordWeights]
    meanings: list[str]


class Weights(Analysis[SentenceOptions, SentenceWeights]):
    """The weight of each source word of a sentence in each system, with the reference as target."""

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
        series = {name: list(map(Estimate, w.weighted.tolist())) for name, w in weights.items()}
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
            f"attention: summed over {counted(result.steps, 'target step')} of the reference and "
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
