"""Contrastive pairs: a right translation beside wrong ones, in the format of Lingeval97.

Lingeval97: Sennrich 2017. `distance` is the difference of the two words' positions (1: neighbours),
so 1 to 16 stand for 0 to 15 words between. `frequency` is the count of the lemma (of the rarer one
of two) in the training text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nmtkit.demo.constituents import NP, Clause
from nmtkit.demo.corpus import Pair, Writer
from nmtkit.demo.languages import ENDINGS, GERMAN
from nmtkit.demo.lexicon import FINITE, TABLES, entries, fitting
from nmtkit.demo.realise import CLOSING, Leaf, Node, leaves, text

DISTANCES = range(1, 17)
NICHT, KEIN = "polarity_particle_nicht_del", "polarity_particle_kein_del"
KINDS = ("np_agreement", NICHT, KEIN, "auxiliary", "verb_particle")
GENDERS = {"m": "masculine", "f": "feminine", "n": "neuter"}
CASES = {label: case for case, label in GERMAN.labels.items()}
PREFIXES: dict[str, set[str]] = defaultdict(set)
"""Infinitive without prefix -> the prefixes that it takes, or with which it means much the same."""
for _infinitive, _prefix, _ in TABLES["like_prefixes"]:
    PREFIXES[_infinitive].add(_prefix)
for _verb in entries("verbs") + entries("copulas"):
    PREFIXES[_verb.de.simple].add(_verb.de.prefix)
Error = dict[str, Any]
"""One wrong translation as Lingeval97 writes it, but with lemmas for its frequency."""
Record = dict[str, Any]
"""A right translation and its errors as Lingeval97 writes them."""
Draw = Callable[[], Clause]
Rule = Callable[[Pair, Any], Error | None]


def record(pair: Pair, errors: list[Error], **context: str) -> Record:
    """Return the record of a pair; `complete` adds its number and the frequencies of lemmas."""
    right = {"source": pair.source, "reference": pair.target, "origin": ""}
    return right | context | {"errors": errors}


def complete(records: list[Record], counts: Counter[str]) -> list[Record]:
    """Return records with numbers and with the training frequencies of their lemmas."""
    for number, right in enumerate(records):
        right["origin"] = f"demo.{number}"
        for wrong in right["errors"]:
            if "frequency" in wrong:
                wrong["frequency"] = min(counts[lemma] for lemma in wrong["frequency"])
    return records


def error(kind: str, pair: Pair, wrong: Leaf, form: str, other: Leaf | None, *lemmas: str) -> Error:
    """Return the error of one wrong word.

    Args:
        form: the wrong form, "" to leave the word out.
        other: the word that `wrong` depends on; None if Lingeval97 gives no distance.
        lemmas: the lemmas whose training frequency is reported.
    """
    words = [replace(leaf, form=form) if leaf is wrong else leaf for leaf in pair.words]
    contrastive = text([leaf for leaf in words if leaf.form])
    translation: Error = {"type": kind, "contrastive": contrastive}
    if other:
        first, last = sorted(map(pair.words.index, (wrong, other)))
        spoken = [leaf.form for leaf in pair.words[first:last] if leaf.form not in CLOSING]
        translation |= {"distance": len(" ".join(spoken).split()), "frequency": lemmas}
    return translation


def word(node: Node, *entries: Any) -> Any:
    """Return the first word of some lexicon entries directly under a node, None for none."""
    leaves = (kid for kid in node.kids if isinstance(kid, Leaf))
    return next((leaf for leaf in leaves if leaf.lex in entries), None)


def find(node: Node, *tags: str) -> Any:
    """Return the first word with one of some tags in the brackets of a clause, None for none."""
    brackets = (kid for kid in node.kids if isinstance(kid, Node) and kid.label in {"LK", "RK"})
    return next((leaf for bracket in brackets for leaf in bracket.kids if leaf.tag in tags), None)


def subject_verb(pair: Pair, node: Node) -> Error | None:
    """Return the finite verb, which has no auxiliary, in the wrong number."""
    clause = node.info
    if node.label not in {"S", "SSUB"} or clause.subject.noun is None:
        return None
    subject = next(part for part in node.nodes() if part.info is clause.subject)
    noun, verb = clause.subject.noun, clause.verb
    head = word(subject, noun)
    finite = find(node, "VBD", "VBP")
    form = verb.de.finite[3 * clause.past + 3 - clause.subject.agreement]
    if node.label == "SSUB":
        form = verb.de.prefix + form
    return error("subj_verb_agreement", pair, finite, form, head, noun.lemma, verb.lemma)


def polarity(pair: Pair, node: Node) -> Error | None:
    """Return the sentence without nicht, or with ein for kein."""
    nicht, kein = word(node, "not"), word(node, "no", "any")
    if nicht:
        return error(NICHT, pair, nicht, "", None)
    if kein and not node.info.plural:
        return error(KEIN, pair, kein, kein.form[1:], None)
    return None


def auxiliary(pair: Pair, node: Node) -> Error | None:
    """Return the perfect with haben for sein, or the other way round."""
    participle = find(node, "VBN")
    # "ist versucht, ..." is right, though its meaning differs
    if participle is None or participle.lex in fitting("verbs", "that if to"):
        return None
    if participle.lex.de.either_auxiliary:
        return None
    finite = find(node, "VBD", "VBP")
    other = "haben" if finite.lex == "sein" else "sein"
    form = FINITE[other][FINITE[finite.lex].index(finite.form)]
    return error("auxiliary", pair, finite, form, participle, participle.lex.lemma)


class Contrast(Writer):
    """Draws contrastive pairs and holds their sentences, so that train avoids them."""

    def noun_phrase(self, pair: Pair, node: Node) -> Error | None:
        """Return a singular definite article of another gender.

        The article is of another case if another gender would give a right plural ("der Soldaten").
        """
        np, article = node.info, word(node, "the")
        if node.label not in CASES or article is None or np.plural:
            return None
        singular, plural = np.noun.de["n"]
        if singular in {plural, "Junge"}:  # "der Jungen" is right for a young woman
            return None
        case = CASES[node.label]
        *articles, of_plural = ENDINGS[f"def-{case}"]
        right = {article.form, of_plural if len({*np.noun.de[case]}) == 1 else ""}
        wrong = self.pick([form for form in articles if form not in right] or ["die"])
        head = word(node, np.noun)
        return error("np_agreement", pair, article, wrong, head, np.noun.lemma)

    def particle(self, pair: Pair, node: Node) -> Error | None:
        """Return a separable prefix that the verb never takes in this sense."""
        prefix = find(node, "RP")
        if prefix is None:
            return None
        verb = prefix.lex
        never = set().union(*PREFIXES.values()) - PREFIXES[verb.de.simple] - {""}
        finite = find(node, "VBD", "VBP")
        wrong = self.pick(sorted(never))
        return error("verb_particle", pair, prefix, wrong, finite, verb.lemma)

    def far_subject(self, distance: int) -> Clause:
        """Return a sentence whose subject and verb are about `distance` apart.

        No clause has an accusative: beside one, a verb in the wrong number could be right for
        object before subject.
        """
        # neighbours and, in a verb-final clause, one word between need no modifier
        clause = self.long_subject(min(5, (distance + 1) // 3) if distance > 2 else 0, plain=True)
        if distance != 2 and self.chance(0.35):
            return clause
        subject, verb = self.someone(), self.pick(fitting("verbs", "that"))
        return Clause(subject, verb, self.base, dependent=("that", clause))

    def collect(
        self, wanted: dict[Any, int], goals: Sequence[Any], draw: Draw, *rules: Rule
    ) -> Iterator[Record]:
        """Yield pairs with errors until no goal is missing, or after 400 draws per missing error.

        Args:
            wanted: error type or distance -> number of errors that are still missing.
            goals: the keys of `wanted` that end the search. With a single goal, a pair has one
                error.
        """
        for _ in range(400 * max(wanted.values())):
            if not any(wanted[goal] for goal in goals):
                return
            self.open_document()
            pair = Pair(draw())
            if not self.held.isdisjoint(pair.sides):
                continue
            errors: list[Error] = []
            nodes = list(pair.de.nodes())
            for wrong in filter(None, [rule(pair, node) for rule in rules for node in nodes]):
                key = wrong["type"] if wrong["type"] in wanted else wrong["distance"]
                if wanted.get(key) and not (errors and len(goals) == 1):
                    wanted[key] -= 1
                    errors.append(wrong)
            if errors:
                self.held.update(pair.sides)
                yield record(pair, errors)

    def agreement(self, size: int) -> list[Record]:
        """Return pairs for every distance of subject and verb, and of the other categories.

        Args:
            size: the demo's training size: 20,000 gives 50 for each distance, 150 of each category.
        """
        scale = min(size, 100_000) / 20_000
        each, of_kind = max(2, round(50 * scale)), max(5, round(150 * scale))
        distances = dict.fromkeys(DISTANCES, each)
        records: list[Record] = []
        for distance in DISTANCES:
            draw = partial(self.far_subject, distance)
            records += self.collect(distances, [distance], draw, subject_verb)
        kinds = dict.fromkeys(KINDS, of_kind)
        rules = (self.noun_phrase, polarity, auxiliary, self.particle)
        usual = self.negation

        def any_sentence() -> Clause:
            self.negation = 0.7 if kinds[KEIN] or kinds[NICHT] else usual
            return self.sentence()

        records += self.collect(kinds, KINDS, any_sentence, *rules)
        self.negation = usual
        return records

    def pronouns(self, size: int) -> list[Record]:
        """Return pairs of context and sentence with "it", with the two wrong pronouns."""
        records = []
        for _ in range(max(30, round(600 * min(size, 100_000) / 20_000))):
            self.open_document()
            context, pair = self.antecedent_and_it()
            filled = context.clause.filled
            thing = next(np.noun for slot, np in filled if "thing" in slot.nouns)
            right = GENDERS[thing.gender]
            errors = [
                {
                    "type": f"{name}_for_{right}",
                    "contrastive": with_gender(pair, gender),
                    "frequency": [thing.lemma],
                }
                for gender, name in GENDERS.items()
                if name != right
            ]
            self.held.update(pair.sides, context.sides)
            before = {"context_src": context.source, "context_ref": context.target}
            records.append(record(pair, errors, **before, gender=right))
        return records


def with_gender(pair: Pair, gender: str) -> str:
    """Return the German sentence with its pronouns for "it" in another gender."""
    infos = (node.info for node in pair.de.nodes())
    it = next(np for np in infos if isinstance(np, NP) and np.pronoun == "it")
    right, it.gender = it.gender, gender
    wrong = text(leaves(GERMAN.sentence(pair.clause)))
    it.gender = right
    return wrong
