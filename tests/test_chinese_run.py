"""English to Chinese through the command line, from prep to scores."""

import re
from pathlib import Path

from typer.testing import CliRunner

from nmtkit.cli import app
from nmtkit.files import text_lines
from nmtkit.text import chinese
from tests.manifests import read_json

QUICK = """
--preset tiny --set model.encoder_layers=1 --set model.decoder_layers=1 --set model.dropout=0
--set train.schedule=constant --set train.lr=0.003 --set train.warmup=0
--set train.label_smoothing=0 --set train.max_steps=100 --set train.validate_every=100
"""
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


def test_chinese_output_has_spaces_between_latin_words_only(tmp_path, monkeypatch):
    """A model that has learnt six pairs by heart writes the raw Chinese text."""
    monkeypatch.chdir(tmp_path)
    texts = dict(zip(("en", "zh"), zip(*PAIRS, strict=True), strict=True))
    train = [write(tmp_path / f"train.{lang}", lines * 2) for lang, lines in texts.items()]
    test = [write(tmp_path / f"few.{lang}", lines) for lang, lines in texts.items()]
    sets = ["--train", *train, "--dev", *test, "--test", f"{test[0]},{test[1]}"]
    ok("prep", *sets, "--jobs", 1, "--set", "prep.merges=60")
    run, chinese_lines = Path("runs/en-zh"), list(texts["zh"])
    manifest = read_json(run / "prep/manifest.json")
    assert manifest["tools"]["jieba's dictionary"] == chinese.dictionary_sha256()
    # With truecasing of Chinese, `iPhone` would begin a sentence as `IPhone`.
    assert [path.name for path in (run / "prep").glob("truecase.*")] == ["truecase.en"]
    assert read(run / "prep/text/few.ref") == chinese_lines
    ok("train", *QUICK.split())
    ok("translate", "--jobs", 1)
    (folder,) = run.glob("systems/*/translate/few")
    assert read(folder / "hyp.txt") == chinese_lines
    assert "在 看书" in read(folder / "hyp.subwords.txt")[0].replace("@@ ", "")
    assert ok("translate", "-", stdin=PAIRS[0][0] + "\n").stdout == PAIRS[0][1] + "\n"
    result = ok("score", "--resamples", 20)
    assert "tok:zh" in result.stdout and "100.00" in result.stdout
    assert "tokenizer zh" in result.stderr
