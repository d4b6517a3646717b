"""TER's edit distance by bit vectors equals sacreBLEU's, for short, long and unlike lines."""

import random

import pytest
from sacrebleu.metrics import lib_ter
from sacrebleu.metrics.ter import TER

from nmtkit.score import counts, edit_distance

SACREBLEU = lib_ter.BeamEditDistance


def pairs(seed, longest):
    """Yield hypotheses and references: random words, or a reference with a phrase moved and cut."""
    draw = random.Random(seed)
    for _ in range(60):
        words = [str(draw.randrange(draw.choice([2, 5, 50]))) for _ in range(2 * longest)]
        reference = words[: draw.randrange(1, longest)]
        yield words[longest : longest + draw.randrange(longest)], reference
        start, length = draw.randrange(len(reference)), draw.randrange(longest)
        moved = reference[:start] + reference[start + length :]
        to = draw.randrange(len(moved) + 1)
        yield (
            moved[:to] + reference[start : start + length][: -draw.randrange(3) or None],
            reference,
        )


@pytest.mark.parametrize("longest", [4, 20, 150])
def test_distances_and_edit_operations_equal_sacrebleus(longest):
    for hypothesis, reference in pairs(longest, longest):
        distance, operations = edit_distance.EditDistance(reference)(hypothesis)
        expected, expected_operations = SACREBLEU(reference)(hypothesis)
        assert distance == expected
        assert operations.translate({}) == expected_operations.translate({})


def test_long_lines_have_other_distances_without_sacrebleus_beam(monkeypatch):
    def distances():
        return [edit_distance.EditDistance(of)(words)[0] for words, of in pairs(150, 150)]

    with_beam = distances()
    monkeypatch.setattr(edit_distance, "BAND", 1000)
    assert with_beam != distances()


def test_edit_rates_equal_sacrebleus_and_its_class_is_restored(monkeypatch):
    hypotheses, references = zip(*(map(" ".join, pair) for pair in pairs(1, 12)), strict=True)
    metric = TER(references=[references])
    fast, _ = counts.count(metric, hypotheses, [references])
    assert lib_ter.BeamEditDistance is SACREBLEU
    monkeypatch.setattr(edit_distance, "PRIVATE", ("_gone",))
    with edit_distance.fast_edit_distance():
        assert lib_ter.BeamEditDistance is SACREBLEU
    slow, _ = counts.count(metric, hypotheses, [references])
    assert fast == slow
