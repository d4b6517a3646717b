"""Parses from the command to the translation: rows that cleaning drops lose theirs, fallbacks
are counted, workers change nothing.
"""

import dataclasses
import json
import re
import shutil
import sys
import types
from collections import Counter

import numpy as np
import pytest
import torch

from nmtkit.data.batches import collate
from nmtkit.data.store import Store, spans_files
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.prep.check import inspect
from nmtkit.prep.parse_spans import Stanza, cut_spans
from nmtkit.prep.shards import cut
from nmtkit.prep.trees import Unusable, parse_phrases, read_tree
from nmtkit.score.translations import described, without_parses
from nmtkit.text.side import TextSide
from nmtkit.train.checks import check_parses_and_documents
from nmtkit.train.stage import train
from nmtkit.translate.beam import search
from nmtkit.translate.stage import translate
from nmtkit.translate.systems import choose
from tests.manifests import read_json
from tests.prep.corpora import prepare
from tests.prep.test_parses import plain, treebank
from tests.refused import refused

SETTINGS = """
model.segmentation=parse model.d_model=16 model.d_ff=32 model.heads=2 model.encoder_layers=1
model.decoder_layers=1 model.combiner_hidden=16 train.max_steps=20 train.batch_size=300
train.validate_every=20 train.log_every=10 train.warmup=5
"""


@pytest.fixture(scope="module")
def sentences(shared):
    """Text and tree of some sentences of the treebank."""
    trees = [tree for tree in treebank(shared) if len(tree) < 900][:180]
    return [(plain([leaf.text for leaf in read_tree(tree).leaves()]), tree) for tree in trees]


def corpus(folder, sentences):
    """Files of three sets and the options that name them; some trees are missing, broken, or of
    another sentence, some pairs are dropped.
    """
    rows = [(text, text.upper(), tree) for text, tree in sentences]
    train_rows = rows[:150]
    train_rows[7] = (*train_rows[7][:2], "")
    train_rows[11] = (*train_rows[11][:2], "(S (NP broken")
    train_rows[13] = (*train_rows[13][:2], train_rows[14][2])
    for place in (0, 36, 37, 150):
        train_rows.insert(place, ("", "nothing", "(S (X dropped))"))
    train_rows.insert(90, ("long " * 200, "long " * 200, "(S (X dropped))"))
    sets = {"train": train_rows, "dev": rows[150:165], "news": rows[165:]}
    folder.mkdir()
    options = {"parses": []}
    for name, own in sets.items():
        for i, suffix in enumerate(("en", "xx", "trees")):
            (folder / f"{name}.{suffix}").write_text("".join(row[i] + "\n" for row in own), "utf-8")
        options["parses"].append(f"{name}={folder / name}.trees")
    options |= {side: (folder / f"{side}.en", folder / f"{side}.xx") for side in ("train", "dev")}
    return sets, options | {"test": [f"{folder / 'news.en'},{folder / 'news.xx'}"]}


def prepared(folder, options, name="run", settings=(), **more):
    limits = ["merges=200", "max_words=100", "max_subwords=120", *settings]
    return prepare(folder, options, name, limits, **more)


def train_with_parses(run):
    train(run, variant="pr", assignments=SETTINGS.split(), device="cpu", preset="tiny")


def scores(group, batch):
    return [
        hypotheses[0].log_prob
        for hypotheses in search(group.load(torch.device("cpu")), batch, group.settings)
    ]


def expected_spans(run, rows):
    """The slow way: one raw line after another, those that the store has no place for left out."""
    side = TextSide.load(run.prep, "src")
    found, reasons = [], Counter()
    for text, target, tree in rows:
        words = side.tokens(text)
        sizes = [len(side.splitter.segment([word])) for word in words]
        if (
            not words
            or len(words) > 100
            or sum(sizes) > 120
            or len(TextSide.load(run.prep, "tgt").encode(target)) > 120
        ):
            continue
        try:
            found.append(parse_phrases(tree, words, sizes))
            reasons["parsed"] += 1
        except Unusable as why:
            found.append([])
            reasons[str(why)] += 1
    return found, reasons


@pytest.fixture
def tree_corpus(tmp_path, sentences):
    return corpus(tmp_path / "in", sentences)


@pytest.fixture
def sets(tree_corpus):
    return tree_corpus[0]


@pytest.fixture
def options(tree_corpus):
    return tree_corpus[1]


@pytest.mark.parametrize("rows", [7, 40])
def test_spans_in_shards(tmp_path, rows, sets, options):
    run = prepared(tmp_path, options, settings=[f"shard_lines={rows}"])
    for name in ("train", "news"):
        store = Store(run.prep / name)
        spans, _ = expected_spans(run, sets[name])
        assert [store.spans[i].tolist() for i in range(len(store))] == spans
        assert store.spans.sizes == store.shard_sizes and len(store) == len(spans)
    lines = sum(len(sets["train"][i : i + rows]) > 0 for i in range(0, len(sets["train"]), rows))
    assert len(Store(run.prep / "train").shard_sizes) == lines


def test_from_trees_to_translations(tmp_path, small_shards, stderr, sets, options):
    run = prepared(tmp_path, options)
    entries = {entry["name"]: entry for entry in run.manifest().model_dump()["sets"]}
    for name in ("train", "news"):
        store = Store(run.prep / name)
        found, reasons = expected_spans(run, sets[name])
        assert [store.spans[i].tolist() for i in range(len(store))] == found
        assert entries[name]["parses"] == dict(reasons)
        assert all(sum(cut) in {0, n} for cut, n in zip(found, store.src_lengths, strict=True))
    lines, parses = entries["train"]["lines"], entries["train"]["parses"]
    assert lines < 300 and parses["blank"] == parses["not a tree"] == 1
    assert parses["parsed"] > 0.97 * lines
    assert f"parses of train: {parses['parsed']}" in stderr()

    train_with_parses(run)
    assert "has no parses" not in stderr()
    short = {"max_length_a": 0, "max_length_b": 8, "beam": 2, "nbest": 2}
    assignments = [f"search.{key}={value}" for key, value in short.items()]
    translate(run, device="cpu", jobs=1, assignments=assignments)
    folder = run.system("pr").translation("news")
    meta = read_json(folder / "meta.json")
    missing = sum(
        count for reason, count in entries["news"]["parses"].items() if reason != "parsed"
    )
    assert (meta["counts"]["lines"], meta["counts"]["no_spans"]) == (15, missing)
    described(folder).model_copy(update={"counts": {"no_spans": 1}}).write(tmp_path / "meta.json")
    assert without_parses("test", {"pr": folder, "a": tmp_path}) == [
        "test: a read 1 sentence without a parse, as n-grams"
    ]
    group = choose(run, [], False, short, single=False)[0]
    batch = collate(Store(run.prep / "news"), np.arange(15))
    with_trees, without = (
        scores(group, dataclasses.replace(batch, spans=spans)) for spans in (batch.spans, None)
    )
    written = [
        json.loads(line)["nbest"][0]["log_prob"]
        for line in (folder / "nbest.jsonl").read_text("utf-8").splitlines()
    ]
    assert written == pytest.approx(with_trees, abs=1e-4)
    assert written != pytest.approx(without, abs=1e-4)
    source = str(tmp_path / "in" / "news.en")
    translate(run, source=source, device="cpu", jobs=1, assignments=assignments)
    assert stderr().count("15 read without a parse") == 1
    for file in spans_files(run.prep / "dev"):
        file.unlink()
    model = types.SimpleNamespace(reads_spans=True, context_rule=None)
    (dev,) = run.sets("dev")
    check_parses_and_documents(model, "pr", run, Store(run.prep / "train"), dev)
    assert "'dev' has no parses" in stderr()


def test_many_parses_that_do_not_fit_are_warned_of(tmp_path, small_shards, stderr, options):
    """Half of the trees with a bracket missing: sentences cut otherwise than their system is
    named for. The lines are those of the file.
    """
    file = tmp_path / "in" / "train.trees"
    prepared(tmp_path, options)
    # what does not fit is far below 5%
    assert not re.search("warning: parses", stderr())
    trees = file.read_text("utf-8").split("\n")[:-1]
    broken = [i for i in range(60, len(trees), 2) if trees[i]]
    for i in broken:
        trees[i] = trees[i][:-1]
    file.write_text("".join(tree + "\n" for tree in trees), "utf-8")
    run = prepared(tmp_path, options, "broken")
    said = stderr()
    first = trees.index("(S (NP broken") + 1
    assert len(re.findall(f"warning: parses of train.* not a tree, first line {first}", said)) == 1
    assert not re.search("warning: parses of (news|dev)", said)
    counts = run.manifest().sets[0].parses
    for reason, line in (("not a tree", first), ("blank", 9), ("other text", "")):
        assert f"{counts[reason]:,} {reason} (first: line {line}" in said
    assert counts["not a tree"] > 40


def test_blank_lines_are_no_parses_that_do_not_fit(tmp_path, stderr, sets, options):
    (tmp_path / "in" / "news.trees").write_text(
        sets["news"][0][2] + "\n" * len(sets["news"]), "utf-8"
    )
    prepared(tmp_path, options)
    said = [line for line in stderr().splitlines() if "parses of news" in line]
    assert len(said) == 1 and "14 blank (first: line 2)" in said[0]


def test_the_number_of_workers_changes_nothing(tmp_path, small_shards, options):
    one, three = (
        prepared(tmp_path, options, f"run{jobs}", jobs=jobs).manifest().model_dump()
        for jobs in (1, 3)
    )
    for key in ("files", "sets", "fingerprint"):
        assert one[key] == three[key]
    assert "train/00000.spans.bin" in one["files"]


def test_another_file_of_parses_is_another_corpus(tmp_path, options):
    first = prepared(tmp_path, options).manifest().model_dump()
    assert prepared(tmp_path, options).manifest().model_dump() == first
    with open(tmp_path / "in" / "train.trees", "r+", encoding="utf-8") as stream:
        stream.write("(X y)")
    refused(ConfigError, "prepared differently", prepared, tmp_path, options)


def test_mistakes_are_named(tmp_path, options):
    trees = options.pop("parses")
    for given, said in (
        (["train=nowhere"], "nowhere"),
        ([trees[0], trees[0]], "is named twice"),
        (["train"], "'train' is not SET=FILE"),
        ([trees[0].replace("train=", "trian=")], "no set 'trian'"),
    ):
        refused((ConfigError, DataError), said, prepared, tmp_path, options, parses=given)
    short = tmp_path / "short.trees"
    short.write_text("(S a)\n", "utf-8")
    with pytest.raises(DataError, match=r"short.trees has 1 line but the source has 15[05]"):
        prepared(tmp_path, options, parses=[f"train={short}"])
    run = prepared(tmp_path, options)
    refused(ConfigError, "reads parses", train_with_parses, run)
    assert Store(run.prep / "train").spans is Store(run.prep / "news").spans is None


def test_trees_of_another_text_are_refused(tmp_path, options):
    """The task that cuts a shard knows how long the sentences of the set are."""
    run = prepared(tmp_path, options)
    news = [tmp_path / "in" / "news.en", tmp_path / "in" / "news.trees"]
    for path in news:
        lines = path.read_text("utf-8").split("\n")[-2::-1]
        path.write_text("\n".join([*lines, ""]), "utf-8")
    streams = [[inspect(path, strict=True)] for path in news]
    (shard,) = cut(streams, 15)
    shutil.copytree(run.prep, tmp_path / "out")
    with pytest.raises(DataError, match="files changed while they were read") as caught:
        cut_spans(tmp_path, 0, shard, "news", train=False)
    assert "run prep again" in caught.value.hint


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        ("news", "15 not a tree"),
        ("dev", "15 other text"),
        ("news", "15 blank"),
        ("train", "19 not a tree"),  # of the pairs taken, one is dropped
    ],
)
def test_parses_of_which_none_fits_are_refused(tmp_path, sentences, spoilt, reason, sets, options):
    line = {"not a tree": "17", "other text": sentences[-1][1], "blank": ""}[reason[3:]]
    file = tmp_path / "in" / f"{spoilt}.trees"
    file.write_text((line + "\n") * len(sets[spoilt]), "utf-8")
    caught = refused(
        DataError, f"no parse of '{spoilt}' fits", prepared, tmp_path, options, size=20
    )
    assert reason in str(caught) and caught.where == str(file)
    assert not (tmp_path / "run").exists()


class FakeTree:
    def __init__(self, label, *children):
        self.label, self.children = label, children


class FakePipeline:
    """Makes a flat tree of each sentence, as stanza's classes would hold it."""

    made: list = []

    def __init__(self, lang, **options):
        if lang != "en":
            raise FileNotFoundError(f"resources.json is missing for {lang}")
        self.made.append((lang, options))

    def __call__(self, sentences):
        trees = [
            FakeTree("ROOT", FakeTree("S", *(FakeTree("X", FakeTree(word)) for word in words)))
            for words in sentences
        ]
        return types.SimpleNamespace(
            sentences=[types.SimpleNamespace(constituency=tree) for tree in trees]
        )


def test_a_parser_parses_what_has_no_file(tmp_path, monkeypatch, sets, options):
    monkeypatch.setitem(
        sys.modules, "stanza", types.SimpleNamespace(Pipeline=FakePipeline, __version__="9.9")
    )
    options["parses"] = options["parses"][1:]
    run = prepared(tmp_path, options, parser="stanza")
    assert (
        FakePipeline.made[-1][1]["tokenize_pretokenized"]
        and FakePipeline.made[-1][1]["download_method"] is None
    )
    assert run.manifest().tools["stanza"] == "9.9"
    entry = run.manifest().model_dump()["sets"][0]
    assert entry["parses"] == {"parsed": entry["lines"]}
    trees = (run.prep / "parses" / "train.txt").read_text("utf-8").split("\n")[:-1]
    assert len(trees) == len(sets["train"]) and trees[0] == trees[36] == ""
    assert not (run.prep / "parses" / "dev.txt").exists()
    again = prepared(
        tmp_path,
        options | {"parses": [*options["parses"], f"train={run.prep / 'parses' / 'train.txt'}"]},
        "again",
    )
    assert (
        again.manifest().files["train/00000.spans.bin"]
        == run.manifest().files["train/00000.spans.bin"]
    )


def test_an_absent_parser_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "stanza", None)
    assert "pip install -e '.[parse]'" in refused(EnvironmentProblem, None, Stanza, "en").hint
    monkeypatch.setitem(
        sys.modules, "stanza", types.SimpleNamespace(Pipeline=FakePipeline, __version__="9.9")
    )
    caught = refused(EnvironmentProblem, "'cs' here: resources.json", Stanza, "cs")
    assert "stanza.download('cs'" in caught.hint
    assert Stanza("en")([["(", "a", "@-@", "&apos;s"]]) == [
        "(ROOT (S (X -LRB-) (X a) (X -) (X 's)))"
    ]
    assert Stanza("en")([]) == []
