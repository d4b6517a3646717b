"""Transparent attention: what is recorded is what is read, and the stage shows it."""

import math

import pytest
import torch

from nmtkit.analyze import layers, stage
from nmtkit.errors import ConfigError, DataError
from nmtkit.nn.capture import record
from nmtkit.tables.table import heat

from .conftest import SMALL
from .test_stage import finding

DEEP = {**SMALL, "encoder_layers": 2, "decoder_layers": 3}


def softmax(column):
    return [math.exp(v) / sum(map(math.exp, column)) for v in column]


def test_both_mixtures_as_a_heat_map(analysed, capsys):
    analysed.system("base", "transformer", SMALL)
    analysed.system("phrases", "pr", DEEP)
    model = analysed.system("both", "pr", {**DEEP, "ta_tokens": True})
    stage.analyze(analysed.run, "layers")
    rows = finding(analysed.run, "layers")["table"]["rows"]
    assert [(row["system"], row["mixture"], row["level"]) for row in rows] == [
        (system, what, level)
        for system, what in (("phrases", "phrase"), ("both", "phrase"), ("both", "token"))
        for level in ("embeddings", "layer 1", "layer 2")
    ]
    for what, weights in (("phrase", model.phrase_mixture), ("token", model.token_mixture)):
        own = [row for row in rows if row["system"] == "both" and row["mixture"] == what]
        for layer in range(3):
            wanted = softmax([weights[level, layer].item() for level in range(3)])
            assert [row[f"decoder_{layer + 1}"] for row in own] == pytest.approx(wanted, rel=1e-5)
    out = capsys.readouterr().out
    assert "both, token: encoder level by decoder layer" in out
    assert "█" in out
    figure = (analysed.run.path / "analyze" / "layers" / "figure.svg").read_text("utf-8")
    assert "phrases, phrase" in figure
    assert "decoder layer" in figure


class Stranger:
    """A variant from outside that mixes levels too."""

    def encode(self, batch):
        record("decoder.my_mixture", torch.tensor([[0.25, 1.0], [0.75, 0.0]]))


def test_a_variant_outside_the_package_is_seen_by_what_it_records():
    assert {name: shares for name, shares in layers.mixtures(Stranger()).items()} == {
        "my": [[0.25, 1.0], [0.75, 0.0]]
    }


def test_where_nobody_mixes_it_is_said(analysed):
    analysed.system("base", "transformer", SMALL)
    analysed.system("top", "pr", {**SMALL, "transparent": False})
    with pytest.raises(DataError, match="no system of this run mixes the levels"):
        stage.analyze(analysed.run, "layers")
    with pytest.raises(ConfigError, match="reads no set of the run"):
        stage.analyze(analysed.run, "layers", set_names=["test"])


def test_a_heat_map_for_a_terminal():
    assert heat([[0.0, 0.5], [1.0, 0.25]], ["a", "猫猫"], ["x", "y"]).splitlines() == [
        "      1  2",
        "   a    ░░",
        "猫猫 ██ ··",
        "columns: 1 x  2 y",
        "shades: about ·· 0.20  ░░ 0.40  ▒▒ 0.60  ▓▓ 0.80  ██ 1.00",
    ]
    assert "██" not in heat([[0.0]], ["a"], ["x"]).splitlines()[1]
