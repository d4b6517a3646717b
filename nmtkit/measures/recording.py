"""Attention weights and gates that a model records on sentence pairs (`capture`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from nmtkit import console
from nmtkit.arrays import Ints
from nmtkit.data.batch_lists import longest_first
from nmtkit.data.batches import LONGEST_READ, Batch, collate, on_device, short_rows
from nmtkit.data.context import contexts
from nmtkit.data.documents import ContextRule
from nmtkit.data.pairs import Pairs
from nmtkit.errors import DataError, LeftOut, counted
from nmtkit.models.base import Model, device_of
from nmtkit.nn.capture import CONTEXT, capture
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.translate.forced import pair_batch

POSITIONS = LONGEST_READ
"""Maximum positions of each side of a batch, padding included: all weights are in memory at once.
"""
CROSS = ("target", "source")
"""Queries and keys of an attention from the target to the source."""
Sites = dict[str, tuple[str, str]]
"""Attentions by name: (queries, keys)."""
NO_WEIGHTS = "_gate", ".gate", "_context"
"""Endings of the names of records that are no attention weights."""
PROBE = (11, 17)
"""Source and target length of a made-up pair. The lengths differ, so the shape of recorded weights
shows what the queries and the keys are.
"""


def look(model: Model, batch: Batch) -> dict[str, dict[str, Tensor]]:
    """Return what a model records on a batch with both sides.

    Args:
        model: in evaluation mode.
    Returns: "encoder" and "decoder" -> site -> what was recorded there; attention weights are
        (B, H, queries, keys). Sites that read contexts in several parts are left out.
    """
    assert batch.tgt_in is not None
    with torch.inference_mode():
        with capture() as encoding:
            memory = model.encode(batch)
        with capture() as decoding:
            model.decode(batch.tgt_in, memory)
    return {"encoder": _joined(encoding), "decoder": _joined(decoding)}


def _joined(recorded: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Join what each site recorded in several calls along the queries."""
    joined = {}
    for site, calls in recorded.items():
        if len(calls) == 1 or not site.startswith(CONTEXT):
            joined[site] = torch.cat(calls, dim=-2)
    return joined


def sides(model: Model) -> Sites:
    """Return what the queries and keys of each attention are: "source", "target" or "" (other).

    Warns of an attention without an axis of heads, and leaves it out.
    """
    names = dict(zip(PROBE, ("source", "target"), strict=True))
    sites: Sites = {}
    for recorded in look(model, made_up(PROBE, device_of(model))).values():
        for site, weights in recorded.items():
            if weights.dim() not in (3, 4):
                continue
            ends = names.get(weights.size(-2), ""), names.get(weights.size(-1), "")
            if weights.dim() == 4:
                sites[site] = ends
            elif all(ends) and not site.endswith(NO_WEIGHTS):
                console.warn(
                    f"attention '{site}' left out: record its weights as (B, H, queries, keys),"
                    " H = 1 without heads (nmtkit/nn/capture.py)"
                )
    return sites


def cross_sites(model: Model) -> list[str]:
    """Return the attentions from the target to the source, first layer first.

    Raises: LeftOut if there is none.
    """
    cross = [site for site, ends in sides(model).items() if ends == CROSS]
    if not cross:
        raise LeftOut("it records no attention to the source (see nmtkit.nn.capture)")
    return cross


def check_positions(weights: Tensor, batch: Batch) -> None:
    """Raise LeftOut if the keys are more than the source's positions.

    Args:
        weights: (…, keys), recorded on `batch`.
    """
    if weights.size(-1) != batch.src.size(1):
        message = "it attends to more than the source, so positions are not those of the source"
        raise LeftOut(message)


def made_up(lengths: tuple[int, int], device: torch.device, pairs: int = 1) -> Batch:
    """Return equal sentence pairs of a given source and target length, </s> included."""
    src, tgt = ([UNK] * (length - 1) + [EOS] for length in lengths)
    return pair_batch([src] * pairs, [tgt] * pairs, device)


def probed(model: Model, context: int = 1) -> dict[str, dict[str, Tensor]]:
    """Return what a model records on two made-up pairs, as `look` does.

    Args:
        context: the length of the made-up context, for a model that reads context.
    """
    device = device_of(model)
    batch = made_up(PROBE, device, pairs=2)
    if model.context_rule is not None:
        ids = np.array([UNK] * (context - 1) + [EOS])
        read = contexts([[0], [0]], lambda _: ids, model.context_rule, lambda _: ids, device)
        batch = dataclasses.replace(batch, context=on_device(read, device))
    return look(model, batch)


def layer_of(site: str) -> int:
    """Return the layer of a site, from 1: one more than the first number in its name."""
    return next((int(part) + 1 for part in site.split(".") if part.isdigit()), 1)


def batches(
    store: Pairs, device: torch.device, rule: ContextRule | None, rows: Ints
) -> Iterator[Batch]:
    """Yield pairs of a set in batches, the longest first, with the contexts of a rule.

    Args:
        rows: the numbers of the pairs, without those that are too long (`readable_rows`).
    """
    longest = np.maximum(store.src_lengths[rows], store.tgt_lengths[rows])
    # A sentence with its whole document needs the memory of a batch.
    sentences = 1 if rule is not None and rule.whole else POSITIONS
    for batch in longest_first(longest.tolist(), POSITIONS, sentences):
        yield collate(store, rows[batch], device, rule)


def readable_rows(store: Pairs, rule: ContextRule | None, rows: Ints) -> Ints:
    """Return the rows that are not too long (see `short_rows`), and warn if some are left out.

    Raises: DataError if all are too long.
    """
    short = short_rows(store, rule, rows)
    most = f"longer than {LONGEST_READ:,} subwords, with the context that the system reads"
    if len(rows) and not len(short):
        raise DataError(f"{counted(len(rows), 'sentence')}: {most}", hint="choose shorter ones")
    if left_out := len(rows) - len(short):
        console.warn(f"{counted(left_out, 'sentence')} left out: {most}")
    return short
