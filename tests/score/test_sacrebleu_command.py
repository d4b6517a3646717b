"""Scores and p of real outputs equal those of sacreBLEU's command line in paired tests."""

import json
import os
import re

import pytest

from nmtkit.files import text_lines
from nmtkit.score.stage import score_files
from tests.processes import python

from .conftest import write

SEED = 1


def paired(*arguments):
    """Return (score, p) by metric for each system, from the table that `sacrebleu` prints for a
    paired test. Its JSON output fails for the float32 means of chrF.
    """
    environment = {**os.environ, "SACREBLEU_SEED": str(SEED), "NO_COLOR": "1"}
    words = ("-m", "sacrebleu", *map(str, arguments), "--width", "12", "--format", "latex")
    printed = python(*words, env=environment, check=True).stdout.splitlines()
    header, *lines = [line.rstrip("\\ ").split(" & ") for line in printed if " & " in line]
    names = [cell.split()[0] for cell in header[1:]]
    pattern = re.compile(r"([\d.]+)(?: \([\d.]+ ± [\d.]+\))?(?: \(p = ([\d.]+)\)\*?)?")
    rows = ([pattern.fullmatch(cell.strip()).groups() for cell in line[1:]] for line in lines)
    return [dict(zip(names, row, strict=True)) for row in rows]


def read(path):
    return list(text_lines(path if path.exists() else path.with_name(path.name + ".xz")))


@pytest.fixture(scope="module")
def subtitles(shared, tmp_path_factory):
    """TVsub's test set with two references, and two published systems: tokenized, with some empty
    lines.
    """
    path = shared / "data" / "han_outputs" / "sub_zh-en"
    folder = tmp_path_factory.mktemp("subtitles")
    refs = [write(folder / f"ref{i}.en", read(path / f"test_tgt_{i}")[:500]) for i in (1, 2)]
    hyps = [read(path / f"sub_zh-en_{name}.en")[:500] for name in ("baseline", "HA-enc")]
    hyps[1][7] = hyps[1][8] = ""
    return [write(folder / f"{i}.en", hyp) for i, hyp in enumerate(hyps)], refs


KEYS = {"BLEU": "bleu", "chrF2": "chrf", "TER": "ter"}
"""sacreBLEU's names -> nmtkit's."""


@pytest.mark.parametrize(
    ("test", "arguments"),
    [
        ("sacrebleu_bootstrap", ("--paired-bs", "--paired-bs-n", 300)),
        ("sacrebleu_randomization", ("--paired-ar", "--paired-ar-n", 400)),
    ],
)
def test_scores_and_p_of_a_paired_test_equal_sacrebleus(stdout, subtitles, test, arguments):
    hyps, refs = subtitles
    options = {"resamples": 300, "trials": 400, "seed": SEED, "language": "en"}
    score_files(hyps, refs, output_format="json", **options)
    (result,) = json.loads(stdout())
    names = ("-m", "bleu", "chrf", "ter", "--ter-case-sensitive")
    theirs = paired(*refs, "-i", *hyps, *names, *arguments)
    for system, row in zip(result["systems"], theirs, strict=True):
        for name, key in KEYS.items():
            score, p = row[name]
            assert system["scores"][key]["value"] == pytest.approx(float(score), abs=1e-9)
            if system["tests"]:
                assert f"{system['tests'][test][key]['p']:.4f}" == p, key
                assert 0 < float(p) < 1
