"""Contrastive sets: formats, decisions, groups, and the analysis of systems and score files."""

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
from tests.manifests import edit
from tests.refused import refused
from tests.score.conftest import write
from tests.word_side import WordSide

from .conftest import SMALL

LINGEVAL = [  # formats.md, "Lingeval97": distance and frequency may be missing, or be text
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
    """Split words at spaces only: these runs have no tokenizer."""
    monkeypatch.setattr("nmtkit.text.side.TextSide.load", lambda *_: WordSide())


@pytest.fixture
def stored(tmp_path):
    """Return a function that writes a contrastive set as JSON and returns its path."""

    def write_set(value, name="pairs.json"):
        text = value if isinstance(value, str) else json.dumps(value)
        return str(write(tmp_path / name, [text]))

    return write_set


@pytest.fixture
def lingeval(stored):
    return stored(LINGEVAL, "lingeval.json")


def text_files(folder, **columns):
    """Write text files; return the value of --pairs that names them."""
    for name, lines in columns.items():
        write(folder / name, lines)
    return ",".join(str(folder / name) for name in columns)


@pytest.fixture
def analyze(analysed, capsys):
    """Return a function that runs the analysis; it returns rows by section and label, and stderr."""

    def run(pairs, **options):
        stage.analyze(analysed.run, "agreement", pairs=pairs, output_format="csv", **options)
        out, err = capsys.readouterr()
        rows = csv.DictReader(out.splitlines())
        return {(row["section"], row["label"]): row for row in rows}, err.replace("\n", " ")

    return run


@pytest.fixture
def notes(analysed):
    """Return a function that returns the table with its notes."""
    return lambda: analysed.text("agreement", "table.md")


@pytest.fixture
def stored_scores(analysed):
    """Return a function that returns the stored scores of a system."""

    def scores(name, pairs):
        return read_scores(analysed.folder("agreement") / f"{name}.scores", read(pairs)).scores

    return scores


# Reading


def test_lingeval97_set_is_read_with_distances_and_frequencies(lingeval):
    items = read(lingeval)
    targets = [["w3 w4", "w3 w5", "w4"], ["w7"], ["w9", "w3 w5 w6"]]
    assert [item.targets for item in items] == targets
    assert items[0].errors == (
        Error(AGREEMENT, "w3 w5", 0, 7),
        Error("polarity_affix_del", "w4", None, 0),
    )


PARALLEL = {"src": ["a", "b"], "right": ["A", "B"], "wrong": ["C", "D"]}


def test_parallel_text_files_are_read_with_or_without_contexts(tmp_path):
    errors = [Error("pairs", "C")], [Error("pairs", "D")]
    without = [Item("a", "A", errors[0]), Item("b", "B", errors[1])]
    assert read(text_files(tmp_path, **PARALLEL)) == without
    context = Item("a", "A", errors[0], ("x y", "z"))
    paths = text_files(tmp_path, context=["x y _eos z", ""], **PARALLEL)
    assert read(paths) == [context, without[1]]


def test_parallel_text_files_that_do_not_fit_are_refused(tmp_path):
    paths = text_files(tmp_path, **PARALLEL | {"wrong": ["C"]})
    refused(DataError, "different numbers of lines", read, paths)
    paths = text_files(tmp_path, **PARALLEL | {"wrong": ["C", " "]})
    error = refused(DataError, "errors.0.contrastive: it is blank", read, paths)
    assert error.where == f"{paths}, line 2"
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
def test_json_that_is_no_contrastive_set_is_refused(stored, text, words):
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
            r"^not an item of a contrastive set: 2 sentences before, 1 translation of them\n",
        ),
        *((PAIR, {"errors": [PAIR["errors"][0] | bad]}, words) for bad, words in BAD_ERRORS),
        (CONSISTENCY, {"true_ind": -1}, "true_ind"),
        (CONSISTENCY, {"src": " _eos "}, ": src: it is blank"),
        (CONSISTENCY, {"dst": ["a _eos ", " "], "true_ind": 0}, ": dst: it is blank"),
        (CONSISTENCY, {"dst": ["a", " "], "true_ind": 1}, ": dst: it is blank"),
        (CONSISTENCY, {"true_ind": 3}, "true_ind is 3, of 3 candidates"),
        (DISCOURSE["1"], {"src": ["a", " "]}, ": src: it is blank"),
        (DISCOURSE["1"], {"trg": {"correct": ["A", " "], "incorrect": ["A"]}}, ": correct: it is"),
        (DISCOURSE["1"], {"trg": {"correct": ["A"], "incorrect": [" "]}}, ": incorrect: it is"),
        (DISCOURSE["1"], {"src": "ab"}, "src: Input should be a valid list"),
        (DISCOURSE["1"], {"trg": {"correct": [], "incorrect": ["A", "C"]}}, "correct: List"),
        (DISCOURSE["1"], {"trg": {"correct": ["A", "B"], "incorrect": []}}, "incorrect: List"),
    ],
)
def test_malformed_item_is_refused_with_its_number(stored, good, change, words):
    bad = good | change
    path = stored({"1": bad} if "trg" in bad else [good, bad])
    assert refused(DataError, words, read, path).where == f"{path}, item 1"


def test_lingeval97_items_may_have_contexts_and_blank_ones_are_skipped(stored):
    two = {"context_src": ["x", "a"], "context_ref": ["X", "A"]}
    contexts = [{"context_src": "a"}, two, {}, {"context_src": ""}]
    items = read(stored([PAIR | context for context in contexts]))
    assert [item.context_src for item in items] == [("a",), ("x", "a"), (), ("",)]
    assert [item.context_ref for item in items] == [(), ("X", "A"), (), ()]


def test_consistency_set_is_read_with_contexts_and_candidate_order(stored):
    wrong = [Error("deixis_dev", "X", back=2), Error("deixis_dev", "Y", back=2)]
    assert read(stored([CONSISTENCY], "deixis_dev.json")) == [
        Item("d", "D", wrong, ("a", "b", "c"), ("A", "B", "C"), (1, 0, 2))
    ]


@pytest.mark.parametrize("name", ["lex_cohesion_dev", "ellipsis_vp"])
def test_score_files_of_consistency_sets_follow_the_order_of_candidates(shared, tmp_path, name):
    """The authors' evaluation takes the first of equal candidates."""
    where = shared / "data" / "consistency_enru" / f"{name}.json.xz"
    entries = json.loads("\n".join(files.text_lines(where)))
    losses = [0.5 + (text != x["dst"][x["true_ind"]]) for x in entries for text in x["dst"]]
    write(tmp_path / "a.scores", map(str, losses))
    scores = read_scores(tmp_path / "a.scores", read(str(where))).scores
    assert all(preferred(scores)) and len(preferred(scores)) == 500


def test_score_file_is_written_in_the_order_in_which_it_is_read():
    result = SimpleNamespace(
        files={},
        columns={"a": [[-1.0, -2.0]]},
        items=[Item("s", "r", (ERROR,), score_lines=(1, 0, 0))],
    )
    assert attachments_of(result) == {"a.scores": "2.000000\n1.000000\n1.000000\n"}
    with pytest.raises(ValueError, match="each target"):
        Item("s", "r", (ERROR,), score_lines=(1, 1))


def test_discevalmt_set_is_read_and_pairs_undecidable_without_context_are_counted(stored):
    items = read(stored(DISCOURSE))
    assert items == [
        Item("b", "B", [Error("m.pl", "C", back=1)], ("a",), ("A",)),
        Item("b", "C", [Error("f.pl", "B", back=1)], ("a",), ("Z",)),
        Item("d", "D", [Error("repet", "E", back=1)], ("c",), ("C",)),
    ]
    assert undecidable(items) == 2


@pytest.mark.parametrize(
    ("name", "targets", "without_context"),
    [
        ("deixis_dev", 1000, 500),  # only the translations before decide
        ("ellipsis_vp", 5203 - 11, 0),  # eleven candidates repeat the right one
    ],
)
def test_real_consistency_sets_are_read_whole(shared, name, targets, without_context):
    folder = shared / "data" / "consistency_enru"
    items = read(str(folder / f"{name}.json.xz"))
    count = sum(len(item.targets) for item in items)
    assert (len(items), count, undecidable(items)) == (500, targets, without_context)
    assert {len(item.context_src) for item in items} == {3}
    first = next(files.text_lines(folder / "scoring_data" / f"{name}.src.xz"))
    assert first == " _eos ".join([*items[0].context_src, items[0].source])


def test_real_discevalmt_sets_equal_their_text_files(shared):
    folder = shared / "data" / "discourse_enfr"
    for name, count in (("anaphora", 199), ("lexical-choice", 22)):
        items = read(str(folder / f"{name}.json"))
        assert (len(items), undecidable(items)) == (200, count)
    lines = (
        files.text_lines(folder / f"anaphora.{part}")
        for part in ("prev.en", "current.en", "current.fr")
    )
    items = read(str(folder / "anaphora.json"))
    texts = [(item.context_src, item.source, text) for item in items for text in item.targets]
    assert texts == [((before,), source, text) for before, source, text in zip(*lines, strict=True)]


def test_context_of_items_is_kept_removed_or_taken_from_another_item():
    items = [Item(f"s{i}", "r", [], (f"c{i % 5}",)) for i in range(40)] + [Item("first", "r", [])]
    assert under(items, "true") == items
    assert {item.context_src for item in under(items, "none")} == {()}
    *foreign, first = (item.context_src for item in under(items, "foreign"))
    assert all(a.context_src != b for a, b in zip(items, foreign, strict=False))
    assert set(foreign) == {(f"c{i}",) for i in range(5)} and first == ()
    assert under(items, "foreign") == under(items, "foreign") != under(items, "foreign", seed=2)
    refused(ConfigError, "unknown context 'next'", under, items, "next")
    refused(DataError, "same context", under, items[:1], "foreign")


def test_translations_of_contexts_are_replaced_with_the_contexts():
    items = [Item(word, word, [], (f"{word}1",), (f"{word}2",)) for word in "xy"]
    none, foreign = (
        [(item.source, item.context_src, item.context_ref) for item in under(items, condition)]
        for condition in ("none", "foreign")
    )
    assert none == [("x", (), ()), ("y", (), ())]
    assert foreign == [("x", ("y1",), ("y2",)), ("y", ("x1",), ("x2",))]


def test_items_become_documents_of_context_and_source():
    items = [Item("b", "B", [Error("x", "C")], ("a",), ("A",)), Item("d", "D", [])]
    text = as_documents(items)
    assert (text.lines, text.places) == (["a", "b", "d"], [1, 2])
    assert text.targets == [[], ["B", "C"], ["D"]]
    assert [text.documents.context(i, ContextRule()) for i in range(3)] == [[], [0], []]
    assert as_documents(items, translated=True).targets == [["A"], ["B", "C"], ["D"]]


def test_contrastive_sets_of_a_corpus_are_found_by_name(analysed):
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


def test_tie_is_wrong_and_each_error_is_compared_with_its_reference():
    assert decisions([[-2.0, -3.0, -2.0, -1.0], [-5.0, -6.0]]) == [True, False, False, True]


def test_sentence_is_right_if_the_reference_beats_every_wrong_translation():
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
def test_signs_of_a_score_file_tell_log_probabilities_from_losses(
    tmp_path, lingeval, numbers, meaning
):
    write(tmp_path / "a.scores", numbers.split())
    scores = read_scores(tmp_path / "a.scores", read(lingeval))
    sign = 1 if meaning == LOG_PROB else -1
    a, b, c, d, e, f = (sign * float(number) for number in numbers.split())
    assert scores == ([[a, b, c], [d], [e, f]], meaning)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ("1 2", "2 numbers in .*a.scores for 6 targets"),
        ("1 2 x 4 5 6", "line 3 of .* is not a finite number: 'x'"),
        ("1 2 nan 4 5 6", "not a finite number"),
    ],
)
def test_score_file_that_does_not_fit_the_set_is_refused(tmp_path, lingeval, numbers, words):
    write(tmp_path / "a.scores", numbers.split())
    assert refused(DataError, words, read_scores, tmp_path / "a.scores", read(lingeval)).hint


def frequency_bin(frequency):
    """Return the frequency bin of evaluate.py (formats.md), which puts 5 into the bin ">2"."""
    lows = (10000, 5000, 2000, 1000, 500, 200, 100, 50, 20, 10, 5, 2)
    return next((f">{low}" for low in lows if frequency > low), str(frequency))


POLARITY = {
    "polarity_affix_del": "polarity, deletion",
    "polarity_particle_kein_ins": "polarity, insertion",
}


def lingeval_groups(error):
    """Yield the groups of an error (section, label) by the rules of evaluate.py (formats.md)."""
    yield "all", "all"
    yield "type", error.type
    if error.type in POLARITY:
        yield "type", POLARITY[error.type]
    if error.distance is not None:
        distance = str(error.distance) if error.distance <= 15 else ">15"
        yield "distance, all types", distance
        if error.type == AGREEMENT:
            yield "distance, subject-verb", distance
    if error.frequency is not None:
        yield "frequency", frequency_bin(error.frequency)


def test_groups_equal_those_of_lingeval97s_evaluate_script():
    rng = random.Random(1)
    kinds = [AGREEMENT, *POLARITY, "auxiliary"]
    frequencies = [None, *range(25), 50, 51, 5000, 10001]
    errors = [
        Error(rng.choice(kinds), "x", rng.choice([None, *range(20)]), rng.choice(frequencies))
        for _ in range(800)
    ]
    expected = {}
    for i, error in enumerate(errors):
        for group in lingeval_groups(error):
            expected.setdefault(group, []).append(i)
    assert {group: [*members] for group, members in groups_of(errors).items()} == expected


def test_groups_are_ordered_by_section_then_by_distance_or_descending_frequency():
    agreement = [Error(AGREEMENT, "x", *numbers) for numbers in ((16, 1), (2, 20001), (10, 4))]
    others = [Error("pronoun", "x", back=back) for back in (2, 1)]
    groups = groups_of([*others, *agreement, Error("polarity_affix_del", "x", 3, 2)])
    assert [*groups] == [
        ("all", "all"),
        *[("type", kind) for kind in ("pronoun", AGREEMENT, "polarity_affix_del")],
        ("type", "polarity, deletion"),
        *[("sentences back", back) for back in "12"],
        *[("distance, subject-verb", label) for label in ("2", "10", ">15")],
        *[("distance, all types", label) for label in ("2", "3", "10", ">15")],
        *[("frequency", label) for label in (">10000", ">2", "2", "1")],
    ]


@pytest.mark.parametrize(
    ("kind", "section"),
    [(AGREEMENT, "distance, subject-verb"), ("auxiliary", "distance, all types")],
)
def test_distances_of_a_single_error_type_have_one_section(kind, section):
    assert {name for name, _ in groups_of([Error(kind, "x", 0)])} == {"all", "type", section}


# Systems


@pytest.fixture
def scorer(analysed):
    """Return a scorer with a small system."""
    analysed.system()
    model = loading.load_system(analysed.run, analysed.run.find_system("base"), "cpu")
    vocabularies = load_vocabularies(analysed.run.prep)
    return Scorer([model], WordSide(), WordSide(), *vocabularies, SearchSettings(), "cpu", 1)


def test_source_is_encoded_once_for_all_its_targets(scorer, monkeypatch):
    rows, (model,) = [], scorer.models
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda batch: rows.append(len(batch.src)) or encode(batch))
    scorer.alternatives(["w1", "w2 w3"], [["w4", "w5", "w6"], ["w7", "w8", "w9"]])
    assert rows == [2]


def test_scores_of_long_targets_have_float64_precision(scorer):
    """Two targets of 60 words that differ in one rare word have different scores."""
    long = " ".join(f"w{i}" for i in range(60))
    (scores,) = scorer.alternatives(["w1"], [[long, long.replace("w59", "w58")]])
    assert scores[0] != scores[1] and torch.tensor(scores).isfinite().all()


@pytest.fixture
def score_file(tmp_path):
    """Return a function that writes six scores and returns the value of --scores."""
    return lambda digits, name="others.2016": (str(write(tmp_path / f"{name}.scores", [*digits])),)


def test_systems_and_score_files_are_compared_in_one_table(
    analysed, analyze, lingeval, notes, stored_scores, score_file, two_cores
):
    analysed.system()
    rows, err = analyze(lingeval, scores=score_file("122954"))
    read_as = "scores of others: read as negative log-likelihoods, lower is better"
    assert f"{read_as} (by their signs)" in err and read_as in notes()
    assert float(rows["all", "all"]["others"]) == pytest.approx(200 / 3)
    scores = stored_scores("base", lingeval)
    assert all(math.isfinite(score) for targets in scores for score in targets)
    assert float(rows["all", "all"]["base"]) == pytest.approx(100 * sum(decisions(scores)) / 3)
    distances = {key: int(row["pairs"]) for key, row in rows.items() if "distance" in key[0]}
    assert distances == {("distance, subject-verb", label): 1 for label in ("0", ">15")}
    table = json.loads(analysed.text("agreement", "finding.json"))["table"]["rows"]
    drawn = [row for row in table if row["section"] == "distance, subject-verb"]
    analysed.check_bars("agreement", drawn, "label", ["others", "base"])
    # One of the three items has no wrong translation.
    assert rows["sentence", "better than every wrong one"]["pairs"] == "2"
    frequency = "frequency: how often the word occurs in the training text of the set's authors"
    assert frequency in notes()


def test_score_files_with_the_same_name_are_refused(analysed, lingeval, score_file):
    analysed.system()
    scores = score_file("122954") + score_file("122954", "others.2017")
    message = "two score files have the same name before the first dot: 'others'"
    analysed.refused("agreement", DataError, message, pairs=lingeval, scores=scores)


@pytest.fixture
def with_context(stored):
    """Write documents of two sentences: the same second sentence, with two wrong translations."""
    errors = [{"type": "pronoun", "contrastive": f"w3 w{i}"} for i in (50, 51)]
    pair = {"source": "w1 w2", "errors": errors}
    texts = [
        {"reference": f"w3 w{60 + i}", "context_src": f"w{10 + i} w{30 + i}"} for i in range(12)
    ]
    return stored([pair | text for text in texts], "context.json")


def columns(rows):
    """Return the columns of a table that have shares."""
    return [name for name in [*rows["all", "all"]][3:] if not name.endswith(("_low", "_high"))]


@pytest.mark.parametrize("variant", ["amn", "context-aware", "han", "concat"])
def test_scores_with_and_without_context_equal_forced_scores(
    analysed, analyze, with_context, notes, stored_scores, variant
):
    model = analysed.system("doc", variant)
    analyze(with_context, context="true,none,foreign")
    names = ("doc", "doc.none", "doc.foreign")
    true, none, foreign = (stored_scores(name, with_context) for name in names)
    assert true != none and true != foreign and none != foreign
    rule = model.context_rule
    assert f"read by doc (previous, at most {rule.size}, {rule.join})" in notes()

    vocabulary = load_vocabularies(analysed.run.prep)[0]
    src, tgt, before = (vocabulary.encode(text.split()) for text in ("w1 w2", "w3 w60", "w10 w30"))
    for row, scores in ((0, true), (-1, none)):
        values = ([before], [len(before)], [[row]])
        context = Context(*map(torch.tensor, values), False)
        batch = dataclasses.replace(pair_batch([src], [tgt]), context=context)
        assert scores[0][0] == pytest.approx(sum(forced_scores([model], batch)[0]), abs=1e-4)


def test_systems_that_read_context_have_a_column_for_each_context(
    analysed, analyze, with_context, notes
):
    analysed.system()
    analysed.system("doc", "amn")
    rows, _ = analyze(with_context, context="true,none,foreign")
    assert columns(rows) == ["base", "doc", "doc, none", "doc, foreign"]
    counts = [(section, row["pairs"]) for (section, _), row in rows.items()]
    assert counts == [("all", "24"), ("sentence", "12"), ("type", "24")]
    stored = {path.stem for path in analysed.folder("agreement").glob("*.scores")}
    assert stored == {"base", "doc", "doc.none", "doc.foreign"}
    assert "; not read by base" in notes()
    explained = "none: without context; foreign: with the context of another sentence of the set"
    assert explained in notes()


def test_notes_explain_only_the_contexts_that_were_asked_for(
    analysed, analyze, with_context, notes
):
    analysed.system("doc", "amn")
    analyze(with_context)
    assert "read by doc" in notes()
    assert "not read by" not in notes() and "foreign: " not in notes()


def test_systems_that_read_earlier_translations_get_those_of_the_set(
    analysed, analyze, stored, notes, stored_scores
):
    """Only the earlier translations of the two items differ."""
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


def test_missing_translations_of_contexts_are_searched_as_the_system_searches(
    analysed, analyze, with_context, stored_scores
):
    analysed.system("both", "han", {**SMALL, "side": "joint"})
    analyze(with_context)
    scores = stored_scores("both", with_context)
    edit(analysed.run.system("both").config, "max_length_b = 6", "max_length_b = 1")
    analyze(with_context)
    assert stored_scores("both", with_context) != scores


def test_missing_context_or_parses_of_the_pairs_are_noted_or_refused(
    analysed, analyze, notes, lingeval, with_context
):
    for name, variant, model, pairs, words in (
        ("doc", "amn", {}, lingeval, "reads context, but the pairs have none"),
        ("later", "amn", {"context": "next"}, with_context, "reads following sentences"),
        ("trees", "pr", {"segmentation": "parse"}, lingeval, "reads parses"),
    ):
        analysed.system(name, variant, SMALL | model)
        assert f"'{name}' {words}" in analyze(pairs, systems=[name])[1]
        assert f"{name} {words}" in notes()
    for options, words in (
        ({"systems": ["doc"], "context": "none"}, "no pair of this set has a context"),
        ({"set_names": ["test"]}, "reads no set of the run"),
    ):
        analysed.refused("agreement", ConfigError, words, pairs=lingeval, **options)


def test_system_that_reads_foreign_documents_is_scored_once(
    analysed, analyze, with_context, monkeypatch
):
    """It reads sentences of other documents whatever its context, so it has one column."""
    analysed.system("ablated", "amn", {**SMALL, "inter_attention": False, "context": "foreign"})
    asked, alternatives = [], Scorer.alternatives
    monkeypatch.setattr(
        Scorer, "alternatives", lambda self, *text: asked.append(text) or alternatives(self, *text)
    )
    rows, err = analyze(with_context, context="true,none,foreign")
    assert "'ablated' reads sentences of other documents" in err
    assert columns(rows) == ["ablated"] and len(asked) == 1


def test_distances_and_dependent_pairs_are_explained_only_if_there_are_any(
    analysed, lingeval, tmp_path
):
    analysed.system()
    without = text_files(tmp_path, src=["w1"], right=["w2"], wrong=["w3"])
    for pairs, explained in ((lingeval, True), (without, False)):
        finding = analysed.analyze("agreement", pairs=pairs)
        assert ("as the distance grows" in finding["text"]) == explained
        assert ("count as independent" in " ".join(finding["table"]["notes"])) == explained


def test_unknown_subwords_and_exact_ties_are_noted_once(analysed, analyze, notes, tmp_path):
    """Two unknown words are the same subword, so the pair is an exact tie."""
    analysed.system()
    analysed.system("second")
    targets = {"right": ["w5 w6", "xyzzy w7"], "wrong": ["w5 w8", "plugh w7"]}
    _, err = analyze(text_files(tmp_path, src=["w1 w2", "xyzzy"], **targets))
    # 1 of 5 and 2 of 12 subwords, with </s>
    unknown = "unknown subwords: 20.0% of the sources, 16.7% of the targets"
    shown = notes()
    assert unknown in err and unknown in shown
    assert err.count("unknown subwords") == shown.count("unknown subwords") == 1
    assert "base: 1 exact tie, counted as wrong" in shown
