"""Settings: one strict schema, and messages that name the key and the nearest right one."""

import re
import tomllib

import pytest

from nmtkit.errors import ConfigError
from nmtkit.models.variants import load_variant
from nmtkit.other_toolkits import HABITS
from nmtkit.settings import (
    STAGES,
    PrepSettings,
    SearchSettings,
    TrainSettings,
    build,
    habit,
    load_config,
    load_preset,
    merge,
    parse_set,
    preset_names,
)
from nmtkit.toml import to_toml
from tests.refused import refused


def test_set_reads_toml_values_and_plain_words():
    assert parse_set(
        [
            "train.max_steps=10",
            "model.tie=all",
            'prep.truecase="none"',
            "train.lr=1e-3",
            "prep.joint_vocab=false",
        ]
    ) == {
        "train": {"max_steps": 10, "lr": 1e-3},
        "model": {"tie": "all"},
        "prep": {"truecase": "none", "joint_vocab": False},
    }


@pytest.mark.parametrize("text", ["nosuch=1", "train.max_steps", "train.=1", "=1"])
def test_malformed_set_says_how_to_write_it(text):
    refused(ConfigError, "section.key=value", parse_set, [text])


def test_unknown_section_and_key_name_the_nearest():
    refused(ConfigError, "did you mean 'train'", parse_set, ["trian.max_steps=1"])
    with pytest.raises(
        ConfigError, match=r"unknown setting 'train.max_step'.*\n.*\n.*did you mean 'max_steps'"
    ):
        build(TrainSettings, {"max_step": 3}, "train")


WRONG = {
    "max_steps": ["many", 0, True],
    "schedule": ["linear"],
    "betas": [[0.9], [1.5, 2]],
    "seed": [-1],
    "lr": [float("inf"), float("nan"), 0],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values]
)
def test_bad_value_names_key_and_value(key, value):
    refused(ConfigError, f"'train.{key}", build, TrainSettings, {key: value}, "train")


def test_the_meaning_of_a_setting_is_one_line_of_the_error():
    error = refused(ConfigError, None, build, TrainSettings, {"schedule": "x"}, "train")
    assert "\n" not in error.hint and "half a cosine down to 0 at `max_steps`" in error.hint


def test_more_translations_than_the_beam_holds_are_refused():
    with pytest.raises(ConfigError, match="search.nbest = 3 is more than search.beam = 2"):
        build(SearchSettings, {"beam": 2, "nbest": 3}, "search")


def test_later_layers_win_key_by_key():
    assert merge(
        {"train": {"lr": 1, "seed": 2}}, {"train": {"lr": 3}}, {"prep": {"merges": 4}}
    ) == {
        "train": {"lr": 3, "seed": 2},
        "prep": {"merges": 4},
    }


def test_config_file_errors_name_the_file(tmp_path):
    refused(ConfigError, "nope.toml", load_config, tmp_path / "nope.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[train\n")
    refused(ConfigError, "not valid TOML", load_config, bad)
    bad.write_text("train = 3\n")
    refused(ConfigError, "is a section", load_config, bad)
    bad.write_text("max_steps = 3\n")
    message = r"'max_steps' is in no section.*\n.*bad.toml\n.*write \[train\]"
    refused(ConfigError, message, load_config, bad)


def test_a_config_file_may_begin_with_a_bom(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nmax_steps = 7\n", "utf-8-sig")
    assert load_config(path) == {"train": {"max_steps": 7}}


def test_written_settings_read_back_the_same():
    values = {
        "variant": 'a "quoted" \\ name\x7f',
        "train": TrainSettings().model_dump(),
        "prep": PrepSettings().model_dump(),
    }
    back = tomllib.loads(to_toml(values))
    assert build(TrainSettings, back["train"], "train") == TrainSettings()
    assert build(PrepSettings, back["prep"], "prep") == PrepSettings()
    assert back["variant"] == values["variant"]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_fits_the_schema(name):
    preset = load_preset(name)
    for section, schema in STAGES.items():
        build(schema, preset.get(section, {}), section)
    assert "model" in preset


def test_unknown_preset_names_the_nearest():
    refused(ConfigError, "did you mean 'small'", load_preset, "smal")


@pytest.mark.parametrize(("name", "meant"), HABITS.items())
def test_every_habit_names_a_setting_or_an_option_that_exists(name, meant):
    assert habit(name) == habit(f"--{name.replace('_', '-')}") == habit(f"train.{name}") == meant
    for section, key in re.findall(r"--set (\w+)\.(\w+)=", meant):
        schema = load_variant("transformer").Settings if section == "model" else STAGES[section]
        assert key in schema.model_fields


def test_a_setting_without_its_section_is_answered_with_the_section():
    refused(ConfigError, "--set train.lr=", parse_set, ["lr=0.1"])
    refused(ConfigError, "--set train.label_smoothing=", parse_set, ["label_smoothing=0.1"])
    with pytest.raises(ConfigError, match="unknown setting 'train.dropout'.*\n.*\n.*model.dropout"):
        build(TrainSettings, {"dropout": 0.1}, "train")


@pytest.mark.parametrize("name", ["heads", "layers"])
def test_no_setting_that_the_variant_lacks_is_suggested(name):
    schema = load_variant("rnnsearch").Settings
    caught = refused(ConfigError, "unknown setting", build, schema, {name: 4}, "model")
    assert "--set" not in caught.hint


def test_the_file_of_a_system_is_a_settings_file(tmp_path):
    path = tmp_path / "config.toml"
    sections = {"model": {"d_model": 8}, "train": {"lr": 2.0}}
    about = {"variant": "caru", "preset": "tiny", "init_from": "", "corpus": "x"}
    path.write_text(to_toml({**about, **sections, "hardware": {"device": "cpu"}}))
    assert load_config(path) == load_config(path, "caru") == sections
    refused(ConfigError, "of 'caru', not of 'pr'.*\n.*\n.*--variant", load_config, path, "pr")


def test_the_file_of_a_run_is_a_settings_file(tmp_path):
    path = tmp_path / "run.toml"
    about = {"dataset": "mine", "src": "en", "tgt": "de", "fingerprint": "x", "size": 9}
    path.write_text(to_toml({**about, "prep": {"max_words": 9}}))
    assert load_config(path) == {"prep": {"max_words": 9}}
    path.write_text('src = "en"\n')  # the user's own file, not a run's
    refused(ConfigError, "'src' is in no section", load_config, path)
