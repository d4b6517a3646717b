"""The demo's English: each rule of grammar holds in every sentence, and finds broken sentences."""

import re

import pytest

from nmtkit.demo.corpus import Writer
from nmtkit.demo.lexicon import EnglishVerb, entries, inflect
from nmtkit.demo.realise import Leaf, Node, leaves

# Finite form -> its agreements: 0 first person, 1 singular, 2 plural.
AGREEMENTS = {
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


def agreement_of(np):
    """The agreement of a noun phrase, from the form of its head noun."""
    words = [kid for kid in np.kids if isinstance(kid, Leaf)]
    inner = [kid for kid in np.kids if isinstance(kid, Node) and kid.label == "NP"]
    if any(leaf.tag == "CC" for leaf in words):
        return 2
    if words and words[0].tag == "PRP":
        return PRONOUNS[words[0].form]
    noun = next((leaf for leaf in words if leaf.tag in {"NN", "NNP"}), None)
    if noun is None:
        return agreement_of(inner[0])
    plurals = {n.en[1] for n in entries("nouns")}
    return 2 if noun.form in plurals else 1


def finite_agreements(form):
    """The agreements of a finite verb form; all three for a past form or a modal."""
    if form in AGREEMENTS:
        return AGREEMENTS[form]
    verbs = [*entries("verbs"), *entries("copulas")]
    agreements = {i % 3 for verb in verbs for i, f in enumerate(verb.en.finite) if f == form}
    return agreements or {0, 1, 2}


def disagreeing_verbs(tree):
    """The finite verbs that do not agree with their subjects."""
    wrong = []
    for node in tree.nodes():
        if node.label in {"S", "SQ"}:
            nodes = [kid for kid in node.kids if isinstance(kid, Node)]
            subjects = [
                kid
                for i, kid in enumerate(node.kids)
                if kid in nodes and kid.label == "NP" and is_subject(node, i)
            ]
            words = [kid for kid in node.kids if node.label == "SQ" and isinstance(kid, Leaf)]
            phrases = [kid.kids[0] for kid in nodes if kid.label == "VP"]
            finite = words[:1] or [kid for kid in phrases if isinstance(kid, Leaf)]
            is_finite = subjects and finite and finite[0].tag != "TO"
            if is_finite and agreement_of(subjects[-1]) not in finite_agreements(finite[0].form):
                wrong.append(finite[0].form)
    return wrong


def is_subject(node, i):
    """True for the last noun phrase before the verb phrase, and for any in a question."""
    after = [kid for kid in node.kids[i + 1 :] if isinstance(kid, Node) and kid.label == "NP"]
    return not after or node.label == "SQ"


def wrong_articles(sentence):
    """Each a before a vowel and an before a consonant. Of the lexicon's words only those with uni-
    do not begin as they are spelled.
    """
    return [
        (article, word)
        for article, word in re.findall(r"\b([Aa]n?) (\w+)", sentence)
        if (article.lower() == "an") != bool(re.match(r"(?!uni)[aeiou]", word))
    ]


def wrong_do_support(tree):
    """The verbs after do, does and did that are no base forms, and full verbs before not."""
    wrong = []
    bases = {verb.en.base for verb in entries("verbs")} | {"want", "have", "become", "stay", "look"}
    words = leaves(tree)
    for i, leaf in enumerate(words):
        if leaf.lex == "do" and (verb := verb_after(words, i)).form not in bases:
            wrong.append(verb.form)
        if leaf.form == "not" and not AUXILIARIES.fullmatch(words[i - 1].form):
            wrong.append(words[i - 1].form)
    return wrong


def verb_after(words, i):
    return next(leaf for leaf in words[i + 1 :] if leaf.tag.startswith("V"))


def wrong_pronouns(tree):
    """Pronouns without their subject form before the verb, or their object form after it."""
    wrong = []
    for node in tree.nodes():
        for kid in node.kids:
            pronoun = kid.kids[0] if isinstance(kid, Node) and kid.label == "NP" else None
            if isinstance(pronoun, Leaf) and pronoun.tag == "PRP":
                subject = node.label in {"S", "SQ"}
                if pronoun.form != "it" and (pronoun.form in PRONOUNS) != subject:
                    wrong.append(pronoun.form)
    return wrong


def mistakes(pairs, rule):
    """Each sentence that breaks a rule, with its wrong words."""
    return [(pair.source, wrong) for pair in pairs if (wrong := rule(pair.en))]


def test_verbs_agree_with_their_subjects(drawn):
    assert mistakes(drawn, disagreeing_verbs) == []


def test_most_verbs_of_the_wrong_number_are_found(drawn):
    others = {"is": "are", "has": "have", "does": "do", "was": "were", "are": "is", "were": "was"}
    found = total = 0
    for pair in drawn:
        leaf = next((leaf for leaf in leaves(pair.en) if leaf.form in others), None)
        if leaf:
            old, leaf.form = leaf.form, others[leaf.form]
            total += 1
            found += bool(disagreeing_verbs(pair.en))
            leaf.form = old
    assert total > 100
    assert found > 0.8 * total  # relative clauses have their subject outside


def test_articles_fit_the_next_word(drawn):
    assert not any(wrong_articles(pair.source) for pair in drawn)
    assert sum("an " in pair.source.lower() for pair in drawn) > 30
    broken = "He saw a old house and an car."
    assert wrong_articles(broken) == [("a", "old"), ("an", "car")]


def first_leaf(pairs, holds):
    """The tree, its leaves, and the index of the first leaf for which a condition holds."""
    return next(
        (pair.en, words, i)
        for pair in pairs
        for words in [leaves(pair.en)]
        for i, leaf in enumerate(words)
        if holds(leaf)
    )


def test_do_precedes_a_base_form_and_not_follows_an_auxiliary(drawn, monkeypatch):
    assert mistakes(drawn, wrong_do_support) == []
    tree, words, i = first_leaf(drawn, lambda leaf: leaf.lex == "do")
    verb = verb_after(words, i)
    monkeypatch.setattr(verb, "form", verb.form + "ed")
    assert wrong_do_support(tree)


def test_pronouns_have_their_subject_or_object_form(drawn, monkeypatch):
    assert mistakes(drawn, wrong_pronouns) == []
    tree, words, i = first_leaf(drawn, lambda leaf: leaf.form in {"him", "them"})
    monkeypatch.setattr(words[i], "form", "he")
    assert wrong_pronouns(tree)


def test_present_tense_never_looks_like_past_tense(drawn):
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
def test_regular_verbs_are_spelled_by_rule(forms):
    base, third, past, progressive = forms.split()
    verb = EnglishVerb(base, doubles=base in {"stop", "travel"})
    assert [verb.finite[1], verb.finite[3], verb.ing] == [third, past, progressive]
    assert verb.participle == past


def test_regular_plurals_are_spelled_by_rule():
    words = ["key", "city", "church", "bus", "box", "house"]
    plurals = " ".join(inflect(word, "plural") for word in words)
    assert plurals == "keys cities churches buses boxes houses"
