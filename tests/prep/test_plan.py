"""Prep as a whole: equal to the slow way, the same for any number of workers, every line
accounted for.
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
from nmtkit.text.vocabulary import EOS, load_vocabularies
from tests.prep import real
from tests.prep.corpora import own_files, pairs, prepare, slow_prep, write
from tests.processes import python


def prepared(folder, lines, name="run", dev=None, test=None, jobs=1, **values):
    options = {"test": [",".join(map(str, write(folder / "in", "news", test)))]} if test else {}
    settings = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return prepare(folder, own_files(folder, lines, dev), name, settings, jobs=jobs, **options)


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
def test_equals_the_slow_way(tmp_path, small_shards, values):
    lines = pairs(300, 3)
    run = prepared(tmp_path, lines, **values)
    settings = PrepSettings(**values)
    expected, vocabularies = slow_prep(lines, settings, tmp_path)
    store = Store(run.prep / "train")
    assert 0 < len(expected) <= 300
    if "max_subwords" in values:
        assert (
            max(len(side) for pair in expected for side in pair) == settings.max_subwords + 1
        )  # with </s>: the limit itself is kept
    assert [(store.src(i).tolist(), store.tgt(i).tolist()) for i in range(len(store))] == expected
    loaded = load_vocabularies(run.prep)
    assert [list(one) for one in loaded] == [list(one) for one in vocabularies]
    assert (loaded[0] is loaded[1]) == settings.joint_vocab
    assert [(run.prep / f"truecase.{lang}").exists() for lang in ("en", "de")] == [
        not settings.lowercase and settings.truecase in ("both", side) for side in ("src", "tgt")
    ]
    manifest = run.manifest().model_dump()
    assert manifest["vocabulary"] == {
        "shared": settings.joint_vocab,
        "src": len(vocabularies[0]),
        "tgt": len(vocabularies[1]),
    }
    train, cleaning = manifest["sets"][0], manifest["cleaning"]
    assert train["lines"] == len(expected) == cleaning["pairs_kept"]
    assert train["src_tokens"] == sum(len(src) - 1 for src, _ in expected)
    assert train["tgt_unknown"] == sum(tgt.count(3) for _, tgt in expected)
    dropped = sum(reason["pairs"] for reason in cleaning["dropped"].values())
    assert cleaning["pairs_in"] == 300 == len(expected) + dropped


def test_shards_hold_the_pairs_of_one_shard(tmp_path):
    """The fingerprint is that of the shards; the pairs are the same in their order."""
    whole, cut = (
        prepared(tmp_path, pairs(300, 3), name, merges=30, max_words=12, **values)
        for name, values in (("whole", {}), ("cut", {"shard_lines": 47}))
    )
    one, other = Store(whole.prep / "train"), Store(cut.prep / "train")
    assert [len(one.shard_sizes), len(other.shard_sizes)] == [1, 7]
    assert sum(other.shard_sizes) == len(one) < 300
    for side in (Store.src, Store.tgt):
        assert [side(one, i).tolist() for i in range(len(one))] == [
            side(other, i).tolist() for i in range(len(one))
        ]
    assert whole.manifest().fingerprint != cut.manifest().fingerprint


def test_dev_and_test_go_the_way_of_translation_and_keep_every_line(tmp_path, small_shards):
    test = [
        ("", "Der Hund."),
        ("The dog.", ""),
        ("\ufeffThe  cat\tsees\u2028it.\r", " ein Baum "),
        ("a " * 600, "b"),
        ("Xylophon ✓", "Ω"),
        ("", ""),
    ]
    run = prepared(tmp_path, pairs(200), test=test, merges=50, max_words=5, truecase="both")
    assert [(s.name, s.split, s.lines) for s in run.sets()][1:] == [
        ("dev", "dev", 20),
        ("news", "test", 6),
    ]
    store, vocabularies = Store(run.prep / "news"), load_vocabularies(run.prep)
    assert len(store) == 6
    for side, (name, suffix) in enumerate((("src", "src"), ("tgt", "ref"))):
        text_side = TextSide.load(run.prep, name)
        assert (run.prep / "text" / f"news.{suffix}").read_text("utf-8") == "".join(
            tidy(pair[side]) + "\n" for pair in test
        )
        for i, pair in enumerate(test):
            assert getattr(store, name)(i).tolist() == vocabularies[side].encode(
                text_side.encode(pair[side])
            )
    assert store.src(0).tolist() == [EOS]
    assert run.manifest().sets[2].src_unknown > 0


SEPARATE = {"merges": 60, "joint_vocab": False, "vocab_threshold": 20, "max_words": 8}


@pytest.mark.parametrize("values", [{"merges": 60}, SEPARATE], ids=["joint", "separate"])
def test_the_output_does_not_depend_on_the_number_of_workers(tmp_path, small_shards, values):
    runs = [
        prepared(tmp_path, pairs(400), f"run{jobs}", test=pairs(50, 9), jobs=jobs, **values)
        for jobs in (1, 3)
    ]
    manifests = [run.manifest().model_dump() for run in runs]
    for manifest in manifests:
        del manifest["speed"], manifest["jobs"], manifest["inputs"]
    assert manifests[0] == manifests[1]
    names = [
        sorted(p.relative_to(run.prep).as_posix() for p in run.prep.rglob("*") if p.is_file())
        for run in runs
    ]
    assert names[0] == names[1] == sorted([*manifests[0]["files"], "manifest.json"])
    for run in runs:
        assert {name: sha256(run.prep / name) for name in manifests[0]["files"]} == manifests[0][
            "files"
        ]


def test_every_drop_is_counted_by_reason_and_side(tmp_path):
    good = pairs(50)
    bad = [
        ("", "Hund"),
        ("Hund", " "),
        ("", ""),
        ("a", "b " * 10 + "b"),
        ("c " * 31, "d " * 31),
        ("e " * 31, "f " * 30),
        ("g", "h" * 1500),
    ]
    lines = [*good, *bad]
    random.Random(1).shuffle(lines)
    run = prepared(tmp_path, lines, merges=10, max_words=30)
    assert run.manifest().cleaning.dropped == {
        "empty": {"pairs": 3, "src": 2, "tgt": 2},
        "too long": {"pairs": 2, "src": 2, "tgt": 1},
        "ratio": {"pairs": 1, "src": 0, "tgt": 1},
        "word too long": {"pairs": 1, "src": 0, "tgt": 1},
    }
    assert run.manifest().cleaning.pairs_kept == len(Store(run.prep / "train")) == 50


def test_what_was_changed_is_counted_for_each_set(tmp_path, stderr):
    pair, two_spaces = ("\ufeffThe dog.", "Der Hund."), ("The  dog.", "Der Hund.")
    run = prepared(tmp_path, [*pairs(60), pair], test=[pair, two_spaces, ("a", "@@ b")], merges=10)
    manifest = run.manifest().model_dump()
    assert manifest["cleaning"]["changed"] == {"src": {"BOM": 1}, "tgt": {}}
    news = {"src": {"BOM": 1, "spaces": 1}, "tgt": {"joiner @@ in the text": 1}}
    assert [entry.get("changed") for entry in manifest["sets"]] == [
        None,
        {"src": {}, "tgt": {}},
        news,
    ]
    said = stderr()
    assert re.search(r"^nmtkit:   changed: BOM +1  in the source$", said, re.M)
    assert re.search(r"^nmtkit:   changed in news: BOM +1  in the source$", said, re.M)


def test_nasty_text_is_handled_and_counted(tmp_path):
    nasty = [
        ("\ufeffThe dog sees it.", "Der Hund\x00sieht es."),
        ("The dog\u2028sees it.\r", "Der Hund\x85sieht\x0ces.\r"),
        ("The\tdog sees it.", "Der Hund@@ sieht @@ es @@"),
        ("<s> The dog </s> <pad> sees it.", "Der Hund <unk> sieht es &apos;"),
        ("w " * 100_000, "Der Hund sieht es."),
    ]
    run = prepared(tmp_path, [*pairs(100), *nasty], merges=50, truecase="none")
    cleaning = run.manifest().cleaning
    assert cleaning.dropped == {"too long": {"pairs": 1, "src": 1, "tgt": 0}}
    assert cleaning.changed["tgt"]["joiner @@ in the text"] == 3
    store, (vocabulary, _) = Store(run.prep / "train"), load_vocabularies(run.prep)
    assert len(store) == 104
    side = TextSide.load(run.prep, "tgt")
    for i, (_, tgt) in enumerate(nasty[:4], 100):
        ids = store.tgt(i).tolist()
        assert ids.index(EOS) == len(ids) - 1  # text never becomes a control symbol
        assert side.surface(vocabulary.decode(ids)) == " ".join(side.tokens(tgt))


def test_bad_utf8_can_be_replaced_or_dropped(tmp_path):
    lines = [
        *pairs(40),
        (b"The d\xffg.", b"Der Hund."),
        (b"The dog.", b"\xc3"),
        (b"\xe2\x82", b"\xe2\x82"),
    ]
    dev = [*pairs(5), (b"The d\xffg.", b"Der Hund.")]
    dropped, replaced = (
        prepared(tmp_path, lines, how, dev, merges=10, on_bad_utf8=how).manifest().model_dump()
        for how in ("drop", "replace")
    )
    assert dropped["cleaning"]["dropped"]["not UTF-8"] == {"pairs": 3, "src": 2, "tgt": 1}
    assert dropped["sets"][1]["lines"] == 6
    assert replaced["cleaning"]["pairs_kept"] == 43
    assert replaced["cleaning"]["changed"]["src"]["lines not UTF-8"] == 2
    assert replaced["sets"][1]["changed"] == {"src": {"lines not UTF-8": 1}, "tgt": {}}
    assert "The d\ufffdg." in (tmp_path / "replace" / "prep" / "text" / "dev.src").read_text(
        "utf-8"
    )


@pytest.mark.parametrize("jobs", [1, 2])
def test_everything_dropped_is_an_error_that_says_why(tmp_path, jobs):
    with pytest.raises(
        DataError, match="dropped all 30 training pairs: ratio 20, empty 10"
    ) as caught:
        prepared(tmp_path, [("x", "y " * 60)] * 20 + [("", "y")] * 10, jobs=jobs)
    assert "train.en" in caught.value.where
    assert "max_ratio" in caught.value.hint
    with pytest.raises(DataError, match="too many subwords 50"):
        prepared(tmp_path, pairs(50), jobs=jobs, subwords="none", max_subwords=2)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_a_vocabulary_with_nothing_in_it_is_an_error(tmp_path):
    with pytest.raises(DataError, match="vocabulary is empty"):
        prepared(tmp_path, pairs(50), merges=10, min_frequency=100_000)


def test_a_whole_prep_loads_neither_torch_nor_jieba(tmp_path):
    write(tmp_path, "train", pairs(40))
    code = (
        "import sys; from pathlib import Path; from nmtkit.prep.stage import prep;"
        " assert 'sacremoses' not in sys.modules; f ="
        " (Path('train.en'), Path('train.de'));prep('mine', train=f, dev=f, jobs=2, preset='tiny');"
        " sys.exit('torch' in sys.modules or 'jieba' in sys.modules)"
    )
    assert python("-c", code, cwd=tmp_path).returncode == 0
    assert (tmp_path / "runs" / "mine" / "prep" / "manifest.json").is_file()


def test_multi30k(multi30k_run, shared):
    """Real text: the counts of the published files, and subwords that spell the words."""
    manifest = multi30k_run.manifest().model_dump()
    assert {s.name: s.lines for s in multi30k_run.sets()} == {
        "train": 29000,
        "dev": 1014,
        "test_2016_flickr": 1000,
        "test_2017_flickr": 1000,
    }
    assert manifest["cleaning"]["dropped"] == {}
    assert manifest["preset"] == "small"
    store, vocabularies = Store(multi30k_run.prep / "train"), load_vocabularies(multi30k_run.prep)
    lines = real.lines(shared / "data/multi30k/raw/train.de.gz")
    side = TextSide.load(multi30k_run.prep, "tgt")
    for i in range(0, 29000, 487):
        assert store.tgt(i).tolist() == vocabularies[1].encode(side.encode(lines[i]))
        assert side.surface(vocabularies[1].decode(store.tgt(i).tolist())) == " ".join(
            side.tokens(lines[i])
        )
    assert manifest["sets"][0]["src_unknown"] == manifest["sets"][0]["tgt_unknown"] == 0


def test_the_rarest_words_may_be_left_out_of_learning(tmp_path, stderr):
    """They are split by the models of the others, and the manifest counts them."""
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
    assert stderr().count("32 rare words are not learnt from (prep.max_types)") == 1
    store, side = Store(runs[1].prep / "train"), TextSide.load(runs[1].prep, "src")
    vocabulary, _ = load_vocabularies(runs[1].prep)
    for number, (line, _) in enumerate(text):
        assert store.src(number).tolist() == vocabulary.encode(side.encode(line))


def test_a_rare_word_gets_the_case_of_a_given_truecaser(tmp_path):
    """It differs where a sentence starts and elsewhere."""
    known = pairs(100) + [("x flurb", "y")] * 90 + [("x Flurb", "y")] * 80
    first = prepared(tmp_path, known, "first", merges=300, max_types=60)
    text = pairs(200) + [("Flurb", "y"), ("x Flurb", "y")]
    files = own_files(tmp_path, text)
    run = prepare(tmp_path, files, "second", [], preset=None, like=first.path)
    store, side = Store(run.prep / "train"), TextSide.load(run.prep, "src")
    vocabulary, _ = load_vocabularies(run.prep)
    assert run.manifest().corpus["types_left_out"]
    assert (side.tokens("Flurb"), side.tokens("x Flurb")) == (["flurb"], ["x", "Flurb"])
    for number, (line, _) in enumerate(text):
        assert store.src(number).tolist() == vocabulary.encode(side.encode(line))
