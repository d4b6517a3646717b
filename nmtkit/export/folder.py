"""The exported folder: the engine's files, the files of text processing, and a description of the
steps before and after translation.
"""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

from nmtkit.errors import ConfigError, DataError
from nmtkit.folders import unchanged
from nmtkit.owned_files import TEXT_FILES
from nmtkit.records import ExportedSystem, Manifest, TextRecipe, load, load_or_warn
from nmtkit.settings import PrepSettings
from nmtkit.text.bpe import Bpe
from nmtkit.text.sentencepiece import SentencePiece
from nmtkit.text.side import TextSide

ABOUT, README, TEXT = "nmtkit.json", "README.md", "text"


def read_about(folder: Path) -> ExportedSystem | None:
    """Return the description of an exported folder; None if the folder is absent or empty.

    Raises: ConfigError if the folder is not an export, so that it must not be overwritten.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    try:
        return load(ExportedSystem, folder / ABOUT)
    except DataError as error:
        raise ConfigError(
            f"not a folder that nmtkit export wrote: {error.message}",
            where=folder / ABOUT,
            hint="name another folder or an empty folder with --out",
        ) from None


def owned(folder: Path) -> set[str]:
    """Return the files of nmtkit in an exported folder."""
    about = load_or_warn(ExportedSystem, folder / ABOUT)
    return {ABOUT, *unchanged(folder, about.files)} if about else set()


def write_text_files(folder: Path, prep: Path, manifest: Manifest) -> None:
    """Copy all that `nmtkit.text.side.TextSide.load(folder)` reads from a prepared corpus."""
    folder.mkdir()
    for path in sorted(path for pattern in TEXT_FILES for path in prep.glob(pattern)):
        shutil.copy(path, folder / path.name)
    TextRecipe(
        src=manifest.src, tgt=manifest.tgt, settings=manifest.settings, tools=manifest.tools
    ).write(folder / "manifest.json")


def text_steps(source: TextSide, target: TextSide, settings: PrepSettings) -> dict[str, list[str]]:
    """Describe the steps from a raw source line to subwords, and from target subwords to text."""
    before = [
        "invisible characters (soft hyphens, BOMs, …) are removed; control characters become"
        " spaces; runs of spaces become single spaces"
    ]
    cut = {
        "jieba": "jieba cuts the sentence into words",
        "characters": "every character is a word; ▁ stands for a space",
        "none": "words end at spaces",
        "raw": "▁ (U+2581) becomes a space",
    }
    if source.tokenizer in cut:
        before.append(cut[source.tokenizer])
    else:
        hyphens = " with aggressive hyphens" * settings.aggressive_hyphens
        escapes = "" if settings.escape else ", without escapes"
        before += ["Moses' punctuation normalisation"] * settings.normalize
        before.append(f"Moses' tokenizer{hyphens}{escapes} (language {source.lang})")
    before += ["lowercase"] * settings.lowercase
    before += [f"Moses' truecaser (truecase.{source.lang})"] * bool(source.truecaser)
    bpe = (
        "BPE of subword-nmt (codes*.bpe; with the vocabulary filter bpe-vocab.src.txt if there is"
        " one)"
    )
    before += [bpe] * isinstance(source.splitter, Bpe)
    if isinstance(source.splitter, SentencePiece):
        before.append(f"SentencePiece with text/{source.splitter.path.name}")
    joiners = "a subword that ends in @@ is joined to the next subword"
    after = [joiners] * isinstance(target.splitter, Bpe)
    pieces = "subwords are joined without spaces, then ▁ (U+2581) becomes a space"
    after += [pieces] * isinstance(target.splitter, SentencePiece)
    capital = "the sentence's first letter becomes a capital (Moses' detruecaser)"
    after += [capital] * bool(target.truecaser)
    joined = {
        "moses": f"Moses' detokenizer (language {target.lang})",
        "jieba": "words are joined without spaces",
        "characters": "words are joined without spaces, and ▁ becomes a space",
        "none": "words are joined with spaces",
        "raw": "spaces at both ends are removed",
    }
    after.append(joined[target.tokenizer])
    return {"source": before, "target": after}


def readme(about: ExportedSystem, engine: str) -> str:
    """Return the page that says how to use the folder.

    Args:
        about: the folder.
        engine: the engine's name in words.
    """
    page, usage = (
        resources.files("nmtkit.export").joinpath(f"readme_{name}.txt").read_text("utf-8")
        for name in ("folder", about.to)
    )
    steps = {
        side: "\n".join(f"{number}. {step}" for number, step in enumerate(about.text[side], 1))
        for side in ("source", "target")
    }
    names = ", ".join(checkpoint.name for checkpoint in about.checkpoints)
    values = {**about.model_dump(), **about.search, **steps, "checkpoints": names}
    return page.format(**values, engine=engine, usage=usage.format(**values))
