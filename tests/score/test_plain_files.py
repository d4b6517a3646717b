"""Plain files, pipes and stdin: `nmtkit score --hyp FILE --ref FILE`, without a run."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
import sacrebleu
from typer.testing import CliRunner

from nmtkit import files
from nmtkit.cli import app
from nmtkit.errors import ConfigError, DataError
from nmtkit.score import plain_files
from nmtkit.score.stage import score_files
from tests.processes import python
from tests.refused import refused

from . import slow
from .conftest import SPLIT, spoil, write


@pytest.fixture
def score_json(capsys):
    """Scores files and returns the result and what was printed on stderr."""

    def call(hyps, refs, **options):
        capsys.readouterr()
        score_files(hyps, refs, output_format="json", **{"resamples": 5, **options})
        out, err = capsys.readouterr()
        (result,) = json.loads(out)
        return result, err

    return call


REF = ["ein Hund läuft heute hier", "die Katze schläft dort und hier", "der Hund schläft"] * 10


@pytest.fixture
def paths(tmp_path):
    """Files of 30 lines: (hypotheses of a worse and of a perfect system, reference)."""
    hyps = [write(tmp_path / "a.txt", spoil(REF, 0.4, 1)), write(tmp_path / "b.txt", REF)]
    return hyps, write(tmp_path / "ref.de", REF)


def test_files_are_compared_with_the_first_one_in_the_language_of_the_suffix(paths, score_json):
    hyps, ref = paths
    result, _ = score_json(hyps, [ref], resamples=50)
    assert (result["baseline"], result["language"]) == ("a.txt", "de")
    _, better = result["systems"]
    assert better["scores"]["bleu"]["value"] == pytest.approx(100)
    assert better["differences"]["bleu"]["value"] > 0


def test_unsegmented_chinese_is_scored_with_the_zh_tokenizer(tmp_path, score_json):
    lines, spoiled = ["我们今天去学校。", "他昨天没有来这里"], ["我们今天去学校。", "他昨天来这里"]
    ref, hyp = write(tmp_path / "ref.zh", lines), write(tmp_path / "hyp.zh", spoiled)
    result, _ = score_json([hyp], [ref])
    expected = sacrebleu.corpus_bleu(spoiled, [lines], tokenize="zh").score
    assert result["systems"][0]["scores"]["bleu"]["value"] == expected > 50
    signature = f"nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp|version:{sacrebleu.__version__}"
    assert result["signatures"]["bleu"] == signature and "mteval" not in result["signatures"]
    assert any("NIST BLEU" in remark for remark in result["remarks"])


def test_baseline_is_named_by_stem_file_name_or_path(paths, score_json):
    hyps, _ = paths
    for against in ("b", "b.txt", str(hyps[1])):
        result, _ = score_json(hyps, hyps[1:], against=against)
        assert (result["baseline"], result["language"]) == ("b.txt", "")


def test_draws_and_test_follow_the_options(paths, score_json):
    hyps, ref = paths
    options = {"resamples": 9, "trials": 7, "ratio": 0.4, "seed": 5, "test": "sign"}
    result, _ = score_json(hyps, [ref], **options)
    assert result["test"] == "sign"
    settings = {
        "paired_bootstrap": "9 resamples of 12 sentences, seed 5",
        "sacrebleu_bootstrap": "9 resamples of 30 sentences, seed 5",
        "sacrebleu_randomization": "7 trials, seed 5",
    }
    tests = result["systems"][1]["tests"]
    assert {test: tests[test]["bleu"]["setting"] for test in settings} == settings


def test_groups_by_source_length_are_printed_and_nothing_is_written(paths, tmp_path, capsys):
    hyps, ref = paths
    src = write(tmp_path / "src.en", ["a b", "c", "d e f"] * 10)
    before = sorted(tmp_path.iterdir())
    score_files(hyps[:1], [ref, hyps[1]], resamples=9, src=src, by_length=True, buckets="2,3")
    out, err = capsys.readouterr()
    for part in ("2 references", "words of the source", "other intervals: --format json"):
        assert part in out
    assert "nothing to compare with" in out and "scores.json" not in out + err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["news.tgt", "news.sys", "news.bpe.gz"])
def test_other_suffixes_are_no_language(name, tmp_path):
    assert plain_files._language(tmp_path / name) == ""


def test_tokenized_bleu_needs_the_language(tmp_path, score_json, news):
    names = ("ref.en", "hyp.en")
    ref, hyp = (write(tmp_path / name, text) for name, text in zip(names, news, strict=True))
    result, err = score_json([hyp], [ref], language="en")
    refs, hyps = (slow.moses_tokens(lines, "en") for lines in news)
    tokenized = result["systems"][0]["scores"]["tokenized_bleu"]["value"]
    assert tokenized == pytest.approx(slow.bleu_of_tokens(hyps, [refs]), abs=1e-9)
    assert result["signatures"]["tokenized_bleu"] == SPLIT
    assert "tok. BLEU takes its tokens" in err
    result, err = score_json([hyp], [ref])
    assert result["language"] == "en" and "tokenized_bleu" not in result["signatures"]
    assert "tok. BLEU needs --lang" in err
    named = {"metrics": "tokenized_bleu"}
    refused(
        ConfigError,
        "tok. BLEU is not possible here: it needs --lang",
        score_json,
        [hyp],
        [ref],
        **named,
    )


def test_tokenized_hypotheses_of_plain_references_are_warned_of(tmp_path, score_json):
    text = write(tmp_path / "text.de", ["ein Hund."] * 100)
    tokens = write(tmp_path / "tokens.de", ["ein Hund ."] * 100)
    assert "is this text detokenised?" in score_json([tokens], [text])[1]
    assert "detokenised?" not in score_json([tokens], [tokens])[1]


@pytest.mark.parametrize(
    ("text", "note"), [("ein Hund", ""), ("<d>\nein Hund\n<d>\nja", "(2 lines of ref.de)")]
)
def test_document_marks_cause_a_warning(tmp_path, score_json, text, note):
    path = write(tmp_path / "ref.de", [text])
    _, err = score_json([path], [path])
    assert ("scored as sentences" in err) == bool(note) and note in err


@pytest.fixture
def two_lines(tmp_path):
    return write(tmp_path / "ref.de", ["ein Hund", "die Katze"])


def test_source_is_only_used_by_length(two_lines, score_json):
    message = "--src is only used by --by-length"
    assert message in score_json([two_lines], [two_lines], src=two_lines)[1]
    assert message not in score_json([two_lines], [two_lines], src=two_lines, by_length=True)[1]


def test_unused_source_must_exist_and_be_a_file(two_lines, tmp_path, stdout):
    os.mkfifo(tmp_path / "pipe")  # opened, it would wait for a writer
    for name, message in (
        ("nope.en", "no such file: .*nope.en"),
        ("pipe", "is a pipe, not a file"),
    ):
        refused(DataError, message, score_files, [two_lines], [two_lines], src=tmp_path / name)
    assert stdout() == ""


@pytest.mark.parametrize(
    ("name", "lines", "unit", "sizes"),
    [
        ("s.zh", ["我们今天 去学校了吗", "他昨天没有来"], "characters of the source", [0, 1, 1]),
        ("s.tok.zh", ["我们 今天 去", "他"], "words of the source", [1, 1, 0]),
        ("s.en", ["supercalifragilistic", "a b c d e"], "words of the source", [1, 1, 0]),
    ],
)
def test_length_is_in_words_or_in_chinese_characters(
    two_lines, tmp_path, score_json, name, lines, unit, sizes
):
    options = {"src": write(tmp_path / name, lines), "by_length": True, "buckets": "3,7"}
    by_length = score_json([two_lines], [two_lines], **options)[0]["by_length"]
    assert by_length["unit"] == unit
    assert [group["sentences"] for group in by_length["groups"]] == sizes


def test_length_is_that_of_the_reference_without_a_source(tmp_path, score_json):
    ref = write(tmp_path / "ref.zh", ["我们今天去学校", "他昨天没有来"])
    result, _ = score_json([ref], [ref], by_length=True)
    assert result["by_length"]["unit"] == "characters of the reference (no --src given)"


def test_first_line_that_does_not_fit_the_reference_is_named(tmp_path):
    lines = [" ".join(["wort"] * (1 + 5 * number % 23)) for number in range(60)]
    ref, hyp = (
        write(tmp_path / "ref.de", lines),
        write(tmp_path / "hyp.de", lines[:20] + lines[21:]),
    )
    message = "hyp.de has 59 lines but .*ref.de has 60"
    error = refused(DataError, message, score_files, [ref, hyp], [ref])
    words = len(lines[21].split()), len(lines[20].split())
    assert error.where == "first odd pair: line 21 ({} words vs {})".format(*words)


def test_empty_file_has_no_odd_line(paths, tmp_path):
    _, ref = paths
    empty = write(tmp_path / "empty.de", [])
    message = "empty.de has 0 lines but .*ref.de has 30"
    assert refused(DataError, message, score_files, [empty], [ref]).where is None
    refused(DataError, "nothing to score: .*empty.de is empty", score_files, [empty], [empty])


def test_pipes_are_scored_like_files(paths, score_json, pipe):
    (hyp, _), ref = paths
    options = {"language": "de", "by_length": True}
    of_files, _ = score_json([hyp], [ref], src=ref, **options)
    piped = [pipe(path.read_text("utf-8")) for path in (hyp, ref, ref)]
    of_pipes, _ = score_json(piped[:1], piped[1:2], src=piped[2], **options)
    assert of_pipes["systems"][0]["scores"] == of_files["systems"][0]["scores"]


def test_short_pipe_is_refused_without_an_odd_line(paths, pipe):
    _, ref = paths
    short = pipe("ein Hund\n")
    message = f"{short} has 1 line but .*ref.de has 30"
    assert refused(DataError, message, score_files, [short], [ref]).where is None


def test_files_may_be_arguments_named_by_their_folders(tmp_path, paths, score_json):
    (worse, perfect), ref = paths
    named = [tmp_path / name / "out" / "hyp.txt" for name in ("base", "mine")]
    for path, text in zip(named, (worse, perfect), strict=True):
        path.parent.mkdir(parents=True)
        text.rename(path)
    by_option, _ = score_json(named, [ref], against=str(named[1]))
    result, _ = score_arguments(*named, "--ref", ref, "--against", "mine")
    assert [system["name"] for system in result["systems"]] == ["base", "mine"]
    assert result["baseline"] == "mine"
    assert result["systems"] == by_option["systems"]


def score_arguments(*words, text=None):
    """Return the result of `nmtkit score WORDS`, and stderr."""
    words = ["score", *map(str, words), "--format", "json", "--resamples", "5"]
    done = CliRunner().invoke(app, words, input=text)
    assert done.exit_code == 0, done.stderr
    (result,) = json.loads(done.stdout)
    return result, done.stderr


def test_hypothesis_or_reference_may_be_stdin(paths, score_json):
    (worse, perfect), ref = paths
    by_option, _ = score_json([worse, perfect], [ref])
    text = worse.read_bytes()
    result, _ = score_arguments("-", "--hyp", perfect, "--ref", ref, text=text)
    assert [system["name"] for system in result["systems"]] == ["stdin", "b.txt"]
    assert result["systems"][0]["scores"] == by_option["systems"][0]["scores"]
    result, _ = score_arguments(perfect, "--ref", "-", text=text.rstrip(b"\n"))
    assert result["set"] == "stdin"


def test_stdin_of_a_process_is_scored(paths):
    _, ref = paths
    words = ("-m", "nmtkit", "score", "-", "--ref", ref, "--format", "json", "--resamples", "5")
    done = python(*words, input=ref.read_text("utf-8"), check=True)
    (result,) = json.loads(done.stdout)
    assert result["systems"][0]["scores"]["bleu"]["value"] == pytest.approx(100)


def test_line_of_stdin_without_end_is_refused(tmp_path, monkeypatch):
    """As `yes | tr -d '\\n'` prints it."""
    monkeypatch.setattr(files, "LONGEST", 9)
    text = io.BytesIO(b"123456789\n1234567890\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text, encoding="utf-8"))
    reference = write(tmp_path / "ref.de", ["a"])
    message = "^line 2 has more than 16 MiB"
    error = refused(DataError, message, score_files, [Path("-")], [reference])
    assert error.where == "stdin" and error.hint.startswith("split it")


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        (["-"], b"x\n", "go together, got no --ref"),
        (["-", "--ref", "-"], b"x\n", "stdin can be read only once"),
        (["-", "--ref", "REF"], b"x\n", "stdin has 1 line but REF has 3"),
        (["-", "--ref", "REF"], b"x\ny\xff\nz\n", "stdin, line 2"),
        (["REF", "REF", "--ref", "REF"], b"", "named twice"),
        (["none.de", "--ref", "REF"], b"", "no such file: none.de"),
        (["REF", "--ref", "REF", "--system", "a"], b"", "--system has no effect"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, words, text, message):
    ref = str(write(tmp_path / "ref.de", ["x", "y", "z"]))
    words = [word.replace("REF", ref) for word in words]
    done = CliRunner().invoke(app, ["score", *words, "--resamples", "5"], input=text)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message.replace("REF", ref) in " ".join(done.stderr.split())


def test_wrong_files_are_refused(tmp_path):
    short, ref = write(tmp_path / "a.txt", ["x", "y"]), write(tmp_path / "ref.txt", ["x", "y", "z"])
    source = r"a\.txt has 2 lines.*\n.*first odd pair.*\n.*give the source"
    for hyps, refs, options, error, message in (
        ([tmp_path / "none"], [ref], {}, DataError, "no such file"),
        ([short], [], {}, ConfigError, "go together"),
        ([ref], [ref], {"language": "english"}, ConfigError, "'english' is not a language code"),
        ([ref], [ref], {"src": short, "by_length": True}, DataError, source),
        ([short, short], [short], {}, ConfigError, "twice"),
        ([short], [short], {"against": "c"}, DataError, "baseline 'c'"),
    ):
        refused(error, message, score_files, hyps, refs, **options)


def test_markup_files_are_refused(tmp_path):
    hyp, ref = (write(tmp_path / name, ["Ein Hund."]) for name in ("hyp.sgm", "ref.de"))
    refused(DataError, "hyp.sgm is SGM or XML", score_files, [hyp], [ref])


def test_file_that_is_not_utf8_is_refused_with_the_line(tmp_path):
    path = tmp_path / "latin1.de"
    path.write_bytes("gut\nschön\n".encode("latin-1"))
    error = refused(DataError, "not UTF-8", score_files, [path], [path])
    assert "line 2, byte 7" in error.where and "prep." not in error.hint
