"""German as topological fields.

A main clause: VF (one constituent) LK (the finite verb) MF RK (prefix, infinitive, participle) NF.
A subordinate one: C MF RK NF with the finite verb last in RK. The order inside MF is fixed, so each
English sentence has one translation. Where a phrase's attachment is open in English ("the man in
the garden"), both readings have the same German order.
"""

from __future__ import annotations

from typing import Any

from nmtkit.demo.constituents import NP, PLURAL, Clause
from nmtkit.demo.lexicon import TABLES
from nmtkit.demo.realise import DETERMINERS, Leaf, Node, Realiser, comma, keyed

CONTRACTIONS = {apart: joined for apart, joined, _ in TABLES["contractions"]}
ENDINGS = {name: forms for name, (_, forms) in keyed("endings").items()}


def ending(paradigm: str, case: str, np: NP) -> str:
    """Return a noun phrase's form in a paradigm."""
    column = 3 if np.number == PLURAL else "mfn".index(np.noun.gender)
    return ENDINGS[paradigm][4 * "nadg".index(case) + column]


class German(Realiser):
    """German as topological fields."""

    side = 1
    labels = {"n": "NP-SB", "a": "NP-OA", "d": "NP-DA", "g": "NP-AG"}

    def determiner(self, np: NP, case: str) -> tuple[Any, str]:
        stem, paradigm, adjectives = DETERMINERS[np.det][1]
        determiner = None
        if np.owner:
            determiner, adjectives = Leaf(np.owner.de + "s", "NNP", np.owner), "strong"
        elif paradigm:
            determiner = Leaf(stem + ending(paradigm, case, np), "DT", np.det)
        return determiner, ending(adjectives, case, np)

    def attached(self, phrase: Node, modifier: Node) -> Node:
        restrictive = modifier.label == "SREL"
        phrase.kids += [comma(), modifier, comma()] if restrictive else [modifier]
        return phrase

    def phrase(self, np: NP, case: str = "") -> Node:
        # preposition and article melt (im, zur), but not before a relative clause
        phrase = super().phrase(np, case)
        if phrase.label == "PP" and not any(isinstance(part, Clause) for part in np.modifiers):
            preposition, inner = phrase.kids
            melted = CONTRACTIONS.get(f"{preposition.form} {inner.kids[0].form}")
            if melted:
                preposition.form = melted
                del inner.kids[0]
        return phrase

    def relative(self, clause: Clause, np: NP) -> Node:
        gap = clause.gap
        pronoun = Leaf(ending("relative", gap.case if gap else "n", np), "WP")
        preposition = gap and gap.de and Leaf(gap.de, "IN", gap.de)
        return self.verb_last("SREL", Node("C", [preposition, pronoun]), clause, gap is not None)

    def middle(self, clause: Clause, subject: bool = True) -> Node:
        """Return the middle field, with the subject or without."""
        fillers: dict[str, list[Node]] = {"pronoun": [], "d": [], "a": [], "prepositional": []}
        for slot, np in sorted(clause.filled, key=lambda filled: filled[0].case):
            if slot is not clause.gap:
                prepositional = np.preposition and np.preposition[1]
                kind = "prepositional" if prepositional else "pronoun" if np.pronoun else slot.case
                fillers[kind].append(self.phrase(np, slot.case))
        reflexive = {"I": "mich", "we": "uns"}.get(clause.subject.pronoun, "sich")
        negated = clause.negated and not any(np.det == "any" for _, np in clause.filled)
        kids = [
            subject and self.noun_phrase(clause.subject, "n"),
            *fillers["pronoun"],
            clause.verb.reflexive and Leaf(reflexive, "PRP", "sich"),
            *fillers["d"],
            clause.front != "time" and self.time(clause),
            clause.adverb and self.word(clause.adverb),
            *fillers["a"],
            negated and self.function("not"),
            *fillers["prepositional"],
            clause.place and self.phrase(clause.place),
            clause.adjective and self.adjective_phrase(clause),
        ]
        return Node("MF", kids)

    def time(self, clause: Clause) -> Any:
        return clause.time and self.word(clause.time)

    def after(self, clause: Clause) -> Node:
        """Return the field after the right bracket, each clause between commas."""
        clauses = self.dependents(clause)
        return Node("NF", [part for inner in clauses for part in (comma(), inner, comma())])

    def verb_last(self, label: str, opening: Node, clause: Clause, subject: bool = True) -> Node:
        """Return a clause with its finite verb last, the separable prefix joined."""
        finite, *others = self.verbs(clause)
        if not others:
            finite.form = clause.verb.de.prefix + finite.form
        bracket = Node("RK", [*others, finite])
        return Node(
            label, [opening, self.middle(clause, subject), bracket, self.after(clause)], clause
        )

    def subordinate(self, conjunction: str, clause: Clause) -> Node:
        return self.verb_last("SSUB", Node("C", [self.function(conjunction)]), clause)

    def infinitive(self, clause: Clause) -> Node:
        bracket = Node("RK", [Leaf(clause.verb.de.zu, "VB", clause.verb)])
        return Node("SINF", [self.middle(clause, False), bracket, self.after(clause)], clause)

    def main_clause(self, clause: Clause) -> Node:
        asked = clause.question and clause.question != "yn"
        first = [self.function(clause.question)] if asked else self.opening(clause)
        finite, *others = self.verbs(clause)
        inverted = bool(first or clause.question)
        prefix = clause.verb.de.prefix if not others else ""
        kids = [
            clause.lead and self.function(clause.lead),
            Node("VF", first[:1] if inverted else [self.noun_phrase(clause.subject, "n")]),
            *first[1:],
            Node("LK", [finite]),
            self.middle(clause, inverted),
            Node("RK", [*others, prefix and Leaf(prefix, "RP", clause.verb)]),
            self.after(clause),
        ]
        return Node("S", kids, clause)


GERMAN = German()
