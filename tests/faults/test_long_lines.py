"""Every stage and analysis treats a line of 100,000 words within a minute, and names the line."""

import random
import shlex
import time

import pytest
from typer.testing import CliRunner

from nmtkit.cli import app
from tests.manifests import read_json

WORDS = 100_000
SECONDS = 60
"""Limit of processor time; each command takes a few seconds."""
SMALL = " ".join(
    f"--set model.{name}={size}"
    for name, size in (("d_model", 16), ("d_ff", 16), ("encoder_layers", 1), ("decoder_layers", 1))
)
LEFT_OUT = "1 sentence left out: longer than 1,024 subwords"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Texts SET.en and SET.de, whose last line is long."""
    folder, rng = tmp_path_factory.mktemp("long"), random.Random(1)
    for name, lines in (("train", 200), ("dev", 12), ("test", 12)):
        pairs = [rng.choices(range(30), k=rng.randint(3, 9)) for _ in range(lines - 1)]
        pairs.append(rng.choices(range(30), k=WORDS))
        for lang in ("en", "de"):
            text = "".join(" ".join(f"{lang}{i}" for i in ids) + "\n" for ids in pairs)
            (folder / f"{name}.{lang}").write_text(text, "utf-8")
    return folder


def run(files, line, code=0):
    """Run a command on the run, within the limit of time; return its stderr."""
    words = shlex.split(f"{line} --run {files / 'run'}")
    start = time.process_time()
    result = CliRunner().invoke(app, words)
    assert time.process_time() - start < SECONDS
    assert result.exit_code == code, (line, result.stderr, result.exception)
    assert "internal error" not in result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def translated(files):
    """The folder of a run with two systems that have translated the long line."""
    sides = " ".join(f"--{name} {files}/{name}.en {files}/{name}.de" for name in ("train", "dev"))
    prepared = run(
        files,
        f"prep mine {sides} --test {files}/test.en,{files}/test.de --jobs 1 --preset tiny"
        " --set prep.src_tokenizer=none --set prep.tgt_tokenizer=none",
    )
    assert "too long         1" in prepared
    brief = "--set train.max_steps=2 --set train.checkpoint_every=1 --set train.samples=1"
    for variant in ("enc-dc", "rnnsearch"):
        size = SMALL if variant == "enc-dc" else "--set model.d_hidden=8"
        output = run(files, f"train --variant {variant} {brief} {size}")
        assert "validation leaves out 1 sentence longer than 1,024 subwords" in output
    short = "--set search.max_length_a=0 --set search.max_length_b=3 --set search.beam=1"
    assert "1 over-long, in 400 pieces" in run(files, f"translate --jobs 1 {short}")
    return files


def test_scores_leave_out_ter_and_the_report_cuts_the_long_line(translated):
    output = run(translated, "score --by-length")
    assert "left out: TER (a line has 100,000 words" in output
    scores = read_json(translated / "run/score/test/scores.json")
    assert scores["sentences"] == 12 and "chrf" in scores["signatures"]
    assert "1 line longer than 3,000 characters" in run(translated, "report")
    assert (translated / "run/report/index.html").stat().st_size < 3_000_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("divergence", LEFT_OUT),
        ("importance", LEFT_OUT),
        ("attention", LEFT_OUT),
        ("alignment --sentence 3", ""),
        ("lengths", ""),
        ("cost", ""),
        ("convergence", ""),
        ("examples", ""),
        ("examples --sentence 12", ""),
    ],
)
def test_analyses_leave_out_the_long_line_if_they_must(translated, line, message):
    assert message in run(translated, f"analyze {line}")


def test_alignment_of_the_long_line_is_refused(translated):
    output = run(translated, "analyze alignment --sentence 12", 2)
    assert "1 sentence: longer than 1,024 subwords" in output


def test_forced_scores_of_the_long_line_are_refused(translated):
    files = f"{translated}/test.de {translated}/test.en"
    output = run(translated, f"translate --system enc-dc --force-target {files}", 2)
    assert "forced scores read lines whole, of at most 20,000" in output
    assert "in: the line '" in output
