"""Sentence vectors from a frozen encoder, computed once and stored on disk."""

from __future__ import annotations

import contextlib
import glob
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import nmtkit
from nmtkit import console, files
from nmtkit.analyze.study import Study
from nmtkit.arrays import Array
from nmtkit.data.batch_lists import longest_first
from nmtkit.data.batches import Batch, source_batch
from nmtkit.errors import DataError, LeftOut
from nmtkit.measures.probes import Task
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Model
from nmtkit.models.lookups import word_tables
from nmtkit.nn.capture import capture
from nmtkit.nn.masks import real_positions
from nmtkit.parallel import cores
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import EOS, UNK, load_vocabularies
from nmtkit.translate import workers
from nmtkit.translate.over_long import cut

POSITIONS = 4096
"""A batch has at most this many source positions, padding included."""
STATES, EMBEDDINGS = "states", "embeddings"
Vectors = Array
"""(N) records, float32: the mean state and the mean source embedding of each sentence. An embedding
has size 0 if the model has no source embeddings."""


class NoStates(DataError, LeftOut):
    """The encoder of a system does not have the requested states; an analysis leaves it out."""


def encoder_states(model: Model, batch: Batch, layer: int) -> Tensor:
    """Return the states of the encoder at the source positions of a batch.

    Args:
        model: in evaluation mode.
        layer: an encoder layer, from 1; 0 = the states that the decoder reads.
    Returns: (B, S, D); undefined at padded positions.
    Raises: NoStates if the layer does not exist, or the encoder has no states per position.
    """
    outputs = {}
    if layer:
        stack = getattr(model, "encoder", None)
        layers = list(stack) if isinstance(stack, nn.ModuleList) else []
        if layer > len(layers):
            known = (
                f"its encoder has {len(layers)}" if layers else "its encoder has no separate layers"
            )
            raise NoStates(f"no layer {layer}: {known}")
        block = layers[layer - 1]
        with block.register_forward_hook(lambda *values: outputs.update({STATES: values[-1]})):
            model.encode(batch)
    else:
        outputs = model.encode(batch)
        if STATES not in outputs:
            with capture():  # some models return their states only during a capture
                outputs = model.encode(batch)
    states = outputs.get(STATES)
    if not isinstance(states, Tensor) or states.shape[:2] != batch.src.shape or states.dim() != 3:
        problem = f"its encoder returns no 'states' (B, S, D), but {', '.join(map(repr, outputs))}"
        raise NoStates(f"no states of source positions: {problem}")
    return states


def by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Return batches of sentence indices, the longest sentences first.

    A batch has at most POSITIONS positions; a longer sentence is a batch by itself.

    Args:
        lengths: number of tokens of each sentence.
    """
    return longest_first(lengths, POSITIONS, len(lengths))


class Reader:
    """Turns sentences into vectors with the text pipeline and the encoder of a system.

    Args:
        study: the study that loads the system.
        name: the name of the system.
        layer: as in `encoder_states`.
    """

    def __init__(self, study: Study, name: str, layer: int) -> None:
        self.study, self.name, self.layer = study, name, layer
        self.max_source = study.run.system(name).searching().max_source

    @cached_property
    def weights(self) -> dict[str, str]:
        """The SHA-256 of the weights of each checkpoint."""
        return checkpoints.current(self.study.run.find_system(self.name))

    @cached_property
    def key(self) -> str:
        """The hash of everything that the vectors depend on, except the sentences."""
        run, config = self.study.run, self.study.run.find_system(self.name).read_config()
        inputs = {
            "nmtkit": nmtkit.__version__,
            "weights": self.weights,
            "layer": self.layer,
            "variant": config.variant,
            "model": config.model,
            "max_source": self.max_source,
            "prepared": run.manifest().fingerprint,
            "vocabulary": loading.vocabulary_hashes(run),
        }
        return files.text_sha256(json.dumps(inputs, sort_keys=True, default=str))

    @cached_property
    def model(self) -> Model:
        """The model, loaded when it is first needed."""
        return self.study.model(self.name)

    @cached_property
    def table(self) -> Tensor | None:
        """The source embeddings."""
        return word_tables(self.model)[0]

    def _sums(self, ids: list[list[int]]) -> NDArray[np.float32]:
        """Return (B, D + E + 1): the sums of states and of embeddings over the real positions, and
        the number of real positions.

        Args:
            ids: the ids of each piece, </s> last.
        """
        with torch.inference_mode():
            batch = source_batch(ids, self.study.device)
            real = real_positions(batch.src_lengths, batch.src.size(1)).unsqueeze(-1)  # (B, S, 1)
            values = [encoder_states(self.model, batch, self.layer)]
            if self.table is not None:
                values.append(F.embedding(batch.src, self.table))
            sums = [x.float().masked_fill(~real, 0).sum(1) for x in values]
            sums.append(batch.src_lengths[:, None].float())
            return torch.cat(sums, 1).cpu().numpy()  # type: ignore[no-any-return]

    def vectors(self, sentences: Sequence[str]) -> Vectors:
        """Return each sentence's means over all positions, </s> included. A long sentence is cut
        into pieces, whose positions are added up.

        Raises: NoStates, as `encoder_states`.
        """
        prep = self.study.run.prep
        side, vocabulary = TextSide.load(prep, "src"), load_vocabularies(prep)[0]
        rows, pieces = [], []  # the sentence and the ids of each piece
        for row, line in enumerate(sentences):
            for piece in cut(side.encode(line), self.max_source, side.splitter):
                rows.append(row)
                pieces.append(vocabulary.encode(piece))
        batches = by_length([*map(len, pieces)])
        work = [[pieces[i] for i in batch] for batch in batches]
        jobs = cores() if self.study.device.type == "cpu" else 1
        progress = console.progress(f"{self.name}: sentences", len(pieces))
        with workers.one_thread(self.study.device), progress as advance:
            columns = self._sums([[UNK] * 4 + [EOS], [EOS]]).shape[1]
            sums = np.zeros((len(sentences), columns), dtype=np.float32)
            results = workers.mapped(self._sums, work, jobs)
            for batch, values in zip(batches, results, strict=True):
                np.add.at(sums, [rows[i] for i in batch], values)
                advance(len(batch))
        embedding_size = 0 if self.table is None else self.table.size(1)
        fields = [(STATES, "<f4", (columns - embedding_size - 1,))]
        fields.append((EMBEDDINGS, "<f4", (embedding_size,)))
        return (sums[:, :-1] / sums[:, -1:]).view(fields)[:, 0]

    def file(self, folder: Path, task: Task) -> Path:
        """Return the file with the vectors of a task's sentences; write it if it is missing or
        damaged.

        Outdated vectors of the same sentences are removed.

        Args:
            folder: the folder of all systems.
        """
        prefix = f"{task.name}.{task.digest[:16]}.layer{self.layer}."
        path = folder / self.name / f"{prefix}{self.key[:16]}.npy"
        if not _is_whole(path, len(task.sentences)):
            vectors = self.vectors(task.sentences)
            for outdated in path.parent.glob(f"{glob.escape(prefix)}*.npy"):
                files.remove(outdated)
            files.write_array(path, vectors, durable=True)
        # Stored vectors load no model, which would note its checkpoints.
        self.study.checkpoints[self.name] = list(self.weights)
        return path


def _is_whole(path: Path, count: int) -> bool:
    """True if a file has the vectors of `count` sentences. Warn of a damaged file."""
    if not path.is_file():
        return False
    with contextlib.suppress(Exception):  # a damaged header raises errors of many types
        vectors = np.lib.format.open_memmap(path, mode="r")
        if vectors.shape == (count,) and vectors.dtype.names == (STATES, EMBEDDINGS):
            return True
    console.warn(f"{path} is damaged and computed again")
    return False


def load(path: Path) -> Vectors:
    """Return vectors as a memory map, so that only the parts in use are read."""
    vectors: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    return vectors
