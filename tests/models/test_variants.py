"""The table of variants, what it says of itself, and the presets that carry the papers'
settings.
"""

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
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import VARIANTS, build_model, default_name, describe, load_variant
from nmtkit.presets import preset_names
from nmtkit.user_classes import fault_of_user, load_object
from tests import ROOT
from tests.models.cases import TOY
from tests.processes import python
from tests.refused import refused


def test_every_variant_says_what_it_is():
    rows = describe("tiny", 500)
    assert [row["name"] for row in rows] == list(VARIANTS)
    for row in rows:
        assert re.search(r"\b(19|20)\d\d\b", row["paper"]) and row["parameters"] > 500 * 64
        assert load_variant(row["name"]).__doc__
        assert 20 <= len(row["what"]) <= 100
        for field in row["settings"]:
            assert (
                set(field) == {"name", "type", "default", "allowed", "description"}
                and field["type"] != "any"
            ), field
            assert field["description"], f"{row['name']}: say what {field['name']} is"


def test_the_list_says_what_each_variant_is():
    listed = CliRunner().invoke(app, ["variants", "--preset", "tiny"]).stdout.splitlines()
    rows = json.loads(CliRunner().invoke(app, ["variants", "--preset", "tiny", "--json"]).stdout)
    assert len({row["what"] for row in rows}) == len(VARIANTS)
    for row in rows:
        (line,) = (line for line in listed if line.split()[:1] == [row["name"]])
        assert row["paper"] in line and line.endswith(f"  {row['what']}")


def test_counts_follow_preset_and_vocabulary():
    small, large = describe("tiny", 500)[0]["parameters"], describe("tiny", 600)[0]["parameters"]
    assert large - small == 100 * 64
    assert describe()[0] == describe("base", 32_000)[0]
    refused(ConfigError, "unknown preset", describe, "tini")


@pytest.mark.parametrize("name", preset_names())
def test_presets_fit_the_schemas_and_every_variant(name):
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


def test_learning_rate_peaks():
    """So et al. 2019's cosine peaks at 2 (d w)^-0.5: 9.882e-4 for d = 512, w = 8,000."""
    for name, d in (("dc-wmt", 512), ("dc-iwslt", 256)):
        train = settings.load_preset(name)["train"]
        assert train["lr"] == pytest.approx(2 * d**-0.5 * train["warmup"] ** -0.5, rel=1e-3)


def test_a_variant_of_your_own_is_found_by_its_path(monkeypatch, tmp_path):
    assert load_variant(TOY).__name__ == "ToyRecurrent"
    assert (default_name("transformer"), default_name(TOY)) == ("transformer", "toy-recurrent")
    (tmp_path / "mine_here.py").write_text(
        "from tests.toy_recurrent import ToyRecurrent\nclass Mine(ToyRecurrent):\n    pass\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    trust.allow(["mine_here"])
    assert load_variant("mine_here:Mine").__name__ == "Mine"  # the folder one stands in counts
    assert build_model("mine_here:Mine", {"d_model": 8}, Vocabularies(9, 9, shared=True)).width == 8


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
def test_a_variant_that_is_not_there(name, message):
    assert message in str(refused(ConfigError, None, load_variant, name))


@pytest.mark.parametrize(
    ("text", "said", "line"),
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
def test_a_module_that_fails_is_its_own_fault(text, said, line, monkeypatch, tmp_path):
    module = f"failing_in_line_{line}_of_{len(text)}"
    (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    trust.allow([module])
    caught = refused(ConfigError, None, load_variant, f"{module}:Mine")
    assert said in caught.message
    assert caught.where == f"{tmp_path / module}.py, line {line}"
    assert "PYTHONPATH" not in caught.hint


def test_the_contract_runs_over_a_model_of_your_own(tmp_path):
    text = "from tests.toy_recurrent import ToyRecurrent\nclass Mine(ToyRecurrent):\n    pass\n"
    (tmp_path / "in_a_project.py").write_text(text, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = "-m pytest tests/models/test_contract.py -k zeros --variant in_a_project:Mine"
    done = python(*words.split(), cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout


def test_settings_of_another_base_are_named(monkeypatch, tmp_path):
    text = "from tests.toy_recurrent import ToyRecurrent\n"
    text += "class Mine(ToyRecurrent):\n    class Settings:\n        kernel = 3\n"
    (tmp_path / "of_no_base.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    trust.allow(["of_no_base"])
    message = "Settings of of_no_base:Mine is not a subclass of .*ModelSettings"
    caught = refused(ConfigError, message, load_variant, "of_no_base:Mine")
    assert caught.where == f"{tmp_path / 'of_no_base.py'}, line 3"


def test_the_file_of_a_class_is_blamed_and_that_of_an_engine_is_not(monkeypatch, tmp_path):
    """Tasks of prep run inside an engine, whatever fails in them."""
    for name, text in {
        "reexported/__init__.py": "from reexported.core.model import Mine",
        "reexported/core/model.py": "from tests.toy_recurrent import ToyRecurrent\n"
        "class Mine(ToyRecurrent):\n    def encode(self, batch):\n        raise KeyError\n",
        "an_engine.py": "def run(task):\n    task()\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    trust.allow(["reexported", "an_engine"])
    run = load_object("an_engine:run", "engine", "--engine", "")
    with pytest.raises(ZeroDivisionError) as caught:
        run(lambda: 1 / 0)
    assert fault_of_user(caught.value) is None
    model = load_variant("reexported:Mine")
    with pytest.raises(KeyError) as caught:
        model.encode(None, None)
    fault = fault_of_user(caught.value)
    assert fault.where == f"{tmp_path / 'reexported/core/model.py'}, line 4"


def test_settings_of_a_file_that_do_not_go_together_name_it(tmp_path):
    sizes, file = Vocabularies(20, 20, shared=True), tmp_path / "config.toml"
    values = {"encoder_layers": 2, "decoder_layers": 2, "distinct_layers": 3}
    message = "2 layers cannot use 3 distinct ones"
    caught = refused(ConfigError, message, build_model, "transformer", values, sizes, file)
    assert caught.where == f"{file}, model.distinct_layers"
    caught = refused(ConfigError, message, build_model, "transformer", values, sizes)
    assert caught.where == "model.distinct_layers"


def test_the_readme_names_every_variant_and_every_preset():
    page = (ROOT / "README.md").read_text("utf-8")
    named = set(
        " ".join(
            re.findall("`([^`]+)`", page.partition("\n## Variants\n")[2].partition("\n## ")[0])
        ).split()
    )
    assert {*VARIANTS, *preset_names()} <= named
