"""Weights of words in gated attention: against loops over steps and subwords, and the analysis."""

import math

import numpy as np
import pytest
import torch

from nmtkit.analyze import weights
from nmtkit.errors import ConfigError
from nmtkit.nn.capture import capture
from nmtkit.text.vocabulary import EOS
from nmtkit.translate.forced import pair_batch
from tests.models import contract

from ..pair_writer import pair_writer
from .conftest import GATED


def by_hand(alpha, opened, owners):
    """Return (Σ attention, mean gate, Σ attention · gate) of each word; the last word is </s>."""
    rows = []
    for word in range(owners[-1] + 2):
        places = [i for i, owner in enumerate([*owners, owners[-1] + 1]) if owner == word]
        steps = [(a[i], o[i]) for i in places for a, o in zip(alpha, opened, strict=True)]
        weighted = sum(a * o for a, o in steps if not math.isnan(o))
        gates = [np.nanmean([o[i] for o in opened]) for i in places]
        rows.append((sum(a for a, _ in steps), sum(gates) / len(gates), weighted))
    return rows


@pytest.mark.parametrize(
    "case",
    [
        contract.Case("caru"),
        contract.Case("caru", (("caatt_first", "linear"),)),
        contract.Case("gru-inv"),
    ],
    ids=str,
)
def test_weights_of_words_equal_loops_over_steps_and_subwords(case):
    model, src, tgt = case.build(), [5, 6, 7, 8, EOS], [9, 5, 6, EOS]
    batch = pair_batch([src], [tgt])
    with torch.inference_mode(), capture() as seen:
        model.decode(batch.tgt_in, model.encode(batch))
    alpha, opened = seen["attention"][0][0, 0].tolist(), seen["attention_gate"][0][0].tolist()
    assert weights.attentions_of(model) == ["attention"]
    owners = [0, 1, 1, 2]
    measured = weights.measured(model, "attention", batch, np.array(owners))
    assert np.stack(measured, axis=1) == pytest.approx(
        np.array(by_hand(alpha, opened, owners)), rel=1e-9
    )
    assert len(measured.attention) == 4 and measured.attention.sum() == pytest.approx(len(tgt))
    has_no_first_gate = str(case).endswith("caatt_first=linear")
    assert math.isnan(opened[0][0]) == has_no_first_gate


def test_gate_of_another_shape_is_not_used(monkeypatch):
    recorded = {"own": torch.ones(1, 2, 17, 11), "own_gate": torch.ones(1, 17, 64)}
    monkeypatch.setattr(weights.recording, "probed", lambda model: {"decoder": recorded})
    assert weights.attentions_of(None) == []
    recorded["own_gate"] = torch.ones(1, 17, 11)
    assert weights.attentions_of(None) == ["own"]


def test_empty_source_has_end_of_sentence_and_undefined_gate():
    undefined, owners = np.full((1, 1), np.nan), np.zeros(0, dtype=np.int64)
    measured = weights.word_weights(np.ones((1, 1)), undefined, owners)
    assert (measured.attention.tolist(), measured.weighted.tolist()) == ([1.0], [0.0])
    assert np.isnan(measured.gate).all()


def test_rows_are_source_words_with_attention_gate_and_product(analysed, capsys):
    with pair_writer(analysed.run.prep / "test", 0, 100) as add:
        for line in analysed.lines["test"]:
            add([5] * len(line.split()) + [EOS], [5, 5, EOS])
    analysed.system("one", "caru", GATED)
    analysed.system("other", "gru-inv", GATED)
    analysed.system("plain", "rnnsearch", GATED)
    finding = analysed.analyze("weights", sentence=2)
    out, err = capsys.readouterr()
    assert "left out: plain: it records no gated attention (see nmtkit.nn.capture)" in err
    *rows, last = finding["table"]["rows"]
    assert finding["facts"]["steps"] == 3
    assert [row["word"] for row in rows] == [*analysed.lines["test"][1].split(), "</s>"]
    for name in ("one", "other"):
        attention, gates, weighted = (
            [row[f"{name}_{key}"] for row in rows] for key in ("attention", "gate", "weighted")
        )
        assert sum(attention) == pytest.approx(finding["facts"]["steps"])
        assert sum(weighted) == pytest.approx(last[f"{name}_weighted"])
        assert last[f"{name}_gate"] is None
        assert all(0 < gate < 1 for gate in gates)
        assert all(w < a for w, a in zip(weighted, attention, strict=True))
        bars = analysed.figure("weights")["series"][name]
        assert [bar["value"] for bar in bars] == weighted
    assert "lets the source word into it (other)" in out
    message = "the run keeps no text of the set 'train'"
    analysed.refused("weights", ConfigError, message, set_names=["train"])
