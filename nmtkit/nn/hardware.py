"""What this machine computes with: device, precision, matrix products, allocator; measured or read from the hardware, and said in one line."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.nn.linear import WIDE, Precision

# A path is taken for its speed only if it is faster by this factor, so that noise never decides (the gains meant are 2x).
CLEARLY = 1.3
# Float32 products of 1,024 terms: an error above this relative to the largest result is not float32 arithmetic (bfloat16 has 4e-3).
FLOAT32_ERROR = 5e-6
# What oneDNN keeps by default.
ONEDNN_PRODUCTS = 1024


@dataclass(frozen=True)
class Hardware:
    """The choices made at start-up; kept with a checkpoint, so that a continued training computes with the same arithmetic."""

    device: str
    """cpu or cuda."""
    name: str
    threads: int
    precision: Precision
    matmul: str
    """torch.set_float32_matmul_precision: highest, high (TF32 on a GPU) or medium (oneDNN's float32 on some CPUs)."""
    keeps_blocks: bool
    """Whether the C allocator was told to keep big blocks."""

    def describe(self) -> str:
        """One line for the log."""
        path = {"highest": "default float32 path", "high": "TF32", "medium": "oneDNN float32 path"}[self.matmul]
        kept = ", allocator keeps big blocks" if self.keeps_blocks else ""
        threads = f", {self.threads} thread{'s' if self.threads != 1 else ''}" if self.device == "cpu" else ""
        return f"device {self.device} ({self.name}){threads}, {self.precision}, {path}{kept}"

    def values(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def pick_device(wanted: str) -> torch.device:
    """The device for auto, cpu or cuda.

    Raises: ConfigError for another word; EnvironmentProblem if cuda, or the GPU of that number, is asked for and absent.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", wanted):
        raise ConfigError(f"unknown device '{wanted}'", where="--device", hint="auto, cpu, or cuda")
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise EnvironmentProblem("no CUDA device here", where=f"--device {wanted}", hint="leave --device out, or install a torch build with CUDA")
    number = int(wanted.partition(":")[2] or 0)
    if number and number >= torch.cuda.device_count():
        raise EnvironmentProblem(f"no GPU {number} here: there are {torch.cuda.device_count()}", where=f"--device {wanted}", hint="count from 0")
    return torch.device(wanted)


def choose(device: str = "auto", precision: str = "auto", width: int = 256, remembered: dict[str, Any] | None = None) -> Hardware:
    """Choose for this machine, and set torch and the allocator accordingly.

    Args:
        device: auto, cpu or cuda.
        precision: auto, float32 or bfloat16; auto takes bfloat16 only where this hardware multiplies it clearly faster.
        width: D of the model; a narrow model gains nothing from bfloat16 on a CPU.
        remembered: `values()` of an earlier start: on the same machine its measured choices are kept, for the same bits.
    Raises: ConfigError, EnvironmentProblem as `pick_device`.
    """
    picked = pick_device(device)
    name = torch.cuda.get_device_name(picked) if picked.type == "cuda" else _cpu_name()
    threads = torch.get_num_threads()
    torch.set_flush_denormal(True)  # Adam's moments of words not seen for long would end as numbers that a CPU is very slow with
    kept = keep_big_blocks() if picked.type == "cpu" else False
    old = remembered or {}
    same = (old.get("device"), old.get("name"), old.get("threads")) == (picked.type, name, threads)
    matmul = old["matmul"] if same else "high" if picked.type == "cuda" else _matmul_path()
    torch.set_float32_matmul_precision(matmul)
    if precision != "auto":
        chosen: Precision = "bfloat16" if precision == "bfloat16" else "float32"
    elif same:
        chosen = old["precision"]
    else:
        chosen = "bfloat16" if _bfloat16_pays(picked, width) else "float32"
    return Hardware(picked.type, name, threads, chosen, matmul, kept)


def room_for_products(models: int) -> None:
    """Let oneDNN keep as many compiled products for several models of one process as each would have in a process of its own.

    To be called before the first product: the library looks once. (More for one model pays little and costs close to a megabyte each.)
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(ONEDNN_PRODUCTS * models))


def keep_big_blocks() -> bool:
    """Tell glibc's allocator not to hand big blocks back to the system (it would map and clear them anew at every step).

    Returns: whether there is such an allocator.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD; each returns 1 where it is accepted.
    return all([mallopt(-3, 1 << 30), mallopt(-1, 2**31 - 1), mallopt(-2, 64 << 20)])


@functools.cache  # measured once in a process: all that it compares is computed alike
def _matmul_path() -> str:
    return measured_matmul_path()


def measured_matmul_path() -> str:
    """`medium` where this CPU has a clearly faster path for products of float32 that is as exact, else `highest`."""
    x, w = _operands(torch.float32)
    exact = x.double() @ w.double().T
    before = torch.get_float32_matmul_precision()

    def product(path: str) -> torch.Tensor:
        torch.set_float32_matmul_precision(path)
        return x @ w.T

    try:
        error = float((product("medium") - exact).abs().max() / exact.abs().max())
        gain = _gain(lambda: product("highest"), lambda: product("medium"))
    finally:
        torch.set_float32_matmul_precision(before)
    return "medium" if error < FLOAT32_ERROR and gain > CLEARLY else "highest"


def _bfloat16_pays(device: torch.device, width: int) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return width >= WIDE and _cpu_gains()


@functools.cache
def _cpu_gains() -> bool:
    if not {"avx512_bf16", "amx_bf16", "bf16"} & _cpu_flags():
        return False
    x, w = _operands(torch.float32)
    x16, w16 = _operands(torch.bfloat16)
    return _gain(lambda: x @ w.T, lambda: x16 @ w16.T) > CLEARLY


def _gain(slow: Callable[[], object], fast: Callable[[], object]) -> float:
    """How many times faster the second is: CPU time of one thread, in turn, so that other work on the machine hardly matters."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = [(_seconds(slow), _seconds(fast)) for _ in range(7)]
    finally:
        torch.set_num_threads(threads)
    return min(t for t, _ in times) / min(t for _, t in times)


def _operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(512, 1024, generator=generator) for _ in range(2))
    return x.to(dtype), w.to(dtype)


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return max(1e-9, time.process_time() - start)


def _cpu_info(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")


def _cpu_name() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_flags() -> set[str]:
    return set((_cpu_info("flags") or _cpu_info("Features")).split())
