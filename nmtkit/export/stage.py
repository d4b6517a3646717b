"""The stage `export`: write a trained system for another engine, and compare their translations."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

import nmtkit
from nmtkit import console, files
from nmtkit.errors import ConfigError, EnvironmentProblem, nearest
from nmtkit.export import check, folder, layout
from nmtkit.export.options import ExportOptions
from nmtkit.models import loading
from nmtkit.models.base import Model
from nmtkit.records import ExportedSystem
from nmtkit.run import Run, locked
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate.systems import SystemGroup, choose

ENGINES = ("ctranslate2",)
QUANTIZATIONS = (
    "float32",
    "float16",
    "bfloat16",
    "int16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
)
"""CTranslate2's quantizations, the default first."""
QUANTIZED_SHARE = 50.0
"""Instead of `check.SHARE` if weights are rounded: then fewer translations are equal."""
POSITIONS = 1024
"""Minimum length of the table of positions, which CTranslate2 stores."""
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
        EnvironmentProblem if ctranslate2 is not installed; Disagreement if too few translations
        are equal.
    """
    options = ExportOptions.of({"system": system, "to": to, **values})
    quantization, percent = options.quantization, options.at_least
    _check_names(to, quantization)
    refuse(run, system)
    if importlib.util.find_spec("ctranslate2") is None:
        raise EnvironmentProblem(
            "ctranslate2 is not installed",
            where=f"--to {to}",
            hint="in nmtkit's checkout: pip install -e '.[export]'",
        )
    target = options.out or run.system(system).path / "export" / to
    with run.recorded("export", device="cpu") as call, locked(run.path, "export", shared=True):
        call.systems = [system]
        group = choose(run, [system], False, {}, single=True)[0]
        about = _describe(group, quantization)
        if _up_to_date(target, about) and not options.force:
            console.say(f"{target}: up to date (--force repeats it)")
        else:
            _write(group, target, about)
        if options.check:
            if percent is None:
                percent = check.SHARE if quantization == "float32" else QUANTIZED_SHARE
            check.check(group, target, options.lines, percent)
    return target


def _check_names(engine: str, quantization: str) -> None:
    if engine not in ENGINES:
        raise ConfigError(f"no export to '{engine}'", where="--to", hint=nearest(engine, ENGINES))
    if quantization not in QUANTIZATIONS:
        raise ConfigError(
            f"unknown quantization '{quantization}'",
            where="--quantization",
            hint=nearest(quantization, QUANTIZATIONS),
        )


def refuse(run: Run, system: str) -> None:
    """Refuse a system that CTranslate2 cannot run, before any weights are loaded.

    Raises: ConfigError with the reason, and the errors of `loading.build_untrained`.
    """
    system_files = run.find_system(system)
    with torch.device("meta"):  # only shapes are needed: no memory is used
        model = loading.build_untrained(run, system_files)
    reason = model.beyond_transformer
    if reason is None and not model.settings.model_dump().get("encoder_layers"):
        reason = "its encoder has no layers"
    if reason is not None:
        hint = "translate with nmtkit itself: nmtkit translate, or nmtkit.load in Python"
        raise ConfigError(
            f"CTranslate2 cannot run '{system}': {reason}", where=system_files.path, hint=hint
        )


def _describe(group: SystemGroup, quantization: str) -> ExportedSystem:
    """Return the record of the exported folder, without the hashes of its files."""
    run, search = group.run, group.settings
    manifest = run.manifest()
    source, target = (TextSide.load(run.prep, side) for side in ("src", "tgt"))
    longest = search.max_source + 1
    longest = max(longest, int(search.max_length_a * longest) + search.max_length_b)
    return ExportedSystem(
        format=1,
        nmtkit=nmtkit.__version__,
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


def _up_to_date(target: Path, about: ExportedSystem) -> bool:
    """True if the export has the same inputs as before and no exported file has changed."""
    existing = folder.read_about(target)
    if existing is None or existing.model_copy(update={"files": {}}) != about:
        return False
    return not files.changed(target, existing.files)


def _write(group: SystemGroup, target: Path, about: ExportedSystem) -> None:
    model = group.load(torch.device("cpu"))[0]
    prep = group.run.prep
    with folder.writing(target) as temporary:
        _save(model, prep, about.quantization, about.positions, temporary)
        folder.write_text_files(temporary / folder.TEXT, prep, group.run.manifest())
        files.write_text(temporary / folder.README, folder.readme(about))
        paths = sorted(path for path in temporary.rglob("*") if path.is_file())
        hashes = {str(path.relative_to(temporary)): files.sha256(path) for path in paths}
        about.model_copy(update={"files": hashes}).write(temporary / folder.ABOUT)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    console.say(
        f"{target}: '{group.name}' for CTranslate2, {about.quantization}, {size / 1e6:,.1f} MB; how"
        f" to use it: {target / folder.README}"
    )


def _save(model: Model, prep: Path, quantization: str, positions: int, target: Path) -> None:
    """Write CTranslate2's files."""
    spec = layout.specification(
        layout.variables(model, positions), model.settings.model_dump()["heads"]
    )
    source_vocabulary, target_vocabulary = load_vocabularies(prep)
    spec.register_source_vocabulary(list(source_vocabulary))
    spec.register_target_vocabulary(list(target_vocabulary))
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(target))
