"""The stage `export`: write a trained system for another engine, and compare their translations."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

import nmtkit
from nmtkit import console, files, folders
from nmtkit.errors import ConfigError, check_known, imported, nearest
from nmtkit.export import check, folder
from nmtkit.export.engine import FULL, Engine
from nmtkit.export.options import ExportOptions
from nmtkit.export.to_ctranslate2 import CTranslate2
from nmtkit.export.to_huggingface import HuggingFace
from nmtkit.locks import locked
from nmtkit.models import loading
from nmtkit.records import ExportedSystem
from nmtkit.run import Run
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate.systems import SystemGroup, choose

ENGINES: dict[str, Engine] = {"ctranslate2": CTranslate2(), "huggingface": HuggingFace()}
"""The targets by the name that `--to` has for them."""
ONNX = "--to huggingface, from whose folder Optimum makes graphs for ONNX Runtime"
QUANTIZED_SHARE = 50.0
"""Instead of `check.SHARE` if weights are rounded: then fewer translations are equal."""
POSITIONS = 1024
"""Minimum length of the table of positions, which the engines store."""
SEARCH = ("beam", "length_penalty", "max_length_a", "max_length_b", "max_source")
"""Search settings that the exported folder records."""


def export(run: Run, system: str, to: str, **values: Any) -> Path:
    """Write a system for another engine; `nmtkit.models.checkpoints.choose` picks its checkpoints.

    Args:
        run: the run.
        system: the name of the system.
        to: the engine.
        values: further `ExportOptions`.
    Returns: the exported folder.
    Raises: ConfigError if the engine cannot run the system, or the folder holds something else;
        EnvironmentProblem if the engine's package is needed and not installed; Disagreement if
        too few translations are equal.
    """
    options = ExportOptions.of({"system": system, "to": to, **values})
    quantization, percent = options.quantization, options.at_least
    engine = _engine(to, quantization)
    refuse(run, system, engine)
    if options.check or not engine.writes_alone:
        asks = "--check" if engine.writes_alone else f"--to {to}"
        imported(engine.package, engine.extra, asks)
    target = run.system(system).path / "export" / to
    if options.out:
        target = options.out.resolve()
        if target == Path.cwd():
            raise ConfigError(
                "the current folder cannot be replaced by an export",
                where="--out",
                hint="name a folder in it",
            )
    alone = contextlib.nullcontext() if options.out else locked(target.parent, "export")
    with (
        run.recorded("export", device="cpu") as call,
        locked(run.path, "export", shared=True),
        alone,
    ):
        call.systems = [system]
        folders.recover(target, folder.owned)
        group = choose(run, [system], False, {}, single=True)[0]
        about = _describe(group, to, quantization)
        existing = folder.read_about(target)
        if existing and not options.force and _up_to_date(target, existing, about):
            console.say(f"{target}: up to date (--force repeats it)")
        else:
            _write(group, engine, target, about)
        if options.check:
            if percent is None:
                percent = check.SHARE if quantization == "float32" else QUANTIZED_SHARE
            check.check(group, engine, target, options.lines, percent)
    return target


def _engine(name: str, quantization: str) -> Engine:
    """Return the engine of this name; ConfigError if there is none or it lacks the quantization."""
    if name not in ENGINES:
        hint = ONNX if name == "onnx" else nearest(name, ENGINES)
        raise ConfigError(f"no export to '{name}'", where="--to", hint=hint)
    engine = ENGINES[name]
    message = f"unknown quantization '{quantization}' of {engine.title}"
    check_known(quantization, engine.quantizations, message, "--quantization")
    return engine


def refuse(run: Run, system: str, engine: Engine) -> None:
    """Refuse a system that an engine cannot run, before any weights are loaded.

    Raises: ConfigError with the reason, and the errors of `loading.build_untrained`.
    """
    system_files = run.find_system(system)
    with torch.device("meta"):  # only shapes are needed: no memory is used
        model = loading.build_untrained(run, system_files)
    reason = engine.refusal(model)
    if reason is not None:
        hint = "translate with nmtkit itself: nmtkit translate, or nmtkit.load in Python"
        raise ConfigError(
            f"{engine.title} cannot run '{system}': {reason}", where=system_files.path, hint=hint
        )


def _describe(group: SystemGroup, to: str, quantization: str) -> ExportedSystem:
    """Return the record of the exported folder, without the hashes of its files."""
    run, search = group.run, group.settings
    manifest = run.manifest()
    source, target = (TextSide.load(run.prep, side) for side in ("src", "tgt"))
    longest = search.max_source + 1
    longest = max(longest, int(search.max_length_a * longest) + search.max_length_b)
    return ExportedSystem(
        format=1,
        nmtkit=nmtkit.__version__,
        to=to,
        system=group.name,
        checkpoints=group.checkpoints(),
        quantization=quantization,
        prep=manifest.fingerprint,
        vocabulary=loading.vocabulary_hashes(run),
        src=manifest.src,
        tgt=manifest.tgt,
        positions=max(POSITIONS, longest),
        search={key: getattr(search, key) for key in SEARCH},
        text=folder.text_steps(source, target, manifest.settings),
    )


def _up_to_date(target: Path, existing: ExportedSystem, about: ExportedSystem) -> bool:
    """True if the export has the same inputs as before and no exported file has changed.

    Raises: ConfigError if the folder has the export of another system, or for another engine.
    """
    if (existing.system, existing.to) != (about.system, about.to):
        raise ConfigError(
            f"the folder has the export of '{existing.system}' to {existing.to}",
            where=target,
            hint="name another --out; --force replaces it",
        )
    same = existing.model_copy(update={"files": {}}) == about
    return same and not files.changed(target, existing.files)


def _write(group: SystemGroup, engine: Engine, target: Path, about: ExportedSystem) -> None:
    model = group.load(torch.device("cpu"))[0]
    prep = group.run.prep
    with folders.writing_folder(target, folder.owned, FULL) as temporary:
        engine.save(model, load_vocabularies(prep), about, temporary)
        folder.write_text_files(temporary / folder.TEXT, prep, group.run.manifest())
        files.write_text(temporary / folder.README, folder.readme(about, engine.title))
        hashes = files.hashes(sorted(temporary.rglob("*")), temporary)
        about.model_copy(update={"files": hashes}).write(temporary / folder.ABOUT)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    console.say(
        f"{target}: '{group.name}' for {engine.title}, {about.quantization}, {size / 1e6:,.1f} MB;"
        f" how to use it: {target / folder.README}"
    )
