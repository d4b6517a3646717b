"""Realising what was drawn as trees: English in the Penn Treebank's labels, German in fields.

A German main clause: VF (one constituent) LK (the finite verb) MF RK (prefix, infinitive,
participle) NF. A subordinate one: C MF RK NF with the finite verb last in RK. The order inside MF
is fixed, so each English sentence has one translation. Where a phrase's attachment is open in
English ("the man in the garden"), both readings have the same German order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from nmtkit.demo.constituents import NP, PLURAL, Clause, Leaf, Node
from nmtkit.demo.lexicon import FINITE, TABLES, Word


def keyed(name: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return the first word of each line -> the English words after it, the German words."""
    sides = ([[form.strip("-") for form in side.split()] for side in line] for line in TABLES[name])
    return {key: (english, german) for (key, *english), german, _ in sides}


PRONOUNS, DETERMINERS, VERB_GROUPS = map(keyed, ("pronouns", "determiners", "verb_groups"))
FUNCTION_WORDS = {key: (key.strip("?!"), de, tag) for key, de, tag in TABLES["function_words"]}
CONTRACTIONS = {apart: joined for apart, joined, _ in TABLES["contractions"]}
ENDINGS = {
    name: {"nadg"[at]: row.replace("-", "").split(" ") for at, row in enumerate(rows.split(", "))}
    for name, rows, _ in TABLES["endings"]
}
VOWEL = re.compile("(?!uni|use|one|eu)([aeiou]|hon|hour)")  # a sound with "an" before it
TAGS = {"base": "VB", "infinitive": "VB", "participle": "VBN", "ing": "VBG"}


def node(label: str, *kids: Any, info: Any = None) -> Node:
    """Return a constituent of parts; what is empty is left out."""
    return Node(label, list(filter(None, kids)), info)


def comma() -> Leaf:
    """Return a comma."""
    return Leaf(",", ",")


def column(np: NP) -> int:
    """Return a noun phrase's column in the German paradigms."""
    return 3 if np.number == PLURAL else "mfn".index(np.noun.gender)


class Realiser:
    """What both languages do alike; `side` picks from pairs of English and German."""

    side: int
    labels: dict[str, str]
    determiner: Callable[..., tuple[Any, str]]
    attached: Callable[..., Node]
    relative: Callable[..., Node]
    subordinate: Callable[..., Node]
    infinitive: Callable[..., Node]
    main_clause: Callable[..., Node]
    time: Callable[..., Node | Leaf]

    def word(self, entry: Word, tag: str = "RB") -> Leaf:
        """Return an entry's word."""
        return Leaf(entry.de if self.side else entry.en, tag, entry)

    def function(self, key: str) -> Leaf:
        """Return a function word."""
        return Leaf(FUNCTION_WORDS[key][self.side], FUNCTION_WORDS[key][2], key)

    def noun_phrase(self, np: NP, case: str, label: str = "") -> Node:
        """Return a noun phrase in a case (n a d g), labelled with the case unless told how."""
        label = label or self.labels.get(case, "NP")
        if np.parts:
            first, second = (self.noun_phrase(part, case, "NP") for part in np.parts)
            return Node(label, [first, Leaf(("and", "und")[self.side], "CC", "and"), second], np)
        if np.pronoun:
            forms = PRONOUNS[np.pronoun + np.gender][self.side]
            return Node(label, [Leaf(forms["nad".index(case)], "PRP", np.pronoun)], np)
        if np.name:
            return Node(label, [self.word(np.name, "NNP")], np)
        determiner, ending = self.determiner(np, case)
        kids = [determiner] if determiner else []
        if np.numeral:
            kids.append(self.word(np.numeral, "CD"))
        for adjective in np.adjectives:
            stem = adjective.stem if self.side else adjective.en
            kids.append(Leaf(stem + ending, "JJ", adjective))
        forms = np.noun.de[case] if self.side else np.noun.en
        phrase = Node(label, [*kids, Leaf(forms[np.number], "NN", np.noun)], np)
        for modifier in np.modifiers:
            relative = isinstance(modifier, Clause)
            part = self.relative(modifier, np) if relative else self.phrase(modifier, "g")
            phrase = self.attached(phrase, part)
        return phrase

    def phrase(self, np: NP, case: str = "") -> Node:
        """Return a prepositional phrase, or a noun phrase if this language has no preposition."""
        if np.preposition is None:
            return self.noun_phrase(np, case)
        english, german, case = np.preposition
        preposition = german if self.side else english
        if not preposition:
            return self.noun_phrase(np, case)
        return Node("PP", [Leaf(preposition, "IN", english), self.noun_phrase(np, case, "NP")])

    def adjective_phrase(self, clause: Clause) -> Node:
        """Return the predicate adjective, with its degree or what it is compared to."""
        adjective = clause.adjective
        if clause.than:
            than = [self.function("than"), self.noun_phrase(clause.than, "n", "NP")]
            comparative = Leaf(adjective.comparative[self.side], "JJR", adjective)
            return Node("ADJP", [comparative, Node("PP", than)])
        degree = clause.degree and self.word(clause.degree)
        return node("ADJP", degree, self.word(adjective, "JJ"))

    def verbs(self, clause: Clause, agreement: int | None = None) -> list[Leaf]:
        """Return the finite verb and the other one, if there is one.

        Args:
            agreement: another agreement than the subject's (for wrong forms on purpose).
        """
        verb, past = clause.verb, clause.past
        forms = verb.de if self.side else verb.en
        cell = 3 * past + (clause.subject.agreement if agreement is None else agreement)
        tag = "VBD" if past else "VBP"
        groups = VERB_GROUPS.get(clause.modal or clause.tense)
        auxiliary, form = groups[self.side] if groups else ("", "")
        if not auxiliary:
            return [Leaf(forms.finite[cell], tag, verb)]
        if auxiliary == "haben" and verb.de.sein:
            auxiliary = "sein"
        main = Leaf(getattr(forms, form), TAGS[form], verb)
        return [Leaf(FINITE[auxiliary][cell], tag, auxiliary), main]

    def opening(self, clause: Clause) -> list[Node | Leaf]:
        """Return what stands before the subject in English, before the verb in German."""
        if clause.front == "time" and clause.time:
            return [self.time(clause)]
        if clause.front == "sub" and clause.adjunct:
            return [self.subordinate(*clause.adjunct), comma()]
        return [Leaf(("then", "dann")[self.side], "RB", "then")] if clause.front == "then" else []

    def dependents(self, clause: Clause) -> list[Node]:
        """Return the clauses that end a clause."""
        dependents = []
        if clause.content:
            kind, inner = clause.content
            to = kind == "to"
            dependents.append(self.infinitive(inner) if to else self.subordinate(kind, inner))
        if clause.adjunct and clause.front != "sub":
            dependents.append(self.subordinate(*clause.adjunct))
        return dependents

    def sentence(self, clause: Clause) -> Node:
        """Return a whole sentence with its full stop or question mark."""
        top = self.main_clause(clause)
        if clause.second:
            conjunction, other = clause.second
            pause = conjunction == "but" and comma()
            link = self.function(conjunction)
            top = node("COORD", top, pause, link, self.main_clause(other))
        top.kids.append(Leaf("?" if clause.question else ".", "."))
        return Node("ROOT", [top])


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
        pronoun = Leaf("who", "WP") if np.human else Leaf("that", "WDT")
        subject = clause.gap and self.noun_phrase(clause.subject, "n")
        body = node("S", subject, *self.predicate(clause))
        return Node("SBAR", [Node("WHNP", [pronoun]), body], clause)

    def verbs(self, clause: Clause, agreement: int | None = None) -> list[Leaf]:
        finite, *others = super().verbs(clause, agreement)
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

    def complements(self, clause: Clause) -> list[Node | Leaf]:
        """Return what follows the main verb: objects, particle, complements and adverbials."""
        bare: list[Node | Leaf] = []
        prepositional: list[Node | Leaf] = []
        for slot, filler in clause.filled:
            if slot is not clause.gap:
                (prepositional if filler.preposition else bare).append(self.phrase(filler, "a"))
            elif slot.en:
                prepositional.append(Leaf(slot.en, "IN", slot.en))
        verb = clause.verb
        particle = verb.particle and node("PRT", Leaf(verb.particle, "RP", verb))
        order = (*bare, particle) if clause.shifted else (particle, *bare)
        predicate = clause.adjective and self.adjective_phrase(clause)
        place = clause.place and self.phrase(clause.place)
        time = clause.front != "time" and self.time(clause)
        parts = (*order, *prepositional, predicate, place, time, *self.dependents(clause))
        return [part for part in parts if part]

    def infinitive(self, clause: Clause) -> Node:
        verb = Node("VP", [Leaf(clause.verb.en.base, "VB", clause.verb), *self.complements(clause)])
        return Node("S", [Node("VP", [Leaf("to", "TO"), verb])])

    def subordinate(self, conjunction: str, clause: Clause) -> Node:
        body = Node("S", [self.noun_phrase(clause.subject, "n"), *self.predicate(clause)])
        return node("SBAR", self.function(conjunction), body, info=clause)

    def time(self, clause: Clause) -> Any:
        if clause.time is None:
            return None
        first, *others = clause.time.en.split()
        label = "PP" if first in {"in", "on", "at", "after"} else "NP" if others else "ADVP"
        return Node(label, [self.word(clause.time)])

    def predicate(self, clause: Clause, asked: bool = False) -> list[Node | Leaf]:
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
            return [node("VP", finite, negation, adverb, *inside)]
        verb_phrase = node("VP", finite, negation, *inside)
        return [adverb, verb_phrase] if adverb else [verb_phrase]

    def main_clause(self, clause: Clause) -> Node:
        subject = self.noun_phrase(clause.subject, "n")
        predicate = self.predicate(clause, bool(clause.question))
        if not clause.question:
            lead = clause.lead and self.function(clause.lead)
            return node("S", lead, *self.opening(clause), subject, *predicate, info=clause)
        body = Node("SQ", [self.verbs(clause)[0], subject, *predicate], clause)
        if clause.question == "yn":
            return body
        return Node("SBARQ", [node("WHADVP", self.function(clause.question)), body], clause)


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
            determiner = Leaf(stem + ENDINGS[paradigm][case][column(np)], "DT", np.det)
        return determiner, ENDINGS[adjectives][case][column(np)]

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
        pronoun = Leaf(ENDINGS["relative"][gap.case if gap else "n"][column(np)], "WP")
        preposition = gap and gap.de and Leaf(gap.de, "IN", gap.de)
        return self.verb_last("SREL", node("C", preposition, pronoun), clause, gap is not None)

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
        return node(
            "MF",
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
        )

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
        bracket = node("RK", *others, finite)
        return Node(
            label, [opening, self.middle(clause, subject), bracket, self.after(clause)], clause
        )

    def subordinate(self, conjunction: str, clause: Clause) -> Node:
        return self.verb_last("SSUB", node("C", self.function(conjunction)), clause)

    def infinitive(self, clause: Clause) -> Node:
        bracket = Node("RK", [Leaf(clause.verb.de.zu, "VB", clause.verb)])
        return Node("SINF", [self.middle(clause, False), bracket, self.after(clause)], clause)

    def main_clause(self, clause: Clause) -> Node:
        asked = clause.question and clause.question != "yn"
        first = [self.function(clause.question)] if asked else self.opening(clause)
        finite, *others = self.verbs(clause)
        inverted = bool(first or clause.question)
        prefix = clause.verb.de.prefix if not others else ""
        return node(
            "S",
            clause.lead and self.function(clause.lead),
            Node("VF", first[:1] if inverted else [self.noun_phrase(clause.subject, "n")]),
            *first[1:],
            Node("LK", [finite]),
            self.middle(clause, inverted),
            node("RK", *others, prefix and Leaf(prefix, "RP", clause.verb)),
            self.after(clause),
            info=clause,
        )


ENGLISH, GERMAN = English(), German()
