"""Contrastive sets: reading them, deciding, grouping as Lingeval97's own evaluation does, and a
system's scores through the stage.
"""

import csv
import dataclasses
import json
import math
import random
from types import SimpleNamespace

import pytest
import torch

from nmtkit import files
from nmtkit.analyze import stage
from nmtkit.analyze.agreement import AGREEMENT, attachments_of, find_pairs, groups_of
from nmtkit.analyze.contrastive_scores import LOG_PROB, NLL, decisions, preferred, read_scores
from nmtkit.data.context import Context
from nmtkit.data.documents import ContextRule
from nmtkit.errors import ConfigError, DataError
from nmtkit.measures.contrastive import (
    Error,
    Item,
    as_documents,
    read,
    undecidable,
    under,
)
from nmtkit.models import loading
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate.forced import forced_scores, pair_batch
from nmtkit.translate.scorer import Scorer
from tests.refused import refused
from tests.score.conftest import write
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
ERROR = Error("pronoun", "C")
PAIR = {"source": "b", "reference": "B", "errors": [{"type": "pronoun", "contrastive": "C"}]}
CONSISTENCY = {  # formats.md, "Consistency sets"
    "src": "a _eos b _eos c _eos d",
    "dst": ["A _eos B _eos C _eos X", "A _eos B _eos C _eos D", "A _eos B _eos C _eos Y"],
    "true_ind": 1,
    "ctx_dist": 2,
}
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


@pytest.fixture(autouse=True)
def text_of_spaces(monkeypatch):
    """Words are what spaces separate: these runs were prepared by nobody."""
    monkeypatch.setattr("nmtkit.text.side.TextSide.load", lambda *_: Spaces())


@pytest.fixture
def stored(tmp_path):
    """Write a contrastive set as a JSON file, and return its name."""

    def write_set(value, name="pairs.json"):
        text = value if isinstance(value, str) else json.dumps(value)
        (tmp_path / name).write_text(text, "utf-8")
        return str(tmp_path / name)

    return write_set


@pytest.fixture
def documented(stored):
    return stored(DOCUMENTED, "documented.json")


def text_files(folder, **columns):
    """Write text files, and return the option that names them."""
    for name, lines in columns.items():
        write(folder / name, lines)
    return ",".join(str(folder / name) for name in columns)


@pytest.fixture
def analyze(analysed, capsys):
    """Run the analysis; return the rows of its table by section and label, and stderr."""

    def run(pairs, **options):
        stage.analyze(analysed.run, "agreement", pairs=pairs, output_format="csv", **options)
        out, err = capsys.readouterr()
        rows = csv.DictReader(out.splitlines())
        return {(row["section"], row["label"]): row for row in rows}, err.replace("\n", " ")

    return run


@pytest.fixture
def notes(analysed):
    """Return the table with its notes."""
    return lambda: analysed.text("agreement", "table.md")


@pytest.fixture
def stored_scores(analysed):
    """Return the scores that the analysis keeps of a system for some pairs."""

    def scores(name, pairs):
        return read_scores(analysed.folder("agreement") / f"{name}.scores", read(pairs)).scores

    return scores


# Reading


def test_the_documented_format(documented):
    items = read(documented)
    targets = [["w3 w4", "w3 w5", "w4"], ["w7"], ["w9", "w3 w5 w6"]]
    assert [item.targets for item in items] == targets
    assert items[0].errors == (
        Error(AGREEMENT, "w3 w5", 0, 7),
        Error("polarity_affix_del", "w4", None, 0),
    )


def test_text_files(tmp_path):
    """Four have the contexts first."""
    pairs = {"src": ["a", "b"], "right": ["A", "B"], "wrong": ["C", "D"]}
    errors = [Error("pairs", "C")], [Error("pairs", "D")]
    where = text_files(tmp_path, **pairs)
    assert read(where) == [Item("a", "A", errors[0]), Item("b", "B", errors[1])]
    assert read(text_files(tmp_path, context=["x y _eos z", ""], **pairs)) == [
        Item("a", "A", errors[0], ("x y", "z")),
        Item("b", "B", errors[1]),
    ]
    with pytest.raises(DataError, match="different numbers of lines"):
        read(text_files(tmp_path, **pairs | {"wrong": ["C"]}))
    with pytest.raises(DataError, match="errors.0.contrastive: it is blank") as error:
        read(text_files(tmp_path, **pairs | {"wrong": ["C", " "]}))
    assert error.value.where == f"{where}, line 2"
    refused(DataError, "from 2 files", read, "src,right")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "item 0"),
        ('{"a": 1}', "not a list"),
        ("[", "line 1"),
        ("[]", "no pairs"),
    ],
)
def test_what_is_no_contrastive_set_is_refused(stored, text, words):
    error = refused(DataError, None, read, stored(text))
    assert words in f"{error.message} {error.where}" and error.hint


BAD_ERRORS = [
    ({"distance": float("inf")}, "finite number"),
    (
        {"contrastive": " "},
        "^not an item of a contrastive set: errors.0.contrastive: it is blank\n",
    ),
]


@pytest.mark.parametrize(
    ("good", "change", "words"),
    [
        (PAIR, {"reference": None}, "reference"),
        (
            PAIR,
            {"context_src": ["x", "a"], "context_ref": "A"},
            r"^not an item of a contrastive set: 2 sentences before, 1 translations of them\n",
        ),
        *((PAIR, {"errors": [PAIR["errors"][0] | bad]}, words) for bad, words in BAD_ERRORS),
        (CONSISTENCY, {"true_ind": -1}, "true_ind"),
        (CONSISTENCY, {"true_ind": 3}, "true_ind is 3, of 3 candidates"),
        (DISCOURSE["1"], {"src": "ab"}, "src: Input should be a valid list"),
        (DISCOURSE["1"], {"trg": {"correct": [], "incorrect": ["A", "C"]}}, "correct: List"),
        (DISCOURSE["1"], {"trg": {"correct": ["A", "B"], "incorrect": []}}, "incorrect: List"),
    ],
)
def test_an_item_in_another_form_is_refused(stored, good, change, words):
    bad = good | change
    path = stored({"1": bad} if "trg" in bad else [good, bad])
    assert refused(DataError, words, read, path).where == f"{path}, item 1"


def test_contexts_beside_lingevals_fields(stored):
    """A blank one is passed over, as a blank line of a document is."""
    two = {"context_src": ["x", "a"], "context_ref": ["X", "A"]}
    contexts = [{"context_src": "a"}, two, {}, {"context_src": ""}]
    items = read(stored([PAIR | context for context in contexts]))
    assert [item.context_src for item in items] == [("a",), ("x", "a"), (), ("",)]
    assert [item.context_ref for item in items] == [(), ("X", "A"), (), ()]


def test_the_consistency_sets_format(stored):
    wrong = [Error("deixis_dev", "X", back=2), Error("deixis_dev", "Y", back=2)]
    assert read(stored([CONSISTENCY], "deixis_dev.json")) == [
        Item("d", "D", wrong, ("a", "b", "c"), ("A", "B", "C"), (1, 0, 2))
    ]


@pytest.mark.parametrize("name", ["lex_cohesion_dev", "ellipsis_vp"])
def test_score_files_of_the_consistency_sets_are_in_the_order_of_their_candidates(
    shared, tmp_path, name
):
    """As the authors' evaluation reads them, which takes the first of equal candidates."""
    where = shared / "data" / "consistency_enru" / f"{name}.json.xz"
    entries = json.loads("\n".join(files.text_lines(where)))
    losses = [0.5 + (text != x["dst"][x["true_ind"]]) for x in entries for text in x["dst"]]
    write(tmp_path / "a.scores", map(str, losses))
    scores = read_scores(tmp_path / "a.scores", read(str(where))).scores
    assert all(preferred(scores)) and len(preferred(scores)) == 500


def test_a_score_file_has_the_order_it_is_read_in():
    result = SimpleNamespace(
        files={},
        columns={"a": [[-1.0, -2.0]]},
        items=[Item("s", "r", (ERROR,), score_lines=(1, 0, 0))],
    )
    assert attachments_of(result) == {"a.scores": "2.000000\n1.000000\n1.000000\n"}
    with pytest.raises(ValueError, match="each target"):
        Item("s", "r", (ERROR,), score_lines=(1, 1))


def test_discevals_format_and_what_the_source_cannot_decide(stored):
    items = read(stored(DISCOURSE))
    assert items == [
        Item("b", "B", [Error("m.pl", "C", back=1)], ("a",), ("A",)),
        Item("b", "C", [Error("f.pl", "B", back=1)], ("a",), ("Z",)),
        Item("d", "D", [Error("repet", "E", back=1)], ("c",), ("C",)),
    ]
    assert undecidable(items) == 2


def test_real_sets_with_context(shared):
    folder = shared / "data" / "consistency_enru"
    # Of deixis only the translations before decide; eleven candidates of ellipsis are the right one
    # once more.
    counts = {"deixis_dev": (500, 1000, 500), "ellipsis_vp": (500, 5203 - 11, 0)}
    for name, expected in counts.items():
        items = read(str(folder / f"{name}.json.xz"))
        lines = sum(len(item.targets) for item in items)
        assert (len(items), lines, undecidable(items)) == expected
        assert {len(item.context_src) for item in items} == {3}
        sources = list(files.text_lines(folder / "scoring_data" / f"{name}.src.xz"))
        assert sources[0] == " _eos ".join([*items[0].context_src, items[0].source])
    folder = shared / "data" / "discourse_enfr"
    for name, count in (("anaphora", 199), ("lexical-choice", 22)):
        items = read(str(folder / f"{name}.json"))
        assert (len(items), undecidable(items)) == (200, count)
    before, source, target = (
        list(files.text_lines(folder / f"anaphora.{part}"))
        for part in ("prev.en", "current.en", "current.fr")
    )
    items = read(str(folder / "anaphora.json"))
    texts = [(item.context_src, item.source, text) for item in items for text in item.targets]
    assert texts == [((b,), s, t) for b, s, t in zip(before, source, target, strict=True)]


def test_other_contexts_are_none_or_another_items():
    items = [Item(f"s{i}", "r", [], (f"c{i % 5}",)) for i in range(40)] + [Item("first", "r", [])]
    assert under(items, "true") == items
    assert {item.context_src for item in under(items, "none")} == {()}
    *foreign, first = (item.context_src for item in under(items, "foreign"))
    assert all(a.context_src != b for a, b in zip(items, foreign, strict=False))
    assert set(foreign) == {(f"c{i}",) for i in range(5)} and first == ()
    assert under(items, "foreign") == under(items, "foreign") != under(items, "foreign", seed=2)
    refused(ConfigError, "unknown context 'next'", under, items, "next")
    refused(DataError, "same context", under, items[:1], "foreign")


def test_a_set_is_documents_of_what_was_said_before():
    items = [Item("b", "B", [Error("x", "C")], ("a",), ("A",)), Item("d", "D", [])]
    text = as_documents(items)
    assert (text.lines, text.places) == (["a", "b", "d"], [1, 2])
    assert text.targets == [[], ["B", "C"], ["D"]]
    assert [text.documents.context(i, ContextRule()) for i in range(3)] == [[], [0], []]
    assert as_documents(items, translated=True).targets == [["A"], ["B", "C"], ["D"]]


def test_sets_of_the_corpus_go_by_their_names(analysed):
    path = analysed.run.prep / "eval" / "pronouns.json"
    write(path, [])
    assert find_pairs(analysed.run, "pronouns") == str(path)
    assert find_pairs(analysed.run, "a,b,c") == "a,b,c"
    for name, hint in (
        ("pronoun", "did you mean 'pronouns'?"),
        ("zzz", "known: lingeval97, pronouns - or a JSON file"),
        ("", "lingeval97"),
    ):
        error = refused(ConfigError, f"no contrastive set.*{name}", find_pairs, analysed.run, name)
        assert hint in error.hint


# Deciding


def test_a_tie_is_wrong_and_each_error_is_held_against_its_own_reference():
    assert decisions([[-2.0, -3.0, -2.0, -1.0], [-5.0, -6.0]]) == [True, False, False, True]


def test_the_sentence_is_right_where_it_beats_every_wrong_one():
    scores = [[-1.0, -2.0, -3.0], [-1.0, -0.5, -3.0], [-4.0], [-2.0, -2.0]]
    assert preferred(scores) == [True, False, False]


@pytest.mark.parametrize(
    ("numbers", "meaning"),
    [
        ("5.9 6.4 5.1 1 2 3", NLL),
        ("-5.9 -6.4 -5.1 -1 -2 0", LOG_PROB),
        ("-5.9 6.4 5.1 1 2 0", NLL),
    ],
)
def test_score_files_of_either_sign(tmp_path, documented, numbers, meaning):
    write(tmp_path / "a.scores", numbers.split())
    found = read_scores(tmp_path / "a.scores", read(documented))
    sign = 1 if meaning == LOG_PROB else -1
    a, b, c, d, e, f = (sign * float(number) for number in numbers.split())
    assert found == ([[a, b, c], [d], [e, f]], meaning)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ("1 2", "2 numbers in .*a.scores for 6 targets"),
        ("1 2 x 4 5 6", "line 3 of .* is not a finite number: 'x'"),
        ("1 2 nan 4 5 6", "not a finite number"),
    ],
)
def test_a_score_file_of_another_set_is_refused(tmp_path, documented, numbers, words):
    write(tmp_path / "a.scores", numbers.split())
    assert refused(DataError, words, read_scores, tmp_path / "a.scores", read(documented)).hint


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
    frequencies = [None, *range(25), 50, 51, 5000, 10001]
    errors = [
        Error(rng.choice(kinds), "x", rng.choice([None, *range(20)]), rng.choice(frequencies))
        for _ in range(800)
    ]
    found = {group: [errors[i] for i in places] for group, places in groups_of(errors).items()}
    polarity = {
        "polarity_affix_del": "polarity, deletion",
        "polarity_particle_kein_ins": "polarity, insertion",
    }
    expected = {}

    def add(section, label, error):
        expected.setdefault((section, label), []).append(error)

    for error in errors:
        add("all", "all", error)
        add("type", error.type, error)
        if error.type in polarity:
            add("type", polarity[error.type], error)
        if error.distance is not None:
            distance = str(error.distance) if error.distance <= 15 else ">15"
            add("distance, all types", distance, error)
            if error.type == AGREEMENT:
                add("distance, subject-verb", distance, error)
        if error.frequency is not None:
            add("frequency", bin_of_lingeval(error.frequency), error)
    assert found == expected
    for kind, section in (
        (AGREEMENT, "distance, subject-verb"),
        ("auxiliary", "distance, all types"),
    ):
        assert {name for name, _ in groups_of([Error(kind, "x", 0)])} == {"all", "type", section}


# Systems


@pytest.fixture
def scorer(analysed):
    """Scores with a small system."""
    analysed.system()
    model = loading.load_system(analysed.run, analysed.run.find_system("base"), "cpu")
    vocabularies = load_vocabularies(analysed.run.prep)
    return Scorer([model], Spaces(), Spaces(), *vocabularies, SearchSettings(), "cpu", 1)


def test_a_source_is_read_once_for_its_targets(scorer, monkeypatch):
    read_rows, (model,) = [], scorer.models
    original = model.encode
    monkeypatch.setattr(
        model, "encode", lambda batch: read_rows.append(len(batch.src)) or original(batch)
    )
    scorer.alternatives(["w1", "w2 w3"], [["w4", "w5", "w6"], ["w7", "w8", "w9"]])
    assert read_rows == [2]


def test_no_score_is_lost_in_float32(scorer):
    """Sums of float64 log-probabilities: two targets that differ in a rare word only are told
    apart.
    """
    long = " ".join(f"w{i}" for i in range(60))
    (scores,) = scorer.alternatives(["w1"], [[long, long.replace("w59", "w58")]])
    assert scores[0] != scores[1] and torch.tensor(scores).isfinite().all()


def test_systems_and_score_files_side_by_side(
    analysed, analyze, documented, notes, stored_scores, tmp_path, two_cores
):
    """The command says as what a score file is read."""
    analysed.system()
    other = tmp_path / "others.2016.scores"
    write(other, list("122954"))
    scores = (str(other),)
    rows, err = analyze(documented, scores=scores)
    read_as = "scores of others: read as negative log-likelihoods, lower is better"
    assert f"{read_as} (by their signs)" in err and read_as in notes()
    assert float(rows["all", "all"]["others"]) == pytest.approx(200 / 3)
    distances = {key: int(row["pairs"]) for key, row in rows.items() if "distance" in key[0]}
    assert distances == {("distance, subject-verb", label): 1 for label in ("0", ">15")}
    # One of the three items has no wrong translation.
    assert rows["sentence", "better than every wrong one"]["pairs"] == "2"
    frequency = "frequency: how often the word occurs in the training text of the set's authors"
    assert frequency in notes()
    own = stored_scores("base", documented)
    assert all(math.isfinite(score) for targets in own for score in targets)
    assert float(rows["all", "all"]["base"]) == pytest.approx(100 * sum(decisions(own)) / 3)
    assert "up to date" in analyze(documented, scores=scores)[1]
    write(other, list("122945"))
    assert float(analyze(documented, scores=scores)[0]["all", "all"]["others"]) == 100.0
    write(tmp_path / "others.2017.scores", list("122954"))
    scores = (str(other), str(tmp_path / "others.2017.scores"))
    words = "two score files have the same name before the first dot: 'others'"
    analysed.refused("agreement", DataError, words, pairs=documented, scores=scores)


@pytest.fixture
def with_context(stored):
    """Two-sentence documents: the same sentence after several others, with two wrong
    translations.
    """
    errors = [{"type": "pronoun", "contrastive": f"w3 w{i}"} for i in (50, 51)]
    pair = {"source": "w1 w2", "errors": errors}
    texts = [
        {"reference": f"w3 w{60 + i}", "context_src": f"w{10 + i} w{30 + i}"} for i in range(12)
    ]
    return stored([pair | text for text in texts], "context.json")


def columns(rows):
    """The columns of a table's numbers."""
    return [name for name in [*rows["all", "all"]][3:] if not name.endswith(("_low", "_high"))]


@pytest.mark.parametrize("variant", ["amn", "context-aware", "han", "concat"])
def test_scores_depend_on_the_context_of_systems_that_read_it(
    analysed, analyze, with_context, notes, stored_scores, variant
):
    analysed.system()
    model = analysed.system("doc", variant)
    rows, _ = analyze(with_context, context="true,none,foreign")
    assert columns(rows) == ["base", "doc", "doc, none", "doc, foreign"]
    counts = [(section, row["pairs"]) for (section, _), row in rows.items()]
    assert counts == [("all", "24"), ("sentence", "12"), ("type", "24")]
    names = ("doc", "doc.none", "doc.foreign")
    true, none, foreign = (stored_scores(name, with_context) for name in names)
    assert true != none and true != foreign and none != foreign
    kept = {path.name for path in analysed.folder("agreement").glob("*.scores")}
    assert kept == {f"{name}.scores" for name in ("base", *names)}
    rule = model.context_rule
    reads = f"read by doc (previous, at most {rule.size}, {rule.join}); not read by base"
    assert reads in notes()
    assert (
        "none: without context; foreign: with the context of another sentence of the set" in notes()
    )
    analyze(with_context, systems=["doc"])
    without = notes()  # what was not asked is not explained
    assert "not read by" not in without and "foreign: " not in without and "read by doc" in without

    vocabulary = load_vocabularies(analysed.run.prep)[0]
    src, tgt, before = (vocabulary.encode(text.split()) for text in ("w1 w2", "w3 w60", "w10 w30"))
    for row, scores in ((0, true), (-1, none)):  # by hand: one pair, one context
        values = ([before], [len(before)], [[row]])
        context = Context(*map(torch.tensor, values), False)
        batch = dataclasses.replace(pair_batch([src], [tgt]), context=context)
        assert scores[0][0] == pytest.approx(sum(forced_scores([model], batch)[0]), abs=1e-4)


def test_systems_that_read_translations_get_those_of_the_set(
    analysed, analyze, stored, notes, stored_scores
):
    """The same sources with other translations before: only such a system scores them
    differently.
    """
    trg = [
        {"correct": [before, "w5 w6"], "incorrect": [before, "w5 w7"]}
        for before in ("w20 w21", "w30 w31 w32")
    ]
    path = stored({"1": {"src": ["w1 w2", "w3"], "trg": trg}})
    analysed.system("sources", "han")
    analysed.system("both", "han", {**SMALL, "side": "joint"})
    analyze(path)
    first, second = stored_scores("sources", path)
    assert first == pytest.approx(second, abs=1e-5)
    first, second = stored_scores("both", path)
    assert first != pytest.approx(second, abs=1e-4)
    assert "both (previous, at most 3, parallel, translations too)" in notes()


def test_what_the_pairs_lack_is_said_or_refused(analysed, analyze, notes, documented, with_context):
    for name, variant, model, pairs, words in (
        ("doc", "amn", {}, documented, "reads context, but the pairs have none"),
        ("later", "amn", {"context": "next"}, with_context, "reads following sentences"),
        ("trees", "pr", {"segmentation": "parse"}, documented, "reads parses"),
    ):
        analysed.system(name, variant, SMALL | model)
        assert f"'{name}' {words}" in analyze(pairs, systems=[name])[1]
        assert f"{name} {words}" in notes()
    for options, words in (
        ({"systems": ["doc"], "context": "none"}, "no pair of this set has a context"),
        ({"set_names": ["test"]}, "reads no set of the run"),
    ):
        analysed.refused("agreement", ConfigError, words, pairs=documented, **options)


def test_a_system_that_reads_other_documents_is_asked_once(
    analysed, analyze, with_context, monkeypatch
):
    """What it reads is of other pairs, whatever stands before its own: columns of other contexts
    would say what they are not.
    """
    analysed.system("ablated", "amn", {**SMALL, "inter_attention": False, "context": "foreign"})
    asked, alternatives = [], Scorer.alternatives
    monkeypatch.setattr(
        Scorer, "alternatives", lambda self, *text: asked.append(text) or alternatives(self, *text)
    )
    rows, err = analyze(with_context, context="true,none,foreign")
    assert "'ablated' reads sentences of other documents" in err
    assert columns(rows) == ["ablated"] and len(asked) == 1


def test_distances_and_dependent_pairs_are_explained_where_there_are_some(
    analysed, documented, tmp_path
):
    analysed.system()
    without = text_files(tmp_path, src=["w1"], right=["w2"], wrong=["w3"])
    for pairs, said in ((documented, True), (without, False)):
        finding = analysed.analyze("agreement", pairs=pairs)
        assert ("as the distance grows" in finding["text"]) == said
        assert ("count as independent" in " ".join(finding["table"]["notes"])) == said


def test_pairs_of_words_that_no_system_knows_are_said(analysed, analyze, notes, tmp_path):
    """Two unknown words are one to the model, so the pair is a tie, and no share says that by
    itself.
    """
    analysed.system()
    analysed.system("second")
    targets = {"right": ["w5 w6", "xyzzy w7"], "wrong": ["w5 w8", "plugh w7"]}
    _, err = analyze(text_files(tmp_path, src=["w1 w2", "w3 w4"], **targets))
    # 2 of 12, </s> with them
    unknown = "unknown subwords: 0.0% of the sources, 16.7% of the targets"
    shown = notes()
    assert unknown in err and unknown in shown
    assert err.count("unknown") == shown.count("unknown") == 1
    assert "base: 1 exact tie, counted as wrong" in shown
