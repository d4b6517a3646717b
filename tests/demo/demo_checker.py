"""An independent check of the demo's German. It reads the words again, with paradigms of its own,
and yields the mistakes.

It takes from the generator the boundaries of constituents and the noun and verb forms of the
lexicon, which have their own tests. It derives gender, number and case of every noun phrase from
the words, what each preposition and verb governs, and where verbs may be.
"""

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from nmtkit.demo.lexicon import FINITE, Verb, entries
from nmtkit.demo.realise import Leaf, Node, leaves

GRAMMAR = tomllib.loads(Path(__file__).with_name("german.toml").read_text("utf-8"))
CASES = "nadg"
THE = {case: forms.split() for case, forms in GRAMMAR["the"].items()}
LIKE_THE, LIKE_A, STRONG_AFTER, DATIVE_VERBS, SEIN_VERBS = (
    GRAMMAR[name].split()
    for name in ("like_the", "like_a", "strong_after", "dative_verbs", "sein_verbs")
)
ACCUSATIVE_PP = {tuple(pair.split("+")) for pair in GRAMMAR["accusative_pp"].split()}
FIXED_CASE = {
    preposition: case
    for case, prepositions in GRAMMAR["prepositions"].items()
    for preposition in prepositions.split()
}
PRONOUN_CASES = {
    pronoun: [(cell[0], int(cell[1])) for cell in cells.split()]
    for pronoun, cells in GRAMMAR["pronouns"].items()
}
FUNCTION_CASE = {"NP-SB": "n", "NP-OA": "a", "NP-DA": "d", "NP-AG": "g"}


def like_the_ending(case: str, column: int) -> str:
    """The ending of dies-er, dies-e, dies-es, …: that of the article."""
    return {"die": "e", "das": "es"}.get(THE[case][column], THE[case][column][1:])


def like_a_ending(case: str, column: int) -> str:
    """The ending of ein, keine, …: as `like_the_ending`, but none in the nominative masculine and
    in the nominative and accusative neuter.
    """
    return "" if (case, column) in {("n", 0), ("n", 2), ("a", 2)} else like_the_ending(case, column)


def adjective_ending(kind: str, case: str, column: int) -> str:
    """The ending of an adjective.

    Weak: -e in the nominative singular, and in the accusative singular but for the masculine; -en
    elsewhere. Strong: the ending of the article, but -en in the genitive singular of masculine and
    neuter. Mixed: strong where ein has no ending, weak elsewhere.
    """
    weak = "e" if column < 3 and (case == "n" or (case == "a" and column > 0)) else "en"
    if kind == "weak":
        return weak
    if kind == "mixed":
        return (
            like_the_ending(case, column)
            if (case, column) in {("n", 0), ("n", 2), ("a", 2)}
            else weak
        )
    return "en" if case == "g" and column in {0, 2} else like_the_ending(case, column)


def determiner_cells(form: str) -> tuple[set[tuple[str, int]], str]:
    """The (case, column) cells of a determiner, and the kind of the adjectives after it."""
    cells = [(case, column) for case in CASES for column in range(4)]
    if any(form in forms for forms in THE.values()):
        return {(case, column) for case, column in cells if THE[case][column] == form}, "weak"
    for stem in [*LIKE_A, *LIKE_THE]:
        ending = like_a_ending if stem in LIKE_A else like_the_ending
        found = {(case, column) for case, column in cells if stem + ending(case, column) == form}
        if found:
            weak = "strong" if stem in STRONG_AFTER else "weak"
            return found, "mixed" if stem in LIKE_A else weak
    raise AssertionError(f"no determiner: {form}")


@cache
def noun_table() -> dict[str, list[tuple[str, int, object]]]:
    """Form -> (case, column, noun)."""
    table: dict[str, list[tuple[str, int, object]]] = {}
    for noun in entries("nouns"):
        for case, (singular, plural) in noun.de.items():
            table.setdefault(singular, []).append((case, "mfn".index(noun.gender), noun))
            table.setdefault(plural, []).append((case, 3, noun))
    return table


@cache
def finite_table() -> dict[str, set[tuple[str, int]]]:
    """Finite form, with and without its prefix -> (infinitive, agreement); auxiliaries have no
    infinitive.
    """
    table: dict[str, set[tuple[str, int]]] = {}
    for verb in [*entries("verbs"), *entries("copulas")]:
        for at, form in enumerate(verb.de.finite):
            table.setdefault(form, set()).add((verb.lemma, at % 3))
            table.setdefault(verb.de.prefix + form, set()).add((verb.lemma, at % 3))
    for agreement, forms in GRAMMAR["auxiliaries"].items():
        for form in forms.split():
            table.setdefault(form, set()).add(("", int(agreement)))
    return table


def finite(leaf: Leaf) -> bool:
    """True for a finite verb."""
    return leaf.tag in {"VBD", "VBP"}


def kids(node: Node) -> list[Leaf]:
    """The leaves directly under a node."""
    return [kid for kid in node.kids if isinstance(kid, Leaf)]


def inner(node: Node) -> list[Node]:
    """The constituents directly under a node."""
    return [kid for kid in node.kids if isinstance(kid, Node)]


def parts(node: Node) -> dict[str, Node]:
    """The fields of a clause."""
    return {kid.label: kid for kid in inner(node)}


def bracket(clause: Node) -> list[Leaf]:
    """The words of the left and of the right bracket of a clause."""
    fields = parts(clause)
    return (kids(fields["LK"]) if "LK" in fields else []) + kids(fields["RK"])


def labelled(tree: Node, *labels: str) -> Iterator[Node]:
    """The nodes with one of these labels."""
    return (node for node in tree.nodes() if node.label in labels)


def forms(words: list[Leaf]) -> list[str]:
    return [leaf.form for leaf in words]


def text(node: Node) -> str:
    return " ".join(forms(leaves(node)))


def governor(tree: Node, pp: Node) -> str:
    """The verb of the clause whose middle field holds a prepositional phrase directly, else ""."""
    for node in tree.nodes():
        if "MF" in parts(node) and pp in parts(node)["MF"].kids:
            return node.info.verb.lemma
    return ""


def preposition_case(tree: Node, pp: Node) -> tuple[str, str]:
    """The case that a prepositional phrase must have, and the article if it has melted into the
    preposition.
    """
    form = kids(pp)[0].form
    preposition, _, article = GRAMMAR["melted"].get(form, form).partition(" ")
    verb = governor(tree, pp)
    nouns = [leaf for kid in inner(pp) for leaf in kids(kid) if leaf.tag == "NN"]
    place = any("place" in noun.classes for leaf in nouns for _, _, noun in noun_table()[leaf.form])
    if (verb, preposition) in ACCUSATIVE_PP and not (
        place and verb not in {"legen", "stellen", "werfen"}
    ):  # waiting for a bus, but on a bridge
        return "a", article
    return FIXED_CASE.get(preposition, "d"), article


def analyse(np: Node, case: str, article: str = "") -> set[int]:
    """The agreements (0 first person, 1 singular, 2 plural) of a noun phrase in a case; empty if
    its words do not fit together.
    """
    coordinated = [kid for kid in inner(np) if kid.label == "NP"]
    if coordinated:
        return {2} if all(analyse(part, case) for part in coordinated) else set()
    words = [leaf for leaf in kids(np) if leaf.tag != ","]
    if words[0].tag == "PRP":
        return {number for found, number in PRONOUN_CASES[words[0].form] if found == case}
    if len(words) == 1 and words[0].tag == "NNP":
        return {1}
    determiner = article or next((leaf.form for leaf in words if leaf.tag == "DT"), "")
    cells, kind = (
        determiner_cells(determiner)
        if determiner
        else ({(c, n) for c in CASES for n in range(4)}, "strong")
    )
    if any(leaf.tag == "CD" for leaf in words):
        cells = {(c, n) for c, n in cells if n == 3}
    noun = next(leaf for leaf in words if leaf.tag == "NN")
    cells &= {(c, n) for c, n, _ in noun_table().get(noun.form, [])}
    for adjective in (leaf for leaf in words if leaf.tag == "JJ"):
        cells = {
            (c, n)
            for c, n in cells
            if adjective.form == adjective.lex.stem + adjective_ending(kind, c, n)
        }
    return {2 if column == 3 else 1 for found, column in cells if found == case}


def noun_phrases(tree: Node) -> Iterator[str]:
    """Article, adjectives and noun agree in gender, number and the case of their function."""
    for node in labelled(tree, *FUNCTION_CASE):
        if not analyse(node, FUNCTION_CASE[node.label]):
            yield f"{node.label}: {text(node)}"


def prepositions(tree: Node) -> Iterator[str]:
    """A prepositional phrase has the case its preposition (and verb) demand."""
    for node in labelled(tree, "PP"):
        if not analyse(inner(node)[0], *preposition_case(tree, node)):
            yield f"PP: {text(node)}"


def objects(tree: Node) -> Iterator[str]:
    """Dative verbs have a dative alone, verbs with two objects one of each case, all others an
    accusative.
    """
    for node in labelled(tree, "S", "SSUB", "SINF"):
        if "MF" in parts(node):
            labels = sorted(kid.label for kid in inner(parts(node)["MF"]))
            labels = [label for label in labels if label in {"NP-OA", "NP-DA"}]
            lemma = node.info.verb.lemma
            single = ["NP-DA"] if lemma in DATIVE_VERBS else ["NP-OA"]
            if labels and labels != (["NP-DA", "NP-OA"] if len(labels) == 2 else single):
                yield f"{lemma}: {labels}"


def relative_pronouns(tree: Node) -> Iterator[str]:
    """A relative pronoun has the gender and number of the noun before it, and the case of its
    function in the clause.
    """
    for node in tree.nodes():
        for kid in inner(node):
            if kid.label == "SREL":
                opening = forms(kids(parts(kid)["C"]))
                noun = next(leaf.form for leaf in kids(node) if leaf.tag == "NN")
                middle = {child.label for child in inner(parts(kid)["MF"])}
                lemma = kid.info.verb.lemma
                if len(opening) == 2:
                    fixed = FIXED_CASE.get(opening[0], "d")
                    case = "a" if (lemma, opening[0]) in ACCUSATIVE_PP else fixed
                elif "NP-SB" not in middle:
                    case = "n"
                else:
                    case = "d" if lemma in DATIVE_VERBS or "NP-OA" in middle else "a"
                numbers = agreement_of(node)
                columns = {n for _, n, _ in noun_table()[noun] if (2 if n == 3 else 1) in numbers}
                allowed = {"denen" if (case, n) == ("d", 3) else THE[case][n] for n in columns}
                if opening[-1] not in allowed:
                    yield f"{noun}, {opening[-1]} ({case})"


def agreement_of(np: Node) -> set[int]:
    """The agreements of a noun phrase in the case of its label; in any case inside a prepositional
    phrase.
    """
    cases = FUNCTION_CASE.get(np.label, CASES)
    return set().union(*(analyse(np, case, "") for case in cases))


def subject_and_verb(tree: Node) -> Iterator[str]:
    """The finite verb agrees with the subject's words."""
    for node in labelled(tree, "S", "SSUB", "SREL"):
        fields = parts(node)
        verb = kids(fields.get("LK", fields["RK"]))[-1].form
        subjects = [
            kid
            for field in (fields.get("VF"), fields["MF"])
            if field
            for kid in inner(field)
            if kid.label == "NP-SB"
        ]
        if subjects:
            subject = analyse(subjects[0], "n")
        else:
            host = next(other for other in tree.nodes() if node in other.kids)
            pronoun = kids(fields["C"])[-1].form
            subject = agreement_of(host) & ({1} if pronoun in {"der", "das"} else {1, 2})
        if not subject & {agreement for _, agreement in finite_table().get(verb, set())}:
            yield f"{verb}: {text(node)}"


def verb_second(tree: Node) -> Iterator[str]:
    """A main clause has one constituent, or in a yes-no question none, before its one finite verb,
    and no finite verb at its end.
    """
    for node in labelled(tree, "S"):
        fields = parts(node)
        front, left, right = fields["VF"].kids, kids(fields["LK"]), kids(fields["RK"])
        if (labels := [kid.label for kid in inner(node)]) != ["VF", "LK", "MF", "RK", "NF"]:
            yield f"fields {labels}"
        if len(front) != (0 if node.info.question == "yn" else 1):
            yield f"{len(front)} constituents in front"
        if len(left) != 1 or left[0].form not in finite_table() or any(map(finite, right)):
            yield f"finite verb: {forms(left + right)}"


def verb_final(tree: Node) -> Iterator[str]:
    """A subordinate clause opens with its conjunction or relative pronoun behind a comma, and ends
    its bracket with the one finite verb.
    """
    order = leaves(tree)
    for node in labelled(tree, "SSUB", "SREL"):
        fields = parts(node)
        if (labels := [kid.label for kid in inner(node)]) != ["C", "MF", "RK", "NF"]:
            yield f"fields {labels}"
        first = order.index(kids(fields["C"])[0])
        if first and order[first - 1].form not in {",", "und", "Aber", "aber"}:
            yield f"opening after {order[first - 1].form}"
        *others, verb = kids(fields["RK"]) or [None]
        if not (verb and finite(verb) and verb.form in finite_table()) or any(map(finite, others)):
            yield f"right bracket {forms(kids(fields['RK']))}"
        if any(map(finite, kids(fields["MF"]))):
            yield "finite verb in the middle"


def prefixes(tree: Node) -> Iterator[str]:
    """A separable prefix occurs exactly once: at the end of a main clause whose finite verb has
    the prefix, joined to the verb everywhere else.
    """
    for node in labelled(tree, "S", "SSUB", "SREL", "SINF"):
        verb, words = node.info.verb, bracket(node)
        prefix = verb.de.prefix
        apart = [leaf.form for leaf in kids(parts(node)["RK"]) if leaf.tag == "RP"]
        verbs = [leaf for leaf in words if isinstance(leaf.lex, Verb) and leaf.tag != "RP"]
        split = bool(prefix) and node.label == "S" and bool(verbs) and finite(verbs[0])
        joined = sum(bool(prefix) and leaf.form.startswith(prefix) for leaf in verbs)
        if apart != [prefix] * split or joined != (bool(prefix) and not split):
            yield f"{verb.lemma}: {forms(verbs)} {apart}"
        zu = prefix + "zu" if prefix else "zu "
        if node.label == "SINF" and forms(verbs) != [zu + verb.de.simple]:
            yield f"zu: {verb.lemma}"


def negation(tree: Node) -> Iterator[str]:
    """A clause is negated once, by nicht or by kein, which replaces the article of the object."""
    for node in labelled(tree, "S", "SSUB"):
        middle = parts(node)["MF"]
        objects = [kid for kid in inner(middle) if kid.label == "NP-OA"]
        words = [form for form in forms(kids(middle)) if form == "nicht"]
        words += [f for kid in objects for f in forms(kids(kid)) if f.startswith("kein")]
        if len(words) != node.info.negated:
            yield f"{words}"


def participles(tree: Node) -> Iterator[str]:
    """The perfect has sein with verbs of motion and change (`SEIN_VERBS`), haben with others."""
    for node in tree.nodes():
        if "RK" in parts(node):
            for participle in [leaf for leaf in bracket(node) if leaf.tag == "VBN"][:1]:
                auxiliary = next(leaf.form for leaf in bracket(node) if finite(leaf))
                has_sein = auxiliary in FINITE["sein"]
                if has_sein != (participle.lex.lemma in SEIN_VERBS):
                    yield f"{auxiliary} {participle.form}"


RULES = [
    noun_phrases,
    prepositions,
    objects,
    relative_pronouns,
    subject_and_verb,
    verb_second,
    verb_final,
    prefixes,
    negation,
    participles,
]
