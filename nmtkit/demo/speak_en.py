"""English: a clause as a constituent tree in the labels of the Penn Treebank."""

from __future__ import annotations

from nmtkit.demo import english
from nmtkit.demo.phrases import DETERMINERS, NP, PLURAL, PP, Clause, Predicate, Relative
from nmtkit.demo.tree import Leaf, Node

Part = Node | Leaf


def comma() -> Leaf:
    """A comma."""
    return Leaf(",", ",")


def noun_phrase(np: NP, subject: bool = False) -> Node:
    """A noun phrase; `subject` chooses between I and me."""
    if np.parts:
        first, second = (noun_phrase(part, subject) for part in np.parts)
        return Node("NP", [first, Leaf("and", "CC", "and"), second], np)
    if np.pronoun:
        return Node("NP", [Leaf(english.PRONOUNS[np.pronoun][0 if subject else 1], "PRP", np.pronoun, "it" if np.pronoun == "it" else "")], np)
    if np.name:
        return Node("NP", [Leaf(np.name.en, "NNP", np.name, "head")], np)
    assert np.noun is not None
    kids: list[Part] = []
    if np.owner:
        kids.append(Node("NP", [Leaf(np.owner.en, "NNP", np.owner), Leaf("'s", "POS")]))
    determiner = DETERMINERS[np.det][np.number]
    if determiner and not np.owner:
        kids.append(Leaf(determiner, "PRP$" if np.det in {"my", "his", "her", "our", "their"} else "DT", np.det, "det"))
    if np.numeral:
        kids.append(Leaf(np.numeral.en, "CD", np.numeral))
    kids.extend(Leaf(adjective.en, "JJ", adjective, "adj") for adjective in np.adjectives)
    kids.append(Leaf(np.noun.en[np.number], "NNS" if np.number == PLURAL else "NN", np.noun, "head"))
    if not np.modifiers:
        return Node("NP", kids, np)
    inner = Node("NP", kids, np)
    for modifier in np.modifiers:
        if isinstance(modifier, PP):
            after = prepositional(modifier)
        elif isinstance(modifier, NP):
            after = Node("PP", [Leaf("of", "IN", "of"), noun_phrase(modifier)])
        else:
            after = relative(modifier, np)
        inner = Node("NP", [inner, after], np)
    return inner


def prepositional(pp: PP) -> Node:
    """A prepositional phrase; a preposition may be empty ("remember the war", an den Krieg)."""
    np = noun_phrase(pp.np)
    return Node("PP", [Leaf(pp.en, "IN", pp.en, "prep"), np], pp) if pp.en else np


def relative(modifier: Relative, np: NP) -> Node:
    """A relative clause: who for persons as subjects, that elsewhere."""
    person = np.noun is not None and "person" in np.noun.classes
    pronoun = Leaf("who" if person else "that", "WP" if person else "WDT", "rel", "rel")
    subject: list[Part] = [] if modifier.gap == "subject" else [noun_phrase(modifier.clause.subject, True)]
    body = Node("S", [*subject, *predicate_parts(modifier.clause, modifier.gap)])
    return Node("SBAR", [Node("WHNP", [pronoun]), body], modifier)


def verb_words(clause: Clause) -> list[Leaf]:
    """The verbs in order, the finite one first; without not."""
    verb, agreement, tense = clause.verb, clause.subject.agreement, clause.tense
    forms, past = verb.en, clause.tense in {"past", "pastprog", "plup"}
    base = Leaf(forms.base, "VB", verb, "verb")
    if clause.modal == "want" or (clause.modal == "must" and past):
        word = "have" if clause.modal == "must" else "want"
        support = [Leaf(english.DO[past][agreement], "VBD" if past else "VBP", "do", "fin"), Leaf(word, "VB", clause.modal)]
        present = english.third_person(word) if agreement == 1 else word
        plain = [Leaf(("had" if word == "have" else "wanted") if past else present, "VBD" if past else "VBP", clause.modal, "fin")]
        return [*(support if clause.negated or clause.question else plain), Leaf("to", "TO"), base]
    if clause.modal:
        return [Leaf(english.MODALS[clause.modal][past], "MD", clause.modal, "fin"), base]
    if tense == "fut":
        return [Leaf("will", "MD", "werden", "fin"), base]
    if tense in {"perf", "plup"}:
        return [Leaf(english.HAVE[past][agreement], "VBD" if past else "VBP", "haben", "fin"), Leaf(forms.participle, "VBN", verb, "verb")]
    if tense in {"prog", "pastprog"}:
        return [Leaf(english.BE[past][agreement], "VBD" if past else "VBP", "sein", "fin"), Leaf(forms.ing, "VBG", verb, "verb")]
    if (clause.negated or clause.question) and forms.base != "be":
        return [Leaf(english.DO[past][agreement], "VBD" if past else "VBP", "do", "fin"), base]
    return [Leaf((forms.past if past else forms.present)[agreement], "VBD" if past else "VBZ" if agreement == 1 else "VBP", verb, "fin")]


def objects(clause: Clause, gap: str) -> list[Part]:
    """What follows the main verb inside its phrase: objects, particle, prepositional complements, predicate."""
    verb = clause.verb
    particle = Node("PRT", [Leaf(verb.particle, "RP", verb, "prefix")]) if verb.particle else None
    bare: list[Part] = []
    prepositions: list[Part] = []
    for complement, filler in clause.filled:
        if complement.role == gap:
            if gap == "to" or (gap == "pp" and complement.en):
                prepositions.append(Leaf("to" if gap == "to" else complement.en, "IN", complement.en))
        elif isinstance(filler, PP):
            prepositions.append(prepositional(filler))
        elif complement.role == "to":
            prepositions.append(Node("PP", [Leaf("to", "IN", "to"), noun_phrase(filler)]))
        else:
            bare.append(noun_phrase(filler))
    parts: list[Part] = [particle] if particle else []
    field = [*bare, *parts] if clause.shifted else [*parts, *bare]
    return [*field, *prepositions, *([adjective_phrase(clause.predicate)] if clause.predicate else [])]


def adjective_phrase(predicate: Predicate) -> Node:
    """A predicate adjective, with its degree or what it is compared to."""
    adjective = predicate.adjective
    if predicate.than:
        than = Node("PP", [Leaf("than", "IN", "than"), noun_phrase(predicate.than)])
        return Node("ADJP", [Leaf(adjective.en_comparative, "JJR", adjective), than])
    degree: list[Part] = [Leaf(predicate.degree.en, "RB", predicate.degree)] if predicate.degree else []
    return Node("ADJP", [*degree, Leaf(adjective.en, "JJ", adjective)])


def subordinate(conjunction: str, clause: Clause) -> Node:
    """A subordinate clause with its conjunction."""
    body = Node("S", [noun_phrase(clause.subject, True), *predicate_parts(clause)])
    return Node("SBAR", [Leaf(conjunction.strip(), "IN", conjunction), body], clause)


def time_phrase(clause: Clause) -> Node:
    """A time adverbial: an adverb, or a phrase of several words kept whole."""
    assert clause.time is not None
    words = clause.time.en
    label = "PP" if words.split()[0] in {"in", "on", "at", "after"} else "NP" if " " in words else "ADVP"
    return Node(label, [Leaf(words, "RB", clause.time)])


def tail(clause: Clause) -> list[Part]:
    """Place, time and subordinate clauses at the end of the verb phrase."""
    field: list[Part] = [prepositional(clause.place)] if clause.place else []
    if clause.time and clause.front != "time":
        field.append(time_phrase(clause))
    if clause.content:
        kind, inner = clause.content
        if kind == "to":
            words = Node("VP", [Leaf(inner.verb.en.base, "VB", inner.verb, "verb"), *objects(inner, ""), *tail(inner)])
            field.append(Node("S", [Node("VP", [Leaf("to", "TO"), words])]))
        else:
            field.append(subordinate(kind, inner))
    if clause.adjunct and clause.front != "sub":
        field.append(subordinate(*clause.adjunct))
    return field


def predicate_parts(clause: Clause, gap: str = "", without_finite: bool = False) -> list[Part]:
    """Adverb and verb phrase; a question has moved its finite verb away."""
    words = verb_words(clause)
    copula = clause.verb.en.base == "be" and not clause.modal
    before = clause.adverb is not None and len(words) == 1 and not copula
    adverb: list[Part] = [Node("ADVP", [Leaf(clause.adverb.en, "RB", clause.adverb)])] if clause.adverb else []
    negation = [Leaf("not", "RB", "not", "neg")] if clause.negated else []
    inside: list[Part] = [*objects(clause, gap), *tail(clause)]
    for word in reversed(words[1:]):
        inside = [Node("VP", [word, *inside])]
    if words[0].form == "can" and negation:
        words[0].form, negation = "cannot", []
    verb_phrase = [] if without_finite else [words[0]]
    inside = [*negation, *([] if before else adverb), *inside]
    if without_finite:
        return inside
    return [*(adverb if before else []), Node("VP", [*verb_phrase, *inside])]


def main_clause(clause: Clause) -> Node:
    """A main clause or question, without its full stop."""
    lead: list[Part] = [Leaf(clause.lead, "CC", clause.lead)] if clause.lead else []
    subject = noun_phrase(clause.subject, True)
    if clause.question:
        auxiliary = verb_words(clause)[0]
        body = Node("SQ", [auxiliary, subject, *predicate_parts(clause, without_finite=True)], clause)
        return body if clause.question == "yn" else Node("SBARQ", [Node("WHADVP", [Leaf(clause.question, "WRB", clause.question)]), body], clause)
    first: list[Part] = []
    if clause.front == "time":
        first = [time_phrase(clause)]
    elif clause.front == "sub" and clause.adjunct:
        first = [subordinate(*clause.adjunct), comma()]
    elif clause.front == "then":
        first = [Node("ADVP", [Leaf("then", "RB", "then")])]
    return Node("S", [*lead, *first, subject, *predicate_parts(clause)], clause)


def sentence(clause: Clause) -> Node:
    """A whole English sentence with its full stop or question mark."""
    stop = Leaf("?" if clause.question else ".", ".")
    if clause.second:
        conjunction, other = clause.second
        pause: list[Part] = [comma()] if conjunction == "but" else []
        return Node("ROOT", [Node("S", [main_clause(clause), *pause, Leaf(conjunction, "CC", conjunction), main_clause(other), stop])])
    body = main_clause(clause)
    body.kids.append(stop)
    return Node("ROOT", [body])
