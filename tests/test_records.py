"""Records are written back unchanged; a damaged file is named with its field and a hint."""

import json

import pytest
from pydantic import model_serializer

from nmtkit.analyze.stage import analyze
from nmtkit.errors import DataError
from nmtkit.records import (
    BestCheckpoint,
    CheckpointManifest,
    Manifest,
    MetricsLine,
    Part,
    Record,
    StoredFinding,
    TextRecipe,
    TranslationMeta,
    load,
    load_lines,
)
from nmtkit.score.stage import score
from nmtkit.score.stored_scores import Scores
from nmtkit.translate.stage import translate
from tests.manifests import read_json, write_best, write_json
from tests.random_systems import add_system, prepare
from tests.refused import refused


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with the files of every stage except training."""
    made = prepare(tmp_path_factory.mktemp("records") / "run")
    for seed, name in enumerate(("one", "two"), 1):
        add_system(made, name, "transformer", seed)
        write_best(made.system(name).path, "step-00000001")
    translate(made, set_names=["test"], jobs=1, device="cpu")
    score(made, by_length=True, buckets="9", resamples=10, trials=10)
    analyze(made, "lengths")
    return made


@pytest.mark.parametrize(
    ("record", "pattern"),
    [
        (Manifest, "prep/manifest.json"),
        (TranslationMeta, "systems/*/translate/test/meta.json"),
        (BestCheckpoint, "systems/*/best.json"),
        (CheckpointManifest, "systems/*/checkpoints/*/manifest.json"),
        (Scores, "score/test/scores.json"),
        (StoredFinding, "analyze/lengths/finding.json"),
    ],
)
def test_record_is_written_back_unchanged(run, record, pattern, tmp_path):
    found = sorted(run.path.glob(pattern))
    assert found
    for path in found:
        values = read_json(path)
        load(record, path).write(tmp_path / "again.json")
        again = (tmp_path / "again.json").read_text("utf-8")
        assert json.loads(again) == values and list(json.loads(again)) == list(values)
        if record is not BestCheckpoint:  # its file is written by this test
            assert again == path.read_text("utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": None}, "damaged: 'fingerprint' must be text"),
        ({"vocabulary": {"shared": True, "src": 3}}, r"damaged: 'vocabulary\.tgt' is missing"),
        ({"jobs": "1"}, "damaged: 'jobs' must be a whole number"),
        ({"settings": {"merges": 10, "mergers": 9}}, r"damaged: 'settings\.mergers' "),
        ({"format": 2, "fingerprint": None}, r"written by another version of nmtkit \(format 2\)"),
    ],
)
def test_wrong_field_of_a_record_is_named(run, tmp_path, change, message):
    path = tmp_path / "manifest.json"
    write_json(path, read_json(run.prep / "manifest.json") | change)
    caught = refused(DataError, message, load, Manifest, path)
    assert (caught.where, caught.hint) == (str(path), Manifest.again)


def test_finding_of_another_format_is_refused_and_one_without_a_format_is_read(run, tmp_path):
    path = tmp_path / "finding.json"
    values = read_json(run.path / "analyze/lengths/finding.json")
    assert values["format"] == 1
    write_json(path, values | {"format": 99})
    refused(DataError, r"another version of nmtkit \(format 99\)", load, StoredFinding, path)
    del values["format"]
    write_json(path, values)
    load(StoredFinding, path).write(path)
    assert read_json(path) == values


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff", '{"src": "en"'])
def test_damaged_or_missing_record_file_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    refused(DataError, "damaged: ", load, TextRecipe, tmp_path / "manifest.json")
    refused(DataError, "no such file: .*gone.json", load, TextRecipe, tmp_path / "gone.json")
    refused(DataError, "is a directory", load, TextRecipe, tmp_path)


def test_unknown_keys_of_a_record_are_ignored(run, tmp_path):
    path = tmp_path / "manifest.json"
    write_json(path, read_json(run.prep / "manifest.json") | {"news": 1})
    assert load(Manifest, path) == run.manifest()


def test_truncated_last_line_is_ignored(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = '{"step": 5, "kind": "train", "nll": 2, "news": []}\n{"step": 5, "kind": "dev"}\n'
    path.write_text(whole + '{"step": 6, "ki', "utf-8")
    lines = [(line.step, line.kind, line.nll) for line in load_lines(MetricsLine, path)]
    assert lines == [(5, "train", 2.0), (5, "dev", None)]


def test_damaged_line_is_refused_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 5, "kind": "train"}\n{"step": "6", "kind": "train"}\n', "utf-8")
    message = "damaged: 'step' must be a whole number"
    error = refused(DataError, message, list, load_lines(MetricsLine, path))
    assert error.where == f"{path}, line 2" and error.hint == MetricsLine.again


def test_key_error_in_nmtkit_is_not_reported_as_a_damaged_file(run, monkeypatch):

    monkeypatch.setattr("nmtkit.score.stage.load_or_warn", lambda *_: {}["oops"])
    refused(KeyError, "oops", score, run, resamples=10, trials=10)


@pytest.mark.parametrize("dump", ["model_dump", "model_dump_json"])
def test_ctrl_c_during_serialization_is_raised_unchanged(dump):
    """pydantic turns any exception of a serializer into an error of its own."""

    class Stopped(Part):
        @model_serializer(mode="plain")
        def serialized(self):
            raise KeyboardInterrupt

    class Whole(Record):
        part: Stopped

    with pytest.raises(KeyboardInterrupt):
        getattr(Whole(part=Stopped()), dump)()
