"""Contrastive pairs: a right translation beside wrong ones, in Lingeval97's JSON format (Sennrich 2017), and pronoun pairs with context.

`distance` is Lingeval97's: the difference of the two words' positions (1 = neighbours), words separated by spaces; so 1 to 16 stands for
0 to 15 words between. `frequency` is the count of the lemma (of the rarer one of two) in the training text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from nmtkit.demo import german, speak_de
from nmtkit.demo.corpus import Pair, Writer
from nmtkit.demo.draw import Draw
from nmtkit.demo.lexicon import Verb, lexicon
from nmtkit.demo.phrases import NP, PLURAL, Clause
from nmtkit.demo.tree import CLOSING, Leaf, Node, leaves, text

DISTANCES = range(1, 17)
GENDERS = {"m": "masculine", "f": "feminine", "n": "neuter"}
# verbs that form their perfect with sein or haben, by region or meaning
EITHER_AUXILIARY = {"schwimmen", "folgen", "liegen", "stehen", "sitzen", "hängen"}


class Error:
    """One wrong translation; `lemmas` are those whose training frequency is reported."""

    __slots__ = ("contrastive", "distance", "lemmas", "type")

    def __init__(self, kind: str, contrastive: str, distance: int | None = None, lemmas: tuple[str, ...] = ()) -> None:
        self.type, self.contrastive, self.distance, self.lemmas = kind, contrastive, distance, lemmas

    def record(self, counts: Counter[str]) -> dict[str, Any]:
        """The error as Lingeval97 writes it."""
        found: dict[str, Any] = {"type": self.type, "contrastive": self.contrastive}
        if self.distance is not None:
            found["distance"] = self.distance
        if self.lemmas:
            found["frequency"] = min(counts[lemma] for lemma in self.lemmas)
        return found


def positions(words: list[Leaf]) -> dict[int, int]:
    """Position of each word (by `id`) in the sentence as written, punctuation not counted."""
    found, at = {}, 0
    for leaf in words:
        if leaf.form not in CLOSING:
            found[id(leaf)] = at
            at += leaf.form.count(" ") + 1
    return found


def replaced(words: list[Leaf], old: Leaf, form: str) -> str:
    """The sentence with one word replaced."""
    return text([Leaf(form, leaf.tag) if leaf is old else leaf for leaf in words])


def fields(node: Node) -> dict[str, Node]:
    """A clause's topological fields by label."""
    return {kid.label: kid for kid in node.kids if isinstance(kid, Node)}


def clauses(pair: Pair) -> Iterator[tuple[Node, Clause]]:
    """The clauses with a subject and a finite verb of their own."""
    for node in pair.de.nodes():
        if node.label in {"S", "SSUB"} and isinstance(node.info, Clause):
            yield node, node.info


def find_role(node: Node, role: str) -> Leaf | None:
    """A leaf of a role directly under a node."""
    return next((kid for kid in node.kids if isinstance(kid, Leaf) and kid.role == role), None)


def subject_verb(pair: Pair) -> Iterator[Error]:
    """Subject-verb agreement: the finite verb in the wrong number.

    Only clauses without accusative object: beside one, the wrong form could be right for object before subject.
    """
    where = positions(pair.de_leaves)
    for node, clause in clauses(pair):
        if any(complement.case == "a" and complement.role == "acc" for complement, _ in clause.filled) or clause.subject.agreement == 0:
            continue
        subject = next((n for part in ("VF", "MF") for n in fields(node).get(part, node).nodes() if n.info is clause.subject), None)
        head = find_role(subject, "head") if subject else None
        finite = find_role(fields(node)["LK" if node.label == "S" else "RK"], "fin")
        if head is None or finite is None or clause.subject.noun is None:
            continue
        wrong, other = speak_de.verbs(clause, 3 - clause.subject.agreement)
        form = wrong.form if node.label == "S" or other else clause.verb.de.prefix + wrong.form
        distance = abs(where[id(finite)] - where[id(head)])
        yield Error("subj_verb_agreement", replaced(pair.de_leaves, finite, form), distance, (clause.subject.noun.lemma, clause.verb.lemma))


def noun_phrase(pair: Pair, draw: Draw) -> Iterator[Error]:
    """Noun phrase agreement: a singular definite article of another gender (nouns alike in the plural are left out)."""
    where = positions(pair.de_leaves)
    for node in pair.de.nodes():
        np = node.info
        article = find_role(node, "det")
        if not isinstance(np, NP) or np.noun is None or np.number == PLURAL or article is None or article.lex != "the" or article.tag != "ART":
            continue
        if np.noun.de["n"][0] == np.noun.de["n"][1] or np.noun.lemma == "Junge":  # "der Jungen" is German of a young woman
            continue
        case = next(c for c, label in (("n", "NP-SB"), ("a", "NP-OA"), ("d", "NP-DA"), ("g", "NP-AG"), ("", node.label)) if label == node.label)
        if not case:
            continue
        forms = [form for form in german.DEFINITE[case][:3] if form != article.form]
        head = find_role(node, "head")
        if head is not None and forms:
            yield Error("np_agreement", replaced(pair.de_leaves, article, draw.pick(forms)), where[id(head)] - where[id(article)], (np.noun.lemma,))


def polarity(pair: Pair) -> Iterator[Error]:
    """Polarity: nicht deleted, kein made ein."""
    for leaf in pair.de_leaves:
        if leaf.role == "neg":
            yield Error("polarity_particle_nicht_del", text([other for other in pair.de_leaves if other is not leaf]))
        elif leaf.form.startswith("kein") and leaf.lex in {"no", "not a"}:
            node = next(node for node in pair.de.nodes() if leaf in node.kids)
            if node.info.number != PLURAL:
                yield Error("polarity_particle_kein_del", replaced(pair.de_leaves, leaf, leaf.form[1:]))


def auxiliary(pair: Pair) -> Iterator[Error]:
    """The perfect's auxiliary: haben for sein and the other way round."""
    where = positions(pair.de_leaves)
    for node in pair.de.nodes():
        parts = fields(node)
        if "RK" not in parts:
            continue
        finite = find_role(parts.get("LK", parts["RK"]), "fin")
        participle = find_role(parts["RK"], "verb")
        if finite is None or participle is None or participle.tag != "VVPP" or participle.lex.lemma in EITHER_AUXILIARY:
            continue
        if isinstance(node.info, Clause) and node.info.content:  # "ist versucht, ..." is German, though it means another thing
            continue
        right, wrong = (german.SEIN, german.HABEN) if finite.lex == "sein" else (german.HABEN, german.SEIN)
        form = next(w for old, new in zip(right, wrong, strict=True) for o, w in zip(old, new, strict=True) if o == finite.form)
        distance = abs(where[id(finite)] - where[id(participle)])
        yield Error("auxiliary", replaced(pair.de_leaves, finite, form), distance, (participle.lex.lemma,))


def particle(pair: Pair, draw: Draw, prefixes: dict[str, set[str]]) -> Iterator[Error]:
    """Separable prefix: one that the verb never takes."""
    where = positions(pair.de_leaves)
    for node in pair.de.nodes():
        parts = fields(node)
        prefix = find_role(parts["RK"], "prefix") if "RK" in parts else None
        finite = find_role(parts["LK"], "fin") if "LK" in parts else None
        if prefix is None or finite is None:
            continue
        verb: Verb = prefix.lex
        wrong = draw.pick(sorted(set().union(*prefixes.values()) - prefixes[verb.de.simple]))
        yield Error("verb_particle", replaced(pair.de_leaves, prefix, wrong), where[id(prefix)] - where[id(finite)], (verb.lemma,))


class Contrastive:
    """Draws contrastive pairs. Their sentences are added to `held`, so that train avoids them.

    Args:
        draw: the stream of choices. held: sentences that must not be drawn; extended.
    """

    def __init__(self, draw: Draw, held: set[str]) -> None:
        self.draw, self.held = draw, held
        self.writer = Writer(draw, held)
        words = lexicon()
        self.prefixes: dict[str, set[str]] = {}
        for verb in [*words.verbs, *words.clause_verbs]:
            self.prefixes.setdefault(verb.de.simple, set()).add(verb.de.prefix)
        for found in self.prefixes.values():
            found.discard("")

    def hold(self, *pairs: Pair) -> None:
        """Keep sentences out of train."""
        for pair in pairs:
            self.held.update((pair.source, pair.target))

    def far_subject(self, distance: int) -> Clause:
        """A sentence whose subject and verb are about `distance` apart: as main clause, or verb-final under another."""
        draw, grammar = self.draw, self.writer.grammar
        # the nearest need no modifier: neighbours in a main clause, one word between in a verb-final one ("dass der Lehrer müde war")
        clause = grammar.long_subject(min(5, (distance + 1) // 3), plain=True) if distance > 2 else grammar.long_subject(0, plain=True)
        if distance != 2 and draw.chance(0.35):
            return clause
        outer = Clause(grammar.someone(), draw.pick([v for v in grammar.words.clause_verbs if "that" in v.clauses]), grammar.base)
        clause.front = ""
        outer.content = ("that", clause)
        return outer

    def at_distances(self, each: int) -> list[tuple[Pair, list[Error]]]:
        """Subject-verb pairs, `each` for every distance from 1 to 16 (fewer only if 400 draws for one do not find it)."""
        wanted = {distance: each for distance in DISTANCES}
        found: list[tuple[Pair, list[Error]]] = []
        for distance in DISTANCES:
            for _ in range(400 * each):
                if not wanted[distance]:
                    break
                self.writer.grammar.open_document()
                pair = Pair(self.far_subject(distance))
                if pair.source in self.held or pair.target in self.held:
                    continue
                errors = [error for error in subject_verb(pair) if error.distance is not None and wanted.get(error.distance)]
                if errors:
                    for error in errors[:1]:
                        wanted[error.distance or 0] -= 1
                    self.hold(pair)
                    found.append((pair, errors[:1]))
        return found

    def of_kinds(self, each: int) -> list[tuple[Pair, list[Error]]]:
        """Pairs of the other categories, `each` of every one; a sentence may serve several."""
        wanted = dict.fromkeys(("np_agreement", "polarity_particle_nicht_del", "polarity_particle_kein_del", "auxiliary", "verb_particle"), each)
        makers: tuple[Callable[[Pair], Iterator[Error]], ...] = (
            lambda pair: noun_phrase(pair, self.draw),
            polarity,
            auxiliary,
            lambda pair: particle(pair, self.draw, self.prefixes),
        )
        found: list[tuple[Pair, list[Error]]] = []
        grammar = self.writer.grammar
        usual = grammar.negation
        for _ in range(400 * each):
            if not any(wanted.values()):
                break
            grammar.open_document()
            scarce = wanted["polarity_particle_kein_del"] or wanted["polarity_particle_nicht_del"]
            grammar.negation = 0.7 if scarce else usual
            pair = Pair(grammar.sentence())
            if pair.source in self.held or pair.target in self.held:
                continue
            errors = []
            for maker in makers:
                for error in maker(pair):
                    if wanted[error.type]:
                        wanted[error.type] -= 1
                        errors.append(error)
            if errors:
                self.hold(pair)
                found.append((pair, errors))
        grammar.negation = usual
        return found

    def pronouns(self, total: int) -> list[tuple[Pair, Pair, list[Error]]]:
        """Pairs of context and sentence with "it", a third of each gender, with the two wrong pronouns."""
        found = []
        grammar = self.writer.grammar
        for _ in range(total):
            grammar.open_document()
            gender = self.writer.genders.next()
            context = self.writer.free(lambda gender=gender: grammar.antecedent(gender))  # type: ignore[misc]
            pair = self.writer.free(lambda gender=gender: grammar.about_it(gender), gender)  # type: ignore[misc]
            lemma = next(np.noun.lemma for _, np in context.clause.filled if isinstance(np, NP) and np.noun and "thing" in np.noun.classes)
            errors = [
                Error(f"{name}_for_{GENDERS[gender]}", with_gender(pair, other), None, (lemma,)) for other, name in GENDERS.items() if other != gender
            ]
            self.hold(pair, context)
            found.append((context, pair, errors))
        return found


def with_gender(pair: Pair, gender: str) -> str:
    """The German sentence with its pronouns for "it" in another gender."""
    its = [node.info for node in pair.de.nodes() if isinstance(node.info, NP) and node.info.pronoun == "it"]
    for np in its:
        np.gender = gender
    other = text(leaves(speak_de.sentence(pair.clause)))
    for np in its:
        np.gender = pair.gender
    return other


def agreement_records(found: list[tuple[Pair, list[Error]]], counts: Counter[str]) -> list[dict[str, Any]]:
    """The pairs as Lingeval97's JSON has them."""
    return [
        {"source": pair.source, "reference": pair.target, "origin": f"demo.{number}", "errors": [error.record(counts) for error in errors]}
        for number, (pair, errors) in enumerate(found)
    ]


def pronoun_records(found: list[tuple[Pair, Pair, list[Error]]], counts: Counter[str]) -> list[dict[str, Any]]:
    """The pronoun pairs: Lingeval97's fields, the sentence before on both sides, the antecedent's gender."""
    return [
        {
            "source": pair.source,
            "reference": pair.target,
            "origin": f"demo.{number}",
            "context_src": context.source,
            "context_ref": context.target,
            "gender": GENDERS[pair.gender],
            "errors": [error.record(counts) for error in errors],
        }
        for number, (context, pair, errors) in enumerate(found)
    ]
