"""`--match-parameters`: the width whose number of parameters is closest to that of another system,
and how such a system is stored and resumed.
"""

import pytest

from nmtkit.errors import ConfigError
from nmtkit.models import loading
from nmtkit.models.variants import count_parameters
from nmtkit.train.stage import train
from tests.models import test_dual_context, test_transformer
from tests.train.tiny import TRAIN, last, options

QUIET = ["train.max_steps=2", "train.dev_bleu=false", "train.samples=0"]
SETTINGS = options(*QUIET)
WITHOUT_WIDTH = [setting for setting in SETTINGS if not setting.startswith("model.d_ff")]
V = 28
"""Tokens of the tiny run's vocabulary."""


@pytest.fixture
def run(run):
    """A run with an Enc-DC to match."""
    train(run, variant="enc-dc", assignments=SETTINGS)
    return run


def match(run, *more, **values):
    arguments = {"name": "matched", "match_parameters": "enc-dc"} | values
    train(run, assignments=[*WITHOUT_WIDTH, *more], **arguments)


def model_of(run, name):
    return loading.build_untrained(run, run.system(name))


@pytest.mark.parametrize(
    ("variant", "more"), [("transformer", ()), ("enc-dc", ("model.local=none",))]
)
def test_matched_width_is_the_closest_of_all_widths(run, variant, more, stderr):
    expected = test_dual_context.count(model_of(run, "enc-dc").settings, V)
    stderr()
    match(run, *more, variant=variant)
    settings = model_of(run, "matched").settings
    formula = (test_transformer if variant == "transformer" else test_dual_context).count
    counts = [formula(settings.model_copy(update={"d_ff": f}), V) for f in range(1, 400)]
    distances = [abs(count - expected) for count in counts]
    best = 1 + distances.index(min(distances))
    assert settings.d_ff == run.system("matched").read_config().model["d_ff"] == best
    assert 1 < best < 399 and best != 32  # neither the ends nor the baseline's
    message = f"model.d_ff = {best}: {counts[best - 1]:,} parameters; 'enc-dc' has {expected:,}"
    assert message in stderr()
    assert message in (run.system("matched").path / "train.log").read_text("utf-8")
    assert count_parameters(model_of(run, "matched")) == counts[best - 1]


def test_transformer_matches_a_recurrent_system(run):
    train(run, variant="rnnsearch", assignments=[*TRAIN, *QUIET, "model.d_hidden=32"])
    match(run, match_parameters="rnnsearch")
    matched, other = (count_parameters(model_of(run, name)) for name in ("matched", "rnnsearch"))
    assert abs(matched - other) <= (2 * 2 * 16 + 2) / 2  # half of the parameters of one more unit


def test_matched_system_resumes_by_the_same_command_or_its_width(run):
    match(run)
    width = run.system("matched").read_config().model["d_ff"]
    match(run, "train.max_steps=3")
    assignments = [*WITHOUT_WIDTH, f"model.d_ff={width}", "train.max_steps=4"]
    train(run, name="matched", assignments=assignments)
    assert last(run, "matched").name == "step-00000004"
    train(run, variant="enc-dc", assignments=[*SETTINGS, "model.d_ff=48"], force=True)
    with pytest.raises(ConfigError, match=rf"have changed[^$]*model\.d_ff +{width} "):
        match(run, "train.max_steps=5")


def test_given_width_and_systems_that_cannot_be_matched_are_refused(run, tmp_path, pipe):
    config = tmp_path / "sizes.toml"
    config.write_text("[model]\nd_ff = 64\n", "utf-8")
    cases = [
        ({}, ("model.d_ff=64",), "model.d_ff is given"),
        ({"config": config}, (), "model.d_ff is given"),
        ({"config": pipe("[model]\nd_ff = 64\n")}, (), "model.d_ff is given"),
        ({"match_parameters": "enc-d"}, (), "no system 'enc-d'[^$]*did you mean 'enc-dc'"),
        ({"name": "enc-dc"}, (), "'enc-dc' is the system that is to be trained"),
        ({}, ("model.encoder_layers=9",), "with model.d_ff=1 this system has [^$]*fewer layers"),
    ]
    for values, more, message in cases:
        with pytest.raises(ConfigError, match=message):
            match(run, *more, **values)
    with pytest.raises(ConfigError, match="variant rnnsearch has no model.d_ff to choose"):
        train(run, variant="rnnsearch", match_parameters="enc-dc")
    assert [system.name for system in run.systems()] == ["enc-dc"]
