"""The user's text model: `--like RUN`, `--codes` and `--vocab`, or `--spm`. Prep copies its files
into the work folder, and learns only the files that are missing there.
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
from nmtkit.prep.learn import file_names, model_names, whole_words, write_vocabularies
from nmtkit.prep.options import PrepOptions, model_files
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
"""Settings of prep that choose text, or how prep works. All other settings shape the text."""


@dataclass(frozen=True)
class TextModel:
    """The user's text model; by default it has no files, and everything is learnt."""

    source: str = ""
    """The options that name the model, as typed."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of prep that belong to the model."""
    preset: str | None = None
    """The preset of the model's run."""
    languages: tuple[str, str] | None = None
    """The only source and target language that the model is for; None: any."""
    message: str = ""
    """What prep prints about the model."""
    files: dict[str, Path] = field(default_factory=dict)
    """The files by their names in the prep folder. Two vocabularies may share `codes.bpe`."""
    vocabularies: tuple[Path, ...] = ()
    """Files of subwords with their counts."""

    def paths(self, settings: PrepSettings) -> dict[str, Path]:
        """Return the files by their names in the prep folder."""
        codes = self.files.get("codes.bpe")
        if codes is None or settings.joint_vocab:
            return self.files
        others = {name: path for name, path in self.files.items() if name != "codes.bpe"}
        return {f"codes.{side}.bpe": codes for side in SIDES} | others

    def check(self, settings: PrepSettings, assigned: Mapping[str, Any]) -> None:
        """Raise ConfigError if the user has set a value that contradicts the model.

        Args:
            settings: of prep, before the model's settings replace them.
            assigned: the settings that the user has set.
        """
        for key in sorted(assigned.keys() & self.settings.keys()):
            of_user, of_model = getattr(settings, key), self.settings[key]
            if of_user != of_model:
                raise ConfigError(
                    f"prep.{key} is {toml_value(of_user)}, but {toml_value(of_model)} in the text"
                    " model",
                    where=self.source,
                    hint=f"leave out prep.{key}, or {self.source.split()[0]}",
                )
        if self.source.startswith("--vocab") and not whole_words(settings):
            hint = "give --codes too, or --set prep.subwords=none for text that is split already"
            raise ConfigError("a vocabulary needs the merges that lead to it", "--vocab", hint)

    def check_languages(self, languages: tuple[str, str]) -> None:
        """Raise ConfigError if the model is for another language pair."""
        if self.languages and self.languages != languages:
            option, run = self.source.split(maxsplit=1)
            raise ConfigError(
                f"{run} is {'-'.join(self.languages)}, and this corpus is {'-'.join(languages)}",
                where=option,
                hint="name a run of the same source and target language",
            )

    def copy(self, folder: Path, settings: PrepSettings) -> None:
        """Copy the files into a folder, and write vocabularies from the files of `--vocab`."""
        for name, path in self.paths(settings).items():
            with files.writing(folder / name, "wb") as copy, files.open_binary(path) as original:
                shutil.copyfileobj(original, copy)
        if self.vocabularies:
            for earlier in folder.glob("vocab*.txt"):
                earlier.unlink()
            counts = [Counter(read_counts(path)) for path in self.vocabularies]
            write_vocabularies([*counts, Counter()][:2], settings, folder)


def text_model(options: PrepOptions) -> TextModel:
    """Return the text model that the options name.

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
    return _from_codes(options) if names else TextModel()


def _from_run(run: Run) -> TextModel:
    manifest = run.manifest()
    return TextModel(
        source=f"--like {run.path}",
        settings=manifest.settings.model_dump(exclude=OF_THE_CORPUS),
        preset=manifest.preset,
        languages=(manifest.src, manifest.tgt),
        message=f"tokenizers, truecasers, subwords and vocabulary of {run.path} (fingerprint"
        f" {manifest.fingerprint[:12]}); nothing is learnt",
        files={name: run.prep / name for name in _checked_names(run, manifest)},
    )


def _checked_names(run: Run, manifest: Manifest) -> list[str]:
    """Return the names of the files of a run's text model; raise as `Run.check_files`."""
    names = file_names((manifest.src, manifest.tgt), manifest.settings)
    if "subwords.spm" in manifest.files:  # may be one for both sides of two vocabularies
        names = list(dict.fromkeys(re.sub(r"\.(src|tgt)\.spm$", ".spm", n) for n in names))
    run.check_files({name: manifest.files.get(name, "") for name in names})
    return names


def _from_models(models: tuple[Path, ...]) -> TextModel:
    """Return one SentencePiece model for both sides, or one for each side."""
    sizes = {path: len(SentencePiece(path).pieces) for path in models}
    settings: dict[str, Any] = {"subwords": "sentencepiece"}
    if len(models) > 1:
        settings["joint_vocab"] = False
    return TextModel(
        source=f"--spm {' '.join(map(str, models))}",
        settings=settings,
        message=_described("pieces", sizes),
        files=dict(zip(model_names("subwords", "spm", len(models) == 1), models, strict=True)),
    )


def _from_codes(options: PrepOptions) -> TextModel:
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
    paths = dict(zip(model_names("codes", "bpe", len(codes) == 1), codes, strict=False))
    if vocabularies:
        sides = zip(SIDES, (vocabularies[0], vocabularies[-1]), strict=True)
        paths |= {f"bpe-vocab.{side}.txt": path for side, path in sides}
    return TextModel(
        source=" ".join(source),
        settings=settings,
        message="; ".join(parts),
        files=paths,
        vocabularies=vocabularies,
    )


def _described(units: str, counts: Mapping[Path, int]) -> str:
    return "; ".join(f"{count:,} {units} of {path}" for path, count in counts.items())
