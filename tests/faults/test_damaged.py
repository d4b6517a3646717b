"""Damaged files of nmtkit: a command refuses each with its name, the field and what to do, or says
that it works without the file. No command ends with an internal error.
"""

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
from nmtkit.run import Run, System
from nmtkit.score import stored_scores
from nmtkit.tables.drawing import DESCRIPTION, as_pdf
from nmtkit.toml import to_toml
from nmtkit.train import loggers
from nmtkit.train.reporting import cut_metrics
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
"""Record and values by file; None: those of the run."""
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
    """A run with each of these files."""
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
    monkeypatch.setattr("nmtkit.tables.drawing.available", lambda: False)  # which is slow
    return Run(shutil.copytree(original, tmp_path / "run"))


def written(path, values):
    return to_toml(values) if path.suffix == ".toml" else json.dumps(values)


def sample(original, name):
    """The record of a file and its values."""
    record, values = SAMPLES[name]
    return record, values or read_json(original / name)


def refusal(record, path):
    """The message of a damaged file; None if the file can be read. The error names the file and
    what to do.
    """
    try:
        records.load(record, path, "mend it" if path.suffix == ".toml" else None)
    except DataError as error:
        assert error.where == str(path) and error.hint, error
        return error.message
    return None


@pytest.mark.parametrize("name", SAMPLES)
def test_an_undamaged_file_is_read(original, tmp_path, name):
    record, values = sample(original, name)
    path = tmp_path / Path(name).name
    path.write_text(written(path, values), "utf-8")
    assert refusal(record, path) is None


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_of_something_else_is_refused(tmp_path, name, kind):
    path = tmp_path / Path(name).name
    content = (WHOLE_TOML if path.suffix == ".toml" else WHOLE).get(kind)
    if content is not None:
        path.write_bytes(content)
        assert "damaged" in refusal(SAMPLES[name][0], path)


@pytest.mark.parametrize("name", SAMPLES)
def test_no_place_of_a_file_takes_a_number_that_is_none(original, tmp_path, name):
    """Even if no command uses the number."""
    record, values = sample(original, name)
    path = tmp_path / Path(name).name
    for way, _ in parts_with_paths(values, items=1):
        for number in NUMBERS:
            path.write_text(written(path, with_change(values, way, number)), "utf-8")
            assert refusal(record, path), (way, number)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_place_of_another_type_or_gone_names_the_file_if_anything(original, tmp_path, name):
    record, values = sample(original, name)
    path = tmp_path / Path(name).name
    refused = 0
    for way, _ in parts_with_paths(values, items=1):
        for new in (..., "text", [], {"a": {}}, -1, True):
            if path.suffix != ".toml" or not isinstance(new, dict):
                path.write_text(written(path, with_change(values, way, new)), "utf-8")
                refused += refusal(record, path) is not None
    assert refused > 5


def test_hardware_is_plain_values(tmp_path):
    """Seeds of one system are those trained on like hardware, and speeds are of like hardware."""
    path = tmp_path / "config.toml"
    path.write_text('variant = "toy"\n[hardware]\nprecision = [[]]\n', "utf-8")
    assert "hardware.precision" in refusal(records.SystemConfig, path)
    path = tmp_path / "meta.json"
    path.write_text('{"format": 1, "hardware": {"precision": ["bfloat16"]}}', "utf-8")
    assert "hardware.precision" in refusal(records.TranslationMeta, path)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith("json")])
def test_a_file_that_is_cut_off_is_refused(original, tmp_path, name, keep):
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
    """What the command prints of a run."""
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
def test_scores_whose_parts_do_not_agree_are_not_shown(run, change):
    path = damage(run, "score/test/scores.json", change)
    assert "damaged" in refusal(stored_scores.Scores, path)
    with pytest.raises(DataError, match=r"nothing to report: score/test cannot be read"):
        stage.report(run, force=True)
    assert "score/test cannot be read" in status(run)


READABLE = {
    "a p without an interval": lambda v: v["systems"][1]["differences"]["bleu"].update(
        low=None, high=None
    ),
    "a test of another version": lambda v: [
        of.update(other=of["sign"]) for of in (v["tests"], v["systems"][1]["tests"])
    ],
}


@pytest.mark.parametrize("change", READABLE.values(), ids=READABLE)
def test_scores_that_agree_are_shown(run, change):
    damage(run, "score/test/scores.json", change)
    assert "cannot be read" not in stage.report(run, force=True).read_text("utf-8")


MANIFESTS = {
    "a set twice": lambda v: v["sets"].append(v["sets"][0]),
    "no set": lambda v: v.update(sets=[]),
    "more references than anybody has": lambda v: v["sets"][0].update(references=10**12),
    "fewer lines than none": lambda v: v["sets"][0].update(lines=-1),
    "a set for nothing": lambda v: v["sets"][0].update(split="x"),
    "a reason without pairs": lambda v: v["cleaning"].update(dropped={"empty": {}}),
    "an input without its size": lambda v: v.update(inputs={"a": {}}),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_a_damaged_manifest_is_named(run, change):
    path = damage(run, "prep/manifest.json", change)
    assert "damaged" in refusal(records.Manifest, path)
    caught = refused(DataError, None, stage.report, run, force=True)
    assert caught.where == str(path) and caught.hint
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
def test_damaged_settings_of_a_system_are_named(run, old, new):
    path = run.system("base").config
    edit(path, old, new)
    caught = refused(
        NmtkitError, r"damaged|bad value for '(train|search)\.", run.system("base").read_config
    )
    assert str(path) in caught.where and caught.hint
    assert "its settings cannot be read" in stage.report(run, force=True).read_text("utf-8")


@pytest.mark.parametrize("average", ["two", [], -1, 0.5])
def test_a_translation_of_an_impossible_search_is_named(run, average):
    name = "systems/base/translate/test/meta.json"
    damage(run, name, lambda v: v["settings"].update(average=average))
    assert "average" in (out := status(run)) and "meta.json" in out


@pytest.mark.parametrize("new", [..., "", "text", None])
def test_a_translation_of_a_checkpoint_without_its_hash_is_named(run, new):
    """No message says that the translation is of another checkpoint."""
    name, way = "systems/base/translate/test/meta.json", ("checkpoints", 0, "sha256")
    damage(run, name, lambda v: v.update(with_change(v, way, new)))
    assert "'checkpoints.0.sha256'" in (out := status(run)) and "meta.json" in out


@pytest.mark.parametrize("sets", [1, "test", [1], {"a": 1}])
def test_a_finding_of_impossible_options_is_named(run, sets):
    name = "analyze/cost/finding.json"
    damage(run, name, lambda v: v["made_from"].update(options={"set_names": sets}))
    assert "analyze/cost cannot be read" in stage.report(run, force=True).read_text("utf-8")


def cell(key, value):
    """Another value in a cell of a table's second row."""
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
def test_a_finding_whose_table_cannot_be_shown_is_named(run, change, field):
    path = damage(run, "analyze/cost/finding.json", lambda v: change(v["table"]))
    assert re.search(field, refusal(records.StoredFinding, path))
    assert "analyze/cost cannot be read" in stage.report(run, force=True).read_text("utf-8")


def test_a_cell_of_an_interval_may_be_empty(run):
    damage(run, "analyze/cost/finding.json", lambda v: cell("value", None)(v["table"]))
    assert "cannot be read" not in stage.report(run, force=True).read_text("utf-8")


def test_a_checkpoint_without_its_weights_in_the_manifest_is_named_once(run, stderr):
    name = "systems/base/checkpoints/step-00000010/manifest.json"
    damage(run, name, lambda v: v.update(files={}))
    for _ in range(2):
        assert checkpoints.current(run.system("base")) == {}
    assert stderr().count("skipping ") == 1


@pytest.mark.parametrize("digest", ["", "text", "\x1b[31m", SHA[1:], f"{SHA}\n", SHA[1:] + "A"])
def test_a_checkpoint_without_a_sha256_is_named(run, digest, stderr):
    name = "systems/base/checkpoints/step-00000010/manifest.json"
    damage(run, name, lambda v: v["files"]["model.safetensors"].update(sha256=digest))
    assert "'files.model.safetensors.sha256'" in refusal(
        records.CheckpointManifest, run.path / name
    )
    assert checkpoints.current(run.system("base")) == {}
    assert f"skipping {(run.path / name).parent}: incomplete checkpoint: manifest" in stderr()


def test_every_manifest_has_a_sha256_of_each_file(run):
    for record, name in (
        (records.Manifest, "prep/manifest.json"),
        (records.ExportedSystem, "systems/base/export/huggingface/nmtkit.json"),
    ):
        path = damage(run, name, lambda v: v["files"].update({"vocab.txt": "text"}))
        assert "'files.vocab.txt'" in refusal(record, path)


def test_best_json_names_the_checkpoint_of_its_step(run):
    damage(run, "systems/base/best.json", lambda v: v.update(checkpoint="step-00000020"))
    with pytest.raises(DataError, match=r"'checkpoint' is not that of 'step'"):
        checkpoints.choose(run.system("base"))


def test_the_vocabulary_is_measured_by_its_files(run):
    damage(run, "prep/manifest.json", lambda v: v["vocabulary"].update(src=10**12))
    text = "".join(f"t{number} 1\n" for number in range(9))
    (run.prep / "vocab.txt").write_text(text, "utf-8")
    try:
        sizes = vocabulary_sizes(run)
    except NmtkitError as error:  # not a file as prep writes it
        assert "vocab.txt" in str(error)
    else:
        assert sizes.src < 100


def test_attention_that_is_not_of_its_sentence_is_refused(tmp_path):
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
def test_a_figure_without_its_numbers_is_no_pdf(text):
    space = DESCRIPTION[1:].partition("}")[0]
    svg = f'<svg xmlns:d="{space}"><d:description>{text}</d:description></svg>'
    assert as_pdf(svg, 3.0) is None


SAID = {
    "system.json": lambda run: run.system("base").read_record(),
    "metrics.jsonl": lambda run: cut_metrics(run.system("base"), 99),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_done_without_is_said(run, name, stderr):
    path = System(run.path / "systems/base").path / name
    path.write_text('{"step": 1}\n', "utf-8")
    assert not SAID[name](run)
    assert str(path) in stderr()
