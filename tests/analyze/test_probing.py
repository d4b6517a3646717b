"""Probing: sentence vectors against encoding one by one, vectors kept on disk, and the analysis."""

import re
from collections import Counter

import numpy as np
import pytest
import torch

from nmtkit.analyze import probing, sentence_vectors
from nmtkit.analyze.sentence_vectors import Reader, encoder_states
from nmtkit.analyze.study import Study
from nmtkit.corpora import published
from nmtkit.data.batches import source_batch
from nmtkit.demo import generate
from nmtkit.errors import ConfigError, DataError
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Vocabularies
from nmtkit.models.lookups import word_tables
from nmtkit.models.variants import VARIANTS, build_model, load_variant
from nmtkit.nn.capture import capture
from nmtkit.score.significance import wilson
from nmtkit.tables.table import Estimate
from nmtkit.text.vocabulary import load_vocabularies
from tests.score.conftest import write

from .conftest import SMALL, TOKENS, TOY, save_system

DEEP = {**SMALL, "encoder_layers": 2}
SENTENCES = [
    " ".join(f"w{(7 * i + 3 * j) % 96}" for j in range(length))
    for i, length in enumerate([3, 17, 1, 9, 30, 9, 12, 2])
]


def cut(sentence):
    """Return pieces of at most five words."""
    words = sentence.split()
    return [words[start : start + 5] for start in range(0, len(words), 5)]


def one_by_one(analysed, layer=0):
    """Return the mean state of each sentence, whose pieces are encoded alone."""
    model = loading.load_system(analysed.run, analysed.run.find_system("own"))
    vocabulary = load_vocabularies(analysed.run.prep)[0]

    def states(piece):
        batch = source_batch([vocabulary.encode(piece)])
        with torch.inference_mode(), capture():
            if layer:
                return model.encoder[0](model.src_embedder(batch.src), None)[0].double()
            return model.encode(batch)["states"][0].double()

    means = [torch.cat([*map(states, cut(sentence))]).mean(0) for sentence in SENTENCES]
    return torch.stack(means).numpy()


def vectors(analysed, layer):
    return Reader(Study(analysed.run, "probing", ["own"], []), "own", layer).vectors(SENTENCES)


def with_pieces(analysed, variant, model):
    """Add a system that cuts sentences into pieces of five words; return its model."""
    return save_system(analysed.run, "own", variant, model, max_source=5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_vectors_equal_means_of_sentences_encoded_alone(variant, analysed, monkeypatch):
    monkeypatch.setattr(sentence_vectors, "POSITIONS", 24)
    with_pieces(analysed, variant, load_variant(variant).adapt(SMALL))
    states = vectors(analysed, 0)["states"]
    np.testing.assert_allclose(states, one_by_one(analysed), atol=1e-5, rtol=0)
    assert len(np.unique(states.round(4), axis=0)) == len(SENTENCES)


def test_vectors_of_lower_layers_and_of_embeddings(analysed):
    model = with_pieces(analysed, "transformer", DEEP)
    top, first, second = (vectors(analysed, layer) for layer in (0, 1, 2))
    np.testing.assert_allclose(first["states"], one_by_one(analysed, 1), atol=1e-5, rtol=0)
    # There is no norm at the end of this stack.
    assert np.array_equal(top["states"], second["states"])
    assert not np.allclose(top["states"], first["states"])
    vocabulary = load_vocabularies(analysed.run.prep)[0]
    ids = [[i for piece in cut(s) for i in vocabulary.encode(piece)] for s in SENTENCES]
    bag = torch.stack([model.src_embedder.table.weight[sentence].mean(0) for sentence in ids])
    np.testing.assert_allclose(first["embeddings"], bag.detach(), atol=1e-6, rtol=0)


def test_lower_layers_of_a_model_with_phrases_are_read(analysed):
    model = analysed.system("own", "pr", DEEP)
    batch = source_batch([[5, 6, 7, 2], [5, 2]])
    with torch.inference_mode():
        top, first, second = (encoder_states(model, batch, layer) for layer in (0, 1, 2))
    assert torch.equal(second, top) and not torch.allclose(first, top)


@pytest.mark.parametrize("variant", [*VARIANTS, TOY])
def test_source_embeddings_of_every_model_are_detected(variant):
    values = load_variant(variant).adapt({**SMALL, "tie": "none"})
    table, _ = word_tables(build_model(variant, values, Vocabularies(23, 29, False)).eval())
    assert table is not None and len(table) == 23


def probe_files(folder, count=60, tasks=("sentence_length", "own")):
    """Write tasks that ask whether a sentence is long, in SentEval's format; return the folder."""
    lines = []
    for i in range(count):
        length = 3 + i % 4 + 8 * (i % 2)
        sentence = " ".join(f"w{(11 * i + j * j) % 90}" for j in range(length))
        part = {0: "te", 1: "va"}.get(i % 5, "tr")
        lines.append(f"{part}\t{'long' if length > 8 else 'short'}\t{sentence}")
    for task in tasks:
        write(folder / f"{task}.txt", lines)
    return folder


@pytest.fixture
def counted(monkeypatch):
    """Return a counter of the sentences that each system encodes."""
    counts, read = Counter(), Reader.vectors

    def counting(self, sentences):
        counts[self.name] += len(sentences)
        return read(self, sentences)

    monkeypatch.setattr(Reader, "vectors", counting)
    return counts


@pytest.fixture
def probe(analysed):
    """Return a function that runs the analysis on a folder of files and returns its finding."""

    def run(folder, **options):
        return analysed.analyze("probing", probes=str(folder), **options)

    return run


@pytest.fixture
def loaded(monkeypatch):
    """Return a counter of the loads of each system's weights."""
    loads, load_system = Counter(), loading.load_system

    def counting(run, system, *more, **options):
        loads[system.name] += 1
        return load_system(run, system, *more, **options)

    monkeypatch.setattr(loading, "load_system", counting)
    return loads


def test_vectors_are_computed_once_for_each_task_and_layer(
    analysed, probe, tmp_path, counted, loaded
):
    analysed.system(model=DEEP)
    folder = tmp_path / "probes"
    first = probe(probe_files(folder))
    assert counted == {"base": 120}
    loaded.clear()
    again = probe(folder, force=True)
    assert counted == {"base": 120} and not loaded
    assert again == first  # with the checkpoints of the vectors
    for options in ({"layer": "1"}, {"force": True}):  # one layer does not replace the other
        probe(folder, **options)
        assert counted == {"base": 240}
    probe(probe_files(folder, 50, ["own"]))
    assert counted == {"base": 290}


def test_new_checkpoint_replaces_only_the_vectors_of_its_system_tasks_and_layer(
    analysed, probe, tmp_path, counted
):
    folder = probe_files(tmp_path / "probes")
    for name in ("base", "other"):
        analysed.system(name)
    for options in ({"layer": "1"}, {}):
        probe(folder, **options)
    torch.manual_seed(5)
    built = build_model("transformer", SMALL, Vocabularies(TOKENS, TOKENS, True))
    about = {"vocabulary": loading.vocabulary_hashes(analysed.run)}

    def stored():
        features = analysed.folder("probing") / ".features" / "other"
        return {path.name for path in features.iterdir()}

    before = stored()
    system = analysed.run.system("other")
    checkpoints.save(system.checkpoints, 2, loading.weights_of(built), {}, {}, about)
    classifiers = probe(folder, force=True)["facts"]["classifiers"]
    assert counted == {"base": 240, "other": 360}
    assert len(stored()) == len(before) == 4 and len(stored() - before) == 2
    assert classifiers["base"] != classifiers["other"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:200],
        lambda content: b"PK" + content[2:],
        lambda content: content.replace(b"'descr'", b"'descr(", 1),
        lambda content: re.sub(rb"'shape': \(\d", b"'shape': ( ", content, count=1),
    ],
)
def test_damaged_vectors_are_computed_again(analysed, probe, tmp_path, counted, stderr, damage):
    analysed.system()
    folder = probe_files(tmp_path / "probes", tasks=["own"])
    before = probe(folder)
    (stored,) = (analysed.folder("probing") / ".features" / "base").iterdir()
    damaged = damage(stored.read_bytes())
    assert damaged != stored.read_bytes()
    stored.write_bytes(damaged)
    again = probe(folder, force=True)
    assert counted == {"base": 120} and again["table"] == before["table"]
    assert f"{stored} is damaged and computed again" in stderr()


def test_key_of_stored_vectors_depends_on_settings_and_preparation(analysed):
    analysed.system()
    system, prep = analysed.run.system("base"), analysed.run.prep
    keys = []
    for path, before, after in (
        (system.config, "", ""),
        (system.config, "beam = 2", "beam = 2\nmax_source = 7"),
        (system.config, "dropout = 0.1", "dropout = 0.2"),
        (prep / "vocab.txt", "w9", "v9"),
        (prep / "manifest.json", '"fingerprint": "', '"fingerprint": "0'),
    ):
        path.write_text(path.read_text("utf-8").replace(before, after, 1), "utf-8")
        keys.append(Reader(Study(analysed.run, "probing", ["base"], []), "base", 0).key)
    assert len({*keys}) == 5


def test_accuracies_have_intervals_majorities_and_categories(
    analysed, probe, tmp_path, stdout, two_cores
):
    analysed.system()
    analysed.system("small", "transformer", {**SMALL, "d_model": 16})
    names = ("sentence_length", "past_present", "tree_depth", "own")
    finding = probe(probe_files(tmp_path / "probes", 400, names))
    rows = finding["table"]["rows"]
    # The average of one task is that task.
    assert [(row["category"], row["task"]) for row in rows] == [
        ("surface", "sentence_length"),
        ("syntactic", "tree_depth"),
        ("semantic", "past_present"),
        ("other", "own"),
    ]
    first, facts = rows[0], finding["facts"]["classifiers"]["base"]["sentence_length"]
    assert (first["classes"], first["sentences"]) == (2, 80)
    assert first["base"] == vars(wilson(facts["right"], facts["count"]))
    # Longer sentences have other positions.
    assert first["base"]["value"] > 90 > 60 > first["majority class"]["value"]
    assert 0 < first["small, embeddings"]["value"] < first["base"]["value"]
    assert "base, embeddings" in stdout()
    series = ["majority class", "base", "small", "base, embeddings", "small, embeddings"]
    analysed.check_bars("probing", rows, "task", series)


def test_majority_class_and_a_system_named_majority_are_two_columns(analysed, probe, tmp_path):
    analysed.system("majority")
    row = probe(probe_files(tmp_path, 40, ["own"]))["table"]["rows"][0]
    keys = ["majority class", "majority", "majority, embeddings"]
    assert [*row][-3:] == keys


def test_majority_is_of_the_training_part_and_averages_have_mean_intervals(tmp_path):
    labels = ["tr\ta", "tr\ta", "tr\tb", "va\tb", "te\tb", "te\tb", "te\tb", "te\ta"]
    write(tmp_path / "own.txt", [f"{label}\tx{i}" for i, label in enumerate(labels)])
    assert probing.majority(probing.read("own", [tmp_path / "own.txt"])).value == 25.0
    mean = probing.average([Estimate(50.0, 47.0, 56.0), Estimate(70.0, 66.0, 78.0)])
    assert mean == Estimate(60.0, 57.5, 65.0)
    assert probing.average([Estimate(50.0, 40.0, 60.0)]) == Estimate(50.0, 40.0, 60.0)
    assert probing.average([Estimate(None), Estimate(50.0, 40.0, 60.0)]).value is None


PAPER = """
citation = "Somebody 2020"
[tables.probes]
title = "Table 4"
metric = "accuracy"
columns = [
  { name = "SentLen", dataset = "mine", set = "senteval", task = "sentence_length" },
  { name = "WC", dataset = "mine", set = "senteval", task = "word_content" },
  { name = "surface", dataset = "mine", set = "senteval", task = "surface" },
]
rows = [
  { printed = "Base", system = "base", numbers = { SentLen = 93.0, WC = 70.0, surface = 81.5 } },
  { printed = "Other", system = "other", numbers = { SentLen = 94.0 } },
]
"""


def test_missing_context_of_probing_sentences_is_noted(analysed, probe, tmp_path, stderr):
    analysed.system("doc", "amn")
    message = "reads context, but the probing sentences have none: it reads single sentences"
    for _ in range(2):  # the second call reads no weights
        notes = probe(probe_files(tmp_path, 40, ["own"]), force=True)["table"]["notes"]
        assert f"'doc' {message}" in stderr() and notes[-1] == f"doc {message}"


def test_unknown_subwords_of_probing_sentences_are_noted(analysed, probe, tmp_path):
    analysed.system()
    path = probe_files(tmp_path, 40, ["own"]) / "own.txt"
    path.write_text(path.read_text("utf-8").replace(" w", " v"), "utf-8")
    notes = probe(tmp_path)["table"]["notes"]
    assert notes[-1].startswith("unknown subwords: 7") and "probing sentences" in notes[-1]


@pytest.fixture
def beside_paper(analysed, probe, tmp_path, monkeypatch, stdout):
    """Return a function that probes with the first tasks of a paper, from files of one's own or
    the paper's, and returns the accuracies by task and the rows beside the printed numbers.
    """
    (tmp_path / "paper.toml").write_text(PAPER, "utf-8")
    analysed.system()
    analysed.change_manifest(dataset="mine")
    tasks = ("sentence_length", "word_content")
    published_files = probe_files(tmp_path / "published", tasks=tasks)
    monkeypatch.setattr(
        published, "evaluation_set", lambda name: {"senteval": published_files}[name]
    )

    def run(folder):
        finding = probe(folder, paper=str(tmp_path / "paper.toml"), table="probes")
        assert "Table 4, printed and measured" in stdout()
        keys = ("system", "column", "measured", "difference")
        printed = [tuple(row[key] for key in keys) for row in finding["paper"]["rows"]]
        return {row["task"]: row["base"]["value"] for row in finding["table"]["rows"]}, printed

    return run


def test_accuracies_on_other_files_have_no_difference_to_a_papers(beside_paper, tmp_path):
    accuracies, rows = beside_paper(probe_files(tmp_path / "mine", tasks=["sentence_length"]))
    assert rows == [
        ("base", "SentLen", accuracies["sentence_length"], None),
        ("not measured", "WC", None, None),
        ("not measured", "surface", None, None),  # a mean of tasks, one of which is missing
        ("not in this comparison", "SentLen", None, None),  # the run has no such system
    ]


def test_accuracies_on_a_papers_files_have_a_difference(beside_paper):
    accuracies, rows = beside_paper("senteval")
    printed = {"sentence_length": 93, "word_content": 70, "average of 2": 81.5}
    for (task, number), (_, _, measured, difference) in zip(printed.items(), rows, strict=False):
        assert measured == pytest.approx(accuracies[task])
        assert difference + number == pytest.approx(measured)


def test_model_without_source_states_is_left_out_or_refused(analysed, probe, tmp_path, stderr):
    analysed.system("toy", TOY, {})
    folder = probe_files(tmp_path / "probes", tasks=["own"])
    message = "toy: no states of source positions.*'summary'"
    analysed.refused("probing", DataError, message, probes=str(folder))
    analysed.system()
    analysed.system("search", "rnnsearch", load_variant("rnnsearch").adapt(SMALL))
    finding = probe(folder)
    ((name, reason),) = finding["facts"]["left_out"].items()
    assert name == "toy" and reason.startswith("no states")
    assert "left out: toy: no states" in stderr()
    assert {"base", "search", "search, embeddings"} <= finding["table"]["rows"][0].keys()


def test_bad_layers_sets_and_languages_are_refused(analysed, tmp_path):
    analysed.system()
    analysed.system("search", "rnnsearch", load_variant("rnnsearch").adapt(SMALL))
    folder = probe_files(tmp_path / "probes", tasks=["own"])
    for error, message, options in (
        (DataError, "base: no layer 2: its encoder has 1", {"layer": "2", "systems": ["base"]}),
        (DataError, "has no separate layers", {"layer": "1", "systems": ["search"]}),
        (ConfigError, "bad value for .*layer", {"layer": "top"}),
        (ConfigError, "bad value for .*layer", {"layer": "-1"}),
        (ConfigError, "reads no set of the run", {"set_names": ["test"]}),
        (ConfigError, "no probing files of its own", {"probes": ""}),
    ):
        analysed.refused("probing", error, message, **{"probes": str(folder), **options})
    analysed.change_manifest(src="de")
    message = "are English, but this run translates from 'de'"
    analysed.refused("probing", ConfigError, message, probes="senteval")


def test_demo_corpus_has_default_probing_files(analysed, tmp_path):
    generate(tmp_path / "demo", size=300, seed=1)
    folder = analysed.run.prep / "eval"
    folder.mkdir()
    (tmp_path / "demo" / "probing").rename(folder / "probing")
    words = Counter((tmp_path / "demo" / "train.en").read_text("utf-8").split())
    known = [word for word, _ in words.most_common(TOKENS - 4)]
    write(analysed.run.prep / "vocab.txt", ["<pad>", "<s>", "</s>", "<unk>", *known])
    analysed.system()
    finding = analysed.analyze("probing")
    rows = {row["task"]: row for row in finding["table"]["rows"]}
    assert len(finding["facts"]["tasks"]) == 10
    assert {"average of 2", "average of 3", "average of 5"} < rows.keys()
    assert (rows["sentence_length"]["classes"], rows["word_content"]["sentences"]) == (6, 20)
