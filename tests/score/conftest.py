"""A run directory with made-up translations, so that tests of scores need no training."""

import csv
import io
import json
import os
import random

import pytest
import sacrebleu
import sentencepiece
from sacrebleu.tokenizers import tokenizer_spm

from nmtkit.records import load
from nmtkit.run import Run
from nmtkit.score.stage import score
from nmtkit.score.stored_scores import Scores
from nmtkit.toml import write_toml
from tests.fast_figures import draw_sketches
from tests.manifests import read_json, write_manifest
from tests.pair_writer import pair_writer
from tests.prep.real import lines as real_lines

FLORES = "flores200sacrebleuspm"
"""File name of spBLEU's tokenizer in sacreBLEU's folder."""
TEXT = "ein der Hund die Katze läuft schläft heute hier dort schnell langsam und Haus Straße"
WORDS = TEXT.split()
SPLIT = (
    "nrefs:1|case:mixed|eff:no|tok:moses-normalized-split-hyphens|smooth:none"
    f"|version:{sacrebleu.__version__}"
)
"""The signature of tokenized BLEU with the default settings of prep."""


@pytest.fixture(scope="package", autouse=True)
def sketched_figures():
    """Figures are sketches, which have the numbers of the figures."""
    with draw_sketches():
        yield


def spoil(lines, share, seed, words=WORDS):
    """Replace about this share of the words by random words."""
    rng = random.Random(seed)
    return [
        " ".join(w if rng.random() > share else rng.choice(words) for w in line.split(" "))
        for line in lines
    ]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def csv_rows(text, **options):
    """Return the rows of a CSV text as dictionaries."""
    return list(csv.DictReader(io.StringIO(text), **options))


def result_of(run, set_name="test"):
    """Return scores.json of a set as plain values."""
    return read_json(run.path / "score" / set_name / "scores.json")


class FakeRun:
    """A run directory with made-up translations.

    Attributes:
        lines: set -> its reference lines, which are its source lines too.
        scores: the folder of the scores of the set `test`.
    """

    def __init__(self, path, sets=("test",), count=40, tgt="de", references=1, lowercase=False):
        self.run, self.added, self.scores = Run(path), 0, path / "score" / "test"
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
        """Add a system, trained later than the systems added before.

        Args:
            share: share of the words that its translations get wrong.
            sets: the sets it has translated; None for all.
            trained: False for a system without settings (an ensemble).
            seed, settings: what its config.toml has.
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

    def add_all(self, **shares):
        """Add systems by name, each with its share of wrong words."""
        for name, share in shares.items():
            self.add(name, share)

    def score(self, **options):
        """Run the stage, with few resamples unless the options say otherwise."""
        score(self.run, **{"resamples": 10, "trials": 10, **options})

    def result(self, set_name="test"):
        """Return scores.json as plain values."""
        return result_of(self.run, set_name)

    def systems(self, set_name="test"):
        """Return the names of the scored systems."""
        return [system["name"] for system in self.result(set_name)["systems"]]

    def loaded(self):
        """Return scores.json of the set `test` as a record."""
        return load(Scores, self.scores / "scores.json")

    def read(self, name):
        """Return the text of a file of the scores of the set `test`."""
        return (self.scores / name).read_text("utf-8")

    def csv(self, name, **options):
        """Return the rows of a CSV file of the scores of the set `test`."""
        return csv_rows(self.read(name), **options)

    def translate(self, system, lines, file="hyp.txt"):
        """Write a translation of the set `test`."""
        write(self.run.path / "systems" / system / "translate" / "test" / file, lines)

    def describe(self, system, **meta):
        """Write meta.json of a translation of the set `test`."""
        self.translate(system, [json.dumps({"format": 1, **meta})], "meta.json")


@pytest.fixture(scope="session", autouse=True)
def flores(tmp_path_factory):
    """Train a small tokenizer in place of the one that sacreBLEU downloads for spBLEU."""
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
    """Builds a run directory in a folder of this name."""

    def build(name="run", **options):
        return FakeRun(tmp_path / name, **options)

    return build


@pytest.fixture
def fake(fake_run):
    """A run directory with one test set of 40 lines and no system."""
    return fake_run()


@pytest.fixture(scope="session")
def news(shared):
    """Real English with hyphens and names, and the same with one word in six left out."""
    lines = real_lines(shared / "data" / "wmt_newstest" / "newstest2013.eng")[:300]
    return lines, [
        " ".join(word for i, word in enumerate(line.split(" ")) if i % 6 != 4) for line in lines
    ]
