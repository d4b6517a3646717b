"""The reference of commands and that of settings, written from the program itself.

python -m tests.docs.reference
"""

import re
from types import SimpleNamespace

from typer.main import get_command

from nmtkit import fields, settings
from nmtkit.cli import app
from nmtkit.models.variants import VARIANTS, load_variant
from nmtkit.presets import preset_names
from tests import ROOT

REMAKE = (
    "`python -m tests.docs.reference` writes this page from the program; "
    "a test fails when the page is outdated."
)
GENERAL = "General"
FIRST = "Arguments and options"


def cell(text: str) -> str:
    """Return text for a cell of a table: bars, line ends and markup outside of code are escaped."""
    parts = re.split("(`[^`]*`)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<])", r"\\\1", part) for part in parts
    )


def code(text: str) -> str:
    """Text as code in a cell of a table; empty stays empty."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a table."""
    return [
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def unescaped(text: str) -> str:
    """Text of the program's help without the escapes that keep rich from reading markup."""
    return text.replace("\\[", "[")


def option_row(option) -> list[str]:
    """What the help says of one option or argument: its name, default and meaning."""
    is_option = option.opts[0].startswith("-")
    name = (
        ", ".join(sorted(option.opts, key=len)) + (f" {option.metavar}" if option.metavar else "")
        if is_option
        else option.metavar
    )
    default = "" if option.default is None or option.default is False else str(option.default)
    notes = ["Required."] * option.required + [f"Environment variable: `{option.envvar}`."] * bool(
        option.envvar
    )
    kind = option if hasattr(option, "min") else getattr(option, "type", None)
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None:
        notes.append(f"Between {low:g} and {high:g}.")
    elif high is not None:
        notes.append(f"At most {high:g}.")
    elif low is not None:
        notes.append(f"At least {low:g}.")
    return [code(name), code(default), " ".join([cell(unescaped(option.help or "")), *notes])]


def common(commands: dict) -> dict[str, list[str]]:
    """The options that all commands have alike, by name."""
    rows = [
        {option.name: tuple(option_row(option)) for option in command.get_params(context())}
        for command in commands.values()
    ]
    return {
        name: list(row)
        for name, row in rows[0].items()
        if all(other.get(name) == row for other in rows)
    }


def context() -> SimpleNamespace:
    """As much of a call as listing the options takes."""
    return SimpleNamespace(help_option_names=["-h", "--help"], resilient_parsing=False, color=None)


def command_lines(
    name: str, command, left_out: dict[str, list[str]], level: str = "##"
) -> list[str]:
    """The part of a command."""
    lines = [f"{level} nmtkit {name}", "", unescaped(command.help.strip()), ""]
    panels: dict[str, list[list[str]]] = {}
    for option in command.params:
        if option.name not in left_out and not getattr(option, "hidden", False):
            panels.setdefault(getattr(option, "rich_help_panel", None) or FIRST, []).append(
                option_row(option)
            )
    for panel in sorted(panels, key=lambda title: (title == GENERAL, title != FIRST)):
        lines += [f"**{panel}**", "", *table(["option", "default", "meaning"], panels[panel])]
    before, _, rest = unescaped(command.epilog or "").partition("\n\n")
    examples, _, after = rest.partition("\n\n")
    if examples:
        lines += [before, "", *(f"    {line}" for line in examples.splitlines()), ""]
    return lines + ([after, ""] if after else [])


def sub_commands(command) -> dict:
    """Return the commands of a group by name; none for a plain command."""
    return (
        {name: command.get_command(None, name) for name in command.list_commands(None)}
        if hasattr(command, "list_commands")
        else {}
    )


def group_lines(commands: dict, left_out: dict[str, list[str]]) -> list[str]:
    """Return the parts of the analyses, after the options that all analyses have."""
    shared = common(commands)
    rows = [row for name, row in shared.items() if name not in left_out]
    lines = ["Every analysis has:", "", *table(["option", "default", "meaning"], rows)]
    for name, command in commands.items():
        lines += command_lines(f"analyze {name}", command, shared, "###")
    return lines


def commands_page() -> str:
    """The reference of the command line."""
    commands = sub_commands(get_command(app))  # in the order of the help
    shared = common(
        {
            name: sub
            for name, command in commands.items()
            for name, sub in (sub_commands(command) or {name: command}).items()
        }
    )
    lines = [
        "# Command line",
        "",
        REMAKE,
        "`nmtkit COMMAND --help` prints the same in the terminal.",
        "",
    ]
    lines += [" · ".join(f"[{name}](#nmtkit-{name})" for name in commands), ""]
    lines += [
        "All commands have:",
        "",
        *table(["option", "default", "meaning"], list(shared.values())),
    ]
    for name, command in commands.items():
        lines += command_lines(name, command, shared)
        lines += group_lines(sub_commands(command), shared) if sub_commands(command) else []
    lines += [
        "## Exit codes",
        "",
        *table(
            ["code", "meaning"],
            [[code(str(number)), meaning] for number, meaning in EXIT_CODES.items()],
        ),
        "## Environment variables",
        "",
        *table(
            ["variable", "meaning"],
            [[code(name), meaning] for name, meaning in VARIABLES.items()],
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"


EXIT_CODES = {
    0: "done",
    1: (
        "internal error of nmtkit (`--debug` shows the traceback); "
        "for `export --check`: too few lines are equal"
    ),
    2: "user error: the command, the settings or the data",
    3: "environment error: disk, network, device, a missing package, a lost process",
    4: "the training diverged",
    75: "stopped and saved; the same command continues",
    130: "stopped immediately (Ctrl-C, SIGTERM, SIGUSR1, a closed terminal; in training a second Ctrl-C)",
    143: "stopped by SIGTERM while Python loads or ends",
}

VARIABLES = {
    "NMTKIT_RUN": "the run directory, where a command has no `--run`",
    "NMTKIT_CACHE": "folder for downloads (default: `nmtkit` in the user's cache folder)",
    "NMTKIT_ALLOW_CODE": (
        "modules of systems that may be imported, separated by commas "
        "([security](../security.md#a-run-that-somebody-else-made))"
    ),
    "NMTKIT_RANK_TIMEOUT": (
        "seconds after which a rank that does not answer ends the training (default: 600)"
    ),
    "NMTKIT_DEBUG": "any value: as `--debug`",
    "NMTKIT_VENV": "recipes: folder of their environment (default: `.venv` of the checkout)",
    "NMTKIT_VERDICT": (
        "`recipes/verdict.sh`: folder of its trainings (default: `verdict` in NMTKIT_CACHE)"
    ),
    "NMTKIT_DEVICE": "`tests/gpu/run.sh`: `cpu` tries the script without a GPU",
}


def setting_rows(rows: list[fields.Setting], section: str) -> list[list[str]]:
    """Rows of the table of a section."""
    return [
        [
            code(f"{section}.{row.name}"),
            code(row.default_text),
            code(row.values),
            cell(row.description),
        ]
        for row in rows
    ]


def model_lines() -> list[str]:
    """Return the section `model`: the settings that each variant adds to its base or changes."""
    header = ["setting", "default", "values", "meaning"]
    described = {
        name: {row.name: row for row in fields.describe(load_variant(name).Settings)}
        for name in VARIANTS
    }
    classes = {name: load_variant(name).Settings for name in VARIANTS}
    lines: list[str] = []
    told: list[str] = []
    for name, rows in described.items():
        bases = [
            other
            for other in VARIANTS
            if issubclass(classes[name], classes[other])
            and (classes[other] is not classes[name] or other in told)
        ]
        told.append(name)
        base = max(bases, key=lambda other: len(classes[other].__mro__), default=None)
        own = [row for row in rows.values() if base is None or described[base].get(row.name) != row]
        lines += [f"### {name}", "", f"{load_variant(name).paper}: {VARIANTS[name].summary}.", ""]
        lines += (
            [f"The settings of [{base}](#{base})" + (", and:" if own else ", and no others."), ""]
            if base
            else []
        )
        lines += table(header, setting_rows(own, "model")) if own else []
    return lines


SECTION_TITLES = {
    "prep": "How `nmtkit prep` processes the text.",
    "train": "Budget, batches, optimiser, validation.",
    "search": "How `nmtkit translate` searches. `nmtkit train` stores these with the system.",
}


SOURCES = (
    "Sources of a setting, weakest first: the default below, the data set, `--preset NAME`,",
    "`--config FILE` (TOML), `--set section.key=value`. The resolved settings are written to the",
    "system's `config.toml`. An unknown key is an error that names the nearest key.",
    "`nmtkit settings SECTION --preset NAME --variant NAME` prints a table with a preset's values.",
    "",
    "`--preset` replaces the data set's preset. A data set's values for a preset are stronger than the",
    "preset. Settings of a text model that `--like`, `--spm`, `--codes` or `--vocab` gives are stronger",
    "than all; prep refuses a different value in `--config` or `--set`.",
)


def settings_page() -> str:
    """The reference of the settings."""
    lines = ["# Settings", "", REMAKE, ""]
    lines += [*SOURCES, ""]
    names = ", ".join(f"[{name}](presets/{name}.toml)" for name in preset_names())
    lines += ["Each preset is a file in [presets](presets) that names the source of its values:"]
    lines += [f"{names}.", ""]
    lines += [" · ".join(f"[{name}](#{name})" for name in (*SECTION_TITLES, "model")), ""]
    for section, title in SECTION_TITLES.items():
        rows = setting_rows(fields.describe(settings.STAGES[section]), section)
        lines += [
            f"## {section}",
            "",
            title,
            "",
            *table(["setting", "default", "values", "meaning"], rows),
        ]
    lines += [
        "## model",
        "",
        "The section `model` depends on the variant (`nmtkit train --variant NAME`).",
        "",
    ]
    lines += [" · ".join(f"[{name}](#{name})" for name in VARIANTS), "", *model_lines()]
    return "\n".join(lines).rstrip() + "\n"


PAGES = {
    ROOT / "nmtkit" / "cli" / "README.md": commands_page,
    ROOT / "nmtkit" / "settings.md": settings_page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(path.relative_to(ROOT))
