"""Build trees: English as Penn Treebank constituents, German as topological fields.

A German main clause is VF (prefield: one constituent), LK (left bracket: the finite verb), MF
(middle field), RK (right bracket: prefix, infinitive, participle) and NF (postfield). A subordinate
clause is C (conjunction or relative pronoun), MF, RK with the finite verb last, and NF. The order
inside MF is fixed, so each English sentence has one translation. If a phrase's attachment is
ambiguous in English ("the man in the garden"), both readings have the same German order.
"""

from __future__ import annotations

import re
from typing import Any

from nmtkit.demo.constituents import NP, Clause
from nmtkit.demo.lexicon import FINITE, TABLES
from nmtkit.demo.realise import DETERMINERS, Leaf, Node, Realiser, comma, keyed, some

VOWEL = re.compile("(?!uni)[aeiou]")  # words of the lexicon that take "an"
CONTRACTIONS = {apart: joined for apart, joined, _ in TABLES["contractions"]}
REFLEXIVES = {"I": "mich", "we": "uns"}
# "paradigm-case" -> masculine, feminine, neuter, plural
ENDINGS = {name: forms for name, (_, forms) in keyed("endings").items()}


def ending(paradigm: str, case: str, np: NP) -> str:
    """Return the form of a paradigm that agrees with a noun phrase in a case."""
    return ENDINGS[f"{paradigm}-{case}"][3 if np.plural else "mfn".index(np.noun.gender)]


def nested(words: list[Leaf], inside: list[Any]) -> list[Any]:
    """Return [VP word [VP word ... inside]], with a verb phrase for each word."""
    for word in reversed(words):
        inside = [Node("VP", [word, *inside])]
    return inside


class English(Realiser):
    """English as constituents."""

    side = 0
    order = (
        "particle pronoun-d d pronoun-a a late-particle stranded preposition adjective place time"
        " dependent"
    )
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

    def embedded(self, opening: Any, clause: Clause, subject: bool) -> Node:
        """Return a subordinate or relative clause; `subject`: True if its subject is inside."""
        spoken = subject and self.noun_phrase(clause.subject, "n")
        return Node("SBAR", [opening, Node("S", some(spoken, *self.predicate(clause)))], clause)

    def relative(self, clause: Clause, np: NP) -> Node:
        pronoun = Node("WHNP", [Leaf("who" if np.human else "that", "WP")])
        return self.embedded(pronoun, clause, clause.gap is not None)

    def subordinate(self, conjunction: str, clause: Clause) -> Node:
        return self.embedded(self.function(conjunction), clause, True)

    def infinitive(self, clause: Clause) -> Node:
        verbs = [Leaf("to", "TO"), Leaf(clause.verb.en.base, "VB", clause.verb)]
        return Node("S", nested(verbs, self.complements(clause)))

    def verbs(self, clause: Clause) -> list[Leaf]:
        finite, *nonfinite = super().verbs(clause)
        base, wants = clause.verb.en.base, clause.modal == "want"
        takes_do = wants or not (nonfinite or base == "be")
        if wants or (clause.modal == "must" and clause.past):
            nonfinite.insert(0, Leaf("to", "TO"))
        if takes_do and (clause.negated or clause.question):
            nonfinite.insert(0, Leaf(clause.modal or base, "VB", finite.lex))
            do = FINITE["do"][3 * clause.past + clause.subject.agreement]
            finite = Leaf(do, finite.tag, "do")
        return [finite, *nonfinite]

    def complements(self, clause: Clause) -> list[Any]:
        """Return all that follows the main verb: objects, particle, complements and adverbials."""
        verb, gap = clause.verb, clause.gap
        particle = verb.particle and Node("PRT", [Leaf(verb.particle, "RP", verb)])
        parts = {"late-particle" if clause.shifted else "particle": particle}
        stranded = gap and gap.en and Leaf(gap.en, "IN", gap.en)
        return self.arranged(clause, stranded=stranded, dependent=self.dependent(clause), **parts)

    def time(self, clause: Clause) -> Any:
        if clause.time is None:
            return None
        (label,) = clause.time.classes & {"PP", "NP", "ADVP"}
        return Node(label, [self.word(clause.time)])

    def predicate(self, clause: Clause) -> list[Any]:
        """Return adverb and verb phrase."""
        finite, *nonfinite = self.verbs(clause)
        adverb = clause.adverb and Node("ADVP", [self.word(clause.adverb)])
        negation: Any = clause.negated and self.function("not")
        if finite.form == "can" and negation:
            finite.form, negation = "cannot", None
        inside = nested(nonfinite, self.complements(clause))
        if nonfinite or clause.verb.en.base == "be":
            return [Node("VP", some(finite, negation, adverb, *inside))]
        return some(adverb, Node("VP", some(finite, negation, *inside)))

    def main_clause(self, clause: Clause) -> Node:
        opening = self.opening(clause)
        subject = self.noun_phrase(clause.subject, "n")
        if not clause.question:
            lead = clause.lead and self.function(clause.lead)
            return Node("S", some(lead, *opening, subject, *self.predicate(clause)), clause)
        finite, *nonfinite = self.verbs(clause)
        inside = nested(nonfinite, self.complements(clause))
        question = Node("SQ", [finite, subject, *inside], clause)
        return Node("SBARQ", [Node("WHADVP", opening), question], clause) if opening else question


class German(Realiser):
    """German as topological fields."""

    side = 1
    order = (
        "subject pronoun-a pronoun-d reflexive d time adverb a negation preposition place adjective"
    )
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
        if phrase.label == "PP" and not np.heavy:
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

    def time(self, clause: Clause) -> Any:
        return clause.time and self.word(clause.time)

    def fields(
        self, label: str, opening: list[Any], clause: Clause, bracket: list[Any], subject: bool
    ) -> Node:
        """Return a clause: its opening, the middle field, the right bracket and the postfield.

        Args:
            subject: True if the subject is in the middle field.
        """
        reflexive = REFLEXIVES.get(clause.subject.pronoun, "sich")
        negated = clause.negated and not any(np.det == "any" for _, np in clause.filled)
        middle = self.arranged(
            clause,
            subject=subject and self.noun_phrase(clause.subject, "n"),
            reflexive=clause.verb.de.reflexive and Leaf(reflexive, "PRP", "sich"),
            adverb=clause.adverb and self.word(clause.adverb),
            negation=negated and self.function("not"),
        )
        dependent = self.dependent(clause)
        postfield = [comma(), dependent, comma()] if dependent else []
        fields = [Node("MF", middle), Node("RK", bracket), Node("NF", postfield)]
        return Node(label, opening + fields, clause)

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
        inverted = bool(first or clause.question)
        front = first[:1] if inverted else [self.noun_phrase(clause.subject, "n")]
        lead = clause.lead and self.function(clause.lead)
        opening = some(lead, Node("VF", front), *first[1:], Node("LK", [finite]))
        prefix = clause.verb.de.prefix
        if prefix and not nonfinite:
            nonfinite = [Leaf(prefix, "RP", clause.verb)]
        return self.fields("S", opening, clause, nonfinite, inverted)


ENGLISH, GERMAN = English(), German()
