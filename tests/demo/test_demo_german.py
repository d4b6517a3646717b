"""The demo's German: each rule of grammar holds in every sentence, and finds broken sentences."""

import re

import pytest

from nmtkit.demo.corpus import Writer
from nmtkit.demo.languages import GERMAN
from nmtkit.demo.lexicon import GermanVerb, Verb, noun_forms
from nmtkit.demo.realise import Leaf, Node, leaves, text
from tests.demo import demo_checker as checker


@pytest.fixture(scope="module")
def drawn():
    """2,000 pairs of the grammar, in documents."""
    return [pair for document in Writer(11, 1, set()).documents(2000) for pair in document]


@pytest.mark.parametrize("rule", checker.RULES, ids=lambda rule: rule.__name__)
def test_rule_holds_in_every_sentence(drawn, rule):
    assert [(pair.target, wrong) for pair in drawn if (wrong := list(rule(pair.de)))] == []


def broken(drawn, rule, change):
    """The number of sentences that a rule finds wrong after a change, and the number of changed
    sentences. A change returns a function that repairs the sentence, or None if it does not apply.
    """
    found = total = 0
    for pair in drawn:
        repair = change(pair)
        if repair:
            total += 1
            found += any(rule(pair.de))
            repair()
            assert not any(rule(pair.de))
    return found, total


def moved(kid, source, target, place=None):
    """Move the last constituent of a field to a place of another field, by default its end; return
    the function that moves it back.
    """
    source.kids.remove(kid)
    target.kids.insert(len(target.kids) if place is None else place, kid)

    def repair():
        target.kids.remove(kid)
        source.kids.append(kid)

    return repair


def changed(node, name, value):
    """Change an attribute; return the function that restores it."""
    old = getattr(node, name)
    setattr(node, name, value)
    return lambda: setattr(node, name, old)


def reword(form, tags=None, labels=None):
    """A change: the first word that `form` changes gets the new form.

    Args:
        form: returns the new form of a leaf.
        tags, labels: of the word and of its constituent, if only some are changed.
    """

    def change(pair):
        for node in pair.de.nodes():
            for leaf in node.kids if labels is None or node.label in labels else ():
                word = isinstance(leaf, Leaf) and (tags is None or leaf.tag in tags)
                if word and form(leaf) != leaf.form:
                    return changed(leaf, "form", form(leaf))
        return None

    return change


def replaced(forms):
    """A function for `reword`, from a table: regular expression -> replacement."""

    def form(leaf):
        candidates = (re.sub(old, new, leaf.form) for old, new in forms.items())
        return next((other for other in candidates if other != leaf.form), leaf.form)

    return form


def move(label, source, target, place=None):
    """A change: the last word of a field of the first clause with a label goes to another field."""

    def change(pair):
        for node in pair.de.nodes():
            fields = checker.parts(node)
            if node.label == label and fields[source].kids:
                leaf = fields[source].kids[-1]
                if isinstance(leaf, Leaf):
                    return moved(leaf, fields[source], fields[target], place)
        return None

    return change


def other_number(leaf):
    """The form of a finite verb in the other number."""
    for lemma, agreement in checker.finite_table()[leaf.form]:
        if agreement == 0 or not lemma:
            continue
        other = 3 - agreement
        for form, readings in checker.finite_table().items():
            if (lemma, other) in readings and all(number == other for _, number in readings):
                return form
    others = {"ist": "sind", "sind": "ist", "war": "waren", "waren": "war"}
    others |= {"hat": "haben", "hatte": "hatten"}
    return others.get(leaf.form, leaf.form)


def swap(pair):
    """A change: two constituents come before the finite verb."""
    fields = checker.parts(next(node for node in pair.de.nodes() if node.label == "S"))
    if pair.clause.question == "yn" or not fields["MF"].kids:
        return None
    return moved(fields["MF"].kids[-1], fields["MF"], fields["VF"])


def relabel(pair):
    """A change: a dative object becomes an accusative object."""
    clauses = [node for node in pair.de.nodes() if node.label in {"S", "SSUB"}]
    for node in pair.de.nodes():
        if node.label == "NP-DA" and any(node in checker.parts(c)["MF"].kids for c in clauses):
            return changed(node, "label", "NP-OA")
    return None


def drop_prefix(pair):
    """A change: the separable prefix is missing."""
    for node in pair.de.nodes():
        if node.label == "RK" and node.kids and node.kids[-1].tag == "RP":
            prefix = node.kids.pop()
            return lambda: node.kids.append(prefix)
    return None


def drop_comma(pair):
    """A change: the comma before a subordinate clause becomes a word."""
    for node in pair.de.nodes():
        for comma, kid in zip(node.kids, node.kids[1:], strict=False):
            clause = isinstance(kid, Node) and kid.label in {"SSUB", "SREL"}
            if clause and comma.form == "," and node.label != "VF":
                return changed(comma, "form", "so")
    return None


def zu_apart(leaf):
    """The zu-infinitive of a separable verb with zu before it instead of inside it."""
    zu = leaf.tag == "VB" and leaf.form == leaf.lex.de.zu
    return "zu " + leaf.lex.de.infinitive if zu else leaf.form


def twice(leaf):
    """A separable verb with an additional prefix."""
    return (leaf.lex.de.prefix if isinstance(leaf.lex, Verb) else "") + leaf.form


FINITE = {"VBD", "VBP"}
# Name -> rule, change, and the share of the changed sentences that the rule must find wrong; the
# others are right in another reading.
MUTATIONS = {
    "dative verb": ("objects", relabel, 1.0),
    # After "sie", and after "die" before feminines whose plural is alike, both numbers of the verb
    # are right.
    "number of the verb": ("subject_and_verb", reword(other_number, FINITE), 0.88),
    "two constituents before the verb": ("verb_second", swap, 1.0),
    "finite verb at the end of a main clause": ("verb_second", move("S", "LK", "RK"), 1.0),
    "finite verb in a subordinate clause": ("verb_final", move("SSUB", "RK", "MF", 0), 1.0),
    "no comma": ("verb_final", drop_comma, 1.0),
    "prefix forgotten": ("prefixes", drop_prefix, 1.0),
    "prefix twice": ("prefixes", reword(twice, FINITE), 0.5),
    "zu before a separable verb": ("prefixes", reword(zu_apart), 1.0),
    "haben for sein": (
        "participles",
        reword(lambda leaf: "hat" if leaf.lex == "sein" else leaf.form),
        1.0,
    ),
}
for name, entry in checker.GRAMMAR["mutations"].items():
    labels = entry.get("labels", "").split() or None
    change = reword(replaced(entry["forms"]), entry["tags"].split(), labels)
    MUTATIONS[name] = (entry["rule"], change, entry["share"])


@pytest.mark.parametrize("name", MUTATIONS)
def test_rule_finds_broken_sentences(drawn, name):
    rule, change, share = MUTATIONS[name]
    found, total = broken(drawn, getattr(checker, rule), change)
    assert total >= 15
    assert found >= share * total


def test_sentences_are_the_words_of_their_trees_in_order(drawn):
    """So rules that read trees are rules of the text."""
    for pair in drawn[:200]:
        assert pair.target == text(leaves(pair.de))
        again = [
            leaf.form for leaf in leaves(GERMAN.sentence(pair.clause)) if leaf.form not in ",.?"
        ]
        assert pair.target.rstrip(".?").replace(",", "").lower() == " ".join(again).lower()


@pytest.mark.parametrize(("verb", "expected"), checker.GRAMMAR["conjugation"].items())
def test_verbs_have_the_forms_written_by_hand(verb, expected):
    infinitive, *text = verb.split()
    forms = GermanVerb(" ".join(text) or infinitive)
    all_forms = [*forms.finite, forms.participle, forms.zu.replace(" ", "|")]
    assert " ".join(all_forms) == expected
    assert forms.infinitive == infinitive


@pytest.mark.parametrize(("noun", "expected"), checker.GRAMMAR["declension"].items())
def test_nouns_have_the_forms_written_by_hand(noun, expected):
    forms = noun_forms(*noun.split())
    assert " ".join(form for case in "nadg" for form in forms[case]) == expected
