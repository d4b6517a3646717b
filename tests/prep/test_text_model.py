"""A text model that is given instead of learnt: --like, --codes and --vocab."""

import gzip
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError
from nmtkit.prep.clean import Cleaner
from nmtkit.prep.learn import learn
from nmtkit.prep.stage import prep
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy
from nmtkit.text.vocabulary import load_vocabularies, read_counts
from tests.manifests import read_json, write_json
from tests.prep import real
from tests.prep.corpora import own_files, pairs, prepare
from tests.refused import refused

LANGUAGES = ("en", "de")
KINDS = [
    {},
    {"joint_vocab": False, "vocab_threshold": 9},
    {"vocab_threshold": 9},
    {"merges": 0},
]


def counts(count, seed):
    """The words of some pairs, counted as prep counts those of a shard."""
    text = zip(*pairs(count, seed), strict=True)
    chunk = ["".join(f"{s}\n" for s in side).encode() for side in text]
    clean = Cleaner(LANGUAGES, PrepSettings())
    assert clean(chunk).all()
    return [text.finish(0)[1] for text in clean.texts]


@pytest.mark.parametrize("values", KINDS, ids=lambda v: "-".join(v) or "joint")
def test_files_that_are_there_are_read_and_not_learnt(tmp_path, small_shards, values):
    settings = PrepSettings(**{"merges": 40, **values})
    folders = [tmp_path / name for name in ("first", "second", "other")]
    folders[0].mkdir()
    few, many = counts(100, 3), counts(200, 5)
    first = learn(few, LANGUAGES, settings, folders[0], 1)
    shutil.copytree(folders[0], folders[1])
    again = learn(few, LANGUAGES, settings, folders[1], 1)
    words = [
        [pieces.counts(side.counts) for pieces, side in zip(m.segmented, m.words, strict=True)]
        for m in (first, again)
    ]
    assert words[0] == words[1]
    assert first.counts == again.counts
    assert [*first.vocabularies[0]] == [*again.vocabularies[0]]
    shutil.copytree(folders[0], folders[2])
    learn(many, LANGUAGES, settings, folders[2], 1)
    files = [{p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders]
    assert files[0] == files[1] == files[2]
    (tmp_path / "anew").mkdir()
    learn(many, LANGUAGES, settings, tmp_path / "anew", 1)
    anew = {p.name: p.read_bytes() for p in (tmp_path / "anew").iterdir()}
    assert anew.keys() == files[0].keys()
    assert all(anew[name] != files[0][name] for name in anew)


SETTINGS = ["merges=60", "joint_vocab=false", "truecase=src", "min_frequency=2", "escape=true"]


@pytest.fixture
def source(tmp_path):
    """A prepared run."""
    return prepare(tmp_path, own_files(tmp_path, pairs(200, 3)), "source", SETTINGS)


def text_files(run):
    """The files of a run that lead from text to ids."""
    return {name: (run.prep / name).read_bytes() for name in run.manifest().source["given"]}


def ids_there(run, rows):
    """Token ids of pairs as another run has them, line by line."""
    sides = [TextSide.load(run.prep, name) for name in ("src", "tgt")]
    vocabularies = load_vocabularies(run.prep)
    return [
        tuple(v.encode(s.encode(line)) for v, s, line in zip(vocabularies, sides, row, strict=True))
        for row in rows
    ]


def ids_of(run, name):
    store = Store(run.prep / name)
    return [(store.src(i).tolist(), store.tgt(i).tolist()) for i in range(len(store))]


def test_like_gives_the_ids_of_the_other_run(tmp_path, source, small_shards, stderr):
    rows = [*pairs(100, 9), ("Xylophones eat 🍎.", "Xylophone essen Äpfel.")]
    files = own_files(tmp_path / "new", rows, pairs(30, 11))
    own = {"max_words": 100, "memory": 1.0, "shard_lines": 70}
    own |= {"max_subwords": 90, "max_ratio": 50.0}
    settings = [f"{key}={value}" for key, value in own.items()]
    run = prepare(tmp_path, files, preset=None, like=source.path, settings=settings)
    said = stderr()
    assert f"of {source.path} (fingerprint {source.manifest().fingerprint[:12]})" in said
    assert "train train: 101 lines, unknown subwords source" in said
    assert ids_of(run, "train") == ids_there(source, rows)
    assert ids_of(run, "dev") == ids_there(source, pairs(30, 11))
    manifest = run.manifest()
    names = {"truecase.en", "codes.src.bpe", "codes.tgt.bpe", "bpe-vocab.src.txt"}
    names |= {"bpe-vocab.tgt.txt", "vocab.src.txt", "vocab.tgt.txt"}
    assert manifest.source["given"].keys() == names
    for name, content in text_files(run).items():
        assert content == (source.prep / name).read_bytes()
        assert manifest.source["given"][name] == source.manifest().files[name]
    assert manifest.settings == source.manifest().settings.model_copy(update=own)
    assert manifest.preset == source.manifest().preset == "tiny"
    learnt = prepare(tmp_path, files, "learnt", SETTINGS)
    assert ids_of(learnt, "train") != ids_of(run, "train")
    assert learnt.manifest().fingerprint != manifest.fingerprint


def test_a_run_like_another_is_up_to_date_until_the_other_changes(tmp_path, source, stderr):
    files = own_files(tmp_path / "new", pairs(50, 9))
    options = {"like": source.path, "settings": ["drop_overlap=exact"]}
    run = prepare(tmp_path, files, **options)
    prepare(tmp_path, files, **options)
    assert f"{run.prep} is up to date" in stderr()
    old = own_files(tmp_path, pairs(200, 4))
    prepare(tmp_path, old, "source", SETTINGS, force=True)
    caught = refused(ConfigError, "prepared differently", prepare, tmp_path, files, **options)
    assert "source.given.codes.src.bpe" in str(caught.where)


def test_a_registered_corpus_like_another_run(tmp_path):
    first = prep("demo", size=200, run_dir=tmp_path / "a", assignments=["prep.merges=80"], jobs=1)
    other = prep("demo", size=90, seed=5, run_dir=tmp_path / "b", like=first.path, jobs=1)
    assert (other.prep / "vocab.txt").read_bytes() == (first.prep / "vocab.txt").read_bytes()
    assert other.manifest().settings.merges == 80


def gzipped(path):
    copy = path.parents[2] / f"{path.name}.gz"
    copy.write_bytes(gzip.compress(path.read_bytes()))
    return copy


@pytest.mark.parametrize("joint", ["true", "false"])
def test_codes_and_vocabularies_of_files(tmp_path, joint, small_shards):
    settings = [f"joint_vocab={joint}", "vocab_threshold=9"]
    files = own_files(tmp_path, pairs(200, 3))
    learnt = prepare(tmp_path, files, "learnt", [*settings, "merges=60"])
    names = ["codes.bpe"] if joint == "true" else ["codes.src.bpe", "codes.tgt.bpe"]
    given = {
        "codes": [learnt.prep / name for name in names],
        "vocab": [learnt.prep / f"bpe-vocab.{side}.txt" for side in ("src", "tgt")],
    }
    packed = {option: [gzipped(path) for path in paths] for option, paths in given.items()}
    run = prepare(tmp_path, files, "given", settings, **packed)
    codes = prepare(tmp_path, files, "codes", settings, codes=given["codes"])
    assert run.manifest().settings == codes.manifest().settings == learnt.manifest().settings
    assert codes.manifest().files == learnt.manifest().files
    for kind in ("truecase", "codes", "bpe-vocab"):
        for path in learnt.prep.glob(f"{kind}*"):
            assert (run.prep / path.name).read_bytes() == path.read_bytes()
    subwords = [
        [[v[i] for i in side] for side, v in zip(row, load_vocabularies(one.prep), strict=True)]
        for one in (run, learnt)
        for row in ids_of(one, "train")
    ]
    assert subwords[:200] == subwords[200:]
    totals = [Counter(read_counts(path)) for path in given["vocab"]]
    totals = [totals[0] + totals[1]] * 2 if joint == "true" else totals
    for vocabulary, total in zip(load_vocabularies(run.prep), totals, strict=True):
        counts = [total[token] for token in list(vocabulary)[4:]]
        assert len(counts) == len(total)
        assert counts == sorted(counts, reverse=True)


def test_codes_of_subword_nmt_give_its_subwords(tmp_path, shared):
    """The recorded output of subword-nmt for its own test corpus."""
    folder = shared / "data/subword_nmt_test"
    text = real.lines(folder / "corpus.en")
    expected = real.lines(folder / "corpus.bpe.ref.en")
    rows = [(line, line[::-1]) for line in text]
    none = ["src_tokenizer=none", "tgt_tokenizer=none", "max_words=1000", "max_subwords=2000"]
    files = own_files(tmp_path, rows, rows[:10])
    run = prepare(tmp_path, files, settings=none, codes=folder / "bpe.ref")
    vocabulary, store = load_vocabularies(run.prep)[0], Store(run.prep / "train")
    found = [" ".join(vocabulary.decode(store.src(i).tolist())) for i in range(len(store))]
    unchanged = [i for i, line in enumerate(text) if tidy(line) == line]
    assert len(found) == len(text) and len(unchanged) > 1000
    assert [found[i] for i in unchanged] == [expected[i].strip() for i in unchanged]
    assert run.manifest().corpus["merges"] == run.manifest().settings.merges == 1000


def test_a_vocabulary_of_text_that_is_split_already(tmp_path):
    rows = [("lo@@ w er", "nie@@ der"), ("low", "nieder"), ("er lo@@ w", "der nie@@ der")] * 10
    (tmp_path / "vocab").write_text("er 5\nder 4\nlo@@ 3\nw 2\nnie@@ 1\n", "utf-8")
    values = ["src_tokenizer=none", "tgt_tokenizer=none", "subwords=none", "min_frequency=2"]
    run = prepare(tmp_path, own_files(tmp_path, rows), settings=values, vocab=tmp_path / "vocab")
    assert list(load_vocabularies(run.prep)[0])[4:] == ["er", "der", "lo@@", "w"]
    assert ids_of(run, "train")[:2] == [([6, 7, 4, 2], [3, 5, 2]), ([3, 2], [3, 2])]


def spoil(path):
    path.write_bytes(path.read_bytes() + b"x y\n")


WRONG = [
    ({"settings": ["merges=9"]}, "prep.merges is 9, but 60 in the text model"),
    ({"settings": ["joint_vocab=true"]}, "prep.joint_vocab is true, but false in the text model"),
    (
        {"settings": ["tgt_tokenizer=none"]},
        'prep.tgt_tokenizer is "none", but "auto" in the text model',
    ),
    ({"tgt": "fr"}, "is en-de, and this corpus is en-fr"),
    ({"src": "de", "tgt": "en"}, "is en-de, and this corpus is de-en"),
    ({"codes": "x.codes"}, "--codes and --like exclude each other"),
    ({"like": "gone"}, "no such folder"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_what_does_not_fit_the_other_run_is_refused(tmp_path, source, options, message):
    files = own_files(tmp_path / "new", pairs(50, 9))
    values = {"like": source.path, "settings": [], **options}
    refused((ConfigError, DataError), re.escape(message), prepare, tmp_path, files, **values)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["codes.src.bpe", "vocab.tgt.txt", "truecase.en"])
def test_a_file_of_the_other_run_that_has_changed_is_refused(tmp_path, source, name):
    spoil(source.prep / name)
    files = own_files(tmp_path / "new", pairs(50, 9))
    with pytest.raises(DataError, match=f"{name} of .* is not as prep wrote it"):
        prepare(tmp_path, files, like=source.path)
    (source.prep / name).unlink()
    with pytest.raises(DataError, match=f"{name} of .* is not as prep wrote it"):
        prepare(tmp_path, files, like=source.path)
    manifest = source.prep / "manifest.json"
    values = read_json(manifest)
    del values["files"][name]
    write_json(manifest, values)
    refused(DataError, f"{name} of .* is missing", prepare, tmp_path, files, like=source.path)
    assert not (tmp_path / "run").exists()


DAMAGED = [
    ({"src": "../../en"}, "'src' '../../en' cannot be a name"),
    ({"preset": "gone"}, "unknown preset 'gone'"),
    ({"settings": {"merges": "many"}}, "settings.merges"),
    ({"settings": {"merges": 70}}, "prep.merges is 60, but 70 in the text model"),
]


@pytest.mark.parametrize(("values", "message"), DAMAGED, ids=lambda value: str(value)[:30])
def test_a_damaged_manifest_of_the_other_run_is_refused(tmp_path, source, values, message):
    path = source.prep / "manifest.json"
    manifest = read_json(path)
    values = {**values, "settings": manifest["settings"] | values.get("settings", {})}
    write_json(path, manifest | values)
    files = own_files(tmp_path / "new", pairs(50, 9))
    with pytest.raises((ConfigError, DataError)) as caught:
        prepare(tmp_path, files, preset=None, like=source.path, settings=["merges=60"])
    assert message in f"{caught.value} {caught.value.where}"
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
    (
        {"codes": "codes,codes", "settings": ["joint_vocab=true"]},
        "is true, but false in the text model",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG_FILES, ids=lambda value: str(value)[:40])
def test_wrong_files_are_one_clear_error(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content, "utf-8")
    with pytest.raises((ConfigError, DataError), match=re.escape(message)):
        prepare(tmp_path, own_files(tmp_path, pairs(50, 9)), **options)
    assert not (tmp_path / "run").exists()
