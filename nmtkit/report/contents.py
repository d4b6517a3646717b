"""The contents of a run, read for its report. A missing, damaged or outdated part becomes a remark,
not an error.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nmtkit import files
from nmtkit.analyze import ANALYSES
from nmtkit.curves import Curves, read
from nmtkit.errors import DataError, NmtkitError
from nmtkit.models import checkpoints
from nmtkit.records import FindingInputs, Manifest, StoredFinding, TranslationMeta, load, parse
from nmtkit.report.commands import (
    analyze_command,
    of_run,
    score_again,
    score_command,
    to_first_scores,
    train_command,
)
from nmtkit.run import Run, StageCall, translate_command
from nmtkit.score import seeds
from nmtkit.score.stored_scores import ScoredFrom, Scores
from nmtkit.score.translations import described
from nmtkit.toml import flat

FIGURE = "figure.svg"
OWN_FILES = ("finding.json", FIGURE, "table.md", "table.tex", "table.csv")
MOST_NAMES = 3
"""The most changed inputs that a remark names."""


@dataclass(frozen=True)
class Remark:
    """Something missing, out of date or to be read with care, and the command that updates it."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class TrainedSystem:
    """One system of the run: its resolved settings by `section.key` (empty if they cannot be read)
    and its curves (empty if nothing was logged).
    """

    name: str
    settings: files.JsonObject
    curves: Curves
    parameters: int | None

    @property
    def seed(self) -> int | None:
        """The seed of its training."""
        return self.settings.get("train.seed")


@dataclass(frozen=True)
class ReportedFinding:
    """A finding of analyze/<name>/: its SVG, the names of further files, remarks, the command that
    computes it again, and True if its inputs have changed.
    """

    finding: StoredFinding
    figure: str | None
    further: list[str]
    remarks: list[Remark]
    command: str
    outdated: bool


@dataclass
class Contents:
    """Everything that a report shows of a run: the scores of each set (test sets first), the
    systems of these scores, and the findings.
    """

    run: Run
    manifest: Manifest
    systems: list[TrainedSystem] = field(default_factory=list)
    scores: dict[str, Scores] = field(default_factory=dict)
    findings: dict[str, ReportedFinding] = field(default_factory=dict)
    translations: dict[str, dict[str, TranslationMeta]] = field(default_factory=dict)
    """Set -> system -> what `translate` wrote beside its translation, unless that is damaged."""
    calls: list[StageCall] = field(default_factory=list)
    """The calls of stages in history.jsonl, oldest first, without calls of the report."""
    remarks: list[Remark] = field(default_factory=list)

    def note(self, text: str, command: str = "") -> None:
        """Add a remark."""
        self.remarks.append(Remark(text, command))

    @contextlib.contextmanager
    def noting(self, problem: str, command: str = "") -> Iterator[None]:
        """Turn an error into a remark: the problem, its reason and the command that helps."""
        try:
            yield
        except NmtkitError as error:
            self.note(f"{problem} ({error.message})", command)

    def of_corpus(self, fingerprint: str | None) -> bool:
        """True if a fingerprint is that of the prepared corpus, or is unknown."""
        return fingerprint in {None, "", self.manifest.fingerprint}

    def changed(self, inputs: FindingInputs | ScoredFrom) -> list[str]:
        """Return which inputs have changed or are gone: the prepared corpus, how scores are
        computed, files of the run.
        """
        changed = [] if self.of_corpus(inputs.prepared) else ["the prepared corpus"]
        first = inputs.seeds[:1] if isinstance(inputs, ScoredFrom) else []
        if first and (not isinstance(first[0], list) or first[0][:1] != [seeds.METHOD]):
            changed.append("how nmtkit computes scores")
        hashes = inputs.files.items()
        of_run = {n: sha for n, sha in hashes if n.startswith(("systems/", "prep/"))}
        return changed + files.changed(self.run.path, of_run)


def read_contents(run: Run) -> Contents:
    """Read a run for its report.

    Raises: DataError, with the next command, if the run is not prepared or has no scores.
    """
    contents = read_stages(run)
    if not contents.scores:
        raise _nothing(contents)
    trained = [system for system in run.systems() if checkpoints.was_trained(system)]
    if without := [s.name for s in trained if not checkpoints.candidates(s.checkpoints)]:
        contents.note(
            f"No weights here of {', '.join(without)}: analyses that read weights, and new"
            " translations, need them."
        )
    _read_calls(contents)
    return contents


def read_stages(run: Run) -> Contents:
    """Read the results of all stages, without the calls of the stages.

    Raises: DataError if the run is not prepared.
    """
    contents = Contents(run, run.manifest())
    _read_systems(contents)
    _read_scores(contents)
    _note_unscored(contents)
    if contents.scores:
        compared = {name for result in contents.scores.values() for name in result.names}
        contents.systems = [system for system in contents.systems if system.name in compared]
    _read_translations(contents)
    _read_findings(contents)
    return contents


def _nothing(contents: Contents) -> DataError:
    """Return the error of a run without scores, with the next command."""
    run, remarks = contents.run, [(r.text, r.command) for r in contents.remarks]
    damaged = [r for r in remarks if r[0].startswith("score/") and r[1]]
    reason, hint = damaged[-1] if damaged else to_first_scores(run)
    return DataError(f"nothing to report: {reason}", where=run.path, hint=of_run(hint, run))


def _read_systems(contents: Contents) -> None:
    for system in contents.run.systems():
        settings, curves = {}, Curves()
        with contents.noting(f"systems/{system.name}: its settings cannot be read"):
            config = system.read_config()
            settings = flat(config.model_dump())
            if not contents.of_corpus(config.corpus):
                text = f"{system.name}: trained on another preparation of the corpus"
                contents.note(text, train_command(system, config))
        with contents.noting(f"systems/{system.name}: its log cannot be read"):
            curves = read(system.metrics)
        record = system.read_record()
        parameters = record.parameters if record else None
        contents.systems.append(TrainedSystem(system.name, settings, curves, parameters))


def _read_scores(contents: Contents) -> None:
    folder = contents.run.path / "score"
    order = [s.name for s in sorted(contents.run.sets(), key=lambda s: s.split != "test")]
    names = sorted(path.parent.name for path in folder.glob("[!.]*/scores.json"))
    for name in names:
        if name not in order:
            contents.note(f"score/{name} is of a set that this run no longer has")
    for name in order:
        if name not in names:
            continue
        with contents.noting(f"score/{name} cannot be read", f"nmtkit score --force --on {name}"):
            result = contents.scores[name] = load(Scores, folder / name / "scores.json")
            if result.made_from and (changed := contents.changed(result.made_from)):
                text = f"score/{name}: made before these changed: {_some(changed)}"
                contents.note(text, score_again(contents.run, name, result))


def _sets(contents: Contents) -> list[str]:
    """Return the names of the scored sets and of all test sets."""
    tests = [text_set.name for text_set in contents.run.sets("test")]
    return list(dict.fromkeys([*contents.scores, *tests]))


def _note_unscored(contents: Contents) -> None:
    """Note which systems have no checkpoint, no translation or no scores."""
    run = contents.run
    systems = []
    for system in contents.systems:
        name = system.name
        if not checkpoints.was_trained(run.system(name)):
            contents.note(f"{name}: no checkpoint yet", f"nmtkit train --system {name}")
        elif contents.of_corpus(system.settings.get("corpus")):
            systems.append(name)
    for name in _sets(contents):
        result = contents.scores.get(name)
        if result is None and (run.path / "score" / name / "scores.json").exists():
            continue  # a remark says that they cannot be read
        translated = set(run.with_file(f"translate/{name}/hyp.txt"))
        again = score_command(run, name, result)
        if waiting := sorted(translated - set(result.names if result else ())):
            contents.note(f"{name}: not scored: {', '.join(waiting)}", again)
        if missing := [system for system in systems if system not in translated]:
            ready = [s for s in missing if checkpoints.candidates(run.system(s).checkpoints)]
            named = ready if ready != systems else []  # all systems need no names
            words = [word for system in named for word in ("--system", system)]
            translate = shlex.join(["nmtkit", "translate", *words, "--on", name])
            command = f"{translate} && {again}" if ready else ""
            contents.note(f"{name}: not translated: {', '.join(missing)}", command)


def translate_again(contents: Contents, set_name: str, name: str) -> str:
    """Return the command that translates a set again with the same settings of the search, if they
    are known, and scores the set. If the system was removed, the command only scores the set.
    """
    run, result = contents.run, contents.scores.get(set_name)
    members = name.removeprefix("ensemble-").split("+") if "+" in name else [name]
    if not all(run.system(member).config.is_file() for member in members):
        return score_again(run, set_name, result)
    meta = contents.translations[set_name].get(name) or TranslationMeta(format=1)
    member = meta.checkpoints[0].system if meta.checkpoints else name  # of an ensemble
    settings = next((s.settings for s in contents.systems if s.name == member), {})
    words = [
        "--set " + shlex.quote(f"search.{key}={json.dumps(value)}")
        for key, value in meta.settings.items()
        if settings.get(f"search.{key}", value) != value
    ]
    translate = " ".join([translate_command(name, set_name), *words, "--force"])
    return f"{translate} && {score_command(run, set_name, result)}"


def _read_translations(contents: Contents) -> None:
    """Read how the sets were translated."""
    for set_name in _sets(contents):
        metas = contents.translations[set_name] = {}
        scored = contents.scores[set_name].names if set_name in contents.scores else []
        translated = contents.run.with_file(f"translate/{set_name}/hyp.txt")
        for name in dict.fromkeys([*scored, *translated]):
            folder = contents.run.system(name).translation(set_name)
            problem = f"systems/{name}/translate/{set_name}: its meta.json cannot be read"
            with contents.noting(problem, translate_again(contents, set_name, name)):
                meta = metas[name] = described(folder)
                if checkpoints.outdated(contents.run, meta):
                    text = f"{set_name}: the translation by {name} is older than its weights"
                    contents.note(text, translate_again(contents, set_name, name))


def _read_findings(contents: Contents) -> None:
    paths = sorted((contents.run.path / "analyze").glob("[!.]*"))
    folders = {path.name: path for path in paths if path.is_dir()}
    for name in dict.fromkeys([*(name for name in ANALYSES if name in folders), *folders]):
        again = f"nmtkit analyze {name}" if name in ANALYSES else ""
        if (folders[name] / "finding.json").is_file():
            with contents.noting(f"analyze/{name} cannot be read", again and f"{again} --force"):
                contents.findings[name] = _finding(contents, folders[name])
        else:
            contents.note(f"analyze/{name}: it has no finding; the analysis did not finish", again)


def _finding(contents: Contents, folder: Path) -> ReportedFinding:
    run, stored = contents.run, load(StoredFinding, folder / "finding.json")
    inputs = stored.made_from
    changed = contents.changed(inputs)
    changed += [
        f"the weights of {system}"
        for system, digests in inputs.weights.items()
        if checkpoints.have_changed(run.system(system), digests)
    ]
    present = [name for name in inputs.systems if run.system(name).path.is_dir()]
    made_with = inputs.model_copy(update={"systems": present or inputs.systems})
    command = analyze_command(stored.name, made_with, run.system_names())
    remarks = []
    if changed:
        remarks.append(Remark(f"Made before these changed: {_some(changed)}", command))
    if without := [s.name for s in contents.systems if s.name not in inputs.systems]:
        text = f"Made for {', '.join(inputs.systems)}, without {', '.join(without)}"
        remarks.append(Remark(text))
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    figure = (folder / FIGURE).read_text("utf-8", "replace") if FIGURE in names else None
    further = [name for name in names if name not in OWN_FILES and not name.startswith(".")]
    return ReportedFinding(stored, figure, further, remarks, command, bool(changed))


def _read_calls(contents: Contents) -> None:
    path, damaged = contents.run.history, 0
    for line in files.byte_lines(path) if path.is_file() else ():
        try:
            call = parse(StageCall, line, path)
        except DataError:
            damaged += 1
            continue
        if call.stage != "report":
            contents.calls.append(call)
    if damaged:
        contents.note(f"history.jsonl: damaged lines that the table of calls leaves out: {damaged}")


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def digest_of_scores(run: Run) -> str:
    """Return a hash of the scores of a run."""
    paths = sorted(run.path.glob("score/[!.]*/scores.json"))
    return files.text_sha256(json.dumps(files.hashes(paths, run.path)))


def has_digest(page: Path, digest: str) -> bool:
    """True if a page exists and names this digest of its inputs."""
    if not page.is_file():
        return False
    try:
        with open(page, encoding="utf-8") as stream:
            return f'content="{digest}"' in stream.read(4096)
    except (OSError, UnicodeDecodeError):
        return False
