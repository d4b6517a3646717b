"""The demo language's lexicon: the tables of `words` and `verbs` as objects with every form of both languages."""

from __future__ import annotations

import re
from functools import cache

from nmtkit.demo import english, german, verbs, words

PREPOSITION = re.compile(r"(\w*)>(\w+)\+(acc|dat)")


class Noun:
    """A noun: `en` (singular, plural), `de` (case -> singular, plural), `gender` m f n, `classes`, `loc` (English, German preposition of place)."""

    __slots__ = ("classes", "de", "en", "gender", "index", "loc")

    def __init__(self, line: str, index: int) -> None:
        left, right, classes = (part.strip() for part in re.split(r"\s=\s|\s:\s", line))
        singular, _, plural = left.partition("/")
        self.en = (singular, plural or english.plural(singular))
        article, _, forms = right.partition(" ")
        self.gender = {"der": "m", "die": "f", "das": "n"}[article]
        base, de_plural, genitive = ([part.strip() for part in forms.split(",")] + [""])[:3]
        base, _, weak = base.partition("~")
        self.de = german.noun_forms(base, self.gender, de_plural, genitive, weak)
        self.classes = frozenset(word for word in classes.split() if ":" not in word)
        places = [word.split(":") for word in classes.split() if ":" in word]
        self.loc = (places[0][0], places[0][1]) if places else ("in", "in")
        self.index = index

    @property
    def lemma(self) -> str:
        """The German dictionary form."""
        return self.de["n"][0]


class Adjective:
    """An adjective: `en`, `de`, their comparatives, `rank` in a row of adjectives, `classes` of nouns it goes with, German `stem`."""

    __slots__ = ("classes", "de", "de_comparative", "en", "en_comparative", "rank", "stem")
    de: str
    de_comparative: str

    def __init__(self, line: str) -> None:
        left, right, rest = (part.strip() for part in re.split(r"\s=\s|\s:\s", line))
        self.en, self.en_comparative = left, english.comparative(left)
        self.de, self.de_comparative = right.split()
        self.stem = german.adjective_stem(self.de)
        rank, *classes = rest.split()
        self.rank, self.classes = int(rank), frozenset(classes)

    @property
    def lemma(self) -> str:
        """The German dictionary form."""
        return self.de


class Complement:
    """What a verb needs beside its subject: `role` acc dat to pp loc dir on city, the noun `classes`, and for pp both prepositions and the case."""

    __slots__ = ("case", "classes", "de", "en", "role")

    def __init__(self, spec: str) -> None:
        head, _, classes = spec.partition(":")
        match = PREPOSITION.fullmatch(head)
        self.role = "pp" if match else head
        self.en, self.de, case = match.groups() if match else ("", "", head)
        self.case = {"acc": "a", "dat": "d", "to": "d"}.get(case, "")
        self.classes = frozenset(classes.split())


class Verb:
    """A verb with one frame: English forms `en` and `particle`, German forms `de` and `reflexive`, `subjects` (classes), `complements`."""

    __slots__ = ("clauses", "complements", "de", "en", "fixed", "index", "particle", "reflexive", "stative", "subjects")

    def __init__(self, line: str, index: int, clausal: bool = False) -> None:
        left, right, frame = (part.strip() for part in re.split(r"\s=\s|\s:\s", line))
        name, *parts = left.split()
        base, _, particle = name.rstrip("*+!").partition(".")
        flags = name[len(name.rstrip("*+!")) :]
        self.fixed, self.stative = "!" in flags, "+" in flags
        self.particle = particle
        self.en = english.VerbForms(base, parts, "*" in flags)
        tokens = right.split()
        self.reflexive = tokens[0] == "sich"
        tokens = tokens[1:] if self.reflexive else tokens
        sein = tokens[-1] == "sein"
        tokens = tokens[:-1] if sein else tokens
        self.de = german.VerbForms(tokens[0], tuple(tokens[1:]), sein)
        self.index = index
        subjects, _, rest = frame.partition(">")
        self.subjects = frozenset(("person",) if clausal else subjects.split())
        self.clauses = tuple(frame.split()) if clausal else ()
        # a complement starts at every word with a colon and at the bare words dir, on, city
        starts = re.sub(r"(\S*:|\bdir\b|\bon\b(?!>)|\bcity\b)", r"\n\1", rest).split("\n")
        self.complements = () if clausal else tuple(Complement(spec.strip()) for spec in starts if spec.strip())

    @property
    def lemma(self) -> str:
        """The German infinitive."""
        return self.de.infinitive

    @property
    def english_name(self) -> str:
        """The English base form with its particle: "look up"."""
        return f"{self.en.base} {self.particle}".strip()


class Word:
    """An uninflected pair: adverb, numeral, city, name. `tags` are the tenses of a time adverbial or a name's gender."""

    __slots__ = ("de", "en", "tags")

    def __init__(self, en: str, de: str, tags: str = "") -> None:
        self.en, self.de, self.tags = en, de, frozenset(tags.split())

    @property
    def lemma(self) -> str:
        """The German form."""
        return self.de


def _lines(table: str) -> list[str]:
    return [line for line in table.strip().splitlines() if line.strip()]


def _pairs(table: str) -> list[Word]:
    cells = [cell.split("=") for cell in re.split(r"[|\n]", table) if cell.strip()]
    return [Word(cell[0].strip(), cell[1].strip()) for cell in cells]


class Lexicon:
    """Everything at once; `nouns_of(classes)` and its like are cached selections in table order."""

    def __init__(self) -> None:
        self.nouns = [Noun(line, index) for index, line in enumerate(_lines(words.NOUNS))]
        self.adjectives = [Adjective(line) for line in _lines(words.ADJECTIVES)]
        table = _lines(verbs.VERBS)
        self.verbs = [Verb(line, index) for index, line in enumerate(table)]
        self.clause_verbs = [Verb(line, len(table) + index, clausal=True) for index, line in enumerate(_lines(verbs.CLAUSE_VERBS))]
        self.copulas = {v.en.base: v for v in (Verb(line, 0) for line in _lines(verbs.COPULAS))}
        self.names = [Word(name, name, "female") for name in words.FEMALE] + [Word(name, name, "male") for name in words.MALE]
        self.cities = [Word(*cell.split()) for cell in re.split(r"[|\n]", words.CITIES) if cell.strip()]
        self.times = [Word(*(part.strip() for part in re.split(r"\s=\s|\s:\s", line))) for line in _lines(words.TIMES)]
        self.frequencies, self.manners = _pairs(words.FREQUENCIES), _pairs(words.MANNERS)
        self.degrees, self.numerals = _pairs(words.DEGREES), _pairs(words.NUMERALS)
        self._nouns: dict[frozenset[str], list[Noun]] = {}
        self._adjectives: dict[frozenset[str], list[Adjective]] = {}
        self._times: dict[str, list[Word]] = {}
        self.things = {gender: [n for n in self.nouns if "thing" in n.classes and n.gender == gender] for gender in "mfn"}

    def nouns_of(self, classes: frozenset[str]) -> list[Noun]:
        """The nouns that belong to at least one of `classes`."""
        if classes not in self._nouns:
            self._nouns[classes] = [noun for noun in self.nouns if noun.classes & classes]
        return self._nouns[classes]

    def adjectives_of(self, noun: Noun) -> list[Adjective]:
        """The adjectives that go with a noun."""
        if noun.classes not in self._adjectives:
            self._adjectives[noun.classes] = [adjective for adjective in self.adjectives if adjective.classes & noun.classes]
        return self._adjectives[noun.classes]

    def times_of(self, tense: str) -> list[Word]:
        """The time adverbials that go with a tense (past pres prog fut)."""
        if tense not in self._times:
            self._times[tense] = [time for time in self.times if tense in time.tags]
        return self._times[tense]


@cache
def lexicon() -> Lexicon:
    """The lexicon, read once."""
    return Lexicon()
