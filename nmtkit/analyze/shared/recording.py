"""What the attentions of a model do on given sentence pairs, read by `capture`: any model's, found by what they record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.data.batches import Batch, collate
from nmtkit.data.context import contexts
from nmtkit.data.documents import ContextRule
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError
from nmtkit.models.base import Model
from nmtkit.nn.capture import capture
from nmtkit.run import Run
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.translate.forced import pair_batch

POSITIONS = 1024
"""A batch has at most so many source positions, padding included: its weights of all layers are held at once."""
CROSS = ("target", "source")
"""Who attends to whom where a target reads its source."""
OF_CONTEXTS = "context."
"""What reading contexts by themselves records begins with it."""
PROBE = (11, 17)
"""Lengths of a source and a target that tell by a weight's shape who attends to whom."""


def device() -> torch.device:
    """Where systems are looked into."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def look(model: Model, batch: Batch) -> dict[str, dict[str, Tensor]]:
    """What the model records on a batch with both sides.

    Args:
        model: in evaluation mode.
    Returns: "encoder" and "decoder" -> site -> what was recorded while encoding and decoding; weights are (B, H, queries, keys). What was recorded
        of contexts by themselves is left out where they were read in parts.
    """
    assert batch.tgt_in is not None
    with torch.inference_mode():
        with capture() as encoding:
            memory = model.encode(batch)
        with capture() as decoding:
            model.decode(batch.tgt_in, memory)
    result = {}
    for stack, seen in (("encoder", encoding), ("decoder", decoding)):
        whole = {site: found for site, found in seen.items() if len(found) == 1 or not site.startswith(OF_CONTEXTS)}
        result[stack] = {site: torch.cat(found, dim=-2) for site, found in whole.items()}
    return result


def sides(model: Model, where: torch.device) -> dict[str, tuple[str, str]]:
    """Who attends to whom at each attention of a model: site -> (queries, keys), each "source", "target" or "" for anything else."""
    src, tgt = ([UNK] * (length - 1) + [EOS] for length in PROBE)
    names = dict(zip(PROBE, ("source", "target"), strict=True))
    seen = look(model, pair_batch([src], [tgt], where))
    return {
        site: (names.get(weights.size(-2), ""), names.get(weights.size(-1), ""))
        for found in seen.values()
        for site, weights in found.items()
        if weights.dim() == 4
    }


def probe(model: Model, where: torch.device, lengths: tuple[int, int] = PROBE, context: int = 1) -> Batch:
    """Two pairs of sentences of given lengths; where a model reads context, both with one and the same, of a length given too."""
    src, tgt, before = ([UNK] * (length - 1) + [EOS] for length in (*lengths, context))
    batch = pair_batch([src] * 2, [tgt] * 2, where)
    if model.context_rule is None:
        return batch
    given = np.array(before)
    return dataclasses.replace(batch, context=contexts([[0], [0]], lambda _: given, model.context_rule, where, lambda _: given))


def layer_of(site: str) -> int:
    """The layer of a site, from 1: the first number in its name."""
    return next((int(part) + 1 for part in site.split(".") if part.isdigit()), 1)


def some(store: Store, count: int, seed: int) -> NDArray[np.int64]:
    """So many pairs of a set, drawn at random, in their order; 0, or more than there are: all of them."""
    if not 0 < count < len(store):
        return np.arange(len(store))
    return np.sort(np.random.default_rng(seed).choice(len(store), count, replace=False))


def batches(
    store: Store, where: torch.device, rule: ContextRule | None = None, positions: int = POSITIONS, chosen: NDArray[np.int64] | None = None
) -> Iterator[Batch]:
    """The pairs of a set, the longest first, in batches of at most so many source positions; with the contexts that a model's rule wants.

    Args:
        chosen: only these, by their number; None = all.
    """
    chosen = np.arange(len(store)) if chosen is None else chosen
    order = chosen[np.lexsort((store.tgt_lengths[chosen], store.src_lengths[chosen]))[::-1]]
    start = 0
    while start < len(order):
        rows = order[start : start + max(1, positions // int(store.src_lengths[order[start]]))]
        yield collate(store, rows, where, rule)
        start += len(rows)


def one_set(run: Run, set_names: Sequence[str], what: str) -> str:
    """The set that an analysis of one set reads: the one named, else the first test set, else dev, else any.

    Raises: ConfigError if there are several, or none of that name.
    """
    if len(set_names) > 1:
        raise ConfigError(f"{what} is of one set, not of {', '.join(set_names)}", where="--set-name", hint="name one of them")
    if set_names:
        return run.text_set(set_names[0]).name
    return [*run.sets("test"), *run.sets("dev"), *run.sets()][0].name
