"""nmtkit: four claims about the neural translation model, trained and compared under equal
conditions.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LoadedSystem", "load"]

if TYPE_CHECKING:
    from nmtkit.api import LoadedSystem, load


def __getattr__(name: str) -> Any:
    """Load the interface for Python on first use: `import nmtkit` alone does not load torch."""
    if name in __all__:
        from nmtkit import api

        return getattr(api, name)
    raise AttributeError(f"module 'nmtkit' has no attribute '{name}'")
