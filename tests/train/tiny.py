"""A tiny prepared run, made without prep: translate letters into their capitals, in reverse
order.
"""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

from nmtkit.models import checkpoints
from nmtkit.run import Run
from nmtkit.text.vocabulary import Vocabulary
from nmtkit.train.stage import train
from tests.manifests import read_json, write_manifest
from tests.stored import pair_writer

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


def sentences(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    draw = random.Random(seed)
    sources = [[draw.choice(LETTERS) for _ in range(draw.randint(2, 9))] for _ in range(count)]
    return [(source, [c.upper() for c in reversed(source)]) for source in sources]


def make_run(path: Path, pairs: int = 60, dev: int = 6, seed: int = 1, shard: int = 0) -> Run:
    """A prepared run of so many pairs, in shards of so many if `shard` is not 0; with dev = 0 it
    has no development set.
    """
    prep = path / "prep"
    (prep / "text").mkdir(parents=True)
    vocabulary = Vocabulary(["<pad>", "<s>", "</s>", "<unk>", *LETTERS, *LETTERS.upper()])
    vocabulary.save(prep / "vocab.txt")
    sets = [("train", "train", sentences(pairs, seed))] + (
        [("dev", "dev", sentences(dev, seed + 100))] if dev else []
    )
    for name, split, lines in sets:
        for number, start in enumerate(range(0, len(lines), shard or len(lines))):
            with pair_writer(prep / name, number, len(vocabulary)) as add:
                for source, target in lines[start : start + (shard or len(lines))]:
                    add(vocabulary.encode(source), vocabulary.encode(target))
        if split != "train":
            (prep / "text" / f"{name}.src").write_text(
                "".join(" ".join(s) + "\n" for s, _ in lines), "utf-8"
            )
            (prep / "text" / f"{name}.ref").write_text(
                "".join(" ".join(t) + "\n" for _, t in lines), "utf-8"
            )
    hashes = {
        p.relative_to(prep).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(prep.rglob("*"))
        if p.is_file()
    }
    values = {
        "dataset": "tiny",
        "preset": "",
        "vocabulary": {"shared": True, "src": len(vocabulary), "tgt": len(vocabulary)},
        "files": hashes,
        "fingerprint": hashlib.sha256(json.dumps(hashes).encode()).hexdigest(),
    }
    write_manifest(
        prep,
        [(name, split, len(lines)) for name, split, lines in sets],
        {"truecase": "none"},
        **values,
    )
    return Run(path)


def options(*extra: str) -> list[str]:
    """`--set` options of a tiny training; the extra ones win."""
    return [*MODEL, *TRAIN, *extra]


def trainer(settings: list[str]) -> Callable[..., None]:
    """A function that trains a run with these settings and more."""

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


def lines_of(path: Path) -> list[dict]:
    """The lines of a JSON file of one value a line."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def metrics(run: Run, kind: str | None = None, name: str = "transformer") -> list[dict]:
    """The lines of metrics.jsonl, of one kind or all."""
    return [line for line in lines_of(run.system(name).metrics) if kind in (None, line["kind"])]
