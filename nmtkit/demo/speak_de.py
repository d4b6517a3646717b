"""German: a clause as a tree of topological fields.

Main clause: VF (one constituent) LK (the finite verb) MF RK (prefix, infinitive, participle) NF; subordinate clause: C MF RK NF with the
finite verb last in RK. The order inside MF is fixed: subject, pronouns, dative, time, other adverb, accusative, nicht, prepositional
complements, place, predicate; one translation for each English sentence. Where a phrase's attachment is open in English
("the man in the garden"), both readings have the same German order.
"""

from __future__ import annotations

from nmtkit.demo import german
from nmtkit.demo.lexicon import Adjective
from nmtkit.demo.phrases import (
    CONJUNCTIONS,
    DETERMINERS,
    NP,
    PLURAL,
    PP,
    Clause,
    Predicate,
    Relative,
)
from nmtkit.demo.tree import Leaf, Node

Part = Node | Leaf
WH = {"where": "wo", "why": "warum", "when": "wann"}
LEADS = {"but": "aber", "then": "dann", "and": "und"}
LABELS = {"n": "NP-SB", "a": "NP-OA", "d": "NP-DA", "g": "NP-AG"}


def comma() -> Leaf:
    """A comma."""
    return Leaf(",", "$,")


def cell(np: NP) -> int:
    """The column of the paradigms for a noun phrase: 0 1 2 masculine feminine neuter, 3 plural."""
    assert np.noun is not None
    return 3 if np.number == PLURAL else "mfn".index(np.noun.gender)


def determiner(np: NP, case: str) -> tuple[list[Part], str]:
    """The determiner's words, and which endings (weak mixed strong) adjectives take after them."""
    if np.owner:
        return [Leaf(np.owner.de + "s", "NE", np.owner, "det")], "strong"
    _, _, stem, kind, adjectives = DETERMINERS[np.det]
    found: list[Part] = []
    if kind == "def":
        found.append(Leaf(german.DEFINITE[case][cell(np)], "ART", np.det, "det"))
    elif kind:
        endings = german.DER_ENDINGS if kind == "der" else german.EIN_ENDINGS
        tag = {"ein": "ART", "mein": "PPOSAT", "sein": "PPOSAT", "ihr": "PPOSAT", "unser": "PPOSAT", "dies": "PDAT"}.get(stem, "PIAT")
        found.append(Leaf(stem + endings[case][cell(np)], tag, np.det, "det"))
    if np.numeral:
        found.append(Leaf(np.numeral.de, "CARD", np.numeral))
    return found, adjectives


def noun_phrase(np: NP, case: str, label: str = "") -> Node:
    """A noun phrase in a case (n a d g)."""
    label = label or LABELS[case]
    if np.parts:
        first, second = (noun_phrase(part, case, "NP-CJ") for part in np.parts)
        return Node(label, [first, Leaf("und", "KON", "and"), second], np)
    if np.pronoun == "it":
        return Node(label, [Leaf(german.IT[np.gender]["na".index(case)], "PPER", "it", "it")], np)
    if np.pronoun:
        return Node(label, [Leaf(german.PRONOUNS[np.pronoun]["nad".index(case)], "PPER", np.pronoun)], np)
    if np.name:
        return Node(label, [Leaf(np.name.de, "NE", np.name, "head")], np)
    assert np.noun is not None
    kids, endings = determiner(np, case)
    for adjective in np.adjectives:
        kids.append(Leaf(adjective.stem + german.ADJECTIVE_ENDINGS[endings][case][cell(np)], "ADJA", adjective, "adj"))
    kids.append(Leaf(np.noun.de[case][np.number], "NN", np.noun, "head"))
    for modifier in np.modifiers:
        if isinstance(modifier, PP):
            kids.append(prepositional(modifier))
        elif isinstance(modifier, NP):
            kids.append(noun_phrase(modifier, "g"))
        else:
            kids.extend([comma(), relative(modifier, np), comma()])
    return Node(label, kids, np)


def prepositional(pp: PP) -> Node:
    """A prepositional phrase; preposition and article melt (im, zur), but not before a relative clause."""
    np = noun_phrase(pp.np, pp.case, "NP-PP")
    first = np.kids[0]
    if isinstance(first, Leaf) and first.lex == "the" and not any(isinstance(m, Relative) for m in pp.np.modifiers):
        melted = german.CONTRACTIONS.get((pp.de, first.form))
        if melted:
            np.kids.pop(0)
            return Node("PP", [Leaf(melted, "APPRART", pp.en, "prep"), np], pp)
    return Node("PP", [Leaf(pp.de, "APPR", pp.en, "prep"), np], pp)


def relative(modifier: Relative, np: NP) -> Node:
    """A relative clause, verb last."""
    gap = modifier.gap
    if gap == "pp":
        complement = next(complement for complement, filler in modifier.clause.filled if complement.role == "pp")
        opening: list[Part] = [
            Leaf(complement.de, "APPR", complement.en, "prep"),
            Leaf(german.RELATIVE[complement.case][cell(np)], "PRELS", "rel", "rel"),
        ]
    else:
        case = {"subject": "n", "acc": "a"}.get(gap, "d")
        opening = [Leaf(german.RELATIVE[case][cell(np)], "PRELS", "rel", "rel")]
    return Node("SREL", [Node("C", opening), *final_fields(modifier.clause, gap)], modifier)


def adjective_phrase(predicate: Predicate) -> Node:
    """A predicate adjective, with its degree or what it is compared to."""
    adjective: Adjective = predicate.adjective
    if predicate.than:
        than = noun_phrase(predicate.than, "n", "NP-CC")
        return Node("AP", [Leaf(adjective.de_comparative, "ADJD", adjective), Leaf("als", "KOKOM", "than"), than])
    degree: list[Part] = [Leaf(predicate.degree.de, "ADV", predicate.degree)] if predicate.degree else []
    return Node("AP", [*degree, Leaf(adjective.de, "ADJD", adjective)])


def middle(clause: Clause, subject: bool, gap: str = "") -> list[Part]:
    """The middle field.

    Args:
        subject: whether the subject stands in it. gap: the complement that a relative pronoun took away.
    """
    field: list[Part] = [noun_phrase(clause.subject, "n")] if subject else []
    pronouns: list[tuple[str, Node]] = []
    datives: list[Part] = []
    accusatives: list[Part] = []
    rest: list[Part] = []
    for complement, filler in clause.filled:
        if complement.role == gap:
            continue
        if isinstance(filler, PP):
            rest.append(prepositional(filler))
        elif filler.pronoun:
            pronouns.append((complement.case, noun_phrase(filler, complement.case)))
        else:
            (accusatives if complement.case == "a" else datives).append(noun_phrase(filler, complement.case))
    field.extend(node for _, node in sorted(pronouns, key=lambda pair: pair[0]))
    if clause.verb.reflexive:
        field.append(Leaf(german.REFLEXIVES.get(clause.subject.pronoun, "sich"), "PRF", "sich"))
    field.extend(datives)
    if clause.time and clause.front != "time":
        field.append(Node("ADVP-TMP", [Leaf(clause.time.de, "ADV", clause.time)]))
    if clause.adverb:
        field.append(Node("ADVP", [Leaf(clause.adverb.de, "ADV", clause.adverb)]))
    field.extend(accusatives)
    if clause.negated and not any(isinstance(filler, NP) and filler.det == "not a" for _, filler in clause.filled):
        field.append(Leaf("nicht", "PTKNEG", "not", "neg"))
    field.extend(rest)
    if clause.place:
        field.append(prepositional(clause.place))
    if clause.predicate:
        field.append(adjective_phrase(clause.predicate))
    return field


def verbs(clause: Clause, agreement: int | None = None) -> tuple[Leaf, Leaf | None]:
    """The finite verb and the non-finite one, if there is one. A separable prefix is part of the latter, but not of a finite main verb.

    Args:
        agreement: another agreement than the subject's (for wrong forms on purpose).
    """
    verb, forms = clause.verb, clause.verb.de
    agreement = clause.subject.agreement if agreement is None else agreement
    past = clause.tense in {"past", "pastprog", "plup"}
    if clause.modal:
        return Leaf(german.MODALS[clause.modal][past][agreement], "VMFIN", clause.modal, "fin"), Leaf(forms.infinitive, "VVINF", verb, "verb")
    if clause.tense in {"perf", "plup"}:
        auxiliary = german.SEIN if forms.sein else german.HABEN
        return Leaf(auxiliary[past][agreement], "VAFIN", "sein" if forms.sein else "haben", "fin"), Leaf(forms.participle, "VVPP", verb, "verb")
    if clause.tense == "fut":
        return Leaf(german.WERDEN[0][agreement], "VAFIN", "werden", "fin"), Leaf(forms.infinitive, "VVINF", verb, "verb")
    return Leaf((forms.preterite if past else forms.present)[agreement], "VVFIN", verb, "fin"), None


def after(clause: Clause) -> list[Part]:
    """What follows the right bracket: complement clauses and adverbial clauses that do not open the sentence."""
    field: list[Part] = []
    if clause.content:
        kind, inner = clause.content
        field += [comma(), infinitive_clause(inner) if kind == "to" else subordinate(kind, inner), comma()]
    if clause.adjunct and clause.front != "sub":
        field += [comma(), subordinate(*clause.adjunct), comma()]
    return field


def final_fields(clause: Clause, gap: str = "") -> list[Part]:
    """Middle field, right bracket with the finite verb last, and what follows."""
    finite, other = verbs(clause)
    if other is None:
        prefix = clause.verb.de.prefix
        bracket: list[Part] = [Leaf(prefix + finite.form, finite.tag, finite.lex, "fin")]
    else:
        bracket = [other, finite]
    return [Node("MF", middle(clause, gap != "subject", gap)), Node("RK", bracket), Node("NF", after(clause))]


def subordinate(conjunction: str, clause: Clause) -> Node:
    """A subordinate clause with its conjunction."""
    return Node("SSUB", [Node("C", [Leaf(CONJUNCTIONS[conjunction], "KOUS", conjunction)]), *final_fields(clause)], clause)


def infinitive_clause(clause: Clause) -> Node:
    """A zu-infinitive: zu stands inside a separable verb."""
    bracket = Node("RK", [Leaf(clause.verb.de.zu, "VVIZU", clause.verb, "zu")])
    return Node("SINF", [Node("MF", middle(clause, False)), bracket, Node("NF", after(clause))], clause)


def main_clause(clause: Clause) -> Node:
    """A clause with the finite verb second (first in a yes-no question)."""
    first: list[Part] = []
    if clause.question:
        first = [] if clause.question == "yn" else [Leaf(WH[clause.question], "PWAV", clause.question)]
    elif clause.front == "time" and clause.time:
        first = [Node("ADVP-TMP", [Leaf(clause.time.de, "ADV", clause.time)])]
    elif clause.front == "sub" and clause.adjunct:
        first = [subordinate(*clause.adjunct)]
    elif clause.front == "then":
        first = [Leaf("dann", "ADV", "then")]
    inverted = bool(first or clause.question)
    finite, other = verbs(clause)
    prefix = clause.verb.de.prefix
    bracket: list[Part] = [other] if other else [Leaf(prefix, "PTKVZ", clause.verb, "prefix")] if prefix else []
    closing = [comma()] if first and clause.front == "sub" else []
    fields: list[Part] = [
        Node("VF", first if inverted else [noun_phrase(clause.subject, "n")]),
        *closing,
        Node("LK", [finite]),
        Node("MF", middle(clause, inverted)),
        Node("RK", bracket),
        Node("NF", after(clause)),
    ]
    lead: list[Part] = [Leaf(LEADS[clause.lead], "KON", clause.lead)] if clause.lead else []
    return Node("S", [*lead, *fields], clause)


def sentence(clause: Clause) -> Node:
    """A whole German sentence with its full stop or question mark."""
    kids: list[Part] = [main_clause(clause)]
    if clause.second:
        conjunction, other = clause.second
        kids += [comma()] if conjunction == "but" else []
        kids += [Leaf(LEADS[conjunction], "KON", conjunction), main_clause(other)]
    return Node("ROOT", [*kids, Leaf("?" if clause.question else ".", "$.")])
