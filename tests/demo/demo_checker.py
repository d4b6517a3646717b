"""An independent check of the demo's German: it reads the words again, with paradigms written here,
and says what is wrong.

What it takes from the generator: the constituents' boundaries and the lexicon's noun and verb forms
(which have tests of their own). What it finds out itself: gender, number and case of every noun
phrase from its words, what each preposition and verb governs, and where verbs may stand.
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
    """dies-er dies-e dies-es ...: what is left of the article's form."""
    return {"die": "e", "das": "es"}.get(THE[case][column], THE[case][column][1:])


def like_a_ending(case: str, column: int) -> str:
    """ein keine ...: as like_the, but bare in the nominative masculine and the nominative and
    accusative neuter.
    """
    return "" if (case, column) in {("n", 0), ("n", 2), ("a", 2)} else like_the_ending(case, column)


def adjective_ending(kind: str, case: str, column: int) -> str:
    """Weak: -e in the five direct singular cells but the masculine accusative, -en elsewhere.
    Strong: the article's own ending, but -en in the genitive singular of masculine and neuter.
    Mixed: strong where ein is bare, weak elsewhere.
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
    """The (case, column) cells a determiner can stand for, and the endings it leaves to
    adjectives.
    """
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
    """Finite form as spoken in one word (prefix joined and not) -> (infinitive, agreement);
    auxiliaries under their own form.
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


def parts(node: Node) -> dict[str, Node]:
    """A clause's fields."""
    return {kid.label: kid for kid in node.kids if isinstance(kid, Node)}


def governor(tree: Node, pp: Node) -> str:
    """The verb of the clause whose middle field holds a prepositional phrase directly, else ""."""
    for node in tree.nodes():
        if "MF" in parts(node) and pp in parts(node)["MF"].kids:
            return node.info.verb.lemma
    return ""


def preposition_case(tree: Node, pp: Node) -> tuple[str, str]:
    """Case that a prepositional phrase must have, and its article if that has melted into the
    preposition.
    """
    form = kids(pp)[0].form
    preposition, _, article = GRAMMAR["melted"].get(form, form).partition(" ")
    verb = governor(tree, pp)
    nouns = [
        leaf for kid in pp.kids if isinstance(kid, Node) for leaf in kids(kid) if leaf.tag == "NN"
    ]
    place = any("place" in noun.classes for leaf in nouns for _, _, noun in noun_table()[leaf.form])
    if (verb, preposition) in ACCUSATIVE_PP and not (
        place and verb not in {"legen", "stellen", "werfen"}
    ):  # waiting for a bus, but on a bridge
        return "a", article
    return FIXED_CASE.get(preposition, "d"), article


def analyse(np: Node, case: str, article: str = "") -> set[int]:
    """The agreement (0 first person, 1 singular, 2 plural) a noun phrase can have in a case; empty
    if its words do not fit together.
    """
    coordinated = [kid for kid in np.kids if isinstance(kid, Node) and kid.label == "NP"]
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
    """Article, adjectives and noun agree in gender, number and the case that their place
    demands.
    """
    for node in tree.nodes():
        if node.label in FUNCTION_CASE and not analyse(node, FUNCTION_CASE[node.label]):
            yield f"{node.label}: {' '.join(leaf.form for leaf in leaves(node))}"


def prepositions(tree: Node) -> Iterator[str]:
    """A prepositional phrase has the case its preposition (and verb) demand."""
    for node in tree.nodes():
        if node.label == "PP":
            case, article = preposition_case(tree, node)
            inner = next(kid for kid in node.kids if isinstance(kid, Node))
            if not analyse(inner, case, article):
                yield f"PP: {' '.join(leaf.form for leaf in leaves(node))}"


def objects(tree: Node) -> Iterator[str]:
    """Dative verbs have a dative alone, verbs with two objects one of each case, all others an
    accusative.
    """
    for node in tree.nodes():
        if node.label in {"S", "SSUB", "SINF"} and "MF" in parts(node):
            phrases = [kid for kid in parts(node)["MF"].kids if isinstance(kid, Node)]
            found = sorted(kid.label for kid in phrases if kid.label in {"NP-OA", "NP-DA"})
            lemma = node.info.verb.lemma
            one = ["NP-DA"] if lemma in DATIVE_VERBS else ["NP-OA"]
            if found and found != (["NP-DA", "NP-OA"] if len(found) == 2 else one):
                yield f"{lemma}: {found}"


def relative_pronouns(tree: Node) -> Iterator[str]:
    """A relative pronoun has the gender and number of the noun before it, and the case of its
    gap.
    """
    for node in tree.nodes():
        for kid in node.kids:
            if isinstance(kid, Node) and kid.label == "SREL":
                opening = [leaf.form for leaf in kids(parts(kid)["C"])]
                noun = next(leaf.form for leaf in kids(node) if leaf.tag == "NN")
                middle = {child.label for child in parts(kid)["MF"].kids if isinstance(child, Node)}
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
    """The agreement of a noun phrase in the case that its label says (any, for one inside a
    prepositional phrase).
    """
    cases = FUNCTION_CASE.get(np.label, CASES)
    return set().union(*(analyse(np, case, "") for case in cases))


def subject_and_verb(tree: Node) -> Iterator[str]:
    """The finite verb agrees with the subject's words."""
    for node in tree.nodes():
        if node.label not in {"S", "SSUB", "SREL"}:
            continue
        fields = parts(node)
        bracket = kids(fields.get("LK", fields["RK"]))
        verb = bracket[-1].form
        place = [
            kid
            for name in ("VF", "MF")
            if name in fields
            for kid in fields[name].kids
            if isinstance(kid, Node) and kid.label == "NP-SB"
        ]
        if place:
            subject = analyse(place[0], "n")
        else:
            host = next(other for other in tree.nodes() if node in other.kids)
            pronoun = kids(fields["C"])[-1].form
            subject = agreement_of(host) & ({1} if pronoun in {"der", "das"} else {1, 2})
        if not subject & {agreement for _, agreement in finite_table().get(verb, set())}:
            yield f"{verb}: {' '.join(leaf.form for leaf in leaves(node))}"


def verb_second(tree: Node) -> Iterator[str]:
    """A main clause has one constituent, or in a yes-no question none, before its one finite verb,
    and no finite verb at its end.
    """
    for node in tree.nodes():
        if node.label == "S":
            fields = parts(node)
            yes_no = node.info.question == "yn"
            front, left, right = fields["VF"].kids, kids(fields["LK"]), kids(fields["RK"])
            names = [kid.label for kid in node.kids if isinstance(kid, Node)]
            if names != ["VF", "LK", "MF", "RK", "NF"] or len(front) != (0 if yes_no else 1):
                yield f"fields {names}, {len(front)} in front"
            if len(left) != 1 or left[0].form not in finite_table() or any(map(finite, right)):
                yield f"finite verb: {[leaf.form for leaf in left + right]}"


def verb_final(tree: Node) -> Iterator[str]:
    """A subordinate clause opens with its conjunction or relative pronoun behind a comma, and ends
    its bracket with the one finite verb.
    """
    order = leaves(tree)
    for node in tree.nodes():
        if node.label not in {"SSUB", "SREL"}:
            continue
        names = [kid.label for kid in node.kids if isinstance(kid, Node)]
        bracket = kids(parts(node)["RK"])
        first = order.index(kids(parts(node)["C"])[0])
        before = {",", "und", "Aber", "aber"}
        if names != ["C", "MF", "RK", "NF"] or (first and order[first - 1].form not in before):
            yield f"opening {names} after {order[first - 1].form}"
        last = bracket[-1:] and finite(bracket[-1]) and bracket[-1].form in finite_table()
        if not last or any(map(finite, bracket[:-1])):
            yield f"bracket {[leaf.form for leaf in bracket]}"
        if any(map(finite, kids(parts(node)["MF"]))):
            yield "finite verb in the middle"


def prefixes(tree: Node) -> Iterator[str]:
    """A separable prefix stands exactly once: at the end of a main clause whose finite verb is the
    verb itself, joined everywhere else.
    """
    for node in tree.nodes():
        if node.label not in {"S", "SSUB", "SREL", "SINF"}:
            continue
        verb, fields = node.info.verb, parts(node)
        prefix, right = verb.de.prefix, kids(fields["RK"])
        apart = [leaf.form for leaf in right if leaf.tag == "RP"]
        verbs = [
            leaf
            for leaf in (kids(fields["LK"]) if "LK" in fields else []) + right
            if isinstance(leaf.lex, Verb) and leaf.tag != "RP"
        ]
        split = bool(prefix) and node.label == "S" and bool(verbs) and finite(verbs[0])
        joined = sum(bool(prefix) and leaf.form.startswith(prefix) for leaf in verbs)
        if apart != [prefix] * split or joined != (bool(prefix) and not split):
            yield f"{verb.lemma}: {[leaf.form for leaf in verbs]} {apart}"
        zu = prefix + "zu" if prefix else "zu "
        if node.label == "SINF" and [leaf.form for leaf in verbs] != [zu + verb.de.simple]:
            yield f"zu: {verb.lemma}"


def negation(tree: Node) -> Iterator[str]:
    """A clause is negated once, by nicht or by kein; kein stands for the object's article."""
    for node in tree.nodes():
        if node.label in {"S", "SSUB"}:
            middle = parts(node)["MF"]
            words = [leaf.form for leaf in kids(middle) if leaf.form == "nicht"]
            for kid in middle.kids:
                if isinstance(kid, Node) and kid.label == "NP-OA":
                    words += [leaf.form for leaf in kids(kid) if leaf.form.startswith("kein")]
            if len(words) != node.info.negated:
                yield f"{words}"


def participles(tree: Node) -> Iterator[str]:
    """The perfect takes sein with verbs of motion and change (a list of this file), haben
    elsewhere.
    """
    for node in tree.nodes():
        if "RK" in parts(node):
            fields = parts(node)
            verbs = (kids(fields["LK"]) if "LK" in fields else []) + kids(fields["RK"])
            participle = next((leaf for leaf in verbs if leaf.tag == "VBN"), None)
            if participle:
                auxiliary = next(leaf.form for leaf in verbs if finite(leaf))
                sein = auxiliary in FINITE["sein"]
                if sein != (participle.lex.lemma in SEIN_VERBS):
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
