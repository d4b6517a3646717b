"""A stand-in for CUDA graphs on a CPU: a replay computes again what was recorded."""

import torch

from nmtkit.nn import masks, recording


def replace_graphs(monkeypatch, alone=True):
    """Replace the recording of graphs; return a list with an entry for each replay.

    Args:
        alone: True if no other thread makes masks meanwhile.
    """
    replays = []

    def record(compute, pool):
        # A graph that read a mask of before would read freed memory later.
        assert not alone or not masks._kept.cache_info().currsize
        result = torch.zeros(0, dtype=torch.float64)

        def replay():
            replays.append(1)
            recording.forget()  # a graph makes its masks in each replay
            value = compute()
            result.resize_(value.shape).copy_(value)

        return replay, result

    monkeypatch.setattr(recording, "record", record)
    return replays
