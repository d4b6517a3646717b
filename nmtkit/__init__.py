"""nmtkit: four claims about the neural translation model, trained and compared under equal
conditions.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LoadedSystem", "load"]

if TYPE_CHECKING:
    from nmtkit.api import LoadedSystem, load


def __getattr__(name: str) -> Any:
    """What there is for Python, looked for when it is asked for: `import nmtkit` alone loads
    nothing, no torch above all.
    """
    if name in __all__:
        from nmtkit import api

        return getattr(api, name)
    raise AttributeError(f"module 'nmtkit' has no attribute '{name}'")
