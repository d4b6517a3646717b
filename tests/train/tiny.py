"""A tiny prepared run, made without prep: letters are translated into their capitals, in reverse
order. Also helpers for its trainings and their files.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from nmtkit import files
from nmtkit.data.documents import documents_file
from nmtkit.models import checkpoints
from nmtkit.run import Run
from nmtkit.text.vocabulary import Vocabulary
from nmtkit.train.stage import train
from tests.manifests import read_json, write_manifest
from tests.pair_writer import pair_writer

LETTERS = "abcdefghijkl"
# d=16: a step takes a few milliseconds.
MODEL = [
    "model.d_model=16",
    "model.d_ff=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.dropout=0.1",
]
TRAIN = [
    "train.batch_size=64",
    "train.lr=0.01",
    "train.schedule=constant",
    "train.warmup=0",
    "train.log_every=4",
    "train.samples=1",
]
NO_AUTOCAST = {"device_type": "cpu", "enabled": False}


def sentences(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    draw = random.Random(seed)
    sources = [[draw.choice(LETTERS) for _ in range(draw.randint(2, 9))] for _ in range(count)]
    return [(source, [c.upper() for c in reversed(source)]) for source in sources]


def write_pairs(
    folder: Path, vocabulary: Vocabulary, pairs: Sequence[Sequence[list[str]]], shard: int = 0
) -> None:
    """Write a store of sentence pairs; `shard` is as in `make_run`."""
    shard = shard or len(pairs)
    for number, start in enumerate(range(0, len(pairs), shard)):
        with pair_writer(folder, number, len(vocabulary)) as add:
            for pair in pairs[start : start + shard]:
                add(*map(vocabulary.encode, pair))


def make_run(path: Path, pairs: int = 60, dev: int = 6, seed: int = 1, shard: int = 0) -> Run:
    """Return a prepared run.

    Args:
        pairs, dev: sentence pairs of the training and the development set; 0: no development set.
        shard: sentence pairs of a shard; 0: one shard a set.
    """
    run = Run(path)
    vocabulary = Vocabulary(["<pad>", "<s>", "</s>", "<unk>", *LETTERS, *LETTERS.upper()])
    vocabulary.save(run.prep / "vocab.txt")
    write_pairs(run.prep / "train", vocabulary, sentences(pairs, seed), shard)
    sets = [("train", "train", pairs)]
    if dev:
        lines = sentences(dev, seed + 100)
        write_pairs(run.prep / "dev", vocabulary, lines, shard)
        for side, words in zip(("src", "ref"), zip(*lines, strict=True), strict=True):
            files.write_lines(run.prep / "text" / f"dev.{side}", [" ".join(line) for line in words])
        sets.append(("dev", "dev", dev))
    hashes = files.hashes(sorted(run.prep.rglob("*")), run.prep)
    values = {
        "dataset": "tiny",
        "preset": "",
        "vocabulary": {"shared": True, "src": len(vocabulary), "tgt": len(vocabulary)},
        "files": hashes,
        "fingerprint": files.text_sha256(json.dumps(hashes)),
    }
    write_manifest(run.prep, sets, {"truecase": "none"}, **values)
    return run


def mark_documents(run: Run, name: str, starts: Iterable[int]) -> None:
    """Let documents of a set begin at these lines (from 0)."""
    files.write_lines(documents_file(run.prep, name), list(map(str, starts)))


def options(*extra: str) -> list[str]:
    """`--set` options of a tiny training; the extra ones win."""
    return [*MODEL, *TRAIN, *extra]


QUIET = (
    "train.validate_every=100",
    "train.checkpoint_every=100",
    "train.dev_bleu=false",
    "train.samples=0",
)
FOUR_STEPS = options("train.max_steps=4", *QUIET)


def as_arguments(assignments: Iterable[str]) -> list[str]:
    """Return the words of a command that sets these values."""
    return [word for assignment in assignments for word in ("--set", assignment)]


def trainer(settings: list[str]) -> Callable[..., None]:
    """Return a function that trains a run with these settings and more."""

    def go(run: Run, *extra: str, **values: object) -> None:
        train(run, assignments=[*settings, *extra], **values)

    return go


def saved(run: Run, name: str = "transformer") -> list[Path]:
    """The complete checkpoints of a system."""
    return checkpoints.find_checkpoints(run.system(name))


def last(run: Run, name: str = "transformer") -> Path:
    """The newest complete checkpoint of a system."""
    return saved(run, name)[-1]


def state_of(run: Run, name: str = "transformer") -> dict:
    """state.json of the newest complete checkpoint."""
    return read_json(last(run, name) / "state.json")


def saved_weights(run: Run, name: str = "transformer") -> dict[str, torch.Tensor]:
    """The weights in the newest complete checkpoint of a system."""
    return checkpoints.load_weights(last(run, name))


def equal_tensors(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """True if two mappings have the same names, and the same bits for each name."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def lines_of(path: Path) -> list[dict]:
    """The values of a JSON lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def metrics(run: Run, kind: str | None = None, name: str = "transformer") -> list[dict]:
    """The lines of metrics.jsonl, of one kind or all."""
    return [line for line in lines_of(run.system(name).metrics) if kind in (None, line["kind"])]
