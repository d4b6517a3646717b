"""A prepared run with translations, made by hand: no training needed to test scores."""

import json
import random

import pytest

from nmtkit.data.store import StoreWriter
from nmtkit.run import Run, write_toml
from nmtkit.settings import PrepSettings

WORDS = ["ein", "der", "Hund", "die", "Katze", "läuft", "schläft", "heute", "hier", "dort", "schnell", "langsam", "und", "Haus", "Straße"]


def spoil(lines, share, seed):
    """The lines with this share of words replaced."""
    rng = random.Random(seed)
    return [" ".join(w if rng.random() > share else rng.choice(WORDS) for w in line.split(" ")) for line in lines]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), "utf-8")


class FakeRun:
    """Builds a run directory; `lines` are its reference lines."""

    def __init__(self, path, sets=("test",), count=40, tgt="de", references=1, lowercase=False):
        self.run = Run(path)
        rng = random.Random(11)
        self.lines = {}
        settings = PrepSettings(lowercase=lowercase).model_dump(mode="json")
        manifest = {"format": 1, "src": "en", "tgt": tgt, "fingerprint": "f1", "settings": settings, "sets": []}
        for name in sets:
            self.lines[name] = [" ".join(rng.choices(WORDS, k=rng.randint(3, 26))) for _ in range(count)]
            manifest["sets"].append({"name": name, "split": "dev" if name == "dev" else "test", "lines": count, "references": references})
            write(path / "prep" / "text" / f"{name}.src", self.lines[name])
            for i in range(references):
                write(path / "prep" / "text" / f"{name}.ref{i or ''}", spoil(self.lines[name], 0.2 * i, i))
            with StoreWriter(path / "prep" / name, 100) as store:
                for line in self.lines[name]:
                    ids = [5] * len(line.split()) + [2]
                    store.add(ids, ids)
        (path / "prep" / "manifest.json").write_text(json.dumps(manifest), "utf-8")

    def add(self, system, share, sets=None, trained=True, seed=None, **settings):
        """A system that gets `share` of the words wrong, trained with this seed and these other settings."""
        folder = self.run.path / "systems" / system
        if trained:
            train = {} if seed is None else {"train": {"max_steps": 10, "seed": seed}}
            write_toml(folder / "config.toml", {"variant": "toy", **settings, **train})
        for name in self.lines if sets is None else sets:
            write(folder / "translate" / name / "hyp.txt", spoil(self.lines[name], share, len(system)))
        return folder


@pytest.fixture
def fake_run(tmp_path):
    def build(name="run", **options):
        return FakeRun(tmp_path / name, **options)

    return build
