"""Transparent attention: what is recorded is what is read, and the stage shows it."""

import math

import pytest
import torch

from nmtkit.analyze import layers
from nmtkit.errors import ConfigError
from nmtkit.measures import recording
from nmtkit.nn.capture import record
from nmtkit.tables.bars import Heat, heat

from .conftest import SMALL

DEEP = {**SMALL, "encoder_layers": 2, "decoder_layers": 3}


def softmax(column):
    return [math.exp(v) / sum(map(math.exp, column)) for v in column]


def test_both_mixtures_as_a_heat_map(analysed, stdout):
    analysed.system()
    analysed.system("phrases", "pr", {**DEEP, "decoder_layers": 2})
    model = analysed.system("both", "pr", {**DEEP, "ta_tokens": True})
    rows = analysed.rows("layers")
    assert [(row["system"], row["mixture"], row["level"]) for row in rows] == [
        (system, what, level)
        for system, what in (("phrases", "phrase"), ("both", "phrase"), ("both", "token"))
        for level in ("embeddings", "layer 1", "layer 2")
    ]
    assert [row["decoder_3"] is None for row in rows] == [
        row["system"] == "phrases" for row in rows
    ]
    for what, weights in (("phrase", model.phrase_mixture), ("token", model.token_mixture)):
        own = [row for row in rows if row["system"] == "both" and row["mixture"] == what]
        for layer in range(3):
            wanted = softmax([weights[level, layer].item() for level in range(3)])
            assert [row[f"decoder_{layer + 1}"] for row in own] == pytest.approx(wanted, rel=1e-5)
    out = stdout()
    assert "both, token: encoder level by decoder layer" in out and "█" in out
    figure = analysed.text("layers")
    assert "phrases, phrase" in figure and "decoder layer" in figure
    analysed.refused("layers", ConfigError, "reads no set of the run", set_names=["test"])


class Stranger:
    """A variant from outside that mixes levels too."""

    def parameters(self):
        return iter([torch.empty(0, device="meta")])

    context_rule = None

    def encode(self, batch):
        record("decoder.my_mixture", torch.tensor([[0.25, 1.0], [0.75, 0.0]]))

    def decode(self, tgt_in, memory):
        pass


def test_a_variant_outside_the_package_is_seen_by_what_it_records_on_its_device(monkeypatch):
    made_up, asked = recording.made_up, []

    def asked_for(lengths, device, pairs):
        asked.append(device)
        return made_up(lengths, torch.device("cpu"), pairs)

    monkeypatch.setattr(recording, "made_up", asked_for)
    assert layers.mixtures(Stranger()) == {"my": [[0.25, 1.0], [0.75, 0.0]]}
    assert asked == [torch.device("meta")]


def test_a_heat_map_for_a_terminal():
    assert heat(Heat([[0.0, 0.5], [1.0, 0.25]], ["a", "猫猫"], ["x", "y"])).splitlines() == [
        "      1  2",
        "   a    ░░",
        "猫猫 ██ ··",
        "columns: 1 x  2 y",
        "shades: about ·· 0.20  ░░ 0.40  ▒▒ 0.60  ▓▓ 0.80  ██ 1.00",
    ]
    assert "██" not in heat(Heat([[0.0]], ["a"], ["x"])).splitlines()[1]
