"""The device of the tests of models and of tests/gpu: NMTKIT_DEVICE, by default the CPU."""

import contextlib
import os

DEVICE = os.environ.get("NMTKIT_DEVICE", "cpu")
ON_GPU = DEVICE != "cpu"

if ON_GPU:  # as a training does
    import torch

    from nmtkit.nn import gpu

    if torch.cuda.is_available():
        assert not gpu.load_kernels(torch.device(DEVICE))
        has_kernels = torch.cuda.get_device_capability(DEVICE) >= (8, 0)
        assert gpu.attends_in_rows(torch.bfloat16) or not has_kernels, "no Triton here"


def placed_on(device: str) -> contextlib.AbstractContextManager[object]:
    """Return a context in which new tensors are on a device. Without a GPU all are on the CPU
    anyway, and the context would slow down every call of torch.
    """
    import torch

    return torch.device(device) if ON_GPU else contextlib.nullcontext()
