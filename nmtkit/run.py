"""A run directory: its paths, and the history of its stage calls.

recipes/tour.md shows the tree.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import nmtkit
from nmtkit import console, files, names
from nmtkit.errors import ConfigError, DataError, NmtkitError, check_known, counted, explained
from nmtkit.records import (
    TRAIN_AGAIN,
    Manifest,
    Part,
    SystemConfig,
    SystemRecord,
    TextSet,
    load,
    load_or_warn,
)
from nmtkit.settings import SearchSettings, TrainSettings, build, without_unknown


class StageCall(Part, frozen=False):
    """One line of the history of a run: a call of a stage. The stage fills in the fields."""

    stage: str
    argv: list[str]
    version: str
    commit: str | None
    """The commit of nmtkit."""
    python: str
    device: str | None
    seed: int | None
    start: str
    end: str | None
    exit: int
    """The exit code of the command."""
    system: str | None = None
    """The system that was trained."""
    processes: int | None = None
    steps: list[int] | None = None
    """The first and the last update of a training."""
    systems: list[str] | None = None
    """The systems that were translated or exported."""
    analysis: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class System:
    """One trained model of a run: the folder `systems/<name>`."""

    path: Path

    @property
    def name(self) -> str:
        """The name that the user gave it, by default the variant's."""
        return self.path.name

    @property
    def config(self) -> Path:
        """The resolved settings (config.toml)."""
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        """Measurements of training and validation, one JSON object a line, keyed by step."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints (step-00012000, …)."""
        return self.path / "checkpoints"

    @property
    def record(self) -> Path:
        """The `SystemRecord`: times of creation and training, size (system.json)."""
        return self.path / "system.json"

    @property
    def replaced(self) -> System:
        """The earlier system of this name, until a new training has its first checkpoint."""
        return System(self.path.with_name(f".replaced-{self.name}"))

    @property
    def _in_command(self) -> str:
        """The system's name in a command, with the option of its run."""
        in_run = self.path.parent.name == "systems"  # else a folder that --init-from names
        return self.name + (Run(self.path.parents[1]).needed_option if in_run else "")

    @property
    def train_command(self) -> str:
        """The command that trains the system."""
        return f"nmtkit train --system {self._in_command}"

    @property
    def train_again(self) -> str:
        """The hint for a system that cannot be used."""
        return TRAIN_AGAIN.replace("NAME", self._in_command)

    @property
    def made(self) -> int:
        """When the system was created, in ns since 1970."""
        stored = self.read_record()
        return stored.made if stored else self.config.stat().st_mtime_ns

    def read_record(self) -> SystemRecord | None:
        """Return the record; None if there is none or, with a warning, if it is damaged."""
        return load_or_warn(SystemRecord, self.record)

    def translation(self, set_name: str) -> Path:
        """Return the folder of this system's translation of a set (hyp.txt, hyp.subwords.txt,
        nbest.jsonl, meta.json).
        """
        return self.path / "translate" / set_name

    def read_config(self) -> SystemConfig:
        """Return the resolved settings.

        Raises: DataError if the system was never trained, or the file is lost or damaged;
            ConfigError naming the file and the key of a bad value of training or search.
        """
        hint = f"bring the file back from a copy, or {self.train_again}"
        if not self.config.is_file():
            message = f"system '{self.name}' has not been trained"
            if not any(self.checkpoints.glob("step-*")):
                raise DataError(message, where=self.path, hint=self.train_command)
            message = f"system '{self.name}' has checkpoints but no config.toml"
            raise DataError(message, where=self.config, hint=hint)
        config = load(SystemConfig, self.config, hint)
        build(TrainSettings, without_unknown(TrainSettings, config.train), "train", self.config)
        build(SearchSettings, without_unknown(SearchSettings, config.search), "search", self.config)
        return config

    def training(self) -> TrainSettings:
        """Return the section train of the settings, without settings of other versions.

        Raises: DataError as `read_config`; ConfigError naming the file and the key of a bad value.
        """
        config = self.read_config().train
        return build(TrainSettings, without_unknown(TrainSettings, config), "train", self.config)

    def searching(self) -> SearchSettings:
        """Return the section search of the settings.

        Raises: as `training`; ConfigError for a setting that this version does not know, because it
            may change translations.
        """
        return build(SearchSettings, self.read_config().search, "search", self.config)


@dataclass(frozen=True)
class Run:
    """A run directory: one prepared corpus, many systems, their scores and analyses."""

    path: Path

    @property
    def option(self) -> str:
        """The option that names this run at the end of a command: ` --run PATH`."""
        return f" --run {shlex.quote(str(self.path))}"

    @property
    def train_first(self) -> str:
        """The hint for a run that lacks a system."""
        return f"first: nmtkit train{self.needed_option}"

    @property
    def needed_option(self) -> str:
        """`option`; empty if commands use this run by default."""
        default = not os.environ.get("NMTKIT_RUN") and _prepared_last() == self
        return "" if default else self.option

    @property
    def prep(self) -> Path:
        """The prepared corpus."""
        return self.path / "prep"

    @property
    def history(self) -> Path:
        """One `StageCall` a line."""
        return self.path / "history.jsonl"

    def manifest(self) -> Manifest:
        """Return the manifest of the prepared corpus (prep/manifest.json).

        Raises: DataError if the run was never prepared, or the file is damaged.
        """
        path = self.prep / "manifest.json"
        if not path.is_file():
            hint = f"nmtkit prep DATASET{self.option}"
            for around in map(Run, self.path.parents):  # it may be the folder of a system
                if (around.prep / path.name).is_file():
                    hint = f"name the run:{around.option}"
            message = "this run is not prepared" if self.path.exists() else "no such folder"
            raise DataError(message, where=self.path, hint=hint)
        return load(Manifest, path)

    @property
    def _prepare_again(self) -> str:
        return f"prepare {self.path} again: {Manifest.again}"

    def check_files(self, hashes: Mapping[str, str]) -> None:
        """Check files of the prepared corpus.

        Args:
            hashes: file -> SHA-256 when it was written.
        Raises: DataError naming the first file that is missing or has changed.
        """
        for name in files.changed(self.prep, hashes)[:1]:
            path, has = self.prep / name, "another" if hashes[name] else "no"
            changed = f"has changed since it was prepared: manifest.json has {has} checksum"
            problem = changed if path.is_file() else "is missing"
            raise DataError(f"{name} {problem}", where=path, hint=self._prepare_again)

    def sets(self, split: str | None = None) -> list[TextSet]:
        """Return the prepared sets, of one split or all, in the order of the manifest."""
        return [s for s in self.manifest().sets if split in (None, s.split)]

    def no_test_set(self, hint: str) -> DataError:
        """Return the error for a command that needs a test set if the corpus has none."""
        where = self.prep / "manifest.json"
        return DataError("this run has no test set", where=where, hint=hint)

    def text_set(self, name: str) -> TextSet:
        """Return a prepared set by name ("test" also finds the only test set).

        Raises: ConfigError naming the nearest set.
        """
        sets = {s.name: s for s in self.sets()}
        tests = self.sets("test")
        if name == "test" and name not in sets and len(tests) == 1:
            return tests[0]
        check_known(name, sets, f"this run has no set '{name}'", self.prep)
        return sets[name]

    def check_text(self, set_name: str) -> None:
        """Raise ConfigError for the training set, whose text the run does not keep; DataError if
        the source text of another set is missing or has another number of lines.
        """
        text_set, text = self.text_set(set_name), self.source(set_name)
        if not text.is_file():
            message = f"the run keeps no text of the set '{set_name}'"
            if text_set.split == "train":
                raise ConfigError(message, where=text, hint="name a test set or dev with --on")
            raise DataError(f"{text.name} is missing", where=text, hint=self._prepare_again)
        if (lines := files.count_lines(text)) != text_set.lines:
            message = f"{counted(lines, 'line')}, but {text_set.lines:,} were prepared"
            raise DataError(message, where=text, hint=self._prepare_again)

    def source(self, set_name: str) -> Path:
        """Return the path of the raw source text of a set."""
        return self.prep / "text" / f"{set_name}.src"

    def references(self, set_name: str) -> list[Path]:
        """Return the paths of the raw reference texts of a set: .ref, .ref1, …"""
        count = self.text_set(set_name).references
        return [self.prep / "text" / f"{set_name}.ref{i or ''}" for i in range(count)]

    def system(self, name: str, new: bool = False) -> System:
        """Return the folder of one system, whether or not it exists.

        Args:
            name: its name.
            new: True for a system to be trained. Its name begins with a letter or a digit, and has
                only letters, digits, '-', '_' and '.'. ('+' joins the names of an ensemble.)
        Raises: ConfigError for a name that is not a plain folder name, and for a new name that
            differs from the name of another system only in case: on a Mac, both are one folder.
        """
        if not (names.is_new_name if new else names.is_name)(name):
            raise ConfigError(f"{name!r} cannot name a system", where="--system", hint=names.HINT)
        systems = self.path / "systems"
        known = {path.name for path in systems.glob("*")} if new else set()
        alike = {other for other in known if other.casefold() == name.casefold()}
        if alike and name not in alike:
            message = f"'{name}' and the system '{min(alike)}' differ only in case"
            hint = f"to continue that system: --system {min(alike)}; else take another name"
            raise ConfigError(message, where="--system", hint=hint)
        return System(systems / name)

    def systems(self) -> list[System]:
        """Return the systems that have a config, oldest first. The oldest is the baseline."""
        systems = map(self.system, self.with_file("config.toml"))
        return sorted(systems, key=lambda s: (s.made, s.name))

    def system_names(self) -> list[str]:
        """Return the names of `systems`, in the same order."""
        return [system.name for system in self.systems()]

    def is_ensemble(self, name: str) -> bool:
        """True for the name of an ensemble of trained systems, translated or not."""
        prefix, _, members = name.partition("ensemble-")
        systems = members.split("+")
        return not prefix and len({*systems}) > 1 and {*systems} <= {*self.system_names()}

    def may_have_translations(self, name: str) -> bool:
        """True for a trained system, for an ensemble of trained systems, and for a translation of
        any set that was made elsewhere.
        """
        paths = (self.path / "systems").glob("[!.]*/translate/[!.]*/hyp.txt")
        translated = (path.parents[2].name for path in paths)
        return name in self.system_names() or self.is_ensemble(name) or name in translated

    def with_file(self, name: str) -> dict[str, Path]:
        """Return system -> path of the file of this name in its folder, where the file exists.

        A folder whose name cannot be a system's is left out with a warning.
        """
        folder, paths = self.path / "systems", {}
        for path in sorted(folder.glob(f"[!.]*/{glob.escape(name)}")):
            try:
                paths[self.system(path.relative_to(folder).parts[0]).name] = path
            except ConfigError as error:
                console.warn_once(f"{folder}: {error.message}: left out")
        return paths

    def find_system(self, name: str) -> System:
        """Return a trained system by name.

        Raises: ConfigError naming the nearest one.
        """
        message, where = f"this run has no system '{name}'", self.path / "systems"
        check_known(name, self.system_names(), message, where, self.train_first)
        return self.system(name)

    @contextlib.contextmanager
    def recorded(
        self,
        stage: str,
        device: str | None = None,
        seed: int | None = None,
        write: bool = True,
    ) -> Iterator[StageCall]:
        """Write one line to history.jsonl when the stage call ends, however it ends.

        Args:
            stage, device, seed: of the call.
            write: False for the ranks that leave the writing to rank 0.
        Yields: the line; a stage may set more fields.
        """
        call = StageCall(
            stage=stage,
            argv=[os.fsencode(word).decode("utf-8", "backslashreplace") for word in sys.argv[1:]],
            version=nmtkit.__version__,
            commit=code_commit(),
            python=platform.python_version(),
            device=device,
            seed=seed,
            start=_now(),
            end=None,
            exit=0,
        )
        files.protect(self.path)
        if write:
            files.check_place(self.history)
        try:
            yield call
        except BaseException as error:
            call.exit = explained(error).exit_code
            call.error = error.message if isinstance(error, NmtkitError) else repr(error)
            raise
        finally:
            call.end = _now()
            if write and self.path.is_dir():
                with (
                    contextlib.suppress(OSError),
                    files.appending(self.history, errors="replace") as stream,
                ):
                    stream.write(json.dumps(call.model_dump(), ensure_ascii=False) + "\n")


def translate_command(name: str, set_name: str) -> str:
    """Return the command that translates a set with a system or an ensemble."""
    if "+" in name:
        name = name.removeprefix("ensemble-").replace("+", " --system ") + " --ensemble"
    return f"nmtkit translate --system {name} --on {set_name}"


def choose(folder: Path | None) -> Run:
    """Return the run in a folder; without a folder the run under ./runs that was prepared last. Log
    its path.

    Raises: DataError if there is none.
    """
    run = Run(folder) if folder else _prepared_last()
    if run is None:
        raise DataError(
            "no prepared run under ./runs",
            hint="nmtkit prep DATASET (nmtkit datasets lists them), or name one with --run",
        )
    if not run.path.is_dir():
        raise DataError(f"no run at {run.path}", hint=f"nmtkit prep DATASET{run.option}")
    console.say(f"run {run.path}")
    return run


def _prepared_last() -> Run | None:
    manifests = Path("runs").glob("*/prep/manifest.json")
    newest = max(manifests, key=lambda path: path.stat().st_mtime_ns, default=None)
    return Run(newest.parent.parent) if newest else None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@functools.cache
def code_commit() -> str | None:
    """Return the commit of nmtkit's checkout, if nmtkit runs from one, at the first call: later
    commits do not change the running code.
    """
    folder = Path(nmtkit.__file__).parent
    if not (folder.parent / ".git").exists():  # the repository may be of the user's project
        return None
    command, quiet = ["git", "describe", "--always", "--dirty"], subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, cwd=folder, stderr=quiet, text=True, timeout=5
        ).strip()
    return None
