"""Prep as a whole: the corpus equals a slow preparation, does not depend on the number of workers,
and every line is kept or counted as dropped.
"""

import json
import random
import re

import pytest

from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.files import sha256
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy
from nmtkit.text.vocabulary import EOS, UNK, load_vocabularies
from tests.prep import real
from tests.prep.corpora import count_tokens, own_files, pairs, prepare, slow_prep, write
from tests.processes import python
from tests.refused import refused


def prepared(folder, lines, name="run", dev=None, test=None, jobs=1, options=(), **values):
    """Prepare with these settings of prep; "news" is the test set."""
    files = own_files(folder, lines, dev) | dict(options)
    if test:
        files["test"] = [",".join(map(str, write(folder / "in", "news", test)))]
    settings = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return prepare(folder, files, name, settings, jobs=jobs)


def stored_pairs(run, name="train"):
    store = Store(run.prep / name)
    return [(store.src(i).tolist(), store.tgt(i).tolist()) for i in range(len(store))]


VARIED = [
    {"merges": 60},
    {"merges": 60, "joint_vocab": False},
    {"merges": 60, "vocab_threshold": 64, "min_frequency": 3},
    {"merges": 30, "joint_vocab": False, "vocab_threshold": 64, "truecase": "tgt"},
    {"subwords": "none", "truecase": "src", "min_frequency": 40},
    {
        "merges": 40,
        "lowercase": True,
        "escape": True,
        "aggressive_hyphens": False,
        "normalize": False,
    },
    {"merges": 20, "max_words": 12, "max_ratio": 1.2, "min_words": 6, "max_subwords": 30},
]


@pytest.mark.parametrize("values", VARIED, ids=lambda v: "-".join(v))
def test_corpus_and_counts_equal_the_slow_preparation(tmp_path, small_shards, values):
    lines = pairs(300, 3)
    run, settings = prepared(tmp_path, lines, **values), PrepSettings(**values)
    expected, vocabularies = slow_prep(lines, settings, tmp_path)
    assert 0 < len(expected) <= 300
    if "max_subwords" in values:  # the limit, and </s>
        assert max(len(side) for pair in expected for side in pair) == settings.max_subwords + 1
    assert stored_pairs(run) == expected
    loaded = load_vocabularies(run.prep)
    assert [*map(list, loaded)] == [*map(list, vocabularies)]
    assert (loaded[0] is loaded[1]) == settings.joint_vocab
    for side, lang in (("src", "en"), ("tgt", "de")):
        truecased = not settings.lowercase and settings.truecase in ("both", side)
        assert (run.prep / f"truecase.{lang}").exists() == truecased
    manifest = run.manifest()
    sizes = dict(zip(("src", "tgt"), map(len, vocabularies), strict=True))
    assert manifest.model_dump()["vocabulary"] == {"shared": settings.joint_vocab, **sizes}
    train, cleaning = manifest.sets[0], manifest.cleaning
    assert train.lines == len(expected) == cleaning.pairs_kept
    assert train.src_tokens == sum(len(src) - 1 for src, _ in expected)
    assert train.src_unknown == sum(src.count(UNK) for src, _ in expected)
    assert train.tgt_unknown == sum(tgt.count(UNK) for _, tgt in expected)
    dropped = sum(reason["pairs"] for reason in cleaning.dropped.values())
    assert cleaning.pairs_in == 300 == len(expected) + dropped


@pytest.mark.parametrize(
    ("joint", "merges"), [(True, {"merges": 30}), (False, {"src_merges": 30, "tgt_merges": 30})]
)
def test_manifest_counts_words_types_subwords_and_merges(tmp_path, joint, merges):
    lines = pairs(100, 3)
    run = prepared(tmp_path, lines, merges=30, joint_vocab=joint)
    train, counts = run.manifest().sets[0], dict(merges)
    for side, text in zip(("src", "tgt"), zip(*lines, strict=True), strict=True):
        words = count_tokens(map(TextSide.load(run.prep, side).tokens, text))
        counts |= {f"{side}_words": words.total(), f"{side}_types": len(words)}
        counts[f"{side}_tokens"] = getattr(train, f"{side}_tokens")
    assert run.manifest().corpus == counts


UNCLEAN_TEST_SET = [
    ("", "Der Hund."),
    ("The dog.", ""),
    ("\ufeffThe  cat\tsees\u2028it.\r", " ein Baum "),
    ("a " * 600, "b"),
    ("Xylophon ✓", "Ω"),
    ("", ""),
]


def test_dev_and_test_sets_keep_every_line(tmp_path, small_shards):
    """Their subwords are those that translation makes of each line."""
    test = UNCLEAN_TEST_SET
    run = prepared(tmp_path, pairs(200), test=test, merges=50, max_words=5, truecase="both")
    assert [(text.name, text.lines) for text in run.sets()][1:] == [("dev", 20), ("news", 6)]
    ids, vocabularies = zip(*stored_pairs(run, "news"), strict=True), load_vocabularies(run.prep)
    for side, stored, lines, vocabulary, suffix in zip(
        ("src", "tgt"), ids, zip(*test, strict=True), vocabularies, ("src", "ref"), strict=True
    ):
        text_side = TextSide.load(run.prep, side)
        assert list(stored) == [vocabulary.encode(text_side.encode(line)) for line in lines]
        text = (run.prep / "text" / f"news.{suffix}").read_text("utf-8")
        assert text == "".join(f"{tidy(line)}\n" for line in lines)
    assert stored_pairs(run, "news")[0][0] == [EOS]
    assert run.manifest().sets[2].src_unknown > 0


SEPARATE = {"merges": 60, "joint_vocab": False, "vocab_threshold": 20, "max_words": 8}


@pytest.mark.parametrize("values", [{"merges": 60}, SEPARATE], ids=["joint", "separate"])
def test_corpus_does_not_depend_on_the_number_of_workers(tmp_path, small_shards, values):
    lines = pairs(400)
    leaves = (" ".join(f"(X {word})" for word in src.split()) for src, _ in lines)
    trees = write(tmp_path, "train", [(f"(S {words})",) for words in leaves], ["trees"])[0]
    starts = write(tmp_path, "train", [(str(line),) for line in range(0, 400, 7)], ["starts"])[0]
    options = {"parses": [f"train={trees}"], "docs": [f"train={starts}"]}
    runs = [
        prepared(tmp_path, lines, f"run{jobs}", None, pairs(50, 9), jobs, options, **values)
        for jobs in (1, 3)
    ]
    one, three = (run.manifest().model_dump(exclude={"speed", "jobs", "inputs"}) for run in runs)
    assert one == three
    assert {"train/00000.spans.bin", "docs/train.txt"} <= {*one["files"]}
    for run in runs:
        files = {
            p.relative_to(run.prep).as_posix(): sha256(p)
            for p in run.prep.rglob("*")
            if p.is_file()
        }
        del files["manifest.json"]
        assert files == one["files"]


def test_of_equally_frequent_forms_the_first_in_the_text_is_the_usual_one(tmp_path):
    """As in train-truecaser.perl; the words themselves are counted in the order of their hashes."""
    forms = [(f"wort{c}", f"Wort{c}")[:: 1 if c in "abcd" else -1] for c in "abcdefgh"]
    lines = [*pairs(30), *((f"so {first} und {second} da.", "x y z.") for first, second in forms)]
    run = prepared(tmp_path, lines, merges=10)
    model = (run.prep / "truecase.en").read_text("utf-8").splitlines()
    expected = [f"{first} (1/2) {second} (1)" for first, second in forms]
    assert [line for line in model if "wort" in line.lower()] == expected


def test_dropped_pairs_are_counted_by_reason_and_side(tmp_path):
    bad = [
        ("", "Hund"),
        ("Hund", " "),
        ("", ""),
        ("a", "b " * 10 + "b"),
        ("c " * 31, "d " * 31),
        ("e " * 31, "f " * 30),
        ("g", "h" * 1500),
    ]
    lines = [*pairs(50), *bad]
    random.Random(1).shuffle(lines)
    run = prepared(tmp_path, lines, merges=10, max_words=30)
    assert run.manifest().cleaning.dropped == {
        "empty": {"pairs": 3, "src": 2, "tgt": 2},
        "too long": {"pairs": 2, "src": 2, "tgt": 1},
        "ratio": {"pairs": 1, "src": 0, "tgt": 1},
        "word too long": {"pairs": 1, "src": 0, "tgt": 1},
    }
    assert run.manifest().cleaning.pairs_kept == len(Store(run.prep / "train")) == 50


def test_changes_of_the_text_are_counted_for_each_set(tmp_path, stderr):
    pair, two_spaces = ("\ufeffThe dog.", "Der Hund."), ("The  dog.", "Der Hund.")
    run = prepared(tmp_path, [*pairs(60), pair], test=[pair, two_spaces, ("a", "@@ b")], merges=10)
    manifest = run.manifest().model_dump()
    assert manifest["cleaning"]["changed"] == {"src": {"BOM": 1}, "tgt": {}}
    news = {"src": {"BOM": 1, "spaces": 1}, "tgt": {"joiner @@ in the text": 1}}
    changed = [entry.get("changed") for entry in manifest["sets"]]
    assert changed == [None, {"src": {}, "tgt": {}}, news]
    printed = stderr()
    assert re.search(r"^nmtkit:   changed: BOM +1  in the source$", printed, re.M)
    assert re.search(r"^nmtkit:   changed in news: BOM +1  in the source$", printed, re.M)


def test_unsafe_training_text_never_becomes_a_special_symbol(tmp_path):
    unsafe = [
        ("\ufeffThe dog sees it.", "Der Hund\x00sieht es."),
        ("The dog\u2028sees it.\r", "Der Hund\x85sieht\x0ces.\r"),
        ("The\tdog sees it.", "Der Hund@@ sieht @@ es @@"),
        ("<s> The dog </s> <pad> sees it.", "Der Hund <unk> sieht es &apos;"),
        ("w " * 100_000, "Der Hund sieht es."),
    ]
    run = prepared(tmp_path, [*pairs(100), *unsafe], merges=50, truecase="none")
    cleaning = run.manifest().cleaning
    assert cleaning.dropped == {"too long": {"pairs": 1, "src": 1, "tgt": 0}}
    assert cleaning.changed["tgt"]["joiner @@ in the text"] == 3
    stored, (vocabulary, _) = stored_pairs(run), load_vocabularies(run.prep)
    assert len(stored) == 104
    side = TextSide.load(run.prep, "tgt")
    for (_, ids), (_, tgt) in zip(stored[100:], unsafe[:4], strict=True):
        assert ids.index(EOS) == len(ids) - 1
        assert side.surface(vocabulary.decode(ids)) == " ".join(side.tokens(tgt))


@pytest.mark.parametrize("policy", ["drop", "replace"])
def test_text_that_is_not_utf8_is_replaced_or_dropped(tmp_path, policy):
    bad = [(b"The d\xffg.", b"Der Hund."), (b"The dog.", b"\xc3"), (b"\xe2\x82", b"\xe2\x82")]
    dev = [*pairs(5), bad[0]]
    run = prepared(tmp_path, [*pairs(40), *bad], dev=dev, merges=10, on_bad_utf8=policy)
    cleaning, entry = run.manifest().cleaning, run.manifest().sets[1]
    assert entry.lines == 6  # dev sets keep all lines
    if policy == "drop":
        assert cleaning.dropped["not UTF-8"] == {"pairs": 3, "src": 2, "tgt": 1}
    else:
        assert cleaning.pairs_kept == 43
        assert cleaning.changed["src"]["lines not UTF-8"] == 2
        assert entry.changed == {"src": {"lines not UTF-8": 1}, "tgt": {}}
        assert "The d\ufffdg." in (run.prep / "text" / "dev.src").read_text("utf-8")


@pytest.mark.parametrize("jobs", [1, 2])
def test_dropping_all_pairs_is_an_error_with_the_reasons(tmp_path, jobs):
    lines = [("x", "y " * 60)] * 20 + [("", "y")] * 10
    message = "dropped all 30 training pairs: ratio 20, empty 10"
    caught = refused(DataError, message, prepared, tmp_path, lines, jobs=jobs)
    assert "train.en" in caught.where
    assert "max_ratio" in caught.hint
    options = {"jobs": jobs, "subwords": "none", "max_subwords": 2}
    refused(DataError, "too many subwords 50", prepared, tmp_path, pairs(50), **options)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_empty_vocabulary_is_an_error(tmp_path):
    options = {"merges": 10, "min_frequency": 100_000}
    refused(DataError, "vocabulary is empty", prepared, tmp_path, pairs(50), **options)


def test_prep_never_loads_torch_or_jieba_and_its_import_does_not_load_sacremoses(tmp_path):
    write(tmp_path, "train", pairs(40))
    code = """if True:
        import sys
        from nmtkit.prep.stage import prep
        assert "sacremoses" not in sys.modules
        files = ["train.en", "train.de"]
        prep("mine", train=files, dev=files, jobs=2, preset="tiny")
        sys.exit("torch" in sys.modules or "jieba" in sys.modules)
    """
    assert python("-c", code, cwd=tmp_path).returncode == 0
    assert (tmp_path / "runs" / "mine" / "prep" / "manifest.json").is_file()


def test_multi30k_has_the_published_counts_and_spells_its_words(multi30k_run, shared):
    assert {s.name: s.lines for s in multi30k_run.sets()} == {
        "train": 29000,
        "dev": 1014,
        "test_2016_flickr": 1000,
        "test_2017_flickr": 1000,
    }
    manifest = multi30k_run.manifest()
    assert manifest.cleaning.dropped == {}
    assert manifest.preset == "small"
    store, (_, vocabulary) = (
        Store(multi30k_run.prep / "train"),
        load_vocabularies(multi30k_run.prep),
    )
    lines = real.lines(shared / "data/multi30k/raw/train.de.gz")
    side = TextSide.load(multi30k_run.prep, "tgt")
    for i in range(0, 29000, 487):
        ids = store.tgt(i).tolist()
        assert ids == vocabulary.encode(side.encode(lines[i]))
        assert side.surface(vocabulary.decode(ids)) == " ".join(side.tokens(lines[i]))
    assert manifest.sets[0].src_unknown == manifest.sets[0].tgt_unknown == 0


def check_source_ids(run, text):
    """Assert that the source of each pair is stored as `TextSide` encodes it."""
    side, (vocabulary, _) = TextSide.load(run.prep, "src"), load_vocabularies(run.prep)
    stored = [src for src, _ in stored_pairs(run)]
    assert stored == [vocabulary.encode(side.encode(line)) for line, _ in text]


def test_words_beyond_max_types_are_segmented_but_not_learnt_from(tmp_path, stderr):
    once = [(f"Zyx{letter}zyx zyx{letter}", f"qpo{letter}qpo") for letter in "abcdefghij"]
    once.append(("Flurb", "Flurb"))  # rare, and its truecased form is frequent
    text = pairs(200) + [("x flurb", "y flurb")] * 20 + once
    runs = [
        prepared(tmp_path, text, str(limit), merges=300, max_types=limit) for limit in (10_000, 86)
    ]
    codes = [(run.prep / "codes.bpe").read_text("utf-8") for run in runs]
    assert "y x" in codes[0] and "y x" not in codes[1]
    corpora = [run.manifest().corpus for run in runs]
    assert [corpus.get("types_left_out") for corpus in corpora] == [None, 32]
    assert stderr().count("not learnt from: 32 rare words (prep.max_types)") == 1
    check_source_ids(runs[1], text)


def test_rare_word_gets_the_case_of_a_given_truecaser(tmp_path):
    """Its case differs at the start of a sentence and elsewhere."""
    known = pairs(100) + [("x flurb", "y")] * 90 + [("x Flurb", "y")] * 80
    first = prepared(tmp_path, known, "first", merges=300, max_types=60)
    text = pairs(200) + [("Flurb", "y"), ("x Flurb", "y")]
    run = prepare(tmp_path, own_files(tmp_path, text), "second", preset=None, like=first.path)
    side = TextSide.load(run.prep, "src")
    assert run.manifest().corpus["types_left_out"]
    assert (side.tokens("Flurb"), side.tokens("x Flurb")) == (["flurb"], ["x", "Flurb"])
    check_source_ids(run, text)
