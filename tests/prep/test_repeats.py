"""Repeated text that prep counts, against a slow count with sets of lines."""

import re
import unicodedata
from collections import Counter

import numpy as np
import pytest

from nmtkit import files
from nmtkit.errors import ConfigError, DataError
from nmtkit.prep import stage, steps
from nmtkit.prep.fingerprint import fingerprint
from nmtkit.prep.repeats import compare_hashes, hashes_path, normalised
from nmtkit.prep.shards import Shard
from nmtkit.report.provenance import corpus
from nmtkit.settings import PrepSettings
from tests.prep import real
from tests.prep.corpora import pairs, prepare, write

EUROPARL = "data/europarl_deen_20k"


def slow_normalised(line):
    """A composed line in one case, without white space and punctuation, character by character."""
    return "".join(
        c
        for c in unicodedata.normalize("NFKC", line).casefold()
        if not c.isspace() and unicodedata.category(c)[0] not in "PS"
    )


def slow_repeats(train, held_out):
    """All counts over whole lists of pairs."""
    folded = [tuple(map(slow_normalised, pair)) for pair in train]
    pairs_of_train, folded_pairs = set(train), set(folded)
    overlap = []
    for name, rows in held_out.items():
        rows = [(row[0], reference) for row in rows for reference in row[1:]]
        rows = [row for row in rows if any(map(slow_normalised, row))]
        same = sum(row in pairs_of_train for row in rows)
        alike = sum(tuple(map(slow_normalised, row)) in folded_pairs for row in rows)
        overlap.append({"name": name, "exact": same, "normalised": alike})
    return {
        "duplicates": len(train) - len(set(train)),
        "identical": sum(src == tgt != "" for src, tgt in train),
        "overlap": overlap,
    }


def prepared(folder, train, held_out, languages=("en", "de"), **options):
    """The run of these sets; `held_out` has dev and then tests."""
    files = {
        name: write(folder / "in", name, rows, (*languages, "more")[: len(rows[0])])
        for name, rows in {"train": train, **held_out}.items()
    }
    test = [files[name] for name in list(held_out)[1:]]
    return prepare(folder, {key: files[key] for key in ("train", "dev")}, test=test, **options)


def test_counts_are_those_of_a_slow_count(tmp_path, stderr):
    train = [*pairs(60), ("Same.", "Same."), ("Same.", "Same."), ("", ""), ("...", "!")]
    train += [
        ("A new pair of words.", "Ein neues Paar."),
        ("Ein neues Paar.", "A new pair of words."),
    ]
    train += [("Said twice", "Zweimal"), ("Twice said", "Zweimal"), ("?", "Ein Wort")]
    dev = [
        train[0],
        (train[1][0].upper(), train[1][1]),
        ("A  new-pair of words!", "„Ein neues Paar“"),
    ]
    dev += [
        ("Ein neues Paar.", "Ein neues Paar."),
        ("...", "!"),
        ("!", "ein Wort"),
        ("Unseen.", "Neu."),
    ]
    news = [("said TWICE", "zweimal", "doppelt"), (train[2][0], "Anders.", train[2][1])]
    news += [(*pair, "Neu.") for pair in pairs(5, 9)]
    run = prepared(tmp_path, train, {"dev": dev, "news": news})
    repeats = run.manifest().repeats
    expected = slow_repeats(train, {"dev": dev, "news": news})
    assert repeats.model_dump() == expected
    assert expected["identical"] == 2
    assert expected["overlap"][0] == {"name": "dev", "exact": 1, "normalised": 4}
    said = stderr()
    assert f"duplicates {expected['duplicates']:,}, source = target 2" in said
    assert "pairs of dev that training has too: 1 exactly, 4 without case and punctuation" in said
    notes = corpus(run.manifest()).notes
    assert any(
        "pairs of news in the training text before cleaning: 1 exactly, 2 without" in note
        for note in notes
    )


def test_a_row_that_training_has_with_two_references_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "PART_BYTES", 50)  # the references are in several ranges of hashes
    rows = list(dict.fromkeys(pairs(60)))[:20]
    train = [*rows, *((src, f"Noch einmal {tgt}") for src, tgt in rows)]
    dev = [(src, tgt, f"Noch einmal {tgt}") for src, tgt in rows]
    repeats = prepared(tmp_path, train, {"dev": rows, "news": dev}).manifest().repeats
    assert [(text.exact, text.normalised) for text in repeats.overlap] == [(20, 20)] * 2


def test_each_hash_is_in_one_range(tmp_path):
    hashes = np.repeat(np.array([0, 2**63 - 1, 2**63, 2**64 - 1], np.uint64), 2)
    files.write_array(hashes_path(tmp_path, 0), np.stack([hashes, hashes])[:, None])
    settings = PrepSettings(deduplicate=True)
    for part in range(2):
        found, (path,) = compare_hashes(tmp_path, part, "step", 2, 1, (), settings)
        assert found["duplicates"] == 2
        assert np.load(path).tolist() == [4 * part + 1, 4 * part + 3]


@pytest.mark.parametrize("jobs", [1, 2])
def test_real_text(tmp_path, shared, jobs):
    """Europarl, of which the dev set repeats some pairs."""
    sides = [real.lines(shared / EUROPARL / f"train.{side}.xz")[:3000] for side in ("de", "en")]
    rows = list(zip(*sides, strict=True))
    dev, train = rows[:500], [*rows[400:], *rows[600:700]]
    run = prepared(tmp_path, train, {"dev": dev}, ("de", "en"), jobs=jobs)
    repeats = run.manifest().repeats.model_dump()
    assert repeats == slow_repeats(train, {"dev": dev})
    assert repeats["duplicates"] >= 100
    assert repeats["overlap"][0]["exact"] >= 100


def slow_drop(train, held_out, deduplicate, overlap):
    """The pairs that stay, one after the other, and how many go by reason."""
    fold = {
        "normalised": lambda pair: tuple(map(slow_normalised, pair)),
        "exact": lambda pair: pair,
    }
    of_sets = [row for row in held_out if any(map(slow_normalised, row))]
    leaks = set() if overlap == "none" else set(map(fold[overlap], of_sets))
    kept, seen, dropped = [], set(), Counter()
    for pair in train:
        if leaks and fold[overlap](pair) in leaks:
            dropped["in dev or test"] += 1
        elif deduplicate and pair in seen:
            dropped["duplicate"] += 1
        else:
            kept.append(pair)
        seen.add(pair)
    return kept, dict(dropped)


def spoilt(rows):
    """Rows of training text with repeats, and dev and test sets that share some of them."""
    train = [*rows[:100], ("", ""), *rows[30:60], ("...", "!"), ("", ""), *rows[90:]]
    dev = [rows[3], (rows[95][0].upper(), f"„{rows[95][1]}“"), ("...", "!"), ("New.", "Neu.")]
    return train, dev, [rows[40], (rows[2][0], "Anders.")]


@pytest.mark.parametrize("overlap", ["none", "exact", "normalised"])
@pytest.mark.parametrize("deduplicate", [False, True])
def test_dropped_pairs_are_those_of_a_slow_search(
    tmp_path, shared, overlap, deduplicate, monkeypatch
):
    """On real text; the rest of the corpus is as if the pairs had never been in the files."""
    count = 600 if overlap == "normalised" else 300  # more than a chunk of lines, or one
    monkeypatch.setattr(Shard.chunks, "__defaults__", (500, 1 << 20))
    monkeypatch.setattr(stage, "FEW_LINES", 0)
    sides = [real.lines(shared / EUROPARL / f"train.{side}.xz")[:count] for side in ("en", "de")]
    train, dev, news = spoilt(list(zip(*sides, strict=True)))
    held_out = {"dev": dev, "news": news}
    settings = [f"deduplicate={deduplicate}", f"drop_overlap={overlap}"]
    kept, dropped = slow_drop(train, [*dev, *news], deduplicate, overlap)
    with monkeypatch.context() as patch:
        if overlap != "none":  # the pairs are compared in two parts or more
            patch.setattr(steps, "PART_BYTES", 2000)
        run = prepared(tmp_path, train, held_out, settings=settings, jobs=2)
    plain = prepared(tmp_path / "plain", kept, held_out)
    manifest = run.manifest()
    assert content(run) == content(plain)
    ours, theirs = (
        [text.model_dump(exclude={"identical"}) for text in one.sets]
        for one in (manifest, plain.manifest())
    )
    assert ours == theirs
    assert manifest.cleaning.pairs_in == len(train)
    assert manifest.cleaning.pairs_kept == plain.manifest().cleaning.pairs_kept
    ours = {reason: count["pairs"] for reason, count in manifest.cleaning.dropped.items()}
    assert {reason: ours[reason] for reason in ours if reason in REASONS} == dropped
    assert manifest.repeats.model_dump() == slow_repeats(train, held_out)
    assert bool(dropped) == (settings != ["deduplicate=False", "drop_overlap=none"])
    notes = " ".join(corpus(manifest).notes)
    assert all(f"{reason} {count:,}" in notes for reason, count in dropped.items())


REASONS = ("in dev or test", "duplicate")


def content(run):
    """Checksums of the files but the manifest."""
    return run.manifest().files


def test_documents_start_where_they_did(tmp_path, stderr):
    """A document whose first lines go starts at the next one; one that goes whole is gone."""
    rows = list(dict.fromkeys(pairs(400)))[:30]
    train = [*rows[:10], *rows[:4], *rows[10:16], *rows[2:5], *rows[16:], ("", "x")]
    starts = [0, 10, 20, 23]  # lines 10 to 13 and 20 to 22 go
    documents = tmp_path / "starts"
    documents.write_text("".join(f"{start}\n" for start in starts))
    options = {"docs": [f"train={documents}"], "settings": ["deduplicate=true"]}
    run = prepared(tmp_path, train, {"dev": pairs(9, 7)}, **options)
    lines = (run.prep / "docs/train.txt").read_text().split()
    assert list(map(int, lines)) == [0, 10, 16]
    assert "8 pairs dropped from the documents of train" in stderr()


def test_the_fingerprint_depends_on_all_settings_that_change_the_text():
    plain = PrepSettings()
    first = fingerprint(("en", "de"), plain, {})
    assert first == "d12b8b3d6ecf8e614b169602cc330c88bb1e5d232fd43732bf90d0715180ebd1"
    for values in ({"deduplicate": True}, {"subwords": "none"}, {"shard_lines": 9}):
        assert fingerprint(("en", "de"), plain.model_copy(update=values), {}) != first
    for values in ({"memory": 1.5}, {"dev": "x"}, {"test": ["y"]}):
        assert fingerprint(("en", "de"), plain.model_copy(update=values), {}) == first


def test_nothing_left_is_an_error(tmp_path):
    dev = pairs(30)
    with pytest.raises(DataError, match="dropped all 30 training pairs: in dev or test 30"):
        prepared(tmp_path, dev, {"dev": dev}, settings=["drop_overlap=exact"])


@pytest.mark.parametrize(
    "setting", ["drop_overlap=true", "drop_overlap=fuzzy", "deduplicate=exact"]
)
def test_other_values_are_refused(tmp_path, setting):
    with pytest.raises(ConfigError, match=f"prep.{setting.split('=')[0]}"):
        prepared(tmp_path, pairs(9), {"dev": pairs(9, 7)}, settings=[setting])


def test_pairs_that_cleaning_makes_alike_are_one(tmp_path):
    """CRLF, spaces at the end or side by side, control characters and invisible ones."""
    train = [("A pair of words.", "Ein Paar."), ("A  pair of words.", "Ein Paar. \r")]
    train += [(f"A pair{c}of words.", "\xadEin\u200b Paar.") for c in "\0\t\x1c\x85\u2028"]
    dev = [(" A pair of  words.\r", "Ein Paar.")]
    train += [("A pair\u061c of words.\ufeff", "Ein\x85Paar.")]
    settings = ["drop_overlap=normalised"]
    run = prepared(tmp_path, [*pairs(20), *train], {"dev": dev}, settings=settings)
    repeats = run.manifest().repeats
    assert repeats.duplicates == 7 and repeats.overlap[0].exact == 1
    assert run.manifest().cleaning.dropped["in dev or test"]["pairs"] == 8


def test_normalised_text_keeps_its_lines():
    text = "Das „Haus“ – GROẞ!\n\n«Ça va?»\n你好，世界。\n".encode()
    assert normalised(text) == "dashausgross\n\nçava\n你好世界\n".encode()
    decomposed = unicodedata.normalize("NFD", text.decode())
    assert normalised(decomposed.encode()) == normalised(text)
    assert normalised("Ｎｏ １\n".encode()) == b"no1\n"
    assert normalised("¿a،b؛c؟d۔e।f॥g։h。i\u1680j｡k、l\u200cm £°".encode()) == b"abcdefghijklm"
    assert len({normalised(f"1{c} m".encode()) for c in "½¼¾²³¹ªº々"}) == 9


def test_sets_whose_sides_are_the_same_are_a_warning(tmp_path, stderr):
    same = [(src, src) for src, _ in pairs(20, 3)]
    less = [*pairs(11, 9), *same[:9]]
    held_out = {"dev": same[:9], "same": [(src, tgt, src) for src, tgt in same], "less": less}
    train = [*pairs(30), *[(src, src) for src, _ in pairs(30, 5)]]
    run = prepared(tmp_path, train, held_out)
    said = re.findall("source and .* are the same in .* pairs", stderr())
    assert said == [
        "source and target of train are the same in 50.0% of the pairs",
        "source and target of same are the same in 100.0% of the pairs",
        "source and ref1 of same are the same in 100.0% of the pairs",
    ]
    of_sets = [{"ref": 30}, {"ref": 9}, {"ref": 20, "ref1": 20}, {"ref": 9}]
    assert [text.identical for text in run.manifest().sets] == of_sets


def test_many_unknown_subwords_are_a_warning(tmp_path, stderr):
    dev = [*pairs(9, 7), *[("Ωμέγα άλφα βήτα γάμμα.", "Ja.")] * 3]
    prepared(tmp_path, pairs(60), {"dev": dev})
    said = stderr()
    assert "of the subwords of dev are unknown in the source" in said
    assert "unknown in the target" not in said
