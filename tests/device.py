"""Where the tests of models and of tests/gpu compute: NMTKIT_DEVICE, by default the CPU."""

import contextlib
import os

DEVICE = os.environ.get("NMTKIT_DEVICE", "cpu")
ON_GPU = DEVICE != "cpu"

if ON_GPU:  # as a training does
    import torch

    from nmtkit.nn.gpu import load_kernels

    if torch.cuda.is_available():
        assert not load_kernels(torch.device(DEVICE))


def placed_on(device: str) -> contextlib.AbstractContextManager[object]:
    """Return a context in which new tensors are on a device. Without a GPU all are on the CPU
    anyway, and the context would slow down every call of torch.
    """
    import torch

    return torch.device(device) if ON_GPU else contextlib.nullcontext()
