"""Parses from the command to the translation: spans follow the rows that are kept, trees that do
not fit are counted, and a system translates with the spans of its source.
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
from nmtkit.prep import steps
from nmtkit.prep.check import inspect
from nmtkit.prep.parse_spans import Stanza, cut_spans
from nmtkit.prep.shards import cut
from nmtkit.prep.trees import Unusable, parse_phrases, read_tree
from nmtkit.run import Run
from nmtkit.score.translations import described, without_parses
from nmtkit.text.side import TextSide
from nmtkit.train.checks import check_parses_and_documents
from nmtkit.train.stage import train
from nmtkit.translate.beam import search
from nmtkit.translate.stage import translate
from nmtkit.translate.systems import choose
from tests.faults.trainings import fail
from tests.manifests import read_json
from tests.prep.corpora import prepare, write
from tests.prep.test_documents import write_lines
from tests.prep.test_parses import plain, treebank
from tests.refused import refused

SETTINGS = """
model.segmentation=parse model.d_model=16 model.d_ff=32 model.heads=2 model.encoder_layers=1
model.decoder_layers=1 model.combiner_hidden=16 train.max_steps=20 train.batch_size=300
train.validate_every=20 train.log_every=10 train.warmup=5
"""


@pytest.fixture(scope="module")
def sentences(shared):
    """Pairs (text, tree) of the treebank."""
    trees = [tree for tree in treebank(shared) if len(tree) < 900][:180]
    return [(plain([leaf.text for leaf in read_tree(tree).leaves()]), tree) for tree in trees]


def write_corpus(folder, sentences):
    """Write three sets; return their rows (source, target, tree) and the options of prep.

    Some trees are missing, broken, or of another sentence; cleaning drops some pairs.
    """
    rows = [(text, text.upper(), tree) for text, tree in sentences]
    train = rows[:150]
    for row, wrong in ((7, ""), (11, "(S (NP broken"), (13, train[14][2])):
        train[row] = (*train[row][:2], wrong)
    for place in (0, 36, 37, 150):
        train.insert(place, ("", "nothing", "(S (X dropped))"))
    train.insert(90, ("long " * 200, "long " * 200, "(S (X dropped))"))
    sets = {"train": train, "dev": rows[150:165], "news": rows[165:]}
    files = {name: write(folder, name, sets[name], ("en", "xx", "trees")) for name in sets}
    options = {name: files[name][:2] for name in ("train", "dev")}
    options["parses"] = [f"{name}={paths[2]}" for name, paths in files.items()]
    return sets, options | {"test": [f"{files['news'][0]},{files['news'][1]}"]}


def prepared(folder, options, name="run", settings=(), **more):
    limits = ["merges=200", "max_words=100", "max_subwords=120", *settings]
    return prepare(folder, options, name, limits, **more)


def train_with_parses(run):
    train(run, variant="pr", assignments=SETTINGS.split(), device="cpu", preset="tiny")


def expected_spans(run, rows):
    """Return the spans of the kept rows, found one row at a time, and the count of each reason."""
    src, tgt = (TextSide.load(run.prep, side) for side in ("src", "tgt"))
    spans, reasons = [], Counter()
    for text, target, tree in rows:
        words = src.tokens(text)
        sizes = [len(src.splitter.segment([word])) for word in words]
        if 0 < len(words) <= 100 and max(sum(sizes), len(tgt.encode(target))) <= 120:
            try:
                spans.append(parse_phrases(tree, words, sizes))
                reasons["parsed"] += 1
            except Unusable as reason:
                spans.append([])
                reasons[str(reason)] += 1
    return spans, reasons


@pytest.fixture
def tree_corpus(tmp_path, sentences):
    return write_corpus(tmp_path / "in", sentences)


@pytest.fixture
def sets(tree_corpus):
    return tree_corpus[0]


@pytest.fixture
def options(tree_corpus):
    return tree_corpus[1]


@pytest.mark.parametrize("rows", [7, 40])
def test_spans_and_reasons_equal_a_slow_search(tmp_path, small_shards, stderr, rows, sets, options):
    run = prepared(tmp_path, options, settings=[f"shard_lines={rows}"])
    entries = {entry.name: entry for entry in run.manifest().sets}
    for name in ("train", "news"):
        store, (spans, reasons) = Store(run.prep / name), expected_spans(run, sets[name])
        assert [store.spans[i].tolist() for i in range(len(store))] == spans
        assert entries[name].parses == dict(reasons)
        lengths = zip(map(sum, spans), store.src_lengths, strict=True)
        assert all(covered in {0, length} for covered, length in lengths)
        assert store.spans.sizes == store.shard_sizes
    assert len(Store(run.prep / "train").shard_sizes) == -(-len(sets["train"]) // rows)
    parses = entries["train"].parses
    assert parses["blank"] == parses["not a tree"] == 1
    assert 0.97 * entries["train"].lines < parses["parsed"] < 300
    assert f"parses of train: {parses['parsed']}" in stderr()


SEARCH = {"max_length_a": 0, "max_length_b": 8, "beam": 2, "nbest": 2}
TRANSLATE = {
    "device": "cpu",
    "jobs": 1,
    "assignments": [f"search.{key}={value}" for key, value in SEARCH.items()],
}


@pytest.fixture(scope="module")
def translated(tmp_path_factory, sentences):
    """A run with a system that reads spans, and its translation of "news"."""
    folder = tmp_path_factory.mktemp("translated")
    run = prepared(folder, write_corpus(folder / "in", sentences)[1])
    train_with_parses(run)
    translate(run, **TRANSLATE)
    return run


def test_translation_is_decoded_with_the_spans_of_its_source(translated):
    group = choose(translated, [], False, SEARCH, single=False)[0]
    batch = collate(Store(translated.prep / "news"), np.arange(15))
    path = translated.system("pr").translation("news") / "nbest.jsonl"
    written = [json.loads(line)["nbest"][0]["log_prob"] for line in path.open(encoding="utf-8")]
    model = group.load(torch.device("cpu"))
    with_spans, without = (
        [hypotheses[0].log_prob for hypotheses in search(model, inputs, group.settings)]
        for inputs in (batch, dataclasses.replace(batch, spans=None))
    )
    assert written == pytest.approx(with_spans, abs=1e-4)
    assert written != pytest.approx(without, abs=1e-4)


def test_translation_counts_sentences_without_a_parse(translated, tmp_path):
    folder = translated.system("pr").translation("news")
    meta = read_json(folder / "meta.json")
    (entry,) = (entry for entry in translated.manifest().sets if entry.name == "news")
    missing = sum(entry.parses.values()) - entry.parses["parsed"]
    assert (meta["counts"]["lines"], meta["counts"]["no_spans"]) == (15, missing)
    described(folder).model_copy(update={"counts": {"no_spans": 1}}).write(tmp_path / "meta.json")
    assert without_parses("test", {"pr": folder, "a": tmp_path}) == [
        "test: a read 1 sentence without a parse, as n-grams"
    ]


def test_translating_a_file_warns_of_missing_parses(translated, stderr):
    source = str(translated.path.parent / "in" / "news.en")
    translate(translated, source=source, **TRANSLATE)
    assert stderr().count("15 read without a parse") == 1


def test_training_warns_of_a_dev_set_without_parses(translated, tmp_path, stderr):
    shutil.copytree(translated.path, tmp_path / "run")
    run, model = Run(tmp_path / "run"), types.SimpleNamespace(reads_spans=True, context_rule=None)
    (dev,) = run.sets("dev")
    check_parses_and_documents(model, "pr", run, Store(run.prep / "train"), dev)
    assert "has no parses" not in stderr()
    for file in spans_files(run.prep / "dev"):
        file.unlink()
    check_parses_and_documents(model, "pr", run, Store(run.prep / "train"), dev)
    assert "'dev' has no parses" in stderr()


def test_many_trees_that_do_not_fit_are_a_warning(tmp_path, small_shards, stderr, options):
    """A few are no warning. In the second run half of the trees lack a bracket."""
    file = tmp_path / "in" / "train.trees"
    prepared(tmp_path, options)
    assert not re.search("warning: parses", stderr())
    trees = file.read_text("utf-8").split("\n")[:-1]
    halves = (tree[:-1] if i in range(60, len(trees), 2) else tree for i, tree in enumerate(trees))
    write_lines(file, halves)
    run = prepared(tmp_path, options, "broken")
    printed = stderr()
    first = trees.index("(S (NP broken") + 1
    warning = f"warning: parses of train.* not a tree, first line {first}"
    assert len(re.findall(warning, printed)) == 1
    assert not re.search("warning: parses of (news|dev)", printed)
    counts = run.manifest().sets[0].parses
    for reason, line in (("not a tree", first), ("blank", 9), ("other text", "")):
        assert f"{counts[reason]:,} {reason} (first: line {line}" in printed
    assert counts["not a tree"] > 40


def test_blank_trees_are_counted_without_a_warning(tmp_path, stderr, sets, options):
    write_lines(tmp_path / "in" / "news.trees", [sets["news"][0][2], *[""] * 14])
    prepared(tmp_path, options)
    (line,) = (line for line in stderr().splitlines() if "parses of news" in line)
    assert "14 blank (first: line 2)" in line and "warning" not in line


def test_another_file_of_parses_is_another_corpus(tmp_path, options):
    first = prepared(tmp_path, options).manifest()
    assert prepared(tmp_path, options).manifest() == first
    with open(tmp_path / "in" / "train.trees", "r+", encoding="utf-8") as stream:
        stream.write("(X y)")
    refused(ConfigError, "prepared differently", prepared, tmp_path, options)


@pytest.mark.parametrize(
    ("parses", "message"),
    [
        (["train=nowhere"], "nowhere"),
        (["train=in/train.trees"] * 2, "is named twice"),
        (["train"], "'train' is not SET=FILE"),
        (["trian=in/train.trees"], "no set 'trian'"),
        (["train=short"], r"short has 1 line but the source has 15[05]"),
    ],
)
def test_wrong_parses_option_is_refused(tmp_path, options, parses, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "short", ["(S a)"])
    options["parses"] = parses
    error = refused((ConfigError, DataError), message, prepared, tmp_path, options)
    assert error.where == "--parses" or "short" in message


def test_training_a_system_that_reads_parses_without_parses_is_refused(tmp_path, options):
    run = prepared(tmp_path, options | {"parses": []})
    refused(ConfigError, "reads parses", train_with_parses, run)
    assert Store(run.prep / "train").spans is Store(run.prep / "news").spans is None


def test_trees_that_change_while_prep_reads_them_are_refused(tmp_path, options):
    """The task that cuts the spans of a shard knows the length of each sentence."""
    run = prepared(tmp_path, options)
    news = [tmp_path / "in" / "news.en", tmp_path / "in" / "news.trees"]
    for path in news:
        write_lines(path, path.read_text("utf-8").split("\n")[-2::-1])
    streams = [[inspect(path, strict=True)] for path in news]
    (shard,) = cut(streams, 15)
    shutil.copytree(run.prep, tmp_path / "out")
    message = "files changed while they were read"
    caught = refused(DataError, message, cut_spans, tmp_path, 0, shard, "news", train=False)
    assert "run prep again" in caught.hint


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("news", "15 not a tree"),
        ("dev", "15 other text"),
        ("news", "15 blank"),
        ("train", "19 not a tree"),  # of the pairs taken, one is dropped
    ],
)
def test_set_without_a_tree_that_fits_is_refused(tmp_path, sentences, name, reason, sets, options):
    line = {"not a tree": "17", "other text": sentences[-1][1], "blank": ""}[reason[3:]]
    file = write_lines(tmp_path / "in" / f"{name}.trees", [line] * len(sets[name]))
    message = f"no parse of '{name}' fits"
    caught = refused(DataError, message, prepared, tmp_path, options, size=20)
    assert reason in str(caught) and caught.where == str(file)
    assert not (tmp_path / "run").exists()


class FakeTree:
    def __init__(self, label, *children):
        self.label, self.children = label, children


class FakePipeline:
    """Makes a flat tree of each sentence, as stanza's classes hold it."""

    made: list = []

    def __init__(self, lang, **options):
        if lang != "en":
            raise FileNotFoundError(f"resources.json is missing for {lang}")
        self.made.append(options)

    def __call__(self, sentences):
        words = [[FakeTree("X", FakeTree(word)) for word in sentence] for sentence in sentences]
        trees = [FakeTree("ROOT", FakeTree("S", *leaves)) for leaves in words]
        parsed = [types.SimpleNamespace(constituency=tree) for tree in trees]
        return types.SimpleNamespace(sentences=parsed)


@pytest.fixture
def stanza(monkeypatch):
    fake = types.SimpleNamespace(Pipeline=FakePipeline, __version__="9.9")
    monkeypatch.setitem(sys.modules, "stanza", fake)


def test_parser_parses_a_set_without_a_file(tmp_path, stanza, sets, options):
    del options["parses"][0]
    run = prepared(tmp_path, options, parser="stanza")
    assert FakePipeline.made[-1]["tokenize_pretokenized"]
    assert FakePipeline.made[-1]["download_method"] is None
    manifest = run.manifest()
    assert manifest.tools["stanza"] == "9.9"
    assert manifest.sets[0].parses == {"parsed": manifest.sets[0].lines}
    path = run.prep / "parses" / "train.txt"
    trees = path.read_text("utf-8").split("\n")[:-1]
    assert len(trees) == len(sets["train"]) and trees[0] == trees[36] == ""
    assert not (run.prep / "parses" / "dev.txt").exists()
    refused(ConfigError, "prepared differently", prepared, tmp_path, options)  # without a parser
    options["parses"].append(f"train={path}")
    again = prepared(tmp_path, options, "again").manifest()
    spans = "train/00000.spans.bin"
    assert again.files[spans] == manifest.files[spans]


def test_parses_of_an_interrupted_prep_are_not_made_again(
    tmp_path, stanza, sets, options, monkeypatch
):
    del options["parses"][0]
    full = EnvironmentProblem("disk full")
    with monkeypatch.context() as patch:
        fail(patch, steps.Steps, "_spans", full, {1})
        refused(EnvironmentProblem, "disk full", prepared, tmp_path, options, parser="stanza")
    monkeypatch.setattr(FakePipeline, "__call__", lambda *_: pytest.fail("parsed again"))
    run = prepared(tmp_path, options, parser="stanza")
    assert run.manifest().sets[0].parses["parsed"] > 0


def test_missing_parser_is_refused_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "stanza", None)
    assert "pip install -e '.[parse]'" in refused(EnvironmentProblem, None, Stanza, "en").hint


def test_missing_model_of_the_parser_is_refused_with_its_download(stanza):
    caught = refused(EnvironmentProblem, "'cs' here: resources.json", Stanza, "cs")
    assert "stanza.download('cs'" in caught.hint


def test_parser_writes_trees_with_unescaped_words_and_penn_brackets(stanza):
    words = ["(", "a", "@-@", "&apos;s"]
    assert Stanza("en")([words]) == ["(ROOT (S (X -LRB-) (X a) (X -) (X 's)))"]
    assert Stanza("en")([]) == []
