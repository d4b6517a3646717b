"""The files that nmtkit writes into the folders of a run, by kind of folder. Nothing else is ever
removed: notes and other files of the user stay.

The patterns are those of `nmtkit.folders.remove_owned`.
"""

from __future__ import annotations

META, HYPOTHESES, SUBWORDS, NBEST = "meta.json", "hyp.txt", "hyp.subwords.txt", "nbest.jsonl"
"""systems/<name>/translate/<set>"""

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
MANIFEST = "manifest.json"
STEP = "step-" + 8 * "[0-9]"
CHECKPOINT = (WEIGHTS, OPTIMIZER, STATE, MANIFEST, ".tmp??????")
"""systems/<name>/checkpoints/step-*. The last one is what safetensors leaves if it is killed."""

TRAINING = (
    *("best.json", "train.log", "metrics.jsonl", "diverged.json", "wandb.json"),
    *("tensorboard/events.out.tfevents.*", "wandb/latest-run", "wandb/debug*.log"),
    *(f"wandb/*run-*{depth * '/*'}" for depth in range(1, 6)),
    *(f"checkpoints/{step}/{name}" for step in (STEP, f".*-{STEP}*") for name in CHECKPOINT),
)
"""systems/<name>, without config.toml and system.json, which a new training overwrites, and without
translations and exports, whose files are listed in meta.json and nmtkit.json.
"""

SUFFIXES = "md", "tex", "csv"
TABLES = "table", "significance", "seeds", "lengths", "lengths-*"
SCORES = (
    *("scores.json", "sentences.tsv", "lengths.svg"),
    *(f"{table}.{suffix}" for table in TABLES for suffix in SUFFIXES),
)
PAPER = tuple(f"paper.{suffix}" for suffix in SUFFIXES)
"""score/<set>: the numbers of a paper. External metrics are in score/<set>/metrics."""

TEXT_FILES = ("codes*.bpe", "bpe-vocab.*.txt", "subwords*.spm", "truecase.*")
"""The models that split text into subwords, in the prep folder and in an export."""
STORES = "*/[0-9]*.bin", "*/[0-9]*.idx"
"""The token ids of prepared sets, in the prep folder."""
PREP = (
    MANIFEST,
    "vocab*.txt",
    *TEXT_FILES,
    *STORES,
    "text/*.src",
    "text/*.ref*",
    "docs/*.txt",
    "parses/*.txt",
    "eval/*.json",
    "eval/probing/*.txt",
)
"""prep, if its manifest cannot be read"""
