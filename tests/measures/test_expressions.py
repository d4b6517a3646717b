"""Lists of expressions and where their phrases stand: hand-made lines, a slow search beside the
fast one, and the demo grammar's own trees.
"""

from collections import Counter

import pytest
from hypothesis import given
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
    """The parts of each match as text."""
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
def test_words(line, wanted):
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
    ],
)
def test_places_of_a_phrase(text, line, wanted):
    assert found(text, line) == wanted


def test_the_nearest_beginning_is_taken():
    line = spaced("er schlägt ihn , sie schlägt es nach", False)
    (match,) = phrase("schlägt ... nach", False).find(line)
    assert line[: match.parts[0][0]].split() == ["er", "schlägt", "ihn", ",", "sie"]
    assert not match.in_one_piece
    assert phrase("schlägt ... nach", False).find(spaced("er schlägt nach", False))[0].in_one_piece


def test_case_is_a_choice():
    assert found("das Aufgeben", "Das AUFGEBEN, das aufgeben", False) == [("das aufgeben",)] * 2
    assert found("das Aufgeben", "das Aufgeben, das aufgeben", True) == [("das Aufgeben",)]


TOKENS = st.lists(st.sampled_from("ab.,x"), max_size=9)
PART = st.lists(st.sampled_from("ab"), min_size=1, max_size=2)


def slow(first, second, most, ends, tokens):
    """All (start, start of the second part) that a definition allows: (first, gap, second),
    nothing clever.
    """
    good = []
    for i in range(len(tokens)):
        for j in range(i + len(first), len(tokens) - len(second) + 1):
            gap, after = tokens[i + len(first) : j], tokens[j + len(second) :]
            here = tokens[i : i + len(first)] == first and tokens[j : j + len(second)] == second
            if (
                here
                and "." not in gap
                and len(gap) <= most
                and (not ends or not after or after[0] in ".,")
            ):
                good.append((i, j))
    return good


@given(PART, PART, st.integers(0, 4), st.booleans(), TOKENS)
def test_a_phrase_with_a_gap_is_found_where_a_slow_search_finds_it(
    first, second, most, ends, tokens
):
    text = f"{' '.join(first)} ...{most} {' '.join(second)}{' $' if ends else ''}"
    line = spaced(" ".join(tokens), False)
    ours = [
        tuple(line[: a + 1].count(" ") - 1 for a, _ in match.parts)
        for match in phrase(text, False).find(line)
    ]
    wanted = slow(first, second, most, ends, tokens)
    assert set(ours) <= set(wanted)
    assert bool(ours) == bool(wanted)
    for _, j in ours:
        assert all(
            b >= j + len(second) for (_, j), (b, _) in zip(ours, ours[1:], strict=False)
        )  # none shares a word with the next


def test_translations_share_no_word_and_are_as_many_as_wanted():
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


def test_longer_expressions_take_their_words():
    listed = parse(LIST, False, "list")
    assert [one.name for one in listed] == ["look", "look up", "look up", "up"]
    assert [one.source.text for one in listed] == ["look", "look up", "look ...3 up", "up"]
    assert [target.text for target in listed[1].targets] == ["schlägt ... nach $", "nachschlägt"]
    line = spaced("Look up, and look it up; look at all that is up.", False)
    assert occurrences(listed, line) == dict.fromkeys(range(4), 1)
    assert occurrences(listed, spaced("nothing", False)) == {}


@pytest.mark.parametrize(
    ("lines", "line", "what"),
    [
        (["look up"], 1, "1 columns"),
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
def test_a_line_that_is_no_expression_is_named(lines, line, what):
    error = refused(DataError, what, parse, lines, False, "list")
    assert error.where == f"list, line {line}" and error.hint


def test_lines_of_another_system_and_an_empty_list():
    listed = parse(["Give up\tx\r\n", "give up\ty\r\n"], True, "list")
    assert [expression.targets[0].text for expression in listed] == ["x", "y"]
    with pytest.raises(DataError, match="no expressions"):
        parse(["# nothing"], False, "list")


def test_the_separable_verbs_of_the_demo_grammar_are_found_where_its_trees_have_them():
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
            del gold["aussehen"]  # no expression of the list
            source, target = (spaced(text, False) for text in (pair.source, pair.target))
            ours = Counter()
            for i, matches in translations(listed, occurrences(listed, source), target).items():
                ours[listed[i].name.split(" = ")[1]] += len(matches)
                apart += sum(not match.in_one_piece for match in matches)
            assert +ours == gold, (pair.source, pair.target)
            total += gold.total()
    assert total > 300 and apart > 100
