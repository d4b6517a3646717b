"""Contrastive sets: reading them, deciding, grouping as Lingeval97's own evaluation does, and a
system's scores through the stage.
"""

import csv
import dataclasses
import json
import math
import random

import pytest
import torch

from nmtkit import files
from nmtkit.analyze import stage
from nmtkit.analyze.agreement import AGREEMENT, find_pairs, groups_of
from nmtkit.analyze.shared.contrastive import (
    Error,
    Item,
    as_documents,
    identical,
    read,
    undecidable,
    under,
)
from nmtkit.analyze.shared.contrastive_scores import decisions, preferred, read_scores
from nmtkit.data.context import Context
from nmtkit.data.documents import ContextRule
from nmtkit.demo import generate
from nmtkit.errors import ConfigError, DataError
from nmtkit.models import loading
from nmtkit.settings import SearchSettings, build
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate.forced import forced_scores, pair_batch
from nmtkit.translate.scorer import Scorer
from tests.spaces import Spaces

from .conftest import SMALL

DOCUMENTED = [  # formats.md, "Lingeval97": distance and frequency may be missing, or be text
    {
        "source": "w1 w2",
        "reference": "w3 w4",
        "origin": "newstest2009.1",
        "errors": [
            {"type": AGREEMENT, "contrastive": "w3 w5", "distance": "0", "frequency": 7},
            {"type": "polarity_affix_del", "contrastive": "w4", "frequency": "0"},
        ],
    },
    {"source": "w6", "reference": "w7", "origin": "newstest2009.2", "errors": []},
    {
        "source": "w8 w1 w2",
        "reference": "w9",
        "origin": "x.3",
        "errors": [{"type": AGREEMENT, "contrastive": "w3 w5 w6", "distance": 16}],
    },
]


@pytest.fixture(autouse=True)
def text_of_spaces(monkeypatch):
    """Words are what spaces separate: these runs were prepared by nobody."""
    monkeypatch.setattr("nmtkit.text.side.TextSide.load", lambda *_: Spaces())


@pytest.fixture
def documented(tmp_path):
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(DOCUMENTED), "utf-8")
    return path


def test_the_documented_format(documented):
    items = read(str(documented))
    assert [item.targets for item in items] == [
        ["w3 w4", "w3 w5", "w4"],
        ["w7"],
        ["w9", "w3 w5 w6"],
    ]
    assert items[0].errors == (
        Error(AGREEMENT, "w3 w5", 0, 7),
        Error("polarity_affix_del", "w4", None, 0),
    )


def test_three_text_files(tmp_path):
    paths = [tmp_path / name for name in ("src", "right", "wrong")]
    for path, lines in zip(paths, (["a", "b"], ["A", "B"], ["C", "D"]), strict=True):
        path.write_text("\n".join(lines) + "\n", "utf-8")
    where = ",".join(map(str, paths))
    assert read(where) == [
        Item("a", "A", [Error("pairs", "C")]),
        Item("b", "B", [Error("pairs", "D")]),
    ]
    paths[2].write_text("C\n", "utf-8")
    with pytest.raises(DataError, match="different numbers of lines"):
        read(where)
    paths[2].write_text("C\n \n", "utf-8")
    with pytest.raises(DataError, match="errors.0.contrastive: it is blank") as error:
        read(where)
    assert error.value.where == f"{where}, line 2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "item 0"),
        ('{"a": 1}', "not a list"),
        ("[", "line 1"),
        ('[{"source": "a"}]', "reference"),
        ("[]", "no pairs"),
    ],
)
def test_what_is_no_contrastive_set_is_refused(tmp_path, text, words):
    path = tmp_path / "bad.json"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError) as error:
        read(str(path))
    assert words in f"{error.value.message} {error.value.where}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": 5}, "source"),
        ({"reference": None}, "reference"),
        ({"context_src": [3]}, "context"),
        ({"context_src": ["a"], "context_ref": [["A"]]}, "context"),
        ({"errors": [{"type": 7, "contrastive": "b"}]}, "type"),
        ({"errors": [{"type": "x", "contrastive": ["b"]}]}, "contrastive"),
        (
            {"errors": [{"type": "x", "contrastive": "b", "distance": float("inf")}]},
            "finite number",
        ),
        (
            {"errors": [{"type": "x", "contrastive": " "}]},
            "^no item of a contrastive set: errors.0.contrastive: it is blank\n",
        ),
        (
            {"context_src": ["a", "b"], "context_ref": ["A"]},
            r"^no item of a contrastive set: 2 sentences before, 1 translations of them\n",
        ),
    ],
)
def test_what_is_no_text_is_refused_by_its_item(tmp_path, change, words):
    good = {"source": "a", "reference": "b", "errors": [{"type": "x", "contrastive": "c"}]}
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([good, {**good, **change}]), "utf-8")
    with pytest.raises(DataError, match=words) as error:
        read(str(path))
    assert error.value.where == f"{path}, item 1"


@pytest.mark.parametrize(
    "change",
    [
        {"src": ["a", "b"]},
        {"dst": ["A _eos B", 3]},
        {"dst": "AB"},
        {"true_ind": -1},
        {"ctx_dist": "far"},
    ],
)
def test_a_consistency_set_of_other_types_is_refused(tmp_path, change):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([{**CONSISTENCY[0], "true_ind": 0, **change}]), "utf-8")
    with pytest.raises(DataError) as error:
        read(str(path))
    assert error.value.where == f"{path}, item 0"


def test_real_pairs(shared):
    folder = shared / "data" / "distil_lingeval" / "subj_verb_agreement.mt"
    items = read(
        ",".join(
            str(folder / name) for name in ("src.en.xz", "tgt.correct.de.xz", "tgt.incorrect.de.xz")
        )
    )
    assert len(items) == 6701
    assert items[0].reference.replace("erreichten", "erreichte") == items[0].errors[0].contrastive


def test_contexts_beside_lingevals_fields(tmp_path):
    path = tmp_path / "pairs.json"
    one = {"source": "b", "reference": "B", "errors": [{"type": "pronoun", "contrastive": "C"}]}
    path.write_text(
        json.dumps(
            [
                {**one, "context_src": "a"},
                {**one, "context_src": ["x", "a"], "context_ref": "A"},
                one,
            ]
        ),
        "utf-8",
    )
    with pytest.raises(DataError, match="2 sentences before, 1 translations"):
        read(str(path))
    path.write_text(
        json.dumps(
            [
                {**one, "context_src": "a"},
                {**one, "context_src": ["x", "a"], "context_ref": ["X", "A"]},
                one,
            ]
        ),
        "utf-8",
    )
    assert [(item.context_src, item.context_ref) for item in read(str(path))] == [
        (("a",), ()),
        (("x", "a"), ("X", "A")),
        ((), ()),
    ]


def test_a_blank_text_before_is_passed_over(tmp_path):
    """As a blank line of a document is: no other context than none."""
    path = tmp_path / "pairs.json"
    path.write_text(
        json.dumps(
            [
                {
                    "source": "a",
                    "reference": "b",
                    "context_src": "",
                    "errors": [{"type": "x", "contrastive": "c"}],
                }
            ]
        ),
        "utf-8",
    )
    assert read(str(path)) == [Item("a", "b", [Error("x", "c")], ("",))]


def test_four_text_files_have_the_contexts_first(tmp_path):
    paths = [tmp_path / name for name in ("context", "src", "right", "wrong")]
    for path, lines in zip(
        paths, (["x y _eos z", ""], ["a", "b"], ["A", "B"], ["C", "D"]), strict=True
    ):
        path.write_text("\n".join(lines) + "\n", "utf-8")
    found = read(",".join(map(str, paths)))
    assert found == [
        Item("a", "A", [Error("pairs", "C")], ("x y", "z")),
        Item("b", "B", [Error("pairs", "D")]),
    ]
    with pytest.raises(DataError, match="from 2 files"):
        read(",".join(map(str, paths[:2])))


CONSISTENCY = [  # formats.md, "Consistency sets"
    {
        "src": "a _eos b _eos c _eos d",
        "dst": ["A _eos B _eos C _eos X", "A _eos B _eos C _eos D", "A _eos B _eos C _eos Y"],
        "true_ind": 1,
        "ctx_dist": 2,
    }
]
DISCOURSE = {  # as the two files of DiscEvalMT have it
    "1": {
        "src": ["a", "b"],
        "trg": [{"correct": ["A", "B"], "incorrect": ["A", "C"], "type": "m.pl"}],
    },
    "2": {
        "src": ["a", "b"],
        "trg": [{"semi-correct": ["Z", "C"], "incorrect": ["Z", "B"], "type": "f.pl"}],
    },
    "3": {
        "type": "repet",
        "examples": [{"src": ["c", "d"], "trg": {"correct": ["C", "D"], "incorrect": ["C", "E"]}}],
    },
}


def test_the_consistency_sets_format(tmp_path):
    path = tmp_path / "deixis_dev.json"
    path.write_text(json.dumps(CONSISTENCY), "utf-8")
    wrong = [Error("deixis_dev", "X", back=2), Error("deixis_dev", "Y", back=2)]
    assert read(str(path)) == [Item("d", "D", wrong, ("a", "b", "c"), ("A", "B", "C"))]
    path.write_text(json.dumps([{**CONSISTENCY[0], "true_ind": 3}]), "utf-8")
    with pytest.raises(DataError, match="no item"):
        read(str(path))


def test_discevals_format_and_what_the_source_cannot_decide(tmp_path):
    path = tmp_path / "anaphora.json"
    path.write_text(json.dumps(DISCOURSE), "utf-8")
    items = read(str(path))
    assert items == [
        Item("b", "B", [Error("m.pl", "C", back=1)], ("a",), ("A",)),
        Item("b", "C", [Error("f.pl", "B", back=1)], ("a",), ("Z",)),
        Item("d", "D", [Error("repet", "E", back=1)], ("c",), ("C",)),
    ]
    assert undecidable(items) == 2
    for change in (
        {"src": "ab"},
        {"trg": {"correct": "AB", "incorrect": ["A", "C"]}},
        {"trg": {"correct": ["A", "B"], "incorrect": "AC"}},
    ):
        path.write_text(json.dumps({"1": DISCOURSE["1"] | change}), "utf-8")
        with pytest.raises(
            DataError, match=r"(src|correct|incorrect): Input should be a valid list"
        ):
            read(str(path))


def test_real_sets_with_context(shared):
    folder = shared / "data" / "consistency_enru"
    sizes = {
        "deixis_dev": 500,
        "deixis_test": 2500,
        "lex_cohesion_dev": 500,
        "lex_cohesion_test": 1500,
        "ellipsis_infl": 500,
        "ellipsis_vp": 500,
    }
    lines = {
        "deixis_dev": 1000,
        "deixis_test": 5000,
        "lex_cohesion_dev": 1124,
        "lex_cohesion_test": 3428,
        "ellipsis_infl": 2520,
        "ellipsis_vp": 5203,
    }
    for name, size in sizes.items():
        items = read(str(folder / f"{name}.json.xz"))
        assert len(items) == size and sum(len(item.targets) for item in items) == lines[name]
        assert {len(item.context_src) for item in items} == {3}
        sources = list(files.text_lines(folder / "scoring_data" / f"{name}.src.xz"))
        assert sources[0] == " _eos ".join([*items[0].context_src, items[0].source])
        # Of deixis and cohesion only the translations before decide; a few candidates of ellipsis
        # are the right one once more.
        assert undecidable(items) == (
            0 if name.startswith("ellipsis") else sum(len(item.errors) for item in items)
        )
        assert identical(items) == {"ellipsis_infl": 5, "ellipsis_vp": 11}.get(name, 0)
    for name, flat in (("anaphora", "anaphora"), ("lexical-choice", "lexical_choice")):
        items = read(str(shared / "data" / "discourse_enfr" / f"{name}.json"))
        before, source, target = (
            list(files.text_lines(shared / "data" / "discourse_enfr" / f"{flat}.{part}"))
            for part in ("prev.en", "current.en", "current.fr")
        )
        assert len(items) == 200
        assert [item.context_src for item in items for _ in item.targets] == [
            (line,) for line in before
        ]
        assert [item.source for item in items for _ in item.targets] == source
        assert [text for item in items for text in item.targets] == target
        assert undecidable(items) == (199 if name == "anaphora" else 22)


def test_the_demos_pronouns_have_a_context_each(tmp_path):
    generate(tmp_path, size=40, dev=5, test=5)
    items = read(str(tmp_path / "pronouns.en-de.json"))
    assert len(items) >= 30 and all(
        len(item.context_src) == 1 and len(item.errors) == 2 for item in items
    )
    assert undecidable(items) == 0


def test_other_contexts_are_none_or_another_items():
    items = [Item(f"s{i}", "r", [], (f"c{i % 5}",)) for i in range(40)] + [Item("first", "r", [])]
    assert under(items, "true") == items
    assert {item.context_src for item in under(items, "none")} == {()}
    foreign = under(items, "foreign")
    assert all(
        a.context_src != b.context_src and len(b.context_src) == 1
        for a, b in zip(items[:40], foreign, strict=False)
    )
    assert foreign[40].context_src == ()
    assert {item.context_src for item in foreign[:40]} == {(f"c{i}",) for i in range(5)}
    assert foreign == under(items, "foreign") != under(items, "foreign", seed=2)
    with pytest.raises(ConfigError, match="unknown context 'next'"):
        under(items, "next")
    with pytest.raises(DataError, match="same context"):
        under(items[:1], "foreign")


def test_the_sentence_is_right_where_it_beats_every_wrong_one():
    assert preferred([[-1.0, -2.0, -3.0], [-1.0, -0.5, -3.0], [-4.0], [-2.0, -2.0]]) == [
        True,
        False,
        False,
    ]


def test_a_set_is_documents_of_what_was_said_before():
    items = [Item("b", "B", [Error("x", "C")], ("a",), ("A",)), Item("d", "D", [])]
    text = as_documents(items)
    assert (
        text.lines == ["a", "b", "d"]
        and text.targets == [[], ["B", "C"], ["D"]]
        and text.places == [1, 2]
    )
    assert [text.documents.context(i, ContextRule()) for i in range(3)] == [[], [0], []]
    assert as_documents(items, translated=True).targets == [["A"], ["B", "C"], ["D"]]


def test_systems_that_read_translations_get_those_of_the_set(analysed, tmp_path):
    """The same sources with other translations before: only such a system scores them
    differently.
    """
    path = tmp_path / "pairs.json"
    trg = [
        {"correct": [before, "w5 w6"], "incorrect": [before, "w5 w7"]}
        for before in ("w20 w21", "w30 w31 w32")
    ]
    path.write_text(json.dumps({"1": {"src": ["w1 w2", "w3"], "trg": trg}}), "utf-8")
    analysed.system("sources", "han", SMALL)
    analysed.system("both", "han", {**SMALL, "side": "joint"})
    stage.analyze(analysed.run, "agreement", pairs=str(path))
    folder, items = analysed.run.path / "analyze" / "agreement", read(str(path))
    first, second = read_scores(folder / "sources.scores", items).scores
    assert first == pytest.approx(second, abs=1e-5)
    first, second = read_scores(folder / "both.scores", items).scores
    assert first != pytest.approx(second, abs=1e-4)
    assert "both (previous, at most 3, parallel, translations too)" in (
        folder / "table.md"
    ).read_text("utf-8")


def test_a_tie_is_wrong_and_each_error_is_held_against_its_own_reference():
    assert decisions([[-2.0, -3.0, -2.0, -1.0], [-5.0, -6.0]]) == [True, False, False, True]


def test_score_files_of_either_sign(tmp_path, documented):
    items, path = read(str(documented)), tmp_path / "a.scores"
    path.write_text("5.9\n6.4\n5.1\n1\n2\n3\n", "utf-8")
    assert read_scores(path, items).scores == [[-5.9, -6.4, -5.1], [-1.0], [-2.0, -3.0]]
    path.write_text("-5.9\n-6.4\n-5.1\n-1\n-2\n0\n", "utf-8")
    assert read_scores(path, items).scores == [[-5.9, -6.4, -5.1], [-1.0], [-2.0, 0.0]]
    assert read_scores(path, items).kind == read_scores(path, items, "log-prob").kind == "log-prob"
    path.write_text("-5.9\n6.4\n5.1\n1\n2\n0\n", "utf-8")
    assert read_scores(path, items).kind == "nll" and read_scores(path, items).scores[0] == [
        5.9,
        -6.4,
        -5.1,
    ]
    assert read_scores(path, items, "log-prob").scores == [[-5.9, 6.4, 5.1], [1.0], [2.0, 0.0]]
    for lines, words in (
        ("1\n2\n", "2 scores for 6"),
        ("1\n2\nx\n4\n5\n6\n", "not a number: 'x'"),
        ("1\n2\nnan\n4\n5\n6\n", "not a number"),
    ):
        path.write_text(lines, "utf-8")
        with pytest.raises(DataError, match=words):
            read_scores(path, items)


def bin_of_lingeval(frequency):
    """evaluate.py's bins of frequencies, in words (formats.md): 5 is overwritten by the bin that
    is assigned later.
    """
    for low in (10000, 5000, 2000, 1000, 500, 200, 100, 50, 20, 10, 5, 2):
        if frequency > low:
            return f">{low}"
    return str(frequency)


def test_groups_are_those_of_the_sets_own_evaluation():
    rng = random.Random(1)
    kinds = [AGREEMENT, "polarity_affix_del", "polarity_particle_kein_ins", "auxiliary"]
    errors = [
        Error(
            rng.choice(kinds),
            "x",
            rng.choice([None, *range(20)]),
            rng.choice([None, *range(25), 50, 51, 5000, 10001]),
        )
        for _ in range(800)
    ]
    found = {
        group: [errors[place] for place in places] for group, places in groups_of(errors).items()
    }
    assert found["all", "all"] == errors
    for kind in kinds:
        assert found["type", kind] == [e for e in errors if e.type == kind]
    assert found["type", "polarity, deletion"] == found["type", "polarity_affix_del"]
    assert ("type", "polarity, insertion") in found
    agreement = [e for e in errors if e.type == AGREEMENT and e.distance is not None]
    for section, own in (
        ("distance, subject-verb", agreement),
        ("distance, all types", [e for e in errors if e.distance is not None]),
    ):
        for distance in range(16):
            assert found[section, str(distance)] == [e for e in own if e.distance == distance]
        assert found[section, ">15"] == [e for e in own if e.distance > 15]
    counted = [e for e in errors if e.frequency is not None]
    for label in {bin_of_lingeval(e.frequency) for e in counted}:
        assert found["frequency", label] == [
            e for e in counted if bin_of_lingeval(e.frequency) == label
        ]
    assert sum(len(own) for (section, _), own in found.items() if section == "frequency") == len(
        counted
    )
    of_one = {
        kind: {section for section, _ in groups_of([Error(kind, "x", 0)])}
        for kind in (AGREEMENT, "auxiliary")
    }
    assert of_one == {
        AGREEMENT: {"all", "type", "distance, subject-verb"},
        "auxiliary": {"all", "type", "distance, all types"},
    }


@pytest.mark.parametrize("jobs", [1, 2])
def test_alternatives_are_the_forced_scores_one_by_one(analysed, jobs):
    analysed.system("base", "transformer", SMALL)
    model = loading.load_system(analysed.run, analysed.run.find_system("base"), "cpu")
    translator = Scorer(
        [model],
        Spaces(),
        Spaces(),
        *load_vocabularies(analysed.run.prep),
        build(SearchSettings, {"batch_size": 6}, "search"),
        "cpu",
        jobs,
    )
    rng = random.Random(3)
    sentence = lambda: " ".join(f"w{rng.randint(0, 90)}" for _ in range(rng.randint(1, 9)))  # noqa: E731
    sources, targets = (
        [sentence() for _ in range(23)],
        [[sentence() for _ in range(rng.choice([1, 2, 2, 3, 8]))] for _ in range(23)],
    )
    found = translator.alternatives(sources, targets)
    for source, own, scores in zip(sources, targets, found, strict=True):
        one_by_one = [line.log_prob for line in translator.force([source] * len(own), own)]
        assert scores == pytest.approx(one_by_one, abs=1e-4)


def test_a_source_is_read_once_for_its_targets(analysed, monkeypatch):
    analysed.system("base", "transformer", SMALL)
    model = loading.load_system(analysed.run, analysed.run.find_system("base"), "cpu")
    read_rows, original = [], model.encode
    monkeypatch.setattr(
        model, "encode", lambda batch: read_rows.append(len(batch.src)) or original(batch)
    )
    translator = Scorer(
        [model],
        Spaces(),
        Spaces(),
        *load_vocabularies(analysed.run.prep),
        build(SearchSettings, {}, "search"),
    )
    translator.alternatives(["w1", "w2 w3"], [["w4", "w5", "w6"], ["w7", "w8", "w9"]])
    assert read_rows == [2]


def test_the_stage_shows_systems_and_score_files_side_by_side(
    analysed, documented, tmp_path, capsys
):
    analysed.system("base", "transformer", SMALL)
    other = tmp_path / "others.2016.scores"
    other.write_text("1\n2\n2\n9\n5\n4\n", "utf-8")
    stage.analyze(
        analysed.run, "agreement", pairs=str(documented), scores=(str(other),), output_format="csv"
    )
    rows = {
        (row["section"], row["label"]): row
        for row in csv.DictReader(capsys.readouterr().out.splitlines())
    }
    assert float(rows["all", "all"]["others"]) == pytest.approx(200 / 3)
    assert {
        key: int(row["pairs"]) for key, row in rows.items() if key[0].startswith("distance")
    } == {
        ("distance, subject-verb", "0"): 1,
        ("distance, subject-verb", ">15"): 1,
    }
    table = (analysed.run.path / "analyze" / "agreement" / "table.md").read_text("utf-8")
    assert "frequency: of the word in the training text of the set's authors, all types" in table
    lines = (
        (analysed.run.path / "analyze" / "agreement" / "base.scores")
        .read_text("utf-8")
        .splitlines()
    )
    items = read(str(documented))
    own = decisions(
        read_scores(analysed.run.path / "analyze" / "agreement" / "base.scores", items).scores
    )
    assert len(lines) == 6 and all(math.isfinite(float(line)) for line in lines)
    assert float(rows["all", "all"]["base"]) == pytest.approx(100 * sum(own) / 3)

    stage.analyze(analysed.run, "agreement", pairs=str(documented), scores=(str(other),))
    assert "up to date" in capsys.readouterr().err
    other.write_text("1\n2\n2\n9\n4\n5\n", "utf-8")
    stage.analyze(
        analysed.run, "agreement", pairs=str(documented), scores=(str(other),), output_format="csv"
    )
    assert "100.0" in capsys.readouterr().out


def test_what_a_score_file_is_read_as_is_said_and_can_be_told(
    analysed, documented, tmp_path, capsys
):
    analysed.system("base", "transformer", SMALL)
    other = tmp_path / "others.2016.scores"
    other.write_text("1\n2\n2\n9\n5\n4\n", "utf-8")
    options = {"pairs": str(documented), "scores": (str(other),)}
    for kind, said, share in (
        ("auto", "negative log-likelihoods, lower is better (by their signs", 200 / 3),
        ("log-prob", "log-probabilities", 100 / 3),
    ):
        stage.analyze(
            analysed.run, "agreement", **{**options, "score_kind": kind}, output_format="csv"
        )
        printed = capsys.readouterr()
        assert f"scores of others: read as {said}" in printed.err
        assert float(next(csv.DictReader(printed.out.splitlines()))["others"]) == pytest.approx(
            share
        )
        table = (analysed.run.path / "analyze" / "agreement" / "table.md").read_text("utf-8")
        assert f"scores of others: read as {said.partition(' (')[0]}" in table
    with pytest.raises(ConfigError, match="no score file"):
        stage.analyze(analysed.run, "agreement", pairs=str(documented), score_kind="nll")


def test_a_system_that_reads_parses_is_said_to_have_none(analysed, documented, capsys):
    analysed.system("trees", "pr", {**SMALL, "segmentation": "parse"})
    stage.analyze(analysed.run, "agreement", pairs=str(documented))
    assert "'trees' reads parses" in capsys.readouterr().err


@pytest.fixture
def with_context(tmp_path):
    """Two-sentence documents: the same sentence after several others, with two wrong
    translations.
    """
    path = tmp_path / "context.json"
    errors = [{"type": "pronoun", "contrastive": f"w3 w{i}"} for i in (50, 51)]
    items = [
        {
            "source": "w1 w2",
            "reference": f"w3 w{60 + i}",
            "context_src": f"w{10 + i} w{30 + i}",
            "errors": errors,
        }
        for i in range(12)
    ]
    path.write_text(json.dumps(items), "utf-8")
    return path


@pytest.mark.parametrize("variant", ["amn", "context-aware", "han", "concat"])
def test_scores_hang_on_the_context_of_systems_that_read_it(
    analysed, with_context, variant, capsys
):
    analysed.system("base", "transformer", SMALL)
    model = analysed.system("doc", variant, SMALL)
    options = {"pairs": str(with_context), "context": "true,none,foreign"}
    stage.analyze(analysed.run, "agreement", **options, output_format="csv")
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [key for key in rows[0] if not key.endswith(("_low", "_high"))] == [
        "section",
        "label",
        "pairs",
        "base",
        "doc",
        "doc, none",
        "doc, foreign",
    ]
    assert [(row["section"], row["pairs"]) for row in rows[:3]] == [
        ("all", "24"),
        ("sentence", "12"),
        ("type", "24"),
    ]
    folder, items = analysed.run.path / "analyze" / "agreement", read(str(with_context))
    true, none, foreign = (
        read_scores(folder / f"doc{part}.scores", items).scores
        for part in ("", ".none", ".foreign")
    )
    assert true != none and true != foreign and none != foreign
    assert sorted(path.name for path in folder.glob("base*")) == ["base.scores"]
    notes = (folder / "table.md").read_text("utf-8")
    rule = model.context_rule
    assert f"read by doc (previous, at most {rule.size}, {rule.join}); not read by base" in notes
    assert "none: without it; foreign: with that of another sentence of the set" in notes
    stage.analyze(analysed.run, "agreement", systems=["doc"], pairs=str(with_context))
    notes = (folder / "table.md").read_text("utf-8")
    assert (
        "not read by" not in notes and "foreign: " not in notes and "read by doc" in notes
    )  # what was not asked is not explained

    vocabulary = load_vocabularies(analysed.run.prep)[0]
    src, before = (vocabulary.encode(text.split()) for text in ("w1 w2", "w10 w30"))
    tgt = vocabulary.encode(["w3", "w60"])
    rows_of = {"true": [[0]], "none": [[-1]]}
    for name, scores in (("true", true), ("none", none)):  # by hand: one pair, one context
        context = Context(
            torch.tensor([before]), torch.tensor([len(before)]), torch.tensor(rows_of[name]), False
        )
        batch = dataclasses.replace(pair_batch([src], [tgt]), context=context)
        assert scores[0][0] == pytest.approx(sum(forced_scores([model.eval()], batch)[0]), abs=1e-4)


def test_contexts_that_are_not_there_are_said_or_refused(
    analysed, documented, with_context, capsys
):
    analysed.system("doc", "amn", SMALL)
    analysed.system("later", "amn", {**SMALL, "context": "next"})
    stage.analyze(analysed.run, "agreement", systems=["doc"], pairs=str(documented))
    assert "'doc' reads context, which the pairs have none of" in capsys.readouterr().err
    stage.analyze(analysed.run, "agreement", systems=["later"], pairs=str(with_context))
    assert "'later' reads the sentences after" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no pair of this set has a context"):
        stage.analyze(
            analysed.run, "agreement", systems=["doc"], pairs=str(documented), context="none"
        )


def test_a_system_that_reads_other_documents_is_asked_once(
    analysed, with_context, monkeypatch, capsys
):
    """What it reads is of other pairs, whatever stands before its own: columns of other contexts
    would say what they are not.
    """
    analysed.system("ablated", "amn", {**SMALL, "inter_attention": False, "context": "foreign"})
    asked, alternatives = [], Scorer.alternatives
    monkeypatch.setattr(
        Scorer, "alternatives", lambda self, *text: asked.append(text) or alternatives(self, *text)
    )
    stage.analyze(
        analysed.run,
        "agreement",
        pairs=str(with_context),
        context="true,none,foreign",
        output_format="csv",
    )
    printed = capsys.readouterr()
    assert "'ablated' reads sentences of other documents" in printed.err.replace("\n", " ")
    assert list(csv.DictReader(printed.out.splitlines()))[0].keys() == {
        "section",
        "label",
        "pairs",
        "ablated",
        "ablated_low",
        "ablated_high",
    }
    assert len(asked) == 1


def test_a_wrong_translation_that_is_the_right_one_is_said(analysed, tmp_path):
    analysed.system("doc", "amn", SMALL)
    for name, lines in {
        "before": ["w1", "w2"],
        "src": ["w1 w2", "w3 w4"],
        "right": ["w5 w6", "w9 w7"],
        "wrong": ["w5 w6", "w8 w7"],
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    pairs = ",".join(str(tmp_path / name) for name in ("before", "src", "right", "wrong"))
    stage.analyze(analysed.run, "agreement", pairs=pairs)
    notes = (analysed.run.path / "analyze" / "agreement" / "table.md").read_text("utf-8")
    assert (
        "1 wrong translation of the set: the right one once more, word for word" in notes
        and "swapped too" not in notes
    )


def test_sets_of_the_corpus_go_by_their_names(analysed, with_context):
    (analysed.run.prep / "eval").mkdir()
    (analysed.run.prep / "eval" / "pronouns.json").write_bytes(with_context.read_bytes())
    assert find_pairs(analysed.run, "pronouns") == str(analysed.run.prep / "eval" / "pronouns.json")
    assert find_pairs(analysed.run, "a,b,c") == "a,b,c"
    with pytest.raises(ConfigError, match="no contrastive set 'pronoun'") as error:
        find_pairs(analysed.run, "pronoun")
    assert "did you mean 'pronouns'?" in error.value.hint


def test_pairs_of_words_that_a_system_does_not_know_are_said(analysed, tmp_path, capsys):
    """Two unknown words are one to the model, so the pair is a tie, and no share says that by
    itself.
    """
    analysed.system("base", "transformer", SMALL)
    for name, lines in {
        "src": ["w1 w2", "w3 w4"],
        "right": ["w5 w6", "xyzzy w7"],
        "wrong": ["w5 w8", "plugh w7"],
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    pairs = ",".join(str(tmp_path / name) for name in ("src", "right", "wrong"))
    stage.analyze(analysed.run, "agreement", pairs=pairs)
    said = capsys.readouterr()
    assert (
        "'base' does not know 0.0% of the source's subwords and 16.7% of the targets'"
        in said.err.replace("\n", " ")
    )  # 2 of 12, </s> with them
    assert "base: 1 exact tie, so wrong" in (
        analysed.run.path / "analyze" / "agreement" / "table.md"
    ).read_text("utf-8")


def test_without_pairs_of_its_own_a_run_says_what_to_give(analysed):
    analysed.system("base", "transformer", SMALL)
    with pytest.raises(ConfigError, match="no contrastive set") as error:
        stage.analyze(analysed.run, "agreement")
    assert "lingeval97" in error.value.hint
    with pytest.raises(ConfigError, match="reads no set of the run"):
        stage.analyze(analysed.run, "agreement", set_names=["test"])


def test_no_score_is_lost_in_float32(analysed):
    """Sums of float64 log-probabilities: two targets that differ in a rare word only are told
    apart.
    """
    analysed.system("base", "transformer", SMALL)
    model = loading.load_system(analysed.run, analysed.run.find_system("base"), "cpu")
    translator = Scorer(
        [model],
        Spaces(),
        Spaces(),
        *load_vocabularies(analysed.run.prep),
        build(SearchSettings, {}, "search"),
    )
    long = " ".join(f"w{i}" for i in range(60))
    (scores,) = translator.alternatives(["w1"], [[long, long.replace("w59", "w58")]])
    assert scores[0] != scores[1] and torch.tensor(scores).isfinite().all()
