"""The environment variables that nmtkit sets for libraries (a variable that the user has set
stays), and the user's own modules.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

PRODUCTS = 128
"""Products whose code oneDNN keeps for one model."""

_ours: dict[str, str] = {}


def set_default(name: str, value: str) -> None:
    """Set a variable, unless the user has set it."""
    if os.environ.get(name) in {None, _ours.get(name)}:
        os.environ[name] = _ours[name] = value


def take_back(name: str) -> None:
    """Unset a variable, if nmtkit has set it."""
    if name in os.environ and os.environ[name] == _ours.get(name):
        del os.environ[name]


def import_module(name: str) -> ModuleType:
    """Import a module, perhaps of the user's, which may lie in the current folder: the command
    `nmtkit` itself does not look there, `python -m nmtkit` does.
    """
    folder = str(Path.cwd())
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def prepare() -> None:
    """Set what the program needs, before it loads torch."""
    # Read by OpenMP when torch is loaded. A thread that spins while it waits keeps the other one
    # from the core they share with another program, and a step takes ten times as long; spinning
    # briefly costs a quiet machine a few per cent with tiny models.
    set_default("GOMP_SPINCOUNT", "10000")
    room_for_products(1)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # Read when torch is loaded. When a process dies, each of the others would print the stack
        # of its broken connection, call by call.
        set_default("TORCH_CPP_LOG_LEVEL", "ERROR")


def room_for_products(models: int) -> None:
    """Let oneDNN keep as many compiled products for each of several models as it keeps for one
    model in a process of its own.

    oneDNN reads this at its first product. Each product takes some 0.7 MB, and batches have many
    shapes: with oneDNN's own limit of 1,024 memory grows by most of a gigabyte over an epoch. One
    update uses far fewer again.
    """
    set_default("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRODUCTS * models))
