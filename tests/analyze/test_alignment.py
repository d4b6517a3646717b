"""Word alignments: gold files, error rates, links of words from subword weights, the analysis."""

import csv
import dataclasses
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nmtkit.analyze.alignment import Alignment, AlignmentOptions
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

from .conftest import SMALL, AnalysedRun

DEEP = {**SMALL, "encoder_layers": 2, "decoder_layers": 3}


def gold(sure, possible=()):
    return Gold(frozenset(sure), frozenset(sure) | frozenset(possible))


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def test_gold_links_count_from_one_and_a_sure_and_possible_link_is_sure(tmp_path):
    links = read_gold(write(tmp_path / "gold", "1-1 2p3 3p3 3-3", "", "4p1"))
    assert links == [gold({(0, 0), (2, 2)}, {(1, 2)}), gold(set()), gold(set(), {(3, 0)})]
    error = refused(DataError, "count from 1", read_gold, write(tmp_path / "gold", "1-1", "0-1"))
    assert error.where.endswith("line 2") and error.hint
    refused(DataError, "count from 1: '1:2'", read_gold, write(tmp_path / "gold", "1-1 1:2"))


def rates_of(links, golds):
    """Return the number of links, precision, recall and error rate of a set."""
    totals = rates(np.array([*map(counts, links, golds)]), Draws(len(golds), 10))
    return (totals.links, *(share.value for share in totals[1:]))


def links_of(text, kinds="-p"):
    """Parse the links of a sentence: i-j if sure, ipj if possible, counted from 1."""
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
def test_error_rates_equal_those_computed_by_hand(links, golds, error, precision, recall):
    wanted = [Gold(links_of(text, "-"), links_of(text)) for text in golds]
    percent = [None if share is None else 100 * share for share in (precision, recall, error)]
    count = sum(len(line.split()) for line in links)
    measured = rates_of([links_of(line) for line in links], wanted)
    assert measured == pytest.approx((count, *percent))


def test_intervals_of_error_rates_equal_a_slow_bootstrap():
    rng = np.random.default_rng(3)
    cells = [(i, j) for i in range(4) for j in range(4)]

    def drawn():
        return frozenset(link for link in cells if rng.random() < 0.3)

    links, golds = [drawn() for _ in range(12)], [gold(drawn(), drawn()) for _ in range(12)]
    whole = rates(np.array([*map(counts, links, golds)]), Draws(12, 50)).error
    draws = np.random.default_rng(1).integers(0, 12, (50, 12))
    samples = [rates_of([links[i] for i in d], [golds[i] for i in d])[-1] for d in draws]
    assert (whole.low, whole.high) == pytest.approx(tuple(np.quantile(samples, [0.025, 0.975])))


def test_links_outside_their_sentence_pairs_are_refused(tmp_path):
    pairs = read_pairs(write(tmp_path / "pairs", "a b   ||| A  ", "c ||| C D"))
    assert pairs == [(["a", "b"], ["A"]), (["c"], ["C", "D"])]
    sizes = [(2, 1), (1, 2)]
    check([gold({(1, 0)}), gold({}, {(0, 1)})], sizes, "gold")
    links = [gold({(1, 0)})]
    assert refused(DataError, "1 line of links for 2", check, links, sizes, "gold").hint
    assert refused(DataError, "no lines of links", check, [], [], "gold").where == "gold"
    message = "a link of words 1 and 2, but the sentences have 2 and 1 words"
    error = refused(DataError, message, check, [gold({(0, 1)})] * 2, sizes, "gold")
    assert error.where == "gold, line 1"
    bad = write(tmp_path / "pairs", "a b ||| A ||| b")
    refused(DataError, "not a sentence pair", read_pairs, bad)


def slow_links(weights, src, tgt):
    """Link each target word to the source word with the largest sum of subword weights."""
    links = set()
    for j in sorted(set(tgt)):
        sums = dict.fromkeys(sorted(set(src)), 0)
        for row, word in zip(weights, tgt, strict=False):
            for weight, i in zip(row, src, strict=False):
                sums[i] += weight * (word == j)
        links.add((max(sums, key=sums.get), j))
    return links


@pytest.mark.parametrize(
    ("src", "tgt", "links"),
    [
        ([0, 1, 1], [0, 0], {(1, 0)}),
        ([0, 2, 2], [0, 1], {(2, 0), (0, 1)}),  # source word 1 has no subwords
        ([], [0], set()),
        ([0], [], set()),
    ],
)
def test_word_links_sum_the_weights_of_subwords_without_end_of_sentence(src, tgt, links):
    weights = torch.tensor(
        [[0.3, 0.25, 0.25, 0.2], [0.1, 0.1, 0.0, 0.8], [0.0, 0.0, 0.1, 0.9]]
    )  # the last row and column are </s>
    assert word_links(weights, src, tgt) == links


def test_word_links_equal_a_slow_loop():
    rng = random.Random(1)
    for _ in range(50):
        src, tgt = (sorted(rng.choices(range(6), k=rng.randint(1, 9))) for _ in range(2))
        weights = torch.rand(len(tgt) + 1, len(src) + 1, dtype=torch.float64)
        assert word_links(weights, src, tgt) == slow_links(weights.tolist(), src, tgt)


def test_words_of_gold_pairs_are_truecased():
    side = SimpleNamespace(
        tokenized=str,
        truecaser=SimpleNamespace(truecase=lambda tokens: [token.lower() for token in tokens]),
        subwords=lambda tokens: (tokens, range(len(tokens))),
    )
    subwords = as_subwords(side, SimpleNamespace(encode=list), [["Ein", "Hund"]])
    assert subwords == ([["ein", "hund"]], [[0, 1]])


def write_gold(folder):
    """Write three pairs in words of the vocabulary and their links; return the value of --gold."""
    pairs = write(folder / "pairs", "w1 w2 w3 ||| w4 w5", "w6 ||| w7 w8 w9", "w1 w9 ||| w2 w2")
    return f"{write(folder / 'gold', '1-1 2p2', '1-1 1-2', '2-1 1-2')},{pairs}"


@pytest.fixture
def goldset(tmp_path):
    return write_gold(tmp_path)


def third_line(analysed):
    """Return a batch of the third pair of the test set, whose words are all w1."""
    ids = [5] * len(analysed.lines["test"][2].split()) + [2]
    return pair_batch([ids], [ids])


def stored_weights(analysed, label):
    """Return columns, rows and weights of an attention from the stored file."""
    text = analysed.text("alignment", f"weights.{label}.csv")
    header, *rows = csv.reader(text.splitlines())
    weights = torch.tensor([[float(value) for value in row[1:]] for row in rows])
    return header[1:], [row[0] for row in rows], weights


@pytest.fixture(scope="module")
def aligned(tmp_path_factory):
    """Analyse gold pairs; add the gold links and, for each row, what single pairs record:
    (row, [(attention weights, context vectors α·V, target lengths)]).
    """
    folder = tmp_path_factory.mktemp("aligned")
    goldset, analysed = write_gold(folder), AnalysedRun(folder / "run")
    model = analysed.system(model=DEEP)
    rows = analysed.rows("alignment", gold=goldset)
    assert [row["attention"] for row in rows] == [f"decoder.{i}.cross" for i in range(3)]
    vocabulary = load_vocabularies(analysed.run.prep)[0]
    recorded = [[] for _ in rows]
    for src, tgt in read_pairs(folder / "pairs"):
        batch = pair_batch([vocabulary.encode(src)], [vocabulary.encode(tgt)])
        with torch.inference_mode(), capture() as seen:
            memory = model.encode(batch)
            model.decode(batch.tgt_in, memory)
        for layer, row in enumerate(rows):
            alpha = seen[row["attention"]][0]
            values = memory["layers"][layer]["source"][1]  # (1, H, S, C)
            contexts = (alpha @ values).transpose(1, 2).flatten(2)
            recorded[layer].append((alpha[0, :, :-1, :-1], contexts, batch.tgt_lengths))
    analysed.by_row = list(zip(rows, recorded, strict=True))
    analysed.gold = read_gold(folder / "gold")
    return analysed


def test_error_rate_of_each_layer_equals_that_of_single_pairs(aligned):
    for row, recorded in aligned.by_row:
        best = [alpha.mean(0).argmax(1).tolist() for alpha, _, _ in recorded]
        links = [{(i, j) for j, i in enumerate(sentence)} for sentence in best]
        assert row["aer"]["value"] == pytest.approx(rates_of(links, aligned.gold)[-1])
        assert row["links"] == 7
    table = aligned.text("alignment", "table.md")
    assert "lower is better" in table and "(gold, 3 sentence pairs)" in table


def test_context_spread_of_each_layer_equals_that_of_single_pairs(aligned):
    for row, recorded in aligned.by_row:
        spreads = [context_spread.spread(*contexts).item() for _, *contexts in recorded]
        spread = row["context_spread"]
        assert spread["value"] == pytest.approx(sum(spreads) / len(spreads), rel=1e-4)
        assert spread["low"] is spread["high"] is None  # fewer than 10 pairs


def test_last_layer_but_one_is_drawn_on_the_first_gold_pair(aligned):
    assert "base, decoder.1.cross" in aligned.text("alignment")
    columns, steps, _ = stored_weights(aligned, "base.decoder.1.cross")
    assert (columns, steps) == (["w1", "w2", "w3", "</s>"], ["w4", "w5", "</s>"])


def test_pairs_too_long_to_read_do_not_count(analysed, goldset, monkeypatch):
    analysed.system(model=DEEP)
    links = [row["links"] for row in analysed.rows("alignment", gold=goldset, head=1)]
    monkeypatch.setattr(
        recording, "short_rows", partial(short_rows, most=3)
    )  # of 4, 4 and 3 subwords
    finding = analysed.analyze("alignment", gold=goldset, head=1, sentence=3, force=True)
    assert links == [7] * 3 and [row["links"] for row in finding["table"]["rows"]] == [2] * 3
    assert {row["recall"]["value"] for row in finding["table"]["rows"]} <= {0, 50, 100}
    assert "base: 2 sentences left out, too long to be read" in finding["table"]["notes"]


def test_unknown_subwords_of_gold_pairs_are_noted(analysed, tmp_path):
    analysed.system(model=DEEP)
    pairs = write(tmp_path / "pairs", "w1 xyzzy ||| w4 w5")
    gold = f"{write(tmp_path / 'gold', '1-1')},{pairs}"
    notes = analysed.analyze("alignment", gold=gold)["table"]["notes"]
    assert "unknown subwords: 33.3% of the sources, 0.0% of the targets" in notes[-1]


def test_weights_of_a_sentence_are_stored_drawn_and_printed(analysed, stdout):
    model = analysed.system(model=DEEP)
    steps = analysed.rows("alignment", sentence=3, layer="3", head=2)
    batch = third_line(analysed)
    weights = recording.look(model, batch)["decoder"]["decoder.2.cross"][0, 1]
    columns, rows, stored = stored_weights(analysed, "base.decoder.2.cross")
    assert columns == rows == ["w1"] * (batch.src.size(1) - 1) + ["</s>"]
    torch.testing.assert_close(stored, weights, rtol=1e-5, atol=1e-7)
    assert [row["weight"] for row in steps] == pytest.approx(weights.amax(1).tolist(), rel=1e-5)
    panel = analysed.figure("alignment")["panels"]["base, decoder.2.cross"]
    torch.testing.assert_close(torch.tensor(panel["values"]), weights)
    assert (panel["rows"], panel["columns"]) == (rows, columns)
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
def test_any_attention_can_be_selected_by_name(analysed, variant, settings, site):
    analysed.system("base", variant, settings)
    table = analysed.analyze("alignment", layer=site, sentence=2)["table"]
    # Only the last of these attentions has a query for each token that is written.
    assert bool(table["notes"]) is (variant == "rnnsearch")
    assert {row["attention"] for row in table["rows"]} == {site}
    _, rows, weights = stored_weights(analysed, f"base.{site}")
    assert weights.sum(1).tolist() == pytest.approx([1] * len(rows), rel=1e-5)


@pytest.mark.parametrize("variant", ["concat", "amn"])
def test_sentence_is_read_with_its_context(analysed, variant):
    model = analysed.system("doc", variant)
    (analysed.run.prep / "docs").mkdir()
    write(analysed.run.prep / "docs" / "test.txt", "0")
    analysed.analyze("alignment", sentence=3)
    before, source = (["w1"] * len(analysed.lines["test"][i].split()) for i in (1, 2))
    texts = {0: np.array([5] * len(before) + [2])}
    context = contexts([[0]], texts.__getitem__, model.context_rule, texts.__getitem__)
    batch = dataclasses.replace(third_line(analysed), context=context)
    weights = recording.look(model, batch)["decoder"]["decoder.0.cross"][0].mean(0)
    columns, _, stored = stored_weights(analysed, "doc.decoder.0.cross")
    joined = [*before, "####"] if variant == "concat" else []  # context and source are one text
    assert columns == [*joined, *source, "</s>"]
    torch.testing.assert_close(stored, weights, rtol=1e-5, atol=1e-7)


def test_gold_pairs_are_read_without_context(analysed):
    model = analysed.system("doc", "amn", SMALL | {"inter_attention": False, "context": "foreign"})
    study, ids = Study(analysed.run, "alignment", ["doc"], ["test"]), [[5, 2]] * 3
    (batch,) = study.batches("doc", model, None, GivenPairs(ids, ids), with_context=False)
    assert batch.context is None


def test_systems_without_the_layer_or_head_are_left_out(analysed):
    analysed.system("deep", model=DEEP | {"heads": 4})
    analysed.system("shallow", model=SMALL)
    for options, reason in (({"layer": "3"}, "no layer '3'"), ({"head": 4}, "no head 4")):
        study = Study(analysed.run, "alignment", ["deep", "shallow"], [])
        aligned = Alignment(AlignmentOptions(**options)).measure(study)
        assert [drawn.system for drawn in aligned.drawn] == ["deep"]
        assert study.left_out["shallow"].startswith(reason)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "4"}, "base: no layer '4', known: 1, 2, 3"),
        ({"layer": "decoder.1.cros"}, "no layer 'decoder.1.cros', did you mean 'decoder.1.cross'"),
        ({"layer": "encoder.0.attention", "gold": True}, "not an attention from the target"),
        ({"head": 3}, "base: no head 3; it has 2 heads"),
    ],
)
def test_missing_layers_and_heads_are_refused(analysed, goldset, options, message):
    analysed.system(model=DEEP)
    gold = {"gold": goldset} if options.get("gold") else {}
    analysed.refused("alignment", DataError, message, **options | gold)


def test_missing_lines_and_bad_gold_options_are_refused(analysed, goldset):
    analysed.system(model=DEEP)
    for options, message in (
        ({"gold": goldset, "sentence": 4}, "no line 4: there are 3"),
        ({"gold": "one"}, "expected two files"),
        ({"gold": goldset, "set_names": ["test"]}, "--gold already names"),
    ):
        analysed.refused("alignment", ConfigError, message, **options)
    message = "no line 41: there are 40"
    assert analysed.refused("alignment", ConfigError, message, sentence=41).hint == "1 to 40"


def test_every_word_of_a_published_set_has_subwords(shared, multi30k_run):
    folder = shared / "data" / "word_alignment_gold"
    pairs, gold = read_pairs(folder / "roen.src-tgt"), read_gold(folder / "roen.gold")
    check(gold, [tuple(map(len, pair)) for pair in pairs], "roen")
    assert rates_of([links.sure for links in gold], gold)[-1] == 0
    _, english = zip(*pairs, strict=True)
    side = TextSide.load(multi30k_run.prep, "src")
    vocabulary = load_vocabularies(multi30k_run.prep)[0]
    all_ids, all_owners = as_subwords(side, vocabulary, english)
    for words, ids, owners in zip(english, all_ids, all_owners, strict=True):
        assert len(ids) == len(owners) + 1
        assert sorted(set(owners)) == list(range(len(words)))
        assert owners == sorted(owners)
    assert max(map(len, all_owners)) > max(map(len, english))
