"""The folder that an export is: the model as CTranslate2 reads it, the files of its text, and
what must be done with text around it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.records import Manifest, TextRecipe
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide

ABOUT, README, TEXT = "nmtkit.json", "README.md", "text"
PATTERNS = ("codes*.bpe", "bpe-vocab.*.txt", "truecase.*")
"""Files of a prepared corpus that cut its text into subwords and decide its case."""


def about(folder: Path) -> dict[str, Any] | None:
    """What an exported folder says of itself; None if it does not exist, or is empty.

    Raises: ConfigError if it is something else, which must not be overwritten.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    try:
        found = files.read_json(folder / ABOUT)
        if isinstance(found, dict) and "nmtkit" in found:
            return found
    except (DataError, OSError):
        pass
    raise ConfigError(
        "not a folder that nmtkit export wrote",
        where=folder,
        hint="name another one with --out, or an empty one",
    ) from None


def complete(folder: Path, said: dict[str, Any]) -> bool:
    """Whether all files that a folder says it has are there as they were."""
    return bool(said.get("files")) and not files.changed(folder, said["files"])


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """Write a folder completely or not at all: under a temporary name beside it, flushed, renamed;
    what had the name goes last.

    Yields: the folder to write into.
    Raises: EnvironmentProblem if the disk is full or not writable.
    """
    temporary, old = (
        folder.parent / f".{kind}-{folder.name}-{os.getpid()}" for kind in ("tmp", "old")
    )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        for path in [*temporary.rglob("*"), temporary]:
            files.sync_folder(path)  # and files are flushed the same way
        if folder.exists():
            os.replace(folder, old)
        os.replace(temporary, folder)
        files.sync_folder(folder.parent)
    except OSError as error:
        what = f"cannot write {folder}: {error.strerror or error}"
        raise EnvironmentProblem(
            what, hint="free some space, or choose another folder with --out"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        shutil.rmtree(old, ignore_errors=True)


def write_text_files(folder: Path, prep: Path, manifest: Manifest) -> None:
    """All that `nmtkit.text.side.TextSide.load(folder)` reads, of a prepared corpus."""
    folder.mkdir()
    for path in sorted(path for pattern in PATTERNS for path in prep.glob(pattern)):
        shutil.copy(path, folder / path.name)
    TextRecipe(src=manifest.src, tgt=manifest.tgt, settings=manifest.settings).write(
        folder / "manifest.json"
    )


def steps(side: TextSide, settings: PrepSettings) -> list[str]:
    """What is done to a raw line of the source before it is subwords, for people."""
    found = ["runs of white space become single spaces, control characters go"]
    if side.moses is None:
        found.append("jieba cuts the sentence into words")
    else:
        found += ["Moses' punctuation normalisation"] if settings.normalize else []
        hyphens, escapes = (
            (" with aggressive hyphens" if settings.aggressive_hyphens else ""),
            ("" if settings.escape else ", without escapes"),
        )
        found.append(f"Moses' tokenizer{hyphens}{escapes} (language {side.lang})")
    found += ["lowercase"] if settings.lowercase else []
    found += [f"Moses' truecaser (truecase.{side.lang})"] if side.truecaser else []
    return found + (
        [
            "BPE of subword-nmt (codes*.bpe; with bpe-vocab.src.txt as its vocabulary filter where"
            " there is one)"
        ]
        if side.bpe
        else []
    )


def steps_back(side: TextSide) -> list[str]:
    """What is done to the subwords of a target until they are text for people."""
    found = ["subwords that end in @@ and the next become one word"] if side.bpe else []
    found += (
        ["the sentence's first word gets its capital (Moses' detruecaser)"]
        if side.truecaser
        else []
    )
    return [
        *found,
        (
            "words without spaces between"
            if side.moses is None
            else f"Moses' detokenizer (language {side.lang})"
        ),
    ]


def readme(said: dict[str, Any]) -> str:
    """How to use the folder."""
    lists = {
        side: "\n".join(f"{number}. {step}" for number, step in enumerate(said["text"][side], 1))
        for side in ("source", "target")
    }
    return f"""# {said["system"]}, {said["src"]}-{said["tgt"]}, for CTranslate2

Written by nmtkit {said["nmtkit"]} from {", ".join(one["name"] for one in said["checkpoints"])};
weights are {said["quantization"]}.
It reads and writes subwords. Before it, a line of source text goes through

{lists["source"]}

and behind it the subwords of a translation through

{lists["target"]}

With nmtkit installed, that is:

    import ctranslate2
    from pathlib import Path
    from nmtkit.text.side import TextSide

    source, target = (TextSide.load(Path("text"), side) for side in ("src", "tgt"))
    translator = ctranslate2.Translator(".")
    lines = ["…"]
    subwords = [source.encode(line) for line in lines]
    results = translator.translate_batch(subwords, beam_size={said["search"]["beam"]})
    print([target.decode(result.hypotheses[0]) for result in results])

CTranslate2 adds `</s>` to sources. Blank lines are up to you, and so are lines of more than
{said["search"]["max_source"]} subwords, which nmtkit translates in pieces. No sentence may have
more than {said["positions"]:,} subwords on either side.
nmtkit ranks finished translations by log P / ((5+|Y|)/6)^α, with
α = {said["search"]["length_penalty"]}.
CTranslate2's `length_penalty` is the α of another formula, log P / |Y|^α: the two agree at 0 only.
nmtkit's search never writes `<s>` or `<pad>`, which a model of a few updates may find likely.
CTranslate2 leaves them out with `suppress_sequences`, but renormalises the other probabilities.
"""
