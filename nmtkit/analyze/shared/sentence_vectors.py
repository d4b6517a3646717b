"""Vectors of sentences from a frozen encoder: computed once, kept on disk, and read from there through the page cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import nmtkit
from nmtkit import console, files
from nmtkit.analyze.shared import recording
from nmtkit.data.batches import Batch, source_batch
from nmtkit.errors import DataError
from nmtkit.models import loading
from nmtkit.models.base import Model
from nmtkit.models.checkpoints import choose, digests
from nmtkit.nn.capture import capture
from nmtkit.parallel import cores
from nmtkit.run import Run
from nmtkit.settings import SearchSettings, build
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import EOS, UNK, load_vocabularies
from nmtkit.translate import workers
from nmtkit.translate.pieces import cut

POSITIONS = 4096
"""A batch has at most so many source positions, padding included."""
LINES = 500
"""Sentences that a worker cuts into subwords at once."""
STATES, EMBEDDINGS = "states", "embeddings"
KINDS = (STATES, EMBEDDINGS)
Vectors = NDArray[Any]
"""(N) records of the mean state and the mean embedding of a sentence, float32; where the model has no table of embeddings, of no number."""


class NoStates(DataError):
    """A system whose encoder has not what was asked for."""


def layers_of(model: Model) -> list[nn.Module]:
    """The layers of an encoder, the lowest first; [] of one that is no list of layers."""
    layers = getattr(model, "encoder", None)
    return list(layers) if isinstance(layers, nn.ModuleList) else []


def encoder_states(model: Model, batch: Batch, layer: int) -> Tensor:
    """What the encoder makes of the sources of a batch.

    Args:
        model: in evaluation mode.
        layer: its output, from 1; 0 = what the decoder reads.
    Returns: (B, S, D); at padded positions anything.
    Raises: NoStates for a layer that is not there, or if the model has no states of positions.
    """
    layers = layers_of(model)
    if layer > len(layers):
        there = f"its encoder has {len(layers)}" if layers else "its encoder is not made of layers that can be told apart"
        raise NoStates(f"no layer {layer}: {there}", where="--layer", hint="leave it out for the states that the decoder reads")
    found: list[Any] = []
    hook = layers[layer - 1].register_forward_hook(lambda module, inputs, output: found.append(output)) if layer else None
    try:
        memory = model.encode(batch)
        if not layer and STATES not in memory:
            with capture():  # some keep them for those who look only
                memory = model.encode(batch)
    finally:
        if hook is not None:
            hook.remove()
    states = (found or [None])[-1] if layer else memory.get(STATES)
    if not isinstance(states, Tensor) or states.shape[:2] != batch.src.shape or states.dim() != 3:
        holds = "no layer output (B, S, D)" if layer else f"no 'states' (B, S, D), but {', '.join(map(repr, memory)) or 'nothing'}"
        what = f"what its encoder returns has {holds}"
        raise NoStates(f"no states of source positions to take the mean of: {what}", hint="leave that system out: --system names the others")
    return states


class _Lookups(TorchFunctionMode):
    """Sees which tables of embeddings are read with which ids."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.embedding:
            self.seen.append((args[0], args[1]))
        return func(*args, **(kwargs or {}))


def source_table(model: Model) -> Tensor | None:
    """The table (V, E) in which the encoder looks up source tokens, found by watching it; None if it has none."""
    batch = source_batch([[UNK] * 4 + [EOS]], next(model.parameters()).device)
    with torch.inference_mode(), _Lookups() as watched:
        model.encode(batch)
    return next((table for ids, table in watched.seen if ids.shape == batch.src.shape and torch.equal(ids, batch.src)), None)


def _sums(x: Tensor, real: Tensor) -> NDArray[np.float32]:
    """x (B, S, D) summed over real positions, of which `real` (B, S) tells."""
    summed: NDArray[np.float32] = x.float().masked_fill(~real.unsqueeze(-1), 0).sum(1).cpu().numpy()
    return summed


class Reader:
    """What turns sentences into vectors: a run's own path of text and a system's frozen encoder, loaded when first needed.

    Args:
        run: the run; name: of the system; layer: as of `encoder_states`.
    """

    def __init__(self, run: Run, name: str, layer: int) -> None:
        self.run, self.name, self.layer = run, name, layer
        self.system = run.find_system(name)
        self.config = self.system.read_config()
        self.checkpoints = choose(self.system)
        self.max_source = build(SearchSettings, self.config.get("search", {}), "search").max_source

    @cached_property
    def key(self) -> str:
        """Hash of all that its vectors depend on, the sentences apart."""
        about = {
            **{"nmtkit": nmtkit.__version__, "weights": digests(self.checkpoints), "layer": self.layer},
            **{"variant": self.config["variant"], "model": self.config.get("model", {}), "max_source": self.max_source},
            **{"prepared": self.run.manifest().fingerprint, "vocabulary": loading.vocabulary_hashes(self.run)},
        }
        return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()

    @cached_property
    def model(self) -> Model:
        """The model, on the device.

        Raises: NoStates as `encoder_states`, with the system's name.
        """
        model = loading.load_system(self.run, self.system, recording.device(), self.checkpoints)
        try:
            with torch.inference_mode():
                encoder_states(model, source_batch([[UNK] * 4 + [EOS], [EOS]], recording.device()), self.layer)
        except NoStates as error:
            raise NoStates(f"'{self.name}': {error.message}", where=error.where or self.system.path, hint=error.hint) from None
        if model.context_rule is not None:
            console.warn(f"'{self.name}' reads context, which the sentences have none of")
        if model.reads_spans:
            console.warn(f"'{self.name}' reads parses, which the sentences have none of: it sees n-grams instead")
        return model

    @cached_property
    def _table(self) -> Tensor | None:
        return source_table(self.model)

    def pieces(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """The ids of each sentence, </s> last, an over-long one in pieces."""
        side, vocabulary = TextSide.load(self.run.prep, "src"), load_vocabularies(self.run.prep)[0]

        def of(lines: Sequence[str]) -> list[list[list[int]]]:
            return [[vocabulary.encode(piece) for piece in cut(side.encode(line), self.max_source)] for line in lines]

        chunks = [sentences[start : start + LINES] for start in range(0, len(sentences), LINES)]
        return [ids for found in workers.mapped(of, chunks, cores()) for ids in found]

    def _read(self, ids: list[list[int]]) -> list[NDArray[np.float32]]:
        """Sums over the real positions of states (B, D) and embeddings (B, E)."""
        with torch.inference_mode():
            batch = source_batch(ids, recording.device())
            real = torch.arange(batch.src.size(1), device=batch.src.device) < batch.src_lengths[:, None]
            words = batch.src.new_zeros((*batch.src.shape, 0)) if self._table is None else F.embedding(batch.src, self._table)
            return [_sums(encoder_states(self.model, batch, self.layer), real), _sums(words, real)]

    def vectors(self, sentences: Sequence[str]) -> Vectors:
        """The means over real positions, </s> among them, of each sentence: of its pieces together where it has several."""
        device = recording.device()
        with workers.one_thread(device), console.progress(f"{self.name}: sentences", len(sentences)) as done:
            pieces = [(row, ids) for row, own in enumerate(self.pieces(sentences)) for ids in own]
            pieces.sort(key=lambda piece: -len(piece[1]))
            batches: list[list[tuple[int, list[int]]]] = []
            start = 0
            while start < len(pieces):
                batches.append(pieces[start : start + max(1, POSITIONS // len(pieces[start][1]))])
                start += len(batches[-1])
            _ = self.model, self._table  # before there are other processes
            jobs = cores() if device.type == "cpu" else 1
            found, counts = None, np.zeros(len(sentences), dtype=np.float32)
            for batch, sums in zip(batches, workers.mapped(self._read, [[ids for _, ids in batch] for batch in batches], jobs), strict=True):
                if found is None:
                    found = np.zeros(len(sentences), dtype=[(kind, "<f4", (own.shape[1],)) for kind, own in zip(KINDS, sums, strict=True)])
                for kind, own in zip(KINDS, sums, strict=True):
                    for (row, _), one in zip(batch, own, strict=True):
                        found[kind][row] += one
                for row, ids in batch:
                    counts[row] += len(ids)
                done(len(batch))
        assert found is not None, "a task has sentences"
        for kind in KINDS:
            found[kind] /= counts[:, None]
        return found


def kept(folder: Path, reader: Reader, name: str, digest: str, sentences: Sequence[str]) -> Path:
    """The file of a reader's vectors of some sentences, made unless it is there; those of the same sentences and layer by other weights go.

    Args:
        folder: of this system.
        name: of the task; digest: hash of the file of the sentences.
    Returns: a file of numpy's, of `Vectors`.
    """
    prefix = f"{name}.{digest[:16]}.layer{reader.layer}."
    path = folder / f"{prefix}{reader.key[:16]}.npy"
    if not path.is_file():
        vectors = reader.vectors(sentences)
        for other in folder.glob("*.npy"):
            if other.name.startswith(prefix):
                other.unlink()
        with files.writing(path, "wb") as stream:
            np.save(stream, vectors)
    return path


def load(path: Path) -> Vectors:
    """Vectors as a memory map, of which only what is looked at is read."""
    found: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def width(path: Path, kind: str) -> int:
    """How many numbers a vector has."""
    return int(load(path).dtype[kind].shape[0])
