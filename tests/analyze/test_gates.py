"""Gates by word: subwords onto words, groups and their means against loops, tags that fit and
tags that do not, the stage.
"""

import itertools
import math
import re
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

from ..spaces import Spaces
from ..stored import pair_writer
from .conftest import GATED, TOY

RESAMPLES = Draws(40, 100)


def mean(values):
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


@pytest.mark.parametrize(
    "case",
    [contract.Case("caru"), contract.Case("caru", (("caembed", "embed"),)), contract.Case("gatt")],
    ids=str,
)
def test_a_batch_gives_each_subword_what_its_sentence_alone_does(case):
    model, pairs = case.build(), [*contract.pairs(), ([5, EOS], [EOS])]
    batch = contract.collate(pairs, more=2)
    seen = recording.look(model, batch)["decoder"]
    for site, side in gates.gates_of(model).items():
        found = gates.subword_gates(seen[site], batch, site, side)
        for (src, tgt), own in zip(pairs, found, strict=True):
            with torch.inference_mode(), capture() as alone:
                model.decode(torch.tensor([[1, *tgt[:-1]]]), model.encode(pair_batch([src], [tgt])))
            opened = alone[site][0][0].tolist()
            if side == "src":  # steps at which it has a say
                wanted = [mean(step[i] for step in opened) for i in range(len(src) - 1)]
            else:  # of y_{t-1} the gate at step t, when it was read
                wanted = opened[1 : len(tgt)]
            assert own.tolist() == pytest.approx(wanted, rel=1e-9, nan_ok=True)


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
def test_gates_are_found_by_what_is_recorded(variant, settings, wanted):
    assert gates.gates_of(contract.Case(variant, settings).build()) == wanted


def test_the_shape_of_a_gate_says_its_side(monkeypatch, stderr):
    encode = ToyRecurrent.encode

    def gated(self, batch):
        states = self.src_embedding(batch.src)
        record("mean_gate", states.mean(-1))
        record("whole_gate", states)
        return encode(self, batch)

    monkeypatch.setattr(ToyRecurrent, "encode", gated)
    assert gates.gates_of(contract.Case(TOY).build()) == {"mean_gate": "src"}
    assert "gate 'whole_gate' left out" in stderr()


def test_a_step_that_reads_other_sentences_counts_for_the_word_it_writes():
    batch = pair_batch([[5, EOS]] * 2, [[6, 7, 8, EOS], [9, EOS]])
    opened = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]])
    for site, wanted in (
        ("decoder_context.gate", [[0.1, 0.2, 0.3], [0.5]]),
        ("caembed_gate", [[0.2, 0.3, 0.4], [0.6]]),
    ):
        found = gates.subword_gates(opened, batch, site, "tgt")
        assert [own.tolist() for own in found] == [pytest.approx(own) for own in wanted]


def words_of(*lines):
    """Words of lines in which subwords are written with a hyphen behind."""
    split = [line.split() for line in lines]
    owners = [
        np.repeat(np.arange(len(own)), [word.count("-") + 1 for word in own]) for own in split
    ]
    return Words([[word.replace("-", "") for word in own] for own in split], owners)


class Fixed:
    """A model that opens its gate for target subwords as far as their ids say."""

    context_rule = None

    def encode(self, batch):
        return {}

    def decode(self, tgt_in, memory):
        record("my_gate", tgt_in.double() / 100)


def test_a_word_is_the_mean_of_its_subwords_and_a_row_that_of_its_occurrences():
    words = words_of("a un-known dog", "dog un-known", "", "a")
    ids = [[10, 20, 40, 50, EOS], [70, 30, 90, EOS], [EOS], [12, EOS]]
    batch = pair_batch(ids, ids)
    study = SimpleNamespace(batches=lambda name, model: [batch])
    found = gates.word_gates(study, "own", Fixed(), {"my_gate": "tgt"}, {"tgt": words})["my_gate"]
    assert found.tolist() == pytest.approx([0.10, 0.30, 0.50, 0.70, 0.60, 0.12])
    groups = texts.groups(
        words, np.array([10, 9, 1, 1, 9, 99]), ["DET", "ADJ", "NOUN", "NOUN", "ADJ", "DET"]
    )
    assert [(g.section, g.label, int(g.members.sum())) for g in groups] == [
        ("all", "all", 6),
        *[("word", word, 2) for word in ("a", "unknown", "dog")],
        ("frequency", "10–99 times", 2),
        ("frequency", "1–9 times", 4),
        *[("tag", tag, 2) for tag in ("DET", "ADJ", "NOUN")],
    ]
    estimates = gates.group_means(found, words, groups, Draws(4, 50))
    values = {g.label: e.value for g, e in zip(groups, estimates, strict=True)}
    wanted = {"all": 2.32 / 6, "a": 0.11, "unknown": 0.45, "ADJ": 0.45, "dog": 0.6, "NOUN": 0.6}
    assert {label: values[label] for label in wanted} == pytest.approx(wanted)


def test_classes_of_frequency_and_the_most_frequent_types():
    lines = [
        "often " * 120,
        "ten " * 99,
        "ten three three once",
        "three two two",
        *(f"more{i} more{i} more{i} more{i}" for i in range(30)),
    ]
    words = words_of(*lines)
    training = {"often": 0, "ten": 1000, "three": 999, "two": 100, "once": texts.OUTSIDE}
    found = texts.groups(words, np.array([training.get(word, 1) for word in words.flat]), None)
    assert [(g.label, int(g.members.sum())) for g in found if g.section == "frequency"] == [
        ("1,000 times or more", 100),
        ("100–999 times", 3 + 2),
        ("1–9 times", 120),
        ("never", 120),
        ("outside the vocabulary", 1),
    ]
    shown = [g.label for g in found if g.section == "word"]
    assert shown[:2] == ["often", "ten"] and len(shown) == texts.TOP and "once" not in shown


def test_intervals_are_of_resampled_sentences():
    rng = np.random.default_rng(2)
    words = words_of(*["a b c"] * 40)
    values = rng.random(120)
    values[::7] = np.nan
    values[1] = 0.0
    group = Group("word", "b", np.arange(120) % 3 == 1)
    none = Group("word", "d", np.arange(120) == 0)
    found, nothing = gates.group_means(values, words, [group, none], RESAMPLES)
    drawn = [
        np.nanmean([v for s in range(40) for v in [values[3 * s + 1]] * int(counts[s])])
        for counts in RESAMPLES.counts
    ]
    assert found.value == pytest.approx(np.nanmean(values[1::3]))
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]))
    assert nothing.value is None


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo corpus with few merges, so that words fall into subwords."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    return prep("demo", size=300, jobs=1, assignments=["prep.merges=150"], run_dir=folder)


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_words_of_a_prepared_set_are_those_of_its_subwords(demo, side):
    """And are counted in the training text as it was prepared, a line at a time; a set has words
    that training never saw, and some outside the vocabulary.
    """
    store, text = Store(demo.prep / "test"), TextSide.load(demo.prep, side)
    vocabulary = load_vocabularies(demo.prep)[side == "tgt"]
    words = texts.read_words(demo, store, side)
    assert max(map(len, words.owners)) > max(map(len, words.lines))
    for number, (own, owners) in enumerate(zip(words.lines, words.owners, strict=True)):
        subwords = [vocabulary[int(i)] for i in getattr(store, side)(number)[:-1]]
        assert len(subwords) == len(owners)
        if "<unk>" not in subwords:
            assert [
                text.surface([p for p, o in zip(subwords, owners, strict=True) if o == n])
                for n in range(len(own))
            ] == own

    training, counts = Store(demo.prep / "train"), Counter()
    for row in range(len(training)):
        subwords = (vocabulary[int(i)] for i in getattr(training, side)(row)[:-1])
        counts.update(" ".join(subwords).replace("@@ ", "").split())
    known = [
        all(piece in vocabulary for piece in text.splitter.segment([word])) for word in words.flat
    ]
    wanted = [
        counts[word] if own else texts.OUTSIDE for word, own in zip(words.flat, known, strict=True)
    ]
    assert texts.training_counts(demo, side, words, store).tolist() == wanted
    assert 0 in wanted and max(wanted) > 77


def test_without_subwords_a_token_is_a_word_whatever_its_end(analysed, monkeypatch, stderr):
    sets = {
        "train": [[5, 6, EOS], [6, EOS], [7, 5, EOS]],
        "test": [[6, 5, EOS], [EOS], [9, UNK, EOS]],
    }

    class Stored:
        def __init__(self, path):
            self.lines = sets[path.name]

        def __len__(self):
            return len(self.lines)

        def src(self, row):
            return np.array(self.lines[row])

    names = ["<pad>", "<s>", "</s>", "<unk>", "x", "a@@", "b", "a@@b@@", "c", "d"]
    monkeypatch.setattr(texts, "Store", Stored)
    monkeypatch.setattr(texts, "ROWS", 2)
    monkeypatch.setattr(console, "EVERY", 0.0)
    monkeypatch.setattr(texts, "load_vocabularies", lambda prep: (names, names))
    monkeypatch.setattr(texts.TextSide, "load", lambda *_: Spaces())
    words, store = words_of("b a@@", "", "d z"), Stored(analysed.run.prep / "test")
    counts = texts.training_counts(analysed.run, "src", words, store)
    assert counts.tolist() == [2, 2, 0, texts.OUTSIDE]
    shown = stderr()
    assert all(f"words of the training set (src): {rows}, " in shown for rows in (2, 3))


def test_text_that_was_changed_after_preparing_is_refused(demo):
    store = Store(demo.prep / "test")
    for lengths, line in (
        (store.src_lengths[:7], 8),
        (store.src_lengths + (np.arange(len(store)) == 3), 4),
    ):
        with pytest.raises(DataError, match="has changed since it was prepared") as error:
            texts.read_words(demo, SimpleNamespace(path=store.path, src_lengths=lengths), "src")
        assert error.value.where.endswith(f"test.src, line {line}")


def test_tags_that_do_not_fit_are_refused_with_file_and_line(tmp_path):
    words, path = words_of("a b-c", "", "d"), tmp_path / "test.pos"
    path.write_text("X Y\n\nZ\n", "utf-8")
    assert texts.read_tags(path, words, "src") == ["X", "Y", "Z"]
    for content, what, line in (
        ("X Y Z\n\nZ\n", "3 tags for 2 words: a bc", 1),
        ("X Y\n\n\n", "0 tags for 1 words: d", 3),
        ("X Y\n\n", "2 lines of tags for 3 sentences", 3),
        ("X Y\n\nZ\nW\n", "4 lines of tags for 3 sentences", 4),
    ):
        path.write_text(content, "utf-8")
        error = refused(DataError, what, texts.read_tags, path, words, "src")
        assert error.where == f"{path}, line {line}"
        assert "tokens.src.txt" in error.hint


def test_the_stage_by_hand(analysed, tmp_path, capsys):
    analysed.system("both", "caru", GATED)
    analysed.system("one", "gatt", GATED)
    analysed.system("inverse", "gru-inv", GATED)
    analysed.system("toy", TOY, {})
    lines = analysed.lines["test"]
    tags = tmp_path / "tags"
    write(
        tags, [re.sub(r"\S+", lambda w: "NOUN" if w[0][0].isupper() else "REST", x) for x in lines]
    )
    found = analysed.analyze("gates", src_tags=str(tags))
    out, err = capsys.readouterr()
    assert "left out: toy: it records no gates (see nmtkit.nn.capture)" in err
    for text in (
        "computed from it and the decoder's state (both, one)",
        "lets the source word into it (inverse)",
    ):
        assert text in out
    assert analysed.text("gates", "tokens.src.txt").splitlines() == list(lines)
    words = [word for line in lines for word in line.split()]
    rows = {(row["gate"], row["group"], row["label"]): row for row in found["table"]["rows"]}
    assert {key[0] for key in rows} == {"attention_gate", "caembed_gate"}
    assert rows["caembed_gate", "all", "all"]["one"]["value"] is None
    counts = {word: words.count(word) for word in set(words)}
    shown = {key: row["occurrences"] for key, row in rows.items() if key[1] == "word"}
    wanted = {("attention_gate", "word", word): count for word, count in counts.items()}
    assert wanted.items() <= shown.items()
    nouns = sum(count for word, count in counts.items() if word[0].isupper())
    assert rows["attention_gate", "tag", "NOUN"]["occurrences"] == nouns
    assert ("caembed_gate", "tag", "NOUN") not in rows
    for system, section in itertools.product(("both", "one"), ("word", "tag")):
        own = [
            (row[system], row["occurrences"])
            for key, row in rows.items()
            if key[:2] == ("attention_gate", section)
        ]
        total = sum(mean["value"] * count for mean, count in own) / len(words)
        assert rows["attention_gate", "all", "all"][system]["value"] == pytest.approx(total)
        assert all(mean["low"] <= mean["value"] <= mean["high"] for mean, _ in own)
    assert "attention_gate, 0 to 1" in analysed.text("gates")
    assert "caembed_gate, 0 to 1" in analysed.text("gates", "figure.caembed_gate.svg")
    assert found["facts"]["gates"]["both"] == {"attention_gate": "src", "caembed_gate": "tgt"}
    tags.write_text("X\n" * 40, "utf-8")
    # Another tag file is another finding.
    analysed.refused("gates", DataError, "1 tags for", src_tags=str(tags))


def test_gates_of_blank_references(analysed):
    """A set without words for a gate is refused."""
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


def test_tags_without_a_file_or_a_gate(analysed, tmp_path):
    analysed.system("one", "gatt", GATED)
    path = tmp_path / "tags"
    analysed.refused("gates", DataError, f"no such file: {path}", src_tags=str(path))
    path.write_text("X\n", "utf-8")
    words = "no system has a gate on target words"
    analysed.refused("gates", ConfigError, words, tgt_tags=str(path))
