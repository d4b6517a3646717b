"""The attention of one system on its own translations, for the sentence explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit import console, files
from nmtkit.analyze import alignment
from nmtkit.analyze.shared import recording
from nmtkit.data.batches import collate
from nmtkit.data.spans import Spans
from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.models import loading
from nmtkit.report.explorer import SentenceAttention, SystemAttention
from nmtkit.run import Run
from nmtkit.text.vocabulary import Vocabulary, load_vocabularies


class Translated:
    """A prepared set whose target side is a system's output, as batching reads it.

    Args:
        store: the set; subwords: the tokens of each output; vocabulary: of the target.
    """

    def __init__(self, store: Store, subwords: Sequence[Sequence[str]], vocabulary: Vocabulary) -> None:
        self.src, self.src_lengths, self.documents = store.src, store.src_lengths, store.documents
        self.spans: Spans | None = store.spans
        self._targets = [np.array(vocabulary.encode(tokens), dtype=np.int64) for tokens in subwords]
        self.tgt_lengths = np.array([len(target) for target in self._targets], dtype=np.int64)

    def tgt(self, i: int) -> NDArray[Any]:
        """Target ids of pair i, </s> last."""
        return self._targets[i]


def of_system(run: Run, name: str, set_name: str, lines: Sequence[int]) -> SystemAttention:
    """How a system reads the source at each token of its translation: mean over the heads of its last layer but one.

    Args:
        run: the run; name: a system; set_name: a set that it translated.
        lines: from 0; empty sources and outputs are left out.
    Raises: DataError if its translation lacks subwords, or it does not attend to the source.
    """
    path = run.system(name).translation(set_name) / "hyp.subwords.txt"
    subwords = [line.split(" ") if line else [] for line in files.text_lines(path)]
    store = Store(run.prep / set_name)
    if len(subwords) != len(store):
        hint = f"nmtkit translate --force --system {name} --set-name {set_name}"
        raise DataError(f"{len(subwords):,} lines of subwords for {len(store):,} sentences", where=path, hint=hint)
    model = loading.load_system(run, run.find_system(name), recording.device())
    sites = list(alignment.chosen_sites(model, "", only_cross=True))
    if not sites:
        raise DataError(f"'{name}' does not attend to the source", where=run.system(name).path, hint="leave out --attention, or name another system")
    site = sites[max(0, len(sites) - 2)]
    vocabularies = load_vocabularies(run.prep)
    pairs = Translated(store, subwords, vocabularies[1])
    order = sorted((i for i in lines if subwords[i] and store.src_lengths[i] > 1), key=lambda i: (-int(store.src_lengths[i]), i))
    found: dict[int, SentenceAttention] = {}
    with console.progress(f"{name}: attention", len(order)) as done:
        while order:
            size = max(1, recording.POSITIONS // int(store.src_lengths[order[0]]))
            rows, order = order[:size], order[size:]
            batch = collate(pairs, np.array(rows), recording.device(), model.context_rule, pairs.tgt)
            weights = alignment.of_head(recording.look(model, batch)["decoder"][site], 0).float().cpu()
            if weights.size(-1) != batch.src.size(1):
                what = f"what '{name}' attends to is not its source alone, so that it cannot be shown beside it"
                raise DataError(what, where=run.system(name).path, hint="leave out --attention, or name another system")
            for i, matrix in zip(rows, weights, strict=True):
                src, tgt = [vocabularies[0][k] for k in store.src(i).tolist()], [*subwords[i], "</s>"]
                found[i] = SentenceAttention(src, tgt, matrix[: len(tgt), : len(src)].tolist())
            done(len(rows))
    return SystemAttention(name, f"{site}, mean over heads", set_name, found)
