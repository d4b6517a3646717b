"""One sentence by all systems, with sentence BLEU against sacreBLEU."""

import pytest
from sacrebleu.metrics.bleu import BLEU

from tests.score import slow


@pytest.fixture
def translated(analysed):
    analysed.system(share=0.5)
    analysed.system("better", share=0.2)
    return analysed


def hypotheses(run, name):
    return (run.system(name).translation("test") / "hyp.txt").read_text("utf-8").splitlines()


def sentence_bleu(run, name):
    """Return BLEU of each line of the test set by sacreBLEU (effective order)."""
    lines, refs = hypotheses(run, name), run.references("test")[0].read_text("utf-8").splitlines()
    return [
        BLEU(effective_order=True).sentence_score(hyp, [ref]).score
        for hyp, ref in zip(lines, refs, strict=True)
    ]


def test_sentence_bleu_means_and_sign_test_equal_sacrebleu_and_an_exact_test(translated, stdout):
    first, second = translated.rows("examples", sentence=3)
    out = stdout()
    base, better = (sentence_bleu(translated.run, name) for name in ("base", "better"))
    assert (first["bleu"], second["bleu"]) == pytest.approx((base[2], better[2]))
    assert first["ahead"] is first["behind"] is first["p"] is None
    ahead, behind = (
        sum(sign * (b - a) > 1e-9 for a, b in zip(base, better, strict=True)) for sign in (1, -1)
    )
    percent = (100 * ahead / 40, 100 * behind / 40)
    assert (second["ahead"], second["behind"]) == pytest.approx(percent) and ahead > behind > 0
    assert second["p"] == pytest.approx(slow.two_sided(ahead, behind))
    for row, scores in ((first, base), (second, better)):
        mean = row["mean"]
        assert mean["value"] == pytest.approx(sum(scores) / 40)
        assert mean["low"] < mean["value"] < mean["high"]
        assert hypotheses(translated.run, row["system"])[2] in out
    assert "source  " in out and "reference  " in out


@pytest.mark.parametrize("systems", [["better"], ["better", "base"]])
def test_only_selected_systems_are_shown_and_the_first_is_the_baseline(translated, stderr, systems):
    translated.add("later", 0.5, sets=[])
    translated.describe("base", settings={"beam": 3})
    translated.describe("better", settings={"beam": 4})
    rows = translated.rows("examples", systems=systems)
    err = stderr()
    assert "later" not in err
    assert ("not all systems were searched" in err) is (len(systems) > 1)
    assert [row["system"] for row in rows] == systems
    assert [row["p"] is None for row in rows] == [True, False][: len(rows)]
