"""The attention of `analyze attention`: weights, chosen sentences, and what has none."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from nmtkit.analyze.analysis import stored
from nmtkit.analyze.attention import (
    Attention,
    AttentionOptions,
    SystemAttention,
    attention_of,
    lines_that_differ,
)
from nmtkit.analyze.study import Study
from nmtkit.data.batches import short_rows
from nmtkit.data.store import Store
from nmtkit.errors import DataError, LeftOut
from nmtkit.measures import recording
from nmtkit.models import loading
from nmtkit.records import FindingInputs, load
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate.forced import pair_batch
from tests.analyze.conftest import SMALL, AnalysedRun
from tests.refused import refused
from tests.score.conftest import write


@pytest.fixture
def analysed(tmp_path):
    """A Transformer with two layers, whose outputs have none to five subwords."""
    made = AnalysedRun(tmp_path / "run")
    made.system("base", "transformer", {**SMALL, "decoder_layers": 2})
    made.subwords = [[f"w{i % 50 + k}" for k in range(i % 6)] for i in range(40)]
    folder = made.run.path / "systems/base/translate/test"
    write(folder / "hyp.subwords.txt", map(" ".join, made.subwords))
    write(folder / "hyp.txt", map(" ".join, made.subwords))
    return made


def study(analysed):
    return Study(analysed.run, "attention", ["base"], ["test"])


def test_lines_on_which_systems_differ_most_are_chosen(analysed):
    """The second system has the reference in three lines, the first in one of these."""
    lines = analysed.subwords[:]
    lines[3] = analysed.lines["test"][3].split()  # of both systems
    write(analysed.run.path / "systems/base/translate/test/hyp.txt", map(" ".join, lines))
    lines[7], lines[30] = analysed.lines["test"][7].split(), analysed.lines["test"][30].split()
    analysed.system("other", "transformer", {**SMALL, "decoder_layers": 2})
    write(analysed.run.path / "systems/other/translate/test/hyp.txt", map(" ".join, lines))
    assert lines_that_differ(study(analysed), 2) == [7, 30]


def test_attention_equals_that_of_each_sentence_alone(analysed):
    found = attention_of(study(analysed), "base", [0, 3, 4, 7])
    assert sorted(found.sentences) == [3, 4, 7]
    model = loading.load_system(analysed.run, analysed.run.find_system("base"), "cpu")
    store, vocabulary = Store(analysed.run.prep / "test"), load_vocabularies(analysed.run.prep)[1]
    site = found.site.removesuffix(", mean over heads")
    for line, sentence in found.sentences.items():
        target = vocabulary.encode(analysed.subwords[line])
        recorded = recording.look(model, pair_batch([store.src(line).tolist()], [target]))
        weights = recorded["decoder"][site][0].mean(0)
        assert torch.allclose(torch.tensor(sentence.weights), weights, rtol=0, atol=1e-5)
        assert sentence.tgt == [*analysed.subwords[line], "</s>"]
        assert len(sentence.src) == weights.size(1) and sentence.src[-1] == "</s>"


def test_sentences_too_long_for_memory_are_left_out_with_a_warning(analysed, monkeypatch):
    asked = study(analysed)
    sizes = [
        max(int(asked.store.src_lengths[line]), 1 + len(subwords))
        for line, subwords in enumerate(analysed.subwords)
        if subwords
    ]
    most = sorted(sizes)[len(sizes) // 2]
    left_out = sum(size > most for size in sizes)
    monkeypatch.setattr(recording, "short_rows", partial(short_rows, most=most))
    found = attention_of(asked, "base", range(40))
    assert len(found.sentences) == len(sizes) - left_out
    assert asked.warnings == [f"base: {left_out} sentences left out, too long to be read"]


def test_finding_on_one_system_is_outdated_by_the_translations_of_another(analysed, capsys):
    """The sentences are those on which all systems of the run differ most."""
    other = analysed.run.path / "systems/other/translate/test"
    write(other / "hyp.txt", analysed.lines["test"])
    for outdated in (True, False):
        analysed.analyze("attention", systems=["base"], sentences=2)
        assert ("up to date" in capsys.readouterr().err) is not outdated
    lines = analysed.lines["test"][:]
    lines[9] = "quite different"
    write(other / "hyp.txt", lines)
    analysed.analyze("attention", systems=["base"], sentences=2)
    assert "up to date" not in capsys.readouterr().err


def test_translation_without_subwords_is_left_out_with_the_command(analysed):
    path = analysed.run.system("base").translation("test") / "hyp.subwords.txt"
    path.unlink()
    message = "base: its translation of test has no hyp.subwords.txt"
    error = analysed.refused("attention", DataError, message)
    assert "nmtkit translate --system base --on test --force" in error.hint


def test_attachment_of_a_system_named_finding_does_not_overwrite_the_finding(tmp_path):
    kept = SystemAttention(system="finding", site="last", set_name="test", sentences={})
    finding = Attention(AttentionOptions()).present([kept])
    finding = replace(finding, name="attention", title="")
    finding.write(tmp_path, FindingInputs(systems=["finding"], files={}))
    (name,) = stored(tmp_path).attachments
    assert load(SystemAttention, tmp_path / name) == kept


def test_wrong_line_count_is_refused_with_the_command(analysed):
    write(analysed.run.system("base").translation("test") / "hyp.subwords.txt", ["w1"])
    message = "1 line for 40 sentences"
    error = refused(DataError, message, attention_of, study(analysed), "base", [0])
    assert "nmtkit translate --system base --on test --force" in error.hint


@pytest.mark.parametrize(
    ("variant", "model", "message"),
    [
        ("tests.toy_recurrent:ToyRecurrent", {}, "it records no attention to the source"),
        ("concat", SMALL, "it attends to more than the source"),
    ],
)
def test_model_without_attention_to_the_source_alone_is_left_out(analysed, variant, model, message):
    analysed.system("other", variant, model)
    write(analysed.run.prep / "docs" / "test.txt", ["0"])
    subwords = map(" ".join, analysed.subwords)
    write(analysed.run.system("other").translation("test") / "hyp.subwords.txt", subwords)
    refused(LeftOut, message, attention_of, study(analysed), "other", [1])
