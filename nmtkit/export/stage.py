"""The stage `export`: a trained system as another engine reads it, and whether that one
translates alike.
"""

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
"""CTranslate2's, the default first."""
SHARE, QUANTIZED_SHARE = 95.0, 50.0
"""Percentage of translations that must be equal: float32 differs where two are almost as good;
rounded weights differ more.
"""
POSITIONS = 1024
"""The longest sentence, at least: CTranslate2 stores the table of positions."""
SEARCH = ("beam", "length_penalty", "max_length_a", "max_length_b", "max_source")
"""Settings of the search that the folder names."""


def export(run: Run, system: str, to: str, **values: Any) -> Path:
    """Write the weights of a system (see `nmtkit.models.checkpoints.choose`) for another engine.

    Args:
        run: the run; system: its name.
        to: the engine.
        values: of `ExportOptions`.
    Returns: the folder.
    Raises: ConfigError for what the engine cannot run, or a folder that is something else;
        EnvironmentProblem if its package is not installed; Disagreement if fewer translations are
        equal.
    """
    options = ExportOptions.of({"system": system, "to": to, **values})
    quantization = options.quantization
    if to not in ENGINES:
        raise ConfigError(f"no export to '{to}'", where="--to", hint=nearest(to, ENGINES))
    if quantization not in QUANTIZATIONS:
        raise ConfigError(
            f"unknown quantization '{quantization}'",
            where="--quantization",
            hint=nearest(quantization, QUANTIZATIONS),
        )
    refuse(run, system)
    if importlib.util.find_spec("ctranslate2") is None:
        raise EnvironmentProblem(
            "ctranslate2 is not installed",
            where=f"--to {to}",
            hint="in nmtkit's checkout: pip install -e '.[export]'",
        )
    target = options.out or run.system(system).path / "export" / to
    with run.recorded("export", device="cpu") as record, locked(run.path, "export", shared=True):
        record["systems"] = [system]
        group = choose(run, [system], False, {}, single=True)[0]
        _write(group, target, quantization, options.force)
        if options.check:
            least = SHARE if quantization == "float32" else QUANTIZED_SHARE
            _check(
                group,
                target,
                options.lines,
                least if options.at_least is None else options.at_least,
            )
    return target


def refuse(run: Run, system: str) -> None:
    """Say why CTranslate2 cannot run a system, before anything is loaded.

    Raises: ConfigError with the reason; otherwise as `loading.build_untrained`.
    """
    system_files = run.find_system(system)
    with torch.device("meta"):  # shapes alone, no memory
        model = loading.build_untrained(run, system_files)
    reason = model.beyond_transformer
    if reason is None and not model.settings.model_dump().get("encoder_layers"):
        reason = "its encoder has no layers"
    if reason is not None:
        hint = "translate with nmtkit itself: nmtkit translate, or nmtkit.load in Python"
        raise ConfigError(
            f"CTranslate2 cannot run '{system}': {reason}", where=system_files.path, hint=hint
        )


def _write(group: SystemGroup, target: Path, quantization: str, force: bool) -> None:
    """Write the folder, unless it is up to date."""
    run, search = group.run, group.settings
    manifest = run.manifest()
    sides = TextSide.load(run.prep, "src"), TextSide.load(run.prep, "tgt")
    longest = search.max_source + 1
    longest = max(longest, int(search.max_length_a * longest) + search.max_length_b)
    about = ExportedSystem(
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
        text=folder.text_steps(*sides, manifest.settings),
    )
    before = folder.read_about(target)
    if (
        before is not None
        and not force
        and before.model_copy(update={"files": {}}) == about
        and not files.changed(target, before.files)
    ):
        console.say(f"{target}: up to date (--force repeats it)")
        return
    model = group.load(torch.device("cpu"))[0]
    with folder.writing(target) as temporary:
        _save(model, run.prep, quantization, about.positions, temporary)
        folder.write_text_files(temporary / folder.TEXT, run.prep, manifest)
        files.write_text(temporary / folder.README, folder.readme(about))
        paths = sorted(path for path in temporary.rglob("*") if path.is_file())
        hashes = {str(path.relative_to(temporary)): files.sha256(path) for path in paths}
        about.model_copy(update={"files": hashes}).write(temporary / folder.ABOUT)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    console.say(
        f"{target}: '{group.name}' for CTranslate2, {quantization}, {size / 1e6:,.1f} MB; how to"
        f" use it: {target / folder.README}"
    )


def _save(model: Model, prep: Path, quantization: str, positions: int, target: Path) -> None:
    """CTranslate2's own files."""
    spec = layout.specification(
        layout.variables(model, positions), model.settings.model_dump()["heads"]
    )
    source, own = (list(vocabulary) for vocabulary in load_vocabularies(prep))
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(own)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(target))


def _check(group: SystemGroup, target: Path, count: int, least: float) -> None:
    """Translate lines with both, print what came of it.

    Raises: Disagreement if too few translations are equal.
    """
    name, lines = check.comparable_lines(
        group.run, count, group.settings.max_source, TextSide.load(group.run.prep, "src")
    )
    checked = check.compare(group, target, lines)
    check.show(
        checked, f"{len(lines)} lines of {name}, beam {group.settings.beam}, no length penalty"
    )
    if checked.share < least / 100:
        difference = (
            f"only {sum(checked.equal)} of {len(lines)} translations are equal, less than"
            f" {least:.0f}%"
        )
        hint = (
            "--at-least lowers the bar; rounded weights (--quantization) may cost this much"
            if least < SHARE
            else "please report it as a fault of nmtkit"
        )
        raise check.Disagreement(difference, where=target, hint=hint)
