"""Repeated text that prep counts, against a slow count with sets of lines."""

import unicodedata

import pytest

from nmtkit.prep.repeats import normalised
from nmtkit.report.provenance import corpus
from tests.prep import real
from tests.prep.corpora import pairs, prepare, write

EUROPARL = "data/europarl_deen_20k"


def slow_normalised(line):
    """A line in one case, without white space and punctuation, character by character."""
    return "".join(
        c for c in line.casefold() if not c.isspace() and unicodedata.category(c)[0] not in "PS"
    )


def slow_repeats(train, held_out):
    """All counts over whole lists of pairs."""
    folded = [tuple(map(slow_normalised, pair)) for pair in train]
    overlap = []
    for name, rows in held_out.items():
        rows = [row for row in rows if any(map(slow_normalised, row))]
        same = sum(row in set(train) for row in rows)
        alike = sum(tuple(map(slow_normalised, row)) in set(folded) for row in rows)
        overlap.append({"name": name, "exact": same, "normalised": alike})
    return {
        "duplicates": len(train) - len(set(train)),
        "identical": sum(src == tgt != "" for src, tgt in train),
        "overlap": overlap,
    }


def prepared(folder, train, held_out, languages=("en", "de"), jobs=1):
    """The run of these sets; `held_out` has dev and then tests."""
    files = {
        name: write(folder / "in", name, rows, languages)
        for name, rows in {"train": train, **held_out}.items()
    }
    test = [files[name] for name in list(held_out)[1:]]
    return prepare(folder, {key: files[key] for key in ("train", "dev")}, test=test, jobs=jobs)


def test_counts_are_those_of_a_slow_count(tmp_path, capsys):
    train = [*pairs(60), ("Same.", "Same."), ("Same.", "Same."), ("", ""), ("...", "!")]
    train += [
        ("A new pair of words.", "Ein neues Paar."),
        ("Ein neues Paar.", "A new pair of words."),
    ]
    train += [("Said twice", "Zweimal"), ("Twice said", "Zweimal")]
    dev = [
        train[0],
        (train[1][0].upper(), train[1][1]),
        ("A  new-pair of words!", "„Ein neues Paar“"),
    ]
    dev += [("Ein neues Paar.", "Ein neues Paar."), ("...", "!"), ("Unseen.", "Neu.")]
    news = pairs(5, 9) + [("said TWICE", "zweimal")]
    run = prepared(tmp_path, train, {"dev": dev, "news": news})
    repeats = run.manifest().repeats
    expected = slow_repeats(train, {"dev": dev, "news": news})
    assert repeats.model_dump() == expected
    assert expected["identical"] == 2
    assert expected["overlap"][0] == {"name": "dev", "exact": 1, "normalised": 3}
    said = capsys.readouterr().err
    assert f"duplicates {expected['duplicates']:,}, source = target 2" in said
    assert "pairs of dev that training has too: 1 exactly, 3 without case and punctuation" in said
    notes = corpus(run.manifest()).notes
    assert any("pairs of news in the training text: 0 exactly, 1 without" in note for note in notes)


@pytest.mark.parametrize("jobs", [1, 2])
def test_real_text(tmp_path, shared, jobs):
    """Europarl, of which the dev set repeats some pairs."""
    sides = [real.lines(shared / EUROPARL / f"train.{side}.xz")[:9000] for side in ("de", "en")]
    rows = list(zip(*sides, strict=True))
    dev, train = rows[:500], [*rows[400:], *rows[600:700]]
    run = prepared(tmp_path, train, {"dev": dev}, ("de", "en"), jobs)
    repeats = run.manifest().repeats.model_dump()
    assert repeats == slow_repeats(train, {"dev": dev})
    assert repeats["duplicates"] >= 100
    assert repeats["overlap"][0]["exact"] >= 100


def test_normalised_text_keeps_its_lines():
    text = "Das „Haus“ – GROẞ!\n\n«Ça va?»\n你好，世界。\n".encode()
    assert normalised(text) == "dashausgross\n\nçava\n你好世界\n".encode()


def test_many_unknown_subwords_are_a_warning(tmp_path, capsys):
    dev = [*pairs(9, 7), *[("Ωμέγα άλφα βήτα γάμμα.", "Ja.")] * 3]
    prepared(tmp_path, pairs(60), {"dev": dev})
    said = capsys.readouterr().err
    assert "of the subwords of dev are unknown in the source" in said
    assert "unknown in the target" not in said
