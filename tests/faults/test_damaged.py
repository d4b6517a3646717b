"""Damaged files of a run: a command names file, field and remedy, or warns and ignores the file."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nmtkit import records
from nmtkit.analyze.attention import SystemAttention
from nmtkit.cli import app
from nmtkit.errors import DataError, NmtkitError
from nmtkit.models import checkpoints
from nmtkit.models.loading import vocabulary_sizes
from nmtkit.report import stage
from nmtkit.run import Run
from nmtkit.score import stored_scores
from nmtkit.tables.drawing import DESCRIPTION, as_pdf
from nmtkit.toml import to_toml
from nmtkit.train import loggers
from nmtkit.train.reporting import cut_metrics
from nmtkit.train.state import TrainState
from tests.manifests import edit, parts_with_paths, read_json, with_change, write_json
from tests.refused import refused
from tests.report.conftest import make

SHA = "0" * 64
SAMPLES = {
    "systems/base/system.json": (
        records.SystemRecord,
        {"made": 1, "trained": 2, "parameters": 3},
    ),
    "systems/base/best.json": (
        records.BestCheckpoint,
        {
            **{"step": 10, "checkpoint": "step-00000010", "metric": "dev_loss"},
            **{"dev_loss": 2.5, "dev_bleu": None},
        },
    ),
    "systems/base/wandb.json": (loggers.WandbRun, {"id": "x", "logged": {"train": 3}}),
    "systems/base/checkpoints/step-00000010/manifest.json": (
        records.CheckpointManifest,
        {
            **{"format": 1, "step": 10, "vocabulary": {"vocab.txt": SHA}},
            "files": {"model.safetensors": {"bytes": 2, "sha256": SHA}},
        },
    ),
    "systems/base/translate/test/meta.json": (
        records.TranslationMeta,
        {
            **{"format": 1, "set": "test", "system": "base", "settings": {"beam": 4, "average": 2}},
            "checkpoints": [{"system": "base", "name": "step-00000010", "sha256": SHA}],
            "source": {"lines": 40, "sha256": SHA},
            "speed": {"seconds": 1.0, "sentences_per_second": 2.0, "tokens_per_second": 3.0},
        },
    ),
    "systems/base/export/huggingface/nmtkit.json": (
        records.ExportedSystem,
        {
            **{"format": 1, "nmtkit": "1", "system": "base", "quantization": "", "prep": SHA},
            **{"checkpoints": [], "vocabulary": {}, "src": "en", "tgt": "de", "positions": 9},
            **{"search": {"beam": 4}, "text": {}, "files": {"config.json": SHA}},
        },
    ),
    "score/test/metrics/comet/base.json": (
        stored_scores.ExternalScores,
        {"format": 1, "made_from": SHA, "scores": [0.5, 1.0]},
    ),
    "prep/manifest.json": (records.Manifest, None),
    "score/test/scores.json": (stored_scores.Scores, None),
    "analyze/cost/finding.json": (records.StoredFinding, None),
    "systems/base/config.toml": (
        records.SystemConfig,
        {
            **{"variant": "toy", "corpus": SHA, "model": {"d_model": 8}},
            **{"train": {"seed": 1, "lr": 0.5}, "search": {"beam": 4}, "hardware": {"cores": 2}},
        },
    ),
}
"""Record and values by file; None: the values of the run."""
NUMBERS = (float("nan"), float("inf"), -float("inf"), 1e308, 10**400)
WHOLE = {
    "empty": b"",
    "blank": b"\n\n",
    "zeros": bytes(64),
    "another type": b"[]",
    "not UTF-8": b'{"format": "\xff"}',
    "nested": b'{"format": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}
WHOLE_TOML = {"empty": b"", "zeros": bytes(64), "not UTF-8": b"a = '\xff'"}
WHOLE_TOML["nested"] = b"x = " + b"[" * 100_000 + b"]" * 100_000


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run with each file of SAMPLES."""
    made = make(tmp_path_factory.mktemp("damaged") / "run", markup=False)
    facts = {"baseline": "base", "measured": {}, "seed": 1}
    made.finding("cost", "cost", facts=facts)
    for name, (_, values) in SAMPLES.items():
        path = made.run.path / name
        if values is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written(path, values), "utf-8")
    config = made.run.system("base").config
    text = config.read_text("utf-8").replace(SHA, made.run.manifest().fingerprint)
    config.write_text(text, "utf-8")
    (made.run.path / "systems/base/system.json").unlink()
    return made.run.path


@pytest.fixture
def run(original, tmp_path, monkeypatch):
    """A copy of the run."""
    monkeypatch.setattr("nmtkit.tables.drawing.available", lambda: False)  # drawing is slow
    return Run(shutil.copytree(original, tmp_path / "run"))


def written(path, values):
    return to_toml(values) if path.suffix == ".toml" else json.dumps(values)


def sample(original, name):
    """Return the record of a file and its values."""
    record, values = SAMPLES[name]
    return record, values or read_json(original / name)


def refusal(record, path):
    """Return the error message for a damaged file; None if the file can be read."""
    try:
        records.load(record, path, "mend it" if path.suffix == ".toml" else None)
    except DataError as error:
        assert error.where == str(path) and error.hint, error
        return error.message
    return None


@pytest.mark.parametrize("name", SAMPLES)
def test_undamaged_file_is_read(original, tmp_path, name):
    record, values = sample(original, name)
    path = tmp_path / Path(name).name
    path.write_text(written(path, values), "utf-8")
    assert refusal(record, path) is None


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("name", SAMPLES)
def test_file_of_other_content_is_refused(tmp_path, name, kind):
    path = tmp_path / Path(name).name
    content = (WHOLE_TOML if path.suffix == ".toml" else WHOLE).get(kind)
    if content is not None:
        path.write_bytes(content)
        assert "damaged" in refusal(SAMPLES[name][0], path)


@pytest.mark.parametrize("name", SAMPLES)
def test_non_finite_and_huge_numbers_are_refused_in_every_field(original, tmp_path, name):
    """Even if no command uses the number."""
    record, values = sample(original, name)
    path = tmp_path / Path(name).name
    for field, _ in parts_with_paths(values, items=1):
        for number in NUMBERS:
            path.write_text(written(path, with_change(values, field, number)), "utf-8")
            assert refusal(record, path), (field, number)


@pytest.mark.parametrize("name", SAMPLES)
def test_missing_fields_and_other_types_raise_only_the_damaged_file_error(original, tmp_path, name):
    record, values = sample(original, name)
    path = tmp_path / Path(name).name
    refusals = 0
    for field, _ in parts_with_paths(values, items=1):
        for new in (..., "text", [], {"a": {}}, -1, True):
            if path.suffix != ".toml" or not isinstance(new, dict):
                path.write_text(written(path, with_change(values, field, new)), "utf-8")
                refusals += refusal(record, path) is not None
    assert refusals > 5


def test_hardware_values_that_are_lists_are_refused(tmp_path):
    """Comparisons group systems by these values."""
    path = tmp_path / "config.toml"
    path.write_text('variant = "toy"\n[hardware]\nprecision = [[]]\n', "utf-8")
    assert "hardware.precision" in refusal(records.SystemConfig, path)
    path = tmp_path / "meta.json"
    path.write_text('{"format": 1, "hardware": {"precision": ["bfloat16"]}}', "utf-8")
    assert "hardware.precision" in refusal(records.TranslationMeta, path)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith("json")])
def test_truncated_file_is_refused(original, tmp_path, name, keep):
    record, values = sample(original, name)
    text = json.dumps(values)
    path = tmp_path / Path(name).name
    path.write_text(text[: int(keep * len(text))], "utf-8")
    assert "damaged" in refusal(record, path)


def damage(run, name, change):
    """Change the values of a file of a run in place."""
    path = run.path / name
    values = read_json(path)
    change(values)
    write_json(path, values)
    return path


def status(run):
    """Return what `nmtkit status` prints about a run."""
    result = CliRunner().invoke(app, ["status", str(run.path)])
    assert result.exit_code == 0, result.output
    return result.stdout


SCORES = {
    "the baseline is unknown": lambda v: v.update(baseline="nobody"),
    "a system is there twice": lambda v: v["systems"].append(v["systems"][0]),
    "no system": lambda v: v.update(systems=[]),
    "the main test is unknown": lambda v: v.update(test="nothing"),
    "a system has no BLEU": lambda v: v["systems"][1]["scores"].pop("bleu"),
    "a system has no chrF": lambda v: v["systems"][0]["scores"].pop("chrf"),
    "a system has no difference": lambda v: v["systems"][1].update(differences={}),
    "a system has no tests": lambda v: v["systems"][1].update(tests={}),
    "a test has no metric": lambda v: v["systems"][1]["tests"].update(sign={}),
    "no signature": lambda v: v.update(signatures={}),
    "a metric that was asked for is unknown": lambda v: v.update(asked=["nothing"]),
    "a group of length has another system": lambda v: v["by_length"]["groups"][0].update(
        system="nobody"
    ),
    "a group of length is gone": lambda v: v["by_length"]["groups"].pop(),
    "groups of length of an unknown metric": lambda v: v["by_length"].update(further={"x": []}),
    "an interval that is not finite": lambda v: v["systems"][0]["length_ratio"].update(low=1e308),
    "the finest p is below 0": lambda v: v["tests"]["sign"].update(finest=-1.0),
}


@pytest.mark.parametrize("change", SCORES.values(), ids=SCORES)
def test_inconsistent_scores_are_refused(run, change):
    path = damage(run, "score/test/scores.json", change)
    assert "damaged" in refusal(stored_scores.Scores, path)
    message = "nothing to report: score/test cannot be read"
    refused(DataError, message, stage.report, run, force=True)
    assert "score/test cannot be read" in status(run)


READABLE = {
    "a p without an interval": lambda v: v["systems"][1]["differences"]["bleu"].update(
        low=None, high=None
    ),
    "a test of another version": lambda v: [
        of.update(other=of["sign"]) for of in (v["tests"], v["systems"][1]["tests"])
    ],
}


def page(run):
    """Return the text of a new report."""
    return stage.report(run, force=True).read_text("utf-8")


@pytest.mark.parametrize("change", READABLE.values(), ids=READABLE)
def test_scores_with_missing_intervals_or_unknown_tests_are_shown(run, change):
    damage(run, "score/test/scores.json", change)
    assert "cannot be read" not in page(run)


MANIFESTS = {
    "a set twice": lambda v: v["sets"].append(v["sets"][0]),
    "no set": lambda v: v.update(sets=[]),
    "more references than anybody has": lambda v: v["sets"][0].update(references=10**12),
    "fewer lines than none": lambda v: v["sets"][0].update(lines=-1),
    "a set of an unknown split": lambda v: v["sets"][0].update(split="x"),
    "a reason without pairs": lambda v: v["cleaning"].update(dropped={"empty": {}}),
    "an input without its size": lambda v: v.update(inputs={"a": {}}),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_inconsistent_manifest_is_refused(run, change):
    path = damage(run, "prep/manifest.json", change)
    assert "damaged" in refusal(records.Manifest, path)
    error = refused(DataError, None, stage.report, run, force=True)
    assert error.where == str(path) and error.hint
    assert "manifest.json" in status(run)


SETTINGS = {
    "the seed is a list": ("seed = 1", "seed = [1]"),
    "the rate is text": ("lr = 0.5", 'lr = "fast"'),
    "the rate is no number": ("lr = 0.5", "lr = nan"),
    "the beam is negative": ("beam = 4", "beam = -4"),
    "a number without end": ("d_model = 8", "d_model = inf"),
    "nested": ("d_model = 8", "d_model = " + "[" * 100_000 + "]" * 100_000),
}


@pytest.mark.parametrize(("old", "new"), SETTINGS.values(), ids=SETTINGS)
def test_damaged_config_of_a_system_is_named(run, old, new):
    path = run.system("base").config
    edit(path, old, new)
    message = r"damaged|bad value for '(train|search)\."
    error = refused(NmtkitError, message, run.system("base").read_config)
    assert str(path) in error.where and error.hint
    assert "its settings cannot be read" in page(run)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *((("settings", "average"), v, "'settings' average must be") for v in ("two", [], -1, 0.5)),
        *(
            (("checkpoints", 0, "sha256"), v, "'checkpoints.0.sha256'")
            for v in (..., "", "x", None)
        ),
    ],
)
def test_damaged_meta_json_of_a_translation_is_named_by_status(run, field, value, message):
    name = "systems/base/translate/test/meta.json"
    damage(run, name, lambda v: v.update(with_change(v, field, value)))
    output = status(run)
    assert f"its meta.json cannot be read (the file is damaged: {message}" in output


@pytest.mark.parametrize("sets", [1, "test", [1], {"a": 1}])
def test_finding_of_impossible_options_is_named_in_the_report(run, sets):
    name = "analyze/cost/finding.json"
    damage(run, name, lambda v: v["made_from"].update(options={"set_names": sets}))
    assert "analyze/cost cannot be read" in page(run)


def cell(key, value):
    """Return a function that changes a cell in the second row of a table."""
    return lambda table: table["rows"][1].update({key: value})


CELLS = {
    "a number where an interval belongs": (cell("value", 0.5), r"rows\.1\.value"),
    "a large number where an interval belongs": (cell("value", 10**12), r"rows\.1\.value"),
    "text where an interval belongs": (cell("value", "much"), r"rows\.1\.value"),
    "an interval where a name belongs": (
        cell("system", {"value": 1.0, "low": None, "high": None}),
        r"rows\.1\.system",
    ),
    "a cell is gone": (lambda table: table["rows"][1].popitem(), "a row has other cells"),
    "no column": (lambda table: table.update(columns=[], rows=[{}]), "columns"),
    "fewer digits than none": (lambda table: table["columns"][1].update(decimals=-1), "decimals"),
    "digits without end": (lambda table: table["columns"][1].update(decimals=10**12), "decimals"),
}


@pytest.mark.parametrize(("change", "field"), CELLS.values(), ids=CELLS)
def test_finding_with_a_damaged_table_is_named(run, change, field):
    path = damage(run, "analyze/cost/finding.json", lambda v: change(v["table"]))
    assert re.search(field, refusal(records.StoredFinding, path))
    assert "analyze/cost cannot be read" in page(run)


def test_empty_cell_of_an_interval_is_shown(run):
    damage(run, "analyze/cost/finding.json", lambda v: cell("value", None)(v["table"]))
    assert "cannot be read" not in page(run)


def test_checkpoint_whose_manifest_lacks_the_weights_gives_one_warning(run, stderr):
    name = "systems/base/checkpoints/step-00000010/manifest.json"
    damage(run, name, lambda v: v.update(files={}))
    for _ in range(2):
        assert checkpoints.current(run.system("base")) == {}
    assert stderr().count("skipping ") == 1


@pytest.mark.parametrize("digest", ["", "text", "\x1b[31m", SHA[1:], f"{SHA}\n", SHA[1:] + "A"])
def test_checkpoint_with_an_invalid_sha256_is_named(run, digest, stderr):
    name = "systems/base/checkpoints/step-00000010/manifest.json"
    damage(run, name, lambda v: v["files"]["model.safetensors"].update(sha256=digest))
    assert "'files.model.safetensors.sha256'" in refusal(
        records.CheckpointManifest, run.path / name
    )
    assert checkpoints.current(run.system("base")) == {}
    assert f"skipping {(run.path / name).parent}: incomplete checkpoint: manifest" in stderr()


def test_manifests_of_prep_and_export_need_a_sha256_of_each_file(run):
    for record, name in (
        (records.Manifest, "prep/manifest.json"),
        (records.ExportedSystem, "systems/base/export/huggingface/nmtkit.json"),
    ):
        path = damage(run, name, lambda v: v["files"].update({"vocab.txt": "text"}))
        assert "'files.vocab.txt'" in refusal(record, path)


def test_best_json_with_different_step_and_checkpoint_is_refused(run):
    damage(run, "systems/base/best.json", lambda v: v.update(checkpoint="step-00000020"))
    message = "'checkpoint' is not that of 'step'"
    refused(DataError, message, checkpoints.choose, run.system("base"))


def test_vocabulary_size_is_read_from_the_file_not_the_manifest(run):
    damage(run, "prep/manifest.json", lambda v: v["vocabulary"].update(src=10**12))
    text = "".join(f"t{number} 1\n" for number in range(9))
    (run.prep / "vocab.txt").write_text(text, "utf-8")
    assert "vocab.txt" in str(refused(NmtkitError, None, vocabulary_sizes, run))


def test_attention_of_another_shape_than_its_sentence_is_refused(tmp_path):
    path = tmp_path / "base.json"
    for src, weights in ((["a"], [[0.5]]), (["a", "b"], [[0.5]]), (["a"], [])):
        sentences = {"3": {"src": src, "tgt": ["x"], "weights": weights}}
        values = {"system": "base", "site": "", "set_name": "test", "sentences": sentences}
        write_json(path, values)
        message = refusal(SystemAttention, path)
        assert message is None if weights and len(src) == 1 else "damaged" in message


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 100_000, "[]", "1", '{"figure": []}', '{"figure": {}}', '{"figure": "x"}', "{"),
        '{"figure": "curves"}',
        '{"figure": "lines", "groups": ["a"], "series": {"x": [1, 2]}, "xlabel": "", "ylabel": ""}',
    ],
)
def test_figure_without_valid_numbers_gives_no_pdf(text):
    space = DESCRIPTION[1:].partition("}")[0]
    svg = f'<svg xmlns:d="{space}"><d:description>{text}</d:description></svg>'
    assert as_pdf(svg, 3.0) is None


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("system.json", lambda system: system.read_record()),
        ("metrics.jsonl", lambda system: cut_metrics(system, TrainState(99))),
    ],
)
def test_damaged_file_that_is_not_needed_gives_a_warning(run, name, read, stderr):
    path = run.system("base").path / name
    path.write_text('{"step": 1}\n', "utf-8")
    assert not read(run.system("base"))
    assert str(path) in stderr()
