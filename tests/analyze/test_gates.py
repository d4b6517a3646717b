"""Gates by word: subwords to words, groups and their means against loops, tags, the analysis."""

import itertools
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nmtkit import console
from nmtkit.analyze import gates
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError
from nmtkit.measures import recording
from nmtkit.measures import words as texts
from nmtkit.measures.words import Group, Words
from nmtkit.nn.capture import capture, record
from nmtkit.prep.stage import prep
from nmtkit.score.resampling import Draws
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import EOS, UNK, load_vocabularies
from nmtkit.translate.forced import pair_batch
from tests.models import contract
from tests.refused import refused
from tests.score.conftest import write
from tests.toy_recurrent import ToyRecurrent

from ..pair_writer import pair_writer
from ..word_side import WordSide
from .conftest import GATED, TOY, AnalysedRun

RESAMPLES = Draws(40, 100)


def mean(values):
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


@pytest.mark.parametrize(
    "case",
    [contract.Case("caru"), contract.Case("caru", (("caembed", "embed"),)), contract.Case("gatt")],
    ids=str,
)
def test_gates_of_subwords_do_not_depend_on_the_batch(case):
    model, pairs = case.build(), [*contract.pairs(), ([5, EOS], [EOS])]
    batch = contract.collate(pairs, more=2)
    seen = recording.look(model, batch)["decoder"]
    for site, side in gates.gates_of(model).items():
        in_batch = gates.subword_gates(seen[site], batch, site, side)
        for (src, tgt), values in zip(pairs, in_batch, strict=True):
            with torch.inference_mode(), capture() as alone:
                model.decode(torch.tensor([[1, *tgt[:-1]]]), model.encode(pair_batch([src], [tgt])))
            opened = alone[site][0][0].tolist()
            if side == "src":  # the mean over steps at which the gate is defined
                expected = [mean(step[i] for step in opened) for i in range(len(src) - 1)]
            else:  # of y_{t-1} the gate at step t, which reads it
                expected = opened[1 : len(tgt)]
            assert values.tolist() == pytest.approx(expected, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    ("variant", "settings", "wanted"),
    [
        ("caru", (), {"attention_gate": "src", "caembed_gate": "tgt"}),
        ("caru", (("caatt", False),), {"caembed_gate": "tgt"}),
        ("rnnsearch", (), {}),
        ("amn", (), {"memory.gate": "src"}),
        ("context-aware", (), {"context.gate": "src"}),
        ("concat", (), {}),
        (
            "han",
            (("side", "joint"),),
            {"encoder_context.gate": "src", "decoder_context.gate": "tgt"},
        ),
    ],
)
def test_gates_of_each_variant_and_their_sides_are_detected(variant, settings, wanted):
    assert gates.gates_of(contract.Case(variant, settings).build()) == wanted


def test_gate_of_unknown_shape_is_left_out_with_a_warning(monkeypatch, stderr):
    encode = ToyRecurrent.encode

    def gated(self, batch):
        states = self.src_embedding(batch.src)
        record("mean_gate", states.mean(-1))
        record("whole_gate", states)
        return encode(self, batch)

    monkeypatch.setattr(ToyRecurrent, "encode", gated)
    assert gates.gates_of(contract.Case(TOY).build()) == {"mean_gate": "src"}
    assert "gate 'whole_gate' left out" in stderr()


def test_attention_without_an_axis_of_heads_is_left_out_with_a_warning(monkeypatch, stderr):
    encode, decode = ToyRecurrent.encode, ToyRecurrent.decode

    def reading(self, tgt_in, memory, state=None):
        weights = torch.ones(*tgt_in.shape, memory["real"].size(1))
        record("copy", weights)
        record("whole", weights.unsqueeze(1))
        record("copy_gate", weights)
        return decode(self, tgt_in, memory, state)

    def with_source(self, batch):
        return {**encode(self, batch), "real": batch.src}

    monkeypatch.setattr(ToyRecurrent, "encode", with_source)
    monkeypatch.setattr(ToyRecurrent, "decode", reading)
    assert recording.cross_sites(contract.Case(TOY).build()) == ["whole"]
    warned = stderr()
    assert "attention 'copy' left out" in warned and "gate" not in warned


def test_context_gate_of_a_step_counts_for_the_word_written_and_caembed_for_the_word_read():
    batch = pair_batch([[5, EOS]] * 2, [[6, 7, 8, EOS], [9, EOS]])
    opened = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]])
    for site, wanted in (
        ("decoder_context.gate", [[0.1, 0.2, 0.3], [0.5]]),
        ("caembed_gate", [[0.2, 0.3, 0.4], [0.6]]),
    ):
        values = gates.subword_gates(opened, batch, site, "tgt")
        assert [sentence.tolist() for sentence in values] == [*map(pytest.approx, wanted)]


def words_of(*lines):
    """Return the words of lines in which a hyphen ends a subword that continues."""
    sentences = [line.split() for line in lines]
    owners = [
        np.repeat(np.arange(len(words)), [word.count("-") + 1 for word in words])
        for words in sentences
    ]
    return Words([line.replace("-", "").split() for line in lines], owners)


class Fixed:
    """A model whose gate of a target subword is its id / 100."""

    context_rule = None

    def encode(self, batch):
        return {}

    def decode(self, tgt_in, memory):
        record("my_gate", tgt_in.double() / 100)


WORDS = words_of("a un-known dog", "dog un-known", "", "a")
"""Six words: "unknown" has two subwords."""
OPENED = [0.10, 0.30, 0.50, 0.70, 0.60, 0.12]
"""The gate of each of these words."""


def test_gate_of_a_word_is_the_mean_of_its_subwords():
    ids = [[10, 20, 40, 50, EOS], [70, 30, 90, EOS], [EOS], [12, EOS]]
    study = SimpleNamespace(batches=lambda name, model: [pair_batch(ids, ids)])
    by_gate = gates.word_gates(study, "own", Fixed(), {"my_gate": "tgt"}, {"tgt": WORDS})
    assert by_gate["my_gate"].tolist() == pytest.approx(OPENED)


def test_words_are_grouped_by_word_frequency_and_tag_and_gates_are_averaged():
    tags = ["DET", "ADJ", "NOUN", "NOUN", "ADJ", "DET"]
    groups = texts.groups(WORDS, np.array([10, 9, 1, 1, 9, 99]), tags)
    assert [(g.section, g.label, int(g.members.sum())) for g in groups] == [
        ("all", "all", 6),
        *[("word", word, 2) for word in ("a", "unknown", "dog")],
        ("frequency", "10–99 times", 2),
        ("frequency", "1–9 times", 4),
        *[("tag", tag, 2) for tag in ("DET", "ADJ", "NOUN")],
    ]
    estimates = gates.group_means(np.array(OPENED), WORDS, groups, Draws(4, 50))
    means = {group.label: mean.value for group, mean in zip(groups, estimates, strict=True)}
    wanted = {"all": 2.32 / 6, "a": 0.11, "unknown": 0.45, "ADJ": 0.45, "dog": 0.6, "NOUN": 0.6}
    assert {label: means[label] for label in wanted} == pytest.approx(wanted)


def test_groups_are_frequency_classes_and_the_most_frequent_words():
    lines = [
        "often " * 120,
        "ten " * 99,
        "ten three three once",
        "three two two",
        *(f"more{i} more{i} more{i} more{i}" for i in range(30)),
    ]
    words = words_of(*lines)
    training = {"often": 0, "ten": 1000, "three": 999, "two": 100, "once": texts.OUTSIDE}
    groups = texts.groups(words, np.array([training.get(word, 1) for word in words.flat]), None)
    assert [(g.label, int(g.members.sum())) for g in groups if g.section == "frequency"] == [
        ("1,000 times or more", 100),
        ("100–999 times", 3 + 2),
        ("1–9 times", 120),
        ("never", 120),
        ("outside the vocabulary", 1),
    ]
    shown = [g.label for g in groups if g.section == "word"]
    assert shown[:2] == ["often", "ten"] and len(shown) == texts.TOP and "once" not in shown


def test_intervals_of_group_means_resample_sentences():
    rng = np.random.default_rng(2)
    words = words_of(*["a b c"] * 40)
    values = rng.random(120)
    values[::7] = np.nan
    values[1] = 0.0
    group = Group("word", "b", np.arange(120) % 3 == 1)
    none = Group("word", "d", np.arange(120) == 0)
    mean, undefined = gates.group_means(values, words, [group, none], RESAMPLES)
    resampled = [
        np.nanmean([v for s in range(40) for v in [values[3 * s + 1]] * int(counts[s])])
        for counts in RESAMPLES.counts
    ]
    assert mean.value == pytest.approx(np.nanmean(values[1::3]))
    assert (mean.low, mean.high) == pytest.approx(np.quantile(resampled, [0.025, 0.975]))
    assert undefined.value is None


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Prepare the demo corpus with few merges, so that words have subwords."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    return prep("demo", size=300, jobs=1, assignments=["prep.merges=150"], run_dir=folder)


def subwords_of(demo, set_name, side):
    """Return the subwords of each line of a prepared set, without </s>."""
    store, vocabulary = Store(demo.prep / set_name), load_vocabularies(demo.prep)[side == "tgt"]
    rows = (getattr(store, side)(row)[:-1] for row in range(len(store)))
    return [[vocabulary[int(i)] for i in row] for row in rows]


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_words_of_a_prepared_set_match_its_subwords(demo, side):
    text, words = (
        TextSide.load(demo.prep, side),
        texts.read_words(demo, Store(demo.prep / "test"), side),
    )
    assert max(map(len, words.owners)) > max(map(len, words.lines))
    sentences = zip(words.lines, words.owners, subwords_of(demo, "test", side), strict=True)
    for line, owners, subwords in sentences:
        assert len(subwords) == len(owners)
        if "<unk>" not in subwords:
            assert [
                text.surface([piece for piece, o in zip(subwords, owners, strict=True) if o == n])
                for n in range(len(line))
            ] == line


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_words_are_counted_in_the_prepared_training_text(demo, side):
    vocabulary, splitter = (
        load_vocabularies(demo.prep)[side == "tgt"],
        TextSide.load(demo.prep, side).splitter,
    )
    lines = (" ".join(subwords) for subwords in subwords_of(demo, "train", side))
    counts = Counter(word for line in lines for word in line.replace("@@ ", "").split())
    store = Store(demo.prep / "test")
    words = texts.read_words(demo, store, side)
    expected = [
        counts[word]
        if all(piece in vocabulary for piece in splitter.segment([word]))
        else texts.OUTSIDE
        for word in words.flat
    ]
    assert texts.training_counts(demo, side, words, store).tolist() == expected
    assert 0 in expected and max(expected) > 77


def test_without_subword_splitting_each_token_is_a_word(analysed, monkeypatch, stderr):
    monkeypatch.setattr(texts, "ROWS", 2)
    monkeypatch.setattr(console, "EVERY", 0.0)
    monkeypatch.setattr(texts.TextSide, "load", lambda *_: WordSide())
    prep = analysed.run.prep
    write(prep / "vocab.txt", ["<pad>", "<s>", "</s>", "<unk>", "x", "a@@", "b", "a@@b@@", "c"])
    for name, lines in (("train", [[5, 6], [6], [7, 5]]), ("test", [[6, 5], [], [8, UNK]])):
        with pair_writer(prep / name, 0, 100) as add:
            for ids in lines:
                add([*ids, EOS], [EOS])
    words = words_of("b a@@", "", "c z")
    counts = texts.training_counts(analysed.run, "src", words, Store(prep / "test"))
    assert counts.tolist() == [2, 2, 0, texts.OUTSIDE]
    err = stderr()
    assert all(f"words of the training set (src): {rows}, " in err for rows in (2, 3))


def test_text_changed_since_preparation_is_refused_with_its_line(demo):
    store = Store(demo.prep / "test")
    for lengths, line in (
        (store.src_lengths[:7], 8),
        (store.src_lengths + (np.arange(len(store)) == 3), 4),
    ):
        with pytest.raises(DataError, match="has changed since it was prepared") as error:
            texts.read_words(demo, SimpleNamespace(path=store.path, src_lengths=lengths), "src")
        assert error.value.where.endswith(f"test.src, line {line}")


def test_tags_that_do_not_fit_the_words_are_refused_with_their_line(tmp_path):
    words, path = words_of("a b-c", "", "d"), tmp_path / "test.pos"
    path.write_text("X Y\n\nZ\n", "utf-8")
    assert texts.read_tags(path, words, "src") == ["X", "Y", "Z"]
    for content, message, line in (
        ("X Y Z\n\nZ\n", "3 tags for 2 words: a bc", 1),
        ("X Y\n\n\n", "0 tags for 1 word: d", 3),
        ("X Y\n\n", "2 lines of tags for 3 sentences", 3),
        ("X Y\n\nZ\nW\n", "4 lines of tags for 3 sentences", 4),
    ):
        path.write_text(content, "utf-8")
        error = refused(DataError, message, texts.read_tags, path, words, "src")
        assert error.where == f"{path}, line {line}"
        assert "tokens.src.txt" in error.hint


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """Analyse systems with gates and one without, with tags of capitalised source words."""
    folder = tmp_path_factory.mktemp("gated")
    analysed = AnalysedRun(folder / "run")
    for name, variant in (("both", "caru"), ("one", "gatt"), ("inverse", "gru-inv")):
        analysed.system(name, variant, GATED)
    analysed.system("toy", TOY, {})
    sentences = map(str.split, analysed.lines["test"])
    tags = [" ".join("NOUN" if word.istitle() else "REST" for word in words) for words in sentences]
    path = write(folder / "tags", tags)
    analysed.by_label = analysed.rows_by("gate group label", "gates", src_tags=str(path))
    return analysed


def test_occurrences_of_source_words_and_tags_are_counted(gated):
    rows = gated.by_label
    assert {gate for gate, *_ in rows} == {"attention_gate", "caembed_gate"}
    words = Counter(word for line in gated.lines["test"] for word in line.split())
    for word, count in words.items():
        assert rows["attention_gate", "word", word]["occurrences"] == count
    nouns = sum(count for word, count in words.items() if word[0].isupper())
    assert rows["attention_gate", "tag", "NOUN"]["occurrences"] == nouns
    assert ("caembed_gate", "tag", "NOUN") not in rows  # the tags are of source words
    assert gated.text("gates", "tokens.src.txt").splitlines() == list(gated.lines["test"])


def test_means_of_words_and_tags_average_to_the_mean_of_all(gated):
    rows = gated.by_label
    for system, section in itertools.product(("both", "one"), ("word", "tag")):
        groups = [
            (row[system], row["occurrences"])
            for key, row in rows.items()
            if key[:2] == ("attention_gate", section)
        ]
        words = sum(count for _, count in groups)
        total = sum(mean["value"] * count for mean, count in groups) / words
        assert rows["attention_gate", "all", "all"][system]["value"] == pytest.approx(total)
        assert all(mean["low"] <= mean["value"] <= mean["high"] for mean, _ in groups)
    assert rows["caembed_gate", "all", "all"]["one"]["value"] is None


def test_each_gate_has_a_figure_and_an_explanation(gated):
    facts, table = gated.finding["facts"], gated.text("gates", "table.md")
    assert facts["left_out"] == {"toy": "it records no gates (see nmtkit.nn.capture)"}
    assert facts["gates"]["both"] == {"attention_gate": "src", "caembed_gate": "tgt"}
    assert "computed from it and the decoder's state (both, one)" in table
    assert "lets the source word into it (inverse)" in table
    assert "attention_gate, 0 to 1" in gated.text("gates")
    assert "caembed_gate, 0 to 1" in gated.text("gates", "figure.caembed_gate.svg")
    for gate, systems, file in (
        ("attention_gate", ["both", "one", "inverse"], "figure.svg"),
        ("caembed_gate", ["both"], "figure.caembed_gate.svg"),
    ):
        words = [row for key, row in gated.by_label.items() if key[:2] == (gate, "word")]
        gated.check_bars("gates", words, "label", systems, file)


def test_set_without_words_for_a_gate_is_refused(analysed):
    analysed.system("target", "caru", GATED | {"caatt": False})
    prep = analysed.run.prep
    write(prep / "text" / "test.ref", [""] * 40)
    with pair_writer(prep / "test", 0, 100) as add:
        for line in analysed.lines["test"]:
            add([5] * len(line.split()) + [EOS], [EOS])
    words = "gates are measured on target words, and this set has only blank lines there"
    analysed.refused("gates", DataError, words)
    analysed.system("both", "caru", GATED)
    analysed.refused("gates", DataError, "only blank lines there", systems=["both"])


def test_missing_tag_file_and_tags_without_a_gate_are_refused(analysed, tmp_path):
    analysed.system("one", "gatt", GATED)
    path = tmp_path / "tags"
    analysed.refused("gates", DataError, f"no such file: {path}", src_tags=str(path))
    path.write_text("X\n", "utf-8")
    words = "no system has a gate on target words"
    analysed.refused("gates", ConfigError, words, tgt_tags=str(path))
