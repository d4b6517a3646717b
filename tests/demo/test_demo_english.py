"""The demo's English: agreement, articles, do-support, particles; one test a rule, each shown to
fail on a broken sentence.
"""

import re

import pytest

from nmtkit.demo.corpus import Writer
from nmtkit.demo.lexicon import EnglishVerb, entries, inflect
from nmtkit.demo.realise import Leaf, Node, leaves

AGREEMENTS = {  # of finite forms: 0 first person, 1 singular, 2 plural
    **dict.fromkeys(["have", "do", "want"], {0, 2}),
    **dict.fromkeys(["is", "has", "does", "wants"], {1}),
    **dict.fromkeys(["are", "were"], {2}),
    "am": {0},
    "was": {0, 1},
}
AUXILIARIES = re.compile("am|is|are|was|were|have|has|had|do|does|did|will|could")
PRONOUNS = {"I": 0, "we": 2, "he": 1, "she": 1, "they": 2, "it": 1}


@pytest.fixture(scope="module")
def drawn():
    """1,200 pairs of the grammar, in documents."""
    return [pair for document in Writer(12, 1, set()).documents(1200) for pair in document]


def head(np):
    """The agreement of an English noun phrase, read off its head noun's form."""
    words = [kid for kid in np.kids if isinstance(kid, Leaf)]
    inner = [kid for kid in np.kids if isinstance(kid, Node) and kid.label == "NP"]
    if any(leaf.tag == "CC" for leaf in words):
        return 2
    if words and words[0].tag == "PRP":
        return PRONOUNS[words[0].form]
    noun = next((leaf for leaf in words if leaf.tag in {"NN", "NNP"}), None)
    if noun is None:
        return head(inner[0])
    plurals = {n.en[1] for n in entries("nouns")}
    return 2 if noun.form in plurals else 1


def finite_agreements(form):
    """The agreements of an English finite verb form; all three for a past form or a modal."""
    if form in AGREEMENTS:
        return AGREEMENTS[form]
    verbs = [*entries("verbs"), *entries("copulas")]
    found = {at % 3 for verb in verbs for at, spoken in enumerate(verb.en.finite) if spoken == form}
    return found or {0, 1, 2}


def agreement(tree):
    """Subject and finite verb agree."""
    wrong = []
    for node in tree.nodes():
        if node.label in {"S", "SQ"}:
            nodes = [kid for kid in node.kids if isinstance(kid, Node)]
            subjects = [
                kid
                for at, kid in enumerate(node.kids)
                if kid in nodes and kid.label == "NP" and is_subject(node, at)
            ]
            words = [kid for kid in node.kids if node.label == "SQ" and isinstance(kid, Leaf)]
            phrases = [kid.kids[0] for kid in nodes if kid.label == "VP"]
            finite = words[:1] or [kid for kid in phrases if isinstance(kid, Leaf)]
            spoken = subjects and finite and finite[0].tag != "TO"
            if spoken and head(subjects[-1]) not in finite_agreements(finite[0].form):
                wrong.append(finite[0].form)
    return wrong


def is_subject(node, at):
    """The last noun phrase before the verb phrase; after the auxiliary in a question."""
    after = [kid for kid in node.kids[at + 1 :] if isinstance(kid, Node) and kid.label == "NP"]
    return not after or node.label == "SQ"


def articles(pair):
    """A before consonants, an before vowels (the lexicon's words begin as they are spelled, but for
    uni-).
    """
    found = re.findall(r"\b([Aa]n?) (\w+)", pair.source)
    return [
        (article, word)
        for article, word in found
        if (article.lower() == "an") != bool(re.match(r"(?!uni)[aeiou]", word))
    ]


def do_support(tree):
    """After do, does, did stands a base form; not never follows a full verb."""
    wrong = []
    bases = {verb.en.base for verb in entries("verbs")} | {"want", "have", "become", "stay", "look"}
    words = leaves(tree)
    for at, leaf in enumerate(words):
        if leaf.lex == "do":
            following = next(other for other in words[at + 1 :] if other.tag.startswith("V"))
            if following.form not in bases:
                wrong.append(following.form)
        if leaf.form == "not" and not AUXILIARIES.fullmatch(words[at - 1].form):
            wrong.append(words[at - 1].form)
    return wrong


def objects(tree):
    """Pronouns have their subject form before the verb and their object form after it."""
    wrong = []
    for node in tree.nodes():
        for at, kid in enumerate(node.kids):
            pronoun = kid.kids[0] if isinstance(kid, Node) and kid.label == "NP" else None
            if isinstance(pronoun, Leaf) and pronoun.tag == "PRP":
                subject = node.label in {"S", "SQ"}
                if pronoun.form != "it" and (pronoun.form in PRONOUNS) != subject:
                    wrong.append((at, pronoun.form))
    return wrong


def test_verbs_agree(drawn):
    assert [(pair.source, found) for pair in drawn if (found := agreement(pair.en))] == []


def test_verbs_that_do_not_agree_are_found(drawn):
    others = {"is": "are", "has": "have", "does": "do", "was": "were", "are": "is", "were": "was"}
    found = total = 0
    for pair in drawn:
        leaf = next((leaf for leaf in leaves(pair.en) if leaf.form in others), None)
        if leaf:
            old, leaf.form = leaf.form, others[leaf.form]
            total += 1
            found += bool(agreement(pair.en))
            leaf.form = old
    assert total > 100
    assert found > 0.8 * total  # relative clauses have their subject outside


def test_a_and_an(drawn):
    assert [(pair.source, found) for pair in drawn if (found := articles(pair))] == []
    assert sum("an " in pair.source.lower() for pair in drawn) > 30

    class Broken:
        source = "He saw a old house and an car."

    assert articles(Broken) == [("a", "old"), ("an", "car")]


def test_do_support_and_not(drawn):
    assert [(pair.source, found) for pair in drawn if (found := do_support(pair.en))] == []
    pair = next(pair for pair in drawn if any(leaf.lex == "do" for leaf in leaves(pair.en)))
    at = next(at for at, leaf in enumerate(leaves(pair.en)) if leaf.lex == "do")
    verb = next(leaf for leaf in leaves(pair.en)[at + 1 :] if leaf.tag.startswith("V"))
    verb.form += "ed"
    assert do_support(pair.en)


def test_pronoun_forms(drawn):
    assert [(pair.source, found) for pair in drawn if (found := objects(pair.en))] == []
    leaf = next(leaf for pair in drawn for leaf in leaves(pair.en) if leaf.form in {"him", "them"})
    pair = next(pair for pair in drawn if leaf in leaves(pair.en))
    leaf.form = "he"
    assert objects(pair.en)


def test_tense_is_never_ambiguous(drawn):
    """A present form that could be a past one ("they read") would have two translations."""
    same = {verb.en.base for verb in entries("verbs") if verb.en.base == verb.en.finite[3]}
    assert {"read", "put"} <= same
    for pair in drawn:
        for node in pair.en.nodes():
            clause = node.info
            if (
                node.label in {"S", "SBAR"}
                and getattr(clause, "verb", None)
                and clause.verb.en.base in same
                and clause.subject.agreement != 1
            ):
                plain = not (clause.modal or clause.negated or clause.question)
                assert not (clause.tense == "pres" and plain), pair.source


@pytest.mark.parametrize(
    "forms",
    [
        "stop stops stopped stopping",
        "carry carries carried carrying",
        "play plays played playing",
        "lie lies lied lying",
        "dance dances danced dancing",
        "see sees seed seeing",
        "watch watches watched watching",
        "travel travels travelled travelling",
    ],
)
def test_regular_verb_forms(forms):
    base, third, past, progressive = forms.split()
    verb = EnglishVerb(base, doubles=base in {"stop", "travel"})
    assert [verb.finite[1], verb.finite[3], verb.ing] == [third, past, progressive]
    assert verb.participle == past


def test_plurals():
    words = ["key", "city", "church", "bus", "box", "house"]
    plurals = " ".join(inflect(word, "plural") for word in words)
    assert plurals == "keys cities churches buses boxes houses"
