"""Repeated pairs: prep counts and drops the pairs that a slow search with sets of lines finds."""

import re
import unicodedata
from collections import Counter
from types import SimpleNamespace

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
from tests.refused import refused

EUROPARL = "data/europarl_deen_20k"


def slow_normalised(line):
    """Compose and fold a line, without white space and punctuation, character by character."""
    return "".join(
        c
        for c in unicodedata.normalize("NFKC", line).casefold()
        if not c.isspace() and unicodedata.category(c)[0] not in "PS"
    )


def fold(pair):
    return tuple(map(slow_normalised, pair))


def slow_repeats(train, held_out):
    """Return the counts of the manifest, found with sets of pairs."""
    exact, folded, overlap = set(train), set(map(fold, train)), []
    for name, rows in held_out.items():
        pairs = [(row[0], reference) for row in rows for reference in row[1:]]
        pairs = [pair for pair in pairs if any(fold(pair))]
        same, alike = (
            sum(map(exact.__contains__, pairs)),
            sum(fold(pair) in folded for pair in pairs),
        )
        overlap.append({"name": name, "exact": same, "normalised": alike})
    return {
        "duplicates": len(train) - len(exact),
        "identical": sum(src == tgt != "" for src, tgt in train),
        "overlap": overlap,
    }


def prepared(folder, train, held_out, languages=("en", "de"), **options):
    """Prepare these sets; `held_out` has dev, then the test sets."""
    files = {
        name: write(folder / "in", name, rows, (*languages, "more")[: len(rows[0])])
        for name, rows in {"train": train, **held_out}.items()
    }
    test = [files[name] for name in list(held_out)[1:]]
    return prepare(folder, {key: files[key] for key in ("train", "dev")}, test=test, **options)


TRAIN = [
    *pairs(60),
    *[("Same.", "Same.")] * 2,
    ("", ""),
    ("...", "!"),
    ("A new pair of words.", "Ein neues Paar."),
    ("Ein neues Paar.", "A new pair of words."),
    ("Said twice", "Zweimal"),
    ("Twice said", "Zweimal"),
    ("?", "Ein Wort"),
]
DEV = [
    TRAIN[0],
    (TRAIN[1][0].upper(), TRAIN[1][1]),
    ("A  new-pair of words!", "„Ein neues Paar“"),
    ("Ein neues Paar.", "Ein neues Paar."),
    ("...", "!"),
    ("!", "ein Wort"),
    ("Unseen.", "Neu."),
]
NEWS = [("said TWICE", "zweimal", "doppelt"), (TRAIN[2][0], "Anders.", TRAIN[2][1])]
NEWS += [(*pair, "Neu.") for pair in pairs(5, 9)]


def test_repeated_pairs_are_counted_printed_and_reported(tmp_path, stderr):
    run = prepared(tmp_path, TRAIN, {"dev": DEV, "news": NEWS})
    repeats = run.manifest().repeats
    assert repeats.model_dump() == slow_repeats(TRAIN, {"dev": DEV, "news": NEWS})
    assert repeats.identical == 2
    assert repeats.overlap[0].model_dump() == {"name": "dev", "exact": 1, "normalised": 4}
    printed = stderr()
    assert f"duplicates {repeats.duplicates:,}, source = target 2" in printed
    assert "pairs of dev that training has too: 1 exactly, 4 without case and punct" in printed
    notes = " ".join(corpus(run.manifest()).notes)
    assert "pairs of news in the training text before cleaning: 1 exactly, 2 without" in notes


def test_row_with_two_references_in_training_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "PART_BYTES", 50)  # the references are in several ranges of hashes
    rows = list(dict.fromkeys(pairs(60)))[:20]
    train = [*rows, *((src, f"Noch einmal {tgt}") for src, tgt in rows)]
    dev = [(src, tgt, f"Noch einmal {tgt}") for src, tgt in rows]
    repeats = prepared(tmp_path, train, {"dev": rows, "news": dev}).manifest().repeats
    assert [(text.exact, text.normalised) for text in repeats.overlap] == [(20, 20)] * 2


@pytest.mark.parametrize(("memory", "budget"), [(0.5, 1 << 29), (0, 1 << 30), (1e-6, 1 << 20)])
def test_memory_for_repeated_pairs_is_the_setting_or_a_quarter_of_the_machine(
    tmp_path, monkeypatch, memory, budget
):
    budgets, parts = [], steps.Steps._parts
    monkeypatch.setattr(
        steps.Steps, "_parts", lambda self, size: budgets.append(self.budget) or parts(self, size)
    )
    monkeypatch.setattr(steps, "memory_bytes", lambda: 1 << 32)
    prepared(tmp_path, pairs(20), {"dev": DEV}, settings=[f"memory={memory}"])
    assert set(budgets) == {budget}


def test_parts_that_run_at_once_fit_into_the_memory_together():
    """A part needs eight times the bytes that it reads."""
    for jobs, size, expected in ((3, 500, 12), (0, 125, 1), (1, 126, 2), (3, 0, 1)):
        of_machine = SimpleNamespace(jobs=jobs, budget=1000)
        assert steps.Steps._parts(of_machine, size) == expected
    of_machine = SimpleNamespace(jobs=1, budget=1 << 50)
    assert steps.Steps._parts(of_machine, 3 * steps.PART_BYTES) == 3


def test_ranges_of_hashes_do_not_overlap(tmp_path):
    hashes = np.repeat(np.array([0, 2**63 - 1, 2**63, 2**64 - 1], np.uint64), 2)
    files.write_array(hashes_path(tmp_path, 0), np.stack([hashes, hashes])[:, None])
    settings = PrepSettings(deduplicate=True)
    for part in range(2):
        counts, (path,) = compare_hashes(tmp_path, part, "step", 2, 1, (), settings)
        assert counts["duplicates"] == 2
        assert np.load(path).tolist() == [4 * part + 1, 4 * part + 3]


def slow_drop(train, held_out, deduplicate, overlap):
    """Return the pairs that stay, found one after the other, and the count of each reason."""
    view = {"normalised": fold, "exact": tuple}.get(overlap)
    leaks = {view(row) for row in held_out if any(fold(row))} if view else set()
    kept, seen, dropped = [], set(), Counter()
    for pair in train:
        if leaks and view(pair) in leaks:
            dropped["in dev or test"] += 1
        elif deduplicate and pair in seen:
            dropped["duplicate"] += 1
        else:
            kept.append(pair)
        seen.add(pair)
    return kept, dropped


def add_repeats(rows):
    """Return training rows with repeats, and a dev and a test set that share some of them."""
    train = [*rows[:100], ("", ""), *rows[30:60], ("...", "!"), ("", ""), *rows[90:]]
    dev = [rows[3], (rows[95][0].upper(), f"„{rows[95][1]}“"), ("...", "!"), ("New.", "Neu.")]
    return train, dev, [rows[40], (rows[2][0], "Anders.")]


@pytest.mark.parametrize(
    ("deduplicate", "overlap"),
    [
        (True, "none"),
        (False, "exact"),
        (True, "exact"),
        (False, "normalised"),
        (True, "normalised"),
    ],
)
def test_dropped_pairs_and_counts_equal_a_slow_search(
    tmp_path, shared, overlap, deduplicate, monkeypatch
):
    """On Europarl. The corpus equals that of files without the dropped pairs."""
    count = 600 if overlap == "normalised" else 300  # more than a chunk of lines, or less
    monkeypatch.setattr(Shard.chunks, "__defaults__", (500, 1 << 20))
    monkeypatch.setattr(stage, "FEW_LINES", 0)
    sides = [real.lines(shared / EUROPARL / f"train.{side}.xz")[:count] for side in ("en", "de")]
    train, dev, news = add_repeats(list(zip(*sides, strict=True)))
    held_out = {"dev": dev, "news": news}
    settings = [f"deduplicate={deduplicate}", f"drop_overlap={overlap}"]
    kept, dropped = slow_drop(train, [*dev, *news], deduplicate, overlap)
    with monkeypatch.context() as patch:
        if overlap != "none":  # the pairs are compared in two parts or more
            patch.setattr(steps, "PART_BYTES", 2000)
        manifest = prepared(tmp_path, train, held_out, settings=settings, jobs=2).manifest()
    plain = prepared(tmp_path / "plain", kept, held_out).manifest()
    assert manifest.files == plain.files
    for text, expected in zip(manifest.sets, plain.sets, strict=True):
        assert text.model_copy(update={"identical": expected.identical}) == expected
    cleaning = manifest.cleaning
    assert (cleaning.pairs_in, cleaning.pairs_kept) == (len(train), plain.cleaning.pairs_kept)
    counts = {reason: cleaning.dropped.get(reason, {"pairs": 0})["pairs"] for reason in REASONS}
    assert counts == {reason: dropped[reason] for reason in REASONS}
    assert manifest.repeats.model_dump() == slow_repeats(train, held_out)
    assert dropped
    notes = " ".join(corpus(manifest).notes)
    assert all(f"{reason} {count:,}" in notes for reason, count in dropped.items())


REASONS = ("in dev or test", "duplicate")


def test_documents_are_renumbered_when_duplicates_are_dropped(tmp_path, stderr):
    """A document without its first lines starts at the next line; one without lines is gone."""
    rows = list(dict.fromkeys(pairs(400)))[:30]
    train = [*rows[:10], *rows[:4], *rows[10:16], *rows[2:5], *rows[16:], ("", "x")]
    documents = tmp_path / "starts"
    documents.write_text("0\n10\n20\n23\n")  # lines 10 to 13 and 20 to 22 are duplicates
    options = {"docs": [f"train={documents}"], "settings": ["deduplicate=true"]}
    run = prepared(tmp_path, train, {"dev": pairs(9, 7)}, **options)
    assert (run.prep / "docs/train.txt").read_text() == "0\n10\n16\n"
    assert "8 pairs dropped from the documents of train" in stderr()


def test_fingerprint_depends_on_settings_that_change_the_text():
    plain = PrepSettings()
    first = fingerprint(("en", "de"), plain, {})
    assert first == "d12b8b3d6ecf8e614b169602cc330c88bb1e5d232fd43732bf90d0715180ebd1"
    for values in ({"deduplicate": True}, {"subwords": "none"}, {"shard_lines": 9}):
        assert fingerprint(("en", "de"), plain.model_copy(update=values), {}) != first
    for values in ({"memory": 1.5}, {"dev": "x"}, {"test": ["y"]}):
        assert fingerprint(("en", "de"), plain.model_copy(update=values), {}) == first


def test_dropping_all_pairs_as_repeats_is_an_error(tmp_path):
    rows, settings = pairs(30), ["drop_overlap=exact"]
    message = "dropped all 30 training pairs: in dev or test 30"
    refused(DataError, message, prepared, tmp_path, rows, {"dev": rows}, settings=settings)


@pytest.mark.parametrize(
    "setting", ["drop_overlap=true", "drop_overlap=fuzzy", "deduplicate=exact"]
)
def test_unknown_value_of_a_setting_for_repeats_is_refused(tmp_path, setting):
    files, message = (tmp_path, pairs(9), {"dev": pairs(9, 7)}), f"prep.{setting.split('=')[0]}"
    refused(ConfigError, message, prepared, *files, settings=[setting])


def test_pairs_that_differ_before_cleaning_only_are_repeats(tmp_path):
    """They differ in CRLF, spaces, control characters and invisible characters."""
    train = [("A pair of words.", "Ein Paar."), ("A  pair of words.", "Ein Paar. \r")]
    train += [(f"A pair{c}of words.", "\xadEin\u200b Paar.") for c in "\0\t\x1c\x85\u2028"]
    dev = [(" A pair of  words.\r", "Ein Paar.")]
    train += [("A pair\u061c of words.\ufeff", "Ein\x85Paar.")]
    settings = ["drop_overlap=normalised"]
    run = prepared(tmp_path, [*pairs(20), *train], {"dev": dev}, settings=settings)
    repeats = run.manifest().repeats
    assert repeats.duplicates == 7 and repeats.overlap[0].exact == 1
    assert run.manifest().cleaning.dropped["in dev or test"]["pairs"] == 8


def test_normalised_text_has_no_case_spaces_and_punctuation_but_its_lines():
    text = "Das „Haus“ – GROẞ!\n\n«Ça va?»\n你好，世界。\n".encode()
    assert normalised(text) == "dashausgross\n\nçava\n你好世界\n".encode()
    decomposed = unicodedata.normalize("NFD", text.decode())
    assert normalised(decomposed.encode()) == normalised(text)
    assert normalised("Ｎｏ １\n".encode()) == b"no1\n"
    assert normalised("¿a،b؛c؟d۔e।f॥g։h。i\u1680j｡k、l\u200cm £°".encode()) == b"abcdefghijklm"
    assert len({normalised(f"1{c} m".encode()) for c in "½¼¾²³¹ªº々"}) == 9


def test_many_pairs_with_equal_sides_are_a_warning(tmp_path, stderr):
    same = [(src, src) for src, _ in pairs(20, 3)]
    less = [*pairs(11, 9), *same[:9]]
    held_out = {"dev": same[:9], "same": [(src, tgt, src) for src, tgt in same], "less": less}
    train = [*pairs(30), *[(src, src) for src, _ in pairs(30, 5)]]
    run = prepared(tmp_path, train, held_out)
    warnings = re.findall("source and .* are the same in .* pairs", stderr())
    assert warnings == [
        "source and target of train are the same in 50.0% of the pairs",
        "source and target of same are the same in 100.0% of the pairs",
        "source and ref1 of same are the same in 100.0% of the pairs",
    ]
    of_sets = [{"ref": 30}, {"ref": 9}, {"ref": 20, "ref1": 20}, {"ref": 9}]
    assert [text.identical for text in run.manifest().sets] == of_sets


def test_many_unknown_subwords_are_a_warning(tmp_path, stderr):
    dev = [*pairs(9, 7), *[("Ωμέγα άλφα βήτα γάμμα.", "Ja.")] * 3]
    prepared(tmp_path, pairs(60), {"dev": dev})
    printed = stderr()
    assert "of the subwords of dev are unknown in the source" in printed
    assert "unknown in the target" not in printed
