"""Options that would have no effect beside what else was given: refused, and never silently
ignored.

One table says it for all commands. What depends on a data set (prep) is refused where that is
known; analyses have sub-commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nmtkit.errors import ConfigError

Values = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A way to use a command in which some of its options have no effect."""

    what: str
    """It in words."""
    holds: Callable[[Values], bool]
    """Whether this is it, by the values of the command's parameters."""
    unused: tuple[str, ...]
    """The options, as they are typed; a setting as `--set section.key`."""
    hint: str


def _outside_files(values: Values) -> bool:
    return bool(values["hyp"] or values["ref"])


def _wins(option: str, setting: str) -> Case:
    """An option that says what a setting would say too."""
    name = option.removeprefix("--").replace("-", "_")
    hint = f"leave it out, or leave out {option}"
    return Case(
        f"{option} is given too, and wins",
        lambda values: values[name] is not None,
        (f"--set {setting}",),
        hint,
    )


CASES: dict[str, tuple[Case, ...]] = {
    "train": (_wins("--seed", "train.seed"),),
    "translate": (
        Case(
            "a file or stdin goes to stdout",
            lambda values: values["source"] is not None,
            ("--set-name", "--force"),
            "leave it out; it is for the prepared sets of the run",
        ),
        Case(
            "with --force-target nothing is searched or kept",
            lambda values: values["force_target"] is not None,
            (
                *(
                    "--force",
                    "--preset",
                    "--config",
                    "--beam",
                    "--nbest",
                    "--length-penalty",
                    "--set search.beam",
                    "--set search.nbest",
                ),
                *(
                    "--set search.length_penalty",
                    "--set search.max_length_a",
                    "--set search.max_length_b",
                ),
            ),
            "leave it out, or leave out --force-target to translate",
        ),
        *(
            _wins(f"--{key.replace('_', '-')}", f"search.{key}")
            for key in ("beam", "length_penalty", "nbest", "average")
        ),
    ),
    "score": (
        Case(
            "outside files are scored, without a run",
            _outside_files,
            ("--system", "--set-name", "--group-by", "--paper", "--table", "--run", "--force"),
            "leave it out; it is for the translations of a run",
        ),
        Case(
            "no paper is named",
            lambda values: values["paper"] is None,
            ("--table",),
            "leave it out, or name the paper's file: --paper FILE",
        ),
        Case(
            "the translations of a run are scored",
            lambda values: not _outside_files(values),
            ("--src", "--lang"),
            "leave it out, or name outside files to score: --hyp FILE --ref FILE",
        ),
    ),
    "report": (
        Case(
            "no attention is computed",
            lambda values: not values["attention"],
            ("--sentences",),
            "leave it out, or name a system: --attention SYSTEM",
        ),
    ),
    "export": (
        Case(
            "without --check nothing is compared",
            lambda values: not values["check"],
            ("--lines", "--at-least"),
            "leave it out, or add --check",
        ),
    ),
    "datasets": (
        Case(
            "data sets are listed",
            lambda values: not values["fetch"],
            ("--from-dir",),
            "leave it out, or say what to bring here: --fetch NAME",
        ),
        Case(
            "files are brought here",
            lambda values: bool(values["fetch"]),
            ("--json",),
            "leave it out; it is for the list",
        ),
    ),
    "settings": (
        Case(
            "only the section model depends on the variant",
            lambda values: values["section"] not in (None, "model"),
            ("--variant",),
            "leave it out, or list nmtkit settings model",
        ),
    ),
}


def refuse_unused(ctx: Any) -> None:
    """Look a command's options up in the table.

    Args:
        ctx: the command and its parameters, parsed.
    Raises: ConfigError naming the first option without effect.
    """
    given = typed(ctx)
    for case in CASES.get(str(ctx.info_name), ()):
        for option in case.unused:
            if option in given and case.holds(ctx.params):
                raise ConfigError(
                    f"{case.what}: {option} has no effect", where=option, hint=case.hint
                )


def typed(ctx: Any) -> set[str]:
    """The options that stand on the command line (not those from the environment, nor defaults),
    each by its long name; a setting with its key.
    """
    found = set()
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":
            found.add(max(parameter.opts, key=len))
    return found | {
        f"--set {text.partition('=')[0].strip()}" for text in ctx.params.get("assignments") or ()
    }
