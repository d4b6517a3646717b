"""Environment variables that nmtkit sets for libraries.

A variable that the user has set stays unchanged.
"""

from __future__ import annotations

import contextlib
import os
import sys

PRODUCTS = 128
"""Number of matrix products whose compiled code oneDNN keeps for one model."""

_ours: dict[str, str] = {}


def set_default(name: str, value: str) -> None:
    """Set a variable, unless the user has set it."""
    if os.environ.get(name) in {None, _ours.get(name)}:
        os.environ[name] = _ours[name] = value


def allowed_code() -> set[str]:
    """Return the modules that NMTKIT_ALLOW_CODE names, separated by commas."""
    names = os.environ.get("NMTKIT_ALLOW_CODE", "").split(",")
    return {name.strip().partition(":")[0] for name in names}


def prepare() -> None:
    """Set the variables that the program needs; call this before torch is loaded."""
    # OpenMP reads this when torch is loaded. A thread that spins while it waits keeps its core
    # busy. If another program runs on the second core, the second thread cannot run, and a step
    # takes ten times as long. Brief spinning makes tiny models a few per cent slower on a quiet
    # machine.
    set_default("GOMP_SPINCOUNT", "10000")
    room_for_products(1)
    # CUDA reads this at its first allocation. Batches have many shapes: blocks that can grow leave
    # fewer gaps in the memory of a GPU.
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"} & os.environ.keys():  # its other names
        set_default("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if _several_processes():
        # torch reads this when it is loaded. By default, if one process dies, every other process
        # prints a stack trace of its broken connection.
        set_default("TORCH_CPP_LOG_LEVEL", "ERROR")


def under_torchrun() -> bool:
    """True if torchrun has started this process and others."""
    return "TORCHELASTIC_RUN_ID" in os.environ and _several_processes()


def _several_processes() -> bool:
    return os.environ.get("WORLD_SIZE", "1") != "1"


def room_for_products(models: int) -> None:
    """Let oneDNN keep PRODUCTS compiled products for each model of this process.

    oneDNN reads the limit at its first product. Each product takes about 0.7 MB, and batches have
    many shapes: with oneDNN's default limit of 1,024, memory grows by most of a gigabyte over an
    epoch. One update reuses far fewer products.
    """
    set_default("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRODUCTS * models))


def restart_without_small_caches() -> None:
    """Start this process again with glibc's caches of small freed blocks off.

    glibc reads this variable when a process starts. Blocks in these caches cannot be joined with
    the free memory around them, so they cut the memory between the tensors of an update into ever
    smaller pieces, and a training on a CPU grows for several epochs.
    """
    glibc = "CS_GNU_LIBC_VERSION" in os.confstr_names
    if glibc and "GLIBC_TUNABLES" not in os.environ:
        _restart_with("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")


def restart_with_utf8() -> None:
    """Start this process again with paths in UTF-8, if the locale has another encoding for them.

    Python reads this variable when a process starts. Libraries take every path as UTF-8, and so do
    the records of a run.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        _restart_with("PYTHONUTF8", "1")


def _restart_with(name: str, value: str) -> None:
    """Start this process again with an environment variable; go on if that is not possible."""
    os.environ[name] = value
    with contextlib.suppress(OSError):
        os.execv(sys.executable, sys.orig_argv)
