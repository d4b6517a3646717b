"""Settings: one strict schema; messages name the key, the value and the nearest valid name."""

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
    words = "train.max_steps=10", "model.tie=all", 'prep.truecase="none"', "train.lr=1e-3"
    assert parse_set([*words, "prep.joint_vocab=false"]) == {
        "train": {"max_steps": 10, "lr": 1e-3},
        "model": {"tie": "all"},
        "prep": {"truecase": "none", "joint_vocab": False},
    }


@pytest.mark.parametrize("text", ["nosuch=1", "train.max_steps", "train.=1", "=1"])
def test_malformed_set_option_shows_the_right_form(text):
    refused(ConfigError, "section.key=value", parse_set, [text])


def test_unknown_section_and_key_name_the_nearest():
    refused(ConfigError, "did you mean 'train'", parse_set, ["trian.max_steps=1"])
    message = r"unknown setting 'train.max_step'.*\n.*\n.*did you mean 'max_steps'"
    refused(ConfigError, message, build, TrainSettings, {"max_step": 3}, "train")


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


def test_error_shows_the_description_of_the_setting_in_one_line():
    error = refused(ConfigError, None, build, TrainSettings, {"schedule": "x"}, "train")
    assert "\n" not in error.hint and "half a cosine down to 0 at `max_steps`" in error.hint


def test_nbest_above_the_beam_is_refused():
    message = "search.nbest = 3 is more than search.beam = 2"
    refused(ConfigError, message, build, SearchSettings, {"beam": 2, "nbest": 3}, "search")


def test_merge_lets_later_settings_win_key_by_key():
    layers = {"train": {"lr": 1, "seed": 2}}, {"train": {"lr": 3}}, {"prep": {"merges": 4}}
    assert merge(*layers) == {"train": {"lr": 3, "seed": 2}, "prep": {"merges": 4}}


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


def test_bom_of_a_config_file_is_ignored(tmp_path):
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


@pytest.mark.parametrize(("name", "setting"), HABITS.items())
def test_names_of_other_toolkits_lead_to_settings_that_exist(name, setting):
    assert habit(name) == habit(f"--{name.replace('_', '-')}") == habit(f"train.{name}") == setting
    for section, key in re.findall(r"--set (\w+)\.(\w+)=", setting):
        schema = load_variant("transformer").Settings if section == "model" else STAGES[section]
        assert key in schema.model_fields


def test_setting_without_or_in_the_wrong_section_is_answered_with_the_section():
    refused(ConfigError, "--set train.lr=", parse_set, ["lr=0.1"])
    refused(ConfigError, "--set train.label_smoothing=", parse_set, ["label_smoothing=0.1"])
    message = "unknown setting 'train.dropout'.*\n.*\n.*model.dropout"
    refused(ConfigError, message, build, TrainSettings, {"dropout": 0.1}, "train")


@pytest.mark.parametrize("name", ["heads", "layers"])
def test_suggestions_name_no_setting_that_the_variant_lacks(name):
    schema = load_variant("rnnsearch").Settings
    caught = refused(ConfigError, "unknown setting", build, schema, {name: 4}, "model")
    assert "--set" not in caught.hint


def test_config_of_a_system_is_a_valid_settings_file(tmp_path):
    path = tmp_path / "config.toml"
    sections = {"model": {"d_model": 8}, "train": {"lr": 2.0}}
    about = {"variant": "caru", "preset": "tiny", "init_from": "", "corpus": "x"}
    path.write_text(to_toml({**about, **sections, "hardware": {"device": "cpu"}}))
    assert load_config(path) == load_config(path, "caru") == sections
    refused(ConfigError, "of 'caru', not of 'pr'.*\n.*\n.*--variant", load_config, path, "pr")


def test_run_toml_is_a_valid_settings_file(tmp_path):
    path = tmp_path / "run.toml"
    about = {"dataset": "mine", "src": "en", "tgt": "de", "fingerprint": "x", "size": 9}
    path.write_text(to_toml({**about, "prep": {"max_words": 9}}))
    assert load_config(path) == {"prep": {"max_words": 9}}
    path.write_text('src = "en"\n')  # the user's own file, not a run's
    refused(ConfigError, "'src' is in no section", load_config, path)
