"""Lists of expressions and where their phrases occur: by hand, by slow search, in demo trees."""

import itertools
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nmtkit.demo import separable_expressions
from nmtkit.demo.corpus import Writer
from nmtkit.demo.lexicon import Verb
from nmtkit.errors import DataError
from nmtkit.measures.expressions import (
    occurrences,
    parse,
    phrase,
    spaced,
    translations,
    words,
)
from tests.refused import refused


def found(text, line, match_case=False):
    """Return the parts of each match as text."""
    inside = spaced(line, match_case)
    return [
        tuple(inside[a:b].strip() for a, b in match.parts)
        for match in phrase(text, match_case).find(inside)
    ]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "Anna's E-Mail kam um 9.30 Uhr.",
            ["anna", "'", "s", "e", "-", "mail", "kam", "um", "9", ".", "30", "uhr", "."],
        ),
        ("don’t", ["don", "'", "t"]),  # noqa: RUF001
        ("Straße", ["strasse"]),
        ("A\u0308pfel", ["äpfel"]),
        ("हिन्दी है", ["हिन्दी", "है"]),
        ("他放弃了2次。", ["他", "放", "弃", "了", "2", "次", "。"]),
        ("ไม่ไป 2ครั้ง", ["ไ", "ม่", "ไ", "ป", "2", "ค", "รั้", "ง"]),
        ("  \t ", []),
    ],
)
def test_line_is_split_into_words(line, wanted):
    assert words(line, match_case=False) == wanted


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("look up", "We look up the word. Look up!", [("look up",)] * 2),
        ("give up", "give\u00a0 up, forgive up, give upper, give, up", [("give up",)]),
        ("schlägt … nach", "Sie schlägt es nach und er schlägt es nach", [("schlägt", "nach")] * 2),
        ("ยอม", "เขายอมแพ้", [("ย อ ม",)]),  # Thai, Lao, Khmer and Burmese have no spaces
        ("ໄປ", "ລາວໄປຕະຫຼາດ", [("ໄ ປ",)]),
        ("ទៅ", "គាត់ទៅផ្សារ", [("ទៅ",)]),
        ("ဈေး", "သူဈေးသွားတယ်", [("ဈေး",)]),
        ("schlägt ... nach", "Sie schlägt ihn. Er geht nach Hause.", []),
        ("schlägt ... nach", "Sie schlägt es nachher", []),
        ("schlägt ... nach", "Sie schlägt am 3. Mai 1.500 Wörter nach.", [("schlägt", "nach")]),
        ("schlägt ... nach", "Er schlägt 3! Sie geht nach Hause.", []),
        ("schlägt ... nach", "Wer schlägt, schlägt das nach", [("schlägt", "nach")]),
        (
            "schlägt ... nach $",
            "Sie schlägt es nach dem Essen nach, dann schlägt er es nach",
            [("schlägt", "nach")] * 2,
        ),
        ("look ...2 up", "look the word up", [("look", "up")]),
        ("look ...2 up", "look the old word up", []),
        (
            "nimmt ... in Kauf ... und",
            "Er nimmt das in Kauf, das auch und",
            [("nimmt", "in kauf", "und")],
        ),
        ("放弃", "他放弃了", [("放 弃",)]),
        ("a.b (c)", "so a.b (c) is", [("a . b ( c )",)]),
        ("nach $", "es nach »dem« nach »", [("nach",)] * 2),
        ("nach $", "nach dem Essen nach, nach Hause", [("nach",)]),
        ("schlägt ... nach $", "Er schlägt nach dem Buch", []),
    ],
)
def test_phrase_is_found_in_a_line(text, line, wanted):
    assert found(text, line) == wanted


def test_match_begins_at_the_nearest_first_part():
    line = spaced("er schlägt ihn , sie schlägt es nach", False)
    (match,) = phrase("schlägt ... nach", False).find(line)
    assert line[: match.parts[0][0]].split() == ["er", "schlägt", "ihn", ",", "sie"]
    assert not match.in_one_piece
    assert phrase("schlägt ... nach", False).find(spaced("er schlägt nach", False))[0].in_one_piece


def test_match_case_distinguishes_capitals():
    assert found("das Aufgeben", "Das AUFGEBEN, das aufgeben", False) == [("das aufgeben",)] * 2
    assert found("das Aufgeben", "das Aufgeben, das aufgeben", True) == [("das Aufgeben",)]


TOKENS = st.lists(st.sampled_from("ab.,x"), max_size=9)
PART = st.lists(st.sampled_from("ab"), min_size=1, max_size=2)


def slow(first, second, most, ends, tokens):
    """Return every pair of starts (first part, second part) that the definition allows."""
    starts = []
    for i in range(len(tokens)):
        for j in range(i + len(first), len(tokens) - len(second) + 1):
            gap, after = tokens[i + len(first) : j], tokens[j + len(second) :]
            parts = tokens[i : i + len(first)], tokens[j : j + len(second)]
            if (
                parts == (first, second)
                and "." not in gap
                and len(gap) <= most
                and (not ends or not after or after[0] in ".,")
            ):
                starts.append((i, j))
    return starts


@given(PART, PART, st.integers(0, 4), st.booleans(), TOKENS)
@example(["a"], ["b"], 2, True, ["a", "b", "x", "b", "."])
@example(["a"], ["b"], 2, True, ["a", "x", "b", "x"])
def test_phrase_with_a_gap_is_found_where_a_slow_search_finds_it(first, second, most, ends, tokens):
    text = f"{' '.join(first)} ...{most} {' '.join(second)}{' $' if ends else ''}"
    line = spaced(" ".join(tokens), False)
    matches = [
        tuple(line[: a + 1].count(" ") - 1 for a, _ in match.parts)
        for match in phrase(text, False).find(line)
    ]
    allowed = slow(first, second, most, ends, tokens)
    assert set(matches) <= set(allowed)
    assert bool(matches) == bool(allowed)
    assert all(
        start >= end + len(second) for (_, end), (start, _) in itertools.pairwise(matches)
    )  # matches share no word


def test_translations_share_no_word_and_are_limited_to_the_number_asked():
    lines = ["give up\tgeben ... auf $ | aufgeben", "gives up\tgibt ... auf $ | gibt ... auf"]
    listed = parse([*lines, "drop\taufgeben"], False, "list")

    def shown(line, wanted):
        line = spaced(line, False)
        return {
            which: [line[m.parts[0][0] : m.parts[-1][1]].strip() for m in matches]
            for which, matches in translations(listed, wanted, line).items()
        }

    one, two = "Sie geben und er gibt auf.", "Sie geben es auf, und er gibt es auf."
    assert shown(one, {0: 1, 1: 1}) == {0: [], 1: ["gibt auf"]}
    assert shown(one, {0: 1}) == {0: ["geben und er gibt auf"]}
    assert shown(two, {1: 2, 0: 2}) == {0: ["geben es auf"], 1: ["gibt es auf"]}
    assert shown("aufgeben, aufgeben", {0: 1, 2: 2}) == {0: ["aufgeben"], 2: ["aufgeben"]}
    assert shown("aufgeben, aufgeben", {2: 1, 0: 0}) == {0: [], 2: ["aufgeben"]}


LIST = [
    "# verbs",
    "",
    "look\tsieht\tlook",
    "look up\tschlägt ... nach $|nachschlägt",
    "look ...3 up\tnachschlägt\tlook up",
    "up\tauf",
]


def test_words_of_a_longer_expression_do_not_count_for_a_shorter_one():
    listed = parse(LIST, False, "list")
    assert [expression.name for expression in listed] == ["look", "look up", "look up", "up"]
    sources = [expression.source.text for expression in listed]
    assert sources == ["look", "look up", "look ...3 up", "up"]
    assert [target.text for target in listed[1].targets] == ["schlägt ... nach $", "nachschlägt"]
    line = spaced("Look up, and look it up; look at all that is up.", False)
    assert occurrences(listed, line) == dict.fromkeys(range(4), 1)
    assert occurrences(listed, spaced("nothing", False)) == {}


@pytest.mark.parametrize(
    ("lines", "line", "what"),
    [
        (["look up"], 1, "1 column"),
        (["", "a\tb\tc\td"], 2, "4 columns"),
        (["\tb"], 1, "without words"),
        (["a\tb | | c"], 1, "without words"),
        (["a\t $"], 1, "without words"),
        (["# x", "a\tb ..."], 2, "between words"),
        (["... a\tb"], 1, "between words"),
        (["a\tb $ c"], 1, "at the end"),
        (["Give up\tx", "give  up\ty"], 2, "is already in line 1"),
    ],
)
def test_malformed_line_of_a_list_is_refused_with_its_number(lines, line, what):
    error = refused(DataError, what, parse, lines, False, "list")
    assert error.where == f"list, line {line}" and error.hint


def test_windows_line_ends_are_read_and_an_empty_list_is_refused():
    listed = parse(["Give up\tx\r\n", "give up\ty\r\n"], True, "list")
    assert [expression.targets[0].text for expression in listed] == ["x", "y"]
    refused(DataError, "no expressions", parse, ["# nothing"], False, "list")


def test_separable_verbs_of_the_demo_corpus_are_found_as_in_its_trees():
    listed = parse(
        (
            "\t".join([source, " | ".join(targets), name])
            for source, targets, name in separable_expressions()
        ),
        False,
        "built in",
    )
    total = apart = 0
    for document in Writer(7, 5, set()).documents(1500):
        for pair in document:
            gold = Counter(
                leaf.lex.lemma
                for leaf in pair.words
                if isinstance(leaf.lex, Verb) and leaf.lex.de.prefix and leaf.tag != "RP"
            )
            del gold["aussehen"]  # not in the list
            source, target = (spaced(text, False) for text in (pair.source, pair.target))
            counts = Counter()
            for i, matches in translations(listed, occurrences(listed, source), target).items():
                counts[listed[i].name.split(" = ")[1]] += len(matches)
                apart += sum(not match.in_one_piece for match in matches)
            assert +counts == gold, (pair.source, pair.target)
            total += gold.total()
    assert total > 300 and apart > 100
