"""Write the reference pages of commands and settings from the program.

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
    """Return text as code in a cell of a table; empty text stays empty."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table, and an empty line."""
    lines = [header, *rows]
    head, *body = [f"| {' | '.join(row)} |" for row in lines]
    return [head, "|" + "---|" * len(header), *body, ""]


def option_table(rows: list[list[str]]) -> list[str]:
    return table(["option", "default", "meaning"], rows)


def unescaped(text: str | None) -> str:
    """Return text of the help without the escapes that keep rich from reading markup."""
    return (text or "").replace("\\[", "[")


def option_row(option) -> list[str]:
    """Return name, default and meaning of an option or argument."""
    name = option.metavar
    if option.opts[0].startswith("-"):
        name = " ".join([", ".join(sorted(option.opts, key=len)), option.metavar or ""]).strip()
    default = "" if option.default is None or option.default is False else str(option.default)
    meaning = [cell(unescaped(option.help))]
    if option.required:
        meaning.append("Required.")
    if option.envvar:
        meaning.append(f"Environment variable: `{option.envvar}`.")
    return [code(name), code(default), " ".join([*meaning, *limits(option)])]


def limits(option) -> list[str]:
    """Return the sentence on the smallest and the largest value of an option, if any."""
    kind = option if hasattr(option, "min") else getattr(option, "type", None)
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None:
        return [f"Between {low:,.15g} and {high:,.15g}."]
    if high is not None:
        return [f"At most {high:,.15g}."]
    return [] if low is None else [f"At least {low:,.15g}."]


def common(commands: dict) -> dict[str, list[str]]:
    """Return the rows of the options that are the same in all commands, by name."""
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
    """Return the attributes of a call that listing options needs."""
    return SimpleNamespace(help_option_names=["-h", "--help"], resilient_parsing=False, color=None)


def command_lines(
    name: str, command, left_out: dict[str, list[str]], level: str = "##"
) -> list[str]:
    """Return the section of a command: its help, its options by panel, and its examples."""
    lines = [f"{level} nmtkit {name}", "", unescaped(command.help.strip()), ""]
    panels: dict[str, list[list[str]]] = {}
    for option in command.params:
        if option.name not in left_out and not getattr(option, "hidden", False):
            panel = getattr(option, "rich_help_panel", None) or FIRST
            panels.setdefault(panel, []).append(option_row(option))
    for panel in sorted(panels, key=lambda title: (title == GENERAL, title != FIRST)):
        lines += [f"**{panel}**", "", *option_table(panels[panel])]
    before, _, rest = unescaped(command.epilog).partition("\n\n")
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
    lines = ["Every analysis has:", "", *option_table(rows)]
    for name, command in commands.items():
        lines += command_lines(f"analyze {name}", command, shared, "###")
    return lines


def commands_page() -> str:
    """Return the reference of the command line."""
    commands = sub_commands(get_command(app))  # in the order of the help
    plain = {}
    for name, command in commands.items():
        plain |= sub_commands(command) or {name: command}
    shared = common(plain)
    lines = ["# Command line", "", REMAKE]
    lines += ["`nmtkit COMMAND --help` prints the same in the terminal.", ""]
    lines += [" · ".join(f"[{name}](#nmtkit-{name})" for name in commands), ""]
    lines += ["All commands have:", "", *option_table(list(shared.values()))]
    for name, command in commands.items():
        lines += command_lines(name, command, shared)
        lines += group_lines(sub_commands(command), shared) if sub_commands(command) else []
    codes = [[code(str(number)), meaning] for number, meaning in EXIT_CODES.items()]
    lines += ["## Exit codes", "", *table(["code", "meaning"], codes)]
    variables = [[code(name), meaning] for name, meaning in VARIABLES.items()]
    lines += ["## Environment variables", "", *table(["variable", "meaning"], variables)]
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


def setting_table(rows: list[fields.Setting], section: str) -> list[str]:
    """Return the table of the settings of a section."""
    cells = [
        [
            code(f"{section}.{row.name}"),
            code(row.default_text),
            code(row.values),
            cell(row.description),
        ]
        for row in rows
    ]
    return table(["setting", "default", "values", "meaning"], cells)


def base_of(name: str) -> str | None:
    """Return the variant whose settings a variant extends, the nearest of the listed ones.

    Of variants with the same settings the first in the table of variants is the base.
    """
    names = list(VARIANTS)
    classes = {other: load_variant(other).Settings for other in names}
    bases = [
        other
        for other in names
        if issubclass(classes[name], classes[other])
        and (classes[other] is not classes[name] or names.index(other) < names.index(name))
    ]
    return max(bases, key=lambda other: len(classes[other].__mro__), default=None)


def model_lines() -> list[str]:
    """Return the section `model`: the settings that each variant adds to its base or changes."""
    described = {
        name: {row.name: row for row in fields.describe(load_variant(name).Settings)}
        for name in VARIANTS
    }
    lines: list[str] = []
    for name, rows in described.items():
        lines += [f"### {name}", "", f"{load_variant(name).paper}: {VARIANTS[name].summary}.", ""]
        base = base_of(name)
        inherited = described[base] if base else {}
        new = [row for row in rows.values() if inherited.get(row.name) != row]
        if base:
            more = ", and:" if new else ", and no others."
            lines += [f"The settings of [{base}](#{base})" + more, ""]
        lines += setting_table(new, "model") if new else []
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
    """Return the reference of the settings."""
    lines = ["# Settings", "", REMAKE, "", *SOURCES, ""]
    names = ", ".join(f"[{name}](presets/{name}.toml)" for name in preset_names())
    lines += ["Each preset is a file in [presets](presets) that names the source of its values:"]
    lines += [f"{names}.", ""]
    lines += [" · ".join(f"[{name}](#{name})" for name in (*SECTION_TITLES, "model")), ""]
    for section, title in SECTION_TITLES.items():
        rows = fields.describe(settings.STAGES[section])
        lines += [f"## {section}", "", title, "", *setting_table(rows, section)]
    lines += ["## model", ""]
    lines += ["The section `model` depends on the variant (`nmtkit train --variant NAME`).", ""]
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
