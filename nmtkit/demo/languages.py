"""Build trees: English as Penn Treebank constituents, German as topological fields.

A German main clause is VF (prefield: one constituent), LK (left bracket: the finite verb), MF
(middle field), RK (right bracket: prefix, infinitive, participle) and NF (postfield). A subordinate
clause is C (conjunction or relative pronoun), MF, RK with the finite verb last, and NF. The order
inside MF is fixed, so each English sentence has one translation. If a phrase's attachment is
ambiguous in English ("the man in the garden"), both readings have the same German order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from nmtkit.demo.constituents import NP, Clause
from nmtkit.demo.lexicon import FINITE, TABLES
from nmtkit.demo.realise import DETERMINERS, Leaf, Node, Realiser, comma, keyed, some

VOWEL = re.compile("(?!uni|use|one|eu)([aeiou]|hon|hour)")  # words that take "an"
CONTRACTIONS = {apart: joined for apart, joined, _ in TABLES["contractions"]}
REFLEXIVES = {"I": "mich", "we": "uns"}
# (paradigm, case) -> masculine, feminine, neuter, plural
ENDINGS = {
    (name, case): forms[at : at + 4]
    for name, (_, forms) in keyed("endings").items()
    for case, at in zip("nadg", range(0, 16, 4), strict=True)
}


def ending(paradigm: str, case: str, np: NP) -> str:
    """Return the form of a paradigm that agrees with a noun phrase in a case."""
    return ENDINGS[paradigm, case][3 if np.plural else "mfn".index(np.noun.gender)]


class English(Realiser):
    """English as constituents."""

    side = 0
    labels = {}

    def determiner(self, np: NP, case: str) -> tuple[Any, str]:
        if np.owner:
            return Node("NP", [self.word(np.owner, "NNP"), Leaf("'s", "POS")]), ""
        form = DETERMINERS[np.det][0][np.plural]
        if form == "a" and VOWEL.match(np.adjectives[0].en if np.adjectives else np.noun.en[0]):
            form = "an"
        return form and Leaf(form, "DT", np.det), ""

    def attached(self, phrase: Node, modifier: Node) -> Node:
        return Node("NP", [phrase, modifier], phrase.info)

    def relative(self, clause: Clause, np: NP) -> Node:
        pronoun = Leaf("who" if np.human else "that", "WP")
        subject = clause.gap and self.noun_phrase(clause.subject, "n")
        body = Node("S", some(subject, *self.predicate(clause)))
        return Node("SBAR", [Node("WHNP", [pronoun]), body], clause)

    def verbs(self, clause: Clause) -> list[Leaf]:
        finite, *nonfinite = super().verbs(clause)
        takes_to = clause.modal == "want" or (clause.modal == "must" and clause.past)
        if takes_to:
            nonfinite.insert(0, Leaf("to", "TO"))
        if not (clause.negated or clause.question):
            return [finite, *nonfinite]
        base = {"want": "want", "must": "have"}.get(clause.modal, clause.verb.en.base)
        if not takes_to and (nonfinite or base == "be"):
            return [finite, *nonfinite]
        do = FINITE["do"][3 * clause.past + clause.subject.agreement]
        return [Leaf(do, finite.tag, "do"), Leaf(base, "VB", finite.lex), *nonfinite]

    def complements(self, clause: Clause) -> list[Any]:
        """Return all that follows the main verb: objects, particle, complements and adverbials."""
        place = clause.place and self.phrase(clause.place)
        time = clause.front != "time" and self.time(clause)
        adjective = clause.adjective and self.adjective_phrase(clause)
        return some(*self.objects(clause), adjective, place, time, *self.dependents(clause))

    def objects(self, clause: Clause) -> list[Any]:
        """Return the fillers of the verb's slots; the particle is before or after the objects."""
        objects: list[Any] = []
        prepositional: list[Any] = []
        for slot, filler in clause.filled:
            if slot is not clause.gap:
                group = prepositional if filler.preposition[0] else objects
                group.append(self.phrase(filler, slot.case))
            elif slot.en:
                prepositional.append(Leaf(slot.en, "IN", slot.en))
        verb = clause.verb
        particle = verb.particle and Node("PRT", [Leaf(verb.particle, "RP", verb)])
        objects.insert(len(objects) if clause.shifted else 0, particle)
        return [*objects, *prepositional]

    def infinitive(self, clause: Clause) -> Node:
        verb = Node("VP", [Leaf(clause.verb.en.base, "VB", clause.verb), *self.complements(clause)])
        return Node("S", [Node("VP", [Leaf("to", "TO"), verb])])

    def subordinate(self, conjunction: str, clause: Clause) -> Node:
        body = Node("S", [self.noun_phrase(clause.subject, "n"), *self.predicate(clause)])
        return Node("SBAR", [self.function(conjunction), body], clause)

    def time(self, clause: Clause) -> Any:
        if clause.time is None:
            return None
        first, *more = clause.time.en.split()
        label = "PP" if first in {"in", "on", "at", "after"} else "NP" if more else "ADVP"
        return Node(label, [self.word(clause.time)])

    def predicate(self, clause: Clause, asked: bool = False) -> list[Any]:
        """Return adverb and verb phrase; for a question, only what follows the finite verb."""
        finite, *nonfinite = self.verbs(clause)
        adverb = clause.adverb and Node("ADVP", [self.word(clause.adverb)])
        negation: Any = clause.negated and self.function("not")
        if finite.form == "can" and negation:
            finite.form, negation = "cannot", None
        inside = self.complements(clause)
        for word in reversed(nonfinite):
            inside = [Node("VP", [word, *inside])]
        if asked:
            return inside
        if nonfinite or clause.verb.en.base == "be":
            return [Node("VP", some(finite, negation, adverb, *inside))]
        return some(adverb, Node("VP", some(finite, negation, *inside)))

    def main_clause(self, clause: Clause) -> Node:
        subject = self.noun_phrase(clause.subject, "n")
        predicate = self.predicate(clause, bool(clause.question))
        if not clause.question:
            lead = clause.lead and self.function(clause.lead)
            return Node("S", some(lead, *self.opening(clause), subject, *predicate), clause)
        body = Node("SQ", [self.verbs(clause)[0], subject, *predicate], clause)
        if clause.question == "yn":
            return body
        return Node("SBARQ", [Node("WHADVP", [self.function(clause.question)]), body], clause)


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
        is_clause = modifier.label == "SREL"
        phrase.kids += [comma(), modifier, comma()] if is_clause else [modifier]
        return phrase

    def phrase(self, np: NP, case: str = "") -> Node:
        # Preposition and article contract (im, zur), but not before a relative clause.
        phrase = super().phrase(np, case)
        if phrase.label == "PP" and not any(isinstance(part, Clause) for part in np.modifiers):
            preposition, inner = phrase.kids
            contracted = CONTRACTIONS.get(f"{preposition.form} {inner.kids[0].form}")
            if contracted:
                preposition.form = contracted
                del inner.kids[0]
        return phrase

    def relative(self, clause: Clause, np: NP) -> Node:
        gap = clause.gap
        pronoun = Leaf(ending("relative", gap.case if gap else "n", np), "WP")
        preposition = gap and gap.de and Leaf(gap.de, "IN", gap.de)
        return self.verb_last("SREL", some(preposition, pronoun), clause, gap is not None)

    def objects(self, clause: Clause) -> dict[str, list[Node]]:
        """Return the fillers of slots by case; pronouns and prepositional phrases have own keys."""
        objects = defaultdict(list)
        for slot, np in clause.filled:
            if slot is not clause.gap:
                bare = slot.case + " pronoun" * bool(np.pronoun)
                kind = "preposition" if np.preposition[1] else bare
                objects[kind].append(self.phrase(np, slot.case))
        return objects

    def middle(self, clause: Clause, subject: bool) -> Node:
        """Return the middle field; `subject`: True if the subject is in it."""
        objects = self.objects(clause)
        reflexive = REFLEXIVES.get(clause.subject.pronoun, "sich")
        negated = clause.negated and not any(np.det == "any" for _, np in clause.filled)
        kids = some(
            subject and self.noun_phrase(clause.subject, "n"),
            *objects["a pronoun"],
            *objects["d pronoun"],
            clause.verb.reflexive and Leaf(reflexive, "PRP", "sich"),
            *objects["d"],
            clause.front != "time" and self.time(clause),
            clause.adverb and self.word(clause.adverb),
            *objects["a"],
            negated and self.function("not"),
            *objects["preposition"],
            clause.place and self.phrase(clause.place),
            clause.adjective and self.adjective_phrase(clause),
        )
        return Node("MF", kids)

    def time(self, clause: Clause) -> Any:
        return clause.time and self.word(clause.time)

    def after(self, clause: Clause) -> Node:
        """Return the postfield: each dependent clause between commas."""
        clauses = self.dependents(clause)
        return Node("NF", [part for inner in clauses for part in (comma(), inner, comma())])

    def fields(
        self, label: str, opening: list[Any], clause: Clause, bracket: list[Any], subject: bool
    ) -> Node:
        """Return a clause: its opening, the middle field, the right bracket and the postfield."""
        middle = self.middle(clause, subject)
        return Node(label, [*opening, middle, Node("RK", bracket), self.after(clause)], clause)

    def verb_last(self, label: str, opening: list[Any], clause: Clause, subject: bool) -> Node:
        """Return a clause with its finite verb last; a separable prefix is joined to the verb."""
        finite, *nonfinite = self.verbs(clause)
        if not nonfinite:
            finite.form = clause.verb.de.prefix + finite.form
        return self.fields(label, [Node("C", opening)], clause, [*nonfinite, finite], subject)

    def subordinate(self, conjunction: str, clause: Clause) -> Node:
        return self.verb_last("SSUB", [self.function(conjunction)], clause, True)

    def infinitive(self, clause: Clause) -> Node:
        return self.fields("SINF", [], clause, [Leaf(clause.verb.de.zu, "VB", clause.verb)], False)

    def main_clause(self, clause: Clause) -> Node:
        finite, *nonfinite = self.verbs(clause)
        first = self.opening(clause)
        if clause.question and clause.question != "yn":
            first = [self.function(clause.question)]
        inverted = bool(first or clause.question)
        front = first[:1] if inverted else [self.noun_phrase(clause.subject, "n")]
        lead = clause.lead and self.function(clause.lead)
        opening = some(lead, Node("VF", front), *first[1:], Node("LK", [finite]))
        prefix = clause.verb.de.prefix
        if prefix and not nonfinite:
            nonfinite = [Leaf(prefix, "RP", clause.verb)]
        return self.fields("S", opening, clause, nonfinite, inverted)


ENGLISH, GERMAN = English(), German()
