"""Probing: vectors of sentences against encoding one by one, vectors kept on disk, and the
analysis from files to table.
"""

import csv
import io
import json
from collections import Counter

import numpy as np
import pytest
import torch

from nmtkit.analyze import probing, stage
from nmtkit.analyze.shared import sentence_vectors
from nmtkit.analyze.shared.sentence_vectors import Reader, encoder_states, source_table
from nmtkit.analyze.study import Study
from nmtkit.corpora import published
from nmtkit.data.batches import source_batch
from nmtkit.demo import generate
from nmtkit.errors import ConfigError, DataError
from nmtkit.models import checkpoints, loading
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import VARIANTS, build_model, load_variant
from nmtkit.nn.capture import capture
from nmtkit.run import write_toml
from nmtkit.score.significance import wilson
from nmtkit.tables.table import Estimate
from nmtkit.text.vocabulary import load_vocabularies
from tests.score.conftest import write

from .conftest import SMALL, TOKENS, TOY, finding

DEEP = {**SMALL, "encoder_layers": 2}
SENTENCES = [
    " ".join(f"w{(7 * i + 3 * j) % 96}" for j in range(length))
    for i, length in enumerate([3, 17, 1, 9, 30, 9, 12, 2])
]


def one_by_one(run, name, sentences, layer=0):
    """The mean state of each sentence, encoded alone, without padding; pieces of at most five
    words.
    """
    model = loading.load_system(run, run.find_system(name))
    vocabulary = load_vocabularies(run.prep)[0]
    for sentence in sentences:
        words = sentence.split()
        states = []
        for start in range(0, len(words), 5):
            batch = source_batch([vocabulary.encode(words[start : start + 5])])
            with torch.inference_mode(), capture():
                x = (
                    model.encode(batch)["states"]
                    if not layer
                    else model.encoder[0](model.src_embedder(batch.src), None)
                )
            states.append(x[0].double())
        yield torch.cat(states).mean(0).numpy()


def reader(analysed, layer):
    return Reader(Study(analysed.run, "probing", ["own"], []), "own", layer)


def with_pieces(analysed, name, variant, model):
    """A system that cuts sentences into pieces of five words."""
    built = analysed.system(name, variant, model)
    folder = analysed.run.path / "systems" / name
    write_toml(
        folder / "config.toml",
        {"variant": variant, "model": model, "train": {}, "search": {"max_source": 5}},
    )
    return built


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_mean_is_that_of_sentences_encoded_one_by_one(variant, analysed, monkeypatch):
    monkeypatch.setattr(sentence_vectors, "POSITIONS", 24)
    with_pieces(analysed, "own", variant, load_variant(variant).adapt(SMALL))
    found = reader(analysed, 0).vectors(SENTENCES)
    wanted = np.stack(list(one_by_one(analysed.run, "own", SENTENCES)))
    np.testing.assert_allclose(found["states"], wanted, atol=1e-5, rtol=0)
    assert len(np.unique(found["states"].round(4), axis=0)) == len(SENTENCES)


def test_lower_layers_and_embeddings(analysed):
    with_pieces(analysed, "own", "transformer", DEEP)
    found = reader(analysed, 1).vectors(SENTENCES)
    wanted = np.stack(list(one_by_one(analysed.run, "own", SENTENCES, layer=1)))
    np.testing.assert_allclose(found["states"], wanted, atol=1e-5, rtol=0)
    top, second = (reader(analysed, layer).vectors(SENTENCES) for layer in (0, 2))
    assert np.array_equal(top["states"], second["states"]) and not np.allclose(
        top["states"], found["states"]
    )  # no norm at the end of this stack
    model, vocabulary = (
        loading.load_system(analysed.run, analysed.run.find_system("own")),
        load_vocabularies(analysed.run.prep)[0],
    )
    words = [
        [
            i
            for start in range(0, len(s.split()), 5)
            for i in vocabulary.encode(s.split()[start : start + 5])
        ]
        for s in SENTENCES
    ]
    bag = torch.stack([model.src_embedder.table.weight[own].mean(0) for own in words])
    np.testing.assert_allclose(found["embeddings"], bag.detach(), atol=1e-6, rtol=0)


def test_phrases_are_hooked_where_they_end(analysed):
    analysed.system("own", "pr", DEEP)
    model = loading.load_system(analysed.run, analysed.run.find_system("own"))
    batch = source_batch([[5, 6, 7, 2], [5, 2]])
    with torch.inference_mode():
        assert torch.equal(encoder_states(model, batch, 2), encoder_states(model, batch, 0))
        assert not torch.allclose(encoder_states(model, batch, 1), encoder_states(model, batch, 0))


@pytest.mark.parametrize("variant", [*VARIANTS, TOY])
def test_the_table_of_every_models_sources_is_found(variant):
    model = build_model(
        variant, load_variant(variant).adapt({**SMALL, "tie": "none"}), Vocabularies(23, 29, False)
    ).eval()
    table = source_table(model)
    assert table is not None and len(table) == 23


def probe_files(folder, count=60, tasks=("sentence_length", "own")):
    """Tasks that ask whether a sentence is long, in SentEval's form."""
    for task in tasks:
        lines = []
        for i in range(count):
            length = 3 + i % 4 + 8 * (i % 2)
            part = "te" if i % 5 == 0 else "va" if i % 5 == 1 else "tr"
            lines.append(
                f"{part}\t{'long' if length > 8 else 'short'}\t"
                + " ".join(f"w{(11 * i + j * j) % 90}" for j in range(length))
            )
        write(folder / f"{task}.txt", lines)
    return folder


@pytest.fixture
def counted(monkeypatch):
    """How many sentences each system has read."""
    counts = Counter()
    vectors = Reader.vectors

    def counting(self, sentences):
        counts[self.name] += len(sentences)
        return vectors(self, sentences)

    monkeypatch.setattr(Reader, "vectors", counting)
    return counts


def analyze(analysed, folder, **options):
    stage.analyze(analysed.run, "probing", probes=str(folder), **options)
    return finding(analysed.run, "probing")


def test_vectors_are_computed_once_for_each_checkpoint_task_and_layer(
    analysed, tmp_path, counted, monkeypatch
):
    analysed.system("base", "transformer", DEEP)
    analysed.system("other", "transformer", DEEP)
    folder = probe_files(tmp_path / "probes")
    first = analyze(analysed, folder)
    assert counted == {"base": 120, "other": 120}
    loaded = Counter()
    load_system = loading.load_system

    def counting(run, system, *more, **options):
        loaded[system.name] += 1
        return load_system(run, system, *more, **options)

    monkeypatch.setattr(loading, "load_system", counting)
    again = analyze(analysed, folder, force=True)
    assert counted == {"base": 120, "other": 120} and not loaded  # not even the model is read
    assert again["table"] == first["table"]
    analyze(analysed, folder, layer="1")
    assert counted == {"base": 240, "other": 240}
    analyze(analysed, folder, force=True)
    assert counted == {"base": 240, "other": 240}  # a layer's do not push out another's
    probe_files(folder, 50, ["own"])
    analyze(analysed, folder)
    assert counted == {"base": 290, "other": 290}
    torch.manual_seed(5)
    built = build_model("transformer", DEEP, Vocabularies(TOKENS, TOKENS, True))
    where = analysed.run.path / "systems" / "other" / "checkpoints"
    before = sorted(
        path.name
        for path in (analysed.run.path / "analyze" / "probing" / ".features" / "other").iterdir()
    )
    checkpoints.save(
        where,
        2,
        loading.weights_of(built),
        {},
        {},
        {"vocabulary": loading.vocabulary_hashes(analysed.run)},
    )
    changed = analyze(analysed, folder, force=True)
    assert counted == {"base": 290, "other": 400} and loaded["other"] == 3
    after = sorted(
        path.name
        for path in (analysed.run.path / "analyze" / "probing" / ".features" / "other").iterdir()
    )
    assert (
        len(after) == len(before) and len(set(after) - set(before)) == 2
    )  # the old weights' are gone, those of other files and layers stay
    assert changed["facts"]["classifiers"]["base"] != changed["facts"]["classifiers"]["other"]


def test_an_analysis_is_up_to_date_until_a_file_of_its_folder_changes(analysed, tmp_path, capsys):
    analysed.system("base", "transformer", SMALL)
    folder = probe_files(tmp_path / "probes", tasks=["own"])
    analyze(analysed, folder)
    capsys.readouterr()
    analyze(analysed, folder)
    assert "up to date" in capsys.readouterr().err
    probe_files(folder, 70, ["own"])
    analyze(analysed, folder)
    assert "up to date" not in capsys.readouterr().err


def test_the_table(analysed, tmp_path, capsys):
    analysed.system("base", "transformer", SMALL)
    analysed.system("small", "transformer", {**SMALL, "d_model": 16})
    found = analyze(
        analysed,
        probe_files(
            tmp_path / "probes", 400, ("sentence_length", "past_present", "tree_depth", "own")
        ),
    )
    rows = found["table"]["rows"]
    assert [(row["category"], row["task"]) for row in rows] == [
        *(("surface", "sentence_length"), ("surface", "average of 1")),
        *(("syntactic", "tree_depth"), ("syntactic", "average of 1")),
        *(("semantic", "past_present"), ("semantic", "average of 1")),
        *(("other", "own"), ("other", "average of 1")),
    ]
    first = rows[0]
    assert (first["classes"], first["sentences"]) == (2, 80)
    own = found["facts"]["classifiers"]["base"]["sentence_length"]
    assert first["base"] == vars(wilson(own["right"], own["count"]))
    assert (
        first["base"]["value"] > 90 > 60 > first["majority"]["value"]
    )  # a long sentence has other positions
    assert 0 < first["small, embeddings"]["value"] < first["base"]["value"]
    out = capsys.readouterr().out
    assert "base, embeddings" in out and "majority" in out
    assert "past_present" in (analysed.run.path / "analyze" / "probing" / "figure.svg").read_text(
        "utf-8"
    )


def test_majority_is_of_training_and_average_widens_with_its_parts(tmp_path):
    write(
        tmp_path / "own.txt",
        [
            "tr\ta\tx",
            "tr\ta\ty",
            "tr\tb\tz",
            "va\tb\tv",
            "te\tb\tu",
            "te\tb\tw",
            "te\tb\ts",
            "te\ta\tt",
        ],
    )
    task = probing.read("own", [tmp_path / "own.txt"])
    assert probing.majority(task).value == 25.0
    found = probing.average([Estimate(50.0, 47.0, 56.0), Estimate(70.0, 66.0, 78.0)])
    assert (found.value, found.low, found.high) == (60.0, 57.5, 65.0)
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
[tables.scores]
title = "Table 1"
metric = "BLEU"
columns = [{ name = "BLEU", score = "bleu" }]
rows = [{ printed = "Base", system = "base", numbers = { BLEU = 20 } }]
"""


def test_accuracies_beside_the_papers(analysed, tmp_path, monkeypatch, capsys):
    """With a difference where corpus and probing files are the paper's; a mean of tasks only
    where none of them is missing.
    """
    (tmp_path / "paper.toml").write_text(PAPER, "utf-8")
    analysed.system("base", "transformer", SMALL)
    one, both = (
        probe_files(tmp_path / str(i), tasks=("sentence_length", "word_content")[: i + 1])
        for i in range(2)
    )
    monkeypatch.setattr(published, "evaluation_set", lambda name: both)
    manifest = analysed.run.path / "prep" / "manifest.json"
    manifest.write_text(
        json.dumps(json.loads(manifest.read_text("utf-8")) | {"dataset": "mine"}), "utf-8"
    )
    told = {"paper": str(tmp_path / "paper.toml"), "table": "probes"}

    def beside(folder):
        found = {
            row["task"]: row["base"]["value"]
            for row in analyze(analysed, folder, **told)["table"]["rows"]
        }
        text = (analysed.run.path / "analyze" / "probing" / "paper.csv").read_text("utf-8")
        assert "Table 4, printed and measured" in capsys.readouterr().out
        return found, [
            tuple(row[key] for key in ("system", "column", "measured", "difference"))
            for row in csv.DictReader(io.StringIO(text))
        ]

    found, rows = beside(str(one))
    left_out = (
        "not in this comparison",
        "SentLen",
        "",
        "",
    )  # a row of the paper that is no system here
    assert rows == [
        ("base", "SentLen", str(found["sentence_length"]), ""),
        *[("not measured", n, "", "") for n in ("WC", "surface")],
        left_out,
    ]
    found, rows = beside("senteval")
    values = [found["sentence_length"], found["word_content"], found["average of 2"]]
    assert [float(row[2]) for row in rows[:3]] == pytest.approx(values)
    assert [float(row[3]) for row in rows[:3]] == pytest.approx(
        [values[0] - 93, values[1] - 70, values[2] - 81.5]
    )
    with pytest.raises(ConfigError, match="of which paper"):
        analyze(analysed, str(one), table="probes")
    with pytest.raises(
        ConfigError, match="the paper's table 'scores' has no accuracies of probing tasks"
    ) as error:
        analyze(analysed, str(one), paper=told["paper"], table="scores")
    assert "these have: probes" in error.value.hint


def test_what_cannot_be_probed_is_said(analysed, tmp_path, capsys):
    analysed.system("toy", TOY, {})
    folder = probe_files(tmp_path / "probes", tasks=["own"])
    with pytest.raises(DataError, match=r"toy: no states of source positions.*'summary'"):
        analyze(analysed, folder)
    analysed.system("base", "transformer", SMALL)
    analysed.system("search", "rnnsearch", load_variant("rnnsearch").adapt(SMALL))
    found = analyze(analysed, folder)
    assert (
        found["facts"]["left_out"] == ["toy"]
        and "left out: toy: no states" in capsys.readouterr().err
    )
    assert {"base", "search", "search, embeddings"} <= found["table"]["rows"][0].keys()
    with pytest.raises(DataError, match="base: no layer 2: its encoder has 1"):
        analyze(analysed, folder, layer="2", systems=["base"])
    with pytest.raises(DataError, match="not made of layers"):
        analyze(analysed, folder, layer="1", systems=["search"])
    for layer in ("top", "-1"):
        with pytest.raises(ConfigError, match=r"bad value for .*layer"):
            analyze(analysed, folder, layer=layer)
    with pytest.raises(ConfigError, match="no probing files of its own"):
        stage.analyze(analysed.run, "probing")
    with pytest.raises(ConfigError, match="reads no set of the run"):
        analyze(analysed, folder, set_names=["test"])


def test_sentevals_files_by_name(analysed, tmp_path, monkeypatch):
    folder = probe_files(tmp_path / "cache" / "senteval", tasks=["tree_depth"])
    monkeypatch.setattr(published, "evaluation_set", lambda name: {"senteval": folder}[name])
    analysed.system("base", "transformer", SMALL)
    assert list(analyze(analysed, "senteval")["facts"]["tasks"]) == ["tree_depth"]
    manifest = analysed.run.path / "prep" / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace('"src": "en"', '"src": "de"'), "utf-8")
    with pytest.raises(ConfigError, match="are English, the sources of this run are 'de'"):
        analyze(analysed, "senteval", force=True)


def test_the_demos_own_files(analysed, tmp_path):
    """The default of a run that was prepared from the demo corpus; its words are known, its
    model is not trained.
    """
    generate(tmp_path / "demo", size=300, seed=1)
    probes = analysed.run.prep / "eval" / "probing"
    (tmp_path / "demo" / "probing").rename((probes.mkdir(parents=True), probes)[1])
    words = Counter(
        word
        for line in (tmp_path / "demo" / "train.en").read_text("utf-8").splitlines()
        for word in line.split()
    )
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *(word for word, _ in words.most_common(TOKENS - 4))]
    write(analysed.run.prep / "vocab.txt", tokens)
    analysed.system("base", "transformer", SMALL)
    analysed.system("enc-dc", "enc-dc", SMALL)
    stage.analyze(analysed.run, "probing")
    found = finding(analysed.run, "probing")
    rows = {row["task"]: row for row in found["table"]["rows"]}
    assert (
        len(found["facts"]["tasks"]) == 10
        and {"average of 2", "average of 3", "average of 5"} < rows.keys()
    )
    assert (rows["sentence_length"]["classes"], rows["word_content"]["sentences"]) == (6, 20)
    assert all(
        0 <= row[name]["value"] <= 100
        for row in rows.values()
        for name in ("majority", "base", "enc-dc", "base, embeddings")
    )


def test_a_real_file(analysed, tmp_path, shared):
    """A slice of X-Probe's word content, four of its thousand words, by the embeddings of words
    that the vocabulary knows.
    """
    import lzma

    wanted = ("zone", "youngest", "yellow", "writers")
    for part in ("va", "te"):
        lines = (
            lzma.decompress(
                (shared / "data" / "xprobe_en" / "word_content" / f"{part}.txt.xz").read_bytes()
            )
            .decode()
            .splitlines()
        )
        write(
            tmp_path / "x" / "word_content" / f"{part}.txt",
            [line for line in lines if line.split("\t")[1] in wanted],
        )
    write(
        analysed.run.prep / "vocab.txt",
        ["<pad>", "<s>", "</s>", "<unk>", *wanted, *(f"w{i}" for i in range(TOKENS - 8))],
    )
    analysed.system("base", "transformer", SMALL)
    row = analyze(analysed, tmp_path / "x")["table"]["rows"][0]
    assert (row["task"], row["classes"], row["sentences"], row["majority"]["value"]) == (
        "word_content",
        4,
        40,
        25.0,
    )
    assert row["base, embeddings"]["value"] > 60
