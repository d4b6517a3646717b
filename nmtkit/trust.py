"""Code that a run names is imported only if this user allows it.

config.toml of a run may name a module (`variant = "package.module:Class"`), and importing a module
executes it. Runs are passed on, so a module is imported only if one of these is true:

- The process has imported the module already. Then nothing more is executed.
- The user names the module: `--variant`, `--engine`, an analysis, `--allow-code`, `allow_code=` of
  `nmtkit.load`, or NMTKIT_ALLOW_CODE.
- The user has trained with the module, or has named it with `--allow-code`, and its files are where
  they were, with the same content.

Why this is sound: nmtkit remembers a file by its path and its content, in the user's own folder of
settings, where no stage writes for a run. A run can choose the name of a module, and nothing else:
the current folder is searched, but it is put on the import path only after the check. So a run of
somebody else can at most execute again what this user has executed at the same place. A module of
the same name elsewhere, or with another content, is refused. The modules that an allowed module
imports are not checked: whoever allows a module trusts what it imports.

What is executed is the content that was checked. Python's cache of bytecode (`__pycache__`) is not
read in the folder of the module and in those of its packages: it may have come with the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.machinery
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import ClassVar

from nmtkit import console, environment, files
from nmtkit.errors import ConfigError, EnvironmentProblem

_named: set[str] = set()
"""The modules that the user has named in this process."""


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Executes a source file, never a cache of the file."""

    checked: ClassVar[Mapping[Path, bytes | None]] = {}
    """The checked content of the files that are being imported."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        content = self.checked.get(Path(path).absolute())
        return self.source_to_code(self.get_data(path) if content is None else content, path)


class _Finder:
    """Finds modules as Python does. Modules in `folders` get a `_SourceLoader`."""

    folders: ClassVar[set[Path]] = set()

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where a module is; None if no other finder finds it."""
        others = (finder for finder in sys.meta_path if finder is not cls)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec and type(spec.loader) is importlib.machinery.SourceFileLoader:
            file = spec.loader.path
            if Path(file).parent.resolve() in cls.folders:
                spec.loader = _SourceLoader(name, file)
        return spec


def allow(names: Iterable[str], remember: bool = False) -> None:
    """Allow modules that the user names.

    Args:
        names: `package.module`, or `package.module:object`.
        remember: allow the files of the modules in later calls, too.
    Raises: ConfigError if a module to remember does not exist.
    """
    for name in names:
        module = name.partition(":")[0]
        _named.add(module)
        if remember:
            try:
                _remember(_find(module)[0].values())
            except ModuleNotFoundError as error:
                raise ConfigError(
                    str(error),
                    where="--allow-code",
                    hint="its folder must be the current one or on PYTHONPATH",
                ) from None


def import_module(name: str) -> ModuleType:
    """Import a module, which may be in the current folder, if the user allows it.

    Raises: ConfigError naming the file that would be executed; ModuleNotFoundError; whatever the
        module raises.
    """
    if name not in sys.modules:
        contents, folder = _to_execute(name)
        if not _is_allowed(name, contents):
            shown = ", ".join(map(str, contents)) or name
            raise ConfigError(
                f"you have not allowed '{name}', or it has changed since: importing it would"
                f" execute {shown}",
                where=f"module {name}",
                hint=f"read it; if you trust it, add --allow-code {name}, set"
                f" NMTKIT_ALLOW_CODE={name}, or in Python nmtkit.load(…, allow_code=['{name}'])",
            )
        if folder is not None:
            sys.path.append(folder)
        _Finder.folders |= {path.parent.resolve() for path in contents}
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)
        _SourceLoader.checked = contents
    try:
        return importlib.import_module(name)
    finally:
        _SourceLoader.checked = {}


def shown(name: str) -> str:
    """Return the name of a class, from a record, for a command that the user may copy. If the user
    has not allowed its module, return `package.module:Class`.
    """
    module = name.partition(":")[0]
    with contextlib.suppress(ModuleNotFoundError, OSError):
        if module in {name, *sys.modules} or _is_allowed(module, _to_execute(module)[0]):
            return name
    return "package.module:Class"


def _to_execute(name: str) -> tuple[dict[Path, bytes | None], str | None]:
    """Return the files that an import would execute, each with its content (None if it is not a
    file), and the current folder if it must be searched.
    """
    paths, folder = _find(name)
    new = [path for part, path in paths.items() if part not in sys.modules]
    return {path: path.read_bytes() if path.is_file() else None for path in new}, folder


def _is_allowed(name: str, contents: Mapping[Path, bytes | None]) -> bool:
    """True if the user has named a module, or has allowed all of its files."""
    known = contents and all(itertools.starmap(_is_remembered, contents.items()))
    return bool(known) or name in _named | environment.allowed_code()


def _find(module: str) -> tuple[dict[str, Path], str | None]:
    """Return the files of a module and of its packages, by name, and the current folder if it must
    be searched, without an import.

    Raises: ModuleNotFoundError.
    """
    try:
        return _files(module, sys.path), None
    except ModuleNotFoundError:
        folder = str(Path.cwd())
        return _files(module, [*sys.path, folder]), folder


def _files(module: str, places: Sequence[str]) -> dict[str, Path]:
    """Return the files of a module and of its packages, by name.

    `importlib.util.find_spec` would import the packages.

    Args:
        module: its name.
        places: the folders to search for the first part of the name.
    """
    paths, prefix = {}, ""
    for part in module.split("."):
        top, prefix = not prefix, f"{prefix}.{part}".lstrip(".")
        if loaded := sys.modules.get(prefix):
            file, places = getattr(loaded, "__file__", None), getattr(loaded, "__path__", ())
        elif part.isidentifier() and (spec := _spec(part, places, top)):
            file = spec.origin if spec.has_location else None
            places = spec.submodule_search_locations or ()
        else:
            raise ModuleNotFoundError(f"No module named '{prefix}'", name=prefix)
        if file:
            paths[prefix] = Path(file).absolute()
    return paths


def _spec(part: str, places: Sequence[str], top: bool) -> importlib.machinery.ModuleSpec | None:
    """Return where Python finds one part of a module's name."""
    on_path = importlib.machinery.PathFinder
    finders = [finder for finder in sys.meta_path if finder is not _Finder] if top else [on_path]
    for finder in finders:
        spec = finder.find_spec(part, list(places) if finder is on_path else None)
        if spec is not None:
            return spec
    return None


def _mark(path: Path, content: bytes) -> Path:
    """Return the path of the mark that a file with this content is allowed."""
    import platformdirs

    digest = hashlib.sha256(content).hexdigest()
    key = hashlib.sha256(f"{path.resolve()}\n{digest}".encode("utf-8", "surrogateescape"))
    return Path(platformdirs.user_config_dir("nmtkit")) / "allowed-code" / key.hexdigest()


def _is_remembered(path: Path, content: bytes | None) -> bool:
    with contextlib.suppress(OSError):  # the user's folder may be out of reach
        return content is not None and _mark(path, content).is_file()
    return False


def _remember(paths: Iterable[Path]) -> None:
    for path in paths:
        content = path.read_bytes()
        if not _is_remembered(path, content):
            try:
                files.write_text(_mark(path, content), f"{str(path)!r}\n")
            except EnvironmentProblem as error:
                console.warn(f"not remembered, later commands need --allow-code: {error.message}")
