"""The demo language's lexicon: every table of `lexicon.toml` as entries with all forms.

Cases are n a d g. A paradigm's columns are m f n (singular) and plural. An agreement index is 0
first person singular, 1 third person singular, 2 plural; a verb's six finite forms are the present
by agreement, then the past by agreement. Paradigms: Duden, Die Grammatik, or any other.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

Rules = Sequence[tuple[str, str]]
# (end of a word, what replaces it): the first rule that fits holds
PLURAL = ((r"(s|x|z|ch|sh|o)$", r"\1es"), (r"([^aeiou])y$", r"\1ies"), ("$", "s"))
PAST = (("e$", "ed"), (r"([^aeiou])y$", r"\1ied"), ("$", "ed"))
PROGRESSIVE = (("ie$", "ying"), ("ee$", "eeing"), ("e$", "ing"), ("$", "ing"))
GENITIVE = (
    ("(s|ß|x|z|sch)$", r"\1es"),
    ("^([^aeiouyäöü]*[aeiouyäöü]+[^aeiouyäöü]+)$", r"\1es"),  # one syllable
    ("$", "s"),
)
ADJECTIVE_STEM = (("hoch$", "hoh"), ("el$", "l"), ("euer$", "eur"), ("e$", ""), ("$", ""))
FIRST_PERSON = (("eln$", "le"), ("ern$", "ere"), ("..$", "e"))
VERB_STEM = (("(e[lr])n$", r"\1"), ("..$", ""))
NO_GE = re.compile(r"^(be|er|ver|zer|ent|emp|ge|miss|wider|unter)|ieren$")
E_INSERTION = re.compile(r"([td]|ch[nm]|[^aeiouäöülrhmn][nm])$")


def inflect(word: str, rules: Rules) -> str:
    """Return a word with the ending of the first rule that fits."""
    for end, ending in rules:
        inflected, fits = re.subn(end, ending, word, count=1, flags=re.IGNORECASE)
        if fits:
            break
    return inflected


# table -> lines: what is left of the equals sign, right of it, and behind the colon
TABLES = {
    name: [(re.split(" [=:] ", line) + [""])[:3] for line in text.splitlines()]
    for name, text in tomllib.loads(
        (files(__package__) / "lexicon.toml").read_text("utf-8")
    ).items()
}
FINITE = {verb: forms.split() for verb, forms, _ in TABLES["finite"]}


@dataclass(frozen=True, eq=False, slots=True)
class Word:
    """An entry in both languages; uninflected, if it is of this class itself.

    `lemma`: the German dictionary form; `classes`: what it goes with, or what goes with it.
    """

    en: Any
    de: Any
    lemma: str
    classes: frozenset[str]


@dataclass(frozen=True, eq=False, slots=True)
class Noun(Word):
    """A noun with its numbers and German cases.

    `en`: (singular, plural); `de`: case -> (singular, plural); `place`: the English and the German
    preposition of being there.
    """

    gender: str
    place: tuple[str, str]
    index: int


@dataclass(frozen=True, eq=False, slots=True)
class Adjective(Word):
    """An adjective: comparatives ("" if none), German `stem`, `rank` in a row of adjectives."""

    comparative: tuple[str, str]
    stem: str
    rank: int


@dataclass(frozen=True, eq=False, slots=True)
class Slot:
    """What a verb or a noun takes: `role` and the classes of `nouns` that may fill it.

    Roles: acc dat to pp loc dir on city. A preposition comes in both languages with its `case`.
    `classes`: those of the noun that the slot belongs to.
    """

    role: str
    en: str
    de: str
    case: str
    nouns: frozenset[str]
    classes: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False, slots=True)
class EnglishVerb:
    """The forms of an English verb; `finite`: six forms."""

    base: str
    finite: Sequence[str]
    participle: str
    ing: str


@dataclass(frozen=True, eq=False, slots=True)
class GermanVerb:
    """The forms of a German verb; `simple`: the infinitive without its separable `prefix`."""

    prefix: str
    simple: str
    infinitive: str
    zu: str
    finite: Sequence[str]
    participle: str
    sein: bool


@dataclass(frozen=True, eq=False, slots=True)
class Verb(Word):
    """A verb with one frame. `classes`: its subjects' classes, or that, if, to for a clause.

    `shifts`: its English particle may follow the object; `stative`: it has no progressive.
    """

    particle: str
    shifts: bool
    stative: bool
    reflexive: bool
    slots: Sequence[Slot]
    index: int

    @property
    def english_name(self) -> str:
        """The English base form with its particle: "look up"."""
        return f"{self.en.base} {self.particle}".strip()


def noun_forms(singular: str, gender: str, plural: str, genitive: str = "") -> dict[str, Any]:
    """Return case -> (singular, plural) of a German noun.

    Args:
        singular: "Junge~n" for a weak noun. genitive: of the singular, where the rule is wrong.
    """
    nominative, _, weak = singular.partition("~")
    oblique = nominative + weak
    genitive = genitive or (oblique if weak or gender == "f" else inflect(nominative, GENITIVE))
    dative = plural if plural[-1] in "ns" else plural + "n"
    return {
        "n": (nominative, plural),
        "a": (oblique, plural),
        "d": (oblique, dative),
        "g": (genitive, plural),
    }


def english_verb(base: str, parts: Sequence[str] = (), doubles: bool = False) -> EnglishVerb:
    """Return the forms of a verb from its base form; `parts`: past and participle, if irregular."""
    root = base + base[-1] * doubles
    past, participle = parts or (inflect(root, PAST),) * 2
    finite = FINITE.get(base) or (base, inflect(base, PLURAL), base, past, past, past)
    return EnglishVerb(base, finite, participle, inflect(root, PROGRESSIVE))


def german_verb(infinitive: str, parts: Sequence[str] = (), sein: bool = False) -> GermanVerb:
    """Return the forms of a verb from its infinitive.

    Args:
        infinitive: "prefix|infinitive" for a separable verb.
        parts: third person singular, preterite and participle of a strong verb, without prefix.
        sein: True if the perfect takes sein.
    """
    prefix, _, simple = infinitive.rpartition("|")
    stem = inflect(simple, VERB_STEM)
    linked = stem + "e" * bool(E_INSERTION.search(stem))
    ge = "" if NO_GE.search(simple) else "ge"
    third, past, participle = parts or (linked + "t", linked + "te", ge + linked + "t")
    plural = past + ("n" if past.endswith("e") else "en")
    regular = (inflect(simple, FIRST_PERSON), third, simple, past, past, plural)
    zu = f"{prefix}zu{simple}" if prefix else f"zu {simple}"
    finite = FINITE.get(simple) or regular
    return GermanVerb(prefix, simple, prefix + simple, zu, finite, prefix + participle, sein)


def _noun(index: int, left: str, right: str, tags: str) -> Noun:
    singular, _, plural = left.partition("/")
    article, base, *forms = re.split(",? ", right)
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    de = noun_forms(base, gender, *forms)
    place = re.findall(r"(\w+):(\w+)", tags) or [("in", "in")]
    classes = frozenset(tag for tag in tags.split() if ":" not in tag)
    en = (singular, plural or inflect(singular, PLURAL))
    return Noun(en, de, de["n"][0], classes, gender, place[0], index)


def _adjective(index: int, left: str, right: str, tags: str) -> Adjective:
    en, _, more = left.partition(" ")
    de, _, mehr = right.partition(" ")
    rank, *classes = tags.split()
    stem = inflect(de, ADJECTIVE_STEM)
    return Adjective(en, de, de, frozenset(classes), (more, mehr), stem, int(rank))


def _slot(text: str) -> Slot:
    head, _, classes = text.partition(":")
    *prepositions, role = head.split()
    en, de = prepositions or ("to" if role == "to" else "", "")
    case = {"acc": "a", "dat": "d", "to": "d"}.get(role, "")
    return Slot("pp" if prepositions else role, en.strip("-"), de, case, frozenset(classes.split()))


def _modifier(index: int, left: str, right: str, tags: str) -> Slot:
    de, _, case = right.partition(" ")
    head, _, nouns = tags.partition(" > ")
    return Slot("", left, de, case, frozenset(nouns.split()), frozenset([head]))


def _verb(index: int, left: str, right: str, frame: str) -> Verb:
    name, *parts = left.split()
    base, particle, marks = re.findall(r"(\w+)\.?(\w*)(.*)", name)[0]
    infinitive, *german = (part for part in right.split() if part[0] != "(")
    de = german_verb(infinitive, german, "(sein)" in right)
    subjects, _, slots = frame.partition(" > ")
    return Verb(
        english_verb(base, parts, "*" in marks),
        de,
        de.infinitive,
        frozenset(subjects.split()),
        particle,
        bool(particle) and "!" not in marks,
        "+" in marks,
        "(sich)" in right,
        [_slot(text) for text in slots.split(", ") if text],
        index,
    )


def _word(index: int, left: str, right: str, tags: str) -> Word:
    return Word(left, right, right, frozenset(tags.split()))


READERS: dict[str, Any] = {
    "nouns": _noun,
    "adjectives": _adjective,
    "verbs": _verb,
    "copulas": _verb,
    "modifiers": _modifier,
}


@cache
def entries(name: str) -> list[Any]:
    """Return the entries of a table, in its order."""
    read = READERS.get(name, _word)
    return [read(index, *line) for index, line in enumerate(TABLES[name])]


@cache
def fitting(name: str, classes: frozenset[str]) -> list[Any]:
    """Return the entries of a table that share a class with `classes`, in the table's order."""
    return [entry for entry in entries(name) if entry.classes & classes]


def separable_expressions() -> list[tuple[str, list[str], str]]:
    """Return the separable verbs in running text, for `nmtkit analyze phrases`.

    An English form goes with all German forms that the grammar may put for it: finite ones apart
    ("schlägt ... nach", the prefix at the end of its clause, which the next clause may follow) and
    together ("nachschlägt"), infinitive and participle.

    Returns: English phrase ("looked up", "looked ...10 up" round an object), its German phrases,
        and the verb's name ("look up = nachschlagen").
    """
    expressions: dict[str, tuple[list[str], str]] = {}
    for verb in entries("verbs"):
        prefix, en, de = verb.de.prefix, verb.en, verb.de
        if not prefix:
            continue
        preposition = next((slot.en for slot in verb.slots if slot.role == "pp"), "")
        name = f"{verb.english_name} {preposition}".strip() + f" = {de.infinitive}"
        finite = [
            [f"{form} ... {prefix} $", f"{form} ... {prefix} und", prefix + form]
            for form in de.finite
        ]
        present, past = sum(finite[:3], []), sum(finite[3:], [])
        pairs = [(form, present) for form in en.finite[:3]]
        pairs += [(form, [*past, de.participle]) for form in (en.finite[3], en.participle)]
        # "did not look up": schlug ... nach
        pairs += [(en.base, [de.infinitive, de.zu, *present, *past]), (en.ing, present + past)]
        shifts = verb.shifts and any(slot.role == "acc" for slot in verb.slots)
        for form, german in pairs:
            for gap in (" ", " ...10 ") if shifts else (" ",):
                phrase = f"{form}{gap}{verb.particle}".strip() + f" {preposition}".rstrip()
                accepted, _ = expressions.setdefault(phrase, ([], name))
                accepted += [words for words in dict.fromkeys(german) if words not in accepted]
    return [(phrase, german, name) for phrase, (german, name) in expressions.items()]
