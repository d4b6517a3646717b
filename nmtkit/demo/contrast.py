"""Contrastive pairs: a right translation beside wrong ones, in the format of Lingeval97.

Lingeval97: Sennrich 2017. `distance` is the difference of the two words' positions (1: neighbours),
so 1 to 16 stand for 0 to 15 words between. `frequency` is the count of the lemma in the training
text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from nmtkit.demo.constituents import PLURAL, Clause
from nmtkit.demo.corpus import Pair, Writer
from nmtkit.demo.german import ENDINGS, GERMAN
from nmtkit.demo.lexicon import FINITE, entries, fitting
from nmtkit.demo.realise import CLOSING, Leaf, Node, leaves, text

DISTANCES = range(1, 17)
NICHT, KEIN = "polarity_particle_nicht_del", "polarity_particle_kein_del"
GENDERS = {"m": "masculine", "f": "feminine", "n": "neuter"}
LABELS = list(GERMAN.labels.values())
# verbs that form their perfect with sein or haben, by region or meaning
EITHER_AUXILIARY = {"schwimmen", "folgen", "liegen", "stehen", "sitzen", "hängen"}
FINITE_TAGS = {"VBD", "VBP"}


Error = dict[str, Any]
"""One wrong translation as Lingeval97 writes it, but for the lemmas of its frequency."""
Found = tuple[Pair, list[Error], Pair | None]


def position(pair: Pair, word: Leaf) -> int:
    """Return a word's position in the German sentence, punctuation not counted."""
    before = pair.words[: pair.words.index(word)]
    return sum(leaf.form.count(" ") + 1 for leaf in before if leaf.form not in CLOSING)


def error(kind: str, pair: Pair, wrong: Leaf, form: str) -> Error:
    """Return the error of one wrong word.

    Args:
        form: what stands for the word, "" if it is left out.
    """
    words = [replace(leaf, form=form) if leaf is wrong else leaf for leaf in pair.words]
    return {"type": kind, "contrastive": text([leaf for leaf in words if leaf.form])}


def agreement_error(
    kind: str, pair: Pair, wrong: Leaf, form: str, word: Leaf, *lemmas: str
) -> Error:
    """Return the error of a word that depends on another one."""
    distance = abs(position(pair, word) - position(pair, wrong))
    return error(kind, pair, wrong, form) | {"distance": distance, "frequency": lemmas}


def find(node: Node, tags: set[str], *fields: str) -> Leaf | None:
    """Return the first word with one of some tags under a node, or under fields of a clause."""
    nodes = [kid for kid in node.kids if isinstance(kid, Node) and kid.label in fields]
    for inner in nodes if fields else [node]:
        for leaf in inner.kids:
            if isinstance(leaf, Leaf) and leaf.tag in tags:
                return leaf
    return None


def subject_verb(pair: Pair, node: Node) -> Error | None:
    """Return the finite verb in the wrong number.

    Only in clauses without accusative: beside one, the form could be right for object before
    subject.
    """
    clause = node.info
    if node.label not in {"S", "SSUB"} or clause.subject.noun is None:
        return None
    if any(slot.role == "acc" for slot, _ in clause.filled):
        return None
    subject = next(part for part in node.nodes() if part.info is clause.subject)
    head, finite = find(subject, {"NN"}), find(node, FINITE_TAGS, "LK", "RK")
    if head is None or finite is None:
        return None
    auxiliary = isinstance(finite.lex, str)
    forms = FINITE[finite.lex] if auxiliary else finite.lex.de.finite
    form = forms[3 * clause.past + 3 - clause.subject.agreement]
    if node.label == "SSUB" and not auxiliary:
        form = clause.verb.de.prefix + form
    lemmas = (clause.subject.noun.lemma, clause.verb.lemma)
    return agreement_error("subj_verb_agreement", pair, finite, form, head, *lemmas)


def polarity(pair: Pair, node: Node) -> Error | None:
    """Return nicht deleted, or kein turned into ein."""
    nicht, kein = find(node, {"RB"}), find(node, {"DT"})
    if nicht and nicht.lex == "not":
        return error(NICHT, pair, nicht, "")
    if kein and kein.lex in {"no", "any"} and node.info.number != PLURAL:
        return error(KEIN, pair, kein, kein.form[1:])
    return None


def auxiliary(pair: Pair, node: Node) -> Error | None:
    """Return the perfect with haben for sein, or the other way round."""
    participle, finite = find(node, {"VBN"}, "RK"), find(node, FINITE_TAGS, "LK", "RK")
    # "ist versucht, ..." is German, though it means another thing
    if participle is None or finite is None or node.info.content:
        return None
    lemma = participle.lex.lemma
    if lemma in EITHER_AUXILIARY:
        return None
    other = "haben" if finite.lex == "sein" else "sein"
    form = FINITE[other][FINITE[finite.lex].index(finite.form)]
    return agreement_error("auxiliary", pair, finite, form, participle, lemma)


class Contrast(Writer):
    """Draws contrastive pairs and holds their sentences, so that train avoids them."""

    def __init__(self, seed: int, stream: int, held: set[str]) -> None:
        super().__init__(seed, stream, held)
        self.prefixes: dict[str, set[str]] = defaultdict(set)
        for verb in entries("verbs"):
            self.prefixes[verb.de.simple].add(verb.de.prefix)

    def noun_phrase(self, pair: Pair, node: Node) -> Error | None:
        """Return a singular definite article of another gender."""
        if node.label not in LABELS:
            return None
        np, article, head = node.info, find(node, {"DT"}), find(node, {"NN"})
        if article is None or head is None:
            return None
        singular, plural = np.noun.de["n"]
        # "der Jungen" is German of a young woman
        if article.lex != "the" or np.number == PLURAL or singular in {plural, "Junge"}:
            return None
        first = 4 * LABELS.index(node.label)
        articles = ENDINGS["def"][first : first + 3]
        wrong = self.pick([form for form in articles if form != article.form])
        return agreement_error("np_agreement", pair, article, wrong, head, np.noun.lemma)

    def particle(self, pair: Pair, node: Node) -> Error | None:
        """Return a separable prefix that the verb never takes."""
        prefix, finite = find(node, {"RP"}, "RK"), find(node, FINITE_TAGS, "LK")
        if prefix is None or finite is None:
            return None
        verb = prefix.lex
        every = set().union(*self.prefixes.values())
        wrong = self.pick(sorted(every - self.prefixes[verb.de.simple] - {""}))
        return agreement_error("verb_particle", pair, prefix, wrong, finite, verb.lemma)

    def far_subject(self, distance: int) -> Clause:
        """Return a sentence whose subject and verb are about `distance` apart."""
        # neighbours and, in a verb-final clause, one word between need no modifier
        clause = self.long_subject(min(5, (distance + 1) // 3) if distance > 2 else 0, plain=True)
        if distance != 2 and self.chance(0.35):
            return clause
        clause.front = ""
        verb = (self.someone(), self.pick(fitting("verbs", "that")))
        return Clause(*verb, self.base, content=("that", clause))

    def collect(
        self,
        wanted: dict[Any, int],
        goals: Iterable[Any],
        draw: Callable[[], Clause],
        rules: Iterable[Callable[[Pair, Node], Error | None]],
        most: int,
        tries: int,
    ) -> Iterator[Found]:
        """Yield pairs with errors until all goals are reached.

        Args:
            wanted: error type or distance -> number that is still missing.
            goals: those of `wanted` that end the search. most: errors of one sentence.
        """
        for _ in range(tries):
            if not any(wanted[goal] for goal in goals):
                return
            self.open_document()
            pair = Pair(draw())
            if not self.held.isdisjoint((pair.source, pair.target)):
                continue
            errors: list[Error] = []
            nodes = list(pair.de.nodes())
            found = [rule(pair, node) for rule in rules for node in nodes]
            for wrong in filter(None, found):
                key = wrong["type"] if wrong["type"] in wanted else wrong["distance"]
                if wanted.get(key) and len(errors) < most:
                    wanted[key] -= 1
                    errors.append(wrong)
            if errors:
                self.hold(pair)
                yield pair, errors, None

    def agreement(self, size: int) -> list[Found]:
        """Return pairs for every distance of subject and verb, and of the other categories.

        Args:
            size: the demo's training size: 20,000 gives 50 for each distance, 150 of each category.
        """
        scale = min(size, 100_000) / 20_000
        each = max(2, round(50 * scale))
        wanted: dict[Any, int] = dict.fromkeys(DISTANCES, each)
        found: list[Found] = []
        for distance in DISTANCES:
            draw = partial(self.far_subject, distance)
            found += self.collect(wanted, [distance], draw, [subject_verb], 1, 400 * each)
        each = max(5, round(150 * scale))
        kinds = ("np_agreement", NICHT, KEIN, "auxiliary", "verb_particle")
        wanted, usual = dict.fromkeys(kinds, each), self.negation

        def any_sentence() -> Clause:
            self.negation = 0.7 if wanted[KEIN] or wanted[NICHT] else usual
            return self.sentence()

        rules = (self.noun_phrase, polarity, auxiliary, self.particle)
        found += self.collect(wanted, kinds, any_sentence, rules, len(kinds) * each, 400 * each)
        self.negation = usual
        return found

    def pronouns(self, size: int) -> list[Found]:
        """Return pairs of context and sentence with "it", with the two wrong pronouns."""
        found: list[Found] = []
        for _ in range(max(30, round(600 * min(size, 100_000) / 20_000))):
            self.open_document()
            context, pair = self.antecedent_and_it()
            nouns = (np.noun for _, np in context.clause.filled if np.noun)
            lemma = next(noun.lemma for noun in nouns if "thing" in noun.classes)
            right = GENDERS[pair.gender]
            errors = [
                {
                    "type": f"{name}_for_{right}",
                    "contrastive": with_gender(pair, gender),
                    "frequency": [lemma],
                }
                for gender, name in GENDERS.items()
                if name != right
            ]
            self.hold(pair, context)
            found.append((pair, errors, context))
        return found


def with_gender(pair: Pair, gender: str) -> str:
    """Return the German sentence with its pronouns for "it" in another gender."""
    its = [node.info for node in pair.de.nodes() if getattr(node.info, "pronoun", "") == "it"]
    for np in its:
        np.gender = gender
    other = text(leaves(GERMAN.sentence(pair.clause)))
    for np in its:
        np.gender = pair.gender
    return other


def records(found: list[Found], counts: Counter[str]) -> list[dict[str, Any]]:
    """Return pairs as Lingeval97's JSON has them, with the sentence before where there is one."""
    records: list[dict[str, Any]] = []
    for number, (pair, errors, context) in enumerate(found):
        record = {"source": pair.source, "reference": pair.target, "origin": f"demo.{number}"}
        if context:
            record |= {"context_src": context.source, "context_ref": context.target}
            record["gender"] = GENDERS[pair.gender]
        for wrong in errors:
            if "frequency" in wrong:
                wrong["frequency"] = min(counts[lemma] for lemma in wrong["frequency"])
        records.append(record | {"errors": errors})
    return records
