"""The command `analyze`: a sub-command for each analysis, derived from its class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from nmtkit.analyze import ANALYSES
from nmtkit.cli.command import Command, EveryCommand, command
from nmtkit.cli.program import CONTEXT, Help, app, examples
from nmtkit.errors import ConfigError
from nmtkit.options import (
    GENERAL,
    CodeOptions,
    Options,
    flag,
    format_option,
    option,
    run_option,
    set_names_option,
    typed,
)
from nmtkit.run import choose
from nmtkit.tables.table import Table, text_column
from nmtkit.user_classes import place_of


class EveryAnalysis(Options):
    """The options of every analysis."""

    systems: list[str] = option([], "NAME", "--system", panel=GENERAL)
    """Only this system of the run. Repeatable; the first is the baseline. Default: all systems,
    in the order of their training.
    """
    set_names: list[str] = set_names_option(
        "all test sets or the first, depending on the analysis", GENERAL
    )
    output_format: str = format_option(GENERAL)
    run: Path | None = run_option()
    force: bool = option(False, panel=GENERAL)
    """Analyze again, even if the analysis is up to date."""


def analysis_command(name: str) -> Any:
    """Return the sub-command of an analysis: its options, then those of every analysis.

    Raises: ConfigError for an unknown analysis, or if an option of the analysis has the name of an
        option of every analysis.
    """
    from nmtkit.analyze import stage

    def call(run: Path | None = None, **options: Any) -> None:
        stage.analyze(choose(run), name, **options)

    cls, summary = stage.find(name), stage.summary(name)
    if shared := _names(cls.Options) & _names(EveryAnalysis, CodeOptions, EveryCommand):
        message = f"every analysis has the option {min(shared)}, so {name} cannot add it"
        raise ConfigError(message, where=place_of(cls.Options), hint="rename it")
    call.__doc__ = f"{summary[0].upper()}{summary[1:]}."
    lines = [f"nmtkit analyze {name} {example}".rstrip() for example in cls.examples or [""]]
    single = typer.Typer(add_completion=False, context_settings=CONTEXT)
    settings: dict[str, Any] = {"within": single, "cls": _AnalysisCommand, "short_help": summary}
    command(name, cls.Options, EveryAnalysis, CodeOptions, epilog=examples(*lines), **settings)(
        call
    )
    return get_command(single)


def _names(*groups: type[Options]) -> set[str]:
    """Return the names of options, both as options of the field's name and as they are typed."""
    fields = [(group, key) for group in groups for key in group.model_fields]
    return {name for group, key in fields for name in (flag(key), typed(group, key))}


class _AnalysisCommand(Command):
    """The command of one analysis. The error for an option of another analysis names the analyses
    that have it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        from nmtkit.analyze import stage

        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer's parser names an unknown option
            key = getattr(error, "option_name", "").removeprefix("--").replace("-", "_")
            stage.check_option(stage.find(str(ctx.info_name)), key)
            raise


class _Analyses(Help, TyperGroup):
    """The group of all analyses. The name of an analysis comes before its options."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(ANALYSES)

    def get_command(self, ctx: Any, name: str) -> Any:
        return analysis_command(name)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0].startswith("-") and not {"-h", "--help"} & set(args):
            raise ConfigError(
                "the name of the analysis must come before its options",
                where="nmtkit analyze",
                hint="nmtkit analyze lists them; then: nmtkit analyze NAME …",
            )
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return args[0], self.get_command(ctx, args[0]), args[1:]


group = typer.Typer(cls=_Analyses, invoke_without_command=True, add_completion=False)
app.add_typer(group, name="analyze")


@group.callback(
    epilog=examples(
        "nmtkit analyze",
        "nmtkit analyze cost --help",
        "nmtkit analyze cost --measure --system baseline --system mine",
        "nmtkit analyze my_package.my_file:MyAnalysis",
    ),
)
def analyze(ctx: typer.Context) -> None:
    """Look inside the systems: an analysis gives a table, mostly a figure, and how to read it."""
    if ctx.invoked_subcommand is None:
        columns = [text_column("analysis"), text_column("shows", "what it shows")]
        Table("analyses", "", columns, list(ANALYSES.items())).print()
