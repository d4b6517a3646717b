"""Score with the recipe for COMET, with a stub in place of the package."""

import sys

import pytest

from tests import ROOT
from tests.score.conftest import fake_run, result_of, write  # noqa: F401

SCRIPT = ROOT / "recipes/metrics/comet_scores.py"
STUB = """
from types import SimpleNamespace
def download_model(name):
    print("downloading")
    return f"downloaded {name}"
class Model:
    def __init__(self, path): self.path = path
    def predict(self, rows, batch_size, gpus):
        assert self.path in ("downloaded Unbabel/wmt22-comet-da", "downloaded other") and not gpus
        assert all(list(row) == ["src", "mt", "ref"] for row in rows)
        more = 0.5 if "other" in self.path else 0.0
        return SimpleNamespace(scores=[more + len(row["mt"]) / 1000 for row in rows])
load_from_checkpoint = Model
"""


def test_every_line_is_scored_with_the_chosen_model(fake_run, tmp_path, monkeypatch):  # noqa: F811
    fake = fake_run(count=30, references=2)
    fake.add("a", 0.3)
    write(tmp_path / "stub/comet.py", [STUB])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stub"))
    hyps = (fake.run.path / "systems/a/translate/test/hyp.txt").read_text("utf-8").splitlines()
    mean = sum(map(len, hyps)) / len(hyps) / 1000
    for model, more in (("", 0.0), (" other", 0.5)):
        fake.score(metric=[f"comet={sys.executable} {SCRIPT}{model}"])
        scores = result_of(fake.run)["systems"][0]["scores"]
        assert scores["comet"]["value"] == pytest.approx(mean + more, abs=1e-12)
