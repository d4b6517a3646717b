"""--like, --codes and --vocab: prep uses a given text model and learns nothing."""

import gzip
import re
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError
from nmtkit.prep.clean import Cleaner
from nmtkit.prep.learn import learn
from nmtkit.prep.stage import prep
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies, read_counts
from tests.manifests import read_json, write_json
from tests.prep.corpora import own_files, pairs, prepare
from tests.refused import refused

LANGUAGES = ("en", "de")
KINDS = [
    {},
    {"joint_vocab": False, "vocab_threshold": 9},
    {"vocab_threshold": 9},
    {"merges": 0},
]


def word_tables(count, seed):
    """Return the word tables of some pairs, as prep counts those of a shard."""
    chunk = [
        "".join(f"{s}\n" for s in side).encode() for side in zip(*pairs(count, seed), strict=True)
    ]
    clean = Cleaner(LANGUAGES, PrepSettings())
    assert clean(chunk).all()
    return [text.finish(0)[1] for text in clean.texts]


def read_folder(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(params=KINDS, ids=lambda values: "-".join(values) or "joint")
def learn_in(request, small_shards):
    """Return a function that learns the models of some pairs in a folder."""
    settings = PrepSettings(**{"merges": 40, **request.param})

    def call(folder, count, seed):
        folder.mkdir(exist_ok=True)
        return learn(word_tables(count, seed), LANGUAGES, settings, folder, 1)

    return call


def test_files_in_the_folder_are_read_instead_of_learnt(tmp_path, learn_in):
    first, other, anew = (tmp_path / name for name in ("first", "other", "anew"))
    learn_in(first, 100, 3)
    shutil.copytree(first, other)
    learn_in(other, 200, 5)
    learn_in(anew, 200, 5)
    files, different = read_folder(first), read_folder(anew)
    assert read_folder(other) == files
    assert different.keys() == files.keys()
    assert all(different[name] != files[name] for name in files)


def test_models_read_from_files_equal_the_learnt_ones(tmp_path, learn_in):
    learnt, read = (learn_in(tmp_path / "models", 100, 3) for _ in range(2))
    for one, other in zip(learnt.words, read.words, strict=True):
        assert [*one.words] == [*other.words]
        assert one.counts.tolist() == other.counts.tolist()
    learnt_tokens, read_tokens = (
        [pieces.counts(side.counts) for pieces, side in zip(m.segmented, m.words, strict=True)]
        for m in (learnt, read)
    )
    assert learnt_tokens == read_tokens
    assert learnt.counts == read.counts
    assert [*map(list, learnt.vocabularies)] == [*map(list, read.vocabularies)]


SETTINGS = ["merges=60", "joint_vocab=false", "truecase=src", "min_frequency=2", "escape=true"]


@pytest.fixture
def source(tmp_path):
    return prepare(tmp_path, own_files(tmp_path, pairs(200, 3)), "source", SETTINGS)


def encode_rows(run, rows):
    """Return the token ids of pairs, encoded line by line with the text model of a run."""
    sides = [TextSide.load(run.prep, name) for name in ("src", "tgt")]
    vocabularies = load_vocabularies(run.prep)
    return [
        [v.encode(s.encode(line)) for v, s, line in zip(vocabularies, sides, row, strict=True)]
        for row in rows
    ]


def stored_ids(run, name="train"):
    store = Store(run.prep / name)
    return [[store.src(i).tolist(), store.tgt(i).tolist()] for i in range(len(store))]


TEXT_MODEL = {
    *("truecase.en", "codes.src.bpe", "codes.tgt.bpe", "bpe-vocab.src.txt"),
    *("bpe-vocab.tgt.txt", "vocab.src.txt", "vocab.tgt.txt"),
}
OWN_SETTINGS = {
    "max_words": 100,
    "memory": 1.0,
    "shard_lines": 70,
    "max_subwords": 90,
    "max_ratio": 50.0,
}


@pytest.fixture
def rows():
    return [*pairs(100, 9), ("Xylophones eat 🍎.", "Xylophone essen Äpfel.")]


@pytest.fixture
def files(tmp_path, rows):
    """Another corpus than that of `source`."""
    return own_files(tmp_path / "new", rows, pairs(30, 11))


def test_like_encodes_with_the_text_model_of_the_other_run(
    tmp_path, source, rows, files, small_shards, stderr
):
    run = prepare(tmp_path, files, preset=None, like=source.path)
    printed = stderr()
    assert f"of {source.path} (fingerprint {source.manifest().fingerprint[:12]})" in printed
    assert "train train: 101 lines, unknown subwords source" in printed
    assert stored_ids(run) == encode_rows(source, rows)
    assert stored_ids(run, "dev") == encode_rows(source, pairs(30, 11))
    given = run.manifest().source["given"]
    assert given == {name: source.manifest().files[name] for name in TEXT_MODEL}
    for name in given:
        assert (run.prep / name).read_bytes() == (source.prep / name).read_bytes()
    learnt = prepare(tmp_path, files, "learnt", SETTINGS)
    assert stored_ids(learnt) != stored_ids(run)
    assert learnt.manifest().fingerprint != run.manifest().fingerprint


def test_like_takes_the_settings_of_the_other_run_except_those_of_the_corpus(
    tmp_path, source, files
):
    settings = [f"{key}={value}" for key, value in OWN_SETTINGS.items()]
    manifest = prepare(tmp_path, files, preset=None, like=source.path, settings=settings).manifest()
    assert manifest.settings == source.manifest().settings.model_copy(update=OWN_SETTINGS)
    assert manifest.preset == source.manifest().preset == "tiny"


def test_run_like_another_is_up_to_date_until_the_other_changes(tmp_path, source, files, stderr):
    options = {"like": source.path, "settings": ["drop_overlap=exact"]}
    run = prepare(tmp_path, files, **options)
    prepare(tmp_path, files, **options)
    assert f"{run.prep} is up to date" in stderr()
    prepare(tmp_path, own_files(tmp_path, pairs(200, 4)), "source", SETTINGS, force=True)
    caught = refused(ConfigError, "prepared differently", prepare, tmp_path, files, **options)
    assert "source.given.codes.src.bpe" in str(caught.where)


def test_registered_data_set_can_be_prepared_like_another_run(tmp_path):
    first = prep("demo", size=200, run_dir=tmp_path / "a", assignments=["prep.merges=80"], jobs=1)
    other = prep("demo", size=90, seed=5, run_dir=tmp_path / "b", like=first.path, jobs=1)
    assert (other.prep / "vocab.txt").read_bytes() == (first.prep / "vocab.txt").read_bytes()
    assert other.manifest().settings.merges == 80


def gzipped(path):
    copy = path.parents[2] / f"{path.name}.gz"
    copy.write_bytes(gzip.compress(path.read_bytes()))
    return copy


@pytest.fixture(params=["true", "false"])
def learnt(request, tmp_path, small_shards):
    """A run whose codes and vocabularies are given to others, and its settings but merges."""
    settings = [f"joint_vocab={request.param}", "vocab_threshold=9"]
    files = own_files(tmp_path, pairs(200, 3))
    run = prepare(tmp_path, files, "learnt", [*settings, "merges=60"])
    codes = [*run.prep.glob("codes*")]
    assert len(codes) == {"true": 1, "false": 2}[request.param]
    return SimpleNamespace(run=run, settings=settings, files=files, codes=sorted(codes))


def test_given_codes_give_the_corpus_that_learnt_them(tmp_path, learnt):
    run = prepare(tmp_path, learnt.files, "codes", learnt.settings, codes=learnt.codes)
    given, expected = run.manifest(), learnt.run.manifest()
    for field in ("settings", "files", "corpus"):
        assert getattr(given, field) == getattr(expected, field)


def test_given_codes_and_vocabularies_give_the_same_subwords(tmp_path, learnt):
    """The files are compressed. The vocabulary of the run is that of the given counts."""
    listed = [learnt.run.prep / f"bpe-vocab.{side}.txt" for side in ("src", "tgt")]
    given = {"codes": [*map(gzipped, learnt.codes)], "vocab": [*map(gzipped, listed)]}
    run = prepare(tmp_path, learnt.files, "given", learnt.settings, **given)
    assert run.manifest().settings == learnt.run.manifest().settings
    for kind in ("truecase", "codes", "bpe-vocab"):
        for path in learnt.run.prep.glob(f"{kind}*"):
            assert (run.prep / path.name).read_bytes() == path.read_bytes()
    vocabularies = load_vocabularies(run.prep)
    assert subwords_of(run) == subwords_of(learnt.run)
    totals = [Counter(read_counts(path)) for path in listed]
    if vocabularies[0] is vocabularies[1]:
        totals = [totals[0] + totals[1]] * 2
    for vocabulary, total in zip(vocabularies, totals, strict=True):
        counts = [total[token] for token in list(vocabulary)[4:]]
        assert len(counts) == len(total)
        assert counts == sorted(counts, reverse=True)


def subwords_of(run):
    """Return the training subwords of each side."""
    sides = zip(load_vocabularies(run.prep), zip(*stored_ids(run), strict=True), strict=True)
    return [[[vocabulary[i] for i in ids] for ids in side] for vocabulary, side in sides]


def test_vocabulary_of_text_that_is_split_already_is_used(tmp_path):
    rows = [("lo@@ w er", "nie@@ der"), ("low", "nieder"), ("er lo@@ w", "der nie@@ der")] * 10
    (tmp_path / "vocab").write_text("er 5\nder 4\nlo@@ 3\nw 2\nnie@@ 1\n", "utf-8")
    values = ["src_tokenizer=none", "tgt_tokenizer=none", "subwords=none", "min_frequency=2"]
    run = prepare(tmp_path, own_files(tmp_path, rows), settings=values, vocab=tmp_path / "vocab")
    assert list(load_vocabularies(run.prep)[0])[4:] == ["er", "der", "lo@@", "w"]
    assert stored_ids(run)[:2] == [[[6, 7, 4, 2], [3, 5, 2]], [[3, 2], [3, 2]]]


WRONG = [
    ({"settings": ["merges=9"]}, "prep.merges is 9, but 60 in the text model"),
    ({"settings": ["joint_vocab=true"]}, "prep.joint_vocab is true, but false in the text model"),
    ({"settings": ["tgt_tokenizer=none"]}, 'tgt_tokenizer is "none", but "auto" in the text model'),
    ({"tgt": "fr"}, "is en-de, and this corpus is en-fr"),
    ({"src": "de", "tgt": "en"}, "is en-de, and this corpus is de-en"),
    ({"codes": "x.codes"}, "--codes and --like exclude each other"),
    ({"like": "gone"}, "no such folder"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_like_with_other_settings_or_languages_is_refused(
    tmp_path, source, files, options, message
):
    values = {"like": source.path, "settings": [], **options}
    refused((ConfigError, DataError), re.escape(message), prepare, tmp_path, files, **values)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["changed", "gone", "not in the manifest"])
@pytest.mark.parametrize("name", ["codes.src.bpe", "vocab.tgt.txt", "truecase.en"])
def test_like_with_a_damaged_text_model_is_refused(tmp_path, source, files, name, how):
    message = f"{name} has changed since it was prepared"
    if how == "changed":
        (source.prep / name).write_bytes((source.prep / name).read_bytes() + b"x y\n")
    elif how == "gone":
        message = f"{name} is missing"
        (source.prep / name).unlink()
    else:
        manifest = read_json(source.prep / "manifest.json")
        del manifest["files"][name]
        write_json(source.prep / "manifest.json", manifest)
    error = refused(DataError, message, prepare, tmp_path, files, like=source.path)
    assert str(source.path) in error.hint
    assert not (tmp_path / "run").exists()


DAMAGED = [
    ({"src": "../../en"}, "'src' '../../en' cannot be a name"),
    ({"preset": "gone"}, "unknown preset 'gone'"),
    ({"settings": {"merges": "many"}}, "settings.merges"),
    ({"settings": {"merges": 70}}, "prep.merges is 60, but 70 in the text model"),
]


@pytest.mark.parametrize(("values", "message"), DAMAGED, ids=lambda value: str(value)[:30])
def test_like_with_a_damaged_manifest_is_refused(tmp_path, source, files, values, message):
    path = source.prep / "manifest.json"
    manifest = read_json(path)
    values = {**values, "settings": manifest["settings"] | values.get("settings", {})}
    write_json(path, manifest | values)
    options = {"preset": None, "like": source.path, "settings": ["merges=60"]}
    error = refused((ConfigError, DataError), None, prepare, tmp_path, files, **options)
    assert message in f"{error} {error.where}"
    assert not (tmp_path / "run").exists()


FILES = {
    "codes": "#version: 0.2\nt h\nth e</w>\n",
    "one": "#version: 0.2\nt h\n",
    "empty": "#version: 0.2\n",
    "bad": "#version: 0.2\nt h\nthe\n",
    "vocab": "the 3\nth@@ 2\n",
    "no-counts": "the 3\nth@@\n",
    "long-count": "the " + 5000 * "9" + "\n",
}
WRONG_FILES = [
    ({"vocab": "vocab"}, "a vocabulary needs the merges that lead to it"),
    ({"vocab": "vocab", "settings": ["subwords=sentencepiece"]}, "a vocabulary needs the merges"),
    ({"codes": "codes,codes", "vocab": "vocab"}, "two files of merges need two vocabularies"),
    ({"codes": "codes,codes,codes"}, "a file, or one for each side: got 3"),
    ({"codes": "bad"}, "not a BPE codes file"),
    ({"codes": "vocab"}, "not a BPE codes file"),
    ({"codes": "empty"}, "empty has no merges"),
    ({"codes": "gone"}, "no such file: gone"),
    ({"codes": "codes", "vocab": "no-counts"}, "not a subword vocabulary"),
    ({"codes": "codes", "vocab": "long-count"}, "not a subword vocabulary"),
    ({"codes": "codes,one", "settings": ["merges=9"]}, "prep.merges is 9, but 2 in the text model"),
    ({"vocab": "vocab", "settings": ["joint_vocab=false"]}, "is false, but true in the text model"),
    ({"codes": "codes,codes", "settings": ["joint_vocab=true"]}, "is true, but false in the text"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_FILES, ids=lambda value: str(value)[:40])
def test_wrong_codes_or_vocabulary_files_are_refused(
    tmp_path, files, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content, "utf-8")
    refused((ConfigError, DataError), re.escape(message), prepare, tmp_path, files, **options)
    assert not (tmp_path / "run").exists()
