"""What is said, before either language says it: noun phrases, prepositional phrases, clauses.

A clause is drawn once (`grammar`) and rendered twice (`speak_en`, `speak_de`), so a pair is parallel by construction.
"""

from __future__ import annotations

from nmtkit.demo.lexicon import Adjective, Complement, Noun, Verb, Word

SINGULAR, PLURAL = 0, 1

# key -> English singular, English plural, German stem, what German endings it takes itself, what endings it leaves to adjectives
DETERMINERS = {
    "the": ("the", "the", "", "def", "weak"),
    "this": ("this", "these", "dies", "der", "weak"),
    "every": ("every", "", "jed", "der", "weak"),
    "all": ("", "all", "all", "der", "weak"),
    "a": ("a", "", "ein", "ein", "mixed"),
    "no": ("no", "no", "kein", "ein", "mixed"),
    "not a": ("a", "any", "kein", "ein", "mixed"),
    "my": ("my", "my", "mein", "ein", "mixed"),
    "his": ("his", "his", "sein", "ein", "mixed"),
    "her": ("her", "her", "ihr", "ein", "mixed"),
    "our": ("our", "our", "unser", "ein", "mixed"),
    "their": ("their", "their", "ihr", "ein", "mixed"),
    "some": ("", "some", "einig", "der", "strong"),
    "many": ("", "many", "viel", "der", "strong"),
    "several": ("", "several", "mehrer", "der", "strong"),
    "": ("", "", "", "", "strong"),
}

# English -> German
CONJUNCTIONS = {
    "because": "weil",
    "although": "obwohl",
    "while": "während",
    "before": "bevor",
    "after": "nachdem",
    "until": "bis",
    "as soon as": "sobald",
    "if": "wenn",
    "if ": "ob",
    "that": "dass",
    "whether": "ob",
    "when": "wenn",
    "when ": "als",  # one single time in the past; the blank keeps it apart from repeated "when" and is never written
}


class NP:
    """A noun phrase: exactly one of `noun`, `pronoun` (key of the pronoun tables), `name` or `parts` (coordinated) is set.

    `gender` is that of the antecedent for the pronoun "it"; `wanted` the classes the place in the clause admits.
    """

    __slots__ = ("adjectives", "det", "gender", "modifiers", "name", "noun", "number", "numeral", "owner", "parts", "pronoun", "wanted")

    def __init__(self, noun: Noun | None = None, number: int = SINGULAR, det: str = "the") -> None:
        self.noun, self.number, self.det = noun, number, det
        self.adjectives: list[Adjective] = []
        self.modifiers: list[PP | NP | Relative] = []
        self.pronoun, self.gender = "", ""
        self.name: Word | None = None
        self.owner: Word | None = None
        self.numeral: Word | None = None
        self.parts: list[NP] = []
        self.wanted: frozenset[str] = frozenset()

    @property
    def agreement(self) -> int:
        """0 first person singular, 1 third person singular, 2 plural."""
        if self.pronoun:
            return {"I": 0, "we": 2, "they": 2}.get(self.pronoun, 1)
        return 2 if self.parts or self.number == PLURAL else 1

    @property
    def heavy(self) -> bool:
        """True if it holds a relative clause, so that a word after it could be read as part of that clause."""
        return any(isinstance(m, Relative) or (isinstance(m, NP) and m.heavy) or (isinstance(m, PP) and m.np.heavy) for m in self.modifiers) or any(
            part.heavy for part in self.parts
        )


class PP:
    """A prepositional phrase: both prepositions, the German case (a or d), its noun phrase."""

    __slots__ = ("case", "de", "en", "np")

    def __init__(self, en: str, de: str, case: str, np: NP) -> None:
        self.en, self.de, self.case, self.np = en, de, case, np


class Relative:
    """A relative clause whose `gap` (subject, acc, dat, to, pp) is the noun phrase it modifies."""

    __slots__ = ("clause", "gap")

    def __init__(self, clause: Clause, gap: str) -> None:
        self.clause, self.gap = clause, gap


class Predicate:
    """An adjective as predicate: optional degree adverb, or a comparative with what it is compared to."""

    __slots__ = ("adjective", "degree", "than")

    def __init__(self, adjective: Adjective, degree: Word | None = None, than: NP | None = None) -> None:
        self.adjective, self.degree, self.than = adjective, degree, than


class Clause:
    """A clause.

    `tense`: past pres prog pastprog perf plup fut; `modal`: "" can must want; `filled`: complements with what fills them;
    `front`: "" time sub (what stands before the subject in English, before the verb in German); `question`: "" yn or a wh-word;
    `content`: (that whether to, clause) as complement; `adjunct`: (conjunction, clause); `second`: (and but, clause) coordinated.
    """

    __slots__ = (
        "adjunct",
        "adverb",
        "content",
        "filled",
        "front",
        "lead",
        "modal",
        "negated",
        "place",
        "predicate",
        "question",
        "second",
        "shifted",
        "subject",
        "tense",
        "time",
        "verb",
    )

    def __init__(self, subject: NP, verb: Verb, tense: str) -> None:
        self.subject, self.verb, self.tense = subject, verb, tense
        self.modal, self.front, self.question, self.lead = "", "", "", ""
        self.negated = self.shifted = False
        self.filled: list[tuple[Complement, NP | PP]] = []
        self.predicate: Predicate | None = None
        self.time: Word | None = None
        self.adverb: Word | None = None
        self.place: PP | None = None
        self.content: tuple[str, Clause] | None = None
        self.adjunct: tuple[str, Clause] | None = None
        self.second: tuple[str, Clause] | None = None
