"""The demo language's lexicon: every table of `lexicon.toml` as entries with all forms.

Cases are n a d g. A paradigm's columns are m f n (singular) and plural. An agreement index is 0
first person singular, 1 third person singular, 2 plural; a verb's six finite forms are the present
by agreement, then the past by agreement. Paradigms: Duden, Die Grammatik, or any other.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any


def weighted(text: str) -> list[str]:
    """Return the words of "the 9, a 6", each repeated as often as its number says."""
    options = re.findall(r"(\S.*?)(?: (\d+))?(?:, |$)", text)
    return [option for option, number in options for _ in range(int(number or 1))]


# table -> lines: what is left of the equals sign, right of it, and after the colon
TABLES = {
    name: [(re.split(" [=:] ", line) + ["", ""])[:3] for line in text.splitlines()]
    for name, text in tomllib.loads(
        (files(__package__) / "lexicon.toml").read_text("utf-8")
    ).items()
}
CHOICES = {name: weighted(options) for name, options, _ in TABLES["choices"]}
FINITE = {verb: forms.split() for verb, forms, _ in TABLES["finite"]}
NO_GE = re.compile(r"^(be|er|ver|zer|ent|emp|ge|miss|wider|unter)|ieren$")


def inflect(word: str, rules: str) -> str:
    """Return a word with the ending that the first fitting rule of a table gives it."""
    for end, ending, _ in TABLES[rules]:
        inflected, count = re.subn(end, ending.strip("-"), word, count=1, flags=re.IGNORECASE)
        if count:
            return inflected
    raise KeyError(word)


class Word:
    """An entry of a table, in both languages. Entries of this class itself have no other forms.

    `lemma`: the German dictionary form; `classes`: the classes of words that go with it; `index`:
    its line in the table.
    """

    index: int

    def __init__(self, english: Any, german: Any, classes: str) -> None:
        self.en, self.de, self.lemma = english, german, german
        self.classes = frozenset(classes.split())


class Noun(Word):
    """A noun with its numbers and German cases.

    `en`: (singular, plural); `de`: case -> (singular, plural); `place`: the English and the German
    preposition for being at this place.
    """

    def __init__(self, *line: str) -> None:
        super().__init__(*line)
        singular, _, plural = self.en.partition("/")
        self.en = (singular, plural or inflect(singular, "plural"))
        article, base, *forms = re.split(",? ", self.de)
        self.gender = {"der": "m", "die": "f", "das": "n"}[article]
        self.de = noun_forms(base, self.gender, *forms)
        self.lemma = self.de["n"][0]
        self.place = [*re.findall(r"(\w+):(\w+)", line[2]), ("in", "in")][0]
        self.classes -= {":".join(self.place)}


class Adjective(Word):
    """An adjective: comparatives ("" for none), German `stem`, `rank` in a row of adjectives."""

    def __init__(self, *line: str) -> None:
        super().__init__(*line)
        (self.en, _, more), (self.de, _, mehr) = self.en.partition(" "), self.de.partition(" ")
        self.lemma, self.rank, self.comparative = self.de, line[2][0], (more, mehr)
        self.stem = inflect(self.de, "adjective_stem")


class Slot:
    """A complement of a verb, or a modifier of nouns with some `classes`.

    `role`: acc dat to pp loc dir on city, place gen; `nouns`: the classes of nouns that fill it;
    `en`, `de`, `case`: its preposition in both languages ("" for none), and the German case.
    """

    def __init__(self, owner: str, slot: str, _: str = "") -> None:
        head, _, nouns = slot.partition(":")
        *english, german, role = ["", *head.split()]
        self.de = german.strip("-")
        self.en = "to" if role == "to" else " ".join(english).strip(" -")
        self.role = "pp" if self.de else role
        self.case = {"acc": "a", "dat": "d", "to": "d", "gen": "g"}.get(role, "")
        self.nouns, self.classes = frozenset(nouns.split()), frozenset([owner])


class Verb(Word):
    """A verb with one frame. `classes`: its subjects' classes, or that, if, to for a clause.

    `shifts`: its English particle may follow the object; `stative`: it has no progressive;
    `position`: it prefers the progressive.
    """

    def __init__(self, left: str, right: str, frame: str) -> None:
        subjects, _, slots = frame.partition(" > ")
        super().__init__(left, right, subjects)
        name, *parts = left.split()
        base, self.particle, marks = re.findall(r"(\w+)\.?(\w*)(.*)", name)[0]
        self.en, self.de = EnglishVerb(base, parts, "*" in marks), GermanVerb(right)
        self.lemma = self.de.infinitive
        self.shifts = bool(self.particle) and "!" not in marks
        self.stative, self.position = "+" in marks, "^" in marks
        self.slots = [Slot("", text) for text in slots.split(", ") if text]

    @property
    def english_name(self) -> str:
        """The verb with its particle and prepositions."""
        prepositions = [slot.en for slot in self.slots if slot.role == "pp"]
        return " ".join(filter(None, [self.en.base, self.particle, *prepositions]))


def noun_forms(singular: str, gender: str, plural: str, genitive: str = "") -> dict[str, Any]:
    """Return case -> (singular, plural) of a German noun.

    Args:
        singular: "Junge~n" for a weak noun.
        genitive: the genitive singular, if the rule would be wrong.
    """
    nominative, _, weak = singular.partition("~")
    oblique = nominative + weak
    genitive = genitive or (oblique if weak or gender == "f" else inflect(nominative, "genitive"))
    dative = plural if plural[-1] in "ns" else plural + "n"
    return {
        "n": (nominative, plural),
        "a": (oblique, plural),
        "d": (oblique, dative),
        "g": (genitive, plural),
    }


class EnglishVerb:
    """The forms of an English verb: `base`, six `finite` ones, `participle`, `ing`.

    `past_is_base`: "they read" may be present or past.

    Args:
        parts: past and participle of an irregular verb.
        doubles: True if the last consonant doubles.
    """

    def __init__(self, base: str, parts: Sequence[str] = (), doubles: bool = False) -> None:
        root = base + base[-1] * doubles
        past, self.participle = parts or [inflect(root, "past")] * 2
        regular = [base, inflect(base, "plural"), base, past, past, past]
        self.base, self.finite = base, FINITE.get(base, regular)
        self.ing = inflect(root, "progressive")
        self.past_is_base = base == self.finite[3]


class GermanVerb:
    """The forms of a German verb; `simple`: the infinitive without its separable `prefix`.

    Args:
        text: "[prefix|]infinitive", then of a strong verb third person singular, preterite and
            participle without prefix, and marks: (sich) for a reflexive verb, (sein) if the perfect
            takes sein, (either) if it takes sein or haben.
    """

    def __init__(self, text: str) -> None:
        self.sein, self.reflexive = "(sein)" in text, "(sich)" in text
        self.either_auxiliary = "(either)" in text
        infinitive, *parts = (word for word in text.split() if word[0] != "(")
        self.prefix, _, self.simple = infinitive.rpartition("|")
        self.infinitive = self.prefix + self.simple
        self.zu = (self.prefix + "zu" if self.prefix else "zu ") + self.simple
        weak = inflect(self.simple, "weak_verb")
        ge = "" if NO_GE.search(self.simple) else "ge"
        third, past, participle = parts or (weak, weak + "e", ge + weak)
        plural = past.removesuffix("e") + "en"
        first = inflect(self.simple, "first_person")
        regular = [first, third, self.simple, past, past, plural]
        self.finite, self.participle = FINITE.get(self.simple, regular), self.prefix + participle


READERS: dict[str, Any] = {
    "nouns": Noun,
    "adjectives": Adjective,
    "verbs": Verb,
    "copulas": Verb,
    "modifiers": Slot,
}


@cache
def entries(name: str) -> list[Any]:
    """Return the entries of a table, in its order."""
    read = READERS.get(name, Word)
    words = [read(*line) for line in TABLES[name]]
    for index, word in enumerate(words):
        word.index = index
    return words


@cache
def fitting(name: str, classes: str | frozenset[str]) -> list[Any]:
    """Return the entries of a table that share a class with `classes`, in the table's order."""
    wanted = classes.split() if isinstance(classes, str) else classes
    return [entry for entry in entries(name) if not entry.classes.isdisjoint(wanted)]


def separable_forms(verb: Verb) -> Iterator[tuple[str, list[str]]]:
    """Yield the English forms of a separable verb, each with all German forms for it.

    A German finite form stands apart ("schlägt ... nach", the prefix at the end of its clause,
    which the next clause may follow) or together ("nachschlägt").
    """
    en, de = verb.en, verb.de
    finite = [
        [f"{form} ... {de.prefix} $", f"{form} ... {de.prefix} und", de.prefix + form]
        for form in de.finite
    ]
    present, past = sum(finite[:3], []), sum(finite[3:], [])
    for form in en.finite[:3]:
        yield form, present
    for form in (en.finite[3], en.participle):
        yield form, [*past, de.participle]
    yield en.base, [de.zu, *past]  # "did not look up": schlug ... nach
    yield en.ing, present + past


def separable_expressions() -> list[tuple[str, list[str], str]]:
    """Return the separable verbs in running text, for `nmtkit analyze phrases`.

    Returns: English phrase ("looked up", "looked ...10 up" round an object), all German phrases
        that the grammar may put for it, and the verb's name ("look up = nachschlagen").
    """
    expressions: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for verb in entries("verbs"):
        if not verb.de.prefix:
            continue
        rest = verb.english_name[len(verb.en.base) :]
        around = verb.shifts and any(slot.role == "acc" for slot in verb.slots)
        for form, german in separable_forms(verb):
            for gap in ("", " ...10") if around else ("",):
                name = f"{verb.english_name} = {verb.lemma}"
                expressions[form + gap + rest, name] |= dict.fromkeys(german)
    return [(phrase, [*german], name) for (phrase, name), german in expressions.items()]
