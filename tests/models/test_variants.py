"""The table of variants, its descriptions, classes of the user's own, and the presets."""

import json
import os
import re
import tomllib
from importlib import resources

import pytest
from typer.testing import CliRunner

from nmtkit import settings, trust
from nmtkit.cli import app
from nmtkit.errors import ConfigError
from nmtkit.models import variants
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import (
    VARIANTS,
    build_model,
    count_parameters,
    default_name,
    describe,
    load_variant,
)
from nmtkit.presets import preset_names
from nmtkit.user_classes import fault_of_user, load_object
from tests import ROOT
from tests.models.cases import TOY
from tests.processes import python
from tests.refused import refused
from tests.toy_recurrent import ToyRecurrent


def test_variants_describe_paper_size_and_settings():
    rows = describe("tiny", 500)
    assert [row["name"] for row in rows] == list(VARIANTS)
    for row in rows:
        assert re.search(r"\b(19|20)\d\d\b", row["paper"]) and row["parameters"] > 500 * 64
        assert load_variant(row["name"]).__doc__
        assert 20 <= len(row["what"]) <= 100
        for field in row["settings"]:
            assert set(field) == {"name", "type", "default", "allowed", "description"}
            assert field["type"] != "any" and field["description"], (row["name"], field)


def test_variants_command_lists_paper_and_description():
    listed = CliRunner().invoke(app, ["variants", "--preset", "tiny"]).stdout.splitlines()
    rows = json.loads(CliRunner().invoke(app, ["variants", "--preset", "tiny", "--json"]).stdout)
    assert len({row["what"] for row in rows}) == len(VARIANTS)
    for row in rows:
        (line,) = (line for line in listed if line.split()[:1] == [row["name"]])
        assert row["paper"] in line and line.endswith(f"  {row['what']}")


def test_variants_command_counts_a_class_of_the_users_own_beside_a_baseline():
    command = ["variants", "--preset", "tiny", "--variant", "transformer", "--variant", TOY]
    baseline, toy = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (baseline["name"], toy["name"], toy["paper"]) == ("transformer", TOY, ToyRecurrent.paper)
    model = build_model(TOY, {"d_model": 64}, Vocabularies(32_000, 32_000, shared=True))
    assert toy["parameters"] == count_parameters(model)
    assert toy["what"].startswith("Sutskever") and toy["what"].endswith("one layer of GRUs.")


def test_parameter_counts_follow_preset_and_vocabulary(monkeypatch):
    monkeypatch.setattr(variants, "VARIANTS", {"transformer": VARIANTS["transformer"]})
    small, large = describe("tiny", 500)[0]["parameters"], describe("tiny", 600)[0]["parameters"]
    assert large - small == 100 * 64
    assert describe() == describe("base", 32_000)
    refused(ConfigError, "unknown preset", describe, "tini")


@pytest.mark.parametrize("name", preset_names())
def test_preset_fits_the_schemas_and_every_variant(name):
    text = resources.files("nmtkit").joinpath("presets", f"{name}.toml").read_text("utf-8")
    assert text.startswith("# "), "a preset says whose setting it is"
    values = tomllib.loads(text)
    assert set(values) == {"prep", "model", "train", "search"}
    for section, schema in settings.STAGES.items():
        settings.build(schema, values[section], section)
    assert values["search"].get("average", 1) <= values["train"].get("keep_checkpoints", 5)
    for variant in VARIANTS:
        cls = load_variant(variant)
        settings.build(cls.Settings, cls.adapt(values["model"]), "model")
    assert any(
        values["model"].keys() <= load_variant(variant).Settings.model_fields.keys()
        for variant in VARIANTS
    ), "a key goes unread"


def test_learning_rate_of_dc_presets_peaks_as_in_so_et_al():
    """So et al. 2019's cosine peaks at 2 (d w)^-0.5: 9.882e-4 for d = 512, w = 8,000."""
    for name, d in (("dc-wmt", 512), ("dc-iwslt", 256)):
        train = settings.load_preset(name)["train"]
        assert train["lr"] == pytest.approx(2 * d**-0.5 * train["warmup"] ** -0.5, rel=1e-3)


@pytest.fixture
def write_modules(monkeypatch, tmp_path):
    """A function that writes modules of the user's own, which may be imported and are trusted."""

    def write(files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, "utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        trust.allow([re.split(r"[/.]", name)[0] for name in files])

    return write


OWN = "from tests.toy_recurrent import ToyRecurrent\nclass Mine(ToyRecurrent):\n"
"""The beginning of a module with a model of the user's own."""


def test_own_variant_is_loaded_by_its_module_path(monkeypatch, tmp_path):
    assert load_variant(TOY).__name__ == "ToyRecurrent"
    (tmp_path / "mine_here.py").write_text(OWN + "    pass\n", "utf-8")
    monkeypatch.chdir(tmp_path)  # the working folder is searched, too
    trust.allow(["mine_here"])
    assert load_variant("mine_here:Mine").__name__ == "Mine"
    assert build_model("mine_here:Mine", {"d_model": 8}, Vocabularies(9, 9, shared=True)).width == 8


def test_default_name_of_a_system_follows_its_variant():
    assert (default_name("transformer"), default_name(TOY)) == ("transformer", "toy-recurrent")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("transfomer", "did you mean 'transformer'"),
        ("no_such_module_xyz:Model", "PYTHONPATH"),
        ("no_such_module_xyz.py:Model", "without folder and .py"),
        ("./no_such_module_xyz:Model", "without folder and .py"),
        ("nosuch", "`nmtkit variants`"),
        (TOY.replace(":ToyRecurrent", ":Nothing"), "no class Nothing"),
        (TOY.replace(":ToyRecurrent", ":ToyRecurent"), "did you mean 'ToyRecurrent'"),
        ("collections:OrderedDict", "not a subclass"),
        ("collections:OrderedDict", "nmtkit/models/README.md"),
    ],
)
def test_unknown_variant_is_refused_with_a_hint(name, message):
    assert message in str(refused(ConfigError, None, load_variant, name))


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax", 2),
        ("\nimport no_such_module_xyz\n", "No module named 'no_such_module_xyz'", 2),
        ("def f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError: division by zero", 4),
        (
            "import json\njson.nothing\n",
            "AttributeError: module 'json' has no attribute 'nothing'",
            2,
        ),
    ],
)
def test_error_inside_an_own_module_names_its_line(text, message, line, write_modules, tmp_path):
    module = f"failing_in_line_{line}_of_{len(text)}"
    write_modules({f"{module}.py": text})
    caught = refused(ConfigError, None, load_variant, f"{module}:Mine")
    assert message in caught.message
    assert caught.where == f"{tmp_path / module}.py, line {line}"
    assert "PYTHONPATH" not in caught.hint


def test_contract_runs_over_an_own_model(tmp_path):
    (tmp_path / "in_a_project.py").write_text(OWN + "    pass\n", "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = "-m pytest tests/models/test_contract.py -k zeros --variant in_a_project:Mine"
    done = python(*words.split(), cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout


def test_settings_without_the_right_base_are_refused(write_modules, tmp_path):
    write_modules({"of_no_base.py": OWN + "    class Settings:\n        kernel = 3\n"})
    message = "Settings of of_no_base:Mine is not a subclass of .*ModelSettings"
    caught = refused(ConfigError, message, load_variant, "of_no_base:Mine")
    assert caught.where == f"{tmp_path / 'of_no_base.py'}, line 3"


def test_fault_in_a_model_names_its_file(write_modules, tmp_path):
    files = {"reexported/__init__.py": "from reexported.core.model import Mine"}
    files["reexported/core/model.py"] = (
        OWN + "    def encode(self, batch):\n        raise KeyError\n"
    )
    write_modules(files)
    with pytest.raises(KeyError) as caught:
        load_variant("reexported:Mine").encode(None, None)
    fault = fault_of_user(caught.value)
    assert fault.where == f"{tmp_path / 'reexported/core/model.py'}, line 4"


def test_fault_in_a_task_does_not_name_the_engine_that_runs_it(write_modules):
    write_modules({"an_engine.py": "def run(task):\n    task()\n"})
    run = load_object("an_engine:run", "engine", "--engine", "")
    with pytest.raises(ZeroDivisionError) as caught:
        run(lambda: 1 / 0)
    assert fault_of_user(caught.value) is None


@pytest.mark.parametrize("file", ["config.toml", None])
def test_incompatible_settings_name_their_key_and_file(file):
    sizes, where = Vocabularies(20, 20, shared=True), [file] if file else []
    values = {"encoder_layers": 2, "decoder_layers": 2, "distinct_layers": 3}
    message = "2 layers cannot use 3 distinct ones"
    caught = refused(ConfigError, message, build_model, "transformer", values, sizes, *where)
    assert caught.where == ", ".join([*where, "model.distinct_layers"])


def test_readme_names_every_variant_and_preset():
    page = (ROOT / "README.md").read_text("utf-8")
    section = page.partition("\n## Variants\n")[2].partition("\n## ")[0]
    assert {*VARIANTS, *preset_names()} <= set(" ".join(re.findall("`([^`]+)`", section)).split())
