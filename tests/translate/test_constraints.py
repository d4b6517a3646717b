"""Phrases that must appear: the search against its definition, lines, files and Python."""

import itertools

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from test_beam import assert_same, options, score, slow_search
from test_stage import read, read_json, translated
from test_translator import heir, make, texts
from toy_models import batch_of, of_prefixes, recurrent, sources

import nmtkit
from nmtkit.data.documents import Documents
from nmtkit.errors import ConfigError, DataError, NmtkitError
from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.translate.beam import search
from nmtkit.translate.demands import Demand, LineDemand
from nmtkit.translate.methods import decode

pytestmark = pytest.mark.usefixtures("each_path")


def occurrences(ids, phrase, unfinished):
    return sum(
        ids[i : i + len(phrase)] == phrase and (i == 0 or ids[i - 1] not in unfinished)
        for i in range(len(ids) - len(phrase) + 1)
    )


def lacks(ids, phrases, unfinished):
    return [p for p in set(phrases) if occurrences(ids, p, unfinished) < phrases.count(p)]


def coverage(ids, phrases, unfinished):
    """The definition at the top of constraints.py, from all tokens of a hypothesis."""
    total = sum(
        len(p) * min(phrases.count(p), occurrences(ids, p, unfinished)) for p in set(phrases)
    )
    begun = [0]
    for phrase in lacks(ids, phrases, unfinished):
        for n in range(1, min(len(phrase), len(ids) + 1)):
            before = ids[: len(ids) - n]
            if ids[len(ids) - n :] == phrase[:n] and not (before and before[-1] in unfinished):
                begun.append(n)
    return total + max(begun)


def slow_constrained(models, source, o, phrases, unfinished=(), forced=()):
    """All tokens as candidates, rounds over lists; no stop before the last slot is used."""
    limit = max(1, int(o.max_length_a * len(source) + o.max_length_b))
    live, ended, slots = [((), 0.0)], [], o.beam
    for length in range(1, limit + 1):
        candidates, rows = [], of_prefixes(models, source, [prefix for prefix, _ in live])
        for beam, ((prefix, log_p), row) in enumerate(zip(live, rows, strict=True)):
            for t in range(len(row)):
                ids = (*prefix, t)
                possible = t not in (PAD, BOS) and forced[length - 1 : length] in ((), (t,))
                if possible and not (t == EOS and lacks(prefix, phrases, unfinished)):
                    candidates.append((-(log_p + row[t]), beam, t, ids))
        groups = {}
        for candidate in sorted(candidates):
            groups.setdefault(coverage(candidate[3], phrases, unfinished), []).append(candidate)
        rounds = itertools.zip_longest(*(groups[c] for c in sorted(groups, reverse=True)))
        kept = [c for c in itertools.chain.from_iterable(rounds) if c is not None][:slots]
        live = []
        for cost, _, token, ids in sorted(kept):
            if token == EOS or length == limit:
                ended.append((token == EOS, score(length, -cost, o.length_penalty), ids, -cost))
                slots -= 1
            else:
                live.append((ids, -cost))
        if not live:
            break
    complete = [row for row in ended if not lacks(row[2], phrases, unfinished)]
    ranked = sorted(complete or ended, key=lambda row: (not row[0], -row[1]))[: o.nbest]
    return [(end, s, ids[:-1] if end else ids, p) for end, s, ids, p in ranked]


@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(8, 30),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    beam=st.integers(1, 6),
    eos_bias=st.sampled_from([-2.0, 0.0, 2.0]),
    data=st.data(),
)
@examples(max_examples=20, deadline=None)
def test_the_search_is_the_slow_search(seed, vocabulary, lengths, beam, eos_bias, data):
    models = [
        recurrent(seed + i, vocabulary, eos_bias=eos_bias)
        for i in range(data.draw(st.integers(1, 2)))
    ]
    ids = sources(seed, vocabulary, lengths)
    token = st.integers(EOS + 2, EOS + 4)  # few, so that phrases repeat and overlap
    phrase = st.lists(token, min_size=1, max_size=3).map(tuple)
    unfinished = frozenset(data.draw(st.sets(st.integers(EOS + 4, vocabulary - 1), max_size=3)))
    demands = [
        Demand(
            (i,),
            tuple(data.draw(st.lists(token, max_size=2))),
            tuple(data.draw(st.lists(phrase, max_size=3))),
            unfinished,
        )
        for i in range(len(ids))
    ]
    o = options(beam, a=0.5, b=12, nbest=data.draw(st.integers(1, beam)))
    found = decode(models, batch_of(ids), o, demands)
    for of_sentence, source, demand in zip(found, ids, demands, strict=True):
        slow = slow_constrained(models, source, o, demand.phrases, unfinished, demand.prefix)
        assert_same(of_sentence, slow)
        if not unfinished:
            assert not any(lacks(tuple(h.ids), demand.phrases, ()) for h in of_sentence)


def test_sentences_without_phrases_are_searched_as_beside_nothing():
    model, ids = recurrent(5, 40), sources(5, 40, [7, 3, 5])
    o = options(4, b=8, nbest=4)
    demands = [Demand((0,)), Demand((1,), phrases=((9, 10), (11,))), Demand((2,))]
    found = decode([model], batch_of(ids), o, demands)
    plain = search([model], batch_of(ids), o)
    assert [found[0], found[2]] == [plain[0], plain[2]] and found[1] != plain[1]
    for h in found[1]:
        assert 11 in h.ids and (9, 10) in itertools.pairwise(h.ids)


def test_without_phrases_the_definition_is_beam_search():
    models, source = [recurrent(8, 20)], sources(8, 20, [6])[0]
    o = options(4, nbest=4)
    assert slow_constrained(models, source, o, ()) == [
        (end, s, tuple(ids), p) for end, s, ids, p in slow_search(models, source, o)
    ]


def test_blocks_of_rows_have_their_own_phrases(monkeypatch):
    model, ids = recurrent(3, 40), sources(3, 40, [7, 3, 5])
    demands = [Demand((i,), phrases=((9 + i, 10),)) for i in range(3)]
    whole = decode([model], batch_of(ids), options(4, b=8), demands)
    monkeypatch.setattr("nmtkit.translate.steps.BLOCK_LOGITS", 40 * 5)  # 5 rows of the 12
    blocks = decode([model], batch_of(ids), options(4, b=8), demands)
    assert [[h.ids for h in s] for s in blocks] == [[h.ids for h in s] for s in whole]


def asked(*phrases):
    return [LineDemand(i, phrases=tuple(of_line)) for i, of_line in enumerate(phrases)]


def test_lines_have_their_phrases():
    lines = ["a b c", "", "d e", "f"]
    found = make(max_length_b=8).translate_window(lines, demands=asked(["j i", "c"], [], [], ["j"]))
    assert "j i" in found[0].text and "c" in found[0].text.split() and "j" in found[3].text.split()
    plain = make(max_length_b=8).translate_window(lines)
    assert texts(found)[1:3] == texts(plain)[1:3]


def test_the_translation_that_is_read_as_context_has_its_phrase():
    documents = Documents([0], 2)
    found = heir().translate_window(["a", "b"], documents=documents, demands=asked(["c"], []))
    assert "c" in found[0].text.split() and "c" in found[1].text.split()


@pytest.mark.parametrize(
    ("line", "phrase", "values", "message"),
    [
        ("", "b", {}, "the source line is blank"),
        ("a b c d", "b", {"max_source": 3}, "translated in pieces"),
        ("a", "b zebra", {}, "'zebra' is not in the vocabulary"),
        ("a", "a b c d e f g", {}, "7 subwords, but a translation of this line has at most 5"),
    ],
)
def test_phrases_that_no_translation_can_have(line, phrase, values, message):
    with pytest.raises(DataError, match=message) as caught:
        make(**values).translate_window([line], demands=asked([phrase]))
    assert "line 1" in str(caught.value.where)


@pytest.mark.parametrize("key", ["sample", "diverse_groups"])
def test_phrases_need_a_beam(key):
    values = {"sample": {"sample": True}, "diverse_groups": {"diverse_groups": 3}}[key]
    with pytest.raises(ConfigError, match="need a beam search") as caught:
        make(**values).translate_window(["a"], demands=asked(["b"]))
    assert key in str(caught.value.where)


@pytest.mark.parametrize(
    ("phrase", "values", "message"),
    [
        ("meadow", {"sample": True}, "need a beam search"),
        ("meadow", {"diverse_groups": 3}, "need a beam search"),
        ("zebra", {}, "'zebra' is not in the vocabulary"),
    ],
)
def test_phrases_of_a_later_line_are_refused_before_any_output(
    run, tmp_path, capsys, phrase, values, message
):
    source, phrases = tmp_path / "source", tmp_path / "phrases"
    source.write_text("a dog\n" * 10_001)
    phrases.write_text("\n" * 10_000 + f"{phrase}\n")
    with pytest.raises(NmtkitError, match=message):
        translated(run, set_names=[], source=str(source), constraints=phrases, **values)
    assert capsys.readouterr().out == ""


def test_a_set_with_phrases_is_recorded(run, tmp_path, capsys):
    path = tmp_path / "phrases"
    path.write_text("Two men\tmeadow\n\ngreen\n\n\n\nlook\n")
    folder = translated(run, constraints=path)
    hyps = read(folder / "hyp.txt")
    assert "meadow" in hyps[0].lower() and "green" in hyps[2].lower() and "look" in hyps[6].lower()
    assert len(read_json(folder / "meta.json")["constraints"]) == 64
    capsys.readouterr()
    translated(run, constraints=path, jobs=2)
    assert "up to date" in capsys.readouterr().err


def test_from_python(run):
    system = nmtkit.load(run.path, "one", device="cpu")
    assert system.translate([""], constraints=[[" "]]) == [""]
    (translation,) = system.translations(["two men"], constraints=[["green", "dog"]])
    assert {"green", "dog"} <= set(translation.subwords)
    for lists in ([["dog"]], []):
        with pytest.raises(DataError, match=f"{len(lists)} lists of phrases for 2 sources"):
            system.translate(["a", "b"], constraints=lists)
