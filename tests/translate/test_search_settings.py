"""Settings of searches: wrong combinations, and which source of a value wins."""

import pytest

from nmtkit import settings
from nmtkit.errors import ConfigError
from nmtkit.settings import SearchSettings, build
from nmtkit.translate.options import TranslateOptions
from nmtkit.translate.systems import search_overrides


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nbest": 6}, "more than search.beam"),
        ({"sample": True, "temperature": 0}, "search.temperature"),
        ({"sample": True, "top_p": 0}, "search.top_p"),
        ({"sample": True, "top_p": 1.5}, "search.top_p"),
        ({"sample": True, "top_k": -1}, "search.top_k"),
        ({"top_k": 5}, "search.top_k = 5 has no effect without search.sample"),
        ({"seed": 5}, "search.seed = 5 has no effect without search.sample"),
        ({"beam": 5, "diverse_groups": 2}, "search.beam = 5 cannot be shared"),
        ({"diversity": 1.0}, "search.diversity = 1.0 has no effect without search.diverse_groups"),
        ({"diverse_groups": 5, "sample": True}, "search.diverse_groups is for a beam"),
        ({"diverse_groups": 5, "diversity": -1}, "search.diversity"),
        ({"mbr": 6}, "search.mbr = 6 is more than search.beam = 5"),
        ({"mbr": 3, "nbest": 4}, "search.nbest = 4 is more than search.mbr = 3"),
        ({"mbr": -1}, "search.mbr"),
    ],
)
def test_wrong_search_settings_raise_config_error(values, message):
    with pytest.raises(ConfigError) as error:
        build(SearchSettings, values, "search")
    assert message in str(error.value)


def test_preset_alone_sets_its_search_and_the_defaults():
    of_preset = settings.load_preset("tiny")["search"]
    expected = SearchSettings().model_dump() | of_preset
    assert len(of_preset) < len(expected)
    assert search_overrides(TranslateOptions(preset="tiny")) == expected


def test_options_win_over_assignments_over_the_file_over_the_preset(tmp_path):
    config = tmp_path / "mine.toml"
    of_file = {"beam": 7, "length_penalty": 0.25, "max_length_b": 9}
    search = "".join(f"{key} = {value}\n" for key, value in of_file.items())
    config.write_text(f"[train]\nmax_steps = 3\n[search]\n{search}")
    of_preset = search_overrides(TranslateOptions(preset="tiny"))
    of_both = search_overrides(TranslateOptions(preset="tiny", config=config))
    assert of_both == of_preset | of_file
    assignments = ["search.max_length_b=8", "search.beam=6"]
    options = TranslateOptions(assignments=assignments, config=config, beam=5)
    assert search_overrides(options) == {"beam": 5, "length_penalty": 0.25, "max_length_b": 8}
