"""A text model that is given instead of learnt: `--like RUN`, `--codes` and `--vocab`, or `--spm`.
Prep copies its files into the work folder, and learns only what is missing there.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmtkit import files
from nmtkit.errors import ConfigError, DataError
from nmtkit.prep.file_values import model_files
from nmtkit.prep.learn import file_names, write_vocabularies
from nmtkit.prep.options import PrepOptions
from nmtkit.records import Manifest
from nmtkit.run import Run
from nmtkit.settings import PrepSettings
from nmtkit.text.bpe import Bpe
from nmtkit.text.sentencepiece import SentencePiece
from nmtkit.text.tokenizer import SIDES
from nmtkit.text.vocabulary import read_counts
from nmtkit.toml import toml_value

OF_THE_CORPUS = {
    "dev",
    "test",
    "min_words",
    "max_words",
    "max_ratio",
    "max_subwords",
    "on_bad_utf8",
    "deduplicate",
    "drop_overlap",
    "memory",
    "shard_lines",
}
"""Settings of prep that choose text, or how it is worked on; all others shape it."""


@dataclass(frozen=True)
class Given:
    """Files that are given; by default none."""

    source: str = ""
    """The options that give it, as typed."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of prep that it brings along."""
    preset: str | None = None
    """The preset that it brings along."""
    message: str = ""
    """What prep says of it."""
    files: dict[str, Path] = field(default_factory=dict)
    """By their names in the prep folder, if settings do not decide these."""

    def paths(self, settings: PrepSettings) -> dict[str, Path]:
        """Return the files by their names in the prep folder.

        Raises: DataError for a file that is not as its run recorded it.
        """
        return self.files

    def check(self, settings: PrepSettings, asked: Mapping[str, Any]) -> None:
        """Refuse settings of the user's that contradict the given ones.

        Args:
            settings: without the given ones.
            asked: keys that the user has set.
        """
        for key in sorted(asked.keys() & self.settings.keys()):
            own, given = getattr(settings, key), self.settings[key]
            if own != given:
                raise ConfigError(
                    f"prep.{key} is {toml_value(own)} here and {toml_value(given)} there",
                    where=self.source,
                    hint=f"leave out prep.{key}, or {self.source.split()[0]}",
                )

    def check_languages(self, languages: tuple[str, str]) -> None:
        """Refuse another language pair."""

    def copy(self, folder: Path, settings: PrepSettings) -> None:
        """Copy the files into a folder."""
        for name, path in self.paths(settings).items():
            with files.writing(folder / name, "wb") as copy, files.open_binary(path) as original:
                shutil.copyfileobj(original, copy)


@dataclass(frozen=True, kw_only=True)
class GivenRun(Given):
    """The text model of another run."""

    run: Run
    manifest: Manifest

    def check_languages(self, languages: tuple[str, str]) -> None:
        there = (self.manifest.src, self.manifest.tgt)
        if there != languages:
            raise ConfigError(
                f"{self.run.path} is {'-'.join(there)}, and this corpus is {'-'.join(languages)}",
                where="--like",
                hint="name a run of the same source and target language",
            )

    def paths(self, settings: PrepSettings) -> dict[str, Path]:
        names = file_names((self.manifest.src, self.manifest.tgt), settings)
        if "subwords.spm" in self.manifest.files:  # may be one for both sides of two vocabularies
            names = list(dict.fromkeys(re.sub(r"\.(src|tgt)\.spm$", ".spm", n) for n in names))
        unlisted = [name for name in names if name not in self.manifest.files]
        hashes = {name: self.manifest.files.get(name, "") for name in names}
        for name in (unlisted or files.changed(self.run.prep, hashes))[:1]:
            problem = "is missing" if name in unlisted else "is not as prep wrote it"
            where, hint = self.run.prep / name, f"prepare that run again: {Manifest.again}"
            raise DataError(f"{name} of {self.run.path} {problem}", where, hint)
        return {name: self.run.prep / name for name in names}


@dataclass(frozen=True, kw_only=True)
class GivenCodes(Given):
    """Files of subword-nmt: merges, and subwords with their counts."""

    codes: tuple[Path, ...]
    vocabularies: tuple[Path, ...]

    def paths(self, settings: PrepSettings) -> dict[str, Path]:
        paths = {}
        for side, i in zip(SIDES, (0, -1), strict=True):
            if self.codes:
                name = "codes.bpe" if settings.joint_vocab else f"codes.{side}.bpe"
                paths[name] = self.codes[i]
            if self.vocabularies:
                paths[f"bpe-vocab.{side}.txt"] = self.vocabularies[i]
        return paths

    def check(self, settings: PrepSettings, asked: Mapping[str, Any]) -> None:
        super().check(settings, asked)
        whole = settings.subwords == "none" or (settings.subwords == "bpe" and not settings.merges)
        if self.vocabularies and not self.codes and not whole:
            hint = "give --codes too, or --set prep.subwords=none for text that is split already"
            raise ConfigError("a vocabulary needs the merges that lead to it", "--vocab", hint)

    def copy(self, folder: Path, settings: PrepSettings) -> None:
        super().copy(folder, settings)
        if self.vocabularies:
            for earlier in folder.glob("vocab*.txt"):
                earlier.unlink()
            counts = [Counter(read_counts(path)) for path in self.vocabularies]
            write_vocabularies([*counts, Counter()][:2], settings, folder)


def given_model(options: PrepOptions) -> Given:
    """Return the text model that the options give.

    Raises: ConfigError for options that exclude each other; DataError for a run that is not
        prepared, or a file that is missing or malformed.
    """
    sources = {"--like": options.like, "--spm": options.spm}
    sources |= {"--codes": options.codes, "--vocab": options.vocab}
    names = [name for name, value in sources.items() if value]
    if len(names) > 1 and names != ["--codes", "--vocab"]:
        hint = "each brings subwords; leave out one of the two"
        problem = f"{names[1]} and {names[0]} exclude each other"
        raise ConfigError(problem, where=names[1], hint=hint)
    if options.like is not None:
        return _from_run(Run(options.like))
    if options.spm:
        return _from_models(model_files(options.spm, "--spm"))
    return _from_codes(options) if names else Given()


def _from_run(run: Run) -> GivenRun:
    manifest = run.manifest()
    return GivenRun(
        source=f"--like {run.path}",
        settings=manifest.settings.model_dump(exclude=OF_THE_CORPUS),
        preset=manifest.preset,
        message=f"tokenizers, truecasers, subwords and vocabulary of {run.path} (fingerprint"
        f" {manifest.fingerprint[:12]}); none of them is learnt",
        run=run,
        manifest=manifest,
    )


def _from_models(models: tuple[Path, ...]) -> Given:
    """Return given models of SentencePiece."""
    sizes = {path: len(SentencePiece(path).pieces) for path in models}
    settings: dict[str, Any] = {"subwords": "sentencepiece"}
    names = ["subwords.spm"]
    if len(models) > 1:
        settings["joint_vocab"] = False
        names = [f"subwords.{side}.spm" for side in SIDES]
    return Given(
        source=f"--spm {' '.join(map(str, models))}",
        settings=settings,
        message=_described("pieces", sizes),
        files=dict(zip(names, models, strict=True)),
    )


def _from_codes(options: PrepOptions) -> GivenCodes:
    codes = model_files(options.codes, "--codes")
    vocabularies = model_files(options.vocab, "--vocab")
    settings: dict[str, Any] = {}
    source, parts = [], []
    if codes:
        source.append(f"--codes {' '.join(map(str, codes))}")
        merges = {path: Bpe(path).merges for path in codes}
        for path, count in merges.items():
            if not count:
                hint = "name a codes file of subword-nmt"
                raise DataError(f"{path} has no merges", where="--codes", hint=hint)
        settings |= {"subwords": "bpe", "merges": max(merges.values())}
        parts.append(_described("merges", merges))
    if vocabularies:
        source.append(f"--vocab {' '.join(map(str, vocabularies))}")
        sizes = {path: len(read_counts(path)) for path in vocabularies}
        parts.append(_described("subwords", sizes))
    if len(codes) == 2:
        settings["joint_vocab"] = False
        if len(vocabularies) == 1:
            hint = "give --vocab a file for each side too: --vocab SRC TGT"
            raise ConfigError("two files of merges need two vocabularies", "--vocab", hint)
    elif len(vocabularies) == 1:
        settings["joint_vocab"] = True
    return GivenCodes(
        source=" ".join(source),
        settings=settings,
        message="; ".join(parts),
        codes=codes,
        vocabularies=vocabularies,
    )


def _described(what: str, counts: Mapping[Path, int]) -> str:
    return "; ".join(f"{count:,} {what} of {path}" for path, count in counts.items())
