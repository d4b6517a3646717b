"""Refuse options that have no effect beside other options, instead of ignoring them.

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
    """Return the cases of each command. A case has `why`, `options`, `hint` and a condition:
    `given` (one of these parameters, or of these settings with their value, is typed) or `missing`
    (none of these parameters is typed).
    """
    text = resources.files("nmtkit.cli").joinpath("ineffective.toml").read_text("utf-8")
    return tomllib.loads(text)


def refuse_ineffective(ctx: Any) -> None:
    """Refuse the options of a command that have no effect.

    Args:
        ctx: the command with its parsed parameters.
    Raises: ConfigError naming the first option without effect.
    """
    # Only options on the command line; options from environment variables are not refused.
    typed = {
        parameter.name: max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(parameter.name)) and source.name == "COMMANDLINE"
    }
    settings = [f"--set {text}" for text in ctx.params.get("assignments") or ()]
    options = {*typed.values(), *(text.partition("=")[0].strip() for text in settings)}
    for case in table().get(ctx.info_name, []):
        is_typed = not {*typed, *settings}.isdisjoint(case.get("given") or case["missing"])
        if is_typed == ("given" in case):
            for option in case["options"]:
                if option in options:
                    message = f"{case['why']}: {option} has no effect"
                    raise ConfigError(message, where=option, hint=case["hint"])
