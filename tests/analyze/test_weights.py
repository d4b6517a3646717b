"""What words weigh in gated attention: against loops over steps and subwords, and the stage."""

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

from .conftest import GATED


def by_hand(alpha, opened, owners):
    """(attention, gate, weighted) of each word, a number at a time; </s> is the last word."""
    found = []
    for word in range(owners[-1] + 2):
        places = [i for i, owner in enumerate([*owners, owners[-1] + 1]) if owner == word]
        steps = [(a[i], o[i]) for i in places for a, o in zip(alpha, opened, strict=True)]
        weighted = sum(a * o for a, o in steps if not math.isnan(o))
        gates = [np.nanmean([o[i] for o in opened]) for i in places]
        found.append((sum(a for a, _ in steps), sum(gates) / len(gates), weighted))
    return found


@pytest.mark.parametrize(
    "case",
    [
        contract.Case("caru"),
        contract.Case("caru", (("caatt_first", "linear"),)),
        contract.Case("gru-inv"),
    ],
    ids=str,
)
def test_words_weigh_what_a_loop_over_steps_and_subwords_finds(case):
    model, src, tgt = case.build(), [5, 6, 7, 8, EOS], [9, 5, 6, EOS]
    batch = pair_batch([src], [tgt])
    with torch.inference_mode(), capture() as seen:
        model.decode(batch.tgt_in, model.encode(batch))
    alpha, opened = seen["attention"][0][0, 0].tolist(), seen["attention_gate"][0][0].tolist()
    assert weights.attentions_of(model) == ["attention"]
    owners = [0, 1, 1, 2]
    found = weights.measured(model, "attention", batch, np.array(owners))
    wanted = by_hand(alpha, opened, owners)
    assert len(found.attention) == 4 and found.attention.sum() == pytest.approx(len(tgt))
    assert np.stack(found, axis=1) == pytest.approx(np.array(wanted), rel=1e-9)
    first_says_nothing = math.isnan(opened[0][0])
    assert first_says_nothing == str(case).endswith("caatt_first=linear")


def test_a_gate_of_another_shape_is_no_gate_of_source_positions(monkeypatch):
    recorded = {"own": torch.ones(1, 2, 17, 11), "own_gate": torch.ones(1, 17, 64)}
    monkeypatch.setattr(weights.recording, "probed", lambda model: {"decoder": recorded})
    assert weights.attentions_of(None) == []
    recorded["own_gate"] = torch.ones(1, 17, 11)
    assert weights.attentions_of(None) == ["own"]


def test_a_source_without_words_has_its_end_and_a_gate_without_a_say_none():
    found = weights.word_weights(
        np.ones((1, 1)), np.full((1, 1), np.nan), np.zeros(0, dtype=np.int64)
    )
    assert (found.attention.tolist(), found.weighted.tolist()) == ([1.0], [0.0]) and np.isnan(
        found.gate
    ).all()


def test_the_stage(analysed, capsys):
    analysed.system("one", "caru", GATED)
    analysed.system("other", "gru-inv", GATED)
    analysed.system("plain", "rnnsearch", GATED)
    found = analysed.analyze("weights", sentence=2)
    out, err = capsys.readouterr()
    assert "left out: plain: it records no gated attention (see nmtkit.nn.capture)" in err
    *rows, last = found["table"]["rows"]
    assert [row["word"] for row in rows] == [*analysed.lines["test"][1].split(), "</s>"]
    for name in ("one", "other"):
        attention, gates, weighted = (
            [row[f"{name}_{key}"] for row in rows] for key in ("attention", "gate", "weighted")
        )
        assert sum(attention) == pytest.approx(found["facts"]["steps"])
        assert sum(weighted) == pytest.approx(last[f"{name}_weighted"])
        assert last[f"{name}_gate"] is None
        assert all(0 < gate < 1 for gate in gates)
        assert all(w < a for w, a in zip(weighted, attention, strict=True))
    assert "lets the source word into it (other)" in out
    message = "the run keeps no text of the set 'train'"
    analysed.refused("weights", ConfigError, message, set_names=["train"])
