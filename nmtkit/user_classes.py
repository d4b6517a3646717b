"""Import a user's own class, named `package.module:Class`, and name the line that fails in it."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from traceback import extract_tb, format_exception
from typing import Any

from nmtkit import trust
from nmtkit.errors import ConfigError, NmtkitError, nearest, of_the_machine, summary

_folders: set[Path] = set()
"""The folders of the user's own classes, where modules that these classes import may be too."""


def load_object(name: str, kind: str, where: str, form: str) -> Any:
    """Return a class or function of the user's own.

    Args:
        name: `package.module:object`.
        kind, where: as of `load_class`.
        form: the hint that shows how to write the name.
    Raises: ConfigError if the module is not allowed, is missing or fails (naming the line), or has
        no such object.
    """
    module_name, _, object_name = name.partition(":")
    try:
        module = trust.import_module(module_name)
    except NmtkitError:
        raise
    except Exception as error:  # whatever the module does
        raise _not_imported(name, kind, where, error) from error
    value = getattr(module, object_name, None)
    if value is None:
        callables = [key for key, value in vars(module).items() if callable(value)]
        sort = "class" if "Class" in form else "function"
        message = f"module {module_name} has no {sort} {object_name}"
        hint = nearest(object_name, callables, form)
        raise ConfigError(message, where=module.__file__ or where, hint=hint)
    return value


def load_class(name: str, base: type, kind: str, where: str, guide: str) -> Any:
    """Return a class of the user's own.

    Args:
        name: `package.module:Class`.
        base: the class that it must be a subclass of.
        kind: "variant" or "analysis", for messages.
        where: the option or command that names the class, for messages.
        guide: the page that describes such classes, for messages.
    Raises: as `load_object`; ConfigError if the class is abstract or no subclass of `base`.
    """
    cls = load_object(name, kind, where, f"write it as package.module:Class; see {guide}")
    check_base(cls, base, name, where, guide)
    if methods := ", ".join(sorted(getattr(cls, "__abstractmethods__", ()))):
        message, hint = f"{name} does not define {methods}", f"define {methods}; see {guide}"
        raise ConfigError(message, where=place_of(cls) or where, hint=hint)
    if not cls.__module__.startswith("nmtkit."):
        _folders.add(Path(inspect.getfile(cls)).parent)
    return cls


def check_base(cls: Any, base: type, name: str, where: str, guide: str) -> None:
    """Raise ConfigError if a class of the user's own is no subclass of `base`.

    Args:
        cls: anything; name: what the message calls it.
        where, guide: as of `load_class`.
    """
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ConfigError(
            f"{name} is not a subclass of {base.__module__}.{base.__qualname__}",
            where=place_of(cls) or where,
            hint=f"see {guide}",
        )


@contextlib.contextmanager
def blamed_on(cls: type | None = None) -> Iterator[None]:
    """Turn an exception in code of the user's own into an error that names the line.

    Args:
        cls: the class to blame if no line of the user's is involved, unless nmtkit defines it.
    Raises: ConfigError. NmtkitError, OSError and errors of the machine are passed on, because they
        explain themselves.
    """
    try:
        yield
    except Exception as error:
        fault = fault_of_user(error, cls)
        if fault is None:
            raise
        raise fault from error


def fault_of_user(error: BaseException, cls: type | None = None) -> ConfigError | None:
    """Return the error for an exception in code of the user's own; None for other exceptions.

    Args: see `blamed_on`.
    """
    if isinstance(error, NmtkitError | OSError) or of_the_machine(error):
        return None
    # As text: a worker process passes on only the text of its traceback.
    lines = re.findall(r'File "(.+)", line (\d+)', "".join(format_exception(error)))
    of_user = [f"{file}, line {line}" for file, line in lines if Path(file).parent in _folders]
    if not of_user and (cls is None or cls.__module__.startswith("nmtkit.")):
        return None
    where = of_user[-1] if of_user else place_of(cls)
    return ConfigError(
        f"your code failed: {summary(error)}",
        where=where,
        hint="fix it there (--debug shows the traceback)",
    )


def _not_imported(name: str, kind: str, where: str, error: Exception) -> ConfigError:
    """Return the error for a module that is missing or that fails."""
    message, module = f"cannot import {kind} '{name}': ", name.partition(":")[0]
    if module.endswith(".py") or not all(map(str.isidentifier, module.split("."))):
        return ConfigError(
            f"{message}'{module}' is no module",
            where=where,
            hint="name it as Python does, package.module, without folder and .py",
        )
    missing = isinstance(error, ModuleNotFoundError) and error.name
    if missing and f"{module}.".startswith(f"{missing}."):
        return ConfigError(
            message + str(error),
            where=where,
            hint="its folder must be the current one or on PYTHONPATH",
        )
    for frame in reversed(extract_tb(error.__traceback__)):
        if frame.name == "<module>":
            where = f"{frame.filename}, line {frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    return ConfigError(
        message + summary(error),
        where=where,
        hint="its module fails when it is imported: fix it there (--debug shows the traceback)",
    )


def place_of(cls: Any) -> str | None:
    """Return the file and line of a class; None if it has no source."""
    with contextlib.suppress(TypeError, OSError):
        line = inspect.getsourcelines(cls)[1]
        return f"{inspect.getfile(cls)}, line {line}"
    return None
