"""Noun phrases and clauses, as they are drawn.

A clause is drawn once and realised in both languages, so a pair is parallel by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nmtkit.demo.lexicon import Adjective, Slot, Verb, Word

QUANTIFIED = {"every", "all", "some", "many", "several", "no", "bare"}
AGREEMENTS = {"I": 0, "we": 2, "they": 2}
POSSESSIVES = {"I": "my", "we": "our", "he": "his", "she": "her", "they": "their"}


@dataclass(eq=False, slots=True)
class NP:
    """A noun phrase: exactly one of `noun`, `pronoun`, `name`, `parts` (coordinated) is set.

    `preposition`: English preposition, German preposition ("" for none) and the case after them;
    `gender`: the gender of the noun that the pronoun "it" stands for; `wanted`: the noun classes
    that fit the place of the noun phrase in the clause.
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
        """True if a word after it could be read as part of its relative clause."""
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
        return self.noun is not None and self.det in QUANTIFIED


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
