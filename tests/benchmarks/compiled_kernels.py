"""Compile the kernels of nmtkit/nn/kernels for GPUs that this machine does not have.

    python tests/benchmarks/compiled_kernels.py 8.0 8.6 9.0 10.0 12.0        compute capabilities

For each kernel, number type and option that changes its memory, it prints the registers of a
thread, the bytes of registers that spill to memory, and the shared memory of a program. The exit
code is 1 if a program needs more than 99 KiB of shared memory, the limit of GPUs of capability 8.6,
8.9 and 12.0. The kernels do not run: tests/nn/test_kernels.py tests their results with Triton's
interpreter, and kernels.py measures their time on a GPU.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nmtkit.data.packing import segments  # noqa: E402
from nmtkit.nn.kernels import additive, affine, attention, cells, few_queries, loss, norm  # noqa: E402

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
LEAST_SHARED = 99 * 1024
COUNT = 512
NARROW = torch.bfloat16
OPTIONS = {"C", "D", "H", "ROWS", "CAUSAL", "DROPS", "RELU", "MASKED"}


class Absent:
    """Stand-in for the driver of a GPU, which the compiler asks only for the compute capability."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


def numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return random numbers with a gradient."""
    return torch.randn(*shape).to(dtype).requires_grad_()


def start_all() -> None:
    """Start every kernel with every option that changes its memory."""
    start_attention()
    start_layers()
    start_recurrent()
    for dtype in (NARROW, torch.float32):
        logits, targets = torch.zeros(8, 9000, dtype=dtype), torch.ones(8, dtype=torch.int64)
        loss.loss_and_gradient(logits, targets, 0.1, torch.ones(()))


def start_attention() -> None:
    """Start attention within sentences, and attention of a search step."""
    lengths = np.array([100, 30, 126, 256])
    where = segments(lengths, lengths).queries
    for width, causal, p in itertools.product((32, 64, 128), (False, True), (0, 0.1)):
        q, k, v = attention.parts(numbers(1, COUNT, 3, 2, width, dtype=NARROW))
        context = attention.within_sentences(q[0], k[0], v[0], where, where, causal, p)
        context.sum().backward()
    for dtype, width in itertools.product((NARROW, torch.float32), (32, 64, 128)):
        q, k = torch.zeros(2, 4, 5, width, dtype=dtype), torch.zeros(2, 4, 70, width, dtype=dtype)
        for mask in (None, torch.zeros(2, 5, 70)):
            few_queries.attend(q, k, k, mask)


def start_layers() -> None:
    """Start layer norm of a residual sum, and the maps of a feed-forward layer."""
    for width, p, wide in itertools.product((64, 512, 1024), (0, 0.1), (False, True)):
        x, y = (numbers(COUNT, width, dtype=dtype) for dtype in (torch.float32, NARROW))
        layer = torch.nn.LayerNorm(width)
        for added in (y, None) if wide and not p else (y,):
            parts = norm.residual_norm(x, added, layer, p, wide, NARROW)
            sum(part.float().sum() for part in parts if part is not None).backward()  # type: ignore[union-attr]
    x, weight = numbers(COUNT, 64, dtype=NARROW), numbers(2048, 64, dtype=NARROW)
    bias = numbers(2048, dtype=torch.float32)
    affine.relu_of_affine(x, weight, bias, bias.detach().to(NARROW)).sum().backward()
    affine.biased(x @ weight.t(), bias).sum().backward()


def start_recurrent() -> None:
    """Start the cells, and the scores of additive attention."""
    for width in (256, 1024):
        h, p = numbers(2, 8, width, dtype=torch.float32), numbers(2, 8, 2 * width, dtype=NARROW)
        x = numbers(2, 8, 3 * width, dtype=torch.float32)
        sum(part.float().sum() for part in cells.gru(x, h, p, lambda kept: kept)).backward()
        both = x[..., width:].contiguous()
        sum(part.float().sum() for part in cells.adaptive(both, h, p)).backward()
        cells.gru(x, h, p, lambda kept: kept, only=NARROW)[1].float().sum().backward()
        cells.adaptive(both, h, p, 0.5, only=NARROW)[1].float().sum().backward()
        for dtype in (NARROW, torch.float32):
            q, v = numbers(8, width, dtype=dtype), numbers(width, dtype=torch.float32)
            additive.scores(q, numbers(8, 30, width, dtype=dtype), v, 0.5).sum().backward()


def resources(program: bytes) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes of registers that spill to memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program)
        file.flush()
        command = [TOOL, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    fields = dict(field.split(":", 1) for field in text.split() if field.count(":") == 1)
    return int(fields["REG"]), int(fields["STACK"])


def main() -> None:
    """Compile all kernels for each capability."""
    too_large = 0
    programs: set[str] = set()

    def start(kernel: Any, grid: Any) -> Callable[..., None]:
        def compile_only(*args: Any, **options: Any) -> None:
            nonlocal too_large
            program = kernel.run(*args, grid=grid, warmup=True, **options)
            if program.hash in programs:
                return
            programs.add(program.hash)
            registers, spilled = resources(program.asm["cubin"])
            shared = program.metadata.shared
            too_large += shared > LEAST_SHARED
            kind = " ".join(f"{name}={value}" for name, value in options.items() if name in OPTIONS)
            first = next(x.dtype for x in args if isinstance(x, Tensor))
            name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.__name__}"
            print(
                f"{name:34} {str(first)[6:]:9} {registers:4} registers {spilled:4} B spilled"
                f" {shared / 1024:5.1f} KiB shared  {kind}",
                flush=True,
            )

        return compile_only

    JITFunction.__getitem__ = start
    for version in sys.argv[1:]:
        print(f"compute capability {version}")
        driver.set_active(Absent(round(10 * float(version))))
        start_all()
    sys.exit(too_large > 0)


if __name__ == "__main__":
    main()
