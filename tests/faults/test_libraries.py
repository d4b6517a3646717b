"""Known bugs and habits of the libraries below nmtkit: each with the test that shows that it
doesn't reach a user, here or where it stands.
"""

import ast
import random
import re
import subprocess
import sys
import tomllib
from pathlib import Path

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

ROOT = Path(__file__).resolve().parents[2]
HERE = "faults/test_libraries.py"

FAULTS = {
    "typer: the traceback of an error prints the values of variables": {
        HERE: ["test_typer_prints_no_variables_of_a_fault"]
    },
    "typer: completion and --help import the whole program": {
        "test_house.py": ["test_no_torch_where_none_is_needed"]
    },
    "torch: weights_only, pickled files": {"test_cli.py": ["test_a_pickle_is_never_read"]},
    "torch: attention is NaN where a row sees nothing": {
        "nn/test_attention.py": [
            "test_blind_queries_get_exactly_zero_and_finite_gradients",
            "test_torchs_kernels_are_never_shown_a_blind_query",
        ],
    },
    "torch: workers multiply lists in memory": {
        "data/test_store.py": ["test_a_store_travels_by_path", "test_writing_takes_constant_memory"]
    },
    "sacremoses, subword-nmt, typer: releases that change the text or break": {
        HERE: ["test_versions_that_change_the_text_are_pinned"]
    },
    "sacremoses: a last apostrophe, a last full stop, letters of other scripts": {
        "prep/test_moses.py": ["test_examples", "test_multi30k_as_recorded"],
        HERE: ["test_sacremoses_leaves_scripts_without_rules_whole"],
    },
    "sacremoses: French apostrophes don't come back": {"prep/test_moses.py": ["test_round_trip"]},
    "sacremoses: escaped text is escaped again": {
        "prep/test_moses.py": ["test_escapes_in_the_text_are_text"],
        HERE: ["test_sacremoses_escapes_never_reach_the_text_that_is_scored"],
    },
    "sacremoses: line separators inside a line": {
        "prep/test_text.py": ["test_nasty_text_stays_one_line_and_never_breaks_a_neighbour"]
    },
    "sacremoses: detokenization loses spaces, so nothing but raw references may be scored against": {
        HERE: [
            "test_sacremoses_detokenization_changes_spaces_only",
            "test_sacremoses_escapes_never_reach_the_text_that_is_scored",
        ],
    },
    "sacremoses: the detokenizer dies on Czech": {
        "prep/test_moses.py": ["test_czech_detokenizer_does_not_crash"]
    },
    "sacremoses: its own pool": {
        "prep/test_pipeline.py": ["test_the_output_does_not_depend_on_the_number_of_workers"]
    },
    "subword-nmt: dies on nothing to learn from": {
        "prep/test_subwords.py": ["test_fewer_merges_than_asked_and_none_at_all"]
    },
    "subword-nmt: `no pair has frequency >= 2` and other output": {
        "prep/test_subwords.py": ["test_learning_prints_nothing"],
        HERE: ["test_subword_nmt_with_fewer_merges_than_asked_is_said_in_words"],
    },
    "subword-nmt: codes and text read by splitlines": {
        "prep/test_subwords.py": ["test_codes_with_line_separators_are_read_line_by_line"],
        "test_files.py": ["test_lines_end_at_lf_only_in_every_compression"],
        HERE: ["test_subword_nmt_codes_with_line_separators_come_back"],
    },
    "subword-nmt: @@ in the text": {
        "prep/test_subwords.py": ["test_words_ending_in_the_joiner_are_not_read_as_joined"],
        "prep/test_text.py": ["test_control_symbols_in_the_text_are_text"],
        "prep/test_clean.py": ["test_each_kind_is_made_safe_and_counted"],
    },
    "subword-nmt: a joint code puts units of one side on the other": {
        "prep/test_text.py": ["test_threshold_filters_the_vocabulary"],
        HERE: ["test_subword_nmt_joint_code_makes_no_unit_that_its_side_lacks"],
    },
    "subword-nmt: draws from Python's own generator": {
        HERE: ["test_subword_nmt_leaves_the_random_generator_alone"]
    },
    "sacrebleu: unequal lengths are cut silently": {
        "score/test_metrics.py": ["test_line_counts_are_checked_before_sacrebleu_cuts"]
    },
    "sacrebleu: empty hypotheses and references": {
        "score/test_metrics.py": ["test_empty_lines_are_scored_and_counted"]
    },
    "sacrebleu: Chinese is 0.0 by the default tokenizer": {
        "score/test_stage.py": ["test_chinese_is_scored_by_characters_and_the_choice_is_said"],
        HERE: ["test_sacrebleu_scores_chinese_alike_with_and_without_spaces"],
    },
    "sacrebleu: a score without its signature": {
        "score/test_metrics.py": ["test_the_signature_always_travels_with_the_value"]
    },
    "sacrebleu: its significance tests": {
        "score/test_significance.py": ["test_sacrebleus_two_tests_give_the_p_of_sacrebleu_itself"]
    },
    "sacrebleu: papers' BLEU is multi-bleu.perl's": {
        "score/test_recorded.py": ["test_recorded_multi_bleu_lines_of_twenty_published_outputs"],
    },
    "rich: bars flood logs": {HERE: ["test_rich_draws_no_bar_into_a_log"]},
    "jieba: lines on stderr, warnings, its cache in the temporary folder": {
        "prep/test_chinese.py": [
            "test_jieba_is_quiet_and_its_cache_is_in_ours",
            "test_a_cache_that_cannot_be_used_is_done_without",
        ],
        "test_chinese_run.py": [
            "test_translating_chinese_loads_jieba_and_says_nothing_of_it",
            "test_english_and_german_never_load_jieba",
        ],
    },
    "jieba: one tokenizer for all in the process": {
        "prep/test_chinese.py": ["test_the_dictionary_of_others_in_the_process_stays_theirs"]
    },
    "jieba: another dictionary, other words": {
        "test_chinese_run.py": ["test_english_to_chinese_without_spaces_but_between_latin_words"]
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_tests_that_are_there(fault):
    for path, names in FAULTS[fault].items():
        tree = ast.parse((ROOT / "tests" / path).read_text("utf-8"))
        assert {*names} <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_test_here_is_named():
    named = {name for tests in FAULTS.values() for name in tests.get(HERE, [])}
    here = {
        node.name
        for node in ast.parse(Path(__file__).read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {
        name for name in here if name.startswith("test_") and not name.startswith("test_every_")
    } == named


def test_typer_prints_no_variables_of_a_fault():
    code = """
import sys, nmtkit.prep.stage, nmtkit.cli
def broken(*arguments, **options):
    password = "hidden" * 2
    raise RuntimeError("a fault of ours")
nmtkit.prep.stage.prep = broken
sys.argv = ["nmtkit", "prep", "demo"]
nmtkit.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a fault of ours" in done.stderr
    assert (
        "hiddenhidden" not in done.stderr
        and "Traceback" not in done.stderr
        and "locals" not in done.stderr
    )
    assert isinstance(cli.app, typer.Typer) and cli.app.pretty_exceptions_enable is False


def test_versions_that_change_the_text_are_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    floors = {re.match(r"[\w-]+", one)[0]: one for one in project["dependencies"]}
    assert floors["sacremoses"] == "sacremoses>=0.2,<0.3"
    assert (floors["typer"], floors["subword-nmt"]) == ("typer>=0.17", "subword-nmt>=0.3.8")


@pytest.mark.parametrize(
    ("lang", "text", "tokens"),
    [
        ("ko", "우리는 학교에 간다.", "우리는 학교에 간다 ."),
        ("hi", "हम स्कूल जाते हैं।", "हम स्कूल जाते हैं ।"),
        ("en", "the 学校 of हैं and 학교에", "the 学校 of हैं and 학교에"),
        ("ar", "نذهب إلى المدرسة.", "نذهب إلى المدرسة ."),
    ],
)
def test_sacremoses_leaves_scripts_without_rules_whole(lang, text, tokens):
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
    """Own files with everything that Moses reserves, German to English, a joint code with the
    vocabulary filter, Moses' escapes on.
    """
    folder = tmp_path_factory.mktemp("prepared")
    texts = {
        "de": ["Größe & [Maß] | <b> 'so' \"ja\" &apos; schön"] * 3 + ["Straßenbahn übergröße"] * 9,
        "en": ["size & [measure] | <b> 'so' \"yes\" &apos; fine"] * 3 + ["tramway measures"] * 9,
    }
    pair = []
    for lang, text in texts.items():
        pair.append(folder / f"t.{lang}")
        pair[-1].write_text("".join(line + "\n" for line in text), "utf-8")
    settings = [
        "prep.merges=80",
        "prep.escape=true",
        "prep.vocab_threshold=4",
        "prep.truecase=none",
    ]
    test = f"{pair[0]},{pair[1]}"
    return (
        prep(
            "mine",
            train=tuple(pair),
            dev=tuple(pair),
            test=[test],
            jobs=1,
            assignments=settings,
            run_dir=folder / "run",
        ),
        texts,
    )


def test_sacremoses_escapes_never_reach_the_text_that_is_scored(prepared):
    run, texts = prepared
    assert list(text_lines(run.prep / "text/t.ref")) == texts["en"]
    side = TextSide.load(run.prep, "tgt")
    assert any("&apos;" in piece or "&quot;" in piece for piece in side.tokens(texts["en"][0]))
    back = side.decode(side.encode(texts["en"][0]))
    assert "& apos; fine" in back  # the text's own, undone exactly once: not `' fine`
    assert "".join(back.split()) == "".join(texts["en"][0].split())


def test_subword_nmt_joint_code_makes_no_unit_that_its_side_lacks(prepared):
    """Units seen fewer than 4 times on a side are taken apart there, so the source never has
    what only the target's text teaches.
    """
    run, texts = prepared
    plain = Bpe(run.prep / "codes.bpe")
    for name, lang, other in (("src", "de", "en"), ("tgt", "en", "de")):
        side = TextSide.load(run.prep, name)
        seen = {piece for line in texts[lang] for piece in side.encode(line)}
        foreign = [piece for line in texts[other] for piece in side.encode(line)]
        whole = [piece for line in texts[other] for piece in plain.segment(side.tokens(line))]
        assert all(
            piece in seen or len(piece.removesuffix("@@")) == 1 or piece.startswith("&")
            for piece in foreign
        )
        assert not all(
            piece in seen or len(piece.removesuffix("@@")) == 1 or piece.startswith("&")
            for piece in whole
        )


def test_subword_nmt_with_fewer_merges_than_asked_is_said_in_words(tmp_path):
    for lang in ("de", "en"):
        (tmp_path / f"t.{lang}").write_text("abab abab\n" * 3, "utf-8")
    pair = [tmp_path / "t.de", tmp_path / "t.en"]
    command = [
        "prep",
        "--train",
        *pair,
        "--dev",
        *pair,
        "--run",
        tmp_path / "run",
        "--jobs",
        1,
        "--set",
        "prep.merges=1234",
    ]
    result = CliRunner().invoke(cli.app, [str(part) for part in command])
    assert result.exit_code == 0
    assert "BPE: learned 3 of 1,234 merges; the corpus has no more" in result.stderr
    assert "frequency" not in result.stderr


def test_subword_nmt_codes_with_line_separators_come_back(tmp_path):
    """U+0085 and U+2028 never come so far, but other separators of `splitlines` and of codecs do
    not end a line of the codes either.
    """
    words = {"a\u200bb\u00adc": 5, "x\u0300y": 4, "\ufffdz": 3}
    learnt = learn_bpe(words, 20, tmp_path / "codes")
    assert [*Bpe(tmp_path / "codes").segment(list(words))] == list(words)
    assert len(list(text_lines(tmp_path / "codes"))) == learnt.merges + 1


def test_subword_nmt_leaves_the_random_generator_alone(tmp_path):
    before = random.getstate()
    learn_bpe({"banana": 7, "band": 2}, 20, tmp_path / "codes")
    pieces = [Bpe(tmp_path / "codes").segment(["bananas"]) for _ in range(20)]
    assert random.getstate() == before
    assert all(one == pieces[0] for one in pieces)


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "" and not re.search("[\x1b\r━]", done.stderr)
    assert done.stderr.count("\n") <= 1
