"""Run recipes as a user does, with a program `nmtkit` that passes its arguments to this process.

Here torch is loaded already, so a call takes no seconds for imports.
"""

import itertools
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
"""Variables that recipes read; tests remove them from the environment."""
CLIENT = """#!/usr/bin/env bash
# In bash, which starts ten times as fast as Python.
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
        """Return the first argument of each call of a command: a data set, an analysis."""
        return [call[1] for call in self.calls if call[0] == command]

    def options(self, command: str, option: str) -> list[str]:
        """Return the values of an option in all calls of a command."""
        return [
            value
            for call in self.calls
            if call[0] == command
            for key, value in itertools.pairwise(call)
            if key == option
        ]


def in_this_process(arguments: list[str]) -> tuple[int, str, str]:
    """Run nmtkit; return exit code, stdout and stderr."""
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def do_nothing(arguments: list[str]) -> tuple[int, str, str]:
    """Make only the files of a call that recipes copy or look for; return success."""
    run = Path(arguments[arguments.index("--run") + 1])
    names = {
        "prep": "prep/train/00000.spans.bin",
        "score": "score/test/table.md",
        "report": "report/index.html",
        "analyze": f"analyze/{arguments[1]}/table.md",
    }
    if arguments[0] == "prep" and not {"--parses", "--parser"} & set(arguments):
        del names["prep"]
    if name := names.get(arguments[0]):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    return 0, "", ""


def note_installed(folder):
    """Make a folder an environment in which recipes have nothing to install."""
    names = "pyproject.toml", "recipes/requirements.lock"
    both = b"".join((ROOT / name).read_bytes() for name in names)
    sum_of_both = subprocess.check_output(["cksum"], input=both).decode()
    (folder / ".installed").write_text(f"{folder.resolve()} {ROOT.resolve()} {sum_of_both}")


def install(folder, program):
    """Make a folder an environment whose program `nmtkit` is this script."""
    path = folder / "bin" / "nmtkit"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(program, "utf-8")
    path.chmod(0o755)
    note_installed(folder)


def environment(*removed: str, **values: object) -> dict[str, str]:
    """Return the environment without variables that recipes read, and with some values."""
    remaining = {key: os.environ[key] for key in os.environ.keys() - {*ASKED, *removed}}
    return remaining | {key: str(value) for key, value in values.items()}


def run_recipe(recipe: Path, folder: Path, answer=in_this_process, **variables: object) -> Done:
    """Run a recipe.

    Args:
        folder: for the program `nmtkit` and the recipe's output.
        answer: what the program does: arguments -> exit code, stdout, stderr.
        variables: of the environment.
    """
    install(folder, CLIENT)
    calls = []
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        open(folder / "out", "w+", encoding="utf-8") as out,
        open(folder / "err", "w+", encoding="utf-8") as err,
    ):
        door.settimeout(0.05)
        variables |= {"DOOR": door.getsockname()[1], "ANSWER": folder / "answer"}
        options = {"env": environment(NMTKIT_VENV=folder, **variables), "cwd": folder}
        options |= {"stdout": out, "stderr": err}
        with subprocess.Popen(["bash", str(recipe)], **options) as process:
            while process.poll() is None:
                try:
                    connection, _ = door.accept()
                except TimeoutError:
                    continue
                connection.settimeout(None)
                with connection:
                    calls.append(serve(connection, folder, answer))
        out.seek(0)
        err.seek(0)
        return Done(process.returncode, out.read(), err.read(), calls)


def serve(connection: socket.socket, folder: Path, answer) -> list[str]:
    """Answer a call of the program; return its arguments."""
    with connection.makefile("rw", encoding="utf-8") as stream:
        arguments = stream.readline().split("\0")[:-1]
        code, stdout, stderr = answer(arguments)
        (folder / "answer.out").write_text(stdout, "utf-8")
        (folder / "answer.err").write_text(stderr, "utf-8")
        print(code, file=stream, flush=True)
    return arguments
