"""What settings say of themselves, and the command that lists it."""

import json
import subprocess
import sys
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


EXPECTED = [  # type, default, allowed values, both in one, the default as text
    Setting("count", "integer", 4, "≥ 2, a multiple of 2", "How many."),
    Setting("share", "number", 0.5, "> 0, < 1", ""),
    Setting("kind", "string", "a", "a|b", ""),
    Setting("on", "boolean", True, "", ""),
    Setting("pair", "2 numbers", (0.1, 2), "≥ 0", ""),
    Setting("names", "list of strings", [], "", ""),
    Setting("limit", "integer|null", None, "", ""),
    Setting("word", "string", "", "", ""),
]


def test_every_kind_of_field():
    found = describe(Example)
    assert found == EXPECTED
    assert [s.values for s in found[:4]] == [
        "integer ≥ 2, a multiple of 2",
        "number > 0, < 1",
        "a|b",
        "true|false",
    ]
    assert [s.values for s in found[4:]] == [
        "2 numbers ≥ 0",
        "list of strings",
        "integer|null",
        "string",
    ]
    assert [s.default_text for s in found[:6]] == ["4", "0.5", "a", "true", "[0.1, 2]", "[]"]
    assert found[-1].default_text == '""'


def test_values_take_the_place_of_defaults():
    assert [s.default for s in describe(Example, {"count": 8, "kind": "b"}, "example")][:3] == [
        8,
        0.5,
        "b",
    ]
    with pytest.raises(ConfigError, match="'example.count'"):
        describe(Example, {"count": 0}, "example")


SCHEMAS = {**STAGES, **{f"model of {name}": load_variant(name).Settings for name in VARIANTS}}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_every_setting_has_a_meaning_and_a_default_that_can_be_set(schema):
    for setting in describe(schema):
        assert setting.description.endswith("."), (
            f"say what {setting.name} is, in a docstring below it"
        )
        values = parse_set([f"prep.{setting.name}={setting.default_text}"])["prep"]
        assert getattr(build(schema, values, "x"), setting.name) == setting.default


def listed(*arguments):
    result = CliRunner().invoke(app, ["settings", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_list_has_every_key_once():
    rows = json.loads(listed("--json"))
    schemas = {**STAGES, "model": load_variant("transformer").Settings}
    assert list(dict.fromkeys(row["section"] for row in rows)) == [
        "prep",
        "train",
        "model",
        "search",
    ]
    assert {row["section"] for row in rows} == set(SECTIONS)
    assert [(row["section"], row["name"]) for row in rows] == [
        (s, key) for s in ("prep", "train", "model", "search") for key in schemas[s].model_fields
    ]
    printed = listed()
    assert all(
        f"\n{row['section']}.{row['name']} " in printed and row["description"] in printed
        for row in rows
    )


@pytest.mark.parametrize("name", preset_names())
def test_the_list_shows_what_a_preset_sets(name):
    found = {
        (row["section"], row["name"]): row["default"]
        for row in json.loads(listed("--preset", name, "--json"))
    }
    plain = {(row["section"], row["name"]): row["default"] for row in json.loads(listed("--json"))}
    preset = {
        (section, key): value
        for section, values in load_preset(name).items()
        for key, value in values.items()
        if (section, key) in plain
    }
    assert found == {**plain, **preset}


def test_a_section_of_a_variant_of_your_own():
    rows = json.loads(listed("model", "--variant", TOY, "--json"))
    assert [row["name"] for row in rows] == list(load_variant(TOY).Settings.model_fields)
    table = listed("search", "--preset", "dc-iwslt").splitlines()
    assert table[0] == "search"
    assert table[1].split() == ["setting", "dc-iwslt", "values", "meaning"]
    assert table[3].split()[:5] == ["search.beam", "6", "integer", "≥", "1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "did you mean 'train'?"),
        (["train", "--preset", "smal"], "did you mean 'small'?"),
        (["--variant", "transfomer"], "did you mean 'trans"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(arguments, said):
    result = CliRunner().invoke(app, ["settings", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize("section", STAGES)
def test_the_sections_of_the_stages_need_no_torch(section):
    code = (
        f"import sys\nfrom nmtkit.cli import app\napp(['settings', '{section}'],"
        " standalone_mode=False)\nsys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL
        ).returncode
        == 0
    )
