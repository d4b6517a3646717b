"""A prepared run with translations, made by hand: no training needed to test scores."""

import json
import os
import random

import pytest
import sentencepiece
from sacrebleu.tokenizers import tokenizer_spm

from nmtkit.run import Run
from nmtkit.score.stage import score
from nmtkit.toml import write_toml
from tests.drawn import sketched
from tests.manifests import write_manifest
from tests.stored import pair_writer

FLORES = "flores200sacrebleuspm"
"""sacreBLEU's file of the tokenizer of spBLEU."""
WORDS = [
    "ein",
    "der",
    "Hund",
    "die",
    "Katze",
    "läuft",
    "schläft",
    "heute",
    "hier",
    "dort",
    "schnell",
    "langsam",
    "und",
    "Haus",
    "Straße",
]


@pytest.fixture(scope="package", autouse=True)
def sketched_figures():
    """No test here looks at a figure."""
    with sketched():
        yield


def spoil(lines, share, seed, words=WORDS):
    """The lines with this share of words replaced."""
    rng = random.Random(seed)
    return [
        " ".join(w if rng.random() > share else rng.choice(words) for w in line.split(" "))
        for line in lines
    ]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def read(run, *parts):
    """A file that the stage has written."""
    return (run.path / "score").joinpath(*parts).read_text("utf-8")


def result_of(run, set_name="test"):
    return json.loads(read(run, set_name, "scores.json"))


class FakeRun:
    """Builds a run directory; `lines` are its reference lines."""

    def __init__(self, path, sets=("test",), count=40, tgt="de", references=1, lowercase=False):
        self.run, self.added = Run(path), 0
        rng = random.Random(11)
        self.lines = {}
        for name in sets:
            lines = [" ".join(rng.choices(WORDS, k=rng.randint(3, 26))) for _ in range(count)]
            self.lines[name] = lines
            write(path / "prep" / "text" / f"{name}.src", lines)
            for i in range(references):
                write(path / "prep" / "text" / f"{name}.ref{i or ''}", spoil(lines, 0.2 * i, i))
            with pair_writer(path / "prep" / name, 0, 100) as add:
                for line in lines:
                    ids = [5] * len(line.split()) + [2]
                    add(ids, ids)
        entries = [(name, "dev" if name == "dev" else "test", count, references) for name in sets]
        write_manifest(path / "prep", entries, {"lowercase": lowercase}, tgt=tgt, dataset=path.name)

    def add(self, system, share, sets=None, trained=True, seed=None, **settings):
        """A system that gets `share` of the words wrong, trained with this seed and these other
        settings, later than those added before.
        """
        folder = self.run.path / "systems" / system
        self.added += 1
        if trained:
            train = {} if seed is None else {"train": {"max_steps": 10, "seed": seed}}
            write_toml(folder / "config.toml", {"variant": "toy", **settings, **train})
            os.utime(folder / "config.toml", (self.added, self.added))
        for name in self.lines if sets is None else sets:
            hyps = spoil(self.lines[name], share, len(system))
            write(folder / "translate" / name / "hyp.txt", hyps)
        return folder

    def score(self, **options):
        score(self.run, **{"resamples": 10, "trials": 10, **options})

    def translate(self, system, lines, file="hyp.txt"):
        """Write a translation of the set `test`."""
        write(self.run.path / "systems" / system / "translate" / "test" / file, lines)

    def describe(self, system, **meta):
        """Write what `translate` tells of a translation of the set `test`."""
        self.translate(system, [json.dumps({"format": 1, **meta})], "meta.json")


@pytest.fixture(scope="session", autouse=True)
def flores(tmp_path_factory):
    """A small tokenizer in the place of the one that sacreBLEU downloads for spBLEU."""
    folder = tmp_path_factory.mktemp("sacrebleu")
    text = write(folder / "text", [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))])
    (folder / "models").mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "models/spm"), vocab_size=40, minloglevel=2
    )
    (folder / "models/spm.model").rename(folder / "models" / FLORES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(folder))
        yield


@pytest.fixture
def fake_run(tmp_path):
    def build(name="run", **options):
        return FakeRun(tmp_path / name, **options)

    return build


@pytest.fixture
def fake(fake_run):
    return fake_run()
