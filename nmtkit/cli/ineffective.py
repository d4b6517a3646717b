"""Options that would have no effect beside other options are refused, never silently ignored.

The table ineffective.toml lists them by command. Two kinds are refused elsewhere: options that
depend on the data set (prep), and options of another analysis.
"""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any

from nmtkit.errors import ConfigError


@functools.cache
def table() -> dict[str, list[dict[str, Any]]]:
    """Return the cases of each command: `why`, `options`, `hint`, and when the case holds: if one
    of the parameters `given` is typed, or if none of the parameters `missing` is.
    """
    text = resources.files("nmtkit.cli").joinpath("ineffective.toml").read_text("utf-8")
    return tomllib.loads(text)


def refuse_ineffective(ctx: Any) -> None:
    """Refuse an option of a command that has no effect.

    Args:
        ctx: the command and its parameters, parsed.
    Raises: ConfigError naming the first option without effect.
    """
    # What stands on the command line; an option that the environment gives is not refused.
    typed = {
        parameter.name: max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(parameter.name)) and source.name == "COMMANDLINE"
    }
    settings = ctx.params.get("assignments") or ()
    words = {*typed.values(), *(f"--set {text.partition('=')[0].strip()}" for text in settings)}
    for case in table().get(ctx.info_name, []):
        is_typed = not typed.keys().isdisjoint(case.get("given") or case["missing"])
        if is_typed == ("given" in case):
            for option in case["options"]:
                if option in words:
                    message = f"{case['why']}: {option} has no effect"
                    raise ConfigError(message, where=option, hint=case["hint"])
