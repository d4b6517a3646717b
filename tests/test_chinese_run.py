"""Chinese both ways and several references through the command line, from prep to significance."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu
from typer.testing import CliRunner

from nmtkit.cli import app
from nmtkit.files import text_lines
from nmtkit.score.significance import TESTS
from nmtkit.text import chinese
from tests.prep.real import lines

QUICK = [
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.dropout=0",
    "train.schedule=constant",
    "train.lr=0.003",
    "train.warmup=0",
]
TINY = [
    "--preset",
    "tiny",
    *(part for setting in [*QUICK, "train.label_smoothing=0"] for part in ("--set", setting)),
]
PAIRS = [
    ("Steve Lopez reads a book.", "Steve Lopez在看书。"),
    ("Where is the iPhone?", "iPhone在哪里？"),
    ("Tom likes cats.", "汤姆喜欢猫。"),
    ("It costs 10,000 yuan.", "要花10,000元。"),
    ("The Wi-Fi is slow.", "Wi-Fi很慢。"),
    ("She came at 8:30.", "她8:30来的。"),
]


def ok(*arguments, stdin=""):
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    assert result.exit_code == 0, result.stderr
    assert not re.search(
        "jieba|prefix dict|Loading model|pkg_resources|SyntaxWarning", result.stderr
    )
    return result


def read(path):
    return list(text_lines(path))


def write(path, text):
    path.write_text("".join(line + "\n" for line in text), "utf-8")
    return path


def test_english_to_chinese_without_spaces_but_between_latin_words(tmp_path, monkeypatch):
    """Six pairs learnt by heart: what comes out is the raw Chinese text, spaces where Latin
    words meet and nowhere else.
    """
    monkeypatch.chdir(tmp_path)
    en, zh = (
        write(tmp_path / f"train.{lang}", [pair[side] for pair in PAIRS] * 2)
        for side, lang in enumerate(("en", "zh"))
    )
    test = [
        write(tmp_path / f"few.{lang}", [pair[side] for pair in PAIRS])
        for side, lang in enumerate(("en", "zh"))
    ]
    ok(
        "prep",
        "--train",
        en,
        zh,
        "--dev",
        *test,
        "--test",
        f"{test[0]},{test[1]}",
        "--jobs",
        1,
        "--set",
        "prep.merges=60",
    )
    run = Path("runs/en-zh")
    manifest = json.loads((run / "prep/manifest.json").read_text("utf-8"))
    assert manifest["tools"]["jieba's dictionary"] == chinese.dictionary_sha256()
    assert sorted(path.name for path in (run / "prep").glob("truecase.*")) == [
        "truecase.en"
    ]  # else `iPhone` would begin a sentence as `IPhone`
    assert read(run / "prep/text/few.ref") == [
        pair[1] for pair in PAIRS
    ]  # the reference is the raw text
    ok("train", *TINY, "--set", "train.max_steps=100", "--set", "train.validate_every=100")
    ok("translate", "--jobs", 1)
    (folder,) = run.glob("systems/*/translate/few")
    assert read(folder / "hyp.txt") == [pair[1] for pair in PAIRS]
    assert "在 看书" in read(folder / "hyp.subwords.txt")[0].replace("@@ ", "")
    assert ok("translate", "-", stdin=PAIRS[0][0] + "\n").stdout == PAIRS[0][1] + "\n"
    result = ok("score", "--resamples", 20)
    assert "tok:zh" in result.stdout and "100.00" in result.stdout
    assert "tokenizer zh" in result.stderr


@pytest.fixture(scope="module")
def subtitles(shared, tmp_path_factory):
    """Raw Chinese and English talks to train on; subtitles with three English references as a
    test set; two systems, translated.
    """
    folder, ted = tmp_path_factory.mktemp("subtitles"), shared / "data/iwslt15_zhen"
    han = shared / "data/han_outputs/sub_zh-en"
    train = [
        write(folder / f"train.{lang}", lines(ted / f"IWSLT15.TED.dev2010.zh-en.{lang}")[:120])
        for lang in ("zh", "en")
    ]
    test = [write(folder / "s.zh", lines(han / "test_src")[:40])]
    test += [write(folder / f"r{i}.en", lines(han / f"test_tgt_{i}")[:40]) for i in (1, 2, 3)]
    run = folder / "run"
    ok(
        "prep",
        "mine",
        "--train",
        *train,
        "--dev",
        *train,
        "--test",
        ",".join(map(str, test)),
        "--run",
        run,
        "--jobs",
        2,
        "--set",
        "prep.merges=300",
    )
    for name, steps in (("a", 20), ("b", 60)):
        ok(
            "train",
            "--run",
            run,
            "--name",
            name,
            *TINY,
            "--set",
            f"train.max_steps={steps}",
            "--set",
            f"train.validate_every={steps}",
        )
    ok("translate", "--run", run, "--jobs", 1, "--set", "search.max_length_b=10")
    return run, test


def test_three_references_from_prep_to_significance(subtitles):
    run, test = subtitles
    assert sorted(path.name for path in (run / "prep/text").glob("test.*")) == [
        "test.ref",
        "test.ref1",
        "test.ref2",
        "test.src",
    ]
    assert [read(run / f"prep/text/test.ref{i}") for i in ("", 1, 2)] == [
        [" ".join(line.split()) for line in read(path)] for path in test[1:]
    ]
    result = json.loads(
        ok(
            "score",
            "--run",
            run,
            "--against",
            "b",
            "--resamples",
            30,
            "--trials",
            30,
            "--format",
            "json",
        ).stdout
    )
    scores = json.loads((run / "score/test/scores.json").read_text("utf-8"))
    assert scores["references"] == 3 and scores["signatures"]["bleu"].startswith("nrefs:3|")
    assert json.dumps(scores["systems"]) in json.dumps(result)
    systems = {system["name"]: system for system in scores["systems"]}
    assert [*systems] == ["a", "b"] and scores["baseline"] == "b"
    assert set(systems["a"]["tests"]) == set(TESTS) and not systems["b"].get("tests")
    refs = [read(run / f"prep/text/test.ref{i}") for i in ("", 1, 2)]
    for name, system in systems.items():
        hyps = read(run / f"systems/{name}/translate/test/hyp.txt")
        assert len(hyps) == 40
        assert system["scores"]["bleu"]["value"] == sacrebleu.corpus_bleu(hyps, refs).score
        assert system["scores"]["chrf"]["value"] == sacrebleu.corpus_chrf(hyps, refs).score
    assert (
        sacrebleu.corpus_chrf(hyps, refs).score != sacrebleu.corpus_chrf(hyps, refs[:1]).score
    )  # the further references do count


def test_translating_chinese_loads_jieba_and_says_nothing_of_it(subtitles, tmp_path):
    """In a process of its own, with a cache that doesn't exist yet and Python's warnings on:
    stderr has nmtkit's lines only.
    """
    run, _ = subtitles
    environment = {
        **os.environ,
        "NMTKIT_CACHE": str(tmp_path / "cache"),
        "PYTHONWARNINGS": "always:::jieba",
    }
    command = [
        sys.executable,
        "-m",
        "nmtkit",
        "translate",
        "-",
        "--run",
        str(run),
        "--system",
        "b",
        "--quiet",
    ]
    done = subprocess.run(
        command,
        input="我们去学校。\n",
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".cache"]
