"""The provenance of a report: the corpus, settings, checkpoints and calls of stages."""

import pytest

from nmtkit.records import Manifest
from nmtkit.report import provenance
from nmtkit.report.contents import read_contents
from nmtkit.run import StageCall
from tests.manifests import edit, read_json

pytestmark = pytest.mark.usefixtures("without_figures")


def test_corpus_notes_what_preparation_left_out_and_found(reported):
    manifest = read_json(reported.run.prep / "manifest.json")
    manifest["cleaning"]["dropped"] = {
        name: {"pairs": pairs, "src": 0, "tgt": 0} for name, pairs in (("long", 1200), ("empty", 3))
    }
    overlap = [{"name": "test", "exact": 3, "normalised": 4000}]
    manifest["repeats"] = {"duplicates": 5000, "identical": 6, "overlap": overlap}
    manifest["sets"][0]["foreign"] = {"src": 7000}
    table = provenance.corpus(Manifest.model_validate(manifest))
    assert table.rows == [["test", "test", 40, 1, 0, 0]]
    assert table.notes == [
        "fingerprint of the training data: f1",
        "training pairs left out: long 1,200, empty 3",
        "repeated training pairs: duplicates 5,000, source = target 6",
        "pairs of test in the training text before cleaning: 3 exactly, 4,000 without case and"
        " punctuation",
        "lines of test (src) without a letter of their language's script: 7,000",
    ]


def test_settings_that_differ_and_that_are_shared_are_separate_tables(reported):
    own = reported.run.system("own").config
    edit(own, "seed = 1", "seed = 1\nlr = 0.00001\ndev_bleu = false")
    different, shared = provenance.settings(read_contents(reported.run))
    assert different.rows == [
        ["variant", "base", "own"],
        ["train.lr", None, "1e-05"],
        ["train.dev_bleu", None, "false"],
    ]
    assert ["train.max_steps", "10"] in shared.rows and ["train.seed", "1"] in shared.rows
    assert not {row[0] for row in shared.rows} & {row[0] for row in different.rows}


def test_systems_have_the_checkpoints_and_the_machine_of_their_translations(reported):
    used = [{"system": "own", "name": f"step-{i}", "sha256": "0" * 64} for i in (1, 2)]
    reported.describe("own", checkpoints=used, hardware={"name": "a CPU"})
    table = provenance.systems(read_contents(reported.run))
    assert [column.header for column in table.columns][-1] == "checkpoint for test"
    assert table.rows == [["base", "base", 1, None], ["own", "own", 1, "step-1, step-2 on a CPU"]]


@pytest.mark.parametrize(
    ("end", "seconds"),
    [("2026-01-01T10:03:20+0000", 200), (None, None), ("not a time", None)],
)
def test_calls_are_shown_with_the_latest_first_and_their_seconds(end, seconds):
    def call(stage, argv):
        start = "2026-01-01T10:00:00+0000"
        values = {"version": "", "commit": "c", "python": "", "device": "cpu", "seed": 1}
        return StageCall(stage=stage, argv=argv, start=start, end=end, exit=0, **values)

    table = provenance.history([call("prep", []), call("train", ["train", "--name", "a b"])])
    assert [row[1] for row in table.rows] == [seconds] * 2
    assert [row[-1] for row in table.rows] == ["nmtkit train --name 'a b'", "nmtkit prep"]
