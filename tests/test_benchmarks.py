"""The drivers of the benchmarks run, and three toolkits translate alike."""

import sys
from pathlib import Path

import pytest

from tests import random_systems

TRAIN = {
    "variant": "transformer",
    "model": random_systems.SIZES,
    "dropout": 0.1,
    "smoothing": 0.1,
    "batch": 300,
    "precision": "float32",
    "set": [],
}
SEARCH = {
    "system": "toy",
    "jobs": 1,
    "search": {"batch_size": 3, "precision": "float32"},
    "compute": "float32",
    "intra": 1,
    "sentences": 3,
    "rows": 3,
    "shortest": 0,
    "longest": 6,
    "length_penalty": 1.0,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder like the output of tests/benchmarks/corpus.py, with the system `toy`."""
    folder = tmp_path_factory.mktemp("benchmark")
    run = random_systems.prepare(folder / "run")
    sizes = {**random_systems.SIZES, "decoder_layers": 1}
    random_systems.add_system(run, "toy", "transformer", **sizes, norm="post", attn_bias=True)
    vocabulary = (run.prep / "vocab.txt").read_text("utf-8")
    (folder / "vocab.txt").write_text(vocabulary, "utf-8")
    tokens = vocabulary.split("\n")[10:19]
    lines = [f"{' '.join(tokens[i : i + 3])}\n" for i in (0, 3, 6)]
    (folder / "test.src").write_text("".join(lines), "utf-8")
    return folder


@pytest.fixture
def ask(corpus, monkeypatch):
    """A function that starts a driver, asks it for a round and returns its answer."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "benchmarks")
    from peers import System

    def answer(driver, setting, request):
        setting = {**setting, "corpus": str(corpus), "run": str(corpus / "run")}
        system = System("toolkit", sys.executable, driver, setting, threads=1)
        try:
            return system.ask(request)
        finally:
            system.close()

    return answer


def test_training_driver_counts_the_tokens_of_each_update(ask):
    answer = ask("train_nmtkit.py", TRAIN, "go 2")
    assert len(answer["tokens"]) == len(answer["cpu"]) == 2
    assert 0 < answer["tgt_real"] == sum(answer["tokens"]) <= answer["tgt_all"]
    assert 0 < answer["src_real"] <= answer["src_all"]


def test_search_drivers_of_three_toolkits_return_the_same_translations(ask, corpus):
    import export_model
    from peers import vocabulary_size

    from nmtkit.run import Run

    weights = corpus / "weights"
    model = export_model.export(Run(corpus / "run"), "toy", weights)
    setting = {
        "weights": str(weights),
        "variables": f"{weights}{export_model.CTRANSLATE2}",
        "vocabulary": vocabulary_size(corpus),
        "dropout": 0.0,
        "layers": model["encoder_layers"],
        "width": model["d_model"],
        "heads": model["heads"],
        "inner": model["d_ff"],
    }
    drivers = ("decode_nmtkit.py", "decode_ctranslate2.py", "decode_marian.py")
    answers = [ask(driver, SEARCH | setting, "translate 1") for driver in drivers]
    assert all(answer["cpu"] > 0 for answer in answers)
    translations = [answer["hypotheses"] for answer in answers]
    assert translations[0] == translations[1] == translations[2]
    assert [len(ids) > 0 for ids in translations[0]] == [True] * 3
