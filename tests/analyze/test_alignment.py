"""Word alignments: gold files, the error rate against hand-made cases, words from subwords, the
stage on toy and real sets.
"""

import csv
import dataclasses
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nmtkit.analyze.alignment import Alignment, AlignmentOptions, of_head, select_sites
from nmtkit.analyze.study import Study
from nmtkit.data.batches import short_rows
from nmtkit.data.context import contexts
from nmtkit.data.pairs import GivenPairs
from nmtkit.errors import ConfigError, DataError
from nmtkit.measures import context_spread, recording
from nmtkit.measures.links import (
    Gold,
    as_subwords,
    check,
    counts,
    rates,
    read_gold,
    read_pairs,
    word_links,
)
from nmtkit.nn.capture import capture
from nmtkit.score.resampling import Draws
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate.forced import pair_batch
from tests.refused import refused

from .conftest import SMALL

DEEP = {**SMALL, "encoder_layers": 2, "decoder_layers": 3}


def gold(sure, possible=()):
    return Gold(frozenset(sure), frozenset(sure) | frozenset(possible))


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def test_gold_counts_from_one_and_a_link_that_is_both_is_sure(tmp_path):
    found = read_gold(write(tmp_path / "gold", "1-1 2p3 3p3 3-3", "", "4p1"))
    assert found == [gold({(0, 0), (2, 2)}, {(1, 2)}), gold(set()), gold(set(), {(3, 0)})]
    error = refused(DataError, "count from 1", read_gold, write(tmp_path / "gold", "1-1", "0-1"))
    assert error.where.endswith("line 2") and error.hint
    refused(DataError, "count from 1: '1:2'", read_gold, write(tmp_path / "gold", "1-1 1:2"))


def rates_of(links, golds):
    """The rates over a set, without their intervals."""
    counted = np.array([*map(counts, links, golds)])
    found = rates(counted, Draws(len(golds), 10))
    return (found.links, *(share.value for share in found[1:]))


def links_of(text, kinds="-p"):
    """The links of a sentence: i-j if sure, ipj if possible, counted from 1."""
    return frozenset((int(i) - 1, int(j) - 1) for i, kind, j in text.split() if kind in kinds)


@pytest.mark.parametrize(
    ("links", "golds", "error", "precision", "recall"),
    [
        (["1-1 2-2"], ["1-1 2-2"], 0, 1, 1),
        (["1-2 2-1"], ["1-1 2-2"], 1, 0, 0),
        (["1-1 2-2"], ["1-1 2p2"], 0, 1, 1),  # a possible link costs nothing
        (["1-1"], ["1-1 2p2"], 0, 1, 1),  # nor does leaving it out
        (["1-1 1-2 3-3"], ["1-1 2-2 1p2"], 2 / 5, 2 / 3, 1 / 2),
        (["1-1", ""], ["1-1", "1-1 2-2 3-3"], 3 / 5, 1, 1 / 4),  # over the set, not its lines
        ([""], ["1-1"], 1, None, 0),
        (["4-4"], ["4p4"], 0, 1, None),
        ([""], [""], None, None, None),
    ],
)
def test_error_rate_of_cases_made_by_hand(links, golds, error, precision, recall):
    wanted = [Gold(links_of(text, "-"), links_of(text)) for text in golds]
    percent = [None if share is None else 100 * share for share in (precision, recall, error)]
    count = sum(len(line.split()) for line in links)
    found = rates_of([links_of(line) for line in links], wanted)
    assert found == pytest.approx((count, *percent))


def test_error_rates_of_many_pairs_have_intervals_of_a_slow_bootstrap():
    rng = np.random.default_rng(3)
    cells = [(i, j) for i in range(4) for j in range(4)]

    def drawn():
        return frozenset(link for link in cells if rng.random() < 0.3)

    links, golds = [drawn() for _ in range(12)], [gold(drawn(), drawn()) for _ in range(12)]
    whole = rates(np.array([*map(counts, links, golds)]), Draws(12, 50)).error
    draws = np.random.default_rng(1).integers(0, 12, (50, 12))
    samples = [rates_of([links[i] for i in d], [golds[i] for i in d])[-1] for d in draws]
    assert (whole.low, whole.high) == pytest.approx(tuple(np.quantile(samples, [0.025, 0.975])))


def test_links_that_do_not_belong_to_the_sentences_are_refused(tmp_path):
    pairs = read_pairs(write(tmp_path / "pairs", "a b   ||| A  ", "c ||| C D"))
    assert pairs == [(["a", "b"], ["A"]), (["c"], ["C", "D"])]
    sizes = [(2, 1), (1, 2)]
    check([gold({(1, 0)}), gold({}, {(0, 1)})], sizes, "gold")
    one = [gold({(1, 0)})]
    assert refused(DataError, "1 lines of links for 2", check, one, sizes, "gold").hint
    with pytest.raises(DataError, match="a link of words 1 and 2 where there are 2 and 1") as error:
        check([gold({(0, 1)}), gold({(0, 1)})], sizes, "gold")
    assert error.value.where == "gold, line 1"
    with pytest.raises(DataError, match="not a sentence pair"):
        read_pairs(write(tmp_path / "pairs", "a b ||| A ||| b"))


def slow_links(weights, src, tgt):
    links = set()
    for j in sorted(set(tgt)):
        sums = dict.fromkeys(sorted(set(src)), 0)
        for row, own in zip(weights, tgt, strict=False):
            for weight, i in zip(row, src, strict=False):
                sums[i] += weight * (own == j)
        links.add((max(sums, key=sums.get), j))
    return links


def test_subwords_are_summed_onto_words():
    weights = torch.tensor(
        [[0.3, 0.25, 0.25, 0.2], [0.1, 0.1, 0.0, 0.8], [0.0, 0.0, 0.1, 0.9]]
    )  # the last row and column are </s>
    assert word_links(weights, [0, 1, 1], [0, 0]) == {(1, 0)}
    assert word_links(weights, [0, 2, 2], [0, 1]) == {(2, 0), (0, 1)}  # nothing is left of word 1
    assert word_links(weights, [], [0]) == word_links(weights, [0], []) == frozenset()
    rng = random.Random(1)
    for _ in range(50):
        src, tgt = (sorted(rng.choices(range(6), k=rng.randint(1, 9))) for _ in range(2))
        drawn = torch.rand(len(tgt) + 1, len(src) + 1, dtype=torch.float64)
        assert word_links(drawn, src, tgt) == slow_links(drawn.tolist(), src, tgt)
    side = SimpleNamespace(
        tokenized=str,
        truecaser=SimpleNamespace(truecase=lambda tokens: [token.lower() for token in tokens]),
        subwords=lambda tokens: (tokens, range(len(tokens))),
    )
    found = as_subwords(side, SimpleNamespace(encode=list), [["Ein", "Hund"]])
    assert found == ([["ein", "hund"]], [[0, 1]])


@pytest.fixture
def goldset(tmp_path):
    """Three pairs in words of the vocabulary, with links."""
    pairs = write(tmp_path / "pairs", "w1 w2 w3 ||| w4 w5", "w6 ||| w7 w8 w9", "w1 w9 ||| w2 w2")
    return ",".join(map(str, (write(tmp_path / "gold", "1-1 2p2", "1-1 1-2", "2-1 1-2"), pairs)))


def third_line(analysed):
    """The third pair of the test set, whose words are all w1."""
    ids = [5] * len(analysed.lines["test"][2].split()) + [2]
    return pair_batch([ids], [ids])


def stored_weights(analysed, label):
    """Columns, rows and weights that an analysis keeps of an attention."""
    text = analysed.text("alignment", f"weights.{label}.csv")
    header, *rows = csv.reader(text.splitlines())
    weights = torch.tensor([[float(value) for value in row[1:]] for row in rows])
    return header[1:], [row[0] for row in rows], weights


def test_error_rate_and_spread_of_every_layer_by_one_pair_at_a_time(analysed, goldset, stdout):
    """The contexts whose spread is measured are α·V."""
    model = analysed.system(model=DEEP)
    rows = analysed.rows("alignment", gold=goldset)
    assert [row["attention"] for row in rows] == [f"decoder.{i}.cross" for i in range(3)]
    links_path, pairs_path = goldset.split(",")
    wanted, pairs = read_gold(links_path), read_pairs(pairs_path)
    vocabulary = load_vocabularies(analysed.run.prep)[0]
    for layer, row in enumerate(rows):
        links, spreads = [], []
        for src, tgt in pairs:
            batch = pair_batch([vocabulary.encode(src)], [vocabulary.encode(tgt)])
            with torch.inference_mode(), capture() as seen:
                memory = model.encode(batch)
                model.decode(batch.tgt_in, memory)
            alpha = seen[row["attention"]][0]
            best = alpha[0, :, : len(tgt), : len(src)].mean(0).argmax(1)
            links.append({(i, j) for j, i in enumerate(best.tolist())})
            values = memory["layers"][layer]["source"][1]  # (1, H, S, C)
            steps = (alpha @ values).transpose(1, 2).flatten(2)
            spreads.append(context_spread.spread(steps, batch.tgt_lengths).item())
        assert row["aer"]["value"] == pytest.approx(rates_of(links, wanted)[-1])
        assert row["links"] == 7
        spread = row["context_spread"]
        assert spread["value"] == pytest.approx(sum(spreads) / len(spreads), rel=1e-4)
        assert len(pairs) < 10 and spread["low"] is spread["high"] is None
    out = stdout()
    assert "base, decoder.1.cross" in out  # the last layer but one is drawn
    columns, steps, _ = stored_weights(analysed, "base.decoder.1.cross")
    assert (columns, steps) == (["w1", "w2", "w3", "</s>"], ["w4", "w5", "</s>"])
    assert "lower is better" in out and "3 sentence pairs" in out


def test_pairs_that_are_too_long_to_read_do_not_count(analysed, goldset, monkeypatch):
    analysed.system(model=DEEP)
    links = [row["links"] for row in analysed.rows("alignment", gold=goldset, head=1)]
    monkeypatch.setattr(
        recording, "short_rows", partial(short_rows, most=3)
    )  # of 4, 4 and 3 subwords
    finding = analysed.analyze("alignment", gold=goldset, head=1, sentence=3, force=True)
    assert links == [7] * 3 and [row["links"] for row in finding["table"]["rows"]] == [2] * 3
    assert {row["recall"]["value"] for row in finding["table"]["rows"]} <= {0, 50, 100}
    assert "base: 2 sentences left out, too long to be read" in finding["table"]["notes"]


def test_pairs_that_no_system_can_read_are_noted(analysed, tmp_path):
    analysed.system(model=DEEP)
    pairs = write(tmp_path / "pairs", "w1 xyzzy ||| w4 w5")
    gold = f"{write(tmp_path / 'gold', '1-1')},{pairs}"
    notes = analysed.analyze("alignment", gold=gold)["table"]["notes"]
    assert "unknown subwords: 33.3% of the sources, 0.0% of the targets" in notes[-1]


def test_a_sentence_of_a_set_as_figure_and_text(analysed, stdout):
    model = analysed.system(model=DEEP)
    steps = analysed.rows("alignment", sentence=3, layer="3", head=2)
    batch = third_line(analysed)
    seen = recording.look(model, batch)["decoder"]
    weights = seen["decoder.2.cross"][0, 1]
    columns, rows, stored = stored_weights(analysed, "base.decoder.2.cross")
    assert columns == rows == ["w1"] * (batch.src.size(1) - 1) + ["</s>"]
    torch.testing.assert_close(stored, weights, rtol=1e-5, atol=1e-7)
    assert [row["weight"] for row in steps] == pytest.approx(weights.amax(1).tolist(), rel=1e-5)
    assert "base, decoder.2.cross" in analysed.text("alignment")
    assert "head 2" in stdout()


@pytest.mark.parametrize(
    ("variant", "settings", "site"),
    [
        ("full-dc", DEEP, "encoder.1.attention.local"),
        ("full-dc", DEEP, "decoder.2.attention.global"),
        ("pr", DEEP, "decoder.0.phrases.attention"),
        ("rnnsearch", {"d_hidden": 16}, "attention"),
    ],
)
def test_any_attention_of_any_variant_by_its_name(analysed, variant, settings, site):
    analysed.system("own", variant, settings)
    table = analysed.analyze("alignment", layer=site, sentence=2)["table"]
    steps = table["rows"]
    # Only the last of these attentions has a query for each token that is written.
    assert bool(table["notes"]) is (variant == "rnnsearch")
    assert {row["attention"] for row in steps} == {site}
    _, rows, weights = stored_weights(analysed, f"own.{site}")
    assert weights.sum(1).tolist() == pytest.approx([1] * len(rows), rel=1e-5)


@pytest.mark.parametrize("variant", ["concat", "amn"])
def test_a_sentence_is_read_with_its_context(analysed, variant):
    """As translation reads it; where context and source are one text, its tokens name the
    columns.
    """
    model = analysed.system("own", variant)
    (analysed.run.prep / "docs").mkdir()
    write(analysed.run.prep / "docs" / "test.txt", "0")
    analysed.analyze("alignment", sentence=3)
    before, own = (["w1"] * len(analysed.lines["test"][i].split()) for i in (1, 2))
    texts = {0: np.array([5] * len(before) + [2])}
    context = contexts([[0]], texts.__getitem__, model.context_rule)
    batch = dataclasses.replace(third_line(analysed), context=context)
    weights = recording.look(model, batch)["decoder"]["decoder.0.cross"][0].mean(0)
    columns, _, stored = stored_weights(analysed, "own.decoder.0.cross")
    foreign = {**SMALL, "inter_attention": False, "context": "foreign"}
    study = Study(analysed.run, "alignment", ["own"], ["test"])
    ids = [[5, 2]] * 3
    other = analysed.system("other", "amn", foreign)
    (given,) = study.batches("other", other, None, GivenPairs(ids, ids), with_context=False)
    assert given.context is None  # pairs of other texts have none
    assert columns == [*([*before, "####"] if variant == "concat" else []), *own, "</s>"]
    torch.testing.assert_close(stored, weights, rtol=1e-5, atol=1e-7)


def test_a_system_without_the_layer_or_the_head_is_left_out(analysed):
    analysed.system("deep", model=DEEP | {"heads": 4})
    analysed.system("shallow", model=SMALL)
    for options, reason in (({"layer": "3"}, "no layer '3'"), ({"head": 4}, "no head 4")):
        study = Study(analysed.run, "alignment", ["deep", "shallow"], [])
        aligned = Alignment(AlignmentOptions(**options)).measure(study)
        assert [drawn.system for drawn in aligned.drawn] == ["deep"]
        assert study.left_out["shallow"].startswith(reason)


def test_what_is_not_there_is_said(analysed, goldset):
    model = analysed.system(model=DEEP)
    for options, words in (
        ({"layer": "4"}, "base: no layer '4', known: 1, 2, 3"),
        ({"layer": "decoder.1.cros"}, "no layer 'decoder.1.cros', did you mean 'decoder.1.cross'"),
        ({"layer": "encoder.0.attention", "gold": goldset}, "not an attention from the target"),
        ({"head": 3}, "base: no head 3, there are 2 heads"),
    ):
        analysed.refused("alignment", DataError, words, **options)
    for options, words in (
        ({"gold": goldset, "sentence": 4}, "no line 4: there are 3"),
        ({"gold": "one"}, "expected two files"),
        ({"gold": goldset, "set_names": ["test"]}, "--gold already names"),
    ):
        analysed.refused("alignment", ConfigError, words, **options)
    words = "no line 41: there are 40"
    assert analysed.refused("alignment", ConfigError, words, sentence=41).hint == "1 to 40"
    site = "decoder.0.attention"
    assert list(select_sites(model, site, False)) == [site]
    assert of_head(torch.tensor([[[[0.0]], [[1.0]]]]), 0).item() == 0.5


def test_words_of_a_published_set_keep_their_subwords(shared, multi30k_run):
    folder = shared / "data" / "word_alignment_gold"
    both, wanted = read_pairs(folder / "roen.src-tgt"), read_gold(folder / "roen.gold")
    check(wanted, [tuple(map(len, pair)) for pair in both], "roen")
    assert rates_of([own.sure for own in wanted], wanted)[-1] == 0
    _, pairs = zip(*both, strict=True)
    side = TextSide.load(multi30k_run.prep, "src")  # English
    vocabulary = load_vocabularies(multi30k_run.prep)[0]
    all_ids, all_owners = as_subwords(side, vocabulary, pairs)
    for words, ids, owners in zip(pairs, all_ids, all_owners, strict=True):
        assert len(ids) == len(owners) + 1
        assert sorted(set(owners)) == list(range(len(words)))  # none is lost
        assert owners == sorted(owners)
    assert max(map(len, all_owners)) > max(map(len, pairs))
