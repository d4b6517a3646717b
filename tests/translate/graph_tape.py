"""Replace CUDA graphs on a CPU by a tape of torch operations.

A replay repeats the operations, not the Python code around them: a number computed on the host
keeps its value from the recording.
"""

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.nn import masks, recording


class Tape(TorchDispatchMode):
    """Collects the operations done inside the context, with their results."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.operations.append((operation, args, kwargs or {}, result))
        return result

    def play(self):
        """Repeat the operations; later ones read the new results of earlier ones."""
        results = {}

        def newest(leaf):
            return results.get(id(leaf), leaf) if isinstance(leaf, torch.Tensor) else leaf

        for operation, args, kwargs, result in self.operations:
            args, kwargs = pytree.tree_map(newest, (args, kwargs))
            found = pytree.tree_leaves(operation(*args, **kwargs))
            results |= {
                id(old): new for old, new in zip(pytree.tree_leaves(result), found, strict=True)
            }


def use_tapes(monkeypatch):
    """Replace the recording of graphs by tapes; return a list with an entry for each replay.

    The recording already computes, so the first replay does nothing.
    """
    replays = []

    def record(compute, pool):
        # A graph that reads a cached mask would read freed memory in a later replay.
        assert not masks._kept.cache_info().currsize
        tape = Tape()
        with tape:
            result = compute()
        first = [True]

        def replay():
            replays.append(1)
            if not first:
                tape.play()
            first.clear()

        return replay, result

    monkeypatch.setattr(recording, "record", record)
    monkeypatch.setattr(recording, "graphs_fit", lambda device: True)
    return replays
