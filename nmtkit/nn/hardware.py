"""The device, number type, path of the products and allocator that this machine computes with.

Facts of the hardware decide, never a timing, so the same command gives the same bits every time.
"""

from __future__ import annotations

import functools
import platform
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from nmtkit.errors import ConfigError, EnvironmentProblem, counted
from nmtkit.nn import cpu
from nmtkit.nn.linear import WIDE, Precision, product_precision_restored

_CPUS = tomllib.loads(Path(__file__).with_name("cpus.toml").read_text("utf-8"))["cpu"]
# Products of 1,024 terms with a larger error than this, relative to the largest result, are not
# float32 arithmetic (bfloat16 has 4e-3).
FLOAT32_ERROR = 5e-6
SEARCHES: dict[str, tuple[Precision, ...]] = {
    "cpu": ("float32", "bfloat16", "int8"),
    "cuda": ("float32", "bfloat16", "float16"),
    "mps": ("float32",),
}
"""The precisions of a search on each kind of device."""


@dataclass(frozen=True)
class Hardware:
    """The choices of `choose`.

    A checkpoint stores them, so that a training that continues on other arithmetic can warn.
    """

    device: str
    """cpu, cuda or mps."""
    name: str
    threads: int
    precision: Precision
    matmul: str
    """Argument of torch.set_float32_matmul_precision: highest, high (TF32 on a GPU) or medium
    (oneDNN's products on a CPU).
    """
    keeps_blocks: bool
    """True if the C allocator keeps big blocks."""

    def brief(self) -> str:
        """Return the device and the precision, for the terminal."""
        return f"device {self.device} ({self.name}), {self.precision}"

    def describe(self) -> str:
        """Return one line for the log."""
        paths = {"highest": "default float32", "high": "TF32", "medium": "oneDNN float32"}
        products = f"{paths[self.matmul]} products"
        parts = [f"device {self.device} ({self.name})", self.precision, products]
        if self.device == "cpu":
            parts.insert(1, counted(self.threads, "thread"))
        if self.keeps_blocks:
            parts.append("freed memory is kept")
        return ", ".join(parts)

    def values(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def pick_device(wanted: str) -> torch.device:
    """Return the device for auto, cpu, cuda, cuda:N or mps; auto never takes mps, which is slow for
    small models.

    Raises: ConfigError for any other text; EnvironmentProblem if there is no such GPU.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", wanted):
        raise ConfigError(
            f"unknown device '{wanted}'",
            where="--device",
            hint="auto, cpu, cuda or mps",
        )
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "mps" and not torch.backends.mps.is_available():
        raise EnvironmentProblem(
            "no Apple GPU here",
            where="--device mps",
            hint=f"this machine has: {', '.join(['cpu', *['cuda'] * torch.cuda.is_available()])}",
        )
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise EnvironmentProblem(
            "no CUDA device here",
            where=f"--device {wanted}",
            hint="leave --device out, or install a torch build with CUDA",
        )
    number = int(wanted.partition(":")[2] or 0)
    if number and number >= torch.cuda.device_count():
        raise EnvironmentProblem(
            f"no GPU {number} here: there are {torch.cuda.device_count()}",
            where=f"--device {wanted}",
            hint="count from 0",
        )
    return torch.device(wanted)


def choose(
    device: str = "auto",
    precision: Precision | Literal["auto"] = "auto",
    width: int = 256,
    matmul: str = "auto",
) -> Hardware:
    """Choose how this machine computes, and set torch and the allocator accordingly.

    Args:
        device: auto, cpu, cuda or mps.
        precision: auto, float32, bfloat16 or float16; auto takes the type that this hardware
            multiplies fastest.
        width: D of the model; a narrow model gains nothing from bfloat16 on a CPU.
        matmul: auto, highest, high or medium; auto takes TF32 on a GPU, and on a CPU the fastest
            path of float32 products that is as exact as `highest`.
    Raises: ConfigError, EnvironmentProblem as `pick_device`.
    """
    picked = pick_device(device)
    on_cpu = picked.type == "cpu"
    if picked.type == "mps" and precision not in {"auto", "float32"}:
        raise ConfigError(
            f"an Apple GPU computes in float32 here, not in {precision}",
            where="precision",
            hint="leave the precision out",
        )
    # Adam's moments of rare words shrink to denormal numbers, with which a CPU is very slow.
    torch.set_flush_denormal(True)
    keeps_blocks = on_cpu and cpu.keep_big_blocks()
    if matmul == "auto":
        matmul = _float32_path() if on_cpu else "high" if picked.type == "cuda" else "highest"
    torch.set_float32_matmul_precision(matmul)
    if picked.type == "cuda":
        torch.backends.cudnn.allow_tf32 = matmul != "highest"  # of convolutions and cuDNN's RNNs
        # cuDNN's attention makes a plan for each new shape, which takes the time of many updates.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if picked.index is not None:
        torch.cuda.set_device(picked)  # kernels of Triton and graphs are of the current device
    return Hardware(
        picked.type,
        _name(picked),
        torch.get_num_threads(),
        _fastest(picked, width) if precision == "auto" else precision,
        matmul,
        keeps_blocks,
    )


def _float32_path() -> str:
    """Return the path of cpus.toml for this CPU, or highest if that path is not exact here."""
    path = _cpu_facts()[0]
    return path if path == "highest" or _is_float32(path) else "highest"


@functools.cache
def _is_float32(path: str) -> bool:
    """True if products on a path are as exact as float32 is."""
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(512, 1024, generator=generator) for _ in range(2))
    exact = x.double() @ w.double().T
    with product_precision_restored():
        torch.set_float32_matmul_precision(path)
        return float((x @ w.T - exact).abs().max() / exact.abs().max()) < FLOAT32_ERROR


def _fastest(device: torch.device, width: int) -> Precision:
    """Return the number type whose products are fastest in a training."""
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bfloat16"
        # GPUs before Volta gain nothing from float16; many are slower.
        return "float16" if torch.cuda.get_device_capability(device) >= (7, 0) else "float32"
    # Without oneDNN, torch's products of bfloat16 on a CPU are seventy times as slow.
    onednn = device.type == "cpu" and torch.backends.mkldnn.is_available()
    return "bfloat16" if onednn and width >= WIDE and _cpu_facts()[1] else "float32"


def widest(device: torch.device) -> torch.dtype:
    """Return the number type of sums on a device: float64, or float32 where there is none wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def _cpu_facts() -> tuple[str, bool]:
    """Return the path of float32 products on this CPU, and True if bfloat16 is faster.

    The first entry of cpus.toml that fits decides; the last one fits every CPU.
    """
    flags = {*(_cpu_info("flags") or _cpu_info("Features")).split()}
    maker = _cpu_info("vendor_id")
    rows = (row for row in _CPUS if row.get("maker", maker) == maker and flags >= {*row["flags"]})
    row = next(rows)
    return row["matmul"], row["bfloat16"]


def _cpu_info(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple GPU"
    return _cpu_info("model name") or platform.processor() or platform.machine()
