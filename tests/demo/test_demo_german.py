"""Every German sentence of the demo grammar is grammatical by construction: one test a rule, each
shown to fail on a broken sentence.
"""

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
    assert [(pair.target, found) for pair in drawn if (found := list(rule(pair.de)))] == []


def broken(drawn, rule, change):
    """Of all sentences that `change` can break (it returns a function that repairs it), the number
    that the rule finds, and all.
    """
    found = total = 0
    for pair in drawn:
        repair = change(pair)
        if repair:
            total += 1
            found += any(rule(pair.de))
            repair()
            assert not any(rule(pair.de)), "repaired, it is right again"
    return found, total


def moved(kid, source, target, at=None):
    """Move the last constituent of a field into another one; return what moves it back."""
    source.kids.remove(kid)
    target.kids.insert(len(target.kids) if at is None else at, kid)

    def repair():
        target.kids.remove(kid)
        source.kids.append(kid)

    return repair


def changed(thing, name, value):
    """Change an attribute; return what changes it back."""
    old = getattr(thing, name)
    setattr(thing, name, value)
    return lambda: setattr(thing, name, old)


def reword(form, tags=None, labels=None):
    """A change: the first word, with a tag in a constituent with a label, of which `form` makes
    another one.
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
    """What makes other forms by a table: regular expression -> what it becomes."""

    def form(leaf):
        found = (re.sub(old, new, leaf.form) for old, new in forms.items())
        return next((other for other in found if other != leaf.form), leaf.form)

    return form


def move(label, source, target, at=None):
    """A change: the last word of one field of the first clause of a kind goes into another
    field.
    """

    def change(pair):
        for node in pair.de.nodes():
            fields = checker.parts(node)
            if node.label == label and fields[source].kids:
                leaf = fields[source].kids[-1]
                if isinstance(leaf, Leaf):
                    return moved(leaf, fields[source], fields[target], at)
        return None

    return change


def other_number(leaf):
    """A finite verb in the other number."""
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
    """Two constituents before the finite verb."""
    fields = checker.parts(next(node for node in pair.de.nodes() if node.label == "S"))
    if pair.clause.question == "yn" or not fields["MF"].kids:
        return None
    return moved(fields["MF"].kids[-1], fields["MF"], fields["VF"])


def relabel(pair):
    """A dative object taken for an accusative one."""
    clauses = [node for node in pair.de.nodes() if node.label in {"S", "SSUB"}]
    for node in pair.de.nodes():
        if node.label == "NP-DA" and any(node in checker.parts(c)["MF"].kids for c in clauses):
            return changed(node, "label", "NP-OA")
    return None


def drop_prefix(pair):
    """The separable prefix forgotten."""
    for node in pair.de.nodes():
        if node.label == "RK" and node.kids and node.kids[-1].tag == "RP":
            prefix = node.kids.pop()
            return lambda: node.kids.append(prefix)
    return None


def drop_comma(pair):
    """The comma before a subordinate clause forgotten."""
    for node in pair.de.nodes():
        for comma, kid in zip(node.kids, node.kids[1:], strict=False):
            clause = isinstance(kid, Node) and kid.label in {"SSUB", "SREL"}
            if clause and comma.form == "," and node.label != "VF":
                return changed(comma, "form", "so")
    return None


def zu_apart(leaf):
    """A zu-infinitive of a separable verb with zu before it."""
    zu = leaf.tag == "VB" and leaf.form == leaf.lex.de.zu
    return "zu " + leaf.lex.de.infinitive if zu else leaf.form


def twice(leaf):
    """A separable verb with its prefix before it, too."""
    return (leaf.lex.de.prefix if isinstance(leaf.lex, Verb) else "") + leaf.form


FINITE = {"VBD", "VBP"}
# name -> rule, change, share of the changed sentences that must be found wrong (the rest are right
# in another reading)
MUTATIONS = {
    "dative verb": ("objects", relabel, 1.0),
    # beside "sie" and "die" before feminines whose plural is alike, both numbers of the verb are
    # German
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
def test_rule_finds_what_breaks_it(drawn, name):
    rule, change, share = MUTATIONS[name]
    found, total = broken(drawn, getattr(checker, rule), change)
    assert total >= 15, "the change must apply often enough to show anything"
    assert found >= share * total


def test_words_are_spoken_in_the_order_of_the_tree(drawn):
    """The checker reads trees; the text is the trees' words and nothing else."""
    for pair in drawn[:200]:
        assert pair.target == text(leaves(pair.de))
        again = [
            leaf.form for leaf in leaves(GERMAN.sentence(pair.clause)) if leaf.form not in ",.?"
        ]
        assert pair.target.rstrip(".?").replace(",", "").lower() == " ".join(again).lower()


@pytest.mark.parametrize(("verb", "expected"), checker.GRAMMAR["conjugation"].items())
def test_conjugation_against_forms_written_by_hand(verb, expected):
    infinitive, *text = verb.split()
    forms = GermanVerb(" ".join(text) or infinitive)
    spoken = [*forms.finite, forms.participle, forms.zu.replace(" ", "|")]
    assert " ".join(spoken) == expected
    assert forms.infinitive == infinitive


@pytest.mark.parametrize(("noun", "expected"), checker.GRAMMAR["declension"].items())
def test_declension_against_forms_written_by_hand(noun, expected):
    forms = noun_forms(*noun.split())
    assert " ".join(form for case in "nadg" for form in forms[case]) == expected
