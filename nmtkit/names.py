"""Names that become parts of paths: names of corpora, sets, systems, checkpoints and files.

Names in the records of a run are checked like names that the user types, because anybody can have
made the run.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

SPECIAL = set("/\\$`;|&<>\"'")
LONGEST, LONGEST_NEW = 255, 200
"""The most bytes of the name of a folder; and of a new name, to which nmtkit may add some."""
HINT = f"use at most {LONGEST_NEW} letters, digits, '-', '_' and '.', a letter or a digit first"


def is_name(name: str) -> bool:
    """True if a name can safely be one part of a path and of a command in a message.

    The name begins with a letter, a digit or '_'. It has no slash, no control character, no
    character that is special in a shell, and no option.
    """
    safe = SPECIAL.isdisjoint(name) and " --" not in name
    return bool(re.match(r"\w", name)) and name.isprintable() and safe


def check_name(name: str) -> str:
    """Return the name; raise ValueError if it is not a name (`is_name`)."""
    if not is_name(name):
        raise ValueError(f"{name!r} cannot be a name ({HINT})")
    return name


def check_path(path: str) -> str:
    """Return a relative path; raise ValueError unless its parts are names.

    A part may begin with dots, because a prep that was killed may have left a hidden file.
    """
    for part in path.split("/"):
        check_name(part.lstrip("."))
    return path


def check_word(word: str) -> str:
    """Return a name of nmtkit, `package.module:Class` or ""; raise ValueError for other text."""
    if not re.fullmatch(r"(\w[\w.:-]*)?", word):
        raise ValueError(f"{word!r} is neither a name nor package.module:Class")
    return word


def is_new_name(name: str) -> bool:
    """True if a name may be given to a new corpus or system."""
    return bool(re.fullmatch(r"[^\W_][\w.-]*", name)) and len(name.encode()) <= LONGEST_NEW


Name = Annotated[str, AfterValidator(check_name)]
"""A field of a record that is one part of a path."""
RelativePath = Annotated[str, AfterValidator(check_path)]
"""A field of a record that is a path below the record's folder."""
Word = Annotated[str, AfterValidator(check_word)]
"""A field of a record that a command may show: a name of nmtkit's, or `package.module:Class`."""
