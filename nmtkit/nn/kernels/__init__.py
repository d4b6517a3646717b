"""Triton kernels that compute in one pass over memory what torch computes in several.

The models and the loss have the same computation in torch's operations, for every other device and
number type, and tests compare the two. `tests/benchmarks/kernels.py` measures their gain.
"""

from nmtkit.nn.kernels import additive, affine, attention, cells, loss, norm

__all__ = ["additive", "affine", "attention", "cells", "loss", "norm"]
