"""English as constituents, in the labels of the Penn Treebank."""

from __future__ import annotations

import re
from typing import Any

from nmtkit.demo.constituents import NP, Clause
from nmtkit.demo.lexicon import FINITE
from nmtkit.demo.realise import DETERMINERS, Leaf, Node, Realiser, some

VOWEL = re.compile("(?!uni|use|one|eu)([aeiou]|hon|hour)")  # a sound with "an" before it


class English(Realiser):
    """English as constituents."""

    side = 0
    labels = {}

    def determiner(self, np: NP, case: str) -> tuple[Any, str]:
        if np.owner:
            return Node("NP", [self.word(np.owner, "NNP"), Leaf("'s", "POS")]), ""
        form = DETERMINERS[np.det][0][np.number]
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
        finite, *others = super().verbs(clause)
        full = clause.modal == "want" or (clause.modal == "must" and clause.past)
        if full:
            others.insert(0, Leaf("to", "TO"))
        if not (clause.negated or clause.question):
            return [finite, *others]
        base = {"want": "want", "must": "have"}.get(clause.modal, clause.verb.en.base)
        if not full and (others or base == "be"):
            return [finite, *others]
        do = FINITE["do"][3 * clause.past + clause.subject.agreement]
        return [Leaf(do, finite.tag, "do"), Leaf(base, "VB", finite.lex), *others]

    def complements(self, clause: Clause) -> list[Any]:
        """Return what follows the main verb: objects, particle, complements and adverbials."""
        bare: list[Any] = []
        prepositional: list[Any] = []
        for slot, filler in clause.filled:
            if slot is not clause.gap:
                (prepositional if filler.preposition else bare).append(self.phrase(filler, "a"))
            elif slot.en:
                prepositional.append(Leaf(slot.en, "IN", slot.en))
        verb = clause.verb
        particle = verb.particle and Node("PRT", [Leaf(verb.particle, "RP", verb)])
        order = (*bare, particle) if clause.shifted else (particle, *bare)
        predicate = clause.adjective and self.adjective_phrase(clause)
        place = clause.place and self.phrase(clause.place)
        time = clause.front != "time" and self.time(clause)
        return some(*order, *prepositional, predicate, place, time, *self.dependents(clause))

    def infinitive(self, clause: Clause) -> Node:
        verb = Node("VP", [Leaf(clause.verb.en.base, "VB", clause.verb), *self.complements(clause)])
        return Node("S", [Node("VP", [Leaf("to", "TO"), verb])])

    def subordinate(self, conjunction: str, clause: Clause) -> Node:
        body = Node("S", [self.noun_phrase(clause.subject, "n"), *self.predicate(clause)])
        return Node("SBAR", [self.function(conjunction), body], clause)

    def time(self, clause: Clause) -> Any:
        if clause.time is None:
            return None
        first, *others = clause.time.en.split()
        label = "PP" if first in {"in", "on", "at", "after"} else "NP" if others else "ADVP"
        return Node(label, [self.word(clause.time)])

    def predicate(self, clause: Clause, asked: bool = False) -> list[Any]:
        """Return adverb and verb phrase; a question has its finite verb elsewhere."""
        finite, *others = self.verbs(clause)
        adverb = clause.adverb and Node("ADVP", [self.word(clause.adverb)])
        negation: Any = clause.negated and self.function("not")
        if finite.form == "can" and negation:
            finite.form, negation = "cannot", None
        inside = self.complements(clause)
        for word in reversed(others):
            inside = [Node("VP", [word, *inside])]
        if asked:
            return inside
        if others or clause.verb.en.base == "be":
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


ENGLISH = English()
