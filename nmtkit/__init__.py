"""nmtkit: four claims about the neural translation model, trained and compared under equal
conditions.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["EncodedLine", "LoadedSystem", "NmtkitError", "Translation", "load"]

if TYPE_CHECKING:
    from nmtkit.api import EncodedLine, LoadedSystem, load
    from nmtkit.errors import NmtkitError
    from nmtkit.translate.translator import Translation


def __getattr__(name: str) -> Any:
    """Load the interface for Python on first use: `import nmtkit` alone does not load torch."""
    if name in __all__:
        module = "nmtkit.errors" if name == "NmtkitError" else "nmtkit.api"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'nmtkit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
