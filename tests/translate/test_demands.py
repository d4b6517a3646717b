"""Prefixes and phrases that users demand of translations: lines, files and the Python interface."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from slow_search import SlowSearch, assert_same, problems
from toy_models import Table, recurrent, sources
from toy_run import LINES, lines_of, read_json_lines, translated
from toy_translators import VOCABULARY, BpeWords, context_copier, target_copier, texts, translator

import nmtkit
from nmtkit.data.batches import source_batch
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.errors import ConfigError, DataError, NmtkitError
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import EOS, SPECIALS, Vocabulary
from nmtkit.translate.demands import Demand, LineDemand, read_demands
from nmtkit.translate.methods import decode
from tests.manifests import read_json

both_paths = pytest.mark.usefixtures("each_path")


@both_paths
@given(problems(), st.integers(1, 5), st.data())
@examples(max_examples=30, deadline=None)
def test_beam_search_with_prefixes_equals_its_definition(problem, beam, data):
    models, ids = problem
    token = st.integers(EOS + 1, models[0].vocabularies.tgt - 1)
    prefixes = [tuple(data.draw(st.lists(token, max_size=3))) for _ in ids]
    settings = SearchSettings(beam=beam, max_length_a=0.5, max_length_b=5, nbest=beam)
    demands = [Demand((i,), prefix) for i, prefix in enumerate(prefixes)]
    results = decode(models, source_batch(ids), settings, demands)
    for hypotheses, source, prefix in zip(results, ids, prefixes, strict=True):
        assert_same(hypotheses, SlowSearch(models, source, settings, prefix).search())
        assert all(h.ids[: len(prefix)] == list(prefix) for h in hypotheses)


@both_paths
def test_sentence_keeps_its_prefix_when_other_sentences_leave_the_batch():
    prefix = (5, 6, 7, 8, 9, 10, 11, 12, 13, 14)  # longer than the steps between looks at a GPU
    demands = [Demand((0,)), Demand((1,)), Demand((2,), prefix)]
    batch = source_batch(sources(3, 20, [1, 1, 18]))
    settings = SearchSettings(beam=1, max_length_b=1)
    *_, (hypothesis,) = decode([recurrent(3, 20)], batch, settings, demands)
    assert hypothesis.ids[:10] == list(prefix)


def prefixes_of(*prefixes):
    return [LineDemand(i, prefix) for i, prefix in enumerate(prefixes)]


def phrases_of(*phrases):
    return [LineDemand(i, phrases=tuple(of_line)) for i, of_line in enumerate(phrases)]


@both_paths
def test_translations_begin_with_their_prefix_and_keep_its_unknown_words():
    assert "zebra" not in VOCABULARY
    lines, demands = ["a b c", "", "d e", "f"], prefixes_of("c zebra", "", "", "a")
    translations = translator(nbest=2).translate_window(lines, demands=demands)
    assert all(c.text.split()[:2] == ["c", "zebra"] for c in translations[0].candidates)
    assert translations[3].text.split()[0] == "a"
    plain = translator(nbest=2).translate_window(lines)
    assert texts(translations)[1:3] == texts(plain)[1:3]


@both_paths
def test_translations_have_their_phrases():
    lines, demands = ["a b c", "", "d e", "f"], phrases_of(["j i", "c"], [], [], ["j"])
    first, *middle, last = texts(
        translator(max_length_b=8).translate_window(lines, demands=demands)
    )
    assert "j i" in first and "c" in first.split() and "j" in last.split()
    assert middle == texts(translator(max_length_b=8).translate_window(lines))[1:3]


def test_phrase_is_not_found_inside_a_word():
    """The model writes x@@ a </s>."""
    logits = [0.0, 0.0, 0.0, 0.0, 9.0, 0.0], [0.0] * 5 + [9.0], [0.0, 0.0, 9.0, 0.0, 0.0, 5.0]
    texts_and_subwords = translator(Table(*logits))
    texts_and_subwords.tgt_side, texts_and_subwords.tgt_vocab = (
        BpeWords(),
        Vocabulary([*SPECIALS, "x@@", "a"]),
    )
    assert texts(texts_and_subwords.translate_window(["b"])) == ["xa"]
    assert texts(texts_and_subwords.translate_window(["b"], demands=phrases_of(["a"]))) == ["xa a"]


@both_paths
def test_prefix_may_have_as_many_subwords_as_a_translation():
    demands = prefixes_of("a b c d e")
    assert texts(translator().translate_window(["a"], demands=demands)) == ["a b c d e"]


def test_document_marks_in_demand_files_are_skipped(tmp_path):
    prefixes, phrases = tmp_path / "prefixes", tmp_path / "phrases"
    prefixes.write_text("<d>\na b\n")
    phrases.write_text("<d>\nx\t \t y z \n")
    assert list(read_demands(prefixes, phrases)) == [
        LineDemand(0),
        LineDemand(1, "a b", ("x", "y z")),
    ]


@both_paths
def test_first_piece_of_an_over_long_line_begins_with_the_prefix():
    line = ["a b c d e f g"]
    (plain,) = translator(max_source=3).translate_window(line)
    (begun,) = translator(max_source=3).translate_window(line, demands=prefixes_of("j"))
    assert begun.text.split()[0] == "j" != plain.text.split()[0]
    pieces = translator().translate_window(
        ["a b c", "d e f", "g"], demands=prefixes_of("j", "", "")
    )
    assert begun.text == " ".join(filter(None, texts(pieces)))


@both_paths
@pytest.mark.parametrize(
    ("demands", "expected"),
    [(prefixes_of("c", ""), ["c", "b c"]), (phrases_of(["c"], []), ["a c", "b a c"])],
)
def test_translation_used_as_context_meets_its_demands(demands, expected):
    translations = target_copier().translate_window(
        ["a", "b"], documents=Documents([0], 2), demands=demands
    )
    assert texts(translations) == expected


@both_paths
def test_translation_with_context_begins_with_its_prefix():
    _, second = context_copier(ContextRule("previous")).translate_window(
        ["a b", "c"], documents=Documents([0], 2), demands=prefixes_of("", "i")
    )
    assert second.text == "i b"


@pytest.mark.parametrize(
    ("lines", "demands", "settings", "message", "where"),
    [
        (["a", ""], prefixes_of("", "b"), {}, "the source line is blank", "the prefixes, line 2"),
        ([""], phrases_of(["b"]), {}, "the source line is blank", "the constraints, line 1"),
        (["a"], prefixes_of("a b c d e f g"), {}, "the prefix has 7 subwords, .* at most 5", "1"),
        (
            ["a"],
            [LineDemand(0, "a b c", ("d e f g",))],
            {},
            "what must appear has 7 subwords, but .* at most 5",
            "line 1",
        ),
        (["a b c d"], phrases_of(["b"]), {"max_source": 3}, "translated in pieces", "line 1"),
        (["a"], phrases_of(["b zebra"]), {}, "'zebra' is not in the vocabulary", "line 1"),
        (["a"], phrases_of(["b"]), {"sample": True}, "need a beam search", "search.sample"),
        (["a"], phrases_of(["b"]), {"diverse_groups": 3}, "need a beam search", "diverse_groups"),
    ],
)
def test_demand_that_no_translation_can_meet_raises_an_error(
    lines, demands, settings, message, where
):
    kind = ConfigError if "beam search" in message else DataError
    with pytest.raises(kind, match=message) as error:
        translator(**settings).translate_window(lines, demands=demands)
    assert where in str(error.value.where)


@pytest.mark.parametrize(
    ("option", "late_line", "demanded", "values", "message"),
    [
        ("constraints", "a dog", "meadow", {"sample": True}, "need a beam search"),
        ("constraints", "a dog", "meadow", {"diverse_groups": 3}, "need a beam search"),
        ("constraints", "a dog", "zebra", {}, "'zebra' is not in the vocabulary"),
        ("constraints", "", "meadow", {}, "the source line is blank"),
        (
            "constraints",
            "a dog",
            "meadow",
            {"assignments": ["search.max_source=1"]},
            "translated in pieces",
        ),
        ("prefix", "", "meadow", {}, "the source line is blank"),
        ("prefix", "a dog", "a a a a a a a a", {}, "8 subwords, .* at most 7"),
    ],
)
def test_impossible_demand_of_a_late_line_is_refused_before_any_output(
    run, tmp_path, stdout, option, late_line, demanded, values, message
):
    source, demands = tmp_path / "source", tmp_path / "demands"
    if option == "constraints":
        demands = tmp_path / "phrases.tsv"  # tabs separate phrases
    source.write_text("a dog\n" * 10_000 + f"{late_line}\n")
    demands.write_text("\n" * 10_000 + f"{demanded}\n")
    with pytest.raises(NmtkitError, match=message):
        translated(run, set_names=[], source=str(source), **values, **{option: demands})
    assert stdout() == ""


def test_system_that_cannot_search_for_phrases_is_skipped(run, tmp_path):
    config, phrases = run.system("one").config, tmp_path / "phrases"
    config.write_text(config.read_text("utf-8").replace("beam = 3", "beam = 3\nsample = true"))
    phrases.write_text("meadow\n\n\n")
    translated(run, systems=[], set_names=["other"], constraints=phrases)
    assert list(run.with_file("translate/other/hyp.txt")) == ["two"]


@pytest.mark.parametrize(
    ("option", "demanded", "meets"),
    [
        ("prefix", ["the dog", "", "men", "", "", "", "two zebra"], str.startswith),
        ("constraints", ["Two men\tmeadow", "", "green", "", "", "", "look"], str.__contains__),
    ],
)
def test_set_is_translated_again_only_if_the_file_of_demands_has_changed(
    run, tmp_path, capsys, option, demanded, meets
):
    """The same lines as a file get the same translations."""
    path = tmp_path / "demands"
    folder = translated(run)
    assert option not in read_json(folder / "meta.json")
    for first in (demanded[0], "it"):
        path.write_text("\n".join([first, *demanded[1:]]) + "\n")
        translated(run, **{option: path})
        assert "up to date" not in capsys.readouterr().err
        texts_and_subwords = zip(
            [first, *demanded[1:]], lines_of(folder / "hyp.subwords.txt"), strict=True
        )
        for texts_of_line, subwords in texts_and_subwords:
            assert all(meets(subwords, text) for text in texts_of_line.split("\t"))
    assert len(read_json(folder / "meta.json")[option]) == 64  # a checksum
    translated(run, jobs=2, **{option: path})
    assert "up to date" in capsys.readouterr().err
    capsys.readouterr()
    translated(run, set_names=[], source=str(run.source("test")), **{option: path})
    assert capsys.readouterr().out == (folder / "hyp.txt").read_text("utf-8")


def test_samples_of_a_set_do_not_depend_on_batches_and_jobs(run, stdout):
    options = {"sample": True, "nbest": 3, "top_p": 0.9, "seed": 7}
    path = translated(run, **options) / "nbest.jsonl"
    settings = read_json(path.with_name("meta.json"))["settings"]
    assert (settings["sample"], settings["seed"], settings["nbest"]) == (True, 7, 3)
    drawn = read_json_lines(path.read_text())

    def sampled_texts():
        return [[c["text"] for c in line["nbest"]] for line in read_json_lines(path.read_text())]

    expected = sampled_texts()
    for change in ({"assignments": ["search.batch_size=1"]}, {"jobs": 2}):
        translated(run, **options, force=True, **change)
        assert sampled_texts() == expected
    stdout()
    translated(run, **options, set_names=[], source=str(run.source("test")))
    assert read_json_lines(stdout()) == drawn


def test_python_interface_takes_prefixes(run):
    system = nmtkit.load(run.path, "one", device="cpu", sample=True, nbest=2)
    lines = [LINES[0], LINES[4]]
    translations = system.translations(lines, prefix=["", "men"])
    assert translations == system.translations(lines, prefix=["", "men"])
    assert all(c.subwords[0] == "men" for c in translations[1].candidates)
    with pytest.raises(DataError, match="1 prefixes for 2 sources"):
        system.translate(lines, prefix=["men"])


def test_python_interface_takes_constraints(run):
    system = nmtkit.load(run.path, "one", device="cpu")
    assert system.translate([""], constraints=[[" "]]) == [""]
    (translation,) = system.translations(["two men"], constraints=[["green", "dog"]])
    assert {"green", "dog"} <= set(translation.subwords)
    for lists in ([["dog"]], []):
        with pytest.raises(DataError, match=f"{len(lists)} lists of phrases for 2 sources"):
            system.translate(["a", "b"], constraints=lists)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"prefix": "missing"}, DataError, "no such file"),
        ({"prefix": "long"}, DataError, "has 9 lines but"),
        ({"prefix": "long", "source": "-"}, ConfigError, "a source that can be read twice"),
        ({"prefix": "long", "set_names": []}, ConfigError, "which set does this file belong to"),
        ({"sample": True, "temperature": 0.0}, ConfigError, "bad value for .--temperature"),
        ({"temperature": 0.5}, ConfigError, "has no effect without search.sample"),
    ],
)
def test_wrong_options_of_the_command_are_refused(run, values, error, message, tmp_path):
    (tmp_path / "long").write_text("a\n" * 9)
    if "prefix" in values:
        values = {**values, "prefix": tmp_path / values["prefix"]}
    with pytest.raises(error, match=message):
        translated(run, **values)
