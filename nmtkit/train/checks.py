"""Checks before the first update of a training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import nmtkit
from nmtkit import console, files
from nmtkit.data.batches import collate, collate_packed
from nmtkit.data.documents import Documents
from nmtkit.data.store import Store, spans_files
from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.models.base import Model, device_of
from nmtkit.models.properties import lacking
from nmtkit.nn import hardware
from nmtkit.records import TextSet
from nmtkit.run import Run
from nmtkit.toml import changes
from nmtkit.train.plan import Plan
from nmtkit.train.ranks import Ranks
from nmtkit.train.state import TrainState

FIRST_PAIRS = 1000
"""Four of the first pairs of the training set are tried with a model of the user's own."""


def check_prepared(run: Run) -> None:
    """Check the files that training reads; raise as `Run.check_files`."""
    wanted = ("train/", "vocab", *(f"{s.name}/" for s in run.sets("dev")))
    hashes = run.manifest().files.items()
    run.check_files({name: digest for name, digest in hashes if name.startswith(wanted)})


def hardware_warning(before: files.JsonObject, now: files.JsonObject) -> str:
    """Return the warning that a training resumes on other hardware or with other arithmetic."""
    changed = changes(before, now)
    differences = ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changed.items())
    message = (
        f"hardware or arithmetic has changed since the last start ({differences}): the training"
        " resumes, but not with the same bits"
    )
    if before.get("matmul") and changed.keys() == {"matmul"}:
        return f"{message}; for the same bits: --set train.matmul={before['matmul']}"
    return message


def check_parses_and_documents(
    model: Model, variant: str, run: Run, store: Store, dev: TextSet | None
) -> None:
    """Check that the training set and the dev set have the parses and documents that a model reads.

    Warn of missing documents, and of missing parses of the dev set.

    Raises: ConfigError if the training set has no parses, or has no documents and another set has.
    """
    if model.reads_spans and store.spans is None:
        raise ConfigError(
            "this system reads parses of the source, and the training set has none",
            where=store.path,
            hint="prepare them: nmtkit prep … --parses train=FILE (one bracketed tree a line) or"
            " --parser stanza",
        )
    if model.reads_spans and dev and not spans_files(run.prep / dev.name):
        console.warn(
            f"'{dev.name}' has no parses: loss and BLEU on it, and so the choice of the checkpoint,"
            f" are those of {variant} with n-grams (nmtkit prep --parses {dev.name}=FILE)"
        )
    rule = model.context_rule
    if rule is None or rule.kind == "foreign":
        return

    def documents(text: TextSet) -> int:
        return len(Documents.of_set(run.prep, text.name, text.lines))

    if len(store.documents) == len(store):
        for text in run.manifest().sets:
            if text.split != "train" and documents(text) < text.lines:
                raise ConfigError(
                    f"{variant} would first meet a context after training: {text.name} has"
                    " documents, the training set has none",
                    where=store.path,
                    hint="say where its documents start (nmtkit prep --docs train=FILE), or train a"
                    " variant that reads single sentences",
                )
        console.warn(
            f"{variant} reads other sentences of a document, and every sentence of the"
            " training set is a document of its own: none has a context (nmtkit prep --docs says"
            " where documents start)"
        )
    elif dev and documents(dev) == dev.lines > 1:
        console.warn(
            f"every sentence of '{dev.name}' is a document of its own: loss and BLEU on it, and"
            f" so the choice of the checkpoint, are those of {variant} without a context"
            f" (nmtkit prep --docs {dev.name}=FILE says where its documents start)"
        )


def warn_of_model(variant: str, model: Model, store: Store) -> None:
    """Warn of properties that a user's own model lacks. The model may draw random numbers.

    Args:
        store: the training set; four of its first pairs are read.
    """
    place = device_of(model)
    by_length = np.argsort(store.lengths(np.arange(min(len(store), FIRST_PAIRS)))[1])
    rows = np.unique(by_length[np.linspace(0, len(by_length) - 1, 4).astype(int)])
    rule, packed = model.context_rule, None
    batch, *alone = (collate(store, r, place, rule) for r in (rows, *rows[:, None]))
    if model.reads_packed:
        form, prepare = model.context_form, model.prepare
        packed = collate_packed(store, rows, place, rule=rule, form=form, prepare=prepare)
    model.eval()
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        for sentence in lacking(model, batch, alone, packed):
            console.warn(f"{variant}: {sentence} (nmtkit/models/README.md)")
    model.train()


def check_ranks_agree(
    ranks: Ranks, plan: Plan, state: TrainState, model: Model, autocast: dict[str, Any]
) -> None:
    """Raise EnvironmentProblem naming a rank that does not begin like rank 0."""
    parameters = [p.detach() for p in model.parameters()]
    weights = float(sum(p.to(hardware.widest(p.device)).abs().sum() for p in parameters))
    facts = {
        "nmtkit": nmtkit.__version__,
        "torch": str(torch.__version__),
        "device": autocast["device_type"],
        "number type": str(autocast["dtype"] if autocast["enabled"] else "float32"),
        "step": state.step,
        "settings": files.text_sha256(repr(plan.model_dump()))[:8],
        "weights": weights,
    }
    first, *others = ranks.gather_values(facts)
    for rank, of_rank in enumerate(others, 1):
        for fact, value in of_rank.items():
            # GPUs of different kinds differ in the last digits of a sum.
            near = fact == "weights" and math.isclose(value, first[fact], rel_tol=1e-12)
            if value != first[fact] and not near:
                raise EnvironmentProblem(
                    f"rank {rank} does not begin with the {fact} of rank 0 ({value}, not"
                    f" {first[fact]})",
                    hint="all machines must see the same run folder and have the same nmtkit, torch"
                    " and kind of device (--device, train.precision)",
                )
