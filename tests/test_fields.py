"""Descriptions of settings, and `nmtkit settings`, which lists them."""

import json
from typing import Annotated, Literal

import pytest
from pydantic import Field
from typer.testing import CliRunner

from nmtkit.cli import app
from nmtkit.errors import ConfigError
from nmtkit.fields import Setting, describe
from nmtkit.models.variants import VARIANTS, load_variant
from nmtkit.presets import preset_names
from nmtkit.settings import SECTIONS, STAGES, Section, build, load_preset, parse_set
from tests.models.cases import TOY
from tests.processes import python


class Example(Section):
    count: int = Field(4, ge=2, multiple_of=2)
    """How
    many."""
    share: float = Field(0.5, gt=0, lt=1)
    kind: Literal["a", "b"] = "a"
    on: bool = True
    pair: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = (0.1, 2)
    names: list[str] = []
    limit: int | None = None
    word: str = ""


@pytest.mark.parametrize(
    ("setting", "values", "default"),
    [
        (
            Setting("count", "integer", 4, "≥ 2, a multiple of 2", "How many."),
            "integer ≥ 2, a multiple of 2",
            "4",
        ),
        (Setting("share", "number", 0.5, "> 0, < 1", ""), "number > 0, < 1", "0.5"),
        (Setting("kind", "string", "a", "a|b", ""), "a|b", "a"),
        (Setting("on", "boolean", True, "", ""), "true|false", "true"),
        (Setting("pair", "2 numbers", (0.1, 2), "≥ 0", ""), "2 numbers ≥ 0", "[0.1, 2]"),
        (Setting("names", "list of strings", [], "", ""), "list of strings", "[]"),
        (Setting("limit", "integer|null", None, "", ""), "integer|null", "None"),
        (Setting("word", "string", "", "", ""), "string", '""'),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_describe_states_type_limits_and_default_of_each_kind_of_field(setting, values, default):
    found = {row.name: row for row in describe(Example)}[setting.name]
    assert (found, found.values, found.default_text) == (setting, values, default)


def test_describe_shows_given_values_as_defaults_and_checks_them():
    rows = describe(Example, {"count": 8, "kind": "b"}, "example")
    assert [row.default for row in rows[:3]] == [8, 0.5, "b"]
    with pytest.raises(ConfigError, match="'example.count'"):
        describe(Example, {"count": 0}, "example")


SCHEMAS = {**STAGES, **{f"model of {name}": load_variant(name).Settings for name in VARIANTS}}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_every_setting_has_a_description_and_a_valid_default(schema):
    for setting in describe(schema):
        assert setting.description.endswith("."), f"{setting.name} needs a docstring"
        values = parse_set([f"prep.{setting.name}={setting.default_text}"])["prep"]
        assert getattr(build(schema, values, "x"), setting.name) == setting.default


def listed(*arguments):
    result = CliRunner().invoke(app, ["settings", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_list_has_every_setting_once():
    rows = json.loads(listed("--json"))
    schemas = {**STAGES, "model": load_variant("transformer").Settings}
    sections = ("prep", "train", "model", "search")
    assert set(sections) == set(SECTIONS)
    assert [(row["section"], row["name"]) for row in rows] == [
        (section, key) for section in sections for key in schemas[section].model_fields
    ]
    printed = listed()
    assert all(
        f"\n{row['section']}.{row['name']} " in printed and row["description"] in printed
        for row in rows
    )


def listed_values(*arguments):
    rows = json.loads(listed(*arguments, "--json"))
    return {(row["section"], row["name"]): row["default"] for row in rows}


@pytest.fixture(scope="module")
def defaults():
    return listed_values()


@pytest.mark.parametrize("name", preset_names())
def test_list_shows_the_values_of_a_preset(name, defaults):
    preset = {
        (section, key): value
        for section, values in load_preset(name).items()
        for key, value in values.items()
        if (section, key) in defaults
    }
    assert listed_values("--preset", name) == {**defaults, **preset}


def test_list_of_a_section_has_the_settings_of_a_users_variant():
    rows = json.loads(listed("model", "--variant", TOY, "--json"))
    assert [row["name"] for row in rows] == list(load_variant(TOY).Settings.model_fields)


def test_table_of_a_section_shows_the_values_of_a_preset():
    table = listed("search", "--preset", "dc-iwslt").splitlines()
    assert table[0] == "search"
    assert table[1].split() == ["setting", "dc-iwslt", "values", "meaning"]
    assert table[3].split()[:5] == ["search.beam", "6", "integer", "≥", "1,"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "did you mean 'train'?"),
        (["train", "--preset", "smal"], "did you mean 'small'?"),
        (["--variant", "transfomer"], "did you mean 'trans"),
    ],
)
def test_unknown_name_suggests_the_nearest(arguments, message):
    result = CliRunner().invoke(app, ["settings", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_listing_settings_of_stages_does_not_load_torch():
    code = "import sys\nfrom nmtkit.cli import app\n"
    code += "".join(f"app(['settings', '{name}'], standalone_mode=False)\n" for name in STAGES)
    code += "sys.exit('torch' in sys.modules)"
    assert python("-c", code).returncode == 0
