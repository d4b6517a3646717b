"""Mixtures of encoder layers (transparent attention): the analysis shows the recorded weights."""

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


def test_mixtures_of_phrases_and_tokens_equal_softmaxes_of_their_parameters(analysed, stdout):
    analysed.system()
    analysed.system("phrases", "pr", {**DEEP, "decoder_layers": 2})
    model = analysed.system("both", "pr", {**DEEP, "ta_tokens": True})
    rows = analysed.rows("layers")
    assert [(row["system"], row["mixture"], row["level"]) for row in rows] == [
        (system, mixture, level)
        for system, mixture in (("phrases", "phrase"), ("both", "phrase"), ("both", "token"))
        for level in ("embeddings", "layer 1", "layer 2")
    ]
    assert {row["decoder_3"] for row in rows[:3]} == {None}  # the first system has two layers
    for levels, parameters in ((rows[3:6], model.phrase_mixture), (rows[6:], model.token_mixture)):
        for layer, column in enumerate(parameters.T.tolist(), 1):
            measured = [row[f"decoder_{layer}"] for row in levels]
            assert measured == pytest.approx(softmax(column), rel=1e-5)
    out = stdout()
    assert "both, token: encoder level by decoder layer" in out and "█" in out
    figure = analysed.text("layers")
    assert "phrases, phrase" in figure and "decoder layer" in figure
    panel = analysed.figure("layers")["panels"]["both, token"]
    assert panel["rows"] == ["embeddings", "layer 1", "layer 2"]
    layers = [f"decoder_{layer}" for layer in range(1, 4)]
    assert panel["values"] == [[row[layer] for layer in layers] for row in rows[6:]]
    analysed.refused("layers", ConfigError, "reads no set of the run", set_names=["test"])


class Stranger:
    """A model outside the package that mixes levels."""

    def parameters(self):
        return iter([torch.empty(0, device="meta")])

    context_rule = None

    def encode(self, batch):
        record("decoder.my_mixture", torch.tensor([[0.25, 1.0], [0.75, 0.0]]))

    def decode(self, tgt_in, memory):
        pass


def test_mixtures_of_a_users_model_are_detected_on_its_device(monkeypatch):
    made_up, devices = recording.made_up, []

    def on_cpu(lengths, device, pairs):
        devices.append(device)
        return made_up(lengths, torch.device("cpu"), pairs)

    monkeypatch.setattr(recording, "made_up", on_cpu)
    assert layers.mixtures(Stranger()) == {"my": [[0.25, 1.0], [0.75, 0.0]]}
    assert devices == [torch.device("meta")]


def test_heat_map_in_text_shades_cells_and_names_rows_and_columns():
    assert heat(Heat([[0.0, 0.5], [1.0, 0.35]], ["a", "猫猫"], ["x", "y"])).splitlines() == [
        "      1  2",
        "   a    ░░",
        "猫猫 ██ ░░",
        "columns: 1 x  2 y",
        "shades: about ·· 0.20  ░░ 0.40  ▒▒ 0.60  ▓▓ 0.80  ██ 1.00",
    ]
    assert "██" not in heat(Heat([[0.0]], ["a"], ["x"])).splitlines()[1]
