"""One sentence by all systems, and what all sentences say: against sacreBLEU, a sentence at a
time.
"""

import math

import pytest
from sacrebleu.metrics.bleu import BLEU

from nmtkit.analyze import stage
from nmtkit.errors import ConfigError, DataError
from nmtkit.run import Run

from .conftest import SMALL, finding

PAPER = """
citation = "Somebody 2020"
[tables.sentence]
title = "Table 2"
metric = "BLEU of one sentence"
columns = [{ name = "BLEU", sentence = "bleu" }]
rows = [
  { printed = "Ours", system = "better", numbers = { BLEU = 0.403 } },
  { printed = "Theirs", numbers = { BLEU = 0.331 } },
]
"""


@pytest.fixture
def translated(analysed):
    analysed.system("base", "transformer", SMALL, share=0.5)
    analysed.system("better", "transformer", SMALL, share=0.2)
    return analysed


def sentence_bleu(run, name):
    """Of each line of the test set, with sacreBLEU's own counting of orders."""
    lines = (run.system(name).translation("test") / "hyp.txt").read_text("utf-8").splitlines()
    refs = (run.references("test")[0]).read_text("utf-8").splitlines()
    return [
        BLEU(effective_order=True).sentence_score(hyp, [ref]).score
        for hyp, ref in zip(lines, refs, strict=True)
    ]


def test_the_line_and_all_others(translated, capsys):
    run = translated.run
    stage.analyze(run, "examples", sentence=3)
    out = capsys.readouterr().out
    base, better = (sentence_bleu(run, name) for name in ("base", "better"))
    first, second = finding(run, "examples")["table"]["rows"]
    assert (first["bleu"], second["bleu"]) == pytest.approx((base[2], better[2]))
    assert first["ahead"] is first["behind"] is first["p"] is None
    ahead, behind = (
        sum(sign * (b - a) > 1e-9 for a, b in zip(base, better, strict=True)) for sign in (1, -1)
    )
    assert (second["ahead"], second["behind"]) == pytest.approx(
        (100 * ahead / 40, 100 * behind / 40)
    ) and ahead > behind > 0
    few = range(min(ahead, behind) + 1)
    p = 2 * sum(math.comb(ahead + behind, i) for i in few) / 2 ** (ahead + behind)
    assert second["p"] == pytest.approx(min(1, p))
    for row, own in ((first, base), (second, better)):
        assert (
            row["mean"]["value"] == pytest.approx(sum(own) / 40)
            and row["mean"]["low"] < row["mean"]["value"] < row["mean"]["high"]
        )
    for name in ("base", "better"):
        assert (run.system(name).translation("test") / "hyp.txt").read_text("utf-8").splitlines()[
            2
        ] in out
    assert "source  " in out and "reference  " in out
    assert ">better</text>" in (run.path / "analyze" / "examples" / "figure.svg").read_text("utf-8")


def test_only_the_systems_asked_for_the_first_is_the_baseline(translated):
    for systems in (["better"], ["better", "base"]):
        stage.analyze(translated.run, "examples", systems=systems)
        rows = finding(translated.run, "examples")["table"]["rows"]
        assert [row["system"] for row in rows] == systems
        assert [row["p"] is None for row in rows] == [True, False][: len(rows)]


def test_beside_the_papers(translated, tmp_path, capsys):
    (tmp_path / "paper.toml").write_text(PAPER, "utf-8")
    stage.analyze(
        translated.run, "examples", sentence=4, paper=str(tmp_path / "paper.toml"), table="sentence"
    )
    out = capsys.readouterr().out
    assert (
        f"{sentence_bleu(translated.run, 'better')[3] / 100:.3f}" in out
        and "0.403" in out
        and "not trained here" in out
    )
    assert (
        "test, line 4, printed of a corpus that it does not name: so there is no difference" in out
    )
    assert (translated.run.path / "analyze" / "examples" / "paper.md").is_file()


def test_what_cannot_be_shown_is_said(translated, analysed):
    with pytest.raises(ConfigError, match="no line 41: there are 40") as error:
        stage.analyze(translated.run, "examples", sentence=41)
    assert error.value.hint == "1 to 40"
    with pytest.raises(DataError, match="no system of this run has translated other"):
        stage.analyze(Run(translated.run.path), "examples", set_names=["other"])
