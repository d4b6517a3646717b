"""Drawing noun phrases and what modifies them."""

from __future__ import annotations

from nmtkit.demo.draw import Draw
from nmtkit.demo.lexicon import Lexicon, Noun, lexicon
from nmtkit.demo.phrases import NP, PLURAL, PP, SINGULAR

SINGULAR_DETERMINERS = ("the",) * 9 + ("a",) * 6 + ("my",) * 3 + ("this",) * 2 + ("every",)
PLURAL_DETERMINERS = ("the",) * 8 + ("",) * 4 + ("my",) * 3 + ("this",) * 2 + ("number",) * 3 + ("many", "many", "some", "some", "several", "all")
DEFINITE_DETERMINERS = ("the",) * 4 + ("my", "this")
POSSESSIVES = {"my", "our", "his", "her", "their"}
MASS_DETERMINERS = ("the", "", "")

C = frozenset
PERSON, THING, PLACE = C({"person"}), C({"thing"}), C({"place"})
SURFACE, BUILDING, ROOM = C({"surface"}), C({"building"}), C({"room", "building"})
# class of the head -> what may follow it: "loc" (place where it is), "city", "gen" (of ...), or prepositions with a case; with the classes inside
MODIFIERS: dict[str, list[tuple[str, frozenset[str]]]] = {
    "person": [
        ("loc", PLACE),
        ("loc", PLACE),
        ("with mit d", C({"clothing", "box", "instrument", "animal"})),
        ("with mit d", C({"clothing", "thing"})),
        ("city", C()),
        ("next to neben d", C({"person", "part"})),
    ],
    "kin": [("gen", PERSON), ("gen", PERSON)],
    "owner": [("gen", BUILDING), ("gen", BUILDING), ("gen", BUILDING)],
    "animal": [("loc", PLACE), ("gen", PERSON), ("behind hinter d", C({"part", "plant"}))],
    "thing": [("loc", SURFACE), ("loc", SURFACE), ("next to neben d", C({"part", "surface"})), ("gen", PERSON), ("under unter d", C({"seat"}))],
    "key": [("to zu d", C({"lockable", "building"}))] * 6,
    "text": [("about über a", C({"topic", "animal", "event"})), ("from von d", PERSON), ("about über a", C({"person", "abstract"}))],
    "place": [("behind hinter d", C({"building", "plant"})), ("next to neben d", PLACE), ("incity", C()), ("in front of vor d", BUILDING)],
    "surface": [("loc", ROOM), ("loc", ROOM), ("next to neben d", C({"part", "surface"}))],
    "part": [("gen", BUILDING), ("gen", BUILDING)],
    "plant": [("loc", C({"place"})), ("behind hinter d", BUILDING)],
    "vehicle": [("gen", PERSON), ("in front of vor d", BUILDING), ("behind hinter d", BUILDING)],
    "abstract": [("gen", PERSON), ("gen", C({"person", "owner"}))],
    "word": [("loc in in", C({"text"})), ("gen", PERSON)],
    "event": [("loc", PLACE), ("incity", C())],
    "food": [("loc", SURFACE), ("loc on auf", C({"dish"}))],
    "song": [("about über a", C({"topic", "person", "animal"}))],
}


class Nominals:
    """Draws noun phrases. `cast` are the named persons of the document at hand."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.words: Lexicon = lexicon()
        self.cast = self.words.names[:3]
        self._modifiers: dict[Noun, list[tuple[str, frozenset[str]]]] = {}

    def noun(self, classes: frozenset[str]) -> Noun:
        """A noun of one of the classes."""
        return self.draw.pick(self.words.nouns_of(classes))

    def plain(self, classes: frozenset[str], kind: str = "any", owner: str = "my", plural: float = 0.3) -> NP:
        """A noun phrase of determiner, adjectives, noun.

        Args:
            kind: "any", "definite" or "negated" (what German may put under kein). owner: the possessive that fits the subject.
        """
        draw, noun = self.draw, self.noun(classes)
        number = PLURAL if draw.chance(plural) and "mass" not in noun.classes else SINGULAR
        np = NP(noun, number)
        np.wanted = classes
        if kind == "negated" and draw.chance(0.5) and "mass" not in noun.classes:
            np.det = "not a"
        elif kind != "any":
            np.det = draw.pick(DEFINITE_DETERMINERS)
        elif "mass" in noun.classes:
            np.det = draw.pick(MASS_DETERMINERS)
        else:
            np.det = draw.pick(PLURAL_DETERMINERS if number == PLURAL else SINGULAR_DETERMINERS)
        if np.det == "number":
            np.det, np.numeral = "", draw.pick(self.words.numerals)
        if np.det == "my":
            np.det = "the" if "person" in noun.classes and "kin" not in noun.classes else owner
        if "kin" in noun.classes and np.det in {"the", "a"} and draw.chance(0.4):
            np.det, np.owner = "the", draw.pick(self.cast)
        self.describe(np)
        return np

    def describe(self, np: NP, probability: float = 0.5) -> None:
        """Give a noun phrase an adjective, rarely two."""
        assert np.noun is not None
        options = self.words.adjectives_of(np.noun)
        if options and self.draw.chance(probability):
            first = self.draw.pick(options)
            np.adjectives = [first]
            if self.draw.chance(0.2):
                second = self.draw.pick(options)
                if second.rank != first.rank:
                    np.adjectives = sorted((first, second), key=lambda adjective: adjective.rank)

    def local(self, np: NP) -> PP:
        """The prepositional phrase that says "at this place", with the noun's own preposition and the dative."""
        assert np.noun is not None
        return PP(*np.noun.loc, "d", np)

    def modifier(self, noun: Noun) -> PP | NP | None:
        """Something that can follow a noun: a prepositional phrase or a genitive; None if there is nothing for it."""
        options = self._modifiers.get(noun)
        if options is None:
            options = [option for key, some in MODIFIERS.items() if key in noun.classes for option in some]
            self._modifiers[noun] = options
        if not options:
            return None
        kind, classes = self.draw.pick(options)
        if kind in {"city", "incity"}:
            city = NP()
            city.name = self.draw.pick(self.words.cities)
            return PP("from", "aus", "d", city) if kind == "city" else PP("in", "in", "d", city)
        if kind == "gen":
            np = self.plain(classes, "definite", self.draw.pick(("my", "our", "his", "her")), plural=0.2)
            np.owner = None
            return np
        np = self.plain(classes, "definite" if self.draw.chance(0.6) else "any", self.draw.pick(("my", "our", "his", "her")), plural=0.25)
        if kind == "loc":
            return self.local(np)
        words = kind.split()
        if words[0] == "loc":
            return PP(words[1], words[2], "d", np)
        return PP(" ".join(words[:-2]), words[-2], words[-1], np)

    def modify(self, np: NP, levels: int) -> None:
        """Put a modifier behind a noun phrase, and modifiers behind what stands in that one, `levels` deep at most."""
        if np.noun is None or np.owner or levels < 1:
            return
        found = self.modifier(np.noun)
        if found is None or any(isinstance(modifier, (PP, NP)) for modifier in np.modifiers):
            return
        np.modifiers.insert(0, found)
        inner = found.np if isinstance(found, PP) else found
        if inner.name is None and (levels > 1 or self.draw.chance(0.15)):
            self.modify(inner, levels - 1)
