"""sacreBLEU's command line, run as a person would: its scores, means and p-values are ours."""

import json
import os
import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import sacrebleu

from nmtkit.files import text_lines
from nmtkit.score import metrics
from nmtkit.score.resampling import Draws
from nmtkit.score.stage import score_files

from . import single
from .conftest import write

SEED = 1


def run(*arguments):
    environment = {**os.environ, "SACREBLEU_SEED": str(SEED), "NO_COLOR": "1"}
    called = [sys.executable, "-m", "sacrebleu", *map(str, arguments), "--width", "12"]
    return subprocess.run(
        called, env=environment, capture_output=True, text=True, check=True
    ).stdout


def command(*arguments):
    """What `sacrebleu … --format json` prints."""
    return json.loads(run(*arguments, "--format", "json"))


def paired(*arguments):
    """Each system's score, mean over resamples and p by metric, from the table that a paired test
    prints.

    (Its JSON cannot hold the float32 means of chrF.)
    """
    printed = run(*arguments, "--format", "latex").splitlines()
    lines = [line.rstrip("\\ ").split(" & ") for line in printed if " & " in line]
    names = [cell.split()[0] for cell in lines[0][1:]]
    pattern = re.compile(r"([\d.]+)(?: \(([\d.]+) ± [\d.]+\))?(?: \(p = ([\d.]+)\)\*?)?")
    rows = ([pattern.fullmatch(cell.strip()).groups() for cell in line[1:]] for line in lines[1:])
    return [dict(zip(names, row, strict=True)) for row in rows]


def read(path):
    return list(text_lines(path if path.exists() else path.with_name(path.name + ".xz")))


def ours(stdout, hyps, refs, **options):
    """What `nmtkit score --hyp … --ref … --format json` prints."""
    score_files(hyps, refs, output_format="json", seed=SEED, **options)
    (result,) = json.loads(stdout())
    return result


@pytest.fixture(scope="module")
def subtitles(shared, tmp_path_factory):
    """TVsub's test set, three references, two systems: real, tokenised, with empty lines put in."""
    path = shared / "data" / "han_outputs" / "sub_zh-en"
    folder = tmp_path_factory.mktemp("subtitles")
    refs = [write(folder / f"ref{i}.en", read(path / f"test_tgt_{i}")[:500]) for i in (1, 2, 3)]
    hyps = [read(path / f"sub_zh-en_{name}.en")[:500] for name in ("baseline", "HA-enc")]
    hyps[1][7] = hyps[1][8] = ""
    return [write(folder / f"{i}.en", hyp) for i, hyp in enumerate(hyps)], refs


NAMES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}


def ties_by_rounding(hyps, refs, ours, theirs):
    """TER against three references: the mean reference length is a third of something, so
    sacreBLEU's trials that repeat the observed difference are more than it or not by rounding. Ours
    is p in exact fractions; sacreBLEU's lies between that and p with all ties counted.
    """
    a, b = (single.ter(read(hyp), [read(ref) for ref in refs]).statistics * [1, 3] for hyp in hyps)
    thirds = np.rint(a[:, 1]).astype(int)  # the same for both
    assert np.allclose(thirds, a[:, 1]) and np.allclose(thirds, b[:, 1])
    length = int(thirds.sum())
    observed = abs(Fraction(int(a[:, 0].sum() - b[:, 0].sum()), length))
    more = ties = 0
    for coins in np.random.default_rng(SEED).integers(2, size=(400, 500), dtype=bool):
        gaps = np.where(coins, a[:, 0] - b[:, 0], b[:, 0] - a[:, 0])
        gap = abs(Fraction(int(gaps.sum()), length))
        more += gap > observed
        ties += gap == observed
    assert ours == (more + 1) / 401
    assert ties > 0
    assert ours <= theirs + 5e-5
    assert theirs <= (more + ties + 1) / 401 + 5e-5


def test_scores_signatures_and_both_p_values(stdout, subtitles):
    hyps, refs = subtitles
    result = ours(stdout, hyps, refs, resamples=300, trials=400, language="en")
    base, system = result["systems"]
    called = [*refs, "-i", *hyps, "-m", "bleu", "chrf", "ter", "--ter-case-sensitive"]
    for test, arguments in {
        "sacrebleu_bootstrap": ("--paired-bs", "--paired-bs-n", 300),
        "sacrebleu_randomization": ("--paired-ar", "--paired-ar-n", 400),
    }.items():
        theirs = paired(*called, *arguments)
        for key, name in NAMES.items():
            for row, own in zip(theirs, (base, system), strict=True):
                assert own["scores"][key]["value"] == pytest.approx(float(row[name][0]), abs=1e-9)
            p = system["tests"][test][key]["p"]
            if (test, key) == ("sacrebleu_randomization", "ter"):
                ties_by_rounding(hyps, refs, p, float(theirs[1][name][2]))
            else:
                assert f"{p:.4f}" == theirs[1][name][2], (test, key)
            assert 0 < p < 1
        if test == "sacrebleu_bootstrap":
            # It draws what ours draws, so the mean over the resamples is the same (it adds up in
            # float32).
            metric = metrics.bleu(read(hyps[1]), [read(ref) for ref in refs], "en")
            mean = Draws(500, 300, seed=SEED).full.scores(metric).mean()
            assert mean == pytest.approx(float(theirs[1]["BLEU"][1]), abs=1e-4)


def test_one_system_and_its_signature(stdout, subtitles):
    (hyp, _), refs = subtitles
    own = ours(stdout, [hyp], refs, resamples=5, language="en")
    for row in command(*refs, "-i", hyp, "-m", "bleu", "chrf", "ter", "--ter-case-sensitive"):
        key = row["name"][:4].lower().strip("2")
        assert own["systems"][0]["scores"][key]["value"] == pytest.approx(row["score"], abs=1e-9)
        assert own["signatures"][key] == row["signature"]
    tokens = command(*refs, "-i", hyp, "--tokenize", "none", "--smooth-method", "none", "--force")
    tokenized = single.tokenized_bleu(read(hyp), [read(ref) for ref in refs])
    assert tokenized.value == pytest.approx(tokens["score"], abs=1e-9)
    assert tokenized.signature == tokens["signature"]


def test_chinese_without_spaces_is_sacrebleus_zh_tokenizer(stdout, shared, tmp_path):
    """Real Chinese, one word in seven lost, as detokenised output: no spaces."""
    text = read(shared / "data" / "flores101_devtest" / "zho_simpl.devtest")[:200]
    lines = ["".join(line.split()) for line in text]
    spoiled = ["".join(c for i, c in enumerate(line) if i % 7) for line in lines]
    ref, hyp = write(tmp_path / "ref.zh", lines), write(tmp_path / "hyp.zh", spoiled)
    own = ours(stdout, [hyp], [ref], resamples=5)
    theirs = command(ref, "-i", hyp, "--tokenize", "zh", "-m", "bleu")
    assert own["systems"][0]["scores"]["bleu"]["value"] == pytest.approx(theirs["score"], abs=1e-9)
    version = f"version:{sacrebleu.__version__}"
    signature = f"nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp|{version}"
    assert own["signatures"]["bleu"] == theirs["signature"] == signature
    assert 50 < theirs["score"] < 99
    assert command(ref, "-i", hyp, "-m", "bleu")["score"] < 5  # what the default would have said
    assert "mteval" not in own["signatures"]
    assert any("NIST BLEU" in remark for remark in own["remarks"])
