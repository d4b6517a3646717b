"""Are the outputs of two versions of nmtkit the same, bit for bit?

    python tests/benchmarks/outputs.py make FOLDER        # with the version on PYTHONPATH: run everything small, keep all outputs
    python tests/benchmarks/outputs.py compare OLD NEW    # which files differ

`make` prepares the demo corpus and trains one small system of every variant for 20 updates (seed 1,
float32, one thread); then it translates, scores and runs every analysis that applies. Compared are
weights, translations, scores, tables, figures and findings; not compared are times, commits, paths,
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

VARIANTS = [
    "transformer",
    "rnnsearch",
    "enc-dc",
    "dec-dc",
    "full-dc",
    "pr",
    "amn",
    "context-aware",
    "han",
    "concat",
    "caru",
    "gru-inv",
    "gatt",
]
TRAIN = [
    "train.max_steps=20",
    "train.checkpoint_every=10",
    "train.validate_every=10",
    "train.log_every=10",
    "train.warmup=10",
]
TRAIN += [
    "train.batch_size=800",
    "train.precision=float32",
    "search.precision=float32",
    "train.dev_sentences=20",
]
ANALYSES = {
    **{
        "lengths": [],
        "cost": [],
        "agreement": [],
        "layers": [],
        "importance": ["--sentences", "30"],
        "gates": [],
        "weights": [],
    },
    **{
        "convergence": [],
        "context": ["--set-name", "dev"],
        "examples": ["--sentence", "3"],
        "phrases": [],
        "divergence": [],
    },
    **{"alignment": ["--sentence", "7"], "probing": ["--tasks", "sentence_length,past_present"]},
}
COMPARED = (
    "*.safetensors",
    "hyp*.txt",
    "nbest.jsonl",
    "scores.json",
    "sentences.tsv",
    "*.md",
    "*.tex",
    "*.csv",
    "*.svg",
    "finding.json",
)
PREPARED = ("*.bin", "*.idx", "vocab*", "codes*", "truecase.*", "*.src", "*.ref*", "*.json")
VOLATILE = {
    "made_from",
    "made",
    "version",
    "commit",
    "seconds",
    "speed",
    "when",
    "targets_per_second",
    "classifiers",
    "checkpoints",
    "python",
}


def run(*words: str) -> int:
    """Run one nmtkit command; say what failed."""
    done = subprocess.run(
        [sys.executable, "-m", "nmtkit", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(
            " ".join(words),
            "->",
            done.returncode,
            done.stderr.strip().splitlines()[-3:],
            flush=True,
        )
    return done.returncode


def make(folder: Path) -> None:
    """Run every stage on the demo corpus."""
    os.environ.update(OMP_NUM_THREADS="1", NMTKIT_QUIET="1")
    where = ["--run", str(folder)]
    run("prep", "demo", "--size", "1500", "--jobs", "1", *where)
    for variant in VARIANTS:
        settings = [word for setting in TRAIN for word in ("--set", setting)]
        run(
            "train",
            "--variant",
            variant,
            "--preset",
            "tiny",
            "--seed",
            "1",
            "--device",
            "cpu",
            *settings,
            *where,
        )
    run("translate", *where)
    run("score", "--by-length", *where)
    for name, options in ANALYSES.items():
        run("analyze", name, *options, *where)
    run("report", *where)


def plain(value: object) -> object:
    """JSON values without what differs from call to call."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in VOLATILE}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def digests(folder: Path) -> dict[str, str]:
    """Path -> SHA-256 of everything that is compared."""
    found: dict[str, str] = {}
    paths = [
        p
        for pattern in COMPARED
        for part in ("systems", "score", "analyze")
        for p in (folder / part).rglob(pattern)
    ]
    paths += [p for pattern in PREPARED for p in (folder / "prep").rglob(pattern)]
    for path in sorted(paths):
        if (
            path.name in {"optimizer.safetensors"}
            or path.name == "manifest.json"
            or ".features" in path.parts
            or "export" in path.parts
        ):
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(plain(json.loads(content)), sort_keys=True).encode()
        if "convergence" in path.parts or "cost" in path.parts:  # they show measured times
            continue
        content = (
            re.sub(rb"/[^\s\"']*/(?=(prep|systems)/)", b"", content)
            if path.suffix not in {".safetensors", ".bin"}
            else content
        )
        content = re.sub(rb"commit [0-9a-f]+(-dirty)?", b"", content)
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def compare(old: Path, new: Path) -> int:
    """Print which files differ; the number of them."""
    before, after = digests(old), digests(new)
    differing = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    for name in differing:
        state = (
            "differs"
            if name in before and name in after
            else "only before"
            if name in before
            else "only after"
        )
        print(f"{state:12} {name}")
    print(
        f"{len(before.keys() & after.keys()) - sum(n in before and n in after for n in differing)}"
        f" files are the same, {len(differing)} are not"
    )
    return len(differing)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        sys.exit(bool(compare(Path(sys.argv[2]), Path(sys.argv[3]))))
