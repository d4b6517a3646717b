"""Known bugs of libraries do not reach the user; README.md lists more bugs with their tests."""

import random
import re
import tomllib

import pytest
import typer
from typer.testing import CliRunner

from nmtkit import cli
from nmtkit.files import text_lines
from nmtkit.prep.stage import prep
from nmtkit.score import metrics
from nmtkit.text.bpe import Bpe, learn_bpe
from nmtkit.text.moses import Moses
from nmtkit.text.side import TextSide
from tests import ROOT
from tests.processes import python


def test_internal_error_prints_no_values_of_variables():
    code = """
import sys, nmtkit.prep.stage, nmtkit.cli
def broken(*arguments, **options):
    password = "hidden" * 2
    raise RuntimeError("a fault of ours")
nmtkit.prep.stage.prep = broken
sys.argv = ["nmtkit", "prep", "demo"]
nmtkit.cli.main()
"""
    done = python("-c", code)
    assert done.returncode == 1
    assert "a fault of ours" in done.stderr
    assert not any(word in done.stderr for word in ("hiddenhidden", "Traceback", "locals"))
    assert isinstance(cli.app, typer.Typer) and cli.app.pretty_exceptions_enable is False


def test_library_versions_with_known_bugs_are_excluded():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    floors = {re.match(r"[\w-]+", line)[0]: line for line in project["dependencies"]}
    assert floors["sacremoses"] == "sacremoses>=0.2,<0.3"
    assert (floors["typer"], floors["subword-nmt"]) == ("typer>=0.29", "subword-nmt>=0.3.8")


@pytest.mark.parametrize(
    ("lang", "text", "tokens"),
    [
        ("ko", "우리는 학교에 간다.", "우리는 학교에 간다 ."),
        ("hi", "हम स्कूल जाते हैं।", "हम स्कूल जाते हैं ।"),
        ("en", "the 学校 of हैं and 학교에", "the 学校 of हैं and 학교에"),
        ("ar", "نذهب إلى المدرسة.", "نذهب إلى المدرسة ."),
    ],
)
def test_sacremoses_does_not_split_words_of_scripts_without_rules(lang, text, tokens):
    assert Moses(lang).tokenize(text) == tokens


def test_sacremoses_detokenization_changes_spaces_only():
    for escape in (True, False):
        moses = Moses("en", escape=escape)
        for text, back in (
            ("a | b [c] (d)", None),
            ("x<y", "x < y"),
            ("a|b", "a | b"),
            ("a (b ) , c", "a (b), c"),
            ("wait ... 5 %", "wait... 5%"),
        ):
            again = moses.detokenize(moses.tokenize(text).split())
            assert again == (back or text)
            assert "".join(again.split()) == "".join(text.split())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A run with symbols that Moses reserves, escapes, joint codes and a vocabulary threshold."""
    folder = tmp_path_factory.mktemp("prepared")
    texts = {
        "de": ["Größe & [Maß] | <b> 'so' \"ja\" &apos; schön"] * 3 + ["Straßenbahn übergröße"] * 9,
        "en": ["size & [measure] | <b> 'so' \"yes\" &apos; fine"] * 3 + ["tramway measures"] * 9,
    }
    pair = []
    for lang, text in texts.items():
        pair.append(folder / f"t.{lang}")
        pair[-1].write_text("".join(line + "\n" for line in text), "utf-8")
    settings = "prep.merges=80 prep.escape=true prep.vocab_threshold=4 prep.truecase=none"
    sets = {"train": tuple(pair), "dev": tuple(pair), "test": [f"{pair[0]},{pair[1]}"]}
    run = prep("mine", **sets, jobs=1, assignments=settings.split(), run_dir=folder / "run")
    return run, texts


def test_sacremoses_escapes_never_reach_the_text_that_is_scored(prepared):
    run, texts = prepared
    assert list(text_lines(run.prep / "text/t.ref")) == texts["en"]
    side = TextSide.load(run.prep, "tgt")
    assert any("&apos;" in piece or "&quot;" in piece for piece in side.tokens(texts["en"][0]))
    back = side.decode(side.encode(texts["en"][0]))
    assert "& apos; fine" in back  # the text's own entity is not read as `'`
    assert "".join(back.split()) == "".join(texts["en"][0].split())


def test_joint_codes_make_no_subword_that_a_side_lacks(prepared):
    """Subwords seen fewer than 4 times on a side are split there.

    So the source has no subword that only the target's text contains.
    """
    run, texts = prepared
    plain = Bpe(run.prep / "codes.bpe")
    for name, lang, other in (("src", "de", "en"), ("tgt", "en", "de")):
        side = TextSide.load(run.prep, name)
        seen = {piece for line in texts[lang] for piece in side.encode(line)}
        foreign = [piece for line in texts[other] for piece in side.encode(line)]
        whole = [piece for line in texts[other] for piece in plain.segment(side.tokens(line))]

        def of_side(pieces, seen=seen):
            large = (p for p in pieces if len(p.removesuffix("@@")) > 1 and not p.startswith("&"))
            return seen.issuperset(large)

        assert of_side(foreign) and not of_side(whole)


def test_fewer_merges_than_asked_give_one_plain_message(tmp_path):
    for lang in ("de", "en"):
        (tmp_path / f"t.{lang}").write_text("abab abab\n" * 3, "utf-8")
    pair = [tmp_path / "t.de", tmp_path / "t.en"]
    files = f"--train {pair[0]} {pair[1]} --dev {pair[0]} {pair[1]}"
    command = f"prep {files} --run {tmp_path}/run --jobs 1 --set prep.merges=1234"
    result = CliRunner().invoke(cli.app, command.split())
    assert result.exit_code == 0
    assert "BPE: learned 3 of 1,234 merges; the corpus has no more" in result.stderr
    assert "frequency" not in result.stderr


def test_codes_with_line_separators_are_read_back(tmp_path):
    """Characters at which `splitlines` or codecs break lines do not end a line of the codes.

    U+0085 and U+2028 never reach the codes.
    """
    words = {"a\u200bb\u00adc": 5, "x\u0300y": 4, "\ufffdz": 3}
    learn_bpe([*words], [*words.values()], 20, tmp_path / "codes")
    bpe = Bpe(tmp_path / "codes")
    assert bpe.segment(list(words)) == list(words)
    assert len(list(text_lines(tmp_path / "codes"))) == bpe.merges + 1


def test_bpe_does_not_use_pythons_random_generator(tmp_path):
    before = random.getstate()
    learn_bpe(["banana", "band"], [7, 2], 20, tmp_path / "codes")
    pieces = [Bpe(tmp_path / "codes").segment(["bananas"]) for _ in range(20)]
    assert random.getstate() == before
    assert pieces == pieces[:1] * 20


def test_sacrebleu_scores_chinese_alike_with_and_without_spaces():
    refs = [["我们今天去学校", "他昨天没有来这里"]]
    spaced = [" ".join(line) for line in refs[0]]
    assert metrics.bleu(refs[0], refs, "zh").value == pytest.approx(100)
    assert metrics.bleu(spaced, refs, "zh").value == pytest.approx(100)
    assert metrics.bleu(refs[0][:1] * 2, refs, "zh").value < 60


def test_rich_draws_no_bar_into_a_log(tmp_path, prepared):
    run, texts = prepared
    source = tmp_path / "many.de"
    source.write_text("".join(f"{line}\n" for line in texts["de"] * 300), "utf-8")
    code = (
        "from nmtkit import console\nwith console.progress('reading', 3600) as advance:\n   "
        f" [advance(1) for _ in open({str(source)!r})]\n"
    )
    done = python("-c", code, check=True)
    assert done.stdout == "" and not re.search("[\x1b\r━]", done.stderr)
    assert done.stderr.count("\n") <= 1
