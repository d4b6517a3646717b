"""Translations that begin with a given text: the search, lines, files and the Python interface."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from test_beam import assert_same, options, slow_search
from test_stage import LINES, read, read_json, read_json_lines, translated
from test_translator import VOCABULARY, gossip, heir, make, texts
from toy_models import batch_of, recurrent, sources

import nmtkit
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.errors import ConfigError, DataError
from nmtkit.text.vocabulary import EOS
from nmtkit.translate.demands import Demand, LineDemand
from nmtkit.translate.methods import decode
from nmtkit.translate.stage import translate

pytestmark = pytest.mark.usefixtures("each_path")


@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(5, 30),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    beam=st.integers(1, 5),
    data=st.data(),
)
@examples(max_examples=30, deadline=None)
def test_the_search_with_prefixes_is_the_slow_search(seed, vocabulary, lengths, beam, data):
    models = [recurrent(seed + i, vocabulary) for i in range(data.draw(st.integers(1, 2)))]
    ids = sources(seed, vocabulary, lengths)
    token = st.integers(EOS + 1, vocabulary - 1)
    prefixes = [tuple(data.draw(st.lists(token, max_size=3))) for _ in ids]
    o = options(beam, a=0.5, b=5, nbest=beam)
    demands = [Demand((i,), prefix) for i, prefix in enumerate(prefixes)]
    found = decode(models, batch_of(ids), o, demands)
    for of_sentence, source, prefix in zip(found, ids, prefixes, strict=True):
        assert_same(of_sentence, slow_search(models, source, o, prefix))
        assert all(h.ids[: len(prefix)] == list(prefix) for h in of_sentence)


def test_a_sentence_keeps_its_prefix_when_others_have_left():
    prefix = (5, 6, 7, 8, 9, 10, 11, 12, 13, 14)  # longer than the host of a GPU waits
    demands = [Demand((0,)), Demand((1,)), Demand((2,), prefix)]
    batch = batch_of(sources(3, 20, [1, 1, 18]))
    *_, (found,) = decode([recurrent(3, 20)], batch, options(1, a=1, b=1), demands)
    assert found.ids[:10] == list(prefix)


def asked(*prefixes, first=0):
    return [LineDemand(first + i, prefix) for i, prefix in enumerate(prefixes)]


def test_lines_begin_with_their_prefixes_unknown_words_as_they_were_given():
    lines, prefixes = ["a b c", "", "d e", "f"], ["c zebra", "", "", "a"]
    found = make(nbest=2).translate_window(lines, demands=asked(*prefixes))
    assert all(c.text.split()[:2] == ["c", "zebra"] for c in found[0].candidates)
    assert found[3].text.split()[0] == "a"
    assert texts(found)[1:3] == texts(make(nbest=2).translate_window(lines))[1:3]


def test_of_a_line_in_pieces_the_first_begins_with_the_prefix():
    line = ["a b c d e f g"]
    plain = make(max_source=3).translate_window(line)[0].text
    found = make(max_source=3).translate_window(line, demands=asked("j"))[0].text
    assert found.split()[0] == "j" != plain.split()[0]


def test_the_translation_that_is_read_as_context_has_its_prefix():
    documents = Documents([0], 2)
    found = heir().translate_window(["a", "b"], documents=documents, demands=asked("c", ""))
    assert found[0].text.split()[0] == "c"
    assert "c" in found[1].text.split()
    with_context = gossip(ContextRule("previous"))
    found = with_context.translate_window(["a b", "c"], documents=documents, demands=asked("", "i"))
    assert found[1].text.split() == ["i", "b"]


@pytest.mark.parametrize(
    ("lines", "prefixes", "message", "where"),
    [
        (["a", ""], ["", "b"], "the source line is blank", "the prefixes, line 2"),
        (["a"], ["a b c d e f g"], "7 subwords, but a translation of this line has at most 5", "1"),
    ],
)
def test_prefixes_that_no_translation_can_have(lines, prefixes, message, where):
    with pytest.raises(DataError, match=message) as caught:
        make().translate_window(lines, demands=asked(*prefixes))
    assert where in str(caught.value.where)


def test_a_set_with_prefixes_is_recorded(run, tmp_path, capsys):
    path = tmp_path / "prefixes"
    prefixes = ["the dog", "", "men", "", "", "", "two zebra"]
    path.write_text("\n".join(prefixes) + "\n")
    folder = translated(run)
    before = read_json(folder / "meta.json")
    assert "prefix" not in before
    translated(run, prefix=path)
    for prefix, subwords in zip(prefixes, read(folder / "hyp.subwords.txt"), strict=True):
        assert subwords.startswith(prefix)
    assert len(read_json(folder / "meta.json")["prefix"]) == 64
    capsys.readouterr()
    translated(run, prefix=path)
    assert "up to date" in capsys.readouterr().err
    path.write_text("\n".join(["it", *prefixes[1:]]) + "\n")
    translated(run, prefix=path)
    assert read(folder / "hyp.subwords.txt")[0].startswith("it")


def test_samples_of_a_set_do_not_depend_on_batches_and_jobs(run, capsys):
    folder = translated(run, sample=True, nbest=3, top_p=0.9, seed=7)
    settings = read_json(folder / "meta.json")["settings"]
    assert (settings["sample"], settings["seed"], settings["nbest"]) == (True, 7, 3)
    drawn = read_json_lines((folder / "nbest.jsonl").read_text())

    def same(**options):
        translated(run, sample=True, nbest=3, top_p=0.9, seed=7, force=True, **options)
        other = read_json_lines((folder / "nbest.jsonl").read_text())
        return [[c["text"] for c in line["nbest"]] for line in other] == [
            [c["text"] for c in line["nbest"]] for line in drawn
        ]

    assert same(assignments=["search.batch_size=1"]) and same(jobs=2)
    source = str(run.source("test"))
    capsys.readouterr()
    translate(run, source=source, systems=["one"], sample=True, nbest=3, top_p=0.9, seed=7, jobs=1)
    assert read_json_lines(capsys.readouterr().out) == drawn


def test_from_python(run):
    system = nmtkit.load(run.path, "one", device="cpu", sample=True, nbest=2)
    lines = [LINES[0], LINES[4]]
    first = system.translations(lines, prefix=["", "men"])
    assert first == system.translations(lines, prefix=["", "men"])
    assert all(c.subwords[0] == "men" for c in first[1].candidates)
    with pytest.raises(DataError, match="1 prefixes for 2 sources"):
        system.translate(lines, prefix=["men"])


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
def test_wrong_input_of_the_command(run, values, error, message, tmp_path):
    (tmp_path / "long").write_text("a\n" * 9)
    if "prefix" in values:
        values = {**values, "prefix": tmp_path / values["prefix"]}
    with pytest.raises(error, match=message):
        translated(run, **values)


def test_the_vocabulary_of_these_tests_lacks_the_word():
    assert "zebra" not in VOCABULARY
