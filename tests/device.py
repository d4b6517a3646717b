"""Where the tests of models and of tests/gpu compute: NMTKIT_DEVICE, by default the CPU."""

import os

DEVICE = os.environ.get("NMTKIT_DEVICE", "cpu")
ON_GPU = DEVICE != "cpu"

if ON_GPU:  # as a training does
    import torch

    from nmtkit.nn.gpu import load_kernels

    if torch.cuda.is_available():
        assert not load_kernels(torch.device(DEVICE))
