"""A prepared run with Transformers of several settings and other systems, with random weights."""

import functools

import pytest

from nmtkit import demo
from nmtkit.nn.hardware import Hardware
from tests.random_systems import add_system, prepare

SETTINGS = {
    "post": {},
    "pre": {"norm": "pre", "softmax_bias": True, "attn_bias": False, "tie": "target"},
    "apart": {
        "tie": "none",
        "softmax_bias": True,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "heads": 4,
    },
    "shared": {
        "encoder_layers": 4,
        "decoder_layers": 3,
        "distinct_layers": 2,
        "softmax_bias": True,
    },
}

EOS = 2.0
"""Bias of </s>: most translations then end before the limit.

Engines rank unfinished translations differently.
"""


@pytest.fixture(scope="package", autouse=True)
def sets_of_the_usual_size():
    """In smaller sets too few lines are short enough to be compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "generate", functools.partial(demo.generate, dev=500, test=500))
        yield


@pytest.fixture(scope="package")
def prepared(tmp_path_factory):
    made = prepare(tmp_path_factory.mktemp("export") / "run")
    for name, model in SETTINGS.items():
        add_system(
            made,
            name,
            "transformer",
            eos=EOS if "softmax_bias" in model else 0,
            search={"max_length_b": 30},
            **model,
        )
    add_system(made, "blind", "transformer", encoder_layers=0)
    for name in ("concat", "enc-dc", "rnnsearch", "transformer-cycle"):
        add_system(made, name, name)
    add_system(made, "mine", "tests.export.toy_derived:Derived")
    return made


@pytest.fixture
def run(prepared, monkeypatch):
    monkeypatch.setattr(
        "nmtkit.nn.hardware.choose",
        lambda device, precision, width: Hardware("cpu", "test", 1, "float32", "highest", False),
    )
    return prepared
