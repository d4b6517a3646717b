"""Recipes run as a person runs them, but that the program `nmtkit` which they find passes its
arguments on to this process.

torch is loaded here already, so that a call costs what it does, and not seconds of importing.
"""

import os
import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from nmtkit.cli import app
from tests import ROOT

SCRIPTS = {path: path.read_text("utf-8") for path in (ROOT / "recipes").rglob("*.sh")}
RECIPES = sorted(
    path for path, text in SCRIPTS.items() if text.startswith("#!") and "common.sh" in text
)
ASKED = {
    name for text in SCRIPTS.values() for name in re.findall(r"\$\{([A-Z][A-Z_]+):?[-+?]", text)
}
"""The variables that recipes take, which a person who runs the tests may have set."""
CLIENT = """#!/usr/bin/env bash
# In bash, whose start costs a tenth of Python's.
exec 3<>"/dev/tcp/127.0.0.1/$DOOR"
printf '%s\\0' "$@" >&3
printf '\\n' >&3
read -r code <&3
cat "$ANSWER.out"
cat "$ANSWER.err" >&2
exit "$code"
"""


@dataclass(frozen=True)
class Done:
    """A recipe that has ended."""

    code: int
    stdout: str
    stderr: str
    calls: list[list[str]]
    """The arguments of each call of nmtkit."""

    def named(self, command: str) -> list[str]:
        """What each call of a command names first: a data set, an analysis."""
        return [call[1] for call in self.calls if call[0] == command]

    def options(self, command: str, option: str) -> list[str]:
        """The values of an option in all calls of a command."""
        return [
            value
            for call in self.calls
            if call[0] == command
            for key, value in zip(call, call[1:], strict=False)
            if key == option
        ]


def in_this_process(arguments: list[str]) -> tuple[int, str, str]:
    """What nmtkit does."""
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def nothing(arguments: list[str]) -> tuple[int, str, str]:
    """What recipes need of nmtkit, and no more: the folders of which they keep a copy, and a
    sign of parses where some were given.
    """
    run = Path(arguments[arguments.index("--run") + 1])
    parsed = ["prep/train/00000.spans.bin"] if {"--parses", "--parser"} & set(arguments) else []
    made = {"prep": parsed, "score": ["score/test/table.md"], "report": ["report/index.html"]}
    for name in made.get(arguments[0], []) + (
        [f"analyze/{arguments[1]}/table.md"] if arguments[0] == "analyze" else []
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    return 0, "", ""


def note_installed(folder):
    """Make a folder an environment in which recipes have nothing to install."""
    names = "pyproject.toml", "recipes/requirements.lock"
    both = b"".join((ROOT / name).read_bytes() for name in names)
    sum_of_both = subprocess.check_output(["cksum"], input=both).decode()
    (folder / ".installed").write_text(f"{folder.resolve()} {ROOT.resolve()} {sum_of_both}")


def run_recipe(recipe: Path, folder: Path, answer=in_this_process, **environment: object) -> Done:
    """Run a recipe.

    Args:
        folder: for the program that stands for nmtkit, and the recipe's output.
        answer: what that does: arguments -> exit code, stdout, stderr.
        environment: further variables.
    """
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    program = folder / "bin" / "nmtkit"
    program.write_text(CLIENT, "utf-8")
    program.chmod(0o755)
    note_installed(folder)
    variables = {key: value for key, value in os.environ.items() if key not in ASKED}
    variables |= {key: str(value) for key, value in environment.items()}
    calls = []
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        open(folder / "out", "w+", encoding="utf-8") as out,
        open(folder / "err", "w+", encoding="utf-8") as err,
    ):
        door.settimeout(0.05)
        variables |= {
            "DOOR": str(door.getsockname()[1]),
            "ANSWER": str(folder / "answer"),
            "NMTKIT_VENV": str(folder),
        }
        with subprocess.Popen(
            ["bash", str(recipe)], env=variables, stdout=out, stderr=err, cwd=folder
        ) as process:
            while process.poll() is None:
                try:
                    connection, _ = door.accept()
                except TimeoutError:
                    continue
                connection.settimeout(None)
                with connection, connection.makefile("rw", encoding="utf-8") as stream:
                    calls.append(stream.readline().split("\0")[:-1])
                    code, *said = answer(calls[-1])
                    for name, text in zip(("out", "err"), said, strict=True):
                        (folder / f"answer.{name}").write_text(text, "utf-8")
                    print(code, file=stream, flush=True)
        out.seek(0)
        err.seek(0)
        return Done(process.returncode, out.read(), err.read(), calls)
