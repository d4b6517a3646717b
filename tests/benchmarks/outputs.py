"""Compare the outputs of two versions of nmtkit bit for bit.

    python tests/benchmarks/outputs.py make FOLDER        # with the version on PYTHONPATH
    python tests/benchmarks/outputs.py compare OLD NEW    # prints the files that differ

`make` prepares the demo corpus and trains a small system of every variant for 20 updates (seed 1,
float32, one thread). Then it translates, scores and runs every analysis that applies. `compare`
reads weights, translations, scores, tables, figures and findings, but not times, commits, paths
and checksums of inputs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from nmtkit.models.variants import VARIANTS

TRAIN = [
    "train.max_steps=20",
    "train.checkpoint_every=10",
    "train.validate_every=10",
    "train.log_every=10",
    "train.warmup=10",
    "train.batch_size=800",
    "train.precision=float32",
    "search.precision=float32",
    "train.dev_sentences=20",
]
ANALYSES = {
    "lengths": "",
    "cost": "",
    "agreement": "",
    "layers": "",
    "importance": "--sentences 30",
    "gates": "",
    "weights": "",
    "convergence": "",
    "context": "--on dev",
    "examples": "--sentence 3",
    "phrases": "",
    "divergence": "",
    "alignment": "--sentence 7",
    "probing": "--tasks sentence_length,past_present",
}
"""Analysis -> its options."""
COMPARED = (
    *("*.safetensors", "hyp*.txt", "nbest.jsonl", "scores.json", "sentences.tsv", "finding.json"),
    *("*.md", "*.tex", "*.csv", "*.svg"),
)
PREPARED = ("*.bin", "*.idx", "vocab*", "codes*", "truecase.*", "*.src", "*.ref*", "*.json")
LEFT_OUT = {".features", "export", "convergence", "cost"}
"""Folders that are not compared: features of probing, exports, measured times."""
VOLATILE = {
    "made_from",
    "made",
    "version",
    "commit",
    "seconds",
    "speed",
    "when",
    "classifiers",
    "checkpoints",
    "python",
}


def run(command: str) -> None:
    """Run a command of nmtkit; if it fails, print the command and the end of its messages."""
    words = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "nmtkit", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(command, "->", done.returncode, done.stderr.strip().splitlines()[-3:], flush=True)


def make(folder: Path) -> None:
    """Run every stage on the demo corpus."""
    os.environ.update(OMP_NUM_THREADS="1", NMTKIT_QUIET="1", NMTKIT_RUN=str(folder))
    run(f"prep demo --size 1500 --jobs 1 --run {folder}")
    settings = " ".join(f"--set {setting}" for setting in TRAIN)
    for variant in VARIANTS:
        run(f"train --variant {variant} --preset tiny --seed 1 --device cpu {settings}")
    run("translate")
    run("score --by-length")
    for name, options in ANALYSES.items():
        run(f"analyze {name} {options}")
    run("report")


def plain(value: object) -> object:
    """Return a JSON value without the VOLATILE keys."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in VOLATILE}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def digests(folder: Path) -> dict[str, str]:
    """Return path -> SHA-256 of every compared file."""
    hashes: dict[str, str] = {}
    paths = {
        path
        for part, patterns in {
            **dict.fromkeys(("systems", "score", "analyze"), COMPARED),
            "prep": PREPARED,
        }.items()
        for pattern in patterns
        for path in (folder / part).rglob(pattern)
    }
    for path in sorted(paths):
        if path.name in {"optimizer.safetensors", "manifest.json"} or LEFT_OUT & {*path.parts}:
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(plain(json.loads(content)), sort_keys=True).encode()
        if path.suffix not in {".safetensors", ".bin"}:
            content = re.sub(rb"/[^\s\"']*/(?=(prep|systems)/)", b"", content)
        content = re.sub(rb"commit [0-9a-f]+(-dirty)?", b"", content)
        hashes[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return hashes


def compare(old: Path, new: Path) -> int:
    """Print which files differ; return their number."""
    before, after = digests(old), digests(new)
    differing = 0
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            differing += 1
            sides = [
                side for side, hashes in (("before", before), ("after", after)) if name in hashes
            ]
            print(f"{'differs' if len(sides) == 2 else 'only ' + sides[0]:12} {name}")
    same = len(before.items() & after.items())
    print(f"{same} files are the same, {differing} are not")
    return differing


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        sys.exit(bool(compare(Path(sys.argv[2]), Path(sys.argv[3]))))
