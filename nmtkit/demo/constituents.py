"""Noun phrases and clauses, and random choices that draw noun phrases.

A clause is drawn once and realised in both languages, so a pair is parallel by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from nmtkit.demo.lexicon import CHOICES, Adjective, Slot, Verb, Word, entries, fitting

T = TypeVar("T")
QUANTIFIED = {"every", "all", "some", "many", "several", "no", "bare"}
AGREEMENTS = {"I": 0, "we": 2, "they": 2}
POSSESSIVES = {"I": "my", "we": "our", "he": "his", "she": "her", "they": "their"}


@dataclass(eq=False, slots=True)
class NP:
    """A noun phrase: exactly one of `noun`, `pronoun`, `name`, `parts` (coordinated) is set.

    `preposition`: English preposition, German preposition ("" for none) and the case after them;
    `gender`: the gender of the noun that the pronoun "it" stands for; `wanted`: the noun classes
    that fit here.
    """

    noun: Any = None
    plural: bool = False
    det: str = "the"
    wanted: str | frozenset[str] = ""
    pronoun: str = ""
    gender: str = ""
    name: Word | None = None
    parts: Sequence[NP] = ()
    preposition: tuple[str, str, str] = ("", "", "")
    numeral: Word | None = None
    owner: Word | None = None
    adjectives: Sequence[Adjective] = ()
    modifiers: Sequence[Any] = ()

    def after(self, english: str, german: str, case: str) -> NP:
        """Put this noun phrase after a preposition, and return it."""
        self.preposition = (english, german, case)
        return self

    def at_place(self) -> NP:
        """Put this noun phrase after the preposition of place of its noun, and return it."""
        english, german = self.noun.place
        return self.after(english, german, "d")

    @property
    def agreement(self) -> int:
        """The agreement index: 0 first person singular, 1 third person singular, 2 plural."""
        if self.pronoun:
            return AGREEMENTS.get(self.pronoun, 1)
        return 2 if self.parts or self.plural else 1

    @property
    def anaphor(self) -> str:
        """The pronoun that refers back to it, "" if no pronoun is unambiguous."""
        if self.name:
            return "she" if "female" in self.name.classes else "he"
        return self.pronoun or ("they" if self.agreement == 2 and self.human else "")

    @property
    def possessive(self) -> str:
        """The possessive that refers back to it as a subject."""
        return POSSESSIVES.get(self.anaphor, "their" if self.agreement == 2 else "my")

    @property
    def heavy(self) -> bool:
        """True if it has a relative clause, which a word after it could seem to belong to."""
        return any(isinstance(part, Clause) for part in self.modifiers)

    @property
    def classes(self) -> frozenset[str]:
        """The classes of its noun; names and pronouns stand for persons."""
        return self.noun.classes if self.noun else frozenset({"person"})

    @property
    def human(self) -> bool:
        """True for a person."""
        return "person" in self.classes

    @property
    def quantified(self) -> bool:
        """True if negating its clause would be ambiguous ("all dogs do not sleep")."""
        return self.det in QUANTIFIED


@dataclass(eq=False, slots=True)
class Clause:
    """A clause.

    `tense`: past, pres, prog, pastprog, perf, plup or fut.
    `gap`: the slot that a relative pronoun stands for (None: the subject).
    `modal`: "", can, must or want.
    `front`: "", time, sub or then: what comes before the English subject and the German verb.
    `question`: "", yn or a question word.
    `lead`: "", or but at the start of the sentence.
    `shifted`: True if the English particle follows the object.
    `filled`: the slots of the verb, each with the noun phrase that fills it.
    `dependent`: (conjunction; complement clause or adverbial clause), where the conjunction `if?`
    means whether, and `to` stands before an infinitive.
    `second`: (and or but, coordinated clause).
    """

    subject: NP
    verb: Verb
    tense: str
    gap: Slot | None = None
    modal: str = ""
    front: str = ""
    question: str = ""
    lead: str = ""
    negated: bool = False
    shifted: bool = False
    adjective: Any = None
    degree: Word | None = None
    than: NP | None = None
    time: Word | None = None
    adverb: Word | None = None
    place: NP | None = None
    dependent: tuple[str, Clause] | None = None
    second: tuple[str, Clause] | None = None
    filled: list[tuple[Slot, NP]] = field(default_factory=list)

    @property
    def heavy(self) -> bool:
        """True if a noun phrase in a slot has a relative clause."""
        return any(filler.heavy for _, filler in self.filled)

    @property
    def object(self) -> NP | None:
        """The direct object."""
        return next((np for slot, np in self.filled if slot.role == "acc"), None)

    @property
    def past(self) -> bool:
        """True if its finite verb is a past form."""
        return self.tense in {"past", "pastprog", "plup"}


class Draw:
    """A stream of random choices. A seed gives the same choices on every machine and Python.

    It uses only `Random.random`, because Python guarantees the values of that method.

    Args:
        seed: the user's seed.
        stream: the number of one of the seed's independent streams.
    """

    def __init__(self, seed: int, stream: int) -> None:
        self.random = Random(seed * 1_000_003 + stream).random

    def pick(self, options: Sequence[T]) -> T:
        """Return one of `options`; all are equally likely."""
        return options[int(self.random() * len(options))]

    def choose(self, place: str) -> str:
        """Return one of the lexicon's choices for a place in the grammar."""
        return self.pick(CHOICES[place])

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.random() < probability

    def between(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return low + int(self.random() * (high - low + 1))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return a shuffled copy (Fisher and Yates)."""
        shuffled, random = list(items), self.random
        for i in range(len(shuffled) - 1, 0, -1):
            j = int(random() * (i + 1))
            shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
        return shuffled


class Nominals(Draw):
    """Draws noun phrases; `cast`: the named persons of the current document."""

    cast: list[Word] = entries("names")[:3]

    def plain(
        self,
        classes: str | frozenset[str],
        kind: str = "any",
        owner: str = "my",
        plural: float = 0.3,
    ) -> NP:
        """Return a noun phrase with a determiner, perhaps adjectives, and a noun.

        Args:
            kind: "any", "definite" or "negated" (German may use kein).
            owner: the possessive that refers back to the subject.
        """
        noun = self.pick(fitting("nouns", classes))
        mass = "mass" in noun.classes
        np = NP(noun, self.chance(plural) and not mass, wanted=classes)
        if kind == "negated" and self.chance(0.5) and not mass:
            np.det = "any"
        else:
            countable = "plural" if np.plural else "singular"
            group = "definite" if kind != "any" else "mass" if mass else countable
            self.determine(np, self.choose(f"determiner {group}"), owner)
        self.describe(np)
        return np

    def determine(self, np: NP, determiner: str, owner: str) -> None:
        """Put a determiner, a numeral or a person's name before a noun."""
        kin = "kin" in np.noun.classes
        if determiner == "numeral":
            determiner, np.numeral = "bare", self.pick(entries("numerals"))
        if determiner == "my":
            determiner = "the" if np.human and not kin else owner
        if kin and determiner in {"the", "a"} and self.chance(0.4):
            determiner, np.owner = "the", self.pick(self.cast)
        np.det = determiner

    def describe(self, np: NP, probability: float = 0.5) -> None:
        """Give a noun phrase an adjective with some probability, rarely two."""
        options = fitting("adjectives", np.classes)
        if self.chance(probability):
            np.adjectives = [self.pick(options)]
            if self.chance(0.2):
                pair = [*np.adjectives, self.pick(options)]
                if pair[0].rank != pair[1].rank:
                    np.adjectives = sorted(pair, key=lambda adjective: adjective.rank)

    def city(self, english: str, german: str) -> NP:
        """Return a city after a preposition."""
        return NP(name=self.pick(entries("cities"))).after(english, german, "d")

    def modifier(self, option: Slot) -> NP:
        """Return a prepositional phrase or a genitive that follows a noun."""
        if "city" in option.nouns:
            return self.city(option.en, option.de)
        genitive = option.case == "g"
        kind = "definite" if genitive or self.chance(0.6) else "any"
        owner = self.choose("owner")
        np = self.plain(option.nouns, kind, owner, 0.2 if genitive else 0.25)
        if genitive:
            np.owner = None
        if option.role == "place":
            return np.at_place()
        return np.after(option.en, option.de, option.case)

    def modify(self, np: NP, levels: int) -> None:
        """Put a modifier after a noun phrase, and perhaps modifiers inside it, `levels` deep."""
        options = fitting("modifiers", np.classes)
        if np.owner or levels < 1 or not options:
            return
        modifier = self.modifier(self.pick(options))
        np.modifiers = [modifier]
        if not modifier.name and (levels > 1 or self.chance(0.15)):
            self.modify(modifier, levels - 1)

    def named(self) -> NP:
        """Return one of the document's named persons."""
        return NP(name=self.pick(self.cast))

    def pronoun(self, without: Sequence[str] = ()) -> NP:
        """Return a personal pronoun, but none of `without`."""
        return NP(pronoun=self.pick([key for key in POSSESSIVES if key not in without]))
